//! `/as/{encoding}`: the same elements in blocks of another encoding, with attributes that strict readers accept.

use std::fs;
use std::sync::Arc;

use n5_format::{AttributesDocument, Block, DatasetAttributes};
use n5_server::container::Settings;
use serde_json::{Value, json};

use crate::support::load_metrics;
use crate::support::stores::Probe;
use crate::support::writer::{Dataset, N5, all_indices};
use crate::support::{Client, let_files_settle, local, options, settings};

/// Decodes a stored block with the attributes that belong to it.
fn decode(attributes: &Value, block: &[u8], position: &[u64]) -> Block {
    let document = AttributesDocument::parse(attributes.to_string().as_bytes()).unwrap();
    let attributes = DatasetAttributes::parse(document).unwrap();
    Block::decode(block.to_vec().into(), &attributes, position, 1 << 30).unwrap()
}

fn expected(dataset: &Dataset, position: &[u64]) -> Vec<u8> {
    let origin: Vec<u64> = position.iter().zip(&dataset.block_size).map(|(p, b)| p * b).collect();
    let size: Vec<u64> =
        (0..origin.len()).map(|a| dataset.block_size[a].min(dataset.dimensions[a] - origin[a])).collect();
    let at = |index: &Vec<u64>| -> Vec<i64> { index.iter().zip(&origin).map(|(i, o)| (i + o) as i64).collect() };
    all_indices(&size).iter().flat_map(|index| dataset.value(&at(index)).to_le_bytes()).collect()
}

#[tokio::test]
async fn every_encoding_holds_the_same_elements_and_holes_stay_holes() {
    let n5 = N5::new();
    let is_stored = |position: &[u64]| position.iter().sum::<u64>() % 3 != 1;
    let client = Client::of(n5.root());
    for stored in ["raw", "gzip"] {
        let dataset = n5.dataset(stored, &[7, 5, 4], &[3, 2, 3], stored);
        dataset.fill(is_stored, |position| position[0] % 2 == 0);
        for encoding in ["raw", "gzip", "zstd", "blosc"] {
            let attributes = client.get(&format!("/as/{encoding}/{stored}/attributes.json")).await.json();
            assert_eq!(attributes["compression"]["type"], *encoding);
            for position in all_indices(&[3, 3, 2]) {
                let path = position.iter().map(u64::to_string).collect::<Vec<_>>().join("/");
                let reply = client.get(&format!("/as/{encoding}/{stored}/{path}")).await;
                if !is_stored(&position) {
                    assert_eq!(reply.status, 404, "{encoding} {path}");
                    continue;
                }
                assert_eq!(reply.status, 200, "{encoding} {path}: {:?}", reply.body);
                let block = decode(&attributes, &reply.body, &position);
                if block.size == cropped_size(&dataset, &position) {
                    assert_eq!(block.data, expected(&dataset, &position), "{encoding} {path}");
                } else {
                    // A block that is passed through keeps its padding.
                    assert_eq!(block.size.as_slice(), dataset.block_size);
                }
            }
            assert_eq!(client.get(&format!("/as/{encoding}/{stored}/3/0/0")).await.status, 404);
        }
    }
}

fn cropped_size(dataset: &Dataset, position: &[u64]) -> n5_format::Coords {
    let sizes = position.iter().zip(&dataset.block_size).zip(&dataset.dimensions);
    sizes.map(|((p, b), d)| (*b).min(d - p * b)).collect()
}

#[tokio::test]
async fn blocks_in_the_requested_encoding_are_passed_through_undecoded() {
    let n5 = N5::new();
    let dataset = n5.dataset("a", &[8, 8], &[4, 4], "gzip");
    dataset.fill(|_| true, |_| false);
    let client = Client::of(n5.root());
    let reply = client.get("/as/gzip/a/1/0").await;
    assert_eq!(reply.body, fs::read(dataset.block_path(&[1, 0])).unwrap());
    // A block that looks intact without being decoded is passed through.
    let mut damaged = fs::read(dataset.block_path(&[0, 1])).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0xff;
    fs::write(dataset.block_path(&[0, 1]), &damaged).unwrap();
    assert_eq!(client.get("/as/gzip/a/0/1").await.body, damaged);
    assert_eq!(client.get("/as/zstd/a/0/1").await.problem(), "corrupt-block");
    // TensorStore and browsers accept only one gzip member, so two are re-encoded.
    let block = fs::read(dataset.block_path(&[1, 1])).unwrap();
    let empty = crate::support::writer::encode(&[], &[], true);
    fs::write(dataset.block_path(&[1, 1]), [&block[..], &empty[4..]].concat()).unwrap();
    let reply = client.get("/as/gzip/a/1/1").await;
    assert_eq!(reply.status, 200);
    let attributes = client.get("/as/gzip/a/attributes.json").await.json();
    assert_eq!(decode(&attributes, &reply.body, &[1, 1]).data, expected(&dataset, &[1, 1]));
    assert_ne!(reply.body.len(), block.len() + empty.len() - 4);
}

#[tokio::test]
async fn types_are_converted_and_unrepresentable_values_are_reported() {
    let n5 = N5::new();
    let dataset = n5.dataset("a", &[4, 4], &[4, 4], "raw");
    dataset.fill(|_| true, |_| false);
    let client = Client::of(n5.root());
    let attributes = client.get("/as/gzip,float32/a/attributes.json").await.json();
    assert_eq!(attributes["dataType"], "float32");
    let block = client.get("/as/gzip,float32/a/0/0").await;
    let floats: Vec<u8> = (1..=16u16).flat_map(|n| f32::from(n).to_le_bytes()).collect();
    assert_eq!(decode(&attributes, &block.body, &[0, 0]).data, floats);
    assert_eq!(client.get("/as/raw,uint8/a/0/0").await.status, 200);
    let large = n5.dataset("b", &[300], &[300], "raw");
    large.fill(|_| true, |_| false);
    let reply = client.get("/as/raw,uint8/b/0").await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (422, "not-representable"));
    assert_eq!((&reply.json()["value"], &reply.json()["to"]), (&json!("256"), &json!("uint8")));
}

#[tokio::test]
async fn keys_outside_the_view_get_404() {
    let n5 = N5::new();
    n5.dataset("g/a", &[4, 4], &[4, 4], "raw").fill(|_| true, |_| false);
    let client = Client::of(n5.root());
    for path in [
        "/as",
        "/as/",
        "/as/attributes.json",
        "/as/gzip",
        "/as/lzma/g/a/attributes.json",
        "/as/gzip,int7/g/a/attributes.json",
        "/as/gzip/info",
        "/as/gzip/g/a/.zarray",
        "/as/gzip/g/a/0/0/0",
        "/as/gzip/g/a/00/0",
        "/as/gzip/g/attributes.json",
        "/as/gzip/none/attributes.json",
    ] {
        let reply = client.get(path).await;
        assert!(reply.status == 404 || (path == "/as/gzip" && reply.status == 301), "{path}: {}", reply.status);
    }
    assert_eq!(client.get("/as/gzip/attributes.json").await.json(), json!({"n5": "4.0.0"}));
    assert_eq!(client.get("/as/gzip/g").await.header("location"), Some("g/"));
    let names = |reply: &Value| -> Vec<String> {
        let entries = reply["entries"].as_array().unwrap().iter();
        entries.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&client.get("/as/gzip/?format=json").await.json()), ["attributes.json", "g"]);
    assert_eq!(names(&client.get("/as/gzip/g/?format=json").await.json()), ["a"]);
    assert_eq!(names(&client.get("/as/gzip/g/a/?format=json").await.json()), ["attributes.json"]);
}

#[tokio::test]
async fn encoded_blocks_have_entity_tags_and_ranges() {
    let n5 = N5::new();
    let dataset = n5.dataset("a", &[8, 8], &[4, 4], "raw");
    dataset.fill(|position| position != [1, 1], |_| false);
    let_files_settle();
    let probe = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&probe), settings(), options());
    let whole = client.get("/as/gzip/a/0/0").await;
    assert_eq!(probe.gets(), 1);
    let tag = whole.header("etag").unwrap().to_owned();
    let again = client.get("/as/gzip/a/0/0").await;
    assert_eq!((probe.gets(), &again.body), (1, &whole.body));
    assert_eq!(again.body.as_ptr(), whole.body.as_ptr(), "the cached bytes themselves");
    let head = client.send("HEAD", "/as/gzip/a/0/0", &[]).await;
    assert_eq!(head.header("content-length").unwrap(), whole.body.len().to_string());
    let unchanged = client.get_with("/as/gzip/a/0/0", &[("if-none-match", &tag)]).await;
    assert_eq!((unchanged.status.as_u16(), unchanged.header("etag")), (304, Some(tag.as_str())));
    let part = client.get_with("/as/gzip/a/0/0", &[("range", "bytes=2-5")]).await;
    assert_eq!((part.status.as_u16(), part.body.as_ref()), (206, &whole.body[2..6]));
    // A change of the block changes the derived bytes.
    n5.file("a/0/0", crate::support::writer::encode(&[4, 4], &[9; 16], false));
    let changed = client.get("/as/gzip/a/0/0").await;
    assert_ne!(changed.header("etag").unwrap(), tag);
    let attributes = client.get("/as/gzip/a/attributes.json").await.json();
    assert_eq!(decode(&attributes, &changed.body, &[0, 0]).data.as_ref(), [9, 0].repeat(16));
    fs::remove_file(dataset.block_path(&[0, 0])).unwrap();
    assert_eq!(client.get("/as/gzip/a/0/0").await.status, 404);
    assert_eq!(client.get_with("/as/gzip/a/0/0", &[("if-none-match", &tag)]).await.status, 404);
    // A missing block that is written later is served.
    assert_eq!(client.get("/as/gzip/a/1/1").await.status, 404);
    dataset.write_block(&[1, 1], false);
    assert_eq!(client.get("/as/gzip/a/1/1").await.status, 200);
}

#[tokio::test]
async fn many_requests_for_an_encoded_block_share_one_load() {
    let recorder = load_metrics::recorder();
    let _counted = metrics::set_default_local_recorder(&recorder);
    let n5 = N5::new();
    n5.dataset("a", &[64, 64], &[64, 64], "gzip").fill(|_| true, |_| false);
    let_files_settle();
    let probe = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&probe), settings(), options());
    probe.close();
    let requests: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.get("/as/blosc/a/0/0").await })
        })
        .collect();
    load_metrics::wait_for_load(&recorder.handle(), requests.len() - 1).await;
    // The client of the first request disconnects.
    requests[0].abort();
    probe.open();
    for request in requests.into_iter().skip(1) {
        assert_eq!(request.await.unwrap().status, 200);
    }
    assert_eq!(probe.gets(), 1);
}

#[tokio::test]
async fn pyramid_levels_with_other_names_are_found_by_number() {
    let n5 = N5::new();
    let scale = |factor: f64| json!([{"type": "scale", "scale": [factor, factor]}]);
    let multiscales = json!({"multiscales": [{"version": "0.4",
        "axes": [{"name": "x", "type": "space", "unit": "nanometer"}, {"name": "y", "type": "space", "unit": "nanometer"}],
        "datasets": [{"path": "full", "coordinateTransformations": scale(4.0)},
            {"path": "half", "coordinateTransformations": scale(8.0)}]}]});
    n5.file("p/attributes.json", multiscales.to_string());
    let full = n5.dataset("p/full", &[8, 8], &[4, 4], "raw");
    full.fill(|_| true, |_| false);
    n5.dataset("p/half", &[4, 4], &[4, 4], "raw").fill(|_| true, |_| false);
    let client = Client::of(n5.root());
    let group = client.get("/as/raw/p/attributes.json").await.json();
    assert_eq!(group["downsamplingFactors"], json!([[1, 1], [2, 2]]));
    assert_eq!((&group["units"], &group["resolution"]), (&json!(["nm", "nm"]), &json!([4.0, 4.0])));
    assert_eq!(client.get("/as/raw/p/s1/attributes.json").await.json()["dimensions"], json!([4, 4]));
    let by_number = client.get("/as/raw/p/s0/1/1").await;
    assert_eq!((by_number.status.as_u16(), &by_number.body), (200, &client.get("/as/raw/p/full/1/1").await.body));
    assert_eq!(client.get("/as/raw/p/s2/attributes.json").await.status, 404);
}

const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raw_chunks_hold_no_permits_of_other_budgets() {
    let n5 = N5::new();
    // Uncompressed blocks of 1 MiB of `uint8`: raw chunks are the decoded blocks, but chunks at the edge are assembled.
    let attributes = json!({"dimensions": [128, 128, 64 * 24 + 8], "blockSize": [128, 128, 64], "dataType": "uint8",
        "compression": {"type": "raw"}});
    n5.file("a/attributes.json", attributes.to_string());
    for z in 0..25u32 {
        // The last block is padded beyond the dimensions.
        let mut block = vec![0, 0, 0, 3];
        block.extend([128u32, 128, 64].into_iter().flat_map(u32::to_be_bytes));
        block.resize(block.len() + 128 * 128 * 64, 7);
        n5.file(&format!("a/0/0/{z}"), block);
    }
    n5.dataset("b", &[1024, 1024], &[1024, 1024], "gzip").fill(|_| true, |_| false);
    let_files_settle();
    let settings = Settings {
        decoded_cache: 2 * MIB,
        stored_cache: 64 * MIB,
        decode_budget: 4 * MIB,
        slice_budget: 6 * MIB,
        budget_wait: std::time::Duration::from_millis(500),
        ..settings()
    };
    let client = Client::new(local(n5.root()), settings, options());
    for z in 0..25 {
        let stop = if z == 24 { 64 * 24 + 8 } else { 64 * (z + 1) };
        let raw = client.get(&format!("/precomputed/a/raw/0-128_0-128_{}-{stop}", 64 * z)).await;
        assert_eq!(raw.status, 200, "{z}: {:?}", raw.body);
        assert_eq!(client.get(&format!("/zarr3/a/c/{z}/0/0")).await.status, 200);
        assert_eq!(client.get(&format!("/as/raw,int8/a/0/0/{z}")).await.status, 200);
    }
    assert_eq!(client.get("/slice/b").await.status, 200);
    assert_eq!(client.get("/").await.status, 200);
}

#[tokio::test]
async fn a_block_beyond_every_budget_is_passed_through_with_its_entity_tag() {
    let n5 = N5::new();
    let attributes = json!({"dimensions": [8192, 4096], "blockSize": [8192, 4096], "dataType": "uint8",
        "compression": {"type": "gzip"}});
    n5.file("a/attributes.json", attributes.to_string());
    let mut block = vec![0, 0, 0, 2];
    block.extend([8192u32, 4096].into_iter().flat_map(u32::to_be_bytes));
    let mut encoder = flate2::write::GzEncoder::new(block, flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, &vec![3; 8192 * 4096]).unwrap();
    n5.file("a/0/0", encoder.finish().unwrap());
    // The block has 32 MiB, the slice budget 16 MiB.
    let client = Client::of(n5.root());
    for path in ["/as/gzip/a/0/0", "/zarr3/a/c/0/0", "/zarr2/a/0/0"] {
        let whole = client.get(path).await;
        assert_eq!(whole.status, 200, "{path}");
        let tag = whole.header("etag").unwrap().to_owned();
        assert_eq!(client.get_with(path, &[("if-none-match", &tag)]).await.status, 304, "{path}");
    }
    let reply = client.get("/as/zstd/a/0/0").await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (413, "too-large"));
}

#[tokio::test]
async fn levels_with_unsupported_compression_are_left_out() {
    let n5 = N5::new();
    let own = json!({"downsamplingFactors": [[1, 1], [2, 2], [4, 4]]});
    n5.file("p/attributes.json", own.to_string());
    n5.dataset("p/s0", &[16, 16], &[8, 8], "raw").fill(|_| true, |_| false);
    n5.dataset("p/s1", &[8, 8], &[8, 8], "gzip").fill(|_| true, |_| false);
    n5.dataset("p/s2", &[4, 4], &[4, 4], "jpeg").fill(|_| true, |_| false);
    let client = Client::of(n5.root());
    let group = client.get("/as/gzip/p/attributes.json").await.json();
    assert_eq!(group["downsamplingFactors"], json!([[1, 1], [2, 2]]));
    for path in ["/as/gzip/p/s2/attributes.json", "/as/gzip/p/s2/0/0"] {
        assert_eq!(client.get(path).await.status, 404, "{path}");
    }
    let stats = client.get("/stats/p").await;
    assert_eq!((stats.status.as_u16(), &stats.json()["level"]), (200, &json!("s0")));
}
