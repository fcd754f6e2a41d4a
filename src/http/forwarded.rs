//! CORS, and the headers by which a trusted proxy describes the request.

use std::net::{IpAddr, SocketAddr};

use axum::http::header::{
    ACCEPT_RANGES, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HOST, HeaderName, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, LAST_MODIFIED, ORIGIN, RANGE, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, Method};
use ipnet::IpNet;
use tower_http::cors::{AllowOrigin, AllowPrivateNetwork, CorsLayer};

use super::{HttpOptions, RequestContext, route};

/// Headers that scripts of other origins may read.
pub(super) const EXPOSED_HEADERS: [HeaderName; 24] = [
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
pub(super) fn cors(options: &HttpOptions) -> CorsLayer {
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
        .max_age(std::time::Duration::from_secs(86_400));
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

/// Returns true if forwarding headers of this peer are trusted. The peer of a Unix socket has no address: it is a proxy
/// on this machine that was given access to the socket.
pub(super) fn is_trusted_proxy(peer: Option<IpAddr>, trusted: &[IpNet]) -> bool {
    peer.is_none_or(|peer| trusted.iter().any(|network| network.contains(&peer)))
}

/// Returns `scheme://host/prefix` under which the client reaches this server, without a trailing slash.
///
/// `Forwarded` takes precedence over `X-Forwarded-*`; both are read only from trusted peers. Of `Forwarded`, the
/// element that describes the client is used ([`client_address`]). `X-Forwarded-*` do not say whom a value describes,
/// and the first value is used: a proxy must replace what clients send.
pub(super) fn public_base_url(context: &RequestContext<'_>) -> String {
    let options = &context.app.options;
    let is_trusted = is_trusted_proxy(context.peer, &options.trusted_proxies);
    let x_forwarded = |name: &str| first_list_value(context.headers(), name).filter(|_| is_trusted);
    let forwarded_element = client_element(context.headers(), "forwarded", &options.trusted_proxies, |element| {
        forwarded_parameter(element, "for")
    });
    let forwarded_element = forwarded_element.filter(|_| is_trusted).unwrap_or_default();
    let scheme =
        forwarded_parameter(forwarded_element, "proto").map(str::to_owned).or_else(|| x_forwarded("x-forwarded-proto"));
    let is_https = scheme.map_or(options.is_https, |scheme| scheme == "https");
    let scheme = if is_https { "https" } else { "http" };
    let host =
        forwarded_parameter(forwarded_element, "host").map(str::to_owned).or_else(|| x_forwarded("x-forwarded-host"));
    // HTTP/2 has the authority instead of the header.
    let authority = context.parts.uri.authority().map(ToString::to_string);
    let host = host
        .or(authority)
        .or_else(|| first_list_value(context.headers(), HOST.as_str()))
        .filter(|host| is_url_safe_host(host.as_bytes()));
    let host = host.unwrap_or_else(|| "localhost".to_owned());
    let prefix = x_forwarded("x-forwarded-prefix").filter(|prefix| is_url_safe_prefix(prefix)).unwrap_or_default();
    // A client that sent its token in the URL needs it in the URLs of the response.
    let token = context
        .presented
        .url_token()
        .map_or_else(String::new, |token| format!("/token/{}", route::encode_segment(token)));
    format!("{scheme}://{host}{}{}{token}", prefix.trim_end_matches('/'), options.base_path)
}

/// Returns the client's address as reported by trusted proxies. Each proxy appends the address of its peer, so the last
/// address that is not a trusted proxy is the client's. Anything before it may be forged by the client.
pub(super) fn client_address(headers: &HeaderMap, peer: Option<IpAddr>, trusted: &[IpNet]) -> Option<IpAddr> {
    if !is_trusted_proxy(peer, trusted) {
        return None;
    }
    let address_of = |element| forwarded_parameter(element, "for");
    let from_forwarded = client_element(headers, "forwarded", trusted, address_of)
        .map(|element| address_of(element).and_then(parse_address));
    let from_x_forwarded_for = client_element(headers, "x-forwarded-for", trusted, Some).map(parse_address);
    match (from_forwarded, from_x_forwarded_for) {
        // A proxy that maintains only one of the headers forwards the other as the client sent it, so both must agree.
        (Some(from_forwarded), Some(from_x_forwarded_for)) => {
            from_forwarded.filter(|address| from_x_forwarded_for == Some(*address))
        }
        (address, None) | (None, address) => address.flatten(),
    }
}

/// Returns the last element of all `name` headers that does not describe a trusted proxy, or the first element if all
/// of them do. `address_of` extracts the address of an element.
fn client_element<'a>(
    headers: &'a HeaderMap,
    name: &str,
    trusted: &[IpNet],
    address_of: impl Fn(&'a str) -> Option<&'a str>,
) -> Option<&'a str> {
    let values: Vec<&str> = headers.get_all(name).iter().map(|value| value.to_str().unwrap_or_default()).collect();
    let mut selected = None;
    for element in
        values.iter().rev().flat_map(|value| value.rsplit(',')).map(str::trim).filter(|element| !element.is_empty())
    {
        selected = Some(element);
        let proxy = address_of(element).and_then(parse_address);
        if !proxy.is_some_and(|address| trusted.iter().any(|network| network.contains(&address))) {
            break;
        }
    }
    selected
}

/// Returns a parameter of an element of `Forwarded`, such as `host`.
fn forwarded_parameter<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = element.split(';').filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim_matches('"'))
}

/// Parses an address with or without brackets and port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(text, |(inner, _port)| inner);
    let parsed = bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    parsed.map(|address: IpAddr| address.to_canonical())
}

fn first_list_value(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    Some(value.split(',').next().unwrap_or_default().trim().to_owned()).filter(|value| !value.is_empty())
}

/// Returns true if a host has only letters, digits and the other characters of addresses and ports, so that nothing in
/// it can end a URL's host.
pub(super) fn is_url_safe_host(host: &[u8]) -> bool {
    host.len() <= 255 && host.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(byte))
}

/// Returns true if a path can be part of a URL without encoding.
fn is_url_safe_prefix(prefix: &str) -> bool {
    prefix.starts_with('/') && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_address_from(peer: Option<&str>, lines: &[(&'static str, &'static str)]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        let trusted_proxies = vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()];
        let peer = peer.map(|peer| peer.parse().unwrap());
        client_address(&headers, peer, &trusted_proxies).map(|client| client.to_string())
    }

    #[test]
    fn the_client_is_the_last_address_that_is_not_a_trusted_proxy() {
        let (proxy, x, forwarded) = (Some("10.0.0.1"), "x-forwarded-for", "forwarded");
        for (lines, expected) in [
            (&[(x, "192.0.2.1")][..], Some("192.0.2.1")),
            (&[(x, "6.6.6.6, 192.0.2.1")], Some("192.0.2.1")),
            (&[(x, "6.6.6.6, 192.0.2.1, 10.1.1.1")], Some("192.0.2.1")),
            (&[(x, "6.6.6.6"), (x, "192.0.2.1"), (x, "10.1.1.1, fd00::1")], Some("192.0.2.1")),
            (&[(x, "10.3.3.3, 10.1.1.1")], Some("10.3.3.3")),
            (&[(x, "6.6.6.6, unknown, 10.1.1.1")], None),
            (&[(x, "192.0.2.1,"), (forwarded, "")], Some("192.0.2.1")),
            (&[(x, "[2001:db8::1]:4711")], Some("2001:db8::1")),
            (&[(x, "192.0.2.1:4711")], Some("192.0.2.1")),
            (&[(forwarded, "for=6.6.6.6, for=\"[2001:db8::1]:47\";proto=https, for=10.1.1.1")], Some("2001:db8::1")),
            (&[(forwarded, "for=6.6.6.6, proto=https")], None),
            (&[(forwarded, "For=192.0.2.1"), (x, "192.0.2.1")], Some("192.0.2.1")),
            (&[(forwarded, "For=192.0.2.1"), (x, "6.6.6.6")], None),
            (&[(forwarded, "For=6.6.6.6"), (x, "192.0.2.1")], None),
            (&[], None),
        ] {
            assert_eq!(client_address_from(proxy, lines).as_deref(), expected, "{lines:?}");
        }
        assert_eq!(client_address_from(Some("192.0.2.9"), &[(x, "192.0.2.1")]), None, "an untrusted peer");
        assert_eq!(
            client_address_from(None, &[(x, "6.6.6.6, 192.0.2.1")]).as_deref(),
            Some("192.0.2.1"),
            "a Unix socket"
        );
    }
}
