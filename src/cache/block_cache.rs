//! The cache of decoded blocks: weighed in bytes and filled in single flights. It remembers holes and blocks that do not
//! decode, but no other errors.

use std::sync::Arc;
use std::time::Duration;

use super::block_entry::BlockEntry;
use super::block_source::BlockSource;
use super::budget::Budget;
use super::cache_memory::CacheMemory;
use super::datasets::Dataset;
use super::error::ReadError;
use super::footprint;
use super::freshness;
use super::validated::{CacheEntry, CacheSettings, Validated};
use crate::cpu_pool::CpuPool;
use crate::metrics::{BudgetLabel, CacheLabel, LookupResult};
use n5_format::{BlockError, GridPosition};

/// Bookkeeping of one entry in bytes, estimated generously.
const ENTRY_BYTES: usize = 768;

/// Maximum number of blocks that are revalidated without blocking. They take about 50 us, the time of handing the work
/// to a thread that may block.
pub(crate) const MAX_NONBLOCKING_CHECKS: usize = 64;

/// Key of a cached block: dataset id and grid position.
pub(crate) type BlockCacheKey = (u64, GridPosition);

/// The cache of decoded blocks, shared by all containers.
#[derive(Debug, Clone)]
pub(crate) struct BlockCache {
    pub(crate) entries: Validated<BlockCacheKey, BlockEntry>,
    pub(crate) cpu: CpuPool,
    /// Memory of the entries and of the blocks that are being decoded.
    pub(crate) memory: CacheMemory,
    /// Maximum number of bytes that one block may take while it is decoded.
    pub(crate) block_bytes: u64,
}

/// Location of a block, and where it comes from.
#[derive(Debug, Clone)]
pub(crate) struct BlockLocation {
    pub(crate) source: Arc<dyn BlockSource>,
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) position: GridPosition,
}

impl BlockLocation {
    pub(crate) fn cache_key(&self) -> BlockCacheKey {
        (self.dataset.id, self.position.clone())
    }

    pub(crate) fn block_error(&self, error: BlockError) -> ReadError {
        ReadError::Block { key: self.dataset.block_key(&self.position), position: self.position.clone(), error }
    }
}

impl BlockCache {
    pub(crate) fn new(settings: CacheSettings, cpu: CpuPool, decode_bytes: u64, max_wait: Duration) -> Self {
        let entries = Validated::new(CacheLabel::Decoded, settings, |key: &BlockCacheKey, entry: &Arc<BlockEntry>| {
            let bytes = entry.block.as_ref().map_or(0, |block| footprint::footprint_bytes(block.data.len()));
            let bytes = bytes + entry.fault.as_ref().map_or(0, |fault| fault.to_string().len());
            // The position counts twice: in the key and in the map of loads in flight.
            u32::try_from(bytes + ENTRY_BYTES + 16 * key.1.len()).unwrap_or(u32::MAX)
        });
        let budget = Budget::with_cache(BudgetLabel::Decode, settings.max_weight_bytes(), decode_bytes, max_wait);
        let memory = CacheMemory::new(budget, &entries);
        Self { entries, cpu, memory, block_bytes: decode_bytes }
    }

    /// Returns a handle to the same cache and budget that waits for memory at most `max_wait` and decodes on `cpu`.
    pub(crate) fn with_max_wait(&self, max_wait: Duration, cpu: &CpuPool) -> Self {
        Self { cpu: cpu.clone(), memory: self.memory.map(|budget| budget.with_max_wait(max_wait)), ..self.clone() }
    }

    /// Returns a handle to the same cache and budget for another container.
    pub(crate) fn for_container(&self) -> Self {
        Self { memory: self.memory.map(Budget::for_container), ..self.clone() }
    }

    /// Returns the cached bytes, for the metrics page.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.weight_bytes()
    }

    /// Returns the cached blocks among those at `positions`, in their order, none staler than `fresh_since`.
    ///
    /// # Errors
    /// [`ReadError`] if the source fails; also [`ReadError::Block`] if one of the blocks is known not to decode.
    pub(crate) async fn cached(
        &self,
        source: &dyn BlockSource,
        dataset: &Dataset,
        positions: &[GridPosition],
        fresh_since: u64,
    ) -> Result<Vec<Option<Arc<BlockEntry>>>, ReadError> {
        let mut entries = Vec::with_capacity(positions.len());
        let mut stale_indices: Vec<usize> = Vec::new();
        for (n, position) in positions.iter().enumerate() {
            let entry = self.entries.cached(&(dataset.id, position.clone())).await;
            if entry.as_ref().is_some_and(|entry| !entry.validated_at.is_fresh(fresh_since)) {
                stale_indices.push(n);
            }
            entries.push(entry);
        }
        let now = freshness::now();
        let (mut changed, mut deferred) = (Vec::new(), 0);
        if stale_indices.len() <= MAX_NONBLOCKING_CHECKS {
            stale_indices.retain(|n| {
                let Some(entry) = &entries[*n] else { return false };
                let is_unchanged = source.try_is_unchanged(&positions[*n], entry.version(), &entry.validated_at, now);
                changed.extend((is_unchanged == Some(false)).then_some(*n));
                is_unchanged.is_none()
            });
        }
        if !stale_indices.is_empty() {
            let stale: Vec<GridPosition> = stale_indices.iter().map(|n| positions[*n].clone()).collect();
            if let Some(versions) = source.versions(&stale).await? {
                for (n, version) in stale_indices.iter().zip(versions) {
                    let Some(entry) = &entries[*n] else { continue };
                    if entry.version() == version {
                        entry.validated_at.touch(now);
                    } else {
                        changed.push(*n);
                    }
                }
            } else {
                // They stay in the cache: a load compares and counts them.
                deferred = stale_indices.len() as u64;
                for n in stale_indices {
                    entries[n] = None;
                }
            }
        }
        for n in changed {
            let Some(entry) = entries[n].take() else { continue };
            self.entries.count(LookupResult::Stale, 1);
            let stale = Arc::downgrade(&entry);
            drop(entry);
            self.entries.remove((dataset.id, positions[n].clone()), &stale).await;
        }
        let (mut hits, mut missing) = (0, 0);
        for entry in entries.iter().flatten() {
            *if entry.is_missing() { &mut missing } else { &mut hits } += 1;
        }
        self.entries.count(LookupResult::Hit, hits);
        self.entries.count(LookupResult::Absent, missing);
        self.entries.count(LookupResult::Miss, positions.len() as u64 - hits - missing - deferred);
        for (position, entry) in positions.iter().zip(&entries) {
            if let Some(entry) = entry {
                entry.check_decodable(dataset, position)?;
            }
        }
        Ok(entries)
    }

    /// Removes the holes that are cached at `positions`.
    pub(crate) async fn forget_missing_blocks(&self, dataset: &Dataset, positions: &[GridPosition]) {
        for position in positions {
            self.entries.forget_missing(&(dataset.id, position.clone())).await;
        }
    }
}
