//! Groups and datasets as described by their attributes, which are parsed once per version of the file.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use moka::future::Cache;
use moka::policy::EvictionPolicy;
use xxhash_rust::xxh3::xxh3_64;

use super::budget::Budget;
use super::error::ReadError;
use super::read_options::ATTRIBUTES;
use super::validated::{max_weight_bytes, weighted_cache};
use crate::store::Key;
use crate::telemetry::metrics::{BudgetLabel, CacheLabel};
use n5_format::{AttributesDocument, BlockError, Codecs, DatasetAttributes, DocumentError, GridPosition};

/// Memory for cached attributes, in bytes. Together with [`PARSING_BYTES`] it is `ATTRIBUTES_CACHE_BYTES` of `config`.
pub(crate) const CACHED_ATTRIBUTES_BYTES: u64 = 6 << 20;

/// Memory for attributes that are being parsed and not cached yet, in bytes.
const PARSING_BYTES: u64 = 2 << 20;

/// Approximate memory of a cached group in bytes, without its key and the interpreted members of its document.
pub(crate) const GROUP_BYTES: u64 = 1536;

/// Maximum memory of the axis names that are cached with a group, in bytes.
pub(crate) const AXES_BYTES: usize = 4 << 10;

/// A group with array attributes.
#[derive(Debug)]
pub struct Dataset {
    /// Hash of the container, the key and the version of the attributes. It is part of the keys of cached blocks, so
    /// that blocks that were decoded with other attributes are never found.
    pub(crate) id: u64,
    /// Key of the dataset.
    pub key: Key,
    /// Attributes of the dataset.
    pub attributes: DatasetAttributes,
    /// Entity tag of its `attributes.json`.
    pub etag: Arc<str>,
    /// [`ObjectMeta::version`](crate::store::ObjectMeta::version) of its `attributes.json`.
    pub version: u64,
}

impl Dataset {
    /// Returns `position` if the grid contains it. A dataset without axes has one block, whose `position` is given as
    /// `0` and returned without components.
    pub fn position_in_grid(&self, position: GridPosition) -> Option<GridPosition> {
        if self.attributes.rank() == 0 {
            return (position.as_slice() == [0]).then(GridPosition::new);
        }
        self.attributes.grid().contains(&position).then_some(position)
    }

    /// Returns the key of its attributes.
    pub fn attributes_key(&self) -> Option<Key> {
        self.key.child(ATTRIBUTES).ok()
    }

    /// Returns the key of the block at `position`; for a dataset without axes, the last segment is `0`.
    pub fn block_key(&self, position: &GridPosition) -> Key {
        if position.is_empty() { self.key.join_numbers(&[0]) } else { self.key.join_numbers(position) }
    }

    /// Returns a [`ReadError`] for the block at `position`, which cannot be decoded because of `error`.
    pub(crate) fn block_error(&self, position: &GridPosition, error: BlockError) -> ReadError {
        ReadError::Block { key: self.block_key(position), position: position.clone(), error }
    }
}

/// A group as described by its attributes.
#[derive(Debug)]
pub struct Group {
    /// Kind of the group.
    pub state: GroupState,
    /// Document of a dataset. It is not part of [`Dataset`], because many waiting requests may hold a dataset, and the
    /// document may be large.
    pub(crate) dataset_document: Option<AttributesDocument>,
    /// Names of the axes of a dataset. They are parsed at the first request for them.
    pub(crate) axes: OnceLock<Arc<[String]>>,
    /// Length of `attributes.json` in bytes.
    len: u64,
}

impl Group {
    pub(crate) fn without_attributes() -> Arc<Self> {
        Arc::new(Self { state: GroupState::NoAttributes, dataset_document: None, axes: OnceLock::new(), len: 0 })
    }

    pub(crate) fn parse(bytes: &[u8], codecs: &Codecs, id: u64, key: Key, (etag, version): (Arc<str>, u64)) -> Self {
        let with_state = |state| Self { state, dataset_document: None, axes: OnceLock::new(), len: bytes.len() as u64 };
        let document = match AttributesDocument::parse_with(bytes, codecs) {
            Ok(document) => document,
            Err(error) => return with_state(GroupState::Broken(error)),
        };
        if !document.describes_dataset() {
            return with_state(GroupState::Attributes(document));
        }
        match DatasetAttributes::parse(&document) {
            Ok(attributes) => {
                let dataset = Dataset { id, key, attributes, etag, version };
                Self { dataset_document: Some(document), ..with_state(GroupState::Dataset(Arc::new(dataset))) }
            }
            Err(error) => with_state(GroupState::Unusable(document, error.to_string())),
        }
    }

    /// Returns true if directories with numbers as names are parts of a grid: the attributes describe a dataset, or are
    /// so faulty that they may have described one.
    pub fn may_have_grid(&self) -> bool {
        match &self.state {
            GroupState::Dataset(_) | GroupState::Unusable(..) | GroupState::Broken(_) => true,
            GroupState::NoAttributes | GroupState::Attributes(_) => false,
        }
    }

    /// Returns the length of `attributes.json` in bytes; 0 if the file does not exist or is not a document.
    pub fn text_bytes(&self) -> u64 {
        if self.document().is_some_and(|document| document.is_ok()) { self.len } else { 0 }
    }

    /// Returns the maximum memory of [`Self::document`] in bytes.
    pub fn tree_bytes(&self) -> u64 {
        self.document().and_then(Result::ok).map_or(0, |document| document.tree_bytes())
    }

    /// Returns the document of a group or a dataset, or the error if the file is not a document. Returns `None` if
    /// there is no file.
    pub fn document(&self) -> Option<Result<AttributesDocument, DocumentError>> {
        match &self.state {
            GroupState::NoAttributes => None,
            GroupState::Broken(error) => Some(Err(error.clone())),
            GroupState::Attributes(document) | GroupState::Unusable(document, _) => Some(Ok(document.clone())),
            GroupState::Dataset(_) => Some(Ok(self.dataset_document.clone().unwrap_or_default())),
        }
    }
}

/// Kind of a directory, according to its `attributes.json`.
#[derive(Debug)]
pub enum GroupState {
    /// There is no such file: the directory is a group without attributes, or does not exist.
    NoAttributes,
    /// The file is not a JSON object, or has too many values or levels.
    Broken(DocumentError),
    /// Attributes of a group.
    Attributes(AttributesDocument),
    /// Attributes that are meant to describe a dataset, and the reason why they cannot be used.
    Unusable(AttributesDocument, String),
    /// A dataset.
    Dataset(Arc<Dataset>),
}

/// Cache of parsed attributes by container, key and version of the file.
///
/// While attributes are being parsed, a permit of the parsing budget covers their memory. The cache covers it
/// afterwards. If attributes are evicted while a waiting request still uses them, the request's permit of the slice
/// budget covers it.
#[derive(Debug, Clone)]
pub(crate) struct AttributesCache {
    pub(crate) cache: Cache<(u32, Key, u64), Arc<Group>>,
    pub(crate) parsing_budget: Budget,
    /// The codecs that decode blocks.
    pub(crate) codecs: Codecs,
}

impl AttributesCache {
    pub(crate) fn new(max_wait: Duration, codecs: Codecs) -> Self {
        let weigher = |(_, key, _): &(u32, Key, u64), group: &Arc<Group>| {
            let tree_bytes = group.tree_bytes();
            let bytes = GROUP_BYTES + 2 * key.as_str().len() as u64 + tree_bytes + tree_bytes.min(AXES_BYTES as u64);
            u32::try_from(bytes).unwrap_or(u32::MAX)
        };
        let max_weight_bytes = max_weight_bytes(CACHED_ATTRIBUTES_BYTES);
        let cache = weighted_cache(CacheLabel::Attributes, max_weight_bytes, EvictionPolicy::tiny_lfu(), weigher);
        let parsing_budget = Budget::new(BudgetLabel::Attributes, PARSING_BYTES, max_wait);
        Self { cache, parsing_budget, codecs }
    }
}

/// Returns the [`Dataset::id`] of a dataset whose attributes have this version.
pub(crate) fn dataset_id(container: u32, key: &Key, version: u64) -> u64 {
    let input = [&container.to_le_bytes()[..], &version.to_le_bytes(), key.as_str().as_bytes()].concat();
    xxh3_64(&input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_depends_on_container_key_and_version_alone() {
        let a = Key::root();
        let b = Key::root().join_numbers(&[1]);
        assert_eq!(dataset_id(1, &a, 7), dataset_id(1, &a, 7));
        let ids = [dataset_id(1, &a, 7), dataset_id(2, &a, 7), dataset_id(1, &b, 7), dataset_id(1, &a, 8)];
        assert!((0..ids.len()).all(|n| !ids[..n].contains(&ids[n])), "{ids:?}");
    }
}
