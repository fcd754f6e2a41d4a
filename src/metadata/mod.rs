//! What the attributes of groups and datasets mean: everything that `/info` says, and the typed parts
//! (axes, pyramids, TensorStore's schema, forms of a compression) that views read.
//!
//! Imports `n5` only; pure. The caller does the I/O, in two phases: it reads a directory's own
//! attributes, its ancestors' and its listing into a [`Node`], asks [`wanted`] which documents below
//! the directory matter, adds them, and then calls [`describe`]. Nothing malformed makes this fail;
//! what cannot be used is said in [`Description::problems`].
//!
//! Axis order is N5's everywhere, the first axis fastest.

mod bdv;
mod canonical;
mod codec;
mod cosem;
mod description;
mod fields;
mod lint;
mod n5_viewer;
mod neuroglancer;
mod ome_ngff;
mod paintera;
mod physical;
mod problem;
mod pyramid;
mod readers;
mod recommended;
mod scales;
mod space;
mod tensorstore;
mod units;
mod volume;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::n5::{DescribedDataset, Document, DocumentError};

pub use canonical::{canonical, canonical_group, is_inherited};
pub use codec::{CodecForms, Hdf5Filter, codec_forms, compression_with_defaults};
pub use description::{Description, Kind};
pub use physical::Physical;
pub use problem::{About, Problem};
pub use pyramid::{Convention, Level, Pyramid};
pub use readers::Readable;
pub use recommended::{Recommended, recommended};
pub use space::{Axis, AxisKind, Space};
pub use tensorstore::{MAX_BLOCK_BYTES, TensorStore, http_kvstore, tensorstore};
pub use units::{Base, Unit};
pub use volume::{Volume, volume_of};

/// Most documents that [`wanted`] asks for.
pub const MAX_LEVELS: usize = 64;

/// A directory of a container, as far as its description needs it.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Attributes of the directories above, the container's root first; an empty document where one
    /// has none. Empty for the root itself.
    pub ancestors: Vec<Document>,
    /// The directory's own attributes; `None` without an `attributes.json`.
    pub document: Option<Result<Document, DocumentError>>,
    /// Names of the directories directly below. The grid directories of a dataset may be left out.
    pub children: Vec<String>,
    /// Of the paths named by [`wanted`] those that have attributes, by that path.
    pub child_documents: BTreeMap<String, Document>,
}

static NO_ATTRIBUTES: LazyLock<Document> = LazyLock::new(Document::default);

impl Node {
    /// Those of the directory's own attributes that have a meaning, empty where there are none.
    pub fn attributes(&self) -> &Map<String, Value> {
        self.own().members()
    }

    fn own(&self) -> &Document {
        match &self.document {
            Some(Ok(document)) => document,
            Some(Err(_)) | None => &NO_ATTRIBUTES,
        }
    }

    /// Attributes of the directory directly above, empty where there are none.
    fn parent(&self) -> &Map<String, Value> {
        self.ancestors.last().unwrap_or(&NO_ATTRIBUTES).members()
    }

    /// The dataset at a path below, when its attributes were fetched and make sense.
    pub fn dataset_below(&self, path: &str) -> Option<DescribedDataset> {
        let document = self.child_documents.get(path)?;
        document.describes_dataset().then(|| DescribedDataset::parse(document.clone()).ok()).flatten()
    }
}

/// A multiscale convention.
struct Reader {
    /// Paths below the directory whose attributes decide and describe; empty when the directory's own
    /// attributes and listing already speak against this convention.
    wanted: fn(&Node) -> Vec<String>,
    /// The pyramid; `None` when the directory does not follow this convention.
    read: fn(&Node, &mut Vec<Problem>) -> Option<Pyramid>,
}

/// Every convention; the first that fits a group describes it.
///
/// The order is n5-universe's (`N5DatasetDiscoverer.java`), with the two that it does not know before
/// n5-viewer's, whose keys they share.
static CONVENTIONS: &[Reader] = &[
    Reader { wanted: ome_ngff::wanted, read: ome_ngff::read },
    Reader { wanted: cosem::wanted, read: cosem::read },
    Reader { wanted: paintera::wanted, read: paintera::read },
    Reader { wanted: bdv::wanted, read: bdv::read },
    Reader { wanted: n5_viewer::wanted, read: n5_viewer::read },
];

/// Paths below a directory whose `attributes.json` [`describe`] needs, at most [`MAX_LEVELS`].
///
/// They are relative, made of sound segments only, and need not exist. A dataset needs none. Which
/// ones each convention asks for is said in its file.
pub fn wanted(node: &Node) -> Vec<String> {
    if node.own().describes_dataset() {
        return Vec::new();
    }
    let mut paths = Vec::new();
    for path in CONVENTIONS.iter().flat_map(|convention| (convention.wanted)(node)) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths.truncate(MAX_LEVELS);
    paths
}

/// The pyramid that a group is; `None` for a plain group and for a dataset. What is wrong with it is
/// appended to `problems`.
pub fn pyramid(node: &Node, problems: &mut Vec<Problem>) -> Option<Pyramid> {
    if node.own().describes_dataset() {
        return None;
    }
    CONVENTIONS.iter().find_map(|convention| (convention.read)(node, problems))
}

/// Whether a dataset or pyramid named `path` shows an image or segments;
/// `None` for a plain group and for a type that is not decoded.
pub fn volume(node: &Node, path: &str) -> Option<Volume> {
    let data_type = if node.own().describes_dataset() {
        DescribedDataset::parse(node.own().clone()).ok()?.data_type().clone()
    } else {
        let first = pyramid(node, &mut Vec::new())?.levels.into_iter().next()?;
        node.dataset_below(&first.path)?.data_type().clone()
    };
    let above = node.ancestors.iter().rev().map(Document::members);
    let attributes: Vec<&Map<String, Value>> = std::iter::once(node.attributes()).chain(above).collect();
    volume_of(path, &data_type, &attributes)
}

/// Everything that is known about a directory.
pub fn describe(node: &Node) -> Description {
    Description::new(node)
}

/// What tests of several files build their nodes with.
#[cfg(test)]
mod testing {
    use serde_json::Value;

    use super::*;

    pub(super) fn document(value: &Value) -> Document {
        Document::parse(value.to_string().as_bytes()).unwrap()
    }

    pub(super) fn dataset(value: &Value) -> DescribedDataset {
        DescribedDataset::parse(document(value)).unwrap()
    }

    /// Attributes of a uint8 dataset of these dimensions, with further members.
    pub(super) fn array(dimensions: &[u64], further: &Value) -> Value {
        let blocks: Vec<u64> = dimensions.iter().map(|_| 16).collect();
        let mut value = serde_json::json!({"dimensions": dimensions, "blockSize": blocks, "dataType": "uint8",
            "compression": {"type": "raw"}});
        value.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        value
    }

    /// A group with the attributes of its ancestors, its own, and those of everything below; `wanted`
    /// decides which of the latter it gets.
    pub(super) fn group(ancestors: &[Value], own: &Value, below: &[(&str, Value)]) -> Node {
        let mut children: Vec<String> =
            below.iter().filter_map(|(path, _)| path.split('/').next()).map(str::to_owned).collect();
        children.dedup();
        let mut node = Node {
            ancestors: ancestors.iter().map(document).collect(),
            document: Some(Ok(document(own))),
            children,
            child_documents: BTreeMap::new(),
        };
        let wanted = wanted(&node);
        assert!(wanted.len() <= MAX_LEVELS);
        for (path, value) in below {
            if wanted.iter().any(|wanted| wanted == path) {
                node.child_documents.insert((*path).to_owned(), document(value));
            }
        }
        node
    }

    /// The pyramid of such a group as convention, then path, factors, resolution and translation of its
    /// levels; and the problems found.
    pub(super) fn read_levels(node: &Node) -> (Pyramid, Value, Vec<Problem>) {
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
    fn a_dataset_wants_nothing_and_is_no_pyramid() {
        let node =
            group(&[], &array(&[4], &json!({"downsamplingFactors": [[1], [2]]})), &[("s0", array(&[4], &json!({})))]);
        assert!(wanted(&node).is_empty());
        assert!(pyramid(&node, &mut Vec::new()).is_none());
    }

    #[test]
    fn a_group_that_only_has_level_names_is_no_pyramid() {
        let node = group(&[], &json!({}), &[("s0", array(&[4], &json!({}))), ("s1", array(&[2], &json!({})))]);
        assert_eq!(describe(&node).kind, Kind::Group);
    }

    #[test]
    fn canonical_multiscales_are_taken_for_no_other_convention() {
        let own = json!({"multiscales": {"paths": ["s0", "s1"], "datasets": [{"path": "s0"}]}});
        let node = group(&[], &own, &[("s0", array(&[4], &json!({})))]);
        assert!(pyramid(&node, &mut Vec::new()).is_none());
    }

    /// Any JSON of small size, with the names and shapes that conventions look for.
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
        fn nothing_malformed_breaks_a_description(parent in members(), own in members(), a in members(), b in members(), sound: bool) {
            let level = |further: Value| if sound { array(&[4, 4], &further) } else { further };
            let below = [("s0", level(a.clone())), ("s1", level(b)), ("data", level(a))];
            let node = group(&[parent], &own, &below);
            serde_json::to_string(&describe(&node)).unwrap();
            let node = group(std::slice::from_ref(&own), &array(&[4, 4], &own), &[]);
            serde_json::to_string(&describe(&node)).unwrap();
        }
    }

    #[test]
    fn what_is_wanted_is_bounded_and_stays_below() {
        let datasets: Vec<_> = (0..1000).map(|n| json!({"path": format!("l{n}"), "transform": {}})).collect();
        let node = group(&[], &json!({"multiscales": [{"datasets": datasets}], "painteraData": {}}), &[]);
        assert_eq!(wanted(&node).len(), MAX_LEVELS);
        let datasets =
            json!([{"path": "../../secret", "transform": {}}, {"path": "/etc", "transform": {}}, {"path": 3}]);
        let node = group(&[], &json!({"multiscales": [{"datasets": datasets}]}), &[]);
        assert!(wanted(&node).is_empty());
    }
}
