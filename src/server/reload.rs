//! Reloads the configuration while serving. All parts that depend on the configuration are built while the current
//! parts are still in use, and then replace them in one step. If building one of them fails, nothing changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};

use super::access_control::open_access_control;
use super::mounts::{self, MountedContainer};
use super::process_memory::{self, trim_periodically};
use crate::access::AccessControl;
use crate::config::Config;
use crate::conn::ServingSnapshot;
use crate::container::{Resources, Settings};
use crate::http::{App, HttpOptions, Mount, Viewer};
use crate::runtime::cpu_pool::CpuPool;
use crate::runtime::off_thread::off_thread;
use crate::store::DiskCacheLimits;
use crate::telemetry::{logs, metrics};

/// Interval between attempts to open containers that could not be opened.
const RETRY_UNOPENED_INTERVAL: Duration = Duration::from_secs(5);

/// Interval at which the caches of replaced resources are emptied.
const DRAIN_INTERVAL: Duration = Duration::from_millis(250);

/// Applies new configurations to a running server.
pub struct Reloader {
    snapshot_tx: watch::Sender<Arc<ServingSnapshot>>,
    /// Locked while a configuration is being applied, so that only one is applied at a time.
    state: Mutex<ServerState>,
}

/// The state that is served. The next configuration may keep parts of it.
#[derive(Clone)]
pub(super) struct ServerState {
    pub(super) config: Config,
    pub(super) mounts: Vec<MountedContainer>,
    pub(super) resources: Arc<Resources>,
    /// CPU pool on which freed memory is returned to the system. It outlives the resources, which a reload may replace.
    pub(super) trim_cpu: CpuPool,
    pub(super) control: Option<Arc<AccessControl>>,
    pub(super) viewer: Option<Viewer>,
    pub(super) document_runtime: Handle,
}

impl Reloader {
    /// Creates a reloader for a server that first serves `state`; `render_metrics` returns the text of `/metrics`.
    pub(super) fn new(state: ServerState, render_metrics: impl Fn() -> String + Send + Sync + 'static) -> Self {
        record_reload(true);
        let app = App::new(state.mount_list(), Arc::clone(&state.resources), state.options(), render_metrics);
        let snapshot_tx = watch::Sender::new(ServingSnapshot::new(state.config.clone(), app));
        Self { snapshot_tx, state: Mutex::new(state) }
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<ServingSnapshot>> {
        self.snapshot_tx.subscribe()
    }

    /// Returns the snapshot that requests are served with now.
    pub(super) fn snapshot(&self) -> Arc<ServingSnapshot> {
        self.snapshot_tx.borrow().clone()
    }

    /// Reads the configuration with `read_config`, which may block on a disk, and applies it to all later requests.
    /// Records the result in the log and the metrics.
    pub async fn reload(&self, read_config: impl FnOnce() -> anyhow::Result<Config> + Send + 'static) {
        let timeout = self.state.lock().await.config.server.request_timeout;
        let result = match off_thread(timeout, read_config).await.context("the configuration") {
            Ok(config) => self.apply(config).await,
            Err(error) => Err(error),
        };
        record_reload(result.is_ok());
        match result {
            Ok(changed) => tracing::info!(changed, "configuration read again"),
            Err(error) => {
                let why = format!("{error:#}");
                tracing::error!(why, "configuration not applied: the previous one stays in force");
            }
        }
    }

    /// Applies `config`. Returns the names of the settings that have changed.
    async fn apply(&self, mut config: Config) -> anyhow::Result<String> {
        let mut state = self.state.lock().await;
        let changed = revert_restart_only(&mut config, &state.config)?;
        config.keep_memory_sizes(&state.config);
        // With the settings that only a restart changes, the configuration may need more memory than it did alone.
        config.check_memory_limit()?;
        check_complete(&config, &state.config)?;
        let control = reload_access_control(&config, &state).await?;
        let settings = Settings::new(&config);
        let resources = if settings == *state.resources.settings() {
            Arc::clone(&state.resources)
        } else {
            state.resources.reconfigured(settings)
        };
        let mounts = mounts::reconfigured(&state.mounts, &config, &resources).await?;
        let viewer = find_viewer(&config, &state).await?;
        if self.snapshot().app.is_draining() {
            bail!("the server is shutting down");
        }
        logs::set_level(&config.log.level)?;
        let next = ServerState { config, mounts, resources, control, viewer, ..state.clone() };
        self.install(&mut state, next);
        Ok(changed)
    }

    /// Serves with `next` from now on.
    fn install(&self, state: &mut ServerState, next: ServerState) {
        let previous = std::mem::replace(state, next);
        state.resources.apply_budgets();
        if !state.config.remembers_missing() {
            // Its memory is not announced any more.
            state.resources.forget_missing_names();
        }
        if let Some(disk_cache) = state.resources.disk_cache() {
            disk_cache.set_limits(DiskCacheLimits::new(&state.config));
        }
        let app = self.snapshot().app.reconfigured(state.mount_list(), Arc::clone(&state.resources), state.options());
        self.snapshot_tx.send_replace(ServingSnapshot::new(state.config.clone(), app));
        metrics::memory_bound(state.config.memory_bound_bytes());
        if state.config.max_process_bytes() != previous.config.max_process_bytes() {
            process_memory::warn_if_below_need(&state.config);
        }
        if !Arc::ptr_eq(&previous.resources, &state.resources) {
            tokio::spawn(trim_periodically(Arc::downgrade(&state.resources), state.trim_cpu.clone()));
            tokio::spawn(drain_replaced(Arc::downgrade(&previous.resources), state.resources.settings().clone()));
        }
    }

    /// Writes the objects that wait for it to the cache on disk, unless that takes long.
    pub(super) async fn flush_disk_cache(&self) {
        const TIMEOUT: Duration = Duration::from_secs(1);
        let disk_cache = self.state.lock().await.resources.disk_cache().cloned();
        if let Some(disk_cache) = disk_cache {
            let flush = move || Ok(disk_cache.flush_blocking(TIMEOUT));
            if !off_thread(TIMEOUT.saturating_mul(3), flush).await.unwrap_or(false) {
                tracing::warn!("some objects were not written to the cache on disk, because the disk is slow");
            }
        }
    }

    /// Makes `/readyz` tell load balancers to send no more requests. No later configuration is applied.
    pub(super) fn drain(&self) {
        self.snapshot().app.drain();
    }

    /// Retries at an interval to open containers that could not be opened at startup. Never returns.
    pub(super) async fn retry_unopened_containers(&self) {
        loop {
            tokio::time::sleep(RETRY_UNOPENED_INTERVAL).await;
            let mut state = self.state.lock().await;
            if let Some(mounts) = mounts::retry_unopened(&state.mounts, &state.config, &state.resources).await {
                let next = ServerState { mounts, ..state.clone() };
                self.install(&mut state, next);
            }
        }
    }
}

impl ServerState {
    fn mount_list(&self) -> Vec<Mount> {
        self.mounts.iter().map(|mounted| mounted.mount.clone()).collect()
    }

    fn options(&self) -> HttpOptions {
        HttpOptions {
            access_control: self.control.clone(),
            viewer: self.viewer.clone(),
            document_runtime: Some(self.document_runtime.clone()),
            ..HttpOptions::new(&self.config)
        }
    }
}

/// Refuses a `config` that looks like an incomplete file: one that would make private paths or the metrics public, or
/// would replace the containers of `current` by the demo.
fn check_complete(config: &Config, current: &Config) -> anyhow::Result<()> {
    if config.is_fully_public() && !current.is_fully_public() {
        bail!(
            "it has no rule and would make public what is closed now: is the file whole? If this is intended, set \
             access.rules = [\"/ = public\"]"
        );
    }
    let has_public_metrics = |config: &Config| config.access.metrics == "public";
    if config.access.rules.is_empty() && has_public_metrics(config) && !has_public_metrics(current) {
        bail!(
            "it has no rule and would make the metrics public: is the file whole? If this is intended, restart the server"
        );
    }
    if config.containers.is_empty() && !current.containers.is_empty() {
        bail!(
            "it has no container, so the demo would replace the present containers: is the file whole? If this is intended, \
             restart the server"
        );
    }
    Ok(())
}

/// Opens the access control, within the time limit of a request. Waits for the first keys of a new issuer as long as a
/// request would wait, so that no request is refused because keys are missing.
async fn reload_access_control(config: &Config, state: &ServerState) -> anyhow::Result<Option<Arc<AccessControl>>> {
    let new_config = config.clone();
    let current_control = state.control.clone();
    let control =
        off_thread(config.server.request_timeout, move || open_access_control(&new_config, current_control.as_deref()));
    let control = control.await.context("access.tokens, jwt.keys, jwt.roots")?;
    if let Some(control) = &control {
        control.wait_for_first_keys().await;
    }
    Ok(control)
}

/// Returns the viewer of `config`. If its directory is the same as before but cannot be read now, returns the present
/// viewer.
async fn find_viewer(config: &Config, state: &ServerState) -> anyhow::Result<Option<Viewer>> {
    let directory = &config.server.viewer;
    let is_unchanged = *directory == state.config.server.viewer;
    let timeout = if is_unchanged { mounts::REOPEN_TIMEOUT } else { config.server.request_timeout };
    let path = directory.clone();
    match off_thread(timeout, move || Ok(Viewer::open(&path)?)).await.context("server.viewer") {
        Err(error) if is_unchanged => {
            let why = format!("{error:#}");
            tracing::warn!(directory = %directory.display(), why, "the viewer's directory cannot be read: served as before");
            Ok(state.viewer.clone())
        }
        result => result,
    }
}

/// Restores in the new configuration the settings that only a restart can change, and logs a warning that names them.
/// Returns the names of all other settings that change.
fn revert_restart_only(config: &mut Config, current: &Config) -> anyhow::Result<String> {
    let requested_settings = flatten_settings(config)?;
    config.server.listen = current.server.listen.clone();
    config.server.threads = current.server.threads;
    config.server.max_connections = current.server.max_connections;
    config.tls = current.tls.clone();
    config.log.format = current.log.format;
    config.tracing = current.tracing.clone();
    config.cache.disk.path.clone_from(&current.cache.disk.path);
    let settings = flatten_settings(config)?;
    let fixed = differing_keys(&requested_settings, &settings);
    if !fixed.is_empty() {
        tracing::warn!(settings = fixed, "changed, but only a restart applies these");
    }
    let changed = differing_keys(&flatten_settings(current)?, &settings);
    Ok(if changed.is_empty() { "nothing".to_owned() } else { changed })
}

/// Returns the keys whose values differ, as text.
fn differing_keys(a: &BTreeMap<String, String>, b: &BTreeMap<String, String>) -> String {
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differing: Vec<&str> = keys.into_iter().filter(|key| a.get(*key) != b.get(*key)).map(String::as_str).collect();
    differing.join(", ")
}

/// Returns the settings as text, by `section.key`.
fn flatten_settings(config: &Config) -> anyhow::Result<BTreeMap<String, String>> {
    let mut flat = BTreeMap::new();
    for (section, values) in config.to_toml()?.parse::<toml::Table>()? {
        match values.as_table() {
            Some(values) => {
                flat.extend(values.iter().map(|(key, value)| (format!("{section}.{key}"), value.to_string())));
            }
            None => drop(flat.insert(section, values.to_string())),
        }
    }
    Ok(flat)
}

/// Empties the caches of replaced resources while earlier requests still hold these resources.
async fn drain_replaced(resources: Weak<Resources>, settings: Settings) {
    while let Some(resources) = resources.upgrade() {
        resources.drain_caches(&settings).await;
        drop(resources);
        tokio::time::sleep(DRAIN_INTERVAL).await;
    }
}

/// Records in the metrics whether the configuration could be applied.
fn record_reload(is_applied: bool) {
    #[expect(clippy::disallowed_methods, reason = "operators compare it with their clocks")]
    let now = SystemTime::now();
    metrics::config_loaded(is_applied, now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;
    use crate::config::ListenAddress;
    use crate::server::Server;

    fn config() -> Config {
        let mut config = Config::default();
        config.server.listen = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        config
    }

    #[tokio::test]
    async fn a_replaced_snapshot_is_freed_although_its_connections_are_idle() {
        let server = Server::bind(config(), String::new).await.unwrap();
        let (address, reloader) = (server.address().unwrap(), server.reloader());
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.run(async { drop(stopped.await) }));
        let mut idle = Vec::new();
        // One connection answered by the fast path, and one answered by hyper.
        for path in ["/attributes.json", "/healthz"] {
            let mut connection = TcpStream::connect(address).await.unwrap();
            connection.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            connection.read_u8().await.unwrap();
            idle.push(connection);
        }
        let replaced = (Arc::downgrade(&reloader.snapshot()), Arc::downgrade(&reloader.snapshot().app));
        let mut next = config();
        next.cache.decoded = Some(1 << 20);
        reloader.reload(move || Ok(next)).await;
        let freed = async {
            while replaced.0.strong_count() + replaced.1.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), freed).await.expect("still held");
        drop(stop);
        serving.await.unwrap();
        drop(idle);
    }
}
