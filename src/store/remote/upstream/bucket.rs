//! State of a bucket: its limit of requests, its latencies, and its budgets of additional requests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::concurrency_limit::{ConcurrencyLimit, ConcurrencyPermit};
use super::counters::UpstreamOperation;
use super::failure::UpstreamFailure;
use super::latency_histogram::LatencyHistogram;
use super::ratio_budget::RatioBudget;
use super::retry::{self, RetryCount};

/// Share of the times to the first byte after which a request is hedged, in thousandths.
const HEDGE_QUANTILE: u32 = 950;

/// Number of times that must be known before requests are hedged.
const MIN_HEDGE_SAMPLES: u32 = 64;

/// Shortest time after which a request is hedged. Below it, the scheduler's delays outweigh those of the store.
const MIN_HEDGE_DELAY: Duration = Duration::from_millis(5);

/// Hedges per thousand requests.
const HEDGE_PERMILLE: u32 = 50;

/// Maximum number of hedges in a row.
const HEDGE_BURST: u32 = 10;

/// Retries and hedges per thousand requests.
const EXTRA_PERMILLE: u32 = 100;

/// Maximum number of retries and hedges in a row. Half of it may be sent at the start.
const EXTRA_BURST: u32 = 20;

/// Information about a request that only its caller has.
#[derive(Debug, Clone)]
pub(in crate::store::remote) struct UpstreamContext {
    /// Operation of the request.
    pub(in crate::store::remote) operation: UpstreamOperation,
    /// Time at which the caller gives up.
    pub(in crate::store::remote) deadline: Instant,
    /// Number of retries of the operation.
    pub(in crate::store::remote) retries: RetryCount,
}

/// State of one bucket, which all its containers share.
#[derive(Debug)]
pub(in crate::store::remote) struct UpstreamBucket {
    pub(super) limit: Arc<ConcurrencyLimit>,
    /// Times to the first byte, by operation.
    latencies: [Mutex<LatencyHistogram>; UpstreamOperation::ALL.len()],
    hedges: RatioBudget,
    extra_requests: RatioBudget,
}

impl UpstreamBucket {
    /// Creates the state of a bucket to which no request has been sent. At most `max_concurrency` requests are in
    /// flight at once.
    pub(in crate::store::remote) fn new(max_concurrency: usize) -> Self {
        Self {
            limit: Arc::new(ConcurrencyLimit::new(max_concurrency)),
            latencies: Default::default(),
            hedges: RatioBudget::new(HEDGE_PERMILLE, 0, HEDGE_BURST),
            extra_requests: RatioBudget::new(EXTRA_PERMILLE, EXTRA_BURST / 2, EXTRA_BURST),
        }
    }

    /// Returns the time to wait before an operation that failed is retried, or `None` if the failure is final.
    pub(super) fn retry_delay(&self, failure: &UpstreamFailure, context: &UpstreamContext) -> Option<Duration> {
        retry::next_delay(failure, &context.retries, &self.extra_requests, context.deadline)
    }

    /// Counts an operation that is not a retry. The budgets of additional requests are shares of these operations.
    pub(super) fn deposit(&self, operation: UpstreamOperation) {
        self.extra_requests.deposit();
        if operation.is_hedged() {
            self.hedges.deposit();
        }
    }

    /// Returns the time after which a second request is sent, or `None` if too little is known.
    pub(super) fn hedge_delay(&self, operation: UpstreamOperation) -> Option<Duration> {
        if !operation.is_hedged() {
            return None;
        }
        let latencies = self.latencies.get(operation as usize)?.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = latencies.len() >= MIN_HEDGE_SAMPLES;
        is_known.then(|| latencies.quantile(HEDGE_QUANTILE)).flatten().map(|delay| delay.max(MIN_HEDGE_DELAY))
    }

    /// Returns the permit of a hedge if one may be sent now.
    pub(super) fn begin_hedge(&self) -> Option<ConcurrencyPermit> {
        if self.limit.is_throttled() {
            return None;
        }
        let permit = self.limit.try_acquire()?;
        if !self.hedges.try_take() {
            return None;
        }
        if !self.extra_requests.try_take() {
            self.hedges.put_back();
            return None;
        }
        Some(permit)
    }

    /// Records a time to the first byte for the quantile.
    pub(super) fn record_latency(&self, operation: UpstreamOperation, time: Duration) {
        if let Some(latencies) = self.latencies.get(operation as usize) {
            latencies.lock().unwrap_or_else(PoisonError::into_inner).record(time);
        }
    }
}
