//! Tracking of the requests that wait for a block that is being decoded.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::block_cache::BlockCacheKey;
use crate::cpu_pool::CoreLease;
use crate::fair_queue::SingleFlight;

/// Time for which the decoding of a block to be cached goes on without waiters. A client that cancels its request and
/// repeats it within this time, as viewers do, joins the running decoding. A slow codec can then finish.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// The requests that may wait for a block.
#[derive(Debug, Clone)]
pub(super) struct BlockWaiters {
    /// Alive while the request that started the decoding is.
    requester: Weak<()>,
    /// The single flight, and its key, of other requests that want the block.
    flight: Option<(SingleFlight<BlockCacheKey>, BlockCacheKey)>,
}

impl BlockWaiters {
    /// Creates waiters that consist of the request that holds `requester`.
    pub(super) fn of_request(requester: &Arc<()>) -> Self {
        Self { requester: Arc::downgrade(requester), flight: None }
    }

    /// Creates waiters that consist of all requests in the flight `key`.
    pub(super) fn of_flight(loading: &SingleFlight<BlockCacheKey>, key: BlockCacheKey) -> Self {
        Self { requester: Weak::new(), flight: Some((loading.clone(), key)) }
    }

    /// Adds the request that holds `requester`.
    pub(super) fn with_request(self, requester: Weak<()>) -> Self {
        Self { requester, ..self }
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.requester.strong_count() > 0
            || self.flight.as_ref().is_some_and(|(loading, key)| loading.is_in_flight(key))
    }

    /// Returns a function that tells if decoding should continue. Each call first yields the core if `lease` has to.
    pub(super) fn should_continue<'a>(&'a self, lease: &'a CoreLease) -> impl Fn() -> bool + 'a {
        let last_waiter_at = Cell::new(Instant::now());
        move || {
            lease.yield_if_contended();
            if self.has_waiters() {
                last_waiter_at.set(Instant::now());
                return true;
            }
            self.flight.is_some() && last_waiter_at.get().elapsed() < GRACE_PERIOD
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn decoding_continues_while_a_request_waits_and_for_a_grace_period_if_it_is_shared() {
        let (requester, flights) = (Arc::new(()), SingleFlight::default());
        let key: BlockCacheKey = (1, smallvec![2, 3]);
        let lease = CoreLease::unshared();
        let unshared = BlockWaiters::of_request(&requester);
        let shared = BlockWaiters::of_flight(&flights, key.clone()).with_request(Arc::downgrade(&requester));
        assert!(unshared.has_waiters() && shared.has_waiters());
        let (unshared_continues, shared_continues) = (unshared.should_continue(&lease), shared.should_continue(&lease));
        drop(requester);
        assert!(!unshared.has_waiters() && !shared.has_waiters());
        assert!(!unshared_continues() && shared_continues());
        let waiter = flights.join(key);
        assert!(shared.has_waiters());
        drop(waiter);
        assert!(!shared.has_waiters());
    }
}
