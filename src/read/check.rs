//! Checks that stored blocks can be decoded. Decoded blocks are not cached, but their memory comes from the same
//! budgets as that of slices.

use std::sync::Arc;

use crate::cache::{
    self, BlockCache, BlockLocation, BlockWaiters, Dataset, FreshSince, LoadTimes, ReadError, ReadOptions, SourceBlock,
    TORN_READ_RETRY_DELAY,
};
use crate::container::Container;
use n5_format::{Block, BlockHeader, BlockMode, Coords, GridPosition};

/// Properties of a stored block that can be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidBlock {
    /// Size of the stored block in elements, in N5 axis order. It may differ from the size in the grid.
    pub size: Coords,
    /// Mode from the header; `None` for a header in a form older than today's.
    pub mode: Option<BlockMode>,
    /// Length of the stored block in bytes.
    pub stored_bytes: u64,
    /// Length of its elements in bytes.
    pub decoded_bytes: u64,
}

/// Loads the block at `position` of a dataset as a slice would, but does not cache it. Returns `None` if no block is
/// stored.
///
/// # Errors
/// Returns the [`ReadError`] that a slice of this block would return.
pub async fn check_block(
    container: &Container,
    options: ReadOptions,
    dataset: &Arc<Dataset>,
    position: &GridPosition,
) -> Result<Option<ValidBlock>, ReadError> {
    if !container.check_visible(&dataset.key) {
        return Ok(None);
    }
    let blocks = &container.resources.blocks;
    let location = container.block_location(dataset, position);
    match check_once(blocks, &location, container.fresh_since(options, &dataset.block_key(position))).await {
        // The block may have been written while it was read. A slice loads such a block again, too.
        Err(error) if error.may_be_torn() => {
            tokio::time::sleep(TORN_READ_RETRY_DELAY).await;
            check_once(blocks, &location, cache::now().into()).await
        }
        result => result,
    }
}

async fn check_once(
    blocks: &BlockCache,
    location: &BlockLocation,
    fresh_since: FreshSince,
) -> Result<Option<ValidBlock>, ReadError> {
    let (bytes, permit) = match location.source.load(&location.position, None, fresh_since).await?.0 {
        SourceBlock::Unchanged | SourceBlock::Missing => return Ok(None),
        SourceBlock::Decoded(block, meta) => return Ok(Some(ValidBlock::new(block, meta.len, None))),
        SourceBlock::Stored { bytes, permit, .. } => (bytes, permit),
        SourceBlock::Large(large) => blocks.read_large(location, &large).await?,
    };
    let header = BlockHeader::parse(&bytes).ok();
    let stored_bytes = bytes.len() as u64;
    // Held while the request waits; dropping it cancels the decoding.
    let requester = Arc::new(());
    let waiters = BlockWaiters::new(Arc::downgrade(&requester), None);
    let block = blocks.decode(location, bytes, permit, waiters, &LoadTimes::default()).await?;
    Ok(Some(ValidBlock::new(block, stored_bytes, header)))
}

impl ValidBlock {
    fn new(block: Block, stored_bytes: u64, header: Option<BlockHeader>) -> Self {
        let mode = header.filter(|header| header.size == block.size).map(|header| header.mode);
        Self { size: block.size, mode, stored_bytes, decoded_bytes: block.data.len() as u64 }
    }
}
