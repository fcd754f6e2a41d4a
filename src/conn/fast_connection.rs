//! A client's connection with the fast path in front of hyper: requests that need no waiting are answered here.
//!
//! hyper gets only the other requests and is created at the first of them. The fast path buffers received bytes until a
//! request head is complete and passes it to [`fastpath::try_answer`]. If that does not answer, hyper gets exactly this
//! head, and the bytes that follow are held back until hyper's response has been sent. Anything but a plain HTTP/1
//! request (one with a body, HTTP/2, invalid bytes) goes to hyper, with the rest of the connection.
//!
//! For small stored blocks, this serves 2 to 5 times the requests per second of hyper and the router alone
//! (docs/PERFORMANCE.md).

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};
use tokio_util::io::poll_read_buf;

use super::http2::admission::FrameAdmission;
use super::http2::memory::{ConnectionMemory, HEAD_COPIES, MAX_HEAD_BYTES};
use super::peers::IdleTracker;
use super::reply_writer::ReplyWriter;
use super::serving_snapshot::SnapshotCache;
use super::socket::Socket;
use super::workers::schedule_yield;
use crate::fastpath::{self, FastOutcome};
use crate::telemetry::log_throttle::LogThrottle;
use crate::telemetry::metrics::CloseReason;

/// Minimum capacity of the receive buffer, which a connection keeps. It fits a browser's request head, or dozens of
/// curl's.
const READ_BYTES: usize = 2 << 10;

/// Largest memory of a request head that is covered by a connection's fixed share.
const UNCHARGED_HEAD_BYTES: usize = 8 << 10;

/// Response if there is no memory for a long request head.
const NO_MEMORY_RESPONSE: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Maximum number of responses on one connection before it yields to other tasks.
const MAX_ANSWERS_PER_POLL: usize = 16;

/// Maximum number of bytes sent on one connection before it yields to other tasks: about half a millisecond.
const MAX_BYTES_BEFORE_YIELD: u64 = 1 << 20;

/// Interval of the checks for a client that has hung up.
const HANG_UP_INTERVAL: Duration = Duration::from_secs(1);

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
    /// hyper, for the rest of an HTTP/2 connection, once admitted. The fast path does not end idle HTTP/2 connections;
    /// `Http2Watchdog` does.
    Http2(FrameAdmission),
    /// None: the last bytes were invalid, or there was no memory for a long head.
    Ended,
}

/// A client's connection: answers requests on the fast path and hands the others to hyper.
pub(super) struct FastConnection<S> {
    stream: S,
    snapshot_cache: SnapshotCache,
    pub(super) peer: Option<IpAddr>,
    state: ReadState,
    /// True if no request has been received yet.
    pub(super) is_new: bool,
    /// Flags that hyper's side shares; it clears the busy flag when it has answered.
    pub(super) signals: Arc<ConnectionSignals>,
    received: BytesMut,
    /// Number of received bytes that are known not to contain a complete head.
    scanned_bytes: usize,
    /// Number of received bytes that belong to hyper.
    handoff_bytes: usize,
    sending: Option<ReplyWriter>,
    /// Counts the connections with output of hyper that is not flushed, of which this is one while `unflushed` is set.
    /// hyper drops a response when it has buffered all of it, long before a slow client has received it.
    unflushed_counter: Weak<()>,
    unflushed: Option<Arc<()>>,
    /// Bytes sent since the connection last yielded to other tasks.
    bytes_since_yield: u64,
    header_timer: HeaderTimer,
    /// Memory taken from the pool that all connections share.
    pub(super) memory: Arc<ConnectionMemory>,
    /// Idle tracker among the connections of the same address.
    activity: Option<Arc<IdleTracker>>,
    /// Memory taken for the long head that is being received.
    head_bytes: usize,
    /// Memory taken for the longest head that hyper was given.
    hyper_head_bytes: usize,
    /// Timer of the next check for a client that has hung up while hyper answers.
    hang_up_timer: Option<Pin<Box<Sleep>>>,
}

impl<S: Socket> FastConnection<S> {
    /// Creates a connection on `stream`. Its client must send each request head within `header_timeout`. `activity` is
    /// `None` if the connections of its address are not counted.
    pub(super) fn new(
        stream: S,
        snapshot_cache: SnapshotCache,
        peer: Option<IpAddr>,
        unflushed_counter: Weak<()>,
        memory: Arc<ConnectionMemory>,
        activity: Option<Arc<IdleTracker>>,
        header_timeout: Duration,
    ) -> Self {
        Self {
            stream,
            snapshot_cache,
            peer,
            state: ReadState::BetweenRequests,
            is_new: true,
            signals: Arc::default(),
            received: BytesMut::with_capacity(READ_BYTES),
            scanned_bytes: 0,
            handoff_bytes: 0,
            sending: None,
            unflushed_counter,
            unflushed: None,
            bytes_since_yield: 0,
            header_timer: HeaderTimer::new(header_timeout),
            memory,
            activity,
            head_bytes: 0,
            hyper_head_bytes: 0,
            hang_up_timer: None,
        }
    }

    /// Answers requests on the fast path. Returns true at a request for hyper, false at the end of the connection.
    pub(super) fn poll_fast_path(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        for _ in 0..MAX_ANSWERS_PER_POLL {
            ready!(self.poll_send(context))?;
            if self.signals.is_closing() || matches!(self.state, ReadState::Ended) {
                return Poll::Ready(Ok(false));
            }
            if self.received.is_empty() || !self.process_received() {
                match self.poll_receive(context) {
                    Poll::Ready(received) => {
                        if received? == 0 {
                            return Poll::Ready(Ok(false));
                        }
                        if let Some(activity) = &self.activity {
                            activity.set_busy();
                        }
                    }
                    Poll::Pending => {
                        self.snapshot_cache.drop_if_stale();
                        if self.check_evicted(context) {
                            return Poll::Ready(Ok(false));
                        }
                        return self.poll_header_timeout(context).map(|()| Ok(false));
                    }
                }
            }
            if self.handoff_bytes > 0 {
                return Poll::Ready(Ok(true));
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
            ready!(self.poll_turn(sent, context));
        }
        Poll::Ready(Ok(()))
    }

    /// Counts `sent` bytes. Pending if the connection must yield to other tasks.
    fn poll_turn(&mut self, sent: u64, context: &mut Context<'_>) -> Poll<()> {
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
        if self.is_new && self.received.starts_with(&HTTP2_PREFACE[..4]) {
            let is_http2 = self.received.starts_with(HTTP2_PREFACE);
            if is_http2 || !matches_so_far(HTTP2_PREFACE, &self.received) {
                self.hand_over(is_http2);
            }
            return is_http2 || self.handoff_bytes > 0;
        }
        // A head that arrives in small pieces is not parsed again for each of them.
        let unscanned = self.received.get(self.scanned_bytes.saturating_sub(2)..).unwrap_or_default();
        let may_end =
            unscanned.windows(2).any(|two| two == b"\n\n") || unscanned.windows(3).any(|three| three == b"\n\r\n");
        if !may_end && self.scanned_bytes > 0 && self.received.len() < MAX_HEAD_BYTES {
            self.scanned_bytes = self.received.len();
            return false;
        }
        self.scanned_bytes = 0;
        match fastpath::try_answer(self.snapshot_cache.app(), self.peer, &self.received) {
            FastOutcome::Incomplete if self.received.len() < MAX_HEAD_BYTES => {
                self.scanned_bytes = self.received.len();
                return false;
            }
            // hyper would take these bytes for the start of HTTP/2, on a connection that speaks HTTP/1.
            FastOutcome::Incomplete | FastOutcome::HandOver if matches_so_far(HTTP2_PREFACE, &self.received) => {
                self.state = ReadState::Ended;
            }
            FastOutcome::Incomplete | FastOutcome::HandOver => self.hand_over(false),
            FastOutcome::Request(length, Some(reply)) => {
                self.is_new = false;
                let is_long = self.received.capacity() > 4 * READ_BYTES;
                self.received.advance(length);
                if self.received.is_empty() && is_long {
                    // Release the buffer of a long head.
                    self.received = BytesMut::new();
                    self.memory.give_back(std::mem::take(&mut self.head_bytes));
                }
                self.header_timer.restart(Instant::from_std(reply.started()));
                self.sending = Some(ReplyWriter::new(reply));
            }
            FastOutcome::Request(length, None) => {
                self.is_new = false;
                self.handoff_bytes = length;
                // hyper keeps a buffer for the longest head that it was given.
                let head_bytes = std::mem::take(&mut self.head_bytes);
                self.memory.give_back(head_bytes.min(self.hyper_head_bytes));
                self.hyper_head_bytes = self.hyper_head_bytes.max(head_bytes);
                self.state = ReadState::HyperAnswering;
                self.signals.set_busy(true);
            }
        }
        true
    }

    /// Receives into the buffer of the fast path; 0 bytes at the end of the stream.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.try_reserve_head() {
            self.signals.set_close_reason(CloseReason::Memory);
            self.state = ReadState::Ended;
            // The response is small. What a full send queue does not take is lost.
            let _ = Pin::new(&mut self.stream).poll_write(context, NO_MEMORY_RESPONSE)?;
            return Poll::Ready(Ok(0));
        }
        poll_read_buf(Pin::new(&mut self.stream), context, &mut self.received)
    }

    /// Makes room for more of a head. Returns false if there is no memory for a long one.
    fn try_reserve_head(&mut self) -> bool {
        static REFUSED: LogThrottle = LogThrottle::new();
        let needed_bytes = self.received.len() + READ_BYTES;
        if needed_bytes > self.received.capacity() && needed_bytes > UNCHARGED_HEAD_BYTES {
            let capacity = needed_bytes.max(2 * self.received.len());
            let extra_bytes = (capacity * HEAD_COPIES).saturating_sub(self.head_bytes);
            if !self.memory.try_take(extra_bytes) {
                if let Some(suppressed) = REFUSED.allow() {
                    let (peer, received) = (self.peer, self.received.len());
                    tracing::warn!(?peer, received, suppressed, "no memory for a long request head; connection closed");
                }
                return false;
            }
            self.head_bytes += extra_bytes;
            let mut larger_buffer = BytesMut::with_capacity(capacity);
            larger_buffer.extend_from_slice(&self.received);
            self.received = larger_buffer;
        } else {
            self.received.reserve(READ_BYTES);
        }
        true
    }

    /// Returns true if this connection is idle and another one of its address needs its slot.
    fn check_evicted(&self, context: &Context<'_>) -> bool {
        let activity = self.activity.as_ref().filter(|_| self.received.is_empty());
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

    fn hand_over(&mut self, is_http2: bool) {
        self.snapshot_cache.clear();
        (self.handoff_bytes, self.state) = if is_http2 {
            let admission = FrameAdmission::new(self.peer, Arc::clone(&self.memory));
            (HTTP2_PREFACE.len(), ReadState::Http2(admission))
        } else {
            (self.received.len(), ReadState::HandedOver)
        };
    }

    /// Returns true if hyper is given an HTTP/2 connection.
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.state, ReadState::Http2(_))
    }

    fn poll_read_for_hyper(&mut self, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.handoff_bytes > 0 {
                let length = self.handoff_bytes.min(out.remaining());
                out.put_slice(&self.received.split_to(length));
                self.handoff_bytes -= length;
                if self.handoff_bytes == 0 && self.received.is_empty() {
                    // Release the buffer of a long head.
                    self.received = BytesMut::new();
                }
                return Poll::Ready(Ok(()));
            }
            match &mut self.state {
                ReadState::BetweenRequests => {
                    if !ready!(self.poll_fast_path(context))? {
                        return Poll::Ready(Ok(()));
                    }
                }
                ReadState::HyperAnswering => {
                    // Reads only to notice the end of the stream. Requests wait until hyper's response is flushed,
                    // which wakes this task.
                    while self.received.len() < READ_BYTES && ready!(self.poll_receive(context))? > 0 {}
                    self.stream.poll_release(context);
                    if self.received.is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                    // Requests that arrived before the client closed its half of the connection are still to be
                    // answered, within the time that `check_hang_up` gives them.
                    return Poll::Pending;
                }
                ReadState::Http2(admission) => {
                    self.handoff_bytes = ready!(admission.poll_admit(&mut self.received, &mut self.stream, context))?;
                    if self.handoff_bytes > 0 {
                        continue;
                    }
                    let received = self.poll_receive(context);
                    if received.is_pending() && self.received.is_empty() {
                        // An idle connection keeps no receive buffer.
                        self.received = BytesMut::new();
                    }
                    if ready!(received)? == 0 {
                        return Poll::Ready(Ok(()));
                    }
                    self.memory.count_read();
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
    }

    fn mark_unflushed(&mut self) {
        if self.unflushed.is_none() {
            self.unflushed = self.unflushed_counter.upgrade();
        }
    }

    /// Fails if the client has hung up while hyper answers, where hyper cannot see that: the end of the stream lies
    /// behind further requests, or behind the body of this one. hyper flushes at each of its polls, and thus calls
    /// this.
    fn check_hang_up(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let may_be_hidden = match self.state {
            ReadState::HyperAnswering => !self.received.is_empty(),
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
        self.mark_unflushed();
        ready!(self.poll_turn(0, context));
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.bytes_since_yield += written as u64;
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.mark_unflushed();
        ready!(self.poll_turn(0, context));
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, parts))?;
        self.bytes_since_yield += written as u64;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when it has written everything it has. After the last byte of a response the fast path continues.
    ///
    /// hyper also flushes when it has written nothing. While the fast path sends, such a flush must not reach the
    /// stream, which would take it for progress of a client that takes nothing.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.sending.is_some() {
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.check_hang_up(context)?;
        match self.state {
            ReadState::HyperAnswering if self.handoff_bytes == 0 && !self.signals.is_busy() => {
                self.state = ReadState::BetweenRequests;
                self.header_timer.restart(Instant::now());
                context.waker().wake_by_ref();
            }
            ReadState::HandedOver if self.unflushed.is_some() => {
                self.header_timer.restart(Instant::now());
                context.waker().wake_by_ref();
            }
            ReadState::Http2(_) => self.memory.release_flushed(),
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

/// Flags of one connection, which its fast path, hyper behind it, and the server share.
#[derive(Debug, Default)]
pub(super) struct ConnectionSignals {
    /// True while hyper has a request that it has not answered completely.
    busy: AtomicBool,
    /// True if no further request will be answered.
    closing: AtomicBool,
    /// Why the server closes the connection, if its client keeps it open.
    pub(super) close_reason: OnceLock<CloseReason>,
}

impl ConnectionSignals {
    /// Records whether hyper has a request that it has not answered completely.
    pub(super) fn set_busy(&self, is_busy: bool) {
        self.busy.store(is_busy, Ordering::Release);
    }

    /// Asks the fast connection to close after the current response.
    pub(super) fn request_close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Records why the server closes the connection; the first reason counts.
    pub(super) fn set_close_reason(&self, reason: CloseReason) {
        self.close_reason.get_or_init(|| reason);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }
}

/// Timer of a request head, which starts at the end of the previous response.
struct HeaderTimer {
    timeout: Duration,
    deadline: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl HeaderTimer {
    fn new(timeout: Duration) -> Self {
        Self { timeout, deadline: Instant::now() + timeout, sleep: None }
    }

    fn restart(&mut self, now: Instant) {
        self.deadline = now + self.timeout;
    }

    /// Returns the time at which the timer was last restarted.
    fn started_at(&self) -> Instant {
        self.deadline.checked_sub(self.timeout).unwrap_or(self.deadline)
    }

    /// Ready when the time is over and the connection must end. The timer is reset only when it has fired, which is far
    /// cheaper than a reset for every request.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
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

/// Waits until the flag is set or its sender is dropped.
pub(super) async fn wait_until_set(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|flag| *flag).await);
}
