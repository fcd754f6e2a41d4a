//! The cache of decoded blocks: weighed in bytes and filled in single flights. It remembers holes and blocks that do
//! not decode, but no other errors. A [`BlockSource`] is the seam between this cache and the origin of its blocks.

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
use super::freshness::{self, ValidatedAt};
use super::objects::LargeObject;
use super::validated::{CacheEntry, Validated, max_weight_bytes};
use crate::runtime::cpu_pool::CpuPool;
use crate::store::{ObjectMeta, Store, StorePressure};
use crate::telemetry::metrics::{BudgetLabel, CacheLabel, LookupResult};
use n5_format::{Block, BlockError, Coords, GridPosition};

/// Bookkeeping of one entry in bytes, estimated generously.
const ENTRY_BYTES: usize = 768;

/// Maximum number of blocks that are revalidated without blocking. Their revalidation takes about 50 us, which is also
/// the cost of handing it to a thread that may block.
pub(crate) const MAX_NONBLOCKING_CHECKS: usize = 64;

/// Source of the blocks of one dataset. The cache does not depend on where blocks come from, so that a source of
/// computed blocks can be added.
#[async_trait]
pub(crate) trait BlockSource: fmt::Debug + Send + Sync {
    /// Compares a cached block of this version, or a hole, with the source at the moment `checked_at`, without
    /// blocking. Returns `None` if the comparison would block.
    fn try_is_unchanged(
        &self,
        position: &GridPosition,
        version: Option<u64>,
        validated_at: &ValidatedAt,
        checked_at: u64,
    ) -> Option<bool>;

    /// Returns the store that has the blocks as objects by their keys, if there is one. Blocks that can be read from its
    /// page cache without waiting are not requested from the source.
    fn store(&self) -> Option<&dyn Store> {
        None
    }

    /// Returns true if only [`Self::load`] compares a cached block with the source, as in one conditional request.
    fn compares_on_load(&self) -> bool;

    /// Returns the versions of the blocks at `positions` in their order, `None` for holes. Not called if
    /// [`Self::compares_on_load`] is true.
    ///
    /// # Errors
    /// [`ReadError`] when the source fails.
    async fn versions(&self, positions: &[GridPosition]) -> Result<Vec<Option<u64>>, ReadError>;

    /// Returns the pressure on the store behind the source.
    fn pressure(&self) -> StorePressure {
        StorePressure::default()
    }

    /// Loads the block at `position`, no staler than `fresh_since`, and returns the moment at which it was current.
    /// Returns [`SourceBlock::Unchanged`] if the block still has the version `known` of a cached block.
    ///
    /// # Errors
    /// [`ReadError`] when the source fails or memory is short.
    async fn load(
        &self,
        position: &GridPosition,
        known: Option<&BlockVersion>,
        fresh_since: u64,
    ) -> Result<(SourceBlock, u64), ReadError>;
}

/// A block from a [`BlockSource`].
pub(crate) enum SourceBlock {
    /// The cached block is still current.
    Unchanged,
    /// There is no block.
    Missing,
    /// A block as stored.
    Stored(StoredBlock),
    /// A stored block that the source has only opened, since it takes more memory than a source may use.
    Large(Arc<LargeObject>),
    /// A decoded block, and metadata that stand for a stored one.
    #[cfg_attr(not(test), expect(dead_code, reason = "for computed blocks, which come later"))]
    Decoded(Block, ObjectMeta),
}

/// The bytes of a stored block in memory.
pub(crate) struct StoredBlock {
    pub(crate) meta: ObjectMeta,
    pub(crate) bytes: Bytes,
    /// Permit for the bytes; `None` if they belong to the cache of stored objects. It is not attached to the bytes,
    /// since a decoded block may share their buffer and outlive them by far.
    pub(crate) permit: Option<Permit>,
}

/// Version of a cached block.
#[derive(Debug, Clone)]
pub(crate) enum BlockVersion {
    /// There was no block.
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
}

/// A cached block, hole or decode error.
#[derive(Debug)]
pub(crate) struct BlockEntry {
    /// `None` for a hole and for a block that cannot be decoded.
    pub(crate) block: Option<Block>,
    /// The reason why the stored block cannot be decoded.
    pub(crate) fault: Option<Box<BlockError>>,
    pub(crate) stored_version: BlockVersion,
    pub(crate) validated_at: ValidatedAt,
}

impl BlockEntry {
    /// Creates an entry for a block decoded from the stored object `meta`, or for the reason why that cannot be
    /// decoded. The object was current at the moment `checked_at`.
    pub(crate) fn new(decoded: Result<Block, BlockError>, meta: ObjectMeta, checked_at: u64) -> Self {
        let (block, fault) = match decoded {
            Ok(block) => (Some(block), None),
            Err(fault) => (None, Some(Box::new(fault))),
        };
        let stored_version = BlockVersion::Stored(meta.etag, meta.version);
        Self { block, fault, stored_version, validated_at: ValidatedAt::at(checked_at) }
    }

    /// Creates an entry for a hole that was seen at the moment `checked_at`.
    pub(crate) fn missing(checked_at: u64) -> Self {
        let validated_at = ValidatedAt::at(checked_at);
        Self { block: None, fault: None, stored_version: BlockVersion::Hole, validated_at }
    }

    /// Returns an error if the stored block cannot be decoded. A hole is not an error.
    pub(crate) fn check_decodable(&self, dataset: &Dataset, position: &GridPosition) -> Result<(), ReadError> {
        self.fault.as_ref().map_or(Ok(()), |fault| Err(dataset.block_error(position, (**fault).clone())))
    }

    pub(crate) fn version(&self) -> Option<u64> {
        self.stored_version.etag_and_version().map(|(_, version)| version)
    }

    /// Returns the block if its size is exactly `size`.
    pub(crate) fn block_of_size(&self, size: &Coords) -> Option<&Block> {
        self.block.as_ref().filter(|block| block.size == *size)
    }
}

impl CacheEntry for BlockEntry {
    fn validated_at(&self) -> &ValidatedAt {
        &self.validated_at
    }

    /// Returns true if no block is stored.
    fn is_missing(&self) -> bool {
        self.block.is_none() && self.fault.is_none()
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
            let bytes = entry.block.as_ref().map_or(0, |block| footprint_bytes(block.data.len()));
            let bytes = bytes + entry.fault.as_ref().map_or(0, |fault| fault.to_string().len());
            // The position counts twice: in the key and in the map of loads in flight.
            u32::try_from(bytes + ENTRY_BYTES + 16 * position.len()).unwrap_or(u32::MAX)
        };
        let entries = Validated::new(CacheLabel::Decoded, budget, policy, weigher);
        Self { entries, cpu, block_bytes: decode_bytes }
    }

    /// Returns the decode budget: the memory of the entries and of the blocks that are being decoded.
    pub(crate) fn budget(&self) -> &Budget {
        self.entries.budget()
    }

    /// Replaces the budget by another handle to the same memory.
    pub(crate) fn set_budget(&mut self, budget: Budget) {
        self.entries.set_budget(budget);
    }

    /// Returns the cached blocks among those at `positions`, in their order, none staler than `fresh_since`.
    ///
    /// # Errors
    /// [`ReadError`] if the source fails; also [`ReadError::Block`] if one of the blocks is known not to decode.
    pub(crate) async fn cached(
        &self,
        source: &dyn BlockSource,
        dataset: &Dataset,
        positions: &[GridPosition],
        fresh_since: u64,
    ) -> Result<Vec<Option<Arc<BlockEntry>>>, ReadError> {
        let mut entries = Vec::with_capacity(positions.len());
        let mut stale_indices = Vec::new();
        for (index, position) in positions.iter().enumerate() {
            let entry = self.entries.cached(&(dataset.id, position.clone())).await;
            if entry.as_ref().is_some_and(|entry| !entry.validated_at.is_fresh(fresh_since)) {
                stale_indices.push(index);
            }
            entries.push(entry);
        }
        let mut changed = compare_nonblocking(source, positions, &entries, &mut stale_indices);
        if !stale_indices.is_empty() && !source.compares_on_load() {
            let stale_indices = std::mem::take(&mut stale_indices);
            changed.extend(compare_in_bulk(source, positions, &entries, stale_indices).await?);
        }
        // The remaining stale entries stay in the cache: a load compares and counts them.
        let deferred = stale_indices.len() as u64;
        for index in stale_indices {
            entries[index] = None;
        }
        for index in changed {
            let Some(entry) = entries[index].take() else { continue };
            self.entries.count(LookupResult::Stale, 1);
            let stale = Arc::downgrade(&entry);
            drop(entry);
            self.entries.remove((dataset.id, positions[index].clone()), &stale).await;
        }
        let found = entries.iter().flatten().count() as u64;
        let missing = entries.iter().flatten().filter(|entry| entry.is_missing()).count() as u64;
        self.entries.count(LookupResult::Hit, found - missing);
        self.entries.count(LookupResult::Absent, missing);
        self.entries.count(LookupResult::Miss, positions.len() as u64 - found - deferred);
        for (position, entry) in positions.iter().zip(&entries) {
            if let Some(entry) = entry {
                entry.check_decodable(dataset, position)?;
            }
        }
        Ok(entries)
    }
}

/// Compares the entries at `stale_indices` with their source without blocking, unless they are too many. Returns the
/// indices of those that have changed. The indices of those that were not compared remain in `stale_indices`.
fn compare_nonblocking(
    source: &dyn BlockSource,
    positions: &[GridPosition],
    entries: &[Option<Arc<BlockEntry>>],
    stale_indices: &mut Vec<usize>,
) -> Vec<usize> {
    let checked_at = freshness::now();
    let mut changed = Vec::new();
    if stale_indices.len() <= MAX_NONBLOCKING_CHECKS {
        stale_indices.retain(|index| {
            let Some(entry) = &entries[*index] else { return false };
            let validated_at = &entry.validated_at;
            let is_unchanged = source.try_is_unchanged(&positions[*index], entry.version(), validated_at, checked_at);
            changed.extend((is_unchanged == Some(false)).then_some(*index));
            is_unchanged.is_none()
        });
    }
    changed
}

/// Compares the entries at `stale_indices` with their source in one call. Returns the indices of those that have
/// changed.
async fn compare_in_bulk(
    source: &dyn BlockSource,
    positions: &[GridPosition],
    entries: &[Option<Arc<BlockEntry>>],
    mut stale_indices: Vec<usize>,
) -> Result<Vec<usize>, ReadError> {
    let checked_at = freshness::now();
    let stale: Vec<GridPosition> = stale_indices.iter().map(|index| positions[*index].clone()).collect();
    let mut versions = source.versions(&stale).await?.into_iter();
    stale_indices.retain(|index| {
        let (Some(entry), Some(version)) = (&entries[*index], versions.next()) else { return false };
        let is_changed = entry.version() != version;
        if !is_changed {
            entry.validated_at.touch(checked_at);
        }
        is_changed
    });
    Ok(stale_indices)
}
