//! The lane that most requests take: between the socket and the HTTP library, it answers what needs no waiting.
//!
//! The library sees a connection on which only the other requests arrive, if there ever is one. The lane holds back every
//! byte until a request's head is complete, and asks [`quick::look`] what to do: answer it here, or hand exactly this head to the
//! library and hold back what follows until its answer has left. What is no plain HTTP/1 request (one with a body,
//! HTTP/2, nonsense) is the library's from there on, and so is the rest of the connection.
//!
//! Small stored blocks: 2 to 5 times the requests per second of the library and router alone (docs/PERFORMANCE.md).

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};
use tokio_util::io::poll_read_buf;

use super::connections::HEADER_BYTES;
use super::sending::Sending;
use super::serving::Follower;
use super::signals::{Signals, Unsent};
use super::socket::Socket;
use crate::http::quick::{self, Received};

/// Least room for what is received: a browser's head, or dozens of curl's. A connection keeps it.
const READ_BYTES: usize = 2 << 10;

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
    /// Nobody's: what came makes no sense here.
    Ended,
}

/// A connection with the lane in front.
pub(super) struct Lane<S> {
    stream: S,
    follower: Follower,
    peer: Option<IpAddr>,
    state: State,
    /// Whether no request has come yet.
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
}

impl<S: Socket> Lane<S> {
    /// `signals` are ended by whoever sees the last of the library's answer.
    pub(super) fn new(
        stream: S,
        follower: Follower,
        peer: Option<IpAddr>,
        signals: Signals,
        unsent: Unsent,
        header_timeout: Duration,
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
            idle: Idle::new(header_timeout),
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
                self.received.advance(length);
                if self.received.is_empty() && self.received.capacity() > 4 * READ_BYTES {
                    // A long head's memory is not kept.
                    self.received = BytesMut::new();
                }
                self.idle.begin(Instant::from_std(reply.started()));
                self.sending = Some(Sending::new(reply));
            }
            Received::Request(length, None) => {
                self.is_new = false;
                self.handing = length;
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
        self.handing = self.received.len();
        self.follower.let_go();
        self.state = State::HandedOver { is_http2 };
    }

    /// Ready when nothing of the lane's own answer is left to be sent.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(sending) = &mut self.sending {
            if sending.is_done() {
                ready!(sending.poll_flush(&mut self.stream, context))?;
                if sending.has_waited() {
                    self.idle.begin(Instant::now());
                }
                self.sending = None;
                break;
            }
            let sent = ready!(sending.poll(&mut self.stream, context))?;
            ready!(self.poll_turn(sent, context));
        }
        Poll::Ready(Ok(()))
    }

    /// Counts what was sent; pending where it is the turn of others.
    fn poll_turn(&mut self, sent: u64, context: &mut Context<'_>) -> Poll<()> {
        self.turn_bytes += sent;
        if self.turn_bytes < TURN_BYTES {
            return Poll::Ready(());
        }
        self.turn_bytes = 0;
        give_way(context);
        Poll::Pending
    }

    /// Receives into the lane's own memory; 0 bytes at the end.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.received.reserve(READ_BYTES);
        poll_read_buf(Pin::new(&mut self.stream), context, &mut self.received)
    }

    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = self.idle.poll(context);
        if ended.is_ready() {
            self.signals.expire();
        }
        ended
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
                    }
                    Poll::Pending => {
                        self.follower.let_go_of_old();
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
                    if self.received.is_empty() && ready!(self.poll_receive(context))? == 0 {
                        return Poll::Ready(Ok(()));
                    }
                    return Poll::Pending;
                }
                State::HandedOver { is_http2 } => {
                    let read = Pin::new(&mut self.stream).poll_read(context, out);
                    if read.is_pending() && !is_http2 && !self.signals.is_busy() {
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

impl<S: Socket> AsyncWrite for Lane<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.unsent.begin();
        ready!(self.poll_turn(0, context));
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.turn_bytes += written as u64;
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.unsent.begin();
        ready!(self.poll_turn(0, context));
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, parts))?;
        self.turn_bytes += written as u64;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// The library flushes when it has written all it has: after the last byte of an answer the lane goes on.
    ///
    /// It also flushes when it has written nothing. While the lane sends, that must not reach the stream, which would
    /// take it for progress of a client that takes nothing.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.sending.is_some() {
            return Poll::Ready(Ok(()));
        }
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        match self.state {
            State::Answering if self.handing == 0 && !self.signals.is_busy() => {
                self.state = State::Between;
                self.idle.begin(Instant::now());
                context.waker().wake_by_ref();
            }
            State::HandedOver { is_http2: false } if self.unsent.has_begun() => {
                self.idle.begin(Instant::now());
                context.waker().wake_by_ref();
            }
            State::Between | State::Answering | State::HandedOver { .. } | State::Ended => {}
        }
        self.unsent.end();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Whether `received`, as far as it has come, is `whole` or begins with it.
fn begins_as(whole: &[u8], received: &[u8]) -> bool {
    whole.iter().zip(received).all(|(one, other)| one == other)
}

/// Wakes the task again after all others that are ready, and those that become so until then.
fn give_way(context: &mut Context<'_>) {
    // Pending at first: from then on the runtime keeps it in mind.
    let _ = pin!(tokio::task::yield_now()).poll(context);
}

/// The time that a request's head may take, from the end of the answer before it.
struct Idle {
    limit: Duration,
    until: Instant,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Idle {
    fn new(limit: Duration) -> Self {
        Self { limit, until: Instant::now() + limit, sleep: None }
    }

    fn begin(&mut self, now: Instant) {
        self.until = now + self.limit;
    }

    /// The end of the connection when the time is over. The timer is set anew only when it has run out, which is far
    /// cheaper than at every request.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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
