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

use super::key_set::KeySet;
use super::token_error::TokenError;
use crate::config::JwtConfig;
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
    /// Minimum interval between fetches, even if JWTs name unknown keys.
    refetch: Duration,
    /// Maximum age of keys that stay valid while the issuer is unreachable.
    stale: Duration,
}

impl fmt::Debug for JwksFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwksFetcher")
            .field("refetch", &self.refetch)
            .field("stale", &self.stale)
            .finish_non_exhaustive()
    }
}

impl JwksFetcher {
    /// Starts the thread that fetches the keys. Returns before they arrive, because the server must start even if the
    /// issuer is unreachable. Until then, the keys of `initial_keys` stay in use.
    ///
    /// # Errors
    /// Returns a message if certificates cannot be read or no thread can be started.
    pub(super) fn start(config: &JwtConfig, known: Option<&Self>) -> Result<Self, String> {
        let roots = Some(config.roots.as_path()).filter(|path| !path.as_os_str().is_empty());
        let (agent, url) = (build_agent(roots)?, config.keys.clone());
        let (refresh, refetch) = (config.refresh, config.refetch);
        let initial_keys = known.and_then(|known| known.keys.read().unwrap_or_else(PoisonError::into_inner).clone());
        let keys = Arc::new(RwLock::new(initial_keys));
        // A capacity of 1 is enough: one fetch serves all requests that arrive during the previous one.
        let (fetch_request, fetch_receiver) = sync_channel(1);
        let (finished_sender, finished_fetches) = watch::channel((0, None));
        let shared_keys = Arc::clone(&keys);
        let fetch = move || {
            let mut failed = 0_u32;
            loop {
                let started = Instant::now();
                match fetch(&agent, &url) {
                    Ok(keys) => {
                        if failed > 0 {
                            tracing::info!(url, "the issuer's keys can be fetched again");
                        }
                        failed = 0;
                        *shared_keys.write().unwrap_or_else(PoisonError::into_inner) = Some((Arc::new(keys), started));
                    }
                    Err(why) => {
                        failed = failed.saturating_add(1);
                        metrics::access_reload_failed("keys");
                        tracing::error!(url, why, failed, "the issuer's keys cannot be fetched");
                    }
                }
                finished_sender.send_modify(|(rounds, last)| (*rounds, *last) = (*rounds + 1, Some(started)));
                let pause = if failed > 0 { RETRY_INTERVAL.min(refresh) } else { refresh };
                let next_fetch = Instant::now() + pause;
                loop {
                    match fetch_receiver.recv_timeout(next_fetch.saturating_duration_since(Instant::now())) {
                        // Requested within `jwt.refetch` after this fetch began: its keys serve this request.
                        Ok(()) if started.elapsed() < refetch => {}
                        Ok(()) | Err(RecvTimeoutError::Timeout) => break,
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            }
        };
        let started = std::thread::Builder::new().name("fetch-keys".to_owned()).spawn(fetch);
        started.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            keys,
            fetch_request,
            finished_fetches,
            waiters: Semaphore::new(MAX_WAITERS),
            refetch,
            stale: config.stale,
        })
    }

    /// Returns true if keys have been fetched, valid or too old.
    pub(super) fn has_keys(&self) -> bool {
        self.keys.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits until the first fetch succeeds or fails, for a bounded time.
    pub(super) async fn wait_for_first_fetch(&self) {
        if !self.has_keys() {
            let mut finished_fetches = self.finished_fetches.clone();
            let _ = tokio::time::timeout(WAIT_TIMEOUT, finished_fetches.wait_for(|(rounds, _)| *rounds > 0)).await;
        }
    }

    /// Returns the keys unless they are too old.
    fn valid_keys(&self) -> Option<Arc<KeySet>> {
        let fetched = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let valid = fetched.as_ref().filter(|(_, fetched_at)| fetched_at.elapsed() <= self.stale);
        valid.map(|(keys, _)| Arc::clone(keys))
    }

    /// Like [`super::jwks::IssuerKeys::keys_for`].
    pub(super) async fn keys_for(&self, id: Option<&str>) -> Result<Arc<KeySet>, TokenError> {
        let has_id = |keys: &Arc<KeySet>| id.is_none_or(|id| keys.has_key_id(id));
        if let Some(keys) = self.valid_keys().filter(has_id) {
            return Ok(keys);
        }
        let Ok(_waiter_permit) = self.waiters.try_acquire() else {
            return self.valid_keys().ok_or(TokenError::KeysUnavailable);
        };
        let mut finished_fetches = self.finished_fetches.clone();
        let last_started = finished_fetches.borrow_and_update().1;
        // The first fetch has already begun. Later ones are rate-limited: otherwise JWTs with invented key ids would
        // make this server overload the issuer.
        let is_allowed = last_started.is_none_or(|began| began.elapsed() >= self.refetch);
        if is_allowed {
            if last_started.is_some() {
                match self.fetch_request.try_send(()) {
                    Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
                }
            }
            let _wait_timer = QueueWaitTimer::begin(QueueLabel::Keys);
            let _ = tokio::time::timeout(WAIT_TIMEOUT, finished_fetches.changed()).await;
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
    let response = agent.get(url).header("accept", "application/json").call().map_err(|error| error.to_string())?;
    let body = response.into_body().into_with_config().limit(MAX_BODY_BYTES).read_to_string();
    KeySet::parse(&body.map_err(|error| error.to_string())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(known: Option<&JwksFetcher>) -> JwksFetcher {
        let config = JwtConfig {
            // No server listens on this port.
            keys: "https://127.0.0.1:1/keys".to_owned(),
            refresh: WAIT_TIMEOUT,
            refetch: WAIT_TIMEOUT,
            stale: Duration::from_secs(3600),
            ..JwtConfig::default()
        };
        JwksFetcher::start(&config, known).unwrap()
    }

    #[tokio::test]
    async fn previous_keys_stay_valid_while_the_issuer_is_unreachable() {
        let previous = start(None);
        previous.wait_for_first_fetch().await;
        assert_eq!(previous.keys_for(None).await.unwrap_err(), TokenError::KeysUnavailable);
        let key = format!(r#"{{"keys": [{{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "{}"}}]}}"#, "A".repeat(43));
        *previous.keys.write().unwrap() = Some((Arc::new(KeySet::parse(&key).unwrap()), Instant::now()));
        let reloaded = start(Some(&previous));
        drop(previous);
        reloaded.wait_for_first_fetch().await;
        assert!(reloaded.has_keys() && reloaded.keys_for(Some("a")).await.unwrap().has_key_id("a"));
    }
}
