//! Freshness of cached entries: the time at which an entry was last compared with the store.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::store::{CachedStat, Key, Store};

/// Time for which a check of the whole path of an object is valid. During this time, checks of the file alone suffice.
const PATH_CHECK_NANOSECONDS: u64 = 1_000_000_000;

/// Moments at or after which an entry must have been compared with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FreshSince {
    /// For an object that exists.
    pub(crate) found: u64,
    /// For a missing object, and for results derived from one.
    pub(crate) missing: u64,
    /// For an object that exists and is used while it is revalidated in the background: earlier than `found`, or equal
    /// if nothing is revalidated in the background.
    pub(crate) usable: u64,
}

impl From<u64> for FreshSince {
    fn from(moment: u64) -> Self {
        Self { found: moment, missing: moment, usable: moment }
    }
}

/// Time at which an entry was last known to equal the stored object.
///
/// The atomics are relaxed: each has a meaning of its own, and the entry itself never changes.
#[derive(Debug)]
pub(crate) struct ValidatedAt {
    nanoseconds: AtomicU64,
    /// Time at which the whole path of the object was last checked without blocking; 0 for never.
    path_checked_at: AtomicU64,
    /// True once the source is known to have changed.
    is_invalid: AtomicBool,
}

impl ValidatedAt {
    pub(crate) fn at(nanoseconds: u64) -> Self {
        Self {
            nanoseconds: AtomicU64::new(nanoseconds),
            path_checked_at: AtomicU64::new(0),
            is_invalid: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_fresh(&self, fresh_since: u64) -> bool {
        self.nanoseconds() >= fresh_since && !self.is_invalid.load(Ordering::Relaxed)
    }

    /// Marks the entry as out of date, so that cached responses that depend on it are not used again.
    pub(crate) fn invalidate(&self) {
        self.is_invalid.store(true, Ordering::Relaxed);
    }

    /// Returns true if the object at `key` still has this version, or is still missing if `version` is `None`. Returns
    /// `None` if the comparison would block.
    ///
    /// Within a second after a check of the whole path, only the file is checked, which costs half as much. If a
    /// directory on the path is replaced by a symbolic link that leads to the same file, this is therefore detected up
    /// to a second late.
    pub(crate) fn try_is_unchanged(
        &self,
        store: &dyn Store,
        key: &Key,
        version: Option<u64>,
        checked_at: u64,
    ) -> Option<bool> {
        if self.is_invalid.load(Ordering::Relaxed) {
            return Some(false);
        }
        let is_recent =
            self.path_checked_at.load(Ordering::Relaxed) >= checked_at.saturating_sub(PATH_CHECK_NANOSECONDS);
        if is_recent
            && let (Some(version), Some(cache)) = (version, store.page_cache())
            && cache.is_unchanged(key, version)
        {
            self.touch(checked_at);
            return Some(true);
        }
        let current_version = match store.cached_stat(key) {
            // That a copy is on the disk says nothing about the store.
            CachedStat::Unknown | CachedStat::Held { .. } => return None,
            CachedStat::Missing | CachedStat::NotAnObject => None,
            CachedStat::Object(raw_meta) => Some(raw_meta.version),
        };
        let is_unchanged = current_version == version;
        if is_unchanged {
            self.touch(checked_at);
            if current_version.is_some() {
                self.path_checked_at.fetch_max(checked_at, Ordering::Relaxed);
            }
        }
        Some(is_unchanged)
    }

    pub(crate) fn nanoseconds(&self) -> u64 {
        self.nanoseconds.load(Ordering::Relaxed)
    }

    pub(crate) fn touch(&self, checked_at: u64) {
        self.nanoseconds.fetch_max(checked_at, Ordering::Relaxed);
    }
}

/// Nanoseconds from the origin of [`now`] to the start of the process: 100 years. An earlier process may have compared
/// an object of the disk cache with the store, and that moment must come after the origin.
pub(super) const START_NANOSECONDS: u64 = 100 * 365 * 24 * 60 * 60 * 1_000_000_000;

/// Returns the nanoseconds since an origin long before the start of the process.
pub(crate) fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(START_NANOSECONDS)
}

/// Returns the moment at which an object was last compared with the store, if it was got at `checked_at` and had this
/// [age](crate::store::Object::age) then.
pub(crate) fn compared_at(checked_at: u64, age: Duration) -> u64 {
    checked_at.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX))
}
