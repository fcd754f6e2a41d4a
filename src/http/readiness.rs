//! Readiness of this server. The check takes a bounded time even if the storage does not respond.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cache::ReadError;
use crate::config::RequiredContainers;
use crate::container::Container;
use crate::http::mount::{self, Mount};
use crate::http::options::HttpOptions;
use crate::http::problem::{self, Problem, ProblemType};
use crate::store::StoreError;
use crate::telemetry::metrics;

/// Time for which the result of a storage probe is reused.
const RESULT_TTL: Duration = Duration::from_secs(1);

/// Maximum wait for a storage probe. It is shorter than the timeout of clients that probe this server, which is one
/// second in Kubernetes.
const PROBE_TIMEOUT: Duration = Duration::from_millis(800);

/// Probe of one container's storage.
#[derive(Default)]
pub(crate) struct StorageProbe {
    /// Time and result of the last probe.
    last_result: watch::Sender<Option<(Instant, StorageHealth)>>,
    /// True while a probe is running. No second probe is started meanwhile, because threads would pile up if the
    /// storage hangs.
    is_in_flight: AtomicBool,
    /// Reason that was logged last; `None` if the storage was readable.
    last_logged: Mutex<Option<&'static str>>,
}

/// Health of a container's storage.
#[derive(Clone)]
enum StorageHealth {
    Readable,
    /// The directory cannot be read. The text is the reason, for the log.
    Unreadable(Arc<str>),
    Unresponsive,
}

impl StorageHealth {
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Readable => None,
            Self::Unreadable(_) => Some("its directory cannot be read"),
            Self::Unresponsive => Some("its storage does not answer"),
        }
    }
}

impl From<Result<(), ReadError>> for StorageHealth {
    fn from(probed: Result<(), ReadError>) -> Self {
        match probed {
            Ok(()) => Self::Readable,
            Err(ReadError::Store(StoreError::Timeout(..) | StoreError::Stalled(..) | StoreError::KeyStalled(..))) => {
                Self::Unresponsive
            }
            Err(error) => Self::Unreadable(error.to_string().into()),
        }
    }
}

/// Returns the readiness document of a server with these `mounts` and a probe for each.
///
/// # Errors
/// Returns a 503 problem if the server is not ready.
pub(crate) async fn check(
    mounts: &[Mount],
    probes: &[Arc<StorageProbe>],
    options: &HttpOptions,
    is_draining: bool,
) -> Result<String, Problem> {
    if is_draining {
        metrics::set_readiness(false, 0);
        return Err(not_ready(problem::OVERLOADED, "the server is shutting down"));
    }
    let states = mounts.iter().zip(probes).map(|(mount, probe)| probe.health(&mount.container));
    let states = join_all(states).await;
    let control = options.access_control.as_deref();
    let mut checks = Vec::new();
    for (index, ((mount, probe), state)) in mounts.iter().zip(probes).zip(&states).enumerate() {
        // Every client may request readiness, but only some may know the names of restricted containers.
        let name = if mount::is_public_mount(control, &mount.name) { json!(mount.name) } else { json!(index) };
        probe.log_change(&mount.name, state);
        checks.push(check_json("container", name, state.reason()));
    }
    let has_keys = control.is_none_or(crate::access::AccessControl::has_keys);
    if control.is_some() {
        let reason = (!has_keys).then_some("the issuer's keys have not been fetched yet");
        checks.push(check_json("access", Value::Null, reason));
    }
    let unready = states.iter().filter(|state| state.reason().is_some()).count();
    let has_required_containers =
        unready == 0 || options.required_containers == RequiredContainers::Any && unready < states.len();
    metrics::set_readiness(has_required_containers && has_keys, u32::try_from(unready).unwrap_or(u32::MAX));
    let kind = match has_required_containers {
        false => problem::STORAGE_UNAVAILABLE,
        true if !has_keys => problem::ISSUER_UNAVAILABLE,
        true => return Ok(json!({ "status": "ready", "checks": checks }).to_string()),
    };
    Err(not_ready(kind, "not all containers can be read").with_member("checks", checks))
}

fn is_fresh((probed_at, _): &(Instant, StorageHealth)) -> bool {
    probed_at.elapsed() < RESULT_TTL
}

impl StorageProbe {
    async fn health(self: &Arc<Self>, container: &Container) -> StorageHealth {
        // A probe may succeed because the kernel has cached data about the directory, although files can no longer be
        // read.
        let is_stalled = container.store_pressure().is_stalled;
        let cached = self.last_result.borrow().clone().filter(is_fresh);
        let result = if cached.is_some() { cached } else { self.probe_or_join(container).await };
        match result {
            Some((_, health)) if !is_stalled || !matches!(health, StorageHealth::Readable) => health,
            Some(_) | None => StorageHealth::Unresponsive,
        }
    }

    /// Probes the storage, or waits for the result of the running probe.
    async fn probe_or_join(self: &Arc<Self>, container: &Container) -> Option<(Instant, StorageHealth)> {
        let mut results = self.last_result.subscribe();
        if !self.is_in_flight.swap(true, Ordering::AcqRel) {
            let probe = Arc::clone(self);
            let container = container.clone();
            // The task continues even if no request waits for it any more, so that the next request finds the result.
            tokio::spawn(async move {
                let state = container.probe().await.into();
                probe.last_result.send_replace(Some((Instant::now(), state)));
                probe.is_in_flight.store(false, Ordering::Release);
            });
        }
        let fresh_result = results.wait_for(|result| result.as_ref().is_some_and(is_fresh));
        let result = tokio::time::timeout(PROBE_TIMEOUT, fresh_result).await.ok()?.ok()?;
        result.clone()
    }

    /// Logs the state if it has changed.
    fn log_change(&self, name: &str, state: &StorageHealth) {
        let reason = state.reason();
        if std::mem::replace(&mut *self.last_logged.lock().unwrap_or_else(PoisonError::into_inner), reason) == reason {
            return;
        }
        match state {
            StorageHealth::Readable => tracing::info!(container = name, "ready again"),
            StorageHealth::Unreadable(why) => tracing::error!(container = name, %why, "not ready"),
            StorageHealth::Unresponsive => tracing::error!(container = name, "not ready: its storage does not answer"),
        }
    }
}

fn check_json(kind: &str, name: Value, reason: Option<&str>) -> Value {
    let mut check = json!({ "check": kind, "ok": reason.is_none() });
    if let Value::Object(members) = &mut check {
        members.extend((!name.is_null()).then(|| ("name".to_owned(), name)));
        members.extend(reason.map(|reason| ("reason".to_owned(), json!(reason))));
    }
    check
}

/// Creates a problem that is not logged, because load balancers request readiness every few seconds.
fn not_ready(kind: ProblemType, detail: &'static str) -> Problem {
    Problem::new(kind, detail).with_retry_after()
}
