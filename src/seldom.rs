//! Log lines that a fault would write by the thousand: one a second of each kind, with the number of those left out.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Milliseconds from one line of a kind to the next.
const PAUSE: u64 = 1000;

/// One kind of line.
#[derive(Debug)]
pub struct Seldom {
    /// When the next one may be written, in milliseconds since the process' first.
    next: AtomicU64,
    unsaid: AtomicU64,
}

impl Seldom {
    /// A kind of which nothing has been said yet.
    pub const fn new() -> Self {
        Self { next: AtomicU64::new(0), unsaid: AtomicU64::new(0) }
    }

    /// Whether a line may be written now: `Some` of how many were left out since the last one.
    pub fn may_say(&self) -> Option<u64> {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.may_say_at(u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn may_say_at(&self, now: u64) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let is_mine = now >= next
            && self
                .next
                .compare_exchange(next, now.saturating_add(PAUSE), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_mine {
            return Some(self.unsaid.swap(0, Ordering::Relaxed));
        }
        self.unsaid.fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl Default for Seldom {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_says_how_many_were_left_out() {
        let seldom = Seldom::new();
        let said: Vec<_> = [0, 1, 999, 1000, 1500, 5000].map(|now| seldom.may_say_at(now)).into();
        assert_eq!(said, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
