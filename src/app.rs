//! Assembles the server from the configuration: opens the containers, binds the address, serves, and shuts down.

mod connection_memory;
mod connection_signals;
mod connections;
mod escape_control;
mod fast_connection;
mod goaway_reason;
mod header_filter;
mod hpack;
mod http2_frames;
mod http2_watchdog;
mod hyper_connection;
mod inspect;
mod listener;
mod memory_limit;
mod metered_socket;
mod mounts;
mod off_thread;
mod peers;
mod reload;
mod reply_writer;
mod sd_notify;
mod send_queue;
mod serving_snapshot;
mod settings;
mod so_meminfo;
mod socket;
mod threshold_pool;
mod tls;
mod tls_socket;
mod verify;
mod workers;

use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;

use connections::ConnectionServer;
pub use inspect::inspect;
use listener::Listener;
use mounts::Mounts;
use off_thread::off_thread;
pub use reload::Reloader;
use reload::ServerState;
pub use sd_notify::SdNotifier;
pub use settings::{check_rules, open_access_control};
use settings::{container_settings, http_options, refresh_access_control};
use tls::TlsTerminator;
pub use verify::verify;
use workers::{DocumentRuntime, WorkerPool};

use crate::config::Config;
use crate::container::Resources;
use crate::cpu_pool::{CpuPool, Priority};
use crate::http::{self, Viewer};
use crate::store::StoreError;
use crate::{allocator, demo, metrics, n5, telemetry, trace};

/// Longest time to export the remaining traces at shutdown.
const TRACE_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval at which memory that the allocator retains is returned to the system.
const TRIM_INTERVAL: Duration = Duration::from_millis(250);

/// A server that is bound to its address and serves when it is run.
#[derive(Debug)]
pub struct Server {
    listener: Listener,
    workers: WorkerPool,
    documents: DocumentRuntime,
    tls: Option<TlsTerminator>,
    config: Config,
    reloader: Reloader,
}

/// Returns the reserved first path segments, which no container may have as its name.
pub fn reserved_names() -> Vec<&'static str> {
    http::route::endpoints().map(|(name, _)| name).collect()
}

/// Serves until SIGTERM or SIGINT. On SIGHUP, applies the configuration that `read_config` then returns. Reports the
/// server's state to `supervisor`.
///
/// # Errors
/// If no configured container can be opened or the address cannot be bound.
pub async fn serve(
    config: Config,
    read_config: impl Fn() -> anyhow::Result<Config> + Clone + Send + 'static,
    supervisor: SdNotifier,
) -> anyhow::Result<()> {
    // Installed before anything slow. A signal that arrives during startup is then not lost, and does not end the
    // process by its default action.
    let mut stop = Box::pin(shutdown_signal()?);
    let mut hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    let metrics = telemetry::install_metrics()?;
    metrics::describe();
    metrics::describe_store_errors(StoreError::KINDS);
    metrics::describe_codecs(n5::Codecs::built_in().names());
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
    let reload_notifier = Arc::clone(&supervisor);
    let reload_task = tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            reload_notifier.reloading();
            reloader.reload(read_config.clone()).await;
            reload_notifier.ready();
        }
    });
    server.announce();
    supervisor.ready();
    let stop = async move {
        stop.await;
        // The task may wait forever, and no reload is needed any more.
        reload_task.abort();
        supervisor.stopping();
    };
    server.run(stop).await;
    trace::flush(TRACE_FLUSH_TIMEOUT);
    Ok(())
}

impl Server {
    /// Opens the containers and binds the address. `render_metrics` returns the text of `/metrics`.
    ///
    /// # Errors
    /// If no configured container can be opened or the address cannot be bound.
    pub async fn bind(
        config: Config,
        render_metrics: impl Fn() -> String + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let resources = Resources::new(container_settings(&config));
        let trim_cpu = CpuPool::new(1);
        tokio::spawn(trim_periodically(Arc::downgrade(&resources), trim_cpu.clone()));
        let mounts = Mounts::start(&config, &resources).await?;
        let timeout = config.server.request_timeout;
        let directory = config.server.viewer.clone();
        let opened_viewer = off_thread(timeout, move || Ok(Viewer::open(&directory)?)).await;
        let viewer = opened_viewer.unwrap_or_else(|error| {
            let (directory, why) = (config.server.viewer.display(), format!("{error:#}"));
            tracing::warn!(%directory, why, "no viewer is served: its directory cannot be read");
            None
        });
        let documents = DocumentRuntime::start(config.threads()).context("the threads cannot be started")?;
        let checked_config = config.clone();
        let (control, tls) =
            off_thread(timeout, move || Ok((open_access_control(&checked_config)?, open_tls(&checked_config)?)))
                .await
                .context("cannot load the files of [access], [jwt] and [tls]")?;
        let listener = Listener::bind(&config.server.listen).await?;
        let workers = WorkerPool::start(config.threads()).context("the threads cannot be started")?;
        let (document_runtime, initial_config) = (documents.handle(), config.clone());
        let state =
            ServerState { config: initial_config, mounts, resources, trim_cpu, control, viewer, document_runtime };
        let reloader = Reloader::new(state, render_metrics);
        Ok(Self { listener, workers, documents, tls, config, reloader })
    }

    /// Returns a handle that applies other configurations to this server.
    pub fn reloader(&self) -> Reloader {
        self.reloader.clone()
    }

    /// Returns the bound address, including the port that the system picked; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.address()
    }

    /// Returns the URL at which clients reach the server.
    fn url(&self) -> String {
        let base = &self.config.server.base_path;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match (self.listener.path(), self.address()) {
            (Some(path), _) => format!("unix:{}", path.display()),
            (None, Some(address)) => format!("{scheme}://{address}{base}/"),
            (None, None) => "an unknown address".to_owned(),
        }
    }

    /// Logs and prints the server's address, what it serves and how much memory it may take.
    fn announce(&self) {
        let memory_bound_bytes = self.config.memory_bound_bytes();
        let url = self.url();
        let containers: Vec<String> = self
            .config
            .containers
            .iter()
            .map(|container| {
                let name = if container.name.is_empty() { "/" } else { &container.name };
                format!("{name} = {}", container.root.display())
            })
            .collect();
        let containers =
            if containers.is_empty() { "the embedded demo container".to_owned() } else { containers.join(", ") };
        let snapshot = self.reloader.snapshot();
        let (connections, connections_bytes) =
            (self.config.server.max_connections, self.config.max_connections_bytes());
        let sockets_bytes = self.config.sockets_bytes();
        let [bound_mib, connections_mib, sockets_mib] =
            [memory_bound_bytes, connections_bytes, sockets_bytes].map(|bytes| bytes.div_ceil(1 << 20));
        let viewer = snapshot.app.viewer().map(|viewer| viewer.directory().display().to_string());
        let viewer = viewer.unwrap_or_else(|| "none".to_owned());
        tracing::info!(%url, containers = containers, viewer, memory_bound_bytes = memory_bound_bytes, connections_bytes, sockets_bytes, "listening");
        metrics::memory_bound(memory_bound_bytes);
        memory_limit::warn_if_below(max_process_bytes(&self.config));
        let mut out = std::io::stdout().lock();
        // Write errors are ignored: standard output may be closed, and the log has the same information.
        let _ = writeln!(out, "n5-server {} listening on {url}", env!("CARGO_PKG_VERSION"));
        let _ = writeln!(
            out,
            "serving {containers}; caches, budgets and threads take at most {bound_mib} MiB, {connections} connections {connections_mib} MiB more, \
             sockets {sockets_mib} MiB in the kernel"
        );
        if self.config.containers.is_empty() {
            let _ = writeln!(out, "{}", demo::tour(&url));
        }
        let _ = out.flush();
    }

    /// Serves until `stop` completes, then finishes the answers that have begun.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        // No snapshot is kept here, because a reload replaces it.
        let Self { listener, workers, documents: _documents, tls, config, reloader } = self;
        let connections = ConnectionServer::new(&config, reloader.subscribe(), workers, tls);
        let drain_on_stop = async {
            stop.await;
            tracing::info!("shutting down: not ready any more");
            reloader.drain();
            tokio::time::sleep(reloader.snapshot().drain_delay).await;
        };
        let wake_on_reload = async {
            let mut snapshots = reloader.subscribe();
            loop {
                snapshots.changed().await;
                connections.wake_all();
            }
        };
        tokio::select! {
            never = listener.serve(&connections) => match never {},
            () = drain_on_stop => {}
            () = wake_on_reload => {}
            () = reloader.retry_unopened_containers() => {}
        }
        let deadline = reloader.snapshot().shutdown_timeout;
        let shutdown_deadline = tokio::time::Instant::now() + deadline;
        connections.begin_shutdown();
        let _closed = tokio::time::timeout_at(shutdown_deadline, listener.close(&connections)).await;
        // `wait_drained` also waits for connections on which only part of a request has arrived. No answer is due
        // there.
        let (unflushed, awaiting_request) = (connections.unflushed_connections(), connections.awaiting_first_request());
        let all_answered = async {
            // Checked in this order: otherwise a first request that arrives during the quiet period would be missed.
            while awaiting_request.strong_count() > 1 || !is_quiescent(&reloader, &unflushed).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = connections.wait_drained() => tracing::info!("all answers finished"),
            () = all_answered => tracing::info!("all answers finished"),
            () = tokio::time::sleep_until(shutdown_deadline) => tracing::warn!(?deadline, "answers cut off at the deadline"),
        }
    }
}

/// Returns the most memory that the process may take, in bytes.
fn max_process_bytes(config: &Config) -> u64 {
    let bound = config.memory_bound_bytes();
    [config.max_connections_bytes(), config.sockets_bytes(), memory_limit::BASELINE_BYTES]
        .into_iter()
        .fold(bound, u64::saturating_add)
}

/// Periodically gives freed memory back to the system, on `cpu`, while `resources` exist.
async fn trim_periodically(resources: Weak<Resources>, cpu: CpuPool) {
    loop {
        tokio::time::sleep(TRIM_INTERVAL).await;
        let Some(resources) = resources.upgrade() else { return };
        resources.release_unused();
        drop(resources);
        if cpu.run(Priority::High, 0, allocator::trim).await.is_err() {
            return;
        }
    }
}

/// Returns true if no answer runs and none is being sent for 250 ms.
async fn is_quiescent(reloader: &Reloader, unflushed: &AtomicUsize) -> bool {
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if reloader.snapshot().app.requests_in_flight() > 0 || unflushed.load(Ordering::Acquire) > 0 {
            return false;
        }
    }
    true
}

/// Returns a future that completes when the process is told to stop. The call installs the signal handlers, not the
/// first poll.
fn shutdown_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Checks that the TLS certificate and key can be used, if they are configured.
///
/// # Errors
/// If they cannot be used.
pub fn check_tls(config: &Config) -> anyhow::Result<()> {
    open_tls(config).map(drop)
}

fn open_tls(config: &Config) -> anyhow::Result<Option<TlsTerminator>> {
    TlsTerminator::open(&config.tls).map_err(anyhow::Error::msg)
}
