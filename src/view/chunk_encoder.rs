//! Encoders of chunks, which the views implement.

use std::fmt;

use bytes::Bytes;

use crate::cache::ReadError;
use n5_format::{Array, BlockEncoding, BlockHeader, Coords, DataType, DatasetAttributes};

/// Encodes the elements of a chunk to bytes.
pub trait ChunkEncoder: fmt::Debug + Send + Sync {
    /// Returns the media type.
    fn media_type(&self) -> &'static str {
        "application/octet-stream"
    }

    /// Returns a text that identifies the encoding. Encoders with the same text encode equal elements to equal bytes.
    /// The text is a part of entity tags and of the cache keys of encoded chunks.
    fn id(&self) -> String;

    /// Returns an upper bound of the memory in bytes for encoding a chunk of `shape`: the result and everything else
    /// except the elements. An element has `width` bytes.
    fn encoder_bytes(&self, shape: &Coords, width: usize) -> u64;

    /// Encodes elements as a chunk.
    ///
    /// # Errors
    /// Returns [`ReadError::NotRepresentable`] or [`ReadError::Convert`] if the elements cannot be encoded.
    fn encode(&self, array: Array) -> Result<Bytes, ReadError>;

    /// Returns the encoding in which a stored payload can be sent as a chunk unchanged, if it is a single stream.
    /// Returns `None` if blocks of the dataset must always be decoded.
    ///
    /// This method is called only for chunks that are exactly one block. A block is sent as it is stored only if
    /// [`Self::start_in_block`] accepts it, too.
    fn passthrough(&self, _dataset: &DatasetAttributes) -> Option<BlockEncoding> {
        None
    }

    /// Returns the offset of the chunk within its stored block, in bytes: 0 if the header of the block is a part of the
    /// chunk, otherwise the length of the header. Returns `None` if a block with this header, at `position`, cannot be
    /// sent as it is stored.
    fn start_in_block(&self, _dataset: &DatasetAttributes, _position: &[u64], _header: &BlockHeader) -> Option<usize> {
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
