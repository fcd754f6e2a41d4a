//! Sending an answer of the lane: head and body at once, or the body by the kernel.

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
}

impl Sending {
    pub(super) fn new(reply: Reply) -> Self {
        Self { reply, head_sent: 0, body_sent: 0, waited: false }
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

    /// Sends some of what is left.
    pub(super) fn poll(&mut self, stream: &mut impl Socket, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = self.poll_some(stream, context);
        self.waited |= sent.is_pending();
        sent
    }

    fn poll_some(&mut self, stream: &mut impl Socket, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let head = self.head_left();
        let of_head = head.len() as u64;
        let sent = match &self.reply.body {
            Content::Bytes(bytes) => {
                let from = usize::try_from(self.body_sent).unwrap_or(usize::MAX);
                let rest = [IoSlice::new(head), IoSlice::new(bytes.get(from..).unwrap_or_default())];
                ready!(Pin::new(stream).poll_write_vectored(context, &rest)).map(|written| written as u64)
            }
            Content::File(file) => {
                let sent = if head.is_empty() {
                    stream.send_file(file, self.body_sent)
                } else {
                    stream.send_first(head).map(|sent| sent as u64)
                };
                match sent {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        // Of nothing: it waits until the socket takes something, or for too long.
                        return Pin::new(stream).poll_write(context, &[]).map_ok(drop);
                    }
                    sent => sent,
                }
            }
        }?;
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        let of_head = sent.min(of_head);
        self.head_sent += usize::try_from(of_head).unwrap_or(usize::MAX);
        self.body_sent += sent - of_head;
        self.reply.sent(self.body_sent);
        Poll::Ready(Ok(()))
    }
}
