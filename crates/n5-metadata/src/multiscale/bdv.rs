//! BigDataViewer's layout of an N5 container: `setup<i>/timepoint<t>/s<k>`.
//!
//! The setup group holds `dataType`, and `downsamplingFactors` with a list for each level. Each timepoint group is a
//! pyramid whose levels are the datasets `s<k>`, and may hold `resolution`. The full calibration is in an XML file
//! beside the container. Lists are in N5 axis order.
//!
//! A group is recognised as a timepoint if it has no factors itself, and if the group directly above is not a dataset
//! and has factors for all levels. The attributes of the children named `s<number>` are loaded.
//!
//! Source: bigdataviewer-core `BDV N5 format.md`, `bdv/img/n5/BdvN5Format.java`.

use super::pyramid::{
    Convention, LevelDataset, Pyramid, build_levels, default_xyz_axes, level_names, level_paths, listed_factors,
    usable_base,
};
use crate::json_values::{number_lists, push_unique};
use crate::node::Node;
use crate::problem::MetadataProblem;
use crate::voxel_size::checked_sizes;

pub(super) fn required_paths(node: &Node) -> Vec<String> {
    if is_bdv(node) { level_paths(node) } else { Vec::new() }
}

fn is_bdv(node: &Node) -> bool {
    listed_factors(node.attributes()).is_none()
        && node.parent_attributes().get("downsamplingFactors").and_then(number_lists).is_some()
        && !node.parent_attributes().contains_key("dimensions")
}

pub(super) fn read(node: &Node, problems: &mut Vec<MetadataProblem>) -> Option<Pyramid> {
    if !is_bdv(node) {
        return None;
    }
    let listed = listed_factors(node.parent_attributes());
    let mut calibrated_axes = Vec::new();
    let base_placement = |first: &LevelDataset, problems: &mut Vec<MetadataProblem>| {
        let rank = first.dataset.rank();
        let given = node.attributes().get("resolution");
        if given.is_none() {
            push_unique(problems, "the voxel size is not in the container but in BigDataViewer's XML file");
        }
        let given = given.and_then(|value| checked_sizes("resolution", value, rank, problems));
        let (base, calibrated) = usable_base(given.as_deref(), rank);
        calibrated_axes = calibrated;
        (base, vec![0.0; rank])
    };
    let levels = build_levels(node, level_names(node), listed.as_deref(), base_placement, problems);
    let rank = levels.first()?.factors.len();
    Some(Pyramid { convention: Convention::Bdv, axes: default_xyz_axes(rank), units: None, calibrated_axes, levels })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::*;
    use crate::{NodeKind, describe};

    /// A timepoint as pybdv writes it: factors on the setup, `resolution` on the timepoint.
    fn timepoint(own: &serde_json::Value, level: &serde_json::Value) -> Node {
        let setup = json!({"dataType": "uint16", "downsamplingFactors": [[1, 1, 1], [2, 2, 1]]});
        let children = [("s0", array(&[44, 40, 24], &json!({}))), ("s1", array(&[22, 20, 24], level))];
        group(&[json!({"n5": "2.0.0"}), setup], own, &children)
    }

    #[test]
    fn an_unusable_resolution_is_not_said_to_be_missing() {
        let (pyramid, levels, problems) = read_levels(&timepoint(&json!({"resolution": [1, 1, -3]}), &json!({})));
        assert_eq!(pyramid.resolution(), Some(vec![Some(1.0), Some(1.0), None]));
        assert_eq!((&levels[1][2], problems.len()), (&json!([2.0, 2.0, 1.0]), 1), "{problems:?}");
        let (pyramid, _, _) = read_levels(&timepoint(&json!({}), &json!({})));
        assert_eq!(pyramid.resolution(), None);
    }

    #[test]
    fn a_timepoint_inherits_the_factors_of_its_setup() {
        let node = timepoint(&json!({"multiScale": true, "resolution": [1.0, 1.0, 3.0]}), &json!({}));
        let (pyramid, levels, problems) = read_levels(&node);
        assert_eq!(pyramid.convention, Convention::Bdv);
        assert_eq!(
            levels,
            json!([
                ["s0", [1, 1, 1], [1.0, 1.0, 3.0], [0.0, 0.0, 0.0]],
                ["s1", [2, 2, 1], [2.0, 2.0, 3.0], [0.5, 0.5, 0.0]]
            ])
        );
        assert!(problems.is_empty(), "{problems:?}");
    }

    #[test]
    fn factors_of_a_level_take_precedence_and_missing_calibration_is_reported() {
        let (_, levels, problems) = read_levels(&timepoint(&json!({}), &json!({"downsamplingFactors": [2, 2, 2]})));
        assert_eq!(levels[1], json!(["s1", [2, 2, 2], [2.0, 2.0, 2.0], [0.5, 0.5, 0.5]]));
        assert!(problems[0].contains("XML"), "{problems:?}");
    }

    #[test]
    fn a_setup_is_a_plain_group() {
        let setup = json!({"dataType": "uint16", "downsamplingFactors": [[1, 1, 1], [2, 2, 1]]});
        let description = describe(&group(&[json!({})], &setup, &[("timepoint0", json!({}))]));
        assert_eq!((description.kind, description.problems.len()), (NodeKind::Group, 0));
    }
}
