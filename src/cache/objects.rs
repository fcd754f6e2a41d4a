//! Lookups of stored objects in the cache and in the store.

use std::future::Future;
use std::sync::Arc;

use super::block_source::{CachedVersion, SourceBlock, StoredBlock};
use super::error::ReadError;
use super::fetch::FetchedObject;
use super::freshness::{self, Freshness};
use super::object_cache::ObjectCache;
use super::object_entry::{ObjectCacheKey, ObjectEntry, StoredObject};
use super::validated::{CacheEntry, EntrySource};
use crate::fair_queue::FlightHandle;
use crate::store::{Key, ObjectMeta, Revalidation, Store};

impl ObjectCache {
    /// Returns the object at `key`, no staler than `freshness` accepts; `None` if there is none.
    pub(crate) async fn get(
        &self,
        container: u32,
        store: &Arc<dyn Store>,
        key: &Key,
        freshness: Freshness,
    ) -> Result<Option<StoredObject>, ReadError> {
        let source = ObjectSource { objects: self, store, key };
        let entry_key = ObjectCacheKey::Stored(container, key.clone());
        let entry = self.entries.get(&entry_key, freshness, freshness.since(key), &source).await?;
        Ok(entry.to_stored_object())
    }

    /// Returns metadata of a cached object that is no staler than `fresh_since`; `Some(None)` for a known missing
    /// object.
    pub(crate) async fn peek(&self, container: u32, key: &Key, fresh_since: u64) -> Option<Option<ObjectMeta>> {
        let cached = self.entries.cached(&ObjectCacheKey::Stored(container, key.clone())).await;
        Some(cached.filter(|entry| entry.validated_at.is_fresh(fresh_since))?.meta().cloned())
    }

    /// Returns the block at `key` for decoding: from the cache if it is fresh, otherwise from the store. It is not added
    /// to this cache, since the decoded block will be cached. Otherwise as
    /// [`BlockSource::load`](super::block_source::BlockSource::load).
    pub(crate) async fn read_block(
        &self,
        container: u32,
        store: &dyn Store,
        key: &Key,
        known: Option<CachedVersion<'_>>,
        fresh_since: u64,
    ) -> Result<(SourceBlock, u64), ReadError> {
        let cached = self.entries.cached(&ObjectCacheKey::Stored(container, key.clone())).await;
        if let Some(entry) = cached.filter(|entry| entry.validated_at.is_fresh(fresh_since)) {
            let checked_at = entry.validated_at.nanoseconds();
            if let Some((meta, bytes)) = entry.whole_object() {
                if known == Some(CachedVersion(Some((&*meta.etag, meta.version)))) {
                    return Ok((SourceBlock::Unchanged, checked_at));
                }
                let stored = StoredBlock { meta: meta.clone(), bytes: bytes.clone(), permit: None };
                return Ok((SourceBlock::Stored(stored), checked_at));
            }
            // Otherwise not trusted: the request that cached it did not check that a dataset exists.
            if entry.is_missing() && store.reports_missing_root() {
                return Ok((SourceBlock::Missing, checked_at));
            }
        }
        let checked_at = freshness::now();
        let revalidation = match known {
            Some(CachedVersion(known)) => store.revalidate(key, known).await?,
            None => Revalidation::Changed,
        };
        let fetched = match revalidation {
            Revalidation::Unchanged => return Ok((SourceBlock::Unchanged, checked_at)),
            Revalidation::Changed => self.fetch_once(store, key).await?,
            Revalidation::Current(None) => None,
            Revalidation::Current(Some(object)) => Some(self.fetched(object).await?),
        };
        let block = match fetched {
            Some(FetchedObject::Whole(meta, bytes, permit)) => {
                SourceBlock::Stored(StoredBlock { meta, bytes, permit: Some(permit) })
            }
            Some(FetchedObject::Large(large)) => SourceBlock::Large(large),
            None => SourceBlock::Missing,
        };
        Ok((block, checked_at))
    }

    /// Removes the entry at `key` if it says that there is no object.
    pub(crate) async fn forget_missing(&self, container: u32, key: &Key) {
        self.entries.forget_missing(&ObjectCacheKey::Stored(container, key.clone())).await;
    }
}

/// A stored object as the source of its entry.
struct ObjectSource<'a> {
    objects: &'a ObjectCache,
    store: &'a Arc<dyn Store>,
    key: &'a Key,
}

impl EntrySource<ObjectEntry> for ObjectSource<'_> {
    fn try_is_unchanged(&self, entry: &ObjectEntry) -> Option<bool> {
        if entry.is_name_absent() {
            // A directory is not an object either, and would pass for unchanged.
            return Some(false);
        }
        entry.validated_at.try_revalidate(&**self.store, self.key, entry.version(), freshness::now())
    }

    fn load(
        &self,
        stale: Option<Arc<ObjectEntry>>,
        _flight: FlightHandle,
    ) -> impl Future<Output = Result<Arc<ObjectEntry>, ReadError>> + Send + 'static {
        let (objects, store, key) = (self.objects.clone(), Arc::clone(self.store), self.key.clone());
        // Not held while the new object waits for memory.
        let stale = stale.map(|stale| (Arc::downgrade(&stale), stale.meta().cloned()));
        async move {
            let checked_at = freshness::now();
            let mut first = Revalidation::Changed;
            if let Some((stale, meta)) = stale {
                let known = meta.as_ref().map(|meta| (&*meta.etag, meta.version));
                first = store.revalidate(&key, known).await?;
                if let (Revalidation::Unchanged, Some(stale)) = (&first, stale.upgrade()) {
                    stale.validated_at.touch(checked_at);
                    return Ok(stale);
                }
            }
            Ok(Arc::new(match objects.fetch(&*store, &key, first).await? {
                None => ObjectEntry::missing(false, checked_at),
                Some(StoredObject::Whole(meta, bytes)) => ObjectEntry::whole(meta, bytes, checked_at),
                Some(large @ StoredObject::Large(_)) => ObjectEntry::uncached(large, checked_at),
            }))
        }
    }
}
