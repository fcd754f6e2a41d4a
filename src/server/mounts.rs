//! The configured containers, and which of them are the same as those served before.
//!
//! Their directories are opened concurrently, each within a time limit. On a reload, a container that is already served
//! stays so if its directory cannot be opened: failing storage must not keep a new access rule from taking effect.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::http::HeaderValue;
use futures_util::future::join_all;

use crate::config::{CacheControl, Config, ContainerConfig};
use crate::container::{Container, Resources};
use crate::demo;
use crate::http::Mount;
use crate::off_thread::off_thread;
use crate::store::{LocalStore, Store, UnavailableStore};

/// Longest time to open a directory while the server runs. Serving continues whatever the result is.
pub(super) const REOPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest time that the startup of all containers waits for one of them.
const STARTUP_OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Held while a directory is opened. One attempt at a time is allowed, because an attempt that hangs keeps a thread.
type OpenLock = Arc<tokio::sync::Mutex<()>>;

/// Location of a container.
#[derive(Debug, Clone)]
enum ContainerLocation {
    Demo,
    Local(LocalDirectory),
    /// A directory that has not been opened since the start, as configured.
    Unopened(PathBuf, OpenLock),
}

#[derive(Debug, Clone)]
struct LocalDirectory {
    config: ContainerConfig,
    store: LocalStore,
    call_timeout: Duration,
    open_lock: OpenLock,
}

impl ContainerLocation {
    /// Returns true if both are the same container: the same directory after symbolic links are resolved, with the same
    /// settings. A link that now leads elsewhere makes another container.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Demo, Self::Demo) => true,
            (Self::Local(a), Self::Local(b)) => {
                let settings =
                    |local: &LocalDirectory| (local.config.symlinks, local.config.entity_tag, local.call_timeout);
                a.store.root() == b.store.root() && settings(a) == settings(b)
            }
            (Self::Unopened(a, _), Self::Unopened(b, _)) => a == b,
            (Self::Demo | Self::Local(_) | Self::Unopened(..), _) => false,
        }
    }

    fn configured_path_and_lock(&self) -> Option<(&Path, &OpenLock)> {
        match self {
            Self::Demo => None,
            Self::Local(local) => Some((&local.config.root, &local.open_lock)),
            Self::Unopened(path, open_lock) => Some((path, open_lock)),
        }
    }

    fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Demo => Arc::new(demo::store()),
            Self::Local(local) => Arc::new(local.store.clone()),
            Self::Unopened(path, _) => Arc::new(UnavailableStore::new(path)),
        }
    }

    /// Returns true unless the storage is known to be stalled or an earlier attempt to open it has not ended.
    fn is_responsive(&self) -> bool {
        match self {
            Self::Demo => true,
            Self::Local(local) => !local.store.current_load().is_stalled && local.open_lock.try_lock().is_ok(),
            Self::Unopened(_, open_lock) => open_lock.try_lock().is_ok(),
        }
    }
}

#[derive(Debug, Clone)]
struct MountedContainer {
    location: ContainerLocation,
    mount: Mount,
}

/// The served containers and their locations, in the order of the configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Mounts(Vec<MountedContainer>);

impl Mounts {
    /// Opens the containers of `config` at startup. A container that cannot be opened, for example because its storage
    /// hangs, does not keep the others from being served. It is not ready until [`Self::retry_unopened`] has opened it.
    ///
    /// # Errors
    /// If none of the containers can be opened. The error gives the reason for each.
    pub(super) async fn start(config: &Config, resources: &Arc<Resources>) -> anyhow::Result<Self> {
        let call_timeout = storage_call_timeout(config);
        let open_timeout =
            if config.containers.len() > 1 { STARTUP_OPEN_TIMEOUT.min(call_timeout) } else { call_timeout };
        let (previous, mut opened, mut errors) = (Self::default(), Self::default(), Vec::new());
        let attempts = join_all(config.containers.iter().map(|container| async move {
            let open_lock = OpenLock::default();
            (open_with_timeout(container, call_timeout, &open_lock, open_timeout).await, open_lock)
        }));
        for (container, (result, open_lock)) in config.containers.iter().zip(attempts.await) {
            let location = result.unwrap_or_else(|why| {
                errors.push(format!("{why:#}"));
                ContainerLocation::Unopened(container.root.clone(), open_lock)
            });
            opened.add(location, &container.name, container.cache_control, resources, &previous);
        }
        if config.containers.is_empty() {
            opened.add(ContainerLocation::Demo, "", CacheControl::Revalidate, resources, &previous);
        } else if errors.len() == config.containers.len() {
            bail!(errors.join("; "));
        }
        for why in errors {
            tracing::error!(why, "served without this container until it can be opened");
        }
        Ok(opened)
    }

    /// Returns the containers of `config`, in place of these. A container that is already among these keeps its cached
    /// data, and stays as it is if its directory cannot be opened now.
    ///
    /// # Errors
    /// If a container that is not among these cannot be opened.
    pub(super) async fn reconfigured(&self, config: &Config, resources: &Arc<Resources>) -> anyhow::Result<Self> {
        let call_timeout = storage_call_timeout(config);
        let results = join_all(config.containers.iter().map(|container| self.reopen(container, call_timeout))).await;
        let mut opened = Self::default();
        for (container, result) in config.containers.iter().zip(results) {
            opened.add(result?, &container.name, container.cache_control, resources, self);
        }
        if config.containers.is_empty() {
            opened.add(ContainerLocation::Demo, "", CacheControl::Revalidate, resources, self);
        }
        Ok(opened)
    }

    /// Retries the containers that could not be opened. Returns all containers, or `None` if no further one can be
    /// opened now.
    pub(super) async fn retry_unopened(&self, config: &Config, resources: &Arc<Resources>) -> Option<Self> {
        let call_timeout = storage_call_timeout(config);
        let attempts = config.containers.iter().zip(&self.0).map(|(container, mounted)| async move {
            match &mounted.location {
                ContainerLocation::Unopened(_, open_lock) => {
                    open_with_timeout(container, call_timeout, open_lock, REOPEN_TIMEOUT.min(call_timeout)).await.ok()
                }
                ContainerLocation::Demo | ContainerLocation::Local(_) => None,
            }
        });
        let results = join_all(attempts).await;
        if results.iter().all(Option::is_none) {
            return None;
        }
        let mut opened = Self::default();
        for ((container, location), mounted) in config.containers.iter().zip(results).zip(&self.0) {
            if location.is_some() {
                tracing::info!(container = describe(container), "can be opened now");
            }
            let location = location.unwrap_or_else(|| mounted.location.clone());
            opened.add(location, &container.name, container.cache_control, resources, self);
        }
        Some(opened)
    }

    pub(super) fn list(&self) -> Vec<Mount> {
        self.0.iter().map(|mounted| mounted.mount.clone()).collect()
    }

    /// Opens `container` again. If that fails, a container that is already served keeps its store, with the new
    /// settings.
    async fn reopen(&self, container: &ContainerConfig, call_timeout: Duration) -> anyhow::Result<ContainerLocation> {
        let known = self.0.iter().find_map(|mounted| {
            let (path, open_lock) = mounted.location.configured_path_and_lock()?;
            (path == container.root).then_some((&mounted.location, open_lock))
        });
        let Some((current, open_lock)) = known else {
            let opened = open_with_timeout(container, call_timeout, &OpenLock::default(), call_timeout).await?;
            return self.still_mounted(container, opened);
        };
        let result = if current.is_responsive() {
            let result = open_with_timeout(container, call_timeout, open_lock, REOPEN_TIMEOUT.min(call_timeout)).await;
            result.and_then(|location| self.still_mounted(container, location))
        } else {
            Err(anyhow!("cannot serve {}: its storage does not answer", describe(container)))
        };
        let Err(why) = result else { return result };
        let why = format!("{why:#}");
        tracing::warn!(why, "this container is served as before");
        Ok(match current {
            // Nothing was mounted there, so by the new `must_be_mount` this is an empty directory.
            ContainerLocation::Local(local) if container.must_be_mount && !local.store.is_mount() => {
                ContainerLocation::Unopened(container.root.clone(), Arc::clone(open_lock))
            }
            ContainerLocation::Local(local) => ContainerLocation::Local(LocalDirectory {
                store: local
                    .store
                    .with_settings(container.symlinks, call_timeout)
                    .with_entity_tag(container.entity_tag),
                config: container.clone(),
                call_timeout,
                open_lock: Arc::clone(open_lock),
            }),
            ContainerLocation::Demo | ContainerLocation::Unopened(..) => current.clone(),
        })
    }

    /// Returns `location`, or an error if something was mounted there before and is not now: only the empty directory
    /// is left.
    fn still_mounted(
        &self,
        container: &ContainerConfig,
        location: ContainerLocation,
    ) -> anyhow::Result<ContainerLocation> {
        if let ContainerLocation::Local(local) = &location
            && !local.store.is_mount()
            && self.0.iter().any(|mounted| {
                matches!(&mounted.location, ContainerLocation::Local(known) if known.store.is_mount() && known.store.root() == local.store.root())
            })
        {
            bail!("cannot serve {}: nothing is mounted there any more", describe(container));
        }
        Ok(location)
    }

    /// Adds `location` at `name`. A container that is among `previous` keeps its cached data.
    fn add(
        &mut self,
        location: ContainerLocation,
        name: &str,
        policy: CacheControl,
        resources: &Arc<Resources>,
        previous: &Self,
    ) {
        let existing = previous.0.iter().find(|known| known.location.is_same(&location));
        let container = match existing {
            Some(existing) => existing.mount.container.with_resources(resources),
            None => Container::new(location.store(), Arc::clone(resources)),
        };
        let location = match (location, existing.map(|same| &same.location)) {
            // One container has one store, which keeps track of the state of its storage.
            (ContainerLocation::Local(opened), Some(ContainerLocation::Local(mounted))) => {
                ContainerLocation::Local(LocalDirectory { store: mounted.store.clone(), ..opened })
            }
            (location, _) => location,
        };
        self.0.push(MountedContainer { location, mount: mount(name, container, policy) });
    }
}

/// Opens `container` within `timeout`.
///
/// # Errors
/// If it cannot be opened. The error names the container.
async fn open_with_timeout(
    container: &ContainerConfig,
    call_timeout: Duration,
    open_lock: &OpenLock,
    timeout: Duration,
) -> anyhow::Result<ContainerLocation> {
    let config = container.clone();
    let store = async {
        let attempt = Arc::clone(open_lock)
            .try_lock_owned()
            .ok()
            .context("an earlier attempt to open its directory has not ended")?;
        let open = move || {
            let _attempt = attempt;
            open_local_store(&config, call_timeout)
        };
        off_thread(timeout, open).await
    };
    let store = store.await.with_context(|| format!("cannot serve {}", describe(container)))?;
    Ok(ContainerLocation::Local(LocalDirectory {
        config: container.clone(),
        store,
        call_timeout,
        open_lock: Arc::clone(open_lock),
    }))
}

/// Opens the location that the configuration gives for `container`. Blocks on the disk.
///
/// # Errors
/// If it cannot be opened.
pub(crate) fn open_store(container: &ContainerConfig, config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    let store = open_local_store(container, storage_call_timeout(config));
    Ok(Arc::new(store.with_context(|| format!("cannot serve {}", describe(container)))?))
}

/// Returns the longest wait for a storage call. It ends before the request that needs the call, so that the slow call
/// is known and counted as the cause.
fn storage_call_timeout(config: &Config) -> Duration {
    config.server.request_timeout.mul_f64(0.95)
}

fn open_local_store(container: &ContainerConfig, call_timeout: Duration) -> anyhow::Result<LocalStore> {
    let store = LocalStore::open(&container.root, container.symlinks, call_timeout)
        .context("it must be a directory that this user can read")?
        .with_entity_tag(container.entity_tag);
    if container.must_be_mount && !store.is_mount() {
        bail!("nothing is mounted there, but must_be_mount is set");
    }
    Ok(store)
}

fn describe(container: &ContainerConfig) -> String {
    let root = container.root.display();
    if container.name.is_empty() { root.to_string() } else { format!("container {:?} at {root}", container.name) }
}

/// Returns a mount of `container` at `name`, with the `Cache-Control` values of its answers.
pub(crate) fn mount(name: &str, container: Container, policy: CacheControl) -> Mount {
    let (found, missing) = match policy {
        CacheControl::Revalidate => ("no-cache".to_owned(), "no-cache".to_owned()),
        // A missing object may be written later.
        CacheControl::Immutable => ("public, max-age=31536000, immutable".to_owned(), "public, max-age=60".to_owned()),
        CacheControl::MaxAge(age) => {
            let text = format!("public, max-age={}", age.as_secs());
            (text.clone(), text)
        }
    };
    let header = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("no-cache"));
    Mount {
        name: name.to_owned(),
        container,
        found_cache_control: header(&found),
        missing_cache_control: header(&missing),
    }
}
