//! n5-viewer, and Neuroglancer's reading of it: levels `s0`, `s1`, … in one group.
//!
//! Modern: each level has `downsamplingFactors` and `pixelResolution`, the voxel size at *full*
//! resolution, as `{"unit": …, "dimensions": […]}` or a plain list. Deprecated: the group has `scales`
//! and `pixelResolution`. Neuroglancer also takes `downsamplingFactors` as a list of lists and
//! `axes`, `units`, `resolution` on the group. Lists are in N5 order.
//!
//! Wants the children named `s<number>`; a group with such datasets counts when it or one of them has
//! one of these keys or `multiScale`.
//!
//! Source: n5-universe `N5SingleScaleMetadataParser.java`, `N5ViewerMultiscaleMetadataParser.java`;
//! Neuroglancer `src/datasource/n5/frontend.ts`.

use serde_json::{Map, Value};

use super::Node;
use super::fields::{note, one_per_axis, shown, strings};
use super::physical::pixel_resolution;
use super::pyramid::{Convention, Found, Pyramid};
use super::scales::{Placement, level_names, level_paths, levels, listed_factors, xyz};

pub(super) fn wanted(node: &Node) -> Vec<String> {
    level_paths(node)
}

pub(super) fn read(node: &Node, problems: &mut Vec<String>) -> Option<Pyramid> {
    let group = node.attributes();
    let names: Vec<(usize, String)> =
        level_names(node).into_iter().filter(|(_, name)| node.child_documents.contains_key(name)).collect();
    let marked_group = ["scales", "downsamplingFactors", "pixelResolution", "multiScale"];
    let marked_level = ["downsamplingFactors", "pixelResolution"];
    let marked = marked_group.iter().any(|key| group.contains_key(*key))
        || names
            .iter()
            .filter_map(|(_, name)| node.child_documents.get(name))
            .any(|document| marked_level.iter().any(|key| document.members().contains_key(*key)));
    if !marked {
        return None;
    }
    let listed = listed_factors(group);
    let mut units = None;
    let place = |first: &Found, problems: &mut Vec<String>| {
        let rank = first.dataset.rank();
        let (base, given) = base_resolution(group, first, problems);
        units = given;
        Placement { base, offset: vec![0.0; rank] }
    };
    let first = names.first().cloned();
    let levels = levels(node, names, listed.as_deref(), place, problems);
    let rank = levels.first()?.factors.len();
    if let (Some(listed), Some((start, _))) = (&listed, first) {
        for number in start..listed.len() {
            if !levels.iter().any(|level| level.path == format!("s{number}")) {
                note(problems, format!("the group lists factors for s{number}, which is not a readable dataset"));
            }
        }
    }
    let axes = group.get("axes").and_then(strings).filter(|axes| axes.len() == rank).or_else(|| xyz(rank));
    Some(Pyramid { convention: Convention::N5Viewer, axes, units, levels })
}

/// Voxel size at full resolution and its units: the first level's `pixelResolution`, the group's, the
/// group's `resolution` and `units`, else 1.
fn base_resolution(
    group: &Map<String, Value>,
    first: &Found,
    problems: &mut Vec<String>,
) -> (Vec<f64>, Option<Vec<String>>) {
    let rank = first.dataset.rank();
    for (attributes, place) in [(first.dataset.members(), first.path.as_str()), (group, "the group")] {
        if let Some(given) = attributes.get("pixelResolution") {
            match pixel_resolution(given, rank) {
                Some((base, unit)) => return (base, unit.map(|unit| vec![unit; rank])),
                None => note(problems, format!("pixelResolution {} of {place} is not usable", shown(given))),
            }
        }
    }
    let units = group.get("units").and_then(strings).filter(|units| units.len() == rank);
    match group.get("resolution").map(|given| (given, one_per_axis(given, rank))) {
        Some((_, Some(base))) => (base, units),
        Some((given, None)) => {
            note(problems, format!("resolution {} of the group is not one number per axis", shown(given)));
            (vec![1.0; rank], units)
        }
        None => (vec![1.0; rank], units),
    }
}
