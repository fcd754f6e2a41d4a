//! What other origins may read, and what a trusted proxy says of the request.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{
    ACCEPT_RANGES, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HOST, HeaderName, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, ORIGIN, RANGE, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, Method};
use ipnet::IpNet;
use tower_http::cors::{AllowOrigin, AllowPrivateNetwork, CorsLayer};

use super::{Ask, Options, target};

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
        .max_age(std::time::Duration::from_secs(86_400));
    let layer = if options.private_network { layer.allow_private_network(AllowPrivateNetwork::yes()) } else { layer };
    if any {
        layer.allow_origin(AllowOrigin::any()).vary([])
    } else {
        // Cookies and such are a proxy's in front; for a token nothing is needed here.
        layer.allow_origin(AllowOrigin::list(list)).allow_credentials(options.credentials).vary([ORIGIN])
    }
}

/// Whether forwarded headers of this peer are believed. A Unix socket's peer has no address: it is a proxy
/// on this machine that was given access to the socket.
pub(super) fn is_trusted(peer: Option<IpAddr>, trusted: &[IpNet]) -> bool {
    peer.is_none_or(|peer| trusted.iter().any(|network| network.contains(&peer)))
}

/// `scheme://host/prefix` under which the client reaches this server, without a slash at the end.
///
/// `Forwarded` is read before `X-Forwarded-*`, both only from trusted peers. Of `Forwarded` the element counts that tells of
/// the client ([`client`]); of the others, which do not say whose they are, the first: a proxy must replace what clients send.
pub(super) fn public_base(ask: &Ask<'_>) -> String {
    let options = &ask.app.options;
    let trusted = is_trusted(ask.peer, &options.trusted_proxies);
    let forwarded = |name: &str| first_of(ask.headers(), name).filter(|_| trusted);
    let standard = told(ask.headers(), "forwarded", &options.trusted_proxies, |element| parameter(element, "for"));
    let standard = standard.filter(|_| trusted).unwrap_or_default();
    let scheme = parameter(standard, "proto").map(str::to_owned).or_else(|| forwarded("x-forwarded-proto"));
    let is_https = scheme.map_or(options.is_https, |scheme| scheme == "https");
    let scheme = if is_https { "https" } else { "http" };
    let host = parameter(standard, "host").map(str::to_owned).or_else(|| forwarded("x-forwarded-host"));
    // HTTP/2 has the authority in place of the header.
    let authority = ask.parts.uri.authority().map(ToString::to_string);
    let host =
        host.or(authority).or_else(|| first_of(ask.headers(), HOST.as_str())).filter(|host| is_host(host.as_bytes()));
    let host = host.unwrap_or_else(|| "localhost".to_owned());
    let prefix = forwarded("x-forwarded-prefix").filter(|prefix| is_prefix(prefix)).unwrap_or_default();
    // Whoever came by a URL with a token needs one in the URLs of the answer.
    let token = ask.presented.in_url().map_or_else(String::new, |token| format!("/token/{}", target::encode(token)));
    format!("{scheme}://{host}{}{}{token}", prefix.trim_end_matches('/'), options.base_path)
}

/// The client's address as trusted proxies tell it: each adds at the end whom it was asked by, so that the last one which is
/// no trusted proxy is as far as can be believed. What stands before that may be the client's own invention.
pub(super) fn client(headers: &HeaderMap, peer: Option<IpAddr>, trusted: &[IpNet]) -> Option<IpAddr> {
    if !is_trusted(peer, trusted) {
        return None;
    }
    let by = |element| parameter(element, "for");
    let standard = told(headers, "forwarded", trusted, by).map(|element| by(element).and_then(address));
    let usual = told(headers, "x-forwarded-for", trusted, Some).map(address);
    match (standard, usual) {
        // A proxy that keeps one of them passes the other on as the client has invented it.
        (Some(standard), Some(usual)) => standard.filter(|told| usual == Some(*told)),
        (one, None) | (None, one) => one.flatten(),
    }
}

/// Of the elements of all headers `name` the last one that is about somebody else than a trusted proxy, or the first; `whom`
/// finds the address in an element.
fn told<'a>(
    headers: &'a HeaderMap,
    name: &str,
    trusted: &[IpNet],
    whom: impl Fn(&'a str) -> Option<&'a str>,
) -> Option<&'a str> {
    let values: Vec<&str> = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default()).collect();
    let mut found = None;
    for element in
        values.iter().rev().flat_map(|value| value.rsplit(',')).map(str::trim).filter(|element| !element.is_empty())
    {
        found = Some(element);
        let proxy = whom(element).and_then(address);
        if !proxy.is_some_and(|address| trusted.iter().any(|network| network.contains(&address))) {
            break;
        }
    }
    found
}

/// A parameter of an element of `Forwarded`, such as `host`.
fn parameter<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = element.split(';').filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim_matches('"'))
}

/// An address, with or without brackets and port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(text, |(inner, _port)| inner);
    let parsed = bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    parsed.map(|address: IpAddr| address.to_canonical())
}

fn first_of(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    Some(value.split(',').next().unwrap_or_default().trim().to_owned()).filter(|value| !value.is_empty())
}

/// Letters, digits and what addresses and ports need; nothing that could end a URL's host.
pub(super) fn is_host(host: &[u8]) -> bool {
    host.len() <= 255 && host.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(byte))
}

/// A path that can stand in a URL as it is.
fn is_prefix(prefix: &str) -> bool {
    prefix.starts_with('/') && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told_by(peer: Option<&str>, lines: &[(&'static str, &'static str)]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let trusted_proxies = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let peer = peer.map(|peer| peer.parse().unwrap());
        client(&headers, peer, &trusted_proxies).map(|client| client.to_string())
    }

    #[test]
    fn the_client_is_the_last_who_is_no_trusted_proxy() {
        let (proxy, x, standard) = (Some("10.0.0.1"), "x-forwarded-for", "forwarded");
        for (lines, expected) in [
            (&[(x, "192.0.2.1")][..], Some("192.0.2.1")),
            (&[(x, "6.6.6.6, 192.0.2.1")], Some("192.0.2.1")),
            (&[(x, "6.6.6.6, 192.0.2.1, 10.1.1.1")], Some("192.0.2.1")),
            (&[(x, "6.6.6.6"), (x, "192.0.2.1"), (x, "10.1.1.1, fd00::1")], Some("192.0.2.1")),
            (&[(x, "10.3.3.3, 10.1.1.1")], Some("10.3.3.3")),
            (&[(x, "6.6.6.6, unknown, 10.1.1.1")], None),
            (&[(x, "192.0.2.1,"), (standard, "")], Some("192.0.2.1")),
            (&[(x, "[2001:db8::1]:4711")], Some("2001:db8::1")),
            (&[(x, "192.0.2.1:4711")], Some("192.0.2.1")),
            (&[(standard, "for=6.6.6.6, for=\"[2001:db8::1]:47\";proto=https, for=10.1.1.1")], Some("2001:db8::1")),
            (&[(standard, "for=6.6.6.6, proto=https")], None),
            (&[(standard, "For=192.0.2.1"), (x, "192.0.2.1")], Some("192.0.2.1")),
            (&[(standard, "For=192.0.2.1"), (x, "6.6.6.6")], None),
            (&[(standard, "For=6.6.6.6"), (x, "192.0.2.1")], None),
            (&[], None),
        ] {
            assert_eq!(told_by(proxy, lines).as_deref(), expected, "{lines:?}");
        }
        assert_eq!(told_by(Some("192.0.2.9"), &[(x, "192.0.2.1")]), None, "whom nobody trusts");
        assert_eq!(told_by(None, &[(x, "6.6.6.6, 192.0.2.1")]).as_deref(), Some("192.0.2.1"), "a Unix socket");
    }
}
