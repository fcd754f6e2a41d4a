//! How long the lane waits: for a request's head, and for memory.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::{Charge, Refusal};
use crate::metrics::{Queue, Waiting};
use crate::seldom::Seldom;

/// Shortest and longest pause before a connection that is not read further, for want of memory, looks again.
const MEMORY_PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// Longest wait of a connection that holds memory and has no stream. Its client can repeat the request on another connection, which
/// holds nothing.
const LONGEST_BLOCKED: Duration = Duration::from_secs(3);

/// A connection that is not read further until there is memory for what comes next.
pub(super) struct MemoryWait {
    since: Instant,
    pause: Duration,
    sleep: Pin<Box<Sleep>>,
    charge: Charge,
    _waiting: Waiting,
}

impl MemoryWait {
    pub(super) fn begin(peer: Option<IpAddr>, charge: &Charge) -> Self {
        static WAITS: Seldom = Seldom::new();
        if let Some(unsaid) = WAITS.may_say() {
            tracing::warn!(
                ?peer,
                unsaid,
                "connection paused: the memory for streams is used up, by its address or by all; see n5_connection_pool_bytes"
            );
        }
        charge.set_waiting(true);
        charge.ask_idle();
        let ([pause, _], charge) = (MEMORY_PAUSES, charge.clone());
        let waiting = Waiting::begin(Queue::ConnectionMemory);
        Self { since: Instant::now(), pause, sleep: Box::pin(tokio::time::sleep(pause)), charge, _waiting: waiting }
    }

    /// After a look in vain: refuses more where the connection has kept memory for too long from others that wait.
    pub(super) fn look_at_blocked(&self) {
        if self.charge.blocked_since().is_some_and(|since| since.max(self.since).elapsed() >= LONGEST_BLOCKED) {
            // Its client may be gone: the end is not seen behind more bytes than the kernel has room for.
            self.charge.refuse_more(Refusal::Blocked);
        }
    }

    /// Ready when it is time to look again, each time later.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.sleep.as_mut().poll(context));
        let [_, longest] = MEMORY_PAUSES;
        self.pause = (self.pause * 2).min(longest);
        self.sleep.as_mut().reset(Instant::now() + self.pause);
        self.charge.ask_idle();
        Poll::Ready(())
    }
}

impl Drop for MemoryWait {
    fn drop(&mut self) {
        self.charge.set_waiting(false);
    }
}

/// The time that a request's head may take, from the end of the answer before it.
pub(super) struct Idle {
    limit: Duration,
    until: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Idle {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, until: Instant::now() + limit, sleep: None }
    }

    pub(super) fn begin(&mut self, now: Instant) {
        self.until = now + self.limit;
    }

    /// When the time began.
    pub(super) fn since(&self) -> Instant {
        self.until.checked_sub(self.limit).unwrap_or(self.until)
    }

    /// The end of the connection when the time is over. The timer is set anew only when it has run out, which is far
    /// cheaper than at every request.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let until = self.until;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        loop {
            ready!(sleep.as_mut().poll(context));
            if sleep.deadline() >= until {
                return Poll::Ready(Ok(()));
            }
            sleep.as_mut().reset(until);
        }
    }
}

/// Wakes the task again after all others that are ready, and those that become so until then.
pub(super) fn give_way(context: &mut Context<'_>) {
    // Pending at first: from then on the runtime keeps it in mind.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}
