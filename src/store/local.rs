//! A store on the file system, and a stand-in for one whose directory was missing at startup. Every async call runs on
//! a thread that may block on the disk.

mod directory_check;
mod open_file;
mod page_cache;
mod resolve;
mod scan;
mod tree;

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;

use super::Store;
use super::disk_pool::{DiskPool, StorePressure};
use super::error::{LocalError, StoreError};
use super::file_meta::{EntityTagSource, file_type, has_version, raw_meta_of};
use super::key::Key;
use super::listing::{EntryFilter, LISTING_PERMITS, Listing, progress_reporter, run_limited};
use super::object::{InlineLimit, Object, ObjectData, ObjectMeta};
use super::page_cache::{CachedStat, NonblockingReader, PageCache, SendfileSource};
use crate::config::RootAddress;
pub use crate::config::SymlinkPolicy;
pub(crate) use directory_check::{check_directory, is_empty_directory};
use open_file::OpenFile;
use page_cache::{PageCacheReader, cached_device, device_of, is_certainly_missing, path_below};
use scan::PageRequest;
use tree::LocalTree;

/// A store on a directory tree.
#[derive(Debug, Clone)]
pub struct LocalStore {
    tree: LocalTree,
    disk_pool: Arc<DiskPool>,
    /// Device number of the root, if files on that device may be read from the page cache without waiting.
    cached_device: Option<(u32, u32)>,
}

impl LocalStore {
    /// Opens the tree below `root`. A call that takes longer than `deadline` fails.
    ///
    /// # Errors
    /// Returns an error if `root` is not a readable directory.
    pub fn open(root: &Path, symlinks: SymlinkPolicy, deadline: Duration) -> io::Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "the store accesses the disk here")]
        let root = std::fs::canonicalize(root)?;
        #[expect(clippy::disallowed_methods, reason = "the store accesses the disk here")]
        std::fs::read_dir(&root)?;
        resolve::open_proc_in_advance();
        let mut tree = LocalTree::new(&root, symlinks);
        if let Some(why) = tree.openat2_refusal()? {
            tracing::warn!(
                root = %root.display(),
                %why,
                "openat2 is not available: paths are resolved component by component, and every request needs a thread \
                 that may block on the disk"
            );
            tree.has_openat2 = false;
        }
        Ok(Self { cached_device: cached_device(&tree), tree, disk_pool: DiskPool::new(deadline) })
    }

    /// Returns the same tree with names resolved component by component, as on systems that refuse `openat2`.
    #[must_use]
    pub fn without_openat2(self) -> Self {
        Self { tree: LocalTree { has_openat2: false, ..self.tree }, cached_device: None, ..self }
    }

    /// Returns the same tree with a different symlink policy and deadline. Does not check that the tree is present.
    #[must_use]
    pub fn with_settings(&self, symlinks: SymlinkPolicy, deadline: Duration) -> Self {
        let tree = LocalTree { symlinks, ..self.tree.clone() };
        Self { tree, disk_pool: DiskPool::new(deadline), cached_device: self.cached_device }
    }

    /// Returns the same tree with entity tags from another source.
    #[must_use]
    pub fn with_entity_tag(self, tag: EntityTagSource) -> Self {
        Self { tree: LocalTree { tag, ..self.tree }, ..self }
    }

    /// Returns true if the directory was a mount point when it was opened. If so, nothing below it is reported as
    /// missing while nothing is mounted there.
    pub fn is_mount(&self) -> bool {
        self.tree.is_mount
    }

    /// Returns the directory, without symbolic links in its path.
    pub fn root(&self) -> &Path {
        &self.tree.root
    }

    /// Returns the system's metadata of a file or directory, or `None` if there is none.
    ///
    /// # Errors
    /// Returns the same errors as [`Store::head`].
    pub async fn metadata(&self, key: &Key) -> Result<Option<Metadata>, StoreError> {
        self.run("stat", key, LocalTree::metadata).await
    }

    /// Opens a file for reading. Returns `None` if there is none.
    ///
    /// # Errors
    /// Returns the same errors as [`Store::get`].
    pub async fn open_for_reading(&self, key: &Key) -> Result<Option<File>, StoreError> {
        self.run("open", key, LocalTree::open_for_reading).await
    }

    /// Returns true if `key` is a file. Blocks on the disk.
    ///
    /// # Errors
    /// Returns an error if that cannot be determined.
    pub fn has_file_blocking(&self, key: &Key) -> io::Result<bool> {
        Ok(self.tree.metadata(key)?.is_some_and(|metadata| metadata.is_file()))
    }

    /// Runs a call on `key` that may block on the disk.
    async fn run<T: Send + 'static>(
        &self,
        action: &'static str,
        key: &Key,
        call: impl FnOnce(&LocalTree, &Key) -> Result<T, LocalError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let tree = self.tree.clone();
        let owned_key = key.clone();
        self.disk_pool.run_action(action, key, move || call(&tree, &owned_key)).await
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
        self.run("stat", key, LocalTree::head).await
    }

    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<ObjectMeta>>, StoreError> {
        let Some(first) = keys.first().cloned() else { return Ok(Vec::new()) };
        self.run("stat", &first, move |tree, _| tree.head_many(&keys)).await
    }

    fn page_cache(&self) -> Option<&dyn PageCache> {
        self.cached_device.map(|_| self as &dyn PageCache)
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        let inline = inline.clone();
        let wait_token = Arc::new(());
        let is_wanted = Arc::downgrade(&wait_token);
        let get = move |tree: &LocalTree, key: &Key| tree.get(key, &inline, || is_wanted.strong_count() > 0);
        let found = self.run("read", key, get).await;
        drop(wait_token);
        Ok(found?.map(|(meta, data)| {
            let data = match data {
                Ok(bytes) => ObjectData::InMemory(bytes),
                Err(file) => ObjectData::Open(Arc::new(OpenFile {
                    disk_pool: Arc::clone(&self.disk_pool),
                    key: key.clone(),
                    file: Arc::new((file, meta)),
                })),
            };
            Object { meta: meta.into(), age: Duration::ZERO, data }
        }))
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        self.run("stat", key, LocalTree::is_directory).await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        let after = after.map(str::to_owned);
        // The listing of a large directory stops when its caller has gone.
        let progress = Arc::default();
        let is_wanted = progress_reporter(&progress);
        let list = move |tree: &LocalTree, key: &Key| {
            tree.list(key, &PageRequest { after: after.as_deref(), limit, filter: &filter, is_wanted: &is_wanted })
        };
        let is_stalled = || {
            let pressure = self.disk_pool.pressure();
            pressure.is_stalled || pressure.is_unresponsive()
        };
        let listing = self.run("list", key, list);
        let listed = run_limited(&LISTING_PERMITS, self.disk_pool.deadline(), is_stalled, &progress, listing).await;
        drop(progress);
        listed.unwrap_or_else(|| Err(StoreError::Overloaded("list", key.clone())))
    }

    async fn identity(&self, key: &Key) -> Result<Option<u64>, StoreError> {
        self.run("stat", key, LocalTree::identity).await
    }

    fn pressure(&self) -> StorePressure {
        self.disk_pool.pressure()
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.run("open", &Key::root(), |tree, _| tree.probe()).await
    }
}

/// These functions are called only if `cached_device` is known; otherwise [`Store::page_cache`] returns `None`.
impl PageCache for LocalStore {
    /// The result for a key that leads through a symbolic link is [`CachedStat::Unknown`], unless all links are
    /// followed.
    ///
    /// The call takes 0.8 us: one path lookup in the kernel's cache (`RESOLVE_CACHED`, Linux 5.12) and one `statx`. A
    /// switch to a thread that may block would take 10 to 90 us. If the file is missing, the root costs another
    /// `statx`.
    fn stat(&self, key: &Key) -> CachedStat {
        let path = path_below(&self.tree.root, key);
        let follows_links = self.tree.symlinks == SymlinkPolicy::Follow;
        let links = if follows_links { ResolveFlags::empty() } else { ResolveFlags::NO_SYMLINKS };
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = match openat2(CWD, path.as_slice(), flags, Mode::empty(), ResolveFlags::CACHED | links) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR)
                if (!follows_links || is_certainly_missing(CWD, path.as_slice())) && self.tree.is_root_present() =>
            {
                return CachedStat::Missing;
            }
            Err(_would_wait_or_unusual) => return CachedStat::Unknown,
        };
        match statx(&file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::BASIC_STATS) {
            // Another file system may be mounted below the root.
            Ok(stat) if Some(device_of(&stat)) != self.cached_device => CachedStat::Unknown,
            Ok(stat) if file_type(&stat).is_file() => CachedStat::Object(raw_meta_of(&stat, self.tree.tag)),
            Ok(_) => CachedStat::NotAnObject,
            Err(_) => CachedStat::Unknown,
        }
    }

    /// A bare `statx` takes 0.35 us, less than half the time of [`Self::stat`]. It reads the disk if the kernel has
    /// dropped the inode since that call. It follows links, but a version includes the device and the inode, so that
    /// another file has another version.
    fn is_unchanged(&self, key: &Key, version: u64) -> bool {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        statx(CWD, path_below(&self.tree.root, key).as_slice(), flags, StatxFlags::BASIC_STATS)
            .is_ok_and(|stat| Some(device_of(&stat)) == self.cached_device && has_version(&stat, version))
    }

    fn reader(&self) -> Option<Box<dyn NonblockingReader>> {
        Some(Box::new(PageCacheReader::new(&self.tree)?))
    }

    fn open_for_sendfile(&self, key: &Key, max_bytes: u64) -> Option<SendfileSource> {
        let (file, meta) = PageCacheReader::new(&self.tree)?.open(key).ok()?;
        SendfileSource::new(file, meta, max_bytes, &self.disk_pool)
    }
}

/// A stand-in for a tree that is not available yet. Every call fails, so that no object is reported as missing.
#[derive(Debug)]
pub struct UnavailableStore(String);

impl UnavailableStore {
    /// Creates a stand-in for the tree at `root`.
    pub fn new(root: &RootAddress) -> Self {
        Self(format!("the container's directory is missing: {root} could not be opened yet"))
    }

    fn root_missing<T>(&self) -> Result<T, StoreError> {
        Err(StoreError::RootMissing(self.0.clone()))
    }
}

#[async_trait]
impl Store for UnavailableStore {
    fn backend(&self) -> &'static str {
        "local"
    }

    async fn head(&self, _key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        self.root_missing()
    }

    async fn get(&self, _key: &Key, _inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        self.root_missing()
    }

    async fn is_directory(&self, _key: &Key) -> Result<bool, StoreError> {
        self.root_missing()
    }

    async fn list(
        &self,
        _key: &Key,
        _after: Option<&str>,
        _limit: usize,
        _filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        self.root_missing()
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.root_missing()
    }
}
