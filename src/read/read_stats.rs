//! Counters and times of reading a slice, and the fingerprint of the blocks that were read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use super::plan::PlannedSlice;
use crate::cache::{
    self, BlockEntry, CacheEntry, Dataset, LoadTimes, MAX_NONBLOCKING_CHECKS, ReadError, ReadOptions, RequestTimes,
};
use crate::container::Container;
use crate::runtime::cpu_pool::Priority;
use crate::store::{CachedStat, Key, ObjectMeta, Store};
use n5_format::GridPosition;

/// Number of blocks that one job looks up. Such a job takes 1 to 2 ms.
const BATCH: usize = 1024;

/// Counters and times of a read.
#[derive(Debug, Clone, Default)]
pub struct ReadStats {
    /// Number of missing blocks.
    pub missing: u64,
    /// Number of blocks found in the cache, including holes.
    pub hits: u64,
    /// Number of blocks loaded, including holes.
    pub loaded: u64,
    /// Time spent looking up and revalidating cached blocks.
    pub cache: Duration,
    /// Time spent reading, summed over concurrent loads.
    pub store: Duration,
    /// Time spent decoding, summed over concurrent loads.
    pub decode: Duration,
    /// Time spent pasting, summed over concurrent jobs.
    pub assemble: Duration,
    /// Fingerprint of the blocks that were read.
    pub fingerprint: Fingerprint,
    /// Error of the first block that was skipped because it is damaged. No skipped block counts in the fingerprint.
    pub(crate) damage: Option<Box<ReadError>>,
    /// Oldest moment at which a block that was read had last been compared with the store.
    pub(crate) oldest_check: Option<u64>,
    /// Positions of the missing blocks; `None` if they are only counted.
    pub(crate) holes: Option<Vec<GridPosition>>,
}

impl ReadStats {
    /// Returns empty statistics which list the positions of holes if those of `container` must be confirmed.
    pub(crate) fn with_holes_of(container: &Container) -> Self {
        Self { holes: container.has_unreported_outages().then(Vec::new), ..Self::default() }
    }

    /// Counts a block that was found in the cache or loaded.
    pub(crate) fn count_block(&mut self, position: &GridPosition, entry: &BlockEntry) {
        self.count_stored(position, entry.version.etag_and_version(), entry.validated_at.nanoseconds());
    }

    /// Counts a block that was compared with the store at `checked_at`. `etag_and_version` is `None` for a hole.
    pub(crate) fn count_stored(
        &mut self,
        position: &GridPosition,
        etag_and_version: Option<(&str, u64)>,
        checked_at: u64,
    ) {
        if let Some((etag, version)) = etag_and_version {
            self.fingerprint.add(position, etag, version);
        } else {
            self.missing += 1;
            if let Some(holes) = &mut self.holes {
                holes.push(position.clone());
            }
        }
        self.oldest_check = Some(self.oldest_check.map_or(checked_at, |earlier| earlier.min(checked_at)));
    }

    fn count_state(&mut self, state: &BlockState) {
        let etag_and_version = state.etag_and_version.as_ref().map(|(etag, version)| (&**etag, *version));
        self.count_stored(&state.position, etag_and_version, state.checked_at);
    }

    /// Records a block that is left out because of `error`.
    ///
    /// # Errors
    /// Returns `error` if it is not about a single block, or if `is_allowed` is false.
    pub(crate) fn skip_damaged(&mut self, error: ReadError, is_allowed: bool) -> Result<(), ReadError> {
        if !is_allowed || !error.concerns_one_block() {
            return Err(error);
        }
        self.damage.get_or_insert_with(|| Box::new(error));
        Ok(())
    }

    /// Adds the counters of other blocks.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.missing += other.missing;
        self.hits += other.hits;
        self.loaded += other.loaded;
        self.cache += other.cache;
        self.store += other.store;
        self.decode += other.decode;
        self.assemble += other.assemble;
        self.fingerprint.merge(&other.fingerprint);
        if self.damage.is_none() {
            self.damage.clone_from(&other.damage);
        }
        self.oldest_check = [self.oldest_check, other.oldest_check].into_iter().flatten().min();
        if let (Some(holes), Some(others)) = (&mut self.holes, &other.holes) {
            holes.extend_from_slice(others);
        }
    }

    /// Records a load and the time that it took. A block that was unchanged in the store counts as a hit.
    pub(crate) fn count_load(&mut self, times: &LoadTimes) {
        let [store, decode] = times.totals();
        *if times.is_unchanged() { &mut self.hits } else { &mut self.loaded } += 1;
        self.store += store;
        self.decode += decode;
    }
}

/// Fingerprint of the existing blocks of a region: of their positions, entity tags and versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Hash of positions and entity tags. It is the same on every replica and after every restart.
    pub etags_hash: u128,
    /// Hash of positions and versions. It changes with every write.
    pub versions_hash: u64,
    /// Number of existing blocks.
    pub(crate) blocks: u64,
}

impl Fingerprint {
    /// Returns true if no block exists.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Adds an existing block.
    pub fn add(&mut self, position: &GridPosition, etag: &str, version: u64) {
        let seed =
            position.iter().fold(0u64, |seed, index| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(*index + 1));
        // A sum does not depend on the order of reading.
        self.etags_hash = self.etags_hash.wrapping_add(xxh3_128_with_seed(etag.as_bytes(), seed));
        self.versions_hash = self.versions_hash.wrapping_add(xxh3_64_with_seed(&version.to_le_bytes(), seed));
        self.blocks += 1;
    }

    fn merge(&mut self, other: &Self) {
        self.etags_hash = self.etags_hash.wrapping_add(other.etags_hash);
        self.versions_hash = self.versions_hash.wrapping_add(other.versions_hash);
        self.blocks += other.blocks;
    }
}

/// Returns the [`ReadStats::fingerprint`] of all blocks that `slice` touches, without reading them.
///
/// # Errors
/// Returns [`ReadError`] if the store fails.
pub async fn fingerprint(
    container: &Container,
    options: ReadOptions,
    slice: &PlannedSlice,
) -> Result<Fingerprint, ReadError> {
    Ok(compare_blocks(container, options, slice).await?.fingerprint)
}

/// Returns the fingerprint of all blocks that `slice` touches, the number of missing ones, and the oldest moment at
/// which one of them was compared with the store. Reads no blocks. Cached blocks of a store behind a network are
/// compared as often as the freshness policy asks for.
///
/// # Errors
/// Returns [`ReadError`] if the store fails.
pub(super) async fn compare_blocks(
    container: &Container,
    options: ReadOptions,
    slice: &PlannedSlice,
) -> Result<ReadStats, ReadError> {
    let mut stats = ReadStats::default();
    // If every block is compared anyway, the caches know nothing better.
    let uses_caches =
        container.store.sends_conditional_requests() || container.data_since(options).found < options.request_start;
    let mut positions = slice.dataset.attributes.grid().covering(&slice.region);
    loop {
        let batch: Vec<GridPosition> = positions.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            return Ok(stats);
        }
        let mut batch = batch;
        if uses_caches {
            let states;
            (states, batch) = cached_states(container, options, &slice.dataset, batch).await;
            for state in &states {
                stats.count_state(state);
            }
        }
        let store = Arc::clone(&container.store);
        let dataset = Arc::clone(&slice.dataset);
        let is_small = batch.len() <= MAX_NONBLOCKING_CHECKS;
        let probe = move || probe_cached(&*store, &dataset, batch);
        // Clients take turns: a slice may have a million blocks, and a client may request a thousand slices.
        let (known, unknown) = if is_small {
            probe()
        } else {
            options.pend_if_nonblocking().await;
            container.resources.cpu().run(Priority::Low, slice.dataset_id(), probe).await?
        };
        stats.merge(&known);
        if !unknown.is_empty() {
            options.pend_if_nonblocking().await;
            let states = requested_states(container, &slice.dataset, unknown).await?;
            for state in &states {
                stats.count_state(state);
            }
        }
    }
}

/// A block, and its version when it was last compared with the store.
pub(super) struct BlockState {
    pub(super) position: GridPosition,
    /// Entity tag and version; `None` for a hole.
    pub(super) etag_and_version: Option<(Arc<str>, u64)>,
    checked_at: u64,
}

/// Returns the states of the blocks of a dataset at `positions`, in their order. Reads no blocks. Blocks of a store
/// behind a network are requested only if no cache has a fresh state.
///
/// # Errors
/// Returns [`ReadError`] if the store fails, or if a missing block cannot be confirmed to be a hole.
pub(super) async fn block_states(
    container: &Container,
    options: ReadOptions,
    dataset: &Arc<Dataset>,
    positions: Vec<GridPosition>,
) -> Result<Vec<BlockState>, ReadError> {
    let order: HashMap<GridPosition, usize> = positions.iter().cloned().zip(0..).collect();
    let (mut states, others) = if container.store.sends_conditional_requests() {
        cached_states(container, options, dataset, positions).await
    } else {
        (Vec::new(), positions)
    };
    if !others.is_empty() {
        options.pend_if_nonblocking().await;
        states.extend(requested_states(container, dataset, others).await?);
    }
    let is_hole = |state: &&BlockState| state.etag_and_version.is_none();
    let holes: Vec<GridPosition> = states.iter().filter(is_hole).map(|state| state.position.clone()).collect();
    if !holes.is_empty() && container.has_unreported_outages() {
        container.confirm_missing(options, dataset, &holes).await?;
    }
    states.sort_by_key(|state| order.get(&state.position).copied());
    Ok(states)
}

/// Returns the states of those blocks that a cache has compared recently enough, and the positions of the others.
///
/// The caches are asked in the order in which a read asks them, so that a tag belongs to the bytes that are read.
async fn cached_states(
    container: &Container,
    options: ReadOptions,
    dataset: &Arc<Dataset>,
    positions: Vec<GridPosition>,
) -> (Vec<BlockState>, Vec<GridPosition>) {
    let fresh_since = container.data_since(options);
    let source = container.block_source(dataset);
    let is_remote = container.store.sends_conditional_requests();
    let owned = |(etag, version): (&str, u64)| (Arc::from(etag), version);
    let mut states = Vec::new();
    let mut others = Vec::new();
    for position in positions {
        let decoded = container.resources.blocks.entries.cached(&(dataset.id, position.clone())).await;
        let decoded = decoded.filter(|entry| entry.is_fresh(fresh_since));
        let mut state =
            decoded.map(|entry| (entry.version.etag_and_version().map(owned), entry.validated_at.nanoseconds()));
        // A block of a local directory is read from its file, even if it is among the stored objects.
        if state.is_none() && is_remote {
            let key = container.object_cache_key(&dataset.block_key(&position));
            let stored = container.object_entries().cached(&key).await.filter(|entry| entry.is_fresh(fresh_since));
            let existing = stored.as_ref().and_then(|entry| Some((entry.meta()?, entry.validated_at.nanoseconds())));
            state = existing.map(|(meta, checked_at)| (Some((Arc::clone(&meta.etag), meta.version)), checked_at));
        }
        let state = state.or_else(|| Some((None, source.known_missing(&position, fresh_since)?)));
        match state {
            Some((etag_and_version, checked_at)) => states.push(BlockState { position, etag_and_version, checked_at }),
            None => others.push(position),
        }
    }
    (states, others)
}

/// Requests the states of blocks from the store. Entries of the caches that equal them are fresh afterwards.
async fn requested_states(
    container: &Container,
    dataset: &Arc<Dataset>,
    positions: Vec<GridPosition>,
) -> Result<Vec<BlockState>, ReadError> {
    let keys: Vec<Key> = positions.iter().map(|position| dataset.block_key(position)).collect();
    let source = container.block_source(dataset);
    let checked_at = cache::now();
    let metas = container.store.head_many(keys.clone()).await?;
    let mut states = Vec::with_capacity(positions.len());
    for ((position, key), meta) in positions.into_iter().zip(keys).zip(metas) {
        if meta.is_none() {
            source.remember_missing(&position, RequestTimes::since(checked_at));
        }
        // A local directory is compared at every use.
        if container.store.sends_conditional_requests() {
            let version = meta.as_ref().map(|meta| meta.version);
            let decoded = container.resources.blocks.entries.cached(&(dataset.id, position.clone())).await;
            if let Some(entry) = decoded.filter(|entry| entry.version.number() == version) {
                entry.validated_at.touch(checked_at);
            }
            let stored = container.object_entries().cached(&container.object_cache_key(&key)).await;
            if let Some(entry) = stored.filter(|entry| entry.version() == version) {
                entry.validated_at.touch(checked_at);
            }
        }
        let etag_and_version = meta.map(|meta| (meta.etag, meta.version));
        states.push(BlockState { position, etag_and_version, checked_at });
    }
    Ok(states)
}

/// Returns the counts of those blocks at `positions` whose metadata are known without waiting. Also returns the
/// positions of the remaining blocks.
fn probe_cached(store: &dyn Store, dataset: &Dataset, positions: Vec<GridPosition>) -> (ReadStats, Vec<GridPosition>) {
    let checked_at = cache::now();
    let mut known = ReadStats::default();
    let mut unknown = Vec::new();
    for position in positions {
        let key = dataset.block_key(&position);
        match store.cached_stat(&key) {
            CachedStat::Object(raw_meta) => {
                let meta = ObjectMeta::from(raw_meta);
                known.count_stored(&position, Some((&meta.etag, meta.version)), checked_at);
            }
            CachedStat::Missing | CachedStat::NotAnObject => known.count_stored(&position, None, checked_at),
            CachedStat::Unknown | CachedStat::Held { .. } => unknown.push(position),
        }
    }
    (known, unknown)
}
