//! The threads that may wait for the disk of one store: few enough that a disk that hangs holds up nobody else's.
//!
//! Own threads instead of the runtime's: those are shared by all stores and, when the system has none to give, panic.

mod job;
mod queue;
mod state;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};

use self::job::{Job, Task};
use self::queue::Queue;
use self::state::{Running, State};
use super::{Key, Load};
use crate::fair::Client;

/// Most calls of one store that wait for its disk at once; further ones queue up.
const THREADS: usize = 64;

/// Threads that a store may have whatever the others have.
const OWN_THREADS: usize = 4;

/// Further threads that all stores of the process share: two stores that hang leave 60 to the others.
const COMMON_THREADS: usize = 180;

/// Most threads of so many stores.
pub fn most_threads(stores: usize) -> usize {
    let shared = OWN_THREADS.saturating_mul(stores).saturating_add(COMMON_THREADS);
    THREADS.saturating_mul(stores).min(shared)
}

/// Those of [`COMMON_THREADS`] that are free.
static COMMON: LazyLock<Arc<AtomicUsize>> = LazyLock::new(|| Arc::new(AtomicUsize::new(COMMON_THREADS)));

/// As many of them at most, for each of which memory and somebody who waits are kept: those of 1,024 slices that load 8
/// blocks each, twice over. With a disk that takes a millisecond the last one waits for a quarter of a second.
const QUEUE: usize = 16 << 10;

/// A thread ends when it has had nothing to do for this long.
const IDLE: Duration = Duration::from_secs(10);

/// A store of which no call has ended for this part of its deadline, while some run, is stalled.
const STALL_PART: u32 = 6;

/// But never for less than this.
const LEAST_STALL: Duration = Duration::from_secs(1);

/// How often a stalled store is asked nevertheless: what runs may hang for ever, on one bad file.
const TRIAL: Duration = Duration::from_secs(1);

/// How long others wait for the answer of whoever finds that out.
const PATIENCE: Duration = Duration::from_millis(500);

/// So many calls for the same that have run for as long as it takes to be stalled are enough: what hangs is that alone,
/// and further ones would take the threads of all others.
const SAME: usize = 4;

/// What a call is for: what is done, and to what.
pub(super) type What = (&'static str, Key);

/// Why a job has no result.
#[derive(Debug)]
pub(super) enum HopError {
    /// It took longer than the deadline.
    Timeout,
    /// The disk has answered nobody for so long that it was not asked.
    Stalled,
    /// Others have waited for the same for too long.
    Overdue,
    /// The queue is full.
    Crowded,
    /// The system has no thread to give, or the job panicked.
    Thread(io::Error),
}

/// Runs jobs that may wait. Cheap to clone; clones share the threads, which end with the last.
#[derive(Debug, Clone)]
pub(super) struct Hops(Arc<Owner>);

#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    deadline: Duration,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.work.notify_all();
    }
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// A job has ended.
    ended: Notify,
    /// A job has ended whose caller had gone.
    left: Notify,
    stall: Duration,
    deadline: Duration,
    /// [`QUEUE`], but for tests.
    most_queued: usize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("stall", &self.stall).finish_non_exhaustive()
    }
}

impl Hops {
    /// For jobs that take at most `deadline`; no thread yet.
    pub(super) fn new(deadline: Duration) -> Self {
        Self::with(deadline, QUEUE, Arc::clone(&COMMON))
    }

    fn with(deadline: Duration, most_queued: usize, common: Arc<AtomicUsize>) -> Self {
        let stall = (deadline / STALL_PART).max(LEAST_STALL).min(deadline);
        let state = State {
            queue: Queue::default(),
            common,
            threads: 0,
            idle: 0,
            called: 0,
            coming: 0,
            fewest_idle: (0, Instant::now()),
            running: Vec::new(),
            begun: 0,
            stirred: Instant::now(),
            tried: None,
            tidied: Instant::now(),
            tidy_at: 0,
            is_closed: false,
        };
        Self(Arc::new(Owner {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                work: Condvar::new(),
                ended: Notify::new(),
                left: Notify::new(),
                stall,
                deadline,
                most_queued,
            }),
            deadline,
        }))
    }

    /// Runs a job that may wait for the disk, up to the deadline. A job given up, by the deadline or by whoever waits
    /// for it, never starts; one that runs already ends by itself later, and keeps its thread till then.
    ///
    /// # Errors
    /// [`HopError`]: within half a second when the store is stalled, at once when others wait for the same in vain, or too
    /// many for anything.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        what: Option<What>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, HopError> {
        let Owner { shared, deadline } = &*self.0;
        let client = Client::current();
        shared.admit(client, what.as_ref()).await?;
        let (answer, mut result) = oneshot::channel();
        let has_begun = Arc::new(AtomicBool::new(false));
        shared.begin(client, Box::new(Task::new(what, job, &has_begun, answer)))?;
        let died =
            |_: oneshot::error::RecvError| HopError::Thread(io::Error::other("a job that waits for the disk died"));
        let (begun, mut wait) = (Instant::now(), shared.stall / 4);
        loop {
            if let Ok(result) = tokio::time::timeout(wait, &mut result).await {
                return result.map_err(died)?;
            }
            let (left, is_queued) = (deadline.saturating_sub(begun.elapsed()), !has_begun.load(Ordering::Relaxed));
            // Whoever is still in the queue of a stalled store has waited long enough: all before it hang.
            if is_queued {
                let state = shared.lock();
                if state.has_no_thread_for_more(client, shared.stall) {
                    return Err(HopError::Stalled);
                }
                shared.muster(state);
            }
            if left.is_zero() {
                return Err(HopError::Timeout);
            }
            wait = if is_queued { left.min(shared.stall / 4) } else { left };
        }
    }

    /// Longest time that a job is waited for.
    pub(super) fn deadline(&self) -> Duration {
        self.0.deadline
    }

    /// What is waited for now.
    pub(super) fn load(&self) -> Load {
        let shared = &self.0.shared;
        let state = shared.lock();
        let ages = state.running.iter().map(|call| call.since.elapsed());
        // What hangs for ever on one bad file says nothing of the others.
        let longest = ages.filter(|age| *age <= shared.deadline).max().unwrap_or_default();
        Load {
            running: state.running.len(),
            queued: state.queue.len(),
            is_stalled: state.is_stalled(shared.stall),
            silent: longest.min(state.stirred.elapsed()),
            longest,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that runs under the lock leaves it half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a call through unless the store is stalled; then one a second, for whose answer the others wait a little. One for
    /// what was often asked for and given up waits for the end of some of those, as long as it takes to be stalled.
    async fn admit(&self, client: Client, what: Option<&What>) -> Result<(), HopError> {
        let begun = Instant::now();
        loop {
            let (mut ended, mut left) = (std::pin::pin!(self.ended.notified()), std::pin::pin!(self.left.notified()));
            // From here on, no end is missed.
            ended.as_mut().enable();
            left.as_mut().enable();
            let (patience, given_up, end) = {
                let mut state = self.lock();
                if what.is_some_and(|what| state.is_overdue(what, self.stall, self.deadline)) {
                    return Err(HopError::Overdue);
                }
                let is_left_often = what.is_some_and(|what| state.is_left_often(what, self.deadline));
                let is_stalled = state.is_stalled(self.stall);
                if !is_left_often && (!is_stalled || state.may_try(client)) {
                    return Ok(());
                }
                if is_stalled {
                    let tried = state.tried.map_or(PATIENCE, |tried| tried.elapsed());
                    let waited = if is_left_often { begun.elapsed() } else { tried };
                    (PATIENCE.saturating_sub(waited), HopError::Stalled, ended)
                } else {
                    (self.stall.saturating_sub(begun.elapsed()), HopError::Overdue, left)
                }
            };
            if patience.is_zero() || tokio::time::timeout(patience, end).await.is_err() {
                return Err(given_up);
            }
        }
    }

    /// Puts a job in the queue, and sees to it that a thread comes for it. Where the queue is full, the client that has
    /// most in it has to make room.
    fn begin(self: &Arc<Self>, client: Client, job: Box<dyn Job>) -> Result<(), HopError> {
        let mut state = self.lock();
        let is_full = state.queue.len() >= self.most_queued;
        let unwanted = state.tidy(is_full);
        if is_full || !unwanted.is_empty() {
            let is_full = state.queue.len() >= self.most_queued;
            let refused = if is_full { state.queue.make_room(client) } else { None };
            drop(state);
            // Not under the lock, as where they are served.
            drop(unwanted);
            if is_full {
                let Some(refused) = refused else {
                    drop(job);
                    return Err(HopError::Crowded);
                };
                refused.refuse(HopError::Crowded);
            }
            state = self.lock();
        }
        state.queue.push(client, job);
        self.muster(state).map_or(Ok(()), |error| Err(HopError::Thread(error)))
    }

    /// Sees to it that a thread comes for what is next in the queue. An error says that there is no thread at all, and none
    /// to be had: then the queue has been emptied.
    fn muster(self: &Arc<Self>, mut state: MutexGuard<'_, State>) -> Option<io::Error> {
        let has_thread = state.idle > 0 || state.may_grow();
        if !has_thread
            || state.called + state.coming >= state.queue.len()
            || !state.queue.has_next(state.most_threads())
        {
            return None;
        }
        if state.idle > 0 {
            state.idle -= 1;
            state.called += 1;
            drop(state);
            self.work.notify_one();
            return None;
        }
        if !state.grow() {
            return None;
        }
        state.coming += 1;
        drop(state);
        let shared = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("n5-disk".to_owned()).spawn(move || shared.serve());
        let Err(error) = spawned else { return None };
        let mut state = self.lock();
        state.shrink();
        state.coming -= 1;
        if state.threads > 0 {
            // Those there are will come to it.
            return None;
        }
        let left = state.queue.take_all();
        drop(state);
        for job in left {
            job.refuse(HopError::Thread(io::Error::from(error.kind())));
        }
        Some(error)
    }

    fn end(&self, id: u64) {
        let mut state = self.lock();
        let place = state.running.iter().position(|call| call.id == id);
        let ended = place.map(|place| state.running.remove(place));
        if let Some(call) = &ended {
            state.queue.end(call.client);
        }
        state.stirred = Instant::now();
        drop(state);
        self.ended.notify_waiters();
        if ended.is_some_and(|call| call.waiter.strong_count() == 0) {
            self.left.notify_waiters();
        }
    }

    /// What each thread does.
    fn serve(self: &Arc<Self>) {
        let mut state = self.lock();
        state.coming -= 1;
        loop {
            let threads = state.most_threads();
            if let Some((client, job)) = state.queue.pop(threads) {
                // What nobody waits for says nothing about the disk.
                if !job.is_wanted() {
                    state.queue.end(client);
                    // Not under the lock: it may hold the last of the hops, whose end takes it.
                    drop(state);
                    drop(job);
                    state = self.lock();
                    continue;
                }
                let now = Instant::now();
                if state.running.is_empty() {
                    state.stirred = now;
                }
                state.begun += 1;
                let id = state.begun;
                let (what, waiter) = (job.what(), job.waiter());
                state.running.push(Running { id, what, since: now, waiter, client });
                // One end may have let several begin.
                self.muster(state);
                job.run(&|| self.end(id));
                state = self.lock();
            } else if state.is_closed || state.is_surplus() {
                break;
            } else {
                state.idle += 1;
                let (again, waited) = self.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = again;
                if state.called > 0 {
                    state.called -= 1;
                } else {
                    state.idle -= 1;
                }
                state.fewest_idle.0 = state.fewest_idle.0.min(state.idle);
                if waited.timed_out() && state.queue.is_empty() {
                    break;
                }
            }
        }
        state.shrink();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn hops_with(deadline: Duration) -> Hops {
        hops_for(deadline, QUEUE)
    }

    fn hops_for(deadline: Duration, most_queued: usize) -> Hops {
        Hops::with(deadline, most_queued, Arc::new(AtomicUsize::new(COMMON_THREADS)))
    }

    /// Hops of which `count` calls hang until the sender is dropped.
    fn hanging(count: usize) -> (Hops, mpsc::Sender<()>, tokio::task::JoinSet<Result<(), HopError>>) {
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

    async fn until(hops: &Hops, is_so: impl Fn(Load) -> bool) {
        while !is_so(hops.load()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_store_that_answers_nobody_is_asked_once_a_second_only_and_recovers() {
        let (hops, end, mut calls) = hanging(3);
        until(&hops, |load| load.running == 3).await;
        // Others are answered: it is slow, and does not stall.
        assert_eq!(hops.run(None, || 7).await.unwrap(), 7);
        until(&hops, |load| load.is_stalled).await;
        let (first, second) = (hops.run(None, || 7).await, hops.run(None, || 7).await);
        // The first one tried, and found that it answers.
        assert!(matches!((first, second), (Ok(7), Ok(7))));
        until(&hops, |load| load.is_stalled).await;
        hops.0.shared.lock().tried = Instant::now().checked_sub(PATIENCE);
        assert!(matches!(hops.run(None, || 7).await, Err(HopError::Stalled)), "at once");
        drop(end);
        while let Some(call) = calls.join_next().await {
            let _ = call.unwrap();
        }
        until(&hops, |load| load.running == 0).await;
        assert_eq!(hops.run(None, || 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn no_more_than_so_many_hang_and_those_behind_them_give_up_early() {
        let (hops, end, mut calls) = hanging(THREADS + 8);
        let (mut stalled, mut late) = (0, 0);
        while let Some(call) = calls.join_next().await {
            match call.unwrap() {
                Err(HopError::Stalled) => stalled += 1,
                Err(HopError::Timeout) => late += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((stalled, late), (8, THREADS));
        assert_eq!(hops.load().running, THREADS, "what hangs keeps its thread");
        drop(end);
        until(&hops, |load| load == Load::default()).await;
        assert_eq!(hops.run(None, || 7).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn the_threads_end_with_the_last_who_could_ask() {
        let (hops, end, mut calls) = hanging(THREADS);
        until(&hops, |load| load.running == THREADS).await;
        // In the queue, and nobody waits for it.
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
        for n in 1..=THREADS + 4 {
            let (hops, is_to_end) = (hops.clone(), Arc::clone(&is_to_end));
            let call = hops.clone();
            calls.spawn(async move { call.run(None, move || is_to_end.lock().unwrap().recv().unwrap_or(())).await });
            until(&hops, |load| load.running + load.queued == n && (n <= load.running || load.running == THREADS))
                .await;
        }
        assert!(hops.load().longest > Duration::ZERO && hops.load().silent > Duration::ZERO);
        let full = hops.run(None, || 7).await;
        assert!(matches!(full, Err(HopError::Crowded)), "{full:?}");
        // None of these waits any more; what runs does not know.
        calls.abort_all();
        while calls.join_next().await.is_some() {}
        hops.0.shared.lock().tidied = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let (queued, last) = (hops.clone(), hops.clone());
        let queued = tokio::spawn(async move { queued.run(None, || 7).await.unwrap() });
        until(&hops, |load| load.queued == 1).await;
        drop(end);
        assert_eq!(queued.await.unwrap(), 7);
        until(&hops, |load| load == Load::default()).await;
        assert_eq!(last.run(None, || 7).await.unwrap(), 7);
    }

    /// Calls of one client, which hang until a sender is dropped.
    struct Hanging {
        client: Client,
        end: mpsc::Sender<()>,
        is_to_end: Arc<Mutex<mpsc::Receiver<()>>>,
        calls: tokio::task::JoinSet<Result<(), HopError>>,
    }

    impl Hanging {
        fn new(client: u64) -> Self {
            let (end, is_to_end) = mpsc::channel();
            let is_to_end = Arc::new(Mutex::new(is_to_end));
            Self { client: Client::new(client), end, is_to_end, calls: tokio::task::JoinSet::new() }
        }

        fn begin(&mut self, hops: &Hops) {
            let (hops, is_to_end) = (hops.clone(), Arc::clone(&self.is_to_end));
            let call = async move { hops.run(None, move || is_to_end.lock().unwrap().recv().unwrap_or(())).await };
            self.calls.spawn(self.client.works(call));
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
        (0..THREADS + 8).for_each(|_| hanging.begin(&hops));
        until(&hops, |load| load.queued == THREADS / 4 + 8).await;
        let (mut stalled, mut late) = (0, 0);
        while !hanging.calls.is_empty() {
            // Others are answered all the time: the disk does not stall.
            assert_eq!(Client::new(2).works(hops.run(None, || 7)).await.unwrap(), 7);
            match hanging.calls.try_join_next() {
                Some(Ok(Err(HopError::Stalled))) => stalled += 1,
                Some(Ok(Err(HopError::Timeout))) => late += 1,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((stalled, late), (THREADS / 4 + 8, THREADS / 4 * 3));
        hanging.end();
        until(&hops, |load| load == Load::default()).await;
    }

    #[tokio::test]
    async fn a_full_queue_refuses_the_client_that_fills_it() {
        let hops = hops_for(Duration::from_secs(60), 8);
        let (mut own, mut greedy) = (Hanging::new(0), Hanging::new(1));
        for n in 1..=THREADS + 8 {
            if n <= THREADS / 4 {
                own.begin(&hops);
            } else {
                greedy.begin(&hops);
            }
            until(&hops, |load| load.running == n.min(THREADS) && load.running + load.queued == n).await;
        }
        let more = Client::new(1).works(hops.run(None, || 7)).await;
        assert!(matches!(more, Err(HopError::Crowded)), "{more:?}");
        let other = Client::new(2).works(hops.run(None, || 7));
        let (other, pushed_out) = tokio::join!(other, async {
            let pushed_out = greedy.calls.join_next().await.unwrap().unwrap();
            own.end();
            pushed_out
        });
        assert!(matches!((other, pushed_out), (Ok(7), Err(HopError::Crowded))));
        greedy.end();
        until(&hops, |load| load == Load::default()).await;
    }

    #[tokio::test]
    async fn a_job_that_panics_is_an_error_and_its_thread_goes_on() {
        let hops = hops_with(Duration::from_secs(5));
        assert!(matches!(hops.run(None, || panic!("broken")).await, Err(HopError::Thread(_))));
        assert_eq!(hops.run(None, || 7).await.unwrap(), 7);
        assert_eq!(hops.load(), Load::default());
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
            hops.0.shared.lock().stirred = Instant::now().checked_sub(Duration::from_secs(60)).unwrap();
            hops.0.shared.lock().tried = None;
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
        assert!(matches!(ask("bad").await, Err(HopError::Timeout)));
        // Its thread began a little later than it was asked for.
        hops.0.shared.lock().running[0].since = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
        for _ in 0..2 * THREADS {
            assert!(matches!(ask("bad").await, Err(HopError::Overdue)));
        }
        assert_eq!(hops.load().running, 1);
        hops.0.shared.lock().running[0].since = Instant::now().checked_sub(Duration::from_secs(5)).unwrap();
        assert!(matches!(ask("bad").await, Err(HopError::Timeout)), "tried again");
        hops.0.shared.lock().running[1].since = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        assert!(matches!(ask("bad").await, Err(HopError::Overdue)), "ever more seldom");
        assert_eq!(hops.run(what("good"), || 7).await.unwrap(), 7, "all others are answered");
        assert_eq!(hops.run(Some(("stat", Key::parse("bad").unwrap())), || 7).await.unwrap(), 7);
        // However many were lost: one at a time is let through.
        for lost in 2..=SAME {
            let later = Duration::from_secs(2 << lost);
            for call in &mut hops.0.shared.lock().running {
                call.since = Instant::now().checked_sub(later).unwrap();
            }
            assert!(matches!(ask("bad").await, Err(HopError::Timeout)), "tried again after {lost}");
            assert!(matches!(ask("bad").await, Err(HopError::Overdue)));
        }
        drop(end);
        until(&hops, |load| load == Load::default()).await;
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
        while hops.load().running < SAME {
            assert!(tokio::time::timeout(Duration::from_millis(20), ask()).await.is_err());
        }
        for _ in 0..SAME {
            assert!(tokio::time::timeout(Duration::from_millis(20), ask()).await.is_err());
        }
        let load = hops.load();
        assert_eq!((load.running, load.queued), (SAME, 0));
        assert_eq!(hops.run(Some(("read", Key::parse("good").unwrap())), || 7).await.unwrap(), 7);
        // Who is patient has it when one of them has ended.
        let (patient, ()) = tokio::join!(ask(), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(hops.load().running, SAME);
            drop(end);
        });
        assert_eq!(patient.unwrap(), 7);
        until(&hops, |load| load == Load::default()).await;
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
        // Where several were awake at once, others are left for the next time.
        while hops.0.shared.lock().threads > 4 {
            loop {
                {
                    let mut state = hops.0.shared.lock();
                    if state.idle == state.threads {
                        // As if that had been a while ago.
                        state.fewest_idle = (state.idle - 1, Instant::now().checked_sub(IDLE).unwrap());
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
        let stores = [(); 2].map(|()| Hops::with(Duration::from_secs(60), QUEUE, Arc::clone(&common)));
        let (end, is_to_end) = mpsc::channel::<()>();
        let is_to_end = Arc::new(Mutex::new(is_to_end));
        let mut calls = tokio::task::JoinSet::new();
        for store in &stores {
            for client in 0..20 {
                let (store, is_to_end) = (store.clone(), Arc::clone(&is_to_end));
                let hangs =
                    async move { store.run(None, move || is_to_end.lock().unwrap().recv().unwrap_or(())).await };
                calls.spawn(Client::new(1 + client).works(hangs));
            }
            until(store, |load| load.running + load.queued == 20).await;
        }
        let [first, second] = &stores;
        until(second, |load| load.running == OWN_THREADS).await;
        assert_eq!(first.load().running, OWN_THREADS + 2);
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
        let (hops, end, mut calls) = hanging(OWN_THREADS);
        until(&hops, |load| load.running == OWN_THREADS).await;
        hops.0.shared.lock().common.store(0, Ordering::Relaxed);
        // As after so many that were wanted.
        hops.0.shared.lock().tidy_at = QUEUE;
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
