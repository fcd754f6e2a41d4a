//! TLS termination: the certificate, the handshake, responses to clients that do not speak TLS, and encrypted
//! connections.
//!
//! A handshake in progress takes 71 KiB, so the number of concurrent handshakes is limited. A client that has sent
//! nothing yet does not count towards the limit.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ConfigBuilder, ServerConfig, WantsVerifier};
use tokio_rustls::server::TlsStream;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::metered_socket::{MeteredSocket, TimedSocket};
use super::so_meminfo::send_queue_bytes;
use super::socket::Socket;
use crate::runtime::fair_queue::{ClientId, ClientQuota, CostBasis, FairPermit, FairSemaphore};
use crate::runtime::watched_files::WatchedFiles;
use crate::store::SendfileSource;
use crate::telemetry::metrics::{self, HandshakeResult};
use crate::{config, http};

/// First byte of every TLS connection: a handshake record (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// Maximum number of bytes that are read from a client without TLS before the connection is closed.
const MAX_PLAINTEXT_BYTES: u64 = 64 << 10;

/// Time for a client without TLS to receive the response and close the connection.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval at which the server checks whether the client has received the response.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Response to a request without TLS.
const PLAINTEXT_RESPONSE: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 46\r\n\
    connection: close\r\n\r\nThis port speaks TLS: use https, not http://.\n";

/// Maximum number of bytes that the server receives without decrypting any data. It fits a record of 16 KiB (RFC 8446,
/// section 5.2) and the handshake messages of a client without a certificate.
const MAX_UNDECRYPTED_BYTES: usize = 20 << 10;

/// Maximum number of encrypted bytes that wait for the socket to accept them: one record.
const TLS_BUFFER_BYTES: usize = 16 << 10;

/// Maximum number of concurrent handshakes for one address: half of all handshakes. If many addresses begin handshakes,
/// each may have at most the number that is still free.
const HANDSHAKES_PER_CLIENT: ClientQuota =
    ClientQuota { alone: config::TlsConfig::MAX_HANDSHAKES / 2, among_others: config::TlsConfig::MAX_HANDSHAKES / 2 };

/// Accepts TLS connections.
pub(crate) struct TlsTerminator {
    server_config: WatchedFiles<ServerConfig>,
    handshake_timeout: Duration,
    /// Limits the handshakes in progress to [`config::TlsConfig::MAX_HANDSHAKES`], with a quota for each address. A
    /// client that begins many handshakes and finishes none thus leaves some to other clients.
    handshakes: FairSemaphore,
    /// Hashes addresses to client ids. The random seed keeps an attacker from choosing an address with another client's
    /// id.
    hasher: RandomState,
}

impl TlsTerminator {
    /// Reads the certificate and key, and reads them again when they change. Returns `None` if none are configured.
    ///
    /// # Errors
    /// Returns a message if they cannot be used.
    pub(crate) fn open(config: &config::TlsConfig) -> Result<Option<Self>, String> {
        if !config.is_enabled() {
            return Ok(None);
        }
        metrics::describe_tls();
        let is_first = Cell::new(true);
        let parse = move |[certificate, key]: [&str; 2]| {
            let (server_config, validity) = parse_identity(certificate, key)?;
            // At startup, a certificate outside its validity period is used, with a warning. Later it does not replace
            // the one in use.
            match (validity_error(&validity, unix_time()), is_first.replace(false)) {
                (Some(fault), true) => {
                    tracing::warn!("the TLS certificate {fault}: clients will not trust this server");
                }
                (Some(fault), false) => return Err(format!("the certificate {fault}")),
                (None, _) => {}
            }
            metrics::tls_certificate(validity.end.as_secs());
            Ok(server_config)
        };
        let paths: [&Path; 2] = [&config.certificate, &config.key];
        Ok(Some(Self {
            server_config: WatchedFiles::open(paths, "certificate", metrics::tls_reload_failed, parse)?,
            handshake_timeout: config.handshake_timeout,
            handshakes: FairSemaphore::new(config::TlsConfig::MAX_HANDSHAKES, HANDSHAKES_PER_CLIENT, CostBasis::Units),
            hasher: RandomState::new(),
        }))
    }

    async fn acquire_handshake(&self, peer: IpAddr) -> FairPermit {
        let flow = ClientId::new(self.hasher.hash_one(http::network_of(peer))).flow(0);
        if let Some(permit) = self.handshakes.try_acquire(flow, 1) {
            return permit;
        }
        let _waiting = metrics::QueueWaitTimer::begin(metrics::QueueLabel::Handshake);
        self.handshakes.acquire(flow, 1).await
    }

    /// Performs the handshake on a connection, whose send queue `meter` limits. Returns `None` if the handshake fails
    /// or the client ends the connection. A failure is logged and counted.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        meter: impl FnOnce(TcpStream) -> MeteredSocket<TcpStream>,
        send_timeout: Duration,
        peer: IpAddr,
    ) -> Option<TlsSocket> {
        let accepted = self.try_accept(stream, meter, send_timeout, peer).await;
        metrics::tls_handshake(match &accepted {
            Ok(None) => return None,
            Ok(Some(_)) => HandshakeResult::Done,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::debug!(%peer, "TLS handshake took too long");
                HandshakeResult::TimedOut
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "TLS handshake failed");
                HandshakeResult::Failed
            }
        });
        accepted.ok().flatten()
    }

    /// Like [`Self::accept`], but returns an error if the handshake or the socket fails. Returns `None` if the client
    /// does not speak TLS, or closed the connection without sending a byte, as some health checks do.
    async fn try_accept(
        &self,
        mut stream: TcpStream,
        meter: impl FnOnce(TcpStream) -> MeteredSocket<TcpStream>,
        send_timeout: Duration,
        peer: IpAddr,
    ) -> io::Result<Option<TlsSocket>> {
        let step_timeout = self.handshake_timeout;
        // Until bytes are sent, closing resets the connection. After an orderly close, the kernel would keep the
        // connection of a client that acknowledges nothing for minutes.
        set_socket_linger(&stream, Some(Duration::ZERO))?;
        match timeout(step_timeout, peek_first_byte(&stream)).await? {
            None => return Ok(None),
            Some(HANDSHAKE_RECORD) => {}
            Some(first) => {
                timeout(step_timeout, refuse_plaintext(&mut stream, first)).await??;
                tracing::debug!(%peer, "client does not speak TLS");
                metrics::tls_handshake(HandshakeResult::Plaintext);
                return Ok(None);
            }
        }
        // The wait for a free handshake slot has its own time limit.
        let _permit = timeout(step_timeout, self.acquire_handshake(peer)).await?;
        let acceptor = TlsAcceptor::from(self.server_config.current());
        set_socket_linger(&stream, None)?;
        let limited = CiphertextLimiter { stream: meter(stream).with_timeout(send_timeout), undecrypted_bytes: 0 };
        let handshake = acceptor.accept_with(limited, |session| session.set_buffer_limit(Some(TLS_BUFFER_BYTES)));
        Ok(Some(TlsSocket(Box::new(timeout(step_timeout, handshake).await??))))
    }
}

/// Returns the first byte of the connection without removing it from the stream. Returns `None` if the connection ends
/// first.
async fn peek_first_byte(stream: &TcpStream) -> Option<u8> {
    let mut first = [0];
    let count = stream.peek(&mut first).await.unwrap_or_default();
    first.first().copied().filter(|_| count > 0)
}

/// Tells a client that seems to speak HTTP that it must use TLS. Other clients would not understand the response.
async fn refuse_plaintext(stream: &mut TcpStream, first: u8) -> io::Result<()> {
    if first.is_ascii_uppercase() {
        stream.write_all(PLAINTEXT_RESPONSE).await?;
        stream.shutdown().await?;
        // If the client does not receive the response, the kernel must not keep it for minutes.
        set_socket_linger(&*stream, Some(Duration::ZERO))?;
        // If a connection is closed with unread bytes, it is reset, and the response is lost.
        let mut unread = (&mut *stream).take(MAX_PLAINTEXT_BYTES);
        let deadline = Instant::now() + LINGER_TIMEOUT;
        let _ = timeout(LINGER_TIMEOUT, tokio::io::copy(&mut unread, &mut tokio::io::sink())).await;
        let is_drained = loop {
            match send_queue_bytes(stream.as_fd(), true) {
                None | Some(0) => break true,
                Some(_) if Instant::now() >= deadline => break false,
                Some(_) => sleep(DRAIN_POLL_INTERVAL).await,
            }
        };
        if is_drained {
            let _ = set_socket_linger(&*stream, None);
        }
    }
    Ok(())
}

/// Parses a certificate and its key. Returns them with the certificate's validity period, since the Unix epoch.
fn parse_identity(certificate: &str, key: &str) -> Result<(ServerConfig, Range<Duration>), String> {
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| format!("the certificate is not valid PEM: {error}"))?;
    let leaf = chain.first().ok_or("the certificate file contains no PEM certificate")?;
    let leaf = Certificate::from_der(leaf).map_err(|error| format!("the certificate cannot be read: {error}"))?;
    let validity = leaf.tbs_certificate().validity();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|error| format!("the key file contains no PEM private key without a passphrase: {error}"))?;
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(ConfigBuilder::<ServerConfig, WantsVerifier>::with_no_client_auth);
    let mut config = config
        .and_then(|config| config.with_single_cert(chain, key))
        .map_err(|error| format!("certificate and key cannot be used together: {error}"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // With tickets, clients keep the sessions, and memory here does not grow with the number of sessions.
    config.ticketer =
        ring::Ticketer::new().map_err(|error| format!("cannot create the key for session tickets: {error}"))?;
    Ok((config, validity.not_before.to_unix_duration()..validity.not_after.to_unix_duration()))
}

/// Returns the reason why clients would not trust a certificate with this `validity`, if they would not. `now` is the
/// time since the Unix epoch.
fn validity_error(validity: &Range<Duration>, now: Duration) -> Option<String> {
    let time_until_valid = validity.start.saturating_sub(now);
    if validity.end <= now {
        Some("has expired".to_owned())
    } else if time_until_valid.is_zero() {
        None
    } else {
        Some(format!("is not valid before {} seconds from now", time_until_valid.as_secs() + 1))
    }
}

/// Returns the time since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "certificates expire by the clock")]
fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A TLS connection. The write timeout of the TCP socket below ends the connection of a client that takes nothing.
pub(super) struct TlsSocket(Box<TlsStream<CiphertextLimiter<TimedSocket<TcpStream>>>>);

/// Counts the bytes read from a stream, and fails if too many arrive without any decrypted data. rustls joins the parts
/// of a handshake message in a buffer of up to 64 KiB, which it keeps. Clients may send such messages even after the
/// handshake.
struct CiphertextLimiter<S> {
    stream: S,
    /// Number of bytes read since data was last decrypted.
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

/// Implements [`AsyncWrite`] by forwarding to a field.
macro_rules! write_through {
    ([$($bound:tt)*] $type:ty, $field:tt) => {
impl<$($bound)*> AsyncWrite for $type {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.$field).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.$field).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.$field.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.$field).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.$field).poll_shutdown(context)
    }
}
    };
}

write_through!([S: AsyncWrite + Unpin] CiphertextLimiter<S>, stream);
write_through!([] TlsSocket, 0);

/// Calls that bypass encryption are unsupported. The fast path does not make them: if
/// [`http::HttpOptions::is_https`](crate::http::HttpOptions::is_https) is set, it never replies with a file.
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
