//! Mounts the configured containers. A reload keeps the containers that are already served.
//!
//! The directories of the containers are opened concurrently, each within a time limit. On a reload, a container that
//! is already served remains so even if its directory cannot be opened. Failing storage must not keep a new access rule
//! from taking effect.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::http::HeaderValue;
use futures_util::future::join_all;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::data_search;
use crate::config::{
    CacheControl, Config, ContainerConfig, Provider, RemoteRoot, RootAddress, StoreSettings, short_name,
};
use crate::container::{Container, Resources};
use crate::demo;
use crate::http::Mount;
use crate::runtime::off_thread::off_thread;
use crate::store::{
    DiskCacheContainer, LocalStore, MemoryStore, RemoteStore, Store, UnavailableStore, check_directory,
    is_empty_directory,
};

/// Time limit for opening a directory while the server is running. If it fails, the server continues with the present
/// containers.
pub(super) const REOPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit at startup for opening one container. All containers are opened at the same time.
const STARTUP_OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Location of a container.
#[derive(Debug, Clone)]
enum ContainerLocation {
    Demo,
    Local {
        store: LocalStore,
        call_timeout: Duration,
    },
    /// A container in an object store, on an HTTP server, or in memory.
    Remote {
        store: Arc<dyn Store>,
        /// Settings that the store was opened with. They differ from those of the configuration if a reload could not
        /// open the store by the new ones.
        settings: Box<StoreSettings>,
        /// URL of the root; `None` if the container does not use the disk cache.
        url: Option<Arc<str>>,
        call_timeout: Duration,
    },
    /// A container that has not been opened since the start.
    Unopened,
}

/// A served container and its location.
#[derive(Debug, Clone)]
pub(super) struct MountedContainer {
    pub(super) mount: Mount,
    config: ContainerConfig,
    location: ContainerLocation,
    /// Held while the directory is being opened. Only one attempt at a time is allowed, because an attempt that hangs
    /// keeps its thread.
    open_lock: Arc<Mutex<()>>,
}

impl MountedContainer {
    /// Mounts the container of `config`, one of the containers of `server_config`, which is at `location`. If it is
    /// among `previous`, it keeps its cached data.
    fn new(
        server_config: &Config,
        config: &ContainerConfig,
        mut location: ContainerLocation,
        open_lock: Arc<Mutex<()>>,
        resources: &Arc<Resources>,
        previous: &[Self],
    ) -> Self {
        let existing = previous.iter().find(|known| known.is_same(config, &location));
        let container = if let Some(existing) = existing {
            existing.mount.container.with_resources(resources)
        } else {
            let store: Arc<dyn Store> = match &location {
                ContainerLocation::Demo => Arc::new(demo::store()),
                ContainerLocation::Local { store, .. } => Arc::new(store.clone()),
                ContainerLocation::Remote { store, .. } => Arc::clone(store),
                ContainerLocation::Unopened => Arc::new(UnavailableStore::new(&config.root)),
            };
            let container = Container::new(store, Arc::clone(resources));
            match disk_cache_of(config, &location, resources) {
                Some(cache) => container.with_disk_cache(cache),
                None => container,
            }
        };
        // A container that remains keeps its store, because the store tracks the state of the storage.
        match (&mut location, existing.map(|known| &known.location)) {
            (ContainerLocation::Local { store, .. }, Some(ContainerLocation::Local { store: mounted, .. })) => {
                *store = mounted.clone();
            }
            (ContainerLocation::Remote { store, .. }, Some(ContainerLocation::Remote { store: mounted, .. })) => {
                *store = Arc::clone(mounted);
            }
            _ => {}
        }
        let container = container.configured(server_config, config);
        let mut mount = mount(&config.name, container, config.cache_control);
        mount.title = short_name(&config.root);
        Self { mount, config: config.clone(), location, open_lock }
    }

    /// Returns true if the container of `config` at `location` is this container: it has the same settings and the same
    /// directory after symbolic links are resolved. If a link now leads elsewhere, it is a different container. With
    /// another `cache_generation`, it is one, too, so that no cached entry is found.
    fn is_same(&self, config: &ContainerConfig, location: &ContainerLocation) -> bool {
        if self.config.cache_generation != config.cache_generation {
            return false;
        }
        match (&self.location, location) {
            (ContainerLocation::Demo, ContainerLocation::Demo) => true,
            (
                ContainerLocation::Local { store, call_timeout },
                ContainerLocation::Local { store: other_store, call_timeout: other_timeout },
            ) => {
                let settings = |config: &ContainerConfig| (config.symlinks, config.entity_tag);
                store.root() == other_store.root()
                    && settings(&self.config) == settings(config)
                    && call_timeout == other_timeout
            }
            (
                ContainerLocation::Remote { settings, call_timeout, .. },
                ContainerLocation::Remote { settings: other_settings, call_timeout: other_timeout, .. },
            ) => (&self.config.root, settings, call_timeout) == (&config.root, other_settings, other_timeout),
            (ContainerLocation::Unopened, ContainerLocation::Unopened) => self.config.root == config.root,
            (
                ContainerLocation::Demo
                | ContainerLocation::Local { .. }
                | ContainerLocation::Remote { .. }
                | ContainerLocation::Unopened,
                _,
            ) => false,
        }
    }

    /// Returns true unless the storage is known to be stalled or an earlier attempt to open it has not ended.
    fn is_responsive(&self) -> bool {
        let is_stalled = match &self.location {
            ContainerLocation::Local { store, .. } => store.pressure().is_stalled,
            ContainerLocation::Remote { store, .. } => store.pressure().is_stalled,
            ContainerLocation::Demo | ContainerLocation::Unopened => false,
        };
        !is_stalled && self.open_lock.try_lock().is_ok()
    }
}

/// Opens the containers of `config` at startup. A container that cannot be opened, for example because its storage
/// hangs, does not prevent the other containers from being served. It is not ready until [`retry_unopened`] has opened
/// it.
///
/// # Errors
/// Returns an error that gives the reason for each container if none of them can be opened.
pub(super) async fn start(config: &Config, resources: &Arc<Resources>) -> anyhow::Result<Vec<MountedContainer>> {
    let call_timeout = storage_call_timeout(config);
    let open_timeout = if config.containers.len() > 1 { STARTUP_OPEN_TIMEOUT.min(call_timeout) } else { call_timeout };
    let attempts = join_all(config.containers.iter().map(|container| async move {
        let open_lock = Arc::default();
        (open_with_timeout(container, call_timeout, &open_lock, open_timeout).await, open_lock)
    }));
    let mut mounts = Vec::new();
    let mut errors = Vec::new();
    for (container, (result, open_lock)) in config.containers.iter().zip(attempts.await) {
        let location = result.unwrap_or_else(|why| {
            errors.push(format!("{why:#}"));
            ContainerLocation::Unopened
        });
        mounts.push(MountedContainer::new(config, container, location, open_lock, resources, &[]));
    }
    if config.containers.is_empty() {
        mounts.push(mount_demo(config, resources, &[]));
    } else if errors.len() == config.containers.len() {
        bail!(errors.join("; "));
    }
    for why in errors {
        tracing::error!(why, "served without this container until it can be opened");
    }
    Ok(mounts)
}

/// Searches the opened containers for N5 data. Returns a sentence for each that has none in its first directories.
/// Returns fewer sentences if the search takes too long or fails.
pub(super) async fn without_data(mounts: &[MountedContainer]) -> Vec<String> {
    let mut sentences = Vec::new();
    let search = async {
        for mounted in mounts {
            let ContainerLocation::Local { store, .. } = &mounted.location else { continue };
            if let Ok(Some(why)) = data_search::missing_data(store).await {
                sentences.push(format!("nothing to serve was found in {}: {why}", describe(&mounted.config)));
            }
        }
    };
    let _in_time = tokio::time::timeout(data_search::SEARCH_TIMEOUT, search).await;
    sentences
}

/// Returns the containers of `config`, which replace `current`. A container of `config` that is also in `current` keeps
/// its cached data, and stays as it is if its directory cannot be opened now.
///
/// # Errors
/// Returns an error if a container that is not in `current` cannot be opened.
pub(super) async fn reconfigured(
    current: &[MountedContainer],
    config: &Config,
    resources: &Arc<Resources>,
) -> anyhow::Result<Vec<MountedContainer>> {
    if config.containers.is_empty() {
        return Ok(vec![mount_demo(config, resources, current)]);
    }
    let call_timeout = storage_call_timeout(config);
    let results = join_all(config.containers.iter().map(|container| reopen(current, container, call_timeout))).await;
    let mounts = config.containers.iter().zip(results).map(|(container, result)| {
        let (location, open_lock) = result?;
        Ok(MountedContainer::new(config, container, location, open_lock, resources, current))
    });
    let mounts: Vec<_> = mounts.collect::<anyhow::Result<_>>()?;
    forget_generations(current, &mounts, resources).await;
    Ok(mounts)
}

/// Tries again to open the containers that could not be opened. Returns all containers, or `None` if no further
/// container could be opened.
pub(super) async fn retry_unopened(
    current: &[MountedContainer],
    config: &Config,
    resources: &Arc<Resources>,
) -> Option<Vec<MountedContainer>> {
    let call_timeout = storage_call_timeout(config);
    let attempts = config.containers.iter().zip(current).map(|(container, mounted)| async move {
        match &mounted.location {
            ContainerLocation::Unopened => {
                let timeout = REOPEN_TIMEOUT.min(call_timeout);
                open_with_timeout(container, call_timeout, &mounted.open_lock, timeout).await.ok()
            }
            ContainerLocation::Demo | ContainerLocation::Local { .. } | ContainerLocation::Remote { .. } => None,
        }
    });
    let results = join_all(attempts).await;
    if results.iter().all(Option::is_none) {
        return None;
    }
    let mounts = config.containers.iter().zip(results).zip(current).map(|((container, location), mounted)| {
        if location.is_some() {
            tracing::info!(container = describe(container), "can be opened now");
        }
        let location = location.unwrap_or_else(|| mounted.location.clone());
        MountedContainer::new(config, container, location, Arc::clone(&mounted.open_lock), resources, current)
    });
    Some(mounts.collect())
}

/// Opens `container` again. Returns its location and its lock. If this fails and the container is in `current`, it
/// keeps its store with the new settings.
async fn reopen(
    current: &[MountedContainer],
    container: &ContainerConfig,
    call_timeout: Duration,
) -> anyhow::Result<(ContainerLocation, Arc<Mutex<()>>)> {
    let Some(known) = current.iter().find(|known| known.config.root == container.root) else {
        let open_lock = Arc::default();
        let opened = open_with_timeout(container, call_timeout, &open_lock, call_timeout).await?;
        check_still_mounted(current, container, &opened)?;
        return Ok((opened, open_lock));
    };
    let open_lock = Arc::clone(&known.open_lock);
    if let ContainerLocation::Remote { settings, call_timeout: known_timeout, .. } = &known.location
        && (&**settings, *known_timeout) == (&container.store, call_timeout)
        && known.config.cache_generation == container.cache_generation
    {
        return Ok((known.location.clone(), open_lock));
    }
    let result = if known.is_responsive() {
        let opened = open_with_timeout(container, call_timeout, &open_lock, REOPEN_TIMEOUT.min(call_timeout)).await;
        opened.and_then(|location| check_still_mounted(current, container, &location).map(|()| location))
    } else {
        Err(anyhow!("cannot open {}: its storage does not answer", describe(container)))
    };
    let location = result.unwrap_or_else(|why| {
        let why = format!("{why:#}");
        tracing::warn!(why, "this container is served as before");
        match &known.location {
            // The new configuration sets `must_be_mount`, but nothing is mounted at the directory, which is only an
            // empty mount point.
            ContainerLocation::Local { store, .. } if container.must_be_mount && !store.is_mount() => {
                ContainerLocation::Unopened
            }
            ContainerLocation::Local { store, .. } => ContainerLocation::Local {
                store: store.with_settings(container.symlinks, call_timeout).with_entity_tag(container.entity_tag),
                call_timeout,
            },
            ContainerLocation::Demo | ContainerLocation::Remote { .. } | ContainerLocation::Unopened => {
                known.location.clone()
            }
        }
    });
    Ok((location, open_lock))
}

/// Returns an error if a file system was mounted at `location` before and is not mounted now, so that only the empty
/// mount point is left.
fn check_still_mounted(
    current: &[MountedContainer],
    container: &ContainerConfig,
    location: &ContainerLocation,
) -> anyhow::Result<()> {
    let ContainerLocation::Local { store, .. } = location else { return Ok(()) };
    let was_mount = |mounted: &MountedContainer| matches!(&mounted.location, ContainerLocation::Local { store: known, .. } if known.is_mount() && known.root() == store.root());
    if !store.is_mount() && current.iter().any(was_mount) {
        bail!("cannot open {}: nothing is mounted there any more", describe(container));
    }
    Ok(())
}

/// Mounts the demo container at the root.
fn mount_demo(server_config: &Config, resources: &Arc<Resources>, previous: &[MountedContainer]) -> MountedContainer {
    let config = ContainerConfig::default();
    MountedContainer::new(server_config, &config, ContainerLocation::Demo, Arc::default(), resources, previous)
}

/// Opens `container` within `timeout`.
///
/// # Errors
/// Returns an error that names the container if the container cannot be opened.
async fn open_with_timeout(
    container: &ContainerConfig,
    call_timeout: Duration,
    open_lock: &Arc<Mutex<()>>,
    timeout: Duration,
) -> anyhow::Result<ContainerLocation> {
    let location = async {
        let attempt =
            Arc::clone(open_lock).try_lock_owned().ok().context("an earlier attempt to open it has not ended")?;
        match &container.root {
            RootAddress::Local(_) => {
                let config = container.clone();
                let open = move || {
                    let _attempt = attempt;
                    open_local_store(&config, call_timeout)
                };
                anyhow::Ok(ContainerLocation::Local { store: off_thread(timeout, open).await?, call_timeout })
            }
            RootAddress::Remote(root) => {
                let opening = open_remote_store(root, container, call_timeout, attempt);
                let opened = tokio::time::timeout(timeout, opening).await;
                let (store, url) =
                    opened.with_context(|| format!("the store does not answer within {timeout:?}"))??;
                let settings = Box::new(container.store.clone());
                Ok(ContainerLocation::Remote { store, settings, url, call_timeout })
            }
        }
    };
    location.await.with_context(|| format!("cannot open {}", describe(container)))
}

/// Opens the location that the configuration gives for `container`.
///
/// # Errors
/// Returns an error if the store cannot be opened.
pub(crate) async fn open_store(container: &ContainerConfig, config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    let call_timeout = storage_call_timeout(config);
    let location = open_with_timeout(container, call_timeout, &Arc::default(), call_timeout).await?;
    Ok(match location {
        ContainerLocation::Local { store, .. } => Arc::new(store),
        ContainerLocation::Remote { store, .. } => store,
        ContainerLocation::Demo | ContainerLocation::Unopened => bail!("{} has no store", describe(container)),
    })
}

/// Returns the store of a remote container, and its URL unless it is in memory.
async fn open_remote_store(
    root: &RemoteRoot,
    container: &ContainerConfig,
    call_timeout: Duration,
    attempt: OwnedMutexGuard<()>,
) -> anyhow::Result<(Arc<dyn Store>, Option<Arc<str>>)> {
    if root.provider == Provider::Memory {
        return Ok((Arc::new(MemoryStore::new([], 0)), None));
    }
    let name = if container.name.is_empty() { short_name(&container.root) } else { container.name.clone() };
    let store = RemoteStore::open(&name, root, &container.store, call_timeout, attempt).await;
    let store = store.map_err(anyhow::Error::msg)?;
    let url = store.url().into();
    Ok((Arc::new(store), Some(url)))
}

/// Returns the part of the disk cache that belongs to a container; `None` for local containers.
///
/// Containers share their objects if they have the same URL and the same source of credentials. Another
/// `cache_generation` makes another part.
fn disk_cache_of(
    config: &ContainerConfig,
    location: &ContainerLocation,
    resources: &Resources,
) -> Option<DiskCacheContainer> {
    let ContainerLocation::Remote { url: Some(url), settings, .. } = location else { return None };
    let (credentials, cache_generation) = (&settings.credentials, config.cache_generation);
    let identity = format!("{url}\ncredentials {credentials}\ngeneration {cache_generation}");
    Some(resources.disk_cache()?.container(&identity))
}

/// Forgets on disk the objects of those containers in `current` that have another `cache_generation` in `mounts`.
async fn forget_generations(current: &[MountedContainer], mounts: &[MountedContainer], resources: &Resources) {
    for mounted in current {
        let same_root = mounts.iter().map(|next| &next.config).filter(|next| next.root == mounted.config.root);
        let generations: Vec<u64> = same_root.map(|next| next.cache_generation).collect();
        if generations.is_empty() || generations.contains(&mounted.config.cache_generation) {
            continue;
        }
        tracing::info!(container = describe(&mounted.config), "its cached objects are forgotten");
        if let Some(cache) = disk_cache_of(&mounted.config, &mounted.location, resources)
            && let Err(error) = cache.forget().await
        {
            tracing::warn!(container = describe(&mounted.config), %error, "its objects stay on the disk, unused");
        }
    }
}

/// Returns the time limit for a storage call. It is shorter than the time limit of the request that needs the call, so
/// that the slow call is reported as the cause.
fn storage_call_timeout(config: &Config) -> Duration {
    config.server.request_timeout.mul_f64(0.95)
}

fn open_local_store(container: &ContainerConfig, call_timeout: Duration) -> anyhow::Result<LocalStore> {
    let RootAddress::Local(root) = &container.root else { bail!("it is not a directory of this machine") };
    check_directory(root).map_err(anyhow::Error::msg)?;
    let store = LocalStore::open(root, container.symlinks, call_timeout)
        .context("it must be a directory that this user can read")?
        .with_entity_tag(container.entity_tag);
    if is_empty_directory(root) {
        tracing::warn!(container = describe(container), "the directory is empty; is its storage mounted?");
    }
    if container.must_be_mount && !store.is_mount() {
        bail!("nothing is mounted there, but must_be_mount is set");
    }
    Ok(store)
}

fn describe(container: &ContainerConfig) -> String {
    let root = &container.root;
    if container.name.is_empty() { root.to_string() } else { format!("container {:?} at {root}", container.name) }
}

/// Returns a mount of `container` at `name`, without a title, with the `Cache-Control` values of its responses.
pub(crate) fn mount(name: &str, container: Container, policy: CacheControl) -> Mount {
    let (found, missing) = match policy {
        CacheControl::Revalidate => ("no-cache".to_owned(), "no-cache".to_owned()),
        // Responses for missing objects are cached for a short time, because an object may be written later.
        CacheControl::Immutable => ("public, max-age=31536000, immutable".to_owned(), "public, max-age=60".to_owned()),
        CacheControl::MaxAge(age) => {
            let text = format!("public, max-age={}", age.as_secs());
            (text.clone(), text)
        }
    };
    let header = |text: &str| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static("no-cache"));
    Mount {
        name: name.to_owned(),
        title: String::new(),
        container,
        found_cache_control: header(&found),
        missing_cache_control: header(&missing),
    }
}
