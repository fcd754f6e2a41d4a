//! A store in memory, for the embedded demo container and for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::Store;
use super::error::StoreError;
use super::key::Key;
use super::listing::{DirEntry, EntryFilter, FilterDecision, Listing};
use super::object::{InlineLimit, Object, ObjectData, ObjectMeta};
use super::page_cache::{CachedStat, PageCache};

/// A store of objects in memory that never change.
#[derive(Debug, Default)]
pub struct MemoryStore {
    objects: BTreeMap<Key, (ObjectMeta, Bytes)>,
    directories: BTreeMap<Key, BTreeSet<DirEntry>>,
}

impl MemoryStore {
    /// Creates a store with `objects`. Their last modification is `modified_seconds` after the Unix epoch.
    pub fn new(objects: impl IntoIterator<Item = (Key, Bytes)>, modified_seconds: u64) -> Self {
        let mut store = Self::default();
        store.directories.insert(Key::root(), BTreeSet::new());
        for (key, bytes) in objects {
            let version = xxh3_64(&bytes);
            let meta = ObjectMeta {
                len: bytes.len() as u64,
                modified: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(modified_seconds)),
                etag: Arc::from(format!("\"{:x}-{version:x}\"", bytes.len())),
                version,
            };
            store.add_to_parents(&key);
            store.objects.insert(key, (meta, bytes));
        }
        store
    }

    fn add_to_parents(&mut self, key: &Key) {
        let mut child = key.clone();
        let mut is_directory = false;
        while let (Some(parent), Some(name)) = (child.parent(), child.name()) {
            let entry = DirEntry { name: name.to_owned(), is_directory };
            if !self.directories.entry(parent.clone()).or_default().insert(entry) {
                return;
            }
            (child, is_directory) = (parent, true);
        }
    }
}

impl PageCache for MemoryStore {
    fn stat(&self, key: &Key) -> CachedStat {
        // Entity tags in this store are not built from `RawObjectMeta`.
        let exists = self.objects.contains_key(key) || self.directories.contains_key(key);
        if exists { CachedStat::Unknown } else { CachedStat::Missing }
    }

    fn is_unchanged(&self, key: &Key, version: u64) -> bool {
        self.objects.get(key).is_some_and(|(meta, _)| meta.version == version)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn lists_cheaply(&self) -> bool {
        true
    }

    fn backend(&self) -> &'static str {
        "memory"
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        Ok(self.objects.get(key).map(|(meta, _)| meta.clone()))
    }

    fn page_cache(&self) -> Option<&dyn PageCache> {
        Some(self)
    }

    async fn get(&self, key: &Key, _: &InlineLimit) -> Result<Option<Object>, StoreError> {
        Ok(self.objects.get(key).map(|(meta, bytes)| Object {
            meta: meta.clone(),
            age: Duration::ZERO,
            data: ObjectData::InMemory(bytes.clone()),
        }))
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        Ok(self.directories.contains_key(key))
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        let Some(directory) = self.directories.get(key) else { return Ok(None) };
        let is_kept = |entry: &&DirEntry| match filter(entry) {
            FilterDecision::Keep => true,
            FilterDecision::Skip => false,
            FilterDecision::KeepIfContains(name) => {
                let object = key.child(&entry.name).and_then(|entry_key| entry_key.child(name));
                object.is_ok_and(|object| self.objects.contains_key(&object))
            }
        };
        let is_after = |entry: &&DirEntry| after.is_none_or(|after| entry.name.as_str() > after);
        let mut matching = directory.iter().filter(is_after).filter(is_kept);
        let entries = matching.by_ref().take(limit).cloned().collect();
        Ok(Some(Listing { entries, has_more: matching.next().is_some(), ..Listing::default() }))
    }

    async fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
