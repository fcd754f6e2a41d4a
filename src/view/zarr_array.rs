//! Zarr node types of directories, and the layout and chunks of arrays.
//!
//! Zarr's order is C: the slowest axis first. N5's first axis is the fastest. Every list of the Zarr views (names,
//! shapes, chunk coordinates, scales) is therefore N5's list reversed, and no element moves. Arrays with reordered axes
//! ([`AxisPermutation`]) are the exception.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::axis_order::AxisPermutation;
use super::chunk::Chunk;
use super::chunk_encoder::{ChunkEncoder, StreamLayout};
use super::lookup::{ResolvedKey, ViewLookup};
use crate::cache::{Dataset, GroupState, ReadError};
use crate::container::{DirectoryEntry, EntryKind, grid_component};
use crate::store::Key;
use n5_format::{Array, BlockEncoding, BlockHeader, Coords, DataType, DatasetAttributes, swap_byte_order, transpose};

/// Kind of node that a directory is in a Zarr hierarchy.
#[derive(Debug)]
pub(super) enum ZarrNodeType {
    /// Not a node: the directory does not exist, lies inside a dataset's grid or a Zarr store, or is a dataset that this
    /// server cannot decode.
    Missing,
    /// A group.
    Group,
    /// An array: its dataset, and the order of its axes if it is not that of the stored elements.
    Array(Arc<Dataset>, Option<AxisPermutation>),
}

/// Returns the node type of the directory `key`.
///
/// # Errors
/// Returns an error if the store fails or the attributes cannot be read, so that no client takes a dataset for a group.
pub(super) async fn node_type(lookup: &ViewLookup<'_>, key: &Key) -> Result<ZarrNodeType, ReadError> {
    let ViewLookup { container, options, .. } = *lookup;
    let group = container.group(options, key).await?;
    Ok(match &group.state {
        GroupState::Dataset(dataset) if ZarrEncoding::of(&dataset.attributes).is_some() => {
            ZarrNodeType::Array(Arc::clone(dataset), None)
        }
        GroupState::Dataset(_) | GroupState::Unusable(..) => ZarrNodeType::Missing,
        GroupState::Attributes(_) | GroupState::Broken(_) => ZarrNodeType::Group,
        GroupState::NoAttributes => {
            if let Some((dataset, order)) = reordered_dataset(lookup, key).await? {
                return Ok(ZarrNodeType::Array(dataset, Some(order)));
            }
            let is_group = container.is_directory(options, key).await?
                && container.enclosing_dataset(options, key, 0).await?.is_none()
                && container.zarr_store_around(options, key).await?.is_none();
            if is_group { ZarrNodeType::Group } else { ZarrNodeType::Missing }
        }
    })
}

/// Returns the dataset and the order of the array with reordered axes at `key`. Returns `None` if `key` does not have the
/// form of such an array, if the order does not fit the dataset, or if the dataset is missing or not decoded.
async fn reordered_dataset(
    lookup: &ViewLookup<'_>,
    key: &Key,
) -> Result<Option<(Arc<Dataset>, AxisPermutation)>, ReadError> {
    let Some((name, order)) = key.name().and_then(AxisPermutation::split_name) else { return Ok(None) };
    let Some(Ok(dataset_key)) = key.parent().map(|parent| parent.child(name)) else { return Ok(None) };
    let group = lookup.container.group(lookup.options, &dataset_key).await?;
    let GroupState::Dataset(dataset) = &group.state else { return Ok(None) };
    let is_array = dataset.attributes.rank() == order.rank() && ZarrEncoding::of(&dataset.attributes).is_some();
    Ok(is_array.then(|| (Arc::clone(dataset), order)))
}

/// Returns the array whose chunks or directories of chunks include `key`, if the last name before the coordinates has
/// the form of an array with reordered axes. Also returns the coordinates, in the order of the array.
pub(super) fn split_reordered(key: &Key) -> Option<(Key, Vec<u64>)> {
    if !AxisPermutation::may_be_in_name(key.as_str()) {
        return None;
    }
    let segments: Vec<&str> = key.segments().collect();
    let mut coordinates: Vec<u64> = segments.iter().rev().map_while(|name| grid_component(name)).collect();
    let array = segments.get(..segments.len().checked_sub(coordinates.len())?)?;
    AxisPermutation::split_name(array.last()?)?;
    coordinates.reverse();
    Some((Key::from_segments(array.iter()).ok()?, coordinates))
}

/// Form in which the chunks of an array with reordered axes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReorderedChunks {
    /// With the elements in stored order. The metadata of the array say so.
    AsStored,
    /// With the elements in the order of the array.
    Transposed,
}

/// Resolves the chunk at `coordinates`, which are in the order of the array as in the key of a chunk. The chunk is
/// missing if it is outside the grid, or if the dataset is not decoded.
///
/// # Errors
/// Returns the same errors as [`Chunk::of_block`].
pub(super) fn resolve_chunk(
    dataset: &Arc<Dataset>,
    order: Option<AxisPermutation>,
    coordinates: &[u64],
    form: ReorderedChunks,
) -> Result<ResolvedKey, ReadError> {
    let position: Coords = match order {
        None => coordinates.iter().rev().copied().collect(),
        Some(order) => order.inverse().iter().rev().filter_map(|axis| coordinates.get(*axis).copied()).collect(),
    };
    let position = dataset.position_in_grid(position);
    let (Some(encoding), Some(position)) = (ZarrEncoding::of(&dataset.attributes), position) else {
        return Ok(ResolvedKey::Missing);
    };
    let shape = chunk_shape(&dataset.attributes);
    let stored_order: Vec<u64> = shape.iter().rev().copied().collect();
    let moves = |order: &AxisPermutation| form == ReorderedChunks::Transposed && !order.keeps_elements(&stored_order);
    let encoding = match order.filter(moves) {
        None => encoding,
        Some(order) => encoding.transposed(order),
    };
    Chunk::of_block(Arc::clone(dataset), position, &shape, Arc::new(encoding)).map(ResolvedKey::Chunk)
}

/// Returns the chunks, or directories of chunks, whose coordinates begin with `prefix` and have one component more, for
/// a listing. Coordinates are in the order of the array. Returns `None` if the dataset is not decoded, and if no chunk
/// has this prefix, unless it is empty.
///
/// # Errors
/// Returns the same errors as [`Container::block_indices`](crate::container::Container::block_indices).
pub(super) async fn list_coordinates(
    lookup: &ViewLookup<'_>,
    dataset: &Dataset,
    order: Option<AxisPermutation>,
    prefix: &[u64],
    max_entries: usize,
) -> Result<Option<Vec<DirectoryEntry>>, ReadError> {
    let rank = dataset.attributes.rank();
    if ZarrEncoding::of(&dataset.attributes).is_none() {
        return Ok(None);
    }
    if rank == 0 && prefix.is_empty() {
        // The only block of a dataset without axes is `0`.
        let exists = lookup.container.meta(lookup.options, &dataset.block_key(&Coords::new())).await?.is_some();
        let entry = DirectoryEntry { name: "0".to_owned(), kind: EntryKind::File };
        return Ok(Some(Vec::from_iter(exists.then_some(entry))));
    }
    let stored_axis = |axis: usize| match order {
        None => Some(axis),
        Some(order) => order.axes().nth(axis),
    };
    let n5_axis = |axis: usize| rank.checked_sub(stored_axis(axis)? + 1);
    let mut fixed = vec![None; rank];
    for (axis, index) in prefix.iter().enumerate() {
        if let Some(slot) = n5_axis(axis).and_then(|axis| fixed.get_mut(axis)) {
            *slot = Some(*index);
        }
    }
    let Some(axis) = n5_axis(prefix.len()) else { return Ok(None) };
    let indices = lookup.container.block_indices(lookup.options, dataset, &fixed, axis, max_entries).await?;
    let kind = if prefix.len() + 1 == rank { EntryKind::File } else { EntryKind::Group };
    let entries: Vec<DirectoryEntry> =
        indices.into_iter().map(|index| DirectoryEntry { name: index.to_string(), kind }).collect();
    Ok((prefix.is_empty() || !entries.is_empty()).then_some(entries))
}

/// Lowest level of zstd that every reader accepts. GDAL refuses the negative ones. Decoders ignore the level.
const MIN_ZSTD_LEVEL: i64 = 1;

/// Names of blosc's inner compressors that every reader has. Many builds leave out snappy.
const BLOSC_NAMES: [&str; 5] = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"];

/// Encoding of all chunks of an array.
///
/// If Zarr has the encoding of the dataset, the chunks keep it, together with the byte order of N5, so that the payload
/// of a full block can be sent as a chunk. All other datasets are encoded as little-endian gzip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ZarrEncoding {
    /// Compression of the chunks.
    pub(super) compression: BlockEncoding,
    /// True if elements are big-endian. Never true for elements of one byte.
    pub(super) is_big_endian: bool,
    /// Bytes of an element.
    pub(super) width: usize,
    /// True if stored payloads can be chunks.
    allows_passthrough: bool,
    /// Order of the axes in which the elements are sent, if it is not the stored order.
    transposition: Option<AxisPermutation>,
}

impl ZarrEncoding {
    /// Returns the encoding of an array's chunks, or `None` if this build does not decode the dataset.
    pub(super) fn of(dataset: &DatasetAttributes) -> Option<Self> {
        let width = dataset.data_type().size_bytes().filter(|_| dataset.is_decodable())?;
        let compression = dataset.compression();
        let parameter = |key: &str| compression.parameters().get(key);
        let stored = BlockEncoding::from_name(compression.name()).filter(|encoding| match encoding {
            BlockEncoding::Raw | BlockEncoding::Zstd => true,
            BlockEncoding::Gzip => parameter("useZlib") != Some(&Value::Bool(true)),
            BlockEncoding::Blosc => parameter("cname").and_then(Value::as_str) != Some("snappy"),
        });
        Some(Self {
            compression: stored.unwrap_or(BlockEncoding::Gzip),
            is_big_endian: stored.is_some() && width > 1,
            width,
            allows_passthrough: stored.is_some(),
            transposition: None,
        })
    }

    /// Returns the same encoding of elements that are transposed to `order` first.
    fn transposed(self, order: AxisPermutation) -> Self {
        Self { transposition: Some(order), allows_passthrough: false, ..self }
    }
}

/// Returns the shape of every chunk in elements, in N5 axis order.
///
/// Chunks are full grid cells. But along an axis that is shorter than its only block, the chunk ends with the array.
/// Writers of N5 crop that block, so its payload can be sent as it is. Along such an axis, the stored block size can be
/// up to 2^63.
pub(super) fn chunk_shape(dataset: &DatasetAttributes) -> Coords {
    let sizes = dataset.block_size().iter().zip(dataset.dimensions());
    sizes.map(|(block, size)| (*block).min((*size).max(1))).collect()
}

impl ChunkEncoder for ZarrEncoding {
    fn id(&self) -> String {
        let transposition = self.transposition.map(|order| order.name_of(" ")).unwrap_or_default();
        let byte_order = if self.is_big_endian { "big" } else { "little" };
        format!("zarr {} {byte_order}{transposition}", self.compression.name())
    }

    fn encoder_bytes(&self, shape: &Coords, width: usize) -> u64 {
        let elements = shape.iter().fold(1u64, |product, size| product.saturating_mul(*size));
        let raw_bytes = elements.saturating_mul(width as u64);
        // Swapping the bytes of a shared buffer needs a copy, and so does a transposition.
        let copies = if self.transposition.is_some() { 2 } else { 1 };
        raw_bytes.saturating_mul(copies).saturating_add(self.compression.max_encoded_bytes(raw_bytes))
    }

    fn encode(&self, array: Array) -> Result<Bytes, ReadError> {
        let array = match self.transposition {
            None => array,
            Some(order) => {
                // N5's axes, fastest first, in the order of the array's axes, fastest first.
                let rank = order.rank();
                let axes: Vec<usize> = order.axes().rev().filter_map(|axis| rank.checked_sub(axis + 1)).collect();
                Array { data: transpose(&array.data, &array.shape, self.width, &axes).into(), ..array }
            }
        };
        let data = if self.is_big_endian { swap_byte_order(array.data, self.width) } else { array.data };
        self.compression
            .encode_to_bytes(data, self.width)
            .map_err(|error| ReadError::NotRepresentable(error.to_string()))
    }

    fn passthrough(&self, _: &DatasetAttributes) -> Option<BlockEncoding> {
        self.allows_passthrough.then_some(self.compression)
    }

    fn start_in_block(&self, dataset: &DatasetAttributes, _: &[u64], header: &BlockHeader) -> Option<usize> {
        (header.size == chunk_shape(dataset)).then_some(header.len)
    }

    fn stream_layout(&self, _: &Coords) -> Option<StreamLayout> {
        (self.compression == BlockEncoding::Raw && self.transposition.is_none())
            .then(|| StreamLayout { is_big_endian: self.is_big_endian, ..StreamLayout::default() })
    }
}

/// Layout of an array, in the order of its axes.
#[derive(Debug)]
pub(super) struct ZarrLayout {
    /// Size in elements.
    pub(super) shape: Vec<u64>,
    /// Size of each chunk.
    pub(super) chunks: Vec<u64>,
    /// Type of the elements.
    pub(super) data_type: DataType,
    /// Encoding of the chunks.
    pub(super) encoding: ZarrEncoding,
    /// Order of the axes, if it is not that of the stored elements.
    pub(super) order: Option<AxisPermutation>,
    /// Compression level. Decoders need neither the level nor the following parameters, but configurations must contain
    /// them.
    pub(super) level: i64,
    /// Inner compressor of blosc.
    pub(super) cname: &'static str,
    /// Shuffle of blosc: 0 none, 1 bytes, 2 bits.
    pub(super) shuffle: u8,
}

impl ZarrLayout {
    /// Returns the layout of an array of a dataset with this order of axes, or `None` if the dataset is not decoded. The
    /// parameters of the compressor come from the attributes. Common values replace missing and invalid ones.
    pub(super) fn of(dataset: &DatasetAttributes, order: Option<AxisPermutation>) -> Option<Self> {
        let encoding = ZarrEncoding::of(dataset)?;
        let parameters = dataset.compression().parameters();
        let stored_parameter =
            |key: &str| parameters.get(key).filter(|_| encoding.allows_passthrough).and_then(Value::as_i64);
        let (level_key, min_level, max_level, default_level) = match encoding.compression {
            BlockEncoding::Raw | BlockEncoding::Gzip => ("level", 0, 9, 6),
            BlockEncoding::Zstd => ("level", MIN_ZSTD_LEVEL, 22, 3),
            BlockEncoding::Blosc => ("clevel", 0, 9, 5),
        };
        let cname = parameters.get("cname").and_then(Value::as_str);
        let cname = BLOSC_NAMES.into_iter().find(|name| Some(*name) == cname).unwrap_or("lz4");
        let shuffle = match stored_parameter("shuffle") {
            Some(0) => 0,
            Some(2) => 2,
            // With automatic shuffle (-1), blosc shuffles the bits of elements of one byte and the bytes of wider ones.
            Some(-1) if encoding.width == 1 => 2,
            _ => 1,
        };
        let is_fast_zstd = |level: i64| encoding.compression == BlockEncoding::Zstd && level < 0;
        let level = stored_parameter(level_key).map(|level| if is_fast_zstd(level) { MIN_ZSTD_LEVEL } else { level });
        let level = level.filter(|level| (min_level..=max_level).contains(level));
        let reordered = |list: Vec<u64>| order.map_or(list.clone(), |order| order.apply(&list));
        Some(Self {
            shape: reordered(dataset.dimensions().iter().rev().copied().collect()),
            chunks: reordered(chunk_shape(dataset).iter().rev().copied().collect()),
            data_type: dataset.data_type().clone(),
            encoding,
            order,
            level: level.unwrap_or(default_level),
            cname,
            shuffle,
        })
    }

    /// Returns 0, the value of all elements of a missing chunk.
    pub(super) fn fill_value(&self) -> Value {
        let is_float = matches!(self.data_type, DataType::Float32 | DataType::Float64);
        if is_float { json!(0.0) } else { json!(0) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::dataset;
    use super::*;

    #[test]
    fn datasets_in_zarr_encodings_keep_encoding_and_byte_order() {
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
            let encoding = ZarrEncoding::of(&dataset(&[4], &[4], data_type, &compression)).unwrap();
            assert_eq!(
                (encoding.compression.name(), encoding.is_big_endian, encoding.allows_passthrough),
                expected,
                "{compression}"
            );
        }
        assert_eq!(ZarrEncoding::of(&dataset(&[4], &[4], "string", &json!({"type": "raw"}))), None);
        assert_eq!(ZarrEncoding::of(&dataset(&[4], &[4], "uint8", &json!({"type": "jpeg"}))), None);
    }

    #[test]
    fn invalid_parameters_get_default_values() {
        let parameters_of = |compression: Value, data_type| {
            let dataset = dataset(&[4], &[4], data_type, &compression);
            let layout = ZarrLayout::of(&dataset, None).unwrap();
            (layout.level, layout.cname, layout.shuffle)
        };
        assert_eq!(parameters_of(json!({"type": "gzip", "level": -1}), "uint8").0, 6);
        assert_eq!(parameters_of(json!({"type": "gzip", "level": "4"}), "uint8").0, 6);
        assert_eq!(parameters_of(json!({"type": "gzip", "level": 9}), "uint8").0, 9);
        assert_eq!(parameters_of(json!({"type": "zstd", "level": -5}), "uint8").0, 1);
        assert_eq!(parameters_of(json!({"type": "zstd", "level": 0}), "uint8").0, 3);
        assert_eq!(parameters_of(json!({"type": "xz", "preset": 9, "level": 1}), "uint8").0, 6);
        let blosc = json!({"type": "blosc", "cname": "zlib", "clevel": 9, "shuffle": 2});
        assert_eq!(parameters_of(blosc, "uint16"), (9, "zlib", 2));
        assert_eq!(
            parameters_of(json!({"type": "blosc", "cname": "x", "clevel": 99, "shuffle": -1}), "uint16"),
            (5, "lz4", 1)
        );
        assert_eq!(parameters_of(json!({"type": "blosc", "shuffle": -1}), "uint8").2, 2);
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
    fn elements_are_byte_swapped_if_the_encoding_is_big_endian() {
        let data = Bytes::from_static(&[1, 0, 2, 0]);
        let array = || Array { shape: [2].as_slice().into(), data_type: DataType::UInt16, data: data.clone() };
        let encode = |compression: Value| {
            let dataset = dataset(&[2], &[2], "uint16", &compression);
            let encoding = ZarrEncoding::of(&dataset).unwrap();
            assert!(encoding.encoder_bytes(&[2].as_slice().into(), 2) >= 8);
            encoding.encode(array()).unwrap()
        };
        assert_eq!(encode(json!({"type": "raw"})).as_ref(), [0, 1, 0, 2]);
        assert!(encode(json!({"type": "xz"})).starts_with(&[0x1f, 0x8b]));
    }
}
