//! HTTP: syntax, statuses and headers. One function answers every request; the table of routes is
//! [`target::views`].

mod ask;
mod compress;
mod conditional;
mod credentials;
mod encode;
mod forwarded;
mod guard;
mod info;
mod listing;
mod observe;
mod operations;
mod page;
mod parameters;
pub mod problem;
mod query;
pub mod quick;
mod quick_chunk;
mod recent;
mod select;
mod slice;
mod slice_query;
mod stats;
mod stored;
pub mod target;
mod templates;
mod view;
mod viewer;

use std::fmt;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CONTENT_LENGTH, VARY};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use crate::access::Control;
use crate::container::{ATTRIBUTES, Container, Resources};
use crate::metrics;
use crate::store::Key;
use ask::Ask;
use compress::Compressible;
use credentials::Presented;
use guard::Viewpoint;
use observe::{REQUEST_ID, RequestId, Route};
use problem::Problem;
use target::{Operation, Target, View};
pub use viewer::Viewer;

/// An answer, or the problem that stands in its way.
type Answer = Result<Response<Body>, Problem>;

/// What the HTTP layer itself is told; everything else it gets from the containers.
#[derive(Debug, Clone)]
pub struct Options {
    /// Prefix of every path, empty or `/prefix`.
    pub base_path: String,
    /// Networks whose `Forwarded` and `X-Forwarded-*` headers are believed.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// Longest time from a request's headers to its answer's.
    pub request_timeout: Duration,
    /// Most requests answered at once.
    pub concurrent_requests: usize,
    /// Origins that scripts may read answers from; `*` for all.
    pub origins: Vec<String>,
    /// Whether whole raw and json slices are compressed when the client accepts it.
    pub compress_slices: bool,
    /// Whether browsers may send cookies along; for listed origins only.
    pub credentials: bool,
    /// Who may read what; without it everybody may read everything.
    pub control: Option<Arc<Control>>,
    /// Origins that may show pages within theirs; `*` for all, none for none.
    pub frame_ancestors: Vec<String>,
    /// What is served at `/viewer/`, where there is one.
    pub viewer: Option<Viewer>,
    /// Where documents are made, which can take a quarter of a second; where the request came without one.
    pub documents: Option<Handle>,
}

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
    draining: AtomicBool,
    /// Requests whose answers have not been sent to the end.
    running: AtomicUsize,
    render_metrics: Box<dyn Fn() -> String + Send + Sync>,
    id_base: u64,
    id_count: AtomicU64,
    /// By route; found at its first request, when a recorder is installed.
    answers: Vec<(&'static str, OnceLock<metrics::Answers>)>,
    quick: templates::Templates,
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
        use std::hash::{BuildHasher, RandomState};
        let frequent = std::iter::once(observe::STORED).chain(crate::view::VIEWS.iter().map(|view| view.name()));
        Arc::new(Self {
            id: APPS.fetch_add(1, Ordering::Relaxed),
            running: AtomicUsize::new(0),
            quick: templates::Templates::new(&mounts, &options),
            answers: frequent.map(|route| (route, OnceLock::new())).collect(),
            mounts,
            resources,
            options,
            draining: AtomicBool::new(false),
            render_metrics: Box::new(render_metrics),
            id_base: RandomState::new().hash_one(std::process::id()),
            id_count: AtomicU64::new(0),
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
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Requests whose answers have not been sent to the end.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
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
        given.filter(|id| is_request_id(id)).map_or_else(|| format!("{:016x}", self.new_request_id()), str::to_owned)
    }

    /// A number that no other request of this process has.
    fn new_request_id(&self) -> u64 {
        self.id_base ^ self.id_count.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
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
    let elsewhere = app.options.documents.as_ref().filter(|_| takes_time(&app, request.uri().path()));
    let Some(documents) = elsewhere else { return answer_here(app, request).await };
    let path = request.uri().path().to_owned();
    let id = request.extensions().get::<RequestId>().map_or_else(String::new, |id| id.0.clone());
    // Ended when the client has gone.
    AbortOnDropHandle::new(documents.spawn(answer_here(Arc::clone(&app), request))).await.unwrap_or_else(|join| {
        let problem = Problem::own(problem::INTERNAL, "the server has a fault", join.to_string());
        problem.log(&id, &path);
        problem.into_response(&path, &id)
    })
}

/// Whether a path is of a document that is made, rather than of a block, a chunk or a slice.
fn takes_time(app: &App, path: &str) -> bool {
    let Ok(Some(target)) = Target::parse(path, &app.options.base_path) else { return false };
    match target.view {
        View::Stored | View::Other(_) => {
            !target.is_numbered() && target.segments.last().is_none_or(|name| name != ATTRIBUTES)
        }
        View::Info | View::Stats => true,
        View::Slice | View::Viewer | View::Operation(_) => false,
    }
}

/// Answers one request: routes it, bounds its time, turns problems and panics into answers.
async fn answer_here(app: Arc<App>, request: Request) -> Response<Body> {
    let (parts, _body) = request.into_parts();
    let id = parts.extensions.get::<RequestId>().map_or("", |id| &id.0);
    let peer = parts.extensions.get::<ConnectInfo<Option<IpAddr>>>().and_then(|ConnectInfo(ip)| *ip);
    let path = parts.uri.path();
    let mut route = "unmatched";
    let presented = parts.extensions.get::<Presented>().cloned().unwrap_or_default();
    let mut viewpoint = None;
    let work = async {
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return Err(Problem::method());
        }
        let Some(target) = Target::parse(path, &app.options.base_path)? else { return Err(Problem::missing()) };
        route = route_name(target.view);
        // Operations answer also when everything else is too much.
        if !matches!(target.view, View::Operation(_))
            && app.running.load(Ordering::Relaxed) > app.options.concurrent_requests
        {
            metrics::request_shed(metrics::Shed::Requests);
            return Err(Problem::own(problem::OVERLOADED, "too many requests at once; try again", "too many requests"));
        }
        if let Some(control) = &app.options.control {
            let (parts, target, presented) = (&parts, &target, &presented);
            let asking = guard::Asking { app: &app, parts, target, presented, peer, id };
            viewpoint = asking.admit(control).await?;
            if let Some(redirect) = guard::slash(presented).filter(|_| presented.is_bare) {
                return Ok(redirect);
            }
        }
        let access = app.resources.begin();
        let viewpoint = viewpoint.as_ref();
        let seen = viewpoint.and_then(|viewpoint| app.seen(&target, viewpoint));
        let (parts, target, presented) = (&parts, &target, &presented);
        let viewpoint = viewpoint.map(AsRef::as_ref);
        let ask = Ask { app: &app, parts, id, peer, access, target, presented, viewpoint, seen };
        let mut response = dispatch(&ask).await?;
        if response.extensions().get::<Compressible>().is_some() {
            response = compress::document(&ask, response).await?;
        }
        Ok(response)
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
    let mut response = outcome.unwrap_or_else(|problem| {
        problem.log(id, path);
        problem.into_response(path, id)
    });
    if let Some(viewpoint) = &viewpoint {
        viewpoint.mark(response.headers_mut());
    }
    if presented.in_url().is_some() {
        guard::keep_private(response.headers_mut());
    }
    response.extensions_mut().insert(Route(route));
    response
}

async fn dispatch(ask: &Ask<'_>) -> Answer {
    match ask.target.view {
        View::Stored => stored::answer(ask).await,
        View::Slice => slice::answer(ask).await,
        // Clients probe this key for precomputed volumes.
        View::Info if ask.target.bare => Err(Problem::missing()),
        View::Info => info::answer(ask).await,
        View::Viewer => match ask.target.segments.split_first() {
            Some((first, rest)) if first == "page" => page::answer(ask, rest),
            _ => viewer::answer(ask).await,
        },
        View::Stats => stats::answer(ask).await,
        View::Other(view) => view::answer(ask, view).await,
        View::Operation(_) if !ask.target.segments.is_empty() => Err(Problem::missing()),
        View::Operation(operation) => operations::answer(ask, operation).await,
    }
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
