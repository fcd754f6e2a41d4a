//! The bytes of a connection. For all requests that the fast path parses, the fast path together with the HTTP library
//! (hyper) must give the same responses as hyper alone. After these requests, only the head of the next response is
//! compared.
//!
//! Input: the bytes that a client sends.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use axum::body::Body;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use n5_server::fastpath::{FastOutcome, Reply, ReplyBody, try_answer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use super::request::objects;
use super::server::{Server, wait_for};

/// Maximum length of a request head, as in `src/conn/connection_memory.rs`.
const HEADER_BYTES: usize = 96 << 10;

/// First bytes of an HTTP/2 connection, as in `src/conn/fast_connection.rs`.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Header of every response that does not come from hyper itself.
const ALL: &[u8] = b"\r\naccess-control-allow-origin: ";

/// Status line, headers and body of a response, without the parts that always differ.
type Plain = (String, BTreeMap<String, Vec<String>>, String);

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

pub(crate) fn run(data: &[u8]) {
    // hyper alone handles HTTP/2, and heads that are too long.
    if data.len() > 16 << 10 || data.starts_with(b"PRI") {
        return;
    }
    SERVER.with_borrow_mut(|server| {
        let server = server.get_or_insert_with(begin);
        let (by_fast_path, heads) = in_turn(server, data);
        let alone = library(server, data);
        let (by_fast_path, alone) = (served(&by_fast_path, &heads), served(&alone, &heads));
        for (ours, theirs) in by_fast_path.iter().zip(&alone) {
            assert_eq!(ours, theirs, "{}", data.escape_ascii());
        }
        assert_eq!(by_fast_path.len(), alone.len(), "{}", data.escape_ascii());
    });
}

/// Returns a server for which the fast path has something to answer.
fn begin() -> Server {
    let mut files = objects();
    // Large enough to be sent by sendfile.
    files.push(("big/0", (0..200_000u32).map(|n| (n % 251) as u8).collect()));
    let server = Server::of_files(&files);
    // The fast path answers from the cache.
    for path in ["/a/0/0", "/a/1/0", "/a/attributes.json", "/zarr3/a/c/0/0", "/zarr2/a/0/0", "/attributes.json"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let answered = |request: &str| {
        let received = try_answer(&server.app, None, format!("{request}\r\n\r\n").as_bytes());
        let FastOutcome::Request(_, Some(reply)) = received else { panic!("{request}: is left to the library") };
        reply
    };
    let begins = |reply: &Reply, status: &str| {
        assert!(reply.head.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{}", reply.head.escape_ascii());
    };
    for path in ["/a/0/0", "/zarr3/a/c/0/0", "/zarr2/a/0/0"] {
        begins(&answered(&format!("GET {path} HTTP/1.1\r\nHost: x")), "200");
    }
    let tag = server.get("/a/0/0").header("etag").unwrap().to_owned();
    begins(&answered(&format!("GET /a/0/0 HTTP/1.1\r\nHost: x\r\nIf-None-Match: {tag}")), "304");
    let large = answered("GET /big/0 HTTP/1.1\r\nHost: x");
    assert!(matches!(large.body, ReplyBody::File(_)), "{large:?}");
    server
}

/// Returns the body of a response of the fast path.
fn body_of(reply: &Reply) -> Bytes {
    let file = match &reply.body {
        ReplyBody::Bytes(bytes) => return bytes.clone(),
        ReplyBody::File(file) => file,
    };
    let (sender, mut receiver) = UnixStream::pair().unwrap();
    let mut body = vec![0; file.meta().len as usize];
    let mut at = 0;
    while at < body.len() {
        // Sends no more at once than fits the socket.
        sender.set_nonblocking(true).unwrap();
        let sent = file.send(sender.as_fd(), at as u64, usize::MAX).expect("a file that nobody writes");
        receiver.read_exact(&mut body[at..at + sent]).unwrap();
        at += sent;
    }
    body.into()
}

/// Returns the responses of the fast path, and those of hyper to the requests that the fast path leaves to it. For each
/// request, also returns true if its method is HEAD.
fn in_turn(server: &Server, data: &[u8]) -> (Vec<u8>, Vec<bool>) {
    let (mut rest, mut output, mut heads) = (data, Vec::new(), Vec::new());
    loop {
        match try_answer(&server.app, None, rest) {
            FastOutcome::Request(length, response) => {
                let (head, after) = rest.split_at(length);
                let is_head = head.trim_ascii_start().starts_with(b"HEAD ");
                heads.push(is_head);
                if let Some(reply) = response {
                    output.extend_from_slice(&reply.head);
                    output.extend_from_slice(&body_of(&reply));
                } else {
                    let answered = library(server, head);
                    assert!(!answered.is_empty(), "a whole request has no response: {}", head.escape_ascii());
                    // After a refusal of its own, hyper closes the connection.
                    let is_refused = !answered.windows(ALL.len()).any(|part| part.eq_ignore_ascii_case(ALL));
                    output.extend(answered);
                    if is_refused || is_last(head) {
                        return (output, heads);
                    }
                }
                rest = after;
            }
            FastOutcome::Incomplete => {
                let answered = library(server, rest);
                assert!(answered.is_empty(), "part of a head has a response: {}", rest.escape_ascii());
                return (output, heads);
            }
            // Only the beginning of a connection can be HTTP/2. A new hyper connection would take these bytes for that.
            FastOutcome::HandOver if PREFACE.iter().zip(rest).all(|(one, other)| one == other) => {
                return (output, heads);
            }
            FastOutcome::HandOver => {
                output.extend(library(server, rest));
                return (output, heads);
            }
        }
    }
}

/// Returns true if hyper closes the connection after a request with this head.
fn is_last(head: &[u8]) -> bool {
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut request = httparse::Request::new(&mut headers);
    assert!(request.parse(head).is_ok_and(|parsed| parsed.is_complete()));
    let mut keeps = request.version == Some(1);
    for header in request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("connection")) {
        let Ok(text) = std::str::from_utf8(header.value) else { continue };
        let has = |word: &str| text.split(',').any(|part| part.trim().eq_ignore_ascii_case(word));
        keeps = if keeps { !has("close") } else { has("keep-alive") };
    }
    !keeps
}

/// Returns hyper's responses to these bytes, after which the client sends no more.
fn library(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut http = Builder::new(TokioExecutor::new());
    // Bytes after a response to HEAD may be taken for its body. A date in them would differ from second to second.
    http.http1().header_read_timeout(None).max_buf_size(HEADER_BYTES).half_close(true).auto_date_header(false);
    let router = server.router.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| router.clone().oneshot(request.map(Body::new)));
    wait_for(async {
        let (client, peer) = tokio::io::duplex(1 << 20);
        let (mut reader, mut writer) = tokio::io::split(client);
        let serve = async {
            // The responses show how the connection ends.
            let _ = http.serve_connection(TokioIo::new(peer), service).await;
        };
        let ask = async {
            let sent = async {
                let _ = writer.write_all(bytes).await;
                let _ = writer.shutdown().await;
            };
            let mut answered = Vec::new();
            let received = reader.read_to_end(&mut answered);
            let ((), received) = tokio::join!(sent, received);
            received.map(|_| answered).unwrap_or_default()
        };
        tokio::join!(serve, ask).1
    })
}

/// Returns the responses without hyper's refusal at the end. If the input is malformed and incomplete, hyper sends a
/// refusal or only closes the connection, depending on the division of the bytes into packets.
fn served(bytes: &[u8], heads: &[bool]) -> Vec<Plain> {
    let mut responses = responses(bytes, heads);
    responses.pop_if(|(status, headers, _)| {
        status.starts_with("HTTP/1.") && !headers.contains_key("access-control-allow-origin")
    });
    responses
}

/// Parses consecutive responses. `heads` is true for those without a body. In both runs, hyper answers the requests
/// that follow. The first of these may be HEAD, so only the status and the headers of its response are returned.
fn responses(mut bytes: &[u8], heads: &[bool]) -> Vec<Plain> {
    let (mut found, mut heads) = (Vec::new(), heads.iter());
    while !bytes.is_empty() {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").map_or(bytes.len(), |at| at + 4);
        let (head, rest) = bytes.split_at(end);
        let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let status = lines.next().unwrap_or_default().escape_ascii().to_string();
        let mut headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut length = 0;
        for line in lines.filter(|line| !line.is_empty()) {
            let Some(at) = line.iter().position(|byte| *byte == b':') else { return found };
            let name = String::from_utf8_lossy(&line[..at]).to_ascii_lowercase();
            let value = line[at + 1..].trim_ascii().escape_ascii().to_string();
            if name == "content-length" {
                length = value.parse().expect("a length is a number");
            }
            // hyper marks the last response with `connection: close` only if it has seen the end of the input.
            if !matches!(name.as_str(), "date" | "x-request-id" | "connection" | "server-timing") {
                headers.entry(name).or_default().push(value);
            }
        }
        let is_interim = status.starts_with("HTTP/1.1 1");
        let Some(is_head) = (if is_interim { Some(&true) } else { heads.next() }) else {
            found.push((status, headers, String::new()));
            return found;
        };
        let is_empty = *is_head || status.contains(" 304 ") || status.contains(" 204 ");
        let length = if is_empty { 0 } else { length };
        let (body, rest) = rest.split_at(length.min(rest.len()));
        bytes = rest;
        // Problem documents repeat the request id.
        let mut text = String::from_utf8_lossy(body).into_owned();
        if let Some(at) = text.find("\"request_id\"") {
            text.truncate(at);
        }
        found.push((status, headers, text));
    }
    found
}
