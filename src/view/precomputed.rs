//! The view `precomputed`: datasets and pyramids as Neuroglancer precomputed volumes.
//!
//! `{path}/info` describes one. Its chunks are `{path}/{level}/{form}/{box}`: `level` is empty for a dataset, and
//! `form` says how chunks are encoded and where the volume begins. So a chunk needs nothing but its own dataset, and
//! what was chosen for `info` holds for its chunks, whether or not the client repeats the query.
//!
//! The axes are x, y, z and channels, N5's first to fourth; axes that a dataset lacks have one element.
//!
//! Source: Neuroglancer `src/datasource/precomputed/volume.rst` and `json_schema/volume.yml`.

mod compressed_segmentation;
mod image;
mod scale;

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use self::scale::{DEFAULT_QUALITY, Encoding, Extent, ScaleForm, parse_box};
use super::{Chunk, Document, Found, Lookup, View, read_node};
use crate::container::{GroupState, Memory, ReadError};
use crate::metadata::{self, AxisKind, Description, Node, Space, Volume};
use crate::n5::{self, DataType, DescribedDataset, GridPosition};
use crate::store::Key;

const INFO: &str = "info";

/// Neuroglancer precomputed volumes.
#[derive(Debug)]
pub(super) struct Precomputed;

#[async_trait]
impl View for Precomputed {
    fn name(&self) -> &'static str {
        "precomputed"
    }

    fn check(&self, query: &[(String, String)]) -> Result<(), ReadError> {
        for (name, value) in query {
            match name.as_str() {
                "type" => drop(volume(value)?),
                "encoding" => drop(Encoding::named(value, DEFAULT_QUALITY)?),
                "quality" => drop(scale::quality(value)?),
                _ => {}
            }
        }
        Ok(())
    }

    fn link(&self, node: &Node, _description: &Description) -> Option<&'static str> {
        levels(node).is_ok().then(|| self.name())
    }

    async fn resolve(&self, lookup: &Lookup<'_>) -> Result<Found, ReadError> {
        let (Some(name), Some(directory)) = (lookup.key.name(), lookup.key.parent()) else {
            return Err(ReadError::NotFound(lookup.key.clone()));
        };
        if name == INFO {
            let (info, memory) = info(lookup, &directory).await?;
            return Ok(Found::Document(Document { text: info.to_string(), memory }));
        }
        let Some(bounds) = parse_box(name) else { return Ok(Found::Missing) };
        let form = directory.name().and_then(ScaleForm::parse);
        let (Some(form), Some(key)) = (form, directory.parent()) else { return Ok(Found::Missing) };
        let group = lookup.container.group(lookup.access, &key).await?;
        let GroupState::Dataset(dataset) = &group.state else { return Ok(Found::Missing) };
        let attributes = &dataset.attributes;
        let Ok(extent) = Extent::of(attributes) else { return Ok(Found::Missing) };
        if form.encoding.check(&extent, attributes.data_type()).is_err() {
            return Ok(Found::Missing);
        }
        let Some(first) = extent.chunk_at(bounds, form.offset) else { return Ok(Found::Missing) };
        let rank = attributes.rank();
        let position = first.iter().zip(extent.chunk).map(|(first, size)| first.checked_div(size).unwrap_or(0));
        let position: GridPosition = position.chain(std::iter::repeat(0)).take(rank).collect();
        let shape = attributes.grid().clipped_size(&position);
        let channels_apart = attributes.block_size().get(3).is_some_and(|size| *size < extent.channels);
        let form: Arc<dyn super::Form> = Arc::new(form.encoding);
        Ok(Found::Chunk(if channels_apart {
            let start: Vec<u64> = first.into_iter().chain(std::iter::repeat(0)).take(rank).collect();
            let shape: Vec<u64> =
                shape.iter().enumerate().map(|(axis, size)| if axis == 3 { extent.channels } else { *size }).collect();
            Chunk::of_region(Arc::clone(dataset), &start, &shape, form)?
        } else {
            Chunk::of_block(Arc::clone(dataset), position, &shape, form)?
        }))
    }

    async fn documents(&self, lookup: &Lookup<'_>) -> Result<Vec<String>, ReadError> {
        match info(lookup, lookup.key).await {
            Ok(_) => Ok(vec![INFO.to_owned()]),
            Err(ReadError::NotADataset { .. } | ReadError::NotFound(_) | ReadError::Parameter { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// One scale of a volume.
struct Level {
    /// Path of the dataset relative to the volume; empty for a dataset by itself.
    path: String,
    dataset: DescribedDataset,
    extent: Extent,
    space: Space,
}

/// The document that describes the dataset or pyramid at `key`.
async fn info(lookup: &Lookup<'_>, key: &Key) -> Result<(Value, Option<Memory>), ReadError> {
    // Attributes that cannot be read do not say that this is no dataset.
    lookup.container.group(lookup.access, key).await?;
    let known = read_node(lookup.container, lookup.access, key).await?;
    let refused = |reason| ReadError::NotADataset { key: key.clone(), reason };
    let levels = levels(&known.node).map_err(refused)?;
    let (kind, encoding) = chosen(lookup, key, &known.node, &levels)?;
    Ok((describe(&levels, kind, encoding), known.memory))
}

/// The scales, the finest first, at least one; all have the same data type and number of channels.
fn levels(node: &Node) -> Result<Vec<Level>, String> {
    let level = |path: &str, dataset: DescribedDataset, space: Space| {
        let extent = Extent::of(&dataset)?;
        if dataset.compression().codec().is_none() {
            return Err(format!("the compression {} is not decoded", dataset.compression().name()));
        }
        if let Some(axis) = space.axes.iter().take(3).find(|axis| axis.named && axis.kind == AxisKind::Time) {
            return Err(format!(
                "the first three axes of a precomputed volume are lengths, {:?} is time; /n5, /zarr2 and /zarr3 keep it",
                axis.name
            ));
        }
        let fourth = space.axes.get(3).filter(|axis| axis.named && extent.channels > 1);
        if let Some(axis) = fourth.filter(|axis| matches!(axis.kind, AxisKind::Space | AxisKind::Time)) {
            return Err(format!(
                "the fourth axis of a precomputed volume holds channels, that of this dataset is {:?}; /n5, /zarr2 and \
                 /zarr3 keep every axis",
                axis.name
            ));
        }
        Ok(Level { path: path.to_owned(), dataset, extent, space })
    };
    if let Some(Ok(document)) =
        node.document.as_ref().filter(|own| own.as_ref().is_ok_and(n5::Document::describes_dataset))
    {
        let dataset = DescribedDataset::parse(document.clone()).map_err(|error| error.to_string())?;
        let space = Space::of_dataset(&dataset, &node.ancestors);
        return Ok(vec![level("", dataset, space)?]);
    }
    let pyramid = metadata::pyramid(node, &mut Vec::new()).ok_or("it is neither a dataset nor a pyramid")?;
    let mut levels: Vec<Level> = Vec::new();
    for (number, described) in pyramid.levels.iter().enumerate() {
        let document = node.child_documents.get(&described.path).cloned().unwrap_or_default();
        let found = DescribedDataset::parse(document).map_err(|error| error.to_string());
        let found = found.and_then(|dataset| level(&described.path, dataset, Space::of_level(&pyramid, number)));
        match (found, levels.first()) {
            (Ok(found), None) => levels.push(found),
            (Err(reason), None) => return Err(reason),
            (Ok(found), Some(first))
                if found.dataset.data_type() == first.dataset.data_type()
                    && found.extent.channels == first.extent.channels =>
            {
                levels.push(found);
            }
            // The others are a volume without it.
            _ => {}
        }
    }
    if levels.is_empty() { Err("its pyramid has no level".to_owned()) } else { Ok(levels) }
}

/// The volume that `type=` names.
fn volume(name: &str) -> Result<Volume, ReadError> {
    match name {
        "image" => Ok(Volume::Image),
        "segmentation" => Ok(Volume::Segmentation),
        _ => Err(scale::unknown("type", name, vec!["image", "segmentation"])),
    }
}

/// What the volume is taken for and how its chunks are encoded, by the query where that says so.
fn chosen(lookup: &Lookup<'_>, key: &Key, node: &Node, levels: &[Level]) -> Result<(Volume, Encoding), ReadError> {
    let refused = |reason: &str| ReadError::NotADataset { key: key.clone(), reason: reason.to_owned() };
    let unfit = |parameter, detail| ReadError::Parameter { parameter, detail, known: Vec::new() };
    let first = levels.first().ok_or_else(|| refused("there is no level"))?;
    let (data_type, channels) = (first.dataset.data_type(), first.extent.channels);
    let kind = match lookup.parameter("type").map(volume).transpose()? {
        None if channels > 1 => Volume::Image,
        None => metadata::volume(node, key.as_str()).unwrap_or(Volume::Image),
        Some(Volume::Segmentation) if channels > 1 => {
            let detail = format!("type=segmentation is for volumes of one channel, this one has {channels}");
            return Err(unfit("type", detail));
        }
        Some(Volume::Segmentation) if *data_type == DataType::Float32 => {
            return Err(unfit("type", "type=segmentation is for integers, the data type is float32".to_owned()));
        }
        Some(kind) => kind,
    };
    // Its tables are addressed with 24 bits; a box of 512 voxels takes at most 1282 words.
    let voxels =
        levels.iter().map(|level| level.extent.chunk.iter().fold(1u64, |n, size| n.saturating_mul(*size))).max();
    let compressible = matches!(data_type, DataType::UInt32 | DataType::UInt64) && voxels < Some(6_000_000);
    let quality = lookup.parameter("quality").map_or(Ok(DEFAULT_QUALITY), scale::quality)?;
    let encoding = match lookup.parameter("encoding") {
        None if kind == Volume::Segmentation && compressible => Encoding::CompressedSegmentation,
        None => Encoding::Raw,
        Some(name) => Encoding::named(name, quality)?,
    };
    for level in levels {
        encoding.check(&level.extent, data_type).map_err(|detail| match lookup.parameter("encoding") {
            Some(_) => unfit("encoding", detail),
            None => refused(&detail),
        })?;
    }
    Ok((kind, encoding))
}

fn describe(levels: &[Level], kind: Volume, encoding: Encoding) -> Value {
    let base = levels.first();
    let scales: Vec<Value> = levels
        .iter()
        .map(|level| {
            let finest = base.map_or(&level.space, |base| &base.space);
            let form = ScaleForm { encoding, offset: offset(&level.space, finest) };
            let separator = if level.path.is_empty() { "" } else { "/" };
            let mut scale = json!({
                "key": format!("{}{separator}{form}", level.path),
                "size": level.extent.size,
                "voxel_offset": form.offset,
                "chunk_sizes": [level.extent.chunk],
                "resolution": resolution(&level.space),
                "encoding": encoding.name(),
            });
            match encoding {
                Encoding::CompressedSegmentation => {
                    scale["compressed_segmentation_block_size"] = json!(compressed_segmentation::BLOCK);
                }
                Encoding::Jpeg { quality } => scale["jpeg_quality"] = json!(quality),
                Encoding::Raw | Encoding::Png => {}
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

/// Size of a voxel in nanometres. Sizes without a unit of length are taken for nanometres.
fn resolution(space: &Space) -> [f64; 3] {
    [0, 1, 2].map(|axis| {
        let (Some(scale), Some(described)) = (space.scale.get(axis), space.axes.get(axis)) else { return 1.0 };
        let nanometers = scale * described.unit.and_then(|unit| unit.nanometers()).unwrap_or(1.0);
        // Without what a change of units adds at the end of the digits.
        format!("{nanometers:.12e}").parse().ok().filter(|size: &f64| size.is_normal()).unwrap_or(1.0)
    })
}

/// Where a level begins, in its own voxels, to the nearest.
///
/// N5's conventions give the centre of the first voxel, this format the corner. A finest level at 0 begins at 0,
/// which makes the corner at 0 half a voxel of it before the centre at 0.
fn offset(space: &Space, finest: &Space) -> [i64; 3] {
    [0, 1, 2].map(|axis| {
        let of = |list: &[f64]| list.get(axis).copied();
        let (Some(centre), Some(size), Some(fine)) = (of(&space.translation), of(&space.scale), of(&finest.scale))
        else {
            return 0;
        };
        let voxels = ((centre - size / 2.0 + fine / 2.0) / size).round();
        #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and below 2^53")]
        if voxels.abs() < 9_007_199_254_740_992.0 { voxels as i64 } else { 0 }
    })
}
