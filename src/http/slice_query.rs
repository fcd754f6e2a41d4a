//! The query string of a slice: its syntax, and the region it means in a dataset of known dimensions.
//!
//! Knows nothing of requests, stores or blocks. Axis order is N5's everywhere.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use smallvec::SmallVec;

use super::parameters::{Parameters, QueryError, decimal, invalid, numbers, parameters, shown, unknown_value};
use super::select::{self, Item, Misfit};
use crate::n5::{Coords, DataType, Region, Start};
use crate::output::{Endian, Options, Order};

/// Every parameter of a slice; `token` is read elsewhere.
const PARAMETERS: [&str; 13] = [
    "start", "stop", "size", "step", "select", "outside", "order", "dtype", "format", "endian", "window", "quality",
    "token",
];

/// A slice's parameters, as far as they can be understood without the dataset.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SliceQuery {
    /// Which samples.
    wanted: Wanted,
    /// `order`
    pub order: Order,
    /// `dtype`: the type that elements are converted to, one of those that are decoded.
    pub data_type: Option<DataType>,
    /// `format`, not yet looked up.
    pub format: Option<String>,
    /// `endian`
    pub endian: Endian,
    /// `window`: the values of black and white, finite.
    pub window: Option<(f64, f64)>,
    /// `quality`, 1 to 100.
    pub quality: Option<u8>,
}

/// The samples asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Wanted {
    /// `start`, `stop` or `size`, `step`, `outside`.
    Box { start: Option<Vec<i64>>, end: Option<End>, step: Option<Vec<u64>>, outside: Outside },
    /// `select`.
    Index(Vec<Item>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Stop(Vec<i64>),
    Size(Vec<i64>),
}

/// What is done where the region leaves the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outside {
    Error,
    Clip,
    Zero,
}

/// The samples of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selection {
    /// All axes of the dataset. Samples outside it are there only with `outside=zero`.
    pub region: Region,
    /// The axes that the result has, ascending: those that no integer of `select` drops.
    pub kept_axes: SmallVec<[usize; 6]>,
}

impl Selection {
    /// Shape of the result in elements, without dropped axes.
    pub(super) fn shape(&self) -> Coords {
        self.kept_axes.iter().filter_map(|axis| self.region.shape().get(*axis).copied()).collect()
    }
}

impl SliceQuery {
    /// Parses the raw query string, still percent-encoded; a `+` is a plus, not a space.
    ///
    /// # Errors
    /// [`QueryError::Invalid`] for unknown or repeated parameters, values that cannot be read, and
    /// parameters that exclude each other.
    pub(super) fn parse(query: Option<&str>) -> Result<Self, QueryError> {
        let given = parameters(query.unwrap_or_default(), &PARAMETERS)?;
        let get = |name| given.get(name).map(String::as_str);
        let wanted = Wanted::parse(&given)?;
        let order = get("order").map_or(Ok(Order::F), |name| {
            Order::from_name(name).ok_or_else(|| unknown_value("order", name, &Order::NAMES))
        })?;
        let endian = get("endian").map_or(Ok(Endian::Little), |name| {
            Endian::from_name(name).ok_or_else(|| unknown_value("endian", name, &Endian::NAMES))
        })?;
        let window = get("window").map(window).transpose()?;
        let quality = get("quality").map(quality).transpose()?;
        let data_type = get("dtype").map(data_type).transpose()?;
        Ok(Self { wanted, order, data_type, format: get("format").map(str::to_owned), endian, window, quality })
    }

    /// The samples that this query means in a dataset of `dimensions`.
    ///
    /// With `outside=clip` the region is what remains inside, on the same lattice: its start is the first
    /// sample inside. What remains of a region wholly outside is empty. A `start` beyond the dataset
    /// without an end is empty too, unless `outside` is `error`.
    ///
    /// # Errors
    /// [`QueryError::OutOfBounds`] where the rank is another or samples lie outside and may not;
    /// [`QueryError::Invalid`] where a region ends before it starts.
    pub(super) fn select(&self, dimensions: &[u64]) -> Result<Selection, QueryError> {
        match &self.wanted {
            Wanted::Index(items) => by_index(items, dimensions),
            Wanted::Box { start, end, step, outside } => {
                by_box(start.as_deref(), end.as_ref(), step.as_deref(), *outside, dimensions)
            }
        }
    }

    /// What the output format is told about this query and the samples it selected.
    pub(super) fn options(&self, selection: &Selection) -> Options {
        Options {
            order: self.order,
            endian: self.endian,
            window: self.window,
            quality: self.quality,
            start: selection.region.start().to_vec(),
            step: selection.region.step().to_vec(),
        }
    }
}

impl Wanted {
    fn parse(given: &Parameters) -> Result<Self, QueryError> {
        let get = |name| given.get(name).map(String::as_str);
        if let Some(text) = get("select") {
            let excluded = ["start", "stop", "size", "step", "outside"];
            return match excluded.iter().find(|name| given.contains_key(**name)) {
                Some(other) => {
                    Err(invalid("select", format!("select and {other} exclude each other; give one of them")))
                }
                None => select::parse(text).map(Self::Index).map_err(|why| invalid("select", format!("select: {why}"))),
            };
        }
        let outside = match get("outside") {
            None | Some("error") => Outside::Error,
            Some("clip") => Outside::Clip,
            Some("zero") => Outside::Zero,
            Some(other) => return Err(unknown_value("outside", other, &["error", "clip", "zero"])),
        };
        let signed = outside != Outside::Error;
        let list = |name, signed| get(name).map(|text| numbers(name, text, signed)).transpose();
        let end = match (list("stop", signed)?, list("size", false)?) {
            (Some(_), Some(_)) => {
                return Err(invalid("size", "stop and size exclude each other; give one of them".to_owned()));
            }
            (Some(stop), None) => Some(End::Stop(stop)),
            (None, size) => size.map(End::Size),
        };
        let step = list("step", false)?.map(|step| step.iter().map(|n| n.unsigned_abs()).collect::<Vec<u64>>());
        if step.as_ref().is_some_and(|step| step.contains(&0)) {
            return Err(invalid("step", "step holds a 0; every step is at least 1".to_owned()));
        }
        Ok(Self::Box { start: list("start", signed)?, end, step, outside })
    }
}

/// Two different finite decimal numbers.
fn window(text: &str) -> Result<(f64, f64), QueryError> {
    let pair = text.split_once(',').and_then(|(lo, hi)| Some((decimal(lo)?, decimal(hi)?)));
    pair.filter(|(lo, hi)| lo.total_cmp(hi).is_ne() && hi - lo != 0.0).ok_or_else(|| {
        let detail =
            format!("window is {:?}; give two different numbers, lo,hi: the values of black and white", shown(text));
        invalid("window", detail)
    })
}

fn data_type(name: &str) -> Result<DataType, QueryError> {
    let data_type = DataType::from_name(name);
    let known = || DataType::names().collect::<Vec<_>>();
    if data_type.size_bytes().is_some() { Ok(data_type) } else { Err(unknown_value("dtype", name, &known())) }
}

/// A whole number from 1 to 100.
fn quality(text: &str) -> Result<u8, QueryError> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|quality| digits && (1..=100).contains(quality)).ok_or_else(|| {
        invalid("quality", format!("quality is {:?}; give a whole number from 1, small, to 100, good", shown(text)))
    })
}

fn by_index(items: &[Item], dimensions: &[u64]) -> Result<Selection, QueryError> {
    let out = |detail| Err(QueryError::OutOfBounds { detail, dimensions: dimensions.into() });
    if items.is_empty() && !dimensions.is_empty() {
        return Err(invalid("select", "select is empty; ... selects everything".to_owned()));
    }
    let axes = match select::resolve(items, dimensions) {
        Ok(axes) => axes,
        Err(Misfit::TooMany(given)) => return out(wrong_rank("select", given, dimensions)),
        Err(Misfit::Beyond { axis, position }) => {
            let size = dimensions.get(axis).copied().unwrap_or(0);
            return out(format!("select asks for position {position} along axis {axis}, which has {size}"));
        }
    };
    let kept_axes = axes.iter().enumerate().filter(|(_, along)| !along.dropped).map(|(axis, _)| axis).collect();
    let start: Start = axes.iter().map(|along| along.start).collect();
    let shape = axes.iter().map(|along| along.count).collect();
    let step = axes.iter().map(|along| along.step).collect();
    match Region::new(start, shape, step) {
        Ok(region) => Ok(Selection { region, kept_axes }),
        Err(error) => out(error.to_string()),
    }
}

fn wrong_rank(parameter: &str, given: usize, dimensions: &[u64]) -> String {
    let axes = if dimensions.len() == 1 { "axis" } else { "axes" };
    format!("{parameter} has {given} numbers, the dataset {dimensions:?} has {} {axes}", dimensions.len())
}

fn by_box(
    start: Option<&[i64]>,
    end: Option<&End>,
    step: Option<&[u64]>,
    outside: Outside,
    dimensions: &[u64],
) -> Result<Selection, QueryError> {
    let out = |detail| QueryError::OutOfBounds { detail, dimensions: dimensions.into() };
    let (stop, size) = match end {
        Some(End::Stop(stop)) => (Some(stop.as_slice()), None),
        Some(End::Size(size)) => (None, Some(size.as_slice())),
        None => (None, None),
    };
    let lengths = [
        ("start", start.map(<[_]>::len)),
        ("stop", stop.map(<[_]>::len)),
        ("size", size.map(<[_]>::len)),
        ("step", step.map(<[_]>::len)),
    ];
    for (parameter, length) in lengths {
        if let Some(given) = length.filter(|length| *length != dimensions.len()) {
            return Err(out(wrong_rank(parameter, given, dimensions)));
        }
    }
    let (mut starts, mut shape, mut steps) = (Start::new(), Coords::new(), Coords::new());
    for (axis, dimension) in dimensions.iter().enumerate() {
        let at = |list: Option<&[i64]>| list.and_then(|list| list.get(axis)).map(|n| i128::from(*n));
        let asked = Axis {
            start: at(start).unwrap_or(0),
            stop: at(stop).or_else(|| at(size).map(|size| at(start).unwrap_or(0).saturating_add(size))),
            step: step.and_then(|list| list.get(axis)).copied().unwrap_or(1),
        };
        let (start, count) = asked.samples(axis, *dimension, outside, dimensions)?;
        starts.push(start);
        shape.push(count);
        steps.push(asked.step);
    }
    let region = Region::new(starts, shape, steps).map_err(|error| out(error.to_string()))?;
    Ok(Selection { region, kept_axes: (0..dimensions.len()).collect() })
}

/// What is asked of one axis; wide enough that nothing overflows.
struct Axis {
    start: i128,
    stop: Option<i128>,
    step: u64,
}

impl Axis {
    /// First sample and number of samples.
    fn samples(
        &self,
        axis: usize,
        dimension: u64,
        outside: Outside,
        dimensions: &[u64],
    ) -> Result<(i64, u64), QueryError> {
        let out = |detail| QueryError::OutOfBounds { detail, dimensions: dimensions.into() };
        let (mut start, dimension, step) = (self.start, i128::from(dimension), i128::from(self.step.max(1)));
        let mut stop = self.stop.unwrap_or(if outside == Outside::Error { dimension } else { dimension.max(start) });
        if self.stop.is_some() && start > stop {
            return Err(invalid("stop", format!("along axis {axis} the region {start}..{stop} ends before it starts")));
        }
        match outside {
            Outside::Error if start < 0 || start > dimension || stop > dimension => {
                let asked = if self.stop.is_some() { format!("{start}..{stop}") } else { format!("{start}..") };
                return Err(out(format!(
                    "along axis {axis} the region {asked} leaves the dataset, which has 0..{dimension}; \
                     stay inside, or give outside=clip or outside=zero"
                )));
            }
            Outside::Error | Outside::Zero => {}
            Outside::Clip => {
                let skipped =
                    start.saturating_neg().max(0).saturating_add(step).saturating_sub(1).checked_div(step).unwrap_or(0);
                start = start.saturating_add(skipped.saturating_mul(step)).min(dimension);
                stop = stop.min(dimension);
            }
        }
        let length = u64::try_from(stop.saturating_sub(start).max(0)).unwrap_or(u64::MAX);
        // A list holds what fits; only a default or a clipped start is computed, and those are below a dimension.
        let start = i64::try_from(start).unwrap_or(i64::MAX);
        Ok((start, length.div_ceil(self.step.max(1))))
    }
}

#[cfg(test)]
mod tests;
