//! Paintera: a group with `painteraData`, its levels in the sub-group `data`.
//!
//! `data` holds `multiScale`, `resolution`, `offset`, `unit` and the levels `s<k>`, each but the first
//! with `downsamplingFactors`; without levels `data` is itself the dataset. Lists are in N5 order.
//!
//! Recognised by `painteraData` on the group, then wants `data` and, as their number is not known yet,
//! `data/s0` to `data/s15`; or by `painteraData` on the group directly above (the group is `data`),
//! then wants the children named `s<number>`.
//!
//! Source: Paintera `README.md`, `util/n5/N5Helpers.kt`.

use serde_json::{Map, Value};

use super::Node;
use super::fields::{note, one_per_axis, shown};
use super::pyramid::{Convention, Found, Pyramid};
use super::scales::{Placement, level_names, level_paths, levels, xyz};

/// Levels asked for below `data`: at factor 2 the sixteenth shrinks a volume of 2^15 voxels to one.
const GUESSED_LEVELS: usize = 16;

pub(super) fn wanted(node: &Node) -> Vec<String> {
    if is_paintera(node.attributes()) {
        let levels = (0..GUESSED_LEVELS).map(|number| format!("data/s{number}"));
        std::iter::once("data".to_owned()).chain(levels).collect()
    } else if is_paintera(node.parent()) {
        level_paths(node)
    } else {
        Vec::new()
    }
}

fn is_paintera(attributes: &Map<String, Value>) -> bool {
    attributes.get("painteraData").is_some_and(Value::is_object)
}

pub(super) fn read(node: &Node, problems: &mut Vec<String>) -> Option<Pyramid> {
    let (names, sources) = if is_paintera(node.attributes()) {
        let data = node.child_documents.get("data").map(crate::n5::Document::members);
        let sources: Vec<&Map<String, Value>> = data.into_iter().chain([node.attributes()]).collect();
        (names_below_data(node), sources)
    } else if is_paintera(node.parent()) {
        (level_names(node), vec![node.attributes(), node.parent()])
    } else {
        return None;
    };
    let place = |first: &Found, problems: &mut Vec<String>| {
        let rank = first.dataset.rank();
        let mut list = |key: &str, otherwise: f64| {
            let Some(given) = sources.iter().find_map(|source| source.get(key)) else { return vec![otherwise; rank] };
            one_per_axis(given, rank).unwrap_or_else(|| {
                note(problems, format!("{key} {} is not one number per axis", shown(given)));
                vec![otherwise; rank]
            })
        };
        Placement { base: list("resolution", 1.0), offset: list("offset", 0.0) }
    };
    let levels = levels(node, names, None, place, problems);
    let rank = levels.first()?.factors.len();
    let unit = sources.iter().find_map(|source| source.get("unit").and_then(Value::as_str));
    let units = unit.map(|unit| vec![unit.to_owned(); rank]);
    Some(Pyramid { convention: Convention::Paintera, axes: xyz(rank), units, levels })
}

fn names_below_data(node: &Node) -> Vec<(usize, String)> {
    if node.child_documents.get("data").is_some_and(crate::n5::Document::describes_dataset) {
        return vec![(0, "data".to_owned())];
    }
    let names = (0..GUESSED_LEVELS).map(|number| (number, format!("data/s{number}")));
    names.filter(|(_, path)| node.child_documents.contains_key(path)).collect()
}
