//! Views: the container in the formats of other programs.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::stores::Probe;
use crate::support::writer::N5;
use crate::support::{Client, guarded, local, options, settings};

/// Creates a pyramid, an array with padded and cropped edge blocks, unusual and invalid datasets, and a group.
fn container() -> N5 {
    let n5 = N5::new();
    n5.file("g/attributes.json", r#"{"n5":"4.0.0","who":"me"}"#);
    n5.dataset("g/a", &[25, 18], &[10, 10], "gzip").fill(|p| p != [1, 0], |p| p[0] == 2 && p[1] == 0);
    n5.dataset("raw", &[25], &[10], "raw").fill(|_| true, |_| false);
    n5.dataset("small", &[7, 5], &[64, 64], "gzip").fill(|_| true, |_| false);
    n5.dataset("xz", &[8, 8], &[4, 4], "xz");
    n5.dataset("jpeg", &[8, 8], &[4, 4], "jpeg");
    n5.file(
        "bad/attributes.json",
        r#"{"dimensions":[1],"blockSize":[0],"dataType":"uint8","compression":{"type":"raw"}}"#,
    );
    let scales = json!({"scales": [[1, 1, 1], [2, 2, 1]], "pixelResolution": {"unit": "nm", "dimensions": [4, 4, 40]}});
    n5.file("em/attributes.json", scales.to_string());
    n5.dataset("em/s0", &[8, 6, 4], &[4, 4, 4], "raw").fill(|_| true, |_| false);
    n5.dataset("em/s1", &[4, 3, 4], &[4, 4, 4], "raw").fill(|_| true, |_| false);
    let scalar = json!({"dimensions": [], "blockSize": [], "dataType": "uint16", "compression": {"type": "raw"}});
    n5.file("scalar/attributes.json", scalar.to_string());
    n5.file("scalar/0", b"\0\0\0\0\x01\x02");
    n5
}

/// Returns the payload of a stored block with two axes.
fn payload(n5: &N5, path: &str) -> Vec<u8> {
    std::fs::read(n5.root().join(path)).unwrap()[12..].to_vec()
}

#[tokio::test]
async fn a_full_block_with_a_supported_codec_is_passed_through() {
    let n5 = container();
    let client = Client::of(n5.root());
    // A whole block, one padded at the edge, and one cropped where the chunk ends with the array. Block (x, y) is chunk
    // (y, x).
    for (block, chunks) in [
        ("g/a/0/0", ["/zarr2/g/a/0/0", "/zarr3/g/a/c/0/0"]),
        ("g/a/2/0", ["/zarr2/g/a/0/2", "/zarr3/g/a/c/0/2"]),
        ("small/0/0", ["/zarr2/small/0/0", "/zarr3/small/c/0/0"]),
    ] {
        for chunk in chunks {
            let reply = client.get(chunk).await;
            assert_eq!((reply.status.as_u16(), &reply.body[..]), (200, &payload(&n5, block)[..]), "{chunk}");
            assert_eq!(reply.header("content-type"), Some("application/octet-stream"));
            assert_eq!(reply.header("cache-control"), Some("no-cache"));
        }
    }
    let scalar = [client.get("/zarr2/scalar/0").await, client.get("/zarr3/scalar/c").await];
    assert!(scalar.iter().all(|reply| reply.body.as_ref() == [1, 2]));
}

#[tokio::test]
async fn a_cropped_block_is_padded_to_a_full_chunk() {
    let n5 = container();
    let client = Client::of(n5.root());
    let dataset = n5.dataset("raw", &[25], &[10], "raw");
    let expected: Vec<u8> = (20..30).flat_map(|x| dataset.value(&[x]).to_be_bytes()).collect();
    for chunk in ["/zarr2/raw/2", "/zarr3/raw/c/2"] {
        assert_eq!(client.get(chunk).await.body, expected, "{chunk}");
    }
    let edge = client.get("/zarr2/g/a/1/0").await;
    assert_eq!(edge.status, 200);
    assert!(edge.body.starts_with(&[0x1f, 0x8b]) && edge.body != payload(&n5, "g/a/0/1"));
}

#[tokio::test]
async fn holes_and_invalid_keys_get_404() {
    let n5 = container();
    let client = Client::of(n5.root());
    for path in [
        "/zarr2/g/a/0/1",
        "/zarr3/g/a/c/0/1",
        "/zarr2/g/a/2/0",
        "/zarr3/g/a/c/2/0",
        "/zarr3/g/a/0/0",
        "/zarr3/g/a/c/0",
        "/zarr3/g/a/c/0/0/0",
        "/zarr2/g/a/00/0",
        "/zarr2/attributes.json",
        "/zarr3/attributes.json",
        "/zarr2/g/a/attributes.json",
        "/zarr2/g/zarr.json",
        "/zarr3/g/.zgroup",
        "/zarr2/g/.zarray",
        "/zarr2/g/a/.zgroup",
        "/zarr2/g/a/.zmetadata",
        "/zarr2/none/.zgroup",
        "/zarr3/none/zarr.json",
        "/zarr3/g/a/0/zarr.json",
        "/zarr2/jpeg/.zarray",
        "/zarr2/jpeg/.zgroup",
        "/zarr3/jpeg/zarr.json",
        "/zarr3/jpeg/c/0/0",
        "/zarr3/bad/zarr.json",
        "/zarr2/xz/0/0",
        "/zarr3/scalar/c/0",
    ] {
        let reply = client.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.header("content-length")), (404, Some("0")), "{path}");
    }
}

#[tokio::test]
async fn chunks_support_entity_tags_ranges_and_head() {
    let n5 = container();
    let client = Client::of(n5.root());
    for path in ["/zarr2/g/a/0/0", "/zarr3/g/a/c/1/0", "/zarr3/em/s0/zarr.json"] {
        let get = client.get(path).await;
        let head = client.send("HEAD", path, &[]).await;
        let etag = get.header("etag").unwrap();
        assert_eq!((head.status.as_u16(), head.body.len(), head.header("etag")), (200, 0, Some(etag)), "{path}");
        assert_eq!(head.header("content-length").unwrap(), get.body.len().to_string());
        let same = client.get_with(path, &[("if-none-match", etag)]).await;
        assert_eq!((same.status.as_u16(), same.body.len()), (304, 0), "{path}");
        let part = client.get_with(path, &[("range", "bytes=2-5")]).await;
        assert_eq!((part.status.as_u16(), &part.body[..]), (206, &get.body[2..6]), "{path}");
        let end = client.get_with(path, &[("range", "bytes=-3")]).await;
        assert_eq!(end.body[..], get.body[get.body.len() - 3..], "{path}");
        let beyond = client.get_with(path, &[("range", "bytes=99999-")]).await;
        assert_eq!(beyond.status, 416, "{path}");
    }
    let (one, other) = (client.get("/zarr2/g/a/0/0").await, client.get("/zarr2/g/a/1/1").await);
    assert_ne!(one.header("etag"), other.header("etag"));
}

#[tokio::test]
async fn a_chunk_costs_one_read_and_no_listing() {
    let n5 = container();
    let probe = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&probe), settings(), options());
    client.get("/zarr3/em/s0/c/0/0/0").await;
    assert_eq!((probe.gets(), probe.lists()), (1, 0));
    client.get("/zarr2/em/s0/0/0/1").await;
    assert_eq!((probe.gets(), probe.lists()), (2, 0));
}

#[tokio::test]
async fn a_pyramid_is_an_ome_ngff_image_in_both_zarr_versions() {
    let n5 = container();
    let client = Client::of(n5.root());
    let two = client.get("/zarr2/em/.zattrs").await.json();
    let three = client.get("/zarr3/em/zarr.json").await.json();
    let mut image = two["multiscales"][0].clone();
    assert_eq!(image.as_object_mut().unwrap().remove("version"), Some(json!("0.4")));
    let omero = two["omero"].clone();
    assert_eq!(three["attributes"]["ome"], json!({"version": "0.5", "multiscales": [image], "omero": omero}));
    assert_eq!(omero["channels"].as_array().unwrap().len(), 1);
    let axis = |name: &str| json!({"name": name, "type": "space", "unit": "nanometer"});
    assert_eq!(image["axes"], json!([axis("z"), axis("y"), axis("x")]));
    let transformations = json!([{"type": "scale", "scale": [40.0, 8.0, 8.0]},
        {"type": "translation", "translation": [0.0, 2.0, 2.0]}]);
    assert_eq!(image["datasets"][1], json!({"path": "s1", "coordinateTransformations": transformations}));
    // A level takes its scale and units from the group above.
    let level = client.get("/zarr3/em/s1/zarr.json").await.json();
    assert_eq!(level["attributes"]["dimension_units"], json!(["40 nm", "8 nm", "8 nm"]));
    assert_eq!(level["dimension_names"], json!(["z", "y", "x"]));
}

#[tokio::test]
async fn consolidated_metadata_contains_all_documents_below() {
    let n5 = container();
    let client = Client::of(n5.root());
    let two = client.get("/zarr2/.zmetadata").await.json();
    let listed = two["metadata"].as_object().unwrap();
    for key in [".zgroup", ".zattrs", "g/.zgroup", "g/a/.zarray", "em/.zattrs", "em/s1/.zarray", "em/s1/.zattrs"] {
        let alone = client.get(&format!("/zarr2/{key}")).await;
        assert_eq!(listed.get(key), Some(&alone.json()), "{key}");
    }
    assert!(!listed.keys().any(|key| key.starts_with("jpeg") || key.starts_with("bad")), "{listed:?}");
    assert_eq!(listed["g/.zattrs"], json!({"who": "me"}));

    let three = client.get("/zarr3/zarr.json").await.json();
    let below = &three["consolidated_metadata"]["metadata"];
    let mut group = client.get("/zarr3/em/zarr.json").await.json();
    let own: Value = group.as_object_mut().unwrap().remove("consolidated_metadata").unwrap();
    assert_eq!(below["em"], group);
    assert_eq!(own["metadata"]["s1"], below["em/s1"]);
    assert_eq!(below["em/s1"], client.get("/zarr3/em/s1/zarr.json").await.json());
}

#[tokio::test]
async fn too_many_entries_are_not_consolidated() {
    let n5 = container();
    for number in 0..500 {
        n5.file(&format!("many/{number}/attributes.json"), "{}");
    }
    let client = Client::of(n5.root());
    assert_eq!(client.get("/zarr2/many/.zmetadata").await.status, 404);
    let group = client.get("/zarr3/many/zarr.json").await.json();
    assert_eq!(group, json!({"zarr_format": 3, "node_type": "group", "attributes": {}}));
    assert_eq!(client.get("/zarr2/em/.zmetadata").await.status, 200);
}

#[tokio::test]
async fn listings_name_the_documents_of_the_view() {
    let n5 = container();
    let client = Client::of(n5.root());
    for (path, expected) in [
        ("/zarr2/g/", vec![".zattrs", ".zgroup", ".zmetadata", "a"]),
        ("/zarr2/", vec![".zattrs", ".zgroup", ".zmetadata", "em", "g", "raw", "scalar", "small", "xz"]),
        ("/zarr2/em/s0/", vec![".zarray", ".zattrs"]),
        ("/zarr3/em/", vec!["s0", "s1", "zarr.json"]),
        ("/zarr3/jpeg/", vec![]),
    ] {
        let listing = client.get_with(path, &[("accept", "application/json")]).await.json();
        let names: Vec<&str> =
            listing["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected, "{path}");
    }
    // A document that does not exist is not listed.
    for number in 0..500 {
        n5.file(&format!("many/{number}/attributes.json"), "{}");
    }
    let listed = client.get("/zarr2/many/?format=json").await.json();
    assert_eq!((&listed["entries"][1]["name"], &listed["entries"][2]["name"]), (&json!(".zgroup"), &json!("0")));
    let redirect = client.get("/zarr3/em").await;
    assert_eq!((redirect.status.as_u16(), redirect.header("location")), (301, Some("em/")));
}

#[tokio::test]
async fn a_name_with_a_zarr_suffix_stands_for_the_name_without_it() {
    let n5 = container();
    n5.dataset("a/b.ome/x", &[4], &[2], "raw").fill(|_| true, |_| false);
    let client = Client::of(n5.root());
    for (alias, path) in [
        ("/zarr3/em.ome.zarr/zarr.json", "/zarr3/em/zarr.json"),
        ("/zarr3/em.zarr/s0/c/0/0/0", "/zarr3/em/s0/c/0/0/0"),
        ("/zarr2/em.ome.zarr/.zattrs", "/zarr2/em/.zattrs"),
        ("/zarr2/em.zarr/s1.zarr/0/0/0", "/zarr2/em/s1/0/0/0"),
        ("/zarr2/em.zarr/?format=json", "/zarr2/em/?format=json"),
        ("/zarr3/a/b.ome.zarr/x/zarr.json", "/zarr3/a/b.ome/x/zarr.json"),
    ] {
        let (alias, reply) = (client.get(alias).await, client.get(path).await);
        assert_eq!((alias.status.as_u16(), &alias.body), (200, &reply.body), "{path}");
        assert_eq!(alias.header("etag"), reply.header("etag"), "{path}");
    }
    let redirect = client.get("/zarr3/em.zarr").await;
    assert_eq!((redirect.status.as_u16(), redirect.header("location")), (301, Some("em.zarr/")));
    for missing in ["/zarr3/none.zarr/zarr.json", "/n5/em.zarr/attributes.json", "/as/gzip/em.zarr/", "/zarr3/.zarr/"] {
        assert_eq!(client.get(missing).await.status, 404, "{missing}");
    }
    // A group that has the name itself comes first.
    n5.file("em.zarr/attributes.json", r#"{"own":1}"#);
    assert_eq!(client.get("/zarr2/em.zarr/.zattrs").await.json(), json!({"own": 1}));
    assert_eq!(client.get("/zarr2/em.ome.zarr/.zattrs").await.json()["multiscales"][0]["name"], "em");
}

#[tokio::test]
async fn a_suffix_opens_nothing_that_the_name_without_it_does_not() {
    let (em, seg) = (container(), container());
    let status = async |rules: &[&str], path: &str| {
        let router = n5_server::http::router(guarded(&em, &seg, rules));
        let request = axum::http::Request::builder().uri(path).body(axum::body::Body::empty()).unwrap();
        tower::ServiceExt::oneshot(router, request).await.unwrap().status().as_u16()
    };
    for (path, suffixed) in [
        ("/zarr3/seg/em/zarr.json", "/zarr3/seg/em.zarr/zarr.json"),
        ("/zarr3/seg/em/s0/c/0/0/0", "/zarr3/seg/em.ome.zarr/s0/c/0/0/0"),
        ("/zarr3/seg/em/s0/c/0/0/0", "/zarr3/seg.zarr/em/s0/c/0/0/0"),
        ("/zarr2/seg/em/?format=json", "/zarr2/seg/em.zarr/?format=json"),
        ("/zarr2/seg/em/s1/.zarray", "/zarr2/seg.ome.zarr/em/s1.zarr/.zarray"),
    ] {
        assert_eq!((status(&[], path).await, status(&[], suffixed).await), (200, 200), "{suffixed}");
        for rules in [&["/seg = alice"][..], &["/seg/em = alice"], &["/seg/em = nobody"]] {
            assert!([401, 404].contains(&status(rules, suffixed).await), "{rules:?} {suffixed}");
        }
        // The rule names the path without the suffix, and everything around it is private.
        assert_eq!(status(&["/ = alice", "/seg/em = public"], suffixed).await, 200, "{suffixed}");
    }
}

/// Creates a pyramid with the axes x, y, c, z and t, in this order, whose blocks have several channels and planes.
fn misordered() -> N5 {
    let n5 = N5::new();
    let axes = ["x", "y", "c", "z", "t"];
    n5.file(
        "img/attributes.json",
        json!({"axes": axes, "scales": [[1, 1, 1, 1, 1], [2, 2, 1, 1, 1]],
        "resolution": [0.5, 0.25, 1, 3, 2], "units": ["um", "um", "", "um", "s"]})
        .to_string(),
    );
    n5.dataset("img/s0", &[9, 7, 2, 5, 3], &[4, 3, 2, 2, 1], "raw").fill(|p| p != [1, 0, 0, 1, 0], |_| false);
    n5.dataset("img/s1", &[5, 4, 2, 5, 3], &[4, 3, 1, 2, 1], "gzip").fill(|_| true, |_| false);
    n5
}

#[tokio::test]
async fn levels_in_another_order_of_axes_are_also_arrays_in_the_order_of_ome_ngff() {
    let n5 = misordered();
    let client = Client::of(n5.root());
    let two = client.get("/zarr2/img/.zattrs").await.json();
    let three = client.get("/zarr3/img/zarr.json").await.json();
    let image = &three["attributes"]["ome"]["multiscales"][0];
    assert_eq!(image["datasets"], two["multiscales"][0]["datasets"]);
    let names: Vec<&str> =
        image["axes"].as_array().unwrap().iter().map(|axis| axis["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["t", "c", "z", "y", "x"]);
    let level = &image["datasets"][1];
    assert_eq!(
        (&level["path"], &level["coordinateTransformations"][0]["scale"]),
        (&json!("s1@02134"), &json!([2.0, 1.0, 3.0, 0.5, 1.0]))
    );

    let array = client.get("/zarr3/img/s0@02134/zarr.json").await.json();
    assert_eq!((&array["shape"], &array["dimension_names"]), (&json!([3, 2, 5, 7, 9]), &json!(names)));
    assert_eq!(array["chunk_grid"]["configuration"]["chunk_shape"], json!([1, 2, 2, 3, 4]));
    assert_eq!(array["codecs"][0], json!({"name": "transpose", "configuration": {"order": [0, 2, 1, 3, 4]}}));
    assert_eq!(array["attributes"]["dimension_units"], json!(["2 s", "1", "3 µm", "0.25 µm", "0.5 µm"]));
    assert_eq!(three["consolidated_metadata"]["metadata"]["s0@02134"], array);
    assert_eq!(client.get("/zarr2/img/s0@02134/.zarray").await.json()["shape"], json!([3, 2, 5, 7, 9]));
    // The array in stored order remains.
    assert_eq!(client.get("/zarr3/img/s0/zarr.json").await.json()["shape"], json!([3, 5, 2, 7, 9]));

    let listed = client.get("/zarr3/img/?format=json").await.json()["entries"].clone();
    let listed: Vec<&str> = listed.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(listed, ["s0", "s0@02134", "s1", "s1@02134", "zarr.json"]);
    for missing in [
        "/zarr3/img/s0@01/zarr.json",
        "/zarr3/img/s0@01234/zarr.json",
        "/zarr3/img/s9@02134/zarr.json",
        "/zarr2/img@02134/.zarray",
        "/zarr3/img/s0@02134/c/0/0/0",
    ] {
        assert_eq!(client.get(missing).await.status, 404, "{missing}");
    }
}

#[tokio::test]
async fn chunks_in_another_order_of_axes_are_blocks_in_zarr_3_and_transposed_in_zarr_2() {
    let n5 = misordered();
    let client = Client::of(n5.root());
    // N5's block (x, y, c, z, t) is chunk (t, c, z, y, x).
    let block = std::fs::read(n5.root().join("img/s0/1/0/0/0/2")).unwrap();
    let chunk = client.get("/zarr3/img/s0@02134/c/2/0/0/0/1").await;
    assert_eq!(chunk.body, block[24..], "the payload of the block");
    let transposed = client.get("/zarr2/img/s0@02134/2/0/0/0/1").await.body;
    let element = |bytes: &[u8], index: usize| [bytes[2 * index], bytes[2 * index + 1]];
    for (x, y, c, z) in [(0, 0, 0, 0), (3, 2, 1, 0), (1, 2, 0, 1), (2, 0, 1, 1)] {
        let stored = element(&block[24..], x + 4 * (y + 3 * (c + 2 * z)));
        assert_eq!(element(&transposed, x + 4 * (y + 3 * (z + 2 * c))), stored, "{x} {y} {c} {z}");
    }
    // Blocks with one channel have the same elements in both orders.
    let block = std::fs::read(n5.root().join("img/s1/0/0/1/0/0")).unwrap();
    for path in ["/zarr2/img/s1@02134/0/1/0/0/0", "/zarr3/img/s1@02134/c/0/1/0/0/0"] {
        assert_eq!(client.get(path).await.body, block[24..], "{path}");
    }
    for hole in ["/zarr2/img/s0@02134/0/0/1/0/1", "/zarr3/img/s0@02134/c/0/0/1/0/1"] {
        assert_eq!(client.get(hole).await.status, 404, "{hole}");
    }
    let listed = client.get("/zarr3/img/s0@02134/c/0/0/1/0/?blocks=1&format=json").await.json();
    let listed: Vec<&str> =
        listed["entries"].as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(listed, ["0", "2"]);
}

#[tokio::test]
async fn channels_are_described_by_omero_and_else_by_a_sample() {
    let n5 = misordered();
    let client = Client::of(n5.root());
    let omero = client.get("/zarr3/img/zarr.json").await.json()["attributes"]["ome"]["omero"].clone();
    assert_eq!(client.get("/zarr2/img/.zattrs").await.json()["omero"], omero);
    let consolidated = client.get("/zarr3/zarr.json").await.json();
    assert_eq!(consolidated["consolidated_metadata"]["metadata"]["img"]["attributes"]["ome"]["omero"], omero);
    assert_eq!(client.get("/zarr2/.zmetadata").await.json()["metadata"]["img/.zattrs"]["omero"], omero);
    let channels = omero["channels"].as_array().unwrap();
    let labels: Vec<&Value> = channels.iter().map(|channel| &channel["label"]).collect();
    assert_eq!((labels, &omero["rdefs"]["defaultZ"]), (vec![&json!("channel 0"), &json!("channel 1")], &json!(2)));
    // No level has many elements, so the finest is sampled, at the first point of time. Elements are their linear
    // index plus one, and those of the second channel are 63 higher. Missing blocks are zero.
    let window = |channel: usize| &channels[channel]["window"];
    assert_eq!((&window(0)["min"], &window(0)["max"]), (&json!(0.0), &json!(567.0)));
    assert_eq!(window(1)["max"], json!(630.0));

    let stored = json!({"channels": [{"label": "DAPI", "color": "0000FF", "window": {"min": 0, "max": 9, "start": 1, "end": 8}}, {"label": "GFP"}]});
    n5.file(
        "img/attributes.json",
        json!({"axes": ["x", "y", "c", "z", "t"], "scales": [[1, 1, 1, 1, 1], [2, 2, 1, 1, 1]], "omero": stored})
            .to_string(),
    );
    let omero = client.get("/zarr2/img/.zattrs").await.json()["omero"].clone();
    assert_eq!(omero["channels"][0]["window"], stored["channels"][0]["window"]);
    assert_eq!(
        (&omero["channels"][1]["label"], &omero["channels"][1]["window"]["max"]),
        (&json!("GFP"), &json!(630.0))
    );

    // A damaged block does not hide the image.
    for entry in walk(&n5.root().join("img/s0")) {
        std::fs::write(entry, "damaged").unwrap();
    }
    let omero = client.get("/zarr2/img/.zattrs").await.json()["omero"].clone();
    assert_eq!(omero["channels"][1]["window"]["max"], json!(65_535.0));
}

/// Returns the files of blocks below a directory.
fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let of_entry = |entry: std::path::PathBuf| if entry.is_dir() { walk(&entry) } else { vec![entry] };
    entries.flat_map(of_entry).filter(|path| path.extension().is_none()).collect()
}

#[tokio::test]
async fn an_image_is_sampled_once_and_labels_are_not() {
    let n5 = container();
    n5.file("labels/attributes.json", json!({"scales": [[1, 1, 1]], "image-label": {}}).to_string());
    n5.dataset("labels/s0", &[8, 6, 4], &[4, 4, 4], "raw").fill(|_| true, |_| false);
    let probe = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&probe), settings(), options());
    client.get("/zarr3/em/zarr.json").await;
    let blocks_read = probe.gets();
    for path in ["/zarr3/em/zarr.json", "/zarr2/em/.zattrs", "/zarr2/em/.zmetadata"] {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    assert!(blocks_read > 0 && probe.gets() == blocks_read, "{blocks_read} {}", probe.gets());
    assert_eq!(client.get("/zarr2/labels/.zattrs").await.json().get("omero"), None);
}
