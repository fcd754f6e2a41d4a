//! Decides which failed requests are sent again.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::failure::UpstreamFailure;
use super::ratio_budget::RatioBudget;

/// Maximum number of retries of a request.
const MAX_RETRIES: u32 = 2;

/// Longest wait before the first retry. Each further one waits up to four times as long.
const FIRST_DELAY: Duration = Duration::from_millis(100);

/// Number of retries of one operation. Clones share it, so that an operation which several layers retry is retried at
/// most twice.
#[derive(Debug, Clone, Default)]
pub(in crate::store::remote) struct RetryCount(Arc<AtomicU32>);

impl RetryCount {
    /// Returns the number of retries so far.
    pub(in crate::store::remote) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns the time to wait before the request is sent again, and takes the retry from `budget`. Returns `None` if the
/// failure is final.
///
/// A retry needs a failure that may pass, less than the maximum in `count`, time before `deadline`, and a part of the
/// budget, which keeps retries from multiplying the load of a store in trouble.
pub(super) fn next_delay(
    failure: &UpstreamFailure,
    count: &RetryCount,
    budget: &RatioBudget,
    deadline: Instant,
) -> Option<Duration> {
    let retries = count.get();
    if !failure.is_transient() || retries >= MAX_RETRIES {
        return None;
    }
    let delay = jittered(FIRST_DELAY * 4_u32.pow(retries)).max(failure.retry_after.unwrap_or_default());
    if Instant::now() + delay >= deadline || !budget.try_take() {
        return None;
    }
    count.0.fetch_add(1, Ordering::Relaxed);
    Some(delay)
}

/// Returns a random time between half of `longest` and `longest`. The keys of the standard library's hash maps are
/// random enough to spread requests.
fn jittered(longest: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8) & 0xFFFF;
    let share = u32::try_from(random).unwrap_or(0);
    longest / 2 + longest / 2 * share / 0xFFFF
}

#[cfg(test)]
mod tests {
    use super::super::failure::FailureKind;
    use super::*;

    fn in_ten_seconds() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn failure(kind: FailureKind) -> UpstreamFailure {
        UpstreamFailure::new(kind, "")
    }

    #[test]
    fn layers_that_share_a_count_retry_an_operation_twice() {
        let (budget, count) = (RatioBudget::new(100, 10, 10), RetryCount::default());
        let inner = count.clone();
        let next = |count| next_delay(&failure(FailureKind::Timeout), count, &budget, in_ten_seconds());
        let first = next(&count).unwrap();
        assert!(first >= Duration::from_millis(50) && first <= Duration::from_millis(100), "{first:?}");
        let second = next(&inner).unwrap();
        assert!(second >= Duration::from_millis(200) && second <= Duration::from_millis(400), "{second:?}");
        assert_eq!(next(&count), None);
    }

    #[test]
    fn a_retry_needs_a_passing_failure_and_time_and_budget() {
        let budget = RatioBudget::new(100, 1, 10);
        let next = |failure: UpstreamFailure, deadline| next_delay(&failure, &RetryCount::default(), &budget, deadline);
        for kind in [FailureKind::Missing, FailureKind::Forbidden, FailureKind::Changed, FailureKind::NotModified] {
            assert_eq!(next(failure(kind), in_ten_seconds()), None, "{kind:?}");
        }
        assert_eq!(next(failure(FailureKind::Timeout), Instant::now()), None);
        let busy = UpstreamFailure::held_back("", Some(Duration::from_secs(20)));
        assert_eq!(next(busy.clone(), in_ten_seconds()), None);
        assert_eq!(next(busy, Instant::now() + Duration::from_secs(30)), Some(Duration::from_secs(20)));
        assert_eq!(next(failure(FailureKind::Unavailable), in_ten_seconds()), None, "the budget is used up");
    }
}
