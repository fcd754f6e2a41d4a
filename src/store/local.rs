//! A container on the file system. Every async call runs on a thread that may block on the disk.

mod links;
mod open_file;
mod page_cache;
mod page_cache_reader;
mod reopen;
mod resolve;
mod root;
mod scan;
mod static_files;

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

use super::disk_pool::{DiskPool, DiskPoolError};
use super::file_meta::{CLOCK_TICK, EntityTagSource, has_same_content, is_settled, meta_of};
use super::listing_limiter::{self, ListingMonitor};
use super::{
    EntryFilter, InlineLimit, Key, Listing, Object, ObjectData, ObjectMeta, PageCache, Store, StoreError, StoreLoad,
};
use links::{LinkError, not_followed_error};
use open_file::{OpenFile, read_whole};
use page_cache::LocalPageCache;
use reopen::reopen;
use resolve::{ResolveError, resolve_path};
use root::{RootMissing, StoreRoot};
use scan::PageRequest;

/// Policy for symbolic links below the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SymlinkPolicy {
    /// Follow links whose target lies below the root, however the link spells it.
    Inside,
    /// Follow no link.
    Deny,
    /// Follow all links.
    Follow,
}

/// A store on a directory tree.
///
/// Every call looks up the root again, so a remounted or replaced root is found.
#[derive(Debug, Clone)]
pub struct LocalStore {
    root: StoreRoot,
    symlinks: SymlinkPolicy,
    /// True if the kernel resolves names within bounds. Otherwise [`resolve_path`] does, and there is no page cache.
    has_openat2: bool,
    tag: EntityTagSource,
    disk_pool: DiskPool,
    page_cache: Option<LocalPageCache>,
}

/// Maximum number of attempts to read a file that is written meanwhile.
const MAX_READ_ATTEMPTS: usize = 4;

impl LocalStore {
    /// Opens the tree below `root`. A call that takes longer than `deadline` is given up.
    ///
    /// # Errors
    /// If `root` is not a readable directory.
    pub fn open(root: &Path, symlinks: SymlinkPolicy, deadline: Duration) -> io::Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "the store accesses the disk here")]
        let root = std::fs::canonicalize(root)?;
        #[expect(clippy::disallowed_methods, reason = "the store accesses the disk here")]
        std::fs::read_dir(&root)?;
        let root = StoreRoot::new(&root);
        reopen::open_proc_in_advance();
        let refused = root.openat2_refusal()?;
        if let Some(why) = refused {
            tracing::warn!(
                root = %root.path().display(),
                %why,
                "openat2 is not available: paths are resolved component by component, and every request needs a thread \
                 that may block on the disk"
            );
        }
        let (has_openat2, disk_pool) = (refused.is_none(), DiskPool::new(deadline));
        let page_cache = LocalPageCache::new(&root, symlinks, &disk_pool).filter(|_| has_openat2);
        Ok(Self { root, symlinks, has_openat2, tag: EntityTagSource::default(), disk_pool, page_cache })
    }

    /// Returns the same tree with names resolved component by component, as on systems that refuse `openat2`.
    #[must_use]
    pub fn without_openat2(self) -> Self {
        Self { has_openat2: false, page_cache: None, ..self }
    }

    /// Returns the same tree with another policy and deadline. Does not check that the tree is present.
    #[must_use]
    pub fn with_settings(&self, symlinks: SymlinkPolicy, deadline: Duration) -> Self {
        let disk_pool = DiskPool::new(deadline);
        let page_cache = self.page_cache.as_ref().map(|cache| cache.with_settings(symlinks, &disk_pool));
        Self { symlinks, disk_pool, page_cache, ..self.clone() }
    }

    /// Returns the same tree with entity tags from another source.
    #[must_use]
    pub fn with_entity_tag(self, tag: EntityTagSource) -> Self {
        Self { tag, page_cache: self.page_cache.map(|cache| cache.with_entity_tag(tag)), ..self }
    }

    /// Returns true if the directory was a mount point when it was opened. If so, nothing below it is reported as
    /// missing while nothing is mounted there.
    pub fn is_mount(&self) -> bool {
        self.root.is_mount()
    }

    /// Returns the directory, without symbolic links in its path.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Runs a job that may block on the disk, up to the deadline: [`DiskPool::run`].
    async fn run_on_disk_pool<T: Send + 'static>(
        &self,
        action: &'static str,
        key: &Key,
        job: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let store = self.clone();
        match self.disk_pool.run(Some((action, key.clone())), move || job(&store)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(cause)) => Err(store_error(action, key, cause)),
            Err(DiskPoolError::Thread(cause)) => {
                Err(StoreError::Io { action, key: key.clone(), cause: Arc::new(cause) })
            }
            Err(DiskPoolError::Timeout) => Err(StoreError::Timeout(action, key.clone())),
            Err(DiskPoolError::Stalled) => Err(StoreError::Stalled(action, key.clone())),
            Err(DiskPoolError::OperationStalled) => Err(StoreError::KeyStalled(action, key.clone())),
            Err(DiskPoolError::QueueFull) => Err(StoreError::Overloaded(action, key.clone())),
        }
    }

    /// Opens what `key` names as a path (`O_PATH`), within the bounds of the symlink policy. The descriptor only allows
    /// inspection.
    fn open_path(&self, root: &OwnedFd, key: &Key, flags: OFlags) -> io::Result<File> {
        self.open_with_flags(root, key, OFlags::PATH | flags).map(File::from)
    }

    fn open_with_flags(&self, root: &OwnedFd, key: &Key, flags: OFlags) -> io::Result<OwnedFd> {
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
            Err(Errno::LOOP) if self.symlinks == SymlinkPolicy::Deny => Err(not_followed_error(key)),
            // The kernel or a sandbox lacks openat2. Or BENEATH failed: it refuses all absolute links, even those that
            // lead back inside, and gives up on a race.
            Err(Errno::NOSYS | Errno::PERM | Errno::XDEV | Errno::AGAIN) => {
                resolve_path(root, key, self.symlinks == SymlinkPolicy::Inside, flags).map_err(|stop| match stop {
                    ResolveError::LinkNotFollowed => not_followed_error(key),
                    ResolveError::Errno(errno) => errno.into(),
                })
            }
            Err(other) => Err(other.into()),
        }
    }

    /// Opens the file at `key` for reading. Returns `None` if it is not a regular file, which is then not opened.
    fn open_file(&self, root: &OwnedFd, key: &Key) -> io::Result<Option<(File, Metadata)>> {
        let named = self.open_path(root, key, OFlags::empty())?;
        let metadata = named.metadata()?;
        if !metadata.is_file() {
            return Ok(None);
        }
        if let Some(opened) = reopen(&named) {
            return Ok(Some((opened?.into(), metadata)));
        }
        // The name may lead to another file by now.
        let opened = File::from(self.open_with_flags(root, key, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let now = opened.metadata()?;
        if (now.dev(), now.ino()) == (metadata.dev(), metadata.ino()) {
            Ok(Some((opened, metadata)))
        } else {
            Err(io::Error::other(ConcurrentWrite))
        }
    }

    fn head_many_blocking(&self, keys: &[Key]) -> io::Result<Vec<Option<ObjectMeta>>> {
        let root = self.root.open()?;
        keys.iter().map(|key| self.head_below(&root, key)).collect()
    }

    fn probe_blocking(&self) -> io::Result<()> {
        // Opened for reading: with `O_PATH`, a file system such as FUSE is not asked, and autofs mounts nothing. Other
        // file systems may still answer from memory, so calls that hang are observed too.
        openat(&self.root.open()?, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        self.root.none_if_present::<()>().map(drop)
    }

    fn head_below(&self, root: &OwnedFd, key: &Key) -> io::Result<Option<ObjectMeta>> {
        match self.open_path(root, key, OFlags::empty()) {
            Ok(file) => {
                let metadata = file.metadata()?;
                Ok(metadata.is_file().then(|| meta_of(&metadata, self.tag)))
            }
            Err(error) => self.none_if_missing(root, error, key),
        }
    }

    fn get_blocking(
        &self,
        key: &Key,
        inline: &InlineLimit,
        is_wanted: impl Fn() -> bool,
    ) -> io::Result<Option<FileContent>> {
        let root = self.root.open()?;
        // A file that is being written is read again a clock tick later, when its times tell its versions apart.
        for _ in 0..MAX_READ_ATTEMPTS {
            let (mut file, metadata) = match self.open_file(&root, key) {
                Ok(Some(opened)) => opened,
                Ok(None) => return Ok(None),
                Err(error) => return self.none_if_missing(&root, error, key),
            };
            let meta = meta_of(&metadata, self.tag);
            // The caller may release the memory meanwhile.
            let may_read = || meta.len <= inline.bytes() && is_wanted();
            if let Some(bytes) = read_whole(&mut file, meta.len, may_read)? {
                let after = file.metadata()?;
                if bytes.len() as u64 == meta.len && has_same_content(&after, &metadata) && is_settled(&after) {
                    return Ok(Some((meta, Ok(bytes.into()))));
                }
            } else if is_settled(&metadata) {
                // Parts of a file that is not settled could not be told from parts of its next version.
                return Ok(Some((meta, Err((file, metadata)))));
            }
            std::thread::sleep(CLOCK_TICK);
        }
        Err(io::Error::other(ConcurrentWrite))
    }

    /// Returns true if the object exists. Returns false if it is unreadable or behind a link that hides it, so that one
    /// such directory does not hide all others.
    fn has_object(&self, root: &OwnedFd, object: &Key) -> io::Result<bool> {
        match self.head_below(root, object) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied || LinkError::from_io_error(&error).is_some() => {
                Ok(false)
            }
            found => Ok(found?.is_some()),
        }
    }

    fn identity_blocking(&self, key: &Key) -> io::Result<Option<u64>> {
        let root = self.root.open()?;
        match self.open_path(&root, key, OFlags::DIRECTORY) {
            Ok(directory) => {
                let metadata = directory.metadata()?;
                Ok(Some(xxh3_64(&[metadata.dev().to_le_bytes(), metadata.ino().to_le_bytes()].concat())))
            }
            Err(error) => self.none_if_missing_or_unfollowed(&root, error, key),
        }
    }

    fn is_directory_blocking(&self, key: &Key) -> io::Result<bool> {
        let root = self.root.open()?;
        match self.open_path(&root, key, OFlags::empty()) {
            Ok(file) => Ok(file.metadata()?.is_dir()),
            Err(error) => {
                self.none_if_missing_or_unfollowed(&root, error, key).map(|found: Option<()>| found.is_some())
            }
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

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        let wanted = key.clone();
        let metas = self
            .run_on_disk_pool("stat", key, move |store| store.head_many_blocking(std::slice::from_ref(&wanted)))
            .await?;
        Ok(metas.into_iter().next().flatten())
    }

    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<ObjectMeta>>, StoreError> {
        let Some(first) = keys.first().cloned() else { return Ok(Vec::new()) };
        self.run_on_disk_pool("stat", &first, move |store| store.head_many_blocking(&keys)).await
    }

    fn page_cache(&self) -> Option<&dyn PageCache> {
        self.page_cache.as_ref().map(|cache| cache as &dyn PageCache)
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        let (wanted, inline) = (key.clone(), inline.clone());
        let waits = Arc::new(());
        let is_wanted = Arc::downgrade(&waits);
        let get = move |store: &Self| store.get_blocking(&wanted, &inline, || is_wanted.strong_count() > 0);
        let found = self.run_on_disk_pool("read", key, get).await;
        drop(waits);
        Ok(found?.map(|(meta, data)| {
            let data = match data {
                Ok(bytes) => ObjectData::InMemory(bytes),
                Err(file) => {
                    let file = Arc::new(file);
                    ObjectData::Open(Arc::new(OpenFile { store: self.clone(), key: key.clone(), file }))
                }
            };
            Object { meta, data }
        }))
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        let wanted = key.clone();
        self.run_on_disk_pool("stat", key, move |store| store.is_directory_blocking(&wanted)).await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        keep: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        let (wanted, after) = (key.clone(), after.map(str::to_owned));
        // A directory may be large: a listing without a caller is not read to its end.
        let caller = ListingMonitor::default();
        let listing = caller.reporter();
        let list = move |store: &Self| {
            let page =
                PageRequest { after: after.as_deref(), limit, filter: &keep, is_wanted: &|| listing.report_progress() };
            store.list_blocking(&wanted, &page)
        };
        let listed =
            listing_limiter::run_limited(&self.disk_pool, &caller, self.run_on_disk_pool("list", key, list)).await;
        drop(caller);
        listed.unwrap_or_else(|| Err(StoreError::Overloaded("list", key.clone())))
    }

    async fn identity(&self, key: &Key) -> Result<Option<u64>, StoreError> {
        let wanted = key.clone();
        self.run_on_disk_pool("stat", key, move |store| store.identity_blocking(&wanted)).await
    }

    fn current_load(&self) -> StoreLoad {
        self.disk_pool.load()
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.run_on_disk_pool("open", &Key::root(), Self::probe_blocking).await
    }
}

/// Metadata of a file, and either its bytes or the open file.
type FileContent = (ObjectMeta, Result<Bytes, (File, Metadata)>);

/// A file was written during every attempt to read it.
#[derive(Debug, thiserror::Error)]
#[error("the file is being written")]
struct ConcurrentWrite;

fn store_error(action: &'static str, key: &Key, cause: io::Error) -> StoreError {
    if let Some(hidden) = LinkError::from_io_error(&cause) {
        return hidden.into();
    }
    let is =
        |cause: &io::Error| cause.get_ref().map(|inner| (inner.is::<RootMissing>(), inner.is::<ConcurrentWrite>()));
    match is(&cause) {
        Some((true, _)) => StoreError::RootMissing(cause.to_string()),
        Some((_, true)) => StoreError::Torn(key.clone()),
        Some(_) | None => StoreError::Io { action, key: key.clone(), cause: Arc::new(cause) },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    /// `O_PATH` needs permission to search a directory, but not to read it.
    #[test]
    fn a_probe_opens_the_root_for_reading() {
        let root = tempfile::tempdir().unwrap();
        let store = LocalStore::open(root.path(), SymlinkPolicy::Inside, Duration::from_secs(60)).unwrap();
        store.probe_blocking().unwrap();
        let allow = |mode| {
            std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        allow(0o111);
        let probed = std::thread::scope(|scope| {
            // Root may read everything, but a thread can drop this capability for itself.
            let probe = || {
                let without = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
                let mut sets = capabilities(None).unwrap();
                sets.effective -= without;
                set_capabilities(None, sets).unwrap();
                store.probe_blocking()
            };
            scope.spawn(probe).join().unwrap()
        });
        allow(0o755);
        assert_eq!(probed.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}
