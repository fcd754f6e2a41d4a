//! What groups are, from their attributes: parsed once per version of the file.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use moka::future::Cache;
use xxhash_rust::xxh3::xxh3_64;

use super::budget::Budget;
use super::{ATTRIBUTES, Access, CacheSettings, Container, ReadError, Stored, cache_of};
use crate::cpu::Length;
use crate::fair::Client;
use crate::metrics;
use crate::n5::{DatasetAttributes, Document, DocumentError, GridPosition, INTERPRETED_BYTES};
use crate::store::{Key, Meta};

/// Memory for parsed attributes, cached and being parsed.
pub(super) const MEMORY_BYTES: u64 = 8 << 20;

/// The part of [`MEMORY_BYTES`] for attributes that are being parsed, until they are cached.
const PARSING_BYTES: u64 = 2 << 20;

/// Memory for cached attributes.
pub(super) const CACHE_BYTES: u64 = MEMORY_BYTES - PARSING_BYTES;

/// The interpreted members of a document are counted with at most this many times the memory of its text: a node of a B-tree for
/// each `{"":`. (Measured: 128 times.)
const MOST_PARSED_FACTOR: u64 = 256;

/// A group takes about this much besides its key and the interpreted members of its document.
const GROUP_BYTES: u64 = 1536;

/// A name takes about this much besides its text.
const NAME_BYTES: usize = 56;

/// Names of axes that take more are not kept.
const AXES_BYTES: usize = 4 << 10;

/// Work on longer documents is done on the CPU lane.
const SHORT_BYTES: usize = 32 << 10;

/// Work on longer documents takes more than some milliseconds: 2 to 5 for a MiB.
const MEDIUM_BYTES: usize = 1 << 20;

/// A group with array attributes.
#[derive(Debug)]
pub struct Dataset {
    /// Differs between containers, keys and versions of the attributes, so that blocks cached under older
    /// ones are never found, and is the same when the same attributes are parsed again.
    pub(super) id: u64,
    /// Where it is.
    pub key: Key,
    /// Its attributes.
    pub attributes: DatasetAttributes,
    /// Entity tag of its `attributes.json`.
    pub etag: Arc<str>,
    /// As [`Meta::version`](crate::store::Meta::version), of that file.
    pub version: u64,
}

impl Dataset {
    /// The position in this form's own rank, where the grid has it: that of a dataset without axes is written `0`.
    pub fn holds(&self, position: GridPosition) -> Option<GridPosition> {
        if self.attributes.rank() == 0 {
            return (position.as_slice() == [0]).then(GridPosition::new);
        }
        self.attributes.grid().contains(&position).then_some(position)
    }

    /// The key of its attributes.
    pub fn attributes_key(&self) -> Option<Key> {
        self.key.child(ATTRIBUTES).ok()
    }

    /// The key of the block at `position`; that of a dataset without axes is `0`.
    pub fn block_key(&self, position: &GridPosition) -> Key {
        if position.is_empty() { self.key.numbered(&[0]) } else { self.key.numbered(position) }
    }
}

/// What the attributes of a group say.
#[derive(Debug)]
pub struct Group {
    /// What it is.
    pub state: GroupState,
    /// The document of a dataset, which the dataset itself does not hold: those who wait with it would hold too much.
    described: Option<Document>,
    /// Names of a dataset's axes, once they were asked for.
    axes: OnceLock<Arc<[String]>>,
    /// Length of `attributes.json` in bytes.
    len: u64,
}

impl Group {
    fn without_attributes() -> Arc<Self> {
        Arc::new(Self { state: GroupState::NoAttributes, described: None, axes: OnceLock::new(), len: 0 })
    }

    fn parse(bytes: &[u8], id: u64, key: Key, (etag, version): (Arc<str>, u64)) -> Self {
        let of = |state| Self { state, described: None, axes: OnceLock::new(), len: bytes.len() as u64 };
        let document = match Document::parse(bytes) {
            Ok(document) => document,
            Err(error) => return of(GroupState::Broken(error)),
        };
        if !document.describes_dataset() {
            return of(GroupState::Attributes(document));
        }
        match DatasetAttributes::parse(&document) {
            Ok(attributes) => {
                let dataset = Dataset { id, key, attributes, etag, version };
                Self { described: Some(document), ..of(GroupState::Dataset(Arc::new(dataset))) }
            }
            Err(error) => of(GroupState::Unusable(document, error.to_string())),
        }
    }

    /// Length of `attributes.json` in bytes; 0 where there is none, and for one that is no document.
    pub fn text_bytes(&self) -> u64 {
        if self.document().is_some_and(|document| document.is_ok()) { self.len } else { 0 }
    }

    /// Most bytes that [`Self::document`] takes.
    pub fn tree_bytes(&self) -> u64 {
        self.document().and_then(Result::ok).map_or(0, |document| document.tree_bytes())
    }

    /// The attributes as a document, whatever they describe, or why they are none; `None` where there is no file.
    pub fn document(&self) -> Option<Result<Document, DocumentError>> {
        match &self.state {
            GroupState::NoAttributes => None,
            GroupState::Broken(error) => Some(Err(error.clone())),
            GroupState::Attributes(document) | GroupState::Unusable(document, _) => Some(Ok(document.clone())),
            GroupState::Dataset(_) => Some(Ok(self.described.clone().unwrap_or_default())),
        }
    }
}

/// What a directory is, from its `attributes.json`.
#[derive(Debug)]
pub enum GroupState {
    /// No such file: a group without attributes, or nothing at all.
    NoAttributes,
    /// The file is no JSON object, or has more values or levels than are read.
    Broken(DocumentError),
    /// Attributes of a group.
    Attributes(Document),
    /// Attributes that are meant to describe a dataset, and why they cannot be used.
    Unusable(Document, String),
    /// A dataset.
    Dataset(Arc<Dataset>),
}

/// Cache of parsed attributes by container, key and version of the file.
///
/// A share of the budget is held from before attributes are parsed until they are in the cache. What has been evicted from the
/// cache and is still used while its request waits is covered by a share of the slice budget.
#[derive(Debug, Clone)]
pub(super) struct Datasets {
    cache: Cache<(u32, Key, u64), Arc<Group>>,
    parsing: Budget,
}

impl Datasets {
    pub(super) fn new(wait: Duration) -> Self {
        let settings = CacheSettings { capacity_bytes: CACHE_BYTES, weigh_frequency: true };
        let cache =
            cache_of(metrics::Cache::Attributes, settings, |(_, key, _): &(u32, Key, u64), group: &Arc<Group>| {
                let tree_bytes = group.tree_bytes();
                let bytes =
                    GROUP_BYTES + 2 * key.as_str().len() as u64 + tree_bytes + tree_bytes.min(AXES_BYTES as u64);
                u32::try_from(bytes).unwrap_or(u32::MAX)
            });
        Self { cache, parsing: Budget::new(metrics::Budget::Attributes, PARSING_BYTES, wait) }
    }

    /// The same cache and budget, for whose memory is waited at most `wait`.
    pub(super) fn waiting(&self, wait: Duration) -> Self {
        Self { parsing: self.parsing.waiting(wait), ..self.clone() }
    }

    /// The same cache and budget, for another container.
    pub(super) fn of_one(&self) -> Self {
        Self { parsing: self.parsing.of_one(), ..self.clone() }
    }

    /// Cached bytes, for the metrics page.
    pub(super) fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }
}

impl Container {
    /// What the attributes of the group at `key` say.
    ///
    /// # Errors
    /// [`ReadError`] when they cannot be read or are too large.
    pub async fn group(&self, access: Access, key: &Key) -> Result<Arc<Group>, ReadError> {
        let Ok(file) = key.child(ATTRIBUTES) else { return Ok(Group::without_attributes()) };
        let (datasets, limit_bytes, mut turn) = (&self.resources.datasets, self.most_attributes_bytes(), None);
        loop {
            let (meta, bytes) = match self.object(access, &file).await? {
                None => return Ok(Group::without_attributes()),
                Some(Stored::Whole(meta, bytes)) if meta.len <= limit_bytes => (meta, bytes),
                Some(stored) => {
                    let bytes = stored.meta().len;
                    return Err(ReadError::AttributesTooLarge { key: key.clone(), bytes, limit_bytes });
                }
            };
            let cache_key = (self.id, key.clone(), meta.version);
            if let Some(group) = datasets.cache.get(&cache_key).await {
                metrics::cache_requests(metrics::Cache::Attributes, metrics::Lookup::Hit, access.counted());
                return Ok(self.as_seen(group));
            }
            access.may_wait().await;
            // Until it is parsed, it counts as its client's, which may ask for many: others have their part of the memory.
            let counted = match turn.take() {
                Some(turn) => Some(self.sent_in_turn(turn, bytes.clone())),
                None => self.sent(Client::current(), &bytes),
            };
            let Some(counted) = counted else {
                let len = bytes.len();
                drop(bytes);
                turn = Some(self.turn_to_send(len).await?);
                // Another request may have had it parsed meanwhile: then it need not be read again.
                if let Some(group) = datasets.cache.get(&cache_key).await {
                    return Ok(self.as_seen(group));
                }
                continue;
            };
            drop(bytes);
            metrics::cache_requests(metrics::Cache::Attributes, metrics::Lookup::Miss, 1);
            let parsed = Box::pin(self.parsed(key, meta, counted));
            let cached = datasets.cache.try_get_with(cache_key, parsed).await;
            return cached.map(|group| self.as_seen(group)).map_err(|error| (*error).clone());
        }
    }

    /// What `bytes`, the attributes of the group at `key`, say.
    async fn parsed(&self, key: &Key, meta: Meta, bytes: Bytes) -> Result<Arc<Group>, ReadError> {
        let (len, id, at) = (bytes.len(), id_of(self.id, key, meta.version), key.clone());
        let most_bytes = (len as u64).saturating_mul(MOST_PARSED_FACTOR).min(INTERPRETED_BYTES);
        // Its holders wait for nothing but a core, so that waiting for it while holding the bytes cannot deadlock.
        let permit = self.resources.datasets.parsing.take(most_bytes + GROUP_BYTES).await?;
        let parse = move || (Group::parse(&bytes, id, at, (meta.etag, meta.version)), permit);
        let (group, _permit) = self.work_on(len, parse).await?;
        Ok(Arc::new(group))
    }

    /// The bytes of the `attributes.json` of the group at `key`; empty where there is none, or one of more than `most_bytes`.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails, or memory is short.
    pub async fn attributes_bytes(&self, access: Access, key: &Key, most_bytes: u64) -> Result<Bytes, ReadError> {
        let Ok(file) = key.child(ATTRIBUTES) else { return Ok(Bytes::new()) };
        Ok(match self.object(access, &file).await? {
            Some(Stored::Whole(_, bytes)) if bytes.len() as u64 <= most_bytes => bytes,
            Some(Stored::Whole(..) | Stored::Large(_)) | None => Bytes::new(),
        })
    }

    /// Longest `attributes.json` that is read: `limits.attributes`, or less where less can be held.
    pub fn most_attributes_bytes(&self) -> u64 {
        let settings = self.resources.settings();
        settings.attributes.min(settings.transfer_budget).min(super::objects::WHOLE_BYTES)
    }

    /// Does work on a document of `len` bytes, on the CPU lane where it is long.
    ///
    /// # Errors
    /// [`ReadError::Died`].
    pub async fn work_on<T: Send + 'static>(
        &self,
        len: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ReadError> {
        if len <= SHORT_BYTES {
            return Ok(work());
        }
        let length = if len <= MEDIUM_BYTES { Length::Short } else { Length::Long };
        Ok(self.resources.cpu.run(length, u64::from(self.id), work).await?)
    }

    /// As [`Self::group`], for whoever looks at what lies around: `None` where the attributes are hidden
    /// ([`StoreError::hides`](crate::store::StoreError::hides)) or too large, which makes a plain group of a dataset, but no
    /// zeros of its blocks.
    ///
    /// # Errors
    /// [`ReadError`] when they cannot be read.
    pub async fn group_if_readable(&self, access: Access, key: &Key) -> Result<Option<Arc<Group>>, ReadError> {
        match self.group(access, key).await {
            Err(ReadError::AttributesTooLarge { .. }) => Ok(None),
            found => ReadError::or_hidden(found.map(Some)),
        }
    }

    /// A dataset of which a part cannot be seen is none.
    fn as_seen(&self, group: Arc<Group>) -> Arc<Group> {
        match &group.state {
            GroupState::Dataset(dataset) if !self.sees_below(&dataset.key) => Group::without_attributes(),
            GroupState::Dataset(_)
            | GroupState::NoAttributes
            | GroupState::Broken(_)
            | GroupState::Attributes(_)
            | GroupState::Unusable(..) => group,
        }
    }

    /// The dataset at `key`.
    ///
    /// # Errors
    /// [`ReadError::NotFound`] or [`ReadError::NotADataset`], which says why; as [`Self::group`].
    pub async fn dataset(&self, access: Access, key: &Key) -> Result<Arc<Dataset>, ReadError> {
        let (_group, dataset) = self.group_of_dataset(access, key).await?;
        Ok(dataset)
    }

    /// As [`Self::dataset`], with the names of its axes, which `read` finds in its document; none where they take more than
    /// some kilobytes. They are kept: a document may be long.
    ///
    /// # Errors
    /// As [`Self::dataset`].
    pub async fn dataset_and_axes(
        &self,
        access: Access,
        key: &Key,
        read: impl FnOnce(Document) -> Vec<String>,
    ) -> Result<(Arc<Dataset>, Arc<[String]>), ReadError> {
        let (group, dataset) = self.group_of_dataset(access, key).await?;
        let axes = group.axes.get_or_init(|| {
            let names = group.described.clone().map_or_else(Vec::new, read);
            let bytes: usize = names.iter().map(|name| NAME_BYTES + name.len()).sum();
            if bytes <= AXES_BYTES { names.into() } else { Arc::default() }
        });
        Ok((dataset, Arc::clone(axes)))
    }

    async fn group_of_dataset(&self, access: Access, key: &Key) -> Result<(Arc<Group>, Arc<Dataset>), ReadError> {
        let not = |reason: String| Err(ReadError::NotADataset { key: key.clone(), reason });
        let group = self.group(access, key).await?;
        match &group.state {
            GroupState::Dataset(dataset) => {
                let dataset = Arc::clone(dataset);
                Ok((group, dataset))
            }
            GroupState::Broken(error) => not(error.to_string()),
            GroupState::Unusable(_, reason) => not(reason.clone()),
            GroupState::Attributes(_) => {
                not("it is a group; its attributes lack dimensions, blockSize, dataType or compression".to_owned())
            }
            GroupState::NoAttributes if self.is_directory(access, key).await? => {
                not("it is a group without attributes".to_owned())
            }
            GroupState::NoAttributes => Err(ReadError::NotFound(key.clone())),
        }
    }
}

fn id_of(container: u32, key: &Key, version: u64) -> u64 {
    let facts = [&container.to_le_bytes()[..], &version.to_le_bytes(), key.as_str().as_bytes()].concat();
    xxh3_64(&facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_depends_on_container_key_and_version_alone() {
        let (a, b) = (Key::root(), Key::root().numbered(&[1]));
        assert_eq!(id_of(1, &a, 7), id_of(1, &a, 7));
        let ids = [id_of(1, &a, 7), id_of(2, &a, 7), id_of(1, &b, 7), id_of(1, &a, 8)];
        assert!((0..ids.len()).all(|n| !ids[..n].contains(&ids[n])), "{ids:?}");
    }
}
