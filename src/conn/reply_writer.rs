//! Sends a reply of the fast path: head and body in one write, or the body of a file with `sendfile`.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::socket::Socket;
use crate::fastpath::{Reply, ReplyBody};

/// A reply that is being sent.
pub(super) struct ReplyWriter {
    reply: Reply,
    head_sent: usize,
    body_sent: u64,
    /// True if a write had to wait for the client.
    pub(super) has_blocked: bool,
    /// Reads the next part of the file into the page cache.
    prefetch: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

/// Maximum number of body bytes that are written at once.
const MAX_WRITE_BYTES: usize = 1 << 20;

impl ReplyWriter {
    pub(super) fn new(reply: Reply) -> Self {
        Self { reply, head_sent: 0, body_sent: 0, has_blocked: false, prefetch: None }
    }

    fn remaining_head(&self) -> &[u8] {
        self.reply.head.get(self.head_sent..).unwrap_or_default()
    }

    pub(super) fn is_done(&self) -> bool {
        let length = match &self.reply.body {
            ReplyBody::Bytes(bytes) => bytes.len() as u64,
            ReplyBody::File(file) => file.meta().len,
        };
        self.remaining_head().is_empty() && self.body_sent >= length
    }

    /// Ready when the stream has passed all bytes on to the socket.
    pub(super) fn poll_flush<S: Socket>(&mut self, stream: &mut S, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !S::IS_BUFFERED {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(stream).poll_flush(context);
        self.has_blocked |= flushed.is_pending();
        flushed
    }

    /// Sends some of the remaining bytes and returns their number. If the rest of a file cannot be sent, this is logged
    /// and counted.
    pub(super) fn poll_send(&mut self, stream: &mut impl Socket, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let sent = match self.reply.body {
            ReplyBody::Bytes(_) => self.poll_bytes(stream, context),
            ReplyBody::File(_) => self.poll_file(stream, context),
        };
        let had_waited = self.has_blocked;
        self.has_blocked |= sent.is_pending();
        let sent = ready!(sent)?;
        if had_waited {
            // `sendfile` bypasses the stream. This flush resets the stream's write timer, which would otherwise still
            // count from the first wait.
            let _ = Pin::new(stream).poll_flush(context)?;
        }
        let head_bytes = sent.min(self.remaining_head().len() as u64);
        self.head_sent += usize::try_from(head_bytes).unwrap_or(usize::MAX);
        self.body_sent += sent - head_bytes;
        let is_complete = self.is_done();
        self.reply.record_sent(self.body_sent, is_complete);
        Poll::Ready(Ok(sent))
    }

    fn poll_bytes(&mut self, stream: &mut impl Socket, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let ReplyBody::Bytes(bytes) = &self.reply.body else { return Poll::Ready(Ok(0)) };
        let body = bytes.get(usize::try_from(self.body_sent).unwrap_or(usize::MAX)..).unwrap_or_default();
        let body = body.get(..MAX_WRITE_BYTES).unwrap_or(body);
        let head = self.remaining_head();
        let sent = if body.is_empty() {
            Pin::new(stream).poll_write(context, head)
        } else {
            Pin::new(stream).poll_write_vectored(context, &[IoSlice::new(head), IoSlice::new(body)])
        };
        match ready!(sent)? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            sent => Poll::Ready(Ok(sent as u64)),
        }
    }

    /// Sends the head, the body without its last byte, and then the last byte. The socket is corked during these
    /// writes, so that they share packets.
    fn poll_file(&mut self, stream: &mut impl Socket, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let ReplyBody::File(file) = &self.reply.body else { return Poll::Ready(Ok(0)) };
        let head = self.remaining_head();
        let sent = if head.is_empty() {
            if self.prefetch.is_none() && !file.is_next_chunk_cached(self.body_sent) {
                self.prefetch = Some(Box::pin(file.prefetch(self.body_sent)));
            }
            let prefetched =
                self.prefetch.as_mut().map_or(Poll::Ready(Ok(())), |reading| reading.as_mut().poll(context));
            let prefetched = ready!(prefetched);
            self.prefetch = None;
            if let Err(error) = prefetched {
                self.reply.report_body_failure(&error);
                return Poll::Ready(Err(error));
            }
            if self.body_sent == 0 {
                stream.set_cork(true);
            }
            let sent = stream.send_file(file, self.body_sent);
            if sent.as_ref().is_ok_and(|sent| self.body_sent + sent >= file.meta().len) {
                stream.set_cork(false);
            }
            sent
        } else {
            stream.send_with_more(head).map(|sent| sent as u64)
        };
        match sent {
            Ok(0) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            // A write of zero bytes waits until the socket accepts bytes, or fails after the write timeout.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Pin::new(stream).poll_write(context, &[]).map_ok(|_| 0)
            }
            Err(error) => {
                if !is_client_disconnect(&error) {
                    self.reply.report_body_failure(&error);
                }
                Poll::Ready(Err(error))
            }
            sent => Poll::Ready(sent),
        }
    }
}

/// Returns true if `error` means that the client or the network ended the connection.
fn is_client_disconnect(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
    )
}
