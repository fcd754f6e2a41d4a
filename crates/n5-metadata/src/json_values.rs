//! Tolerant readers of JSON values in attributes. They return `None` for a value of another form.

use serde_json::Value;

/// Returns a list of numbers. Strings that hold numbers are not accepted.
pub(crate) fn numbers(value: &Value) -> Option<Vec<f64>> {
    value.as_array()?.iter().map(Value::as_f64).collect()
}

/// Returns a list of `rank` finite numbers, one per axis.
pub(crate) fn one_per_axis(value: &Value, rank: usize) -> Option<Vec<f64>> {
    numbers(value).filter(|list| list.len() == rank && list.iter().all(|n| n.is_finite()))
}

/// Returns a list of lists of numbers, one list per level. Returns `None` if there is no level.
pub(crate) fn number_lists(value: &Value) -> Option<Vec<Vec<f64>>> {
    value.as_array().filter(|lists| !lists.is_empty())?.iter().map(numbers).collect()
}

/// Returns a list of strings.
pub(crate) fn strings(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// Returns the integer that a JSON number stands for (`7`, `7.0`, `1e3`; not `"7"`) if it lies within the inclusive
/// bounds.
pub(crate) fn bounded_integer(value: &Value, low: i128, high: i128) -> Option<i128> {
    let number = value
        .as_i64()
        .map(i128::from)
        .or_else(|| value.as_u64().map(i128::from))
        .or_else(|| value.as_f64().and_then(integral_float))?;
    (low..=high).contains(&number).then_some(number)
}

fn integral_float(number: f64) -> Option<i128> {
    #[expect(clippy::cast_possible_truncation, reason = "checked to be an integer far below 2^127")]
    (number.fract() == 0.0 && number.abs() < 1e20).then_some(number as i128)
}

/// Returns the nearest integer if `number` differs from it only by rounding errors, and otherwise `number` itself.
pub(crate) fn snap_to_integer(number: f64) -> f64 {
    let rounded = number.round();
    if (number - rounded).abs() <= 1e-6 * rounded.abs() { rounded } else { number }
}

/// Converts a number to JSON, as an integer if it has no fraction.
pub(crate) fn integer_if_whole(number: f64) -> Value {
    #[expect(clippy::cast_possible_truncation, reason = "checked to be an integer below 2^53")]
    if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 {
        Value::from(number as i64)
    } else {
        Value::from(number)
    }
}

/// Returns the value as text for an error message, cut to 60 characters.
pub(crate) fn truncated_json(value: &Value) -> String {
    let mut text = value.to_string();
    if let Some((at, _)) = text.char_indices().nth(60) {
        text.truncate(at);
        text.push('…');
    }
    text
}

/// Normalizes a relative path from an attribute by removing empty segments and `.`. Returns `None` if the path is
/// invalid or leads out of the directory.
pub(crate) fn path_below(text: &str) -> Option<String> {
    let segments: Vec<&str> = text.split('/').filter(|segment| !segment.is_empty() && *segment != ".").collect();
    let is_valid = !text.starts_with('/')
        && !segments.is_empty()
        && segments.iter().all(|s| *s != ".." && !s.contains(|c: char| c == '\\' || c.is_control()));
    is_valid.then(|| segments.join("/"))
}

/// Returns the number in the name of a level: 0 for `s0`, 12 for `s12`. Returns `None` for names that are not `s` and a
/// number.
pub(crate) fn level_number(name: &str) -> Option<usize> {
    let digits = name.strip_prefix('s')?;
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}

/// Appends a problem unless the list already contains it.
pub(crate) fn push_unique<P: PartialEq>(problems: &mut Vec<P>, problem: impl Into<P>) {
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
        assert_eq!(bounded_integer(&json!(7), 0, 9), Some(7));
        assert_eq!(bounded_integer(&json!(7.0), 0, 9), Some(7));
        assert_eq!(bounded_integer(&json!(-1), -1, 9), Some(-1));
        assert_eq!(bounded_integer(&json!(u64::MAX), 0, i128::from(u64::MAX)), Some(i128::from(u64::MAX)));
        for bad in [json!("7"), json!(7.5), json!(10), json!(1e300), json!(null), json!(true)] {
            assert_eq!(bounded_integer(&bad, 0, 9), None, "{bad}");
        }
    }

    #[test]
    fn paths_that_leave_the_group_are_refused() {
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
        assert!((snap_to_integer(12.96 / 3.24) - 4.0).abs() < f64::EPSILON);
        assert!((snap_to_integer(1.5) - 1.5).abs() < f64::EPSILON);
    }

    #[test]
    fn long_values_are_cut_for_error_texts() {
        assert_eq!(truncated_json(&json!({"a": 1})), r#"{"a":1}"#);
        assert_eq!(truncated_json(&json!("é".repeat(100))).chars().count(), 61);
    }
}
