//! Runs the server in this process: sets up logging and limits, handles signals, and notifies the supervisor.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::process::{block_on, shutdown_signal};
use crate::config::{Config, TracingConfig};
use crate::server::{Reloader, Server};
use crate::store::StoreError;
use crate::telemetry::logs::{self, MetricsHandle};
use crate::telemetry::metrics;
use crate::telemetry::trace::{self, TraceSettings};

/// Longest time to export the remaining traces at shutdown.
const TRACE_FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Time after which a program that opens URLs has done so, whatever its exit status says later.
const LAUNCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Sets up logging, prepares the process, and serves until told to stop. If `opens_browser` is true, opens the front page
/// when the server is ready. On reload, `read_config` reads the configuration again.
///
/// # Errors
/// Returns an error if the server cannot start.
pub(super) fn serve(
    config: Config,
    opens_browser: bool,
    read_config: impl Fn() -> anyhow::Result<Config> + Clone + Send + 'static,
) -> anyhow::Result<()> {
    let _log = logs::install_log(&config.log)?;
    let descriptor_limit = raise_descriptor_limit(&config);
    let browser = opens_browser.then_some(BrowserLauncher { descriptor_limit });
    warn_of_address_space();
    #[expect(clippy::disallowed_methods, reason = "systemd passes its socket's name in this variable")]
    let socket = std::env::var("NOTIFY_SOCKET");
    let supervisor = socket.map_or_else(|_none| SdNotifier::default(), |name| SdNotifier::from_socket_name(&name));
    // This runtime accepts connections and supervises the server. Each thread that serves connections has a runtime of
    // its own.
    block_on(Builder::new_current_thread(), run(config, browser, read_config, supervisor))
}

/// Serves until SIGTERM or SIGINT, reloads on SIGHUP, and reports the server's state to `supervisor`.
///
/// # Errors
/// Returns an error if no configured container can be opened or the address cannot be bound.
async fn run(
    config: Config,
    browser: Option<BrowserLauncher>,
    read_config: impl Fn() -> anyhow::Result<Config> + Clone + Send + 'static,
    supervisor: SdNotifier,
) -> anyhow::Result<()> {
    // The handlers are installed before anything slow, so that a signal that arrives during startup is not lost and
    // does not end the process by its default action.
    let mut stop = Box::pin(shutdown_signal()?);
    let hangup = signal(SignalKind::hangup())?;
    let metrics = start_telemetry(&config.tracing)?;
    let server = tokio::select! {
        server = Server::bind(config, move || metrics.render()) => server?,
        () = &mut stop => {
            tracing::info!("told to stop before anything was served");
            supervisor.stopping();
            return Ok(());
        }
    };
    let supervisor = Arc::new(supervisor);
    let reloads = reload_on_signal(hangup, server.reloader(), read_config, Arc::clone(&supervisor));
    let reload_task = tokio::spawn(reloads);
    server.announce();
    supervisor.ready();
    if let Some(browser) = browser {
        browser.open(&server);
    }
    let stop = async move {
        stop.await;
        // The reload task may wait forever, and no reload is needed any more.
        reload_task.abort();
        supervisor.stopping();
    };
    server.run(stop).await;
    trace::flush(TRACE_FLUSH_TIMEOUT);
    Ok(())
}

/// Opens the front page in the default browser.
struct BrowserLauncher {
    /// Limit of open files that the browser gets: the one from before this process raised its own. Programs that use
    /// `select` fail with descriptors above 1023.
    descriptor_limit: Rlimit,
}

impl BrowserLauncher {
    /// Starts the browser on a thread that waits for it.
    fn open(self, server: &Server) {
        let Some(url) = server.local_url() else {
            tracing::warn!("--open does nothing: no browser can open a Unix socket");
            return;
        };
        let open = move || {
            if !open::commands(&url).into_iter().any(|launcher| self.succeeds(launcher)) {
                tracing::warn!(url, "no browser could be started; open the URL yourself");
            }
        };
        if let Err(error) = std::thread::Builder::new().name("open-browser".to_owned()).spawn(open) {
            tracing::warn!(why = %error, "no browser could be started");
        }
    }

    /// Runs a program that opens a URL. Returns true if it succeeds, or fails so late that it has shown something.
    fn succeeds(&self, mut launcher: Command) -> bool {
        let started = Instant::now();
        launcher.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // In a process group of its own, the browser does not get the Ctrl-C that ends the server.
        let Ok(mut child) = launcher.process_group(0).spawn() else { return false };
        // If this fails, the browser has the server's limit, with which most browsers work.
        let _ = prlimit(Some(Pid::from_child(&child)), Resource::Nofile, self.descriptor_limit);
        child.wait().is_ok_and(|status| status.success() || started.elapsed() > LAUNCH_TIMEOUT)
    }
}

/// Installs the recorder of metrics, and starts to export traces if a collector is configured.
fn start_telemetry(tracing: &TracingConfig) -> anyhow::Result<MetricsHandle> {
    let metrics = logs::install_metrics()?;
    metrics::describe();
    metrics::describe_store_errors(StoreError::KINDS);
    metrics::describe_codecs(n5_format::Codecs::built_in().names());
    tokio::spawn(metrics.clone().upkeep());
    #[expect(clippy::disallowed_methods, reason = "OpenTelemetry defines the names of these variables")]
    let variable = |name: &str| std::env::var(name).ok();
    if let Some(settings) = TraceSettings::new(&tracing.otlp_endpoint, tracing.one_in, variable) {
        trace::start(&settings).context("traces cannot be sent")?;
    }
    Ok(metrics)
}

/// Applies the configuration that `read_config` returns whenever a SIGHUP arrives.
async fn reload_on_signal(
    mut hangup: Signal,
    reloader: Arc<Reloader>,
    read_config: impl Fn() -> anyhow::Result<Config> + Clone + Send + 'static,
    supervisor: Arc<SdNotifier>,
) {
    while hangup.recv().await.is_some() {
        supervisor.reloading();
        reloader.reload(read_config.clone()).await;
        supervisor.ready();
    }
}

/// Raises the limit of open files to the maximum for this process, and returns the previous limit. A connection takes one
/// descriptor, and a second one while a file is being sent on it.
fn raise_descriptor_limit(config: &Config) -> Rlimit {
    let limit = getrlimit(Resource::Nofile);
    // If the limit cannot be raised, the server keeps the current one.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let needed = config.min_file_descriptors() as u64;
    if let Some(limit) = getrlimit(Resource::Nofile).current.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "the limit of open files is below what connections and reads may need, so that a few clients can keep all others \
             waiting; raise it (ulimit -n, LimitNOFILE), or lower server.max_connections"
        );
    }
    limit
}

/// Warns if the address space is limited. The server reserves far more address space than memory, and is aborted if it
/// gets no more address space.
fn warn_of_address_space() {
    if let Some(limit_bytes) = getrlimit(Resource::As).current {
        tracing::warn!(
            limit_bytes,
            "the address space is limited (ulimit -v): the server is aborted when it reaches the limit, however little memory it \
             uses; limit the memory of its control group instead"
        );
    }
}

/// Notifies the supervisor, such as systemd (`sd_notify(3)`), if there is one.
#[derive(Debug, Default)]
pub(super) struct SdNotifier(Option<(UnixDatagram, SocketAddr)>);

impl SdNotifier {
    /// Creates a notifier for the socket that `NOTIFY_SOCKET` names: a path, or `@` and an abstract name. With any
    /// other name it sends nothing.
    pub(super) fn from_socket_name(name: &str) -> Self {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name),
            None if name.starts_with('/') => SocketAddr::from_pathname(name),
            None => return Self(None),
        };
        let socket = UnixDatagram::unbound().and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        Self(socket.ok().zip(address.ok()))
    }

    /// Tells the supervisor that connections are accepted.
    pub(super) fn ready(&self) {
        self.send("READY=1\n");
    }

    /// Tells the supervisor that the configuration is being reloaded. [`Self::ready`] ends the reload.
    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let now = Duration::try_from(now).unwrap_or_default();
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={}\n", now.as_micros()));
    }

    /// Tells the supervisor that the shutdown has begun.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\n");
    }

    fn send(&self, state: &str) {
        let Some((socket, address)) = &self.0 else { return };
        if let Err(error) = socket.send_to_addr(state.as_bytes(), address) {
            tracing::warn!(%error, "cannot notify the supervisor");
        }
    }
}
