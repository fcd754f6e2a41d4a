//! What other origins may read, and what a trusted proxy says of the request.

use std::net::IpAddr;

use axum::http::header::{
    ACCEPT_RANGES, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HOST, HeaderName, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, ORIGIN, RANGE, WWW_AUTHENTICATE,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method};
use tower_http::cors::{AllowOrigin, AllowPrivateNetwork, CorsLayer};

use super::{App, Ask, Options, target};

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
pub(super) fn cors(options: &Options) -> CorsLayer {
    let origins = &options.origins;
    let mut exposed = EXPOSED.to_vec();
    exposed.extend(options.control.is_some().then_some(WWW_AUTHENTICATE));
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
        .expose_headers(exposed)
        .max_age(std::time::Duration::from_secs(86_400))
        .allow_private_network(AllowPrivateNetwork::yes());
    if any {
        layer.allow_origin(AllowOrigin::any()).vary([])
    } else {
        // Cookies and such are a proxy's in front; for a token nothing is needed here.
        layer.allow_origin(AllowOrigin::list(list)).allow_credentials(options.credentials).vary([ORIGIN])
    }
}

/// Whether forwarded headers of this peer are believed. A Unix socket's peer has no address: it is a proxy
/// on this machine that was given access to the socket.
fn is_trusted(peer: Option<IpAddr>, options: &Options) -> bool {
    peer.is_none_or(|peer| options.trusted_proxies.iter().any(|network| network.contains(&peer)))
}

/// `scheme://host/prefix` under which the client reaches this server, without a slash at the end.
///
/// `Forwarded` is read before `X-Forwarded-*`, both only from trusted peers; of lists the first element
/// counts, which the proxy nearest to the client wrote: a proxy must replace what clients send.
pub(super) fn public_base(ask: &Ask<'_>) -> String {
    let options = &ask.app.options;
    let trusted = is_trusted(ask.peer, options);
    let forwarded = |name: &str| first_of(ask.headers(), name).filter(|_| trusted);
    let standard = forwarded("forwarded").unwrap_or_default();
    let parameter = |name: &str| {
        let pairs = standard.split(';').filter_map(|pair| pair.trim().split_once('='));
        let mut of_name = pairs.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        of_name.next().map(|(_, value)| value.trim_matches('"').to_owned())
    };
    let scheme = parameter("proto").or_else(|| forwarded("x-forwarded-proto"));
    let scheme = scheme.filter(|scheme| scheme == "https").unwrap_or_else(|| "http".to_owned());
    let host = parameter("host").or_else(|| forwarded("x-forwarded-host"));
    // HTTP/2 has the authority in place of the header.
    let authority = ask.parts.uri.authority().map(ToString::to_string);
    let host = host.or(authority).or_else(|| first_of(ask.headers(), HOST.as_str())).filter(|host| is_host(host));
    let host = host.unwrap_or_else(|| "localhost".to_owned());
    let prefix = forwarded("x-forwarded-prefix").filter(|prefix| is_prefix(prefix)).unwrap_or_default();
    // Whoever came by a URL with a token needs one in the URLs of the answer.
    let token = ask.presented.in_url().map_or_else(String::new, |token| format!("/token/{}", target::encode(token)));
    format!("{scheme}://{host}{}{}{token}", prefix.trim_end_matches('/'), options.base_path)
}

/// The client's address as a trusted proxy tells it.
pub(super) fn client(parts: &Parts, peer: Option<IpAddr>, app: &App) -> Option<String> {
    first_of(&parts.headers, "x-forwarded-for")
        .filter(|_| is_trusted(peer, &app.options))
        .filter(|client| is_host(client))
}

fn first_of(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    Some(value.split(',').next().unwrap_or_default().trim().to_owned()).filter(|value| !value.is_empty())
}

/// Letters, digits and what addresses and ports need; nothing that could end a URL's host.
fn is_host(host: &str) -> bool {
    host.len() <= 255 && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte))
}

/// A path that can stand in a URL as it is.
fn is_prefix(prefix: &str) -> bool {
    prefix.starts_with('/') && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%".contains(&byte))
}
