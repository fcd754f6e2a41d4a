//! The keys of an issuer of JWTs: a JWK set (RFC 7517), from a file or a URL.

use std::path::PathBuf;
use std::sync::Arc;

use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde_json::Value;

use super::Rejection;
use super::fetched::{Fetched, Patience};
use super::watched::Watched;

/// Most keys of a set that are looked at.
const KEYS: usize = 100;

/// Where an issuer's keys are.
#[derive(Debug, Clone)]
pub enum Where {
    /// A file, read again when it changes.
    File(PathBuf),
    /// A URL of the scheme `https`; the certificates in the file `roots`, or those that browsers trust, vouch for it.
    Url {
        /// The URL.
        url: String,
        /// PEM.
        roots: Option<PathBuf>,
        /// How often, and how long.
        patience: Patience,
    },
}

/// A key with which signatures are checked.
#[derive(Debug)]
struct PublicKey {
    id: Option<String>,
    algorithm: Option<String>,
    key: DecodingKey,
}

/// The keys of an issuer.
#[derive(Debug)]
pub(super) struct KeySet(Vec<PublicKey>);

impl KeySet {
    /// Reads a JWK set; keys of kinds that are not known, or not for signatures, count as missing.
    ///
    /// # Errors
    /// In words, when there is no key that can be used.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let document: Value = serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
        let keys = document.get("keys").and_then(Value::as_array).ok_or("is no JWK set: it has no list \"keys\"")?;
        let keys: Vec<PublicKey> = keys.iter().take(KEYS).filter_map(PublicKey::of).collect();
        if keys.is_empty() {
            return Err("has no public key for signatures (RSA, EC or OKP)".to_owned());
        }
        Ok(Self(keys))
    }

    /// The key that a JWT with this header is signed with; without an id in the header, it must be the only one of its kind.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let name = format!("{algorithm:?}");
        let fits = |key: &&PublicKey| {
            key.key.family() == algorithm.family() && key.algorithm.as_ref().is_none_or(|known| *known == name)
        };
        let mut fitting = self.0.iter().filter(fits).filter(|key| id.is_none() || key.id.as_deref() == id);
        let first = fitting.next()?;
        // Two keys of one name are a fault of the issuer's, and which is meant is not guessed.
        fitting.next().is_none().then_some(&first.key)
    }

    /// Whether there is a key of this name, whatever it is good for.
    pub(super) fn has(&self, id: &str) -> bool {
        self.0.iter().any(|key| key.id.as_deref() == Some(id))
    }
}

impl PublicKey {
    fn of(value: &Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        let key = DecodingKey::from_jwk(&jwk).ok().filter(|key| key.family() != AlgorithmFamily::Hmac)?;
        let is_for_signatures = jwk.common.public_key_use.is_none_or(|purpose| purpose == PublicKeyUse::Signature);
        let algorithm = value.get("alg").and_then(Value::as_str).map(str::to_owned);
        is_for_signatures.then_some(Self { id: jwk.common.key_id, algorithm, key })
    }
}

/// Keys that are kept up to date.
#[derive(Debug)]
pub(super) enum Keys {
    File(Watched<KeySet>),
    Url(Fetched),
}

impl Keys {
    pub(super) fn open(place: Where) -> Result<Self, String> {
        Ok(match place {
            Where::File(path) => Self::File(Watched::open(&path, "keys", KeySet::parse)?),
            Where::Url { url, roots, patience } => Self::Url(Fetched::start(url, roots.as_deref(), patience)?),
        })
    }

    /// The keys, with that of the name `id` among them if the issuer has one: a name that is not known makes them be fetched
    /// anew, which is waited for for a bounded time.
    pub(super) async fn with(&self, id: Option<&str>) -> Result<Arc<KeySet>, Rejection> {
        match self {
            Self::File(file) => Ok(file.current()),
            Self::Url(fetched) => fetched.with(id).await,
        }
    }
}
