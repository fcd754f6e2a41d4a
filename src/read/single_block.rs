//! Slices that are exactly one stored block. They share the cached block's buffer.

use std::time::Instant;

use bytes::Bytes;

use super::read_stats::ReadStats;
use super::slice_plan::PlannedSlice;
use crate::cache::error::ReadError;
use crate::cache::freshness::Freshness;
use crate::container::Container;
use crate::fair_queue::ClientId;

impl Container {
    /// As [`Self::single_block`], and charges the elements to the client while they are being sent.
    pub(crate) async fn single_block_to_send(
        &self,
        freshness: Freshness,
        slice: &PlannedSlice,
        stats: &mut ReadStats,
    ) -> Result<Option<Bytes>, ReadError> {
        let Some(bytes) = self.single_block(freshness, slice, stats).await? else { return Ok(None) };
        let budget = &self.resources.blocks.memory.budget;
        if let Some(charged) = budget.charge_to_client(ClientId::current(), &bytes) {
            return Ok(Some(charged));
        }
        // A request that waits for its client must not hold memory that other requests wait for.
        let len = bytes.len();
        drop(bytes);
        let permit = budget.acquire_send_permit(len).await?;
        *stats = ReadStats::default();
        let bytes = self.single_block(freshness, slice, stats).await?;
        Ok(bytes.map(|bytes| budget.charge_with_permit(permit, bytes)))
    }

    /// Returns the elements if `slice` is exactly one block, otherwise `None`.
    pub(crate) async fn single_block(
        &self,
        freshness: Freshness,
        slice: &PlannedSlice,
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
        let is_contiguous = slice.region.step().iter().zip(slice.region.shape()).all(|(step, n)| *step == 1 || *n == 1);
        if !starts_at_origin || !is_contiguous || *slice.region.shape() != grid.clipped_size(&position) {
            return Ok(None);
        }
        if self.is_read_in_parts(slice, &slice.region, &position) {
            return Ok(None);
        }
        let started = Instant::now();
        let blocks = &self.resources.blocks;
        let positions = std::slice::from_ref(&position);
        let location = self.block_location(&slice.dataset, &position);
        let cached = blocks.cached(&*location.source, &slice.dataset, positions, freshness.data_since);
        let cached = self.wait_or_yield(&slice.dataset, Box::pin(cached)).await?.pop().flatten();
        stats.cache += started.elapsed();
        let entry = if let Some(entry) = cached {
            stats.hits += 1;
            entry
        } else {
            let load = blocks.load(location, freshness.data_since);
            let (entry, times) = self.wait_or_yield(&slice.dataset, Box::pin(load)).await?;
            stats.count_load(&times);
            entry
        };
        stats.count_block(&position, &entry);
        let confirmation = self.confirm_missing_if(entry.block.is_none(), freshness, &slice.dataset, positions);
        self.wait_or_yield(&slice.dataset, Box::pin(confirmation)).await?;
        Ok(entry.block_of_size(slice.region.shape()).map(|block| block.data.clone()))
    }
}
