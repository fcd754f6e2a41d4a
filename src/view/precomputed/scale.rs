//! Scales of a volume: their chunk grid, the encodings of chunks, and the names of both.

use std::fmt;

use bytes::Bytes;

use super::super::chunk_encoder::{ChunkEncoder, StreamLayout};
use super::{compressed_segmentation, image};
use crate::cache::ReadError;
use n5_format::{Array, BlockEncoding, BlockHeader, Coords, DataType, DatasetAttributes};

/// Data types of the format. Source: `volume.yml`.
const DATA_TYPES: [DataType; 8] = [
    DataType::UInt8,
    DataType::Int8,
    DataType::UInt16,
    DataType::Int16,
    DataType::UInt32,
    DataType::Int32,
    DataType::UInt64,
    DataType::Float32,
];

/// Default quality of JPEG images, that of TensorStore.
pub(super) const DEFAULT_QUALITY: u8 = 75;

/// Size of a dataset in x, y, z and channels. Sizes are at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Size in voxels.
    pub(super) size: [u64; 3],
    /// Size of a chunk in voxels: that of a block, or of the volume where it is smaller.
    pub(super) chunk: [u64; 3],
    /// Number of channels. Each chunk holds all of them.
    pub(super) channels: u64,
}

/// Maximum size of a chunk in bytes. With the usual limits, no client gets a larger chunk.
const MAX_CHUNK_BYTES: u64 = 1 << 30;

impl Extent {
    /// Returns the extent of a dataset. Axes beyond the fourth must have one element.
    ///
    /// # Errors
    /// Returns a message for the client that says what this format cannot hold.
    pub(super) fn of(dataset: &DatasetAttributes) -> Result<Self, String> {
        let dimensions = dataset.dimensions();
        let blocks = dataset.block_size();
        let data_type = dataset.data_type();
        let width = data_type.size_bytes().unwrap_or(1);
        if !DATA_TYPES.contains(data_type) {
            let remedy = if *data_type == DataType::Float64 {
                "; /as/gzip,float32 converts it to float32"
            } else if *data_type == DataType::Int64 {
                "; /as/gzip,int32 and similar paths convert it, /zarr2 and /zarr3 serve it unchanged"
            } else {
                ""
            };
            let known = DATA_TYPES.map(|known| known.name().to_owned()).join(", ");
            return Err(format!("precomputed volumes support {known}, but the data type is {data_type}{remedy}"));
        }
        if dimensions.iter().skip(4).any(|size| *size > 1) {
            return Err(format!(
                "precomputed volumes have x, y, z and channels, dimensions is {:?}; /n5, /zarr2 and /zarr3 keep every axis",
                dimensions.as_slice()
            ));
        }
        if dimensions.contains(&0) {
            return Err(format!("the dataset is empty: dimensions is {:?}", dimensions.as_slice()));
        }
        let size = [0, 1, 2].map(|axis| dimensions.get(axis).copied().unwrap_or(1));
        let chunk = [0, 1, 2].map(|axis| blocks.get(axis).copied().unwrap_or(1).min(size[axis]));
        let channels = dimensions.get(3).copied().unwrap_or(1);
        let bytes = chunk.iter().chain([&channels]).fold(width as u64, |bytes, size| bytes.saturating_mul(*size));
        if bytes > MAX_CHUNK_BYTES {
            return Err(format!(
                "a chunk of a precomputed volume holds all channels, which takes {bytes} bytes here; the limit is \
                 {MAX_CHUNK_BYTES}; /zarr2 and /zarr3 have smaller chunks"
            ));
        }
        Ok(Self { size, chunk, channels })
    }

    /// Returns the first voxel of the chunk with these bounds, relative to `offset`, or `None` if no chunk has them.
    pub(super) fn chunk_at(&self, bounds: [(i64, i64); 3], offset: [i64; 3]) -> Option<[u64; 3]> {
        let mut first = [0; 3];
        for (axis, begin) in first.iter_mut().enumerate() {
            let (low, high) = *bounds.get(axis)?;
            let size = *self.size.get(axis)?;
            let chunk = *self.chunk.get(axis)?;
            *begin = u64::try_from(low.checked_sub(*offset.get(axis)?)?).ok()?;
            let len = u64::try_from(high.checked_sub(low)?).ok()?;
            let expected = size.checked_sub(*begin).filter(|remaining| *remaining > 0)?.min(chunk);
            if begin.checked_rem(chunk) != Some(0) || len != expected {
                return None;
            }
        }
        Some(first)
    }

    /// Iterates over the shapes that chunks of this volume have.
    pub(super) fn chunk_shapes(&self) -> impl Iterator<Item = [u64; 3]> {
        let Self { size, chunk, .. } = *self;
        (0..8u8).map(move |edges| {
            [0, 1, 2].map(|axis: usize| {
                let last =
                    size[axis].checked_rem(chunk[axis]).filter(|remainder| *remainder > 0).unwrap_or(chunk[axis]);
                if edges & (1 << axis) == 0 { chunk[axis] } else { last }
            })
        })
    }
}

/// Encoding of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PrecomputedEncoding {
    /// The elements in memory order, little-endian.
    Raw,
    /// JPEG images.
    Jpeg {
        /// Quality from 1 to 100.
        quality: u8,
    },
    /// PNG images.
    Png,
    /// Neuroglancer's own encoding for segments.
    CompressedSegmentation,
}

impl PrecomputedEncoding {
    /// Returns the encoding that a query names.
    ///
    /// # Errors
    /// Returns [`ReadError::InvalidParameter`] if there is no such encoding.
    pub(super) fn from_name(name: &str, quality: u8) -> Result<Self, ReadError> {
        let encodings = [Self::Raw, Self::Jpeg { quality }, Self::Png, Self::CompressedSegmentation];
        let matching = encodings.into_iter().find(|encoding| encoding.name() == name);
        matching.ok_or_else(|| unknown_value("encoding", name, encodings.map(Self::name).to_vec()))
    }

    /// Returns the name in `info`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Jpeg { .. } => "jpeg",
            Self::Png => "png",
            Self::CompressedSegmentation => "compressed_segmentation",
        }
    }

    /// Checks that chunks of a dataset with this extent and data type can have this encoding.
    ///
    /// # Errors
    /// Returns a message for the client that says why the chunks cannot have this encoding.
    pub(super) fn check(self, extent: &Extent, data_type: &DataType) -> Result<(), String> {
        let (types, channels): (&[DataType], &[u64]) = match self {
            Self::Raw => return Ok(()),
            Self::Jpeg { .. } => (&[DataType::UInt8], &[1, 3]),
            Self::Png => (&[DataType::UInt8, DataType::UInt16], &[1, 2, 3, 4]),
            Self::CompressedSegmentation => (&[DataType::UInt32, DataType::UInt64], &[]),
        };
        let name = self.name();
        if !types.contains(data_type) {
            let types: Vec<&str> = types.iter().map(DataType::name).collect();
            return Err(format!(
                "encoding={name} supports {}, but the data type is {data_type}; use encoding=raw",
                types.join(" and ")
            ));
        }
        if !channels.is_empty() && !channels.contains(&extent.channels) {
            return Err(format!(
                "encoding={name} supports {channels:?} channels, but the dataset has {}; use encoding=raw",
                extent.channels
            ));
        }
        let is_image = self != Self::CompressedSegmentation;
        match extent.chunk_shapes().find(|shape| is_image && image::image_size(*shape).is_none()) {
            Some(shape) => Err(format!(
                "a chunk of {shape:?} voxels does not fit a {name} of at most 65535 by 65535; use encoding=raw"
            )),
            None => Ok(()),
        }
    }
}

/// Parses the value of the query parameter `quality`.
///
/// # Errors
/// Returns [`ReadError::InvalidParameter`] if the value is not a whole number from 1 to 100.
pub(super) fn quality_parameter(text: &str) -> Result<u8, ReadError> {
    parse_quality(text).ok_or_else(|| {
        let detail = format!("quality is {:?}; it must be a whole number from 1 to 100", truncated(text));
        ReadError::InvalidParameter { parameter: "quality", detail, known: Vec::new() }
    })
}

/// Returns the error for an unknown value of a parameter. It lists the known values.
pub(super) fn unknown_value(parameter: &'static str, value: &str, known: Vec<&'static str>) -> ReadError {
    let detail = format!("{parameter} is {:?}; known: {}", truncated(value), known.join(", "));
    ReadError::InvalidParameter { parameter, detail, known }
}

/// Returns the beginning of a text from a client, short enough for a message.
fn truncated(text: &str) -> String {
    text.chars().take(40).collect()
}

fn parse_quality(text: &str) -> Option<u8> {
    text.parse().ok().filter(|quality: &u8| (1..=100).contains(quality) && quality.to_string() == text)
}

/// Last segment of a scale's key: the encoding and origin that all chunks of the scale have in common.
///
/// It is written as `raw`, `jpeg,75`, `png` or `compressed_segmentation`, followed by `,x,y,z` if the volume does not
/// begin at 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ScaleKey {
    /// Encoding of the chunks.
    pub(super) encoding: PrecomputedEncoding,
    /// First voxel of the volume.
    pub(super) offset: [i64; 3],
}

impl ScaleKey {
    /// Parses a scale's last segment. Only the canonical spelling is accepted.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(',');
        let name = parts.next()?;
        let quality = if name == "jpeg" { parse_quality(parts.next()?)? } else { DEFAULT_QUALITY };
        let encoding = PrecomputedEncoding::from_name(name, quality).ok()?;
        let mut offset = [0; 3];
        if let Some(x) = parts.next() {
            offset = [parse_number(x)?, parse_number(parts.next()?)?, parse_number(parts.next()?)?];
        }
        let key = Self { encoding, offset };
        (key.to_string() == text).then_some(key)
    }
}

impl fmt::Display for ScaleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.encoding.name())?;
        if let PrecomputedEncoding::Jpeg { quality } = self.encoding {
            write!(f, ",{quality}")?;
        }
        let [x, y, z] = self.offset;
        if self.offset == [0; 3] { Ok(()) } else { write!(f, ",{x},{y},{z}") }
    }
}

/// Parses the half-open bounds in a chunk's name, such as `0-64_-64-0_128-130`.
pub(super) fn parse_box(name: &str) -> Option<[(i64, i64); 3]> {
    let mut axes = name.split('_').map(|text| {
        // The first character may be a sign.
        let at = text.char_indices().skip(1).find(|(_, c)| *c == '-')?.0;
        let (low, high) = text.split_at_checked(at)?;
        Some((parse_number(low)?, parse_number(high.strip_prefix('-')?)?))
    });
    let bounds = [axes.next()??, axes.next()??, axes.next()??];
    axes.next().is_none().then_some(bounds)
}

/// Parses a decimal number. Only the canonical spelling is accepted.
fn parse_number(text: &str) -> Option<i64> {
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}

/// Returns the size in voxels and the number of channels of an array.
fn volume_shape(shape: &[u64]) -> ([u64; 3], u64) {
    let size = |axis: usize| shape.get(axis).copied().unwrap_or(1);
    ([size(0), size(1), size(2)], size(3))
}

impl ChunkEncoder for PrecomputedEncoding {
    fn media_type(&self) -> &'static str {
        match self {
            Self::Raw | Self::CompressedSegmentation => "application/octet-stream",
            Self::Jpeg { .. } => "image/jpeg",
            Self::Png => "image/png",
        }
    }

    fn id(&self) -> String {
        format!("precomputed {}", ScaleKey { encoding: *self, offset: [0; 3] })
    }

    fn encoder_bytes(&self, shape: &Coords, width: usize) -> u64 {
        let (size, channels) = volume_shape(shape);
        match self {
            Self::Raw => 0,
            Self::Jpeg { .. } | Self::Png => {
                image::encoder_bytes(size.iter().fold(channels, |voxels, size| voxels.saturating_mul(*size)), width)
            }
            Self::CompressedSegmentation => compressed_segmentation::encoder_bytes(size, channels, width),
        }
    }

    fn encode(&self, array: Array) -> Result<Bytes, ReadError> {
        self.encode_array(array).map_err(ReadError::NotRepresentable)
    }

    /// Passes through only elements of one byte, because they have no byte order.
    fn passthrough(&self, dataset: &DatasetAttributes) -> Option<BlockEncoding> {
        (*self == Self::Raw && dataset.data_type().size_bytes() == Some(1)).then_some(BlockEncoding::Raw)
    }

    fn start_in_block(&self, dataset: &DatasetAttributes, position: &[u64], header: &BlockHeader) -> Option<usize> {
        (header.size == dataset.grid().clipped_size(position)).then_some(header.len)
    }

    fn stream_layout(&self, _: &Coords) -> Option<StreamLayout> {
        (*self == Self::Raw).then(StreamLayout::default)
    }
}

impl PrecomputedEncoding {
    fn encode_array(self, array: Array) -> Result<Bytes, String> {
        let (size, channels) = volume_shape(&array.shape);
        let width = array.data_type.size_bytes().unwrap_or(1);
        let to_usize = |size: u64| usize::try_from(size).map_err(|error| error.to_string());
        let channels = to_usize(channels)?;
        let image_size =
            || image::image_size(size).ok_or_else(|| format!("a chunk of {size:?} voxels does not fit an image"));
        match self {
            Self::Raw => Ok(array.data),
            Self::Jpeg { quality } => image::jpeg(&array.data, width, channels, image_size()?, quality),
            Self::Png => image::png(&array.data, width, channels, image_size()?),
            Self::CompressedSegmentation => {
                let size = [to_usize(size[0])?, to_usize(size[1])?, to_usize(size[2])?];
                compressed_segmentation::encode(&array.data, size, channels, width)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use n5_format::AttributesDocument;

    fn extent(dimensions: &[u64], block_size: &[u64], data_type: &str) -> Result<Extent, String> {
        let text = format!(
            r#"{{"dimensions":{dimensions:?},"blockSize":{block_size:?},"dataType":"{data_type}","compression":{{"type":"raw"}}}}"#
        );
        Extent::of(&DatasetAttributes::parse(AttributesDocument::parse(text.as_bytes()).unwrap()).unwrap())
    }

    #[test]
    fn axes_that_a_dataset_lacks_have_one_voxel() {
        for (dimensions, size, channels) in
            [(&[][..], [1, 1, 1], 1), (&[5], [5, 1, 1], 1), (&[5, 6], [5, 6, 1], 1), (&[5, 6, 7, 2, 1], [5, 6, 7], 2)]
        {
            let extent = extent(dimensions, dimensions, "uint8").unwrap();
            assert_eq!((extent.size, extent.chunk, extent.channels), (size, size, channels));
        }
        assert_eq!(extent(&[5, 60, 7], &[64, 32, 7], "uint8").unwrap().chunk, [5, 32, 7]);
    }

    #[test]
    fn unsupported_datasets_are_refused_with_a_remedy() {
        assert!(extent(&[5], &[5], "float64").unwrap_err().contains("/as/gzip,float32"));
        assert!(extent(&[5], &[5], "int64").unwrap_err().contains("/as/gzip,int32"));
        assert!(extent(&[5], &[5], "string").unwrap_err().contains("string"));
        assert!(extent(&[5; 5], &[5; 5], "uint8").unwrap_err().contains("keep every axis"));
        assert!(extent(&[5, 0, 2], &[5; 3], "uint8").unwrap_err().contains("empty"));
    }

    #[test]
    fn chunks_are_cut_off_at_the_end_of_the_volume_and_begin_at_its_offset() {
        let extent = extent(&[100, 64, 3], &[64, 64, 64], "uint8").unwrap();
        let first_voxel = |name, offset| extent.chunk_at(parse_box(name).unwrap(), offset);
        assert_eq!(first_voxel("0-64_0-64_0-3", [0; 3]), Some([0, 0, 0]));
        assert_eq!(first_voxel("64-100_0-64_0-3", [0; 3]), Some([64, 0, 0]));
        assert_eq!(first_voxel("54-90_-70--6_7-10", [-10, -70, 7]), Some([64, 0, 0]));
        for name in ["64-128_0-64_0-3", "0-64_0-64_0-64", "1-65_0-64_0-3", "128-192_0-64_0-3", "-64-0_0-64_0-3"] {
            assert_eq!(first_voxel(name, [0; 3]), None, "{name}");
        }
        assert_eq!(first_voxel("0-64_0-64_0-3", [i64::MIN; 3]), None);
    }

    #[test]
    fn chunk_shapes_include_the_interior_and_the_edges() {
        let extent = extent(&[100, 64, 3], &[64, 64, 64], "uint8").unwrap();
        let mut shapes: Vec<_> = extent.chunk_shapes().collect();
        shapes.sort_unstable();
        shapes.dedup();
        assert_eq!(shapes, [[36, 64, 3], [64, 64, 3]]);
    }

    #[test]
    fn box_names_have_one_spelling() {
        assert_eq!(parse_box("0-64_-64-0_-20--10"), Some([(0, 64), (-64, 0), (-20, -10)]));
        for bad in
            ["", "0-1_0-1", "0-1_0-1_0-1_0-1", "0-1_0-1_0-01", "0-1_0-1_+0-1", "0-1_0-1_0", "0-1_0-1_-", "é-1_0-1_0-1"]
        {
            assert_eq!(parse_box(bad), None, "{bad}");
        }
    }

    #[test]
    fn scale_keys_have_one_spelling() {
        for text in ["raw", "png", "jpeg,75", "jpeg,1,-5,0,7", "compressed_segmentation,1,2,3", "raw,0,0,-1"] {
            assert_eq!(ScaleKey::parse(text).unwrap().to_string(), text);
        }
        for bad in ["", "0", "s0", "jpeg", "jpeg,0", "jpeg,101", "raw,75", "raw,0,0,0", "raw,1,2", "raw,1,2,3,4", "Raw"]
        {
            assert_eq!(ScaleKey::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn encodings_accept_only_their_types_channels_and_sizes() {
        let check = |name: &str, dimensions: &[u64], data_type: &str| {
            let extent = extent(dimensions, dimensions, data_type).unwrap();
            PrecomputedEncoding::from_name(name, DEFAULT_QUALITY)
                .unwrap()
                .check(&extent, &DataType::from_name(data_type))
        };
        assert_eq!(check("raw", &[5, 5, 5, 9], "int16"), Ok(()));
        assert_eq!(check("jpeg", &[5, 5, 5, 3], "uint8"), Ok(()));
        assert_eq!(check("png", &[5, 5, 5, 2], "uint16"), Ok(()));
        assert_eq!(check("compressed_segmentation", &[5, 5, 5, 2], "uint32"), Ok(()));
        assert!(check("jpeg", &[5, 5], "uint16").unwrap_err().contains("uint8"));
        assert!(check("jpeg", &[5, 5, 5, 2], "uint8").unwrap_err().contains("[1, 3]"));
        assert!(check("png", &[5, 5], "uint32").unwrap_err().contains("uint8 and uint16"));
        assert!(check("compressed_segmentation", &[5], "uint8").unwrap_err().contains("uint32 and uint64"));
        assert!(check("png", &[70_000, 5], "uint8").unwrap_err().contains("65535"));
        let unknown = PrecomputedEncoding::from_name("gif", DEFAULT_QUALITY).unwrap_err().to_string();
        assert!(unknown.contains("raw, jpeg, png, compressed_segmentation"), "{unknown}");
        for text in ["0", "101", "+5", "", "1.5", "\u{fffd}"] {
            assert!(quality_parameter(text).unwrap_err().to_string().contains("1 to 100"), "{text}");
        }
    }
}
