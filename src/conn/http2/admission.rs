//! Admission of HTTP/2 frames: hyper gets a frame only if there is memory for it.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::time::{Instant, Sleep};

use super::super::connection_memory::{ConnectionMemory, GoawayReason, MAX_FIELDS, MAX_UNCOUNTED_COOKIES};
use super::super::socket::Socket;
use super::super::workers::schedule_yield;
use super::frames::FrameScanner;
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics::{QueueLabel, QueueWaitTimer};

/// Shortest and longest pause between two attempts of a connection to take memory.
const MEMORY_BACKOFF: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(500)];

/// Longest time that a connection without a stream waits for memory while it holds some. Then the connection ends, and
/// its client can repeat the request on a new connection, which holds no memory.
const MAX_BLOCKED: Duration = Duration::from_secs(3);

/// Decides how many of the received bytes of an HTTP/2 connection hyper gets.
pub(crate) struct FrameAdmission {
    scanner: FrameScanner,
    peer: Option<IpAddr>,
    memory: Arc<ConnectionMemory>,
    /// `Some` while there is no memory for the next frame.
    memory_wait: Option<MemoryWait>,
}

impl FrameAdmission {
    /// Creates the admission for a connection whose client has sent the HTTP/2 preface.
    pub(crate) fn new(peer: Option<IpAddr>, memory: Arc<ConnectionMemory>) -> Self {
        Self { scanner: FrameScanner::default(), peer, memory, memory_wait: None }
    }

    /// Returns how many bytes at the beginning of `received` hyper gets now. If the number is 0, more bytes must be
    /// received. Pending while the connection must not be read, because it lacks memory, yields to other tasks, or
    /// ends.
    ///
    /// `received` holds the bytes that follow those that hyper has got. Bytes that hyper need not see are removed from
    /// it.
    ///
    /// # Errors
    /// Returns an error if the client has hung up while the connection waited for memory.
    pub(crate) fn poll_admit<S: Socket>(
        &mut self,
        received: &mut BytesMut,
        stream: &mut S,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        loop {
            self.memory.set_input_drained(true);
            let admitted_bytes = self.admit(received);
            if admitted_bytes > 0 {
                self.memory.set_input_drained(false);
                return Poll::Ready(Ok(admitted_bytes));
            }
            if self.memory.is_refusing() && !self.scanner.ignores_requests {
                return Poll::Pending;
            }
            if self.memory.is_poll_budget_spent() {
                // hyper's responses and other connections take precedence.
                schedule_yield(context);
                return Poll::Pending;
            }
            let Some(wait) = &mut self.memory_wait else { return Poll::Ready(Ok(0)) };
            stream.poll_release(context);
            ready!(wait.poll(context));
            if stream.has_hung_up() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
        }
    }

    /// Takes memory for the received frames. Returns the number of bytes that precede the first frame for which there
    /// is no memory.
    fn admit(&mut self, received: &mut BytesMut) -> usize {
        let Self { scanner, peer, memory, memory_wait } = self;
        if memory.refusal().is_some_and(GoawayReason::is_memory_shortage) {
            scanner.ignore_requests();
        }
        while let discarded @ 1.. = scanner.discard(received) {
            received.advance(discarded);
        }
        let mut is_refused = false;
        let mut admitted_bytes = scanner.scan(received, |frame| {
            if memory.is_poll_budget_spent() {
                return ControlFlow::Break(());
            }
            let admitted = memory.admit(frame);
            is_refused = admitted.is_break();
            admitted
        });
        memory.set_in_header_list(scanner.in_header_list);
        memory.set_table_bytes(scanner.table_bytes());
        if scanner.max_list_fields > MAX_FIELDS + MAX_UNCOUNTED_COOKIES {
            // hyper would take a thousand times as long as this scanner to count the fields.
            memory.refuse(GoawayReason::TooManyFields);
            admitted_bytes = 0;
        }
        if !is_refused || admitted_bytes > 0 || memory.is_refusing() {
            *memory_wait = None;
        } else if let Some(wait) = memory_wait {
            wait.refuse_if_blocked_too_long();
        } else {
            *memory_wait = Some(MemoryWait::begin(*peer, memory));
        }
        admitted_bytes
    }
}

/// A wait for memory. Nothing is read from the connection meanwhile.
struct MemoryWait {
    started: Instant,
    pause: Duration,
    sleep: Pin<Box<Sleep>>,
    memory: Arc<ConnectionMemory>,
    _wait_timer: QueueWaitTimer,
}

impl MemoryWait {
    fn begin(peer: Option<IpAddr>, memory: &Arc<ConnectionMemory>) -> Self {
        static WAITS: LogThrottle = LogThrottle::new();
        if let Some(suppressed) = WAITS.allow() {
            tracing::warn!(
                ?peer,
                suppressed,
                "connection paused: its address or all connections together have used up the memory for streams; see n5_connection_pool_bytes"
            );
        }
        memory.is_waiting.store(true, Ordering::Relaxed);
        memory.request_reclaim();
        let [pause, _] = MEMORY_BACKOFF;
        Self {
            started: Instant::now(),
            pause,
            sleep: Box::pin(tokio::time::sleep(pause)),
            memory: Arc::clone(memory),
            _wait_timer: QueueWaitTimer::begin(QueueLabel::ConnectionMemory),
        }
    }

    /// Ends the connection if it has waited too long while it holds memory that other connections need. Must be called
    /// after each failed attempt to take memory.
    fn refuse_if_blocked_too_long(&self) {
        if self.memory.blocked_since().is_some_and(|since| since.max(self.started).elapsed() >= MAX_BLOCKED) {
            // The client may have hung up unnoticed: while the kernel's receive buffer is full, the end of the stream
            // does not arrive.
            self.memory.refuse(GoawayReason::BlockedTooLong);
        }
    }

    /// Ready when it is time to try again. Each pause is twice as long as the one before, up to a maximum.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
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
        self.memory.is_waiting.store(false, Ordering::Relaxed);
    }
}
