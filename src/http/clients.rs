//! Who counts as one client, and what one client may take: requests at once, bytes a second. Requests themselves are never
//! counted up: a viewer asks for thousands.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Response};
use futures_util::FutureExt;
use ipnet::IpNet;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::admitted::{Admitted, Answered, InFlight};
use super::guard::Viewpoint;
use super::paced::Paced;
use super::problem::{self, Problem};
use super::{Options, forwarded};
use crate::fair::Client;
use crate::metrics::{self, Queue, Shed};
use crate::trace;

/// Most clients that are remembered for what they owe, of some 200 bytes each: where bytes are limited to few a second, what was
/// sent is owed for long, and a proxy may name any number of clients.
const MOST_KNOWN: usize = 50_000;

/// Accounts of clients that owe nothing are cleared away when there are so many more.
const TIDIED: usize = 1024;

/// Of one client, at most one part in so many of `limits.concurrent_requests` waits for its own requests.
const WAITING_PART: usize = 4;

/// Limits for each client; 0 for none.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Requests that are answered at once, to the last byte.
    pub requests: usize,
    /// Bytes of bodies in a second.
    pub bytes_per_second: u64,
    /// Bytes that may be sent at once after a pause.
    pub burst_bytes: u64,
    /// Longest wait for another request of the client's to end.
    pub wait: Duration,
}

/// What stands for a client of that address: of IPv6 the network of 64 bits, which one machine has all of.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        short @ IpAddr::V4(_) => short,
    }
}

impl Limits {
    fn are_none(&self) -> bool {
        self.requests == 0 && self.bytes_per_second == 0
    }
}

/// What each client may take, and who is one.
pub(super) struct Clients {
    limits: Limits,
    concurrent_requests: usize,
    /// Proxies who may say for whom they ask.
    trusted: Vec<IpNet>,
    accounts: Arc<Accounts>,
}

/// How many requests each client has that has any, and how many of them are answered.
type Running = Arc<Mutex<HashMap<Client, (usize, Answered)>>>;

/// The clients that have asked lately, whatever the limits were.
pub(super) struct Accounts {
    running: Running,
    /// Of those that have requests, or owe anything for those they had.
    known: Mutex<Known>,
    /// Requests that wait for another one of their client's.
    waiting: AtomicUsize,
    /// Random, so that nobody can be made to share somebody's number.
    hashing: RandomState,
}

#[derive(Default)]
struct Known {
    of: HashMap<Client, Arc<Account>>,
    /// How many there were when they were tidied.
    kept: usize,
}

impl Known {
    fn account(&mut self, client: Client, most_requests: usize) -> Arc<Account> {
        let account = self.of.entry(client).or_insert_with(|| Arc::new(Account::new(most_requests)));
        let account = Arc::clone(account);
        if self.of.len() >= self.kept + TIDIED {
            let now = Instant::now();
            self.of.retain(|_, account| Arc::strong_count(account) > 1 || account.owes(now));
            if self.of.len() > MOST_KNOWN {
                self.forget_half();
            }
            self.kept = self.of.len();
        }
        account
    }

    /// Forgets the half that owes the least, but for those that are served.
    fn forget_half(&mut self) {
        let mut paid: Vec<Instant> = self.of.values().map(|account| account.paid_at()).collect();
        let middle = paid.len() / 2;
        let (_, middle, _) = paid.select_nth_unstable(middle);
        let middle = *middle;
        self.of.retain(|_, account| Arc::strong_count(account) > 1 || account.paid_at() > middle);
    }
}

/// What one client has taken.
struct Account {
    requests: Arc<Semaphore>,
    /// Those that wait for one of `requests`.
    waiting: AtomicUsize,
    /// How many permits there are of `requests`, free and taken.
    most: Mutex<usize>,
    /// When all that was sent will have been paid for.
    paid: Mutex<Instant>,
}

impl Account {
    fn owes(&self, now: Instant) -> bool {
        self.paid_at() > now
    }

    fn paid_at(&self) -> Instant {
        *self.paid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clients").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Clients {
    /// With the limits that `options` name, for clients that `accounts` know.
    pub(super) fn new(options: &Options, accounts: Arc<Accounts>) -> Self {
        Self {
            limits: options.clients,
            concurrent_requests: options.concurrent_requests,
            trusted: options.trusted_proxies.clone(),
            accounts,
        }
    }

    /// Whether the bytes of answers are limited.
    pub(super) fn are_slowed(&self) -> bool {
        self.limits.bytes_per_second > 0
    }

    /// Whose request this is.
    pub(super) fn of(&self, headers: &HeaderMap, peer: Option<IpAddr>, viewpoint: Option<&Viewpoint>) -> Client {
        let told = forwarded::client(headers, peer, &self.trusted);
        self.client(viewpoint.and_then(Viewpoint::caller), told.or(peer))
    }

    /// The client of that address, where none that it may speak for is another one.
    pub(super) fn of_address(&self, peer: Option<IpAddr>) -> Option<Client> {
        (!forwarded::is_trusted(peer, &self.trusted)).then(|| self.client(None, peer))
    }

    /// The client of a caller, or else of an address. Whoever has neither comes by a Unix socket, from a proxy that does
    /// not tell.
    fn client(&self, caller: Option<String>, address: Option<IpAddr>) -> Client {
        let address = address.filter(|_| caller.is_none()).map(network_of);
        Client::new(self.accounts.hashing.hash_one((caller, address)))
    }

    /// A place among all requests, kept until a small answer is made or another one is sent, and one among the client's, kept
    /// until the answer is sent. While there are too many requests, a client that has few of them is admitted at once, as far as
    /// there is room, and others wait for their turn.
    ///
    /// # Errors
    /// 429 when the client's other requests do not end in time, or many of its own wait already; 503 when its turn does not
    /// come in time.
    pub(super) async fn enter(&self, client: Client, admitted: &Admitted) -> Result<Place, Problem> {
        let limits = self.limits;
        // First: a request that waits here takes no place from others.
        let (account, request) = if limits.are_none() { (None, None) } else { self.request(client).await?.unzip() };
        let counted = Counted::new(&self.accounts.running, client);
        let (most, answered) = (self.concurrent_requests, &counted.answered);
        let in_flight = match admitted.try_begin(most, answered) {
            Some(in_flight) => in_flight,
            None => admitted.wait(client, answered, most, limits.wait).await.ok_or_else(shed)?,
        };
        Ok(Place { account, limits, _request: request, _counted: counted, in_flight: Some(in_flight) })
    }

    /// A place among the requests that the client may have, where that is limited.
    async fn request(&self, client: Client) -> Result<Option<(Arc<Account>, OwnedSemaphorePermit)>, Problem> {
        let limits = self.limits;
        let most = if limits.requests == 0 { Semaphore::MAX_PERMITS } else { limits.requests };
        let account = self.accounts.known.lock().unwrap_or_else(PoisonError::into_inner).account(client, most);
        let request = {
            let mut entering = pin!(account.enter(most));
            match entering.as_mut().now_or_never() {
                Some(entered) => entered,
                None => match Waiting::begin(&self.accounts, &account, self.concurrent_requests) {
                    Some(_waiting) => {
                        let (_measured, since) = (metrics::Waiting::begin(Queue::Client), Instant::now());
                        let entered = tokio::time::timeout(limits.wait, entering).await.ok().flatten();
                        trace::record("wait", Queue::Client.name(), since.elapsed());
                        entered
                    }
                    None => None,
                },
            }
        };
        let Some(request) = request else {
            metrics::request_shed(Shed::Client);
            let detail = format!("{} requests of yours are being answered; wait for one of them", limits.requests);
            return Err(Problem::new(problem::TOO_MANY, detail).passing());
        };
        Ok(Some((account, request)))
    }
}

/// A request that waits for another one of its client's.
struct Waiting<'a>([&'a AtomicUsize; 2]);

impl<'a> Waiting<'a> {
    /// `None` where too many wait: of all clients as many as may be answered at once, of one a part of them.
    fn begin(accounts: &'a Accounts, account: &'a Account, most: usize) -> Option<Self> {
        let this = Self([&accounts.waiting, &account.waiting]);
        let counts = this.0.map(|count| count.fetch_add(1, Ordering::Relaxed));
        (counts[0] < most && counts[1] < (most / WAITING_PART).max(1)).then_some(this)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        for count in self.0 {
            count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            running: Arc::default(),
            known: Mutex::default(),
            waiting: AtomicUsize::new(0),
            hashing: RandomState::new(),
        }
    }
}

impl Account {
    fn new(most: usize) -> Self {
        let requests = Arc::new(Semaphore::new(most));
        Self { requests, waiting: AtomicUsize::new(0), most: Mutex::new(most), paid: Mutex::new(Instant::now()) }
    }

    /// Waits until fewer than `most` requests are being answered, which may have been another number before.
    async fn enter(&self, most: usize) -> Option<OwnedSemaphorePermit> {
        loop {
            {
                let mut current = self.most.lock().unwrap_or_else(PoisonError::into_inner);
                if *current < most {
                    self.requests.add_permits(most - *current);
                    *current = most;
                } else {
                    *current -= self.requests.forget_permits(*current - most);
                }
            }
            // The semaphore is never closed.
            let permit = Arc::clone(&self.requests).acquire_owned().await.ok()?;
            let mut current = self.most.lock().unwrap_or_else(PoisonError::into_inner);
            if *current <= most {
                return Some(permit);
            }
            // One of those that there are too many of.
            permit.forget();
            *current -= 1;
        }
    }
}

/// There are too many requests at once.
fn shed() -> Problem {
    metrics::request_shed(Shed::Requests);
    Problem::own(problem::OVERLOADED, "too many requests at once; try again", "too many requests")
}

/// A request, counted among its client's as long as this lives.
struct Counted {
    running: Running,
    client: Client,
    answered: Answered,
}

impl Counted {
    fn new(running: &Running, client: Client) -> Self {
        let mut clients = running.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, answered) = clients.entry(client).or_default();
        *count += 1;
        Self { running: Arc::clone(running), client, answered: Arc::clone(answered) }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut requests) = running.entry(self.client) {
            requests.get_mut().0 -= 1;
            if requests.get().0 == 0 {
                requests.remove();
            }
        }
    }
}

/// A client's request among all of its requests.
pub(super) struct Place {
    /// Where something is limited.
    account: Option<Arc<Account>>,
    limits: Limits,
    // Dropped before the permit: whoever gets that is counted, and must not be one of two.
    _counted: Counted,
    in_flight: Option<InFlight>,
    _request: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// Whether bytes are limited.
    pub(super) fn is_slowed(&self) -> bool {
        self.limits.bytes_per_second > 0
    }

    /// Gives up the place among all requests: nothing is left to do for the answer but to send it.
    pub(super) fn is_made(&mut self) {
        self.in_flight = None;
    }

    /// The answer, which keeps the place until it is sent, no faster than the client may have it.
    pub(super) fn answer(self, response: Response<Body>) -> Response<Body> {
        response.map(|body| Body::new(Paced::new(body, self)))
    }

    /// When so many bytes may be sent, where that is not now.
    pub(super) fn pay(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let Limits { bytes_per_second, burst_bytes, .. } = self.limits;
        let account = self.account.as_ref().filter(|_| bytes_per_second > 0)?;
        let time = |bytes: u64| {
            let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second);
            Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX)).min(Duration::from_secs(86_400))
        };
        let mut paid = account.paid.lock().unwrap_or_else(PoisonError::into_inner);
        *paid = (*paid).max(now) + time(bytes as u64);
        let due = paid.checked_sub(time(burst_bytes)).unwrap_or(now);
        (due > now).then_some(due)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt;

    use super::super::admitted::Admitted;
    use super::*;

    fn clients(requests: usize, bytes_per_second: u64, burst_bytes: u64) -> Clients {
        Clients {
            limits: Limits { requests, bytes_per_second, burst_bytes, wait: Duration::from_secs(10) },
            concurrent_requests: 16,
            trusted: Vec::new(),
            accounts: Arc::default(),
        }
    }

    #[test]
    fn a_client_is_a_caller_or_an_address_or_a_network() {
        let clients = clients(0, 0, 0);
        let at = |address: &str| clients.client(None, Some(address.parse().unwrap()));
        assert_eq!(at("192.0.2.1"), at("::ffff:192.0.2.1"));
        assert_ne!(at("192.0.2.1"), at("192.0.2.2"));
        assert_eq!(at("2001:db8::1"), at("2001:db8::ffff:1:2:3"));
        assert_ne!(at("2001:db8::1"), at("2001:db8:0:1::1"));
        let named = |address: &str| clients.client(Some("ann".to_owned()), Some(address.parse().unwrap()));
        assert_eq!(named("192.0.2.1"), named("192.0.2.2"));
        assert_ne!(named("192.0.2.1"), at("192.0.2.1"));
    }

    #[tokio::test]
    async fn bytes_beyond_the_burst_come_at_the_rate_and_all_of_them_come() {
        let clients = clients(0, 8 << 20, 1 << 20);
        let begun = Instant::now();
        let sent = Bytes::from((0..(4_usize << 20) + 5).map(|at| u8::try_from(at % 251).unwrap()).collect::<Vec<_>>());
        let mut received = Vec::new();
        for part in [sent.slice(..2 << 20), sent.slice(2 << 20..)] {
            let place = clients.enter(Client::new(1), &Admitted::default()).await.unwrap();
            let answer = place.answer(Response::new(Body::from(part.clone())));
            assert_eq!(http_body::Body::size_hint(answer.body()).exact(), Some(part.len() as u64));
            received.extend(answer.into_body().collect().await.unwrap().to_bytes());
        }
        assert!(received == sent);
        // One MiB at once, the others an eighth of a second each, at least.
        assert!(begun.elapsed() >= Duration::from_millis(370), "{:?}", begun.elapsed());
        let other = clients.enter(Client::new(2), &Admitted::default()).await.unwrap();
        assert!(other.pay(1 << 20, Instant::now()).is_none(), "another client owes nothing");
    }

    #[tokio::test]
    async fn whoever_is_served_or_owes_is_not_forgotten_and_others_are() {
        let mut clients = clients(1, 1000, 1000);
        clients.limits.wait = Duration::from_millis(20);
        let _served = clients.enter(Client::new(1), &Admitted::default()).await.unwrap();
        let _due = clients.enter(Client::new(2), &Admitted::default()).await.unwrap().pay(1_000_000, Instant::now());
        for number in 0..4 * TIDIED as u64 {
            assert!(clients.enter(Client::new(100 + number), &Admitted::default()).await.is_ok());
        }
        assert!(clients.enter(Client::new(1), &Admitted::default()).await.is_err(), "it has its one request");
        let debtor = clients.enter(Client::new(2), &Admitted::default()).await.unwrap();
        assert!(debtor.pay(1, Instant::now()).is_some_and(|due| due > Instant::now() + Duration::from_secs(900)));
        assert!(clients.accounts.known.lock().unwrap().of.len() <= TIDIED + 2);
    }

    #[test]
    fn the_number_of_clients_that_owe_is_bounded_and_those_that_owe_most_are_remembered() {
        let mut known = Known::default();
        let now = Instant::now();
        let debtor = Client::new(u64::MAX);
        *known.account(debtor, 1).paid.lock().unwrap() = now + Duration::from_secs(86_400);
        for number in 0..2 * MOST_KNOWN as u64 + TIDIED as u64 {
            *known.account(Client::new(number), 1).paid.lock().unwrap() =
                now + Duration::from_secs(1000 + number / 1000);
        }
        assert!(known.of.len() <= MOST_KNOWN + TIDIED, "{}", known.of.len());
        assert!(known.of.contains_key(&debtor));
    }

    #[tokio::test]
    async fn a_place_is_kept_until_the_body_is_gone_and_waited_for() {
        let mut clients = clients(1, 0, 0);
        let answer =
            clients.enter(Client::new(1), &Admitted::default()).await.unwrap().answer(Response::new(Body::from("x")));
        assert!(clients.enter(Client::new(2), &Admitted::default()).await.is_ok());
        let admitted = Admitted::default();
        let (second, ()) = tokio::join!(clients.enter(Client::new(1), &admitted), async {
            tokio::task::yield_now().await;
            drop(answer);
        });
        clients.limits.wait = Duration::from_millis(20);
        assert!(clients.enter(Client::new(1), &Admitted::default()).await.is_err());
        drop(second.unwrap());
        assert!(clients.enter(Client::new(1), &Admitted::default()).await.is_ok());
    }

    #[tokio::test]
    async fn small_answers_in_memory_keep_no_place_among_all_and_others_do() {
        let (clients, admitted) = (clients(0, 0, 0), Admitted::default());
        let streamed = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from("x"))]);
        let bodies = [Body::from(vec![0; 1 << 20]), Body::from(vec![0; (1 << 20) + 1]), Body::from_stream(streamed)];
        let mut answers = Vec::new();
        for (kept, body) in bodies.into_iter().enumerate() {
            let place = clients.enter(Client::new(1), &admitted).await.unwrap();
            answers.push(place.answer(Response::new(body)));
            assert_eq!(admitted.count(), kept);
        }
        drop(answers);
        assert_eq!(admitted.count(), 0);
    }

    #[tokio::test]
    async fn other_limits_hold_for_clients_that_are_known_and_forgive_nothing() {
        let before = clients(3, 1 << 20, 1 << 20);
        let limited = |requests, bytes_per_second| {
            let wait = Duration::from_millis(20);
            let limits = Limits { requests, bytes_per_second, burst_bytes: 1 << 20, wait };
            Clients { limits, concurrent_requests: 16, trusted: Vec::new(), accounts: Arc::clone(&before.accounts) }
        };
        let client = Client::new(1);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(before.enter(client, &Admitted::default()).await.unwrap());
        }
        let fewer = limited(1, 1 << 20);
        assert!(fewer.enter(client, &Admitted::default()).await.is_err());
        held.truncate(1);
        assert!(fewer.enter(client, &Admitted::default()).await.is_err(), "one is all there may be");
        held[0].pay(64 << 20, Instant::now());
        held.clear();
        let place = fewer.enter(client, &Admitted::default()).await.unwrap();
        assert!(place.pay(1, Instant::now()).is_some(), "what was sent before is owed");
        let more = limited(2, 1 << 20);
        let both = (more.enter(client, &Admitted::default()).await, more.enter(client, &Admitted::default()).await);
        assert!(both.0.is_ok() && both.1.is_err());
        assert!(limited(0, 1 << 20).enter(client, &Admitted::default()).await.is_ok(), "no limit");
    }

    #[tokio::test]
    async fn when_there_are_too_many_requests_those_who_have_few_get_in_and_others_wait() {
        let (mut clients, admitted) = (clients(0, 0, 0), Admitted::default());
        let (greedy, modest) = (Client::new(1), Client::new(2));
        let mut places = Vec::new();
        for _ in 1..=16 {
            places.push(clients.enter(greedy, &admitted).await.unwrap());
        }
        let place = clients.enter(modest, &admitted).await.unwrap();
        clients.limits.wait = Duration::from_millis(20);
        assert!(clients.enter(modest, &admitted).await.is_err(), "one is few of sixteen");
        assert_eq!(admitted.count(), 17);
        clients.limits.wait = Duration::from_secs(10);
        {
            let mut waits = std::pin::pin!(clients.enter(greedy, &admitted));
            assert!(futures_util::poll!(waits.as_mut()).is_pending());
            places.truncate(14);
            places.push(waits.await.unwrap());
        }
        drop((place, places));
        assert!(clients.accounts.running.lock().unwrap().is_empty());
        assert_eq!(admitted.count(), 0);
    }
}
