//! Keys of an issuer of JWTs: a JWK set (RFC 7517) from a file or a URL, kept up to date.
//!
//! A dedicated thread fetches the keys of a URL at regular intervals, and when a JWT names an unknown key.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use jsonwebtoken::jwk::{Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey};
use serde_json::Value;
use tokio::sync::{Semaphore, watch};

use super::caller::TokenError;
use crate::config::JwtConfig;
use crate::http_client::{BlockingHttpClient, HttpClientOptions};
use crate::runtime::watched_files::{WatchedFiles, read_small_file};
use crate::telemetry::metrics::{self, QueueLabel, QueueWaitTimer};

/// Maximum number of keys in a set. Further keys are ignored.
const MAX_KEYS: usize = 100;

/// A key that verifies signatures.
#[derive(Debug)]
struct VerificationKey {
    id: Option<String>,
    algorithm: Option<String>,
    key: DecodingKey,
}

/// Key set of an issuer.
#[derive(Debug)]
pub(super) struct KeySet(Vec<VerificationKey>);

impl KeySet {
    /// Parses a JWK set. Keys of unknown types, and keys that are not for signatures, are ignored.
    ///
    /// # Errors
    /// Returns a message if there is no usable key.
    fn parse(text: &str) -> Result<Self, String> {
        let document: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
        let keys = document.get("keys").and_then(Value::as_array).ok_or("is not a JWK set: it has no list \"keys\"")?;
        let keys: Vec<VerificationKey> = keys.iter().take(MAX_KEYS).filter_map(VerificationKey::from_jwk).collect();
        if keys.is_empty() {
            return Err("has no public key for signatures (RSA, EC or OKP)".to_owned());
        }
        Ok(Self(keys))
    }

    /// Returns the key with the id and algorithm in the header of a JWT. If the header has no id, returns the only key
    /// for the algorithm, or `None` if there are several.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let name = format!("{algorithm:?}");
        let fits = |key: &&VerificationKey| {
            key.key.family() == algorithm.family() && key.algorithm.as_ref().is_none_or(|known| *known == name)
        };
        let mut fitting = self.0.iter().filter(fits).filter(|key| id.is_none() || key.id.as_deref() == id);
        let first = fitting.next()?;
        // If several keys fit, the server does not guess which one is meant.
        fitting.next().is_none().then_some(&first.key)
    }

    /// Returns true if there is a key with this id, for any algorithm.
    fn has_key_id(&self, id: &str) -> bool {
        self.0.iter().any(|key| key.id.as_deref() == Some(id))
    }
}

impl VerificationKey {
    fn from_jwk(value: &Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value.clone()).ok()?;
        let key = DecodingKey::from_jwk(&jwk).ok().filter(|key| key.family() != AlgorithmFamily::Hmac)?;
        let is_for_signatures = jwk.common.public_key_use.is_none_or(|purpose| purpose == PublicKeyUse::Signature);
        let operations = jwk.common.key_operations.as_deref();
        let may_verify = operations.is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        let algorithm = value.get("alg").and_then(Value::as_str).map(str::to_owned);
        (is_for_signatures && may_verify).then_some(Self { id: jwk.common.key_id, algorithm, key })
    }
}

/// Keys of an issuer, kept up to date.
#[derive(Debug)]
pub(super) enum IssuerKeys {
    File(WatchedFiles<KeySet>),
    Url(JwksFetcher),
}

impl IssuerKeys {
    /// Opens the keys. Returns the `known` keys instead if they have the same location and, for a URL, the same
    /// intervals between fetches. If only the intervals differ, the known keys stay in use until the next fetch.
    ///
    /// # Errors
    /// Returns a message if a file cannot be used or no thread can be started.
    pub(super) fn open(config: &JwtConfig, known: Option<(&JwtConfig, &Arc<Self>)>) -> Result<Arc<Self>, String> {
        // Root certificates matter only for keys from a URL.
        let is_url = config.keys.contains("://");
        let location = |config: &JwtConfig| (config.keys.clone(), is_url.then(|| config.roots.clone()));
        let intervals = |config: &JwtConfig| (config.refresh, config.refetch, config.stale);
        let known = known.filter(|(known_config, _)| location(known_config) == location(config));
        if let Some((known_config, keys)) = known
            && (!is_url || intervals(known_config) == intervals(config))
        {
            return Ok(Arc::clone(keys));
        }
        if is_url {
            let known_fetcher = known.and_then(|(_, keys)| match &**keys {
                Self::Url(fetcher) => Some(fetcher),
                Self::File(_) => None,
            });
            return Ok(Arc::new(Self::Url(JwksFetcher::start(config, known_fetcher)?)));
        }
        let failed = || metrics::access_reload_failed("keys");
        let path = Path::new(&config.keys);
        let watched = WatchedFiles::open([path], "keys", failed, |[text]| KeySet::parse(text))?;
        Ok(Arc::new(Self::File(watched)))
    }

    /// If no keys have been available so far, waits at most a few seconds for the first ones.
    pub(super) async fn wait_for_first_fetch(&self) {
        if let Self::Url(fetcher) = self {
            fetcher.wait_for_first_fetch().await;
        }
    }

    /// Returns true if keys have ever been available.
    pub(super) fn has_keys(&self) -> bool {
        match self {
            Self::File(_) => true,
            Self::Url(fetcher) => fetcher.has_keys(),
        }
    }

    /// Returns the keys. If `id` is unknown, fetches the keys again and waits a bounded time for them.
    pub(super) async fn keys_for(&self, id: Option<&str>) -> Result<Arc<KeySet>, TokenError> {
        match self {
            Self::File(file) => Ok(file.current()),
            Self::Url(fetcher) => fetcher.keys_for(id).await,
        }
    }
}

/// Maximum size of a JWK set in bytes.
const MAX_BODY_BYTES: usize = 512 << 10;

/// Maximum number of redirects that a fetch follows.
const MAX_REDIRECTS: usize = 3;

/// Time limit for a whole fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time that a request waits for keys that may be arriving.
const WAIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of requests that wait for keys at the same time. The callers of these requests are not authenticated
/// yet, so the requests must not displace others.
const MAX_WAITERS: usize = 32;

/// Interval between a failed fetch and the next one.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Fetches the keys of an issuer from a URL.
pub(super) struct JwksFetcher {
    /// Keys, and the time at which they were fetched. The thread replaces them. Requests read them without waiting.
    keys: watch::Sender<Option<(Arc<KeySet>, Instant)>>,
    /// Asks the thread for a fetch. The thread ends when this sender is dropped.
    fetch_request: SyncSender<()>,
    /// Number of finished fetches, successful or not, and the start time of the last one.
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
    /// issuer is unreachable. Until then, the keys of `known` stay in use.
    ///
    /// # Errors
    /// Returns a message if certificates cannot be read or no thread can be started.
    fn start(config: &JwtConfig, known: Option<&Self>) -> Result<Self, String> {
        let roots = Some(config.roots.as_path()).filter(|path| !path.as_os_str().is_empty());
        let client = build_client(roots)?;
        let keys = watch::Sender::new(known.and_then(|known| known.keys.borrow().clone()));
        // A capacity of 1 is enough, because one fetch serves all requests that arrive during the previous fetch.
        let (fetch_request, fetch_requests) = sync_channel(1);
        let (finished_sender, finished_fetches) = watch::channel((0, None));
        let fetch_keys = {
            let (config, keys) = (config.clone(), keys.clone());
            move || run_fetches(&client, &config, &keys, &finished_sender, &fetch_requests)
        };
        let started = std::thread::Builder::new().name("fetch-keys".to_owned()).spawn(fetch_keys);
        started.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            keys,
            fetch_request,
            finished_fetches,
            waiters: Semaphore::new(MAX_WAITERS),
            refetch: config.refetch,
            stale: config.stale,
        })
    }

    /// Returns true if keys have been fetched, even if they are too old by now.
    fn has_keys(&self) -> bool {
        self.keys.borrow().is_some()
    }

    /// Waits until the first fetch succeeds or fails, for a bounded time.
    async fn wait_for_first_fetch(&self) {
        if !self.has_keys() {
            let mut finished_fetches = self.finished_fetches.clone();
            let _ = tokio::time::timeout(WAIT_TIMEOUT, finished_fetches.wait_for(|(rounds, _)| *rounds > 0)).await;
        }
    }

    /// Returns the keys unless they are too old.
    fn valid_keys(&self) -> Option<Arc<KeySet>> {
        let fetched = self.keys.borrow();
        let valid = fetched.as_ref().filter(|(_, fetched_at)| fetched_at.elapsed() <= self.stale);
        valid.map(|(keys, _)| Arc::clone(keys))
    }

    /// Returns the keys as described at [`IssuerKeys::keys_for`].
    async fn keys_for(&self, id: Option<&str>) -> Result<Arc<KeySet>, TokenError> {
        let has_id = |keys: &Arc<KeySet>| id.is_none_or(|id| keys.has_key_id(id));
        if let Some(keys) = self.valid_keys().filter(has_id) {
            return Ok(keys);
        }
        let Ok(_waiter_permit) = self.waiters.try_acquire() else {
            return self.valid_keys().ok_or(TokenError::KeysUnavailable);
        };
        let mut finished_fetches = self.finished_fetches.clone();
        let last_started = finished_fetches.borrow_and_update().1;
        // A request starts no fetch before the first one has ended, nor within `jwt.refetch` of the last one. Otherwise
        // JWTs with invented key ids could make this server overload the issuer.
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

/// Fetches the keys at regular intervals, and when a JWT names an unknown key. Returns when the sender of `requests` is
/// dropped.
fn run_fetches(
    client: &BlockingHttpClient,
    config: &JwtConfig,
    keys: &watch::Sender<Option<(Arc<KeySet>, Instant)>>,
    finished_fetches: &watch::Sender<(u64, Option<Instant>)>,
    requests: &Receiver<()>,
) {
    let url = &config.keys;
    let mut failed = 0_u32;
    loop {
        let started = Instant::now();
        match fetch(client, url) {
            Ok(fetched) => {
                if failed > 0 {
                    tracing::info!(url, "the issuer's keys can be fetched again");
                }
                failed = 0;
                keys.send_replace(Some((Arc::new(fetched), started)));
            }
            Err(why) => {
                failed = failed.saturating_add(1);
                metrics::access_reload_failed("keys");
                tracing::error!(url, why, failed, "the issuer's keys cannot be fetched");
            }
        }
        finished_fetches.send_modify(|(rounds, last)| (*rounds, *last) = (*rounds + 1, Some(started)));
        let pause = if failed > 0 { RETRY_INTERVAL.min(config.refresh) } else { config.refresh };
        let next_fetch = Instant::now() + pause;
        loop {
            match requests.recv_timeout(next_fetch.saturating_duration_since(Instant::now())) {
                // A request that arrives within `jwt.refetch` of the start of this fetch uses the keys of this fetch.
                Ok(()) if started.elapsed() < config.refetch => {}
                Ok(()) | Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn build_client(roots: Option<&Path>) -> Result<BlockingHttpClient, String> {
    let in_file = |why: String| match roots {
        Some(path) => format!("{}: {why}", path.display()),
        None => why,
    };
    let options = HttpClientOptions {
        roots: roots.map(read_small_file).transpose().map_err(in_file)?,
        is_https_only: true,
        // Proxy variables of the environment are ignored, because they are not part of the configuration.
        uses_proxy: false,
        ..HttpClientOptions::default()
    };
    BlockingHttpClient::new(&options, FETCH_TIMEOUT).map_err(in_file)
}

fn fetch(client: &BlockingHttpClient, url: &str) -> Result<KeySet, String> {
    let body = client.get(url, "application/json", MAX_BODY_BYTES, MAX_REDIRECTS)?;
    KeySet::parse(str::from_utf8(&body).map_err(|error| format!("is not text: {error}"))?)
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
        previous.keys.send_replace(Some((Arc::new(KeySet::parse(&key).unwrap()), Instant::now())));
        let reloaded = start(Some(&previous));
        drop(previous);
        reloaded.wait_for_first_fetch().await;
        assert!(reloaded.has_keys() && reloaded.keys_for(Some("a")).await.unwrap().has_key_id("a"));
    }
}
