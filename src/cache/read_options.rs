//! Options of reads: how fresh cached entries must be, and whether a read may wait.

use std::time::Duration;

use super::freshness::{FreshSince, now};
pub use crate::config::RevalidationPolicy;
use crate::config::{Config, ContainerConfig};
use crate::store::Key;

/// Name of the file that holds a group's attributes.
pub const ATTRIBUTES: &str = "attributes.json";

/// How long cached entries are used without a comparison with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreshnessPolicy {
    /// Policy for attributes.
    pub metadata: RevalidationPolicy,
    /// Policy for blocks.
    pub data: RevalidationPolicy,
    /// Policy for missing objects. `None` if the object and block caches remember missing objects themselves, so that
    /// the policies above apply.
    pub missing: Option<RevalidationPolicy>,
    /// True if a cached block whose time has passed is still used for as long again, while it is revalidated in the
    /// background.
    pub revalidates_in_background: bool,
}

impl FreshnessPolicy {
    /// Returns the policy of a container.
    pub fn new(config: &Config, container: &ContainerConfig) -> Self {
        Self {
            metadata: container.metadata_policy(config.cache.recheck_cached_metadata),
            data: container.data_policy(config.cache.recheck_cached_data),
            missing: container.missing_policy(),
            revalidates_in_background: container.is_remote(),
        }
    }

    /// Returns the moments at or after which the stored object at `key` must have been compared with the store.
    pub(crate) fn since(self, key: &Key, request_start: u64) -> FreshSince {
        if key.name() == Some(ATTRIBUTES) {
            self.fresh_since(self.metadata, request_start)
        } else {
            self.data_since(request_start)
        }
    }

    /// Returns the time for which the object at `key` is used without a comparison with the store.
    pub(crate) fn max_age(self, key: &Key) -> Duration {
        match if key.name() == Some(ATTRIBUTES) { self.metadata } else { self.data } {
            RevalidationPolicy::Always => Duration::ZERO,
            RevalidationPolicy::Never => Duration::MAX,
            RevalidationPolicy::After(age) => age,
        }
    }

    /// Returns the moments at or after which a block must have been compared with the store.
    pub(crate) fn data_since(self, request_start: u64) -> FreshSince {
        let mut since = self.fresh_since(self.data, request_start);
        if let RevalidationPolicy::After(age) = self.data
            && self.revalidates_in_background
        {
            since.usable = self::since(RevalidationPolicy::After(age.saturating_mul(2)), request_start);
        }
        since
    }

    fn fresh_since(self, policy: RevalidationPolicy, request_start: u64) -> FreshSince {
        let missing = self.missing.unwrap_or(policy);
        FreshSince { missing: since(missing, request_start), ..since(policy, request_start).into() }
    }
}

/// Options of the reads of one request: how fresh cached entries must be, and whether a read may wait.
///
/// The moments at which entries become stale count from the start of the request, so that its reads agree and none
/// compares an entry twice. The container of an entry has the [`FreshnessPolicy`].
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
    may_block: bool,
}

impl ReadOptions {
    /// Returns options for the reads of a request that begins now.
    pub fn begin() -> Self {
        Self { request_start: now(), may_block: true }
    }

    /// Returns the same options in nonblocking mode. A read in this mode starts no work that outlasts the poll, except
    /// revalidation in the background. If the read is not ready, it changes no metrics.
    #[must_use]
    pub fn nonblocking(self) -> Self {
        Self { may_block: false, ..self }
    }

    /// Returns the same options in blocking mode, for work that a nonblocking read starts in the background.
    #[must_use]
    pub(crate) fn blocking(self) -> Self {
        Self { may_block: true, ..self }
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
}

fn since(policy: RevalidationPolicy, now: u64) -> u64 {
    match policy {
        RevalidationPolicy::Always => now,
        RevalidationPolicy::Never => 0,
        RevalidationPolicy::After(age) => now.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_of_remote_containers_are_used_for_a_second_period() {
        const HOUR: u64 = 3600 * 1_000_000_000;
        let after_an_hour = RevalidationPolicy::After(Duration::from_secs(3600));
        let policy = |revalidates_in_background, data| FreshnessPolicy {
            metadata: after_an_hour,
            data,
            missing: None,
            revalidates_in_background,
        };
        let (now, block) = (10 * HOUR, Key::parse("v/0/0").unwrap());
        let attributes = Key::parse("v/attributes.json").unwrap();
        let remote = policy(true, after_an_hour);
        let expected = FreshSince { found: 9 * HOUR, missing: 9 * HOUR, usable: 8 * HOUR };
        assert_eq!([remote.since(&block, now), remote.data_since(now)], [expected; 2]);
        assert_eq!(remote.since(&attributes, now), (9 * HOUR).into());
        assert_eq!(policy(false, after_an_hour).data_since(now), (9 * HOUR).into());
        assert_eq!(policy(true, RevalidationPolicy::Always).data_since(now), now.into());
        assert_eq!(policy(true, RevalidationPolicy::Never).data_since(now), 0.into());
    }
}
