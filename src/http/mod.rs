//! HTTP: syntax, statuses and headers. One function answers every request; the table of routes is
//! [`target::views`].

mod admitted;
mod ask;
mod banded;
mod clients;
mod compress;
mod conditional;
mod credentials;
mod crowd;
mod encode;
mod exposition;
mod forwarded;
mod guard;
mod info;
mod listing;
mod observe;
mod operations;
mod options;
mod paced;
mod page;
mod parameters;
mod parts_body;
pub mod problem;
mod query;
pub mod quick;
mod quick_chunk;
mod readiness;
mod recent;
mod refused;
mod select;
mod shared;
mod slice;
mod slice_query;
mod stats;
mod stored;
pub mod target;
mod templates;
mod turns;
mod view;
mod viewer;
mod viewer_files;
mod wish;

use std::fmt;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CONTENT_LENGTH, VARY};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::task::AbortOnDropHandle;

pub use clients::{Limits, network_of};
pub use options::{Options, Ready};

use crate::container::{Container, Resources};
use crate::metrics;
use crate::store::Key;
use crate::trace::{self, Trace};
use ask::Ask;
use clients::Clients;
use compress::Compressible;
use credentials::Presented;
use crowd::Crowds;
use guard::Viewpoint;
use observe::{REQUEST_ID, RequestId, Route};
use problem::Problem;
use readiness::Readiness;
use shared::Shared;
use target::{Operation, Target, View};
pub use viewer::Viewer;

/// An answer, or the problem that stands in its way.
type Answer = Result<Response<Body>, Problem>;

/// A container and where it is mounted.
#[derive(Debug, Clone)]
pub struct Mount {
    /// First path segment; empty for the only container, which is then the root.
    pub name: String,
    /// The container.
    pub container: Container,
    /// `Cache-Control` of what exists.
    pub cache_found: HeaderValue,
    /// `Cache-Control` of what does not.
    pub cache_missing: HeaderValue,
}

/// Everything that answers share.
pub struct App {
    /// Tells apps of one process apart.
    id: u64,
    mounts: Vec<Mount>,
    resources: Arc<Resources>,
    options: Options,
    readiness: Readiness,
    shared: Arc<Shared>,
    /// By route; found at its first request, when a recorder is installed.
    answers: Vec<(&'static str, OnceLock<metrics::Answers>)>,
    quick: templates::Templates,
    clients: Clients,
    crowds: Crowds,
}

/// How many apps there were.
static APPS: AtomicU64 = AtomicU64::new(0);

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("mounts", &self.mounts).field("options", &self.options).finish_non_exhaustive()
    }
}

impl App {
    /// An application that serves `mounts`; `render_metrics` makes the text of `/metrics`.
    pub fn new(
        mounts: Vec<Mount>,
        resources: Arc<Resources>,
        options: Options,
        render_metrics: impl Fn() -> String + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with(Shared::new(render_metrics), mounts, resources, options)
    }

    /// One that takes the place of this one, with which it counts requests, answers `/metrics` and shuts down.
    pub fn successor(&self, mounts: Vec<Mount>, resources: Arc<Resources>, options: Options) -> Arc<Self> {
        Self::with(Arc::clone(&self.shared), mounts, resources, options)
    }

    fn with(shared: Arc<Shared>, mounts: Vec<Mount>, resources: Arc<Resources>, options: Options) -> Arc<Self> {
        let frequent = std::iter::once(observe::STORED).chain(crate::view::VIEWS.iter().map(|view| view.name()));
        Arc::new(Self {
            id: APPS.fetch_add(1, Ordering::Relaxed),
            quick: templates::Templates::new(&mounts, &options),
            answers: frequent.map(|route| (route, OnceLock::new())).collect(),
            readiness: Readiness::of(&mounts),
            crowds: Crowds::new(&mounts, options.concurrent_requests),
            mounts,
            resources,
            clients: Clients::new(&options, Arc::clone(&shared.accounts)),
            options,
            shared,
        })
    }

    /// The viewer served at `/viewer/`; without one, links lead to a public one.
    pub fn viewer(&self) -> Option<&Viewer> {
        self.options.viewer.as_ref()
    }

    /// What is served.
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// From now on `/readyz` tells load balancers to send nothing more.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Relaxed)
    }

    /// Requests whose answers have not been sent to the end.
    pub fn running(&self) -> usize {
        self.shared.running.load(Ordering::Relaxed)
    }

    /// The container that `segments` lead into and the key within; `Ok(None)` where several containers
    /// are served and no segment names one.
    fn locate(&self, segments: &[String]) -> Result<Option<(&Mount, Key)>, Problem> {
        let key = |segments: &[String]| Key::from_segments(segments).map_err(|_checked| Problem::missing());
        match self.mounts.as_slice() {
            [only] if only.name.is_empty() => Ok(Some((only, key(segments)?))),
            several => {
                let Some((name, rest)) = segments.split_first() else { return Ok(None) };
                let mount = several.iter().find(|mount| mount.name == *name).ok_or_else(Problem::missing)?;
                Ok(Some((mount, key(rest)?)))
            }
        }
    }

    /// The mount that a target leads into as somebody sees it; `None` where everybody sees everything of it.
    fn seen(&self, target: &Target, viewpoint: &Arc<Viewpoint>) -> Option<Mount> {
        let skipped = if let View::Other(view) = target.view { view.parameters() } else { 0 };
        let (mount, _) = self.locate(target.segments.get(skipped..)?).ok()??;
        let is_open = guard::is_open(self.options.control.as_deref(), &mount.name);
        (!is_open).then(|| guard::seen(mount, viewpoint))
    }

    /// What records the answers of a route that has many.
    fn answers(&self, route: &'static str) -> Option<&metrics::Answers> {
        let (_, answers) = self.answers.iter().find(|(name, _)| *name == route)?;
        Some(answers.get_or_init(|| metrics::Answers::new(route)))
    }

    fn request_id(&self, headers: &HeaderMap) -> String {
        let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
        given
            .filter(|id| is_request_id(id))
            .map_or_else(|| format!("{:016x}", self.shared.new_request_id()), str::to_owned)
    }
}

/// Whether an id that a client gave can be repeated in headers and logs.
fn is_request_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
}

/// The router: one fallback that answers everything, within the layers that touch every answer.
///
/// Routing is by [`Target::parse`] and not by patterns, because the path must be split before it is
/// decoded and a key may have any depth.
pub fn router(app: Arc<App>) -> Router {
    let cors = forwarded::cors(&app.options);
    let observe = axum::middleware::from_fn_with_state(Arc::clone(&app), observe::observe);
    Router::new().fallback(answer).layer(cors).layer(observe).with_state(app)
}

/// Answers one request, where that keeps nobody else waiting.
async fn answer(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let elsewhere =
        app.options.documents.as_ref().filter(|_| target::takes_time(request.uri().path(), &app.options.base_path));
    let trace = request.extensions().get::<Arc<Trace>>().cloned();
    let Some(documents) = elsewhere else {
        let answer = answer_here(app, request);
        return match trace {
            None => answer.await,
            traced => Box::pin(trace::within(traced, answer)).await,
        };
    };
    let path = observe::shown(request.uri().path());
    let id = request.extensions().get::<RequestId>().map_or_else(String::new, |id| id.0.clone());
    // Ended when the client has gone.
    AbortOnDropHandle::new(documents.spawn(trace::within(trace, answer_here(Arc::clone(&app), request))))
        .await
        .unwrap_or_else(|join| {
            let problem = Problem::own(problem::INTERNAL, "the server has a fault", join.to_string());
            problem.log(&id, &path);
            problem.into_response(&path, &id)
        })
}

/// Answers one request: routes it, bounds its time, turns problems and panics into answers.
async fn answer_here(app: Arc<App>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let id = parts.extensions.get::<RequestId>().map_or("", |id| &id.0);
    let peer = parts.extensions.get::<ConnectInfo<Option<IpAddr>>>().and_then(|ConnectInfo(ip)| *ip);
    let path = parts.uri.path();
    let (mut route, mut viewpoint, mut may_be_held) = ("unmatched", None, false);
    let mut is_key = !path.ends_with('/');
    let presented = parts.extensions.get::<Presented>().cloned().unwrap_or_default();
    let work = async {
        ask::check(&parts)?;
        let Some(target) = Target::parse(path, &app.options.base_path)? else { return Err(Problem::missing()) };
        route = route_name(target.view);
        is_key = target.is_key();
        // Operations answer also when everything else is too much, and at once.
        may_be_held = !matches!(target.view, View::Operation(_));
        if let Some(control) = &app.options.control {
            let (parts, target, presented) = (&parts, &target, &presented);
            let asking = guard::Asking { app: &app, parts, target, presented, peer, id };
            // In memory of its own: most servers are open, and what is part of this future is moved at every request.
            viewpoint = Box::pin(asking.admit(control)).await?;
            if let Some(redirect) = guard::slash(presented).filter(|_| presented.is_bare) {
                return Ok(redirect);
            }
        }
        let client = app.clients.of(&parts.headers, peer, viewpoint.as_deref());
        let place = if may_be_held { Some(app.clients.enter(client, &app.shared.admitted).await?) } else { None };
        let access = app.resources.begin();
        let viewpoint = viewpoint.as_ref();
        let seen = viewpoint.and_then(|viewpoint| app.seen(&target, viewpoint));
        let (parts, target, presented) = (&parts, &target, &presented);
        let viewpoint = viewpoint.map(AsRef::as_ref);
        let ask = Ask { app: &app, parts, id, peer, access, target, presented, viewpoint, seen };
        let crowd =
            crowd::place(&app.mounts, target).and_then(|place| Some((place, &app.mounts.get(place)?.container)));
        let work = Box::pin(async {
            let response = dispatch(&ask).await?;
            let is_document = response.extensions().get::<Compressible>().is_some();
            if is_document { compress::document(&ask, response).await } else { Ok(response) }
        });
        let work = async {
            match crowd {
                Some((place, container)) => app.crowds.within(place, container, work).await,
                None => work.await,
            }
        };
        let work = client.works(work);
        let response = if may_be_held { turns::in_turns(client, work).await? } else { work.await? };
        Ok(match place {
            Some(place) => place.answer(response),
            None => response,
        })
    };
    let timeout = app.options.request_timeout;
    let outcome = match tokio::time::timeout(timeout, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(Problem::own(problem::INTERNAL, "the server has a fault", panic_text(&*panic))),
        Err(_elapsed) => Err(Problem::own(
            problem::TIMEOUT,
            "the answer took too long; ask for less at once",
            format!("no answer within {timeout:?}"),
        )),
    };
    let is_held = may_be_held && outcome.as_ref().is_err_and(Problem::is_of_load);
    let mut response = outcome.unwrap_or_else(|problem| {
        problem.log(id, path);
        if is_key { problem.of_key(&parts.headers, path, id) } else { problem.into_response(path, id) }
    });
    if let Some(viewpoint) = &viewpoint {
        viewpoint.mark(response.headers_mut());
    }
    if presented.in_url().is_some() {
        guard::keep_private(response.headers_mut());
    }
    response.extensions_mut().insert(Route(route));
    if is_held {
        // Head, body and tokens may be large, and those who wait here many.
        drop((parts, body, presented, viewpoint));
        app.shared.refused.hold().await;
    }
    response
}

async fn dispatch(ask: &Ask<'_>) -> Answer {
    // Each on the heap, so that a request which waits takes no more than its own route needs.
    let answer: BoxFuture<'_, Answer> = match ask.target.view {
        View::Stored => Box::pin(stored::answer(ask)),
        View::Slice => Box::pin(slice::answer(ask)),
        // Clients probe this key for precomputed volumes.
        View::Info if ask.target.bare => return Err(Problem::missing()),
        View::Info => Box::pin(info::answer(ask)),
        View::Viewer => match ask.target.segments.split_first() {
            Some((first, rest)) if first == "page" => return page::answer(ask, rest),
            _ => Box::pin(viewer::answer(ask)),
        },
        View::Stats => Box::pin(stats::answer(ask)),
        View::Other(view) => Box::pin(view::answer(ask, view)),
        View::Operation(_) if !ask.target.segments.is_empty() => return Err(Problem::missing()),
        View::Operation(operation) => Box::pin(operations::answer(ask, operation)),
    };
    answer.await
}

/// The route as metrics and logs name it.
fn route_name(view: View) -> &'static str {
    match view {
        View::Stored => observe::STORED,
        View::Slice => "slice",
        View::Info => "info",
        View::Viewer => "viewer",
        View::Stats => "stats",
        View::Other(view) => view.name(),
        View::Operation(Operation::Health) => "healthz",
        View::Operation(Operation::Ready) => "readyz",
        View::Operation(Operation::Metrics) => "metrics",
        View::Operation(Operation::Version) => "version",
        View::Operation(Operation::OpenApi) => "openapi.yaml",
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without text".to_owned())
}

/// An answer with a body of known length; for HEAD, [`observe`] leaves the length and drops the body.
fn respond(status: StatusCode, media_type: &'static str, body: impl Into<bytes::Bytes>) -> Response<Body> {
    let body = body.into();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(axum::http::header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    *response.body_mut() = Body::from(body);
    response
}

/// Adds a name to `Vary`.
fn vary(headers: &mut HeaderMap, name: &'static str) {
    headers.append(VARY, HeaderValue::from_static(name));
}
