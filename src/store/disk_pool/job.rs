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
    fn reject(self: Box<Self>, error: DiskPoolError);
    /// Runs the job. Calls `on_end` before the caller gets the result.
    fn run(self: Box<Self>, on_end: &dyn Fn());
}

pub(super) struct DiskJob<T, F> {
    operation: Option<DiskOperation>,
    job: F,
    has_started: Arc<AtomicBool>,
    reply: oneshot::Sender<Result<T, DiskPoolError>>,
}

impl<T, F> DiskJob<T, F> {
    /// Creates a job. `has_started` becomes true when the job starts; the caller holds a clone while it waits.
    pub(super) fn new(
        operation: Option<DiskOperation>,
        job: F,
        has_started: &Arc<AtomicBool>,
        reply: oneshot::Sender<Result<T, DiskPoolError>>,
    ) -> Self {
        Self { operation, job, has_started: Arc::clone(has_started), reply }
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
        Arc::downgrade(&self.has_started)
    }

    fn reject(self: Box<Self>, error: DiskPoolError) {
        let _ = self.reply.send(Err(error));
    }

    fn run(self: Box<Self>, on_end: &dyn Fn()) {
        let Self { operation: _, job, has_started, reply } = *self;
        has_started.store(true, Ordering::Relaxed);
        // The caller holds the other clone.
        drop(has_started);
        let result = catch_unwind(AssertUnwindSafe(job));
        on_end();
        // After a panic, the reply never comes, which tells the caller.
        if let Ok(value) = result {
            let _ = reply.send(Ok(value));
        }
        allocator::collect_thread_heap();
    }
}
