//! Keys of an issuer of JWTs, from a file or a URL, kept up to date.

use std::path::PathBuf;
use std::sync::Arc;

use super::jwks_fetcher::{JwksFetcher, RefreshPolicy};
use super::key_set::KeySet;
use super::token_error::TokenError;
use crate::metrics;
use crate::watched_files::WatchedFiles;

/// Location of an issuer's keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JwksLocation {
    /// A file, which is reloaded when it changes.
    File(PathBuf),
    /// An `https` URL. Its certificate is verified with the root certificates of a file, or with those that browsers
    /// trust.
    Url {
        /// URL of the JWK set.
        url: String,
        /// PEM file of root certificates.
        root_certificates: Option<PathBuf>,
        /// Intervals between fetches, and the maximum age of the keys.
        refresh_policy: RefreshPolicy,
    },
}

/// Keys of an issuer, kept up to date.
#[derive(Debug)]
pub(super) struct IssuerKeys {
    location: JwksLocation,
    source: JwksSource,
}

#[derive(Debug)]
enum JwksSource {
    File(WatchedFiles<KeySet>),
    Url(JwksFetcher),
}

impl IssuerKeys {
    /// Opens the keys, or returns `known` if it has the same location. If only the refresh policy differs, the keys of
    /// `known` stay in use until they are fetched again.
    ///
    /// # Errors
    /// Returns a message if a file cannot be used or no thread can be started.
    pub(super) fn open(location: JwksLocation, known: Option<&Arc<Self>>) -> Result<Arc<Self>, String> {
        if let Some(known) = known.filter(|known| known.location == location) {
            return Ok(Arc::clone(known));
        }
        let source = match &location {
            JwksLocation::File(path) => {
                let failed = || metrics::access_reload_failed("keys");
                JwksSource::File(WatchedFiles::open([path], "keys", failed, |[text]| KeySet::parse(text))?)
            }
            JwksLocation::Url { url, root_certificates, refresh_policy } => {
                let known = known.and_then(|known| known.fetcher_for(url, root_certificates.as_ref()));
                JwksSource::Url(JwksFetcher::start(url.clone(), root_certificates.as_deref(), *refresh_policy, known)?)
            }
        };
        Ok(Arc::new(Self { location, source }))
    }

    fn fetcher_for(&self, wanted_url: &str, wanted_roots: Option<&PathBuf>) -> Option<&JwksFetcher> {
        match (&self.location, &self.source) {
            (JwksLocation::Url { url, root_certificates, .. }, JwksSource::Url(fetcher)) => {
                (url == wanted_url && root_certificates.as_ref() == wanted_roots).then_some(fetcher)
            }
            _ => None,
        }
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
