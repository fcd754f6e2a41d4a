//! HTTP layer: syntax, statuses and headers. One function handles every request. The table of endpoints is
//! [`route::endpoints`].

mod admission;
mod authorization;
mod band_reader;
mod client_limits;
mod compress;
mod conditional;
mod credentials;
mod encode;
mod exposition;
mod fair_polling;
pub mod fastpath;
mod fastpath_chunk;
mod forwarded;
mod info;
mod lenient_query;
mod listing;
mod numpy_index;
mod observe;
mod operations;
mod options;
mod page;
mod parts_body;
pub mod problem;
mod process_state;
mod rate_limited_body;
mod readiness;
mod rejection_delay;
mod request_context;
pub mod route;
mod slice;
mod slice_admission;
mod slice_query;
mod stalled_store_limit;
mod stats;
mod stored;
mod strict_query;
mod templates;
mod thread_cache;
mod view;
mod viewer;
mod viewer_files;

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

pub use client_limits::{ClientLimits, network_of};
pub use options::{HttpOptions, RequiredContainers};

use crate::container::{Container, Resources};
use crate::metrics;
use crate::store::Key;
use crate::trace::{self, Trace};
use authorization::CallerView;
use client_limits::ClientLimiter;
use compress::Compressible;
use credentials::PresentedTokens;
use observe::{REQUEST_ID, RequestId, RouteLabel};
use problem::Problem;
use process_state::ProcessState;
use readiness::Readiness;
use request_context::RequestContext;
use route::{Endpoint, Operation, RequestTarget};
use stalled_store_limit::StalledStoreLimit;
pub use viewer::Viewer;

/// The response of a handler, or the problem that prevents it.
type HandlerResult = Result<Response<Body>, Problem>;

/// A container and the name under which it is served.
#[derive(Debug, Clone)]
pub struct Mount {
    /// First path segment; empty for a single container that is served at the root.
    pub name: String,
    /// The container.
    pub container: Container,
    /// `Cache-Control` of responses for objects that exist.
    pub found_cache_control: HeaderValue,
    /// `Cache-Control` of responses for objects that do not exist.
    pub missing_cache_control: HeaderValue,
}

/// State that all requests share under one configuration.
pub struct App {
    /// Distinguishes the apps of one process.
    id: u64,
    mounts: Vec<Mount>,
    resources: Arc<Resources>,
    options: HttpOptions,
    readiness: Readiness,
    process: Arc<ProcessState>,
    /// Metric handles of the frequent routes. Each is created at its route's first request, once a recorder is
    /// installed.
    route_metrics: Vec<(&'static str, OnceLock<metrics::RouteMetrics>)>,
    header_templates: templates::HeaderTemplates,
    client_limiter: ClientLimiter,
    stalled_store_limit: StalledStoreLimit,
}

/// Id of the next [`App`].
static NEXT_APP_ID: AtomicU64 = AtomicU64::new(0);

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("mounts", &self.mounts).field("options", &self.options).finish_non_exhaustive()
    }
}

impl App {
    /// Creates an app that serves `mounts`. `render_metrics` renders the text of `/metrics`.
    pub fn new(
        mounts: Vec<Mount>,
        resources: Arc<Resources>,
        options: HttpOptions,
        render_metrics: impl Fn() -> String + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with_process(ProcessState::new(render_metrics), mounts, resources, options)
    }

    /// Creates the app that replaces this one. Both share the request counts, the metrics and the draining state.
    pub fn reconfigured(&self, mounts: Vec<Mount>, resources: Arc<Resources>, options: HttpOptions) -> Arc<Self> {
        Self::with_process(Arc::clone(&self.process), mounts, resources, options)
    }

    fn with_process(
        process: Arc<ProcessState>,
        mounts: Vec<Mount>,
        resources: Arc<Resources>,
        options: HttpOptions,
    ) -> Arc<Self> {
        let frequent_routes = std::iter::once(observe::STORED).chain(crate::view::VIEWS.iter().map(|view| view.name()));
        Arc::new(Self {
            id: NEXT_APP_ID.fetch_add(1, Ordering::Relaxed),
            header_templates: templates::HeaderTemplates::new(&mounts, &options),
            route_metrics: frequent_routes.map(|route| (route, OnceLock::new())).collect(),
            readiness: Readiness::of(&mounts),
            stalled_store_limit: StalledStoreLimit::new(&mounts, options.concurrent_requests),
            mounts,
            resources,
            client_limiter: ClientLimiter::new(&options, Arc::clone(&process.client_registry)),
            options,
            process,
        })
    }

    /// Returns the viewer served at `/viewer/`. Without one, links lead to a public viewer.
    pub fn viewer(&self) -> Option<&Viewer> {
        self.options.viewer.as_ref()
    }

    /// Returns the containers that are served.
    fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// Makes `/readyz` tell load balancers to send no more requests.
    pub fn drain(&self) {
        self.process.is_draining.store(true, Ordering::Relaxed);
    }

    /// Returns true if [`Self::drain`] has been called.
    pub fn is_draining(&self) -> bool {
        self.process.is_draining.load(Ordering::Relaxed)
    }

    /// Returns the number of requests whose responses have not been sent completely.
    pub fn requests_in_flight(&self) -> usize {
        self.process.requests_in_flight.load(Ordering::Relaxed)
    }

    /// Returns the mount that `segments` lead into and the key within its container. Returns `Ok(None)` if several
    /// containers are served and `segments` is empty.
    fn locate(&self, segments: &[String]) -> Result<Option<(&Mount, Key)>, Problem> {
        let parse_key = |segments: &[String]| Key::from_segments(segments).map_err(|_checked| Problem::not_found());
        match self.mounts.as_slice() {
            [only] if only.name.is_empty() => Ok(Some((only, parse_key(segments)?))),
            several => {
                let Some((name, rest)) = segments.split_first() else { return Ok(None) };
                let mount = several.iter().find(|mount| mount.name == *name).ok_or_else(Problem::not_found)?;
                Ok(Some((mount, parse_key(rest)?)))
            }
        }
    }

    /// Returns the mount that a target leads into, restricted to what the caller may see; `None` if it is public.
    fn mount_for_caller(&self, target: &RequestTarget, caller_view: &Arc<CallerView>) -> Option<Mount> {
        let parameter_count = if let Endpoint::View(view) = target.endpoint { view.path_parameter_count() } else { 0 };
        let (mount, _) = self.locate(target.segments.get(parameter_count..)?).ok()??;
        let is_public = authorization::is_public_mount(self.options.access_control.as_deref(), &mount.name);
        (!is_public).then(|| authorization::mount_for_caller(mount, caller_view))
    }

    /// Returns the metric handles of a frequent route.
    fn route_metrics(&self, route: &'static str) -> Option<&metrics::RouteMetrics> {
        let (_, handles) = self.route_metrics.iter().find(|(name, _)| *name == route)?;
        Some(handles.get_or_init(|| metrics::RouteMetrics::new(route)))
    }

    fn request_id(&self, headers: &HeaderMap) -> String {
        let client_id = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
        client_id
            .filter(|id| is_request_id(id))
            .map_or_else(|| format!("{:016x}", self.process.new_request_id()), str::to_owned)
    }
}

/// Returns true if an id given by a client is safe to repeat in headers and logs.
fn is_request_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
}

/// Creates the router: one fallback that handles every request, inside the layers that apply to every response.
///
/// [`RequestTarget::parse`] does the routing instead of path patterns, because the path must be split before it is
/// decoded and a key may have any depth.
pub fn router(app: Arc<App>) -> Router {
    let cors = forwarded::cors(&app.options);
    let observe = axum::middleware::from_fn_with_state(Arc::clone(&app), observe::observe);
    Router::new().fallback(offload_or_handle).layer(cors).layer(observe).with_state(app)
}

/// Handles one request: on the document runtime if it may take long, otherwise on the current thread.
async fn offload_or_handle(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let document_runtime = app
        .options
        .document_runtime
        .as_ref()
        .filter(|_| route::runs_on_document_runtime(request.uri().path(), &app.options.base_path));
    let trace = request.extensions().get::<Arc<Trace>>().cloned();
    let Some(runtime) = document_runtime else {
        let handling = handle_request(app, request);
        return match trace {
            None => handling.await,
            traced => Box::pin(trace::in_scope(traced, handling)).await,
        };
    };
    let path = observe::redacted_excerpt(request.uri().path());
    let id = request.extensions().get::<RequestId>().map_or_else(String::new, |id| id.0.clone());
    // Aborted when the client disconnects.
    AbortOnDropHandle::new(runtime.spawn(trace::in_scope(trace, handle_request(Arc::clone(&app), request))))
        .await
        .unwrap_or_else(|error| {
            let problem = Problem::with_cause(problem::INTERNAL, "internal server error", error.to_string());
            problem.log(&id, &path);
            problem.into_response(&path, &id)
        })
}

/// Handles one request: routes it, limits its time, and turns problems and panics into responses.
async fn handle_request(app: Arc<App>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let id = parts.extensions.get::<RequestId>().map_or("", |id| &id.0);
    let peer = parts.extensions.get::<ConnectInfo<Option<IpAddr>>>().and_then(|ConnectInfo(ip)| *ip);
    let path = parts.uri.path();
    let (mut route, mut caller_view, mut needs_admission) = ("unmatched", None, false);
    let mut is_key = !path.ends_with('/');
    let presented = parts.extensions.get::<PresentedTokens>().cloned().unwrap_or_default();
    let work = async {
        request_context::check_method_and_host(&parts)?;
        let Some(target) = RequestTarget::parse(path, &app.options.base_path)? else {
            return Err(Problem::not_found());
        };
        route = route_name(target.endpoint);
        is_key = target.addresses_key();
        // Operations bypass admission control, so that they are answered at once even under overload.
        needs_admission = !matches!(target.endpoint, Endpoint::Operation(_));
        if let Some(control) = &app.options.access_control {
            let (parts, target, presented) = (&parts, &target, &presented);
            let authorization_request =
                authorization::AuthorizationRequest { app: &app, parts, target, presented, peer, id };
            // Boxed, because this future is moved at every request and most servers have no access control.
            caller_view = Box::pin(authorization_request.authorize(control)).await?;
            if let Some(redirect) =
                authorization::redirect_to_token_root(presented).filter(|_| presented.path_ends_in_token)
            {
                return Ok(redirect);
            }
        }
        let client = app.client_limiter.identify(&parts.headers, peer, caller_view.as_deref());
        let permit =
            if needs_admission { Some(app.client_limiter.admit(client, &app.process.admission).await?) } else { None };
        let freshness = app.resources.request_freshness();
        let caller_view = caller_view.as_ref();
        let visible_mount = caller_view.and_then(|view| app.mount_for_caller(&target, view));
        let (parts, target, presented) = (&parts, &target, &presented);
        let caller_view = caller_view.map(AsRef::as_ref);
        let context =
            RequestContext { app: &app, parts, id, peer, freshness, target, presented, caller_view, visible_mount };
        let limited_container = stalled_store_limit::mount_index(&app.mounts, target)
            .and_then(|index| Some((index, &app.mounts.get(index)?.container)));
        let work = Box::pin(async {
            let response = dispatch(&context).await?;
            let is_document = response.extensions().get::<Compressible>().is_some();
            if is_document { compress::compress_document(&context, response).await } else { Ok(response) }
        });
        let work = async {
            match limited_container {
                Some((index, container)) => app.stalled_store_limit.run_limited(index, container, work).await,
                None => work.await,
            }
        };
        let work = client.scope(work);
        let response = if needs_admission { fair_polling::poll_fairly(client, work).await? } else { work.await? };
        Ok(match permit {
            Some(permit) => permit.hold_until_sent(response),
            None => response,
        })
    };
    let timeout = app.options.request_timeout;
    let outcome = match tokio::time::timeout(timeout, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(Problem::with_cause(problem::INTERNAL, "internal server error", panic_message(&*panic))),
        Err(_elapsed) => Err(Problem::with_cause(
            problem::TIMEOUT,
            "the response took too long; request less at once",
            format!("no response within {timeout:?}"),
        )),
    };
    let is_delayed = needs_admission && outcome.as_ref().is_err_and(Problem::is_overload);
    let mut response = outcome.unwrap_or_else(|problem| {
        problem.log(id, path);
        if is_key { problem.into_key_response(&parts.headers, path, id) } else { problem.into_response(path, id) }
    });
    if let Some(view) = &caller_view {
        view.restrict_caching(response.headers_mut());
    }
    if presented.url_token().is_some() {
        authorization::make_cache_private(response.headers_mut());
    }
    response.extensions_mut().insert(RouteLabel(route));
    if is_delayed {
        // The head, body and tokens may be large, and many rejected requests may wait here.
        drop((parts, body, presented, caller_view));
        app.process.rejection_delay.wait().await;
    }
    response
}

async fn dispatch(context: &RequestContext<'_>) -> HandlerResult {
    // Boxed separately, so that a waiting request takes only the memory that its own route needs.
    let handling: BoxFuture<'_, HandlerResult> = match context.target.endpoint {
        Endpoint::Stored => Box::pin(stored::answer(context)),
        Endpoint::Slice => Box::pin(slice::answer(context)),
        // Clients probe this key to find precomputed volumes.
        Endpoint::Info if context.target.is_bare => return Err(Problem::not_found()),
        Endpoint::Info => Box::pin(info::answer(context)),
        Endpoint::Viewer => match context.target.segments.split_first() {
            Some((first, rest)) if first == "page" => return page::answer(context, rest),
            _ => Box::pin(viewer::answer(context)),
        },
        Endpoint::Stats => Box::pin(stats::answer(context)),
        Endpoint::View(view) => Box::pin(view::answer(context, view)),
        Endpoint::Operation(_) if !context.target.segments.is_empty() => return Err(Problem::not_found()),
        Endpoint::Operation(operation) => Box::pin(operations::answer(context, operation)),
    };
    handling.await
}

/// Returns the route's name in metrics and logs.
fn route_name(endpoint: Endpoint) -> &'static str {
    match endpoint {
        Endpoint::Stored => observe::STORED,
        Endpoint::Slice => "slice",
        Endpoint::Info => "info",
        Endpoint::Viewer => "viewer",
        Endpoint::Stats => "stats",
        Endpoint::View(view) => view.name(),
        Endpoint::Operation(Operation::Health) => "healthz",
        Endpoint::Operation(Operation::Ready) => "readyz",
        Endpoint::Operation(Operation::Metrics) => "metrics",
        Endpoint::Operation(Operation::Version) => "version",
        Endpoint::Operation(Operation::OpenApi) => "openapi.yaml",
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "panic without a message".to_owned())
}

/// Returns a response with a body of known length. For HEAD, [`observe`] keeps the length and drops the body.
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
fn add_vary(headers: &mut HeaderMap, name: &'static str) {
    headers.append(VARY, HeaderValue::from_static(name));
}
