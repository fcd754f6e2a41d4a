//! `attributes.json` in the form that the strictest readers accept, regardless of the stored form.
//!
//! It holds only TensorStore's keys, in TensorStore's spelling, which Neuroglancer also reads, and
//! `downsamplingFactors`, which TensorStore ignores.
//!
//! Source: TensorStore `driver/n5/metadata.cc`; Neuroglancer `src/datasource/n5/frontend.ts`.

use n5_format::{DataType, DescribedDataset};
use serde_json::{Map, Value, json};

use crate::codec::block_bytes_as;
use crate::coordinate_space::{Axis, CoordinateSpace};
use crate::json_values::{integer_if_whole, level_number, push_unique, strings, truncated_json};
use crate::multiscale::pyramid::Pyramid;
use crate::tensorstore::MAX_BLOCK_BYTES;

/// Returns the attributes of a dataset in a form that every N5 reader accepts, and a sentence for each member that was
/// changed or left out. Attributes that no array reader interprets are left out without a sentence, and so is an unusable
/// `resolution`, which is a problem of its own.
///
/// - `data_type` and `compression` describe the blocks as they are served.
/// - `axes` is written only if the metadata names an axis, `units` only if it names a unit, and `resolution` only if it
///   gives a voxel size or a unit. Sizes in units without an SI spelling are converted: 3 angstrom become 0.3 `nm`.
/// - `blockSize` is as stored, unless a full block exceeds 2 GiB, which TensorStore refuses. It is then cut to the
///   dimensions, which leaves the block grid unchanged.
/// - `factors`, the number of voxels of the finest level along one voxel of this dataset, is written as
///   `downsamplingFactors` only if no voxel size is written. If both were written, Neuroglancer would take the voxel
///   size for that of the finest level, but TensorStore for that of the dataset.
pub fn canonical_attributes(
    dataset: &DescribedDataset,
    space: &CoordinateSpace,
    data_type: &DataType,
    compression: Value,
    factors: Option<&[f64]>,
) -> (Map<String, Value>, Vec<String>) {
    let mut members = Map::new();
    let mut notes = Vec::new();
    if dataset.has_legacy_compression() {
        push_unique(&mut notes, "compressionType becomes compression");
    }
    for key in ["dimensions", "blockSize"] {
        let list = dataset.members().get(key).and_then(Value::as_array);
        if list.into_iter().flatten().any(|value| value.as_u64().is_none()) {
            push_unique(&mut notes, format!("{key} is written as whole numbers"));
        }
    }
    let mut blocks = dataset.block_size().to_vec();
    if data_type.size_bytes().is_some()
        && block_bytes_as(dataset, data_type).is_none_or(|bytes| bytes > MAX_BLOCK_BYTES)
    {
        let cropped = blocks.iter().zip(dataset.dimensions()).map(|(block, size)| (*block).min((*size).max(1)));
        blocks = cropped.collect();
        push_unique(&mut notes, format!("blockSize is cut to {blocks:?}, because a full block exceeds 2 GiB"));
    }
    members.insert("dimensions".to_owned(), json!(dataset.dimensions().to_vec()));
    members.insert("blockSize".to_owned(), json!(blocks));
    members.insert("dataType".to_owned(), Value::from(data_type.name()));
    members.insert("compression".to_owned(), compression);
    insert_space_members(&mut members, space);
    note_normalized_space(dataset.members(), space, &mut notes);
    let rank = dataset.rank();
    let is_usable = |list: &[f64]| list.len() == rank && list.iter().all(|factor| factor.is_normal() && *factor > 0.0);
    if let Some(factors) = factors.filter(|list| is_usable(list) && !members.contains_key("resolution")) {
        members.insert("downsamplingFactors".to_owned(), numbers_to_json(factors));
    }
    (members, notes)
}

/// Returns the group attributes that let Neuroglancer's `n5` source open the pyramid: the axes, units and voxel size of
/// the finest level, and the factors of all levels. The source expects the levels at `s0`, `s1`, ….
pub fn canonical_group_attributes(pyramid: &Pyramid) -> Map<String, Value> {
    let mut members = Map::new();
    if pyramid.levels.is_empty() {
        return members;
    }
    insert_space_members(&mut members, &CoordinateSpace::of_level(pyramid, 0));
    // The view `as` resolves `s<n>` to level n, unless another level has that name.
    let names_other_level =
        |n: usize, path: &str| level_number(path).is_some_and(|number| number != n && number < pyramid.levels.len());
    let has_ordered_names = pyramid.levels.iter().enumerate().all(|(n, level)| !names_other_level(n, &level.path));
    let is_usable = |list: &[f64]| list.iter().all(|factor| factor.is_normal() && *factor > 0.0);
    if has_ordered_names && pyramid.levels.iter().all(|level| is_usable(&level.factors)) {
        let factors = pyramid.levels.iter().map(|level| numbers_to_json(&level.factors)).collect();
        members.insert("downsamplingFactors".to_owned(), factors);
    }
    members
}

/// Returns true if Neuroglancer applies the attribute `key` of a group to every dataset below the group.
pub fn is_inherited_by_neuroglancer(key: &str) -> bool {
    const KEYS: [&str; 12] = [
        "dimensions",
        "blockSize",
        "dataType",
        "compression",
        "compressionType",
        "axes",
        "units",
        "resolution",
        "pixelResolution",
        "downsamplingFactors",
        "scales",
        "coordinateArrays",
    ];
    KEYS.contains(&key)
}

/// Returns a sentence for each member that [`canonical_group_attributes`] changes or leaves out.
pub(crate) fn group_normalization_notes(attributes: &Map<String, Value>, pyramid: &Pyramid) -> Vec<String> {
    let mut notes = Vec::new();
    note_normalized_space(attributes, &CoordinateSpace::of_level(pyramid, 0), &mut notes);
    if !canonical_group_attributes(pyramid).contains_key("downsamplingFactors") {
        let text = "the group gets no downsamplingFactors, because its levels are not in the order of their names";
        notes.push(text.to_owned());
    }
    notes
}

fn insert_space_members(members: &mut Map<String, Value>, space: &CoordinateSpace) {
    if space.axes.iter().any(|axis| axis.has_given_name) {
        let names: Vec<&str> = space.axes.iter().map(|axis| axis.name.as_str()).collect();
        members.insert("axes".to_owned(), json!(names));
    }
    let scaled: Vec<(f64, String)> =
        space.axes.iter().map(|axis| axis.unit.map_or((1.0, String::new()), |unit| unit.si_scaled())).collect();
    // Without units Neuroglancer assumes nm, which is wrong for a unit that cannot be parsed.
    let has_units = space.axes.iter().any(|axis| !axis.unit_text.is_empty());
    if has_units {
        members.insert("units".to_owned(), scaled.iter().map(|(_, unit)| Value::from(unit.as_str())).collect());
    }
    if has_units || space.is_calibrated {
        let sizes = space.scale.iter().zip(&scaled).map(|(size, (factor, _))| size * factor);
        members.insert("resolution".to_owned(), sizes.map(|size| Value::from(usable_size(size))).collect());
    }
}

/// Returns `size`, or 1 if the conversion of its unit made it too large or too small for an `f64`.
fn usable_size(size: f64) -> f64 {
    if size.is_normal() { size } else { 1.0 }
}

fn note_normalized_space(attributes: &Map<String, Value>, space: &CoordinateSpace, notes: &mut Vec<String>) {
    let rank = space.axes.len();
    if let Some(value) = attributes.get("axes") {
        match strings(value).filter(|list| list.len() == rank) {
            None => push_unique(notes, format!("axes {} is left out", truncated_json(value))),
            Some(list) if space.axes.iter().any(|axis| axis.has_given_name) => {
                for (given, axis) in list.iter().zip(&space.axes).filter(|(given, axis)| **given != axis.name) {
                    push_unique(notes, format!("the axis {given:?} becomes {:?}", axis.name));
                }
            }
            Some(_) => {}
        }
    }
    if let Some(value) = attributes.get("units").filter(|value| strings(value).is_none_or(|list| list.len() != rank)) {
        push_unique(notes, format!("units {} is left out", truncated_json(value)));
    }
    for Axis { unit, unit_text, .. } in space.axes.iter().filter(|axis| !axis.unit_text.is_empty()) {
        match unit.map(|unit| unit.si_scaled()) {
            None => push_unique(notes, format!("the unit {unit_text:?} is not understood and becomes \"\"")),
            Some((_, si)) if si == *unit_text => {}
            Some((factor, si)) if (factor - 1.0).abs() < 1e-12 => {
                push_unique(notes, format!("the unit {unit_text:?} becomes {si:?}"));
            }
            Some((factor, si)) => push_unique(notes, format!("the unit {unit_text:?} becomes {factor} {si:?}")),
        }
    }
}

fn numbers_to_json(list: &[f64]) -> Value {
    list.iter().map(|number| integer_if_whole(*number)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use crate::{neuroglancer, pyramid, tensorstore_info};

    fn canonicalize(further: &Value, factors: Option<&[f64]>) -> (Map<String, Value>, Vec<String>) {
        let dataset = dataset(&array(&[40, 36], further));
        let space = CoordinateSpace::of_dataset(&dataset, &[]);
        let (members, notes) =
            canonical_attributes(&dataset, &space, dataset.data_type(), json!({"type": "raw"}), factors);
        let served = crate::testing::dataset(&Value::Object(members.clone()));
        tensorstore_info(&served).unwrap();
        neuroglancer::check_dataset(&served, &[]).unwrap();
        (members, notes)
    }

    #[test]
    fn valid_attributes_are_kept_and_unknown_ones_removed() {
        let (members, notes) = canonicalize(
            &json!({"axes": ["x", "t"], "units": ["um", "s"], "resolution": [4, 0.5], "foo": 1, "n5": 2}),
            None,
        );
        assert_eq!(
            Value::Object(members),
            json!({"dimensions": [40, 36], "blockSize": [16, 16], "dataType": "uint8", "compression": {"type": "raw"},
                "axes": ["x", "t"], "units": ["um", "s"], "resolution": [4.0, 0.5]})
        );
        assert!(notes.is_empty(), "{notes:?}");
        let (members, notes) = canonicalize(&json!({}), None);
        assert_eq!((members.len(), notes.len()), (4, 0));
    }

    #[test]
    fn each_normalized_member_has_a_note() {
        for (further, key, value, sentence) in [
            (json!({"axes": ["x", "x"]}), "axes", json!(["x", "x2"]), "the axis \"x\" becomes \"x2\""),
            (json!({"axes": ["x", ""]}), "axes", json!(["x", "y"]), "the axis \"\" becomes \"y\""),
            (json!({"axes": null}), "axes", json!(null), "axes null is left out"),
            (json!({"axes": ["", ""]}), "axes", json!(null), ""),
            (json!({"units": ["µm", "nm"]}), "units", json!(["um", "nm"]), "the unit \"µm\" becomes \"um\""),
            (json!({"units": "nm"}), "units", json!(null), "units \"nm\" is left out"),
            (
                json!({"units": ["pixel", "nm"]}),
                "units",
                json!(["", "nm"]),
                "the unit \"pixel\" is not understood and becomes \"\"",
            ),
            (
                json!({"units": ["angstrom", ""], "resolution": [30, 2]}),
                "resolution",
                json!([3.0, 2.0]),
                "the unit \"angstrom\" becomes 0.1 \"nm\"",
            ),
            (json!({"resolution": [4, 4, 4]}), "resolution", json!(null), ""),
            (json!({"resolution": [4, 4, 4], "units": ["nm", "nm"]}), "units", json!(null), ""),
            (json!({"resolution": [0, -4], "units": ["nm", "nm"]}), "units", json!(null), ""),
            (json!({"resolution": [-4, 4]}), "resolution", json!([1.0, 4.0]), ""),
            (json!({"resolution": [-4, 4], "units": ["nm", "nm"]}), "units", json!(["", "nm"]), ""),
            (
                json!({"pixelResolution": {"unit": "micron", "dimensions": [4, 4]}}),
                "units",
                json!(["um", "um"]),
                "the unit \"micron\" becomes \"um\"",
            ),
            (
                json!({"compression": null, "compressionType": "gzip"}),
                "compressionType",
                json!(null),
                "compressionType becomes compression",
            ),
            (
                json!({"dimensions": ["40", 36.0]}),
                "dimensions",
                json!([40, 36]),
                "dimensions is written as whole numbers",
            ),
            (
                json!({"blockSize": [1_u64 << 40, 1_u64 << 40]}),
                "blockSize",
                json!([40, 36]),
                "blockSize is cut to [40, 36], because a full block exceeds 2 GiB",
            ),
            (json!({"blockSize": [1 << 20, 16]}), "blockSize", json!([1 << 20, 16]), ""),
        ] {
            let (members, notes) = canonicalize(&further, None);
            assert_eq!(members.get(key).unwrap_or(&Value::Null), &value, "{further}");
            assert_eq!(notes.join("|"), sentence, "{further}");
        }
    }

    #[test]
    fn factors_are_written_only_without_a_voxel_size() {
        let factors = |further: Value, factors: &[f64]| {
            canonicalize(&further, Some(factors)).0.get("downsamplingFactors").cloned()
        };
        assert_eq!(factors(json!({}), &[2.0, 1.5]), Some(json!([2, 1.5])));
        assert_eq!(factors(json!({"resolution": [4, 4]}), &[2.0, 2.0]), None);
        assert_eq!(factors(json!({}), &[2.0]), None);
        assert_eq!(factors(json!({}), &[2.0, 0.0]), None);
    }

    #[test]
    fn a_group_names_its_levels_and_the_finest_voxel_size() {
        let pixels = json!({"unit": "micron", "dimensions": [1, 2]});
        let level =
            |factors: Value| array(&[8, 8], &json!({"downsamplingFactors": factors, "pixelResolution": pixels}));
        let read = |children: &[(&str, Value)]| pyramid(&group(&[], &json!({}), children), &mut Vec::new()).unwrap();
        let complete = read(&[("s0", level(json!([1, 1]))), ("s1", level(json!([2, 1.5])))]);
        assert_eq!(
            Value::Object(canonical_group_attributes(&complete)),
            json!({"units": ["um", "um"], "resolution": [1.0, 2.0], "downsamplingFactors": [[1, 1], [2, 1.5]]})
        );
        assert_eq!(group_normalization_notes(&Map::new(), &complete), ["the unit \"micron\" becomes \"um\""]);
        let gap = read(&[("s0", level(json!([1, 1]))), ("s2", level(json!([4, 4])))]);
        assert_eq!(
            canonical_group_attributes(&gap)["downsamplingFactors"],
            json!([[1, 1], [4, 4]]),
            "levels are found by number"
        );
        let reversed = Pyramid { levels: complete.levels.iter().rev().cloned().collect(), ..complete };
        assert!(!canonical_group_attributes(&reversed).contains_key("downsamplingFactors"));
        assert_eq!(group_normalization_notes(&Map::new(), &reversed).len(), 2);
    }
}
