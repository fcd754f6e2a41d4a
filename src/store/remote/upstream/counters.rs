//! Counters of the requests of a container to its store. They are plain atomics, which the metrics read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::failure::FailureKind;
use crate::telemetry::metrics::UpstreamFirstByte;

/// Operation of a request to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::store::remote) enum UpstreamOperation {
    /// A whole object.
    Get,
    /// A part of an object.
    GetRange,
    /// Metadata of an object.
    Head,
    /// A listing that asks for at most one entry.
    Probe,
    /// A page of a listing.
    List,
}

impl UpstreamOperation {
    /// All operations.
    pub(in crate::store::remote) const ALL: [Self; 5] =
        [Self::Get, Self::GetRange, Self::Head, Self::Probe, Self::List];

    /// Returns the name of the operation, used as a metric label.
    pub(in crate::store::remote) const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::GetRange => "get_range",
            Self::Head => "head",
            Self::Probe => "probe",
            Self::List => "list",
        }
    }

    /// Returns true if a second request may be sent when the first one is slow. Pages of listings and the parts of a
    /// large object are slow by nature.
    pub(in crate::store::remote) const fn is_hedged(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Probe)
    }

    const fn index(self) -> usize {
        self as usize
    }
}

/// Result of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::store::remote) enum AttemptResult {
    /// The answer is usable.
    Success,
    /// The answer or its absence is a failure.
    Failure(FailureKind),
    /// Another attempt was faster, or the caller is gone.
    Cancelled,
}

impl AttemptResult {
    /// Number of results.
    pub(in crate::store::remote) const COUNT: usize = FailureKind::ALL.len() + 2;

    /// Returns the name of the result, used as a metric label.
    pub(in crate::store::remote) const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure(kind) => kind.name(),
            Self::Cancelled => "cancelled",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Success => 0,
            Self::Cancelled => 1,
            Self::Failure(kind) => kind as usize + 2,
        }
    }

    /// All results.
    pub(in crate::store::remote) fn all() -> impl Iterator<Item = Self> {
        [Self::Success, Self::Cancelled].into_iter().chain(FailureKind::ALL.map(Self::Failure))
    }
}

/// Counters of the requests of one container. Relaxed atomics suffice, since no other memory depends on the numbers.
#[derive(Debug)]
pub(in crate::store::remote) struct UpstreamCounters {
    operations: [OperationCounters; UpstreamOperation::ALL.len()],
    first_bytes: [UpstreamFirstByte; UpstreamOperation::ALL.len()],
    /// Requests, and bodies that are read on, which wait for their turn.
    waiting: AtomicUsize,
    held_back: AtomicU64,
}

#[derive(Debug, Default)]
struct OperationCounters {
    requests: AtomicU64,
    retries: AtomicU64,
    hedges: AtomicU64,
    hedges_won: AtomicU64,
    bytes: AtomicU64,
    results: [AtomicU64; AttemptResult::COUNT],
    broken_bodies: [AtomicU64; FailureKind::ALL.len()],
}

/// Counters of one operation at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::remote) struct OperationSnapshot {
    /// The operation.
    pub(in crate::store::remote) operation: UpstreamOperation,
    /// Attempts that began, retries and hedges included.
    pub(in crate::store::remote) requests: u64,
    /// Attempts that retried a failed one.
    pub(in crate::store::remote) retries: u64,
    /// Attempts that were sent because the first one was slow.
    pub(in crate::store::remote) hedges: u64,
    /// Hedges that answered first.
    pub(in crate::store::remote) hedges_won: u64,
    /// Bytes of bodies that were passed on. Bodies of cancelled attempts do not count.
    pub(in crate::store::remote) bytes: u64,
    /// Results of attempts that have ended.
    pub(in crate::store::remote) results: Vec<(AttemptResult, u64)>,
    /// Bodies that failed after their first byte.
    pub(in crate::store::remote) broken_bodies: Vec<(FailureKind, u64)>,
}

impl OperationSnapshot {
    /// Returns the number of attempts without those that were refused before they were sent.
    pub(super) fn sent(&self) -> u64 {
        self.requests.saturating_sub(self.result(AttemptResult::Failure(FailureKind::Refused)))
    }

    /// Returns the number of attempts with this result.
    pub(in crate::store::remote) fn result(&self, result: AttemptResult) -> u64 {
        self.results.iter().find(|(other, _)| *other == result).map_or(0, |(_, count)| *count)
    }
}

fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl UpstreamCounters {
    /// Creates counters that are 0. `container` is the label of the metrics.
    pub(in crate::store::remote) fn new(container: &str) -> Self {
        Self {
            operations: Default::default(),
            first_bytes: UpstreamOperation::ALL.map(|operation| UpstreamFirstByte::new(container, operation.name())),
            waiting: AtomicUsize::new(0),
            held_back: AtomicU64::new(0),
        }
    }

    /// Counts a request, or a body that is read on, as waiting until the result is dropped.
    pub(super) fn begin_waiting(&self) -> WaitingCount<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingCount { waiting: &self.waiting }
    }

    /// Returns the number of requests, and of bodies that are read on, which wait for their turn.
    pub(in crate::store::remote) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts a request that was not sent because of the queue or of a pause.
    pub(super) fn hold_back(&self) {
        increment(&self.held_back);
    }

    /// Returns the number of requests that were not sent because of the queue or of a pause.
    pub(in crate::store::remote) fn held_back(&self) -> u64 {
        self.held_back.load(Ordering::Relaxed)
    }

    /// Counts an attempt that is about to be sent.
    pub(super) fn begin(&self, operation: UpstreamOperation, is_hedge: bool) -> AttemptCount<'_> {
        let counters = self.of(operation);
        increment(&counters.requests);
        if is_hedge {
            increment(&counters.hedges);
        }
        AttemptCount { counters, result: AttemptResult::Cancelled }
    }

    /// Counts an attempt as a retry.
    pub(super) fn retry(&self, operation: UpstreamOperation) {
        increment(&self.of(operation).retries);
    }

    /// Counts a hedge that answered first.
    pub(super) fn hedge_won(&self, operation: UpstreamOperation) {
        increment(&self.of(operation).hedges_won);
    }

    /// Counts bytes of a body that were passed on.
    pub(super) fn add_bytes(&self, operation: UpstreamOperation, bytes: u64) {
        self.of(operation).bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a body that failed after its first byte.
    pub(super) fn broken_body(&self, operation: UpstreamOperation, kind: FailureKind) {
        if let Some(counter) = self.of(operation).broken_bodies.get(kind as usize) {
            increment(counter);
        }
    }

    /// Records the time to the first byte of an answer.
    pub(super) fn first_byte(&self, operation: UpstreamOperation, time: Duration) {
        if let Some(histogram) = self.first_bytes.get(operation.index()) {
            histogram.record(time);
        }
    }

    /// Returns the counters of all operations.
    pub(in crate::store::remote) fn snapshot(&self) -> Vec<OperationSnapshot> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let of_operation = |operation: UpstreamOperation| {
            let counters = self.of(operation);
            let result = |result: AttemptResult| (result, counters.results.get(result.index()).map_or(0, load));
            OperationSnapshot {
                operation,
                requests: load(&counters.requests),
                retries: load(&counters.retries),
                hedges: load(&counters.hedges),
                hedges_won: load(&counters.hedges_won),
                bytes: load(&counters.bytes),
                results: AttemptResult::all().map(result).collect(),
                broken_bodies: FailureKind::ALL.into_iter().zip(counters.broken_bodies.iter().map(load)).collect(),
            }
        };
        UpstreamOperation::ALL.into_iter().map(of_operation).collect()
    }

    #[expect(clippy::indexing_slicing, reason = "the array has an element for every operation")]
    fn of(&self, operation: UpstreamOperation) -> &OperationCounters {
        &self.operations[operation.index()]
    }
}

/// Counts a request as waiting until it is dropped.
#[derive(Debug)]
pub(super) struct WaitingCount<'a> {
    waiting: &'a AtomicUsize,
}

impl Drop for WaitingCount<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts the result of an attempt when it is dropped; without a result, it was cancelled.
#[derive(Debug)]
pub(super) struct AttemptCount<'a> {
    counters: &'a OperationCounters,
    result: AttemptResult,
}

impl AttemptCount<'_> {
    /// Sets the result.
    pub(super) fn end(mut self, result: AttemptResult) {
        self.result = result;
    }
}

impl Drop for AttemptCount<'_> {
    fn drop(&mut self) {
        if let Some(counter) = self.counters.results.get(self.result.index()) {
            increment(counter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_are_refused_before_they_are_sent_do_not_count_as_sent() {
        let counters = UpstreamCounters::new("test");
        for result in [AttemptResult::Success, AttemptResult::Failure(FailureKind::Refused), AttemptResult::Cancelled] {
            counters.begin(UpstreamOperation::Get, false).end(result);
        }
        let get = counters.snapshot().into_iter().find(|it| it.operation == UpstreamOperation::Get).unwrap();
        assert_eq!((get.requests, get.sent()), (3, 2));
    }
}
