//! Whether a volume shows an image or the segments of one.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::n5::DataType;

use super::fields::level_number;

/// How the elements of a volume are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Volume {
    /// Intensities.
    Image,
    /// Numbers of segments.
    Segmentation,
}

/// Directories whose attributes and names count: Paintera's levels lie two below `painteraData`.
const NEAR: usize = 3;

/// What a dataset, or a pyramid whose levels have this data type, shows; `None` for a type that is not
/// decoded.
///
/// `path` names it; `attributes` are its own and those of the directories above, the
/// nearest first, of which a few count. In this order: floating point is an image; Paintera's
/// `painteraData.type`, `isLabelMultiset` and `maxId`, OME-NGFF's `image-label`, CellMap's
/// `cellmap.annotation`; 64 unsigned bits are segments; then the last names of the path.
pub fn volume_of(path: &str, data_type: &DataType, attributes: &[&Map<String, Value>]) -> Option<Volume> {
    let wide = match data_type {
        DataType::Other(_) => return None,
        DataType::Float32 | DataType::Float64 => return Some(Volume::Image),
        DataType::UInt64 | DataType::UInt32 | DataType::Int64 | DataType::Int32 => true,
        DataType::UInt8 | DataType::UInt16 | DataType::Int8 | DataType::Int16 => false,
    };
    if let Some(said) = attributes.iter().take(NEAR).find_map(|members| said(members)) {
        return Some(said);
    }
    let mut names = path.rsplit('/').filter(|name| !name.is_empty() && level_number(name).is_none()).take(NEAR);
    let segments = *data_type == DataType::UInt64 || names.any(|name| named_so(name, wide));
    Some(if segments { Volume::Segmentation } else { Volume::Image })
}

fn said(members: &Map<String, Value>) -> Option<Volume> {
    let root = members.get("ome").and_then(Value::as_object).unwrap_or(members);
    let flag = |key: &str| members.get(key) == Some(&Value::Bool(true));
    let cellmap = members.get("cellmap").and_then(|cellmap| cellmap.get("annotation"));
    if flag("isLabelMultiset")
        || members.get("maxId").is_some_and(Value::is_number)
        || root.get("image-label").is_some_and(Value::is_object)
        || cellmap.is_some_and(Value::is_object)
    {
        return Some(Volume::Segmentation);
    }
    match members.get("painteraData")?.get("type")?.as_str()? {
        "label" => Some(Volume::Segmentation),
        "raw" | "channel" => Some(Volume::Image),
        _ => None,
    }
}

/// Whether a word of a name speaks of segments. Masks and ground truth are often images of 8 or 16
/// bits, so that these words only count for `wide` integers.
fn named_so(name: &str, wide: bool) -> bool {
    let words = name.split(|c: char| !c.is_alphanumeric()).map(str::to_lowercase);
    let sure = ["label", "segment", "annotation"];
    words.into_iter().any(|word| {
        sure.iter().any(|start| word.starts_with(start))
            || word == "seg"
            || (wide && (["seg", "label", "mask", "annotation"].iter().any(|part| word.contains(part)) || word == "gt"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(path: &str, data_type: &str, attributes: &[Value]) -> Option<Volume> {
        let attributes: Vec<_> = attributes.iter().map(|value| value.as_object().unwrap()).collect();
        volume_of(path, &DataType::from_name(data_type), &attributes)
    }

    #[test]
    fn metadata_comes_before_type_and_name() {
        for (attributes, volume) in [
            (json!({"painteraData": {"type": "label"}}), Volume::Segmentation),
            (json!({"painteraData": {"type": "raw"}}), Volume::Image),
            (json!({"maxId": 17_295_547_395_306_184_081_u64}), Volume::Segmentation),
            (json!({"isLabelMultiset": true}), Volume::Segmentation),
            (json!({"image-label": {"version": "0.4"}}), Volume::Segmentation),
            (json!({"ome": {"image-label": {}}}), Volume::Segmentation),
            (json!({"cellmap": {"annotation": {"class_name": "mito"}}}), Volume::Segmentation),
            (json!({"painteraData": {"type": "x"}, "cellmap": 3, "maxId": "no"}), Volume::Image),
        ] {
            assert_eq!(
                of("a/data/s0", "uint8", &[json!({}), json!({}), attributes.clone()]),
                Some(volume),
                "{attributes}"
            );
            assert_eq!(of("a", "float32", std::slice::from_ref(&attributes)), Some(Volume::Image), "{attributes}");
        }
        let far = [json!({}), json!({}), json!({}), json!({"painteraData": {"type": "label"}})];
        assert_eq!(of("a/b/c/d", "uint8", &far), Some(Volume::Image));
        assert_eq!(of("a", "uint64", &[json!({"painteraData": {"type": "raw"}})]), Some(Volume::Image));
    }

    #[test]
    fn type_and_name_decide_otherwise() {
        for (path, data_type, volume) in [
            ("em", "uint8", Volume::Image),
            ("em", "uint64", Volume::Segmentation),
            ("em", "uint32", Volume::Image),
            ("volumes/mito_seg/s0", "uint32", Volume::Segmentation),
            ("volumes/gt", "uint32", Volume::Segmentation),
            ("length", "uint32", Volume::Image),
            ("volumes/labels/s3", "uint8", Volume::Segmentation),
            ("Segmentation", "int16", Volume::Segmentation),
            ("masks", "uint8", Volume::Image),
            ("masks", "int64", Volume::Segmentation),
            ("labels", "float32", Volume::Image),
            ("labels/a/b/c", "uint8", Volume::Image),
            ("", "int32", Volume::Image),
        ] {
            assert_eq!(of(path, data_type, &[]), Some(volume), "{path} {data_type}");
        }
        assert_eq!(of("labels", "string", &[]), None);
    }
}
