//! Snapshot of everything that requests are served with. A reload of the configuration replaces it as a whole: each
//! request sees one configuration from its head to its end, and connections stay open.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use ipnet::IpNet;
use tokio::sync::watch;

use crate::config::Config;
use crate::http::{self, App};

/// Immutable snapshot of the application and the settings of connections.
pub(crate) struct ServingSnapshot {
    pub(crate) app: Arc<App>,
    pub(super) router: Router,
    /// Applies to connections accepted from now on, as do the other settings.
    pub(super) header_timeout: Duration,
    pub(super) send_timeout: Duration,
    /// Maximum number of connections of one address; 0 for no limit.
    pub(super) max_connections_per_address: usize,
    /// Networks of proxies, whose connections belong to other clients.
    trusted_proxies: Vec<IpNet>,
    /// At shutdown, how long the server continues to serve as usual.
    pub(crate) drain_delay: Duration,
    /// At shutdown, how long answers that have begun may take after that.
    pub(crate) shutdown_timeout: Duration,
}

impl ServingSnapshot {
    pub(crate) fn new(config: &Config, app: Arc<App>) -> Arc<Self> {
        Arc::new(Self {
            router: http::router(Arc::clone(&app)),
            app,
            header_timeout: config.server.header_timeout,
            send_timeout: config.server.send_timeout,
            max_connections_per_address: config.clients.connections,
            trusted_proxies: config.server.trusted_proxies.clone(),
            drain_delay: config.server.drain_delay,
            shutdown_timeout: config.server.shutdown_timeout,
        })
    }

    /// Returns true if connections of `address` belong to the clients of a trusted proxy.
    pub(super) fn is_proxy(&self, address: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|network| network.contains(&address))
    }
}

/// Cache of the snapshot in use, which costs one check of a counter for each request.
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
