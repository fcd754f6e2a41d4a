//! Single flight: work that several clients want is done once, in the turn of whichever client is first.

use std::any::Any;
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{FutureExt, future};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinError, JoinHandle};

use super::ClientId;

tokio::task_local! {
    static FLIGHT: Flight;
    static FLIGHT_TASK: Arc<FlightTaskState>;
}

/// Returns the clients for which the running task works, if more may join.
pub(super) fn watch_flight_clients() -> Option<watch::Receiver<Vec<ClientId>>> {
    FLIGHT.try_with(|joint| joint.clients.subscribe()).ok()
}

/// Runs `work` as the leader, for all waiters of the running task's flight. It continues while any of them waits.
///
/// # Errors
/// Errors of `work`. The task then no longer leads, and another one may.
pub fn lead<T, E>(work: impl Future<Output = Result<T, E>>) -> impl Future<Output = Result<T, E>> {
    fn set(set: impl FnOnce(&FlightTaskState)) {
        // Outside such a task, no other client waits.
        let _ = FLIGHT_TASK.try_with(|state| set(state));
    }
    // Boxed, because a cache that awaits this future reserves space for it several times.
    let work = Box::pin(work);
    let begun = future::lazy(|_| {
        set(|state| state.is_leader.store(true, Ordering::Relaxed));
        // The memory that this run waits for may be held by the result of an earlier run.
        replace_retained(None);
    });
    begun.then(|()| work).inspect(|done| {
        if done.is_err() {
            set(|state| {
                state.is_leader.store(false, Ordering::Relaxed);
                state.is_detached.store(false, Ordering::Relaxed);
            });
        }
    })
}

/// Retains `value` for the waiters of the running task's flight, until the last of them has gone or the work starts
/// again.
pub fn retain_for_waiters<T: Send + Sync + 'static>(value: &Arc<T>) {
    replace_retained(Some(Arc::<T>::clone(value)));
}

fn replace_retained(value: Option<RetainedValue>) {
    let before = FLIGHT.try_with(|joint| {
        let mut held = joint.retained.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *held, value)
    });
    // Dropped outside the lock.
    drop(before);
}

/// Returns a handle that can keep the running task going when no waiter is left.
pub fn detach_handle() -> DetachHandle {
    DetachHandle(FLIGHT_TASK.try_with(Arc::clone).ok())
}

/// Keeps a task of [`Waiter::spawn`] going once it does work that cannot be interrupted. The default handle has no
/// task.
#[derive(Debug, Clone, Default)]
pub struct DetachHandle(Option<Arc<FlightTaskState>>);

impl DetachHandle {
    /// Lets the task run to its end from now on, even without waiters.
    pub fn detach(&self) {
        if let Some(state) = &self.0 {
            state.is_detached.store(true, Ordering::Relaxed);
        }
    }
}

/// State of a task of [`Waiter::spawn`].
#[derive(Debug, Default)]
struct FlightTaskState {
    /// True if the task does the work and the others wait for it.
    is_leader: AtomicBool,
    is_detached: AtomicBool,
}

#[derive(Debug)]
struct FlightTask {
    handle: AbortHandle,
    state: Arc<FlightTaskState>,
}

impl FlightTask {
    /// Aborts the task, unless it cannot be interrupted.
    fn abort_unless_detached(&self) {
        if !self.state.is_detached.load(Ordering::Relaxed) {
            self.handle.abort();
        }
    }
}

/// Clients for which one piece of work is done. Clients may join until it is done, so that a later client does not wait
/// for the turn of the first one. Cheap to clone; clones share the clients.
#[derive(Debug, Clone, Default)]
struct Flight(Arc<FlightInner>);

type RetainedValue = Arc<dyn Any + Send + Sync>;

#[derive(Debug, Default)]
struct FlightInner {
    clients: watch::Sender<Vec<ClientId>>,
    /// Value retained for the waiters.
    retained: Mutex<Option<RetainedValue>>,
}

impl std::ops::Deref for Flight {
    type Target = FlightInner;

    fn deref(&self) -> &FlightInner {
        &self.0
    }
}

impl Flight {
    fn add_clients(&self, wanting: Vec<ClientId>) {
        self.clients.send_if_modified(|clients| {
            let before = clients.len();
            let new: Vec<ClientId> = wanting.into_iter().filter(|client| !clients.contains(client)).collect();
            clients.extend(new);
            clients.len() > before
        });
    }
}

/// Work that several clients may want, by the key of its result. Cheap to clone; clones share the work.
#[derive(Debug)]
pub struct SingleFlight<K>(Arc<Mutex<HashMap<K, FlightEntry>>>);

#[derive(Debug, Default)]
struct FlightEntry {
    flight: Flight,
    /// Number of waiters.
    waiters: usize,
    /// Tasks of waiters that have gone: the one that does the work, and those that have just finished it.
    orphaned_tasks: Vec<FlightTask>,
}

/// The current client as a waiter in a flight, until dropped. The work is aborted when the last waiter is dropped.
#[derive(Debug)]
pub struct Waiter<K: Eq + Hash> {
    group: SingleFlight<K>,
    key: K,
    flight: Flight,
    is_first: bool,
    task: Option<FlightTask>,
    /// Clients of the flight for which the calling task works, if more may join.
    parent_clients: Option<watch::Receiver<Vec<ClientId>>>,
}

impl<K> Clone for SingleFlight<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for SingleFlight<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K> SingleFlight<K> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, FlightEntry>> {
        // No code that runs under the lock can leave the map inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> SingleFlight<K> {
    /// Joins the flight of `key` for the current client. If the calling task works for a flight itself, all clients of
    /// that flight join.
    pub fn join(&self, key: K) -> Waiter<K> {
        let mut outer = watch_flight_clients();
        let wanting =
            outer.as_mut().map_or_else(|| vec![ClientId::current()], |outer| outer.borrow_and_update().clone());
        let mut joints = self.lock();
        let wanted = joints.entry(key.clone()).or_default();
        let is_first = wanted.waiters == 0;
        wanted.waiters += 1;
        wanted.flight.add_clients(wanting);
        Waiter { group: self.clone(), key, flight: wanted.flight.clone(), is_first, task: None, parent_clients: outer }
    }
}

impl<K: Eq + Hash> SingleFlight<K> {
    /// Returns true if the flight of `key` has a waiter.
    pub fn is_in_flight(&self, key: &K) -> bool {
        self.lock().contains_key(key)
    }
}

impl<K: Eq + Hash> Waiter<K> {
    /// Returns true if this waiter started the flight.
    pub const fn is_first(&self) -> bool {
        self.is_first
    }

    /// Runs `work` in a task of its own, which gets permits in the turn of whichever client of the flight is first. The
    /// task is aborted when this waiter is dropped. If it works for others in [`lead`], it is aborted when the last
    /// waiter is dropped.
    pub fn spawn<F>(&mut self, work: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let state = Arc::<FlightTaskState>::default();
        let task = tokio::spawn(FLIGHT_TASK.scope(Arc::clone(&state), FLIGHT.scope(self.flight.clone(), work)));
        self.task = Some(FlightTask { handle: task.abort_handle(), state });
        task
    }

    /// Waits for the result of `task`, which [`spawn`](Self::spawn) returned. Clients that join the flight for which
    /// the calling task works join this flight, too.
    ///
    /// # Errors
    /// If the task panics or is aborted.
    pub async fn wait_for<T>(&mut self, mut task: JoinHandle<T>) -> Result<T, JoinError> {
        let Some(outer) = &mut self.parent_clients else { return task.await };
        loop {
            tokio::select! {
                done = &mut task => return done,
                // The other flight does not end before this task does.
                Ok(()) = outer.changed() => {
                    let wanting = outer.borrow_and_update().clone();
                    self.flight.add_clients(wanting);
                }
            }
        }
    }
}

impl<K: Eq + Hash> Drop for Waiter<K> {
    fn drop(&mut self) {
        let mut joints = self.group.lock();
        let Some(wanted) = joints.get_mut(&self.key) else { return };
        wanted.waiters -= 1;
        let mut ended: Vec<FlightTask> = self.task.take().into_iter().collect();
        if wanted.waiters == 0 {
            ended.append(&mut wanted.orphaned_tasks);
            joints.remove(&self.key);
        } else if ended.iter().any(|task| task.state.is_leader.load(Ordering::Relaxed)) {
            wanted.orphaned_tasks.retain(|task| !task.handle.is_finished());
            wanted.orphaned_tasks.append(&mut ended);
        }
        drop(joints);
        // Aborted outside the lock: the tasks may hold waiters of other flights.
        ended.iter().for_each(FlightTask::abort_unless_detached);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{ClientQuota, CostBasis, FairSemaphore};
    use super::*;

    #[tokio::test]
    async fn work_gets_its_share_in_the_turn_of_whoever_comes_first_and_nobody_else_loses_any() {
        let (shares, joints) =
            (FairSemaphore::new(1, ClientQuota::UNLIMITED, CostBasis::Units), SingleFlight::default());
        let take = |client: u64| shares.acquire((ClientId::new(client), 0), 1).boxed();
        let held = take(9).await;
        // One client has much to do, and lastly something that another client wants as well.
        let mut first: Vec<_> = (0..5).map(|_| take(1)).collect();
        assert!(first.iter_mut().all(|take| take.now_or_never().is_none()));
        let mut joined = ClientId::new(1).scope(async { joints.join("block") }).await;
        let ours = shares.clone();
        let shared = joined.spawn(async move { ours.acquire((ClientId::new(1), 0), 1).await });
        tokio::task::yield_now().await;
        let wanted = ClientId::new(2).scope(async { joints.join("block") }).await;
        tokio::task::yield_now().await;
        assert!(!shared.is_finished());
        drop(held);
        drop(first.remove(0).now_or_never().expect("it came first"));
        drop(shared.await.expect("it is the second client's turn"));
        drop((first, wanted, joined));
        assert_eq!(shares.free(), 1);
        assert!(!shares.has_waiters() && joints.lock().is_empty());
    }

    #[tokio::test]
    async fn a_client_is_not_charged_for_a_place_whose_work_is_done_in_the_turn_of_another() {
        // With this many units in use, there are enough for one of the client's requests, or for both.
        for in_use in [100, 0] {
            let (shares, joints) =
                (FairSemaphore::new(640, ClientQuota::UNLIMITED, CostBasis::Units), SingleFlight::default());
            let take = |client: u64, units| shares.acquire((ClientId::new(client), 0), units).boxed();
            let (held, _in_use) = (take(9, 400).await, take(8, in_use).await);
            let mut joined = ClientId::new(1).scope(async { joints.join("block") }).await;
            let ours = shares.clone();
            let shared = joined.spawn(async move { ours.acquire((ClientId::new(1), 0), 300).await });
            tokio::task::yield_now().await;
            // The client has more to do, and stops another client.
            let (mut more, mut other) = (take(1, 600), take(3, 300));
            assert!((&mut more).now_or_never().is_none() && (&mut other).now_or_never().is_none());
            let wanted = ClientId::new(2).scope(async { joints.join("block") }).await;
            tokio::task::yield_now().await;
            // It is the second client's turn.
            shares.state().flow_mut((ClientId::new(1), 0)).start_tag = 100;
            drop((other, held));
            let share = shared.await.unwrap();
            assert_eq!(share.flow.0, ClientId::new(2));
            assert_eq!(shares.state().flow_mut((ClientId::new(1), 0)).start_tag, 100, "{in_use}");
            assert_eq!(shares.free(), 340 - in_use);
            drop((share, more, wanted, joined));
        }
    }

    #[tokio::test]
    async fn who_comes_later_wants_what_was_begun_for_it_already_too() {
        let (shares, joints) =
            (FairSemaphore::new(1, ClientQuota::UNLIMITED, CostBasis::Units), SingleFlight::default());
        let take = |client: u64| shares.acquire((ClientId::new(client), 0), 1).boxed();
        let held = take(9).await;
        let mut first: Vec<_> = (0..5).map(|_| take(1)).collect();
        assert!(first.iter_mut().all(|take| take.now_or_never().is_none()));
        // A chunk in another codec, which needs a block.
        let mut joined = ClientId::new(1).scope(async { joints.join("chunk") }).await;
        let (ours, blocks) = (shares.clone(), joints.clone());
        let chunk = joined.spawn(async move {
            let mut joined = blocks.join("block");
            let block = joined.spawn(async move { ours.acquire((ClientId::new(1), 0), 1).await });
            joined.wait_for(block).await
        });
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        let wanted = ClientId::new(2).scope(async { joints.join("chunk") }).await;
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        assert!(!chunk.is_finished());
        drop(held);
        drop(first.remove(0).now_or_never().expect("it came first"));
        let chunk = tokio::time::timeout(Duration::from_secs(20), chunk).await.expect("it is the second client's turn");
        drop(chunk.unwrap().unwrap());
        drop((first, wanted, joined));
        assert!(joints.lock().is_empty());
    }

    #[tokio::test]
    async fn what_was_begun_ends_with_the_last_who_wants_it_and_not_before() {
        let (joints, begun) = (SingleFlight::default(), Arc::new(()));
        let work = || {
            let begun = Arc::clone(&begun);
            lead(async move {
                std::future::pending::<()>().await;
                drop(begun);
                Ok::<_, ()>(())
            })
        };
        let (mut first, mut second, mut other) = (joints.join("block"), joints.join("block"), joints.join("another"));
        let (task, of_second) = (first.spawn(work()), second.spawn(async {}));
        let apart = other.spawn(work());
        of_second.await.unwrap();
        drop(first);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&begun), 3);
        drop(second);
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(Arc::strong_count(&begun), 2);
        assert!(!apart.is_finished());
        drop(other);
        assert!(apart.await.unwrap_err().is_cancelled());
        assert!(joints.lock().is_empty());
    }

    #[tokio::test]
    async fn who_hangs_up_while_others_wait_leaves_nothing_behind() {
        let (joints, begun) = (SingleFlight::default(), Arc::new(()));
        let waits = || {
            let begun = Arc::clone(&begun);
            async move {
                std::future::pending::<()>().await;
                drop(begun);
                Ok::<_, ()>(())
            }
        };
        let mut first = joints.join("block");
        let task = first.spawn(lead(waits()));
        let patient = joints.join("block");
        tokio::task::yield_now().await;
        for _ in 0..100 {
            drop(joints.join("block").spawn(waits()));
        }
        while Arc::strong_count(&begun) > 2 {
            tokio::task::yield_now().await;
        }
        drop(first);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        drop(patient);
        assert!(task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn what_is_left_is_there_for_all_who_want_it_and_no_longer() {
        let joints = SingleFlight::default();
        let run = |value: Arc<u8>| {
            lead(async move {
                retain_for_waiters(&value);
                Err::<(), _>(Arc::downgrade(&value))
            })
        };
        let (mut first, mut second) = (joints.join("chunk"), joints.join("chunk"));
        let weak = first.spawn(run(Arc::new(1))).await.unwrap().unwrap_err();
        drop(first);
        assert_eq!(weak.upgrade().as_deref(), Some(&1));
        // A new run does not wait for the memory of the earlier result.
        let (tell, told) = tokio::sync::oneshot::channel();
        let task = second.spawn(lead(async move {
            told.await.unwrap();
            run(Arc::new(2)).await
        }));
        tokio::task::yield_now().await;
        assert!(weak.upgrade().is_none());
        tell.send(()).unwrap();
        let weak = task.await.unwrap().unwrap_err();
        assert_eq!(weak.upgrade().as_deref(), Some(&2));
        drop(second);
        assert!(weak.upgrade().is_none() && joints.lock().is_empty());
    }

    #[tokio::test]
    async fn whoever_leads_does_so_for_the_others_also_where_it_came_later() {
        let (joints, (tell, told)) = (SingleFlight::default(), tokio::sync::oneshot::channel::<()>());
        let (first, mut second) = (joints.join("block"), joints.join("block"));
        let task = second.spawn(lead(told));
        tokio::task::yield_now().await;
        drop(second);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        // The next leader goes away, too.
        drop(tell);
        assert!(task.await.unwrap().is_err());
        let mut third = joints.join("block");
        let task = third.spawn(lead(std::future::pending::<Result<(), ()>>()));
        tokio::task::yield_now().await;
        drop(third);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        drop(first);
        assert!(task.await.unwrap_err().is_cancelled());
        assert!(joints.lock().is_empty());
    }

    #[tokio::test]
    async fn who_has_done_it_takes_nothing_from_who_does_it_anew() {
        let joints = SingleFlight::default();
        let (mut first, mut second, third) = (joints.join("block"), joints.join("block"), joints.join("block"));
        assert!(first.spawn(lead(async { Ok::<_, ()>(()) })).await.unwrap().is_ok());
        let task = second.spawn(lead(std::future::pending::<Result<(), ()>>()));
        tokio::task::yield_now().await;
        drop(second);
        drop(first);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        drop(third);
        assert!(task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn what_fails_leads_and_is_kept_no_more() {
        let joints = SingleFlight::default();
        let (first, mut second) = (joints.join("block"), joints.join("block"));
        let task = second.spawn(async {
            let failed = lead(async {
                detach_handle().detach();
                Err::<(), ()>(())
            });
            assert!(failed.await.is_err());
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        drop(second);
        assert!(task.await.unwrap_err().is_cancelled());
        drop(first);
    }

    #[tokio::test]
    async fn what_cannot_be_stopped_goes_on_to_its_end() {
        let (joints, (tell, told)) = (SingleFlight::default(), tokio::sync::oneshot::channel::<()>());
        let mut only = joints.join("block");
        let task = only.spawn(async {
            detach_handle().detach();
            told.await.unwrap();
            5
        });
        tokio::task::yield_now().await;
        drop(only);
        tokio::task::yield_now().await;
        tell.send(()).unwrap();
        assert_eq!(task.await.unwrap(), 5);
        assert!(joints.lock().is_empty());
    }
}
