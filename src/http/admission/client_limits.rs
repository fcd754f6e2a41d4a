//! Identifies clients and limits what one client may take: concurrent requests and bytes per second. The number of
//! requests over time is not limited, because a viewer sends thousands.
//!
//! The body of a response holds the client's request permit until the body has been sent, and is sent no faster than
//! the client's rate allows. A large body, and a body that is produced while it is being sent, also hold the in-flight
//! slot.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use bytes::Bytes;
use futures_util::FutureExt;
use http_body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep};

use crate::http::admission::in_flight::{AdmissionController, InFlightGuard, count_until_dropped};
use crate::http::forwarded;
use crate::http::mount::CallerView;
use crate::http::options::HttpOptions;
use crate::http::problem::{self, Problem};
use crate::runtime::fair_queue::ClientId;
use crate::telemetry::metrics::{self, QueueLabel, QueueWaitTimer, ShedReason};
use crate::telemetry::trace;

/// Maximum number of accounts in memory, each of some 200 bytes. A limit is needed because a debt lasts long under a
/// low byte rate, and a proxy may name any number of clients.
const MAX_ACCOUNTS: usize = 50_000;

/// Number of new accounts after which accounts without debt are evicted.
const ACCOUNTS_PER_CLEANUP: usize = 1024;

/// A client may have as many requests that wait for one of its permits as `limits.concurrent_requests` divided by this.
const MAX_WAITING_DIVISOR: usize = 4;

/// Maximum number of bytes that are sent at once under a rate limit.
const MAX_CHUNK_BYTES: usize = 64 << 10;

/// Maximum size of a response in memory that releases its in-flight slot before it is sent. Clients that receive such
/// responses slowly then keep no other request waiting.
const MAX_EARLY_RELEASE_BYTES: u64 = 1 << 20;

/// Identifies clients and enforces their limits. Remembers what the clients of recent requests have used, even if the
/// configuration changes.
#[derive(Default)]
pub(crate) struct ClientRegistry {
    /// Admission of requests, which limits how many are in flight.
    admission: Arc<AdmissionController>,
    /// Requests of each client. Clients without requests have no entry.
    requests: Mutex<HashMap<ClientId, ClientRequests>>,
    /// Accounts of clients that have requests or a debt from earlier ones.
    accounts: Mutex<AccountTable>,
    /// Number of requests of all clients that wait for one of their client's permits.
    waiting: AtomicUsize,
    /// Hasher of client ids, seeded randomly so that no client can obtain the id of another client.
    hashing: RandomState,
}

/// Requests of one client.
#[derive(Default)]
struct ClientRequests {
    /// Number of requests that are admitted or wait for an in-flight slot.
    count: usize,
    /// Number of requests that hold an in-flight slot.
    in_flight: Arc<AtomicUsize>,
}

#[derive(Default)]
struct AccountTable {
    by_client: HashMap<ClientId, Arc<ClientAccount>>,
    /// Number of accounts after the last cleanup.
    len_after_cleanup: usize,
}

impl AccountTable {
    fn get_or_insert(&mut self, client: ClientId, max_requests: usize) -> Arc<ClientAccount> {
        let account = self.by_client.entry(client).or_insert_with(|| Arc::new(ClientAccount::new(max_requests)));
        let account = Arc::clone(account);
        if self.by_client.len() >= self.len_after_cleanup + ACCOUNTS_PER_CLEANUP {
            let now = Instant::now();
            self.by_client.retain(|_, account| Arc::strong_count(account) > 1 || account.theoretical_arrival() > now);
            if self.by_client.len() > MAX_ACCOUNTS {
                self.evict_half();
            }
            self.len_after_cleanup = self.by_client.len();
        }
        account
    }

    /// Evicts the half of the accounts with the least debt, except those in use.
    fn evict_half(&mut self) {
        let mut arrivals: Vec<Instant> = self.by_client.values().map(|account| account.theoretical_arrival()).collect();
        let middle_index = arrivals.len() / 2;
        let (_, median, _) = arrivals.select_nth_unstable(middle_index);
        let median = *median;
        self.by_client.retain(|_, account| Arc::strong_count(account) > 1 || account.theoretical_arrival() > median);
    }
}

/// Resources that one client has used.
struct ClientAccount {
    permits: Arc<Semaphore>,
    /// Number of requests that wait for one of `permits`.
    waiting: AtomicUsize,
    /// Number of permits in `permits`, free and taken.
    permit_count: Mutex<usize>,
    /// Theoretical arrival time of the generic cell rate algorithm (GCRA): the time at which all bytes charged so far
    /// could have been sent at the client's rate.
    theoretical_arrival: Mutex<Instant>,
}

impl ClientAccount {
    fn new(max_requests: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(max_requests)),
            waiting: AtomicUsize::new(0),
            permit_count: Mutex::new(max_requests),
            theoretical_arrival: Mutex::new(Instant::now()),
        }
    }

    fn theoretical_arrival(&self) -> Instant {
        *self.theoretical_arrival.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires one of `max_requests` permits. Adjusts their number first, because the limit may have changed since the
    /// client's last request. `None` stands for a closed semaphore, and is never returned.
    async fn acquire_permit(&self, max_requests: usize) -> Option<OwnedSemaphorePermit> {
        loop {
            {
                let mut permit_count = self.permit_count.lock().unwrap_or_else(PoisonError::into_inner);
                if *permit_count < max_requests {
                    self.permits.add_permits(max_requests - *permit_count);
                    *permit_count = max_requests;
                } else {
                    *permit_count -= self.permits.forget_permits(*permit_count - max_requests);
                }
            }
            // The semaphore is never closed.
            let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
            let mut permit_count = self.permit_count.lock().unwrap_or_else(PoisonError::into_inner);
            if *permit_count <= max_requests {
                return Some(permit);
            }
            // The limit was lowered in the meantime, so this permit must no longer exist.
            permit.forget();
            *permit_count -= 1;
        }
    }
}

impl ClientRegistry {
    /// Returns the client that a request belongs to.
    pub(crate) fn identify(
        &self,
        options: &HttpOptions,
        headers: &HeaderMap,
        peer: Option<IpAddr>,
        caller_view: Option<&CallerView>,
    ) -> ClientId {
        let forwarded_address = forwarded::client_address(headers, peer, &options.trusted_proxies);
        let caller = caller_view.and_then(|view| view.caller.as_ref()).map(ToString::to_string);
        self.client_id(caller, forwarded_address.or(peer))
    }

    /// Returns the client of a peer address; `None` for a trusted proxy or a Unix socket, whose requests may belong to
    /// other clients.
    pub(crate) fn identify_direct_peer(&self, options: &HttpOptions, peer: Option<IpAddr>) -> Option<ClientId> {
        (!forwarded::is_trusted_proxy(peer, &options.trusted_proxies)).then(|| self.client_id(None, peer))
    }

    /// Returns the client of a caller, or else of an address. A request with neither came over a Unix socket from a
    /// proxy that does not name its client.
    fn client_id(&self, caller: Option<String>, address: Option<IpAddr>) -> ClientId {
        let address = address.filter(|_| caller.is_none()).map(forwarded::network_of);
        ClientId::new(self.hashing.hash_one((caller, address)))
    }

    /// Waits for a permit of the client, if its requests are limited, and then for an in-flight slot. Both are held
    /// until the response has been sent, unless [`hold_until_sent`] frees the slot of a small response earlier.
    ///
    /// # Errors
    /// Returns a problem with status 429 if the client's other requests do not end in time or too many requests are
    /// waiting already, and with status 503 if no slot becomes free in time.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        options: &HttpOptions,
        client: ClientId,
    ) -> Result<RequestPermit, Problem> {
        let limits = &options.client_limits;
        // The client's permit comes first, so that a request that waits for it occupies no in-flight slot.
        let (account, client_permit) = if limits.concurrent_requests == 0 && limits.bytes_per_second == 0 {
            (None, None)
        } else {
            let (account, client_permit) = self.acquire_client_permit(options, client).await?;
            (Some(account), Some(client_permit))
        };
        let client_in_flight = self.count_request(client);
        let mut permit = RequestPermit {
            registry: Arc::clone(self),
            client,
            account,
            bytes_per_second: limits.bytes_per_second,
            burst_bytes: limits.burst,
            in_flight: None,
            _client_permit: client_permit,
        };
        let max_in_flight = options.concurrent_requests;
        permit.in_flight = self.admission.try_admit(max_in_flight, &client_in_flight);
        if permit.in_flight.is_none() {
            permit.in_flight = self.admission.wait(client, &client_in_flight, max_in_flight, options.budget_wait).await;
        }
        if permit.in_flight.is_none() {
            metrics::request_shed(ShedReason::Requests);
            let detail = "the server has too many concurrent requests; try again";
            return Err(Problem::with_cause(problem::OVERLOADED, detail, "too many requests"));
        }
        Ok(permit)
    }

    /// Counts a request of the client. The drop of its [`RequestPermit`] ends that. Returns the counter of the client's
    /// requests that hold an in-flight slot.
    fn count_request(&self, client: ClientId) -> Arc<AtomicUsize> {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let requests = requests.entry(client).or_default();
        requests.count += 1;
        Arc::clone(&requests.in_flight)
    }

    /// Acquires one of the client's request permits. Returns the client's account and the permit.
    ///
    /// # Errors
    /// Returns a problem with status 429 if the client's other requests do not end in time or too many requests are
    /// waiting already.
    async fn acquire_client_permit(
        &self,
        options: &HttpOptions,
        client: ClientId,
    ) -> Result<(Arc<ClientAccount>, OwnedSemaphorePermit), Problem> {
        let limit = options.client_limits.concurrent_requests;
        let max_requests = if limit == 0 { Semaphore::MAX_PERMITS } else { limit };
        let account = self.accounts.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(client, max_requests);
        let permit = {
            let mut acquiring = pin!(account.acquire_permit(max_requests));
            match acquiring.as_mut().now_or_never() {
                Some(permit) => permit,
                None => self.wait_for_client_permit(options, &account, acquiring).await,
            }
        };
        let Some(permit) = permit else {
            metrics::request_shed(ShedReason::Client);
            let detail =
                format!("this client already has {limit} requests in progress; wait for one of them to finish");
            return Err(Problem::new(problem::TOO_MANY, detail).with_retry_after());
        };
        Ok((account, permit))
    }

    /// Waits for `acquiring`, unless too many requests wait already.
    async fn wait_for_client_permit(
        &self,
        options: &HttpOptions,
        account: &ClientAccount,
        acquiring: impl Future<Output = Option<OwnedSemaphorePermit>>,
    ) -> Option<OwnedSemaphorePermit> {
        let waiting_before = count_until_dropped(&self.waiting);
        let of_client_before = count_until_dropped(&account.waiting);
        // The number of waiting requests of all clients is limited to that of requests in flight.
        let max_waiting = options.concurrent_requests;
        if *waiting_before >= max_waiting || *of_client_before >= (max_waiting / MAX_WAITING_DIVISOR).max(1) {
            return None;
        }
        let wait_timer = QueueWaitTimer::begin(QueueLabel::Client);
        let permit = tokio::time::timeout(options.budget_wait, acquiring).await.ok().flatten();
        trace::finish_wait(wait_timer);
        permit
    }
}

/// Permit of one request, which counts among its client's requests until the permit is dropped. The request takes the
/// permit before it waits for an in-flight slot, and holds it until its response has been sent.
pub(crate) struct RequestPermit {
    registry: Arc<ClientRegistry>,
    client: ClientId,
    /// `None` if the client has no limits.
    account: Option<Arc<ClientAccount>>,
    bytes_per_second: u64,
    burst_bytes: u64,
    in_flight: Option<InFlightGuard>,
    _client_permit: Option<OwnedSemaphorePermit>,
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        // This runs before the fields are dropped, so that the request is no longer counted when the client's next
        // request gets its permit.
        let mut requests = self.registry.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut entry) = requests.entry(self.client) {
            entry.get_mut().count -= 1;
            if entry.get().count == 0 {
                entry.remove();
            }
        }
    }
}

impl RequestPermit {
    /// Charges `bytes` to the client's account. Returns the time at which the bytes may be sent, or `None` if that is
    /// now.
    fn charge_bytes(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let account = self.account.as_ref().filter(|_| self.bytes_per_second > 0)?;
        let time_for = |bytes: u64| {
            let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
            Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)).min(Duration::from_secs(86_400))
        };
        let mut theoretical_arrival = account.theoretical_arrival.lock().unwrap_or_else(PoisonError::into_inner);
        *theoretical_arrival = (*theoretical_arrival).max(now) + time_for(bytes as u64);
        let send_time = theoretical_arrival.checked_sub(time_for(self.burst_bytes)).unwrap_or(now);
        (send_time > now).then_some(send_time)
    }
}

/// A body that is sent in chunks, no faster than the client's byte rate.
struct RateLimitedBody {
    body: Body,
    /// Data of the inner body that has not been sent yet.
    unsent: Bytes,
    /// True if the next chunk has been charged to the rate limiter.
    is_charged: bool,
    delay: Option<(Pin<Box<Sleep>>, QueueWaitTimer)>,
    permit: RequestPermit,
}

/// Wraps the body of a response, so that the permit is held until the body has been sent at the client's byte rate.
/// Frees the in-flight slot now if the body is small and in memory.
pub(crate) fn hold_until_sent(mut permit: RequestPermit, response: Response<Body>) -> Response<Body> {
    // A body that is produced while it is being sent has no exact size.
    let size = http_body::Body::size_hint(response.body()).exact();
    if size.is_some_and(|bytes| bytes <= MAX_EARLY_RELEASE_BYTES) {
        permit.in_flight = None;
    }
    response
        .map(|body| Body::new(RateLimitedBody { body, unsent: Bytes::new(), is_charged: false, delay: None, permit }))
}

impl http_body::Body for RateLimitedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.permit.bytes_per_second == 0 {
            return Pin::new(&mut self.body).poll_frame(context);
        }
        if self.unsent.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.unsent = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let length = self.unsent.len().min(MAX_CHUNK_BYTES);
        if !self.is_charged {
            self.is_charged = true;
            self.delay = self
                .permit
                .charge_bytes(length, Instant::now())
                .map(|due| (Box::pin(tokio::time::sleep_until(due)), QueueWaitTimer::begin(QueueLabel::Rate)));
        }
        if let Some((sleep, _)) = &mut self.delay {
            ready!(sleep.as_mut().poll(context));
        }
        (self.is_charged, self.delay) = (false, None);
        Poll::Ready(Some(Ok(Frame::data(self.unsent.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.body.size_hint();
        let unsent_bytes = self.unsent.len() as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + unsent_bytes);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + unsent_bytes);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::config::{ClientsConfig, Config};

    struct TestLimiter {
        options: HttpOptions,
        registry: Arc<ClientRegistry>,
    }

    impl TestLimiter {
        async fn admit(&self, client: ClientId) -> Result<RequestPermit, Problem> {
            self.registry.admit(&self.options, client).await
        }

        fn requests_in_flight(&self) -> usize {
            self.registry.admission.count()
        }
    }

    fn new_limiter(concurrent_requests: usize, bytes_per_second: u64, burst: u64) -> TestLimiter {
        let client_limits = ClientsConfig { connections: 0, concurrent_requests, bytes_per_second, burst };
        let options = HttpOptions { concurrent_requests: 16, client_limits, ..HttpOptions::new(&Config::default()) };
        TestLimiter { options, registry: Arc::default() }
    }

    #[test]
    fn a_client_is_a_caller_or_an_address_or_a_network() {
        let registry = ClientRegistry::default();
        let id_of_address = |address: &str| registry.client_id(None, Some(address.parse().unwrap()));
        assert_eq!(id_of_address("192.0.2.1"), id_of_address("::ffff:192.0.2.1"));
        assert_ne!(id_of_address("192.0.2.1"), id_of_address("192.0.2.2"));
        assert_eq!(id_of_address("2001:db8::1"), id_of_address("2001:db8::ffff:1:2:3"));
        assert_ne!(id_of_address("2001:db8::1"), id_of_address("2001:db8:0:1::1"));
        let id_of_caller = |address: &str| registry.client_id(Some("ann".to_owned()), Some(address.parse().unwrap()));
        assert_eq!(id_of_caller("192.0.2.1"), id_of_caller("192.0.2.2"));
        assert_ne!(id_of_caller("192.0.2.1"), id_of_address("192.0.2.1"));
    }

    #[tokio::test]
    async fn bytes_beyond_the_burst_are_sent_at_the_rate_and_none_is_lost() {
        let limiter = new_limiter(0, 8 << 20, 1 << 20);
        let started = Instant::now();
        let sent = Bytes::from((0..(4_usize << 20) + 5).map(|n| u8::try_from(n % 251).unwrap()).collect::<Vec<_>>());
        let mut received = Vec::new();
        for part in [sent.slice(..2 << 20), sent.slice(2 << 20..)] {
            let permit = limiter.admit(ClientId::new(1)).await.unwrap();
            let response = hold_until_sent(permit, Response::new(Body::from(part.clone())));
            assert_eq!(http_body::Body::size_hint(response.body()).exact(), Some(part.len() as u64));
            received.extend(response.into_body().collect().await.unwrap().to_bytes());
        }
        assert!(received == sent);
        // The first MiB is sent at once; each of the other three takes at least an eighth of a second.
        assert!(started.elapsed() >= Duration::from_millis(370), "{:?}", started.elapsed());
        let other_permit = limiter.admit(ClientId::new(2)).await.unwrap();
        assert!(other_permit.charge_bytes(1 << 20, Instant::now()).is_none(), "another client has no debt");
    }

    #[tokio::test]
    async fn clients_with_requests_or_debt_are_kept_and_others_are_evicted() {
        let mut limiter = new_limiter(1, 1000, 1000);
        limiter.options.budget_wait = Duration::from_millis(20);
        let _permit = limiter.admit(ClientId::new(1)).await.unwrap();
        let _due = limiter.admit(ClientId::new(2)).await.unwrap().charge_bytes(1_000_000, Instant::now());
        for number in 0..4 * ACCOUNTS_PER_CLEANUP as u64 {
            assert!(limiter.admit(ClientId::new(100 + number)).await.is_ok());
        }
        assert!(limiter.admit(ClientId::new(1)).await.is_err(), "its only permit is taken");
        let debtor_permit = limiter.admit(ClientId::new(2)).await.unwrap();
        assert!(
            debtor_permit
                .charge_bytes(1, Instant::now())
                .is_some_and(|due| due > Instant::now() + Duration::from_secs(900))
        );
        assert!(limiter.registry.accounts.lock().unwrap().by_client.len() <= ACCOUNTS_PER_CLEANUP + 2);
    }

    #[test]
    fn the_number_of_accounts_is_bounded_and_the_largest_debts_are_kept() {
        let mut accounts = AccountTable::default();
        let now = Instant::now();
        let debtor = ClientId::new(u64::MAX);
        *accounts.get_or_insert(debtor, 1).theoretical_arrival.lock().unwrap() = now + Duration::from_secs(86_400);
        for number in 0..2 * MAX_ACCOUNTS as u64 + ACCOUNTS_PER_CLEANUP as u64 {
            *accounts.get_or_insert(ClientId::new(number), 1).theoretical_arrival.lock().unwrap() =
                now + Duration::from_secs(1000 + number / 1000);
        }
        assert!(accounts.by_client.len() <= MAX_ACCOUNTS + ACCOUNTS_PER_CLEANUP, "{}", accounts.by_client.len());
        assert!(accounts.by_client.contains_key(&debtor));
    }

    #[tokio::test]
    async fn a_permit_is_held_until_the_body_is_dropped_and_requests_wait_for_it() {
        let mut limiter = new_limiter(1, 0, 0);
        let permit = limiter.admit(ClientId::new(1)).await.unwrap();
        let response = hold_until_sent(permit, Response::new(Body::from("x")));
        assert!(limiter.admit(ClientId::new(2)).await.is_ok());
        let (second_permit, ()) = tokio::join!(limiter.admit(ClientId::new(1)), async {
            tokio::task::yield_now().await;
            drop(response);
        });
        limiter.options.budget_wait = Duration::from_millis(20);
        assert!(limiter.admit(ClientId::new(1)).await.is_err());
        drop(second_permit.unwrap());
        assert!(limiter.admit(ClientId::new(1)).await.is_ok());
    }

    #[tokio::test]
    async fn small_responses_in_memory_release_their_slot_and_others_hold_it() {
        let limiter = new_limiter(0, 0, 0);
        let streamed = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from("x"))]);
        let bodies = [Body::from(vec![0; 1 << 20]), Body::from(vec![0; (1 << 20) + 1]), Body::from_stream(streamed)];
        let mut responses = Vec::new();
        for (held_slots, body) in bodies.into_iter().enumerate() {
            let permit = limiter.admit(ClientId::new(1)).await.unwrap();
            responses.push(hold_until_sent(permit, Response::new(body)));
            assert_eq!(limiter.requests_in_flight(), held_slots);
        }
        drop(responses);
        assert_eq!(limiter.requests_in_flight(), 0);
    }

    #[tokio::test]
    async fn new_limits_apply_to_known_clients_and_keep_their_debt() {
        let old_limiter = new_limiter(3, 1 << 20, 1 << 20);
        let with_limits = |requests, bytes_per_second| {
            let mut limiter = new_limiter(requests, bytes_per_second, 1 << 20);
            limiter.options.budget_wait = Duration::from_millis(20);
            limiter.registry = Arc::clone(&old_limiter.registry);
            limiter
        };
        let client = ClientId::new(1);
        let mut permits = Vec::new();
        for _ in 0..3 {
            permits.push(old_limiter.admit(client).await.unwrap());
        }
        let one_request_limiter = with_limits(1, 1 << 20);
        assert!(one_request_limiter.admit(client).await.is_err());
        permits.truncate(1);
        assert!(one_request_limiter.admit(client).await.is_err(), "the new limit is one request");
        permits[0].charge_bytes(64 << 20, Instant::now());
        permits.clear();
        let permit = one_request_limiter.admit(client).await.unwrap();
        assert!(permit.charge_bytes(1, Instant::now()).is_some(), "the debt of earlier bytes remains");
        let two_request_limiter = with_limits(2, 1 << 20);
        let results = (two_request_limiter.admit(client).await, two_request_limiter.admit(client).await);
        assert!(results.0.is_ok() && results.1.is_err());
        assert!(with_limits(0, 1 << 20).admit(client).await.is_ok(), "no limit");
    }

    #[tokio::test]
    async fn under_overload_light_clients_are_admitted_and_others_wait() {
        let mut limiter = new_limiter(0, 0, 0);
        let (heavy, light) = (ClientId::new(1), ClientId::new(2));
        let mut permits = Vec::new();
        for _ in 1..=16 {
            permits.push(limiter.admit(heavy).await.unwrap());
        }
        let permit = limiter.admit(light).await.unwrap();
        limiter.options.budget_wait = Duration::from_millis(20);
        assert!(limiter.admit(light).await.is_err(), "a light client has at most one of sixteen");
        assert_eq!(limiter.requests_in_flight(), 17);
        limiter.options.budget_wait = Duration::from_secs(10);
        {
            let mut waiting = std::pin::pin!(limiter.admit(heavy));
            assert!(futures_util::poll!(waiting.as_mut()).is_pending());
            permits.truncate(14);
            permits.push(waiting.await.unwrap());
        }
        drop((permit, permits));
        assert!(limiter.registry.requests.lock().unwrap().is_empty());
        assert_eq!(limiter.requests_in_flight(), 0);
    }
}
