//! TLS in front of a connection: the certificate in force, the handshake, and what speaks something else.
//!
//! A handshake that is under way takes 71 KiB, so there are only so many; a client that has sent nothing yet costs none of
//! them.

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

use super::meminfo::send_queue_bytes;
use super::metered::Metered;
use super::secure::Secure;
use crate::config;
use crate::fair::{Client, Cost, Most, Share, Shares};
use crate::http;
use crate::metrics::{self, Handshake};
use crate::watched::Watched;

/// The first byte of every TLS connection: a record of the handshake (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// Most bytes of a request without TLS that are read before it is answered.
const PLAIN_BYTES: u64 = 64 << 10;

/// Time for such a client to close the connection.
const LINGER: Duration = Duration::from_secs(1);

/// Pause between two looks whether it has taken the answer.
const LOOK: Duration = Duration::from_millis(10);

/// What a request without TLS is told.
const PLAIN_ANSWER: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 46\r\n\
    connection: close\r\n\r\nThis port speaks TLS: use https, not http://.\n";

/// One address has half of the handshakes where it is alone, and of many addresses each as many as are left for the next.
const MOST: Most = Most { alone: config::Tls::HANDSHAKES / 2, among_others: config::Tls::HANDSHAKES / 2 };

/// Makes connections encrypted.
pub(super) struct Tls {
    current: Watched<ServerConfig>,
    handshake_timeout: Duration,
    handshakes: Handshakes,
}

/// The handshakes that are under way, at most [`config::Tls::HANDSHAKES`]. Clients take turns, and a client that begins many and
/// ends none leaves some to others.
struct Handshakes {
    places: Shares,
    /// Random, so that no client can choose an address that shares another's turns.
    hashing: RandomState,
}

impl Handshakes {
    fn new() -> Self {
        Self { places: Shares::new(config::Tls::HANDSHAKES, MOST, Cost::Units), hashing: RandomState::new() }
    }

    async fn begin(&self, peer: IpAddr) -> Share {
        let client = Client::new(self.hashing.hash_one(http::network_of(peer)));
        let party = (client, 0);
        if let Some(place) = self.places.try_take(party, 1) {
            return place;
        }
        let _waiting = metrics::Waiting::begin(metrics::Queue::Handshake);
        self.places.take(party, 1).await
    }
}

/// What a connection becomes.
enum Begun {
    Encrypted(Secure),
    /// The client speaks something else.
    Plain,
    /// It ended before its first byte, as those of probes do that only connect.
    Nothing,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("handshake_timeout", &self.handshake_timeout).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads certificate and key, which are read again when they change; `None` where none are configured.
    ///
    /// # Errors
    /// In words, when they cannot be used.
    pub(super) fn open(config: &config::Tls) -> Result<Option<Self>, String> {
        if !config.is_used() {
            return Ok(None);
        }
        metrics::describe_tls();
        let is_first = Cell::new(true);
        let parse = move |[certificate, key]: [&str; 2]| {
            let pair = Pair::parse(certificate, key)?;
            // Whoever starts with a certificate out of its time gets a server that says so; one in force stays.
            match (pair.fault(now()), is_first.replace(false)) {
                (Some(fault), true) => {
                    tracing::warn!("the TLS certificate {fault}: clients will not trust this server");
                }
                (Some(fault), false) => return Err(format!("the certificate {fault}")),
                (None, _) => {}
            }
            metrics::tls_certificate(pair.not_after.as_secs());
            Ok(pair.config)
        };
        let paths: [&Path; 2] = [&config.certificate, &config.key];
        let current = Watched::open(paths, "certificate", metrics::tls_reload_failed, parse)?;
        Ok(Some(Self { current, handshake_timeout: config.handshake_timeout, handshakes: Handshakes::new() }))
    }

    /// Encrypts a connection of which `meter` bounds the send queue. `None` where that comes to nothing, which has been
    /// told then.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        meter: impl FnOnce(TcpStream) -> Metered<TcpStream>,
        send_timeout: Duration,
        peer: IpAddr,
    ) -> Option<Secure> {
        let limit = self.handshake_timeout;
        let shaking = async {
            let mut stream = stream;
            match timeout(limit, first_byte(&stream)).await? {
                None => return Ok(Begun::Nothing),
                Some(HANDSHAKE_RECORD) => {}
                Some(first) => return timeout(limit, refuse(&mut stream, first)).await?.map(|()| Begun::Plain),
            }
            // The time that others take counts apart.
            let _place = timeout(limit, self.handshakes.begin(peer)).await?;
            let acceptor = TlsAcceptor::from(self.current.current());
            let mut stream = TimeoutStream::new(meter(stream));
            stream.set_write_timeout(Some(send_timeout));
            timeout(limit, Secure::accept(&acceptor, Box::pin(stream))).await?.map(Begun::Encrypted)
        };
        let result: io::Result<Begun> = shaking.await;
        let (result, accepted) = match result {
            Ok(Begun::Nothing) => return None,
            Ok(Begun::Encrypted(stream)) => (Handshake::Done, Some(stream)),
            Ok(Begun::Plain) => {
                tracing::debug!(%peer, "no TLS where it was expected");
                (Handshake::Plaintext, None)
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                tracing::debug!(%peer, "TLS handshake took too long");
                (Handshake::TimedOut, None)
            }
            Err(error) => {
                tracing::debug!(%peer, %error, "TLS handshake failed");
                (Handshake::Failed, None)
            }
        };
        metrics::tls_handshake(result);
        accepted
    }
}

/// What the connection begins with, which stays to be read; `None` where it ends before.
async fn first_byte(stream: &TcpStream) -> Option<u8> {
    let mut first = [0];
    let count = stream.peek(&mut first).await.unwrap_or_default();
    first.first().copied().filter(|_| count > 0)
}

/// Tells a client that seems to speak HTTP that it must speak TLS. Others would not understand.
async fn refuse(stream: &mut TcpStream, first: u8) -> io::Result<()> {
    if first.is_ascii_uppercase() {
        stream.write_all(PLAIN_ANSWER).await?;
        stream.shutdown().await?;
        // The kernel would keep an answer that is not taken for minutes.
        set_socket_linger(&*stream, Some(Duration::ZERO))?;
        // A connection that is closed with something unread is reset, and the answer lost.
        let (mut rest, mut nowhere) = ((&mut *stream).take(PLAIN_BYTES), tokio::io::sink());
        let until = Instant::now() + LINGER;
        let _ = timeout(LINGER, tokio::io::copy(&mut rest, &mut nowhere)).await;
        let has_taken = loop {
            match send_queue_bytes(stream.as_fd(), true) {
                None | Some(0) => break true,
                Some(_) if Instant::now() >= until => break false,
                Some(_) => sleep(LOOK).await,
            }
        };
        if has_taken {
            let _ = set_socket_linger(&*stream, None);
        }
    }
    Ok(())
}

/// What certificate and key come to.
struct Pair {
    config: ServerConfig,
    /// Since 1970, as the next.
    not_before: Duration,
    not_after: Duration,
}

impl Pair {
    fn parse(certificate: &str, key: &str) -> Result<Self, String> {
        let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| format!("the certificate is no PEM: {error}"))?;
        let own = chain.first().ok_or("the certificate's file holds no certificate in PEM")?;
        let own = Certificate::from_der(own).map_err(|error| format!("the certificate cannot be read: {error}"))?;
        let validity = own.tbs_certificate().validity();
        let (not_before, not_after) = (validity.not_before.to_unix_duration(), validity.not_after.to_unix_duration());
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| format!("the key's file holds no private key in PEM without a passphrase: {error}"))?;
        let provider = Arc::new(ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map(ConfigBuilder::<ServerConfig, WantsVerifier>::with_no_client_auth);
        let mut config = config
            .and_then(|config| config.with_single_cert(chain, key))
            .map_err(|error| format!("certificate and key cannot be used together: {error}"))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // The client keeps what resumes its session: here nothing grows with their number.
        config.ticketer = ring::Ticketer::new().map_err(|error| format!("no random numbers: {error}"))?;
        Ok(Self { config, not_before, not_after })
    }

    /// Why clients would not trust it at that moment since 1970.
    fn fault(&self, now: Duration) -> Option<String> {
        let ahead = self.not_before.saturating_sub(now);
        if self.not_after <= now {
            Some("has expired".to_owned())
        } else if ahead.is_zero() {
            None
        } else {
            Some(format!("is not valid before {} seconds from now", ahead.as_secs() + 1))
        }
    }
}

/// Since 1970.
#[expect(clippy::disallowed_methods, reason = "certificates expire by the clock")]
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
