//! Directories as a hierarchy of groups and datasets.

use std::sync::Arc;

use super::measured::measured;
use super::{ATTRIBUTES, Access, Container, Dataset, GroupState, ReadError};
use crate::metrics::StoreOperation;
use crate::n5::{Coords, GridPosition, MAX_RANK};
use crate::store::{Entry, Keep, Key};

/// Most bytes that the names of one page have together; the name that exceeds it begins the next page.
const NAMES_BYTES: usize = 512 << 10;

/// The same for each entry that the page may have, where these are few.
const NAME_BYTES: usize = 53;

/// What an entry of a listing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory that is no dataset.
    Group,
    /// A directory with array attributes.
    Dataset,
    /// `attributes.json` or a block.
    File,
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedEntry {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: EntryKind,
}

/// A page of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Entries, sorted by the bytes of their names.
    pub entries: Vec<ListedEntry>,
    /// Whether more follow.
    pub more: bool,
}

impl Container {
    /// A page of the entries of `key` that follow the name `after`: groups, datasets and
    /// `attributes.json`; with `blocks` also the blocks of a dataset and the directories that hold them.
    /// It ends after `limit` entries, or earlier where names are long. `None` where there is no such
    /// directory.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn list(
        &self,
        access: Access,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        blocks: bool,
    ) -> Result<Option<Listed>, ReadError> {
        if !self.sees(key) {
            return Ok(None);
        }
        let in_grid = self.enclosing_dataset(access, key, 1).await?.is_some();
        let too_deep = key.child("0").is_err();
        let sees = self.sees_entries(key);
        let keep = Arc::new(move |entry: &Entry| {
            let is_number = || grid_component(&entry.name).is_some();
            match entry.is_directory {
                _ if too_deep || !sees(&entry.name) => Keep::No,
                false if entry.name == ATTRIBUTES || (blocks && is_number()) => Keep::Yes,
                false => Keep::No,
                true if in_grid && !blocks && is_number() => Keep::IfItHolds(ATTRIBUTES),
                true => Keep::Yes,
            }
        });
        let page = self.store.list(key, after, limit, keep);
        let page = measured(StoreOperation::List, self.store.backend(), page).await?;
        let Some(page) = page else { return Ok(None) };
        let mut listed = Listed { entries: Vec::new(), more: page.more };
        let mut names_bytes = 0;
        for entry in page.entries {
            names_bytes += entry.name.len();
            if names_bytes > NAMES_BYTES.min(limit.saturating_mul(NAME_BYTES)) && !listed.entries.is_empty() {
                listed.more = true;
                break;
            }
            let kind = self.kind(access, key, &entry).await?;
            listed.entries.push(ListedEntry { name: entry.name, kind });
        }
        Ok(Some(listed))
    }

    async fn kind(&self, access: Access, parent: &Key, entry: &Entry) -> Result<EntryKind, ReadError> {
        let Some(key) = parent.child(&entry.name).ok().filter(|_| entry.is_directory) else {
            return Ok(EntryKind::File);
        };
        let group = self.group_if_readable(access, &key).await?;
        let is_dataset = group.is_some_and(|group| matches!(group.state, GroupState::Dataset(_)));
        Ok(if is_dataset { EntryKind::Dataset } else { EntryKind::Group })
    }

    /// The nearest dataset above `key` whose grid `key` leads into: `key` is that dataset's followed by
    /// grid components, fewer than its rank by at least `missing`.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn enclosing_dataset(
        &self,
        access: Access,
        key: &Key,
        missing: usize,
    ) -> Result<Option<(Arc<Dataset>, GridPosition)>, ReadError> {
        let mut at = key.clone();
        let mut position: Vec<u64> = Vec::new();
        loop {
            let Some(group) = self.group_if_readable(access, &at).await? else { return Ok(None) };
            if let GroupState::Dataset(dataset) = &group.state {
                let prefix: Coords = position.iter().rev().copied().collect();
                let leads_in = prefix.len() + missing <= dataset.attributes.rank().max(1);
                return Ok(leads_in.then(|| (Arc::clone(dataset), prefix)));
            }
            let (Some(component), Some(parent)) = (at.name().and_then(grid_component), at.parent()) else {
                return Ok(None);
            };
            position.push(component);
            at = parent;
        }
    }

    /// The dataset and the position in its grid that `key` names as a block; `None` where there is none of either.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn block_at(&self, access: Access, key: &Key) -> Result<Option<(Arc<Dataset>, GridPosition)>, ReadError> {
        let numbered = self.numbered_at(access, key).await?;
        Ok(numbered.and_then(|(dataset, numbers)| dataset.holds(numbers).map(|position| (dataset, position))))
    }

    /// The dataset that `key` names followed by as many grid components as a block has, and these, whether its grid
    /// has such a block or not.
    ///
    /// Of the ways to cut `key`, the one with the shorter path to the dataset wins.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails; also where there is none, but attributes that might describe it cannot be read.
    pub async fn numbered_at(&self, access: Access, key: &Key) -> Result<Option<(Arc<Dataset>, Coords)>, ReadError> {
        let segments: Vec<&str> = key.segments().collect();
        let numbers: Vec<u64> = segments.iter().rev().map_while(|name| grid_component(name)).collect();
        let mut unknown = None;
        for rank in (1..=numbers.len().min(MAX_RANK)).rev() {
            let Ok(at) = Key::from_segments(segments.iter().take(segments.len() - rank)) else { continue };
            let group = match self.group(access, &at).await {
                Ok(group) => group,
                // It may be the dataset, or only a group above it.
                Err(error) if error.is_of_attributes() => {
                    unknown.get_or_insert(error);
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
        unknown.map_or(Ok(None), Err)
    }

    /// Whether the directory `key` stands where a block of the nearest dataset would be.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn is_at_block(&self, access: Access, key: &Key) -> Result<bool, ReadError> {
        let Some(parent) = key.name().and_then(grid_component).and(key.parent()) else { return Ok(false) };
        let component = key.name().and_then(grid_component).unwrap_or(0);
        let Some((dataset, mut position)) = self.enclosing_dataset(access, &parent, 1).await? else {
            return Ok(false);
        };
        position.push(component);
        let grid = dataset.attributes.grid();
        Ok(grid.contains(&position) || (dataset.attributes.rank() == 0 && position.as_slice() == [0]))
    }

    /// Names of the directories directly below `key`, at most `limit`, in the order of their bytes;
    /// `None` where there is no such directory.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn directories(&self, key: &Key, limit: usize) -> Result<Option<Vec<String>>, ReadError> {
        if !self.sees(key) {
            return Ok(None);
        }
        let sees = self.sees_entries(key);
        let keep =
            Arc::new(move |entry: &Entry| if entry.is_directory && sees(&entry.name) { Keep::Yes } else { Keep::No });
        let listing = self.store.list(key, None, limit, keep);
        let listing = measured(StoreOperation::List, self.store.backend(), listing).await?;
        Ok(listing.map(|listing| listing.entries.into_iter().map(|entry| entry.name).collect()))
    }

    /// Whether `key` is a directory that may be looked at.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn is_directory(&self, access: Access, key: &Key) -> Result<bool, ReadError> {
        access.may_wait().await;
        let found = self.store.is_directory(key);
        if !self.sees(key) {
            return Ok(false);
        }
        let found = measured(StoreOperation::Head, self.store.backend(), found).await;
        Ok(ReadError::or_hidden(found.map(Some).map_err(ReadError::from))?.unwrap_or(false))
    }

    /// Which names of the directory `key` can be seen.
    fn sees_entries(&self, key: &Key) -> impl Fn(&str) -> bool + Send + Sync + 'static {
        // The answer depends on who asks, also where the entries that a rule is about do not exist.
        self.sees_below(key);
        let (sight, parent) = (self.sight.clone(), key.clone());
        move |name| sight.as_ref().is_none_or(|sight| parent.child(name).is_ok_and(|key| sight.sees(&key)))
    }
}

/// The number that a path segment spells as a grid component: decimal, without leading zeros.
pub(crate) fn grid_component(name: &str) -> Option<u64> {
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (name == "0" || !name.starts_with('0'))).then(|| name.parse().ok()).flatten()
}
