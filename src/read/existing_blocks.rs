//! Counts the existing blocks among those that a slice touches by listing directories. In an almost empty dataset this
//! is far cheaper than looking up each block.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::datasets::Dataset;
use crate::cache::error::ReadError;
use crate::container::{Container, grid_component};
use crate::store::{DirEntry, EntryFilter, FilterDecision};
use n5_format::{Coords, Region};

/// Number of entries per page.
const PAGE_ENTRIES: usize = 1024;

/// Maximum number of pages listed for one slice. A page takes 20 to 50 us if the kernel has the directory in memory.
const MAX_PAGES: usize = 4096;

/// Maximum number of directories that wait to be listed: 24 bytes each.
const MAX_PENDING_DIRECTORIES: usize = 16_384;

/// Time after which no more directories are listed.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// A directory of the grid that has not been listed yet: its level, and the last grid component of its path.
struct PendingDirectory {
    level: usize,
    number: u64,
}

impl Container {
    /// Counts the blocks of `dataset` that `region` touches and that may exist. A block counts if its existence is
    /// unknown: if its directory could not be listed, or not within the bounds above, or if the store lists slowly.
    /// Counting stops a little above `max_count`.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) async fn count_existing_blocks(
        &self,
        dataset: &Dataset,
        region: &Region,
        max_count: u128,
    ) -> Result<u128, ReadError> {
        let covering = Arc::new(dataset.attributes.grid().covering(region));
        let (total, rank) = (covering.total(), region.rank());
        if rank == 0 || total == 0 || !self.store.lists_cheaply() {
            return Ok(total);
        }
        let started = Instant::now();
        // Number of positions below each entry of a level.
        let block_counts: Vec<u128> = (0..rank)
            .map(|level| (level + 1..rank).fold(1, |n: u128, axis| n.saturating_mul(covering.count_along(axis).into())))
            .collect();
        let blocks_below = |level: usize| block_counts.get(level).copied().unwrap_or(1);
        let (mut missing_blocks, mut existing_blocks, mut pages) = (0u128, 0u128, 0);
        let mut pending = vec![PendingDirectory { level: 0, number: 0 }];
        let mut path = Coords::new();
        while let Some(PendingDirectory { level, number }) = pending.pop() {
            path.truncate(level.saturating_sub(1));
            if level > 0 {
                path.push(number);
            }
            let key = if path.is_empty() { dataset.key.clone() } else { dataset.key.join_numbers(&path) };
            let is_last = level + 1 == rank;
            let filter = touched_filter(&covering, level);
            let (mut after, mut present) = (None::<String>, 0u64);
            let is_known = loop {
                if pages == MAX_PAGES || started.elapsed() > TIME_LIMIT || pending.len() > MAX_PENDING_DIRECTORIES {
                    return Ok(total.saturating_sub(missing_blocks));
                }
                pages += 1;
                let page = self.store.list(&key, after.as_deref(), PAGE_ENTRIES, Arc::clone(&filter));
                let listing = match page.await {
                    Ok(Some(listing)) => listing,
                    Ok(None) => break true,
                    Err(error) if error.hides_object() => break false,
                    Err(error) => return Err(error.into()),
                };
                present = present.saturating_add(listing.omitted_count);
                after = listing.entries.last().map(|entry| entry.name.clone());
                for entry in listing.entries {
                    // A directory is not a block, and a file is not a directory of blocks.
                    if entry.is_directory == is_last {
                        continue;
                    }
                    present = present.saturating_add(1);
                    if is_last {
                        existing_blocks = existing_blocks.saturating_add(1);
                    } else if let Some(number) = grid_component(&entry.name) {
                        pending.push(PendingDirectory { level: level + 1, number });
                    }
                }
                if !listing.has_more || after.is_none() {
                    break !listing.has_more;
                }
            };
            if is_known {
                let missing = covering.count_along(level).saturating_sub(present);
                missing_blocks = missing_blocks.saturating_add(u128::from(missing).saturating_mul(blocks_below(level)));
            }
            if existing_blocks > max_count {
                break;
            }
        }
        Ok(total.saturating_sub(missing_blocks))
    }
}

/// Returns a filter that keeps the entries of a directory on this level that lead to touched blocks.
fn touched_filter(covering: &Arc<n5_format::CoveringBlocks>, level: usize) -> EntryFilter {
    let covering = Arc::clone(covering);
    Arc::new(move |entry: &DirEntry| {
        let is_touched = grid_component(&entry.name).is_some_and(|number| covering.touches(level, number));
        if is_touched { FilterDecision::Keep } else { FilterDecision::Skip }
    })
}
