//! Encoders of chunks, and the conditions under which a stored block is a chunk already.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use crate::container::{Dataset, ReadError};
use crate::n5::{Array, BlockEncoding, BlockHeader, BlockMode, Coords, DataType, GridPosition};

/// Encodes the elements of a chunk to bytes.
pub trait ChunkEncoder: fmt::Debug + Send + Sync {
    /// Returns the media type.
    fn media_type(&self) -> &'static str {
        "application/octet-stream"
    }

    /// Returns, as text, everything that the bytes depend on besides the elements. It is a part of entity tags and of
    /// the cache keys of encoded chunks.
    fn id(&self) -> String;

    /// Returns an upper bound of the bytes that encoding allocates besides the elements, including the result.
    fn extra_bytes(&self, shape: &Coords, width: usize) -> u64;

    /// Encodes elements as a chunk.
    ///
    /// # Errors
    /// [`ReadError::NotRepresentable`] and [`ReadError::Convert`] if the elements cannot be encoded.
    fn encode(&self, array: Array) -> Result<Bytes, ReadError>;

    /// Returns the range of the chunk within a stored block of the dataset, if the block contains it in the required
    /// encoding. It is called only for a chunk that is exactly one block.
    fn passthrough_range(&self, _stored: &[u8], _dataset: &Dataset, _position: &GridPosition) -> Option<Range<usize>> {
        None
    }

    /// As [`Self::passthrough_range`], for a stored block of `stored_bytes` that is not in memory. `head` holds its
    /// first bytes.
    fn passthrough_range_from_head(
        &self,
        _head: &[u8],
        _stored_bytes: u64,
        _dataset: &Dataset,
        _position: &GridPosition,
    ) -> Option<Range<u64>> {
        None
    }

    /// Returns true if [`Self::passthrough_range`] can find a range in any block of the dataset.
    fn can_pass_through(&self, _dataset: &Dataset) -> bool {
        false
    }

    /// Returns the layout of a chunk of `shape` if its elements are encoded one after the other, so that it can be
    /// streamed. Returns `None` if the encoder needs all elements at once.
    fn stream_layout(&self, _shape: &Coords) -> Option<StreamLayout> {
        None
    }
}

/// Layout of a streamed chunk: a header, then each element in memory order.
#[derive(Debug, Clone, Default)]
pub struct StreamLayout {
    /// Bytes before the elements.
    pub header: Bytes,
    /// Type that the elements are converted to, if it is not the dataset's own.
    pub data_type: Option<DataType>,
    /// True if the elements are big-endian.
    pub is_big_endian: bool,
}

/// Returns the range of the payload of a stored block, if the block is of the default mode, has exactly `size` elements
/// and is one stream of `encoding`.
pub(super) fn payload_range(
    stored: &[u8],
    size: &[u64],
    width: usize,
    encoding: BlockEncoding,
) -> Option<Range<usize>> {
    let header = BlockHeader::parse(stored).ok()?;
    if header.mode != BlockMode::Default || header.size.as_slice() != size {
        return None;
    }
    let len = usize::try_from(header.elements?).ok()?.checked_mul(width)?;
    let payload = stored.get(header.len..)?;
    encoding.is_one_stream(payload, len).then_some(header.len..stored.len())
}

/// Returns the encoding of the blocks of a dataset, if it is one that other programs read.
pub(super) fn stored_encoding(dataset: &Dataset) -> Option<BlockEncoding> {
    BlockEncoding::from_name(dataset.attributes.compression().name())
}

/// Returns the range of the uncompressed payload of a stored block of `stored_bytes` that begins with `head`, if the
/// block is of the default mode and has exactly `size` elements.
pub(super) fn raw_payload_range(head: &[u8], stored_bytes: u64, size: &[u64], width: usize) -> Option<Range<u64>> {
    let header = BlockHeader::parse(head).ok()?;
    let len = header.elements?.checked_mul(width as u64)?;
    let from = header.len as u64;
    let has_expected_header = header.mode == BlockMode::Default && header.size.as_slice() == size;
    (has_expected_header && from.checked_add(len) == Some(stored_bytes)).then_some(from..stored_bytes)
}
