//! The gathering of a region's blocks: looks them up in batches, pastes the cached ones, loads the others and pastes
//! each as soon as it is loaded. The table in `src/cache/block_load.rs` compares all ways to load a block.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::nonblocking_gather::{GatherContext, PasteItem};
use super::partial_reads::{is_read_in_parts, paste_parts};
use super::plan::PlannedSlice;
use super::read_stats::ReadStats;
use crate::cache::{BlockEntry, BudgetError, Permit, ReadError};
use crate::runtime::cpu_pool::Priority;
use n5_format::{GridPosition, Region};

/// Maximum number of blocks that one request loads at once.
pub(crate) const MAX_CONCURRENT_LOADS: usize = 8;

/// Upper bound of the memory that the tasks and futures of one load take in addition to the block, in bytes.
const LOAD_OVERHEAD_BYTES: u64 = 12 << 10;

/// Maximum number of blocks that one slice looks up at once.
const MAX_LOOKUP_BATCH: u64 = 256;

/// Upper bound of the memory that a slice takes for each block that it looks up (position, key, pointers), in bytes.
const LOOKUP_OVERHEAD_BYTES: u64 = 256;

/// Maximum decoded size of the blocks that one slice looks up at once, in bytes. Of large blocks, this allows fewer
/// than [`MAX_LOOKUP_BATCH`].
const MAX_LOOKUP_BATCH_BYTES: u64 = 32 << 20;

/// Pause before a load that got no memory is retried.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The gathering of one region, which is a whole slice or one band.
pub(crate) struct Gather<'a> {
    pub(crate) slice: &'a PlannedSlice,
    /// State shared with the pasting jobs. Its canvas has the region to gather.
    pub(crate) context: Arc<GatherContext>,
    /// Time for which loads that get no memory are retried.
    pub(crate) retry_time: Duration,
    /// True if a block that cannot be decoded is left out, so that its elements are 0. At least one block must be intact.
    pub(crate) skips_damaged: bool,
    pub(crate) stats: ReadStats,
}

impl Gather<'_> {
    /// Fills the canvas with the elements of all blocks. Returns the slabs with their permits, and the counters.
    pub(crate) async fn run(mut self) -> Result<(Vec<(Vec<u8>, Permit)>, ReadStats), ReadError> {
        let batch_size = lookup_batch_size(self.context.block_bytes);
        let mut positions = self.slice.dataset.attributes.grid().covering(self.context.canvas.region());
        loop {
            let batch: Vec<GridPosition> = positions.by_ref().take(batch_size).collect();
            if batch.is_empty() {
                break;
            }
            self.gather_batch(&batch).await?;
        }
        if self.stats.fingerprint.is_empty()
            && let Some(damage) = self.stats.damage.take()
        {
            return Err(*damage);
        }
        let context =
            Arc::into_inner(self.context).ok_or_else(|| ReadError::Internal("a job outlived its slice".to_owned()))?;
        let GatherContext { container, canvas, .. } = context;
        let slabs = if canvas.is_complete() {
            canvas.finish()?
        } else {
            let cpu = &container.resources.cpu;
            cpu.run(Priority::High, self.slice.dataset.id, || canvas.finish()).await??
        };
        Ok((slabs, self.stats))
    }

    /// Pastes the blocks at `positions`: first the cached ones, then those that must be loaded.
    async fn gather_batch(&mut self, positions: &[GridPosition]) -> Result<(), ReadError> {
        let GatherContext { container, options, source, dataset, .. } = &*self.context;
        let started = Instant::now();
        let cached =
            self.context.blocks().cached_or_damaged(&**source, positions, dataset.id, container.data_since(*options));
        let cached = container.abort_if_contended(&dataset.key, Box::pin(cached)).await?;
        self.stats.cache += started.elapsed();
        let (items, read_in_parts) = self.split_batch(positions, cached)?;

        // Hits are pasted and dropped before any load is awaited. A request that waits for memory thus holds no blocks
        // that the cache has evicted.
        let missing_before = self.stats.missing;
        let deferred = self.context.paste(items, &mut self.stats).await?;
        self.load_and_paste(deferred).await?;
        let parts_stats = paste_parts(&self.context, read_in_parts, self.skips_damaged).await?;
        self.stats.merge(&parts_stats);
        if self.stats.missing > missing_before {
            let GatherContext { container, options, dataset, .. } = &*self.context;
            let confirmation = container.confirm_missing(*options, dataset, positions);
            container.abort_if_contended(&dataset.key, Box::pin(confirmation)).await?;
        }
        Ok(())
    }

    /// Counts the cached blocks of a batch. Returns the blocks to paste whole, and the positions of the blocks that are
    /// read in parts.
    ///
    /// # Errors
    /// Returns the error of a damaged block, unless damaged blocks are skipped.
    fn split_batch(
        &mut self,
        positions: &[GridPosition],
        cached: Vec<Option<Arc<BlockEntry>>>,
    ) -> Result<(Vec<PasteItem>, Vec<GridPosition>), ReadError> {
        let GatherContext { canvas, dataset, .. } = &*self.context;
        let region = canvas.region();
        let bypasses_cache = self.bypasses_cache();
        let mut items = Vec::with_capacity(positions.len());
        let mut read_in_parts = Vec::new();
        for (position, entry) in positions.iter().zip(cached) {
            let position = position.clone();
            if let Some(entry) = entry {
                if let Err(error) = entry.check_decodable(dataset, &position) {
                    self.stats.skip_damaged(error, self.skips_damaged)?;
                    continue;
                }
                self.stats.hits += 1;
                self.stats.count_block(&position, &entry);
                items.push(PasteItem::Decoded(position, entry));
            } else if is_read_in_parts(&self.context.container, self.slice, region, &position) {
                read_in_parts.push(position);
            } else {
                let should_cache = !(bypasses_cache && takes_all_samples(self.slice, region, &position));
                items.push(PasteItem::Stored { position, should_cache });
            }
        }
        Ok((items, read_in_parts))
    }

    /// Returns true if the blocks of the slice should bypass the cache, because together they exceed the cache. If they
    /// were cached, each block would be evicted before a repeated request for the slice reached it, and so would the
    /// blocks of other slices. A few blocks are always cached, so that concurrent requests share one load.
    fn bypasses_cache(&self) -> bool {
        let total = self.slice.dataset.attributes.grid().covering(&self.slice.region).total();
        let bytes = total.saturating_mul(u128::from(self.context.block_bytes));
        total > MAX_CONCURRENT_LOADS as u128
            && bytes > u128::from(self.context.container.resources.settings().decoded_cache)
    }

    /// Loads the blocks at `positions` concurrently and pastes each as soon as it is loaded.
    async fn load_and_paste(&mut self, positions: Vec<GridPosition>) -> Result<(), ReadError> {
        let context = &self.context;
        let mut positions: VecDeque<_> = positions.into_iter().map(|position| (position, false)).collect();
        let started = Instant::now();
        let mut loads = FuturesUnordered::new();
        loop {
            while loads.len() < MAX_CONCURRENT_LOADS
                && let Some((position, is_retry)) = positions.pop_front()
            {
                loads.push(async move {
                    if is_retry {
                        tokio::time::sleep(RETRY_DELAY).await;
                    }
                    let fresh_since = context.container.data_since(context.options);
                    let result = context.blocks().load(context.block_location(&position), fresh_since).await;
                    (position, result)
                });
            }
            let next = loads.next().map(Ok::<_, ReadError>);
            let Some(first) = context.container.abort_if_contended(&context.dataset.key, next).await? else {
                return Ok(());
            };
            let mut ready = vec![first];
            while let Some(Some(next)) = loads.next().now_or_never() {
                ready.push(next);
            }
            let mut items = Vec::with_capacity(ready.len());
            for (position, result) in ready {
                if matches!(result, Err(ReadError::Budget(BudgetError::TimedOut { .. })))
                    && started.elapsed() < self.retry_time
                {
                    positions.push_back((position, true));
                    continue;
                }
                let (block, times) = match result {
                    Ok(loaded) => loaded,
                    Err(error) => {
                        self.stats.skip_damaged(error, self.skips_damaged)?;
                        continue;
                    }
                };
                self.stats.count_load(&times);
                self.stats.count_block(&position, &block);
                items.push(PasteItem::Decoded(position, block));
            }
            context.paste(items, &mut self.stats).await?;
        }
    }
}

/// Returns the number of blocks of `block_bytes` that a slice looks up at once, at least one.
fn lookup_batch_size(block_bytes: u64) -> usize {
    usize::try_from((MAX_LOOKUP_BATCH_BYTES / block_bytes.max(1)).clamp(1, MAX_LOOKUP_BATCH)).unwrap_or(1)
}

/// Returns the bytes of memory needed to look up and load `blocks` blocks, in addition to the blocks themselves.
pub(crate) fn load_overhead_bytes(blocks: u128) -> u64 {
    let at_most = |limit: u64| u64::try_from(blocks).unwrap_or(u64::MAX).min(limit);
    at_most(MAX_CONCURRENT_LOADS as u64) * LOAD_OVERHEAD_BYTES + at_most(MAX_LOOKUP_BATCH) * LOOKUP_OVERHEAD_BYTES
}

/// Returns true if `part`, a part of `slice`, takes all samples that the slice has in the block at `position`.
fn takes_all_samples(slice: &PlannedSlice, part: &Region, position: &GridPosition) -> bool {
    let grid = slice.dataset.attributes.grid();
    grid.origin(position).iter().zip(grid.block_size()).enumerate().all(|(axis, (low, size))| {
        let samples = |region: &Region| {
            let (from, to) = region.samples_within(axis, *low, low.saturating_add(*size));
            to.saturating_sub(from)
        };
        samples(part) == samples(&slice.region)
    })
}
