//! Tracking of the requests that wait for a block that is being decoded.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::block_cache::BlockCacheKey;
use crate::cpu_pool::CoreLease;
use crate::fair_queue::SingleFlight;

/// Time for which the decoding of a block to be cached goes on without waiters. A client that cancels its request and
/// repeats it within this time, as viewers do, joins the running decoding. A slow codec can then finish.
const GRACE: Duration = Duration::from_secs(1);

/// The requests that may wait for a block.
#[derive(Debug, Clone)]
pub(super) struct BlockWaiters {
    /// Alive while the request that started the decoding is.
    requester: Weak<()>,
    /// The single flight, and its key, of other requests that want the block.
    flight: Option<(SingleFlight<BlockCacheKey>, BlockCacheKey)>,
}

impl BlockWaiters {
    /// Creates waiters that consist of the request that holds `asked`.
    pub(super) fn of_request(asked: &Arc<()>) -> Self {
        Self { requester: Arc::downgrade(asked), flight: None }
    }

    /// Creates waiters that consist of all requests in the flight `key`.
    pub(super) fn of_flight(loading: &SingleFlight<BlockCacheKey>, key: BlockCacheKey) -> Self {
        Self { requester: Weak::new(), flight: Some((loading.clone(), key)) }
    }

    /// Adds the request that holds `asked`.
    pub(super) fn with_request(self, asked: Weak<()>) -> Self {
        Self { requester: asked, ..self }
    }

    pub(super) fn has_waiters(&self) -> bool {
        self.requester.strong_count() > 0
            || self.flight.as_ref().is_some_and(|(loading, key)| loading.is_in_flight(key))
    }

    /// Returns a function that tells if decoding should continue. Each call first yields the core if `turn` has to.
    pub(super) fn should_continue<'a>(&'a self, turn: &'a CoreLease) -> impl Fn() -> bool + 'a {
        let seen = Cell::new(Instant::now());
        move || {
            turn.yield_if_contended();
            if self.has_waiters() {
                seen.set(Instant::now());
                return true;
            }
            self.flight.is_some() && seen.get().elapsed() < GRACE
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn decoding_goes_on_for_whoever_asked_or_waits_and_a_little_longer_where_it_is_kept() {
        let (asked, joints) = (Arc::new(()), SingleFlight::default());
        let key: BlockCacheKey = (1, smallvec![2, 3]);
        let turn = CoreLease::unshared();
        let alone = BlockWaiters::of_request(&asked);
        let shared = BlockWaiters::of_flight(&joints, key.clone()).with_request(Arc::downgrade(&asked));
        assert!(alone.has_waiters() && shared.has_waiters());
        let (alone_goes_on, shared_goes_on) = (alone.should_continue(&turn), shared.should_continue(&turn));
        drop(asked);
        assert!(!alone.has_waiters() && !shared.has_waiters());
        assert!(!alone_goes_on() && shared_goes_on());
        let joined = joints.join(key);
        assert!(shared.has_waiters());
        drop(joined);
        assert!(!shared.has_waiters());
    }
}
