//! HTTP layer: syntax, statuses and headers. [`route::endpoints`] lists the endpoints.
//!
//! A request passes `observe`, then `handle_request`, `authorize_and_admit` and `dispatch` of this file, and the
//! handler of its route.

mod admission;
mod app;
mod authorization;
mod body;
pub(crate) mod common_headers;
mod compress;
mod credentials;
mod embedded_viewer;
mod error_page;
mod exposition;
mod file_name;
pub(crate) mod forwarded;
mod html;
mod mount;
pub(crate) mod observe;
mod options;
pub mod problem;
mod query;
mod readiness;
pub(crate) mod redact;
mod request;
pub(crate) mod respond;
pub mod route;
mod routes;
mod slice_picture;
mod slice_request;
mod slice_source;
mod viewer_files;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Response, StatusCode};
use futures_util::FutureExt;
use futures_util::future::{self, BoxFuture};
use tokio_util::task::AbortOnDropHandle;

use crate::cache::ReadOptions;
use crate::telemetry::logs::panic_message;
use crate::telemetry::trace::{self, Trace};
use admission::{client_limits, fair_polling, in_flight};
pub use app::App;
use credentials::PresentedTokens;
pub use forwarded::network_of;
use mount::CallerView;
pub use mount::Mount;
use observe::request_id;
pub use options::HttpOptions;
use problem::Problem;
use request::RequestContext;
use respond::{Compressible, HandlerResult};
use route::{Endpoint, RequestTarget};
use routes::{info, operations, page, slice, stats, stored, thumbnail, view, viewer};
pub use viewer_files::Viewer;

/// Creates the router: one fallback that handles every request, inside the layers that apply to every response.
///
/// [`RequestTarget::parse`] does the routing instead of path patterns, because the path must be split before it is
/// decoded and a key may have any depth.
pub fn router(app: Arc<App>) -> Router {
    let cors = common_headers::cors_layer(&app.options);
    let observe = axum::middleware::from_fn_with_state(Arc::clone(&app), observe::observe);
    Router::new().fallback(offload_or_handle).layer(cors).layer(observe).with_state(app)
}

/// Handles one request: on the document runtime if it may take long, otherwise on the current thread.
async fn offload_or_handle(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let mut target = RequestTarget::parse(request.uri().path(), &app.options.base_path);
    if let Ok(Some(target)) = &mut target {
        app.resolve_mount_suffix(target);
    }
    let may_take_long = matches!(&target, Ok(Some(target)) if target.runs_on_document_runtime());
    let document_runtime = app.options.document_runtime.as_ref().filter(|_| may_take_long);
    let trace = request.extensions().get::<Arc<Trace>>().cloned();
    let Some(runtime) = document_runtime else {
        let handling = handle_request(app, request, target);
        return match trace {
            None => handling.await,
            // Boxed, because few requests are traced and the others would have to reserve memory for the scope.
            traced => Box::pin(trace::in_scope(traced, handling)).await,
        };
    };
    let path = redact::redacted_excerpt(request.uri().path());
    let id = request_id(request.headers()).to_owned();
    let task = runtime.spawn(trace::in_scope(trace, handle_request(Arc::clone(&app), request, target)));
    // Dropping the handle aborts the task when the client disconnects. A panic of the handler does not end the task, so
    // that hardly any client gets this problem, and it needs no page.
    AbortOnDropHandle::new(task).await.unwrap_or_else(|error| {
        let problem = Problem::internal(error);
        problem.log(&id, &path);
        problem.into_response(&path, &id)
    })
}

/// Handles one request: limits its time, and turns problems and panics into responses.
async fn handle_request(
    app: Arc<App>,
    request: Request,
    target: Result<Option<RequestTarget>, Problem>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let target = request::check_method_and_host(&parts).and_then(|()| target?.ok_or_else(Problem::not_found));
    let endpoint = target.as_ref().ok().map(|target| target.endpoint);
    let is_key = target.as_ref().map_or(!parts.uri.path().ends_with('/'), RequestTarget::addresses_key);
    let mut caller_view = None;
    let (target, outcome) = match target {
        Ok(target) => {
            let handling = authorize_and_admit(&app, &parts, &target, &mut caller_view);
            let outcome = catch_timeout_and_panic(app.options.request_timeout, handling).await;
            (Some(target), outcome)
        }
        Err(problem) => (None, Err(problem)),
    };
    let is_delayed =
        outcome.as_ref().is_err_and(Problem::is_overload) && endpoint.is_some_and(Endpoint::needs_admission);
    let mut response =
        outcome.unwrap_or_else(|problem| problem_response(&app, &parts, target.as_ref(), is_key, problem));
    if let Some(view) = &caller_view {
        view.restrict_caching(response.headers_mut());
    }
    if PresentedTokens::of(&parts).url_token().is_some() {
        mount::make_cache_private(response.headers_mut());
    }
    if let Some(endpoint) = endpoint {
        // Metrics and logs name the endpoint.
        response.extensions_mut().insert(endpoint);
    }
    if is_delayed {
        // Many rejected requests may wait here, and their heads, bodies and tokens may be large.
        drop((parts, body, target, caller_view));
        in_flight::delay_rejection(&app.process.pending_rejections, app.process.rejection_epoch).await;
    }
    response
}

/// Logs a problem and returns its response: a page if a browser asks for it, otherwise a problem document. The 404 of a
/// missing key has no body.
fn problem_response(
    app: &App,
    parts: &Parts,
    target: Option<&RequestTarget>,
    is_key: bool,
    problem: Problem,
) -> Response<Body> {
    let id = request_id(&parts.headers);
    let path = parts.uri.path();
    problem.log(id, path);
    if error_page::is_wanted(parts, target) {
        return error_page::respond(app, parts, target, problem);
    }
    let problem = if error_page::is_possible(parts, target) { problem.with_vary_if_cacheable() } else { problem };
    if is_key { problem.into_key_response(&parts.headers, path, id) } else { problem.into_response(path, id) }
}

/// Runs `handling`. Returns a problem if it takes longer than `timeout` or panics.
fn catch_timeout_and_panic(
    timeout: Duration,
    handling: impl Future<Output = HandlerResult>,
) -> impl Future<Output = HandlerResult> {
    tokio::time::timeout(timeout, AssertUnwindSafe(handling).catch_unwind()).map(move |outcome| match outcome {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(Problem::internal(panic_message(&*panic).unwrap_or("panic without a message"))),
        Err(_elapsed) => Err(Problem::with_cause(
            problem::TIMEOUT,
            "the response took too long; request less at once",
            format!("no response within {timeout:?}"),
        )),
    })
}

/// Authorizes a request, waits for its admission and dispatches it. Sets `caller_view`, on which the response's headers
/// depend even if the request fails.
async fn authorize_and_admit(
    app: &App,
    parts: &Parts,
    target: &RequestTarget,
    caller_view: &mut Option<Arc<CallerView>>,
) -> HandlerResult {
    let mut context = RequestContext::new(app, parts, target);
    if let Some(control) = &app.options.access_control {
        // Boxed, because this future is moved at every request and most servers have no access control.
        *caller_view = Box::pin(authorization::authorize(&context, control)).await?;
        if context.presented.path_ends_in_token
            && let Some(token) = context.presented.url_token()
        {
            // Relative links of the root need the trailing slash.
            let location = HeaderValue::from_str(&format!("{}/", route::encode_segment(token))).ok();
            return Ok(respond::redirect(StatusCode::TEMPORARY_REDIRECT, location, "no-store"));
        }
    }
    let clients = &app.process.clients;
    let client = clients.identify(&app.options, &parts.headers, context.peer, caller_view.as_deref());
    let permit =
        if target.endpoint.needs_admission() { Some(clients.admit(&app.options, client).await?) } else { None };
    // The allowed age of cached data counts from the admission of the request, not from its arrival.
    context.read_options = ReadOptions::begin();
    context.caller_view = caller_view.as_deref();
    context.visible_mount = caller_view.as_ref().and_then(|view| app.visible_mount(target, view));
    let work = client.scope(dispatch(&context));
    let Some(permit) = permit else { return work.await };
    let response = fair_polling::poll_fairly(client, work).await?;
    Ok(client_limits::hold_until_sent(permit, response))
}

/// Runs the route's handler, and compresses its response if that is a document. The handler is given up if the storage
/// of its container does not respond and too many requests wait for that storage.
async fn dispatch(context: &RequestContext<'_>) -> HandlerResult {
    let mut work = call_route(context);
    if error_page::is_wanted(context.parts, Some(context.target)) {
        work = Box::pin(error_page::add_nearest_directory(context, work));
    }
    let mount_name = context.target.container_path().and_then(<[String]>::first);
    let response = match mount_name.and_then(|name| context.app.find_mount(name)) {
        Some((index, mount)) => {
            let is_unresponsive = || mount.container.is_store_unresponsive();
            context.app.stalled_store_limit.run_limited(index, is_unresponsive, work).await?
        }
        None => work.await?,
    };
    if response.extensions().get::<Compressible>().is_none() {
        return Ok(response);
    }
    // The document is compressed after its handler has returned. In the handler, the values from which the document was
    // made would still take memory, although the permit has shrunk to the size of the document.
    Box::pin(compress::compress_document(context, response)).await
}

/// Returns the future of the route's handler. The future is boxed, so that a waiting request takes only the memory that
/// its own route needs.
fn call_route<'a>(context: &'a RequestContext<'_>) -> BoxFuture<'a, HandlerResult> {
    let segments = &context.target.segments;
    match context.target.endpoint {
        // Clients probe `/info` to find precomputed volumes.
        Endpoint::Info if context.target.is_bare => Box::pin(future::err(Problem::not_found())),
        Endpoint::Operation(_) if !segments.is_empty() => Box::pin(future::err(Problem::not_found())),
        Endpoint::Stored => Box::pin(stored::handle(context)),
        Endpoint::Slice => Box::pin(slice::handle(context)),
        Endpoint::Info => Box::pin(info::handle(context)),
        Endpoint::Viewer => match segments.split_first() {
            Some((first, rest)) if first == "page" => Box::pin(future::ready(page::handle(context, rest))),
            _ => Box::pin(viewer::handle(context)),
        },
        Endpoint::Stats => Box::pin(stats::handle(context)),
        Endpoint::Thumbnail => Box::pin(thumbnail::handle(context)),
        Endpoint::View(view) => Box::pin(view::handle(context, view)),
        Endpoint::Operation(operation) => Box::pin(operations::handle(context, operation)),
    }
}
