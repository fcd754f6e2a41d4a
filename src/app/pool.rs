//! A bounded number of bytes that the connections of many addresses share, with a dynamic threshold: no address may have more
//! than is still free (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998), and no
//! connection more than a part of what its address may still have.
//!
//! A single address gets half of the pool, and a few greedy ones leave some bytes for the next, without a queue or a list of
//! holders. Each address that gives nothing back takes half of what is left, so that after a dozen almost nothing is. A pool can
//! therefore keep a third of its capacity for addresses that hold little, which may then have all that is free of it.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::metrics::{ConnectionPool, PoolBytes};

/// One part in so many is a large part of all.
const MUCH: usize = 8;

/// One part in so many of a pool is kept for addresses that hold little.
const KEPT_PART: usize = 3;

/// Bytes that the connections of many addresses share.
#[derive(Debug)]
pub(super) struct SharedPool {
    capacity_bytes: usize,
    taken_bytes: AtomicUsize,
    /// A connection has at most what is left to its address divided by this, or all of it where this is 0.
    divisor: usize,
    /// An address that holds less than this may take from the part that is kept.
    assured_bytes: usize,
    kept_bytes: usize,
    gauge: PoolBytes,
    asked: Notify,
}

impl SharedPool {
    /// A pool in which each address may have as many bytes as are left free, and each of its connections as many as are left of
    /// these, divided by `divisor`; all of them where that is 0.
    pub(super) fn new(pool: ConnectionPool, capacity_bytes: usize, divisor: usize) -> Self {
        let gauge = PoolBytes::new(pool, capacity_bytes);
        let taken_bytes = AtomicUsize::new(0);
        Self { capacity_bytes, taken_bytes, divisor, assured_bytes: 0, kept_bytes: 0, gauge, asked: Notify::new() }
    }

    /// Keeps a third of the pool for addresses that have less than `bytes`.
    pub(super) fn assuring(self, bytes: usize) -> Self {
        Self { assured_bytes: bytes, kept_bytes: self.capacity_bytes / KEPT_PART, ..self }
    }

    /// Takes `wanted_bytes`, or as many of them as a connection that has `held_bytes` may still have, of an address that has
    /// `address_bytes`; `None` where an address stands for many clients. Returns how many it took.
    pub(super) fn take_up_to(&self, address_bytes: Option<usize>, held_bytes: usize, wanted_bytes: usize) -> usize {
        let mut granted = 0;
        // The closure always returns a value, so the update cannot fail.
        let _ = self.taken_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            granted = wanted_bytes.min(most_of(self.most_of_address(taken, address_bytes), held_bytes, self.divisor));
            Some(taken + granted)
        });
        self.gauge.add(granted);
        granted
    }

    /// Takes all of `bytes` for an address that has `address_bytes`, or nothing; `None` as above. Returns true if it took them.
    pub(super) fn try_take(&self, address_bytes: Option<usize>, bytes: usize) -> bool {
        debug_assert!(self.divisor == 0, "a pool with a divisor needs the bytes of the connection");
        let is_taken = self
            .taken_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (bytes <= self.most_of_address(taken, address_bytes)).then(|| taken + bytes)
            })
            .is_ok();
        if is_taken {
            self.gauge.add(bytes);
        }
        is_taken
    }

    /// The most that may be added to what an address has.
    fn most_of_address(&self, taken: usize, address_bytes: Option<usize>) -> usize {
        let free = self.capacity_bytes.saturating_sub(taken);
        let most = most_of(free.saturating_sub(self.kept_bytes), address_bytes.unwrap_or(0), 1);
        let assured = address_bytes.map_or(0, |held| self.assured_bytes.saturating_sub(held));
        most.max(assured.min(free))
    }

    /// Asks one holder that waits in [`Self::asked`], the first that came there, to give back what it does not need.
    pub(super) fn ask(&self) {
        self.asked.notify_one();
    }

    /// Ready when it is this holder's turn to be asked.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Whether so many bytes are a large part of all.
    pub(super) fn is_much(&self, bytes: usize) -> bool {
        bytes >= self.capacity_bytes / MUCH
    }

    /// Returns true if a large part of the pool is taken.
    pub(super) fn is_much_taken(&self) -> bool {
        self.is_much(self.taken_bytes.load(Ordering::Relaxed))
    }

    /// Returns bytes that were taken.
    pub(super) fn give_back(&self, bytes: usize) {
        self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.gauge.subtract(bytes);
    }
}

/// The most that may be added to what is `held`, so that it is no more than what is free then, divided by `divisor`.
fn most_of(free: usize, held: usize, divisor: usize) -> usize {
    free.saturating_sub(held.saturating_mul(divisor)) / (divisor + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_half_and_greedy_ones_leave_some_for_the_next() {
        let pool = SharedPool::new(ConnectionPool::Memory, 1200, 0);
        assert_eq!(pool.take_up_to(Some(0), 0, 5000), 600);
        assert_eq!(pool.take_up_to(Some(600), 600, 1), 0);
        assert_eq!(pool.take_up_to(Some(0), 0, 5000), 300);
        assert!(!pool.try_take(Some(0), 151) && pool.try_take(Some(0), 150));
        for bytes in [600, 300, 150] {
            pool.give_back(bytes);
        }
        assert_eq!(pool.taken_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_connection_has_a_part_of_what_its_address_may_have() {
        let pool = SharedPool::new(ConnectionPool::Sockets, 1000, 4);
        let mut of_address = 0;
        for granted in [100, 80, 64] {
            assert_eq!(pool.take_up_to(Some(of_address), 0, 5000), granted);
            of_address += granted;
        }
        assert_eq!(pool.take_up_to(Some(of_address), 64, 5000), 0);
        assert_eq!(pool.take_up_to(Some(0), 0, 5000), 75);
    }

    #[test]
    fn a_hundred_greedy_connections_never_take_all() {
        let pool = SharedPool::new(ConnectionPool::Sockets, 1 << 20, 4);
        let mut held = [0; 100];
        for _ in 0..1000 {
            for held in &mut held {
                *held += pool.take_up_to(Some(0), *held, 1 << 12);
            }
        }
        let taken: usize = held.iter().sum();
        assert!(taken <= (1 << 20) * 19 / 20 && taken > 1 << 19, "{taken}");
        assert!(pool.take_up_to(Some(0), 0, 1 << 20) > 0);
    }

    #[test]
    fn greedy_addresses_leave_what_the_next_ones_are_assured_of() {
        const ASSURED: usize = 1 << 10;
        let pool = SharedPool::new(ConnectionPool::Memory, 96 * ASSURED, 0).assuring(ASSURED);
        let take_all = |mut held| {
            while pool.try_take(Some(held), 1) {
                held += 1;
            }
            held
        };
        assert_eq!(take_all(0), 32 * ASSURED, "one has half of what is not kept");
        for _ in 0..30 {
            assert!(take_all(0) >= ASSURED);
        }
        assert!(!pool.try_take(None, 1), "an address that stands for many clients is assured of nothing");
        assert_eq!(take_all(ASSURED / 2), ASSURED, "it gets what it has not had yet");
        let left = pool.capacity_bytes - pool.taken_bytes.load(Ordering::Relaxed);
        for _ in 0..left / ASSURED {
            assert_eq!(take_all(0), ASSURED);
        }
        assert!(take_all(0) < ASSURED && !pool.try_take(Some(0), 1), "the last one finds what is left");
    }
}
