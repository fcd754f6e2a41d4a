//! An issuer's keys from a URL: fetched by a thread of their own, now and then and when a name comes that they lack.

use std::fmt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use super::Rejection;
use super::keys::KeySet;
use crate::metrics::{self, Queue, Waiting};
use crate::watched;

/// Most bytes of a JWK set.
const BODY_BYTES: u64 = 512 << 10;

/// Longest time of one fetch, all in all.
const FETCH_TIME: Duration = Duration::from_secs(10);

/// How long a request waits for keys that may be on their way.
const WAIT: Duration = Duration::from_secs(5);

/// How many requests wait at once. Who they are is not known yet: they must not keep others out.
const WAITERS: usize = 32;

/// After a failure it is tried again after this time.
const RETRY: Duration = Duration::from_secs(30);

/// How often keys are fetched, and for how long they are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Fetched anew after this time, asked for or not.
    pub refresh: Duration,
    /// Not fetched more often than this, whatever names come.
    pub least: Duration,
    /// How long keys are good for while the issuer cannot be asked.
    pub stale: Duration,
}

/// Keys, and when they came.
type Known = Option<(Arc<KeySet>, Instant)>;

/// Keys from a URL.
pub(super) struct Fetched {
    known: Arc<RwLock<Known>>,
    /// Asks for a fetch. The thread ends when this is dropped.
    ask: SyncSender<()>,
    /// Fetches that have ended, well or not, and when the last began.
    rounds: watch::Receiver<(u64, Option<Instant>)>,
    waiters: Semaphore,
    patience: Patience,
}

impl fmt::Debug for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetched").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Fetched {
    /// Begins to fetch. Keys need not be there yet when this returns: the server must start without the issuer. Those that
    /// `known` has are good until then.
    ///
    /// # Errors
    /// In words: certificates that cannot be read, or no thread.
    pub(super) fn start(
        url: String,
        roots: Option<&Path>,
        patience: Patience,
        known: Option<&Self>,
    ) -> Result<Self, String> {
        let agent = agent(roots)?;
        let known = known.and_then(|known| known.known.read().unwrap_or_else(PoisonError::into_inner).clone());
        let known: Arc<RwLock<Known>> = Arc::new(RwLock::new(known));
        // One is enough to be told: whatever is asked for while a fetch runs, one more fetch answers.
        let (ask, asked) = sync_channel(1);
        let (ended, rounds) = watch::channel((0, None));
        let shared = Arc::clone(&known);
        let fetch = move || {
            let mut failed = 0_u32;
            loop {
                let began = Instant::now();
                match get(&agent, &url) {
                    Ok(keys) => {
                        if failed > 0 {
                            tracing::info!(url, "the issuer's keys can be had again");
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
                let pause = if failed > 0 { RETRY.min(patience.refresh) } else { patience.refresh };
                let next = Instant::now() + pause;
                loop {
                    match asked.recv_timeout(next.saturating_duration_since(Instant::now())) {
                        // Asked for while this fetch was under way: it has answered that.
                        Ok(()) if began.elapsed() < patience.least => {}
                        Ok(()) | Err(RecvTimeoutError::Timeout) => break,
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            }
        };
        let started = std::thread::Builder::new().name("fetch-keys".to_owned()).spawn(fetch);
        started.map_err(|error| format!("no thread can be started: {error}"))?;
        Ok(Self { known, ask, rounds, waiters: Semaphore::new(WAITERS), patience })
    }

    /// Whether keys have come, be they good or not by now.
    pub(super) fn has_come(&self) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits for the first keys, or the first fetch that fails, for a bounded time.
    pub(super) async fn first(&self) {
        if !self.has_come() {
            let mut rounds = self.rounds.clone();
            let _ = tokio::time::timeout(WAIT, rounds.wait_for(|(rounds, _)| *rounds > 0)).await;
        }
    }

    /// The keys that are good now.
    fn current(&self) -> Option<Arc<KeySet>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let good = known.as_ref().filter(|(_, came)| came.elapsed() <= self.patience.stale);
        good.map(|(keys, _)| Arc::clone(keys))
    }

    /// As [`super::keys::Keys::with`].
    pub(super) async fn with(&self, id: Option<&str>) -> Result<Arc<KeySet>, Rejection> {
        let has = |keys: &Arc<KeySet>| id.is_none_or(|id| keys.has(id));
        if let Some(keys) = self.current().filter(has) {
            return Ok(keys);
        }
        let Ok(_place) = self.waiters.try_acquire() else { return self.current().ok_or(Rejection::NoKeys) };
        let mut rounds = self.rounds.clone();
        let last = rounds.borrow_and_update().1;
        // The first fetch has begun already; later ones begin only so often, or names that nobody has would make us
        // somebody's load.
        let is_allowed = last.is_none_or(|began| began.elapsed() >= self.patience.least);
        if is_allowed {
            if last.is_some() {
                match self.ask.try_send(()) {
                    Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
                }
            }
            let _waiting = Waiting::begin(Queue::Keys);
            let _ = tokio::time::timeout(WAIT, rounds.changed()).await;
        }
        self.current().ok_or(Rejection::NoKeys)
    }
}

fn agent(roots: Option<&Path>) -> Result<Agent, String> {
    let roots = match roots {
        None => RootCerts::WebPki,
        Some(path) => {
            let text = watched::read(path).map_err(|why| format!("{}: {why}", path.display()))?;
            let certificates: Vec<Certificate<'static>> = parse_pem(text.as_bytes())
                .filter_map(|item| match item {
                    Ok(PemItem::Certificate(certificate)) => Some(certificate),
                    _ => None,
                })
                .collect();
            if certificates.is_empty() {
                return Err(format!("{}: holds no certificate in PEM", path.display()));
            }
            RootCerts::new_with_certs(&certificates)
        }
    };
    let config = Agent::config_builder()
        .https_only(true)
        .timeout_global(Some(FETCH_TIME))
        .max_redirects(3)
        // The environment is no part of the configuration.
        .proxy(None)
        .max_idle_connections(0)
        .user_agent(concat!("n5-server/", env!("CARGO_PKG_VERSION")))
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .build();
    Ok(config.into())
}

fn get(agent: &Agent, url: &str) -> Result<KeySet, String> {
    let answer = agent.get(url).header("accept", "application/json").call().map_err(|error| error.to_string())?;
    let body = answer.into_body().into_with_config().limit(BODY_BYTES).read_to_string();
    KeySet::parse(&body.map_err(|error| error.to_string())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(known: Option<&Fetched>) -> Fetched {
        let patience = Patience { refresh: WAIT, least: WAIT, stale: Duration::from_secs(3600) };
        // Nobody listens there.
        Fetched::start("https://127.0.0.1:1/keys".to_owned(), None, patience, known).unwrap()
    }

    #[tokio::test]
    async fn keys_of_before_are_good_while_the_issuer_is_away() {
        let before = start(None);
        before.first().await;
        assert_eq!(before.with(None).await.unwrap_err(), Rejection::NoKeys);
        let key = format!(r#"{{"keys": [{{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "{}"}}]}}"#, "A".repeat(43));
        *before.known.write().unwrap() = Some((Arc::new(KeySet::parse(&key).unwrap()), Instant::now()));
        let after = start(Some(&before));
        drop(before);
        after.first().await;
        assert!(after.has_come() && after.with(Some("a")).await.unwrap().has("a"));
    }
}
