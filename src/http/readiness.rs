//! Whether this server should be sent requests, found out within a bounded time, whatever the storage does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::problem::{self, Kind, Problem};
use super::{App, Mount, Ready, guard};
use crate::container::{Container, ReadError};
use crate::metrics;
use crate::store::StoreError;

/// For how long an answer of a container's storage is repeated.
const FRESH: Duration = Duration::from_secs(1);

/// How long such an answer is waited for: less than those who ask wait for theirs, which in Kubernetes is a second.
const PATIENCE: Duration = Duration::from_millis(800);

/// What is known of each container.
pub(super) struct Readiness(Vec<Arc<Probe>>);

struct Probe {
    answer: watch::Sender<Option<Answered>>,
    /// The storage has been asked and has not answered: it is not asked again, lest threads pile up before it.
    is_asking: AtomicBool,
    /// What the log said last.
    said: AtomicU8,
}

#[derive(Clone)]
struct Answered {
    at: Instant,
    state: State,
}

impl Answered {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH
    }
}

/// How the storage of a container is.
#[derive(Clone)]
enum State {
    Readable,
    /// Why not, for the log.
    Unreadable(Arc<str>),
    Silent,
}

impl State {
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Readable => None,
            Self::Unreadable(_) => Some("its directory cannot be read"),
            Self::Silent => Some("its storage does not answer"),
        }
    }

    fn number(&self) -> u8 {
        match self {
            Self::Readable => 0,
            Self::Unreadable(_) => 1,
            Self::Silent => 2,
        }
    }
}

impl From<Result<(), ReadError>> for State {
    fn from(probed: Result<(), ReadError>) -> Self {
        match probed {
            Ok(()) => Self::Readable,
            Err(ReadError::Store(StoreError::Timeout(..) | StoreError::Stalled(..) | StoreError::Overdue(..))) => {
                Self::Silent
            }
            Err(error) => Self::Unreadable(error.to_string().into()),
        }
    }
}

impl Readiness {
    pub(super) fn of(mounts: &[Mount]) -> Self {
        let probe = |_: &Mount| {
            let said = AtomicU8::new(State::Readable.number());
            Arc::new(Probe { answer: watch::Sender::new(None), is_asking: AtomicBool::new(false), said })
        };
        Self(mounts.iter().map(probe).collect())
    }
}

impl Probe {
    async fn state(self: &Arc<Self>, container: &Container) -> State {
        // Whoever probes is answered, perhaps from what is remembered of a directory whose files can no longer be had.
        let is_stalled = container.load().is_stalled;
        let known = self.answer.borrow().clone().filter(Answered::is_fresh);
        let answered = match known {
            Some(_) => known,
            None => self.ask(container).await,
        };
        match answered.map(|answered| answered.state) {
            Some(State::Readable) if is_stalled => State::Silent,
            Some(state) => state,
            None => State::Silent,
        }
    }

    /// Asks the storage, or waits for the answer to those who have.
    async fn ask(self: &Arc<Self>, container: &Container) -> Option<Answered> {
        let mut answers = self.answer.subscribe();
        if !self.is_asking.swap(true, Ordering::AcqRel) {
            let (probe, container) = (Arc::clone(self), container.clone());
            // Goes on when nobody waits any more: the next one who asks finds the answer.
            tokio::spawn(async move {
                let state = container.probe().await.into();
                probe.answer.send_replace(Some(Answered { at: Instant::now(), state }));
                probe.is_asking.store(false, Ordering::Release);
            });
        }
        let fresh = answers.wait_for(|answered| answered.as_ref().is_some_and(Answered::is_fresh));
        let answered = tokio::time::timeout(PATIENCE, fresh).await.ok()?.ok()?;
        answered.clone()
    }

    /// Says so in the log where it is news.
    fn tell(&self, name: &str, state: &State) {
        if self.said.swap(state.number(), Ordering::Relaxed) == state.number() {
            return;
        }
        match state {
            State::Readable => tracing::info!(container = name, "ready again"),
            State::Unreadable(why) => tracing::error!(container = name, %why, "not ready"),
            State::Silent => tracing::error!(container = name, "not ready: its storage does not answer"),
        }
    }
}

/// The document that says so, or the problem that says why not.
///
/// # Errors
/// One of 503.
pub(super) async fn answer(app: &App) -> Result<String, Problem> {
    if app.is_draining() {
        metrics::ready(false, 0);
        return Err(not_ready(problem::OVERLOADED, "the server is shutting down"));
    }
    let states = app.mounts.iter().zip(&app.readiness.0).map(|(mount, probe)| probe.state(&mount.container));
    let states = join_all(states).await;
    let control = app.options.control.as_deref();
    let mut checks = Vec::new();
    for (number, ((mount, probe), state)) in app.mounts.iter().zip(&app.readiness.0).zip(&states).enumerate() {
        // Everybody may ask, and not everybody may know what there is.
        let name = if guard::is_open(control, &mount.name) { json!(mount.name) } else { json!(number) };
        probe.tell(&mount.name, state);
        checks.push(check("container", name, state.reason()));
    }
    let keys = control.is_none_or(crate::access::Control::has_keys);
    if control.is_some() {
        checks.push(check("access", Value::Null, (!keys).then_some("the issuer's keys have not come yet")));
    }
    let unready = states.iter().filter(|state| state.reason().is_some()).count();
    let is_enough = unready == 0 || app.options.ready == Ready::Any && unready < states.len();
    metrics::ready(is_enough && keys, u32::try_from(unready).unwrap_or(u32::MAX));
    let kind = match is_enough {
        false => problem::STORAGE_UNAVAILABLE,
        true if !keys => problem::ISSUER_UNAVAILABLE,
        true => return Ok(json!({ "status": "ready", "checks": checks }).to_string()),
    };
    Err(not_ready(kind, "not everything that is served can be read").with("checks", checks))
}

fn check(what: &str, name: Value, reason: Option<&str>) -> Value {
    let mut check = json!({ "check": what, "ok": reason.is_none() });
    if let Value::Object(members) = &mut check {
        members.extend((!name.is_null()).then(|| ("name".to_owned(), name)));
        members.extend(reason.map(|reason| ("reason".to_owned(), json!(reason))));
    }
    check
}

/// Not for the log each time: those who ask do so every few seconds.
fn not_ready(kind: Kind, detail: &'static str) -> Problem {
    Problem::new(kind, detail).passing()
}
