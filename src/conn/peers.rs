//! Limits of the connections and the memory of each address, so that no address takes all of them.
//!
//! If an address has its maximum number of connections and opens another one, the server closes (evicts) the connection
//! of that address that has been idle longest. Some clients, such as the JDK's, forget open connections and open new
//! ones. If no connection is idle, the new one waits until another connection of the address ends.

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

use super::threshold_pool::AddressMemory;
use crate::http;

/// Factor of the dynamic threshold: an address may have at most this many times the number of free connections (see
/// [`super::threshold_pool`]). With a factor of 3, a single address gets three quarters of all connections. Many
/// addresses get equal parts, and leave some connections to the next address.
const FREE_MULTIPLE: usize = 3;

/// Minimum time without a request before a connection may be evicted. A client that sends requests one after the other
/// makes shorter pauses.
const MIN_IDLE: Duration = Duration::from_millis(100);

/// Minimum age of a connection without any request before it may be evicted. A client may open hundreds of connections
/// before it uses the first one.
const MIN_IDLE_BEFORE_FIRST_REQUEST: Duration = Duration::from_secs(5);

/// Interval at which idle connections are searched for while new connections are waiting for a slot.
const EVICTION_INTERVAL: Duration = Duration::from_millis(50);

/// Addresses that have connections.
#[derive(Debug)]
pub(super) struct Peers {
    addresses: Mutex<HashMap<IpAddr, PeerState>>,
    /// Time from which [`IdleTracker::idle_since`] counts.
    epoch: Instant,
    last_id: AtomicU64,
}

/// State of one address.
#[derive(Debug, Default)]
struct PeerState {
    connections: HashMap<u64, Arc<IdleTracker>>,
    waiters: VecDeque<oneshot::Sender<PeerSlot>>,
    /// True while a task evicts idle connections to make room for the connections that wait.
    is_evicting: bool,
    memory: Arc<AddressMemory>,
}

/// Decision about a new connection.
#[derive(Debug)]
pub(super) enum PeerAdmission {
    Admitted(PeerSlot),
    /// The connection waits until the receiver gets a slot. If there is an address, the caller must run
    /// [`Peers::evict_for_waiters`] for that address.
    Queued(oneshot::Receiver<PeerSlot>, Option<IpAddr>),
    Refused,
}

impl Peers {
    /// Creates the list of addresses, with no connections. Times are counted from `epoch`.
    pub(super) fn new(epoch: Instant) -> Arc<Self> {
        Arc::new(Self { addresses: Mutex::default(), epoch, last_id: AtomicU64::new(0) })
    }

    /// Decides whether a new connection from `address` begins, waits or is refused. The address may have
    /// `max_connections` connections; 0 means no limit. A /64 network of IPv6 counts as one address. `free` is the
    /// number of connections that all addresses may still open after this one. It limits the connections of the address
    /// as well (dynamic threshold).
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr, max_connections: usize, free: usize) -> PeerAdmission {
        let (max_served, max_served_or_queued) = match max_connections {
            0 => (usize::MAX, usize::MAX),
            _ => (max_connections, free.saturating_add(1).saturating_mul(FREE_MULTIPLE)),
        };
        let address = http::network_of(address);
        let mut peers = self.lock();
        let peer = peers.entry(address).or_default();
        let open = peer.connections.len();
        if open + peer.waiters.len() >= max_served_or_queued {
            peer.waiters.retain(|waiter| !waiter.is_closed());
        }
        let is_within = open + peer.waiters.len() < max_served_or_queued;
        // An address without connections is always admitted. Otherwise its entry would remain without a connection that
        // removes it.
        if open == 0 || is_within && open < max_served || peer.evict_idle(self.epoch, 1) == 1 {
            return PeerAdmission::Admitted(self.new_slot(address, peer));
        }
        if !is_within {
            return PeerAdmission::Refused;
        }
        let (sender, receiver) = oneshot::channel();
        peer.waiters.push_back(sender);
        let was_evicting = std::mem::replace(&mut peer.is_evicting, true);
        PeerAdmission::Queued(receiver, (!was_evicting).then_some(address))
    }

    fn new_slot(self: &Arc<Self>, address: IpAddr, peer: &mut PeerState) -> PeerSlot {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(IdleTracker::new(self.epoch));
        peer.connections.insert(id, Arc::clone(&activity));
        PeerSlot { peers: Arc::clone(self), address, id, activity, memory: Arc::clone(&peer.memory) }
    }

    /// Evicts idle connections of `address` while new connections of that address wait for a slot.
    pub(super) async fn evict_for_waiters(self: Arc<Self>, address: IpAddr) {
        loop {
            tokio::time::sleep(EVICTION_INTERVAL).await;
            let mut peers = self.lock();
            let Some(peer) = peers.get_mut(&address) else { return };
            peer.waiters.retain(|waiter| !waiter.is_closed());
            if peer.waiters.is_empty() {
                peer.is_evicting = false;
                return;
            }
            let evicted = peer.connections.values().filter(|activity| activity.is_evicted()).count();
            peer.evict_idle(self.epoch, peer.waiters.len().saturating_sub(evicted));
        }
    }

    /// Removes a connection of `address` that has ended. The first waiter gets its slot.
    fn release(self: &Arc<Self>, address: IpAddr, id: u64) {
        let mut next = {
            let mut peers = self.lock();
            let Entry::Occupied(mut entry) = peers.entry(address) else { return };
            let peer = entry.get_mut();
            peer.connections.remove(&id);
            let waiter = std::iter::from_fn(|| peer.waiters.pop_front()).find(|waiting| !waiting.is_closed());
            let next = waiter.map(|waiting| (waiting, self.new_slot(address, peer)));
            if peer.connections.is_empty() {
                entry.remove();
            }
            next
        };
        // Sent without holding the lock: if the waiter has just given up, the slot is dropped here, and its `Drop`
        // takes the lock to pass the slot to the next waiter.
        if let Some((waiter, slot)) = next.take() {
            drop(waiter.send(slot));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, PeerState>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerState {
    /// Evicts the `count` connections that have been idle longest. Returns the number of evicted connections.
    fn evict_idle(&self, epoch: Instant, count: usize) -> usize {
        let min_idle_millis = MIN_IDLE.as_millis();
        let now = epoch.elapsed().as_millis();
        let idle = self.connections.values().filter_map(|activity| {
            let since = activity.idle_since()?;
            (!activity.is_evicted() && now.saturating_sub(u128::from(since)) >= min_idle_millis)
                .then_some((since, activity))
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

/// A slot for one of the connections that an address may have. Dropping it frees the slot for another connection.
#[derive(Debug)]
pub(super) struct PeerSlot {
    peers: Arc<Peers>,
    address: IpAddr,
    id: u64,
    pub(super) activity: Arc<IdleTracker>,
    /// Memory that all connections of the address have taken from the pools.
    pub(super) memory: Arc<AddressMemory>,
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        self.peers.release(self.address, self.id);
    }
}

/// Tracks how long a connection has been idle, and whether it has been evicted.
#[derive(Debug)]
pub(super) struct IdleTracker {
    epoch: Instant,
    /// Milliseconds since `epoch`, plus one; 0 while a request is read or answered.
    idle_since: AtomicU64,
    is_evicted: AtomicBool,
    waker: AtomicWaker,
}

impl IdleTracker {
    pub(super) fn new(epoch: Instant) -> Self {
        Self { epoch, idle_since: AtomicU64::new(0), is_evicted: AtomicBool::new(false), waker: AtomicWaker::new() }
    }

    /// Records that the connection has been idle since `since`. A connection that has received nothing yet (`is_new`)
    /// counts as idle only later, so that its client has time for the first request. Returns true if the connection is
    /// evicted. Otherwise, an eviction wakes the task.
    pub(super) fn poll_idle(&self, since: Instant, is_new: bool, context: &Context<'_>) -> bool {
        self.waker.register(context.waker());
        let since = if is_new { since + MIN_IDLE_BEFORE_FIRST_REQUEST.saturating_sub(MIN_IDLE) } else { since };
        let since = since.saturating_duration_since(self.epoch).as_millis();
        self.idle_since.store(u64::try_from(since).unwrap_or(u64::MAX).saturating_add(1), Ordering::Release);
        self.is_evicted()
    }

    /// Records that something was received.
    pub(super) fn set_busy(&self) {
        self.idle_since.store(0, Ordering::Release);
    }

    /// Returns true if the connection must close to make room for another one.
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

    fn admit_slot(peers: &Arc<Peers>, address: &str, max_connections: usize) -> Option<PeerSlot> {
        match peers.admit(address.parse().unwrap(), max_connections, 0) {
            PeerAdmission::Admitted(slot) => Some(slot),
            PeerAdmission::Queued(..) | PeerAdmission::Refused => None,
        }
    }

    fn mark_idle(slot: &PeerSlot, age: Duration) -> bool {
        let since = Instant::now().checked_sub(age).unwrap();
        slot.activity.poll_idle(since, false, &Context::from_waker(Waker::noop()))
    }

    #[test]
    fn each_network_has_its_own_slots_and_leaves_no_entry_behind() {
        let peers = Peers::new(Instant::now());
        let admit = |address: &str| admit_slot(&peers, address, 2);
        let slots = [admit("192.0.2.1"), admit("192.0.2.1"), admit("2001:db8::1"), admit("2001:db8::ffff:1")];
        assert!(slots.iter().all(Option::is_some));
        assert!(admit("192.0.2.1").is_none() && admit("2001:db8::2").is_none());
        assert!(admit("192.0.2.2").is_some() && admit("2001:db8:0:1::1").is_some());
        let [first, others @ ..] = slots;
        drop(first);
        assert!(admit("192.0.2.1").is_some());
        drop(others);
        assert!(peers.lock().is_empty());
    }

    #[test]
    fn the_longest_idle_connection_is_evicted() {
        let peers = Peers::new(Instant::now().checked_sub(Duration::from_secs(10)).unwrap());
        let slots: Vec<_> = (0..3).map(|_| admit_slot(&peers, "192.0.2.1", 3).unwrap()).collect();
        assert!(!mark_idle(&slots[0], Duration::from_secs(1)) && !mark_idle(&slots[1], Duration::from_secs(2)));
        assert!(!mark_idle(&slots[2], Duration::from_millis(1)));
        let fourth = admit_slot(&peers, "192.0.2.1", 3);
        assert!(fourth.is_some() && slots[1].activity.is_evicted() && !slots[0].activity.is_evicted());
        slots[0].activity.set_busy();
        let is_evicted = slots[0].activity.poll_idle(
            Instant::now().checked_sub(Duration::from_secs(1)).unwrap(),
            true,
            &Context::from_waker(Waker::noop()),
        );
        assert!(!is_evicted, "a client may still send its first request on it");
        assert!(
            admit_slot(&peers, "192.0.2.1", 3).is_none(),
            "one is busy, one is evicted already, one was busy just now"
        );
    }

    #[tokio::test]
    async fn waiting_connections_get_slots_in_order_when_others_end_or_are_idle() {
        let peers = Peers::new(Instant::now());
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        // One connection is free, so six may be served or wait.
        let admit = || peers.admit(address, 2, 1);
        let mut slots: Vec<_> = (0..2).map(|_| admit_slot(&peers, "192.0.2.1", 2).unwrap()).collect();
        let mut waiting = Vec::new();
        for number in 0..4 {
            let PeerAdmission::Queued(receiver, search) = admit() else { panic!("the connection is not queued") };
            assert_eq!(search.is_some(), number == 0);
            search.map(|address| tokio::spawn(Arc::clone(&peers).evict_for_waiters(address)));
            waiting.push(receiver);
        }
        assert!(matches!(admit(), PeerAdmission::Refused));
        drop(slots.pop());
        let second = waiting.remove(0).await.unwrap();
        assert!(waiting[0].try_recv().is_err());
        // The next waiter and the last waiter give up.
        drop((waiting.remove(0), waiting.pop()));
        assert!(!mark_idle(&slots[0], Duration::ZERO));
        tokio::time::sleep(MIN_IDLE + 2 * EVICTION_INTERVAL).await;
        assert!(slots[0].activity.is_evicted());
        slots.clear();
        let third = waiting.remove(0).await.unwrap();
        tokio::time::sleep(2 * EVICTION_INTERVAL).await;
        assert!(!peers.lock()[&address].is_evicting);
        drop((second, third));
        assert!(peers.lock().is_empty());
    }

    /// Returns how many of 100 connections each of `addresses` gets if they connect in turn and each may have
    /// `configured`.
    fn connection_counts(addresses: usize, configured: usize) -> Vec<usize> {
        let peers = Peers::new(Instant::now());
        let mut free = 100;
        let mut slots = vec![Vec::new(); addresses];
        for _ in 0..100 {
            for (n, address_slots) in slots.iter_mut().enumerate() {
                let address = IpAddr::from([192, 0, 2, u8::try_from(n).unwrap()]);
                if let PeerAdmission::Admitted(slot) = peers.admit(address, configured, free - 1) {
                    address_slots.push(Arc::new(slot));
                    free -= 1;
                }
            }
        }
        slots.iter().map(Vec::len).collect()
    }

    #[test]
    fn some_connections_remain_for_the_next_address_under_any_configuration() {
        assert_eq!(connection_counts(1, 1000), [75]);
        assert_eq!(connection_counts(1, 20), [20]);
        for addresses in [2, 5, 10] {
            let counts = connection_counts(addresses, 1000);
            let (min, max) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(max - min <= 1 && counts.iter().sum::<usize>() < 100, "{counts:?}");
        }
        assert_eq!(connection_counts(1, 0), [100], "0 is no limit");
    }
}
