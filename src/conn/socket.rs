//! Socket operations that the fast path needs in addition to reading and writing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::Context;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpStream, UnixStream};

use crate::store::SendfileSource;

/// A connection to a client. The methods do not wait. After `WouldBlock`, [`AsyncWrite::poll_write`] with zero bytes
/// waits until the socket accepts bytes.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// True if written bytes may stay in a buffer above the underlying socket until a flush.
    const IS_BUFFERED: bool;

    /// Sends bytes and tells the kernel that more follow at once, so that both may share a packet. Returns the number
    /// of bytes that were accepted.
    fn send_with_more(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends bytes of a file, starting at offset `from`. Returns the number of bytes that were accepted.
    fn send_file(&self, file: &SendfileSource, from: u64) -> io::Result<u64>;

    /// Starts or stops holding back a partial packet until more bytes follow.
    fn set_cork(&self, hold: bool);

    /// Gives back the memory for sent bytes that the client has received. Must be called while the connection is not
    /// read, because reads do the same.
    fn poll_release(&mut self, context: &mut Context<'_>);

    /// Returns true if the client has closed the connection, or its half of it, even if unread bytes are left.
    fn has_hung_up(&self) -> bool;
}

/// A socket of the tokio runtime.
pub(super) trait TokioSocket:
    AsFd + AsyncRead + AsyncWrite + std::fmt::Debug + Unpin + Send + Sync + 'static
{
    /// True for a TCP socket.
    const IS_TCP: bool;

    /// Calls `write` unless the socket is known to accept no bytes. If `write` returns `WouldBlock`, the runtime
    /// records that.
    fn try_write_io<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T>;

    /// Removes the socket from the runtime and returns its descriptor.
    fn into_fd(self) -> io::Result<OwnedFd>;
}

impl TokioSocket for TcpStream {
    const IS_TCP: bool = true;

    fn try_write_io<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(Interest::WRITABLE, write)
    }

    fn into_fd(self) -> io::Result<OwnedFd> {
        self.into_std().map(Into::into)
    }
}

impl TokioSocket for UnixStream {
    const IS_TCP: bool = false;

    fn try_write_io<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(Interest::WRITABLE, write)
    }

    fn into_fd(self) -> io::Result<OwnedFd> {
        self.into_std().map(Into::into)
    }
}

/// Returns true if the client has closed the connection, or its half of it, even if unread bytes are left.
pub(super) fn has_hung_up(socket: &impl AsFd) -> bool {
    let mut poll_fds = [PollFd::new(socket, PollFlags::RDHUP)];
    // The kernel also reports errors and hang-ups. If the call fails, the client counts as connected.
    poll(&mut poll_fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
