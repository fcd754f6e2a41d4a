//! Cache of objects as stored and of the results that `derived` makes from them. It is weighed in bytes, loads in
//! single flights and remembers missing objects.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moka::future::Cache;

use super::admission_filter::AdmissionFilter;
use super::budget::Budget;
use super::fetch::{FetchedObject, inline_bytes};
use super::footprint;
use super::freshness::{self, Freshness, ValidatedAt};
use super::instrument::instrument;
use super::large_object::{LargeObject, WeakLargeObject};
use super::permit::Permit;
use super::single_flight::run_single_flight;
use super::{CacheSettings, ReadError, acquire_with_eviction, invalidate_if_same, weighted_cache};
use crate::fair_queue::{self, SingleFlight};
use crate::metrics::{self, LookupResult, StoreOperation};
use crate::store::{Key, ObjectMeta, Store};

pub(super) const CACHE: metrics::CacheLabel = metrics::CacheLabel::Stored;

/// Maximum size of an object that is read whole and may be cached. Larger ones are read in pieces.
pub(super) const MAX_WHOLE_OBJECT_BYTES: u64 = 16 << 20;

/// Generous estimate of the bookkeeping of one entry, in bytes.
const ENTRY_BYTES: usize = 768;

/// Maximum number of attempts of a request whose object keeps changing.
pub(super) const ATTEMPTS: usize = 3;

/// An object as stored.
#[derive(Debug, Clone)]
pub enum StoredObject {
    /// The object is small enough to be held in memory.
    Whole(ObjectMeta, Bytes),
    /// The object must be read in pieces.
    Large(LargeObject),
}

impl StoredObject {
    /// Returns the object's metadata.
    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Whole(meta, _) => meta,
            Self::Large(large) => large.meta(),
        }
    }
}

#[derive(Debug)]
pub(super) struct ObjectEntry {
    pub(super) object: Option<(ObjectMeta, Bytes)>,
    /// True if neither an object nor a directory has this name.
    pub(super) is_name_absent: bool,
    pub(super) validated_at: ValidatedAt,
}

/// Key of the object cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum ObjectCacheKey {
    /// A stored object: container and key.
    Stored(u32, Key),
    /// A result derived from stored blocks, identified by a hash of the region and the derivation.
    Derived(u128),
}

/// Outcome of a load that leaves nothing to cache. The cache drops it some time later, perhaps only when it is next
/// used. It must therefore not keep a file open.
#[derive(Debug)]
pub(super) enum UncachedObject {
    Failed(ReadError),
    /// The object, [retained](fair_queue::retain_for_waiters) for the waiters, and the moment before it was opened.
    Large(WeakLargeObject, u64),
    /// The load would block and must not.
    WouldBlock,
}

/// Input for decoding a stored object.
pub(super) enum DecodeSource {
    /// Bytes from the cache, which accounts for their memory. They were current at the moment `checked_at`.
    Cached { meta: ObjectMeta, bytes: Bytes, checked_at: u64 },
    /// Bytes just read from the store. The permit covers them and is dropped separately, since a decoded block may
    /// share their buffer and outlive them by far.
    Read { meta: ObjectMeta, bytes: Bytes, permit: Permit },
    /// An open object, which the caller must read.
    Open(LargeObject),
    /// There was no object at this moment.
    Missing(u64),
}

/// Outcome of a load.
enum ObjectLoad {
    Entry(Arc<ObjectEntry>),
    /// The object, and the moment before it was opened.
    Large(LargeObject, u64),
    /// Another load started before this outcome was read.
    Superseded,
}

/// Cache of stored objects, shared by all containers.
#[derive(Debug, Clone)]
pub(super) struct ObjectCache {
    pub(super) cache: Cache<ObjectCacheKey, Arc<ObjectEntry>>,
    pub(super) budget: Budget,
    pub(super) lookups: metrics::LookupCounters,
    /// Admission filter for larger objects that are sent from the page cache: decides which of them are cached.
    pub(super) admission: Arc<AdmissionFilter>,
    /// Maximum size of an object that is read in the same disk pool job that opens it.
    pub(super) inline_bytes: u64,
    /// Single flights of the loads.
    pub(super) loading: SingleFlight<ObjectCacheKey>,
}

impl ObjectCache {
    pub(super) fn new(settings: CacheSettings, transfer_bytes: u64, max_wait: Duration) -> Self {
        let cache = weighted_cache(CACHE, settings, |key: &ObjectCacheKey, entry: &Arc<ObjectEntry>| {
            let bytes = entry.object.as_ref().map_or(0, |(_, bytes)| footprint::footprint_bytes(bytes.len()));
            let name = if let ObjectCacheKey::Stored(_, key) = key { key.as_str().len() } else { 0 };
            u32::try_from(bytes + name + ENTRY_BYTES).unwrap_or(u32::MAX)
        });
        let budget =
            Budget::with_cache(metrics::BudgetLabel::Transfer, settings.max_weight_bytes(), transfer_bytes, max_wait);
        let inline_bytes = inline_bytes(&budget, transfer_bytes);
        Self {
            cache,
            budget,
            lookups: metrics::LookupCounters::new(CACHE),
            admission: Arc::default(),
            inline_bytes,
            loading: SingleFlight::default(),
        }
    }

    /// Returns the same cache and budget with another longest wait for memory.
    pub(super) fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self { budget: self.budget.with_max_wait(max_wait), ..self.clone() }
    }

    /// Returns the same cache and budget for another container.
    pub(super) fn for_container(&self) -> Self {
        Self { budget: self.budget.for_container(), ..self.clone() }
    }

    /// Returns the object at `key`, no staler than `freshness` accepts; `None` if there is none.
    pub(super) async fn get(
        &self,
        container: u32,
        store: &Arc<dyn Store>,
        key: &Key,
        freshness: Freshness,
    ) -> Result<Option<StoredObject>, ReadError> {
        let fresh_since = freshness.since(key);
        let entry_key = ObjectCacheKey::Stored(container, key.clone());
        // A load that another request started may be older than this request. Then the entry is revalidated.
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.cache.get(&entry_key).await else {
                freshness.ensure_may_block().await;
                self.lookups.count(LookupResult::Miss, 1);
                match self.load(entry_key.clone(), key, store).await? {
                    ObjectLoad::Large(large, checked_at) if checked_at >= fresh_since => {
                        return Ok(Some(StoredObject::Large(large)));
                    }
                    ObjectLoad::Entry(entry) if entry.validated_at.is_fresh(fresh_since) => {
                        return Ok(entry.to_stored_object());
                    }
                    ObjectLoad::Large(..) | ObjectLoad::Entry(_) | ObjectLoad::Superseded => continue,
                }
            };
            if entry.validated_at.is_fresh(fresh_since)
                || self.revalidate_entry(&entry, &**store, key, freshness).await?
            {
                self.lookups.count(
                    if entry.object.is_some() { LookupResult::Hit } else { LookupResult::Absent },
                    freshness.lookup_weight(),
                );
                return Ok(entry.to_stored_object());
            }
            freshness.ensure_may_block().await;
            self.lookups.count(LookupResult::Stale, 1);
            invalidate_if_same(&self.cache, entry_key.clone(), &entry).await;
        }
        self.fetch(&**store, key).await
    }

    /// Returns metadata of a cached object that is no staler than `fresh_since`; `Some(None)` for a known missing
    /// object.
    pub(super) async fn peek(&self, container: u32, key: &Key, fresh_since: u64) -> Option<Option<ObjectMeta>> {
        let entry = self
            .cache
            .get(&ObjectCacheKey::Stored(container, key.clone()))
            .await
            .filter(|entry| entry.validated_at.is_fresh(fresh_since))?;
        Some(entry.object.as_ref().map(|(meta, _)| meta.clone()))
    }

    /// Returns the object at `key` for decoding: from the cache if it is fresh, otherwise from the store. It is not
    /// added to this cache, since the decoded block will be cached.
    pub(super) async fn read(
        &self,
        container: u32,
        store: &dyn Store,
        key: &Key,
        fresh_since: u64,
    ) -> Result<DecodeSource, ReadError> {
        let cached = self.cache.get(&ObjectCacheKey::Stored(container, key.clone())).await;
        // A cached "missing" is not trusted here: the request that cached it did not check that a dataset exists.
        if let Some(entry) = cached.filter(|entry| entry.validated_at.is_fresh(fresh_since))
            && let Some((meta, bytes)) = entry.object.clone()
        {
            return Ok(DecodeSource::Cached { meta, bytes, checked_at: entry.validated_at.nanoseconds() });
        }
        let checked_at = freshness::now();
        Ok(match self.fetch_once(store, key).await? {
            Some(FetchedObject::Whole(meta, bytes, permit)) => DecodeSource::Read { meta, bytes, permit },
            Some(FetchedObject::Large(large)) => DecodeSource::Open(large),
            None => DecodeSource::Missing(checked_at),
        })
    }

    /// Removes the entry at `key` if it says that there is no object.
    pub(super) async fn forget_missing(&self, container: u32, key: &Key) {
        let key = ObjectCacheKey::Stored(container, key.clone());
        if self.cache.get(&key).await.is_some_and(|entry| entry.object.is_none()) {
            self.cache.invalidate(&key).await;
        }
    }

    /// Returns true if `entry` still matches the store.
    async fn revalidate_entry(
        &self,
        entry: &ObjectEntry,
        store: &dyn Store,
        key: &Key,
        freshness: Freshness,
    ) -> Result<bool, ReadError> {
        if entry.is_name_absent {
            // A directory is not an object either, and would pass for unchanged.
            return Ok(false);
        }
        let checked_at = freshness::now();
        if let Some(is_unchanged) = entry.validated_at.try_revalidate(store, key, entry.version(), checked_at) {
            return Ok(is_unchanged);
        }
        freshness.ensure_may_block().await;
        let is_unchanged = entry.version()
            == instrument(StoreOperation::Head, store.backend(), store.head(key)).await?.map(|meta| meta.version);
        if is_unchanged {
            entry.validated_at.touch(checked_at);
        }
        Ok(is_unchanged)
    }

    /// Takes a permit of the transfer budget, which covers the whole cache and the objects in flight.
    pub(super) async fn take(&self, bytes: u64) -> Result<Permit, ReadError> {
        acquire_with_eviction(&self.cache, &self.budget, bytes, self.budget.take(bytes)).await
    }

    /// As [`Self::take`], for a response that has started.
    pub(super) async fn take_for_started(&self, bytes: u64) -> Result<Permit, ReadError> {
        let acquire = self.budget.take_within(bytes, self.budget.started_wait());
        acquire_with_eviction(&self.cache, &self.budget, bytes, acquire).await
    }

    /// Returns the number of cached bytes, for the metrics page.
    pub(super) fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }

    /// Loads an object into the cache, in a single flight.
    async fn load(
        &self,
        entry_key: ObjectCacheKey,
        key: &Key,
        store: &Arc<dyn Store>,
    ) -> Result<ObjectLoad, ReadError> {
        let (this, key, store) = (self.clone(), key.clone(), Arc::clone(store));
        let load = run_single_flight(&self.loading, entry_key.clone(), async move {
            let checked_at = freshness::now();
            let fetch = || async {
                match this.fetch(&*store, &key).await {
                    Ok(Some(StoredObject::Large(large))) => {
                        Err(UncachedObject::Large(large.retain_for_waiters(), checked_at))
                    }
                    Ok(Some(StoredObject::Whole(meta, bytes))) => Ok(Arc::new(ObjectEntry {
                        object: Some((meta, bytes)),
                        is_name_absent: false,
                        validated_at: ValidatedAt::at(checked_at),
                    })),
                    Ok(None) => Ok(Arc::new(ObjectEntry {
                        object: None,
                        is_name_absent: false,
                        validated_at: ValidatedAt::at(checked_at),
                    })),
                    Err(error) => Err(UncachedObject::Failed(error)),
                }
            };
            let result = loop {
                match this.cache.try_get_with(entry_key.clone(), fair_queue::lead(fetch())).await {
                    // The leader was a request that must not block. Try again.
                    Err(uncached) if matches!(*uncached, UncachedObject::WouldBlock) => {}
                    other => break other,
                }
            };
            // Read the outcome now, while the retained object still exists.
            let result = match result {
                Ok(entry) => Ok(ObjectLoad::Entry(entry)),
                Err(uncached) => match &*uncached {
                    UncachedObject::Large(large, checked_at) => Ok(large
                        .upgrade()
                        .map_or(ObjectLoad::Superseded, |large| ObjectLoad::Large(large, *checked_at))),
                    UncachedObject::Failed(error) => Err(error.clone()),
                    UncachedObject::WouldBlock => Err(ReadError::Internal("a load ended without a result".to_owned())),
                },
            };
            // Evicts surplus entries now, not only when the cache's own queue is full.
            this.cache.run_pending_tasks().await;
            result
        });
        load.await?
    }
}

impl ObjectEntry {
    fn to_stored_object(&self) -> Option<StoredObject> {
        self.object.clone().map(|(meta, bytes)| StoredObject::Whole(meta, bytes))
    }

    pub(super) fn version(&self) -> Option<u64> {
        self.object.as_ref().map(|(meta, _)| meta.version)
    }
}
