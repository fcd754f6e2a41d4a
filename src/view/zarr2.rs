//! `/zarr2`: Zarr version 2, with OME-NGFF 0.4.
//!
//! Source: <https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html>; `_ARRAY_DIMENSIONS` is xarray's.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::zarr::{self, Array, Group, Item, Layout, Place};
use super::{Found, Lookup, View};
use crate::container::ReadError;
use crate::n5::{Encoding, ObjectText};
use crate::store::Key;

const ARRAY: &str = ".zarray";
const GROUP: &str = ".zgroup";
const ATTRIBUTES: &str = ".zattrs";
const CONSOLIDATED: &str = ".zmetadata";

/// The view.
#[derive(Debug)]
pub(super) struct Zarr2;

#[async_trait]
impl View for Zarr2 {
    fn name(&self) -> &'static str {
        "zarr2"
    }

    fn is_local(&self) -> bool {
        true
    }

    async fn resolve(&self, lookup: &Lookup<'_>) -> Result<Found, ReadError> {
        let (Some(name), Some(directory)) = (lookup.key.name(), lookup.key.parent()) else {
            return Ok(Found::Missing);
        };
        match name {
            ARRAY => Ok(match zarr::place(lookup, &directory).await? {
                Place::Array(dataset) => Layout::of(&dataset.attributes)
                    .map_or(Found::Missing, |layout| zarr::document(object(&array(&layout)), None)),
                Place::Group | Place::Missing => Found::Missing,
            }),
            GROUP => Ok(match zarr::place(lookup, &directory).await? {
                Place::Group => zarr::document(object(&group()), None),
                Place::Array(_) | Place::Missing => Found::Missing,
            }),
            ATTRIBUTES => {
                let item = zarr::item(lookup, &directory).await?;
                Ok(item.map_or(Found::Missing, |(item, memory)| zarr::document(attributes(item), memory)))
            }
            CONSOLIDATED => consolidated(lookup, &directory).await,
            _ => match lookup.container.numbered_at(lookup.access, lookup.key).await? {
                Some((dataset, coordinates)) => zarr::chunk_found(&dataset, &coordinates),
                None => Ok(Found::Missing),
            },
        }
    }

    async fn documents(&self, lookup: &Lookup<'_>) -> Result<Vec<String>, ReadError> {
        // Whether there is consolidated metadata takes a walk to know; who wants it does not look for it here.
        let names: &[&str] = match zarr::place(lookup, lookup.key).await? {
            Place::Missing => &[],
            Place::Group => &[ATTRIBUTES, GROUP],
            Place::Array(_) => &[ARRAY, ATTRIBUTES],
        };
        Ok(names.iter().map(ToString::to_string).collect())
    }
}

fn group() -> Value {
    json!({ "zarr_format": 2 })
}

fn array(layout: &Layout) -> Value {
    let dtype = layout.data_type.numpy().unwrap_or_default();
    let dtype = if layout.scheme.big_endian { dtype.replace('<', ">") } else { dtype };
    json!({
        "zarr_format": 2,
        "shape": layout.shape,
        "chunks": layout.chunks,
        "dtype": dtype,
        "compressor": compressor(layout),
        "fill_value": layout.fill_value(),
        "order": "C",
        "filters": null,
        // OME-NGFF 0.4 wants it.
        "dimension_separator": "/",
    })
}

/// numcodecs' configuration, with the members that TensorStore knows and no other.
fn compressor(layout: &Layout) -> Value {
    let parameters = layout.parameters;
    match layout.scheme.encoding {
        Encoding::Raw => Value::Null,
        Encoding::Gzip => json!({ "id": "gzip", "level": parameters.level }),
        Encoding::Zstd => json!({ "id": "zstd", "level": parameters.level }),
        Encoding::Blosc => json!({ "id": "blosc", "cname": parameters.cname, "clevel": parameters.level,
            "shuffle": parameters.shuffle, "blocksize": 0 }),
    }
}

/// The text of an object.
fn object(value: &Value) -> ObjectText {
    let mut object = ObjectText::default();
    for (name, value) in value.as_object().into_iter().flatten() {
        object.insert(name, value);
    }
    object
}

fn attributes(item: Item) -> ObjectText {
    match item {
        Item::Array(array) => of_array(*array),
        Item::Group(group) => of_group(group),
    }
}

fn of_array(array: Array) -> ObjectText {
    let Array { names, mut attributes, .. } = array;
    attributes.insert("_ARRAY_DIMENSIONS", &names);
    attributes
}

fn of_group(group: Group) -> ObjectText {
    let Group { mut attributes, ome, image } = group;
    attributes.extend_by_missing(&ome);
    if let Some(mut image) = image {
        image.insert("version".to_owned(), Value::from("0.4"));
        attributes.insert("multiscales", &[image]);
    }
    attributes
}

/// `.zmetadata`, as zarr-python and xarray read it.
async fn consolidated(lookup: &Lookup<'_>, directory: &Key) -> Result<Found, ReadError> {
    let Place::Group = zarr::place(lookup, directory).await? else { return Ok(Found::Missing) };
    let Some((items, memory)) = zarr::tree(lookup, directory).await? else { return Ok(Found::Missing) };
    let mut metadata = ObjectText::default();
    for (path, item) in items {
        let key = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        match &item {
            Item::Group(_) => metadata.insert(&key(GROUP), &group()),
            Item::Array(found) => metadata.insert(&key(ARRAY), &array(&found.layout)),
        }
        metadata.insert_object(&key(ATTRIBUTES), &attributes(item));
    }
    let mut document = object(&json!({ "zarr_consolidated_format": 1 }));
    document.insert_object("metadata", &metadata);
    Ok(zarr::document(document, Some(memory)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::n5::{DatasetAttributes, Document};

    fn layout(data_type: &str, compression: &Value) -> Layout {
        let text = json!({"dimensions": [7, 5], "blockSize": [5, 4], "dataType": data_type,
            "compression": compression});
        Layout::of(&DatasetAttributes::parse(Document::parse(text.to_string().as_bytes()).unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn an_array_document_is_complete() {
        let expected = json!({"zarr_format": 2, "shape": [5, 7], "chunks": [4, 5], "dtype": ">u2",
            "compressor": {"id": "gzip", "level": 6}, "fill_value": 0, "order": "C", "filters": null,
            "dimension_separator": "/"});
        assert_eq!(array(&layout("uint16", &json!({"type": "gzip", "level": -1}))), expected);
    }

    #[test]
    fn compressors_are_those_of_numcodecs() {
        for (compression, dtype, compressor) in [
            (json!({"type": "raw"}), ">f4", json!(null)),
            (json!({"type": "bzip2"}), "<f4", json!({"id": "gzip", "level": 6})),
            (json!({"type": "zstd", "level": 9}), ">f4", json!({"id": "zstd", "level": 9})),
            (
                json!({"type": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2}),
                ">f4",
                json!({"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": 2, "blocksize": 0}),
            ),
        ] {
            let document = array(&layout("float32", &compression));
            assert_eq!((document["dtype"].as_str(), &document["compressor"]), (Some(dtype), &compressor));
            assert_eq!(document["fill_value"].to_string(), "0.0");
        }
        assert_eq!(array(&layout("int8", &json!({"type": "raw"})))["dtype"], "|i1");
    }

    #[test]
    fn images_stand_beside_the_other_attributes() {
        let image = json!({"axes": []}).as_object().cloned();
        let group = Group { attributes: object(&json!({"a": 1})), ome: object(&json!({"a": 2, "omero": {}})), image };
        let expected = r#"{"a":1,"omero":{},"multiscales":[{"axes":[],"version":"0.4"}]}"#;
        assert_eq!(of_group(group).into_text(), expected);
    }
}
