//! The cache of decoded blocks: weighed in bytes, single flight; remembers holes and blocks that do not decode, no other errors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryFutureExt;
use moka::future::Cache;

use super::budget::Budget;
use super::footprint;
use super::fresh;
use super::hold;
use super::large::LargeObject;
pub(super) use super::loaded::Loaded;
use super::measured::measured;
use super::objects::{Objects, Source};
use super::permit::Permit;
use super::shared::share;
use super::wanted::Audience;
use super::{CacheSettings, Dataset, ReadError, cache_of, forget, nudging};
use crate::cpu::{Cpu, Length, Turn};
use crate::fair::{self, Joints, Keeper};
use crate::metrics::{self, Lookup, StoreOperation};
use crate::n5::{Block, BlockError, GridPosition, Watch};
use crate::store::{Key, Store};
use crate::trace;

const CACHE: metrics::Cache = metrics::Cache::Decoded;

/// Bookkeeping of one entry, in bytes, estimated generously.
const ENTRY_BYTES: usize = 768;

/// Pause before a damaged block is read once more: another program may be writing it.
pub(super) const SECOND_LOOK: Duration = Duration::from_millis(20);

/// How often a request looks again when what it finds keeps changing.
const ATTEMPTS: usize = 3;

/// Blocks that are re-checked at a glance: about 50 us, what a hop to a thread that may wait takes.
pub(super) const GLANCED: usize = 64;

/// What a load ends with when it leaves nothing to cache.
#[derive(Debug)]
pub(super) enum Failure {
    Read(ReadError),
    /// The request that tried must not wait; requests that may wait try again.
    NotAtOnce,
}

/// Time spent on one load.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LoadTimes {
    /// Reading from the store.
    pub(super) store: Duration,
    /// Decoding, with the wait for a core.
    pub(super) decode: Duration,
}

/// Dataset and position.
pub(super) type EntryKey = (u64, GridPosition);

/// The cache, shared by all containers.
#[derive(Debug, Clone)]
pub(super) struct Blocks {
    pub(super) cache: Cache<EntryKey, Arc<Loaded>>,
    pub(super) objects: Objects,
    pub(super) cpu: Cpu,
    pub(super) budget: Budget,
    /// Most bytes that one block may take while it is decoded.
    pub(super) block_bytes: u64,
    wait: Duration,
    /// The requests that wait for each load.
    pub(super) loading: Joints<EntryKey>,
}

/// Where a block is: everything a load needs.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) container: u32,
    pub(super) store: Arc<dyn Store>,
    pub(super) dataset: Arc<Dataset>,
    pub(super) position: GridPosition,
}

impl Place {
    pub(super) fn entry_key(&self) -> EntryKey {
        (self.dataset.id, self.position.clone())
    }
}

impl Blocks {
    pub(super) fn new(settings: CacheSettings, objects: Objects, cpu: Cpu, decode_bytes: u64, wait: Duration) -> Self {
        let cache = cache_of(CACHE, settings, |key: &EntryKey, loaded: &Arc<Loaded>| {
            let bytes = loaded.block.as_ref().map_or(0, |block| footprint::rounded(block.data.len()));
            let bytes = bytes + loaded.fault.as_ref().map_or(0, |fault| fault.to_string().len());
            // The position, in the key and in the map of who loads it.
            u32::try_from(bytes + ENTRY_BYTES + 16 * key.1.len()).unwrap_or(u32::MAX)
        });
        let budget = Budget::with_cache(metrics::Budget::Decode, settings.held_bytes(), decode_bytes, wait);
        Self { cache, objects, cpu, budget, block_bytes: decode_bytes, wait, loading: Joints::default() }
    }

    /// The same cache and budget, for whose memory is waited at most `wait`; what is read comes from `objects`
    /// and is decoded on `cpu`.
    pub(super) fn waiting(&self, wait: Duration, objects: &Objects, cpu: &Cpu) -> Self {
        Self { objects: objects.clone(), cpu: cpu.clone(), budget: self.budget.waiting(wait), wait, ..self.clone() }
    }

    /// The same cache and budget, for another container, which reads from `objects`.
    pub(super) fn of_one(&self, objects: &Objects) -> Self {
        Self { objects: objects.clone(), budget: self.budget.of_one(), ..self.clone() }
    }

    /// Cached bytes, for the metrics page.
    pub(super) fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }

    /// The cached ones among the blocks at `positions`, in their order, none staler than `since`.
    ///
    /// # Errors
    /// Also [`ReadError::Block`] where one of them is known not to decode.
    pub(super) async fn cached(
        &self,
        store: &dyn Store,
        dataset: &Dataset,
        positions: &[GridPosition],
        since: u64,
    ) -> Result<Vec<Option<Arc<Loaded>>>, ReadError> {
        let mut found = Vec::with_capacity(positions.len());
        let mut doubtful: Vec<usize> = Vec::new();
        for (n, position) in positions.iter().enumerate() {
            let loaded = self.cache.get(&(dataset.id, position.clone())).await;
            if loaded.as_ref().is_some_and(|loaded| !loaded.checked.is_fresh(since)) {
                doubtful.push(n);
            }
            found.push(loaded);
        }
        let moment = fresh::now();
        let mut changed = Vec::new();
        if doubtful.len() <= GLANCED {
            doubtful.retain(|n| {
                let Some(loaded) = &found[*n] else { return false };
                let key = dataset.block_key(&positions[*n]);
                let compared = loaded.checked.compare(store, &key, loaded.version(), moment);
                changed.extend((compared == Some(false)).then_some(*n));
                compared.is_none()
            });
        }
        if !doubtful.is_empty() {
            let keys = doubtful.iter().map(|n| dataset.block_key(&positions[*n])).collect();
            let metas = measured(StoreOperation::Head, store.backend(), store.head_many(keys)).await?;
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
            metrics::cache_requests(CACHE, Lookup::Stale, 1);
            forget(&self.cache, (dataset.id, positions[n].clone()), &loaded).await;
        }
        let (mut hits, mut holes) = (0, 0);
        for loaded in found.iter().flatten() {
            *if loaded.is_hole() { &mut holes } else { &mut hits } += 1;
        }
        metrics::cache_requests(CACHE, Lookup::Hit, hits);
        metrics::cache_requests(CACHE, Lookup::Absent, holes);
        metrics::cache_requests(CACHE, Lookup::Miss, positions.len() as u64 - hits - holes);
        for (position, loaded) in positions.iter().zip(&found) {
            if let Some(loaded) = loaded {
                loaded.sound(dataset, position)?;
            }
        }
        Ok(found)
    }

    /// Drops what is cached as missing at `positions`.
    pub(super) async fn forget_holes(&self, dataset: &Dataset, positions: &[GridPosition]) {
        for position in positions {
            let key = (dataset.id, position.clone());
            if self.cache.get(&key).await.is_some_and(|loaded| loaded.is_hole()) {
                self.cache.invalidate(&key).await;
            }
        }
    }

    /// The block at `place`, which was not cached a moment ago, no staler than `since`.
    pub(super) async fn load(&self, place: Place, since: u64) -> Result<(Arc<Loaded>, LoadTimes), ReadError> {
        let mut times = LoadTimes::default();
        // A load that others began may be older than this request: then it is compared once more.
        for _ in 0..ATTEMPTS {
            let loaded = self.load_shared(place.clone(), since, &mut times).await?;
            if loaded.checked.is_fresh(since) {
                loaded.sound(&place.dataset, &place.position)?;
                return Ok((loaded, times));
            }
            let at = std::slice::from_ref(&place.position);
            if let Some(Some(loaded)) = self.cached(&*place.store, &place.dataset, at, since).await?.pop() {
                return Ok((loaded, times));
            }
        }
        // The running task may have more to do than that, and is not kept for it.
        let asked = Arc::new(());
        let (keeper, audience) = (Keeper::default(), Audience::only(&asked));
        // Rare, and large: on the heap.
        let loaded = Box::pin(self.decode(&place, since, &mut times, &keeper, &audience)).await?;
        loaded.sound(&place.dataset, &place.position)?;
        Ok((loaded, times))
    }

    /// Loads a block once, however many requests want it. Adds to `times` only for the request that caused the load.
    async fn load_shared(&self, place: Place, since: u64, times: &mut LoadTimes) -> Result<Arc<Loaded>, ReadError> {
        let this = self.clone();
        let load = share(&self.loading, place.entry_key(), async move {
            let (mut times, keeper) = (LoadTimes::default(), fair::keeper());
            let audience = Audience::of(&this.loading, place.entry_key());
            let loaded = loop {
                let load = this.decode(&place, since, &mut times, &keeper, &audience);
                let load = fair::leading(load.map_err(Failure::Read));
                match this.cache.try_get_with(place.entry_key(), load).await {
                    Ok(loaded) => break Ok(loaded),
                    Err(failure) => {
                        // Others may have come when it had just been given up.
                        match &*failure {
                            Failure::Read(error) if error.is_abandoned() && audience.is_waiting() => {}
                            Failure::Read(error) => break Err(error.clone()),
                            Failure::NotAtOnce => {}
                        }
                    }
                }
            };
            // Evicts at once what no longer fits, instead of when the cache's own queue is full.
            this.cache.run_pending_tasks().await;
            (loaded, times)
        });
        let (loaded, spent) = load.await?;
        times.store += spent.store;
        times.decode += spent.decode;
        loaded
    }

    /// The block at `place`. One that does not decode is read once more; where it is still the same then, and so is its
    /// file, that is what comes of it, to be remembered.
    async fn decode(
        &self,
        place: &Place,
        since: u64,
        times: &mut LoadTimes,
        keeper: &Keeper,
        audience: &Audience,
    ) -> Result<Arc<Loaded>, ReadError> {
        let (dataset, position) = (&place.dataset, &place.position);
        let first = self.decode_once(place, since, times, keeper, audience).await;
        let seen = match first.as_ref().map(|loaded| (loaded.sound(dataset, position), loaded.version())) {
            Ok((Err(error), version)) if error.may_be_torn() => version,
            Ok((Err(error), _)) => return Err(error),
            Err(error) if error.may_be_torn() => None,
            Ok((Ok(()), _)) | Err(_) => return first,
        };
        tokio::time::sleep(SECOND_LOOK).await;
        // Nothing read before now counts for the second look.
        let again = self.decode_once(place, fresh::now(), times, keeper, audience).await;
        let verdict = again.as_ref().map_or_else(|error| Err(error.clone()), |loaded| loaded.sound(dataset, position));
        let Err(error) = verdict else { return again };
        if !error.is_abandoned() {
            metrics::decode_error(dataset.attributes.compression().label());
        }
        match again {
            Ok(loaded) if error.may_be_torn() && loaded.version() == seen => Ok(loaded),
            _ => Err(error),
        }
    }

    async fn decode_once(
        &self,
        place: &Place,
        since: u64,
        times: &mut LoadTimes,
        keeper: &Keeper,
        audience: &Audience,
    ) -> Result<Arc<Loaded>, ReadError> {
        let Place { container, store, dataset, position } = place;
        let now = fresh::now();
        let key = dataset.block_key(position);
        let started = Instant::now();
        let source = self.objects.read(*container, &**store, &key, since).await?;
        let (meta, bytes, checked, mut permit, is_shared) = match source {
            Source::Missing(checked) => return Ok(Arc::new(Loaded::hole(checked))),
            Source::Cached { meta, bytes, checked } => (meta, bytes, checked, None, true),
            Source::Read { meta, bytes, permit } => (meta, bytes, now, Some(permit), false),
            Source::Open(large) => {
                let (bytes, permit) = self.read_large(&**store, dataset, &key, &large).await?;
                (large.meta().clone(), bytes, now, Some(permit), false)
            }
        };
        times.store += started.elapsed();
        let blame = |error| ReadError::Block { key: key.clone(), position: position.clone(), error };
        let attributes = &dataset.attributes;
        let needed_bytes = match Block::decoding_bytes(&bytes, attributes, position) {
            Ok(needed_bytes) => needed_bytes,
            Err(fault) => return Ok(Arc::new(Loaded::faulty(fault, meta, checked))),
        };
        let decoding = self
            .share_for(needed_bytes, permit.as_mut())
            .await?
            .ok_or_else(|| blame(BlockError::OverLimit { needed_bytes, limit_bytes: self.block_bytes }))?;
        let started = Instant::now();
        let (job, at, limit) = (Arc::clone(dataset), position.clone(), self.block_bytes);
        // The job holds what it uses: it runs on for a while after its clients have gone, and its result is kept. Otherwise a
        // client that asks again faster than a slow codec decodes would never have the block.
        let (budget, keeper, audience) = (self.budget.clone(), keeper.clone(), audience.clone());
        let job = move |turn: &Turn| {
            keeper.keep();
            let range = bytes.as_ptr_range();
            let mut room = budget.room(&bytes, &job.attributes, &at);
            let block =
                Block::decode_with(bytes, &job.attributes, &at, limit, &mut room, Watch::new(&audience.watched(turn)))?;
            let mut decoding = decoding;
            decoding.shrink(block.data.len() as u64);
            let decoding = decoding.of_cache();
            drop(permit);
            // What the cache of stored objects counts must not live on in this one; and what a file's buffer holds besides
            // these bytes would not go back to the pool.
            let is_stored = range.contains(&block.data.as_ptr());
            let data = if !is_shared && is_stored || footprint::is_copied(&block.data) {
                decoding.own(footprint::cached(block.data, !is_stored))
            } else {
                budget.own(block.data.into(), decoding)
            };
            Ok(Block { size: block.size, data })
        };
        let codec = attributes.compression().label();
        // The wait for a core is counted where it is waited.
        let job = move |turn: &Turn| {
            let began = Instant::now();
            let block = job(turn);
            trace::record("decode", codec, began.elapsed());
            (block, began.elapsed())
        };
        let (block, elapsed) = self.cpu.run_in_turns(Length::Long, dataset.id, job).await?;
        let block = match block {
            Ok(block) => block,
            Err(fault) => return Ok(Arc::new(Loaded::faulty(fault, meta, checked))),
        };
        times.decode += started.elapsed();
        metrics::block_decoded(codec, elapsed);
        Ok(Arc::new(Loaded::new(block, meta, checked)))
    }

    /// A share of the decode budget for a block that was read under `permit`; `None` for one that no share is enough for.
    pub(super) async fn share_for(
        &self,
        needed_bytes: u64,
        permit: Option<&mut Permit>,
    ) -> Result<Option<Permit>, ReadError> {
        if needed_bytes > self.block_bytes {
            return Ok(None);
        }
        // A large block has brought its share with it.
        let held = permit.and_then(|permit| permit.split_of(metrics::Budget::Decode, needed_bytes));
        Ok(Some(match held {
            Some(share) => share,
            None => self.take(needed_bytes).await?,
        }))
    }

    /// Reads a block that is too large for the transfer budget to be counted on: under one share of the decode
    /// budget that also covers its decoding, so that no two loads wait for each other's second half.
    pub(super) async fn read_large(
        &self,
        store: &dyn Store,
        dataset: &Dataset,
        key: &Key,
        large: &LargeObject,
    ) -> Result<(Bytes, Permit), ReadError> {
        let bytes = large.meta().len;
        let needed = Block::most_decoding_bytes(&dataset.attributes, bytes).saturating_add(bytes);
        let limit_bytes = self.block_bytes;
        if bytes > limit_bytes {
            return Err(ReadError::StoredTooLarge { key: key.clone(), bytes, limit_bytes });
        }
        let permit = self.take(needed.min(limit_bytes)).await?;
        match hold::unless_needed(store, &self.budget, key, Box::pin(large.all())).await? {
            Ok(bytes) => Ok((bytes, permit)),
            Err(error) => Err(error),
        }
    }

    /// A share of the decode budget. The budget holds the whole cache besides what is in flight, so
    /// waiting is rare; what the cache evicts it frees a little later, and sooner when nudged.
    pub(super) async fn take(&self, bytes: u64) -> Result<Permit, ReadError> {
        nudging(&self.cache, &self.budget, bytes, self.budget.take_within(bytes, self.wait)).await
    }
}
