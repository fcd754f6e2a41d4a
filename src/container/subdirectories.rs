//! The directories directly below a directory, and Zarr stores among the groups of an N5 hierarchy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::grid_component::grid_component;
use super::handle::Container;
use crate::cache::{ATTRIBUTES, GroupState, ReadError, ReadOptions};
use crate::store::{DirEntry, FilterDecision, Key};

/// Format of a Zarr store. This server does not read such stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZarrFormat {
    /// Zarr version 2.
    V2,
    /// Zarr version 3.
    V3,
}

impl ZarrFormat {
    /// Names of the files that Zarr places in the directory of a group or an array, with their format.
    const MARKERS: [(&str, Self); 3] = [("zarr.json", Self::V3), (".zgroup", Self::V2), (".zarray", Self::V2)];

    /// Returns the name of the format in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::V2 => "zarr2",
            Self::V3 => "zarr3",
        }
    }
}

/// Names of metadata files that were seen while a directory was listed.
#[derive(Debug, Default)]
pub(super) struct ZarrMarkers {
    n5: AtomicBool,
    zarr2: AtomicBool,
    zarr3: AtomicBool,
}

impl ZarrMarkers {
    /// Records an entry of the directory.
    pub(super) fn see(&self, entry: &DirEntry) {
        if entry.is_directory {
            return;
        }
        let format = ZarrFormat::MARKERS.iter().find(|(name, _)| *name == entry.name).map(|(_, format)| *format);
        let flag = match format {
            Some(ZarrFormat::V2) => &self.zarr2,
            Some(ZarrFormat::V3) => &self.zarr3,
            None if entry.name == ATTRIBUTES => &self.n5,
            None => return,
        };
        flag.store(true, Ordering::Relaxed);
    }

    /// Returns the format of the Zarr store to which the directory belongs. A directory with attributes of N5 belongs
    /// to the N5 hierarchy, whatever else it contains.
    pub(super) fn format(&self) -> Option<ZarrFormat> {
        if self.n5.load(Ordering::Relaxed) {
            return None;
        }
        let zarr2 = || self.zarr2.load(Ordering::Relaxed).then_some(ZarrFormat::V2);
        self.zarr3.load(Ordering::Relaxed).then_some(ZarrFormat::V3).or_else(zarr2)
    }
}

/// The directories directly below a directory.
#[derive(Debug, Default)]
pub struct Subdirectories {
    /// Their names, in byte order.
    pub names: Vec<String>,
    /// True if more directories follow.
    pub has_more: bool,
    /// Format of the Zarr store to which the directory belongs, unless it has attributes of N5. Found only if the
    /// listing begins at the first name.
    pub zarr: Option<ZarrFormat>,
    /// Number that identifies the directory, whatever path leads to it.
    pub identity: Option<u64>,
}

impl Container {
    /// Returns the directories directly below `key` whose names come after `after`, at most `limit` of them. Unless
    /// `with_numbers`, those whose names could be part of a block's path are left out. Returns `None` if the directory
    /// does not exist.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn subdirectories(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        with_numbers: bool,
    ) -> Result<Option<Subdirectories>, ReadError> {
        if !self.check_visible(key) {
            return Ok(None);
        }
        let is_entry_visible = self.visible_entry_filter(key);
        let markers = Arc::<ZarrMarkers>::default();
        let seen = Arc::clone(&markers);
        let filter = Arc::new(move |entry: &DirEntry| {
            let is_visible = is_entry_visible(&entry.name);
            if is_visible {
                seen.see(entry);
            }
            let is_kept = is_visible && entry.is_directory && (with_numbers || grid_component(&entry.name).is_none());
            if is_kept { FilterDecision::Keep } else { FilterDecision::Skip }
        });
        let Some(listing) = self.store.list(key, after, limit, filter).await? else { return Ok(None) };
        Ok(Some(Subdirectories {
            names: listing.entries.into_iter().map(|entry| entry.name).collect(),
            has_more: listing.has_more,
            zarr: markers.format(),
            identity: listing.identity,
        }))
    }

    /// Returns the [`Subdirectories::identity`] of the directory `key`. Returns `None` if there is no such directory, or
    /// if each directory of the store has one key.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn directory_identity(&self, key: &Key) -> Result<Option<u64>, ReadError> {
        ReadError::hidden_as_none(self.store.identity(key).await.map_err(ReadError::from))
    }

    /// Returns the format of the Zarr store that contains the directory `key`, or that it is. Returns `None` if the
    /// directory, or one between it and the store, has attributes of N5.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn zarr_store_around(&self, options: ReadOptions, key: &Key) -> Result<Option<ZarrFormat>, ReadError> {
        let mut ancestor = Some(key.clone());
        while let Some(directory) = ancestor {
            match self.group_if_readable(options, &directory).await? {
                Some(group) if matches!(group.state, GroupState::NoAttributes) => {}
                Some(_) | None => return Ok(None),
            }
            for (name, format) in ZarrFormat::MARKERS {
                let Ok(file) = directory.child(name) else { continue };
                if ReadError::hidden_as_none(self.meta(options, &file).await)?.is_some() {
                    return Ok(Some(format));
                }
            }
            ancestor = directory.parent();
        }
        Ok(None)
    }
}
