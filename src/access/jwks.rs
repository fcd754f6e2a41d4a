//! Keys of an issuer of JWTs, from a file or a URL, kept up to date.

use std::path::Path;
use std::sync::Arc;

use super::jwks_fetcher::JwksFetcher;
use super::key_set::KeySet;
use super::token_error::TokenError;
use crate::config::JwtConfig;
use crate::metrics;
use crate::watched_files::WatchedFiles;

/// Keys of an issuer, kept up to date.
#[derive(Debug)]
pub(super) enum IssuerKeys {
    File(WatchedFiles<KeySet>),
    Url(JwksFetcher),
}

impl IssuerKeys {
    /// Opens the keys, or returns the `known` ones if they were opened with the same location and, for a URL, the same
    /// intervals between fetches. If only the intervals differ, the known keys stay in use until they are fetched again.
    ///
    /// # Errors
    /// Returns a message if a file cannot be used or no thread can be started.
    pub(super) fn open(config: &JwtConfig, known: Option<(&JwtConfig, &Arc<Self>)>) -> Result<Arc<Self>, String> {
        // Certificates of roots matter only to connections.
        let is_url = config.keys.contains("://");
        let location = |config: &JwtConfig| (config.keys.clone(), is_url.then(|| config.roots.clone()));
        let intervals = |config: &JwtConfig| (config.refresh, config.refetch, config.stale);
        let known = known.filter(|(known_config, _)| location(known_config) == location(config));
        let keys = match known.map(|(known_config, keys)| (known_config, keys, &**keys)) {
            Some((_, keys, Self::File(_))) => return Ok(Arc::clone(keys)),
            Some((known_config, keys, Self::Url(_))) if intervals(known_config) == intervals(config) => {
                return Ok(Arc::clone(keys));
            }
            Some((_, _, Self::Url(fetcher))) => Self::Url(JwksFetcher::start(config, Some(fetcher))?),
            None if is_url => Self::Url(JwksFetcher::start(config, None)?),
            None => {
                let failed = || metrics::access_reload_failed("keys");
                let path = Path::new(&config.keys);
                Self::File(WatchedFiles::open([path], "keys", failed, |[text]| KeySet::parse(text))?)
            }
        };
        Ok(Arc::new(keys))
    }

    /// Waits at most a few seconds for the first keys, if none have been available so far.
    pub(super) async fn wait_for_first_fetch(&self) {
        if let Self::Url(fetcher) = self {
            fetcher.wait_for_first_fetch().await;
        }
    }

    /// Returns true if keys have been available at some time.
    pub(super) fn has_keys(&self) -> bool {
        match self {
            Self::File(_) => true,
            Self::Url(fetcher) => fetcher.has_keys(),
        }
    }

    /// Returns the keys, which include the key `id` if the issuer has it. An unknown id triggers a fetch, for which
    /// this waits a bounded time.
    pub(super) async fn keys_for(&self, id: Option<&str>) -> Result<Arc<KeySet>, TokenError> {
        match self {
            Self::File(file) => Ok(file.current()),
            Self::Url(fetcher) => fetcher.keys_for(id).await,
        }
    }
}
