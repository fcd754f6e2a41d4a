//! HTTP: syntax, statuses and headers. One function answers every request; the table of routes is
//! [`target::VIEWS`].

mod compress;
mod conditional;
mod forwarded;
mod info;
mod listing;
mod operations;
pub mod problem;
mod query;
mod select;
mod slice;
mod slice_query;
mod stored;
pub mod target;

use std::fmt;
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, HeaderName, VARY};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use futures_util::FutureExt;
use tokio::sync::Semaphore;
use tower_http::compression::CompressionLayer;

use crate::container::{Access, Container, Resources};
use crate::metrics;
use crate::store::Key;
use problem::Problem;
use target::{Operation, Target, View};

/// An answer, or the problem that stands in its way.
type Answer = Result<Response<Body>, Problem>;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

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
    mounts: Vec<Mount>,
    resources: Arc<Resources>,
    options: Options,
    draining: AtomicBool,
    slots: Semaphore,
    render_metrics: Box<dyn Fn() -> String + Send + Sync>,
    id_base: u64,
    id_count: AtomicU64,
}

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
        Arc::new(Self {
            slots: Semaphore::new(options.concurrent_requests.clamp(1, Semaphore::MAX_PERMITS)),
            mounts,
            resources,
            options,
            draining: AtomicBool::new(false),
            render_metrics: Box::new(render_metrics),
            id_base: RandomState::new().hash_one(std::process::id()),
            id_count: AtomicU64::new(0),
        })
    }

    /// From now on `/readyz` tells load balancers to send nothing more.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
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

    fn request_id(&self, headers: &HeaderMap) -> String {
        let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
        let sound = |id: &&str| {
            (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
        };
        given.filter(sound).map_or_else(
            || {
                let count = self.id_count.fetch_add(1, Ordering::Relaxed);
                format!("{:016x}", self.id_base ^ count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            },
            str::to_owned,
        )
    }
}

/// A request as the handlers see it.
struct Ask<'a> {
    app: &'a App,
    method: &'a Method,
    headers: &'a HeaderMap,
    /// The raw path.
    path: &'a str,
    /// The raw query string.
    query: Option<&'a str>,
    /// The other end of the connection.
    peer: Option<IpAddr>,
    access: Access,
    target: &'a Target,
}

/// The router: one fallback that answers everything, within the layers that touch every answer.
///
/// Routing is by [`Target::parse`] and not by patterns, because the path must be split before it is
/// decoded and a key may have any depth.
pub fn router(app: Arc<App>) -> Router {
    let cors = forwarded::cors(&app.options.origins);
    Router::new()
        .fallback(answer)
        .layer(CompressionLayer::new().compress_when(compress::OnlyMarked))
        .layer(axum::middleware::map_response(forwarded::finish))
        .layer(cors)
        .layer(axum::middleware::map_response(forwarded::preflight))
        .with_state(app)
}

/// Answers one request: routes it, bounds its time, turns problems and panics into answers, and says
/// once in the log what came of it.
async fn answer(
    State(app): State<Arc<App>>,
    peer: Option<axum::Extension<ConnectInfo<Option<IpAddr>>>>,
    request: Request,
) -> Response<Body> {
    let started = Instant::now();
    let (parts, _body) = request.into_parts();
    let id = app.request_id(&parts.headers);
    let peer = peer.and_then(|axum::Extension(ConnectInfo(ip))| ip);
    let path = parts.uri.path();
    let mut route = "unmatched";
    let in_flight = metrics::InFlight::start();
    let work = async {
        if !matches!(parts.method, Method::GET | Method::HEAD) {
            return Err(Problem::method());
        }
        let Some(target) = Target::parse(path, &app.options.base_path)? else { return Err(Problem::missing()) };
        route = route_name(target.view);
        // Operations answer also when everything else is too much.
        let _slot = if matches!(target.view, View::Operation(_)) {
            None
        } else {
            Some(app.slots.try_acquire().map_err(|_full| {
                metrics::request_shed(metrics::Shed::Requests);
                Problem::own(problem::OVERLOADED, "too many requests at once; try again", "no slot")
            })?)
        };
        let access = app.resources.begin();
        let (method, headers, query) = (&parts.method, &parts.headers, parts.uri.query());
        let ask = Ask { app: &app, method, headers, path, query, peer, access, target: &target };
        dispatch(&ask).await
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
        if let Some(cause) = problem.logged() {
            tracing::error!(%id, path, status = problem.status().as_u16(), cause, "request failed");
        }
        problem.into_response(path, &id)
    });
    drop(in_flight);
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    if is_error && !response.headers().contains_key(CACHE_CONTROL) {
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    let bytes = response.headers().get(CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<u64>().ok());
    let sent = bytes.filter(|_| parts.method == Method::GET).unwrap_or(0);
    metrics::http_request(method_name(&parts.method), route, response.status().as_u16(), started.elapsed());
    metrics::http_response_bytes(route, sent);
    tracing::info!(
        %id,
        method = %parts.method,
        path,
        query = parts.uri.query().map(query::without_token),
        status = response.status().as_u16(),
        bytes,
        milliseconds = started.elapsed().as_secs_f64() * 1e3,
        "request"
    );
    response
}

async fn dispatch(ask: &Ask<'_>) -> Answer {
    match ask.target.view {
        View::Stored => stored::answer(ask).await,
        View::Slice => slice::answer(ask).await,
        // Clients probe this key for precomputed volumes.
        View::Info if ask.target.bare => Err(Problem::missing()),
        View::Info => info::answer(ask).await,
        View::Reserved => Err(Problem::missing()),
        View::Operation(_) if !ask.target.segments.is_empty() => Err(Problem::missing()),
        View::Operation(operation) => operations::answer(ask, operation).await,
    }
}

/// The route as metrics and logs name it.
fn route_name(view: View) -> &'static str {
    match view {
        View::Stored => "stored",
        View::Slice => "slice",
        View::Info => "info",
        View::Reserved => "unmatched",
        View::Operation(Operation::Health) => "healthz",
        View::Operation(Operation::Ready) => "readyz",
        View::Operation(Operation::Metrics) => "metrics",
        View::Operation(Operation::Version) => "version",
        View::Operation(Operation::OpenApi) => "openapi.yaml",
    }
}

/// The method as metrics name it.
fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        _ => "other",
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without text".to_owned())
}

/// An answer with a body of known length; without the body, but with its length, for HEAD.
fn respond(
    method: &Method,
    status: StatusCode,
    media_type: &'static str,
    body: impl Into<bytes::Bytes>,
) -> Response<Body> {
    let body = body.into();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(axum::http::header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    if method != Method::HEAD {
        *response.body_mut() = Body::from(body);
    }
    response
}

/// Adds a name to `Vary`.
fn vary(headers: &mut HeaderMap, name: &'static str) {
    headers.append(VARY, HeaderValue::from_static(name));
}
