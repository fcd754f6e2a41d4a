//! The server: opens the configured containers, binds the address, serves requests, reloads the configuration, and
//! shuts down.

mod access_control;
mod mounts;
mod process_memory;
mod reload;

use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use scopeguard::ScopeGuard;
use tokio::runtime::Runtime;

use crate::access::AccessControl;
use crate::config::Config;
use crate::conn::{ConnectionServer, Listener, TlsTerminator, WorkerPool, start_document_runtime};
use crate::container::{Resources, Settings};
use crate::demo;
use crate::http::Viewer;
use crate::runtime::cpu_pool::CpuPool;
use crate::runtime::off_thread::off_thread;
use crate::telemetry::metrics;
pub use access_control::{check_rules, open_access_control};
pub(crate) use mounts::{mount, open_store};
use process_memory::trim_periodically;
pub use reload::Reloader;
use reload::ServerState;

/// A server that is bound to its address, and that serves requests when it is run.
pub struct Server {
    listener: Listener,
    workers: WorkerPool,
    documents: ScopeGuard<Runtime, fn(Runtime)>,
    tls: Option<TlsTerminator>,
    reloader: Arc<Reloader>,
}

impl Server {
    /// Opens the containers and binds the address. `render_metrics` returns the text of `/metrics`.
    ///
    /// # Errors
    /// Returns an error if no configured container can be opened or the address cannot be bound.
    pub async fn bind(
        config: Config,
        render_metrics: impl Fn() -> String + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let resources = Resources::new(Settings::new(&config));
        let trim_cpu = CpuPool::new(1);
        tokio::spawn(trim_periodically(Arc::downgrade(&resources), trim_cpu.clone()));
        let mounts = mounts::start(&config, &resources).await?;
        let timeout = config.server.request_timeout;
        let directory = config.server.viewer.clone();
        let opened_viewer = off_thread(timeout, move || Ok(Viewer::open(&directory)?)).await;
        let viewer = opened_viewer.unwrap_or_else(|error| {
            let directory = config.server.viewer.display();
            let why = format!("{error:#}");
            tracing::warn!(%directory, why, "no viewer is served: its directory cannot be read");
            None
        });
        let documents = start_document_runtime(config.threads()).context("the threads cannot be started")?;
        let file_config = config.clone();
        let (control, tls) = off_thread(timeout, move || open_files(&file_config))
            .await
            .context("cannot load the files of [access], [jwt] and [tls]")?;
        let listener = Listener::bind(&config.server.listen).await?;
        let workers = WorkerPool::start(config.threads()).context("the threads cannot be started")?;
        let document_runtime = documents.handle().clone();
        let state = ServerState { config, mounts, resources, trim_cpu, control, viewer, document_runtime };
        let reloader = Arc::new(Reloader::new(state, render_metrics));
        Ok(Self { listener, workers, documents, tls, reloader })
    }

    /// Returns a handle that applies new configurations to this server.
    pub fn reloader(&self) -> Arc<Reloader> {
        Arc::clone(&self.reloader)
    }

    /// Returns the bound address, including the port that the system picked; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.address()
    }

    /// Logs and prints the server's address, its containers, and the maximum memory of the process.
    pub fn announce(&self) {
        let snapshot = self.reloader.snapshot();
        let config = &snapshot.config;
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let url = match (self.listener.path(), self.address()) {
            (Some(path), _) => format!("unix:{}", path.display()),
            (None, Some(address)) => format!("{scheme}://{address}{}/", config.server.base_path),
            (None, None) => "an unknown address".to_owned(),
        };
        let containers = config.containers.iter().map(|container| {
            let name = if container.name.is_empty() { "/" } else { &container.name };
            format!("{name} = {}", container.root.display())
        });
        let containers = containers.collect::<Vec<_>>().join(", ");
        let containers = if containers.is_empty() { "the embedded demo container".to_owned() } else { containers };
        let connections = config.server.max_connections;
        let memory_bound_bytes = config.memory_bound_bytes();
        let connections_bytes = config.max_connections_bytes();
        let sockets_bytes = config.sockets_bytes();
        let [bound_mib, connections_mib, sockets_mib] =
            [memory_bound_bytes, connections_bytes, sockets_bytes].map(|bytes| bytes.div_ceil(1 << 20));
        let viewer = snapshot.app.viewer().map(|viewer| viewer.directory().display().to_string());
        let viewer = viewer.unwrap_or_else(|| "none".to_owned());
        tracing::info!(%url, containers, viewer, memory_bound_bytes, connections_bytes, sockets_bytes, "listening");
        metrics::memory_bound(memory_bound_bytes);
        process_memory::warn_if_below_need(config);
        let mut out = std::io::stdout().lock();
        // Write errors are ignored: standard output may be closed, and the log has the same information.
        let _ = writeln!(out, "n5-server {} listening on {url}", env!("CARGO_PKG_VERSION"));
        let _ = writeln!(
            out,
            "serving {containers}; caches, budgets and threads take at most {bound_mib} MiB, {connections} connections {connections_mib} MiB more, \
             sockets {sockets_mib} MiB in the kernel"
        );
        if config.containers.is_empty() {
            let _ = writeln!(out, "{}", demo::tour(&url));
        }
        let _ = out.flush();
    }

    /// Serves until `stop` completes, then finishes the responses that have begun.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        // This function keeps no snapshot, so that a reload can free the snapshot that it replaces.
        let Self { listener, workers, documents: _documents, tls, reloader } = self;
        let connections = ConnectionServer::new(&reloader.snapshot().config, reloader.subscribe(), workers, tls);
        let drain_on_stop = async {
            stop.await;
            tracing::info!("shutting down: not ready any more");
            reloader.drain();
            tokio::time::sleep(reloader.snapshot().config.server.drain_delay).await;
        };
        let wake_on_reload = async {
            let mut snapshots = reloader.subscribe();
            // This loop never ends, because the reloader keeps the sender.
            while snapshots.changed().await.is_ok() {
                connections.wake_all();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            never = listener.serve(&connections) => match never {},
            () = drain_on_stop => {}
            () = wake_on_reload => {}
            () = reloader.retry_unopened_containers() => {}
        }
        let deadline = reloader.snapshot().config.server.shutdown_timeout;
        let shutdown_deadline = tokio::time::Instant::now() + deadline;
        connections.begin_shutdown();
        let _closed = tokio::time::timeout_at(shutdown_deadline, listener.close(&connections)).await;
        // `wait_drained` also waits for connections on which only a part of a request has arrived. Such a request gets
        // no response.
        let unflushed = connections.unflushed_connections();
        let awaiting_request = connections.awaiting_first_request();
        let all_answered = async {
            // New requests are checked before quiescence, so that a first request that arrives during the quiet period
            // is not missed.
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

/// Returns true if no response is being prepared or sent during 250 ms.
async fn is_quiescent(reloader: &Reloader, unflushed: &Weak<()>) -> bool {
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if reloader.snapshot().app.requests_in_flight() > 0 || unflushed.strong_count() > 1 {
            return false;
        }
    }
    true
}

/// Checks that the files of `[access]`, `[jwt]` and `[tls]` can be used.
///
/// # Errors
/// Returns an error if one of the files cannot be used.
pub fn check_files(config: &Config) -> anyhow::Result<()> {
    open_files(config).map(drop)
}

fn open_files(config: &Config) -> anyhow::Result<(Option<Arc<AccessControl>>, Option<TlsTerminator>)> {
    let control = open_access_control(config, None)?;
    Ok((control, TlsTerminator::open(&config.tls).map_err(anyhow::Error::msg)?))
}
