//! Writing to the client: answers of the fast path, and hyper's, which pass through.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::{FastConnection, HangUpTimer, MAX_BYTES_BEFORE_YIELD, ReadState, Socket, schedule_yield};

impl<S: Socket> FastConnection<S> {
    /// Ready when no bytes of an answer of the fast path are left to be sent.
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(sending) = &mut self.sending {
            if sending.is_done() {
                ready!(sending.poll_flush(&mut self.stream, context))?;
                if sending.has_blocked() {
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
    pub(super) fn poll_turn(&mut self, sent: u64, context: &mut Context<'_>) -> Poll<()> {
        self.bytes_since_yield += sent;
        if self.bytes_since_yield < MAX_BYTES_BEFORE_YIELD {
            return Poll::Ready(());
        }
        self.bytes_since_yield = 0;
        schedule_yield(context);
        Poll::Pending
    }
}

impl<S: Socket> FastConnection<S> {
    /// Fails if the client has hung up while hyper answers, where hyper cannot see that: the end of the stream lies
    /// behind further requests, or behind the body of this one. hyper flushes at each of its polls, and thus calls this.
    fn check_hang_up(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let may_be_hidden = match self.state {
            ReadState::HyperAnswering => !self.received.is_empty(),
            ReadState::HandedOver { is_http2 } => !is_http2,
            ReadState::BetweenRequests | ReadState::Ended => false,
        };
        if !may_be_hidden || !self.signals.is_busy() {
            self.hang_up_timer = HangUpTimer::default();
            return Ok(());
        }
        let stream = &self.stream;
        match self.hang_up_timer.poll(context, || stream.has_hung_up()) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionReset.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<S: Socket> AsyncWrite for FastConnection<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.unsent.mark_unflushed();
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
        self.unsent.mark_unflushed();
        ready!(self.poll_turn(0, context));
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, parts))?;
        self.bytes_since_yield += written as u64;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when it has written everything it has. After the last byte of an answer the fast path continues.
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
            ReadState::HandedOver { is_http2: false } if self.unsent.is_unflushed() => {
                self.header_timer.restart(Instant::now());
                context.waker().wake_by_ref();
            }
            ReadState::HandedOver { is_http2: true } => self.limits.memory.release_flushed(),
            ReadState::BetweenRequests
            | ReadState::HyperAnswering
            | ReadState::HandedOver { is_http2: false }
            | ReadState::Ended => {}
        }
        self.unsent.mark_flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
