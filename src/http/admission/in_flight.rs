//! Admission control: at most `limits.concurrent_requests` requests are in flight at once. A quarter more slots are
//! spare. They are for light clients, which have few requests in flight. A client without requests in flight is
//! admitted up to twice the limit. Other requests wait in one queue per client, and clients take turns.
//!
//! A request is rejected if there are too many, and the response is delayed a little. Clients that retry at once,
//! however often, then leave the cores to other clients.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use scopeguard::ScopeGuard;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::runtime::fair_queue::ClientId;
use crate::telemetry::metrics::{QueueLabel, QueueWaitTimer};
use crate::telemetry::trace;

/// Number of spare slots, which are for light clients: `limits.concurrent_requests` divided by this.
const SPARE_DIVISOR: usize = 4;

/// A light client has fewer requests in flight than `limits.concurrent_requests` divided by this.
const LIGHT_CLIENT_DIVISOR: usize = 16;

/// Minimum delay of the response to a rejected request. A connection whose client retries at once then gets at most
/// four rejections per second for each request that it may have in flight. The delay is short compared with the second
/// of `Retry-After`.
const MIN_DELAY: Duration = Duration::from_millis(250);

/// Delay that each waiting rejection adds. All clients together then get at most 500 rejections per second, unless
/// [`MAX_DELAY`] is reached. At four times that rate, rejections on 640 connections took a tenth of a core or more.
const DELAY_PER_PENDING: Duration = Duration::from_millis(2);

/// Interval at which rejections are sent in batches. If each were sent alone, it would interrupt other work on the
/// core.
const BATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum delay of a rejection.
const MAX_DELAY: Duration = Duration::from_secs(4);

/// Returns the number of requests in flight that a client must stay below to take a spare slot. It is at most the
/// number of spare slots left, so that the first clients leave some for the next. Once no spare slot is left, each client
/// without requests in flight may have one, up to twice the limit.
fn light_client_limit(limit: usize, in_flight: usize) -> usize {
    match limit.saturating_add(limit / SPARE_DIVISOR).saturating_sub(in_flight) {
        0 => usize::from(in_flight < limit.saturating_mul(2)),
        spare_slots => (limit / LIGHT_CLIENT_DIVISOR).max(1).min(spare_slots),
    }
}

/// Counts a request until the guard is dropped, which happens even if the client disconnects. The guard's value is the
/// number of requests that were counted before.
pub(super) fn count_until_dropped(count: &AtomicUsize) -> ScopeGuard<usize, impl FnOnce(usize)> {
    scopeguard::guard(count.fetch_add(1, Ordering::SeqCst), |_before| {
        count.fetch_sub(1, Ordering::SeqCst);
    })
}

/// Limits the requests in flight and queues further requests fairly.
#[derive(Debug, Default)]
pub(crate) struct AdmissionController {
    in_flight: AtomicUsize,
    /// Number of requests that wait in `queues`.
    waiting: AtomicUsize,
    /// Maximum number of requests in flight: `limits.concurrent_requests` when a request last began to wait.
    limit: AtomicUsize,
    queues: Mutex<VecDeque<ClientWaitQueue>>,
}

/// Queue of one client's waiting requests.
#[derive(Debug)]
struct ClientWaitQueue {
    client: ClientId,
    client_in_flight: Arc<AtomicUsize>,
    waiters: VecDeque<oneshot::Sender<InFlightGuard>>,
}

impl AdmissionController {
    /// Admits a request if fewer than `limit` requests are in flight and none waits, or if its client may take a spare
    /// slot. Returns `None` if the request has to wait. `client_in_flight` counts the client's requests in flight.
    pub(crate) fn try_admit(
        self: &Arc<Self>,
        limit: usize,
        client_in_flight: &Arc<AtomicUsize>,
    ) -> Option<InFlightGuard> {
        let is_first = self.waiting.load(Ordering::SeqCst) == 0;
        let next_count = |count: usize| {
            let is_admitted =
                is_first && count < limit || client_in_flight.load(Ordering::SeqCst) < light_client_limit(limit, count);
            is_admitted.then_some(count + 1)
        };
        self.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next_count).ok()?;
        Some(self.new_guard(client_in_flight))
    }

    /// Returns the guard of a request that is already counted in the total.
    fn new_guard(self: &Arc<Self>, client_in_flight: &Arc<AtomicUsize>) -> InFlightGuard {
        client_in_flight.fetch_add(1, Ordering::SeqCst);
        InFlightGuard { controller: Arc::clone(self), client_in_flight: Arc::clone(client_in_flight) }
    }

    /// Waits until it is the turn of a request of `client` and fewer than `limit` are in flight, or until a spare slot
    /// is free for it. Returns `None` after `timeout`.
    pub(crate) async fn wait(
        self: &Arc<Self>,
        client: ClientId,
        client_in_flight: &Arc<AtomicUsize>,
        limit: usize,
        timeout: Duration,
    ) -> Option<InFlightGuard> {
        let (sender, receiver) = oneshot::channel();
        let _waiting = {
            let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            self.limit.store(limit, Ordering::SeqCst);
            enqueue(&mut queues, client, client_in_flight, sender);
            // The waiter is counted before `admit_waiters` reads `in_flight`. A request that ends in between then
            // admits the waiter.
            count_until_dropped(&self.waiting)
        };
        self.admit_waiters();
        let wait_timer = QueueWaitTimer::begin(QueueLabel::Request);
        let admitted = tokio::time::timeout(timeout, receiver).await.ok().and_then(Result::ok);
        trace::finish_wait(wait_timer);
        admitted
    }

    /// Admits the waiting requests whose turn it is.
    fn admit_waiters(self: &Arc<Self>) {
        while self.waiting.load(Ordering::SeqCst) > 0 {
            let Some((waiter, guard)) = self.take_next_waiter() else { return };
            // If the waiter gives up at this moment, the guard is dropped, and its slot goes to another waiter.
            drop(waiter.send(guard));
        }
    }

    /// Removes the waiter whose turn it is from its queue, and takes a slot for it. Returns `None` if no waiter may
    /// have a slot.
    fn take_next_waiter(self: &Arc<Self>) -> Option<(oneshot::Sender<InFlightGuard>, InFlightGuard)> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let limit = self.limit.load(Ordering::SeqCst);
            let in_flight = self.in_flight.load(Ordering::SeqCst);
            let light_limit = light_client_limit(limit, in_flight);
            let is_light = |queue: &ClientWaitQueue| queue.client_in_flight.load(Ordering::SeqCst) < light_limit;
            let index = if in_flight < limit { 0 } else { queues.iter().position(is_light)? };
            let mut queue = queues.remove(index)?;
            let open_waiter = std::iter::from_fn(|| queue.waiters.pop_front()).find(|waiter| !waiter.is_closed());
            let Some(waiter) = open_waiter else { continue };
            // A request that did not wait may have taken the slot in the meantime.
            let taken = self.in_flight.compare_exchange(in_flight, in_flight + 1, Ordering::SeqCst, Ordering::SeqCst);
            if taken.is_err() {
                queue.waiters.push_front(waiter);
                queues.push_front(queue);
                continue;
            }
            let guard = self.new_guard(&queue.client_in_flight);
            if !queue.waiters.is_empty() {
                queues.push_back(queue);
            }
            return Some((waiter, guard));
        }
    }
}

/// Appends a waiter to the queue of its client.
fn enqueue(
    queues: &mut VecDeque<ClientWaitQueue>,
    client: ClientId,
    client_in_flight: &Arc<AtomicUsize>,
    waiter: oneshot::Sender<InFlightGuard>,
) {
    let client_in_flight = Arc::clone(client_in_flight);
    if let Some(queue) = queues.iter_mut().find(|queue| queue.client == client) {
        // Removes abandoned requests, which would otherwise pile up.
        if queue.waiters.len() == queue.waiters.capacity() {
            queue.waiters.retain(|waiter| !waiter.is_closed());
        }
        queue.waiters.push_back(waiter);
        // The registry forgets a client without requests, and gives the client a new counter at its next request.
        queue.client_in_flight = client_in_flight;
    } else {
        queues.retain(|queue| queue.waiters.iter().any(|waiter| !waiter.is_closed()));
        queues.push_back(ClientWaitQueue { client, client_in_flight, waiters: VecDeque::from([waiter]) });
    }
}

/// Guard of one request in flight, which frees the slot on drop. Problems, responses of operations and small responses
/// in memory are sent without a guard, so that a client that does not read them occupies no slot.
#[derive(Debug)]
pub(crate) struct InFlightGuard {
    controller: Arc<AdmissionController>,
    client_in_flight: Arc<AtomicUsize>,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.client_in_flight.fetch_sub(1, Ordering::SeqCst);
        self.controller.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.controller.admit_waiters();
    }
}

/// Waits until the response to a rejected request may be sent. `pending` is the counter of rejected requests whose
/// responses are being delayed. Responses are sent in batches, at multiples of [`BATCH_INTERVAL`] after `epoch`.
pub(crate) async fn delay_rejection(pending: &AtomicUsize, epoch: Instant) {
    let pending_before = count_until_dropped(pending);
    let wait_timer = QueueWaitTimer::begin(QueueLabel::Refused);
    tokio::time::sleep_until(release_time(epoch, Instant::now(), delay_for(*pending_before))).await;
    trace::finish_wait(wait_timer);
}

/// Returns the time at which to send the response to a request that is rejected at `now`: the first multiple of
/// [`BATCH_INTERVAL`] after `epoch` that is more than `min_delay` later than `now`.
fn release_time(epoch: Instant, now: Instant, min_delay: Duration) -> Instant {
    let intervals = (now.duration_since(epoch) + min_delay).as_millis() / BATCH_INTERVAL.as_millis() + 1;
    epoch + BATCH_INTERVAL.saturating_mul(u32::try_from(intervals).unwrap_or(u32::MAX))
}

/// Returns the minimum delay of the response to a rejected request while `pending` other responses are delayed.
fn delay_for(pending: usize) -> Duration {
    DELAY_PER_PENDING.saturating_mul(u32::try_from(pending).unwrap_or(u32::MAX)).clamp(MIN_DELAY, MAX_DELAY)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    impl AdmissionController {
        pub(crate) fn count(&self) -> usize {
            self.in_flight.load(Ordering::Relaxed)
        }
    }

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_returning_client_gets_a_new_counter() {
        let controller = Arc::<AdmissionController>::default();
        let [busy_client, first_counter, second_counter, other_counter] =
            [(); 4].map(|()| Arc::<AtomicUsize>::default());
        let _running: Vec<_> = std::iter::from_fn(|| controller.try_admit(2, &busy_client)).collect();
        let _others: Vec<_> = std::iter::from_fn(|| controller.try_admit(2, &Arc::<AtomicUsize>::default())).collect();
        let client = ClientId::new(1);
        // This request has given up. Its entry stays in the queue until a slot is free.
        assert!(controller.wait(client, &first_counter, 2, TIMEOUT).now_or_never().is_none());
        let mut waiting = Box::pin(controller.wait(client, &second_counter, 2, TIMEOUT));
        assert!(waiting.as_mut().now_or_never().is_none());
        let counter_of = |client| {
            let queues = controller.queues.lock().unwrap();
            queues.iter().find(|queue| queue.client == client).map(|queue| Arc::clone(&queue.client_in_flight))
        };
        assert!(Arc::ptr_eq(&counter_of(client).unwrap(), &second_counter));
        drop(waiting);
        let mut waiting = Box::pin(controller.wait(ClientId::new(2), &other_counter, 2, TIMEOUT));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(
            counter_of(client).is_none() && counter_of(ClientId::new(2)).is_some(),
            "queues of clients that gave up pile up"
        );
    }

    #[tokio::test]
    async fn clients_take_turns_and_all_slots_are_freed() {
        let controller = Arc::<AdmissionController>::default();
        let counters: Vec<Arc<AtomicUsize>> = (0..4).map(|_| Arc::<AtomicUsize>::default()).collect();
        // Each client has a request in flight, because a client without one would be admitted at once.
        let guards: Vec<_> = counters[1..].iter().map(|counter| controller.try_admit(4, counter).unwrap()).collect();
        let mut running: Vec<_> = std::iter::from_fn(|| controller.try_admit(4, &counters[0])).collect();
        assert!(controller.try_admit(4, &counters[1]).is_none());
        let mut waiting: Vec<_> = [1, 1, 1, 2, 3]
            .map(|client| {
                (client, Box::pin(controller.wait(ClientId::new(client as u64), &counters[client], 4, TIMEOUT)))
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
            let (index, guard) = (0..waiting.len())
                .find_map(|i| Some((i, waiting[i].1.as_mut().now_or_never()??)))
                .expect("a slot is free");
            order.push(waiting.remove(index).0);
            running.push(guard);
            assert_eq!(controller.count(), 4);
        }
        assert_eq!(order, [1, 2, 3, 1]);
        drop((running, guards));
        assert_eq!(controller.count(), 0);
        assert!(counters.iter().all(|counter| counter.load(Ordering::SeqCst) == 0));
        assert!(controller.try_admit(1, &counters[0]).is_some() && controller.queues.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_freed_spare_slot_goes_to_a_light_client() {
        let (controller, [heavy, light]) =
            (Arc::<AdmissionController>::default(), [(); 2].map(|()| Arc::<AtomicUsize>::default()));
        let _guards: Vec<_> = (0..64).map(|_| controller.try_admit(64, &heavy).unwrap()).collect();
        assert!(controller.try_admit(64, &heavy).is_none(), "it is not a light client");
        let _first_light_guard = controller.try_admit(64, &light).unwrap();
        let mut spare_guards: Vec<_> =
            (0..15).map(|_| controller.try_admit(64, &Arc::<AtomicUsize>::default()).unwrap()).collect();
        let mut heavy_wait = Box::pin(controller.wait(ClientId::new(1), &heavy, 64, TIMEOUT));
        let mut light_wait = Box::pin(controller.wait(ClientId::new(2), &light, 64, TIMEOUT));
        assert!(
            futures_util::poll!(heavy_wait.as_mut()).is_pending()
                && futures_util::poll!(light_wait.as_mut()).is_pending()
        );
        assert!(controller.try_admit(64, &light).is_none(), "no spare slot is left");
        drop((spare_guards.pop(), spare_guards.pop()));
        assert!(futures_util::poll!(heavy_wait.as_mut()).is_pending());
        let _second_light_guard = light_wait.await.unwrap();
        assert_eq!(controller.count(), 79);
        // Clients without requests in flight are admitted up to twice the limit.
        let additional_guards: Vec<_> =
            std::iter::from_fn(|| controller.try_admit(64, &Arc::<AtomicUsize>::default())).collect();
        assert_eq!((controller.count(), additional_guards.len()), (128, 49));
    }

    #[tokio::test]
    async fn a_wait_ends_after_its_timeout() {
        let controller = Arc::<AdmissionController>::default();
        let counter = Arc::<AtomicUsize>::default();
        let _running = [(); 2].map(|()| controller.try_admit(1, &counter));
        assert!(controller.wait(ClientId::new(1), &counter, 1, Duration::from_millis(5)).await.is_none());
        assert_eq!(controller.waiting.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn abandoned_requests_do_not_accumulate() {
        let controller = Arc::<AdmissionController>::default();
        let counter = Arc::<AtomicUsize>::default();
        let _running = controller.try_admit(1, &counter);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for _ in 0..1000 {
                assert!(controller.wait(ClientId::new(1), &counter, 1, TIMEOUT).now_or_never().is_none());
            }
        });
        assert!(controller.queues.lock().unwrap()[0].waiters.len() <= 8);
    }

    #[test]
    fn the_delay_grows_with_the_number_of_pending_rejections() {
        assert_eq!([0, 1, 125].map(delay_for), [MIN_DELAY; 3]);
        assert_eq!(delay_for(1000), Duration::from_secs(2));
        assert_eq!([2000, 1 << 20, usize::MAX].map(delay_for), [MAX_DELAY; 3]);
    }

    #[tokio::test]
    async fn a_disconnected_client_is_no_longer_pending() {
        let pending = AtomicUsize::new(0);
        {
            let mut wait = std::pin::pin!(delay_rejection(&pending, Instant::now()));
            assert!(futures_util::poll!(wait.as_mut()).is_pending());
            assert_eq!(pending.load(Ordering::Relaxed), 1);
        }
        assert_eq!(pending.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn successive_rejections_are_sent_in_batches() {
        let epoch = Instant::now();
        let mut release_times: Vec<Instant> = Vec::new();
        for n in 0..100 {
            let now = epoch + Duration::from_millis(n);
            let due = release_time(epoch, now, MIN_DELAY);
            assert!(due - now > MIN_DELAY && due - now <= MIN_DELAY + BATCH_INTERVAL, "{:?}", due - now);
            release_times.push(due);
        }
        release_times.dedup();
        assert_eq!(release_times.len(), 2);
    }
}
