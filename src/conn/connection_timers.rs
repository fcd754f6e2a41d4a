//! Timers of a connection: the time limit of a request head, the wait for memory, and checks for hang-ups.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::connection_memory::ConnectionMemory;
use super::goaway_reason::GoawayReason;
use crate::log_throttle::LogThrottle;
use crate::metrics::{QueueLabel, QueueWaitTimer};

/// Shortest and longest pause before a connection that is not read for lack of memory tries again.
const MEMORY_BACKOFF: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// Longest wait for memory of a connection that holds memory and has no stream. Its client can repeat the request on
/// another connection, which holds none.
const MAX_BLOCKED: Duration = Duration::from_secs(3);

/// Interval of the checks for a client that has hung up.
const HANG_UP_INTERVAL: Duration = Duration::from_secs(1);

/// A connection that is not read until there is memory for its next frames.
pub(super) struct MemoryWait {
    started: Instant,
    pause: Duration,
    sleep: Pin<Box<Sleep>>,
    memory: Arc<ConnectionMemory>,
    _wait_timer: QueueWaitTimer,
}

impl MemoryWait {
    pub(super) fn begin(peer: Option<IpAddr>, memory: &Arc<ConnectionMemory>) -> Self {
        static WAITS: LogThrottle = LogThrottle::new();
        if let Some(unsaid) = WAITS.allow() {
            tracing::warn!(
                ?peer,
                unsaid,
                "connection paused: its address or all connections together have used up the memory for streams; see n5_connection_pool_bytes"
            );
        }
        memory.set_waiting(true);
        memory.request_reclaim();
        let ([pause, _], memory) = (MEMORY_BACKOFF, Arc::clone(memory));
        let wait_timer = QueueWaitTimer::begin(QueueLabel::ConnectionMemory);
        Self {
            started: Instant::now(),
            pause,
            sleep: Box::pin(tokio::time::sleep(pause)),
            memory,
            _wait_timer: wait_timer,
        }
    }

    /// Ends the connection if it has waited too long while it holds memory that others need. Called after another
    /// failed attempt to get memory.
    pub(super) fn refuse_if_blocked_too_long(&self) {
        if self.memory.blocked_since().is_some_and(|since| since.max(self.started).elapsed() >= MAX_BLOCKED) {
            // The client may be gone: its end of stream is not seen behind more bytes than the kernel's receive buffer
            // holds.
            self.memory.refuse(GoawayReason::BlockedTooLong);
        }
    }

    /// Ready when it is time to try again; each pause is twice as long as the one before, up to the longest.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.sleep.as_mut().poll(context));
        let [_, max_pause] = MEMORY_BACKOFF;
        self.pause = (self.pause * 2).min(max_pause);
        self.sleep.as_mut().reset(Instant::now() + self.pause);
        self.memory.request_reclaim();
        Poll::Ready(())
    }
}

impl Drop for MemoryWait {
    fn drop(&mut self) {
        self.memory.set_waiting(false);
    }
}

/// Timer of a request head, which starts at the end of the previous answer.
pub(super) struct HeaderTimer {
    timeout: Duration,
    deadline: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl HeaderTimer {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, deadline: Instant::now() + timeout, sleep: None }
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.deadline = now + self.timeout;
    }

    /// Returns the time at which the timer was last restarted.
    pub(super) fn started_at(&self) -> Instant {
        self.deadline.checked_sub(self.timeout).unwrap_or(self.deadline)
    }

    /// Ready when the time is over and the connection must end. The timer is reset only when it has fired, which is far
    /// cheaper than a reset for every request.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let deadline = self.deadline;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        loop {
            ready!(sleep.as_mut().poll(context));
            if sleep.deadline() >= deadline {
                return Poll::Ready(Ok(()));
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

/// Checks at intervals if a client has hung up. The first check follows after one interval, because a client may close
/// its half of the connection after its last request and wait for the answer.
#[derive(Default)]
pub(super) struct HangUpTimer(Option<Pin<Box<Sleep>>>);

impl HangUpTimer {
    /// Ready when `has_hung_up` returns true, which is called after each interval.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, has_hung_up: impl Fn() -> bool) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(tokio::time::sleep(HANG_UP_INTERVAL)));
        loop {
            ready!(sleep.as_mut().poll(context));
            if has_hung_up() {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(Instant::now() + HANG_UP_INTERVAL);
        }
    }
}

/// Schedules this task to run again after all tasks that are ready now or become ready in the meantime.
pub(super) fn schedule_yield(context: &mut Context<'_>) {
    // The first poll is pending and registers the waker with the runtime.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}
