//! Lookups that never wait for a disk, for memory or for another request. They find stored objects, and cached
//! responses whose dependencies are unchanged.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::handle::Container;
use crate::cache::{self, CacheEntry, MAX_WHOLE_OBJECT_BYTES, ObjectCacheKey, ObjectEntry, ReadOptions};
use crate::store::{CachedGet, CachedStat, Key, ObjectMeta, RawObjectMeta, SendfileSource};
use crate::telemetry::metrics::{self, LookupResult, StoreOperation};

/// Maximum size of an object that is read into the cache at its first request, if the page cache holds it. Opening such
/// an object costs more than reading it.
const MAX_ALWAYS_CACHED_BYTES: u64 = 64 << 10;

/// Maximum size of an object that is read on the calling thread, which takes up to 0.1 ms. Sending from the page cache
/// costs less than reading into new memory. Sending from the object cache costs less still, which pays off for objects
/// that are requested often.
const MAX_NONBLOCKING_READ_BYTES: u64 = 512 << 10;

/// Longest time for which an entry is reused without a lookup in the cache. The time is short because the cache evicts
/// the least recently used entries, and only a lookup counts as use.
const CACHE_TOUCH_NANOSECONDS: u64 = 100_000_000;

/// Result of a nonblocking lookup.
#[derive(Debug)]
pub enum NonblockingLookup {
    /// No object or directory has that name. The dependency detects if one is created.
    Missing(Dependency),
    /// Metadata and bytes of the object, and the dependency on it if a response with it may be reused. The bytes are
    /// `None` if they were not requested and are not cached.
    Object(ObjectMeta, Option<Bytes>, Option<Dependency>),
    /// An open file that is sent by `sendfile`.
    Sendfile(SendfileSource),
}

/// Something that a response depends on. The response may be reused while all of its dependencies are unchanged.
#[derive(Debug, Clone)]
pub struct Dependency {
    kind: DependencyKind,
    last_lookup: u64,
}

#[derive(Debug, Clone)]
enum DependencyKind {
    /// A cached stored object. The reference does not keep it in memory.
    CachedObject(Key, Weak<ObjectEntry>),
    /// A stored object with this version.
    StoredVersion(Key, u64),
    /// A cached result that is derived from stored objects. A response has separate dependencies on these objects.
    Derived(u128, Weak<ObjectEntry>),
    /// A key that names neither an object nor a directory.
    Missing(Key),
}

impl Dependency {
    fn entry(key: &Key, entry: &Arc<ObjectEntry>, last_lookup: u64) -> Self {
        Self { kind: DependencyKind::CachedObject(key.clone(), Arc::downgrade(entry)), last_lookup }
    }

    fn stored_version(key: &Key, raw_meta: RawObjectMeta, last_lookup: u64) -> Self {
        Self { kind: DependencyKind::StoredVersion(key.clone(), raw_meta.version), last_lookup }
    }

    pub(crate) fn derived(id: u128, entry: &Arc<ObjectEntry>, last_lookup: u64) -> Self {
        Self { kind: DependencyKind::Derived(id, Arc::downgrade(entry)), last_lookup }
    }
}

/// A response that may be sent again, and its dependencies. [`Container::reuse_response`] returns its bytes.
#[derive(Debug)]
pub struct CachedResponse {
    /// The dependency that has the bytes. It must be unchanged.
    pub source: Dependency,
    /// Range of the response within the bytes of `source`.
    pub range: Range<usize>,
    /// Further dependencies that must be unchanged.
    pub others: Vec<Dependency>,
}

impl Container {
    /// Looks up the object at `key` as [`Self::object`] does, or as [`Self::meta`] does if `with_bytes` is false, but
    /// never waits. Returns `None` if the lookup would have to wait. Without `with_bytes`, the result has bytes only if
    /// they are cached.
    pub fn try_object(&self, options: ReadOptions, key: &Key, with_bytes: bool) -> Option<NonblockingLookup> {
        if !self.check_visible(key) {
            return None;
        }
        let entries = self.object_entries();
        let cached = entries.try_cached(&self.object_cache_key(key));
        if let Some(entry) = &cached {
            if entry.object.is_none() {
                return self.try_missing(options, key, entry);
            }
            if self.is_entry_valid(options, key, entry)
                && let Some((meta, bytes)) = entry.whole_object()
            {
                entries.count(LookupResult::Hit, 1);
                let dependency = Dependency::entry(key, entry, options.request_start);
                return Some(NonblockingLookup::Object(meta.clone(), Some(bytes.clone()), Some(dependency)));
            }
        }
        let is_cached = cached.is_some();
        match self.store.cached_stat(key) {
            CachedStat::Object(RawObjectMeta { len, version, .. }) | CachedStat::Held { len, version }
                if with_bytes && !is_cached =>
            {
                self.try_read(options, key, len, version)
            }
            CachedStat::Object(raw_meta) if !with_bytes => Some(self.try_meta(options, key, raw_meta, is_cached)),
            CachedStat::Held { len, .. } if !is_cached => self.try_held_meta(options, key, len),
            CachedStat::Object(_) | CachedStat::Held { .. } | CachedStat::NotAnObject | CachedStat::Unknown => None,
            CachedStat::Missing => {
                // If every request must look again, no later request could use the entry.
                if !is_cached && self.fresh_since(options, key).missing < options.request_start {
                    self.try_cache_missing(key, options.request_start);
                }
                Some(self.known_missing(key, options.request_start))
            }
        }
    }

    /// Returns true if a cached object is fresh, if it is usable and will be revalidated in the background, or if a
    /// comparison without blocking finds that it equals the stored object.
    fn is_entry_valid(&self, options: ReadOptions, key: &Key, entry: &Arc<ObjectEntry>) -> bool {
        let validated_at = &entry.validated_at;
        let fresh_since = self.fresh_since(options, key);
        if entry.is_fresh(fresh_since) {
            return true;
        }
        let is_renewed = || {
            let source = self.object_source(key, None);
            self.object_entries().is_fresh_or_renewed(&self.object_cache_key(key), entry, fresh_since, &source)
        };
        entry.is_usable(fresh_since) && is_renewed()
            || validated_at.try_is_unchanged(&*self.store, key, entry.version(), options.request_start) == Some(true)
    }

    /// Looks up an object that is missing according to `entry`. Returns `None` if a directory has that name.
    fn try_missing(&self, options: ReadOptions, key: &Key, entry: &ObjectEntry) -> Option<NonblockingLookup> {
        if entry.is_name_absent && entry.is_fresh(self.fresh_since(options, key)) {
            return Some(self.known_missing(key, entry.validated_at.nanoseconds()));
        }
        if self.store.cached_stat(key) == CachedStat::Missing {
            entry.validated_at.touch(options.request_start);
            return Some(self.known_missing(key, options.request_start));
        }
        if entry.is_name_absent {
            self.object_entries().try_remove(&self.object_cache_key(key));
        }
        None
    }

    fn known_missing(&self, key: &Key, last_lookup: u64) -> NonblockingLookup {
        self.count_lookup(LookupResult::Absent);
        NonblockingLookup::Missing(Dependency { kind: DependencyKind::Missing(key.clone()), last_lookup })
    }

    /// Adds an entry to the cache which says that no object or directory has the name `key`.
    fn try_cache_missing(&self, key: &Key, request_start: u64) {
        let entries = self.object_entries();
        // The lookup is repeated inside a load, because the result of a load is not cached if the key is invalidated
        // meanwhile.
        entries.try_get_or_load(self.object_cache_key(key), |_| {
            let is_missing = self.store.cached_stat(key) == CachedStat::Missing;
            is_missing.then(|| ObjectEntry::missing(true, request_start))
        });
        entries.try_evict();
    }

    /// Returns the metadata of the object. Also reads a small object into the cache, unless `is_cached` is true: the
    /// cache then has an outdated entry, which a load in blocking mode replaces.
    fn try_meta(&self, options: ReadOptions, key: &Key, raw_meta: RawObjectMeta, is_cached: bool) -> NonblockingLookup {
        if is_cached || raw_meta.len > MAX_ALWAYS_CACHED_BYTES {
            let dependency = Dependency::stored_version(key, raw_meta, options.request_start);
            return NonblockingLookup::Object(raw_meta.into(), None, Some(dependency));
        }
        match self.try_read_into_cache(options, key, raw_meta.len) {
            Some((meta, bytes)) => NonblockingLookup::Object(meta, Some(bytes), None),
            None => NonblockingLookup::Object(raw_meta.into(), None, None),
        }
    }

    /// Returns the metadata of an object of the disk cache. Also reads a small object into the cache.
    fn try_held_meta(&self, options: ReadOptions, key: &Key, len: u64) -> Option<NonblockingLookup> {
        if len <= MAX_ALWAYS_CACHED_BYTES {
            let (meta, bytes) = self.try_read_into_cache(options, key, len)?;
            return Some(NonblockingLookup::Object(meta, Some(bytes), None));
        }
        let file = self.store.page_cache()?.open_for_sendfile(key, MAX_WHOLE_OBJECT_BYTES)?;
        Some(NonblockingLookup::Object(file.meta().clone(), None, None))
    }

    /// Reads an object into the cache if it is small or requested often. Otherwise opens it for `sendfile`.
    fn try_read(&self, options: ReadOptions, key: &Key, len: u64, version: u64) -> Option<NonblockingLookup> {
        let objects = &self.resources.objects;
        if len > MAX_WHOLE_OBJECT_BYTES {
            return None;
        }
        let should_cache = len <= MAX_ALWAYS_CACHED_BYTES
            || len <= MAX_NONBLOCKING_READ_BYTES && objects.admission.record_and_admit(version);
        if should_cache {
            let (meta, bytes) = self.try_read_into_cache(options, key, len)?;
            return Some(NonblockingLookup::Object(meta, Some(bytes), None));
        }
        let file = self.store.page_cache()?.open_for_sendfile(key, MAX_WHOLE_OBJECT_BYTES)?;
        objects.entries.count(LookupResult::Miss, 1);
        Some(NonblockingLookup::Sendfile(file))
    }

    /// Reads an object of `len` bytes into the cache if this does not block.
    fn try_read_into_cache(&self, options: ReadOptions, key: &Key, len: u64) -> Option<(ObjectMeta, Bytes)> {
        let entries = self.object_entries();
        let request_start = options.request_start;
        let mut compared_at = request_start;
        let entry = entries.try_get_or_load(self.object_cache_key(key), |_| {
            let (meta, bytes, age) = self.try_get(key, len)?;
            compared_at = cache::compared_at(request_start, age);
            Some(ObjectEntry::whole(meta, bytes, compared_at))
        })?;
        entries.try_evict();
        let entry = Some(entry).filter(|entry| entry.validated_at.is_fresh(compared_at))?;
        let (meta, bytes) = entry.whole_object()?;
        // If this function fails, the request is repeated in blocking mode, which counts the lookup.
        entries.count(LookupResult::Miss, 1);
        Some((meta.clone(), bytes.clone()))
    }

    /// Gets an object of `len` bytes from the page cache if this does not block. Copying the bytes here takes a
    /// fraction of the time that a job on the disk pool needs for its thread switches and for new memory pages.
    fn try_get(&self, key: &Key, len: u64) -> Option<(ObjectMeta, Bytes, Duration)> {
        let store = &self.store;
        let budget = self.resources.objects.budget();
        let permit = budget.try_take(len)?;
        // The capacity is exactly `len`, because the cache accounts for no more. The memory of a large buffer comes
        // zeroed from the system, so this call does not write to it.
        let mut buffer = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let started = Instant::now();
        let read = store.page_cache()?.reader()?.get(key, len, &mut buffer);
        let CachedGet::Object(meta, age) = read else { return None };
        metrics::store_request(StoreOperation::Get, store.backend(), started.elapsed());
        metrics::store_read_bytes(store.backend(), buffer.len() as u64);
        Some((meta, budget.own_pooled_for_cache(buffer, permit), age))
    }

    /// Revalidates a cached response and returns its bytes. Returns `None` if a dependency has changed or cannot be
    /// compared without blocking. The caller must then look up the response anew. Without `with_bytes`, the returned
    /// bytes are unspecified.
    pub fn reuse_response(&self, options: ReadOptions, cached: &mut CachedResponse, with_bytes: bool) -> Option<Bytes> {
        // The dataset is checked after its block: a missing block is a hole only if its dataset exists.
        let bytes = self.reuse_dependency(options, &mut cached.source, with_bytes)?;
        for dependency in &mut cached.others {
            self.reuse_dependency(options, dependency, false)?;
        }
        match cached.source.kind {
            DependencyKind::CachedObject(..) | DependencyKind::Derived(..) => self.count_lookup(LookupResult::Hit),
            DependencyKind::Missing(_) => self.count_lookup(LookupResult::Absent),
            // Not a lookup in the cache.
            DependencyKind::StoredVersion(..) => {}
        }
        if !with_bytes {
            return Some(bytes);
        }
        (cached.range.end <= bytes.len()).then(|| bytes.slice(cached.range.clone()))
    }

    /// Returns the bytes of a dependency if it is unchanged, as fresh as `options` requires. A stored version has no
    /// bytes: the result is empty, or `None` if `with_bytes` is true.
    fn reuse_dependency(&self, options: ReadOptions, dependency: &mut Dependency, with_bytes: bool) -> Option<Bytes> {
        let store = &*self.store;
        let request_start = options.request_start;
        // From time to time, a lookup by key tells the cache that the entry is in use, and checks the whole path.
        if dependency.last_lookup.saturating_add(CACHE_TOUCH_NANOSECONDS) < request_start {
            if !self.finds_same(&dependency.kind) {
                return None;
            }
            dependency.last_lookup = request_start;
        }
        match &dependency.kind {
            DependencyKind::CachedObject(key, entry) => {
                let entry = entry.upgrade()?;
                let is_valid = self.is_entry_valid(options, key, &entry);
                entry.whole_object().filter(|_| is_valid).map(|(_, bytes)| bytes.clone())
            }
            DependencyKind::StoredVersion(key, version) => {
                let is_valid = !with_bytes
                    && (dependency.last_lookup >= self.fresh_since(options, key).found
                        || store.page_cache().is_some_and(|cache| cache.is_unchanged(key, *version)));
                is_valid.then(Bytes::new)
            }
            DependencyKind::Derived(_, entry) => Some(entry.upgrade()?.whole_object()?.1.clone()),
            DependencyKind::Missing(key) => {
                if dependency.last_lookup < self.fresh_since(options, key).missing {
                    if store.cached_stat(key) != CachedStat::Missing {
                        return None;
                    }
                    dependency.last_lookup = request_start;
                }
                Some(Bytes::new())
            }
        }
    }

    /// Looks up a dependency by its key, without blocking. Returns true if the lookup finds the same entry or version.
    fn finds_same(&self, kind: &DependencyKind) -> bool {
        let is_cached = |key, entry: &Weak<ObjectEntry>| {
            let cached = self.object_entries().try_cached(&key);
            cached.is_some_and(|cached| std::ptr::eq(entry.as_ptr(), Arc::as_ptr(&cached)))
        };
        match kind {
            DependencyKind::CachedObject(key, entry) => is_cached(self.object_cache_key(key), entry),
            DependencyKind::Derived(id, entry) => is_cached(ObjectCacheKey::Derived(*id), entry),
            DependencyKind::StoredVersion(key, version) => match self.store.cached_stat(key) {
                CachedStat::Object(raw_meta) => raw_meta.version == *version,
                CachedStat::Missing | CachedStat::NotAnObject | CachedStat::Unknown | CachedStat::Held { .. } => false,
            },
            DependencyKind::Missing(key) => self.store.cached_stat(key) == CachedStat::Missing,
        }
    }

    /// Counts a lookup of a stored object that was answered without blocking.
    pub fn count_lookup(&self, result: LookupResult) {
        self.object_entries().count(result, 1);
    }

    /// Returns the dependency on the object at `key` if the cache holds the object with this version.
    pub fn cached_dependency(&self, options: ReadOptions, key: &Key, version: u64) -> Option<Dependency> {
        let entry = self.object_entries().try_cached(&self.object_cache_key(key))?;
        (entry.version() == Some(version)).then(|| Dependency::entry(key, &entry, options.request_start))
    }

    /// Returns the metadata of the object at `key` and the dependency on its version, if the store has the metadata in
    /// memory.
    pub fn stored_dependency(&self, options: ReadOptions, key: &Key) -> Option<(ObjectMeta, Dependency)> {
        match self.store.cached_stat(key) {
            _ if !self.check_visible(key) => None,
            CachedStat::Object(raw_meta) => {
                Some((raw_meta.into(), Dependency::stored_version(key, raw_meta, options.request_start)))
            }
            CachedStat::Missing | CachedStat::NotAnObject | CachedStat::Unknown | CachedStat::Held { .. } => None,
        }
    }
}
