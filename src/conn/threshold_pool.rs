//! A bounded number of bytes that the connections of many addresses share, with a dynamic threshold.
//!
//! No address may hold more than is still free (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory
//! Packet Switches", 1998). For example, a single address may hold half of a pool of 12 MiB: 6 MiB, while 6 MiB are
//! free. Two addresses may hold 4 MiB each, and 4 MiB stay free for the next address. A connection may hold a part of
//! what its address may still take. The pool needs neither a queue nor a list of holders.
//!
//! If addresses give nothing back, each new one can take half of the free bytes, so a dozen such addresses leave almost
//! nothing. Therefore a pool can reserve a third of its capacity for addresses that hold little.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::telemetry::metrics::{ConnectionPoolLabel, PoolGauge};

/// A share of at least 1/8 of the capacity counts as large.
const LARGE_SHARE_DIVISOR: usize = 8;

/// At most 1/3 of the capacity is reserved for addresses that hold little.
const RESERVE_DIVISOR: usize = 3;

/// Bytes that all connections of one address have taken from the pools.
#[derive(Debug, Default)]
pub(super) struct AddressMemory {
    /// Bytes taken from the pool for HTTP/2 streams and long heads.
    pub(super) memory_bytes: AtomicUsize,
    /// Bytes taken from the pool for send queues.
    pub(super) queued_bytes: AtomicUsize,
    /// Notified when an idle connection of the address must give back memory that it does not need.
    pub(super) reclaim_requested: Notify,
}

/// Pool of bytes that the connections of many addresses share.
///
/// Relaxed ordering is enough for the counters: they guard no other data, and an update of one counter is atomic.
#[derive(Debug)]
pub(super) struct DynamicThresholdPool {
    capacity_bytes: usize,
    taken_bytes: AtomicUsize,
    /// A connection holds at most the bytes that its address may still take, divided by this number. 0 means that a
    /// connection may hold all of them.
    connection_divisor: usize,
    /// An address that holds less than this may take from the reserve.
    guaranteed_bytes: usize,
    reserved_bytes: usize,
    gauge: PoolGauge,
    /// Notified when an idle connection must give back memory that it does not need. Wakes the connection that has
    /// waited longest.
    pub(super) reclaim_requested: Notify,
}

impl DynamicThresholdPool {
    /// Creates a pool. An address may hold at most the number of bytes that stay free. A connection may hold the bytes
    /// that its address may still take, divided by `connection_divisor`. If `connection_divisor` is 0, it may hold all
    /// of them.
    pub(super) fn new(pool: ConnectionPoolLabel, capacity_bytes: usize, connection_divisor: usize) -> Self {
        Self {
            capacity_bytes,
            taken_bytes: AtomicUsize::new(0),
            connection_divisor,
            guaranteed_bytes: 0,
            reserved_bytes: 0,
            gauge: PoolGauge::new(pool, capacity_bytes),
            reclaim_requested: Notify::new(),
        }
    }

    /// Reserves a third of the pool for addresses that hold less than `bytes`.
    pub(super) fn with_guarantee(self, bytes: usize) -> Self {
        Self { guaranteed_bytes: bytes, reserved_bytes: self.capacity_bytes / RESERVE_DIVISOR, ..self }
    }

    /// Takes up to `wanted_bytes` for a connection that holds `held_bytes`, and returns the number of bytes taken.
    /// `address_bytes` is the number of bytes that its address holds; `None` if many clients share the address.
    pub(super) fn take_up_to(&self, address_bytes: Option<usize>, held_bytes: usize, wanted_bytes: usize) -> usize {
        let mut granted = 0;
        // The closure always returns a value, so the update cannot fail.
        let _ = self.taken_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            let address_headroom = self.address_headroom(taken, address_bytes);
            granted = wanted_bytes.min(headroom(address_headroom, held_bytes, self.connection_divisor));
            Some(taken + granted)
        });
        self.gauge.add(granted);
        granted
    }

    /// Takes either all of `bytes` or nothing, and returns true if it took them. `address_bytes` is the number of bytes
    /// that the address holds; `None` if many clients share the address.
    pub(super) fn try_take(&self, address_bytes: Option<usize>, bytes: usize) -> bool {
        debug_assert!(
            self.connection_divisor == 0,
            "a pool with a connection divisor needs the bytes that the connection holds"
        );
        let is_taken = self
            .taken_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                (bytes <= self.address_headroom(taken, address_bytes)).then(|| taken + bytes)
            })
            .is_ok();
        if is_taken {
            self.gauge.add(bytes);
        }
        is_taken
    }

    /// Returns the maximum number of bytes that may be added to what an address holds.
    fn address_headroom(&self, taken: usize, address_bytes: Option<usize>) -> usize {
        let free = self.capacity_bytes.saturating_sub(taken);
        let threshold_bytes = headroom(free.saturating_sub(self.reserved_bytes), address_bytes.unwrap_or(0), 1);
        let guaranteed = address_bytes.map_or(0, |held| self.guaranteed_bytes.saturating_sub(held));
        threshold_bytes.max(guaranteed.min(free))
    }

    /// Returns true if `bytes` are a large share of the capacity.
    pub(super) fn is_large_share(&self, bytes: usize) -> bool {
        bytes >= self.capacity_bytes / LARGE_SHARE_DIVISOR
    }

    /// Returns true if a large share of the capacity is taken.
    pub(super) fn is_under_pressure(&self) -> bool {
        self.is_large_share(self.taken_bytes.load(Ordering::Relaxed))
    }

    /// Gives back bytes that were taken.
    pub(super) fn give_back(&self, bytes: usize) {
        self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.gauge.subtract(bytes);
    }
}

/// Returns the largest number of bytes that can move from `free` to `held` so that `held * divisor` does not exceed
/// `free` afterwards.
fn headroom(free: usize, held: usize, divisor: usize) -> usize {
    free.saturating_sub(held.saturating_mul(divisor)) / (divisor + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_half_and_greedy_ones_leave_some_for_the_next() {
        let pool = DynamicThresholdPool::new(ConnectionPoolLabel::Memory, 1200, 0);
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
    fn a_connection_gets_a_part_of_the_share_of_its_address() {
        let pool = DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1000, 4);
        let mut address_bytes = 0;
        for granted in [100, 80, 64] {
            assert_eq!(pool.take_up_to(Some(address_bytes), 0, 5000), granted);
            address_bytes += granted;
        }
        assert_eq!(pool.take_up_to(Some(address_bytes), 64, 5000), 0);
        assert_eq!(pool.take_up_to(Some(0), 0, 5000), 75);
    }

    #[test]
    fn a_hundred_greedy_connections_never_take_all() {
        let pool = DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 20, 4);
        let mut held_bytes = [0; 100];
        for _ in 0..1000 {
            for held in &mut held_bytes {
                *held += pool.take_up_to(Some(0), *held, 1 << 12);
            }
        }
        let taken: usize = held_bytes.iter().sum();
        assert!(taken <= (1 << 20) * 19 / 20 && taken > 1 << 19, "{taken}");
        assert!(pool.take_up_to(Some(0), 0, 1 << 20) > 0);
    }

    #[test]
    fn greedy_addresses_leave_the_guarantee_of_the_next_ones() {
        const GUARANTEED: usize = 1 << 10;
        let pool =
            DynamicThresholdPool::new(ConnectionPoolLabel::Memory, 96 * GUARANTEED, 0).with_guarantee(GUARANTEED);
        let take_all = |mut held| {
            while pool.try_take(Some(held), 1) {
                held += 1;
            }
            held
        };
        assert_eq!(take_all(0), 32 * GUARANTEED, "a single address has half of what is not reserved");
        for _ in 0..30 {
            assert!(take_all(0) >= GUARANTEED);
        }
        assert!(!pool.try_take(None, 1), "an address that stands for many clients has no guarantee");
        assert_eq!(take_all(GUARANTEED / 2), GUARANTEED, "it gets the rest of its guarantee");
        let remaining = pool.capacity_bytes - pool.taken_bytes.load(Ordering::Relaxed);
        for _ in 0..remaining / GUARANTEED {
            assert_eq!(take_all(0), GUARANTEED);
        }
        assert!(take_all(0) < GUARANTEED && !pool.try_take(Some(0), 1), "the last address gets what is left");
    }
}
