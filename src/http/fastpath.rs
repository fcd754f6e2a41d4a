//! Fast path: responses that need no waiting. These are cached stored objects, keys that are known to be missing, and
//! chunks of views that are available without waiting.
//!
//! They are most of what viewers request. For small responses, a general HTTP server costs more than making them. The
//! headers are the same as those of `stored` and `view`, one by one; `tests/it/lane.rs` compares the two. Every unusual
//! request is left to the slow path.

use std::cell::RefCell;
use std::io::Write;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use axum::http::{Method, StatusCode};
use bytes::Bytes;

use super::observe::{self, RequestRecord, SendStage};
use super::problem::Problem;
use super::route::RequestTarget;
use super::templates::MountHeaders;
use super::thread_cache::{self, ThreadCacheEntry};
use super::{App, credentials, fastpath_chunk, forwarded, is_request_id, stored};
use crate::cache::{ATTRIBUTES, CachedAnswer, NonblockingLookup};
use crate::store::{Key, ObjectMeta, SendfileSource};
use crate::trace;

/// Maximum number of headers of a request on the fast path.
const MAX_HEADERS: usize = 48;

/// Longest path on the fast path, in bytes. The HTTP library refuses paths that are a few bytes longer.
const MAX_PATH_BYTES: usize = 60_000;

/// The parts of a request that the fast path depends on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FastRequest<'a> {
    pub(super) is_head: bool,
    pub(super) path: &'a str,
    if_none_match: Option<&'a [u8]>,
    request_id: Option<&'a str>,
    has_origin: bool,
    traceparent: Option<&'a str>,
}

impl FastRequest<'_> {
    /// Returns true if the response needs the body of an object with this entity tag.
    fn needs_body(&self, etag: &str) -> bool {
        !self.is_head && self.if_none_match != Some(etag.as_bytes())
    }
}

/// Outcome of [`try_answer`] for the bytes received so far.
#[derive(Debug)]
pub enum FastOutcome {
    /// Part of a request head, or nothing.
    Incomplete,
    /// A request without a body: the length of its head in bytes, and the reply if the fast path has answered it.
    Request(usize, Option<Reply>),
    /// Anything else, which the HTTP library handles.
    HandOver,
}

/// A reply to be sent: the head, then the body.
pub struct Reply {
    /// Status line, headers and the empty line after them.
    pub head: Vec<u8>,
    /// Empty for HEAD.
    pub body: ReplyBody,
    record: RequestRecord,
}

/// The body of a reply.
#[derive(Debug)]
pub enum ReplyBody {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A file that the kernel sends.
    File(Arc<SendfileSource>),
}

impl ReplyBody {
    fn empty() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("body", &self.body).finish_non_exhaustive()
    }
}

impl Reply {
    /// Returns when the request arrived.
    pub fn started(&self) -> Instant {
        self.record.started()
    }

    /// Logs and counts that the rest of the body cannot be read.
    pub fn report_body_failure(&self, error: &std::io::Error) {
        observe::report_body_failure(self.record.id(), error);
    }

    /// Records that `bytes` of the body have been sent; `is_complete` if that is the whole body.
    pub fn record_sent(&mut self, bytes: u64, is_complete: bool) {
        self.record.sent_bytes = bytes;
        self.record.stage = if is_complete { SendStage::Done } else { SendStage::Sending(None) };
    }
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
    match classify(&request) {
        FastEligibility::HandOver => FastOutcome::HandOver,
        FastEligibility::SlowPath => FastOutcome::Request(length, None),
        FastEligibility::FastPath(fast_request) => {
            // After a panic, the HTTP library handles the request again, and its response reports the fault.
            let reply = catch_unwind(AssertUnwindSafe(|| try_respond(app, peer, &fast_request)));
            FastOutcome::Request(length, reply.unwrap_or_default())
        }
    }
}

enum FastEligibility<'a> {
    /// The request has a body or asks for another protocol, or might.
    HandOver,
    /// A request without a body that the slow path answers.
    SlowPath,
    /// A request that is simple enough for the fast path.
    FastPath(FastRequest<'a>),
}

fn classify<'a>(request: &httparse::Request<'_, 'a>) -> FastEligibility<'a> {
    let (Some(method), Some(path)) = (request.method, request.path) else { return FastEligibility::HandOver };
    let mut fast_request = FastRequest { is_head: method == "HEAD", path, ..FastRequest::default() };
    let mut is_eligible =
        matches!(method, "GET" | "HEAD") && request.version == Some(1) && path.len() <= MAX_PATH_BYTES;
    let (mut has_modified_since, mut host_count) = (false, 0);
    for header in request.headers.iter() {
        let is_named = |name: &str| header.name.eq_ignore_ascii_case(name);
        // Compares the length first, because nearly all headers are none of these.
        match header.name.len() {
            4 if is_named("host") => {
                host_count += 1;
                is_eligible &= forwarded::is_url_safe_host(header.value);
            }
            5 if is_named("range") => is_eligible = false,
            6 if is_named("origin") => fast_request.has_origin = true,
            6 if is_named("accept") => is_eligible &= !Problem::is_named_in_accept(header.value),
            6 if is_named("expect") => return FastEligibility::HandOver,
            7 if is_named("upgrade") => return FastEligibility::HandOver,
            8 if is_named("if-range") || is_named("if-match") => is_eligible = false,
            10 if is_named("connection") => is_eligible &= header.value.eq_ignore_ascii_case(b"keep-alive"),
            11 if is_named("traceparent") => fast_request.traceparent = std::str::from_utf8(header.value).ok(),
            12 if is_named("x-request-id") => match std::str::from_utf8(header.value) {
                Ok(id) if fast_request.request_id.is_none() => fast_request.request_id = Some(id),
                _ => is_eligible = false,
            },
            13 if is_named("authorization") => is_eligible = false,
            13 if is_named("if-none-match") => {
                is_eligible &= fast_request.if_none_match.is_none() && is_strong_etag(header.value);
                fast_request.if_none_match = Some(header.value);
            }
            14 if is_named("content-length") => return FastEligibility::HandOver,
            14 if is_named("http2-settings") => return FastEligibility::HandOver,
            17 if is_named("transfer-encoding") => return FastEligibility::HandOver,
            17 if is_named("if-modified-since") => has_modified_since = true,
            19 if is_named("if-unmodified-since") => is_eligible = false,
            38 if is_named("access-control-request-private-network") => is_eligible = false,
            _ => {}
        }
    }
    // `If-None-Match` takes precedence over `If-Modified-Since`.
    is_eligible &= host_count == 1 && (!has_modified_since || fast_request.if_none_match.is_some());
    if is_eligible { FastEligibility::FastPath(fast_request) } else { FastEligibility::SlowPath }
}

fn try_respond(app: &Arc<App>, peer: Option<IpAddr>, request: &FastRequest<'_>) -> Option<Reply> {
    let (templates, started) = (&app.header_templates, Instant::now());
    if (templates.varies_by_origin && request.has_origin) || app.client_limiter.limits_bandwidth() {
        return None;
    }
    // A token must not be logged, wherever it stands in the path. The slow path redacts it.
    if app.options.access_control.is_some() && credentials::may_contain_secret(request.path) {
        return None;
    }
    let freshness = app.resources.request_freshness();
    let responder = FastResponder { app, peer, started };
    let cached_reply = thread_cache::with_entry(app, request.path, |entry| {
        let (mount, template) = (app.mounts.get(entry.mount)?, templates.mounts.get(entry.mount)?);
        let with_bytes = entry.headers.as_ref().is_some_and(|headers| request.needs_body(&headers.etag));
        let bytes = mount.container.revalidate(freshness, &mut entry.cached_answer, with_bytes)?;
        Some(match &entry.headers {
            Some(headers) => responder.entity_reply(
                request,
                template,
                headers,
                ReplyBody::Bytes(responder.charge_to_client(request, mount, bytes)?),
            ),
            None => responder.not_found_reply(request, template, observe::STORED),
        })
    });
    if cached_reply.is_some() {
        return cached_reply;
    }
    let Some(path) = RequestTarget::parse_literal_stored(request.path, &app.options.base_path) else {
        return fastpath_chunk::try_respond(&responder, request, freshness);
    };
    let (mount_index, path) = match app.mounts.as_slice() {
        [only] if only.name.is_empty() => (0, path),
        several => {
            let (name, path) = path.split_once('/')?;
            (several.iter().position(|mount| mount.name == name)?, path)
        }
    };
    let key = Key::parse(path).ok().filter(stored::is_n5_key)?;
    let (mount, template) =
        (app.mounts.get(mount_index)?, templates.mounts.get(mount_index).filter(|template| template.is_public)?);
    if app.options.access_control.is_some() && path.starts_with("token/") {
        return None;
    }
    // A client that has a copy may not need the bytes.
    let with_bytes = !request.is_head && request.if_none_match.is_none();
    let mut lookup = mount.container.try_object(freshness, &key, with_bytes);
    if let NonblockingLookup::Object(meta, bytes, _) = &lookup
        && bytes.len() as u64 != meta.len
        && request.needs_body(&meta.etag)
    {
        lookup = mount.container.try_object(freshness, &key, true);
    }
    match lookup {
        NonblockingLookup::WouldBlock => None,
        NonblockingLookup::Missing(dependency) => {
            let cached_answer = CachedAnswer { dependencies: vec![dependency], range: 0..0 };
            thread_cache::insert(
                app,
                request.path,
                ThreadCacheEntry { mount: mount_index, headers: None, cached_answer },
            );
            Some(responder.not_found_reply(request, template, observe::STORED))
        }
        // The kernel cannot encrypt the file that it sends.
        NonblockingLookup::Sendfile(_) if app.options.is_https => None,
        NonblockingLookup::Sendfile(file) => {
            let headers = EntityHeaders::new(file.meta().clone(), key.name() == Some(ATTRIBUTES));
            Some(responder.entity_reply(request, template, &headers, ReplyBody::File(Arc::new(file))))
        }
        NonblockingLookup::Object(meta, bytes, dependency) => {
            let range = 0..usize::try_from(meta.len).unwrap_or(usize::MAX);
            let headers = EntityHeaders::new(meta, key.name() == Some(ATTRIBUTES));
            let reply = responder.entity_reply(
                request,
                template,
                &headers,
                ReplyBody::Bytes(responder.charge_to_client(request, mount, bytes)?),
            );
            if let Some(dependency) = dependency {
                thread_cache::insert(
                    app,
                    request.path,
                    ThreadCacheEntry {
                        mount: mount_index,
                        headers: Some(headers),
                        cached_answer: CachedAnswer { dependencies: vec![dependency], range },
                    },
                );
            }
            Some(reply)
        }
    }
}

/// Prepared headers of one object or chunk.
pub(super) struct EntityHeaders {
    pub(super) route: &'static str,
    etag: Arc<str>,
    is_attributes: bool,
    /// Header lines of this entity only; `Content-Length` comes first.
    header_lines: Vec<u8>,
    content_length_line_bytes: usize,
}

impl EntityHeaders {
    pub(super) fn new(meta: ObjectMeta, is_attributes: bool) -> Self {
        let mut header_lines = Vec::with_capacity(HEADER_LINES_CAPACITY);
        let _ = write!(header_lines, "content-length: {}\r\n", meta.len);
        let content_length_line_bytes = header_lines.len();
        push_header(&mut header_lines, "etag", meta.etag.as_bytes());
        if let Some(date) = meta.modified.and_then(super::conditional::last_modified) {
            push_header(&mut header_lines, "last-modified", date.as_bytes());
        }
        Self { route: observe::STORED, etag: meta.etag, is_attributes, header_lines, content_length_line_bytes }
    }
}

/// A request whose reply is being written.
pub(super) struct FastResponder<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) peer: Option<IpAddr>,
    started: Instant,
}

impl FastResponder<'_> {
    pub(super) fn entity_reply(
        &self,
        request: &FastRequest<'_>,
        template: &MountHeaders,
        headers: &EntityHeaders,
        body: ReplyBody,
    ) -> Reply {
        let status = match request.if_none_match {
            Some(client_etag) if client_etag == headers.etag.as_bytes() => StatusCode::NOT_MODIFIED,
            Some(_) | None => StatusCode::OK,
        };
        if status == StatusCode::NOT_MODIFIED {
            let mut head = start_head(b"HTTP/1.1 304 Not Modified\r\n");
            head.extend_from_slice(headers.header_lines.get(headers.content_length_line_bytes..).unwrap_or_default());
            head.extend_from_slice(&template.not_modified);
            return self.finish_reply(request, headers.route, status, head, ReplyBody::empty());
        }
        let mut head = start_head(b"HTTP/1.1 200 OK\r\n");
        head.extend_from_slice(&headers.header_lines);
        head.extend_from_slice(if headers.is_attributes { &template.attributes } else { &template.block });
        self.finish_reply(request, headers.route, status, head, body)
    }

    /// Returns the 404 reply.
    pub(super) fn not_found_reply(
        &self,
        request: &FastRequest<'_>,
        template: &MountHeaders,
        route: &'static str,
    ) -> Reply {
        let mut head = start_head(b"HTTP/1.1 404 Not Found\r\n");
        head.extend_from_slice(&template.missing);
        self.finish_reply(request, route, StatusCode::NOT_FOUND, head, ReplyBody::empty())
    }

    /// Completes a reply with the headers that all replies end with, and starts the request's record.
    fn finish_reply(
        &self,
        request: &FastRequest<'_>,
        route: &'static str,
        status: StatusCode,
        mut head: Vec<u8>,
        body: ReplyBody,
    ) -> Reply {
        let generated_hex = to_hex(self.app.process.new_request_id());
        let generated_id = std::str::from_utf8(&generated_hex).unwrap_or_default();
        let id = request.request_id.filter(|id| is_request_id(id)).unwrap_or(generated_id);
        push_header(&mut head, "x-request-id", id.as_bytes());
        write_date(&mut head);
        head.extend_from_slice(b"\r\n");
        let method = if request.is_head { Method::HEAD } else { Method::GET };
        let mut record = RequestRecord::start(self.app, self.started, method, request.path, None, self.peer, id);
        record.route = route;
        record.status = status;
        record.stage = SendStage::Sending(None);
        let is_trusted = || forwarded::is_trusted_proxy(self.peer, &self.app.options.trusted_proxies);
        record.trace = trace::begin(request.traceparent, is_trusted, || observe::redacted_excerpt(request.path));
        let body = if request.is_head { ReplyBody::empty() } else { body };
        Reply { head, body, record }
    }
}

fn start_head(status_line: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_CAPACITY);
    head.extend_from_slice(status_line);
    head
}

/// Appends a header line.
pub(super) fn push_header(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}

/// Formats a number as `{:016x}` does.
fn to_hex(number: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    for (digits, byte) in digits.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        for (digit, nibble) in digits.iter_mut().zip([byte >> 4, byte & 15]) {
            *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
        }
    }
    digits
}

/// Initial capacity of a head, in bytes.
const HEAD_CAPACITY: usize = 1024;

/// Initial capacity of an entity's header lines, in bytes.
const HEADER_LINES_CAPACITY: usize = 128;

/// Returns true if `value` is a single strong entity tag.
fn is_strong_etag(value: &[u8]) -> bool {
    matches!(value, [b'"', inner @ .., b'"'] if !inner.contains(&b'"'))
}

/// Appends the header `date`, whose text is formatted once per second.
fn write_date(head: &mut Vec<u8>) {
    thread_local! {
        static CACHED_DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    #[expect(clippy::disallowed_methods, reason = "the Date header needs the system clock")]
    let now = std::time::SystemTime::now();
    let second = now.duration_since(std::time::SystemTime::UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    CACHED_DATE.with_borrow_mut(|(cached_second, text)| {
        if *cached_second != second {
            *cached_second = second;
            *text = httpdate::fmt_http_date(now);
        }
        push_header(head, "date", text.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_formatted_as_by_the_standard_formatter() {
        for number in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            assert_eq!(std::str::from_utf8(&to_hex(number)).unwrap(), format!("{number:016x}"));
        }
    }

    #[test]
    fn unusual_requests_are_left_to_the_http_library() {
        let classify_text = |text: &str| {
            let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            let mut request = httparse::Request::new(&mut headers);
            let text = text.replace('\n', "\r\n");
            assert!(request.parse(text.as_bytes()).unwrap().is_complete(), "{text}");
            match classify(&request) {
                FastEligibility::HandOver => "other",
                FastEligibility::SlowPath => "plain",
                FastEligibility::FastPath(_) => "quick",
            }
        };
        assert_eq!(classify_text("GET /a/0 HTTP/1.1\nHost: x\nConnection: Keep-Alive\nAccept: */*\n\n"), "quick");
        assert_eq!(
            classify_text("HEAD /a/0 HTTP/1.1\nHost: x\nIf-None-Match: \"x\"\nIf-Modified-Since: x\n\n"),
            "quick"
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
            assert_eq!(classify_text(&format!("GET /a/0 HTTP/1.1\n{line}\n\n")), "other", "{line}");
        }
    }
}
