//! Outages of a remote store that cannot report them: an HTTP server, which then answers 404 to everything.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use n5_server::cache::RevalidationPolicy;
use n5_server::container::Settings;
use n5_server::store::Store;

use crate::support::remote::Remote;
use crate::support::{Client, options, settings};

const FOREVER: RevalidationPolicy = RevalidationPolicy::After(Duration::from_secs(3600));

/// Number of requests of an outage that ends only when the test ends it.
const UNTIL_ENDED: usize = usize::MAX;

/// Creates a dataset of eight blocks, of which only the first two exist, and a client of a server of it.
fn dataset() -> (Arc<Remote>, Client) {
    let remote = Arc::new(Remote::http());
    let attributes = r#"{"dimensions":[4,16],"blockSize":[4,2],"dataType":"uint8","compression":{"type":"raw"}}"#;
    remote.put("v/attributes.json", attributes);
    for n in 0..2 {
        remote.put(&format!("v/0/{n}"), block(7 + n));
    }
    let settings = Settings { recheck_metadata: FOREVER, recheck_data: FOREVER, ..settings() };
    let settings = Settings { recheck_missing: Some(FOREVER), ..settings };
    let client = Client::new(Arc::<Remote>::clone(&remote) as Arc<dyn Store>, settings, options());
    (remote, client)
}

/// Returns a block of 4 x 2 elements, all equal to `value`.
fn block(value: u8) -> Vec<u8> {
    [&[0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 2][..], &[value; 8]].concat()
}

const SLICE_OF_BLOCK: &str = "/slice/v?start=0,0&stop=4,2&format=raw";
const SLICE_OF_TWO: &str = "/slice/v?start=0,0&stop=4,4&format=raw";

#[tokio::test]
async fn an_outage_makes_no_block_missing() {
    for path in [
        "/v/0/0",
        SLICE_OF_BLOCK,
        SLICE_OF_TWO,
        "/zarr2/v/0/0",
        "/zarr3/v/c/0/0",
        "/as/gzip/v/0/0",
        "/thumbnail/v?size=16",
        "/stats/v",
    ] {
        let (remote, client) = dataset();
        assert_eq!(client.get("/v/attributes.json").await.status, 200);
        remote.fail(UNTIL_ENDED);
        let during = client.get(path).await;
        assert_eq!(during.status, 503, "{path}: {}", String::from_utf8_lossy(&during.body));
        let (fresh_remote, fresh) = dataset();
        remote.fail(0);
        let after = client.get(path).await;
        assert_eq!(after.body, fresh.get(path).await.body, "{path}");
        assert_eq!(after.status, 200, "{path}");
        drop(fresh_remote);
    }
}

#[tokio::test]
async fn a_request_for_metadata_during_an_outage_hides_no_block_afterwards() {
    let (remote, client) = dataset();
    client.get("/v/attributes.json").await;
    remote.fail(UNTIL_ENDED);
    for path in ["/v/0/0", "/v/0/1", "/w/attributes.json", "/v/", "/v/x"] {
        client.send("HEAD", path, &[]).await;
    }
    client.get_with(SLICE_OF_TWO, &[("if-none-match", "\"x\"")]).await;
    remote.fail(0);
    remote.put("w/attributes.json", "{}");
    assert_eq!(client.get(SLICE_OF_TWO).await.body, [[7; 8], [8; 8]].concat()[..]);
    assert_eq!(client.get("/w/attributes.json").await.status, 200);
}

#[tokio::test]
async fn an_outage_that_ends_while_a_slice_is_read_leaves_no_zeros() {
    let datasets: Vec<_> = (1..6).map(|failing| (failing, dataset())).collect();
    for (_, (_, client)) in &datasets {
        client.get("/v/attributes.json").await;
    }
    tokio::time::sleep(Duration::from_millis(2100)).await;
    for (failing, (remote, client)) in &datasets {
        remote.fail(*failing);
        let during = client.get(SLICE_OF_TWO).await;
        assert_eq!(during.status, 503, "{failing}");
        remote.fail(0);
        assert_eq!(client.get(SLICE_OF_TWO).await.body, [[7; 8], [8; 8]].concat()[..], "{failing}");
    }
}

#[tokio::test]
async fn an_answer_that_arrives_after_the_dataset_was_seen_is_confirmed_again() {
    let (remote, client) = dataset();
    client.get("/v/attributes.json").await;
    remote.delay("v/0/0", Duration::from_millis(300));
    let slice = client.get(SLICE_OF_BLOCK);
    let others = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        // A hole, so that the dataset is requested.
        assert_eq!(client.get("/v/0/5").await.status, 404);
        remote.fail(UNTIL_ENDED);
    };
    let (slice, ()) = tokio::join!(slice, others);
    assert_eq!(slice.status, 503);
    remote.fail(0);
    assert_eq!(client.get(SLICE_OF_BLOCK).await.body, [7; 8][..]);
}

#[tokio::test]
async fn a_request_that_is_cancelled_during_an_outage_leaves_no_hole() {
    let (remote, client) = dataset();
    client.get("/v/attributes.json").await;
    remote.delay("v/attributes.json", Duration::from_secs(60));
    remote.fail(2);
    let slice = tokio::time::timeout(Duration::from_millis(200), client.get(SLICE_OF_TWO)).await;
    assert!(slice.is_err(), "it waits for the attributes");
    remote.delay("v/attributes.json", Duration::ZERO);
    assert_eq!(client.get(SLICE_OF_TWO).await.body, [[7; 8], [8; 8]].concat()[..]);
}

#[tokio::test]
async fn the_holes_of_a_slice_cost_one_further_request_and_nothing_while_they_are_remembered() {
    let (remote, client) = dataset();
    assert_eq!(client.get("/slice/v?format=raw").await.status, 200);
    let requests = remote.take_requests();
    let [blocks, attributes] = ["GET v/0/", "GET if changed v/attributes.json"]
        .map(|kind| requests.iter().filter(|r| r.starts_with(kind)).count());
    // On a machine that stalls for half a second, the attributes are requested once more.
    assert!(blocks == 8 && (1..=3).contains(&attributes), "{requests:?}");
    for path in
        ["/slice/v?format=raw", "/v/0/5", "/zarr3/v/c/5/0", "/as/gzip/v/0/6", "/thumbnail/v?size=16", "/stats/v"]
    {
        let status = client.get(path).await.status;
        assert!(status == 200 || status == 404, "{path}");
    }
    let requests = remote.take_requests();
    assert!(!requests.iter().any(|request| request.contains("v/")), "{requests:?}");
}

#[tokio::test]
async fn after_a_pause_holes_are_requested_twice() {
    let (remote, client) = dataset();
    client.get("/v/attributes.json").await;
    tokio::time::sleep(Duration::from_millis(2100)).await;
    remote.take_requests();
    let path = "/slice/v?start=0,8&stop=4,12&format=raw";
    assert_eq!(client.get(path).await.status, 200);
    let mut requests = remote.take_requests();
    requests.sort();
    requests.dedup();
    let attributes = "GET if changed v/attributes.json";
    assert_eq!(requests, [attributes, "GET v/0/4", "GET v/0/5", "HEAD v/0/4", "HEAD v/0/5"]);
    assert_eq!(client.get(path).await.status, 200);
    assert_eq!(client.get("/v/0/4").await.status, 404);
    assert_eq!(remote.take_requests(), Vec::<String>::new());
}

#[tokio::test]
async fn requests_for_holes_at_the_same_time_share_the_request_for_the_dataset() {
    let (remote, client) = dataset();
    client.get("/v/attributes.json").await;
    remote.take_requests();
    let paths: Vec<String> = (2..8).map(|n| format!("/v/0/{n}")).collect();
    for response in join_all(paths.iter().map(|path| client.get(path))).await {
        assert_eq!(response.status, 404);
    }
    let requests = remote.take_requests();
    let attributes = requests.iter().filter(|request| request.contains("attributes")).count();
    assert!(attributes <= 3 && requests.len() == 6 + attributes, "{requests:?}");
    drop(client.get("/v/0/2").now_or_never());
    assert_eq!(remote.take_requests(), Vec::<String>::new());
}
