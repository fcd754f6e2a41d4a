//! Revalidation of cached answers: a repeated request reuses an answer by its dependencies instead of looking it up
//! again.

use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures_util::FutureExt;

use super::Container;
use super::freshness::Freshness;
use super::object_cache::{ObjectCache, ObjectCacheKey, ObjectEntry};
use crate::metrics::LookupResult;
use crate::store::{CachedStat, Key, ObjectMeta, RawObjectMeta, Store};

/// Longest time for which an entry is reused without a lookup in the cache. It is short because the cache evicts by
/// last use.
const CACHE_TOUCH_NANOSECONDS: u64 = 100_000_000;

/// Something that an answer depends on. The answer is reused while it is unchanged.
#[derive(Debug, Clone)]
pub struct Dependency {
    kind: DependencyKind,
    last_lookup: u64,
}

#[derive(Debug, Clone)]
enum DependencyKind {
    /// A cached stored object. The reference does not keep it in memory.
    CachedObject(Key, Weak<ObjectEntry>),
    /// A stored object of this version.
    StoredVersion(Key, u64),
    /// A cached result derived from stored objects. These are not compared with the store.
    Derived(u128, Weak<ObjectEntry>),
    /// A key that names neither an object nor a directory.
    Missing(Key),
}

impl Dependency {
    pub(super) fn entry(key: &Key, entry: &Arc<ObjectEntry>, last_lookup: u64) -> Self {
        Self { kind: DependencyKind::CachedObject(key.clone(), Arc::downgrade(entry)), last_lookup }
    }

    pub(super) fn stored_version(key: &Key, raw_meta: RawObjectMeta, last_lookup: u64) -> Self {
        Self { kind: DependencyKind::StoredVersion(key.clone(), raw_meta.version), last_lookup }
    }

    pub(super) fn missing(key: &Key, last_lookup: u64) -> Self {
        Self { kind: DependencyKind::Missing(key.clone()), last_lookup }
    }

    pub(super) fn derived(id: u128, entry: &Arc<ObjectEntry>, last_lookup: u64) -> Self {
        Self { kind: DependencyKind::Derived(id, Arc::downgrade(entry)), last_lookup }
    }
}

/// A cached answer, which [`Container::revalidate`] reuses.
#[derive(Debug)]
pub struct CachedAnswer {
    /// Dependencies that must be unchanged. The last one holds the answer's bytes; the answer depends on the others.
    pub dependencies: Vec<Dependency>,
    /// Range of the answer within these bytes.
    pub range: Range<usize>,
}

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
        match last.kind {
            DependencyKind::CachedObject(..) | DependencyKind::Derived(..) => self.count_lookup(LookupResult::Hit),
            DependencyKind::Missing(_) => self.count_lookup(LookupResult::Absent),
            DependencyKind::StoredVersion(..) => {}
        }
        if with_bytes {
            (answer.range.end <= bytes.len()).then(|| bytes.slice(answer.range.clone()))
        } else {
            Some(bytes)
        }
    }

    /// Counts a lookup of a stored object that was answered without blocking.
    pub fn count_lookup(&self, result: LookupResult) {
        self.resources.objects.lookups.count(result, 1);
    }

    /// Returns the dependency on the object at `key` if the cache holds this version of it.
    pub fn cached_dependency(&self, freshness: Freshness, key: &Key, version: u64) -> Option<Dependency> {
        let cache_key = ObjectCacheKey::Stored(self.id, key.clone());
        let entry = self.resources.objects.cache.get(&cache_key).now_or_never().flatten()?;
        (entry.version() == Some(version)).then(|| Dependency::entry(key, &entry, freshness.request_start))
    }

    /// Returns true if the store can answer without blocking.
    pub fn supports_nonblocking(&self) -> bool {
        self.store.cached_stat(&Key::root()) != CachedStat::Unknown
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
}

impl ObjectCache {
    /// Returns the bytes of a dependency if it is unchanged and no staler than `freshness` accepts. A stored version
    /// has no bytes: the result is empty, or `None` with `with_bytes`.
    fn revalidate_dependency(
        &self,
        container: u32,
        store: &dyn Store,
        dependency: &mut Dependency,
        freshness: Freshness,
        with_bytes: bool,
    ) -> Option<Bytes> {
        let request_start = freshness.request_start;
        // From time to time the cache must register the use of the entry, and the whole path must be checked.
        if dependency.last_lookup.saturating_add(CACHE_TOUCH_NANOSECONDS) < request_start {
            self.revalidate_by_key(container, store, dependency, request_start)?;
        }
        Some(match &dependency.kind {
            DependencyKind::CachedObject(key, entry) => {
                let entry = entry.upgrade()?;
                let is_valid = entry.validated_at.is_fresh(freshness.since(key))
                    || entry.validated_at.try_revalidate(store, key, entry.version(), request_start) == Some(true);
                let (_, bytes) = entry.object.as_ref().filter(|_| is_valid)?;
                bytes.clone()
            }
            DependencyKind::StoredVersion(key, version) => {
                let is_fresh = dependency.last_lookup >= freshness.since(key);
                let is_valid = !with_bytes
                    && (is_fresh || store.page_cache().is_some_and(|cache| cache.is_unchanged(key, *version)));
                is_valid.then(Bytes::new)?
            }
            DependencyKind::Derived(_, entry) => entry.upgrade()?.object.as_ref()?.1.clone(),
            DependencyKind::Missing(key) => {
                if dependency.last_lookup < freshness.since(key) {
                    is_missing(store, key).then(|| dependency.last_lookup = request_start)?;
                }
                Bytes::new()
            }
        })
    }

    /// Looks up the dependency by its key. Returns `None` if that would block or finds something else.
    fn revalidate_by_key(
        &self,
        container: u32,
        store: &dyn Store,
        dependency: &mut Dependency,
        request_start: u64,
    ) -> Option<()> {
        let is_cached = |key, entry: &Weak<ObjectEntry>| {
            let cached = self.cache.get(&key).now_or_never().flatten();
            cached.is_some_and(|cached| std::ptr::eq(entry.as_ptr(), Arc::as_ptr(&cached)))
        };
        let is_same = match &dependency.kind {
            DependencyKind::CachedObject(key, entry) => {
                is_cached(ObjectCacheKey::Stored(container, key.clone()), entry)
            }
            DependencyKind::Derived(id, entry) => is_cached(ObjectCacheKey::Derived(*id), entry),
            DependencyKind::StoredVersion(key, version) => match store.cached_stat(key) {
                CachedStat::Object(raw_meta) => raw_meta.version == *version,
                CachedStat::Missing | CachedStat::NotAnObject | CachedStat::Unknown => false,
            },
            DependencyKind::Missing(key) => is_missing(store, key),
        };
        is_same.then(|| dependency.last_lookup = request_start)
    }
}

fn is_missing(store: &dyn Store, key: &Key) -> bool {
    store.cached_stat(key) == CachedStat::Missing
}
