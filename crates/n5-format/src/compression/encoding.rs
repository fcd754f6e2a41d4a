//! The compression schemes that this crate can write, each in the form that the strictest reader accepts.

use ::zstd::zstd_safe;
use bytes::Bytes;
use serde_json::{Value, json};

use super::blosc::BloscHeader;
use super::blosc_sys;
use super::codec::CodecError;

/// Low compression levels, which are fast. On noisy images, higher levels save only a few percent more.
const GZIP_LEVEL: i32 = 4;
const ZSTD_LEVEL: i32 = 1;
/// Default compression level of c-blosc.
const BLOSC_LEVEL: u8 = 5;
/// Code for the byte shuffle in c-blosc.
const BLOSC_SHUFFLE: u8 = 1;

/// A compression scheme that this build can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockEncoding {
    /// The elements, uncompressed.
    Raw,
    /// A single gzip member.
    Gzip,
    /// A single Zstandard frame with its content size.
    Zstd,
    /// A single blosc buffer: LZ4 with byte shuffle.
    Blosc,
}

impl BlockEncoding {
    /// All compression schemes.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Gzip, Self::Zstd, Self::Blosc];

    /// Returns the scheme named `name`, or `None` if this build cannot write it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|encoding| encoding.name() == name)
    }

    /// Returns the scheme's name, which is also its `type` in `attributes.json`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Blosc => "blosc",
        }
    }

    /// Returns the attribute `compression` for blocks in this encoding. It contains every member that a known reader
    /// requires, and none that a strict reader rejects.
    ///
    /// Source: TensorStore `driver/n5/*_compressor.cc`, and z5, which requires a level.
    pub fn compression_attribute(self) -> Value {
        match self {
            Self::Raw => json!({ "type": "raw" }),
            Self::Gzip => json!({ "type": "gzip", "level": GZIP_LEVEL, "useZlib": false }),
            Self::Zstd => json!({ "type": "zstd", "level": ZSTD_LEVEL }),
            Self::Blosc => json!({ "type": "blosc", "cname": "lz4", "clevel": BLOSC_LEVEL, "shuffle": BLOSC_SHUFFLE,
                "blocksize": 0 }),
        }
    }

    /// Returns an upper bound of the encoded size of `len` bytes.
    pub fn max_encoded_bytes(self, len: u64) -> u64 {
        match self {
            Self::Raw => len,
            // Deflate adds 5 bytes to every 5000 or more bytes that it stores uncompressed; zstd adds less.
            Self::Gzip | Self::Zstd => len.saturating_add(len / 256).saturating_add(1024),
            Self::Blosc => len.saturating_add(blosc_sys::OVERHEAD_BYTES),
        }
    }

    /// Encodes `plain`, elements of `item_size` bytes, in this scheme and appends the result to `output`.
    ///
    /// # Errors
    /// Returns [`CodecError::Encode`] if the library fails or the data are too large for the scheme.
    pub fn encode(self, plain: &[u8], item_size: usize, output: &mut Vec<u8>) -> Result<(), CodecError> {
        let encode_error = |reason: String| CodecError::Encode { reason: format!("{}: {reason}", self.name()) };
        let start = output.len();
        match self {
            Self::Raw => output.extend_from_slice(plain),
            Self::Gzip => {
                let level = libdeflater::CompressionLvl::new(GZIP_LEVEL).unwrap_or_default();
                let mut compressor = libdeflater::Compressor::new(level);
                output.resize(start.saturating_add(compressor.gzip_compress_bound(plain.len())), 0);
                let spare = output.get_mut(start..).unwrap_or_default();
                let len = compressor.gzip_compress(plain, spare).map_err(|error| encode_error(error.to_string()))?;
                output.truncate(start.saturating_add(len));
            }
            Self::Zstd => {
                output.resize(start.saturating_add(zstd_safe::compress_bound(plain.len())), 0);
                let spare = output.get_mut(start..).unwrap_or_default();
                let len = zstd_safe::compress(spare, plain, ZSTD_LEVEL)
                    .map_err(|code| encode_error(zstd_safe::get_error_name(code).to_owned()))?;
                output.truncate(start.saturating_add(len));
            }
            Self::Blosc => blosc_sys::compress_into(plain, c"lz4", BLOSC_LEVEL, BLOSC_SHUFFLE, item_size, 0, output)
                .map_err(|code| encode_error(format!("blosc returned {code} for {} bytes", plain.len())))?,
        }
        Ok(())
    }

    /// Encodes elements in this scheme, without a block header. Returns `plain` itself if nothing changes.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::encode`].
    pub fn encode_to_bytes(self, plain: Bytes, item_size: usize) -> Result<Bytes, CodecError> {
        if self == Self::Raw {
            return Ok(plain);
        }
        let mut output = Vec::new();
        self.encode(&plain, item_size, &mut output)?;
        output.shrink_to_fit();
        Ok(output.into())
    }

    /// Returns true if `payload` is exactly one stream of this scheme that declares `len` decoded bytes, as the
    /// strictest readers require. Nothing is decoded, so damage inside the stream is not detected.
    pub fn is_one_stream(self, payload: &[u8], len: usize) -> bool {
        match self {
            Self::Raw => payload.len() == len,
            // By RFC 1952, a member ends with its decoded size modulo 2^32. If there are several members, the last one
            // declares less than `len`, unless the other members are empty. Zero padding at the end reads as a size of
            // 0.
            Self::Gzip => {
                let end = payload.last_chunk::<4>().map(|size| u32::from_le_bytes(*size));
                let modulo = len.to_le_bytes().first_chunk::<4>().map(|size| u32::from_le_bytes(*size));
                // The member must begin with the magic bytes, the method deflate and no optional fields. An empty
                // stream is accepted only for `len` 0, because other members may follow it.
                let has_header = payload.starts_with(&[0x1f, 0x8b, 8, 0]) && payload.len() >= 18;
                let is_empty = payload
                    .get(10..)
                    .is_some_and(|stream| stream.starts_with(&[3, 0]) || stream.starts_with(&[1, 0, 0, 0xff, 0xff]));
                has_header && (!is_empty || len == 0) && end == modulo
            }
            Self::Zstd => {
                zstd_safe::find_frame_compressed_size(payload) == Ok(payload.len())
                    && zstd_safe::get_frame_content_size(payload).is_ok_and(|size| size == Some(len as u64))
            }
            // c-blosc supports snappy only as a build option, which few readers enable.
            Self::Blosc => BloscHeader::parse(payload).is_ok_and(|header| {
                header.decoded_bytes == len && header.stored_bytes == payload.len() && !header.is_snappy()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{CancelCheck, Codecs, Scratch};

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn encoded_bytes_decode_to_the_same() {
        for encoding in BlockEncoding::ALL {
            let Value::Object(mut members) = encoding.compression_attribute() else { panic!("an object") };
            assert_eq!(members.remove("type").unwrap(), encoding.name());
            let codec = Codecs::built_in().open(encoding.name(), &members).unwrap();
            for (len, item_size) in [(0, 2), (1, 1), (16, 8), (40_000, 4), (300_000, 2)] {
                for plain in [vec![7; len], noise(len)] {
                    let encoded = encoding.encode_to_bytes(plain.clone().into(), item_size).unwrap();
                    assert!(encoded.len() as u64 <= encoding.max_encoded_bytes(len as u64), "{encoding:?} {len}");
                    assert!(encoding.is_one_stream(&encoded, len), "{encoding:?} {len}");
                    assert_eq!(codec.decode(encoded, len, &mut Scratch::default(), CancelCheck::NEVER).unwrap(), plain);
                }
            }
        }
    }

    #[test]
    fn several_streams_padding_and_other_lengths_are_no_single_stream() {
        let plain = noise(1000);
        for encoding in BlockEncoding::ALL {
            let single = encoding.encode_to_bytes(plain.clone().into(), 1).unwrap();
            let two_streams =
                [encoding.encode_to_bytes(plain[..500].to_vec().into(), 1).unwrap(), single.clone()].concat();
            // Raw elements have no end mark, so two raw streams cannot be told from one.
            assert!(encoding == BlockEncoding::Raw || !encoding.is_one_stream(&two_streams, 1500), "{encoding:?}");
            let after_empty_stream = [encoding.encode_to_bytes(Bytes::new(), 1).unwrap(), single.clone()].concat();
            assert!(
                encoding == BlockEncoding::Raw || !encoding.is_one_stream(&after_empty_stream, 1000),
                "{encoding:?}"
            );
            let padded = [&single[..], &[0; 7]].concat();
            assert!(!encoding.is_one_stream(&padded, 1000), "{encoding:?}");
            assert!(!encoding.is_one_stream(&single, 999), "{encoding:?}");
            assert!(!encoding.is_one_stream(&single[..single.len() - 1], 1000), "{encoding:?}");
            assert!(!encoding.is_one_stream(b"", 1000), "{encoding:?}");
        }
    }

    #[test]
    fn names_parse_to_their_encoding() {
        for encoding in BlockEncoding::ALL {
            assert_eq!(BlockEncoding::from_name(encoding.name()), Some(encoding));
        }
        assert_eq!(BlockEncoding::from_name("GZIP"), None);
    }
}
