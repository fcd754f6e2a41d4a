//! A client's connection with the fast path in front of hyper: requests that need no waiting are answered here.
//!
//! The fast path buffers received bytes until a request head is complete and passes it to [`fastpath::try_answer`]. If
//! that does not answer, hyper gets exactly this head. The bytes that follow are held back until hyper's response has
//! been sent. Anything but a plain HTTP/1 request (one with a body, HTTP/2, invalid bytes) goes to hyper, with the rest
//! of the connection. hyper is created at the first request that it gets.
//!
//! For small stored blocks, this serves 2 to 5 times the requests per second of hyper and the router alone
//! (docs/PERFORMANCE.md).

mod header_timer;
mod hyper_side;
mod receive_buffer;

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tokio_util::io::poll_read_buf;

use super::http2::admission::FrameAdmission;
use super::http2::memory::ConnectionMemory;
use super::peers::IdleTracker;
use super::reply_writer::ReplyWriter;
use super::serving_snapshot::SnapshotCache;
use super::signals::ConnectionSignals;
use super::socket::Socket;
use super::workers::schedule_yield;
use crate::fastpath::{self, FastOutcome};
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics::CloseReason;
use header_timer::HeaderTimer;
use receive_buffer::ReceiveBuffer;

/// Response if there is no memory for a long request head.
const NO_MEMORY_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Maximum number of requests that the fast path answers on one connection before it yields to other tasks.
const MAX_REQUESTS_PER_POLL: usize = 16;

/// Maximum number of bytes sent on one connection before it yields to other tasks: about half a millisecond.
const MAX_BYTES_BEFORE_YIELD: u64 = 1 << 20;

/// Connection preface of HTTP/2 (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Recipient of the next received byte.
#[expect(clippy::large_enum_variant, reason = "a connection has one state; a box would cost another allocation")]
enum ReadState {
    /// The fast path: a request begins with this byte.
    BetweenRequests,
    /// The buffer of the fast path, while hyper answers the previous request.
    HyperAnswering,
    /// hyper, for the rest of an HTTP/1 connection.
    HandedOver,
    /// hyper, for the rest of an HTTP/2 connection, once admitted. `Http2Watchdog` ends idle HTTP/2 connections, not the
    /// fast path.
    Http2(FrameAdmission),
    /// No recipient: the last bytes were invalid, or there was no memory for a long head.
    Ended,
}

/// Reason why the fast path stops answering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FastPathEnd {
    /// hyper must answer the next request.
    HandOver,
    /// The connection ends.
    Closed,
}

/// The peer of a connection, and what the connection counts towards.
pub(super) struct PeerAccount {
    pub(super) peer: Option<IpAddr>,
    /// Memory that the connection has taken from the pool that all connections share.
    pub(super) memory: Arc<ConnectionMemory>,
    /// Idle tracker of the connection; `None` if the connections of its address are not counted.
    pub(super) activity: Option<Arc<IdleTracker>>,
}

/// A client's connection: answers requests on the fast path and hands the others to hyper.
pub(super) struct FastConnection<S> {
    stream: S,
    snapshot_cache: SnapshotCache,
    state: ReadState,
    /// True if no request has been received yet.
    pub(super) is_new: bool,
    /// Flags that hyper's side shares.
    pub(super) signals: Arc<ConnectionSignals>,
    received: ReceiveBuffer,
    /// Response of the fast path that is being sent.
    sending: Option<ReplyWriter>,
    /// Its strong count is the number of connections with output of hyper that is not flushed. hyper drops a response
    /// when it has buffered all of it, long before a slow client has received it.
    unflushed_counter: Weak<()>,
    /// `Some` while this connection counts in `unflushed_counter`.
    unflushed: Option<Arc<()>>,
    /// Bytes sent since the connection last yielded to other tasks.
    bytes_since_yield: u64,
    header_timer: HeaderTimer,
    pub(super) account: PeerAccount,
    /// Timer of the next check for a client that has hung up while hyper answers.
    hang_up_timer: Option<Pin<Box<Sleep>>>,
}

impl<S: Socket> FastConnection<S> {
    /// Creates a connection on `stream`. Its client must send each request head within `header_timeout`.
    pub(super) fn new(
        stream: S,
        snapshot_cache: SnapshotCache,
        account: PeerAccount,
        unflushed_counter: Weak<()>,
        header_timeout: Duration,
    ) -> Self {
        Self {
            stream,
            snapshot_cache,
            state: ReadState::BetweenRequests,
            is_new: true,
            signals: Arc::default(),
            received: ReceiveBuffer::new(),
            sending: None,
            unflushed_counter,
            unflushed: None,
            bytes_since_yield: 0,
            header_timer: HeaderTimer::new(header_timeout),
            account,
            hang_up_timer: None,
        }
    }

    /// Answers requests on the fast path. Ready when it can answer no more.
    pub(super) fn poll_fast_path(&mut self, context: &mut Context<'_>) -> Poll<io::Result<FastPathEnd>> {
        for _ in 0..MAX_REQUESTS_PER_POLL {
            ready!(self.poll_send(context))?;
            if self.signals.is_closing() || matches!(self.state, ReadState::Ended) {
                return Poll::Ready(Ok(FastPathEnd::Closed));
            }
            if (self.received.bytes.is_empty() || !self.process_received()) && ready!(self.poll_more(context))? == 0 {
                return Poll::Ready(Ok(FastPathEnd::Closed));
            }
            if self.received.handoff_bytes > 0 {
                return Poll::Ready(Ok(FastPathEnd::HandOver));
            }
        }
        schedule_yield(context);
        Poll::Pending
    }

    /// Ready when no bytes of a response of the fast path are left to be sent.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(sending) = &mut self.sending {
            if sending.is_done() {
                ready!(sending.poll_flush(&mut self.stream, context))?;
                if sending.has_blocked {
                    self.header_timer.restart(Instant::now());
                }
                self.sending = None;
                break;
            }
            let sent = ready!(sending.poll_send(&mut self.stream, context))?;
            ready!(self.poll_yield(sent, context));
        }
        Poll::Ready(Ok(()))
    }

    /// Counts `sent` bytes. Pending if the connection must yield to other tasks.
    fn poll_yield(&mut self, sent: u64, context: &mut Context<'_>) -> Poll<()> {
        self.bytes_since_yield += sent;
        if self.bytes_since_yield < MAX_BYTES_BEFORE_YIELD {
            return Poll::Ready(());
        }
        self.bytes_since_yield = 0;
        schedule_yield(context);
        Poll::Pending
    }

    /// Processes the received bytes. Returns false if more bytes are needed.
    fn process_received(&mut self) -> bool {
        let received = &self.received.bytes;
        if self.is_new && received.starts_with(&HTTP2_PREFACE[..4]) {
            let is_http2 = received.starts_with(HTTP2_PREFACE);
            if is_http2 || !matches_so_far(HTTP2_PREFACE, received) {
                self.hand_over(is_http2);
            }
            return self.received.handoff_bytes > 0;
        }
        if !self.received.needs_parsing() {
            return false;
        }
        match fastpath::try_answer(self.snapshot_cache.app(), self.account.peer, &self.received.bytes) {
            FastOutcome::Incomplete if !self.received.is_full() => {
                self.received.mark_incomplete();
                return false;
            }
            // hyper would take these bytes for the start of HTTP/2, on a connection that speaks HTTP/1.
            FastOutcome::Incomplete | FastOutcome::HandOver if matches_so_far(HTTP2_PREFACE, &self.received.bytes) => {
                self.state = ReadState::Ended;
            }
            FastOutcome::Incomplete | FastOutcome::HandOver => self.hand_over(false),
            FastOutcome::Request(length, Some(reply)) => {
                self.is_new = false;
                self.received.remove_answered(length, &self.account.memory);
                self.header_timer.restart(Instant::from_std(reply.started()));
                self.sending = Some(ReplyWriter::new(reply));
            }
            FastOutcome::Request(length, None) => {
                self.is_new = false;
                self.received.hand_over_head(length, &self.account.memory);
                self.state = ReadState::HyperAnswering;
                self.signals.set_busy(true);
            }
        }
        true
    }

    /// Receives more bytes of a request head. Returns 0 if the connection ends: the client has closed it or has sent
    /// nothing for too long, or another connection needs its slot.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let received = self.poll_receive(context);
        if received.is_pending() {
            self.snapshot_cache.drop_if_stale();
            if self.check_evicted(context) {
                return Poll::Ready(Ok(0));
            }
            return self.poll_header_timeout(context).map(|()| Ok(0));
        }
        if let Some(activity) = &self.account.activity
            && matches!(received, Poll::Ready(Ok(1..)))
        {
            activity.set_busy();
        }
        received
    }

    /// Receives into the buffer. Returns 0 at the end of the stream, and if there is no memory for a long head.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        static REFUSED: LogThrottle = LogThrottle::new();
        if self.received.try_reserve(&self.account.memory) {
            return poll_read_buf(Pin::new(&mut self.stream), context, &mut self.received.bytes);
        }
        if let Some(suppressed) = REFUSED.allow() {
            let peer = self.account.peer;
            let received = self.received.bytes.len();
            tracing::warn!(?peer, received, suppressed, "no memory for a long request head; connection closed");
        }
        self.signals.set_close_reason(CloseReason::Memory);
        self.state = ReadState::Ended;
        // The response is small. What a full send queue does not take is lost.
        let _ = Pin::new(&mut self.stream).poll_write(context, NO_MEMORY_RESPONSE)?;
        Poll::Ready(Ok(0))
    }

    /// Returns true if this connection is idle and another one of its address needs its slot.
    fn check_evicted(&self, context: &Context<'_>) -> bool {
        let activity = self.account.activity.as_ref().filter(|_| self.received.bytes.is_empty());
        let is_evicted =
            activity.is_some_and(|activity| activity.poll_idle(self.header_timer.started_at(), self.is_new, context));
        if is_evicted {
            self.signals.set_close_reason(CloseReason::Evicted);
        }
        is_evicted
    }

    fn poll_header_timeout(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let expired = self.header_timer.poll(context);
        if expired.is_ready() {
            self.signals.set_close_reason(CloseReason::Idle);
        }
        expired
    }

    /// Hands the rest of the connection to hyper.
    fn hand_over(&mut self, is_http2: bool) {
        self.snapshot_cache.clear();
        if is_http2 {
            self.received.handoff_bytes = HTTP2_PREFACE.len();
            self.state = ReadState::Http2(FrameAdmission::new(self.account.peer, Arc::clone(&self.account.memory)));
        } else {
            self.received.handoff_bytes = self.received.bytes.len();
            self.state = ReadState::HandedOver;
        }
    }

    /// Returns true if hyper is given an HTTP/2 connection.
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.state, ReadState::Http2(_))
    }
}

/// Returns true if one of `expected` and `received` begins with the other.
fn matches_so_far(expected: &[u8], received: &[u8]) -> bool {
    expected.iter().zip(received).all(|(expected_byte, received_byte)| expected_byte == received_byte)
}
