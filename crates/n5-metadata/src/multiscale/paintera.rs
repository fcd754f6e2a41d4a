//! Paintera: a group with `painteraData`, whose levels are in the sub-group `data`.
//!
//! `data` holds `multiScale`, `resolution`, `offset`, `unit` and the levels `s<k>`. Each level except the first has
//! `downsamplingFactors`. If there are no levels, `data` itself is the dataset. Lists are in N5 axis order.
//!
//! A group with `painteraData` is recognised. The attributes of `data` are loaded. Those of `data/s0` to `data/s15` are
//! loaded, too, as far as they exist, because the number of levels is not known at that point. A group directly below
//! one with `painteraData` is recognised as `data`. The attributes of its children named `s<number>` are loaded.
//!
//! Source: Paintera `README.md`, `util/n5/N5Helpers.kt`.

use n5_format::AttributesDocument;
use serde_json::{Map, Value};

use super::pyramid::{
    Convention, LevelDataset, Pyramid, build_levels, clear_units, default_xyz_axes, level_names, level_paths,
    usable_base,
};
use crate::json_values::{one_per_axis, push_unique, truncated_json};
use crate::node::Node;
use crate::problem::MetadataProblem;
use crate::voxel_size::checked_sizes;

/// Number of levels that are looked for below `data`. With a factor of 2, the sixteenth level of an axis of 2^15 voxels
/// has one voxel.
const MAX_PROBED_LEVELS: usize = 16;

pub(super) fn required_paths(node: &Node) -> Vec<String> {
    if is_paintera(node.attributes()) {
        let levels = (0..MAX_PROBED_LEVELS).map(|number| format!("data/s{number}"));
        std::iter::once("data".to_owned()).chain(levels).collect()
    } else if is_paintera(node.parent_attributes()) {
        level_paths(node)
    } else {
        Vec::new()
    }
}

fn is_paintera(attributes: &Map<String, Value>) -> bool {
    attributes.get("painteraData").is_some_and(Value::is_object)
}

pub(super) fn read(node: &Node, problems: &mut Vec<MetadataProblem>) -> Option<Pyramid> {
    let (names, sources) = if is_paintera(node.attributes()) {
        let data = node.child_documents.get("data").map(AttributesDocument::members);
        let sources: Vec<&Map<String, Value>> = data.into_iter().chain([node.attributes()]).collect();
        (names_below_data(node), sources)
    } else if is_paintera(node.parent_attributes()) {
        (level_names(node), vec![node.attributes(), node.parent_attributes()])
    } else {
        return None;
    };
    let find = |key: &str| sources.iter().find_map(|source| source.get(key));
    let mut calibrated_axes = Vec::new();
    let base_placement = |first: &LevelDataset, problems: &mut Vec<MetadataProblem>| {
        let rank = first.dataset.rank();
        let given = find("resolution").and_then(|value| checked_sizes("resolution", value, rank, problems));
        let (base, calibrated) = usable_base(given.as_deref(), rank);
        calibrated_axes = calibrated;
        let offset = find("offset").map(|value| (value, one_per_axis(value, rank)));
        if let Some((value, None)) = &offset {
            push_unique(problems, format!("offset {} is not one number per axis", truncated_json(value)));
        }
        (base, offset.and_then(|(_, offset)| offset).unwrap_or_else(|| vec![0.0; rank]))
    };
    let levels = build_levels(node, names, None, base_placement, problems);
    let rank = levels.first()?.factors.len();
    let unit = sources.iter().find_map(|source| source.get("unit").and_then(Value::as_str));
    let mut units = unit.map(|unit| vec![unit.to_owned(); rank]);
    if find("resolution").is_some() {
        clear_units(&mut units, &calibrated_axes);
    }
    Some(Pyramid { convention: Convention::Paintera, axes: default_xyz_axes(rank), units, calibrated_axes, levels })
}

fn names_below_data(node: &Node) -> Vec<(usize, String)> {
    if node.child_documents.get("data").is_some_and(AttributesDocument::describes_dataset) {
        return vec![(0, "data".to_owned())];
    }
    let names = (0..MAX_PROBED_LEVELS).map(|number| (number, format!("data/s{number}")));
    names.filter(|(_, path)| node.child_documents.contains_key(path)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::*;

    #[test]
    fn levels_lie_in_the_sub_group_data() {
        let own = json!({"painteraData": {"type": "label"}, "maxId": 17_295_547_395_306_184_081_u64});
        let data =
            json!({"multiScale": true, "offset": [10.0, 0.0, 0.0], "resolution": [4.0, 4.0, 40.0], "unit": "nm"});
        let s1 = array(&[48, 40, 48], &json!({"downsamplingFactors": [2, 2, 1]}));
        let children = [("data", data.clone()), ("data/s0", array(&[96, 80, 48], &json!({}))), ("data/s1", s1.clone())];
        let (pyramid, outer_levels, problems) = read_levels(&group(&[], &own, &children));
        assert_eq!((pyramid.convention, pyramid.units.unwrap().len()), (Convention::Paintera, 3));
        assert_eq!(
            outer_levels,
            json!([
                ["data/s0", [1, 1, 1], [4.0, 4.0, 40.0], [10.0, 0.0, 0.0]],
                ["data/s1", [2, 2, 1], [8.0, 8.0, 40.0], [12.0, 2.0, 0.0]]
            ])
        );
        assert!(problems.is_empty(), "{problems:?}");
        let inner = group(&[own], &data, &[("s0", array(&[96, 80, 48], &json!({}))), ("s1", s1)]);
        let (_, inner_levels, _) = read_levels(&inner);
        assert_eq!(inner_levels[1], json!(["s1", [2, 2, 1], [8.0, 8.0, 40.0], [12.0, 2.0, 0.0]]));
    }

    #[test]
    fn data_may_be_a_single_dataset() {
        let children = [("data", array(&[9, 9, 9], &json!({"resolution": [1, 2, 3]})))];
        let (_, levels, _) = read_levels(&group(&[], &json!({"painteraData": {"type": "raw"}}), &children));
        assert_eq!(levels, json!([["data", [1, 1, 1], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]]));
    }

    #[test]
    fn an_unusable_resolution_is_unknown() {
        let data = json!({"resolution": ["4", 4, 40], "unit": "nm"});
        let children = [("data", data), ("data/s0", array(&[9, 9, 9], &json!({})))];
        let (pyramid, levels, problems) = read_levels(&group(&[], &json!({"painteraData": {}}), &children));
        assert_eq!((pyramid.resolution(), pyramid.units.unwrap()), (None, vec![String::new(); 3]));
        assert_eq!((&levels[0][2], problems.len()), (&json!([1.0, 1.0, 1.0]), 1), "{problems:?}");
    }

    #[test]
    fn without_levels_it_is_a_plain_group() {
        assert!(read(&group(&[], &json!({"painteraData": {}}), &[]), &mut Vec::new()).is_none());
    }
}
