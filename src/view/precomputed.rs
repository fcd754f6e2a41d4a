//! The view `precomputed`: datasets and pyramids as Neuroglancer precomputed volumes.
//!
//! `{path}/info` describes a volume. Its chunks are `{path}/{level}/{form}/{box}`. `level` is empty for a dataset, and
//! `form` gives the encoding of the chunks and the origin of the volume. Because the path contains these choices, a
//! chunk depends only on its own dataset, and clients need not repeat the query of `info`.
//!
//! The axes are x, y, z and channels, which are N5's first to fourth. Axes that a dataset lacks have one element.
//!
//! Source: Neuroglancer `src/datasource/precomputed/volume.rst` and `json_schema/volume.yml`.

mod compressed_segmentation;
mod image;
mod scale;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use self::scale::{DEFAULT_QUALITY, Extent, PrecomputedEncoding, ScaleKey, parse_box};
use super::View;
use super::chunk::Chunk;
use super::chunk_encoder::ChunkEncoder;
use super::lookup::{ResolvedKey, ViewLookup};
use super::node::read_node;
use crate::cache::{GroupState, MemoryPermit, ReadError};
use crate::store::Key;
use n5_format::{DataType, DescribedDataset, GridPosition};
use n5_metadata::{AxisKind, CoordinateSpace, Description, Node, VolumeKind};

const INFO: &str = "info";

/// The view `precomputed`.
#[derive(Debug)]
pub(super) struct Precomputed;

#[async_trait]
impl View for Precomputed {
    fn name(&self) -> &'static str {
        "precomputed"
    }

    fn check_query(&self, query: &[(String, String)]) -> Result<(), ReadError> {
        for (name, value) in query {
            match name.as_str() {
                "type" => drop(parse_volume_kind(value)?),
                "encoding" => drop(PrecomputedEncoding::from_name(value, DEFAULT_QUALITY)?),
                "quality" => drop(scale::quality_parameter(value)?),
                _ => {}
            }
        }
        Ok(())
    }

    fn link_prefix(&self, node: &Node, _description: &Description) -> Option<&'static str> {
        scales(node).is_ok().then(|| self.name())
    }

    async fn resolve(&self, lookup: &ViewLookup<'_>) -> Result<ResolvedKey, ReadError> {
        let (Some(name), Some(directory)) = (lookup.key.name(), lookup.key.parent()) else {
            return Err(ReadError::NotFound(lookup.key.clone()));
        };
        if name == INFO {
            let (info, memory) = read_info(lookup, &directory).await?;
            return Ok(ResolvedKey::Document { text: info.to_string(), memory });
        }
        Ok(resolve_chunk(lookup, &directory, name).await?.map_or(ResolvedKey::Missing, ResolvedKey::Chunk))
    }

    async fn list_documents(&self, lookup: &ViewLookup<'_>) -> Result<Vec<String>, ReadError> {
        match read_info(lookup, lookup.key).await {
            Ok(_) => Ok(vec![INFO.to_owned()]),
            Err(ReadError::NotADataset { .. } | ReadError::NotFound(_) | ReadError::InvalidParameter { .. }) => {
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the chunk with the bounds in `name`, in the directory of a scale. Returns `None` if there is no such chunk.
async fn resolve_chunk(lookup: &ViewLookup<'_>, directory: &Key, name: &str) -> Result<Option<Chunk>, ReadError> {
    let Some(bounds) = parse_box(name) else { return Ok(None) };
    let Some(scale_key) = directory.name().and_then(ScaleKey::parse) else { return Ok(None) };
    let Some(key) = directory.parent() else { return Ok(None) };
    let group = lookup.container.group(lookup.options, &key).await?;
    let GroupState::Dataset(dataset) = &group.state else { return Ok(None) };
    let attributes = &dataset.attributes;
    let Ok(extent) = Extent::of(attributes) else { return Ok(None) };
    if scale_key.encoding.check(&extent, attributes.data_type()).is_err() {
        return Ok(None);
    }
    let Some(first_voxel) = extent.chunk_at(bounds, scale_key.offset) else { return Ok(None) };
    let rank = attributes.rank();
    let position = first_voxel.iter().zip(extent.chunk).map(|(voxel, size)| voxel.checked_div(size).unwrap_or(0));
    let position: GridPosition = position.chain(std::iter::repeat(0)).take(rank).collect();
    let mut shape = attributes.grid().clipped_size(&position);
    let encoder: Arc<dyn ChunkEncoder> = Arc::new(scale_key.encoding);
    let splits_channels = attributes.block_size().get(3).is_some_and(|size| *size < extent.channels);
    if !splits_channels {
        return Chunk::of_block(Arc::clone(dataset), position, &shape, encoder).map(Some);
    }
    let start: Vec<u64> = first_voxel.into_iter().chain(std::iter::repeat(0)).take(rank).collect();
    if let Some(channels) = shape.get_mut(3) {
        *channels = extent.channels;
    }
    Chunk::of_region(Arc::clone(dataset), &start, &shape, encoder).map(Some)
}

/// One scale of a volume.
struct PrecomputedScale {
    /// Path of the dataset relative to the volume. Empty for a single dataset.
    path: String,
    dataset: DescribedDataset,
    extent: Extent,
    space: CoordinateSpace,
}

impl PrecomputedScale {
    /// Creates the scale of the dataset at `path`.
    ///
    /// # Errors
    /// Returns a message for the client if the dataset cannot be a scale.
    fn new(path: &str, dataset: DescribedDataset, space: CoordinateSpace) -> Result<Self, String> {
        let extent = Extent::of(&dataset)?;
        if dataset.compression().codec().is_none() {
            return Err(format!("the compression {} is not supported", dataset.compression().name()));
        }
        if let Some(axis) = space.axes.iter().take(3).find(|axis| axis.has_given_name && axis.kind == AxisKind::Time) {
            return Err(format!(
                "the first three axes of a precomputed volume are lengths, but {:?} is time; /n5, /zarr2 and /zarr3 support it",
                axis.name
            ));
        }
        let fourth = space.axes.get(3).filter(|axis| axis.has_given_name && extent.channels > 1);
        if let Some(axis) = fourth.filter(|axis| matches!(axis.kind, AxisKind::Space | AxisKind::Time)) {
            return Err(format!(
                "the fourth axis of a precomputed volume holds channels, but that of this dataset is {:?}; /n5, /zarr2 and \
                 /zarr3 keep every axis",
                axis.name
            ));
        }
        Ok(Self { path: path.to_owned(), dataset, extent, space })
    }

    /// Returns true if both scales can belong to one volume.
    fn matches(&self, other: &Self) -> bool {
        self.dataset.data_type() == other.dataset.data_type() && self.extent.channels == other.extent.channels
    }
}

/// Returns the `info` document of the dataset or pyramid at `key`, with its memory permit.
async fn read_info(lookup: &ViewLookup<'_>, key: &Key) -> Result<(Value, Option<MemoryPermit>), ReadError> {
    // Fails if the attributes cannot be read, because the directory may still be a dataset.
    lookup.container.group(lookup.options, key).await?;
    let loaded = read_node(lookup.container, lookup.options, key).await?;
    let not_a_dataset = |reason| ReadError::NotADataset { key: key.clone(), reason };
    let levels = scales(&loaded.node).map_err(not_a_dataset)?;
    let (kind, encoding) = choose_kind_and_encoding(lookup, key, &loaded.node, &levels)?;
    Ok((info_json(&levels, kind, encoding), loaded.memory))
}

/// Returns the scales, the finest first. There is at least one, and all have the same data type and number of channels.
fn scales(node: &Node) -> Result<Vec<PrecomputedScale>, String> {
    if let Some(Ok(document)) = node.document.as_ref().filter(|_| node.is_dataset()) {
        let dataset = DescribedDataset::parse(document.clone()).map_err(|error| error.to_string())?;
        let space = CoordinateSpace::of_node(&dataset, node);
        return Ok(vec![PrecomputedScale::new("", dataset, space)?]);
    }
    let pyramid = n5_metadata::pyramid(node, &mut Vec::new()).ok_or("it is neither a dataset nor a pyramid")?;
    let mut scales: Vec<PrecomputedScale> = Vec::new();
    for (number, level) in pyramid.levels.iter().enumerate() {
        let document = node.child_documents.get(&level.path).cloned().unwrap_or_default();
        let space = CoordinateSpace::of_level(&pyramid, number);
        let scale = DescribedDataset::parse(document)
            .map_err(|error| error.to_string())
            .and_then(|dataset| PrecomputedScale::new(&level.path, dataset, space));
        // A coarser level that cannot be a scale, or that does not match the finest one, is left out. The other levels
        // form a volume.
        match scales.first() {
            None => scales.push(scale?),
            Some(finest) => scales.extend(scale.ok().filter(|scale| scale.matches(finest))),
        }
    }
    if scales.is_empty() { Err("its pyramid has no level".to_owned()) } else { Ok(scales) }
}

/// Parses the value of the query parameter `type`.
fn parse_volume_kind(name: &str) -> Result<VolumeKind, ReadError> {
    match name {
        "image" => Ok(VolumeKind::Image),
        "segmentation" => Ok(VolumeKind::Segmentation),
        _ => Err(scale::unknown_value("type", name, vec!["image", "segmentation"])),
    }
}

/// Chooses the kind of the volume and the encoding of its chunks. Query parameters take precedence.
fn choose_kind_and_encoding(
    lookup: &ViewLookup<'_>,
    key: &Key,
    node: &Node,
    levels: &[PrecomputedScale],
) -> Result<(VolumeKind, PrecomputedEncoding), ReadError> {
    let not_a_dataset = |reason: &str| ReadError::NotADataset { key: key.clone(), reason: reason.to_owned() };
    let finest = levels.first().ok_or_else(|| not_a_dataset("there is no level"))?;
    let data_type = finest.dataset.data_type();
    let kind = match lookup.query_value("type") {
        Some(name) => requested_kind(name, finest)?,
        None if finest.extent.channels > 1 => VolumeKind::Image,
        None => n5_metadata::volume_kind(node, key.as_str()).unwrap_or(VolumeKind::Image),
    };
    let quality = lookup.query_value("quality").map_or(Ok(DEFAULT_QUALITY), scale::quality_parameter)?;
    let encoding = match lookup.query_value("encoding") {
        Some(name) => PrecomputedEncoding::from_name(name, quality)?,
        None if kind == VolumeKind::Segmentation && allows_compressed_segmentation(levels, data_type) => {
            PrecomputedEncoding::CompressedSegmentation
        }
        None => PrecomputedEncoding::Raw,
    };
    for level in levels {
        encoding.check(&level.extent, data_type).map_err(|detail| match lookup.query_value("encoding") {
            Some(_) => invalid_parameter("encoding", detail),
            None => not_a_dataset(&detail),
        })?;
    }
    Ok((kind, encoding))
}

/// Returns the kind that the query parameter `type` requests, if a volume with this finest scale can have it.
fn requested_kind(name: &str, finest: &PrecomputedScale) -> Result<VolumeKind, ReadError> {
    let kind = parse_volume_kind(name)?;
    let channels = finest.extent.channels;
    if kind == VolumeKind::Segmentation && channels > 1 {
        let detail = format!("type=segmentation requires a volume with one channel, but this one has {channels}");
        return Err(invalid_parameter("type", detail));
    }
    if kind == VolumeKind::Segmentation && *finest.dataset.data_type() == DataType::Float32 {
        let detail = "type=segmentation requires integers, but the data type is float32".to_owned();
        return Err(invalid_parameter("type", detail));
    }
    Ok(kind)
}

fn invalid_parameter(parameter: &'static str, detail: String) -> ReadError {
    ReadError::InvalidParameter { parameter, detail, known: Vec::new() }
}

/// Returns true if every chunk of the volume can be encoded as `compressed_segmentation`, regardless of its values.
///
/// In this encoding, offsets of tables have 24 bits, and a box of 512 voxels takes at most 1282 words. This limits the
/// number of voxels in a chunk.
fn allows_compressed_segmentation(levels: &[PrecomputedScale], data_type: &DataType) -> bool {
    let voxels = |level: &PrecomputedScale| level.extent.chunk.iter().copied().fold(1, u64::saturating_mul);
    matches!(data_type, DataType::UInt32 | DataType::UInt64) && levels.iter().all(|level| voxels(level) < 6_000_000)
}

fn info_json(levels: &[PrecomputedScale], kind: VolumeKind, encoding: PrecomputedEncoding) -> Value {
    let base = levels.first();
    let scales: Vec<Value> = levels
        .iter()
        .map(|level| {
            let finest = base.map_or(&level.space, |base| &base.space);
            let scale_key = ScaleKey { encoding, offset: voxel_offset(&level.space, finest) };
            let separator = if level.path.is_empty() { "" } else { "/" };
            let mut scale = json!({
                "key": format!("{}{separator}{scale_key}", level.path),
                "size": level.extent.size,
                "voxel_offset": scale_key.offset,
                "chunk_sizes": [level.extent.chunk],
                "resolution": resolution(&level.space),
                "encoding": encoding.name(),
            });
            match encoding {
                PrecomputedEncoding::CompressedSegmentation => {
                    scale["compressed_segmentation_block_size"] = json!(compressed_segmentation::BLOCK_SHAPE);
                }
                PrecomputedEncoding::Jpeg { quality } => scale["jpeg_quality"] = json!(quality),
                PrecomputedEncoding::Raw | PrecomputedEncoding::Png => {}
            }
            scale
        })
        .collect();
    json!({
        "@type": "neuroglancer_multiscale_volume",
        "type": kind,
        "data_type": base.map(|base| base.dataset.data_type().name()),
        "num_channels": base.map(|base| base.extent.channels),
        "scales": scales,
    })
}

/// Returns the size of a voxel in nanometres. Sizes without a unit of length are taken as nanometres.
fn resolution(space: &CoordinateSpace) -> [f64; 3] {
    [0, 1, 2].map(|axis| {
        let (Some(scale), Some(described)) = (space.scale.get(axis), space.axes.get(axis)) else { return 1.0 };
        let nanometers = scale * described.unit.and_then(|unit| unit.nanometers()).unwrap_or(1.0);
        // Rounds off the error that the conversion of units adds to the last digits.
        format!("{nanometers:.12e}").parse().ok().filter(|size: &f64| size.is_normal()).unwrap_or(1.0)
    })
}

/// Returns the offset of a level in its own voxels, rounded to the nearest voxel.
///
/// N5's conventions give the centre of the first voxel, whereas this format gives its corner. A finest level whose
/// first centre is at 0 has the offset 0. The origin of the volume is therefore N5's origin minus half a voxel of the
/// finest level.
fn voxel_offset(space: &CoordinateSpace, finest: &CoordinateSpace) -> [i64; 3] {
    [0, 1, 2].map(|axis| {
        let component = |list: &[f64]| list.get(axis).copied();
        let (Some(centre), Some(size), Some(finest_size)) =
            (component(&space.translation), component(&space.scale), component(&finest.scale))
        else {
            return 0;
        };
        let voxels = ((centre - size / 2.0 + finest_size / 2.0) / size).round();
        #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and below 2^53")]
        if voxels.abs() < 9_007_199_254_740_992.0 { voxels as i64 } else { 0 }
    })
}
