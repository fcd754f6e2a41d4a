//! The contract of a codec: its trait, scratch memory, cancellation and errors.

use std::any::Any;
use std::fmt;

use bytes::Bytes;

/// Decoder for the payload of a block, which is everything after the block's header.
pub trait Codec: fmt::Debug + Send + Sync {
    /// Decodes `payload` to exactly `len` bytes: the elements of the block, big-endian as stored, first axis fastest.
    ///
    /// The whole payload is consumed, so checksums at the end of a stream are verified. A payload may consist of
    /// several members, streams or frames. All are decoded, and their number is limited in proportion to the bytes they
    /// yield. Zero padding after the last one is ignored.
    ///
    /// `cancel_check` is polled between members, streams and frames, and at least once per MiB of output within a
    /// bzip2, xz or lzma stream, or a gzip or zlib payload of more than 8 MiB. It is not polled within a shorter gzip
    /// or zlib payload, a zstd frame, a bare LZ4 block, or a blosc buffer of large parts. The slowest known input of
    /// this kind is a zstd frame of 15 MB of empty blocks with tables, which takes 1.2 s.
    ///
    /// Decoding never allocates more than `len` plus [`Codec::scratch_bytes`] plus a few KiB.
    ///
    /// # Errors
    /// Returns a [`CodecError`] if the payload is damaged, ends early, decodes to a length other than `len`, is
    /// followed by anything but zero padding (`raw` accepts no padding), or needs more memory than decoding may use.
    /// Returns [`CodecError::Cancelled`] if `cancel_check` cancels.
    fn decode(
        &self,
        payload: Bytes,
        len: usize,
        scratch: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<Bytes, CodecError> {
        let mut output = Vec::new();
        self.decode_into(&payload, len, &mut output, scratch, cancel_check)?;
        Ok(output.into())
    }

    /// Like [`Codec::decode`], but replaces the content of `output`, whose memory a caller can reuse for many blocks.
    ///
    /// # Errors
    /// Returns the same errors as [`Codec::decode`]; the content of `output` is then unspecified.
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        scratch: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<(), CodecError>;

    /// Returns true if elements are stored uncompressed. A whole block of them is decoded by [`Codec::decode`], and a
    /// block of any other codec by [`Codec::decode_into`].
    fn is_uncompressed(&self) -> bool {
        false
    }

    /// Returns the part of `payload` that holds the `len` bytes of decoded elements, if decoding would only copy this
    /// part.
    fn uncompressed_slice<'a>(&self, _payload: &'a [u8], _len: usize) -> Option<&'a [u8]> {
        None
    }

    /// Returns an upper bound of the bytes that `payload_len` encoded bytes can decode to. A block header that claims
    /// more is refused before anything is allocated.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64;

    /// Returns the memory in bytes that decoding `payload` to `len` bytes needs in addition to the result. For an empty
    /// payload, returns the maximum for any payload.
    fn scratch_bytes(&self, payload: &[u8], len: usize) -> usize;
}

/// Working memory for decoding, in addition to the result. It can be reused for many blocks, and never exceeds the
/// [`Codec::scratch_bytes`] of the largest of them.
#[derive(Default)]
pub struct Scratch {
    bytes: Vec<u8>,
    state: Option<Box<dyn Any + Send + Sync>>,
}

impl Scratch {
    /// Returns a buffer for a codec's intermediate results. Its content is unspecified.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Takes the state that a codec stored while it decoded an earlier block. Returns `None` if there is none, or if it
    /// has a type other than `T` because another codec stored it.
    pub fn take_state<T: Any>(&mut self) -> Option<Box<T>> {
        self.state.take()?.downcast().ok()
    }

    /// Stores state that the next block can reuse, such as a decoder that is expensive to create. Its memory must be
    /// included in [`Codec::scratch_bytes`].
    pub fn put_state<T: Any + Send + Sync>(&mut self, state: Box<T>) {
        self.state = Some(state);
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").field("bytes", &self.bytes.len()).field("state", &self.state.is_some()).finish()
    }
}

/// A check that decoders poll to learn whether decoding has been cancelled. [`Codec::decode`] describes how often it is
/// polled.
#[derive(Clone, Copy)]
pub struct CancelCheck<'a>(&'a dyn Fn() -> bool);

impl<'a> CancelCheck<'a> {
    /// A check that never cancels.
    pub const NEVER: CancelCheck<'static> = CancelCheck(&|| true);

    /// Creates a check that cancels once `should_continue` returns false. Decoding then ends with
    /// [`CodecError::Cancelled`].
    pub fn new(should_continue: &'a dyn Fn() -> bool) -> Self {
        Self(should_continue)
    }

    /// Returns an error if decoding has been cancelled.
    ///
    /// # Errors
    /// Returns [`CodecError::Cancelled`].
    pub fn check(&self) -> Result<(), CodecError> {
        if (self.0)() { Ok(()) } else { Err(CodecError::Cancelled) }
    }
}

impl fmt::Debug for CancelCheck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CancelCheck")
    }
}

/// Reason why a payload cannot be decoded, or why elements cannot be encoded.
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
    /// The given elements cannot be encoded: they do not have the given size, or the encoder failed.
    #[error("the elements cannot be encoded: {reason}")]
    Encode {
        /// Description of what is wrong with the elements, or the name of the codec and the message of the encoder.
        reason: String,
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

/// Returns the error for a stream that decodes to `found` bytes instead of `len`.
pub(crate) fn wrong_length(len: usize, found: usize) -> CodecError {
    CodecError::WrongLength { expected: len, found: format!("{found} bytes") }
}

/// Returns the error for a stream that decodes to an unknown number of bytes greater than `len`.
pub(super) fn too_long(len: usize) -> CodecError {
    CodecError::WrongLength { expected: len, found: "more".to_owned() }
}

/// Returns the error for a stream that violates its format.
pub(super) fn damaged(codec: &'static str, reason: impl fmt::Display) -> CodecError {
    CodecError::Damaged { codec, reason: reason.to_string() }
}
