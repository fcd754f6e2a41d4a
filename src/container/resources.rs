//! Caches, budgets and cores that all containers of a process share.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::cache::block_cache::BlockCache;
use crate::cache::budget::Budget;
use crate::cache::datasets::{self, AttributesCache};
use crate::cache::error::ReadError;
use crate::cache::freshness::{Freshness, RevalidationPolicy};
use crate::cache::memory_permit::MemoryPermit;
use crate::cache::object_cache::ObjectCache;
use crate::cache::validated::CacheSettings;
use crate::cpu_pool::CpuPool;
use crate::metrics;
use n5_format::Codecs;

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
    pub(crate) settings: Settings,
    pub(crate) objects: ObjectCache,
    pub(crate) datasets: AttributesCache,
    pub(crate) blocks: BlockCache,
    pub(crate) cpu: CpuPool,
    pub(crate) slice_budget: Budget,
    pub(crate) next_container_id: Arc<AtomicU32>,
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

    pub(crate) fn with_cpu(cpu: CpuPool, settings: Settings, codecs: Codecs) -> Arc<Self> {
        let cache_settings = |capacity_bytes| CacheSettings { capacity_bytes, use_tiny_lfu: settings.use_tiny_lfu };
        let max_wait = settings.budget_wait;
        let objects = ObjectCache::new(cache_settings(settings.stored_cache), settings.transfer_budget, max_wait);
        let decoded = cache_settings(settings.decoded_cache);
        let blocks = BlockCache::new(decoded, cpu.clone(), settings.decode_budget, max_wait);
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
    pub(crate) fn for_container(&self) -> Arc<Self> {
        Arc::new(Self {
            slice_budget: self.slice_budget.for_container(),
            datasets: self.datasets.for_container(),
            next_container_id: Arc::clone(&self.next_container_id),
            blocks: self.blocks.for_container(),
            objects: self.objects.for_container(),
            cpu: self.cpu.clone(),
            settings: self.settings.clone(),
        })
    }

    /// Gives idle pooled buffers back to the system. Must be called a few times a second.
    pub fn release_unused(&self) {
        self.slice_budget.release_unused();
        self.objects.memory.budget.release_unused();
        self.blocks.memory.budget.release_unused();
    }

    /// Returns the freshness that a request starting now requires of cached entries.
    pub fn request_freshness(&self) -> Freshness {
        Freshness::begin(self.settings.recheck_metadata, self.settings.recheck_data)
    }

    /// Maximum size of a slice budget permit that may overtake larger ones that wait for slow clients. It may do so if
    /// four times its size stays free.
    pub fn max_overtaking_bytes(&self) -> u64 {
        self.slice_budget.max_overtaking_bytes()
    }

    /// Returns a permit of the slice budget if `bytes` are free. Returns `None` if other requests hold them or wait for
    /// them.
    pub fn try_reserve_memory(&self, bytes: u64) -> Option<MemoryPermit> {
        let permit = self.slice_budget.try_take(bytes)?;
        Some(MemoryPermit::new(Some(permit), &self.slice_budget))
    }

    /// Reserves `bytes` of the slice budget for a response that reads no container.
    ///
    /// # Errors
    /// [`ReadError::Budget`] when the budget is smaller than `bytes` or other requests hold the memory for too long.
    pub async fn reserve_memory(&self, bytes: u64) -> Result<MemoryPermit, ReadError> {
        Ok(MemoryPermit::new(Some(self.slice_budget.take(bytes).await?), &self.slice_budget))
    }

    /// Updates the gauges of the caches and the CPU pool.
    pub fn update_gauges(&self) {
        metrics::cpu_jobs(self.cpu.running());
        metrics::cache_bytes(metrics::CacheLabel::Decoded, self.blocks.bytes(), self.settings.decoded_cache);
        metrics::cache_bytes(metrics::CacheLabel::Stored, self.objects.bytes(), self.settings.stored_cache);
        metrics::cache_bytes(metrics::CacheLabel::Attributes, self.datasets.bytes(), datasets::CACHE_BYTES);
    }
}
