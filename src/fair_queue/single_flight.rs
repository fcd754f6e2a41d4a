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

use super::client::ClientId;

tokio::task_local! {
    static FLIGHT: Flight;
    static FLIGHT_TASK: Arc<FlightTaskState>;
}

/// Returns the clients for which the running task works, if more may join.
pub(super) fn watch_flight_clients() -> Option<watch::Receiver<Vec<ClientId>>> {
    FLIGHT.try_with(|flight| flight.clients.subscribe()).ok()
}

/// Runs `work` as the leader, for all waiters of the running task's flight. It continues while any of them waits.
///
/// # Errors
/// Errors of `work`. The task then no longer leads, and another one may.
pub fn lead<T, E>(work: impl Future<Output = Result<T, E>>) -> impl Future<Output = Result<T, E>> {
    fn with_task_state(set: impl FnOnce(&FlightTaskState)) {
        // Outside such a task, no other client waits.
        let _ = FLIGHT_TASK.try_with(|state| set(state));
    }
    // Boxed, because a cache that awaits this future reserves space for it several times.
    let work = Box::pin(work);
    let begin = future::lazy(|_| {
        with_task_state(|state| state.is_leader.store(true, Ordering::Relaxed));
        // The memory that this run waits for may be held by the result of an earlier run.
        replace_retained(None);
    });
    begin.then(|()| work).inspect(|result| {
        if result.is_err() {
            with_task_state(|state| {
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
    let replaced = FLIGHT.try_with(|flight| {
        let mut retained = flight.retained.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *retained, value)
    });
    // Dropped outside the lock.
    drop(replaced);
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
    fn add_clients(&self, new_clients: Vec<ClientId>) {
        self.clients.send_if_modified(|clients| {
            let before = clients.len();
            let added: Vec<ClientId> = new_clients.into_iter().filter(|client| !clients.contains(client)).collect();
            clients.extend(added);
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
    flights: SingleFlight<K>,
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
        let mut parent_clients = watch_flight_clients();
        let clients = parent_clients
            .as_mut()
            .map_or_else(|| vec![ClientId::current()], |outer| outer.borrow_and_update().clone());
        let mut entries = self.lock();
        let entry = entries.entry(key.clone()).or_default();
        let is_first = entry.waiters == 0;
        entry.waiters += 1;
        entry.flight.add_clients(clients);
        Waiter { flights: self.clone(), key, flight: entry.flight.clone(), is_first, task: None, parent_clients }
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
        let Some(parent_clients) = &mut self.parent_clients else { return task.await };
        loop {
            tokio::select! {
                result = &mut task => return result,
                // The other flight does not end before this task does.
                Ok(()) = parent_clients.changed() => {
                    let clients = parent_clients.borrow_and_update().clone();
                    self.flight.add_clients(clients);
                }
            }
        }
    }
}

impl<K: Eq + Hash> Drop for Waiter<K> {
    fn drop(&mut self) {
        let mut entries = self.flights.lock();
        let Some(entry) = entries.get_mut(&self.key) else { return };
        entry.waiters -= 1;
        let mut ended_tasks: Vec<FlightTask> = self.task.take().into_iter().collect();
        if entry.waiters == 0 {
            ended_tasks.append(&mut entry.orphaned_tasks);
            entries.remove(&self.key);
        } else if ended_tasks.iter().any(|task| task.state.is_leader.load(Ordering::Relaxed)) {
            entry.orphaned_tasks.retain(|task| !task.handle.is_finished());
            entry.orphaned_tasks.append(&mut ended_tasks);
        }
        drop(entries);
        // Aborted outside the lock: the tasks may hold waiters of other flights.
        ended_tasks.iter().for_each(FlightTask::abort_unless_detached);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{ClientQuota, CostBasis, FairSemaphore};
    use super::*;

    #[tokio::test]
    async fn work_gets_its_permit_in_the_turn_of_the_first_client_and_others_lose_none() {
        let (semaphore, flights) =
            (FairSemaphore::new(1, ClientQuota::UNLIMITED, CostBasis::Units), SingleFlight::default());
        let acquire = |client: u64| semaphore.acquire((ClientId::new(client), 0), 1).boxed();
        let permit = acquire(9).await;
        // One client has much to do, and lastly something that another client wants as well.
        let mut first: Vec<_> = (0..5).map(|_| acquire(1)).collect();
        assert!(first.iter_mut().all(|acquire| acquire.now_or_never().is_none()));
        let mut first_waiter = ClientId::new(1).scope(async { flights.join("block") }).await;
        let task_semaphore = semaphore.clone();
        let task = first_waiter.spawn(async move { task_semaphore.acquire((ClientId::new(1), 0), 1).await });
        tokio::task::yield_now().await;
        let second_waiter = ClientId::new(2).scope(async { flights.join("block") }).await;
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        drop(permit);
        drop(first.remove(0).now_or_never().expect("it came first"));
        drop(task.await.expect("it is the second client's turn"));
        drop((first, second_waiter, first_waiter));
        assert_eq!(semaphore.free(), 1);
        assert!(!semaphore.has_waiters() && flights.lock().is_empty());
    }

    #[tokio::test]
    async fn a_client_is_not_charged_for_work_that_is_done_in_the_turn_of_another() {
        // With this many units in use, there are enough for one of the client's requests, or for both.
        for in_use in [100, 0] {
            let (semaphore, flights) =
                (FairSemaphore::new(640, ClientQuota::UNLIMITED, CostBasis::Units), SingleFlight::default());
            let acquire = |client: u64, units| semaphore.acquire((ClientId::new(client), 0), units).boxed();
            let (held_permit, _in_use) = (acquire(9, 400).await, acquire(8, in_use).await);
            let mut first_waiter = ClientId::new(1).scope(async { flights.join("block") }).await;
            let task_semaphore = semaphore.clone();
            let task = first_waiter.spawn(async move { task_semaphore.acquire((ClientId::new(1), 0), 300).await });
            tokio::task::yield_now().await;
            // The client has more to do, and stops another client.
            let (mut next_request, mut other) = (acquire(1, 600), acquire(3, 300));
            assert!((&mut next_request).now_or_never().is_none() && (&mut other).now_or_never().is_none());
            let second_waiter = ClientId::new(2).scope(async { flights.join("block") }).await;
            tokio::task::yield_now().await;
            // It is the second client's turn.
            semaphore.state().flow_mut((ClientId::new(1), 0)).start_tag = 100;
            drop((other, held_permit));
            let permit = task.await.unwrap();
            assert_eq!(permit.flow.0, ClientId::new(2));
            assert_eq!(semaphore.state().flow_mut((ClientId::new(1), 0)).start_tag, 100, "{in_use}");
            assert_eq!(semaphore.free(), 340 - in_use);
            drop((permit, next_request, second_waiter, first_waiter));
        }
    }

    #[tokio::test]
    async fn a_later_client_also_joins_work_that_was_started_for_the_flight() {
        let (semaphore, flights) =
            (FairSemaphore::new(1, ClientQuota::UNLIMITED, CostBasis::Units), SingleFlight::default());
        let acquire = |client: u64| semaphore.acquire((ClientId::new(client), 0), 1).boxed();
        let permit = acquire(9).await;
        let mut first: Vec<_> = (0..5).map(|_| acquire(1)).collect();
        assert!(first.iter_mut().all(|acquire| acquire.now_or_never().is_none()));
        // A chunk in another codec, which needs a block.
        let mut chunk_waiter = ClientId::new(1).scope(async { flights.join("chunk") }).await;
        let (task_semaphore, blocks) = (semaphore.clone(), flights.clone());
        let chunk = chunk_waiter.spawn(async move {
            let mut block_waiter = blocks.join("block");
            let block = block_waiter.spawn(async move { task_semaphore.acquire((ClientId::new(1), 0), 1).await });
            block_waiter.wait_for(block).await
        });
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        let second_waiter = ClientId::new(2).scope(async { flights.join("chunk") }).await;
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        assert!(!chunk.is_finished());
        drop(permit);
        drop(first.remove(0).now_or_never().expect("it came first"));
        let chunk = tokio::time::timeout(Duration::from_secs(20), chunk).await.expect("it is the second client's turn");
        drop(chunk.unwrap().unwrap());
        drop((first, second_waiter, chunk_waiter));
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn work_ends_with_its_last_waiter_and_not_before() {
        let (flights, token) = (SingleFlight::default(), Arc::new(()));
        let work = || {
            let token = Arc::clone(&token);
            lead(async move {
                std::future::pending::<()>().await;
                drop(token);
                Ok::<_, ()>(())
            })
        };
        let (mut first, mut second, mut other) =
            (flights.join("block"), flights.join("block"), flights.join("another"));
        let (task, second_task) = (first.spawn(work()), second.spawn(async {}));
        let other_task = other.spawn(work());
        second_task.await.unwrap();
        drop(first);
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&token), 3);
        drop(second);
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(Arc::strong_count(&token), 2);
        assert!(!other_task.is_finished());
        drop(other);
        assert!(other_task.await.unwrap_err().is_cancelled());
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn a_waiter_that_disconnects_leaves_nothing_behind() {
        let (flights, token) = (SingleFlight::default(), Arc::new(()));
        let work = || {
            let token = Arc::clone(&token);
            async move {
                std::future::pending::<()>().await;
                drop(token);
                Ok::<_, ()>(())
            }
        };
        let mut first = flights.join("block");
        let task = first.spawn(lead(work()));
        let waiting = flights.join("block");
        tokio::task::yield_now().await;
        for _ in 0..100 {
            drop(flights.join("block").spawn(work()));
        }
        while Arc::strong_count(&token) > 2 {
            tokio::task::yield_now().await;
        }
        drop(first);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        drop(waiting);
        assert!(task.await.unwrap_err().is_cancelled());
    }

    #[tokio::test]
    async fn a_retained_value_is_available_to_all_waiters_and_no_longer() {
        let flights = SingleFlight::default();
        let run = |value: Arc<u8>| {
            lead(async move {
                retain_for_waiters(&value);
                Err::<(), _>(Arc::downgrade(&value))
            })
        };
        let (mut first, mut second) = (flights.join("chunk"), flights.join("chunk"));
        let weak = first.spawn(run(Arc::new(1))).await.unwrap().unwrap_err();
        drop(first);
        assert_eq!(weak.upgrade().as_deref(), Some(&1));
        // A new run does not wait for the memory of the earlier result.
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let task = second.spawn(lead(async move {
            receiver.await.unwrap();
            run(Arc::new(2)).await
        }));
        tokio::task::yield_now().await;
        assert!(weak.upgrade().is_none());
        sender.send(()).unwrap();
        let weak = task.await.unwrap().unwrap_err();
        assert_eq!(weak.upgrade().as_deref(), Some(&2));
        drop(second);
        assert!(weak.upgrade().is_none() && flights.lock().is_empty());
    }

    #[tokio::test]
    async fn a_leader_works_for_all_waiters_even_if_it_joined_later() {
        let (flights, (sender, receiver)) = (SingleFlight::default(), tokio::sync::oneshot::channel::<()>());
        let (first, mut second) = (flights.join("block"), flights.join("block"));
        let task = second.spawn(lead(receiver));
        tokio::task::yield_now().await;
        drop(second);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        // The next leader goes away, too.
        drop(sender);
        assert!(task.await.unwrap().is_err());
        let mut third = flights.join("block");
        let task = third.spawn(lead(std::future::pending::<Result<(), ()>>()));
        tokio::task::yield_now().await;
        drop(third);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        drop(first);
        assert!(task.await.unwrap_err().is_cancelled());
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn a_finished_leader_does_not_stop_the_next_leader() {
        let flights = SingleFlight::default();
        let (mut first, mut second, third) = (flights.join("block"), flights.join("block"), flights.join("block"));
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
    async fn failed_work_no_longer_leads_and_is_not_detached() {
        let flights = SingleFlight::default();
        let (first, mut second) = (flights.join("block"), flights.join("block"));
        let task = second.spawn(async {
            let failed_work = lead(async {
                detach_handle().detach();
                Err::<(), ()>(())
            });
            assert!(failed_work.await.is_err());
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        drop(second);
        assert!(task.await.unwrap_err().is_cancelled());
        drop(first);
    }

    #[tokio::test]
    async fn detached_work_runs_to_its_end() {
        let (flights, (sender, receiver)) = (SingleFlight::default(), tokio::sync::oneshot::channel::<()>());
        let mut only = flights.join("block");
        let task = only.spawn(async {
            detach_handle().detach();
            receiver.await.unwrap();
            5
        });
        tokio::task::yield_now().await;
        drop(only);
        tokio::task::yield_now().await;
        sender.send(()).unwrap();
        assert_eq!(task.await.unwrap(), 5);
        assert!(flights.lock().is_empty());
    }
}
