//! Hostile clients against the real program: each gets a status or its connection is closed, the next client is served
//! at once, and neither memory nor descriptors leak.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::attacked::AttackedServer;
use crate::support::h2;
use crate::support::program::PATIENCE;

/// A request sent in place of another request's body. If a response repeats its id, the server has taken the body for a
/// request.
const SMUGGLED: &str = "GET /attributes.json HTTP/1.1\r\nHost: x\r\nX-Request-Id: smuggled\r\n\r\n";

fn statuses(responses: &str) -> Vec<&str> {
    let after = responses.match_indices("HTTP/1.").filter_map(|(at, _)| responses.get(at + 8..at + 12));
    after.filter_map(|text| text.strip_prefix(' ').filter(|status| status.parse::<u16>().is_ok())).collect()
}

/// Name of a request, its head, and the allowed statuses of its response. If several statuses are allowed, the server
/// may also close the connection without a response.
type AmbiguousRequest = (&'static str, String, &'static [&'static str]);

/// Returns requests whose bodies two parsers could end at different places. Each is followed by `length` bytes that
/// only a confused parser takes for a request.
fn ambiguous_lengths(length: usize) -> Vec<AmbiguousRequest> {
    vec![
        ("length", format!("POST /v HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"), &["405"]),
        ("length of a GET", format!("GET /v/0/0 HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"), &["200"]),
        (
            "chunked GET",
            format!("GET /v/0/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{length:x}\r\n"),
            &["200"],
        ),
        (
            "two lengths",
            format!("POST /v HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nContent-Length: {length}\r\n\r\n"),
            &["400"],
        ),
        ("a list of lengths", format!("POST /v HTTP/1.1\r\nHost: x\r\nContent-Length: 0, {length}\r\n\r\n"), &["400"]),
        ("a length with a sign", format!("POST /v HTTP/1.1\r\nHost: x\r\nContent-Length: +{length}\r\n\r\n"), &["400"]),
        ("a negative length", "POST /v HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n".to_owned(), &["400"]),
        (
            "a hexadecimal length",
            format!("POST /v HTTP/1.1\r\nHost: x\r\nContent-Length: 0x{length:x}\r\n\r\n"),
            &["400"],
        ),
        (
            "a length beyond 64 bits",
            "POST /v HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551616\r\n\r\n".to_owned(),
            &["400"],
        ),
        ("an empty length", "POST /v HTTP/1.1\r\nHost: x\r\nContent-Length: \r\n\r\n".to_owned(), &["400"]),
        (
            "length and chunked",
            format!(
                "POST /v HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
            &["400", "405"],
        ),
        (
            "chunked and length",
            format!(
                "POST /v HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: {length}\r\n\r\n0\r\n\r\n"
            ),
            &["400", "405"],
        ),
        ("another encoding", "POST /v HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n".to_owned(), &["400"]),
        (
            "chunked is not the last",
            "POST /v HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n".to_owned(),
            &["400"],
        ),
    ]
}

/// Returns heads that two parsers could interpret differently.
fn ambiguous_heads(length: usize) -> Vec<AmbiguousRequest> {
    vec![
        (
            "a space before the colon",
            format!("POST /v HTTP/1.1\r\nHost: x\r\nContent-Length : {length}\r\n\r\n"),
            &["400"],
        ),
        (
            "a space before the colon of chunked",
            "POST /v HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n".to_owned(),
            &["400"],
        ),
        (
            "a folded header",
            format!("POST /v HTTP/1.1\r\nHost: x\r\nX: a\r\n Content-Length: {length}\r\n\r\n"),
            &["400"],
        ),
        ("a fold at once", format!("POST /v HTTP/1.1\r\n Content-Length: {length}\r\nHost: x\r\n\r\n"), &["400"]),
        ("a NUL in a value", "POST /v HTTP/1.1\r\nHost: x\r\nX: a\0b\r\n\r\n".to_owned(), &["400"]),
        ("a NUL in a name", "POST /v HTTP/1.1\r\nHost: x\r\nX\0: a\r\n\r\n".to_owned(), &["400"]),
        (
            "a CR within a value",
            format!("POST /v HTTP/1.1\r\nHost: x\r\nX: a\rContent-Length: {length}\r\n\r\n"),
            &["400"],
        ),
        ("no name", "POST /v HTTP/1.1\r\nHost: x\r\n: a\r\n\r\n".to_owned(), &["400"]),
        ("no colon", "POST /v HTTP/1.1\r\nHost: x\r\nnothing\r\n\r\n".to_owned(), &["400"]),
        ("HTTP/0.9", "GET /v/0/0\r\n".to_owned(), &["400"]),
        ("HTTP/3.0", "GET /v/0/0 HTTP/3.0\r\nHost: x\r\n\r\n".to_owned(), &["400", "505"]),
        ("HTTP/1.2", "GET /v/0/0 HTTP/1.2\r\nHost: x\r\n\r\n".to_owned(), &["400", "505"]),
        (
            "a chunk size that is none",
            "GET /v/0/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".to_owned(),
            &["200", "400"],
        ),
        (
            "a chunk beyond 64 bits",
            "GET /v/0/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000000\r\n".to_owned(),
            &["200", "400"],
        ),
        (
            "a chunk with an endless extension",
            format!(
                "GET /v/0/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;{}\r\na\r\n",
                "x".repeat(100_000)
            ),
            &["200", "400"],
        ),
        (
            "a chunk that is not ended",
            "GET /v/0/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab".to_owned(),
            &["200", "400"],
        ),
        (
            "an upgrade",
            "GET /v/0/0 HTTP/1.0\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n".to_owned(),
            &["200"],
        ),
        (
            "HTTP/1.0 chunked",
            "POST /v HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
            &["400", "405"],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_is_smuggled_within_another() {
    let mut server = AttackedServer::start(&["server.header_timeout=500ms"]);
    let baseline = server.baseline().await;
    for (name, head, allowed) in [ambiguous_lengths(SMUGGLED.len()), ambiguous_heads(SMUGGLED.len())].concat() {
        // Alone, and after a request that the fast path answers.
        for first in ["", "GET /v/0/0 HTTP/1.1\r\nHost: x\r\n\r\n"] {
            let responses = server.exchange(format!("{first}{head}{SMUGGLED}").as_bytes()).await;
            assert!(!responses.contains("smuggled"), "{name}: {responses}");
            let statuses = statuses(&responses);
            let own = if first.is_empty() { statuses.first() } else { statuses.get(1) };
            let is_right = own.map_or(allowed.len() > 1, |status| allowed.contains(status));
            assert!(is_right, "{name} after {first:?}: {own:?}");
            assert!(statuses.len() <= 1 + usize::from(!first.is_empty()), "{name}: {statuses:?}");
        }
    }
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_1_1_request_must_name_one_host() {
    let server = AttackedServer::start(&[]);
    // The fast path handles some of these paths, and hyper the others.
    for path in ["/v/0/0", "/v/9/9", "/slice/v", "/healthz", "http://x/v/0/0"] {
        let found = if path == "/v/9/9" { "404" } else { "200" };
        for (version, hosts, expected) in [
            ("1.1", "Host: x\r\n", found),
            ("1.1", "Host: [::1]:8080\r\n", found),
            ("1.1", "Host:\r\n", found),
            ("1.1", "", "400"),
            ("1.1", "Host: x\r\nHost: x\r\n", "400"),
            ("1.1", "Host: x\r\nhost: y\r\n", "400"),
            ("1.1", "Host: a b\r\n", "400"),
            ("1.1", "Host: a/b\r\n", "400"),
            ("1.1", "Host: user@a\r\n", "400"),
            ("1.0", "", found),
            ("1.0", "Host: x\r\n", found),
            ("1.0", "Host: x\r\nHost: y\r\n", "400"),
        ] {
            let head = format!("GET {path} HTTP/{version}\r\n{hosts}Connection: close\r\n\r\n");
            let responses = server.exchange(head.as_bytes()).await;
            assert_eq!(statuses(&responses), [expected], "{head}: {responses}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_1_connection_cannot_switch_to_http_2() {
    let mut server = AttackedServer::start(&["server.header_timeout=500ms"]);
    let baseline = server.baseline().await;
    for first in ["/v/0/0", "/slice/v", "/v/9/9"] {
        for preface in ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", "PRI * HTTP/2.0\r\n\r\n"] {
            let sent = format!("HEAD {first} HTTP/1.1\r\nHost: x\r\n\r\n{preface}");
            let responses = server.exchange(sent.as_bytes()).await;
            assert_eq!(statuses(&responses).len(), 1, "{responses}");
            // An HTTP/2 connection would continue with frames.
            assert!(responses.ends_with("\r\n\r\n"), "{responses:?}");
        }
    }
    // `PRI` as a method is unknown, and does not end the connection.
    let get = "GET /v/0/0 HTTP/1.1\r\nHost: x\r\n";
    for length in ["", "Content-Length: 0\r\n"] {
        let sent = format!("{get}\r\nPRI /v/0/0 HTTP/1.1\r\nHost: x\r\n{length}\r\n{get}Connection: close\r\n\r\n");
        assert_eq!(statuses(&server.exchange(sent.as_bytes()).await), ["200", "405", "200"], "{length}");
    }
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn well_framed_requests_are_answered_once_and_in_order() {
    let mut server = AttackedServer::start(&["server.header_timeout=500ms"]);
    let baseline = server.baseline().await;
    let end = "GET /v/0/1 HTTP/1.1\r\nHost: x\r\nX-Request-Id: last\r\nConnection: close\r\n\r\n";
    for (name, sent, expected) in [
        ("empty lines first", "\r\n\r\nGET /v/0/0 HTTP/1.1\r\nHost: x\r\n\r\n", vec!["200", "200"]),
        ("bare line feeds", "GET /v/0/0 HTTP/1.1\nHost: x\n\n", vec!["200", "200"]),
        ("an absolute target", "GET http://elsewhere/v/0/0 HTTP/1.1\r\nHost: x\r\n\r\n", vec!["200", "200"]),
        ("an asterisk", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", vec!["204", "200"]),
        (
            "fast path, hyper, fast path",
            "GET /v/0/0 HTTP/1.1\r\nHost: x\r\n\r\nGET /slice/v HTTP/1.1\r\nHost: x\r\n\r\nGET /v/9/9 HTTP/1.1\r\nHost: x\r\n\r\n",
            vec!["200", "200", "404", "200"],
        ),
        (
            "HEAD between",
            "HEAD /v/0/0 HTTP/1.1\r\nHost: x\r\n\r\nHEAD /info/v HTTP/1.1\r\nHost: x\r\n\r\n",
            vec!["200", "200", "200"],
        ),
    ] {
        let responses = server.exchange(format!("{sent}{end}").as_bytes()).await;
        assert_eq!(statuses(&responses), expected, "{name}");
        assert_eq!(responses.matches("x-request-id: last").count(), 1, "{name}");
    }
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_with_a_body_closes_the_connection_and_the_response_says_so() {
    let mut server = AttackedServer::start(&["server.header_timeout=500ms"]);
    let baseline = server.baseline().await;
    let end = "GET /v/0/1 HTTP/1.1\r\nHost: x\r\nX-Request-Id: last\r\n\r\n";
    let (get, sized) = ("GET /v/0/0 HTTP/1.1\r\nHost: x\r\n", "Content-Length: 3\r\n");
    let chunked = "Transfer-Encoding: chunked\r\n\r\n";
    for (name, sent, status) in [
        ("a body that is sent", format!("{get}{sized}\r\nabc{end}"), "200"),
        ("the same length twice", format!("{get}{sized}{sized}\r\nabc{end}"), "200"),
        ("chunks", format!("{get}{chunked}3\r\nabc\r\n0\r\nX: y\r\n\r\n{end}"), "200"),
        ("chunks that have not come", format!("{get}{chunked}"), "200"),
        ("a body that has not come", format!("{get}{sized}\r\n"), "200"),
        ("a part of a body", format!("{get}{sized}\r\nab"), "200"),
        ("a request that hyper answers", format!("GET /slice/v HTTP/1.1\r\nHost: x\r\n{sized}\r\n"), "200"),
        ("a missing key", format!("GET /v/9/9 HTTP/1.1\r\nHost: x\r\n{sized}\r\n"), "404"),
        ("HEAD", format!("HEAD /v/0/0 HTTP/1.1\r\nHost: x\r\n{sized}\r\n"), "200"),
        ("a preflight", format!("OPTIONS /v/0/0 HTTP/1.1\r\nHost: x\r\n{sized}\r\nabc"), "204"),
        ("what is refused", format!("POST /v/0/0 HTTP/1.1\r\nHost: x\r\n{sized}\r\n"), "405"),
        ("a client that waits", format!("{get}{sized}Expect: 100-continue\r\n\r\n"), "200"),
    ] {
        let response = server.exchange(sent.as_bytes()).await;
        assert_eq!(statuses(&response), [status], "{name}: {response}");
        assert_eq!(response.matches("\r\nconnection: close\r\n").count(), 1, "{name}: {response}");
        assert!(!response.contains("x-request-id: last"), "{name}");
    }
    let old = format!("GET /v/0/0 HTTP/1.0\r\nConnection: keep-alive\r\n{sized}\r\n");
    let response = server.exchange(old.as_bytes()).await;
    assert!(response.starts_with("HTTP/1.0 200") && !response.contains("keep-alive"), "{response}");
    let empty = format!("{get}Content-Length: 0\r\n\r\n{}", end.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"));
    assert_eq!(statuses(&server.exchange(empty.as_bytes()).await), ["200", "200"]);
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_long_requests_are_refused_and_odd_ones_get_a_defined_status() {
    let mut server = AttackedServer::start(&["server.header_timeout=500ms"]);
    let baseline = server.baseline().await;
    let get = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").into_bytes();
    let headers = |count: usize| {
        format!("GET /v/0/0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{}\r\n", "a: b\r\n".repeat(count)).into_bytes()
    };
    let long = |name: usize, value: usize| {
        let line = format!("{}: {}", "a".repeat(name), "b".repeat(value));
        format!("GET /v/0/0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{line}\r\n\r\n").into_bytes()
    };
    let nines = "9".repeat(5000);
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("a target of 60 KB", get(&format!("/{}", "a".repeat(60_000))), &["404"]),
        ("a target of 70 KB", get(&format!("/{}", "a".repeat(70_000))), &["404", "414"]),
        ("a target of 1 MB", get(&format!("/{}", "a".repeat(1 << 20))), &["414", "431"]),
        ("30,000 segments", get(&"/a".repeat(30_000)), &["400", "404"]),
        ("a query of 60 KB", get(&format!("/slice/v?start={}", "1,".repeat(30_000))), &["400", "414"]),
        ("40 headers", headers(40), &["200"]),
        ("90 headers", headers(90), &["200"]),
        ("200 headers", headers(200), &["431"]),
        ("50,000 headers", headers(50_000), &["431"]),
        ("a value of 80 KB", long(1, 80_000), &["200"]),
        ("a value of 1 MB", long(1, 1 << 20), &["431"]),
        ("a name of 80 KB", long(80_000, 1), &["200", "400", "431"]),
        (
            "a method of 80 KB",
            [vec![b'A'; 80_000], b" / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()].concat(),
            &["400", "405"],
        ),
        ("an encoded slash", get("/n5/v%2f0/0"), &["400"]),
        ("an encoded way up", get("/n5/..%2f..%2fetc/passwd"), &["400"]),
        ("dots, encoded", get("/n5/%2e%2e/%2e%2e/etc/passwd"), &["400"]),
        ("twice encoded", get("/n5/%252e%252e/x/attributes.json"), &["404"]),
        ("NUL", get("/n5/v%00/0"), &["400"]),
        ("no UTF-8", get("/n5/%c0%ae%c0%ae/0"), &["400"]),
        ("raw octets", b"GET /n5/\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_vec(), &["400"]),
        (
            "a header that is no UTF-8",
            b"GET /v/0/0 HTTP/1.1\r\nHost: x\r\nX: \xff\r\nX-Request-Id: \xff\r\nConnection: close\r\n\r\n".to_vec(),
            &["200"],
        ),
        ("half an escape", get("/slice/v?start=%4"), &["400"]),
        ("an escape that is none", get("/slice/v?%zz=1"), &["400"]),
        ("numbers beyond 64 bits", get("/slice/v?start=18446744073709551616,0"), &["400"]),
        ("numbers of 5000 digits", get(&format!("/slice/v?start={nines},0")), &["400"]),
        ("a block of 5000 digits", get(&format!("/v/{nines}/0")), &["404"]),
        ("the largest step", get("/slice/v?step=9223372036854775807,9223372036854775807"), &["200"]),
        (
            "the largest size",
            get("/slice/v?start=0,0&size=9223372036854775807,9223372036854775807&outside=zero"),
            &["413"],
        ),
        (
            "a range of 5000 digits",
            format!("GET /v/0/0 HTTP/1.1\r\nHost: x\r\nRange: bytes={nines}-\r\nConnection: close\r\n\r\n")
                .into_bytes(),
            &["416"],
        ),
        (
            "1000 ranges",
            format!(
                "GET /v/0/0 HTTP/1.1\r\nHost: x\r\nRange: bytes={}\r\nConnection: close\r\n\r\n",
                "0-0,".repeat(1000)
            )
            .into_bytes(),
            &["200", "416"],
        ),
        (
            "1000 entity tags",
            format!(
                "GET /v/0/0 HTTP/1.1\r\nHost: x\r\nIf-None-Match: {}\"x\"\r\nConnection: close\r\n\r\n",
                "\"y\", ".repeat(1000)
            )
            .into_bytes(),
            &["200"],
        ),
        (
            "5000 media types",
            format!(
                "GET / HTTP/1.1\r\nHost: x\r\nAccept: {}*/*\r\nConnection: close\r\n\r\n",
                "a/b;q=0.1, ".repeat(5000)
            )
            .into_bytes(),
            &["200"],
        ),
    ];
    for (name, request, allowed) in &cases {
        let response = server.exchange(request).await;
        let status = statuses(&response).first().copied();
        assert!(status.is_some_and(|status| allowed.contains(&status)), "{name}: {status:?}");
        assert!(!response.contains("root:"), "{name}");
    }
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_are_disconnected_while_others_are_served() {
    let mut server = AttackedServer::start(&["server.header_timeout=1s", "server.send_timeout=1s"]);
    let baseline = server.baseline().await;
    let kinds = [
        "GET /v/0/0 HTTP/1.1\r\nHost: x\r\nX: ",
        "\r\n",
        "POST /v HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
        "GET /v/0/0 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
        "GET /slice/v HTTP/1.1\r\nHost: x\r\n\r\nGET /v/0/0 HTTP/1.1\r\nX",
        "PRI * HTTP/2.0\r\n\r\n",
    ];
    let mut clients = Vec::new();
    for number in 0..120 {
        let connection = server.connect().await;
        let first = kinds[number % kinds.len()];
        clients.push(tokio::spawn(async move {
            let (mut reader, mut writer) = connection.into_split();
            let trickle = async {
                let _ = writer.write_all(first.as_bytes()).await;
                while writer.write_all(b"a").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            let mut received = Vec::new();
            tokio::select! {
                _ = reader.read_to_end(&mut received) => {}
                () = trickle => {}
            }
        }));
    }
    for _ in 0..10 {
        server.assert_serves().await;
    }
    for (number, client) in clients.into_iter().enumerate() {
        let ended = tokio::time::timeout(PATIENCE, client).await;
        assert!(ended.is_ok(), "{:?} is left open", kinds[number % kinds.len()]);
    }
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_large_responses_are_disconnected() {
    let mut server = AttackedServer::start(&["server.send_timeout=1s", "server.header_timeout=2s"]);
    let baseline = server.baseline_for_large_responses().await;
    let mut clients = Vec::new();
    for path in ["/v/0/2", "/n5/v/0/2?x", "/slice/v?start=0,0&size=4000,4000&outside=zero"] {
        for _ in 0..8 {
            let mut connection = server.connect().await;
            connection.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            clients.push(connection);
        }
    }
    server.assert_serves().await;
    // The server closes its descriptors, although the clients read nothing and keep theirs open.
    server.assert_recovered(&baseline).await;
    drop(clients);
}

/// Sends `frames` to the server `times` times. If `reads` is true, returns what the server sends, otherwise nothing.
async fn flood(
    server: &AttackedServer,
    begin: Vec<u8>,
    times: u32,
    reads: bool,
    frames: impl Fn(u32) -> Vec<u8> + Send + 'static,
) -> Vec<u8> {
    let (mut reader, mut writer) = server.connect().await.into_split();
    let sending = tokio::spawn(async move {
        writer.write_all(&begin).await?;
        for number in 0..times {
            writer.write_all(&frames(number)).await?;
        }
        std::io::Result::Ok(writer)
    });
    let mut received = Vec::new();
    if reads {
        // The server closes the connection, at the latest because it is idle.
        let until = async {
            let _ = reader.read_to_end(&mut received).await;
        };
        tokio::time::timeout(PATIENCE, until).await.expect("a connection that is left open");
        sending.abort();
    } else {
        // The server either blocks on the unread responses and closes the connection, or it reads all frames.
        let ended = tokio::time::timeout(PATIENCE, sending).await;
        assert!(ended.is_ok(), "the server neither reads nor refuses the frames");
    }
    received
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_http2_frames_end_the_connection_or_are_harmless() {
    let mut server = AttackedServer::start(&["server.header_timeout=1s", "server.send_timeout=1s"]);
    let baseline = server.baseline().await;
    // CVE-2023-44487 (rapid reset): requests that are cancelled at once.
    let reset = |number: u32| {
        let stream = 2 * number + 1;
        [h2::request(stream, "/slice/v"), h2::frame(h2::RESET, 0, stream, &8u32.to_be_bytes())].concat()
    };
    let received = flood(&server, h2::begin(&[]), 100_000, true, reset).await;
    assert!(h2::kinds(&received).contains(&h2::GOAWAY), "endless cancelled requests are accepted");
    server.assert_recovered(&baseline).await;

    // A header block that never ends.
    let started = [h2::begin(&[]), h2::frame(h2::HEADERS, h2::END_STREAM, 1, &h2::get("/v/0/0"))].concat();
    let received =
        flood(&server, started, 100_000, true, |_| h2::frame(h2::CONTINUATION, 0, 1, &[0, 1, b'a', 1, b'b'])).await;
    assert!(h2::kinds(&received).contains(&h2::GOAWAY), "an endless header block is accepted");
    server.assert_recovered(&baseline).await;

    // The same with empty frames.
    let started = [h2::begin(&[]), h2::frame(h2::HEADERS, h2::END_STREAM, 1, &h2::get("/v/0/0"))].concat();
    let received = flood(&server, started, 100_000, true, |_| h2::frame(h2::CONTINUATION, 0, 1, &[])).await;
    assert!(h2::kinds(&received).contains(&h2::GOAWAY), "an endless header block is accepted");
    server.assert_recovered(&baseline).await;

    for reads in [true, false] {
        flood(&server, h2::begin(&[]), 200_000, reads, |_| h2::frame(h2::PING, 0, 0, &[7; 8])).await;
        server.assert_recovered(&baseline).await;
        flood(&server, h2::begin(&[]), 200_000, reads, |_| h2::frame(h2::SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]))
            .await;
        server.assert_recovered(&baseline).await;
        flood(&server, h2::begin(&[]), 200_000, reads, |_| h2::frame(h2::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])).await;
        server.assert_recovered(&baseline).await;
        flood(&server, h2::begin(&[]), 200_000, reads, |_| h2::frame(0x42, 0, 0, &[1; 64])).await;
        server.assert_recovered(&baseline).await;
    }

    // Header blocks that are large when decompressed: they refer thousands of times to one long header in the table.
    let long = [&[0x40, 1, b'a', 0x7f, 0x81, 0x1e][..], &[b'b'; 4000]].concat();
    let heads = move |number: u32| {
        let block = [h2::get("/v/0/0"), if number == 0 { long.clone() } else { vec![0xbe; 4000] }].concat();
        h2::frame(h2::HEADERS, h2::END_STREAM | h2::END_HEADERS, 2 * number + 1, &block)
    };
    flood(&server, h2::begin(&[]), 1000, true, heads).await;
    server.assert_recovered(&baseline).await;
}

/// Sends `sent` and returns the types of the received frames, up to one that refuses it.
async fn frames_until_refused(server: &AttackedServer, name: &str, sent: &[u8]) -> Vec<u8> {
    let mut connection = server.connect().await;
    connection.write_all(&[h2::begin(&[]), sent.to_vec()].concat()).await.unwrap();
    let mut received = Vec::new();
    loop {
        let read = tokio::time::timeout(PATIENCE, connection.read_buf(&mut received)).await;
        let kinds = h2::kinds(&received);
        if kinds.iter().any(|kind| [h2::GOAWAY, h2::RESET].contains(kind)) {
            return kinds;
        }
        assert!(read.is_ok_and(|read| read.is_ok_and(|bytes| bytes > 0)), "{name} is not refused: {kinds:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_http2_frames_end_the_connection() {
    let mut server = AttackedServer::start(&["server.header_timeout=60s"]);
    let baseline = server.baseline().await;
    for (name, sent) in [
        ("a frame on an even stream", h2::request(2, "/v/0/0")),
        ("a stream used again", [h2::request(5, "/v/0/0"), h2::request(3, "/v/0/0")].concat()),
        ("headers on stream 0", h2::request(0, "/v/0/0")),
        ("a ping of 7 bytes", h2::frame(h2::PING, 0, 0, &[0; 7])),
        ("settings of 5 bytes", h2::frame(h2::SETTINGS, 0, 0, &[0; 5])),
        ("a window beyond 2^31", h2::frame(h2::SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff])),
        ("a window update of 0", h2::frame(h2::WINDOW_UPDATE, 0, 0, &[0; 4])),
        ("a continuation of nothing", h2::frame(h2::CONTINUATION, h2::END_HEADERS, 1, &[])),
        ("a frame of 16 MB", vec![0xff, 0xff, 0xff, h2::HEADERS, 0, 0, 0, 0, 1]),
        ("HPACK that names nothing", h2::frame(h2::HEADERS, h2::END_STREAM | h2::END_HEADERS, 1, &[0xff, 0xff, 0xff])),
        ("nonsense", vec![0x55; 4000]),
    ] {
        let kinds = frames_until_refused(&server, name, &sent).await;
        assert!(kinds.contains(&h2::GOAWAY), "{name}: {kinds:?}");
    }
    // Nor does the server accept fields that would become other headers in HTTP/1.
    for (name, headers) in [
        ("an upper-case name", &[0x00u8, 1, b'A', 1, b'b'][..]),
        ("a line feed in a value", &[0x00, 1, b'a', 3, b'b', b'\n', b'c']),
        (
            "a connection header",
            &[0x00, 10, b'c', b'o', b'n', b'n', b'e', b'c', b't', b'i', b'o', b'n', 5, b'c', b'l', b'o', b's', b'e'],
        ),
        ("a second path", &[0x04, 2, b'/', b'v']),
    ] {
        let block = [h2::get("/v/0/0"), headers.to_vec()].concat();
        let kinds =
            frames_until_refused(&server, name, &h2::frame(h2::HEADERS, h2::END_STREAM | h2::END_HEADERS, 1, &block))
                .await;
        assert!(!kinds.contains(&h2::DATA) && !kinds.contains(&h2::HEADERS), "{name} is answered");
    }
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_hostile_clients_do_not_deny_service_to_others() {
    let mut server = AttackedServer::start(&[
        "server.header_timeout=1s",
        "server.send_timeout=1s",
        "server.max_connections=64",
        // The attackers and the other clients share one address.
        "clients.connections=0",
    ]);
    let baseline = server.baseline_for_large_responses().await;
    let address = Arc::new(server.address().to_owned());
    let attacks: Vec<_> = (0u32..200)
        .map(|number| {
            let address = Arc::clone(&address);
            tokio::spawn(async move {
                let Ok(mut connection) = TcpStream::connect(address.as_str()).await else { return };
                let sent = match number % 4 {
                    0 => b"GET / HTTP/1.1\r\nX".to_vec(),
                    1 => [h2::begin(&[0, 4, 0, 0, 0, 0]), h2::request(1, "/v/0/2")].concat(),
                    2 => b"GET /v/0/2 HTTP/1.1\r\nHost: x\r\n\r\n".repeat(10),
                    _ => vec![0xaa; 200],
                };
                let _ = connection.write_all(&sent).await;
                // Waits until the server closes the connection. A client that requested large responses reads nothing.
                let mut byte = [0];
                if number % 4 == 2 {
                    tokio::time::sleep(Duration::from_secs(3)).await;
                } else {
                    while connection.read(&mut byte).await.is_ok_and(|read| read > 0) {}
                }
            })
        })
        .collect();
    // The attackers take all connections. Another client waits only until the server closes one of them.
    server.assert_serves().await;
    for attack in attacks {
        tokio::time::timeout(PATIENCE, attack).await.expect("a client that is left waiting").unwrap();
    }
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_with_any_modification_time_are_served() {
    let server = AttackedServer::start(&[]);
    let file = fs::File::options().write(true).open(server.n5.root().join("v/0/0")).unwrap();
    file.set_modified(std::time::UNIX_EPOCH - Duration::from_secs(1)).unwrap();
    for name in ["If-Modified-Since", "If-Unmodified-Since", "If-Range"] {
        let request = format!(
            "GET /v/0/0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{name}: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n"
        );
        let response = server.exchange(request.as_bytes()).await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
        assert!(!response.contains("\r\nlast-modified:"), "{response}");
    }
}
