//! Tests of cancellation, and of payloads that take long to decode but yield few bytes.

use std::cell::Cell;

use super::*;

/// Decodes `payload` and cancels after `max_checks` polls of the cancellation check. Returns the number of polls and
/// the result.
fn decode_until_cancelled(
    max_checks: usize,
    name: &str,
    payload: &[u8],
    len: usize,
) -> (usize, Result<Bytes, CodecError>) {
    let checks = Cell::new(0);
    let should_continue = || {
        checks.set(checks.get() + 1);
        checks.get() <= max_checks
    };
    let payload = Bytes::copy_from_slice(payload);
    let result = codec(name).decode(payload, len, &mut Scratch::default(), CancelCheck::new(&should_continue));
    (checks.get(), result)
}

fn damage(result: Result<Vec<u8>, CodecError>) -> String {
    match result {
        Err(CodecError::Damaged { reason, .. }) => reason,
        other => panic!("{:?}", other.map(|bytes| bytes.len())),
    }
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

fn lz4_frame_of(data: &[u8], size: lz4::frame::BlockSize) -> Vec<u8> {
    let info = lz4::frame::FrameInfo::new().block_size(size);
    let mut encoder = lz4::frame::FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn decoding_stops_when_it_is_cancelled() {
    for (name, encoding, encode) in ENCODINGS.iter().filter(|row| row.0 != "raw") {
        let payload = encode(&sample(300_000));
        let (checks, result) = decode_until_cancelled(0, name, &payload, 300_000);
        // The xz codec tries a second decoder after the first is cancelled. The second one is cancelled, too.
        let is_cancelled = matches!(result, Err(CodecError::Cancelled));
        assert!(checks <= 2 && is_cancelled, "{encoding}: {checks} checks");
    }
}

#[test]
fn cancellation_is_checked_between_members_and_within_long_ones() {
    let (data, member_data) = (noise(8 << 20), sample(2000));
    let repeated = |encode: Encode| (0..40).flat_map(|_| encode(&member_data)).collect::<Vec<u8>>();
    let blosc = blosc_sys::compress(&sample(8 << 20), c"lz4", 1, 2, 1 << 20);
    for (name, payload, len, max_bytes_per_check) in [
        ("bzip2", bzip2(&data), data.len(), 1 << 20),
        ("xz", xz(&data), data.len(), 1 << 20),
        ("xz", lzma(&data), data.len(), 1 << 20),
        ("gzip", gzip(&[&data[..], &data].concat()), 16 << 20, 1 << 20),
        ("lz4", lz4_frame(&data), data.len(), 1 << 20),
        ("lz4", lz4_java(&data, 32 << 10, true), data.len(), 1 << 20),
        ("blosc", blosc, data.len(), 2 << 20),
        ("bzip2", repeated(bzip2), 80_000, 2000),
        ("xz", repeated(xz), 80_000, 2000),
        ("gzip", repeated(gzip), 80_000, 2000),
        ("gzip", repeated(zlib), 80_000, 2000),
        ("zstd", repeated(zstd), 80_000, 2000),
        ("lz4", repeated(lz4_frame), 80_000, 2000),
    ] {
        let (checks, result) = decode_until_cancelled(usize::MAX, name, &payload, len);
        assert!(result.is_ok(), "{name}: {:?}", result.err());
        assert!(checks >= len / max_bytes_per_check, "{name} of {len} bytes: {checks} checks");
        // After a cancellation, decoding ends at the next check and is not tried again with another decoder.
        let (checks_until_cancelled, result) = decode_until_cancelled(checks / 2, name, &payload, len);
        assert!(matches!(result, Err(CodecError::Cancelled)), "{name}");
        assert!(checks_until_cancelled <= checks / 2 + 2, "{name}: {checks_until_cancelled} of {checks} checks");
    }
}

#[test]
fn empty_and_tiny_members_are_refused_after_a_few() {
    let of_64_kib: Encode = |data| lz4_frame_of(data, lz4::frame::BlockSize::Max64KB);
    let of_4_mib: Encode = |data| lz4_frame_of(data, lz4::frame::BlockSize::Max4MB);
    let skippable: Encode = |_| vec![0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0];
    let forms: [(&str, Encode); 8] = [
        ("bzip2", bzip2),
        ("xz", xz),
        ("gzip", gzip),
        ("gzip", zlib),
        ("zstd", zstd),
        ("zstd", skippable),
        ("lz4", of_64_kib),
        ("lz4", of_4_mib),
    ];
    for (name, encode) in forms {
        for content_bytes in [0, 1] {
            let member = encode(&vec![7; content_bytes]);
            let reason = damage(decode(name, &member.repeat(900), 1000));
            assert!(reason.starts_with("its first 6") && reason.contains("members hold only"), "{name}: {reason}");
            // The limit also applies to empty members in the middle of a payload: 60 are accepted, 100 are not.
            let (before, after) = (encode(&sample(900)), encode(&sample(100)));
            let few_members = [&before[..], &encode(&[]).repeat(60), &after].concat();
            if member != skippable(&[]) {
                assert_eq!(decode(name, &few_members, 1000).map(|bytes| bytes.len()), Ok(1000), "{name}");
            }
            let many_members = [&before[..], &encode(&[]).repeat(100), &after].concat();
            assert!(decode(name, &many_members, 1000).is_err(), "{name}");
        }
    }
    let reason = damage(decode("lz4", &lz4_java(&[], 1, true).repeat(3000), 1000));
    assert!(reason.contains("members hold only 0 bytes"), "{reason}");
    // One LZ4 frame that contains 3000 empty blocks.
    let frame = lz4_frame(&sample(1000));
    let blocks = [&frame[..7], &[1, 0, 0, 0, 0].repeat(3000), &frame[7..]].concat();
    assert!(damage(decode("lz4", &blocks, 1000)).contains("members hold only 0 bytes"));
}

/// Writes bits, the lowest of each byte first.
#[derive(Default)]
struct TestBitWriter(Vec<u8>, u32);

impl TestBitWriter {
    fn put(&mut self, bits: u32, count: u32) {
        for bit in (0..count).map(|n| bits >> n & 1) {
            if self.1.is_multiple_of(8) {
                self.0.push(0);
            }
            *self.0.last_mut().unwrap() |= u8::try_from(bit << (self.1 % 8)).unwrap();
            self.1 += 1;
        }
    }
}

/// Returns an unterminated zlib stream of empty blocks, each with its own Huffman tables.
fn empty_deflate_blocks(bytes: usize) -> Vec<u8> {
    let mut bits = TestBitWriter::default();
    // Eight blocks end at a byte boundary, so their bytes can be repeated.
    for _ in 0..8 {
        for (value, count) in [(0, 1), (2, 2), (0, 10), (14, 4)] {
            bits.put(value, count);
        }
        // Code lengths 1 and 18 have one bit each. They encode 256 zeros, the end-of-block code and one distance code.
        for symbol in [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1] {
            bits.put(u32::from(symbol == 18 || symbol == 1), 3);
        }
        for (value, count) in [(1, 1), (127, 7), (1, 1), (107, 7), (0, 1), (0, 1), (0, 1)] {
            bits.put(value, count);
        }
    }
    assert!(bits.1.is_multiple_of(8));
    [&[0x78, 0x9c][..], &bits.0.repeat(bytes / bits.0.len())].concat()
}

#[test]
fn a_long_stream_without_content_is_refused_early() {
    let payload = empty_deflate_blocks(20 << 20);
    let reason = damage(decode("gzip", &payload, 64 << 20));
    assert!(reason.starts_with("its first 327680 bytes hold only 0"), "{reason}");
    let (checks, _) = decode_until_cancelled(usize::MAX, "gzip", &payload, 64 << 20);
    assert!(checks < 10, "{checks} checks");
}

/// bgzip writes members of up to 64 KiB with an extra field, and an empty one at the end.
#[test]
fn files_of_multi_member_writers_decode() {
    let same = |found: Result<Vec<u8>, CodecError>, data: &[u8]| found.is_ok_and(|found| found == data);
    let data = sample(3 << 20);
    let bgzip: Vec<u8> = data.chunks(0xff00).chain([&[][..]]).flat_map(gzip).collect();
    assert!(same(decode("gzip", &bgzip, data.len()), &data), "bgzip");
    let small: Vec<u8> = data.chunks(100).flat_map(gzip).collect();
    assert!(same(decode("gzip", &small, data.len()), &data), "small");
    let pbzip2: Vec<u8> = data.chunks(900_000).flat_map(bzip2).collect();
    assert!(same(decode("bzip2", &pbzip2, data.len()), &data), "pbzip2");
    let pixz: Vec<u8> = data.chunks(64 << 10).flat_map(xz).collect();
    assert!(same(decode("xz", &pixz, data.len()), &data), "pixz");
    // pzstd writes a skippable frame before each frame, and the seekable format of zstd has one at the end.
    let skippable = [&[0x5e, 0x2a, 0x4d, 0x18, 4, 0, 0, 0][..], b"seek"].concat();
    let pzstd: Vec<u8> = data
        .chunks(4 << 10)
        .flat_map(|part| [skippable.clone(), zstd(part)].concat())
        .chain(skippable.clone())
        .collect();
    assert!(same(decode("zstd", &pzstd, data.len()), &data), "pzstd");
    // Noise does not shrink, and bzip2 reads a whole block of it before it yields any bytes.
    let noise = noise(4 << 20);
    for (name, encoding, encode) in ENCODINGS {
        assert!(same(decode(name, &encode(&noise), noise.len()), &noise), "{encoding}");
    }
}

/// Returns a blosc buffer without shuffle or split, whose blocks decode to `size` bytes each. If `is_shared` is true,
/// all blocks refer to the same copy of `part`; otherwise, each block has its own copy.
fn blosc_of(inner: u8, size: usize, blocks: usize, part: &[u8], is_shared: bool) -> Vec<u8> {
    let word = |n: usize| u32::try_from(n).unwrap().to_le_bytes();
    let starts = 16 + 4 * blocks;
    let step = if is_shared { 0 } else { 4 + part.len() };
    let stored = [&word(part.len())[..], part].concat();
    let stored = stored.repeat(if is_shared { 1 } else { blocks });
    let head = [&[2, 1, inner << 5 | 0x10, 1][..], &word(size * blocks), &word(size), &word(starts + stored.len())];
    let starts: Vec<u8> = (0..blocks).flat_map(|n| word(starts + n * step)).collect();
    [&head.concat()[..], &starts, &stored].concat()
}

#[test]
fn shared_tiny_and_overlong_parts_of_a_blosc_buffer_are_refused() {
    let plain = [7; 256];
    let snappy = snap::raw::Encoder::new().compress_vec(&plain).unwrap();
    for (inner, part) in [(1, lz4_bare(&plain)), (2, snappy), (3, zlib(&plain)), (4, zstd(&plain))] {
        let own = blosc_of(inner, 256, 1000, &part, false);
        assert_eq!(decode("blosc", &own, 256_000).as_deref(), Ok(&vec![7; 256_000][..]), "{inner}");
        let reason = damage(decode("blosc", &blosc_of(inner, 256, 1000, &part, true), 256_000));
        assert_eq!(reason, "parts overlap", "{inner}");
    }
    assert!(decode("blosc", &blosc_of(1, 8, 100, &[7; 8], false), 800).is_err());
    let reason = damage(decode("blosc", &blosc_of(3, 4096, 1, &empty_deflate_blocks(40_000), false), 4096));
    assert_eq!(reason, "a part is longer than its content");
    // Bytes after the end of a part's stream are ignored, as in c-blosc.
    let trailing = [zlib(&plain), vec![9; 3]].concat();
    assert!(decode("blosc", &blosc_of(3, 256, 4, &trailing, false), 1024).is_ok());
    let short = blosc_of(3, 256, 4, &zlib(&plain[1..]), false);
    assert!(damage(decode("blosc", &short, 1024)).contains("255 bytes, not 256"));
}
