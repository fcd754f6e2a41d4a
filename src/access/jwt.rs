//! Authentication by an issuer's JWTs (RFC 7519), such as those of an OpenID Connect provider.

use std::sync::Arc;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, Validation, decode, decode_header};
use serde_json::{Map, Value};

use super::caller::Caller;
use super::jwks::IssuerKeys;
use super::signatures;
use super::token_error::TokenError;
use crate::config::JwtConfig;

/// Maximum length of a caller's name; names are written to logs.
const MAX_NAME_BYTES: usize = 256;

/// Maximum number of a caller's groups; further ones are ignored.
const MAX_GROUPS: usize = 1000;

/// Authenticates callers by the JWTs of one issuer.
#[derive(Debug)]
pub(super) struct JwtAuthenticator {
    keys: Arc<IssuerKeys>,
    config: JwtConfig,
    algorithms: Vec<Algorithm>,
}

/// Returns true if a token has the form of a JWT: three parts, and a header that is a JSON object.
pub(super) fn looks_like_jwt(token: &str) -> bool {
    token.starts_with("ey") && token.bytes().filter(|byte| *byte == b'.').count() == 2
}

impl JwtAuthenticator {
    /// Returns true if keys have been available at some time.
    pub(super) fn has_keys(&self) -> bool {
        self.keys.has_keys()
    }

    /// Waits at most a few seconds for the first keys, if none have been available so far.
    pub(super) async fn wait_for_first_keys(&self) {
        self.keys.wait_for_first_fetch().await;
    }

    /// Creates an authenticator, which reuses the keys of `known` if they have the same location.
    ///
    /// # Errors
    /// Returns a message if a file cannot be used or an algorithm is not accepted.
    pub(super) fn open(config: &JwtConfig, known: Option<&Self>) -> Result<Self, String> {
        signatures::install_provider();
        let algorithm = |name: &String| {
            signatures::algorithm(name).ok_or_else(|| {
                format!(
                    "jwt.algorithms: {name:?} is not one of RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 EdDSA; \
                     algorithms with a shared secret are not accepted"
                )
            })
        };
        let algorithms = config.algorithms.iter().map(algorithm).collect::<Result<_, _>>()?;
        let keys = IssuerKeys::open(config, known.map(|known| (&known.config, &known.keys)))?;
        Ok(Self { keys, config: config.clone(), algorithms })
    }

    /// Verifies a JWT and returns its caller.
    pub(super) async fn authenticate(&self, token: &str) -> Result<Caller, TokenError> {
        let header = decode_header(token).map_err(|_malformed| TokenError::Malformed)?;
        // Checked before a key is searched: the author of the header must not choose the algorithm.
        if !self.algorithms.contains(&header.alg) {
            return Err(TokenError::BadSignature);
        }
        if header.crit.is_some() {
            return Err(TokenError::Malformed);
        }
        let id = header.kid.as_deref();
        let keys = self.keys.keys_for(id).await?;
        let key = keys.find(id, header.alg).ok_or(TokenError::BadSignature)?;
        let mut validation = Validation::new(header.alg);
        validation.leeway = self.config.leeway.as_secs();
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.config.issuer]);
        validation.set_audience(&self.config.audience);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let claims =
            decode::<Map<String, Value>>(token, key, &validation).map_err(|error| token_error(error.kind()))?;
        self.caller_from_claims(&claims.claims).ok_or(TokenError::Malformed)
    }

    fn caller_from_claims(&self, claims: &Map<String, Value>) -> Option<Caller> {
        // The library also accepts a list that contains the issuer.
        claims.get("iss")?.as_str()?;
        let is_name = |name: &&str| (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.contains(char::is_control);
        let name = claims.get(&self.config.name_claim)?.as_str().filter(is_name)?;
        let groups = match claims.get(&self.config.groups_claim) {
            Some(Value::String(group)) => vec![group.clone()],
            Some(Value::Array(groups)) => {
                groups.iter().filter_map(Value::as_str).take(MAX_GROUPS).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        Some(Caller { is_jwt: true, name: name.to_owned(), groups, allowed_paths: None })
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library may add error kinds; a new kind counts as malformed")]
fn token_error(kind: &ErrorKind) -> TokenError {
    match kind {
        ErrorKind::ExpiredSignature => TokenError::Expired,
        ErrorKind::ImmatureSignature => TokenError::NotYetValid,
        ErrorKind::InvalidIssuer | ErrorKind::InvalidAudience => TokenError::WrongAudience,
        ErrorKind::InvalidSignature | ErrorKind::InvalidAlgorithm => TokenError::BadSignature,
        _ => TokenError::Malformed,
    }
}
