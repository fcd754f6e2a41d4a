//! Requests that are refused because there are too many: their answers come a little later, so that whoever asks again at
//! once, however often, leaves the cores to the others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::metrics::{Queue, Waiting};
use crate::trace;

/// How much later at least. A connection has four refusals a second, or as many streams as it may have; short beside the second
/// of `Retry-After`.
const HELD: Duration = Duration::from_millis(250);

/// All together have five hundred refusals a second, as long as that keeps none for longer than [`MOST_HELD`]: four times as
/// many, of 640 connections, took a tenth of a core or more.
const APART: Duration = Duration::from_millis(2);

/// Those that are due within this time are answered together: each alone would interrupt the work on a core.
const TOGETHER: Duration = Duration::from_millis(50);

/// How much later at the most.
const MOST_HELD: Duration = Duration::from_secs(4);

/// How many are held back.
#[derive(Debug)]
pub(super) struct Refused {
    count: AtomicUsize,
    /// Answers come a whole number of [`TOGETHER`] after this.
    since: Instant,
}

impl Default for Refused {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), since: Instant::now() }
    }
}

impl Refused {
    /// Waits until one that is refused may be told.
    pub(super) async fn hold(&self) {
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let _held = (Held(&self.count), Waiting::begin(Queue::Refused));
        let now = Instant::now();
        tokio::time::sleep_until(due(self.since, now, held(before))).await;
        trace::record("wait", Queue::Refused.name(), now.elapsed());
    }
}

/// When to answer what is held at `now` for so long at least; a whole number of [`TOGETHER`] after `since`.
fn due(since: Instant, now: Instant, held: Duration) -> Instant {
    let times = (now.duration_since(since) + held).as_millis() / TOGETHER.as_millis() + 1;
    since + TOGETHER.saturating_mul(u32::try_from(times).unwrap_or(u32::MAX))
}

/// For how long, beside so many others.
fn held(others: usize) -> Duration {
    APART.saturating_mul(u32::try_from(others).unwrap_or(u32::MAX)).clamp(HELD, MOST_HELD)
}

/// One of them; its client may go before it is answered.
struct Held<'a>(&'a AtomicUsize);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_have_no_more_refusals_than_some() {
        assert_eq!([0, 1, 125].map(held), [HELD; 3]);
        assert_eq!(held(1000), Duration::from_secs(2));
        assert_eq!([2000, 1 << 20, usize::MAX].map(held), [MOST_HELD; 3]);
    }

    #[tokio::test]
    async fn whoever_goes_is_not_counted_any_more() {
        let refused = Refused::default();
        {
            let mut waits = std::pin::pin!(refused.hold());
            assert!(futures_util::poll!(waits.as_mut()).is_pending());
            assert_eq!(refused.count.load(Ordering::Relaxed), 1);
        }
        assert_eq!(refused.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn those_who_come_one_after_the_other_are_answered_together() {
        let since = Instant::now();
        let mut all: Vec<Instant> = Vec::new();
        for n in 0..100 {
            let now = since + Duration::from_millis(n);
            let due = due(since, now, HELD);
            assert!(due - now > HELD && due - now <= HELD + TOGETHER, "{:?}", due - now);
            all.push(due);
        }
        all.dedup();
        assert_eq!(all.len(), 2);
    }
}
