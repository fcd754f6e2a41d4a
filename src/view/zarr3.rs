//! `/zarr3`: Zarr version 3, with OME-NGFF 0.5.
//!
//! Source: <https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html>; consolidated metadata as zarr-python 3
//! writes it.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::zarr::{self, Array, Group, Item, Layout, Place};
use super::{Found, Lookup, View};
use crate::container::{ReadError, grid_component};
use crate::n5::{Encoding, ObjectText};
use crate::store::Key;

const DOCUMENT: &str = "zarr.json";

/// Stands between an array and the coordinates of its chunks.
const CHUNKS: &str = "c";

/// The view.
#[derive(Debug)]
pub(super) struct Zarr3;

#[async_trait]
impl View for Zarr3 {
    fn name(&self) -> &'static str {
        "zarr3"
    }

    fn is_local(&self) -> bool {
        true
    }

    async fn resolve(&self, lookup: &Lookup<'_>) -> Result<Found, ReadError> {
        if let (Some(DOCUMENT), Some(directory)) = (lookup.key.name(), lookup.key.parent()) {
            return document(lookup, &directory).await;
        }
        let Some((array, coordinates)) = chunk_key(lookup.key) else { return Ok(Found::Missing) };
        match zarr::place(lookup, &array).await? {
            // The chunk of an array without axes has no coordinates, its block has one.
            Place::Array(dataset) if coordinates.len() == dataset.attributes.rank() => {
                let only = [0];
                zarr::chunk_found(&dataset, if coordinates.is_empty() { &only } else { &coordinates })
            }
            Place::Array(_) | Place::Group | Place::Missing => Ok(Found::Missing),
        }
    }

    async fn documents(&self, lookup: &Lookup<'_>) -> Result<Vec<String>, ReadError> {
        Ok(match zarr::place(lookup, lookup.key).await? {
            Place::Missing => Vec::new(),
            Place::Group | Place::Array(_) => vec![DOCUMENT.to_owned()],
        })
    }
}

/// The array and the coordinates that the key of a chunk names, in Zarr's order.
fn chunk_key(key: &Key) -> Option<(Key, Vec<u64>)> {
    let segments: Vec<&str> = key.segments().collect();
    let mut coordinates: Vec<u64> = segments.iter().rev().map_while(|name| grid_component(name)).collect();
    let at = segments.len().checked_sub(coordinates.len() + 1)?;
    if segments.get(at) != Some(&CHUNKS) {
        return None;
    }
    coordinates.reverse();
    Some((Key::from_segments(segments.iter().take(at)).ok()?, coordinates))
}

async fn document(lookup: &Lookup<'_>, directory: &Key) -> Result<Found, ReadError> {
    let everything = match zarr::place(lookup, directory).await? {
        Place::Missing => return Ok(Found::Missing),
        Place::Array(_) => None,
        Place::Group => zarr::tree(lookup, directory).await?,
    };
    let Some((mut items, memory)) = everything else {
        let item = zarr::item(lookup, directory).await?;
        return Ok(item.map_or(Found::Missing, |(item, memory)| zarr::document(of(item), memory)));
    };
    // It may have become something else meanwhile.
    if items.first().is_none_or(|(path, _)| !path.is_empty()) {
        return Ok(Found::Missing);
    }
    let (_, item) = items.remove(0);
    let mut document = of(item);
    let (mut consolidated, mut below) = (ObjectText::default(), ObjectText::default());
    for (path, item) in items {
        below.insert_object(&path, &of(item));
    }
    consolidated.insert("kind", &"inline");
    consolidated.insert("must_understand", &false);
    consolidated.insert_object("metadata", &below);
    document.insert_object("consolidated_metadata", &consolidated);
    Ok(zarr::document(document, Some(memory)))
}

fn of(item: Item) -> ObjectText {
    match item {
        Item::Array(array) => of_array(*array),
        Item::Group(group) => of_group(group),
    }
}

fn of_array(array: Array) -> ObjectText {
    let Array { layout, names, attributes } = array;
    let mut object = ObjectText::default();
    object.insert("zarr_format", &3);
    object.insert("node_type", &"array");
    object.insert("shape", &layout.shape);
    object.insert("data_type", &layout.data_type.name());
    object.insert("chunk_grid", &json!({ "name": "regular", "configuration": { "chunk_shape": layout.chunks } }));
    object.insert("chunk_key_encoding", &json!({ "name": "default", "configuration": { "separator": "/" } }));
    object.insert("fill_value", &layout.fill_value());
    object.insert("codecs", &codecs(&layout));
    object.insert("dimension_names", &names);
    object.insert_object("attributes", &attributes);
    object
}

fn codecs(layout: &Layout) -> Vec<Value> {
    let (scheme, parameters) = (layout.scheme, layout.parameters);
    let endian = if scheme.big_endian { "big" } else { "little" };
    let mut codecs = vec![match scheme.width {
        1 => json!({ "name": "bytes" }),
        _ => json!({ "name": "bytes", "configuration": { "endian": endian } }),
    }];
    let compression = match scheme.encoding {
        Encoding::Raw => return codecs,
        Encoding::Gzip => json!({ "level": parameters.level }),
        Encoding::Zstd => json!({ "level": parameters.level, "checksum": false }),
        Encoding::Blosc => {
            let shuffle = match parameters.shuffle {
                0 => "noshuffle",
                2 => "bitshuffle",
                _ => "shuffle",
            };
            json!({ "typesize": scheme.width, "cname": parameters.cname, "clevel": parameters.level,
                "shuffle": shuffle, "blocksize": 0 })
        }
    };
    codecs.push(json!({ "name": scheme.encoding.name(), "configuration": compression }));
    codecs
}

fn of_group(group: Group) -> ObjectText {
    let Group { mut attributes, mut ome, image } = group;
    if let Some(image) = image {
        ome.insert("multiscales", &[image]);
    }
    if !ome.is_empty() {
        ome.insert("version", &"0.5");
        attributes.insert_object("ome", &ome);
    }
    let mut object = ObjectText::default();
    object.insert("zarr_format", &3);
    object.insert("node_type", &"group");
    object.insert_object("attributes", &attributes);
    object
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
        let array = Array {
            layout: layout("uint16", &json!({"type": "gzip", "level": 1})),
            names: vec!["y".to_owned(), "x".to_owned()],
            attributes: ObjectText::default(),
        };
        let expected = json!({"zarr_format": 3, "node_type": "array", "shape": [5, 7], "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 5]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "big"}},
                {"name": "gzip", "configuration": {"level": 1}}],
            "dimension_names": ["y", "x"], "attributes": {}});
        assert_eq!(serde_json::from_str::<Value>(&of_array(array).into_text()).unwrap(), expected);
    }

    #[test]
    fn codecs_name_byte_order_and_parameters() {
        for (data_type, compression, expected) in [
            ("uint8", json!({"type": "raw"}), json!([{"name": "bytes"}])),
            (
                "uint16",
                json!({"type": "lz4"}),
                json!([{"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "gzip", "configuration": {"level": 6}}]),
            ),
            (
                "int8",
                json!({"type": "zstd"}),
                json!([{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 3, "checksum": false}}]),
            ),
            (
                "float64",
                json!({"type": "blosc", "cname": "lz4hc", "clevel": 5, "shuffle": 0}),
                json!([{"name": "bytes", "configuration": {"endian": "big"}},
                {"name": "blosc", "configuration": {"typesize": 8, "cname": "lz4hc", "clevel": 5,
                    "shuffle": "noshuffle", "blocksize": 0}}]),
            ),
        ] {
            assert_eq!(Value::from(codecs(&layout(data_type, &compression))), expected);
        }
    }

    #[test]
    fn chunk_keys_are_cut_at_the_last_c_before_the_numbers() {
        let of = |path: &str| {
            let key = Key::from_segments(path.split('/')).unwrap();
            chunk_key(&key).map(|(array, numbers)| (array.as_str().to_owned(), numbers))
        };
        assert_eq!(of("a/c/1/20"), Some(("a".to_owned(), vec![1, 20])));
        assert_eq!(of("a/c/c/0"), Some(("a/c".to_owned(), vec![0])));
        assert_eq!(of("a/c/0/c/5/6"), Some(("a/c/0".to_owned(), vec![5, 6])));
        assert_eq!(of("c"), Some((String::new(), vec![])));
        for bad in ["a/1/2", "1", "a/c/01", "a/c/x", "a/C/0"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn images_stand_under_ome() {
        let group = Group {
            attributes: ObjectText::of(br#"{"a":1}"#, |_| true),
            ome: ObjectText::of(br#"{"omero":{}}"#, |_| true),
            image: json!({"axes": []}).as_object().cloned(),
        };
        let expected = r#"{"zarr_format":3,"node_type":"group","attributes":{"a":1,"ome":{"omero":{},"multiscales":[{"axes":[]}],"version":"0.5"}}}"#;
        assert_eq!(of_group(group).into_text(), expected);
    }
}
