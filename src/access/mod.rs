//! Access control: tokens authenticate callers, and rules decide what a caller may read.
//!
//! [`Policy`] decides without I/O. The other files of this module load and reload token files and keys. Requests,
//! statuses and headers belong to `http/`.

mod caller;
mod jwks;
mod jwt;
mod policy;
mod token_file;

use crate::config::JwtConfig;
use crate::runtime::watched_files::WatchedFiles;
use crate::telemetry::metrics;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

pub use caller::{Caller, TokenError};
pub use policy::{Decision, Policy};
pub use token_file::{IssuedToken, issue};

use jwt::JwtAuthenticator;
use token_file::TokenFile;

/// Maximum length of a token.
const MAX_TOKEN_BYTES: usize = 16 << 10;

/// Access policy, with the token file and the issuer that authenticate callers.
#[derive(Debug)]
pub struct AccessControl {
    policy: Policy,
    /// Path of the token file and its tokens; `None` if no token file is configured.
    tokens: Option<(PathBuf, Arc<WatchedFiles<TokenFile>>)>,
    jwt: Option<JwtAuthenticator>,
}

impl AccessControl {
    /// Loads the token file and the keys, if they are given. Reloads them when they change, until the access control is
    /// dropped. Keys from a URL may arrive after this returns.
    ///
    /// # Errors
    /// Returns a message about a file that cannot be used.
    pub fn open(policy: Policy, tokens: Option<&Path>, jwt: Option<&JwtConfig>) -> Result<Self, String> {
        Self::open_reusing(None, policy, tokens, jwt)
    }

    /// Returns the access control of a new configuration. Tokens and keys of the same file or URL are reused. An
    /// unreachable issuer or an invalid file then locks out no callers.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::open`].
    pub fn reconfigured(&self, policy: Policy, tokens: Option<&Path>, jwt: Option<&JwtConfig>) -> Result<Self, String> {
        Self::open_reusing(Some(self), policy, tokens, jwt)
    }

    fn open_reusing(
        known: Option<&Self>,
        policy: Policy,
        tokens: Option<&Path>,
        jwt: Option<&JwtConfig>,
    ) -> Result<Self, String> {
        let known_tokens = known.and_then(|known| known.tokens.as_ref());
        let tokens = tokens.map(|path| {
            if let Some(same) = known_tokens.filter(|(known, _)| known == path) {
                return Ok(same.clone());
            }
            let failed = || metrics::access_reload_failed("tokens");
            let watched = WatchedFiles::open([path], "tokens", failed, |[text]| TokenFile::parse(text))?;
            Ok::<_, String>((path.to_owned(), Arc::new(watched)))
        });
        let known_jwt = known.and_then(|known| known.jwt.as_ref());
        let jwt = jwt.map(|config| JwtAuthenticator::open(config, known_jwt));
        Ok(Self { policy, tokens: tokens.transpose()?, jwt: jwt.transpose()? })
    }

    /// If a configured issuer's keys have never been available, waits at most a few seconds for them.
    pub async fn wait_for_first_keys(&self) {
        if let Some(jwt) = &self.jwt {
            jwt.keys.wait_for_first_fetch().await;
        }
    }

    /// Returns false if the keys of a configured issuer have never been available.
    pub fn has_keys(&self) -> bool {
        self.jwt.as_ref().is_none_or(|jwt| jwt.keys.has_keys())
    }

    /// Returns the access policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the number of tokens in the token file.
    pub fn token_count(&self) -> usize {
        self.tokens.as_ref().map_or(0, |(_, tokens)| tokens.current().token_count())
    }

    /// Returns true if a token may have a list of paths that it can read, whatever the rules say.
    pub fn may_limit_paths(&self) -> bool {
        self.jwt.is_some() || self.tokens.as_ref().is_some_and(|(_, tokens)| tokens.current().has_limited_paths())
    }

    /// Verifies a token and returns its caller.
    ///
    /// Waits for the issuer's keys only if a JWT names an unknown key, and at most a few seconds.
    ///
    /// # Errors
    /// Returns [`TokenError`] if the token is not valid or cannot be verified.
    pub async fn authenticate(&self, token: &str, now: SystemTime) -> Result<Caller, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        match &self.jwt {
            Some(jwt) if jwt::looks_like_jwt(token) => jwt.authenticate(token).await,
            _ => {
                let (_, tokens) = self.tokens.as_ref().ok_or(TokenError::Unknown)?;
                tokens.current().authenticate(token, now)
            }
        }
    }
}
