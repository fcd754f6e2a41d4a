//! Pool of threads that may block on the disk of one store. Their number is limited, so a disk that hangs does not
//! delay the calls of other stores.
//!
//! The pool has threads of its own. The runtime's blocking threads are shared by all stores, and the runtime panics if
//! the system cannot start one.

mod job;
mod queue;
mod state;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use self::job::{DiskJob, ErasedDiskJob};
use self::queue::DiskQueue;
use self::state::{DiskPoolState, IDLE_TIMEOUT, MAX_THREADS_PER_STORE, RESERVED_THREADS, RunningCall};

pub(super) use self::job::{DiskOperation, DiskPoolError};
use super::load::StoreLoad;
use crate::fair_queue::ClientId;

/// Further threads that all stores of the process share. Two stores that hang leave 60 of them to the others.
const SHARED_THREADS: usize = 180;

/// Returns the maximum number of threads of this many stores.
pub fn max_disk_threads(stores: usize) -> usize {
    let shared = RESERVED_THREADS.saturating_mul(stores).saturating_add(SHARED_THREADS);
    MAX_THREADS_PER_STORE.saturating_mul(stores).min(shared)
}

/// Number of [`SHARED_THREADS`] that are free.
static FREE_SHARED_THREADS: LazyLock<Arc<AtomicUsize>> = LazyLock::new(|| Arc::new(AtomicUsize::new(SHARED_THREADS)));

/// Maximum number of queued calls. Memory and a waiting caller are kept for each. It is twice the calls of 1,024 slices
/// that load 8 blocks each. With a disk that takes a millisecond, the last call waits for a quarter of a second.
const MAX_QUEUED: usize = 16 << 10;

/// A store is stalled if calls run and none has ended for the deadline divided by this number.
const STALL_DIVISOR: u32 = 6;

/// Minimum stall time: the time after which a store is stalled.
const MIN_STALL: Duration = Duration::from_secs(1);

/// How long other calls wait for the result of a probe.
const STALL_PROBE_WAIT: Duration = Duration::from_millis(500);

/// Runs jobs that may block on the disk. Cheap to clone; clones share the threads, which end with the last clone.
#[derive(Debug, Clone)]
pub(super) struct DiskPool(Arc<DiskPoolOwner>);

#[derive(Debug)]
struct DiskPoolOwner {
    shared: Arc<DiskPoolShared>,
    deadline: Duration,
}

impl Drop for DiskPoolOwner {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.work_available.notify_all();
    }
}

struct DiskPoolShared {
    state: Mutex<DiskPoolState>,
    work_available: Condvar,
    /// Notified when a job has ended.
    call_ended: Notify,
    /// Notified when a job has ended whose caller had gone.
    abandoned_call_ended: Notify,
    stall_after: Duration,
    deadline: Duration,
    /// [`MAX_QUEUED`], except in tests.
    max_queued: usize,
}

impl std::fmt::Debug for DiskPoolShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskPoolShared").field("stall", &self.stall_after).finish_non_exhaustive()
    }
}

impl DiskPool {
    /// Creates a pool for jobs that take at most `deadline`. Starts no thread yet.
    pub(super) fn new(deadline: Duration) -> Self {
        Self::with_limits(deadline, MAX_QUEUED, Arc::clone(&FREE_SHARED_THREADS))
    }

    fn with_limits(deadline: Duration, most_queued: usize, common: Arc<AtomicUsize>) -> Self {
        let stall = (deadline / STALL_DIVISOR).max(MIN_STALL).min(deadline);
        let state = DiskPoolState {
            queue: DiskQueue::default(),
            free_shared_threads: common,
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
        Self(Arc::new(DiskPoolOwner {
            shared: Arc::new(DiskPoolShared {
                state: Mutex::new(state),
                work_available: Condvar::new(),
                call_ended: Notify::new(),
                abandoned_call_ended: Notify::new(),
                stall_after: stall,
                deadline,
                max_queued: most_queued,
            }),
            deadline,
        }))
    }

    /// Runs a job that may block on the disk, and waits for it up to the deadline. An abandoned job, whose caller gave
    /// up or whose deadline passed, never starts. If it already runs, it ends by itself later and keeps its thread
    /// until then.
    ///
    /// # Errors
    /// [`DiskPoolError`]. The error comes within half a second if the store is stalled. It comes at once if other calls
    /// for the same operation wait in vain, or if too many calls wait.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        what: Option<DiskOperation>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, DiskPoolError> {
        let DiskPoolOwner { shared, deadline } = &*self.0;
        let client = ClientId::current();
        shared.admit(client, what.as_ref()).await?;
        let (answer, mut result) = oneshot::channel();
        let has_begun = Arc::new(AtomicBool::new(false));
        shared.enqueue(client, Box::new(DiskJob::new(what, job, &has_begun, answer)))?;
        let died =
            |_: oneshot::error::RecvError| DiskPoolError::Thread(io::Error::other("a disk job did not complete"));
        let (begun, mut wait) = (Instant::now(), shared.stall_after / 4);
        loop {
            if let Ok(result) = tokio::time::timeout(wait, &mut result).await {
                return result.map_err(died)?;
            }
            let (left, is_queued) = (deadline.saturating_sub(begun.elapsed()), !has_begun.load(Ordering::Relaxed));
            // If all threads that this call may use hang, it has waited long enough.
            if is_queued {
                let state = shared.lock();
                if state.all_threads_stalled_for(client, shared.stall_after) {
                    return Err(DiskPoolError::Stalled);
                }
                shared.wake_or_spawn_thread(state);
            }
            if left.is_zero() {
                return Err(DiskPoolError::Timeout);
            }
            wait = if is_queued { left.min(shared.stall_after / 4) } else { left };
        }
    }

    /// Returns the maximum time for which a job is waited for.
    pub(super) fn deadline(&self) -> Duration {
        self.0.deadline
    }

    /// Returns the current load.
    pub(super) fn load(&self) -> StoreLoad {
        let shared = &self.0.shared;
        let state = shared.lock();
        let ages = state.running.iter().map(|call| call.since.elapsed());
        // A call that hangs forever on one bad file says nothing about the others.
        let longest = ages.filter(|age| *age <= shared.deadline).max().unwrap_or_default();
        StoreLoad {
            running: state.running.len(),
            queued: state.queue.len(),
            is_stalled: state.is_stalled(shared.stall_after),
            silent_for: longest.min(state.last_progress.elapsed()),
            longest_running: longest,
        }
    }
}

impl DiskPoolShared {
    fn lock(&self) -> MutexGuard<'_, DiskPoolState> {
        // No code that runs under the lock can leave the state inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a call unless the store is stalled. A stalled store admits one call per second as a probe, and the other
    /// calls wait briefly for its result. A call for an operation that was abandoned often waits until one of the
    /// abandoned calls ends, for at most the stall time.
    async fn admit(&self, client: ClientId, what: Option<&DiskOperation>) -> Result<(), DiskPoolError> {
        let begun = Instant::now();
        loop {
            let (mut ended, mut left) =
                (std::pin::pin!(self.call_ended.notified()), std::pin::pin!(self.abandoned_call_ended.notified()));
            // From here on, no notification is missed.
            ended.as_mut().enable();
            left.as_mut().enable();
            let (patience, given_up, end) = {
                let mut state = self.lock();
                if what.is_some_and(|what| state.is_operation_stalled(what, self.stall_after, self.deadline)) {
                    return Err(DiskPoolError::OperationStalled);
                }
                let is_left_often = what.is_some_and(|what| state.has_many_abandoned(what, self.deadline));
                let is_stalled = state.is_stalled(self.stall_after);
                if !is_left_often && (!is_stalled || state.claim_stall_probe(client)) {
                    return Ok(());
                }
                if is_stalled {
                    let tried = state.last_stall_probe.map_or(STALL_PROBE_WAIT, |tried| tried.elapsed());
                    let waited = if is_left_often { begun.elapsed() } else { tried };
                    (STALL_PROBE_WAIT.saturating_sub(waited), DiskPoolError::Stalled, ended)
                } else {
                    (self.stall_after.saturating_sub(begun.elapsed()), DiskPoolError::OperationStalled, left)
                }
            };
            if patience.is_zero() || tokio::time::timeout(patience, end).await.is_err() {
                return Err(given_up);
            }
        }
    }

    /// Queues a job and makes sure that a thread runs it. If the queue is full, the client with the most queued jobs
    /// loses its newest one.
    fn enqueue(self: &Arc<Self>, client: ClientId, job: Box<dyn ErasedDiskJob>) -> Result<(), DiskPoolError> {
        let mut state = self.lock();
        let is_full = state.queue.len() >= self.max_queued;
        let unwanted = state.purge_abandoned(is_full);
        if is_full || !unwanted.is_empty() {
            let is_full = state.queue.len() >= self.max_queued;
            let refused = if is_full { state.queue.evict_from_longest(client) } else { None };
            drop(state);
            // Dropped outside the lock, as in `run_worker`.
            drop(unwanted);
            if is_full {
                let Some(refused) = refused else {
                    drop(job);
                    return Err(DiskPoolError::QueueFull);
                };
                refused.reject(DiskPoolError::QueueFull);
            }
            state = self.lock();
        }
        state.queue.push(client, job);
        self.wake_or_spawn_thread(state).map_or(Ok(()), |error| Err(DiskPoolError::Thread(error)))
    }

    /// Makes sure that a thread runs the next job of the queue. Returns an error if there is no thread and none can be
    /// started. The queue has then been emptied.
    fn wake_or_spawn_thread(self: &Arc<Self>, mut state: MutexGuard<'_, DiskPoolState>) -> Option<io::Error> {
        let has_thread = state.idle > 0 || state.may_add_thread();
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
        let left = state.queue.take_all();
        drop(state);
        for job in left {
            job.reject(DiskPoolError::Thread(io::Error::from(error.kind())));
        }
        Some(error)
    }

    fn finish_call(&self, id: u64) {
        let mut state = self.lock();
        let place = state.running.iter().position(|call| call.id == id);
        let ended = place.map(|place| state.running.remove(place));
        if let Some(call) = &ended {
            state.queue.finish(call.client);
        }
        state.last_progress = Instant::now();
        drop(state);
        self.call_ended.notify_waiters();
        if ended.is_some_and(|call| call.waiter.strong_count() == 0) {
            self.abandoned_call_ended.notify_waiters();
        }
    }

    /// Main loop of each thread.
    fn run_worker(self: &Arc<Self>) {
        let mut state = self.lock();
        state.starting -= 1;
        loop {
            let threads = state.max_threads();
            if let Some((client, job)) = state.queue.pop(threads) {
                // An abandoned job says nothing about the disk.
                if !job.has_waiter() {
                    state.queue.finish(client);
                    // Dropped outside the lock: the job may hold the last clone of the pool, whose drop takes the lock.
                    drop(state);
                    drop(job);
                    state = self.lock();
                    continue;
                }
                let now = Instant::now();
                if state.running.is_empty() {
                    state.last_progress = now;
                }
                state.started_calls += 1;
                let id = state.started_calls;
                let (what, waiter) = (job.operation(), job.waiter());
                state.running.push(RunningCall { id, operation: what, since: now, waiter, client });
                // One ended job may allow several others to start.
                self.wake_or_spawn_thread(state);
                job.run(&|| self.finish_call(id));
                state = self.lock();
            } else if state.is_closed || state.has_surplus_thread() {
                break;
            } else {
                state.idle += 1;
                let (again, waited) =
                    self.work_available.wait_timeout(state, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
                state = again;
                if state.woken > 0 {
                    state.woken -= 1;
                } else {
                    state.idle -= 1;
                }
                state.min_idle.0 = state.min_idle.0.min(state.idle);
                if waited.timed_out() && state.queue.is_empty() {
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
    use crate::store::key::Key;

    fn hops_with(deadline: Duration) -> DiskPool {
        hops_for(deadline, MAX_QUEUED)
    }

    fn hops_for(deadline: Duration, most_queued: usize) -> DiskPool {
        DiskPool::with_limits(deadline, most_queued, Arc::new(AtomicUsize::new(SHARED_THREADS)))
    }

    /// A pool of which `count` calls hang until the sender is dropped.
    fn hanging(count: usize) -> (DiskPool, mpsc::Sender<()>, tokio::task::JoinSet<Result<(), DiskPoolError>>) {
        let hops = hops_with(Duration::from_secs(3));
        let (end, is_to_end) = mpsc::channel::<()>();
        let is_to_end = Arc::new(Mutex::new(is_to_end));
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..count {
            let (hops, is_to_end) = (hops.clone(), Arc::clone(&is_to_end));
            calls.spawn(async move { hops.run(None, move || is_to_end.lock().unwrap().recv().unwrap_or(())).await });
        }
        (hops, end, calls)
    }

    async fn until(hops: &DiskPool, is_so: impl Fn(StoreLoad) -> bool) {
        while !is_so(hops.load()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_store_that_answers_nobody_is_asked_once_a_second_only_and_recovers() {
        let (hops, end, mut calls) = hanging(3);
        until(&hops, |load| load.running == 3).await;
        // Other calls are answered: the store is slow, but not stalled.
        assert_eq!(hops.run(None, || 7).await.unwrap(), 7);
        until(&hops, |load| load.is_stalled).await;
        let (first, second) = (hops.run(None, || 7).await, hops.run(None, || 7).await);
        // The first call was the probe and found that the store answers.
        assert!(matches!((first, second), (Ok(7), Ok(7))));
        until(&hops, |load| load.is_stalled).await;
        hops.0.shared.lock().last_stall_probe = Instant::now().checked_sub(STALL_PROBE_WAIT);
        assert!(matches!(hops.run(None, || 7).await, Err(DiskPoolError::Stalled)), "at once");
        drop(end);
        while let Some(call) = calls.join_next().await {
            let _ = call.unwrap();
        }
        until(&hops, |load| load.running == 0).await;
        assert_eq!(hops.run(None, || 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn no_more_than_so_many_hang_and_those_behind_them_give_up_early() {
        let (hops, end, mut calls) = hanging(MAX_THREADS_PER_STORE + 8);
        let (mut stalled, mut late) = (0, 0);
        while let Some(call) = calls.join_next().await {
            match call.unwrap() {
                Err(DiskPoolError::Stalled) => stalled += 1,
                Err(DiskPoolError::Timeout) => late += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((stalled, late), (8, MAX_THREADS_PER_STORE));
        assert_eq!(hops.load().running, MAX_THREADS_PER_STORE, "a call that hangs keeps its thread");
        drop(end);
        until(&hops, |load| load == StoreLoad::default()).await;
        assert_eq!(hops.run(None, || 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn the_threads_end_with_the_last_who_could_ask() {
        let (hops, end, mut calls) = hanging(MAX_THREADS_PER_STORE);
        until(&hops, |load| load.running == MAX_THREADS_PER_STORE).await;
        // This call is queued and abandoned.
        let (last, shared) = (hops.clone(), Arc::downgrade(&hops.0.shared));
        let left = tokio::time::timeout(Duration::from_millis(5), hops.run(None, move || drop(last)));
        assert!(left.await.is_err());
        calls.abort_all();
        while calls.join_next().await.is_some() {}
        drop((hops, end));
        while shared.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn the_queue_is_bounded_and_whoever_has_left_it_takes_no_room() {
        let hops = hops_for(Duration::from_secs(60), 4);
        let (end, is_to_end) = mpsc::channel::<()>();
        let is_to_end = Arc::new(Mutex::new(is_to_end));
        let mut calls = tokio::task::JoinSet::new();
        for n in 1..=MAX_THREADS_PER_STORE + 4 {
            let (hops, is_to_end) = (hops.clone(), Arc::clone(&is_to_end));
            let call = hops.clone();
            calls.spawn(async move { call.run(None, move || is_to_end.lock().unwrap().recv().unwrap_or(())).await });
            until(&hops, |load| {
                load.running + load.queued == n && (n <= load.running || load.running == MAX_THREADS_PER_STORE)
            })
            .await;
        }
        assert!(hops.load().longest_running > Duration::ZERO && hops.load().silent_for > Duration::ZERO);
        let full = hops.run(None, || 7).await;
        assert!(matches!(full, Err(DiskPoolError::QueueFull)), "{full:?}");
        // All callers are gone, but the running jobs do not notice.
        calls.abort_all();
        while calls.join_next().await.is_some() {}
        hops.0.shared.lock().last_purge = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let (queued, last) = (hops.clone(), hops.clone());
        let queued = tokio::spawn(async move { queued.run(None, || 7).await.unwrap() });
        until(&hops, |load| load.queued == 1).await;
        drop(end);
        assert_eq!(queued.await.unwrap(), 7);
        until(&hops, |load| load == StoreLoad::default()).await;
        assert_eq!(last.run(None, || 7).await.unwrap(), 7);
    }

    /// Calls of one client that hang until a sender is dropped.
    struct Hanging {
        client: ClientId,
        end: mpsc::Sender<()>,
        is_to_end: Arc<Mutex<mpsc::Receiver<()>>>,
        calls: tokio::task::JoinSet<Result<(), DiskPoolError>>,
    }

    impl Hanging {
        fn new(client: u64) -> Self {
            let (end, is_to_end) = mpsc::channel();
            let is_to_end = Arc::new(Mutex::new(is_to_end));
            Self { client: ClientId::new(client), end, is_to_end, calls: tokio::task::JoinSet::new() }
        }

        fn begin(&mut self, hops: &DiskPool) {
            let (hops, is_to_end) = (hops.clone(), Arc::clone(&self.is_to_end));
            let call = async move { hops.run(None, move || is_to_end.lock().unwrap().recv().unwrap_or(())).await };
            self.calls.spawn(self.client.scope(call));
        }

        fn end(mut self) {
            drop(self.end);
            self.calls.detach_all();
        }
    }

    #[tokio::test]
    async fn a_client_whose_calls_hang_keeps_no_other_waiting_and_learns_of_it() {
        let hops = hops_with(Duration::from_secs(3));
        let mut hanging = Hanging::new(1);
        (0..MAX_THREADS_PER_STORE + 8).for_each(|_| hanging.begin(&hops));
        until(&hops, |load| load.queued == MAX_THREADS_PER_STORE / 4 + 8).await;
        let (mut stalled, mut late) = (0, 0);
        while !hanging.calls.is_empty() {
            // Other clients are answered all the time: the disk does not stall.
            assert_eq!(ClientId::new(2).scope(hops.run(None, || 7)).await.unwrap(), 7);
            match hanging.calls.try_join_next() {
                Some(Ok(Err(DiskPoolError::Stalled))) => stalled += 1,
                Some(Ok(Err(DiskPoolError::Timeout))) => late += 1,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((stalled, late), (MAX_THREADS_PER_STORE / 4 + 8, MAX_THREADS_PER_STORE / 4 * 3));
        hanging.end();
        until(&hops, |load| load == StoreLoad::default()).await;
    }

    #[tokio::test]
    async fn a_full_queue_refuses_the_client_that_fills_it() {
        let hops = hops_for(Duration::from_secs(60), 8);
        let (mut own, mut greedy) = (Hanging::new(0), Hanging::new(1));
        for n in 1..=MAX_THREADS_PER_STORE + 8 {
            if n <= MAX_THREADS_PER_STORE / 4 {
                own.begin(&hops);
            } else {
                greedy.begin(&hops);
            }
            until(&hops, |load| load.running == n.min(MAX_THREADS_PER_STORE) && load.running + load.queued == n).await;
        }
        let more = ClientId::new(1).scope(hops.run(None, || 7)).await;
        assert!(matches!(more, Err(DiskPoolError::QueueFull)), "{more:?}");
        let other = ClientId::new(2).scope(hops.run(None, || 7));
        let (other, pushed_out) = tokio::join!(other, async {
            let pushed_out = greedy.calls.join_next().await.unwrap().unwrap();
            own.end();
            pushed_out
        });
        assert!(matches!((other, pushed_out), (Ok(7), Err(DiskPoolError::QueueFull))));
        greedy.end();
        until(&hops, |load| load == StoreLoad::default()).await;
    }

    #[tokio::test]
    async fn a_job_that_panics_is_an_error_and_its_thread_goes_on() {
        let hops = hops_with(Duration::from_secs(5));
        assert!(matches!(hops.run(None, || panic!("broken")).await, Err(DiskPoolError::Thread(_))));
        assert_eq!(hops.run(None, || 7).await.unwrap(), 7);
        assert_eq!(hops.load(), StoreLoad::default());
    }

    #[tokio::test]
    async fn those_who_come_while_one_finds_out_wait_for_what_it_finds() {
        let (hops, end, mut calls) = hanging(1);
        until(&hops, |load| load.is_stalled).await;
        let mut others = tokio::task::JoinSet::new();
        for n in 0..30 {
            let hops = hops.clone();
            others.spawn(async move { hops.run(None, move || n).await });
        }
        while let Some(answer) = others.join_next().await {
            answer.unwrap().unwrap();
        }
        drop(end);
        while calls.join_next().await.is_some() {}
    }

    #[tokio::test]
    async fn whoever_has_an_answer_finds_the_store_answering() {
        let (hops, end, mut calls) = hanging(1);
        until(&hops, |load| load.is_stalled).await;
        for _ in 0..200 {
            hops.0.shared.lock().last_progress = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
            hops.0.shared.lock().last_stall_probe = None;
            assert!(hops.load().is_stalled);
            assert_eq!(hops.run(None, || 7).await.unwrap(), 7);
            let load = hops.load();
            assert_eq!((load.running, load.queued, load.is_stalled), (1, 0, false));
        }
        drop(end);
        while calls.join_next().await.is_some() {}
    }

    #[tokio::test]
    async fn what_hangs_alone_takes_few_threads_however_often_it_is_asked_for() {
        let hops = hops_with(Duration::from_secs(2));
        let (end, is_to_end) = mpsc::channel::<()>();
        let is_to_end = Arc::new(Mutex::new(is_to_end));
        let what = |path: &str| Some(("read", Key::parse(path).unwrap()));
        let ask = |path: &str| {
            let is_to_end = Arc::clone(&is_to_end);
            hops.run(what(path), move || is_to_end.lock().unwrap().recv().unwrap_or(()))
        };
        assert!(matches!(ask("bad").await, Err(DiskPoolError::Timeout)));
        // The thread started the job a little after the call.
        hops.0.shared.lock().running[0].since = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
        for _ in 0..2 * MAX_THREADS_PER_STORE {
            assert!(matches!(ask("bad").await, Err(DiskPoolError::OperationStalled)));
        }
        assert_eq!(hops.load().running, 1);
        hops.0.shared.lock().running[0].since = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
        assert!(matches!(ask("bad").await, Err(DiskPoolError::Timeout)), "tried again");
        hops.0.shared.lock().running[1].since = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        assert!(matches!(ask("bad").await, Err(DiskPoolError::OperationStalled)), "the retry interval grows");
        assert_eq!(hops.run(what("good"), || 7).await.unwrap(), 7, "other operations are answered");
        assert_eq!(hops.run(Some(("stat", Key::parse("bad").unwrap())), || 7).await.unwrap(), 7);
        // However many calls were lost, one at a time is let through.
        for lost in 2..=MAX_STALLED_PER_OPERATION {
            let later = Duration::from_secs(2 << lost);
            for call in &mut hops.0.shared.lock().running {
                call.since = Instant::now().checked_sub(later).unwrap();
            }
            assert!(matches!(ask("bad").await, Err(DiskPoolError::Timeout)), "tried again after {lost}");
            assert!(matches!(ask("bad").await, Err(DiskPoolError::OperationStalled)));
        }
        drop(end);
        until(&hops, |load| load == StoreLoad::default()).await;
        ask("bad").await.unwrap();
    }

    #[tokio::test]
    async fn who_gives_up_and_asks_again_takes_few_threads() {
        let hops = hops_with(Duration::from_secs(60));
        let (end, is_to_end) = mpsc::channel::<()>();
        let is_to_end = Arc::new(Mutex::new(is_to_end));
        let what = || Some(("read", Key::parse("slow").unwrap()));
        let ask = || {
            let is_to_end = Arc::clone(&is_to_end);
            hops.run(what(), move || is_to_end.lock().unwrap().recv().map_or(7, |()| 7))
        };
        while hops.load().running < MAX_STALLED_PER_OPERATION {
            assert!(tokio::time::timeout(Duration::from_millis(20), ask()).await.is_err());
        }
        for _ in 0..MAX_STALLED_PER_OPERATION {
            assert!(tokio::time::timeout(Duration::from_millis(20), ask()).await.is_err());
        }
        let load = hops.load();
        assert_eq!((load.running, load.queued), (MAX_STALLED_PER_OPERATION, 0));
        assert_eq!(hops.run(Some(("read", Key::parse("good").unwrap())), || 7).await.unwrap(), 7);
        // A patient caller is served when one of them has ended.
        let (patient, ()) = tokio::join!(ask(), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(hops.load().running, MAX_STALLED_PER_OPERATION);
            drop(end);
        });
        assert_eq!(patient.unwrap(), 7);
        until(&hops, |load| load == StoreLoad::default()).await;
    }

    #[tokio::test]
    async fn threads_that_are_too_many_end_although_all_are_woken_in_turn() {
        let hops = hops_with(Duration::from_secs(60));
        let gate = Arc::new(std::sync::Barrier::new(9));
        let all: Vec<_> = (0..8)
            .map(|_| {
                let (hops, gate) = (hops.clone(), Arc::clone(&gate));
                tokio::spawn(async move { hops.run(None, move || gate.wait()).await.is_ok() })
            })
            .collect();
        let last = std::thread::spawn(move || gate.wait());
        for one in all {
            assert!(one.await.unwrap());
        }
        last.join().unwrap();
        assert_eq!(hops.0.shared.lock().threads, 8);
        let until = Instant::now() + Duration::from_secs(20);
        // If several threads were awake at once, others are left for the next time.
        while hops.0.shared.lock().threads > 4 {
            loop {
                {
                    let mut state = hops.0.shared.lock();
                    if state.idle == state.threads {
                        // Pretend that this was a while ago.
                        state.min_idle = (state.idle - 1, Instant::now().checked_sub(IDLE_TIMEOUT).unwrap());
                        break;
                    }
                    assert!(Instant::now() < until, "{} threads are left, {} idle", state.threads, state.idle);
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for _ in 0..64 {
                hops.run(None, || ()).await.unwrap();
            }
            assert!(Instant::now() < until, "{} threads are left", hops.0.shared.lock().threads);
        }
        hops.run(None, || ()).await.unwrap();
    }

    #[tokio::test]
    async fn stores_share_further_threads_and_each_has_some_of_its_own() {
        let common = Arc::new(AtomicUsize::new(2));
        let stores = [(); 2].map(|()| DiskPool::with_limits(Duration::from_secs(60), MAX_QUEUED, Arc::clone(&common)));
        let (end, is_to_end) = mpsc::channel::<()>();
        let is_to_end = Arc::new(Mutex::new(is_to_end));
        let mut calls = tokio::task::JoinSet::new();
        for store in &stores {
            for client in 0..20 {
                let (store, is_to_end) = (store.clone(), Arc::clone(&is_to_end));
                let hangs =
                    async move { store.run(None, move || is_to_end.lock().unwrap().recv().unwrap_or(())).await };
                calls.spawn(ClientId::new(1 + client).scope(hangs));
            }
            until(store, |load| load.running + load.queued == 20).await;
        }
        let [first, second] = &stores;
        until(second, |load| load.running == RESERVED_THREADS).await;
        assert_eq!(first.load().running, RESERVED_THREADS + 2);
        drop(end);
        while let Some(call) = calls.join_next().await {
            call.unwrap().unwrap();
        }
        let shared = stores.each_ref().map(|store| Arc::downgrade(&store.0.shared));
        drop(stores);
        while shared.iter().any(|shared| shared.strong_count() > 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(common.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn calls_that_are_given_up_do_not_pile_up_in_the_queue() {
        let (hops, end, mut calls) = hanging(RESERVED_THREADS);
        until(&hops, |load| load.running == RESERVED_THREADS).await;
        hops.0.shared.lock().free_shared_threads.store(0, Ordering::Relaxed);
        // As after this many jobs with waiting callers.
        hops.0.shared.lock().purge_at_len = MAX_QUEUED;
        for _ in 0..10_000 {
            let mut call = Box::pin(hops.run(None, || ()));
            assert!(futures_util::poll!(&mut call).is_pending());
            drop(call);
            assert!(hops.load().queued <= 1024);
        }
        drop(end);
        while calls.join_next().await.is_some() {}
    }
}
