//! Counts of the requests that wait for memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of requests that wait for a permit of a budget: in total, and of one container.
#[derive(Debug, Clone, Default)]
pub(crate) struct WaiterCounts {
    total_count: Arc<AtomicUsize>,
    container_count: Arc<AtomicUsize>,
}

/// Guard that counts a waiter until it is dropped.
#[derive(Debug)]
pub(crate) struct WaiterGuard(WaiterCounts);

impl WaiterCounts {
    /// Returns counts for another container, which share the total.
    pub(crate) fn for_container(&self) -> Self {
        Self { total_count: Arc::clone(&self.total_count), container_count: Arc::default() }
    }

    pub(crate) fn begin(&self) -> WaiterGuard {
        self.container_count.fetch_add(1, Ordering::Relaxed);
        self.total_count.fetch_add(1, Ordering::Relaxed);
        WaiterGuard(self.clone())
    }

    /// Returns true if a request waits.
    pub(crate) fn has_any(&self) -> bool {
        self.total_count.load(Ordering::Relaxed) > 0
    }

    /// Returns true if a request of another container waits. The result may be briefly wrong while waiters come and go.
    pub(crate) fn has_other_containers(&self) -> bool {
        self.total_count.load(Ordering::Relaxed) > self.container_count.load(Ordering::Relaxed)
    }
}

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.total_count.fetch_sub(1, Ordering::Relaxed);
        self.0.container_count.fetch_sub(1, Ordering::Relaxed);
    }
}
