//! Answers that need not wait for anything: stored objects that are cached, what is known not to exist, and chunks of
//! views that are at hand.
//!
//! These are most of what viewers ask for, and small ones cost more in a general HTTP server than in themselves. What is
//! said here is what `stored` and `view` say, header by header; `tests/it/lane.rs` compares the two. Whatever is the least bit
//! unusual is left to it.

use std::cell::RefCell;
use std::io::Write;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use axum::http::{Method, StatusCode};
use bytes::Bytes;

use super::observe::{self, Line, Stage};
use super::problem::Problem;
use super::recent::{self, Seen};
use super::target::Target;
use super::templates::Template;
use super::{App, credentials, forwarded, is_request_id, quick_chunk, stored};
use crate::container::{ATTRIBUTES, AtOnce, Trail};
use crate::store::{Key, Meta, Sendable};
use crate::trace;

/// Most headers of a request that is answered here.
const HEADERS: usize = 48;

/// Longest path that is answered here; beyond a few bytes more the library refuses it.
const PATH_BYTES: usize = 60_000;

/// The part of a request that answers here depend on.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Asked<'a> {
    pub(super) is_head: bool,
    pub(super) path: &'a str,
    if_none_match: Option<&'a [u8]>,
    request_id: Option<&'a str>,
    has_origin: bool,
    traceparent: Option<&'a str>,
}

impl Asked<'_> {
    /// Whether the body of an object with that entity tag is to be sent.
    fn wants_bytes_of(&self, etag: &str) -> bool {
        !self.is_head && self.if_none_match != Some(etag.as_bytes())
    }
}

/// What the bytes received so far begin with.
#[derive(Debug)]
pub enum Received {
    /// A part of a head, or nothing.
    Part,
    /// A request without a body, with a head of so many bytes, and its answer if it was answered here.
    Request(usize, Option<Reply>),
    /// Something else.
    Other,
}

/// An answer to be sent: the head, then the body.
pub struct Reply {
    /// Status line and headers, with the empty line.
    pub head: Vec<u8>,
    /// Empty for HEAD.
    pub body: Content,
    line: Line,
}

/// The body of an answer.
#[derive(Debug)]
pub enum Content {
    /// Bytes.
    Bytes(Bytes),
    /// A file, to be sent by the kernel.
    File(Arc<Sendable>),
}

impl Content {
    fn none() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("body", &self.body).finish_non_exhaustive()
    }
}

impl Reply {
    /// When the request came.
    pub fn started(&self) -> Instant {
        self.line.started()
    }

    /// The rest of the body cannot be had: says so in log and metrics.
    pub fn broken_off(&self, error: &std::io::Error) {
        observe::broken_off(self.line.id(), error);
    }

    /// So many bytes of the body have been sent, and whether that is all of it.
    pub fn sent(&mut self, bytes: u64, is_all: bool) {
        self.line.sent = bytes;
        self.line.stage = if is_all { Stage::Done } else { Stage::Sent(None) };
    }
}

/// Looks at the beginning of what a connection received, and answers if that needs no waiting.
pub fn look(app: &Arc<App>, peer: Option<IpAddr>, received: &[u8]) -> Received {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(received) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Received::Part,
        Err(_) => return Received::Other,
    };
    match asked(&request) {
        Asking::Other => Received::Other,
        Asking::Plain => Received::Request(length, None),
        Asking::Quick(asked) => {
            // After a panic the library asks again, and its answer says that there is a fault.
            let answer = catch_unwind(AssertUnwindSafe(|| answer(app, peer, &asked)));
            Received::Request(length, answer.unwrap_or_default())
        }
    }
}

enum Asking<'a> {
    /// It has a body, or wants to leave HTTP/1.1, or may.
    Other,
    /// A request without a body.
    Plain,
    /// One that is simple enough.
    Quick(Asked<'a>),
}

fn asked<'a>(request: &httparse::Request<'_, 'a>) -> Asking<'a> {
    let (Some(method), Some(path)) = (request.method, request.path) else { return Asking::Other };
    let mut asked = Asked { is_head: method == "HEAD", path, ..Asked::default() };
    let mut is_quick = matches!(method, "GET" | "HEAD") && request.version == Some(1) && path.len() <= PATH_BYTES;
    let (mut has_since, mut hosts) = (false, 0);
    for header in request.headers.iter() {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        // By length first: nearly all headers are none of these.
        match header.name.len() {
            4 if is("host") => {
                hosts += 1;
                is_quick &= forwarded::is_host(header.value);
            }
            5 if is("range") => is_quick = false,
            6 if is("origin") => asked.has_origin = true,
            6 if is("accept") => is_quick &= !Problem::is_named_by(header.value),
            6 if is("expect") => return Asking::Other,
            7 if is("upgrade") => return Asking::Other,
            8 if is("if-range") || is("if-match") => is_quick = false,
            10 if is("connection") => is_quick &= header.value.eq_ignore_ascii_case(b"keep-alive"),
            11 if is("traceparent") => asked.traceparent = std::str::from_utf8(header.value).ok(),
            12 if is("x-request-id") => match std::str::from_utf8(header.value) {
                Ok(id) if asked.request_id.is_none() => asked.request_id = Some(id),
                _ => is_quick = false,
            },
            13 if is("authorization") => is_quick = false,
            13 if is("if-none-match") => {
                is_quick &= asked.if_none_match.is_none() && is_strong_tag(header.value);
                asked.if_none_match = Some(header.value);
            }
            14 if is("content-length") => return Asking::Other,
            14 if is("http2-settings") => return Asking::Other,
            17 if is("transfer-encoding") => return Asking::Other,
            17 if is("if-modified-since") => has_since = true,
            19 if is("if-unmodified-since") => is_quick = false,
            38 if is("access-control-request-private-network") => is_quick = false,
            _ => {}
        }
    }
    // An entity tag is asked for first.
    is_quick &= hosts == 1 && (!has_since || asked.if_none_match.is_some());
    if is_quick { Asking::Quick(asked) } else { Asking::Plain }
}

fn answer(app: &Arc<App>, peer: Option<IpAddr>, asked: &Asked<'_>) -> Option<Reply> {
    let (templates, started) = (&app.quick, Instant::now());
    if (templates.by_origin && asked.has_origin) || app.clients.are_slowed() {
        return None;
    }
    // Not to be told, wherever it stands.
    if app.options.control.is_some() && credentials::may_be_in(asked.path) {
        return None;
    }
    let access = app.resources.begin();
    let begun = Begun { app, peer, started };
    let again = recent::with(app, asked.path, |seen| {
        let (mount, template) = (app.mounts.get(seen.mount)?, templates.mounts.get(seen.mount)?);
        let with_bytes = seen.said.as_ref().is_some_and(|said| asked.wants_bytes_of(&said.etag));
        let bytes = mount.container.again(access, &mut seen.trail, with_bytes)?;
        Some(match &seen.said {
            Some(said) => begun.object(asked, template, said, Content::Bytes(begun.counted(asked, mount, bytes)?)),
            None => begun.missing(asked, template, observe::STORED),
        })
    });
    if again.is_some() {
        return again;
    }
    let Some(path) = Target::plain(asked.path, &app.options.base_path) else {
        return quick_chunk::answer(&begun, asked, access);
    };
    let (at, path) = match app.mounts.as_slice() {
        [only] if only.name.is_empty() => (0, path),
        several => {
            let (name, path) = path.split_once('/')?;
            (several.iter().position(|mount| mount.name == name)?, path)
        }
    };
    let key = Key::parse(path).ok().filter(stored::is_n5_key)?;
    let (mount, template) = (app.mounts.get(at)?, templates.mounts.get(at).filter(|template| template.is_open)?);
    if app.options.control.is_some() && path.starts_with("token/") {
        return None;
    }
    // Whoever has a copy may need no bytes.
    let with_bytes = !asked.is_head && asked.if_none_match.is_none();
    let mut found = mount.container.object_at_once(access, &key, with_bytes);
    if let AtOnce::Object(meta, bytes, _) = &found
        && bytes.len() as u64 != meta.len
        && asked.wants_bytes_of(&meta.etag)
    {
        found = mount.container.object_at_once(access, &key, true);
    }
    match found {
        AtOnce::Unknown => None,
        AtOnce::Missing(found) => {
            let trail = Trail { founds: vec![found], range: 0..0 };
            recent::keep(app, asked.path, Seen { mount: at, said: None, trail });
            Some(begun.missing(asked, template, observe::STORED))
        }
        // The kernel cannot encrypt it.
        AtOnce::Open(_) if app.options.is_https => None,
        AtOnce::Open(file) => {
            let said = Said::new(file.meta().clone(), key.name() == Some(ATTRIBUTES));
            Some(begun.object(asked, template, &said, Content::File(Arc::new(file))))
        }
        AtOnce::Object(meta, bytes, found) => {
            let range = 0..usize::try_from(meta.len).unwrap_or(usize::MAX);
            let said = Said::new(meta, key.name() == Some(ATTRIBUTES));
            let reply = begun.object(asked, template, &said, Content::Bytes(begun.counted(asked, mount, bytes)?));
            if let Some(found) = found {
                recent::keep(
                    app,
                    asked.path,
                    Seen { mount: at, said: Some(said), trail: Trail { founds: vec![found], range } },
                );
            }
            Some(reply)
        }
    }
}

/// What is said of one object or chunk.
pub(super) struct Said {
    pub(super) route: &'static str,
    etag: Arc<str>,
    is_attributes: bool,
    /// The headers that are its own, as lines; the length first.
    lines: Vec<u8>,
    length_bytes: usize,
}

impl Said {
    pub(super) fn new(meta: Meta, is_attributes: bool) -> Self {
        let mut lines = Vec::with_capacity(LINES_BYTES);
        let _ = write!(lines, "content-length: {}\r\n", meta.len);
        let length_bytes = lines.len();
        header(&mut lines, "etag", meta.etag.as_bytes());
        if let Some(date) = meta.modified.and_then(super::conditional::last_modified) {
            header(&mut lines, "last-modified", date.as_bytes());
        }
        Self { route: observe::STORED, etag: meta.etag, is_attributes, lines, length_bytes }
    }
}

/// A request whose answer is being written.
pub(super) struct Begun<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) peer: Option<IpAddr>,
    started: Instant,
}

impl Begun<'_> {
    pub(super) fn object(&self, asked: &Asked<'_>, template: &Template, said: &Said, body: Content) -> Reply {
        let status = match asked.if_none_match {
            Some(known) if known == said.etag.as_bytes() => StatusCode::NOT_MODIFIED,
            Some(_) | None => StatusCode::OK,
        };
        if status == StatusCode::NOT_MODIFIED {
            let mut head = head(b"HTTP/1.1 304 Not Modified\r\n");
            head.extend_from_slice(said.lines.get(said.length_bytes..).unwrap_or_default());
            head.extend_from_slice(&template.not_modified);
            return self.reply(asked, said.route, status, head, Content::none());
        }
        let mut head = head(b"HTTP/1.1 200 OK\r\n");
        head.extend_from_slice(&said.lines);
        head.extend_from_slice(if said.is_attributes { &template.attributes } else { &template.block });
        self.reply(asked, said.route, status, head, body)
    }

    /// There is nothing of that name.
    pub(super) fn missing(&self, asked: &Asked<'_>, template: &Template, route: &'static str) -> Reply {
        let mut head = head(b"HTTP/1.1 404 Not Found\r\n");
        head.extend_from_slice(&template.missing);
        self.reply(asked, route, StatusCode::NOT_FOUND, head, Content::none())
    }

    /// What all answers end with.
    fn reply(
        &self,
        asked: &Asked<'_>,
        route: &'static str,
        status: StatusCode,
        mut head: Vec<u8>,
        body: Content,
    ) -> Reply {
        let made = hexadecimal(self.app.shared.new_request_id());
        let made = std::str::from_utf8(&made).unwrap_or_default();
        let id = asked.request_id.filter(|id| is_request_id(id)).unwrap_or(made);
        header(&mut head, "x-request-id", id.as_bytes());
        write_date(&mut head);
        head.extend_from_slice(b"\r\n");
        let method = if asked.is_head { Method::HEAD } else { Method::GET };
        let mut line = Line::start(self.app, self.started, method, asked.path, None, self.peer, id);
        line.route = route;
        line.status = status;
        line.stage = Stage::Sent(None);
        let is_trusted = || forwarded::is_trusted(self.peer, &self.app.options.trusted_proxies);
        line.trace = trace::begin(asked.traceparent, is_trusted, || observe::shown(asked.path));
        let body = if asked.is_head { Content::none() } else { body };
        Reply { head, body, line }
    }
}

fn head(status_line: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    head.extend_from_slice(status_line);
    head
}

/// Adds a header line.
pub(super) fn header(head: &mut Vec<u8>, name: &str, value: &[u8]) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        head.extend_from_slice(part);
    }
}

/// As `{:016x}` writes it.
fn hexadecimal(number: u64) -> [u8; 16] {
    let mut digits = [0; 16];
    for (digits, byte) in digits.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        for (digit, half) in digits.iter_mut().zip([byte >> 4, byte & 15]) {
            *digit = if half < 10 { b'0' + half } else { b'a' + half - 10 };
        }
    }
    digits
}

/// Room for a head.
const HEAD_BYTES: usize = 1024;

/// Room for what is said of one object.
const LINES_BYTES: usize = 128;

/// Whether this is one strong entity tag.
fn is_strong_tag(value: &[u8]) -> bool {
    matches!(value, [b'"', inner @ .., b'"'] if !inner.contains(&b'"'))
}

/// Writes the header `date`, made once a second.
fn write_date(head: &mut Vec<u8>) {
    thread_local! {
        static MADE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    #[expect(clippy::disallowed_methods, reason = "the header says what the clock says")]
    let now = std::time::SystemTime::now();
    let second = now.duration_since(std::time::SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    MADE.with_borrow_mut(|(made, text)| {
        if *made != second {
            *made = second;
            *text = httpdate::fmt_http_date(now);
        }
        header(head, "date", text.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_written_as_the_formatter_writes_it() {
        for number in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX] {
            assert_eq!(std::str::from_utf8(&hexadecimal(number)).unwrap(), format!("{number:016x}"));
        }
    }

    #[test]
    fn whatever_is_unusual_is_left_to_the_library() {
        let ask = |text: &str| {
            let mut headers = [httparse::EMPTY_HEADER; HEADERS];
            let mut request = httparse::Request::new(&mut headers);
            let text = text.replace('\n', "\r\n");
            assert!(request.parse(text.as_bytes()).unwrap().is_complete(), "{text}");
            match asked(&request) {
                Asking::Other => "other",
                Asking::Plain => "plain",
                Asking::Quick(_) => "quick",
            }
        };
        assert_eq!(ask("GET /a/0 HTTP/1.1\nHost: x\nConnection: Keep-Alive\nAccept: */*\n\n"), "quick");
        assert_eq!(ask("HEAD /a/0 HTTP/1.1\nHost: x\nIf-None-Match: \"x\"\nIf-Modified-Since: x\n\n"), "quick");
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
            assert_eq!(ask(&format!("GET /a/0 HTTP/1.1\nHost: x\n{line}\n\n")), "plain", "{line}");
        }
        for hosts in ["", "Host: x\nHost: x\n", "Host: a b\n", "Host: ../x\n"] {
            assert_eq!(ask(&format!("GET /a/0 HTTP/1.1\n{hosts}\n")), "plain", "{hosts}");
        }
        assert_eq!(ask("GET /a/0 HTTP/1.0\nHost: x\n\n"), "plain");
        assert_eq!(ask("OPTIONS /a/0 HTTP/1.1\n\n"), "plain");
        for line in [
            "Content-Length: 0",
            "Transfer-Encoding: chunked",
            "Expect: 100-continue",
            "Upgrade: h2c",
            "HTTP2-Settings: AAMAAABkAAQAAP__",
        ] {
            assert_eq!(ask(&format!("GET /a/0 HTTP/1.1\n{line}\n\n")), "other", "{line}");
        }
    }
}
