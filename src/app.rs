//! Puts the parts together: configuration to containers to router; binds, serves, shuts down.

mod connections;
mod lane;
mod sending;
mod signals;
mod socket;
mod workers;

use std::future::Future;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Context;
use axum::http::HeaderValue;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use connections::Connections;
use workers::{Documents, Workers};

use crate::access::{Control, Expected, Patience, Policy, Where};
use crate::config::{CachePolicy, Config, ContainerConfig, EvictionPolicy, Exposure, Listen, Recheck, Symlinks};
use crate::container::{self, Container, Resources, Settings};
use crate::cpu::Cpu;
use crate::http::{self, App, Mount, Viewer};
use crate::store::{LocalStore, Store, SymlinkPolicy};
use crate::{allocator, demo, metrics, n5, telemetry};

/// Time after a signal in which connections are still accepted, so that whoever asks `/readyz` learns
/// that the server goes before it is gone.
const DRAIN: Duration = Duration::from_secs(1);

/// How often memory that the allocator keeps for itself is given back.
const TRIM: Duration = Duration::from_millis(250);

/// A server that has its address and serves when run.
#[derive(Debug)]
pub struct Server {
    app: Arc<App>,
    listener: Listener,
    workers: Workers,
    documents: Documents,
    config: Config,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// First path segments that have a meaning of their own, which no container may be named.
pub fn reserved() -> Vec<&'static str> {
    http::target::views().map(|(name, _)| name).collect()
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// When a container cannot be opened or the address cannot be bound.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    let metrics = telemetry::install_metrics()?;
    metrics::describe();
    metrics::describe_codecs(n5::CODECS.iter().map(|(name, _)| *name));
    tokio::spawn(metrics.clone().upkeep());
    let server = Server::bind(config, move || metrics.render()).await?;
    // Before anybody can know the address.
    let stop = signal()?;
    server.announce();
    server.run(stop).await;
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
        tokio::spawn(trim(Arc::downgrade(&resources)));
        let mounts = mounts(&config, &resources)?;
        let viewer = Viewer::find(&config.server.viewer).await;
        let documents = Documents::start(threads(&config)).context("the threads cannot be started")?;
        let control = control(&config)?;
        let options = http::Options { documents: documents.handle(), control, ..options(&config, viewer) };
        let app = App::new(mounts, resources, options, render_metrics);
        let listener = match &config.server.listen {
            Listen::Tcp(address) => {
                Listener::Tcp(TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?)
            }
            Listen::Unix(path) => {
                remove_stale_socket(path).await;
                let shown = path.display();
                let listener = UnixListener::bind(path).with_context(|| format!("cannot listen on unix:{shown}"))?;
                Listener::Unix(listener, path.clone())
            }
        };
        let workers = Workers::start(threads(&config)).context("the threads cannot be started")?;
        Ok(Self { app, listener, workers, documents, config })
    }

    /// The address in use, with the port that was picked.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.listener {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }

    /// Where clients find it.
    fn url(&self) -> String {
        let base = &self.config.server.base_path;
        match (&self.listener, self.address()) {
            (Listener::Unix(_, path), _) => format!("unix:{}", path.display()),
            (Listener::Tcp(_), Some(address)) => format!("http://{address}{base}/"),
            (Listener::Tcp(_), None) => "an unknown address".to_owned(),
        }
    }

    /// Says where the server is, what it serves and how much memory it may take.
    fn announce(&self) {
        let bound = settings(&self.config).memory_bound();
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
        let mebibytes = bound >> 20;
        let viewer = self.app.viewer().map(|viewer| viewer.directory().display());
        let viewer = viewer.map_or_else(|| "none".to_owned(), |directory| directory.to_string());
        tracing::info!(%url, containers = served, viewer, memory_bound_bytes = bound, "listening");
        let mut out = std::io::stdout().lock();
        // Nobody may be reading; the log has it, too.
        let _ = writeln!(out, "n5-server {} listening on {url}", env!("CARGO_PKG_VERSION"));
        let _ = writeln!(out, "serving {served}; caches and budgets take at most {mebibytes} MiB");
        if self.config.containers.is_empty() {
            let _ = writeln!(out, "{}", demo::tour(&url));
        }
        let _ = out.flush();
    }

    /// Serves until `stop` is ready, then finishes the answers that have begun.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let Self { app, listener, workers, documents: _documents, config } = self;
        let connections = Connections::new(&config, Arc::clone(&app), workers);
        let accepting = async {
            match &listener {
                Listener::Tcp(listener) => loop {
                    let slot = connections.slot().await;
                    match listener.accept().await {
                        Ok((stream, peer)) => {
                            // Small answers must not wait for an acknowledgement of the one before.
                            let _ = stream.set_nodelay(true);
                            match stream.into_std() {
                                Ok(stream) => {
                                    connections.serve(|| TcpStream::from_std(stream), Some(peer.ip()), slot);
                                }
                                Err(error) => refused(&error).await,
                            }
                        }
                        Err(error) => refused(&error).await,
                    }
                },
                Listener::Unix(listener, _) => loop {
                    let slot = connections.slot().await;
                    match listener.accept().await {
                        Ok((stream, _)) => match stream.into_std() {
                            Ok(stream) => connections.serve(|| UnixStream::from_std(stream), None, slot),
                            Err(error) => refused(&error).await,
                        },
                        Err(error) => refused(&error).await,
                    }
                },
            }
        };
        let stopping = async {
            stop.await;
            tracing::info!("shutting down: not ready any more");
            app.drain();
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            () = accepting => {}
            () = stopping => {}
        }
        if let Listener::Unix(_, path) = &listener {
            let _ = tokio::fs::remove_file(path).await;
        }
        drop(listener);
        let deadline = config.server.shutdown_timeout;
        // Connections on which part of a request has come would be waited for; nobody has an answer there.
        let unsent = connections.unsent();
        let answered = async { while !quiet(&app, &unsent).await {} };
        tokio::select! {
            () = connections.finished() => tracing::info!("all answers finished"),
            () = answered => tracing::info!("all answers finished"),
            () = tokio::time::sleep(deadline) => tracing::warn!(?deadline, "answers cut off at the deadline"),
        }
    }
}

/// Gives freed memory back to the system as long as there are `resources`.
async fn trim(resources: Weak<Resources>) {
    let cpu = Cpu::new(1);
    loop {
        tokio::time::sleep(TRIM).await;
        let Some(resources) = resources.upgrade() else { return };
        resources.tidy();
        drop(resources);
        if cpu.run(allocator::trim).await.is_err() {
            return;
        }
    }
}

/// Whether no answer begins within a moment, and none is being sent.
async fn quiet(app: &App, unsent: &AtomicUsize) -> bool {
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if app.running() > 0 || unsent.load(Ordering::Acquire) > 0 {
            return false;
        }
    }
    true
}

/// A connection that could not be accepted: out of descriptors, or gone already. Never the end.
async fn refused(error: &std::io::Error) {
    tracing::warn!(%error, "connection not accepted");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// A socket that nobody listens on any more is left by a process that was killed.
async fn remove_stale_socket(path: &PathBuf) {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = tokio::fs::symlink_metadata(path).await.is_ok_and(|meta| meta.file_type().is_socket());
    if is_socket && UnixStream::connect(path).await.is_err() {
        let _ = tokio::fs::remove_file(path).await;
    }
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

fn mounts(config: &Config, resources: &Arc<Resources>) -> anyhow::Result<Vec<Mount>> {
    if config.containers.is_empty() {
        let store: Arc<dyn Store> = Arc::new(demo::store());
        return Ok(vec![mount("", store, CachePolicy::Revalidate, resources)]);
    }
    config.containers.iter().map(|container| open(container, config, resources)).collect()
}

fn open(container: &ContainerConfig, config: &Config, resources: &Arc<Resources>) -> anyhow::Result<Mount> {
    let symlinks = match container.symlinks {
        Symlinks::Inside => SymlinkPolicy::Inside,
        Symlinks::Deny => SymlinkPolicy::Deny,
        Symlinks::Follow => SymlinkPolicy::Follow,
    };
    let shown = container.root.display();
    let store = LocalStore::open(&container.root, symlinks, config.server.request_timeout)
        .with_context(|| format!("cannot serve {shown}: it must be a directory that this user can read"))?;
    Ok(mount(&container.name, Arc::new(store), container.cache_control, resources))
}

fn mount(name: &str, store: Arc<dyn Store>, policy: CachePolicy, resources: &Arc<Resources>) -> Mount {
    let (found, missing) = match policy {
        CachePolicy::Revalidate => ("no-cache".to_owned(), "no-cache".to_owned()),
        // What is missing may be written yet.
        CachePolicy::Immutable => ("public, max-age=31536000, immutable".to_owned(), "public, max-age=60".to_owned()),
        CachePolicy::MaxAge(age) => {
            let text = format!("public, max-age={}", age.as_secs());
            (text.clone(), text)
        }
    };
    let header = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("no-cache"));
    Mount {
        name: name.to_owned(),
        container: Container::new(store, Arc::clone(resources)),
        cache_found: header(&found),
        cache_missing: header(&missing),
    }
}

fn settings(config: &Config) -> Settings {
    let recheck = |recheck| match recheck {
        Recheck::Always => container::Recheck::Always,
        Recheck::Never => container::Recheck::Never,
        Recheck::After(age) => container::Recheck::After(age),
    };
    Settings {
        decoded_cache: config.cache.decoded,
        stored_cache: config.cache.stored,
        weigh_frequency: config.cache.policy == EvictionPolicy::TinyLfu,
        recheck_metadata: recheck(config.cache.recheck_cached_metadata),
        recheck_data: recheck(config.cache.recheck_cached_data),
        slice: config.limits.slice,
        slice_budget: config.limits.slice_budget,
        decode_budget: config.limits.decode_budget,
        transfer_budget: config.limits.transfer_budget,
        decode_factor: config.limits.decode_factor,
        attributes: config.limits.attributes,
        budget_wait: config.limits.budget_wait,
        cores: threads(config),
    }
}

/// Threads that serve connections, and jobs on the CPU lane at once.
pub fn threads(config: &Config) -> usize {
    match config.server.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    }
}

/// Who may read what; `None` where everybody may read everything.
///
/// # Errors
/// A rule, or a file of tokens or keys, that cannot be used.
pub fn control(config: &Config) -> anyhow::Result<Option<Arc<Control>>> {
    if !config.is_guarded() {
        return Ok(None);
    }
    let (access, jwt) = (&config.access, &config.jwt);
    let policy = Policy::parse(access.default == Exposure::Public, &access.rules, &access.metrics)?;
    let given = |path: &PathBuf| Some(path.clone()).filter(|path| !path.as_os_str().is_empty());
    let place = if jwt.keys.contains("://") {
        let patience = Patience { refresh: jwt.refresh, least: jwt.refetch, stale: jwt.stale };
        Where::Url { url: jwt.keys.clone(), roots: given(&jwt.roots), patience }
    } else {
        Where::File(jwt.keys.clone().into())
    };
    let expected = Expected {
        issuer: jwt.issuer.clone(),
        audience: jwt.audience.clone(),
        algorithms: jwt.algorithms.clone(),
        name_claim: jwt.name_claim.clone(),
        groups_claim: jwt.groups_claim.clone(),
        leeway_seconds: jwt.leeway.as_secs(),
    };
    let jwt = (!jwt.keys.is_empty()).then_some((place, expected));
    let control = Control::open(policy, given(&access.tokens).as_deref(), jwt).map_err(anyhow::Error::msg)?;
    Ok(Some(Arc::new(control)))
}

fn options(config: &Config, viewer: Option<Viewer>) -> http::Options {
    http::Options {
        base_path: config.server.base_path.clone(),
        trusted_proxies: config.server.trusted_proxies.clone(),
        request_timeout: config.server.request_timeout,
        concurrent_requests: config.limits.concurrent_requests,
        origins: config.cors.origins.clone(),
        credentials: config.cors.credentials,
        control: None,
        frame_ancestors: config.server.frame_ancestors.clone(),
        compress_slices: config.compression.slices,
        viewer,
        documents: None,
    }
}
