//! Single flight, budgets whose permits are returned, and caches that notice changes.

use std::fs;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use http_body_util::BodyExt;
use n5_server::cache::{ReadOptions, RevalidationPolicy};
use n5_server::container::Settings;
use n5_server::read::{ReadPurpose, SlicePlanner, SliceReader};
use n5_server::runtime::cpu_pool::Priority;
use n5_server::runtime::fair_queue;

use crate::support::load_metrics;
use crate::support::stores::Probe;
use crate::support::writer::N5;
use crate::support::{Client, let_files_settle, local, options, settings, wait_until};

fn probed(n5: &N5, settings: Settings) -> (Arc<Probe>, Client) {
    let probe = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&probe), settings, options());
    (probe, client)
}

#[tokio::test]
async fn a_hundred_clients_share_one_load_even_if_the_first_disconnects() {
    let recorder = load_metrics::recorder();
    let _counted = metrics::set_default_local_recorder(&recorder);
    let n5 = N5::new();
    n5.dataset("a", &[64, 64], &[64, 64], "gzip").fill(|_| true, |_| false);
    let_files_settle();
    let (probe, client) = probed(&n5, settings());
    probe.close();
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.get("/slice/a").await }
    });
    while probe.gets() == 0 {
        tokio::task::yield_now().await;
    }
    let others: Vec<_> = (0..100)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get("/slice/a").await })
        })
        .collect();
    load_metrics::wait_for_load(&recorder.handle(), others.len()).await;
    first.abort();
    assert!(first.await.is_err());
    probe.open();
    for other in others {
        let reply = other.await.unwrap();
        assert_eq!((reply.status.as_u16(), reply.body.len()), (200, 64 * 64 * 2));
    }
    assert_eq!(probe.gets(), 1);
}

#[tokio::test]
async fn a_load_is_cancelled_when_all_its_clients_disconnect() {
    let recorder = load_metrics::recorder();
    let _counted = metrics::set_default_local_recorder(&recorder);
    let n5 = N5::new();
    n5.dataset("a", &[16, 16], &[4, 4], "gzip").fill(|_| true, |_| false);
    let_files_settle();
    let requests = [("/slice/a", 8), ("/slice/a?format=png&size=16,4", 4), ("/a/1/1", 1), ("/zarr3/a/c/1/1", 1)];
    for (path, reads) in requests {
        let (probe, client) = probed(&n5, settings());
        probe.close();
        let ask = || {
            let client = client.clone();
            tokio::spawn(async move { client.get(path).await.status.as_u16() })
        };
        let until = async |waiting: usize| {
            let is_waiting = wait_until(async || probe.waiting() == waiting).await;
            assert!(is_waiting, "{path}: {} reads wait, not {waiting}", probe.waiting());
        };
        let first = ask();
        until(reads).await;
        let second = ask();
        load_metrics::wait_for_load(&recorder.handle(), reads).await;
        first.abort();
        assert!(first.await.is_err());
        // Gives the load time to be cancelled.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(
            (probe.gets(), probe.waiting()),
            (reads, reads),
            "{path}: the load was cancelled although one request still waits"
        );
        second.abort();
        assert!(second.await.is_err());
        until(0).await;
        assert_eq!(probe.gets(), reads, "{path}");
        probe.open();
        assert_eq!(ask().await.unwrap(), 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_clients_share_one_read_of_a_stored_block() {
    let n5 = N5::new();
    n5.dataset("a", &[64, 64], &[64, 64], "gzip").fill(|_| true, |_| false);
    let_files_settle();
    let (probe, client) = probed(&n5, settings());
    probe.close();
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get("/a/0/0").await.status.as_u16() })
        })
        .collect();
    while probe.gets() == 0 {
        tokio::task::yield_now().await;
    }
    probe.open();
    for client in clients {
        assert_eq!(client.await.unwrap(), 200);
    }
    assert_eq!(probe.gets(), 1);
}

#[tokio::test]
async fn errors_are_never_cached() {
    let n5 = N5::new();
    n5.dataset("a", &[4], &[4], "raw").fill(|_| true, |_| false);
    let (probe, client) = probed(&n5, settings());
    probe.fail(2);
    let slice = client.get("/slice/a").await;
    assert_eq!((slice.status.as_u16(), slice.problem().as_str()), (503, "storage-unavailable"));
    assert_eq!(slice.header("retry-after"), Some("1"));
    assert!(!slice.json()["detail"].as_str().unwrap().contains("os error"), "the cause belongs in the log");
    assert_eq!(client.get("/a/0").await.status, 503);
    assert_eq!(client.get("/slice/a").await.status, 200);
    assert_eq!(client.get("/a/0").await.status, 200);
}

#[tokio::test]
async fn a_warm_slice_reads_no_block_again() {
    let n5 = N5::new();
    n5.dataset("a", &[64, 64], &[16, 16], "gzip").fill(|p| p[0] != 1, |_| false);
    let_files_settle();
    let (probe, client) = probed(&n5, settings());
    let cold = client.get("/slice/a").await;
    assert_eq!(probe.gets(), 16, "holes are looked up once, too");
    let warm = client.get("/slice/a").await;
    assert_eq!(probe.gets(), 16);
    assert_eq!(warm.body, cold.body);
    assert_eq!(warm.header("n5-missing-blocks"), Some("4"));
    assert!(warm.header("server-timing").unwrap().contains("cache;desc=hit"));
}

#[tokio::test]
async fn one_request_revalidates_each_block_once() {
    let n5 = N5::new();
    n5.dataset("a", &[64, 64], &[16, 16], "gzip").fill(|_| true, |_| false);
    let_files_settle();
    let (probe, client) = probed(&n5, settings());
    client.get("/slice/a").await;
    let before = probe.heads();
    client.get("/slice/a").await;
    assert_eq!(probe.heads() - before, 16);
}

#[tokio::test]
async fn a_replaced_block_is_noticed_only_on_revalidation() {
    for (recheck, seen) in [(RevalidationPolicy::Always, true), (RevalidationPolicy::Never, false)] {
        let n5 = N5::new();
        let dataset = n5.dataset("a", &[4], &[4], "raw");
        dataset.fill(|_| true, |_| false);
        let_files_settle();
        let (_, client) = probed(&n5, Settings { recheck_data: recheck, ..settings() });
        let old = (client.get("/slice/a").await.body, client.get("/a/0").await.body);
        let mut block = fs::read(dataset.block_path(&[0])).unwrap();
        *block.last_mut().unwrap() ^= 0xff;
        fs::write(dataset.block_path(&[0]), &block).unwrap();
        let new = (client.get("/slice/a").await.body, client.get("/a/0").await.body);
        assert_eq!((new.0 != old.0, new.1 != old.1), (seen, seen));
    }
}

#[tokio::test]
async fn a_rewritten_block_of_the_same_length_is_noticed_at_once() {
    let n5 = N5::new();
    let dataset = n5.dataset("a", &[4], &[4], "raw");
    dataset.fill(|_| true, |_| false);
    let client = Client::of(n5.root());
    let mut block = fs::read(dataset.block_path(&[0])).unwrap();
    for n in 0..200u8 {
        *block.last_mut().unwrap() = n;
        fs::write(dataset.block_path(&[0]), &block).unwrap();
        assert_eq!(client.get("/slice/a?start=3").await.body[0], n);
        assert_eq!(client.get("/a/0").await.body, block);
    }
}

#[tokio::test]
async fn changed_attributes_change_how_blocks_are_decoded() {
    let n5 = N5::new();
    n5.dataset("a", &[4], &[4], "raw").fill(|_| true, |_| false);
    let client = Client::of(n5.root());
    assert_eq!(client.get("/slice/a").await.header("n5-data-type"), Some("uint16"));
    n5.file(
        "a/attributes.json",
        r#"{"dimensions":[4],"blockSize":[4],"dataType":"int16","compression":{"type":"raw"}}"#,
    );
    let reply = client.get("/slice/a").await;
    assert_eq!((reply.header("n5-data-type"), reply.body.len()), (Some("int16"), 8));
    fs::remove_file(n5.root().join("a/attributes.json")).unwrap();
    assert_eq!(client.get("/slice/a").await.problem(), "not-a-dataset");
    fs::remove_dir_all(n5.root().join("a")).unwrap();
    assert_eq!(client.get("/slice/a").await.problem(), "not-found");
}

#[tokio::test]
async fn dropping_a_body_releases_its_memory() {
    let n5 = N5::new();
    n5.dataset("a", &[100, 100], &[16, 16], "raw").fill(|_| true, |_| false);
    let budget_wait = Duration::from_millis(200);
    let tight = Settings { slice_budget: 20 * 1024, budget_wait, ..settings() };
    let (_, client) = probed(&n5, tight);
    let held = client.ask(Request::get("/slice/a").body(Body::empty()).unwrap()).await;
    assert_eq!(held.status(), 200);
    let refused = client.get("/slice/a?start=0,0&size=50,50").await;
    assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (503, "overloaded"));
    drop(held);
    assert_eq!(client.get("/slice/a?start=0,0&size=50,50").await.status, 200);
}

#[tokio::test]
async fn reading_plane_by_plane_decodes_each_block_once_even_after_a_scan() {
    let n5 = N5::new();
    // A layer of blocks is 64 x 64 x 16 uint16 = 128 KiB. The cache holds one layer, but not two.
    let walked = n5.dataset("walked", &[64, 64, 48], &[16, 16, 16], "gzip");
    walked.fill(|_| true, |_| false);
    n5.dataset("scanned", &[64, 64, 64], &[16, 16, 16], "gzip").fill(|_| true, |_| false);
    let_files_settle();
    let (probe, client) = probed(&n5, Settings { decoded_cache: 144 << 10, ..settings() });
    assert_eq!(client.get("/slice/scanned").await.status, 200);
    let before = probe.gets();
    for z in 0..48 {
        let reply = client.get(&format!("/slice/walked?select=:,:,{z}")).await;
        assert_eq!(reply.body[..2], walked.value(&[0, 0, z]).to_le_bytes());
    }
    assert_eq!(probe.gets() - before, 4 * 4 * 3);
}

#[tokio::test]
async fn requests_are_answered_without_caches() {
    let n5 = N5::new();
    n5.dataset("a", &[40, 40], &[16, 16], "gzip").fill(|_| true, |_| false);
    let (_, client) = probed(&n5, Settings { decoded_cache: 0, stored_cache: 0, ..settings() });
    for _ in 0..3 {
        assert_eq!(client.get("/slice/a").await.body.len(), 40 * 40 * 2);
        assert_eq!(client.get("/a/0/0").await.status, 200);
    }
}

#[tokio::test]
async fn a_slice_of_one_block_is_not_copied() {
    let n5 = N5::new();
    n5.dataset("a", &[32, 32], &[16, 16], "gzip").fill(|_| true, |_| false);
    let_files_settle();
    let (_, client) = probed(&n5, settings());
    let options = ReadOptions::begin();
    let dataset =
        client.container.dataset(options, &n5_server::store::Key::from_segments(["a"]).unwrap()).await.unwrap();
    let region = n5_format::Region::new(
        [16, 0].into_iter().collect(),
        [16, 16].into_iter().collect(),
        [1, 1].into_iter().collect(),
    );
    let slice = SlicePlanner::whole(&client.container, &dataset).plan(&region.unwrap()).unwrap();
    let reader = SliceReader { container: &client.container, options, slice: &slice };
    let a = reader.read_whole(0, ReadPurpose::Response).await.unwrap();
    let b = reader.read_whole(0, ReadPurpose::Response).await.unwrap();
    assert_eq!(a.pieces.len(), 1);
    assert_eq!(a.pieces[0].as_ptr(), b.pieces[0].as_ptr());
    let answered = client.get("/slice/a?start=16,0&size=16,16").await.body;
    assert_eq!(answered.as_ptr(), a.pieces[0].as_ptr());
}

#[tokio::test]
async fn bodies_of_stored_blocks_share_the_cached_bytes() {
    let n5 = N5::new();
    n5.dataset("a", &[32, 32], &[16, 16], "gzip").fill(|_| true, |_| false);
    let_files_settle();
    let client = Client::of(n5.root());
    let (a, b) = (client.get("/a/0/0").await.body, client.get("/n5/a/0/0").await.body);
    assert_eq!(a.as_ptr(), b.as_ptr());
}

/// Raw blocks of one-byte elements share the buffer that the file was read into. They must not keep the memory permit
/// of that read.
#[tokio::test]
async fn raw_blocks_larger_than_the_caches_can_be_read_repeatedly() {
    let n5 = N5::new();
    let attributes =
        r#"{"dimensions":[256,256,16],"blockSize":[64,64,4],"dataType":"uint8","compression":{"type":"raw"}}"#;
    n5.file("a/attributes.json", attributes);
    for position in crate::support::writer::all_indices(&[4, 4, 4]) {
        let mut block = vec![0, 0, 0, 3, 0, 0, 0, 64, 0, 0, 0, 64, 0, 0, 0, 4];
        block.resize(16 + 64 * 64 * 4, u8::try_from(position[2]).unwrap());
        n5.file(&format!("a/{}/{}/{}", position[0], position[1], position[2]), &block);
    }
    let_files_settle();
    let small = Settings {
        decoded_cache: 512 << 10,
        stored_cache: 64 << 10,
        transfer_budget: 128 << 10,
        decode_budget: 128 << 10,
        budget_wait: Duration::from_secs(2),
        ..settings()
    };
    let (_, client) = probed(&n5, small);
    for _ in 0..3 {
        let reply = client.get("/slice/a").await;
        assert_eq!((reply.status.as_u16(), reply.body.len()), (200, 1 << 20), "{:?}", &reply.body[..60]);
        assert_eq!(client.get("/a/0/0/0").await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_of_a_streamed_slice_leaves_memory_for_small_responses() {
    let n5 = N5::new();
    n5.dataset("a", &[256, 256, 64], &[64, 64, 16], "raw").fill(|_| true, |_| false);
    let_files_settle();
    let budget_wait = Duration::from_millis(500);
    let (_, client) = probed(&n5, Settings { slice_budget: 4 << 20, budget_wait, ..settings() });
    let stalled = client.ask(Request::get("/slice/a").body(Body::empty()).unwrap()).await;
    assert_eq!(stalled.status(), 200);
    for _ in 0..20 {
        assert_eq!(client.get("/slice/a?start=0,0,0&size=64,64,16").await.status, 200);
    }
    drop(stalled);
    assert_eq!(client.get("/slice/a").await.body.len(), 256 * 256 * 64 * 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_is_the_same_with_and_without_a_cache() {
    let n5 = N5::new();
    for compression in ["raw", "gzip"] {
        n5.dataset(compression, &[64, 60], &[16, 16], compression).fill(|p| p[0] != 1, |_| false);
        let_files_settle();
        let passing = Client::new(local(n5.root()), Settings { decoded_cache: 0, ..settings() }, options());
        let caching = Client::new(local(n5.root()), settings(), options());
        let path = format!("/slice/{compression}");
        let (passed, cached) = (passing.get(&path).await, caching.get(&path).await);
        // Repeats the request, because the server reuses buffers that were sent.
        let again = passing.get(&path).await;
        for reply in [&passed, &again] {
            assert_eq!(reply.body, cached.body, "{compression}");
            assert_eq!(reply.header("etag"), cached.header("etag"));
            assert_eq!(reply.header("n5-missing-blocks"), Some("4"));
        }
        let block = n5.root().join(compression).join("2/3");
        let stored = fs::read(&block).unwrap();
        fs::write(&block, &stored[..stored.len() - 5]).unwrap();
        let damaged = passing.get(&path).await;
        assert_eq!(damaged.status, 422);
        assert!(damaged.json().to_string().contains("2/3"), "it names the block");
    }
}

#[tokio::test]
async fn a_cached_hole_expires_after_the_revalidation_interval() {
    let n5 = N5::new();
    let dataset = n5.dataset("v", &[4, 4], &[4, 4], "raw");
    let_files_settle();
    let age = Duration::from_secs(2);
    let (_, client) = probed(&n5, Settings { recheck_data: RevalidationPolicy::After(age), ..settings() });
    let slice = "/slice/v?start=0,0&stop=4,4&format=raw";
    assert_eq!(client.get("/v/0/0").await.status, 404);
    tokio::time::sleep(age.mul_f64(0.6)).await;
    // A slice asks the store again: the request for the stored block did not know the block's dataset.
    assert!(client.get(slice).await.body.iter().all(|byte| *byte == 0));
    dataset.fill(|_| true, |_| false);
    tokio::time::sleep(age.mul_f64(1.1)).await;
    assert!(client.get(slice).await.body.iter().any(|byte| *byte != 0));
}

#[tokio::test]
async fn objects_that_replace_each_other_in_the_cache_do_not_block() {
    let n5 = N5::new();
    for number in 0..16 {
        n5.file(&format!("v/{number}"), vec![number; 3_000_000]);
    }
    let_files_settle();
    let (stored_cache, transfer_budget, budget_wait) = (8 << 20, 4 << 20, Duration::from_secs(1));
    let (_, client) = probed(&n5, Settings { stored_cache, transfer_budget, budget_wait, ..settings() });
    for number in 0..16 {
        let reply = client.get(&format!("/v/{number}")).await;
        assert_eq!(reply.status, 200, "{number}: {:?}", reply.body);
        assert_eq!(reply.body, vec![number; 3_000_000]);
    }
}

#[tokio::test]
async fn one_client_never_holds_all_memory_for_slices() {
    let n5 = N5::new();
    n5.dataset("a", &[64, 64], &[64, 64], "raw").fill(|_| true, |_| false);
    let budget_wait = Duration::from_millis(300);
    let (_, client) = probed(&n5, Settings { slice_budget: 16 << 20, budget_wait, ..settings() });
    let ask = |address: &str, mib: u64| {
        let path = format!("/slice/a?start=0,0&size=512,{}&outside=zero", mib << 10);
        let mut request = Request::get(path).header("host", "x").body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(Some(address.parse::<IpAddr>().unwrap())));
        client.ask(request)
    };
    // The body is not read.
    let held = ask("192.0.2.1", 9).await;
    assert_eq!(held.status(), 200);
    assert_eq!(ask("192.0.2.1", 4).await.status(), 503);
    // A sixteenth of the budget is reserved for small permits.
    let others = [ask("192.0.2.2", 4).await, ask("192.0.2.3", 1).await];
    assert!(others.iter().all(|response| response.status() == 200));
    drop((held, others));
    // A client that is alone may take the whole budget in one piece.
    assert_eq!(ask("192.0.2.1", 16).await.status(), 200);
}

#[tokio::test]
async fn a_client_with_hundreds_of_slices_delays_another_client_only_briefly() {
    check_one_slice_among_hundreds(GREEDY + 1).await;
}

#[tokio::test]
async fn a_slice_shared_by_two_clients_does_not_wait_behind_the_first_clients_queue() {
    check_one_slice_among_hundreds(GREEDY).await;
}

/// Number of slices that one client requests at once.
const GREEDY: usize = 200;

/// One client requests slices 1 to [`GREEDY`], then another client requests slice `number`. Checks that the second
/// client is answered among the first.
async fn check_one_slice_among_hundreds(number: usize) {
    const DEPTH: u64 = 16;
    let n5 = N5::new();
    n5.dataset("v", &[32, 32, DEPTH * (GREEDY as u64 + 2)], &[32, 32, DEPTH], "gzip").fill(|_| true, |_| false);
    let_files_settle();
    // The budgets suffice for all slices, so they wait only for the core. Nothing is revalidated.
    let settings = Settings {
        cores: 1,
        recheck_metadata: RevalidationPolicy::Never,
        recheck_data: RevalidationPolicy::Never,
        ..settings()
    };
    let (probe, client) = probed(&n5, settings);
    assert_eq!(client.get("/slice/v?size=1,1,1").await.status, 200);
    let done = Arc::new(AtomicUsize::new(0));
    let ask = |address: &str, n: usize| {
        let path = format!("/slice/v?start=0,0,{}&size=32,32,{DEPTH}", n as u64 * DEPTH);
        let mut request = Request::get(path).header("host", "x").body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(Some(address.parse::<IpAddr>().unwrap())));
        let client = client.clone();
        async move {
            let response = client.ask(request).await;
            assert_eq!(response.status(), 200);
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 32 * 32 * 2 * DEPTH as usize);
        }
    };
    probe.close();
    let mut greedy = tokio::task::JoinSet::new();
    for n in 1..=GREEDY {
        let (pending, done) = (ask("192.0.2.1", n), Arc::clone(&done));
        greedy.spawn(async move {
            pending.await;
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let modest = tokio::spawn(ask("192.0.2.2", number));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(done.load(Ordering::SeqCst), 0);
    probe.open();
    modest.await.unwrap();
    let before = done.load(Ordering::SeqCst);
    // Reads that began earlier may end first: there is memory for 32, and more may pass if a thread is scheduled late.
    // Without fair queueing, this slice would be the last.
    assert!(before <= 100, "{before} responses to the other client came first");
    while let Some(ended) = greedy.join_next().await {
        ended.unwrap();
    }
}

/// Writes a block whose chunk is sent from slice memory and not cached: single bytes need no byte swap, and a block at
/// the edge is padded.
fn write_uncacheable_block(n5: &N5) {
    let attributes = r#"{"dimensions":[7,5],"blockSize":[4,4],"dataType":"uint8","compression":{"type":"raw"}}"#;
    n5.file("v/attributes.json", attributes.as_bytes());
    n5.file("v/1/0", [&[0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4][..], &[7; 12]].concat());
    let_files_settle();
}

#[tokio::test]
async fn uncached_results_leave_no_memory_or_open_files() {
    // The pinned thread below delays the release of everything that any cache of the process evicts. The test therefore
    // runs in a process of its own.
    const NAME: &str = "concurrency::uncached_results_leave_no_memory_or_open_files";
    if std::env::var_os("N5_TEST_ALONE").is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let done = alone.args([NAME, "--exact", "--nocapture"]).env("N5_TEST_ALONE", "1").output().unwrap();
        let output = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(done.status.success() && output[0].contains("1 passed"), "{}", output.concat());
        return;
    }
    let n5 = N5::new();
    write_uncacheable_block(&n5);
    // A thread that is suspended within an operation on a cache.
    let ((release, is_released), (pinned, is_pinned)) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel());
    let pinning = std::thread::spawn(move || {
        let _inside = crossbeam_epoch::pin();
        pinned.send(()).unwrap();
        let _ = is_released.recv();
    });
    is_pinned.recv().unwrap();
    // A listing needs the whole slice budget.
    let tight = Settings { slice_budget: 1 << 20, budget_wait: Duration::ZERO, ..settings() };
    let client = Client::new(local(n5.root()), tight, options());
    for path in ["/zarr2/v/0/1", "/zarr3/v/c/0/1"].repeat(9) {
        assert_eq!(client.get(path).await.status, 200, "{path}");
        assert_eq!(client.get("/v/").await.status, 200, "after {path}");
    }
    n5.file("w/0/0", vec![5; 17 << 20]);
    let open = || {
        let files = fs::read_dir("/proc/self/fd").unwrap().map(|file| fs::read_link(file.unwrap().path()));
        files.flatten().filter(|file| file.starts_with(n5.root())).count()
    };
    let before = open();
    assert_eq!(client.get("/w/0/0").await.status, 200);
    assert_eq!(open(), before);
    drop(release);
    pinning.join().unwrap();
}

#[tokio::test]
async fn an_uncached_result_is_loaded_once_for_all_waiters() {
    let recorder = load_metrics::recorder();
    let _counted = metrics::set_default_local_recorder(&recorder);
    let n5 = N5::new();
    write_uncacheable_block(&n5);
    n5.file("w/0/0", vec![5; 17 << 20]);
    let_files_settle();
    let interval = Duration::from_secs(3600);
    let recheck = Settings {
        recheck_data: RevalidationPolicy::After(interval),
        recheck_metadata: RevalidationPolicy::After(interval),
        ..settings()
    };
    for path in ["/zarr2/v/0/1", "/w/0/0"] {
        for disconnects in [false, true] {
            // Decoded blocks are not cached either.
            let (probe, client) = probed(&n5, Settings { decoded_cache: 0, ..recheck.clone() });
            probe.close();
            let ask = || {
                let client = client.clone();
                tokio::spawn(async move { client.get(path).await })
            };
            let first = ask();
            while probe.gets() == 0 {
                tokio::task::yield_now().await;
            }
            let others: Vec<_> = (0..5).map(|_| ask()).collect();
            load_metrics::wait_for_load(&recorder.handle(), others.len()).await;
            if disconnects {
                first.abort();
            }
            probe.open();
            assert_eq!(first.await.is_err(), disconnects);
            let len = if path == "/w/0/0" { 17 << 20 } else { 16 };
            for other in others {
                let reply = other.await.unwrap();
                assert_eq!((reply.status.as_u16(), reply.body.len()), (200, len), "{path}");
            }
            assert_eq!(probe.gets(), 1, "{path}, {disconnects}");
        }
    }
}

#[tokio::test]
async fn a_popular_dataset_does_not_delay_other_datasets() {
    const HOT: usize = 32;
    let recorder = load_metrics::recorder();
    let _counted = metrics::set_default_local_recorder(&recorder);
    let n5 = N5::new();
    n5.dataset("hot", &[64, 64 * HOT as u64], &[64, 64], "gzip").fill(|_| true, |_| false);
    n5.dataset("other", &[16, 16], &[16, 16], "gzip").fill(|_| true, |_| false);
    let_files_settle();
    let client = Client::new(local(n5.root()), Settings { cores: 1, ..settings() }, options());
    let cpu = client.container.resources().cpu().clone();
    let (free, is_free) = std::sync::mpsc::channel::<()>();
    let taken = tokio::spawn(async move { cpu.run(Priority::Low, 0, move || is_free.recv()).await });
    let ended = Arc::new(AtomicUsize::new(0));
    let ask = |path: String| {
        let (client, ended) = (client.clone(), Arc::clone(&ended));
        tokio::spawn(async move {
            let reply = client.get(&path).await;
            assert_eq!(reply.status, 200, "{:?}", reply.body);
            ended.fetch_add(1, Ordering::SeqCst)
        })
    };
    // All requests wait for the only core. The one for the other dataset comes last.
    let hot: Vec<_> = (0..HOT).map(|n| ask(format!("/slice/hot?start=0,{}&size=64,64&format=raw", 64 * n))).collect();
    load_metrics::wait_for_queue(&recorder.handle(), "cpu", HOT).await;
    let other = ask("/slice/other".to_owned());
    load_metrics::wait_for_queue(&recorder.handle(), "cpu", HOT + 1).await;
    free.send(()).unwrap();
    let before = other.await.unwrap();
    assert!(before <= 4, "{before} of {HOT} were answered before it");
    for request in hot {
        request.await.unwrap();
    }
    assert!(taken.await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn documents_waiting_to_be_parsed_for_one_client_leave_memory_to_others() {
    let n5 = N5::new();
    let padding = "x".repeat(1 << 20);
    for number in 0..40 {
        n5.file(&format!("g{number}/attributes.json"), format!(r#"{{"padding":"{padding}"}}"#));
    }
    n5.file("v/0/0", vec![1; 3 << 20]);
    n5.file(
        "v/attributes.json",
        r#"{"dimensions":[4,4],"blockSize":[4,4],"dataType":"uint8","compression":{"type":"raw"}}"#,
    );
    let_files_settle();
    let recorder = load_metrics::recorder();
    let _counted = metrics::set_default_local_recorder(&recorder);
    let budgets =
        Settings { stored_cache: 0, transfer_budget: 16 << 20, max_attributes_bytes: 2 << 20, cores: 1, ..settings() };
    let client = Client::new(local(n5.root()), Settings { budget_wait: Duration::from_secs(20), ..budgets }, options());
    // The only core is taken, so documents wait to be parsed.
    let cpu = client.container.resources().cpu().clone();
    let (free, is_free) = std::sync::mpsc::channel::<()>();
    let taken = tokio::spawn(async move { cpu.run(Priority::Low, 0, move || is_free.recv()).await });
    let ask = |address: &str, path: String| {
        let mut request = Request::get(path).header("host", "x").body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(Some(address.parse::<IpAddr>().unwrap())));
        let client = client.clone();
        async move { client.ask(request).await.status().as_u16() }
    };
    let greedy: Vec<_> = (0..40).map(|n| tokio::spawn(ask("192.0.2.1", format!("/info/g{n}")))).collect();
    // Three documents have been read and wait for the core. The other requests wait until they may read theirs.
    load_metrics::wait_for_queue(&recorder.handle(), "cpu", 3).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let other = tokio::time::timeout(Duration::from_secs(5), ask("192.0.2.2", "/v/0/0".to_owned())).await;
    assert_eq!(other, Ok(200), "{}", recorder.handle().render());
    free.send(()).unwrap();
    taken.await.unwrap().unwrap().unwrap();
    for pending in greedy {
        assert_eq!(pending.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn statistics_of_many_clients_leave_memory_for_small_responses() {
    let n5 = N5::new();
    let memory = Settings { slice_budget: 16 << 20, budget_wait: Duration::from_millis(200), ..settings() };
    let container = Client::new(local(n5.root()), memory, options()).container.clone();
    // Statistics of many clients reserve memory like this.
    let mut held = Vec::new();
    for client in 1..100 {
        held.extend(fair_queue::ClientId::new(client).scope(container.reserve_memory(1 << 20)).await.ok());
        if held.len() < usize::try_from(client).unwrap() {
            break;
        }
    }
    assert_eq!(held.len(), 15);
    let short = fair_queue::ClientId::new(200).scope(container.reserve_memory(64 << 10));
    assert!(short.await.is_ok());
}

#[tokio::test]
async fn clients_take_turns_at_revalidating_many_blocks() {
    const SLICE: &str = "/slice/v?size=512,512&step=4,4";
    let n5 = N5::new();
    n5.file(
        "v/attributes.json",
        r#"{"dimensions":[512,512],"blockSize":[4,4],"dataType":"uint8","compression":{"type":"raw"}}"#,
    );
    let_files_settle();
    let recorder = load_metrics::recorder();
    let _counted = metrics::set_default_local_recorder(&recorder);
    let client = Client::new(local(n5.root()), Settings { cores: 1, ..settings() }, options());
    let etag = client.get(SLICE).await.header("etag").unwrap().to_owned();
    // The only core is taken.
    let cpu = client.container.resources().cpu().clone();
    let (free, is_free) = std::sync::mpsc::channel::<()>();
    let taken = tokio::spawn(async move { cpu.run(Priority::Low, 0, move || is_free.recv()).await });
    let other = client.clone();
    let pending = tokio::spawn(async move { other.get_with(SLICE, &[("if-none-match", &etag)]).await.status });
    load_metrics::wait_for_queue(&recorder.handle(), "cpu", 1).await;
    assert!(!pending.is_finished());
    assert_eq!(client.get("/v/attributes.json").await.status, 200);
    free.send(()).unwrap();
    taken.await.unwrap().unwrap().unwrap();
    assert_eq!(pending.await.unwrap(), 304);
}

#[tokio::test]
async fn slices_of_cached_blocks_yield_to_other_clients() {
    let n5 = N5::new();
    n5.dataset("a", &[64, 64], &[8, 8], "raw").fill(|_| true, |_| false);
    let never = RevalidationPolicy::Never;
    let (_, client) = probed(&n5, Settings { recheck_metadata: never, recheck_data: never, ..settings() });
    let client = Arc::new(client);
    let answered = Arc::new(Mutex::new(Vec::new()));
    let ask = |address: &'static str| {
        let (client, answered) = (Arc::clone(&client), Arc::clone(&answered));
        tokio::spawn(async move {
            let path = "/slice/a?start=0,0&size=64,64";
            let mut request = Request::get(path).header("host", "x").body(Body::empty()).unwrap();
            request.extensions_mut().insert(ConnectInfo(Some(address.parse::<IpAddr>().unwrap())));
            assert_eq!(client.ask(request).await.status(), 200);
            answered.lock().unwrap().push(address);
        })
    };
    ask("192.0.2.1").await.unwrap();
    let mut pending: Vec<_> = (0..400).map(|_| ask("192.0.2.1")).collect();
    pending.push(ask("192.0.2.2"));
    for one in pending {
        one.await.unwrap();
    }
    let before = answered.lock().unwrap().iter().position(|address| *address == "192.0.2.2").unwrap();
    assert!(before < 100, "{before} were answered before it");
}

#[tokio::test]
async fn unread_compressed_documents_stay_within_the_budget() {
    let n5 = N5::new();
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        format!("{:016x}", state ^ state >> 32)
    };
    let text: String = (0..10_000).map(|_| next()).collect();
    n5.file("g/attributes.json", format!("{{\"text\":\"{text}\"}}"));
    let slice_budget = 2 << 20;
    let (_, client) = probed(&n5, Settings { slice_budget, budget_wait: Duration::from_millis(50), ..settings() });
    let (mut held, mut compressed) = (Vec::new(), 0);
    for number in 0..24u8 {
        let request = Request::get("/info/g").header("host", "x").header("accept-encoding", "gzip");
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(Some(IpAddr::from([192, 0, 2, number]))));
        let response = client.ask(request).await;
        if response.status() == 200 {
            compressed += usize::from(response.headers().contains_key("content-encoding"));
            held.push(response);
        }
    }
    let bytes: u64 = held.iter().filter_map(|response| http_body::Body::size_hint(response.body()).exact()).sum();
    assert!(compressed > 5 && (1 << 20..=slice_budget).contains(&bytes), "{compressed} of {bytes} bytes");
}
