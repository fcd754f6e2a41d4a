//! A stored block: its header, and decoding it to little-endian elements.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use bytes::{Buf, Bytes, BytesMut};

use super::grid::product;
use super::{CodecError, Coords, DatasetAttributes, GridPosition};

/// First word of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// 0: as many elements as the product of the block's size.
    Default,
    /// 1: the number of elements is given explicitly.
    VarLength,
    /// 2: one serialised object, no size.
    Object,
}

/// What stands before a block's payload.
///
/// All integers are big-endian: u16 mode, u16 number of axes, a u32 per axis, and for mode 1 a u32
/// number of elements; for mode 2 only the u16 mode and a u32 number of bytes.
/// Source: N5 specification 4.0.0 §9; mode 2 from Java N5's `codec/N5BlockCodecs.java`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockHeader {
    /// The mode.
    pub mode: Mode,
    /// Size of the block in elements, N5 axis order; empty for [`Mode::Object`].
    pub size: Coords,
    /// Number of elements (bytes for [`Mode::Object`]); `None` beyond 2^64.
    pub elements: Option<u64>,
    /// Bytes before the payload.
    pub len: usize,
}

/// A decoded block.
#[derive(Debug, Clone)]
pub struct Block {
    /// Its own size in elements, N5 axis order: cropped, full, or smaller than `blockSize` inside the grid.
    pub size: Coords,
    /// Little-endian elements, first axis fastest: `product(size)` times the element size in bytes.
    pub data: Bytes,
}

/// Why a stored block cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The file ends within its header.
    #[error("{bytes} bytes are too few for a block header of {needed} bytes")]
    ShortHeader {
        /// Bytes there are.
        bytes: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// The header's first word is none of the format's.
    #[error("unknown block mode {0}")]
    UnknownMode(u16),
    /// Header and dataset disagree on the number of axes.
    #[error("the block header has {found} axes, the dataset has {expected}")]
    Rank {
        /// Axes of the header.
        found: usize,
        /// Axes of the dataset.
        expected: usize,
    },
    /// The block is larger than `blockSize` along some axis.
    #[error("block {size:?} exceeds blockSize {block_size:?}")]
    TooLargeForGrid {
        /// Size in the header.
        size: Vec<u64>,
        /// The dataset's.
        block_size: Vec<u64>,
    },
    /// The header promises more than the payload can hold in this compression.
    #[error("{payload_bytes} bytes of {compression} cannot hold the {claimed_bytes} bytes that the header promises")]
    Implausible {
        /// Bytes after the header.
        payload_bytes: usize,
        /// Bytes that the header promises.
        claimed_bytes: u64,
        /// Name of the compression.
        compression: String,
    },
    /// The payload is damaged or of the wrong length.
    #[error(transparent)]
    Payload(#[from] CodecError),
    /// The block is sound, but this build decodes no such thing.
    #[error("{0}")]
    Unsupported(String),
    /// Decoding would exceed the memory that one block may take.
    #[error("decoding takes {needed_bytes} bytes, at most {limit_bytes} are allowed")]
    OverLimit {
        /// Bytes needed: result and scratch memory.
        needed_bytes: u64,
        /// Bytes allowed.
        limit_bytes: u64,
    },
}

impl BlockError {
    /// Whether reading the file again may help: somebody could have been writing it.
    pub fn may_be_torn(&self) -> bool {
        !matches!(self, Self::Unsupported(_) | Self::OverLimit { .. })
    }
}

impl BlockHeader {
    /// Reads the header of a block file.
    ///
    /// # Errors
    /// [`BlockError::ShortHeader`] or [`BlockError::UnknownMode`].
    pub fn parse(stored: &[u8]) -> Result<Self, BlockError> {
        let short = |needed| BlockError::ShortHeader { bytes: stored.len(), needed };
        let mut rest = stored;
        let mode = match rest.try_get_u16().map_err(|_| short(4))? {
            0 => Mode::Default,
            1 => Mode::VarLength,
            2 => Mode::Object,
            other => return Err(BlockError::UnknownMode(other)),
        };
        if mode == Mode::Object {
            let bytes = rest.try_get_u32().map_err(|_| short(6))?;
            return Ok(Self { mode, size: Coords::new(), elements: Some(bytes.into()), len: 6 });
        }
        let rank = usize::from(rest.try_get_u16().map_err(|_| short(4))?);
        let len = 4 + 4 * rank + if mode == Mode::VarLength { 4 } else { 0 };
        if stored.len() < len {
            return Err(short(len));
        }
        let mut size = Coords::with_capacity(rank);
        for _ in 0..rank {
            size.push(rest.try_get_u32().map_err(|_| short(len))?.into());
        }
        let elements = match mode {
            Mode::VarLength => Some(rest.try_get_u32().map_err(|_| short(len))?.into()),
            Mode::Default | Mode::Object => product(&size),
        };
        Ok(Self { mode, size, elements, len })
    }

    /// Reads the header of a block at `position` of a dataset, also in the forms that predate the format.
    ///
    /// - Releases 1.0.0 to 1.1.3 wrote a u32 number of axes, which reads the same today.
    /// - Code of March 2017 wrote a u32 number of axes and u64 sizes.
    /// - The README of 2017 describes a header of sizes alone, 4 bytes per axis.
    ///
    /// The last two are taken only where today's form does not fit the dataset and theirs spells
    /// exactly the size expected at `position`.
    fn parse_for(stored: &[u8], attributes: &DatasetAttributes, position: &[u64]) -> Result<Self, BlockError> {
        let rank = attributes.rank();
        let header = Self::parse(stored);
        let fits = header.as_ref().is_ok_and(|h| {
            h.mode == Mode::Object || (h.size.len() == rank && (rank == 0 || h.size.first() != Some(&0)))
        });
        if fits || rank == 0 {
            return header;
        }
        let grid = attributes.grid();
        let expected = |size: &Coords| size == grid.block_size() || *size == grid.clipped_size(position);
        let (word, rest) = stored.split_at_checked(4).unwrap_or_default();
        if word == u32::try_from(rank).unwrap_or(u32::MAX).to_be_bytes() && rest.len() >= 8 * rank {
            let mut rest = rest;
            let size: Coords = (0..rank).map(|_| rest.get_u64()).collect();
            if expected(&size) {
                let elements = product(&size);
                return Ok(Self { mode: Mode::Default, size, elements, len: 4 + 8 * rank });
            }
        }
        if stored.len() >= 4 * rank && header.as_ref().map_or(true, |h| h.size.len() != rank) {
            let mut rest = stored;
            let size: Coords = (0..rank).map(|_| u64::from(rest.get_u32())).collect();
            if expected(&size) {
                let elements = product(&size);
                return Ok(Self { mode: Mode::Default, size, elements, len: 4 * rank });
            }
        }
        header
    }
}

impl Block {
    /// Bytes that decoding this stored block will take: the result and the codec's scratch memory.
    ///
    /// Checks everything that can be checked without decoding.
    ///
    /// # Errors
    /// [`BlockError`] when the header is damaged, does not fit the dataset or promises more than the
    /// payload can hold; [`BlockError::Unsupported`] for what this build does not decode.
    pub fn decoding_bytes(stored: &[u8], attributes: &DatasetAttributes, position: &[u64]) -> Result<u64, BlockError> {
        let plan = Plan::new(stored, attributes, position)?;
        let scratch = plan.codec.scratch_bytes(plan.decoded_bytes) as u64;
        Ok((plan.decoded_bytes as u64).saturating_add(scratch))
    }

    /// Decodes the stored block at `position` of a dataset.
    ///
    /// A block may be smaller than `blockSize` (cropped at the edge, or partly written) and may carry
    /// padding beyond `dimensions`; `size` is the header's. The result shares `stored`'s buffer where
    /// nothing had to be changed.
    ///
    /// # Errors
    /// As [`Self::decoding_bytes`]; [`BlockError::OverLimit`] before anything is allocated;
    /// [`BlockError::Payload`] for a payload that is damaged or of another length than promised.
    pub fn decode(
        stored: Bytes,
        attributes: &DatasetAttributes,
        position: &GridPosition,
        limit_bytes: u64,
    ) -> Result<Self, BlockError> {
        let needed_bytes = Self::decoding_bytes(&stored, attributes, position)?;
        if needed_bytes > limit_bytes {
            return Err(BlockError::OverLimit { needed_bytes, limit_bytes });
        }
        let plan = Plan::new(&stored, attributes, position)?;
        let mut payload = stored;
        payload.advance(plan.header.len);
        // A block without elements may come with an empty payload, which is no stream at all.
        let data = if plan.decoded_bytes == 0 && payload.is_empty() {
            Bytes::new()
        } else {
            plan.codec.decode(payload, plan.decoded_bytes)?
        };
        if data.len() != plan.decoded_bytes {
            let found = format!("{} bytes", data.len());
            return Err(CodecError::WrongLength { expected: plan.decoded_bytes, found }.into());
        }
        Ok(Self { size: plan.header.size, data: little_endian(data, plan.width) })
    }
}

/// A header that fits its dataset, with what decoding needs.
struct Plan<'a> {
    header: BlockHeader,
    codec: &'a dyn super::Codec,
    width: usize,
    decoded_bytes: usize,
}

impl<'a> Plan<'a> {
    fn new(stored: &[u8], attributes: &'a DatasetAttributes, position: &[u64]) -> Result<Self, BlockError> {
        let compression = attributes.compression();
        let unsupported = |text: String| BlockError::Unsupported(text);
        let width = attributes
            .data_type()
            .size_bytes()
            .ok_or_else(|| unsupported(format!("data type {:?} is not decoded", attributes.data_type().name())))?;
        let codec = compression
            .codec()
            .ok_or_else(|| unsupported(format!("compression {:?} is not decoded", compression.name())))?;
        let header = BlockHeader::parse_for(stored, attributes, position)?;
        if header.mode == Mode::Object {
            return Err(unsupported("a block of mode 2 (object) has no elements".to_owned()));
        }
        if header.size.len() != attributes.rank() {
            return Err(BlockError::Rank { found: header.size.len(), expected: attributes.rank() });
        }
        if header.size.iter().zip(attributes.block_size()).any(|(s, b)| s > b) {
            return Err(BlockError::TooLargeForGrid {
                size: header.size.to_vec(),
                block_size: attributes.block_size().to_vec(),
            });
        }
        let product = product(&header.size);
        if header.elements != product {
            return Err(unsupported(format!(
                "a block of mode 1 holds {} elements for a size of {:?}",
                header.elements.unwrap_or(u64::MAX),
                header.size
            )));
        }
        let claimed_bytes = product.unwrap_or(u64::MAX).saturating_mul(width as u64);
        let payload_bytes = stored.len().saturating_sub(header.len);
        if claimed_bytes > codec.max_decoded_bytes(payload_bytes) {
            return Err(BlockError::Implausible {
                payload_bytes,
                claimed_bytes,
                compression: compression.name().to_owned(),
            });
        }
        let decoded_bytes = usize::try_from(claimed_bytes)
            .map_err(|_| BlockError::OverLimit { needed_bytes: claimed_bytes, limit_bytes: usize::MAX as u64 })?;
        Ok(Self { header, codec, width, decoded_bytes })
    }
}

/// Turns big-endian elements round, in place where the buffer is not shared.
fn little_endian(data: Bytes, width: usize) -> Bytes {
    if width == 1 || data.is_empty() {
        return data;
    }
    let mut data = data.try_into_mut().unwrap_or_else(|shared| BytesMut::from(shared.as_ref()));
    match width {
        2 => swap::<2>(&mut data),
        4 => swap::<4>(&mut data),
        _ => swap::<8>(&mut data),
    }
    data.freeze()
}

fn swap<const WIDTH: usize>(data: &mut [u8]) {
    for element in data.as_chunks_mut::<WIDTH>().0 {
        element.reverse();
    }
}
