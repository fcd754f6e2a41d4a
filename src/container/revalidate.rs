//! Answers without blocking: lookups of stored objects, and cached answers that are reused while what they depend on is
//! unchanged.

use bytes::Bytes;

use super::handle::Container;
use crate::cache::dependency::{CachedAnswer, Dependency};
use crate::cache::freshness::Freshness;
use crate::cache::nonblocking_objects::NonblockingLookup;
use crate::cache::object_entry::ObjectCacheKey;
use crate::metrics::LookupResult;
use crate::store::{CachedStat, Key, ObjectMeta};

impl Container {
    /// Revalidates a cached answer and returns its bytes. Returns `None` if that would block, if a dependency has
    /// changed, or if one is staler than `freshness` accepts; the answer must then be looked up anew. Without
    /// `with_bytes`, the content of the returned bytes is unspecified.
    pub fn revalidate(&self, freshness: Freshness, answer: &mut CachedAnswer, with_bytes: bool) -> Option<Bytes> {
        let (last, others) = answer.dependencies.split_last_mut()?;
        let revalidate = |dependency, with_bytes| {
            self.resources.objects.revalidate_dependency(self.id, &*self.store, dependency, freshness, with_bytes)
        };
        // The dataset is checked after its block: a missing block is a hole only if its dataset exists.
        let bytes = revalidate(last, with_bytes)?;
        for dependency in others {
            revalidate(dependency, false)?;
        }
        if let Some(result) = last.lookup_result() {
            self.count_lookup(result);
        }
        if with_bytes {
            (answer.range.end <= bytes.len()).then(|| bytes.slice(answer.range.clone()))
        } else {
            Some(bytes)
        }
    }

    /// Counts a lookup of a stored object that was answered without blocking.
    pub fn count_lookup(&self, result: LookupResult) {
        self.resources.objects.entries.count(result, 1);
    }

    /// Returns the dependency on the object at `key` if the cache holds this version of it.
    pub fn cached_dependency(&self, freshness: Freshness, key: &Key, version: u64) -> Option<Dependency> {
        let cache_key = ObjectCacheKey::Stored(self.id, key.clone());
        let entry = self.resources.objects.entries.try_cached(&cache_key)?;
        (entry.version() == Some(version)).then(|| Dependency::entry(key, &entry, freshness.request_start))
    }

    /// Returns the store's metadata of the object at `key` and the dependency on its version, if the store knows them
    /// without blocking.
    pub fn stored_dependency(&self, freshness: Freshness, key: &Key) -> Option<(ObjectMeta, Dependency)> {
        match self.store.cached_stat(key) {
            _ if !self.is_visible(key) => None,
            CachedStat::Object(raw_meta) => {
                Some((raw_meta.into(), Dependency::stored_version(key, raw_meta, freshness.request_start)))
            }
            CachedStat::Missing | CachedStat::NotAnObject | CachedStat::Unknown => None,
        }
    }

    /// As [`Self::object`] (or [`Self::meta`] without `with_bytes`), but never waits for a disk, for memory or for
    /// another request.
    pub fn try_object(&self, freshness: Freshness, key: &Key, with_bytes: bool) -> NonblockingLookup {
        if !self.is_visible(key) {
            return NonblockingLookup::WouldBlock;
        }
        self.resources.objects.try_get(self.id, &*self.store, key, freshness, with_bytes)
    }
}
