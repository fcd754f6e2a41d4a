//! Headers of all responses: those for security and caching, and those of cross-origin resource sharing (CORS). At
//! startup, the same functions prepare header lines for the fast path.

use std::time::Duration;

use axum::http::header::{
    ACCEPT_RANGES, AUTHORIZATION, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName,
    IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, ORIGIN, RANGE, STRICT_TRANSPORT_SECURITY,
    WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use futures_util::FutureExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_http::cors::{AllowOrigin, AllowPrivateNetwork, CorsLayer};

use crate::http::mount::{self, Mount};
use crate::http::options::HttpOptions;

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

/// Headers that scripts of other origins may read.
const EXPOSED_HEADERS: [HeaderName; 26] = [
    HeaderName::from_static("n5-data-type"),
    HeaderName::from_static("n5-shape"),
    HeaderName::from_static("n5-order"),
    HeaderName::from_static("n5-byte-order"),
    HeaderName::from_static("n5-start"),
    HeaderName::from_static("n5-step"),
    HeaderName::from_static("n5-axes"),
    HeaderName::from_static("n5-level"),
    HeaderName::from_static("n5-missing-blocks"),
    HeaderName::from_static("server-timing"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("accept-range"),
    HeaderName::from_static("date"),
    HeaderName::from_static("link"),
    HeaderName::from_static("location"),
    HeaderName::from_static("retry-after"),
    HeaderName::from_static("allow"),
    HeaderName::from_static("content-encoding"),
    HeaderName::from_static("vary"),
    ACCEPT_RANGES,
    CACHE_CONTROL,
    CONTENT_DISPOSITION,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    ETAG,
    LAST_MODIFIED,
];

/// Returns the layer that adds CORS headers to every response, including errors. A viewer would take an error without
/// CORS headers for a missing block.
pub(crate) fn cors_layer(options: &HttpOptions) -> CorsLayer {
    let origins = &options.cors_origins;
    let mut exposed_headers = EXPOSED_HEADERS.to_vec();
    exposed_headers.extend(options.access_control.is_some().then_some(WWW_AUTHENTICATE));
    let allows_any = origins.iter().any(|origin| origin == "*");
    let allowed_origins: Vec<HeaderValue> = origins.iter().filter_map(|origin| origin.parse().ok()).collect();
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::HEAD, Method::OPTIONS])
        .allow_headers([
            RANGE,
            IF_NONE_MATCH,
            IF_MATCH,
            IF_MODIFIED_SINCE,
            IF_RANGE,
            CACHE_CONTROL,
            AUTHORIZATION,
            HeaderName::from_static("x-request-id"),
        ])
        .expose_headers(exposed_headers)
        .max_age(Duration::from_secs(86_400));
    let layer =
        if options.cors_private_network { layer.allow_private_network(AllowPrivateNetwork::yes()) } else { layer };
    if allows_any {
        layer.allow_origin(AllowOrigin::any()).vary([])
    } else {
        // Credentials are cookies and the like, for a proxy in front of this server. Tokens do not need this
        // permission.
        layer
            .allow_origin(AllowOrigin::list(allowed_origins))
            .allow_credentials(options.cors_credentials)
            .vary([ORIGIN])
    }
}

/// Header lines of one mount's responses, as `name: value`, by kind of response.
pub(crate) struct MountHeaders {
    /// True if the whole mount is public. The fast path answers only requests for such mounts.
    pub(crate) is_public: bool,
    pub(crate) attributes: Vec<u8>,
    pub(crate) block: Vec<u8>,
    pub(crate) not_modified: Vec<u8>,
    /// Includes the content length, which is 0.
    pub(crate) missing: Vec<u8>,
}

impl MountHeaders {
    pub(crate) fn new(mount: &Mount, options: &HttpOptions) -> Self {
        let cors = cors_headers(options);
        let object_headers = |status, is_attributes| {
            let mut headers = HeaderMap::new();
            mount.stored_entity(is_attributes).add_headers(&mut headers, status);
            header_lines(headers, status, options, &cors)
        };
        let missing = mount.not_found().into_bodyless_response();
        Self {
            is_public: mount::is_public_mount(options.access_control.as_deref(), &mount.name),
            attributes: object_headers(StatusCode::OK, true),
            block: object_headers(StatusCode::OK, false),
            not_modified: object_headers(StatusCode::NOT_MODIFIED, false),
            missing: header_lines(missing.headers().clone(), missing.status(), options, &cors),
        }
    }
}

/// Returns the headers that the CORS layer adds to the response to a request without an origin.
fn cors_headers(options: &HttpOptions) -> HeaderMap {
    let inner = service_fn(|_: Request<()>| std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(()))));
    let response = cors_layer(options).layer(inner).oneshot(Request::new(())).now_or_never();
    response.and_then(Result::ok).map(|response| response.into_parts().0.headers).unwrap_or_default()
}

/// Returns all headers of a response, including the common ones, as header lines.
fn header_lines(mut headers: HeaderMap, status: StatusCode, options: &HttpOptions, cors: &HeaderMap) -> Vec<u8> {
    add_common_headers(&mut headers, status, options);
    let mut lines = Vec::new();
    for (name, value) in headers.iter().chain(cors) {
        push_header(&mut lines, name.as_str(), value.as_bytes());
    }
    lines
}

/// Appends a header line.
pub(crate) fn push_header(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}
