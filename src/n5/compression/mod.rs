//! Compression schemes: one file and one row of [`CODECS`] each.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod blosc;
mod blosc_decode;
mod blosc_sys;
mod bzip2;
mod encoding;
mod gzip;
mod limits;
mod lz4;
mod raw;
mod stream;
#[cfg(test)]
mod tests;
mod xz;
mod zstd;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

pub use encoding::BlockEncoding;
pub use limits::CancelCheck;

/// Decoder for the payload of a block, which is everything after the block's header.
pub trait Codec: fmt::Debug + Send + Sync {
    /// Decodes `payload` to exactly `len` bytes, the stored big-endian elements.
    ///
    /// The whole payload is consumed, so checksums at the end of a stream are verified. Further members, streams or
    /// frames are decoded and appended; their number is limited by what they yield. Zero padding after the last one is
    /// ignored.
    ///
    /// `cancel_check` is polled between members, streams and frames, and within long ones of bzip2, xz, lzma, gzip and
    /// zlib. It is not polled within a gzip member or zlib stream of up to 8 MiB, a zstd frame, a bare LZ4 block, or a
    /// blosc buffer of large parts. The longest of these that was found takes 1.2 s: a zstd frame of 15 MB of empty
    /// blocks with tables.
    ///
    /// Never allocates more than `len` plus [`Codec::scratch_bytes`] plus a few KiB.
    ///
    /// # Errors
    /// [`CodecError`] if the payload is damaged, ends early, decodes to another length than `len`, is followed by
    /// anything else, or needs more memory than decoding may use. [`CodecError::Cancelled`] if `cancel_check` cancels.
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

    /// Like [`Codec::decode`], but replaces the content of `output`, so that a caller that decodes many blocks reuses
    /// its memory.
    ///
    /// # Errors
    /// As for [`Codec::decode`]; the content of `output` is then unspecified.
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        scratch: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<(), CodecError>;

    /// Returns true if elements are stored uncompressed.
    fn is_uncompressed(&self) -> bool {
        false
    }

    /// Returns the part of `payload` that contains its `len` elements uncompressed, if decoding would only copy it.
    fn uncompressed_slice<'a>(&self, _payload: &'a [u8], _len: usize) -> Option<&'a [u8]> {
        None
    }

    /// Upper bound of the bytes that `payload_len` encoded bytes can decode to. A header that claims more is wrong,
    /// which is detected before anything is allocated.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64;

    /// Memory in bytes that decoding `payload` to `len` bytes needs besides the result. For an empty payload, the
    /// maximum for any payload.
    fn scratch_bytes(&self, payload: &[u8], len: usize) -> usize;
}

/// Working memory for decoding, besides the result. It is allocated for the first of many blocks and reused for the
/// others, and never exceeds the [`Codec::scratch_bytes`] of the largest of them.
#[derive(Default)]
pub struct Scratch {
    bytes: Vec<u8>,
    xz: Option<xz2::stream::Stream>,
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch").field("bytes", &self.bytes.len()).field("xz", &self.xz.is_some()).finish()
    }
}

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

/// Constructor of a codec from the members of the attribute `compression`. Unexpected members are not an error.
type CodecConstructor = fn(&Map<String, Value>) -> Arc<dyn Codec>;

/// All compressions that this build decodes, by their `type` in `attributes.json`.
pub static CODECS: &[(&str, CodecConstructor)] = &[
    ("raw", raw::open),
    ("gzip", gzip::open),
    ("zlib", gzip::open),
    ("bzip2", bzip2::open),
    ("xz", xz::open),
    ("lz4", lz4::open),
    ("blosc", blosc::open),
    ("zstd", zstd::open),
];

/// The attribute `compression` of a dataset.
#[derive(Debug, Clone)]
pub struct Compression {
    name: String,
    parameters: Map<String, Value>,
    codec: Option<(&'static str, Arc<dyn Codec>)>,
}

impl Compression {
    /// Creates the scheme `name` with its other members as stored. An unknown scheme has no decoder.
    pub(super) fn new(name: &str, parameters: Map<String, Value>) -> Self {
        let codec = CODECS.iter().find(|row| row.0 == name).map(|row| (row.0, (row.1)(&parameters)));
        Self { name: name.to_owned(), parameters, codec }
    }

    /// Returns the member `type`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the members besides `type`, as stored.
    pub fn parameters(&self) -> &Map<String, Value> {
        &self.parameters
    }

    /// Returns the decoder; `None` if this build has no decoder of that name.
    pub fn codec(&self) -> Option<&dyn Codec> {
        self.codec.as_ref().map(|(_, codec)| &**codec)
    }

    /// Returns the name if it is in [`CODECS`], else `unknown`. Metrics need labels from a small, fixed set.
    pub fn label(&self) -> &'static str {
        self.codec.as_ref().map_or("unknown", |(name, _)| name)
    }
}
