//! What the lane asks of a socket besides reading and writing.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;

use rustix::net::{SendFlags, send};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio_io_timeout::TimeoutStream;

use crate::store::Sendable;

/// A connection to a client. Its methods do not wait; after `WouldBlock`, [`AsyncWrite::poll_write`] of no bytes does.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Sends bytes that others follow at once, so that both may share a packet; returns how many were taken.
    fn send_first(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends bytes of a file, from `from` on; returns how many were taken.
    fn send_file(&self, file: &Sendable, from: u64) -> io::Result<u64>;
}

/// A socket of the runtime.
pub(super) trait Watched: AsFd + AsyncRead + AsyncWrite + Send + Sync + 'static {
    /// Does what writes, unless the socket is known to take nothing; keeps in mind what it says of that.
    fn try_to_write<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T>;
}

impl Watched for TcpStream {
    fn try_to_write<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(Interest::WRITABLE, write)
    }
}

impl Watched for UnixStream {
    fn try_to_write<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(Interest::WRITABLE, write)
    }
}

impl<S: Watched> Socket for Pin<Box<TimeoutStream<S>>> {
    fn send_first(&self, bytes: &[u8]) -> io::Result<usize> {
        let socket = self.get_ref();
        socket.try_to_write(|| Ok(send(socket, bytes, SendFlags::MORE | SendFlags::NOSIGNAL)?))
    }

    fn send_file(&self, file: &Sendable, from: u64) -> io::Result<u64> {
        let socket = self.get_ref();
        socket.try_to_write(|| file.send(socket.as_fd(), from))
    }
}
