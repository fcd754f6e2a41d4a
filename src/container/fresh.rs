//! When a cached entry must be compared with what the store holds now.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::ATTRIBUTES;
use crate::store::{Glance, Key, Store};

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

/// How long a look at an entry's whole path lets cheaper ones follow.
const RECENT_NANOSECONDS: u64 = 1_000_000_000;

/// What one request accepts from the caches: nothing compared with the store before these moments.
///
/// Made once at a request's start, so that all of its reads agree and none compares an entry twice.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// When the request began.
    pub(super) begun: u64,
    pub(super) metadata_since: u64,
    pub(super) data_since: u64,
    waits: bool,
}

impl Access {
    pub(super) fn begin(metadata: Recheck, data: Recheck) -> Self {
        let now = now();
        Self { begun: now, metadata_since: since(metadata, now), data_since: since(data, now), waits: true }
    }

    /// For whoever polls what it asks for once, and gives up what is not ready then: nothing is begun that outlasts that
    /// poll, and nothing counted.
    #[must_use]
    pub fn at_hand(self) -> Self {
        Self { waits: false, ..self }
    }

    /// Goes on where what follows may wait; elsewhere never.
    pub(super) async fn may_wait(self) {
        if !self.waits {
            std::future::pending::<()>().await;
        }
    }

    /// How often a look-up counts. What is given up is asked for again by somebody who waits, and counted there.
    pub(super) fn counted(self) -> u64 {
        u64::from(self.waits)
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

/// When an entry was last known to equal what the store holds.
#[derive(Debug)]
pub(super) struct Checked {
    moment: AtomicU64,
    /// When the store last saw it at a glance, its path included; 0 for never.
    looked: AtomicU64,
}

impl Checked {
    pub(super) fn at(moment: u64) -> Self {
        Self { moment: AtomicU64::new(moment), looked: AtomicU64::new(0) }
    }

    pub(super) fn is_fresh(&self, since: u64) -> bool {
        self.moment() >= since
    }

    /// Compares an object of that version with the store's, at once; `None` where that would have to wait.
    ///
    /// Soon after a look at the whole path, one at the file alone will do: it costs half as much. What it cannot
    /// see is a directory that was replaced by a symbolic link to the very same file; that shows a second later.
    pub(super) fn compare(&self, store: &dyn Store, key: &Key, version: Option<u64>, moment: u64) -> Option<bool> {
        let recent = self.looked.load(Ordering::Relaxed) >= moment.saturating_sub(RECENT_NANOSECONDS);
        if recent && version.is_some_and(|version| store.is_unchanged(key, version)) {
            self.touch(moment);
            return Some(true);
        }
        let seen = match store.glance(key) {
            Glance::Unknown => return None,
            Glance::Missing | Glance::NoObject => None,
            Glance::Object(facts) => Some(facts.version),
        };
        let is_same = seen == version;
        if is_same {
            self.touch(moment);
            if seen.is_some() {
                self.looked.fetch_max(moment, Ordering::Relaxed);
            }
        }
        Some(is_same)
    }

    pub(super) fn moment(&self) -> u64 {
        self.moment.load(Ordering::Relaxed)
    }

    pub(super) fn touch(&self, moment: u64) {
        self.moment.fetch_max(moment, Ordering::Relaxed);
    }
}

/// Nanoseconds since some moment before the first call; never 0.
pub(super) fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
}
