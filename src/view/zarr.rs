//! What the two Zarr views share: which directories are groups and arrays, and what is said about each.
//!
//! Zarr's order is C: the slowest axis first. N5's first axis is the fastest, so that every list here, names,
//! shapes, chunk coordinates, scales, is N5's reversed, and no element moves.

mod chunk;
mod ngff;
mod tree;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::node::{read_node, read_node_with_text};
use super::{Chunk, Document, Found, Lookup};
use crate::container::{Dataset, GroupState, Memory, ReadError};
use crate::metadata::{self, Axis, Base, Node, Space};
use crate::n5::{self, DataType, DatasetAttributes, DescribedDataset, Members, ObjectText};
use crate::store::Key;

pub(super) use chunk::{Parameters, Scheme, chunk_at};
pub(super) use tree::tree;

/// Attributes of N5's own arrays, which have another form here.
const N5_ARRAY: [&str; 6] = ["dimensions", "blockSize", "dataType", "compression", "compressionType", "n5"];

/// Members of OME-NGFF that stand beside all others before version 0.5.
const OME: [&str; 2] = ["omero", "image-label"];

/// How far above a level its pyramid's group is, at most: Paintera's `data/s0`.
const LEVEL_DEPTH: usize = 2;

/// What a directory is here.
#[derive(Debug)]
pub(super) enum Place {
    /// Nothing: no directory, a part of a dataset's grid, or a dataset that is not decoded.
    Missing,
    /// A group.
    Group,
    /// An array.
    Array(Arc<Dataset>),
}

/// What the directory `key` is.
///
/// # Errors
/// [`ReadError`] when the store fails, or its attributes cannot be read: nobody shall take a dataset for a group.
pub(super) async fn place(lookup: &Lookup<'_>, key: &Key) -> Result<Place, ReadError> {
    let (container, access) = (lookup.container, lookup.access);
    let group = container.group(access, key).await?;
    Ok(match &group.state {
        GroupState::Dataset(dataset) if Scheme::of(&dataset.attributes).is_some() => Place::Array(Arc::clone(dataset)),
        GroupState::Dataset(_) | GroupState::Unusable(..) => Place::Missing,
        GroupState::Attributes(_) | GroupState::Broken(_) => Place::Group,
        GroupState::NoAttributes => {
            let is_group = container.is_directory(access, key).await?
                && container.enclosing_dataset(access, key, 0).await?.is_none();
            if is_group { Place::Group } else { Place::Missing }
        }
    })
}

/// What a document is made from.
#[derive(Debug)]
pub(super) enum Item {
    /// A group.
    Group(Group),
    /// An array.
    Array(Box<Array>),
}

/// A group.
#[derive(Debug)]
pub(super) struct Group {
    /// Its attributes but for OME-NGFF's.
    pub(super) attributes: ObjectText,
    /// OME-NGFF's attributes besides `multiscales`, such as `omero`.
    pub(super) ome: ObjectText,
    /// What `multiscales` holds, but for its version: the image that the group is.
    pub(super) image: Option<Map<String, Value>>,
}

/// The layout of an array, in Zarr's order.
#[derive(Debug)]
pub(super) struct Layout {
    /// Size in elements.
    pub(super) shape: Vec<u64>,
    /// Size of every chunk.
    pub(super) chunks: Vec<u64>,
    /// Type of the elements.
    pub(super) data_type: DataType,
    /// How chunks are encoded.
    pub(super) scheme: Scheme,
    /// What configurations say besides.
    pub(super) parameters: Parameters,
}

/// An array.
#[derive(Debug)]
pub(super) struct Array {
    /// Its layout.
    pub(super) layout: Layout,
    /// Names of the axes, Zarr's order: unique, none empty.
    pub(super) names: Vec<String>,
    /// Its attributes, `dimension_units` among them where they are known.
    pub(super) attributes: ObjectText,
}

impl Layout {
    /// The layout of a dataset; `None` where it is not decoded.
    pub(super) fn of(dataset: &DatasetAttributes) -> Option<Self> {
        let scheme = Scheme::of(dataset)?;
        Some(Self {
            shape: dataset.dimensions().iter().rev().copied().collect(),
            chunks: chunk::chunk_shape(dataset).iter().rev().copied().collect(),
            data_type: dataset.data_type().clone(),
            parameters: Parameters::of(dataset, scheme),
            scheme,
        })
    }

    /// 0, what a missing chunk is made of.
    pub(super) fn fill_value(&self) -> Value {
        let is_float = matches!(self.data_type, DataType::Float32 | DataType::Float64);
        if is_float { json!(0.0) } else { json!(0) }
    }
}

impl Item {
    /// What `node` is, at a key whose last segment is `name`; a level of a pyramid lies where `level` says. The attributes that
    /// are `repeated` are the node's own. `None` for a dataset that is not decoded.
    fn of(node: &Node, name: Option<&str>, level: Option<&Space>, repeated: Repeated) -> Option<Self> {
        match &node.document {
            Some(Ok(document)) if document.describes_dataset() => {
                let dataset = DescribedDataset::parse(document.clone()).ok()?;
                let space = match level {
                    Some(space) => space.clone(),
                    None => Space::of_dataset(&dataset, &node.ancestors),
                };
                Some(Self::Array(Box::new(Array::of(&dataset, &space, repeated.attributes)?)))
            }
            _ => {
                let pyramid = metadata::pyramid(node, &mut Vec::new());
                let image = pyramid.and_then(|pyramid| ngff::image(node, &pyramid, name));
                Some(Self::Group(Group { attributes: repeated.attributes, ome: repeated.ome, image }))
            }
        }
    }
}

/// The attributes of a directory that are repeated as they are stored.
#[derive(Debug, Default)]
struct Repeated {
    /// All but N5's and OME-NGFF's own.
    attributes: ObjectText,
    /// OME-NGFF's besides `multiscales`; of an array, none.
    ome: ObjectText,
}

impl Repeated {
    /// Those of a dataset.
    fn of_array(text: &[u8]) -> Self {
        const WRITTEN: [&str; 2] = ["_ARRAY_DIMENSIONS", "dimension_units"];
        let attributes = ObjectText::of(text, |name| !N5_ARRAY.contains(&name) && !WRITTEN.contains(&name));
        Self { attributes, ome: ObjectText::default() }
    }

    /// Those of a group. `multiscales` goes in any case: what it lists is in N5's order, or in another form.
    fn of_group(text: &[u8]) -> Self {
        let attributes =
            ObjectText::of(text, |name| !["n5", "multiscales", "ome"].contains(&name) && !OME.contains(&name));
        let (mut nested, mut beside) = (None, [None; OME.len()]);
        n5::for_each_member(Members::of(n5::attributes_text(text)).ok(), |member| {
            let name = member.name();
            if name == "ome" {
                nested = Members::of(member.value).ok();
            } else if let Some(place) =
                OME.iter().zip(&mut beside).find_map(|(ome, place)| (*ome == name).then_some(place))
            {
                *place = Some(member);
            }
        });
        let mut ome = ObjectText::default();
        n5::for_each_member(nested, |member| {
            let name = member.name();
            if name == "version" || name == "multiscales" {
                return;
            }
            if let Some(place) = OME.iter().zip(&mut beside).find_map(|(ome, place)| (*ome == name).then_some(place)) {
                *place = None;
            }
            ome.copy(member);
        });
        for member in beside.into_iter().flatten() {
            ome.copy(member);
        }
        Self { attributes, ome }
    }
}

impl Array {
    fn of(dataset: &DatasetAttributes, space: &Space, mut attributes: ObjectText) -> Option<Self> {
        if let Some(units) = dimension_units(space) {
            attributes.insert("dimension_units", &units);
        }
        let names = space.axes.iter().rev().map(|axis| axis.name.clone()).collect();
        Some(Self { layout: Layout::of(dataset)?, names, attributes })
    }
}

/// Size and unit of a voxel along each axis, such as `"4 nm"`, as TensorStore and Neuroglancer read it; `None`
/// where nothing is known.
///
/// Source: TensorStore `driver/zarr3/metadata.cc`; Neuroglancer `src/datasource/zarr/metadata/parse.ts`, which
/// refuses units other than metres and seconds.
fn dimension_units(space: &Space) -> Option<Value> {
    let of_axis = |(axis, scale): (&Axis, &f64)| {
        let unit = axis.unit.filter(|unit| matches!(unit.base, Base::Metre | Base::Second));
        match unit.map(|unit| unit.si_scaled()) {
            // Neuroglancer knows the micro sign here, and no u in its place.
            Some((factor, symbol)) => Value::from(format!("{} {}", scale * factor, symbol.replace('u', "µ"))),
            None if axis.sized && axis.unit.is_none() => Value::from(scale.to_string()),
            None => Value::Null,
        }
    };
    let units: Vec<Value> = space.axes.iter().zip(&space.scale).rev().map(of_axis).collect();
    let known = units.iter().any(|unit| !unit.is_null() && unit != "1");
    known.then_some(Value::Array(units))
}

/// What the directory `key` is, with the share of memory that stands for it; `None` as for [`Place::Missing`].
///
/// # Errors
/// As [`read_node`].
pub(super) async fn item(lookup: &Lookup<'_>, key: &Key) -> Result<Option<(Item, Option<Memory>)>, ReadError> {
    let level = match place(lookup, key).await? {
        Place::Missing => return Ok(None),
        Place::Group => None,
        Place::Array(_) => level(lookup, key).await?,
    };
    let known = match read_node_with_text(lookup.container, lookup.access, key).await {
        // It has gone meanwhile.
        Err(ReadError::NotFound(_)) => return Ok(None),
        known => known?,
    };
    let copy = if is_dataset(&known.node) { Repeated::of_array } else { Repeated::of_group };
    let repeated = known.copied(lookup.container, copy).await?;
    Ok(Item::of(&known.node, key.name(), level.as_ref(), repeated).map(|item| (item, known.memory)))
}

fn is_dataset(node: &Node) -> bool {
    matches!(&node.document, Some(Ok(document)) if document.describes_dataset())
}

/// Where a dataset lies as a level of a pyramid, if it is one whose voxel size is known.
async fn level(lookup: &Lookup<'_>, key: &Key) -> Result<Option<Space>, ReadError> {
    let mut group = key.parent();
    for _ in 0..LEVEL_DEPTH {
        let Some(at) = group else { break };
        let known = match read_node(lookup.container, lookup.access, &at).await {
            Err(ReadError::NotFound(_)) => return Ok(None),
            known => known?,
        };
        let below = key.as_str().strip_prefix(at.as_str()).unwrap_or_default().trim_start_matches('/');
        if let Some(pyramid) = metadata::pyramid(&known.node, &mut Vec::new())
            && let Some(number) = pyramid.levels.iter().position(|level| level.path == below)
        {
            return Ok(Some(Space::of_level(&pyramid, number)).filter(|space| space.known));
        }
        group = at.parent();
    }
    Ok(None)
}

/// The chunk of the array `dataset` at the coordinates of a chunk key, in Zarr's order.
pub(super) fn chunk_found(dataset: &Arc<Dataset>, coordinates: &[u64]) -> Result<Found, ReadError> {
    let position = coordinates.iter().rev().copied().collect();
    Ok(chunk_at(Arc::clone(dataset), position)?.map_or(Found::Missing, |chunk: Chunk| Found::Chunk(chunk)))
}

/// A document and the share of memory that it was made with.
pub(super) fn document(object: ObjectText, memory: Option<Memory>) -> Found {
    Found::Document(Document { text: object.into_text(), memory })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::n5::Document;

    fn node(own: &Value, ancestors: &[Value]) -> Node {
        let parse = |value: &Value| Document::parse(value.to_string().as_bytes()).unwrap();
        Node { document: Some(Ok(parse(own))), ancestors: ancestors.iter().map(parse).collect(), ..Node::default() }
    }

    fn array(further: &Value, ancestors: &[Value]) -> Option<Array> {
        let mut own = json!({"dimensions": [7, 5, 3], "blockSize": [5, 4, 9], "dataType": "uint16",
            "compression": {"type": "gzip"}});
        own.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
        let repeated = Repeated::of_array(own.to_string().as_bytes());
        match Item::of(&node(&own, ancestors), None, None, repeated)? {
            Item::Array(array) => Some(*array),
            Item::Group(_) => panic!("a group"),
        }
    }

    fn read(attributes: ObjectText) -> Value {
        serde_json::from_str(&attributes.into_text()).unwrap()
    }

    fn units_of(attributes: ObjectText) -> Option<Value> {
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
        assert!(N5_ARRAY.iter().all(|key| attributes.get(key).is_none()), "{attributes}");
    }

    #[test]
    fn units_are_written_only_where_they_say_something() {
        let units = |further: Value| units_of(array(&further, &[]).unwrap().attributes);
        assert_eq!(units(json!({})), None);
        assert_eq!(units(json!({"resolution": [1, 1, 1]})), None);
        assert_eq!(units(json!({"resolution": [1, 1, 2.5]})), Some(json!(["2.5", "1", "1"])));
        assert_eq!(units(json!({"resolution": [1, 1, 2], "units": ["Hz", "", "s"]})), Some(json!(["2 s", "1", null])));
        assert_eq!(units(json!({"dimension_units": ["4 nm"]})), None);
    }

    #[test]
    fn what_is_not_decoded_is_no_array() {
        assert!(array(&json!({"dataType": "string"}), &[]).is_none());
        assert!(array(&json!({"compression": {"type": "jpeg"}}), &[]).is_none());
        assert!(array(&json!({"blockSize": [0, 1, 1]}), &[]).is_none());
    }

    #[test]
    fn groups_keep_their_attributes_but_not_multiscales_in_another_order() {
        let own = json!({"n5": "4.0.0", "multiscales": {"paths": []}, "name": "a", "omero": {"id": 1},
            "ome": {"version": "0.5", "multiscales": [], "labels": ["cells"]}});
        let repeated = Repeated::of_group(own.to_string().as_bytes());
        let Some(Item::Group(group)) = Item::of(&node(&own, &[]), None, None, repeated) else { panic!("no group") };
        assert_eq!(group.attributes.into_text(), r#"{"name":"a"}"#);
        assert_eq!(group.ome.into_text(), r#"{"labels":["cells"],"omero":{"id":1}}"#);
        assert!(group.image.is_none());
        // Members of `ome` come before those beside it; of repeated ones the last counts.
        let own =
            br#"{"ome":{"x":1},"omero":1,"image-label":2,"omero":3,"ome":{"\u006fmero":4,"multiscales":[]},"a":1e999}"#;
        let Repeated { attributes, ome } = Repeated::of_group(own);
        assert_eq!(attributes.into_text(), r#"{"a":1e999}"#);
        assert_eq!(ome.into_text(), r#"{"\u006fmero":4,"image-label":2}"#);
    }
}
