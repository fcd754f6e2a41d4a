//! Callers that an issuer vouches for: JWTs (RFC 7519), as an OpenID Connect provider issues them.

use std::sync::Arc;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::Rejection;
use super::caller::Caller;
use super::keys::{Keys, Where};
use super::signatures;

/// Longer names are none; they are written to logs.
const NAME_BYTES: usize = 256;

/// Most groups of a caller that are looked at.
const GROUPS: usize = 1000;

/// What a JWT must say.
#[derive(Debug, Clone)]
pub struct Expected {
    /// `iss`.
    pub issuer: String,
    /// One of these must be in `aud`.
    pub audience: Vec<String>,
    /// Names of the algorithms that are accepted, asymmetric ones only.
    pub algorithms: Vec<String>,
    /// The claim that names the caller.
    pub name_claim: String,
    /// The claim that names the caller's groups, a list or one text.
    pub groups_claim: String,
    /// Seconds by which clocks may differ.
    pub leeway_seconds: u64,
}

/// JWTs of one issuer.
#[derive(Debug)]
pub(super) struct Jwt {
    keys: Arc<Keys>,
    expected: Expected,
    algorithms: Vec<Algorithm>,
}

/// Whether a token has the form of a JWT: three parts, and a header that is a JSON object.
pub(super) fn is_like_one(token: &str) -> bool {
    token.starts_with("ey") && token.bytes().filter(|byte| *byte == b'.').count() == 2
}

impl Jwt {
    /// Whether there are keys, or were once.
    pub(super) fn has_keys(&self) -> bool {
        self.keys.are_there()
    }

    /// Waits a few seconds at most for keys that have never come.
    pub(super) async fn first_keys(&self) {
        self.keys.first().await;
    }

    /// Takes the keys over from `known` where they are of the same place.
    ///
    /// # Errors
    /// In words: a file that cannot be used, an algorithm that is not accepted.
    pub(super) fn open(keys: Where, expected: Expected, known: Option<&Self>) -> Result<Self, String> {
        signatures::install();
        let algorithm = |name: &String| {
            signatures::algorithm(name).ok_or_else(|| {
                format!(
                    "jwt.algorithms: {name:?} is not one of RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 EdDSA; those \
                     with a shared secret are not accepted"
                )
            })
        };
        let algorithms = expected.algorithms.iter().map(algorithm).collect::<Result<_, _>>()?;
        Ok(Self { keys: Keys::open(keys, known.map(|known| &known.keys))?, expected, algorithms })
    }

    /// Whose JWT this is.
    pub(super) async fn caller(&self, token: &str) -> Result<Caller, Rejection> {
        let header = decode_header(token).map_err(|_malformed| Rejection::Malformed)?;
        // Before any key is looked for: what a header may say must not be up to whoever wrote it.
        if !self.algorithms.contains(&header.alg) {
            return Err(Rejection::Signature);
        }
        if header.crit.is_some() {
            return Err(Rejection::Malformed);
        }
        let id = header.kid.as_deref();
        let keys = self.keys.with(id).await?;
        let key = keys.find(id, header.alg).ok_or(Rejection::Signature)?;
        let mut validation = Validation::new(header.alg);
        validation.leeway = self.expected.leeway_seconds;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.expected.issuer]);
        validation.set_audience(&self.expected.audience);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let claims = decode::<Map<String, Value>>(token, key, &validation).map_err(|error| rejection(error.kind()))?;
        self.named(&claims.claims).ok_or(Rejection::Malformed)
    }

    fn named(&self, claims: &Map<String, Value>) -> Option<Caller> {
        // The library also takes a list that holds the issuer.
        claims.get("iss")?.as_str()?;
        let is_name = |name: &&str| (1..=NAME_BYTES).contains(&name.len()) && !name.contains(char::is_control);
        let name = claims.get(&self.expected.name_claim)?.as_str().filter(is_name)?;
        let groups = match claims.get(&self.expected.groups_claim) {
            Some(Value::String(group)) => vec![group.clone()],
            Some(Value::Array(groups)) => {
                groups.iter().filter_map(Value::as_str).take(GROUPS).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        Some(Caller { is_jwt: true, name: name.to_owned(), groups, reads: None })
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library's list may grow; what is new is malformed")]
fn rejection(kind: &ErrorKind) -> Rejection {
    match kind {
        ErrorKind::ExpiredSignature => Rejection::Expired,
        ErrorKind::ImmatureSignature => Rejection::Early,
        ErrorKind::InvalidIssuer | ErrorKind::InvalidAudience => Rejection::Audience,
        ErrorKind::InvalidSignature | ErrorKind::InvalidAlgorithm => Rejection::Signature,
        _ => Rejection::Malformed,
    }
}
