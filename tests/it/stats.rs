//! `/stats`: exact for small datasets, a bounded sample for large ones.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::stores::Probe;
use crate::support::writer::{Dataset, N5, all_indices};
use crate::support::{Client, let_files_settle, local, options, settings};

fn kept(position: &[u64]) -> bool {
    position.iter().sum::<u64>() % 3 != 1
}

/// Returns the elements of the blocks that are stored.
fn stored(dataset: &Dataset, keep: impl Fn(&[u64]) -> bool) -> Vec<u16> {
    let all = all_indices(&dataset.dimensions);
    let inside = all.iter().filter(|index| {
        let block: Vec<u64> = index.iter().zip(&dataset.block_size).map(|(i, b)| i / b).collect();
        keep(&block)
    });
    inside.map(|index| dataset.value(&index.iter().map(|i| i64::try_from(*i).unwrap()).collect::<Vec<_>>())).collect()
}

#[tokio::test]
async fn a_small_dataset_gets_exact_statistics() {
    let n5 = N5::new();
    let dataset = n5.dataset("a", &[7, 5, 4], &[3, 2, 3], "gzip");
    // The padding, 0xdead, must not count.
    dataset.fill(kept, |position| position[0] % 2 == 0);
    let reply = Client::of(n5.root()).get("/stats/a?bins=5&percentiles=0,37.5,100").await;
    assert_eq!(reply.status, 200, "{:?}", reply.body);
    let response = reply.json();
    let mut elements = stored(&dataset, kept);
    elements.sort_unstable();
    let (count, missing) = (elements.len(), 7 * 5 * 4 - elements.len());
    let (min, max) = (elements[0], elements[count - 1]);
    assert_eq!(
        (&response["path"], &response["level"], &response["data_type"]),
        (&json!("a"), &json!(""), &json!("uint16"))
    );
    assert_eq!(response["exact"], json!(true));
    let holes = all_indices(&[3, 3, 2]).iter().filter(|position| !kept(position)).count();
    let sample = json!({"blocks_read": 18 - holes, "blocks_total": 18, "blocks_missing": holes, "blocks_unreadable": 0,
        "elements": count, "elements_missing": missing});
    assert_eq!(response["sample"], sample);
    assert_eq!((&response["min"], &response["max"]), (&json!(min), &json!(max)));
    let mean = elements.iter().map(|n| f64::from(*n)).sum::<f64>() / count as f64;
    assert!((response["mean"].as_f64().unwrap() - mean).abs() < 1e-9);
    assert_eq!((&response["zeros"], &response["nan"], &response["infinite"]), (&json!(missing), &json!(0), &json!(0)));
    let rank = (0.375 * count as f64).ceil() as usize;
    assert_eq!(response["percentiles"], json!({"0": min, "37.5": elements[rank - 1], "100": max}));
    let mut bins = [0_u64; 5];
    for n in &elements {
        bins[(usize::from(n - min) * 5 / usize::from(max - min)).min(4)] += 1;
    }
    assert_eq!(response["histogram"], json!({"min": min, "max": max, "counts": bins}));
    assert_eq!(response["labels"], json!({"distinct": count, "capped": false}));
    assert!(response["note"].as_str().unwrap().starts_with("Every block was read, "), "{}", response["note"]);
}

#[tokio::test]
async fn a_large_dataset_is_sampled_evenly_and_within_bounds() {
    let n5 = N5::new();
    let dataset = n5.dataset("a", &[64, 64, 64], &[4, 4, 4], "raw");
    dataset.fill(|_| true, |_| false);
    let_files_settle();
    let store = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&store), settings(), options());
    let response = client.get("/stats/a").await.json();
    assert_eq!(response["exact"], json!(false));
    assert_eq!(response["sample"]["blocks_read"], json!(64));
    assert_eq!(response["sample"]["blocks_total"], json!(4096));
    assert_eq!(response["sample"]["elements"], json!(4096));
    assert!(store.gets() <= 64 && store.heads() <= 64, "{} {}", store.gets(), store.heads());
    let median = response["percentiles"]["50"].as_f64().unwrap();
    assert!((median / 32_768.0 - 1.0).abs() < 0.1, "{median}");
    let again = client.get("/stats/a").await.json();
    assert_eq!(again, response);
    assert_eq!(store.gets(), 64, "the second time every block is cached");
}

#[tokio::test]
async fn existing_blocks_of_a_sparse_dataset_are_found() {
    let n5 = N5::new();
    let dataset = n5.dataset("a", &[64, 64, 64], &[4, 4, 4], "raw");
    dataset.fill(|position| position[0] == 7, |_| false);
    let store = Probe::new(local(n5.root()));
    let response = Client::new(Arc::<Probe>::clone(&store), settings(), options()).get("/stats/a").await.json();
    assert_eq!(response["sample"]["blocks_read"], json!(64));
    assert!(response["sample"]["blocks_missing"].as_u64().unwrap() > 500, "{response}");
    assert!(response["min"].as_u64().unwrap() > 0, "holes do not count");
    assert!(store.heads() <= 1024 + 64, "{}", store.heads());
    n5.dataset("huge", &[1 << 62, 1 << 62], &[64, 64], "raw");
    let response = Client::of(n5.root()).get("/stats/huge").await.json();
    assert_eq!((&response["min"], &response["max"], &response["exact"]), (&json!(0), &json!(0), &json!(false)));
    assert_eq!(response["sample"]["blocks_missing"], json!(1024));
}

#[tokio::test]
async fn a_dataset_of_holes_is_zeros_and_an_empty_one_has_no_extremes() {
    let n5 = N5::new();
    n5.dataset("holes", &[7, 5], &[3, 2], "raw");
    n5.dataset("empty", &[0, 5], &[3, 2], "raw");
    let client = Client::of(n5.root());
    let holes = client.get("/stats/holes?percentiles=50&bins=2").await.json();
    assert_eq!((&holes["min"], &holes["max"], &holes["zeros"]), (&json!(0), &json!(0), &json!(35)));
    assert_eq!((&holes["exact"], &holes["percentiles"]), (&json!(true), &json!({"50": 0})));
    assert_eq!(holes["histogram"]["counts"], json!([35, 0]));
    let empty = client.get("/stats/empty?percentiles=50").await.json();
    assert_eq!((&empty["min"], &empty["histogram"], &empty["mean"]), (&Value::Null, &Value::Null, &Value::Null));
    assert_eq!((&empty["exact"], &empty["percentiles"]), (&json!(true), &json!({"50": null})));
}

#[tokio::test]
async fn damaged_blocks_are_skipped_unless_all_are_damaged() {
    let n5 = N5::new();
    let dataset = n5.dataset("a", &[8, 2], &[2, 2], "gzip");
    dataset.fill(|_| true, |_| false);
    fs::write(dataset.block_path(&[1, 0]), b"no block").unwrap();
    let client = Client::of(n5.root());
    let response = client.get("/stats/a").await.json();
    assert_eq!((&response["sample"]["blocks_unreadable"], &response["sample"]["blocks_read"]), (&json!(1), &json!(3)));
    assert_eq!((&response["exact"], &response["zeros"]), (&json!(false), &json!(0)));
    for n in 0..4 {
        fs::write(dataset.block_path(&[n, 0]), b"no block").unwrap();
    }
    let reply = client.get("/stats/a").await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (422, "corrupt-block"));
}

#[tokio::test]
async fn a_multiscale_group_is_sampled_at_the_coarsest_sufficient_level() {
    let n5 = N5::new();
    let sizes = [[256, 128, 128], [128, 128, 64], [64, 64, 32]];
    for (level, size) in sizes.iter().enumerate() {
        n5.dataset(&format!("em/s{level}"), size, &[64, 64, 32], "raw").fill(|_| true, |_| false);
        n5.dataset(&format!("small/s{level}"), &size.map(|n| n / 16), &[8, 8, 8], "raw").fill(|_| true, |_| false);
    }
    let scales = json!({"scales": [[1, 1, 1], [2, 1, 2], [4, 2, 4]]}).to_string();
    n5.file("em/attributes.json", &scales);
    n5.file("small/attributes.json", &scales);
    let client = Client::of(n5.root());
    let response = client.get("/stats/em").await.json();
    assert_eq!(
        (&response["level"], &response["exact"], &response["path"]),
        (&json!("s1"), &json!(false), &json!("em"))
    );
    assert_eq!(response["sample"]["elements"], json!(1 << 20));
    assert!(response["note"].as_str().unwrap().contains("Level s1 was read"), "{}", response["note"]);
    let response = client.get("/stats/small").await.json();
    assert_eq!((&response["level"], &response["exact"]), (&json!("s0"), &json!(true)));
    let response = client.get("/stats/em/s2").await.json();
    assert_eq!((&response["level"], &response["exact"]), (&json!(""), &json!(true)));
}

#[tokio::test]
async fn an_entity_tag_identifies_the_statistics() {
    let n5 = N5::new();
    let dataset = n5.dataset("a", &[8, 2], &[2, 2], "gzip");
    dataset.fill(|_| true, |_| false);
    let_files_settle();
    let store = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&store), settings(), options());
    let first = client.get("/stats/a").await;
    let etag = first.header("etag").unwrap().to_owned();
    assert_eq!(first.header("cache-control"), Some("no-cache"));
    let known = client.get_with("/stats/a", &[("if-none-match", &etag)]).await;
    assert_eq!((known.status.as_u16(), known.body.len()), (304, 0));
    assert_eq!(store.gets(), 4, "nothing is read for a 304");
    assert_ne!(client.get("/stats/a?bins=3").await.header("etag").unwrap(), etag);
    let refused = client.get_with("/stats/a", &[("if-match", "\"x\"")]).await;
    assert_eq!(refused.problem(), "precondition-failed");
    dataset.write_block(&[1, 0], true);
    fs::remove_file(dataset.block_path(&[2, 0])).unwrap();
    let changed = client.get_with("/stats/a", &[("if-none-match", &etag)]).await;
    assert_eq!((changed.status.as_u16(), &changed.json()["sample"]["blocks_missing"]), (200, &json!(1)));
    let head = client.send("HEAD", "/stats/a", &[]).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
    assert_eq!(head.header("content-length").unwrap(), changed.body.len().to_string());
    let gzip = client.get_with("/stats/a", &[("accept-encoding", "gzip")]).await;
    assert_eq!(gzip.header("content-encoding"), Some("gzip"));
}

#[tokio::test]
async fn unanswerable_requests_get_a_problem_document() {
    let n5 = N5::new();
    n5.dataset("a", &[8], &[2], "lzma-of-tomorrow");
    n5.file("group/attributes.json", "{}");
    let client = Client::of(n5.root());
    for (path, status, kind) in [
        ("/stats/a", 501, "unsupported"),
        ("/stats/group", 404, "not-a-dataset"),
        ("/stats/", 404, "not-a-dataset"),
        ("/stats", 404, "not-a-dataset"),
        ("/stats/nothing", 404, "not-found"),
        ("/stats/a?bins=0", 400, "invalid-parameter"),
        ("/stats/a?percentiles=101", 400, "invalid-parameter"),
        ("/stats/a?start=0", 400, "invalid-parameter"),
    ] {
        let reply = client.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (status, kind), "{path}");
    }
    assert_eq!(client.get("/stats/a?start=0").await.json()["known"], json!(["bins", "percentiles", "token"]));
}
