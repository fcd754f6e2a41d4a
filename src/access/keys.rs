//! The keys of an issuer of JWTs: a JWK set (RFC 7517), from a file or a URL.

use std::path::PathBuf;
use std::sync::Arc;

use jsonwebtoken::jwk::{Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde_json::Value;

use super::Rejection;
use super::fetched::{Fetched, Patience};
use crate::metrics;
use crate::watched::Watched;

/// Most keys of a set that are looked at.
const KEYS: usize = 100;

/// Where an issuer's keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
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
        let operations = jwk.common.key_operations.as_deref();
        let may_verify = operations.is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        let algorithm = value.get("alg").and_then(Value::as_str).map(str::to_owned);
        (is_for_signatures && may_verify).then_some(Self { id: jwk.common.key_id, algorithm, key })
    }
}

/// Keys that are kept up to date.
#[derive(Debug)]
pub(super) struct Keys {
    place: Where,
    source: Source,
}

#[derive(Debug)]
enum Source {
    File(Watched<KeySet>),
    Url(Fetched),
}

impl Keys {
    /// Those of `known` where that is the same place; where it is the same URL to be fetched more or less often, they are
    /// good until they are fetched again.
    ///
    /// # Errors
    /// In words: a file that cannot be used, or no thread.
    pub(super) fn open(place: Where, known: Option<&Arc<Self>>) -> Result<Arc<Self>, String> {
        if let Some(known) = known.filter(|known| known.place == place) {
            return Ok(Arc::clone(known));
        }
        let source = match &place {
            Where::File(path) => {
                let failed = || metrics::access_reload_failed("keys");
                Source::File(Watched::open([path], "keys", failed, |[text]| KeySet::parse(text))?)
            }
            Where::Url { url, roots, patience } => {
                let known = known.and_then(|known| known.fetched_from(url, roots.as_ref()));
                Source::Url(Fetched::start(url.clone(), roots.as_deref(), *patience, known)?)
            }
        };
        Ok(Arc::new(Self { place, source }))
    }

    fn fetched_from(&self, wanted: &str, vouched: Option<&PathBuf>) -> Option<&Fetched> {
        match (&self.place, &self.source) {
            (Where::Url { url, roots, .. }, Source::Url(fetched)) => {
                (url == wanted && roots.as_ref() == vouched).then_some(fetched)
            }
            _ => None,
        }
    }

    /// Waits a few seconds at most for keys that have never come.
    pub(super) async fn first(&self) {
        if let Source::Url(fetched) = &self.source {
            fetched.first().await;
        }
    }

    /// Whether there are any, or were once.
    pub(super) fn are_there(&self) -> bool {
        match &self.source {
            Source::File(_) => true,
            Source::Url(fetched) => fetched.has_come(),
        }
    }

    /// The keys, with that of the name `id` among them if the issuer has one: a name that is not known makes them be fetched
    /// anew, which is waited for for a bounded time.
    pub(super) async fn with(&self, id: Option<&str>) -> Result<Arc<KeySet>, Rejection> {
        match &self.source {
            Source::File(file) => Ok(file.current()),
            Source::Url(fetched) => fetched.with(id).await,
        }
    }
}
