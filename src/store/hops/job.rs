//! A job that may wait for a disk, and whoever waits for what it comes to.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::oneshot;

use super::{HopError, What};
use crate::allocator;

/// A job and whoever waits for it.
pub(super) trait Job: Send {
    fn is_wanted(&self) -> bool;
    fn what(&self) -> Option<What>;
    /// Cannot be upgraded once the job runs and its caller has gone.
    fn waiter(&self) -> Weak<AtomicBool>;
    /// Tells the caller that it is not run.
    fn refuse(self: Box<Self>, why: HopError);
    /// Runs it, and `ended` before anybody has the answer.
    fn run(self: Box<Self>, ended: &dyn Fn());
}

pub(super) struct Task<T, F> {
    what: Option<What>,
    job: F,
    has_begun: Arc<AtomicBool>,
    answer: oneshot::Sender<Result<T, HopError>>,
}

impl<T, F> Task<T, F> {
    /// `has_begun` becomes true when it begins; whoever waits keeps it for as long.
    pub(super) fn new(
        what: Option<What>,
        job: F,
        has_begun: &Arc<AtomicBool>,
        answer: oneshot::Sender<Result<T, HopError>>,
    ) -> Self {
        Self { what, job, has_begun: Arc::clone(has_begun), answer }
    }
}

impl<T: Send, F: FnOnce() -> T + Send> Job for Task<T, F> {
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn what(&self) -> Option<What> {
        self.what.clone()
    }

    fn waiter(&self) -> Weak<AtomicBool> {
        Arc::downgrade(&self.has_begun)
    }

    fn refuse(self: Box<Self>, why: HopError) {
        let _ = self.answer.send(Err(why));
    }

    fn run(self: Box<Self>, ended: &dyn Fn()) {
        let Self { what: _, job, has_begun, answer } = *self;
        has_begun.store(true, Ordering::Relaxed);
        // Whoever waits has the other.
        drop(has_begun);
        let result = catch_unwind(AssertUnwindSafe(job));
        ended();
        // A panic is told by the answer that never comes.
        if let Ok(value) = result {
            let _ = answer.send(Ok(value));
        }
        allocator::collect();
    }
}
