//! The view `precomputed`: the contents of `info`, the valid keys, and the elements of chunks.

use serde_json::json;

use crate::support::Client;
use crate::support::writer::{N5, all_indices, encode};

/// Writes a dataset with one raw block for each position. All elements of a block are zero except the first.
fn typed(n5: &N5, path: &str, dimensions: &[u64], block_size: &[u64], data_type: &str, further: &serde_json::Value) {
    let mut attributes = json!({"dimensions": dimensions, "blockSize": block_size, "dataType": data_type,
        "compression": {"type": "raw"}});
    attributes.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    n5.file(&format!("{path}/attributes.json"), attributes.to_string());
    let width = match data_type {
        "uint8" => 1,
        "uint16" => 2,
        "uint64" | "float64" | "int64" => 8,
        _ => 4,
    };
    let grid: Vec<u64> = dimensions.iter().zip(block_size).map(|(d, b)| d.div_ceil(*b)).collect();
    for position in all_indices(&grid) {
        let size: Vec<u64> =
            (0..grid.len()).map(|a| block_size[a].min(dimensions[a] - position[a] * block_size[a])).collect();
        let mut block = encode(&size, &[], false);
        let mut elements = vec![0u8; size.iter().product::<u64>() as usize * width];
        elements[width - 1] = 1 + position.iter().sum::<u64>() as u8;
        block.extend(elements);
        let names: Vec<String> = position.iter().map(ToString::to_string).collect();
        n5.file(&format!("{path}/{}", names.join("/")), block);
    }
}

async fn info(client: &Client, path: &str) -> serde_json::Value {
    let reply = client.get(&format!("/precomputed/{path}")).await;
    assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some("application/json")), "{path}");
    reply.json()
}

async fn refusal(client: &Client, path: &str) -> String {
    let accept = [("accept", "application/problem+json")];
    let reply = client.get_with(&format!("/precomputed/{path}"), &accept).await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (404, "not-a-dataset"), "{path}");
    reply.json()["reason"].as_str().unwrap().to_owned()
}

/// Returns the detail of the problem that refuses a parameter.
async fn refused(client: &Client, path: &str, parameter: &str) -> String {
    let reply = client.get(&format!("/precomputed/{path}")).await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (400, "invalid-parameter"), "{path}");
    assert_eq!(reply.json()["parameter"], parameter, "{path}");
    reply.json()["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_dataset_is_a_volume_of_one_scale() {
    let n5 = N5::new();
    let dataset = n5.dataset("a/vol", &[100, 40, 9], &[64, 64, 4], "gzip");
    dataset.fill(|p| p != [1, 0, 1], |_| false);
    let client = Client::of(n5.root());
    assert_eq!(
        info(&client, "a/vol/info").await,
        json!({"@type": "neuroglancer_multiscale_volume", "type": "image", "data_type": "uint16", "num_channels": 1,
            "scales": [{"key": "raw", "size": [100, 40, 9], "voxel_offset": [0, 0, 0], "chunk_sizes": [[64, 40, 4]],
                "resolution": [1.0, 1.0, 1.0], "encoding": "raw"}]})
    );
    let chunk = client.get("/precomputed/a/vol/raw/64-100_0-40_8-9").await;
    let expected: Vec<u8> = all_indices(&[36, 40, 1])
        .iter()
        .flat_map(|i| dataset.value(&[64 + i[0] as i64, i[1] as i64, 8]).to_le_bytes())
        .collect();
    assert_eq!((chunk.status.as_u16(), &chunk.body[..]), (200, &expected[..]));
    assert_eq!(chunk.header("content-type"), Some("application/octet-stream"));
    let etag = chunk.header("etag").unwrap();
    let again = client.get_with("/precomputed/a/vol/raw/64-100_0-40_8-9", &[("if-none-match", etag)]).await;
    assert_eq!(again.status, 304);
    let hole = client.get("/precomputed/a/vol/raw/64-100_0-40_4-8").await;
    assert_eq!(hole.status, 404);
}

#[tokio::test]
async fn invalid_keys_get_404() {
    let n5 = N5::new();
    n5.dataset("vol", &[100, 40, 9], &[64, 64, 4], "raw").fill(|_| true, |_| false);
    typed(&n5, "ids", &[8, 8, 8], &[8, 8, 8], "uint32", &json!({}));
    let client = Client::of(n5.root());
    for path in [
        "",
        "info",
        "vol/raw",
        "vol/raw/",
        "vol/raw/info",
        "vol/0-64_0-40_0-4",
        "vol/raw/0-64_0-64_0-4",
        "vol/raw/0-64_0-40_0-5",
        "vol/raw/00-64_0-40_0-4",
        "vol/raw/64-128_0-40_0-4",
        "vol/raw/1-65_0-40_0-4",
        "vol/raw/0-64_0-40_0-4_0-1",
        "vol/raw,0,0,0/0-64_0-40_0-4",
        "vol/raw,1,0,0/0-64_0-40_0-4",
        "vol/jpeg,75/0-64_0-40_0-4",
        "vol/compressed_segmentation/0-64_0-40_0-4",
        "vol/0/0/0",
        "vol/attributes.json",
        "attributes.json",
        "nothing/info",
        "nothing/raw/0-64_0-40_0-4",
        "raw/0-64_0-40_0-4",
        "ids/png/0-8_0-8_0-8",
    ] {
        let slash = if path.is_empty() { "" } else { "/" };
        assert_eq!(client.get(&format!("/precomputed{slash}{path}")).await.status, 404, "{path}");
    }
    assert_eq!(client.get("/precomputed/vol/raw/0-64_0-40_0-4").await.status, 200);
    assert_eq!(client.get("/precomputed/vol/raw,-1,2,0/-1-63_2-42_0-4").await.status, 200);
}

#[tokio::test]
async fn pyramid_levels_are_scales_positioned_in_nanometres() {
    let n5 = N5::new();
    let own = json!({"downsamplingFactors": [[1, 1, 1], [2, 2, 1]], "pixelResolution": {"unit": "µm", "dimensions": [0.0324, 0.5, 2]}});
    n5.file("em/attributes.json", own.to_string());
    typed(&n5, "em/s0", &[20, 20, 8], &[8, 8, 8], "uint8", &json!({}));
    typed(&n5, "em/s1", &[10, 10, 8], &[8, 8, 8], "uint8", &json!({}));
    typed(&n5, "em/s2", &[5, 5, 8], &[8, 8, 8], "uint16", &json!({"downsamplingFactors": [4, 4, 1]}));
    let client = Client::of(n5.root());
    let found = info(&client, "em/info?encoding=jpeg&quality=60").await;
    let scales = found["scales"].as_array().unwrap();
    let of = |key: &str| scales.iter().map(|scale| scale[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("key"), [json!("s0/jpeg,60"), json!("s1/jpeg,60")], "a level of another type is left out");
    assert_eq!(of("resolution"), [json!([32.4, 500.0, 2000.0]), json!([64.8, 1000.0, 2000.0])]);
    assert_eq!(of("voxel_offset"), [json!([0, 0, 0]), json!([0, 0, 0])]);
    assert_eq!(of("jpeg_quality"), [60, 60]);
    let chunk = client.get("/precomputed/em/s1/jpeg,60/8-10_0-8_0-8?token=t").await;
    assert_eq!((chunk.status.as_u16(), chunk.header("content-type")), (200, Some("image/jpeg")));
    assert_eq!(client.get("/precomputed/em/s1/png/8-10_0-8_0-8").await.header("content-type"), Some("image/png"));
    let listing = client.get_with("/precomputed/em/", &[("accept", "application/json")]).await.json();
    let names: Vec<&str> = listing["entries"].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["info", "s0", "s1", "s2"]);
}

#[tokio::test]
async fn segmentations_are_compressed_unless_requested_otherwise() {
    let n5 = N5::new();
    typed(
        &n5,
        "ids",
        &[16, 16, 8],
        &[8, 8, 8],
        "uint64",
        &json!({"transform":
        {"axes": ["z", "y", "x"], "scale": [4, 2, 1], "translate": [8, 4, -3], "units": ["nm", "nm", "nm"]}}),
    );
    let client = Client::of(n5.root());
    let found = info(&client, "ids/info").await;
    assert_eq!(found["type"], "segmentation");
    let scale = &found["scales"][0];
    assert_eq!(scale["encoding"], "compressed_segmentation");
    assert_eq!(scale["compressed_segmentation_block_size"], json!([8, 8, 8]));
    assert_eq!((&scale["voxel_offset"], &scale["resolution"]), (&json!([-3, 2, 2]), &json!([1.0, 2.0, 4.0])));
    let key = scale["key"].as_str().unwrap();
    let chunk = client.get(&format!("/precomputed/ids/{key}/5-13_2-10_2-10")).await;
    // One channel with one block of the encoding. It has two values, so each element takes 1 bit.
    let words: Vec<u32> = chunk.body.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    assert_eq!((&words[..4], &words[19..]), (&[1, 0x0100_0012, 2, 1][..], &[0, 0, 2, 0][..]));
    let image = info(&client, "ids/info?type=image").await;
    assert_eq!((&image["type"], &image["scales"][0]["encoding"]), (&json!("image"), &json!("raw")));
    assert_eq!(info(&client, "ids/info?encoding=raw").await["scales"][0]["encoding"], "raw");
}

#[tokio::test]
async fn channels_follow_each_other_within_a_chunk() {
    let n5 = N5::new();
    let dataset = n5.dataset("c", &[5, 4, 3, 3], &[4, 4, 4, 2], "gzip");
    dataset.fill(|_| true, |_| true);
    typed(&n5, "t", &[5, 4, 3, 2], &[4, 4, 4, 2], "uint8", &json!({"axes": ["x", "y", "z", "t"]}));
    let client = Client::of(n5.root());
    let found = info(&client, "c/info").await;
    assert_eq!((&found["num_channels"], &found["scales"][0]["chunk_sizes"]), (&json!(3), &json!([[4, 4, 3]])));
    let chunk = client.get("/precomputed/c/raw/4-5_0-4_0-3").await;
    let expected: Vec<u8> = all_indices(&[1, 4, 3, 3])
        .iter()
        .flat_map(|i| dataset.value(&[4, i[1] as i64, i[2] as i64, i[3] as i64]).to_le_bytes())
        .collect();
    assert_eq!(&chunk.body[..], &expected[..]);
    assert!(refusal(&client, "t/info").await.contains("fourth axis"));
    assert!(refused(&client, "c/info?type=segmentation", "type").await.contains("one channel"));
}

#[tokio::test]
async fn unsupported_datasets_and_parameters_name_alternatives() {
    let n5 = N5::new();
    for (path, data_type) in [("f", "float64"), ("i", "int64"), ("g", "float32"), ("u", "uint8")] {
        typed(&n5, path, &[8, 8, 8], &[8, 8, 8], data_type, &json!({}));
    }
    typed(&n5, "five", &[2, 2, 2, 2, 2], &[2, 2, 2, 2, 2], "uint8", &json!({}));
    typed(&n5, "one", &[2, 2, 2, 2, 1], &[2, 2, 2, 2, 2], "uint8", &json!({}));
    n5.dataset("empty", &[8, 0, 8], &[8, 8, 8], "raw");
    let client = Client::of(n5.root());
    for (path, reason) in [
        ("f/info", "/as/gzip,float32"),
        ("i/info", "/zarr3"),
        ("five/info", "x, y, z and channels"),
        ("empty/info", "empty"),
    ] {
        let problem = refusal(&client, path).await;
        assert!(problem.contains(reason), "{path}: {problem}");
    }
    for (path, parameter, detail) in [
        ("g/info?type=segmentation", "type", "integers"),
        ("g/info?encoding=compressed_segmentation", "encoding", "uint32 and uint64"),
        ("u/info?encoding=jpeg2000", "encoding", "known: raw, jpeg, png, compressed_segmentation"),
        ("u/info?encoding=jpeg&quality=101", "quality", "1 to 100"),
        ("u/info?quality=best", "quality", "1 to 100"),
        ("u/info?type=labels", "type", "known: image, segmentation"),
        ("u/info?type=image&type=labels", "type", "known: image, segmentation"),
        ("u/info?encoding=%ff", "encoding", "known: raw"),
        ("u/info?enc%6fding=foo", "encoding", "known: raw"),
        ("u/raw/0-8_0-8_0-8?encoding=foo", "encoding", "known: raw"),
        ("u/?encoding=foo", "encoding", "known: raw"),
        ("nothing/info?encoding=foo", "encoding", "known: raw"),
    ] {
        let problem = refused(&client, path, parameter).await;
        assert!(problem.contains(detail), "{path}: {problem}");
    }
    for path in ["u/info?cache=7&encodings=foo", "u/raw/0-8_0-8_0-8?v=%ff", "u/info?quality=7"] {
        assert_eq!(client.get(&format!("/precomputed/{path}")).await.status, 200, "{path}");
    }
    assert_eq!(info(&client, "one/info").await["num_channels"], 2);
    assert_eq!(client.get("/precomputed/one/raw/0-2_0-2_0-2").await.body.len(), 16);
}
