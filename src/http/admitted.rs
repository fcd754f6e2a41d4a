//! Requests that have, or ask for, a place among all that are answered at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many there are.
#[derive(Debug, Default)]
pub(super) struct Admitted(Arc<AtomicUsize>);

impl Admitted {
    /// One more, until what this returns is dropped.
    pub(super) fn begin(&self) -> One {
        self.0.fetch_add(1, Ordering::Relaxed);
        One(Arc::clone(&self.0))
    }

    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of them. Problems and what operations answer are sent without, but for those of [`super::quick`]: a client that takes
/// nothing of them keeps no place.
#[derive(Debug)]
pub(super) struct One(Arc<AtomicUsize>);

impl Drop for One {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
