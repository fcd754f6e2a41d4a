//! Snapshot of the application and the configuration that serve requests. A reload replaces the snapshot as a whole.
//! Each request thus sees one configuration from beginning to end, and connections stay open.

use std::sync::Arc;

use axum::Router;
use tokio::sync::watch;

use crate::config::Config;
use crate::http::{self, App};

/// Immutable snapshot of the application and the configuration.
pub(crate) struct ServingSnapshot {
    pub(crate) app: Arc<App>,
    pub(super) router: Router,
    /// The timeouts and limits of connections in this configuration apply only to connections that are accepted from
    /// now on.
    pub(crate) config: Config,
}

impl ServingSnapshot {
    pub(crate) fn new(config: Config, app: Arc<App>) -> Arc<Self> {
        Arc::new(Self { router: http::router(Arc::clone(&app)), app, config })
    }
}

/// A connection's copy of the current snapshot. Each request then only compares a counter to find out whether the
/// snapshot has been replaced.
pub(super) struct SnapshotCache {
    receiver: watch::Receiver<Arc<ServingSnapshot>>,
    cached: Option<Arc<ServingSnapshot>>,
}

impl SnapshotCache {
    pub(super) fn new(receiver: watch::Receiver<Arc<ServingSnapshot>>) -> Self {
        Self { receiver, cached: None }
    }

    /// Returns the application for a request that begins now.
    pub(super) fn app(&mut self) -> &Arc<App> {
        self.drop_if_stale();
        let receiver = &mut self.receiver;
        &self.cached.get_or_insert_with(|| Arc::clone(&receiver.borrow_and_update())).app
    }

    /// Drops the cached snapshot if it has been replaced. Otherwise it would live until the next request.
    pub(super) fn drop_if_stale(&mut self) {
        if self.receiver.has_changed().unwrap_or(false) {
            self.cached = None;
        }
    }

    /// Drops the cached snapshot, because no request needs it for a while.
    pub(super) fn clear(&mut self) {
        self.cached = None;
    }
}
