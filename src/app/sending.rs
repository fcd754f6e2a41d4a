//! Sending an answer of the lane: head and body at once, or the body by the kernel.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::socket::Socket;
use crate::http::quick::{Content, Reply};

/// An answer of the lane on its way.
pub(super) struct Sending {
    reply: Reply,
    head_sent: usize,
    body_sent: u64,
    waited: bool,
    /// The kernel reads what comes next of a file.
    fetching: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

/// Most bytes that are written at once.
const PIECE_BYTES: usize = 1 << 20;

impl Sending {
    pub(super) fn new(reply: Reply) -> Self {
        Self { reply, head_sent: 0, body_sent: 0, waited: false, fetching: None }
    }

    fn head_left(&self) -> &[u8] {
        self.reply.head.get(self.head_sent..).unwrap_or_default()
    }

    pub(super) fn is_done(&self) -> bool {
        let length = match &self.reply.body {
            Content::Bytes(bytes) => bytes.len() as u64,
            Content::File(file) => file.meta().len,
        };
        self.head_left().is_empty() && self.body_sent >= length
    }

    /// Whether the client was slower than this.
    pub(super) fn has_waited(&self) -> bool {
        self.waited
    }

    /// Ready when nothing of it is kept on its way to the socket.
    pub(super) fn poll_flush<S: Socket>(&mut self, stream: &mut S, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !S::KEEPS {
            return Poll::Ready(Ok(()));
        }
        let flushed = Pin::new(stream).poll_flush(context);
        self.waited |= flushed.is_pending();
        flushed
    }

    /// Sends some of what is left; how much. A file that cannot be sent to its end is told in log and metrics.
    pub(super) fn poll(&mut self, stream: &mut impl Socket, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let sent = match self.reply.body {
            Content::Bytes(_) => self.poll_bytes(stream, context),
            Content::File(_) => self.poll_file(stream, context),
        };
        let had_waited = self.waited;
        self.waited |= sent.is_pending();
        let sent = ready!(sent)?;
        if had_waited {
            // What the kernel sends goes past the stream, which would count the time from the first wait on.
            let _ = Pin::new(stream).poll_flush(context)?;
        }
        let of_head = sent.min(self.head_left().len() as u64);
        self.head_sent += usize::try_from(of_head).unwrap_or(usize::MAX);
        self.body_sent += sent - of_head;
        let is_all = self.is_done();
        self.reply.sent(self.body_sent, is_all);
        Poll::Ready(Ok(sent))
    }

    fn poll_bytes(&mut self, stream: &mut impl Socket, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let Content::Bytes(bytes) = &self.reply.body else { return Poll::Ready(Ok(0)) };
        let rest = bytes.get(usize::try_from(self.body_sent).unwrap_or(usize::MAX)..).unwrap_or_default();
        let rest = rest.get(..PIECE_BYTES).unwrap_or(rest);
        let head = self.head_left();
        let sent = if rest.is_empty() {
            Pin::new(stream).poll_write(context, head)
        } else {
            Pin::new(stream).poll_write_vectored(context, &[IoSlice::new(head), IoSlice::new(rest)])
        };
        match ready!(sent)? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            sent => Poll::Ready(Ok(sent as u64)),
        }
    }

    /// The head, the body but for its last byte, and that byte fill packets as if they were sent at once.
    fn poll_file(&mut self, stream: &mut impl Socket, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let Content::File(file) = &self.reply.body else { return Poll::Ready(Ok(0)) };
        let head = self.head_left();
        let sent = if head.is_empty() {
            if self.fetching.is_none() && !file.is_at_hand(self.body_sent) {
                self.fetching = Some(Box::pin(file.fetch(self.body_sent)));
            }
            let fetched =
                self.fetching.as_mut().map_or(Poll::Ready(Ok(())), |fetching| fetching.as_mut().poll(context));
            let fetched = ready!(fetched);
            self.fetching = None;
            if let Err(error) = fetched {
                self.reply.broken_off(&error);
                return Poll::Ready(Err(error));
            }
            if self.body_sent == 0 {
                stream.hold_parts(true);
            }
            let sent = stream.send_file(file, self.body_sent);
            if sent.as_ref().is_ok_and(|sent| self.body_sent + sent >= file.meta().len) {
                stream.hold_parts(false);
            }
            sent
        } else {
            stream.send_first(head).map(|sent| sent as u64)
        };
        match sent {
            Ok(0) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            // Of nothing: it waits until the socket takes something, or for too long.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Pin::new(stream).poll_write(context, &[]).map_ok(|_| 0)
            }
            Err(error) => {
                if !is_of_the_client(&error) {
                    self.reply.broken_off(&error);
                }
                Poll::Ready(Err(error))
            }
            sent => Poll::Ready(sent),
        }
    }
}

/// Whether it is the client who ended the connection, or the way there.
fn is_of_the_client(error: &io::Error) -> bool {
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
