//! The cache of decoded blocks: weighed in bytes and filled with single flight. It remembers holes and blocks that do
//! not decode, but no other errors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryFutureExt;
use moka::future::Cache;

use super::backpressure;
pub(super) use super::block_entry::BlockEntry;
use super::block_waiters::BlockWaiters;
use super::budget::Budget;
use super::footprint;
use super::freshness;
use super::instrument::instrument;
use super::large_object::LargeObject;
use super::object_cache::{DecodeSource, ObjectCache};
use super::permit::Permit;
use super::single_flight::run_single_flight;
use super::{CacheSettings, Dataset, ReadError, acquire_with_eviction, invalidate_if_same, weighted_cache};
use crate::cpu_pool::{CoreLease, CpuPool, Priority};
use crate::fair_queue::{self, DetachHandle, SingleFlight};
use crate::metrics::{self, LookupResult, StoreOperation};
use crate::n5::{Block, BlockError, CancelCheck, GridPosition};
use crate::store::{Key, Store};
use crate::trace;

const CACHE: metrics::CacheLabel = metrics::CacheLabel::Decoded;

/// Bookkeeping of one entry in bytes, estimated generously.
const ENTRY_BYTES: usize = 768;

/// Pause before a damaged block is read again: another program may be writing it.
pub(super) const TORN_READ_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Maximum number of lookups by a request whose results keep changing.
const ATTEMPTS: usize = 3;

/// Maximum number of blocks that are revalidated without blocking. They take about 50 us, the time of handing the work
/// to a thread that may block.
pub(super) const MAX_NONBLOCKING_CHECKS: usize = 64;

/// Reason why a load leaves nothing to cache.
#[derive(Debug)]
pub(super) enum BlockLoadFailure {
    Read(ReadError),
    /// The request that tried must not block. Requests that may block try again.
    WouldBlock,
}

/// Time spent on one load.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LoadTimes {
    /// Time for reading from the store.
    pub(super) store: Duration,
    /// Time for decoding, including the wait for a core.
    pub(super) decode: Duration,
}

/// Key of a cached block: dataset id and grid position.
pub(super) type BlockCacheKey = (u64, GridPosition);

/// The cache of decoded blocks, shared by all containers.
#[derive(Debug, Clone)]
pub(super) struct BlockCache {
    pub(super) cache: Cache<BlockCacheKey, Arc<BlockEntry>>,
    pub(super) objects: ObjectCache,
    pub(super) cpu: CpuPool,
    pub(super) budget: Budget,
    /// Maximum number of bytes that one block may take while it is decoded.
    pub(super) block_bytes: u64,
    max_wait: Duration,
    /// Loads in flight, with the requests that wait for each.
    pub(super) loading: SingleFlight<BlockCacheKey>,
}

/// Location of a block, with everything that a load needs.
#[derive(Debug, Clone)]
pub(super) struct BlockLocation {
    pub(super) container: u32,
    pub(super) store: Arc<dyn Store>,
    pub(super) dataset: Arc<Dataset>,
    pub(super) position: GridPosition,
}

impl BlockLocation {
    pub(super) fn cache_key(&self) -> BlockCacheKey {
        (self.dataset.id, self.position.clone())
    }
}

impl BlockCache {
    pub(super) fn new(
        settings: CacheSettings,
        objects: ObjectCache,
        cpu: CpuPool,
        decode_bytes: u64,
        max_wait: Duration,
    ) -> Self {
        let cache = weighted_cache(CACHE, settings, |key: &BlockCacheKey, entry: &Arc<BlockEntry>| {
            let bytes = entry.block.as_ref().map_or(0, |block| footprint::footprint_bytes(block.data.len()));
            let bytes = bytes + entry.fault.as_ref().map_or(0, |fault| fault.to_string().len());
            // The position counts twice: in the key and in the map of loads in flight.
            u32::try_from(bytes + ENTRY_BYTES + 16 * key.1.len()).unwrap_or(u32::MAX)
        });
        let budget =
            Budget::with_cache(metrics::BudgetLabel::Decode, settings.max_weight_bytes(), decode_bytes, max_wait);
        Self { cache, objects, cpu, budget, block_bytes: decode_bytes, max_wait, loading: SingleFlight::default() }
    }

    /// Returns a handle to the same cache and budget that waits for memory at most `max_wait`, reads from `objects` and
    /// decodes on `cpu`.
    pub(super) fn with_max_wait(&self, max_wait: Duration, objects: &ObjectCache, cpu: &CpuPool) -> Self {
        Self {
            objects: objects.clone(),
            cpu: cpu.clone(),
            budget: self.budget.with_max_wait(max_wait),
            max_wait,
            ..self.clone()
        }
    }

    /// Returns a handle to the same cache and budget for another container, which reads from `objects`.
    pub(super) fn for_container(&self, objects: &ObjectCache) -> Self {
        Self { objects: objects.clone(), budget: self.budget.for_container(), ..self.clone() }
    }

    /// Returns the cached bytes, for the metrics page.
    pub(super) fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }

    /// Returns the cached blocks among those at `positions`, in their order, none staler than `fresh_since`.
    ///
    /// # Errors
    /// [`ReadError`] if the store fails; also [`ReadError::Block`] if one of the blocks is known not to decode.
    pub(super) async fn cached(
        &self,
        store: &dyn Store,
        dataset: &Dataset,
        positions: &[GridPosition],
        fresh_since: u64,
    ) -> Result<Vec<Option<Arc<BlockEntry>>>, ReadError> {
        let mut entries = Vec::with_capacity(positions.len());
        let mut stale_indices: Vec<usize> = Vec::new();
        for (n, position) in positions.iter().enumerate() {
            let entry = self.cache.get(&(dataset.id, position.clone())).await;
            if entry.as_ref().is_some_and(|entry| !entry.validated_at.is_fresh(fresh_since)) {
                stale_indices.push(n);
            }
            entries.push(entry);
        }
        let now = freshness::now();
        let mut changed = Vec::new();
        if stale_indices.len() <= MAX_NONBLOCKING_CHECKS {
            stale_indices.retain(|n| {
                let Some(entry) = &entries[*n] else { return false };
                let key = dataset.block_key(&positions[*n]);
                let is_unchanged = entry.validated_at.try_revalidate(store, &key, entry.version(), now);
                changed.extend((is_unchanged == Some(false)).then_some(*n));
                is_unchanged.is_none()
            });
        }
        if !stale_indices.is_empty() {
            let keys = stale_indices.iter().map(|n| dataset.block_key(&positions[*n])).collect();
            let metas = instrument(StoreOperation::Head, store.backend(), store.head_many(keys)).await?;
            for (n, meta) in stale_indices.iter().zip(metas) {
                let Some(entry) = &entries[*n] else { continue };
                if entry.version() == meta.map(|meta| meta.version) {
                    entry.validated_at.touch(now);
                } else {
                    changed.push(*n);
                }
            }
        }
        for n in changed {
            let Some(entry) = entries[n].take() else { continue };
            metrics::cache_requests(CACHE, LookupResult::Stale, 1);
            invalidate_if_same(&self.cache, (dataset.id, positions[n].clone()), &entry).await;
        }
        let (mut hits, mut missing) = (0, 0);
        for entry in entries.iter().flatten() {
            *if entry.is_missing() { &mut missing } else { &mut hits } += 1;
        }
        metrics::cache_requests(CACHE, LookupResult::Hit, hits);
        metrics::cache_requests(CACHE, LookupResult::Absent, missing);
        metrics::cache_requests(CACHE, LookupResult::Miss, positions.len() as u64 - hits - missing);
        for (position, entry) in positions.iter().zip(&entries) {
            if let Some(entry) = entry {
                entry.check_decodable(dataset, position)?;
            }
        }
        Ok(entries)
    }

    /// Removes the holes that are cached at `positions`.
    pub(super) async fn forget_missing_blocks(&self, dataset: &Dataset, positions: &[GridPosition]) {
        for position in positions {
            let key = (dataset.id, position.clone());
            if self.cache.get(&key).await.is_some_and(|entry| entry.is_missing()) {
                self.cache.invalidate(&key).await;
            }
        }
    }

    /// Loads the block at `location`, which a lookup has just missed. The result is no staler than `fresh_since`.
    pub(super) async fn load(
        &self,
        location: BlockLocation,
        fresh_since: u64,
    ) -> Result<(Arc<BlockEntry>, LoadTimes), ReadError> {
        let mut times = LoadTimes::default();
        // A load that another request started may be older than this request. Then the block is revalidated.
        for _ in 0..ATTEMPTS {
            let entry = self.load_shared(location.clone(), fresh_since, &mut times).await?;
            if entry.validated_at.is_fresh(fresh_since) {
                entry.check_decodable(&location.dataset, &location.position)?;
                return Ok((entry, times));
            }
            let positions = std::slice::from_ref(&location.position);
            if let Some(Some(entry)) =
                self.cached(&*location.store, &location.dataset, positions, fresh_since).await?.pop()
            {
                return Ok((entry, times));
            }
        }
        // The running task is not detached for this load, because it may have more to do.
        let requester = Arc::new(());
        let (detach_handle, waiters) = (DetachHandle::default(), BlockWaiters::of_request(&requester));
        // Boxed because it is rare and large.
        let entry =
            Box::pin(self.decode_with_retry(&location, fresh_since, &mut times, &detach_handle, &waiters)).await?;
        entry.check_decodable(&location.dataset, &location.position)?;
        Ok((entry, times))
    }

    /// Loads a block with single flight. Adds to `times` only for the request that caused the load.
    async fn load_shared(
        &self,
        location: BlockLocation,
        fresh_since: u64,
        times: &mut LoadTimes,
    ) -> Result<Arc<BlockEntry>, ReadError> {
        let this = self.clone();
        let load = run_single_flight(&self.loading, location.cache_key(), async move {
            let (mut times, detach_handle) = (LoadTimes::default(), fair_queue::detach_handle());
            let waiters = BlockWaiters::of_flight(&this.loading, location.cache_key());
            let entry = loop {
                let load = this.decode_with_retry(&location, fresh_since, &mut times, &detach_handle, &waiters);
                let load = fair_queue::lead(load.map_err(BlockLoadFailure::Read));
                match this.cache.try_get_with(location.cache_key(), load).await {
                    Ok(entry) => break Ok(entry),
                    Err(failure) => {
                        // Other requests may have joined just after the load was cancelled.
                        match &*failure {
                            BlockLoadFailure::Read(error) if error.is_cancelled() && waiters.has_waiters() => {}
                            BlockLoadFailure::Read(error) => break Err(error.clone()),
                            BlockLoadFailure::WouldBlock => {}
                        }
                    }
                }
            };
            // Evicts now what no longer fits, instead of when the cache's own queue is full.
            this.cache.run_pending_tasks().await;
            (entry, times)
        });
        let (entry, spent) = load.await?;
        times.store += spent.store;
        times.decode += spent.decode;
        entry
    }

    /// Loads and decodes the block at `location`. A block that does not decode is read again. If it fails again and its
    /// file is unchanged, the failure is returned as an entry to cache.
    async fn decode_with_retry(
        &self,
        location: &BlockLocation,
        fresh_since: u64,
        times: &mut LoadTimes,
        detach_handle: &DetachHandle,
        waiters: &BlockWaiters,
    ) -> Result<Arc<BlockEntry>, ReadError> {
        let (dataset, position) = (&location.dataset, &location.position);
        let first = self.decode_once(location, fresh_since, times, detach_handle, waiters).await;
        let first_version =
            match first.as_ref().map(|entry| (entry.check_decodable(dataset, position), entry.version())) {
                Ok((Err(error), version)) if error.may_be_torn() => version,
                Ok((Err(error), _)) => return Err(error),
                Err(error) if error.may_be_torn() => None,
                Ok((Ok(()), _)) | Err(_) => return first,
            };
        tokio::time::sleep(TORN_READ_RETRY_DELAY).await;
        // The second attempt accepts nothing that was read before now.
        let second = self.decode_once(location, freshness::now(), times, detach_handle, waiters).await;
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
        location: &BlockLocation,
        fresh_since: u64,
        times: &mut LoadTimes,
        detach_handle: &DetachHandle,
        waiters: &BlockWaiters,
    ) -> Result<Arc<BlockEntry>, ReadError> {
        let BlockLocation { container, store, dataset, position } = location;
        let now = freshness::now();
        let key = dataset.block_key(position);
        let started = Instant::now();
        let source = self.objects.read(*container, &**store, &key, fresh_since).await?;
        let (meta, bytes, checked_at, mut permit, is_shared) = match source {
            DecodeSource::Missing(checked_at) => return Ok(Arc::new(BlockEntry::missing(checked_at))),
            DecodeSource::Cached { meta, bytes, checked_at } => (meta, bytes, checked_at, None, true),
            DecodeSource::Read { meta, bytes, permit } => (meta, bytes, now, Some(permit), false),
            DecodeSource::Open(large) => {
                let (bytes, permit) = self.read_large(&**store, dataset, &key, &large).await?;
                (large.meta().clone(), bytes, now, Some(permit), false)
            }
        };
        times.store += started.elapsed();
        let block_error = |error| ReadError::Block { key: key.clone(), position: position.clone(), error };
        let attributes = &dataset.attributes;
        let needed_bytes = match Block::decode_memory_bytes(&bytes, attributes, position) {
            Ok(needed_bytes) => needed_bytes,
            Err(fault) => return Ok(Arc::new(BlockEntry::undecodable(fault, meta, checked_at))),
        };
        let decode_permit = self
            .decode_permit(needed_bytes, permit.as_mut())
            .await?
            .ok_or_else(|| block_error(BlockError::OverLimit { needed_bytes, limit_bytes: self.block_bytes }))?;
        let started = Instant::now();
        let (job_dataset, job_position, limit_bytes) = (Arc::clone(dataset), position.clone(), self.block_bytes);
        // The job holds what it uses. It continues for a while after its clients have disconnected, and its result is
        // cached. Otherwise a client that retries faster than a slow codec decodes would never get the block.
        let (budget, detach_handle, waiters) = (self.budget.clone(), detach_handle.clone(), waiters.clone());
        let decode = move |lease: &CoreLease| {
            detach_handle.detach();
            let range = bytes.as_ptr_range();
            let mut buffers = budget.decode_buffers(&bytes, &job_dataset.attributes, &job_position);
            let block = Block::decode_with(
                bytes,
                &job_dataset.attributes,
                &job_position,
                limit_bytes,
                &mut buffers,
                CancelCheck::new(&waiters.should_continue(lease)),
            )?;
            let mut decode_permit = decode_permit;
            decode_permit.shrink(block.data.len() as u64);
            let decode_permit = decode_permit.into_cache_owned();
            drop(permit);
            // This cache must not keep memory alive that the cache of stored objects counts. The bytes of a file's
            // buffer beside the block would not go back to the pool.
            let is_stored = range.contains(&block.data.as_ptr());
            let data = if !is_shared && is_stored || footprint::needs_copy(&block.data) {
                decode_permit.own(footprint::compact_for_cache(block.data, !is_stored))
            } else {
                budget.own(block.data.into(), decode_permit)
            };
            Ok(Block { size: block.size, data })
        };
        let codec = attributes.compression().label();
        // The wait for a core is measured separately.
        let timed_decode = move |lease: &CoreLease| {
            let decode_started = Instant::now();
            let block = decode(lease);
            trace::record("decode", codec, decode_started.elapsed());
            (block, decode_started.elapsed())
        };
        let (block, elapsed) = self.cpu.run_cooperative(Priority::Low, dataset.id, timed_decode).await?;
        let block = match block {
            Ok(block) => block,
            Err(fault) => return Ok(Arc::new(BlockEntry::undecodable(fault, meta, checked_at))),
        };
        times.decode += started.elapsed();
        metrics::block_decoded(codec, elapsed);
        Ok(Arc::new(BlockEntry::new(block, meta, checked_at)))
    }

    /// Takes a permit of the decode budget for a block that was read under `permit`. Returns `None` if the block
    /// exceeds the limit for one block.
    pub(super) async fn decode_permit(
        &self,
        needed_bytes: u64,
        permit: Option<&mut Permit>,
    ) -> Result<Option<Permit>, ReadError> {
        if needed_bytes > self.block_bytes {
            return Ok(None);
        }
        // A large block was read under a permit that also covers its decoding.
        let split = permit.and_then(|permit| permit.try_split(metrics::BudgetLabel::Decode, needed_bytes));
        Ok(Some(match split {
            Some(share) => share,
            None => self.take(needed_bytes).await?,
        }))
    }

    /// Reads a block that is too large for the transfer budget. One permit of the decode budget covers both reading and
    /// decoding, so that no two loads wait for each other's second permit.
    pub(super) async fn read_large(
        &self,
        store: &dyn Store,
        dataset: &Dataset,
        key: &Key,
        large: &LargeObject,
    ) -> Result<(Bytes, Permit), ReadError> {
        let bytes = large.meta().len;
        let needed_bytes = Block::max_decode_memory_bytes(&dataset.attributes, bytes).saturating_add(bytes);
        let limit_bytes = self.block_bytes;
        if bytes > limit_bytes {
            return Err(ReadError::StoredTooLarge { key: key.clone(), bytes, limit_bytes });
        }
        let permit = self.take(needed_bytes.min(limit_bytes)).await?;
        match backpressure::yield_if_contended(store, &self.budget, key, Box::pin(large.read_all())).await? {
            Ok(bytes) => Ok((bytes, permit)),
            Err(error) => Err(error),
        }
    }

    /// Takes a permit of the decode budget. The budget covers the whole cache besides the blocks in flight, so waiting
    /// is rare. Evicted entries free their memory with a delay, which is shorter while a request waits.
    pub(super) async fn take(&self, bytes: u64) -> Result<Permit, ReadError> {
        acquire_with_eviction(&self.cache, &self.budget, bytes, self.budget.take_within(bytes, self.max_wait)).await
    }
}
