//! An encrypted connection, and a bound on what the TLS library receives without anything coming of it.
//!
//! The library joins the parts of a handshake message, also of one that comes after the handshake, in up to 64 KiB
//! of memory that it keeps.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::metered::Metered;
use super::socket::Socket;
use crate::store::Sendable;

/// Most bytes received without one decrypted: a record of 16 KiB (RFC 8446, section 5.2), and as much as a client's messages of
/// a handshake take without a certificate of its own.
const BARREN_BYTES: usize = 20 << 10;

/// Most bytes of an answer that are encrypted before the socket takes them: a record.
const BUFFER_BYTES: usize = 16 << 10;

/// A socket whose client must send what can be decrypted.
type Plain = Pin<Box<TimeoutStream<Metered<TcpStream>>>>;

/// An encrypted connection. Below the encryption the socket itself is watched for a client that takes nothing.
pub(super) struct Secure(Box<TlsStream<Counted<Plain>>>);

impl Secure {
    /// Shakes hands with a client that begins to speak TLS on `stream`.
    ///
    /// # Errors
    /// Those of the socket and of the TLS library; [`io::ErrorKind::InvalidData`] where the client's messages are too long.
    pub(super) async fn accept(acceptor: &TlsAcceptor, stream: Plain) -> io::Result<Self> {
        let stream = Counted { stream, barren_bytes: 0 };
        let limit = Some(BUFFER_BYTES);
        let accepted = acceptor.accept_with(stream, |session| session.set_buffer_limit(limit)).await?;
        Ok(Self(Box::new(accepted)))
    }
}

/// Counts what is read of a stream.
struct Counted<S> {
    stream: S,
    /// Bytes read since something was last decrypted.
    barren_bytes: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.barren_bytes > BARREN_BYTES {
            let text = "too many bytes of TLS that hold no data";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let before = out.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, out))?;
        self.barren_bytes += out.filled().len() - before;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl AsyncRead for Secure {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(context, out))?;
        if out.filled().len() > before {
            self.0.get_mut().0.barren_bytes = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Secure {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Everything goes through the encryption; of [`http::Options::is_https`](crate::http::Options::is_https) the lane answers
/// with no file.
impl Socket for Secure {
    const KEEPS: bool = true;

    fn send_first(&self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn send_file(&self, _file: &Sendable, _from: u64) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn hold_parts(&self, _hold: bool) {}

    fn poll_release(&mut self, context: &mut Context<'_>) {
        self.0.get_mut().0.stream.poll_release(context);
    }

    fn has_hung_up(&self) -> bool {
        self.0.get_ref().0.stream.has_hung_up()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn what_holds_no_data_is_read_up_to_a_bound() {
        let endless = tokio::io::repeat(22);
        let mut counted = Counted { stream: endless, barren_bytes: 0 };
        let mut read = Vec::new();
        let error = counted.read_to_end(&mut read).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!((BARREN_BYTES..2 * BARREN_BYTES + 1).contains(&read.len()), "{}", read.len());
        counted.barren_bytes = 0;
        assert!(counted.read_u8().await.is_ok());
    }
}
