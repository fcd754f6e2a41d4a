//! `gzip` and `zlib`: RFC 1952 members or RFC 1950 streams, distinguished by their first bytes.
//!
//! The parameter `useZlib` is ignored. z5 and rust-n5 neither write nor read it, and the stored bytes are unambiguous.

use bytes::BufMut;
use flate2::{Decompress, FlushDecompress, Status};
use libdeflater::Decompressor;
use memchr::memmem;

use super::codec::{CancelCheck, Codec, CodecError, Scratch, damaged};
use super::stream::{self, DecodeOutput, DecodeStep};

const NAME: &str = "gzip";
/// Longest payload that is decoded in one call of libdeflater, which cannot be interrupted. The call takes at most 50
/// ns per byte, a rate that payloads of empty deflate blocks reach.
pub(super) const MAX_ONE_SHOT_BYTES: usize = 8 << 20;

#[derive(Debug)]
pub(super) struct GzipCodec;

impl Codec for GzipCodec {
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        _: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<(), CodecError> {
        cancel_check.check()?;
        let is_gzip = stream_is_gzip(payload)
            .ok_or_else(|| damaged(NAME, "it begins with neither a gzip member nor a zlib stream"))?;
        if payload.len() <= MAX_ONE_SHOT_BYTES && decode_one_shot(payload, is_gzip, len, output) {
            return Ok(());
        }
        let is_stream_start = |rest: &[u8]| stream_is_gzip(rest) == Some(is_gzip);
        stream::resize_for_overwrite(output, len);
        let target = DecodeOutput::new(NAME, output, cancel_check).with_cheap_members();
        stream::decode_streams(payload, target, is_stream_start, |input, target| {
            let mut decoder = if is_gzip { Decompress::new_gzip(15) } else { Decompress::new(true) };
            stream::decode_stream(|input, output| inflate(&mut decoder, input, output), input, target)
        })
    }

    /// Deflate encodes a match of at most 258 bytes in at least 2 bits, so the ratio is at most 1032.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::max_at_ratio(payload_len, 1032)
    }

    /// Returns the size of a decoder's state: that of flate2, which is larger than that of libdeflate.
    fn scratch_bytes(&self, _: &[u8], _: usize) -> usize {
        128 << 10
    }
}

/// Decodes the zlib stream at the start of `part` to fill `output`, as zlib's `uncompress` does.
pub(super) fn decode_zlib_part(
    codec: &'static str,
    part: &[u8],
    output: &mut [u8],
    cancel_check: CancelCheck<'_>,
) -> Result<(), CodecError> {
    let len = output.len();
    if part.len() <= MAX_ONE_SHOT_BYTES && Decompressor::new().zlib_decompress(part, output) == Ok(len) {
        return Ok(());
    }
    let mut target = DecodeOutput::new(codec, output, cancel_check);
    let mut decoder = Decompress::new(true);
    stream::decode_stream(|input, output| inflate(&mut decoder, input, output), part, &mut target)?;
    let found = target.filled();
    if found == len { Ok(()) } else { Err(damaged(codec, format_args!("a part decodes to {found} bytes, not {len}"))) }
}

/// Returns true for a gzip member, false for a zlib stream, and `None` for neither.
fn stream_is_gzip(stream: &[u8]) -> Option<bool> {
    match stream {
        [0x1f, 0x8b, ..] => Some(true),
        // In a zlib stream, the low half of the first byte is the method, 8, and the first two bytes are a multiple of
        // 31.
        [first, second, ..] if first & 0x0f == 8 && u16::from_be_bytes([*first, *second]).is_multiple_of(31) => {
            Some(false)
        }
        _ => None,
    }
}

/// Decodes a payload that is exactly one intact stream of `len` bytes, the common case, with the fastest library.
/// Returns false for everything else.
///
/// libdeflater does not report where the stream ended, and ignores bytes after it. But every stream ends with the
/// checksum of its decoded bytes. If the first occurrence of this checksum is at the end of the payload, so is the end
/// of the stream.
fn decode_one_shot(payload: &[u8], is_gzip: bool, len: usize, output: &mut Vec<u8>) -> bool {
    stream::resize_for_overwrite(output, len);
    let mut decompressor = Decompressor::new();
    let decoded = if is_gzip {
        decompressor.gzip_decompress(payload, output)
    } else {
        decompressor.zlib_decompress(payload, output)
    };
    if decoded != Ok(len) {
        return false;
    }
    let mut trailer = Vec::with_capacity(8);
    if is_gzip {
        trailer.put_u32_le(libdeflater::crc32(output));
        trailer.extend(len.to_le_bytes().into_iter().take(4));
    } else {
        trailer.put_u32(libdeflater::adler32(output));
    }
    let end = memmem::find(payload, &trailer).and_then(|at| at.checked_add(trailer.len()));
    end == Some(payload.len())
}

/// Decodes part of `input` to the start of `output`.
fn inflate(decoder: &mut Decompress, input: &[u8], output: &mut [u8]) -> Result<DecodeStep, CodecError> {
    let before = (decoder.total_in(), decoder.total_out());
    let status = decoder.decompress(input, output, FlushDecompress::None).map_err(|error| damaged(NAME, error))?;
    let after = (decoder.total_in(), decoder.total_out());
    Ok(DecodeStep::between(before, after, status == Status::StreamEnd))
}
