//! The seam between the cache of decoded blocks and the sources of its blocks: stored blocks, or others such as computed
//! ones.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;

use super::error::ReadError;
use super::freshness::ValidatedAt;
use super::large_object::LargeObject;
use super::permit::Permit;
use crate::store::{ObjectMeta, Store, StoreLoad};
use n5_format::{Block, GridPosition};

/// Source of the blocks of one dataset.
#[async_trait]
pub(crate) trait BlockSource: fmt::Debug + Send + Sync {
    /// Compares a cached block of this version, or a hole, with the source at the moment `checked_at`, without
    /// blocking. Returns `None` if that is not possible.
    fn try_is_unchanged(
        &self,
        position: &GridPosition,
        version: Option<u64>,
        validated_at: &ValidatedAt,
        checked_at: u64,
    ) -> Option<bool>;

    /// Returns the store that has the blocks as objects by their keys, if there is one. Blocks that it can read without
    /// waiting are not requested from the source.
    fn store(&self) -> Option<&dyn Store> {
        None
    }

    /// Returns the versions of the blocks at `positions` in their order, `None` for holes. Returns `None` if the source
    /// compares blocks only when it loads them.
    ///
    /// # Errors
    /// [`ReadError`] when the source fails.
    async fn versions(&self, positions: &[GridPosition]) -> Result<Option<Vec<Option<u64>>>, ReadError>;

    /// Returns the load of the store behind the source.
    fn current_load(&self) -> StoreLoad {
        StoreLoad::default()
    }

    /// Loads the block at `position`, no staler than `fresh_since`, and returns the moment at which it was current.
    /// The result is [`SourceBlock::Unchanged`] if that is still `known`.
    ///
    /// # Errors
    /// [`ReadError`] when the source fails or memory is short.
    async fn load(
        &self,
        position: &GridPosition,
        known: Option<CachedVersion<'_>>,
        fresh_since: u64,
    ) -> Result<(SourceBlock, u64), ReadError>;
}

/// Entity tag and version of a cached block; `None` for a cached hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CachedVersion<'a>(pub(crate) Option<(&'a str, u64)>);

/// A block from a [`BlockSource`].
pub(crate) enum SourceBlock {
    /// The cached block is still current.
    Unchanged,
    /// There is no block.
    Missing,
    /// A block as stored.
    Stored(StoredBlock),
    /// A stored block that is too large for the memory of its source. The caller must read it.
    Large(LargeObject),
    /// A decoded block, and metadata that stand for a stored one.
    #[cfg_attr(not(test), expect(dead_code, reason = "for computed blocks, which come later"))]
    Decoded(Block, ObjectMeta),
}

/// A block as stored, in memory.
#[derive(Debug)]
pub(crate) struct StoredBlock {
    pub(crate) meta: ObjectMeta,
    pub(crate) bytes: Bytes,
    /// Permit for the bytes, which is dropped separately, since a decoded block may share their buffer and outlive them
    /// by far. `None` if a cache shares the bytes and accounts for them.
    pub(crate) permit: Option<Permit>,
}
