//! Pool of threads that may block on the disk of one store. The number of threads is limited, so a disk that hangs does
//! not take the threads of other stores.
//!
//! The blocking threads of the tokio runtime would not do: all stores would share them, and the runtime panics if the
//! system cannot start a thread.

mod state;

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use self::state::{DiskJob, DiskOperation, DiskPoolState, DiskQueue, IDLE_TIMEOUT, RunningCall};
use super::error::{LocalError, StoreError};
use super::key::Key;
use crate::config::SHARED_DISK_THREADS;
use crate::runtime::fair_queue::ClientId;

/// Pressure on a store: how many calls wait for it, and for how long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StorePressure {
    /// Number of calls that have started.
    pub running: usize,
    /// Number of calls that have not started.
    pub queued: usize,
    /// True if calls are running and none has ended within the stall time. Further calls then fail immediately, except
    /// for one probe per second.
    pub is_stalled: bool,
    /// Time since a call last ended, if calls run whose callers may still wait; otherwise 0.
    pub no_progress_for: Duration,
    /// Age of the longest-running call whose caller may still wait.
    pub longest_running: Duration,
}

impl StorePressure {
    /// Time after which the store is unresponsive if no call has ended.
    const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(1);

    /// Returns true if no call has ended for a second. Requests should then release their memory before they wait for
    /// the store.
    pub fn is_unresponsive(&self) -> bool {
        self.no_progress_for >= Self::UNRESPONSIVE_AFTER
    }
}

/// Number of [`SHARED_DISK_THREADS`] that are free. Relaxed atomics suffice, since no other memory depends on the
/// number.
static FREE_SHARED_THREADS: LazyLock<Arc<AtomicUsize>> =
    LazyLock::new(|| Arc::new(AtomicUsize::new(SHARED_DISK_THREADS)));

/// Maximum number of queued calls, since each takes memory and keeps a caller waiting. It suffices for 2,048 slices
/// that load 8 blocks at once. If each call takes a millisecond on one of 64 threads, the last call waits for a quarter
/// of a second.
const MAX_QUEUED: usize = 16 << 10;

/// A store is stalled if calls run and none has ended for the stall time: the deadline divided by this number.
const STALL_DIVISOR: u32 = 6;

/// Lower bound for the stall time.
const MIN_STALL: Duration = Duration::from_secs(1);

/// Maximum time for which other calls wait for the end of a probe.
const STALL_PROBE_WAIT: Duration = Duration::from_millis(500);

/// A pool that runs jobs which may block on the disk. Its threads end when it is dropped.
#[derive(Debug)]
pub(super) struct DiskPool(Arc<DiskPoolShared>);

impl Drop for DiskPool {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.work_available.notify_all();
    }
}

struct DiskPoolShared {
    state: Mutex<DiskPoolState>,
    work_available: Condvar,
    /// Notified when a job has ended.
    call_ended: Notify,
    /// Notified when an abandoned job has ended.
    abandoned_call_ended: Notify,
    stall_after: Duration,
    deadline: Duration,
    /// Maximum number of queued calls: [`MAX_QUEUED`], except in tests.
    max_queued: usize,
}

impl std::fmt::Debug for DiskPoolShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskPoolShared").field("stall", &self.stall_after).finish_non_exhaustive()
    }
}

impl DiskPool {
    /// Creates a pool for jobs that take at most `deadline`. Starts no thread yet.
    pub(super) fn new(deadline: Duration) -> Arc<Self> {
        Self::with_limits(deadline, MAX_QUEUED, Arc::clone(&FREE_SHARED_THREADS))
    }

    fn with_limits(deadline: Duration, max_queued: usize, free_shared_threads: Arc<AtomicUsize>) -> Arc<Self> {
        let stall_after = (deadline / STALL_DIVISOR).max(MIN_STALL).min(deadline);
        let state = DiskPoolState {
            queue: DiskQueue::default(),
            free_shared_threads,
            threads: 0,
            idle: 0,
            woken: 0,
            starting: 0,
            min_idle: (0, Instant::now()),
            running: Vec::new(),
            started_calls: 0,
            last_progress: Instant::now(),
            last_stall_probe: None,
            last_purge: Instant::now(),
            purge_at_len: 0,
            is_closed: false,
        };
        Arc::new(Self(Arc::new(DiskPoolShared {
            state: Mutex::new(state),
            work_available: Condvar::new(),
            call_ended: Notify::new(),
            abandoned_call_ended: Notify::new(),
            stall_after,
            deadline,
            max_queued,
        })))
    }

    /// Runs `call`, an action on the object or directory at `key`, as [`Self::run`] does. `action` names it in errors.
    ///
    /// # Errors
    /// Returns the errors of the call and of the pool.
    pub(super) async fn run_action<T: Send + 'static>(
        &self,
        action: &'static str,
        key: &Key,
        call: impl FnOnce() -> Result<T, LocalError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let result = self.run(Some((action, key.clone())), call).await;
        result.flatten().map_err(|error| error.of_call(action, key))
    }

    /// Runs a job that may block on the disk, and waits for its end up to the deadline. The job is abandoned if the
    /// caller drops the future or the deadline passes. An abandoned job is not started. If it is already running, it
    /// occupies its thread until it ends.
    ///
    /// # Errors
    /// Returns a [`LocalError`]: at once if earlier calls for the same operation hang or too many calls wait, within
    /// half a second if the store is stalled, and otherwise at the deadline.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: Option<DiskOperation>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LocalError> {
        let shared = &self.0;
        let client = ClientId::current();
        shared.wait_while_stalled(client, operation.as_ref()).await?;
        let (reply, mut result) = oneshot::channel();
        let has_started = Arc::new(AtomicBool::new(false));
        shared.enqueue(client, DiskJob::new(operation, job, &has_started, reply))?;
        let job_lost = |_: oneshot::error::RecvError| LocalError::Io(io::Error::other("a disk job did not complete"));
        let started = Instant::now();
        let mut timeout = shared.stall_after / 4;
        loop {
            if let Ok(result) = tokio::time::timeout(timeout, &mut result).await {
                return result.map_err(job_lost)?;
            }
            let remaining = shared.deadline.saturating_sub(started.elapsed());
            // Relaxed, since the flag only decides how long to wait next. The channel synchronizes the result.
            let is_queued = !has_started.load(Ordering::Relaxed);
            // If all threads that a queued call may use hang, the call gives up before its deadline.
            if is_queued {
                let state = shared.lock();
                if state.all_threads_stalled_for(client, shared.stall_after) {
                    return Err(LocalError::Stalled);
                }
                shared.wake_or_spawn_thread(state);
            }
            if remaining.is_zero() {
                return Err(LocalError::Timeout);
            }
            timeout = if is_queued { remaining.min(shared.stall_after / 4) } else { remaining };
        }
    }

    /// Returns the maximum time for which callers wait for a job.
    pub(super) fn deadline(&self) -> Duration {
        self.0.deadline
    }

    /// Returns the current pressure on the disk.
    pub(super) fn pressure(&self) -> StorePressure {
        let shared = &self.0;
        let state = shared.lock();
        let ages = state.running.iter().map(|call| call.started.elapsed());
        // Calls older than the deadline do not count: they may hang forever on a bad file while the disk is fine.
        let longest = ages.filter(|age| *age <= shared.deadline).max().unwrap_or_default();
        StorePressure {
            running: state.running.len(),
            queued: state.queue.len(),
            is_stalled: state.is_stalled(shared.stall_after),
            no_progress_for: longest.min(state.last_progress.elapsed()),
            longest_running: longest,
        }
    }
}

impl DiskPoolShared {
    fn lock(&self) -> MutexGuard<'_, DiskPoolState> {
        // A panic cannot poison the state: the code under the lock never leaves it inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a call may be queued: the store and the operation are not stalled, or the call has become the probe
    /// of a stalled store, which is one call per second.
    async fn wait_while_stalled(&self, client: ClientId, operation: Option<&DiskOperation>) -> Result<(), LocalError> {
        let started = Instant::now();
        loop {
            let mut call_ended = pin!(self.call_ended.notified());
            let mut abandoned_call_ended = pin!(self.abandoned_call_ended.notified());
            // From here on, no notification is missed.
            call_ended.as_mut().enable();
            abandoned_call_ended.as_mut().enable();
            let Some((error, timeout)) = self.check_stall(client, operation, started) else { return Ok(()) };
            let notified = if matches!(error, LocalError::Stalled) { call_ended } else { abandoned_call_ended };
            if timeout.is_zero() || tokio::time::timeout(timeout, notified).await.is_err() {
                return Err(error);
            }
        }
    }

    /// Returns `None` if the call may be queued. If the store is stalled, the call has then claimed the next probe:
    /// other calls wait for its result. Otherwise returns an error and a time: the call fails with the error unless
    /// another call ends within the time.
    ///
    /// A call waits for at most half a second for the probe of a stalled store. If callers have abandoned many running
    /// calls for the same operation, the call waits for at most the stall time, counted from `waiting_since`, until one
    /// of these ends.
    fn check_stall(
        &self,
        client: ClientId,
        operation: Option<&DiskOperation>,
        waiting_since: Instant,
    ) -> Option<(LocalError, Duration)> {
        let mut state = self.lock();
        if operation.is_some_and(|operation| state.is_operation_stalled(operation, self.stall_after, self.deadline)) {
            return Some((LocalError::OperationStalled, Duration::ZERO));
        }
        let has_many_abandoned = operation.is_some_and(|operation| state.has_many_abandoned(operation, self.deadline));
        if !state.is_stalled(self.stall_after) {
            let remaining = || self.stall_after.saturating_sub(waiting_since.elapsed());
            return has_many_abandoned.then(|| (LocalError::OperationStalled, remaining()));
        }
        if !has_many_abandoned && state.claim_stall_probe(client) {
            return None;
        }
        let wait_start = if has_many_abandoned { Some(waiting_since) } else { state.last_stall_probe };
        let waited = wait_start.map_or(STALL_PROBE_WAIT, |start| start.elapsed());
        Some((LocalError::Stalled, STALL_PROBE_WAIT.saturating_sub(waited)))
    }

    /// Queues a job and makes sure that a thread runs it. If the queue is full, removes the newest job of the client
    /// with the most queued jobs.
    fn enqueue(self: &Arc<Self>, client: ClientId, job: DiskJob) -> Result<(), LocalError> {
        let mut state = self.lock();
        let is_full = state.queue.len() >= self.max_queued;
        let abandoned = state.purge_abandoned(is_full);
        if is_full || !abandoned.is_empty() {
            let is_full = state.queue.len() >= self.max_queued;
            let evicted = if is_full { state.queue.evict_from_longest(client) } else { None };
            drop(state);
            // Dropped without the lock, for the reason given in `run_job`.
            drop(abandoned);
            if is_full {
                let Some(evicted) = evicted else {
                    drop(job);
                    return Err(LocalError::QueueFull);
                };
                evicted.reject(LocalError::QueueFull);
            }
            state = self.lock();
        }
        state.queue.push(client, job);
        self.wake_or_spawn_thread(state).map_or(Ok(()), |error| Err(LocalError::Io(error)))
    }

    /// Makes sure that a thread runs the next job of the queue. Returns an error if there is no thread and none can be
    /// started. The queue has then been emptied.
    fn wake_or_spawn_thread(self: &Arc<Self>, mut state: MutexGuard<'_, DiskPoolState>) -> Option<io::Error> {
        let has_thread = state.idle > 0 || state.threads < state.max_threads();
        if !has_thread
            || state.woken + state.starting >= state.queue.len()
            || !state.queue.has_runnable(state.max_threads())
        {
            return None;
        }
        if state.idle > 0 {
            state.idle -= 1;
            state.woken += 1;
            drop(state);
            self.work_available.notify_one();
            return None;
        }
        if !state.add_thread() {
            return None;
        }
        state.starting += 1;
        drop(state);
        let shared = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("n5-disk".to_owned()).spawn(move || shared.run_worker());
        let Err(error) = spawned else { return None };
        let mut state = self.lock();
        state.remove_thread();
        state.starting -= 1;
        if state.threads > 0 {
            // The existing threads will run the job.
            return None;
        }
        let rejected = state.queue.take_where(|_| true);
        drop(state);
        for job in rejected {
            job.reject(LocalError::Io(io::Error::from(error.kind())));
        }
        Some(error)
    }

    /// Runs a job that was taken from the queue, unless it is abandoned. Releases the lock on `state` before the job
    /// runs.
    fn run_job(self: &Arc<Self>, mut state: MutexGuard<'_, DiskPoolState>, client: ClientId, job: DiskJob) {
        // An abandoned job does not count as progress, because it says nothing about the disk.
        if !job.has_waiter() {
            state.queue.finish(client);
            // Dropped without the lock: the job may hold the last reference to the pool, whose `drop` takes the lock.
            drop(state);
            drop(job);
            return;
        }
        let now = Instant::now();
        if state.running.is_empty() {
            state.last_progress = now;
        }
        state.started_calls += 1;
        let id = state.started_calls;
        let operation = job.operation.clone();
        let waiter = Weak::clone(&job.waiter);
        state.running.push(RunningCall { id, operation, started: now, waiter, client });
        // The end of one job may allow several others to start.
        self.wake_or_spawn_thread(state);
        job.run(&|| self.finish_call(id));
    }

    /// Records that a call has ended, and wakes the tasks that are waiting for calls to end.
    fn finish_call(&self, id: u64) {
        let mut state = self.lock();
        let index = state.running.iter().position(|call| call.id == id);
        let finished_call = index.map(|index| state.running.remove(index));
        if let Some(call) = &finished_call {
            state.queue.finish(call.client);
        }
        state.last_progress = Instant::now();
        drop(state);
        self.call_ended.notify_waiters();
        if finished_call.is_some_and(|call| call.waiter.strong_count() == 0) {
            self.abandoned_call_ended.notify_waiters();
        }
    }

    /// Runs jobs until the pool is closed or has too many idle threads. Each thread of the pool runs this function.
    fn run_worker(self: &Arc<Self>) {
        let mut state = self.lock();
        state.starting -= 1;
        loop {
            let threads = state.max_threads();
            if let Some((client, job)) = state.queue.pop(threads) {
                self.run_job(state, client, job);
                state = self.lock();
            } else if state.is_closed || state.has_surplus_thread() {
                break;
            } else {
                state.idle += 1;
                let (guard, wait_result) =
                    self.work_available.wait_timeout(state, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
                state = guard;
                if state.woken > 0 {
                    state.woken -= 1;
                } else {
                    state.idle -= 1;
                }
                state.min_idle.0 = state.min_idle.0.min(state.idle);
                if wait_result.timed_out() && state.queue.len() == 0 {
                    break;
                }
            }
        }
        state.remove_thread();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::state::MAX_STALLED_PER_OPERATION;
    use super::*;
    use crate::config::{MAX_DISK_THREADS_PER_CONTAINER, RESERVED_DISK_THREADS_PER_CONTAINER};
    use crate::store::key::Key;

    fn pool_with_deadline(deadline: Duration) -> Arc<DiskPool> {
        pool_with_queue(deadline, MAX_QUEUED)
    }

    fn pool_with_queue(deadline: Duration, max_queued: usize) -> Arc<DiskPool> {
        DiskPool::with_limits(deadline, max_queued, Arc::new(AtomicUsize::new(SHARED_DISK_THREADS)))
    }

    /// A pool with `count` calls that hang until the sender is dropped.
    fn pool_with_hanging_calls(
        count: usize,
    ) -> (Arc<DiskPool>, mpsc::Sender<()>, tokio::task::JoinSet<Result<(), LocalError>>) {
        let pool = pool_with_deadline(Duration::from_secs(3));
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..count {
            let pool = Arc::clone(&pool);
            let released = Arc::clone(&released);
            calls.spawn(async move { pool.run(None, move || released.lock().unwrap().recv().unwrap_or(())).await });
        }
        (pool, release, calls)
    }

    async fn wait_until(pool: &DiskPool, condition: impl Fn(StorePressure) -> bool) {
        while !condition(pool.pressure()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_stalled_store_is_probed_once_a_second_and_recovers() {
        let (pool, release, mut calls) = pool_with_hanging_calls(3);
        wait_until(&pool, |pressure| pressure.running == 3).await;
        // Other calls are answered: the store is slow, but not stalled.
        assert_eq!(pool.run(None, || 7).await.unwrap(), 7);
        wait_until(&pool, |pressure| pressure.is_stalled).await;
        let (first, second) = (pool.run(None, || 7).await, pool.run(None, || 7).await);
        // The first call was the probe and found that the store answers.
        assert!(matches!((first, second), (Ok(7), Ok(7))));
        wait_until(&pool, |pressure| pressure.is_stalled).await;
        pool.0.lock().last_stall_probe = Instant::now().checked_sub(STALL_PROBE_WAIT);
        assert!(matches!(pool.run(None, || 7).await, Err(LocalError::Stalled)), "at once");
        drop(release);
        while let Some(call) = calls.join_next().await {
            let _ = call.unwrap();
        }
        wait_until(&pool, |pressure| pressure.running == 0).await;
        assert_eq!(pool.run(None, || 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn hanging_calls_are_limited_and_queued_calls_fail_early() {
        let (pool, release, mut calls) = pool_with_hanging_calls(MAX_DISK_THREADS_PER_CONTAINER + 8);
        let mut stalled = 0;
        let mut timed_out = 0;
        while let Some(call) = calls.join_next().await {
            match call.unwrap() {
                Err(LocalError::Stalled) => stalled += 1,
                Err(LocalError::Timeout) => timed_out += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((stalled, timed_out), (8, MAX_DISK_THREADS_PER_CONTAINER));
        assert_eq!(pool.pressure().running, MAX_DISK_THREADS_PER_CONTAINER, "a call that hangs keeps its thread");
        drop(release);
        wait_until(&pool, |pressure| pressure == StorePressure::default()).await;
        assert_eq!(pool.run(None, || 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn the_threads_end_when_the_last_pool_handle_is_dropped() {
        let (pool, release, mut calls) = pool_with_hanging_calls(MAX_DISK_THREADS_PER_CONTAINER);
        wait_until(&pool, |pressure| pressure.running == MAX_DISK_THREADS_PER_CONTAINER).await;
        // This call is queued and abandoned.
        let last = Arc::clone(&pool);
        let shared = Arc::downgrade(&pool.0);
        let abandoned = tokio::time::timeout(Duration::from_millis(5), pool.run(None, move || drop(last)));
        assert!(abandoned.await.is_err());
        calls.abort_all();
        while calls.join_next().await.is_some() {}
        drop((pool, release));
        while shared.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn the_queue_is_bounded_and_abandoned_calls_take_no_place_in_it() {
        let pool = pool_with_queue(Duration::from_secs(60), 4);
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let mut calls = tokio::task::JoinSet::new();
        for n in 1..=MAX_DISK_THREADS_PER_CONTAINER + 4 {
            let pool = Arc::clone(&pool);
            let released = Arc::clone(&released);
            let call = Arc::clone(&pool);
            calls.spawn(async move { call.run(None, move || released.lock().unwrap().recv().unwrap_or(())).await });
            wait_until(&pool, |pressure| {
                pressure.running + pressure.queued == n
                    && (n <= pressure.running || pressure.running == MAX_DISK_THREADS_PER_CONTAINER)
            })
            .await;
        }
        assert!(pool.pressure().longest_running > Duration::ZERO && pool.pressure().no_progress_for > Duration::ZERO);
        let full = pool.run(None, || 7).await;
        assert!(matches!(full, Err(LocalError::QueueFull)), "{full:?}");
        // All callers are gone, but the running jobs do not notice.
        calls.abort_all();
        while calls.join_next().await.is_some() {}
        pool.0.lock().last_purge = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let queued = Arc::clone(&pool);
        let last = Arc::clone(&pool);
        let queued = tokio::spawn(async move { queued.run(None, || 7).await.unwrap() });
        wait_until(&pool, |pressure| pressure.queued == 1).await;
        drop(release);
        assert_eq!(queued.await.unwrap(), 7);
        wait_until(&pool, |pressure| pressure == StorePressure::default()).await;
        assert_eq!(last.run(None, || 7).await.unwrap(), 7);
    }

    /// Calls of one client that hang until a sender is dropped.
    struct HangingCalls {
        client: ClientId,
        release: mpsc::Sender<()>,
        released: Arc<Mutex<mpsc::Receiver<()>>>,
        calls: tokio::task::JoinSet<Result<(), LocalError>>,
    }

    impl HangingCalls {
        fn new(client: u64) -> Self {
            let (release, released) = mpsc::channel();
            let released = Arc::new(Mutex::new(released));
            Self { client: ClientId::new(client), release, released, calls: tokio::task::JoinSet::new() }
        }

        fn start_call(&mut self, pool: &Arc<DiskPool>) {
            let pool = Arc::clone(pool);
            let released = Arc::clone(&self.released);
            let call = async move { pool.run(None, move || released.lock().unwrap().recv().unwrap_or(())).await };
            self.calls.spawn(self.client.scope(call));
        }

        fn finish(mut self) {
            drop(self.release);
            self.calls.detach_all();
        }
    }

    #[tokio::test]
    async fn hanging_calls_of_one_client_delay_no_other_client_and_are_reported_as_stalled() {
        let pool = pool_with_deadline(Duration::from_secs(3));
        let mut hanging = HangingCalls::new(1);
        (0..MAX_DISK_THREADS_PER_CONTAINER + 8).for_each(|_| hanging.start_call(&pool));
        wait_until(&pool, |pressure| pressure.queued == MAX_DISK_THREADS_PER_CONTAINER / 4 + 8).await;
        let mut stalled = 0;
        let mut timed_out = 0;
        while !hanging.calls.is_empty() {
            // Other clients are answered all the time: the disk does not stall.
            assert_eq!(ClientId::new(2).scope(pool.run(None, || 7)).await.unwrap(), 7);
            match hanging.calls.try_join_next() {
                Some(Ok(Err(LocalError::Stalled))) => stalled += 1,
                Some(Ok(Err(LocalError::Timeout))) => timed_out += 1,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            (stalled, timed_out),
            (MAX_DISK_THREADS_PER_CONTAINER / 4 + 8, MAX_DISK_THREADS_PER_CONTAINER / 4 * 3)
        );
        hanging.finish();
        wait_until(&pool, |pressure| pressure == StorePressure::default()).await;
    }

    #[tokio::test]
    async fn a_full_queue_refuses_the_client_that_fills_it() {
        let pool = pool_with_queue(Duration::from_secs(60), 8);
        let mut server_calls = HangingCalls::new(0);
        let mut greedy_calls = HangingCalls::new(1);
        for n in 1..=MAX_DISK_THREADS_PER_CONTAINER + 8 {
            if n <= MAX_DISK_THREADS_PER_CONTAINER / 4 {
                server_calls.start_call(&pool);
            } else {
                greedy_calls.start_call(&pool);
            }
            wait_until(&pool, |pressure| {
                pressure.running == n.min(MAX_DISK_THREADS_PER_CONTAINER) && pressure.running + pressure.queued == n
            })
            .await;
        }
        let refused = ClientId::new(1).scope(pool.run(None, || 7)).await;
        assert!(matches!(refused, Err(LocalError::QueueFull)), "{refused:?}");
        let other_call = ClientId::new(2).scope(pool.run(None, || 7));
        let (other_result, evicted) = tokio::join!(other_call, async {
            let evicted = greedy_calls.calls.join_next().await.unwrap().unwrap();
            server_calls.finish();
            evicted
        });
        assert!(matches!((other_result, evicted), (Ok(7), Err(LocalError::QueueFull))));
        greedy_calls.finish();
        wait_until(&pool, |pressure| pressure == StorePressure::default()).await;
    }

    #[tokio::test]
    async fn a_panic_of_a_job_is_an_error_and_its_thread_continues() {
        let pool = pool_with_deadline(Duration::from_secs(5));
        assert!(matches!(pool.run(None, || panic!("broken")).await, Err(LocalError::Io(_))));
        assert_eq!(pool.run(None, || 7).await.unwrap(), 7);
        assert_eq!(pool.pressure(), StorePressure::default());
    }

    #[tokio::test]
    async fn calls_during_a_stall_probe_wait_for_its_result() {
        let (pool, release, mut calls) = pool_with_hanging_calls(1);
        wait_until(&pool, |pressure| pressure.is_stalled).await;
        let mut others = tokio::task::JoinSet::new();
        for n in 0..30 {
            let pool = Arc::clone(&pool);
            others.spawn(async move { pool.run(None, move || n).await });
        }
        while let Some(result) = others.join_next().await {
            result.unwrap().unwrap();
        }
        drop(release);
        while calls.join_next().await.is_some() {}
    }

    #[tokio::test]
    async fn an_answered_call_ends_the_stall() {
        let (pool, release, mut calls) = pool_with_hanging_calls(1);
        wait_until(&pool, |pressure| pressure.is_stalled).await;
        for _ in 0..200 {
            pool.0.lock().last_progress = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
            pool.0.lock().last_stall_probe = None;
            assert!(pool.pressure().is_stalled);
            assert_eq!(pool.run(None, || 7).await.unwrap(), 7);
            let pressure = pool.pressure();
            assert_eq!((pressure.running, pressure.queued, pressure.is_stalled), (1, 0, false));
        }
        drop(release);
        while calls.join_next().await.is_some() {}
    }

    #[tokio::test]
    async fn one_hanging_operation_takes_few_threads_however_often_it_is_requested() {
        let pool = pool_with_deadline(Duration::from_secs(2));
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let operation = |path: &str| Some(("read", Key::parse(path).unwrap()));
        let call = |path: &str| {
            let released = Arc::clone(&released);
            pool.run(operation(path), move || released.lock().unwrap().recv().unwrap_or(()))
        };
        assert!(matches!(call("bad").await, Err(LocalError::Timeout)));
        // The thread started the job a little after the call.
        pool.0.lock().running[0].started = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
        for _ in 0..2 * MAX_DISK_THREADS_PER_CONTAINER {
            assert!(matches!(call("bad").await, Err(LocalError::OperationStalled)));
        }
        assert_eq!(pool.pressure().running, 1);
        pool.0.lock().running[0].started = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
        assert!(matches!(call("bad").await, Err(LocalError::Timeout)), "tried again");
        pool.0.lock().running[1].started = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        assert!(matches!(call("bad").await, Err(LocalError::OperationStalled)), "the retry interval grows");
        assert_eq!(pool.run(operation("good"), || 7).await.unwrap(), 7, "other operations are answered");
        assert_eq!(pool.run(Some(("stat", Key::parse("bad").unwrap())), || 7).await.unwrap(), 7);
        // Only one call at a time is let through, even if many calls were lost.
        for hung_calls in 2..=MAX_STALLED_PER_OPERATION {
            let later = Duration::from_secs(2 << hung_calls);
            for call in &mut pool.0.lock().running {
                call.started = Instant::now().checked_sub(later).unwrap();
            }
            assert!(matches!(call("bad").await, Err(LocalError::Timeout)), "tried again after {hung_calls}");
            assert!(matches!(call("bad").await, Err(LocalError::OperationStalled)));
        }
        drop(release);
        wait_until(&pool, |pressure| pressure == StorePressure::default()).await;
        call("bad").await.unwrap();
    }

    #[tokio::test]
    async fn repeated_abandoned_calls_take_few_threads() {
        let pool = pool_with_deadline(Duration::from_secs(60));
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let operation = || Some(("read", Key::parse("slow").unwrap()));
        let call = || {
            let released = Arc::clone(&released);
            pool.run(operation(), move || released.lock().unwrap().recv().map_or(7, |()| 7))
        };
        while pool.pressure().running < MAX_STALLED_PER_OPERATION {
            assert!(tokio::time::timeout(Duration::from_millis(20), call()).await.is_err());
        }
        for _ in 0..MAX_STALLED_PER_OPERATION {
            assert!(tokio::time::timeout(Duration::from_millis(20), call()).await.is_err());
        }
        let pressure = pool.pressure();
        assert_eq!((pressure.running, pressure.queued), (MAX_STALLED_PER_OPERATION, 0));
        assert_eq!(pool.run(Some(("read", Key::parse("good").unwrap())), || 7).await.unwrap(), 7);
        // A patient caller is served when one of them has ended.
        let (patient, ()) = tokio::join!(call(), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(pool.pressure().running, MAX_STALLED_PER_OPERATION);
            drop(release);
        });
        assert_eq!(patient.unwrap(), 7);
        wait_until(&pool, |pressure| pressure == StorePressure::default()).await;
    }

    #[tokio::test]
    async fn surplus_threads_end_although_all_are_woken_in_turn() {
        let pool = pool_with_deadline(Duration::from_secs(60));
        let gate = Arc::new(std::sync::Barrier::new(9));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let pool = Arc::clone(&pool);
                let gate = Arc::clone(&gate);
                tokio::spawn(async move { pool.run(None, move || gate.wait()).await.is_ok() })
            })
            .collect();
        let last = std::thread::spawn(move || gate.wait());
        for task in tasks {
            assert!(task.await.unwrap());
        }
        last.join().unwrap();
        assert_eq!(pool.0.lock().threads, 8);
        let deadline = Instant::now() + Duration::from_secs(20);
        // If several threads were awake at once, others are left for the next time.
        while pool.0.lock().threads > 4 {
            loop {
                {
                    let mut state = pool.0.lock();
                    if state.idle == state.threads {
                        // Pretend that this was a while ago.
                        state.min_idle = (state.idle - 1, Instant::now().checked_sub(IDLE_TIMEOUT).unwrap());
                        break;
                    }
                    assert!(Instant::now() < deadline, "{} threads are left, {} idle", state.threads, state.idle);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for _ in 0..64 {
                pool.run(None, || ()).await.unwrap();
            }
            assert!(Instant::now() < deadline, "{} threads are left", pool.0.lock().threads);
        }
        pool.run(None, || ()).await.unwrap();
    }

    #[tokio::test]
    async fn stores_share_threads_and_each_has_reserved_ones() {
        let free_shared_threads = Arc::new(AtomicUsize::new(2));
        let stores = [(); 2]
            .map(|()| DiskPool::with_limits(Duration::from_secs(60), MAX_QUEUED, Arc::clone(&free_shared_threads)));
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let mut calls = tokio::task::JoinSet::new();
        for store in &stores {
            for client in 0..20 {
                let store = Arc::clone(store);
                let released = Arc::clone(&released);
                let call = async move { store.run(None, move || released.lock().unwrap().recv().unwrap_or(())).await };
                calls.spawn(ClientId::new(1 + client).scope(call));
            }
            wait_until(store, |pressure| pressure.running + pressure.queued == 20).await;
        }
        let [first, second] = &stores;
        wait_until(second, |pressure| pressure.running == RESERVED_DISK_THREADS_PER_CONTAINER).await;
        assert_eq!(first.pressure().running, RESERVED_DISK_THREADS_PER_CONTAINER + 2);
        drop(release);
        while let Some(call) = calls.join_next().await {
            call.unwrap().unwrap();
        }
        let shared = stores.each_ref().map(|store| Arc::downgrade(&store.0));
        drop(stores);
        while shared.iter().any(|shared| shared.strong_count() > 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(free_shared_threads.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn abandoned_calls_do_not_accumulate_in_the_queue() {
        let (pool, release, mut calls) = pool_with_hanging_calls(RESERVED_DISK_THREADS_PER_CONTAINER);
        wait_until(&pool, |pressure| pressure.running == RESERVED_DISK_THREADS_PER_CONTAINER).await;
        pool.0.lock().free_shared_threads.store(0, Ordering::Relaxed);
        // As after this many jobs with waiting callers.
        pool.0.lock().purge_at_len = MAX_QUEUED;
        for _ in 0..10_000 {
            let mut call = Box::pin(pool.run(None, || ()));
            assert!(futures_util::poll!(&mut call).is_pending());
            drop(call);
            assert!(pool.pressure().queued <= 1024);
        }
        drop(release);
        while calls.join_next().await.is_some() {}
    }
}
