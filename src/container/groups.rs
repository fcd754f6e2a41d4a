//! Groups and datasets as described by their attributes, which are parsed once per version of the file.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use moka::future::Cache;
use xxhash_rust::xxh3::xxh3_64;

use super::budget::Budget;
use super::{ATTRIBUTES, CacheSettings, Container, Freshness, ReadError, StoredObject, weighted_cache};
use crate::cpu_pool::Priority;
use crate::fair_queue::ClientId;
use crate::metrics;
use crate::n5::{AttributesDocument, Codecs, DatasetAttributes, DocumentError, GridPosition, MAX_INTERPRETED_BYTES};
use crate::store::{Key, ObjectMeta};

/// Memory for parsed attributes, both cached and being parsed, in bytes.
pub(super) const MEMORY_BYTES: u64 = 8 << 20;

/// Part of [`MEMORY_BYTES`] for attributes that are being parsed and not cached yet.
const PARSING_BYTES: u64 = 2 << 20;

/// Memory for cached attributes, in bytes.
pub(super) const CACHE_BYTES: u64 = MEMORY_BYTES - PARSING_BYTES;

/// Maximum memory that is assumed for the interpreted members of a document, as a multiple of its text: a B-tree node
/// for each `{"":`. (Measured: 128 times.)
const MAX_PARSED_FACTOR: u64 = 256;

/// Approximate memory of a group in bytes, besides its key and the interpreted members of its document.
const GROUP_BYTES: u64 = 1536;

/// Approximate memory of a name in bytes, besides its text.
const NAME_BYTES: usize = 56;

/// Maximum memory of axis names that are kept, in bytes.
const AXES_BYTES: usize = 4 << 10;

/// Length of the longest document that is processed on the calling thread, in bytes. Longer ones go to the CPU pool.
const MAX_INLINE_BYTES: usize = 32 << 10;

/// Length of the longest document that makes a high-priority job, in bytes. Longer ones take more than some
/// milliseconds: 2 to 5 for a MiB.
const MAX_SHORT_JOB_BYTES: usize = 1 << 20;

/// A group with array attributes.
#[derive(Debug)]
pub struct Dataset {
    /// Hash that differs between containers, keys and versions of the attributes, so that blocks cached under older
    /// attributes are never found. It is the same when the same attributes are parsed again.
    pub(super) id: u64,
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
    /// Returns the position with as many components as the dataset has axes, if the grid contains it. For a dataset
    /// without axes, `position` is `0`.
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
}

/// A group as described by its attributes.
#[derive(Debug)]
pub struct Group {
    /// Kind of the group.
    pub state: GroupState,
    /// Document of a dataset. The dataset itself does not hold it, because waiting requests that hold a dataset would
    /// hold too much memory.
    dataset_document: Option<AttributesDocument>,
    /// Names of a dataset's axes, once they have been requested.
    axes: OnceLock<Arc<[String]>>,
    /// Length of `attributes.json` in bytes.
    len: u64,
}

impl Group {
    fn without_attributes() -> Arc<Self> {
        Arc::new(Self { state: GroupState::NoAttributes, dataset_document: None, axes: OnceLock::new(), len: 0 })
    }

    fn parse(bytes: &[u8], codecs: &Codecs, id: u64, key: Key, (etag, version): (Arc<str>, u64)) -> Self {
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

    /// Returns the length of `attributes.json` in bytes; 0 if the file does not exist or is not a document.
    pub fn text_bytes(&self) -> u64 {
        if self.document().is_some_and(|document| document.is_ok()) { self.len } else { 0 }
    }

    /// Returns the maximum memory of [`Self::document`] in bytes.
    pub fn tree_bytes(&self) -> u64 {
        self.document().and_then(Result::ok).map_or(0, |document| document.tree_bytes())
    }

    /// Returns the attributes as a document, whatever they describe, or the error if they are not a document. Returns
    /// `None` if there is no file.
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
    /// The file is not a JSON object, or has more values or levels than are read.
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
/// A permit of the budget is held from before attributes are parsed until they are in the cache. Attributes that were
/// evicted while a waiting request still uses them are covered by a permit of the slice budget.
#[derive(Debug, Clone)]
pub(super) struct AttributesCache {
    cache: Cache<(u32, Key, u64), Arc<Group>>,
    parsing_budget: Budget,
    /// The codecs by which blocks of the datasets are decoded.
    pub(super) codecs: Codecs,
}

impl AttributesCache {
    pub(super) fn new(max_wait: Duration, codecs: Codecs) -> Self {
        let settings = CacheSettings { capacity_bytes: CACHE_BYTES, use_tiny_lfu: true };
        let cache = weighted_cache(
            metrics::CacheLabel::Attributes,
            settings,
            |(_, key, _): &(u32, Key, u64), group: &Arc<Group>| {
                let tree_bytes = group.tree_bytes();
                let bytes =
                    GROUP_BYTES + 2 * key.as_str().len() as u64 + tree_bytes + tree_bytes.min(AXES_BYTES as u64);
                u32::try_from(bytes).unwrap_or(u32::MAX)
            },
        );
        let parsing_budget = Budget::new(metrics::BudgetLabel::Attributes, PARSING_BYTES, max_wait);
        Self { cache, parsing_budget, codecs }
    }

    /// Returns a handle to the same cache and budget that waits for memory at most `max_wait`.
    pub(super) fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self { parsing_budget: self.parsing_budget.with_max_wait(max_wait), ..self.clone() }
    }

    /// Returns a handle to the same cache and budget for another container.
    pub(super) fn for_container(&self) -> Self {
        Self { parsing_budget: self.parsing_budget.for_container(), ..self.clone() }
    }

    /// Returns the cached bytes, for the metrics page.
    pub(super) fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }
}

impl Container {
    /// Returns the group at `key`, as described by its attributes.
    ///
    /// # Errors
    /// [`ReadError`] when they cannot be read or are too large.
    pub async fn group(&self, freshness: Freshness, key: &Key) -> Result<Arc<Group>, ReadError> {
        let Ok(file) = key.child(ATTRIBUTES) else { return Ok(Group::without_attributes()) };
        let (datasets, limit_bytes, mut send_permit) = (&self.resources.datasets, self.max_attributes_bytes(), None);
        loop {
            let (meta, bytes) = match self.object(freshness, &file).await? {
                None => return Ok(Group::without_attributes()),
                Some(StoredObject::Whole(meta, bytes)) if meta.len <= limit_bytes => (meta, bytes),
                Some(stored) => {
                    let bytes = stored.meta().len;
                    return Err(ReadError::AttributesTooLarge { key: key.clone(), bytes, limit_bytes });
                }
            };
            let cache_key = (self.id, key.clone(), meta.version);
            if let Some(group) = datasets.cache.get(&cache_key).await {
                metrics::cache_requests(
                    metrics::CacheLabel::Attributes,
                    metrics::LookupResult::Hit,
                    freshness.lookup_weight(),
                );
                return Ok(self.apply_visibility(group));
            }
            freshness.ensure_may_block().await;
            // Until they are parsed, the bytes are charged to the client, which may request many documents. Other
            // clients keep their part of the memory.
            let charged = match send_permit.take() {
                Some(permit) => Some(self.charge_with_permit(permit, bytes.clone())),
                None => self.charge_to_client(ClientId::current(), &bytes),
            };
            let Some(charged) = charged else {
                let len = bytes.len();
                drop(bytes);
                send_permit = Some(self.acquire_send_permit(len).await?);
                // Another request may have parsed the attributes meanwhile. Then they need not be read again.
                if let Some(group) = datasets.cache.get(&cache_key).await {
                    return Ok(self.apply_visibility(group));
                }
                continue;
            };
            drop(bytes);
            metrics::cache_requests(metrics::CacheLabel::Attributes, metrics::LookupResult::Miss, 1);
            let parse = Box::pin(self.parse_group(key, meta, charged));
            let result = datasets.cache.try_get_with(cache_key, parse).await;
            return result.map(|group| self.apply_visibility(group)).map_err(|error| (*error).clone());
        }
    }

    /// Parses `bytes`, the attributes of the group at `key`.
    async fn parse_group(&self, key: &Key, meta: ObjectMeta, bytes: Bytes) -> Result<Arc<Group>, ReadError> {
        let (len, id, owned_key) = (bytes.len(), dataset_id(self.id, key, meta.version), key.clone());
        let max_bytes = (len as u64).saturating_mul(MAX_PARSED_FACTOR).min(MAX_INTERPRETED_BYTES);
        // Holders of this permit wait only for a core, so waiting for it while holding the bytes cannot deadlock.
        let permit = self.resources.datasets.parsing_budget.take(max_bytes + GROUP_BYTES).await?;
        let codecs = self.resources.datasets.codecs.clone();
        let parse = move || (Group::parse(&bytes, &codecs, id, owned_key, (meta.etag, meta.version)), permit);
        let (group, _permit) = self.run_document_job(len, parse).await?;
        Ok(Arc::new(group))
    }

    /// Returns the bytes of the `attributes.json` of the group at `key`; empty if the file does not exist or has more
    /// than `max_bytes`.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails, or memory is short.
    pub async fn attributes_bytes(&self, freshness: Freshness, key: &Key, max_bytes: u64) -> Result<Bytes, ReadError> {
        let Ok(file) = key.child(ATTRIBUTES) else { return Ok(Bytes::new()) };
        Ok(match self.object(freshness, &file).await? {
            Some(StoredObject::Whole(_, bytes)) if bytes.len() as u64 <= max_bytes => bytes,
            Some(StoredObject::Whole(..) | StoredObject::Large(_)) | None => Bytes::new(),
        })
    }

    /// Returns the length of the longest `attributes.json` that is read: `limits.attributes`, or less if less can be
    /// held.
    pub fn max_attributes_bytes(&self) -> u64 {
        let settings = self.resources.settings();
        settings.max_attributes_bytes.min(settings.transfer_budget).min(super::object_cache::MAX_WHOLE_OBJECT_BYTES)
    }

    /// Runs `work` on a document of `len` bytes, on the CPU pool if the document is long.
    ///
    /// # Errors
    /// [`ReadError::Internal`].
    pub async fn run_document_job<T: Send + 'static>(
        &self,
        len: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ReadError> {
        if len <= MAX_INLINE_BYTES {
            return Ok(work());
        }
        let priority = if len <= MAX_SHORT_JOB_BYTES { Priority::High } else { Priority::Low };
        Ok(self.resources.cpu.run(priority, u64::from(self.id), work).await?)
    }

    /// As [`Self::group`], for callers that inspect surrounding groups. Returns `None` if the attributes are hidden
    /// ([`StoreError::hides_object`](crate::store::StoreError::hides_object)) or too large: a dataset then looks like a
    /// plain group, but its blocks are not read as zeros.
    ///
    /// # Errors
    /// [`ReadError`] when they cannot be read.
    pub async fn group_if_readable(&self, freshness: Freshness, key: &Key) -> Result<Option<Arc<Group>>, ReadError> {
        match self.group(freshness, key).await {
            Err(ReadError::AttributesTooLarge { .. }) => Ok(None),
            result => ReadError::hidden_as_none(result.map(Some)),
        }
    }

    /// Hides a dataset of which a part is not visible to the caller: the result is a group without attributes.
    fn apply_visibility(&self, group: Arc<Group>) -> Arc<Group> {
        match &group.state {
            GroupState::Dataset(dataset) if !self.is_subtree_visible(&dataset.key) => Group::without_attributes(),
            GroupState::Dataset(_)
            | GroupState::NoAttributes
            | GroupState::Broken(_)
            | GroupState::Attributes(_)
            | GroupState::Unusable(..) => group,
        }
    }

    /// Returns the dataset at `key`.
    ///
    /// # Errors
    /// [`ReadError::NotFound`] or [`ReadError::NotADataset`], which gives the reason; as [`Self::group`].
    pub async fn dataset(&self, freshness: Freshness, key: &Key) -> Result<Arc<Dataset>, ReadError> {
        let (_group, dataset) = self.group_of_dataset(freshness, key).await?;
        Ok(dataset)
    }

    /// As [`Self::dataset`], with the names of its axes, which `parse_axes` finds in its document; no names if they
    /// take more than some kilobytes. The names are kept, because a document may be long.
    ///
    /// # Errors
    /// As [`Self::dataset`].
    pub async fn dataset_and_axes(
        &self,
        freshness: Freshness,
        key: &Key,
        parse_axes: impl FnOnce(AttributesDocument) -> Vec<String>,
    ) -> Result<(Arc<Dataset>, Arc<[String]>), ReadError> {
        let (group, dataset) = self.group_of_dataset(freshness, key).await?;
        let axes = group.axes.get_or_init(|| {
            let names = group.dataset_document.clone().map_or_else(Vec::new, parse_axes);
            let bytes: usize = names.iter().map(|name| NAME_BYTES + name.len()).sum();
            if bytes <= AXES_BYTES { names.into() } else { Arc::default() }
        });
        Ok((dataset, Arc::clone(axes)))
    }

    async fn group_of_dataset(&self, freshness: Freshness, key: &Key) -> Result<(Arc<Group>, Arc<Dataset>), ReadError> {
        let not_a_dataset = |reason: String| Err(ReadError::NotADataset { key: key.clone(), reason });
        let group = self.group(freshness, key).await?;
        match &group.state {
            GroupState::Dataset(dataset) => {
                let dataset = Arc::clone(dataset);
                Ok((group, dataset))
            }
            GroupState::Broken(error) => not_a_dataset(error.to_string()),
            GroupState::Unusable(_, reason) => not_a_dataset(reason.clone()),
            GroupState::Attributes(_) => not_a_dataset(
                "it is a group; its attributes lack dimensions, blockSize, dataType or compression".to_owned(),
            ),
            GroupState::NoAttributes if self.is_directory(freshness, key).await? => {
                not_a_dataset("it is a group without attributes".to_owned())
            }
            GroupState::NoAttributes => Err(ReadError::NotFound(key.clone())),
        }
    }
}

fn dataset_id(container: u32, key: &Key, version: u64) -> u64 {
    let input = [&container.to_le_bytes()[..], &version.to_le_bytes(), key.as_str().as_bytes()].concat();
    xxh3_64(&input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_depends_on_container_key_and_version_alone() {
        let (a, b) = (Key::root(), Key::root().join_numbers(&[1]));
        assert_eq!(dataset_id(1, &a, 7), dataset_id(1, &a, 7));
        let ids = [dataset_id(1, &a, 7), dataset_id(2, &a, 7), dataset_id(1, &b, 7), dataset_id(1, &a, 8)];
        assert!((0..ids.len()).all(|n| !ids[..n].contains(&ids[n])), "{ids:?}");
    }
}
