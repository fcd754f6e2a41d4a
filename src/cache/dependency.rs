//! Dependencies of cached answers: a repeated request reuses an answer while they are unchanged, instead of looking it up
//! again.

use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::freshness::Freshness;
use super::object_cache::ObjectCache;
use super::object_entry::{ObjectCacheKey, ObjectEntry};
use crate::metrics::LookupResult;
use crate::store::{CachedStat, Key, RawObjectMeta, Store};

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
    /// Returns the result of a lookup that finds the dependency unchanged, unless it is counted elsewhere.
    pub(crate) fn lookup_result(&self) -> Option<LookupResult> {
        match self.kind {
            DependencyKind::CachedObject(..) | DependencyKind::Derived(..) => Some(LookupResult::Hit),
            DependencyKind::Missing(_) => Some(LookupResult::Absent),
            DependencyKind::StoredVersion(..) => None,
        }
    }

    pub(crate) fn entry(key: &Key, entry: &Arc<ObjectEntry>, last_lookup: u64) -> Self {
        Self { kind: DependencyKind::CachedObject(key.clone(), Arc::downgrade(entry)), last_lookup }
    }

    pub(crate) fn stored_version(key: &Key, raw_meta: RawObjectMeta, last_lookup: u64) -> Self {
        Self { kind: DependencyKind::StoredVersion(key.clone(), raw_meta.version), last_lookup }
    }

    pub(crate) fn missing(key: &Key, last_lookup: u64) -> Self {
        Self { kind: DependencyKind::Missing(key.clone()), last_lookup }
    }

    pub(crate) fn derived(id: u128, entry: &Arc<ObjectEntry>, last_lookup: u64) -> Self {
        Self { kind: DependencyKind::Derived(id, Arc::downgrade(entry)), last_lookup }
    }
}

/// A cached answer, which `Container::revalidate` reuses.
#[derive(Debug)]
pub struct CachedAnswer {
    /// Dependencies that must be unchanged. The last one holds the answer's bytes; the answer depends on the others.
    pub dependencies: Vec<Dependency>,
    /// Range of the answer within these bytes.
    pub range: Range<usize>,
}

impl ObjectCache {
    /// Returns the bytes of a dependency if it is unchanged and no staler than `freshness` accepts. A stored version
    /// has no bytes: the result is empty, or `None` with `with_bytes`.
    pub(crate) fn revalidate_dependency(
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
                let (_, bytes) = entry.whole_object().filter(|_| is_valid)?;
                bytes.clone()
            }
            DependencyKind::StoredVersion(key, version) => {
                let is_fresh = dependency.last_lookup >= freshness.since(key);
                let is_valid = !with_bytes
                    && (is_fresh || store.page_cache().is_some_and(|cache| cache.is_unchanged(key, *version)));
                is_valid.then(Bytes::new)?
            }
            DependencyKind::Derived(_, entry) => entry.upgrade()?.whole_object()?.1.clone(),
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
            let cached = self.entries.try_cached(&key);
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
