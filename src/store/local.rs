//! A container on the file system: every call is one hop to a thread that may wait for the disk.

use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use tokio_util::task::AbortOnDropHandle;

use super::file_meta::meta_of;
use super::glance::Glances;
use super::sendable::Sendable;
use super::{Data, Entry, Filter, Glance, Keep, Key, Listing, Meta, Object, ReadAt, Store, StoreError};

/// Which symbolic links below the root are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymlinkPolicy {
    /// Those whose target lies below the root, however the link spells it.
    Inside,
    /// None.
    Deny,
    /// All.
    Follow,
}

/// A directory tree.
///
/// The root is looked up anew by every call, so that a remounted or replaced root is found again.
#[derive(Debug, Clone)]
pub struct LocalStore {
    root: Arc<Path>,
    symlinks: SymlinkPolicy,
    deadline: Duration,
    glances: Glances,
}

impl LocalStore {
    /// The tree below `root`; a call that takes longer than `deadline` is given up.
    ///
    /// # Errors
    /// When `root` is not a directory that can be read.
    pub fn open(root: &Path, symlinks: SymlinkPolicy, deadline: Duration) -> io::Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "disk is touched here")]
        let root = std::fs::canonicalize(root)?;
        #[expect(clippy::disallowed_methods, reason = "disk is touched here")]
        std::fs::read_dir(&root)?;
        let glances = Glances::new(&root, symlinks == SymlinkPolicy::Follow);
        Ok(Self { root: root.into(), symlinks, deadline, glances })
    }

    /// Runs a job that may wait for the disk, up to the deadline. A job given up, by the deadline or by
    /// whoever waits for it, never starts; one that runs already ends by itself later.
    async fn hop<T: Send + 'static>(
        &self,
        action: &'static str,
        key: &Key,
        job: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        #[expect(clippy::disallowed_methods, reason = "disk waits belong here")]
        let hop = tokio::task::spawn_blocking(move || job(&store));
        // Takes back a job that has not started when nobody waits for it any more.
        match tokio::time::timeout(self.deadline, AbortOnDropHandle::new(hop)).await {
            Ok(Ok(Ok(value))) => Ok(value),
            Ok(Ok(Err(cause))) => Err(StoreError::Io { action, key: key.clone(), cause: Arc::new(cause) }),
            Ok(Err(join)) => {
                Err(StoreError::Io { action, key: key.clone(), cause: Arc::new(io::Error::other(join.to_string())) })
            }
            Err(_elapsed) => Err(StoreError::Timeout(action, key.clone())),
        }
    }

    fn open_root(&self) -> io::Result<OwnedFd> {
        Ok(openat(CWD, &*self.root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Opens what `key` names within the bounds of the symlink policy.
    fn open_key(&self, key: &Key, flags: OFlags) -> io::Result<File> {
        self.open_below(&self.open_root()?, key, flags)
    }

    /// [`Self::open_key`] with the root opened already.
    fn open_below(&self, root: &OwnedFd, key: &Key, flags: OFlags) -> io::Result<File> {
        // NONBLOCK: opening a FIFO that nobody writes must not wait.
        let wait = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK };
        let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | wait;
        let below = if key.is_root() { "." } else { key.as_str() };
        let resolve = match self.symlinks {
            SymlinkPolicy::Follow => return Ok(openat(root, below, flags, Mode::empty())?.into()),
            SymlinkPolicy::Inside => ResolveFlags::BENEATH,
            SymlinkPolicy::Deny => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        };
        match openat2(root, below, flags, Mode::empty(), resolve) {
            Ok(file) => Ok(file.into()),
            // BENEATH refuses absolute links, also those that lead back inside, and gives up on a race.
            Err(Errno::XDEV | Errno::AGAIN) if self.symlinks == SymlinkPolicy::Inside => {
                let target = self.contained(key)?;
                let flat = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
                Ok(openat2(root, &target, flags, Mode::empty(), flat)?.into())
            }
            Err(Errno::LOOP) if self.symlinks == SymlinkPolicy::Deny => Err(refused(key)),
            // A kernel or sandbox without openat2: the check and the opening are two steps.
            Err(Errno::NOSYS | Errno::PERM) => {
                let target = self.contained(key)?;
                let as_named = target.as_os_str() == key.as_str() || key.is_root();
                if self.symlinks == SymlinkPolicy::Deny && !as_named {
                    return Err(refused(key));
                }
                Ok(openat(root, &target, flags | OFlags::NOFOLLOW, Mode::empty())?.into())
            }
            Err(other) => Err(other.into()),
        }
    }

    /// The path of what `key` leads to, relative to the root, without symbolic links.
    fn contained(&self, key: &Key) -> io::Result<PathBuf> {
        #[expect(clippy::disallowed_methods, reason = "disk is touched here")]
        let real = std::fs::canonicalize(self.path(key))?;
        let below = real.strip_prefix(&self.root).map_err(|_outside| refused(key))?;
        Ok(if below.as_os_str().is_empty() { PathBuf::from(".") } else { below.to_owned() })
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.root.join(key.as_str())
    }

    fn heads_now(&self, keys: &[Key]) -> io::Result<Vec<Option<Meta>>> {
        let root = match self.open_root() {
            Ok(root) => root,
            Err(error) => return missing(error, &Key::root()).map(|_: Option<()>| vec![None; keys.len()]),
        };
        keys.iter().map(|key| self.head_below(&root, key)).collect()
    }

    fn head_below(&self, root: &OwnedFd, key: &Key) -> io::Result<Option<Meta>> {
        match self.open_below(root, key, OFlags::PATH) {
            Ok(file) => {
                let metadata = file.metadata()?;
                Ok(metadata.is_file().then(|| meta_of(&metadata)))
            }
            Err(error) => missing(error, key),
        }
    }

    fn get_now(&self, key: &Key, inline_bytes: u64) -> io::Result<Option<(Meta, Result<Bytes, File>)>> {
        // A second look when the file changes while it is read: the reader of a torn file learns it anyway.
        for attempt in 0.. {
            let mut file = match self.open_key(key, OFlags::empty()) {
                Ok(file) => file,
                Err(error) => return missing(error, key),
            };
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Ok(None);
            }
            let meta = meta_of(&metadata);
            if meta.len > inline_bytes {
                return Ok(Some((meta, Err(file))));
            }
            let mut bytes = Vec::with_capacity(usize::try_from(meta.len).unwrap_or(0).saturating_add(1));
            file.by_ref().take(meta.len.saturating_add(1)).read_to_end(&mut bytes)?;
            let after = meta_of(&file.metadata()?);
            if attempt == 0 && (bytes.len() as u64 != meta.len || after.version != meta.version) {
                continue;
            }
            let meta = Meta { len: bytes.len() as u64, ..meta };
            return Ok(Some((meta, Ok(bytes.into()))));
        }
        Ok(None)
    }

    fn list_now(&self, key: &Key, after: Option<&str>, limit: usize, keep: &Filter) -> io::Result<Option<Listing>> {
        let root = match self.open_root() {
            Ok(root) => root,
            Err(error) => return missing(error, key),
        };
        let directory = match self.open_below(&root, key, OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(error) => return missing(error, key),
        };
        let mut left_out = 0u64;
        // The smallest `limit + 1` names are kept, so that memory stays bounded in any directory.
        let mut smallest: BinaryHeap<Entry> = BinaryHeap::new();
        for entry in rustix::fs::Dir::read_from(&directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                left_out += 1;
                continue;
            };
            if name == "." || name == ".." {
                continue;
            }
            if !Key::is_segment(name) {
                left_out += 1;
                continue;
            }
            if after.is_some_and(|after| name <= after) {
                continue;
            }
            let full = smallest.len() > limit;
            if full && smallest.peek().is_some_and(|largest| largest.name.as_str() <= name) {
                continue;
            }
            let Some(is_directory) = self.entry_kind(key, name, entry.file_type()) else { continue };
            let entry = Entry { name: name.to_owned(), is_directory };
            let kept = match keep(&entry) {
                Keep::Yes => true,
                Keep::No => false,
                Keep::IfItHolds(object) => match key.child(name).and_then(|below| below.child(object)) {
                    Ok(object) => self.head_below(&root, &object)?.is_some(),
                    Err(_too_deep) => false,
                },
            };
            if !kept {
                continue;
            }
            smallest.push(entry);
            if full {
                smallest.pop();
            }
        }
        if left_out > 0 {
            tracing::warn!(directory = %key, left_out, "names that are not UTF-8 or cannot be addressed are not listed");
        }
        let mut entries = smallest.into_sorted_vec();
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok(Some(Listing { entries, more }))
    }

    /// Whether an entry is a directory; `None` for what is neither that nor a file, and for links that
    /// are not followed.
    fn entry_kind(&self, key: &Key, name: &str, kind: rustix::fs::FileType) -> Option<bool> {
        match kind {
            rustix::fs::FileType::Directory => Some(true),
            rustix::fs::FileType::RegularFile => Some(false),
            rustix::fs::FileType::Symlink | rustix::fs::FileType::Unknown => {
                let file = self.open_key(&key.child(name).ok()?, OFlags::empty()).ok()?;
                let metadata = file.metadata().ok()?;
                (metadata.is_dir() || metadata.is_file()).then(|| metadata.is_dir())
            }
            rustix::fs::FileType::Fifo
            | rustix::fs::FileType::Socket
            | rustix::fs::FileType::CharacterDevice
            | rustix::fs::FileType::BlockDevice => None,
        }
    }
}

#[async_trait]
impl Store for LocalStore {
    fn backend(&self) -> &'static str {
        "local"
    }

    async fn head(&self, key: &Key) -> Result<Option<Meta>, StoreError> {
        let wanted = key.clone();
        let metas = self.hop("stat", key, move |store| store.heads_now(std::slice::from_ref(&wanted))).await?;
        Ok(metas.into_iter().next().flatten())
    }

    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<Meta>>, StoreError> {
        let Some(first) = keys.first().cloned() else { return Ok(Vec::new()) };
        self.hop("stat", &first, move |store| store.heads_now(&keys)).await
    }

    fn glance(&self, key: &Key) -> Glance {
        self.glances.look(&self.root, key)
    }

    fn is_unchanged(&self, key: &Key, version: u64) -> bool {
        self.glances.is_unchanged(&self.root, key, version)
    }

    async fn get(&self, key: &Key, inline_bytes: u64) -> Result<Option<Object>, StoreError> {
        let wanted = key.clone();
        let found = self.hop("read", key, move |store| store.get_now(&wanted, inline_bytes)).await?;
        Ok(found.map(|(meta, data)| {
            let data = match data {
                Ok(bytes) => Data::Whole(bytes),
                Err(file) => {
                    let file = Arc::new(file);
                    Data::Open(Arc::new(OpenFile { store: self.clone(), key: key.clone(), file }))
                }
            };
            Object { meta, data }
        }))
    }

    fn get_at_once(&self, key: &Key, most_bytes: u64, room: &mut Vec<u8>) -> Option<Option<Meta>> {
        super::at_once::read(&self.root, self.symlinks, key, most_bytes, room)
    }

    fn open_at_once(&self, key: &Key, most_bytes: u64) -> Option<Sendable> {
        // Elsewhere the kernel's copy may be older than the file.
        self.glances.are_local().then(|| Sendable::open(&self.root, self.symlinks, key, most_bytes, self.deadline))?
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        let wanted = key.clone();
        self.hop("stat", key, move |store| match store.open_key(&wanted, OFlags::PATH) {
            Ok(file) => Ok(file.metadata()?.is_dir()),
            Err(error) => missing(error, &wanted).map(|found: Option<()>| found.is_some()),
        })
        .await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        keep: Filter,
    ) -> Result<Option<Listing>, StoreError> {
        let (wanted, after) = (key.clone(), after.map(str::to_owned));
        self.hop("list", key, move |store| store.list_now(&wanted, after.as_deref(), limit, &keep)).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.hop("open", &Key::root(), |store| store.open_key(&Key::root(), OFlags::DIRECTORY).map(drop)).await
    }
}

/// A file that stays the same one when its name is given to another.
#[derive(Debug)]
struct OpenFile {
    store: LocalStore,
    key: Key,
    file: Arc<File>,
}

#[async_trait]
impl ReadAt for OpenFile {
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let file = Arc::clone(&self.file);
        let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let job = move |_: &LocalStore| {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, range.start).map(|()| Bytes::from(bytes))
        };
        match self.store.hop("read", &self.key, job).await {
            Err(StoreError::Io { cause, .. }) if cause.kind() == ErrorKind::UnexpectedEof => {
                Err(StoreError::Short(self.key.clone()))
            }
            other => other,
        }
    }
}

/// What the operating system says of keys that lead nowhere; permission is logged, anything else may pass.
fn missing<T>(error: io::Error, key: &Key) -> io::Result<Option<T>> {
    let errno = Errno::from_io_error(&error);
    match errno {
        Some(
            Errno::NOENT | Errno::NOTDIR | Errno::ISDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL
            // A socket, or a device without a driver.
            | Errno::NXIO | Errno::NODEV,
        ) => Ok(None),
        Some(Errno::ACCESS | Errno::PERM) => {
            tracing::warn!(%key, %error, "answered as missing");
            Ok(None)
        }
        _ if error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Refused>) => {
            tracing::warn!(%key, "symbolic link refused and answered as missing; the setting is `symlinks`");
            Ok(None)
        }
        _ if error.kind() == ErrorKind::NotFound => Ok(None),
        _ => Err(error),
    }
}

/// A symbolic link that the policy does not follow.
#[derive(Debug, thiserror::Error)]
#[error("the symbolic link at {0:?} is not followed")]
struct Refused(Key);

fn refused(key: &Key) -> io::Error {
    io::Error::new(ErrorKind::NotFound, Refused(key.clone()))
}
