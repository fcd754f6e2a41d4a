#![doc = include_str!("../README.md")]

mod calibration;
mod canonical;
mod channels;
mod codec;
mod compatibility;
mod coordinate_space;
mod description;
mod json_values;
mod level;
mod multiscale;
mod neuroglancer;
mod node;
mod problem;
mod summary;
mod tensorstore;
mod units;
mod volume;
mod voxel_size;

pub use calibration::Calibration;
pub use canonical::{canonical_attributes, canonical_group_attributes, is_inherited_by_neuroglancer};
pub use channels::{ChannelDisplay, channel_display, channel_displays, default_channel_colour, is_photograph};
pub use codec::{CodecEquivalents, Hdf5Filter, codec_equivalents, compression_with_defaults};
pub use compatibility::Compatibility;
pub use coordinate_space::{Axis, AxisKind, CoordinateSpace};
pub use description::{Description, NeuroglancerSource, NodeKind, describe, recommended_source};
pub use level::{MAX_PYRAMID_DISTANCE, group_above, is_level_name, lacks_calibration, level_calibration};
pub use multiscale::pyramid::{Convention, Pyramid, PyramidLevel};
pub use multiscale::{pyramid, required_paths};
pub use node::{MAX_LEVELS, Node};
pub use problem::{MetadataProblem, MetadataProblemKind};
pub use summary::{Summary, summarize};
pub use tensorstore::{MAX_BLOCK_BYTES, TensorStoreInfo, http_kvstore, tensorstore_info};
pub use units::{BaseUnit, Unit};
pub use volume::{VolumeKind, classify_volume, volume_kind};

/// Builders of nodes for the tests of several files.
#[cfg(test)]
mod testing {
    use n5_format::{AttributesDocument, DescribedDataset};
    use serde_json::Value;

    use super::*;

    pub(crate) fn document(value: &Value) -> AttributesDocument {
        AttributesDocument::parse(value.to_string().as_bytes()).unwrap()
    }

    pub(crate) fn dataset(value: &Value) -> DescribedDataset {
        DescribedDataset::parse(document(value)).unwrap()
    }

    /// Returns the attributes of a uint8 dataset with these dimensions and with the members of `further`.
    pub(crate) fn array(dimensions: &[u64], further: &Value) -> Value {
        let blocks: Vec<u64> = dimensions.iter().map(|_| 16).collect();
        let mut value = serde_json::json!({"dimensions": dimensions, "blockSize": blocks, "dataType": "uint8",
            "compression": {"type": "raw"}});
        value.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        value
    }

    /// Returns a group with the attributes of its ancestors, its own, and those of the `descendants` that are among its
    /// [`required_paths`].
    pub(crate) fn group(ancestors: &[Value], own: &Value, descendants: &[(&str, Value)]) -> Node {
        let mut children: Vec<String> =
            descendants.iter().filter_map(|(path, _)| path.split('/').next()).map(str::to_owned).collect();
        children.dedup();
        let mut node = Node {
            ancestors: ancestors.iter().map(document).collect(),
            document: Some(Ok(document(own))),
            children,
            ..Node::default()
        };
        let required = required_paths(&node);
        assert!(required.len() <= MAX_LEVELS);
        for (path, value) in descendants {
            if required.iter().any(|required_path| required_path == path) {
                node.child_documents.insert((*path).to_owned(), document(value));
            }
        }
        node
    }

    /// Returns the pyramid of a group; the path, factors, resolution and translation of each level; and the problems
    /// found.
    pub(crate) fn read_levels(node: &Node) -> (Pyramid, Value, Vec<MetadataProblem>) {
        let mut problems = Vec::new();
        let pyramid = pyramid(node, &mut problems).unwrap();
        let levels = pyramid.levels.iter().map(|level| {
            let level = serde_json::to_value(level).unwrap();
            serde_json::json!([level["path"], level["factors"], level["resolution"], level["translation"]])
        });
        let levels = levels.collect();
        (pyramid, levels, problems)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::testing::*;
    use super::*;

    #[test]
    fn a_dataset_requires_no_paths_and_is_no_pyramid() {
        let node =
            group(&[], &array(&[4], &json!({"downsamplingFactors": [[1], [2]]})), &[("s0", array(&[4], &json!({})))]);
        assert!(required_paths(&node).is_empty());
        assert!(pyramid(&node, &mut Vec::new()).is_none());
    }

    #[test]
    fn a_group_that_only_has_level_names_is_no_pyramid() {
        let node = group(&[], &json!({}), &[("s0", array(&[4], &json!({}))), ("s1", array(&[2], &json!({})))]);
        assert_eq!(describe(&node).kind, NodeKind::Group);
    }

    #[test]
    fn canonical_multiscales_match_no_other_convention() {
        let own = json!({"multiscales": {"paths": ["s0", "s1"], "datasets": [{"path": "s0"}]}});
        let node = group(&[], &own, &[("s0", array(&[4], &json!({})))]);
        assert!(pyramid(&node, &mut Vec::new()).is_none());
    }

    /// Generates any small JSON value, with the names and shapes that conventions look for.
    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            prop::sample::select(vec!["s0", "x", "y", "nm", "F", "scale", "raw", "blosc", "lz4", "0.4", ""])
                .prop_map(Value::from),
            Just(json!([1, 1])),
            Just(json!([[1, 1], [2, 2]])),
        ];
        let keys = vec!["path", "type", "transform", "scale", "axes", "datasets", "unit", "dimensions", "multiscales"];
        leaf.prop_recursive(4, 24, 3, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map(prop::sample::select(keys.clone()), inner, 0..4)
                    .prop_map(|members| members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
            ]
        })
    }

    fn members() -> impl Strategy<Value = Value> {
        let keys = vec![
            "dimensions",
            "blockSize",
            "dataType",
            "compression",
            "compressionType",
            "axes",
            "units",
            "resolution",
            "n5",
            "ome",
            "multiscales",
            "scales",
            "downsamplingFactors",
            "pixelResolution",
            "transform",
            "painteraData",
            "offset",
            "unit",
            "multiScale",
        ];
        prop::collection::btree_map(prop::sample::select(keys), json(), 0..6)
            .prop_map(|members| members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    proptest! {
        #[test]
        fn malformed_attributes_do_not_break_a_description(parent in members(), own in members(), a in members(), b in members(), sound: bool) {
            let level = |further: Value| if sound { array(&[4, 4], &further) } else { further };
            let below = [("s0", level(a.clone())), ("s1", level(b)), ("data", level(a))];
            let node = group(&[parent], &own, &below);
            serde_json::to_string(&describe(&node)).unwrap();
            let node = group(std::slice::from_ref(&own), &array(&[4, 4], &own), &[]);
            serde_json::to_string(&describe(&node)).unwrap();
        }
    }

    #[test]
    fn required_paths_are_bounded_and_stay_below_the_group() {
        let datasets: Vec<_> = (0..1000).map(|n| json!({"path": format!("l{n}"), "transform": {}})).collect();
        let node = group(&[], &json!({"multiscales": [{"datasets": datasets}], "painteraData": {}}), &[]);
        assert_eq!(required_paths(&node).len(), MAX_LEVELS);
        let datasets =
            json!([{"path": "../../secret", "transform": {}}, {"path": "/etc", "transform": {}}, {"path": 3}]);
        let node = group(&[], &json!({"multiscales": [{"datasets": datasets}]}), &[]);
        assert!(required_paths(&node).is_empty());
    }
}
