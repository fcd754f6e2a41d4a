//! Expensive blocks, damaged or slow to decode, and their effect on other clients.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use bzip2::Compression;
use bzip2::write::BzEncoder;
use http_body_util::BodyExt;
use metrics_exporter_prometheus::PrometheusHandle;
use n5_server::container::Settings;

use crate::support::stores::Probe;
use crate::support::writer::N5;
use crate::support::{Client, load_metrics, local, options, settings, wait_until};

const MIB: u64 = 1 << 20;

/// Longer than the second for which a read keeps its memory although other requests wait for memory.
const UNTIL_SLOW: Duration = Duration::from_millis(1200);

/// Writes a dataset of one block of `len` bytes, stored as `payload`.
fn write_block(n5: &N5, path: &str, len: usize, payload: &[u8]) {
    let attributes = serde_json::json!({
        "dimensions": [len], "blockSize": [len], "dataType": "uint8", "compression": {"type": "bzip2", "blockSize": 9},
    });
    n5.file(&format!("{path}/attributes.json"), attributes.to_string());
    let header = [&[0, 0, 0, 1][..], &u32::try_from(len).unwrap().to_be_bytes()].concat();
    n5.file(&format!("{path}/0"), [&header, payload].concat());
}

fn bzip2(data: &[u8]) -> Vec<u8> {
    let mut encoder = BzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// Writes a valid block that takes at least `twentieths` / 20 s of a core to decode. Returns its decoded length.
fn write_slow_block(n5: &N5, path: &str, twentieths: usize) -> usize {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    let data: Vec<u8> = (0..890_000).map(|_| next()).collect();
    write_block(n5, path, twentieths * data.len(), &bzip2(&data).repeat(twentieths));
    twentieths * data.len()
}

fn generous_settings() -> Settings {
    Settings { decode_budget: 256 * MIB, slice_budget: 128 * MIB, ..settings() }
}

fn metric_sum(handle: &PrometheusHandle, name: &str) -> u64 {
    let text = handle.render();
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

fn ask(client: &Client, address: &str, path: &str) -> tokio::task::JoinHandle<u16> {
    let mut request = Request::get(path).header("host", "x").body(Body::empty()).unwrap();
    request.extensions_mut().insert(ConnectInfo(Some(address.parse::<IpAddr>().unwrap())));
    let client = client.clone();
    tokio::spawn(async move {
        let response = client.ask(request).await;
        let status = response.status().as_u16();
        response.into_body().collect().await.unwrap();
        status
    })
}

/// Decoding all members of this block would take 20 s of processor time, and another 20 s for every further request.
#[tokio::test]
async fn a_corrupt_block_is_decoded_once_until_its_file_changes() {
    let recorder = load_metrics::recorder();
    let _counted = metrics::set_default_local_recorder(&recorder);
    let n5 = N5::new();
    let empty = bzip2(&[]);
    assert_eq!(empty.len(), 14);
    write_block(&n5, "bad", 1000, &empty.repeat(15_000_000 / 14));
    let probe = Probe::new(local(n5.root()));
    let client =
        Client::new(Arc::<Probe>::clone(&probe), Settings { decode_budget: 32 * MIB, ..settings() }, options());
    let first = client.get("/slice/bad").await;
    assert_eq!((first.status.as_u16(), first.problem().as_str()), (422, "corrupt-block"));
    let text = first.json()["detail"].as_str().unwrap().to_owned();
    assert!(text.contains("its first 64 members hold only 0 bytes"), "{text}");
    assert_eq!(metric_sum(&recorder.handle(), "n5_decode_errors_total"), 1);
    let gets = probe.gets();
    for path in ["/slice/bad", "/slice/bad?start=5&size=1", "/zarr3/bad/c/0", "/stats/bad"] {
        let again = client.get(path).await;
        assert_eq!(again.status, 422, "{path}");
        assert!(String::from_utf8_lossy(&again.body).contains("hold only 0 bytes"), "{path}: {:?}", again.body);
    }
    assert_eq!((probe.gets() - gets, metric_sum(&recorder.handle(), "n5_decode_errors_total")), (0, 1));
    // The error is cached only for this version of the file.
    write_block(&n5, "bad", 1000, &bzip2(&[7; 1000]));
    let mended = client.get("/slice/bad").await;
    assert_eq!((mended.status.as_u16(), &mended.body[..]), (200, &[7; 1000][..]));
    fs::remove_file(n5.root().join("bad/0")).unwrap();
    assert_eq!(&client.get("/slice/bad").await.body[..], &[0; 1000][..]);
}

#[tokio::test]
async fn a_slow_read_releases_its_memory_to_waiting_requests() {
    let n5 = N5::new();
    write_block(&n5, "v", 1000, &bzip2(&[7; 1000]));
    write_block(&n5, "w", 1000, &bzip2(&[8; 1000]));
    let probe = Probe::new(local(n5.root()));
    // The transfer budget suffices for one read at a time while the length of the object is unknown.
    let small = Settings { stored_cache: 0, transfer_budget: 100 << 10, ..settings() };
    let client = Client::new(Arc::<Probe>::clone(&probe), small, options());
    let get = |path| {
        let client = client.clone();
        tokio::spawn(async move { client.get(path).await })
    };
    // A slow read keeps its memory if no request waits for it.
    probe.close();
    let alone = get("/v/0");
    assert!(wait_until(async || probe.waiting() == 1).await, "it is read");
    tokio::time::sleep(UNTIL_SLOW).await;
    probe.open();
    assert_eq!(alone.await.unwrap().status, 200);
    assert_eq!(probe.inline_bytes(), [64 << 10]);
    probe.close();
    let first = get("/slice/v");
    assert!(wait_until(async || probe.waiting() == 1).await, "the first is read");
    tokio::time::sleep(UNTIL_SLOW).await;
    let second = get("/slice/w");
    assert!(wait_until(async || probe.waiting() == 2).await, "the second has its memory");
    probe.open();
    for (response, value) in [(first, 7), (second, 8)] {
        let response = response.await.unwrap();
        assert_eq!((response.status.as_u16(), &response.body[..]), (200, &[value; 1000][..]));
    }
    // The first request only opened its object, and read it after it had memory again.
    let len = fs::metadata(n5.root().join("v/0")).unwrap().len();
    assert_eq!(probe.inline_bytes(), [0, len, 64 << 10, 64 << 10]);
}

/// Errors that may be temporary are not cached.
#[tokio::test]
async fn store_errors_are_not_cached() {
    let n5 = N5::new();
    write_block(&n5, "a", 1000, &bzip2(&[7; 1000]));
    let probe = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&probe), settings(), options());
    assert_eq!(client.get("/info/a").await.status, 200);
    probe.fail(4);
    assert!(client.get("/slice/a").await.status.is_server_error());
    probe.fail(0);
    assert_eq!(client.get("/slice/a").await.status, 200);
}

#[tokio::test]
async fn decoding_is_cancelled_when_no_request_waits_for_it() {
    let recorder = load_metrics::recorder();
    let _counted = metrics::set_default_local_recorder(&recorder);
    let n5 = N5::new();
    let len = write_slow_block(&n5, "slow", 50);
    let client = Client::new(local(n5.root()), generous_settings(), options());
    let cpu = client.container.resources().cpu().clone();
    let leaves = ask(&client, "192.0.2.1", "/slice/slow");
    assert!(wait_until(async || cpu.running() > 0).await, "it is decoded");
    leaves.abort();
    assert!(leaves.await.is_err());
    assert!(wait_until(async || cpu.running() == 0).await, "it is given up");
    assert_eq!(metric_sum(&recorder.handle(), "n5_blocks_decoded_total"), 0);
    assert_eq!(metric_sum(&recorder.handle(), "n5_decode_errors_total"), 0);
    // The cancelled decoding leaves no error behind. A request that comes soon enough joins the one that has begun.
    let leaves = ask(&client, "192.0.2.1", "/slice/slow");
    assert!(wait_until(async || cpu.running() > 0).await, "it is decoded again");
    leaves.abort();
    assert!(leaves.await.is_err());
    let reply = client.get("/slice/slow").await;
    assert_eq!((reply.status.as_u16(), reply.body.len()), (200, len));
    assert_eq!(metric_sum(&recorder.handle(), "n5_blocks_decoded_total"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_blocks_of_one_client_do_not_delay_other_clients() {
    let n5 = N5::new();
    for path in ["slow/0", "slow/1", "slow/2"] {
        write_slow_block(&n5, path, 15);
    }
    n5.dataset("quick", &[64, 64], &[64, 64], "gzip").fill(|_| true, |_| false);
    let client = Client::new(local(n5.root()), generous_settings(), options());
    let cpu = client.container.resources().cpu().clone();
    let slow: Vec<_> =
        ["slow/0", "slow/1", "slow/2"].map(|path| ask(&client, "192.0.2.1", &format!("/slice/{path}"))).into();
    assert!(wait_until(async || cpu.running() == cpu.cores()).await, "all cores are taken");
    assert_eq!(ask(&client, "192.0.2.2", "/slice/quick").await.unwrap(), 200);
    assert!(slow.iter().all(|slow| !slow.is_finished()), "it waited for a block of another client");
    for slow in slow {
        assert_eq!(slow.await.unwrap(), 200);
    }
}
