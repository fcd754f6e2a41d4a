//! Checks that a running server is alive. Container images need this command because they have no shell.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};

use crate::config::{Config, ListenAddress};

/// Requests `/healthz` from the server that runs with this configuration.
///
/// # Errors
/// Returns an error if no server answers with status 200 in time.
pub(super) fn healthcheck(config: &Config) -> anyhow::Result<()> {
    request_health(config).with_context(|| format!("no healthy server at {}", config.server.listen))
}

fn request_health(config: &Config) -> anyhow::Result<()> {
    let timeout = Some(Duration::from_secs(5));
    let response = match &config.server.listen {
        ListenAddress::Tcp(address) => {
            let mut address = *address;
            if address.ip().is_unspecified() {
                let local: IpAddr =
                    if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
                address.set_ip(local);
            }
            let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
            stream.set_read_timeout(timeout)?;
            if config.tls.is_enabled() { send_request(tls_connect(stream)?)? } else { send_request(stream)? }
        }
        ListenAddress::Unix(path) => {
            let stream = std::os::unix::net::UnixStream::connect(path)?;
            stream.set_read_timeout(timeout)?;
            send_request(stream)?
        }
    };
    let status = response.lines().next().unwrap_or("nothing");
    anyhow::ensure!(status.contains(" 200 "), "/healthz answered {status:?}");
    Ok(())
}

/// Requests `/healthz` and returns the response.
fn send_request(mut stream: impl Read + Write) -> std::io::Result<String> {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.take(4096).read_to_string(&mut response)?;
    Ok(response)
}

fn tls_connect(stream: TcpStream) -> std::io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(std::io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").map_err(std::io::Error::other)?;
    let client = ClientConnection::new(Arc::new(config), name).map_err(std::io::Error::other)?;
    Ok(StreamOwned::new(client, stream))
}

/// Accepts every certificate. The certificate need not name this machine, because nothing secret is sent and the
/// response says only that the server is alive. The handshake's signature is checked, so the server must have the
/// certificate's key.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _own: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
