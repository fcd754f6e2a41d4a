//! What groups are, from their attributes: parsed once per version of the file.

use std::sync::Arc;

use moka::future::Cache;
use xxhash_rust::xxh3::xxh3_64;

use super::{ATTRIBUTES, Access, CacheSettings, Container, ReadError, Stored, cache_of};
use crate::cpu::Length;
use crate::metrics;
use crate::n5::{DatasetAttributes, Document, DocumentError, GridPosition};
use crate::store::Key;

/// Memory for parsed attributes.
pub(super) const CACHE_BYTES: u64 = 8 << 20;

/// A parsed document takes about this many times the memory of its text.
const PARSED_FACTOR: u64 = 24;

/// Longer documents are parsed on the CPU lane.
const SHORT_BYTES: usize = 32 << 10;

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
    /// Length of `attributes.json` in bytes.
    len: u64,
}

impl Group {
    /// The attributes as a document, whatever they describe, or why they are none; `None` where there is no file.
    pub fn document(&self) -> Option<Result<Document, DocumentError>> {
        match &self.state {
            GroupState::NoAttributes => None,
            GroupState::Broken(error) => Some(Err(error.clone())),
            GroupState::Attributes(document) | GroupState::Unusable(document, _) => Some(Ok(document.clone())),
            GroupState::Dataset(dataset) => Some(Ok(dataset.attributes.document().clone())),
        }
    }
}

/// What a directory is, from its `attributes.json`.
#[derive(Debug)]
pub enum GroupState {
    /// No such file: a group without attributes, or nothing at all.
    NoAttributes,
    /// The file is no JSON object.
    Broken(DocumentError),
    /// Attributes of a group.
    Attributes(Document),
    /// Attributes that are meant to describe a dataset, and why they cannot be used.
    Unusable(Document, String),
    /// A dataset.
    Dataset(Arc<Dataset>),
}

/// Cache of parsed attributes by container, key and version of the file.
#[derive(Debug, Clone)]
pub(super) struct Datasets {
    cache: Cache<(u32, Key, u64), Arc<Group>>,
}

impl Datasets {
    pub(super) fn new() -> Self {
        let settings = CacheSettings { capacity_bytes: CACHE_BYTES, weigh_frequency: true };
        let cache = cache_of(metrics::Cache::Attributes, settings, |_: &(u32, Key, u64), group: &Arc<Group>| {
            u32::try_from(group.len * PARSED_FACTOR + 512).unwrap_or(u32::MAX)
        });
        Self { cache }
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
        let Ok(file) = key.child(ATTRIBUTES) else {
            return Ok(Arc::new(Group { state: GroupState::NoAttributes, len: 0 }));
        };
        let Some(stored) = self.object(access, &file).await? else {
            return Ok(Arc::new(Group { state: GroupState::NoAttributes, len: 0 }));
        };
        let limit_bytes = self.resources.settings.attributes;
        let too_large = |bytes| ReadError::AttributesTooLarge { key: key.clone(), bytes, limit_bytes };
        let (meta, bytes) = match stored {
            Stored::Large(_) => return Err(too_large(stored.meta().len)),
            Stored::Whole(meta, _) if meta.len > limit_bytes => return Err(too_large(meta.len)),
            Stored::Whole(meta, bytes) => (meta, bytes),
        };
        let datasets = &self.resources.datasets;
        let (cpu, etag, version) = (&self.resources.cpu, meta.etag, meta.version);
        let parse = async {
            let id = id_of(self.id, key, version);
            let at = key.clone();
            let len = bytes.len() as u64;
            let parse = move || Group { state: parse(&bytes, id, at, (etag, version)), len };
            Ok::<_, ReadError>(Arc::new(if len > SHORT_BYTES as u64 {
                cpu.run(Length::Short, id, parse).await?
            } else {
                parse()
            }))
        };
        let cache_key = (self.id, key.clone(), version);
        if let Some(group) = datasets.cache.get(&cache_key).await {
            metrics::cache_requests(metrics::Cache::Attributes, metrics::Lookup::Hit, access.counted());
            return Ok(self.as_seen(group));
        }
        access.may_wait().await;
        metrics::cache_requests(metrics::Cache::Attributes, metrics::Lookup::Miss, 1);
        let cached = datasets.cache.try_get_with(cache_key, parse).await;
        cached.map(|group| self.as_seen(group)).map_err(|error| (*error).clone())
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
            GroupState::Dataset(dataset) if !self.sees_below(&dataset.key) => {
                Arc::new(Group { state: GroupState::NoAttributes, len: 0 })
            }
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
        let not = |reason: String| Err(ReadError::NotADataset { key: key.clone(), reason });
        match &self.group(access, key).await?.state {
            GroupState::Dataset(dataset) => Ok(Arc::clone(dataset)),
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

fn parse(bytes: &[u8], id: u64, key: Key, (etag, version): (Arc<str>, u64)) -> GroupState {
    let document = match Document::parse(bytes) {
        Ok(document) => document,
        Err(error) => return GroupState::Broken(error),
    };
    if !document.describes_dataset() {
        return GroupState::Attributes(document);
    }
    match DatasetAttributes::parse(document.clone()) {
        Ok(attributes) => GroupState::Dataset(Arc::new(Dataset { id, key, attributes, etag, version })),
        Err(error) => GroupState::Unusable(document, error.to_string()),
    }
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
