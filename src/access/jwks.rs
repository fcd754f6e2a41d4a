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
pub(super) struct IssuerKeys {
    config: JwtConfig,
    source: JwksSource,
}

#[derive(Debug)]
enum JwksSource {
    File(WatchedFiles<KeySet>),
    Url(JwksFetcher),
}

impl IssuerKeys {
    /// Opens the keys, or returns `known` if it has the same location and, for a URL, the same intervals between fetches.
    /// If only the intervals differ, the keys of `known` stay in use until they are fetched again.
    ///
    /// # Errors
    /// Returns a message if a file cannot be used or no thread can be started.
    pub(super) fn open(config: &JwtConfig, known: Option<&Arc<Self>>) -> Result<Arc<Self>, String> {
        let known = known.filter(|known| known.config.keys == config.keys && known.config.roots == config.roots);
        let intervals = |config: &JwtConfig| (config.refresh, config.refetch, config.stale);
        let source = match known.map(|known| (known, &known.source)) {
            Some((known, JwksSource::File(_))) => return Ok(Arc::clone(known)),
            Some((known, JwksSource::Url(_))) if intervals(&known.config) == intervals(config) => {
                return Ok(Arc::clone(known));
            }
            Some((_, JwksSource::Url(fetcher))) => JwksSource::Url(JwksFetcher::start(config, Some(fetcher))?),
            None if config.keys.contains("://") => JwksSource::Url(JwksFetcher::start(config, None)?),
            None => {
                let failed = || metrics::access_reload_failed("keys");
                let path = Path::new(&config.keys);
                JwksSource::File(WatchedFiles::open([path], "keys", failed, |[text]| KeySet::parse(text))?)
            }
        };
        Ok(Arc::new(Self { config: config.clone(), source }))
    }

    /// Waits at most a few seconds for the first keys, if none have been available so far.
    pub(super) async fn wait_for_first_fetch(&self) {
        if let JwksSource::Url(fetcher) = &self.source {
            fetcher.wait_for_first_fetch().await;
        }
    }

    /// Returns true if keys have been available at some time.
    pub(super) fn has_keys(&self) -> bool {
        match &self.source {
            JwksSource::File(_) => true,
            JwksSource::Url(fetcher) => fetcher.has_keys(),
        }
    }

    /// Returns the keys, which include the key `id` if the issuer has it. An unknown id triggers a fetch, for which
    /// this waits a bounded time.
    pub(super) async fn keys_for(&self, id: Option<&str>) -> Result<Arc<KeySet>, TokenError> {
        match &self.source {
            JwksSource::File(file) => Ok(file.current()),
            JwksSource::Url(fetcher) => fetcher.keys_for(id).await,
        }
    }
}
