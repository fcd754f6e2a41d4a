//! A JWK set (RFC 7517): the public keys of an issuer of JWTs.

use jsonwebtoken::jwk::{Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde_json::Value;

/// Maximum number of keys of a set; further ones are ignored.
const MAX_KEYS: usize = 100;

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
