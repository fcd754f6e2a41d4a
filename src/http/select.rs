//! NumPy's basic indexing as text, `0:64,10:20:2,5`: the value of the parameter `select`.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use smallvec::SmallVec;

/// One item of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// `5`: one position; the axis is dropped.
    At(i64),
    /// `start:stop:step`; negative numbers count from the end.
    Slice {
        /// First position, by default 0.
        start: Option<i64>,
        /// Position after the last, by default the end.
        stop: Option<i64>,
        /// At least 1.
        step: u64,
    },
    /// `...`: as many full slices as there are axes left.
    Rest,
}

const FULL: Item = Item::Slice { start: None, stop: None, step: 1 };

/// The samples of one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Along {
    pub(super) start: i64,
    pub(super) count: u64,
    pub(super) step: u64,
    /// Whether the axis is left out of the result's shape.
    pub(super) dropped: bool,
}

/// Why an index does not fit a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Misfit {
    /// More items than axes.
    TooMany(usize),
    /// No position of that number on that axis.
    Beyond { axis: usize, position: i64 },
}

/// Parses an index: items separated by commas, a trailing comma and enclosing brackets allowed, spaces
/// ignored around numbers. An empty text is an index without items.
///
/// # Errors
/// What is wrong, as text for the client.
pub(super) fn parse(text: &str) -> Result<Vec<Item>, String> {
    let text = trim(text);
    let text = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).map_or(text, trim);
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let text = text.strip_suffix(',').unwrap_or(text);
    let items = text.split(',').map(|item| parse_item(trim(item))).collect::<Result<Vec<Item>, String>>()?;
    if items.iter().filter(|item| **item == Item::Rest).count() > 1 {
        return Err("... may stand once".to_owned());
    }
    Ok(items)
}

fn parse_item(text: &str) -> Result<Item, String> {
    if text == "..." {
        return Ok(Item::Rest);
    }
    let mut parts = text.split(':').map(trim);
    let (Some(first), second, third) = (parts.next(), parts.next(), parts.next()) else { return Err(syntax(text)) };
    if parts.next().is_some() {
        return Err(syntax(text));
    }
    let Some(stop) = second else { return Ok(Item::At(number(first).ok_or_else(|| syntax(text))?)) };
    let bound = |part: &str| match part {
        "" => Ok(None),
        part => number(part).map(Some).ok_or_else(|| syntax(text)),
    };
    let step = match bound(third.unwrap_or_default())? {
        None => 1,
        Some(step) if step > 0 => step.unsigned_abs(),
        Some(step) => return Err(format!("step {step} is not positive; only forward steps are served")),
    };
    Ok(Item::Slice { start: bound(first)?, stop: bound(stop)?, step })
}

fn syntax(item: &str) -> String {
    let shown: String = item.chars().take(40).collect();
    format!("{shown:?} is not an integer, start:stop, start:stop:step or ...")
}

fn trim(text: &str) -> &str {
    text.trim_matches(' ')
}

/// A decimal number with or without a minus, at most 2^63 - 1 in magnitude.
pub(super) fn number(text: &str) -> Option<i64> {
    let (digits, negative) = text.strip_prefix('-').map_or((text, false), |digits| (digits, true));
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let magnitude: i64 = digits.parse().ok()?;
    if negative { magnitude.checked_neg() } else { Some(magnitude) }
}

/// The samples that `items` select of a dataset of `dimensions`, one entry per axis.
///
/// As in NumPy: axes without an item are full, slices are cut off at the ends, positions are not.
pub(super) fn resolve(items: &[Item], dimensions: &[u64]) -> Result<SmallVec<[Along; 6]>, Misfit> {
    let given = items.iter().filter(|item| **item != Item::Rest).count();
    let Some(missing) = dimensions.len().checked_sub(given) else { return Err(Misfit::TooMany(given)) };
    let rest = items.iter().position(|item| *item == Item::Rest).unwrap_or(items.len());
    let (before, after) = items.split_at_checked(rest).unwrap_or((items, &[]));
    let full = std::iter::repeat_n(&FULL, missing);
    let axes = before.iter().chain(full).chain(after.iter().filter(|item| **item != Item::Rest));
    axes.zip(dimensions).enumerate().map(|(axis, (item, size))| along(axis, item, *size)).collect()
}

fn along(axis: usize, item: &Item, size: u64) -> Result<Along, Misfit> {
    let wrapped = |position: i64| {
        let position = i128::from(position);
        if position < 0 { position.saturating_add(size.into()) } else { position }
    };
    match item {
        Item::At(position) => {
            let beyond = Misfit::Beyond { axis, position: *position };
            match i64::try_from(wrapped(*position)) {
                Ok(start) if start >= 0 && start.unsigned_abs() < size => {
                    Ok(Along { start, count: 1, step: 1, dropped: true })
                }
                _ => Err(beyond),
            }
        }
        Item::Slice { start, stop, step } => {
            let clipped = |position: i64| u64::try_from(wrapped(position)).unwrap_or(0).min(size);
            let start = start.map_or(0, clipped);
            let count = stop.map_or(size, clipped).saturating_sub(start).div_ceil((*step).max(1));
            let start = i64::try_from(start).unwrap_or(i64::MAX);
            Ok(Along { start, count, step: *step, dropped: false })
        }
        Item::Rest => along(axis, &FULL, size),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Positions selected along each axis, and whether the axis is dropped.
    type Picked = Vec<(Vec<u64>, bool)>;

    fn picked(text: &str, dimensions: &[u64]) -> Picked {
        let axes = resolve(&parse(text).unwrap(), dimensions).unwrap();
        axes.iter().map(|a| ((0..a.count).map(|k| a.start.unsigned_abs() + k * a.step).collect(), a.dropped)).collect()
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
            assert_eq!(picked(text, &[10]), [(expected, false)], "{text}");
        }
    }

    #[test]
    fn an_integer_drops_its_axis() {
        assert_eq!(picked("1,0:2", &[3, 3]), [(vec![1], true), (vec![0, 1], false)]);
        assert_eq!(picked("-1", &[3]), [(vec![2], true)]);
    }

    #[test]
    fn missing_axes_and_the_ellipsis_are_full() {
        let full = |n: u64| ((0..n).collect::<Vec<u64>>(), false);
        assert_eq!(picked("0", &[2, 3]), [(vec![0], true), full(3)]);
        assert_eq!(picked("...,0", &[2, 3]), [full(2), (vec![0], true)]);
        assert_eq!(picked("0,...,1", &[2, 3, 2]), [(vec![0], true), full(3), (vec![1], true)]);
        assert_eq!(picked("0,...,1", &[2, 2]), [(vec![0], true), (vec![1], true)]);
        assert_eq!(picked("...", &[]), []);
        assert_eq!(picked("", &[]), []);
    }

    #[test]
    fn brackets_spaces_and_a_trailing_comma_are_python() {
        let expected = picked("0:2,1", &[3, 3]);
        for text in ["[0:2,1]", " [ 0 : 2 , 1 ] ", "0:2,1,"] {
            assert_eq!(picked(text, &[3, 3]), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_basic_index_is_refused() {
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
    fn positions_beyond_an_axis_and_too_many_items_do_not_fit() {
        let misfit = |text: &str, dimensions: &[u64]| resolve(&parse(text).unwrap(), dimensions).unwrap_err();
        assert_eq!(misfit("0,3", &[3, 3]), Misfit::Beyond { axis: 1, position: 3 });
        assert_eq!(misfit("-4", &[3]), Misfit::Beyond { axis: 0, position: -4 });
        assert_eq!(misfit("0", &[0]), Misfit::Beyond { axis: 0, position: 0 });
        assert_eq!(misfit("0,0", &[3]), Misfit::TooMany(2));
        assert_eq!(misfit("0", &[]), Misfit::TooMany(1));
        assert_eq!(misfit("...,0,0", &[3]), Misfit::TooMany(2));
    }

    fn bound() -> impl Strategy<Value = Option<i64>> {
        prop::option::of(prop_oneof![-12i64..13, Just(i64::MAX), Just(-i64::MAX)])
    }

    /// What Python's `range(size)[start:stop:step]` holds, by looking at every position.
    fn python(size: u64, start: Option<i64>, stop: Option<i64>, step: u64) -> Vec<u64> {
        let place = |p: i64| if p < 0 { i128::from(p) + i128::from(size) } else { p.into() };
        let (low, high) = (start.map_or(0, place).max(0), stop.map_or(size.into(), place));
        (0..size)
            .filter(|i| {
                i128::from(*i) >= low && i128::from(*i) < high && (i128::from(*i) - low) % i128::from(step) == 0
            })
            .collect()
    }

    proptest! {
        #[test]
        fn slices_equal_a_walk_over_every_position(size in 0u64..11, start in bound(), stop in bound(), step in 1u64..5) {
            let show = |n: Option<i64>| n.map_or(String::new(), |n| n.to_string());
            let text = format!("{}:{}:{step}", show(start), show(stop));
            prop_assert_eq!(parse(&text).unwrap(), vec![Item::Slice { start, stop, step }]);
            prop_assert_eq!(picked(&text, &[size]), [(python(size, start, stop, step), false)]);
        }

        #[test]
        fn no_text_panics(text in r"[-+0-9:,.\[\] x]{0,30}", dimensions in prop::collection::vec(any::<u64>(), 0..4)) {
            if let Ok(items) = parse(&text) {
                let _ = resolve(&items, &dimensions);
            }
        }
    }
}
