//! What reading a slice took, and what its answer is told apart by.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_128_with_seed;

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
    /// Depends on the position and entity tag of every block touched, and on nothing else.
    pub fingerprint: u128,
}

impl ReadStats {
    pub(super) fn count(&mut self, position: &GridPosition, loaded: &Loaded) {
        match &loaded.stored {
            Some((etag, _)) => self.fingerprint = self.fingerprint.wrapping_add(fingerprint(position, etag)),
            None => self.missing += 1,
        }
    }

    pub(super) fn count_load(&mut self, times: LoadTimes) {
        self.loaded += 1;
        self.store += times.store;
        self.decode += times.decode;
    }
}

/// A number that depends on a block's position and entity tag; those of many are added up in any order.
pub(super) fn fingerprint(position: &GridPosition, etag: &str) -> u128 {
    let seed = position.iter().fold(0u64, |seed, p| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(*p + 1));
    xxh3_128_with_seed(etag.as_bytes(), seed)
}
