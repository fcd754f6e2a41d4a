//! Admission control: `limits.concurrent_requests` requests are in flight at once. Up to a quarter more are admitted
//! for light clients, which have few in flight, and up to twice the limit in total for clients that have none. Other
//! requests wait in one queue per client, and clients take turns.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::fair_queue::ClientId;
use crate::metrics::{QueueLabel, QueueWaitTimer};
use crate::trace;

/// Divisor of `limits.concurrent_requests` that gives the number of spare slots, which are for light clients.
const SPARE_DIVISOR: usize = 4;

/// Divisor of `limits.concurrent_requests`; a client with fewer requests in flight than the result is a light client.
const LIGHT_CLIENT_DIVISOR: usize = 16;

/// Returns the maximum number of requests in flight of clients that have some already: `limit` and the spare slots.
fn limit_with_spare(limit: usize) -> usize {
    limit.saturating_add(limit / SPARE_DIVISOR)
}

/// Returns the number of requests in flight below which a client may take a spare slot. It is at most the number of
/// spare slots left, so that the first clients leave some for the next. Once none is left, clients without requests in
/// flight may have one each, up to twice the limit.
fn light_client_limit(limit: usize, answered: usize) -> usize {
    match limit_with_spare(limit).saturating_sub(answered) {
        0 => usize::from(answered < limit.saturating_mul(2)),
        left => (limit / LIGHT_CLIENT_DIVISOR).max(1).min(left),
    }
}

/// Number of one client's requests in flight. Cheap to clone; clones share it.
pub(super) type InFlightCounter = Arc<AtomicUsize>;

/// Limits the requests in flight and queues the others fairly. Cheap to clone; clones share the state.
#[derive(Debug, Clone, Default)]
pub(super) struct AdmissionController(Arc<AdmissionState>);

#[derive(Debug, Default)]
struct AdmissionState {
    in_flight: AtomicUsize,
    /// Requests in `queues`, and those about to enter them.
    waiting: AtomicUsize,
    /// Maximum number of requests in flight while others wait, as last configured.
    limit: AtomicUsize,
    queues: Mutex<VecDeque<ClientWaitQueue>>,
}

/// Queue of one client's waiting requests.
#[derive(Debug)]
struct ClientWaitQueue {
    client: ClientId,
    client_in_flight: InFlightCounter,
    waiters: VecDeque<oneshot::Sender<InFlightGuard>>,
}

impl AdmissionController {
    /// Admits a request without waiting; `None` if it has to wait. It is admitted if fewer than `limit` requests are in
    /// flight and none waits, or if its client may take a spare slot. `answered` counts the client's requests in
    /// flight.
    pub(super) fn try_admit(&self, limit: usize, answered: &InFlightCounter) -> Option<InFlightGuard> {
        let counts = &*self.0;
        let is_first = counts.waiting.load(Ordering::SeqCst) == 0;
        let more = |count: usize| {
            let may = is_first && count < limit || answered.load(Ordering::SeqCst) < light_client_limit(limit, count);
            may.then_some(count + 1)
        };
        counts.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(self.new_guard(answered))
    }

    /// Returns the guard of a request that is already counted in the total.
    fn new_guard(&self, answered: &InFlightCounter) -> InFlightGuard {
        answered.fetch_add(1, Ordering::SeqCst);
        InFlightGuard { controller: self.clone(), client_in_flight: Arc::clone(answered) }
    }

    /// Waits until it is the turn of a request of `client` and fewer than `limit` are in flight, or until a spare slot
    /// is free for it. Returns `None` after `patience`.
    pub(super) async fn wait(
        &self,
        client: ClientId,
        answered: &InFlightCounter,
        limit: usize,
        patience: Duration,
    ) -> Option<InFlightGuard> {
        let counts = &*self.0;
        let (sender, receiver) = oneshot::channel();
        {
            let mut lines = counts.queues.lock().unwrap_or_else(PoisonError::into_inner);
            counts.limit.store(limit, Ordering::SeqCst);
            if let Some(line) = lines.iter_mut().find(|line| line.client == client) {
                // Abandoned requests must not pile up.
                if line.waiters.len() == line.waiters.capacity() {
                    line.waiters.retain(|request| !request.is_closed());
                }
                line.waiters.push_back(sender);
                // A client without requests is forgotten and has a new counter when it returns.
                line.client_in_flight = Arc::clone(answered);
            } else {
                lines.retain(|line| line.waiters.iter().any(|request| !request.is_closed()));
                let (answered, requests) = (Arc::clone(answered), VecDeque::from([sender]));
                lines.push_back(ClientWaitQueue { client, client_in_flight: answered, waiters: requests });
            }
            // Incremented before `admit_waiters` reads `in_flight`: a request that ends in between then sees the
            // waiter.
            counts.waiting.fetch_add(1, Ordering::SeqCst);
        }
        let _left = AdmissionWaitGuard(self);
        self.admit_waiters();
        let (_measured, since) = (QueueWaitTimer::begin(QueueLabel::Request), Instant::now());
        let admitted = tokio::time::timeout(patience, receiver).await.ok().and_then(Result::ok);
        trace::record("wait", QueueLabel::Request.name(), since.elapsed());
        admitted
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.in_flight.load(Ordering::Relaxed)
    }

    /// Admits the waiting requests whose turn it is.
    fn admit_waiters(&self) {
        let counts = &*self.0;
        while counts.waiting.load(Ordering::SeqCst) > 0 {
            let (next, in_flight) = {
                let mut lines = counts.queues.lock().unwrap_or_else(PoisonError::into_inner);
                let (limit, all) = (counts.limit.load(Ordering::SeqCst), counts.in_flight.load(Ordering::SeqCst));
                let few = light_client_limit(limit, all);
                let has_few = |line: &ClientWaitQueue| line.client_in_flight.load(Ordering::SeqCst) < few;
                let at = if all < limit { Some(0) } else { lines.iter().position(has_few) };
                let Some(mut line) = at.and_then(|at| lines.remove(at)) else { return };
                let next = std::iter::from_fn(|| line.waiters.pop_front()).find(|request| !request.is_closed());
                let Some(next) = next else { continue };
                // A request that did not wait may have taken the slot in the meantime.
                let is_taken =
                    counts.in_flight.compare_exchange(all, all + 1, Ordering::SeqCst, Ordering::SeqCst).is_err();
                if is_taken {
                    line.waiters.push_front(next);
                    lines.push_front(line);
                    continue;
                }
                let in_flight = self.new_guard(&line.client_in_flight);
                if !line.waiters.is_empty() {
                    lines.push_back(line);
                }
                (next, in_flight)
            };
            // If the waiter gives up at this moment, dropping the guard passes the slot on.
            drop(next.send(in_flight));
        }
    }
}

/// Guard that decrements the number of waiting requests on drop.
struct AdmissionWaitGuard<'a>(&'a AdmissionController);

impl Drop for AdmissionWaitGuard<'_> {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Guard of one request in flight that frees the slot on drop. Problems, responses of operations and small in-memory
/// responses are sent without it: a client that does not read them occupies no slot.
#[derive(Debug)]
pub(super) struct InFlightGuard {
    controller: AdmissionController,
    client_in_flight: InFlightCounter,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.client_in_flight.fetch_sub(1, Ordering::SeqCst);
        self.controller.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.controller.admit_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_client_that_comes_again_is_counted_anew() {
        let admitted = AdmissionController::default();
        let [all, before, now, other] = [(); 4].map(|()| InFlightCounter::default());
        let _running: Vec<_> = std::iter::from_fn(|| admitted.try_admit(2, &all)).collect();
        let _others: Vec<_> = std::iter::from_fn(|| admitted.try_admit(2, &InFlightCounter::default())).collect();
        let client = ClientId::new(1);
        // This request has given up; its entry stays in the queue until a slot is free.
        assert!(admitted.wait(client, &before, 2, PATIENCE).now_or_never().is_none());
        let mut waiting = Box::pin(admitted.wait(client, &now, 2, PATIENCE));
        assert!(waiting.as_mut().now_or_never().is_none());
        let line_of = |client| {
            let lines = admitted.0.queues.lock().unwrap();
            lines.iter().find(|line| line.client == client).map(|line| Arc::clone(&line.client_in_flight))
        };
        assert!(Arc::ptr_eq(&line_of(client).unwrap(), &now));
        drop(waiting);
        let mut waiting = Box::pin(admitted.wait(ClientId::new(2), &other, 2, PATIENCE));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(
            line_of(client).is_none() && line_of(ClientId::new(2)).is_some(),
            "queues of clients that gave up pile up"
        );
    }

    #[tokio::test]
    async fn clients_take_turns_and_nothing_is_left_behind() {
        let admitted = AdmissionController::default();
        let answered: Vec<InFlightCounter> = (0..4).map(|_| InFlightCounter::default()).collect();
        // Each client has a request in flight; a client without one would be admitted at once.
        let held: Vec<_> = answered[1..].iter().map(|answered| admitted.try_admit(4, answered).unwrap()).collect();
        let mut running: Vec<_> = std::iter::from_fn(|| admitted.try_admit(4, &answered[0])).collect();
        assert!(admitted.try_admit(4, &answered[1]).is_none());
        let mut waiting: Vec<_> = [1, 1, 1, 2, 3]
            .map(|client| {
                (client, Box::pin(admitted.wait(ClientId::new(client as u64), &answered[client], 4, PATIENCE)))
            })
            .into_iter()
            .collect();
        for (_, wait) in &mut waiting {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        // The second request of the first client gives up.
        drop(waiting.remove(1));
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(running.pop());
            let (at, in_flight) = (0..waiting.len())
                .find_map(|at| Some((at, waiting[at].1.as_mut().now_or_never()??)))
                .expect("a slot is free");
            order.push(waiting.remove(at).0);
            running.push(in_flight);
            assert_eq!(admitted.count(), 4);
        }
        assert_eq!(order, [1, 2, 3, 1]);
        drop((running, held));
        assert_eq!(admitted.count(), 0);
        assert!(answered.iter().all(|answered| answered.load(Ordering::SeqCst) == 0));
        assert!(admitted.try_admit(1, &answered[0]).is_some() && admitted.0.queues.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_spare_place_that_is_free_again_goes_to_a_client_that_has_few() {
        let (admitted, [greedy, modest]) =
            (AdmissionController::default(), [(); 2].map(|()| InFlightCounter::default()));
        let _held: Vec<_> = (0..64).map(|_| admitted.try_admit(64, &greedy).unwrap()).collect();
        assert!(admitted.try_admit(64, &greedy).is_none(), "it is not a light client");
        let _one = admitted.try_admit(64, &modest).unwrap();
        let mut spare: Vec<_> = (0..15).map(|_| admitted.try_admit(64, &InFlightCounter::default()).unwrap()).collect();
        let mut waits = Box::pin(admitted.wait(ClientId::new(1), &greedy, 64, PATIENCE));
        let mut waits_too = Box::pin(admitted.wait(ClientId::new(2), &modest, 64, PATIENCE));
        assert!(
            futures_util::poll!(waits.as_mut()).is_pending() && futures_util::poll!(waits_too.as_mut()).is_pending()
        );
        assert!(admitted.try_admit(64, &modest).is_none(), "no spare slot is left");
        drop((spare.pop(), spare.pop()));
        assert!(futures_util::poll!(waits.as_mut()).is_pending());
        let _two = waits_too.await.unwrap();
        assert_eq!(admitted.count(), 79);
        // Clients without requests in flight are admitted up to twice the limit.
        let more: Vec<_> = std::iter::from_fn(|| admitted.try_admit(64, &InFlightCounter::default())).collect();
        assert_eq!((admitted.count(), more.len()), (128, 49));
    }

    #[tokio::test]
    async fn a_wait_has_an_end() {
        let admitted = AdmissionController::default();
        let answered = InFlightCounter::default();
        let _running = [(); 2].map(|()| admitted.try_admit(1, &answered));
        assert!(admitted.wait(ClientId::new(1), &answered, 1, Duration::from_millis(5)).await.is_none());
        assert_eq!(admitted.0.waiting.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn requests_that_are_given_up_do_not_pile_up() {
        let admitted = AdmissionController::default();
        let answered = InFlightCounter::default();
        let _running = admitted.try_admit(1, &answered);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for _ in 0..1000 {
                assert!(admitted.wait(ClientId::new(1), &answered, 1, PATIENCE).now_or_never().is_none());
            }
        });
        assert!(admitted.0.queues.lock().unwrap()[0].waiters.len() <= 8);
    }
}
