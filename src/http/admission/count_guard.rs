//! Counts of requests that wait for something.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts a request until dropped, also if its client disconnects.
pub(crate) struct CountGuard<'a> {
    count: &'a AtomicUsize,
    /// Number of requests that were counted before.
    pub(crate) others: usize,
}

impl<'a> CountGuard<'a> {
    pub(crate) fn new(count: &'a AtomicUsize) -> Self {
        Self { count, others: count.fetch_add(1, Ordering::SeqCst) }
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}
