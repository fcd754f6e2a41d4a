//! Encoders of chunks, and the conditions under which a stored block is a chunk already.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use crate::cache::ReadError;
use n5_format::{Array, BlockEncoding, BlockHeader, BlockMode, Coords, DataType, DatasetAttributes, GridPosition};

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

    /// Returns the form in which a stored block of the dataset can be sent as the chunk at `position`, or `None` if it
    /// must be decoded. It is called only for a chunk that is exactly one block.
    fn passthrough(&self, _dataset: &DatasetAttributes, _position: &GridPosition) -> Option<Passthrough> {
        None
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

/// Form in which a stored block is a chunk already.
#[derive(Debug)]
pub struct Passthrough {
    /// Encoding of the payload, which is one stream.
    pub encoding: BlockEncoding,
    /// Sizes that the block may have in elements, in N5 axis order.
    pub sizes: Vec<Coords>,
    /// True if the header of the block is a part of the chunk.
    pub includes_header: bool,
}

impl Passthrough {
    /// Returns the range of the chunk within a stored block of `stored_bytes` that begins with `head`, if the block is
    /// of the default mode and has this form. Elements have `width` bytes. The header of an uncompressed block
    /// suffices as `head`; a compressed block must be there as a whole.
    pub(super) fn range(&self, head: &[u8], stored_bytes: u64, width: usize) -> Option<Range<u64>> {
        let header = BlockHeader::parse(head).ok()?;
        if header.mode != BlockMode::Default || !self.sizes.contains(&header.size) {
            return None;
        }
        let (payload_start, payload_bytes) = (header.len as u64, header.elements?.checked_mul(width as u64)?);
        let is_one_stream = match self.encoding {
            BlockEncoding::Raw => payload_start.checked_add(payload_bytes) == Some(stored_bytes),
            BlockEncoding::Gzip | BlockEncoding::Zstd | BlockEncoding::Blosc => {
                head.len() as u64 == stored_bytes
                    && self.encoding.is_one_stream(head.get(header.len..)?, usize::try_from(payload_bytes).ok()?)
            }
        };
        is_one_stream.then_some(if self.includes_header { 0 } else { payload_start }..stored_bytes)
    }
}
