//! Cross-origin resource sharing: the origins whose scripts may read responses, and the headers that they may read.

use std::time::Duration;

use axum::http::header::{
    ACCEPT_RANGES, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, ORIGIN, RANGE, WWW_AUTHENTICATE,
};
use axum::http::{HeaderValue, Method};
use tower_http::cors::{AllowOrigin, AllowPrivateNetwork, CorsLayer};

use crate::http::options::HttpOptions;

/// Headers that scripts of other origins may read.
const EXPOSED_HEADERS: [HeaderName; 24] = [
    HeaderName::from_static("n5-data-type"),
    HeaderName::from_static("n5-shape"),
    HeaderName::from_static("n5-order"),
    HeaderName::from_static("n5-byte-order"),
    HeaderName::from_static("n5-start"),
    HeaderName::from_static("n5-step"),
    HeaderName::from_static("n5-axes"),
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
    CONTENT_LENGTH,
    CONTENT_RANGE,
    ETAG,
    LAST_MODIFIED,
];

/// Returns the layer that adds CORS headers to every response, errors included: a viewer takes a response without them
/// for a missing block.
pub(crate) fn layer(options: &HttpOptions) -> CorsLayer {
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
        // Credentials such as cookies are for a proxy in front; tokens do not need this permission.
        layer
            .allow_origin(AllowOrigin::list(allowed_origins))
            .allow_credentials(options.cors_credentials)
            .vary([ORIGIN])
    }
}
