//! Caches, budgets and cores that all containers of a process share.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use moka::future::Cache;
use moka::policy::EvictionPolicy;

use crate::cache::{
    AttributesCache, BlockCache, Budget, CACHED_ATTRIBUTES_BYTES, FreshnessPolicy, KnownMissing, MemoryPermit,
    ObjectCache, ReadError, RevalidationPolicy,
};
use crate::config::{self, Config, MemorySizes};
use crate::runtime::cpu_pool::CpuPool;
use crate::store::DiskCache;
use crate::telemetry::metrics::{self, BudgetLabel, CacheLabel};
use n5_format::Codecs;

/// Limits and cache sizes. Numbers are bytes unless stated otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Capacity of the cache of decoded blocks.
    pub decoded_cache: u64,
    /// Capacity of the cache of stored objects.
    pub stored_cache: u64,
    /// True if the caches evict by frequency of use (TinyLFU) and not only by the time of the last use (LRU).
    pub use_tiny_lfu: bool,
    /// Policy for revalidating cached attributes.
    pub recheck_metadata: RevalidationPolicy,
    /// Policy for revalidating cached blocks.
    pub recheck_data: RevalidationPolicy,
    /// Policy for asking the store again for missing objects; `None` for the policies of attributes and blocks.
    pub recheck_missing: Option<RevalidationPolicy>,
    /// Maximum size of a slice.
    pub max_slice_bytes: u64,
    /// Budget for results that are being assembled and sent.
    pub slice_budget: u64,
    /// Budget for blocks that are being decoded, in addition to the cache. One block may take all of it.
    pub decode_budget: u64,
    /// Budget for stored objects that are being read and sent, in addition to the cache.
    pub transfer_budget: u64,
    /// Maximum number of bytes that are decoded for a response, as a multiple of the length of the response.
    pub decode_factor: u64,
    /// Maximum size of an `attributes.json` that is parsed.
    pub max_attributes_bytes: u64,
    /// Longest wait for a permit of a budget.
    pub budget_wait: Duration,
    /// Number of blocks that are decoded concurrently.
    pub cores: usize,
}

impl Settings {
    /// Returns the settings of a configuration.
    pub fn new(config: &Config) -> Self {
        let MemorySizes { decoded_cache, stored_cache, slice_budget, decode_budget, transfer_budget } =
            config.memory_sizes();
        Self {
            decoded_cache,
            stored_cache,
            use_tiny_lfu: config.cache.policy == config::EvictionPolicy::TinyLfu,
            recheck_metadata: config.cache.recheck_cached_metadata,
            recheck_data: config.cache.recheck_cached_data,
            recheck_missing: None,
            max_slice_bytes: config.limits.slice,
            slice_budget,
            decode_budget,
            transfer_budget,
            decode_factor: config.limits.decode_factor,
            max_attributes_bytes: config.limits.attributes,
            budget_wait: config.limits.budget_wait,
            cores: config.threads(),
        }
    }

    /// Returns the freshness policy of containers that have none of their own.
    pub(crate) fn freshness(&self) -> FreshnessPolicy {
        let Self { recheck_metadata: metadata, recheck_data: data, recheck_missing: missing, .. } = *self;
        FreshnessPolicy { metadata, data, missing, revalidates_in_background: false }
    }

    /// Returns the parts of the resources that resources for `new` take over.
    fn kept_parts(&self, new: &Self) -> KeptParts {
        let Self {
            decoded_cache,
            stored_cache,
            use_tiny_lfu,
            decode_budget,
            transfer_budget,
            cores,
            // No part is built from these. Each read uses the settings in force, and budgets are resized.
            recheck_metadata: _,
            recheck_data: _,
            recheck_missing: _,
            max_slice_bytes: _,
            slice_budget: _,
            decode_factor: _,
            max_attributes_bytes: _,
            budget_wait: _,
        } = *self;
        let cpu = cores == new.cores;
        let objects =
            (stored_cache, transfer_budget, use_tiny_lfu) == (new.stored_cache, new.transfer_budget, new.use_tiny_lfu);
        // Blocks are loaded through the cache of stored objects and decoded on the CPU pool.
        let blocks = objects && cpu && (decoded_cache, decode_budget) == (new.decoded_cache, new.decode_budget);
        KeptParts { cpu, objects, blocks }
    }
}

/// Parts of [`Resources`] that a reload can take over. Each is true if it is taken over.
struct KeptParts {
    cpu: bool,
    /// The cache of stored objects.
    objects: bool,
    /// The cache of decoded blocks.
    blocks: bool,
}

/// Maximum number of windows that are kept. Together they take less than 1 MB.
const MAX_WINDOWS: u64 = 4096;

/// Maximum number of directories that are remembered. Together they take less than 1 MB.
const MAX_DIRECTORIES: u64 = 4096;

/// Caches, budgets and the CPU pool, which all containers of a process share. Each budget also counts its waiting
/// requests: clones count them together, `for_container` begins a separate count.
#[derive(Debug, Clone)]
pub struct Resources {
    settings: Settings,
    pub(crate) objects: ObjectCache,
    pub(crate) attributes: AttributesCache,
    pub(crate) blocks: BlockCache,
    pub(crate) cpu: CpuPool,
    pub(crate) slice_budget: Budget,
    /// Automatic windows of pictures, by a hash of the sampled blocks and their versions.
    pub(crate) windows: Cache<u128, (f64, f64)>,
    pub(super) known_missing: Arc<KnownMissing>,
    /// The cache of remote objects on disk, if there is one.
    disk_cache: Option<Arc<DiskCache>>,
    /// Directories of stores behind a network that were found, by a hash of the container and the key, and the moments
    /// at which they were requested.
    pub(super) directories: Cache<u128, u64>,
    pub(super) next_container_id: Arc<AtomicU32>,
}

impl Resources {
    /// Creates resources with empty caches and unused budgets.
    pub fn new(settings: Settings) -> Arc<Self> {
        Self::with_codecs(settings, Codecs::built_in().clone())
    }

    /// Like [`Self::new`], but blocks are decoded by `codecs`.
    pub fn with_codecs(settings: Settings, codecs: Codecs) -> Arc<Self> {
        let cpu = CpuPool::new(settings.cores);
        Arc::new(Self::with_cpu(cpu, settings, codecs))
    }

    /// Returns the same resources with a cache on disk.
    pub fn with_disk_cache(&self, disk_cache: Arc<DiskCache>) -> Arc<Self> {
        Arc::new(Self { disk_cache: Some(disk_cache), ..self.clone() })
    }

    /// Returns the cache of remote objects on disk, if there is one.
    pub fn disk_cache(&self) -> Option<&Arc<DiskCache>> {
        self.disk_cache.as_ref()
    }

    fn with_cpu(cpu: CpuPool, settings: Settings, codecs: Codecs) -> Self {
        let policy = if settings.use_tiny_lfu { EvictionPolicy::tiny_lfu() } else { EvictionPolicy::lru() };
        let Settings { stored_cache, transfer_budget, decoded_cache, decode_budget, budget_wait, .. } = settings;
        Self {
            objects: ObjectCache::new(stored_cache, policy.clone(), transfer_budget, budget_wait),
            attributes: AttributesCache::new(budget_wait, codecs),
            blocks: BlockCache::new(decoded_cache, policy, cpu.clone(), decode_budget, budget_wait),
            slice_budget: Budget::new(BudgetLabel::Slice, settings.slice_budget, budget_wait),
            windows: Cache::new(MAX_WINDOWS),
            known_missing: Arc::default(),
            disk_cache: None,
            directories: Cache::new(MAX_DIRECTORIES),
            next_container_id: Arc::default(),
            cpu,
            settings,
        }
    }

    /// Returns the same resources for one container, whose waiting requests are counted separately.
    pub(crate) fn for_container(&self) -> Arc<Self> {
        let mut resources = self.clone();
        resources.slice_budget = self.slice_budget.for_container();
        resources.attributes.parsing_budget = self.attributes.parsing_budget.for_container();
        resources.objects.set_budget(self.objects.budget().for_container());
        resources.blocks.set_budget(self.blocks.budget().for_container());
        Arc::new(resources)
    }

    /// Returns the budgets whose sizes are configured.
    fn budgets(&self) -> [&Budget; 3] {
        [&self.slice_budget, self.objects.budget(), self.blocks.budget()]
    }

    /// Returns resources for `settings`. They take over the memory of all budgets, and those caches whose settings are
    /// unchanged; the other caches start empty. Old and new resources can be used at the same time after the budgets of
    /// the new resources have been [applied](Self::apply_budgets).
    pub fn reconfigured(&self, settings: Settings) -> Arc<Self> {
        let kept = self.settings.kept_parts(&settings);
        let cpu = if kept.cpu { self.cpu.clone() } else { CpuPool::new(settings.cores) };
        let mut new = Self::with_cpu(cpu, settings, self.codecs().clone());
        let slice_budget = self.slice_budget.with_size_of(&new.slice_budget);
        let transfer_budget = self.objects.budget().with_size_of(new.objects.budget());
        let decode_budget = self.blocks.budget().with_size_of(new.blocks.budget());
        if kept.objects {
            new.objects = self.objects.clone();
        }
        if kept.blocks {
            new.blocks = self.blocks.clone();
        }
        new.slice_budget = slice_budget;
        new.objects.set_budget(transfer_budget);
        new.blocks.set_budget(decode_budget);
        new.attributes = self.attributes.clone();
        new.attributes.parsing_budget.max_wait = new.settings.budget_wait;
        new.known_missing = Arc::clone(&self.known_missing);
        new.disk_cache.clone_from(&self.disk_cache);
        new.next_container_id = Arc::clone(&self.next_container_id);
        Arc::new(new)
    }

    /// Puts the sizes of the budgets into effect, also for the resources that these resources have replaced: both share
    /// the memory of the budgets.
    pub fn apply_budgets(&self) {
        self.budgets().into_iter().for_each(Budget::apply_size);
    }

    /// Frees the entries of caches that resources for `settings` have not taken over. Must be called repeatedly until
    /// nothing uses these resources any more, since their remaining users may add entries.
    pub async fn drain_caches(&self, settings: &Settings) {
        let kept = self.settings.kept_parts(settings);
        if !kept.objects {
            self.objects.entries.drain().await;
        }
        if !kept.blocks {
            self.blocks.entries.drain().await;
        }
    }

    /// Returns the settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the codecs that decode blocks.
    pub fn codecs(&self) -> &Codecs {
        &self.attributes.codecs
    }

    /// Returns the CPU pool.
    pub fn cpu(&self) -> &CpuPool {
        &self.cpu
    }

    /// Forgets all names that are known to be missing, and frees their memory.
    pub fn forget_missing_names(&self) {
        self.known_missing.clear();
    }

    /// Gives idle pooled buffers back to the system. Must be called a few times a second.
    pub fn release_unused(&self) {
        self.budgets().into_iter().for_each(Budget::release_unused_buffers);
    }

    /// Returns the maximum size in bytes of a permit of the slice budget that may overtake a larger request of another
    /// client.
    pub fn max_overtaking_bytes(&self) -> u64 {
        self.slice_budget.max_overtaking_bytes()
    }

    /// Returns a permit for `bytes` of the slice budget without waiting. Returns `None` if the memory is not free or
    /// other requests wait for it.
    pub fn try_reserve_memory(&self, bytes: u64) -> Option<MemoryPermit> {
        let permit = self.slice_budget.try_take(bytes)?;
        Some(MemoryPermit::new(Some(permit), &self.slice_budget))
    }

    /// Reserves `bytes` of the slice budget for a response that reads no container.
    ///
    /// # Errors
    /// Returns [`ReadError::Budget`] if the budget is smaller than `bytes` or other requests hold the memory for too
    /// long.
    pub async fn reserve_memory(&self, bytes: u64) -> Result<MemoryPermit, ReadError> {
        Ok(MemoryPermit::new(Some(self.slice_budget.take(bytes).await?), &self.slice_budget))
    }

    /// Updates the gauges of the caches and the CPU pool.
    pub fn update_gauges(&self) {
        metrics::cpu_jobs(self.cpu.running());
        metrics::cache_bytes(CacheLabel::Decoded, self.blocks.entries.weight_bytes(), self.settings.decoded_cache);
        metrics::cache_bytes(CacheLabel::Stored, self.objects.entries.weight_bytes(), self.settings.stored_cache);
        metrics::cache_bytes(CacheLabel::Attributes, self.attributes.cache.weighted_size(), CACHED_ATTRIBUTES_BYTES);
        if let Some(disk_cache) = &self.disk_cache {
            metrics::disk_cache(&disk_cache.stats());
        }
    }
}

#[cfg(test)]
impl Settings {
    /// Returns the default settings with small caches and budgets. Nothing is revalidated.
    pub(crate) fn small() -> Self {
        Self {
            decoded_cache: 1 << 20,
            stored_cache: 1 << 20,
            recheck_metadata: RevalidationPolicy::Never,
            recheck_data: RevalidationPolicy::Never,
            max_slice_bytes: 1 << 20,
            slice_budget: 1 << 20,
            decode_budget: 1 << 20,
            transfer_budget: 1 << 20,
            max_attributes_bytes: 1 << 16,
            budget_wait: Duration::from_millis(20),
            cores: 1,
            ..Self::new(&Config::default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{ObjectCacheKey, ObjectEntry};
    use crate::runtime::fair_queue::FlightHandle;

    fn settings() -> Settings {
        Settings { budget_wait: Duration::from_secs(1), ..Settings::small() }
    }

    #[test]
    fn only_parts_with_changed_settings_are_replaced() {
        let retained = |change: &dyn Fn(&mut Settings)| {
            let mut new = settings();
            change(&mut new);
            let kept = settings().kept_parts(&new);
            [kept.objects, kept.blocks, kept.cpu]
        };
        assert_eq!(retained(&|new| new.budget_wait = Duration::ZERO), [true; 3]);
        assert_eq!(retained(&|new| new.recheck_data = RevalidationPolicy::Always), [true; 3]);
        assert_eq!(retained(&|new| new.slice_budget *= 2), [true, true, true]);
        assert_eq!(retained(&|new| new.decoded_cache *= 2), [true, false, true]);
        assert_eq!(retained(&|new| new.decode_budget *= 2), [true, false, true]);
        assert_eq!(retained(&|new| new.stored_cache *= 2), [false, false, true]);
        assert_eq!(retained(&|new| new.transfer_budget *= 2), [false, false, true]);
        assert_eq!(retained(&|new| new.use_tiny_lfu = !new.use_tiny_lfu), [false, false, true]);
        assert_eq!(retained(&|new| new.cores += 1), [true, false, false]);
    }

    #[tokio::test]
    async fn permits_taken_before_count_in_the_new_budget() {
        const MIB: u64 = 1 << 20;
        let old = Resources::new(settings());
        let permit = old.slice_budget.take(MIB).await.unwrap();
        let larger = old.reconfigured(Settings { slice_budget: 2 * MIB, ..settings() });
        assert_eq!(old.slice_budget.free_bytes(), 0, "budget sizes change only when they are applied");
        larger.apply_budgets();
        assert_eq!(larger.slice_budget.free_bytes(), MIB);
        let smaller = larger.reconfigured(Settings { slice_budget: MIB / 2, ..settings() });
        smaller.apply_budgets();
        assert!(smaller.slice_budget.try_take(1).is_none());
        drop(permit);
        assert_eq!(smaller.slice_budget.free_bytes(), MIB / 2);
        // A request that started earlier was planned with the larger budget.
        let permit = larger.slice_budget.take(2 * MIB).await.unwrap();
        assert!(smaller.slice_budget.try_take(1).is_none());
        drop(permit);
        assert_eq!(smaller.slice_budget.free_bytes(), MIB / 2);
    }

    #[tokio::test]
    async fn memory_of_a_replaced_cache_is_freed_by_the_new_one() {
        let old = Resources::new(settings());
        let new = old.reconfigured(Settings { stored_cache: 2 << 20, ..settings() });
        let key = ObjectCacheKey::Derived(1);
        let load = |_: &FlightHandle| Some(ObjectEntry::missing(false, 1));
        for objects in [&old.objects, &new.objects] {
            assert!(objects.entries.try_get_or_load(key.clone(), load).is_some());
        }
        new.objects.entries.force_eviction().await;
        assert!(new.objects.entries.try_cached(&key).is_none() && old.objects.entries.try_cached(&key).is_some());
    }

    #[tokio::test]
    async fn replaced_caches_free_memory_for_the_new_ones() {
        let old = Resources::new(settings());
        let permit = old.blocks.budget().take(1 << 20).await.unwrap().into_cache_owned();
        let new = old.reconfigured(Settings { decoded_cache: 2 << 20, ..settings() });
        new.apply_budgets();
        assert_eq!(new.blocks.budget().free_bytes() + (1 << 20), new.blocks.budget().capacity_bytes());
        drop(permit);
        assert_eq!(new.blocks.budget().free_bytes(), new.blocks.budget().capacity_bytes());
    }

    #[tokio::test]
    async fn permits_of_a_retained_budget_come_from_the_same_memory() {
        let old = Resources::new(settings());
        let new = old.reconfigured(Settings { budget_wait: Duration::ZERO, ..settings() });
        let permit = old.slice_budget.take(1 << 20).await.unwrap();
        assert!(new.slice_budget.take(1 << 20).await.is_err());
        drop(permit);
        assert!(new.slice_budget.take(1 << 20).await.is_ok());
        let larger = old.reconfigured(Settings { slice_budget: 2 << 20, ..settings() });
        larger.apply_budgets();
        assert!(larger.slice_budget.take(2 << 20).await.is_ok());
    }
}
