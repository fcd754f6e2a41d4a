//! Cost of slices. Only existing blocks count, and only the needed parts of uncompressed blocks. The server accepts the
//! smaller piece that a refusal suggests.

use std::fs;
use std::sync::Arc;

use n5_server::container::Settings;
use proptest::prelude::*;

use crate::support::load_metrics;
use crate::support::program::Program;
use crate::support::stores::Probe;
use crate::support::writer::{Dataset, N5, all_indices};
use crate::support::{Client, let_files_settle, local, options, settings};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn list<T: ToString>(numbers: impl IntoIterator<Item = T>) -> String {
    numbers.into_iter().map(|n| n.to_string()).collect::<Vec<_>>().join(",")
}

/// Returns the samples of a region. Only the blocks that `is_stored` selects exist.
fn reference(
    dataset: &Dataset,
    start: &[i64],
    shape: &[u64],
    step: &[u64],
    is_stored: impl Fn(&[u64]) -> bool,
) -> Vec<u8> {
    let samples = all_indices(shape).into_iter().flat_map(|k| {
        let at: Vec<i64> =
            (0..k.len()).map(|axis| start[axis] + i64::try_from(k[axis] * step[axis]).unwrap()).collect();
        let value = dataset.value(&at);
        let block: Vec<u64> = at.iter().zip(&dataset.block_size).map(|(i, b)| i.unsigned_abs() / b).collect();
        (if value > 0 && is_stored(&block) { value } else { 0 }).to_le_bytes()
    });
    samples.collect()
}

/// Settings that refuse a slice of all blocks: bands of three planes decode each block six times, and 4 are allowed.
fn tight() -> Settings {
    Settings { slice_budget: 512 << 10, decode_factor: 4, ..settings() }
}

#[tokio::test]
async fn missing_blocks_do_not_count_as_decoded() {
    let n5 = N5::new();
    let dataset = n5.dataset("v", &[256, 256, 64], &[16, 16, 16], "gzip");
    let is_stored = |position: &[u64]| position[0] == position[1] && position[0] > 12 && position[2] == 1;
    dataset.fill(is_stored, |_| false);
    let client = Client::new(local(n5.root()), tight(), options());
    let whole = client.get("/slice/v").await;
    assert_eq!(whole.status, 200, "{:?}", whole.body);
    assert!(whole.body == reference(&dataset, &[0, 0, 0], &[256, 256, 64], &[1, 1, 1], is_stored));
    let npy = client.get("/slice/v?format=npy").await;
    assert!(npy.status == 200 && npy.body.ends_with(&whole.body));
    for (query, start, shape, step) in [
        ("step=1,2,1", [0, 0, 0], [256, 128, 64], [1, 2, 1]),
        ("select=:,3:,7:", [0, 3, 7], [256, 253, 57], [1, 1, 1]),
        ("start=-9,-9,-9&size=270,270,80&outside=zero", [-9, -9, -9], [270, 270, 80], [1, 1, 1]),
    ] {
        let reply = client.get(&format!("/slice/v?{query}")).await;
        assert_eq!(reply.status, 200, "{query}: {:?}", reply.body);
        assert!(reply.body == reference(&dataset, &start, &shape, &step, is_stored), "{query}");
    }
    // Directories in place of blocks and files in place of directories are not counted either.
    for x in 0..12 {
        n5.file(&format!("v/{x}"), "a file");
    }
    for z in 0..4 {
        fs::create_dir_all(n5.root().join(format!("v/12/{z}/{z}"))).unwrap();
    }
    assert_eq!(client.get("/slice/v").await.status, 200);
    for x in 0..12 {
        fs::remove_file(n5.root().join(format!("v/{x}"))).unwrap();
    }
    fs::remove_dir_all(n5.root().join("v/12")).unwrap();
    dataset.fill(|_| true, |_| false);
    let refused = client.get("/slice/v").await;
    assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (413, "too-large"));
}

#[tokio::test]
async fn existing_blocks_are_listed_only_if_the_decision_depends_on_it() {
    let n5 = N5::new();
    let dataset = n5.dataset("v", &[1 << 13, 1 << 13, 1 << 7], &[16, 16, 16], "gzip");
    dataset.write_block(&[7, 8, 0], false);
    let probe = Probe::new(local(n5.root()));
    let client = Client::new(
        Arc::<Probe>::clone(&probe),
        Settings { slice_budget: 64 << 20, decode_factor: 12, ..settings() },
        options(),
    );
    // The grid has two million positions.
    assert_eq!(client.send("HEAD", "/slice/v", &[]).await.status, 200);
    assert_eq!((probe.lists(), probe.heads(), probe.gets()), (3, 0, 0));
    assert_eq!(client.send("HEAD", "/slice/v?start=0,0,0&size=99,99,9", &[]).await.status, 200);
    assert_eq!(probe.lists(), 3);
}

/// Slices 20 GiB of `uint8`, of which five blocks exist, with the real program. The client reads the first 160 MiB of
/// each response. With `N5_TEST_HEAVY=1` it reads all of the responses to the first query.
#[test]
fn a_slice_of_20_gib_of_an_almost_empty_dataset_is_streamed_within_the_memory_bound() {
    let n5 = N5::new();
    for compression in ["gzip", "raw"] {
        let attributes = serde_json::json!({
            "dimensions": [4096, 4096, 1280], "blockSize": [128, 128, 128], "dataType": "uint8",
            "compression": { "type": compression },
        });
        n5.file(&format!("{compression}/attributes.json"), attributes.to_string());
        let block = crate::support::writer::encode(&[64, 128, 128], &vec![0x0707; 64 << 14], compression == "gzip");
        // The writer encodes elements of 16 bits only, so the header is replaced.
        let block = [&[0, 0, 0, 3, 0, 0, 0, 128][..], &block[8..]].concat();
        for position in ["0/0/0", "5/5/0", "31/31/0", "16/3/5", "31/31/9"] {
            n5.file(&format!("{compression}/{position}"), &block);
        }
    }
    let program = Program::start(&format!(
        "limits.slice_budget = \"64MiB\"\nlimits.decode_budget = \"16MiB\"\ncache.decoded = \"16MiB\"\n\
         cache.stored = \"8MiB\"\nserver.threads = 2\n[[containers]]\nroot = \"{}\"\n",
        n5.root().display()
    ));
    let before = program.memory_bytes("VmHWM");
    let is_heavy = std::env::var("N5_TEST_HEAVY").is_ok_and(|heavy| heavy == "1");
    for (query, bytes) in [
        ("", 20 << 30),
        ("format=npy&", (20 << 30) + 128),
        ("step=2,1,2&", 5 << 30),
        ("select=:,:,0:1280:3&", 427 << 24),
        ("start=-128,-128,-128&size=4352,4352,1536&outside=zero&", 4352 * 4352 * 1536),
    ] {
        for compression in ["gzip", "raw"] {
            let mut connection = program.connect();
            connection.ask(&format!("/slice/{compression}?{query}"));
            let head = connection.head().unwrap();
            assert_eq!((head.status, head.length() as u64), (200, bytes), "{query} {head:?}");
            let is_whole = is_heavy && query.is_empty();
            let (mut left, mut sevens) = (if is_whole { bytes } else { bytes.min(160 << 20) }, 0);
            while left > 0 {
                let piece = connection.read(left.min(1 << 20));
                left -= piece.len() as u64;
                sevens += piece.split(|byte| *byte == 7).count() - 1;
            }
            match query {
                // 160 MiB are ten planes, which three blocks intersect.
                "" if !is_whole => assert_eq!(sevens, (3 * 10) << 14),
                "" => assert_eq!(sevens, 5 << 21),
                _ => {}
            }
        }
    }
    let grown = program.memory_bytes("VmHWM") - before;
    assert!(grown < (64 + 16 + 16 + 8 + 16 + 24) << 20, "{} MiB", grown >> 20);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn partial_reads_of_uncompressed_blocks_equal_whole_reads(
        axes in prop::collection::vec((1u64..40, 2u64..20, -3i64..30, 1u64..40, 1u64..9), 1..4),
        holes in 1u64..5,
        padded in any::<bool>(),
        slice_budget in prop::sample::select(vec![8u64 << 10, 1 << 20]),
    ) {
        let n5 = N5::new();
        let of = |n: usize| axes.iter().map(|a| [a.0, a.1, a.3, a.4][n]).collect::<Vec<u64>>();
        let dataset = n5.dataset("v", &of(0), &of(1), "raw");
        let is_stored = |position: &[u64]| position.iter().sum::<u64>() % holes == 0;
        dataset.fill(is_stored, |_| padded);
        let start: Vec<i64> = axes.iter().map(|a| a.2).collect();
        // No block fits into the decode budget, so each is read in parts.
        let budgets = Settings { slice_budget, decode_budget: 8, decoded_cache: 4 << 10, decode_factor: 100, ..settings() };
        let client = Client::new(local(n5.root()), budgets, options());
        let path = format!(
            "/slice/v?start={}&size={}&step={}&outside=zero",
            list(&start), list(axes.iter().map(|a| (a.3 - 1) * a.4 + 1)), list(of(3)),
        );
        let reply = runtime().block_on(client.get(&path));
        if of(2).iter().product::<u64>() * 2 > slice_budget && reply.status == 413 {
            return Ok(());
        }
        prop_assert_eq!(reply.status.as_u16(), 200, "{}: {:?}", path, reply.body);
        prop_assert!(reply.body == reference(&dataset, &start, &of(2), &of(3), is_stored), "{}", path);
    }
}

#[tokio::test]
async fn an_uncompressed_block_beyond_the_budget_can_be_sliced() {
    let n5 = N5::new();
    // The block has 64 MiB, the decode budget 16 MiB.
    let dataset = n5.dataset("v", &[2048, 2048, 8], &[2048, 2048, 8], "raw");
    let block = crate::support::writer::encode(&[2048, 2048, 8], &vec![0x0102; 32 << 20], false);
    n5.file("v/0/0/0", &block);
    let client = Client::of(n5.root());
    let plane = client.get("/slice/v?select=:,:,3").await;
    assert_eq!(plane.status, 200, "{:?}", plane.body);
    assert!(plane.header("etag").is_some() && plane.body.len() == 8 << 20);
    assert!(plane.body.chunks_exact(2).all(|element| element == [2, 1]));
    let one = client.get("/slice/v?select=7,9,5").await;
    assert_eq!(one.body.as_ref(), [2, 1]);
    let whole = client.get("/slice/v").await;
    assert!(whole.status == 200 && whole.body.len() == 64 << 20);
    let path = dataset.block_path(&[0, 0, 0]);
    for length in [block.len() as u64 - 1, block.len() as u64 + 1, 5, 0] {
        fs::File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
        let refused = client.get("/slice/v?select=7,9,5").await;
        assert_eq!((refused.status.as_u16(), refused.problem().as_str()), (422, "corrupt-block"), "{length}");
    }
}

#[test]
fn only_the_needed_part_of_a_large_uncompressed_block_is_read() {
    let n5 = N5::new();
    n5.dataset("v", &[1024, 1024, 32], &[1024, 1024, 32], "raw");
    n5.file("v/0/0/0", crate::support::writer::encode(&[1024, 1024, 32], &vec![5; 32 << 20], false));
    let program = Program::start(&format!("[[containers]]\nroot = \"{}\"\n", n5.root().display()));
    for (query, most) in [("select=:,:,9", (2 << 20) + 600), ("start=5,5,5&size=9,9,9", 9 * 18432 + 600)] {
        let read = || program.metric("n5_store_read_bytes_total{backend=\"local\"}").unwrap_or(0.0);
        let before = read();
        let reply = program.get(&format!("/slice/v?{query}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.body.bytes().step_by(2).all(|byte| byte == 5));
        let bytes = read() - before;
        assert!(bytes > 0.0 && bytes <= f64::from(most), "{query}: {bytes}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn the_piece_that_a_refusal_suggests_is_accepted(
        axes in prop::collection::vec((1u64..400, 1u64..60, 1u64..5), 2..4),
        compression in prop::sample::select(vec!["raw", "gzip"]),
        slice_budget in 100u64..200_000,
        slice in prop::sample::select(vec![1u64 << 10, 1 << 16, 1 << 40]),
        decode_factor in 1u64..4,
        compress_slices in any::<bool>(),
    ) {
        let n5 = N5::new();
        let dimensions: Vec<u64> = axes.iter().map(|a| a.0).collect();
        let blocks: Vec<u64> = axes.iter().map(|a| a.1).collect();
        let dataset = n5.dataset("v", &dimensions, &blocks, compression);
        // Every `dtype` below can represent these elements. One that does not fit would abort a streamed response.
        let size: Vec<u64> = dimensions.iter().zip(&blocks).map(|(dimension, block)| *dimension.min(block)).collect();
        let elements: Vec<u16> = (0..size.iter().product()).map(|n: u64| u16::try_from(n % 256).unwrap()).collect();
        let first = vec!["0"; axes.len()].join("/");
        n5.file(&format!("v/{first}"), crate::support::writer::encode(&size, &elements, dataset.gzip));
        let budgets = Settings { slice_budget, max_slice_bytes: slice, decode_factor, ..settings() };
        let more = n5_server::http::HttpOptions { compress_slices, ..options() };
        let client = Client::new(local(n5.root()), budgets, more);
        let steps: Vec<u64> = axes.iter().map(|a| a.2).collect();
        let stack = format!("select=:,::{},0", steps[1]);
        let all = format!("step={}", list(&steps));
        let regions = if axes.len() == 3 { vec![(all, steps.clone()), (stack, vec![1, steps[1], 1])] } else { vec![(all, steps)] };
        let accept = [("accept-encoding", "gzip")];
        let mut refused = 0;
        for format in ["raw", "npy", "json", "png", "jpeg", "tiff", "n5"] {
            for dtype in ["", "&dtype=float64", "&dtype=uint8"] {
                for (region, steps) in &regions {
                    let wish = format!("format={format}{dtype}");
                    let ask = async |query: &str| client.send("GET", &format!("/slice/v?{query}&{wish}"), &accept).await;
                    let reply = runtime().block_on(ask(region));
                    if reply.status != 413 {
                        continue;
                    }
                    let Some(piece) = reply.json().get("piece").cloned() else { continue };
                    refused += 1;
                    let piece: Vec<u64> = serde_json::from_value(piece).unwrap();
                    // Requests the first piece, and the next one along every axis.
                    for at in 0..2 {
                        let axes = dimensions.iter().zip(&piece).zip(steps).enumerate();
                        let items = axes.map(|(axis, ((dimension, n), step))| {
                            if axis == 2 && region.starts_with("select") { return "0".to_owned() }
                            let from = (at * n * step).min(dimension.saturating_sub((n - 1) * step + 1));
                            format!("{from}:{}:{step}", from + (n - 1) * step + 1)
                        });
                        let query = format!("select={}", items.collect::<Vec<_>>().join(","));
                        let again = runtime().block_on(ask(&query));
                        prop_assert!(again.status != 413 && again.status != 503, "{}&{}: {:?}", query, wish, again.body);
                    }
                }
            }
        }
        prop_assume!(refused > 0);
    }
}

/// Creates blocks of 18 MiB. The second row has blocks in mode 1, the last column has cropped blocks, and one block is
/// missing.
fn large_raw_blocks() -> N5 {
    let n5 = N5::new();
    n5.dataset("v", &[1024, 2048, 14], &[1024, 1024, 9], "raw");
    for (y, z, planes) in [(0, 0, 9), (1, 0, 9), (0, 1, 5)] {
        let elements: Vec<u16> =
            (0..1024 * 1024 * planes).map(|n| u16::try_from((n * 31 + y) % 65_521).unwrap()).collect();
        let mut block = crate::support::writer::encode(&[1024, 1024, planes], &elements, false);
        if y == 1 {
            block[1] = 1;
            block.splice(16..16, u32::try_from(elements.len()).unwrap().to_be_bytes());
        }
        n5.file(&format!("v/0/{y}/{z}"), block);
    }
    n5
}

#[tokio::test]
async fn chunks_of_large_uncompressed_blocks_do_not_depend_on_the_budgets() {
    let n5 = large_raw_blocks();
    let large = Settings { slice_budget: 256 << 20, decode_budget: 256 << 20, ..settings() };
    let large = Client::new(local(n5.root()), large, options());
    let small = Settings { slice_budget: 4 << 20, decode_budget: 2 << 20, decoded_cache: 0, ..settings() };
    let small = Client::new(local(n5.root()), small, options());
    for path in [
        "/as/raw/v/0/0/0",
        "/as/raw/v/0/1/0",
        "/as/raw/v/0/0/1",
        "/as/raw,float64/v/0/0/0",
        "/zarr2/v/0/0/0",
        "/zarr3/v/c/0/0/0",
        "/zarr3/v/c/1/1/0",
        "/zarr3/v/c/0/1/0",
        "/zarr3/v/c/1/0/0",
        "/precomputed/v/raw/0-1024_0-1024_0-9",
        "/precomputed/v/raw/0-1024_1024-2048_0-9",
        "/precomputed/v/raw/0-1024_0-1024_9-14",
        "/as/raw/v/0/1/1",
    ] {
        let (whole, pieces) = (large.get(path).await, small.get(path).await);
        assert_eq!(pieces.status, whole.status, "{path}: {:?}", whole.body);
        let is_there = !path.ends_with("v/0/1/1") && !path.ends_with("c/1/1/0");
        assert_eq!(whole.status == 200, is_there, "{path}: {}", whole.status);
        if !is_there {
            continue;
        }
        assert!(whole.body == pieces.body && whole.body.len() >= 10 << 20, "{path}");
        for name in ["etag", "content-length", "content-type", "accept-ranges", "cache-control"] {
            assert!(whole.header(name).is_some() && whole.header(name) == pieces.header(name), "{path} {name}");
        }
        let head = small.send("HEAD", path, &[]).await;
        assert_eq!((head.header("content-length"), head.body.len()), (whole.header("content-length"), 0));
        let etag = whole.header("etag").unwrap();
        assert_eq!(small.get_with(path, &[("if-none-match", etag)]).await.status, 304, "{path}");
        assert_eq!(small.get_with(path, &[("if-match", "\"other\"")]).await.status, 412, "{path}");
        let len = whole.body.len();
        for (range, from, to) in [
            ("0-0", 0, 1),
            ("3-20", 3, 21),
            ("10-3000000", 10, 3_000_001),
            ("5000000-5000006", 5_000_000, 5_000_007),
            ("-7", len - 7, len),
        ] {
            let part = small.get_with(path, &[("range", &format!("bytes={range}")), ("if-range", etag)]).await;
            assert_eq!(part.status, 206, "{path} {range}");
            assert_eq!(part.header("content-range").unwrap(), format!("bytes {from}-{}/{len}", to - 1));
            assert!(part.body == whole.body[from..to], "{path} {range}");
        }
        assert_eq!(small.get_with(path, &[("range", "bytes=90000000000-")]).await.status, 416, "{path}");
    }
}

#[tokio::test]
async fn a_range_of_a_large_uncompressed_block_reads_little_more_than_the_range() {
    let n5 = N5::new();
    // A block of 18 MiB that is one element thick along the slowest axis.
    n5.dataset("v", &[1024, 9216, 1], &[1024, 9216, 1], "raw").fill(|_| true, |_| false);
    let_files_settle();
    let recorder = load_metrics::recorder();
    let _counted = metrics::set_default_local_recorder(&recorder);
    let small = Settings { slice_budget: 4 << 20, decode_budget: 2 << 20, decoded_cache: 0, ..settings() };
    let client = Client::new(local(n5.root()), small, options());
    let read = || {
        let text = recorder.handle().render();
        let lines = text.lines().filter_map(|line| line.strip_prefix("n5_store_read_bytes_total")?.rsplit(' ').next());
        lines.map(|bytes| bytes.parse::<u64>().unwrap()).sum::<u64>()
    };
    for path in ["/as/raw,float64/v/0/0/0", "/zarr3/v/c/0/0/0"] {
        let before = read();
        let part = client.get_with(path, &[("range", "bytes=9000000-9000999")]).await;
        assert_eq!((part.status.as_u16(), part.body.len()), (206, 1000), "{path}");
        assert!(read() - before < 64 << 10, "{path}: {} bytes", read() - before);
    }
}
