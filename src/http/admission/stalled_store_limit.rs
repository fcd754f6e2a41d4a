//! Limits the requests that wait for one container whose storage does not respond, so that they leave room for requests
//! of other containers.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use scopeguard::ScopeGuard;

use crate::cache::ReadError;
use crate::http::problem::Problem;
use crate::runtime::fair_queue::ClientId;
use crate::store::{Key, StoreError};
use crate::telemetry::metrics::{self, ShedReason};

/// Interval at which a waiting request checks whether it must give up.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Requests that wait for one stalled container take at most `limits.concurrent_requests` divided by this, or by twice
/// the number of containers if that is larger. Requests that wait for stalled containers therefore leave at least half
/// of the limit free.
const STALLED_SHARE_DIVISOR: usize = 4;

/// Limits the requests that wait for a container whose storage is stalled. Requests that need not wait are not counted.
pub(crate) struct StalledStoreLimit {
    per_container: Vec<Mutex<ContainerWaiters>>,
    max_waiting: usize,
}

#[derive(Default)]
struct ContainerWaiters {
    total: usize,
    /// Number of waiting requests of each client. Clients without waiting requests have no entry.
    per_client: HashMap<ClientId, usize>,
}

impl ContainerWaiters {
    fn enter(&mut self, client: ClientId) {
        self.total += 1;
        *self.per_client.entry(client).or_default() += 1;
    }

    fn leave(&mut self, client: ClientId) {
        self.total = self.total.saturating_sub(1);
        if let Some(count) = self.per_client.get_mut(&client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.per_client.remove(&client);
            }
        }
    }

    /// Returns true if a request of the client has to give up: more than `max_waiting` requests wait, and the client
    /// has at least the average number of them. The request is then no longer counted, so that no other request gives
    /// up for the same excess.
    fn leave_if_excess(&mut self, client: ClientId, max_waiting: usize) -> bool {
        let count = self.per_client.get(&client).copied().unwrap_or(0);
        let is_excess = self.total > max_waiting && count.saturating_mul(self.per_client.len()) >= self.total;
        if is_excess {
            self.leave(client);
        }
        is_excess
    }
}

fn lock(waiters: &Mutex<ContainerWaiters>) -> MutexGuard<'_, ContainerWaiters> {
    waiters.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StalledStoreLimit {
    pub(crate) fn new(container_count: usize, concurrent_requests: usize) -> Self {
        let max_waiting = (concurrent_requests / STALLED_SHARE_DIVISOR.max(container_count.saturating_mul(2))).max(1);
        Self { per_container: (0..container_count).map(|_| Mutex::default()).collect(), max_waiting }
    }

    /// Runs `work` for the container with the given index. Gives `work` up if the container's storage
    /// `is_unresponsive`, too many requests wait for the container, and the client has at least the average number of
    /// them. A single container has no limit.
    ///
    /// # Errors
    /// Returns a problem with status 503 if `work` is given up. Also returns the errors of `work`.
    pub(crate) async fn run_limited<T>(
        &self,
        index: usize,
        is_unresponsive: impl Fn() -> bool,
        mut work: impl Future<Output = Result<T, Problem>> + Unpin,
    ) -> Result<T, Problem> {
        let Some(waiters) = self.per_container.get(index).filter(|_| self.per_container.len() > 1) else {
            return work.await;
        };
        if let Some(result) = (&mut work).now_or_never() {
            return result;
        }
        let client = ClientId::current();
        lock(waiters).enter(client);
        let waiting = scopeguard::guard((), |()| lock(waiters).leave(client));
        loop {
            if is_unresponsive() && lock(waiters).leave_if_excess(client, self.max_waiting) {
                ScopeGuard::into_inner(waiting);
                metrics::request_shed(ShedReason::Storage);
                return Err(ReadError::from(StoreError::Overloaded("wait for", Key::root())).into());
            }
            if let Ok(result) = tokio::time::timeout(CHECK_INTERVAL, &mut work).await {
                return result;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn a_request_that_gave_up_is_counted_out_once() {
        let limit = StalledStoreLimit::new(2, 8);
        let run = || ClientId::new(1).scope(limit.run_limited(0, || true, pending::<Result<(), Problem>>()));
        let mut requests: Vec<_> = (0..5).map(|_| Box::pin(run())).collect();
        let ended: Vec<_> = requests.iter_mut().map(|request| request.as_mut().now_or_never().is_some()).collect();
        assert_eq!(ended, [false, false, true, true, true]);
        assert_eq!(lock(&limit.per_container[0]).total, 2);
        drop(requests);
        let waiters = lock(&limit.per_container[0]);
        assert_eq!((waiters.total, waiters.per_client.len()), (0, 0));
    }

    #[test]
    fn requests_of_clients_with_most_waiters_give_up_first() {
        let mut waiters = ContainerWaiters::default();
        let (heavy_client, light_client) = (ClientId::new(1), ClientId::new(2));
        let clients = [[heavy_client; 20].as_slice(), &[light_client; 2]].concat();
        for client in &clients {
            waiters.enter(*client);
        }
        assert!((0..2).all(|_| !waiters.leave_if_excess(light_client, 8)));
        assert_eq!((0..20).filter(|_| waiters.leave_if_excess(heavy_client, 8)).count(), 14);
        assert_eq!((waiters.total, waiters.per_client.get(&heavy_client)), (8, Some(&6)));
        for client in &clients[14..] {
            waiters.leave(*client);
        }
        assert_eq!((waiters.total, waiters.per_client.len()), (0, 0));
        for n in 0..10 {
            waiters.enter(ClientId::new(n));
        }
        assert_eq!(
            (0..10).filter(|n| waiters.leave_if_excess(ClientId::new(*n), 8)).count(),
            2,
            "among equal clients, any request may give up"
        );
    }
}
