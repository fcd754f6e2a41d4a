//! Responses of the fast path equal those of the HTTP library (hyper), and pipelined requests are answered in order.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use n5_server::config::{Config, ContainerConfig, EntityTagSource, RevalidationPolicy, SymlinkPolicy};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::support::deadlines::{DeadlineWatch, retry_if_late};
use crate::support::http1::{Http1Client, Http1Response, request_head};
use crate::support::server::{RunningServer, open_connections, start_server};
use crate::support::writer::N5;
use crate::support::{let_files_settle, wait_until};

async fn serve(n5: &N5, change: impl FnOnce(&mut Config)) -> RunningServer {
    serve_within(n5, Duration::from_secs(20), change).await
}

async fn serve_within(n5: &N5, header_timeout: Duration, change: impl FnOnce(&mut Config)) -> RunningServer {
    let mut config = Config::default();
    config.containers = vec![ContainerConfig {
        name: String::new(),
        root: n5.root().into(),
        cache_control: config.container_defaults.cache_control,
        symlinks: SymlinkPolicy::Inside,
        must_be_mount: false,
        entity_tag: EntityTagSource::Mtime,
        ..ContainerConfig::default()
    }];
    change(&mut config);
    start_server(header_timeout, config).await
}

fn container() -> N5 {
    let n5 = N5::new();
    n5.dataset("v", &[8, 8], &[4, 4], "raw");
    n5.file("v/0/0", b"\0\0\0\x02\0\0\0\x04\0\0\0\x0432 bytes, half: stored as it is.");
    n5.file("v/1/0", vec![7; 300_000]);
    n5.file("v/0/notes.txt", "no part of N5");
    n5
}

/// A header that keeps a request off the fast path and changes nothing else.
const UNUSUAL: (&str, &str) = ("Connection", "keep-alive, x-nothing");

#[tokio::test]
async fn a_fast_path_response_equals_that_of_the_http_library() {
    let n5 = container();
    for origins in [vec!["*".to_owned()], vec!["http://viewer.example".to_owned()]] {
        let server = serve(&n5, |config| config.cors.origins = origins.clone()).await;
        let mut client = Http1Client::connect(&server).await;
        let tag = client.ask("GET", "/v/0/0", &[]).await.header("etag").unwrap().to_owned();
        let weak = format!("W/{tag}");
        let both = format!("\"other\", {tag}");
        let conditions: [&[(&str, &str)]; 12] = [
            &[],
            &[("If-None-Match", &tag)],
            &[("If-None-Match", "\"other\"")],
            &[("If-None-Match", &weak)],
            &[("If-None-Match", &both)],
            &[("If-None-Match", "*")],
            &[("If-None-Match", "nonsense")],
            &[("If-None-Match", &tag), ("If-Modified-Since", "Thu, 01 Jan 1970 00:00:00 GMT")],
            &[("If-Modified-Since", "Thu, 01 Jan 2099 00:00:00 GMT")],
            &[("Range", "bytes=2-5")],
            &[("Origin", "http://viewer.example"), ("X-Request-Id", "mine")],
            &[("Origin", "http://else.example"), ("X-Request-Id", "not sound")],
        ];
        let long = format!("/v/{}", "a'b/".repeat(60) + "0");
        let paths = [
            long.as_str(),
            "/v/0/0",
            "/v/1/0",
            "/n5/v/0/0",
            "/v/attributes.json",
            "/attributes.json",
            "/v/0/1",
            "/v/0/0/0",
            "/v/9/9",
            "/nothing/attributes.json",
            "/v",
            "/v/0",
            "/v/",
            "/v/0/",
            "/v/0/notes.txt",
            "/v//0",
            "/v/../v/0/0",
            "/v/%30/0",
            "/v/0/0?x",
            "/as/raw/v/0/0",
            "/as/gzip/v/0/0",
            "/as/gzip/v/0/0?x",
            "/as/gzip,float32/v/0/0",
            "/as/gzip/v/1/1",
            "/zarr2/v/0/0",
            "/zarr3/v/c/0/0",
            "/healthz",
            "/n5",
            "/",
        ];
        for method in ["GET", "HEAD"] {
            for path in paths {
                for condition in conditions {
                    let fast = client.ask(method, path, condition).await;
                    let general = client.ask(method, path, &[condition, &[UNUSUAL]].concat()).await;
                    let case = format!("{method} {path} {condition:?}");
                    assert_eq!(fast.status, general.status, "{case}");
                    assert!(fast.body == general.body, "{case}");
                    let comparable = |response: &Http1Response| -> BTreeSet<(String, String)> {
                        let varying = |name: &str| {
                            // The date, and the request id if the server generated it.
                            name == "date" || (name == "x-request-id" && response.header(name) != Some("mine"))
                        };
                        let of = |(name, value): &(String, String)| {
                            (name.clone(), if varying(name) { String::new() } else { value.clone() })
                        };
                        response.headers.iter().map(of).collect()
                    };
                    assert_eq!(comparable(&fast), comparable(&general), "{case}");
                }
            }
        }
    }
}

/// A request (method, path, headers) and the expected status.
type Kind = (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str);

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let n5 = container();
    let server = serve(&n5, |_| {}).await;
    let kinds: [Kind; 6] = [
        ("GET", "/v/0/0", &[], "200"),
        ("GET", "/v/0/0", &[UNUSUAL], "200"),
        ("GET", "/slice/v?start=0,0&stop=4,4&format=raw", &[], "200"),
        ("GET", "/v/7/7", &[], "404"),
        ("GET", "/v/1/0", &[], "200"),
        ("HEAD", "/info/v", &[], "200"),
    ];
    // Sends every ordered pair, in one piece and byte by byte, and then a sequence of 60 requests in one piece.
    let mut orders: Vec<Vec<usize>> = (0..36).map(|n| vec![n / 6, n % 6]).collect();
    orders.push((0..60).map(|n| (n * 7) % 6).collect());
    for order in orders {
        for slowly in [false, true] {
            if slowly && order.len() > 2 {
                continue;
            }
            let mut client = Http1Client::connect(&server).await;
            // Fills the cache, so that both the fast path and hyper answer.
            for path in ["/v/0/0", "/v/1/0"] {
                client.ask("GET", path, &[]).await;
            }
            let text: String = order.iter().map(|n| request_head(kinds[*n].0, kinds[*n].1, kinds[*n].2)).collect();
            let step = if slowly { 1 } else { text.len() };
            let (reader, writer) = client.into_stream().into_split();
            let sending = tokio::spawn(async move {
                let mut writer = writer;
                for piece in text.as_bytes().chunks(step) {
                    writer.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
                writer
            });
            let mut received = Vec::new();
            let mut reader = reader;
            let expected: Vec<&str> = order.iter().map(|n| kinds[*n].3).collect();
            let mut statuses = Vec::new();
            let mut at = 0;
            while statuses.len() < order.len() {
                let mut buffer = vec![0; 65536];
                let length = tokio::time::timeout(Duration::from_secs(20), reader.read(&mut buffer)).await;
                let length = length.expect("every request is answered").unwrap();
                assert!(length > 0, "{order:?}: closed after {statuses:?}");
                received.extend_from_slice(&buffer[..length]);
                while let Some((status, next)) = whole_response(&received[at..], kinds[order[statuses.len()]].0) {
                    statuses.push(status);
                    at += next;
                    if statuses.len() == order.len() {
                        break;
                    }
                }
            }
            assert_eq!(statuses, expected, "{order:?} slowly: {slowly}");
            assert_eq!(at, received.len(), "nothing is sent beyond the responses");
            drop(sending.await.unwrap());
        }
    }
}

/// Returns status and length of the response at the beginning of `bytes`, or `None` if it is incomplete.
fn whole_response(bytes: &[u8], method: &str) -> Option<(String, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).unwrap().to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap().to_owned();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
    let length = if method == "HEAD" { end } else { end + length };
    (bytes.len() >= length).then_some((status, length))
}

#[tokio::test]
async fn a_request_body_is_not_taken_for_another_request() {
    let n5 = container();
    let server = serve(&n5, |_| {}).await;
    let mut client = Http1Client::connect(&server).await;
    client.ask("GET", "/v/0/0", &[]).await;
    // The body of the first request has the form of a request.
    let smuggled = request_head("GET", "/v/attributes.json", &[]);
    let length = smuggled.len().to_string();
    client.write(&(request_head("GET", "/v/7/7", &[("Content-Length", &length)]) + &smuggled)).await;
    assert!(client.read_response("GET").await.unwrap().status.contains(" 404 "));
    client.write(&request_head("GET", "/v/0/0", &[])).await;
    match client.read_response("GET").await {
        Ok(response) => assert!(response.body.ends_with(b"stored as it is."), "the body is not answered"),
        Err(closed) => assert!(matches!(closed.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)),
    }
}

#[tokio::test]
async fn a_request_with_connection_close_gets_its_whole_response() {
    let n5 = container();
    let server = serve(&n5, |_| {}).await;
    for warm in [false, true] {
        for version in ["1.0", "1.1"] {
            let mut client = TcpStream::connect(server.address).await.unwrap();
            let text = format!("GET /v/1/0 HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n");
            client.write_all(text.as_bytes()).await.unwrap();
            let mut received = Vec::new();
            client.read_to_end(&mut received).await.unwrap();
            assert!(received.ends_with(&vec![7; 300_000]), "{version} warm: {warm}");
        }
    }
}

#[tokio::test]
async fn a_changed_file_is_noticed_by_the_next_request() {
    let n5 = container();
    let server = serve(&n5, |_| {}).await;
    let mut client = Http1Client::connect(&server).await;
    for round in 0..50 {
        let content = format!("round {round}");
        n5.file("v/0/0", &content);
        for _ in 0..3 {
            assert_eq!(client.ask("GET", "/v/0/0", &[]).await.body, content.as_bytes());
        }
        std::fs::remove_file(n5.root().join("v/0/0")).unwrap();
        assert!(client.ask("GET", "/v/0/0", &[]).await.status.contains(" 404 "));
    }
}

#[tokio::test]
async fn a_directory_replaced_by_a_link_out_of_the_container_gets_404() {
    let (n5, outside) = (container(), tempfile::TempDir::new().unwrap());
    let server = serve(&n5, |_| {}).await;
    let mut client = Http1Client::connect(&server).await;
    for _ in 0..3 {
        assert!(client.ask("GET", "/v/0/0", &[]).await.status.contains(" 200 "));
    }
    std::fs::rename(n5.root().join("v"), outside.path().join("v")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("v"), n5.root().join("v")).unwrap();
    let is_gone = wait_until(async || client.ask("GET", "/v/0/0", &[]).await.status.contains(" 404 "));
    let is_gone = tokio::time::timeout(Duration::from_secs(10), is_gone).await;
    assert_eq!(is_gone, Ok(true), "the link is still followed");
}

#[tokio::test]
async fn an_entity_tag_is_valid_until_the_file_changes() {
    let n5 = container();
    let server = serve(&n5, |_| {}).await;
    let mut client = Http1Client::connect(&server).await;
    for round in 0..5 {
        let content = vec![round; 300_000];
        n5.file("v/1/0", &content);
        let_files_settle();
        let response = client.ask("GET", "/v/1/0", &[]).await;
        assert_eq!(response.body, content);
        let etag = response.header("etag").unwrap().to_owned();
        for _ in 0..3 {
            let again = client.ask("GET", "/v/1/0", &[("If-None-Match", &etag)]).await;
            assert!(again.status.contains(" 304 "), "{round}: {}", again.status);
            let other = client.ask("GET", "/v/1/0", &[("If-None-Match", "\"other\"")]).await;
            assert_eq!(other.body, content, "{round}");
            assert!(client.ask("HEAD", "/v/1/0", &[]).await.status.contains(" 200 "));
        }
        n5.file("v/1/0", [round + 1, 7]);
        let changed = client.ask("GET", "/v/1/0", &[("If-None-Match", &etag)]).await;
        assert_eq!(changed.body, [round + 1, 7], "{round}");
    }
}

#[tokio::test]
async fn a_missing_key_may_become_a_directory() {
    let n5 = container();
    let server = serve(&n5, |config| {
        config.cache.recheck_cached_data = RevalidationPolicy::After(Duration::from_millis(300));
    })
    .await;
    let mut client = Http1Client::connect(&server).await;
    for headers in [&[][..], &[UNUSUAL], &[]] {
        assert!(client.ask("GET", "/v/7", headers).await.status.contains(" 404 "));
    }
    std::fs::create_dir(n5.root().join("v/7")).unwrap();
    // Longer than `recheck_cached_data`.
    tokio::time::sleep(Duration::from_millis(400)).await;
    for headers in [&[][..], &[UNUSUAL], &[], &[]] {
        let response = client.ask("GET", "/v/7", headers).await;
        assert!(response.status.contains(" 301 "), "{headers:?}: {}", response.status);
    }
}

#[tokio::test]
async fn evicted_blocks_are_read_again() {
    let n5 = container();
    for block in 0..64 {
        n5.file(&format!("v/9/{block}"), vec![block; 40_000]);
    }
    let server = serve(&n5, |config| config.cache.stored = Some(1 << 20)).await;
    let mut client = Http1Client::connect(&server).await;
    for _ in 0..3 {
        for block in 0..64 {
            let path = format!("/v/9/{block}");
            for method in ["HEAD", "GET", "GET"] {
                let response = client.ask(method, &path, &[]).await;
                assert!(response.status.contains(" 200 "), "{method} {path}: {}", response.status);
                assert!(method == "HEAD" || response.body == vec![block; 40_000], "{path}");
            }
        }
    }
}

/// Bytes of a block that is several times larger than any socket buffer.
const LARGE: usize = 15_000_000;

/// Returns a connection that has requested a large block and reads nothing of it. The kernel sends the block from the
/// file. With `is_cached`, a request that hyper answered has cached the block, and the server sends it from memory.
async fn unread_connection(server: &RunningServer, is_cached: bool, headers: &[(&str, &str)]) -> BufReader<TcpStream> {
    // The kernel sends no file that is so new that another write could go unnoticed.
    let_files_settle();
    retry_if_late(async |deadlines| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        // With a larger buffer, the client's kernel would receive most of the response.
        socket.set_recv_buffer_size(64 << 10).unwrap();
        let mut client = Http1Client(BufReader::new(socket.connect(server.address).await.unwrap()));
        if is_cached {
            // Shorter than any time limit in these tests.
            let _step = deadlines.step(Duration::from_millis(400));
            let response = client.try_ask("GET", "/v/1/1", &[UNUSUAL]).await;
            assert_eq!(response.map_err(|error| error.to_string())?.body.len(), LARGE);
        }
        client.write(&request_head("GET", "/v/1/1", headers)).await;
        Ok(client.0)
    })
    .await
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_disconnected() {
    let n5 = container();
    n5.file("v/1/1", vec![1; LARGE]);
    let server = serve(&n5, |config| config.server.send_timeout = Duration::from_millis(500)).await;
    for is_cached in [false, true] {
        let mut client = unread_connection(&server, is_cached, &[]).await;
        assert!(wait_until(async || open_connections(&server) == 0).await, "the connection stays open");
        let mut received = Vec::new();
        let _ = client.read_to_end(&mut received).await;
        assert!(received.len() < LARGE, "cached: {is_cached}");
    }
}

/// Reads [`LARGE`] bytes, spread evenly over `time`, unless the connection ends earlier. Returns the number of bytes
/// read. Each step should take less than `pause`.
async fn read_slowly(
    client: &mut BufReader<TcpStream>,
    time: Duration,
    deadlines: &DeadlineWatch,
    pause: Duration,
) -> usize {
    let (started, mut received, mut buffer) = (std::time::Instant::now(), 0, vec![0; 1 << 20]);
    while received < LARGE {
        let _step = deadlines.step(pause);
        match client.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) => received += length,
        }
        tokio::time::sleep(time.mul_f64(received as f64 / LARGE as f64).saturating_sub(started.elapsed())).await;
    }
    received
}

#[tokio::test]
async fn a_slow_client_gets_the_whole_file() {
    let n5 = container();
    n5.file("v/1/1", vec![1; LARGE]);
    let limit = Duration::from_millis(1500);
    let server = serve(&n5, |config| config.server.send_timeout = limit).await;
    for is_cached in [false, true] {
        retry_if_late(async |deadlines| {
            let pause = limit.mul_f64(0.8);
            let asking = deadlines.step(pause);
            let mut client = unread_connection(&server, is_cached, &[]).await;
            drop(asking);
            let received = read_slowly(&mut client, 3 * limit, deadlines, pause).await;
            if received >= LARGE { Ok(()) } else { Err(format!("cached: {is_cached}: {received}")) }
        })
        .await;
    }
}

#[tokio::test]
async fn an_idle_connection_gets_the_whole_next_file() {
    let n5 = container();
    n5.file("v/1/1", vec![1; LARGE]);
    let limit = Duration::from_secs(1);
    let server = serve(&n5, |config| config.server.send_timeout = limit).await;
    retry_if_late(async |deadlines| {
        let taking = deadlines.step(limit.mul_f64(0.9));
        let mut client = Http1Client(unread_connection(&server, false, &[]).await);
        assert_eq!(client.read_response("GET").await.map_err(|error| error.to_string())?.body.len(), LARGE);
        drop(taking);
        for _ in 0..3 {
            tokio::time::sleep(2 * limit).await;
            let _taking = deadlines.step(limit.mul_f64(0.9));
            let response = client.try_ask("GET", "/v/1/1", &[]).await;
            assert_eq!(response.map_err(|error| error.to_string())?.body.len(), LARGE);
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_file_evicted_from_the_page_cache_is_sent_completely() {
    let n5 = container();
    let bytes: Vec<u8> = (0..LARGE).map(|n| (n / 1000 % 251) as u8).collect();
    n5.file("v/1/1", &bytes);
    let file = std::fs::File::open(n5.root().join("v/1/1")).unwrap();
    file.sync_all().unwrap();
    let server = serve(&n5, |config| config.cache.stored = Some(0)).await;
    for _ in 0..3 {
        assert_eq!(std::fs::read(n5.root().join("v/1/1")).unwrap(), bytes);
        let mut client = Http1Client(unread_connection(&server, false, &[]).await);
        // Gives the server time to fill the buffers of the connection.
        tokio::time::sleep(Duration::from_millis(100)).await;
        // This has no effect on a file system that keeps its files only in memory.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert!(client.read_response("GET").await.unwrap().body == bytes);
    }
}

#[tokio::test]
async fn a_file_written_while_it_is_sent_is_cut_off() {
    let n5 = container();
    let server = serve(&n5, |config| config.cache.stored = Some(0)).await;
    let path = n5.root().join("v/1/1");
    let mut cut_off = 0;
    for change in ["shorter", "other bytes", "longer"] {
        n5.file("v/1/1", vec![1; LARGE]);
        let mut client = unread_connection(&server, false, &[]).await;
        client.fill_buf().await.unwrap();
        match change {
            "shorter" => std::fs::File::options().write(true).open(&path).unwrap().set_len(5_000_000).unwrap(),
            "other bytes" => std::fs::write(&path, vec![2; LARGE]).unwrap(),
            _ => std::fs::write(&path, vec![2; LARGE + 1]).unwrap(),
        }
        let mut received = Vec::new();
        let _ = client.read_to_end(&mut received).await;
        let head = received.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
        let body = &received[head..];
        // A busy kernel may not tell at once which pages are in memory. Then hyper has read the whole file before.
        let is_whole = *body == vec![1; LARGE];
        assert!(body.len() < LARGE || is_whole, "{change}: {} bytes", body.len());
        cut_off += usize::from(!is_whole);
        // A new connection gets the new content.
        let mut client = Http1Client::connect(&server).await;
        let length = std::fs::metadata(&path).unwrap().len();
        assert_eq!(client.ask("GET", "/v/1/1", &[]).await.body.len() as u64, length, "{change}");
    }
    assert!(cut_off > 0);
}

#[tokio::test]
async fn metadata_changes_do_not_interrupt_sending_a_file() {
    use std::os::unix::fs::PermissionsExt;
    let n5 = container();
    let server = serve(&n5, |config| config.cache.stored = Some(0)).await;
    n5.file("v/1/1", vec![1; LARGE]);
    let path = n5.root().join("v/1/1");
    let changes: [&dyn Fn(); 3] = [
        &|| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap(),
        // Backup programs create hard links.
        &|| std::fs::hard_link(&path, n5.root().join("backup")).unwrap(),
        &|| std::fs::remove_file(&path).unwrap(),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let mut client = Http1Client(unread_connection(&server, false, &[]).await);
        client.0.fill_buf().await.unwrap();
        change();
        assert!(client.read_response("GET").await.unwrap().body == vec![1; LARGE], "{n}");
    }
}

#[tokio::test]
async fn the_end_of_a_file_is_sent_without_delay() {
    let n5 = container();
    let server = serve(&n5, |config| config.cache.stored = Some(0)).await;
    let_files_settle();
    let mut client = Http1Client::connect(&server).await;
    let mut late = 0;
    for _ in 0..25 {
        let started = std::time::Instant::now();
        assert_eq!(client.ask("GET", "/v/1/0", &[]).await.body.len(), 300_000);
        late += usize::from(started.elapsed() > Duration::from_millis(190));
    }
    // If the last bytes were held back, the kernel would send them only after 200 ms, every time.
    assert!(late <= 12, "{late} of 25");
}

#[tokio::test]
async fn shutdown_waits_for_responses_that_have_begun() {
    let n5 = container();
    n5.file("v/1/1", vec![1; LARGE]);
    for (is_cached, headers) in [(false, &[][..]), (true, &[]), (false, &[UNUSUAL])] {
        let server = serve(&n5, |_| {}).await;
        let mut client = unread_connection(&server, is_cached, headers).await;
        client.fill_buf().await.unwrap();
        server.stop.send(()).unwrap();
        // Longer than the time for which the server still accepts connections.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        assert!(received.len() > LARGE, "cached: {is_cached}, {headers:?}, {} bytes", received.len());
        tokio::time::timeout(Duration::from_secs(20), server.ended).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_client_slower_than_the_header_timeout_can_send_another_request() {
    let n5 = container();
    n5.file("v/1/1", vec![1; LARGE]);
    for is_cached in [false, true] {
        let limit = Duration::from_secs(1);
        let server = serve_within(&n5, limit, |_| {}).await;
        retry_if_late(async |deadlines| {
            let asking = deadlines.step(limit.mul_f64(0.9));
            let mut client = Http1Client(unread_connection(&server, is_cached, &[]).await);
            drop(asking);
            tokio::time::sleep(2 * limit).await;
            let _asking = deadlines.step(limit.mul_f64(0.9));
            let describe = |error: io::Error| format!("cached: {is_cached}: {error}");
            assert_eq!(client.read_response("GET").await.map_err(describe)?.body.len(), LARGE);
            assert!(client.try_ask("GET", "/v/0/0", &[]).await.map_err(describe)?.status.contains(" 200 "));
            Ok(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_cached_hole_is_a_hole_for_every_method() {
    let n5 = container();
    let server = serve(&n5, |config| config.cache.recheck_cached_data = RevalidationPolicy::Never).await;
    let mut client = Http1Client::connect(&server).await;
    for headers in [&[][..], &[UNUSUAL]] {
        assert!(client.ask("GET", "/v/0/1", headers).await.status.contains(" 404 "));
    }
    n5.file("v/0/1", "written since");
    let mut statuses = BTreeSet::new();
    for method in ["GET", "HEAD"] {
        for headers in [&[][..], &[UNUSUAL]] {
            statuses.insert(client.ask(method, "/v/0/1", headers).await.status);
        }
    }
    assert_eq!(statuses.len(), 1, "{statuses:?}");
}
