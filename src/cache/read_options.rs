//! Options of reads: how fresh cached entries must be, and whether a read may wait.

use super::freshness::now;
pub use crate::config::RevalidationPolicy;
use crate::store::Key;

/// Name of the file that holds a group's attributes.
pub const ATTRIBUTES: &str = "attributes.json";

/// Options of the reads of one request: how fresh cached entries must be, and whether a read may wait.
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
pub struct ReadOptions {
    /// Start of the request. All moments are in nanoseconds, as returned by [`now`].
    pub(crate) request_start: u64,
    pub(crate) metadata_since: u64,
    pub(crate) data_since: u64,
    may_block: bool,
}

impl ReadOptions {
    pub(crate) fn begin(metadata: RevalidationPolicy, data: RevalidationPolicy) -> Self {
        let now = now();
        Self { request_start: now, metadata_since: since(metadata, now), data_since: since(data, now), may_block: true }
    }

    /// Returns the same options in nonblocking mode. A read in this mode starts no work that outlasts the poll. If
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
