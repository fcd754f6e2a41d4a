//! Meaning of the attributes of groups and datasets: everything that `/info` reports, and the typed parts (axes,
//! pyramids, TensorStore's schema, equivalents of a compression) that views read.
//!
//! The module is pure and imports only `n5`. The caller does the I/O in two phases. It reads a directory's own
//! attributes, its ancestors' attributes and its listing into a [`Node`], and asks [`required_paths`] which documents
//! below the directory are needed. It adds these and then calls [`describe`], which never fails on malformed metadata;
//! [`Description::problems`] lists the parts that cannot be used.
//!
//! Axis order is N5's everywhere: the first axis is the fastest.

mod bdv;
mod calibration;
mod canonical;
mod codec;
mod compatibility;
mod coordinate_space;
mod cosem;
mod description;
mod json_values;
mod lint;
mod n5_viewer;
mod neuroglancer;
mod neuroglancer_source;
mod numbered_levels;
mod ome_ngff;
mod paintera;
mod problem;
mod pyramid;
mod tensorstore;
mod units;
mod volume;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::n5::{AttributesDocument, DescribedDataset, DocumentError};

pub use calibration::Calibration;
pub use canonical::{canonical_attributes, canonical_group_attributes, is_inherited_by_neuroglancer};
pub use codec::{CodecEquivalents, Hdf5Filter, codec_equivalents, compression_with_defaults};
pub use compatibility::Compatibility;
pub use coordinate_space::{Axis, AxisKind, CoordinateSpace};
pub use description::{Description, NodeKind};
pub use neuroglancer_source::{NeuroglancerSource, recommended_source};
pub use problem::{MetadataProblem, MetadataProblemKind};
pub use pyramid::{Convention, Pyramid, PyramidLevel};
pub use tensorstore::{MAX_BLOCK_BYTES, TensorStoreInfo, http_kvstore, tensorstore_info};
pub use units::{BaseUnit, Unit};
pub use volume::{VolumeKind, classify_volume};

/// Maximum number of documents that [`required_paths`] asks for.
pub const MAX_LEVELS: usize = 64;

/// A directory of a container, with the data that its description needs.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Attributes of the directories above, the container's root first; an empty document for a directory without
    /// attributes. Empty for the root itself.
    pub ancestors: Vec<AttributesDocument>,
    /// The directory's own attributes; `None` if it has no `attributes.json`.
    pub document: Option<Result<AttributesDocument, DocumentError>>,
    /// Names of the directories directly below. The grid directories of a dataset may be left out.
    pub children: Vec<String>,
    /// Documents at those of the [`required_paths`] that have attributes, by path.
    pub child_documents: BTreeMap<String, AttributesDocument>,
}

static NO_ATTRIBUTES: LazyLock<AttributesDocument> = LazyLock::new(AttributesDocument::default);

impl Node {
    /// Returns those of the directory's own attributes that have a meaning; empty if there are none.
    pub fn attributes(&self) -> &Map<String, Value> {
        self.own_document().members()
    }

    fn own_document(&self) -> &AttributesDocument {
        match &self.document {
            Some(Ok(document)) => document,
            Some(Err(_)) | None => &NO_ATTRIBUTES,
        }
    }

    /// Returns the attributes of the directory directly above; empty if there are none.
    fn parent_attributes(&self) -> &Map<String, Value> {
        self.ancestors.last().unwrap_or(&NO_ATTRIBUTES).members()
    }

    /// Returns the dataset at a path below, if its attributes were fetched and are valid.
    pub fn dataset_below(&self, path: &str) -> Option<DescribedDataset> {
        let document = self.child_documents.get(path)?;
        document.describes_dataset().then(|| DescribedDataset::parse(document.clone()).ok()).flatten()
    }
}

/// Functions that read one multiscale convention.
struct ConventionReader {
    /// Paths below the directory whose attributes the convention needs; empty if the directory's own attributes and
    /// listing already rule the convention out.
    required_paths: fn(&Node) -> Vec<String>,
    /// Reads the pyramid; `None` if the directory does not follow this convention.
    read: fn(&Node, &mut Vec<MetadataProblem>) -> Option<Pyramid>,
}

/// Every convention; the first that fits a group describes it.
///
/// The order is that of n5-universe (`N5DatasetDiscoverer.java`). Paintera and BDV, which n5-universe does not know,
/// come before n5-viewer, because they share its keys.
static CONVENTIONS: &[ConventionReader] = &[
    ConventionReader { required_paths: ome_ngff::required_paths, read: ome_ngff::read },
    ConventionReader { required_paths: cosem::required_paths, read: cosem::read },
    ConventionReader { required_paths: paintera::required_paths, read: paintera::read },
    ConventionReader { required_paths: bdv::required_paths, read: bdv::read },
    ConventionReader { required_paths: n5_viewer::required_paths, read: n5_viewer::read },
];

/// Returns the paths below a directory whose `attributes.json` [`describe`] needs, at most [`MAX_LEVELS`].
///
/// The paths are relative, consist of valid segments only and need not exist. A dataset needs none. The file of each
/// convention says which paths it needs.
pub fn required_paths(node: &Node) -> Vec<String> {
    if node.own_document().describes_dataset() {
        return Vec::new();
    }
    let mut paths = Vec::new();
    for path in CONVENTIONS.iter().flat_map(|convention| (convention.required_paths)(node)) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths.truncate(MAX_LEVELS);
    paths
}

/// Returns the pyramid that a group describes; `None` for a plain group and for a dataset. Appends the pyramid's faults
/// to `problems`.
pub fn pyramid(node: &Node, problems: &mut Vec<MetadataProblem>) -> Option<Pyramid> {
    if node.own_document().describes_dataset() {
        return None;
    }
    CONVENTIONS.iter().find_map(|convention| (convention.read)(node, problems))
}

/// Returns the kind of volume, image or segmentation, of a dataset or pyramid named `path`; `None` for a plain group
/// and for a type that is not decoded.
pub fn volume_kind(node: &Node, path: &str) -> Option<VolumeKind> {
    let data_type = if node.own_document().describes_dataset() {
        DescribedDataset::parse(node.own_document().clone()).ok()?.data_type().clone()
    } else {
        let first = pyramid(node, &mut Vec::new())?.levels.into_iter().next()?;
        node.dataset_below(&first.path)?.data_type().clone()
    };
    let ancestors = node.ancestors.iter().rev().map(AttributesDocument::members);
    let attributes: Vec<&Map<String, Value>> = std::iter::once(node.attributes()).chain(ancestors).collect();
    classify_volume(path, &data_type, &attributes)
}

/// Returns everything that is known about a directory.
pub fn describe(node: &Node) -> Description {
    Description::new(node)
}

/// Builders of nodes for the tests of several files.
#[cfg(test)]
mod testing {
    use serde_json::Value;

    use super::*;

    pub(super) fn document(value: &Value) -> AttributesDocument {
        AttributesDocument::parse(value.to_string().as_bytes()).unwrap()
    }

    pub(super) fn dataset(value: &Value) -> DescribedDataset {
        DescribedDataset::parse(document(value)).unwrap()
    }

    /// Returns the attributes of a uint8 dataset with these dimensions and further members.
    pub(super) fn array(dimensions: &[u64], further: &Value) -> Value {
        let blocks: Vec<u64> = dimensions.iter().map(|_| 16).collect();
        let mut value = serde_json::json!({"dimensions": dimensions, "blockSize": blocks, "dataType": "uint8",
            "compression": {"type": "raw"}});
        value.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        value
    }

    /// Returns a group with the attributes of its ancestors, its own, and those of the documents in `descendants` that
    /// [`required_paths`] asks for.
    pub(super) fn group(ancestors: &[Value], own: &Value, descendants: &[(&str, Value)]) -> Node {
        let mut children: Vec<String> =
            descendants.iter().filter_map(|(path, _)| path.split('/').next()).map(str::to_owned).collect();
        children.dedup();
        let mut node = Node {
            ancestors: ancestors.iter().map(document).collect(),
            document: Some(Ok(document(own))),
            children,
            child_documents: BTreeMap::new(),
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

    /// Returns the pyramid of a group; path, factors, resolution and translation of its levels; and the problems found.
    pub(super) fn read_levels(node: &Node) -> (Pyramid, Value, Vec<MetadataProblem>) {
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
    use serde_json::json;

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
