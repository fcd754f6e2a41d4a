//! The address of the client, and the URL under which the client reaches this server, as reported by the connection and
//! by trusted proxies.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::http::HeaderMap;
use axum::http::header::HOST;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use ipnet::IpNet;

use crate::http::credentials::PresentedTokens;
use crate::http::options::HttpOptions;
use crate::http::route;

/// Returns the address that identifies a client: an IPv4 address itself, or the /64 network of an IPv6 address. One
/// machine usually has all addresses of a /64.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Returns true if the forwarding headers of this peer are trusted. `None` stands for the peer of a Unix socket, which
/// is trusted because only a proxy on this machine has access to the socket.
pub(crate) fn is_trusted_proxy(peer: Option<IpAddr>, trusted: &[IpNet]) -> bool {
    peer.is_none_or(|peer| trusted.iter().any(|network| network.contains(&peer)))
}

/// Returns `scheme://host/prefix` under which the client reaches this server, without a trailing slash.
///
/// `Forwarded` takes precedence over `X-Forwarded-*`. Both are read only from trusted peers. In `Forwarded`, the
/// element that describes the client counts ([`client_address`]). In `X-Forwarded-*`, the first value counts, because
/// these headers do not say which hop a value describes. Proxies must therefore replace the values that clients send.
pub(crate) fn public_base_url(
    parts: &Parts,
    peer: Option<IpAddr>,
    presented: &PresentedTokens,
    options: &HttpOptions,
) -> String {
    let is_trusted = is_trusted_proxy(peer, &options.trusted_proxies);
    let x_forwarded = |name: &str| first_list_value(&parts.headers, name).filter(|_| is_trusted);
    let address_of = |element| forwarded_parameter(element, "for");
    let element = client_element(&parts.headers, "forwarded", &options.trusted_proxies, address_of);
    let element = element.filter(|_| is_trusted).unwrap_or_default();
    let scheme = forwarded_parameter(element, "proto").or_else(|| x_forwarded("x-forwarded-proto"));
    let is_https = scheme.map_or(options.is_https, |scheme| scheme == "https");
    let scheme = if is_https { "https" } else { "http" };
    let host = forwarded_parameter(element, "host").or_else(|| x_forwarded("x-forwarded-host"));
    // HTTP/2 has the authority instead of the header.
    let host = host
        .or(parts.uri.authority().map(Authority::as_str))
        .or_else(|| first_list_value(&parts.headers, HOST.as_str()))
        .filter(|host| is_url_safe_host(host.as_bytes()));
    let host = host.unwrap_or("localhost");
    let prefix = public_prefix(parts, peer, options);
    // A client that sent its token in the URL needs it in the URLs of the response.
    let token =
        presented.url_token().map_or_else(String::new, |token| format!("/token/{}", route::encode_segment(token)));
    format!("{scheme}://{host}{prefix}{}{token}", options.base_path)
}

/// Returns the prefix that trusted proxies have removed from the path, without a slash at its end.
pub(crate) fn public_prefix<'a>(parts: &'a Parts, peer: Option<IpAddr>, options: &HttpOptions) -> &'a str {
    let is_trusted = is_trusted_proxy(peer, &options.trusted_proxies);
    let prefix = first_list_value(&parts.headers, "x-forwarded-prefix").filter(|_| is_trusted);
    prefix.filter(|prefix| is_url_safe_prefix(prefix)).unwrap_or_default().trim_end_matches('/')
}

/// Returns the client's address as reported by trusted proxies. Each proxy appends the address of its peer, so the last
/// address that is not a trusted proxy is the client's. Anything before it may be forged by the client.
pub(crate) fn client_address(headers: &HeaderMap, peer: Option<IpAddr>, trusted: &[IpNet]) -> Option<IpAddr> {
    if !is_trusted_proxy(peer, trusted) {
        return None;
    }
    let address_of = |element| forwarded_parameter(element, "for");
    let from_forwarded = client_element(headers, "forwarded", trusted, address_of)
        .map(|element| address_of(element).and_then(parse_address));
    let from_x_forwarded_for = client_element(headers, "x-forwarded-for", trusted, Some).map(parse_address);
    match (from_forwarded, from_x_forwarded_for) {
        // A proxy that sets one of the headers may forward the other one as the client sent it, so both must agree.
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

fn first_list_value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let value = headers.get(name)?.to_str().ok()?;
    Some(value.split(',').next().unwrap_or_default().trim()).filter(|value| !value.is_empty())
}

/// Returns true if a host has only letters, digits, and the punctuation of addresses and ports. No such character ends
/// the host of a URL.
pub(crate) fn is_url_safe_host(host: &[u8]) -> bool {
    host.len() <= 255 && host.iter().all(|byte| byte.is_ascii_alphanumeric() || b".-_:[]".contains(byte))
}

/// Returns true if a path can be part of a URL without encoding.
fn is_url_safe_prefix(prefix: &str) -> bool {
    prefix.starts_with('/') && prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%".contains(&byte))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

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
