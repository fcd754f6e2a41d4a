//! The cache of objects as stored, and of the results that are derived from them. Entries are weighed in bytes and
//! loaded in single flights. The cache also remembers that objects are missing.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use moka::policy::EvictionPolicy;

use super::budget::{Budget, CONTENTION_POLL_INTERVAL, MAX_WAIT_HOLDING_MEMORY, Permit};
use super::buffers::footprint_bytes;
use super::error::ReadError;
use super::freshness::{self, FreshSince, ValidatedAt};
use super::known_missing::{MissingKind, MissingNames};
use super::outages::RequestTimes;
use super::validated::{CacheEntry, EntrySource, Validated, max_weight_bytes};
use crate::runtime::fair_queue::FlightHandle;
use crate::store::{
    CachedStat, InlineLimit, Key, Object, ObjectData, ObjectMeta, ReadAt, Revalidation, Store, StoreError,
};
use crate::telemetry::metrics::{BudgetLabel, CacheLabel};

/// Maximum size of an object that this cache reads whole and holds. Larger objects are opened, and read in pieces.
pub(crate) const MAX_WHOLE_OBJECT_BYTES: u64 = 16 << 20;

/// Maximum size of an object that is read inline: by the call that opens it.
const INLINE_BYTES: u64 = 1 << 20;

/// Lower bound for the limit of inline reads, which is less than [`INLINE_BYTES`] if the budget is small.
const MIN_INLINE_BYTES: u64 = 64 << 10;

/// Generous estimate of the bookkeeping for one entry, in bytes.
const ENTRY_BYTES: usize = 768;

/// An object as stored.
#[derive(Debug, Clone)]
pub enum StoredObject {
    /// The object is small enough to be held in memory.
    Whole(ObjectMeta, Bytes),
    /// The object must be read in pieces.
    Large(Arc<LargeObject>),
}

impl StoredObject {
    /// Returns the object's metadata.
    pub fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Whole(meta, _) => meta,
            Self::Large(large) => &large.meta,
        }
    }
}

/// An open object that is too large to be held in memory as a whole. It is read in pieces, which share the transfer
/// budget.
#[derive(Debug)]
pub struct LargeObject {
    meta: ObjectMeta,
    reader: Arc<dyn ReadAt>,
    entries: Validated<ObjectCacheKey, ObjectEntry>,
}

impl LargeObject {
    /// Maximum number of bytes that [`Self::read_piece`] returns.
    pub const PIECE_BYTES: u64 = 256 << 10;

    /// Reads the bytes from `from` up to `to` (exclusive), at most [`Self::PIECE_BYTES`] of them.
    ///
    /// # Errors
    /// Returns a [`ReadError`] if the object can no longer be read or was truncated.
    pub async fn read_piece(&self, from: u64, to: u64) -> Result<Bytes, ReadError> {
        let piece = from..to.min(from.saturating_add(Self::PIECE_BYTES));
        let entries = &self.entries;
        let permit = entries.take_for_started(piece.end.saturating_sub(from)).await?;
        let mut reading = self.reader.read_sequential(piece, to);
        if let Ok(bytes) = tokio::time::timeout(MAX_WAIT_HOLDING_MEMORY, &mut reading).await {
            return Ok(entries.budget.own_pinned(bytes?, permit));
        }
        // The store is slow: other requests may use the memory meanwhile.
        drop(permit);
        let bytes = reading.await?;
        let permit = entries.take_for_started(bytes.len() as u64).await?;
        Ok(entries.budget.own_pinned(bytes, permit))
    }

    /// Returns the object's metadata.
    pub fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    /// Reads the whole object. The caller holds a permit for the memory.
    pub(crate) async fn read_all(&self) -> Result<Bytes, ReadError> {
        Ok(self.reader.read_at(0..self.meta.len).await?)
    }
}

/// An object that has been got from the store and does not belong to the cache yet.
pub(crate) enum BudgetedObject {
    /// Metadata and bytes, and the permit for the bytes.
    Whole(ObjectMeta, Bytes, Permit),
    /// An open object, which is larger than the limit of inline reads.
    Large(Arc<LargeObject>),
}

impl BudgetedObject {
    /// Creates an object with the permit under which it was read. Gives back the part of the permit that exceeds it.
    fn whole(meta: ObjectMeta, bytes: Bytes, mut permit: Permit) -> Self {
        permit.shrink(bytes.len() as u64);
        Self::Whole(meta, bytes, permit)
    }
}

/// Key of the object cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ObjectCacheKey {
    /// A stored object: container and key.
    Stored(u32, Key),
    /// A result derived from stored blocks, identified by a hash of the region and the derivation.
    Derived(u128),
}

/// A cached object, derived result or missing object.
#[derive(Debug)]
pub(crate) struct ObjectEntry {
    pub(crate) object: Option<StoredObject>,
    /// For a missing object: true if there is not even a directory with that name.
    pub(crate) is_name_absent: bool,
    /// For a derived result: the hash of the entity tags of the blocks from which it is derived.
    pub(crate) etags_hash: u128,
    /// True if the object is missing, or, for a derived result, one of the blocks.
    pub(crate) depends_on_missing: bool,
    /// True if the permit for the object belongs to the cache's budget, so that the cache may keep the object.
    pub(crate) is_cacheable: bool,
    pub(crate) validated_at: ValidatedAt,
}

impl ObjectEntry {
    pub(crate) fn missing(is_name_absent: bool, checked_at: u64) -> Self {
        let validated_at = ValidatedAt::at(checked_at);
        Self { object: None, is_name_absent, etags_hash: 0, depends_on_missing: true, is_cacheable: true, validated_at }
    }

    /// Creates an entry for a missing object that is remembered elsewhere.
    pub(crate) fn known_missing(checked_at: u64) -> Self {
        Self { is_cacheable: false, ..Self::missing(false, checked_at) }
    }

    pub(crate) fn whole(meta: ObjectMeta, bytes: Bytes, checked_at: u64) -> Self {
        Self { is_cacheable: true, ..Self::uncached(StoredObject::Whole(meta, bytes), checked_at) }
    }

    /// Creates an entry that is not cached. Only the requests that wait for its load share it.
    pub(crate) fn uncached(object: StoredObject, checked_at: u64) -> Self {
        let validated_at = ValidatedAt::at(checked_at);
        let object = Some(object);
        let (is_name_absent, depends_on_missing, is_cacheable) = (false, false, false);
        Self { object, is_name_absent, etags_hash: 0, depends_on_missing, is_cacheable, validated_at }
    }

    /// Returns the object's metadata, if there is one.
    pub(crate) fn meta(&self) -> Option<&ObjectMeta> {
        self.object.as_ref().map(StoredObject::meta)
    }

    /// Returns metadata and bytes of the object, if there is one and its bytes are in memory.
    pub(crate) fn whole_object(&self) -> Option<(&ObjectMeta, &Bytes)> {
        match &self.object {
            Some(StoredObject::Whole(meta, bytes)) => Some((meta, bytes)),
            Some(StoredObject::Large(_)) | None => None,
        }
    }

    pub(crate) fn version(&self) -> Option<u64> {
        self.meta().map(|meta| meta.version)
    }
}

impl CacheEntry for ObjectEntry {
    fn validated_at(&self) -> &ValidatedAt {
        &self.validated_at
    }

    fn is_missing(&self) -> bool {
        self.object.is_none()
    }

    fn depends_on_missing(&self) -> bool {
        self.depends_on_missing
    }

    fn is_cacheable(&self) -> bool {
        self.is_cacheable
    }
}

/// Cache of stored objects, shared by all containers.
#[derive(Debug, Clone)]
pub(crate) struct ObjectCache {
    pub(crate) entries: Validated<ObjectCacheKey, ObjectEntry>,
    /// Decides which of the larger objects that are sent from the page cache are cached as well.
    pub(crate) admission: Arc<AdmissionFilter>,
    /// Maximum size of an object that is read inline if no request is waiting for memory.
    inline_bytes: u64,
}

impl ObjectCache {
    pub(crate) fn new(capacity_bytes: u64, policy: EvictionPolicy, transfer_bytes: u64, max_wait: Duration) -> Self {
        let cached_bytes = max_weight_bytes(capacity_bytes);
        let budget = Budget::with_cache(BudgetLabel::Transfer, cached_bytes, transfer_bytes, max_wait);
        // Permits for inline reads are small enough to fit beside a full cache, and to be granted before larger
        // permits, which wait for memory that slow clients hold.
        let inline_bytes = INLINE_BYTES.min(budget.max_overtaking_bytes().max(MIN_INLINE_BYTES)).min(transfer_bytes);
        let weigher = |key: &ObjectCacheKey, entry: &Arc<ObjectEntry>| {
            let bytes = entry.whole_object().map_or(0, |(_, bytes)| footprint_bytes(bytes.len()));
            let name = if let ObjectCacheKey::Stored(_, key) = key { key.as_str().len() } else { 0 };
            u32::try_from(bytes + name + ENTRY_BYTES).unwrap_or(u32::MAX)
        };
        let entries = Validated::new(CacheLabel::Stored, budget, policy, weigher);
        Self { entries, admission: Arc::default(), inline_bytes }
    }

    /// Returns the transfer budget: the memory of the entries and of the objects that are being read and sent.
    pub(crate) fn budget(&self) -> &Budget {
        &self.entries.budget
    }

    /// Replaces the handle to the transfer budget. If the cache holds memory, `budget` must be a handle to that
    /// memory.
    pub(crate) fn set_budget(&mut self, budget: Budget) {
        self.entries.budget = budget;
    }

    /// Returns an object for the cache, after the revalidation of its entry had this result. An object larger than
    /// `max_whole_bytes` is only opened. If the object is written or truncated while it is read, it is read once more.
    /// Also returns its [`Object::age`].
    async fn get_for_cache(
        &self,
        store: &dyn Store,
        key: &Key,
        revalidation: Revalidation,
        max_whole_bytes: u64,
    ) -> Result<Option<(StoredObject, Duration)>, ReadError> {
        let Some((object, age)) = self.get_revalidated(store, key, revalidation).await? else { return Ok(None) };
        match self.read_for_cache(store, key, object, max_whole_bytes).await {
            Err(ReadError::Store(StoreError::Truncated(_) | StoreError::Torn(_))) => {}
            result => return result.map(|object| Some((object, age))),
        }
        let Some((object, age)) = self.get(store, key).await? else { return Ok(None) };
        self.read_for_cache(store, key, object, max_whole_bytes).await.map(|object| Some((object, age)))
    }

    /// Returns an object that the cache may own. Reads an open object unless it is larger than
    /// `max_whole_bytes`.
    async fn read_for_cache(
        &self,
        store: &dyn Store,
        key: &Key,
        object: BudgetedObject,
        max_whole_bytes: u64,
    ) -> Result<StoredObject, ReadError> {
        let (meta, bytes, permit) = match object {
            BudgetedObject::Whole(meta, bytes, permit) => (meta, bytes, permit),
            BudgetedObject::Large(large) if large.meta.len > max_whole_bytes => {
                return Ok(StoredObject::Large(large));
            }
            BudgetedObject::Large(large) => {
                let permit = self.entries.take(large.meta.len).await?;
                let reading = Box::pin(large.read_all());
                let bytes = self.budget().abort_if_contended(|| store.pressure(), key, reading).await??;
                (large.meta.clone(), bytes, permit)
            }
        };
        Ok(StoredObject::Whole(meta, permit.own_for_cache(bytes, false)))
    }

    /// Returns the current object at `key`: the object that the revalidation has returned, or else one from the store.
    /// Also returns its [`Object::age`].
    pub(crate) async fn get_revalidated(
        &self,
        store: &dyn Store,
        key: &Key,
        revalidation: Revalidation,
    ) -> Result<Option<(BudgetedObject, Duration)>, ReadError> {
        match revalidation {
            Revalidation::Unchanged | Revalidation::Changed => self.get(store, key).await,
            Revalidation::Current(None) => Ok(None),
            Revalidation::Current(Some(Object { meta, age, data: ObjectData::InMemory(bytes) })) => {
                let permit = self.entries.take(bytes.len() as u64).await?;
                Ok(Some((BudgetedObject::Whole(meta, bytes, permit), age)))
            }
            Revalidation::Current(Some(Object { meta, age, data: ObjectData::Open(reader) })) => {
                Ok(Some((self.large(meta, reader), age)))
            }
        }
    }

    fn large(&self, meta: ObjectMeta, reader: Arc<dyn ReadAt>) -> BudgetedObject {
        BudgetedObject::Large(Arc::new(LargeObject { meta, reader, entries: self.entries.clone() }))
    }

    /// Returns the current limit of inline reads. It is lower while requests are waiting for memory, so that more
    /// inline reads get their memory before the requests that wait for much.
    fn current_inline_bytes(&self) -> u64 {
        if self.budget().has_waiters() {
            self.inline_bytes.min((self.inline_bytes / 4).max(MIN_INLINE_BYTES))
        } else {
            self.inline_bytes
        }
    }

    /// Gets an object from the store: reads a small one, or opens a larger one. Also returns its [`Object::age`].
    async fn get(&self, store: &dyn Store, key: &Key) -> Result<Option<(BudgetedObject, Duration)>, ReadError> {
        let (object, permit) = self.get_inline(store, key).await?;
        let Some(Object { meta, age, data }) = object else { return Ok(None) };
        let len = meta.len;
        match (data, permit) {
            (ObjectData::InMemory(bytes), Some(permit)) => {
                return Ok(Some((BudgetedObject::whole(meta, bytes, permit), age)));
            }
            // A store behind a network would have to send the object again.
            (ObjectData::Open(reader), _) if len > self.inline_bytes || store.sends_conditional_requests() => {
                return Ok(Some((self.large(meta, reader), age)));
            }
            // Neither bytes nor open files are held while the request is waiting for memory.
            (data, permit) => drop((data, permit)),
        }
        let inline = InlineLimit::new(len);
        let permit = self.entries.take(len).await?;
        let getting = store.get(key, &inline);
        let object = self.budget().abort_if_contended(|| store.pressure(), key, getting).await??;
        Ok(object.map(|Object { meta, age, data }| match data {
            ObjectData::InMemory(bytes) => (BudgetedObject::whole(meta, bytes, permit), age),
            ObjectData::Open(reader) => (self.large(meta, reader), age),
        }))
    }

    /// Gets an object, with its bytes if [`Self::current_inline_bytes`] allows as many, under a permit for that limit.
    ///
    /// Takes no permit if the store is unresponsive. Gives the permit back if the store is slow while other requests
    /// are waiting for memory. In both cases, the result is an open object without its bytes.
    async fn get_inline(&self, store: &dyn Store, key: &Key) -> Result<(Option<Object>, Option<Permit>), ReadError> {
        if store.pressure().is_unresponsive() {
            return Ok((store.get(key, &InlineLimit::new(0)).await?, None));
        }
        let inline = InlineLimit::new(self.current_inline_bytes());
        let permit = self.entries.take(inline.bytes()).await?;
        let mut getting = store.get(key, &inline);
        let mut timeout = MAX_WAIT_HOLDING_MEMORY;
        loop {
            if let Ok(object) = tokio::time::timeout(timeout, &mut getting).await {
                return Ok((object?, Some(permit)));
            }
            if self.budget().has_waiters() {
                break;
            }
            timeout = CONTENTION_POLL_INTERVAL;
        }
        inline.revoke();
        drop(permit);
        Ok((getting.await?, None))
    }
}

/// A stored object as the source of its entry.
pub(crate) struct ObjectSource<'a> {
    pub(crate) objects: &'a ObjectCache,
    pub(crate) store: &'a Arc<dyn Store>,
    pub(crate) key: &'a Key,
    /// The missing names of the container; `None` if the cache itself remembers missing objects.
    pub(crate) missing: Option<MissingNames>,
    /// The part of the object that the request needs; `None` if it needs all of it.
    pub(crate) range: Option<Range<u64>>,
}

impl EntrySource<ObjectEntry> for ObjectSource<'_> {
    fn try_is_unchanged(&self, entry: &ObjectEntry) -> Option<bool> {
        if entry.is_name_absent {
            // The comparison below cannot tell if a directory has this name.
            return Some(false);
        }
        entry.validated_at.try_is_unchanged(&**self.store, self.key, entry.version(), freshness::now())
    }

    fn known_missing(&self, fresh_since: FreshSince) -> Option<ObjectEntry> {
        let missing = self.missing.as_ref()?;
        // The kernel knows better, and costs nothing.
        if matches!(self.store.cached_stat(self.key), CachedStat::Object(_)) {
            return None;
        }
        let checked_at = missing.checked_since(MissingKind::Object, self.key, fresh_since)?;
        Some(ObjectEntry::known_missing(checked_at))
    }

    fn load(
        &self,
        stale: Option<Arc<ObjectEntry>>,
        _flight: FlightHandle,
    ) -> impl Future<Output = Result<Arc<ObjectEntry>, ReadError>> + Send + 'static {
        let objects = self.objects.clone();
        let store = Arc::clone(self.store);
        let key = self.key.clone();
        let missing = self.missing.clone();
        let range = self.range.clone().filter(|_| store.sends_conditional_requests());
        // The stale object is not held while the new one is waiting for memory.
        let stale = stale.map(|stale| (Arc::downgrade(&stale), stale.meta().cloned()));
        async move {
            let checked_at = freshness::now();
            let mut revalidation = Revalidation::Changed;
            if let Some((stale, meta)) = stale {
                let known = meta.as_ref().map(|meta| (&*meta.etag, meta.version));
                revalidation = store.revalidate(&key, known).await?;
                if let (Revalidation::Unchanged, Some(stale)) = (&revalidation, stale.upgrade()) {
                    stale.validated_at.touch(checked_at);
                    return Ok(stale);
                }
            }
            let mut max_whole_bytes = MAX_WHOLE_OBJECT_BYTES;
            if let (Revalidation::Changed, Some(range)) = (&revalidation, range) {
                revalidation = Revalidation::Current(store.open_range(&key, range).await?);
                max_whole_bytes = LargeObject::PIECE_BYTES;
            }
            Ok(Arc::new(match objects.get_for_cache(&*store, &key, revalidation, max_whole_bytes).await? {
                None => match missing {
                    Some(missing) => {
                        missing.insert(MissingKind::Object, &key, RequestTimes::since(checked_at));
                        ObjectEntry::known_missing(checked_at)
                    }
                    None => ObjectEntry::missing(false, checked_at),
                },
                Some((StoredObject::Whole(meta, bytes), age)) => {
                    ObjectEntry::whole(meta, bytes, freshness::compared_at(checked_at, age))
                }
                Some((large @ StoredObject::Large(_), age)) => {
                    ObjectEntry::uncached(large, freshness::compared_at(checked_at, age))
                }
            }))
        }
    }
}

/// Number of slots of the admission filter. A version is remembered until another version takes its slot.
const SLOTS: usize = 4096;

/// The filter admits one object in this many repeated requests. The number is large, so that a client that repeatedly
/// reads more data than the cache holds does not flush the cache.
const ADMIT_EVERY: usize = 32;

/// Admission filter of the cache, which admits only objects that are requested repeatedly. It is a direct-mapped table
/// with the versions of recently requested objects. If two versions share a slot, each request for one forgets the
/// other, which delays the admission of both.
///
/// The atomics are relaxed: no other memory depends on them, and `swap` and `fetch_add` lose no update.
#[derive(Debug)]
pub(crate) struct AdmissionFilter {
    slots: Box<[AtomicU64]>,
    repeat_count: AtomicUsize,
}

impl Default for AdmissionFilter {
    fn default() -> Self {
        Self { slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(), repeat_count: AtomicUsize::new(0) }
    }
}

impl AdmissionFilter {
    /// Records a request for an object with this version. Returns true if the object should be cached. The first
    /// request for a version always returns false.
    pub(crate) fn record_and_admit(&self, version: u64) -> bool {
        let slot_index = usize::try_from(version % SLOTS as u64).unwrap_or_default();
        let is_known = self.slots.get(slot_index).is_some_and(|slot| slot.swap(version, Ordering::Relaxed) == version);
        is_known && self.repeat_count.fetch_add(1, Ordering::Relaxed) % ADMIT_EVERY == ADMIT_EVERY - 1
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use async_trait::async_trait;

    use super::*;

    #[derive(Debug)]
    struct Zeros;

    #[async_trait]
    impl ReadAt for Zeros {
        async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
            Ok(vec![0; usize::try_from(range.end - range.start).unwrap()].into())
        }
    }

    #[tokio::test]
    async fn a_piece_of_a_started_response_waits_longer_for_memory() {
        let objects = ObjectCache::new(0, EvictionPolicy::lru(), 1 << 20, Duration::from_millis(20));
        let meta = ObjectMeta { len: 32 << 20, modified: None, etag: "\"x\"".into(), version: 1 };
        let BudgetedObject::Large(large) = objects.large(meta, Arc::new(Zeros)) else { panic!("it is large") };
        let held_permit = objects.entries.take(1 << 20).await.unwrap();
        assert!(objects.entries.take(1 << 10).await.is_err());
        let release = async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            drop(held_permit);
        };
        let (piece, ()) = tokio::join!(large.read_piece(0, 1 << 10), release);
        assert_eq!(piece.unwrap().len(), 1 << 10);
    }

    #[test]
    fn a_version_requested_once_is_not_admitted() {
        let filter = AdmissionFilter::default();
        assert!((1..10_000).all(|version| !filter.record_and_admit(version)));
    }

    #[test]
    fn every_32nd_repeated_request_is_admitted() {
        let filter = AdmissionFilter::default();
        let admitted_count = (0..=320).filter(|request| filter.record_and_admit(1 + request % 2)).count();
        assert_eq!(admitted_count, 9);
    }
}
