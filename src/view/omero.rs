//! `omero`: labels, colours and windows of an image's channels, which viewers need to show it well.
//!
//! What the attributes of the group say is kept as far as OME-NGFF allows it. Missing windows come from a bounded sample
//! of the elements, missing colours from the palette of pictures.
//!
//! Source: <https://ngff.openmicroscopy.org/0.5/#omero-md>.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128;

use super::axis_order::ImageAxes;
use super::lookup::ViewLookup;
use super::zarr_array::ZarrEncoding;
use crate::cache::{Dataset, ReadError};
use crate::read::{self, Derivation, SlicePlanner};
use crate::store::Key;
use n5_format::{Coords, DataType, Region, SignedCoords, Statistics, StatisticsAccumulator};
use n5_metadata::{AxisKind, CoordinateSpace, Node, Pyramid, VolumeKind, channel_display, default_channel_colour};

/// Maximum number of channels that are described. An image with more is not one that viewers compose of colours.
const MAX_CHANNELS: usize = 64;

/// Maximum number of elements of a sample.
const MAX_SAMPLED_ELEMENTS: u64 = 1 << 20;

/// Maximum number of blocks of a sample.
const MAX_SAMPLED_BLOCKS: u64 = 128;

/// Minimum number of elements of one channel in the sampled level, if any level has that many.
const ENOUGH_ELEMENTS: u64 = 1 << 16;

/// Memory for the windows of all channels as text, in bytes.
const RESULT_BYTES: u64 = 16 << 10;

/// Number of channels that are shown at first.
const ACTIVE_CHANNELS: usize = 6;

/// Check of a value of JSON.
type ValueCheck = fn(&Value) -> bool;

/// Members of a channel that may be missing, and what their values must be.
const OPTIONAL_MEMBERS: [(&str, ValueCheck); 3] =
    [("label", Value::is_string), ("family", Value::is_string), ("active", Value::is_boolean)];

/// Channels of an image, and where to sample their elements.
#[derive(Debug)]
pub(super) struct ChannelPlan {
    /// Keys of the levels, finest first.
    levels: Vec<Key>,
    /// Kinds of the axes, in N5 axis order.
    kinds: Vec<AxisKind>,
    data_type: DataType,
    /// Number of channels.
    count: usize,
    /// Index of the middle plane.
    middle_plane: u64,
    /// True if the channels are the red, green and blue of a photograph, which is shown as it is.
    is_photograph: bool,
}

/// Range of the elements of a channel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ChannelWindow {
    min: f64,
    max: f64,
    start: f64,
    end: f64,
}

impl ChannelPlan {
    /// Returns the plan for the image that `pyramid` describes, in the group `key`. Returns `None` if it needs no windows
    /// besides those in `stored`, the group's own `omero`, or if it shows labels or has too many channels.
    pub(super) fn of(node: &Node, key: &Key, pyramid: &Pyramid, stored: Option<&Value>) -> Option<Self> {
        let stored = stored.filter(|stored| stored.is_object());
        let is_image = n5_metadata::volume_kind(node, key.as_str()) == Some(VolumeKind::Image);
        if stored.is_none() && !is_image {
            return None;
        }
        let mut kinds = ImageAxes::of(&CoordinateSpace::of_level(pyramid, 0))?.kinds;
        kinds.reverse();
        let mut levels = Vec::new();
        let mut finest = None;
        for level in &pyramid.levels {
            let Some(dataset) = node.dataset_below(&level.path) else { continue };
            if ZarrEncoding::of(&dataset).is_none() || dataset.rank() != kinds.len() {
                continue;
            }
            let finest = finest.get_or_insert_with(|| dataset.clone());
            if dataset.data_type() == finest.data_type() {
                levels.push(Key::from_segments(key.segments().chain(level.path.split('/'))).ok()?);
            }
        }
        let finest = finest?;
        let size_along = |kind: AxisKind| {
            kinds.iter().position(|other| *other == kind).and_then(|axis| finest.dimensions().get(axis).copied())
        };
        let count = usize::try_from(size_along(AxisKind::Channel).unwrap_or(1)).ok()?;
        if !(1..=MAX_CHANNELS).contains(&count) || is_complete(stored, count) {
            return None;
        }
        let data_type = finest.data_type().clone();
        let has_colours = stored_channels(stored).iter().any(|channel| channel_display(channel).colour.is_some());
        let is_photograph = n5_metadata::is_photograph(count as u64, &data_type) && !has_colours;
        let space_axes = kinds.iter().zip(finest.dimensions()).filter(|(kind, _)| **kind == AxisKind::Space);
        let middle_plane = space_axes.map(|(_, size)| *size).nth(2).unwrap_or(1).saturating_sub(1) / 2;
        Some(Self { levels, kinds, data_type, count, middle_plane, is_photograph })
    }

    /// Returns the windows of the channels, from a sample whose result is cached. The windows are the range of the type
    /// if the elements cannot be read, if none is stored, or if this is a photograph.
    ///
    /// # Errors
    /// Returns an error if the store fails or there is not enough memory.
    pub(super) async fn read_windows(&self, lookup: &ViewLookup<'_>) -> Result<Vec<ChannelWindow>, ReadError> {
        let of_type = ChannelWindow::of_type(&self.data_type);
        if self.is_photograph {
            return Ok(vec![of_type; self.count]);
        }
        let sampled = match self.sample(lookup).await {
            Err(
                ReadError::Block { .. }
                | ReadError::StoredTooLarge { .. }
                | ReadError::AttributesTooLarge { .. }
                | ReadError::NotFound(_)
                | ReadError::NotADataset { .. }
                | ReadError::TooLarge(_)
                | ReadError::NotRepresentable(_),
            ) => None,
            Err(ReadError::Store(error)) if error.hides_object() => None,
            sampled => sampled?,
        };
        let windows: Vec<Option<[f64; 4]>> =
            sampled.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let window = |index: usize| {
            let sampled = windows.get(index).copied().flatten();
            sampled.map_or(of_type, |[min, max, start, end]| ChannelWindow { min, max, start, end })
        };
        Ok((0..self.count).map(window).collect())
    }

    /// Returns the windows of a sample as JSON: a list of four numbers, or null, for each channel. Returns `None` if no
    /// element of the sample is stored, or if the sample takes too much memory.
    async fn sample(&self, lookup: &ViewLookup<'_>) -> Result<Option<Bytes>, ReadError> {
        let Some(dataset) = self.sampled_level(lookup).await? else { return Ok(None) };
        let Some(region) = self.sampled_region(&dataset) else { return Ok(None) };
        let Ok(slice) = SlicePlanner::whole(lookup.container, &dataset).plan(&region) else { return Ok(None) };
        let shape = region.shape().clone();
        let data_type = dataset.attributes.data_type().clone();
        let channel_axis = self.kinds.iter().position(|kind| *kind == AxisKind::Channel);
        let elements = shape.iter().fold(1, |product: u64, size| product.saturating_mul(*size));
        let accumulator_bytes = StatisticsAccumulator::memory_bytes(&data_type, elements).unwrap_or(0);
        let element_bytes = elements.saturating_mul(data_type.size_bytes().unwrap_or(1) as u64);
        let derivation = Derivation {
            id: xxh3_128(format!("omero windows {channel_axis:?} {:?}", Statistics::WINDOW_PERCENTAGES).as_bytes()),
            extra_bytes: accumulator_bytes.saturating_add(element_bytes).saturating_add(RESULT_BYTES),
            skips_damaged: false,
            apply: Arc::new(move |data| Ok(windows_text(&data, &shape, channel_axis, &data_type).into())),
        };
        let derived = read::read_derived(lookup.container, lookup.options, &slice, &derivation).await?;
        Ok(derived.map(|derived| derived.bytes))
    }

    /// Returns the coarsest level that has enough elements, or the finest one if no level has.
    async fn sampled_level(&self, lookup: &ViewLookup<'_>) -> Result<Option<Arc<Dataset>>, ReadError> {
        let mut finest = None;
        for key in self.levels.iter().rev() {
            let dataset = lookup.container.dataset(lookup.options, key).await?;
            let sizes = dataset.attributes.dimensions().iter().zip(&self.kinds);
            let in_space = sizes.filter(|(_, kind)| **kind == AxisKind::Space).map(|(size, _)| *size);
            if in_space.fold(1, u64::saturating_mul) >= ENOUGH_ELEMENTS {
                return Ok(Some(dataset));
            }
            finest = Some(dataset);
        }
        Ok(finest)
    }

    /// Returns the region of a level that is sampled: a box in the middle of space with all channels, at one point of
    /// time. Returns `None` if a level has no elements, or fewer channels than the finest.
    fn sampled_region(&self, dataset: &Dataset) -> Option<Region> {
        let dimensions = dataset.attributes.dimensions();
        let block_size = dataset.attributes.block_size();
        let is_space = |axis: usize| self.kinds.get(axis) == Some(&AxisKind::Space);
        let mut shape: Coords = dimensions.clone();
        for (axis, size) in shape.iter_mut().enumerate() {
            match self.kinds.get(axis) {
                Some(AxisKind::Space) => {}
                Some(AxisKind::Channel) if usize::try_from(*size) == Ok(self.count) => {}
                Some(AxisKind::Time | AxisKind::Other) if *size > 0 => *size = 1,
                _ => return None,
            }
        }
        let is_too_large = |shape: &Coords| {
            let elements = shape.iter().fold(1, |product: u64, size| product.saturating_mul(*size));
            let blocks = shape.iter().zip(block_size).map(|(size, block)| size.div_ceil((*block).max(1)));
            elements > MAX_SAMPLED_ELEMENTS || blocks.fold(1, u64::saturating_mul) > MAX_SAMPLED_BLOCKS
        };
        while is_too_large(&shape) {
            let sizes = shape.iter_mut().enumerate().filter(|(axis, _)| is_space(*axis));
            let (_, longest) = sizes.max_by_key(|(_, size)| **size).filter(|(_, size)| **size > 1)?;
            *longest = longest.div_ceil(2);
        }
        let start = dimensions.iter().zip(&shape).enumerate().map(|(axis, (whole, part))| {
            i64::try_from(if is_space(axis) { whole.saturating_sub(*part) / 2 } else { 0 }).ok()
        });
        let start: SignedCoords = start.collect::<Option<_>>()?;
        let step = shape.iter().map(|_| 1).collect();
        shape.iter().all(|size| *size > 0).then(|| Region::new(start, shape, step).ok()).flatten()
    }

    /// Returns `omero` with these windows. The members of `stored` are kept as far as they are valid.
    pub(super) fn omero(&self, stored: Option<&Value>, windows: &[ChannelWindow]) -> Value {
        let mut omero = stored.and_then(Value::as_object).cloned().unwrap_or_default();
        let stored_channels = omero.remove("channels");
        let mut channels = if let Some(Value::Array(channels)) = stored_channels { channels } else { Vec::new() };
        channels.resize_with(channels.len().max(self.count), || Value::Object(Map::new()));
        let described: Vec<Value> = channels
            .into_iter()
            .enumerate()
            .map(|(index, channel)| self.channel(index, channel, windows.get(index)))
            .collect();
        omero.insert("channels".to_owned(), Value::Array(described));
        let model = if self.count > 1 { "color" } else { "greyscale" };
        let view = || json!({"defaultT": 0, "defaultZ": self.middle_plane, "model": model});
        omero.entry("rdefs").or_insert_with(view);
        Value::Object(omero)
    }

    /// Completes the description of a channel, and removes members that OME-NGFF does not allow.
    fn channel(&self, index: usize, stored: Value, window: Option<&ChannelWindow>) -> Value {
        let display = channel_display(&stored);
        let mut members = if let Value::Object(members) = stored { members } else { Map::new() };
        for (name, is_valid) in OPTIONAL_MEMBERS {
            if members.get(name).is_some_and(|value| !is_valid(value)) {
                members.remove(name);
            }
        }
        if !members.get("color").is_some_and(is_colour) {
            let default = || default_channel_colour(index as u64, self.count as u64, &self.data_type);
            let [red, green, blue] = display.colour.unwrap_or_else(default);
            members.insert("color".to_owned(), Value::from(format!("{red:02X}{green:02X}{blue:02X}")));
        }
        if !members.get("window").is_some_and(is_window) {
            let found = window.copied().unwrap_or_else(|| ChannelWindow::of_type(&self.data_type));
            let (start, end) = display.window.unwrap_or((found.start, found.end));
            let (min, max) = (found.min.min(start), found.max.max(end));
            members.insert("window".to_owned(), json!({"min": min, "max": max, "start": start, "end": end}));
        }
        members.entry("label").or_insert_with(|| Value::from(format!("channel {index}")));
        members.entry("active").or_insert_with(|| Value::from(index < ACTIVE_CHANNELS));
        Value::Object(members)
    }
}

impl ChannelWindow {
    /// Returns the range of an integer type, or 0 to 1.
    fn of_type(data_type: &DataType) -> Self {
        let (min, max) = match data_type {
            DataType::UInt8 => (0.0, f64::from(u8::MAX)),
            DataType::UInt16 => (0.0, f64::from(u16::MAX)),
            DataType::UInt32 | DataType::UInt64 => (0.0, f64::from(u32::MAX)),
            DataType::Int8 => (f64::from(i8::MIN), f64::from(i8::MAX)),
            DataType::Int16 => (f64::from(i16::MIN), f64::from(i16::MAX)),
            DataType::Int32 | DataType::Int64 => (f64::from(i32::MIN), f64::from(i32::MAX)),
            DataType::Float32 | DataType::Float64 | DataType::Other(_) => (0.0, 1.0),
        };
        Self { min, max, start: min, end: max }
    }
}

/// Returns the channels that a stored `omero` describes.
fn stored_channels(stored: Option<&Value>) -> &[Value] {
    let channels = stored.and_then(|omero| omero.get("channels")).and_then(Value::as_array);
    channels.map_or(&[], Vec::as_slice)
}

/// Returns true if `stored` describes every one of `count` channels validly.
fn is_complete(stored: Option<&Value>, count: usize) -> bool {
    let is_valid = |channel: &Value| {
        channel.get("color").is_some_and(is_colour)
            && channel.get("window").is_some_and(is_window)
            && OPTIONAL_MEMBERS.iter().all(|(name, is_valid)| channel.get(name).is_none_or(is_valid))
    };
    let channels = stored_channels(stored);
    channels.len() >= count && channels.iter().all(is_valid)
}

fn is_colour(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.len() == 6 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn is_window(value: &Value) -> bool {
    ["min", "max", "start", "end"].iter().all(|name| value.get(name).is_some_and(Value::is_number))
}

/// Returns the windows of the channels of an array as JSON. See [`ChannelPlan::sample`].
fn windows_text(data: &[u8], shape: &Coords, channel_axis: Option<usize>, data_type: &DataType) -> String {
    let width = data_type.size_bytes().unwrap_or(1);
    let product = |sizes: &[u64]| {
        let size = |size: &u64| usize::try_from(*size).unwrap_or(usize::MAX);
        sizes.iter().map(size).fold(1, usize::saturating_mul)
    };
    let (faster, count) = match channel_axis {
        Some(axis) => (shape.get(..axis).unwrap_or_default(), product(shape.get(axis..=axis).unwrap_or_default())),
        None => (shape.as_slice(), 1),
    };
    let run_bytes = product(faster).saturating_mul(width).max(1);
    let windows: Vec<Option<[f64; 4]>> = (0..count)
        .map(|channel| {
            let runs = data.chunks(run_bytes).skip(channel).step_by(count.max(1));
            let elements: Vec<u8> = runs.flatten().copied().collect();
            window_of(&elements, data_type)
        })
        .collect();
    json!(windows).to_string()
}

/// Returns the extremes and the window of elements, or `None` if none of them is finite.
fn window_of(elements: &[u8], data_type: &DataType) -> Option<[f64; 4]> {
    let count = elements.len().checked_div(data_type.size_bytes()?)?;
    let mut accumulator = StatisticsAccumulator::new(data_type, count as u64, count)?;
    let size: Coords = std::iter::once(count as u64).collect();
    accumulator.push_block(elements, &size, &size);
    let statistics = accumulator.finish(1, &Statistics::WINDOW_PERCENTAGES);
    let (min, max) = (statistics.min?.as_f64(), statistics.max?.as_f64());
    let (start, end) = statistics.auto_window();
    Some([min.min(start), max.max(end), start, end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(count: usize, data_type: DataType) -> ChannelPlan {
        ChannelPlan { levels: Vec::new(), kinds: Vec::new(), data_type, count, middle_plane: 3, is_photograph: false }
    }

    #[test]
    fn each_channel_has_its_own_window() {
        // Axes x, channel, y.
        let data = [1, 2, 10, 20, 3, 4, 30, 40];
        let shape: Coords = [2, 2, 2].as_slice().into();
        assert_eq!(windows_text(&data, &shape, Some(1), &DataType::UInt8), "[[1.0,4.0,1.0,4.0],[10.0,40.0,10.0,40.0]]");
        assert_eq!(windows_text(&data, &shape, None, &DataType::UInt8), "[[1.0,40.0,1.0,40.0]]");
    }

    #[test]
    fn outliers_and_constants_give_usable_windows() {
        let mut hot = vec![100u8; 5000];
        hot.extend([90; 20]);
        hot.extend([110; 20]);
        hot.push(255);
        assert_eq!(window_of(&hot, &DataType::UInt8), Some([90.0, 255.0, 100.0, 110.0]));
        assert_eq!(window_of(&[7; 9], &DataType::UInt8), Some([0.0, 7.0, 0.0, 7.0]));
        let floats: Vec<u8> =
            [f32::NAN, 0.5, 2.0, f32::INFINITY].iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(window_of(&floats, &DataType::Float32), Some([0.5, 2.0, 0.5, 2.0]));
        assert_eq!(window_of(&f32::NAN.to_le_bytes(), &DataType::Float32), None);
    }

    #[test]
    fn stored_members_are_kept_and_completed() {
        let window = ChannelWindow { min: 0.0, max: 9.0, start: 1.0, end: 8.0 };
        let stored =
            json!({"id": 1, "channels": [{"label": "DAPI", "color": "0000FF", "inverted": false}, {"color": "blue"}]});
        let omero = plan(2, DataType::UInt16).omero(Some(&stored), &[window; 2]);
        let expected = json!({"min": 0.0, "max": 9.0, "start": 1.0, "end": 8.0});
        assert_eq!(
            omero,
            json!({"id": 1, "rdefs": {"defaultT": 0, "defaultZ": 3, "model": "color"}, "channels": [
                {"label": "DAPI", "color": "0000FF", "inverted": false, "active": true, "window": expected},
                {"label": "channel 1", "color": "00FF00", "active": true, "window": expected}]})
        );
        assert!(is_complete(Some(&omero), 2) && !is_complete(Some(&omero), 3) && !is_complete(Some(&stored), 2));
        assert!(!is_complete(None, 1) && !is_complete(Some(&json!({"channels": 3})), 1));
    }

    #[test]
    fn stored_members_of_another_form_are_converted_or_replaced() {
        let window = ChannelWindow { min: 0.0, max: 9.0, start: 1.0, end: 8.0 };
        let stored = json!({"channels": [
            {"label": 7, "color": "#0000ff80", "active": 1, "family": null, "window": {"start": -3, "end": 5}},
            {"label": "b", "color": 16, "family": "linear", "window": {"start": 5, "end": 5, "min": "0", "max": 9}},
            "c",
        ]});
        let omero = plan(3, DataType::UInt16).omero(Some(&stored), &[window; 3]);
        let found = json!({"min": 0.0, "max": 9.0, "start": 1.0, "end": 8.0});
        assert_eq!(
            omero["channels"],
            json!([
                {"label": "channel 0", "color": "0000FF", "active": true,
                    "window": {"min": -3.0, "max": 9.0, "start": -3.0, "end": 5.0}},
                {"label": "b", "color": "FF00FF", "active": true, "family": "linear", "window": found},
                {"label": "channel 2", "color": "FFFF00", "active": true, "window": found},
            ])
        );
        assert!(is_complete(Some(&omero), 3));
        for (member, value) in [("label", json!(7)), ("family", json!(null)), ("active", json!("true"))] {
            let mut invalid = omero.clone();
            invalid["channels"][1][member] = value;
            assert!(!is_complete(Some(&invalid), 3), "{member}");
        }
    }
}
