//! Entries of the block cache: a decoded block, a hole, or the reason why a stored block cannot be decoded.

use std::sync::Arc;

use super::datasets::Dataset;
use super::error::ReadError;
use super::freshness::ValidatedAt;
use super::validated::CacheEntry;
use crate::store::ObjectMeta;
use n5_format::{Block, BlockError, Coords, GridPosition};

/// A cached block, hole or decode error.
#[derive(Debug)]
pub(crate) struct BlockEntry {
    /// `None` for a hole and for a block that cannot be decoded.
    pub(crate) block: Option<Block>,
    /// The reason why the stored block cannot be decoded.
    pub(crate) fault: Option<Box<BlockError>>,
    /// Entity tag and version of the stored block.
    pub(crate) etag_and_version: Option<(Arc<str>, u64)>,
    pub(crate) validated_at: ValidatedAt,
}

impl BlockEntry {
    /// Creates an entry for a block decoded from the stored object `meta`, which was current at the moment
    /// `checked_at`.
    pub(crate) fn new(block: Block, meta: ObjectMeta, checked_at: u64) -> Self {
        let etag_and_version = Some((meta.etag, meta.version));
        Self { block: Some(block), fault: None, etag_and_version, validated_at: ValidatedAt::at(checked_at) }
    }

    /// Creates an entry for the stored object `meta`, which cannot be decoded and was current at the moment
    /// `checked_at`.
    pub(crate) fn undecodable(fault: BlockError, meta: ObjectMeta, checked_at: u64) -> Self {
        let etag_and_version = Some((meta.etag, meta.version));
        Self { block: None, fault: Some(Box::new(fault)), etag_and_version, validated_at: ValidatedAt::at(checked_at) }
    }

    /// Returns an error if the stored block cannot be decoded. A hole is not an error.
    pub(crate) fn check_decodable(&self, dataset: &Dataset, position: &GridPosition) -> Result<(), ReadError> {
        let Some(fault) = &self.fault else { return Ok(()) };
        let (key, position) = (dataset.block_key(position), position.clone());
        Err(ReadError::Block { key, position, error: (**fault).clone() })
    }

    /// Creates an entry for a hole that was seen at the moment `checked_at`.
    pub(crate) fn missing(checked_at: u64) -> Self {
        Self { block: None, fault: None, etag_and_version: None, validated_at: ValidatedAt::at(checked_at) }
    }

    /// Returns the last moment at which the entry was known to match the store.
    pub(crate) fn checked_at(&self) -> u64 {
        self.validated_at.nanoseconds()
    }

    pub(crate) fn version(&self) -> Option<u64> {
        self.etag_and_version.as_ref().map(|(_, version)| *version)
    }

    /// Returns entity tag and version of the stored block; `None` for a hole.
    pub(crate) fn known(&self) -> Option<(&str, u64)> {
        self.etag_and_version.as_ref().map(|(etag, version)| (&**etag, *version))
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
