//! The semaphore and its permits: how they are acquired, waited for, cancelled and released.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;

use super::flow::{ClientId, ClientQuota, FlowId, GrantKind, PendingAcquire};
use super::single_flight;
use super::state::{CostBasis, FairSemaphoreState};

/// A semaphore whose units are granted fairly. Cheap to clone; clones share the units.
#[derive(Debug, Clone)]
pub struct FairSemaphore(Arc<Mutex<FairSemaphoreState>>);

impl FairSemaphore {
    /// Creates a semaphore with this many units. A client holds at most `client_quota` of them, unless it holds only a
    /// single permit.
    pub fn new(units: usize, client_quota: ClientQuota, cost: CostBasis) -> Self {
        Self(Arc::new(Mutex::new(FairSemaphoreState {
            total: units,
            free: units,
            overcommitted: 0,
            occupied: 0,
            in_flight_capacity: units,
            overtaking_units: 0,
            cost,
            client_quota,
            virtual_time: 0,
            flows: Vec::new(),
        })))
    }

    /// Returns true if any request is waiting.
    pub fn has_waiters(&self) -> bool {
        self.state().flows.iter().any(|flow| !flow.queue.is_empty())
    }

    /// Returns the number of units that are not granted.
    pub fn free(&self) -> usize {
        self.state().free
    }

    /// Returns the number of units that are granted.
    pub fn taken(&self) -> usize {
        self.state().taken()
    }

    /// Changes the number of units. There are then two sorts: `cached` units, which a cache may fill, and `in_flight`
    /// units, which no cache fills. If more units are granted than the new number, those in excess are not granted
    /// again after their release.
    pub fn resize(&self, cached: usize, in_flight: usize, client_quota: ClientQuota) {
        let mut state = self.state();
        let units = cached.saturating_add(in_flight);
        let taken = state.taken();
        *state = FairSemaphoreState {
            total: units,
            free: units.saturating_sub(taken),
            overcommitted: taken.saturating_sub(units),
            in_flight_capacity: in_flight,
            client_quota,
            flows: std::mem::take(&mut state.flows),
            ..*state
        };
        drop(state);
        self.grant_waiters();
    }

    /// Returns a permit for `flow` if there are enough units and no earlier request is waiting for them.
    pub fn try_acquire(&self, flow: FlowId, units: usize) -> Option<FairPermit> {
        self.try_acquire_with_reserve(flow, units, 0)
    }

    /// Like [`Self::try_acquire`], but leaves `reserve` units free.
    pub fn try_acquire_with_reserve(&self, flow: FlowId, units: usize, reserve: usize) -> Option<FairPermit> {
        let mut state = self.state();
        if !state.can_grant_now(flow, units, reserve) {
            return None;
        }
        state.grant(flow, units, units);
        Some(self.new_permit(flow, units, GrantKind::InTurn, Instant::now()))
    }

    /// Marks units as in use until [`vacate`](Self::vacate). They can still be granted, but no longer count as free for
    /// the quota of a client among other clients.
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

    /// Returns the service that `flow` has received, which grows with each permit. Returns 0 if the flow neither holds
    /// units nor waits.
    pub fn service_received(&self, flow: FlowId) -> u64 {
        self.state().flows.iter().find(|candidate| candidate.id == flow).map_or(0, |flow| flow.start_tag)
    }

    /// Counts units towards the quota of a client that are already granted, to the server or to any client. Returns
    /// `None` if the client holds too many units, or if a request of the flow is waiting. Without the second condition,
    /// small charges could keep a large one waiting for ever.
    pub fn try_charge(&self, flow: FlowId, units: usize) -> Option<FairPermit> {
        let mut state = self.state();
        let waits = state.flows.iter().any(|candidate| candidate.id == flow && !candidate.queue.is_empty());
        if waits || state.exceeds_client_quota(flow, units, 0, false) {
            return None;
        }
        state.grant(flow, units, 0);
        Some(self.new_permit(flow, units, GrantKind::Charged, Instant::now()))
    }

    /// Like [`Self::try_charge`], but waits until the client has released enough units.
    pub async fn charge(&self, flow: FlowId, units: usize) -> FairPermit {
        if let Some(permit) = self.try_charge(flow, units) {
            return permit;
        }
        self.wait(flow, &AtomicBool::new(false), |sender| PendingAcquire::new(units, GrantKind::Charged, sender)).await
    }

    /// Waits until the request of `flow` is granted and returns the permit. Dropping the future cancels the request.
    pub async fn acquire(&self, flow: FlowId, units: usize) -> FairPermit {
        self.acquire_with_reserve(flow, units, 0).await
    }

    /// Like [`Self::acquire`], but leaves `reserve` units free. In a task of a flight, the request waits in the flows
    /// of all clients of the flight. It gets the permit of the flow that is served first.
    pub async fn acquire_with_reserve(&self, flow: FlowId, units: usize, reserve: usize) -> FairPermit {
        if let Some(permit) = self.try_acquire_with_reserve(flow, units, reserve) {
            return permit;
        }
        let make_request = |sender| PendingAcquire { reserve, ..PendingAcquire::new(units, GrantKind::InTurn, sender) };
        let is_served = AtomicBool::new(false);
        let first_wait = self.wait(flow, &is_served, make_request);
        let Some(mut clients) = single_flight::watch_flight_clients() else { return first_wait.await };
        let mut waits = FuturesUnordered::from_iter([first_wait]);
        let mut known_clients = vec![flow.client];
        loop {
            for client in &*clients.borrow_and_update() {
                if !known_clients.contains(client) {
                    known_clients.push(*client);
                    waits.push(self.wait(client.flow(flow.kind), &is_served, make_request));
                }
            }
            tokio::select! {
                biased;
                Some(permit) = waits.next() => {
                    // The requests in the flows of the other clients are cancelled without a charge.
                    is_served.store(true, Ordering::Relaxed);
                    return permit;
                }
                Ok(()) = clients.changed() => {}
            }
        }
    }

    /// Like [`Self::acquire`], for a part of a stream. Leaves `reserve` units free for requests that are not streams.
    /// Earlier parts of the stream hold a clone of `stream` until they are sent. Until then, the stream waits for its
    /// own client, and other streams take precedence.
    pub async fn acquire_for_stream(&self, flow: FlowId, units: usize, reserve: usize, stream: &Arc<()>) -> FairPermit {
        let stream = Some(Arc::downgrade(stream));
        let make_request =
            |sender| PendingAcquire { reserve, stream, ..PendingAcquire::new(units, GrantKind::InTurn, sender) };
        self.wait(flow, &AtomicBool::new(false), make_request).await
    }

    /// Waits in `flow`. If the future is dropped after `is_served` has become true, the flow is not charged for the
    /// cancelled request.
    async fn wait(
        &self,
        flow: FlowId,
        is_served: &AtomicBool,
        make_request: impl FnOnce(oneshot::Sender<(GrantKind, Instant)>) -> PendingAcquire,
    ) -> FairPermit {
        let (sender, receiver) = oneshot::channel();
        let request = make_request(sender);
        let units = request.units;
        self.state().flow_mut(flow).queue.push_back(request);
        let cancel = |receiver| self.cancel(flow, units, is_served.load(Ordering::Relaxed), receiver);
        let mut receiver = scopeguard::guard(receiver, cancel);
        self.grant_waiters();
        // The sender is dropped without a grant only if the request was cancelled.
        (&mut *receiver).await.map_or_else(
            |_| self.new_permit(flow, 0, GrantKind::Charged, Instant::now()),
            |(kind, granted_at)| self.new_permit(flow, units, kind, granted_at),
        )
    }

    /// Removes a request of `flow` whose future is dropped, unless the future has got its permit. `is_served` is true
    /// if the task has got a permit through a request in another flow.
    fn cancel(
        &self,
        flow: FlowId,
        units: usize,
        is_served: bool,
        mut receiver: oneshot::Receiver<(GrantKind, Instant)>,
    ) {
        if receiver.is_terminated() {
            return;
        }
        // The receiver is closed under the lock. Otherwise the cancellation of another request of the flow might remove
        // this request, too.
        let mut state = self.state();
        receiver.close();
        state.remove_cancelled(flow, is_served);
        if let Ok((kind, granted_at)) = receiver.try_recv() {
            // The units were granted just before. They are not needed, and if the task has got a permit in another
            // flow, they are not charged.
            state.release(flow, units, kind, (!is_served).then(|| granted_at.elapsed()));
        }
        drop(state);
        // Requests may have waited behind the cancelled one.
        self.grant_waiters();
    }

    fn new_permit(&self, flow: FlowId, units: usize, kind: GrantKind, granted_at: Instant) -> FairPermit {
        FairPermit { semaphore: self.clone(), flow, units, kind, granted_at }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, FairSemaphoreState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants free units to the requests that are next.
    fn grant_waiters(&self) {
        loop {
            let Some((flow, request)) = self.state().grant_next() else { return };
            // The grant is sent without holding the lock, because sending wakes the receiver.
            if request.sender.send((request.kind, Instant::now())).is_err() {
                self.state().release(flow, request.units, request.kind, None);
            }
        }
    }
}

/// A permit for a number of units, which are released when the permit is dropped. Permits can be split and merged.
#[derive(Debug)]
pub struct FairPermit {
    semaphore: FairSemaphore,
    pub(super) flow: FlowId,
    units: usize,
    kind: GrantKind,
    granted_at: Instant,
}

impl FairPermit {
    /// Returns the number of units.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Returns true if a request of another client is waiting.
    pub fn is_contended(&self) -> bool {
        self.semaphore.state().flows.iter().any(|flow| flow.id.client != self.flow.client && !flow.queue.is_empty())
    }

    /// Releases the units, requests them again at the front of the flow, and blocks the thread until they are granted.
    #[must_use]
    pub fn blocking_yield(self) -> Self {
        let semaphore = self.semaphore.clone();
        let Self { flow, units, .. } = self;
        let (sender, receiver) = oneshot::channel();
        semaphore.state().flow_mut(flow).queue.push_front(PendingAcquire::new(units, GrantKind::InTurn, sender));
        // Dropped only after the new request is queued: a flow that holds no units and has no request may be removed,
        // and its start tag with it.
        drop(self);
        // The sender is never dropped without sending a grant.
        receiver.blocking_recv().map_or_else(
            |_| semaphore.new_permit(flow, 0, GrantKind::InTurn, Instant::now()),
            |(kind, granted_at)| semaphore.new_permit(flow, units, kind, granted_at),
        )
    }

    /// Splits off a permit of `units` units, or of all if there are fewer.
    #[must_use]
    pub fn split(&mut self, units: usize) -> Self {
        let units = units.min(self.units);
        self.units -= units;
        Self { semaphore: self.semaphore.clone(), units, ..*self }
    }

    /// Transfers the units to the server, so that they count towards the quota of no client. The owner must drop the
    /// permit when clients need the units.
    pub fn transfer_to_server(&mut self) {
        let server_flow = ClientId::SERVER.flow(self.flow.kind);
        let mut state = self.semaphore.state();
        if self.kind == GrantKind::Overtaking {
            state.uncount_overtaking(self.flow, self.units);
            self.kind = GrantKind::InTurn;
        }
        state.move_held_units(self.flow, server_flow, self.units);
        drop(state);
        self.flow = server_flow;
        self.semaphore.grant_waiters();
    }

    /// Merges another permit of the same [`FairSemaphore`] into this one.
    pub fn merge(&mut self, mut other: Self) {
        let units = std::mem::take(&mut other.units);
        debug_assert_eq!(
            self.kind == GrantKind::Charged,
            other.kind == GrantKind::Charged,
            "units that are granted twice"
        );
        if self.kind != other.kind || self.flow != other.flow {
            let mut state = self.semaphore.state();
            // If the kinds or flows differ, neither permit counts as overtaking any longer.
            for (permit, units) in [(&*self, self.units), (&other, units)] {
                if permit.kind == GrantKind::Overtaking {
                    state.uncount_overtaking(permit.flow, units);
                }
            }
            if self.kind == GrantKind::Overtaking {
                self.kind = GrantKind::InTurn;
            }
            state.move_held_units(other.flow, self.flow, units);
            drop(state);
            // Requests may have waited because of the limit for overtaking or the quota of their client.
            self.semaphore.grant_waiters();
        }
        self.units += units;
    }

    fn release(&mut self, held_for: Duration) {
        let units = std::mem::take(&mut self.units);
        if units > 0 {
            self.semaphore.state().release(self.flow, units, self.kind, Some(held_for));
            self.semaphore.grant_waiters();
        }
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        self.release(self.granted_at.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use super::*;

    fn quota(units: usize) -> ClientQuota {
        ClientQuota { alone: units, among_others: units }
    }

    fn flow_of(client: u64) -> FlowId {
        ClientId::new(client).flow(0)
    }

    /// Returns a request that already waits.
    fn wait(semaphore: &FairSemaphore, client: u64, units: usize) -> BoxFuture<'_, FairPermit> {
        let mut acquire = semaphore.acquire(flow_of(client), units).boxed();
        assert!((&mut acquire).now_or_never().is_none());
        acquire
    }

    /// Returns the clients in the order of their turns, if each holds a unit for `cost` milliseconds.
    fn order(semaphore: &FairSemaphore, clients: &[u64], cost: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut running = semaphore.acquire(flow_of(clients[0]), 1).now_or_never().unwrap();
        let mut waiting: Vec<(u64, _)> =
            clients[1..].iter().map(|client| (*client, wait(semaphore, *client, 1))).collect();
        let mut order = vec![clients[0]];
        while !waiting.is_empty() {
            running.release(Duration::from_millis(cost(order[order.len() - 1])));
            let next = waiting.iter_mut().enumerate().find_map(|(n, (_, acquire))| Some((n, acquire.now_or_never()?)));
            let (n, permit) = next.unwrap();
            order.push(waiting.remove(n).0);
            running = permit;
        }
        order
    }

    fn is_unused(semaphore: &FairSemaphore) -> bool {
        let state = semaphore.state();
        state.free == state.total
            && state.overtaking_units == 0
            && state.flows.iter().all(|flow| flow.held_units == 0 && flow.queue.is_empty())
    }

    #[test]
    fn cancelled_requests_cost_nothing_if_no_other_client_waits() {
        let semaphore = FairSemaphore::new(64, quota(64), CostBasis::Units);
        let permit = semaphore.try_acquire(flow_of(1), 60).unwrap();
        let mut waiting: Vec<_> = (0..10).map(|_| wait(&semaphore, 2, 32)).collect();
        waiting.truncate(1);
        assert_eq!(semaphore.service_received(flow_of(2)), 0);
        // Only the first client's permit delays the remaining request. Another client comes and waits behind this
        // request.
        let other = wait(&semaphore, 3, 32);
        drop(waiting);
        assert!(semaphore.service_received(flow_of(2)) <= 32);
        drop((permit, other));
        assert!(is_unused(&semaphore));
    }

    #[test]
    fn a_client_with_many_requests_delays_others_by_one_turn() {
        let clients = [1, 1, 1, 1, 1, 2, 2, 3];
        let semaphore = FairSemaphore::new(1, quota(1), CostBasis::Time);
        assert_eq!(order(&semaphore, &clients, |_| 7), [1, 2, 3, 1, 2, 1, 1, 1]);
        assert!(!semaphore.has_waiters() && is_unused(&semaphore));
        let semaphore = FairSemaphore::new(1, quota(1), CostBasis::Units);
        assert_eq!(order(&semaphore, &clients, |_| 7), [1, 1, 2, 3, 1, 2, 1, 1]);
        assert!(!semaphore.has_waiters() && is_unused(&semaphore));
    }

    #[test]
    fn a_client_with_concurrent_requests_gets_its_share_beside_many_sequential_clients() {
        for (units, others, cost) in [(2, 4, CostBasis::Time), (4, 16, CostBasis::Time), (32, 64, CostBasis::Units)] {
            let semaphore = FairSemaphore::new(units, ClientQuota::UNLIMITED, cost);
            let mut permits: Vec<(u64, FairPermit)> =
                (0..units).map(|_| (1, semaphore.try_acquire(flow_of(1), 1).unwrap())).collect();
            let new_acquire = |client| (client, semaphore.acquire(flow_of(client), 1).boxed());
            let mut waiting: Vec<_> = std::iter::repeat_n(1, 50).chain(2..others + 2).map(new_acquire).collect();
            let mut counts = [0; 2];
            for _ in 0..100 * (others + 1) {
                let (_, mut permit) = permits.remove(0);
                permit.release(Duration::from_millis(5));
                let mut at = 0;
                while let Some((client, acquire)) = waiting.get_mut(at) {
                    let client = *client;
                    if let Some(permit) = acquire.now_or_never() {
                        counts[usize::from(client != 1)] += 1;
                        permits.push((client, permit));
                        drop(waiting.remove(at));
                        waiting.push(new_acquire(client));
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
    fn a_client_with_long_jobs_gets_equal_time_not_equal_turns() {
        let cost = |client| if client == 1 { 40 } else { 10 };
        let clients = [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2];
        let semaphore = FairSemaphore::new(1, quota(1), CostBasis::Time);
        assert_eq!(order(&semaphore, &clients, cost), [1, 2, 2, 2, 2, 1, 2, 2, 2, 2, 1, 2, 1]);
    }

    #[test]
    fn a_late_client_has_no_saved_credit() {
        let semaphore = FairSemaphore::new(1, quota(1), CostBasis::Time);
        let mut first = semaphore.acquire(flow_of(1), 1).now_or_never().unwrap();
        let _others = [wait(&semaphore, 1, 1), wait(&semaphore, 1, 1)];
        first.release(Duration::from_secs(1000));
        assert_eq!(semaphore.state().virtual_time, 1_000_000_000_000);
        let _late = wait(&semaphore, 2, 1);
        assert_eq!(semaphore.state().flow_mut(flow_of(2)).start_tag, 1_000_000_000_000);
    }

    #[test]
    fn a_cancelled_request_leaves_nothing_behind_and_loses_no_unit() {
        let semaphore = FairSemaphore::new(2, quota(2), CostBasis::Time);
        let running = [1, 1].map(|client| semaphore.acquire(flow_of(client), 1).now_or_never().unwrap());
        let (before, after) = (wait(&semaphore, 3, 2), wait(&semaphore, 2, 1));
        drop(before);
        assert!(semaphore.has_waiters());
        assert!(semaphore.try_acquire(flow_of(4), 1).is_none(), "others wait");
        assert_eq!(semaphore.taken(), 2);
        drop(running);
        // The request gets its permit, and is dropped before it is polled again.
        drop(after);
        assert!(!semaphore.has_waiters() && is_unused(&semaphore));
    }

    #[test]
    fn a_large_request_is_granted_and_a_cancelled_one_blocks_no_other() {
        let semaphore = FairSemaphore::new(4, quota(4), CostBasis::Units);
        let mut permit = semaphore.acquire(flow_of(1), 4).now_or_never().unwrap();
        let (mut large, mut small) = (wait(&semaphore, 2, 3), wait(&semaphore, 3, 1));
        drop(permit.split(2));
        assert!((&mut small).now_or_never().is_none(), "otherwise the large request would never get enough units");
        drop(permit.split(1));
        assert_eq!((&mut large).now_or_never().unwrap().units(), 3);
        assert!((&mut small).now_or_never().is_some());
        let (large, mut small) = (wait(&semaphore, 2, 4), wait(&semaphore, 3, 3));
        drop(large);
        assert!((&mut small).now_or_never().is_some());
        drop((permit, small));
        assert!(is_unused(&semaphore));
    }

    #[test]
    fn one_client_never_holds_all_units_except_in_one_permit() {
        let semaphore = FairSemaphore::new(8, quota(6), CostBasis::Units);
        let first = semaphore.acquire(flow_of(1), 4).now_or_never().unwrap();
        let mut second = wait(&semaphore, 1, 4);
        let mut third = wait(&semaphore, 1, 1);
        let other = semaphore.acquire(flow_of(2), 4).now_or_never().expect("it delays no other client");
        drop(other);
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        assert_eq!((&mut second).now_or_never().unwrap().units(), 4);
        drop((&mut third).now_or_never().unwrap());
        drop(second);
        assert_eq!(semaphore.acquire(flow_of(1), 8).now_or_never().unwrap().units(), 8);
        assert!(is_unused(&semaphore));
    }

    #[test]
    fn a_client_gets_less_beside_others_and_a_charge_takes_no_free_units() {
        let semaphore = FairSemaphore::new(16, ClientQuota { alone: 12, among_others: 8 }, CostBasis::Units);
        let mut permits: Vec<FairPermit> = (0..12).map(|_| semaphore.try_acquire(flow_of(1), 1).unwrap()).collect();
        assert!(semaphore.try_acquire(flow_of(1), 1).is_none() && semaphore.try_charge(flow_of(1), 1).is_none());
        let other = semaphore.try_acquire(flow_of(2), 1).expect("the rest is for others");
        let mut next_request = wait(&semaphore, 1, 1);
        permits.truncate(8);
        assert!((&mut next_request).now_or_never().is_none(), "other clients are active");
        permits.truncate(7);
        drop((&mut next_request).now_or_never().unwrap());
        permits.clear();
        // Cached units are charged to a client while they are sent, but no client holds them.
        let mut cached = semaphore.try_acquire(flow_of(1), 8).unwrap();
        assert!(semaphore.try_acquire(flow_of(1), 1).is_none());
        cached.transfer_to_server();
        let sent = semaphore.try_charge(flow_of(1), 8).unwrap();
        assert!(semaphore.try_acquire(flow_of(1), 1).is_none());
        let mut pending_charge = semaphore.charge(flow_of(1), 1).boxed();
        assert!((&mut pending_charge).now_or_never().is_none());
        assert_eq!(semaphore.free(), 7);
        drop(sent);
        drop((&mut pending_charge).now_or_never().unwrap());
        drop((cached, other, next_request, pending_charge));
        assert!(is_unused(&semaphore));
    }

    #[test]
    fn a_large_pending_charge_is_not_overtaken_by_small_ones_of_its_client() {
        let semaphore = FairSemaphore::new(16, ClientQuota { alone: 8, among_others: 8 }, CostBasis::Units);
        let mut permits: Vec<FairPermit> = (0..6).map(|_| semaphore.try_charge(flow_of(1), 1).unwrap()).collect();
        let mut large = semaphore.charge(flow_of(1), 6).boxed();
        assert!((&mut large).now_or_never().is_none());
        assert!(semaphore.try_charge(flow_of(1), 1).is_none(), "the large one was there first");
        assert!(semaphore.try_charge(flow_of(2), 1).is_some());
        permits.truncate(2);
        assert_eq!((&mut large).now_or_never().unwrap().units(), 6);
        drop((permits, large));
        assert!(is_unused(&semaphore));
    }

    #[test]
    fn a_request_with_a_reserve_waits_until_the_reserve_is_free_too() {
        let semaphore = FairSemaphore::new(1024, quota(1023), CostBasis::Units);
        let permit = semaphore.acquire_with_reserve(flow_of(1), 768, 64).now_or_never().unwrap();
        let mut large = semaphore.acquire_with_reserve(flow_of(2), 200, 64).boxed();
        assert!((&mut large).now_or_never().is_none());
        // Small requests overtake it. Larger ones do not.
        let mut other = wait(&semaphore, 3, 200);
        let small = semaphore.acquire(flow_of(4), 16).now_or_never();
        assert!(small.is_some() && (&mut other).now_or_never().is_none());
        drop((other, small));
        drop((permit, (&mut large).now_or_never()));
        drop(large);
        assert!(is_unused(&semaphore));
    }

    /// Lets one client after another acquire a permit for the same number of units without waiting, and returns all
    /// permits.
    fn acquire_until_refused(semaphore: &FairSemaphore, units: usize) -> Vec<FairPermit> {
        (100..).map_while(|client| semaphore.acquire(flow_of(client), units).now_or_never()).collect()
    }

    #[test]
    fn small_requests_overtake_a_waiting_large_one_and_leave_it_its_turn() {
        let semaphore = FairSemaphore::new(640, quota(639), CostBasis::Units);
        let mut permit = semaphore.acquire(flow_of(1), 300).now_or_never().unwrap();
        let (mut large, mut other) = (wait(&semaphore, 2, 350), wait(&semaphore, 3, 11));
        // One eighth of the units may overtake, but neither all of it for one client, nor the last of it.
        let mut passed: Vec<FairPermit> =
            (0..3).map(|_| semaphore.acquire(flow_of(4), 10).now_or_never().unwrap()).collect();
        let mut fourth = wait(&semaphore, 4, 10);
        passed.extend(acquire_until_refused(&semaphore, 10));
        let count = passed.len();
        assert_eq!((count, semaphore.state().overtaking_units), (7, 70));
        assert!((&mut other).now_or_never().is_none(), "it is not small");
        // Units that are merged into a permit that did not overtake no longer count as overtaking.
        permit.merge(passed.remove(5));
        assert_eq!(semaphore.state().overtaking_units, 60);
        // Units of the server do not count.
        passed[0].transfer_to_server();
        assert_eq!(semaphore.state().overtaking_units, 50);
        // A cancelled request takes nothing.
        let cancelled = wait(&semaphore, 4, 9);
        drop(cancelled);
        assert_eq!(semaphore.state().overtaking_units, 50);
        drop(permit.split(100));
        assert_eq!((&mut large).now_or_never().unwrap().units(), 350);
        drop((passed, fourth.as_mut().now_or_never(), other.as_mut().now_or_never()));
        drop((permit, large, fourth, other));
        assert!(is_unused(&semaphore));
    }

    #[test]
    fn overtaking_of_a_large_request_with_a_reserve_is_bounded() {
        for (units, max_passed) in [(480, 80), (540, 60), (580, 20), (600, 20), (640, 20)] {
            let semaphore = FairSemaphore::new(640, quota(639), CostBasis::Units);
            let reserve = 40.min(640 - units);
            let permit = semaphore.acquire(flow_of(1), 400).now_or_never().unwrap();
            let mut large = semaphore.acquire_with_reserve(flow_of(2), units, reserve).boxed();
            assert!((&mut large).now_or_never().is_none());
            let passed = acquire_until_refused(&semaphore, 1);
            assert!((max_passed - 2..=max_passed).contains(&passed.len()), "{units}: {}", passed.len());
            drop(permit);
            let fits = passed.len() + units + reserve <= 640;
            assert_eq!((&mut large).now_or_never().is_some(), fits, "{units}");
            drop((passed, large));
        }
    }

    #[test]
    fn a_cancelled_large_request_costs_its_client_the_next_turn() {
        let semaphore = FairSemaphore::new(640, quota(639), CostBasis::Units);
        let permit = semaphore.acquire(flow_of(1), 300).now_or_never().unwrap();
        let (first, mut other) = (wait(&semaphore, 2, 400), wait(&semaphore, 3, 50));
        let second = wait(&semaphore, 2, 400);
        let service = |client| semaphore.state().flow_mut(flow_of(client)).start_tag;
        drop(wait(&semaphore, 4, 20));
        assert_eq!(service(4), 0, "it blocked no other request");
        drop(first);
        assert_eq!(service(2), 400);
        assert!((&mut other).now_or_never().is_some(), "the client's next request blocks others again");
        drop((second, permit, other));
        assert!(is_unused(&semaphore));
    }

    #[test]
    fn the_debt_of_cancelled_requests_is_bounded() {
        let semaphore = FairSemaphore::new(640, quota(639), CostBasis::Units);
        let permit = semaphore.acquire(flow_of(1), 300).now_or_never().unwrap();
        let requests: Vec<_> = (0..20).map(|_| wait(&semaphore, 2, 400)).collect();
        let other = wait(&semaphore, 3, 500);
        // The client has received much service.
        semaphore.state().flow_mut(flow_of(3)).start_tag = 1_000_000;
        let _remaining = wait(&semaphore, 2, 400);
        drop(requests);
        assert_eq!(semaphore.state().flow_mut(flow_of(2)).start_tag, 640);
        drop((other, permit));
    }

    #[test]
    fn clients_with_many_units_leave_others_some_overtaking_units() {
        for (small, other_units) in [(64, 64), (64, 1000), (60, 7), (64, 1)] {
            let semaphore =
                FairSemaphore::new(64_000, ClientQuota { alone: 48_000, among_others: 32_000 }, CostBasis::Units);
            let _permits: Vec<FairPermit> =
                (1..=16).map(|client| semaphore.acquire(flow_of(client), 2500).now_or_never().unwrap()).collect();
            let _large = wait(&semaphore, 17, 30_000);
            let mut passed = Vec::new();
            for client in 1..=16 {
                passed.extend(std::iter::from_fn(|| semaphore.acquire(flow_of(client), other_units).now_or_never()));
            }
            let mut honest = semaphore.acquire(flow_of(18), small).boxed();
            let mut permit = (&mut honest).now_or_never();
            if permit.is_none() {
                passed.pop();
                permit = (&mut honest).now_or_never();
            }
            assert!(permit.is_some(), "{small} beside {} of {other_units}", passed.len());
        }
    }

    #[test]
    fn parts_of_streams_do_not_overtake_large_requests() {
        let semaphore = FairSemaphore::new(640, quota(639), CostBasis::Units);
        let permit = semaphore.acquire(flow_of(1), 300).now_or_never().unwrap();
        let _large = wait(&semaphore, 2, 400);
        assert!(semaphore.acquire_for_stream(flow_of(3), 1, 160, &Arc::new(())).now_or_never().is_none());
        assert!(semaphore.acquire(flow_of(3), 1).now_or_never().is_some());
        drop(permit);
    }

    #[test]
    fn units_of_a_cache_are_no_reserve_for_overtaking_requests() {
        let semaphore = FairSemaphore::new(0, quota(639), CostBasis::Units);
        semaphore.resize(560, 80, quota(639));
        let cached = semaphore.acquire(ClientId::SERVER.flow(0), 560).now_or_never().unwrap();
        let permit = semaphore.acquire(flow_of(1), 30).now_or_never().unwrap();
        let mut large = wait(&semaphore, 2, 70);
        assert_eq!(acquire_until_refused(&semaphore, 1).len(), 9);
        drop(permit);
        assert!((&mut large).now_or_never().is_some());
        drop(cached);
    }

    #[test]
    fn a_new_stream_overtakes_a_stream_that_waits_for_its_own_client() {
        let semaphore = FairSemaphore::new(8, quota(8), CostBasis::Units);
        let [first, second, third] = [(); 3].map(|()| Arc::new(()));
        let stream = |units, pieces| semaphore.acquire_for_stream(ClientId::new(1).flow(1), units, 2, pieces).boxed();
        let permit = stream(5, &first).now_or_never().unwrap();
        let sending = Arc::clone(&first);
        let mut next_part = stream(5, &first);
        assert!((&mut next_part).now_or_never().is_none());
        let started_stream = stream(1, &second).now_or_never().expect("there are enough units for it");
        let mut last = stream(1, &third);
        assert!((&mut last).now_or_never().is_none(), "the rest is reserved for requests that are not streams");
        drop((started_stream, permit, sending));
        drop((&mut next_part).now_or_never().unwrap());
        drop((&mut last).now_or_never().unwrap());
        drop((next_part, last));
        assert!(is_unused(&semaphore));
    }

    #[test]
    fn a_stream_gets_its_turn_although_others_take_all_released_units() {
        let semaphore = FairSemaphore::new(640, ClientQuota { alone: 480, among_others: 320 }, CostBasis::Units);
        let mut permits: Vec<FairPermit> =
            (100..115).map(|client| semaphore.acquire(flow_of(client), 40).now_or_never().unwrap()).collect();
        let pieces = Arc::new(());
        let stream = |client| semaphore.acquire_for_stream(ClientId::new(client).flow(1), 40, 160, &pieces).boxed();
        let mut first = stream(1);
        assert!((&mut first).now_or_never().is_none());
        // A small request overtakes. A large one does not, although there are enough units for it.
        let mut other = wait(&semaphore, 2, 30);
        drop(semaphore.acquire(flow_of(3), 10).now_or_never().unwrap());
        permits.pop();
        let first = (&mut first).now_or_never().expect("there are enough units, including its reserve");
        // When streams have half, they leave a quarter free again.
        permits.pop();
        drop((&mut other).now_or_never().unwrap());
        permits.truncate(7);
        let streams: Vec<FairPermit> = (11..18).map(|client| stream(client).now_or_never().unwrap()).collect();
        assert_eq!(semaphore.free(), 40);
        permits.truncate(4);
        let mut last = stream(30);
        assert!((&mut last).now_or_never().is_none());
        permits.truncate(3);
        assert!((&mut last).now_or_never().is_some());
        drop((first, streams, permits, last));
        assert!(is_unused(&semaphore));
    }

    #[test]
    fn streams_take_turns_leave_a_reserve_and_yield_while_their_parts_are_sent() {
        let semaphore = FairSemaphore::new(8, quota(8), CostBasis::Units);
        let [first, second, third, fourth] = [(); 4].map(|()| Arc::new(()));
        let stream = |client, units, pieces| {
            semaphore.acquire_for_stream(ClientId::new(client).flow(1), units, 2, pieces).boxed()
        };
        let mut permit = stream(1, 6, &first).now_or_never().unwrap();
        let sending = Arc::clone(&first);
        let mut next_part = stream(1, 6, &first);
        let mut small = stream(2, 1, &second);
        assert!((&mut next_part).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        // The remaining units are available to other clients at once.
        drop(semaphore.acquire(flow_of(3), 2).now_or_never().unwrap());
        drop(permit.split(1));
        drop((&mut small).now_or_never().expect("the first one waits for its own client"));
        let (mut large, mut later) = (stream(3, 6, &third), stream(4, 1, &fourth));
        assert!((&mut large).now_or_never().is_none() && (&mut later).now_or_never().is_none());
        drop(permit.split(1));
        assert!((&mut later).now_or_never().is_none(), "it is not its turn");
        drop((permit, sending));
        drop((&mut next_part).now_or_never().unwrap());
        drop((&mut large).now_or_never().unwrap());
        drop((&mut later).now_or_never().unwrap());
        assert!(is_unused(&semaphore));
    }

    #[test]
    fn streams_of_any_number_of_clients_leave_units_for_the_next_client() {
        for clients in [1, 2, 5] {
            let semaphore = FairSemaphore::new(128, ClientQuota { alone: 96, among_others: 64 }, CostBasis::Units);
            let stream = |client| semaphore.acquire_for_stream(flow_of(client), 1, 32, &Arc::new(())).now_or_never();
            let mut permits = Vec::new();
            for _ in 0..128 {
                for client in 1..=clients {
                    permits.extend(stream(client));
                }
            }
            assert!(semaphore.free() > 32 && semaphore.free() < 32 + 30, "{clients}: {}", semaphore.free());
            assert!(stream(clients + 1).is_some(), "{clients}");
        }
    }

    #[test]
    fn greedy_clients_leave_units_for_the_next_client() {
        for (alone, among_others) in [(96, 64), (64, 48)] {
            let semaphore = FairSemaphore::new(128, ClientQuota { alone, among_others }, CostBasis::Units);
            let mut permits = Vec::new();
            for _ in 0..128 {
                for client in 1..=5 {
                    permits.extend(semaphore.try_acquire(flow_of(client), 1));
                }
            }
            assert!((6..40).contains(&semaphore.free()), "{}", semaphore.free());
            assert!(semaphore.try_acquire(flow_of(6), 2).is_some());
        }
    }

    #[test]
    fn a_client_that_waits_for_its_own_units_blocks_no_other_client() {
        let semaphore = FairSemaphore::new(100, ClientQuota { alone: 50, among_others: 40 }, CostBasis::Units);
        let _permit = semaphore.try_acquire(flow_of(1), 50).unwrap();
        let _waits = wait(&semaphore, 1, 10);
        assert!(semaphore.try_acquire(flow_of(2), 10).is_some());
    }
}
