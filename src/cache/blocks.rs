//! The cache of decoded blocks. Its entries are weighed in bytes and loaded in single flights. It also remembers holes
//! and the errors of blocks that cannot be decoded, but no other errors. Blocks come from a [`BlockSource`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use moka::policy::EvictionPolicy;

use super::budget::{Budget, Permit};
use super::buffers::footprint_bytes;
use super::datasets::Dataset;
use super::error::ReadError;
use super::freshness::{self, FreshSince, ValidatedAt};
use super::objects::LargeObject;
use super::outages::RequestTimes;
use super::validated::{CacheEntry, Validated, max_weight_bytes};
use crate::runtime::cpu_pool::CpuPool;
use crate::store::{ObjectMeta, Store, StorePressure};
use crate::telemetry::metrics::{BudgetLabel, CacheLabel, LookupResult};
use n5_format::{Block, BlockError, GridPosition};

/// Generous estimate of the bookkeeping for one entry, in bytes.
const ENTRY_BYTES: usize = 768;

/// Maximum number of blocks that one lookup revalidates without blocking. The revalidation of this many blocks takes
/// about 50 us, as long as handing them to a thread that may block.
pub(crate) const MAX_NONBLOCKING_CHECKS: usize = 64;

/// Source of the blocks of one dataset. It hides from the cache where blocks come from: they may be stored or, later,
/// computed.
#[async_trait]
pub(crate) trait BlockSource: fmt::Debug + Send + Sync {
    /// Returns true if the block at `position` still has this version, or is still a hole if `version` is `None`. Marks
    /// the cached block as compared at the moment `checked_at` if so. Returns `None` if the comparison would block.
    fn try_is_unchanged(
        &self,
        position: &GridPosition,
        version: Option<u64>,
        validated_at: &ValidatedAt,
        checked_at: u64,
    ) -> Option<bool>;

    /// Returns the store that has the blocks as objects by their keys, if there is one. A block that the store's page
    /// cache holds is read from there, and [`Self::load`] is not called.
    fn store(&self) -> Option<&dyn Store> {
        None
    }

    /// Returns the location of the block at `position`, which a load in the background needs. Returns `None` if the source
    /// does not support such loads.
    fn location(&self, _position: &GridPosition) -> Option<BlockLocation> {
        None
    }

    /// Returns true if cached blocks are compared with the source only by [`Self::load`], which sends one conditional
    /// request for each block.
    fn compares_on_load(&self) -> bool;

    /// Returns the versions of the blocks at `positions`, in the order of `positions`. The version of a hole is `None`.
    /// Must not be called if [`Self::compares_on_load`] returns true.
    ///
    /// # Errors
    /// Returns a [`ReadError`] if the source fails.
    async fn versions(&self, positions: &[GridPosition]) -> Result<Vec<Option<u64>>, ReadError>;

    /// Returns the moment at which the block at `position` was requested and missing, if that was at `fresh_since` or
    /// later, the source remembers that, and no outage can have been the reason.
    fn known_missing(&self, _position: &GridPosition, _fresh_since: FreshSince) -> Option<u64> {
        None
    }

    /// Records that the block at `position` was missing. Returns false if the source remembers no holes, so that the
    /// cache must.
    fn remember_missing(&self, _position: &GridPosition, _times: RequestTimes) -> bool {
        false
    }

    /// Returns the pressure on the store behind the source.
    fn pressure(&self) -> StorePressure {
        StorePressure::default()
    }

    /// Loads the block at `position` as it was at `fresh_since` or later, and returns the moment at which it was
    /// current. `known` is the version of a cached block. If the block still has that version, returns
    /// [`SourceBlock::Unchanged`].
    ///
    /// # Errors
    /// Returns a [`ReadError`] if the source fails or there is not enough memory.
    async fn load(
        &self,
        position: &GridPosition,
        known: Option<&BlockVersion>,
        fresh_since: FreshSince,
    ) -> Result<(SourceBlock, u64), ReadError>;
}

/// A block from a [`BlockSource`].
pub(crate) enum SourceBlock {
    /// The cached block is still current.
    Unchanged,
    /// There is no block.
    Missing,
    /// A block as stored.
    Stored {
        meta: ObjectMeta,
        bytes: Bytes,
        /// Permit for the bytes; `None` if they belong to the cache of stored objects. It is not attached to the bytes,
        /// since a decoded block may share their buffer and outlive them by far.
        permit: Option<Permit>,
    },
    /// A stored block that the source has only opened, because its bytes exceed the memory that a source may take.
    Large(Arc<LargeObject>),
    /// A decoded block, and metadata that take the place of a stored block's metadata.
    #[cfg_attr(not(test), expect(dead_code, reason = "for computed blocks, which come later"))]
    Decoded(Block, ObjectMeta),
}

/// Version of a cached block. A clone allows a comparison after the block itself has been dropped.
#[derive(Debug, Clone)]
pub(crate) enum BlockVersion {
    /// No block was stored.
    Hole,
    /// Entity tag and version of the stored block.
    Stored(Arc<str>, u64),
}

impl BlockVersion {
    /// Returns the entity tag and the version of a stored block, `None` for a hole.
    pub(crate) fn etag_and_version(&self) -> Option<(&str, u64)> {
        match self {
            Self::Hole => None,
            Self::Stored(etag, version) => Some((etag, *version)),
        }
    }

    /// Returns the version of a stored block without its entity tag, `None` for a hole.
    pub(crate) fn number(&self) -> Option<u64> {
        self.etag_and_version().map(|(_, version)| version)
    }
}

/// A cached block, hole or decode error.
#[derive(Debug)]
pub(crate) struct BlockEntry {
    pub(crate) version: BlockVersion,
    /// The decoded block, or the reason why it cannot be decoded. `None` for a hole.
    decoded: Result<Option<Block>, Box<BlockError>>,
    /// False for a hole that the source remembers.
    is_cacheable: bool,
    pub(crate) validated_at: ValidatedAt,
}

impl BlockEntry {
    /// Creates an entry for a stored object with the metadata `meta`: the decoded block, or the reason why it cannot be
    /// decoded. The object was current at the moment `checked_at`.
    pub(crate) fn new(decoded: Result<Block, BlockError>, meta: ObjectMeta, checked_at: u64) -> Self {
        let ObjectMeta { etag, version, .. } = meta;
        let (version, decoded) = (BlockVersion::Stored(etag, version), decoded.map(Some).map_err(Box::new));
        Self { version, decoded, is_cacheable: true, validated_at: ValidatedAt::at(checked_at) }
    }

    /// Creates an entry for a hole that was seen at the moment `checked_at`.
    pub(crate) fn missing(checked_at: u64) -> Self {
        let (version, validated_at) = (BlockVersion::Hole, ValidatedAt::at(checked_at));
        Self { version, decoded: Ok(None), is_cacheable: true, validated_at }
    }

    /// Creates an entry for a hole that the source remembers.
    pub(crate) fn known_missing(checked_at: u64) -> Self {
        Self { is_cacheable: false, ..Self::missing(checked_at) }
    }

    /// Returns the decoded block. Returns `None` for a hole and for a block that cannot be decoded.
    pub(crate) fn block(&self) -> Option<&Block> {
        self.decoded.as_ref().ok()?.as_ref()
    }

    /// Returns an error if the stored block cannot be decoded. A hole is not an error.
    pub(crate) fn check_decodable(&self, dataset: &Dataset, position: &GridPosition) -> Result<(), ReadError> {
        let Err(fault) = &self.decoded else { return Ok(()) };
        Err(dataset.block_error(position, (**fault).clone()))
    }
}

impl CacheEntry for BlockEntry {
    fn validated_at(&self) -> &ValidatedAt {
        &self.validated_at
    }

    fn is_missing(&self) -> bool {
        matches!(self.version, BlockVersion::Hole)
    }

    fn is_cacheable(&self) -> bool {
        self.is_cacheable
    }
}

/// A block of a dataset, and the source that it comes from.
#[derive(Debug, Clone)]
pub(crate) struct BlockLocation {
    pub(crate) source: Arc<dyn BlockSource>,
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) position: GridPosition,
}

/// The cache of decoded blocks, shared by all containers.
#[derive(Debug, Clone)]
pub(crate) struct BlockCache {
    /// The entries by dataset id and grid position. Their budget also covers the blocks that are being decoded.
    pub(crate) entries: Validated<(u64, GridPosition), BlockEntry>,
    pub(crate) cpu: CpuPool,
    /// Maximum number of bytes that one block may take while it is decoded.
    pub(crate) block_bytes: u64,
}

impl BlockCache {
    pub(crate) fn new(
        capacity_bytes: u64,
        policy: EvictionPolicy,
        cpu: CpuPool,
        decode_bytes: u64,
        max_wait: Duration,
    ) -> Self {
        let cached_bytes = max_weight_bytes(capacity_bytes);
        let budget = Budget::with_cache(BudgetLabel::Decode, cached_bytes, decode_bytes, max_wait);
        let weigher = |(_, position): &(u64, GridPosition), entry: &Arc<BlockEntry>| {
            let bytes = match &entry.decoded {
                Ok(block) => block.as_ref().map_or(0, |block| footprint_bytes(block.data.len())),
                Err(fault) => fault.to_string().len(),
            };
            // The position counts twice: in the key and in the map of loads in flight.
            u32::try_from(bytes + ENTRY_BYTES + 16 * position.len()).unwrap_or(u32::MAX)
        };
        let entries = Validated::new(CacheLabel::Decoded, budget, policy, weigher);
        Self { entries, cpu, block_bytes: decode_bytes }
    }

    /// Returns the decode budget: the memory of the entries and of the blocks that are being decoded.
    pub(crate) fn budget(&self) -> &Budget {
        &self.entries.budget
    }

    /// Replaces the handle to the decode budget. If the cache holds memory, `budget` must be a handle to that
    /// memory.
    pub(crate) fn set_budget(&mut self, budget: Budget) {
        self.entries.budget = budget;
    }

    /// Returns the cached entries of the blocks at `positions`, in the order of `positions`. Contains `None` for a
    /// block that is not cached or was not compared with the source at `fresh_since` or later.
    ///
    /// # Errors
    /// Returns a [`ReadError`] if the source fails; also [`ReadError::Block`] if one of the blocks is known not to
    /// decode.
    pub(crate) async fn cached(
        &self,
        source: &dyn BlockSource,
        dataset: &Dataset,
        positions: &[GridPosition],
        fresh_since: FreshSince,
    ) -> Result<Vec<Option<Arc<BlockEntry>>>, ReadError> {
        let entries = self.cached_or_damaged(source, positions, dataset.id, fresh_since).await?;
        for (position, entry) in positions.iter().zip(&entries) {
            if let Some(entry) = entry {
                entry.check_decodable(dataset, position)?;
            }
        }
        Ok(entries)
    }

    /// Like [`Self::cached`], but returns entries that are known not to decode, too.
    pub(crate) async fn cached_or_damaged(
        &self,
        source: &dyn BlockSource,
        positions: &[GridPosition],
        dataset_id: u64,
        fresh_since: FreshSince,
    ) -> Result<Vec<Option<Arc<BlockEntry>>>, ReadError> {
        let mut entries = Vec::with_capacity(positions.len());
        let mut stale_indices = Vec::new();
        for (index, position) in positions.iter().enumerate() {
            let cached = self.entries.cached(&(dataset_id, position.clone())).await;
            let known_missing = || source.known_missing(position, fresh_since).map(BlockEntry::known_missing);
            let entry = cached.or_else(|| known_missing().map(Arc::new));
            if entry.as_ref().is_some_and(|entry| !self.is_fresh_or_renewed(source, position, entry, fresh_since)) {
                stale_indices.push(index);
            }
            entries.push(entry);
        }
        let checked_at = freshness::now();
        let mut changed_indices = compare_nonblocking(source, positions, &entries, &mut stale_indices, checked_at);
        if !stale_indices.is_empty() && !source.compares_on_load() {
            changed_indices.extend(compare_in_bulk(source, positions, &entries, &stale_indices, checked_at).await?);
            stale_indices.clear();
        }
        // The remaining stale entries stay in the cache: a load compares and counts them.
        let deferred = stale_indices.len() as u64;
        for index in stale_indices {
            entries[index] = None;
        }
        for index in changed_indices {
            let Some(entry) = entries[index].take() else { continue };
            self.entries.count(LookupResult::Stale, 1);
            let stale = Arc::downgrade(&entry);
            drop(entry);
            self.entries.remove((dataset_id, positions[index].clone()), &stale).await;
        }
        let found = entries.iter().flatten().count() as u64;
        let missing = entries.iter().flatten().filter(|entry| entry.is_missing()).count() as u64;
        self.entries.count(LookupResult::Hit, found - missing);
        self.entries.count(LookupResult::Absent, missing);
        self.entries.count(LookupResult::Miss, positions.len() as u64 - found - deferred);
        Ok(entries)
    }
}

/// Compares the entries at `stale_indices` with their source without blocking, unless there are more than
/// [`MAX_NONBLOCKING_CHECKS`]. Returns the indices of the entries that have changed. The indices of entries that were
/// not compared remain in `stale_indices`.
fn compare_nonblocking(
    source: &dyn BlockSource,
    positions: &[GridPosition],
    entries: &[Option<Arc<BlockEntry>>],
    stale_indices: &mut Vec<usize>,
    checked_at: u64,
) -> Vec<usize> {
    let mut changed_indices = Vec::new();
    if stale_indices.len() <= MAX_NONBLOCKING_CHECKS {
        stale_indices.retain(|index| {
            let Some(entry) = &entries[*index] else { return false };
            let validated_at = &entry.validated_at;
            let is_unchanged =
                source.try_is_unchanged(&positions[*index], entry.version.number(), validated_at, checked_at);
            changed_indices.extend((is_unchanged == Some(false)).then_some(*index));
            is_unchanged.is_none()
        });
    }
    changed_indices
}

/// Compares the entries at `stale_indices` with their source in one call. Returns the indices of the entries that have
/// changed.
async fn compare_in_bulk(
    source: &dyn BlockSource,
    positions: &[GridPosition],
    entries: &[Option<Arc<BlockEntry>>],
    stale_indices: &[usize],
    checked_at: u64,
) -> Result<Vec<usize>, ReadError> {
    let stale_positions: Vec<GridPosition> = stale_indices.iter().map(|index| positions[*index].clone()).collect();
    let versions = source.versions(&stale_positions).await?;
    let mut changed_indices = Vec::new();
    for (index, version) in stale_indices.iter().zip(versions) {
        match &entries[*index] {
            Some(entry) if entry.version.number() == version => entry.validated_at.touch(checked_at),
            _ => changed_indices.push(*index),
        }
    }
    Ok(changed_indices)
}
