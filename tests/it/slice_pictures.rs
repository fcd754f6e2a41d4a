//! `/slice`: levels of multiscale groups, automatic windows, colour images and calibrated stacks.

use std::io::Cursor;

use serde_json::{Value, json};

use n5_format::DataType;
use n5_metadata::default_channel_colour;
use n5_server::container::Settings;

use crate::support::writer::{N5, all_indices, encode};
use crate::support::{Client, local, options, settings};

/// Writes a dataset of uint16 in one block, with further attributes.
fn volume(n5: &N5, path: &str, dimensions: &[u64], further: &Value, value: impl Fn(&[u64]) -> u16) {
    let mut attributes = json!({"dimensions": dimensions, "blockSize": dimensions, "dataType": "uint16", "compression": {"type": "raw"}});
    attributes.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    n5.file(&format!("{path}/attributes.json"), attributes.to_string());
    let elements: Vec<u16> = all_indices(dimensions).iter().map(|index| value(index)).collect();
    let block = vec!["0"; dimensions.len()].join("/");
    n5.file(&format!("{path}/{block}"), encode(dimensions, &elements, false));
}

/// Decodes a PNG. Returns width, height and the pixels.
fn decoded(file: &[u8]) -> (u32, u32, Vec<Vec<u8>>) {
    let mut reader = png::Decoder::new(Cursor::new(file)).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    (info.width, info.height, bytes.chunks(info.color_type.samples()).map(<[u8]>::to_vec).collect())
}

async fn picture(client: &Client, path: &str) -> (u32, u32, Vec<Vec<u8>>) {
    let reply = client.get(path).await;
    assert_eq!(reply.status, 200, "{path} {:?}", reply.body);
    decoded(&reply.body)
}

/// Returns the detail and the parameter of a 400.
async fn refusal(client: &Client, path: &str) -> (String, String) {
    let reply = client.get(path).await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (400, "invalid-parameter"), "{path}");
    let text = |name: &str| reply.json()[name].as_str().unwrap().to_owned();
    (text("detail"), text("parameter"))
}

#[tokio::test]
async fn a_slice_has_a_file_name_that_says_what_it_is() {
    let n5 = N5::new();
    volume(&n5, "em/s0", &[6, 5, 4], &json!({"axes": ["x", "y", "z"]}), |_| 1);
    let client = Client::of(n5.root());
    for (query, expected) in [
        ("select=0:3,:,2&format=tiff", "attachment; filename=\"em_s0_x0-3_z2.tif\""),
        ("format=npy", "attachment; filename=\"em_s0.npy\""),
        ("select=:,:,0&format=png", "inline; filename=\"em_s0_z0.png\""),
        ("select=:,:,0&format=jpeg&window=0,9", "inline; filename=\"em_s0_z0.jpg\""),
        ("step=2,1,1&format=json", "inline; filename=\"em_s0_x0-6by2.json\""),
    ] {
        let reply = client.get(&format!("/slice/em/s0?{query}")).await;
        assert_eq!(reply.header("content-disposition"), Some(expected), "{query}");
    }
    // Keys of a container have no such name.
    assert_eq!(client.get("/em/s0/0/0/0").await.header("content-disposition"), None);
}

#[tokio::test]
async fn a_level_of_a_group_is_read_in_voxels_of_the_finest() {
    let n5 = N5::new();
    n5.file("p/attributes.json", json!({"pixelResolution": [1, 1], "scales": [[1, 1], [2, 2], [4, 4]]}).to_string());
    for (level, size) in [(0u16, 64u64), (1, 32), (2, 16)] {
        volume(&n5, &format!("p/s{level}"), &[size, size], &json!({}), |index| 100 * level + index[0] as u16);
    }
    let client = Client::of(n5.root());
    let reply = client.get("/slice/p?format=json").await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (404, "not-a-dataset"));
    for (query, level, start, shape) in [
        ("level=auto&pixels=16", "s2", "0,0", "16,16"),
        ("level=auto&pixels=17", "s1", "0,0", "32,32"),
        ("level=auto", "s0", "0,0", "64,64"),
        ("level=auto&pixels=8&start=8,8&stop=41,24", "s2", "2,2", "9,4"),
        ("level=1&select=5,10:20", "s1", "2,5", "5"),
        ("level=s2&step=2,1", "s2", "0,0", "8,16"),
        ("level=0", "s0", "0,0", "64,64"),
    ] {
        let reply = client.get(&format!("/slice/p?{query}")).await;
        assert_eq!(reply.status, 200, "{query} {:?}", reply.body);
        let found = ["n5-level", "n5-start", "n5-shape"].map(|name| reply.header(name).unwrap());
        assert_eq!(found, [level, start, shape], "{query}");
    }
    let direct = client.get("/slice/p/s1?format=json&start=3,4&size=2,1").await.json();
    let through_group = client.get("/slice/p?level=s1&format=json&start=6,8&stop=10,10").await.json();
    assert_eq!(direct["data"], through_group["data"]);
    assert!(refusal(&client, "/slice/p?level=s7").await.0.contains("s0, s1, s2"));
    let outside = client.get("/slice/p?level=s2&start=60,0&stop=65,1").await;
    assert_eq!((outside.status.as_u16(), outside.problem().as_str()), (400, "out-of-bounds"));
    // A dataset is its only level.
    let dataset = client.get("/slice/p/s2?level=auto").await;
    assert_eq!((dataset.header("n5-shape"), dataset.header("n5-level")), (Some("16,16"), None));
    assert_eq!(client.get("/slice/nosuch?level=auto").await.status, 404);
    n5.file("plain/attributes.json", "{}");
    assert_eq!(client.get("/slice/plain?level=auto").await.problem(), "not-a-dataset");
}

#[tokio::test]
async fn an_automatic_window_comes_from_percentiles_of_the_dataset() {
    let n5 = N5::new();
    // 1 % of the elements are below 10, and one of 10,000 is a hot pixel.
    volume(&n5, "a", &[100, 100], &json!({}), |index| match (index[1] * 100 + index[0]) as u16 {
        9_999 => 60_000,
        n if n < 99 => 3,
        n if n < 100 => 10,
        n => 10 + n % 101,
    });
    let client = Client::of(n5.root());
    let stats = client.get("/stats/a?percentiles=1,99.9").await.json();
    assert_eq!(stats["percentiles"], json!({"1": 10, "99.9": 110}));
    let automatic = client.get("/slice/a?format=png&window=auto").await;
    let fixed = client.get("/slice/a?format=png&window=10,110").await;
    assert_eq!((automatic.status.as_u16(), &automatic.body), (200, &fixed.body));
    assert_eq!(automatic.header("etag"), fixed.header("etag"));
    let jpeg = client.get("/slice/a?format=jpeg&window=auto").await;
    assert_eq!(jpeg.body, client.get("/slice/a?format=jpeg&window=10,110").await.body);
    volume(&n5, "constant", &[4, 4], &json!({}), |_| 7);
    assert_eq!(picture(&client, "/slice/constant?format=png&window=auto").await.2[0], [255]);
    n5.dataset("empty", &[4, 4], &[4, 4], "raw");
    assert_eq!(picture(&client, "/slice/empty?format=png&window=auto").await.2[0], [0]);
    assert_eq!(refusal(&client, "/slice/a?format=npy&window=auto").await.1, "window");
    assert!(refusal(&client, "/slice/a?format=png&window=auto;0,1").await.0.contains("channel axis"));
}

#[tokio::test]
async fn channels_are_added_to_a_colour_image() {
    let n5 = N5::new();
    let value = |index: &[u64]| if index[0] == index[2] { 1000 * (1 + index[2] as u16) } else { 0 };
    volume(&n5, "a", &[3, 2, 3, 4], &json!({"axes": ["x", "y", "c", "z"]}), value);
    let client = Client::of(n5.root());
    // Each channel is bright in one column, and has its own automatic window.
    let all = picture(&client, "/slice/a?format=png&select=...,0").await;
    assert_eq!((all.0, all.1, &all.2[3..]), (3, 2, &[vec![0, 255, 255], vec![255, 0, 255], vec![255, 255, 0]][..]));
    let some = "/slice/a?format=png&select=...,0&channels=2,0&colors=ff8000,blue&window=0,3000;0,2000";
    let reply = client.get(some).await;
    assert_eq!((reply.header("n5-shape"), reply.header("n5-start")), (Some("3,2,3"), Some("0,0,0,0")));
    assert_eq!(decoded(&reply.body).2[..3], [vec![0, 0, 128], vec![0, 0, 0], vec![255, 128, 0]]);
    let single = "/slice/a?format=png&select=...,0&channels=1&window=0,4000";
    let reply = client.get(single).await;
    assert_eq!((reply.header("n5-shape"), reply.header("n5-start")), (Some("3,2,1"), Some("0,0,1,0")));
    assert_eq!(decoded(&reply.body).2[..3], [vec![0; 3], vec![128; 3], vec![0; 3]]);
    // Without parameters of channels, a plane of one channel stays grey, and its window is that of the channel.
    let grey = picture(&client, "/slice/a?format=png&select=:,:,1,0&window=auto").await;
    assert_eq!(grey.2[..3], [vec![0], vec![255], vec![0]]);
    let jpeg = client.get("/slice/a?format=jpeg&select=...,0").await;
    assert_eq!((jpeg.status.as_u16(), &jpeg.body[..2]), (200, &[0xff, 0xd8][..]));
    let tags = [client.get(some).await, client.get(single).await].map(|reply| reply.header("etag").unwrap().to_owned());
    assert_ne!(tags[0], tags[1]);
}

#[tokio::test]
async fn the_colours_and_windows_of_omero_are_the_defaults() {
    let n5 = N5::new();
    let channels = json!([
        {"color": "00FFFF", "window": {"start": 0, "end": 500}}, {"color": "FF0000", "window": {"start": 100, "end": 200}},
    ]);
    n5.file("p/attributes.json", json!({"omero": {"channels": channels}}).to_string());
    volume(&n5, "p/s0", &[2, 2, 2], &json!({"axes": ["x", "y", "c"]}), |index| 100 + 100 * index[0] as u16);
    let client = Client::of(n5.root());
    let shown = picture(&client, "/slice/p/s0?format=png").await;
    assert_eq!(shown.2[..2], [vec![0, 51, 51], vec![255, 102, 102]]);
    let given = picture(&client, "/slice/p/s0?format=png&colors=red,green&window=0,200").await;
    assert_eq!(given.2[..2], [vec![128, 128, 0], vec![255, 255, 0]]);
}

#[tokio::test]
async fn what_is_no_colour_image_is_refused_with_a_remedy() {
    let n5 = N5::new();
    volume(&n5, "a", &[3, 2, 9, 2], &json!({"axes": ["x", "y", "c", "z"]}), |_| 1);
    volume(&n5, "unnamed", &[3, 2, 2], &json!({}), |_| 1);
    volume(&n5, "xyz", &[3, 2, 2], &json!({"axes": ["x", "y", "z"]}), |_| 1);
    let client = Client::of(n5.root());
    for (path, parameter, remedy) in [
        ("/slice/a?format=npy&channels=0", "channels", "format=png or jpeg"),
        ("/slice/a?format=tiff&colors=red", "colors", "format=png or jpeg"),
        ("/slice/a?format=png&select=...,0", "channels", "channels=0,1,2"),
        ("/slice/a?format=png&select=...,0&channels=9", "channels", "among the 9 channels"),
        ("/slice/a?format=png&select=...,0&channels=0,1&colors=red", "colors", "one for each"),
        ("/slice/a?format=png&select=...,0&channels=0,1&window=0,1;0,1;0,1", "window", "one for each"),
        ("/slice/a?format=png&select=:,:,0,0&channels=0", "channels", "drops"),
        ("/slice/a?format=png&channels=0,1", "format", "two axes longer than 1"),
        ("/slice/unnamed?format=png&channels=0", "channels", "names no axes"),
        ("/slice/xyz?format=png&colors=red", "colors", "x, y, z"),
        ("/slice/xyz?format=png", "format", "two axes longer than 1"),
    ] {
        let (detail, found) = refusal(&client, path).await;
        assert!(found == parameter && detail.contains(remedy), "{path}: {found}: {detail}");
    }
}

#[tokio::test]
async fn a_tiff_has_the_calibration_of_the_dataset_or_of_its_pyramid() {
    let n5 = N5::new();
    let axes = json!([
        {"name": "z", "type": "space", "unit": "micrometer"},
        {"name": "y", "type": "space", "unit": "nanometer"},
        {"name": "x", "type": "space", "unit": "nanometer"},
    ]);
    let scale = json!([{"type": "scale", "scale": [0.04, 5, 4]}, {"type": "translation", "translation": [0, 0, 40]}]);
    let image = json!({"multiscales": [{"version": "0.4", "axes": axes,
        "datasets": [{"path": "s0", "coordinateTransformations": scale}]}]});
    n5.file("p/attributes.json", image.to_string());
    volume(&n5, "p/s0", &[6, 5, 4], &json!({}), |_| 1);
    volume(&n5, "plain", &[6, 5, 4], &json!({}), |_| 1);
    let client = Client::of(n5.root());
    let description = async |path: &str| {
        let reply = client.get(path).await;
        assert_eq!(reply.status, 200, "{path}");
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        let start = text.find("ImageJ=").unwrap();
        text[start..].split('\0').next().unwrap().to_owned()
    };
    let expected = "ImageJ=1.11a\nimages=2\nslices=2\nunit=nm\nspacing=80\nxorigin=-12\nloop=false\n";
    for path in
        ["/slice/p/s0?start=2,0,0&step=1,1,2&format=tiff", "/slice/p?level=0&start=2,0,0&step=1,1,2&format=tiff"]
    {
        assert_eq!(description(path).await, expected, "{path}");
    }
    let uncalibrated = "ImageJ=1.11a\nimages=4\nslices=4\nloop=false\n";
    assert_eq!(description("/slice/plain?format=tiff").await, uncalibrated);
    let shown = description("/slice/plain?format=tiff&window=-1,2.5").await;
    assert!(shown.ends_with("min=-1\nmax=2.5\n"), "{shown}");
    // The tag depends on the attributes of the group.
    let before = client.get("/slice/p/s0?format=tiff").await;
    n5.file("p/attributes.json", image.to_string().replace("0.04", "0.05"));
    assert_ne!(client.get("/slice/p/s0?format=tiff").await.header("etag"), before.header("etag"));
}

#[tokio::test]
async fn a_hyperstack_is_in_the_order_of_imagej_whatever_the_order_of_the_axes() {
    let n5 = N5::new();
    let value = |c: u64, z: u64, t: u64, x: u64| (c * 1000 + z * 100 + t * 10 + x) as u16;
    volume(&n5, "xyzct", &[2, 2, 3, 2, 4], &json!({"axes": ["x", "y", "z", "c", "t"]}), |i| {
        value(i[3], i[2], i[4], i[0])
    });
    volume(&n5, "txyzc", &[4, 2, 2, 3, 2], &json!({"axes": ["t", "x", "y", "z", "c"]}), |i| {
        value(i[4], i[3], i[0], i[1])
    });
    volume(&n5, "tczyx", &[4, 2, 3, 2, 2], &json!({"axes": ["t", "c", "z", "y", "x"]}), |i| {
        value(i[1], i[2], i[0], i[4])
    });
    volume(&n5, "xyczt", &[2, 2, 2, 3, 4], &json!({"axes": ["x", "y", "c", "z", "t"]}), |i| {
        value(i[2], i[3], i[4], i[0])
    });
    let client = Client::of(n5.root());
    let mut bodies = Vec::new();
    for path in ["xyzct", "txyzc", "xyczt", "tczyx"] {
        let reply = client.get(&format!("/slice/{path}?format=tiff")).await;
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        assert_eq!(reply.header("content-length").unwrap(), reply.body.len().to_string());
        bodies.push(reply.body);
    }
    assert_eq!(bodies[0], bodies[2]);
    assert_eq!(bodies[1], bodies[2]);
    assert_eq!(bodies[3], bodies[2]);
    let elements = &bodies[0][bodies[0].len() - 2 * 96..];
    let first = |page: usize| u16::from_le_bytes([elements[page * 8], elements[page * 8 + 1]]);
    assert_eq!([0, 1, 2, 6, 7].map(first), [0, 1000, 100, 10, 1010]);
    let text = String::from_utf8_lossy(&bodies[0]);
    assert!(text.contains("images=24\nchannels=2\nslices=3\nframes=4\nhyperstack=true\nmode=composite\n"), "{text}");
}

/// Writes an OME-NGFF image whose two levels have no attributes besides those of the array, as many writers do.
fn image_of_cells(n5: &N5) {
    let axis = |name: &str, kind: &str| json!({"name": name, "type": kind, "unit": if kind == "space" { "micrometer" } else { "" }});
    let level = |path: &str, size: f64| {
        json!({"path": path, "coordinateTransformations": [{"type": "scale", "scale": [1, 1, 2, size, size]},
            {"type": "translation", "translation": [0, 0, 4, 0, 0]}]})
    };
    let channel = |label: &str, color: &str, end: u32| json!({"label": label, "color": color, "window": {"start": 10, "end": end}});
    let attributes = json!({"multiscales": [{"version": "0.4", "axes": [axis("t", "time"), axis("c", "channel"),
        axis("z", "space"), axis("y", "space"), axis("x", "space")], "datasets": [level("0", 0.5), level("a/1", 1.0)]}],
        "omero": {"channels": [channel("DAPI", "0000FF", 700), channel("GFP", "00FF00", 2600)]}});
    n5.file("cells/attributes.json", attributes.to_string());
    for (path, side) in [("cells/0", 8), ("cells/a/1", 4)] {
        volume(n5, path, &[side, side, 3, 2, 4], &json!({}), |index| u16::try_from(index[3] * 100 + index[0]).unwrap());
    }
}

#[tokio::test]
async fn a_level_has_the_axes_voxel_sizes_and_channels_of_its_image() {
    let n5 = N5::new();
    image_of_cells(&n5);
    volume(&n5, "cells/other", &[8, 8, 3, 2, 4], &json!({}), |_| 1);
    let client = Client::of(n5.root());
    for (path, size) in [("cells/0", 0.5), ("cells/a/1", 1.0)] {
        let info = client.get(&format!("/info/{path}")).await.json();
        assert_eq!(info["axes"], json!(["x", "y", "z", "c", "t"]), "{path}");
        assert_eq!(
            (&info["resolution"], &info["units"][0]),
            (&json!([size, size, 2.0, 1.0, 1.0]), &json!("micrometer"))
        );
        assert_eq!(
            info["channels"][0],
            json!({"label": "DAPI", "color": "0000FF", "window": {"start": 10.0, "end": 700.0}, "active": true})
        );
        // Neuroglancer does not look for the axes in the group.
        assert_eq!(info["urls"]["recommended"]["view"], "as");
        let name = path.replace('/', "_");
        // Only formats that use the axes look for them in the group.
        for (format, axes, file) in
            [("tiff", Some("x,y"), format!("{name}_z2_c1_t3.tif")), ("raw", None, format!("{name}_z2_d3_1_d4_3.raw"))]
        {
            let slice = client.get(&format!("/slice/{path}?select=:,:,2,1,3&format={format}")).await;
            assert_eq!(slice.header("n5-axes"), axes, "{format}");
            assert!(slice.header("content-disposition").unwrap().contains(&file), "{file}: {:?}", slice.headers);
        }
        let reencoded = client.get(&format!("/as/gzip/{path}/attributes.json")).await.json();
        assert_eq!((&reencoded["axes"], &reencoded["resolution"][0]), (&info["axes"], &json!(size)));
    }
    let info = client.get("/info/cells/other").await.json();
    assert_eq!((&info["axes"], &info["resolution"]), (&Value::Null, &Value::Null));
    assert_eq!(client.get("/slice/cells/other?start=0,0,0,0,0").await.header("n5-axes"), None);
}

#[tokio::test]
async fn a_stack_has_the_colours_windows_and_names_of_its_channels() {
    let n5 = N5::new();
    image_of_cells(&n5);
    volume(&n5, "plain", &[4, 4, 2], &json!({"axes": ["x", "y", "c"]}), |_| 1);
    let client = Client::of(n5.root());
    let stack = async |path: &str| client.get(path).await.body.to_vec();
    let has = |file: &[u8], bytes: &[u8]| file.windows(bytes.len()).any(|part| part == bytes);
    let ranges = |ranges: &[f64]| ranges.iter().flat_map(|end| end.to_le_bytes()).collect::<Vec<u8>>();
    let names: Vec<u8> = "DAPIGFPDAPIGFP".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for path in ["/slice/cells/0?format=tiff", "/slice/cells?level=1&format=tiff"] {
        let file = stack(path).await;
        assert!(has(&file, b"JIJIlbal\x18\0\0\0gnar\x01\0\0\0stul\x02\0\0\0") && has(&file, &names), "{path}");
        assert!(has(&file, &ranges(&[10.0, 700.0, 10.0, 2600.0])), "{path}");
    }
    let given = stack("/slice/cells/0?format=tiff&window=3,4").await;
    assert!(has(&given, &ranges(&[3.0, 4.0, 3.0, 4.0])));
    let automatic = stack("/slice/cells/0?format=tiff&window=auto").await;
    assert!(has(&automatic, &ranges(&[0.0, 7.0, 100.0, 107.0])));
    // Without windows in the metadata, none is computed. One channel is no stack of channels.
    let plain = stack("/slice/plain?format=tiff").await;
    assert!(has(&plain, b"JIJIstul\x02\0\0\0"));
    assert!(!has(&stack("/slice/cells/0?format=tiff&select=:,:,:,1,:").await, b"JIJI"));
}

#[tokio::test]
async fn a_stack_whose_pages_are_in_another_order_is_streamed() {
    let n5 = N5::new();
    for (path, dimensions, block_size, axes) in [
        ("zyx", &[40, 60, 100][..], &[16, 16, 16][..], &["z", "y", "x"][..]),
        ("xyzc", &[50, 40, 30, 4], &[16, 16, 8, 1], &["x", "y", "z", "c"]),
        ("cxyz", &[3, 50, 40, 40], &[3, 16, 16, 8], &["c", "x", "y", "z"]),
        ("txyzc", &[5, 30, 20, 20, 4], &[2, 9, 9, 9, 3], &["t", "x", "y", "z", "c"]),
    ] {
        for compression in ["raw", "gzip"] {
            let path = format!("{path}_{compression}");
            let dataset = n5.dataset(&path, dimensions, block_size, compression);
            // Some blocks are missing, and some at the edge have padding.
            dataset.fill(|position| position.iter().sum::<u64>() % 7 != 3, |position| position[0] == 1);
            let attributes = json!({"dimensions": dimensions, "blockSize": block_size, "dataType": "uint16",
                "compression": {"type": compression}, "axes": axes});
            n5.file(&format!("{path}/attributes.json"), attributes.to_string());
        }
    }
    let ample = Client::of(n5.root());
    let small = Settings { slice_budget: 160 << 10, decode_factor: 1000, ..settings() };
    let tight = Client::new(local(n5.root()), small, options());
    for (path, queries) in [
        ("zyx", &["", "&start=3,5,7", "&step=2,1,3&dtype=float64", "&start=-4,0,-9&stop=50,60,90&outside=zero"][..]),
        ("xyzc", &["", "&select=:,:,:,1:", "&step=1,2,1,3", "&dtype=float32"]),
        ("cxyz", &["", "&select=2,:,:,:&dtype=float64", "&start=1,1,1,1"]),
        ("txyzc", &["", "&select=::2,...", "&select=...,1:3"]),
    ] {
        for compression in ["raw", "gzip"] {
            for query in queries {
                let path = format!("/slice/{path}_{compression}?format=tiff{query}");
                let (whole, streamed) = (ample.get(&path).await, tight.get(&path).await);
                assert_eq!((whole.status.as_u16(), streamed.status.as_u16()), (200, 200), "{path} {:?}", streamed.body);
                assert!(whole.body == streamed.body, "{path}");
                assert_eq!(streamed.header("content-length").unwrap(), whole.body.len().to_string());
                let is_large = streamed.body.len() as u64 > 120 << 10;
                assert!(whole.header("etag").is_some() && (streamed.header("etag").is_none() || !is_large), "{path}");
            }
        }
    }
}

#[test]
fn channels_have_the_colours_of_the_page() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/routes/page/colours.js");
    let script = std::fs::read_to_string(script).unwrap();
    let list = |name: &str| -> Vec<String> {
        let (_, rest) = script.split_once(&format!("const {name} = [")).unwrap();
        rest.split_once(']').unwrap().0.split(", ").map(|text| text.trim_matches('"').to_owned()).collect()
    };
    let colours = |count: u64, data_type: DataType| -> Vec<String> {
        let colour = |index| default_channel_colour(index, count, &data_type);
        (0..count).map(colour).map(|[red, green, blue]| format!("#{red:02x}{green:02x}{blue:02x}")).collect()
    };
    assert_eq!(colours(2, DataType::UInt8), list("TWO"));
    assert_eq!(colours(3, DataType::UInt8), list("RED_GREEN_BLUE"));
    assert_eq!(colours(8, DataType::UInt8), list("MANY"));
}
