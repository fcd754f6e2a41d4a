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
mod watched;

use std::path::Path;
use std::time::SystemTime;

pub use caller::Caller;
pub use fetched::Patience;
pub use jwt::Expected;
pub use keys::Where;
pub use policy::{Decision, Policy, PolicyError};
pub use tokens::{Issued, issue};

use jwt::Jwt;
use tokens::Tokens;
use watched::Watched;

/// Longer texts are no tokens.
const TOKEN_BYTES: usize = 16 << 10;

/// Who may read what, and how callers say who they are.
#[derive(Debug)]
pub struct Control {
    policy: Policy,
    tokens: Option<Watched<Tokens>>,
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
        let tokens = tokens.map(|path| Watched::open(path, "tokens", Tokens::parse)).transpose()?;
        let jwt = jwt.map(|(keys, expected)| Jwt::open(keys, expected)).transpose()?;
        Ok(Self { policy, tokens, jwt })
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
            _ => self.tokens.as_ref().ok_or(Rejection::Unknown)?.current().caller(token, now),
        }
    }
}
