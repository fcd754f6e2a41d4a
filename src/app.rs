//! Puts the parts together: configuration to containers to router; binds, serves, shuts down.

mod bounded;
mod charge;
mod connections;
mod fields;
mod frames;
mod hpack;
mod inspect;
mod lane;
mod library;
mod listener;
mod meminfo;
mod memory_limit;
mod metered;
mod mounts;
mod notify;
mod peers;
mod pool;
mod progress;
mod refusal;
mod reload;
mod secure;
mod send_queue;
mod sending;
mod serving;
mod settings;
mod signals;
mod socket;
mod tls;
mod verify;
mod visible;
mod workers;

use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;

use bounded::off_thread;
use connections::Connections;
pub use inspect::inspect;
use listener::Listener;
use mounts::Mounts;
pub use notify::Supervisor;
pub use reload::Reloader;
use reload::State;
pub use settings::{check_rules, control};
use settings::{control_after, options, settings};
use tls::Tls;
pub use verify::verify;
use workers::{Documents, Workers};

use crate::config::Config;
use crate::container::Resources;
use crate::cpu::{Cpu, Length};
use crate::http::{self, Viewer};
use crate::store::StoreError;
use crate::{allocator, demo, metrics, n5, telemetry, trace};

/// How long traces may take to leave at the end.
const FLUSH: Duration = Duration::from_secs(2);

/// How often memory that the allocator keeps for itself is given back.
const TRIM: Duration = Duration::from_millis(250);

/// A server that has its address and serves when run.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    workers: Workers,
    documents: Documents,
    tls: Option<Tls>,
    config: Config,
    reloader: Reloader,
}

/// First path segments that have a meaning of their own, which no container may be named.
pub fn reserved() -> Vec<&'static str> {
    http::target::views().map(|(name, _)| name).collect()
}

/// Serves until SIGTERM or SIGINT; at SIGHUP, by the configuration that `read` gives then. Tells `supervisor` how it goes.
///
/// # Errors
/// When a container cannot be opened or the address cannot be bound.
pub async fn serve(
    config: Config,
    read: impl Fn() -> anyhow::Result<Config> + Clone + Send + 'static,
    supervisor: Supervisor,
) -> anyhow::Result<()> {
    // Before anything that may take its time: a signal that comes meanwhile is not lost, and does not end the process its
    // own way.
    let mut stop = Box::pin(signal()?);
    let mut again = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    let metrics = telemetry::install_metrics()?;
    metrics::describe();
    metrics::describe_store_errors(StoreError::KINDS);
    metrics::describe_codecs(n5::CODECS.iter().map(|(name, _)| *name));
    tokio::spawn(metrics.clone().upkeep());
    if !config.tracing.otlp_endpoint.is_empty() {
        trace::start(&config.tracing.otlp_endpoint, config.tracing.one_in).context("traces cannot be sent")?;
    }
    let server = tokio::select! {
        server = Server::bind(config, move || metrics.render()) => server?,
        () = &mut stop => {
            tracing::info!("told to stop before anything was served");
            supervisor.stopping();
            return Ok(());
        }
    };
    let reloader = server.reloader();
    let supervisor = Arc::new(supervisor);
    let told = Arc::clone(&supervisor);
    let reloading = tokio::spawn(async move {
        while again.recv().await.is_some() {
            told.reloading();
            reloader.reload(read.clone()).await;
            told.ready();
        }
    });
    server.announce();
    supervisor.ready();
    let stop = async move {
        stop.await;
        // What it waits for may never come, and is not wanted any more.
        reloading.abort();
        supervisor.stopping();
    };
    server.run(stop).await;
    trace::flush(FLUSH);
    Ok(())
}

impl Server {
    /// Opens the containers and takes the address; `render_metrics` makes the text of `/metrics`.
    ///
    /// # Errors
    /// When a container cannot be opened or the address cannot be bound.
    pub async fn bind(
        config: Config,
        render_metrics: impl Fn() -> String + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let resources = Resources::new(settings(&config));
        let trimming = Cpu::new(1);
        tokio::spawn(trim(Arc::downgrade(&resources), trimming.clone()));
        let mounts = Mounts::start(&config, &resources).await?;
        let limit = config.server.request_timeout;
        let directory = config.server.viewer.clone();
        let found = off_thread(limit, move || Ok(Viewer::find(&directory)?)).await;
        let viewer = found.unwrap_or_else(|error| {
            let (directory, why) = (config.server.viewer.display(), format!("{error:#}"));
            tracing::warn!(%directory, why, "no viewer is served: its directory cannot be looked at");
            None
        });
        let documents = Documents::start(config.threads()).context("the threads cannot be started")?;
        let wanted = config.clone();
        let (control, tls) = off_thread(limit, move || Ok((control(&wanted)?, tls(&wanted)?)))
            .await
            .context("the files of [access], [jwt] and [tls]")?;
        let listener = Listener::bind(&config.server.listen).await?;
        let workers = Workers::start(config.threads()).context("the threads cannot be started")?;
        let (handle, settled) = (documents.handle(), config.clone());
        let state = State { config: settled, mounts, resources, trimming, control, viewer, documents: handle };
        let reloader = Reloader::new(state, render_metrics);
        Ok(Self { listener, workers, documents, tls, config, reloader })
    }

    /// What gives this server other configurations.
    pub fn reloader(&self) -> Reloader {
        self.reloader.clone()
    }

    /// The address in use, with the port that was picked.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.address()
    }

    /// Where clients find it.
    fn url(&self) -> String {
        let base = &self.config.server.base_path;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match (self.listener.path(), self.address()) {
            (Some(path), _) => format!("unix:{}", path.display()),
            (None, Some(address)) => format!("{scheme}://{address}{base}/"),
            (None, None) => "an unknown address".to_owned(),
        }
    }

    /// Says where the server is, what it serves and how much memory it may take.
    fn announce(&self) {
        let bound = self.config.memory_bytes();
        let url = self.url();
        let served: Vec<String> = self
            .config
            .containers
            .iter()
            .map(|container| {
                let name = if container.name.is_empty() { "/" } else { &container.name };
                format!("{name} = {}", container.root.display())
            })
            .collect();
        let served = if served.is_empty() { "the embedded demo container".to_owned() } else { served.join(", ") };
        let serving = self.reloader.serving();
        let (connections, connections_bytes) = (self.config.server.max_connections, self.config.connections_bytes());
        let sockets_bytes = self.config.sockets_bytes();
        let [mebibytes, more, sockets] = [bound, connections_bytes, sockets_bytes].map(|bytes| bytes.div_ceil(1 << 20));
        let viewer = serving.app.viewer().map(|viewer| viewer.directory().display().to_string());
        let viewer = viewer.unwrap_or_else(|| "none".to_owned());
        tracing::info!(%url, containers = served, viewer, memory_bound_bytes = bound, connections_bytes, sockets_bytes, "listening");
        metrics::memory_bound(bound);
        memory_limit::warn(needed_bytes(&self.config));
        let mut out = std::io::stdout().lock();
        // Nobody may be reading; the log has it, too.
        let _ = writeln!(out, "n5-server {} listening on {url}", env!("CARGO_PKG_VERSION"));
        let _ = writeln!(
            out,
            "serving {served}; caches, budgets and threads take at most {mebibytes} MiB, {connections} connections {more} MiB more, \
             sockets {sockets} MiB in the kernel"
        );
        if self.config.containers.is_empty() {
            let _ = writeln!(out, "{}", demo::tour(&url));
        }
        let _ = out.flush();
    }

    /// Serves until `stop` is ready, then finishes the answers that have begun.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        // Nothing of what is served with is kept here: it changes.
        let Self { listener, workers, documents: _documents, tls, config, reloader } = self;
        let connections = Connections::new(&config, reloader.news(), workers, tls);
        let stopping = async {
            stop.await;
            tracing::info!("shutting down: not ready any more");
            reloader.drain();
            tokio::time::sleep(reloader.serving().drain_delay).await;
        };
        let letting_go = async {
            let mut news = reloader.news();
            loop {
                news.changed().await;
                connections.wake();
            }
        };
        tokio::select! {
            never = listener.serve(&connections) => match never {},
            () = stopping => {}
            () = letting_go => {}
            () = reloader.find_containers() => {}
        }
        let deadline = reloader.serving().shutdown_timeout;
        let until = tokio::time::Instant::now() + deadline;
        connections.close();
        let _closed = tokio::time::timeout_at(until, listener.close(&connections)).await;
        // Connections on which part of a request has come would be waited for; nobody has an answer there.
        let (unsent, arriving) = (connections.unsent(), connections.arriving());
        let answered = async {
            // What arrives in the moment of quiet would be missed.
            while arriving.strong_count() > 1 || !quiet(&reloader, &unsent).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = connections.finished() => tracing::info!("all answers finished"),
            () = answered => tracing::info!("all answers finished"),
            () = tokio::time::sleep_until(until) => tracing::warn!(?deadline, "answers cut off at the deadline"),
        }
    }
}

/// What the process may take, in bytes.
fn needed_bytes(config: &Config) -> u64 {
    let bound = config.memory_bytes();
    [config.connections_bytes(), config.sockets_bytes(), memory_limit::BESIDE]
        .into_iter()
        .fold(bound, u64::saturating_add)
}

/// Gives freed memory back to the system, on `cpu`, as long as there are `resources`.
async fn trim(resources: Weak<Resources>, cpu: Cpu) {
    loop {
        tokio::time::sleep(TRIM).await;
        let Some(resources) = resources.upgrade() else { return };
        resources.tidy();
        drop(resources);
        if cpu.run(Length::Short, 0, allocator::trim).await.is_err() {
            return;
        }
    }
}

/// Whether no answer begins within a moment, and none is being sent.
async fn quiet(reloader: &Reloader, unsent: &AtomicUsize) -> bool {
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if reloader.serving().app.running() > 0 || unsent.load(Ordering::Acquire) > 0 {
            return false;
        }
    }
    true
}

/// Ready when the process is told to stop. Listens from the call on, not from the first poll.
fn signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Whether certificate and key can be used, where there are any.
///
/// # Errors
/// What is wrong with them.
pub fn check_tls(config: &Config) -> anyhow::Result<()> {
    tls(config).map(drop)
}

fn tls(config: &Config) -> anyhow::Result<Option<Tls>> {
    Tls::open(&config.tls).map_err(anyhow::Error::msg)
}
