//! The library's answers on their way through the lane.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;
use tokio::time::Instant;

use super::{Lane, Socket, State, TURN_BYTES, give_way};

impl<S: Socket> Lane<S> {
    /// Ready when nothing of the lane's own answer is left to be sent.
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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
    pub(super) fn poll_turn(&mut self, sent: u64, context: &mut Context<'_>) -> Poll<()> {
        self.turn_bytes += sent;
        if self.turn_bytes < TURN_BYTES {
            return Poll::Ready(());
        }
        self.turn_bytes = 0;
        give_way(context);
        Poll::Pending
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
            State::HandedOver { is_http2: true } => self.bounds.charge.flushed(),
            State::Between | State::Answering | State::HandedOver { is_http2: false } | State::Ended => {}
        }
        self.unsent.end();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
