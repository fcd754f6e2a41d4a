//! Flags that the parts of a connection share, and a function that waits for a flag of the server.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::telemetry::metrics::CloseReason;

/// Flags of one connection. The fast path, hyper's service and the task of the connection share them.
#[derive(Debug, Default)]
pub(super) struct ConnectionSignals {
    /// True while hyper has a request that it has not answered completely.
    is_busy: AtomicBool,
    /// True if the connection must end after the current response.
    is_closing: AtomicBool,
    /// Why the server closes the connection, if it does so before its client.
    pub(super) close_reason: OnceLock<CloseReason>,
}

impl ConnectionSignals {
    /// Records whether hyper has a request that it has not answered completely.
    pub(super) fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Release);
    }

    pub(super) fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Acquire)
    }

    /// Asks the fast path to end the connection after the current response.
    pub(super) fn request_close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Records why the server closes the connection. Only the first reason counts.
    pub(super) fn set_close_reason(&self, reason: CloseReason) {
        self.close_reason.get_or_init(|| reason);
    }
}

/// Waits until the flag is set or its sender is dropped.
pub(super) async fn wait_until_set(flag: &mut watch::Receiver<bool>) {
    drop(flag.wait_for(|is_set| *is_set).await);
}
