//! Limits the requests that wait for one container whose storage does not answer, so that they leave room for requests
//! of other containers.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;

use crate::cache::ReadError;
use crate::container::Container;
use crate::fair_queue::ClientId;
use crate::http::problem::Problem;
use crate::metrics::{self, ShedReason};
use crate::store::{Key, StoreError};

/// Interval at which a waiting request checks whether it has to give up.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Smallest divisor of `limits.concurrent_requests` that gives the number of requests that may wait for one stalled
/// container. With more than two containers the divisor is twice their number, so that all of them together leave half
/// of the limit free.
const STALLED_SHARE_DIVISOR: usize = 4;

/// Limits the requests that wait for each container with stalled storage. Requests that need not wait are not counted.
pub(crate) struct StalledStoreLimit {
    per_container: Vec<Mutex<ContainerWaiters>>,
    max_waiting: usize,
}

#[derive(Default)]
struct ContainerWaiters {
    total: usize,
    /// Number per client, for clients with at least one request.
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

    /// Returns true if one of the client's requests has to give up: more than `max_waiting` wait, and the client has at
    /// least the average number of them.
    fn exceeds_fair_share(&self, client: ClientId, max_waiting: usize) -> bool {
        let count = self.per_client.get(&client).copied().unwrap_or(0);
        self.total > max_waiting && count.saturating_mul(self.per_client.len()) >= self.total
    }
}

/// Guard of a request's count, which ends when the request gives up or the guard is dropped.
struct ContainerWaitGuard<'a> {
    waiters: &'a Mutex<ContainerWaiters>,
    client: ClientId,
    has_left: bool,
}

impl<'a> ContainerWaitGuard<'a> {
    fn new(waiters: &'a Mutex<ContainerWaiters>, client: ClientId) -> Self {
        lock(waiters).enter(client);
        Self { waiters, client, has_left: false }
    }

    /// Stops counting this request if its client exceeds its fair share, and returns true if so. No other request then
    /// has to give up for the same excess.
    fn leave_if_excess(&mut self, max_waiting: usize) -> bool {
        let mut waiters = lock(self.waiters);
        if waiters.exceeds_fair_share(self.client, max_waiting) {
            waiters.leave(self.client);
            self.has_left = true;
        }
        self.has_left
    }
}

impl Drop for ContainerWaitGuard<'_> {
    fn drop(&mut self) {
        if !self.has_left {
            lock(self.waiters).leave(self.client);
        }
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

    /// Runs `work` for the container with the given index. It gives up if the container's storage does not answer, too
    /// many requests wait for it, and the client has at least the average number of them. A single container has no
    /// limit.
    ///
    /// # Errors
    /// 503, and the errors of `work`.
    pub(crate) async fn run_limited<T>(
        &self,
        index: usize,
        container: &Container,
        mut work: impl Future<Output = Result<T, Problem>> + Unpin,
    ) -> Result<T, Problem> {
        let Some(waiters) = self.per_container.get(index).filter(|_| self.per_container.len() > 1) else {
            return work.await;
        };
        if let Some(result) = (&mut work).now_or_never() {
            return result;
        }
        let mut guard = ContainerWaitGuard::new(waiters, ClientId::current());
        loop {
            if container.is_store_unresponsive() && guard.leave_if_excess(self.max_waiting) {
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
    use super::*;

    #[test]
    fn requests_of_clients_with_most_waiters_give_up_first() {
        let waiters = Mutex::new(ContainerWaiters::default());
        let (heavy_client, light_client) = (ClientId::new(1), ClientId::new(2));
        let mut heavy_guards: Vec<_> = (0..20).map(|_| ContainerWaitGuard::new(&waiters, heavy_client)).collect();
        let mut light_guards: Vec<_> = (0..2).map(|_| ContainerWaitGuard::new(&waiters, light_client)).collect();
        assert!(light_guards.iter_mut().all(|guard| !guard.leave_if_excess(8)));
        assert_eq!(heavy_guards.iter_mut().filter_map(|guard| guard.leave_if_excess(8).then_some(())).count(), 14);
        let counts = |waiters: &ContainerWaiters| (waiters.total, waiters.per_client.get(&heavy_client).copied());
        assert_eq!(counts(&lock(&waiters)), (8, Some(6)));
        drop((heavy_guards, light_guards));
        assert_eq!(counts(&lock(&waiters)), (0, None));
        let mut guards: Vec<_> = (0..10).map(|n| ContainerWaitGuard::new(&waiters, ClientId::new(n))).collect();
        assert_eq!(
            guards.iter_mut().filter_map(|guard| guard.leave_if_excess(8).then_some(())).count(),
            2,
            "among equal clients, any request may give up"
        );
    }
}
