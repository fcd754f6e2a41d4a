//! The indices at which a dataset has blocks along one axis, for views whose chunk keys have another order of axes than
//! the stored directories.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::grid_component::grid_component;
use super::handle::Container;
use crate::cache::{Dataset, ReadError, ReadOptions};
use crate::store::{DirEntry, FilterDecision, Key};
use n5_format::Coords;

/// Maximum number of entries per page of a directory. A page takes at most 8 MiB while it is read.
const PAGE_ENTRIES: usize = 50_000;

/// Time after which the walk ends. It bounds the work for sparse datasets. In a dense dataset, the walk ends as soon as
/// every index is found, usually in the first directory.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Approximate memory in bytes that each index takes while indices are collected.
pub(crate) const BYTES_PER_INDEX: u64 = 48;

impl Container {
    /// Returns the sorted indices along `axis` of the blocks that exist, among those at the indices in `fixed`. `fixed`
    /// has one entry per axis, `None` for an axis along which every index counts.
    ///
    /// # Errors
    /// Returns [`ReadError::TooLarge`] if there are more than `max_indices` indices, or if finding them takes too long.
    /// Returns other errors if the store fails, so that no index is missing because of a fault.
    pub async fn block_indices(
        &self,
        options: ReadOptions,
        dataset: &Dataset,
        fixed: &[Option<u64>],
        axis: usize,
        max_indices: usize,
    ) -> Result<Vec<u64>, ReadError> {
        let grid_shape = dataset.attributes.grid().shape();
        let mut walk = IndexWalk {
            container: self,
            options,
            dataset,
            fixed,
            axis,
            max_indices,
            wanted: grid_shape.get(axis).copied().unwrap_or(0),
            grid_shape,
            pending: vec![(0, 0)],
            found: BTreeSet::new(),
            started: Instant::now(),
        };
        let mut path = Coords::new();
        while let Some((level, number)) = walk.pending.pop() {
            path.truncate(level.saturating_sub(1));
            if level > 0 {
                path.push(number);
            }
            if walk.found.len() as u64 >= walk.wanted {
                break;
            }
            if path.get(axis).is_none_or(|index| !walk.found.contains(index)) {
                walk.visit(&path).await?;
            }
        }
        Ok(walk.found.into_iter().collect())
    }
}

/// A walk through the directories of a dataset, depth first.
struct IndexWalk<'a> {
    container: &'a Container,
    options: ReadOptions,
    dataset: &'a Dataset,
    fixed: &'a [Option<u64>],
    axis: usize,
    max_indices: usize,
    /// Number of indices of the grid along the axis.
    wanted: u64,
    grid_shape: Coords,
    /// Paths that have not been visited yet: their number of components, and the last one.
    pending: Vec<(usize, u64)>,
    found: BTreeSet<u64>,
    started: Instant,
}

impl IndexWalk<'_> {
    /// Visits the directory or block at `path`.
    async fn visit(&mut self, path: &Coords) -> Result<(), ReadError> {
        if self.started.elapsed() > TIME_LIMIT {
            return Err(self.too_large("it takes too long to find out which chunks exist"));
        }
        let level = path.len();
        let Some(fixed) = self.fixed.get(level) else {
            // Every axis has an index, so this is a block.
            if self.container.meta(self.options, &self.dataset.block_key(path)).await?.is_some() {
                self.found.extend(path.get(self.axis));
            }
            return Ok(());
        };
        if let Some(index) = fixed {
            self.pending.push((level + 1, *index));
            return Ok(());
        }
        let key = if path.is_empty() { self.dataset.key.clone() } else { self.dataset.key.join_numbers(path) };
        let is_last = level + 1 == self.fixed.len();
        // Below an index of the axis, one block is enough.
        let limit = if is_last && level > self.axis { 1 } else { PAGE_ENTRIES };
        let mut after = None::<String>;
        loop {
            let page = self.list(&key, after.as_deref(), limit, level, is_last).await?;
            let Some((numbers, last_name)) = page else { return Ok(()) };
            match (is_last, level == self.axis) {
                (true, true) => self.found.extend(numbers),
                (true, false) if !numbers.is_empty() => {
                    self.found.extend(path.get(self.axis));
                    return Ok(());
                }
                (true, false) => {}
                (false, _) => self.pending.extend(numbers.into_iter().map(|number| (level + 1, number))),
            }
            if self.found.len().saturating_add(self.pending.len()) > self.max_indices {
                return Err(self.too_large("it has too many chunks to be listed at once"));
            }
            after = match last_name {
                Some(name) => Some(name),
                None => return Ok(()),
            };
        }
    }

    /// Returns the numbers of the entries of `key` that are within the grid along the axis `level`: files, or
    /// directories of blocks. Also returns the name after which the next page begins. Returns `None` if there is no
    /// such directory.
    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        level: usize,
        wants_files: bool,
    ) -> Result<Option<(Vec<u64>, Option<String>)>, ReadError> {
        let count = self.grid_shape.get(level).copied().unwrap_or(0);
        let filter = Arc::new(move |entry: &DirEntry| {
            let is_within = grid_component(&entry.name).is_some_and(|number| number < count);
            if is_within && entry.is_directory != wants_files { FilterDecision::Keep } else { FilterDecision::Skip }
        });
        let Some(listing) = self.container.store.list(key, after, limit, filter).await? else { return Ok(None) };
        let next = listing.entries.last().filter(|_| listing.has_more).map(|entry| entry.name.clone());
        Ok(Some((listing.entries.iter().filter_map(|entry| grid_component(&entry.name)).collect(), next)))
    }

    fn too_large(&self, reason: &str) -> ReadError {
        ReadError::TooLarge(format!(
            "the chunks of {:?} are not listed, because {reason}; /files/ lists its blocks as they are stored",
            self.dataset.key.as_str()
        ))
    }
}
