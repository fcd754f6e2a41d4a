//! Counters and times of reading a slice, and the fingerprint of the blocks that were read.

use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use super::plan::PlannedSlice;
use crate::cache::{
    self, BlockEntry, CacheEntry, Dataset, LoadTimes, MAX_NONBLOCKING_CHECKS, MissingKind, ReadError, ReadOptions,
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
}

impl ReadStats {
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
        match etag_and_version {
            Some((etag, version)) => self.fingerprint.add(position, etag, version),
            None => self.missing += 1,
        }
        self.oldest_check = Some(self.oldest_check.map_or(checked_at, |earlier| earlier.min(checked_at)));
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
    let mut positions = slice.dataset.attributes.grid().covering(&slice.region);
    loop {
        let batch: Vec<GridPosition> = positions.by_ref().take(BATCH).collect();
        if batch.is_empty() {
            return Ok(stats);
        }
        let store = Arc::clone(&container.store);
        let dataset = Arc::clone(&slice.dataset);
        let is_small = batch.len() <= MAX_NONBLOCKING_CHECKS;
        let probe = move || probe_cached(&*store, &dataset, batch);
        // Clients take turns: a slice may have a million blocks, and a client may request a thousand slices.
        let (known, mut unknown) = if is_small {
            probe()
        } else {
            options.pend_if_nonblocking().await;
            container.resources.cpu().run(Priority::Low, slice.dataset_id(), probe).await?
        };
        stats.merge(&known);
        if container.store.sends_conditional_requests() {
            unknown = count_cached(container, options, slice, unknown, &mut stats).await;
        }
        if unknown.is_empty() {
            continue;
        }
        options.pend_if_nonblocking().await;
        let (positions, keys): (Vec<_>, Vec<_>) = unknown.into_iter().unzip();
        let checked_at = cache::now();
        let metas = container.store.head_many(keys).await?;
        let source = container.block_source(&slice.dataset);
        for (position, meta) in positions.iter().zip(metas) {
            let version = meta.as_ref().map(|meta| meta.version);
            stats.count_stored(position, meta.as_ref().map(|meta| (&*meta.etag, meta.version)), checked_at);
            if version.is_none() {
                source.remember_missing(position, checked_at);
            }
            let cached = container.resources.blocks.entries.cached(&(slice.dataset.id, position.clone())).await;
            if let Some(entry) = cached.filter(|entry| entry.version.number() == version) {
                entry.validated_at.touch(checked_at);
            }
        }
    }
}

/// Counts those of `blocks` that are fresh in the cache of decoded blocks or known to be missing. Returns the others.
async fn count_cached(
    container: &Container,
    options: ReadOptions,
    slice: &PlannedSlice,
    blocks: Vec<(GridPosition, Key)>,
    stats: &mut ReadStats,
) -> Vec<(GridPosition, Key)> {
    let fresh_since = container.data_since(options);
    let names = container.missing_names();
    let mut others = Vec::new();
    for (position, key) in blocks {
        let cached = container.resources.blocks.entries.cached(&(slice.dataset.id, position.clone())).await;
        if let Some(entry) = cached.filter(|entry| entry.is_fresh(fresh_since)) {
            stats.count_block(&position, &entry);
        } else if let Some(checked_at) =
            names.as_ref().and_then(|names| names.checked_since(MissingKind::Object, &key, fresh_since))
        {
            stats.count_stored(&position, None, checked_at);
        } else {
            others.push((position, key));
        }
    }
    others
}

/// Returns the counts of those blocks at `positions` whose metadata are known without waiting. Also returns the
/// positions and keys of the remaining blocks.
fn probe_cached(
    store: &dyn Store,
    dataset: &Dataset,
    positions: Vec<GridPosition>,
) -> (ReadStats, Vec<(GridPosition, Key)>) {
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
            CachedStat::Unknown | CachedStat::Held { .. } => unknown.push((position, key)),
        }
    }
    (known, unknown)
}
