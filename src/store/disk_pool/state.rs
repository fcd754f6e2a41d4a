//! The running and queued calls of one store, and what they tell about its disk.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::job::{DiskOperation, ErasedDiskJob};
use super::queue::DiskQueue;
use crate::fair_queue::ClientId;

/// Maximum number of calls of one store that block on its disk at once. Further calls are queued.
pub(super) const MAX_THREADS_PER_STORE: usize = 64;

/// Threads that a store may have regardless of the other stores.
pub(super) const RESERVED_THREADS: usize = 4;

/// A thread ends when it has been idle for this long.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a stalled store is probed by one call. A probe is needed because the running calls may hang
/// forever on one bad file.
pub(super) const STALL_PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of calls for the same operation that have run for the stall time. At this number, only that operation
/// hangs, and further calls for it would take the threads of all others.
pub(super) const MAX_STALLED_PER_OPERATION: usize = 4;

/// Length below which the queue is not searched for abandoned calls.
const MIN_PURGE_LEN: usize = 1024;

/// Minimum interval between two searches of a full queue.
const PURGE_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct DiskPoolState {
    pub(super) queue: DiskQueue,
    /// Threads beyond [`RESERVED_THREADS`] that this store and the others may still start.
    pub(super) free_shared_threads: Arc<AtomicUsize>,
    pub(super) threads: usize,
    /// Threads that wait for work and have not been woken.
    pub(super) idle: usize,
    /// Threads that have been woken but do not run yet.
    pub(super) woken: usize,
    /// Threads that have been started but do not run yet.
    pub(super) starting: usize,
    /// Minimum number of idle threads since the given time. Threads are woken in turn, so no single thread is ever idle
    /// for [`IDLE_TIMEOUT`].
    pub(super) min_idle: (usize, Instant),
    /// Running calls, at most one per thread.
    pub(super) running: Vec<RunningCall>,
    /// Number of jobs started so far.
    pub(super) started_calls: u64,
    /// Time when a job last ended, or started while none was running.
    pub(super) last_progress: Instant,
    /// Time of the last probe of a stalled store.
    pub(super) last_stall_probe: Option<Instant>,
    /// Time of the last search of the queue for abandoned calls, and the queue length at which the next search is due.
    pub(super) last_purge: Instant,
    pub(super) purge_at_len: usize,
    pub(super) is_closed: bool,
}

/// A call that occupies a thread.
pub(super) struct RunningCall {
    pub(super) id: u64,
    pub(super) operation: Option<DiskOperation>,
    pub(super) started: Instant,
    /// Held by the caller while it waits.
    pub(super) waiter: Weak<AtomicBool>,
    /// Client that made the call.
    pub(super) client: ClientId,
}

impl DiskPoolState {
    /// Returns the number of threads that the store may have now, including the existing ones.
    pub(super) fn max_threads(&self) -> usize {
        self.threads
            .max(RESERVED_THREADS)
            .saturating_add(self.free_shared_threads.load(Ordering::Relaxed))
            .min(MAX_THREADS_PER_STORE)
    }

    /// Returns true if another thread may be started.
    pub(super) fn may_add_thread(&self) -> bool {
        self.threads < self.max_threads()
    }

    /// Counts another thread if one may be started. Returns true if so.
    pub(super) fn add_thread(&mut self) -> bool {
        let take_shared =
            || self.free_shared_threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
        let may_add =
            self.threads < MAX_THREADS_PER_STORE && (self.threads < RESERVED_THREADS || take_shared().is_ok());
        self.threads += usize::from(may_add);
        may_add
    }

    /// Counts one thread less.
    pub(super) fn remove_thread(&mut self) {
        if self.threads > RESERVED_THREADS {
            self.free_shared_threads.fetch_add(1, Ordering::Relaxed);
        }
        self.threads -= 1;
    }

    pub(super) fn is_stalled(&self, stall_after: Duration) -> bool {
        !self.running.is_empty() && self.last_progress.elapsed() > stall_after
    }

    pub(super) fn has_surplus_thread(&mut self) -> bool {
        let (min_idle, period_start) = self.min_idle;
        let is_period_over = period_start.elapsed() >= IDLE_TIMEOUT;
        let next = if min_idle == 0 { (self.idle, Instant::now()) } else { (min_idle - 1, period_start) };
        self.min_idle = if is_period_over { next } else { self.min_idle };
        is_period_over && min_idle > 0
    }

    /// Returns true if every thread that a call of `client` may use hangs.
    pub(super) fn all_threads_stalled_for(&self, client: ClientId, stall_after: Duration) -> bool {
        let is_full = self.running.len() >= self.max_threads() && self.is_stalled(stall_after);
        is_full || (self.queue.is_stalled(client, stall_after) && !self.queue.may_run(client, self.max_threads()))
    }

    /// Removes abandoned calls from the queue, whenever it has doubled in length or is full. Abandoned calls therefore
    /// never greatly outnumber the others, and each call is examined only a few times.
    pub(super) fn purge_abandoned(&mut self, is_full: bool) -> Vec<Box<dyn ErasedDiskJob>> {
        // The queue has become shorter since the last search.
        self.purge_at_len = self.purge_at_len.min(self.queue.len().saturating_mul(4).max(MIN_PURGE_LEN));
        if self.queue.len() < self.purge_at_len && !(is_full && self.last_purge.elapsed() >= PURGE_INTERVAL) {
            return Vec::new();
        }
        let abandoned = self.queue.take_abandoned();
        self.last_purge = Instant::now();
        self.purge_at_len = self.queue.len().saturating_mul(2).max(MIN_PURGE_LEN);
        abandoned
    }

    /// Returns true if a call of `client` may probe a stalled store.
    pub(super) fn claim_stall_probe(&mut self, client: ClientId) -> bool {
        let may_probe = self.running.len() < self.max_threads()
            && self.queue.may_run(client, self.max_threads())
            && self.last_stall_probe.is_none_or(|probed_at| probed_at.elapsed() > STALL_PROBE_INTERVAL);
        if may_probe {
            self.last_stall_probe = Some(Instant::now());
        }
        may_probe
    }

    pub(super) fn calls_for(&self, operation: &DiskOperation) -> impl Iterator<Item = &RunningCall> {
        self.running.iter().filter(move |call| call.operation.as_ref() == Some(operation))
    }

    /// Returns true if enough threads run abandoned calls for the same operation. A caller that repeatedly gives up and
    /// retries would otherwise take one thread after another. For calls older than the deadline,
    /// [`Self::is_operation_stalled`] decides when to retry.
    pub(super) fn has_many_abandoned(&self, operation: &DiskOperation, deadline: Duration) -> bool {
        let is_abandoned = |call: &&RunningCall| call.waiter.strong_count() == 0 && call.started.elapsed() <= deadline;
        self.calls_for(operation).filter(is_abandoned).count() >= MAX_STALLED_PER_OPERATION
    }

    /// Returns true if calls for the same operation have waited in vain.
    pub(super) fn is_operation_stalled(
        &self,
        operation: &DiskOperation,
        stall_after: Duration,
        deadline: Duration,
    ) -> bool {
        let ages = || self.calls_for(operation).map(|call| call.started.elapsed());
        let is_stalled = ages().any(|age| age > deadline)
            || ages().filter(|age| *age > stall_after).count() >= MAX_STALLED_PER_OPERATION;
        // The operation is retried after exponentially growing intervals: the hanging call may have been lost while the
        // file is fine.
        let attempts = u32::try_from(ages().count()).unwrap_or(u32::MAX).min(16);
        is_stalled && ages().min().is_some_and(|youngest| youngest <= deadline.saturating_mul(1 << attempts))
    }
}
