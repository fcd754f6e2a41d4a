//! What requests are served with, which is replaced as a whole when the configuration is read again: each request sees
//! one configuration from its head to its end, and connections need not end for it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::TokioExecutor;
use hyper_util::server::conn::auto::Builder;
use ipnet::IpNet;
use tokio::sync::watch;

use super::library;
use crate::config::Config;
use crate::http::{self, App};

/// All of it.
pub(super) struct Serving {
    pub(super) app: Arc<App>,
    pub(super) router: Router,
    /// For connections that are accepted from now on, like the times below.
    pub(super) http: Builder<TokioExecutor>,
    pub(super) header_timeout: Duration,
    pub(super) send_timeout: Duration,
    /// Most connections of one address; 0 for no limit.
    pub(super) connections_of_one: usize,
    /// Whose connections are others'.
    trusted_proxies: Vec<IpNet>,
    /// At the server's end: for how long it answers as ever, and what answers that have begun get after that.
    pub(super) drain_delay: Duration,
    pub(super) shutdown_timeout: Duration,
}

impl Serving {
    pub(super) fn new(config: &Config, app: Arc<App>) -> Arc<Self> {
        Arc::new(Self {
            router: http::router(Arc::clone(&app)),
            app,
            http: library::builder(config),
            header_timeout: config.server.header_timeout,
            send_timeout: config.server.send_timeout,
            connections_of_one: config.clients.connections,
            trusted_proxies: config.server.trusted_proxies.clone(),
            drain_delay: config.server.drain_delay,
            shutdown_timeout: config.server.shutdown_timeout,
        })
    }

    /// Whether connections of that address are of clients that it stands for.
    pub(super) fn is_proxy(&self, address: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|network| network.contains(&address))
    }
}

/// Where one learns what is served with now.
#[derive(Clone)]
pub(super) struct News(watch::Receiver<Arc<Serving>>);

impl News {
    pub(super) fn of(sender: &watch::Sender<Arc<Serving>>) -> Self {
        Self(sender.subscribe())
    }

    pub(super) fn current(&self) -> Arc<Serving> {
        Arc::clone(&self.0.borrow())
    }

    /// Waits until something else is served with.
    pub(super) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Keeps to what is served with now, at the cost of one look at a counter for each request.
pub(super) struct Follower {
    news: News,
    known: Option<Arc<Serving>>,
}

impl Follower {
    pub(super) fn new(news: News) -> Self {
        Self { news, known: None }
    }

    /// The application for a request that begins now.
    pub(super) fn app(&mut self) -> &Arc<App> {
        self.let_go_of_old();
        let news = &mut self.news.0;
        &self.known.get_or_insert_with(|| Arc::clone(&news.borrow_and_update())).app
    }

    /// Forgets what is not served with any more: it would live for as long as this is not asked.
    pub(super) fn let_go_of_old(&mut self) {
        if self.news.0.has_changed().unwrap_or(false) {
            self.known = None;
        }
    }

    /// Forgets what was known: nobody asks for a while, and it shall not be kept for that.
    pub(super) fn let_go(&mut self) {
        self.known = None;
    }
}
