//! The authenticated caller of a request, and the reasons to refuse a token.

use std::fmt;

/// A caller with a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// True if a JWT names the caller, false if a token of the token file does. Rules distinguish the two, because an
    /// issuer may let people choose their names.
    pub(super) is_jwt: bool,
    pub(super) name: String,
    pub(super) groups: Vec<String>,
    /// Paths that the token may read; `None` if only rules restrict the token.
    pub(super) allowed_paths: Option<Vec<String>>,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_jwt {
            f.write_str("jwt:")?;
        }
        f.write_str(&self.name)
    }
}

/// Reason why a token does not authenticate a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token was never issued, or it was revoked.
    #[error("the token is unknown")]
    Unknown,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The JWT is not valid yet.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// The JWT is not well formed, or lacks a required claim.
    #[error("the token is malformed or lacks a required claim")]
    Malformed,
    /// The JWT is signed by none of the issuer's keys, or with an algorithm that is not accepted.
    #[error("the token is not signed with an accepted key and algorithm")]
    BadSignature,
    /// The JWT is from another issuer or for another audience.
    #[error("the token is from another issuer or for another audience")]
    WrongAudience,
    /// The issuer's keys are not available, so the token cannot be verified.
    #[error("the issuer's keys are not available")]
    KeysUnavailable,
}

impl TokenError {
    /// Returns the name that metrics and logs use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown_token",
            Self::Expired => "expired_token",
            Self::NotYetValid => "early_token",
            Self::Malformed => "malformed_token",
            Self::BadSignature => "bad_signature",
            Self::WrongAudience => "wrong_audience",
            Self::KeysUnavailable => "no_keys",
        }
    }
}
