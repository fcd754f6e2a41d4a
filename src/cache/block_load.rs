//! Loads of blocks into the cache of decoded blocks.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::backpressure;
use super::block_cache::{BlockCache, BlockLocation};
use super::block_entry::BlockEntry;
use super::block_source::{CachedVersion, SourceBlock, StoredBlock};
use super::block_waiters::BlockWaiters;
use super::error::ReadError;
use super::freshness;
use super::large_object::LargeObject;
use super::load_times::LoadTimes;
use super::validated::EntrySource;
use crate::fair_queue::FlightHandle;
use crate::metrics;
use n5_format::Block;

/// Pause before a damaged block is read again: another program may be writing it.
pub(crate) const TORN_READ_RETRY_DELAY: Duration = Duration::from_millis(20);

impl BlockCache {
    /// Loads the block at `location`, which a lookup has just missed. The result is no staler than `fresh_since`. The
    /// times are zero if another request loaded it.
    pub(crate) async fn load(
        &self,
        location: BlockLocation,
        fresh_since: u64,
    ) -> Result<(Arc<BlockEntry>, LoadTimes), ReadError> {
        let load = BlockLoad { blocks: self.clone(), location, fresh_since, times: LoadTimes::default() };
        let entry = self.entries.load(&load.location.cache_key(), fresh_since, &load).await?;
        entry.check_decodable(&load.location.dataset, &load.location.position)?;
        Ok((entry, load.times))
    }

    /// Reads a block that is too large for the transfer budget. One permit of the decode budget covers both reading and
    /// decoding, so that no two loads wait for each other's second permit.
    pub(crate) async fn read_large(
        &self,
        location: &BlockLocation,
        large: &LargeObject,
    ) -> Result<StoredBlock, ReadError> {
        let BlockLocation { source, dataset, position } = location;
        let key = dataset.block_key(position);
        let bytes = large.meta().len;
        let needed_bytes = Block::max_decode_memory_bytes(&dataset.attributes, bytes).saturating_add(bytes);
        let limit_bytes = self.block_bytes;
        if bytes > limit_bytes {
            return Err(ReadError::StoredTooLarge { key, bytes, limit_bytes });
        }
        let permit = self.memory.take(needed_bytes.min(limit_bytes)).await?;
        let reading = Box::pin(large.read_all());
        let bytes =
            backpressure::yield_if_contended(|| source.current_load(), &self.memory.budget, &key, reading).await??;
        Ok(StoredBlock { meta: large.meta().clone(), bytes, permit: Some(permit) })
    }
}

/// The load of one block.
#[derive(Debug, Clone)]
struct BlockLoad {
    blocks: BlockCache,
    location: BlockLocation,
    fresh_since: u64,
    times: LoadTimes,
}

impl EntrySource<BlockEntry> for BlockLoad {
    fn try_is_unchanged(&self, entry: &BlockEntry) -> Option<bool> {
        let BlockLocation { source, position, .. } = &self.location;
        source.try_is_unchanged(position, entry.version(), &entry.validated_at, freshness::now())
    }

    fn load(
        &self,
        stale: Option<Arc<BlockEntry>>,
        flight: FlightHandle,
    ) -> impl Future<Output = Result<Arc<BlockEntry>, ReadError>> + Send + 'static {
        let this = self.clone();
        // Not held while the new block waits for memory.
        let stale = stale.map(|stale| StaleBlock {
            entry: Arc::downgrade(&stale),
            etag_and_version: stale.etag_and_version.clone(),
        });
        async move {
            loop {
                let result = this.decode_with_retry(stale.as_ref(), &BlockWaiters::of_flight(&flight)).await;
                match result {
                    // Other requests may have joined just after the load was cancelled.
                    Err(ref error) if error.is_cancelled() && flight.has_waiters() => flight.attach(),
                    result => return result,
                }
                if !flight.has_waiters() {
                    // The last one left before it could abort the load.
                    return result;
                }
            }
        }
    }
}

/// A cached block that must be compared with its source.
struct StaleBlock {
    entry: Weak<BlockEntry>,
    etag_and_version: Option<(Arc<str>, u64)>,
}

impl BlockLoad {
    /// Loads and decodes the block, unless it is unchanged. A block that does not decode is read again. If it fails
    /// again and its file is unchanged, the failure is returned as an entry to cache.
    async fn decode_with_retry(
        &self,
        stale: Option<&StaleBlock>,
        waiters: &BlockWaiters,
    ) -> Result<Arc<BlockEntry>, ReadError> {
        let BlockLocation { dataset, position, .. } = &self.location;
        let first = self.decode_once(stale, self.fresh_since, waiters).await;
        if let Some(stale) = stale {
            let is_unchanged = first.as_ref().is_ok_and(|entry| Arc::as_ptr(entry) == stale.entry.as_ptr());
            self.blocks.entries.count_revalidation(stale.etag_and_version.is_none(), is_unchanged);
            if is_unchanged {
                self.times.set_unchanged();
                return first;
            }
        }
        let first_version =
            match first.as_ref().map(|entry| (entry.check_decodable(dataset, position), entry.version())) {
                Ok((Err(error), version)) if error.may_be_torn() => version,
                Ok((Err(error), _)) => return Err(error),
                Err(error) if error.may_be_torn() => None,
                Ok((Ok(()), _)) | Err(_) => return first,
            };
        tokio::time::sleep(TORN_READ_RETRY_DELAY).await;
        // The second attempt accepts nothing that was read before now.
        let second = self.decode_once(None, freshness::now(), waiters).await;
        let verdict =
            second.as_ref().map_or_else(|error| Err(error.clone()), |entry| entry.check_decodable(dataset, position));
        let Err(error) = verdict else { return second };
        if !error.is_cancelled() {
            metrics::decode_error(dataset.attributes.compression().label());
        }
        match second {
            Ok(entry) if error.may_be_torn() && entry.version() == first_version => Ok(entry),
            _ => Err(error),
        }
    }

    async fn decode_once(
        &self,
        stale: Option<&StaleBlock>,
        fresh_since: u64,
        waiters: &BlockWaiters,
    ) -> Result<Arc<BlockEntry>, ReadError> {
        let Self { blocks, location, times, .. } = self;
        let BlockLocation { source, position, .. } = location;
        let started = Instant::now();
        let known = stale
            .map(|stale| CachedVersion(stale.etag_and_version.as_ref().map(|(etag, version)| (&**etag, *version))));
        let (mut block, mut checked_at) = source.load(position, known, fresh_since).await?;
        if matches!(block, SourceBlock::Unchanged) {
            if let Some(stale) = stale.and_then(|stale| stale.entry.upgrade()) {
                stale.validated_at.touch(checked_at);
                return Ok(stale);
            }
            // It has been evicted meanwhile.
            (block, checked_at) = source.load(position, None, fresh_since).await?;
        }
        let stored = match block {
            SourceBlock::Unchanged | SourceBlock::Missing => return Ok(Arc::new(BlockEntry::missing(checked_at))),
            SourceBlock::Decoded(block, meta) => return Ok(Arc::new(BlockEntry::new(block, meta, checked_at))),
            SourceBlock::Stored(stored) => stored,
            SourceBlock::Large(large) => blocks.read_large(location, &large).await?,
        };
        times.add_store(started.elapsed());
        let meta = stored.meta.clone();
        Ok(Arc::new(match blocks.decode(location, stored, waiters, times).await? {
            Ok(block) => BlockEntry::new(block, meta, checked_at),
            Err(fault) => BlockEntry::undecodable(fault, meta, checked_at),
        }))
    }
}
