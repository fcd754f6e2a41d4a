//! HTTP/2 against the real program. Clients that read nothing or almost nothing do not hinder others. Clients that are
//! only slow, or wait, are not disconnected.

use std::collections::HashMap;
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::support::attacked::AttackedServer;
use crate::support::deadlines::{DeadlineWatch, retry_if_late};
use crate::support::h2;
use crate::support::program::PATIENCE;

/// Path of a response of 32 MB.
const LARGE: &str = "/slice/v?start=0,0&size=4000,4000&outside=zero";
const LARGE_BYTES: usize = 4000 * 4000 * 2;

/// Path of a file of 8 MiB.
const FILE: &str = "/v/0/2";
const FILE_BYTES: usize = 8 << 20;

const INITIAL_WINDOW: usize = 65_535;

/// Longest pause after which a client is certainly not disconnected yet, with a `server.send_timeout` of 1 s.
const ALLOWED_PAUSE: Duration = Duration::from_millis(900);

/// The frames that a connection has received.
#[derive(Debug, Default, Clone)]
struct Received {
    /// Streams with status 200.
    succeeded: Vec<u32>,
    /// Number of streams with any response.
    answered: usize,
    /// Bytes received of each stream's body.
    bytes: HashMap<u32, usize>,
    /// Streams that have ended; `reset` has those that were reset.
    ended: Vec<u32>,
    reset: Vec<u32>,
    pings: usize,
    got_goaway: bool,
    is_closed: bool,
}

impl Received {
    fn bytes(&self, stream: u32) -> usize {
        self.bytes.get(&stream).copied().unwrap_or_default()
    }

    /// Returns an error if the server has sent GOAWAY.
    fn check_no_goaway(&self) -> Result<(), String> {
        if self.got_goaway { Err(format!("disconnected by GOAWAY: {self:?}")) } else { Ok(()) }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.answered += usize::from(kind == h2::HEADERS);
        match kind {
            h2::DATA => *self.bytes.entry(stream).or_default() += payload.len(),
            // `:status: 200` has index 8 in the static table of HPACK.
            h2::HEADERS if payload.first() == Some(&0x88) => self.succeeded.push(stream),
            h2::RESET => self.reset.push(stream),
            h2::GOAWAY => self.got_goaway = true,
            _ => {}
        }
        if matches!(kind, h2::DATA | h2::HEADERS) && flags & h2::END_STREAM != 0 {
            self.ended.push(stream);
        }
    }
}

/// A client that reads everything and answers PINGs. It sends other frames only as the test asks.
struct Client {
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    seen: Arc<Mutex<Received>>,
}

impl Client {
    /// Connects with `window` as the initial window of streams and an almost unlimited window of the connection.
    async fn begin(server: &AttackedServer, window: u32) -> Self {
        let (reader, writer) = server.connect().await.into_split();
        let client = Self { writer: Arc::new(writer.into()), seen: Arc::default() };
        let settings = [&[0, 4][..], &window.to_be_bytes()].concat();
        client.send(&[h2::begin(&settings), update(0, 1 << 30)].concat()).await.unwrap();
        tokio::spawn(receive(reader, Arc::clone(&client.writer), Arc::clone(&client.seen)));
        client
    }

    async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.writer.lock().await.write_all(bytes).await
    }

    fn seen(&self) -> Received {
        self.seen.lock().unwrap().clone()
    }

    async fn wait_until(&self, what: &str, is_so: impl Fn(&Received) -> bool) -> Received {
        self.try_wait_until(what, is_so).await.unwrap()
    }

    /// Like [`Self::wait_until`], but returns an error if the server closes the connection.
    async fn try_wait_until(&self, what: &str, is_so: impl Fn(&Received) -> bool) -> Result<Received, String> {
        // Progress resets the time limit: encoding in a debug build on a busy machine takes long.
        let (mut since, mut before) = (Instant::now(), (0, 0));
        loop {
            let seen = self.seen();
            if is_so(&seen) {
                return Ok(seen);
            }
            let now = (seen.ended.len(), seen.bytes.values().sum::<usize>());
            if now > before {
                (since, before) = (Instant::now(), now);
            }
            assert!(since.elapsed() < PATIENCE, "not {what}: {seen:?}");
            if seen.is_closed {
                return Err(format!("closed before {what}: {seen:?}"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sends a request and reads the whole response, which must have status 200.
    async fn get(&self, stream: u32, path: &str) {
        self.try_get(stream, path).await.unwrap();
    }

    async fn try_get(&self, stream: u32, path: &str) -> Result<(), String> {
        self.try_send(&[h2::request(stream, path), update(stream, 1 << 30)].concat()).await?;
        let seen = self.try_wait_until(path, |seen| seen.ended.contains(&stream)).await?;
        assert!(seen.succeeded.contains(&stream), "{path}");
        Ok(())
    }

    async fn try_send(&self, bytes: &[u8]) -> Result<(), String> {
        self.send(bytes).await.map_err(|error| error.to_string())
    }
}

async fn receive(
    mut reader: OwnedReadHalf,
    writer: Arc<tokio::sync::Mutex<OwnedWriteHalf>>,
    seen: Arc<Mutex<Received>>,
) {
    let mut head = [0; 9];
    while reader.read_exact(&mut head).await.is_ok() {
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        if reader.read_exact(&mut payload).await.is_err() {
            break;
        }
        seen.lock().unwrap().frame(kind, flags, u32::from_be_bytes(stream), &payload);
        if kind == h2::PING && flags & h2::ACK == 0 {
            seen.lock().unwrap().pings += 1;
            let _ = writer.lock().await.write_all(&h2::frame(h2::PING, h2::ACK, 0, &payload)).await;
        }
    }
    seen.lock().unwrap().is_closed = true;
}

fn update(stream: u32, bytes: u32) -> Vec<u8> {
    h2::frame(h2::WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

fn requests(path: &str) -> Vec<u8> {
    (0..100).flat_map(|number| h2::request(2 * number + 1, path)).collect()
}

/// Two clients request a hundred large slices each and send the frames `more(n)` every 0.4 s, with n = 0, 1, 2, ….
async fn attack(more: impl Fn(u32) -> Vec<u8>) {
    let mut server = AttackedServer::start(&["server.send_timeout=1s"]);
    let baseline = server.baseline_for_large_responses().await;
    retry_if_late(async |deadlines| attack_once(&server, &more, deadlines).await).await;
    server.assert_recovered(&baseline).await;
}

/// Attacks the server with two clients. Returns an error if another client is not served during the attack.
async fn attack_once(
    server: &AttackedServer,
    more: &impl Fn(u32) -> Vec<u8>,
    deadlines: &DeadlineWatch,
) -> Result<(), String> {
    let clients = [Client::begin(server, 0).await, Client::begin(server, 0).await];
    for client in &clients {
        client.send(&requests(LARGE)).await.unwrap();
        client.wait_until("answered", |seen| !seen.succeeded.is_empty()).await;
    }
    let trickle = async {
        for number in 0.. {
            let more = more(number);
            let mut open = 0;
            for client in &clients {
                open += usize::from(client.send(&more).await.is_ok() && !client.seen().is_closed);
            }
            if open == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(400)).await;
        }
    };
    let other = async {
        let request = format!("GET {LARGE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let mut connection = server.connect().await;
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut response = vec![0; 12];
        connection.read_exact(&mut response).await.unwrap();
        let ended = loop {
            let _reading = deadlines.step(ALLOWED_PAUSE);
            match connection.read_buf(&mut response).await {
                Ok(0) => break Ok(()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        let head = String::from_utf8_lossy(&response[..response.len().min(500)]).into_owned();
        if !head.starts_with("HTTP/1.1 200") {
            return Err(format!("another client is answered {head}"));
        }
        if response.len() > LARGE_BYTES { Ok(()) } else { Err(format!("{} bytes: {ended:?}", response.len())) }
    };
    let both = async { tokio::join!(trickle, other).1 };
    let served = tokio::time::timeout(PATIENCE, both).await.expect("neither connection is closed");
    for client in &clients {
        client.wait_until("disconnected by GOAWAY", |seen| seen.got_goaway).await;
    }
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_a_byte_of_every_stream_does_not_hold_memory_from_others() {
    attack(|_| (0..100).flat_map(|number| update(2 * number + 1, 1)).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_a_byte_of_one_stream_does_not_hold_memory_from_others() {
    attack(|_| update(1, 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_one_stream_does_not_keep_unread_streams_alive() {
    attack(|_| update(1, 20_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_requests_do_not_keep_unread_streams_alive() {
    attack(|number| {
        let stream = 2 * number + 201;
        [h2::request(stream, "/v/0/0"), update(stream, 1 << 20)].concat()
    })
    .await;
}

/// Returns the status of a request over HTTP/1.
async fn status(server: &AttackedServer, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut connection = server.connect().await;
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut response = [0; 12];
    tokio::time::timeout(PATIENCE, connection.read_exact(&mut response)).await.unwrap().unwrap();
    String::from_utf8_lossy(&response[9..]).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_problems_and_operations_do_not_block_other_requests() {
    let settings = ["limits.concurrent_requests=16", "clients.concurrent_requests=1", "limits.budget_wait=300ms"];
    let server = AttackedServer::start(&settings);
    let small = "/slice/v?start=0,0&size=4,4";
    let mut clients = Vec::new();
    for path in ["/healthz", "/missing/", "/metrics"] {
        let client = Client::begin(&server, 0).await;
        client.send(&requests(path)).await.unwrap();
        let seen = client.wait_until("answered", |seen| seen.answered == 100).await;
        assert!(seen.ended.is_empty(), "{seen:?}");
        clients.push(client);
    }
    assert_eq!(status(&server, small).await, "200");
    assert_eq!(status(&server, "/metrics").await, "200");
    // This request takes the only permit of the address. Requests that need no waiting take none.
    let client = Client::begin(&server, 0).await;
    client.send(&h2::request(1, LARGE)).await.unwrap();
    client.wait_until("answered", |seen| seen.succeeded == [1]).await;
    assert_eq!(status(&server, small).await, "429");
    // A request whose data is not in memory also has to wait, so the test repeats it.
    for _ in 0..20 {
        if status(&server, "/v/0/0").await == "200" {
            return;
        }
    }
    panic!("a stored block waits for a permit");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_answers_pings_but_reads_nothing_is_disconnected() {
    // PINGs are sent well before a stall ends the connection, and late responses are still accepted.
    let mut server = AttackedServer::start(&["server.send_timeout=8s", "server.header_timeout=5s"]);
    let baseline = server.baseline_for_large_responses().await;
    let client = Client::begin(&server, 0).await;
    client.send(&requests(FILE)).await.unwrap();
    let seen = client.wait_until("closed", |seen| seen.is_closed).await;
    assert!(seen.pings >= 2 && seen.got_goaway && seen.succeeded.len() == 100, "{seen:?}");
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_client_that_answers_pings_gets_goaway() {
    let mut server = AttackedServer::start(&["server.header_timeout=4s"]);
    let baseline = server.baseline().await;
    let clients = [Client::begin(&server, 0).await, Client::begin(&server, 0).await];
    clients[1].get(1, "/v/0/0").await;
    for client in &clients {
        let seen = client.wait_until("closed", |seen| seen.is_closed).await;
        assert!(seen.got_goaway && seen.reset.is_empty(), "{seen:?}");
    }
    server.assert_recovered(&baseline).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_send_a_request_after_a_pause() {
    let server = AttackedServer::start(&["server.send_timeout=1s"]);
    retry_if_late(async |deadlines| {
        let client = Client::begin(&server, 0).await;
        let reading = deadlines.step(ALLOWED_PAUSE);
        client.try_get(1, FILE).await?;
        drop(reading);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let _reading = deadlines.step(ALLOWED_PAUSE);
        client.try_get(3, FILE).await?;
        client.seen().check_no_goaway()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_stays_open_while_slow_responses_are_computed() {
    // The slice budget holds two responses of one client at a time.
    let settings = [
        "server.send_timeout=2s",
        "server.request_timeout=300s",
        "limits.budget_wait=300s",
        "limits.slice_budget=256MiB",
    ];
    let server = AttackedServer::start(&settings);
    let slow = "/slice/v?start=0,0&size=4000,4000&outside=zero&format=png";
    retry_if_late(async |deadlines| {
        let client = Client::begin(&server, 0).await;
        client.try_get(1, slow).await?;
        // Meanwhile, only the beginning of stream 3 is read, for more than twice and less than four times
        // `server.send_timeout`.
        let pause = deadlines.step(Duration::from_secs(7));
        client.try_send(&[h2::request(3, FILE), update(3, 100_000)].concat()).await?;
        client.try_wait_until("read in part", |seen| seen.bytes(3) == 100_000).await?;
        for stream in [5, 7, 9, 11, 13, 15] {
            client.try_send(&[h2::request(stream, slow), update(stream, 1 << 30)].concat()).await?;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        client.try_send(&update(3, 1 << 30)).await?;
        drop(pause);
        let reading = deadlines.step(2 * ALLOWED_PAUSE);
        client.try_wait_until("ended", |seen| seen.ended.contains(&3)).await?;
        drop(reading);
        let others = [5, 7, 9, 11, 13, 15];
        let seen =
            client.try_wait_until("read", |seen| others.iter().all(|stream| seen.ended.contains(stream))).await?;
        assert_eq!(seen.bytes(3), FILE_BYTES);
        seen.check_no_goaway()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steady_readers_stay_connected_with_any_window_size() {
    let server = AttackedServer::start(&["server.send_timeout=1s"]);
    // Window, increment and pause in milliseconds. Like common libraries, the client adds half a window each time.
    let kinds = [(INITIAL_WINDOW, 32 << 10, 700), (2 << 20, 1 << 20, 2100)];
    let readers = kinds.map(|(window, step, pause)| {
        let (server, pause) = (&server, Duration::from_millis(pause));
        retry_if_late(async move |deadlines| {
            let client = Client::begin(server, u32::try_from(window).unwrap()).await;
            let mut pausing = deadlines.step(pause + ALLOWED_PAUSE);
            client.try_send(&h2::request(1, FILE)).await?;
            let mut allowed = window;
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(9) && allowed < FILE_BYTES {
                client.try_wait_until("read", |seen| seen.bytes(1) == allowed).await?;
                tokio::time::sleep(pause).await;
                client.try_send(&update(1, step)).await?;
                pausing = deadlines.step(pause + ALLOWED_PAUSE);
                allowed += step as usize;
            }
            drop(pausing);
            let _reading = deadlines.step(ALLOWED_PAUSE);
            client.try_send(&update(1, 1 << 30)).await?;
            let seen = client.try_wait_until("ended", |seen| seen.ended == [1]).await?;
            assert_eq!(seen.bytes(1), FILE_BYTES, "a window of {window}");
            seen.check_no_goaway()
        })
    });
    let [first, second] = readers;
    tokio::join!(first, second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_may_pause_while_others_are_read() {
    let server = AttackedServer::start(&["server.send_timeout=2s"]);
    retry_if_late(async |deadlines| {
        let client = Client::begin(&server, 65_535).await;
        let pause = deadlines.step(Duration::from_secs(7));
        client.try_send(&h2::request(1, FILE)).await?;
        client.try_wait_until("begun", |seen| seen.bytes(1) == INITIAL_WINDOW).await?;
        // Longer than the limit for a connection without any progress, shorter than that for one stream without
        // progress.
        let started = Instant::now();
        for number in 1.. {
            let reading = deadlines.step(2 * ALLOWED_PAUSE);
            client.try_get(2 * number + 1, if number % 2 == 0 { "/v/0/0" } else { FILE }).await?;
            drop(reading);
            tokio::time::sleep(Duration::from_millis(100)).await;
            if started.elapsed() > Duration::from_secs(5) {
                break;
            }
        }
        client.try_send(&update(1, 1 << 30)).await?;
        drop(pause);
        let _reading = deadlines.step(2 * ALLOWED_PAUSE);
        let seen = client.try_wait_until("ended", |seen| seen.ended.contains(&1)).await?;
        assert_eq!(seen.bytes(1), FILE_BYTES);
        seen.check_no_goaway()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unread_stream_does_not_block_shutdown() {
    // At shutdown, a stalled connection ends within 1.25 times `server.send_timeout`; otherwise it would end after
    // twice `server.send_timeout`.
    let limit = Duration::from_secs(18);
    let mut server = AttackedServer::start(&["server.send_timeout=10s"]);
    let client = Client::begin(&server, 0).await;
    client.send(&h2::request(1, FILE)).await.unwrap();
    client.wait_until("answered", |seen| seen.succeeded == [1]).await;
    let started = Instant::now();
    let killed = Command::new("kill").arg(server.id().to_string()).status().unwrap();
    assert!(killed.success());
    while !server.has_ended() {
        assert!(started.elapsed() < limit, "shutdown waits for a stream whose window stays closed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    client.wait_until("disconnected by GOAWAY", |seen| seen.got_goaway).await;
}
