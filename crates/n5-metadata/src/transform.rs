//! The attribute `transform` of COSEM / CellMap: axes, units, voxel size and position of a dataset.
//!
//! Lists are in C order, slowest axis first, unless `ordering` (or `order`) is `"F"`. Lists in C order are reversed
//! here.

use serde_json::Value;

use crate::json_values::{numbers, push_unique, strings, truncated_json};
use crate::problem::MetadataProblem;

/// A `transform` in N5 axis order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Transform {
    pub(crate) axes: Option<Vec<String>>,
    pub(crate) units: Option<Vec<String>>,
    pub(crate) scale: Vec<f64>,
    pub(crate) translate: Vec<f64>,
}

/// Parses a `transform` of `rank` axes.
///
/// # Errors
/// Returns a sentence that describes the fault.
pub(crate) fn transform(value: &Value, rank: usize) -> Result<Transform, String> {
    let unusable = || format!("transform {} is not usable for {rank} axes", truncated_json(value));
    let members = value.as_object().ok_or_else(unusable)?;
    let is_fortran_order =
        ["ordering", "order"].iter().any(|key| members.get(*key).and_then(Value::as_str) == Some("F"));
    let list = |key: &str| -> Result<Option<Vec<f64>>, String> {
        match members.get(key).map(numbers) {
            None => Ok(None),
            Some(Some(mut list)) if list.len() == rank => {
                if !is_fortran_order {
                    list.reverse();
                }
                Ok(Some(list))
            }
            Some(_) => Err(unusable()),
        }
    };
    let names = |key: &str| {
        let mut list = members.get(key).and_then(strings).filter(|list| list.len() == rank)?;
        if !is_fortran_order {
            list.reverse();
        }
        Some(list)
    };
    let scale = list("scale")?.ok_or_else(unusable)?;
    let translate = list("translate")?.unwrap_or_else(|| vec![0.0; rank]);
    Ok(Transform { axes: names("axes"), units: names("units"), scale, translate })
}

/// Adds a problem if the axes appear to be listed fastest first although the metadata does not say so.
pub(crate) fn note_axis_order(axes: Option<&[String]>, problems: &mut Vec<MetadataProblem>) {
    let position = |name: &str| axes.into_iter().flatten().position(|axis| axis == name);
    if position("x").zip(position("y")).is_some_and(|(x, y)| x > y) {
        let text = "transform lists x before y without ordering F; it is read slowest axis first, as in n5-universe";
        push_unique(problems, text.to_owned());
    }
}
