//! The fast path answers requests that need no waiting: those for cached objects, for keys that are known to be
//! missing, and for chunks of views that are available at once.
//!
//! [`try_answer`] is the only entry point. This module depends on `http`, and nothing in `http` depends on it.
//!
//! Most requests of viewers are of this kind. For a small response, a general HTTP server takes more time than the
//! response itself. The headers are the same as those from `http::routes`, which `tests/it/fast_path.rs` checks. The
//! HTTP library answers every unusual request.

mod reply;
mod thread_cache;

use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;

use crate::cache::{ATTRIBUTES, ReadOptions};
use crate::container::{CachedResponse, NonblockingLookup};
use crate::http::common_headers::MountHeaders;
use crate::http::problem::Problem;
use crate::http::route::{self, Endpoint, RequestTarget};
use crate::http::{App, Mount, forwarded, redact};
use crate::store::Key;
use crate::telemetry::metrics::LookupResult;
use crate::view::{ResolvedKey, ViewLookup};
use reply::{EntityHeaders, FastRequest, charged_body, entity_reply, not_found_reply};
pub use reply::{Reply, ReplyBody};
use thread_cache::ThreadCacheEntry;

/// Maximum number of headers of a request on the fast path.
const MAX_HEADERS: usize = 48;

/// Maximum length of a path on the fast path, in bytes. The HTTP library refuses paths that are slightly longer.
const MAX_PATH_BYTES: usize = 60_000;

/// Media type of most chunks.
const OCTET_STREAM: &str = "application/octet-stream";

/// Outcome of [`try_answer`] for the bytes received so far.
#[derive(Debug)]
pub enum FastOutcome {
    /// Part of a request head, or no bytes.
    Incomplete,
    /// A request without a body: the length of its head in bytes, and the fast path's reply, if there is one.
    Request(usize, Option<Reply>),
    /// Any other bytes, which the HTTP library handles.
    HandOver,
}

/// Parses the beginning of the bytes that a connection received, and answers the request if that needs no waiting.
pub fn try_answer(app: &Arc<App>, peer: Option<IpAddr>, received: &[u8]) -> FastOutcome {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(received) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return FastOutcome::Incomplete,
        Err(_) => return FastOutcome::HandOver,
    };
    match classify(&request, peer) {
        RequestClass::Unusual => FastOutcome::HandOver,
        RequestClass::Plain => FastOutcome::Request(length, None),
        RequestClass::Eligible(fast_request) => {
            // After a panic, the HTTP library handles the request again, and its response reports the fault.
            let reply = catch_unwind(AssertUnwindSafe(|| try_respond(app, &fast_request)));
            FastOutcome::Request(length, reply.unwrap_or_default())
        }
    }
}

/// How a request can be answered.
enum RequestClass<'a> {
    /// By the fast path, if that needs no waiting.
    Eligible(FastRequest<'a>),
    /// By the HTTP library. The request has no body, so the next request follows its head.
    Plain,
    /// By the HTTP library. The request has a body or asks for another protocol, or possibly does.
    Unusual,
}

/// Decides how a request can be answered.
fn classify<'a>(request: &httparse::Request<'_, 'a>, peer: Option<IpAddr>) -> RequestClass<'a> {
    let (Some(method), Some(path)) = (request.method, request.path) else { return RequestClass::Unusual };
    let mut if_none_match = None;
    let mut request_id = None;
    let mut has_origin = false;
    let mut traceparent = None;
    let mut is_eligible =
        matches!(method, "GET" | "HEAD") && request.version == Some(1) && path.len() <= MAX_PATH_BYTES;
    let mut has_modified_since = false;
    let mut host_count = 0;
    for header in request.headers.iter() {
        let is_named = |name: &str| header.name.eq_ignore_ascii_case(name);
        // The length is compared first, because nearly all headers are none of these.
        match header.name.len() {
            4 if is_named("host") => {
                host_count += 1;
                is_eligible &= forwarded::is_url_safe_host(header.value);
            }
            5 if is_named("range") => is_eligible = false,
            6 if is_named("origin") => has_origin = true,
            6 if is_named("accept") => is_eligible &= !Problem::is_named_in_accept(header.value),
            6 if is_named("expect") => return RequestClass::Unusual,
            7 if is_named("upgrade") => return RequestClass::Unusual,
            8 if is_named("if-range") || is_named("if-match") => is_eligible = false,
            10 if is_named("connection") => is_eligible &= header.value.eq_ignore_ascii_case(b"keep-alive"),
            11 if is_named("traceparent") => traceparent = std::str::from_utf8(header.value).ok(),
            12 if is_named("x-request-id") => match std::str::from_utf8(header.value) {
                Ok(id) if request_id.is_none() => request_id = Some(id),
                _ => is_eligible = false,
            },
            13 if is_named("authorization") => is_eligible = false,
            13 if is_named("if-none-match") => {
                is_eligible &= if_none_match.is_none() && is_strong_etag(header.value);
                if_none_match = Some(header.value);
            }
            14 if is_named("content-length") => return RequestClass::Unusual,
            14 if is_named("http2-settings") => return RequestClass::Unusual,
            17 if is_named("transfer-encoding") => return RequestClass::Unusual,
            17 if is_named("if-modified-since") => has_modified_since = true,
            19 if is_named("if-unmodified-since") => is_eligible = false,
            38 if is_named("access-control-request-private-network") => is_eligible = false,
            _ => {}
        }
    }
    // `If-None-Match` takes precedence over `If-Modified-Since`.
    is_eligible &= host_count == 1 && (!has_modified_since || if_none_match.is_some());
    if !is_eligible {
        return RequestClass::Plain;
    }
    RequestClass::Eligible(FastRequest {
        peer,
        started: Instant::now(),
        is_head: method == "HEAD",
        path,
        if_none_match,
        request_id,
        has_origin,
        traceparent,
    })
}

/// Replies to an eligible request if the reply needs no waiting. Repeats an earlier reply of this thread for the same
/// path, or replies with a stored object or a chunk of a view. Returns `None` if the HTTP library must answer.
fn try_respond(app: &Arc<App>, request: &FastRequest<'_>) -> Option<Reply> {
    let varies_by_origin = || !app.options.cors_origins.iter().any(|origin| origin == "*");
    if (request.has_origin && varies_by_origin()) || app.options.client_limits.bytes_per_second > 0 {
        return None;
    }
    // The HTTP library redacts tokens, which must not be logged, anywhere in the path.
    if app.options.access_control.is_some() && redact::may_contain_secret(request.path) {
        return None;
    }
    let read_options = ReadOptions::begin();
    let repeated =
        thread_cache::with_entry(app.id, request.path, |entry| repeat_reply(app, request, read_options, entry));
    if repeated.is_some() {
        return repeated;
    }
    match RequestTarget::parse_literal_stored(request.path, &app.options.base_path) {
        Some(path) => try_stored(app, request, read_options, path),
        None => try_chunk(app, request, read_options),
    }
}

/// Returns the mount with the given index and its prepared headers. Returns `None` if only some clients may read it,
/// because the fast path does not check tokens.
fn public_mount(app: &App, index: usize) -> Option<(&Mount, &MountHeaders)> {
    let template = app.header_templates.get(index).filter(|template| template.is_public)?;
    Some((app.mounts.get(index)?, template))
}

/// Repeats an earlier reply of this thread if nothing that the reply depends on has changed.
fn repeat_reply(
    app: &Arc<App>,
    request: &FastRequest<'_>,
    read_options: ReadOptions,
    entry: &mut ThreadCacheEntry,
) -> Option<Reply> {
    let (mount, template) = public_mount(app, entry.mount_index)?;
    let with_bytes = entry.headers.as_ref().is_some_and(|headers| request.needs_body(&headers.etag));
    let bytes = mount.container.reuse_response(read_options, &mut entry.cached_response, with_bytes)?;
    Some(match &entry.headers {
        Some(headers) => entity_reply(app, request, template, headers, charged_body(app, request, mount, bytes)?),
        None => not_found_reply(app, request, template, route::STORED),
    })
}

/// Replies with the stored object at `path`, or with its 404, if looking it up needs no waiting.
fn try_stored(app: &Arc<App>, request: &FastRequest<'_>, read_options: ReadOptions, path: &str) -> Option<Reply> {
    // `http` removes a token at the start of the path.
    if app.options.access_control.is_some() && path.starts_with("token/") {
        return None;
    }
    let (name, path) = if app.has_root_mount() { ("", path) } else { path.split_once('/')? };
    let (mount_index, _) = app.find_mount(name)?;
    let (mount, template) = public_mount(app, mount_index)?;
    let key = Key::parse(path).ok().filter(route::is_n5_key)?;
    let is_attributes = key.name() == Some(ATTRIBUTES);
    // A client that already has the object may not need the bytes.
    let with_bytes = !request.is_head && request.if_none_match.is_none();
    let mut lookup = mount.container.try_object(read_options, &key, with_bytes)?;
    if let NonblockingLookup::Object(meta, None, _) = &lookup
        && request.needs_body(&meta.etag)
    {
        lookup = mount.container.try_object(read_options, &key, true)?;
    }
    match lookup {
        NonblockingLookup::Missing(dependency) => {
            let cached_response = CachedResponse { source: dependency, range: 0..0, others: Vec::new() };
            thread_cache::insert(app.id, request.path, mount_index, None, cached_response);
            Some(not_found_reply(app, request, template, route::STORED))
        }
        // The kernel cannot encrypt the file that it sends.
        NonblockingLookup::Sendfile(_) if app.options.is_https => None,
        NonblockingLookup::Sendfile(file) => {
            let meta = file.meta().clone();
            let headers = EntityHeaders::new(route::STORED, meta.len, meta.etag, meta.modified, is_attributes);
            Some(entity_reply(app, request, template, &headers, ReplyBody::File(Arc::new(file))))
        }
        NonblockingLookup::Object(meta, bytes, dependency) => {
            let range = 0..usize::try_from(meta.len).unwrap_or(usize::MAX);
            let headers = EntityHeaders::new(route::STORED, meta.len, meta.etag, meta.modified, is_attributes);
            let body = charged_body(app, request, mount, bytes.unwrap_or_default())?;
            let reply = entity_reply(app, request, template, &headers, body);
            if let Some(dependency) = dependency {
                let cached_response = CachedResponse { source: dependency, range, others: Vec::new() };
                thread_cache::insert(app.id, request.path, mount_index, Some(headers), cached_response);
            }
            Some(reply)
        }
    }
}

/// Replies with a chunk of a view if resolving and reading it need no waiting. Otherwise returns `None` without having
/// started work that the HTTP library would repeat.
fn try_chunk(app: &Arc<App>, request: &FastRequest<'_>, read_options: ReadOptions) -> Option<Reply> {
    // The HTTP library handles queries, and every path that it may parse differently.
    if !request.path.bytes().all(RequestTarget::is_literal_path_byte) {
        return None;
    }
    let read_options = read_options.nonblocking();
    let target = RequestTarget::parse(request.path, &app.options.base_path).ok()??;
    let Endpoint::View(view) = target.endpoint else { return None };
    let (parameters, path) = target.segments.split_at_checked(view.path_parameter_count())?;
    if target.has_trailing_slash || !target.ends_like_chunk() || !view.accepts_path_parameters(parameters) {
        return None;
    }
    let (mount_index, _, key) = app.locate(path).ok()??;
    let (mount, template) = public_mount(app, mount_index)?;
    let lookup = ViewLookup {
        container: &mount.container,
        options: read_options,
        path_parameters: parameters,
        key: &key,
        query: &[],
    };
    let ResolvedKey::Chunk(chunk) = view.resolve(&lookup).now_or_never()?.ok()? else { return None };
    if chunk.media_type() != OCTET_STREAM {
        return None;
    }
    let Some(encoded) = chunk.read(&mount.container, read_options).now_or_never()?.ok()? else {
        mount.container.count_lookup(LookupResult::Absent);
        return Some(not_found_reply(app, request, template, view.name()));
    };
    let bytes = encoded.bytes()?.clone();
    mount.container.count_lookup(LookupResult::Hit);
    let headers = EntityHeaders::new(view.name(), encoded.len, encoded.etag.as_str().into(), None, false);
    let reply = entity_reply(app, request, template, &headers, charged_body(app, request, mount, bytes)?);
    if view.has_self_contained_chunks()
        && let Some(cached_response) = chunk.cached_response(&mount.container, read_options, &key, encoded)
    {
        thread_cache::insert(app.id, request.path, mount_index, Some(headers), cached_response);
    }
    Some(reply)
}

/// Returns true if `value` is a single strong entity tag.
fn is_strong_etag(value: &[u8]) -> bool {
    matches!(value, [b'"', inner @ .., b'"'] if !inner.contains(&b'"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_requests_are_left_to_the_http_library() {
        let classify_text = |text: &str| {
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut request = httparse::Request::new(&mut headers);
            let text = text.replace('\n', "\r\n");
            assert!(request.parse(text.as_bytes()).unwrap().is_complete(), "{text}");
            match classify(&request, None) {
                RequestClass::Unusual => "unusual",
                RequestClass::Plain => "plain",
                RequestClass::Eligible(_) => "eligible",
            }
        };
        assert_eq!(classify_text("GET /a/0 HTTP/1.1\nHost: x\nConnection: Keep-Alive\nAccept: */*\n\n"), "eligible");
        assert_eq!(
            classify_text("HEAD /a/0 HTTP/1.1\nHost: x\nIf-None-Match: \"x\"\nIf-Modified-Since: x\n\n"),
            "eligible"
        );
        for line in [
            "Range: bytes=0-1",
            "Accept: application/problem+json",
            "If-Match: *",
            "If-Range: \"x\"",
            "Connection: close",
            "If-Modified-Since: x",
            "If-Unmodified-Since: x",
            "Authorization: Bearer x",
            "If-None-Match: \"a\"\nIf-None-Match: \"b\"",
        ] {
            assert_eq!(classify_text(&format!("GET /a/0 HTTP/1.1\nHost: x\n{line}\n\n")), "plain", "{line}");
        }
        for hosts in ["", "Host: x\nHost: x\n", "Host: a b\n", "Host: ../x\n"] {
            assert_eq!(classify_text(&format!("GET /a/0 HTTP/1.1\n{hosts}\n")), "plain", "{hosts}");
        }
        assert_eq!(classify_text("GET /a/0 HTTP/1.0\nHost: x\n\n"), "plain");
        assert_eq!(classify_text("OPTIONS /a/0 HTTP/1.1\n\n"), "plain");
        for line in [
            "Content-Length: 0",
            "Transfer-Encoding: chunked",
            "Expect: 100-continue",
            "Upgrade: h2c",
            "HTTP2-Settings: AAMAAABkAAQAAP__",
        ] {
            assert_eq!(classify_text(&format!("GET /a/0 HTTP/1.1\n{line}\n\n")), "unusual", "{line}");
        }
    }
}
