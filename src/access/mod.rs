//! Who may read what: tokens become callers, and rules say what a caller may read.
//!
//! The decision ([`Policy`]) is pure. Files, keys and their reloading are around it; requests, statuses and headers are
//! `http/`'s.

mod caller;
mod fetched;
mod jwt;
mod keys;
mod policy;
mod signatures;
mod tokens;

use crate::metrics;
use crate::watched::Watched;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

pub use caller::Caller;
pub use fetched::Patience;
pub use jwt::Expected;
pub use keys::Where;
pub use policy::{Decision, Policy, PolicyError};
pub use tokens::{Issued, issue};

use jwt::Jwt;
use tokens::Tokens;

/// Longer texts are no tokens.
const TOKEN_BYTES: usize = 16 << 10;

/// Who may read what, and how callers say who they are.
#[derive(Debug)]
pub struct Control {
    policy: Policy,
    /// With the file that they are from.
    tokens: Option<(PathBuf, Arc<Watched<Tokens>>)>,
    jwt: Option<Jwt>,
}

/// Why a token tells nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// No such token was issued, or it was withdrawn.
    #[error("the token is not known here")]
    Unknown,
    /// Its time is over.
    #[error("the token has expired")]
    Expired,
    /// A JWT whose time has not come.
    #[error("the token is not valid yet")]
    Early,
    /// A JWT that is not well formed, or that lacks a claim that is needed.
    #[error("the token is malformed, or lacks a claim that is needed")]
    Malformed,
    /// A JWT that none of the issuer's keys has signed, or by another algorithm than those allowed.
    #[error("the token is signed by no key or algorithm that is accepted here")]
    Signature,
    /// A JWT of another issuer, or for another audience.
    #[error("the token is of another issuer or for another audience")]
    Audience,
    /// The issuer's keys are not known, and cannot be had now: nothing can be said of the token.
    #[error("the issuer's keys cannot be had")]
    NoKeys,
}

impl Rejection {
    /// As metrics and logs name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown_token",
            Self::Expired => "expired_token",
            Self::Early => "early_token",
            Self::Malformed => "malformed_token",
            Self::Signature => "bad_signature",
            Self::Audience => "wrong_audience",
            Self::NoKeys => "no_keys",
        }
    }
}

impl Control {
    /// Reads the file of tokens and the keys, as far as they are named; both are read again when they change, for as long
    /// as this lives. Keys from a URL need not be there yet.
    ///
    /// # Errors
    /// What is wrong with a file, in words.
    pub fn open(policy: Policy, tokens: Option<&Path>, jwt: Option<(Where, Expected)>) -> Result<Self, String> {
        Self::after(None, policy, tokens, jwt)
    }

    /// What takes the place of this. Tokens and keys that are of the same file or URL are not read anew: an issuer that
    /// cannot be asked now, or a file that is at fault now, shall refuse nobody.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn successor(
        &self,
        policy: Policy,
        tokens: Option<&Path>,
        jwt: Option<(Where, Expected)>,
    ) -> Result<Self, String> {
        Self::after(Some(self), policy, tokens, jwt)
    }

    fn after(
        known: Option<&Self>,
        policy: Policy,
        tokens: Option<&Path>,
        jwt: Option<(Where, Expected)>,
    ) -> Result<Self, String> {
        let known_tokens = known.and_then(|known| known.tokens.as_ref());
        let tokens = tokens.map(|path| {
            if let Some(same) = known_tokens.filter(|(known, _)| known == path) {
                return Ok(same.clone());
            }
            let failed = || metrics::access_reload_failed("tokens");
            let watched = Watched::open([path], "tokens", failed, |[text]| Tokens::parse(text))?;
            Ok::<_, String>((path.to_owned(), Arc::new(watched)))
        });
        let known_jwt = known.and_then(|known| known.jwt.as_ref());
        let jwt = jwt.map(|(keys, expected)| Jwt::open(keys, expected, known_jwt));
        Ok(Self { policy, tokens: tokens.transpose()?, jwt: jwt.transpose()? })
    }

    /// Waits a few seconds at most for an issuer's keys that have never come.
    pub async fn first_keys(&self) {
        if let Some(jwt) = &self.jwt {
            jwt.first_keys().await;
        }
    }

    /// Whether callers can be told by all that is configured; an issuer's keys may not have come yet.
    pub fn has_keys(&self) -> bool {
        self.jwt.as_ref().is_none_or(Jwt::has_keys)
    }

    /// What may be read by whom.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Whose token this is.
    ///
    /// Waits for the issuer's keys at most a few seconds, and only where a JWT names a key that is not known.
    ///
    /// # Errors
    /// [`Rejection`].
    pub async fn caller(&self, token: &str, now: SystemTime) -> Result<Caller, Rejection> {
        if token.len() > TOKEN_BYTES {
            return Err(Rejection::Malformed);
        }
        match &self.jwt {
            Some(jwt) if jwt::is_like_one(token) => jwt.caller(token).await,
            _ => {
                let (_, tokens) = self.tokens.as_ref().ok_or(Rejection::Unknown)?;
                tokens.current().caller(token, now)
            }
        }
    }
}
