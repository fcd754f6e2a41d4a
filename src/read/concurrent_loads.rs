//! Concurrent loading of the blocks of one slice, and the memory that this takes besides the blocks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::nonblocking_gather::{GatherContext, PasteItem};
use super::read_stats::ReadStats;
use super::slice_plan::PlannedSlice;
use crate::cache::error::{BudgetError, ReadError};
use crate::container::Container;
use n5_format::{GridPosition, Region};

/// Maximum number of blocks that one request loads at once.
pub(crate) const MAX_CONCURRENT_LOADS: usize = 8;

/// Upper bound of the memory that the tasks and futures of one load take besides the block, in bytes.
const LOAD_OVERHEAD_BYTES: u64 = 12 << 10;

/// Maximum number of cached blocks that one slice looks up and pastes at once.
const MAX_LOOKUP_BATCH: u64 = 256;

/// Upper bound of the memory that a slice takes for each of these blocks (positions, keys, pointers), in bytes.
const LOOKUP_OVERHEAD_BYTES: u64 = 256;

/// Maximum decoded size of the blocks that one slice looks up at once, in bytes, if this allows fewer blocks.
const MAX_LOOKUP_BATCH_BYTES: u64 = 32 << 20;

/// Pause before a block is loaded again for which there was no memory.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Returns the number of blocks of `block_bytes` that a slice looks up at once, at least one.
pub(crate) fn lookup_batch_size(block_bytes: u64) -> usize {
    usize::try_from((MAX_LOOKUP_BATCH_BYTES / block_bytes.max(1)).clamp(1, MAX_LOOKUP_BATCH)).unwrap_or(1)
}

/// Returns the bytes of memory needed to look up and load `blocks` blocks, besides the blocks themselves.
pub(crate) fn load_overhead_bytes(blocks: u128) -> u64 {
    let at_most = |limit: u64| u64::try_from(blocks).unwrap_or(u64::MAX).min(limit);
    at_most(MAX_CONCURRENT_LOADS as u64) * LOAD_OVERHEAD_BYTES + at_most(MAX_LOOKUP_BATCH) * LOOKUP_OVERHEAD_BYTES
}

impl Container {
    /// Returns the bytes of the slice budget needed to load the blocks of `region`, besides `bytes` for the elements.
    /// They are at most what `bytes` leaves of the maximum for a stream. A slice of nearly the whole budget, of which
    /// only one exists at a time, gets none.
    pub(crate) fn loading_bytes(&self, slice: &PlannedSlice, region: &Region, bytes: u64) -> u64 {
        let available_bytes = self.resources.slice_budget.max_stream_bytes().saturating_sub(bytes);
        load_overhead_bytes(slice.dataset.attributes.grid().covering(region).total()).min(available_bytes)
    }

    /// Loads the blocks at `positions` concurrently and pastes each as soon as it is loaded. Loads that get no memory
    /// are retried for up to `timeout`.
    pub(crate) async fn load_and_paste(
        &self,
        context: &Arc<GatherContext>,
        positions: Vec<GridPosition>,
        timeout: Duration,
        stats: &mut ReadStats,
    ) -> Result<(), ReadError> {
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
                    let result = context.blocks.load(context.block_location(&position), context.fresh_since).await;
                    (position, result)
                });
            }
            let next = loads.next().map(Ok::<_, ReadError>);
            let Some(first) = self.wait_or_yield(&context.dataset, next).await? else { return Ok(()) };
            let mut ready = vec![first];
            while let Some(Some(next)) = loads.next().now_or_never() {
                ready.push(next);
            }
            let mut items = Vec::with_capacity(ready.len());
            for (position, result) in ready {
                if matches!(result, Err(ReadError::Budget(BudgetError::TimedOut { .. }))) && started.elapsed() < timeout
                {
                    positions.push_back((position, true));
                    continue;
                }
                let (block, times) = result?;
                stats.count_load(&times);
                stats.count_block(&position, &block);
                items.push(PasteItem::Hit(position, block));
            }
            context.paste(items, stats).await?;
        }
    }
}
