//! Authentication by an issuer's JWTs (RFC 7519), such as those of an OpenID Connect provider. The crate `ring`, the
//! cryptography library that the server already uses, verifies their signatures.

use std::sync::{Arc, Once};

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, Validation, decode, decode_header};
use ring::signature as algorithms;
use ring::signature::{RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde_json::{Map, Value};
use signature::{Error as Invalid, Verifier};

use super::caller::{Caller, TokenError};
use super::jwks::IssuerKeys;
use crate::config::JwtConfig;

/// Maximum length of a caller's name. Names are limited because they are written to logs.
const MAX_NAME_BYTES: usize = 256;

/// Maximum number of a caller's groups. Further groups are ignored.
const MAX_GROUPS: usize = 1000;

/// Authenticates callers by the JWTs of one issuer.
#[derive(Debug)]
pub(super) struct JwtAuthenticator {
    pub(super) keys: Arc<IssuerKeys>,
    config: JwtConfig,
    algorithms: Vec<Algorithm>,
}

/// Returns true if a token has the form of a JWT: three parts, and a header that is a JSON object.
pub(super) fn looks_like_jwt(token: &str) -> bool {
    token.starts_with("ey") && token.bytes().filter(|byte| *byte == b'.').count() == 2
}

impl JwtAuthenticator {
    /// Creates an authenticator. It reuses the keys of `known` if they have the same location.
    ///
    /// # Errors
    /// Returns a message if a file cannot be used or an algorithm is not accepted.
    pub(super) fn open(config: &JwtConfig, known: Option<&Self>) -> Result<Self, String> {
        install_provider();
        let algorithm = |name: &String| {
            name.parse().ok().filter(|algorithm| is_verifiable(*algorithm)).ok_or_else(|| {
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
        // The algorithm is checked before a key is looked up, because the author of a token must not choose the
        // algorithm.
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
        // The library also accepts a list of issuers, but this server requires a single name.
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

/// Signature algorithms with RSA keys of 2048 to 8192 bits. A JWK has their modulus and exponent.
static RSA_ALGORITHMS: [(Algorithm, &RsaParameters); 6] = [
    (Algorithm::RS256, &algorithms::RSA_PKCS1_2048_8192_SHA256),
    (Algorithm::RS384, &algorithms::RSA_PKCS1_2048_8192_SHA384),
    (Algorithm::RS512, &algorithms::RSA_PKCS1_2048_8192_SHA512),
    (Algorithm::PS256, &algorithms::RSA_PSS_2048_8192_SHA256),
    (Algorithm::PS384, &algorithms::RSA_PSS_2048_8192_SHA384),
    (Algorithm::PS512, &algorithms::RSA_PSS_2048_8192_SHA512),
];

/// Signature algorithms with elliptic-curve keys. Algorithms with a shared secret (HMAC) are not supported, because a
/// server that can verify such a signature can also create it.
static CURVE_ALGORITHMS: [(Algorithm, &dyn VerificationAlgorithm); 3] = [
    (Algorithm::ES256, &algorithms::ECDSA_P256_SHA256_FIXED),
    (Algorithm::ES384, &algorithms::ECDSA_P384_SHA384_FIXED),
    (Algorithm::EdDSA, &algorithms::ED25519),
];

/// Returns true if signatures of this algorithm can be verified.
fn is_verifiable(algorithm: Algorithm) -> bool {
    RSA_ALGORITHMS.iter().any(|(known, _)| *known == algorithm)
        || CURVE_ALGORITHMS.iter().any(|(known, _)| *known == algorithm)
}

/// Verifies signatures with the crate `ring`.
struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKeyKind,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), Invalid> {
        let rsa = RSA_ALGORITHMS.iter().find(|(known, _)| *known == self.algorithm);
        let curve = CURVE_ALGORITHMS.iter().find(|(known, _)| *known == self.algorithm);
        let result = match (&self.key, rsa, curve) {
            (DecodingKeyKind::RsaModulusExponent { n, e }, Some((_, parameters)), _) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (DecodingKeyKind::SecretOrDer(bytes), _, Some((_, algorithm))) => {
                UnparsedPublicKey::new(*algorithm, bytes).verify(message, signature)
            }
            _ => Err(ring::error::Unspecified),
        };
        result.map_err(|_unspecified| Invalid::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the function type that jsonwebtoken requires")]
fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    if !is_verifiable(*algorithm) || key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidAlgorithm.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.kind().clone() }))
}

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::InvalidAlgorithm.into()),
    verifier_factory: verifier,
    // These functions make JWKs from keys, which this server does not do.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs the crypto provider. Must be called before the first JWT is decoded.
fn install_provider() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // The error would mean that another provider is installed. This cannot be, because no other code uses the
        // crate.
        let _ = PROVIDER.install_default();
    });
}
