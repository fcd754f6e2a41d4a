//! `blosc`: buffers of c-blosc 1. Their own header says how to decode them. `cname`, `shuffle` and similar attributes
//! are ignored, because they do not always agree with it.
//!
//! c-blosc checks little of its input, so the whole structure of a buffer is checked here first. Some buffers are
//! decoded by `blosc_decode` instead of c-blosc:
//!
//! - snappy, for which c-blosc would need a C++ compiler;
//! - LZ4, because c-blosc allocates new memory for every buffer;
//! - zlib, and zstd in small parts, because c-blosc creates a decoder for each part, which takes 3 us.

use super::blosc_buffer::{BloscHeader, HEADER_BYTES, NAME};
use super::codec::{Codec, Scratch};
use super::error::{CodecError, damaged, wrong_length};
use super::limits::CancelCheck;
use super::stream::{self, expect_zero_padding};
use super::{blosc_decode, blosc_sys};

#[derive(Debug)]
pub(super) struct BloscCodec;

impl Codec for BloscCodec {
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        scratch: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<(), CodecError> {
        cancel_check.check()?;
        let (header, buffer) = parse_checked(payload, len)?;
        if len == 0 {
            output.clear();
            return Ok(());
        }
        if !header.is_memcpyed()
            && let Some(inner) = blosc_decode::InnerCodec::for_header(&header)
        {
            return blosc_decode::decode(&header, inner, buffer, output, scratch.buffer(), cancel_check);
        }
        stream::clear_and_reserve(output, len);
        match blosc_sys::decompress(buffer, output, len) {
            Ok(()) => stream::check_length(len, output),
            Err(code) => Err(damaged(NAME, format_args!("c-blosc returns error {code}"))),
        }
    }

    fn uncompressed_slice<'a>(&self, payload: &'a [u8], len: usize) -> Option<&'a [u8]> {
        let (header, buffer) = parse_checked(payload, len).ok()?;
        (len > 0 && header.is_memcpyed()).then(|| buffer.get(HEADER_BYTES..)).flatten()
    }

    /// The maximum ratio of zstd, the inner compression with the highest one.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::max_at_ratio(payload_len, 32_768)
    }

    /// Two blosc blocks, each at most as large as the result, and the state of the inner decoder.
    fn scratch_bytes(&self, payload: &[u8], len: usize) -> usize {
        let block = BloscHeader::parse(payload).map_or(len, |header| header.block_size.min(len));
        block.saturating_mul(2).saturating_add(256 << 10)
    }
}

/// Parses and checks a payload that must decode to `len` bytes. Returns the header and the buffer.
fn parse_checked(payload: &[u8], len: usize) -> Result<(BloscHeader, &[u8]), CodecError> {
    let header = BloscHeader::parse(payload)?;
    if header.decoded_bytes != len {
        return Err(wrong_length(len, header.decoded_bytes));
    }
    let (buffer, rest) = payload
        .split_at_checked(header.stored_bytes)
        .ok_or_else(|| damaged(NAME, format_args!("it has only {} of {} bytes", payload.len(), header.stored_bytes)))?;
    expect_zero_padding(NAME, rest)?;
    if len > 0 {
        header.check(buffer)?;
    }
    Ok((header, buffer))
}
