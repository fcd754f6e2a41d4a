//! A TLS connection, with a limit on bytes received from which no data is decrypted.
//!
//! rustls joins the parts of a handshake message, even of one that comes after the handshake, in up to 64 KiB of memory
//! that it keeps.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::metered_socket::MeteredSocket;
use super::socket::Socket;
use crate::store::SendfileSource;

/// Maximum number of bytes received without one decrypted: a record of 16 KiB (RFC 8446, section 5.2), and the
/// handshake messages of a client without a certificate.
const MAX_UNDECRYPTED_BYTES: usize = 20 << 10;

/// Maximum number of bytes of an answer that are encrypted before the socket takes them: one record.
const TLS_BUFFER_BYTES: usize = 16 << 10;

/// The TCP socket below TLS, which carries encrypted bytes.
type MeteredTcpSocket = Pin<Box<TimeoutStream<MeteredSocket<TcpStream>>>>;

/// A TLS connection. The write timeout of the TCP socket below it applies to a client that takes nothing.
pub(super) struct TlsSocket(Box<TlsStream<CiphertextLimiter<MeteredTcpSocket>>>);

impl TlsSocket {
    /// Performs the TLS handshake with the client on `stream`.
    ///
    /// # Errors
    /// Those of the socket and of rustls; [`io::ErrorKind::InvalidData`] if the client's messages are too long.
    pub(super) async fn accept(acceptor: &TlsAcceptor, stream: MeteredTcpSocket) -> io::Result<Self> {
        let stream = CiphertextLimiter { stream, undecrypted_bytes: 0 };
        let limit = Some(TLS_BUFFER_BYTES);
        let accepted = acceptor.accept_with(stream, |session| session.set_buffer_limit(limit)).await?;
        Ok(Self(Box::new(accepted)))
    }
}

/// Counts the bytes read from a stream and fails after too many without decrypted data.
struct CiphertextLimiter<S> {
    stream: S,
    /// Bytes read since data was last decrypted.
    undecrypted_bytes: usize,
}

impl<S: AsyncRead + Unpin> AsyncRead for CiphertextLimiter<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.undecrypted_bytes > MAX_UNDECRYPTED_BYTES {
            let text = "too many TLS bytes without decrypted data";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let before = out.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, out))?;
        self.undecrypted_bytes += out.filled().len() - before;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CiphertextLimiter<S> {
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

impl AsyncRead for TlsSocket {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(context, out))?;
        if out.filled().len() > before {
            self.0.get_mut().0.undecrypted_bytes = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsSocket {
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

/// All bytes must be encrypted, so these calls are unsupported. With
/// [`http::HttpOptions::is_https`](crate::http::HttpOptions::is_https), the fast path answers with no file.
impl Socket for TlsSocket {
    const IS_BUFFERED: bool = true;

    fn send_with_more(&self, _bytes: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn send_file(&self, _file: &SendfileSource, _from: u64) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_cork(&self, _hold: bool) {}

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
    async fn bytes_without_data_are_read_up_to_a_limit() {
        let endless = tokio::io::repeat(22);
        let mut limited = CiphertextLimiter { stream: endless, undecrypted_bytes: 0 };
        let mut read = Vec::new();
        let error = limited.read_to_end(&mut read).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert!((MAX_UNDECRYPTED_BYTES..2 * MAX_UNDECRYPTED_BYTES + 1).contains(&read.len()), "{}", read.len());
        limited.undecrypted_bytes = 0;
        assert!(limited.read_u8().await.is_ok());
    }
}
