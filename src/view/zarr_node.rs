//! Nodes of a Zarr hierarchy, which are groups and arrays, and their metadata.
//!
//! Pyramids of every convention become OME-NGFF images. Source: <https://ngff.openmicroscopy.org/0.4/> and
//! <https://ngff.openmicroscopy.org/0.5/>, which differ only in the place of the version.

use serde_json::{Map, Value, json};

use super::axis_order::{AxisPermutation, ImageAxes};
use super::lookup::{ResolvedKey, ViewLookup};
use super::node::{LoadedNode, read_node, read_node_with_text};
use super::omero::{ChannelPlan, ChannelWindow};
use super::zarr_array::{ZarrEncoding, ZarrLayout, ZarrNodeType, node_type};
use crate::cache::{MemoryPermit, ReadError};
use crate::store::Key;
use n5_format::{DataType, DatasetAttributes, DescribedDataset, JsonMember, JsonMembers, JsonObjectBuilder};
use n5_metadata::{Axis, AxisKind, BaseUnit, CoordinateSpace, Node, Pyramid, PyramidLevel};

/// Attributes that describe N5's arrays, which Zarr describes in another form.
const N5_ARRAY_KEYS: [&str; 6] = ["dimensions", "blockSize", "dataType", "compression", "compressionType", "n5"];

/// Attributes of arrays that the Zarr views generate.
const GENERATED_KEYS: [&str; 2] = ["_ARRAY_DIMENSIONS", "dimension_units"];

/// Attributes that OME-NGFF before version 0.5 places beside `multiscales`, and since then inside `ome`.
const OME_KEYS: [&str; 2] = [OMERO, "image-label"];

const OMERO: &str = "omero";

/// Maximum length of a stored `omero` that is parsed and completed. A longer one is copied as it is.
const MAX_OMERO_BYTES: usize = 16 << 10;

/// Maximum number of names in the path from a pyramid's group to a level, as in Paintera's `data/s0`.
const MAX_LEVEL_DEPTH: usize = 2;

/// A node from which metadata documents are made.
#[derive(Debug)]
pub(super) enum ZarrNode {
    /// A group.
    Group {
        /// Attributes of the group, without those of OME-NGFF.
        attributes: JsonObjectBuilder,
        /// Attributes of OME-NGFF other than `multiscales`, such as `omero`.
        ome: JsonObjectBuilder,
        /// Entry of `multiscales` without its version, if the group is an image.
        image: Option<Map<String, Value>>,
    },
    /// An array.
    Array {
        /// Layout of the array.
        layout: ZarrLayout,
        /// Names of the axes in the order of the array, unique and not empty.
        names: Vec<String>,
        /// Attributes of the array, including `dimension_units` if units are known.
        attributes: JsonObjectBuilder,
    },
}

impl ZarrNode {
    /// Creates the Zarr node of a directory with the name `name`, or returns `None` for a dataset that is not decoded.
    /// If the directory is a level of a pyramid, `level` is the coordinate space that the pyramid gives to it. `order` is
    /// the order of an array's axes, if it is not the stored order. `channels` are the channels of an image, if they are
    /// to be described.
    pub(super) fn of(
        node: &Node,
        name: Option<&str>,
        level: Option<&CoordinateSpace>,
        order: Option<AxisPermutation>,
        channels: Option<&(ChannelPlan, Vec<ChannelWindow>)>,
        copied: CopiedAttributes,
    ) -> Option<Self> {
        let CopiedAttributes { mut attributes, mut ome, omero, .. } = copied;
        if !node.is_dataset() {
            let pyramid = n5_metadata::pyramid(node, &mut Vec::new());
            let image = pyramid.and_then(|pyramid| multiscales_entry(node, &pyramid, name));
            let channels = channels.filter(|_| image.is_some());
            let described = channels.map(|(plan, windows)| plan.omero(omero.as_ref(), windows));
            // A value of another form would make the whole image invalid.
            let stored = omero.filter(|omero| image.is_none() || omero.is_object());
            if let Some(omero) = described.or(stored) {
                ome.insert(OMERO, &omero);
            }
            return Some(Self::Group { attributes, ome, image });
        }
        let document = node.document.as_ref()?.as_ref().ok()?;
        let dataset = DescribedDataset::parse(document.clone()).ok()?;
        let own_space = || CoordinateSpace::of_node(&dataset, node);
        let space = level.filter(|space| space.is_calibrated).cloned().unwrap_or_else(own_space);
        if let Some(units) = dimension_units(&space) {
            let units = order.map_or(units.clone(), |order| order.apply(&units));
            attributes.insert("dimension_units", &units);
        }
        // OME-NGFF requires that arrays and images have the same names of axes.
        let named_axes = &level.unwrap_or(&space).axes;
        let names: Vec<String> = named_axes.iter().rev().map(|axis| axis.name.clone()).collect();
        let names = order.map_or(names.clone(), |order| order.apply(&names));
        Some(Self::Array { layout: ZarrLayout::of(&dataset, order)?, names, attributes })
    }
}

/// Attributes of a directory that its Zarr node repeats as they are stored.
#[derive(Debug, Clone)]
pub(super) struct CopiedAttributes {
    /// Attributes that belong neither to N5 nor to OME-NGFF.
    attributes: JsonObjectBuilder,
    /// Attributes of OME-NGFF except `multiscales`, whose lists are in N5's order or in another form, and except
    /// `omero`. Empty for a dataset.
    ome: JsonObjectBuilder,
    /// Value of `omero`. A long value is a member of `ome` instead.
    omero: Option<Value>,
    /// True if `ome` contains `omero`.
    has_long_omero: bool,
}

impl CopiedAttributes {
    /// Copies attributes from the text of `attributes.json`.
    pub(super) fn of(text: &[u8], is_dataset: bool) -> Self {
        if is_dataset {
            let is_copied = |name: &str| !N5_ARRAY_KEYS.contains(&name) && !GENERATED_KEYS.contains(&name);
            let attributes = JsonObjectBuilder::from_matching(text, is_copied);
            return Self { attributes, ome: JsonObjectBuilder::default(), omero: None, has_long_omero: false };
        }
        let is_copied = |name: &str| !["n5", "multiscales", "ome"].contains(&name) && !OME_KEYS.contains(&name);
        let (ome, omero, has_long_omero) = ome_attributes(text);
        Self { attributes: JsonObjectBuilder::from_matching(text, is_copied), ome, omero, has_long_omero }
    }

    /// Returns the plan for describing the channels of the group `key`, if it is an image whose channels are to be
    /// described.
    pub(super) fn channel_plan(&self, node: &Node, key: &Key) -> Option<ChannelPlan> {
        if self.has_long_omero {
            return None;
        }
        let pyramid = n5_metadata::pyramid(node, &mut Vec::new())?;
        ChannelPlan::of(node, key, &pyramid, self.omero.as_ref())
    }
}

/// Returns the attributes of OME-NGFF except `multiscales`, with `omero` by itself, and true if `omero` is long and
/// therefore among the others. Those inside `ome` take precedence over those beside it.
fn ome_attributes(text: &[u8]) -> (JsonObjectBuilder, Option<Value>, bool) {
    let mut omero = None;
    let mut has_long_omero = false;
    let mut nested = None;
    let mut top_level = [None; OME_KEYS.len()];
    n5_format::for_each_member(JsonMembers::parse(n5_format::attributes_text(text)).ok(), |member| {
        let name = member.name();
        if name == "ome" {
            nested = JsonMembers::parse(member.value).ok();
        } else if let Some((_, slot)) = OME_KEYS.iter().zip(&mut top_level).find(|(key, _)| **key == name) {
            *slot = Some(member);
        }
    });
    let mut ome = JsonObjectBuilder::default();
    let mut add = |ome: &mut JsonObjectBuilder, member: JsonMember<'_>| {
        let is_omero = member.name() == OMERO;
        let is_parsed = is_omero && member.value.len() <= MAX_OMERO_BYTES;
        let parsed = is_parsed.then(|| serde_json::from_str::<Value>(member.value).ok()).flatten();
        if parsed.is_some() {
            omero = parsed;
            return;
        }
        has_long_omero |= is_omero;
        ome.push_member(member);
    };
    n5_format::for_each_member(nested, |member| {
        let name = member.name();
        if name == "version" || name == "multiscales" {
            return;
        }
        if let Some((_, slot)) = OME_KEYS.iter().zip(&mut top_level).find(|(key, _)| **key == name) {
            *slot = None;
        }
        add(&mut ome, member);
    });
    for member in top_level.into_iter().flatten() {
        add(&mut ome, member);
    }
    (ome, omero, has_long_omero)
}

/// Returns the voxel size along each axis with its unit, such as `"4 nm"`, in the form that TensorStore and
/// Neuroglancer read. Returns `None` if nothing is known.
///
/// Source: TensorStore `driver/zarr3/metadata.cc`; Neuroglancer `src/datasource/zarr/metadata/parse.ts`, which
/// refuses units other than metres and seconds.
fn dimension_units(space: &CoordinateSpace) -> Option<Vec<Value>> {
    let axis_unit = |(axis, scale): (&Axis, &f64)| {
        let unit = axis.unit.filter(|unit| matches!(unit.base, BaseUnit::Metre | BaseUnit::Second));
        match unit.map(|unit| unit.si_scaled()) {
            // Neuroglancer accepts only the micro sign in these units, not `u`.
            Some((factor, symbol)) => Value::from(format!("{} {}", scale * factor, symbol.replace('u', "µ"))),
            None if axis.is_calibrated && axis.unit.is_none() => Value::from(scale.to_string()),
            None => Value::Null,
        }
    };
    let units: Vec<Value> = space.axes.iter().zip(&space.scale).rev().map(axis_unit).collect();
    let has_units = units.iter().any(|unit| !unit.is_null() && unit != "1");
    has_units.then_some(units)
}

/// Returns the Zarr node of the directory `key` with its memory permit, or `None` if the directory is not a node
/// ([`ZarrNodeType::Missing`]).
///
/// # Errors
/// Returns the same errors as [`read_node`].
pub(super) async fn read_zarr_node(
    lookup: &ViewLookup<'_>,
    key: &Key,
) -> Result<Option<(ZarrNode, Option<MemoryPermit>)>, ReadError> {
    let (level, order, key) = match node_type(lookup, key).await? {
        ZarrNodeType::Missing => return Ok(None),
        ZarrNodeType::Group => (None, None, key.clone()),
        ZarrNodeType::Array(dataset, order) => {
            (space_in_pyramid(lookup, &dataset.key).await?, order, dataset.key.clone())
        }
    };
    let Some((loaded, copied)) = load_with_attributes(lookup, &key).await? else { return Ok(None) };
    let Some(plan) = copied.channel_plan(&loaded.node, &key) else {
        let node = ZarrNode::of(&loaded.node, key.name(), level.as_ref(), order, None, copied);
        return Ok(node.map(|node| (node, loaded.memory)));
    };
    // The sample needs memory, and a request that holds memory must not wait for more.
    drop((loaded, copied));
    let windows = plan.read_windows(lookup).await?;
    let Some((loaded, copied)) = load_with_attributes(lookup, &key).await? else { return Ok(None) };
    let node = ZarrNode::of(&loaded.node, key.name(), level.as_ref(), order, Some(&(plan, windows)), copied);
    Ok(node.map(|node| (node, loaded.memory)))
}

/// Loads the directory `key` and copies its attributes. Returns `None` if it was removed after its node type was read.
async fn load_with_attributes(
    lookup: &ViewLookup<'_>,
    key: &Key,
) -> Result<Option<(LoadedNode, CopiedAttributes)>, ReadError> {
    let loaded = match read_node_with_text(lookup.container, lookup.options, key).await {
        Err(ReadError::NotFound(_)) => return Ok(None),
        loaded => loaded?,
    };
    let is_dataset = loaded.node.is_dataset();
    let copied = loaded.map_text(lookup.container, move |text| CopiedAttributes::of(text, is_dataset)).await?;
    Ok(Some((loaded, copied)))
}

/// Returns the coordinate space that a pyramid gives to the dataset `key`, or `None` if the dataset is not a level of a
/// pyramid.
async fn space_in_pyramid(lookup: &ViewLookup<'_>, key: &Key) -> Result<Option<CoordinateSpace>, ReadError> {
    let mut group = key.parent();
    for _ in 0..MAX_LEVEL_DEPTH {
        let Some(group_key) = group else { break };
        let loaded = match read_node(lookup.container, lookup.options, &group_key).await {
            Err(ReadError::NotFound(_)) => return Ok(None),
            loaded => loaded?,
        };
        let level_path = relative_path(&group_key, key);
        if let Some(pyramid) = n5_metadata::pyramid(&loaded.node, &mut Vec::new())
            && let Some(level_index) = pyramid.levels.iter().position(|level| level.path == level_path)
        {
            return Ok(Some(CoordinateSpace::of_level(&pyramid, level_index)));
        }
        group = group_key.parent();
    }
    Ok(None)
}

/// Returns the names of those arrays in the directory `lookup.key` that are levels of a pyramid with reordered axes.
///
/// # Errors
/// Returns the same errors as [`read_node`].
pub(super) async fn reordered_names(lookup: &ViewLookup<'_>) -> Result<Vec<String>, ReadError> {
    let mut names = Vec::new();
    for group in std::iter::successors(Some(lookup.key.clone()), Key::parent).take(MAX_LEVEL_DEPTH) {
        let loaded = match read_node(lookup.container, lookup.options, &group).await {
            Err(ReadError::NotFound(_)) => continue,
            loaded => loaded?,
        };
        let Some(pyramid) = n5_metadata::pyramid(&loaded.node, &mut Vec::new()) else { continue };
        for (path, order) in reordered_levels(&loaded.node, &pyramid) {
            let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
            if directory == relative_path(&group, lookup.key) {
                names.push(order.name_of(name));
            }
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the paths of the levels of a pyramid that are decoded, with the order of axes that OME-NGFF requires, if it
/// is not the stored order.
pub(super) fn reordered_levels<'a>(
    node: &'a Node,
    pyramid: &'a Pyramid,
) -> impl Iterator<Item = (&'a str, AxisPermutation)> + 'a {
    let order = ImageAxes::of(&CoordinateSpace::of_level(pyramid, 0)).and_then(|axes| axes.order);
    let is_decoded = |path: &str| node.dataset_below(path).is_some_and(|dataset| ZarrEncoding::of(&dataset).is_some());
    let levels = pyramid.levels.iter().filter(move |level| is_decoded(&level.path));
    levels.filter_map(move |level| Some((level.path.as_str(), order?)))
}

/// Returns the path of `key` relative to `group`, which must be a prefix of `key`.
pub(super) fn relative_path<'a>(group: &Key, key: &'a Key) -> &'a str {
    key.as_str().strip_prefix(group.as_str()).unwrap_or_default().trim_start_matches('/')
}

/// Returns a document with the memory permit that covers it.
pub(super) fn document(object: JsonObjectBuilder, memory: Option<MemoryPermit>) -> ResolvedKey {
    ResolvedKey::Document { text: object.into_text(), memory }
}

/// Returns an entry of `multiscales` without its version, for a pyramid of any convention, or `None` if OME-NGFF cannot
/// describe the pyramid.
///
/// - Axes are in the order that OME-NGFF requires. If that is not the order of the data, the levels are the arrays with
///   reordered axes.
/// - Levels that differ in data type from the finest level, and levels that are not decoded, are left out.
fn multiscales_entry(node: &Node, pyramid: &Pyramid, name: Option<&str>) -> Option<Map<String, Value>> {
    let data_type_of = |level: &PyramidLevel| {
        let document = node.child_documents.get(&level.path)?.clone();
        let dataset = DatasetAttributes::parse(document).ok()?;
        ZarrEncoding::of(&dataset).map(|_| dataset.data_type().clone())
    };
    let ImageAxes { kinds, order } = ImageAxes::of(&CoordinateSpace::of_level(pyramid, 0))?;
    let reordered = |list: &[f64]| {
        let stored: Vec<f64> = list.iter().rev().copied().collect();
        order.map_or(stored.clone(), |order| order.apply(&stored))
    };
    let mut finest_level: Option<(CoordinateSpace, DataType)> = None;
    let mut datasets = Vec::new();
    for (number, level) in pyramid.levels.iter().enumerate() {
        let Some(data_type) = data_type_of(level) else { continue };
        let space = CoordinateSpace::of_level(pyramid, number);
        let (finest_space, finest_type) = finest_level.get_or_insert_with(|| (space.clone(), data_type.clone()));
        if *finest_type != data_type || finest_space.axes.len() != space.axes.len() {
            continue;
        }
        let path = order.map_or_else(|| level.path.clone(), |order| order.name_of(&level.path));
        datasets.push(json!({"path": path, "coordinateTransformations": [
            {"type": "scale", "scale": reordered(&space.scale)},
            {"type": "translation", "translation": reordered(&space.translation)},
        ]}));
    }
    let (space, _) = finest_level?;
    let mut image = Map::new();
    if let Some(name) = name {
        image.insert("name".to_owned(), Value::from(name));
    }
    let axes: Vec<Value> = space.axes.iter().rev().zip(kinds).map(|(axis, kind)| ngff_axis(axis, kind)).collect();
    image.insert("axes".to_owned(), Value::Array(order.map_or(axes.clone(), |order| order.apply(&axes))));
    image.insert("datasets".to_owned(), Value::Array(datasets));
    Some(image)
}

fn ngff_axis(axis: &Axis, kind: AxisKind) -> Value {
    let mut members = Map::new();
    members.insert("name".to_owned(), Value::from(axis.name.as_str()));
    let kind_name = match kind {
        AxisKind::Space => Some("space"),
        AxisKind::Time => Some("time"),
        AxisKind::Channel => Some("channel"),
        AxisKind::Other => None,
    };
    if let Some(kind_name) = kind_name {
        members.insert("type".to_owned(), Value::from(kind_name));
    }
    // An axis that counts as space for its name may have a unit of time.
    let unit = axis.unit.filter(|unit| match kind {
        AxisKind::Space => unit.base == BaseUnit::Metre,
        AxisKind::Time => unit.base == BaseUnit::Second,
        AxisKind::Channel | AxisKind::Other => true,
    });
    if let Some(unit) = unit.and_then(|unit| unit.ngff_name()) {
        members.insert("unit".to_owned(), Value::from(unit));
    }
    Value::Object(members)
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

    fn array(extra_members: &Value, ancestors: &[Value]) -> Option<(ZarrLayout, Vec<String>, JsonObjectBuilder)> {
        let mut attributes = json!({"dimensions": [7, 5, 3], "blockSize": [5, 4, 9], "dataType": "uint16",
            "compression": {"type": "gzip"}});
        attributes.as_object_mut().unwrap().extend(extra_members.as_object().unwrap().clone());
        let copied = CopiedAttributes::of(attributes.to_string().as_bytes(), true);
        match ZarrNode::of(&node(&attributes, ancestors), None, None, None, None, copied)? {
            ZarrNode::Array { layout, names, attributes } => Some((layout, names, attributes)),
            ZarrNode::Group { .. } => panic!("a group"),
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
        let (layout, names, attributes) = array.unwrap();
        assert_eq!((&layout.shape[..], &layout.chunks[..]), (&[3, 5, 7][..], &[3, 4, 5][..]));
        assert_eq!(names, ["z", "y", "x"]);
        assert_eq!(units_of(attributes.clone()), Some(json!(["3 nm", "0.5 µm", "4 nm"])));
        let attributes = read(attributes);
        assert_eq!(attributes["mine"], json!([1, 2]));
        assert!(N5_ARRAY_KEYS.iter().all(|key| attributes.get(key).is_none()), "{attributes}");
    }

    #[test]
    fn units_are_written_only_if_they_add_information() {
        let units = |extra_members: Value| units_of(array(&extra_members, &[]).unwrap().2);
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
        let copied = CopiedAttributes::of(own.to_string().as_bytes(), false);
        let Some(ZarrNode::Group { attributes, ome, image }) =
            ZarrNode::of(&node(&own, &[]), None, None, None, None, copied)
        else {
            panic!("no group")
        };
        assert_eq!(attributes.into_text(), r#"{"name":"a"}"#);
        assert_eq!(ome.into_text(), r#"{"labels":["cells"],"omero":{"id":1}}"#);
        assert!(image.is_none());
        // Members of `ome` take precedence over those beside it. Of repeated members, the last one counts.
        let own =
            br#"{"ome":{"x":1},"omero":1,"image-label":2,"omero":3,"ome":{"\u006fmero":4,"multiscales":[]},"a":1e999}"#;
        let CopiedAttributes { attributes, ome, omero, has_long_omero } = CopiedAttributes::of(own, false);
        assert_eq!(attributes.into_text(), r#"{"a":1e999}"#);
        assert_eq!(ome.into_text(), r#"{"image-label":2}"#);
        assert_eq!((omero, has_long_omero), (Some(json!(4)), false));
        let long = format!(r#"{{"omero":{{"channels":[],"name":"{}"}}}}"#, "a".repeat(MAX_OMERO_BYTES));
        let copied = CopiedAttributes::of(long.as_bytes(), false);
        assert_eq!((copied.ome.into_text(), copied.omero, copied.has_long_omero), (long, None, true));
    }

    fn document(value: &Value) -> AttributesDocument {
        AttributesDocument::parse(value.to_string().as_bytes()).unwrap()
    }

    fn level(dimensions: &[u64], data_type: &str) -> Value {
        json!({"dimensions": dimensions, "blockSize": dimensions, "dataType": data_type,
            "compression": {"type": "raw"}})
    }

    fn multiscales_of(attributes: &Value, levels: &[(&str, Value)]) -> Option<Value> {
        let mut node = Node { document: Some(Ok(document(attributes))), ..Node::default() };
        for (path, value) in levels {
            node.children.push((*path).to_owned());
            node.child_documents.insert((*path).to_owned(), document(value));
        }
        let pyramid = n5_metadata::pyramid(&node, &mut Vec::new())?;
        multiscales_entry(&node, &pyramid, Some("em")).map(Value::Object)
    }

    #[test]
    fn n5_viewer_pyramids_become_scales_and_translations() {
        let own = json!({"scales": [[1, 1, 1], [2, 2, 1]],
            "pixelResolution": {"unit": "um", "dimensions": [0.5, 0.5, 3]}});
        let levels = [("s0", level(&[8, 6, 4], "uint8")), ("s1", level(&[4, 3, 4], "uint8"))];
        let expected = json!({"name": "em", "axes": [
            {"name": "z", "type": "space", "unit": "micrometer"},
            {"name": "y", "type": "space", "unit": "micrometer"},
            {"name": "x", "type": "space", "unit": "micrometer"}],
            "datasets": [
            {"path": "s0", "coordinateTransformations": [{"type": "scale", "scale": [3.0, 0.5, 0.5]},
                {"type": "translation", "translation": [0.0, 0.0, 0.0]}]},
            {"path": "s1", "coordinateTransformations": [{"type": "scale", "scale": [3.0, 1.0, 1.0]},
                {"type": "translation", "translation": [0.0, 0.25, 0.25]}]}]});
        assert_eq!(multiscales_of(&own, &levels), Some(expected));
    }

    #[test]
    fn a_unit_that_contradicts_the_kind_of_an_axis_is_left_out() {
        let mut finest = level(&[8, 6], "uint8");
        finest["axes"] = json!(["x", "y"]);
        let own = json!({"scales": [[1, 1]], "axes": ["x", "y"], "units": ["nm", "s"], "resolution": [4, 5]});
        let image = multiscales_of(&own, &[("s0", finest)]).unwrap();
        let unit = |axis: usize| image["axes"][axis].get("unit").cloned();
        assert_eq!((unit(0), &image["axes"][0]["type"]), (None, &json!("space")));
        assert_eq!(unit(1), Some(json!("nanometer")));
    }

    #[test]
    fn levels_of_another_type_are_left_out() {
        let own = json!({"scales": [[1, 1], [2, 2], [4, 4]]});
        let levels =
            [("s0", level(&[8, 6], "uint8")), ("s1", level(&[4, 3], "float32")), ("s2", level(&[2, 2], "uint8"))];
        let image = multiscales_of(&own, &levels).unwrap();
        let paths: Vec<&str> =
            image["datasets"].as_array().unwrap().iter().map(|level| level["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["s0", "s2"]);
    }

    #[test]
    fn images_have_two_to_five_axes() {
        let one_axis = json!({"scales": [[1], [2]]});
        assert_eq!(multiscales_of(&one_axis, &[("s0", level(&[8], "uint8")), ("s1", level(&[4], "uint8"))]), None);
        let six_axes = json!({"scales": [[1, 1, 1, 1, 1, 1]]});
        assert_eq!(multiscales_of(&six_axes, &[("s0", level(&[1; 6], "uint8"))]), None);
        assert_eq!(multiscales_of(&json!({"scales": [[1, 1]]}), &[("s0", level(&[2, 2], "string"))]), None);
    }
}
