//! Directories as a hierarchy of groups and datasets.

use std::sync::Arc;

use super::{ATTRIBUTES, Access, Container, Dataset, GroupState, ReadError};
use crate::n5::{Coords, GridPosition};
use crate::store::{Entry, Key};

/// Directory entries read from the store at once.
const PAGE: usize = 10_000;

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
    /// `None` where there is no such directory.
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
        let in_grid = self.enclosing_dataset(access, key, 1).await?.is_some();
        let mut after = after.map(str::to_owned);
        let mut listed = Listed { entries: Vec::new(), more: false };
        loop {
            let Some(page) = self.store.list(key, after.as_deref(), PAGE.min(limit.saturating_add(1))).await? else {
                return Ok(None);
            };
            after = page.entries.last().map(|entry| entry.name.clone());
            for entry in page.entries {
                let Some(kind) = self.kind(access, key, &entry, in_grid && !blocks, blocks).await? else { continue };
                if listed.entries.len() == limit {
                    listed.more = true;
                    return Ok(Some(listed));
                }
                listed.entries.push(ListedEntry { name: entry.name, kind });
            }
            if !page.more {
                return Ok(Some(listed));
            }
        }
    }

    /// What an entry is; `None` for what is not listed.
    async fn kind(
        &self,
        access: Access,
        parent: &Key,
        entry: &Entry,
        hide_grid: bool,
        show_blocks: bool,
    ) -> Result<Option<EntryKind>, ReadError> {
        let is_number = grid_component(&entry.name).is_some();
        if !entry.is_directory {
            let shown = entry.name == ATTRIBUTES || (show_blocks && is_number);
            return Ok(shown.then_some(EntryKind::File));
        }
        let Ok(key) = parent.child(&entry.name) else { return Ok(None) };
        match self.group(access, &key).await {
            Ok(group) => match group.state {
                GroupState::Dataset(_) => Ok(Some(EntryKind::Dataset)),
                GroupState::NoAttributes if hide_grid && is_number => Ok(None),
                GroupState::NoAttributes
                | GroupState::Broken(_)
                | GroupState::Attributes(_)
                | GroupState::Unusable(..) => Ok(Some(EntryKind::Group)),
            },
            Err(ReadError::AttributesTooLarge { .. }) => Ok(Some(EntryKind::Group)),
            Err(error) => Err(error),
        }
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
            let group = match self.group(access, &at).await {
                Ok(group) => group,
                Err(ReadError::AttributesTooLarge { .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
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
        let Some(listing) = self.store.list(key, None, limit).await? else { return Ok(None) };
        let directories = listing.entries.into_iter().filter(|entry| entry.is_directory);
        Ok(Some(directories.map(|entry| entry.name).collect()))
    }

    /// Whether `key` is a directory.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn is_directory(&self, key: &Key) -> Result<bool, ReadError> {
        Ok(self.store.is_directory(key).await?)
    }
}

/// The number that a path segment spells as a grid component: decimal, without leading zeros.
pub(crate) fn grid_component(name: &str) -> Option<u64> {
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (name == "0" || !name.starts_with('0'))).then(|| name.parse().ok()).flatten()
}
