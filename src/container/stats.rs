//! What reading a slice took, and what its answer is told apart by.

use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use super::admit::Slice;
use super::blocks::{GLANCED, LoadTimes, Loaded};
use super::measured::measured;
use super::{Access, Container, Dataset, ReadError};
use crate::cpu::Length;
use crate::metrics::StoreOperation;
use crate::n5::GridPosition;
use crate::store::{Glance, Key, Meta, Store};

/// Blocks that are looked up in one job: a millisecond or two.
const BATCH: usize = 1024;

/// What reading took.
#[derive(Debug, Clone, Default)]
pub struct ReadStats {
    /// Blocks that do not exist.
    pub missing: u64,
    /// Blocks found in the cache, holes included.
    pub hits: u64,
    /// Blocks loaded, holes included.
    pub loaded: u64,
    /// Looking up and re-checking cached blocks.
    pub cache: Duration,
    /// Reading, summed over loads that ran side by side.
    pub store: Duration,
    /// Decoding, likewise.
    pub decode: Duration,
    /// Pasting, likewise.
    pub assemble: Duration,
    /// Tells apart what was read.
    pub fingerprint: Fingerprint,
    /// When the block that was compared with the store the longest ago was.
    pub(super) checked: Option<u64>,
}

impl ReadStats {
    pub(super) fn count(&mut self, position: &GridPosition, loaded: &Loaded) {
        let stored = loaded.stored.as_ref().map(|(etag, version)| (&**etag, *version));
        self.count_stored(position, stored, loaded.checked());
    }

    /// Counts a block, or the hole there, by entity tag and version of what is stored, as compared at `moment`.
    pub(super) fn count_stored(&mut self, position: &GridPosition, stored: Option<(&str, u64)>, moment: u64) {
        match stored {
            Some((etag, version)) => self.fingerprint.add(position, etag, version),
            None => self.missing += 1,
        }
        self.checked = Some(self.checked.map_or(moment, |earlier| earlier.min(moment)));
    }

    /// Adds what others counted of other blocks.
    pub(super) fn add(&mut self, other: &Self) {
        self.missing += other.missing;
        self.hits += other.hits;
        self.loaded += other.loaded;
        self.cache += other.cache;
        self.store += other.store;
        self.decode += other.decode;
        self.assemble += other.assemble;
        self.fingerprint.add_all(&other.fingerprint);
        self.checked = match (self.checked, other.checked) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    pub(super) fn count_load(&mut self, times: LoadTimes) {
        self.loaded += 1;
        self.store += times.store;
        self.decode += times.decode;
    }
}

/// Numbers that depend on every block of a region that exists, and on nothing else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// From positions and entity tags: equal on every replica and after every restart.
    pub tags: u128,
    /// From positions and versions: changes with every write.
    pub versions: u64,
    /// How many exist.
    pub(super) blocks: u64,
}

impl Fingerprint {
    /// Whether none exists.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Counts a block that exists.
    pub fn add(&mut self, position: &GridPosition, etag: &str, version: u64) {
        let seed = position.iter().fold(0u64, |seed, p| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(*p + 1));
        // Sums, so that the order of reading does not matter.
        self.tags = self.tags.wrapping_add(xxh3_128_with_seed(etag.as_bytes(), seed));
        self.versions = self.versions.wrapping_add(xxh3_64_with_seed(&version.to_le_bytes(), seed));
        self.blocks += 1;
    }

    fn add_all(&mut self, other: &Self) {
        self.tags = self.tags.wrapping_add(other.tags);
        self.versions = self.versions.wrapping_add(other.versions);
        self.blocks += other.blocks;
    }
}

impl Container {
    /// The [`ReadStats::fingerprint`] of every block that `slice` touches, without reading any.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn fingerprint(&self, access: Access, slice: &Slice) -> Result<Fingerprint, ReadError> {
        let mut sum = Fingerprint::default();
        let mut positions = slice.dataset.attributes.grid().covering(&slice.region);
        loop {
            let batch: Vec<GridPosition> = positions.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(sum);
            }
            let (store, dataset, is_small) =
                (Arc::clone(&self.store), Arc::clone(&slice.dataset), batch.len() <= GLANCED);
            let look = move || Looked::at(&*store, &dataset, batch);
            // Clients take turns: a slice may have a million blocks, and a client may ask for a thousand slices.
            let looked =
                if is_small { look() } else { self.resources.cpu().run(Length::Long, slice.party(), look).await? };
            sum.add_all(&looked.known);
            if looked.unknown.is_empty() {
                continue;
            }
            access.may_wait().await;
            let (positions, keys): (Vec<_>, Vec<_>) = looked.unknown.into_iter().unzip();
            let metas = measured(StoreOperation::Head, self.store.backend(), self.store.head_many(keys)).await?;
            for (position, meta) in positions.iter().zip(metas) {
                if let Some(meta) = meta {
                    sum.add(position, &meta.etag, meta.version);
                }
            }
        }
    }
}

/// What is found out about some blocks without waiting.
struct Looked {
    known: Fingerprint,
    unknown: Vec<(GridPosition, Key)>,
}

impl Looked {
    fn at(store: &dyn Store, dataset: &Dataset, positions: Vec<GridPosition>) -> Self {
        let mut looked = Self { known: Fingerprint::default(), unknown: Vec::new() };
        for position in positions {
            let key = dataset.block_key(&position);
            match store.glance(&key) {
                Glance::Object(facts) => {
                    let meta = Meta::from(facts);
                    looked.known.add(&position, &meta.etag, meta.version);
                }
                Glance::Missing | Glance::NoObject => {}
                Glance::Unknown => looked.unknown.push((position, key)),
            }
        }
        looked
    }
}
