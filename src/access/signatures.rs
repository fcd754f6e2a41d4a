//! Signatures of JWTs, checked by ring: the one library for cryptography that the server has anyway.

use std::sync::Once;

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use ring::signature as algorithms;
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use signature::{Error as Invalid, Verifier};

/// How an algorithm is checked.
enum Check {
    /// RSA keys come as modulus and exponent, of 2048 to 8192 bits.
    Rsa(&'static algorithms::RsaParameters),
    Other(&'static dyn VerificationAlgorithm),
}

/// How signatures of this algorithm are checked. `None` for those with a shared secret: whoever checks could sign, too.
#[expect(clippy::wildcard_enum_match_arm, reason = "what is not named here is not accepted")]
fn check(algorithm: Algorithm) -> Option<Check> {
    Some(match algorithm {
        Algorithm::RS256 => Check::Rsa(&algorithms::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Check::Rsa(&algorithms::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Check::Rsa(&algorithms::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Check::Rsa(&algorithms::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Check::Rsa(&algorithms::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Check::Rsa(&algorithms::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Check::Other(&algorithms::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Check::Other(&algorithms::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Check::Other(&algorithms::ED25519),
        _ => return None,
    })
}

/// The algorithm of that name, where its signatures are checked here.
pub(super) fn algorithm(name: &str) -> Option<Algorithm> {
    name.parse().ok().filter(|algorithm| check(*algorithm).is_some())
}

struct Ring {
    algorithm: Algorithm,
    check: Check,
    key: DecodingKeyKind,
}

impl Verifier<Vec<u8>> for Ring {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), Invalid> {
        let verified = match (&self.check, &self.key) {
            (Check::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Check::Other(algorithm), DecodingKeyKind::SecretOrDer(bytes)) => {
                UnparsedPublicKey::new(*algorithm, bytes).verify(message, signature)
            }
            (Check::Rsa(_) | Check::Other(_), _) => Err(ring::error::Unspecified),
        };
        verified.map_err(|_unspecified| Invalid::new())
    }
}

impl JwtVerifier for Ring {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that the crate calls")]
fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    let check = check(*algorithm).filter(|_| key.family() == algorithm.family() && is_asymmetric(key.family()));
    let check = check.ok_or(ErrorKind::InvalidAlgorithm)?;
    Ok(Box::new(Ring { algorithm: *algorithm, check, key: key.kind().clone() }))
}

fn is_asymmetric(family: AlgorithmFamily) -> bool {
    family != AlgorithmFamily::Hmac
}

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::InvalidAlgorithm.into()),
    verifier_factory: verifier,
    // For making JWKs of keys, which nobody does here.
    key_utils: KeyUtils::new_unimplemented(),
};

/// To be called before the first JWT is looked at.
pub(super) fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // Another one is installed by nobody else: ours is the only code that knows the crate.
        let _ = PROVIDER.install_default();
    });
}
