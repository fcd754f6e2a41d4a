//! Verification of JWT signatures by the crate `ring`, the cryptography library that the server already uses.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use ring::signature as algorithms;
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use signature::{Error as Invalid, Verifier};

/// Method to verify the signatures of an algorithm.
enum VerificationScheme {
    /// RSA; keys of 2048 to 8192 bits, given as modulus and exponent.
    Rsa(&'static algorithms::RsaParameters),
    Other(&'static dyn VerificationAlgorithm),
}

/// Returns the method to verify signatures of this algorithm. `None` for algorithms with a shared secret, because a
/// verifier could also sign.
#[expect(clippy::wildcard_enum_match_arm, reason = "algorithms that are not listed here are not accepted")]
fn verification_scheme(algorithm: Algorithm) -> Option<VerificationScheme> {
    Some(match algorithm {
        Algorithm::RS256 => VerificationScheme::Rsa(&algorithms::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => VerificationScheme::Rsa(&algorithms::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => VerificationScheme::Rsa(&algorithms::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => VerificationScheme::Rsa(&algorithms::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => VerificationScheme::Rsa(&algorithms::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => VerificationScheme::Rsa(&algorithms::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => VerificationScheme::Other(&algorithms::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => VerificationScheme::Other(&algorithms::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => VerificationScheme::Other(&algorithms::ED25519),
        _ => return None,
    })
}

/// Returns the algorithm of this name if its signatures can be verified.
pub(super) fn algorithm(name: &str) -> Option<Algorithm> {
    name.parse().ok().filter(|algorithm| verification_scheme(*algorithm).is_some())
}

struct RingVerifier {
    algorithm: Algorithm,
    scheme: VerificationScheme,
    key: DecodingKeyKind,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), Invalid> {
        let result = match (&self.scheme, &self.key) {
            (VerificationScheme::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (VerificationScheme::Other(algorithm), DecodingKeyKind::SecretOrDer(bytes)) => {
                UnparsedPublicKey::new(*algorithm, bytes).verify(message, signature)
            }
            (VerificationScheme::Rsa(_) | VerificationScheme::Other(_), _) => Err(ring::error::Unspecified),
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
    let scheme =
        verification_scheme(*algorithm).filter(|_| key.family() == algorithm.family() && is_asymmetric(key.family()));
    let scheme = scheme.ok_or(ErrorKind::InvalidAlgorithm)?;
    Ok(Box::new(RingVerifier { algorithm: *algorithm, scheme, key: key.kind().clone() }))
}

fn is_asymmetric(family: AlgorithmFamily) -> bool {
    family != AlgorithmFamily::Hmac
}

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::InvalidAlgorithm.into()),
    verifier_factory: verifier,
    // Only needed to make JWKs from keys, which this server does not do.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs the crypto provider. Must be called before the first JWT is decoded.
pub(super) fn install_provider() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // No other provider is installed, because no other code uses the crate.
        let _ = PROVIDER.install_default();
    });
}
