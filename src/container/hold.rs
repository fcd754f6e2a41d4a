//! Memory that is held while storage is waited for: given back where the storage keeps its holder waiting and the requests
//! of other containers need it. A container whose storage hangs leaves the others their full service.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use super::budget::Budget;
use super::permit::Permit;
use super::{BudgetError, Container, Memory, ReadError};
use crate::metrics::{self, Shed};
use crate::store::{Key, Store, StoreError};

/// How long a request that holds memory may wait for storage.
pub(super) const HOLDING: Duration = Duration::from_secs(1);

/// How often a request that waits for storage looks if others need the memory it holds. It gives up where they did twice.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// How many wait for a share of a budget: all of them, and those of one container.
#[derive(Debug, Clone, Default)]
pub(super) struct Waits {
    all: Arc<AtomicUsize>,
    own: Arc<AtomicUsize>,
}

/// One who waits, until dropped.
#[derive(Debug)]
pub(super) struct Wait(Waits);

impl Waits {
    /// The same, seen from another container.
    pub(super) fn of_one(&self) -> Self {
        Self { all: Arc::clone(&self.all), own: Arc::default() }
    }

    pub(super) fn begin(&self) -> Wait {
        self.own.fetch_add(1, Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
        Wait(self.clone())
    }

    /// Returns true if a request waits.
    pub(super) fn are_any(&self) -> bool {
        self.all.load(Ordering::Relaxed) > 0
    }

    /// Whether anybody waits for another container. It may be wrong for a moment, while somebody comes or goes.
    pub(super) fn are_others(&self) -> bool {
        self.all.load(Ordering::Relaxed) > self.own.load(Ordering::Relaxed)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.0.all.fetch_sub(1, Ordering::Relaxed);
        self.0.own.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns true if a store has answered no request for so long that nothing should be held for it.
pub(super) fn is_silent(store: &dyn Store) -> bool {
    store.load().is_silent()
}

/// What `wait`, for `store`, comes to. It is given up where that takes long and requests of other containers wait for
/// shares of `budget`, of which the caller holds one.
///
/// # Errors
/// [`StoreError::GaveWay`].
pub(super) async fn unless_needed<T>(
    store: &dyn Store,
    budget: &Budget,
    key: &Key,
    mut wait: impl Future<Output = T> + Unpin,
) -> Result<T, ReadError> {
    // What is at hand needs no clock.
    if let Some(done) = (&mut wait).now_or_never() {
        return Ok(done);
    }
    let (since, mut needed) = (Instant::now(), 0);
    loop {
        if let Ok(done) = tokio::time::timeout(LOOK, &mut wait).await {
            return Ok(done);
        }
        let is_kept = || is_silent(store) || (since.elapsed() >= HOLDING && store.load().longest >= HOLDING);
        needed = if budget.others_wait() && is_kept() { needed + 1 } else { 0 };
        if needed >= 2 {
            metrics::request_shed(Shed::Storage);
            return Err(StoreError::GaveWay(key.clone()).into());
        }
    }
}

impl Container {
    /// Returns true if the store has answered no request for a second or more, while one waits for it.
    pub fn is_silent(&self) -> bool {
        is_silent(&*self.store)
    }

    /// A share of the slice budget for an answer that is no slice.
    ///
    /// # Errors
    /// [`ReadError::Budget`] when the budget has fewer `bytes` or others keep them for too long, [`ReadError::Store`] when they
    /// are not free and the store does not answer.
    pub async fn reserve(&self, bytes: u64) -> Result<Memory, ReadError> {
        let budget = &self.resources.slice_budget;
        Ok(Memory::of(Some(self.slice_share(bytes, budget.take(bytes)).await?), budget))
    }

    /// A share of the slice budget, `bytes` as `take` waits for them. Where the store answers no request, only what is free
    /// at once: the request would hold it in vain.
    ///
    /// # Errors
    /// [`BudgetError`] and [`StoreError::Stalled`].
    pub(super) async fn slice_share(
        &self,
        bytes: u64,
        take: impl Future<Output = Result<Permit, BudgetError>>,
    ) -> Result<Permit, ReadError> {
        if !is_silent(&*self.store) {
            return Ok(take.await?);
        }
        self.resources.slice_budget.take_at_once(bytes).ok_or_else(|| {
            metrics::request_shed(Shed::Storage);
            StoreError::Stalled("read", Key::root()).into()
        })
    }

    /// What `work` comes to, which reads below `key` while memory is held that [`Self::reserve`] gave. It is given up where
    /// the store keeps it waiting and requests of other containers need that memory.
    ///
    /// # Errors
    /// [`StoreError::GaveWay`], and those of the work.
    pub async fn unless_needed<T, E: From<ReadError>>(
        &self,
        key: &Key,
        work: impl Future<Output = Result<T, E>> + Unpin,
    ) -> Result<T, E> {
        unless_needed(&*self.store, &self.resources.slice_budget, key, work).await?
    }
}
