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
use crate::output::{AxisOrder, EncodeOptions, Endian};
use n5_format::{Coords, DataType, Region, SignedCoords};

/// All parameters of a slice. `http::credentials` reads `token`.
const PARAMETERS: [&str; 13] = [
    "start", "stop", "size", "step", "select", "outside", "order", "dtype", "format", "endian", "window", "quality",
    "token",
];

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
    /// `window`: the finite values that are shown as black and as white.
    pub window: Option<(f64, f64)>,
    /// `quality`, 1 to 100.
    pub quality: Option<u8>,
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
        let window = get("window").map(parse_window).transpose()?;
        let quality = get("quality").map(parse_quality).transpose()?;
        let data_type = get("dtype").map(parse_data_type).transpose()?;
        Ok(Self { selector, order, data_type, format: get("format").map(str::to_owned), endian, window, quality })
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
        let (start, stop, size, step, outside) = match &self.selector {
            SampleSelector::Index(items) => return select_by_index(items, dimensions),
            SampleSelector::Box { start, stop, size, step, outside } => (start, stop, size, step, outside),
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

    /// Returns the output format's options for this query and the samples that it selected.
    pub(crate) fn options(&self, selection: &Selection) -> EncodeOptions {
        EncodeOptions {
            order: self.order,
            endian: self.endian,
            window: self.window,
            quality: self.quality,
            start: selection.region.start().to_vec(),
            step: selection.region.step().to_vec(),
        }
    }
}

impl SampleSelector {
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

/// Parses two different finite decimal numbers.
fn parse_window(text: &str) -> Result<(f64, f64), Problem> {
    let pair = text.split_once(',').and_then(|(lo, hi)| Some((parse_decimal(lo)?, parse_decimal(hi)?)));
    pair.filter(|(lo, hi)| lo.total_cmp(hi).is_ne() && hi - lo != 0.0).ok_or_else(|| {
        let detail =
            format!("window is {:?}; give two different numbers, lo,hi: the values of black and white", excerpt(text));
        Problem::invalid_parameter("window", detail)
    })
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
