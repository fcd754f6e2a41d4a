//! A client's connection, in which the fast path comes before hyper and answers the requests that need no waiting.
//!
//! The fast path buffers received bytes until a request head is complete, and passes the head to
//! [`fastpath::try_answer`]. If that function has no reply, hyper gets exactly this head. The bytes that follow are
//! held back until hyper's response has been sent. If the client sends a request body, HTTP/2 or invalid bytes, hyper
//! gets the rest of the connection. hyper is created when it gets its first bytes.
//!
//! The fast path serves small stored blocks at 2 to 5 times the rate of hyper and the router alone
//! (docs/PERFORMANCE.md).

mod header_timer;
mod receive_buffer;

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_util::io::poll_read_buf;

use super::connection_memory::ConnectionMemory;
use super::http2::admission::FrameAdmission;
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
use receive_buffer::{READ_BYTES, ReceiveBuffer};

/// Response to a long request head for which there is no memory.
const NO_MEMORY_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Maximum number of requests that the fast path answers on one connection before it yields to other tasks.
const MAX_REQUESTS_PER_POLL: usize = 16;

/// Maximum number of bytes sent on one connection before it yields to other tasks: about half a millisecond.
const MAX_BYTES_BEFORE_YIELD: u64 = 1 << 20;

/// Interval of the checks for a client that has hung up.
const HANG_UP_INTERVAL: Duration = Duration::from_secs(1);

/// Connection preface of HTTP/2 (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Says which part of the server gets the next received byte.
#[expect(clippy::large_enum_variant, reason = "a connection has one state; a box would cost another allocation")]
enum ReadState {
    /// The fast path. The byte begins a request.
    BetweenRequests,
    /// The buffer of the fast path, because hyper is still answering the previous request.
    HyperAnswering,
    /// hyper, for the rest of an HTTP/1 connection.
    HandedOver,
    /// hyper, for the rest of an HTTP/2 connection, when [`FrameAdmission`] admits the byte. `Http2Watchdog`, not the
    /// fast path, ends idle HTTP/2 connections.
    Http2(FrameAdmission),
    /// No part: the last bytes were invalid, or there was no memory for a long head.
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

/// The peer of a connection, and the limits towards which the connection counts.
pub(super) struct PeerAccount {
    pub(super) peer: Option<IpAddr>,
    /// Memory that the connection has taken from the pool that all connections share.
    pub(super) memory: Arc<ConnectionMemory>,
    /// Idle tracker of the connection; `None` if the connections of its address are not counted.
    pub(super) activity: Option<Arc<IdleTracker>>,
}

/// A client's connection, which answers requests on the fast path and hands the other requests to hyper.
pub(super) struct FastConnection<S> {
    stream: S,
    snapshot_cache: SnapshotCache,
    state: ReadState,
    /// True if no request has been received yet.
    pub(super) is_new: bool,
    /// Flags that the fast path shares with hyper's service.
    pub(super) signals: Arc<ConnectionSignals>,
    received: ReceiveBuffer,
    /// The fast path's reply that is being sent.
    sending: Option<ReplyWriter>,
    /// Counts, by its strong count, the connections on which output of hyper is not flushed. hyper's own responses
    /// cannot be counted instead: hyper drops a response when it has buffered all of it, long before a slow client has
    /// received it.
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

    /// Sends the current reply of the fast path, if there is one. Ready when nothing is left to send.
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
            // hyper would switch to HTTP/2 at these bytes, although the connection has used HTTP/1 so far.
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

    /// Receives bytes into the buffer and returns their number. Returns 0 at the end of the stream, or if there is no
    /// memory for a long head.
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
        // The response is small. If the send queue is full, the client does not receive it.
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

    /// Returns the time limit for each request head.
    pub(super) fn header_timeout(&self) -> Duration {
        self.header_timer.timeout
    }

    /// Returns true if hyper serves the rest of the connection as HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.state, ReadState::Http2(_))
    }
}

/// The side of the connection that hyper uses as if it were the socket.
impl<S: Socket> FastConnection<S> {
    /// Reads bytes for hyper. Ready without any bytes at the end of the stream, as `AsyncRead` requires.
    fn poll_read_for_hyper(&mut self, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.received.handoff_bytes == 0 {
            match &mut self.state {
                ReadState::BetweenRequests => {
                    if ready!(self.poll_fast_path(context))? == FastPathEnd::Closed {
                        return Poll::Ready(Ok(()));
                    }
                }
                ReadState::HyperAnswering => return self.poll_end_while_answering(context),
                ReadState::Http2(admission) => {
                    let admitted = admission.poll_admit(&mut self.received.bytes, &mut self.stream, context);
                    self.received.handoff_bytes = ready!(admitted)?;
                    if self.received.handoff_bytes == 0 && ready!(self.poll_receive_http2(context))? == 0 {
                        return Poll::Ready(Ok(()));
                    }
                }
                ReadState::HandedOver => {
                    let read = Pin::new(&mut self.stream).poll_read(context, out);
                    if read.is_pending() && !self.signals.is_busy() {
                        return self.poll_header_timeout(context).map(Ok);
                    }
                    return read;
                }
                ReadState::Ended => return Poll::Ready(Ok(())),
            }
        }
        self.received.read_handoff(out);
        Poll::Ready(Ok(()))
    }

    /// Buffers received bytes while hyper answers an HTTP/1 request. Ready at the end of the stream. Received requests
    /// stay in the buffer until hyper's response is flushed, which wakes this task.
    fn poll_end_while_answering(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.received.bytes.len() < READ_BYTES && ready!(self.poll_receive(context))? > 0 {}
        self.stream.poll_release(context);
        if self.received.bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        // A client may close its half of the connection after its last request. The requests that it sent before are
        // answered, within the time that `check_hang_up` allows.
        Poll::Pending
    }

    /// Receives frames of an HTTP/2 connection. Returns 0 at the end of the stream.
    fn poll_receive_http2(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let received = self.poll_receive(context);
        if received.is_pending() && self.received.bytes.is_empty() {
            // An idle connection keeps no receive buffer.
            self.received.bytes = BytesMut::new();
        }
        if matches!(received, Poll::Ready(Ok(1..))) {
            self.account.memory.count_read();
        }
        received
    }

    /// Prepares a write by hyper: marks the connection as unflushed. Pending if the connection must yield to other
    /// tasks.
    fn poll_begin_write(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.unflushed.is_none() {
            self.unflushed = self.unflushed_counter.upgrade();
        }
        self.poll_yield(0, context)
    }

    /// Counts the bytes that hyper has written with `write`.
    fn count_written(&mut self, write: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let written = ready!(write)?;
        self.bytes_since_yield += written as u64;
        Poll::Ready(Ok(written))
    }

    /// Returns an error if the client has hung up while hyper answers a request. hyper itself cannot see this if
    /// further requests or a request body precede the end of the stream. This method runs at each poll of hyper,
    /// because hyper flushes at each poll.
    fn check_hang_up(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let may_be_hidden = match self.state {
            ReadState::HyperAnswering => !self.received.bytes.is_empty(),
            ReadState::HandedOver => true,
            ReadState::BetweenRequests | ReadState::Http2(_) | ReadState::Ended => false,
        };
        if !may_be_hidden || !self.signals.is_busy() {
            self.hang_up_timer = None;
            return Ok(());
        }
        // The first check follows after one interval: a client may close its half of the connection after its last
        // request and wait for the response.
        let sleep = self.hang_up_timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(HANG_UP_INTERVAL)));
        while sleep.as_mut().poll(context).is_ready() {
            if self.stream.has_hung_up() {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            sleep.as_mut().reset(Instant::now() + HANG_UP_INTERVAL);
        }
        Ok(())
    }
}

impl<S: Socket> AsyncRead for FastConnection<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_read_for_hyper(context, out)
    }
}

impl<S: Socket> AsyncWrite for FastConnection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_begin_write(context));
        let write = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count_written(write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_begin_write(context));
        let write = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.count_written(write)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Flushes the stream. If hyper has written a whole response, the fast path continues after this flush.
    ///
    /// hyper also flushes when it has written nothing. Such a flush must not reach the stream while the fast path
    /// sends. It would restart the stream's write timeout, although the client accepts no bytes.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.sending.is_some() {
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.check_hang_up(context)?;
        match self.state {
            ReadState::HyperAnswering if self.received.handoff_bytes == 0 && !self.signals.is_busy() => {
                self.state = ReadState::BetweenRequests;
                self.header_timer.restart(Instant::now());
                context.waker().wake_by_ref();
            }
            ReadState::HandedOver if self.unflushed.is_some() => {
                self.header_timer.restart(Instant::now());
                context.waker().wake_by_ref();
            }
            ReadState::Http2(_) => self.account.memory.release_flushed(),
            ReadState::BetweenRequests | ReadState::HyperAnswering | ReadState::HandedOver | ReadState::Ended => {}
        }
        self.unflushed = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Returns true if one of `expected` and `received` begins with the other.
fn matches_so_far(expected: &[u8], received: &[u8]) -> bool {
    expected.iter().zip(received).all(|(expected_byte, received_byte)| expected_byte == received_byte)
}
