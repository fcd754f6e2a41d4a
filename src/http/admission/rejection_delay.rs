//! Delays of requests that are rejected because there are too many. Their responses come a little later, so that
//! clients that retry at once, however often, leave the cores to other clients.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::time::Instant;

use crate::http::admission::count_guard::CountGuard;
use crate::metrics::{QueueLabel, QueueWaitTimer};
use crate::trace;

/// Minimum delay. A connection gets at most four rejections per second for each request that it may have in flight. It
/// is short compared with the second of `Retry-After`.
const MIN_DELAY: Duration = Duration::from_millis(250);

/// Delay per pending rejection. All connections together get 500 rejections per second, unless that would delay one by
/// more than [`MAX_DELAY`]. Four times as many rejections, on 640 connections, took a tenth of a core or more.
const DELAY_PER_PENDING: Duration = Duration::from_millis(2);

/// Interval at which rejections are sent in batches. Sending each one alone would interrupt the work on a core.
const BATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum delay.
const MAX_DELAY: Duration = Duration::from_secs(4);

/// Delays rejections, depending on how many are pending.
#[derive(Debug)]
pub(crate) struct RejectionDelay {
    pending: AtomicUsize,
    /// Rejections are sent a whole number of [`BATCH_INTERVAL`]s after this.
    epoch: Instant,
}

impl Default for RejectionDelay {
    fn default() -> Self {
        Self { pending: AtomicUsize::new(0), epoch: Instant::now() }
    }
}

impl RejectionDelay {
    /// Waits until a rejected request may be answered.
    pub(crate) async fn wait(&self) {
        let (pending, _timer) = (CountGuard::new(&self.pending), QueueWaitTimer::begin(QueueLabel::Refused));
        let now = Instant::now();
        tokio::time::sleep_until(release_time(self.epoch, now, delay_for(pending.others))).await;
        trace::record("wait", QueueLabel::Refused.name(), now.elapsed());
    }
}

/// Returns when to answer a request that is rejected at `now` and must wait for at least `min_delay`. The time is a
/// whole number of [`BATCH_INTERVAL`]s after `epoch`.
fn release_time(epoch: Instant, now: Instant, min_delay: Duration) -> Instant {
    let intervals = (now.duration_since(epoch) + min_delay).as_millis() / BATCH_INTERVAL.as_millis() + 1;
    epoch + BATCH_INTERVAL.saturating_mul(u32::try_from(intervals).unwrap_or(u32::MAX))
}

/// Returns the delay of a rejection while `others` are pending.
fn delay_for(others: usize) -> Duration {
    DELAY_PER_PENDING.saturating_mul(u32::try_from(others).unwrap_or(u32::MAX)).clamp(MIN_DELAY, MAX_DELAY)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn the_delay_grows_with_the_number_of_pending_rejections() {
        assert_eq!([0, 1, 125].map(delay_for), [MIN_DELAY; 3]);
        assert_eq!(delay_for(1000), Duration::from_secs(2));
        assert_eq!([2000, 1 << 20, usize::MAX].map(delay_for), [MAX_DELAY; 3]);
    }

    #[tokio::test]
    async fn a_disconnected_client_is_no_longer_pending() {
        let delay = RejectionDelay::default();
        {
            let mut wait = std::pin::pin!(delay.wait());
            assert!(futures_util::poll!(wait.as_mut()).is_pending());
            assert_eq!(delay.pending.load(Ordering::Relaxed), 1);
        }
        assert_eq!(delay.pending.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn successive_rejections_are_sent_in_batches() {
        let epoch = Instant::now();
        let mut release_times: Vec<Instant> = Vec::new();
        for n in 0..100 {
            let now = epoch + Duration::from_millis(n);
            let due = release_time(epoch, now, MIN_DELAY);
            assert!(due - now > MIN_DELAY && due - now <= MIN_DELAY + BATCH_INTERVAL, "{:?}", due - now);
            release_times.push(due);
        }
        release_times.dedup();
        assert_eq!(release_times.len(), 2);
    }
}
