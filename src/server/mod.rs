//! The server: opens the configured containers, binds the address, serves requests, reloads the configuration, and
//! shuts down.

mod access_control;
mod data_search;
mod mounts;
mod process_memory;
mod reload;

use std::future::Future;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
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
use crate::store::{DiskCache, DiskCacheLimits, log_upstream_costs};
use crate::telemetry::metrics;
use access_control::{access_line, access_warnings};
pub use access_control::{check_rules, open_access_control};
pub(crate) use mounts::{mount, open_store};
pub use process_memory::system_memory;
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
    /// What an operator should know about the start: how access stands, and containers without data.
    notices: Vec<String>,
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
        let mut resources = Resources::new(Settings::new(&config));
        if config.cache.disk.is_enabled() {
            let disk_cache = DiskCache::start(config.cache.disk.path.clone(), DiskCacheLimits::new(&config));
            resources = resources.with_disk_cache(disk_cache.context("the threads of cache.disk cannot be started")?);
        }
        let trim_cpu = CpuPool::new(1);
        tokio::spawn(trim_periodically(Arc::downgrade(&resources), trim_cpu.clone()));
        let mounts = mounts::start(&config, &resources).await?;
        let missing_data = mounts::without_data(&mounts).await;
        for notice in &missing_data {
            tracing::warn!("{notice}");
        }
        let timeout = config.server.request_timeout;
        let directory = config.server.viewer.clone();
        let opened_viewer = off_thread(timeout, move || Ok(Viewer::open(&directory)?)).await;
        let viewer = opened_viewer.unwrap_or_else(|error| {
            let directory = config.server.viewer.display();
            let why = format!("{error:#}");
            tracing::warn!(%directory, why, "no viewer is served: its directory cannot be read");
            None
        });
        warn_of_missing_viewer(&config, viewer.as_ref());
        let documents = start_document_runtime(config.threads()).context("the threads cannot be started")?;
        let file_config = config.clone();
        let (control, tls) = off_thread(timeout, move || open_files(&file_config))
            .await
            .context("cannot load the files of [access], [jwt] and [tls]")?;
        let listener = Listener::bind(&config.server.listen).await?;
        let access = access_line(&config, control.as_deref(), listener.address());
        if let Some(access) = &access {
            tracing::info!("{access}");
        }
        let notices = access.into_iter().chain(missing_data).collect();
        let workers = WorkerPool::start(config.threads()).context("the threads cannot be started")?;
        let document_runtime = documents.handle().clone();
        let state = ServerState { config, mounts, resources, trim_cpu, control, viewer, document_runtime };
        let reloader = Arc::new(Reloader::new(state, render_metrics));
        Ok(Self { listener, workers, documents, tls, reloader, notices })
    }

    /// Returns a handle that applies new configurations to this server.
    pub fn reloader(&self) -> Arc<Reloader> {
        Arc::clone(&self.reloader)
    }

    /// Returns the bound address, including the port that the system picked; `None` for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.address()
    }

    /// Returns the URL of the front page for a program on this machine; `None` for a Unix socket.
    pub fn local_url(&self) -> Option<String> {
        let mut address = self.address()?;
        if address.ip().is_unspecified() {
            address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
        }
        Some(self.url(address))
    }

    fn url(&self, address: SocketAddr) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{address}{}/", self.reloader.snapshot().config.server.base_path)
    }

    /// Returns the line that says where the server can be reached, if it listens on all addresses of this machine.
    fn reachable_urls(&self) -> Option<String> {
        let address = self.address().filter(|address| address.ip().is_unspecified())?;
        let local_url = self.local_url()?;
        Some(match outward_address(address) {
            Some(address) => {
                format!("on this machine: {local_url}; from other machines, probably: {}", self.url(address))
            }
            None => format!("on this machine: {local_url}"),
        })
    }

    /// Logs and prints the server's addresses, its containers, and the maximum memory of the process. Prints how access
    /// stands, and containers without data.
    pub fn announce(&self) {
        let snapshot = self.reloader.snapshot();
        let config = &snapshot.config;
        let url = match (self.listener.path(), self.address()) {
            (Some(path), _) => format!("unix:{}", path.display()),
            (None, Some(address)) => self.url(address),
            (None, None) => "an unknown address".to_owned(),
        };
        let containers = config.containers.iter().map(|container| {
            let name = if container.name.is_empty() { "/" } else { &container.name };
            format!("{name} = {}", container.root)
        });
        let containers = containers.collect::<Vec<_>>().join(", ");
        let containers = if containers.is_empty() { "the embedded demo container".to_owned() } else { containers };
        let connections = config.server.max_connections;
        let memory_bound_bytes = config.memory_bound_bytes();
        let connections_bytes = config.max_connections_bytes();
        let sockets_bytes = config.sockets_bytes();
        let [bound_mib, connections_mib, sockets_mib] =
            [memory_bound_bytes, connections_bytes, sockets_bytes].map(|bytes| bytes.div_ceil(1 << 20));
        let viewer = snapshot.app.viewer().map_or_else(|| "none".to_owned(), Viewer::place);
        let mut lines = vec![format!("n5-server {} listening on {url}", env!("CARGO_PKG_VERSION"))];
        lines.extend(self.reachable_urls());
        lines.push(format!(
            "serving {containers}; caches, budgets and threads take at most {bound_mib} MiB, {connections} connections {connections_mib} MiB more, \
             sockets {sockets_mib} MiB in the kernel"
        ));
        let memory_limit_bytes = config.memory_limit_bytes();
        let memory_limit_origin = config.memory_limit_origin();
        let sizes = config.sizes_summary();
        lines.push(format!("memory limit {} MiB, {memory_limit_origin}: {sizes}", memory_limit_bytes >> 20));
        lines.extend(self.notices.iter().cloned());
        if config.containers.is_empty() {
            lines.push(demo::tour(&self.local_url().unwrap_or(url.clone())));
        }
        lines.push(String::new());
        let mut out = std::io::stdout().lock();
        // One write, so that no line of the log comes in between. Errors are ignored: standard output may be closed, and
        // the log has the same information.
        let _ = out.write_all(lines.join("\n").as_bytes()).and_then(|()| out.flush());
        drop(out);
        tracing::info!(
            %url,
            containers,
            viewer,
            memory_bound_bytes,
            connections_bytes,
            sockets_bytes,
            memory_limit_bytes,
            memory_limit_origin,
            "listening"
        );
        metrics::memory_bound(memory_bound_bytes);
        process_memory::warn_if_below_need(config);
    }

    /// Serves until `stop` completes, then finishes the responses that have begun.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        // This function keeps no snapshot, so that a reload can free the snapshot that it replaces.
        let Self { listener, workers, documents: _documents, tls, reloader, notices: _ } = self;
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
        reloader.flush_disk_cache().await;
        log_upstream_costs();
    }
}

/// Warns if the configuration names the directory of a viewer and there is none.
fn warn_of_missing_viewer(config: &Config, viewer: Option<&Viewer>) {
    let setting = &config.server.viewer;
    if viewer.is_none() && Viewer::is_directory(setting) {
        tracing::warn!(directory = %setting.display(), "no viewer is served: the directory of server.viewer has no index.html");
    }
}

/// Returns the address of this machine that a machine elsewhere is likely to reach, with the port of `address`; `None` if
/// there is no route to other machines.
///
/// A UDP socket that is connected gets the address of the route, without sending anything.
fn outward_address(address: SocketAddr) -> Option<SocketAddr> {
    // Addresses for documentation: RFC 5737 and RFC 3849. Nothing is sent there.
    let (any, remote): (IpAddr, IpAddr) = if address.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into())
    } else {
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((remote, 9)).ok()?;
    let local = socket.local_addr().ok()?;
    Some(SocketAddr::new(local.ip(), address.port()))
        .filter(|address| !address.ip().is_loopback() && !address.ip().is_unspecified())
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

/// Checks that the files of `[access]`, `[jwt]` and `[tls]` can be used. Returns warnings about access control that has
/// no effect or admits nobody.
///
/// # Errors
/// Returns an error if one of the files cannot be used.
pub fn check_files(config: &Config) -> anyhow::Result<Vec<String>> {
    let (control, _tls) = open_files(config)?;
    Ok(control.map_or_else(Vec::new, |control| access_warnings(config, &control)))
}

fn open_files(config: &Config) -> anyhow::Result<(Option<Arc<AccessControl>>, Option<TlsTerminator>)> {
    let control = open_access_control(config, None)?;
    Ok((control, TlsTerminator::open(&config.tls).map_err(anyhow::Error::msg)?))
}
