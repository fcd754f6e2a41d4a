//! n5-viewer's layout, and Neuroglancer's extension of it: levels `s0`, `s1`, … in one group.
//!
//! In the modern form, each level has `downsamplingFactors` and `pixelResolution`, the voxel size at *full* resolution,
//! as `{"unit": …, "dimensions": […]}` or a plain list. In the deprecated form, the group has `scales` and
//! `pixelResolution`. On the group, Neuroglancer also reads `downsamplingFactors` as a list of lists, and `axes`,
//! `units` and `resolution`. Lists are in N5 axis order.
//!
//! The attributes of the children named `s<number>` are loaded. A group with such datasets is recognised if it has
//! `scales`, `downsamplingFactors`, `pixelResolution` or `multiScale`, or if one of the datasets has
//! `downsamplingFactors` or `pixelResolution`.
//!
//! Source: n5-universe `N5SingleScaleMetadataParser.java`, `N5ViewerMultiscaleMetadataParser.java`;
//! Neuroglancer `src/datasource/n5/frontend.ts`.

use serde_json::{Map, Value};

use super::pyramid::{
    Convention, LevelDataset, Pyramid, build_levels, clear_units, default_xyz_axes, level_names, level_paths,
    listed_factors, usable_base,
};
use crate::calibration::pixel_resolution;
use crate::json_values::{push_unique, strings};
use crate::node::Node;
use crate::problem::{MetadataProblem, MetadataProblemKind};
use crate::voxel_size::checked_sizes;

pub(super) fn required_paths(node: &Node) -> Vec<String> {
    level_paths(node)
}

pub(super) fn read(node: &Node, problems: &mut Vec<MetadataProblem>) -> Option<Pyramid> {
    let group = node.attributes();
    let names: Vec<(usize, String)> =
        level_names(node).into_iter().filter(|(_, name)| node.child_documents.contains_key(name)).collect();
    let group_markers = ["scales", "downsamplingFactors", "pixelResolution", "multiScale"];
    let level_markers = ["downsamplingFactors", "pixelResolution"];
    let is_n5_viewer = group_markers.iter().any(|key| group.contains_key(*key))
        || names
            .iter()
            .filter_map(|(_, name)| node.child_documents.get(name))
            .any(|document| level_markers.iter().any(|key| document.members().contains_key(*key)));
    if !is_n5_viewer {
        return None;
    }
    let pixel_resolution_of =
        |name: &str| node.child_documents.get(name).and_then(|level| level.members().get("pixelResolution"));
    if let Some((_, finest)) = names.first() {
        let differs = |name: &str| {
            pixel_resolution_of(name).is_some_and(|own| pixel_resolution_of(finest).is_some_and(|first| first != own))
        };
        if let Some((_, name)) = names.iter().find(|(_, name)| differs(name)) {
            let text = format!(
                "pixelResolution of {name} differs from that of {finest}, which is used: it is the voxel size at full resolution"
            );
            push_unique(problems, text);
        }
    }
    let listed = listed_factors(group);
    let mut units = None;
    let mut calibrated_axes = Vec::new();
    let base_placement = |first: &LevelDataset, problems: &mut Vec<MetadataProblem>| {
        let rank = first.dataset.rank();
        let (base, given_units) = base_resolution(group, first, problems);
        units = given_units;
        let (sizes, calibrated) = usable_base(base.as_deref(), rank);
        if base.is_some() {
            clear_units(&mut units, &calibrated);
        }
        calibrated_axes = calibrated;
        (sizes, vec![0.0; rank])
    };
    let first = names.first().cloned();
    let levels = build_levels(node, names, listed.as_deref(), base_placement, problems);
    let rank = levels.first()?.factors.len();
    if let (Some(listed), Some((start, _))) = (&listed, first) {
        for number in start..listed.len() {
            if !levels.iter().any(|level| level.path == format!("s{number}")) {
                push_unique(
                    problems,
                    format!("the group lists factors for s{number}, which is not a readable dataset"),
                );
            }
        }
    }
    let axes = group.get("axes").and_then(strings).filter(|axes| axes.len() == rank).or_else(|| default_xyz_axes(rank));
    Some(Pyramid { convention: Convention::N5Viewer, axes, units, calibrated_axes, levels })
}

/// Returns the voxel size at full resolution and its units; neither if the size that is given is not usable. The sources, in order of precedence, are the first level's
/// `pixelResolution`, the group's `pixelResolution`, and the group's `resolution` and `units`.
fn base_resolution(
    group: &Map<String, Value>,
    first: &LevelDataset,
    problems: &mut Vec<MetadataProblem>,
) -> (Option<Vec<f64>>, Option<Vec<String>>) {
    let rank = first.dataset.rank();
    let mut own_problems = Vec::new();
    let own = first.dataset.members().get("pixelResolution");
    let own_name = format!("pixelResolution of {}", first.path);
    let own = own.and_then(|value| pixel_resolution(&own_name, value, rank, &mut own_problems));
    for problem in own_problems {
        MetadataProblemKind::DatasetOfLevel.report(problems, problem.to_string());
    }
    let size = own.or_else(|| pixel_resolution("pixelResolution", group.get("pixelResolution")?, rank, problems));
    if let Some((base, unit)) = size {
        return (Some(base), unit.map(|unit| vec![unit; rank]));
    }
    let units = group.get("units").and_then(strings).filter(|units| units.len() == rank);
    match group.get("resolution") {
        Some(value) => {
            let base = checked_sizes("resolution", value, rank, problems);
            let units = units.filter(|_| base.is_some());
            (base, units)
        }
        None => (None, units),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::*;

    #[test]
    fn the_modern_form_lives_on_the_levels() {
        let level = |size: [u64; 3], factors: [u64; 3]| {
            let resolution = json!({"unit": "nm", "dimensions": [4.0, 4.0, 40.0]});
            array(&size, &json!({"downsamplingFactors": factors, "pixelResolution": resolution}))
        };
        let children = [
            ("s0", level([96, 80, 48], [1, 1, 1])),
            ("s1", level([48, 40, 48], [2, 2, 1])),
            ("s2", level([24, 20, 24], [4, 4, 2])),
        ];
        let (pyramid, levels, problems) = read_levels(&group(&[], &json!({}), &children));
        assert_eq!(pyramid.convention, Convention::N5Viewer);
        assert_eq!(pyramid.units.unwrap(), ["nm", "nm", "nm"]);
        assert_eq!(
            levels,
            json!([
                ["s0", [1, 1, 1], [4.0, 4.0, 40.0], [0.0, 0.0, 0.0]],
                ["s1", [2, 2, 1], [8.0, 8.0, 40.0], [2.0, 2.0, 0.0]],
                ["s2", [4, 4, 2], [16.0, 16.0, 80.0], [6.0, 6.0, 20.0]]
            ])
        );
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn the_deprecated_form_lives_on_the_group() {
        let own = json!({"axes": ["x", "y", "z"], "units": ["nm", "nm", "um"], "resolution": [4, 4, 40],
            "scales": [[1, 1, 1], [2, 2, 1], [4, 4, 2]]});
        let children = [("s0", array(&[9, 9, 9], &json!({}))), ("s1", array(&[5, 5, 9], &json!({})))];
        let (pyramid, levels, problems) = read_levels(&group(&[], &own, &children));
        assert_eq!(pyramid.units.unwrap(), ["nm", "nm", "um"]);
        assert_eq!(levels[1], json!(["s1", [2, 2, 1], [8.0, 8.0, 40.0], [2.0, 2.0, 0.0]]));
        assert_eq!(problems, ["the group lists factors for s2, which is not a readable dataset"]);
    }

    #[test]
    fn missing_and_malformed_keys_are_guessed_and_reported() {
        let own = json!({"pixelResolution": [1.0], "multiScale": true});
        let children = [
            ("s0", array(&[8, 8], &json!({"pixelResolution": {"dimensions": "x"}}))),
            ("s1", array(&[4, 8], &json!({"downsamplingFactors": [2]}))),
        ];
        let (pyramid, levels, problems) = read_levels(&group(&[], &own, &children));
        assert_eq!((pyramid.axes, pyramid.units), (None, None));
        assert_eq!(levels[1], json!(["s1", [2, 1], [2.0, 1.0], [0.5, 0.0]]));
        assert_eq!(problems.len(), 4, "{problems:?}");
    }

    #[test]
    fn the_finest_level_states_the_voxel_size() {
        let level =
            |size: f64| array(&[8, 8], &json!({"pixelResolution": [size, size], "downsamplingFactors": [size, size]}));
        let (_, levels, problems) = read_levels(&group(&[], &json!({}), &[("s0", level(1.0)), ("s1", level(2.0))]));
        assert_eq!(levels[1][2], json!([2.0, 2.0]));
        assert_eq!(problems.len(), 1, "{problems:?}");
    }

    #[test]
    fn an_unusable_size_is_unknown_and_reported_once() {
        let level = |factors: [u64; 2]| array(&[8, 8], &json!({"downsamplingFactors": factors}));
        let children = [("s0", level([1, 1])), ("s1", level([2, 2]))];
        let own = json!({"resolution": [0, 4], "units": ["nm", "nm"], "axes": ["x", "y"], "multiScale": true});
        let (pyramid, levels, problems) = read_levels(&group(&[], &own, &children));
        assert_eq!(pyramid.calibrated_axes, [false, true]);
        assert_eq!(pyramid.resolution(), Some(vec![None, Some(4.0)]));
        assert_eq!(pyramid.units.unwrap(), ["", "nm"]);
        assert_eq!(levels[1], json!(["s1", [2, 2], [2.0, 8.0], [0.5, 2.0]]), "levels keep their proportions");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("0 is not greater than 0, so the voxel size along axis 1 is unknown"));
        let own = json!({"resolution": [4], "units": ["nm", "nm"], "multiScale": true});
        let (pyramid, _, problems) = read_levels(&group(&[], &own, &children));
        assert_eq!((pyramid.resolution(), pyramid.units, problems.len()), (None, None, 1));
    }

    #[test]
    fn a_level_of_another_rank_is_left_out() {
        let children = [("s0", array(&[8, 8], &json!({}))), ("s1", array(&[4], &json!({}))), ("s2", json!({}))];
        let (_, levels, problems) = read_levels(&group(&[], &json!({"multiScale": true}), &children));
        assert_eq!((levels.as_array().unwrap().len(), problems.len()), (1, 2));
    }
}
