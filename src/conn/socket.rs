//! Socket operations that the fast path needs besides reading and writing.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::Context;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio_io_timeout::TimeoutStream;

use super::metered_socket::MeteredSocket;
use crate::store::SendfileSource;

/// A connection to a client. The methods do not wait; after `WouldBlock`, [`AsyncWrite::poll_write`] of no bytes does.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// True if written bytes may stay in a buffer until the underlying socket takes them or a flush.
    const IS_BUFFERED: bool;

    /// Sends bytes that are followed by others at once, so that both may share a packet. Returns how many were taken.
    fn send_with_more(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends bytes of a file, starting at offset `from`. Returns how many were taken.
    fn send_file(&self, file: &SendfileSource, from: u64) -> io::Result<u64>;

    /// Starts or stops holding back a partial packet until more bytes follow.
    fn set_cork(&self, hold: bool);

    /// Gives back the send queue memory of bytes that the client has taken, on a connection that is not being read.
    fn poll_release(&mut self, context: &mut Context<'_>);

    /// Returns true if the client has closed the connection, or its half of it, even if unread bytes are left.
    fn has_hung_up(&self) -> bool;
}

/// A socket of the tokio runtime.
pub(super) trait TokioSocket:
    AsFd + AsyncRead + AsyncWrite + std::fmt::Debug + Unpin + Send + Sync + 'static
{
    /// True if the socket sends packets.
    const IS_TCP: bool;

    /// Calls `write`, unless the socket is known to take nothing, and remembers if it would block.
    fn try_write_io<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T>;
}

impl TokioSocket for TcpStream {
    const IS_TCP: bool = true;

    fn try_write_io<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(Interest::WRITABLE, write)
    }
}

impl TokioSocket for UnixStream {
    const IS_TCP: bool = false;

    fn try_write_io<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(Interest::WRITABLE, write)
    }
}

impl<S: TokioSocket> Socket for Pin<Box<TimeoutStream<MeteredSocket<S>>>> {
    const IS_BUFFERED: bool = false;

    fn send_with_more(&self, bytes: &[u8]) -> io::Result<usize> {
        self.get_ref().try_to_write(bytes.len(), |socket, allowed| {
            let bytes = bytes.get(..allowed).unwrap_or(bytes);
            Ok(send(socket, bytes, SendFlags::MORE | SendFlags::NOSIGNAL)?)
        })
    }

    fn send_file(&self, file: &SendfileSource, from: u64) -> io::Result<u64> {
        let wanted = usize::try_from(file.next_chunk_bytes(from)).unwrap_or(usize::MAX);
        let sent = self.get_ref().try_to_write(wanted, |socket, allowed| file.send(socket.as_fd(), from, allowed))?;
        Ok(sent as u64)
    }

    fn set_cork(&self, hold: bool) {
        if let Ok(socket) = self.get_ref().socket()
            && S::IS_TCP
        {
            // If this fails, the bytes are sent in more packets.
            let _ = sockopt::set_tcp_cork(socket, hold);
        }
    }

    fn poll_release(&mut self, context: &mut Context<'_>) {
        self.as_mut().get_pin_mut().poll_release(context);
    }

    fn has_hung_up(&self) -> bool {
        self.get_ref().socket().map_or(true, has_hung_up)
    }
}

/// Returns true if the client has closed the connection, or its half of it, even if unread bytes are left.
pub(super) fn has_hung_up(socket: &impl AsFd) -> bool {
    let mut poll_fds = [PollFd::new(socket, PollFlags::RDHUP)];
    // Errors and hang-ups are reported unasked. If the call fails, the client counts as connected.
    poll(&mut poll_fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
