//! Taking another configuration while serving: everything that depends on it is made anew beside what is in use, then
//! takes its place at once. What fails on the way changes nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};

use super::bounded::off_thread;
use super::memory_limit;
use super::mounts::{self, Mounts};
use super::serving::{News, Serving};
use crate::access::Control;
use crate::config::Config;
use crate::container::{Resources, Settings};
use crate::cpu::Cpu;
use crate::http::{App, Viewer};
use crate::{http, metrics, telemetry};

/// Settings that only a new process takes over.
const FIXED: [&str; 10] = [
    "server.listen",
    "server.threads",
    "server.max_connections",
    "tls.certificate",
    "tls.key",
    "tls.handshake_timeout",
    "tls.hsts",
    "log.format",
    "tracing.otlp_endpoint",
    "tracing.one_in",
];

/// How often containers are looked for that could not be opened.
const FIND: Duration = Duration::from_secs(5);

/// How often resources that were replaced are told to give way.
const AGAIN: Duration = Duration::from_millis(250);

/// Gives a running server other configurations. Cheap to clone.
#[derive(Clone)]
pub struct Reloader(Arc<Inner>);

struct Inner {
    news: watch::Sender<Arc<Serving>>,
    /// Held while a configuration is taken: one after the other.
    state: Mutex<State>,
}

/// What is in force, as far as the next configuration may keep some of it.
#[derive(Clone)]
pub(super) struct State {
    pub(super) config: Config,
    pub(super) mounts: Mounts,
    pub(super) resources: Arc<Resources>,
    /// Where memory is given back, whatever resources there are.
    pub(super) trimming: Cpu,
    pub(super) control: Option<Arc<Control>>,
    pub(super) viewer: Option<Viewer>,
    pub(super) documents: Option<Handle>,
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reloader")
    }
}

impl Reloader {
    /// For what is served by `state` first, as `render_metrics` shows it.
    pub(super) fn new(state: State, render_metrics: impl Fn() -> String + Send + Sync + 'static) -> Self {
        loaded(true);
        let app = App::new(state.mounts.list(), Arc::clone(&state.resources), state.options(), render_metrics);
        let news = watch::Sender::new(Serving::new(&state.config, app));
        Self(Arc::new(Inner { news, state: Mutex::new(state) }))
    }

    pub(super) fn news(&self) -> News {
        News::of(&self.0.news)
    }

    /// What requests are served with now.
    pub(super) fn serving(&self) -> Arc<Serving> {
        self.0.news.borrow().clone()
    }

    /// Reads the configuration by `read`, which may wait for a disk, and serves every request that comes from now on by
    /// it. Says in the log and in the metrics what came of it.
    pub async fn reload(&self, read: impl FnOnce() -> anyhow::Result<Config> + Send + 'static) {
        let limit = self.0.state.lock().await.config.server.request_timeout;
        let taken = match off_thread(limit, read).await.context("the configuration") {
            Ok(config) => self.take(config).await,
            Err(error) => Err(error),
        };
        loaded(taken.is_ok());
        match taken {
            Ok(changed) => tracing::info!(changed, "configuration read again"),
            Err(error) => {
                let why = format!("{error:#}");
                tracing::error!(why, "configuration not taken over: the one before stays in force");
            }
        }
    }

    /// Names of the settings that have changed.
    async fn take(&self, mut config: Config) -> anyhow::Result<String> {
        let mut state = self.0.state.lock().await;
        let changed = keep_fixed(&mut config, &state.config)?;
        // A file of which only the beginning has been written must not open what is closed.
        let is_opened = config.is_open() && !state.config.is_open();
        if is_opened {
            bail!(
                "it has no rule and would open to everybody what is closed now: is the file whole? If it is meant, say \
                 access.rules = [\"/ = public\"]"
            );
        }
        let metrics = [&state.config, &config].map(|config| config.access.metrics == "public");
        if config.access.rules.is_empty() && metrics == [false, true] {
            bail!(
                "it has no rule and would open the metrics to everybody: is the file whole? If it is meant, start the server anew"
            );
        }
        if config.containers.is_empty() && !state.config.containers.is_empty() {
            bail!(
                "it has no container, and the demo would be served in place of what is: is the file whole? If it is meant, start \
                 the server anew"
            );
        }
        let control = renewed_control(&config, &state).await?;
        let resources = resources(super::settings(&config), &state.resources);
        let mounts = state.mounts.renewed(&config, &resources).await?;
        let viewer = viewer(&config, &state).await?;
        if self.serving().app.is_draining() {
            bail!("the server is shutting down");
        }
        telemetry::set_level(&config.log.level)?;
        let (trimming, documents) = (state.trimming.clone(), state.documents.clone());
        let next = State { config, mounts, resources, trimming, control, viewer, documents };
        self.put(&mut state, next);
        Ok(changed)
    }

    /// Serves by `next` from now on.
    fn put(&self, state: &mut State, next: State) {
        let last = std::mem::replace(state, next);
        state.resources.come_into_force();
        let app = self.serving().app.successor(state.mounts.list(), Arc::clone(&state.resources), state.options());
        self.0.news.send_replace(Serving::new(&state.config, app));
        metrics::memory_bound(state.config.memory_bytes());
        let needed_bytes = super::needed_bytes(&state.config);
        if needed_bytes != super::needed_bytes(&last.config) {
            memory_limit::warn(needed_bytes);
        }
        if !Arc::ptr_eq(&last.resources, &state.resources) {
            tokio::spawn(super::trim(Arc::downgrade(&state.resources), state.trimming.clone()));
            tokio::spawn(retire(Arc::downgrade(&last.resources), state.resources.settings().clone()));
        }
    }

    /// From now on `/readyz` tells load balancers to send nothing more, and no other configuration is taken.
    pub(super) fn drain(&self) {
        self.serving().app.drain();
    }

    /// Looks again and again for containers that could not be opened at the start. Never ends.
    pub(super) async fn find_containers(&self) {
        loop {
            tokio::time::sleep(FIND).await;
            let mut state = self.0.state.lock().await;
            if let Some(mounts) = state.mounts.reopened(&state.config, &state.resources).await {
                let next = State { mounts, ..state.clone() };
                self.put(&mut state, next);
            }
        }
    }
}

impl State {
    pub(super) fn options(&self) -> http::Options {
        let (documents, control) = (self.documents.clone(), self.control.clone());
        http::Options { control, documents, ..super::options(&self.config, self.viewer.clone()) }
    }
}

/// Who may read what, waited for no longer than a request may take; and for the first keys of another issuer, so that
/// nobody is refused for the lack of them, as long as a request would.
async fn renewed_control(config: &Config, state: &State) -> anyhow::Result<Option<Arc<Control>>> {
    let (wanted, known) = (config.clone(), state.control.clone());
    let control = off_thread(config.server.request_timeout, move || super::control_after(&wanted, known.as_deref()));
    let control = control.await.context("access.tokens, jwt.keys, jwt.roots")?;
    if let Some(control) = &control {
        control.first_keys().await;
    }
    Ok(control)
}

/// The viewer; the one before where its directory is the same and cannot be looked at now.
async fn viewer(config: &Config, state: &State) -> anyhow::Result<Option<Viewer>> {
    let (directory, is_known) = (&config.server.viewer, config.server.viewer == state.config.server.viewer);
    let limit = if is_known { mounts::LOOK } else { config.server.request_timeout };
    let wanted = directory.clone();
    match off_thread(limit, move || Ok(Viewer::find(&wanted)?)).await.context("server.viewer") {
        Err(error) if is_known => {
            let why = format!("{error:#}");
            tracing::warn!(directory = %directory.display(), why, "the viewer cannot be looked at: served as before");
            Ok(state.viewer.clone())
        }
        found => found,
    }
}

/// Puts those settings back that cannot change, and warns of them; names all settings that change.
fn keep_fixed(config: &mut Config, current: &Config) -> anyhow::Result<String> {
    let (wanted, known) = (flat(config)?, flat(current)?);
    let keys = || wanted.keys().chain(known.keys().filter(|key| !wanted.contains_key(*key)));
    let (fixed, changed): (Vec<&str>, Vec<&str>) = keys()
        .filter(|key| wanted.get(*key) != known.get(*key))
        .map(String::as_str)
        .partition(|key| FIXED.contains(key));
    if !fixed.is_empty() {
        tracing::warn!(settings = fixed.join(", "), "changed, but only a restart takes these over");
    }
    let changed = changed.join(", ");
    config.server.listen = current.server.listen.clone();
    config.server.threads = current.server.threads;
    config.server.max_connections = current.server.max_connections;
    config.tls = current.tls.clone();
    config.log.format = current.log.format;
    config.tracing = current.tracing.clone();
    Ok(if changed.is_empty() { "nothing".to_owned() } else { changed })
}

/// Settings by `section.key`, as text.
fn flat(config: &Config) -> anyhow::Result<BTreeMap<String, String>> {
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

fn resources(settings: Settings, known: &Arc<Resources>) -> Arc<Resources> {
    if *known.settings() == settings { Arc::clone(known) } else { known.renewed(settings) }
}

/// Frees what was replaced, as long as requests that began before hold it.
async fn retire(resources: Weak<Resources>, settings: Settings) {
    while let Some(resources) = resources.upgrade() {
        resources.give_way(&settings).await;
        drop(resources);
        tokio::time::sleep(AGAIN).await;
    }
}

/// Tells the metrics whether the configuration could be read.
fn loaded(is_good: bool) {
    #[expect(clippy::disallowed_methods, reason = "operators compare it with their clocks")]
    let now = SystemTime::now();
    metrics::config_loaded(is_good, now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;
    use crate::app::Server;
    use crate::config::Listen;

    fn config() -> Config {
        let mut config = Config::default();
        config.server.listen = Listen::Tcp("127.0.0.1:0".parse().unwrap());
        config
    }

    #[tokio::test]
    async fn what_was_served_with_before_is_freed_though_connections_of_then_are_idle() {
        let server = Server::bind(config(), String::new).await.unwrap();
        let (address, reloader) = (server.address().unwrap(), server.reloader());
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.run(async { drop(stopped.await) }));
        let mut idle = Vec::new();
        // One that only the lane has answered, and one that the library has.
        for path in ["/attributes.json", "/healthz"] {
            let mut connection = TcpStream::connect(address).await.unwrap();
            connection.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
            connection.read_u8().await.unwrap();
            idle.push(connection);
        }
        let before = (Arc::downgrade(&reloader.serving()), Arc::downgrade(&reloader.serving().app));
        let mut next = config();
        next.cache.decoded = 1 << 20;
        reloader.reload(move || Ok(next)).await;
        let freed = async {
            while before.0.strong_count() + before.1.strong_count() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), freed).await.expect("still held");
        drop(stop);
        serving.await.unwrap();
        drop(idle);
    }
}
