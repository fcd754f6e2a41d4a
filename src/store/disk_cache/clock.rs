//! The clock of the disk cache. Times are kept over restarts, so they are those of the calendar.

#[cfg(test)]
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Tolerance for files that seem to be validated in the future. Beyond it, they count as never validated.
const TOLERANCE_SECONDS: u32 = 5;

/// A clock that begins with the date and then ignores changes of it, so that a date that is set back does not let
/// objects be used for longer.
#[derive(Debug)]
pub(super) struct CacheClock {
    start: Instant,
    start_seconds: u64,
    #[cfg(test)]
    skipped: AtomicU32,
}

impl CacheClock {
    pub(super) fn new() -> Self {
        #[expect(clippy::disallowed_methods, reason = "compared with times of files from earlier processes")]
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            start: Instant::now(),
            start_seconds: since_epoch.map_or(0, |time| time.as_secs()),
            #[cfg(test)]
            skipped: AtomicU32::new(0),
        }
    }

    /// Returns the seconds since the Unix epoch.
    pub(super) fn now(&self) -> u32 {
        let seconds = self.start_seconds.saturating_add(self.start.elapsed().as_secs());
        #[cfg(test)]
        let seconds = seconds + u64::from(self.skipped.load(Ordering::Relaxed));
        u32::try_from(seconds).unwrap_or(u32::MAX)
    }

    /// Returns an upper bound for the time since `validated`, which is rounded down to whole seconds.
    pub(super) fn age(&self, validated: u32) -> Duration {
        let now = self.now();
        if validated > now.saturating_add(TOLERANCE_SECONDS) {
            return Duration::MAX;
        }
        Duration::from_secs(u64::from(now.saturating_sub(validated)) + 1)
    }

    #[cfg(test)]
    pub(super) fn skip(&self, seconds: u32) {
        self.skipped.fetch_add(seconds, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_upper_bounds_and_times_in_the_future_are_not_believed() {
        let clock = CacheClock::new();
        let now = clock.now();
        assert!((1..=2).contains(&clock.age(now).as_secs()));
        clock.skip(60);
        assert!((61..=62).contains(&clock.age(now).as_secs()));
        assert_eq!(clock.age(now + 10_000), Duration::MAX);
    }
}
