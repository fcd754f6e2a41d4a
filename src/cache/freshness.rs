//! Freshness: the rules that decide if a cached entry must be compared with the store before it is used.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

pub use crate::config::RevalidationPolicy;
use crate::store::{CachedStat, Key, Store};

/// Name of the file that holds a group's attributes.
pub const ATTRIBUTES: &str = "attributes.json";

/// Time for which a check of the whole path of an object is valid. During this time, checks of the file alone suffice.
const PATH_CHECK_NANOSECONDS: u64 = 1_000_000_000;

/// Freshness that one request requires of cached entries, and the mode of its reads.
///
/// An entry that was last compared with the store before `metadata_since` (attributes) or `data_since` (blocks) is
/// stale. The moments are fixed when the request starts, so that its reads agree and none compares an entry twice.
///
/// A read has one of two modes:
///
/// - *blocking*, unless stated otherwise: the read waits for the store, for memory and for other requests.
/// - *nonblocking*, after [`Self::nonblocking`]: the read never waits. Its caller polls the future once
///   (`now_or_never`). If the future is not ready, the caller drops it and repeats the read in blocking mode.
///
/// A function that a nonblocking read may call must await `pend_if_nonblocking` before everything that could wait: a
/// call of the store, a permit, a load. In nonblocking mode this future never completes, so the read is not ready. An
/// error would not do instead: code in between could take it for a missing dataset and send a wrong response.
#[derive(Debug, Clone, Copy)]
pub struct Freshness {
    /// Start of the request. All moments are in nanoseconds, as returned by [`now`].
    pub(crate) request_start: u64,
    pub(crate) metadata_since: u64,
    pub(crate) data_since: u64,
    may_block: bool,
}

impl Freshness {
    pub(crate) fn begin(metadata: RevalidationPolicy, data: RevalidationPolicy) -> Self {
        let now = now();
        Self { request_start: now, metadata_since: since(metadata, now), data_since: since(data, now), may_block: true }
    }

    /// Returns the same freshness in nonblocking mode. A read in this mode starts no work that outlasts the poll. If
    /// the read is not ready, it changes no metrics.
    #[must_use]
    pub fn nonblocking(self) -> Self {
        Self { may_block: false, ..self }
    }

    /// Completes at once in blocking mode and never in nonblocking mode. Must be awaited before everything that may
    /// wait. Without it, a nonblocking read could start work or count in the metrics, although it is repeated later.
    pub(crate) async fn pend_if_nonblocking(self) {
        if !self.may_block {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the number that a lookup adds to the metrics: 1 in blocking mode. It is 0 in nonblocking mode, because
    /// the whole read may still turn out not to be ready, and is then repeated in blocking mode.
    pub(crate) fn lookup_weight(self) -> u64 {
        u64::from(self.may_block)
    }

    /// Returns the moment at or after which the stored object at `key` must have been compared with the store.
    pub(crate) fn since(self, key: &Key) -> u64 {
        if key.name() == Some(ATTRIBUTES) { self.metadata_since } else { self.data_since }
    }
}

fn since(policy: RevalidationPolicy, now: u64) -> u64 {
    match policy {
        RevalidationPolicy::Always => now,
        RevalidationPolicy::Never => 0,
        RevalidationPolicy::After(age) => now.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
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
            CachedStat::Unknown => return None,
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

/// Returns the nanoseconds since some moment before the first call; never 0.
pub(crate) fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX).saturating_add(1)
}
