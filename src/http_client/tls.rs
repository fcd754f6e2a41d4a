//! TLS of the HTTP client.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Returns a configuration that trusts the certificates of the PEM file `roots`, or the built-in ones.
///
/// # Errors
/// Returns a message if the file cannot be read or contains no certificate.
pub(super) fn client_config(roots: Option<&Path>) -> Result<ClientConfig, String> {
    let trusted = match roots {
        None => RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() },
        Some(path) => read_roots(path).map_err(|why| format!("{}: {why}", path.display()))?,
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    Ok(builder.with_root_certificates(trusted).with_no_client_auth())
}

fn read_roots(path: &Path) -> Result<RootCertStore, String> {
    let mut trusted = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| format!("cannot be read: {error}"))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| format!("is not a PEM file: {error}"))?;
        trusted.add(certificate).map_err(|error| format!("contains a certificate that cannot be used: {error}"))?;
    }
    if trusted.is_empty() { Err("contains no PEM certificate".to_owned()) } else { Ok(trusted) }
}
