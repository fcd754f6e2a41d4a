//! `blosc`: buffers of c-blosc 1. The header of a buffer determines how the buffer is decoded. The attributes `cname`,
//! `shuffle` and similar are ignored, because they do not always agree with the header.
//!
//! c-blosc checks little of its input, so this module first checks the whole structure of a buffer: its header, its
//! blosc blocks and their parts. It also decodes some buffers itself, because c-blosc maps and unmaps memory for every
//! buffer, and copies uncompressed parts before it unshuffles them. For 64 buffers of 512 KiB, uint16 with LZ4, c-blosc
//! takes 16.7 ms and this decoder 9.8 ms. The buffers that this module decodes are compressed with:
//!
//! - snappy, for which c-blosc would need a C++ compiler;
//! - LZ4, because c-blosc allocates new memory for every buffer;
//! - zlib, and zstd in small parts, because c-blosc creates a decoder for each part, which takes 3 us.
//!
//! Source: `README_CHUNK_FORMAT.rst` and the functions `blosc_d`, `blosc_internal_unshuffle` and
//! `blosc_internal_bitunshuffle` of c-blosc 1.21.

use bytes::Buf;
use smallvec::SmallVec;
use snap::raw::{Decoder, decompress_len};

use super::codec::{CancelCheck, Codec, CodecError, Scratch, damaged, wrong_length};
use super::stream::{self, check_periodically, expect_zero_padding};
use super::{blosc_sys, gzip, zstd};

const NAME: &str = "blosc";
const HEADER_BYTES: usize = 16;
const FORMAT_VERSION: u8 = 2;
const MEMCPYED: u8 = 0x02;
const RESERVED: u8 = 0x08;
const NOT_SPLIT: u8 = 0x10;
// Codes of the inner compressions.
const BLOSCLZ: u8 = 0;
const LZ4: u8 = 1;
const SNAPPY: u8 = 2;
const ZLIB: u8 = 3;
const ZSTD: u8 = 4;
/// Longest accepted run of bytes of value 255 in a blosclz buffer. blosclz adds such bytes to a 32-bit length, which a
/// longer run would overflow.
const LONGEST_RUN_OF_255: usize = 8_421_500;
/// Smallest accepted blosc block. c-blosc makes blocks of at least 128 bytes, rounded down to whole items, unless the
/// buffer is smaller than an item.
const SMALLEST_BLOCK_BYTES: usize = 32;
const LARGEST_ITEM_BYTES: usize = 255;

/// Decoded size of a part below which this module decodes zstd buffers, because c-blosc takes 3 us to prepare for each
/// part.
const SMALL_PART_BYTES: usize = 2 << 10;
const INNER_VERSION: u8 = 1;
const BYTE_SHUFFLE: u8 = 0x01;
const BIT_SHUFFLE: u8 = 0x04;
/// Number of items that are unshuffled at a time. Intermediate results stay in the first-level cache.
const STRIP: usize = 64;

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
        if !header.is_memcpyed() && is_decoded_here(&header) {
            return decode(&header, buffer, output, scratch.buffer(), cancel_check);
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

    /// Uses the maximum ratio of zstd, which is higher than that of the other inner compressions.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::max_at_ratio(payload_len, 32_768)
    }

    /// Returns the size of two blosc blocks, each at most as large as the result, and of the inner decoder's state.
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

/// The first 16 bytes of a buffer: format version, inner version, flags and item size, then as little-endian u32 the
/// decoded size, the size of a blosc block and the size of the buffer.
///
/// Source: `README_CHUNK_FORMAT.rst` of c-blosc.
#[derive(Debug)]
pub(super) struct BloscHeader {
    inner_version: u8,
    flags: u8,
    /// Bytes per item, at least 1 once checked.
    item_size: usize,
    /// Decoded size of the whole buffer.
    pub(super) decoded_bytes: usize,
    /// Decoded size of each blosc block except the last, not zero once checked.
    block_size: usize,
    /// Size of the buffer, including the header.
    pub(super) stored_bytes: usize,
}

/// A blosc block. Its parts follow one another from the start of `stored`.
#[derive(Debug)]
struct BloscBlock<'a> {
    stored: &'a [u8],
    /// Number of parts, which all have the same decoded size.
    splits: usize,
    /// Decoded size of the block.
    decoded_bytes: usize,
}

impl BloscHeader {
    pub(super) fn parse(buffer: &[u8]) -> Result<Self, CodecError> {
        let mut bytes = buffer.get(..HEADER_BYTES).ok_or_else(|| damaged(NAME, "its header ends early"))?;
        let version = bytes.get_u8();
        if version != FORMAT_VERSION {
            return Err(damaged(NAME, format_args!("its format version is {version}, not {FORMAT_VERSION}")));
        }
        let inner_version = bytes.get_u8();
        let flags = bytes.get_u8();
        let item_size = usize::from(bytes.get_u8());
        let mut size = |limit: u32| {
            let size = bytes.get_u32_le();
            let size = usize::try_from(size).ok().filter(|_| size <= limit);
            size.ok_or_else(|| damaged(NAME, "a size in its header is out of range"))
        };
        Ok(Self {
            inner_version,
            flags,
            item_size,
            decoded_bytes: size(blosc_sys::MAX_DECODED_BYTES)?,
            block_size: size(blosc_sys::MAX_BLOCK_BYTES)?,
            stored_bytes: size(i32::MAX.unsigned_abs())?,
        })
    }

    /// Returns true if the elements follow the header uncompressed.
    fn is_memcpyed(&self) -> bool {
        self.flags & MEMCPYED != 0
    }

    /// Checks the header and all parts of `buffer`, whose length must be the one in the header. The decoded size must
    /// not be zero.
    fn check(&self, buffer: &[u8]) -> Result<(), CodecError> {
        let smallest = if self.decoded_bytes > LARGEST_ITEM_BYTES { SMALLEST_BLOCK_BYTES } else { 1 };
        let is_consistent = (smallest..=self.decoded_bytes).contains(&self.block_size)
            && self.item_size > 0
            && self.stored_bytes >= HEADER_BYTES
            && self.flags & RESERVED == 0;
        if !is_consistent {
            return Err(damaged(NAME, "its header contradicts itself"));
        }
        if self.is_memcpyed() {
            let content_bytes = self.stored_bytes.saturating_sub(HEADER_BYTES);
            return if content_bytes == self.decoded_bytes {
                Ok(())
            } else {
                Err(wrong_length(self.decoded_bytes, content_bytes))
            };
        }
        self.check_parts(buffer)
    }

    fn check_parts(&self, buffer: &[u8]) -> Result<(), CodecError> {
        let inner = self.inner_code();
        if inner == BLOSCLZ && has_run_of_255(buffer) {
            return Err(damaged(NAME, "a run is longer than any block"));
        }
        // Rejects parts that overlap and parts that are much longer than their content. c-blosc stores each part once,
        // and uncompressed if compression would make it longer. (Snappy makes a part longer by at most a sixth.)
        let mut remaining_bytes = buffer.len();
        for block in self.blocks(buffer)? {
            let block = block?;
            for part in block.parts() {
                let part = part?;
                remaining_bytes =
                    remaining_bytes.checked_sub(4 + part.len()).ok_or_else(|| damaged(NAME, "parts overlap"))?;
                if part.len() / 2 > block.part_size().saturating_add(64) {
                    return Err(damaged(NAME, "a part is longer than its content"));
                }
                // Frames of zstd releases before 0.8 are rejected, because c-blosc would decode them with the decoders
                // of those releases.
                if inner == ZSTD && !block.is_stored(part) && !part.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
                    return Err(damaged(NAME, "a part is not a zstd frame"));
                }
            }
        }
        Ok(())
    }

    /// Returns the decoded size in bytes of the parts of all blosc blocks except the last.
    fn part_size(&self) -> usize {
        self.block_size.checked_div(self.splits(false)).unwrap_or_default()
    }

    /// Returns true if the inner compression is snappy.
    pub(super) fn is_snappy(&self) -> bool {
        self.inner_code() == SNAPPY
    }

    /// Returns the numeric code of the inner compression.
    fn inner_code(&self) -> u8 {
        self.flags >> 5
    }

    /// Iterates over the blosc blocks of a compressed `buffer`, in the order of their decoded bytes.
    fn blocks<'a>(
        &self,
        buffer: &'a [u8],
    ) -> Result<impl Iterator<Item = Result<BloscBlock<'a>, CodecError>>, CodecError> {
        let starts = buffer.get(HEADER_BYTES..).unwrap_or_default();
        let blocks = self.decoded_bytes.div_ceil(self.block_size);
        if starts.len() / 4 < blocks {
            return Err(out_of_range());
        }
        let leftover = self.decoded_bytes % self.block_size;
        Ok(starts.as_chunks::<4>().0.iter().take(blocks).enumerate().map(move |(number, start)| {
            let is_leftover = number + 1 == blocks && leftover > 0;
            let start = usize::try_from(i32::from_le_bytes(*start)).ok();
            let stored = start.and_then(|start| buffer.get(start..)).ok_or_else(out_of_range)?;
            Ok(BloscBlock {
                stored,
                splits: self.splits(is_leftover),
                decoded_bytes: if is_leftover { leftover } else { self.block_size },
            })
        }))
    }

    /// Returns the number of parts into which a blosc block is split: one per byte of an item, or a single one.
    fn splits(&self, leftover_block: bool) -> usize {
        let is_split = self.flags & NOT_SPLIT == 0
            && self.item_size <= 16
            && self.block_size / self.item_size >= 128
            && !leftover_block;
        if is_split { self.item_size } else { 1 }
    }
}

impl<'a> BloscBlock<'a> {
    /// Iterates over the stored parts. Each part is preceded by its length.
    fn parts(&self) -> impl Iterator<Item = Result<&'a [u8], CodecError>> + use<'a> {
        let mut rest = self.stored;
        (0..self.splits).map(move |_| {
            let size = rest.try_get_i32_le().ok().and_then(|size| usize::try_from(size).ok());
            let (part, after) = size.and_then(|size| rest.split_at_checked(size)).ok_or_else(out_of_range)?;
            rest = after;
            Ok(part)
        })
    }

    /// Returns the decoded size of each part in bytes, at least 1.
    fn part_size(&self) -> usize {
        self.decoded_bytes / self.splits
    }

    /// Returns true if `part` is stored uncompressed because it could not be compressed.
    fn is_stored(&self, part: &[u8]) -> bool {
        part.len() == self.part_size()
    }
}

fn out_of_range() -> CodecError {
    damaged(NAME, "a part lies outside the buffer")
}

fn has_run_of_255(buffer: &[u8]) -> bool {
    buffer.len() > LONGEST_RUN_OF_255 && buffer.split(|byte| *byte != 255).any(|run| run.len() > LONGEST_RUN_OF_255)
}

/// Returns true if this module decodes buffers with this header, because c-blosc cannot decode them or is slower.
/// c-blosc decodes bit-shuffled LZ4 buffers, because its vector instructions unshuffle bits faster.
fn is_decoded_here(header: &BloscHeader) -> bool {
    let is_known_version = header.inner_version == INNER_VERSION;
    match header.inner_code() {
        LZ4 => is_known_version && header.flags & BIT_SHUFFLE == 0,
        SNAPPY => true,
        ZLIB => is_known_version,
        ZSTD => is_known_version && header.part_size() < SMALL_PART_BYTES,
        _ => false,
    }
}

/// Decodes `part` to fill `target`. `inner` is the code of the inner compression.
fn decode_part(inner: u8, part: &[u8], target: &mut [u8], cancel_check: CancelCheck<'_>) -> Result<(), CodecError> {
    match inner {
        ZLIB => gzip::decode_zlib_part(NAME, part, target, cancel_check),
        ZSTD => zstd::decode_part(NAME, part, target),
        LZ4 => blosc_sys::lz4_decompress(part, target)
            .map_err(|code| damaged(NAME, format_args!("LZ4 returns error {code}"))),
        SNAPPY => {
            let snappy = |error: snap::Error| damaged(NAME, format_args!("snappy: {error}"));
            let found = decompress_len(part).map_err(snappy)?;
            let size = target.len();
            if found != size {
                return Err(damaged(NAME, format_args!("a part decodes to {found} bytes, not {size}")));
            }
            Decoder::new().decompress(part, target).map_err(snappy).map(drop)
        }
        _ => Err(damaged(NAME, "its inner compression is unknown")),
    }
}

/// Decodes `buffer` to fill `output`. The `header` must have been checked, and `buffer` must be compressed and not
/// empty. `shuffled` temporarily holds one blosc block.
///
/// # Errors
/// Returns [`CodecError::Damaged`] if the version of snappy is unknown, or if a part is not a valid stream or decodes
/// to a wrong length.
fn decode(
    header: &BloscHeader,
    buffer: &[u8],
    output: &mut Vec<u8>,
    shuffled: &mut Vec<u8>,
    cancel_check: CancelCheck<'_>,
) -> Result<(), CodecError> {
    if header.inner_version != INNER_VERSION {
        return Err(damaged(NAME, format_args!("its snappy version {} is not supported", header.inner_version)));
    }
    let inner = header.inner_code();
    stream::resize_for_overwrite(output, header.decoded_bytes);
    let mut unchecked_bytes = 0;
    for (block, target) in header.blocks(buffer)?.zip(output.chunks_mut(header.block_size)) {
        let block = block?;
        check_periodically(cancel_check, &mut unchecked_bytes, block.decoded_bytes.saturating_mul(2))?;
        if header.flags & BYTE_SHUFFLE != 0 && header.item_size > 1 {
            stream::resize_for_overwrite(shuffled, block.decoded_bytes);
            unshuffle_bytes(&block, header.item_size, inner, shuffled, target, cancel_check)?;
        } else if header.flags & BIT_SHUFFLE != 0 && (block.decoded_bytes / header.item_size).is_multiple_of(8) {
            // c-blosc shuffles bits only if the number of items is a multiple of eight.
            stream::resize_for_overwrite(shuffled, block.decoded_bytes);
            decode_block(&block, inner, shuffled, cancel_check)?;
            unshuffle_bits(header.item_size, shuffled, target);
        } else {
            decode_block(&block, inner, target, cancel_check)?;
        }
    }
    Ok(())
}

/// Decodes the parts of `block` to `target`, one after another.
fn decode_block(
    block: &BloscBlock<'_>,
    inner: u8,
    target: &mut [u8],
    cancel_check: CancelCheck<'_>,
) -> Result<(), CodecError> {
    let mut targets = target.chunks_exact_mut(block.part_size());
    for (part, target) in block.parts().zip(targets.by_ref()) {
        let part = part?;
        if block.is_stored(part) {
            target.copy_from_slice(part);
        } else {
            decode_part(inner, part, target, cancel_check)?;
        }
    }
    // A remainder means that the block cannot be divided into parts of equal size.
    if targets.into_remainder().is_empty() { Ok(()) } else { Err(uneven_split()) }
}

fn uneven_split() -> CodecError {
    damaged(NAME, "a block does not split into equal parts")
}

/// Decodes `block` to `target`. `shuffled` has the size of the whole block.
///
/// A shuffled block contains the first bytes of all items, then their second bytes and so on. Bytes that do not fill an
/// item follow unshuffled.
fn unshuffle_bytes(
    block: &BloscBlock<'_>,
    item_size: usize,
    inner: u8,
    shuffled: &mut [u8],
    target: &mut [u8],
    cancel_check: CancelCheck<'_>,
) -> Result<(), CodecError> {
    let mut buffers = shuffled.chunks_exact_mut(block.part_size());
    let mut parts: SmallVec<[&[u8]; 16]> = SmallVec::new();
    for (part, buffer) in block.parts().zip(buffers.by_ref()) {
        let part = part?;
        // A part that is stored uncompressed is unshuffled directly from `buffer`, without a copy.
        if block.is_stored(part) {
            parts.push(part);
        } else {
            decode_part(inner, part, buffer, cancel_check)?;
            parts.push(buffer);
        }
    }
    if !buffers.into_remainder().is_empty() {
        return Err(uneven_split());
    }
    let items = target.len() / item_size;
    let (to, to_tail) = target.split_at_mut(items * item_size);
    if items == 0 {
        // A block that is smaller than one item consists of a single part, which is not shuffled.
        to_tail.copy_from_slice(parts.first().copied().unwrap_or_default());
        return Ok(());
    }
    if let [part] = *parts {
        let (body, tail) = part.split_at(to.len());
        to_tail.copy_from_slice(tail);
        parts = body.chunks_exact(items).collect();
    }
    interleave(&parts, to);
    Ok(())
}

/// Writes the first byte of every part, then the second byte of every part, and so on.
fn interleave(parts: &[&[u8]], to: &mut [u8]) {
    let mut strips: SmallVec<[_; 16]> = parts.iter().map(|part| part.chunks(STRIP)).collect();
    let mut next = |part: usize| strips.get_mut(part).and_then(Iterator::next).unwrap_or_default();
    match parts {
        [first, second] => interleave_two::<1, 2>(first, second, to),
        [_, _, _, _] => {
            for to in to.chunks_mut(4 * STRIP) {
                interleave_four([next(0), next(1), next(2), next(3)], to);
            }
        }
        [_, _, _, _, _, _, _, _] => {
            let mut low = [0; 4 * STRIP];
            let mut high = [0; 4 * STRIP];
            for to in to.chunks_mut(8 * STRIP) {
                interleave_four([next(0), next(1), next(2), next(3)], &mut low);
                interleave_four([next(4), next(5), next(6), next(7)], &mut high);
                interleave_two::<4, 8>(&low, &high, to);
            }
        }
        _ => {
            for (byte, part) in parts.iter().enumerate() {
                for (to, from) in to.iter_mut().skip(byte).step_by(parts.len()).zip(*part) {
                    *to = *from;
                }
            }
        }
    }
}

/// Writes four bytes of every item of a strip, one from each input.
fn interleave_four([first, second, third, fourth]: [&[u8]; 4], to: &mut [u8]) {
    let mut low = [0; 2 * STRIP];
    let mut high = [0; 2 * STRIP];
    interleave_two::<1, 2>(first, second, &mut low);
    interleave_two::<1, 2>(third, fourth, &mut high);
    interleave_two::<2, 4>(&low, &high, to);
}

/// Writes `HALF` bytes of `first` and `HALF` bytes of `second` alternately. The lengths are constants, which lets the
/// compiler emit vector instructions.
fn interleave_two<const HALF: usize, const BOTH: usize>(first: &[u8], second: &[u8], to: &mut [u8]) {
    let first = first.as_chunks::<HALF>().0;
    let second = second.as_chunks::<HALF>().0;
    for ((to, first), second) in to.as_chunks_mut::<BOTH>().0.iter_mut().zip(first).zip(second) {
        let (low, high) = to.split_at_mut(HALF);
        low.copy_from_slice(first);
        high.copy_from_slice(second);
    }
}

/// Undoes the bit shuffle of a block. The number of items must be a multiple of eight.
///
/// A shuffled block contains the lowest bits of the first bytes of all items, eight to a byte with the first item's bit
/// lowest. Then come their second bits and so on. Bytes that do not fill an item follow unshuffled.
fn unshuffle_bits(item_size: usize, shuffled: &[u8], target: &mut [u8]) {
    let items = shuffled.len() / item_size;
    let (planes, tail) = shuffled.split_at(items * item_size);
    let (target, target_tail) = target.split_at_mut(planes.len());
    target_tail.copy_from_slice(tail);
    if items == 0 {
        return;
    }
    for (byte, planes) in planes.chunks_exact(items).enumerate() {
        // Eight rows that together hold the same byte of all items. Each row holds one of its bits.
        let mut rows = [planes; 8];
        for (row, bits) in rows.iter_mut().zip(planes.chunks_exact(items / 8)) {
            *row = bits;
        }
        for (group, eight_items) in target.chunks_exact_mut(8 * item_size).enumerate() {
            let bits = rows.map(|row| row.get(group).copied().unwrap_or_default());
            let bytes = transpose_bits(u64::from_le_bytes(bits)).to_le_bytes();
            for (to, from) in eight_items.iter_mut().skip(byte).step_by(item_size).zip(bytes) {
                *to = from;
            }
        }
    }
}

/// Transposes a matrix of eight by eight bits, in which the element at `row` and `column` is the bit `8 * row +
/// column`.
///
/// Each step swaps the off-diagonal quarters of all squares of one size: of two by two, four by four, and eight by
/// eight bits.
fn transpose_bits(bits: u64) -> u64 {
    [(7, 0x00aa_00aa_00aa_00aa), (14, 0x0000_cccc_0000_cccc), (28, 0x0000_0000_f0f0_f0f0)].into_iter().fold(
        bits,
        |bits, (shift, mask): (u32, u64)| {
            let differ = (bits ^ (bits >> shift)) & mask;
            bits ^ differ ^ (differ << shift)
        },
    )
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn decode(payload: &[u8], len: usize) -> Result<Bytes, CodecError> {
        BloscCodec.decode(Bytes::copy_from_slice(payload), len, &mut Scratch::default(), CancelCheck::NEVER)
    }

    /// Returns `len` bytes of big-endian numbers that increase slowly.
    fn sample(len: usize) -> Vec<u8> {
        (0u32..).flat_map(|i| (i * 3 / 7).to_be_bytes()).take(len).collect()
    }

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        (0..len).map(|i| if i % 3000 < 1500 { next() } else { 3 }).collect()
    }

    /// Encodes `data` with LZ4 by c-blosc, which splits and shuffles it as for snappy, then compresses each part with
    /// snappy instead.
    fn encode(data: &[u8], shuffle: u8, item_size: usize, block_size: usize) -> Vec<u8> {
        with_snappy(&blosc_sys::compress(data, c"lz4", shuffle, item_size, block_size))
    }

    fn with_snappy(payload: &[u8]) -> Vec<u8> {
        let header = BloscHeader::parse(payload).unwrap();
        if header.is_memcpyed() {
            return payload.to_vec();
        }
        let mut starts = Vec::new();
        let mut parts = Vec::new();
        let blocks: Vec<_> = header.blocks(payload).unwrap().map(Result::unwrap).collect();
        for block in &blocks {
            let start = HEADER_BYTES + 4 * blocks.len() + parts.len();
            starts.extend_from_slice(&u32::try_from(start).unwrap().to_le_bytes());
            for part in block.parts().map(Result::unwrap) {
                let part = if block.is_stored(part) {
                    part.to_vec()
                } else {
                    let plain = lz4::block::decompress(part, block.part_size()).unwrap();
                    let snappy = snap::raw::Encoder::new().compress_vec(&plain).unwrap();
                    if snappy.len() < plain.len() { snappy } else { plain }
                };
                parts.extend_from_slice(&u32::try_from(part.len()).unwrap().to_le_bytes());
                parts.extend_from_slice(&part);
            }
        }
        let mut encoded = [&payload[..HEADER_BYTES], &starts, &parts].concat();
        encoded[2] = encoded[2] & 0x1f | 2 << 5;
        let stored = u32::try_from(encoded.len()).unwrap();
        encoded[12..16].copy_from_slice(&stored.to_le_bytes());
        encoded
    }

    /// Buffers written by c-blosc 1.21 with snappy: decoded length and buffer.
    const BY_C_BLOSC: &[(usize, &str)] = &[
        // Bit shuffle; two blocks.
        (
            256,
            "02015404000100008000000069000000180000003a0000001e00000080010000fe01007a01003c9833e68ce0c3070f00\
             fc07f00000f8ff3e6f002b00000080010000fe01007a01007c3963ce983e7cf0e03f80ff003f0000ffc0ffffff000000\
             000000000000000000",
        ),
        // Bit shuffle; the last block has 20 items and is therefore not shuffled.
        (
            300,
            "020154052c010000c8000000ea000000180000009b0000007f000000c801408888080000808000080800888008800000\
             01101000008088003601004840444444004040404004004400444000004444052109062e01000c2222222001011c0022\
             00220000002201050000050b3a01000810111001011c001100110000001101050000050b2e01002c8800000080800808\
             0808000801a000805aa0004b000000640c000000150d040816000005040817000005040c180000001104081900000504\
             081a00000504081b00001504081c00000504081d00000504401e0000001e0000001e0000001f0000001f",
        ),
        // Byte shuffle; the last block is shorter.
        (
            300,
            "020151032c0100007e000000fc0000001c0000007a000000d30000005a0000007e000001019801000000020000000300\
             0000050000000600000007000000090000000a0000000b0000000c000001020401000927040400192b040800192b000c\
             012509011152012b11523808000000090000000b0000000c0000550000007eb00000000e0000000f0000001000000012\
             00000013000000140000001500000017000000180000001900000d0000152b041100192b012700161d2b041a00052b11\
             52112b1152301600000018000000190000001a250000003040001b0000001c0000001d0000001e0000001511010d001f\
             1111201d0000001e0000001f",
        ),
        // Bit shuffle; each blosc block is split into several parts.
        (
            1024,
            "020144040004000000040000bc000000140000001000000080020000fe0100fe0100fe0100fa01001000000080020000\
             fe0100fe0100fe0100fa01001000000080020000fe0100fe0100fe0100fa0100680000008002189833e68c3963ce6207\
             0018e0c3070f3e7cf06207001800fc07f03f80ff620700340000f8ff3f0000ffff0700c0ffff460e0008000000011901\
             200000012700ff012e012700ff012e1d0100f801120101003f1515010e150d150100c00117150115175a0100",
        ),
    ];

    fn from_hex(text: &str) -> Vec<u8> {
        text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }

    #[test]
    fn buffers_of_c_blosc_with_snappy_decode() {
        for (len, payload) in BY_C_BLOSC {
            let payload = from_hex(payload);
            assert_eq!(decode(&payload, *len).as_deref(), Ok(&sample(*len)[..]), "flags {:#x}", payload[2]);
        }
    }

    #[test]
    fn every_layout_of_c_blosc_decodes() {
        let mut seen_flags = std::collections::BTreeSet::new();
        for len in [1, 127, 128, 129, 300, 1000, 1024, 5003, 40_000, 70_001] {
            for data in [sample(len), noise(len)] {
                for shuffle in 0..3 {
                    for item_size in [1, 2, 3, 4, 7, 8, 16, 17, 100, 255] {
                        for block_size in [0, 128, 200, 4100] {
                            let payload = encode(&data, shuffle, item_size, block_size);
                            let case = format!("{len} bytes, shuffle {shuffle} of {item_size} by {block_size}");
                            assert_eq!(decode(&payload, len).as_deref(), Ok(&data[..]), "{case}");
                            let lz4 = blosc_sys::compress(&data, c"lz4", shuffle, item_size, block_size);
                            assert_eq!(decode(&lz4, len).as_deref(), Ok(&data[..]), "{case}");
                            seen_flags.insert(payload[2]);
                        }
                    }
                }
            }
        }
        for flags in [0x40, 0x41, 0x44, 0x50, 0x51, 0x54] {
            assert!(seen_flags.contains(&flags), "no buffer has the flags {flags:#x}");
        }
    }

    #[test]
    fn c_blosc_decodes_the_same_buffer_with_lz4_to_the_same_bytes() {
        // Any bytes are valid shuffled data if the header matches their length.
        for flags in [0x00, 0x01, 0x04, 0x05] {
            for item_size in [1u8, 2, 3, 5, 8, 13, 32, 255] {
                for (len, block_size) in [(5000, 0), (5003, 1000), (4096, 256), (997, 128)] {
                    let c_buffer = relabelled(&sample(len), item_size, block_size, flags);
                    let case = format!("{len} bytes, flags {flags} of {item_size} by {block_size}");
                    let mut c_decoded = Vec::with_capacity(len);
                    assert_eq!(blosc_sys::decompress(&c_buffer, &mut c_decoded, len), Ok(()), "{case}");
                    assert_eq!(decode(&with_snappy(&c_buffer), len).as_deref(), Ok(&c_decoded[..]), "{case}");
                    assert_eq!(decode(&c_buffer, len).as_deref(), Ok(&c_decoded[..]), "{case}");
                }
            }
        }
    }

    /// Compresses `data` without shuffle, as one part per block, then changes item size and shuffle in the header.
    fn relabelled(data: &[u8], item_size: u8, block_size: usize, flags: u8) -> Vec<u8> {
        let mut payload = blosc_sys::compress(data, c"lz4", 0, 255, block_size);
        assert_eq!(payload[2] & 0x17, 0x10, "not split, not memcpyed, not shuffled");
        payload[2] |= flags;
        payload[3] = item_size;
        payload
    }

    #[test]
    fn transposing_exchanges_rows_and_columns() {
        for row in 0..8 {
            for column in 0..8 {
                assert_eq!(transpose_bits(1 << (8 * row + column)), 1 << (8 * column + row));
            }
        }
    }

    #[test]
    fn another_snappy_version_is_damage_unless_memcpyed() {
        let data = sample(1000);
        for (mut payload, is_valid) in [(encode(&data, 1, 4, 0), false), (encode(&noise(100), 1, 4, 0), true)] {
            payload[1] = 2;
            payload[2] = payload[2] & 0x1f | 2 << 5;
            let len = usize::try_from((&payload[4..]).get_u32_le()).unwrap();
            assert_eq!(decode(&payload, len).is_ok(), is_valid);
        }
    }

    #[test]
    fn a_part_with_a_wrong_length_is_damage() {
        let mut payload = encode(&[7; 1000], 0, 1, 0);
        assert_eq!(payload[24..26], [0xe8, 0x07], "1000 as a varint");
        for lie in [[0xe7, 0x07], [0xe9, 0x07], [0xff, 0x7f], [0xff, 0xff], [0x80, 0x00]] {
            payload[24..26].copy_from_slice(&lie);
            assert!(matches!(decode(&payload, 1000), Err(CodecError::Damaged { .. })), "{lie:x?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn a_damaged_buffer_never_panics_nor_changes_the_length(
            len in 128usize..3000,
            shuffle in 0u8..3,
            item_size in 1usize..20,
            block_size in 0usize..1000,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            keep in any::<prop::sample::Index>(),
        ) {
            let sound = encode(&sample(len), shuffle, item_size, block_size);
            prop_assert!(decode(&sound[..keep.index(sound.len())], len).is_err());
            let mut payload = sound;
            for (at, byte) in changes {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
            if let Ok(decoded) = decode(&payload, len) {
                prop_assert_eq!(decoded.len(), len);
            }
        }
    }
}
