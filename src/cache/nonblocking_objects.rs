//! Nonblocking lookups of stored objects: they do not wait for a disk, for memory or for another request.

use std::time::Instant;

use bytes::Bytes;

use super::dependency::Dependency;
use super::footprint;
use super::freshness::Freshness;
use super::object_cache::{MAX_WHOLE_OBJECT_BYTES, ObjectCache};
use super::object_entry::{ObjectCacheKey, ObjectEntry};
use super::validated::CacheEntry;
use crate::metrics::{self, LookupResult, StoreOperation};
use crate::store::{CachedStat, Key, ObjectMeta, PageCache, SendfileSource, Store};

/// Maximum size of an object that is read into the cache whenever the page cache holds it. Opening such an object costs
/// more than reading it.
const MAX_ALWAYS_CACHED_BYTES: u64 = 64 << 10;

/// Maximum size of an object that is read on the calling thread, which takes up to 0.1 ms. Sending from the page cache
/// costs less than reading into new memory. Sending from the object cache costs less still, which pays off for objects
/// that are requested often.
const MAX_NONBLOCKING_READ_BYTES: u64 = 512 << 10;

/// Result of a nonblocking lookup.
#[derive(Debug)]
pub enum NonblockingLookup {
    /// The result is not available without blocking.
    WouldBlock,
    /// There is neither an object nor a directory of that name. The dependency revalidates this.
    Missing(Dependency),
    /// Metadata and bytes of the object, and its dependency if there is one. The bytes are empty if they were not
    /// requested and are not cached.
    Object(ObjectMeta, Bytes, Option<Dependency>),
    /// An open file that is sent by `sendfile`.
    Sendfile(SendfileSource),
}

impl ObjectCache {
    /// Looks up the object at `key`, no staler than `freshness` accepts, without blocking. The result includes the
    /// bytes if `with_bytes` is true or they are cached.
    pub(crate) fn try_get(
        &self,
        container: u32,
        store: &dyn Store,
        key: &Key,
        freshness: Freshness,
        with_bytes: bool,
    ) -> NonblockingLookup {
        let (fresh_since, request_start) = (freshness.since(key), freshness.request_start);
        let cached = self.entries.try_cached(&ObjectCacheKey::Stored(container, key.clone()));
        if let Some(missing) = cached.as_ref().filter(|entry| entry.is_missing()) {
            return self.try_get_missing(container, missing, store, key, (fresh_since, request_start));
        }
        let is_cached = cached.is_some();
        let valid = cached.filter(|entry| {
            entry.validated_at.is_fresh(fresh_since)
                || entry.validated_at.try_revalidate(store, key, entry.version(), request_start) == Some(true)
        });
        if let Some(entry) = valid
            && let Some((meta, bytes)) = entry.whole_object()
        {
            self.entries.count(LookupResult::Hit, 1);
            let dependency = Dependency::entry(key, &entry, request_start);
            return NonblockingLookup::Object(meta.clone(), bytes.clone(), Some(dependency));
        }
        let object = match store.cached_stat(key) {
            CachedStat::Missing => {
                // Cached only if a later request can use it.
                if !is_cached && fresh_since < request_start {
                    // Looked at again within the load, which an invalidation supersedes.
                    let entry_key = ObjectCacheKey::Stored(container, key.clone());
                    self.entries.try_load(entry_key, |_| {
                        let is_missing = store.cached_stat(key) == CachedStat::Missing;
                        is_missing.then(|| ObjectEntry::missing(true, request_start))
                    });
                    self.entries.try_evict();
                }
                return self.known_missing(key, request_start);
            }
            CachedStat::Object(raw_meta) if !is_cached && raw_meta.len <= MAX_ALWAYS_CACHED_BYTES => self
                .try_load(ObjectCacheKey::Stored(container, key.clone()), store, key, raw_meta.len, request_start)
                .or_else(|| (!with_bytes).then(|| (raw_meta.into(), Bytes::new()))),
            CachedStat::Object(raw_meta) if !with_bytes => {
                return NonblockingLookup::Object(
                    raw_meta.into(),
                    Bytes::new(),
                    Some(Dependency::stored_version(key, raw_meta, request_start)),
                );
            }
            CachedStat::Object(raw_meta) if !is_cached && raw_meta.len <= MAX_WHOLE_OBJECT_BYTES => {
                if raw_meta.len <= MAX_NONBLOCKING_READ_BYTES && self.admission.admit(raw_meta.version) {
                    self.try_load(
                        ObjectCacheKey::Stored(container, key.clone()),
                        store,
                        key,
                        raw_meta.len,
                        request_start,
                    )
                } else {
                    let Some(file) =
                        store.page_cache().and_then(|cache| cache.open_for_sendfile(key, MAX_WHOLE_OBJECT_BYTES))
                    else {
                        return NonblockingLookup::WouldBlock;
                    };
                    self.entries.count(LookupResult::Miss, 1);
                    return NonblockingLookup::Sendfile(file);
                }
            }
            CachedStat::Object(_) | CachedStat::NotAnObject | CachedStat::Unknown => None,
        };
        object.map_or(NonblockingLookup::WouldBlock, |(meta, bytes)| NonblockingLookup::Object(meta, bytes, None))
    }

    /// Looks up a key that is cached as missing: it is not an object, but may be a directory.
    fn try_get_missing(
        &self,
        container: u32,
        missing: &ObjectEntry,
        store: &dyn Store,
        key: &Key,
        (fresh_since, request_start): (u64, u64),
    ) -> NonblockingLookup {
        if missing.is_name_absent() && missing.validated_at.is_fresh(fresh_since) {
            return self.known_missing(key, missing.validated_at.nanoseconds());
        }
        if store.cached_stat(key) == CachedStat::Missing {
            missing.validated_at.touch(request_start);
            return self.known_missing(key, request_start);
        }
        if missing.is_name_absent() {
            self.entries.try_remove(&ObjectCacheKey::Stored(container, key.clone()));
        }
        NonblockingLookup::WouldBlock
    }

    fn known_missing(&self, key: &Key, checked_at: u64) -> NonblockingLookup {
        self.entries.count(LookupResult::Absent, 1);
        NonblockingLookup::Missing(Dependency::missing(key, checked_at))
    }

    /// Reads an object of `len` bytes into the cache if this does not block.
    fn try_load(
        &self,
        entry_key: ObjectCacheKey,
        store: &dyn Store,
        key: &Key,
        len: u64,
        request_start: u64,
    ) -> Option<(ObjectMeta, Bytes)> {
        let entry = self.entries.try_load(entry_key, |_| {
            let (meta, bytes) = self.try_read(store, key, len)?;
            Some(ObjectEntry::whole(meta, bytes, request_start))
        })?;
        self.entries.try_evict();
        let entry = Some(entry).filter(|entry| entry.validated_at.is_fresh(request_start))?;
        let (meta, bytes) = entry.whole_object()?;
        // Failures are counted by the blocking path.
        self.entries.count(LookupResult::Miss, 1);
        Some((meta.clone(), bytes.clone()))
    }

    /// Reads an object of `len` bytes if this does not block. A job on the disk pool and new pages from the system
    /// would take several times as long as the copy.
    fn try_read(&self, store: &dyn Store, key: &Key, len: u64) -> Option<(ObjectMeta, Bytes)> {
        let permit = self.memory.budget.try_take(len)?;
        // Has exactly this capacity, since the cache does not account for more. Large pages come zeroed from the system
        // and stay untouched until they are read into.
        let mut buffer = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let started = Instant::now();
        let meta = store
            .page_cache()
            .and_then(PageCache::reader)
            .and_then(|mut objects| objects.get(key, len, &mut buffer))
            .flatten()?;
        metrics::store_request(StoreOperation::Get, store.backend(), started.elapsed());
        metrics::store_read_bytes(store.backend(), buffer.len() as u64);
        let permit = permit.into_cache_owned();
        let bytes = if footprint::needs_copy(&buffer) {
            permit.own(footprint::compact_for_cache(buffer.into(), true))
        } else {
            self.memory.budget.own(buffer, permit)
        };
        Some((meta, bytes))
    }
}
