//! Loads blocks into the cache of decoded blocks. A stored block is read and decoded within the decode budget.
//!
//! Slices, derived results, statistics and `verify` load blocks with these functions. The steps are: determine the
//! size, take the memory, decode, attach the permit to the elements. The callers differ in what they may wait for and
//! in what they do with the block:
//!
//! | caller | waits | block |
//! |---|---|---|
//! | [`BlockCache::load`] | for the store, for memory, for a core | is cached |
//! | `read::check_block` | likewise | is dropped |
//! | `GatherContext::paste_through_cache` | never; gives up | is cached and pasted |
//! | `GatherContext::paste_uncached` | never; gives up | is pasted from a buffer that the job reuses |
//!
//! A caller that waits takes memory for the stored bytes first and for decoding second. If both come from the decode
//! budget, the caller takes one permit for both, so that callers cannot wait for each other. A caller that does not
//! wait may take memory in any order.

use std::cell::Cell;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::blocks::{BlockCache, BlockEntry, BlockLocation, BlockSource, BlockVersion, SourceBlock};
use super::budget::Permit;
use super::datasets::Dataset;
use super::error::ReadError;
use super::freshness::{self, FreshSince};
use super::objects::LargeObject;
use super::outages::RequestTimes;
use super::validated::{CacheEntry, EntrySource};
use crate::runtime::cpu_pool::{CoreLease, Priority};
use crate::runtime::fair_queue::FlightHandle;
use crate::telemetry::metrics::{self, BudgetLabel};
use crate::telemetry::trace;
use n5_format::{Block, BlockDecoder, BlockError, CancelCheck, GridPosition, Scratch};

/// Pause before a block that cannot be decoded is read again, since another program may be writing the block.
pub(crate) const TORN_READ_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Time for which a block is decoded for the cache although no request is waiting for it any more. A client that
/// cancels its request and repeats it within this time, as viewers do, joins the running decoding. Otherwise a codec
/// slower than the client's timeout would never finish.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Times of a load, and true if the load found the cached block unchanged.
///
/// The atomics are relaxed: the values are read after the load has ended, and its end synchronizes memory.
#[derive(Debug, Default)]
pub(crate) struct LoadTimes {
    store_nanos: AtomicU64,
    decode_nanos: AtomicU64,
    is_unchanged: AtomicBool,
}

impl LoadTimes {
    /// Adds time spent on reading from the store.
    pub(crate) fn add_store(&self, elapsed: Duration) {
        Self::add(&self.store_nanos, elapsed);
    }

    /// Adds time spent on decoding, including the wait for a core.
    pub(crate) fn add_decode(&self, elapsed: Duration) {
        Self::add(&self.decode_nanos, elapsed);
    }

    fn add(total: &AtomicU64, elapsed: Duration) {
        total.fetch_add(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the time for reading and the time for decoding.
    pub(crate) fn totals(&self) -> [Duration; 2] {
        [&self.store_nanos, &self.decode_nanos].map(|total| Duration::from_nanos(total.load(Ordering::Relaxed)))
    }

    /// Returns true if the cached block was unchanged.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.is_unchanged.load(Ordering::Relaxed)
    }
}

/// The requests that may wait for a block that is being decoded.
#[derive(Debug, Clone)]
pub(crate) struct BlockWaiters {
    /// Alive as long as the request that started the decoding.
    requester: Weak<()>,
    /// The flight in which other requests wait for the block.
    flight: Option<FlightHandle>,
}

impl BlockWaiters {
    /// Creates waiters that consist of the request that holds `requester` and, if there is a flight, of all requests
    /// that wait for it.
    pub(crate) fn new(requester: Weak<()>, flight: Option<&FlightHandle>) -> Self {
        Self { requester, flight: flight.cloned() }
    }

    /// Creates waiters that consist of the requests that wait for `flight`.
    fn of_flight(flight: &FlightHandle) -> Self {
        Self::new(Weak::new(), Some(flight))
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.requester.strong_count() > 0 || self.flight.as_ref().is_some_and(FlightHandle::has_waiters)
    }

    /// Returns a function that the decoder calls to ask if it should continue. Each call first lets another job use the
    /// core, if one is waiting for it.
    pub(crate) fn should_continue<'a>(&'a self, lease: &'a CoreLease) -> impl Fn() -> bool + 'a {
        let last_waiter_at = Cell::new(Instant::now());
        move || {
            lease.yield_if_contended();
            if self.has_waiters() {
                last_waiter_at.set(Instant::now());
                return true;
            }
            self.flight.is_some() && last_waiter_at.get().elapsed() < GRACE_PERIOD
        }
    }
}

impl BlockCache {
    /// Returns true if a cached block is usable. If it is not fresh, lets it be revalidated in the background.
    pub(super) fn is_fresh_or_renewed(
        &self,
        source: &dyn BlockSource,
        position: &GridPosition,
        entry: &Arc<BlockEntry>,
        fresh_since: FreshSince,
    ) -> bool {
        if entry.is_fresh(fresh_since) {
            return true;
        }
        if !entry.is_usable(fresh_since) {
            return false;
        }
        let Some(location) = source.location(position) else { return false };
        let key = (location.dataset.id, position.clone());
        let load = BlockLoad { blocks: self.clone(), location, fresh_since, times: Arc::default() };
        self.entries.is_fresh_or_renewed(&key, entry, fresh_since, &load)
    }

    /// Loads the block at `location` as it was at `fresh_since` or later, after a lookup did not find it in the cache.
    /// The returned times are zero if another request loaded the block.
    pub(crate) async fn load(
        &self,
        location: BlockLocation,
        fresh_since: FreshSince,
    ) -> Result<(Arc<BlockEntry>, Arc<LoadTimes>), ReadError> {
        let load = BlockLoad { blocks: self.clone(), location, fresh_since, times: Arc::default() };
        let BlockLocation { dataset, position, .. } = &load.location;
        let entry = self.entries.load(&(dataset.id, position.clone()), fresh_since, &load).await?;
        entry.check_decodable(dataset, position)?;
        Ok((entry, load.times))
    }
}

/// The load of one block.
#[derive(Debug, Clone)]
struct BlockLoad {
    blocks: BlockCache,
    location: BlockLocation,
    fresh_since: FreshSince,
    times: Arc<LoadTimes>,
}

impl EntrySource<BlockEntry> for BlockLoad {
    fn try_is_unchanged(&self, entry: &BlockEntry) -> Option<bool> {
        let BlockLocation { source, position, .. } = &self.location;
        source.try_is_unchanged(position, entry.version.number(), &entry.validated_at, freshness::now())
    }

    fn known_missing(&self, fresh_since: FreshSince) -> Option<BlockEntry> {
        let BlockLocation { source, position, .. } = &self.location;
        source.known_missing(position, fresh_since).map(BlockEntry::known_missing)
    }

    fn load(
        &self,
        stale: Option<Arc<BlockEntry>>,
        flight: FlightHandle,
    ) -> impl Future<Output = Result<Arc<BlockEntry>, ReadError>> + Send + 'static {
        let this = self.clone();
        // The stale block is not held while the new one is waiting for memory.
        let stale = stale.map(|stale| (Arc::downgrade(&stale), stale.version.clone()));
        async move {
            loop {
                match this.decode_with_retry(stale.as_ref(), &flight).await {
                    // Requests that joined just after the decoding was cancelled still want the block. They may have
                    // left while the flight was detached, when they could not abort the load.
                    Err(error) if error.is_cancelled() && flight.has_waiters() => {
                        flight.attach();
                        if !flight.has_waiters() {
                            return Err(error);
                        }
                    }
                    result => return result,
                }
            }
        }
    }
}

impl BlockLoad {
    /// Loads and decodes the block, unless it is unchanged. A block that cannot be decoded is read a second time. If
    /// that fails, too, and the file is unchanged, returns the failure as an entry to be cached.
    async fn decode_with_retry(
        &self,
        stale: Option<&(Weak<BlockEntry>, BlockVersion)>,
        flight: &FlightHandle,
    ) -> Result<Arc<BlockEntry>, ReadError> {
        let first = self.decode_once(stale, self.fresh_since, flight).await;
        if let Some((stale_entry, version)) = stale {
            let is_unchanged = first.as_ref().is_ok_and(|entry| Arc::as_ptr(entry) == stale_entry.as_ptr());
            self.blocks.entries.count_revalidation(version.etag_and_version().is_none(), is_unchanged);
            if is_unchanged {
                self.times.is_unchanged.store(true, Ordering::Relaxed);
                return first;
            }
        }
        let Some(error) = self.failure(&first) else { return first };
        if !error.may_be_torn() {
            return Err(error);
        }
        let first_version = first.ok().and_then(|entry| entry.version.number());
        tokio::time::sleep(TORN_READ_RETRY_DELAY).await;
        // The second attempt accepts nothing that was read before now.
        let second = self.decode_once(None, freshness::now().into(), flight).await;
        let Some(error) = self.failure(&second) else { return second };
        if !error.is_cancelled() {
            metrics::decode_error(self.location.dataset.attributes.compression().label());
        }
        match second {
            Ok(entry) if error.may_be_torn() && entry.version.number() == first_version => Ok(entry),
            _ => Err(error),
        }
    }

    /// Returns the error of a failed load, or of a block that cannot be decoded.
    fn failure(&self, loaded: &Result<Arc<BlockEntry>, ReadError>) -> Option<ReadError> {
        let BlockLocation { dataset, position, .. } = &self.location;
        match loaded {
            Ok(entry) => entry.check_decodable(dataset, position).err(),
            Err(error) => Some(error.clone()),
        }
    }

    /// Loads and decodes the block, unless it is unchanged.
    async fn decode_once(
        &self,
        stale: Option<&(Weak<BlockEntry>, BlockVersion)>,
        fresh_since: FreshSince,
        flight: &FlightHandle,
    ) -> Result<Arc<BlockEntry>, ReadError> {
        let Self { blocks, location, times, .. } = self;
        let BlockLocation { source, position, .. } = location;
        let started = Instant::now();
        let known = stale.map(|(_, version)| version);
        let (mut block, mut checked_at) = source.load(position, known, fresh_since).await?;
        if matches!(block, SourceBlock::Unchanged) {
            if let Some(stale) = stale.and_then(|(entry, _)| entry.upgrade()) {
                stale.validated_at.touch(checked_at);
                return Ok(stale);
            }
            // The cached block has been evicted meanwhile.
            (block, checked_at) = source.load(position, None, fresh_since).await?;
        }
        let (meta, bytes, permit) = match block {
            SourceBlock::Unchanged | SourceBlock::Missing => {
                let is_remembered = source.remember_missing(position, RequestTimes::since(checked_at));
                let hole = if is_remembered { BlockEntry::known_missing } else { BlockEntry::missing };
                return Ok(Arc::new(hole(checked_at)));
            }
            SourceBlock::Decoded(block, meta) => return Ok(Arc::new(BlockEntry::new(Ok(block), meta, checked_at))),
            SourceBlock::Stored { meta, bytes, permit } => (meta, bytes, permit),
            SourceBlock::Large(large) => {
                let (bytes, permit) = blocks.read_large(location, &large).await?;
                (large.meta().clone(), bytes, permit)
            }
        };
        times.add_store(started.elapsed());
        let waiters = BlockWaiters::of_flight(flight);
        let decoded = match blocks.decode(location, bytes, permit, waiters, times).await {
            Ok(block) => Ok(block),
            Err(ReadError::Block { error, .. }) => Err(error),
            Err(error) => return Err(error),
        };
        Ok(Arc::new(BlockEntry::new(decoded, meta, checked_at)))
    }
}

impl BlockCache {
    /// Reads a stored block that is too large for the transfer budget. One permit of the decode budget covers both
    /// reading and decoding, so that no two loads wait for each other's second permit. Returns the arguments of
    /// [`Self::decode`].
    pub(crate) async fn read_large(
        &self,
        location: &BlockLocation,
        large: &LargeObject,
    ) -> Result<(Bytes, Option<Permit>), ReadError> {
        let BlockLocation { source, dataset, position } = location;
        let key = dataset.block_key(position);
        let bytes = large.meta().len;
        let limit_bytes = self.block_bytes;
        let needed_bytes = Block::max_decode_memory_bytes(&dataset.attributes, bytes).saturating_add(bytes);
        if bytes > limit_bytes {
            return Err(ReadError::StoredTooLarge { key, bytes, limit_bytes });
        }
        let permit = self.entries.take(needed_bytes.min(limit_bytes)).await?;
        let reading = Box::pin(large.read_all());
        let bytes = self.budget().abort_if_contended(|| source.pressure(), &key, reading).await??;
        Ok((bytes, Some(permit)))
    }

    /// Decodes a stored block on the CPU pool, after taking memory for decoding. `permit` covers the bytes in `stored`.
    ///
    /// # Errors
    /// Returns [`ReadError::Block`] if the block cannot be decoded or exceeds the limit for one block;
    /// [`ReadError::Budget`] if there is not enough memory.
    pub(crate) async fn decode(
        &self,
        location: &BlockLocation,
        stored: Bytes,
        mut permit: Option<Permit>,
        waiters: BlockWaiters,
        times: &LoadTimes,
    ) -> Result<Block, ReadError> {
        let BlockLocation { dataset, position, .. } = location;
        let block_error = |error| dataset.block_error(position, error);
        let needed_bytes = self.decoder(dataset, position, &stored).map_err(block_error)?.memory_bytes();
        // A large block was read under a permit that also covers its decoding.
        let split = permit.as_mut().and_then(|permit| permit.try_split(BudgetLabel::Decode, needed_bytes));
        let decode_permit = match split {
            Some(part) => part,
            None => self.entries.take(needed_bytes).await?,
        };
        let started = Instant::now();
        // The job owns what it uses, because it continues for a while after its clients have disconnected, and its
        // result is then cached. Otherwise a client that retries faster than a slow codec decodes would never get the
        // block.
        let blocks = self.clone();
        let location = location.clone();
        let codec = dataset.attributes.compression().label();
        let flow = dataset.id;
        let job = move |lease: &CoreLease| {
            // The job cannot be interrupted from now on, even without waiters.
            if let Some(flight) = &waiters.flight {
                flight.detach();
            }
            let decode_started = Instant::now();
            let is_cached_object = permit.is_none();
            let should_continue = waiters.should_continue(lease);
            let cancel_check = CancelCheck::new(&should_continue);
            let mut scratch = Scratch::default();
            let block =
                blocks.decode_owned(&location, stored, is_cached_object, decode_permit, &mut scratch, cancel_check);
            drop(permit);
            // This time does not include the wait for a core. It is traced even if the block cannot be decoded, but
            // then does not count in the metrics.
            let elapsed = decode_started.elapsed();
            trace::record("decode", codec, elapsed);
            (block, elapsed)
        };
        let (block, elapsed) = self.cpu.run_cooperative(Priority::Low, flow, job).await?;
        let block = block.map_err(block_error)?;
        times.add_decode(started.elapsed());
        metrics::block_decoded(codec, elapsed);
        Ok(block)
    }

    /// Decodes `stored` into a block that the cache of decoded blocks may own. `permit` covers the memory that decoding
    /// takes. `is_cached_object` is true if `stored` belongs to the cache of stored objects. `scratch` is working
    /// memory of the decoder, which the caller may reuse.
    pub(crate) fn decode_owned(
        &self,
        location: &BlockLocation,
        stored: Bytes,
        is_cached_object: bool,
        mut permit: Permit,
        scratch: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<Block, BlockError> {
        let stored_range = stored.as_ptr_range();
        let BlockLocation { dataset, position, .. } = location;
        let budget = self.budget();
        let decoder = self.decoder(dataset, position, stored)?;
        // A codec that needs a buffer reuses the buffer of an evicted block of the same size, if there is one.
        let Block { size, data } = decoder.decode(|bytes| budget.exact_buffer(bytes), scratch, cancel_check)?;
        permit.shrink(data.len() as u64);
        // The cache of decoded blocks must not keep memory alive that the cache of stored objects counts. A block that
        // lies within the buffer of a file is copied, because the rest of that buffer would not go back to the pool.
        let is_part_of_file = !is_cached_object && stored_range.contains(&data.as_ptr());
        let data =
            if is_part_of_file { permit.own_for_cache(data, false) } else { budget.own_pooled_for_cache(data, permit) };
        Ok(Block { size, data })
    }

    /// Returns the decoder of `stored`, the block at `position`, which may take as much memory as one block may.
    ///
    /// # Errors
    /// Returns a [`BlockError`] if `stored` is not a valid block or exceeds that limit.
    pub(crate) fn decoder<'a, B: AsRef<[u8]>>(
        &self,
        dataset: &'a Dataset,
        position: &GridPosition,
        stored: B,
    ) -> Result<BlockDecoder<'a, B>, BlockError> {
        BlockDecoder::new(stored, &dataset.attributes, position, self.block_bytes)
    }
}

/// Records a decoded block in the metrics and the trace.
pub(crate) fn record_decode(codec: &'static str, elapsed: Duration) {
    metrics::block_decoded(codec, elapsed);
    trace::record("decode", codec, elapsed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::fair_queue::SingleFlight;

    #[test]
    fn decoding_continues_while_a_request_waits_and_for_a_grace_period_if_it_is_shared() {
        let (requester, flights) = (Arc::new(()), SingleFlight::<u8, ()>::default());
        let leader = flights.try_lead(1).unwrap();
        let lease = CoreLease::unshared();
        let unshared = BlockWaiters::new(Arc::downgrade(&requester), None);
        let shared = BlockWaiters::new(Arc::downgrade(&requester), Some(leader.handle()));
        assert!(unshared.has_waiters() && shared.has_waiters());
        let unshared_continues = unshared.should_continue(&lease);
        let shared_continues = shared.should_continue(&lease);
        drop(requester);
        assert!(!unshared.has_waiters() && !shared.has_waiters());
        assert!(!unshared_continues() && shared_continues());
        let (waiter, _) = flights.join(1);
        assert!(shared.has_waiters());
        drop(waiter);
        assert!(!shared.has_waiters());
    }
}
