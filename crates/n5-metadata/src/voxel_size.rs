//! Checks the voxel sizes in attributes, and says what is wrong with them and what to write instead.

use serde_json::Value;

use crate::json_values::{one_per_axis, push_unique, truncated_json};
use crate::problem::MetadataProblem;

/// Largest number of wrong entries that a sentence names.
const MAX_NAMED: usize = 3;

/// Returns true if `size` can be the size of a voxel: it is positive, and neither infinite nor so small that its digits
/// are lost.
pub(crate) fn is_usable_size(size: f64) -> bool {
    size.is_normal() && size > 0.0
}

/// Returns the sizes in `value`, the attribute `name`, which must be one finite number per axis; `None` if it is not. Adds
/// a problem unless all of them are usable.
pub(crate) fn checked_sizes(
    name: &str,
    value: &Value,
    rank: usize,
    problems: &mut Vec<MetadataProblem>,
) -> Option<Vec<f64>> {
    if let Some(fault) = fault(value, rank) {
        push_unique(problems, format!("{name} {} is wrong: {fault}; {}", truncated_json(value), advice(rank)));
    }
    one_per_axis(value, rank)
}

/// Returns a sentence that says what is wrong with the sizes `value`, and which sizes are therefore unknown; `None` if
/// nothing is wrong.
fn fault(value: &Value, rank: usize) -> Option<String> {
    let unknown = "so the voxel size is unknown";
    let Some(entries) = value.as_array() else { return Some(format!("it is not a list, {unknown}")) };
    if entries.len() != rank {
        return Some(format!("it has {} for {}, {unknown}", count(entries.len(), "number"), count(rank, "axis")));
    }
    let wrong_type: Vec<String> =
        entries.iter().filter(|entry| !entry.is_number()).take(MAX_NAMED).map(truncated_json).collect();
    if !wrong_type.is_empty() {
        let (verb, noun) = if wrong_type.len() == 1 { ("is", "a number") } else { ("are", "numbers") };
        return Some(format!("{} {verb} not {noun}, {unknown}", enumerate(&wrong_type)));
    }
    let is_wrong = |entry: &Value| !entry.as_f64().is_some_and(is_usable_size);
    let wrong: Vec<(usize, &Value)> = entries.iter().enumerate().filter(|(_, entry)| is_wrong(entry)).collect();
    if wrong.is_empty() {
        return None;
    }
    let mut values: Vec<String> = wrong.iter().map(|(_, entry)| truncated_json(entry)).collect();
    values.dedup();
    values.truncate(MAX_NAMED);
    let verb = if values.len() == 1 { "is" } else { "are" };
    let reason = if wrong.iter().all(|(_, entry)| entry.as_f64().is_some_and(|size| size > 0.0)) {
        "too small"
    } else {
        "not greater than 0"
    };
    let consequence = if wrong.len() == rank {
        unknown.to_owned()
    } else {
        let axes: Vec<String> = wrong.iter().map(|(axis, _)| (axis + 1).to_string()).collect();
        let plural = if axes.len() == 1 { "axis" } else { "axes" };
        format!("so the voxel size along {plural} {} is unknown", enumerate(&axes))
    };
    Some(format!("{} {verb} {reason}, {consequence}", enumerate(&values)))
}

fn advice(rank: usize) -> String {
    match rank {
        0 => "leave it out, because there is no axis".to_owned(),
        1 => "write a list of one number greater than 0, or leave it out".to_owned(),
        _ => format!("write a list of {rank} numbers greater than 0, one per axis, or leave it out"),
    }
}

fn count(number: usize, noun: &str) -> String {
    match (number, noun) {
        (1, noun) => format!("1 {noun}"),
        (number, "axis") => format!("{number} axes"),
        (number, noun) => format!("{number} {noun}s"),
    }
}

/// Returns the words as `a`, `a and b` or `a, b and c`.
fn enumerate(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [word] => word.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(value: &Value, rank: usize) -> (Option<Vec<f64>>, Vec<String>) {
        let mut problems = Vec::new();
        let sizes = checked_sizes("resolution", value, rank, &mut problems);
        (sizes, problems.iter().map(|problem| problem.to_string()).collect())
    }

    #[test]
    fn usable_sizes_are_accepted_without_a_problem() {
        assert_eq!(check(&json!([4, 4.5, 1e-9]), 3), (Some(vec![4.0, 4.5, 1e-9]), Vec::new()));
        assert_eq!(check(&json!([]), 0), (Some(Vec::new()), Vec::new()));
    }

    #[test]
    fn every_unusable_size_is_explained_with_what_to_write() {
        let three = "; write a list of 3 numbers greater than 0, one per axis, or leave it out";
        for (value, text) in [
            (json!([0, 4, 4]), "[0,4,4] is wrong: 0 is not greater than 0, so the voxel size along axis 1 is unknown"),
            (
                json!([0, -4, 0.5]),
                "[0,-4,0.5] is wrong: 0 and -4 are not greater than 0, so the voxel size along axes 1 and 2 is unknown",
            ),
            (json!([0, 0, 0]), "[0,0,0] is wrong: 0 is not greater than 0, so the voxel size is unknown"),
            (json!([4, 1e-310, 4]), "is wrong: 1e-310 is too small, so the voxel size along axis 2 is unknown"),
            (json!([4, 4]), "[4,4] is wrong: it has 2 numbers for 3 axes, so the voxel size is unknown"),
            (json!([4]), "[4] is wrong: it has 1 number for 3 axes, so the voxel size is unknown"),
            (json!(["4", 4, 4]), "[\"4\",4,4] is wrong: \"4\" is not a number, so the voxel size is unknown"),
            (json!(["4", null, 4]), "is wrong: \"4\" and null are not numbers, so the voxel size is unknown"),
            (json!("4"), "\"4\" is wrong: it is not a list, so the voxel size is unknown"),
            (json!(null), "null is wrong: it is not a list, so the voxel size is unknown"),
        ] {
            let (_, problems) = check(&value, 3);
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].starts_with("resolution ") && problems[0].ends_with(three), "{problems:?}");
            assert!(problems[0].contains(text), "{problems:?}");
        }
        assert!(check(&json!([4]), 0).1[0].ends_with("leave it out, because there is no axis"));
        assert!(check(&json!([0]), 1).1[0].contains("a list of one number"));
    }
}
