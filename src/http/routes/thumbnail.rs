//! `GET /thumbnail/{path}`: a small picture of a dataset, of a multiscale group, or of the first volume below a group.

use std::sync::Arc;

use axum::http::header::{ACCEPT, CONTENT_DISPOSITION, IF_NONE_MATCH};
use xxhash_rust::xxh3::xxh3_128;

use crate::cache::{Dataset, ReadError};
use crate::http::file_name;
use crate::http::mount::{self, Mount};
use crate::http::problem::{self, Problem};
use crate::http::query::params::{parse_query, unknown_value};
use crate::http::redact::excerpt;
use crate::http::request::RequestContext;
use crate::http::respond::{self, Entity, HandlerResult};
use crate::http::slice_request::check_decodable;
use crate::output::{
    self, MAX_CHANNELS, NegotiationError, Thumbnail, ThumbnailContent, ThumbnailFormat, best_media_type,
};
use crate::read::{self, Derivation, PlannedSlice, SliceDelivery, SlicePlanner};
use crate::store::Key;
use crate::view::{self, MAX_SEARCHED, Volume, VolumeLevel};
use n5_format::{Coords, Region, SignedCoords};
use n5_metadata::{AxisKind, CoordinateSpace, VolumeKind, default_channel_colour};

/// All parameters. `http::credentials` reads `token`.
const PARAMETERS: [&str; 3] = ["size", "format", "token"];

/// Smallest and largest value of `size`.
const SIZES: std::ops::RangeInclusive<u32> = 16..=1024;

/// Value of `size` if none is given.
const DEFAULT_SIZE: u32 = 256;

/// Maximum decoded size of the blocks that are read for one thumbnail, in bytes, unless a single block is larger. The
/// blocks of a larger plane are those around its centre.
const MAX_DECODED_BYTES: u128 = 128 << 20;

/// Maximum number of elements that are read for one thumbnail.
const MAX_ELEMENTS: u64 = 4 << 20;

/// Largest ratio of the sides of a thumbnail.
const MAX_ASPECT: f64 = 16.0;

/// Maximum number of containers that are searched for a picture of their common root.
const MAX_CONTAINERS: usize = 8;

/// Parsed query parameters.
struct ThumbnailQuery {
    size: u32,
    /// `format`; `None` if `Accept` chooses.
    format: Option<ThumbnailFormat>,
}

impl ThumbnailQuery {
    fn parse(query: Option<&str>) -> Result<Self, Problem> {
        let parameters = parse_query(query.unwrap_or_default(), &PARAMETERS)?;
        let size = match parameters.get("size") {
            None => DEFAULT_SIZE,
            Some(text) => {
                let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse().ok().filter(|size| is_decimal && SIZES.contains(size)).ok_or_else(|| {
                    let detail = format!(
                        "size is {:?}; give the longest side in pixels, a whole number from {} to {}",
                        excerpt(text),
                        SIZES.start(),
                        SIZES.end()
                    );
                    Problem::invalid_parameter("size", detail)
                })?
            }
        };
        let format = parameters.get("format").map(|name| {
            let known = ThumbnailFormat::ALL.map(ThumbnailFormat::name);
            let format = ThumbnailFormat::ALL.into_iter().find(|format| format.name() == name);
            format.ok_or_else(|| unknown_value("format", name, &known))
        });
        Ok(Self { size, format: format.transpose()? })
    }

    /// Returns the format that the query names, or else the one that `Accept` prefers.
    fn negotiate(&self, context: &RequestContext<'_>) -> Result<ThumbnailFormat, Problem> {
        if let Some(format) = self.format {
            return Ok(format);
        }
        let known = ThumbnailFormat::ALL.map(ThumbnailFormat::media_type);
        let best = best_media_type(&known, context.list_header(&ACCEPT).as_deref());
        let format = ThumbnailFormat::ALL.into_iter().find(|format| Some(format.media_type()) == best);
        format
            .ok_or_else(|| Problem::from(NegotiationError::NotAcceptable { known: known.to_vec() }).with_vary("accept"))
    }
}

/// A thumbnail, and the slice of the level that it shows.
struct PlannedThumbnail {
    drawing: Arc<Thumbnail>,
    slice: PlannedSlice,
}

/// Handles `GET /thumbnail/{path}`.
pub(crate) async fn handle(context: &RequestContext<'_>) -> HandlerResult {
    let query = ThumbnailQuery::parse(context.parts.uri.query())?;
    let format = query.negotiate(context)?;
    let (mount, key, volume) = find_volume(context).await?;
    let container = &mount.container;
    let planned = plan(mount, &volume, query.size, format)?;
    let derivation = derivation(&planned.drawing);

    let mut entity = Entity::new(format.media_type(), mount.missing_cache_control.clone());
    entity.subject = "this thumbnail";
    if query.format.is_none() {
        respond::add_vary(&mut entity.extra, "accept");
    }
    let name = file_name::thumbnail(&mount.name, &key, format.name());
    entity.extra.insert(CONTENT_DISPOSITION, file_name::content_disposition(&name, true));
    if context.parts.headers.contains_key(IF_NONE_MATCH) {
        // The blocks' entity tags tell whether the client's copy is current. Nothing needs to be drawn.
        let blocks = read::fingerprint(container, context.read_options, &planned.slice).await?;
        entity.etag = Some(etag(&planned, &key, blocks.etags_hash).into());
        if let Some(response) = entity.not_modified(context.parts) {
            return Ok(response);
        }
    }
    let mut send_permit = None;
    loop {
        let derived = read::read_derived(container, context.read_options, &planned.slice, &derivation).await?;
        let (bytes, etags_hash) = match derived {
            Some(derived) => (derived.bytes, derived.etags_hash),
            None => (draw_empty(mount, &planned).await?, 0),
        };
        entity.etag = Some(etag(&planned, &key, etags_hash).into());
        if let Some(bytes) = container.charge_or_wait(&mut send_permit, bytes).await? {
            return entity.respond(context.parts, bytes);
        }
    }
}

/// Returns the volume that the request's path stands for: the dataset or pyramid there, or the first one below. The
/// common root of several containers stands for the first volume in one of them.
async fn find_volume<'a>(context: &'a RequestContext<'_>) -> Result<(&'a Mount, Key, Volume), Problem> {
    let nothing = || {
        let detail = format!(
            "there is no dataset to show here, nor in the {MAX_SEARCHED} directories that were searched below; \
             name a dataset or a multiscale group"
        );
        Problem::new(problem::NOT_FOUND, detail)
    };
    if let Some((mount, key)) = context.locate(&context.target.segments)? {
        let path = mount.path_of(&key);
        let found = view::find_volume(&mount.container, context.read_options, &key, &path).await;
        let (key, volume) = found
            .map_err(|error| mount.problem(error))?
            .ok_or_else(|| nothing().with_cache_control_if_missing(mount.missing_cache_control.clone()))?;
        return Ok((mount, key, volume));
    }
    // What is shown here must be visible to everyone, because no container's rules restrict this path.
    let control = context.app.options.access_control.as_deref();
    let public = context.app.mounts.iter().filter(|mount| mount::is_public_mount(control, &mount.name));
    let mut failure = None;
    for mount in public.take(MAX_CONTAINERS) {
        match view::find_volume(&mount.container, context.read_options, &Key::root(), &mount.name).await {
            Ok(Some((key, volume))) => return Ok((mount, key, volume)),
            Ok(None) => {}
            // Another container may have a picture.
            Err(error) => failure = failure.or_else(|| Some(mount.problem(error))),
        }
    }
    Err(failure.unwrap_or_else(nothing))
}

/// Axes of a thumbnail.
struct PictureAxes {
    right: Option<usize>,
    down: Option<usize>,
    /// Axis of the channels that are added.
    channels: Option<usize>,
}

impl PictureAxes {
    /// Chooses the axes: x and y by their names, or else the first two axes that are not channels.
    fn choose(volume: &Volume, space: &CoordinateSpace) -> Self {
        let channels = volume.channel_axis();
        let named = |name: &str| space.axes.iter().position(|axis| axis.name.eq_ignore_ascii_case(name));
        let mut others = (0..space.axes.len()).filter(|axis| Some(*axis) != channels);
        let (right, down) = match (named("x"), named("y")) {
            (Some(x), Some(y)) => (Some(x), Some(y)),
            _ => (others.next(), others.next()),
        };
        let is_image = volume.kind == Some(VolumeKind::Image);
        Self { right, down, channels: channels.filter(|_| is_image) }
    }

    fn shown(&self) -> impl Iterator<Item = usize> {
        [self.right, self.down].into_iter().flatten()
    }
}

/// Plans the thumbnail of a volume: level, region and drawing.
fn plan(mount: &Mount, volume: &Volume, size: u32, format: ThumbnailFormat) -> Result<PlannedThumbnail, Problem> {
    let finest = volume.levels.first().ok_or_else(Problem::not_found)?;
    check_decodable(&finest.dataset)?;
    if finest.dataset.attributes.dimensions().contains(&0) {
        let dimensions = finest.dataset.attributes.dimensions();
        let detail = format!("/{} has no elements to show: its dimensions are {dimensions:?}", finest.dataset.key);
        return Err(mount.problem(Problem::new(problem::NOT_FOUND, detail)));
    }
    let axes = PictureAxes::choose(volume, &finest.space);
    let pixels = pixel_size(finest, &axes, size);
    let level = choose_level(volume, &axes, pixels);
    let is_image = volume.kind != Some(VolumeKind::Segmentation);
    let channel_list = shown_channels(volume, level, &axes);
    let region = plane(level, &axes, &channel_list, pixels, is_image);
    let (content, window) = match (axes.channels, channel_list) {
        _ if !is_image => (ThumbnailContent::Labels, None),
        (Some(axis), channels) if !channels.is_empty() => {
            let first = channels.first().map_or(0, |(index, _)| *index);
            let shown = channels.iter().map(|(index, colour)| (index.saturating_sub(first), *colour)).collect();
            // A photograph is shown as it is.
            let window = is_photograph(volume, level, axis).then_some((0.0, 255.0));
            (ThumbnailContent::Channels(axis, shown), window)
        }
        _ => (ThumbnailContent::Grey, None),
    };
    let drawing = Thumbnail {
        shape: region.shape().clone(),
        data_type: level.dataset.attributes.data_type().clone(),
        axes: (axes.right, axes.down),
        size: pixels,
        content,
        window,
        format,
    };
    let data_type = level.dataset.attributes.data_type();
    let delivery = SliceDelivery { encoder_bytes: drawing.memory_bytes(), ..SliceDelivery::whole(data_type) };
    let planner = SlicePlanner { container: &mount.container, dataset: &level.dataset, delivery };
    let slice = planner.plan(&region).map_err(Problem::from)?;
    let needed_bytes = slice.memory_bytes().saturating_add(drawing.memory_bytes());
    let limit_bytes = read::max_buffered_bytes(&mount.container);
    if slice.is_streamed() || needed_bytes > limit_bytes {
        let detail = format!(
            "this thumbnail takes {needed_bytes} bytes of memory; three quarters of limits.slice_budget are \
             {limit_bytes}; ask for a smaller size"
        );
        return Err(Problem::too_large(detail, limit_bytes));
    }
    Ok(PlannedThumbnail { drawing: Arc::new(drawing), slice })
}

/// Returns true if the channels are the red, green and blue of a photograph: three of 8 bits, for which the metadata
/// gives no colours.
fn is_photograph(volume: &Volume, level: &VolumeLevel, axis: usize) -> bool {
    let attributes = &level.dataset.attributes;
    let has_colours = volume.channels.iter().any(|channel| channel.colour.is_some());
    let count = attributes.dimensions().get(axis).copied().unwrap_or(0);
    n5_metadata::is_photograph(count, attributes.data_type()) && !has_colours
}

/// Returns the channels that are shown, by index, each with its colour: those that are active in the metadata, at most
/// [`MAX_CHANNELS`]. The list is empty if there is no channel axis.
fn shown_channels(volume: &Volume, level: &VolumeLevel, axes: &PictureAxes) -> Vec<(u64, output::Colour)> {
    let Some(axis) = axes.channels else { return Vec::new() };
    let count = level.dataset.attributes.dimensions().get(axis).copied().unwrap_or(0);
    let display = |index: u64| usize::try_from(index).ok().and_then(|index| volume.channels.get(index));
    let is_active = |index: &u64| display(*index).is_none_or(|channel| channel.is_active);
    let mut indices: Vec<u64> = (0..count).filter(is_active).take(MAX_CHANNELS).collect();
    if indices.is_empty() {
        indices = (0..count.min(MAX_CHANNELS as u64)).collect();
    }
    let data_type = level.dataset.attributes.data_type();
    let colour = |index: u64| {
        let given = display(index).and_then(|channel| channel.colour);
        (index, given.unwrap_or_else(|| default_channel_colour(index, count, data_type)))
    };
    indices.into_iter().map(colour).collect()
}

/// Returns the width and the height in pixels. The longer side has `size` pixels, or fewer if the volume has fewer
/// voxels. The ratio of the sides is that of the physical extents if the voxel size is known along both axes.
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn pixel_size(finest: &VolumeLevel, axes: &PictureAxes, size: u32) -> (u32, u32) {
    let dimensions = finest.dataset.attributes.dimensions();
    let voxel_sizes: Vec<f64> = axes.shown().filter_map(|axis| metres(&finest.space, axis)).collect();
    let voxel_sizes = match voxel_sizes.as_slice() {
        [a, b] if (*a / *b).is_normal() => [*a, *b],
        _ => [1.0, 1.0],
    };
    let voxels = |axis: Option<usize>| axis.and_then(|axis| dimensions.get(axis)).map_or(1.0, |count| *count as f64);
    let extents = [voxels(axes.right) * voxel_sizes[0], voxels(axes.down) * voxel_sizes[1]];
    let longest = extents[0].max(extents[1]);
    let extents = extents.map(|extent| extent.max(longest / MAX_ASPECT));
    // No more than one pixel for the smallest side of a voxel.
    let scale = (f64::from(size) / longest).min(1.0 / voxel_sizes[0].min(voxel_sizes[1]));
    let side = |extent: f64| rounded(extent * scale).clamp(1, size);
    (side(extents[0]), if axes.down.is_some() { side(extents[1]) } else { 1 })
}

/// Returns the voxel size along an axis: in metres or seconds if there is a unit, otherwise as given. Returns `None` if
/// it is unknown.
fn metres(space: &CoordinateSpace, number: usize) -> Option<f64> {
    let axis = space.axes.get(number).filter(|axis| axis.is_calibrated)?;
    let size = *space.scale.get(number)?;
    Some(axis.unit.map_or(size, |unit| size * unit.factor * 10f64.powi(i32::from(unit.exponent))))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and NaN becomes 0")]
fn rounded(number: f64) -> u32 {
    number.round() as u32
}

/// Returns the coarsest level that has about as many samples as there are pixels, or else the finest.
fn choose_level<'a>(volume: &'a Volume, axes: &PictureAxes, (width, height): (u32, u32)) -> &'a VolumeLevel {
    let size_of = |level: &VolumeLevel, axis: Option<usize>| {
        axis.and_then(|axis| level.dataset.attributes.dimensions().get(axis).copied()).unwrap_or(1)
    };
    let finest = &volume.levels[0];
    let is_enough = |level: &&VolumeLevel| {
        let has_elements = !level.dataset.attributes.dimensions().contains(&0);
        has_elements
            && [(axes.right, width), (axes.down, height)].into_iter().all(|(axis, pixels)| {
                let wanted = u64::from(pixels).min(size_of(finest, axis));
                size_of(level, axis).saturating_mul(10) >= wanted.saturating_mul(9)
            })
    };
    volume.levels.iter().rev().find(is_enough).unwrap_or(finest)
}

/// Returns the region that is shown: the plane in the middle of the spatial axes and at the start of the others. If
/// reading the whole plane takes too much decoding, this is its centre.
fn plane(
    level: &VolumeLevel,
    axes: &PictureAxes,
    channels: &[(u64, output::Colour)],
    (width, height): (u32, u32),
    is_image: bool,
) -> Region {
    let dataset = &level.dataset;
    let dimensions = dataset.attributes.dimensions();
    let mut start: Vec<u64> = Vec::new();
    let mut shape: Vec<u64> = Vec::new();
    for (axis, size) in dimensions.iter().enumerate() {
        let is_space = level.space.axes.get(axis).is_none_or(|axis| axis.kind == AxisKind::Space);
        let (from, count) = match channels {
            _ if axes.shown().any(|shown| shown == axis) => (0, *size),
            [(first, _), .., (last, _)] if axes.channels == Some(axis) => (*first, last - first + 1),
            [(only, _)] if axes.channels == Some(axis) => (*only, 1),
            _ if is_space => ((size - 1) / 2, 1),
            _ => (0, 1),
        };
        start.push(from);
        shape.push(count);
    }
    let region_of = |start: &[u64], shape: &[u64], step: &[u64]| {
        let starts: SignedCoords = start.iter().map(|start| i64::try_from(*start).unwrap_or(i64::MAX)).collect();
        let samples: Coords = shape.iter().zip(step).map(|(size, step)| size.div_ceil(*step)).collect();
        Region::new(starts, samples, step.into()).unwrap_or_else(|_| Region::whole(dimensions))
    };
    let ones = vec![1; dimensions.len()];
    while decoded_bytes(dataset, &region_of(&start, &shape, &ones)) > MAX_DECODED_BYTES {
        // The axis with the most blocks is cut to two thirds, around its centre.
        let block_size = dataset.attributes.block_size();
        let blocks = |axis: usize| shape[axis] / block_size[axis].max(1);
        let Some(axis) = axes.shown().max_by_key(|axis| blocks(*axis)).filter(|axis| blocks(*axis) > 1) else { break };
        let kept = (shape[axis] - shape[axis] / 3).max(1);
        start[axis] += (shape[axis] - kept) / 2;
        shape[axis] = kept;
    }
    // An image is reduced from up to four times as many samples as there are pixels, labels are picked.
    let samples_per_pixel = if is_image { 2 } else { 1 };
    let mut step = ones;
    for (axis, pixels) in [(axes.right, width), (axes.down, height)] {
        let Some(axis) = axis else { continue };
        step[axis] = (shape[axis] / (u64::from(pixels) * samples_per_pixel).max(1)).max(1);
    }
    let elements = |step: &[u64]| {
        shape.iter().zip(step).fold(1u64, |elements, (size, step)| elements.saturating_mul(size.div_ceil(*step)))
    };
    while elements(&step) > MAX_ELEMENTS {
        let longest = axes.shown().max_by_key(|axis| shape[*axis].div_ceil(step[*axis]));
        let Some(axis) = longest.filter(|axis| step[*axis] < shape[*axis]) else { break };
        // Proportional, because an axis in one block may have billions of elements.
        step[axis] += (step[axis] / 8).max(1);
    }
    region_of(&start, &shape, &step)
}

/// Returns the decoded size of the blocks of a region, in bytes.
fn decoded_bytes(dataset: &Dataset, region: &Region) -> u128 {
    let attributes = &dataset.attributes;
    let block_bytes = attributes
        .block_size()
        .iter()
        .zip(attributes.dimensions())
        .fold(attributes.data_type().size_bytes().unwrap_or(1) as u128, |bytes, (block, size)| {
            bytes.saturating_mul(u128::from(*block.min(size)))
        });
    attributes.grid().covering(region).total().saturating_mul(block_bytes)
}

/// Returns the derivation that draws a thumbnail.
fn derivation(drawing: &Arc<Thumbnail>) -> Derivation {
    let drawing = Arc::clone(drawing);
    Derivation {
        id: xxh3_128(format!("thumbnail {drawing:?}").as_bytes()),
        extra_bytes: drawing.memory_bytes(),
        // A picture of the rest is better than none.
        skips_damaged: true,
        apply: Arc::new(move |elements| {
            drawing.encode(&elements).map_err(|error| ReadError::Internal(error.to_string()))
        }),
    }
}

/// Draws a plane whose blocks are all missing, so that its elements are 0.
async fn draw_empty(mount: &Mount, planned: &PlannedThumbnail) -> Result<bytes::Bytes, Problem> {
    let container = &mount.container;
    let drawing = Arc::clone(&planned.drawing);
    let bytes = planned.slice.memory_bytes().saturating_add(drawing.memory_bytes());
    let memory = container.reserve_memory(bytes).await?;
    let draw = move || {
        let drawn = drawing.encode(&output::empty_plane(&drawing).data).map_err(Problem::internal);
        drawn.map(|file| memory.own_pooled(file))
    };
    let cpu = container.resources().cpu();
    let priority = crate::runtime::cpu_pool::Priority::Low;
    cpu.run(priority, planned.slice.dataset_id(), draw).await.map_err(ReadError::from)?
}

/// Returns an entity tag that depends on the blocks, on the attributes and on the drawing.
fn etag(planned: &PlannedThumbnail, key: &Key, blocks_hash: u128) -> String {
    let PlannedThumbnail { drawing, slice } = planned;
    let hashed_text = format!(
        "{key} {} {:?} {drawing:?} {blocks_hash:x} {}",
        slice.dataset.etag,
        slice.region,
        env!("CARGO_PKG_VERSION")
    );
    format!("\"{:032x}\"", xxh3_128(hashed_text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_is_checked() {
        let parse = |query| ThumbnailQuery::parse(Some(query));
        assert_eq!(parse("").unwrap().size, DEFAULT_SIZE);
        let query = parse("size=1024&format=jpeg&token=x").unwrap();
        assert_eq!((query.size, query.format), (1024, Some(ThumbnailFormat::Jpeg)));
        for bad in ["size=15", "size=1025", "size=+20", "size=", "format=tiff", "window=auto", "size=20&size=20"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
