//! Nodes of a Zarr hierarchy: the group or the array that a directory is, and its metadata.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::super::lookup::{ResolvedKey, ViewDocument, ViewLookup};
use super::super::node::{read_node, read_node_with_text};
use super::chunk::{CompressorParameters, ZarrEncoding, chunk_shape};
use super::ngff;
use crate::cache::{Dataset, GroupState, MemoryPermit, ReadError};
use crate::store::Key;
use n5_format::{DataType, DatasetAttributes, DescribedDataset, JsonMembers, JsonObjectBuilder};
use n5_metadata::{Axis, BaseUnit, CoordinateSpace, Node};

/// Attributes that describe N5's arrays, which Zarr describes in another form.
const N5_ARRAY_KEYS: [&str; 6] = ["dimensions", "blockSize", "dataType", "compression", "compressionType", "n5"];

/// Members of OME-NGFF that stand beside all other attributes before version 0.5.
const OME_KEYS: [&str; 2] = ["omero", "image-label"];

/// Maximum number of names in the path from a pyramid's group to a level, as in Paintera's `data/s0`.
const MAX_LEVEL_DEPTH: usize = 2;

/// Zarr node type of a directory.
#[derive(Debug)]
pub(in super::super) enum ZarrNodeType {
    /// No node: there is no directory, or it is a part of a dataset's grid or a dataset that is not decoded.
    Missing,
    /// A group.
    Group,
    /// An array.
    Array(Arc<Dataset>),
}

/// Returns the node type of the directory `key`.
///
/// # Errors
/// [`ReadError`] if the store fails or the attributes cannot be read, so that no client takes a dataset for a group.
pub(in super::super) async fn node_type(lookup: &ViewLookup<'_>, key: &Key) -> Result<ZarrNodeType, ReadError> {
    let (container, freshness) = (lookup.container, lookup.freshness);
    let group = container.group(freshness, key).await?;
    Ok(match &group.state {
        GroupState::Dataset(dataset) if ZarrEncoding::of(&dataset.attributes).is_some() => {
            ZarrNodeType::Array(Arc::clone(dataset))
        }
        GroupState::Dataset(_) | GroupState::Unusable(..) => ZarrNodeType::Missing,
        GroupState::Attributes(_) | GroupState::Broken(_) => ZarrNodeType::Group,
        GroupState::NoAttributes => {
            let is_group = container.is_directory(freshness, key).await?
                && container.enclosing_dataset(freshness, key, 0).await?.is_none();
            if is_group { ZarrNodeType::Group } else { ZarrNodeType::Missing }
        }
    })
}

/// A node from which metadata documents are made.
#[derive(Debug)]
pub(in super::super) enum ZarrNode {
    /// A group.
    Group(ZarrGroup),
    /// An array.
    Array(Box<ZarrArray>),
}

/// A group.
#[derive(Debug)]
pub(in super::super) struct ZarrGroup {
    /// Its attributes without those of OME-NGFF.
    pub(in super::super) attributes: JsonObjectBuilder,
    /// Attributes of OME-NGFF besides `multiscales`, such as `omero`.
    pub(in super::super) ome: JsonObjectBuilder,
    /// Entry of `multiscales` without its version, if the group is an image.
    pub(in super::super) image: Option<Map<String, Value>>,
}

/// Layout of an array, in Zarr's order.
#[derive(Debug)]
pub(in super::super) struct ZarrLayout {
    /// Size in elements.
    pub(in super::super) shape: Vec<u64>,
    /// Size of each chunk.
    pub(in super::super) chunks: Vec<u64>,
    /// Type of the elements.
    pub(in super::super) data_type: DataType,
    /// Encoding of the chunks.
    pub(in super::super) encoding: ZarrEncoding,
    /// Further parameters in the configuration of the compressor.
    pub(in super::super) parameters: CompressorParameters,
}

/// An array.
#[derive(Debug)]
pub(in super::super) struct ZarrArray {
    /// Its layout.
    pub(in super::super) layout: ZarrLayout,
    /// Names of the axes in Zarr's order, unique and not empty.
    pub(in super::super) names: Vec<String>,
    /// Its attributes, including `dimension_units` if units are known.
    pub(in super::super) attributes: JsonObjectBuilder,
}

impl ZarrLayout {
    /// Returns the layout of a dataset, or `None` if it is not decoded.
    pub(in super::super) fn of(dataset: &DatasetAttributes) -> Option<Self> {
        let encoding = ZarrEncoding::of(dataset)?;
        Some(Self {
            shape: dataset.dimensions().iter().rev().copied().collect(),
            chunks: chunk_shape(dataset).iter().rev().copied().collect(),
            data_type: dataset.data_type().clone(),
            parameters: CompressorParameters::of(dataset, encoding),
            encoding,
        })
    }

    /// Returns 0, the value of all elements of a missing chunk.
    pub(in super::super) fn fill_value(&self) -> Value {
        let is_float = matches!(self.data_type, DataType::Float32 | DataType::Float64);
        if is_float { json!(0.0) } else { json!(0) }
    }
}

impl ZarrNode {
    /// Returns the Zarr node for `node`, at a key whose last segment is `name`. For a level of a pyramid, `level` gives
    /// the coordinate space. `user_attributes` holds the node's own attributes. Returns `None` for a dataset that is
    /// not decoded.
    pub(super) fn of(
        node: &Node,
        name: Option<&str>,
        level: Option<&CoordinateSpace>,
        user_attributes: UserAttributes,
    ) -> Option<Self> {
        match &node.document {
            Some(Ok(document)) if document.describes_dataset() => {
                let dataset = DescribedDataset::parse(document.clone()).ok()?;
                let space = match level {
                    Some(space) => space.clone(),
                    None => CoordinateSpace::of_dataset(&dataset, &node.ancestors),
                };
                Some(Self::Array(Box::new(ZarrArray::of(&dataset, &space, user_attributes.attributes)?)))
            }
            _ => {
                let pyramid = n5_metadata::pyramid(node, &mut Vec::new());
                let image = pyramid.and_then(|pyramid| ngff::multiscales_entry(node, &pyramid, name));
                Some(Self::Group(ZarrGroup { attributes: user_attributes.attributes, ome: user_attributes.ome, image }))
            }
        }
    }
}

/// Attributes of a directory that are repeated as they are stored.
#[derive(Debug, Default)]
pub(super) struct UserAttributes {
    /// All attributes except those of N5 and OME-NGFF.
    pub(super) attributes: JsonObjectBuilder,
    /// Attributes of OME-NGFF besides `multiscales`. Empty for an array.
    pub(super) ome: JsonObjectBuilder,
}

impl UserAttributes {
    /// Extracts the attributes of a dataset.
    pub(super) fn of_array(text: &[u8]) -> Self {
        const GENERATED_KEYS: [&str; 2] = ["_ARRAY_DIMENSIONS", "dimension_units"];
        let attributes = JsonObjectBuilder::from_matching(text, |name| {
            !N5_ARRAY_KEYS.contains(&name) && !GENERATED_KEYS.contains(&name)
        });
        Self { attributes, ome: JsonObjectBuilder::default() }
    }

    /// Extracts the attributes of a group. `multiscales` is always left out, because its lists are in N5's order or in
    /// another form.
    pub(super) fn of_group(text: &[u8]) -> Self {
        let attributes = JsonObjectBuilder::from_matching(text, |name| {
            !["n5", "multiscales", "ome"].contains(&name) && !OME_KEYS.contains(&name)
        });
        let (mut nested, mut top_level) = (None, [None; OME_KEYS.len()]);
        n5_format::for_each_member(JsonMembers::parse(n5_format::attributes_text(text)).ok(), |member| {
            let name = member.name();
            if name == "ome" {
                nested = JsonMembers::parse(member.value).ok();
            } else if let Some(slot) =
                OME_KEYS.iter().zip(&mut top_level).find_map(|(key, slot)| (*key == name).then_some(slot))
            {
                *slot = Some(member);
            }
        });
        let mut ome = JsonObjectBuilder::default();
        n5_format::for_each_member(nested, |member| {
            let name = member.name();
            if name == "version" || name == "multiscales" {
                return;
            }
            if let Some(slot) =
                OME_KEYS.iter().zip(&mut top_level).find_map(|(key, slot)| (*key == name).then_some(slot))
            {
                *slot = None;
            }
            ome.push_member(member);
        });
        for member in top_level.into_iter().flatten() {
            ome.push_member(member);
        }
        Self { attributes, ome }
    }
}

impl ZarrArray {
    fn of(dataset: &DatasetAttributes, space: &CoordinateSpace, mut attributes: JsonObjectBuilder) -> Option<Self> {
        if let Some(units) = dimension_units(space) {
            attributes.insert("dimension_units", &units);
        }
        let names = space.axes.iter().rev().map(|axis| axis.name.clone()).collect();
        Some(Self { layout: ZarrLayout::of(dataset)?, names, attributes })
    }
}

/// Returns the size and unit of a voxel along each axis, such as `"4 nm"`, in the form that TensorStore and
/// Neuroglancer read. Returns `None` if nothing is known.
///
/// Source: TensorStore `driver/zarr3/metadata.cc`; Neuroglancer `src/datasource/zarr/metadata/parse.ts`, which
/// refuses units other than metres and seconds.
fn dimension_units(space: &CoordinateSpace) -> Option<Value> {
    let axis_unit = |(axis, scale): (&Axis, &f64)| {
        let unit = axis.unit.filter(|unit| matches!(unit.base, BaseUnit::Metre | BaseUnit::Second));
        match unit.map(|unit| unit.si_scaled()) {
            // Neuroglancer knows only the micro sign here, not `u`.
            Some((factor, symbol)) => Value::from(format!("{} {}", scale * factor, symbol.replace('u', "µ"))),
            None if axis.is_calibrated && axis.unit.is_none() => Value::from(scale.to_string()),
            None => Value::Null,
        }
    };
    let units: Vec<Value> = space.axes.iter().zip(&space.scale).rev().map(axis_unit).collect();
    let has_units = units.iter().any(|unit| !unit.is_null() && unit != "1");
    has_units.then_some(Value::Array(units))
}

/// Returns the Zarr node of the directory `key` with its memory permit, or `None` as for [`ZarrNodeType::Missing`].
///
/// # Errors
/// As [`read_node`].
pub(in super::super) async fn read_zarr_node(
    lookup: &ViewLookup<'_>,
    key: &Key,
) -> Result<Option<(ZarrNode, Option<MemoryPermit>)>, ReadError> {
    let level = match node_type(lookup, key).await? {
        ZarrNodeType::Missing => return Ok(None),
        ZarrNodeType::Group => None,
        ZarrNodeType::Array(_) => space_in_pyramid(lookup, key).await?,
    };
    let loaded = match read_node_with_text(lookup.container, lookup.freshness, key).await {
        // The directory has disappeared meanwhile.
        Err(ReadError::NotFound(_)) => return Ok(None),
        loaded => loaded?,
    };
    let extract = if is_dataset(&loaded.node) { UserAttributes::of_array } else { UserAttributes::of_group };
    let user_attributes = loaded.map_text(lookup.container, extract).await?;
    Ok(ZarrNode::of(&loaded.node, key.name(), level.as_ref(), user_attributes).map(|node| (node, loaded.memory)))
}

pub(super) fn is_dataset(node: &Node) -> bool {
    matches!(&node.document, Some(Ok(document)) if document.describes_dataset())
}

/// Returns the coordinate space of a dataset as a level of a pyramid, if it is one and its voxel size is known.
async fn space_in_pyramid(lookup: &ViewLookup<'_>, key: &Key) -> Result<Option<CoordinateSpace>, ReadError> {
    let mut group = key.parent();
    for _ in 0..MAX_LEVEL_DEPTH {
        let Some(group_key) = group else { break };
        let loaded = match read_node(lookup.container, lookup.freshness, &group_key).await {
            Err(ReadError::NotFound(_)) => return Ok(None),
            loaded => loaded?,
        };
        let level_path = key.as_str().strip_prefix(group_key.as_str()).unwrap_or_default().trim_start_matches('/');
        if let Some(pyramid) = n5_metadata::pyramid(&loaded.node, &mut Vec::new())
            && let Some(level_index) = pyramid.levels.iter().position(|level| level.path == level_path)
        {
            return Ok(Some(CoordinateSpace::of_level(&pyramid, level_index)).filter(|space| space.is_calibrated));
        }
        group = group_key.parent();
    }
    Ok(None)
}

/// Returns a document with the memory permit under which it was made.
pub(in super::super) fn document(object: JsonObjectBuilder, memory: Option<MemoryPermit>) -> ResolvedKey {
    ResolvedKey::Document(ViewDocument { text: object.into_text(), memory })
}

#[cfg(test)]
mod tests {
    use super::*;
    use n5_format::AttributesDocument;

    fn node(attributes: &Value, ancestors: &[Value]) -> Node {
        let parse = |value: &Value| AttributesDocument::parse(value.to_string().as_bytes()).unwrap();
        Node {
            document: Some(Ok(parse(attributes))),
            ancestors: ancestors.iter().map(parse).collect(),
            ..Node::default()
        }
    }

    fn array(extra_members: &Value, ancestors: &[Value]) -> Option<ZarrArray> {
        let mut attributes = json!({"dimensions": [7, 5, 3], "blockSize": [5, 4, 9], "dataType": "uint16",
            "compression": {"type": "gzip"}});
        attributes.as_object_mut().unwrap().extend(extra_members.as_object().unwrap().clone());
        let user_attributes = UserAttributes::of_array(attributes.to_string().as_bytes());
        match ZarrNode::of(&node(&attributes, ancestors), None, None, user_attributes)? {
            ZarrNode::Array(array) => Some(*array),
            ZarrNode::Group(_) => panic!("a group"),
        }
    }

    fn read(attributes: JsonObjectBuilder) -> Value {
        serde_json::from_str(&attributes.into_text()).unwrap()
    }

    fn units_of(attributes: JsonObjectBuilder) -> Option<Value> {
        read(attributes).get("dimension_units").cloned()
    }

    #[test]
    fn every_list_of_an_array_is_reversed() {
        let array = array(
            &json!({"axes": ["x", "y", "z"], "units": ["nm", "µm", "Å"], "resolution": [4, 0.5, 30], "mine": [1, 2]}),
            &[],
        );
        let array = array.unwrap();
        assert_eq!((&array.layout.shape[..], &array.layout.chunks[..]), (&[3, 5, 7][..], &[3, 4, 5][..]));
        assert_eq!(array.names, ["z", "y", "x"]);
        assert_eq!(units_of(array.attributes.clone()), Some(json!(["3 nm", "0.5 µm", "4 nm"])));
        let attributes = read(array.attributes);
        assert_eq!(attributes["mine"], json!([1, 2]));
        assert!(N5_ARRAY_KEYS.iter().all(|key| attributes.get(key).is_none()), "{attributes}");
    }

    #[test]
    fn units_are_written_only_if_they_add_information() {
        let units = |extra_members: Value| units_of(array(&extra_members, &[]).unwrap().attributes);
        assert_eq!(units(json!({})), None);
        assert_eq!(units(json!({"resolution": [1, 1, 1]})), None);
        assert_eq!(units(json!({"resolution": [1, 1, 2.5]})), Some(json!(["2.5", "1", "1"])));
        assert_eq!(units(json!({"resolution": [1, 1, 2], "units": ["Hz", "", "s"]})), Some(json!(["2 s", "1", null])));
        assert_eq!(units(json!({"dimension_units": ["4 nm"]})), None);
    }

    #[test]
    fn undecodable_datasets_are_not_arrays() {
        assert!(array(&json!({"dataType": "string"}), &[]).is_none());
        assert!(array(&json!({"compression": {"type": "jpeg"}}), &[]).is_none());
        assert!(array(&json!({"blockSize": [0, 1, 1]}), &[]).is_none());
    }

    #[test]
    fn groups_keep_their_attributes_but_not_multiscales_in_another_order() {
        let own = json!({"n5": "4.0.0", "multiscales": {"paths": []}, "name": "a", "omero": {"id": 1},
            "ome": {"version": "0.5", "multiscales": [], "labels": ["cells"]}});
        let user_attributes = UserAttributes::of_group(own.to_string().as_bytes());
        let Some(ZarrNode::Group(group)) = ZarrNode::of(&node(&own, &[]), None, None, user_attributes) else {
            panic!("no group")
        };
        assert_eq!(group.attributes.into_text(), r#"{"name":"a"}"#);
        assert_eq!(group.ome.into_text(), r#"{"labels":["cells"],"omero":{"id":1}}"#);
        assert!(group.image.is_none());
        // Members of `ome` take precedence over those beside it. Of repeated members, the last one counts.
        let own =
            br#"{"ome":{"x":1},"omero":1,"image-label":2,"omero":3,"ome":{"\u006fmero":4,"multiscales":[]},"a":1e999}"#;
        let UserAttributes { attributes, ome } = UserAttributes::of_group(own);
        assert_eq!(attributes.into_text(), r#"{"a":1e999}"#);
        assert_eq!(ome.into_text(), r#"{"\u006fmero":4,"image-label":2}"#);
    }
}
