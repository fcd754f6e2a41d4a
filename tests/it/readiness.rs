//! Readiness: `/readyz` is correct, and answers in time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::program::{Connection, Program, ProgramResponse};
use crate::support::stores::Probe;
use crate::support::writer::N5;
use crate::support::{Client, local, options, settings, wait_for_readyz, wait_until_blocking};

/// Requests `/readyz` from the real program until it has this status, for up to 30 s.
fn wait_for_program_readyz(program: &Program, status: u16) -> ProgramResponse {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let reply = program.get("/readyz");
        if reply.status == status {
            return reply;
        }
        assert!(Instant::now() < until, "{}", reply.body);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn hanging_storage_is_probed_once_and_waited_for_briefly() {
    let n5 = N5::new();
    let store = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&store), settings(), options());
    assert_eq!(
        wait_for_readyz(&client, 200).await,
        json!({ "status": "ready", "checks": [{ "check": "container", "name": "", "ok": true }] })
    );
    store.hang();
    let reply = wait_for_readyz(&client, 503).await;
    assert_eq!(reply["checks"][0]["reason"], "its storage does not answer");
    let probes = store.probes();
    // Concurrent requests: each waits briefly, and none for longer than a client would.
    let many = futures_util::future::join_all((0..50).map(|_| client.get("/readyz")));
    let many = tokio::time::timeout(Duration::from_secs(20), many).await.expect("bounded");
    for reply in many {
        assert_eq!((reply.status.as_u16(), reply.problem()), (503, "storage-unavailable".to_owned()));
        assert!(reply.header("retry-after").is_some());
    }
    assert_eq!(store.probes(), probes, "storage was probed again before it had answered");
    assert_eq!(client.get("/healthz").await.status, 200);
    store.wake();
    wait_for_readyz(&client, 200).await;
}

#[tokio::test]
async fn the_result_of_a_probe_is_cached_for_a_second() {
    let n5 = N5::new();
    let store = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&store), settings(), options());
    let began = Instant::now();
    for _ in 0..100 {
        let started = Instant::now();
        let status = client.get("/readyz").await.status;
        // Otherwise this machine stalled for about as long as the server waits for storage.
        assert!(status == 200 || started.elapsed() >= Duration::from_millis(700), "{status}");
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(store.probes() <= seconds + 1, "{} times within {seconds} s", store.probes());
}

#[tokio::test]
async fn a_container_is_unready_while_its_root_is_missing() {
    let n5 = N5::new();
    n5.dataset("v", &[4], &[4], "raw").fill(|_| true, |_| false);
    let (root, away) = (n5.root().join("root"), n5.root().join("away"));
    std::fs::create_dir(&root).unwrap();
    let client = Client::of(&root);
    wait_for_readyz(&client, 200).await;
    std::fs::rename(&root, &away).unwrap();
    let reply = wait_for_readyz(&client, 503).await;
    assert_eq!(
        reply["checks"],
        json!([{ "check": "container", "name": "", "ok": false, "reason": "its directory cannot be read" }])
    );
    assert!(!reply.to_string().contains("root"), "{reply}");
    std::fs::rename(&away, &root).unwrap();
    wait_for_readyz(&client, 200).await;
}

#[test]
fn readyz_does_not_reveal_private_containers() {
    let n5 = N5::new();
    let root = n5.root().display();
    let config = format!(
        "access.rules = [\"/hidden = nobody\"]\n[[containers]]\nname = \"shown\"\nroot = \"{root}\"\n[[containers]]\nname = \"hidden\"\nroot = \"{root}\"\n"
    );
    let reply = wait_for_program_readyz(&Program::start(&config), 200);
    assert!(reply.body.contains("\"shown\"") && !reply.body.contains("hidden"), "{}", reply.body);
    assert_eq!(reply.body.matches("\"ok\":true").count(), 3, "{}", reply.body);
}

#[test]
fn one_ready_container_is_enough_if_configured() {
    let (n5, lost) = (N5::new(), N5::new());
    n5.dataset("v", &[4], &[4], "raw").fill(|_| true, |_| false);
    let root = lost.root().join("root");
    std::fs::create_dir(&root).unwrap();
    let (healthy, missing) = (n5.root().display(), root.display());
    for (setting, status) in [("all", 503), ("any", 200)] {
        let config = format!(
            "server.ready = \"{setting}\"\n[[containers]]\nname = \"a\"\nroot = \"{healthy}\"\n[[containers]]\nname = \"b\"\nroot = \"{missing}\"\n"
        );
        let program = Program::start(&config);
        std::fs::rename(&root, lost.root().join("away")).unwrap();
        // No request for /readyz has been sent yet.
        assert!(wait_until_blocking(|| program.metric("n5_containers_unready") == Some(1.0)), "{setting}");
        let reply = wait_for_program_readyz(&program, status);
        assert!(reply.body.contains("its directory cannot be read"), "{}", reply.body);
        assert_eq!(program.metric("n5_ready"), Some(if status == 200 { 1.0 } else { 0.0 }));
        assert_eq!(program.get("/a/v/0").status, 200);
        std::fs::rename(lost.root().join("away"), &root).unwrap();
    }
}

#[test]
fn a_token_is_not_logged_even_without_access_control() {
    let n5 = N5::new();
    n5.dataset("v", &[4], &[4], "raw").fill(|_| true, |_| false);
    let token = format!("n5t_{}", "0".repeat(64));
    let program =
        Program::start(&format!("log.level = \"info\"\n[[containers]]\nroot = \"{}\"\n", n5.root().display()));
    let paths = [format!("/token/{token}/v/0"), format!("/v/0?access_token={token}"), format!("/{token}/0/0")];
    for path in &paths {
        let reply = program.get(path);
        assert!(!reply.body.contains(&token), "{}", reply.body);
        let line = program.logged("path=");
        assert!(!line.contains(&token) && line.contains("..."), "{line}");
    }
}

#[test]
fn a_stopping_server_serves_requests_during_the_drain_delay() {
    let n5 = N5::new();
    n5.dataset("v", &[4], &[4], "raw").fill(|_| true, |_| false);
    let config = format!("server.drain_delay = \"10s\"\n[[containers]]\nroot = \"{}\"\n", n5.root().display());
    let mut program = Program::start(&config);
    let mut open = program.connect();
    wait_for_program_readyz(&program, 200);
    assert_eq!(open.get("/v/0", "").unwrap().status, 200);
    let signalled = Instant::now();
    program.signal(rustix::process::Signal::TERM);
    program.logged("not ready any more");
    let shortest = (0..8).map(|_| {
        let started = Instant::now();
        let reply = program.get("/readyz");
        assert_eq!(reply.status, 503);
        assert!(reply.body.contains("shutting down"), "{}", reply.body);
        started.elapsed()
    });
    // This 503 reaches a load balancer at once: the delay of other rejections does not apply to it.
    assert!(shortest.min() < Some(Duration::from_millis(250)));
    assert_eq!(open.get("/v/0", "").unwrap().status, 200);
    assert_eq!(program.get("/v/0").status, 200);
    assert!(program.child.wait().unwrap().success());
    assert!(signalled.elapsed() >= Duration::from_secs(10), "{:?}", signalled.elapsed());
}

#[test]
fn clients_accepted_before_shutdown_are_answered() {
    let n5 = N5::new();
    n5.dataset("v", &[4], &[4], "raw").fill(|_| true, |_| false);
    let config = format!("server.drain_delay = \"0s\"\n[[containers]]\nroot = \"{}\"\n", n5.root().display());
    let mut program = Program::start(&config);
    wait_for_program_readyz(&program, 200);
    // The kernel accepts connections while the program is stopped.
    program.signal(rustix::process::Signal::STOP);
    let mut clients: Vec<_> = (0..100)
        .map(|n| {
            let mut client = program.connect();
            // The fast path answers half of the requests, hyper the other half.
            client.ask(if n % 2 == 0 { "/v/0" } else { "/slice/v" });
            client
        })
        .collect();
    program.signal(rustix::process::Signal::TERM);
    program.signal(rustix::process::Signal::CONT);
    let answered = clients.iter_mut().filter_map(Connection::read_response).filter(|reply| reply.status == 200).count();
    assert_eq!(answered, clients.len());
    assert!(program.child.wait().unwrap().success());
}

#[test]
fn a_disconnected_client_is_counted() {
    let n5 = N5::new();
    n5.dataset("v", &[1024, 1024], &[256, 256], "gzip").fill(|_| true, |_| false);
    let program = Program::start(&format!("[[containers]]\nroot = \"{}\"\n", n5.root().display()));
    let count = || program.metric("n5_requests_cancelled_total{stage=\"waiting\"}").unwrap_or(0.0);
    assert!(count() < 1.0);
    let until = Instant::now() + Duration::from_secs(30);
    for pause in (1..20).cycle() {
        if count() >= 1.0 {
            return;
        }
        assert!(Instant::now() < until, "{:?}", program.metric("n5_requests_cancelled_total"));
        let mut client = program.connect();
        client.ask("/slice/v?format=png");
        std::thread::sleep(Duration::from_millis(pause));
    }
}
