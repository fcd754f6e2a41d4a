//! HTTP/2 frames of any kind and order, sent to a running server through a local socket. After each input, another
//! client must be answered, and nothing of the ended connection may remain.
//!
//! Input: a byte that selects how the connection ends and how the other client asks, then frames, each with a leading
//! byte that selects its kind.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use bytes::Bytes;
use n5_server::config::{Config, ContainerConfig, ListenAddress};
use n5_server::server::Server;
use n5_server::telemetry::logs::install_metrics;

use super::Numbers;
use super::server::written;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const WITH_PRIORITY: u8 = 32;

/// Payload of the last PING, which the server returns if the connection is still open.
const LAST: &[u8; 8] = b"the last";

/// Maximum number of bytes sent for one input.
const MOST_BYTES: usize = 256 << 10;

/// Read timeout for the responses to the frames. Later responses are ignored.
const HEARING: Duration = Duration::from_millis(60);

/// Longest time that a client waits for its response, unless the server has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Number of inputs from one check of the server's metrics to the next. The metrics are also checked after the first
/// input, so that a single input reproduces a finding.
const LOOKS: usize = 32;

/// Value of `server.max_connections`: several times more than are ever open at once. Connections that never end soon
/// exceed it.
const CONNECTIONS: usize = 32;

/// Paths that streams request: cached objects, small and large; computed responses; missing and invalid paths.
const PATHS: [&str; 10] = [
    "/v/0/0",
    "/big/0",
    "/slice/v?start=0,0&size=4,2",
    "/slice/v?start=0,0&size=2000,500&outside=zero",
    "/v/9/9",
    "/nothing/",
    "/info/v",
    "/metrics",
    "/zarr3/v/c/0/0",
    "/%zz",
];

thread_local! {
    static RUNS: RefCell<usize> = const { RefCell::new(0) };
}

/// Address of the server, which runs until the process ends.
static SERVER: LazyLock<SocketAddr> = LazyLock::new(|| {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // Catches SIGPIPE, so that a client that disconnects does not end the process. The standard library's
            // start-up code ignores the signal, but does not run in a libFuzzer program.
            drop(tokio::signal::unix::signal(tokio::signal::unix::SignalKind::pipe()).unwrap());
            let metrics = install_metrics().unwrap();
            let server = Server::bind(config(), move || metrics.render()).await.expect("a server");
            tell.send(server.address().unwrap()).unwrap();
            server.run(std::future::pending()).await;
        });
    });
    told.recv().expect("a server")
});

fn block() -> Bytes {
    Bytes::from([&[0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 2][..], &[1, 2, 3, 4, 5, 6, 7, 8]].concat())
}

fn config() -> Config {
    let attributes = r#"{"dimensions":[4,4],"blockSize":[4,2],"dataType":"uint8","compression":{"type":"raw"}}"#;
    let large: Bytes = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    let files =
        [("v/attributes.json", Bytes::from_static(attributes.as_bytes())), ("v/0/0", block()), ("big/0", large)];
    let root = written(&files).expect("files can be written");
    let defaults = Config::default();
    let container = ContainerConfig {
        name: String::new(),
        root: root.into(),
        cache_control: defaults.container_defaults.cache_control,
        symlinks: defaults.container_defaults.symlinks,
        must_be_mount: false,
        entity_tag: defaults.container_defaults.entity_tag,
        ..ContainerConfig::default()
    };
    let mut config = Config { containers: vec![container], ..defaults };
    config.server.listen = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
    config.server.threads = 1;
    config.server.max_connections = CONNECTIONS;
    // A client that reads nothing is disconnected before the next check fails.
    config.server.send_timeout = Duration::from_secs(2);
    config.server.header_timeout = Duration::from_secs(2);
    (config.cache.decoded, config.cache.stored) = (Some(4 << 20), Some(4 << 20));
    (config.limits.slice_budget, config.limits.decode_budget) = (Some(16 << 20), Some(16 << 20));
    config
}

pub(crate) fn run(data: &[u8]) {
    let mut numbers = Numbers::new(data);
    let how = numbers.byte();
    let mut connection = connect();
    // The server may stop reading or close the connection.
    let _ = connection.write_all(&frames(numbers));
    if how & 1 == 0 {
        let _ = connection.shutdown(Shutdown::Write);
    }
    listen(&mut connection, data);
    drop(connection);
    if how & 2 == 0 {
        over_http1(data);
    } else {
        over_http2(data);
    }
    let run = RUNS.with_borrow_mut(|runs| std::mem::replace(runs, *runs + 1));
    // In a process with servers of other tests, the metrics count those as well.
    if run.is_multiple_of(LOOKS) && std::env::var_os("N5_FUZZ_TARGET").is_some() {
        nothing_is_left(data);
    }
}

fn connect() -> TcpStream {
    let stream = TcpStream::connect(*SERVER).expect("the server takes a connection");
    stream.set_nodelay(true).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Converts the input to the bytes that are sent.
fn frames(mut numbers: Numbers<'_>) -> Vec<u8> {
    let mut sent = if numbers.below(16) == 15 { Vec::new() } else { PREFACE.to_vec() };
    let (mut next, mut last) = (1, Vec::new());
    while !numbers.is_empty() && sent.len() < MOST_BYTES {
        let kind = numbers.byte();
        let mut stream = |numbers: &mut Numbers<'_>| match numbers.below(8) {
            0 => 0,
            1 => u32::from(numbers.byte()),
            2 => u32::MAX >> 1,
            3 => next,
            _ => {
                next += 2;
                next - 2
            }
        };
        let made = match kind % 16 {
            0 | 1 => {
                let path = PATHS[numbers.below(PATHS.len())];
                let stream = stream(&mut numbers);
                let flags = numbers.byte() & (END_STREAM | END_HEADERS | PADDED | WITH_PRIORITY);
                // Most are complete.
                let flags = if kind & 64 == 0 { END_STREAM | END_HEADERS } else { flags };
                frame(HEADERS, flags, stream, &around(flags, &mut numbers, &get(path)))
            }
            2 => {
                let (stream, length) = (stream(&mut numbers), numbers.below(64));
                let block: Vec<u8> = (0..length).map(|_| numbers.byte()).collect();
                frame(HEADERS, END_STREAM | END_HEADERS, stream, &block)
            }
            // A header that is added to the HPACK table once and then repeated by one byte each.
            3 => {
                let (stream, length, times) = (stream(&mut numbers), numbers.below(120), 16 * numbers.below(200));
                let literal = [&[0x40, 1, b'x', length as u8][..], &vec![b'y'; length]].concat();
                let block = [get("/v/0/0"), literal, vec![0xbe; times]].concat();
                frame(HEADERS, END_STREAM | END_HEADERS, stream, &block)
            }
            4 => {
                let (stream, flags, length) = (stream(&mut numbers), numbers.byte() & END_HEADERS, numbers.below(64));
                let block: Vec<u8> = (0..length).map(|_| numbers.byte()).collect();
                frame(CONTINUATION, flags, stream, &block)
            }
            5 => {
                let (stream, flags) = (stream(&mut numbers), numbers.byte() & (END_STREAM | PADDED));
                let bytes = vec![0; 64 * numbers.below(256)];
                frame(DATA, flags, stream, &around(flags, &mut numbers, &bytes))
            }
            6 => {
                let increment = numbers.of(&[0, 1, 1 << 14, 1 << 20, (1 << 31) - 1, u32::MAX]);
                frame(WINDOW_UPDATE, 0, stream(&mut numbers), &increment.to_be_bytes())
            }
            7 => frame(RESET, 0, stream(&mut numbers), &u32::from(numbers.byte()).to_be_bytes()),
            8 => frame(PING, numbers.byte() & ACK, 0, &[numbers.byte(); 8]),
            9 | 10 => settings(&mut numbers),
            11 => {
                let (stream, on, weight) = (stream(&mut numbers), stream(&mut numbers), numbers.byte());
                frame(PRIORITY, 0, stream, &[&on.to_be_bytes()[..], &[weight]].concat())
            }
            12 => {
                let (kind, flags, length) = (numbers.byte(), numbers.byte(), 16 * numbers.below(256));
                frame(kind, flags, stream(&mut numbers), &vec![numbers.byte(); length])
            }
            13 => (0..numbers.below(32)).map(|_| numbers.byte()).collect(),
            14 => {
                let kind = numbers.of(&[GOAWAY, PUSH_PROMISE, SETTINGS]);
                frame(kind, numbers.byte() & ACK, stream(&mut numbers), &[0; 8])
            }
            // The previous frame, repeated.
            _ => last.repeat(numbers.below(200)),
        };
        sent.extend_from_slice(&made);
        last = made;
    }
    sent.truncate(MOST_BYTES);
    sent.extend(frame(PING, 0, 0, LAST));
    sent
}

fn settings(numbers: &mut Numbers<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    for _ in 0..numbers.below(4) {
        let setting = numbers.of(&[1u16, 2, 3, 4, 5, 6, 8, 99]);
        let value = numbers.of(&[0u32, 1, 100, 16_384, 65_535, (1 << 24) - 1, (1 << 31) - 1, u32::MAX]);
        payload.extend_from_slice(&setting.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame(SETTINGS, 0, 0, &payload)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Adds the padding and the priority to a payload that its flags announce. Their lengths may be wrong.
fn around(flags: u8, numbers: &mut Numbers<'_>, payload: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    let padding = if flags & PADDED == 0 { 0 } else { numbers.byte() };
    if flags & PADDED != 0 {
        whole.push(padding);
    }
    if flags & WITH_PRIORITY != 0 {
        whole.extend_from_slice(&[0, 0, 0, numbers.byte(), 16]);
    }
    whole.extend_from_slice(payload);
    whole.extend(vec![0; usize::from(padding)]);
    whole
}

/// Returns `GET path` in HPACK, without compression.
fn get(path: &str) -> Vec<u8> {
    [&[0x82, 0x86, 0x04, path.len() as u8][..], path.as_bytes(), &[0x01, 1, b'x']].concat()
}

/// Reads and checks the frames that the server sends until it answers the last PING or closes the connection.
fn listen(connection: &mut TcpStream, data: &[u8]) {
    connection.set_read_timeout(Some(HEARING)).unwrap();
    let (mut heard, mut piece, begun) = (Vec::new(), [0; 16 << 10], Instant::now());
    while let Ok(count) = connection.read(&mut piece) {
        heard.extend_from_slice(&piece[..count]);
        // Large windows let the server send a lot, which need not be read in full.
        if count == 0 || heard.ends_with(LAST) || begun.elapsed() > 4 * HEARING {
            break;
        }
    }
    // The server sends valid frames, an HTTP/1 response, or nothing, for every input.
    let mut rest = &heard[..];
    if rest.starts_with(b"HTTP/1.1 ") {
        return;
    }
    while let [a, b, c, kind, _, _, _, _, _, ..] = *rest {
        assert!(kind <= CONTINUATION && kind != PUSH_PROMISE, "a frame of kind {kind}: {}", data.escape_ascii());
        let is_first = rest.len() == heard.len();
        assert!(!is_first || kind == SETTINGS, "it begins with {kind}: {}", data.escape_ascii());
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        rest = rest.get(9 + length..).unwrap_or_default();
    }
}

/// Checks that another client is answered over HTTP/1.
fn over_http1(data: &[u8]) {
    let mut connection = connect();
    connection.write_all(b"GET /v/0/0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut response = Vec::new();
    let read = connection.read_to_end(&mut response);
    let is_right = read.is_ok() && response.starts_with(b"HTTP/1.1 200 ") && response.ends_with(&block());
    assert!(is_right, "another is answered {}: {}", response.escape_ascii(), data.escape_ascii());
}

fn over_http2(data: &[u8]) {
    let mut connection = connect();
    let asked = frame(HEADERS, END_STREAM | END_HEADERS, 1, &get("/v/0/0"));
    connection.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[]), &asked].concat()).unwrap();
    let (mut is_found, mut body) = (false, Vec::new());
    loop {
        let mut head = [0; 9];
        let read = connection.read_exact(&mut head);
        assert!(read.is_ok(), "another is not answered, but hung up on: {}", data.escape_ascii());
        let [a, b, c, kind, flags, ..] = head;
        let mut payload = vec![0; usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c)];
        connection.read_exact(&mut payload).unwrap();
        match kind {
            // `:status: 200` has index 8 in the static table of HPACK.
            HEADERS => is_found = payload.first() == Some(&0x88),
            DATA => body.extend_from_slice(&payload),
            _ => assert!(kind != GOAWAY && kind != RESET, "another is refused: {}", data.escape_ascii()),
        }
        if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
            break;
        }
    }
    assert!(is_found && body == block(), "another is answered {}: {}", body.escape_ascii(), data.escape_ascii());
}

/// Checks that all earlier connections and requests have ended; only the one that reads the metrics is left.
fn nothing_is_left(data: &[u8]) {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut connection = connect();
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = Vec::new();
        connection.read_to_end(&mut response).unwrap();
        let text = String::from_utf8_lossy(&response);
        let gauge =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned);
        let left = [gauge("n5_connections_open"), gauge("n5_http_requests_in_flight")];
        if left.iter().all(|left| left.as_deref() == Some("1")) {
            return;
        }
        assert!(Instant::now() < until, "connections and requests are left, {left:?}: {}", data.escape_ascii());
        std::thread::sleep(Duration::from_millis(20));
    }
}
