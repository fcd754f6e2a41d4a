//! Volumes: a dataset, or a multiscale group with the datasets of its levels, as pictures are made of it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::node::{LoadedNode, read_node};
use crate::cache::{Dataset, GroupState, ReadError, ReadOptions};
use crate::container::Container;
use crate::store::Key;
use n5_format::DescribedDataset;
use n5_metadata::{AxisKind, ChannelDisplay, CoordinateSpace, Node, Pyramid, VolumeKind};

/// Maximum number of directories that are searched for a volume.
pub const MAX_SEARCHED: usize = 64;

/// Maximum number of subdirectories of one directory that are searched.
const MAX_CHILDREN: usize = 32;

/// A dataset or a pyramid.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Levels that can be decoded, finest first; a single one for a dataset. Never empty.
    pub levels: Vec<VolumeLevel>,
    /// Meaning of the elements; `None` for a type that is not decoded.
    pub kind: Option<VolumeKind>,
    /// Display of the channels according to the metadata; empty if it says nothing.
    pub channels: Vec<ChannelDisplay>,
    /// True if this is a multiscale group.
    pub is_pyramid: bool,
}

/// A level of a [`Volume`].
#[derive(Debug, Clone)]
pub struct VolumeLevel {
    /// Path of the dataset relative to the group; empty for a dataset that is no level.
    pub path: String,
    /// The dataset.
    pub dataset: Arc<Dataset>,
    /// Number of voxels of the finest level along one voxel of this level, for every axis.
    pub factors: Vec<f64>,
    /// Axes, voxel size and position.
    pub space: CoordinateSpace,
}

impl Volume {
    /// Returns the channel axis: the one that the metadata names as such.
    pub fn channel_axis(&self) -> Option<usize> {
        channel_axis(&self.levels.first()?.space)
    }
}

/// Returns the axis that the metadata names as the channels' axis.
pub(crate) fn channel_axis(space: &CoordinateSpace) -> Option<usize> {
    space.axes.iter().position(|axis| axis.has_given_name && axis.kind == AxisKind::Channel)
}

/// Returns the volume at `key`; `None` if there is a group that is not multiscale, or a dataset whose attributes cannot
/// be used. `path` is the path of `key` from the root of the server, whose names suggest the kind of the volume.
///
/// # Errors
/// Returns [`ReadError::NotFound`] if there is no such directory, and other errors if the store fails or there is not
/// enough memory.
pub async fn read_volume(
    container: &Container,
    options: ReadOptions,
    key: &Key,
    path: &str,
) -> Result<Option<Volume>, ReadError> {
    // The description is dropped before datasets are read, so that the request does not wait while it holds memory.
    let LoadedNode { node, memory, .. } = read_node(container, options, key).await?;
    let kind = n5_metadata::volume_kind(&node, path);
    let channels = n5_metadata::channel_displays(&node);
    if node.is_dataset() {
        let space = dataset_space(&node);
        drop((node, memory));
        let Some(space) = space else { return Ok(None) };
        let dataset = container.dataset(options, key).await?;
        let factors = vec![1.0; space.scale.len()];
        let level = VolumeLevel { path: String::new(), dataset, factors, space };
        return Ok(Some(Volume { levels: vec![level], kind, channels, is_pyramid: false }));
    }
    let pyramid = n5_metadata::pyramid(&node, &mut Vec::new());
    drop((node, memory));
    let Some(pyramid) = pyramid else { return Ok(None) };
    let levels = read_levels(container, options, key, &pyramid).await?;
    Ok((!levels.is_empty()).then_some(Volume { levels, kind, channels, is_pyramid: true }))
}

/// Returns the levels of a pyramid that exist and can be decoded.
async fn read_levels(
    container: &Container,
    options: ReadOptions,
    key: &Key,
    pyramid: &Pyramid,
) -> Result<Vec<VolumeLevel>, ReadError> {
    let mut levels = Vec::new();
    for (number, level) in pyramid.levels.iter().enumerate() {
        let Ok(level_key) = Key::from_segments(key.segments().chain(level.path.split('/'))) else { continue };
        match container.dataset(options, &level_key).await {
            Ok(dataset) if dataset.attributes.is_decodable() => levels.push(VolumeLevel {
                path: level.path.clone(),
                dataset,
                factors: level.factors.clone(),
                space: CoordinateSpace::of_level(pyramid, number),
            }),
            // A level that is missing or cannot be decoded does not exclude the others.
            Ok(_) | Err(ReadError::NotFound(_) | ReadError::NotADataset { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(levels)
}

/// Returns the coordinate space of a dataset according to its own attributes and those around it.
fn dataset_space(node: &Node) -> Option<CoordinateSpace> {
    let Some(Ok(document)) = &node.document else { return None };
    let dataset = DescribedDataset::parse(document.clone()).ok()?;
    Some(CoordinateSpace::of_node(&dataset, node))
}

/// Returns the key and the volume at `key`, or of the first volume below it; `None` if there is none among the first
/// [`MAX_SEARCHED`] directories. Directories are searched level by level, in the order of their names. An image is
/// preferred to a segmentation that comes first.
///
/// # Errors
/// Returns the same errors as [`read_volume`].
pub async fn find_volume(
    container: &Container,
    options: ReadOptions,
    key: &Key,
    path: &str,
) -> Result<Option<(Key, Volume)>, ReadError> {
    let mut queue = VecDeque::from([key.clone()]);
    let mut segmentation = None;
    let mut searched = 0usize;
    while let Some(next) = queue.pop_front() {
        searched += 1;
        let relative = next.as_str().strip_prefix(key.as_str()).unwrap_or_default();
        let volume_path = format!("{path}{}{relative}", if key.is_root() && !relative.is_empty() { "/" } else { "" });
        let volume = match read_volume(container, options, &next, &volume_path).await {
            Ok(volume) => volume,
            // Only the directory that was asked for must be readable.
            Err(error) if next == *key => return Err(error),
            Err(ReadError::NotFound(_) | ReadError::NotADataset { .. } | ReadError::AttributesTooLarge { .. }) => None,
            Err(error) => ReadError::hidden_as_none(Err(error))?,
        };
        let is_decodable = |volume: &Volume| {
            volume.levels.first().is_some_and(|level| {
                let attributes = &level.dataset.attributes;
                attributes.is_decodable() && !attributes.dimensions().contains(&0)
            })
        };
        match volume {
            Some(volume) if next == *key => return Ok(Some((next, volume))),
            Some(volume) if is_decodable(&volume) => match volume.kind {
                Some(VolumeKind::Image) => return Ok(Some((next, volume))),
                _ => segmentation = segmentation.or(Some((next, volume))),
            },
            Some(_) => {}
            None => {
                let is_dataset =
                    |state: &GroupState| matches!(state, GroupState::Dataset(_) | GroupState::Unusable(..));
                let group = container.group_if_readable(options, &next).await?;
                let room = MAX_SEARCHED.saturating_sub(searched + queue.len()).min(MAX_CHILDREN);
                if room > 0 && !group.is_some_and(|group| is_dataset(&group.state)) {
                    let children = container.subdirectories(&next, None, room, true).await;
                    let children = if next == *key { children? } else { ReadError::hidden_as_none(children)? };
                    let children = children.unwrap_or_default();
                    // A Zarr store is not a part of the N5 hierarchy.
                    let names = if children.zarr.is_some() { Vec::new() } else { children.names };
                    queue.extend(names.iter().filter_map(|name| next.child(name).ok()));
                }
            }
        }
    }
    Ok(segmentation)
}
