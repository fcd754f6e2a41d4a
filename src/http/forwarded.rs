//! Headers that every answer carries, and what a trusted proxy says of the request.

use std::net::IpAddr;

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HOST, HeaderName, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, ORIGIN, RANGE,
};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use tower_http::cors::{AllowOrigin, AllowPrivateNetwork, CorsLayer};

use super::{Ask, Options};

/// Headers that scripts of other origins may read.
pub(super) const EXPOSED: [HeaderName; 24] = [
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

/// CORS on every answer, errors included: a viewer takes an answer without it for a missing block.
pub(super) fn cors(origins: &[String]) -> CorsLayer {
    let any = origins.iter().any(|origin| origin == "*");
    let list: Vec<HeaderValue> = origins.iter().filter_map(|origin| origin.parse().ok()).collect();
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
        .expose_headers(EXPOSED)
        .max_age(std::time::Duration::from_secs(86_400))
        .allow_private_network(AllowPrivateNetwork::yes());
    if any {
        layer.allow_origin(AllowOrigin::any()).vary([])
    } else {
        layer.allow_origin(AllowOrigin::list(list)).vary([ORIGIN])
    }
}

/// What is the same on every answer.
pub(super) async fn finish(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    headers.insert("timing-allow-origin", HeaderValue::from_static("*"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("cross-origin"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// A preflight request is answered with 204: there is no body.
pub(super) async fn preflight(mut response: Response<Body>) -> Response<Body> {
    if response.status() == StatusCode::OK && response.headers().contains_key("access-control-allow-methods") {
        *response.status_mut() = StatusCode::NO_CONTENT;
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    response
}

/// Whether forwarded headers of this peer are believed; a Unix socket's peer has no address and is local.
fn is_trusted(peer: Option<IpAddr>, options: &Options) -> bool {
    peer.is_some_and(|peer| options.trusted_proxies.iter().any(|network| network.contains(&peer)))
}

/// `scheme://host/prefix` under which the client reaches this server, without a slash at the end.
///
/// `Forwarded` is read before `X-Forwarded-*`, both only from trusted peers; of lists the first element
/// counts, which the proxy next to the client wrote.
pub(super) fn public_base(ask: &Ask<'_>) -> String {
    let options = &ask.app.options;
    let trusted = is_trusted(ask.peer, options);
    let forwarded = |name: &str| first_of(ask.headers, name).filter(|_| trusted);
    let standard = forwarded("forwarded").unwrap_or_default();
    let parameter = |name: &str| {
        let pairs = standard.split(';').filter_map(|pair| pair.trim().split_once('='));
        let mut of_name = pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        of_name.next().map(|(_, value)| value.trim_matches('"').to_owned())
    };
    let scheme = parameter("proto").or_else(|| forwarded("x-forwarded-proto"));
    let scheme = scheme.filter(|scheme| scheme == "https").unwrap_or_else(|| "http".to_owned());
    let host = parameter("host").or_else(|| forwarded("x-forwarded-host"));
    let host = host.or_else(|| first_of(ask.headers, HOST.as_str())).filter(|host| is_host(host));
    let host = host.unwrap_or_else(|| "localhost".to_owned());
    let prefix = forwarded("x-forwarded-prefix").filter(|prefix| prefix.starts_with('/')).unwrap_or_default();
    format!("{scheme}://{host}{}{}", prefix.trim_end_matches('/'), options.base_path)
}

fn first_of(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    Some(value.split(',').next().unwrap_or_default().trim().to_owned()).filter(|value| !value.is_empty())
}

/// Letters, digits and what addresses and ports need; nothing that could end a URL's host.
fn is_host(host: &str) -> bool {
    host.len() <= 255 && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte))
}
