//! Directories as a hierarchy of groups and datasets.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::grid_component::grid_component;
use super::handle::Container;
use super::subdirectories::{ZarrFormat, ZarrMarkers};
use crate::cache::{
    self, ATTRIBUTES, CacheEntry, Dataset, GroupState, MissingKind, MissingNames, ReadError, ReadOptions, RequestTimes,
};
use crate::store::{CachedStat, DirEntry, FilterDecision, Key};
use n5_format::{Coords, GridPosition, MAX_RANK};

/// Maximum total length of the names on a page of 10,000 entries, in bytes. It is proportional to the limit of entries.
/// The name that exceeds it begins the next page.
const NAME_BYTES_PER_10_000_ENTRIES: usize = 512 << 10;

/// Kind of an entry of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory that is not a dataset.
    Group,
    /// A directory with array attributes.
    Dataset,
    /// `attributes.json` or a block.
    File,
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Name of the entry.
    pub name: String,
    /// Kind of the entry.
    pub kind: EntryKind,
}

/// A page of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryPage {
    /// Entries, sorted by the bytes of their names.
    pub entries: Vec<DirectoryEntry>,
    /// True if more entries follow.
    pub has_more: bool,
    /// Format of the Zarr store to which the directory belongs, if this is the first page of a directory with Zarr's
    /// metadata and without N5's.
    pub zarr: Option<ZarrFormat>,
}

impl Container {
    /// Returns a page of the entries of `key` that follow the name `after`: groups, datasets and `attributes.json`;
    /// with `include_blocks` also the blocks of a dataset and the directories that hold them. The page ends after
    /// `limit` entries, or earlier if names are long. Returns `None` if the directory does not exist.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn list(
        &self,
        options: ReadOptions,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        include_blocks: bool,
    ) -> Result<Option<DirectoryPage>, ReadError> {
        if !self.check_visible(key) {
            return Ok(None);
        }
        let is_in_grid = self.is_in_grid(options, key).await?;
        let is_too_deep = key.child("0").is_err();
        let is_entry_visible = self.visible_entry_filter(key);
        let markers = Arc::<ZarrMarkers>::default();
        let seen = Arc::clone(&markers);
        let filter = Arc::new(move |entry: &DirEntry| {
            let is_number = || grid_component(&entry.name).is_some();
            if is_entry_visible(&entry.name) {
                seen.see(entry);
            }
            match entry.is_directory {
                _ if is_too_deep || !is_entry_visible(&entry.name) => FilterDecision::Skip,
                false if entry.name == ATTRIBUTES || (include_blocks && is_number()) => FilterDecision::Keep,
                false => FilterDecision::Skip,
                true if is_in_grid && !include_blocks && is_number() => FilterDecision::KeepIfContains(ATTRIBUTES),
                true => FilterDecision::Keep,
            }
        });
        let Some(page) = self.store.list(key, after, limit, filter).await? else { return Ok(None) };
        let mut result = DirectoryPage { entries: Vec::new(), has_more: page.has_more, zarr: markers.format() };
        let mut names_bytes = 0;
        let max_names_bytes = limit.saturating_mul(NAME_BYTES_PER_10_000_ENTRIES) / 10_000;
        for entry in page.entries {
            names_bytes += entry.name.len();
            if names_bytes > max_names_bytes && !result.entries.is_empty() {
                result.has_more = true;
                break;
            }
            let kind = self.entry_kind(options, key, &entry).await?;
            result.entries.push(DirectoryEntry { name: entry.name, kind });
        }
        Ok(Some(result))
    }

    async fn entry_kind(&self, options: ReadOptions, parent: &Key, entry: &DirEntry) -> Result<EntryKind, ReadError> {
        let Some(key) = parent.child(&entry.name).ok().filter(|_| entry.is_directory) else {
            return Ok(EntryKind::File);
        };
        let group = self.group_if_readable(options, &key).await?;
        let is_dataset = group.is_some_and(|group| matches!(group.state, GroupState::Dataset(_)));
        Ok(if is_dataset { EntryKind::Dataset } else { EntryKind::Group })
    }

    /// Returns true if directories with numbers as names in `key` are parts of a grid: that of the nearest dataset, or
    /// that of a dataset whose attributes are faulty.
    async fn is_in_grid(&self, options: ReadOptions, key: &Key) -> Result<bool, ReadError> {
        let mut ancestor = key.clone();
        let mut components = 0;
        loop {
            let Some(group) = self.group_if_readable(options, &ancestor).await? else { return Ok(false) };
            if let GroupState::Dataset(dataset) = &group.state {
                return Ok(components < dataset.attributes.rank().max(1));
            }
            if group.may_have_grid() {
                return Ok(true);
            }
            let (Some(_), Some(parent)) = (ancestor.name().and_then(grid_component), ancestor.parent()) else {
                return Ok(false);
            };
            components += 1;
            ancestor = parent;
        }
    }

    /// Returns the nearest dataset at or above `key`, and the grid components that `key` has in addition to the
    /// dataset's key. Returns `None` if there is no such dataset, or if the dataset's rank does not exceed the number
    /// of components by at least `missing_components`.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn enclosing_dataset(
        &self,
        options: ReadOptions,
        key: &Key,
        missing_components: usize,
    ) -> Result<Option<(Arc<Dataset>, GridPosition)>, ReadError> {
        let mut ancestor = key.clone();
        let mut position: Vec<u64> = Vec::new();
        loop {
            let Some(group) = self.group_if_readable(options, &ancestor).await? else { return Ok(None) };
            if let GroupState::Dataset(dataset) = &group.state {
                let prefix: Coords = position.iter().rev().copied().collect();
                let is_inside = prefix.len() + missing_components <= dataset.attributes.rank().max(1);
                return Ok(is_inside.then(|| (Arc::clone(dataset), prefix)));
            }
            let (Some(component), Some(parent)) = (ancestor.name().and_then(grid_component), ancestor.parent()) else {
                return Ok(None);
            };
            position.push(component);
            ancestor = parent;
        }
    }

    /// Returns the dataset and the grid position of the block that `key` names; `None` if either does not exist.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn block_at(
        &self,
        options: ReadOptions,
        key: &Key,
    ) -> Result<Option<(Arc<Dataset>, GridPosition)>, ReadError> {
        let candidate = self.dataset_and_coordinates(options, key).await?;
        Ok(candidate
            .and_then(|(dataset, numbers)| dataset.position_in_grid(numbers).map(|position| (dataset, position))))
    }

    /// Splits `key` into the key of a dataset and as many grid components as the dataset has axes. Does not check that
    /// the grid contains the position.
    ///
    /// If `key` can be split in several ways, returns the dataset with the shortest key.
    ///
    /// # Errors
    /// Returns an error if the store fails, or if no dataset is found, but attributes that might describe it cannot be
    /// read.
    pub async fn dataset_and_coordinates(
        &self,
        options: ReadOptions,
        key: &Key,
    ) -> Result<Option<(Arc<Dataset>, Coords)>, ReadError> {
        let segments: Vec<&str> = key.segments().collect();
        let numbers: Vec<u64> = segments.iter().rev().map_while(|name| grid_component(name)).collect();
        let mut first_error = None;
        for rank in (1..=numbers.len().min(MAX_RANK)).rev() {
            let Ok(ancestor) = Key::from_segments(segments.iter().take(segments.len() - rank)) else { continue };
            let group = match self.group(options, &ancestor).await {
                Ok(group) => group,
                // The dataset may be another ancestor, so those are tried before the error is returned.
                Err(error) if error.hides_attributes() => {
                    first_error.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let GroupState::Dataset(dataset) = &group.state
                && dataset.attributes.rank().max(1) == rank
            {
                return Ok(Some((Arc::clone(dataset), numbers.iter().take(rank).rev().copied().collect())));
            }
        }
        first_error.map_or(Ok(None), Err)
    }

    /// Returns true if the directory `key` is at the position of a block of the nearest dataset.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn is_block_position(&self, options: ReadOptions, key: &Key) -> Result<bool, ReadError> {
        let (Some(component), Some(parent)) = (key.name().and_then(grid_component), key.parent()) else {
            return Ok(false);
        };
        let Some((dataset, mut position)) = self.enclosing_dataset(options, &parent, 1).await? else {
            return Ok(false);
        };
        position.push(component);
        Ok(dataset.position_in_grid(position).is_some())
    }

    /// Confirms that the object at `key` is missing, if it is a block and its store does not report outages.
    ///
    /// # Errors
    /// Returns the errors of [`Self::block_at`] and of [`Self::confirm_missing`].
    pub async fn confirm_missing_object(&self, options: ReadOptions, key: &Key) -> Result<(), ReadError> {
        if !self.has_unreported_outages() {
            return Ok(());
        }
        match self.block_at(options, key).await {
            Ok(Some((dataset, position))) => self.confirm_missing(options, &dataset, &[position]).await,
            Ok(None) => Ok(()),
            // Nothing says that it is a block.
            Err(error) if error.hides_attributes() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns true if `key` is a directory that is visible to the caller and readable.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn is_directory(&self, options: ReadOptions, key: &Key) -> Result<bool, ReadError> {
        if !self.check_visible(key) {
            return Ok(false);
        }
        let names = self.missing_names();
        // The kernel knows directories of a local store better, and costs nothing.
        if self.store.cached_stat(key) == CachedStat::Unknown {
            if self.is_known_directory(options, key).await {
                return Ok(true);
            }
            let missing_since = self.fresh_since(options, key);
            let checked_at = |names: &MissingNames| names.checked_since(MissingKind::Directory, key, missing_since);
            if names.as_ref().and_then(checked_at).is_some() {
                return Ok(false);
            }
        }
        // `Store::is_directory` may wait.
        options.pend_if_nonblocking().await;
        let checked_at = cache::now();
        let is_directory = self.store.is_directory(key).await;
        match (&is_directory, names) {
            (Ok(false), Some(names)) => {
                names.insert(MissingKind::Directory, key, RequestTimes::since(checked_at));
            }
            (Ok(true), _) if self.store.sends_conditional_requests() => {
                self.resources.directories.insert(self.directory_hash(key), checked_at).await;
            }
            (Ok(_) | Err(_), _) => {}
        }
        let is_directory = ReadError::hidden_as_none(is_directory.map(Some).map_err(ReadError::from))?;
        Ok(is_directory.unwrap_or(false))
    }

    /// Returns true if a directory of a store behind a network was found recently, or has attributes in the cache. Asks
    /// no store.
    async fn is_known_directory(&self, options: ReadOptions, key: &Key) -> bool {
        let Ok(attributes) = key.child(ATTRIBUTES) else { return false };
        if !self.store.sends_conditional_requests() {
            return false;
        }
        let fresh_since = self.fresh_since(options, &attributes);
        let cached = self.object_entries().cached(&self.object_cache_key(&attributes)).await;
        if cached.is_some_and(|entry| entry.object.is_some() && entry.is_fresh(fresh_since)) {
            return true;
        }
        let found_at = self.resources.directories.get(&self.directory_hash(key)).await;
        found_at.is_some_and(|found_at| found_at >= fresh_since.found)
    }

    fn directory_hash(&self, key: &Key) -> u128 {
        xxh3_128_with_seed(key.as_str().as_bytes(), u64::from(self.id))
    }

    /// Returns true if `key` is a directory, but not at the position of a block. If a directory lies at the key of a
    /// block, the block is missing.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn is_group_directory(&self, options: ReadOptions, key: &Key) -> Result<bool, ReadError> {
        // Only the attributes tell whether a key is that of a block. A store behind a network is not asked for a
        // directory there, because the attributes are usually cached.
        if self.store.sends_conditional_requests() {
            Ok(self.block_at(options, key).await?.is_none() && self.is_directory(options, key).await?)
        } else {
            Ok(self.is_directory(options, key).await? && !self.is_block_position(options, key).await?)
        }
    }

    /// Returns a filter for the names in the directory `key` that are visible to the caller.
    pub(super) fn visible_entry_filter(&self, key: &Key) -> impl Fn(&str) -> bool + Send + Sync + 'static {
        // Called for its side effect: it records that a listing of a directory that may have hidden entries depends on
        // the caller, even if no entry is hidden now.
        self.check_subtree_visible(key);
        let visibility = self.visibility.clone();
        let parent = key.clone();
        move |name| {
            visibility
                .as_ref()
                .is_none_or(|visibility| parent.child(name).is_ok_and(|key| visibility.check_visible(&key)))
        }
    }
}
