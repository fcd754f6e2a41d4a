//! `blosc`: buffers of c-blosc 1. Their own header says how to decode them; `cname`, `shuffle` and the
//! like in the attributes do not always agree with it and are not looked at.
//!
//! c-blosc checks little of what it reads, so the whole structure of a buffer is checked here first. Where
//! the inner compression is snappy, which c-blosc would need a C++ compiler for, or LZ4, which is faster without
//! c-blosc's new memory for every buffer, `blosc_parts` decodes it; likewise zlib, and zstd in small parts, for which
//! c-blosc makes a decoder each, 3 us.

use std::sync::Arc;

use bytes::Buf;
use serde_json::{Map, Value};

use super::stream::{self, damaged, only_padding, wrong_length};
use super::{Codec, CodecError, Scratch, Watch, blosc_parts, blosc_sys};

pub(super) const NAME: &str = "blosc";
const HEADER_BYTES: usize = 16;
const FORMAT_VERSION: u8 = 2;
const MEMCPYED: u8 = 0x02;
const RESERVED: u8 = 0x08;
const NOT_SPLIT: u8 = 0x10;
const BLOSCLZ: u8 = 0;
const ZSTD: u8 = 4;
/// More bytes 255 in a row overflow the 32-bit length that blosclz adds them to.
const LONGEST_RUN_OF_255: usize = 8_421_500;
/// c-blosc makes no smaller blocks than 128 bytes, rounded down to whole items, unless the buffer is smaller than an item.
const SMALLEST_BLOCK_BYTES: usize = 32;
const LARGEST_ITEM_BYTES: usize = 255;

#[derive(Debug)]
struct Blosc;

pub(super) fn open(_: &Map<String, Value>) -> Arc<dyn Codec> {
    Arc::new(Blosc)
}

impl Codec for Blosc {
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        scratch: &mut Scratch,
        watch: Watch<'_>,
    ) -> Result<(), CodecError> {
        watch.look()?;
        let (header, buffer) = sound(payload, len)?;
        if len == 0 {
            output.clear();
            return Ok(());
        }
        if header.flags & MEMCPYED == 0
            && let Some(inner) = blosc_parts::Inner::of(&header)
        {
            return blosc_parts::decode(&header, inner, buffer, output, &mut scratch.bytes, watch);
        }
        stream::emptied(output, len);
        match blosc_sys::decompress(buffer, output, len) {
            Ok(()) => stream::exactly(len, output),
            Err(code) => Err(damaged(NAME, format_args!("c-blosc returns {code}"))),
        }
    }

    fn plain<'a>(&self, payload: &'a [u8], len: usize) -> Option<&'a [u8]> {
        let (header, buffer) = sound(payload, len).ok()?;
        (len > 0 && header.flags & MEMCPYED != 0).then(|| buffer.get(HEADER_BYTES..)).flatten()
    }

    /// The most that the best of the inner compressions reaches, zstd.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::at_most(payload_len, 32_768)
    }

    /// Two blosc blocks, each at most as large as the result, and the inner decoder's state.
    fn scratch_bytes(&self, payload: &[u8], len: usize) -> usize {
        let block = Header::parse(payload).map_or(len, |header| header.block_size.min(len));
        block.saturating_mul(2).saturating_add(256 << 10)
    }
}

/// The header of a payload that decodes to `len` bytes, and the buffer, of which everything has been checked.
fn sound(payload: &[u8], len: usize) -> Result<(Header, &[u8]), CodecError> {
    let header = Header::parse(payload)?;
    if header.decoded != len {
        return Err(wrong_length(len, header.decoded));
    }
    let (buffer, rest) = payload
        .split_at_checked(header.stored)
        .ok_or_else(|| damaged(NAME, format_args!("it has {} of {} bytes", payload.len(), header.stored)))?;
    only_padding(NAME, rest)?;
    if len > 0 {
        header.check(buffer)?;
    }
    Ok((header, buffer))
}

/// The first 16 bytes: format version, inner version, flags, item size, then little-endian the decoded
/// size, the size of a blosc block and the size of the buffer.
///
/// Source: `README_CHUNK_FORMAT.rst` of c-blosc.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) inner_version: u8,
    pub(super) flags: u8,
    /// Bytes of an item, at least one once checked.
    pub(super) item_size: usize,
    /// Bytes that the whole buffer decodes to.
    pub(super) decoded: usize,
    /// Bytes that each blosc block but the last decodes to, not zero once checked.
    pub(super) block_size: usize,
    /// Bytes of the buffer, header included.
    pub(super) stored: usize,
}

/// A blosc block: its parts follow one another from the start of `stored`.
#[derive(Debug)]
pub(super) struct Block<'a> {
    stored: &'a [u8],
    /// Into how many parts, of the same size once decoded, it is split.
    splits: usize,
    /// Bytes that it decodes to.
    pub(super) decoded: usize,
}

impl Header {
    pub(super) fn parse(buffer: &[u8]) -> Result<Self, CodecError> {
        let mut bytes = buffer.get(..HEADER_BYTES).ok_or_else(|| damaged(NAME, "its header ends early"))?;
        let version = bytes.get_u8();
        if version != FORMAT_VERSION {
            return Err(damaged(NAME, format_args!("its format version is {version}, not {FORMAT_VERSION}")));
        }
        let inner_version = bytes.get_u8();
        let (flags, item_size) = (bytes.get_u8(), usize::from(bytes.get_u8()));
        let mut size = |limit: u32| {
            let size = bytes.get_u32_le();
            let size = usize::try_from(size).ok().filter(|_| size <= limit);
            size.ok_or_else(|| damaged(NAME, "a size in its header is out of range"))
        };
        Ok(Self {
            inner_version,
            flags,
            item_size,
            decoded: size(blosc_sys::MAX_DECODED_BYTES)?,
            block_size: size(blosc_sys::MAX_BLOCK_BYTES)?,
            stored: size(i32::MAX.unsigned_abs())?,
        })
    }

    /// Walks all parts of `buffer`, which has the header's length and is not empty when decoded.
    fn check(&self, buffer: &[u8]) -> Result<(), CodecError> {
        let smallest = if self.decoded > LARGEST_ITEM_BYTES { SMALLEST_BLOCK_BYTES } else { 1 };
        let sound = (smallest..=self.decoded).contains(&self.block_size)
            && self.item_size > 0
            && self.stored >= HEADER_BYTES
            && self.flags & RESERVED == 0;
        if !sound {
            return Err(damaged(NAME, "its header contradicts itself"));
        }
        if self.flags & MEMCPYED != 0 {
            let plain = self.stored.saturating_sub(HEADER_BYTES);
            return if plain == self.decoded { Ok(()) } else { Err(wrong_length(self.decoded, plain)) };
        }
        let inner = self.inner();
        if inner == BLOSCLZ && has_run_of_255(buffer) {
            return Err(damaged(NAME, "a run is longer than any block"));
        }
        // Every part is written once, and stored as it is where it would grow (snappy's may, by a sixth).
        let mut left = buffer.len();
        for block in self.blocks(buffer)? {
            let block = block?;
            for part in block.parts() {
                let part = part?;
                left = left.checked_sub(4 + part.len()).ok_or_else(|| damaged(NAME, "parts overlap"))?;
                if part.len() / 2 > block.part_size().saturating_add(64) {
                    return Err(damaged(NAME, "a part is longer than what it holds"));
                }
                // c-blosc would pass frames of the releases before 0.8 to decoders of that time.
                if inner == ZSTD && !block.is_stored(part) && !part.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
                    return Err(damaged(NAME, "a part is no zstd frame"));
                }
            }
        }
        Ok(())
    }

    /// Bytes that the parts of all blosc blocks but the last decode to.
    pub(super) fn part_size(&self) -> usize {
        self.block_size.checked_div(self.splits(false)).unwrap_or_default()
    }

    /// Whether the inner compression is snappy.
    pub(super) fn is_snappy(&self) -> bool {
        self.inner() == blosc_parts::SNAPPY
    }

    /// The code of the inner compression.
    pub(super) fn inner(&self) -> u8 {
        self.flags >> 5
    }

    /// The blosc blocks of `buffer`, which is not memcpyed, in the order of what they decode to.
    pub(super) fn blocks<'a>(
        &self,
        buffer: &'a [u8],
    ) -> Result<impl Iterator<Item = Result<Block<'a>, CodecError>>, CodecError> {
        let starts = buffer.get(HEADER_BYTES..).unwrap_or_default();
        let blocks = self.decoded.div_ceil(self.block_size);
        if starts.len() / 4 < blocks {
            return Err(out_of_range());
        }
        let leftover = self.decoded % self.block_size;
        Ok(starts.as_chunks::<4>().0.iter().take(blocks).enumerate().map(move |(number, start)| {
            let last = number + 1 == blocks && leftover > 0;
            let start = usize::try_from(i32::from_le_bytes(*start)).ok();
            let stored = start.and_then(|start| buffer.get(start..)).ok_or_else(out_of_range)?;
            Ok(Block { stored, splits: self.splits(last), decoded: if last { leftover } else { self.block_size } })
        }))
    }

    /// Into how many parts a blosc block is split, one per byte of an item.
    fn splits(&self, leftover_block: bool) -> usize {
        let split = self.flags & NOT_SPLIT == 0
            && self.item_size <= 16
            && self.block_size / self.item_size >= 128
            && !leftover_block;
        if split { self.item_size } else { 1 }
    }
}

impl<'a> Block<'a> {
    /// The parts as stored, each after its length.
    pub(super) fn parts(&self) -> impl Iterator<Item = Result<&'a [u8], CodecError>> + use<'a> {
        let mut rest = self.stored;
        (0..self.splits).map(move |_| {
            let size = rest.try_get_i32_le().ok().and_then(|size| usize::try_from(size).ok());
            let (part, after) = size.and_then(|size| rest.split_at_checked(size)).ok_or_else(out_of_range)?;
            rest = after;
            Ok(part)
        })
    }

    /// Bytes that each part decodes to, at least one.
    pub(super) fn part_size(&self) -> usize {
        self.decoded / self.splits
    }

    /// Whether `part` is stored as it is, because it could not be compressed.
    pub(super) fn is_stored(&self, part: &[u8]) -> bool {
        part.len() == self.part_size()
    }
}

fn out_of_range() -> CodecError {
    damaged(NAME, "a part lies outside of it")
}

fn has_run_of_255(buffer: &[u8]) -> bool {
    buffer.len() > LONGEST_RUN_OF_255 && buffer.split(|byte| *byte != 255).any(|run| run.len() > LONGEST_RUN_OF_255)
}
