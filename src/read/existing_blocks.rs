//! The number of existing blocks that a region touches, counted by listing directories. In an almost empty dataset this
//! is far cheaper than looking up each block.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::{Dataset, ReadError};
use crate::container::{Container, grid_component};
use crate::store::{DirEntry, EntryFilter, FilterDecision, Key};
use n5_format::{Coords, CoveringBlocks, Region};

/// Number of entries per page of a directory.
const LISTING_PAGE_ENTRIES: usize = 1024;

/// Maximum number of pages listed for one slice. A page takes 20 to 50 us if the kernel has the directory in memory.
const MAX_LISTING_PAGES: usize = 4096;

/// Maximum number of directories that wait to be listed: 24 bytes each.
const MAX_PENDING_DIRECTORIES: usize = 16_384;

/// Time after which no more directories are listed.
const LISTING_TIME_LIMIT: Duration = Duration::from_secs(1);

/// Counts the blocks of `dataset` that `region` touches and that may exist. Counting stops a little above `max_count`.
///
/// A block counts if its existence is unknown: if the store lists slowly, if its directory cannot be listed, or if a
/// limit of pages, directories or time is reached first.
///
/// # Errors
/// Returns [`ReadError`] if the store fails.
pub(crate) async fn count_existing_blocks(
    container: &Container,
    dataset: &Dataset,
    region: &Region,
    max_count: u128,
) -> Result<u128, ReadError> {
    let covering = Arc::new(dataset.attributes.grid().covering(region));
    let total = covering.total();
    let rank = region.rank();
    if rank == 0 || total == 0 || !container.store.lists_cheaply() {
        return Ok(total);
    }
    let mut listing = BlockListing {
        container,
        rank,
        covering,
        pending: vec![(0, 0)],
        started: Instant::now(),
        pages: 0,
        missing_blocks: 0,
        existing_blocks: 0,
    };
    let mut path = Coords::new();
    while let Some((level, number)) = listing.pending.pop() {
        path.truncate(level.saturating_sub(1));
        if level > 0 {
            path.push(number);
        }
        let key = if path.is_empty() { dataset.key.clone() } else { dataset.key.join_numbers(&path) };
        if let Some(present) = listing.list_directory(&key, level).await? {
            listing.count_missing(level, present);
        }
        if listing.existing_blocks > max_count {
            break;
        }
    }
    Ok(total.saturating_sub(listing.missing_blocks))
}

/// A walk through the directories of a dataset. Level 0 is the dataset's own directory. The directories of the last
/// level hold blocks.
struct BlockListing<'a> {
    container: &'a Container,
    rank: usize,
    covering: Arc<CoveringBlocks>,
    /// Directories that have not been listed yet: their level, and the last grid component of their path.
    pending: Vec<(usize, u64)>,
    started: Instant,
    pages: usize,
    missing_blocks: u128,
    existing_blocks: u128,
}

impl BlockListing<'_> {
    /// Lists the directory `key` at a level. Returns the number of entries that lead to touched blocks; `None` if the
    /// number is unknown. Ends the walk if a limit is reached.
    async fn list_directory(&mut self, key: &Key, level: usize) -> Result<Option<u64>, ReadError> {
        let is_last = level + 1 == self.rank;
        let filter = touched_filter(&self.covering, level);
        let mut after = None::<String>;
        let mut present = 0u64;
        loop {
            if self.is_limit_reached() {
                self.pending.clear();
                return Ok(None);
            }
            self.pages += 1;
            let page = self.container.store.list(key, after.as_deref(), LISTING_PAGE_ENTRIES, Arc::clone(&filter));
            let listing = match page.await {
                Ok(Some(listing)) => listing,
                Ok(None) => return Ok(Some(present)),
                Err(error) if error.hides_object() => return Ok(None),
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
                    self.existing_blocks = self.existing_blocks.saturating_add(1);
                } else if let Some(number) = grid_component(&entry.name) {
                    self.pending.push((level + 1, number));
                }
            }
            if !listing.has_more {
                return Ok(Some(present));
            }
            if after.is_none() {
                return Ok(None);
            }
        }
    }

    fn is_limit_reached(&self) -> bool {
        self.pages == MAX_LISTING_PAGES
            || self.started.elapsed() > LISTING_TIME_LIMIT
            || self.pending.len() > MAX_PENDING_DIRECTORIES
    }

    /// Counts the missing blocks below a directory. `present` is the number of its entries that lead to touched blocks.
    fn count_missing(&mut self, level: usize, present: u64) {
        let blocks_per_entry = (level + 1..self.rank)
            .fold(1, |blocks: u128, axis| blocks.saturating_mul(self.covering.count_along(axis).into()));
        let missing_entries = u128::from(self.covering.count_along(level).saturating_sub(present));
        self.missing_blocks = self.missing_blocks.saturating_add(missing_entries.saturating_mul(blocks_per_entry));
    }
}

/// Returns a filter for the directories at `level`. The filter keeps the entries that lead to touched blocks.
fn touched_filter(covering: &Arc<CoveringBlocks>, level: usize) -> EntryFilter {
    let covering = Arc::clone(covering);
    Arc::new(move |entry: &DirEntry| {
        let is_touched = grid_component(&entry.name).is_some_and(|number| covering.touches(level, number));
        if is_touched { FilterDecision::Keep } else { FilterDecision::Skip }
    })
}
