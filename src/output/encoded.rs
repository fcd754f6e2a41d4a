//! Encoded arrays: their pieces, their buffers, and the reasons why there is none.

use bytes::Bytes;

/// A piece of an encoded array.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedPiece {
    /// Bytes that the piece adds to the encoding.
    pub bytes: Bytes,
    /// Checksum of the piece's content, in the format's own algorithm.
    pub checksum: u32,
    /// Number of bytes that the checksum covers.
    pub checked_bytes: u64,
}

/// Reason why an array cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The format cannot represent such arrays. The text is for the client.
    #[error("{0}")]
    Refused(String),
    /// The length of the array's data does not match its shape and type.
    #[error("the array has {found} bytes, but its shape and type require {expected}")]
    Length {
        /// Length that the shape and type require, in bytes.
        expected: u64,
        /// Length of the data in bytes.
        found: usize,
    },
    /// Memory for the encoded array, of so many bytes, is not available.
    #[error("no memory for {0} bytes of encoded data")]
    Memory(u64),
    /// The encoder of a format failed.
    #[error("the {format} encoder: {reason}")]
    Encoder {
        /// Name of the format.
        format: &'static str,
        /// Message of the encoder.
        reason: String,
    },
}

/// Number of elements of `shape`, saturated at `u64::MAX`. It is 1 for rank 0.
pub(super) fn element_count(shape: &[u64]) -> u64 {
    // A size of zero makes the product zero, even if the product of other sizes overflows.
    if shape.contains(&0) { 0 } else { shape.iter().fold(1, |n: u64, size| n.saturating_mul(*size)) }
}

/// Returns an empty buffer with capacity for `bytes`. A buffer that grows would copy the data and hold them twice
/// meanwhile. Pages that are never written take no memory.
pub(super) fn buffer(bytes: u64) -> Result<Vec<u8>, EncodeError> {
    buffer_from(&|_| Vec::new(), bytes)
}

/// Like [`buffer`], but reuses the buffer that `take_buffer` returns if its capacity suffices.
pub(super) fn buffer_from(take_buffer: &dyn Fn(usize) -> Vec<u8>, bytes: u64) -> Result<Vec<u8>, EncodeError> {
    let mut buffer = usize::try_from(bytes).map(take_buffer).unwrap_or_default();
    buffer.clear();
    let is_reserved = usize::try_from(bytes).is_ok_and(|bytes| buffer.try_reserve_exact(bytes).is_ok());
    if is_reserved { Ok(buffer) } else { Err(EncodeError::Memory(bytes)) }
}
