//! Containers: the only module that knows both the meaning of bytes and the store that holds them.

mod admission_filter;
mod backpressure;
mod bands;
mod block_cache;
mod block_entry;
mod block_waiters;
mod browse;
mod budget;
mod buffer_pool;
mod canvas;
mod check;
mod concurrent_loads;
mod confirm_missing;
mod derived;
mod error;
mod existing_blocks;
mod fetch;
mod footprint;
mod freshness;
mod gather;
mod groups;
mod instrument;
mod large_object;
mod memory_permit;
mod nonblocking_gather;
mod nonblocking_objects;
mod object_cache;
mod partial_reads;
mod permit;
mod pinned_buffers;
mod read_stats;
mod reconfigured;
mod revalidate;
mod sample;
mod single_block;
mod single_flight;
mod slice_cost;
mod slice_plan;
mod visibility;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use moka::future::Cache;
use moka::notification::RemovalCause;
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;

pub use bands::{Bands, SliceRefusal};
pub(crate) use browse::grid_component;
pub use browse::{DirectoryEntry, DirectoryPage, EntryKind};
pub use check::ValidBlock;
pub use derived::{Derivation, DeriveFn, DerivedBytes};
pub use error::{BudgetError, ReadError};
pub use freshness::{Freshness, RevalidationPolicy};
pub use gather::PieceTransform;
pub use groups::{Dataset, Group, GroupState};
pub use large_object::LargeObject;
pub use memory_permit::MemoryPermit;
pub use nonblocking_objects::NonblockingLookup;
pub use object_cache::StoredObject;
pub use pinned_buffers::SendPermit;
pub use read_stats::{Fingerprint, ReadStats};
pub use revalidate::{CachedAnswer, Dependency};
pub use sample::{SamplePlan, SampleStatistics};
pub use slice_plan::{PlannedSlice, SliceDelivery};
pub use visibility::Visibility;

use block_cache::BlockCache;
use budget::Budget;
use groups::AttributesCache;
use instrument::instrument;
use object_cache::ObjectCache;
use permit::Permit;

use crate::cpu_pool::CpuPool;
use crate::fair_queue::ClientId;
use crate::metrics::{self, StoreOperation};
use crate::n5::Codecs;
use crate::store::{CachedStat, Key, ObjectMeta, Store, StoreLoad};

/// Name of the file that holds a group's attributes.
pub const ATTRIBUTES: &str = "attributes.json";

/// Bodies shorter than this are not charged to the client that they are sent to: the kernel takes them at once.
const UNCHARGED_BYTES: usize = 4 << 10;

/// Limits and cache sizes, in bytes unless the type says otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Capacity of the cache of decoded blocks.
    pub decoded_cache: u64,
    /// Capacity of the cache of stored objects.
    pub stored_cache: u64,
    /// True if the caches weigh how often an entry is used (TinyLFU) and not only when it was last used (LRU).
    pub use_tiny_lfu: bool,
    /// Policy for revalidating cached attributes.
    pub recheck_metadata: RevalidationPolicy,
    /// Policy for revalidating cached blocks.
    pub recheck_data: RevalidationPolicy,
    /// Maximum size of a slice.
    pub max_slice_bytes: u64,
    /// Budget for results that are being assembled and sent.
    pub slice_budget: u64,
    /// Budget for blocks that are being decoded, in addition to the cache. Also the maximum memory for one block.
    pub decode_budget: u64,
    /// Budget for stored objects that are being read and sent, in addition to the cache.
    pub transfer_budget: u64,
    /// Maximum number of bytes decoded for a response, as a multiple of the response's size.
    pub decode_factor: u64,
    /// Maximum size of an `attributes.json` that is parsed.
    pub max_attributes_bytes: u64,
    /// Longest wait for a permit of a budget.
    pub budget_wait: Duration,
    /// Number of blocks that are decoded concurrently.
    pub cores: usize,
}

/// Caches, budgets and the CPU pool, shared by all containers of a process.
#[derive(Debug)]
pub struct Resources {
    settings: Settings,
    objects: ObjectCache,
    datasets: AttributesCache,
    blocks: BlockCache,
    cpu: CpuPool,
    slice_budget: Budget,
    next_container_id: Arc<AtomicU32>,
}

impl Resources {
    /// Creates resources with empty caches and unused budgets.
    pub fn new(settings: Settings) -> Arc<Self> {
        Self::with_codecs(settings, Codecs::built_in().clone())
    }

    /// Like [`Self::new`], but blocks are decoded by `codecs`.
    pub fn with_codecs(settings: Settings, codecs: Codecs) -> Arc<Self> {
        let cpu = CpuPool::new(settings.cores);
        Self::with_cpu(cpu, settings, codecs)
    }

    fn with_cpu(cpu: CpuPool, settings: Settings, codecs: Codecs) -> Arc<Self> {
        let cache_settings = |capacity_bytes| CacheSettings { capacity_bytes, use_tiny_lfu: settings.use_tiny_lfu };
        let max_wait = settings.budget_wait;
        let objects = ObjectCache::new(cache_settings(settings.stored_cache), settings.transfer_budget, max_wait);
        let decoded = cache_settings(settings.decoded_cache);
        let blocks = BlockCache::new(decoded, objects.clone(), cpu.clone(), settings.decode_budget, max_wait);
        Arc::new(Self {
            slice_budget: Budget::new(metrics::BudgetLabel::Slice, settings.slice_budget, max_wait),
            datasets: AttributesCache::new(max_wait, codecs),
            next_container_id: Arc::default(),
            objects,
            blocks,
            cpu,
            settings,
        })
    }

    /// Returns the settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the codecs by which blocks are decoded.
    pub fn codecs(&self) -> &Codecs {
        &self.datasets.codecs
    }

    /// Returns the CPU pool.
    pub fn cpu(&self) -> &CpuPool {
        &self.cpu
    }

    /// Returns these resources for one container, whose waiting requests are counted separately.
    fn for_container(&self) -> Arc<Self> {
        let objects = self.objects.for_container();
        Arc::new(Self {
            slice_budget: self.slice_budget.for_container(),
            datasets: self.datasets.for_container(),
            next_container_id: Arc::clone(&self.next_container_id),
            blocks: self.blocks.for_container(&objects),
            objects,
            cpu: self.cpu.clone(),
            settings: self.settings.clone(),
        })
    }

    /// Gives idle pooled buffers back to the system. Must be called a few times a second.
    pub fn release_unused(&self) {
        self.slice_budget.release_unused();
        self.objects.budget.release_unused();
        self.blocks.budget.release_unused();
    }

    /// Returns the freshness that a request starting now requires of cached entries.
    pub fn request_freshness(&self) -> Freshness {
        Freshness::begin(self.settings.recheck_metadata, self.settings.recheck_data)
    }
}

/// An N5 hierarchy in a store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Container {
    id: u32,
    store: Arc<dyn Store>,
    resources: Arc<Resources>,
    /// Restriction to what the caller may see; `None` if everything is visible.
    visibility: Option<Arc<dyn Visibility>>,
}

impl Container {
    /// Creates a container for the hierarchy in `store`.
    #[expect(clippy::needless_pass_by_value, reason = "the container keeps its own handle to the resources")]
    pub fn new(store: Arc<dyn Store>, resources: Arc<Resources>) -> Self {
        let id = resources.next_container_id.fetch_add(1, Ordering::Relaxed);
        Self { id, store, resources: resources.for_container(), visibility: None }
    }

    /// Returns the resources that all containers share.
    pub fn resources(&self) -> &Arc<Resources> {
        &self.resources
    }

    /// Returns the object at `key` as stored (attributes or a block), or `None` if there is none.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails, a link hides a block, or memory is short.
    pub async fn object(&self, freshness: Freshness, key: &Key) -> Result<Option<StoredObject>, ReadError> {
        if !self.is_visible(key) {
            return Ok(None);
        }
        self.resources.objects.get(self.id, &self.store, key, freshness).await
    }

    /// Charges `bytes` to `client` while they are being sent to it. They belong to a stored object or to a result
    /// derived from one. Returns `None` if the client has too many unsent bytes already. The caller must then drop
    /// `bytes`, wait for a [permit](Self::acquire_send_permit) and look them up again.
    pub fn charge_to_client(&self, client: ClientId, bytes: &Bytes) -> Option<Bytes> {
        if bytes.len() < UNCHARGED_BYTES {
            Some(bytes.clone())
        } else {
            self.resources.objects.budget.charge_to_client(client, bytes)
        }
    }

    /// Waits until `len` more bytes may be sent to the current client.
    ///
    /// # Errors
    /// [`ReadError::Budget`] when the client does not read what it requested before.
    pub async fn acquire_send_permit(&self, len: usize) -> Result<SendPermit, ReadError> {
        Ok(self.resources.objects.budget.acquire_send_permit(len).await?)
    }

    /// As [`Self::charge_to_client`], with a permit that was acquired before.
    pub fn charge_with_permit(&self, permit: SendPermit, bytes: Bytes) -> Bytes {
        self.resources.objects.budget.charge_with_permit(permit, bytes)
    }

    /// Returns metadata of the object at `key`, from the cache if the entry is fresh. Reads no bytes of the object.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn meta(&self, freshness: Freshness, key: &Key) -> Result<Option<ObjectMeta>, ReadError> {
        if !self.is_visible(key) {
            return Ok(None);
        }
        let fresh_since = freshness.since(key);
        if let Some(cached) = self.resources.objects.peek(self.id, key, fresh_since).await {
            return Ok(cached);
        }
        match self.store.cached_stat(key) {
            CachedStat::Object(raw_meta) => Ok(Some(raw_meta.into())),
            CachedStat::Missing | CachedStat::NotAnObject => Ok(None),
            CachedStat::Unknown => {
                freshness.ensure_may_block().await;
                Ok(instrument(StoreOperation::Head, self.store.backend(), self.store.head(key)).await?)
            }
        }
    }

    /// Returns the current load of the store: the calls that are running or queued.
    pub fn store_load(&self) -> StoreLoad {
        self.store.current_load()
    }

    /// Checks that the store can be read.
    ///
    /// # Errors
    /// [`ReadError::Store`] with the reason why it cannot be read.
    pub async fn probe(&self) -> Result<(), ReadError> {
        Ok(instrument(StoreOperation::Head, self.store.backend(), self.store.probe()).await?)
    }
}

#[derive(Debug, Clone, Copy)]
struct CacheSettings {
    capacity_bytes: u64,
    use_tiny_lfu: bool,
}

impl CacheSettings {
    /// Returns the maximum weight of the cache: its capacity and 1/64 more for the bookkeeping that weighers count, so
    /// that data of exactly the configured size fits.
    fn max_weight_bytes(self) -> u64 {
        self.capacity_bytes.saturating_add(self.capacity_bytes / 64)
    }
}

/// Creates a cache weighed in bytes.
fn weighted_cache<K, V>(label: metrics::CacheLabel, settings: CacheSettings, weigher: fn(&K, &V) -> u32) -> Cache<K, V>
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let policy = if settings.use_tiny_lfu { EvictionPolicy::tiny_lfu() } else { EvictionPolicy::lru() };
    Cache::builder()
        // A cache of capacity 0 never drops the entries that pass through it, even if its pending tasks are run. It
        // would keep their permits forever. No entry fits into a cache of 1 byte either.
        .max_capacity(settings.max_weight_bytes().max(1))
        .eviction_policy(policy)
        .weigher(weigher)
        .eviction_listener(move |_, _, cause| {
            if cause == RemovalCause::Size {
                metrics::cache_eviction(label);
            }
        })
        .build()
}

/// Delay before a cache's pending evictions are run again. It doubles each time.
const EVICTION_RETRY_DELAY: Duration = Duration::from_millis(5);

/// Number of retries before the cache is forced to evict entries: 75 ms after the first.
const RETRIES_BEFORE_FORCED_EVICTION: u32 = 4;

/// A forced eviction removes one in this many entries.
const FORCED_EVICTION_DIVISOR: usize = 8;

/// Waits for `acquire`, a permit for `bytes` of a budget that is mostly filled by a cache. Runs the cache's pending
/// evictions meanwhile, which frees evicted memory sooner.
///
/// If the memory stays short because clients are slow to read evicted entries that are being sent to them, the cache
/// evicts more entries. This does not help a client that waits for memory that it holds itself.
async fn acquire_with_eviction<K, V>(
    cache: &Cache<K, V>,
    budget: &Budget,
    bytes: u64,
    acquire: impl Future<Output = Result<Permit, BudgetError>>,
) -> Result<Permit, ReadError>
where
    K: Clone + std::hash::Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let evict = async {
        for retry in 0u32.. {
            cache.run_pending_tasks().await;
            let in_flight_bytes = budget.capacity_bytes().saturating_sub(cache.policy().max_capacity().unwrap_or(0));
            let is_short = budget.free_bytes() < bytes;
            if is_short && retry >= RETRIES_BEFORE_FORCED_EVICTION && budget.pinned.bytes() > in_flight_bytes / 2 {
                let count = usize::try_from(cache.entry_count()).unwrap_or(usize::MAX) / FORCED_EVICTION_DIVISOR;
                let evicted: Vec<K> = cache.iter().take(count + 1).map(|(key, _)| (*key).clone()).collect();
                for key in &evicted {
                    cache.invalidate(key).await;
                }
                cache.run_pending_tasks().await;
            }
            // Longer delays are useless, since requests wait for a bounded time.
            tokio::time::sleep(EVICTION_RETRY_DELAY.saturating_mul(2_u32.saturating_pow(retry.min(8)))).await;
        }
    };
    tokio::select! {
        biased;
        permit = acquire => Ok(permit?),
        () = evict => Err(ReadError::Internal("the eviction loop ended unexpectedly".to_owned())),
    }
}

/// Removes `stale` from a cache, unless it has been replaced already.
async fn invalidate_if_same<K, V>(cache: &Cache<K, Arc<V>>, key: K, stale: &Arc<V>)
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    cache
        .entry(key)
        .and_compute_with(|current| {
            let is_same = current.is_some_and(|current| Arc::ptr_eq(current.value(), stale));
            std::future::ready(if is_same { Op::Remove } else { Op::Nop })
        })
        .await;
}
