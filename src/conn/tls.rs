//! TLS termination: the certificate in use, the handshake, and clients that do not speak TLS.
//!
//! A handshake in progress takes 71 KiB, so their number is limited. A client that has sent nothing yet does not count.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::net::sockopt::set_socket_linger;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ConfigBuilder, ServerConfig, WantsVerifier};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use super::metered_socket::MeteredSocket;
use super::so_meminfo::send_queue_bytes;
use super::tls_socket::TlsSocket;
use crate::config;
use crate::fair_queue::{ClientId, ClientQuota, CostBasis, FairPermit, FairSemaphore};
use crate::http;
use crate::metrics::{self, HandshakeResult};
use crate::watched_files::WatchedFiles;

/// First byte of every TLS connection: a handshake record (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// Maximum number of bytes that are read from a client without TLS before the connection is closed.
const MAX_PLAINTEXT_BYTES: u64 = 64 << 10;

/// Time for such a client to take the answer and close the connection.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause between two checks whether the client has taken the answer.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Response to a request without TLS.
const PLAINTEXT_RESPONSE: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 46\r\n\
    connection: close\r\n\r\nThis port speaks TLS: use https, not http://.\n";

/// One address may have half of the handshakes if it is alone; each of many addresses as many as it leaves free for the
/// next.
const HANDSHAKES_PER_CLIENT: ClientQuota =
    ClientQuota { alone: config::TlsConfig::MAX_HANDSHAKES / 2, among_others: config::TlsConfig::MAX_HANDSHAKES / 2 };

/// Accepts TLS connections.
pub(crate) struct TlsTerminator {
    server_config: WatchedFiles<ServerConfig>,
    handshake_timeout: Duration,
    /// Limits the handshakes in progress to [`config::TlsConfig::MAX_HANDSHAKES`]. Clients take turns, and a client that
    /// begins many and finishes none leaves some to others.
    handshakes: FairSemaphore,
    /// Randomly seeded, so that no client can choose an address that shares another's turns.
    hasher: RandomState,
}

/// Outcome of accepting a connection.
enum AcceptOutcome {
    Encrypted(TlsSocket),
    /// The client does not speak TLS.
    Plaintext,
    /// The client closed the connection before its first byte, as probes do that only connect.
    Closed,
}

impl fmt::Debug for TlsTerminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsTerminator").field("handshake_timeout", &self.handshake_timeout).finish_non_exhaustive()
    }
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
            let identity = TlsIdentity::parse(certificate, key)?;
            // At startup, a certificate outside its validity period is used, with a warning. Later it does not replace
            // the one in use.
            match (identity.validity_error(unix_time()), is_first.replace(false)) {
                (Some(fault), true) => {
                    tracing::warn!("the TLS certificate {fault}: clients will not trust this server");
                }
                (Some(fault), false) => return Err(format!("the certificate {fault}")),
                (None, _) => {}
            }
            metrics::tls_certificate(identity.not_after.as_secs());
            Ok(identity.config)
        };
        let paths: [&Path; 2] = [&config.certificate, &config.key];
        let current = WatchedFiles::open(paths, "certificate", metrics::tls_reload_failed, parse)?;
        Ok(Some(Self {
            server_config: current,
            handshake_timeout: config.handshake_timeout,
            handshakes: FairSemaphore::new(config::TlsConfig::MAX_HANDSHAKES, HANDSHAKES_PER_CLIENT, CostBasis::Units),
            hasher: RandomState::new(),
        }))
    }

    async fn acquire_handshake(&self, peer: IpAddr) -> FairPermit {
        let flow = (ClientId::new(self.hasher.hash_one(http::network_of(peer))), 0);
        if let Some(permit) = self.handshakes.try_acquire(flow, 1) {
            return permit;
        }
        let _waiting = metrics::QueueWaitTimer::begin(metrics::QueueLabel::Handshake);
        self.handshakes.acquire(flow, 1).await
    }

    /// Performs the handshake on a connection; `meter` limits its send queue. Returns `None` if no TLS connection
    /// results; a failure is then logged and counted.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        meter: impl FnOnce(TcpStream) -> MeteredSocket<TcpStream>,
        send_timeout: Duration,
        peer: IpAddr,
    ) -> Option<TlsSocket> {
        let step_timeout = self.handshake_timeout;
        let handshake = async {
            let mut stream = stream;
            // Nothing is sent yet. After an orderly close, the kernel would keep the connection of a client that
            // acknowledges nothing for minutes.
            set_socket_linger(&stream, Some(Duration::ZERO))?;
            match timeout(step_timeout, peek_first_byte(&stream)).await? {
                None => return Ok(AcceptOutcome::Closed),
                Some(HANDSHAKE_RECORD) => {}
                Some(first) => {
                    return timeout(step_timeout, refuse_plaintext(&mut stream, first))
                        .await?
                        .map(|()| AcceptOutcome::Plaintext);
                }
            }
            // The wait for other clients' handshakes has a time limit of its own.
            let _permit = timeout(step_timeout, self.acquire_handshake(peer)).await?;
            let acceptor = TlsAcceptor::from(self.server_config.current());
            set_socket_linger(&stream, None)?;
            let mut stream = TimeoutStream::new(meter(stream));
            stream.set_write_timeout(Some(send_timeout));
            timeout(step_timeout, TlsSocket::accept(&acceptor, Box::pin(stream))).await?.map(AcceptOutcome::Encrypted)
        };
        let result: io::Result<AcceptOutcome> = handshake.await;
        let (result, accepted) = match result {
            Ok(AcceptOutcome::Closed) => return None,
            Ok(AcceptOutcome::Encrypted(stream)) => (HandshakeResult::Done, Some(stream)),
            Ok(AcceptOutcome::Plaintext) => {
                tracing::debug!(%peer, "client does not speak TLS");
                (HandshakeResult::Plaintext, None)
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::debug!(%peer, "TLS handshake took too long");
                (HandshakeResult::TimedOut, None)
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "TLS handshake failed");
                (HandshakeResult::Failed, None)
            }
        };
        metrics::tls_handshake(result);
        accepted
    }
}

/// Returns the first byte of the connection, which stays to be read, or `None` if the connection ends before it.
async fn peek_first_byte(stream: &TcpStream) -> Option<u8> {
    let mut first = [0];
    let count = stream.peek(&mut first).await.unwrap_or_default();
    first.first().copied().filter(|_| count > 0)
}

/// Tells a client that seems to speak HTTP that it must use TLS. Other clients would not understand the answer.
async fn refuse_plaintext(stream: &mut TcpStream, first: u8) -> io::Result<()> {
    if first.is_ascii_uppercase() {
        stream.write_all(PLAINTEXT_RESPONSE).await?;
        stream.shutdown().await?;
        // Otherwise the kernel would keep an answer that is not taken for minutes.
        set_socket_linger(&*stream, Some(Duration::ZERO))?;
        // If a connection is closed with unread bytes, it is reset, and the answer is lost.
        let (mut unread, mut sink) = ((&mut *stream).take(MAX_PLAINTEXT_BYTES), tokio::io::sink());
        let deadline = Instant::now() + LINGER_TIMEOUT;
        let _ = timeout(LINGER_TIMEOUT, tokio::io::copy(&mut unread, &mut sink)).await;
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

/// A certificate and key with their validity period.
struct TlsIdentity {
    config: ServerConfig,
    /// Since the Unix epoch.
    not_before: Duration,
    /// Since the Unix epoch.
    not_after: Duration,
}

impl TlsIdentity {
    fn parse(certificate: &str, key: &str) -> Result<Self, String> {
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| format!("the certificate is not valid PEM: {error}"))?;
        let leaf = chain.first().ok_or("the certificate file contains no PEM certificate")?;
        let leaf = Certificate::from_der(leaf).map_err(|error| format!("the certificate cannot be read: {error}"))?;
        let validity = leaf.tbs_certificate().validity();
        let (not_before, not_after) = (validity.not_before.to_unix_duration(), validity.not_after.to_unix_duration());
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
        // The client keeps its session ticket, so that memory here does not grow with the number of sessions.
        config.ticketer =
            ring::Ticketer::new().map_err(|error| format!("cannot create the key for session tickets: {error}"))?;
        Ok(Self { config, not_before, not_after })
    }

    /// Returns why clients would not trust the certificate at `now`, the time since the Unix epoch.
    fn validity_error(&self, now: Duration) -> Option<String> {
        let time_until_valid = self.not_before.saturating_sub(now);
        if self.not_after <= now {
            Some("has expired".to_owned())
        } else if time_until_valid.is_zero() {
            None
        } else {
            Some(format!("is not valid before {} seconds from now", time_until_valid.as_secs() + 1))
        }
    }
}

/// Returns the time since the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "certificates expire by the clock")]
fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
