//! Who asks.

use std::fmt;

/// Somebody whose token was found good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Whether a JWT says who this is; else it is a token of the file. Rules tell the two apart, since an issuer may let
    /// people choose their names.
    pub(super) is_jwt: bool,
    pub(super) name: String,
    pub(super) groups: Vec<String>,
    /// Paths that the token itself opens; `None` where rules alone decide.
    pub(super) reads: Option<Vec<String>>,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_jwt {
            f.write_str("jwt:")?;
        }
        f.write_str(&self.name)
    }
}
