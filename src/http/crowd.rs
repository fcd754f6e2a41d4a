//! How many requests wait for one container: where its storage answers nobody, no more than leave room for those of the
//! others.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;

use super::Mount;
use super::problem::Problem;
use super::target::{Target, View};
use crate::container::{Container, ReadError};
use crate::fair::Client;
use crate::metrics::{self, Shed};
use crate::store::{Key, StoreError};

/// How often a request that waits looks whether it is one too many.
const LOOK: Duration = Duration::from_millis(250);

/// One part in so many of `limits.concurrent_requests` may wait for one container that answers nobody; of many containers
/// one in twice their number, so that half of them leave half of all.
const PARTS: usize = 4;

/// The requests of each container that are being answered, but for those that need not wait.
pub(super) struct Crowds {
    of: Vec<Mutex<Crowd>>,
    most: usize,
}

#[derive(Default)]
struct Crowd {
    all: usize,
    /// Of each client that has some.
    of: HashMap<Client, usize>,
}

impl Crowd {
    fn enter(&mut self, client: Client) {
        self.all += 1;
        *self.of.entry(client).or_default() += 1;
    }

    fn leave(&mut self, client: Client) {
        self.all = self.all.saturating_sub(1);
        if let Some(own) = self.of.get_mut(&client) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                self.of.remove(&client);
            }
        }
    }

    /// Returns true if one of the client's requests has to leave: more than `most` wait, and the client has at least the
    /// average number.
    fn is_one_too_many(&self, client: Client, most: usize) -> bool {
        let own = self.of.get(&client).copied().unwrap_or(0);
        self.all > most && own.saturating_mul(self.of.len()) >= self.all
    }
}

/// One of the requests, until it leaves or is dropped.
struct Counted<'a> {
    crowd: &'a Mutex<Crowd>,
    client: Client,
    has_left: bool,
}

impl<'a> Counted<'a> {
    fn new(crowd: &'a Mutex<Crowd>, client: Client) -> Self {
        lock(crowd).enter(client);
        Self { crowd, client, has_left: false }
    }

    /// Makes the crowd smaller by this one where it is one too many; then no other one has to leave for that.
    fn leaves(&mut self, most: usize) -> bool {
        let mut crowd = lock(self.crowd);
        if crowd.is_one_too_many(self.client, most) {
            crowd.leave(self.client);
            self.has_left = true;
        }
        self.has_left
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if !self.has_left {
            lock(self.crowd).leave(self.client);
        }
    }
}

fn lock(crowd: &Mutex<Crowd>) -> MutexGuard<'_, Crowd> {
    crowd.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crowds {
    pub(super) fn new(mounts: &[Mount], concurrent_requests: usize) -> Self {
        let most = (concurrent_requests / PARTS.max(mounts.len().saturating_mul(2))).max(1);
        Self { of: mounts.iter().map(|_| Mutex::default()).collect(), most }
    }

    /// Does `work` for the container at that place among all. It gives up if the container's storage does not answer, too many
    /// requests wait for it, and the client has at least the average number of them. A container that is alone refuses none.
    ///
    /// # Errors
    /// 503, and those of the work.
    pub(super) async fn within<T>(
        &self,
        place: usize,
        container: &Container,
        mut work: impl Future<Output = Result<T, Problem>> + Unpin,
    ) -> Result<T, Problem> {
        let Some(crowd) = self.of.get(place).filter(|_| self.of.len() > 1) else { return work.await };
        if let Some(done) = (&mut work).now_or_never() {
            return done;
        }
        let mut counted = Counted::new(crowd, Client::current());
        loop {
            if container.is_silent() && counted.leaves(self.most) {
                metrics::request_shed(Shed::Storage);
                return Err(ReadError::from(StoreError::Crowded("wait for", Key::root())).into());
            }
            if let Ok(done) = tokio::time::timeout(LOOK, &mut work).await {
                return done;
            }
        }
    }
}

/// Which of `mounts` a target leads into; `None` where it leads into none.
pub(super) fn place(mounts: &[Mount], target: &Target) -> Option<usize> {
    let skipped = if let View::Other(view) = target.view { view.parameters() } else { 0 };
    let name = target.segments.get(skipped)?;
    mounts.iter().position(|mount| mount.name == *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_that_is_too_large_sends_away_those_who_have_most_in_it() {
        let crowd = Mutex::new(Crowd::default());
        let (much, little) = (Client::new(1), Client::new(2));
        let mut many: Vec<_> = (0..20).map(|_| Counted::new(&crowd, much)).collect();
        let mut few: Vec<_> = (0..2).map(|_| Counted::new(&crowd, little)).collect();
        assert!(few.iter_mut().all(|one| !one.leaves(8)));
        assert_eq!(many.iter_mut().filter_map(|one| one.leaves(8).then_some(())).count(), 14);
        let counts = |crowd: &Crowd| (crowd.all, crowd.of.get(&much).copied());
        assert_eq!(counts(&lock(&crowd)), (8, Some(6)));
        drop((many, few));
        assert_eq!(counts(&lock(&crowd)), (0, None));
        let mut all: Vec<_> = (0..10).map(|n| Counted::new(&crowd, Client::new(n))).collect();
        assert_eq!(all.iter_mut().filter_map(|one| one.leaves(8).then_some(())).count(), 2, "of equals, anybody");
    }
}
