//! Reasons why a payload cannot be decoded.

use std::fmt;

/// Reason why a payload cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The stream violates its own format or checksum.
    #[error("damaged {codec} stream: {reason}")]
    Damaged {
        /// Name of the codec.
        codec: &'static str,
        /// Message of the decoder.
        reason: String,
    },
    /// The stream decodes to a length other than the one that the block's header promises.
    #[error("payload decodes to {found}, but the header promises {expected} bytes")]
    WrongLength {
        /// Length that the header promises, in bytes.
        expected: usize,
        /// Length found, in words ("12 bytes", "more").
        found: String,
    },
    /// The stream is followed by bytes that are neither a further stream nor zero padding.
    #[error("{bytes} unexpected bytes after the {codec} stream")]
    Trailing {
        /// Name of the codec.
        codec: &'static str,
        /// Number of bytes after the stream.
        bytes: usize,
    },
    /// The stream needs more working memory than a block may use.
    #[error("{codec} stream needs {needed_bytes} bytes of working memory, but only {limit_bytes} are allowed")]
    Memory {
        /// Name of the codec.
        codec: &'static str,
        /// Memory needed, in bytes.
        needed_bytes: u64,
        /// Memory allowed, in bytes.
        limit_bytes: u64,
    },
    /// Decoding was cancelled because the block is no longer needed. This says nothing about the stream.
    #[error("decoding was cancelled: the block is no longer needed")]
    Cancelled,
}

/// Error of a stream that decodes to `found` bytes instead of `len`.
pub(crate) fn wrong_length(len: usize, found: usize) -> CodecError {
    CodecError::WrongLength { expected: len, found: format!("{found} bytes") }
}

/// Error of a stream that decodes to more than `len` bytes, by an amount that is not determined.
pub(super) fn too_long(len: usize) -> CodecError {
    CodecError::WrongLength { expected: len, found: "more".to_owned() }
}

/// Error of a stream that violates its format.
pub(super) fn damaged(codec: &'static str, reason: impl fmt::Display) -> CodecError {
    CodecError::Damaged { codec, reason: reason.to_string() }
}
