//! Counters of the disk cache, for metrics.

use std::sync::atomic::AtomicU64;

/// Counters since the start.
#[derive(Debug, Default)]
pub(super) struct DiskCacheCounters {
    pub(super) hits: AtomicU64,
    pub(super) stale: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) stored: AtomicU64,
    pub(super) dropped_by_queue: AtomicU64,
    pub(super) dropped_for_space: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) damaged: AtomicU64,
    pub(super) faults: AtomicU64,
}
