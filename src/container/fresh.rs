//! When a cached entry must be compared with what the store holds now.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::ATTRIBUTES;
use crate::store::Key;

/// When cached entries are compared with the store's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recheck {
    /// Once by every request.
    Always,
    /// Never while they are cached.
    Never,
    /// When the last comparison is longer ago than this.
    After(Duration),
}

/// Age up to which a comparison counts as recent.
const RECENT_NANOSECONDS: u64 = 5_000_000_000;

/// What one request accepts from the caches: nothing compared with the store before these moments.
///
/// Made once at a request's start, so that all of its reads agree and none compares an entry twice.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// When the request began.
    pub(super) begun: u64,
    pub(super) metadata_since: u64,
    pub(super) data_since: u64,
}

impl Access {
    pub(super) fn begin(metadata: Recheck, data: Recheck) -> Self {
        let now = now();
        Self { begun: now, metadata_since: since(metadata, now), data_since: since(data, now) }
    }

    /// What is accepted of the stored object at `key`.
    pub(super) fn since(self, key: &Key) -> u64 {
        if key.name() == Some(ATTRIBUTES) { self.metadata_since } else { self.data_since }
    }
}

fn since(recheck: Recheck, now: u64) -> u64 {
    match recheck {
        Recheck::Always => now,
        Recheck::Never => 0,
        Recheck::After(age) => now.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
    }
}

/// The moment when an entry was last known to equal what the store holds.
#[derive(Debug)]
pub(super) struct Checked(AtomicU64);

impl Checked {
    pub(super) fn at(moment: u64) -> Self {
        Self(AtomicU64::new(moment))
    }

    pub(super) fn is_fresh(&self, since: u64) -> bool {
        self.0.load(Ordering::Relaxed) >= since
    }

    /// Whether the last comparison was so short ago that the store will have the object at hand.
    pub(super) fn is_recent(&self, now: u64) -> bool {
        self.is_fresh(now.saturating_sub(RECENT_NANOSECONDS))
    }

    pub(super) fn moment(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn touch(&self, moment: u64) {
        self.0.fetch_max(moment, Ordering::Relaxed);
    }
}

/// Nanoseconds since some moment before the first call; never 0.
pub(super) fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
}
