//! Single flight: one task does the work for all clients that want the same key at the same time. It gets a permit as
//! soon as it is the turn of any of these clients.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::flow::ClientId;
use crate::telemetry::logs::panic_message;

tokio::task_local! {
    static CURRENT_FLIGHT: FlightHandle;
}

/// Returns the clients for which the running task works, if it is the task of a flight, which more clients may join.
pub(super) fn watch_flight_clients() -> Option<watch::Receiver<Vec<ClientId>>> {
    CURRENT_FLIGHT.try_with(|flight| flight.0.clients.subscribe()).ok()
}

/// Returns the clients for which the running task works. A task of a flight works for the clients of all its waiters;
/// the receiver then reports clients that join later. Any other task works for the current client.
fn current_clients() -> (Vec<ClientId>, Option<watch::Receiver<Vec<ClientId>>>) {
    let mut parent_clients = watch_flight_clients();
    let clients =
        parent_clients.as_mut().map_or_else(|| vec![ClientId::current()], |parent| parent.borrow_and_update().clone());
    (clients, parent_clients)
}

/// The flights in progress, by key. `T` is the type of their results. Cheap to clone; clones share the flights.
#[derive(Debug)]
pub struct SingleFlight<K, T>(Arc<Mutex<HashMap<K, Arc<Flight<T>>>>>);

/// A flight: work in progress, and its result, which is kept until the last waiter is dropped.
#[derive(Debug)]
struct Flight<T> {
    handle: FlightHandle,
    /// The task that runs the work, unless the leader runs it itself.
    task: OnceLock<AbortHandle>,
    /// `None` while the flight is in progress.
    end: watch::Sender<Option<FlightEnd<T>>>,
}

/// How a flight has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlightEnd<T> {
    /// The work has this result.
    Done(T),
    /// The leader gave up. A waiter may join again, and may become the leader.
    Abandoned,
    /// The work panicked. The text names the message of the panic.
    Panicked(String),
}

/// Handle of a flight. The work of the flight uses it to observe its waiters. Cheap to clone. The default handle
/// belongs to no flight.
#[derive(Debug, Clone, Default)]
pub struct FlightHandle(Arc<FlightState>);

#[derive(Debug, Default)]
struct FlightState {
    /// Clients on whose behalf the work runs. If a client joins later, the work also uses that client's turn in the
    /// fair queues.
    clients: watch::Sender<Vec<ClientId>>,
    waiters: AtomicUsize,
    is_detached: AtomicBool,
    is_superseded: AtomicBool,
}

impl FlightHandle {
    /// Returns true if a request is waiting for the result.
    pub fn has_waiters(&self) -> bool {
        self.0.waiters.load(Ordering::Relaxed) > 0
    }

    /// Lets the work run to completion even if no waiters remain. Called when the work can no longer be interrupted.
    pub fn detach(&self) {
        self.0.is_detached.store(true, Ordering::Relaxed);
    }

    /// Ends [`detach`](Self::detach): the work is aborted again when the last waiter is dropped.
    pub fn attach(&self) {
        self.0.is_detached.store(false, Ordering::Relaxed);
    }

    /// Returns true if the result is already out of date (see [`SingleFlight::supersede`]).
    pub fn is_superseded(&self) -> bool {
        self.0.is_superseded.load(Ordering::Acquire)
    }

    fn add_clients(&self, new_clients: Vec<ClientId>) {
        self.0.clients.send_if_modified(|clients| {
            let before = clients.len();
            let added: Vec<ClientId> = new_clients.into_iter().filter(|client| !clients.contains(client)).collect();
            clients.extend(added);
            clients.len() > before
        });
    }
}

impl<K, T> Clone for SingleFlight<K, T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K, T> Default for SingleFlight<K, T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash, T> SingleFlight<K, T> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, Arc<Flight<T>>>> {
        // No code that runs under the lock can leave the map inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes `flight`, so that later requests start another one.
    fn remove(&self, key: &K, flight: &Arc<Flight<T>>) {
        let mut flights = self.lock();
        if flights.get(key).is_some_and(|current| Arc::ptr_eq(current, flight)) {
            flights.remove(key);
        }
    }

    /// Keeps later requests from joining the flight of `key`, because its result will be out of date. The current
    /// waiters still get the result.
    pub fn supersede(&self, key: &K) {
        if let Some(flight) = self.lock().remove(key) {
            flight.handle.0.is_superseded.store(true, Ordering::Release);
        }
    }
}

impl<K: Clone + Eq + Hash, T: Clone> SingleFlight<K, T> {
    /// Joins the flight of `key` for the current client. If the calling task belongs to another flight, all clients of
    /// that flight join. If there was no flight of `key`, starts one and also returns its leader.
    pub fn join(&self, key: K) -> (Waiter<K, T>, Option<Leader<K, T>>) {
        let (clients, parent_clients) = current_clients();
        let mut flights = self.lock();
        let is_first = !flights.contains_key(&key);
        let flight = Arc::clone(flights.entry(key.clone()).or_default());
        flight.handle.0.waiters.fetch_add(1, Ordering::Relaxed);
        drop(flights);
        flight.handle.add_clients(clients);
        let leader = is_first.then(|| Leader { flights: self.clone(), key: key.clone(), flight: Arc::clone(&flight) });
        (Waiter { flights: self.clone(), key, flight, parent_clients }, leader)
    }

    /// Starts a flight that no other request can join. The flight counts as superseded from the start, so that its
    /// result does not enter a cache.
    pub fn unshared(&self, key: K) -> (Waiter<K, T>, Leader<K, T>) {
        let flight = Arc::<Flight<T>>::default();
        flight.handle.0.waiters.store(1, Ordering::Relaxed);
        flight.handle.0.is_superseded.store(true, Ordering::Release);
        let (clients, parent_clients) = current_clients();
        flight.handle.add_clients(clients);
        let waiter = Waiter { flights: self.clone(), key: key.clone(), flight: Arc::clone(&flight), parent_clients };
        (waiter, Leader { flights: self.clone(), key, flight })
    }

    /// Leads a new flight of `key` without waiting for it. Returns `None` if there is a flight already.
    pub fn try_lead(&self, key: K) -> Option<Leader<K, T>> {
        let mut flights = self.lock();
        if flights.contains_key(&key) {
            return None;
        }
        let flight = Arc::clone(flights.entry(key.clone()).or_default());
        drop(flights);
        Some(Leader { flights: self.clone(), key, flight })
    }
}

impl<T> Default for Flight<T> {
    fn default() -> Self {
        Self { handle: FlightHandle::default(), task: OnceLock::new(), end: watch::Sender::new(None) }
    }
}

/// The right to do the work of a flight. Dropping it abandons the flight, and one of the waiters may lead the next
/// flight.
#[derive(Debug)]
pub struct Leader<K: Eq + Hash, T> {
    flights: SingleFlight<K, T>,
    key: K,
    flight: Arc<Flight<T>>,
}

impl<K: Eq + Hash, T> Leader<K, T> {
    /// Returns the handle for the work of the flight.
    pub fn handle(&self) -> &FlightHandle {
        &self.flight.handle
    }

    /// Ends the flight with its result.
    pub fn finish(self, result: T) {
        self.flight.end.send_replace(Some(FlightEnd::Done(result)));
    }
}

impl<K, T> Leader<K, T>
where
    K: Eq + Hash + Send + 'static,
    T: Send + Sync + 'static,
{
    /// Runs `work` in a new task, which gets a permit as soon as it is the turn of any client of the flight. The task
    /// is aborted when the last waiter is dropped, unless it is [detached](FlightHandle::detach).
    pub fn spawn(self, work: impl Future<Output = T> + Send + 'static) {
        let flight = Arc::clone(&self.flight);
        let task = tokio::spawn(CURRENT_FLIGHT.scope(self.flight.handle.clone(), async move {
            let end = match AssertUnwindSafe(work).catch_unwind().await {
                Ok(result) => FlightEnd::Done(result),
                Err(panic) => {
                    let message = panic_message(&*panic).unwrap_or("no message");
                    FlightEnd::Panicked(format!("the work of a flight panicked: {message}"))
                }
            };
            self.flight.end.send_replace(Some(end));
        }));
        // Set once only, here.
        let _ = flight.task.set(task.abort_handle());
    }
}

impl<K: Eq + Hash, T> Drop for Leader<K, T> {
    fn drop(&mut self) {
        self.flights.remove(&self.key, &self.flight);
        self.flight.end.send_if_modified(|end| {
            let is_unfinished = end.is_none();
            end.get_or_insert(FlightEnd::Abandoned);
            is_unfinished
        });
    }
}

/// A request that waits for the result of a flight. The work is aborted when the last waiter is dropped.
#[derive(Debug)]
pub struct Waiter<K: Eq + Hash, T> {
    flights: SingleFlight<K, T>,
    key: K,
    flight: Arc<Flight<T>>,
    /// Clients of the flight to which the calling task belongs, if there is one.
    parent_clients: Option<watch::Receiver<Vec<ClientId>>>,
}

impl<K: Eq + Hash, T: Clone> Waiter<K, T> {
    /// Waits for the end of the flight. If the calling task belongs to another flight, clients that join that flight
    /// also join this one.
    pub async fn wait(mut self) -> FlightEnd<T> {
        let mut ends = self.flight.end.subscribe();
        loop {
            if let Some(end) = &*ends.borrow_and_update() {
                return end.clone();
            }
            // The sender of `ends` lives as long as this waiter.
            let Some(parent_clients) = &mut self.parent_clients else {
                let _ = ends.changed().await;
                continue;
            };
            tokio::select! {
                _ = ends.changed() => {}
                // The calling task's flight does not end before this wait ends.
                Ok(()) = parent_clients.changed() => {
                    let clients = parent_clients.borrow_and_update().clone();
                    self.flight.handle.add_clients(clients);
                }
            }
        }
    }
}

impl<K: Eq + Hash, T> Drop for Waiter<K, T> {
    fn drop(&mut self) {
        let state = &self.flight.handle.0;
        let mut flights = self.flights.lock();
        let is_last = state.waiters.fetch_sub(1, Ordering::Relaxed) == 1;
        // A flight without a task ends by itself, and soon.
        let task = self.flight.task.get().filter(|_| is_last && !state.is_detached.load(Ordering::Relaxed));
        if task.is_some() && flights.get(&self.key).is_some_and(|current| Arc::ptr_eq(current, &self.flight)) {
            flights.remove(&self.key);
        }
        drop(flights);
        // Aborted without holding the lock, because the task may hold waiters of other flights.
        if let Some(task) = task {
            task.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::super::{ClientQuota, CostBasis, FairPermit, FairSemaphore};
    use super::*;

    type Flights<T> = SingleFlight<&'static str, T>;

    fn semaphore(units: usize) -> FairSemaphore {
        FairSemaphore::new(units, ClientQuota::UNLIMITED, CostBasis::Units)
    }

    /// Starts a flight of `work` and returns its first waiter.
    fn start<T>(flights: &Flights<T>, work: impl Future<Output = T> + Send + 'static) -> Waiter<&'static str, T>
    where
        T: Clone + Send + Sync + 'static,
    {
        let (waiter, leader) = flights.join("block");
        leader.expect("there was no flight").spawn(work);
        waiter
    }

    /// Joins a flight.
    fn follow<T: Clone>(flights: &Flights<T>) -> Waiter<&'static str, T> {
        let (waiter, leader) = flights.join("block");
        assert!(leader.is_none(), "there was no flight");
        waiter
    }

    async fn yield_several_times() {
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn work_gets_its_permit_in_the_turn_of_the_first_client_and_others_lose_none() {
        let (semaphore, flights) = (semaphore(1), Flights::<Arc<FairPermit>>::default());
        let acquire = |client: u64| semaphore.acquire(ClientId::new(client).flow(0), 1).boxed();
        let permit = acquire(9).await;
        // One client has many requests, and another client also wants the last of them.
        let mut first: Vec<_> = (0..5).map(|_| acquire(1)).collect();
        assert!(first.iter_mut().all(|acquire| acquire.now_or_never().is_none()));
        let task_semaphore = semaphore.clone();
        let work = async move { Arc::new(task_semaphore.acquire(ClientId::new(1).flow(0), 1).await) };
        let first_waiter = ClientId::new(1).scope(async { start(&flights, work) }).await;
        tokio::task::yield_now().await;
        let second_waiter = ClientId::new(2).scope(async { follow(&flights) }).await;
        tokio::task::yield_now().await;
        let result = first_waiter.wait().shared();
        assert!(result.clone().now_or_never().is_none());
        drop(permit);
        drop(first.remove(0).now_or_never().expect("it came first"));
        yield_several_times().await;
        drop(result.now_or_never().expect("it is the second client's turn"));
        drop((first, second_waiter));
        assert_eq!(semaphore.free(), 1);
        assert!(!semaphore.has_waiters() && flights.lock().is_empty());
    }

    #[tokio::test]
    async fn a_client_is_not_charged_for_work_that_is_done_in_the_turn_of_another() {
        // Depending on the units in use, there are enough for one of the client's requests or for both.
        for in_use in [100, 0] {
            let (semaphore, flights) = (semaphore(640), Flights::<Arc<FairPermit>>::default());
            let acquire = |client: u64, units| semaphore.acquire(ClientId::new(client).flow(0), units).boxed();
            let (held_permit, _in_use) = (acquire(9, 400).await, acquire(8, in_use).await);
            let task_semaphore = semaphore.clone();
            let work = async move { Arc::new(task_semaphore.acquire(ClientId::new(1).flow(0), 300).await) };
            let first_waiter = ClientId::new(1).scope(async { start(&flights, work) }).await;
            tokio::task::yield_now().await;
            // The client has further requests, which delay another client.
            let (mut next_request, mut other) = (acquire(1, 600), acquire(3, 300));
            assert!((&mut next_request).now_or_never().is_none() && (&mut other).now_or_never().is_none());
            let second_waiter = ClientId::new(2).scope(async { follow(&flights) }).await;
            tokio::task::yield_now().await;
            // It is the second client's turn.
            semaphore.state().flow_mut(ClientId::new(1).flow(0)).start_tag = 100;
            drop((other, held_permit));
            let FlightEnd::Done(permit) = first_waiter.wait().await else { panic!("the work has ended") };
            assert_eq!(permit.flow.client, ClientId::new(2));
            assert_eq!(semaphore.state().flow_mut(ClientId::new(1).flow(0)).start_tag, 100, "{in_use}");
            assert_eq!(semaphore.free(), 340 - in_use);
            drop((permit, next_request, second_waiter));
        }
    }

    #[tokio::test]
    async fn a_later_client_also_joins_work_that_was_started_for_the_flight() {
        let (semaphore, chunks, blocks) = (semaphore(1), Flights::default(), Flights::<Arc<FairPermit>>::default());
        let acquire = |client: u64| semaphore.acquire(ClientId::new(client).flow(0), 1).boxed();
        let permit = acquire(9).await;
        let mut first: Vec<_> = (0..5).map(|_| acquire(1)).collect();
        assert!(first.iter_mut().all(|acquire| acquire.now_or_never().is_none()));
        // A chunk in another codec, which needs a block.
        let (task_semaphore, task_blocks) = (semaphore.clone(), blocks.clone());
        let chunk = async move {
            let work = async move { Arc::new(task_semaphore.acquire(ClientId::new(1).flow(0), 1).await) };
            start(&task_blocks, work).wait().await
        };
        let first_waiter = ClientId::new(1).scope(async { start(&chunks, chunk) }).await;
        yield_several_times().await;
        let second_waiter = ClientId::new(2).scope(async { follow(&chunks) }).await;
        yield_several_times().await;
        let result = first_waiter.wait().shared();
        assert!(result.clone().now_or_never().is_none());
        drop(permit);
        drop(first.remove(0).now_or_never().expect("it came first"));
        let chunk =
            tokio::time::timeout(Duration::from_secs(20), result).await.expect("it is the second client's turn");
        assert!(matches!(chunk, FlightEnd::Done(FlightEnd::Done(_))));
        drop((first, second_waiter));
        assert!(chunks.lock().is_empty() && blocks.lock().is_empty());
    }

    #[tokio::test]
    async fn work_ends_with_its_last_waiter_and_not_before() {
        let (flights, token) = (Flights::<()>::default(), Arc::new(()));
        let work = || {
            let token = Arc::clone(&token);
            async move {
                std::future::pending::<()>().await;
                drop(token);
            }
        };
        let (first, second) = (start(&flights, work()), follow(&flights));
        let (other, other_leader) = flights.join("another");
        other_leader.unwrap().spawn(work());
        drop(first);
        yield_several_times().await;
        assert_eq!(Arc::strong_count(&token), 3);
        assert!(second.flight.handle.has_waiters());
        drop(second);
        yield_several_times().await;
        assert_eq!(Arc::strong_count(&token), 2);
        drop(other);
        yield_several_times().await;
        assert_eq!(Arc::strong_count(&token), 1);
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn a_waiter_that_disconnects_leaves_nothing_behind() {
        let (flights, token) = (Flights::<()>::default(), Arc::new(()));
        let task_token = Arc::clone(&token);
        let first = start(&flights, async move {
            std::future::pending::<()>().await;
            drop(task_token);
        });
        let waiting = follow(&flights);
        for _ in 0..100 {
            assert!(follow(&flights).wait().now_or_never().is_none());
        }
        drop(first);
        yield_several_times().await;
        assert_eq!((Arc::strong_count(&token), Arc::strong_count(&waiting.flight)), (2, 3));
        drop(waiting);
        yield_several_times().await;
        assert_eq!(Arc::strong_count(&token), 1);
    }

    #[tokio::test]
    async fn a_result_is_kept_until_the_last_waiter_has_it_and_no_longer() {
        let (flights, (sender, receiver)) = (Flights::default(), oneshot::channel::<Arc<u8>>());
        let (first, second) = (start(&flights, async { receiver.await.unwrap() }), follow(&flights));
        let value = Arc::new(1);
        let weak = Arc::downgrade(&value);
        sender.send(value).unwrap();
        assert_eq!(first.wait().await, FlightEnd::Done(Arc::new(1)));
        yield_several_times().await;
        assert!(flights.lock().is_empty());
        assert_eq!(weak.upgrade().as_deref(), Some(&1));
        // A new flight does not take over the earlier result.
        let third = start(&flights, async { Arc::new(2) });
        assert_eq!(second.wait().await, FlightEnd::Done(Arc::new(1)));
        assert!(weak.upgrade().is_none());
        assert_eq!(third.wait().await, FlightEnd::Done(Arc::new(2)));
    }

    #[tokio::test]
    async fn a_leader_that_gives_up_leaves_the_work_to_a_waiter() {
        let flights = Flights::<u8>::default();
        let leader = flights.try_lead("block").unwrap();
        assert!(flights.try_lead("block").is_none());
        let (first, second) = (follow(&flights), follow(&flights));
        // Its waiters are dropped, and new ones join.
        drop(first);
        assert!(leader.handle().has_waiters());
        drop(leader);
        assert_eq!(second.wait().await, FlightEnd::Abandoned);
        let (third, leader) = flights.join("block");
        leader.unwrap().finish(3);
        assert_eq!(third.wait().await, FlightEnd::Done(3));
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn an_unshared_flight_neither_joins_nor_ends_another() {
        let (flights, (sender, receiver)) = (Flights::default(), oneshot::channel::<u8>());
        let shared = start(&flights, async { receiver.await.unwrap() });
        let (unshared, leader) = flights.unshared("block");
        leader.spawn(async { 1 });
        assert_eq!(unshared.wait().await, FlightEnd::Done(1));
        drop(flights.unshared("block"));
        let joined = follow(&flights);
        sender.send(2).unwrap();
        assert_eq!((shared.wait().await, joined.wait().await), (FlightEnd::Done(2), FlightEnd::Done(2)));
    }

    #[tokio::test]
    async fn a_finished_flight_does_not_end_the_next_one() {
        let (flights, (sender, receiver)) = (Flights::default(), oneshot::channel::<u8>());
        let (first, second) = (start(&flights, async { 1 }), follow(&flights));
        assert_eq!(first.wait().await, FlightEnd::Done(1));
        yield_several_times().await;
        let next = start(&flights, async { receiver.await.unwrap() });
        drop(second);
        yield_several_times().await;
        sender.send(2).unwrap();
        assert_eq!(next.wait().await, FlightEnd::Done(2));
    }

    #[tokio::test]
    async fn a_superseded_flight_serves_its_waiters_and_no_later_request() {
        let (flights, (sender, receiver)) = (Flights::default(), oneshot::channel::<u8>());
        let early = start(&flights, async { receiver.await.unwrap() });
        let handle = early.flight.handle.clone();
        assert!(!handle.is_superseded());
        flights.supersede(&"block");
        assert!(handle.is_superseded());
        let late = start(&flights, async { 2 });
        assert_eq!(late.wait().await, FlightEnd::Done(2));
        sender.send(1).unwrap();
        assert_eq!(early.wait().await, FlightEnd::Done(1));
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn detached_work_runs_to_its_end_and_can_be_joined() {
        let (flights, (sender, receiver)) = (Flights::default(), oneshot::channel::<()>());
        let only = start(&flights, async {
            receiver.await.unwrap();
            5
        });
        only.flight.handle.detach();
        drop(only);
        yield_several_times().await;
        drop(follow(&flights));
        let later = follow(&flights);
        sender.send(()).unwrap();
        assert_eq!(later.wait().await, FlightEnd::Done(5));
        yield_several_times().await;
        assert!(flights.lock().is_empty());
    }

    #[tokio::test]
    async fn attached_work_ends_with_its_last_waiter() {
        let flights = Flights::<()>::default();
        let only = start(&flights, std::future::pending());
        only.flight.handle.detach();
        only.flight.handle.attach();
        let flight = Arc::downgrade(&only.flight);
        drop(only);
        yield_several_times().await;
        assert!(flight.upgrade().is_none() && flights.lock().is_empty());
    }

    #[tokio::test]
    async fn a_panic_reaches_every_waiter() {
        let flights = Flights::<()>::default();
        let (first, second) = (start(&flights, async { panic!("no such codec") }), follow(&flights));
        for waiter in [first, second] {
            let end = waiter.wait().await;
            assert!(matches!(end, FlightEnd::Panicked(message) if message.ends_with("no such codec")));
        }
        assert!(flights.lock().is_empty());
    }
}
