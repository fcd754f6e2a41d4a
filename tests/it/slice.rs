//! `/slice`: every response equals the result of looking up each element.

use std::fs;

use crate::support::writer::{Dataset, N5, all_indices};
use crate::support::{Client, local, options, settings};

/// Returns the elements `start + k * step`, first axis fastest, as little-endian bytes. Blocks that `keep` rejects are
/// holes.
fn reference(dataset: &Dataset, start: &[i64], shape: &[u64], step: &[u64], keep: impl Fn(&[u64]) -> bool) -> Vec<u8> {
    all_indices(shape)
        .iter()
        .flat_map(|k| {
            let at: Vec<i64> = (0..k.len()).map(|a| start[a] + i64::try_from(k[a] * step[a]).unwrap()).collect();
            let inside = at.iter().zip(&dataset.dimensions).all(|(i, d)| *i >= 0 && i.unsigned_abs() < *d);
            let block: Vec<u64> = at.iter().zip(&dataset.block_size).map(|(i, b)| i.unsigned_abs() / b).collect();
            let value = if inside && keep(&block) { dataset.value(&at) } else { 0 };
            value.to_le_bytes()
        })
        .collect()
}

fn list<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Creates a sparse dataset with cropped and padded blocks at the edge.
fn sparse(n5: &N5, path: &str, compression: &str) -> Dataset {
    let dataset = n5.dataset(path, &[7, 5, 4], &[3, 2, 3], compression);
    dataset.fill(kept, |position| position[0] % 2 == 0);
    dataset
}

fn kept(position: &[u64]) -> bool {
    position.iter().sum::<u64>() % 3 != 1
}

#[tokio::test]
async fn every_box_equals_a_per_element_lookup() {
    let n5 = N5::new();
    let dataset = sparse(&n5, "a", "gzip");
    let client = Client::of(n5.root());
    for start in all_indices(&[7, 5, 4]) {
        let stop: Vec<u64> = start.iter().zip([7u64, 5, 4]).map(|(s, d)| (s + 1 + (s * 7 + 3) % 4).min(d)).collect();
        let reply = client.get(&format!("/slice/a?start={}&stop={}", list(&start), list(&stop))).await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        let shape: Vec<u64> = start.iter().zip(&stop).map(|(a, b)| b - a).collect();
        let start: Vec<i64> = start.iter().map(|s| i64::try_from(*s).unwrap()).collect();
        assert_eq!(reply.body, reference(&dataset, &start, &shape, &[1, 1, 1], kept));
        assert_eq!(reply.header("n5-shape").unwrap(), list(&shape));
        assert_eq!(reply.header("content-length").unwrap(), (shape.iter().product::<u64>() * 2).to_string());
    }
}

#[tokio::test]
async fn steps_and_outside_regions_equal_a_per_element_lookup() {
    let n5 = N5::new();
    let dataset = sparse(&n5, "a", "raw");
    let client = Client::of(n5.root());
    for (start, size, step) in [
        ([-2i64, -1, 0], [12u64, 8, 9], [1u64, 1, 1]),
        ([0, 0, 0], [7, 5, 4], [2, 3, 2]),
        ([1, 1, 1], [6, 4, 3], [4, 1, 5]),
        ([-5, 3, -1], [20, 1, 6], [7, 1, 3]),
        ([100, 0, 0], [3, 3, 3], [1, 1, 1]),
    ] {
        let path = format!("/slice/a?start={}&size={}&step={}&outside=zero", list(&start), list(&size), list(&step));
        let reply = client.get(&path).await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        let shape: Vec<u64> = size.iter().zip(&step).map(|(n, s)| n.div_ceil(*s)).collect();
        assert_eq!(reply.body, reference(&dataset, &start, &shape, &step, kept), "{path}");
    }
}

#[tokio::test]
async fn a_streamed_response_equals_a_buffered_one() {
    let n5 = N5::new();
    let dataset = n5.dataset("a", &[70, 50, 40], &[16, 16, 16], "gzip");
    dataset.fill(kept, |_| false);
    let whole = Client::of(n5.root());
    for (budget, factor) in [(70 * 50 * 16 * 2, 16), (70 * 50 * 2 * 3, 100), (70 * 2 * 4, 1000)] {
        let tight = n5_server::container::Settings { slice_budget: budget, decode_factor: factor, ..settings() };
        let streaming = Client::new(local(n5.root()), tight, options());
        for query in ["", "?start=3,4,5&stop=69,48,37", "?step=2,1,3", "?endian=big", "?select=:,::2,5:33"] {
            let (a, b) =
                (whole.get(&format!("/slice/a{query}")).await, streaming.get(&format!("/slice/a{query}")).await);
            assert_eq!((a.status.as_u16(), b.status.as_u16()), (200, 200), "{query} {:?}", b.body);
            assert_eq!(a.body, b.body, "budget {budget} {query}");
            for name in ["n5-shape", "n5-data-type", "content-length", "content-type", "n5-start", "n5-step"] {
                assert_eq!(a.header(name), b.header(name));
            }
            assert!(a.header("etag").is_some());
            let streamed = b.body.len() as u64 > budget - budget / 4;
            assert_eq!(b.header("etag").is_none(), streamed, "{query}");
            assert_eq!(b.header("n5-missing-blocks").is_none(), streamed, "{query}");
        }
    }
}

#[tokio::test]
async fn too_large_or_too_costly_slices_are_refused_before_reading() {
    let n5 = N5::new();
    n5.dataset("huge", &[1 << 20, 1 << 20, 1 << 10], &[64, 64, 64], "raw");
    n5.dataset("deep", &[1 << 14, 1 << 14, 64, 64], &[64, 64, 64, 64], "raw");
    let client = Client::of(n5.root());
    for path in ["/slice/huge", "/slice/deep", "/slice/huge?start=0,0,0&size=4096,4096,1&format=json"] {
        let reply = client.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (413, "too-large"), "{path}");
        assert!(reply.json()["limit"].is_u64());
    }
    let piece: Vec<u64> = serde_json::from_value(client.get("/slice/huge").await.json()["piece"].clone()).unwrap();
    let reply = client.get(&format!("/slice/huge?start=0,0,0&size={}", list(&piece))).await;
    assert_eq!(reply.status, 200, "{:?}", reply.body);
}

#[tokio::test]
async fn axis_and_byte_orders_give_the_same_elements() {
    let n5 = N5::new();
    let dataset = sparse(&n5, "a", "raw");
    let client = Client::of(n5.root());
    let little = reference(&dataset, &[0, 0, 0], &[7, 5, 4], &[1, 1, 1], kept);
    let c = client.get("/slice/a?order=C").await;
    assert_eq!((c.header("n5-shape"), c.header("n5-order")), (Some("4,5,7"), Some("C")));
    assert_eq!(c.body, little);
    let big = client.get("/slice/a?endian=big").await;
    assert_eq!(big.header("n5-byte-order"), Some("big"));
    let swapped: Vec<u8> = little.chunks(2).flat_map(|e| [e[1], e[0]]).collect();
    assert_eq!(big.body, swapped);
    let json = client.get("/slice/a?format=json&select=6,:2,...").await.json();
    assert_eq!(json["shape"], serde_json::json!([2, 4]));
    assert_eq!(json["data"][1][3], dataset.value(&[6, 1, 3]));
}

#[tokio::test]
async fn the_entity_tag_depends_on_the_blocks_and_survives_a_restart() {
    let n5 = N5::new();
    let dataset = sparse(&n5, "a", "gzip");
    let path = "/slice/a?start=0,0,0&stop=3,4,3";
    let first = Client::of(n5.root()).get(path).await;
    let client = Client::of(n5.root());
    let etag = first.header("etag").unwrap().to_owned();
    assert_eq!(client.get(path).await.header("etag"), Some(etag.as_str()));
    let cached = client.get_with(path, &[("if-none-match", &etag)]).await;
    assert_eq!((cached.status.as_u16(), cached.body.len()), (304, 0));
    assert_eq!(cached.header("etag"), Some(etag.as_str()));
    assert_ne!(client.get(&format!("{path}&order=C&format=npy")).await.header("etag"), Some(etag.as_str()));
    // Filling a hole changes the entity tag.
    dataset.write_block(&[0, 1, 0], false);
    let changed = client.get_with(path, &[("if-none-match", &etag)]).await;
    assert_eq!(changed.status, 200);
    assert_ne!(changed.header("etag"), Some(etag.as_str()));
    assert_ne!(changed.body, first.body);
}

#[tokio::test]
async fn a_damaged_block_is_named_and_others_are_still_read() {
    let n5 = N5::new();
    let dataset = sparse(&n5, "a", "gzip");
    fs::write(dataset.block_path(&[0, 0, 0]), b"\0\0\0\x03\0\0\0\x03\0\0\0\x02\0\0\0\x03garbage").unwrap();
    let client = Client::of(n5.root());
    let reply = client.get("/slice/a?start=0,0,0&size=1,1,1").await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (422, "corrupt-block"));
    assert_eq!(reply.json()["block"], serde_json::json!([0, 0, 0]));
    assert_eq!(client.get("/slice/a?start=6,0,0&size=1,1,1").await.status, 200);
    dataset.write_block(&[0, 0, 0], false);
    assert_eq!(client.get("/slice/a?start=0,0,0&size=1,1,1").await.body, 1u16.to_le_bytes().as_slice());
}

#[tokio::test]
async fn empty_selections_and_rank_0_are_answered() {
    let n5 = N5::new();
    sparse(&n5, "a", "raw");
    n5.file(
        "zero/attributes.json",
        r#"{"dimensions":[0,3],"blockSize":[2,2],"dataType":"int8","compression":{"type":"raw"}}"#,
    );
    n5.file(
        "rank0/attributes.json",
        r#"{"dimensions":[],"blockSize":[],"dataType":"uint16","compression":{"type":"raw"}}"#,
    );
    n5.file("rank0/0", [0, 0, 0, 0, 0, 7]);
    let client = Client::of(n5.root());
    let empty = client.get("/slice/a?start=2,2,2&stop=2,4,4").await;
    assert_eq!((empty.status.as_u16(), empty.body.len(), empty.header("n5-shape")), (200, 0, Some("0,2,2")));
    assert_eq!(client.get("/slice/zero").await.header("n5-shape"), Some("0,3"));
    assert_eq!(client.get("/slice/rank0").await.body, [7u8, 0].as_slice());
    assert_eq!(client.get("/slice/rank0?format=json").await.json()["data"], 7);
}

#[tokio::test]
async fn head_gives_the_headers_of_get_without_reading() {
    let n5 = N5::new();
    sparse(&n5, "a", "gzip");
    let client = Client::of(n5.root());
    for query in ["", "?format=npy", "?select=0,1,2&format=json"] {
        let path = format!("/slice/a{query}");
        let (head, get) = (client.send("HEAD", &path, &[]).await, client.get(&path).await);
        assert_eq!((head.status, head.body.len()), (get.status, 0));
        for name in ["content-type", "n5-shape", "n5-data-type", "cache-control", "vary"] {
            assert_eq!(head.header(name), get.header(name), "{path} {name}");
        }
        if !query.contains("json") {
            assert_eq!(head.header("content-length"), get.header("content-length"));
        }
    }
}

#[tokio::test]
async fn an_empty_region_is_empty_however_long_its_other_axes_are() {
    let n5 = N5::new();
    sparse(&n5, "a", "raw");
    let attributes = |dimensions: &str| {
        format!(
            r#"{{"dimensions":{dimensions},"blockSize":[4,4,4],"dataType":"uint8","compression":{{"type":"raw"}}}}"#
        )
    };
    n5.file("huge/attributes.json", attributes("[9223372036854775807,3,9223372036854775807]"));
    let client = Client::of(n5.root());
    for (dataset, region) in [
        ("huge", "start=0,3,0"),
        ("huge", "start=0,3,0&stop=9223372036854775807,3,9223372036854775807"),
        ("a", "start=0,0,0&size=9223372036854775807,9223372036854775807,0&outside=zero"),
        ("a", "start=0,0,0&size=0,9223372036854775807,9223372036854775807&outside=zero"),
        ("a", "start=0,0,0&size=9223372036854775807,0,9223372036854775807&outside=zero"),
        ("a", "start=0,0,0&size=9223372036854775807,0,1&outside=zero"),
    ] {
        for format in ["raw", "npy", "n5", "json", "tiff", "png", "jpeg"] {
            for more in ["", "&order=C", "&dtype=float32&step=3,2,5"] {
                let path = format!("/slice/{dataset}?{region}&format={format}{more}");
                let (head, get) = (client.send("HEAD", &path, &[]).await, client.get(&path).await);
                assert_eq!(head.status, get.status, "{path}");
                assert!(matches!(get.status.as_u16(), 200 | 400 | 413), "{path}: {}", get.status);
                assert!(format != "raw" || get.status == 200 && get.body.is_empty(), "{path}: {}", get.status);
                assert!(get.body.len() < 4096, "{path}: {} bytes", get.body.len());
            }
        }
    }
}
