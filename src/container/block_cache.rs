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
    wait: Duration,
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
        wait: Duration,
    ) -> Self {
        let cache = weighted_cache(CACHE, settings, |key: &BlockCacheKey, loaded: &Arc<BlockEntry>| {
            let bytes = loaded.block.as_ref().map_or(0, |block| footprint::footprint_bytes(block.data.len()));
            let bytes = bytes + loaded.fault.as_ref().map_or(0, |fault| fault.to_string().len());
            // The position counts twice: in the key and in the map of loads in flight.
            u32::try_from(bytes + ENTRY_BYTES + 16 * key.1.len()).unwrap_or(u32::MAX)
        });
        let budget = Budget::with_cache(metrics::BudgetLabel::Decode, settings.max_weight_bytes(), decode_bytes, wait);
        Self { cache, objects, cpu, budget, block_bytes: decode_bytes, wait, loading: SingleFlight::default() }
    }

    /// Returns a handle to the same cache and budget that waits for memory at most `wait`, reads from `objects` and
    /// decodes on `cpu`.
    pub(super) fn with_wait(&self, wait: Duration, objects: &ObjectCache, cpu: &CpuPool) -> Self {
        Self { objects: objects.clone(), cpu: cpu.clone(), budget: self.budget.with_wait(wait), wait, ..self.clone() }
    }

    /// Returns a handle to the same cache and budget for another container, which reads from `objects`.
    pub(super) fn for_container(&self, objects: &ObjectCache) -> Self {
        Self { objects: objects.clone(), budget: self.budget.for_container(), ..self.clone() }
    }

    /// Returns the cached bytes, for the metrics page.
    pub(super) fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }

    /// Returns the cached blocks among those at `positions`, in their order, none staler than `since`.
    ///
    /// # Errors
    /// [`ReadError`] if the store fails; also [`ReadError::Block`] if one of the blocks is known not to decode.
    pub(super) async fn cached(
        &self,
        store: &dyn Store,
        dataset: &Dataset,
        positions: &[GridPosition],
        since: u64,
    ) -> Result<Vec<Option<Arc<BlockEntry>>>, ReadError> {
        let mut found = Vec::with_capacity(positions.len());
        let mut doubtful: Vec<usize> = Vec::new();
        for (n, position) in positions.iter().enumerate() {
            let loaded = self.cache.get(&(dataset.id, position.clone())).await;
            if loaded.as_ref().is_some_and(|loaded| !loaded.checked.is_fresh(since)) {
                doubtful.push(n);
            }
            found.push(loaded);
        }
        let moment = freshness::now();
        let mut changed = Vec::new();
        if doubtful.len() <= MAX_NONBLOCKING_CHECKS {
            doubtful.retain(|n| {
                let Some(loaded) = &found[*n] else { return false };
                let key = dataset.block_key(&positions[*n]);
                let compared = loaded.checked.try_revalidate(store, &key, loaded.version(), moment);
                changed.extend((compared == Some(false)).then_some(*n));
                compared.is_none()
            });
        }
        if !doubtful.is_empty() {
            let keys = doubtful.iter().map(|n| dataset.block_key(&positions[*n])).collect();
            let metas = instrument(StoreOperation::Head, store.backend(), store.head_many(keys)).await?;
            for (n, meta) in doubtful.iter().zip(metas) {
                let Some(loaded) = &found[*n] else { continue };
                if loaded.version() == meta.map(|meta| meta.version) {
                    loaded.checked.touch(moment);
                } else {
                    changed.push(*n);
                }
            }
        }
        for n in changed {
            let Some(loaded) = found[n].take() else { continue };
            metrics::cache_requests(CACHE, LookupResult::Stale, 1);
            invalidate_if_same(&self.cache, (dataset.id, positions[n].clone()), &loaded).await;
        }
        let (mut hits, mut holes) = (0, 0);
        for loaded in found.iter().flatten() {
            *if loaded.is_hole() { &mut holes } else { &mut hits } += 1;
        }
        metrics::cache_requests(CACHE, LookupResult::Hit, hits);
        metrics::cache_requests(CACHE, LookupResult::Absent, holes);
        metrics::cache_requests(CACHE, LookupResult::Miss, positions.len() as u64 - hits - holes);
        for (position, loaded) in positions.iter().zip(&found) {
            if let Some(loaded) = loaded {
                loaded.check_decodable(dataset, position)?;
            }
        }
        Ok(found)
    }

    /// Removes the holes that are cached at `positions`.
    pub(super) async fn forget_holes(&self, dataset: &Dataset, positions: &[GridPosition]) {
        for position in positions {
            let key = (dataset.id, position.clone());
            if self.cache.get(&key).await.is_some_and(|loaded| loaded.is_hole()) {
                self.cache.invalidate(&key).await;
            }
        }
    }

    /// Loads the block at `place`, which a lookup has just missed. The result is no staler than `since`.
    pub(super) async fn load(
        &self,
        place: BlockLocation,
        since: u64,
    ) -> Result<(Arc<BlockEntry>, LoadTimes), ReadError> {
        let mut times = LoadTimes::default();
        // A load that another request started may be older than this request. Then the block is revalidated.
        for _ in 0..ATTEMPTS {
            let loaded = self.load_shared(place.clone(), since, &mut times).await?;
            if loaded.checked.is_fresh(since) {
                loaded.check_decodable(&place.dataset, &place.position)?;
                return Ok((loaded, times));
            }
            let at = std::slice::from_ref(&place.position);
            if let Some(Some(loaded)) = self.cached(&*place.store, &place.dataset, at, since).await?.pop() {
                return Ok((loaded, times));
            }
        }
        // The running task is not detached for this load, because it may have more to do.
        let asked = Arc::new(());
        let (keeper, audience) = (DetachHandle::default(), BlockWaiters::of_request(&asked));
        // Boxed because it is rare and large.
        let loaded = Box::pin(self.decode_with_retry(&place, since, &mut times, &keeper, &audience)).await?;
        loaded.check_decodable(&place.dataset, &place.position)?;
        Ok((loaded, times))
    }

    /// Loads a block with single flight. Adds to `times` only for the request that caused the load.
    async fn load_shared(
        &self,
        place: BlockLocation,
        since: u64,
        times: &mut LoadTimes,
    ) -> Result<Arc<BlockEntry>, ReadError> {
        let this = self.clone();
        let load = run_single_flight(&self.loading, place.cache_key(), async move {
            let (mut times, keeper) = (LoadTimes::default(), fair_queue::detach_handle());
            let audience = BlockWaiters::of_flight(&this.loading, place.cache_key());
            let loaded = loop {
                let load = this.decode_with_retry(&place, since, &mut times, &keeper, &audience);
                let load = fair_queue::lead(load.map_err(BlockLoadFailure::Read));
                match this.cache.try_get_with(place.cache_key(), load).await {
                    Ok(loaded) => break Ok(loaded),
                    Err(failure) => {
                        // Other requests may have joined just after the load was cancelled.
                        match &*failure {
                            BlockLoadFailure::Read(error) if error.is_cancelled() && audience.has_waiters() => {}
                            BlockLoadFailure::Read(error) => break Err(error.clone()),
                            BlockLoadFailure::WouldBlock => {}
                        }
                    }
                }
            };
            // Evicts now what no longer fits, instead of when the cache's own queue is full.
            this.cache.run_pending_tasks().await;
            (loaded, times)
        });
        let (loaded, spent) = load.await?;
        times.store += spent.store;
        times.decode += spent.decode;
        loaded
    }

    /// Loads and decodes the block at `place`. A block that does not decode is read again. If it fails again and its
    /// file is unchanged, the failure is returned as an entry to cache.
    async fn decode_with_retry(
        &self,
        place: &BlockLocation,
        since: u64,
        times: &mut LoadTimes,
        keeper: &DetachHandle,
        audience: &BlockWaiters,
    ) -> Result<Arc<BlockEntry>, ReadError> {
        let (dataset, position) = (&place.dataset, &place.position);
        let first = self.decode_once(place, since, times, keeper, audience).await;
        let seen = match first.as_ref().map(|loaded| (loaded.check_decodable(dataset, position), loaded.version())) {
            Ok((Err(error), version)) if error.may_be_torn() => version,
            Ok((Err(error), _)) => return Err(error),
            Err(error) if error.may_be_torn() => None,
            Ok((Ok(()), _)) | Err(_) => return first,
        };
        tokio::time::sleep(TORN_READ_RETRY_DELAY).await;
        // The second attempt accepts nothing that was read before now.
        let again = self.decode_once(place, freshness::now(), times, keeper, audience).await;
        let verdict =
            again.as_ref().map_or_else(|error| Err(error.clone()), |loaded| loaded.check_decodable(dataset, position));
        let Err(error) = verdict else { return again };
        if !error.is_cancelled() {
            metrics::decode_error(dataset.attributes.compression().label());
        }
        match again {
            Ok(loaded) if error.may_be_torn() && loaded.version() == seen => Ok(loaded),
            _ => Err(error),
        }
    }

    async fn decode_once(
        &self,
        place: &BlockLocation,
        since: u64,
        times: &mut LoadTimes,
        keeper: &DetachHandle,
        audience: &BlockWaiters,
    ) -> Result<Arc<BlockEntry>, ReadError> {
        let BlockLocation { container, store, dataset, position } = place;
        let now = freshness::now();
        let key = dataset.block_key(position);
        let started = Instant::now();
        let source = self.objects.read(*container, &**store, &key, since).await?;
        let (meta, bytes, checked, mut permit, is_shared) = match source {
            DecodeSource::Missing(checked) => return Ok(Arc::new(BlockEntry::hole(checked))),
            DecodeSource::Cached { meta, bytes, checked } => (meta, bytes, checked, None, true),
            DecodeSource::Read { meta, bytes, permit } => (meta, bytes, now, Some(permit), false),
            DecodeSource::Open(large) => {
                let (bytes, permit) = self.read_large(&**store, dataset, &key, &large).await?;
                (large.meta().clone(), bytes, now, Some(permit), false)
            }
        };
        times.store += started.elapsed();
        let blame = |error| ReadError::Block { key: key.clone(), position: position.clone(), error };
        let attributes = &dataset.attributes;
        let needed_bytes = match Block::decode_memory_bytes(&bytes, attributes, position) {
            Ok(needed_bytes) => needed_bytes,
            Err(fault) => return Ok(Arc::new(BlockEntry::undecodable(fault, meta, checked))),
        };
        let decoding = self
            .decode_permit(needed_bytes, permit.as_mut())
            .await?
            .ok_or_else(|| blame(BlockError::OverLimit { needed_bytes, limit_bytes: self.block_bytes }))?;
        let started = Instant::now();
        let (job, at, limit) = (Arc::clone(dataset), position.clone(), self.block_bytes);
        // The job holds what it uses. It continues for a while after its clients have disconnected, and its result is
        // cached. Otherwise a client that retries faster than a slow codec decodes would never get the block.
        let (budget, keeper, audience) = (self.budget.clone(), keeper.clone(), audience.clone());
        let job = move |turn: &CoreLease| {
            keeper.detach();
            let range = bytes.as_ptr_range();
            let mut room = budget.decode_buffers(&bytes, &job.attributes, &at);
            let block = Block::decode_with(
                bytes,
                &job.attributes,
                &at,
                limit,
                &mut room,
                CancelCheck::new(&audience.should_continue(turn)),
            )?;
            let mut decoding = decoding;
            decoding.shrink(block.data.len() as u64);
            let decoding = decoding.into_cache_owned();
            drop(permit);
            // This cache must not keep memory alive that the cache of stored objects counts. The bytes of a file's
            // buffer beside the block would not go back to the pool.
            let is_stored = range.contains(&block.data.as_ptr());
            let data = if !is_shared && is_stored || footprint::needs_copy(&block.data) {
                decoding.own(footprint::compact_for_cache(block.data, !is_stored))
            } else {
                budget.own(block.data.into(), decoding)
            };
            Ok(Block { size: block.size, data })
        };
        let codec = attributes.compression().label();
        // The wait for a core is measured separately.
        let job = move |turn: &CoreLease| {
            let began = Instant::now();
            let block = job(turn);
            trace::record("decode", codec, began.elapsed());
            (block, began.elapsed())
        };
        let (block, elapsed) = self.cpu.run_cooperative(Priority::Low, dataset.id, job).await?;
        let block = match block {
            Ok(block) => block,
            Err(fault) => return Ok(Arc::new(BlockEntry::undecodable(fault, meta, checked))),
        };
        times.decode += started.elapsed();
        metrics::block_decoded(codec, elapsed);
        Ok(Arc::new(BlockEntry::new(block, meta, checked)))
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
        let held = permit.and_then(|permit| permit.try_split(metrics::BudgetLabel::Decode, needed_bytes));
        Ok(Some(match held {
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
        let needed = Block::max_decode_memory_bytes(&dataset.attributes, bytes).saturating_add(bytes);
        let limit_bytes = self.block_bytes;
        if bytes > limit_bytes {
            return Err(ReadError::StoredTooLarge { key: key.clone(), bytes, limit_bytes });
        }
        let permit = self.take(needed.min(limit_bytes)).await?;
        match backpressure::yield_if_contended(store, &self.budget, key, Box::pin(large.read_all())).await? {
            Ok(bytes) => Ok((bytes, permit)),
            Err(error) => Err(error),
        }
    }

    /// Takes a permit of the decode budget. The budget covers the whole cache besides the blocks in flight, so waiting
    /// is rare. Evicted entries free their memory with a delay, which is shorter while a request waits.
    pub(super) async fn take(&self, bytes: u64) -> Result<Permit, ReadError> {
        acquire_with_eviction(&self.cache, &self.budget, bytes, self.budget.take_within(bytes, self.wait)).await
    }
}
