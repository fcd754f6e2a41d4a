//! A bounded number of bytes that many holders share, with a dynamic threshold: no holder may have more than a fixed part
//! of what is still free (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998).
//!
//! A single holder gets what it asks for; many greedy ones leave some bytes free for the next, without a queue, a list of
//! holders or a fixed share for each.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::metrics::{ConnectionPool, PoolBytes};

/// One part in so many is a large part of all.
const MUCH: usize = 8;

/// Bytes that many holders share.
#[derive(Debug)]
pub(super) struct SharedPool {
    capacity_bytes: usize,
    taken_bytes: AtomicUsize,
    /// A holder has at most the free bytes divided by this.
    divisor: usize,
    gauge: PoolBytes,
    asked: Notify,
}

impl SharedPool {
    /// A pool in which each holder may have as many bytes as are left free, divided by `divisor`.
    pub(super) fn new(pool: ConnectionPool, capacity_bytes: usize, divisor: usize) -> Self {
        let gauge = PoolBytes::new(pool, capacity_bytes);
        Self { capacity_bytes, taken_bytes: AtomicUsize::new(0), divisor: divisor.max(1), gauge, asked: Notify::new() }
    }

    /// Takes `wanted_bytes`, or as many of them as a holder of `held_bytes` may still have. Returns how many it took.
    pub(super) fn take_up_to(&self, held_bytes: usize, wanted_bytes: usize) -> usize {
        let mut granted = 0;
        // The closure always returns a value, so the update cannot fail.
        let _ = self.taken_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
            let free = self.capacity_bytes.saturating_sub(taken);
            // The largest x with held + x <= (free - x) / divisor.
            let most = free.saturating_sub(held_bytes.saturating_mul(self.divisor)) / (self.divisor + 1);
            granted = wanted_bytes.min(most);
            Some(taken + granted)
        });
        self.gauge.add(granted);
        granted
    }

    /// Takes all of `bytes` for a holder of `held_bytes`, or nothing. Returns true if it took them.
    pub(super) fn try_take(&self, held_bytes: usize, bytes: usize) -> bool {
        let granted = self.take_up_to(held_bytes, bytes);
        if granted < bytes {
            self.give_back(granted);
        }
        granted >= bytes
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

    /// Returns bytes that were taken.
    pub(super) fn give_back(&self, bytes: usize) {
        self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.gauge.subtract(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_has_half_and_greedy_ones_leave_some_for_the_next() {
        let pool = SharedPool::new(ConnectionPool::Memory, 1200, 1);
        assert_eq!(pool.take_up_to(0, 5000), 600);
        assert_eq!(pool.take_up_to(600, 1), 0);
        assert_eq!(pool.take_up_to(0, 5000), 300);
        assert!(!pool.try_take(0, 151) && pool.try_take(0, 150));
        for bytes in [600, 300, 150] {
            pool.give_back(bytes);
        }
        assert_eq!(pool.taken_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_hundred_greedy_holders_never_take_all() {
        let pool = SharedPool::new(ConnectionPool::Sockets, 1 << 20, 8);
        let mut held = [0; 100];
        for _ in 0..1000 {
            for held in &mut held {
                *held += pool.take_up_to(*held, 1 << 12);
            }
        }
        let taken: usize = held.iter().sum();
        assert!(taken <= (1 << 20) * 19 / 20 && taken > 1 << 19, "{taken}");
        assert!(pool.take_up_to(0, 1 << 20) > 0);
    }
}
