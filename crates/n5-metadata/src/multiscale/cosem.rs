//! COSEM / CellMap: `transform: {axes, scale, translate, units}` per level.
//!
//! The transform is on each dataset, and on the group as `multiscales: [{"datasets": [{"path": …, "transform": …}]}]`.
//! Lists are in C order, slowest axis first, unless `ordering` (or `order`) is `"F"`. Lists in C order are reversed
//! here.
//!
//! The attributes of the listed paths are loaded. If no path is listed, those of the children named `s<number>` are
//! loaded, because a group is also recognised if each of these children has a `transform`. The member `transform`
//! distinguishes this convention from OME-NGFF.
//!
//! Source: n5-universe `N5CosemMetadata.java`; janelia-cellmap/schemas `multiscale.md`.

use serde_json::{Map, Value};

use super::pyramid::{
    Convention, Pyramid, PyramidLevel, clear_units, factors_from_resolution, find_levels, level_names, repair_sizes,
};
use crate::calibration::{Calibration, note_axis_order, transform};
use crate::json_values::path_below;
use crate::node::{MAX_LEVELS, Node};
use crate::problem::{MetadataProblem, MetadataProblemKind};
use crate::voxel_size::checked_sizes;

/// Returns the path and the `transform` of each level that the group lists, or `None` if no listed level has a
/// `transform`.
fn listed_levels(attributes: &Map<String, Value>) -> Option<Vec<(String, Option<&Value>)>> {
    let datasets = attributes.get("multiscales")?.get(0)?.get("datasets")?.as_array()?;
    let is_cosem = datasets.iter().any(|dataset| dataset.get("transform").is_some_and(Value::is_object));
    let paths = datasets.iter().take(MAX_LEVELS).filter_map(|dataset| {
        let path = path_below(dataset.get("path")?.as_str()?)?;
        Some((path, dataset.get("transform")))
    });
    is_cosem.then(|| paths.collect())
}

pub(super) fn required_paths(node: &Node) -> Vec<String> {
    match listed_levels(node.attributes()) {
        Some(levels) => levels.into_iter().map(|(path, _)| path).collect(),
        None => level_names(node).into_iter().map(|(_, name)| name).collect(),
    }
}

pub(super) fn read(node: &Node, problems: &mut Vec<MetadataProblem>) -> Option<Pyramid> {
    let listed = listed_levels(node.attributes()).unwrap_or_else(|| unlisted_levels(node));
    if listed.is_empty() {
        return None;
    }
    let names = listed.iter().enumerate().map(|(number, (path, _))| (number, path.clone()));
    let mut first: Option<Calibration> = None;
    let mut levels = Vec::new();
    for level in find_levels(node, names, problems) {
        let rank = level.dataset.rank();
        let own = level.dataset.members().get("transform");
        let listed_transform = listed.get(level.number).and_then(|(_, value)| *value);
        let Some(value) = listed_transform.or(own) else {
            MetadataProblemKind::InvalidLevel.report(problems, format!("level {} has no transform", level.path));
            continue;
        };
        match transform(value, rank) {
            Ok(transform) => {
                // The dataset's description reports the faults of its own transform.
                if let Some(sizes) = listed_transform.and_then(|transform| transform.get("scale")) {
                    checked_sizes(&format!("level {}: transform.scale", level.path), sizes, rank, problems);
                }
                let base = first.get_or_insert_with(|| transform.clone());
                let (resolution, translation) =
                    (transform.resolution.unwrap_or_default(), transform.translation.unwrap_or_default());
                let factors = factors_from_resolution(&resolution, base.resolution.as_deref().unwrap_or_default());
                let dimensions = level.dataset.dimensions().to_vec();
                levels.push((PyramidLevel { path: level.path, factors, resolution, translation }, dimensions));
            }
            Err(problem) => {
                MetadataProblemKind::InvalidLevel.report(problems, format!("level {}: {problem}", level.path));
            }
        }
    }
    let mut first = first?;
    note_axis_order(first.axes.as_deref(), problems);
    let calibrated_axes = repair_sizes(&mut levels);
    clear_units(&mut first.units, &calibrated_axes);
    let levels = levels.into_iter().map(|(level, _)| level).collect();
    Some(Pyramid { convention: Convention::Cosem, axes: first.axes, units: first.units, calibrated_axes, levels })
}

/// Returns the children `s<number>` if each of them has its own `transform`, otherwise an empty list.
fn unlisted_levels(node: &Node) -> Vec<(String, Option<&Value>)> {
    let names: Vec<String> = level_names(node).into_iter().map(|(_, name)| name).collect();
    let has_transform = |name: &String| {
        let transform = node.child_documents.get(name).and_then(|document| document.members().get("transform"));
        transform.is_some_and(|transform| transform.get("scale").is_some())
    };
    if names.iter().all(has_transform) { names.into_iter().map(|name| (name, None)).collect() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::*;

    fn c_order(scale: [f64; 3], translate: [f64; 3]) -> Value {
        json!({"axes": ["z", "y", "x"], "order": "C", "scale": scale, "translate": translate, "units": ["nm", "nm", "um"]})
    }

    #[test]
    fn lists_are_slowest_axis_first() {
        let datasets = json!([
            {"path": "s0", "transform": c_order([3.24, 4.0, 5.0], [0.0, 0.0, 0.0])},
            {"path": "s1", "transform": c_order([6.48, 8.0, 10.0], [1.62, 2.0, 2.5])}]);
        let own = json!({"multiscales": [{"datasets": datasets, "name": "mito"}],
            "pixelResolution": {"dimensions": [5.0, 4.0, 3.24], "unit": "nm"}, "scales": [[1, 1, 1], [2, 2, 2]]});
        let children = [("s0", array(&[40, 36, 30], &json!({}))), ("s1", array(&[20, 18, 15], &json!({})))];
        let (pyramid, levels, problems) = read_levels(&group(&[], &own, &children));
        assert_eq!(pyramid.convention, Convention::Cosem);
        assert_eq!(pyramid.axes.unwrap(), ["x", "y", "z"]);
        assert_eq!(pyramid.units.unwrap(), ["um", "nm", "nm"]);
        assert_eq!(
            levels,
            json!([
                ["s0", [1, 1, 1], [5.0, 4.0, 3.24], [0.0, 0.0, 0.0]],
                ["s1", [2, 2, 2], [10.0, 8.0, 6.48], [2.5, 2.0, 1.62]]
            ])
        );
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn order_f_is_kept() {
        let value = json!({"axes": ["x", "y"], "scale": [1, 2], "translate": [3, 4], "ordering": "F"});
        let parsed = transform(&value, 2).unwrap();
        assert_eq!(
            (parsed.axes.unwrap(), parsed.resolution.unwrap(), parsed.translation.unwrap()),
            (vec!["x".into(), "y".into()], vec![1.0, 2.0], vec![3.0, 4.0])
        );
    }

    #[test]
    fn levels_with_transforms_are_found_without_a_list_in_the_group() {
        let level = |n: f64| array(&[8, 8, 8], &json!({"transform": c_order([n, n, n], [0.0, 0.0, 0.0])}));
        let (pyramid, levels, _) = read_levels(&group(&[], &json!({}), &[("s0", level(32.0)), ("s1", level(64.0))]));
        assert_eq!(pyramid.convention, Convention::Cosem);
        assert_eq!(levels[1][1], json!([2, 2, 2]));
    }

    #[test]
    fn x_listed_first_is_reported() {
        let mut problems = Vec::new();
        let value = json!({"axes": ["x", "y", "z"], "scale": [7, 11, 13]});
        let parsed = transform(&value, 3).unwrap();
        note_axis_order(parsed.axes.as_deref(), &mut problems);
        assert_eq!((parsed.resolution.unwrap(), problems.len()), (vec![13.0, 11.0, 7.0], 1));
    }

    #[test]
    fn malformed_transforms_are_described() {
        for bad in [json!(3), json!({}), json!({"scale": [1, 2]}), json!({"scale": ["1", 2, 3]})] {
            assert!(transform(&bad, 3).unwrap_err().starts_with("transform "), "{bad}");
        }
        let own = json!({"multiscales": [{"datasets": [{"path": "s0", "transform": {"scale": [1]}}, {"path": "s9", "transform": {}}]}]});
        let mut problems = Vec::new();
        assert!(read(&group(&[], &own, &[("s0", array(&[4, 4], &json!({})))]), &mut problems).is_none());
        assert_eq!(problems.len(), 2, "{problems:?}");
    }
}
