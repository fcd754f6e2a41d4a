//! Object storage: maps keys to bytes. Nothing here depends on N5.

mod disk_cache;
mod disk_pool;
mod error;
mod file_meta;
mod instrumented;
mod key;
mod listing;
mod local;
mod memory;
mod object;
mod page_cache;
mod remote;

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;

pub use disk_cache::{DiskCache, DiskCacheContainer, DiskCacheLimits, DiskCachedStore, MaxAge};
pub use disk_pool::StorePressure;
pub use error::StoreError;
pub use file_meta::EntityTagSource;
pub use instrumented::InstrumentedStore;
pub use key::{Key, KeyError};
pub use listing::{DirEntry, EntryFilter, FilterDecision, Listing, MAX_OMITTED_NAMES};
pub use local::{LocalStore, SymlinkPolicy, UnavailableStore};
pub(crate) use local::{check_directory, is_empty_directory};
pub use memory::MemoryStore;
pub use object::{InlineLimit, Object, ObjectData, ObjectMeta, RawObjectMeta, ReadAt, Revalidation};
pub use page_cache::{CachedGet, CachedStat, NonblockingReader, PageCache, SendfileSource};
pub use remote::{
    DirectoryLister, ErrorAnswer, LISTING_ACCEPT, LISTING_BYTES_PER_STORE, ListingError, ListingResponse,
    ListingTransport, RemoteStore, StoreErrorCode, log_upstream_costs, record_upstream_metrics,
};

/// Number of objects that one request reads at once from a local disk.
pub(crate) const CONCURRENT_DISK_READS: usize = 8;

/// Read access to a tree of objects.
///
/// A missing object is `None`, not an error. A directory is not an object. Every call ends within the store's own
/// deadline.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Returns the short name of the kind of store, used as a metric label.
    fn backend(&self) -> &'static str;

    /// Returns the metadata of an object, without its bytes.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the store cannot tell whether the object exists. This includes an object behind a
    /// link that is dangling or not followed.
    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError>;

    /// Returns the result of [`Self::head`] for each of `keys`, in their order. Cheaper than single calls if every call
    /// costs a thread switch.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::head`], for the first object that fails.
    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<ObjectMeta>>, StoreError> {
        let mut metas = Vec::with_capacity(keys.len());
        for key in &keys {
            metas.push(self.head(key).await?);
        }
        Ok(metas)
    }

    /// Returns the metadata of an object that a cache of this store has, if they may be used without a request to the
    /// source.
    async fn cached_meta(&self, _key: &Key) -> Option<ObjectMeta> {
        None
    }

    /// Returns access to objects that are in memory. Returns `None` if the store cannot tell which objects are, as a
    /// store behind a network.
    fn page_cache(&self) -> Option<&dyn PageCache> {
        None
    }

    /// Returns what is known about the object or directory at `key` without waiting.
    fn cached_stat(&self, key: &Key) -> CachedStat {
        self.page_cache().map_or(CachedStat::Unknown, |cache| cache.stat(key))
    }

    /// Returns an object with its bytes if they do not exceed `inline` when the object is opened. Otherwise returns an
    /// open object, from which the bytes can be read.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the object cannot be read.
    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError>;

    /// Opens an object to read `range` of it first. The range may exceed the object. A store behind a network requests
    /// only this range.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::get`].
    async fn open_range(&self, key: &Key, _range: Range<u64>) -> Result<Option<Object>, StoreError> {
        self.get(key, &InlineLimit::new(0)).await
    }

    /// Compares an object with `known`, the entity tag and version of a cached copy; `None` if the object was missing.
    ///
    /// A store behind a network sends one conditional request. If the response is the changed object, returns it as an
    /// open object, so that its bytes are read only when there is memory for them.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::head`].
    async fn revalidate(&self, key: &Key, known: Option<(&str, u64)>) -> Result<Revalidation, StoreError> {
        let current = self.head(key).await?;
        let is_unchanged = current.map(|meta| meta.version) == known.map(|(_, version)| version);
        Ok(if is_unchanged { Revalidation::Unchanged } else { Revalidation::Changed })
    }

    /// Returns true if [`Self::revalidate`] sends one conditional request, which returns a changed object. Otherwise
    /// callers compare many objects at once with [`Self::head_many`].
    fn sends_conditional_requests(&self) -> bool {
        false
    }

    /// Returns true if every call fails while the root is missing. If false, a missing root can make every object look
    /// missing, so a missing block counts as a hole only if its dataset still exists afterwards.
    fn reports_missing_root(&self) -> bool {
        false
    }

    /// Returns true if `key` is a directory. A directory behind a link that is not followed does not count.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the store cannot tell.
    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError>;

    /// Lists the entries of a directory that `filter` accepts and whose names come after `after`, at most `limit` of
    /// them. They are sorted by the bytes of their names. Returns `None` if [`Self::is_directory`] is false.
    ///
    /// Entries that no key can name or that a key could not open are omitted and reported in
    /// [`Listing::omitted_names`].
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the directory cannot be read.
    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError>;

    /// Returns the number of objects that one request should read at once, at least 1. Behind a network, it is the
    /// number of requests that the store accepts at present.
    fn concurrent_reads(&self) -> usize {
        CONCURRENT_DISK_READS
    }

    /// Returns the highest number that [`Self::concurrent_reads`] can return.
    fn max_concurrent_reads(&self) -> usize {
        CONCURRENT_DISK_READS
    }

    /// Returns true if [`Self::list`] costs no more than reading a few blocks. Directories are then listed to count the
    /// blocks of large slices. Otherwise all blocks are assumed to exist.
    fn lists_cheaply(&self) -> bool {
        false
    }

    /// Returns a number that identifies the directory at `key`. Symbolic links can give a directory several keys, for
    /// which the number is equal. Returns `None` if there is no such directory, or if each directory of this store has
    /// one key.
    ///
    /// # Errors
    /// Returns a [`StoreError`] if the store cannot tell.
    async fn identity(&self, _key: &Key) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Returns the current pressure on the store.
    fn pressure(&self) -> StorePressure {
        StorePressure::default()
    }

    /// Checks that the store can be read at all. The readiness endpoint reports the result.
    ///
    /// # Errors
    /// Returns a [`StoreError`] with the reason if it cannot be read.
    async fn probe(&self) -> Result<(), StoreError>;
}
