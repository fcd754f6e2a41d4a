//! A container on the file system. Every async call runs on a thread that may block on the disk.

mod errors;
mod files;
mod links;
mod open_file;
mod page_cache;
mod page_cache_reader;
mod reopen;
mod resolve;
mod root;
mod run;
mod scan;
mod tree;

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::Store;
use super::disk_pool::DiskPool;
use super::error::StoreError;
use super::file_meta::EntityTagSource;
use super::key::Key;
use super::listing::{EntryFilter, Listing};
use super::listing_limiter::{self, ListingMonitor};
use super::load::StoreLoad;
use super::object::{InlineLimit, Object, ObjectData, ObjectMeta};
use super::page_cache::PageCache;
use open_file::OpenFile;
use page_cache::LocalPageCache;
use root::StoreRoot;
use run::run_blocking;
use scan::PageRequest;
use tree::LocalTree;

pub use tree::SymlinkPolicy;

/// A store on a directory tree.
#[derive(Debug, Clone)]
pub struct LocalStore {
    tree: LocalTree,
    disk_pool: DiskPool,
    page_cache: Option<LocalPageCache>,
}

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
        let refusal = root.openat2_refusal()?;
        if let Some(why) = refusal {
            tracing::warn!(
                root = %root.path().display(),
                %why,
                "openat2 is not available: paths are resolved component by component, and every request needs a thread \
                 that may block on the disk"
            );
        }
        let tree = LocalTree { root, symlinks, has_openat2: refusal.is_none(), tag: EntityTagSource::default() };
        let disk_pool = DiskPool::new(deadline);
        Ok(Self { page_cache: LocalPageCache::new(&tree, &disk_pool), tree, disk_pool })
    }

    /// Returns the same tree with names resolved component by component, as on systems that refuse `openat2`.
    #[must_use]
    pub fn without_openat2(self) -> Self {
        Self { tree: LocalTree { has_openat2: false, ..self.tree }, page_cache: None, ..self }
    }

    /// Returns the same tree with another policy and deadline. Does not check that the tree is present.
    #[must_use]
    pub fn with_settings(&self, symlinks: SymlinkPolicy, deadline: Duration) -> Self {
        self.with_tree(LocalTree { symlinks, ..self.tree.clone() }, DiskPool::new(deadline))
    }

    /// Returns the same tree with entity tags from another source.
    #[must_use]
    pub fn with_entity_tag(self, tag: EntityTagSource) -> Self {
        self.with_tree(LocalTree { tag, ..self.tree.clone() }, self.disk_pool.clone())
    }

    fn with_tree(&self, tree: LocalTree, disk_pool: DiskPool) -> Self {
        let page_cache = self.page_cache.as_ref().map(|cache| cache.with_tree(&tree, &disk_pool));
        Self { tree, disk_pool, page_cache }
    }

    /// Returns true if the directory was a mount point when it was opened. If so, nothing below it is reported as
    /// missing while nothing is mounted there.
    pub fn is_mount(&self) -> bool {
        self.tree.root.is_mount()
    }

    /// Returns the directory, without symbolic links in its path.
    pub fn root(&self) -> &Path {
        self.tree.root.path()
    }

    /// Returns the system's metadata of a file or directory, or `None` if there is none.
    ///
    /// # Errors
    /// As [`Store::head`].
    pub async fn metadata(&self, key: &Key) -> Result<Option<Metadata>, StoreError> {
        let owned_key = key.clone();
        self.run("stat", key, move |tree| tree.metadata(&owned_key)).await
    }

    /// Opens a file for reading. Returns `None` if there is none.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub async fn open_for_reading(&self, key: &Key) -> Result<Option<File>, StoreError> {
        let owned_key = key.clone();
        self.run("open", key, move |tree| tree.open_for_reading(&owned_key)).await
    }

    /// Returns true if `key` is a file. Blocks on the disk.
    ///
    /// # Errors
    /// If that cannot be determined.
    pub fn has_file_blocking(&self, key: &Key) -> io::Result<bool> {
        Ok(self.tree.metadata(key)?.is_some_and(|metadata| metadata.is_file()))
    }

    /// Runs a call that may block on the disk: [`run_blocking`].
    async fn run<T: Send + 'static>(
        &self,
        action: &'static str,
        key: &Key,
        call: impl FnOnce(&LocalTree) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let tree = self.tree.clone();
        run_blocking(&self.disk_pool, action, key, move || call(&tree)).await
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
        let owned_key = key.clone();
        let metas = self.run("stat", key, move |tree| tree.head_many(std::slice::from_ref(&owned_key))).await?;
        Ok(metas.into_iter().next().flatten())
    }

    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<ObjectMeta>>, StoreError> {
        let Some(first) = keys.first().cloned() else { return Ok(Vec::new()) };
        self.run("stat", &first, move |tree| tree.head_many(&keys)).await
    }

    fn page_cache(&self) -> Option<&dyn PageCache> {
        self.page_cache.as_ref().map(|cache| cache as &dyn PageCache)
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        let (owned_key, inline) = (key.clone(), inline.clone());
        let wait_token = Arc::new(());
        let is_wanted = Arc::downgrade(&wait_token);
        let get = move |tree: &LocalTree| tree.get(&owned_key, &inline, || is_wanted.strong_count() > 0);
        let found = self.run("read", key, get).await;
        drop(wait_token);
        Ok(found?.map(|(meta, data)| {
            let data = match data {
                Ok(bytes) => ObjectData::InMemory(bytes),
                Err(file) => {
                    let file = Arc::new(file);
                    ObjectData::Open(Arc::new(OpenFile { disk_pool: self.disk_pool.clone(), key: key.clone(), file }))
                }
            };
            Object { meta, data }
        }))
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        let owned_key = key.clone();
        self.run("stat", key, move |tree| tree.is_directory(&owned_key)).await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        let (owned_key, after) = (key.clone(), after.map(str::to_owned));
        // A directory may be large: a listing without a caller is not read to its end.
        let monitor = ListingMonitor::default();
        let reporter = monitor.reporter();
        let list = move |tree: &LocalTree| {
            let page = PageRequest {
                after: after.as_deref(),
                limit,
                filter: &filter,
                is_wanted: &|| reporter.report_progress(),
            };
            tree.list(&owned_key, &page)
        };
        let listed = listing_limiter::run_limited(&self.disk_pool, &monitor, self.run("list", key, list)).await;
        drop(monitor);
        listed.unwrap_or_else(|| Err(StoreError::Overloaded("list", key.clone())))
    }

    async fn identity(&self, key: &Key) -> Result<Option<u64>, StoreError> {
        let owned_key = key.clone();
        self.run("stat", key, move |tree| tree.identity(&owned_key)).await
    }

    fn current_load(&self) -> StoreLoad {
        self.disk_pool.load()
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.run("open", &Key::root(), LocalTree::probe).await
    }
}
