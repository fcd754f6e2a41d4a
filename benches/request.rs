//! Whole requests to the router in process: 256 x 256 x 256 elements of uint16 in blocks of 64 x 64 x 64.
//!
//! In `warm`, every block is in the server's cache. In `cold`, none is, but the files are in the system's page cache.
//! `always` and `never` tell when cached entries are revalidated.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    reason = "made-up data of known size in a directory of its own"
)]

use std::fs;
use std::io::Write;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode};
use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use n5_format::Region;
use n5_server::cache::{ReadOptions, RevalidationPolicy};
use n5_server::config::Config;
use n5_server::container::{Container, Resources, Settings};
use n5_server::http::{App, HttpOptions, Mount, router};
use n5_server::read::{ReadPurpose, SlicePlanner, SliceReader};
use n5_server::store::{Key, LocalStore, SymlinkPolicy};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tower::ServiceExt;

const SIDE: u64 = 256;
const BLOCK: u64 = 64;
const MIB: u64 = 1 << 20;
const CODECS: [&str; 2] = ["raw", "gzip"];

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static DATA: LazyLock<TempDir> = LazyLock::new(write_data);

fn main() {
    divan::main();
}

/// Returns an element: a smooth background with a few bits of noise, as in electron microscopy.
fn value(at: [u64; 3], state: &mut u64) -> u16 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let noise: u64 = (0..4).map(|n| *state >> (33 + 5 * n) & 15).sum();
    ((60 + (at[0] + 2 * at[1] + at[2]) / 8 + noise) * 57) as u16
}

/// Converts a linear index into an index along each of three axes of `side` elements.
fn index(linear: u64, side: u64) -> [u64; 3] {
    [linear % side, linear / side % side, linear / side / side]
}

fn write_data() -> TempDir {
    let dir = TempDir::new().unwrap();
    for codec in CODECS {
        let dataset = dir.path().join(codec);
        fs::create_dir(&dataset).unwrap();
        let text = format!(
            r#"{{"dimensions":[{SIDE},{SIDE},{SIDE}],"blockSize":[{BLOCK},{BLOCK},{BLOCK}],"dataType":"uint16","compression":{{"type":"{codec}"}}}}"#
        );
        fs::write(dataset.join("attributes.json"), text).unwrap();
        for number in 0..(SIDE / BLOCK).pow(3) {
            let position = index(number, SIDE / BLOCK);
            let mut state = number + 1;
            let mut elements = Vec::with_capacity(2 * BLOCK.pow(3) as usize);
            for element in 0..BLOCK.pow(3) {
                let within = index(element, BLOCK);
                let at = [0, 1, 2].map(|axis| position[axis] * BLOCK + within[axis]);
                elements.extend_from_slice(&value(at, &mut state).to_be_bytes());
            }
            let mut stored = vec![0, 0, 0, 3];
            for size in [BLOCK; 3] {
                stored.extend_from_slice(&(size as u32).to_be_bytes());
            }
            if codec == "gzip" {
                let mut encoder = GzEncoder::new(stored, Compression::new(5));
                encoder.write_all(&elements).unwrap();
                stored = encoder.finish().unwrap();
            } else {
                stored.extend_from_slice(&elements);
            }
            let [x, y, z] = position;
            let path = dataset.join(format!("{x}/{y}"));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(z.to_string()), stored).unwrap();
        }
    }
    dir
}

/// Returns the default settings, with larger budgets for blocks.
fn settings(recheck: RevalidationPolicy) -> Settings {
    Settings {
        recheck_metadata: recheck,
        recheck_data: recheck,
        decode_budget: 96 * MIB,
        transfer_budget: 32 * MIB,
        ..Settings::new(&Config::default())
    }
}

/// Returns a server with empty caches.
fn server(recheck: RevalidationPolicy) -> (Router, Container) {
    let store = LocalStore::open(DATA.path(), SymlinkPolicy::Inside, Duration::from_secs(10)).unwrap();
    let resources = Resources::new(settings(recheck));
    let container = Container::new(Arc::new(store), Arc::clone(&resources));
    let revalidate = HeaderValue::from_static("no-cache");
    let mount = Mount {
        name: String::new(),
        title: String::new(),
        container: container.clone(),
        found_cache_control: revalidate.clone(),
        missing_cache_control: revalidate,
    };
    let options = HttpOptions { budget_wait: Duration::ZERO, ..HttpOptions::new(&Config::default()) };
    (router(App::new(vec![mount], resources, options, String::new)), container)
}

/// Sends a request and reads the whole response. Each part is dropped after it is read, as on a connection.
fn ask(router: &Router, path: &str, status: StatusCode) -> usize {
    RUNTIME.block_on(async {
        let request = Request::get(path).header("host", "bench").body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
        let mut body = response.into_body();
        let mut bytes = 0;
        while let Some(frame) = body.frame().await {
            bytes += black_box(frame.unwrap()).data_ref().map_or(0, bytes::Bytes::len);
        }
        bytes
    })
}

/// Regions of a slice, by name.
const REGIONS: [(&str, &str); 4] = [
    ("32 MiB", "start=0,0,0&stop=256,256,256"),
    ("xy plane", "start=0,0,100&stop=256,256,101"),
    ("yz plane", "start=100,0,0&stop=101,256,256"),
    ("one block", "start=64,64,64&stop=128,128,128"),
];

fn path(codec: &str, region: &str) -> String {
    let (_, query) = REGIONS.iter().find(|(name, _)| *name == region).unwrap();
    format!("/slice/{codec}?{query}")
}

const NAMES: [&str; 4] = ["32 MiB", "xy plane", "yz plane", "one block"];

fn warm(bencher: Bencher, path: &str, recheck: RevalidationPolicy, status: StatusCode) {
    let (router, _) = server(recheck);
    let bytes = ask(&router, path, status);
    bencher.counter(BytesCount::new(bytes)).bench_local(|| ask(&router, black_box(path), status));
}

#[divan::bench(args = NAMES)]
fn warm_slice_always(bencher: Bencher, region: &str) {
    warm(bencher, &path("gzip", region), RevalidationPolicy::Always, StatusCode::OK);
}

#[divan::bench(args = NAMES)]
fn warm_slice_never(bencher: Bencher, region: &str) {
    warm(bencher, &path("gzip", region), RevalidationPolicy::Never, StatusCode::OK);
}

fn cold(bencher: Bencher, codec: &str, region: &str) {
    let path = path(codec, region);
    let bytes = ask(&server(RevalidationPolicy::Always).0, &path, StatusCode::OK);
    let bencher = bencher.counter(BytesCount::new(bytes)).with_inputs(|| server(RevalidationPolicy::Always).0);
    bencher.bench_local_values(|router| {
        ask(&router, black_box(&path), StatusCode::OK);
        router
    });
}

#[divan::bench(args = NAMES, sample_count = 20, sample_size = 1)]
fn cold_slice_raw(bencher: Bencher, region: &str) {
    cold(bencher, "raw", region);
}

#[divan::bench(args = NAMES, sample_count = 20, sample_size = 1)]
fn cold_slice_gzip(bencher: Bencher, region: &str) {
    cold(bencher, "gzip", region);
}

#[divan::bench]
fn stored_block_always(bencher: Bencher) {
    warm(bencher, "/raw/1/1/1", RevalidationPolicy::Always, StatusCode::OK);
}

#[divan::bench]
fn stored_block_never(bencher: Bencher) {
    warm(bencher, "/raw/1/1/1", RevalidationPolicy::Never, StatusCode::OK);
}

#[divan::bench]
fn attributes_always(bencher: Bencher) {
    warm(bencher, "/raw/attributes.json", RevalidationPolicy::Always, StatusCode::OK);
}

#[divan::bench]
fn not_found_always(bencher: Bencher) {
    warm(bencher, "/raw/9/9/9", RevalidationPolicy::Always, StatusCode::NOT_FOUND);
}

/// One cached block without HTTP: the cost of a slice that is exactly one stored block.
#[divan::bench]
fn container_warm_block(bencher: Bencher) {
    let (_, container) = server(RevalidationPolicy::Never);
    let key = Key::from_segments(["gzip"]).unwrap();
    let options = ReadOptions::begin();
    let dataset = RUNTIME.block_on(container.dataset(options, &key)).unwrap();
    let axes = |n: u64| [n; 3].into_iter().collect();
    let region = Region::new([64; 3].into_iter().collect(), axes(64), axes(1)).unwrap();
    let read = async || {
        let slice = SlicePlanner::whole(&container, &dataset).plan(&region).unwrap();
        let reader = SliceReader { container: &container, options, slice: &slice };
        reader.read_whole(0, ReadPurpose::Response).await.unwrap().pieces
    };
    let warm = RUNTIME.block_on(read());
    // Entering the runtime is not part of a request.
    let _guard = RUNTIME.enter();
    let read = || read().now_or_never().unwrap();
    assert_eq!(warm[0].as_ptr(), read()[0].as_ptr());
    bencher.bench_local(read);
}
