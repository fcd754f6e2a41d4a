//! Classification of a volume as an image or a segmentation.

use n5_format::{AttributesDocument, DataType, DescribedDataset};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::json_values::level_number;
use crate::multiscale::pyramid;
use crate::node::Node;

/// Meaning of a volume's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeKind {
    /// Intensities.
    Image,
    /// Segment identifiers.
    Segmentation,
}

/// Returns the kind of the dataset or pyramid at `path`. Returns `None` for a plain group, and for a type that is not
/// decoded.
pub fn volume_kind(node: &Node, path: &str) -> Option<VolumeKind> {
    let data_type = if node.is_dataset() {
        DescribedDataset::parse(node.own_document().clone()).ok()?.data_type().clone()
    } else {
        let first = pyramid(node, &mut Vec::new())?.levels.into_iter().next()?;
        node.dataset_below(&first.path)?.data_type().clone()
    };
    let ancestors = node.ancestors.iter().rev().map(AttributesDocument::members);
    let attributes: Vec<&Map<String, Value>> = std::iter::once(node.attributes()).chain(ancestors).collect();
    classify_volume(path, &data_type, &attributes)
}

/// Maximum number of directories whose attributes and names are considered, including the volume's own. Paintera's
/// levels are two directories below the one with `painteraData`.
const MAX_ANCESTOR_DISTANCE: usize = 3;

/// Returns the kind of a dataset, or of a pyramid whose levels have the type `data_type`. Returns `None` for a type
/// that is not decoded.
///
/// `path` is the path of the volume. `attributes` are those of the volume and of the directories above, nearest first.
/// Only the first few of them are considered. The first of these criteria that applies decides:
///
/// 1. A floating-point volume is an image.
/// 2. Paintera's `painteraData.type`, `isLabelMultiset` and `maxId`, OME-NGFF's `image-label`, and CellMap's
///    `cellmap.annotation` declare the kind.
/// 3. A uint64 volume is a segmentation.
/// 4. The last names of the path suggest the kind.
pub fn classify_volume(path: &str, data_type: &DataType, attributes: &[&Map<String, Value>]) -> Option<VolumeKind> {
    let is_wide = match data_type {
        DataType::Other(_) => return None,
        DataType::Float32 | DataType::Float64 => return Some(VolumeKind::Image),
        DataType::UInt64 | DataType::UInt32 | DataType::Int64 | DataType::Int32 => true,
        DataType::UInt8 | DataType::UInt16 | DataType::Int8 | DataType::Int16 => false,
    };
    if let Some(declared) = attributes.iter().take(MAX_ANCESTOR_DISTANCE).find_map(|members| declared_kind(members)) {
        return Some(declared);
    }
    let mut names =
        path.rsplit('/').filter(|name| !name.is_empty() && level_number(name).is_none()).take(MAX_ANCESTOR_DISTANCE);
    let is_segmentation = *data_type == DataType::UInt64 || names.any(|name| name_suggests_segments(name, is_wide));
    Some(if is_segmentation { VolumeKind::Segmentation } else { VolumeKind::Image })
}

fn declared_kind(members: &Map<String, Value>) -> Option<VolumeKind> {
    let root = members.get("ome").and_then(Value::as_object).unwrap_or(members);
    let flag = |key: &str| members.get(key) == Some(&Value::Bool(true));
    let cellmap = members.get("cellmap").and_then(|cellmap| cellmap.get("annotation"));
    if flag("isLabelMultiset")
        || members.get("maxId").is_some_and(Value::is_number)
        || root.get("image-label").is_some_and(Value::is_object)
        || cellmap.is_some_and(Value::is_object)
    {
        return Some(VolumeKind::Segmentation);
    }
    match members.get("painteraData")?.get("type")?.as_str()? {
        "label" => Some(VolumeKind::Segmentation),
        "raw" | "channel" => Some(VolumeKind::Image),
        _ => None,
    }
}

/// Returns true if a word of the name suggests segments. Words for masks and ground truth suggest segments only if the
/// elements are `is_wide` integers, because masks are often images of 8 or 16 bits.
fn name_suggests_segments(name: &str, is_wide: bool) -> bool {
    let words = name.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
    let prefixes = ["label", "segment", "annotation"];
    words.into_iter().any(|word| {
        prefixes.iter().any(|start| word.starts_with(start))
            || word == "seg"
            || (is_wide
                && (["seg", "label", "mask", "annotation"].iter().any(|part| word.contains(part)) || word == "gt"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn classify(path: &str, data_type: &str, attributes: &[Value]) -> Option<VolumeKind> {
        let attributes: Vec<_> = attributes.iter().map(|value| value.as_object().unwrap()).collect();
        classify_volume(path, &DataType::from_name(data_type), &attributes)
    }

    #[test]
    fn metadata_comes_before_type_and_name() {
        for (attributes, volume) in [
            (json!({"painteraData": {"type": "label"}}), VolumeKind::Segmentation),
            (json!({"painteraData": {"type": "raw"}}), VolumeKind::Image),
            (json!({"maxId": 17_295_547_395_306_184_081_u64}), VolumeKind::Segmentation),
            (json!({"isLabelMultiset": true}), VolumeKind::Segmentation),
            (json!({"image-label": {"version": "0.4"}}), VolumeKind::Segmentation),
            (json!({"ome": {"image-label": {}}}), VolumeKind::Segmentation),
            (json!({"cellmap": {"annotation": {"class_name": "mito"}}}), VolumeKind::Segmentation),
            (json!({"painteraData": {"type": "x"}, "cellmap": 3, "maxId": "no"}), VolumeKind::Image),
        ] {
            assert_eq!(
                classify("a/data/s0", "uint8", &[json!({}), json!({}), attributes.clone()]),
                Some(volume),
                "{attributes}"
            );
            assert_eq!(
                classify("a", "float32", std::slice::from_ref(&attributes)),
                Some(VolumeKind::Image),
                "{attributes}"
            );
        }
        let far = [json!({}), json!({}), json!({}), json!({"painteraData": {"type": "label"}})];
        assert_eq!(classify("a/b/c/d", "uint8", &far), Some(VolumeKind::Image));
        assert_eq!(classify("a", "uint64", &[json!({"painteraData": {"type": "raw"}})]), Some(VolumeKind::Image));
    }

    #[test]
    fn type_and_name_decide_otherwise() {
        for (path, data_type, volume) in [
            ("em", "uint8", VolumeKind::Image),
            ("em", "uint64", VolumeKind::Segmentation),
            ("em", "uint32", VolumeKind::Image),
            ("volumes/mito_seg/s0", "uint32", VolumeKind::Segmentation),
            ("volumes/gt", "uint32", VolumeKind::Segmentation),
            ("length", "uint32", VolumeKind::Image),
            ("volumes/labels/s3", "uint8", VolumeKind::Segmentation),
            ("Segmentation", "int16", VolumeKind::Segmentation),
            ("masks", "uint8", VolumeKind::Image),
            ("masks", "int64", VolumeKind::Segmentation),
            ("labels", "float32", VolumeKind::Image),
            ("labels/a/b/c", "uint8", VolumeKind::Image),
            ("", "int32", VolumeKind::Image),
        ] {
            assert_eq!(classify(path, data_type, &[]), Some(volume), "{path} {data_type}");
        }
        assert_eq!(classify("labels", "string", &[]), None);
    }
}
