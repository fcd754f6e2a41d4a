//! Freshness: when a cached entry must be compared with the store.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

pub use crate::config::RevalidationPolicy;
use crate::store::{CachedStat, Key, Store};

/// Name of the file that holds a group's attributes.
pub const ATTRIBUTES: &str = "attributes.json";

/// Time after a check of an entry's whole path during which checks of the file alone suffice.
const PATH_CHECK_NANOSECONDS: u64 = 1_000_000_000;

/// Freshness that one request requires of cached entries. An entry last compared with the store before these moments is
/// stale.
///
/// Created once at the start of a request, so that all of its reads agree and none compares an entry twice.
///
/// It also carries the mode of the reads. Normally a read waits for the store, for memory or for another request where
/// it has to. After [`Self::nonblocking`], it calls `pend_if_nonblocking` before each such wait, and stays
/// pending there forever. The caller polls the future once (`now_or_never`): it is ready with the result, or the caller
/// drops it and leaves the request to the blocking path. This is not an error that the read returns, since code in
/// between could take an error for a missing dataset and give a wrong answer.
#[derive(Debug, Clone, Copy)]
pub struct Freshness {
    /// Start of the request.
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

    /// Returns the freshness for a caller that polls a read once and drops it if it is not ready. The read starts no
    /// work that outlasts that poll, and counts nothing.
    #[must_use]
    pub fn nonblocking(self) -> Self {
        Self { may_block: false, ..self }
    }

    /// Stays pending forever if the caller must not block. Called before everything that may wait.
    pub(crate) async fn pend_if_nonblocking(self) {
        if !self.may_block {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the weight of a lookup in the metrics. A lookup that is dropped counts 0, because a request that may
    /// block repeats it and counts it.
    pub(crate) fn lookup_weight(self) -> u64 {
        u64::from(self.may_block)
    }

    /// Returns the earliest time of an acceptable comparison of the stored object at `key`.
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

    /// Marks the entry as changed, for answers that still refer to it.
    pub(crate) fn invalidate(&self) {
        self.is_invalid.store(true, Ordering::Relaxed);
    }

    /// Compares an object of this version with the store's, without blocking. Returns `None` if the comparison would
    /// block.
    ///
    /// Soon after a check of the whole path, a check of the file alone suffices; it costs half as much. It cannot
    /// detect that a directory was replaced by a symbolic link to the very same file, which is detected a second later.
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
