//! `/as/{encoding}[,{dataType}]/…`: the container as N5 with every block in one encoding, and attributes that the
//! strictest readers open.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Map;

use super::chunk::{payload, stored_encoding};
use super::pieces::raw_payload;
use super::{Chunk, Document, Form, Found, Lookup, Plain, View, read_node, read_node_with_text};
use crate::container::{ATTRIBUTES, Dataset, ReadError};
use crate::metadata::{self, Description, Kind, Node, Space};
use crate::n5::{
    self, Array, Coords, DataType, DatasetAttributes, DescribedDataset, Encoding, GridPosition, ObjectText, convert,
    encode_block,
};
use crate::store::Key;

/// The view.
#[derive(Debug)]
pub(super) struct Reencoded;

/// What a path asks for.
#[derive(Debug, Clone, PartialEq)]
struct Wanted {
    encoding: Encoding,
    /// `None`: as stored.
    data_type: Option<DataType>,
}

impl Wanted {
    /// `gzip` or `gzip,float32`.
    fn parse(parameters: &[String]) -> Option<Self> {
        let [parameter] = parameters else { return None };
        let (encoding, data_type) = match parameter.split_once(',') {
            None => (parameter.as_str(), None),
            Some((encoding, data_type)) => (encoding, Some(DataType::from_name(data_type))),
        };
        let known = data_type.as_ref().is_none_or(|data_type| data_type.size_bytes().is_some());
        Encoding::from_name(encoding).filter(|_| known).map(|encoding| Self { encoding, data_type })
    }

    fn data_type<'a>(&'a self, attributes: &'a DatasetAttributes) -> &'a DataType {
        self.data_type.as_ref().unwrap_or(attributes.data_type())
    }
}

#[async_trait]
impl View for Reencoded {
    fn name(&self) -> &'static str {
        "as"
    }

    fn parameters(&self) -> usize {
        1
    }

    fn accepts(&self, parameters: &[String]) -> bool {
        Wanted::parse(parameters).is_some()
    }

    fn link(&self, _node: &Node, description: &Description) -> Option<&'static str> {
        (description.kind != Kind::Dataset || description.is_decoded()).then_some("as/gzip")
    }

    fn is_local(&self) -> bool {
        true
    }

    async fn resolve(&self, lookup: &Lookup<'_>) -> Result<Found, ReadError> {
        let Some(wanted) = Wanted::parse(lookup.parameters) else { return Ok(Found::Missing) };
        if lookup.key.name() == Some(ATTRIBUTES) {
            let Some(group) = lookup.key.parent() else { return Ok(Found::Missing) };
            let document = attributes(lookup, &group, &wanted).await?;
            return Ok(document.map_or(Found::Missing, Found::Document));
        }
        let Some((dataset, position)) = block(lookup).await? else { return Ok(Found::Missing) };
        if !is_decoded(&dataset.attributes) {
            return Ok(Found::Missing);
        }
        let shape = dataset.attributes.grid().clipped_size(&position);
        let data_type = wanted.data_type.filter(|data_type| data_type != dataset.attributes.data_type());
        let form = Arc::new(Block { encoding: wanted.encoding, data_type });
        Chunk::of_block(dataset, position, &shape, form).map(Found::Chunk)
    }

    async fn documents(&self, lookup: &Lookup<'_>) -> Result<Vec<String>, ReadError> {
        let Some(wanted) = Wanted::parse(lookup.parameters) else { return Ok(Vec::new()) };
        match attributes(lookup, lookup.key, &wanted).await {
            Ok(Some(_)) => Ok(vec![ATTRIBUTES.to_owned()]),
            Ok(None) | Err(ReadError::NotADataset { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// The attributes of the directory `key`; `None` where it has none to show.
async fn attributes(lookup: &Lookup<'_>, key: &Key, wanted: &Wanted) -> Result<Option<Document>, ReadError> {
    // Attributes that cannot be read do not say that this is no dataset.
    lookup.container.group(lookup.access, key).await?;
    let known = match read_node_with_text(lookup.container, lookup.access, key).await {
        Err(ReadError::NotFound(_)) => match level(lookup, key).await? {
            Some(path) => read_node(lookup.container, lookup.access, &path).await?,
            None => return Ok(None),
        },
        known => known?,
    };
    let node = &known.node;
    let is_root = key.is_root();
    let (mut object, members) = match node.document.as_ref().and_then(|document| document.as_ref().ok()) {
        Some(document) if document.describes_dataset() => {
            let not = |reason: String| ReadError::NotADataset { key: key.clone(), reason };
            let dataset = DescribedDataset::parse(document.clone()).map_err(|error| not(error.to_string()))?;
            if !is_decoded(&dataset) {
                let (compression, data_type) = (dataset.compression().name(), dataset.data_type());
                return Err(not(format!("compression {compression:?} with type {data_type} is not decoded")));
            }
            let space = Space::of_dataset(&dataset, &node.ancestors);
            let attribute = wanted.encoding.attribute();
            let (members, _) = metadata::canonical(&dataset, &space, wanted.data_type(&dataset), attribute, None);
            (ObjectText::default(), members)
        }
        _ => {
            let repeated = move |name: &str| !(metadata::is_inherited(name) || is_root && name == "n5");
            let object = known.attributes(lookup.container, repeated).await?;
            let mut members = Map::new();
            if let Some(mut pyramid) = metadata::pyramid(node, &mut Vec::new()) {
                let decoded = |path: &str| node.dataset_below(path).is_some_and(|dataset| is_decoded(&dataset));
                let shown = pyramid.levels.iter().position(|level| !decoded(&level.path));
                pyramid.levels.truncate(shown.unwrap_or(usize::MAX));
                members.extend(metadata::canonical_group(&pyramid));
            }
            (object, members)
        }
    };
    for (name, value) in &members {
        object.insert(name, value);
    }
    if is_root {
        // z5 and zarr-python 2 want a version in the container's root.
        object.insert("n5", &n5::VERSION);
    }
    let has_any = !object.is_empty() || matches!(node.document, Some(Ok(_)));
    Ok(has_any.then(|| Document { text: object.into_text(), memory: known.memory }))
}

fn is_decoded(dataset: &DatasetAttributes) -> bool {
    dataset.compression().codec().is_some() && dataset.data_type().size_bytes().is_some()
}

/// The dataset and the position that the lookup's key names.
async fn block(lookup: &Lookup<'_>) -> Result<Option<(Arc<Dataset>, GridPosition)>, ReadError> {
    if let Some(found) = lookup.container.block_at(lookup.access, lookup.key).await? {
        return Ok(Some(found));
    }
    let segments: Vec<&str> = lookup.key.segments().collect();
    let Some(at) = segments.iter().rposition(|name| level_number(name).is_some()) else { return Ok(None) };
    let (path, rest) = segments.split_at(at + 1);
    let Ok(path) = Key::from_segments(path) else { return Ok(None) };
    let Some(level) = level(lookup, &path).await? else { return Ok(None) };
    let Ok(key) = Key::from_segments(level.segments().chain(rest.iter().copied())) else { return Ok(None) };
    lookup.container.block_at(lookup.access, &key).await
}

/// Where the level `s<i>` of a pyramid really is, whose levels have other names: Neuroglancer's `n5` source knows
/// no others.
async fn level(lookup: &Lookup<'_>, key: &Key) -> Result<Option<Key>, ReadError> {
    let (Some(number), Some(group)) = (key.name().and_then(level_number), key.parent()) else { return Ok(None) };
    if lookup.container.dataset(lookup.access, key).await.is_ok() {
        return Ok(None);
    }
    let known = match read_node(lookup.container, lookup.access, &group).await {
        Ok(known) => known,
        Err(ReadError::NotFound(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let pyramid = metadata::pyramid(&known.node, &mut Vec::new());
    let level = pyramid.as_ref().and_then(|pyramid| pyramid.levels.get(number));
    let path = level.filter(|level| key.name() != Some(level.path.as_str())).map(|level| level.path.split('/'));
    Ok(path.and_then(|path| Key::from_segments(group.segments().chain(path)).ok()))
}

/// `s<i>`.
fn level_number(name: &str) -> Option<usize> {
    let digits = name.strip_prefix('s').filter(|digits| digits.len() <= 3)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// A block of mode 0.
#[derive(Debug)]
struct Block {
    encoding: Encoding,
    data_type: Option<DataType>,
}

impl Form for Block {
    fn id(&self) -> String {
        format!("n5 {} {}", self.encoding.name(), self.data_type.as_ref().map_or("", |data_type| data_type.name()))
    }

    fn extra_bytes(&self, shape: &Coords, width: usize) -> u64 {
        let elements = shape.iter().fold(1u64, |n, size| n.saturating_mul(*size));
        let target = self.data_type.as_ref().and_then(DataType::size_bytes);
        let bytes = elements.saturating_mul(target.unwrap_or(width) as u64);
        // Elements turned round, converted, and encoded.
        let converted = if target.is_some() { bytes } else { 0 };
        bytes.saturating_add(converted).saturating_add(self.encoding.most_bytes(bytes)).saturating_add(1024)
    }

    fn encode(&self, array: Array) -> Result<Bytes, ReadError> {
        let Array { shape, data_type, data } = array;
        let (data, data_type) = match &self.data_type {
            None => (data, &data_type),
            Some(target) => (convert(data, &data_type, target)?, target),
        };
        let width = data_type.size_bytes().unwrap_or(1);
        encode_block(&shape, width, data, self.encoding).map_err(|error| ReadError::Unmakeable(error.to_string()))
    }

    fn within(&self, stored: &[u8], dataset: &Dataset, position: &GridPosition) -> Option<Range<usize>> {
        let attributes = &dataset.attributes;
        let width = attributes.data_type().size_bytes()?;
        let mut sizes = sizes(attributes, position, width);
        sizes.any(|size| payload(stored, &size, width, self.encoding).is_some()).then_some(0..stored.len())
    }

    fn within_large(
        &self,
        head: &[u8],
        stored_bytes: u64,
        dataset: &Dataset,
        position: &GridPosition,
    ) -> Option<Range<u64>> {
        let attributes = &dataset.attributes;
        let width = attributes.data_type().size_bytes()?;
        let mut sizes = sizes(attributes, position, width);
        let is_one = self.encoding == Encoding::Raw;
        let is_one = is_one && sizes.any(|size| raw_payload(head, stored_bytes, &size, width).is_some());
        is_one.then_some(0..stored_bytes)
    }

    fn plain(&self, shape: &Coords) -> Option<Plain> {
        let header = n5::block_header(shape).filter(|_| self.encoding == Encoding::Raw)?;
        Some(Plain { header: header.into(), data_type: self.data_type.clone(), big_endian: true })
    }

    fn passes(&self, dataset: &Dataset) -> bool {
        self.data_type.is_none() && stored_encoding(dataset) == Some(self.encoding)
    }
}

/// The sizes that readers accept of the block at `position`.
fn sizes(attributes: &DatasetAttributes, position: &GridPosition, width: usize) -> impl Iterator<Item = Coords> {
    let full =
        attributes.block_size().iter().fold(width as u128, |bytes, size| bytes.saturating_mul(u128::from(*size)));
    let full = (full <= metadata::MAX_BLOCK_BYTES).then(|| attributes.block_size().clone());
    std::iter::once(attributes.grid().clipped_size(position)).chain(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoding_may_be_followed_by_a_type() {
        let parse = |text: &str| Wanted::parse(&[text.to_owned()]);
        assert_eq!(parse("gzip"), Some(Wanted { encoding: Encoding::Gzip, data_type: None }));
        let float = Some(DataType::Float32);
        assert_eq!(parse("raw,float32"), Some(Wanted { encoding: Encoding::Raw, data_type: float }));
        for unknown in ["", "xz", "GZIP", "gzip,", "gzip,float16", "gzip,float32,", ",float32", "attributes.json"] {
            assert_eq!(parse(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn levels_are_called_s_and_a_number() {
        assert_eq!(level_number("s0"), Some(0));
        assert_eq!(level_number("s12"), Some(12));
        for other in ["s", "0", "sx", "s1234", "S0", "s-1"] {
            assert_eq!(level_number(other), None, "{other}");
        }
    }
}
