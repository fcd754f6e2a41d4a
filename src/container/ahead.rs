//! Loading the blocks of one slice, several at once, and the memory that this takes besides the blocks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::admit::Slice;
use super::at_once::{Item, Work};
use super::stats::ReadStats;
use super::{BudgetError, Container, ReadError};
use crate::n5::{GridPosition, Region};

/// Blocks of one request that are loaded at once.
pub(super) const LOADS: usize = 8;

/// Upper bound of what the tasks and futures of one load hold besides the block, in bytes.
const LOAD_BYTES: u64 = 12 << 10;

/// Cached blocks that one slice looks up and pastes at once.
const LOOKED_UP: u64 = 256;

/// Upper bound of what a slice holds for each of these: positions, keys, pointers.
const LOOK_UP_BYTES: u64 = 256;

/// Decoded bytes of the blocks that one slice looks up at once, where that is fewer.
const LOOKED_UP_BYTES: u64 = 32 << 20;

/// Pause before a block for which there was no memory is loaded again.
const AGAIN: Duration = Duration::from_millis(100);

/// How many blocks of `block_bytes` a slice looks up at once, at least one.
pub(super) fn looked_up_at_once(block_bytes: u64) -> usize {
    usize::try_from((LOOKED_UP_BYTES / block_bytes.max(1)).clamp(1, LOOKED_UP)).unwrap_or(1)
}

/// Memory to look up and load so many blocks, in bytes.
pub(super) fn bytes_to_load(blocks: u128) -> u64 {
    let at_most = |most: u64| u64::try_from(blocks).unwrap_or(u64::MAX).min(most);
    at_most(LOADS as u64) * LOAD_BYTES + at_most(LOOKED_UP) * LOOK_UP_BYTES
}

impl Container {
    /// Bytes that loading the blocks of `region` takes of the slice budget, beside `bytes` for the elements. A slice of nearly the
    /// whole budget, of which there is only one at a time, has none.
    pub(super) fn loading_bytes(&self, slice: &Slice, region: &Region, bytes: u64) -> u64 {
        let left = self.resources.slice_budget.stream_bytes().saturating_sub(bytes);
        bytes_to_load(slice.dataset.attributes.grid().covering(region).total()).min(left)
    }

    /// Loads the blocks at `positions`, several at once, and pastes each as soon as it is there. Those for which there is no
    /// memory are loaded anew within `patience`.
    pub(super) async fn load_and_paste(
        &self,
        work: &Arc<Work>,
        positions: Vec<GridPosition>,
        patience: Duration,
        stats: &mut ReadStats,
    ) -> Result<(), ReadError> {
        let mut positions: VecDeque<_> = positions.into_iter().map(|position| (position, false)).collect();
        let since = Instant::now();
        let mut loads = FuturesUnordered::new();
        loop {
            while loads.len() < LOADS
                && let Some((position, is_again)) = positions.pop_front()
            {
                loads.push(async move {
                    if is_again {
                        tokio::time::sleep(AGAIN).await;
                    }
                    let loaded = work.blocks.load(work.place(&position), work.since).await;
                    (position, loaded)
                });
            }
            let next = loads.next().map(Ok::<_, ReadError>);
            let Some(first) = self.held(&work.dataset, next).await? else { return Ok(()) };
            let mut ready = vec![first];
            while let Some(Some(next)) = loads.next().now_or_never() {
                ready.push(next);
            }
            let mut loaded = Vec::with_capacity(ready.len());
            for (position, result) in ready {
                if matches!(result, Err(ReadError::Budget(BudgetError::Waited { .. }))) && since.elapsed() < patience {
                    positions.push_back((position, true));
                    continue;
                }
                let (block, times) = result?;
                stats.count_load(times);
                stats.count(&position, &block);
                loaded.push(Item::Hit(position, block));
            }
            work.paste(loaded, stats).await?;
        }
    }
}
