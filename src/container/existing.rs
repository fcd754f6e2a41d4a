//! How many of the blocks that a slice touches exist, found by listing directories: in an almost empty dataset that is far
//! cheaper than looking for each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::browse::grid_component;
use super::measured::measured;
use super::{Container, Dataset, ReadError};
use crate::metrics::StoreOperation;
use crate::n5::{Coords, Region};
use crate::store::{Entry, Filter, Keep};

/// Entries of a page.
const PAGE: usize = 1024;

/// Pages that are listed for one slice. A page takes 20 to 50 us where the kernel has the directory in memory.
const MOST_PAGES: usize = 4096;

/// Directories that may wait to be listed: 24 bytes each.
const MOST_WAITING: usize = 16_384;

/// Directories that have not been listed after this time are not listed.
const LONGEST: Duration = Duration::from_secs(1);

/// A directory of the grid that has not been listed: its number on each level, as far down as it is.
struct Directory {
    level: usize,
    number: u64,
}

impl Container {
    /// How many of the blocks of `dataset` that `region` touches may exist. Blocks of which that is not known count: those in
    /// directories that could not be listed, or not within the bounds above, and all where the store lists slowly. The count
    /// ends a little above `most`.
    ///
    /// # Errors
    /// When the store fails.
    pub(super) async fn existing_blocks(
        &self,
        dataset: &Dataset,
        region: &Region,
        most: u128,
    ) -> Result<u128, ReadError> {
        let covering = Arc::new(dataset.attributes.grid().covering(region));
        let (total, rank) = (covering.total(), region.rank());
        if rank == 0 || total == 0 || !self.store.lists_cheaply() {
            return Ok(total);
        }
        let begun = Instant::now();
        // Positions below each entry of a level.
        let below: Vec<u128> = (0..rank)
            .map(|level| (level + 1..rank).fold(1, |n: u128, axis| n.saturating_mul(covering.touched(axis).into())))
            .collect();
        let below = |level: usize| below.get(level).copied().unwrap_or(1);
        let (mut holes, mut found, mut pages) = (0u128, 0u128, 0);
        let mut waiting = vec![Directory { level: 0, number: 0 }];
        let mut path = Coords::new();
        while let Some(Directory { level, number }) = waiting.pop() {
            path.truncate(level.saturating_sub(1));
            if level > 0 {
                path.push(number);
            }
            let key = if path.is_empty() { dataset.key.clone() } else { dataset.key.numbered(&path) };
            let is_last = level + 1 == rank;
            let keep = filter(&covering, level);
            let (mut after, mut present) = (None::<String>, 0u64);
            let is_known = loop {
                if pages == MOST_PAGES || begun.elapsed() > LONGEST || waiting.len() > MOST_WAITING {
                    return Ok(total.saturating_sub(holes));
                }
                pages += 1;
                let page = self.store.list(&key, after.as_deref(), PAGE, Arc::clone(&keep));
                let listing = match measured(StoreOperation::List, self.store.backend(), page).await {
                    Ok(Some(listing)) => listing,
                    Ok(None) => break true,
                    Err(error) if error.hides() => break false,
                    Err(error) => return Err(error.into()),
                };
                present = present.saturating_add(listing.left_out_count);
                after = listing.entries.last().map(|entry| entry.name.clone());
                for entry in listing.entries {
                    // A directory is no block, and a file no directory of blocks.
                    if entry.is_directory == is_last {
                        continue;
                    }
                    present = present.saturating_add(1);
                    if is_last {
                        found = found.saturating_add(1);
                    } else if let Some(number) = grid_component(&entry.name) {
                        waiting.push(Directory { level: level + 1, number });
                    }
                }
                if !listing.more || after.is_none() {
                    break !listing.more;
                }
            };
            if is_known {
                let missing = covering.touched(level).saturating_sub(present);
                holes = holes.saturating_add(u128::from(missing).saturating_mul(below(level)));
            }
            if found > most {
                break;
            }
        }
        Ok(total.saturating_sub(holes))
    }
}

/// Keeps the entries of a directory of that level that lead to blocks which are touched.
fn filter(covering: &Arc<crate::n5::Covering>, level: usize) -> Filter {
    let covering = Arc::clone(covering);
    Arc::new(move |entry: &Entry| {
        let is_touched = grid_component(&entry.name).is_some_and(|number| covering.touches(level, number));
        if is_touched { Keep::Yes } else { Keep::No }
    })
}
