//! Replies of the fast path: their heads, written from prepared header lines, and their bodies.

use std::cell::RefCell;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use axum::http::{Method, StatusCode};
use bytes::Bytes;

use crate::http::common_headers::{MountHeaders, push_header};
use crate::http::observe::{self, AccessLogFields, RequestRecord, SendStage};
use crate::http::{App, Mount, forwarded, redact, respond};
use crate::store::SendfileSource;
use crate::telemetry::trace;

/// The parts of a request on which its reply depends.
#[derive(Debug)]
pub(super) struct FastRequest<'a> {
    pub(super) peer: Option<IpAddr>,
    pub(super) started: Instant,
    pub(super) is_head: bool,
    pub(super) path: &'a str,
    pub(super) if_none_match: Option<&'a [u8]>,
    pub(super) request_id: Option<&'a str>,
    pub(super) has_origin: bool,
    pub(super) traceparent: Option<&'a str>,
}

impl FastRequest<'_> {
    /// Returns true if the response needs the body of an object with this entity tag.
    pub(super) fn needs_body(&self, etag: &str) -> bool {
        !self.is_head && self.if_none_match != Some(etag.as_bytes())
    }
}

/// A reply: the head, and the body that follows it.
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

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("body", &self.body).finish_non_exhaustive()
    }
}

impl Reply {
    /// Returns when the request arrived.
    pub fn started(&self) -> Instant {
        self.record.started
    }

    /// Logs and counts that the rest of the body cannot be read.
    pub fn report_body_failure(&self, error: &std::io::Error) {
        observe::report_body_failure(self.record.id(), error);
    }

    /// Records that `bytes` of the body have been sent. `is_complete` is true if this is the whole body.
    pub fn record_sent(&mut self, bytes: u64, is_complete: bool) {
        self.record.sent_bytes = bytes;
        self.record.stage = if is_complete { SendStage::Done } else { SendStage::Sending(None) };
    }
}

/// Minimum size of a body whose memory is charged to the client (64 KiB). A smaller body can stay in memory without a
/// charge until a slow client has received it. Each connection holds at most one such body, because it sends one reply
/// at a time. The HTTP library may hold many bodies for one connection, so its bound, `UNCHARGED_BYTES` in
/// `src/container/handle.rs`, is lower.
const MIN_CHARGED_BYTES: usize = 64 << 10;

/// Prepared headers of one object or chunk.
pub(super) struct EntityHeaders {
    pub(super) route: &'static str,
    pub(super) etag: Arc<str>,
    is_attributes: bool,
    /// Header lines of this entity only; `Content-Length` comes first.
    header_lines: Vec<u8>,
    content_length_line_bytes: usize,
}

impl EntityHeaders {
    pub(super) fn new(
        route: &'static str,
        len: u64,
        etag: Arc<str>,
        modified: Option<SystemTime>,
        is_attributes: bool,
    ) -> Self {
        let mut header_lines = Vec::with_capacity(HEADER_LINES_CAPACITY);
        let _ = write!(header_lines, "content-length: {len}\r\n");
        let content_length_line_bytes = header_lines.len();
        push_header(&mut header_lines, "etag", etag.as_bytes());
        if let Some(date) = modified.and_then(respond::last_modified) {
            push_header(&mut header_lines, "last-modified", date.as_bytes());
        }
        Self { route, etag, is_attributes, header_lines, content_length_line_bytes }
    }
}

/// Returns the reply for an object or chunk: 304 if the client already has it, otherwise 200.
pub(super) fn entity_reply(
    app: &Arc<App>,
    request: &FastRequest<'_>,
    template: &MountHeaders,
    headers: &EntityHeaders,
    body: ReplyBody,
) -> Reply {
    if request.if_none_match == Some(headers.etag.as_bytes()) {
        let mut head = start_head(b"HTTP/1.1 304 Not Modified\r\n");
        head.extend_from_slice(headers.header_lines.get(headers.content_length_line_bytes..).unwrap_or_default());
        head.extend_from_slice(&template.not_modified);
        return finish_reply(app, request, headers.route, StatusCode::NOT_MODIFIED, head, None);
    }
    let mut head = start_head(b"HTTP/1.1 200 OK\r\n");
    head.extend_from_slice(&headers.header_lines);
    head.extend_from_slice(if headers.is_attributes { &template.attributes } else { &template.block });
    finish_reply(app, request, headers.route, StatusCode::OK, head, Some(body))
}

/// Returns a body of `bytes`, which are charged to the client while they are being sent. Returns `None` if the charge
/// would have to wait, or if the peer's address does not identify the client. The HTTP library then answers.
pub(super) fn charged_body(app: &App, request: &FastRequest<'_>, mount: &Mount, bytes: Bytes) -> Option<ReplyBody> {
    if request.is_head {
        return Some(ReplyBody::Bytes(Bytes::new()));
    }
    if bytes.len() < MIN_CHARGED_BYTES {
        return Some(ReplyBody::Bytes(bytes));
    }
    let client = app.process.clients.identify_direct_peer(&app.options, request.peer)?;
    mount.container.charge_to_client(client, &bytes).map(ReplyBody::Bytes)
}

/// Returns the 404 reply.
pub(super) fn not_found_reply(
    app: &Arc<App>,
    request: &FastRequest<'_>,
    template: &MountHeaders,
    route: &'static str,
) -> Reply {
    let mut head = start_head(b"HTTP/1.1 404 Not Found\r\n");
    head.extend_from_slice(&template.missing);
    finish_reply(app, request, route, StatusCode::NOT_FOUND, head, None)
}

/// Completes a reply with the headers that all replies end with, and starts the request's record.
fn finish_reply(
    app: &Arc<App>,
    request: &FastRequest<'_>,
    route: &'static str,
    status: StatusCode,
    mut head: Vec<u8>,
    body: Option<ReplyBody>,
) -> Reply {
    let generated_hex = to_hex(app.process.new_request_id());
    let generated_id = std::str::from_utf8(&generated_hex).unwrap_or_default();
    let id = request.request_id.filter(|id| observe::is_request_id(id)).unwrap_or(generated_id);
    push_header(&mut head, "x-request-id", id.as_bytes());
    write_date(&mut head);
    head.extend_from_slice(b"\r\n");
    let method = if request.is_head { Method::HEAD } else { Method::GET };
    let mut record = RequestRecord::start(app, request.started, method);
    record.log_fields = AccessLogFields::new(id, request.peer, request.path, None);
    record.route = route;
    record.status = status;
    record.stage = SendStage::Sending(None);
    let is_trusted = || forwarded::is_trusted_proxy(request.peer, &app.options.trusted_proxies);
    record.trace = trace::begin(request.traceparent, is_trusted, || redact::redacted_excerpt(request.path));
    let body = body.filter(|_| !request.is_head).unwrap_or(ReplyBody::Bytes(Bytes::new()));
    Reply { head, body, record }
}

fn start_head(status_line: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_CAPACITY);
    head.extend_from_slice(status_line);
    head
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

/// Appends the header `date`, whose text is formatted once per second.
fn write_date(head: &mut Vec<u8>) {
    thread_local! {
        static CACHED_DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    #[expect(clippy::disallowed_methods, reason = "the Date header needs the system clock")]
    let now = SystemTime::now();
    let second = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
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
}
