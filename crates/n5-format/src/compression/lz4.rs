//! `lz4`: four encodings under one name, distinguished by their first bytes. Each is named after the program that
//! writes it.
//!
//! - Java N5: frames of lz4-java's `LZ4BlockOutputStream`, which begin with `LZ4Block`;
//! - rust-n5: LZ4 frames;
//! - zarr (numcodecs): the decoded size as little-endian u32, then one block;
//! - z5: one bare block.

use std::io::Read;

use bytes::Buf;
use lz4::block::{DecompressError, decompress_into};
use lz4::frame::FrameDecoder;
use xxhash_rust::xxh32::xxh32;

use super::codec::{CancelCheck, Codec, CodecError, Scratch, damaged, too_long, wrong_length};
use super::stream::{
    self, DecodeOutput, MIN_BYTES_PER_CHEAP_MEMBER, MemberLimit, check_periodically, expect_zero_padding,
    skip_zero_padding,
};

const NAME: &str = "lz4";
const JAVA_MAGIC: &[u8] = b"LZ4Block";
const JAVA_HEADER_BYTES: usize = 21;
const JAVA_SEED: u32 = 0x9747_b28c;
/// Upper bound of a stored block of an LZ4 frame. The decoder reads all of a block before it yields any bytes.
const FRAME_BLOCK_BYTES: usize = 5 << 20;
const FRAME_MAGIC: &[u8] = &[0x04, 0x22, 0x4d, 0x18];

#[derive(Debug)]
pub(super) struct Lz4Codec;

impl Codec for Lz4Codec {
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        _: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<(), CodecError> {
        cancel_check.check()?;
        if payload.starts_with(JAVA_MAGIC) {
            return decode_java_frames(payload, len, output, cancel_check);
        }
        if payload.starts_with(FRAME_MAGIC) {
            let is_stream_start = |rest: &[u8]| rest.starts_with(FRAME_MAGIC);
            stream::resize_for_overwrite(output, len);
            let target = DecodeOutput::new(NAME, output, cancel_check).with_read_ahead(FRAME_BLOCK_BYTES);
            return stream::decode_streams(payload, target, is_stream_start, decode_frame);
        }
        match payload.split_first_chunk() {
            Some((size, block)) if u64::from(u32::from_le_bytes(*size)) == len as u64 => {
                // By chance, a bare block can begin with bytes that look like the size.
                decode_bare_block(block, len, output)
                    .or_else(|error| decode_bare_block(payload, len, output).or(Err(error)))
            }
            _ => decode_bare_block(payload, len, output),
        }
    }

    /// Each additional byte of a match's length adds at most 255 bytes of output, so the ratio is at most 255.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::max_at_ratio(payload_len, 255)
    }

    /// Only LZ4 frames need memory: three blocks of the maximum size of 4 MiB, and a window.
    fn scratch_bytes(&self, payload: &[u8], _: usize) -> usize {
        if payload.is_empty() || payload.starts_with(FRAME_MAGIC) { 13 << 20 } else { 0 }
    }
}

/// Decodes frames of lz4-java. Their end mark may be missing, because every frame has its own checksum.
///
/// Source: lz4-java's `LZ4BlockInputStream.java`.
fn decode_java_frames(
    payload: &[u8],
    len: usize,
    output: &mut Vec<u8>,
    cancel_check: CancelCheck<'_>,
) -> Result<(), CodecError> {
    stream::resize_for_overwrite(output, len);
    let mut unfilled = output.as_mut_slice();
    let mut rest = payload;
    let mut empty_frames = MemberLimit::new(NAME, MIN_BYTES_PER_CHEAP_MEMBER);
    let mut unchecked_bytes = 0;
    while let Some(next) = skip_zero_padding(rest) {
        if !next.starts_with(JAVA_MAGIC) {
            return Err(CodecError::Trailing { codec: NAME, bytes: rest.len() });
        }
        let (header, body) =
            next.split_at_checked(JAVA_HEADER_BYTES).ok_or_else(|| damaged(NAME, "a frame's header ends early"))?;
        let header = JavaHeader::parse(header.get(JAVA_MAGIC.len()..).unwrap_or_default())?;
        let (data, after) =
            body.split_at_checked(header.stored_bytes).ok_or_else(|| damaged(NAME, "a frame ends early"))?;
        if header.decoded_bytes == 0 {
            empty_frames.begin_member(len.saturating_sub(unfilled.len()))?;
        }
        let frame_bytes = JAVA_HEADER_BYTES.saturating_add(header.stored_bytes).saturating_add(header.decoded_bytes);
        check_periodically(cancel_check, &mut unchecked_bytes, frame_bytes)?;
        let (target, unfilled_after) =
            unfilled.split_at_mut_checked(header.decoded_bytes).ok_or_else(|| too_long(len))?;
        header.decode(data, target)?;
        unfilled = unfilled_after;
        rest = after;
    }
    let missing = unfilled.len();
    if missing > 0 { Err(wrong_length(len, len - missing)) } else { Ok(()) }
}

/// Header of a frame of lz4-java after its magic: a token, two lengths and a checksum. All numbers are little-endian.
struct JavaHeader {
    is_compressed: bool,
    stored_bytes: usize,
    decoded_bytes: usize,
    checksum: u32,
}

impl JavaHeader {
    fn parse(mut bytes: &[u8]) -> Result<Self, CodecError> {
        let header_too_short = |_| damaged(NAME, "a frame's header ends early");
        let token = bytes.try_get_u8().map_err(header_too_short)?;
        let stored = bytes.try_get_u32_le().map_err(header_too_short)?;
        let decoded = bytes.try_get_u32_le().map_err(header_too_short)?;
        let checksum = bytes.try_get_u32_le().map_err(header_too_short)?;
        let is_compressed = match token & 0xf0 {
            0x10 => false,
            0x20 => true,
            _ => return Err(damaged(NAME, format_args!("a frame has the unknown token {token:#04x}"))),
        };
        let is_consistent = decoded <= 1 << (10 + (token & 0x0f))
            && (decoded == 0) == (stored == 0)
            && (is_compressed || stored == decoded)
            && (decoded > 0 || checksum == 0);
        if !is_consistent {
            return Err(damaged(NAME, format_args!("a frame of {stored} bytes claims to hold {decoded} bytes")));
        }
        let to_usize = |bytes: u32| usize::try_from(bytes).map_err(|error| damaged(NAME, error));
        Ok(Self { is_compressed, stored_bytes: to_usize(stored)?, decoded_bytes: to_usize(decoded)?, checksum })
    }

    fn decode(&self, data: &[u8], target: &mut [u8]) -> Result<(), CodecError> {
        if target.is_empty() {
            return Ok(());
        }
        if self.is_compressed {
            let found = decompress_into(data, target).map_err(|error| damaged(NAME, error))?;
            if found != target.len() {
                return Err(damaged(NAME, format_args!("a frame holds {found} bytes, not {}", target.len())));
            }
        } else {
            target.copy_from_slice(data);
        }
        // lz4-java passes the checksum through its `Checksum` interface, which keeps 28 bits.
        if xxh32(target, JAVA_SEED) & 0x0fff_ffff == self.checksum {
            Ok(())
        } else {
            Err(damaged(NAME, "a frame's checksum is wrong"))
        }
    }
}

/// Decodes the LZ4 frame at the start of `input` and returns the bytes after it.
fn decode_frame<'i>(input: &'i [u8], target: &mut DecodeOutput<'_>) -> Result<&'i [u8], CodecError> {
    let decode_error = |error| damaged(NAME, error);
    let frame_and_rest = frame_len(input).and_then(|end| input.split_at_checked(end));
    let mut decoder = FrameDecoder::new(frame_and_rest.map_or(input, |(frame, _)| frame));
    let mut empty_blocks = MemberLimit::new(NAME, MIN_BYTES_PER_CHEAP_MEMBER);
    loop {
        target.check_cancelled()?;
        let unread_before = decoder.get_ref().len();
        let mut surplus = [0];
        let output = target.next_chunk();
        let is_full = output.is_empty();
        let read = decoder.read(if is_full { &mut surplus } else { output }).map_err(decode_error)?;
        if is_full && read > 0 {
            return Err(too_long(target.len()));
        }
        let unread_now = decoder.get_ref().len();
        target.advance(unread_before.saturating_sub(unread_now), read)?;
        if read > 0 {
            continue;
        }
        // The decoder returns 0 bytes at an empty block as well as at the end of the frame.
        match frame_and_rest {
            Some((_, rest)) if unread_now == 0 => return Ok(rest),
            _ if unread_now == unread_before => return Err(damaged(NAME, "the frame ends early")),
            _ => empty_blocks.begin_member(target.filled())?,
        }
    }
}

/// Returns the length of the LZ4 frame at the start of `input`, if `input` contains all of it.
///
/// Source: `lz4_Frame_format.md` of the LZ4 project.
fn frame_len(input: &[u8]) -> Option<usize> {
    let mut rest = input.get(FRAME_MAGIC.len()..)?;
    let flags = rest.try_get_u8().ok()?;
    let optional_bytes = |flag: u8, bytes: usize| if flags & flag == 0 { 0 } else { bytes };
    // Skips maximum block size, content size, dictionary ID and header checksum.
    rest = rest.get(1 + optional_bytes(0x08, 8) + optional_bytes(0x01, 4) + 1..)?;
    loop {
        let size = rest.try_get_u32_le().ok()?;
        if size == 0 {
            rest = rest.get(optional_bytes(0x04, 4)..)?;
            return Some(input.len() - rest.len());
        }
        // The highest bit of a block's size marks an uncompressed block.
        let block = usize::try_from(size & 0x7fff_ffff).ok()?;
        rest = rest.get(block..)?.get(optional_bytes(0x10, 4)..)?;
    }
}

/// Decodes one block without any header.
fn decode_bare_block(block: &[u8], len: usize, output: &mut Vec<u8>) -> Result<(), CodecError> {
    stream::resize_for_overwrite(output, len);
    let result = decompress_into(block, output);
    if result.as_ref().is_ok_and(|found| *found == len) {
        return Ok(());
    }
    // An LZ4 block has no end mark, so zero padding was decoded as part of it.
    if let Some((block, rest)) = block_len(block, len).and_then(|end| block.split_at_checked(end)) {
        expect_zero_padding(NAME, rest)?;
        if decompress_into(block, output).is_ok_and(|found| found == len) {
            return Ok(());
        }
    }
    match result {
        Ok(found) => Err(wrong_length(len, found)),
        Err(DecompressError::OutputTooSmall { .. }) => Err(too_long(len)),
        Err(error) => Err(damaged(NAME, error)),
    }
}

/// Returns the length of the shortest prefix of `block` that is a complete block and decodes to `len` bytes.
///
/// A sequence consists of a token, literals, an offset and a match. The last sequence ends after its literals. Source:
/// `lz4_Block_format.md` of the LZ4 project.
fn block_len(block: &[u8], len: usize) -> Option<usize> {
    let mut rest = block;
    let mut decoded = 0usize;
    loop {
        let token = rest.try_get_u8().ok()?;
        let literals = read_length(token >> 4, &mut rest)?;
        rest = rest.get(literals..)?;
        decoded = decoded.checked_add(literals)?;
        if decoded >= len {
            return (decoded == len).then_some(block.len() - rest.len());
        }
        rest = rest.get(2..)?;
        decoded = decoded.checked_add(read_length(token & 0x0f, &mut rest)?)?.checked_add(4)?;
    }
}

/// Reads a length that begins with `nibble`, four bits of the token. If they are 15, the following bytes are added, up
/// to and including the first byte below 255.
fn read_length(nibble: u8, rest: &mut &[u8]) -> Option<usize> {
    let mut total = usize::from(nibble);
    if nibble == 15 {
        loop {
            let byte = rest.try_get_u8().ok()?;
            total = total.checked_add(usize::from(byte))?;
            if byte < 255 {
                break;
            }
        }
    }
    Some(total)
}
