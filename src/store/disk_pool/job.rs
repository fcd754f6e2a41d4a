//! A job that may block on a disk, and the caller that waits for its result.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use tokio::sync::oneshot;

use crate::allocator;
use crate::store::key::Key;

/// Operation of a call: the action and the key.
pub(in crate::store) type DiskOperation = (&'static str, Key);

/// Why a job has no result.
#[derive(Debug)]
pub(in crate::store) enum DiskPoolError {
    /// The job took longer than the deadline.
    Timeout,
    /// The disk has answered no call for so long that the job was not tried.
    Stalled,
    /// Other calls for the same operation have waited for too long.
    OperationStalled,
    /// The queue is full.
    QueueFull,
    /// The system cannot start a thread, or the job panicked.
    Thread(io::Error),
}

/// A job and its caller.
pub(super) trait ErasedDiskJob: Send {
    fn has_waiter(&self) -> bool;
    fn operation(&self) -> Option<DiskOperation>;
    /// Returns a reference that cannot be upgraded once the job runs and its caller has gone.
    fn waiter(&self) -> Weak<AtomicBool>;
    /// Tells the caller that the job is not run.
    fn reject(self: Box<Self>, why: DiskPoolError);
    /// Runs the job. Calls `ended` before the caller gets the result.
    fn run(self: Box<Self>, ended: &dyn Fn());
}

pub(super) struct DiskJob<T, F> {
    operation: Option<DiskOperation>,
    job: F,
    has_begun: Arc<AtomicBool>,
    reply: oneshot::Sender<Result<T, DiskPoolError>>,
}

impl<T, F> DiskJob<T, F> {
    /// Creates a job. `has_begun` becomes true when the job starts; the caller holds a clone while it waits.
    pub(super) fn new(
        operation: Option<DiskOperation>,
        job: F,
        has_begun: &Arc<AtomicBool>,
        reply: oneshot::Sender<Result<T, DiskPoolError>>,
    ) -> Self {
        Self { operation, job, has_begun: Arc::clone(has_begun), reply }
    }
}

impl<T: Send, F: FnOnce() -> T + Send> ErasedDiskJob for DiskJob<T, F> {
    fn has_waiter(&self) -> bool {
        !self.reply.is_closed()
    }

    fn operation(&self) -> Option<DiskOperation> {
        self.operation.clone()
    }

    fn waiter(&self) -> Weak<AtomicBool> {
        Arc::downgrade(&self.has_begun)
    }

    fn reject(self: Box<Self>, why: DiskPoolError) {
        let _ = self.reply.send(Err(why));
    }

    fn run(self: Box<Self>, ended: &dyn Fn()) {
        let Self { operation: _, job, has_begun, reply: answer } = *self;
        has_begun.store(true, Ordering::Relaxed);
        // The caller holds the other clone.
        drop(has_begun);
        let result = catch_unwind(AssertUnwindSafe(job));
        ended();
        // After a panic, the reply never comes, which tells the caller.
        if let Ok(value) = result {
            let _ = answer.send(Ok(value));
        }
        allocator::collect_thread_heap();
    }
}
