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

pub(super) fn read(node: &Node, problems: &mut Vec<String>) -> Option<Pyramid> {
    if !recognised(node) {
        return None;
    }
    let listed = listed_factors(node.parent());
    let place = |first: &super::pyramid::Found, problems: &mut Vec<String>| {
        let rank = first.dataset.rank();
        let given = node.attributes().get("resolution");
        let base = given.and_then(|value| one_per_axis(value, rank)).unwrap_or_else(|| {
            fields::note(problems, "the voxel size is not in the container but in BigDataViewer's XML file".to_owned());
            vec![1.0; rank]
        });
        Placement { base, offset: vec![0.0; rank] }
    };
    let levels = levels(node, level_names(node), listed.as_deref(), place, problems);
    let rank = levels.first()?.factors.len();
    Some(Pyramid { convention: Convention::Bdv, axes: xyz(rank), units: None, levels })
}
