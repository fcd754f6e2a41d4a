//! Limits the requests that wait for one container whose storage does not answer, so that they leave room for requests
//! of other containers.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;

use super::Mount;
use super::problem::Problem;
use super::route::{Endpoint, RequestTarget};
use crate::container::{Container, ReadError};
use crate::fair_queue::ClientId;
use crate::metrics::{self, ShedReason};
use crate::store::{Key, StoreError};

/// Interval at which a waiting request checks whether it has to give up.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Smallest divisor of `limits.concurrent_requests` that gives the number of requests that may wait for one stalled
/// container. With more than two containers the divisor is twice their number, so that all of them together leave half
/// of the limit free.
const STALLED_SHARE_DIVISOR: usize = 4;

/// Limits the requests that wait for each container with stalled storage. Requests that need not wait are not counted.
pub(super) struct StalledStoreLimit {
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
        if let Some(own) = self.per_client.get_mut(&client) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                self.per_client.remove(&client);
            }
        }
    }

    /// Returns true if one of the client's requests has to give up: more than `most` wait, and the client has at least
    /// the average number of them.
    fn exceeds_fair_share(&self, client: ClientId, most: usize) -> bool {
        let own = self.per_client.get(&client).copied().unwrap_or(0);
        self.total > most && own.saturating_mul(self.per_client.len()) >= self.total
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
    fn leave_if_excess(&mut self, most: usize) -> bool {
        let mut crowd = lock(self.waiters);
        if crowd.exceeds_fair_share(self.client, most) {
            crowd.leave(self.client);
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

fn lock(crowd: &Mutex<ContainerWaiters>) -> MutexGuard<'_, ContainerWaiters> {
    crowd.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StalledStoreLimit {
    pub(super) fn new(mounts: &[Mount], concurrent_requests: usize) -> Self {
        let max_waiting = (concurrent_requests / STALLED_SHARE_DIVISOR.max(mounts.len().saturating_mul(2))).max(1);
        Self { per_container: mounts.iter().map(|_| Mutex::default()).collect(), max_waiting }
    }

    /// Runs `work` for the container with the given index. It gives up if the container's storage does not answer, too
    /// many requests wait for it, and the client has at least the average number of them. A single container has no
    /// limit.
    ///
    /// # Errors
    /// 503, and the errors of `work`.
    pub(super) async fn run_limited<T>(
        &self,
        place: usize,
        container: &Container,
        mut work: impl Future<Output = Result<T, Problem>> + Unpin,
    ) -> Result<T, Problem> {
        let Some(crowd) = self.per_container.get(place).filter(|_| self.per_container.len() > 1) else {
            return work.await;
        };
        if let Some(done) = (&mut work).now_or_never() {
            return done;
        }
        let mut counted = ContainerWaitGuard::new(crowd, ClientId::current());
        loop {
            if container.is_store_unresponsive() && counted.leave_if_excess(self.max_waiting) {
                metrics::request_shed(ShedReason::Storage);
                return Err(ReadError::from(StoreError::Overloaded("wait for", Key::root())).into());
            }
            if let Ok(done) = tokio::time::timeout(CHECK_INTERVAL, &mut work).await {
                return done;
            }
        }
    }
}

/// Returns the index of the mount that a target leads into; `None` if there is none.
pub(super) fn mount_index(mounts: &[Mount], target: &RequestTarget) -> Option<usize> {
    let skipped = if let Endpoint::View(view) = target.endpoint { view.path_parameter_count() } else { 0 };
    let name = target.segments.get(skipped)?;
    mounts.iter().position(|mount| mount.name == *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_that_is_too_large_sends_away_those_who_have_most_in_it() {
        let crowd = Mutex::new(ContainerWaiters::default());
        let (much, little) = (ClientId::new(1), ClientId::new(2));
        let mut many: Vec<_> = (0..20).map(|_| ContainerWaitGuard::new(&crowd, much)).collect();
        let mut few: Vec<_> = (0..2).map(|_| ContainerWaitGuard::new(&crowd, little)).collect();
        assert!(few.iter_mut().all(|one| !one.leave_if_excess(8)));
        assert_eq!(many.iter_mut().filter_map(|one| one.leave_if_excess(8).then_some(())).count(), 14);
        let counts = |crowd: &ContainerWaiters| (crowd.total, crowd.per_client.get(&much).copied());
        assert_eq!(counts(&lock(&crowd)), (8, Some(6)));
        drop((many, few));
        assert_eq!(counts(&lock(&crowd)), (0, None));
        let mut all: Vec<_> = (0..10).map(|n| ContainerWaitGuard::new(&crowd, ClientId::new(n))).collect();
        assert_eq!(
            all.iter_mut().filter_map(|one| one.leave_if_excess(8).then_some(())).count(),
            2,
            "among equal clients, any request may give up"
        );
    }
}
