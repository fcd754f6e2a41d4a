//! HTTP layer: syntax, statuses and headers. One function handles every request. The table of endpoints is
//! [`route::endpoints`].

mod admission;
mod app;
mod authorization;
mod band_reader;
mod caller_view;
mod compress;
pub(crate) mod conditional;
mod cors;
mod credentials;
mod encode;
mod exposition;
pub(crate) mod forwarded;
mod mount;
pub(crate) mod observe;
mod options;
mod parts_body;
pub mod problem;
mod problem_from_errors;
mod process_state;
mod query;
mod readiness;
pub(crate) mod redact;
mod request_context;
mod respond;
pub mod route;
mod routes;
pub(crate) mod templates;
mod viewer_files;

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::header::ACCEPT_ENCODING;
use axum::http::{HeaderValue, Response, StatusCode};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::task::AbortOnDropHandle;

use crate::fair_queue::panic_message;
use crate::trace::{self, Trace};
use admission::{fair_polling, rate_limited_body};
pub use app::App;
use credentials::PresentedTokens;
pub use forwarded::network_of;
pub use mount::Mount;
use observe::{RequestId, RouteLabel};
pub use options::{ClientLimits, HttpOptions, RequiredContainers};
use problem::Problem;
use request_context::RequestContext;
use respond::{Compressible, HandlerResult};
use route::{Endpoint, RequestTarget};
use routes::{info, operations, page, slice, stats, stored, view, viewer};
pub use viewer_files::Viewer;

/// Creates the router: one fallback that handles every request, inside the layers that apply to every response.
///
/// [`RequestTarget::parse`] does the routing instead of path patterns, because the path must be split before it is
/// decoded and a key may have any depth.
pub fn router(app: Arc<App>) -> Router {
    let cors = cors::layer(&app.options);
    let observe = axum::middleware::from_fn_with_state(Arc::clone(&app), observe::observe);
    Router::new().fallback(offload_or_handle).layer(cors).layer(observe).with_state(app)
}

/// Handles one request: on the document runtime if it may take long, otherwise on the current thread.
async fn offload_or_handle(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let target = RequestTarget::parse(request.uri().path(), &app.options.base_path);
    let may_take_long = matches!(&target, Ok(Some(target)) if target.runs_on_document_runtime());
    let document_runtime = app.options.document_runtime.as_ref().filter(|_| may_take_long);
    let trace = request.extensions().get::<Arc<Trace>>().cloned();
    let Some(runtime) = document_runtime else {
        let handling = handle_request(app, request, target);
        return match trace {
            None => handling.await,
            traced => Box::pin(trace::in_scope(traced, handling)).await,
        };
    };
    let path = redact::redacted_excerpt(request.uri().path());
    let id = request.extensions().get::<RequestId>().map_or_else(String::new, |id| id.0.clone());
    // Aborted when the client disconnects.
    AbortOnDropHandle::new(runtime.spawn(trace::in_scope(trace, handle_request(Arc::clone(&app), request, target))))
        .await
        .unwrap_or_else(|error| {
            let problem = Problem::internal(error.to_string());
            problem.log(&id, &path);
            problem.into_response(&path, &id)
        })
}

/// Handles one request: routes it, limits its time, and turns problems and panics into responses.
async fn handle_request(
    app: Arc<App>,
    request: Request,
    target: Result<Option<RequestTarget>, Problem>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let id = parts.extensions.get::<RequestId>().map_or("", |id| &id.0);
    let peer = parts.extensions.get::<ConnectInfo<Option<IpAddr>>>().and_then(|ConnectInfo(ip)| *ip);
    let path = parts.uri.path();
    let (mut route, mut caller_view, mut needs_admission) = ("unmatched", None, false);
    let mut is_key = !path.ends_with('/');
    let presented = parts.extensions.get::<PresentedTokens>().cloned().unwrap_or_default();
    let work = async {
        request_context::check_method_and_host(&parts)?;
        let target = target?.ok_or_else(Problem::not_found)?;
        route = target.endpoint.label();
        is_key = target.addresses_key();
        // Operations bypass admission control, so that they are answered at once even under overload.
        needs_admission = !matches!(target.endpoint, Endpoint::Operation(_));
        let (parts, target, presented) = (&parts, &target, &presented);
        let freshness = app.resources.request_freshness();
        let mut context = RequestContext {
            app: &app,
            parts,
            id,
            peer,
            freshness,
            target,
            presented,
            caller_view: None,
            visible_mount: None,
        };
        if let Some(control) = &app.options.access_control {
            // Boxed, because this future is moved at every request and most servers have no access control.
            caller_view = Box::pin(authorization::authorize(&context, control)).await?;
            if presented.path_ends_in_token
                && let Some(token) = presented.url_token()
            {
                // Relative links of the root need the trailing slash.
                let location = HeaderValue::from_str(&format!("{}/", route::encode_segment(token))).ok();
                return Ok(respond::redirect(StatusCode::TEMPORARY_REDIRECT, location, "no-store"));
            }
        }
        let client = app.client_limiter.identify(&parts.headers, peer, caller_view.as_deref());
        let permit =
            if needs_admission { Some(app.client_limiter.admit(client, &app.process.admission).await?) } else { None };
        // The wait for admission does not count.
        context.freshness = app.resources.request_freshness();
        context.caller_view = caller_view.as_deref();
        context.visible_mount = caller_view.as_ref().and_then(|view| app.visible_mount(target, view));
        let context = context;
        let limited_container =
            app.named_mount_index(target).and_then(|index| Some((index, &app.mounts.get(index)?.container)));
        let work = Box::pin(async {
            let response = dispatch(&context).await?;
            let is_document = response.extensions().get::<Compressible>().is_some();
            if is_document {
                compress::compress_document(&app.resources, context.list_header(&ACCEPT_ENCODING).as_deref(), response)
                    .await
            } else {
                Ok(response)
            }
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
            Some(permit) => rate_limited_body::hold_until_sent(permit, response),
            None => response,
        })
    };
    let timeout = app.options.request_timeout;
    let outcome = match tokio::time::timeout(timeout, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(Problem::internal(panic_message(&*panic).unwrap_or("panic without a message"))),
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
        caller_view::make_cache_private(response.headers_mut());
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
