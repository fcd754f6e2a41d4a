//! The lane that most requests take: between the socket and the HTTP library, it answers what needs no waiting.
//!
//! The library sees a connection on which only the other requests arrive, if there ever is one. The lane holds back every
//! byte until a request's head is complete, and asks [`quick::look`] what to do: answer it here, or hand exactly this head to the
//! library and hold back what follows until its answer has left. What is no plain HTTP/1 request (one with a body,
//! HTTP/2, nonsense) is the library's from there on, and so is the rest of the connection.
//!
//! Small stored blocks: 2 to 5 times the requests per second of the library and router alone (docs/PERFORMANCE.md).

mod waits;
mod writing;

use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;
use tokio_util::io::poll_read_buf;

use super::charge::{Charge, HEAD_COPIES, MOST_COOKIES, MOST_FIELDS};
use super::connections::HEADER_BYTES;
use super::frames::FrameScanner;
use super::library::Bounds;
use super::refusal::Refusal;
use super::sending::Sending;
use super::serving::Follower;
use super::signals::{EndReason, Signals, Unsent};
use super::socket::Socket;
use crate::http::quick::{self, Received};
use crate::seldom::Seldom;
use waits::{Idle, MemoryWait, give_way};

/// Least room for what is received: a browser's head, or dozens of curl's. A connection keeps it.
const READ_BYTES: usize = 2 << 10;

/// A head that takes no more memory than this is part of a connection's fixed share.
const SHORT_HEAD_BYTES: usize = 8 << 10;

/// Sent where there is no memory for a long head.
const NO_MEMORY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Answers on one connection before others get their turn.
const TURN: usize = 16;

/// Bytes sent on one connection before others get their turn: about half a millisecond.
const TURN_BYTES: u64 = 1 << 20;

/// What HTTP/2 begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Whose the next byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The lane's: a request begins with it.
    Between,
    /// The lane's to keep: the library answers the request before it.
    Answering,
    /// The library's, and all after it. Idle ones of HTTP/2 are not its to end.
    HandedOver { is_http2: bool },
    /// No further byte is looked at: the last made no sense here.
    Ended,
}

/// A connection with the lane in front.
pub(super) struct Lane<S> {
    stream: S,
    follower: Follower,
    peer: Option<IpAddr>,
    state: State,
    is_new: bool,
    signals: Signals,
    received: BytesMut,
    /// How many of the bytes received are known to be no whole head.
    looked_at: usize,
    /// How many of the bytes received are the library's already.
    handing: usize,
    sending: Option<Sending>,
    unsent: Unsent,
    /// Bytes sent since others last had their turn.
    turn_bytes: u64,
    idle: Idle,
    bounds: Bounds,
    /// Memory taken for the long head that is being received, and for the longest that the library was given.
    head_bytes: usize,
    library_bytes: usize,
    frames: FrameScanner,
    memory: Option<MemoryWait>,
}

impl<S: Socket> Lane<S> {
    /// The library's last answer ends `signals`.
    pub(super) fn new(
        stream: S,
        follower: Follower,
        peer: Option<IpAddr>,
        signals: Signals,
        unsent: Unsent,
        bounds: Bounds,
    ) -> Self {
        Self {
            stream,
            follower,
            peer,
            state: State::Between,
            is_new: true,
            signals,
            received: BytesMut::with_capacity(READ_BYTES),
            looked_at: 0,
            handing: 0,
            sending: None,
            unsent,
            turn_bytes: 0,
            idle: Idle::new(bounds.header_timeout),
            bounds,
            head_bytes: 0,
            library_bytes: 0,
            frames: FrameScanner::new(0),
            memory: None,
        }
    }

    /// Looks at what has been received. `false`: more must come.
    fn advance(&mut self) -> bool {
        if self.is_new && self.received.starts_with(&PREFACE[..4]) {
            let is_http2 = self.received.starts_with(PREFACE);
            if is_http2 || !begins_as(PREFACE, &self.received) {
                self.hand_over(is_http2);
            }
            return is_http2 || self.handing > 0;
        }
        // A head that comes in small pieces is not parsed anew for each.
        let fresh = self.received.get(self.looked_at.saturating_sub(2)..).unwrap_or_default();
        let may_end = fresh.windows(2).any(|two| two == b"\n\n") || fresh.windows(3).any(|three| three == b"\n\r\n");
        if !may_end && self.looked_at > 0 && self.received.len() < HEADER_BYTES {
            self.looked_at = self.received.len();
            return false;
        }
        self.looked_at = 0;
        match quick::look(self.follower.app(), self.peer, &self.received) {
            Received::Part if self.received.len() < HEADER_BYTES => {
                self.looked_at = self.received.len();
                return false;
            }
            // The library would begin anew with it, as HTTP/2, on a connection of HTTP/1.
            Received::Part | Received::Other if begins_as(PREFACE, &self.received) => self.state = State::Ended,
            Received::Part | Received::Other => self.hand_over(false),
            Received::Request(length, Some(reply)) => {
                self.is_new = false;
                let is_long = self.received.capacity() > 4 * READ_BYTES;
                self.received.advance(length);
                if self.received.is_empty() && is_long {
                    // A long head's memory is not kept.
                    self.received = BytesMut::new();
                    self.bounds.charge.give_back(std::mem::take(&mut self.head_bytes));
                }
                self.idle.begin(Instant::from_std(reply.started()));
                self.sending = Some(Sending::new(reply));
            }
            Received::Request(length, None) => {
                self.is_new = false;
                self.handing = length;
                // The library keeps room for the longest head that it was given.
                let head_bytes = std::mem::take(&mut self.head_bytes);
                self.bounds.charge.give_back(head_bytes.min(self.library_bytes));
                self.library_bytes = self.library_bytes.max(head_bytes);
                self.state = State::Answering;
                self.signals.begin();
            }
        }
        true
    }

    /// Whether no request has come yet.
    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether what the library is given begins as HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        self.state == State::HandedOver { is_http2: true }
    }

    fn hand_over(&mut self, is_http2: bool) {
        self.handing = if is_http2 { PREFACE.len() } else { self.received.len() };
        self.follower.let_go();
        self.state = State::HandedOver { is_http2 };
    }

    /// Receives into the lane's own memory; 0 bytes at the end.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if !self.has_room() {
            self.signals.end_because(EndReason::Memory);
            self.state = State::Ended;
            // It is small, and what a full queue does not take is lost.
            let _ = Pin::new(&mut self.stream).poll_write(context, NO_MEMORY)?;
            return Poll::Ready(Ok(0));
        }
        poll_read_buf(Pin::new(&mut self.stream), context, &mut self.received)
    }

    /// Makes room for more of a head; false where there is no memory for a long one.
    fn has_room(&mut self) -> bool {
        static REFUSED: Seldom = Seldom::new();
        let wanted = self.received.len() + READ_BYTES;
        if wanted > self.received.capacity() && wanted > SHORT_HEAD_BYTES {
            let capacity = wanted.max(2 * self.received.len());
            let more = (capacity * HEAD_COPIES).saturating_sub(self.head_bytes);
            if !self.bounds.charge.try_take(more) {
                if let Some(unsaid) = REFUSED.may_say() {
                    let (peer, received) = (self.peer, self.received.len());
                    tracing::warn!(?peer, received, unsaid, "no memory for a long request head; connection closed");
                }
                return false;
            }
            self.head_bytes += more;
            let mut longer = BytesMut::with_capacity(capacity);
            longer.extend_from_slice(&self.received);
            self.received = longer;
        } else {
            self.received.reserve(READ_BYTES);
        }
        true
    }

    /// Has the frames that there is memory for handed to the library; false where none of what was received may be.
    fn admit_frames(&mut self) -> bool {
        let Self { frames, received, bounds, handing, .. } = self;
        let mut is_refused = false;
        if bounds.charge.refusal().is_some_and(Refusal::is_for_memory) {
            frames.ignore_requests();
        }
        loop {
            let discarded = frames.discard(received);
            if discarded == 0 {
                break;
            }
            received.advance(discarded);
        }
        *handing = frames.scan(received, |frame| {
            if bounds.charge.is_turn_over() {
                return ControlFlow::Break(());
            }
            let admitted = bounds.charge.admit(frame);
            is_refused = admitted.is_break();
            admitted
        });
        bounds.charge.set_in_header_list(frames.is_in_header_list());
        bounds.charge.hold_table(frames.table_bytes());
        if frames.most_fields() > MOST_FIELDS + MOST_COOKIES {
            // The library would take a thousand times longer to count them.
            bounds.charge.refuse_more(Refusal::Fields);
            *handing = 0;
        }
        if !is_refused || *handing > 0 || bounds.charge.is_refusing() {
            self.memory = None;
        } else if let Some(memory) = &self.memory {
            memory.look_at_blocked();
        } else {
            self.memory = Some(MemoryWait::begin(self.peer, &bounds.charge));
        }
        *handing > 0
    }

    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = self.idle.poll(context);
        if ended.is_ready() {
            self.signals.end_because(EndReason::Idle);
        }
        ended
    }

    /// Whether another connection needs the place of this idle one.
    fn is_evicted(&self, context: &Context<'_>) -> bool {
        let activity = self.bounds.activity.as_ref().filter(|_| self.received.is_empty());
        let is_evicted = activity.is_some_and(|activity| activity.poll_idle(self.idle.since(), self.is_new, context));
        if is_evicted {
            self.signals.end_because(EndReason::Evicted);
        }
        is_evicted
    }

    /// Answers what the lane can, up to a request that is the library's: `true`. `false` at the connection's end.
    pub(super) fn poll_between(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        for _ in 0..TURN {
            ready!(self.poll_send(context))?;
            if self.signals.is_closing() || self.state == State::Ended {
                return Poll::Ready(Ok(false));
            }
            if self.received.is_empty() || !self.advance() {
                match self.poll_receive(context) {
                    Poll::Ready(received) => {
                        if received? == 0 {
                            return Poll::Ready(Ok(false));
                        }
                        if let Some(activity) = &self.bounds.activity {
                            activity.set_busy();
                        }
                    }
                    Poll::Pending => {
                        self.follower.let_go_of_old();
                        if self.is_evicted(context) {
                            return Poll::Ready(Ok(false));
                        }
                        return self.poll_idle(context).map_ok(|()| false);
                    }
                }
            }
            if self.handing > 0 {
                return Poll::Ready(Ok(true));
            }
        }
        give_way(context);
        Poll::Pending
    }

    fn poll_read_as_handed(&mut self, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.handing > 0 {
                let length = self.handing.min(out.remaining());
                out.put_slice(&self.received.split_to(length));
                self.handing -= length;
                if self.handing == 0 && self.received.is_empty() {
                    // A long head's memory is not kept.
                    self.received = BytesMut::new();
                }
                return Poll::Ready(Ok(()));
            }
            match self.state {
                State::Between => {
                    if !ready!(self.poll_between(context))? {
                        return Poll::Ready(Ok(()));
                    }
                }
                State::Answering => {
                    // Only to learn of the end; what comes waits its turn, and the flush after the answer wakes.
                    while self.received.len() < READ_BYTES && ready!(self.poll_receive(context))? > 0 {}
                    self.stream.poll_release(context);
                    // Requests that came before the client closed its half of the connection may still be answered.
                    return if self.received.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending };
                }
                State::HandedOver { is_http2: true } => {
                    self.bounds.charge.set_drained(true);
                    if self.admit_frames() {
                        self.bounds.charge.set_drained(false);
                        continue;
                    }
                    if self.bounds.charge.is_refusing() && !self.frames.ignores_requests() {
                        return Poll::Pending;
                    }
                    if self.bounds.charge.is_turn_over() {
                        // The answers go first, and other connections.
                        give_way(context);
                        return Poll::Pending;
                    }
                    if let Some(memory) = &mut self.memory {
                        self.stream.poll_release(context);
                        ready!(memory.poll(context));
                        if self.stream.has_hung_up() {
                            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                        }
                        continue;
                    }
                    let received = self.poll_receive(context);
                    if received.is_pending() && self.received.is_empty() {
                        // An idle connection keeps no room for what may come.
                        self.received = BytesMut::new();
                    }
                    if ready!(received)? == 0 {
                        return Poll::Ready(Ok(()));
                    }
                    self.bounds.charge.count_receive();
                }
                State::HandedOver { is_http2: false } => {
                    let read = Pin::new(&mut self.stream).poll_read(context, out);
                    if read.is_pending() && !self.signals.is_busy() {
                        return self.poll_idle(context);
                    }
                    return read;
                }
                State::Ended => return Poll::Ready(Ok(())),
            }
        }
    }
}

impl<S: Socket> AsyncRead for Lane<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_read_as_handed(context, out)
    }
}

/// Whether `received`, as far as it has come, is `whole` or begins with it.
fn begins_as(whole: &[u8], received: &[u8]) -> bool {
    whole.iter().zip(received).all(|(one, other)| one == other)
}
