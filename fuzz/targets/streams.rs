//! `bzip2`, `xz` and `zstd` against the readers of their crates, one stream at a time. The first byte selects the
//! codec.

use ::bzip2::bufread::BzDecoder;
use n5_format::BlockEncoding;
use xz2::bufread::XzDecoder;
use xz2::stream::Stream;

use super::Numbers;
use super::codec::{Reference, all_streams, compare, decode};
use super::deflate::read_all;

/// Memory limit of the xz decoder: the dictionary of the largest preset, and a few MiB for the state.
const XZ_BYTES: u64 = 68 << 20;

pub(crate) fn run(data: &[u8]) {
    let mut numbers = Numbers::new(data);
    let which = numbers.below(3);
    let payload = numbers.rest();
    match which {
        0 => compare("bzip2", payload, &bzip2(payload)),
        1 => compare("xz", payload, &xz(payload)),
        _ => {
            compare("zstd", payload, &zstd(payload));
            let encoded = BlockEncoding::Zstd.encode_to_bytes(payload.to_vec().into(), 1).unwrap();
            assert!(BlockEncoding::Zstd.is_one_stream(&encoded, payload.len()));
            assert_eq!(decode("zstd", &encoded, payload.len()).as_deref(), Ok(payload));
        }
    }
}

fn bzip2(payload: &[u8]) -> Reference {
    all_streams(
        payload,
        |rest, _| rest.starts_with(b"BZh"),
        |input, output| read_all(BzDecoder::new(input), output, BzDecoder::into_inner),
    )
}

fn xz(payload: &[u8]) -> Reference {
    const MAGIC: &[u8] = b"\xfd7zXZ\0";
    if !payload.starts_with(MAGIC) {
        // A `.lzma` file has no magic number, so its decoder decides.
        return match lzma(payload) {
            Some((output, rest)) if rest.iter().all(|byte| *byte == 0) => Reference::Sound(output),
            _ => Reference::Unknown,
        };
    }
    all_streams(
        payload,
        |rest, _| rest.starts_with(MAGIC),
        |input, output| {
            let stream = Stream::new_stream_decoder(XZ_BYTES, 0).ok()?;
            read_all(XzDecoder::new_stream(input, stream), output, XzDecoder::into_inner)
        },
    )
}

fn lzma(payload: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut output = Vec::new();
    let decoder = XzDecoder::new_stream(payload, Stream::new_lzma_decoder(XZ_BYTES).ok()?);
    let rest = read_all(decoder, &mut output, XzDecoder::into_inner)?;
    Some((output, rest))
}

fn zstd(payload: &[u8]) -> Reference {
    // No zstd reader accepts zeros between frames.
    let begins = |rest: &[u8], zeros| {
        zeros == 0 && matches!(rest, [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
    };
    let mut is_too_large = false;
    let reference = all_streams(payload, begins, |input, output| {
        if input[0] != 0x28 {
            // A skippable frame: its length follows the magic number.
            let length = u32::from_le_bytes(input.get(4..8)?.try_into().ok()?);
            return input.get(8 + length as usize..);
        }
        // The reader accepts a frame whose content differs from the announced size, and one with a forbidden block.
        if has_empty_compressed_block(input) {
            return None;
        }
        let announced = ::zstd::zstd_safe::get_frame_content_size(input).ok()?;
        let before = output.len() as u64;
        let mut decoder = ::zstd::stream::read::Decoder::with_buffer(input).ok()?.single_frame();
        decoder.window_log_max(20).ok()?;
        let mut rest = None;
        let read = super::deflate::read(&mut decoder, output);
        if read.is_some() {
            let is_whole = announced.is_none_or(|announced| output.len() as u64 == before + announced);
            rest = is_whole.then(|| decoder.finish());
        } else {
            // The window may be larger than the reference may use.
            is_too_large = true;
        }
        rest
    });
    if is_too_large && matches!(reference, Reference::Damaged(_)) { Reference::Unknown } else { reference }
}

/// Returns true if a frame has an empty compressed block before its first fault. The library ignores such a block when
/// it reads a stream and refuses it when it decodes in one call. A compressed block must be shorter than its decoded
/// content.
///
/// Source: RFC 8878, 3.1.1.1 and 3.1.1.2.
fn has_empty_compressed_block(frame: &[u8]) -> bool {
    let Some(descriptor) = frame.get(4) else { return false };
    let is_single_segment = descriptor & 0x20 != 0;
    let content_size = [usize::from(is_single_segment), 2, 4, 8][usize::from(descriptor >> 6)];
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let mut at = 5 + usize::from(!is_single_segment) + dictionary + content_size;
    while let Some(header) = frame.get(at..at + 3) {
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let (kind, bytes) = ((header >> 1) & 3, (header >> 3) as usize);
        if kind == 2 && bytes == 0 {
            return true;
        }
        if header & 1 != 0 || kind == 3 {
            return false;
        }
        at += 3 + if kind == 1 { 1 } else { bytes };
    }
    false
}
