//! The number of requests that may be in flight to a bucket, which adapts to what the store accepts.
//!
//! The limit follows the rule of TCP (additive increase, multiplicative decrease): one more request per round trip
//! while the limit is in use, half as many when the store throttles. Requests above the limit wait, and clients take turns.
//! Some details keep the rule from overreacting:
//!
//! - All throttled answers of one round trip halve the limit once: those to requests that were sent before the last
//!   decrease do not count.
//! - After an episode of throttling the limit first doubles per round trip, up to half of what it was before the
//!   episode (the slow start of TCP), so that a short disturbance is over within a few round trips.
//! - A store refuses faster than it serves. If round trips in a row are throttled without a success between them, the
//!   bucket pauses, twice as long every time, so that refusals do not follow each other at full speed.
//! - `Retry-After` holds back all requests to the bucket, for a bounded time. A request whose deadline is earlier fails
//!   at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::failure::UpstreamFailure;
use crate::runtime::fair_queue::{ClientId, ClientQuota, CostBasis, FairPermit, FairSemaphore};

/// Limit with which a bucket begins, unless its maximum is lower.
const START: u64 = 64;

/// Highest limit that can be set.
const MAX_LIMIT: u64 = 65_536;

/// Lowest limit, unless the maximum is lower.
const FLOOR: u64 = 4;

/// Maximum number of waiting requests. Each needs about a kilobyte.
const MAX_WAITING: usize = 4_096;

/// A client may have this many times as many waiting requests as there are free places in the queue. A client alone
/// thus leaves a quarter of the queue to others, and several clients leave a place for the next one.
const WAITING_PER_FREE_PLACE: usize = 3;

/// Longest pause. A longer `Retry-After` is shortened to it.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Pause after two throttled round trips in a row. It doubles with each further one, up to `MAX_BACKOFF`.
const FIRST_BACKOFF: Duration = Duration::from_millis(25);

/// Longest pause that the store has not asked for.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// Time without throttling after which an episode is over.
const EPISODE_GAP: Duration = Duration::from_millis(500);

/// Time after the last throttled answer during which the bucket counts as throttled.
const THROTTLED_FOR: Duration = Duration::from_secs(2);

/// The limit is counted in these fractions, since it grows by less than one per answer.
const UNIT: u64 = 1_024;

/// Returns how many of `permits` one client may hold.
fn quota(permits: usize) -> ClientQuota {
    ClientQuota { alone: permits, among_others: (permits / 4 * 3).max(1) }
}

/// Limit of the requests in flight to one bucket.
#[derive(Debug)]
pub(in crate::store::remote) struct ConcurrencyLimit {
    permits: FairSemaphore,
    state: Mutex<LimitState>,
    queue: Mutex<QueuePlaces>,
}

/// The part of the limit that changes as a whole.
#[derive(Debug)]
struct LimitState {
    /// Maximum of the limit, in requests.
    max: u64,
    /// The limit in `UNIT`s.
    limit: u64,
    /// The limit up to which it doubles per round trip after an episode of throttling, in `UNIT`s.
    slow_start_until: u64,
    /// Number of decreases so far.
    decreases: u64,
    /// Number of decreases since the last success.
    decreases_in_a_row: u32,
    last_throttled: Option<Instant>,
    paused_until: Option<Instant>,
}

impl LimitState {
    fn floor(&self) -> u64 {
        FLOOR.min(self.max)
    }

    /// Returns the limit in requests.
    fn requests(&self) -> usize {
        usize::try_from(self.limit / UNIT).unwrap_or(usize::MAX)
    }

    /// Sets the limit and the number of permits.
    fn set(&mut self, limit: u64, permits: &FairSemaphore) {
        let before = self.requests();
        self.limit = limit.clamp(self.floor() * UNIT, self.max * UNIT);
        if self.requests() != before {
            permits.resize(0, self.requests(), quota(self.requests()));
        }
    }

    /// Returns the end of the pause, if the bucket is paused.
    fn pause(&self, now: Instant) -> Option<Instant> {
        self.paused_until.filter(|until| *until > now)
    }

    fn pause_for(&mut self, pause: Duration, now: Instant) {
        self.paused_until = self.paused_until.max(Some(now + pause));
    }

    /// Returns the pause after this many throttled round trips in a row.
    fn backoff(&self) -> Duration {
        match self.decreases_in_a_row.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => (FIRST_BACKOFF * (1 << doublings.min(10))).min(MAX_BACKOFF),
        }
    }

    /// Returns true if the last throttled answer, and the pause after it, are longer ago than `time`.
    fn is_calm_for(&self, time: Duration, now: Instant) -> bool {
        let last = self.last_throttled.max(self.paused_until);
        last.is_none_or(|last| now.saturating_duration_since(last) > time)
    }
}

/// State of a [`ConcurrencyLimit`] at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::remote) struct ConcurrencySnapshot {
    /// The limit now.
    pub(in crate::store::remote) limit: usize,
    /// Requests in flight, or about to be sent after a pause. It exceeds the limit for a moment after a decrease.
    pub(in crate::store::remote) in_flight: usize,
    /// Requests that wait.
    pub(in crate::store::remote) waiting: usize,
    /// Time until the end of the pause.
    pub(in crate::store::remote) pause: Duration,
}

impl ConcurrencyLimit {
    /// Creates a limit of at most `max` requests, but at least one.
    pub(in crate::store::remote) fn new(max: usize) -> Self {
        let max = u64::try_from(max).unwrap_or(MAX_LIMIT).clamp(1, MAX_LIMIT);
        let limit = START.min(max) * UNIT;
        let state = LimitState {
            max,
            limit,
            slow_start_until: 0,
            decreases: 0,
            decreases_in_a_row: 0,
            last_throttled: None,
            paused_until: None,
        };
        Self {
            permits: FairSemaphore::new(state.requests(), quota(state.requests()), CostBasis::Time),
            state: Mutex::new(state),
            queue: Mutex::default(),
        }
    }

    /// Waits until a request may be sent. Clients take turns, and the requests of a client proceed in order of arrival.
    /// Dropping the future leaves the queue.
    ///
    /// # Errors
    /// Returns a throttled failure if the queue is full, or if the request may not be sent before `deadline`.
    pub(in crate::store::remote) async fn acquire(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<ConcurrencyPermit, UpstreamFailure> {
        self.check_pause(deadline)?;
        if let Some(permit) = self.try_acquire() {
            return Ok(permit);
        }
        let _place = QueuePlace::take(self)?;
        let mut permit = self.take_turn(deadline).await?;
        // An answer may extend the pause while this request waits for its end.
        while let Some(end) = self.check_pause(deadline)? {
            sleep_until(end).await;
        }
        // A request that was delayed by a pause is part of the round trip that begins now.
        permit.decreases = self.lock().decreases;
        Ok(permit)
    }

    /// Waits until the body of an answer may be read, whose request has given its permit back. The end of a pause need
    /// not be awaited, since the request has been sent.
    ///
    /// # Errors
    /// Returns a throttled failure if the queue is full, or if it is not the turn of the body before `deadline`.
    pub(super) async fn acquire_for_body(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<ConcurrencyPermit, UpstreamFailure> {
        if let Some(permit) = self.permits.try_acquire(ClientId::current().flow(0), 1) {
            return Ok(self.permit(permit));
        }
        let _place = QueuePlace::take(self)?;
        self.take_turn(deadline).await
    }

    async fn take_turn(self: &Arc<Self>, deadline: Instant) -> Result<ConcurrencyPermit, UpstreamFailure> {
        let permit = timeout_at(deadline, self.permits.acquire(ClientId::current().flow(0), 1)).await;
        permit.map(|permit| self.permit(permit)).map_err(|_elapsed| {
            let detail = format!("not sent in time, {} requests wait for the store", self.places().taken);
            UpstreamFailure::held_back(detail, self.remaining_pause())
        })
    }

    /// Returns a permit if the request may be sent now.
    pub(in crate::store::remote) fn try_acquire(self: &Arc<Self>) -> Option<ConcurrencyPermit> {
        if self.lock().pause(Instant::now()).is_some() {
            return None;
        }
        Some(self.permit(self.permits.try_acquire(ClientId::current().flow(0), 1)?))
    }

    /// Returns true if the store throttled a request within the last seconds.
    pub(in crate::store::remote) fn is_throttled(&self) -> bool {
        let (state, now) = (self.lock(), Instant::now());
        !state.is_calm_for(THROTTLED_FOR, now)
    }

    /// Returns the maximum of the limit.
    pub(in crate::store::remote) fn max(&self) -> usize {
        usize::try_from(self.lock().max).unwrap_or(usize::MAX)
    }

    /// Returns the current state.
    pub(in crate::store::remote) fn snapshot(&self) -> ConcurrencySnapshot {
        let (state, now) = (self.lock(), Instant::now());
        ConcurrencySnapshot {
            limit: state.requests(),
            in_flight: self.permits.taken(),
            waiting: self.places().taken,
            pause: state.pause(now).map_or(Duration::ZERO, |until| until - now),
        }
    }

    /// Returns the end of the pause, if there is one.
    ///
    /// # Errors
    /// Returns a throttled failure if the pause ends after `deadline`.
    fn check_pause(&self, deadline: Instant) -> Result<Option<Instant>, UpstreamFailure> {
        let now = Instant::now();
        let Some(end) = self.lock().pause(now) else { return Ok(None) };
        if end <= deadline {
            return Ok(Some(end));
        }
        let detail = format!("not sent, the store asked for a pause of another {:.1?}", end - now);
        Err(UpstreamFailure::held_back(detail, Some(end - now)))
    }

    fn remaining_pause(&self) -> Option<Duration> {
        let now = Instant::now();
        self.lock().pause(now).map(|end| end - now)
    }

    fn permit(self: &Arc<Self>, permit: FairPermit) -> ConcurrencyPermit {
        let decreases = self.lock().decreases;
        ConcurrencyPermit { limit: Arc::clone(self), _permit: permit, decreases }
    }

    fn lock(&self) -> MutexGuard<'_, LimitState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn places(&self) -> MutexGuard<'_, QueuePlaces> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The places of waiting requests in the queue of a bucket.
#[derive(Debug, Default)]
struct QueuePlaces {
    taken: usize,
    /// The places of each client that has any.
    by_client: HashMap<ClientId, usize>,
}

impl QueuePlaces {
    /// Returns true if the client may have one more waiting request.
    fn has_place_for(&self, client: ClientId) -> bool {
        let own = self.by_client.get(&client).copied().unwrap_or_default();
        own < MAX_WAITING.saturating_sub(self.taken).saturating_mul(WAITING_PER_FREE_PLACE)
    }
}

/// The place of a waiting request, until it is dropped.
struct QueuePlace<'a> {
    limit: &'a ConcurrencyLimit,
    client: ClientId,
}

impl<'a> QueuePlace<'a> {
    /// # Errors
    /// Returns a throttled failure if the client has its share of the places, or if there are no more.
    fn take(limit: &'a ConcurrencyLimit) -> Result<Self, UpstreamFailure> {
        let client = ClientId::current();
        let mut places = limit.places();
        if !places.has_place_for(client) {
            let detail = format!("not sent, {} requests already wait for the store", places.taken);
            drop(places);
            return Err(UpstreamFailure::held_back(detail, limit.remaining_pause()));
        }
        places.taken += 1;
        *places.by_client.entry(client).or_default() += 1;
        Ok(Self { limit, client })
    }
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut places = self.limit.places();
        places.taken = places.taken.saturating_sub(1);
        if let Some(own) = places.by_client.get_mut(&self.client) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                places.by_client.remove(&self.client);
            }
        }
    }
}

/// Permission to have one request in flight.
#[derive(Debug)]
pub(in crate::store::remote) struct ConcurrencyPermit {
    limit: Arc<ConcurrencyLimit>,
    _permit: FairPermit,
    /// Number of decreases when the request was sent.
    decreases: u64,
}

impl ConcurrencyPermit {
    /// Reports that the store answered. The limit grows if at least half of it was in use.
    pub(in crate::store::remote) fn succeeded(&self) {
        let mut state = self.limit.lock();
        let now = Instant::now();
        state.decreases_in_a_row = 0;
        let is_in_use = self.limit.permits.free() <= state.requests() / 2;
        if !is_in_use || state.limit >= state.max * UNIT {
            return;
        }
        let is_slow_start = state.limit < state.slow_start_until && state.is_calm_for(EPISODE_GAP, now);
        // One per answer doubles the limit in a round trip; one per limit adds one in a round trip.
        let step = if is_slow_start { UNIT } else { (UNIT * UNIT / state.limit).max(1) };
        let limit = state.limit + step;
        state.set(limit, &self.limit.permits);
    }

    /// Reports that the store throttled the request. Halves the limit once per round trip, and pauses the bucket for
    /// `retry_after`.
    pub(in crate::store::remote) fn throttled(&self, retry_after: Option<Duration>) {
        let mut state = self.limit.lock();
        let now = Instant::now();
        let is_new_episode = state.is_calm_for(EPISODE_GAP, now);
        if let Some(pause) = retry_after {
            state.pause_for(pause.min(MAX_PAUSE), now);
        }
        state.last_throttled = Some(now);
        if self.decreases == state.decreases {
            let half = state.limit / 2;
            state.decreases += 1;
            state.decreases_in_a_row += 1;
            let backoff = state.backoff();
            state.pause_for(backoff, now);
            if is_new_episode {
                state.slow_start_until = half;
            }
            state.set(half, &self.limit.permits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::failure::FailureKind;
    use super::*;

    fn in_a_minute() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    async fn acquire_many(limit: &Arc<ConcurrencyLimit>, count: usize) -> Vec<ConcurrencyPermit> {
        let mut permits = Vec::new();
        for _ in 0..count {
            permits.push(limit.acquire(in_a_minute()).await.unwrap());
        }
        permits
    }

    fn limit_now(limit: &ConcurrencyLimit) -> usize {
        limit.snapshot().limit
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_is_halved_once_per_round_trip_and_never_below_the_floor() {
        let limit = Arc::new(ConcurrencyLimit::new(1_000));
        let permits = acquire_many(&limit, 64).await;
        for permit in &permits {
            permit.throttled(None);
        }
        assert_eq!((limit_now(&limit), limit.snapshot().in_flight), (32, 64));
        drop(permits);
        assert_eq!(limit.snapshot().in_flight, 0);
        for expected in [16, 8, 4, 4] {
            acquire_many(&limit, 1).await[0].throttled(None);
            assert_eq!(limit_now(&limit), expected);
        }
        assert_eq!(acquire_many(&limit, 4).await.len(), 4);
        assert!(limit.try_acquire().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_requests_than_the_limit_are_in_flight_after_a_decrease() {
        let limit = Arc::new(ConcurrencyLimit::new(64));
        let mut permits = acquire_many(&limit, 64).await;
        permits[0].throttled(None);
        // The first 32 permits that come back are not given out again.
        permits.truncate(32);
        assert!(limit.try_acquire().is_none());
        permits.truncate(31);
        assert!(limit.try_acquire().is_some());
        permits.push(limit.try_acquire().unwrap());
        assert!(limit.try_acquire().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_grows_by_one_per_round_trip_while_it_is_in_use() {
        let limit = Arc::new(ConcurrencyLimit::new(100));
        for round in 0..5 {
            let permits = acquire_many(&limit, limit_now(&limit)).await;
            permits.iter().for_each(ConcurrencyPermit::succeeded);
            assert!(limit_now(&limit).abs_diff(64 + round + 1) <= 1, "{round}");
        }
        let before = limit_now(&limit);
        for _ in 0..1_000 {
            acquire_many(&limit, 1).await[0].succeeded();
        }
        assert_eq!(limit_now(&limit), before, "a single request at a time says nothing about the limit");
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_grows_to_its_maximum_and_no_further() {
        for max in [1, 3, 4, 70] {
            let limit = Arc::new(ConcurrencyLimit::new(max));
            for _ in 0..200 {
                let permits = acquire_many(&limit, limit_now(&limit)).await;
                permits.iter().for_each(ConcurrencyPermit::succeeded);
            }
            assert_eq!(limit_now(&limit), max);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn half_of_the_old_limit_is_back_a_few_round_trips_after_an_episode() {
        let limit = Arc::new(ConcurrencyLimit::new(64));
        for _ in 0..8 {
            acquire_many(&limit, 1).await[0].throttled(None);
        }
        assert_eq!(limit_now(&limit), 4);
        tokio::time::sleep(Duration::from_millis(1_600)).await;
        for expected in [8, 16, 32, 33] {
            let permits = acquire_many(&limit, limit_now(&limit)).await;
            permits.iter().for_each(ConcurrencyPermit::succeeded);
            assert!(limit_now(&limit).abs_diff(expected) <= 1, "{} {expected}", limit_now(&limit));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_holds_back_all_requests_whose_deadline_allows_it() {
        let limit = Arc::new(ConcurrencyLimit::new(64));
        acquire_many(&limit, 1).await[0].throttled(Some(Duration::from_secs(5)));
        let started = Instant::now();
        let impatient = limit.acquire(started + Duration::from_secs(4)).await.unwrap_err();
        assert_eq!((impatient.kind, impatient.retry_after), (FailureKind::Throttled, Some(Duration::from_secs(5))));
        assert_eq!(started.elapsed(), Duration::ZERO, "a request that cannot be sent in time fails at once");
        assert!(limit.try_acquire().is_none());
        acquire_many(&limit, 1).await;
        assert!((5_000..5_010).contains(&started.elapsed().as_millis()));
        assert_eq!(limit.snapshot().pause, Duration::ZERO);
        assert!(limit.is_throttled());
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!limit.is_throttled());
    }

    #[tokio::test(start_paused = true)]
    async fn round_trips_that_are_throttled_in_a_row_pause_the_bucket_twice_as_long_every_time() {
        let limit = Arc::new(ConcurrencyLimit::new(64));
        for expected in [0, 25, 50, 100, 200, 400, 800, 1_000, 1_000] {
            acquire_many(&limit, 1).await[0].throttled(None);
            assert_eq!(limit.snapshot().pause, Duration::from_millis(expected));
        }
        acquire_many(&limit, 1).await[0].succeeded();
        acquire_many(&limit, 1).await[0].throttled(None);
        assert_eq!(limit.snapshot().pause, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_bounded_and_may_be_extended_but_not_shortened() {
        let limit = Arc::new(ConcurrencyLimit::new(64));
        let permits = acquire_many(&limit, 2).await;
        permits[0].throttled(Some(Duration::MAX));
        permits[1].throttled(Some(Duration::from_secs(1)));
        assert_eq!(limit.snapshot().pause, MAX_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_a_client_proceed_in_order_of_arrival() {
        let limit = Arc::new(ConcurrencyLimit::new(1));
        let first = acquire_many(&limit, 1).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..100 {
            let (limit, order) = (Arc::clone(&limit), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let _permit = limit.acquire(in_a_minute()).await.unwrap();
                order.lock().unwrap().push(number);
                tokio::time::sleep(Duration::from_millis(number % 7)).await;
            }));
            tokio::task::yield_now().await;
        }
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..100).collect::<Vec<_>>());
        let snapshot = limit.snapshot();
        assert_eq!((snapshot.in_flight, snapshot.waiting), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_request_fails_at_its_deadline_and_leaves_the_queue() {
        let limit = Arc::new(ConcurrencyLimit::new(1));
        let held = acquire_many(&limit, 1).await;
        let started = Instant::now();
        let failure = limit.acquire(started + Duration::from_secs(2)).await.unwrap_err();
        assert_eq!((failure.kind, started.elapsed()), (FailureKind::Throttled, Duration::from_secs(2)));
        assert_eq!(limit.snapshot().waiting, 0);
        drop(held);
        acquire_many(&limit, 1).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_request_frees_its_place_in_the_queue() {
        let limit = Arc::new(ConcurrencyLimit::new(1));
        let held = acquire_many(&limit, 1).await;
        let waiter = |limit: &Arc<ConcurrencyLimit>| {
            let limit = Arc::clone(limit);
            tokio::spawn(async move { limit.acquire(in_a_minute()).await.map(drop) })
        };
        let (cancelled, next) = (waiter(&limit), waiter(&limit));
        tokio::task::yield_now().await;
        assert_eq!(limit.snapshot().waiting, 2);
        cancelled.abort();
        let _ = cancelled.await;
        assert_eq!(limit.snapshot().waiting, 1);
        drop(held);
        next.await.unwrap().unwrap();
        assert_eq!(limit.snapshot().in_flight, 0);
    }

    /// Lets `requests` requests of a client wait, each until its deadline.
    async fn wait_as(
        limit: &Arc<ConcurrencyLimit>,
        client: u64,
        requests: usize,
    ) -> Vec<tokio::task::JoinHandle<Result<(), FailureKind>>> {
        let wait = |_| {
            let limit = Arc::clone(limit);
            let request = async move { limit.acquire(in_a_minute()).await.map(drop).map_err(|failure| failure.kind) };
            tokio::spawn(ClientId::new(client).scope(request))
        };
        let tasks = (0..requests).map(wait).collect();
        // Time passes only once all tasks wait.
        tokio::time::sleep(Duration::from_millis(1)).await;
        tasks
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_fills_its_share_of_the_queue_is_refused_and_others_get_their_turn() {
        let limit = Arc::new(ConcurrencyLimit::new(1));
        let held = acquire_many(&limit, 1).await;
        let greedy = wait_as(&limit, 1, MAX_WAITING).await;
        assert_eq!(limit.snapshot().waiting, MAX_WAITING / 4 * 3);
        let modest = wait_as(&limit, 2, 3).await;
        assert_eq!(limit.snapshot().waiting, MAX_WAITING / 4 * 3 + 3);
        let refused = greedy.iter().filter(|request| request.is_finished()).count();
        assert_eq!(refused, MAX_WAITING / 4);
        drop(held);
        for request in modest {
            assert_eq!(request.await.unwrap(), Ok(()));
        }
        greedy.iter().for_each(tokio::task::JoinHandle::abort);
        for request in greedy {
            let _ = request.await;
        }
        assert!(limit.places().by_client.is_empty());
        assert_eq!(limit.snapshot().waiting, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_is_bounded() {
        let limit = Arc::new(ConcurrencyLimit::new(1));
        let _held = acquire_many(&limit, 1).await;
        let mut waiters = Vec::new();
        for client in 0..20 {
            waiters.extend(wait_as(&limit, client, MAX_WAITING / 4).await);
        }
        let waiting = limit.snapshot().waiting;
        assert!((MAX_WAITING * 9 / 10..=MAX_WAITING).contains(&waiting), "{waiting}");
        let refused = waiters.iter().filter(|request| request.is_finished()).count();
        assert_eq!(waiting + refused, 20 * MAX_WAITING / 4, "requests without a place fail at once");
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
