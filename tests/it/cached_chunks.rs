//! Cached responses of view chunks: the fast path sends them without waiting, and does not resolve them again while
//! nothing has changed.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use bytes::Bytes;
use n5_server::container::Settings;
use n5_server::fastpath::{self, FastOutcome, ReplyBody};
use serde_json::json;

use crate::support::writer::N5;
use crate::support::{Client, WholeResponse, let_files_settle, local, options, settings};

/// Longer than the 100 ms for which a thread repeats a response without a lookup in the shared cache.
const THREAD_CACHE_EXPIRY: Duration = Duration::from_millis(150);

/// Returns status, headers and body of the fast path's response, or `None` if the request would go to the router.
fn try_fast_path(
    client: &Client,
    method: &str,
    path: &str,
    tag: Option<&str>,
) -> Option<(String, BTreeSet<String>, Bytes)> {
    let condition = tag.map(|tag| format!("If-None-Match: {tag}\r\n")).unwrap_or_default();
    let text = format!("{method} {path} HTTP/1.1\r\nHost: test\r\n{condition}\r\n");
    let FastOutcome::Request(_, reply) = fastpath::try_answer(&client.app, None, text.as_bytes()) else {
        panic!("no request")
    };
    let reply = reply?;
    let head = std::str::from_utf8(&reply.head).unwrap().to_owned();
    let (status, lines) = head.split_once("\r\n").unwrap();
    let lines = lines.split_terminator("\r\n").filter(|line| !line.is_empty()).map(str::to_owned).collect();
    let ReplyBody::Bytes(body) = reply.body else { panic!("a chunk is sent as a file") };
    Some((status.split(' ').nth(1).unwrap().to_owned(), lines, body))
}

fn fast_path_body(client: &Client, path: &str) -> Option<Bytes> {
    try_fast_path(client, "GET", path, None).map(|(_, _, body)| body)
}

/// Returns the headers of a response of the router, without those that differ between responses.
fn lines(reply: &WholeResponse) -> BTreeSet<String> {
    let lines = reply.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
    comparable(lines.collect())
}

fn comparable(lines: BTreeSet<String>) -> BTreeSet<String> {
    lines.into_iter().filter(|line| !line.starts_with("date: ") && !line.starts_with("x-request-id: ")).collect()
}

fn container() -> N5 {
    let n5 = N5::new();
    n5.dataset("a", &[7, 5], &[3, 2], "gzip").fill(|_| true, |_| true);
    n5
}

const CHUNKS: [&str; 6] =
    ["/as/gzip/a/1/0", "/as/zstd/a/1/0", "/as/raw,float32/a/1/0", "/zarr2/a/0/1", "/zarr3/a/c/0/1", "/zarr3/a/c/2/2"];

#[tokio::test]
async fn the_fast_path_repeats_a_cached_chunk_exactly() {
    let n5 = container();
    let_files_settle();
    let client = Client::of(n5.root());
    for path in CHUNKS {
        let fresh = Client::of(n5.root());
        assert!(try_fast_path(&fresh, "GET", path, None).is_none(), "{path} was never read");
        let reply = client.get(path).await;
        assert_eq!(reply.status, 200, "{path}");
        for round in 0..3 {
            let (status, head, body) =
                try_fast_path(&client, "GET", path, None).unwrap_or_else(|| panic!("{path} {round}"));
            assert_eq!((status.as_str(), &body), ("200", &reply.body), "{path}");
            assert_eq!(comparable(head), lines(&reply), "{path}");
            let (status, head, body) = try_fast_path(&client, "HEAD", path, None).unwrap();
            assert_eq!((status.as_str(), body.len()), ("200", 0), "{path}");
            assert_eq!(comparable(head), lines(&client.send("HEAD", path, &[]).await), "{path}");
            let tag = reply.header("etag").unwrap();
            let (status, head, body) = try_fast_path(&client, "GET", path, Some(tag)).unwrap();
            assert_eq!((status.as_str(), body.len()), ("304", 0), "{path}");
            // hyper removes this header before it sends a 304.
            let mut expected = lines(&client.get_with(path, &[("if-none-match", tag)]).await);
            expected.remove("content-length: 0");
            assert_eq!(comparable(head), expected, "{path}");
            let (status, _, body) = try_fast_path(&client, "GET", path, Some("\"other\"")).unwrap();
            assert_eq!((status.as_str(), &body), ("200", &reply.body), "{path}");
            tokio::time::sleep(THREAD_CACHE_EXPIRY).await;
        }
    }
}

#[tokio::test]
async fn a_cached_chunk_is_revalidated_before_it_is_sent() {
    let n5 = container();
    let dataset = n5.dataset("a", &[7, 5], &[3, 2], "gzip");
    let attributes = fs::read(n5.root().join("a/attributes.json")).unwrap();
    for path in CHUNKS {
        for change in ["block", "hole", "attributes", "no attributes"] {
            dataset.fill(|_| true, |_| true);
            n5.file("a/attributes.json", &attributes);
            let_files_settle();
            let client = Client::of(n5.root());
            let before = client.get(path).await;
            assert_eq!(fast_path_body(&client, path), Some(before.body.clone()), "{path}");
            match change {
                // The requested blocks become copies of another block with the same size in elements.
                "block" => ["1/0", "2/2"].iter().for_each(|block| {
                    fs::copy(n5.root().join("a/0/1"), n5.root().join("a").join(block)).unwrap();
                }),
                "hole" => ["0", "1", "2"].iter().for_each(|x| fs::remove_dir_all(n5.root().join("a").join(x)).unwrap()),
                "attributes" => n5.file("a/attributes.json", String::from_utf8_lossy(&attributes).replace('7', "8")),
                _ => fs::remove_file(n5.root().join("a/attributes.json")).unwrap(),
            }
            assert_eq!(fast_path_body(&client, path), None, "{path}: {change}");
            let_files_settle();
            let after = client.get(path).await;
            if matches!(change, "hole" | "no attributes") {
                assert_eq!(after.status, 404, "{path}: {change}");
                if let Some((status, head, body)) = try_fast_path(&client, "GET", path, None) {
                    assert_eq!((status.as_str(), comparable(head)), ("404", lines(&after)), "{path}: {change}");
                    assert_eq!(body.len(), after.body.len(), "{path}: {change}");
                }
            } else {
                assert_eq!(after.status, 200, "{path}: {change}");
                assert_ne!(after.header("etag"), before.header("etag"), "{path}: {change}");
                assert_eq!(after.body == before.body, change == "attributes", "{path}: {change}");
                assert_eq!(fast_path_body(&client, path), Some(after.body), "{path}: {change}");
            }
        }
    }
}

#[tokio::test]
async fn the_fast_path_does_not_answer_uncached_chunks() {
    let n5 = container();
    let_files_settle();
    for path in CHUNKS {
        let tag = Client::of(n5.root()).get(path).await.header("etag").unwrap().to_owned();
        let client = Client::of(n5.root());
        // This caches the attributes, but no blocks.
        client.get("/info/a").await;
        for _ in 0..2 {
            assert!(try_fast_path(&client, "GET", path, None).is_none(), "{path}");
            assert!(try_fast_path(&client, "GET", path, Some(&tag)).is_none(), "{path}");
            tokio::time::sleep(THREAD_CACHE_EXPIRY).await;
        }
        assert_eq!(client.get_with(path, &[("if-none-match", &tag)]).await.status, 304, "{path}");
        assert!(try_fast_path(&client, "GET", path, None).is_none(), "{path}: a 304 needs no chunk");
    }
}

#[tokio::test]
async fn chunks_that_depend_on_several_datasets_are_resolved_every_time() {
    let n5 = container();
    // A level with another name, and a dataset whose name could be a part of a position.
    let level = |path: &str| {
        let multiscales = json!({"multiscales": [{"version": "0.4", "axes": [{"name": "x"}, {"name": "y"}],
            "datasets": [{"path": path, "coordinateTransformations": [{"type": "scale", "scale": [4.0, 4.0]}]}]}]});
        n5.file("p/attributes.json", multiscales.to_string());
    };
    level("full");
    n5.dataset("p/full", &[7, 5], &[3, 2], "gzip").fill(|_| true, |_| true);
    n5.dataset("p/part", &[7, 5], &[3, 2], "gzip");
    n5.dataset("b/3", &[7, 5], &[3, 2], "gzip").fill(|_| true, |_| true);
    fs::create_dir_all(n5.root().join("p/part/0")).unwrap();
    fs::copy(n5.root().join("a/1/1"), n5.root().join("p/part/0/0")).unwrap();
    let_files_settle();
    let client = Client::of(n5.root());
    for path in ["/as/gzip/p/s0/0/0", "/as/gzip/b/3/0/0"] {
        let reply = client.get(path).await;
        assert_eq!(reply.status, 200, "{path}");
        assert!(fast_path_body(&client, path).is_none_or(|body| body == reply.body), "{path}");
    }
    level("part");
    let further_up = json!({"dimensions": [8, 8, 8], "blockSize": [4, 4, 4], "dataType": "uint8",
        "compression": {"type": "raw"}});
    n5.file("b/attributes.json", further_up.to_string());
    let_files_settle();
    let part = fs::read(n5.root().join("p/part/0/0")).unwrap();
    assert!(fast_path_body(&client, "/as/gzip/p/s0/0/0").is_none_or(|body| body == part));
    assert_eq!(client.get("/as/gzip/p/s0/0/0").await.body, part);
    // The path can be split in two places. The split with the shorter path of the dataset wins.
    assert!(fast_path_body(&client, "/as/gzip/b/3/0/0").is_none());
    assert_eq!(client.get("/as/gzip/b/3/0/0").await.status, 404);
}

#[tokio::test]
async fn an_unusual_request_goes_to_the_http_library() {
    let n5 = container();
    let_files_settle();
    let client = Client::of(n5.root());
    for path in ["/as/gzip/a/0/0?x=y", "/as/gzip/a/0/0/", "/as/gzip/a/attributes.json", "/as/lzma/a/0/0"] {
        for _ in 0..2 {
            client.get(path).await;
            assert!(try_fast_path(&client, "GET", path, None).is_none(), "{path}");
        }
    }
}

#[tokio::test]
async fn an_evicted_chunk_is_encoded_again() {
    let n5 = N5::new();
    n5.dataset("a", &[64, 64], &[8, 8], "raw").fill(|_| true, |_| true);
    let_files_settle();
    let small = Settings { stored_cache: 16 << 10, ..settings() };
    let client = Client::new(local(n5.root()), small, options());
    let first = client.get("/as/gzip/a/0/0").await.body;
    for n in 0..64 {
        client.get(&format!("/as/gzip/a/{}/{}", n / 8, n % 8)).await;
    }
    tokio::time::sleep(THREAD_CACHE_EXPIRY).await;
    assert_eq!(fast_path_body(&client, "/as/gzip/a/0/0"), None);
    assert_eq!(client.get("/as/gzip/a/0/0").await.body, first);
    assert_eq!(fast_path_body(&client, "/as/gzip/a/0/0"), Some(first));
}
