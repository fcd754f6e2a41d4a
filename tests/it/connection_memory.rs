//! Limits on the memory of connections under attack: streams that are not read, heads that do not end, clients that
//! read slowly. `tests/soak/attacks` runs the same attacks at full size, all at once and in a control group.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::attacked::AttackedServer;
use crate::support::h2;
use crate::support::program::PATIENCE;
use crate::support::wait_until;

/// Path of a file of 8 MiB. The kernel would queue half of it.
const FILE: &str = "/v/0/2";

/// SETTINGS_INITIAL_WINDOW_SIZE of 0: the client accepts no body.
const ZERO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];

/// Capacity of the memory pool that a thousand connections share, in MiB.
const SHARED_MIB: u64 = 6;

/// Opens 19,200 streams from `addresses` addresses and reads none. The memory pool does not suffice for them.
async fn connections_beyond_the_memory(server: &AttackedServer, addresses: usize) -> Vec<TcpStream> {
    let requests: Vec<u8> = (0..128).flat_map(|n| h2::request(2 * n + 1, "/v/0/0")).collect();
    let mut held = Vec::new();
    for number in 0..150 {
        let mut client = server.connect_from(&format!("127.0.2.{}", 1 + number % addresses), 4096).await;
        client.write_all(&[h2::begin(&ZERO_WINDOW), requests.clone()].concat()).await.unwrap();
        held.push(client);
    }
    server.wait_for_metric("n5_queue_waiting{queue=\"connection_memory\"}", |waiting| waiting > 50.0).await;
    held
}

/// Checks that an address without connections still gets memory.
async fn assert_serves_another(server: &AttackedServer, address: &str) {
    request_until(server, h2::DATA, address, &[]).await;
}

/// Sends a request with these settings and returns when a frame of `kind` is received. The stream stays open if
/// that frame is not its last.
async fn request_until(server: &AttackedServer, kind: u8, address: &str, settings: &[u8]) -> TcpStream {
    let mut other = server.connect_from(address, 4096).await;
    // This head needs more memory than the greedy clients leave to each other.
    let path = format!("/v/0/0?{}", "a".repeat(110));
    other.write_all(&[h2::begin(settings), h2::request(1, &path)].concat()).await.unwrap();
    let mut received = Vec::new();
    while !h2::kinds(&received).contains(&kind) {
        let read = tokio::time::timeout(PATIENCE, other.read_buf(&mut received)).await;
        assert!(read.expect("no response").unwrap() > 0, "{address} is closed without a response");
    }
    other
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_streams_wait_in_their_connection_and_other_clients_are_served() {
    let mut server = AttackedServer::start(&["server.max_connections=1000"]);
    let baseline = server.baseline().await;
    let resident = server.mib("VmRSS");
    let held = connections_beyond_the_memory(&server, 5).await;
    let peak = server.mib("VmHWM") - resident;
    let most = SHARED_MIB + ((150 * 36) >> 10) + 12;
    assert!(peak <= most, "{peak} of {most} MiB for 19,200 streams");
    assert_serves_another(&server, "127.0.0.9").await;
    drop(held);
    server.wait_for_metric("n5_connection_pool_bytes{pool=\"memory\"}", |bytes| bytes == 0.0).await;
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_of_many_addresses_leave_memory_for_each_address() {
    let mut server = AttackedServer::start(&["server.max_connections=1000"]);
    let baseline = server.baseline().await;
    // Without the reserve, each address would take half of the free memory, until the next request did not fit.
    let held = connections_beyond_the_memory(&server, 16).await;
    let capacity = server.metric("n5_connection_pool_capacity_bytes{pool=\"memory\"}").await;
    server.wait_for_metric("n5_connection_pool_bytes{pool=\"memory\"}", |bytes| bytes > 0.66 * capacity).await;
    let started = Instant::now();
    let mut others = Vec::new();
    for number in 1..=8 {
        others.push(request_until(&server, h2::HEADERS, &format!("127.0.3.{number}"), &ZERO_WINDOW).await);
    }
    assert_serves_another(&server, "127.0.3.9").await;
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    drop((held, others));
    server.wait_for_metric("n5_connection_pool_bytes{pool=\"memory\"}", |bytes| bytes == 0.0).await;
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_heads_share_a_memory_pool_and_long_heads_are_answered() {
    let mut server = AttackedServer::start(&["server.max_connections=1000"]);
    let baseline = server.baseline().await;
    let resident = server.mib("VmRSS");
    let long = |end: &str| format!("GET /v/0/0 HTTP/1.1\r\nHost: x\r\nX: {}{end}", "a".repeat(90_000));
    let mut held = Vec::new();
    for number in 0..600 {
        let mut client = server.connect_from(&format!("127.0.0.{}", 2 + number % 5), 4096).await;
        // The server closes the connection if there is no memory for the head.
        let _ = client.write_all(long("").as_bytes()).await;
        held.push(client);
    }
    let peak = server.mib("VmHWM") - resident;
    let most = SHARED_MIB + ((600 * 18) >> 10) + 12;
    assert!(peak <= most, "{peak} of {most} MiB for 54 MB of heads");
    drop(held);
    server.wait_for_metric("n5_connection_pool_bytes{pool=\"memory\"}", |bytes| bytes == 0.0).await;
    for _ in 0..20 {
        // Several heads: the memory of each must be released before the next.
        let requests = long("\r\n\r\n").repeat(2) + &long("\r\nConnection: close\r\n\r\n");
        let responses = server.exchange(requests.as_bytes()).await;
        assert_eq!(responses.matches("HTTP/1.1 200 OK").count(), 3, "{responses}");
    }
    server.assert_recovered(&baseline).await;
}

/// Returns the number of responses that have begun.
fn responses(received: &[u8]) -> usize {
    h2::kinds(received).into_iter().map(|kind| usize::from(kind == h2::HEADERS)).sum()
}

/// Requests the file twice and reads 6 MiB, so that the kernel enlarges the send queue; then reads nothing.
async fn read_half(server: &AttackedServer, address: &str) -> TcpStream {
    let mut client = server.connect_from(address, 1 << 20).await;
    let requests = format!("GET {FILE} HTTP/1.1\r\nHost: x\r\n\r\n").repeat(2);
    client.write_all(requests.as_bytes()).await.unwrap();
    client.read_exact(&mut vec![0; 6 << 20]).await.unwrap();
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn send_queues_of_slow_readers_share_a_limit_and_a_single_reader_is_not_throttled() {
    let server = AttackedServer::start(&["cache.stored=0"]);
    let one = read_half(&server, "127.0.0.2").await;
    let is_filled = wait_until(async || server.queued_bytes() >= 1 << 20).await;
    assert!(is_filled, "{} bytes on their way to the only client", server.queued_bytes());
    let mut held = vec![one];
    for number in 0..40 {
        held.push(read_half(&server, &format!("127.0.0.{}", 2 + number % 5)).await);
    }
    // Gives the queues time to exceed their limit.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let queued = server.queued_bytes();
    assert!(queued <= 40 << 20, "{queued} bytes in the kernel");
    // Another client gets the whole file, though more slowly.
    let mut other = server.connect_from("127.0.0.9", 1 << 16).await;
    other.write_all(format!("GET {FILE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut received = Vec::new();
    tokio::time::timeout(PATIENCE, other.read_to_end(&mut received)).await.expect("the transfer never ends").unwrap();
    assert!(received.len() > 8 << 20);
    drop(held);
    server.wait_for_metric("n5_connection_pool_bytes{pool=\"sockets\"}", |bytes| bytes < 65_536.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_of_one_address_leave_send_queue_memory_to_others() {
    let server = AttackedServer::start(&["cache.stored=0"]);
    let mut held = Vec::new();
    for _ in 0..60 {
        let mut client = server.connect_from("127.0.0.2", 4096).await;
        client.write_all(format!("GET {FILE} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        held.push(client);
    }
    server.wait_for_metric("n5_connection_pool_bytes{pool=\"sockets\"}", |bytes| bytes > f64::from(16 << 20)).await;
    // Gives the address time to exceed its part of the pool.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let bytes = server.metric("n5_connection_pool_bytes{pool=\"sockets\"}").await;
    assert!(bytes <= f64::from(21 << 20), "one address has {bytes} of 40 MiB");
    // A connection from another address still gets half of what it would get alone.
    let _other = read_half(&server, "127.0.0.9").await;
    server.wait_for_metric("n5_connection_pool_bytes{pool=\"sockets\"}", |bytes| bytes > f64::from(43 << 19)).await;
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_http2_client_releases_the_send_queue_that_it_has_emptied() {
    let mut server = AttackedServer::start(&[]);
    let baseline = server.baseline().await;
    let mut client = server.connect_from("127.0.0.2", 1 << 20).await;
    client.write_all(&h2::begin(&[])).await.unwrap();
    let mut received = Vec::new();
    // The server writes the last responses immediately and then has nothing more to read.
    for number in 0..4 {
        client.write_all(&h2::request(2 * number + 1, "/slice/v?size=64,64")).await.unwrap();
        let is_last = |frame: &(u8, u8, &[u8])| (frame.0, frame.1 & h2::END_STREAM) == (h2::DATA, h2::END_STREAM);
        while h2::frames(&received).iter().filter(|frame| is_last(frame)).count() <= number as usize {
            let read = tokio::time::timeout(PATIENCE, client.read_buf(&mut received)).await;
            assert!(read.expect("no response").unwrap() > 0, "closed after {} bytes", received.len());
        }
    }
    server.wait_for_metric("n5_connection_pool_bytes{pool=\"sockets\"}", |bytes| bytes == 0.0).await;
    drop(client);
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_bytes_of_a_last_response_are_counted_and_then_dropped() {
    let server = AttackedServer::start(&["server.send_timeout=1s", "cache.stored=0"]);
    let mut client = server.connect_from("127.0.0.2", 4096).await;
    let requests = "GET /v/0/0 HTTP/1.1\r\nHost: x\r\n\r\n".repeat(20)
        + "GET /v/1/1 HTTP/1.1\r\nConnection: close\r\nHost: x\r\n\r\n";
    client.write_all(requests.as_bytes()).await.unwrap();
    server.wait_for_metric("n5_connections_open", |open| open > 1.5).await;
    assert!(wait_until(async || server.queued_bytes() > 0).await, "nothing is counted");
    server.wait_for_metric("n5_connections_open", |open| open < 1.5).await;
    assert!(wait_until(async || server.queued_bytes() == 0).await, "the kernel keeps the unread bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_handshake_gets_405_and_other_streams_continue() {
    let server = AttackedServer::start(&[]);
    let mut client = server.connect().await;
    let literal = |name: &str, value: &str| {
        let length = |text: &str| u8::try_from(text.len()).unwrap();
        [&[0, length(name)], name.as_bytes(), &[length(value)], value.as_bytes()].concat()
    };
    let connect = [
        literal(":method", "CONNECT"),
        literal(":protocol", "websocket"),
        literal(":scheme", "http"),
        literal(":path", "/chat"),
        literal(":authority", "x"),
        literal("sec-websocket-version", "13"),
    ]
    .concat();
    let sent = [
        h2::begin(&[]),
        h2::frame(h2::HEADERS, h2::END_HEADERS, 1, &connect),
        h2::frame(h2::DATA, 0, 1, b"\x81\x85\0\0\0\0hello"),
        h2::request(3, "/v/0/0"),
        h2::frame(h2::DATA, h2::END_STREAM, 1, b"\x88\x80\0\0\0\0"),
        h2::request(5, "/v/1/1"),
    ]
    .concat();
    client.write_all(&sent).await.unwrap();
    let mut received = Vec::new();
    let kinds = |received: &[u8]| h2::kinds(received);
    while responses(&received) < 3 {
        assert!(!kinds(&received).contains(&h2::GOAWAY), "a connection error");
        let read = tokio::time::timeout(PATIENCE, client.read_buf(&mut received)).await;
        assert!(read.expect("no response").unwrap() > 0, "closed: {:?}", kinds(&received));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_header_list_of_over_100_fields_gets_431_and_ends_the_connection() {
    let server = AttackedServer::start(&[]);
    let mut client = server.connect().await;
    // The first field is added to the HPACK table. Each further one is then one byte.
    let begin = [&h2::get("/v/0/0")[..], &[0x40, 1, b'a', 1, b'b']].concat();
    let many = [&h2::get("/v/0/0")[..], &[0xbe; 200]].concat();
    let mut sent = [h2::begin(&[]), h2::frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, 1, &begin)].concat();
    for n in 1..100 {
        sent.extend(h2::frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, 2 * n + 1, &many));
    }
    client.write_all(&sent).await.unwrap();
    let mut received = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, client.read_to_end(&mut received)).await.expect("the connection stays open");
    let answered = responses(&received);
    // The frames of one poll may be admitted before hyper has decoded the first of them.
    assert!(answered <= 33, "{answered}");
    assert!(server.exchange(b"GET /v/0/0 HTTP/1.0\r\n\r\n").await.starts_with("HTTP/1.0 200"));
}

/// Returns a request for a missing block. Its path is added to the HPACK table, and `more` follows in the header list.
fn indexed_request(stream: u32, more: &[u8]) -> Vec<u8> {
    let path = format!("/v/9/{stream}");
    let list = [&[0x82, 0x86, 0x44, u8::try_from(path.len()).unwrap()], path.as_bytes(), b"\x01\x01x", more].concat();
    h2::frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, stream, &list)
}

/// Sends the requests in `sent` one after the other and reads each response, until one takes longer than `patience`.
/// Returns the number of responses.
async fn responses_one_by_one(mut client: TcpStream, sent: Vec<Vec<u8>>, patience: Duration) -> (usize, TcpStream) {
    let (mut answered, mut received) = (0, Vec::new());
    for part in sent {
        if client.write_all(&part).await.is_err() {
            break;
        }
        while responses(&received) <= answered {
            let read = tokio::time::timeout(patience, client.read_buf(&mut received)).await;
            if !read.is_ok_and(|read| read.is_ok_and(|bytes| bytes > 0)) {
                return (answered, client);
            }
        }
        answered += 1;
    }
    (answered, client)
}

/// Like [`responses_one_by_one`], with a client that answers PINGs. Returns the number of responses, and the stream
/// that the last GOAWAY names, if any.
async fn last_stream_served(mut client: TcpStream, sent: Vec<Vec<u8>>) -> (usize, Option<u32>) {
    let (mut received, mut pings) = (Vec::new(), 0);
    'sending: for (number, part) in sent.iter().enumerate() {
        if client.write_all(part).await.is_err() {
            break;
        }
        while responses(&received) <= number {
            let read = tokio::time::timeout(Duration::from_secs(10), client.read_buf(&mut received)).await;
            if !read.is_ok_and(|read| read.is_ok_and(|bytes| bytes > 0)) {
                break 'sending;
            }
            let received_pings =
                h2::frames(&received).into_iter().filter(|(kind, flags, _)| (*kind, *flags) == (h2::PING, 0));
            let new: Vec<_> =
                received_pings.skip(pings).map(|(.., payload)| h2::frame(h2::PING, h2::ACK, 0, payload)).collect();
            pings += new.len();
            let _ = client.write_all(&new.concat()).await;
        }
    }
    let frames = h2::frames(&received);
    let last = frames.iter().rfind(|(kind, ..)| *kind == h2::GOAWAY);
    (responses(&received), last.map(|(.., payload)| u32::from_be_bytes(*payload.first_chunk().unwrap())))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goaway_for_lack_of_memory_names_the_last_processed_stream() {
    let server = AttackedServer::start(&["server.max_connections=1000"]);
    let long = [&[0x10, 1, b'x', 0x7f, 0x80, 0x20][..], &[b'a'; 4096 + 127]].concat();
    let requests: Vec<_> = (0..110)
        .map(|n| [if n == 0 { h2::begin(&[]) } else { Vec::new() }, indexed_request(2 * n + 1, &long)].concat())
        .collect();
    let mut clients = Vec::new();
    for number in 0..80 {
        let client = server.connect_from(&format!("127.0.0.{}", 2 + number % 5), 1 << 16).await;
        clients.push(last_stream_served(client, requests.clone()));
    }
    let mut ended = 0;
    for (answered, last) in futures_util::future::join_all(clients).await {
        let Some(last) = last else { continue };
        ended += 1;
        // GOAWAY names the last stream that was answered or begun, and no later one.
        let served = u32::try_from(2 * answered).unwrap();
        assert!((served.saturating_sub(1)..=served + 1).contains(&last), "{last} after {answered} responses");
    }
    assert!(ended > 10, "{ended}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hpack_tables_that_hold_large_buffers_are_bounded() {
    let mut server = AttackedServer::start(&["server.max_connections=1000"]);
    let baseline = server.baseline().await;
    // While a path is in its HPACK table, hyper keeps the 8 KiB buffer in which the path was received.
    let long = [&[0x10, 1, b'x', 0x7f, 0x80, 0x40][..], &[b'a'; 8192 + 127]].concat();
    let requests = |first: Vec<u8>, more: &[u8]| {
        let parts = (0..110).map(|n| indexed_request(2 * n + 1, more));
        std::iter::once([first, indexed_request(1, more)].concat()).chain(parts.skip(1)).collect::<Vec<_>>()
    };
    let resident = server.mib("VmRSS");
    let mut clients = Vec::new();
    for number in 0..80 {
        let client = server.connect_from(&format!("127.0.0.{}", 2 + number % 5), 1 << 16).await;
        clients.push(responses_one_by_one(client, requests(h2::begin(&[]), &long), Duration::from_secs(5)));
    }
    let held = futures_util::future::join_all(clients).await;
    let peak = server.mib("VmHWM") - resident;
    let most = SHARED_MIB + ((80 * 36) >> 10) + 12;
    let ended = held.iter().filter(|(answered, _)| *answered < 110).count();
    assert!(peak <= most, "{peak} of {most} MiB for 80 tables; {ended} connections were ended or wait");
    // An ordinary client that adds all its fields to the table.
    let client = server.connect_from("127.0.0.9", 4096).await;
    let (answered, client) = responses_one_by_one(client, requests(h2::begin(&[]), b""), PATIENCE).await;
    assert_eq!(answered, 110);
    // Waiting connections cannot see that their clients are gone: the FIN comes after bytes that do not fit the
    // kernel's receive buffer.
    drop((held, client));
    let started = Instant::now();
    server.wait_for_metric("n5_connection_pool_bytes{pool=\"memory\"}", |bytes| bytes == 0.0).await;
    // Sooner than by the time limit of a request head, 30 s.
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_excessive_header_list_is_not_decoded() {
    let server = AttackedServer::start(&[]);
    let mut client = server.connect().await;
    let begin = [&h2::get("/v/0/0")[..], &[0x40, 1, b'a', 1, b'b']].concat();
    let many = [&h2::get("/v/0/0")[..], &[0xbe; 1600]].concat();
    let ask = |stream, list: &[u8]| h2::frame(h2::HEADERS, h2::END_HEADERS | h2::END_STREAM, stream, list);
    client.write_all(&[h2::begin(&[]), ask(1, &begin)].concat()).await.unwrap();
    let mut received = Vec::new();
    while responses(&received) < 1 {
        assert!(client.read_buf(&mut received).await.unwrap() > 0);
    }
    client.write_all(&ask(3, &many)).await.unwrap();
    let _ = tokio::time::timeout(PATIENCE, client.read_to_end(&mut received)).await.expect("the connection stays open");
    assert_eq!(responses(&received), 1);
    assert!(h2::kinds(&received).contains(&h2::GOAWAY));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_complete_responses_hold_no_request_permits() {
    let server = AttackedServer::start(&["limits.concurrent_requests=16", "limits.budget_wait=2s"]);
    let requests: Vec<u8> = ["/v/attributes.json", "/v/0/0", "/info/v", "/slice/v?format=npy&start=0,0&size=4,4"]
        .iter()
        .enumerate()
        .flat_map(|(n, path)| h2::request(2 * n as u32 + 1, path))
        .collect();
    let mut held = Vec::new();
    for number in 0..60 {
        let mut client = server.connect_from(&format!("127.0.1.{}", 1 + number), 4096).await;
        client.write_all(&[h2::begin(&ZERO_WINDOW), requests.clone()].concat()).await.unwrap();
        held.push(client);
        // Waits until the server has made the responses.
        let requests = 4.0 * f64::from(number + 1);
        server.wait_for_metric("n5_http_requests_in_flight", |running| running >= requests).await;
        server.wait_for_metric("n5_queue_waiting{queue=\"request\"}", |waiting| waiting == 0.0).await;
    }
    for path in ["/v/attributes.json", "/v/0/0", "/info/v"] {
        let response =
            server.exchange(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await;
        assert!(response.starts_with("HTTP/1.1 200 "), "{path}: {response}");
    }
}

/// The server must notice the end of the connection although unread bytes precede it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_cancelled_on_disconnect_even_if_another_is_pipelined() {
    let server = AttackedServer::start(&["clients.concurrent_requests=1", "limits.budget_wait=120s"]);
    let slice =
        |size: u32| format!("GET /slice/v?start=0,0&size={size},{size}&outside=zero HTTP/1.1\r\nHost: x\r\n\r\n");
    // This streamed slice, which is not read, takes the only permit of its address.
    let mut first = server.connect_from("127.0.0.2", 4096).await;
    first.write_all(slice(4000).as_bytes()).await.unwrap();
    first.read_exact(&mut [0; 100]).await.unwrap();
    let with = |line: &str| slice(4).replace("Host", &format!("{line}\r\nHost"));
    for requests in [
        slice(4).repeat(2),
        slice(4) + &"x".repeat(100),
        slice(4).repeat(100),
        with("Content-Length: 1") + "x" + &slice(4),
        with("Content-Length: 100") + "unfinished",
        with("Upgrade: websocket\r\nConnection: upgrade") + &slice(4),
    ] {
        let mut client = server.connect_from("127.0.0.2", 4096).await;
        client.write_all(requests.as_bytes()).await.unwrap();
        server.wait_for_metric("n5_queue_waiting{queue=\"client\"}", |waiting| waiting > 0.0).await;
        drop(client);
        server.wait_for_metric("n5_queue_waiting{queue=\"client\"}", |waiting| waiting == 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_waiting_for_memory_end_when_their_clients_disconnect() {
    let mut server = AttackedServer::start(&["server.max_connections=1000"]);
    let baseline = server.baseline().await;
    let held = connections_beyond_the_memory(&server, 5).await;
    drop(held);
    let started = Instant::now();
    server.wait_for_metric("n5_connections_open", |open| open < 2.0).await;
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    server.wait_for_metric("n5_connection_pool_bytes{pool=\"memory\"}", |bytes| bytes == 0.0).await;
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_release_stream_memory_to_active_ones() {
    let server = AttackedServer::start(&["server.max_connections=500"]);
    // A 404 has no body, so the client need not open its window.
    let requests: Vec<u8> = (0..100).flat_map(|n| h2::request(2 * n + 1, "/v/9/9")).collect();
    // Together, the connections have several times more streams than there is memory for.
    let (mut held, mut longest) = (Vec::new(), Duration::ZERO);
    for number in 0..100 {
        let started = Instant::now();
        let mut client = server.connect_from(&format!("127.0.1.{}", 1 + number), 1 << 20).await;
        client.write_all(&[h2::begin(&[]), requests.clone()].concat()).await.unwrap();
        let mut received = Vec::new();
        while responses(&received) < 100 {
            let read = tokio::time::timeout(PATIENCE, client.read_buf(&mut received)).await;
            assert!(read.expect("no response").unwrap() > 0, "{number} closed after {}", responses(&received));
        }
        longest = longest.max(started.elapsed());
        held.push(client);
    }
    assert!(longest < Duration::from_secs(10), "{longest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_paths_take_no_memory_per_parent_directory() {
    let mut server = AttackedServer::start(&["server.max_connections=1000"]);
    let baseline = server.baseline().await;
    let resident = server.mib("VmRSS");
    // Shorter than a head that is charged to the memory pool.
    let path = ["x".repeat(28).as_str(); 250].join("/");
    let mut clients = Vec::new();
    for number in 0..400 {
        let route = ["info", "stats", "as/gzip", "precomputed"][number % 4];
        let end = if number % 4 < 2 { "" } else { "/info" };
        let mut client = server.connect_from(&format!("127.0.0.{}", 2 + number % 5), 4096).await;
        let requests = format!("GET /{route}/{path}{end} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        clients.push(async move {
            client.write_all(requests.as_bytes()).await.unwrap();
            let mut received = Vec::new();
            tokio::time::timeout(PATIENCE, client.read_to_end(&mut received)).await.expect("no response").unwrap();
            assert!(received.starts_with(b"HTTP/1.1 404 "), "{}", String::from_utf8_lossy(&received));
        });
    }
    futures_util::future::join_all(clients).await;
    let peak = server.mib("VmHWM") - resident;
    let most = ((400 * 36) >> 10) + 40;
    assert!(peak <= most, "{peak} of {most} MiB for 400 requests");
    server.assert_recovered(&baseline).await;
}
