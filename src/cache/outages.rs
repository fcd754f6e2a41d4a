//! Detection of outages during which a store answers that objects are missing. A file server answers 404 to everything
//! while its directory is not mounted, and so does a proxy without a backend.
//!
//! An answer "missing" counts only if no outage of more than two seconds can have been the reason. This is so if the
//! answer lies in a *period*: a sequence of requests that returned objects, each at most two seconds after the one
//! before. It must have been requested after the first of them ended, and must have arrived before the last of them
//! began. Every request that returns an object extends the period, so periods cost no request of their own.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::freshness::now;
use crate::store::{
    EntryFilter, InlineLimit, Key, Listing, Object, ObjectMeta, PageCache, Revalidation, Store, StoreError,
    StorePressure,
};

/// Longest time between two requests of a period, in nanoseconds. A shorter outage may go unnoticed.
const MAX_GAP_NANOSECONDS: u64 = 2_000_000_000;

/// Time after which a read that finds objects missing requests one that exists, so that the period does not end.
const EXTENSION_NANOSECONDS: u64 = 500_000_000;

/// Maximum number of periods that are kept. Answers in earlier ones no longer count.
const MAX_PERIODS: usize = 256;

/// The moments at which a request began and ended, in nanoseconds as returned by [`now`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestTimes {
    pub(crate) began_at: u64,
    pub(crate) ended_at: u64,
}

impl RequestTimes {
    /// Returns the times of a request that began at `began_at` and has ended now.
    pub(crate) fn since(began_at: u64) -> Self {
        Self { began_at, ended_at: now() }
    }

    /// Returns the times of a request at one moment.
    pub(crate) fn at(moment: u64) -> Self {
        Self { began_at: moment, ended_at: moment }
    }
}

/// Knowledge about the outages of one store.
#[derive(Debug, Default)]
pub(crate) struct OutageDetector {
    state: Mutex<DetectorState>,
}

#[derive(Debug, Default)]
struct DetectorState {
    /// The periods, oldest first.
    periods: VecDeque<Period>,
    /// True if an object that must exist was missing after the last period.
    is_interrupted: bool,
    /// The moment at which a read was last told to extend the period.
    extended_at: u64,
}

/// A time without outages of more than [`MAX_GAP_NANOSECONDS`].
#[derive(Debug, Clone, Copy)]
struct Period {
    /// The first request of the period.
    first: RequestTimes,
    /// The moment at which the last request of the period began.
    last_began_at: u64,
}

impl OutageDetector {
    /// Records a request that returned an object.
    pub(crate) fn record_found(&self, times: RequestTimes) {
        let mut state = self.state();
        let is_interrupted = std::mem::take(&mut state.is_interrupted);
        // An outage between the two objects is shorter than this, because both were sent after the one request began
        // and before the other one ended.
        let continues = |period: &Period| times.ended_at.saturating_sub(period.last_began_at) <= MAX_GAP_NANOSECONDS;
        match state.periods.back_mut() {
            Some(period) if !is_interrupted && continues(period) => {
                period.last_began_at = period.last_began_at.max(times.began_at);
            }
            _ => {
                if state.periods.len() >= MAX_PERIODS {
                    state.periods.pop_front();
                }
                state.periods.push_back(Period { first: times, last_began_at: times.began_at });
            }
        }
    }

    /// Records that an object was missing that must exist: there may be an outage.
    pub(crate) fn record_outage(&self) {
        self.state().is_interrupted = true;
    }

    /// Returns true if the caller should request an object that exists, because the last such request is a while ago.
    /// Only one of many callers is told so.
    pub(crate) fn is_extension_due(&self) -> bool {
        let moment = now();
        let mut state = self.state();
        let last = state.periods.back().map_or(0, |period| period.last_began_at).max(state.extended_at);
        let is_due = moment.saturating_sub(last) >= EXTENSION_NANOSECONDS;
        if is_due {
            state.extended_at = moment;
        }
        is_due
    }

    /// Returns true if an answer "missing" lies in a period, so that no outage was the reason.
    pub(crate) fn covers(&self, answer: RequestTimes) -> bool {
        let state = self.state();
        let period = state.periods.iter().rev().find(|period| period.first.ended_at <= answer.began_at);
        period.is_some_and(|period| answer.ended_at <= period.last_began_at)
    }

    fn state(&self) -> MutexGuard<'_, DetectorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store whose requests are reported to an [`OutageDetector`].
#[derive(Debug)]
pub(crate) struct MonitoredStore {
    inner: Arc<dyn Store>,
    outages: Arc<OutageDetector>,
}

impl MonitoredStore {
    pub(crate) fn new(inner: Arc<dyn Store>, outages: Arc<OutageDetector>) -> Self {
        Self { inner, outages }
    }

    /// Waits for `request` and reports it if `is_found` is true of its result.
    async fn report<T>(
        &self,
        request: impl Future<Output = Result<T, StoreError>>,
        is_found: impl FnOnce(&T) -> bool,
    ) -> Result<T, StoreError> {
        let began_at = now();
        let result = request.await?;
        if is_found(&result) {
            self.outages.record_found(RequestTimes::since(began_at));
        }
        Ok(result)
    }
}

#[async_trait]
impl Store for MonitoredStore {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        self.report(self.inner.head(key), Option::is_some).await
    }

    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<ObjectMeta>>, StoreError> {
        self.report(self.inner.head_many(keys), |metas| metas.iter().any(Option::is_some)).await
    }

    fn page_cache(&self) -> Option<&dyn PageCache> {
        self.inner.page_cache()
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        self.report(self.inner.get(key, inline), Option::is_some).await
    }

    async fn open_range(&self, key: &Key, range: Range<u64>) -> Result<Option<Object>, StoreError> {
        self.report(self.inner.open_range(key, range), Option::is_some).await
    }

    async fn revalidate(&self, key: &Key, known: Option<(&str, u64)>) -> Result<Revalidation, StoreError> {
        let is_found = |result: &Revalidation| match result {
            Revalidation::Unchanged => known.is_some(),
            Revalidation::Current(object) => object.is_some(),
            Revalidation::Changed => false,
        };
        let result = self.report(self.inner.revalidate(key, known), is_found).await?;
        if known.is_some() && matches!(result, Revalidation::Current(None)) {
            // The object may have been deleted. Holes are then requested once more without need.
            self.outages.record_outage();
        }
        Ok(result)
    }

    fn sends_conditional_requests(&self) -> bool {
        self.inner.sends_conditional_requests()
    }

    fn reports_missing_root(&self) -> bool {
        self.inner.reports_missing_root()
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        self.report(self.inner.is_directory(key), |is_directory| *is_directory).await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        let has_entries = |listing: &Option<Listing>| listing.as_ref().is_some_and(|found| !found.entries.is_empty());
        self.report(self.inner.list(key, after, limit, filter), has_entries).await
    }

    fn concurrent_reads(&self) -> usize {
        self.inner.concurrent_reads()
    }

    fn max_concurrent_reads(&self) -> usize {
        self.inner.max_concurrent_reads()
    }

    fn lists_cheaply(&self) -> bool {
        self.inner.lists_cheaply()
    }

    async fn identity(&self, key: &Key) -> Result<Option<u64>, StoreError> {
        self.inner.identity(key).await
    }

    fn pressure(&self) -> StorePressure {
        self.inner.pressure()
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.inner.probe().await
    }
}
