//! Flags that a connection's fast path, hyper behind it, and the server share.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::watch;

use crate::metrics::CloseReason;

/// Flags of one connection.
#[derive(Debug, Default)]
pub(super) struct ConnectionSignals {
    /// True while hyper has a request that it has not answered completely.
    busy: AtomicBool,
    /// True if no further request will be answered.
    closing: AtomicBool,
    /// Why the server closes the connection, if its client keeps it open.
    close_reason: OnceLock<CloseReason>,
}

impl ConnectionSignals {
    /// Records that hyper has a request to answer.
    pub(super) fn set_busy(&self) {
        self.busy.store(true, Ordering::Release);
    }

    /// Records that hyper has the complete answer, or will never have it.
    pub(super) fn clear_busy(&self) {
        self.busy.store(false, Ordering::Release);
    }

    /// Asks the fast connection to close after the current answer.
    pub(super) fn request_close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Records why the server closes the connection; the first reason counts.
    pub(super) fn set_close_reason(&self, reason: CloseReason) {
        self.close_reason.get_or_init(|| reason);
    }

    pub(super) fn close_reason(&self) -> Option<CloseReason> {
        self.close_reason.get().copied()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }
}

/// Counts a connection while it has output of hyper that is not flushed, in a counter of all connections. hyper drops a
/// response when it has buffered all of it, long before a slow client has received it.
pub(super) struct UnflushedGuard {
    count: Arc<AtomicUsize>,
    is_counted: bool,
}

impl UnflushedGuard {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        Self { count: Arc::clone(count), is_counted: false }
    }

    pub(super) fn mark_unflushed(&mut self) {
        if !std::mem::replace(&mut self.is_counted, true) {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn is_unflushed(&self) -> bool {
        self.is_counted
    }

    pub(super) fn mark_flushed(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for UnflushedGuard {
    fn drop(&mut self) {
        self.mark_flushed();
    }
}

/// Waits until the flag is set or its sender is dropped.
pub(super) async fn wait_until_set(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|flag| *flag).await);
}
