//! Time spent on loads of blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Time spent on a load, and whether it found the cached block unchanged. Clones share both.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoadTimes(Arc<LoadTotals>);

#[derive(Debug, Default)]
struct LoadTotals {
    store_nanos: AtomicU64,
    decode_nanos: AtomicU64,
    is_unchanged: AtomicBool,
}

impl LoadTimes {
    /// Adds time for reading from the store.
    pub(crate) fn add_store(&self, elapsed: Duration) {
        Self::add(&self.0.store_nanos, elapsed);
    }

    /// Adds time for decoding, including the wait for a core.
    pub(crate) fn add_decode(&self, elapsed: Duration) {
        Self::add(&self.0.decode_nanos, elapsed);
    }

    /// Returns the time for reading and the time for decoding.
    pub(crate) fn totals(&self) -> [Duration; 2] {
        [&self.0.store_nanos, &self.0.decode_nanos].map(|total| Duration::from_nanos(total.load(Ordering::Relaxed)))
    }

    /// Notes that the cached block was unchanged.
    pub(crate) fn set_unchanged(&self) {
        self.0.is_unchanged.store(true, Ordering::Relaxed);
    }

    /// Returns true if the cached block was unchanged.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.0.is_unchanged.load(Ordering::Relaxed)
    }

    fn add(total: &AtomicU64, elapsed: Duration) {
        total.fetch_add(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
