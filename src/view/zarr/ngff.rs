//! Pyramids of every convention as OME-NGFF images.
//!
//! Source: <https://ngff.openmicroscopy.org/0.4/> and <https://ngff.openmicroscopy.org/0.5/>, which differ only in the
//! place of the version.

use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use super::chunk::ZarrEncoding;
use n5_format::DatasetAttributes;
use n5_metadata::{AxisKind, CoordinateSpace, Node, Pyramid, PyramidLevel};

/// Number of axes that an image may have.
const RANKS: RangeInclusive<usize> = 2..=5;

/// Returns an entry of `multiscales` without its version, or `None` if OME-NGFF cannot describe the pyramid.
///
/// - Axes are in the order of the data, the slowest first. OME-NGFF requires time, channels, space. For images that are
///   stored in another order, the true order is more important than this rule.
/// - Levels with another data type than the finest level, and levels that are not decoded, are left out.
pub(super) fn multiscales_entry(node: &Node, pyramid: &Pyramid, name: Option<&str>) -> Option<Map<String, Value>> {
    let dataset = |level: &PyramidLevel| {
        let document = node.child_documents.get(&level.path)?.clone();
        DatasetAttributes::parse(document).ok().filter(|dataset| ZarrEncoding::of(dataset).is_some())
    };
    let mut finest_level: Option<(CoordinateSpace, DatasetAttributes)> = None;
    let mut datasets = Vec::new();
    for (number, level) in pyramid.levels.iter().enumerate() {
        let Some(attributes) = dataset(level) else { continue };
        let space = CoordinateSpace::of_level(pyramid, number);
        let (first, _) = match &finest_level {
            Some((_, finest)) if finest.data_type() != attributes.data_type() => continue,
            Some(finest) => finest,
            None => finest_level.insert((space.clone(), attributes)),
        };
        if first.axes.len() != space.axes.len() {
            continue;
        }
        let reversed = |list: &[f64]| list.iter().rev().copied().collect::<Vec<f64>>();
        datasets.push(json!({"path": level.path, "coordinateTransformations": [
            {"type": "scale", "scale": reversed(&space.scale)},
            {"type": "translation", "translation": reversed(&space.translation)},
        ]}));
    }
    let (space, _) = finest_level.filter(|(space, _)| RANKS.contains(&space.axes.len()))?;
    let mut image = Map::new();
    if let Some(name) = name {
        image.insert("name".to_owned(), Value::from(name));
    }
    image.insert("axes".to_owned(), axes(&space));
    image.insert("datasets".to_owned(), Value::Array(datasets));
    Some(image)
}

fn axes(space: &CoordinateSpace) -> Value {
    let axis_json = |axis: &n5_metadata::Axis| {
        let mut members = Map::new();
        members.insert("name".to_owned(), Value::from(axis.name.as_str()));
        let kind = match axis.kind {
            AxisKind::Space => Some("space"),
            AxisKind::Time => Some("time"),
            AxisKind::Channel => Some("channel"),
            AxisKind::Other => None,
        };
        if let Some(kind) = kind {
            members.insert("type".to_owned(), Value::from(kind));
        }
        if let Some(unit) = axis.unit.and_then(|unit| unit.ngff_name()) {
            members.insert("unit".to_owned(), Value::from(unit));
        }
        Value::Object(members)
    };
    space.axes.iter().rev().map(axis_json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use n5_format::AttributesDocument;

    fn document(value: &Value) -> AttributesDocument {
        AttributesDocument::parse(value.to_string().as_bytes()).unwrap()
    }

    fn array(dimensions: &[u64], data_type: &str) -> Value {
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
        let levels = [("s0", array(&[8, 6, 4], "uint8")), ("s1", array(&[4, 3, 4], "uint8"))];
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
    fn levels_of_another_type_are_left_out() {
        let own = json!({"scales": [[1, 1], [2, 2], [4, 4]]});
        let levels =
            [("s0", array(&[8, 6], "uint8")), ("s1", array(&[4, 3], "float32")), ("s2", array(&[2, 2], "uint8"))];
        let image = multiscales_of(&own, &levels).unwrap();
        let paths: Vec<&str> =
            image["datasets"].as_array().unwrap().iter().map(|l| l["path"].as_str().unwrap()).collect();
        assert_eq!(paths, ["s0", "s2"]);
    }

    #[test]
    fn images_have_two_to_five_axes() {
        let one_axis = json!({"scales": [[1], [2]]});
        assert_eq!(multiscales_of(&one_axis, &[("s0", array(&[8], "uint8")), ("s1", array(&[4], "uint8"))]), None);
        let six_axes = json!({"scales": [[1, 1, 1, 1, 1, 1]]});
        assert_eq!(multiscales_of(&six_axes, &[("s0", array(&[1; 6], "uint8"))]), None);
        assert_eq!(multiscales_of(&json!({"scales": [[1, 1]]}), &[("s0", array(&[2, 2], "string"))]), None);
    }
}
