//! `/as/{encoding}[,{dataType}]/…`: the container as N5, with all blocks in one encoding and with attributes that the
//! strictest readers accept.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::View;
use super::chunk::Chunk;
use super::chunk_encoder::{ChunkEncoder, StreamLayout};
use super::lookup::{ResolvedKey, ViewLookup};
use super::node::{LoadedNode, read_node, read_node_with_text};
use crate::cache::{ATTRIBUTES, Dataset, ReadError};
use crate::container::{DirectoryEntry, EntryKind};
use crate::store::Key;
use n5_format::{
    self, Array, BlockEncoding, BlockHeader, Coords, DataType, DatasetAttributes, DescribedDataset, GridPosition,
    JsonObjectBuilder, convert, encode_block,
};
use n5_metadata::{CoordinateSpace, Description, Node, NodeKind};

/// The view `as`.
#[derive(Debug)]
pub(super) struct Reencoded;

/// Encoding and data type that a path requests.
#[derive(Debug, Clone, PartialEq)]
struct ReencodeTarget {
    encoding: BlockEncoding,
    /// Data type of the elements, or `None` to keep the stored type.
    data_type: Option<DataType>,
}

impl ReencodeTarget {
    /// Parses a parameter such as `gzip` or `gzip,float32`.
    fn parse(parameters: &[String]) -> Option<Self> {
        let [parameter] = parameters else { return None };
        let (encoding, data_type) = match parameter.split_once(',') {
            None => (parameter.as_str(), None),
            Some((encoding, data_type)) => (encoding, Some(DataType::from_name(data_type))),
        };
        let is_decodable = data_type.as_ref().is_none_or(|data_type| data_type.size_bytes().is_some());
        BlockEncoding::from_name(encoding).filter(|_| is_decodable).map(|encoding| Self { encoding, data_type })
    }

    fn data_type_for<'a>(&'a self, attributes: &'a DatasetAttributes) -> &'a DataType {
        self.data_type.as_ref().unwrap_or(attributes.data_type())
    }
}

#[async_trait]
impl View for Reencoded {
    fn name(&self) -> &'static str {
        "as"
    }

    fn path_parameter_count(&self) -> usize {
        1
    }

    fn accepts_path_parameters(&self, parameters: &[String]) -> bool {
        ReencodeTarget::parse(parameters).is_some()
    }

    fn link_prefix(&self, _node: &Node, description: &Description) -> Option<&'static str> {
        (description.kind != NodeKind::Dataset || description.is_decoded()).then_some("as/gzip")
    }

    fn has_self_contained_chunks(&self) -> bool {
        true
    }

    async fn resolve(&self, lookup: &ViewLookup<'_>) -> Result<ResolvedKey, ReadError> {
        let Some(target) = ReencodeTarget::parse(lookup.path_parameters) else { return Ok(ResolvedKey::Missing) };
        if lookup.key.name() == Some(ATTRIBUTES) {
            let Some(group) = lookup.key.parent() else { return Ok(ResolvedKey::Missing) };
            return attributes_document(lookup, &group, &target).await;
        }
        let Some((dataset, position)) = find_block(lookup).await? else { return Ok(ResolvedKey::Missing) };
        if !dataset.attributes.is_decodable() {
            return Ok(ResolvedKey::Missing);
        }
        let shape = dataset.attributes.grid().clipped_size(&position);
        let data_type = target.data_type.filter(|data_type| data_type != dataset.attributes.data_type());
        let encoder = Arc::new(ReencodeTarget { data_type, ..target });
        Chunk::of_block(dataset, position, &shape, encoder).map(ResolvedKey::Chunk)
    }

    async fn list_documents(&self, lookup: &ViewLookup<'_>) -> Result<Vec<String>, ReadError> {
        let Some(target) = ReencodeTarget::parse(lookup.path_parameters) else { return Ok(Vec::new()) };
        match attributes_document(lookup, lookup.key, &target).await {
            Ok(ResolvedKey::Missing) | Err(ReadError::NotADataset { .. }) => Ok(Vec::new()),
            Ok(_) => Ok(vec![ATTRIBUTES.to_owned()]),
            Err(error) => Err(error),
        }
    }

    async fn list_chunks(
        &self,
        lookup: &ViewLookup<'_>,
        max_entries: usize,
    ) -> Result<Option<Vec<DirectoryEntry>>, ReadError> {
        let enclosing = lookup.container.enclosing_dataset(lookup.options, lookup.key, 1).await?;
        let Some((dataset, prefix)) = enclosing.filter(|(dataset, _)| dataset.attributes.is_decodable()) else {
            return Ok(None);
        };
        let rank = dataset.attributes.rank();
        if rank == 0 {
            let exists = lookup.container.meta(lookup.options, &dataset.block_key(&prefix)).await?.is_some();
            let entry = DirectoryEntry { name: "0".to_owned(), kind: EntryKind::File };
            return Ok(Some(Vec::from_iter(exists.then_some(entry))));
        }
        let axis = prefix.len();
        let fixed: Vec<Option<u64>> = (0..rank).map(|axis| prefix.get(axis).copied()).collect();
        let indices = lookup.container.block_indices(lookup.options, &dataset, &fixed, axis, max_entries).await?;
        let kind = if axis + 1 == rank { EntryKind::File } else { EntryKind::Group };
        let entries: Vec<DirectoryEntry> =
            indices.into_iter().map(|index| DirectoryEntry { name: index.to_string(), kind }).collect();
        Ok((prefix.is_empty() || !entries.is_empty()).then_some(entries))
    }
}

/// Returns the document with the attributes of the directory `key`, or [`ResolvedKey::Missing`] if it has none to show.
async fn attributes_document(
    lookup: &ViewLookup<'_>,
    key: &Key,
    target: &ReencodeTarget,
) -> Result<ResolvedKey, ReadError> {
    // Fails if the attributes cannot be read, because the directory may still be a dataset.
    lookup.container.group(lookup.options, key).await?;
    let loaded = match read_node_with_text(lookup.container, lookup.options, key).await {
        Err(ReadError::NotFound(_)) => match resolve_level_alias(lookup, key).await? {
            Some(path) => read_node(lookup.container, lookup.options, &path).await?,
            None => return Ok(ResolvedKey::Missing),
        },
        loaded => loaded?,
    };
    let mut object = match &loaded.node.document {
        Some(Ok(document)) if document.describes_dataset() => {
            let dataset = DescribedDataset::parse(document.clone())
                .map_err(|error| ReadError::NotADataset { key: key.clone(), reason: error.to_string() })?;
            dataset_attributes(key, &loaded.node, &dataset, target)?
        }
        _ => group_attributes(lookup, key, &loaded).await?,
    };
    if key.is_root() {
        // z5 and zarr-python 2 require a version in the container's root.
        object.insert("n5", &n5_format::VERSION);
    }
    if object.is_empty() && !matches!(loaded.node.document, Some(Ok(_))) {
        return Ok(ResolvedKey::Missing);
    }
    Ok(ResolvedKey::Document { text: object.into_text(), memory: loaded.memory })
}

/// Returns the attributes of a dataset in the form that the strictest readers accept.
fn dataset_attributes(
    key: &Key,
    node: &Node,
    dataset: &DescribedDataset,
    target: &ReencodeTarget,
) -> Result<JsonObjectBuilder, ReadError> {
    if !dataset.is_decodable() {
        let compression = dataset.compression().name();
        let data_type = dataset.data_type();
        let reason = format!("compression {compression:?} with data type {data_type} is not supported");
        return Err(ReadError::NotADataset { key: key.clone(), reason });
    }
    let space = CoordinateSpace::of_node(dataset, node);
    let attribute = target.encoding.compression_attribute();
    let (members, _) =
        n5_metadata::canonical_attributes(dataset, &space, target.data_type_for(dataset), attribute, None);
    let mut object = JsonObjectBuilder::default();
    for (name, value) in &members {
        object.insert(name, value);
    }
    Ok(object)
}

/// Returns the attributes of a group as they are stored, except that those of its pyramid are in the form that the
/// strictest readers accept.
async fn group_attributes(
    lookup: &ViewLookup<'_>,
    key: &Key,
    loaded: &LoadedNode,
) -> Result<JsonObjectBuilder, ReadError> {
    let is_root = key.is_root();
    let is_repeated = move |name: &str| !(n5_metadata::is_inherited_by_neuroglancer(name) || is_root && name == "n5");
    let mut object = loaded.attributes(lookup.container, is_repeated).await?;
    if let Some(mut pyramid) = n5_metadata::pyramid(&loaded.node, &mut Vec::new()) {
        let is_level_decoded =
            |path: &str| loaded.node.dataset_below(path).is_some_and(|dataset| dataset.is_decodable());
        let shown_count = pyramid.levels.iter().position(|level| !is_level_decoded(&level.path));
        pyramid.levels.truncate(shown_count.unwrap_or(usize::MAX));
        for (name, value) in n5_metadata::canonical_group_attributes(&pyramid) {
            object.insert(&name, &value);
        }
    }
    Ok(object)
}

/// Returns the dataset and the grid position of the block at the lookup's key. The key may contain the alias of a
/// level.
async fn find_block(lookup: &ViewLookup<'_>) -> Result<Option<(Arc<Dataset>, GridPosition)>, ReadError> {
    if let Some(block) = lookup.container.block_at(lookup.options, lookup.key).await? {
        return Ok(Some(block));
    }
    let segments: Vec<&str> = lookup.key.segments().collect();
    let Some(level_index) = segments.iter().rposition(|name| level_number(name).is_some()) else { return Ok(None) };
    let (path, rest) = segments.split_at(level_index + 1);
    let Ok(path) = Key::from_segments(path) else { return Ok(None) };
    let Some(level) = resolve_level_alias(lookup, &path).await? else { return Ok(None) };
    let Ok(key) = Key::from_segments(level.segments().chain(rest.iter().copied())) else { return Ok(None) };
    lookup.container.block_at(lookup.options, &key).await
}

/// Resolves the alias `s<i>` of a pyramid's level whose real name is different. Returns the key of the level.
/// Neuroglancer's `n5` source knows only the names `s<i>`.
async fn resolve_level_alias(lookup: &ViewLookup<'_>, key: &Key) -> Result<Option<Key>, ReadError> {
    let (Some(number), Some(group)) = (key.name().and_then(level_number), key.parent()) else { return Ok(None) };
    if lookup.container.dataset(lookup.options, key).await.is_ok() {
        return Ok(None);
    }
    let loaded = match read_node(lookup.container, lookup.options, &group).await {
        Ok(loaded) => loaded,
        Err(ReadError::NotFound(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let pyramid = n5_metadata::pyramid(&loaded.node, &mut Vec::new());
    let level = pyramid.as_ref().and_then(|pyramid| pyramid.levels.get(number));
    let path = level.filter(|level| key.name() != Some(level.path.as_str())).map(|level| level.path.split('/'));
    Ok(path.and_then(|path| Key::from_segments(group.segments().chain(path)).ok()))
}

/// Parses the number in `s<i>`.
fn level_number(name: &str) -> Option<usize> {
    let digits = name.strip_prefix('s').filter(|digits| digits.len() <= 3)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// Encodes blocks of mode 0.
impl ChunkEncoder for ReencodeTarget {
    fn id(&self) -> String {
        format!("n5 {} {}", self.encoding.name(), self.data_type.as_ref().map_or("", |data_type| data_type.name()))
    }

    fn encoder_bytes(&self, shape: &Coords, width: usize) -> u64 {
        let elements = shape.iter().fold(1u64, |product, size| product.saturating_mul(*size));
        let target = self.data_type.as_ref().and_then(DataType::size_bytes);
        let bytes = elements.saturating_mul(target.unwrap_or(width) as u64);
        // Counts the byte-swapped elements, the converted elements, and the encoded block.
        let converted = if target.is_some() { bytes } else { 0 };
        bytes.saturating_add(converted).saturating_add(self.encoding.max_encoded_bytes(bytes)).saturating_add(1024)
    }

    fn encode(&self, array: Array) -> Result<Bytes, ReadError> {
        let Array { shape, data_type, data } = array;
        let (data, data_type) = match &self.data_type {
            None => (data, &data_type),
            Some(target) => (convert(data, &data_type, target)?, target),
        };
        let width = data_type.size_bytes().unwrap_or(1);
        encode_block(&shape, width, data, self.encoding).map_err(|error| ReadError::NotRepresentable(error.to_string()))
    }

    fn passthrough(&self, _: &DatasetAttributes) -> Option<BlockEncoding> {
        self.data_type.is_none().then_some(self.encoding)
    }

    /// Accepts blocks that have the size of their grid cell, clipped at the end of the dataset. Also accepts full
    /// blocks at the end of the dataset, unless they are larger than TensorStore accepts.
    fn start_in_block(&self, dataset: &DatasetAttributes, position: &[u64], header: &BlockHeader) -> Option<usize> {
        let width = dataset.data_type().size_bytes().unwrap_or(1) as u128;
        let full_bytes = || dataset.block_size().iter().fold(width, |bytes, size| bytes.saturating_mul((*size).into()));
        let is_accepted = header.size == dataset.grid().clipped_size(position)
            || (header.size == *dataset.block_size() && full_bytes() <= n5_metadata::MAX_BLOCK_BYTES);
        // The header is a part of the chunk.
        is_accepted.then_some(0)
    }

    fn stream_layout(&self, shape: &Coords) -> Option<StreamLayout> {
        let header = n5_format::block_header(shape).filter(|_| self.encoding == BlockEncoding::Raw)?;
        Some(StreamLayout { header: header.into(), data_type: self.data_type.clone(), is_big_endian: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_may_be_followed_by_a_type() {
        let parse = |text: &str| ReencodeTarget::parse(&[text.to_owned()]);
        assert_eq!(parse("gzip"), Some(ReencodeTarget { encoding: BlockEncoding::Gzip, data_type: None }));
        let float = Some(DataType::Float32);
        assert_eq!(parse("raw,float32"), Some(ReencodeTarget { encoding: BlockEncoding::Raw, data_type: float }));
        for unknown in ["", "xz", "GZIP", "gzip,", "gzip,float16", "gzip,float32,", ",float32", "attributes.json"] {
            assert_eq!(parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn level_names_are_s_and_a_number() {
        assert_eq!(level_number("s0"), Some(0));
        assert_eq!(level_number("s12"), Some(12));
        for other in ["s", "0", "sx", "s1234", "S0", "s-1"] {
            assert_eq!(level_number(other), None, "{other}");
        }
    }
}
