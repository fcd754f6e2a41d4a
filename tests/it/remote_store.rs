//! A remote store: it answers only after a while and has no page cache.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use n5_server::cache::{ReadOptions, RevalidationPolicy};
use n5_server::container::{Container, Resources, Settings};
use n5_server::fastpath::{FastOutcome, try_answer};
use n5_server::store::{Key, Store};

use crate::support::remote::Remote;
use crate::support::{Client, options, settings};

const FOREVER: RevalidationPolicy = RevalidationPolicy::After(Duration::from_secs(3600));

/// Creates a dataset of three blocks; the last one is missing.
fn remote() -> Arc<Remote> {
    remote_of(Remote::default())
}

fn remote_of(remote: Remote) -> Arc<Remote> {
    let remote = Arc::new(remote);
    remote.put(
        "v/attributes.json",
        r#"{"dimensions":[4,6],"blockSize":[4,2],"dataType":"uint8","compression":{"type":"raw"}}"#,
    );
    for n in 0..2 {
        remote.put(&format!("v/0/{n}"), block(n));
    }
    remote
}

/// Returns a block of 4 x 2 elements, all equal to `value`.
fn block(value: u8) -> Vec<u8> {
    [&[0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 2][..], &[value; 8]].concat()
}

fn client(remote: &Arc<Remote>, metadata: RevalidationPolicy, data: RevalidationPolicy) -> Client {
    let settings = Settings { recheck_metadata: metadata, recheck_data: data, ..settings() };
    Client::new(Arc::<Remote>::clone(remote) as Arc<dyn Store>, settings, options())
}

/// Returns the status line of the response of the fast path, if it answers.
fn fast_path_status(client: &Client, path: &str) -> Option<String> {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    match try_answer(&client.app, None, head.as_bytes()) {
        FastOutcome::Request(_, reply) => {
            let head = String::from_utf8(reply?.head).unwrap();
            head.lines().next().map(str::to_owned)
        }
        FastOutcome::Incomplete | FastOutcome::HandOver => panic!("{path} is a whole request"),
    }
}

#[tokio::test]
async fn a_cold_object_costs_one_request_and_a_warm_one_none() {
    let remote = remote();
    let client = client(&remote, FOREVER, FOREVER);
    for (path, status, requests) in [
        ("/v/attributes.json", 200, vec!["GET v/attributes.json"]),
        ("/v/0/0", 200, vec!["GET v/0/0"]),
        ("/slice/v?start=0,2&stop=4,4", 200, vec!["GET v/0/1"]),
        ("/zarr3/v/c/1/0", 200, vec![]),
        ("/zarr3/v/c/2/0", 404, vec!["GET v/0/2"]),
        ("/slice/v", 200, vec![]),
    ] {
        let (first, second) = tokio::join!(client.get(path), client.get(path));
        assert_eq!((first.status.as_u16(), second.status.as_u16()), (status, status), "{path}");
        assert_eq!(remote.take_requests(), requests, "{path}");
        assert_eq!(client.get(path).await.status, status, "{path}");
        assert!(remote.take_requests().is_empty(), "{path}");
    }
}

#[tokio::test]
async fn cached_objects_and_chunks_take_the_fast_path() {
    let remote = remote();
    let client = client(&remote, FOREVER, FOREVER);
    // The last chunk is the same stored block as the one before it.
    for (path, is_cold) in
        [("/v/attributes.json", true), ("/v/0/0", true), ("/zarr3/v/c/1/0", true), ("/zarr2/v/1/0", false)]
    {
        if is_cold {
            assert_eq!(fast_path_status(&client, path), None, "{path}");
            assert!(remote.take_requests().is_empty(), "{path}: the fast path does not wait for the store");
            assert_eq!(client.get(path).await.status, 200, "{path}");
            remote.take_requests();
        }
        for _ in 0..2 {
            assert_eq!(fast_path_status(&client, path).as_deref(), Some("HTTP/1.1 200 OK"), "{path}");
        }
        assert!(remote.take_requests().is_empty(), "{path}");
    }
}

#[tokio::test]
async fn a_stale_entry_costs_one_conditional_request() {
    let remote = remote();
    let client = client(&remote, FOREVER, RevalidationPolicy::Always);
    for path in ["/v/0/0", "/slice/v?start=0,0&stop=4,2&format=raw"] {
        remote.put("v/0/0", block(5));
        assert_eq!(client.get(path).await.body.last(), Some(&5), "{path}");
        remote.take_requests();
        assert_eq!(client.get(path).await.body.last(), Some(&5), "{path}");
        assert_eq!(remote.take_requests(), ["GET if changed v/0/0"], "{path}: unchanged");
        remote.put("v/0/0", block(6));
        assert_eq!(client.get(path).await.body.last(), Some(&6), "{path}");
        assert_eq!(remote.take_requests(), ["GET if changed v/0/0"], "{path}: changed");
    }
}

#[tokio::test]
async fn a_range_of_a_large_object_is_requested_alone_and_a_small_object_is_cached() {
    let remote = remote();
    remote.put("v/0/1", vec![7; 1 << 20]);
    let client = client(&remote, FOREVER, FOREVER);
    for (range, len, requests) in [
        ("bytes=1000-1999", 1000, vec!["GET 1000..2000 of v/0/1"]),
        ("bytes=1000-1999", 1000, vec!["GET 1000..2000 of v/0/1"]),
        ("bytes=-10", 10, vec!["HEAD v/0/1", "GET 1048566..1048576 of v/0/1"]),
    ] {
        let response = client.get_with("/v/0/1", &[("range", range)]).await;
        assert_eq!((response.status.as_u16(), response.body.len()), (206, len), "{range}");
        assert_eq!(remote.take_requests(), requests, "{range}");
    }
    for requests in [vec!["GET 2..6 of v/0/0"], vec![]] {
        let response = client.get_with("/v/0/0", &[("range", "bytes=2-5")]).await;
        assert_eq!((response.status.as_u16(), &*response.body), (206, &[0, 2, 0, 0][..]));
        assert_eq!(remote.take_requests(), requests);
    }
}

#[tokio::test]
async fn a_hole_costs_one_request() {
    let remote = remote();
    let client = client(&remote, FOREVER, RevalidationPolicy::Always);
    let path = "/slice/v?start=0,4&stop=4,6&format=raw";
    assert_eq!(client.get(path).await.body, [0; 8][..]);
    assert_eq!(remote.take_requests(), ["GET v/attributes.json", "GET v/0/2"]);
    assert_eq!(client.get(path).await.body, [0; 8][..]);
    assert_eq!(remote.take_requests(), ["GET if changed v/0/2"]);
    remote.put("v/0/2", block(7));
    assert_eq!(client.get(path).await.body, [7; 8][..]);
    assert_eq!(remote.take_requests(), ["GET if changed v/0/2"]);
}

#[tokio::test]
async fn a_missing_object_costs_no_request_while_it_is_remembered() {
    let remote = remote();
    let settings = Settings { recheck_missing: Some(FOREVER), ..settings() };
    let settings = Settings { recheck_metadata: FOREVER, recheck_data: RevalidationPolicy::Always, ..settings };
    let client = Client::new(Arc::<Remote>::clone(&remote) as Arc<dyn Store>, settings, options());
    for (path, status, requests) in [
        ("/slice/v?start=0,4&stop=4,6&format=raw", 200, vec!["GET v/attributes.json", "GET v/0/2"]),
        ("/v/0/2", 404, vec![]),
        ("/v/0/2", 404, vec![]),
        ("/zarr3/v/c/2/0", 404, vec![]),
        ("/w/attributes.json", 404, vec!["GET w/attributes.json", "LIST w/attributes.json"]),
        ("/v/0/7", 404, vec!["GET v/0/7", "LIST v/0/7"]),
    ] {
        assert_eq!(client.get(path).await.status, status, "{path}");
        assert_eq!(remote.take_requests(), requests, "{path}");
        assert_eq!(client.get(path).await.status, status, "{path}");
        assert_eq!(client.send("HEAD", path, &[]).await.status, status, "{path}");
        assert_eq!(remote.take_requests(), Vec::<String>::new(), "{path}");
    }
    // Blocks that exist are compared as before.
    assert_eq!(client.get("/slice/v").await.status, 200);
    assert_eq!(remote.take_requests(), ["GET v/0/0", "GET v/0/1"]);
    assert_eq!(client.get("/slice/v").await.status, 200);
    assert_eq!(remote.take_requests(), ["GET if changed v/0/0", "GET if changed v/0/1"]);
}

#[tokio::test]
async fn a_new_block_is_found_once_its_hole_is_no_longer_remembered() {
    let remote = remote();
    let age = Duration::from_millis(50);
    let settings = Settings { recheck_missing: Some(RevalidationPolicy::After(age)), ..settings() };
    let settings = Settings { recheck_metadata: FOREVER, recheck_data: FOREVER, ..settings };
    let client = Client::new(Arc::<Remote>::clone(&remote) as Arc<dyn Store>, settings, options());
    let path = "/slice/v?start=0,4&stop=4,6&format=raw";
    assert_eq!(client.get(path).await.body, [0; 8][..]);
    remote.put("v/0/2", block(7));
    tokio::time::sleep(2 * age).await;
    remote.take_requests();
    assert_eq!(client.get(path).await.body, [7; 8][..]);
    assert_eq!(client.get("/v/0/2").await.status, 200);
    assert_eq!(remote.take_requests(), ["GET v/0/2"], "one for the decoded block and the stored one");
}

#[tokio::test]
async fn holes_that_are_remembered_evict_no_blocks() {
    let remote = Arc::new(Remote::default());
    let attributes = r#"{"dimensions":[4,2048],"blockSize":[4,2],"dataType":"uint8","compression":{"type":"raw"}}"#;
    remote.put("v/attributes.json", attributes);
    remote.put("v/0/0", block(3));
    let settings = Settings { decoded_cache: 64 << 10, stored_cache: 64 << 10, ..settings() };
    let settings = Settings { recheck_metadata: FOREVER, recheck_data: FOREVER, ..settings };
    let settings = Settings { recheck_missing: Some(FOREVER), ..settings };
    let client = Client::new(Arc::<Remote>::clone(&remote) as Arc<dyn Store>, settings, options());
    for asks in [1025, 0] {
        for path in ["/slice/v?start=0,0&stop=4,2&format=raw", "/slice/v?start=0,0&stop=4,2048&format=raw"] {
            assert_eq!(client.get(path).await.body[..8], [3; 8][..]);
        }
        assert_eq!(remote.take_requests().len(), asks);
    }
}

#[tokio::test]
async fn a_result_with_a_hole_is_still_compared_with_its_blocks() {
    let remote = remote();
    let settings = Settings { recheck_missing: Some(FOREVER), ..settings() };
    let settings = Settings { recheck_metadata: FOREVER, recheck_data: RevalidationPolicy::Always, ..settings };
    let client = Client::new(Arc::<Remote>::clone(&remote) as Arc<dyn Store>, settings, options());
    let path = "/thumbnail/v?size=16";
    let before = client.get(path).await;
    assert_eq!(before.status, 200);
    // The contrast is automatic: another number alone would give the same picture.
    remote.put("v/0/0", block(200));
    assert_ne!(client.get(path).await.body, before.body);
}

#[tokio::test]
async fn the_tag_of_a_slice_costs_no_request_while_its_blocks_are_fresh() {
    let remote = remote();
    let settings = Settings { recheck_missing: Some(FOREVER), ..settings() };
    let settings = Settings { recheck_metadata: FOREVER, recheck_data: FOREVER, ..settings };
    let client = Client::new(Arc::<Remote>::clone(&remote) as Arc<dyn Store>, settings, options());
    let etag = client.get("/slice/v?format=raw").await.header("etag").unwrap().to_owned();
    remote.take_requests();
    let unchanged = client.get_with("/slice/v?format=raw", &[("if-none-match", &etag)]).await;
    assert_eq!(unchanged.status, 304);
    assert_eq!(remote.take_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn the_tag_of_a_chunk_costs_no_request_while_its_blocks_are_fresh() {
    let remote = remote();
    let client = client(&remote, FOREVER, FOREVER);
    for path in ["/zarr3/v/c/0/0", "/as/gzip/v/0/1", "/zarr2/v/1/0"] {
        let etag = client.get(path).await.header("etag").unwrap().to_owned();
        remote.take_requests();
        assert_eq!(client.get_with(path, &[("if-none-match", &etag)]).await.status, 304, "{path}");
        assert_eq!(client.get_with(path, &[("if-none-match", "\"x\"")]).await.status, 200, "{path}");
        assert_eq!(remote.take_requests(), Vec::<String>::new(), "{path}");
    }
}

#[tokio::test]
async fn a_raw_block_and_a_region_of_it_share_a_request() {
    let remote = remote();
    let client = client(&remote, FOREVER, FOREVER);
    client.get("/v/attributes.json").await;
    remote.take_requests();
    let paths = ["/slice/v?start=0,0&stop=4,2", "/v/0/0", "/as/gzip/v/0/0", "/v/0/0"];
    for response in futures_util::future::join_all(paths.map(|path| client.get(path))).await {
        assert_eq!(response.status, 200);
    }
    assert_eq!(remote.take_requests(), ["GET v/0/0"]);
}

#[tokio::test]
async fn a_name_with_a_suffix_is_listed_once() {
    let remote = remote();
    let settings = Settings { recheck_missing: Some(FOREVER), ..settings() };
    let settings = Settings { recheck_metadata: FOREVER, recheck_data: FOREVER, ..settings };
    let client = Client::new(Arc::<Remote>::clone(&remote) as Arc<dyn Store>, settings, options());
    remote.put(
        "em/s0/attributes.json",
        r#"{"dimensions":[4,6],"blockSize":[4,2],"dataType":"uint8","compression":{"type":"raw"}}"#,
    );
    remote.put("em/s0/0/0", block(1));
    assert_eq!(client.get("/zarr3/em.ome.zarr/s0/c/0/0").await.status, 200);
    let requests = remote.take_requests();
    assert_eq!(requests.iter().filter(|request| request.starts_with("LIST")).count(), 3, "{requests:?}");
    assert_eq!(client.get("/zarr3/em.ome.zarr/s0/c/0/0").await.status, 200);
    assert_eq!(remote.take_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn statistics_request_no_block_that_a_cache_has() {
    let remote = remote();
    let settings = Settings { recheck_missing: Some(FOREVER), ..settings() };
    let settings = Settings { recheck_metadata: FOREVER, recheck_data: FOREVER, ..settings };
    let client = Client::new(Arc::<Remote>::clone(&remote) as Arc<dyn Store>, settings, options());
    assert_eq!(client.get("/slice/v").await.status, 200);
    remote.take_requests();
    assert_eq!(client.get("/stats/v").await.status, 200);
    assert_eq!(remote.take_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn without_conditional_requests_only_changed_blocks_are_read_again() {
    let remote = remote_of(Remote::unconditional());
    let client = client(&remote, FOREVER, RevalidationPolicy::Always);
    let path = "/slice/v?start=0,0&stop=4,4&format=raw";
    assert_eq!(client.get(path).await.status, 200);
    remote.take_requests();
    let warm = client.get(path).await;
    assert!(warm.header("server-timing").unwrap().contains("cache;desc=hit"));
    assert_eq!(remote.take_requests(), ["HEAD v/0/0", "HEAD v/0/1"]);
    remote.put("v/0/1", block(9));
    let changed = client.get(path).await;
    assert_eq!(changed.body[..], [[0; 8], [9; 8]].concat()[..]);
    assert_eq!(remote.take_requests(), ["HEAD v/0/0", "HEAD v/0/1", "GET v/0/1"]);
}

#[tokio::test]
async fn a_read_that_must_not_block_never_calls_the_store() {
    for policy in [FOREVER, RevalidationPolicy::Always] {
        let remote = remote();
        let client = client(&remote, policy, policy);
        for is_warm in [false, true] {
            for path in [
                "/v/attributes.json",
                "/v/0/0",
                "/v/0/2",
                "/missing",
                "/slice/v",
                "/zarr2/v/.zarray",
                "/zarr2/v/0/0",
                "/zarr3/v/zarr.json",
                "/zarr3/v/c/0/0",
                "/zarr3/v/c/2/0",
                "/precomputed/v/info",
            ] {
                if is_warm {
                    client.get(path).await;
                    remote.take_requests();
                }
                fast_path_status(&client, path);
                assert!(remote.take_requests().is_empty(), "{path}, {policy:?}, warm: {is_warm}");
            }
        }
        let resources = Resources::new(Settings { recheck_metadata: policy, recheck_data: policy, ..settings() });
        let container = Container::new(Arc::<Remote>::clone(&remote) as Arc<dyn Store>, resources);
        let (dataset, block) = (Key::parse("v").unwrap(), Key::parse("v/0/0").unwrap());
        for is_warm in [false, true] {
            let options = ReadOptions::begin();
            if is_warm {
                container.object(options, &block).await.unwrap();
                container.dataset(options, &dataset).await.unwrap();
                remote.take_requests();
            }
            let options = ReadOptions::begin().nonblocking();
            drop(container.object(options, &block).now_or_never());
            drop(container.meta(options, &block).now_or_never());
            drop(container.group(options, &dataset).now_or_never());
            drop(container.attributes_bytes(options, &dataset, 1 << 10).now_or_never());
            drop(container.is_directory(options, &dataset).now_or_never());
            drop(container.block_at(options, &block).now_or_never());
            drop(container.is_block_position(options, &block).now_or_never());
            assert!(remote.take_requests().is_empty(), "{policy:?}, warm: {is_warm}");
        }
    }
}
