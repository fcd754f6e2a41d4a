//! `/zarr2`: Zarr version 2, with OME-NGFF 0.4.
//!
//! Source: <https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html>; `_ARRAY_DIMENSIONS` is a convention of xarray.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::View;
use super::axis_order::AxisPermutation;
use super::lookup::{ResolvedKey, ViewLookup};
use super::zarr_array::{
    ReorderedChunks, ZarrLayout, ZarrNodeType, list_coordinates, node_type, resolve_chunk, split_reordered,
};
use super::zarr_node::{ZarrNode, document, read_zarr_node, reordered_names};
use super::zarr_subtree::{can_read_subtree, read_subtree};
use crate::cache::{Dataset, ReadError};
use crate::container::DirectoryEntry;
use crate::store::Key;
use n5_format::{BlockEncoding, Coords, JsonObjectBuilder};

const ZARRAY: &str = ".zarray";
const ZGROUP: &str = ".zgroup";
const ZATTRS: &str = ".zattrs";
const ZMETADATA: &str = ".zmetadata";

/// The view `zarr2`.
#[derive(Debug)]
pub(super) struct Zarr2;

#[async_trait]
impl View for Zarr2 {
    fn name(&self) -> &'static str {
        "zarr2"
    }

    fn has_self_contained_chunks(&self) -> bool {
        true
    }

    fn has_suffix_aliases(&self) -> bool {
        true
    }

    async fn resolve(&self, lookup: &ViewLookup<'_>) -> Result<ResolvedKey, ReadError> {
        let (Some(name), Some(directory)) = (lookup.key.name(), lookup.key.parent()) else {
            return Ok(ResolvedKey::Missing);
        };
        match name {
            ZARRAY => Ok(match node_type(lookup, &directory).await? {
                ZarrNodeType::Array(dataset, order) => ZarrLayout::of(&dataset.attributes, order)
                    .map_or(ResolvedKey::Missing, |layout| document(object_text(&zarray_json(&layout)), None)),
                ZarrNodeType::Group | ZarrNodeType::Missing => ResolvedKey::Missing,
            }),
            ZGROUP => Ok(match node_type(lookup, &directory).await? {
                ZarrNodeType::Group => document(object_text(&zgroup_json()), None),
                ZarrNodeType::Array(..) | ZarrNodeType::Missing => ResolvedKey::Missing,
            }),
            ZATTRS => {
                let node = read_zarr_node(lookup, &directory).await?;
                Ok(node.map_or(ResolvedKey::Missing, |(node, memory)| document(zattrs_text(node), memory)))
            }
            ZMETADATA => consolidated(lookup, &directory).await,
            _ => match find_chunk(lookup).await? {
                Some((dataset, order, coordinates)) => {
                    resolve_chunk(&dataset, order, &coordinates, ReorderedChunks::Transposed)
                }
                None => Ok(ResolvedKey::Missing),
            },
        }
    }

    async fn list_documents(&self, lookup: &ViewLookup<'_>) -> Result<Vec<String>, ReadError> {
        let names: &[&str] = match node_type(lookup, lookup.key).await? {
            ZarrNodeType::Missing => &[],
            ZarrNodeType::Group if can_read_subtree(lookup, lookup.key).await? => &[ZATTRS, ZGROUP, ZMETADATA],
            ZarrNodeType::Group => &[ZATTRS, ZGROUP],
            ZarrNodeType::Array(..) => &[ZARRAY, ZATTRS],
        };
        Ok(names.iter().map(ToString::to_string).collect())
    }

    async fn list_further_directories(&self, lookup: &ViewLookup<'_>) -> Result<Vec<String>, ReadError> {
        reordered_names(lookup).await
    }

    async fn list_chunks(
        &self,
        lookup: &ViewLookup<'_>,
        max_entries: usize,
    ) -> Result<Option<Vec<DirectoryEntry>>, ReadError> {
        let (dataset, order, prefix) = if let Some((array, prefix)) = split_reordered(lookup.key) {
            let ZarrNodeType::Array(dataset, order) = node_type(lookup, &array).await? else { return Ok(None) };
            (dataset, order, prefix)
        } else {
            let enclosing = lookup.container.enclosing_dataset(lookup.options, lookup.key, 1).await?;
            let Some((dataset, prefix)) = enclosing else { return Ok(None) };
            (dataset, None, prefix.to_vec())
        };
        list_coordinates(lookup, &dataset, order, &prefix, max_entries).await
    }
}

/// Returns the dataset, the order of its axes and the coordinates of the chunk at the lookup's key, if it can be the key
/// of a chunk.
async fn find_chunk(
    lookup: &ViewLookup<'_>,
) -> Result<Option<(Arc<Dataset>, Option<AxisPermutation>, Coords)>, ReadError> {
    if let Some((array, coordinates)) = split_reordered(lookup.key)
        && let ZarrNodeType::Array(dataset, order) = node_type(lookup, &array).await?
    {
        return Ok((coordinates.len() == dataset.attributes.rank()).then(|| (dataset, order, coordinates.into())));
    }
    let found = lookup.container.dataset_and_coordinates(lookup.options, lookup.key).await?;
    Ok(found.map(|(dataset, coordinates)| (dataset, None, coordinates)))
}

fn zgroup_json() -> Value {
    json!({ "zarr_format": 2 })
}

fn zarray_json(layout: &ZarrLayout) -> Value {
    let dtype = layout.data_type.numpy_typestr().unwrap_or_default();
    let dtype = if layout.encoding.is_big_endian { dtype.replace('<', ">") } else { dtype };
    json!({
        "zarr_format": 2,
        "shape": layout.shape,
        "chunks": layout.chunks,
        "dtype": dtype,
        "compressor": compressor(layout),
        "fill_value": layout.fill_value(),
        "order": "C",
        "filters": null,
        // OME-NGFF 0.4 requires this separator.
        "dimension_separator": "/",
    })
}

/// Returns the numcodecs configuration, with only the members that TensorStore knows.
fn compressor(layout: &ZarrLayout) -> Value {
    match layout.encoding.compression {
        BlockEncoding::Raw => Value::Null,
        BlockEncoding::Gzip => json!({ "id": "gzip", "level": layout.level }),
        BlockEncoding::Zstd => json!({ "id": "zstd", "level": layout.level }),
        BlockEncoding::Blosc => json!({ "id": "blosc", "cname": layout.cname, "clevel": layout.level,
            "shuffle": layout.shuffle, "blocksize": 0 }),
    }
}

/// Returns the text of a JSON object.
fn object_text(value: &Value) -> JsonObjectBuilder {
    let mut object = JsonObjectBuilder::default();
    for (name, value) in value.as_object().into_iter().flatten() {
        object.insert(name, value);
    }
    object
}

fn zattrs_text(node: ZarrNode) -> JsonObjectBuilder {
    match node {
        ZarrNode::Array { names, mut attributes, .. } => {
            attributes.insert("_ARRAY_DIMENSIONS", &names);
            attributes
        }
        ZarrNode::Group { mut attributes, ome, image } => {
            attributes.extend_missing(&ome);
            if let Some(mut image) = image {
                image.insert("version".to_owned(), Value::from("0.4"));
                attributes.insert("multiscales", &[image]);
            }
            attributes
        }
    }
}

/// Returns `.zmetadata` in the form that zarr-python and xarray read.
async fn consolidated(lookup: &ViewLookup<'_>, directory: &Key) -> Result<ResolvedKey, ReadError> {
    let ZarrNodeType::Group = node_type(lookup, directory).await? else { return Ok(ResolvedKey::Missing) };
    let Some((nodes, memory)) = read_subtree(lookup, directory).await? else { return Ok(ResolvedKey::Missing) };
    let mut metadata = JsonObjectBuilder::default();
    for (path, node) in nodes {
        let key = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        match &node {
            ZarrNode::Group { .. } => metadata.insert(&key(ZGROUP), &zgroup_json()),
            ZarrNode::Array { layout, .. } => metadata.insert(&key(ZARRAY), &zarray_json(layout)),
        }
        metadata.insert_object(&key(ZATTRS), &zattrs_text(node));
    }
    let mut object = object_text(&json!({ "zarr_consolidated_format": 1 }));
    object.insert_object("metadata", &metadata);
    Ok(document(object, Some(memory)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::layout;
    use super::*;

    #[test]
    fn an_array_document_is_complete() {
        let expected = json!({"zarr_format": 2, "shape": [5, 7], "chunks": [4, 5], "dtype": ">u2",
            "compressor": {"id": "gzip", "level": 6}, "fill_value": 0, "order": "C", "filters": null,
            "dimension_separator": "/"});
        assert_eq!(zarray_json(&layout("uint16", &json!({"type": "gzip", "level": -1}))), expected);
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
            let document = zarray_json(&layout("float32", &compression));
            assert_eq!((document["dtype"].as_str(), &document["compressor"]), (Some(dtype), &compressor));
            assert_eq!(document["fill_value"].to_string(), "0.0");
        }
        assert_eq!(zarray_json(&layout("int8", &json!({"type": "raw"})))["dtype"], "|i1");
    }

    #[test]
    fn image_metadata_is_beside_the_other_attributes() {
        let image = json!({"axes": []}).as_object().cloned();
        let group = ZarrNode::Group {
            attributes: object_text(&json!({"a": 1})),
            ome: object_text(&json!({"a": 2, "omero": {}})),
            image,
        };
        let expected = r#"{"a":1,"omero":{},"multiscales":[{"axes":[],"version":"0.4"}]}"#;
        assert_eq!(zattrs_text(group).into_text(), expected);
    }
}
