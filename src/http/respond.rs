//! Responses: their heads and bodies.

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, LAST_MODIFIED, LOCATION,
    STRICT_TRANSPORT_SECURITY, VARY,
};
use axum::http::{HeaderValue, Response, StatusCode};

use crate::http::conditional;
use crate::http::mount::Mount;
use crate::http::options::HttpOptions;
use crate::http::problem::Problem;
use crate::store::ObjectMeta;

/// The response of a handler, or the problem that prevents it.
pub(crate) type HandlerResult = Result<Response<Body>, Problem>;

/// Returns a response with a body of known length. For HEAD, `observe` keeps the length and drops the body.
pub(crate) fn respond(status: StatusCode, media_type: &'static str, body: impl Into<bytes::Bytes>) -> Response<Body> {
    let body = body.into();
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    *response.body_mut() = Body::from(body);
    response
}

/// Returns a redirect without a body.
pub(crate) fn redirect(
    status: StatusCode,
    location: Option<HeaderValue>,
    cache_control: &'static str,
) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().extend(location.map(|location| (LOCATION, location)));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(cache_control));
    response
}

/// Adds a name to `Vary`.
pub(crate) fn add_vary(headers: &mut HeaderMap, name: &'static str) {
    headers.append(VARY, HeaderValue::from_static(name));
}

/// Adds the headers that describe the object, except for its length.
pub(crate) fn add_entity_headers(
    headers: &mut HeaderMap,
    status: StatusCode,
    meta: &ObjectMeta,
    mount: &Mount,
    is_json: bool,
) {
    if let Ok(etag) = HeaderValue::from_str(&meta.etag) {
        headers.insert(ETAG, etag);
    }
    if let Some(date) = meta.modified.and_then(conditional::last_modified) {
        headers.insert(LAST_MODIFIED, date);
    }
    headers.insert(CACHE_CONTROL, mount.found_cache_control.clone());
    if status == StatusCode::NOT_MODIFIED {
        return;
    }
    let media_type = if is_json { "application/json" } else { "application/octet-stream" };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // Java N5 looks for a header of this name before it reads ranges (`n5:HttpKeyValueAccess.java`).
    headers.insert("accept-range", HeaderValue::from_static("bytes"));
}

/// Adds the headers that all responses have in common.
pub(crate) fn add_common_headers(headers: &mut HeaderMap, status: StatusCode, options: &HttpOptions) {
    if let Some(age) = options.hsts {
        let text = format!("max-age={}", age.as_secs());
        headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("")));
    }
    headers.insert("timing-allow-origin", HeaderValue::from_static("*"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("cross-origin"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if (status.is_client_error() || status.is_server_error()) && !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}
