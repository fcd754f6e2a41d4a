//! Query string of a slice: its syntax, and the region that it selects in a dataset of known dimensions.
//!
//! This file reads no dataset. All axes are in N5 order.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::ops::Range;

use crate::http::problem::{OUT_OF_BOUNDS, Problem};
use crate::http::query::numpy_index::{self, IndexItem, Selection};
use crate::http::query::params::{parse_decimal, parse_integers, parse_query, unknown_value, wrong_rank};
use crate::http::redact::excerpt;
use crate::output::{self, AxisOrder, Colour, EncodeOptions, Endian, MAX_CHANNELS};
use n5_format::{Coords, DataType, Region, SignedCoords};

/// All parameters of a slice. `http::credentials` reads `token`.
const PARAMETERS: [&str; 17] = [
    "start", "stop", "size", "step", "select", "outside", "level", "pixels", "order", "dtype", "format", "endian",
    "window", "channels", "colors", "quality", "token",
];

/// Value of `pixels` if none is given.
const DEFAULT_PIXELS: u64 = 1024;

/// Largest value of `pixels`.
const MAX_PIXELS: u64 = 65_536;

/// A slice's parameters, parsed as far as possible without the dataset.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SliceQuery {
    /// The samples that the query selects.
    selector: SampleSelector,
    /// Value of `order`.
    pub order: AxisOrder,
    /// `dtype`: data type to which the elements are converted. Blocks of this type can be decoded.
    pub data_type: Option<DataType>,
    /// `format`, not yet looked up.
    pub format: Option<String>,
    /// Value of `endian`.
    pub endian: Endian,
    /// `window`: one for all channels, or one for each channel.
    pub windows: Option<Vec<WindowChoice>>,
    /// `channels`: indices of the channels that are shown in one image.
    pub channels: Option<Vec<u64>>,
    /// `colors`: colours of the shown channels.
    pub colours: Option<Vec<Colour>>,
    /// `level`, and `pixels` if it is `auto`.
    pub level: Option<LevelChoice>,
    /// `quality`, 1 to 100.
    pub quality: Option<u8>,
}

/// Values that an image shows as black and as white.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum WindowChoice {
    /// From the percentiles of the dataset.
    Auto,
    /// Two different finite numbers.
    Fixed(f64, f64),
}

/// Level of a multiscale group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LevelChoice {
    /// The coarsest level in which the longest side of the region has at least this many samples.
    Auto(u64),
    /// A level by its number, 0 for the finest, or by its path.
    Named(String),
}

/// The samples that a query selects.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SampleSelector {
    /// `start`, `stop` or `size`, `step`, and `outside`.
    Box {
        start: Option<Vec<i64>>,
        stop: Option<Vec<i64>>,
        size: Option<Vec<i64>>,
        step: Option<Vec<u64>>,
        outside: OutsidePolicy,
    },
    /// `select`.
    Index(Vec<IndexItem>),
}

/// Treatment of a region that extends beyond the dataset: the parameter `outside`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutsidePolicy {
    Error,
    Clip,
    Zero,
}

impl SliceQuery {
    /// Parses the raw query string, which is percent-encoded. A `+` is a plus, not a space.
    ///
    /// # Errors
    /// Returns a problem with status 400 for parameters that are unknown, repeated or exclude each other, and for
    /// values that cannot be parsed.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, Problem> {
        let parameters = parse_query(query.unwrap_or_default(), &PARAMETERS)?;
        let get = |name| parameters.get(name).map(String::as_str);
        let selector = SampleSelector::parse(&parameters)?;
        let order = get("order").map_or(Ok(AxisOrder::F), |name| {
            AxisOrder::from_name(name).ok_or_else(|| unknown_value("order", name, &AxisOrder::NAMES))
        })?;
        let endian = get("endian").map_or(Ok(Endian::Little), |name| {
            Endian::from_name(name).ok_or_else(|| unknown_value("endian", name, &Endian::NAMES))
        })?;
        let windows = get("window").map(parse_windows).transpose()?;
        let channels = get("channels").map(parse_channels).transpose()?;
        let colours = get("colors").map(parse_colours).transpose()?;
        let level = parse_level(get("level"), get("pixels"))?;
        let quality = get("quality").map(parse_quality).transpose()?;
        let data_type = get("dtype").map(parse_data_type).transpose()?;
        let format = get("format").map(str::to_owned);
        Ok(Self { selector, order, data_type, format, endian, windows, channels, colours, level, quality })
    }

    /// Returns the samples that this query selects in a dataset of `dimensions`.
    ///
    /// With `outside=clip`, the samples outside the dataset are left out. The region starts at the first sample inside,
    /// and is empty if all samples are outside. Without an end, a region that starts beyond the dataset is empty,
    /// unless `outside` is `error`.
    ///
    /// # Errors
    /// Returns the problem `out-of-bounds` if the rank differs, or if samples lie outside the dataset although
    /// `outside` is `error`. Returns `invalid-parameter` if a region ends before it starts.
    pub(crate) fn select(&self, dimensions: &[u64]) -> Result<Selection, Problem> {
        self.selector.select(dimensions)
    }

    /// Returns the samples that this query selects without regard to its steps.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::select`].
    pub(crate) fn select_all(&self, dimensions: &[u64]) -> Result<Selection, Problem> {
        self.selector.without_steps().select(dimensions)
    }

    /// Returns the samples that this query selects in a level of a pyramid. The query is in voxels of the finest level,
    /// of `dimensions`, but its steps are in samples of the level, of `level_dimensions`. `factors` are the sizes of the
    /// level's voxels in voxels of the finest level.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::select`].
    pub(crate) fn select_in_level(
        &self,
        dimensions: &[u64],
        level_dimensions: &[u64],
        factors: &[f64],
    ) -> Result<Selection, Problem> {
        let steps = self.select(dimensions)?.region.step().clone();
        let selection = self.select_all(dimensions)?;
        let may_leave = matches!(self.selector, SampleSelector::Box { outside: OutsidePolicy::Zero, .. });
        let mut starts = SignedCoords::new();
        let mut shape = Coords::new();
        for (axis, (start, count)) in selection.region.start().iter().zip(selection.region.shape()).enumerate() {
            let factor = factors.get(axis).copied().filter(|factor| *factor > 0.0).unwrap_or(1.0);
            let size = i128::from(level_dimensions.get(axis).copied().unwrap_or(0));
            let (mut from, mut end) = scaled_range(*start, *count, factor);
            if !may_leave {
                from = from.clamp(0, size.saturating_sub(1).max(0));
                end = end.clamp(from, size);
            }
            // One position is one position in every level.
            let end = if *count == 1 { end.min(from.saturating_add(1)) } else { end };
            let samples = u64::try_from(end.saturating_sub(from)).unwrap_or(0);
            starts.push(i64::try_from(from).unwrap_or(i64::MAX));
            shape.push(if *count == 0 { 0 } else { samples.div_ceil(steps.get(axis).copied().unwrap_or(1).max(1)) });
        }
        let region = Region::new(starts, shape, steps).map_err(|error| out_of_bounds(error.to_string(), dimensions))?;
        Ok(Selection { region, kept_axes: selection.kept_axes })
    }

    /// Returns the output format's options for this query and the samples that it selected.
    ///
    /// The options have a window if the query gives one for all channels. Windows that are automatic, or given for each
    /// channel, take more than the query.
    pub(crate) fn options(&self, selection: &Selection) -> EncodeOptions {
        let window = match self.windows.as_deref() {
            Some([WindowChoice::Fixed(low, high)]) => Some((*low, *high)),
            _ => None,
        };
        EncodeOptions {
            order: self.order,
            endian: self.endian,
            window,
            composite: None,
            quality: self.quality,
            start: selection.region.start().to_vec(),
            step: selection.region.step().to_vec(),
            axes: Vec::new(),
            stack_channels: Vec::new(),
        }
    }
}

impl SampleSelector {
    /// Implements [`SliceQuery::select`].
    fn select(&self, dimensions: &[u64]) -> Result<Selection, Problem> {
        let (start, stop, size, step, outside) = match self {
            Self::Index(items) => return select_by_index(items, dimensions),
            Self::Box { start, stop, size, step, outside } => (start, stop, size, step, outside),
        };
        check_rank("start", start.as_deref(), dimensions)?;
        check_rank("stop", stop.as_deref(), dimensions)?;
        check_rank("size", size.as_deref(), dimensions)?;
        check_rank("step", step.as_deref(), dimensions)?;
        let mut starts = SignedCoords::new();
        let mut shape = Coords::new();
        let mut steps = Coords::new();
        for axis in 0..dimensions.len() {
            // Wide enough that nothing overflows.
            let value_at =
                |list: &Option<Vec<i64>>| list.as_ref().and_then(|list| list.get(axis)).map(|n| i128::from(*n));
            let start = value_at(start).unwrap_or(0);
            let stop = value_at(stop).or_else(|| value_at(size).map(|size| start.saturating_add(size)));
            let step = step.as_ref().and_then(|list| list.get(axis)).copied().unwrap_or(1).max(1);
            let bounded = bound_range(start, stop, step, *outside, (axis, dimensions))?;
            let length = u64::try_from(bounded.end.saturating_sub(bounded.start).max(0)).unwrap_or(u64::MAX);
            // The conversion never fails: a start in the query is an `i64`, and a computed start is at most the
            // dimension.
            starts.push(i64::try_from(bounded.start).unwrap_or(i64::MAX));
            shape.push(length.div_ceil(step));
            steps.push(step);
        }
        let region = Region::new(starts, shape, steps).map_err(|error| out_of_bounds(error.to_string(), dimensions))?;
        Ok(Selection { region, kept_axes: (0..dimensions.len()).collect() })
    }

    /// Returns this selector with steps of 1.
    fn without_steps(&self) -> Self {
        match self.clone() {
            Self::Box { start, stop, size, step: _, outside } => Self::Box { start, stop, size, step: None, outside },
            Self::Index(mut items) => {
                for item in &mut items {
                    if let IndexItem::Slice { step, .. } = item {
                        *step = 1;
                    }
                }
                Self::Index(items)
            }
        }
    }

    fn parse(parameters: &BTreeMap<&'static str, String>) -> Result<Self, Problem> {
        let get = |name| parameters.get(name).map(String::as_str);
        if let Some(text) = get("select") {
            let excluded = ["start", "stop", "size", "step", "outside"];
            return match excluded.iter().find(|name| parameters.contains_key(**name)) {
                Some(other) => Err(Problem::invalid_parameter(
                    "select",
                    format!("select and {other} exclude each other; give one of them"),
                )),
                None => numpy_index::parse(text)
                    .map(Self::Index)
                    .map_err(|reason| Problem::invalid_parameter("select", format!("select: {reason}"))),
            };
        }
        let outside = match get("outside") {
            None | Some("error") => OutsidePolicy::Error,
            Some("clip") => OutsidePolicy::Clip,
            Some("zero") => OutsidePolicy::Zero,
            Some(other) => return Err(unknown_value("outside", other, &["error", "clip", "zero"])),
        };
        let is_signed = outside != OutsidePolicy::Error;
        let parse_list = |name, is_signed| get(name).map(|text| parse_integers(name, text, is_signed)).transpose();
        let stop = parse_list("stop", is_signed)?;
        let size = parse_list("size", false)?;
        if stop.is_some() && size.is_some() {
            return Err(Problem::invalid_parameter("size", "stop and size exclude each other; give one of them"));
        }
        let step = parse_list("step", false)?.map(|step| step.iter().map(|n| n.unsigned_abs()).collect::<Vec<u64>>());
        if step.as_ref().is_some_and(|step| step.contains(&0)) {
            return Err(Problem::invalid_parameter("step", "step contains 0; every step must be at least 1"));
        }
        Ok(Self::Box { start: parse_list("start", is_signed)?, stop, size, step, outside })
    }
}

/// Returns the samples that the parameter `select` selects in a dataset of `dimensions`.
fn select_by_index(items: &[IndexItem], dimensions: &[u64]) -> Result<Selection, Problem> {
    if items.is_empty() && !dimensions.is_empty() {
        return Err(Problem::invalid_parameter("select", "select is empty; ... selects everything"));
    }
    numpy_index::resolve(items, dimensions).map_err(|detail| out_of_bounds(detail, dimensions))
}

/// Checks that the list of a parameter, if there is one, has a value for each axis.
fn check_rank<T>(parameter: &str, list: Option<&[T]>, dimensions: &[u64]) -> Result<(), Problem> {
    match list.map(<[T]>::len).filter(|count| *count != dimensions.len()) {
        None => Ok(()),
        Some(count) => Err(out_of_bounds(wrong_rank(parameter, count, dimensions), dimensions)),
    }
}

/// Applies `outside` to a range along an axis of a dataset. Without a `stop`, the range ends where the dataset ends. It
/// is then empty if it starts beyond that.
///
/// # Errors
/// Returns the same errors as [`SliceQuery::select`].
fn bound_range(
    start: i128,
    stop: Option<i128>,
    step: u64,
    outside: OutsidePolicy,
    (axis, dimensions): (usize, &[u64]),
) -> Result<Range<i128>, Problem> {
    let dimension = i128::from(dimensions.get(axis).copied().unwrap_or(0));
    if let Some(stop) = stop.filter(|stop| start > *stop) {
        let detail = format!("along axis {axis} the region {start}..{stop} ends before it starts");
        return Err(Problem::invalid_parameter("stop", detail));
    }
    let end = stop.unwrap_or(if outside == OutsidePolicy::Error { dimension } else { dimension.max(start) });
    match outside {
        OutsidePolicy::Error if start < 0 || start > dimension || end > dimension => {
            let region = stop.map_or_else(|| format!("{start}.."), |stop| format!("{start}..{stop}"));
            let detail = format!(
                "along axis {axis} the region {region} leaves the dataset, which has 0..{dimension}; \
                 stay inside, or give outside=clip or outside=zero"
            );
            Err(out_of_bounds(detail, dimensions))
        }
        OutsidePolicy::Error | OutsidePolicy::Zero => Ok(start..end),
        OutsidePolicy::Clip => {
            let step = i128::from(step);
            let samples_before = start.saturating_neg().max(0).saturating_add(step).saturating_sub(1).checked_div(step);
            let skipped = samples_before.unwrap_or(0).saturating_mul(step);
            Ok(start.saturating_add(skipped).min(dimension)..end.min(dimension))
        }
    }
}

/// Returns the first position and the end of a range of a level whose voxels are `factor` times as large.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "`as` saturates; sizes are below 2^53"
)]
fn scaled_range(start: i64, count: u64, factor: f64) -> (i128, i128) {
    let end = i128::from(start).saturating_add(i128::from(count));
    let from = (start as f64 / factor).floor() as i128;
    (from, ((end as f64 / factor).ceil() as i128).max(from))
}

/// Parses windows, which are separated by semicolons: `auto`, or two different finite decimal numbers.
fn parse_windows(text: &str) -> Result<Vec<WindowChoice>, Problem> {
    let parse = |item: &str| {
        if item == "auto" {
            return Some(WindowChoice::Auto);
        }
        let pair = item.split_once(',').and_then(|(lo, hi)| Some((parse_decimal(lo)?, parse_decimal(hi)?)));
        let pair = pair.filter(|(lo, hi)| lo.total_cmp(hi).is_ne() && hi - lo != 0.0);
        pair.map(|(lo, hi)| WindowChoice::Fixed(lo, hi))
    };
    let windows: Option<Vec<WindowChoice>> = text.split(';').take(MAX_CHANNELS.saturating_add(1)).map(parse).collect();
    windows.filter(|windows| windows.len() <= MAX_CHANNELS).ok_or_else(|| {
        let detail = format!(
            "window is {:?}; give two different numbers, lo,hi: the values of black and white; or auto; or one of these \
             for each channel, separated by semicolons",
            excerpt(text)
        );
        Problem::invalid_parameter("window", detail)
    })
}

/// Parses the indices of channels, which must be different.
fn parse_channels(text: &str) -> Result<Vec<u64>, Problem> {
    let list: Vec<u64> = parse_integers("channels", text, false)?.iter().map(|index| index.unsigned_abs()).collect();
    let is_repeated = list.iter().enumerate().any(|(n, index)| list.iter().take(n).any(|other| other == index));
    if list.is_empty() || list.len() > MAX_CHANNELS || is_repeated {
        let detail = format!(
            "channels is {:?}; give 1 to {MAX_CHANNELS} different indices along the channel axis, as in channels=0,2",
            excerpt(text)
        );
        return Err(Problem::invalid_parameter("channels", detail));
    }
    Ok(list)
}

fn parse_colours(text: &str) -> Result<Vec<Colour>, Problem> {
    let colours = text.split(',').take(MAX_CHANNELS.saturating_add(1)).map(|item| {
        output::parse_colour(item).ok_or_else(|| {
            let names: Vec<&str> = output::colour_names().collect();
            let detail = format!(
                "colors contains {:?}; give six hexadecimal digits for red, green and blue, as in ff8000, or one of {}",
                excerpt(item),
                names.join(", ")
            );
            Problem::invalid_parameter("colors", detail)
        })
    });
    colours.collect()
}

/// Parses `level`, and `pixels`, which is for `level=auto` only.
fn parse_level(level: Option<&str>, pixels: Option<&str>) -> Result<Option<LevelChoice>, Problem> {
    let pixels = pixels.map(|text| {
        let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|pixels| is_decimal && (1..=MAX_PIXELS).contains(pixels)).ok_or_else(|| {
            let detail = format!("pixels is {:?}; give a whole number from 1 to {MAX_PIXELS}", excerpt(text));
            Problem::invalid_parameter("pixels", detail)
        })
    });
    match (level, pixels.transpose()?) {
        (Some("auto"), pixels) => Ok(Some(LevelChoice::Auto(pixels.unwrap_or(DEFAULT_PIXELS)))),
        (_, Some(_)) => Err(Problem::invalid_parameter("pixels", "pixels is for level=auto only; leave it out")),
        (Some(""), None) => Err(Problem::invalid_parameter("level", "level is empty; give auto, a number or a path")),
        (level, None) => Ok(level.map(|name| LevelChoice::Named(name.to_owned()))),
    }
}

fn parse_data_type(name: &str) -> Result<DataType, Problem> {
    let data_type = DataType::from_name(name);
    let known = || DataType::names().collect::<Vec<_>>();
    if data_type.size_bytes().is_some() { Ok(data_type) } else { Err(unknown_value("dtype", name, &known())) }
}

/// Parses an integer from 1 to 100.
fn parse_quality(text: &str) -> Result<u8, Problem> {
    let is_decimal = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|quality| is_decimal && (1..=100).contains(quality)).ok_or_else(|| {
        Problem::invalid_parameter(
            "quality",
            format!("quality is {:?}; give a whole number from 1 (smallest) to 100 (best)", excerpt(text)),
        )
    })
}

/// Creates the 400 for samples that do not lie within a dataset of these dimensions.
fn out_of_bounds(detail: impl Into<String>, dimensions: &[u64]) -> Problem {
    Problem::new(OUT_OF_BOUNDS, detail).with_member("dimensions", dimensions)
}

#[cfg(test)]
mod tests;
