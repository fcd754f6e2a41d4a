//! Sends the requests of one remote root: it paces, hedges, retries, checks and counts them.
//!
//! Every attempt goes through [`UpstreamService`], which signs it afresh by the service that it wraps.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::response::Parts;
use bytes::Bytes;
use object_store::client::{HttpRequest, HttpResponseBody, HttpService};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::answer::AnswerHead;
use super::bucket::{UpstreamBucket, UpstreamContext};
use super::checked_body::{CheckedBody, HeldPermit};
use super::concurrency_limit::ConcurrencyPermit;
use super::counters::{AttemptResult, UpstreamCounters};
use super::failure::{FailureKind, UpstreamFailure};

/// Bodies up to this length keep their permit until they are read. Longer ones may be read at the pace of a slow
/// client, which must not keep others from the bucket.
const MAX_HELD_BODY_BYTES: u64 = 8 << 20;

/// Longest timeout, so that sums of times cannot overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Settings of the requests of one remote root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::remote) struct UpstreamSettings {
    /// Time without a byte after which a request fails. It covers the time to connect.
    pub(in crate::store::remote) timeout: Duration,
    /// True if slow requests are hedged.
    pub(in crate::store::remote) hedge: bool,
}

/// The HTTP client of one remote root.
pub(in crate::store::remote) struct UpstreamService<S> {
    inner: S,
    settings: UpstreamSettings,
    bucket: Arc<UpstreamBucket>,
    counters: Arc<UpstreamCounters>,
}

impl<S> fmt::Debug for UpstreamService<S> {
    /// The inner client may hold secrets.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("UpstreamService").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// An answer of the store: its head, and its body, whose first bytes have arrived.
#[derive(Debug)]
pub(in crate::store::remote) struct UpstreamResponse {
    /// Status and headers.
    pub(in crate::store::remote) parts: Parts,
    /// Body of a usable answer.
    pub(in crate::store::remote) body: HttpResponseBody,
    /// Permit of the request, until the body has been read.
    pub(in crate::store::remote) permit: HeldPermit,
    /// Beginning of the document of an answer that is not usable.
    pub(in crate::store::remote) document: Bytes,
    /// Reason why the answer is not usable.
    pub(in crate::store::remote) failure: Option<UpstreamFailure>,
}

/// Result of an attempt.
type Attempt = Result<UpstreamResponse, UpstreamFailure>;

/// Returns the failure of an attempt.
fn failure_of(attempt: &Attempt) -> Option<&UpstreamFailure> {
    match attempt {
        Ok(response) => response.failure.as_ref(),
        Err(failure) => Some(failure),
    }
}

/// Returns true if another attempt would have the same result.
fn is_final(attempt: &Attempt) -> bool {
    failure_of(attempt).is_none_or(|failure| !failure.is_transient())
}

impl<S: HttpService> UpstreamService<S> {
    /// Creates a client that sends its requests to `bucket` by `inner`.
    pub(in crate::store::remote) fn new(
        inner: S,
        settings: UpstreamSettings,
        bucket: Arc<UpstreamBucket>,
        counters: Arc<UpstreamCounters>,
    ) -> Self {
        let settings = UpstreamSettings { timeout: settings.timeout.min(MAX_TIMEOUT), ..settings };
        Self { inner, settings, bucket, counters }
    }

    /// Returns the number of requests of this root that wait for their turn.
    pub(in crate::store::remote) fn waiting(&self) -> usize {
        self.counters.waiting()
    }

    /// Returns the number of requests that may be in flight to the bucket now.
    pub(in crate::store::remote) fn concurrency(&self) -> usize {
        self.bucket.limit.snapshot().limit
    }

    /// Returns the maximum number of requests that may be in flight to the bucket.
    pub(in crate::store::remote) fn max_concurrency(&self) -> usize {
        self.bucket.limit.max()
    }

    /// Returns true if the store throttled a request within the last seconds, or has asked for a pause.
    pub(in crate::store::remote) fn is_throttled(&self) -> bool {
        self.bucket.limit.is_throttled()
    }

    /// Sends a request, and retries it after failures that may pass. Returns the last answer, whatever its status.
    ///
    /// # Errors
    /// Returns a failure if there is no answer.
    pub(in crate::store::remote) async fn execute(&self, request: HttpRequest, context: &UpstreamContext) -> Attempt {
        let operation = context.operation;
        if context.retries.get() > 0 {
            self.counters.retry(operation);
        } else {
            self.bucket.deposit(operation);
        }
        loop {
            let permit = self.acquire(context.deadline).await?;
            // Boxed, so that requests that wait take little memory.
            let attempt = Box::pin(self.attempt_or_hedge(&request, context, permit)).await;
            let Some(failure) = failure_of(&attempt) else { return attempt };
            if !self.wait_to_retry(failure, context).await {
                return attempt;
            }
            self.counters.retry(operation);
        }
    }

    /// Waits until a request may be sent.
    async fn acquire(&self, deadline: Instant) -> Result<ConcurrencyPermit, UpstreamFailure> {
        let _waiting = self.counters.begin_waiting();
        let permit = self.bucket.limit.acquire(deadline).await;
        if permit.is_err() {
            self.counters.hold_back();
        }
        permit
    }

    /// Waits until an operation that failed may be retried. Returns false if the failure is final.
    ///
    /// Readers of a body call it if the body breaks off, with the context that they gave to the request.
    pub(in crate::store::remote) async fn wait_to_retry(
        &self,
        failure: &UpstreamFailure,
        context: &UpstreamContext,
    ) -> bool {
        let Some(delay) = self.bucket.retry_delay(failure, context) else { return false };
        sleep(delay).await;
        true
    }

    /// Sends a request, and the same once more if the first one is slow. The slower one is dropped, which closes its
    /// connection: what it would have sent is neither read nor counted.
    async fn attempt_or_hedge(
        &self,
        request: &HttpRequest,
        context: &UpstreamContext,
        permit: ConcurrencyPermit,
    ) -> Attempt {
        let (bucket, operation) = (&*self.bucket, context.operation);
        let delay = if self.settings.hedge { bucket.hedge_delay(operation) } else { None };
        let Some(delay) = delay else {
            return self.attempt(request.clone(), context, permit, false).await;
        };
        let started = Instant::now();
        let mut first = pin!(self.attempt(request.clone(), context, permit, false));
        if let Ok(attempt) = timeout(delay, &mut first).await {
            return attempt;
        }
        let Some(permit) = bucket.begin_hedge() else { return first.await };
        let mut hedge = Box::pin(self.attempt(request.clone(), context, permit, true));
        let (attempt, is_hedge) = tokio::select! {
            biased;
            attempt = &mut first => (attempt, false),
            attempt = &mut hedge => (attempt, true),
        };
        if is_final(&attempt) {
            if is_hedge {
                self.counters.hedge_won(operation);
                // The first attempt took at least this long. Without this time, the quantile would decrease with every
                // hedge that wins.
                bucket.record_latency(operation, started.elapsed());
            }
            return attempt;
        }
        let other = if is_hedge { first.await } else { hedge.await };
        if !is_final(&other) {
            return attempt;
        }
        if !is_hedge {
            self.counters.hedge_won(operation);
        }
        other
    }

    /// Sends a request once.
    async fn attempt(
        &self,
        request: HttpRequest,
        context: &UpstreamContext,
        permit: ConcurrencyPermit,
        is_hedge: bool,
    ) -> Attempt {
        let (bucket, operation) = (&*self.bucket, context.operation);
        let count = self.counters.begin(operation, is_hedge);
        let started = Instant::now();
        let end = context.deadline.min(started + self.settings.timeout);
        let head = timeout_at(end, AnswerHead::read(&self.inner, request)).await.unwrap_or_else(|_elapsed| {
            let detail = format!("the store sent no byte for {:.1?}", started.elapsed());
            Err(UpstreamFailure::new(FailureKind::Timeout, detail))
        });
        let failure = match &head {
            Ok(head) => head.failure.as_ref(),
            Err(failure) => Some(failure),
        };
        count.end(failure.map_or(AttemptResult::Success, |failure| AttemptResult::Failure(failure.kind)));
        if let Some(failure) = failure.filter(|failure| failure.kind == FailureKind::Throttled) {
            permit.throttled(failure.retry_after);
        } else if failure.is_none_or(|failure| failure.kind.is_regular()) {
            permit.succeeded();
            bucket.record_latency(operation, started.elapsed());
            self.counters.first_byte(operation, started.elapsed());
        }
        let AnswerHead { parts, body, first, length, document, failure } = head?;
        // A client may read a long body slowly.
        let is_held = failure.is_none() && length.is_some_and(|length| length <= MAX_HELD_BODY_BYTES);
        let permit = HeldPermit::new(is_held.then_some(permit), &bucket.limit, &self.counters);
        let body = if failure.is_some() {
            body
        } else {
            let counters = Arc::clone(&self.counters);
            let timeout = self.settings.timeout;
            let body = CheckedBody::new(body, first, length, timeout, permit.clone(), counters, operation);
            HttpResponseBody::new(body)
        };
        Ok(UpstreamResponse { parts, body, permit, document, failure })
    }
}
