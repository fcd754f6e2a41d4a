//! `/thumbnail`: small pictures of datasets, pyramids and groups.

use std::io::Cursor;
use std::sync::Arc;

use n5_server::access::{AccessControl, Policy};
use n5_server::http::HttpOptions;
use n5_server::store::Store;
use serde_json::{Value, json};

use crate::support::faulty::{Fault, Faulty};
use crate::support::stores::Probe;
use crate::support::writer::{N5, encode};
use crate::support::{Client, let_files_settle, local, options, settings};

/// A decoded picture.
struct Picture {
    width: u32,
    height: u32,
    /// Grey values, or red, green and blue.
    pixels: Vec<Vec<u8>>,
}

impl Picture {
    fn of(file: &[u8]) -> Self {
        let mut reader = png::Decoder::new(Cursor::new(file)).read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        let pixels = bytes.chunks(info.color_type.samples()).map(<[u8]>::to_vec).collect();
        Self { width: info.width, height: info.height, pixels }
    }

    fn at(&self, x: u32, y: u32) -> &[u8] {
        &self.pixels[(y * self.width + x) as usize]
    }
}

/// Writes a dataset of uint16 in one block, with further attributes.
fn volume(n5: &N5, path: &str, dimensions: &[u64], further: &Value, value: impl Fn(&[u64]) -> u16) {
    let mut attributes = json!({"dimensions": dimensions, "blockSize": dimensions, "dataType": "uint16", "compression": {"type": "raw"}});
    attributes.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    n5.file(&format!("{path}/attributes.json"), attributes.to_string());
    let elements: Vec<u16> = crate::support::writer::all_indices(dimensions).iter().map(|index| value(index)).collect();
    let block = vec!["0"; dimensions.len()].join("/");
    n5.file(&format!("{path}/{block}"), encode(dimensions, &elements, false));
}

async fn picture(client: &Client, path: &str) -> Picture {
    let reply = client.get(path).await;
    assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some("image/png")), "{path} {reply:?}");
    Picture::of(&reply.body)
}

#[tokio::test]
async fn the_middle_plane_is_shown_with_the_aspect_ratio_of_the_physical_extents() {
    let n5 = N5::new();
    // A ramp along x, on a plane that differs from all others.
    let further = json!({"axes": ["z", "y", "x"], "units": ["nm", "nm", "um"], "resolution": [7, 10, 0.02]});
    volume(&n5, "a", &[5, 30, 60], &further, |index| if index[0] == 2 { 10 * index[2] as u16 } else { 60_000 });
    let client = Client::of(n5.root());
    let shown = picture(&client, "/thumbnail/a?size=64").await;
    // 1200 nm by 300 nm.
    assert_eq!((shown.width, shown.height), (64, 16));
    let row: Vec<u8> = (0..64).map(|x| shown.at(x, 8)[0]).collect();
    assert!(row.is_sorted() && row[0] == 0 && row[63] == 255, "{row:?}");
    // No more than one pixel for each voxel of the finer axis.
    let large = picture(&client, "/thumbnail/a?size=1024").await;
    assert_eq!((large.width, large.height), (120, 30));
    volume(&n5, "unknown", &[60, 30], &json!({}), |_| 7);
    let shown = picture(&client, "/thumbnail/unknown?size=32").await;
    assert_eq!((shown.width, shown.height, shown.at(0, 0)), (32, 16, &[255][..]));
}

#[tokio::test]
async fn the_coarsest_sufficient_level_of_a_pyramid_is_read() {
    let n5 = N5::new();
    n5.file(
        "p/attributes.json",
        json!({"pixelResolution": [1, 1, 1], "scales": [[1, 1, 1], [2, 2, 2], [8, 8, 8]]}).to_string(),
    );
    for (level, size) in [(0u16, 256u64), (1, 128), (2, 32)] {
        volume(&n5, &format!("p/s{level}"), &[size, size, 4], &json!({}), |index| level * 1000 + index[0] as u16);
    }
    let client = Client::of(n5.root());
    let all = [16, 32, 35, 64, 128, 200, 256];
    for size in all {
        let shown = picture(&client, &format!("/thumbnail/p?size={size}")).await;
        assert_eq!((shown.width, shown.height), (size, size));
    }
    // Only pictures that are made from a level fail if its block is damaged.
    for (level, sizes) in [(2, &[16, 32, 35][..]), (1, &[64, 128]), (0, &[200, 256])] {
        let block = format!("p/s{level}/0/0/0");
        let intact = std::fs::read(n5.root().join(&block)).unwrap();
        n5.file(&block, "damaged");
        let_files_settle();
        for size in all {
            let status = Client::of(n5.root()).get(&format!("/thumbnail/p?size={size}")).await.status;
            assert_eq!(status.as_u16(), if sizes.contains(&size) { 422 } else { 200 }, "{level} {size}");
        }
        n5.file(&block, intact);
    }
}

#[tokio::test]
async fn channels_are_added_in_their_colours() {
    let n5 = N5::new();
    let channels = json!([
        {"color": "FF0000"}, {"color": "00ff00", "active": false}, {"color": "0000FF"},
    ]);
    let further = json!({"axes": ["x", "y", "c", "t"], "omero": {"channels": channels}});
    // Each channel is bright in one column; the channel in the middle is not shown. Only the first time point counts.
    let value = |index: &[u64]| if index[3] == 0 && index[0] == index[2] { 100 } else { 20 * index[3] as u16 };
    volume(&n5, "a", &[3, 2, 3, 2], &further, value);
    let client = Client::of(n5.root());
    let shown = picture(&client, "/thumbnail/a").await;
    assert_eq!((shown.width, shown.height), (3, 2));
    assert_eq!([0, 1, 2].map(|x| shown.at(x, 1)), [&[255, 0, 0][..], &[0, 0, 0], &[0, 0, 255]]);
}

#[tokio::test]
async fn labels_have_colours_and_0_is_black() {
    let n5 = N5::new();
    volume(&n5, "labels/neurons", &[2, 2], &json!({}), |index| index[0] as u16 * 2);
    let shown = picture(&Client::of(n5.root()), "/thumbnail/labels/neurons").await;
    assert_eq!([0, 1].map(|x| shown.at(x, 0)), [&[0, 0, 0][..], &[32, 240, 19]]);
}

#[tokio::test]
async fn a_group_stands_for_the_first_image_below_it() {
    let n5 = N5::new();
    volume(&n5, "a/labels", &[4, 4], &json!({}), |_| 1);
    volume(&n5, "a/raw", &[6, 4], &json!({}), |_| 1);
    volume(&n5, "b/deep/er/labels", &[5, 4], &json!({}), |_| 1);
    n5.file("c/attributes.json", "{}");
    n5.file(
        "empty/attributes.json",
        json!({"dimensions": [0, 4], "blockSize": [1, 1], "dataType": "uint8",
        "compression": {"type": "raw"}})
        .to_string(),
    );
    let client = Client::of(n5.root());
    for (path, width) in [("/thumbnail/a", 6), ("/thumbnail", 6), ("/thumbnail/", 6), ("/thumbnail/b", 5)] {
        assert_eq!(picture(&client, path).await.width, width, "{path}");
    }
    for path in ["/thumbnail/c", "/thumbnail/empty", "/thumbnail/nosuch", "/thumbnail/a/raw/0"] {
        let reply = client.get(path).await;
        assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (404, "not-found"), "{path}");
    }
    let reply = client.get("/thumbnail/a?size=5").await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (400, "invalid-parameter"));
}

#[tokio::test]
async fn the_search_of_a_large_group_is_bounded() {
    let n5 = N5::new();
    for n in 0..300 {
        n5.file(&format!("g/{n:03}/x/attributes.json"), "{}");
    }
    volume(&n5, "g/zzz", &[6, 4], &json!({}), |_| 1);
    let store = Probe::new(local(n5.root()));
    let client = Client::new(Arc::<Probe>::clone(&store), settings(), options());
    assert_eq!(client.get("/thumbnail/g").await.status, 404);
    assert!(store.gets() < 400, "{}", store.gets());
}

#[tokio::test]
async fn a_thumbnail_is_revalidated_by_its_blocks_and_drawn_once() {
    let n5 = N5::new();
    volume(&n5, "a", &[64, 64], &json!({}), |index| index[0] as u16);
    let_files_settle();
    let client = Client::of(n5.root());
    let first = client.get("/thumbnail/a?size=32").await;
    let etag = first.header("etag").unwrap().to_owned();
    assert_eq!(first.header("content-disposition"), Some("inline; filename=\"a_thumbnail.png\""));
    assert_eq!(first.header("cache-control"), client.get("/info/a").await.header("cache-control"));
    assert_eq!(first.header("vary"), Some("accept"));
    let same = client.get_with("/thumbnail/a?size=32", &[("if-none-match", &etag)]).await;
    assert_eq!((same.status.as_u16(), same.body.len()), (304, 0));
    let head = client.send("HEAD", "/thumbnail/a?size=32", &[]).await;
    assert_eq!((head.header("content-length"), head.header("etag")), (first.header("content-length"), Some(&*etag)));
    let jpeg = client.get_with("/thumbnail/a?size=32", &[("accept", "image/jpeg")]).await;
    assert_eq!((jpeg.header("content-type"), &jpeg.body[..2]), (Some("image/jpeg"), &[0xff, 0xd8][..]));
    assert_eq!(client.get_with("/thumbnail/a", &[("accept", "text/plain")]).await.status, 406);
    volume(&n5, "a", &[64, 64], &json!({}), |index| index[1] as u16);
    let changed = client.get_with("/thumbnail/a?size=32", &[("if-none-match", &etag)]).await;
    assert_eq!(changed.status, 200);
    assert_ne!(changed.header("etag"), Some(&*etag));
}

#[tokio::test]
async fn a_plane_without_blocks_is_black() {
    let n5 = N5::new();
    n5.dataset("a", &[40, 20, 10], &[8, 8, 8], "gzip");
    let shown = picture(&Client::of(n5.root()), "/thumbnail/a?size=40").await;
    assert_eq!((shown.width, shown.height), (40, 20));
    assert!(shown.pixels.iter().all(|pixel| pixel == &[0]));
}

#[tokio::test]
async fn a_damaged_block_is_black_and_the_rest_is_drawn() {
    let n5 = N5::new();
    for compression in ["gzip", "raw"] {
        let attributes = json!({"dimensions": [64, 32], "blockSize": [32, 32], "dataType": "uint16",
            "compression": {"type": compression}});
        n5.file("a/attributes.json", attributes.to_string());
        let intact = encode(&[32, 32], &[7_u16; 32 * 32], compression == "gzip");
        n5.file("a/0/0", &intact);
        n5.file("a/1/0", "damaged");
        let_files_settle();
        let client = Client::of(n5.root());
        // The second picture is made from blocks that are known to be intact or damaged.
        for size in [64, 32] {
            let shown = picture(&client, &format!("/thumbnail/a?size={size}")).await;
            assert_eq!([1, size - 2].map(|x| shown.at(x, 8)[0]), [255, 0], "{compression} {size}");
        }
        let first = client.get("/thumbnail/a").await;
        let etag = first.header("etag").unwrap().to_owned();
        let condition = [("if-none-match", etag.as_str())];
        assert_eq!(client.get_with("/thumbnail/a", &condition).await.status, 304, "{compression}");
        n5.file("a/1/0", &intact);
        let repaired = client.get_with("/thumbnail/a", &condition).await;
        assert_eq!(repaired.status, 200, "{compression}");
        let shown = Picture::of(&repaired.body);
        assert_eq!(shown.at(1, 8), shown.at(62, 8), "{compression}");
        n5.file("a/0/0", "damaged");
        n5.file("a/1/0", "damaged");
        let_files_settle();
        let reply = client.get("/thumbnail/a").await;
        assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (422, "corrupt-block"), "{compression}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_does_not_hide_the_volumes_beside_it() {
    const PERMISSION_DENIED: i32 = 13;
    const IO_ERROR: i32 = 5;
    let (em, seg) = (N5::new(), N5::new());
    em.file("a/b/attributes.json", "{}");
    volume(&em, "z", &[6, 4], &json!({}), |_| 1);
    volume(&seg, "z", &[5, 4], &json!({}), |_| 1);
    let faulty = Faulty::new(local(em.root()));
    let stores = vec![("em", Arc::<Faulty>::clone(&faulty) as Arc<dyn Store>), ("seg", local(seg.root()))];
    let client = Client::of_several(stores, settings(), options());
    faulty.begin(|key| key.as_str() == "a", Fault::Errno(PERMISSION_DENIED));
    assert_eq!(picture(&client, "/thumbnail/em").await.width, 6);
    assert!(faulty.injected() > 0);
    // The storage of one container fails.
    faulty.begin(|_| true, Fault::Errno(IO_ERROR));
    assert_eq!(picture(&client, "/thumbnail/").await.width, 5);
    assert_eq!(client.get("/thumbnail/em").await.status, 503);
}

#[tokio::test]
async fn the_centre_of_a_plane_that_is_too_large_is_shown() {
    let n5 = N5::new();
    // One plane of blocks takes 512 MiB.
    let attributes = json!({"dimensions": [16_384, 16_384, 64], "blockSize": [64, 64, 64], "dataType": "uint8",
        "compression": {"type": "gzip"}});
    n5.file("a/attributes.json", attributes.to_string());
    n5.file("a/128/128/0", "damaged");
    n5.file("a/0/0/0", "damaged");
    let client = Client::of(n5.root());
    // The block in the middle is read, the block in the corner is not.
    let reply = client.get("/thumbnail/a").await;
    assert_eq!((reply.status.as_u16(), reply.problem().as_str()), (422, "corrupt-block"));
    std::fs::remove_file(n5.root().join("a/128/128/0")).unwrap();
    assert_eq!(client.get("/thumbnail/a").await.status, 200);
}

#[tokio::test]
async fn the_common_root_shows_only_public_containers() {
    let (em, seg) = (N5::new(), N5::new());
    volume(&em, "raw", &[6, 4], &json!({}), |_| 1);
    volume(&seg, "labels", &[5, 4], &json!({}), |_| 1);
    let open = Client::of_several(vec![("em", local(em.root())), ("seg", local(seg.root()))], settings(), options());
    assert_eq!(picture(&open, "/thumbnail/").await.width, 6);
    assert_eq!(picture(&open, "/thumbnail/seg").await.width, 5);
    let policy = Policy::parse(true, &["/em = alice"], "public").unwrap();
    let control = Some(Arc::new(AccessControl::open(policy, None, None).unwrap()));
    let options = HttpOptions { access_control: control, ..options() };
    let containers = vec![("em", local(em.root())), ("seg", local(seg.root()))];
    let restricted = Client::of_several(containers, settings(), options);
    assert_eq!(picture(&restricted, "/thumbnail/").await.width, 5);
    assert_eq!(restricted.get("/thumbnail/em").await.status, 401);
}
