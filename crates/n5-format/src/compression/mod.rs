//! Compression schemes, each with one file and one row of [`CODECS`], and the registry to which a program can add its
//! own.
//!
//! To add a codec, start with a file that implements [`Codec`], and follow "A codec" in `CONTRIBUTING.md` of the
//! repository.
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod blosc;
mod blosc_sys;
mod bzip2;
mod codec;
mod encoding;
mod gzip;
mod lz4;
mod raw;
mod stream;
#[cfg(test)]
mod tests;
mod xz;
mod zstd;

use std::fmt;
use std::sync::{Arc, LazyLock};

use serde_json::{Map, Value};

pub(crate) use codec::wrong_length;
pub use codec::{CancelCheck, Codec, CodecError, Scratch};
pub use encoding::BlockEncoding;

/// The codecs of this crate. Each row begins with the `type` that selects the codec in the attribute `compression`.
#[expect(clippy::type_complexity, reason = "a row of a table")]
const CODECS: &[(&str, fn(&Map<String, Value>) -> Arc<dyn Codec>)] = &[
    ("raw", |_| Arc::new(raw::RawCodec)),
    ("gzip", |_| Arc::new(gzip::GzipCodec)),
    ("zlib", |_| Arc::new(gzip::GzipCodec)),
    ("bzip2", |_| Arc::new(bzip2::Bzip2Codec)),
    ("xz", |_| Arc::new(xz::XzCodec)),
    ("lz4", |_| Arc::new(lz4::Lz4Codec)),
    ("blosc", |_| Arc::new(blosc::BloscCodec)),
    ("zstd", |_| Arc::new(zstd::ZstdCodec)),
];

/// Constructor of a codec from the members of the attribute `compression` other than `type`.
type CodecConstructor = Arc<dyn Fn(&Map<String, Value>) -> Arc<dyn Codec> + Send + Sync>;

/// A registry of codecs, by the `type` of the attribute `compression`.
///
/// A program that has codecs of its own adds them to a copy of [`Codecs::built_in`] when it starts, and passes the
/// registry to [`AttributesDocument::parse_with`](crate::AttributesDocument::parse_with). The codec of a dataset is
/// looked up once, when its attributes are parsed, so decoding a block costs the same for every codec. Cheap to clone.
///
/// ```
/// use std::sync::Arc;
///
/// use bytes::Bytes;
/// use n5_format::{AttributesDocument, Block, CancelCheck, Codec, CodecError, Codecs, DatasetAttributes, Scratch};
///
/// /// Stores every byte inverted.
/// #[derive(Debug)]
/// struct Inverted;
///
/// impl Codec for Inverted {
///     fn decode_into(
///         &self,
///         payload: &[u8],
///         len: usize,
///         output: &mut Vec<u8>,
///         _: &mut Scratch,
///         _: CancelCheck<'_>,
///     ) -> Result<(), CodecError> {
///         if payload.len() != len {
///             return Err(CodecError::WrongLength { expected: len, found: format!("{} bytes", payload.len()) });
///         }
///         output.clear();
///         output.extend(payload.iter().map(|byte| !byte));
///         Ok(())
///     }
///
///     fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
///         payload_len as u64
///     }
///
///     fn scratch_bytes(&self, _: &[u8], _: usize) -> usize {
///         0
///     }
/// }
///
/// let mut codecs = Codecs::built_in().clone();
/// codecs.register("inverted", |_parameters| Arc::new(Inverted));
///
/// let text = br#"{"dimensions":[3],"blockSize":[3],"dataType":"uint8","compression":{"type":"inverted"}}"#;
/// let attributes = DatasetAttributes::parse(AttributesDocument::parse_with(text, &codecs)?)?;
/// let stored = Bytes::from_static(b"\0\0\0\x01\0\0\0\x03\xfe\xfd\xfc");
/// let block = Block::decode(stored, &attributes, &[0], 1 << 20)?;
/// assert_eq!(block.data[..], [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Codecs {
    rows: Arc<Vec<(&'static str, CodecConstructor)>>,
}

impl Codecs {
    /// Returns the codecs of this crate: raw, gzip, zlib, bzip2, xz, lz4, blosc and zstd.
    pub fn built_in() -> &'static Self {
        static BUILT_IN: LazyLock<Codecs> = LazyLock::new(|| {
            let rows = CODECS.iter().map(|(name, open)| (*name, Arc::new(open) as CodecConstructor)).collect();
            Codecs { rows: Arc::new(rows) }
        });
        &BUILT_IN
    }

    /// Adds the codec `name`, or replaces the codec that has this name. `open` is called for each dataset with this
    /// compression, and gets the members of the attribute `compression` other than `type`, as stored.
    ///
    /// Documents that have already been parsed are not affected.
    pub fn register(
        &mut self,
        name: &'static str,
        open: impl Fn(&Map<String, Value>) -> Arc<dyn Codec> + Send + Sync + 'static,
    ) {
        let rows = Arc::make_mut(&mut self.rows);
        rows.retain(|row| row.0 != name);
        rows.push((name, Arc::new(open)));
    }

    /// Returns the names of all codecs.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.rows.iter().map(|row| row.0)
    }

    /// Creates the codec `name` for a dataset, or returns `None` if there is no such codec. `parameters` are the
    /// members of the attribute `compression` other than `type`.
    pub fn open(&self, name: &str, parameters: &Map<String, Value>) -> Option<Arc<dyn Codec>> {
        self.rows.iter().find(|row| row.0 == name).map(|row| (row.1)(parameters))
    }
}

impl Default for Codecs {
    /// Returns a copy of [`Codecs::built_in`].
    fn default() -> Self {
        Self::built_in().clone()
    }
}

impl fmt::Debug for Codecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// The attribute `compression` of a dataset.
#[derive(Debug, Clone)]
pub struct Compression {
    name: String,
    parameters: Map<String, Value>,
    codec: Option<(&'static str, Arc<dyn Codec>)>,
}

impl Compression {
    /// Creates a compression from its name and its other members as stored. An unknown compression has no codec.
    pub(crate) fn new(name: &str, parameters: Map<String, Value>, codecs: &Codecs) -> Self {
        let known_name = codecs.names().find(|known| *known == name);
        let codec = known_name.and_then(|name| Some((name, codecs.open(name, &parameters)?)));
        Self { name: name.to_owned(), parameters, codec }
    }

    /// Returns the member `type`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the members other than `type`, as stored.
    pub fn parameters(&self) -> &Map<String, Value> {
        &self.parameters
    }

    /// Returns the codec, or `None` if the registry has none with this name.
    pub fn codec(&self) -> Option<&dyn Codec> {
        self.codec.as_ref().map(|(_, codec)| &**codec)
    }

    /// Returns the name if the registry has a codec with this name, and `unknown` otherwise, as a label for metrics.
    /// Labels must come from a small, fixed set.
    pub fn label(&self) -> &'static str {
        self.codec.as_ref().map_or("unknown", |(name, _)| name)
    }
}
