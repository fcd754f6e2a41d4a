//! The chunks of an array: which there are, and how their elements become bytes.

use std::ops::Range;

use bytes::Bytes;
use serde_json::Value;

use super::super::chunk::{payload, stored_encoding};
use super::super::pieces::raw_payload;
use super::super::{Chunk, Form, Plain};
use crate::container::{Dataset, ReadError};
use crate::n5::{Array, Coords, DatasetAttributes, Encoding, GridPosition, big_endian};

/// Names of blosc's inner compressions that every reader has: snappy is left out of many builds.
const BLOSC_NAMES: [&str; 5] = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"];

/// How all chunks of an array are encoded.
///
/// A source in a scheme that Zarr has, too, keeps it, and with it the byte order of N5: the payload of a block
/// of full size then is the chunk. Any other source becomes gzip, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Scheme {
    /// The compression.
    pub(in super::super) encoding: Encoding,
    /// Whether elements are big-endian; never for those of one byte.
    pub(in super::super) big_endian: bool,
    /// Bytes of an element.
    pub(in super::super) width: usize,
    /// Whether stored payloads can be chunks.
    as_stored: bool,
}

impl Scheme {
    /// The scheme of an array's chunks; `None` for what this build does not decode.
    pub(in super::super) fn of(dataset: &DatasetAttributes) -> Option<Self> {
        let width = dataset.data_type().size_bytes()?;
        let compression = dataset.compression();
        compression.codec()?;
        let parameter = |key: &str| compression.parameters().get(key);
        let stored = Encoding::from_name(compression.name()).filter(|encoding| match encoding {
            Encoding::Raw | Encoding::Zstd => true,
            Encoding::Gzip => parameter("useZlib") != Some(&Value::Bool(true)),
            Encoding::Blosc => parameter("cname").and_then(Value::as_str) != Some("snappy"),
        });
        Some(Self {
            encoding: stored.unwrap_or(Encoding::Gzip),
            big_endian: stored.is_some() && width > 1,
            width,
            as_stored: stored.is_some(),
        })
    }
}

/// Shape of every chunk in elements, N5 axis order.
///
/// Blocks are full cells. Along an axis that is shorter than its only block, the chunk ends with the array:
/// writers of N5 crop that block, so that its payload can be sent as it is; and a block size may be
/// anything up to 2^63 there.
pub(in super::super) fn chunk_shape(dataset: &DatasetAttributes) -> Coords {
    let sizes = dataset.block_size().iter().zip(dataset.dimensions());
    sizes.map(|(block, size)| (*block).min((*size).max(1))).collect()
}

/// What a decoder need not know, but configurations have to say: the level and blosc's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Parameters {
    /// The level.
    pub(in super::super) level: i64,
    /// blosc's inner compression.
    pub(in super::super) cname: &'static str,
    /// blosc's shuffle: 0 none, 1 bytes, 2 bits.
    pub(in super::super) shuffle: u8,
}

impl Parameters {
    /// As the attributes say, where that is sound; else the usual ones.
    pub(in super::super) fn of(dataset: &DatasetAttributes, scheme: Scheme) -> Self {
        let parameters = dataset.compression().parameters();
        let given = |key: &str| parameters.get(key).filter(|_| scheme.as_stored).and_then(Value::as_i64);
        let (key, low, high, usual) = match scheme.encoding {
            Encoding::Raw | Encoding::Gzip => ("level", 0, 9, 6),
            Encoding::Zstd => ("level", -131_072, 22, 3),
            Encoding::Blosc => ("clevel", 0, 9, 5),
        };
        let cname = parameters.get("cname").and_then(Value::as_str);
        let cname = BLOSC_NAMES.into_iter().find(|name| Some(*name) == cname).unwrap_or("lz4");
        let shuffle = match given("shuffle") {
            Some(0) => 0,
            Some(2) => 2,
            // Automatic: bits for bytes, bytes for anything wider.
            Some(-1) if scheme.width == 1 => 2,
            _ => 1,
        };
        Self { level: given(key).filter(|level| (low..=high).contains(level)).unwrap_or(usual), cname, shuffle }
    }
}

impl Form for Scheme {
    fn id(&self) -> String {
        format!("zarr {} {}", self.encoding.name(), if self.big_endian { "big" } else { "little" })
    }

    fn extra_bytes(&self, shape: &Coords, width: usize) -> u64 {
        let elements = shape.iter().fold(1u64, |product, size| product.saturating_mul(*size));
        let plain = elements.saturating_mul(width as u64);
        // Turning elements round takes a copy where somebody else holds them.
        plain.saturating_add(self.encoding.most_bytes(plain))
    }

    fn encode(&self, array: Array) -> Result<Bytes, ReadError> {
        let data = if self.big_endian { big_endian(array.data, self.width) } else { array.data };
        self.encoding.encoded(data, self.width).map_err(|error| ReadError::Unmakeable(error.to_string()))
    }

    fn within(&self, stored: &[u8], dataset: &Dataset, _: &GridPosition) -> Option<Range<usize>> {
        payload(stored, &chunk_shape(&dataset.attributes), self.width, self.encoding)
    }

    fn within_large(&self, head: &[u8], stored_bytes: u64, dataset: &Dataset, _: &GridPosition) -> Option<Range<u64>> {
        let shape = chunk_shape(&dataset.attributes);
        raw_payload(head, stored_bytes, &shape, self.width).filter(|_| self.encoding == Encoding::Raw)
    }

    fn plain(&self, _: &Coords) -> Option<Plain> {
        (self.encoding == Encoding::Raw).then(|| Plain { big_endian: self.big_endian, ..Plain::default() })
    }

    fn passes(&self, dataset: &Dataset) -> bool {
        self.as_stored && stored_encoding(dataset) == Some(self.encoding)
    }
}

/// The chunk at a position, N5 axis order; `None` where the grid has none, or nothing is decoded.
///
/// # Errors
/// As [`Chunk::of_block`].
pub(in super::super) fn chunk_at(
    dataset: std::sync::Arc<Dataset>,
    position: GridPosition,
) -> Result<Option<Chunk>, ReadError> {
    let (Some(scheme), Some(position)) = (Scheme::of(&dataset.attributes), dataset.holds(position)) else {
        return Ok(None);
    };
    let shape = chunk_shape(&dataset.attributes);
    Chunk::of_block(dataset, position, &shape, std::sync::Arc::new(scheme)).map(Some)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::n5::Document;

    fn dataset(dimensions: &[u64], blocks: &[u64], data_type: &str, compression: &Value) -> DatasetAttributes {
        let text = json!({"dimensions": dimensions, "blockSize": blocks, "dataType": data_type,
            "compression": compression});
        DatasetAttributes::parse(Document::parse(text.to_string().as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn sources_that_zarr_decodes_keep_their_scheme_and_byte_order() {
        for (compression, data_type, expected) in [
            (json!({"type": "raw"}), "uint16", ("raw", true, true)),
            (json!({"type": "raw"}), "int8", ("raw", false, true)),
            (json!({"type": "gzip", "level": -1}), "float64", ("gzip", true, true)),
            (json!({"type": "gzip", "useZlib": true}), "uint16", ("gzip", false, false)),
            (json!({"type": "zlib"}), "uint16", ("gzip", false, false)),
            (json!({"type": "zstd"}), "int32", ("zstd", true, true)),
            (json!({"type": "blosc", "cname": "zstd"}), "int32", ("blosc", true, true)),
            (json!({"type": "blosc", "cname": "snappy"}), "int32", ("gzip", false, false)),
            (json!({"type": "bzip2"}), "uint16", ("gzip", false, false)),
            (json!({"type": "xz"}), "uint16", ("gzip", false, false)),
            (json!({"type": "lz4"}), "uint16", ("gzip", false, false)),
        ] {
            let scheme = Scheme::of(&dataset(&[4], &[4], data_type, &compression)).unwrap();
            assert_eq!((scheme.encoding.name(), scheme.big_endian, scheme.as_stored), expected, "{compression}");
        }
        assert_eq!(Scheme::of(&dataset(&[4], &[4], "string", &json!({"type": "raw"}))), None);
        assert_eq!(Scheme::of(&dataset(&[4], &[4], "uint8", &json!({"type": "jpeg"}))), None);
    }

    #[test]
    fn odd_parameters_become_usual_ones() {
        let of = |compression: Value, data_type| {
            let dataset = dataset(&[4], &[4], data_type, &compression);
            let parameters = Parameters::of(&dataset, Scheme::of(&dataset).unwrap());
            (parameters.level, parameters.cname, parameters.shuffle)
        };
        assert_eq!(of(json!({"type": "gzip", "level": -1}), "uint8").0, 6);
        assert_eq!(of(json!({"type": "gzip", "level": "4"}), "uint8").0, 6);
        assert_eq!(of(json!({"type": "gzip", "level": 9}), "uint8").0, 9);
        assert_eq!(of(json!({"type": "zstd", "level": -5}), "uint8").0, -5);
        assert_eq!(of(json!({"type": "xz", "preset": 9, "level": 1}), "uint8").0, 6);
        let blosc = json!({"type": "blosc", "cname": "zlib", "clevel": 9, "shuffle": 2});
        assert_eq!(of(blosc, "uint16"), (9, "zlib", 2));
        assert_eq!(of(json!({"type": "blosc", "cname": "x", "clevel": 99, "shuffle": -1}), "uint16"), (5, "lz4", 1));
        assert_eq!(of(json!({"type": "blosc", "shuffle": -1}), "uint8").2, 2);
    }

    #[test]
    fn chunks_end_with_an_array_that_is_shorter_than_its_block() {
        let raw = json!({"type": "raw"});
        let shape =
            |dimensions: &[u64], blocks: &[u64]| chunk_shape(&dataset(dimensions, blocks, "uint8", &raw)).to_vec();
        assert_eq!(shape(&[7, 5], &[5, 4]), [5, 4]);
        assert_eq!(shape(&[7, 5], &[1 << 62, 4]), [7, 4]);
        assert_eq!(shape(&[0, 5], &[3, 9]), [1, 5]);
        assert_eq!(shape(&[], &[]), [0; 0]);
    }

    #[test]
    fn elements_are_turned_round_where_the_scheme_says_so() {
        let data = Bytes::from_static(&[1, 0, 2, 0]);
        let array =
            || Array { shape: [2].as_slice().into(), data_type: crate::n5::DataType::UInt16, data: data.clone() };
        let encode = |compression: Value| {
            let dataset = dataset(&[2], &[2], "uint16", &compression);
            let scheme = Scheme::of(&dataset).unwrap();
            assert!(scheme.extra_bytes(&[2].as_slice().into(), 2) >= 8);
            scheme.encode(array()).unwrap()
        };
        assert_eq!(encode(json!({"type": "raw"})).as_ref(), [0, 1, 0, 2]);
        assert!(encode(json!({"type": "xz"})).starts_with(&[0x1f, 0x8b]));
    }
}
