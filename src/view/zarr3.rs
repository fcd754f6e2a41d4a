//! `/zarr3`: Zarr version 3, with OME-NGFF 0.5.
//!
//! Source: <https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html>; consolidated metadata as zarr-python 3
//! writes it.

use async_trait::async_trait;
use serde_json::{Value, json};

use super::View;
use super::lookup::{ResolvedKey, ViewLookup};
use super::zarr_array::{ReorderedChunks, ZarrLayout, ZarrNodeType, list_coordinates, node_type, resolve_chunk};
use super::zarr_node::{ZarrNode, document, read_zarr_node, reordered_names};
use super::zarr_subtree::read_subtree;
use crate::cache::ReadError;
use crate::container::{DirectoryEntry, EntryKind, grid_component};
use crate::store::Key;
use n5_format::{BlockEncoding, Coords, JsonObjectBuilder};

const ZARR_JSON: &str = "zarr.json";

/// Segment between the key of an array and the coordinates of its chunks.
const CHUNK_KEY_PREFIX: &str = "c";

/// The view `zarr3`.
#[derive(Debug)]
pub(super) struct Zarr3;

#[async_trait]
impl View for Zarr3 {
    fn name(&self) -> &'static str {
        "zarr3"
    }

    fn has_self_contained_chunks(&self) -> bool {
        true
    }

    fn has_suffix_aliases(&self) -> bool {
        true
    }

    async fn resolve(&self, lookup: &ViewLookup<'_>) -> Result<ResolvedKey, ReadError> {
        if let (Some(ZARR_JSON), Some(directory)) = (lookup.key.name(), lookup.key.parent()) {
            return read_zarr_json(lookup, &directory).await;
        }
        let Some((array, coordinates)) = chunk_key(lookup.key) else { return Ok(ResolvedKey::Missing) };
        match node_type(lookup, &array).await? {
            // The chunk of an array without axes has no coordinates, but its block has one, 0.
            ZarrNodeType::Array(dataset, order) if coordinates.len() == dataset.attributes.rank() => {
                let zero_coordinate = [0];
                let coordinates = if coordinates.is_empty() { &zero_coordinate } else { coordinates.as_slice() };
                resolve_chunk(&dataset, order, coordinates, ReorderedChunks::AsStored)
            }
            ZarrNodeType::Array(..) | ZarrNodeType::Group | ZarrNodeType::Missing => Ok(ResolvedKey::Missing),
        }
    }

    async fn list_documents(&self, lookup: &ViewLookup<'_>) -> Result<Vec<String>, ReadError> {
        Ok(match node_type(lookup, lookup.key).await? {
            ZarrNodeType::Missing => Vec::new(),
            ZarrNodeType::Group | ZarrNodeType::Array(..) => vec![ZARR_JSON.to_owned()],
        })
    }

    async fn list_further_directories(&self, lookup: &ViewLookup<'_>) -> Result<Vec<String>, ReadError> {
        reordered_names(lookup).await
    }

    async fn list_chunks(
        &self,
        lookup: &ViewLookup<'_>,
        max_entries: usize,
    ) -> Result<Option<Vec<DirectoryEntry>>, ReadError> {
        if let Some((array, prefix)) = chunk_key(lookup.key)
            && let ZarrNodeType::Array(dataset, order) = node_type(lookup, &array).await?
            && dataset.attributes.rank() > 0
        {
            return list_coordinates(lookup, &dataset, order, &prefix, max_entries).await;
        }
        let ZarrNodeType::Array(dataset, _) = node_type(lookup, lookup.key).await? else { return Ok(None) };
        // The coordinates of the chunks are below `c`. The only chunk of an array without axes is `c` itself.
        let kind = if dataset.attributes.rank() == 0 { EntryKind::File } else { EntryKind::Group };
        let block = dataset.block_key(&Coords::new());
        let exists = kind == EntryKind::Group || lookup.container.meta(lookup.options, &block).await?.is_some();
        let entry = DirectoryEntry { name: CHUNK_KEY_PREFIX.to_owned(), kind };
        Ok(Some(Vec::from_iter(exists.then_some(entry))))
    }
}

/// Splits the key of a chunk into the key of its array and its coordinates, which are in Zarr's order.
fn chunk_key(key: &Key) -> Option<(Key, Vec<u64>)> {
    let segments: Vec<&str> = key.segments().collect();
    let mut coordinates: Vec<u64> = segments.iter().rev().map_while(|name| grid_component(name)).collect();
    let prefix_index = segments.len().checked_sub(coordinates.len() + 1)?;
    if segments.get(prefix_index) != Some(&CHUNK_KEY_PREFIX) {
        return None;
    }
    coordinates.reverse();
    Some((Key::from_segments(segments.iter().take(prefix_index)).ok()?, coordinates))
}

async fn read_zarr_json(lookup: &ViewLookup<'_>, directory: &Key) -> Result<ResolvedKey, ReadError> {
    let subtree = match node_type(lookup, directory).await? {
        ZarrNodeType::Missing => return Ok(ResolvedKey::Missing),
        ZarrNodeType::Array(..) => None,
        ZarrNodeType::Group => read_subtree(lookup, directory).await?,
    };
    let Some((mut nodes, memory)) = subtree else {
        let node = read_zarr_node(lookup, directory).await?;
        return Ok(node.map_or(ResolvedKey::Missing, |(node, memory)| document(zarr_json(node), memory)));
    };
    // The directory may have been replaced since its node type was read.
    if nodes.first().is_none_or(|(path, _)| !path.is_empty()) {
        return Ok(ResolvedKey::Missing);
    }
    let (_, node) = nodes.remove(0);
    let mut object = zarr_json(node);
    let mut subtree_metadata = JsonObjectBuilder::default();
    for (path, node) in nodes {
        subtree_metadata.insert_object(&path, &zarr_json(node));
    }
    let mut consolidated = JsonObjectBuilder::default();
    consolidated.insert("kind", &"inline");
    consolidated.insert("must_understand", &false);
    consolidated.insert_object("metadata", &subtree_metadata);
    object.insert_object("consolidated_metadata", &consolidated);
    Ok(document(object, Some(memory)))
}

fn zarr_json(node: ZarrNode) -> JsonObjectBuilder {
    let mut object = JsonObjectBuilder::default();
    object.insert("zarr_format", &3);
    match node {
        ZarrNode::Array { layout, names, attributes } => {
            object.insert("node_type", &"array");
            object.insert("shape", &layout.shape);
            object.insert("data_type", &layout.data_type.name());
            object
                .insert("chunk_grid", &json!({ "name": "regular", "configuration": { "chunk_shape": layout.chunks } }));
            object.insert("chunk_key_encoding", &json!({ "name": "default", "configuration": { "separator": "/" } }));
            object.insert("fill_value", &layout.fill_value());
            object.insert("codecs", &codecs(&layout));
            object.insert("dimension_names", &names);
            object.insert_object("attributes", &attributes);
        }
        ZarrNode::Group { mut attributes, mut ome, image } => {
            if let Some(image) = image {
                ome.insert("multiscales", &[image]);
            }
            if !ome.is_empty() {
                ome.insert("version", &"0.5");
                attributes.insert_object("ome", &ome);
            }
            object.insert("node_type", &"group");
            object.insert_object("attributes", &attributes);
        }
    }
    object
}

fn codecs(layout: &ZarrLayout) -> Vec<Value> {
    let encoding = layout.encoding;
    let endian = if encoding.is_big_endian { "big" } else { "little" };
    // The codec turns the array into one with the axes in stored order.
    let transposition =
        layout.order.map(|order| json!({ "name": "transpose", "configuration": { "order": order.inverse() } }));
    let mut codecs: Vec<Value> = transposition.into_iter().collect();
    codecs.push(match encoding.width {
        1 => json!({ "name": "bytes" }),
        _ => json!({ "name": "bytes", "configuration": { "endian": endian } }),
    });
    let compression = match encoding.compression {
        BlockEncoding::Raw => return codecs,
        BlockEncoding::Gzip => json!({ "level": layout.level }),
        BlockEncoding::Zstd => json!({ "level": layout.level, "checksum": false }),
        BlockEncoding::Blosc => {
            let shuffle = match layout.shuffle {
                0 => "noshuffle",
                2 => "bitshuffle",
                _ => "shuffle",
            };
            json!({ "typesize": encoding.width, "cname": layout.cname, "clevel": layout.level,
                "shuffle": shuffle, "blocksize": 0 })
        }
    };
    codecs.push(json!({ "name": encoding.compression.name(), "configuration": compression }));
    codecs
}

#[cfg(test)]
mod tests {
    use super::super::tests::layout;
    use super::*;

    #[test]
    fn an_array_document_is_complete() {
        let array = ZarrNode::Array {
            layout: layout("uint16", &json!({"type": "gzip", "level": 1})),
            names: vec!["y".to_owned(), "x".to_owned()],
            attributes: JsonObjectBuilder::default(),
        };
        let expected = json!({"zarr_format": 3, "node_type": "array", "shape": [5, 7], "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 5]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 0,
            "codecs": [{"name": "bytes", "configuration": {"endian": "big"}},
                {"name": "gzip", "configuration": {"level": 1}}],
            "dimension_names": ["y", "x"], "attributes": {}});
        assert_eq!(serde_json::from_str::<Value>(&zarr_json(array).into_text()).unwrap(), expected);
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
    fn chunk_keys_are_split_at_the_last_c_before_the_numbers() {
        let parse_chunk_key = |path: &str| {
            let key = Key::from_segments(path.split('/')).unwrap();
            chunk_key(&key).map(|(array, numbers)| (array.as_str().to_owned(), numbers))
        };
        assert_eq!(parse_chunk_key("a/c/1/20"), Some(("a".to_owned(), vec![1, 20])));
        assert_eq!(parse_chunk_key("a/c/c/0"), Some(("a/c".to_owned(), vec![0])));
        assert_eq!(parse_chunk_key("a/c/0/c/5/6"), Some(("a/c/0".to_owned(), vec![5, 6])));
        assert_eq!(parse_chunk_key("c"), Some((String::new(), vec![])));
        for bad in ["a/1/2", "1", "a/c/01", "a/c/x", "a/C/0"] {
            assert_eq!(parse_chunk_key(bad), None, "{bad}");
        }
    }

    #[test]
    fn image_metadata_is_under_ome() {
        let group = ZarrNode::Group {
            attributes: JsonObjectBuilder::from_matching(br#"{"a":1}"#, |_| true),
            ome: JsonObjectBuilder::from_matching(br#"{"omero":{}}"#, |_| true),
            image: json!({"axes": []}).as_object().cloned(),
        };
        let expected = r#"{"zarr_format":3,"node_type":"group","attributes":{"a":1,"ome":{"omero":{},"multiscales":[{"axes":[]}],"version":"0.5"}}}"#;
        assert_eq!(zarr_json(group).into_text(), expected);
    }
}
