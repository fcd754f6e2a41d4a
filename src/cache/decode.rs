//! Decoding of stored blocks within the decode budget: determine the size, take the memory, decode, own the elements.
//! For slices, derived results, statistics and `verify`.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::block_cache::{BlockCache, BlockLocation};
use super::block_source::StoredBlock;
use super::block_waiters::BlockWaiters;
use super::datasets::Dataset;
use super::error::ReadError;
use super::footprint;
use super::load_times::LoadTimes;
use super::permit::Permit;
use crate::cpu_pool::{CoreLease, Priority};
use crate::metrics;
use crate::trace;
use n5_format::{Block, BlockError, CancelCheck, Coords, DecodeBuffers, GridPosition, Scratch};

impl BlockCache {
    /// Decodes a stored block on the CPU pool. The memory for it is taken first. The error of a block that does not
    /// decode is the inner one.
    ///
    /// # Errors
    /// [`ReadError::Block`] if the block exceeds the limit for one block; [`ReadError::Budget`] when memory is short.
    pub(crate) async fn decode(
        &self,
        location: &BlockLocation,
        stored: StoredBlock,
        waiters: &BlockWaiters,
        times: &LoadTimes,
    ) -> Result<Result<Block, BlockError>, ReadError> {
        let BlockLocation { dataset, position, .. } = location;
        let StoredBlock { bytes, mut permit, .. } = stored;
        let needed_bytes = match Block::decode_memory_bytes(&bytes, &dataset.attributes, position) {
            Ok(needed_bytes) => needed_bytes,
            Err(fault) => return Ok(Err(fault)),
        };
        if needed_bytes > self.block_bytes {
            let error = BlockError::OverLimit { needed_bytes, limit_bytes: self.block_bytes };
            return Err(ReadError::Block { key: dataset.block_key(position), position: position.clone(), error });
        }
        // A large block was read under a permit that also covers its decoding.
        let split = permit.as_mut().and_then(|permit| permit.try_split(metrics::BudgetLabel::Decode, needed_bytes));
        let decode_permit = match split {
            Some(share) => share,
            None => self.memory.take(needed_bytes).await?,
        };
        let started = Instant::now();
        // The job holds what it uses. It continues for a while after its clients have disconnected, and its result is
        // cached. Otherwise a client that retries faster than a slow codec decodes would never get the block.
        let (blocks, location, waiters) = (self.clone(), location.clone(), waiters.clone());
        let (codec, flow) = (dataset.attributes.compression().label(), dataset.id);
        let job = move |lease: &CoreLease| {
            waiters.detach();
            let decode_started = Instant::now();
            let (is_shared, should_continue) = (permit.is_none(), waiters.should_continue(lease));
            let cancel_check = CancelCheck::new(&should_continue);
            let mut scratch = Scratch::default();
            let block = blocks.decode_owned(&location, bytes, is_shared, decode_permit, &mut scratch, cancel_check);
            drop(permit);
            // The wait for a core is not part of it.
            let elapsed = decode_started.elapsed();
            trace::record("decode", codec, elapsed);
            (block, elapsed)
        };
        let (block, elapsed) = self.cpu.run_cooperative(Priority::Low, flow, job).await?;
        if block.is_ok() {
            times.add_decode(started.elapsed());
            metrics::block_decoded(codec, elapsed);
        }
        Ok(block)
    }

    /// Decodes `stored` into a block that the cache of decoded blocks may own, under `permit` of the decode budget.
    /// `is_shared` is true if the bytes belong to another cache. The decoder works in `scratch`.
    pub(crate) fn decode_owned(
        &self,
        location: &BlockLocation,
        stored: Bytes,
        is_shared: bool,
        mut permit: Permit,
        scratch: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<Block, BlockError> {
        let (range, BlockLocation { dataset, position, .. }) = (stored.as_ptr_range(), location);
        let mut buffers = self.memory.budget.decode_buffers(&stored, &dataset.attributes, position);
        std::mem::swap(&mut buffers.scratch, scratch);
        let block =
            Block::decode_with(stored, &dataset.attributes, position, self.block_bytes, &mut buffers, cancel_check);
        *scratch = buffers.scratch;
        let Block { size, data } = block?;
        permit.shrink(data.len() as u64);
        let permit = permit.into_cache_owned();
        // This cache must not keep memory alive that the cache of stored objects counts. The bytes of a file's buffer
        // beside the block would not go back to the pool.
        let is_stored = range.contains(&data.as_ptr());
        let data = if !is_shared && is_stored || footprint::needs_copy(&data) {
            permit.own(footprint::compact_for_cache(data, !is_stored))
        } else {
            self.memory.budget.own(data.into(), permit)
        };
        Ok(Block { size, data })
    }

    /// Decompresses `stored` into `buffers`, for elements that are pasted at once and not kept. The caller holds a
    /// permit for [`Self::decode_bytes`]. Returns the size of the block and its elements, big-endian as stored.
    pub(crate) fn decode_in_place<'a>(
        &self,
        dataset: &Dataset,
        position: &GridPosition,
        stored: &'a [u8],
        buffers: &'a mut DecodeBuffers,
        cancel_check: CancelCheck<'_>,
    ) -> Option<(Coords, &'a [u8])> {
        let started = Instant::now();
        let block =
            Block::decompress(stored, &dataset.attributes, position, self.block_bytes, buffers, cancel_check).ok()?;
        record_decode(dataset.attributes.compression().label(), started.elapsed());
        Some(block)
    }

    /// Returns the bytes of memory that decoding `stored` takes, or `None` if it does not decode or exceeds the limit
    /// for one block.
    pub(crate) fn decode_bytes(&self, dataset: &Dataset, position: &GridPosition, stored: &[u8]) -> Option<u64> {
        let needed_bytes = Block::decode_memory_bytes(stored, &dataset.attributes, position).ok()?;
        (needed_bytes <= self.block_bytes).then_some(needed_bytes)
    }
}

/// Records a decoded block in the metrics and the trace.
pub(crate) fn record_decode(codec: &'static str, elapsed: Duration) {
    metrics::block_decoded(codec, elapsed);
    trace::record("decode", codec, elapsed);
}
