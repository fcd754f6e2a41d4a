//! Containers as the configuration names them, and which of them are those that were served before.
//!
//! Their directories are looked at side by side, each for a bounded time. What is served already stays so where its
//! directory cannot be looked at: storage that fails must not stand in the way of a rule that is to hold now.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use axum::http::HeaderValue;
use futures_util::future::join_all;

use super::bounded::off_thread;
use crate::config::{self, CachePolicy, Config, ContainerConfig, Symlinks};
use crate::container::{Container, Resources};
use crate::demo;
use crate::http::Mount;
use crate::store::{EntityTag, LocalStore, Store, SymlinkPolicy, Unopened};

/// How long a directory is looked at that is served already: whatever comes of it, serving goes on.
pub(super) const LOOK: Duration = Duration::from_secs(2);

/// How long all containers wait at the start for one of them.
const START: Duration = Duration::from_secs(10);

/// Where a container is.
#[derive(Debug, Clone)]
enum Place {
    Demo,
    Local(Local),
    /// Not reached since the start; as configured.
    Unopened(PathBuf, Looks),
}

#[derive(Debug, Clone)]
struct Local {
    /// As configured.
    wanted: PathBuf,
    store: LocalStore,
    symlinks: SymlinkPolicy,
    tag: EntityTag,
    deadline: Duration,
    looks: Looks,
}

impl Place {
    /// Whether it is the same container: that of the directory itself, without symbolic links. A link that leads elsewhere
    /// now makes another one.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Demo, Self::Demo) => true,
            (Self::Local(a), Self::Local(b)) => {
                let how = |local: &Local| (local.symlinks, local.tag, local.deadline);
                a.store.root() == b.store.root() && how(a) == how(b)
            }
            (Self::Unopened(a, _), Self::Unopened(b, _)) => a == b,
            (Self::Demo | Self::Local(_) | Self::Unopened(..), _) => false,
        }
    }

    fn wanted(&self) -> Option<(&Path, &Looks)> {
        match self {
            Self::Demo => None,
            Self::Local(local) => Some((&local.wanted, &local.looks)),
            Self::Unopened(wanted, looks) => Some((wanted, looks)),
        }
    }

    fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Demo => Arc::new(demo::store()),
            Self::Local(local) => Arc::new(local.store.clone()),
            Self::Unopened(wanted, _) => Arc::new(Unopened::new(wanted)),
        }
    }

    /// Whether it is not known that its storage answers nobody, nor that an earlier look at it has not ended.
    fn may_answer(&self) -> bool {
        match self {
            Self::Demo => true,
            Self::Local(local) => !local.store.load().is_stalled && !local.looks.is_busy(),
            Self::Unopened(_, looks) => !looks.is_busy(),
        }
    }
}

/// At most one look at a directory at a time: one that hangs keeps a thread.
#[derive(Debug, Clone, Default)]
struct Looks(Arc<AtomicBool>);

struct Look(Looks);

impl Looks {
    fn begin(&self) -> Option<Look> {
        (!self.0.swap(true, Ordering::AcqRel)).then(|| Look(self.clone()))
    }

    fn is_busy(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

#[derive(Debug, Clone)]
struct Mounted {
    place: Place,
    mount: Mount,
}

/// Containers that are served, and where they are; in the order of the configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Mounts(Vec<Mounted>);

impl Mounts {
    /// Opens the containers of `config` for the first time. One that cannot be opened, be it that its storage hangs, does not
    /// keep others from being served: it is not ready until [`Self::reopened`] finds it.
    ///
    /// # Errors
    /// When none can be opened, with what is wrong with each.
    pub(super) async fn start(config: &Config, resources: &Arc<Resources>) -> anyhow::Result<Self> {
        let deadline = deadline(config);
        let limit = if config.containers.len() > 1 { START.min(deadline) } else { deadline };
        let (known, mut opened, mut faults) = (Self::default(), Self::default(), Vec::new());
        let looked = join_all(config.containers.iter().map(|container| async move {
            let looks = Looks::default();
            (look(container, deadline, &looks, limit).await, looks)
        }));
        for (container, (found, looks)) in config.containers.iter().zip(looked.await) {
            let place = found.unwrap_or_else(|why| {
                faults.push(format!("{why:#}"));
                Place::Unopened(container.root.clone(), looks)
            });
            opened.add(place, container, resources, &known);
        }
        if config.containers.is_empty() {
            opened.add_demo(resources, &known);
        } else if faults.len() == config.containers.len() {
            bail!(faults.join("; "));
        }
        for why in faults {
            tracing::error!(why, "served without this container until it can be opened");
        }
        Ok(opened)
    }

    /// The containers of `config` in place of these. Those that are among these keep what is cached of them, and stay as they
    /// are where their directory cannot be looked at now.
    ///
    /// # Errors
    /// A container that is not among these and cannot be opened.
    pub(super) async fn renewed(&self, config: &Config, resources: &Arc<Resources>) -> anyhow::Result<Self> {
        let deadline = deadline(config);
        let looked = join_all(config.containers.iter().map(|container| self.look_again(container, deadline))).await;
        let mut opened = Self::default();
        for (container, found) in config.containers.iter().zip(looked) {
            opened.add(found?, container, resources, self);
        }
        if config.containers.is_empty() {
            opened.add_demo(resources, self);
        }
        Ok(opened)
    }

    /// These with those opened that could not be before; `None` where there are none, or none can be now.
    pub(super) async fn reopened(&self, config: &Config, resources: &Arc<Resources>) -> Option<Self> {
        let deadline = deadline(config);
        let looks = config.containers.iter().zip(&self.0).map(|(container, mounted)| async move {
            match &mounted.place {
                Place::Unopened(_, looks) => look(container, deadline, looks, LOOK.min(deadline)).await.ok(),
                Place::Demo | Place::Local(_) => None,
            }
        });
        let looked = join_all(looks).await;
        if looked.iter().all(Option::is_none) {
            return None;
        }
        let mut opened = Self::default();
        for ((container, found), mounted) in config.containers.iter().zip(looked).zip(&self.0) {
            if found.is_some() {
                tracing::info!(container = named(container), "can be opened now");
            }
            opened.add(found.unwrap_or_else(|| mounted.place.clone()), container, resources, self);
        }
        Some(opened)
    }

    pub(super) fn list(&self) -> Vec<Mount> {
        self.0.iter().map(|mounted| mounted.mount.clone()).collect()
    }

    /// Where `container` is now.
    async fn look_again(&self, container: &ContainerConfig, deadline: Duration) -> anyhow::Result<Place> {
        let places = || self.0.iter().map(|mounted| &mounted.place);
        let of_root = |place: &&Place| place.wanted().is_some_and(|(wanted, _)| wanted == container.root);
        let Some((known, (_, looks))) = places().find(of_root).and_then(|known| Some((known, known.wanted()?))) else {
            return self.still_mounted(container, look(container, deadline, &Looks::default(), deadline).await?);
        };
        let found = if known.may_answer() {
            let found = look(container, deadline, looks, LOOK.min(deadline)).await;
            found.and_then(|place| self.still_mounted(container, place))
        } else {
            Err(anyhow!("cannot serve {}: its storage does not answer", named(container)))
        };
        let Err(why) = found else { return found };
        let why = format!("{why:#}");
        tracing::warn!(why, "this container is served as before");
        Ok(match known {
            // An empty directory, by what is said of it now.
            Place::Local(local) if container.must_be_mount && !local.store.is_mount() => {
                Place::Unopened(container.root.clone(), looks.clone())
            }
            Place::Local(local) => Place::Local(Local {
                store: local.store.with(policy(container), deadline).tagged(tag(container)),
                symlinks: policy(container),
                tag: tag(container),
                deadline,
                ..local.clone()
            }),
            Place::Demo | Place::Unopened(..) => known.clone(),
        })
    }

    /// `place`, unless something was mounted there before and is not now: what is left then is an empty directory.
    fn still_mounted(&self, container: &ContainerConfig, place: Place) -> anyhow::Result<Place> {
        if let Place::Local(local) = &place
            && !local.store.is_mount()
            && self.0.iter().any(|known| {
                matches!(&known.place, Place::Local(known) if known.store.is_mount() && known.store.root() == local.store.root())
            })
        {
            bail!("cannot serve {}: nothing is mounted there any more", named(container));
        }
        Ok(place)
    }

    fn add_demo(&mut self, resources: &Arc<Resources>, known: &Self) {
        self.add_as(Place::Demo, "", CachePolicy::Revalidate, resources, known);
    }

    fn add(&mut self, place: Place, container: &ContainerConfig, resources: &Arc<Resources>, known: &Self) {
        self.add_as(place, &container.name, container.cache_control, resources, known);
    }

    fn add_as(&mut self, place: Place, name: &str, policy: CachePolicy, resources: &Arc<Resources>, known: &Self) {
        let same = known.0.iter().find(|known| known.place.is_same(&place));
        let container = match same {
            Some(same) => same.mount.container.with_resources(resources),
            None => Container::new(place.store(), Arc::clone(resources)),
        };
        let place = match (place, same.map(|same| &same.place)) {
            // Of one container there is one store, which knows how its storage is.
            (Place::Local(now), Some(Place::Local(before))) => {
                Place::Local(Local { store: before.store.clone(), ..now })
            }
            (place, _) => place,
        };
        self.0.push(Mounted { place, mount: mount(name, container, policy) });
    }
}

/// Opens `container`, for at most `limit`.
///
/// # Errors
/// With its name, when it cannot be opened.
async fn look(
    container: &ContainerConfig,
    deadline: Duration,
    looks: &Looks,
    limit: Duration,
) -> anyhow::Result<Place> {
    let wanted = container.clone();
    let store = async {
        let begun = looks.begin().context("an earlier look at its directory has not ended")?;
        let open = move || {
            let _begun = begun;
            opened(&wanted, deadline)
        };
        off_thread(limit, open).await
    };
    let store = store.await.with_context(|| format!("cannot serve {}", named(container)))?;
    let (symlinks, tag) = (policy(container), tag(container));
    Ok(Place::Local(Local { wanted: container.root.clone(), store, symlinks, tag, deadline, looks: looks.clone() }))
}

/// What the configuration says of where a container is, opened. Waits for the disk.
///
/// # Errors
/// When it cannot be opened.
pub(super) fn store(container: &ContainerConfig, config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    let store = opened(container, deadline(config));
    Ok(Arc::new(store.with_context(|| format!("cannot serve {}", named(container)))?))
}

/// Longest time that a call to storage is waited for: it ends before the request that it is for, so that it is known, and
/// counted, what kept that.
fn deadline(config: &Config) -> Duration {
    config.server.request_timeout.mul_f64(0.95)
}

fn opened(container: &ContainerConfig, deadline: Duration) -> anyhow::Result<LocalStore> {
    let store = LocalStore::open(&container.root, policy(container), deadline)
        .context("it must be a directory that this user can read")?
        .tagged(tag(container));
    if container.must_be_mount && !store.is_mount() {
        bail!("nothing is mounted there, and must_be_mount says that something must be");
    }
    Ok(store)
}

fn policy(container: &ContainerConfig) -> SymlinkPolicy {
    match container.symlinks {
        Symlinks::Inside => SymlinkPolicy::Inside,
        Symlinks::Deny => SymlinkPolicy::Deny,
        Symlinks::Follow => SymlinkPolicy::Follow,
    }
}

fn tag(container: &ContainerConfig) -> EntityTag {
    match container.entity_tag {
        config::EntityTag::Mtime => EntityTag::Mtime,
        config::EntityTag::Inode => EntityTag::Inode,
    }
}

fn named(container: &ContainerConfig) -> String {
    let root = container.root.display();
    if container.name.is_empty() { root.to_string() } else { format!("container {:?} at {root}", container.name) }
}

/// `container` at `name`, with what caches of clients are told.
pub(super) fn mount(name: &str, container: Container, policy: CachePolicy) -> Mount {
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
    Mount { name: name.to_owned(), container, cache_found: header(&found), cache_missing: header(&missing) }
}
