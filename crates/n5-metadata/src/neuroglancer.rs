//! Requirements of Neuroglancer's `n5` data source.
//!
//! Neuroglancer merges the attributes of a directory with those of every directory above, so a stray key in a parent
//! can make a valid dataset unreadable.
//!
//! Source: Neuroglancer `src/datasource/n5/frontend.ts`, `src/util/json.ts`, `src/util/si_units.ts`.

use n5_format::{AttributesDocument, DataType, DescribedDataset};
use serde_json::{Map, Value};

use crate::json_values::{level_number, number_lists, truncated_json};
use crate::multiscale::pyramid::{Pyramid, listed_factors};
use crate::node::Node;

/// Checks that Neuroglancer can open a dataset. `ancestors` are the attributes of the directories above, root first.
///
/// # Errors
/// The reason why Neuroglancer refuses the dataset.
pub(crate) fn check_dataset(dataset: &DescribedDataset, ancestors: &[AttributesDocument]) -> Result<(), String> {
    let mut merged = Map::new();
    for document in ancestors {
        merged.extend(document.members().clone());
    }
    merged.extend(dataset.members().clone());
    let unsupported = [DataType::Int64, DataType::Float64];
    let data_type = DataType::from_name(&dataset.data_type().name().to_ascii_lowercase());
    if unsupported.contains(&data_type) || data_type.size_bytes().is_none() {
        return Err(format!("it does not support the data type {}", dataset.data_type()));
    }
    let encoding = match merged.get("compression") {
        Some(compression) => compression.get("type"),
        None => merged.get("compressionType"),
    };
    let encoding = encoding.and_then(Value::as_str).ok_or("it requires compression with a type, or compressionType")?;
    if !["raw", "gzip", "blosc", "zstd"].iter().any(|name| name.eq_ignore_ascii_case(encoding)) {
        return Err(format!("it does not support the compression {encoding:?}"));
    }
    // Neuroglancer reads raw elements in place, after a header of 4 bytes plus 4 bytes per axis, which is a multiple of
    // 8 only if the number of axes is odd.
    if encoding.eq_ignore_ascii_case("raw") && data_type == DataType::UInt64 && dataset.rank().is_multiple_of(2) {
        return Err("it reads raw uint64 only if the number of axes is odd".to_owned());
    }
    if dataset.dimensions().contains(&0) {
        return Err("a dimension is 0".to_owned());
    }
    check_coordinate_space(&merged, dataset.rank())
}

/// Checks that the attributes of the coordinate space are valid and match the rank.
fn check_coordinate_space(merged: &Map<String, Value>, rank: usize) -> Result<(), String> {
    let one_per_axis = |key: &str, value: &Value, is_valid: fn(&Value) -> bool| {
        let list = value.as_array().filter(|list| list.iter().all(is_valid));
        let list = list.ok_or_else(|| format!("it refuses {key} {}", truncated_json(value)))?;
        if list.len() == rank {
            Ok(())
        } else {
            Err(format!("{key}, here or in a group above, has {} entries for {rank} axes", list.len()))
        }
    };
    for (key, is_valid) in
        [("resolution", is_positive as fn(&Value) -> bool), ("axes", Value::is_string), ("units", is_unit)]
    {
        if let Some(value) = merged.get(key) {
            one_per_axis(key, value, is_valid)?;
        }
    }
    for key in ["downsamplingFactors", "scales"] {
        match merged.get(key) {
            Some(value) if value.get(0).is_some_and(Value::is_array) => {
                let lists = number_lists(value).ok_or_else(|| format!("it refuses {key} {}", truncated_json(value)))?;
                if lists.iter().any(|list| list.len() != rank) {
                    return Err(format!("{key}, here or in a group above, does not have {rank} entries per level"));
                }
            }
            Some(value) => one_per_axis(key, value, is_positive)?,
            None => {}
        }
    }
    if let Some(value) = merged.get("pixelResolution") {
        let members = value.as_object().ok_or("it requires pixelResolution as an object with unit and dimensions")?;
        let unit = members.get("unit").unwrap_or(&Value::Null);
        if !is_unit(unit) {
            return Err(format!("it refuses the pixelResolution.unit {}", truncated_json(unit)));
        }
        if let Some(value) = members.get("dimensions") {
            one_per_axis("pixelResolution.dimensions", value, is_positive)?;
        }
    }
    Ok(())
}

fn is_positive(value: &Value) -> bool {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    number.is_some_and(|number: f64| number.is_finite() && number > 0.0)
}

/// Returns true for `""`, and for an SI prefix followed by `m`, `s`, `Hz` or `rad/s`.
pub(crate) fn is_unit(value: &Value) -> bool {
    const PREFIXES: [&str; 20] =
        ["", "Y", "Z", "E", "P", "T", "G", "M", "k", "h", "c", "m", "u", "µ", "n", "p", "f", "a", "z", "y"];
    value.as_str().is_some_and(|unit| {
        let bases = ["rad/s", "Hz", "m", "s"];
        unit.is_empty() || bases.iter().any(|base| unit.strip_suffix(base).is_some_and(|rest| PREFIXES.contains(&rest)))
    })
}

/// Checks that Neuroglancer can open the group of a pyramid with all its levels.
///
/// # Errors
/// The reason why Neuroglancer refuses the group.
pub(crate) fn check_group(node: &Node, pyramid: &Pyramid) -> Result<(), String> {
    let mut numbers = Vec::new();
    for level in &pyramid.levels {
        match level_number(&level.path) {
            Some(number) => numbers.push(number),
            None => return Err(format!("it requires levels named s0, s1, …, not {}", level.path)),
        }
    }
    let inherited = || node.ancestors.iter().rev().find_map(|document| listed_factors(document.members()));
    let mut ancestors = node.ancestors.clone();
    ancestors.push(node.own_document().clone());
    let listed = listed_factors(node.attributes()).or_else(inherited);
    let tells_rank = |document: &AttributesDocument| {
        let keys = ["dimensions", "axes", "units", "resolution", "pixelResolution", "downsamplingFactors", "scales"];
        keys.iter().any(|key| document.members().contains_key(*key))
    };
    if !ancestors.iter().any(tells_rank) {
        return Err("no attribute of the group or of a group above gives the number of axes".to_owned());
    }
    let mut data_type: Option<DataType> = None;
    for (level, number) in pyramid.levels.iter().zip(numbers) {
        let Some(attributes) = node.dataset_below(&level.path) else { continue };
        let has_own_factors = attributes.members().contains_key("downsamplingFactors");
        if listed.as_ref().map_or(!has_own_factors && number > 0, |lists| lists.len() <= number) {
            return Err(format!("it finds no downsampling factors for {}", level.path));
        }
        check_dataset(&attributes, &ancestors).map_err(|reason| format!("{}: {reason}", level.path))?;
        let level_type = attributes.data_type().clone();
        if data_type.get_or_insert_with(|| level_type.clone()) != &level_type {
            return Err("the levels differ in data type".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    fn check(ancestor: &Value, further: &Value) -> Result<(), String> {
        check_dataset(&testing::dataset(&testing::array(&[7, 5], further)), &[testing::document(ancestor)])
    }

    #[test]
    fn types_encodings_and_sizes_are_limited() {
        for refused in [
            json!({"dataType": "float64"}),
            json!({"dataType": "int64"}),
            json!({"compression": {"type": "xz"}}),
            json!({"dataType": "uint64"}),
            json!({"dimensions": [0, 5]}),
        ] {
            assert!(check(&json!({}), &refused).is_err(), "{refused}");
        }
        assert!(check(&json!({}), &json!({"compression": {"type": "GZIP"}, "dataType": "INT16"})).is_ok());
    }

    #[test]
    fn units_are_si() {
        for unit in ["", "nm", "µm", "s", "rad/s", "kHz"] {
            assert!(check(&json!({}), &json!({"units": [unit, "m"]})).is_ok(), "{unit}");
        }
        for unit in ["micrometer", "pixel", "px", "angstrom", "n m"] {
            let resolution = json!({"pixelResolution": {"unit": unit, "dimensions": [1, 1]}});
            assert!(check(&json!({}), &resolution).is_err(), "{unit}");
        }
        assert!(check(&json!({}), &json!({"pixelResolution": [1, 1]})).is_err(), "a list has no unit");
    }

    #[test]
    fn attributes_of_groups_above_apply() {
        let ancestor = json!({"resolution": [4, 4, 40]});
        let reason = check(&ancestor, &json!({})).unwrap_err();
        assert_eq!(reason, "resolution, here or in a group above, has 3 entries for 2 axes");
        assert!(check(&ancestor, &json!({"resolution": [4, 4]})).is_ok(), "the dataset's own value takes precedence");
        assert!(check(&json!({"axes": null}), &json!({})).is_err());
        assert!(check(&json!({"downsamplingFactors": [[1, 1], [2, 2]]}), &json!({})).is_ok());
        assert!(check(&json!({"scales": [[1, 1, 1]]}), &json!({})).is_err());
    }
}
