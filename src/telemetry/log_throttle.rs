//! Limits repeated log lines: at most one line per second of each kind, with the number of suppressed lines. A fault
//! could otherwise log thousands of lines.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Minimum interval between two lines of a kind, in milliseconds.
const INTERVAL_MILLIS: u64 = 1000;

/// Throttle for one kind of log line.
#[derive(Debug)]
pub struct LogThrottle {
    /// Time from which the next line may be written, in milliseconds since the first call in the process.
    next_millis: AtomicU64,
    suppressed: AtomicU64,
}

impl LogThrottle {
    /// Creates a throttle that has not allowed any line yet.
    pub const fn new() -> Self {
        Self { next_millis: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// Returns the number of lines suppressed since the last line if a line may be written now, and `None` otherwise.
    pub fn allow(&self) -> Option<u64> {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.allow_at(u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn allow_at(&self, now: u64) -> Option<u64> {
        let next = self.next_millis.load(Ordering::Relaxed);
        let is_allowed = now >= next
            && self
                .next_millis
                .compare_exchange(next, now.saturating_add(INTERVAL_MILLIS), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_allowed {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl Default for LogThrottle {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_second_reports_the_number_of_suppressed_lines() {
        let throttle = LogThrottle::new();
        let allowed: Vec<_> = [0, 1, 999, 1000, 1500, 5000].map(|now| throttle.allow_at(now)).into();
        assert_eq!(allowed, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
