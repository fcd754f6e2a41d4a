//! Decoding of one block of 64 x 64 x 64 elements of microscopy-like noise, per codec and data type.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "made-up data of known size"
)]

use std::io::{Read, Write};

use bytes::Bytes;
use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use n5_format::{AttributesDocument, BlockDecoder, CancelCheck, DatasetAttributes, Scratch};

const SIDE: usize = 64;
const LIMIT_BYTES: u64 = 1 << 30;

fn main() {
    divan::main();
}

/// Returns big-endian elements: a smooth background with a few bits of noise, as in electron microscopy.
fn sample(width: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut bytes = Vec::with_capacity(SIDE.pow(3) * width);
    for i in 0..SIDE.pow(3) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (x, y, z) = (i % SIDE, i / SIDE % SIDE, i / SIDE / SIDE);
        let noise: u64 = (0..4).map(|n| state >> (33 + 5 * n) & 15).sum();
        let value = 60 + ((x + 2 * y + z) as u64) / 4 + noise;
        let value = match width {
            1 => value,
            2 => value * 57,
            _ => u64::from((value as f32 * 0.37).to_bits()),
        };
        bytes.extend_from_slice(&value.to_be_bytes()[8 - width..]);
    }
    bytes
}

fn encode(codec: &str, data: &[u8], width: usize) -> Vec<u8> {
    let mut payload = Vec::new();
    match codec {
        "raw" => payload.extend_from_slice(data),
        "gzip" | "gzip 2 members" => {
            let half = if codec == "gzip" { data.len() } else { data.len() / 2 };
            for part in data.chunks(half) {
                let mut encoder = flate2::write::GzEncoder::new(payload, flate2::Compression::new(5));
                encoder.write_all(part).unwrap();
                payload = encoder.finish().unwrap();
            }
        }
        "bzip2" => drop(bzip2::read::BzEncoder::new(data, bzip2::Compression::best()).read_to_end(&mut payload)),
        "xz" => drop(xz2::read::XzEncoder::new(data, 6).read_to_end(&mut payload)),
        "lz4 bare" => payload = lz4::block::compress(data),
        "lz4 frame" => {
            let mut encoder = lz4::frame::FrameEncoder::new(payload);
            encoder.write_all(data).unwrap();
            payload = encoder.finish().unwrap();
        }
        "lz4 java" => {
            for part in data.chunks(65536) {
                let block = lz4::block::compress(part);
                let (token, stored) = if block.len() < part.len() { (0x26, &block[..]) } else { (0x16, part) };
                payload.extend_from_slice(b"LZ4Block");
                payload.push(token);
                payload.extend_from_slice(&(stored.len() as u32).to_le_bytes());
                payload.extend_from_slice(&(part.len() as u32).to_le_bytes());
                let checksum = xxhash_rust::xxh32::xxh32(part, 0x9747_b28c) & 0x0fff_ffff;
                payload.extend_from_slice(&checksum.to_le_bytes());
                payload.extend_from_slice(stored);
            }
        }
        "zstd" => payload = zstd::bulk::compress(data, 3).unwrap(),
        "blosc lz4" => payload = blosc(data, width, c"lz4"),
        "blosc zstd" => payload = blosc(data, width, c"zstd"),
        other => unreachable!("{other}"),
    }
    payload
}

#[expect(unsafe_code, reason = "the encoder of c-blosc has no safe binding")]
fn blosc(data: &[u8], width: usize, name: &std::ffi::CStr) -> Vec<u8> {
    let mut payload = vec![0; data.len() + 16];
    // SAFETY: both buffers are passed with their lengths, and the name is NUL-terminated.
    let written = unsafe {
        let (from, to) = (data.as_ptr().cast(), payload.as_mut_ptr().cast());
        blosc_src::blosc_compress_ctx(5, 1, width, data.len(), from, to, payload.len(), name.as_ptr(), 0, 1)
    };
    payload.truncate(usize::try_from(written).unwrap());
    payload
}

const CODECS: &[&str] = &[
    "raw",
    "gzip",
    "gzip 2 members",
    "bzip2",
    "xz",
    "lz4 bare",
    "lz4 frame",
    "lz4 java",
    "blosc lz4",
    "blosc zstd",
    "zstd",
];

fn decode(bencher: Bencher, codec: &str, data_type: &str, width: usize) {
    let data = sample(width);
    let name = codec.split(' ').next().unwrap();
    let text = format!(
        r#"{{"dimensions":[64,64,64],"blockSize":[64,64,64],"dataType":"{data_type}","compression":{{"type":"{name}"}}}}"#
    );
    let attributes = DatasetAttributes::parse(AttributesDocument::parse(text.as_bytes()).unwrap()).unwrap();
    let mut stored = vec![0, 0, 0, 3, 0, 0, 0, 64, 0, 0, 0, 64, 0, 0, 0, 64];
    stored.extend_from_slice(&encode(codec, &data, width));
    let (position, mut scratch) = ([0, 0, 0], Scratch::default());
    bencher.counter(BytesCount::new(data.len())).with_inputs(|| Bytes::from(stored.clone())).bench_local_values(
        |stored| {
            let decoder = BlockDecoder::new(black_box(stored), &attributes, &position, LIMIT_BYTES).unwrap();
            decoder.decode(|_| Vec::new(), &mut scratch, CancelCheck::NEVER).unwrap()
        },
    );
}

#[divan::bench(args = CODECS)]
fn uint8(bencher: Bencher, codec: &str) {
    decode(bencher, codec, "uint8", 1);
}

#[divan::bench(args = CODECS)]
fn uint16(bencher: Bencher, codec: &str) {
    decode(bencher, codec, "uint16", 2);
}

#[divan::bench(args = CODECS)]
fn float32(bencher: Bencher, codec: &str) {
    decode(bencher, codec, "float32", 4);
}
