//! The structure of a buffer of c-blosc 1: its header, its blosc blocks and their parts.

use bytes::Buf;

use super::blosc_sys;
use super::error::{CodecError, damaged, wrong_length};

pub(super) const NAME: &str = "blosc";
pub(super) const HEADER_BYTES: usize = 16;
const FORMAT_VERSION: u8 = 2;
const MEMCPYED: u8 = 0x02;
const RESERVED: u8 = 0x08;
const NOT_SPLIT: u8 = 0x10;
// Codes of the inner compressions.
const BLOSCLZ: u8 = 0;
pub(super) const LZ4: u8 = 1;
pub(super) const SNAPPY: u8 = 2;
pub(super) const ZLIB: u8 = 3;
pub(super) const ZSTD: u8 = 4;
/// Longest run of bytes 255 in a buffer. A longer one overflows the 32-bit length to which blosclz adds them.
const LONGEST_RUN_OF_255: usize = 8_421_500;
/// Smallest accepted blosc block. c-blosc makes blocks of at least 128 bytes, rounded down to whole items, unless the
/// buffer is smaller than an item.
const SMALLEST_BLOCK_BYTES: usize = 32;
const LARGEST_ITEM_BYTES: usize = 255;

/// The first 16 bytes of a buffer: format version, inner version, flags and item size, then as little-endian u32 the
/// decoded size, the size of a blosc block and the size of the buffer.
///
/// Source: `README_CHUNK_FORMAT.rst` of c-blosc.
#[derive(Debug)]
pub(super) struct BloscHeader {
    pub(super) inner_version: u8,
    pub(super) flags: u8,
    /// Bytes per item, at least 1 once checked.
    pub(super) item_size: usize,
    /// Decoded size of the whole buffer.
    pub(super) decoded_bytes: usize,
    /// Decoded size of each blosc block except the last, not zero once checked.
    pub(super) block_size: usize,
    /// Size of the buffer, including the header.
    pub(super) stored_bytes: usize,
}

/// A blosc block. Its parts follow one another from the start of `stored`.
#[derive(Debug)]
pub(super) struct BloscBlock<'a> {
    stored: &'a [u8],
    /// Number of parts, which all have the same decoded size.
    splits: usize,
    /// Decoded size of the block.
    pub(super) decoded_bytes: usize,
}

impl BloscHeader {
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
            decoded_bytes: size(blosc_sys::MAX_DECODED_BYTES)?,
            block_size: size(blosc_sys::MAX_BLOCK_BYTES)?,
            stored_bytes: size(i32::MAX.unsigned_abs())?,
        })
    }

    /// Returns true if the elements follow the header uncompressed.
    pub(super) fn is_memcpyed(&self) -> bool {
        self.flags & MEMCPYED != 0
    }

    /// Checks all parts of `buffer`, whose length is the header's and whose decoded size is not zero.
    pub(super) fn check(&self, buffer: &[u8]) -> Result<(), CodecError> {
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
        let inner = self.inner_code();
        if inner == BLOSCLZ && has_run_of_255(buffer) {
            return Err(damaged(NAME, "a run is longer than any block"));
        }
        // Every part is written once. A part that would grow is stored uncompressed (snappy's may grow by a sixth).
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
                // c-blosc would pass frames of zstd releases before 0.8 to the decoders of those releases.
                if inner == ZSTD && !block.is_stored(part) && !part.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
                    return Err(damaged(NAME, "a part is not a zstd frame"));
                }
            }
        }
        Ok(())
    }

    /// Decoded size of the parts of all blosc blocks except the last, in bytes.
    pub(super) fn part_size(&self) -> usize {
        self.block_size.checked_div(self.splits(false)).unwrap_or_default()
    }

    /// Returns true if the inner compression is snappy.
    pub(super) fn is_snappy(&self) -> bool {
        self.inner_code() == SNAPPY
    }

    /// Numeric code of the inner compression.
    pub(super) fn inner_code(&self) -> u8 {
        self.flags >> 5
    }

    /// Iterates over the blosc blocks of `buffer`, which is not memcpyed, in the order of their decoded bytes.
    pub(super) fn blocks<'a>(
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

    /// Number of parts into which a blosc block is split: one per byte of an item, or a single one.
    fn splits(&self, leftover_block: bool) -> usize {
        let is_split = self.flags & NOT_SPLIT == 0
            && self.item_size <= 16
            && self.block_size / self.item_size >= 128
            && !leftover_block;
        if is_split { self.item_size } else { 1 }
    }
}

impl<'a> BloscBlock<'a> {
    /// Iterates over the stored parts, each of which is preceded by its length.
    pub(super) fn parts(&self) -> impl Iterator<Item = Result<&'a [u8], CodecError>> + use<'a> {
        let mut rest = self.stored;
        (0..self.splits).map(move |_| {
            let size = rest.try_get_i32_le().ok().and_then(|size| usize::try_from(size).ok());
            let (part, after) = size.and_then(|size| rest.split_at_checked(size)).ok_or_else(out_of_range)?;
            rest = after;
            Ok(part)
        })
    }

    /// Decoded size of each part in bytes, at least 1.
    pub(super) fn part_size(&self) -> usize {
        self.decoded_bytes / self.splits
    }

    /// Returns true if `part` is stored uncompressed because it could not be compressed.
    pub(super) fn is_stored(&self, part: &[u8]) -> bool {
        part.len() == self.part_size()
    }
}

fn out_of_range() -> CodecError {
    damaged(NAME, "a part lies outside the buffer")
}

fn has_run_of_255(buffer: &[u8]) -> bool {
    buffer.len() > LONGEST_RUN_OF_255 && buffer.split(|byte| *byte != 255).any(|run| run.len() > LONGEST_RUN_OF_255)
}
