//! Authorization: identifies the caller, and refuses the request if the caller may not read the target.
//!
//! The decision depends only on the text of the request, and is made before the store is accessed. Therefore neither a
//! response nor its timing reveals whether a key exists that the caller may not read. Requests read other keys as well:
//! attributes of parent groups, entries of directories and levels of pyramids. [`CallerView`] decides about each of
//! these keys when it is read.

use std::sync::Arc;

use crate::access::{AccessControl, Caller, Decision, TokenError};
use crate::cache::ATTRIBUTES;
use crate::http::admission::fair_polling;
use crate::http::error_page;
use crate::http::forwarded;
use crate::http::mount::CallerView;
use crate::http::problem::{self, Problem};
use crate::http::redact::redacted_excerpt;
use crate::http::request::RequestContext;
use crate::http::route::{Endpoint, Operation};
use crate::telemetry::metrics;

/// Authorizes the request. Returns the caller's view of the mount; `None` if everyone sees the same.
///
/// # Errors
/// Returns a problem with status 400 if the request has more than one token, and 401 if the token is invalid or a
/// required token is missing. Returns 404 if the caller may not read the target, and 503 if the token cannot be checked
/// now.
pub(crate) async fn authorize(
    context: &RequestContext<'_>,
    control: &Arc<AccessControl>,
) -> Result<Option<Arc<CallerView>>, Problem> {
    let path = match context.target.endpoint {
        Endpoint::Operation(Operation::Metrics) if context.target.segments.is_empty() => None,
        // Operations are for load balancers, and the viewer contains no data of containers.
        Endpoint::Operation(_) | Endpoint::Viewer => return Ok(None),
        Endpoint::View(_)
        | Endpoint::Stored
        | Endpoint::Slice
        | Endpoint::Info
        | Endpoint::Stats
        | Endpoint::Thumbnail => Some(context.target.container_path().unwrap_or_default()),
    };
    // Neuroglancer looks for attributes in all parent directories, including `/token/`, and gives up at a 401. Such a
    // request does not try to use a token, and is not counted as a refusal.
    if context.presented.path_ends_in_token && context.presented.url_token() == Some(ATTRIBUTES) {
        return Err(Problem::not_found().no_store());
    }
    let caller = authenticate(context, control).await?;
    let view_of_mount = |mount: &str| CallerView::new(control, mount, caller.clone());
    let Some(path) = path else {
        return match control.policy().decide_metrics(caller.as_ref()) {
            Decision::Public => Ok(None),
            Decision::Granted => Ok(Some(Arc::new(view_of_mount("")))),
            Decision::Refused => Err(refuse(context, caller.as_ref())),
        };
    };
    let mounts = &context.app.mounts;
    let has_root_mount = context.app.has_root_mount();
    let mount = if has_root_mount { "" } else { path.first().map_or("", String::as_str) };
    let caller_view = view_of_mount(mount);
    // A path with a suffix may stand for the path without it. Whichever it is, what it reads is checked again
    // (`Visibility`), so it is enough that the caller may read one of them.
    let unsuffixed = context.target.unsuffixed_path();
    let is_allowed = if has_root_mount || !path.is_empty() {
        let may_read_unsuffixed = unsuffixed.as_ref().is_some_and(|path| caller_view.may_read(&path.join("/")));
        caller_view.may_read(&path.join("/")) || may_read_unsuffixed
    } else {
        // Only callers who may read at least one container may list the containers.
        mounts.iter().filter(|mount| caller_view.may_read(&mount.name)).count() > 0 || mounts.is_empty()
    };
    if !is_allowed {
        let refusal = refuse(context, caller_view.caller.as_ref());
        let has_page = error_page::is_wanted(context.parts, Some(context.target));
        let directory = if has_page { readable_segments(path, control, caller_view.caller.as_ref()) } else { 0 };
        return Err(refusal.with_directory(directory));
    }
    // A response about a directory counts as dependent on the caller if a rule covers a path below the directory. This
    // does not depend on whether the path exists, because the headers would otherwise reveal that.
    for path in [Some(path), unsuffixed.as_deref()].into_iter().flatten() {
        if let Some(directory) = revealed_directory(context, path) {
            caller_view
                .record_decision(control.policy().decide_below(&directory.join("/"), caller_view.caller.as_ref()));
        }
    }
    Ok(Some(Arc::new(caller_view)))
}

/// Returns the number of leading segments of a path that the caller may read. The store is not asked whether they exist.
fn readable_segments(path: &[String], control: &AccessControl, caller: Option<&Caller>) -> usize {
    let may_read = |end: &usize| {
        let beginning = path.get(..*end).unwrap_or_default().join("/");
        control.policy().decide(&beginning, caller) != Decision::Refused
    };
    (1..path.len()).take_while(may_read).count()
}

/// Returns the directory whose contents the response may reveal. Returns `None` if the response is about a single
/// object.
fn revealed_directory<'a>(context: &RequestContext<'_>, path: &'a [String]) -> Option<&'a [String]> {
    match context.target.endpoint {
        Endpoint::Stored if !context.target.has_trailing_slash => None,
        // A document of a view describes its directory.
        Endpoint::View(_) if !context.target.has_trailing_slash => {
            path.split_last().map(|(_name, directory)| directory)
        }
        Endpoint::Viewer | Endpoint::Operation(_) => None,
        Endpoint::Stored
        | Endpoint::View(_)
        | Endpoint::Slice
        | Endpoint::Info
        | Endpoint::Stats
        | Endpoint::Thumbnail => Some(path),
    }
}

/// Returns the caller whom the request's token names. An invalid token is refused even if the target is public.
async fn authenticate(context: &RequestContext<'_>, control: &AccessControl) -> Result<Option<Caller>, Problem> {
    let Ok(token) = context.presented.token() else {
        audit_refusal(context, "several_tokens", None);
        let detail = "the request has several different tokens; send only one";
        return Err(Problem::new(problem::INVALID_PARAMETER, detail).no_store());
    };
    let Some(token) = token else { return Ok(None) };
    #[expect(clippy::disallowed_methods, reason = "tokens expire by the clock")]
    let now = std::time::SystemTime::now();
    let client = context.app.process.clients.identify(&context.app.options, &context.parts.headers, context.peer, None);
    match fair_polling::poll_fairly(client, client.scope(control.authenticate(token, now))).await {
        Ok(caller) => Ok(Some(caller)),
        Err(TokenError::KeysUnavailable) => {
            audit_refusal(context, TokenError::KeysUnavailable.name(), None);
            let detail = "the token cannot be verified now; try again";
            Err(Problem::with_cause(problem::ISSUER_UNAVAILABLE, detail, TokenError::KeysUnavailable.to_string())
                .no_store())
        }
        Err(error) => {
            audit_refusal(context, error.name(), None);
            Err(unauthorized(context, Some(&error.to_string())))
        }
    }
}

/// Returns the refusal: 401 without a caller, otherwise 404 as for an object that does not exist. The status is not
/// 403, because clients look for attributes in all groups above a dataset. TensorStore and Java N5 take 404 for "no
/// attributes", but 403 for a failure.
fn refuse(context: &RequestContext<'_>, caller: Option<&Caller>) -> Problem {
    audit_refusal(context, if caller.is_some() { "forbidden" } else { "no_token" }, caller);
    if caller.is_some() || is_attribute_probe(context) {
        Problem::not_found().no_store()
    } else {
        unauthorized(context, None)
    }
}

/// Returns the 401, with the challenges of the configuration.
fn unauthorized(context: &RequestContext<'_>, reason: Option<&str>) -> Problem {
    let problem = Problem::unauthorized(reason);
    if context.app.options.basic_challenge { problem.with_basic_challenge() } else { problem }
}

/// Returns true if the request is for the attributes of a parent directory of a path that clients may read without
/// sending a token: a public path, or a path that contains a token. Such clients look for attributes in all parent
/// directories. Neuroglancer takes 401 for a failure, but 404 for "no attributes".
fn is_attribute_probe(context: &RequestContext<'_>) -> bool {
    let (name, parents) = match context.target.segments.split_last() {
        Some((name, parents)) if context.target.endpoint == Endpoint::Stored => (name, parents),
        _ => return false,
    };
    let control = context.app.options.access_control.as_ref();
    let has_public_below = || control.is_some_and(|control| control.policy().is_public_below(&parents.join("/")));
    name == ATTRIBUTES && !context.target.has_trailing_slash && (parents.is_empty() || has_public_below())
}

/// Logs and counts a refusal. The path no longer contains a token.
fn audit_refusal(context: &RequestContext<'_>, reason: &'static str, caller: Option<&Caller>) {
    metrics::access_refused(reason);
    tracing::warn!(
        id = context.id,
        reason,
        caller = caller.map(tracing::field::display),
        peer = context.peer.map(tracing::field::display),
        forwarded_for = forwarded::client_address(&context.parts.headers, context.peer, &context.app.options.trusted_proxies)
            .map(tracing::field::display),
        method = %context.parts.method,
        path = redacted_excerpt(context.parts.uri.path()),
        "access refused"
    );
}
