//! Responses while the storage fails, and full recovery afterwards (docs/FAULTS.md).

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use n5_server::cache::RevalidationPolicy;
use n5_server::container::Settings;
use n5_server::http::HttpOptions;
use n5_server::store::{Key, LocalStore, StoreError, SymlinkPolicy};

use crate::support::faulty::{Fault, Faulty};
use crate::support::stores::immutable;
use crate::support::writer::N5;
use crate::support::{Client, WholeResponse, let_files_settle, local, options, settings, wait_for_readyz, wait_until};

const SLICE: &str = "/slice/v?format=raw";

/// Requests to dataset `v`: a slice, stored blocks, and chunks of views.
const REQUESTS: &[&str] = &[SLICE, "/v/0/0", "/v/1/1", "/zarr2/v/0/0", "/zarr2/v/1/1", "/zarr3/v/c/1/1"];

fn client_of(store: &Arc<Faulty>, settings: Settings, options: HttpOptions) -> Client {
    Client::new(Arc::<Faulty>::clone(store), settings, options)
}

fn is_block(key: &Key) -> bool {
    key.as_str().starts_with("v/") && key.name() != Some("attributes.json")
}

/// Writes a dataset with a hole at (1, 1).
fn dataset() -> N5 {
    let n5 = N5::new();
    n5.dataset("v", &[8, 8], &[4, 4], "gzip").fill(|position| position != [1, 1], |_| false);
    let_files_settle();
    n5
}

fn without_revalidation() -> Settings {
    Settings { recheck_data: RevalidationPolicy::Never, recheck_metadata: RevalidationPolicy::Never, ..settings() }
}

async fn request_all(client: &Client) -> Vec<WholeResponse> {
    let mut replies = Vec::new();
    for path in REQUESTS {
        replies.push(client.get(path).await);
    }
    replies
}

fn outcomes(replies: &[WholeResponse]) -> Vec<(u16, bytes::Bytes)> {
    let outcome = |reply: &WholeResponse| {
        // The body of a 404 may name the request, so bodies of errors are not compared.
        let body = if reply.status == 200 { reply.body.clone() } else { bytes::Bytes::new() };
        (reply.status.as_u16(), body)
    };
    replies.iter().map(outcome).collect()
}

#[tokio::test]
async fn each_fault_gets_its_status_and_nothing_of_it_is_cached() {
    let errno = |number| Fault::Errno(number);
    let key = || Key::parse("v/0/0").unwrap();
    let faults = [
        ("EIO", errno(5), 503, "storage-unavailable"),
        ("ENFILE", errno(23), 503, "storage-unavailable"),
        ("EMFILE", errno(24), 503, "storage-unavailable"),
        ("ESTALE", errno(116), 503, "storage-unavailable"),
        ("short", Fault::Fails(StoreError::Truncated(key())), 503, "storage-unavailable"),
        ("torn", Fault::Fails(StoreError::Torn(key())), 503, "storage-unavailable"),
        ("gone", Fault::Fails(StoreError::RootMissing("it is not there".to_owned())), 503, "storage-unavailable"),
        ("stalled", Fault::Fails(StoreError::Stalled("read", key())), 503, "storage-unavailable"),
        ("timeout", Fault::Fails(StoreError::Timeout("read", key())), 504, "timeout"),
    ];
    let n5 = dataset();
    let healthy = outcomes(&request_all(&Client::of(n5.root())).await);
    assert_eq!(healthy.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [200, 200, 404, 200, 404, 404]);
    for (name, fault, status, problem) in faults {
        for (caching, settings) in [("checking", settings()), ("caching", without_revalidation())] {
            for hits in [is_block as fn(&Key) -> bool, |_: &Key| true] {
                let store = Faulty::new(local(n5.root()));
                let client = client_of(&store, settings.clone(), options());
                store.begin(hits, fault.clone());
                for reply in request_all(&client).await {
                    assert_eq!(reply.status, status, "{name}, {caching}: {:?}", reply.body);
                    assert_eq!(reply.problem(), problem);
                    assert_eq!(reply.header("retry-after").is_some(), status == 503, "{name}");
                }
                assert!(store.injected() >= REQUESTS.len(), "{name}");
                store.end();
                assert_eq!(outcomes(&request_all(&client).await), healthy, "after {name}, {caching}");
            }
        }
    }
}

#[tokio::test]
async fn unreadable_blocks_are_errors_not_zeros() {
    let n5 = dataset();
    let healthy = outcomes(&request_all(&Client::of(n5.root())).await);
    for settings in [settings(), without_revalidation()] {
        let store = Faulty::new(local(n5.root()));
        let client = client_of(&store, settings, options());
        store.begin(is_block, Fault::Errno(13));
        for (path, reply) in REQUESTS.iter().zip(request_all(&client).await) {
            // A stored block that cannot be read looks like a missing one.
            if path.starts_with("/v/") {
                assert_eq!((reply.status.as_u16(), reply.body.len()), (404, 0), "{path}");
            } else {
                let outcome = (reply.status.as_u16(), reply.problem());
                assert_eq!(outcome, (422, "unreadable".to_owned()), "{path}: {:?}", reply.body);
            }
            assert!(reply.header("retry-after").is_none(), "{path}");
        }
        store.end();
        assert_eq!(outcomes(&request_all(&client).await), healthy);
        store.begin(|key| key.name() == Some("attributes.json"), Fault::Errno(1));
        let hidden = client_of(&store, without_revalidation(), options());
        for (path, reply) in REQUESTS.iter().zip(request_all(&hidden).await) {
            let expected = match *path {
                "/v/0/0" => 200,
                "/v/1/1" => 404,
                _ => 422,
            };
            assert_eq!(reply.status, expected, "{path}: {:?}", reply.body);
        }
        store.end();
        assert_eq!(outcomes(&request_all(&hidden).await), healthy);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_waiters_of_a_failed_load_get_its_error_and_the_next_load_succeeds() {
    let n5 = dataset();
    for path in [SLICE, "/v/0/0", "/zarr2/v/0/0"] {
        let store = Faulty::new(local(n5.root()));
        let client = client_of(&store, settings(), options());
        store.begin(is_block, Fault::FailsLater(5));
        let waiters: Vec<_> = (0..8)
            .map(|_| {
                let (client, path) = (client.clone(), path.to_owned());
                tokio::spawn(async move { client.get(&path).await.status.as_u16() })
            })
            .collect();
        let all_wait = || client.app.requests_in_flight() >= waiters.len() && store.hanging() > 0;
        assert!(wait_until(async || all_wait()).await, "{} requests wait", client.app.requests_in_flight());
        // The requests join the load one after the other. One that comes after its end is answered without the fault.
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.release();
        let mut failed = 0;
        for waiter in waiters {
            let status = waiter.await.unwrap();
            assert!([200, 503].contains(&status), "{path}: {status}");
            failed += usize::from(status == 503);
        }
        assert!(failed > 1, "{path}: only the leader of the load got the error");
        store.begin(is_block, Fault::Errno(5));
        assert_eq!(client.get(path).await.status, 503, "the earlier response must not hide a new error");
        store.end();
        assert_eq!(client.get(path).await.status, 200, "the error must not be cached");
    }
}

#[tokio::test]
async fn blocks_below_a_vanished_root_are_errors_not_zeros() {
    let n5 = dataset();
    let root = n5.root().join("container");
    fs::create_dir(&root).unwrap();
    fs::rename(n5.root().join("v"), root.join("v")).unwrap();
    let away = n5.root().join("away");
    for settings in [settings(), without_revalidation()] {
        let warm = Client::new(local(&root), settings.clone(), options());
        let cold = Client::new(local(&root), settings.clone(), options());
        let healthy = outcomes(&request_all(&warm).await);
        wait_for_readyz(&warm, 200).await;
        fs::rename(&root, &away).unwrap();
        for reply in request_all(&cold).await {
            assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (503, "storage-unavailable"));
        }
        // A cached response may be sent if it need not be revalidated.
        for (reply, healthy) in request_all(&warm).await.iter().zip(&healthy) {
            assert!(reply.status == 503 || outcomes(std::slice::from_ref(reply)) == [healthy.clone()]);
        }
        for client in [&cold, &warm] {
            let reason = wait_for_readyz(client, 503).await["checks"][0]["reason"].clone();
            assert_eq!(reason, "its directory cannot be read");
            assert_eq!(client.get("/healthz").await.status, 200);
        }
        fs::rename(&away, &root).unwrap();
        assert_eq!(outcomes(&request_all(&cold).await), healthy);
        assert_eq!(outcomes(&request_all(&warm).await), healthy);
        wait_for_readyz(&cold, 200).await;
    }
}

#[tokio::test]
async fn blocks_of_a_dataset_that_vanishes_during_a_read_are_not_holes() {
    let n5 = dataset();
    let (dataset_root, away) = (n5.root().join("v"), n5.root().join("away"));
    for settings in [settings(), without_revalidation()] {
        for path in [SLICE, "/slice/v?start=0,0&stop=4,4&format=raw", "/zarr2/v/0/0", "/zarr3/v/c/1/1"] {
            let store = Faulty::new(local(n5.root()));
            let client = client_of(&store, settings.clone(), options());
            // Loads the attributes into the cache.
            assert_eq!(client.get("/v/attributes.json").await.status, 200);
            let healthy = outcomes(&[Client::of(n5.root()).get(path).await]);
            let (from, to) = (dataset_root.clone(), away.clone());
            store.begin(is_block, Fault::After(Arc::new(move || drop(fs::rename(&from, &to)))));
            let reply = client.get(path).await;
            assert_eq!(reply.status, 503, "{path}: {:?}", reply.body);
            store.end();
            fs::rename(&away, &dataset_root).unwrap();
            assert_eq!(outcomes(&[client.get(path).await]), healthy, "{path}: a hole is cached");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_reads_time_out_and_release_memory_that_others_wait_for() {
    let (hung, healthy) = (dataset(), dataset());
    let store = Faulty::new(local(hung.root()));
    // The transfer budget suffices for one read at a time.
    let settings = Settings { transfer_budget: 1 << 20, stored_cache: 0, ..settings() };
    let client =
        client_of(&store, settings.clone(), HttpOptions { request_timeout: Duration::from_secs(2), ..options() });
    let other = client.also(local(healthy.root()));
    store.begin(|_| true, Fault::Hangs);
    let waiters: Vec<_> = (0..8)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move { client.get(&format!("/v/0/{n}")).await })
        })
        .collect();
    while store.injected() < 1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(other.get(SLICE).await.status, 200);
    assert_eq!(client.get("/healthz").await.status, 200);
    let ready = client.get("/readyz").await;
    assert_eq!((ready.status.as_u16(), ready.problem().as_str()), (503, "storage-unavailable"));
    for waiter in waiters {
        let reply = waiter.await.unwrap();
        assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (504, "timeout"));
    }
    store.release();
    assert_eq!(client.get(SLICE).await.status, 200);
    wait_for_readyz(&client, 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_storage_releases_memory_to_waiting_requests() {
    let patient = || HttpOptions { request_timeout: Duration::from_secs(60), ..options() };
    let wait = Duration::from_secs(20);
    // Each request below takes the whole of one budget.
    let large = N5::new();
    large.dataset("v", &[3 << 20, 1], &[3 << 20, 1], "raw").fill(|_| true, |_| false);
    let tight = Settings { budget_wait: wait, stored_cache: 0, decoded_cache: 0, ..settings() };
    let slices = Settings { slice_budget: 1 << 10, ..tight.clone() };
    let decoding = Settings { decode_budget: 20 << 20, ..tight.clone() };
    let len = fs::metadata(large.root().join("v/0/0")).unwrap().len();
    let transfer = Settings { transfer_budget: len + 1024, ..tight };
    let small = dataset();
    let_files_settle();
    for (n5, settings, fault, path) in [
        (&small, slices, Fault::Hangs, SLICE),
        (&large, decoding, Fault::ReadingHangs, SLICE),
        (&large, transfer, Fault::ReadingHangs, "/v/0/0"),
    ] {
        let store = Faulty::new(local(n5.root()));
        let client = client_of(&store, settings, patient());
        let other = client.also(Faulty::new(local(n5.root())));
        assert_eq!(client.get("/v/attributes.json").await.status, 200);
        store.begin(is_block, fault);
        let (hung, asked) = (client.clone(), path.to_owned());
        let hung = tokio::spawn(async move { hung.get(&asked).await });
        // Without this wait, the other request might take the budget first, and no request would wait for this permit.
        assert!(wait_until(async || store.hanging() > 0).await, "no request hangs in the store");
        let started = std::time::Instant::now();
        let reply = other.get(path).await;
        assert_eq!(reply.status, 200, "{path}: {:?}", reply.body);
        assert!(started.elapsed() < wait, "{path}");
        // The bytes of a response hold their permit until they are dropped.
        drop(reply);
        let reply = hung.await.unwrap();
        assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (503, "storage-unavailable"), "{path}");
        assert!(reply.header("retry-after").is_some());
        store.release();
        // Each request needs the whole budget, so no earlier one may have kept a part of it.
        for one in [&client, &other, &client, &other] {
            let reply = one.get(path).await;
            assert_eq!(reply.status, 200, "{path}: {:?}", reply.body);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_storage_leaves_request_permits_to_other_containers() {
    let (hung, healthy) = (dataset(), dataset());
    let store = Faulty::new(local(hung.root()));
    let options = HttpOptions { concurrent_requests: 16, request_timeout: Duration::from_secs(60), ..options() };
    let stores: Vec<(&str, Arc<dyn n5_server::store::Store>)> =
        vec![("hung", Arc::<Faulty>::clone(&store)), ("sound", local(healthy.root()))];
    let client = Client::of_several(stores, settings(), options);
    store.begin(|_| true, Fault::Hangs);
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..16 {
        let client = client.clone();
        waiters.spawn(async move { client.get(&format!("/hung/v/0/{n}")).await });
    }
    // While the storage hangs, all but a quarter of `concurrent_requests` are refused.
    for _ in 0..12 {
        let reply = waiters.join_next().await.unwrap().unwrap();
        assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (503, "storage-unavailable"));
        assert!(reply.header("retry-after").is_some());
    }
    // No more requests are refused than necessary.
    assert!(tokio::time::timeout(Duration::from_millis(700), waiters.join_next()).await.is_err());
    // Further requests are refused, except an occasional one that probes the storage and waits for its response.
    let further = (0..4).map(|_| tokio::time::timeout(Duration::from_secs(8), client.get("/hung/v/0/0")));
    let further = futures_util::future::join_all(further).await;
    let refused = further.iter().flatten().filter(|reply| reply.status == 503).count();
    for path in ["/sound/v/0/0", "/slice/sound/v?format=raw", "/zarr2/sound/v/0/0", "/info/sound/v"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    assert_eq!(waiters.len(), 4);
    store.release();
    // A request that checks the limit while another one is being refused may be refused in its place.
    let mut replaced = 0;
    while let Some(reply) = waiters.join_next().await {
        let status = reply.unwrap().status.as_u16();
        assert!([200, 404, 503].contains(&status), "{status}");
        replaced += usize::from(status == 503);
    }
    assert!(
        [3, 4].contains(&(refused + replaced)),
        "{refused} of 4 were refused, {replaced} were ended for other requests"
    );
    assert_eq!(client.get("/hung/v/0/0").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_storage_keeps_memory_that_no_other_container_needs() {
    let n5 = dataset();
    let store = Faulty::new(local(n5.root()));
    let settings = Settings { slice_budget: 1 << 10, budget_wait: Duration::from_secs(20), ..settings() };
    let client = client_of(&store, settings, HttpOptions { request_timeout: Duration::from_secs(60), ..options() });
    assert_eq!(client.get("/v/attributes.json").await.status, 200);
    store.begin(is_block, Fault::Hangs);
    let ask = || {
        let client = client.clone();
        tokio::spawn(async move { client.get(SLICE).await })
    };
    let first = ask();
    while store.injected() < 1 {
        tokio::task::yield_now().await;
    }
    // The second request, to the same container, waits for memory before the storage is known to hang. The third one
    // comes later.
    let second = ask();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let third = client.get(SLICE).await;
    assert_eq!((third.status.as_u16(), third.problem().as_str()), (503, "storage-unavailable"));
    assert!(!first.is_finished());
    store.release();
    let first = first.await.unwrap();
    assert_eq!(first.status, 200, "{:?}", first.body);
    drop(first);
    // The second request may have come so late that it was refused immediately.
    let second = second.await.unwrap();
    assert!(second.status == 200 || second.problem() == "storage-unavailable", "{:?}", second.body);
}

#[tokio::test]
async fn blocks_behind_broken_links_are_neither_zeros_nor_holes() {
    for policy in [SymlinkPolicy::Inside, SymlinkPolicy::Deny, SymlinkPolicy::Follow] {
        for settings in [settings(), without_revalidation()] {
            let n5 = dataset();
            let (annex, block) = (n5.root().join("annex"), n5.root().join("v/0/0"));
            let open = || Arc::new(LocalStore::open(n5.root(), policy, Duration::from_secs(10)).unwrap());
            let healthy = outcomes(&request_all(&Client::new(open(), settings.clone(), options())).await);
            // git-annex leaves such links for content that was not fetched.
            fs::rename(&block, &annex).unwrap();
            std::os::unix::fs::symlink("../../annex", &block).unwrap();
            let client = Client::new(open(), settings.clone(), options());
            let is_denied = policy == SymlinkPolicy::Deny;
            if !is_denied {
                assert_eq!(outcomes(&request_all(&client).await), healthy, "{policy:?}: the link is followed");
            }
            let away = n5.root().join("away");
            fs::rename(&annex, &away).unwrap();
            let client = Client::new(open(), settings.clone(), options());
            for path in [SLICE, "/slice/v?start=0,0&stop=4,4&format=raw", "/v/0/0", "/zarr2/v/0/0", "/zarr3/v/c/0/0"] {
                let reply = client.get(path).await;
                if path == "/v/0/0" {
                    assert_eq!(reply.status, 404);
                    continue;
                }
                let outcome = (reply.status.as_u16(), reply.problem());
                assert_eq!(outcome, (422, "unreadable".to_owned()), "{policy:?} {path}");
                let body = String::from_utf8_lossy(&reply.body).into_owned();
                let why = if is_denied { "does not follow" } else { "a link that leads nowhere" };
                assert!(body.contains("/v/0/0") && body.contains(why), "{body}");
            }
            // A missing block that is not behind a link is a hole.
            assert_eq!(client.get("/slice/v?start=4,4&stop=8,8&format=raw").await.status, 200, "{policy:?}");
            assert_eq!(client.get("/v/1/1").await.status, 404, "{policy:?}");
            fs::rename(&away, &annex).unwrap();
            if !is_denied {
                assert_eq!(
                    outcomes(&request_all(&client).await),
                    healthy,
                    "{policy:?}: the fault has an effect after its end"
                );
            }
        }
    }
}

/// Returns the paths of dataset `v` whose responses need its attributes.
async fn paths_that_need_attributes(client: &Client) -> Vec<String> {
    let info = client.get("/precomputed/v/info").await.json();
    let scale = info["scales"][0]["key"].as_str().unwrap();
    let of_precomputed =
        ["info".to_owned(), format!("{scale}/0-4_0-4_0-1")].map(|name| format!("/precomputed/v/{name}"));
    let others = ["/stats/v", "/zarr2/v/.zarray", "/zarr3/v/zarr.json", "/as/raw/v/attributes.json", "/as/raw/v/0/0"];
    let all = REQUESTS.iter().filter(|path| !path.starts_with("/v/")).chain(&others).map(|path| (*path).to_owned());
    all.chain(of_precomputed).collect()
}

#[tokio::test]
async fn unreadable_attributes_turn_a_dataset_neither_into_a_group_nor_into_holes() {
    for settings in [settings(), without_revalidation()] {
        let n5 = dataset();
        let (file, away) = (n5.root().join("v/attributes.json"), n5.root().join("away"));
        let client = || Client::new(local(n5.root()), settings.clone(), options());
        let paths = paths_that_need_attributes(&client()).await;
        let statuses = async |client: Client| {
            let mut statuses = Vec::new();
            for path in &paths {
                let reply = client.get(path).await;
                let policy = reply.header("cache-control").unwrap_or_default().to_owned();
                // The dataset has a hole at (1, 1).
                let is_hole = path.ends_with("/1/1");
                statuses.push((reply.status.as_u16(), is_hole, policy == "no-store", path.clone()));
            }
            statuses
        };
        for (status, is_hole, _, path) in statuses(client()).await {
            assert_eq!(status, if is_hole { 404 } else { 200 }, "{path}");
        }
        fs::rename(&file, &away).unwrap();
        std::os::unix::fs::symlink("nowhere", &file).unwrap();
        for (status, _, is_uncached, path) in statuses(client()).await {
            assert_eq!((status, is_uncached), (422, true), "{path}");
        }
        let client = client();
        assert_eq!(client.get("/v/attributes.json").await.status, 404);
        let info = client.get("/info/v").await.json();
        assert!(info["problems"].to_string().contains("not able or not allowed to read it"), "{info}");
        for path in ["/?format=json", "/v/?format=json", "/zarr3/?format=json", "/zarr3/v/?format=json"] {
            assert_eq!(client.get(path).await.status, 200, "{path}");
        }
        fs::rename(&away, &file).unwrap();
        for (status, is_hole, _, path) in statuses(client).await {
            assert_eq!(status, if is_hole { 404 } else { 200 }, "{path}: the fault has an effect after its end");
        }
    }
}

#[tokio::test]
async fn a_dataset_with_too_large_attributes_is_not_reported_missing() {
    let n5 = dataset();
    let paths = paths_that_need_attributes(&Client::new(local(n5.root()), settings(), options())).await;
    let client = Client::new(local(n5.root()), Settings { max_attributes_bytes: 8, ..settings() }, options());
    for path in paths {
        let reply = client.get(&path).await;
        assert_eq!((reply.status.as_u16(), reply.problem()), (413, "too-large".to_owned()), "{path}");
    }
    // Listings are answered without the attributes.
    for path in ["/", "/v/", "/zarr2/v/", "/zarr3/v/", "/precomputed/v/", "/as/gzip/v/"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn an_unreadable_directory_does_not_hide_its_siblings() {
    let n5 = dataset();
    n5.file("lost+found/x", "");
    let store = Faulty::new(local(n5.root()));
    let client = client_of(&store, settings(), options());
    store.begin(|key| key.as_str().starts_with("lost+found"), Fault::Errno(13));
    for path in ["/", "/zarr3/", "/info/", "/info/v", "/zarr3/v/zarr.json", "/zarr2/.zgroup", SLICE] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    let group = client.get("/zarr3/zarr.json").await;
    assert_eq!((group.status.as_u16(), group.json().get("consolidated_metadata")), (200, None));
    assert_eq!(client.get("/zarr2/.zmetadata").await.status, 404);
    assert!(store.injected() > 0);
    store.end();
    assert!(client.get("/zarr3/zarr.json").await.json().get("consolidated_metadata").is_some());
    assert_eq!(client.get("/zarr2/.zmetadata").await.status, 200);
}

#[tokio::test]
async fn temporary_errors_are_sent_with_no_store() {
    let n5 = dataset();
    let store = Faulty::new(local(n5.root()));
    let client = immutable(Arc::<Faulty>::clone(&store), without_revalidation());
    let paths = paths_that_need_attributes(&immutable(local(n5.root()), without_revalidation())).await;
    store.begin(|_| true, Fault::Errno(5));
    for path in paths.iter().map(String::as_str).chain(["/v/0/0", "/v/attributes.json", "/info/v", "/v/"]) {
        let reply = client.get(path).await;
        let outcome = (reply.status.as_u16(), reply.header("cache-control").map(str::to_owned));
        assert_eq!(outcome, (503, Some("no-store".to_owned())), "{path}");
    }
}
