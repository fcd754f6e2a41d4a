//! Tracking of the requests that wait for a block that is being decoded.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::cpu_pool::CoreLease;
use crate::fair_queue::FlightHandle;

/// Time for which the decoding of a block to be cached goes on without waiters. A client that cancels its request and
/// repeats it within this time, as viewers do, joins the running decoding. A slow codec can then finish.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// The requests that may wait for a block.
#[derive(Debug, Clone)]
pub(crate) struct BlockWaiters {
    /// Alive while the request that started the decoding is.
    requester: Weak<()>,
    /// The flight of other requests that want the block.
    flight: Option<FlightHandle>,
}

impl BlockWaiters {
    /// Creates waiters that consist of the request that holds `requester`.
    pub(crate) fn of_request(requester: &Arc<()>) -> Self {
        Self { requester: Arc::downgrade(requester), flight: None }
    }

    /// Creates waiters that consist of all requests that wait for `flight`.
    pub(crate) fn of_flight(flight: &FlightHandle) -> Self {
        Self { requester: Weak::new(), flight: Some(flight.clone()) }
    }

    /// Adds the request that holds `requester`.
    pub(crate) fn with_request(self, requester: Weak<()>) -> Self {
        Self { requester, ..self }
    }

    /// Lets the load of the block run to its end, even without waiters: it cannot be interrupted from now on.
    pub(crate) fn detach(&self) {
        if let Some(flight) = &self.flight {
            flight.detach();
        }
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.requester.strong_count() > 0 || self.flight.as_ref().is_some_and(FlightHandle::has_waiters)
    }

    /// Returns a function that tells if decoding should continue. Each call first yields the core if `lease` has to.
    pub(crate) fn should_continue<'a>(&'a self, lease: &'a CoreLease) -> impl Fn() -> bool + 'a {
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
    use super::*;
    use crate::fair_queue::SingleFlight;

    #[test]
    fn decoding_continues_while_a_request_waits_and_for_a_grace_period_if_it_is_shared() {
        let (requester, flights) = (Arc::new(()), SingleFlight::<u8, ()>::default());
        let leader = flights.try_lead(1).unwrap();
        let lease = CoreLease::unshared();
        let unshared = BlockWaiters::of_request(&requester);
        let shared = BlockWaiters::of_flight(leader.handle()).with_request(Arc::downgrade(&requester));
        assert!(unshared.has_waiters() && shared.has_waiters());
        let (unshared_continues, shared_continues) = (unshared.should_continue(&lease), shared.should_continue(&lease));
        drop(requester);
        assert!(!unshared.has_waiters() && !shared.has_waiters());
        assert!(!unshared_continues() && shared_continues());
        let (waiter, _) = flights.join(1);
        assert!(shared.has_waiters());
        drop(waiter);
        assert!(!shared.has_waiters());
    }
}
