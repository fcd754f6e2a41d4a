//! The authenticated caller of a request.

use std::fmt;

/// A caller with a valid token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// True if the caller is named by a JWT, false if by a token of the token file. Rules distinguish the two, because
    /// an issuer may let people choose their names.
    pub(super) is_jwt: bool,
    pub(super) name: String,
    pub(super) groups: Vec<String>,
    /// Paths to which the token restricts its caller; `None` if only rules decide.
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
