//! BigDataViewer's N5: `setup<i>/timepoint<t>/s<k>`.
//!
//! The setup group holds `downsamplingFactors`, a list of lists, and `dataType`; each timepoint group
//! is a pyramid of the levels `s<k>` and may hold `resolution`. The calibration proper lies in an XML
//! file beside the container. Lists are in N5 order.
//!
//! Recognised by the group directly above, which has factors of all levels and is no dataset, while
//! the group itself has none. Wants the children named `s<number>`.
//!
//! Source: bigdataviewer-core `BDV N5 format.md`, `bdv/img/n5/BdvN5Format.java`.

use super::fields::one_per_axis;
use super::problem::Problem;
use super::pyramid::{Convention, Pyramid};
use super::scales::{Placement, level_names, level_paths, levels, listed_factors, xyz};
use super::{Node, fields};

pub(super) fn wanted(node: &Node) -> Vec<String> {
    if recognised(node) { level_paths(node) } else { Vec::new() }
}

fn recognised(node: &Node) -> bool {
    listed_factors(node.attributes()).is_none()
        && node.parent().get("downsamplingFactors").and_then(fields::number_lists).is_some()
        && !node.parent().contains_key("dimensions")
}

pub(super) fn read(node: &Node, problems: &mut Vec<Problem>) -> Option<Pyramid> {
    if !recognised(node) {
        return None;
    }
    let listed = listed_factors(node.parent());
    let mut sized = false;
    let place = |first: &super::pyramid::Found, problems: &mut Vec<Problem>| {
        let rank = first.dataset.rank();
        let given = node.attributes().get("resolution");
        let given = given.and_then(|value| one_per_axis(value, rank));
        sized = given.is_some();
        let base = given.unwrap_or_else(|| {
            fields::note(problems, "the voxel size is not in the container but in BigDataViewer's XML file".to_owned());
            vec![1.0; rank]
        });
        Placement { base, offset: vec![0.0; rank] }
    };
    let levels = levels(node, level_names(node), listed.as_deref(), place, problems);
    let rank = levels.first()?.factors.len();
    Some(Pyramid { convention: Convention::Bdv, axes: xyz(rank), units: None, sized, levels })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::*;
    use super::super::{Kind, describe};
    use super::*;

    /// pybdv's: factors on the setup, `resolution` on the timepoint.
    fn timepoint(own: &serde_json::Value, level: &serde_json::Value) -> Node {
        let setup = json!({"dataType": "uint16", "downsamplingFactors": [[1, 1, 1], [2, 2, 1]]});
        let below = [("s0", array(&[44, 40, 24], &json!({}))), ("s1", array(&[22, 20, 24], level))];
        group(&[json!({"n5": "2.0.0"}), setup], own, &below)
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
    fn a_level_of_its_own_mind_counts_and_missing_calibration_is_said() {
        let (_, levels, problems) = read_levels(&timepoint(&json!({}), &json!({"downsamplingFactors": [2, 2, 2]})));
        assert_eq!(levels[1], json!(["s1", [2, 2, 2], [2.0, 2.0, 2.0], [0.5, 0.5, 0.5]]));
        assert!(problems[0].contains("XML"), "{problems:?}");
    }

    #[test]
    fn a_setup_is_a_plain_group() {
        let setup = json!({"dataType": "uint16", "downsamplingFactors": [[1, 1, 1], [2, 2, 1]]});
        let description = describe(&group(&[json!({})], &setup, &[("timepoint0", json!({}))]));
        assert_eq!((description.kind, description.problems.len()), (Kind::Group, 0));
    }
}
