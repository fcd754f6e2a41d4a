//! Checks that stored blocks decode. Bypasses the cache of decoded blocks, within the same budgets.

use std::sync::Arc;

use crate::cache::block_cache::{BlockCache, BlockLocation};
use crate::cache::block_load::TORN_READ_RETRY_DELAY;
use crate::cache::block_source::SourceBlock;
use crate::cache::block_waiters::BlockWaiters;
use crate::cache::datasets::Dataset;
use crate::cache::error::ReadError;
use crate::cache::freshness::{self, Freshness};
use crate::cache::load_times::LoadTimes;
use crate::container::Container;
use n5_format::{Block, BlockHeader, BlockMode, Coords, GridPosition};

/// Properties of a stored block that decodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidBlock {
    /// Size of the block itself in elements, N5 axis order.
    pub size: Coords,
    /// Mode in its header; `None` for a header that predates today's form.
    pub mode: Option<BlockMode>,
    /// Length of the stored block in bytes.
    pub stored_bytes: u64,
    /// Length of its elements in bytes.
    pub decoded_bytes: u64,
}

impl Container {
    /// Reads and decodes the block at `position` of a dataset as a slice would, without keeping it. Returns `None` if
    /// no block is stored.
    ///
    /// # Errors
    /// [`ReadError`] with which a slice would fail.
    pub async fn check_block(
        &self,
        freshness: Freshness,
        dataset: &Arc<Dataset>,
        position: &GridPosition,
    ) -> Result<Option<ValidBlock>, ReadError> {
        if !self.is_visible(&dataset.key) {
            return Ok(None);
        }
        let location = self.block_location(dataset, position);
        let fresh_since = freshness.since(&dataset.block_key(position));
        self.resources.blocks.check(&location, fresh_since).await
    }
}

impl BlockCache {
    /// Checks that the block at `location` decodes. A block that does not is read again, as for a slice.
    async fn check(&self, location: &BlockLocation, fresh_since: u64) -> Result<Option<ValidBlock>, ReadError> {
        match self.check_once(location, fresh_since).await {
            Err(ref error) if error.may_be_torn() => {
                tokio::time::sleep(TORN_READ_RETRY_DELAY).await;
                self.check_once(location, freshness::now()).await
            }
            other => other,
        }
    }

    async fn check_once(&self, location: &BlockLocation, fresh_since: u64) -> Result<Option<ValidBlock>, ReadError> {
        let stored = match location.source.load(&location.position, None, fresh_since).await?.0 {
            SourceBlock::Unchanged | SourceBlock::Missing => return Ok(None),
            SourceBlock::Decoded(block, meta) => return Ok(Some(ValidBlock::new(block, meta.len, None))),
            SourceBlock::Stored(stored) => stored,
            SourceBlock::Large(large) => self.read_large(location, &large).await?,
        };
        let (header, stored_bytes) = (BlockHeader::parse(&stored.bytes).ok(), stored.bytes.len() as u64);
        // Held while the request waits; dropping it cancels the decoding.
        let requester = Arc::new(());
        let waiters = BlockWaiters::of_request(&requester);
        let block = self.decode(location, stored, &waiters, &LoadTimes::default()).await?;
        let block = block.map_err(|error| location.block_error(error))?;
        Ok(Some(ValidBlock::new(block, stored_bytes, header)))
    }
}

impl ValidBlock {
    fn new(block: Block, stored_bytes: u64, header: Option<BlockHeader>) -> Self {
        let mode = header.filter(|header| header.size == block.size).map(|header| header.mode);
        Self { size: block.size, mode, stored_bytes, decoded_bytes: block.data.len() as u64 }
    }
}
