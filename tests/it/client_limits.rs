//! Limits for each client, with the real program and real sockets: connections, concurrent requests, bytes per second.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::program::{Connection, Program, ProgramResponse};
use crate::support::wait_until_blocking;
use crate::support::writer::N5;

/// A slice that is larger than the buffers of the sockets.
const LARGE: &str = "/slice/v?start=0,0&size=4000,4000&outside=zero";

fn volume() -> N5 {
    let n5 = N5::new();
    n5.dataset("v", &[1024, 1024], &[512, 512], "raw").fill(|_| true, |_| false);
    n5
}

fn config_for(n5: &N5, more: &str) -> String {
    format!("{more}\n[[containers]]\nroot = \"{}\"\n", n5.root().display())
}

fn status(connection: &mut Connection, path: &str) -> Option<u16> {
    connection.get(path, "").map(|reply| reply.status)
}

#[test]
fn the_longest_idle_connection_of_an_address_is_evicted() {
    let n5 = volume();
    let config = |most: usize| {
        config_for(&n5, &format!("clients.connections = {most}\nserver.trusted_proxies = [\"127.0.0.4\"]"))
    };
    let program = Program::start(&config(3));
    let open = |address: &str| {
        let mut connection = program.connect_from(address);
        (status(&mut connection, "/v/attributes.json"), connection)
    };
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(open("127.0.0.2"));
        // A connection becomes idle a moment after its client has the response.
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(held.iter().all(|(status, _)| *status == Some(200)));
    // This makes the second connection the one that has been idle for longest.
    assert_eq!(status(&mut held[0].1, "/v/0/0"), Some(200));
    std::thread::sleep(Duration::from_millis(50));
    let (fourth, _kept) = open("127.0.0.2");
    assert_eq!(fourth, Some(200));
    let open_still: Vec<_> = held.iter_mut().map(|(_, connection)| status(connection, "/v/0/0")).collect();
    assert_eq!(open_still, [Some(200), None, Some(200)]);
    assert_eq!(program.metric("n5_connections_closed_total{reason=\"evicted\"}"), Some(1.0));
    // Other addresses are served. The limit does not apply to trusted proxies, which connect for many clients.
    let others: Vec<_> = ["127.0.0.3"; 3].into_iter().chain(["127.0.0.4"; 9]).map(open).collect();
    assert!(others.iter().all(|(status, _)| *status == Some(200)));
    assert!(program.reload(&config(0)).contains("configuration read again"));
    let unlimited: Vec<_> = (0..5).map(|_| open("127.0.0.2")).collect();
    assert!(unlimited.iter().all(|(status, _)| *status == Some(200)));
    assert_eq!(program.metric("n5_connections_closed_total{reason=\"refused\"}"), Some(0.0));
}

#[test]
fn a_connection_beyond_the_limit_of_its_address_waits_and_is_then_refused() {
    let n5 = volume();
    let program = Program::start(&config_for(&n5, "clients.connections = 2\nserver.header_timeout = \"2s\""));
    let mut busy: Vec<_> = (0..2)
        .map(|_| {
            let mut connection = program.connect_from("127.0.0.2");
            connection.ask(LARGE);
            connection.head().unwrap();
            connection
        })
        .collect();
    let mut waits = program.connect_from("127.0.0.2");
    waits.ask("/v/0/0");
    assert!(wait_until_blocking(|| program.metric("n5_queue_waiting{queue=\"connection\"}") == Some(1.0)));
    assert_eq!(program.connect_from("127.0.0.3").get("/v/0/0", "").unwrap().status, 200);
    busy.pop();
    assert_eq!(waits.read_response().unwrap().status, 200, "a permit is passed on");
    waits.ask(LARGE);
    waits.head().unwrap();
    assert_eq!(program.connect_from("127.0.0.2").get("/v/0/0", ""), None);
    let line = program.logged("connection refused");
    assert!(line.contains("127.0.0.2") && line.contains("clients.connections"), "{line}");
    assert_eq!(program.metric("n5_connections_closed_total{reason=\"refused\"}"), Some(1.0));
}

#[test]
fn one_address_cannot_take_all_connections() {
    let n5 = volume();
    let program = Program::start(&config_for(&n5, "server.max_connections = 8"));
    let mut held: Vec<_> = (0..8).map(|_| program.connect_from("127.0.0.2")).collect();
    let statuses: Vec<_> = held.iter_mut().map(|connection| status(connection, "/healthz")).collect();
    assert_eq!(statuses, [Some(200), Some(200), Some(200), Some(200), Some(200), Some(200), None, None]);
    assert_eq!(program.get("/healthz").status, 200);
}

#[test]
fn a_request_beyond_the_clients_limit_waits_and_then_gets_429() {
    let n5 = volume();
    let program = Program::start(&config_for(&n5, "clients.concurrent_requests = 1\nlimits.budget_wait = \"300ms\""));
    let mut reading = program.connect_from("127.0.0.2");
    reading.ask(LARGE);
    // The request is in flight until its client reads the last byte of the response.
    assert!(wait_until_blocking(|| program
        .metric("n5_budget_bytes{budget=\"slice\"}")
        .is_some_and(|bytes| bytes > 0.0)));
    let refused = program.connect_from("127.0.0.2").get("/slice/v?size=4,4", "").unwrap();
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.header("retry-after").is_some() && refused.body.contains("#too-many"), "{refused:?}");
    assert_eq!(program.connect_from("127.0.0.3").get("/slice/v?size=4,4", "").unwrap().status, 200);
    assert_eq!(program.metric("n5_requests_shed_total{reason=\"client\"}"), Some(1.0));
    assert_eq!(program.metric("n5_queue_wait_duration_seconds_count{queue=\"client\"}"), Some(1.0));
    assert_eq!(reading.read_response().unwrap().status, 200);
    // The request releases its permit a moment after its response.
    assert!(wait_until_blocking(
        || program.connect_from("127.0.0.2").get("/slice/v?size=4,4", "").unwrap().status == 200
    ));
}

#[test]
fn a_waiting_request_is_cancelled_on_reset_even_if_another_is_pipelined() {
    let n5 = volume();
    let patient = "limits.budget_wait = \"300s\"\nserver.send_timeout = \"300s\"";
    let program = Program::start(&config_for(&n5, &format!("clients.concurrent_requests = 1\n{patient}")));
    let mut reading = program.connect_from("127.0.0.2");
    reading.ask(LARGE);
    assert!(wait_until_blocking(|| program
        .metric("n5_budget_bytes{budget=\"slice\"}")
        .is_some_and(|bytes| bytes > 0.0)));
    let mut waiting = program.connect_from("127.0.0.2");
    waiting.ask_all(&["/slice/v?size=4,4", "/slice/v?size=5,5"]);
    assert!(wait_until_blocking(|| program.metric("n5_queue_waiting{queue=\"client\"}") == Some(1.0)));
    waiting.reset();
    assert!(wait_until_blocking(|| program.metric("n5_queue_waiting{queue=\"client\"}") == Some(0.0)));
}

#[test]
fn the_rate_limit_slows_responses_without_losing_bytes() {
    let n5 = volume();
    let free = Program::start(&config_for(&n5, ""));
    let slowed = Program::start(&config_for(&n5, "clients.bytes_per_second = \"2MiB\"\nclients.burst = \"512KiB\""));
    // Requests a slice of 2 MiB, and then stored blocks of the same total size.
    for paths in [&["/slice/v"; 1][..], &["/v/0/0", "/v/1/0", "/v/0/1", "/v/1/1"]] {
        let expected: Vec<_> = paths.iter().map(|path| free.get(path)).collect();
        let bytes: usize = expected.iter().map(ProgramResponse::length).sum();
        // Each case uses an address that has not received anything yet, so that its burst is unused.
        let mut connection = slowed.connect_from(if paths.len() == 1 { "127.0.0.2" } else { "127.0.0.3" });
        let started = Instant::now();
        for (path, expected) in paths.iter().zip(&expected) {
            assert_eq!(connection.get(path, "").unwrap().body, expected.body, "{path}");
        }
        let least = Duration::from_secs_f64((bytes - (512 << 10) - (64 << 10)) as f64 / f64::from(2 << 20));
        assert!(started.elapsed() >= least, "{bytes} bytes in {:?}", started.elapsed());
    }
    assert!(slowed.metric("n5_queue_wait_duration_seconds_count{queue=\"rate\"}") >= Some(1.0));
    assert_eq!(free.metric("n5_queue_wait_duration_seconds_count{queue=\"rate\"}"), None);
}

/// Returns the status of a small slice. Repeats the request while the status is 503, and counts that in `refused`: an
/// earlier request keeps its permit for a moment after its response.
fn retry_until_admitted(connection: &mut Connection, refused: &AtomicUsize) -> u16 {
    let mut status = 503;
    let is_admitted = wait_until_blocking(|| {
        status = connection.get("/slice/v?size=4,4", "").unwrap().status;
        refused.fetch_add(usize::from(status == 503), Ordering::Relaxed);
        status != 503
    });
    assert!(is_admitted, "the permit is never returned");
    status
}

#[test]
fn a_request_waiting_for_its_own_client_takes_no_permit_from_others() {
    let n5 = volume();
    // No wait ends within the time that this test takes.
    let program = Program::start(&config_for(
        &n5,
        "clients.concurrent_requests = 1\nlimits.concurrent_requests = 2\nlimits.budget_wait = \"60s\"",
    ));
    let mut reading = program.connect_from("127.0.0.2");
    reading.ask(LARGE);
    assert!(wait_until_blocking(|| program
        .metric("n5_budget_bytes{budget=\"slice\"}")
        .is_some_and(|bytes| bytes > 0.0)));
    let mut waiting = program.connect_from("127.0.0.2");
    let refused = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&refused);
    let waiting = std::thread::spawn(move || retry_until_admitted(&mut waiting, &counted));
    assert!(wait_until_blocking(|| program.metric("n5_queue_waiting{queue=\"client\"}") == Some(1.0)));
    let refused_before = refused.load(Ordering::Relaxed);
    // Three requests are in flight: these two, and the one for the metrics.
    assert!(wait_until_blocking(|| program.metric("n5_http_requests_in_flight") == Some(3.0)));
    // A client may have one waiting request here. This client already has one.
    assert_eq!(retry_until_admitted(&mut program.connect_from("127.0.0.2"), &AtomicUsize::new(0)), 429);
    // The last requests release their permits a moment after their responses.
    let is_free = || program.connect_from("127.0.0.3").get("/slice/v?size=4,4", "").unwrap().status == 200;
    assert!(wait_until_blocking(is_free));
    assert!(wait_until_blocking(|| program.metric("n5_http_requests_in_flight") == Some(3.0)));
    assert_eq!(reading.read_response().unwrap().status, 200);
    assert_eq!(waiting.join().unwrap(), 200);
    // The waiter got its permit without another 503.
    assert_eq!(refused.load(Ordering::Relaxed), refused_before);
}

#[test]
fn requests_beyond_the_concurrency_limit_wait_and_are_answered() {
    let n5 = volume();
    let program = Program::start(&config_for(&n5, "limits.concurrent_requests = 1"));
    let mut reading = program.connect_from("127.0.0.2");
    reading.ask(LARGE);
    assert_eq!(reading.head().unwrap().status, 200);
    let mut waiting: Vec<_> = (0..50).map(|_| program.connect_from("127.0.0.2")).collect();
    for connection in &mut waiting {
        connection.ask("/slice/v?size=4,4");
    }
    assert!(wait_until_blocking(|| program.metric("n5_queue_waiting{queue=\"request\"}") > Some(40.0)));
    drop(reading);
    assert!(waiting.iter_mut().all(|connection| connection.read_response().unwrap().status == 200));
    assert_eq!(program.metric("n5_requests_shed_total{reason=\"requests\"}"), Some(0.0));
}

#[test]
fn immediate_retries_after_a_refusal_are_delayed() {
    let n5 = volume();
    let program = Program::start(&config_for(&n5, "limits.concurrent_requests = 1\nlimits.budget_wait = \"50ms\""));
    let mut reading = program.connect_from("127.0.0.2");
    reading.ask(LARGE);
    assert_eq!(reading.head().unwrap().status, 200);
    let mut refused = program.connect_from("127.0.0.2");
    let started = Instant::now();
    for _ in 0..4 {
        let reply = refused.get("/slice/v?size=4,4", "").unwrap();
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{reply:?}");
    }
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    // Requests whose rejection is delayed hold no permit.
    let mut others: Vec<_> = (0..8).map(|_| program.connect_from("127.0.0.2")).collect();
    for other in &mut others {
        other.ask("/slice/v?size=4,4");
    }
    drop(reading);
    assert!(wait_until_blocking(
        || program.connect_from("127.0.0.3").get("/slice/v?size=4,4", "").unwrap().status == 200
    ));
}

#[test]
fn delayed_refusals_are_sent_at_shutdown() {
    let n5 = volume();
    let mut program = Program::start(&config_for(
        &n5,
        "limits.concurrent_requests = 1\nlimits.budget_wait = \"50ms\"\nserver.drain_delay = \"0s\"",
    ));
    let mut reading = program.connect_from("127.0.0.2");
    reading.ask(LARGE);
    assert_eq!(reading.head().unwrap().status, 200);
    let mut others: Vec<_> = (0..8).map(|_| program.connect_from("127.0.0.2")).collect();
    for other in &mut others {
        other.ask("/slice/v?size=4,4");
    }
    // Each attempt sends one more request, as the earlier ones may be answered by then.
    assert!(wait_until_blocking(|| {
        let mut other = program.connect_from("127.0.0.2");
        other.ask("/slice/v?size=4,4");
        others.push(other);
        program.metric("n5_queue_waiting{queue=\"refused\"}") > Some(0.0)
    }));
    program.signal(rustix::process::Signal::TERM);
    for other in &mut others {
        assert_eq!(other.read_response().unwrap().status, 503);
    }
    drop(reading);
    assert!(program.child.wait().unwrap().success());
}

#[test]
fn a_rate_limited_response_holds_little_memory() {
    let n5 = volume();
    let program = Program::start(&config_for(
        &n5,
        "clients.bytes_per_second = \"256KiB\"\nclients.burst = \"64KiB\"\nlimits.slice_budget = \"16MiB\"\n\
         limits.budget_wait = \"1s\"",
    ));
    let large = "/slice/v?start=0,0&size=2048,3000&outside=zero";
    let mut clients: Vec<_> = (2..5).map(|n| program.connect_from(&format!("127.0.0.{n}"))).collect();
    for client in &mut clients {
        client.ask(large);
        let reply = client.head().unwrap();
        assert_eq!((reply.status, reply.length()), (200, 2048 * 3000 * 2));
    }
    // Each client may hold at most three bands, and the memory that loading a band takes.
    let held = program.metric("n5_budget_bytes{budget=\"slice\"}").unwrap();
    assert!(held > 0.0 && held <= (clients.len() * ((3 << 20) + (128 << 10))) as f64, "{held}");
    assert_eq!(program.connect_from("127.0.0.9").get("/slice/v?size=100,100", "").unwrap().status, 200);
}

/// Creates eight uncompressed blocks of 12 MiB. All elements of a block are its number.
fn large_blocks() -> N5 {
    let n5 = N5::new();
    let attributes = serde_json::json!({
        "dimensions": [4096, 8 * 3072], "blockSize": [4096, 3072], "dataType": "uint8", "compression": { "type": "raw" },
    });
    n5.file("v/attributes.json", attributes.to_string());
    for number in 0..8u8 {
        let mut block = vec![0, 0, 0, 2, 0, 0, 16, 0, 0, 0, 12, 0];
        block.resize(12 + (12 << 20), number);
        n5.file(&format!("v/0/{number}"), block);
    }
    n5
}

fn start_with_small_budgets(n5: &N5, wait: &str) -> Program {
    let budgets = "limits.slice_budget = \"32MiB\"\nlimits.decode_budget = \"32MiB\"\nlimits.transfer_budget = \"16MiB\"\n\
         cache.decoded = \"16MiB\"\ncache.stored = \"24MiB\"";
    Program::start(&config_for(n5, &format!("{budgets}\nlimits.budget_wait = \"{wait}\"")))
}

/// Returns paths that one client requests without reading the responses: whole slices, streamed slices, stored blocks,
/// cached decoded blocks, chunks, text.
fn unread_requests() -> Vec<(&'static str, Vec<String>)> {
    let each = |path: fn(u64) -> String| (0..8).map(path).collect();
    vec![
        ("whole slices", each(|n| format!("/slice/v?start=0,{}&size=4096,2500", n * 2500))),
        ("streamed slices", each(|n| format!("/slice/v?start=0,{n}&size=4096,20000"))),
        ("stored blocks", each(|n| format!("/v/0/{n}"))),
        ("decoded blocks", each(|n| format!("/slice/v?start=0,{}&size=4096,3072", n * 3072))),
        ("chunks", each(|n| format!("/zarr3/v/c/{n}/0"))),
        ("text", each(|n| format!("/slice/v?start=0,{n}&size=1500,1500&format=json"))),
    ]
}

#[test]
fn a_client_that_reads_nothing_blocks_no_route_for_other_clients() {
    let n5 = large_blocks();
    for (kind, paths) in unread_requests() {
        let program = start_with_small_budgets(&n5, "3s");
        let mut slow: Vec<_> = paths.iter().map(|_| program.connect_from("127.0.0.2")).collect();
        for (connection, path) in slow.iter_mut().zip(&paths) {
            connection.ask(path);
        }
        // The budgets suffice for some of the responses. The other requests wait for them.
        let heads: Vec<_> = slow.iter_mut().take(2).filter_map(Connection::head).collect();
        assert_eq!(heads.len(), 2, "{kind}");
        for path in [
            "/slice/v?start=7,7&size=300,300",
            "/slice/v?start=0,9000&size=4096,4096",
            "/slice/v?start=0,3072&size=4096,3072",
            "/slice/v?start=9,9&size=900,900&format=png",
            "/slice/v?start=9,9&size=300,300&format=json",
            "/v/attributes.json",
            "/v/0/7",
            "/v/0/1",
            "/zarr3/v/c/5/0",
            "/zarr2/v/6/0",
            "/as/raw/v/0/4",
            "/info/v",
            "/v/?format=json",
        ] {
            let started = Instant::now();
            let reply = program.connect_from("127.0.0.3").get(path, "");
            let status = reply.as_ref().map(|reply| reply.status);
            assert_eq!(status, Some(200), "{kind}: {path} after {:?}: {reply:.300?}", started.elapsed());
        }
    }
}

#[test]
fn a_single_client_gets_all_its_concurrent_requests() {
    let n5 = large_blocks();
    let program = start_with_small_budgets(&n5, "30s");
    for (kind, paths) in unread_requests() {
        let mut connections: Vec<_> = paths.iter().map(|_| program.connect_from("127.0.0.2")).collect();
        for (connection, path) in connections.iter_mut().zip(&paths) {
            connection.ask(path);
        }
        let readers: Vec<_> = connections
            .into_iter()
            .map(|mut connection| std::thread::spawn(move || connection.read_response().map(|reply| reply.status)))
            .collect();
        let statuses: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        assert!(statuses.iter().all(|status| *status == Some(200)), "{kind}: {statuses:?}");
    }
}

#[test]
fn unread_large_objects_do_not_block_stored_blocks_for_other_clients() {
    let n5 = N5::new();
    n5.dataset("v", &[4, 4], &[4, 4], "raw");
    n5.file("v/0/0", vec![1; 17 << 20]);
    for number in 1..32 {
        n5.file(&format!("v/0/{number}"), vec![2; 1 << 20]);
    }
    let budgets = "cache.stored = \"8MiB\"\nlimits.transfer_budget = \"4MiB\"\nlimits.budget_wait = \"3s\"";
    let program = Program::start(&config_for(&n5, budgets));
    // The query keeps the request off the fast path. The general path caches the block.
    let stored = |number: u64| program.connect_from("127.0.0.3").get(&format!("/v/0/{number}?x=1"), "").unwrap();
    for number in 1..16 {
        assert_eq!(stored(number).status, 200);
    }
    let mut slow: Vec<_> = (0..40).map(|_| program.connect_from("127.0.0.2")).collect();
    for connection in &mut slow {
        connection.ask("/v/0/0");
    }
    assert!(wait_until_blocking(|| program.metric("n5_budget_bytes{budget=\"transfer\"}") > Some(f64::from(11 << 20))));
    for number in 16..32 {
        let reply = stored(number);
        assert_eq!((reply.status, reply.length()), (200, 1 << 20), "{number}: {reply:.300?}");
    }
}

#[test]
fn small_slices_overtake_a_large_one_that_waits_for_slow_clients() {
    let n5 = large_blocks();
    let program = start_with_small_budgets(&n5, "20s");
    let waiting = || program.metric("n5_queue_waiting{queue=\"slice\"}");
    let mut slow = ["127.0.0.2", "127.0.0.3"].map(|client| program.connect_from(client));
    for connection in &mut slow {
        connection.ask("/slice/v?start=0,2500&size=4096,2500");
        assert!(connection.head().is_some());
    }
    let mut large = program.connect_from("127.0.0.4");
    large.ask("/slice/v?start=0,9000&size=4096,3000&format=png");
    assert!(wait_until_blocking(|| waiting() == Some(1.0)));
    for _ in 0..3 {
        assert_eq!(program.connect_from("127.0.0.5").get("/slice/v?start=7,7&size=300,300", "").unwrap().status, 200);
    }
    assert_eq!(waiting(), Some(1.0), "the large slice no longer waits");
    drop(slow);
    assert_eq!(large.read_response().unwrap().status, 200);
}

#[test]
fn unread_large_slices_leave_memory_for_small_ones() {
    let n5 = large_blocks();
    let program = start_with_small_budgets(&n5, "3s");
    let mut slow: Vec<_> = (2..12).map(|n| program.connect_from(&format!("127.0.0.{n}"))).collect();
    // Four of these slices would take the whole budget. Images cannot be sent in bands, so they wait.
    for connection in &mut slow[..3] {
        connection.ask("/slice/v?start=0,2500&size=4096,2048");
        assert_eq!(connection.head().unwrap().status, 200);
    }
    for connection in &mut slow[3..] {
        connection.ask("/slice/v?start=0,2500&size=4096,2048&format=png");
    }
    assert!(wait_until_blocking(|| program.metric("n5_queue_waiting{queue=\"slice\"}") == Some(7.0)));
    for _ in 0..10 {
        let reply = program.connect_from("127.0.0.100").get("/slice/v?start=7,7&size=300,300", "").unwrap();
        assert_eq!(reply.status, 200, "{reply:.300?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn short_listings_do_not_wait_for_slow_clients() {
    let n5 = large_blocks();
    for number in 0..2000 {
        n5.file(&format!("many/{number}/attributes.json"), "{}");
    }
    let program = Program::start(&config_for(&n5, "limits.slice_budget = \"16MiB\"\nlimits.budget_wait = \"1s\""));
    let mut slow: Vec<_> = (2..12).map(|n| program.connect_from(&format!("127.0.0.{n}"))).collect();
    for connection in &mut slow {
        connection.ask("/slice/v?size=4096,20000");
    }
    // Less memory is free than a page of 10,000 entries takes.
    let held = || program.metric("n5_budget_bytes{budget=\"slice\"}").unwrap_or_default();
    assert!(wait_until_blocking(|| held() > 10e6), "{} bytes", held());
    let list = |path| {
        let reply = program.connect_from("127.0.0.100").get(path, "").unwrap();
        (reply.status, reply.body.matches("\"name\"").count())
    };
    assert_eq!(list("/?format=json"), (200, 3));
    assert_eq!(list("/v/?format=json"), (200, 1));
    // The slow clients' slices may not have taken their memory yet.
    assert!(wait_until_blocking(|| list("/many/?format=json").0 == 503));
    drop(slow);
    assert_eq!(list("/many/?format=json"), (200, 2000));
}

#[test]
fn clients_take_turns_at_storage_calls() {
    let n5 = volume();
    let big = n5.root().join("big");
    std::fs::create_dir(&big).unwrap();
    for n in 0..20_000 {
        std::os::unix::fs::symlink("../v", big.join(format!("{n:05}"))).unwrap();
    }
    let program = Program::start(&config_for(&n5, ""));
    let mut greedy: Vec<_> = (0..300).map(|_| program.connect_from("127.0.0.2")).collect();
    for connection in &mut greedy {
        connection.ask("/info/big");
    }
    let answered = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = greedy
        .into_iter()
        .map(|mut connection| {
            let answered = Arc::clone(&answered);
            std::thread::spawn(move || {
                let status = connection.head().map(|reply| reply.status);
                answered.fetch_add(1, Ordering::Relaxed);
                status
            })
        })
        .collect();
    assert!(wait_until_blocking(|| answered.load(Ordering::Relaxed) > 0));
    let mut other = program.connect_from("127.0.0.3");
    for path in ["/v/0/0", "/v/1/1", "/v/?format=json", "/info/v", "/slice/v?start=5,5&size=600,600"] {
        let before = answered.load(Ordering::Relaxed);
        assert_eq!(status(&mut other, path), Some(200), "{path}");
        let meanwhile = answered.load(Ordering::Relaxed) - before;
        assert!(meanwhile <= 40, "{path} waited for {meanwhile} responses to the other client");
    }
    for reader in readers {
        assert_eq!(reader.join().unwrap(), Some(200));
    }
}
