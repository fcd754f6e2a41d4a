//! What hyper reads from and writes to a [`FastConnection`], as if it were the socket.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::super::socket::Socket;
use super::receive_buffer::READ_BYTES;
use super::{FastConnection, FastPathEnd, ReadState};

/// Interval of the checks for a client that has hung up.
const HANG_UP_INTERVAL: Duration = Duration::from_secs(1);

impl<S: Socket> FastConnection<S> {
    fn poll_read_for_hyper(&mut self, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.received.handoff_bytes > 0 {
                self.received.read_handoff(out);
                return Poll::Ready(Ok(()));
            }
            match &self.state {
                ReadState::BetweenRequests => match ready!(self.poll_fast_path(context))? {
                    FastPathEnd::HandOver => {}
                    FastPathEnd::Closed => return Poll::Ready(Ok(())),
                },
                ReadState::HyperAnswering => return self.poll_end_while_answering(context),
                ReadState::Http2(_) => {
                    if !ready!(self.poll_receive_http2(context))? {
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
    }

    /// Ready at the end of the stream, while hyper answers an HTTP/1 request. Received requests stay in the buffer until
    /// hyper's response is flushed, which wakes this task.
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

    /// Receives frames of an HTTP/2 connection until hyper may read some of them. Returns false at the end of the stream.
    fn poll_receive_http2(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            let ReadState::Http2(admission) = &mut self.state else { return Poll::Ready(Ok(false)) };
            let admitted = admission.poll_admit(&mut self.received.bytes, &mut self.stream, context);
            self.received.handoff_bytes = ready!(admitted)?;
            if self.received.handoff_bytes > 0 {
                return Poll::Ready(Ok(true));
            }
            let received = self.poll_receive(context);
            if received.is_pending() && self.received.bytes.is_empty() {
                // An idle connection keeps no receive buffer.
                self.received.bytes = BytesMut::new();
            }
            if ready!(received)? == 0 {
                return Poll::Ready(Ok(false));
            }
            self.account.memory.count_read();
        }
    }

    /// Prepares to write what hyper has: marks the connection as unflushed. Pending if it must yield to other tasks.
    fn poll_begin_write(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.unflushed.is_none() {
            self.unflushed = self.unflushed_counter.upgrade();
        }
        self.poll_yield(0, context)
    }

    /// Counts the bytes that a write of hyper has written.
    fn count_written(&mut self, write: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let written = ready!(write)?;
        self.bytes_since_yield += written as u64;
        Poll::Ready(Ok(written))
    }

    /// Fails if the client has hung up while hyper answers and hyper cannot see that, because the end of the stream
    /// lies behind further requests or behind the body of the request. hyper flushes at each of its polls, and thereby
    /// calls this method.
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

    /// Flushes the stream. After the last byte of a response, the fast path continues: hyper flushes when it has written
    /// everything.
    ///
    /// hyper also flushes when it has written nothing. While the fast path sends, such a flush must not reach the
    /// stream, whose write timeout would start again although the client takes nothing.
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
