//! Time limit for a client to send its next request head.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// Timer of a request head. It starts at the end of the previous response.
pub(super) struct HeaderTimer {
    /// Time limit for a request head.
    pub(super) timeout: Duration,
    deadline: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl HeaderTimer {
    /// Starts a timer now.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, deadline: Instant::now() + timeout, sleep: None }
    }

    /// Starts the timer again, at `now`.
    pub(super) fn restart(&mut self, now: Instant) {
        self.deadline = now + self.timeout;
    }

    /// Returns the time at which the timer was last started.
    pub(super) fn started_at(&self) -> Instant {
        self.deadline.checked_sub(self.timeout).unwrap_or(self.deadline)
    }

    /// Ready when the time is over. The runtime's timer is reset only when it fires, which is far cheaper than a reset
    /// for every request.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let deadline = self.deadline;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        loop {
            ready!(sleep.as_mut().poll(context));
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}
