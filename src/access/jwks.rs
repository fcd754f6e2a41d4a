//! Keys of an issuer of JWTs: a JWK set (RFC 7517) from a file or a URL.

use std::path::PathBuf;
use std::sync::Arc;

use jsonwebtoken::jwk::{Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde_json::Value;

use super::TokenError;
use super::jwks_fetcher::{JwksFetcher, RefreshPolicy};
use crate::metrics;
use crate::watched_files::WatchedFiles;

/// Maximum number of keys of a set; further ones are ignored.
const MAX_KEYS: usize = 100;

/// Location of an issuer's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JwksLocation {
    /// A file, which is reloaded when it changes.
    File(PathBuf),
    /// An `https` URL. Its certificate is verified with the root certificates of a file, or with those that browsers
    /// trust.
    Url {
        /// URL of the JWK set.
        url: String,
        /// PEM file of root certificates.
        root_certificates: Option<PathBuf>,
        /// Intervals between fetches, and the maximum age of the keys.
        refresh_policy: RefreshPolicy,
    },
}

/// A key that verifies signatures.
#[derive(Debug)]
struct VerificationKey {
    id: Option<String>,
    algorithm: Option<String>,
    key: DecodingKey,
}

/// Key set of an issuer.
#[derive(Debug)]
pub(super) struct KeySet(Vec<VerificationKey>);

impl KeySet {
    /// Parses a JWK set. Keys of unknown types, and keys that are not for signatures, are ignored.
    ///
    /// # Errors
    /// Returns a message if there is no usable key.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let document: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
        let keys = document.get("keys").and_then(Value::as_array).ok_or("is not a JWK set: it has no list \"keys\"")?;
        let keys: Vec<VerificationKey> = keys.iter().take(MAX_KEYS).filter_map(VerificationKey::from_jwk).collect();
        if keys.is_empty() {
            return Err("has no public key for signatures (RSA, EC or OKP)".to_owned());
        }
        Ok(Self(keys))
    }

    /// Returns the key that verifies a JWT with this header. If the header has no id, only one key may fit the
    /// algorithm.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let name = format!("{algorithm:?}");
        let fits = |key: &&VerificationKey| {
            key.key.family() == algorithm.family() && key.algorithm.as_ref().is_none_or(|known| *known == name)
        };
        let mut fitting = self.0.iter().filter(fits).filter(|key| id.is_none() || key.id.as_deref() == id);
        let first = fitting.next()?;
        // Two keys with the same id are an error of the issuer, and the server does not guess which one is meant.
        fitting.next().is_none().then_some(&first.key)
    }

    /// Returns true if there is a key with this id, for any algorithm.
    pub(super) fn has_key_id(&self, id: &str) -> bool {
        self.0.iter().any(|key| key.id.as_deref() == Some(id))
    }
}

impl VerificationKey {
    fn from_jwk(value: &Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        let key = DecodingKey::from_jwk(&jwk).ok().filter(|key| key.family() != AlgorithmFamily::Hmac)?;
        let is_for_signatures = jwk.common.public_key_use.is_none_or(|purpose| purpose == PublicKeyUse::Signature);
        let operations = jwk.common.key_operations.as_deref();
        let may_verify = operations.is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        let algorithm = value.get("alg").and_then(Value::as_str).map(str::to_owned);
        (is_for_signatures && may_verify).then_some(Self { id: jwk.common.key_id, algorithm, key })
    }
}

/// Keys of an issuer, kept up to date.
#[derive(Debug)]
pub(super) struct IssuerKeys {
    location: JwksLocation,
    source: JwksSource,
}

#[derive(Debug)]
enum JwksSource {
    File(WatchedFiles<KeySet>),
    Url(JwksFetcher),
}

impl IssuerKeys {
    /// Opens the keys, or returns `known` if it has the same location. If only the refresh policy differs, the keys of
    /// `known` stay in use until they are fetched again.
    ///
    /// # Errors
    /// Returns a message if a file cannot be used or no thread can be started.
    pub(super) fn open(location: JwksLocation, known: Option<&Arc<Self>>) -> Result<Arc<Self>, String> {
        if let Some(known) = known.filter(|known| known.location == location) {
            return Ok(Arc::clone(known));
        }
        let source = match &location {
            JwksLocation::File(path) => {
                let failed = || metrics::access_reload_failed("keys");
                JwksSource::File(WatchedFiles::open([path], "keys", failed, |[text]| KeySet::parse(text))?)
            }
            JwksLocation::Url { url, root_certificates, refresh_policy } => {
                let known = known.and_then(|known| known.fetcher_for(url, root_certificates.as_ref()));
                JwksSource::Url(JwksFetcher::start(url.clone(), root_certificates.as_deref(), *refresh_policy, known)?)
            }
        };
        Ok(Arc::new(Self { location, source }))
    }

    fn fetcher_for(&self, wanted_url: &str, wanted_roots: Option<&PathBuf>) -> Option<&JwksFetcher> {
        match (&self.location, &self.source) {
            (JwksLocation::Url { url, root_certificates, .. }, JwksSource::Url(fetcher)) => {
                (url == wanted_url && root_certificates.as_ref() == wanted_roots).then_some(fetcher)
            }
            _ => None,
        }
    }

    /// Waits at most a few seconds for the first keys, if none have been available so far.
    pub(super) async fn wait_for_first_fetch(&self) {
        if let JwksSource::Url(fetcher) = &self.source {
            fetcher.wait_for_first_fetch().await;
        }
    }

    /// Returns true if keys have been available at some time.
    pub(super) fn has_keys(&self) -> bool {
        match &self.source {
            JwksSource::File(_) => true,
            JwksSource::Url(fetcher) => fetcher.has_keys(),
        }
    }

    /// Returns the keys, which include the key `id` if the issuer has it. An unknown id triggers a fetch, for which
    /// this waits a bounded time.
    pub(super) async fn keys_for(&self, id: Option<&str>) -> Result<Arc<KeySet>, TokenError> {
        match &self.source {
            JwksSource::File(file) => Ok(file.current()),
            JwksSource::Url(fetcher) => fetcher.keys_for(id).await,
        }
    }
}
