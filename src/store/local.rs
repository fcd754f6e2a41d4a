//! A container on the file system: every call is one hop to a thread that may wait for the disk.

mod links;
mod open_file;
mod plain;
mod scan;
mod walk;

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::at_once::RootReader;
use super::file_meta::{CLOCK_TICK, EntityTag, has_content_of, is_settled, meta_of};
use super::glance::Glances;
use super::hops::{HopError, Hops};
use super::listings::{self, ListingCaller};
use super::reopen::reopen;
use super::root::{Gone, Root};
use super::sendable::Sendable;
use super::{Data, Filter, Glance, Inline, Key, Listing, Load, Meta, Object, ReadAtOnce, Store, StoreError};
use links::{Hidden, refused};
use open_file::{OpenFile, read_whole};
use scan::Page;
use walk::{Stop, walk};

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
    root: Root,
    symlinks: SymlinkPolicy,
    /// Whether the kernel resolves names within bounds; else [`walk()`] does, and nothing is known at a glance.
    has_openat2: bool,
    tag: EntityTag,
    hops: Hops,
    glances: Glances,
}

/// How often a file that is written while it is read is read again.
const ATTEMPTS: usize = 4;

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
        let root = Root::new(&root);
        super::reopen::prepare();
        let refused = root.refuses_openat2()?;
        if let Some(why) = refused {
            tracing::warn!(
                root = %root.path().display(),
                %why,
                "openat2 is refused: names are resolved component by component, and nothing is answered without a thread \
                 that may wait for the disk"
            );
        }
        Ok(Self {
            root,
            symlinks,
            has_openat2: refused.is_none(),
            tag: EntityTag::default(),
            hops: Hops::new(deadline),
            glances,
        })
    }

    /// The same tree, its names resolved component by component, as where the kernel or a sandbox refuses `openat2`.
    #[must_use]
    pub fn without_openat2(self) -> Self {
        Self { has_openat2: false, ..self }
    }

    /// The same tree by another policy or deadline, without looking whether it is there now.
    #[must_use]
    pub fn with(&self, symlinks: SymlinkPolicy, deadline: Duration) -> Self {
        let glances = self.glances.following(symlinks == SymlinkPolicy::Follow);
        Self { symlinks, hops: Hops::new(deadline), glances, ..self.clone() }
    }

    /// The same tree with entity tags made of that.
    #[must_use]
    pub fn tagged(self, tag: EntityTag) -> Self {
        Self { tag, glances: self.glances.tagged(tag), ..self }
    }

    /// Whether something was mounted at the directory when it was opened: then something must be, or nothing below it is
    /// said to be missing.
    pub fn is_mount(&self) -> bool {
        self.root.is_mount()
    }

    /// The directory itself, without symbolic links.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Runs a job that may wait for the disk, up to the deadline: [`Hops::run`].
    async fn hop<T: Send + 'static>(
        &self,
        action: &'static str,
        key: &Key,
        job: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        match self.hops.run(Some((action, key.clone())), move || job(&store)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(cause)) => Err(failure(action, key, cause)),
            Err(HopError::Thread(cause)) => Err(StoreError::Io { action, key: key.clone(), cause: Arc::new(cause) }),
            Err(HopError::Timeout) => Err(StoreError::Timeout(action, key.clone())),
            Err(HopError::Stalled) => Err(StoreError::Stalled(action, key.clone())),
            Err(HopError::Overdue) => Err(StoreError::Overdue(action, key.clone())),
            Err(HopError::Crowded) => Err(StoreError::Crowded(action, key.clone())),
        }
    }

    /// Opens what `key` names as a path (`O_PATH`), within the bounds of the symlink policy: it can be looked at, and
    /// nothing is done to it.
    fn open_below(&self, root: &OwnedFd, key: &Key, flags: OFlags) -> io::Result<File> {
        self.open_as(root, key, OFlags::PATH | flags).map(File::from)
    }

    fn open_as(&self, root: &OwnedFd, key: &Key, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let below = if key.is_root() { "." } else { key.as_str() };
        let resolve = match self.symlinks {
            SymlinkPolicy::Follow => return Ok(openat(root, below, flags, Mode::empty())?),
            SymlinkPolicy::Inside => ResolveFlags::BENEATH,
            SymlinkPolicy::Deny => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        };
        let opened =
            if self.has_openat2 { openat2(root, below, flags, Mode::empty(), resolve) } else { Err(Errno::NOSYS) };
        match opened {
            Ok(file) => Ok(file),
            Err(Errno::LOOP) if self.symlinks == SymlinkPolicy::Deny => Err(refused(key)),
            // A kernel or sandbox without openat2. Or BENEATH, which refuses absolute links, also those that lead back
            // inside, and gives up on a race.
            Err(Errno::NOSYS | Errno::PERM | Errno::XDEV | Errno::AGAIN) => {
                walk(root, key, self.symlinks == SymlinkPolicy::Inside, flags).map_err(|stop| match stop {
                    Stop::NotFollowed => refused(key),
                    Stop::Errno(errno) => errno.into(),
                })
            }
            Err(other) => Err(other.into()),
        }
    }

    /// Opens the file at `key` for reading; `None` where something else is there, which is not opened.
    fn open_file(&self, root: &OwnedFd, key: &Key) -> io::Result<Option<(File, Metadata)>> {
        let named = self.open_below(root, key, OFlags::empty())?;
        let metadata = named.metadata()?;
        if !metadata.is_file() {
            return Ok(None);
        }
        if let Some(opened) = reopen(&named) {
            return Ok(Some((opened?.into(), metadata)));
        }
        // By its name, and it may be another file by now.
        let opened = File::from(self.open_as(root, key, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let now = opened.metadata()?;
        if (now.dev(), now.ino()) == (metadata.dev(), metadata.ino()) {
            Ok(Some((opened, metadata)))
        } else {
            Err(io::Error::other(Written))
        }
    }

    /// What opens files without waiting. On no other file system: opening one may ask a server there, and the kernel's
    /// copy may be older than the file.
    fn reader(&self) -> Option<RootReader> {
        let may = self.has_openat2 && self.glances.are_local();
        may.then(|| RootReader::begin(&self.root, self.symlinks, self.tag))?
    }

    fn heads_now(&self, keys: &[Key]) -> io::Result<Vec<Option<Meta>>> {
        let root = self.root.open()?;
        keys.iter().map(|key| self.head_below(&root, key)).collect()
    }

    fn probe_now(&self) -> io::Result<()> {
        // Opened for reading: a path alone (O_PATH) asks a file system such as FUSE nothing, and mounts nothing where it is
        // mounted when it is asked for (autofs). Others may answer from memory: that is why calls that hang are looked at, too.
        openat(&self.root.open()?, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        self.root.has_nothing::<()>().map(drop)
    }

    fn head_below(&self, root: &OwnedFd, key: &Key) -> io::Result<Option<Meta>> {
        match self.open_below(root, key, OFlags::empty()) {
            Ok(file) => {
                let metadata = file.metadata()?;
                Ok(metadata.is_file().then(|| meta_of(&metadata, self.tag)))
            }
            Err(error) => self.missing(root, error, key),
        }
    }

    fn get_now(&self, key: &Key, inline: &Inline, is_wanted: impl Fn() -> bool) -> io::Result<Option<Found>> {
        let root = self.root.open()?;
        // A file that is being written is read again a little later: a clock's tick apart, its times tell versions apart.
        for _ in 0..ATTEMPTS {
            let (mut file, metadata) = match self.open_file(&root, key) {
                Ok(Some(opened)) => opened,
                Ok(None) => return Ok(None),
                Err(error) => return self.missing(&root, error, key),
            };
            let meta = meta_of(&metadata, self.tag);
            // The caller may give back the memory meanwhile.
            let may_read = || meta.len <= inline.bytes() && is_wanted();
            if let Some(bytes) = read_whole(&mut file, meta.len, may_read)? {
                let after = file.metadata()?;
                if bytes.len() as u64 == meta.len && has_content_of(&after, &metadata) && is_settled(&after) {
                    return Ok(Some((meta, Ok(bytes.into()))));
                }
            } else if is_settled(&metadata) {
                // Pieces of another one could not be told from those of the next version.
                return Ok(Some((meta, Err((file, metadata)))));
            }
            std::thread::sleep(CLOCK_TICK);
        }
        Err(io::Error::other(Written))
    }

    /// Whether there is an object. One directory that may not be read, or that holds a link that leads nowhere, does not
    /// hide all others.
    fn holds(&self, root: &OwnedFd, object: &Key) -> io::Result<bool> {
        match self.head_below(root, object) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied || Hidden::of(&error).is_some() => Ok(false),
            found => Ok(found?.is_some()),
        }
    }

    fn identity_now(&self, key: &Key) -> io::Result<Option<u64>> {
        let root = self.root.open()?;
        match self.open_below(&root, key, OFlags::DIRECTORY) {
            Ok(directory) => {
                let metadata = directory.metadata()?;
                Ok(Some(xxh3_64(&[metadata.dev().to_le_bytes(), metadata.ino().to_le_bytes()].concat())))
            }
            Err(error) => self.absent(&root, error, key),
        }
    }

    fn is_directory_now(&self, key: &Key) -> io::Result<bool> {
        let root = self.root.open()?;
        match self.open_below(&root, key, OFlags::empty()) {
            Ok(file) => Ok(file.metadata()?.is_dir()),
            Err(error) => self.absent(&root, error, key).map(|found: Option<()>| found.is_some()),
        }
    }
}

#[async_trait]
impl Store for LocalStore {
    fn lists_cheaply(&self) -> bool {
        true
    }

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
        if self.has_openat2 { self.glances.look(&self.root, key) } else { Glance::Unknown }
    }

    fn is_unchanged(&self, key: &Key, version: u64) -> bool {
        self.has_openat2 && self.glances.is_unchanged(self.root.path(), key, version)
    }

    async fn get(&self, key: &Key, inline: &Inline) -> Result<Option<Object>, StoreError> {
        let (wanted, inline) = (key.clone(), inline.clone());
        let waits = Arc::new(());
        let is_wanted = Arc::downgrade(&waits);
        let get = move |store: &Self| store.get_now(&wanted, &inline, || is_wanted.strong_count() > 0);
        let found = self.hop("read", key, get).await;
        drop(waits);
        Ok(found?.map(|(meta, data)| {
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

    fn at_once(&self) -> Option<Box<dyn ReadAtOnce>> {
        Some(Box::new(self.reader()?))
    }

    fn open_at_once(&self, key: &Key, most_bytes: u64) -> Option<Sendable> {
        Sendable::open(&self.reader()?, key, most_bytes, &self.hops)
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        let wanted = key.clone();
        self.hop("stat", key, move |store| store.is_directory_now(&wanted)).await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        keep: Filter,
    ) -> Result<Option<Listing>, StoreError> {
        let (wanted, after) = (key.clone(), after.map(str::to_owned));
        // A directory may be large: a listing without a caller is not read to its end.
        let caller = ListingCaller::default();
        let listing = caller.of_listing();
        let list = move |store: &Self| {
            let page = Page { after: after.as_deref(), limit, keep: &keep, is_wanted: &|| listing.goes_on() };
            store.list_now(&wanted, &page)
        };
        let listed = listings::in_turn(&self.hops, &caller, self.hop("list", key, list)).await;
        drop(caller);
        listed.unwrap_or_else(|| Err(StoreError::Crowded("list", key.clone())))
    }

    async fn identity(&self, key: &Key) -> Result<Option<u64>, StoreError> {
        let wanted = key.clone();
        self.hop("stat", key, move |store| store.identity_now(&wanted)).await
    }

    fn load(&self) -> Load {
        self.hops.load()
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.hop("open", &Key::root(), Self::probe_now).await
    }
}

/// What a file was found to be: its bytes, or itself, open.
type Found = (Meta, Result<Bytes, (File, Metadata)>);

/// A file that never stood still while it was read.
#[derive(Debug, thiserror::Error)]
#[error("it is being written")]
struct Written;

fn failure(action: &'static str, key: &Key, cause: io::Error) -> StoreError {
    if let Some(hidden) = Hidden::of(&cause) {
        return hidden.into();
    }
    let is = |cause: &io::Error| cause.get_ref().map(|inner| (inner.is::<Gone>(), inner.is::<Written>()));
    match is(&cause) {
        Some((true, _)) => StoreError::Gone(cause.to_string()),
        Some((_, true)) => StoreError::Torn(key.clone()),
        Some(_) | None => StoreError::Io { action, key: key.clone(), cause: Arc::new(cause) },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    /// Opening a path alone (`O_PATH`) needs permission to search a directory, not to read it.
    #[test]
    fn a_probe_opens_the_root_for_reading() {
        let root = tempfile::tempdir().unwrap();
        let store = LocalStore::open(root.path(), SymlinkPolicy::Inside, Duration::from_secs(60)).unwrap();
        store.probe_now().unwrap();
        let allow = |mode| {
            std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        allow(0o111);
        let probed = std::thread::scope(|scope| {
            // Root may read all; a thread can give that up for itself.
            let probe = || {
                let without = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
                let mut sets = capabilities(None).unwrap();
                sets.effective -= without;
                set_capabilities(None, sets).unwrap();
                store.probe_now()
            };
            scope.spawn(probe).join().unwrap()
        });
        allow(0o755);
        assert_eq!(probed.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}
