//! Backpressure on memory that is held during storage waits.
//!
//! A request gives its memory back if the storage keeps it waiting while requests of other containers need the memory.
//! A container with stalled storage therefore does not slow down the others.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use super::budget::Budget;
use super::permit::Permit;
use super::{BudgetError, Container, MemoryPermit, ReadError};
use crate::metrics::{self, ShedReason};
use crate::store::{Key, Store, StoreError};

/// Longest time that a request holds memory during a storage wait while other requests need the memory.
pub(super) const MAX_WAIT_HOLDING_MEMORY: Duration = Duration::from_secs(1);

/// Interval at which a request that waits for storage checks if other containers need its memory. The request yields
/// after two positive checks in a row.
pub(super) const CONTENTION_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Number of requests that wait for a permit of a budget: in total, and of one container.
#[derive(Debug, Clone, Default)]
pub(super) struct WaiterCounts {
    total_count: Arc<AtomicUsize>,
    container_count: Arc<AtomicUsize>,
}

/// Guard that counts a waiter until it is dropped.
#[derive(Debug)]
pub(super) struct WaiterGuard(WaiterCounts);

impl WaiterCounts {
    /// Returns counts for another container, which share the total.
    pub(super) fn for_container(&self) -> Self {
        Self { total_count: Arc::clone(&self.total_count), container_count: Arc::default() }
    }

    pub(super) fn begin(&self) -> WaiterGuard {
        self.container_count.fetch_add(1, Ordering::Relaxed);
        self.total_count.fetch_add(1, Ordering::Relaxed);
        WaiterGuard(self.clone())
    }

    /// Returns true if a request waits.
    pub(super) fn has_any(&self) -> bool {
        self.total_count.load(Ordering::Relaxed) > 0
    }

    /// Returns true if a request of another container waits. The result may be briefly wrong while waiters come and go.
    pub(super) fn has_other_containers(&self) -> bool {
        self.total_count.load(Ordering::Relaxed) > self.container_count.load(Ordering::Relaxed)
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.total_count.fetch_sub(1, Ordering::Relaxed);
        self.0.container_count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns true if the store has not answered any request for so long that no memory should be held for it.
pub(super) fn is_store_unresponsive(store: &dyn Store) -> bool {
    store.current_load().is_unresponsive()
}

/// Waits for `future`, a request to `store`, while the caller holds a permit of `budget`. Gives up if requests of other
/// containers wait for permits of `budget` and the store is unresponsive or has kept the caller waiting for
/// [`MAX_WAIT_HOLDING_MEMORY`].
///
/// # Errors
/// [`StoreError::Preempted`] when it gives up.
pub(super) async fn yield_if_contended<T>(
    store: &dyn Store,
    budget: &Budget,
    key: &Key,
    mut future: impl Future<Output = T> + Unpin,
) -> Result<T, ReadError> {
    // A result that is ready needs no timer.
    if let Some(output) = (&mut future).now_or_never() {
        return Ok(output);
    }
    let (started, mut contended_polls) = (Instant::now(), 0);
    loop {
        if let Ok(output) = tokio::time::timeout(CONTENTION_POLL_INTERVAL, &mut future).await {
            return Ok(output);
        }
        let is_storage_slow = || {
            is_store_unresponsive(store)
                || (started.elapsed() >= MAX_WAIT_HOLDING_MEMORY
                    && store.current_load().longest_running >= MAX_WAIT_HOLDING_MEMORY)
        };
        contended_polls = if budget.others_wait() && is_storage_slow() { contended_polls + 1 } else { 0 };
        if contended_polls >= 2 {
            metrics::request_shed(ShedReason::Storage);
            return Err(StoreError::Preempted(key.clone()).into());
        }
    }
}

impl Container {
    /// Returns true if requests wait for the store and it has not answered any for a second or more.
    pub fn is_store_unresponsive(&self) -> bool {
        is_store_unresponsive(&*self.store)
    }

    /// Reserves `bytes` of the slice budget for a response that is not a slice.
    ///
    /// # Errors
    /// [`ReadError::Budget`] when the budget is smaller than `bytes` or other requests hold the memory for too long.
    /// [`ReadError::Store`] when the memory is not free and the store does not respond.
    pub async fn reserve_memory(&self, bytes: u64) -> Result<MemoryPermit, ReadError> {
        let budget = &self.resources.slice_budget;
        Ok(MemoryPermit::new(Some(self.slice_permit(bytes, budget.take(bytes)).await?), budget))
    }

    /// Returns a permit for `bytes` of the slice budget, which `acquire` waits for. If the store does not respond,
    /// returns a permit only if the memory is free at once: the request would hold it in vain.
    ///
    /// # Errors
    /// [`BudgetError`] and [`StoreError::Stalled`].
    pub(super) async fn slice_permit(
        &self,
        bytes: u64,
        acquire: impl Future<Output = Result<Permit, BudgetError>>,
    ) -> Result<Permit, ReadError> {
        if !is_store_unresponsive(&*self.store) {
            return Ok(acquire.await?);
        }
        self.resources.slice_budget.try_take(bytes).ok_or_else(|| {
            metrics::request_shed(ShedReason::Storage);
            StoreError::Stalled("read", Key::root()).into()
        })
    }

    /// Waits for `work`, which reads below `key` while it holds memory from [`Self::reserve_memory`]. Gives up if the
    /// store keeps it waiting and requests of other containers need that memory.
    ///
    /// # Errors
    /// [`StoreError::Preempted`] when it gives up, and the errors of `work`.
    pub async fn yield_if_contended<T, E: From<ReadError>>(
        &self,
        key: &Key,
        work: impl Future<Output = Result<T, E>> + Unpin,
    ) -> Result<T, E> {
        yield_if_contended(&*self.store, &self.resources.slice_budget, key, work).await?
    }
}
