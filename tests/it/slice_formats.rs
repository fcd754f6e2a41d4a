//! `/slice`: other element types, and the formats for images, stacks and blocks.

use n5_format::{DataType, convert};
use n5_server::container::Settings;

use crate::support::writer::{Dataset, N5, encode};
use crate::support::{Client, local, options, settings};

/// Creates a dataset of 40 x 30 x 20 `uint16` in cropped blocks. One block is missing, and no element exceeds 24,000.
fn counting(n5: &N5) -> Dataset {
    let dataset = n5.dataset("a", &[40, 30, 20], &[16, 16, 8], "gzip");
    dataset.fill(|position| position != [1, 1, 1], |_| false);
    dataset
}

/// Returns a client of a server whose slice budget is so small that most responses are sent in bands.
fn tight(n5: &N5, slice_budget: u64) -> Client {
    Client::new(local(n5.root()), Settings { slice_budget, decode_factor: 1000, ..settings() }, options())
}

#[tokio::test]
async fn dtype_converts_before_every_format() {
    let n5 = N5::new();
    counting(&n5);
    let client = Client::of(n5.root());
    let stored = client.get("/slice/a").await;
    for name in DataType::names().filter(|name| !name.ends_with("int8")) {
        let expected = convert(stored.body.clone(), &DataType::UInt16, &DataType::from_name(name)).unwrap();
        let raw = client.get(&format!("/slice/a?dtype={name}")).await;
        assert_eq!((raw.status.as_u16(), raw.header("n5-data-type")), (200, Some(name)));
        assert_eq!(raw.body, expected, "{name}");
        assert_eq!(raw.header("content-length").unwrap(), expected.len().to_string());
        assert_eq!(raw.header("n5-missing-blocks"), Some("1"));
        let npy = client.get(&format!("/slice/a?dtype={name}&format=npy")).await;
        assert!(npy.body.ends_with(&expected), "{name}");
        let tiff = client.get(&format!("/slice/a?dtype={name}&format=tiff")).await;
        assert!(tiff.body.ends_with(&expected), "{name}");
        let json = client.get(&format!("/slice/a?dtype={name}&format=json&select=1,2,3")).await.json();
        assert_eq!((json["data_type"].as_str(), json["data"].as_f64()), (Some(name), Some(3682.0)));
        assert_eq!(raw.header("etag") == stored.header("etag"), name == "uint16");
    }
    let png = client.get("/slice/a?dtype=float64&format=png&select=:,:,0&window=0,1200").await;
    assert_eq!(png.body, client.get("/slice/a?format=png&select=:,:,0&window=0,1200").await.body);
}

#[tokio::test]
async fn a_streamed_response_is_converted_like_a_buffered_one() {
    let n5 = N5::new();
    counting(&n5);
    let buffered = Client::of(n5.root());
    for budget in [96_000, 30_000, 4_000] {
        let streaming = tight(&n5, budget);
        for query in [
            "?dtype=float64",
            "?dtype=float32&endian=big",
            "?dtype=uint32&format=npy",
            "?dtype=int16&format=n5",
            "?dtype=float32&format=tiff&step=1,1,3",
            "?dtype=uint64&step=3,2,1",
            "?format=n5",
            "?format=tiff&select=...,:3",
        ] {
            let path = format!("/slice/a{query}");
            let (a, b) = (buffered.get(&path).await, streaming.get(&path).await);
            assert_eq!((a.status.as_u16(), b.status.as_u16()), (200, 200), "{path} {budget} {:?}", b.body);
            assert_eq!(a.body, b.body, "{path} {budget}");
            let head = streaming.send("HEAD", &path, &[]).await;
            for name in ["content-length", "n5-data-type", "n5-shape", "content-type"] {
                assert_eq!(a.header(name), b.header(name), "{path}");
                assert_eq!(a.header(name), head.header(name), "{path}");
            }
        }
    }
    assert!(tight(&n5, 4_000).get("/slice/a?dtype=float64").await.header("etag").is_none());
}

#[tokio::test]
async fn tiff_directories_count_against_the_slice_budget() {
    let n5 = N5::new();
    n5.dataset("deep", &[20, 10, 3000], &[20, 10, 100], "raw");
    let path = "/slice/deep?format=tiff";
    // 3,000 directories of 126 bytes take 378 KB. That is an eighth of 3.1 MB, but more than an eighth of 1 MB.
    let buffered = Client::of(n5.root()).get(path).await;
    assert_eq!((buffered.status.as_u16(), buffered.body.len() / 1000), (200, 1578));
    let refused = tight(&n5, 1_000_000).get(path).await;
    assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (413, "too-large"));
    let client = tight(&n5, 3_100_000);
    let path = "/slice/deep?format=tiff&dtype=float64";
    for _ in 0..2 {
        let streamed = client.get(path).await;
        assert_eq!(streamed.status, 200, "{:?}", streamed.body);
        assert!(streamed.header("etag").is_none());
        assert_eq!(streamed.body, Client::of(n5.root()).get(path).await.body);
    }
}

#[tokio::test]
async fn an_unrepresentable_value_is_named() {
    let n5 = N5::new();
    counting(&n5);
    let client = Client::of(n5.root());
    // The first element above 255 is 256, in the first plane.
    let reply = client.get("/slice/a?dtype=uint8").await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (422, "not-representable"));
    let problem = reply.json();
    assert_eq!(
        (&problem["value"], &problem["from"], &problem["to"]),
        (&"256".into(), &"uint16".into(), &"uint8".into())
    );
    assert!(problem["detail"].as_str().unwrap().contains("float32"), "{problem}");
    assert_eq!(client.get("/slice/a?dtype=uint8&size=40,6,1").await.status, 200);
    // The value is in the first band, so the status can still report it.
    assert_eq!(tight(&n5, 10_000).get("/slice/a?dtype=int8").await.problem(), "not-representable");
}

#[tokio::test]
async fn an_unrepresentable_value_in_a_later_band_aborts_the_response() {
    use http_body_util::BodyExt;
    let n5 = N5::new();
    n5.dataset("late", &[64, 64, 64], &[64, 64, 8], "raw");
    n5.file("late/0/0/7", encode(&[64, 64, 8], &vec![300; 64 * 64 * 8], false));
    let client = tight(&n5, 200_000);
    let request = axum::http::Request::get("/slice/late?dtype=uint8").body(axum::body::Body::empty()).unwrap();
    let response = client.ask(request).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-length"], "262144");
    let mut body = response.into_body();
    let (mut bytes, mut broken) = (0, false);
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => bytes += frame.into_data().unwrap().len(),
            Err(_) => broken = true,
        }
    }
    assert!(broken && bytes > 0 && bytes <= 64 * 64 * 56, "{broken} {bytes}");
    // The broken-off response has released its memory.
    assert_eq!(client.get("/slice/late?size=64,64,20").await.status, 200);
}

#[tokio::test]
async fn invalid_parameters_are_refused_with_the_allowed_values() {
    let n5 = N5::new();
    counting(&n5);
    let client = Client::of(n5.root());
    let reply = client.get("/slice/a?dtype=float16").await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (400, "invalid-parameter"));
    assert_eq!(reply.json()["known"].as_array().unwrap().len(), 10);
    for (query, hint) in [
        ("format=jpeg", "two axes"),
        ("format=jpeg&select=:,:,0", "window=lo,hi"),
        ("format=npy&window=0,1", "format=png or jpeg or tiff only"),
        ("format=tiff&window=0,1;2,3", "one window"),
        ("format=n5&endian=big", "format=raw only"),
        ("quality=50", "format=jpeg only"),
        ("format=jpeg&quality=0", "from 1"),
        ("format=jpeg&quality=101", "to 100"),
        ("format=jpeg&quality=%2B5", "whole number"),
    ] {
        let reply = client.get(&format!("/slice/a?{query}")).await;
        assert_eq!(reply.status, 400, "{query}");
        let detail = reply.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(hint), "{query}: {detail}");
    }
}

#[tokio::test]
async fn a_slice_in_n5_format_can_be_stored_as_a_block() {
    let n5 = N5::new();
    counting(&n5);
    let client = Client::of(n5.root());
    let block = client.get("/slice/a?start=3,4,5&size=7,6,5&format=n5").await;
    assert_eq!(block.header("content-type"), Some("application/x-n5-block"));
    n5.file(
        "copy/attributes.json",
        r#"{"dimensions":[7,6,5],"blockSize":[7,6,5],"dataType":"uint16","compression":{"type":"raw"}}"#,
    );
    n5.file("copy/0/0/0", &block.body);
    assert_eq!(client.get("/slice/copy").await.body, client.get("/slice/a?start=3,4,5&size=7,6,5").await.body);
}

#[tokio::test]
async fn jpeg_is_chosen_only_if_no_other_format_is_acceptable() {
    let n5 = N5::new();
    counting(&n5);
    let client = Client::of(n5.root());
    let path = "/slice/a?size=10,6,1&dtype=uint8";
    for (accept, answered) in [("image/jpeg", "image/jpeg"), ("image/jpeg, */*;q=0.1", "application/octet-stream")] {
        let reply = client.get_with(path, &[("accept", accept)]).await;
        assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some(answered)));
    }
    let sizes =
        [1, 50, 100].map(|quality| format!("/slice/a?format=jpeg&window=0,3000&select=:,:,0&quality={quality}"));
    let mut last = 0;
    for path in sizes {
        let bytes = client.get(&path).await.body.len();
        assert!(bytes > last, "{path}: {bytes}");
        last = bytes;
    }
}
