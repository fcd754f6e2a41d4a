//! TLS of the HTTP client.

use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Returns a configuration that trusts the certificates in the PEM text `roots`, or the built-in ones.
///
/// # Errors
/// Returns a message if the text contains no certificate.
pub(super) fn client_config(roots: Option<&str>) -> Result<ClientConfig, String> {
    let trusted = match roots {
        None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
        Some(pem) => parse_roots(pem)?,
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(trusted).with_no_client_auth())
}

fn parse_roots(pem: &str) -> Result<RootCertStore, String> {
    let mut trusted = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let certificate = certificate.map_err(|error| format!("is not a PEM file: {error}"))?;
        trusted.add(certificate).map_err(|error| format!("contains a certificate that cannot be used: {error}"))?;
    }
    if trusted.is_empty() { Err("contains no PEM certificate".to_owned()) } else { Ok(trusted) }
}
