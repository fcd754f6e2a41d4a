//! NumPy's basic indexing as text, such as `0:64,10:20:2,5`: the value of the parameter `select`.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use smallvec::SmallVec;

use crate::http::query::params::{parse_integer, wrong_rank};
use crate::http::redact::excerpt;
use n5_format::{Coords, Region, SignedCoords};

/// One item of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IndexItem {
    /// `5`: one position; its axis is dropped.
    Position(i64),
    /// `start:stop:step`; negative numbers count from the end.
    Slice {
        /// First position, by default 0.
        start: Option<i64>,
        /// Position after the last, by default the end.
        stop: Option<i64>,
        /// Distance between positions, at least 1.
        step: u64,
    },
    /// `...`: full slices along all axes for which there is no other item.
    Ellipsis,
}

const FULL_SLICE: IndexItem = IndexItem::Slice { start: None, stop: None, step: 1 };

/// The samples that a query selects in a known dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Region with all axes of the dataset. It extends beyond the dataset only with `outside=zero`.
    pub region: Region,
    /// Axes of the result in ascending order. An integer in `select` drops its axis.
    pub kept_axes: SmallVec<[usize; 6]>,
}

impl Selection {
    /// Returns the shape of the result in elements, without dropped axes.
    pub(crate) fn shape(&self) -> Coords {
        self.kept(self.region.shape())
    }

    /// Returns the sizes along the kept axes. `shape` has a size for every axis of the dataset.
    pub(crate) fn kept(&self, shape: &[u64]) -> Coords {
        self.kept_axes.iter().filter_map(|axis| shape.get(*axis).copied()).collect()
    }
}

/// Parses an index, whose items are separated by commas. A trailing comma, enclosing brackets and spaces around numbers
/// are allowed. An empty text is an index without items.
///
/// # Errors
/// Returns a message to the client if the text is no index.
pub(crate) fn parse(text: &str) -> Result<Vec<IndexItem>, String> {
    let text = trim(text);
    let text = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).map_or(text, trim);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let text = text.strip_suffix(',').unwrap_or(text);
    let items = text.split(',').map(|item| parse_item(trim(item))).collect::<Result<Vec<IndexItem>, String>>()?;
    if items.iter().filter(|item| **item == IndexItem::Ellipsis).count() > 1 {
        return Err("... may occur only once".to_owned());
    }
    Ok(items)
}

fn parse_item(text: &str) -> Result<IndexItem, String> {
    if text == "..." {
        return Ok(IndexItem::Ellipsis);
    }
    let mut parts = text.split(':').map(trim);
    let (Some(first), second, third) = (parts.next(), parts.next(), parts.next()) else {
        return Err(syntax_error(text));
    };
    if parts.next().is_some() {
        return Err(syntax_error(text));
    }
    let Some(stop) = second else {
        return Ok(IndexItem::Position(parse_integer(first).ok_or_else(|| syntax_error(text))?));
    };
    let bound = |part: &str| match part {
        "" => Ok(None),
        part => parse_integer(part).map(Some).ok_or_else(|| syntax_error(text)),
    };
    let step = match bound(third.unwrap_or_default())? {
        None => 1,
        Some(step) if step > 0 => step.unsigned_abs(),
        Some(step) => return Err(format!("step {step} is not positive; only forward steps are supported")),
    };
    Ok(IndexItem::Slice { start: bound(first)?, stop: bound(stop)?, step })
}

fn syntax_error(item: &str) -> String {
    format!("{:?} is not an integer, start:stop, start:stop:step or ...", excerpt(item))
}

fn trim(text: &str) -> &str {
    text.trim_matches(' ')
}

/// Returns the samples that `items` select from a dataset of `dimensions`.
///
/// As in NumPy, axes without an item are selected whole, and slices are clipped to their axis. A position outside its
/// axis is an error.
///
/// # Errors
/// Returns a message to the client if the index does not fit the dataset.
pub(crate) fn resolve(items: &[IndexItem], dimensions: &[u64]) -> Result<Selection, String> {
    let mut starts = SignedCoords::new();
    let mut shape = Coords::new();
    let mut steps = Coords::new();
    let mut kept_axes = SmallVec::new();
    for (axis, (item, size)) in expand(items, dimensions)?.zip(dimensions).enumerate() {
        let (start, stop, step) = match item {
            IndexItem::Position(position) => {
                let start = i64::try_from(from_start(*position, *size)).ok();
                let start = start.filter(|start| *start >= 0 && start.unsigned_abs() < *size).ok_or_else(|| {
                    format!("select requests position {position} along axis {axis}, which has {size}")
                })?;
                starts.push(start);
                shape.push(1);
                steps.push(1);
                continue;
            }
            IndexItem::Slice { start, stop, step } => (*start, *stop, *step),
            IndexItem::Ellipsis => (None, None, 1),
        };
        let clip = |position: i64| u64::try_from(from_start(position, *size)).unwrap_or(0).min(*size);
        let start = start.map_or(0, clip);
        starts.push(i64::try_from(start).unwrap_or(i64::MAX));
        shape.push(stop.map_or(*size, clip).saturating_sub(start).div_ceil(step.max(1)));
        steps.push(step);
        kept_axes.push(axis);
    }
    let region = Region::new(starts, shape, steps).map_err(|error| error.to_string())?;
    Ok(Selection { region, kept_axes })
}

/// Returns one item for each axis: full slices take the place of `...`, or follow the items if there is no `...`.
fn expand<'a>(items: &'a [IndexItem], dimensions: &[u64]) -> Result<impl Iterator<Item = &'a IndexItem>, String> {
    let item_count = items.iter().filter(|item| **item != IndexItem::Ellipsis).count();
    let Some(full_axes) = dimensions.len().checked_sub(item_count) else {
        return Err(wrong_rank("select", item_count, dimensions));
    };
    let ellipsis_index = items.iter().position(|item| *item == IndexItem::Ellipsis).unwrap_or(items.len());
    let (before, after) = items.split_at_checked(ellipsis_index).unwrap_or((items, &[]));
    Ok(before.iter().chain(std::iter::repeat_n(&FULL_SLICE, full_axes)).chain(after.iter().skip(1)))
}

/// Returns a position counted from the start of an axis of `size`; a negative `position` counts from the end.
fn from_start(position: i64, size: u64) -> i128 {
    let position = i128::from(position);
    if position < 0 { position.saturating_add(size.into()) } else { position }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// For each axis, the selected positions, and true if the axis is dropped.
    type SelectedPositions = Vec<(Vec<u64>, bool)>;

    fn selected(text: &str, dimensions: &[u64]) -> SelectedPositions {
        let Selection { region, kept_axes } = resolve(&parse(text).unwrap(), dimensions).unwrap();
        let positions = |axis: usize| {
            let start = region.start()[axis].unsigned_abs();
            (0..region.shape()[axis]).map(|index| start + index * region.step()[axis]).collect()
        };
        (0..dimensions.len()).map(|axis| (positions(axis), !kept_axes.contains(&axis))).collect()
    }

    #[test]
    fn slices_take_defaults_ends_and_steps_like_numpy() {
        let cases = [
            (":", (0..10).collect::<Vec<u64>>()),
            ("::", (0..10).collect()),
            ("2:5", vec![2, 3, 4]),
            (":3", vec![0, 1, 2]),
            ("7:", vec![7, 8, 9]),
            ("1:8:3", vec![1, 4, 7]),
            ("::4", vec![0, 4, 8]),
            ("-3:", vec![7, 8, 9]),
            (":-8", vec![0, 1]),
            ("8:1000", vec![8, 9]),
            ("-1000:2", vec![0, 1]),
            ("5:5", vec![]),
            ("5:2", vec![]),
            ("10:", vec![]),
            ("1000:2000", vec![]),
            ("3::9223372036854775807", vec![3]),
            ("-9223372036854775807:9223372036854775807:9", vec![0, 9]),
        ];
        for (text, expected) in cases {
            assert_eq!(selected(text, &[10]), [(expected, false)], "{text}");
        }
    }

    #[test]
    fn an_integer_drops_its_axis() {
        assert_eq!(selected("1,0:2", &[3, 3]), [(vec![1], true), (vec![0, 1], false)]);
        assert_eq!(selected("-1", &[3]), [(vec![2], true)]);
    }

    #[test]
    fn missing_axes_and_the_ellipsis_are_full() {
        let full = |n: u64| ((0..n).collect::<Vec<u64>>(), false);
        assert_eq!(selected("0", &[2, 3]), [(vec![0], true), full(3)]);
        assert_eq!(selected("...,0", &[2, 3]), [full(2), (vec![0], true)]);
        assert_eq!(selected("0,...,1", &[2, 3, 2]), [(vec![0], true), full(3), (vec![1], true)]);
        assert_eq!(selected("0,...,1", &[2, 2]), [(vec![0], true), (vec![1], true)]);
        assert_eq!(selected("...", &[]), []);
        assert_eq!(selected("", &[]), []);
    }

    #[test]
    fn brackets_spaces_and_a_trailing_comma_are_accepted() {
        let expected = selected("0:2,1", &[3, 3]);
        for text in ["[0:2,1]", " [ 0 : 2 , 1 ] ", "0:2,1,"] {
            assert_eq!(selected(text, &[3, 3]), expected, "{text}");
        }
    }

    #[test]
    fn invalid_indexes_are_refused() {
        let texts = [
            "a",
            "1.5",
            "+1",
            "0:1:2:3",
            "::0",
            "::-1",
            "1,,2",
            ",",
            "..",
            "....",
            "...,...",
            "--1",
            "-",
            "1 2",
            "[0",
            "0]",
            "[[0]]",
            "None",
            "9223372036854775808",
            "-9223372036854775808",
            "\u{0661}",
            "0:\u{a0}1",
        ];
        for text in texts {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn positions_beyond_an_axis_and_too_many_items_are_errors() {
        let resolve_error = |text: &str, dimensions: &[u64]| resolve(&parse(text).unwrap(), dimensions).unwrap_err();
        let out_of_bounds = |position: i64, axis: usize, size: u64| {
            format!("select requests position {position} along axis {axis}, which has {size}")
        };
        assert_eq!(resolve_error("0,3", &[3, 3]), out_of_bounds(3, 1, 3));
        assert_eq!(resolve_error("-4", &[3]), out_of_bounds(-4, 0, 3));
        assert_eq!(resolve_error("0", &[0]), out_of_bounds(0, 0, 0));
        assert_eq!(resolve_error("0,0", &[3]), wrong_rank("select", 2, &[3]));
        assert_eq!(resolve_error("0", &[]), wrong_rank("select", 1, &[]));
        assert_eq!(resolve_error("...,0,0", &[3]), wrong_rank("select", 2, &[3]));
    }

    fn bound() -> impl Strategy<Value = Option<i64>> {
        prop::option::of(prop_oneof![-12i64..13, Just(i64::MAX), Just(-i64::MAX)])
    }

    /// Returns the positions of Python's `range(size)[start:stop:step]`, found by testing every position.
    fn python_range(size: u64, start: Option<i64>, stop: Option<i64>, step: u64) -> Vec<u64> {
        let wrap = |p: i64| if p < 0 { i128::from(p) + i128::from(size) } else { p.into() };
        let (low, high) = (start.map_or(0, wrap).max(0), stop.map_or(size.into(), wrap));
        (0..size)
            .filter(|i| {
                i128::from(*i) >= low && i128::from(*i) < high && (i128::from(*i) - low) % i128::from(step) == 0
            })
            .collect()
    }

    proptest! {
        #[test]
        fn slices_select_the_positions_of_pythons_range(size in 0u64..11, start in bound(), stop in bound(), step in 1u64..5) {
            let bound_text = |n: Option<i64>| n.map_or(String::new(), |n| n.to_string());
            let text = format!("{}:{}:{step}", bound_text(start), bound_text(stop));
            prop_assert_eq!(parse(&text).unwrap(), vec![IndexItem::Slice { start, stop, step }]);
            prop_assert_eq!(selected(&text, &[size]), [(python_range(size, start, stop, step), false)]);
        }

        #[test]
        fn no_text_panics(text in r"[-+0-9:,.\[\] x]{0,30}", dimensions in prop::collection::vec(any::<u64>(), 0..4)) {
            if let Ok(items) = parse(&text) {
                let _ = resolve(&items, &dimensions);
            }
        }
    }
}
