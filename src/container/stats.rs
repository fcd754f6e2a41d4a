//! What reading a slice took, and what its answer is told apart by.

use std::time::Duration;

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use super::blocks::{LoadTimes, Loaded};
use crate::n5::GridPosition;

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
    /// Pasting.
    pub assemble: Duration,
    /// Tells apart what was read.
    pub fingerprint: Fingerprint,
    /// When the block that was compared with the store the longest ago was.
    pub(super) checked: Option<u64>,
}

impl ReadStats {
    pub(super) fn count(&mut self, position: &GridPosition, loaded: &Loaded) {
        match &loaded.stored {
            Some((etag, version)) => self.fingerprint.add(position, etag, *version),
            None => self.missing += 1,
        }
        let moment = loaded.checked();
        self.checked = Some(self.checked.map_or(moment, |earlier| earlier.min(moment)));
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
    pub(super) versions: u64,
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
}
