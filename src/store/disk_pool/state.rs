//! State of a disk pool: the queued calls of each client, the running calls, and the threads. The ages of the running
//! calls show if the disk is stalled.
//!
//! Clients are served round-robin, so a client with any number of queued calls delays another client by at most one
//! turn.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::config::{MAX_DISK_THREADS_PER_CONTAINER, RESERVED_DISK_THREADS_PER_CONTAINER};
use crate::runtime::allocator;
use crate::runtime::fair_queue::ClientId;
use crate::store::error::LocalError;
use crate::store::key::Key;

/// A thread ends when it has been idle for this long.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which one call may probe a stalled store. Without probes, calls that hang forever on a bad file would
/// block the store even if the disk is fine.
pub(super) const STALL_PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// An operation is stalled if this many calls for it have run for the stall time. Without this limit, calls for one
/// operation that hangs would take the threads of all other operations.
pub(super) const MAX_STALLED_PER_OPERATION: usize = 4;

/// Length below which the queue is not searched for abandoned calls.
const MIN_PURGE_LEN: usize = 1024;

/// Minimum interval between two searches of a full queue.
const PURGE_INTERVAL: Duration = Duration::from_millis(50);

/// A disk operation: the name of the action and the key that it accesses.
pub(in crate::store) type DiskOperation = (&'static str, Key);

/// A job and its caller.
pub(super) struct DiskJob {
    pub(super) operation: Option<DiskOperation>,
    /// Held by the caller while it is waiting.
    pub(super) waiter: Weak<AtomicBool>,
    /// Called with `Ok(on_end)`, runs the job, calls `on_end` and then hands the result to the caller. Called with an
    /// error, hands the error to the caller instead of running the job.
    #[expect(clippy::type_complexity, reason = "only two methods call it")]
    run_or_reject: Box<dyn FnOnce(Result<&dyn Fn(), LocalError>) + Send>,
}

impl DiskJob {
    /// Creates a job. `has_started` becomes true when the job starts; the caller holds it while it is waiting.
    pub(super) fn new<T: Send + 'static>(
        operation: Option<DiskOperation>,
        job: impl FnOnce() -> T + Send + 'static,
        has_started: &Arc<AtomicBool>,
        reply: oneshot::Sender<Result<T, LocalError>>,
    ) -> Self {
        let waiter = Arc::downgrade(has_started);
        let has_started = Weak::clone(&waiter);
        let run_or_reject = Box::new(move |on_end: Result<&dyn Fn(), LocalError>| {
            let on_end = match on_end {
                Ok(on_end) => on_end,
                Err(error) => return drop(reply.send(Err(error))),
            };
            // Relaxed, since the caller only uses the flag to decide how long to wait next.
            if let Some(has_started) = has_started.upgrade() {
                has_started.store(true, Ordering::Relaxed);
            }
            let result = catch_unwind(AssertUnwindSafe(job));
            on_end();
            // After a panic, the sender is dropped without a reply, which tells the caller.
            if let Ok(value) = result {
                let _ = reply.send(Ok(value));
            }
        });
        Self { operation, waiter, run_or_reject }
    }

    /// Returns true while the caller is waiting.
    pub(super) fn has_waiter(&self) -> bool {
        self.waiter.strong_count() > 0
    }

    /// Runs the job. Calls `on_end` before the caller gets the result.
    pub(super) fn run(self, on_end: &dyn Fn()) {
        (self.run_or_reject)(Ok(on_end));
        allocator::collect_thread_heap();
    }

    /// Fails the call with `error` instead of running the job.
    pub(super) fn reject(self, error: LocalError) {
        (self.run_or_reject)(Err(error));
    }
}

/// Queued calls of all clients.
#[derive(Default)]
pub(super) struct DiskQueue {
    clients: HashMap<ClientId, ClientDiskQueue>,
    /// Clients with queued calls, in the order of their turns.
    round_robin: VecDeque<ClientId>,
    /// Number of queued calls.
    len: usize,
    /// Number of clients, except the server, with queued or running calls.
    active_clients: usize,
}

#[derive(Default)]
struct ClientDiskQueue {
    waiting: VecDeque<DiskJob>,
    running: usize,
    /// Time when a call last ended, or started while none was running.
    last_progress: Option<Instant>,
}

impl ClientDiskQueue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }
}

impl DiskQueue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a job to the end of its client's queue.
    pub(super) fn push(&mut self, client: ClientId, job: DiskJob) {
        let client_queue = self.clients.entry(client).or_default();
        if client_queue.is_idle() && client != ClientId::SERVER {
            self.active_clients += 1;
        }
        if client_queue.waiting.is_empty() {
            self.round_robin.push_back(client);
        }
        client_queue.waiting.push_back(job);
        self.len += 1;
    }

    /// Removes the newest job of the client that has the most, if that client has more than `client` would have with
    /// another job.
    pub(super) fn evict_from_longest(&mut self, client: ClientId) -> Option<DiskJob> {
        let own_len = self.clients.get(&client).map_or(0, |client_queue| client_queue.waiting.len());
        let client_queue = self.clients.values_mut().max_by_key(|client_queue| client_queue.waiting.len())?;
        if client_queue.waiting.len() <= own_len + 1 {
            return None;
        }
        self.len -= 1;
        // The client still has a job, so it keeps its turn.
        client_queue.waiting.pop_back()
    }

    /// Removes and returns the next job whose client may use one of `threads`. The job counts as running from now on.
    pub(super) fn pop(&mut self, threads: usize) -> Option<(ClientId, DiskJob)> {
        let index = self.round_robin.iter().position(|client| self.may_run(*client, threads))?;
        let client = self.round_robin.remove(index)?;
        let client_queue = self.clients.get_mut(&client)?;
        let job = client_queue.waiting.pop_front()?;
        self.len -= 1;
        if client_queue.running == 0 {
            client_queue.last_progress = Some(Instant::now());
        }
        client_queue.running += 1;
        if !client_queue.waiting.is_empty() {
            self.round_robin.push_back(client);
        }
        Some((client, job))
    }

    /// Records that a job of `client` has ended.
    pub(super) fn finish(&mut self, client: ClientId) {
        if let Some(client_queue) = self.clients.get_mut(&client) {
            client_queue.running = client_queue.running.saturating_sub(1);
            client_queue.last_progress = Some(Instant::now());
        }
        self.remove_if_idle(client);
    }

    /// Returns true if a client with queued calls may use one of `threads`.
    pub(super) fn has_runnable(&self, threads: usize) -> bool {
        self.round_robin.iter().any(|client| self.may_run(*client, threads))
    }

    /// Returns true if another call of `client` may use one of `threads`. Three quarters of the threads are divided
    /// equally among the clients. The last quarter stays free for clients without running calls.
    pub(super) fn may_run(&self, client: ClientId, threads: usize) -> bool {
        if client == ClientId::SERVER {
            return true;
        }
        let client_queue = self.clients.get(&client);
        let is_new = client_queue.is_none_or(ClientDiskQueue::is_idle);
        let max_running = (threads / 4 * 3 / (self.active_clients + usize::from(is_new)).max(1)).max(1);
        client_queue.is_none_or(|client_queue| client_queue.running < max_running)
    }

    /// Returns true if calls of `client` are running and none of its calls has ended within the last `stall_after`.
    pub(super) fn is_stalled(&self, client: ClientId, stall_after: Duration) -> bool {
        self.clients.get(&client).is_some_and(|client_queue| {
            client_queue.running > 0
                && client_queue.last_progress.is_some_and(|progress| progress.elapsed() > stall_after)
        })
    }

    /// Removes and returns the jobs for which `predicate` returns true.
    pub(super) fn take_where(&mut self, predicate: impl Fn(&DiskJob) -> bool) -> Vec<DiskJob> {
        let mut removed = Vec::new();
        for client in std::mem::take(&mut self.round_robin) {
            let Some(client_queue) = self.clients.get_mut(&client) else { continue };
            let (matching, others): (Vec<_>, Vec<_>) = client_queue.waiting.drain(..).partition(&predicate);
            client_queue.waiting = others.into();
            if !client_queue.waiting.is_empty() {
                self.round_robin.push_back(client);
            }
            self.len -= matching.len();
            removed.extend(matching);
            self.remove_if_idle(client);
        }
        removed
    }

    /// Forgets `client` if it has neither queued nor running calls.
    fn remove_if_idle(&mut self, client: ClientId) {
        if !self.clients.get(&client).is_some_and(ClientDiskQueue::is_idle) {
            return;
        }
        if client != ClientId::SERVER {
            self.active_clients = self.active_clients.saturating_sub(1);
        }
        self.clients.remove(&client);
    }
}

pub(super) struct DiskPoolState {
    pub(super) queue: DiskQueue,
    /// Number of threads beyond [`RESERVED_DISK_THREADS_PER_CONTAINER`] that all stores together may still start.
    pub(super) free_shared_threads: Arc<AtomicUsize>,
    /// Number of threads of this store.
    pub(super) threads: usize,
    /// Number of threads that wait for work and have not been woken.
    pub(super) idle: usize,
    /// Number of threads that have been woken but are not running yet.
    pub(super) woken: usize,
    /// Number of threads that have been started but are not running yet.
    pub(super) starting: usize,
    /// Minimum number of idle threads since the given time. This many threads are surplus. The idle time of a single
    /// thread would not show that: threads are woken in turn, so none is idle for [`IDLE_TIMEOUT`] while there is work.
    pub(super) min_idle: (usize, Instant),
    /// Running calls, at most one per thread.
    pub(super) running: Vec<RunningCall>,
    /// Number of jobs started so far.
    pub(super) started_calls: u64,
    /// Time when a job last ended, or started while none was running.
    pub(super) last_progress: Instant,
    /// Time of the last probe of a stalled store.
    pub(super) last_stall_probe: Option<Instant>,
    /// Time of the last search of the queue for abandoned calls.
    pub(super) last_purge: Instant,
    /// Length of the queue that triggers the next search for abandoned calls.
    pub(super) purge_at_len: usize,
    /// True once the pool has been dropped.
    pub(super) is_closed: bool,
}

/// A call that occupies a thread.
pub(super) struct RunningCall {
    pub(super) id: u64,
    pub(super) operation: Option<DiskOperation>,
    pub(super) started: Instant,
    /// Held by the caller while it is waiting.
    pub(super) waiter: Weak<AtomicBool>,
    /// Client that made the call.
    pub(super) client: ClientId,
}

impl DiskPoolState {
    /// Returns the number of threads that the store may have now, including the existing ones.
    pub(super) fn max_threads(&self) -> usize {
        self.threads
            .max(RESERVED_DISK_THREADS_PER_CONTAINER)
            .saturating_add(self.free_shared_threads.load(Ordering::Relaxed))
            .min(MAX_DISK_THREADS_PER_CONTAINER)
    }

    /// If another thread may be started, counts it and returns true.
    pub(super) fn add_thread(&mut self) -> bool {
        let take_shared =
            || self.free_shared_threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
        let may_add = self.threads < MAX_DISK_THREADS_PER_CONTAINER
            && (self.threads < RESERVED_DISK_THREADS_PER_CONTAINER || take_shared().is_ok());
        self.threads += usize::from(may_add);
        may_add
    }

    /// Counts one thread less, when a thread ends or could not be started.
    pub(super) fn remove_thread(&mut self) {
        if self.threads > RESERVED_DISK_THREADS_PER_CONTAINER {
            self.free_shared_threads.fetch_add(1, Ordering::Relaxed);
        }
        self.threads -= 1;
    }

    /// Returns true if calls are running and none has ended for `stall_after`.
    pub(super) fn is_stalled(&self, stall_after: Duration) -> bool {
        !self.running.is_empty() && self.last_progress.elapsed() > stall_after
    }

    /// Returns true if the calling thread should end, because at least one thread was idle at every moment of the last
    /// [`IDLE_TIMEOUT`].
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

    /// Removes and returns the abandoned calls of the queue if the queue is full or has doubled in length since the
    /// last search. Thus abandoned calls take a bounded part of the queue, and each call is examined only a few times.
    pub(super) fn purge_abandoned(&mut self, is_full: bool) -> Vec<DiskJob> {
        // The limit also falls if the queue has become shorter since the last search.
        self.purge_at_len = self.purge_at_len.min(self.queue.len().saturating_mul(4).max(MIN_PURGE_LEN));
        if self.queue.len() < self.purge_at_len && !(is_full && self.last_purge.elapsed() >= PURGE_INTERVAL) {
            return Vec::new();
        }
        let abandoned = self.queue.take_where(|job| !job.has_waiter());
        self.last_purge = Instant::now();
        self.purge_at_len = self.queue.len().saturating_mul(2).max(MIN_PURGE_LEN);
        abandoned
    }

    /// Claims the probe of a stalled store for a call of `client`. Returns false if the last probe was less than
    /// [`STALL_PROBE_INTERVAL`] ago or the client may use no thread.
    pub(super) fn claim_stall_probe(&mut self, client: ClientId) -> bool {
        let may_probe = self.running.len() < self.max_threads()
            && self.queue.may_run(client, self.max_threads())
            && self.last_stall_probe.is_none_or(|probed_at| probed_at.elapsed() > STALL_PROBE_INTERVAL);
        if may_probe {
            self.last_stall_probe = Some(Instant::now());
        }
        may_probe
    }

    /// Returns the running calls for `operation`.
    pub(super) fn calls_for(&self, operation: &DiskOperation) -> impl Iterator<Item = &RunningCall> {
        self.running.iter().filter(move |call| call.operation.as_ref() == Some(operation))
    }

    /// Returns true if [`MAX_STALLED_PER_OPERATION`] abandoned calls for `operation` run, so that another call must
    /// wait until one of them ends. Otherwise a caller that repeatedly gives up and retries would take one thread after
    /// another. Calls older than the deadline do not count: [`Self::is_operation_stalled`] decides about their
    /// operation.
    pub(super) fn has_many_abandoned(&self, operation: &DiskOperation, deadline: Duration) -> bool {
        let is_abandoned = |call: &&RunningCall| call.waiter.strong_count() == 0 && call.started.elapsed() <= deadline;
        self.calls_for(operation).filter(is_abandoned).count() >= MAX_STALLED_PER_OPERATION
    }

    /// Returns true if running calls for `operation` hang, so that another call would probably hang as well.
    pub(super) fn is_operation_stalled(
        &self,
        operation: &DiskOperation,
        stall_after: Duration,
        deadline: Duration,
    ) -> bool {
        let ages = || self.calls_for(operation).map(|call| call.started.elapsed());
        let is_stalled = ages().any(|age| age > deadline)
            || ages().filter(|age| *age > stall_after).count() >= MAX_STALLED_PER_OPERATION;
        // The operation is retried after exponentially growing intervals, because the system may have lost the hanging
        // call while the file is fine.
        let attempts = u32::try_from(ages().count()).unwrap_or(u32::MAX).min(16);
        is_stalled && ages().min().is_some_and(|youngest| youngest <= deadline.saturating_mul(1 << attempts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_CLIENT_THREADS: usize = 48;

    /// A queue, and what the jobs' callers hold.
    #[derive(Default)]
    struct Queued {
        queue: DiskQueue,
        receivers: Vec<oneshot::Receiver<Result<(), LocalError>>>,
        waiters: Vec<Arc<AtomicBool>>,
    }

    impl Queued {
        fn push(&mut self, client: u64, count: usize) {
            for _ in 0..count {
                let ((reply, receiver), waiter) = (oneshot::channel(), Arc::default());
                let job = DiskJob::new(Some(("read", Key::root())), || (), &waiter, reply);
                self.queue.push(ClientId::new(client), job);
                self.receivers.push(receiver);
                self.waiters.push(waiter);
            }
        }

        /// Starts all jobs that may start and returns their clients.
        fn start_all(&mut self) -> Vec<u64> {
            let mut started = Vec::new();
            while let Some((client, _)) = self.queue.pop(64) {
                started.push((0..9).find(|number| ClientId::new(*number) == client).unwrap());
            }
            started
        }

        fn finish(&mut self, client: u64) {
            self.queue.finish(ClientId::new(client));
        }

        fn is_empty(&self) -> bool {
            self.queue.clients.is_empty()
                && self.queue.round_robin.is_empty()
                && self.queue.len == 0
                && self.queue.active_clients == 0
        }
    }

    #[test]
    fn one_client_gets_three_quarters_of_few_threads_and_two_get_one_each() {
        let mut queued = Queued::default();
        queued.push(1, 9);
        let start_count = |queued: &mut Queued| std::iter::from_fn(|| queued.queue.pop(4)).count();
        assert_eq!(start_count(&mut queued), 3);
        queued.push(2, 9);
        assert_eq!(start_count(&mut queued), 1);
        // The second client continues. The first does not while it has more than its part.
        queued.finish(1);
        assert_eq!(start_count(&mut queued), 0);
        queued.finish(2);
        assert_eq!(start_count(&mut queued), 1);
    }

    #[test]
    fn a_client_with_many_calls_delays_others_by_a_turn() {
        let mut queued = Queued::default();
        queued.push(1, 300);
        queued.push(2, 2);
        queued.push(3, 1);
        let mut order = Vec::new();
        while let Some((client, _)) = queued.queue.pop(64) {
            order.push(client);
            queued.queue.finish(client);
        }
        assert_eq!(order[..6], [1, 2, 3, 1, 2, 1].map(ClientId::new));
        assert!(order.len() == 303 && queued.is_empty());
    }

    #[test]
    fn one_client_leaves_threads_to_others_and_several_have_equal_shares() {
        let mut queued = Queued::default();
        queued.push(1, 300);
        assert_eq!(queued.start_all().len(), ONE_CLIENT_THREADS);
        queued.push(2, 300);
        assert_eq!(queued.start_all(), [2; ONE_CLIENT_THREADS / 2]);
        // The first client now has more than its part: it gets none of the threads that become free.
        for _ in 0..ONE_CLIENT_THREADS / 2 {
            queued.finish(1);
        }
        assert!(queued.start_all().is_empty());
        queued.finish(1);
        assert_eq!(queued.start_all(), [1]);
        queued.push(3, 300);
        assert_eq!(queued.start_all(), [3; ONE_CLIENT_THREADS / 3]);
        queued.push(0, 2);
        assert_eq!(queued.start_all(), [0, 0], "the server's own calls are not limited");
        // Sixteen clients, however many calls they have, leave threads to one more.
        let mut queued = Queued::default();
        for client in 0..16 {
            queued.queue.active_clients += 1;
            queued
                .queue
                .clients
                .insert(ClientId::new(100 + client), ClientDiskQueue { running: 3, ..ClientDiskQueue::default() });
        }
        queued.push(1, 5);
        assert_eq!(queued.start_all(), [1, 1]);
    }

    #[test]
    fn a_full_queue_evicts_from_the_client_with_most_jobs() {
        let mut queued = Queued::default();
        queued.push(1, 5);
        queued.push(2, 2);
        assert!(queued.queue.evict_from_longest(ClientId::new(1)).is_none(), "the client would evict its own job");
        drop(queued.queue.evict_from_longest(ClientId::new(2)).unwrap());
        assert!(queued.receivers[4].try_recv().is_err() && queued.receivers[4].is_terminated(), "the newest");
        drop(queued.queue.evict_from_longest(ClientId::new(3)).unwrap());
        assert_eq!(queued.queue.len(), 5);
        drop(queued.queue.evict_from_longest(ClientId::new(3)).unwrap());
        assert!(queued.queue.evict_from_longest(ClientId::new(2)).is_none(), "each client has two jobs");
        // The callers of the second client's jobs have gone.
        drop(queued.waiters.drain(5..));
        assert_eq!(queued.queue.take_where(|job| !job.has_waiter()).len(), 2);
        assert_eq!((queued.start_all(), queued.queue.active_clients), (vec![1, 1], 1));
        queued.finish(1);
        queued.finish(1);
        assert!(queued.is_empty());
    }
}
