//! Slices that are exactly one stored block: they share the cached block's buffer.

use std::time::Instant;

use bytes::Bytes;

use super::admit::Slice;
use super::stats::ReadStats;
use super::{Access, Container, ReadError};
use crate::fair::Client;

impl Container {
    /// As [`Self::whole_block`]; they count as the client's as long as it is sent them.
    pub(super) async fn whole_block_to_send(
        &self,
        access: Access,
        slice: &Slice,
        stats: &mut ReadStats,
    ) -> Result<Option<Bytes>, ReadError> {
        let Some(bytes) = self.whole_block(access, slice, stats).await? else { return Ok(None) };
        let budget = &self.resources.blocks.budget;
        if let Some(sent) = budget.sent(Client::current(), &bytes) {
            return Ok(Some(sent));
        }
        // A request that waits must not hold memory that others wait for.
        let len = bytes.len();
        drop(bytes);
        let turn = budget.turn(len).await?;
        *stats = ReadStats::default();
        let bytes = self.whole_block(access, slice, stats).await?;
        Ok(bytes.map(|bytes| budget.sent_in_turn(turn, bytes)))
    }

    /// The elements of the one block that `slice` consists of exactly, if it is so.
    pub(super) async fn whole_block(
        &self,
        access: Access,
        slice: &Slice,
        stats: &mut ReadStats,
    ) -> Result<Option<Bytes>, ReadError> {
        let grid = slice.dataset.attributes.grid();
        let mut covering = grid.covering(&slice.region);
        let (1, Some(position)) = (covering.total(), covering.next()) else { return Ok(None) };
        let starts_at_origin = slice
            .region
            .start()
            .iter()
            .zip(grid.origin(&position))
            .all(|(s, o)| u64::try_from(*s).is_ok_and(|start| start == o));
        let contiguous = slice.region.step().iter().zip(slice.region.shape()).all(|(step, n)| *step == 1 || *n == 1);
        if !starts_at_origin || !contiguous || *slice.region.shape() != grid.clipped_size(&position) {
            return Ok(None);
        }
        if self.is_read_in_parts(slice, &slice.region, &position) {
            return Ok(None);
        }
        let started = Instant::now();
        let blocks = &self.resources.blocks;
        let at = std::slice::from_ref(&position);
        let cached = blocks.cached(&*self.store, &slice.dataset, at, access.data_since);
        let cached = self.held(&slice.dataset, Box::pin(cached)).await?.pop().flatten();
        stats.cache += started.elapsed();
        let loaded = if let Some(loaded) = cached {
            stats.hits += 1;
            loaded
        } else {
            let load = blocks.load(self.place(&slice.dataset, &position), access.data_since);
            let (loaded, times) = self.held(&slice.dataset, Box::pin(load)).await?;
            stats.count_load(times);
            loaded
        };
        stats.count(&position, &loaded);
        let belief = self.believe_if(loaded.block.is_none(), access, &slice.dataset, at);
        self.held(&slice.dataset, Box::pin(belief)).await?;
        Ok(loaded.is_exactly(slice.region.shape()).map(|block| block.data.clone()))
    }
}
