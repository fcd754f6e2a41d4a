//! Compression schemes: one file and one row of [`CODECS`] each.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod blosc;
mod blosc_parts;
mod blosc_sys;
mod bzip2;
mod encode;
mod gzip;
mod lz4;
mod raw;
mod stream;
#[cfg(test)]
mod tests;
mod watch;
mod xz;
mod zstd;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

pub use encode::Encoding;
pub use watch::Watch;

/// Decodes the payload of a block: what follows the block's header.
pub trait Codec: fmt::Debug + Send + Sync {
    /// Decodes `payload` to exactly `len` bytes, the stored big-endian elements.
    ///
    /// The whole payload is consumed, so that checksums at the end of a stream are verified. Further
    /// members, streams or frames are decoded and appended, as many as what they yield allows; zero padding after the last
    /// is ignored.
    ///
    /// `watch` is asked whether to go on: between members, streams and frames, and within long ones of bzip2, xz, lzma, gzip and
    /// zlib. Not within a gzip member or zlib stream of up to 8 MiB, a zstd frame, a bare LZ4 block, or a blosc buffer of large
    /// parts. The longest of these that was found is a zstd frame of 15 MB of empty blocks with tables, with 1.2 s.
    ///
    /// # Errors
    /// [`CodecError`] when the payload is damaged, ends early, decodes to another length than `len`,
    /// is followed by anything else, or asks for more memory than decoding may use; [`CodecError::Abandoned`] when `watch`
    /// says that nobody waits. Never allocates more than `len` plus [`Codec::scratch_bytes`] plus a few KiB.
    fn decode(&self, payload: Bytes, len: usize, scratch: &mut Scratch, watch: Watch<'_>) -> Result<Bytes, CodecError> {
        let mut output = Vec::new();
        self.decode_into(&payload, len, &mut output, scratch, watch)?;
        Ok(output.into())
    }

    /// [`Codec::decode`] in place of what `output` holds: a caller that decodes many blocks reuses its memory.
    ///
    /// # Errors
    /// As [`Codec::decode`]; `output` then holds anything.
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        scratch: &mut Scratch,
        watch: Watch<'_>,
    ) -> Result<(), CodecError>;

    /// Whether what is stored is the elements as they are.
    fn is_plain(&self) -> bool {
        false
    }

    /// The part of `payload` that is its `len` elements as they are, where decoding would do no more than copy it.
    fn plain<'a>(&self, _payload: &'a [u8], _len: usize) -> Option<&'a [u8]> {
        None
    }

    /// The most bytes that `payload_len` encoded bytes can decode to, generously estimated: a header
    /// that claims more lies, which is found before anything is allocated.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64;

    /// Memory that decoding `payload` to `len` bytes needs besides the result, in bytes; the most that any payload
    /// needs, for an empty one.
    fn scratch_bytes(&self, payload: &[u8], len: usize) -> usize;
}

/// What decoding a block needs besides its result: allocated for the first of many blocks, used again for the others.
/// Never more than the [`Codec::scratch_bytes`] of the largest of them.
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

/// Why a payload cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The stream breaks its own format or checksum.
    #[error("damaged {codec} stream: {reason}")]
    Damaged {
        /// Name of the codec.
        codec: &'static str,
        /// What the decoder found.
        reason: String,
    },
    /// The stream decodes to another length than the block's header promises.
    #[error("payload decodes to {found}, the header promises {expected} bytes")]
    WrongLength {
        /// Bytes that the header promises.
        expected: usize,
        /// What was found, in words ("12 bytes", "more").
        found: String,
    },
    /// Bytes that are neither a further stream nor zero padding follow the stream.
    #[error("{bytes} unexpected bytes after the {codec} stream")]
    Trailing {
        /// Name of the codec.
        codec: &'static str,
        /// Number of bytes.
        bytes: usize,
    },
    /// The stream asks for more working memory than a block may use.
    #[error("{codec} stream asks for {needed_bytes} bytes of working memory, {limit_bytes} are allowed")]
    Memory {
        /// Name of the codec.
        codec: &'static str,
        /// Bytes asked for.
        needed_bytes: u64,
        /// Bytes allowed.
        limit_bytes: u64,
    },
    /// Says nothing of the stream: nobody waited for it any more.
    #[error("decoding was given up: nobody waits for the block any more")]
    Abandoned,
}

/// Builds a codec from the members of the attribute `compression`; odd members never make it fail.
type Open = fn(&Map<String, Value>) -> Arc<dyn Codec>;

/// Every compression this build decodes, by the `type` it has in `attributes.json`.
pub static CODECS: &[(&str, Open)] = &[
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
    /// The scheme `name` with its further members as stored; one that is unknown decodes nothing.
    pub(super) fn new(name: &str, parameters: Map<String, Value>) -> Self {
        let codec = CODECS.iter().find(|row| row.0 == name).map(|row| (row.0, (row.1)(&parameters)));
        Self { name: name.to_owned(), parameters, codec }
    }

    /// The member `type`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The members besides `type`, as stored.
    pub fn parameters(&self) -> &Map<String, Value> {
        &self.parameters
    }

    /// The decoder; `None` when this build has none of that name.
    pub fn codec(&self) -> Option<&dyn Codec> {
        self.codec.as_ref().map(|(_, codec)| &**codec)
    }

    /// The name where it is one of [`CODECS`], else `unknown`: from a small fixed set, as metrics need it.
    pub fn label(&self) -> &'static str {
        self.codec.as_ref().map_or("unknown", |(name, _)| name)
    }
}
