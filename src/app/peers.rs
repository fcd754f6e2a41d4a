//! The connections and the memory that each address has, so that none has them all.
//!
//! Beyond its number of connections, the address's oldest idle connection makes place for a new one: clients such as the
//! JDK's forget connections and open others. Where none is idle, the new one waits until one ends.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::charge::AddressMemory;
use crate::http;
use crate::metrics::{Queue, Waiting};

/// One address has at most so many times the connections that are still free: three quarters of all where it is alone, and of
/// many addresses each the same part, with some left for the next (a dynamic threshold, as in [`super::pool`]).
const TIMES_FREE: usize = 3;

/// Shortest time without a request after which a connection makes place for another: the next request of a client that
/// sends one after the other is under way before.
const LEAST_IDLE: Duration = Duration::from_millis(100);

/// As long, where none has come yet: a client may open hundreds before it asks on the first.
const LEAST_IDLE_NEW: Duration = Duration::from_secs(5);

/// Pause between two searches for idle connections while others wait for a place.
const SEARCH: Duration = Duration::from_millis(50);

/// Addresses that have connections. Cheap to clone; clones share them.
#[derive(Debug, Clone)]
pub(super) struct Peers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    peers: Mutex<HashMap<IpAddr, Peer>>,
    /// The beginning of [`Activity::idle_since`].
    epoch: Instant,
    last_id: AtomicU64,
}

/// What one address has.
#[derive(Debug, Default)]
struct Peer {
    open: HashMap<u64, Arc<Activity>>,
    waiting: VecDeque<oneshot::Sender<Place>>,
    /// Whether somebody searches for idle connections.
    is_searched: bool,
    memory: Arc<AddressMemory>,
}

/// Bounds on the connections of one address.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerLimits {
    /// Most that are served.
    pub(super) served: usize,
    /// Most that are served or wait, the next one included.
    pub(super) all: usize,
}

impl PeerLimits {
    /// While so many of all connections are `free`, without the next one: as many as `configured`, and never so many that other
    /// addresses have none. 0 for no limit.
    pub(super) fn new(configured: usize, free: usize) -> Self {
        if configured == 0 {
            return Self { served: usize::MAX, all: usize::MAX };
        }
        Self { served: configured, all: free.saturating_add(1).saturating_mul(TIMES_FREE) }
    }
}

/// Whether a new connection is served.
#[derive(Debug)]
pub(super) enum Admission {
    Served(Place),
    /// It waits for a place. A caller that is told to search calls [`Peers::search`].
    Waits(oneshot::Receiver<Place>, Option<IpAddr>),
    Refused,
}

impl Default for Peers {
    fn default() -> Self {
        Self::since(Instant::now())
    }
}

impl Peers {
    fn since(epoch: Instant) -> Self {
        Self(Arc::new(Shared { peers: Mutex::default(), epoch, last_id: AtomicU64::new(0) }))
    }

    /// Decides about a connection from `address`, or its network where clients have one of their own.
    pub(super) fn admit(&self, address: IpAddr, limits: PeerLimits) -> Admission {
        let address = http::network_of(address);
        let mut peers = self.0.peers();
        let peer = peers.entry(address).or_default();
        let open = peer.open.len();
        if open + peer.waiting.len() >= limits.all {
            peer.waiting.retain(|waiting| !waiting.is_closed());
        }
        let is_within = open + peer.waiting.len() < limits.all;
        // Only an address that has some can have too many: no entry is left behind.
        if open == 0 || is_within && open < limits.served || peer.evict(self.0.epoch, 1) == 1 {
            return Admission::Served(self.open(address, peer));
        }
        if !is_within {
            return Admission::Refused;
        }
        let (sender, receiver) = oneshot::channel();
        peer.waiting.push_back(sender);
        let is_searched = std::mem::replace(&mut peer.is_searched, true);
        Admission::Waits(receiver, (!is_searched).then_some(address))
    }

    fn open(&self, address: IpAddr, peer: &mut Peer) -> Place {
        let id = self.0.last_id.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity::new(self.0.epoch));
        peer.open.insert(id, Arc::clone(&activity));
        Place { peers: self.clone(), address, id, activity, memory: Arc::clone(&peer.memory) }
    }

    /// Closes connections of `address` that are idle, as long as others of it wait for a place.
    pub(super) async fn search(self, address: IpAddr) {
        loop {
            tokio::time::sleep(SEARCH).await;
            let mut peers = self.0.peers();
            let Some(peer) = peers.get_mut(&address) else { return };
            peer.waiting.retain(|waiting| !waiting.is_closed());
            if peer.waiting.is_empty() {
                peer.is_searched = false;
                return;
            }
            let evicted = peer.open.values().filter(|activity| activity.is_evicted()).count();
            peer.evict(self.0.epoch, peer.waiting.len().saturating_sub(evicted));
        }
    }

    /// A connection of `address` has ended; the first that waits gets its place.
    fn close(&self, address: IpAddr, id: u64) {
        let mut next = {
            let mut peers = self.0.peers();
            let Entry::Occupied(mut entry) = peers.entry(address) else { return };
            let peer = entry.get_mut();
            peer.open.remove(&id);
            let waiting = std::iter::from_fn(|| peer.waiting.pop_front()).find(|waiting| !waiting.is_closed());
            let next = waiting.map(|waiting| (waiting, self.open(address, peer)));
            if peer.open.is_empty() {
                entry.remove();
            }
            next
        };
        // One that gives up in this moment hands its place on when it is dropped, which takes the lock.
        if let Some((waiting, place)) = next.take() {
            drop(waiting.send(place));
        }
    }
}

impl Shared {
    fn peers(&self) -> MutexGuard<'_, HashMap<IpAddr, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer {
    /// Has the `count` connections closed that are idle for longest; returns how many there are.
    fn evict(&self, epoch: Instant, count: usize) -> usize {
        let least = LEAST_IDLE.as_millis();
        let now = epoch.elapsed().as_millis();
        let idle = self.open.values().filter_map(|activity| {
            let since = activity.idle_since()?;
            (!activity.is_evicted() && now.saturating_sub(u128::from(since)) >= least).then_some((since, activity))
        });
        if count == 1 {
            let oldest = idle.min_by_key(|(since, _)| *since);
            return usize::from(oldest.inspect(|(_, activity)| activity.evict()).is_some());
        }
        let mut idle: Vec<_> = idle.collect();
        idle.sort_unstable_by_key(|(since, _)| *since);
        idle.iter().take(count).inspect(|(_, activity)| activity.evict()).count()
    }
}

/// A connection among those of its address, until dropped.
#[derive(Debug)]
pub(super) struct Place {
    peers: Peers,
    address: IpAddr,
    id: u64,
    activity: Arc<Activity>,
    memory: Arc<AddressMemory>,
}

impl Place {
    /// What the connection tells about itself.
    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// The bytes that all connections of the address have taken from the pools.
    pub(super) fn memory(&self) -> &Arc<AddressMemory> {
        &self.memory
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.peers.close(self.address, self.id);
    }
}

/// Waits for a place, for `patience` at most.
pub(super) async fn waited(place: oneshot::Receiver<Place>, patience: Duration) -> Option<Place> {
    let _waiting = Waiting::begin(Queue::Connection);
    tokio::time::timeout(patience, place).await.ok()?.ok()
}

/// Whether a connection is idle, and whether it is to be closed for another.
#[derive(Debug)]
pub(super) struct Activity {
    epoch: Instant,
    /// Milliseconds from `epoch` on, plus one; 0 while a request is read or answered.
    idle_since: AtomicU64,
    is_evicted: AtomicBool,
    waker: AtomicWaker,
}

impl Activity {
    pub(super) fn new(epoch: Instant) -> Self {
        Self { epoch, idle_since: AtomicU64::new(0), is_evicted: AtomicBool::new(false), waker: AtomicWaker::new() }
    }

    /// Nothing has come since that moment, or ever where the connection is new. Returns true if it is to be closed; otherwise
    /// the task is woken when it is.
    pub(super) fn poll_idle(&self, since: Instant, is_new: bool, context: &Context<'_>) -> bool {
        self.waker.register(context.waker());
        let since = if is_new { since + LEAST_IDLE_NEW.saturating_sub(LEAST_IDLE) } else { since };
        let since = since.saturating_duration_since(self.epoch).as_millis();
        self.idle_since.store(u64::try_from(since).unwrap_or(u64::MAX).saturating_add(1), Ordering::Release);
        self.is_evicted()
    }

    /// Something has come.
    pub(super) fn set_busy(&self) {
        self.idle_since.store(0, Ordering::Release);
    }

    /// Whether it is to be closed for another.
    pub(super) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Acquire)
    }

    fn idle_since(&self) -> Option<u64> {
        self.idle_since.load(Ordering::Acquire).checked_sub(1)
    }

    fn evict(&self) {
        self.is_evicted.store(true, Ordering::Release);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn served(peers: &Peers, address: &str, served: usize, all: usize) -> Option<Place> {
        match peers.admit(address.parse().unwrap(), PeerLimits { served, all }) {
            Admission::Served(place) => Some(place),
            Admission::Waits(..) | Admission::Refused => None,
        }
    }

    fn idle(place: &Place, age: Duration) -> bool {
        let since = Instant::now().checked_sub(age).unwrap();
        place.activity.poll_idle(since, false, &Context::from_waker(Waker::noop()))
    }

    #[test]
    fn each_network_has_its_places_and_nothing_is_left_behind() {
        let peers = Peers::default();
        let place = |address: &str| served(&peers, address, 2, 2);
        let held = [place("192.0.2.1"), place("192.0.2.1"), place("2001:db8::1"), place("2001:db8::ffff:1")];
        assert!(held.iter().all(Option::is_some));
        assert!(place("192.0.2.1").is_none() && place("2001:db8::2").is_none());
        assert!(place("192.0.2.2").is_some() && place("2001:db8:0:1::1").is_some());
        let [one, others @ ..] = held;
        drop(one);
        assert!(place("192.0.2.1").is_some());
        drop(others);
        assert!(peers.0.peers().is_empty());
    }

    #[test]
    fn the_oldest_idle_connection_makes_place() {
        let peers = Peers::since(Instant::now().checked_sub(Duration::from_secs(10)).unwrap());
        let held: Vec<_> = (0..3).map(|_| served(&peers, "192.0.2.1", 3, 3).unwrap()).collect();
        assert!(!idle(&held[0], Duration::from_secs(1)) && !idle(&held[1], Duration::from_secs(2)));
        assert!(!idle(&held[2], Duration::from_millis(1)));
        let fourth = served(&peers, "192.0.2.1", 3, 3);
        assert!(fourth.is_some() && held[1].activity.is_evicted() && !held[0].activity.is_evicted());
        held[0].activity.set_busy();
        let new = held[0].activity.poll_idle(
            Instant::now().checked_sub(Duration::from_secs(1)).unwrap(),
            true,
            &Context::from_waker(Waker::noop()),
        );
        assert!(!new, "a client may ask on it yet");
        assert!(served(&peers, "192.0.2.1", 3, 3).is_none(), "one is busy, one goes, one was busy just now");
    }

    #[tokio::test]
    async fn those_that_wait_get_places_in_turn_when_others_end_or_are_idle() {
        let peers = Peers::default();
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let limits = PeerLimits { served: 2, all: 5 };
        let mut held: Vec<_> = (0..2).map(|_| served(&peers, "192.0.2.1", 2, 5).unwrap()).collect();
        let mut waiting = Vec::new();
        for n in 0..3 {
            let Admission::Waits(place, search) = peers.admit(address, limits) else { panic!("it does not wait") };
            assert_eq!(search.is_some(), n == 0);
            search.map(|address| tokio::spawn(peers.clone().search(address)));
            waiting.push(place);
        }
        assert!(matches!(peers.admit(address, limits), Admission::Refused));
        drop(held.pop());
        let second = waiting.remove(0).await.unwrap();
        assert!(waiting[0].try_recv().is_err());
        // The next one gives up.
        drop(waiting.remove(0));
        assert!(!idle(&held[0], Duration::ZERO));
        tokio::time::sleep(LEAST_IDLE + 2 * SEARCH).await;
        assert!(held[0].activity.is_evicted());
        held.clear();
        let third = waiting.remove(0).await.unwrap();
        tokio::time::sleep(2 * SEARCH).await;
        assert!(!peers.0.peers()[&address].is_searched);
        drop((second, third));
        assert!(peers.0.peers().is_empty());
    }

    /// How many of a hundred connections each of `addresses` gets, that ask in turn, where each may have `configured`.
    fn shares(addresses: usize, configured: usize) -> Vec<usize> {
        let (peers, mut free, mut places) = (Peers::default(), 100, vec![Vec::new(); addresses]);
        for _ in 0..100 {
            for (n, places) in places.iter_mut().enumerate() {
                let limits = PeerLimits::new(configured, free - 1);
                let address = IpAddr::from([192, 0, 2, u8::try_from(n).unwrap()]);
                if let Admission::Served(place) = peers.admit(address, limits) {
                    places.push(Arc::new(place));
                    free -= 1;
                }
            }
        }
        places.iter().map(Vec::len).collect()
    }

    #[test]
    fn some_connections_are_left_for_the_next_address_whatever_is_configured() {
        assert_eq!(shares(1, 1000), [75]);
        assert_eq!(shares(1, 20), [20]);
        for addresses in [2, 5, 10] {
            let shares = shares(addresses, 1000);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            assert!(most - least <= 1 && shares.iter().sum::<usize>() < 100, "{shares:?}");
        }
        assert_eq!(PeerLimits::new(0, 1).served, usize::MAX);
    }
}
