//! Requests to a few datasets: targets, queries, keys, ranges, preconditions and all other headers.
//!
//! Input: lines. The first is the target, optionally after a method; the others are headers.

use std::cell::RefCell;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, Request, Uri};
use n5_server::http::route::{RequestTarget, encode_path};
use n5_server::store::Key;

use super::server::Server;

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

pub(crate) fn run(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let first = lines.next().unwrap_or_default();
    let (method, target) = match first.iter().position(|byte| *byte == b' ') {
        Some(at) => (Method::from_bytes(&first[..at]).unwrap_or(Method::GET), &first[at + 1..]),
        None => (Method::GET, first),
    };
    if let Ok(text) = std::str::from_utf8(target) {
        taken_apart(text);
    }
    let Ok(uri) = Uri::try_from(target) else { return };
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method.clone();
    *request.uri_mut() = uri.clone();
    for line in lines.take(40) {
        let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
        let name = HeaderName::from_bytes(&line[..at]);
        let value = HeaderValue::from_bytes(line[at + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (name, value) {
            request.headers_mut().append(name, value);
        }
    }
    with_server(|server| {
        let response = server.ask(request, may_break(&uri));
        if response.is_broken || method != Method::GET || response.status != 200 {
            return;
        }
        // A client that has this response gets 304, and a range of the response is a part of it.
        let Some(tag) = response.headers.get("etag") else { return };
        let again = |name: &str, value: &HeaderValue| {
            let mut request = Request::get(uri.clone()).header(name, value).body(Body::empty()).unwrap();
            if let Some(accept) = response.headers.get("content-type").filter(|_| response.headers.contains_key("vary"))
            {
                request.headers_mut().insert("accept", accept.clone());
            }
            server.ask(request, may_break(&uri))
        };
        assert_ne!(again("if-match", &HeaderValue::from_static("\"no-such-tag\"")).status, 200, "{uri}");
        if !response.headers.contains_key("vary") {
            assert_eq!(again("if-none-match", tag).status, 304, "{uri}");
        }
        if response.header("accept-ranges") == Some("bytes") && response.body.len() > 2 {
            let part = again("range", &HeaderValue::from_static("bytes=1-1"));
            assert_eq!((part.status.as_u16(), &part.body[..]), (206, &response.body[1..2]), "{uri}");
        }
    });
}

/// Checks that a parsed path, written again, parses to the same key.
fn taken_apart(text: &str) {
    let path = text.split('?').next().unwrap_or_default();
    if let Ok(key) = Key::parse(path) {
        assert_eq!(key.as_str(), path);
        assert_eq!(Key::from_segments(key.segments()).as_ref(), Ok(&key));
        assert!(
            key.segments().all(|segment| !matches!(segment, "" | "." | "..") && !segment.contains(['/', '\\', '\0']))
        );
    }
    for base in ["", "/em"] {
        let Ok(Some(target)) = RequestTarget::parse(path, base) else { continue };
        let key = Key::from_segments(&target.segments).expect("what a target holds is a key");
        let slash = if target.has_trailing_slash && !key.is_root() { "/" } else { "" };
        let again =
            RequestTarget::parse(&format!("/n5/{}{slash}", encode_path(key.segments())), "").map(Option::unwrap);
        // The route's word before the segments counts towards the limit.
        let is_longest = target.segments.len() == 256;
        assert_eq!(again.map(|again| again.segments).ok(), (!is_longest).then_some(target.segments), "{path}");
    }
}

/// Returns true if the request may read damaged blocks or try an impossible conversion.
fn may_break(uri: &Uri) -> bool {
    let target = RequestTarget::parse(uri.path(), "").ok().flatten();
    let is_damaged =
        |target: RequestTarget| target.segments.iter().any(|segment| ["a", "u"].contains(&segment.as_str()));
    // A `%` may encode any text.
    target.is_some_and(is_damaged) || uri.query().is_some_and(|query| query.contains("dtype") || query.contains('%'))
}

fn with_server(job: impl FnOnce(&Server)) {
    SERVER.with_borrow_mut(|server| job(server.get_or_insert_with(fixed)));
}

/// Returns a server of datasets with several ranks and compressions, a pyramid, damaged blocks and unusual names.
fn fixed() -> Server {
    Server::of(objects())
}

/// Returns the objects that [`fixed`] serves.
pub(crate) fn objects() -> Vec<(&'static str, bytes::Bytes)> {
    let attributes = |text: &'static str| bytes::Bytes::from_static(text.as_bytes());
    let block = |size: &[u8], payload: &[u8]| {
        let mut stored = vec![0, 0, 0, size.len() as u8];
        stored.extend(size.iter().flat_map(|n| [0, 0, 0, *n]));
        bytes::Bytes::from([stored, payload.to_vec()].concat())
    };
    let counting: Vec<u8> = (0..64).collect();
    vec![
        ("attributes.json", attributes(r#"{"n5":"4.0.0"}"#)),
        (
            "a/attributes.json",
            attributes(
                r#"{"dimensions":[7,5],"blockSize":[4,4],"dataType":"uint8","compression":{"type":"raw"},"axes":["x","y"],
                "units":["nm","nm"],"resolution":[4,4]}"#,
            ),
        ),
        ("a/0/0", block(&[4, 4], &counting[..16])),
        ("a/1/0", block(&[3, 4], &counting[..12])),
        ("a/1/1", block(&[4, 4], &counting[..9])),
        (
            "b/attributes.json",
            attributes(
                r#"{"dimensions":[4,3,2],"blockSize":[4,2,2],"dataType":"float32","compression":{"type":"raw"}}"#,
            ),
        ),
        ("b/0/0/0", block(&[4, 2, 2], &counting)),
        (
            "c/attributes.json",
            attributes(
                r#"{"dimensions":[9223372036854775807,3],"blockSize":[64,64],"dataType":"uint64","compression":{"type":"gzip"}}"#,
            ),
        ),
        (
            "e/attributes.json",
            attributes(r#"{"dimensions":[],"blockSize":[],"dataType":"int16","compression":{"type":"raw"}}"#),
        ),
        ("e/0", block(&[], &counting[..2])),
        (
            "z/attributes.json",
            attributes(r#"{"dimensions":[0,3],"blockSize":[2,2],"dataType":"uint16","compression":{"type":"raw"}}"#),
        ),
        (
            "p/attributes.json",
            attributes(r#"{"scales":[[1,1,1],[2,2,1]],"pixelResolution":{"unit":"um","dimensions":[1,1,2]}}"#),
        ),
        (
            "p/s0/attributes.json",
            attributes(r#"{"dimensions":[8,8,2],"blockSize":[4,4,2],"dataType":"uint8","compression":{"type":"raw"}}"#),
        ),
        ("p/s0/0/0/0", block(&[4, 4, 2], &counting[..32])),
        (
            "p/s1/attributes.json",
            attributes(
                r#"{"dimensions":[4,4,2],"blockSize":[4,4,2],"dataType":"uint8","compression":{"type":"raw"},
                "downsamplingFactors":[2,2,1]}"#,
            ),
        ),
        ("p/s1/0/0/0", block(&[4, 4, 2], &counting[..32])),
        (
            "u/attributes.json",
            attributes(r#"{"dimensions":[4],"blockSize":[4],"dataType":"uint8","compression":{"type":"jpeg"}}"#),
        ),
        ("u/0", block(&[4], &counting[..4])),
        ("odd/attributes.json", attributes("[1,2")),
        ("a b/é%/attributes.json", attributes(r#"{"x":1e999}"#)),
    ]
}
