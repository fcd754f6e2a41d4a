//! Blocks decoded for nobody: whether they are sound. Past the cache of decoded blocks, within the same budgets.

use std::sync::Arc;

use super::blocks::{Blocks, Place, SECOND_LOOK};
use super::objects::Source;
use super::wanted::Audience;
use super::{Access, Container, Dataset, ReadError, fresh};
use crate::cpu::{Length, Turn};
use crate::n5::{Block, BlockError, BlockHeader, Coords, GridPosition, Mode, Room, Watch};

/// What is known of a stored block that decodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SoundBlock {
    /// Its own size in elements, N5 axis order.
    pub size: Coords,
    /// The mode in its header; `None` for a header that predates today's form.
    pub mode: Option<Mode>,
    /// Length of the stored block in bytes.
    pub stored_bytes: u64,
    /// Length of its elements in bytes.
    pub decoded_bytes: u64,
}

impl Container {
    /// Reads and decodes the block at `position` of a dataset as a slice would, and keeps nothing of it; `None` where
    /// none is stored.
    ///
    /// # Errors
    /// [`ReadError`] with which a slice would fail.
    pub async fn check_block(
        &self,
        access: Access,
        dataset: &Arc<Dataset>,
        position: &GridPosition,
    ) -> Result<Option<SoundBlock>, ReadError> {
        if !self.sees(&dataset.key) {
            return Ok(None);
        }
        let place = Place {
            container: self.id,
            store: Arc::clone(&self.store),
            dataset: Arc::clone(dataset),
            position: position.clone(),
        };
        let since = access.since(&dataset.block_key(position));
        self.resources.blocks.check(&place, since).await
    }
}

impl Blocks {
    /// Whether the block at `place` decodes; one that does not is read once more, as for a slice.
    async fn check(&self, place: &Place, since: u64) -> Result<Option<SoundBlock>, ReadError> {
        match self.check_once(place, since).await {
            Err(ref error) if error.may_be_torn() => {
                tokio::time::sleep(SECOND_LOOK).await;
                self.check_once(place, fresh::now()).await
            }
            other => other,
        }
    }

    async fn check_once(&self, place: &Place, since: u64) -> Result<Option<SoundBlock>, ReadError> {
        let Place { container, store, dataset, position } = place;
        let key = dataset.block_key(position);
        let (bytes, mut permit) = match self.objects.read(*container, &**store, &key, since).await? {
            Source::Missing(_) => return Ok(None),
            Source::Cached { bytes, .. } => (bytes, None),
            Source::Read { bytes, permit, .. } => (bytes, Some(permit)),
            Source::Open(large) => {
                let (bytes, permit) = self.read_large(&**store, dataset, &key, &large).await?;
                (bytes, Some(permit))
            }
        };
        let blame = |error| ReadError::Block { key: key.clone(), position: position.clone(), error };
        let needed_bytes = Block::decoding_bytes(&bytes, &dataset.attributes, position).map_err(blame)?;
        let over = BlockError::OverLimit { needed_bytes, limit_bytes: self.block_bytes };
        let share = self.share_for(needed_bytes, permit.as_mut()).await?;
        let decoding = share.ok_or_else(|| blame(over))?;
        let (job, at, limit) = (Arc::clone(dataset), position.clone(), self.block_bytes);
        // Held as long as somebody waits.
        let asked = Arc::new(());
        let audience = Audience::only(&asked);
        let check = move |turn: &Turn| {
            let stored_bytes = bytes.len() as u64;
            let header = BlockHeader::parse(&bytes).ok();
            let (mut room, goes_on) = (Room::default(), audience.watched(turn));
            let block = Block::decode_with(bytes, &job.attributes, &at, limit, &mut room, Watch::new(&goes_on))?;
            let mode = header.filter(|header| header.size == block.size).map(|header| header.mode);
            let decoded_bytes = block.data.len() as u64;
            // Only now: nothing of the block is left but these numbers.
            drop((block.data, decoding, permit));
            Ok(SoundBlock { size: block.size, mode, stored_bytes, decoded_bytes })
        };
        self.cpu.run_in_turns(Length::Long, dataset.id, check).await?.map(Some).map_err(blame)
    }
}
