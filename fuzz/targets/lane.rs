//! The bytes of a connection: what the lane makes of them, and what the HTTP library alone does, are the same answers, as far as the
//! lane looks at the requests. Of what the library answers after those, the first head is compared.
//!
//! Input: what a client sends.

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
use n5_server::http::quick::{Content, Received, Reply, look};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::ServiceExt;

use super::request::objects;
use super::server::{Server, wait_for};

/// As `src/app/connections.rs` has it.
const HEADER_BYTES: usize = 96 << 10;

/// As `src/app/lane.rs` has it.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// On every answer that is not the library's own.
const ALL: &[u8] = b"\r\naccess-control-allow-origin: ";

/// An answer without what differs each time.
type Plain = (String, BTreeMap<String, Vec<String>>, String);

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

pub(crate) fn run(data: &[u8]) {
    // What begins as HTTP/2 is the library's alone, and so is what is longer than any head.
    if data.len() > 16 << 10 || data.starts_with(b"PRI") {
        return;
    }
    SERVER.with_borrow_mut(|server| {
        let server = server.get_or_insert_with(begin);
        let (by_lane, heads) = in_turn(server, data);
        let alone = library(server, data);
        let (by_lane, alone) = (served(&by_lane, &heads), served(&alone, &heads));
        for (ours, theirs) in by_lane.iter().zip(&alone) {
            assert_eq!(ours, theirs, "{}", data.escape_ascii());
        }
        assert_eq!(by_lane.len(), alone.len(), "{}", data.escape_ascii());
    });
}

/// A server of which the lane has something to answer.
fn begin() -> Server {
    let mut files = objects();
    // Large enough that the kernel sends it.
    files.push(("big/0", (0..200_000u32).map(|n| (n % 251) as u8).collect()));
    let server = Server::of_files(&files);
    // What is cached is the lane's to answer.
    for path in ["/a/0/0", "/a/1/0", "/a/attributes.json", "/zarr3/a/c/0/0", "/zarr2/a/0/0", "/attributes.json"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let answered = |request: &str| {
        let received = look(&server.app, None, format!("{request}\r\n\r\n").as_bytes());
        let Received::Request(_, Some(reply)) = received else { panic!("{request}: is left to the library") };
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
    assert!(matches!(large.body, Content::File(_)), "{large:?}");
    server
}

/// The body of the lane's answer.
fn body_of(reply: &Reply) -> Bytes {
    let file = match &reply.body {
        Content::Bytes(bytes) => return bytes.clone(),
        Content::File(file) => file,
    };
    let (sender, mut receiver) = UnixStream::pair().unwrap();
    let mut body = vec![0; file.meta().len as usize];
    let mut at = 0;
    while at < body.len() {
        // No more than a socket takes is sent at once.
        sender.set_nonblocking(true).unwrap();
        let sent = file.send(sender.as_fd(), at as u64, usize::MAX).expect("a file that nobody writes");
        receiver.read_exact(&mut body[at..at + sent]).unwrap();
        at += sent;
    }
    body.into()
}

/// What the lane answers itself, and what the library answers that the lane gives it; of each request whether its
/// method is HEAD.
fn in_turn(server: &Server, data: &[u8]) -> (Vec<u8>, Vec<bool>) {
    let (mut rest, mut output, mut heads) = (data, Vec::new(), Vec::new());
    loop {
        match look(&server.app, None, rest) {
            Received::Request(length, answer) => {
                let (head, after) = rest.split_at(length);
                let is_head = head.trim_ascii_start().starts_with(b"HEAD ");
                heads.push(is_head);
                if let Some(reply) = answer {
                    output.extend_from_slice(&reply.head);
                    output.extend_from_slice(&body_of(&reply));
                } else {
                    let answered = library(server, head);
                    assert!(!answered.is_empty(), "a whole request has no answer: {}", head.escape_ascii());
                    // What it refuses by itself it hangs up after.
                    let is_refused = !answered.windows(ALL.len()).any(|part| part.eq_ignore_ascii_case(ALL));
                    output.extend(answered);
                    if is_refused || is_last(head) {
                        return (output, heads);
                    }
                }
                rest = after;
            }
            Received::Part => {
                let answered = library(server, rest);
                assert!(answered.is_empty(), "part of a head has an answer: {}", rest.escape_ascii());
                return (output, heads);
            }
            // Only a connection's beginning can be HTTP/2's, which a new library would take it for.
            Received::Other if PREFACE.iter().zip(rest).all(|(one, other)| one == other) => return (output, heads),
            Received::Other => {
                output.extend(library(server, rest));
                return (output, heads);
            }
        }
    }
}

/// Whether the library closes after a request with this head.
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

/// What the library answers to these bytes, after which the client sends no more.
fn library(server: &Server, bytes: &[u8]) -> Vec<u8> {
    let mut http = Builder::new(TokioExecutor::new());
    // What follows an answer to HEAD may be taken for its body, which would differ by the second.
    http.http1().header_read_timeout(None).max_buf_size(HEADER_BYTES).half_close(true).auto_date_header(false);
    let router = server.router.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| router.clone().oneshot(request.map(Body::new)));
    wait_for(async {
        let (client, peer) = tokio::io::duplex(1 << 20);
        let (mut reader, mut writer) = tokio::io::split(client);
        let serve = async {
            // How it ends is seen by what it has answered.
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

/// The answers but for the library's refusal at the end: whether it says so before it hangs up on what is broken and
/// incomplete depends on how the bytes were cut into packets.
fn served(bytes: &[u8], heads: &[bool]) -> Vec<Plain> {
    let mut answers = answers(bytes, heads);
    answers.pop_if(|(status, headers, _)| {
        status.starts_with("HTTP/1.") && !headers.contains_key("access-control-allow-origin")
    });
    answers
}

/// Answers one after the other. `heads` says which have no body. The requests after these are the library's in both runs: of their
/// first answer there are status and headers, and no body, because a method that is not known here may have been HEAD.
fn answers(mut bytes: &[u8], heads: &[bool]) -> Vec<Plain> {
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
            // Of the last answer the library says that it is the last when it has seen the end.
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
        // Problems repeat the request's id.
        let mut text = String::from_utf8_lossy(body).into_owned();
        if let Some(at) = text.find("\"request_id\"") {
            text.truncate(at);
        }
        found.push((status, headers, text));
    }
    found
}
