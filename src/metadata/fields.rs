//! Reading JSON values that others wrote: lists of numbers, names, paths.

use serde_json::Value;

/// A list of JSON numbers; strings that hold numbers do not count.
pub(super) fn numbers(value: &Value) -> Option<Vec<f64>> {
    value.as_array()?.iter().map(Value::as_f64).collect()
}

/// A list of as many finite JSON numbers as there are axes.
pub(super) fn one_per_axis(value: &Value, rank: usize) -> Option<Vec<f64>> {
    numbers(value).filter(|list| list.len() == rank && list.iter().all(|n| n.is_finite()))
}

/// A list of one list of numbers per level.
pub(super) fn number_lists(value: &Value) -> Option<Vec<Vec<f64>>> {
    value.as_array().filter(|lists| !lists.is_empty())?.iter().map(numbers).collect()
}

/// A list of strings.
pub(super) fn strings(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// A JSON number (`7`, `7.0`, `1e3`; not `"7"`) that is whole and within the bounds, inclusive.
pub(super) fn whole(value: &Value, low: i128, high: i128) -> Option<i128> {
    let number = value
        .as_i64()
        .map(i128::from)
        .or_else(|| value.as_u64().map(i128::from))
        .or_else(|| value.as_f64().and_then(whole_float))?;
    (low..=high).contains(&number).then_some(number)
}

fn whole_float(number: f64) -> Option<i128> {
    #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and far below 2^127")]
    (number.fract() == 0.0 && number.abs() < 1e20).then_some(number as i128)
}

/// The nearest whole number when `number` is one but for rounding, else `number`.
pub(super) fn snapped(number: f64) -> f64 {
    let whole = number.round();
    if (number - whole).abs() <= 1e-6 * whole.abs() { whole } else { number }
}

/// A value for an error text, cut to a readable length.
pub(super) fn shown(value: &Value) -> String {
    let mut text = value.to_string();
    if let Some((at, _)) = text.char_indices().nth(60) {
        text.truncate(at);
        text.push('…');
    }
    text
}

/// A path from an attribute as a relative path of plain segments; `None` when it leads elsewhere.
pub(super) fn path_below(text: &str) -> Option<String> {
    let segments: Vec<&str> = text.split('/').filter(|segment| !segment.is_empty() && *segment != ".").collect();
    let sound = !text.starts_with('/')
        && !segments.is_empty()
        && segments.iter().all(|s| *s != ".." && !s.contains(|c: char| c == '\\' || c.is_control()));
    sound.then(|| segments.join("/"))
}

/// `0` for `s0`, `12` for `s12`; `None` for names that are not `s` and a number.
pub(super) fn level_number(name: &str) -> Option<usize> {
    let digits = name.strip_prefix('s')?;
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

/// Appends a problem unless it is there already.
pub(super) fn note<P: PartialEq>(problems: &mut Vec<P>, problem: impl Into<P>) {
    let problem = problem.into();
    if !problems.contains(&problem) {
        problems.push(problem);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whole_numbers_are_json_numbers_within_bounds() {
        assert_eq!(whole(&json!(7), 0, 9), Some(7));
        assert_eq!(whole(&json!(7.0), 0, 9), Some(7));
        assert_eq!(whole(&json!(-1), -1, 9), Some(-1));
        assert_eq!(whole(&json!(u64::MAX), 0, i128::from(u64::MAX)), Some(i128::from(u64::MAX)));
        for bad in [json!("7"), json!(7.5), json!(10), json!(1e300), json!(null), json!(true)] {
            assert_eq!(whole(&bad, 0, 9), None, "{bad}");
        }
    }

    #[test]
    fn paths_stay_below() {
        assert_eq!(path_below("s0").as_deref(), Some("s0"));
        assert_eq!(path_below("./a/s0/").as_deref(), Some("a/s0"));
        for bad in ["", ".", "/", "/s0", "../s0", "a/../b", "a\\b", "a\nb"] {
            assert_eq!(path_below(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn level_names_are_s_and_digits() {
        assert_eq!(level_number("s10"), Some(10));
        for bad in ["s", "S0", "s0x", "0", "scale0", "s-1", "s99999999999999999999999"] {
            assert_eq!(level_number(bad), None, "{bad}");
        }
    }

    #[test]
    fn rounding_errors_snap_to_whole_numbers() {
        assert!((snapped(12.96 / 3.24) - 4.0).abs() < f64::EPSILON);
        assert!((snapped(1.5) - 1.5).abs() < f64::EPSILON);
    }

    #[test]
    fn long_values_are_cut_for_error_texts() {
        assert_eq!(shown(&json!({"a": 1})), r#"{"a":1}"#);
        assert_eq!(shown(&json!("é".repeat(100))).chars().count(), 61);
    }
}
