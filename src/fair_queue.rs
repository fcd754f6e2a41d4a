//! Start-time fair queueing for scarce units such as memory or cores. Requests wait in the queue of their own flow, and
//! the next permit goes to the flow that has received the least service. A flow that requests much, or holds it for
//! long, delays others by one permit, not by all of its own.

mod flow;
mod permit;
mod single_flight;
mod state;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;

pub use flow::ClientQuota;
pub use permit::FairPermit;
pub use single_flight::{DetachHandle, SingleFlight, Waiter, detach_handle, lead, retain_for_waiters};
pub use state::max_overtaking_units;

use flow::PendingAcquire;
use permit::GrantKind;
use state::FairSemaphoreState;

tokio::task_local! {
    static CLIENT: ClientId;
}

/// Identifies the client for which work is done. Equal numbers are one client. The default is the server itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ClientId(u64);

impl ClientId {
    /// Creates the id with this number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the client for which the running task works, or the default if none was set.
    pub fn current() -> Self {
        CLIENT.try_with(|client| *client).unwrap_or_default()
    }

    /// Runs `work` for this client. Tasks that it spawns do not inherit the client.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CLIENT.scope(self, work)
    }
}

/// Identifies a flow: a client, and a number for the kind of its requests.
pub type FlowId = (ClientId, u64);

/// Measure of the service that a flow has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostBasis {
    /// Number of units granted.
    Units,
    /// Time for which units are held.
    Time,
}

/// A semaphore whose units are granted fairly. Cheap to clone; clones share the units.
#[derive(Debug, Clone)]
pub struct FairSemaphore(Arc<Mutex<FairSemaphoreState>>);

impl FairSemaphore {
    /// Creates a semaphore with this many units. One client gets at most `most` of them, or a single permit that is
    /// larger.
    pub fn new(units: usize, most: ClientQuota, cost: CostBasis) -> Self {
        Self::with_cache(0, units, most, cost)
    }

    /// Like [`Self::new`], with `in_flight` units and the units that a cache may fill.
    pub fn with_cache(cached: usize, in_flight: usize, most: ClientQuota, cost: CostBasis) -> Self {
        let units = cached.saturating_add(in_flight);
        Self(Arc::new(Mutex::new(FairSemaphoreState {
            total: units,
            free: units,
            overcommitted: 0,
            occupied: 0,
            in_flight_capacity: in_flight,
            overtaking_units: 0,
            cost,
            client_quota: most,
            virtual_time: 0,
            flows: Vec::new(),
        })))
    }

    /// Returns true if any request waits.
    pub fn has_waiters(&self) -> bool {
        self.state().flows.iter().any(|line| !line.queue.is_empty())
    }

    /// Returns true if a request of a client other than `client` waits.
    pub fn has_waiters_other_than(&self, client: ClientId) -> bool {
        self.state().flows.iter().any(|line| line.id.0 != client && !line.queue.is_empty())
    }

    /// Releases `share` and blocks the thread until its flow is served again. The request goes to the front of its
    /// flow.
    pub fn blocking_yield(&self, share: FairPermit) -> FairPermit {
        let (party, units) = (share.flow, share.units);
        let (sender, receiver) = oneshot::channel();
        self.state().flow_mut(party).queue.push_front(PendingAcquire::new(units, GrantKind::InTurn, sender));
        // Dropped only now: the service that a flow has received is forgotten when it holds nothing and nothing waits
        // in it.
        drop(share);
        // The sender is never dropped without sending a permit.
        receiver.blocking_recv().unwrap_or_else(|_| self.new_permit(party, 0, GrantKind::InTurn))
    }

    /// Returns the number of units that are not granted.
    pub fn free(&self) -> usize {
        self.state().free
    }

    /// Returns the number of units that are granted.
    pub fn taken(&self) -> usize {
        self.state().taken()
    }

    /// Changes the number of units. If more units are granted than exist now, the surplus is not granted again when it
    /// is released.
    pub fn resize(&self, cached: usize, in_flight: usize, most: ClientQuota) {
        let mut state = self.state();
        let (units, taken) = (cached.saturating_add(in_flight), state.taken());
        *state = FairSemaphoreState {
            total: units,
            free: units.saturating_sub(taken),
            overcommitted: taken.saturating_sub(units),
            in_flight_capacity: in_flight,
            client_quota: most,
            flows: std::mem::take(&mut state.flows),
            ..*state
        };
        drop(state);
        self.grant_waiters();
    }

    /// Returns a permit for `party` if there are enough units and no other flow waits for them.
    pub fn try_acquire(&self, party: FlowId, units: usize) -> Option<FairPermit> {
        self.try_acquire_with_reserve(party, units, 0)
    }

    /// Like [`Self::try_acquire`], but leaves `beside` units free for others.
    pub fn try_acquire_with_reserve(&self, party: FlowId, units: usize, beside: usize) -> Option<FairPermit> {
        let mut state = self.state();
        // Flows that wait for units of their own clients block no one else.
        let mut owing = None;
        let is_first = state.flows.iter().all(|line| {
            // There may be thousands of requests and flows. All streams are of one kind, whose units are counted once.
            let mut are_owed = || match owing {
                Some((kind, are_owed)) if kind == line.id.1 => are_owed,
                _ => owing.insert((line.id.1, state.are_streams_starved(line.id.1))).1,
            };
            let first =
                line.queue.iter().find(|place| place.stream.is_none() || place.is_first_of_stream() && are_owed());
            first.is_none_or(|place| {
                line.id != party
                    && state.exceeds_client_quota(line.id, place.units, place.reserve, place.stream.is_some())
            })
        });
        if !is_first
            || units.saturating_add(beside) > state.free
            || state.exceeds_client_quota(party, units, beside, false)
        {
            return None;
        }
        state.grant(party, units, units);
        Some(self.new_permit(party, units, GrantKind::InTurn))
    }

    /// Marks units as in use until [`vacate`](Self::vacate). Clients may then hold less if their quota is a part of the
    /// free units. The units can still be granted.
    pub fn occupy(&self, units: usize) {
        let mut state = self.state();
        state.occupied = state.occupied.saturating_add(units);
    }

    /// Marks units as no longer in use.
    pub fn vacate(&self, units: usize) {
        if units > 0 {
            let mut state = self.state();
            state.occupied = state.occupied.saturating_sub(units);
            drop(state);
            self.grant_waiters();
        }
    }

    /// Returns the number of units that `party` has received, while it holds units or waits. The number grows with each
    /// permit.
    pub fn service_received(&self, party: FlowId) -> u64 {
        self.state().flows.iter().find(|line| line.id == party).map_or(0, |line| line.start_tag)
    }

    /// Charges units to the client that are already granted, to the server or to any client. Returns `None` if the
    /// client holds too much. Also returns `None` if a request of the flow waits, since a large charge would otherwise
    /// never succeed while small ones do.
    pub fn try_charge(&self, party: FlowId, units: usize) -> Option<FairPermit> {
        let mut state = self.state();
        let waits = state.flows.iter().any(|line| line.id == party && !line.queue.is_empty());
        if waits || state.exceeds_client_quota(party, units, 0, false) {
            return None;
        }
        state.grant(party, units, 0);
        Some(self.new_permit(party, units, GrantKind::Charged))
    }

    /// Like [`Self::try_charge`], but waits until the client has released enough.
    pub async fn charge(&self, party: FlowId, units: usize) -> FairPermit {
        if let Some(share) = self.try_charge(party, units) {
            return share;
        }
        self.wait(party, &AtomicBool::new(false), |sender| PendingAcquire::new(units, GrantKind::Charged, sender)).await
    }

    /// Waits until it is the turn of `party` and returns a permit. Dropping the future cancels the request.
    pub async fn acquire(&self, party: FlowId, units: usize) -> FairPermit {
        self.acquire_with_reserve(party, units, 0).await
    }

    /// Like [`Self::acquire`], but leaves `beside` units free for others.
    pub async fn acquire_with_reserve(&self, party: FlowId, units: usize, beside: usize) -> FairPermit {
        if let Some(share) = self.try_acquire_with_reserve(party, units, beside) {
            return share;
        }
        let place =
            |sender| PendingAcquire { reserve: beside, ..PendingAcquire::new(units, GrantKind::InTurn, sender) };
        let is_served = AtomicBool::new(false);
        let Some(mut clients) = single_flight::watch_flight_clients() else {
            return self.wait(party, &is_served, place).await;
        };
        let first = self.wait(party, &is_served, place);
        let (mut places, mut known) = (FuturesUnordered::from_iter([first]), vec![party.0]);
        loop {
            for client in &*clients.borrow_and_update() {
                if !known.contains(client) {
                    known.push(*client);
                    places.push(self.wait((*client, party.1), &is_served, place));
                }
            }
            tokio::select! {
                biased;
                Some(share) = places.next() => {
                    // The requests of the other clients are not charged as cancelled.
                    is_served.store(true, Ordering::Relaxed);
                    return share;
                }
                Ok(()) = clients.changed() => {}
            }
        }
    }

    /// Like [`Self::acquire`], for a part of a stream. Leaves `beside` units free. Requests that are not streams go
    /// first. A stream whose earlier parts are still being sent, and hold `stream`, also lets other streams go first,
    /// since it waits for its own client.
    pub async fn acquire_for_stream(&self, party: FlowId, units: usize, beside: usize, stream: &Arc<()>) -> FairPermit {
        let stream = Some(Arc::downgrade(stream));
        let place = |sender| PendingAcquire {
            reserve: beside,
            stream,
            ..PendingAcquire::new(units, GrantKind::InTurn, sender)
        };
        self.wait(party, &AtomicBool::new(false), place).await
    }

    /// Waits in the flow `party`. Nothing is charged if the future is dropped after `is_served` has become true.
    async fn wait(
        &self,
        party: FlowId,
        is_served: &AtomicBool,
        place: impl FnOnce(oneshot::Sender<FairPermit>) -> PendingAcquire,
    ) -> FairPermit {
        let (sender, receiver) = oneshot::channel();
        self.state().flow_mut(party).queue.push_back(place(sender));
        let mut waiting = PendingAcquireGuard { semaphore: self, flow: party, is_served, receiver };
        self.grant_waiters();
        // The sender is dropped only with a sent permit, or when the request was cancelled.
        (&mut waiting.receiver).await.unwrap_or_else(|_| self.new_permit(party, 0, GrantKind::Charged))
    }

    fn new_permit(&self, party: FlowId, units: usize, kind: GrantKind) -> FairPermit {
        FairPermit { semaphore: self.clone(), flow: party, units, kind, since: Instant::now() }
    }

    fn state(&self) -> MutexGuard<'_, FairSemaphoreState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants free units to the requests whose turn it is.
    fn grant_waiters(&self) {
        loop {
            let Some((party, place)) = self.state().grant_next() else { return };
            // Sent outside the lock: the receiver may drop the permit at this moment, which takes the lock.
            let (units, kind) = (place.units, place.kind);
            if let Err(mut share) = place.sender.send(self.new_permit(party, units, kind)) {
                self.state().release(party, std::mem::take(&mut share.units), kind, None);
            }
        }
    }
}

/// Removes a request from its flow when the future that waits for it is dropped.
struct PendingAcquireGuard<'a> {
    semaphore: &'a FairSemaphore,
    flow: FlowId,
    /// True once the work has got its permit through another request.
    is_served: &'a AtomicBool,
    receiver: oneshot::Receiver<FairPermit>,
}

impl Drop for PendingAcquireGuard<'_> {
    fn drop(&mut self) {
        if self.receiver.is_terminated() {
            return;
        }
        let is_served = self.is_served.load(Ordering::Relaxed);
        {
            // Under the lock. Otherwise another request of the flow that is dropped now would remove this one.
            let mut state = self.semaphore.state();
            self.receiver.close();
            state.remove_cancelled(self.flow, is_served);
            if is_served && let Ok(mut share) = self.receiver.try_recv() {
                // Both permits were granted at the same time.
                state.release(self.flow, std::mem::take(&mut share.units), share.kind, None);
            }
        }
        // Others may have waited behind the request.
        self.semaphore.grant_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use super::*;

    fn most(units: usize) -> ClientQuota {
        ClientQuota { alone: units, among_others: units }
    }

    fn party(client: u64) -> FlowId {
        (ClientId::new(client), 0)
    }

    /// Returns a request that already waits.
    fn wait(shares: &FairSemaphore, client: u64, units: usize) -> BoxFuture<'_, FairPermit> {
        let mut take = shares.acquire(party(client), units).boxed();
        assert!((&mut take).now_or_never().is_none());
        take
    }

    /// Returns the clients in the order of their turns, if each holds a unit for `cost` milliseconds.
    fn order(shares: &FairSemaphore, clients: &[u64], cost: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut running = shares.acquire(party(clients[0]), 1).now_or_never().unwrap();
        let mut waiting: Vec<(u64, _)> =
            clients[1..].iter().map(|client| (*client, wait(shares, *client, 1))).collect();
        let mut order = vec![clients[0]];
        while !waiting.is_empty() {
            running.release(|_| Duration::from_millis(cost(order[order.len() - 1])));
            let next = waiting.iter_mut().enumerate().find_map(|(n, (_, take))| Some((n, take.now_or_never()?)));
            let (n, share) = next.unwrap();
            order.push(waiting.remove(n).0);
            running = share;
        }
        order
    }

    fn is_as_new(shares: &FairSemaphore) -> bool {
        let state = shares.state();
        state.free == state.total
            && state.overtaking_units == 0
            && state.flows.iter().all(|line| line.held == 0 && line.queue.is_empty())
    }

    #[test]
    fn places_that_are_given_up_cost_nothing_where_no_other_client_waits() {
        let shares = FairSemaphore::new(64, most(64), CostBasis::Units);
        let held = shares.try_acquire(party(1), 60).unwrap();
        let mut waiting: Vec<_> = (0..10).map(|_| wait(&shares, 2, 32)).collect();
        waiting.truncate(1);
        assert_eq!(shares.service_received(party(2)), 0);
        // The remaining request is behind nothing but the first client's permit. Another client comes and waits behind
        // it.
        let other = wait(&shares, 3, 32);
        drop(waiting);
        assert!(shares.service_received(party(2)) <= 32);
        drop((held, other));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_client_with_much_to_do_delays_others_by_one_turn() {
        let clients = [1, 1, 1, 1, 1, 2, 2, 3];
        let shares = FairSemaphore::new(1, most(1), CostBasis::Time);
        assert_eq!(order(&shares, &clients, |_| 7), [1, 2, 3, 1, 2, 1, 1, 1]);
        assert!(!shares.has_waiters() && is_as_new(&shares));
        let shares = FairSemaphore::new(1, most(1), CostBasis::Units);
        assert_eq!(order(&shares, &clients, |_| 7), [1, 1, 2, 3, 1, 2, 1, 1]);
        assert!(!shares.has_waiters() && is_as_new(&shares));
    }

    #[test]
    fn a_client_that_asks_for_many_shares_has_its_part_beside_many_that_ask_for_one_after_the_other() {
        for (units, others, cost) in [(2, 4, CostBasis::Time), (4, 16, CostBasis::Time), (32, 64, CostBasis::Units)] {
            let shares = FairSemaphore::new(units, ClientQuota::UNLIMITED, cost);
            let mut held: Vec<(u64, FairPermit)> =
                (0..units).map(|_| (1, shares.try_acquire(party(1), 1).unwrap())).collect();
            let one = |client| (client, shares.acquire(party(client), 1).boxed());
            let mut waiting: Vec<_> = std::iter::repeat_n(1, 50).chain(2..others + 2).map(one).collect();
            let mut counts = [0; 2];
            for _ in 0..100 * (others + 1) {
                let (_, mut share) = held.remove(0);
                share.release(|_| Duration::from_millis(5));
                let mut at = 0;
                while let Some((client, take)) = waiting.get_mut(at) {
                    let client = *client;
                    if let Some(share) = take.now_or_never() {
                        counts[usize::from(client != 1)] += 1;
                        held.push((client, share));
                        drop(waiting.remove(at));
                        waiting.push(one(client));
                        let _queued = (&mut waiting.last_mut().unwrap().1).now_or_never().is_none();
                    } else {
                        at += 1;
                    }
                }
            }
            assert!(counts[0] > 80, "{counts:?} with {others} others");
        }
    }

    #[test]
    fn a_client_with_long_jobs_has_as_much_time_as_others_not_as_many_turns() {
        let cost = |client| if client == 1 { 40 } else { 10 };
        let clients = [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2];
        let shares = FairSemaphore::new(1, most(1), CostBasis::Time);
        assert_eq!(order(&shares, &clients, cost), [1, 2, 2, 2, 2, 1, 2, 2, 2, 2, 1, 2, 1]);
    }

    #[test]
    fn who_comes_late_has_saved_nothing_up() {
        let shares = FairSemaphore::new(1, most(1), CostBasis::Time);
        let mut first = shares.acquire(party(1), 1).now_or_never().unwrap();
        let _others = [wait(&shares, 1, 1), wait(&shares, 1, 1)];
        first.release(|_| Duration::from_secs(1000));
        assert_eq!(shares.state().virtual_time, 1_000_000_000_000);
        let _late = wait(&shares, 2, 1);
        assert_eq!(shares.state().flow_mut(party(2)).start_tag, 1_000_000_000_000);
    }

    #[test]
    fn who_gives_up_leaves_nothing_and_loses_no_unit() {
        let shares = FairSemaphore::new(2, most(2), CostBasis::Time);
        let running = [1, 1].map(|client| shares.acquire(party(client), 1).now_or_never().unwrap());
        let (before, after) = (wait(&shares, 3, 2), wait(&shares, 2, 1));
        drop(before);
        assert!(shares.has_waiters());
        assert!(shares.try_acquire(party(4), 1).is_none(), "others wait");
        assert_eq!(shares.taken(), 2);
        drop(running);
        // The request has its permit, and is dropped before it sees it.
        drop(after);
        assert!(!shares.has_waiters() && is_as_new(&shares));
    }

    #[test]
    fn who_wants_much_gets_it_and_who_gives_up_holds_up_nobody() {
        let shares = FairSemaphore::new(4, most(4), CostBasis::Units);
        let mut held = shares.acquire(party(1), 4).now_or_never().unwrap();
        let (mut large, mut small) = (wait(&shares, 2, 3), wait(&shares, 3, 1));
        drop(held.split(2));
        assert!((&mut small).now_or_never().is_none(), "otherwise the large request would never get enough units");
        drop(held.split(1));
        assert_eq!((&mut large).now_or_never().unwrap().units(), 3);
        assert!((&mut small).now_or_never().is_some());
        let (large, mut small) = (wait(&shares, 2, 4), wait(&shares, 3, 3));
        drop(large);
        assert!((&mut small).now_or_never().is_some());
        drop((held, small));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn one_client_never_holds_all_but_in_one_piece() {
        let shares = FairSemaphore::new(8, most(6), CostBasis::Units);
        let first = shares.acquire(party(1), 4).now_or_never().unwrap();
        let mut second = wait(&shares, 1, 4);
        let mut third = wait(&shares, 1, 1);
        let other = shares.acquire(party(2), 4).now_or_never().expect("it delays no other client");
        drop(other);
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        assert_eq!((&mut second).now_or_never().unwrap().units(), 4);
        drop((&mut third).now_or_never().unwrap());
        drop(second);
        assert_eq!(shares.acquire(party(1), 8).now_or_never().unwrap().units(), 8);
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_client_has_less_when_others_come_and_what_it_counts_takes_nothing() {
        let shares = FairSemaphore::new(16, ClientQuota { alone: 12, among_others: 8 }, CostBasis::Units);
        let mut held: Vec<FairPermit> = (0..12).map(|_| shares.try_acquire(party(1), 1).unwrap()).collect();
        assert!(shares.try_acquire(party(1), 1).is_none() && shares.try_charge(party(1), 1).is_none());
        let other = shares.try_acquire(party(2), 1).expect("the rest is for others");
        let mut more = wait(&shares, 1, 1);
        held.truncate(8);
        assert!((&mut more).now_or_never().is_none(), "other clients are active");
        held.truncate(7);
        drop((&mut more).now_or_never().unwrap());
        held.clear();
        // Cached units are charged to a client while they are sent, but are memory of no client.
        let mut cached = shares.try_acquire(party(1), 8).unwrap();
        assert!(shares.try_acquire(party(1), 1).is_none());
        cached.transfer_to_server();
        let sent = shares.try_charge(party(1), 8).unwrap();
        assert!(shares.try_acquire(party(1), 1).is_none());
        let mut waits = shares.charge(party(1), 1).boxed();
        assert!((&mut waits).now_or_never().is_none());
        assert_eq!(shares.free(), 7);
        drop(sent);
        drop((&mut waits).now_or_never().unwrap());
        drop((cached, other, more, waits));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_large_share_that_waits_to_be_counted_is_not_overtaken_by_small_ones_of_its_client() {
        let shares = FairSemaphore::new(16, ClientQuota { alone: 8, among_others: 8 }, CostBasis::Units);
        let mut held: Vec<FairPermit> = (0..6).map(|_| shares.try_charge(party(1), 1).unwrap()).collect();
        let mut large = shares.charge(party(1), 6).boxed();
        assert!((&mut large).now_or_never().is_none());
        assert!(shares.try_charge(party(1), 1).is_none(), "the large one was there first");
        assert!(shares.try_charge(party(2), 1).is_some());
        held.truncate(2);
        assert_eq!((&mut large).now_or_never().unwrap().units(), 6);
        drop((held, large));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_share_that_leaves_some_waits_until_that_is_free_too() {
        let shares = FairSemaphore::new(1024, most(1023), CostBasis::Units);
        let held = shares.acquire_with_reserve(party(1), 768, 64).now_or_never().unwrap();
        let mut large = shares.acquire_with_reserve(party(2), 200, 64).boxed();
        assert!((&mut large).now_or_never().is_none());
        // Small requests overtake it, others do not.
        let mut other = wait(&shares, 3, 200);
        let small = shares.acquire(party(4), 16).now_or_never();
        assert!(small.is_some() && (&mut other).now_or_never().is_none());
        drop((other, small));
        drop((held, (&mut large).now_or_never()));
        drop(large);
        assert!(is_as_new(&shares));
    }

    /// Returns as many permits of this many units as one client after another can acquire at once.
    fn passing(shares: &FairSemaphore, units: usize) -> Vec<FairPermit> {
        (100..).map_while(|client| shares.acquire(party(client), units).now_or_never()).collect()
    }

    #[test]
    fn small_shares_pass_a_large_one_that_waits_and_leave_it_its_turn() {
        let shares = FairSemaphore::new(640, most(639), CostBasis::Units);
        let mut held = shares.acquire(party(1), 300).now_or_never().unwrap();
        let (mut large, mut other) = (wait(&shares, 2, 350), wait(&shares, 3, 11));
        // One eighth may overtake, but not all of it from one client, nor the last of it.
        let mut passed: Vec<FairPermit> =
            (0..3).map(|_| shares.acquire(party(4), 10).now_or_never().unwrap()).collect();
        let mut fourth = wait(&shares, 4, 10);
        passed.extend(passing(&shares, 10));
        let count = passed.len();
        assert_eq!((count, shares.state().overtaking_units), (7, 70));
        assert!((&mut other).now_or_never().is_none(), "it is not small");
        // Units that are merged into a permit that did not overtake no longer count as overtaking.
        held.merge(passed.remove(5));
        assert_eq!(shares.state().overtaking_units, 60);
        // Units of the server do not count.
        passed[0].transfer_to_server();
        assert_eq!(shares.state().overtaking_units, 50);
        // A cancelled request takes nothing.
        let gone = wait(&shares, 4, 9);
        drop(gone);
        assert_eq!(shares.state().overtaking_units, 50);
        drop(held.split(100));
        assert_eq!((&mut large).now_or_never().unwrap().units(), 350);
        drop((passed, fourth.as_mut().now_or_never(), other.as_mut().now_or_never()));
        drop((held, large, fourth, other));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_large_share_that_leaves_some_is_not_passed_by_more_than_that() {
        for (units, most_passed) in [(480, 80), (540, 60), (580, 20), (600, 20), (640, 20)] {
            let shares = FairSemaphore::new(640, most(639), CostBasis::Units);
            let beside = 40.min(640 - units);
            let held = shares.acquire(party(1), 400).now_or_never().unwrap();
            let mut large = shares.acquire_with_reserve(party(2), units, beside).boxed();
            assert!((&mut large).now_or_never().is_none());
            let passed = passing(&shares, 1);
            assert!((most_passed - 2..=most_passed).contains(&passed.len()), "{units}: {}", passed.len());
            drop(held);
            let is_there = passed.len() + units + beside <= 640;
            assert_eq!((&mut large).now_or_never().is_some(), is_there, "{units}");
            drop((passed, large));
        }
    }

    #[test]
    fn a_large_share_that_is_given_up_costs_its_client_the_next_turn() {
        let shares = FairSemaphore::new(640, most(639), CostBasis::Units);
        let held = shares.acquire(party(1), 300).now_or_never().unwrap();
        let (first, mut other) = (wait(&shares, 2, 400), wait(&shares, 3, 50));
        let second = wait(&shares, 2, 400);
        let spent = |client| shares.state().flow_mut(party(client)).start_tag;
        drop(wait(&shares, 4, 20));
        assert_eq!(spent(4), 0, "it blocked no other request");
        drop(first);
        assert_eq!(spent(2), 400);
        assert!((&mut other).now_or_never().is_some(), "the client's next request blocks others again");
        drop((second, held, other));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn however_many_shares_are_given_up_the_debt_is_bounded() {
        let shares = FairSemaphore::new(640, most(639), CostBasis::Units);
        let held = shares.acquire(party(1), 300).now_or_never().unwrap();
        let places: Vec<_> = (0..20).map(|_| wait(&shares, 2, 400)).collect();
        let other = wait(&shares, 3, 500);
        // The client has received much service.
        shares.state().flow_mut(party(3)).start_tag = 1_000_000;
        let _kept = wait(&shares, 2, 400);
        drop(places);
        assert_eq!(shares.state().flow_mut(party(2)).start_tag, 640);
        drop((other, held));
    }

    #[test]
    fn clients_that_hold_much_leave_others_some_of_what_may_pass() {
        for (small, of_others) in [(64, 64), (64, 1000), (60, 7), (64, 1)] {
            let shares =
                FairSemaphore::new(64_000, ClientQuota { alone: 48_000, among_others: 32_000 }, CostBasis::Units);
            let _held: Vec<FairPermit> =
                (1..=16).map(|client| shares.acquire(party(client), 2500).now_or_never().unwrap()).collect();
            let _large = wait(&shares, 17, 30_000);
            let mut passed = Vec::new();
            for client in 1..=16 {
                passed.extend(std::iter::from_fn(|| shares.acquire(party(client), of_others).now_or_never()));
            }
            let mut honest = shares.acquire(party(18), small).boxed();
            let mut share = (&mut honest).now_or_never();
            if share.is_none() {
                passed.pop();
                share = (&mut honest).now_or_never();
            }
            assert!(share.is_some(), "{small} beside {} of {of_others}", passed.len());
        }
    }

    #[test]
    fn parts_of_streams_pass_no_large_share() {
        let shares = FairSemaphore::new(640, most(639), CostBasis::Units);
        let held = shares.acquire(party(1), 300).now_or_never().unwrap();
        let _large = wait(&shares, 2, 400);
        assert!(shares.acquire_for_stream(party(3), 1, 160, &Arc::new(())).now_or_never().is_none());
        assert!(shares.acquire(party(3), 1).now_or_never().is_some());
        drop(held);
    }

    #[test]
    fn units_that_a_cache_fills_are_no_reserve_for_shares_that_pass() {
        let shares = FairSemaphore::with_cache(560, 80, most(639), CostBasis::Units);
        let cached = shares.acquire((ClientId::default(), 0), 560).now_or_never().unwrap();
        let held = shares.acquire(party(1), 30).now_or_never().unwrap();
        let mut large = wait(&shares, 2, 70);
        assert_eq!(passing(&shares, 1).len(), 9);
        drop(held);
        assert!((&mut large).now_or_never().is_some());
        drop(cached);
    }

    #[test]
    fn a_stream_that_begins_passes_one_of_its_client_that_waits_for_itself() {
        let shares = FairSemaphore::new(8, most(8), CostBasis::Units);
        let [first, second, third] = [(); 3].map(|()| Arc::new(()));
        let stream = |units, pieces| shares.acquire_for_stream((ClientId::new(1), 1), units, 2, pieces).boxed();
        let held = stream(5, &first).now_or_never().unwrap();
        let on_its_way = Arc::clone(&first);
        let mut more = stream(5, &first);
        assert!((&mut more).now_or_never().is_none());
        let begun = stream(1, &second).now_or_never().expect("there are enough units for it");
        let mut last = stream(1, &third);
        assert!((&mut last).now_or_never().is_none(), "the rest is reserved for requests that are not streams");
        drop((begun, held, on_its_way));
        drop((&mut more).now_or_never().unwrap());
        drop((&mut last).now_or_never().unwrap());
        drop((more, last));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_stream_has_its_turn_where_others_take_all_that_is_given_back() {
        let shares = FairSemaphore::new(640, ClientQuota { alone: 480, among_others: 320 }, CostBasis::Units);
        let mut held: Vec<FairPermit> =
            (100..115).map(|client| shares.acquire(party(client), 40).now_or_never().unwrap()).collect();
        let pieces = Arc::new(());
        let stream = |client| shares.acquire_for_stream((ClientId::new(client), 1), 40, 160, &pieces).boxed();
        let mut first = stream(1);
        assert!((&mut first).now_or_never().is_none());
        // A small request overtakes. A large one does not, although there are enough units for it.
        let mut other = wait(&shares, 2, 30);
        drop(shares.acquire(party(3), 10).now_or_never().unwrap());
        held.pop();
        let first = (&mut first).now_or_never().expect("there are enough units, including its reserve");
        // When streams have half, they leave a quarter free again.
        held.pop();
        drop((&mut other).now_or_never().unwrap());
        held.truncate(7);
        let streams: Vec<FairPermit> = (11..18).map(|client| stream(client).now_or_never().unwrap()).collect();
        assert_eq!(shares.free(), 40);
        held.truncate(4);
        let mut last = stream(30);
        assert!((&mut last).now_or_never().is_none());
        held.truncate(3);
        assert!((&mut last).now_or_never().is_some());
        drop((first, streams, held, last));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn streams_take_turns_leave_some_to_others_and_let_others_go_first_while_they_are_sent() {
        let shares = FairSemaphore::new(8, most(8), CostBasis::Units);
        let [first, second, third, fourth] = [(); 4].map(|()| Arc::new(()));
        let stream =
            |client, units, pieces| shares.acquire_for_stream((ClientId::new(client), 1), units, 2, pieces).boxed();
        let mut held = stream(1, 6, &first).now_or_never().unwrap();
        let on_its_way = Arc::clone(&first);
        let mut more = stream(1, 6, &first);
        let mut small = stream(2, 1, &second);
        assert!((&mut more).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        // The remaining units are available to others at once.
        drop(shares.acquire(party(3), 2).now_or_never().unwrap());
        drop(held.split(1));
        drop((&mut small).now_or_never().expect("the first one waits for its own client"));
        let (mut large, mut later) = (stream(3, 6, &third), stream(4, 1, &fourth));
        assert!((&mut large).now_or_never().is_none() && (&mut later).now_or_never().is_none());
        drop(held.split(1));
        assert!((&mut later).now_or_never().is_none(), "it is not its turn");
        drop((held, on_its_way));
        drop((&mut more).now_or_never().unwrap());
        drop((&mut large).now_or_never().unwrap());
        drop((&mut later).now_or_never().unwrap());
        assert!(is_as_new(&shares));
    }

    #[test]
    fn streams_of_any_number_of_clients_leave_some_for_the_stream_of_the_next() {
        for clients in [1, 2, 5] {
            let shares = FairSemaphore::new(128, ClientQuota { alone: 96, among_others: 64 }, CostBasis::Units);
            let stream = |client| shares.acquire_for_stream(party(client), 1, 32, &Arc::new(())).now_or_never();
            let mut held = Vec::new();
            for _ in 0..128 {
                for client in 1..=clients {
                    held.extend(stream(client));
                }
            }
            assert!(shares.free() > 32 && shares.free() < 32 + 30, "{clients}: {}", shares.free());
            assert!(stream(clients + 1).is_some(), "{clients}");
        }
    }

    #[test]
    fn clients_that_take_all_they_can_get_leave_some_for_the_next() {
        for (alone, among_others) in [(96, 64), (64, 48)] {
            let shares = FairSemaphore::new(128, ClientQuota { alone, among_others }, CostBasis::Units);
            let mut held = Vec::new();
            for _ in 0..128 {
                for client in 1..=5 {
                    held.extend(shares.try_acquire(party(client), 1));
                }
            }
            assert!((6..40).contains(&shares.free()), "{}", shares.free());
            assert!(shares.try_acquire(party(6), 2).is_some());
        }
    }

    #[test]
    fn a_client_that_waits_for_itself_keeps_no_other_from_taking_at_once() {
        let shares = FairSemaphore::new(100, ClientQuota { alone: 50, among_others: 40 }, CostBasis::Units);
        let _held = shares.try_acquire(party(1), 50).unwrap();
        let _waits = wait(&shares, 1, 10);
        assert!(shares.try_acquire(party(2), 10).is_some());
    }
}
