//! An issuer's keys from a URL. A dedicated thread fetches them at regular intervals, and when a JWT names an unknown
//! key.

use std::fmt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::TokenError;
use super::jwks::KeySet;
use crate::metrics::{self, QueueLabel, QueueWaitTimer};
use crate::watched_files;

/// Maximum size of a JWK set in bytes.
const MAX_BODY_BYTES: u64 = 512 << 10;

/// Time limit for a whole fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time that a request waits for keys that may be arriving.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of requests that wait concurrently. Their callers are not authenticated yet, so they must not keep
/// out other requests.
const MAX_WAITERS: usize = 32;

/// Interval between a failed fetch and the next one.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Intervals between fetches, and the maximum age of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefreshPolicy {
    /// Interval between regular fetches.
    pub refresh_interval: Duration,
    /// Minimum interval between fetches, even if JWTs name unknown keys.
    pub min_interval: Duration,
    /// Maximum age of keys that stay valid while the issuer is unreachable.
    pub max_stale: Duration,
}

/// Keys, and the time of their fetch.
type FetchedKeys = Option<(Arc<KeySet>, Instant)>;

/// Fetches keys from a URL.
pub(super) struct JwksFetcher {
    keys: Arc<RwLock<FetchedKeys>>,
    /// Requests a fetch. The thread ends when this is dropped.
    fetch_request: SyncSender<()>,
    /// Number of finished fetches, successful or not, and the start of the last one.
    finished_fetches: watch::Receiver<(u64, Option<Instant>)>,
    waiters: Semaphore,
    refresh_policy: RefreshPolicy,
}

impl fmt::Debug for JwksFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwksFetcher").field("patience", &self.refresh_policy).finish_non_exhaustive()
    }
}

impl JwksFetcher {
    /// Starts the thread that fetches the keys. Returns before they arrive, because the server must start even if the
    /// issuer is unreachable. Until then, the keys of `known` stay in use.
    ///
    /// # Errors
    /// Returns a message if certificates cannot be read or no thread can be started.
    pub(super) fn start(
        url: String,
        roots: Option<&Path>,
        patience: RefreshPolicy,
        known: Option<&Self>,
    ) -> Result<Self, String> {
        let agent = build_agent(roots)?;
        let known = known.and_then(|known| known.keys.read().unwrap_or_else(PoisonError::into_inner).clone());
        let known: Arc<RwLock<FetchedKeys>> = Arc::new(RwLock::new(known));
        // A capacity of 1 is enough: one fetch serves all requests that arrive during the previous one.
        let (ask, asked) = sync_channel(1);
        let (ended, rounds) = watch::channel((0, None));
        let shared = Arc::clone(&known);
        let fetch = move || {
            let mut failed = 0_u32;
            loop {
                let began = Instant::now();
                match fetch(&agent, &url) {
                    Ok(keys) => {
                        if failed > 0 {
                            tracing::info!(url, "the issuer's keys can be fetched again");
                        }
                        failed = 0;
                        *shared.write().unwrap_or_else(PoisonError::into_inner) = Some((Arc::new(keys), began));
                    }
                    Err(why) => {
                        failed = failed.saturating_add(1);
                        metrics::access_reload_failed("keys");
                        tracing::error!(url, why, failed, "the issuer's keys cannot be fetched");
                    }
                }
                ended.send_modify(|(rounds, last)| (*rounds, *last) = (*rounds + 1, Some(began)));
                let pause =
                    if failed > 0 { RETRY_INTERVAL.min(patience.refresh_interval) } else { patience.refresh_interval };
                let next = Instant::now() + pause;
                loop {
                    match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
                        // Requested within `min_interval` after this fetch began: its keys serve this request.
                        Ok(()) if began.elapsed() < patience.min_interval => {}
                        Ok(()) | Err(RecvTimeoutError::Timeout) => break,
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            }
        };
        let started = std::thread::Builder::new().name("fetch-keys".to_owned()).spawn(fetch);
        started.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            keys: known,
            fetch_request: ask,
            finished_fetches: rounds,
            waiters: Semaphore::new(MAX_WAITERS),
            refresh_policy: patience,
        })
    }

    /// Returns true if keys have been fetched, valid or too old.
    pub(super) fn has_keys(&self) -> bool {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits until the first fetch succeeds or fails, for a bounded time.
    pub(super) async fn wait_for_first_fetch(&self) {
        if !self.has_keys() {
            let mut rounds = self.finished_fetches.clone();
            let _ = tokio::time::timeout(WAIT_TIMEOUT, rounds.wait_for(|(rounds, _)| *rounds > 0)).await;
        }
    }

    /// Returns the keys unless they are too old.
    fn valid_keys(&self) -> Option<Arc<KeySet>> {
        let known = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let good = known.as_ref().filter(|(_, came)| came.elapsed() <= self.refresh_policy.max_stale);
        good.map(|(keys, _)| Arc::clone(keys))
    }

    /// Like [`super::jwks::IssuerKeys::keys_for`].
    pub(super) async fn keys_for(&self, id: Option<&str>) -> Result<Arc<KeySet>, TokenError> {
        let has = |keys: &Arc<KeySet>| id.is_none_or(|id| keys.has_key_id(id));
        if let Some(keys) = self.valid_keys().filter(has) {
            return Ok(keys);
        }
        let Ok(_place) = self.waiters.try_acquire() else {
            return self.valid_keys().ok_or(TokenError::KeysUnavailable);
        };
        let mut rounds = self.finished_fetches.clone();
        let last = rounds.borrow_and_update().1;
        // The first fetch has already begun. Later ones are rate-limited: otherwise JWTs with invented key ids would
        // make this server overload the issuer.
        let is_allowed = last.is_none_or(|began| began.elapsed() >= self.refresh_policy.min_interval);
        if is_allowed {
            if last.is_some() {
                match self.fetch_request.try_send(()) {
                    Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
                }
            }
            let _waiting = QueueWaitTimer::begin(QueueLabel::Keys);
            let _ = tokio::time::timeout(WAIT_TIMEOUT, rounds.changed()).await;
        }
        self.valid_keys().ok_or(TokenError::KeysUnavailable)
    }
}

fn build_agent(roots: Option<&Path>) -> Result<Agent, String> {
    let roots = match roots {
        None => RootCerts::WebPki,
        Some(path) => {
            let text = watched_files::read_small_file(path).map_err(|why| format!("{}: {why}", path.display()))?;
            let certificates: Vec<Certificate<'static>> = parse_pem(text.as_bytes())
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            if certificates.is_empty() {
                return Err(format!("{}: contains no PEM certificate", path.display()));
            }
            RootCerts::new_with_certs(&certificates)
        }
    };
    let config = Agent::config_builder()
        .https_only(true)
        .timeout_global(Some(FETCH_TIMEOUT))
        .max_redirects(3)
        // The environment's proxy variables are not part of the configuration.
        .proxy(None)
        .max_idle_connections(0)
        .user_agent(concat!("n5-server/", env!("CARGO_PKG_VERSION")))
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .build();
    Ok(config.into())
}

fn fetch(agent: &Agent, url: &str) -> Result<KeySet, String> {
    let answer = agent.get(url).header("accept", "application/json").call().map_err(|error| error.to_string())?;
    let body = answer.into_body().into_with_config().limit(MAX_BODY_BYTES).read_to_string();
    KeySet::parse(&body.map_err(|error| error.to_string())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(known: Option<&JwksFetcher>) -> JwksFetcher {
        let patience = RefreshPolicy {
            refresh_interval: WAIT_TIMEOUT,
            min_interval: WAIT_TIMEOUT,
            max_stale: Duration::from_secs(3600),
        };
        // No server listens on this port.
        JwksFetcher::start("https://127.0.0.1:1/keys".to_owned(), None, patience, known).unwrap()
    }

    #[tokio::test]
    async fn keys_of_before_are_good_while_the_issuer_is_away() {
        let before = start(None);
        before.wait_for_first_fetch().await;
        assert_eq!(before.keys_for(None).await.unwrap_err(), TokenError::KeysUnavailable);
        let key = format!(r#"{{"keys": [{{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "{}"}}]}}"#, "A".repeat(43));
        *before.keys.write().unwrap() = Some((Arc::new(KeySet::parse(&key).unwrap()), Instant::now()));
        let after = start(Some(&before));
        drop(before);
        after.wait_for_first_fetch().await;
        assert!(after.has_keys() && after.keys_for(Some("a")).await.unwrap().has_key_id("a"));
    }
}
