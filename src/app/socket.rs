//! What the lane asks of a socket besides reading and writing.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::Context;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio_io_timeout::TimeoutStream;

use super::metered::Metered;
use crate::store::Sendable;

/// A connection to a client. Its methods do not wait; after `WouldBlock`, [`AsyncWrite::poll_write`] of no bytes does.
pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {
    /// Whether it keeps what it has taken until the socket below takes it, or it is flushed.
    const KEEPS: bool;

    /// Sends bytes that others follow at once, so that both may share a packet; returns how many were taken.
    fn send_first(&self, bytes: &[u8]) -> io::Result<usize>;

    /// Sends bytes of a file, from `from` on; returns how many were taken.
    fn send_file(&self, file: &Sendable, from: u64) -> io::Result<u64>;

    /// From now on has, or no longer has, what fills no packet wait for what follows it.
    fn hold_parts(&self, hold: bool);

    /// Has what the client has taken of the send queue given back, where nothing is read.
    fn poll_release(&mut self, context: &mut Context<'_>);

    /// Whether the client has closed the connection, or its half of it, although not all that it sent has been read.
    fn has_hung_up(&self) -> bool;
}

/// A socket of the runtime.
pub(super) trait RuntimeSocket:
    AsFd + AsyncRead + AsyncWrite + std::fmt::Debug + Unpin + Send + Sync + 'static
{
    /// Whether it is cut into packets.
    const HAS_PACKETS: bool;

    /// Does what writes, unless the socket is known to take nothing; keeps in mind what it says of that.
    fn try_to_write<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T>;
}

impl RuntimeSocket for TcpStream {
    const HAS_PACKETS: bool = true;

    fn try_to_write<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(Interest::WRITABLE, write)
    }
}

impl RuntimeSocket for UnixStream {
    const HAS_PACKETS: bool = false;

    fn try_to_write<T>(&self, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(Interest::WRITABLE, write)
    }
}

impl<S: RuntimeSocket> Socket for Pin<Box<TimeoutStream<Metered<S>>>> {
    const KEEPS: bool = false;

    fn send_first(&self, bytes: &[u8]) -> io::Result<usize> {
        self.get_ref().try_to_write(bytes.len(), |socket, allowed| {
            let bytes = bytes.get(..allowed).unwrap_or(bytes);
            Ok(send(socket, bytes, SendFlags::MORE | SendFlags::NOSIGNAL)?)
        })
    }

    fn send_file(&self, file: &Sendable, from: u64) -> io::Result<u64> {
        let wanted = usize::try_from(file.piece_bytes(from)).unwrap_or(usize::MAX);
        let sent = self.get_ref().try_to_write(wanted, |socket, allowed| file.send(socket.as_fd(), from, allowed))?;
        Ok(sent as u64)
    }

    fn hold_parts(&self, hold: bool) {
        if let Ok(socket) = self.get_ref().socket()
            && S::HAS_PACKETS
        {
            // What cannot be held is sent in more packets.
            let _ = sockopt::set_tcp_cork(socket, hold);
        }
    }

    fn poll_release(&mut self, context: &mut Context<'_>) {
        self.as_mut().get_pin_mut().poll_release(context);
    }

    fn has_hung_up(&self) -> bool {
        let Ok(socket) = self.get_ref().socket() else { return true };
        let mut looked = [PollFd::new(socket, PollFlags::RDHUP)];
        // Errors and hang-ups are told without being asked for. Where the kernel does not tell, the client is there.
        poll(&mut looked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}
