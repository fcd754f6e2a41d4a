//! Checks that stored blocks decode. Bypasses the cache of decoded blocks, within the same budgets.

use std::sync::Arc;

use super::block_cache::{BlockCache, BlockLocation, TORN_READ_RETRY_DELAY};
use super::block_waiters::BlockWaiters;
use super::object_cache::DecodeSource;
use super::{Container, Dataset, Freshness, ReadError, freshness};
use crate::cpu_pool::{CoreLease, Priority};
use crate::n5::{Block, BlockError, BlockHeader, BlockMode, CancelCheck, Coords, DecodeBuffers, GridPosition};

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
        let location = BlockLocation {
            container: self.id,
            store: Arc::clone(&self.store),
            dataset: Arc::clone(dataset),
            position: position.clone(),
        };
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
        let BlockLocation { container, store, dataset, position } = location;
        let key = dataset.block_key(position);
        let (bytes, mut permit) = match self.objects.read(*container, &**store, &key, fresh_since).await? {
            DecodeSource::Missing(_) => return Ok(None),
            DecodeSource::Cached { bytes, .. } => (bytes, None),
            DecodeSource::Read { bytes, permit, .. } => (bytes, Some(permit)),
            DecodeSource::Open(large) => {
                let (bytes, permit) = self.read_large(&**store, dataset, &key, &large).await?;
                (bytes, Some(permit))
            }
        };
        let block_error = |error| ReadError::Block { key: key.clone(), position: position.clone(), error };
        let needed_bytes = Block::decode_memory_bytes(&bytes, &dataset.attributes, position).map_err(block_error)?;
        let over_limit = BlockError::OverLimit { needed_bytes, limit_bytes: self.block_bytes };
        let share = self.decode_permit(needed_bytes, permit.as_mut()).await?;
        let decode_permit = share.ok_or_else(|| block_error(over_limit))?;
        let (job_dataset, job_position, limit_bytes) = (Arc::clone(dataset), position.clone(), self.block_bytes);
        // Held while the request waits; dropping it cancels the decoding.
        let requester = Arc::new(());
        let waiters = BlockWaiters::of_request(&requester);
        let check = move |lease: &CoreLease| {
            let stored_bytes = bytes.len() as u64;
            let header = BlockHeader::parse(&bytes).ok();
            let (mut buffers, should_continue) = (DecodeBuffers::default(), waiters.should_continue(lease));
            let block = Block::decode_with(
                bytes,
                &job_dataset.attributes,
                &job_position,
                limit_bytes,
                &mut buffers,
                CancelCheck::new(&should_continue),
            )?;
            let mode = header.filter(|header| header.size == block.size).map(|header| header.mode);
            let decoded_bytes = block.data.len() as u64;
            // The permits are released only now that nothing but these numbers is left of the block.
            drop((block.data, decode_permit, permit));
            Ok(ValidBlock { size: block.size, mode, stored_bytes, decoded_bytes })
        };
        self.cpu.run_cooperative(Priority::Low, dataset.id, check).await?.map(Some).map_err(block_error)
    }
}
