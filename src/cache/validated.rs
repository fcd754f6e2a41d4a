//! A cache whose entries are compared with their source before they are used, and are loaded in single flights.
//!
//! [`Validated::get`] looks up an entry, compares it with its source, and calls [`Validated::load`] if there is no
//! entry or it has changed. The rest of the file is used by these two functions, or does the same without waiting. The
//! memory for the entries is taken in `eviction`.

use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use moka::future::Cache;
use moka::notification::RemovalCause;
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::budget::Budget;
use super::error::ReadError;
use super::freshness::{FreshSince, ValidatedAt};
use super::read_options::ReadOptions;
use crate::runtime::fair_queue::{ClientId, FlightEnd, FlightHandle, Leader, SingleFlight, Waiter};
use crate::telemetry::metrics::{self, CacheLabel, LookupCounters, LookupResult, QueueLabel, QueueWaitTimer};
use crate::telemetry::trace;

/// Maximum number of shared loads of a request. Each may turn out stale if it began before the request did. After that,
/// the request loads the entry alone.
const ATTEMPTS: usize = 3;

/// Maximum number of entries of a cache that are revalidated in the background at the same time. Further stale entries
/// are used without a revalidation, until one of these has ended.
const MAX_BACKGROUND_LOADS: usize = 64;

/// A value that [`Validated`] caches.
pub(crate) trait CacheEntry: Send + Sync + 'static {
    /// Returns the time at which the entry was last known to equal its source.
    fn validated_at(&self) -> &ValidatedAt;

    /// Returns true if the entry says that there is no such object in the source.
    fn is_missing(&self) -> bool;

    /// Returns true if the entry, or something that it is derived from, is missing from the source.
    fn depends_on_missing(&self) -> bool {
        self.is_missing()
    }

    /// Returns true if the entry was compared with its source at `fresh_since` or later.
    fn is_fresh(&self, fresh_since: FreshSince) -> bool {
        let moment = match (self.is_missing(), self.depends_on_missing()) {
            (true, _) => fresh_since.missing,
            // It is derived from objects that exist, too.
            (false, true) => fresh_since.missing.max(fresh_since.found),
            (false, false) => fresh_since.found,
        };
        self.validated_at().is_fresh(moment)
    }

    /// Returns true if the entry is fresh, or may still be used while it is revalidated in the background.
    fn is_usable(&self, fresh_since: FreshSince) -> bool {
        self.is_fresh(fresh_since) || !self.depends_on_missing() && self.validated_at().is_fresh(fresh_since.usable)
    }

    /// Returns true if the entry may be cached. Otherwise only the requests that wait for its load get the entry.
    fn is_cacheable(&self) -> bool {
        true
    }
}

/// The source of one entry. It loads the entry, and tells if a cached entry is still current.
pub(crate) trait EntrySource<V> {
    /// Returns true if `entry` still equals its source. Returns `None` if the comparison would block.
    fn try_is_unchanged(&self, entry: &V) -> Option<bool>;

    /// Returns an entry for an object that is known to be missing, although the cache has no entry for it.
    fn known_missing(&self, _fresh_since: FreshSince) -> Option<V> {
        None
    }

    /// Loads the entry. If there is a cached entry, `stale`, and it still equals the source, returns `stale`. `flight`
    /// tells if requests are waiting for the result.
    fn load(
        &self,
        stale: Option<Arc<V>>,
        flight: FlightHandle,
    ) -> impl Future<Output = Result<Arc<V>, ReadError>> + Send + 'static;
}

/// A cache of entries that may become out of date. An entry is loaded once for all requests that want it at the same
/// time. Errors are not cached. Clones share the entries.
///
/// A flight itself hands its result to all of its waiters, so requests share even an entry that is not cached.
pub(crate) struct Validated<K: Eq + Hash, V> {
    pub(super) map: Cache<K, Arc<V>>,
    flights: SingleFlight<K, Result<Arc<V>, ReadError>>,
    lookups: LookupCounters,
    /// One permit for each entry that may be revalidated in the background.
    background: Arc<Semaphore>,
    /// Budget for the memory of the entries, and of values that are being loaded or sent without being cached.
    pub(super) budget: Budget,
}

impl<K: Eq + Hash, V> fmt::Debug for Validated<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Validated").finish_non_exhaustive()
    }
}

impl<K: Eq + Hash, V> Clone for Validated<K, V> {
    fn clone(&self) -> Self {
        Self {
            map: self.map.clone(),
            flights: self.flights.clone(),
            lookups: self.lookups.clone(),
            background: Arc::clone(&self.background),
            budget: self.budget.clone(),
        }
    }
}

impl<K: Clone + Eq + Hash + Send + Sync + 'static, V: CacheEntry> Validated<K, V> {
    /// Creates an empty cache that may fill [`Budget::cached_bytes`] of `budget`.
    pub(crate) fn new(
        label: CacheLabel,
        budget: Budget,
        policy: EvictionPolicy,
        weigher: fn(&K, &Arc<V>) -> u32,
    ) -> Self {
        let map = weighted_cache(label, budget.cached_bytes, policy, weigher);
        let (flights, lookups) = (SingleFlight::default(), LookupCounters::new(label));
        Self { map, flights, lookups, background: Arc::new(Semaphore::new(MAX_BACKGROUND_LOADS)), budget }
    }

    /// Returns the entry of `key` after a comparison with its source at `fresh_since` or later. Loads the entry if it
    /// is not cached or has changed. An entry that is only [usable](CacheEntry::is_usable) is returned at once, and
    /// revalidated in the background.
    pub(crate) async fn get(
        &self,
        key: &K,
        options: ReadOptions,
        fresh_since: FreshSince,
        source: &impl EntrySource<V>,
    ) -> Result<Arc<V>, ReadError> {
        let cached = self.map.get(key).await;
        if let Some(entry) = &cached
            && (self.is_fresh_or_renewed(key, entry, fresh_since, source)
                || source.try_is_unchanged(entry) == Some(true))
        {
            let result = if entry.is_missing() { LookupResult::Absent } else { LookupResult::Hit };
            self.lookups.count(result, options.lookup_weight());
            return Ok(Arc::clone(entry));
        }
        if cached.is_none()
            && let Some(missing) = source.known_missing(fresh_since)
        {
            self.lookups.count(LookupResult::Absent, options.lookup_weight());
            return Ok(Arc::new(missing));
        }
        // A load waits for the source and for memory.
        options.pend_if_nonblocking().await;
        let Some(stale) = cached else {
            self.lookups.count(LookupResult::Miss, 1);
            return self.load(key, fresh_since, source).await;
        };
        let stale_entry = Arc::downgrade(&stale);
        let is_missing = stale.is_missing();
        // The stale entry is not held while its successor is waiting for memory.
        drop(stale);
        let loaded = self.load(key, fresh_since, source).await?;
        self.count_revalidation(is_missing, Arc::as_ptr(&loaded) == stale_entry.as_ptr());
        Ok(loaded)
    }

    /// Loads the entry of `key` in a single flight, after a lookup did not find it or found it stale. The result is as
    /// fresh as that of [`Self::get`].
    pub(crate) async fn load(
        &self,
        key: &K,
        fresh_since: FreshSince,
        source: &impl EntrySource<V>,
    ) -> Result<Arc<V>, ReadError> {
        // Another request may have started the flight before this request began. The result is then compared again.
        let mut attempts = 0;
        while attempts < ATTEMPTS {
            let (waiter, leader) = self.flights.join(key.clone());
            let entry = match self.lead_or_wait(key, fresh_since, source, waiter, leader).await {
                FlightEnd::Done(Ok(entry)) => entry,
                // The load was given up because it had no waiters, just before this request joined it.
                FlightEnd::Done(Err(error)) if error.is_cancelled() => continue,
                FlightEnd::Done(Err(error)) => return Err(error),
                // Another request led the flight and gave up. In the next round, this request may lead a new one.
                FlightEnd::Abandoned => continue,
                FlightEnd::Panicked(message) => return Err(ReadError::Internal(message)),
            };
            // An object of the disk cache, or a result that is derived from usable blocks, may be usable and not fresh.
            if entry.is_usable(fresh_since) || source.try_is_unchanged(&entry) == Some(true) {
                return Ok(entry);
            }
            attempts += 1;
        }
        let (waiter, leader) = self.flights.unshared(key.clone());
        match self.lead_or_wait(key, fresh_since, source, waiter, Some(leader)).await {
            FlightEnd::Done(result) => result,
            FlightEnd::Abandoned => Err(ReadError::Internal("a load ended without a result".to_owned())),
            FlightEnd::Panicked(message) => Err(ReadError::Internal(message)),
        }
    }

    /// Returns true if the cached `entry` of `key` is usable. If it is not fresh, lets it be revalidated in the
    /// background.
    pub(crate) fn is_fresh_or_renewed(
        &self,
        key: &K,
        entry: &Arc<V>,
        fresh_since: FreshSince,
        source: &impl EntrySource<V>,
    ) -> bool {
        if entry.is_fresh(fresh_since) {
            return true;
        }
        let is_usable = entry.is_usable(fresh_since);
        if is_usable {
            self.revalidate_in_background(key, entry, source);
        }
        is_usable
    }

    /// Starts a flight that revalidates `entry`, and a task that waits for it. Does nothing if there is a flight of the
    /// key already, or if [`MAX_BACKGROUND_LOADS`] entries are being revalidated.
    fn revalidate_in_background(&self, key: &K, entry: &Arc<V>, source: &impl EntrySource<V>) {
        let Ok(permit) = Arc::clone(&self.background).try_acquire_owned() else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        let (waiter, Some(leader)) = self.flights.join(key.clone()) else { return };
        let flight = leader.handle().clone();
        let load = source.load(Some(Arc::clone(entry)), flight.clone());
        let work = self.clone().load_into_map(key.clone(), Some(Arc::downgrade(entry)), flight, load);
        leader.spawn(ClientId::current().scope(Box::pin(work)));
        // If it fails, the entry stays, and the next request tries again. The metrics of the store count the error.
        runtime.spawn(async move {
            waiter.wait().await;
            drop(permit);
        });
    }

    /// Starts a flight if this request is its leader, and waits for its end.
    ///
    /// The load runs in a task of its own, which is aborted when the last waiting request is cancelled. The task gets
    /// memory and cores as soon as it is the turn of a client that waits for it.
    async fn lead_or_wait(
        &self,
        key: &K,
        fresh_since: FreshSince,
        source: &impl EntrySource<V>,
        waiter: Waiter<K, Result<Arc<V>, ReadError>>,
        leader: Option<Leader<K, Result<Arc<V>, ReadError>>>,
    ) -> FlightEnd<Result<Arc<V>, ReadError>> {
        let wait_timer = leader.is_none().then(|| QueueWaitTimer::begin(QueueLabel::Load));
        if let Some(leader) = leader {
            // Another flight may have ended since the lookup.
            let mut cached = self.map.get(key).await;
            let fresh = cached.clone().filter(|entry| entry.is_fresh(fresh_since));
            let missing = || cached.is_none().then(|| source.known_missing(fresh_since)).flatten().map(Arc::new);
            if let Some(entry) = fresh.or_else(missing) {
                leader.finish(Ok(Arc::clone(&entry)));
                return FlightEnd::Done(Ok(entry));
            }
            if let Some(changed) = cached.take_if(|entry| source.try_is_unchanged(entry) == Some(false)) {
                // Removed before the load, so that its memory is free while the new entry is waiting for memory.
                self.remove(key.clone(), &Arc::downgrade(&changed)).await;
            }
            let flight = leader.handle().clone();
            let replaced = cached.as_ref().map(Arc::downgrade);
            let load = source.load(cached, flight.clone());
            let work = self.clone().load_into_map(key.clone(), replaced, flight, load);
            // Boxed, because the surrounding futures would reserve space for the unboxed future twice.
            leader.spawn(ClientId::current().scope(trace::in_current_scope(Box::pin(work))));
        }
        let end = waiter.wait().await;
        if let Some(timer) = wait_timer {
            trace::finish_wait(timer);
        }
        end
    }

    /// Puts the result of `load` into the map in place of the entry `replaced`. If the load fails, the old entry stays;
    /// it is compared again before it is used.
    async fn load_into_map(
        self,
        key: K,
        replaced: Option<Weak<V>>,
        flight: FlightHandle,
        load: impl Future<Output = Result<Arc<V>, ReadError>>,
    ) -> Result<Arc<V>, ReadError> {
        let entry = load.await?;
        match replaced {
            Some(replaced) if Arc::as_ptr(&entry) == replaced.as_ptr() => return Ok(entry),
            _ if entry.is_cacheable() => self.insert(key, &entry, &flight).await,
            Some(replaced) => self.remove(key, &replaced).await,
            None => {}
        }
        // Otherwise the map would evict entries only when its queue of changes is full.
        self.evict_surplus().await;
        Ok(entry)
    }

    /// Puts `entry` into the map, unless the flight that loaded it began before an [invalidation](Self::invalidate).
    async fn insert(&self, key: K, entry: &Arc<V>, flight: &FlightHandle) {
        let insertion = self.map.entry(key).and_compute_with(|_| {
            let op = if flight.is_superseded() { Op::Nop } else { Op::Put(Arc::clone(entry)) };
            std::future::ready(op)
        });
        insertion.await;
    }

    /// Removes the entry of `key` if it is still `stale`.
    pub(crate) async fn remove(&self, key: K, stale: &Weak<V>) {
        let removal = self.map.entry(key).and_compute_with(|current| {
            let is_same = current.is_some_and(|current| Arc::as_ptr(current.value()) == stale.as_ptr());
            std::future::ready(if is_same { Op::Remove } else { Op::Nop })
        });
        removal.await;
    }

    /// Invalidates the entry of `key` after its source has changed. The cached entry is no longer used. A load that
    /// began before is not cached; only the requests that already wait for it get its result.
    ///
    /// Writes will call this function. Until there are writes, entries become stale only by comparison.
    #[cfg_attr(not(test), expect(dead_code, reason = "for writes, which come next"))]
    pub(crate) async fn invalidate(&self, key: &K) {
        self.flights.supersede(key);
        let removal = self.map.entry(key.clone()).and_compute_with(|current| {
            if let Some(current) = current {
                current.value().validated_at().invalidate();
            }
            std::future::ready(Op::Remove)
        });
        removal.await;
    }

    /// Removes the entry of `key` if it says that there is no such object.
    pub(crate) async fn forget_missing(&self, key: &K) {
        if self.map.get(key).await.is_some_and(|entry| entry.is_missing()) {
            self.map.invalidate(key).await;
        }
    }

    /// Returns the cached entry of `key`, however old.
    pub(crate) async fn cached(&self, key: &K) -> Option<Arc<V>> {
        self.map.get(key).await
    }

    /// Returns the cached entry of `key`, however old, without waiting.
    pub(crate) fn try_cached(&self, key: &K) -> Option<Arc<V>> {
        self.map.get(key).now_or_never().flatten()
    }

    /// Returns the cached entry of `key`, however old, or calls `load`, which must not block. Returns `None` if another
    /// request is loading the entry or if `load` returns `None`. After `load` has returned `None`, requests that have
    /// begun to wait for the entry load it themselves.
    pub(crate) fn try_get_or_load(&self, key: K, load: impl FnOnce(&FlightHandle) -> Option<V>) -> Option<Arc<V>> {
        let leader = self.flights.try_lead(key.clone())?;
        if let Some(entry) = self.try_cached(&key) {
            leader.finish(Ok(Arc::clone(&entry)));
            return Some(entry);
        }
        let entry = Arc::new(load(leader.handle())?);
        // If the map's queue of changes is full, the entry is not cached.
        let _ = self.insert(key, &entry, leader.handle()).now_or_never();
        leader.finish(Ok(Arc::clone(&entry)));
        Some(entry)
    }

    /// Removes the entry of `key` without waiting.
    pub(crate) fn try_remove(&self, key: &K) {
        let _ = self.map.invalidate(key).now_or_never();
    }

    /// Counts lookups that were made by [`Self::cached`] or [`Self::try_cached`].
    pub(crate) fn count(&self, result: LookupResult, count: u64) {
        if count > 0 {
            self.lookups.count(result, count);
        }
    }

    /// Counts a lookup whose cached entry had to be compared with its source. `is_missing` is true if the cached entry
    /// said that there is no such object.
    pub(crate) fn count_revalidation(&self, is_missing: bool, is_unchanged: bool) {
        if is_unchanged {
            self.lookups.count(if is_missing { LookupResult::Absent } else { LookupResult::Hit }, 1);
        } else {
            self.lookups.count(LookupResult::Stale, 1);
            self.lookups.count(LookupResult::Miss, 1);
        }
    }

    /// Evicts entries as [`Self::evict_surplus`] does, unless another task is already doing so.
    pub(crate) fn try_evict(&self) {
        let _ = self.evict_surplus().now_or_never();
    }

    /// Evicts the entries that exceed the capacity of the map. Without this call, the map evicts them later.
    pub(crate) async fn evict_surplus(&self) {
        self.map.run_pending_tasks().await;
    }

    /// Returns the weight of the entries in bytes.
    pub(crate) fn weight_bytes(&self) -> u64 {
        self.map.weighted_size()
    }
}

/// Returns the maximum weight of a cache with the configured capacity. The weight is larger by 1/64, because it
/// includes bookkeeping, and data of exactly the configured size should fit.
pub(crate) fn max_weight_bytes(capacity_bytes: u64) -> u64 {
    capacity_bytes.saturating_add(capacity_bytes / 64)
}

/// Creates a cache weighed in bytes.
pub(crate) fn weighted_cache<K: Hash + Eq + Send + Sync + 'static, V: Clone + Send + Sync + 'static>(
    label: CacheLabel,
    max_weight_bytes: u64,
    policy: EvictionPolicy,
    weigher: fn(&K, &V) -> u32,
) -> Cache<K, V> {
    Cache::builder()
        // A moka cache of capacity 0 never drops an inserted entry, even if its pending tasks are run, so the permit of
        // the entry would never be given back. A cache of 1 byte drops entries, and no entry fits into it either.
        .max_capacity(max_weight_bytes.max(1))
        .eviction_policy(policy)
        .weigher(weigher)
        .eviction_listener(move |_, _, cause| {
            if cause == RemovalCause::Size {
                metrics::cache_eviction(label);
            }
        })
        .build()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::time::Duration;

    use super::super::freshness;
    use super::*;
    use crate::telemetry::metrics::BudgetLabel;
    use metrics_exporter_prometheus::PrometheusBuilder;

    #[derive(Debug)]
    struct Entry {
        version: u64,
        is_cacheable: bool,
        validated_at: ValidatedAt,
    }

    impl CacheEntry for Entry {
        fn validated_at(&self) -> &ValidatedAt {
            &self.validated_at
        }

        fn is_missing(&self) -> bool {
            false
        }

        fn is_cacheable(&self) -> bool {
            self.is_cacheable
        }
    }

    /// A source that cannot answer without waiting.
    #[derive(Debug, Clone)]
    struct Remote(Arc<RemoteState>);

    #[derive(Debug)]
    struct RemoteState {
        version: AtomicU64,
        is_cacheable: bool,
        loads: AtomicUsize,
        revalidations: AtomicUsize,
        /// Has a permit for each request that may be answered.
        gate: Semaphore,
    }

    impl Remote {
        fn new(is_cacheable: bool) -> Self {
            let gate = Semaphore::new(Semaphore::MAX_PERMITS / 2);
            let (loads, revalidations) = Default::default();
            let version = AtomicU64::new(1);
            Self(Arc::new(RemoteState { version, is_cacheable, loads, revalidations, gate }))
        }

        fn close(&self) {
            self.0.gate.forget_permits(Semaphore::MAX_PERMITS);
        }

        fn open(&self) {
            self.0.gate.add_permits(Semaphore::MAX_PERMITS / 2);
        }

        fn set_version(&self, version: u64) {
            self.0.version.store(version, Ordering::Relaxed);
        }

        /// Returns the numbers of loads and of conditional requests.
        fn requests(&self) -> (usize, usize) {
            (self.0.loads.load(Ordering::Relaxed), self.0.revalidations.load(Ordering::Relaxed))
        }

        async fn started(&self, loads: usize) {
            while self.requests().0 < loads {
                tokio::task::yield_now().await;
            }
        }
    }

    impl EntrySource<Entry> for Remote {
        fn try_is_unchanged(&self, _entry: &Entry) -> Option<bool> {
            None
        }

        fn load(
            &self,
            stale: Option<Arc<Entry>>,
            _flight: FlightHandle,
        ) -> impl Future<Output = Result<Arc<Entry>, ReadError>> + Send + 'static {
            let this = self.clone();
            let stale = stale.map(|stale| (Arc::downgrade(&stale), stale.version));
            async move {
                let version = this.0.version.load(Ordering::Relaxed);
                let checked_at = freshness::now();
                let counter = if stale.is_some() { &this.0.revalidations } else { &this.0.loads };
                counter.fetch_add(1, Ordering::Relaxed);
                drop(this.0.gate.acquire().await);
                if version == 0 {
                    return Err(ReadError::Internal("gone".to_owned()));
                }
                let unchanged = stale.filter(|(_, known)| *known == version).and_then(|(stale, _)| stale.upgrade());
                if let Some(unchanged) = unchanged {
                    unchanged.validated_at.touch(checked_at);
                    return Ok(unchanged);
                }
                let validated_at = ValidatedAt::at(checked_at);
                Ok(Arc::new(Entry { version, is_cacheable: this.0.is_cacheable, validated_at }))
            }
        }
    }

    fn cache() -> Validated<u8, Entry> {
        let budget = Budget::with_cache(BudgetLabel::Transfer, 1 << 20, 1 << 20, Duration::ZERO);
        Validated::new(CacheLabel::Stored, budget, EvictionPolicy::lru(), |_, _| 1)
    }

    #[tokio::test]
    async fn a_stale_entry_costs_one_conditional_request_however_many_want_it() {
        let cache = cache();
        let remote = Remote::new(true);
        let first = cache.load(&1, 0.into(), &remote).await.unwrap();
        for (version, requests) in [(1, (1, 1)), (2, (1, 2))] {
            remote.set_version(version);
            let now = freshness::now();
            let gets: Vec<_> = (0..9).map(|_| cache.load(&1, now.into(), &remote)).collect();
            for entry in futures_util::future::join_all(gets).await {
                assert_eq!(entry.unwrap().version, version);
            }
            assert_eq!(remote.requests(), requests);
        }
        assert_eq!((first.version, cache.load(&1, 0.into(), &remote).await.unwrap().version), (1, 2));
        assert_eq!(remote.requests(), (1, 2), "a fresh entry costs no request");
    }

    #[tokio::test]
    async fn a_usable_entry_is_returned_at_once_and_revalidated_once_in_the_background() {
        let cache = cache();
        let remote = Remote::new(true);
        let first = cache.load(&1, 0.into(), &remote).await.unwrap();
        let usable = || FreshSince { usable: 0, ..freshness::now().into() };
        let get = |fresh_since| cache.get(&1, ReadOptions::begin(), fresh_since, &remote).now_or_never();
        for (version, revalidations) in [(1, 1), (2, 2), (0, 3), (2, 4)] {
            remote.close();
            remote.set_version(version);
            let before = cache.cached(&1).await.unwrap();
            let now = usable();
            for _ in 0..9 {
                let found = get(now).expect("it does not wait").unwrap();
                assert!(Arc::ptr_eq(&found, &before));
                tokio::task::yield_now().await;
            }
            assert_eq!(remote.requests(), (1, revalidations), "one for all nine");
            remote.open();
            while cache.background.available_permits() < MAX_BACKGROUND_LOADS {
                tokio::task::yield_now().await;
            }
            let after = cache.cached(&1).await.unwrap();
            assert_eq!(after.version, if version == 0 { before.version } else { version });
            assert_eq!(after.validated_at.is_fresh(now.found), version != 0, "a failure leaves the entry as it was");
        }
        assert_eq!(first.version, 1);
        // An entry that is too old is revalidated before it is used.
        remote.close();
        let now = freshness::now();
        assert!(get(now.into()).is_none());
        remote.open();
        assert_eq!(cache.get(&1, ReadOptions::begin(), now.into(), &remote).await.unwrap().version, 2);
    }

    #[tokio::test]
    async fn the_number_of_entries_that_are_revalidated_in_the_background_is_limited() {
        let cache = cache();
        let remote = Remote::new(true);
        for key in 0..=u8::MAX {
            cache.load(&key, 0.into(), &remote).await.unwrap();
        }
        remote.close();
        let now = FreshSince { usable: 0, ..freshness::now().into() };
        for key in 0..=u8::MAX {
            let get = cache.get(&key, ReadOptions::begin(), now, &remote);
            assert_eq!(get.now_or_never().expect("it does not wait").unwrap().version, 1);
            tokio::task::yield_now().await;
        }
        assert_eq!(remote.requests(), (256, MAX_BACKGROUND_LOADS));
        remote.open();
    }

    #[tokio::test]
    async fn a_load_begun_before_an_invalidation_never_enters_the_cache() {
        let cache = cache();
        let remote = Remote::new(true);
        remote.close();
        let mut early = cache.load(&1, 0.into(), &remote).boxed();
        assert!((&mut early).now_or_never().is_none());
        remote.started(1).await;
        // Simulates a write: the stored object changes, and its entry is invalidated.
        remote.set_version(2);
        cache.invalidate(&1).await;
        let mut late = cache.load(&1, 0.into(), &remote).boxed();
        assert!((&mut late).now_or_never().is_none());
        remote.started(2).await;
        remote.open();
        // Whichever ends first, the earlier load leaves nothing behind.
        assert_eq!(late.await.unwrap().version, 2);
        assert_eq!(early.await.unwrap().version, 1);
        assert_eq!(cache.cached(&1).await.unwrap().version, 2);
        remote.close();
        remote.set_version(3);
        cache.invalidate(&1).await;
        let mut early = cache.load(&1, 0.into(), &remote).boxed();
        assert!((&mut early).now_or_never().is_none());
        remote.started(3).await;
        cache.invalidate(&1).await;
        remote.open();
        assert_eq!(early.await.unwrap().version, 3);
        assert!(cache.cached(&1).await.is_none());
    }

    #[tokio::test]
    async fn an_invalidated_entry_is_not_used_by_those_that_still_hold_it() {
        let cache = cache();
        let remote = Remote::new(true);
        let held = cache.load(&1, 0.into(), &remote).await.unwrap();
        assert!(held.validated_at.is_fresh(0));
        cache.invalidate(&1).await;
        assert!(!held.validated_at.is_fresh(0) && cache.cached(&1).await.is_none());
    }

    #[tokio::test]
    async fn an_entry_that_is_not_cached_is_shared_by_its_waiters_and_no_longer() {
        let cache = cache();
        let remote = Remote::new(false);
        remote.close();
        let loads: Vec<_> = (0..9).map(|_| cache.load(&1, 0.into(), &remote)).collect();
        let mut loads = futures_util::future::join_all(loads);
        assert!((&mut loads).now_or_never().is_none());
        remote.open();
        let loads = loads.await;
        assert_eq!(remote.requests(), (1, 0));
        let entry = Arc::downgrade(loads[0].as_ref().unwrap());
        drop(loads);
        tokio::task::yield_now().await;
        assert!(entry.upgrade().is_none());
    }

    #[tokio::test]
    async fn an_error_is_not_cached_and_leaves_a_stale_entry_to_be_compared_again() {
        let cache = cache();
        let remote = Remote::new(true);
        let first = cache.load(&1, 0.into(), &remote).await.unwrap();
        remote.set_version(0);
        assert!(cache.load(&1, freshness::now().into(), &remote).await.is_err());
        assert!(cache.load(&2, 0.into(), &remote).await.is_err());
        assert!(cache.cached(&2).await.is_none());
        remote.set_version(1);
        let again = cache.load(&1, freshness::now().into(), &remote).await.unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(cache.load(&2, 0.into(), &remote).await.unwrap().version, 1);
    }

    #[tokio::test]
    async fn a_stale_entry_is_not_held_while_its_successor_is_loaded() {
        let cache = cache();
        let remote = Remote::new(true);
        let stale = Arc::downgrade(&cache.load(&1, 0.into(), &remote).await.unwrap());
        remote.set_version(2);
        remote.close();
        let now = freshness::now();
        let options = ReadOptions::begin();
        let mut get = cache.get(&1, options, now.into(), &remote).boxed();
        assert!((&mut get).now_or_never().is_none());
        tokio::task::yield_now().await;
        assert_eq!(stale.strong_count(), 1, "only the map holds it, which can evict it");
        remote.open();
        assert_eq!(get.await.unwrap().version, 2);
    }

    #[tokio::test]
    async fn a_request_that_waits_for_a_leader_that_gives_up_loads_the_entry_itself() {
        let cache = cache();
        let remote = Remote::new(true);
        let mut waiting = cache.load(&1, 0.into(), &remote).boxed();
        let loaded = cache.try_get_or_load(1, |flight| {
            assert!((&mut waiting).now_or_never().is_none() && flight.has_waiters());
            assert!(cache.try_get_or_load(1, |_| None).is_none());
            None
        });
        assert!(loaded.is_none());
        assert_eq!(waiting.await.unwrap().version, 1);
        assert_eq!(cache.try_get_or_load(1, |_| None).unwrap().version, 1);
        assert_eq!(remote.requests(), (1, 0));
    }

    #[tokio::test]
    async fn only_later_requests_count_as_waiting_and_only_while_they_wait() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _local = ::metrics::set_default_local_recorder(&recorder);
        let assert_waiting = |count: u32| {
            let text = recorder.handle().render();
            let line = format!("n5_queue_waiting{{queue=\"load\"}} {count}");
            assert!(text.lines().any(|actual| actual == line) || count == 0 && !text.contains("load"), "{text}");
        };
        let cache = cache();
        let remote = Remote::new(true);
        remote.close();
        let start = |key: &'static u8| {
            let mut load = cache.load(key, 0.into(), &remote).boxed();
            assert!((&mut load).now_or_never().is_none());
            load
        };
        let first = start(&1);
        assert_waiting(0);
        let second = start(&1);
        let _unrelated = start(&2);
        assert_waiting(1);
        drop(second);
        assert_waiting(0);
        assert!(recorder.handle().render().contains("n5_queue_wait_duration_seconds_count{queue=\"load\"} 1"));
        remote.open();
        assert_eq!(first.await.unwrap().version, 1);
    }
}
