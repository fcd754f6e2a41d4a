//! Object storage: maps keys to bytes. Knows nothing of N5 or of attributes.

mod disk_pool;
mod file_meta;
mod key;
mod listing_limiter;
mod local;
mod memory;
mod page_cache;
mod sendfile;
mod unavailable;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

pub use disk_pool::max_disk_threads;
pub use file_meta::EntityTagSource;
pub use key::{Key, KeyError};
pub use local::{LocalStore, SymlinkPolicy};
pub use memory::MemoryStore;
pub use page_cache::{CachedStat, NonblockingReader, PageCache, RawObjectMeta};
pub use sendfile::SendfileSource;
pub use unavailable::UnavailableStore;

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
    /// [`StoreError`] if the store cannot tell whether the object exists. This includes an object behind a link that is
    /// dangling or not followed.
    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError>;

    /// Returns the result of [`Self::head`] for each of `keys`, in their order. Cheaper than single calls if every call
    /// costs a thread switch.
    ///
    /// # Errors
    /// As [`Self::head`], for the first object that fails.
    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<ObjectMeta>>, StoreError> {
        let mut metas = Vec::with_capacity(keys.len());
        for key in &keys {
            metas.push(self.head(key).await?);
        }
        Ok(metas)
    }

    /// Returns access to the objects that are in memory, without waiting. `None` for a store that cannot tell, such as
    /// one behind a network.
    fn page_cache(&self) -> Option<&dyn PageCache> {
        None
    }

    /// Returns an object: its bytes if `inline` allows as many when the object is opened, otherwise a handle to read
    /// them from.
    ///
    /// # Errors
    /// [`StoreError`] if the object cannot be read.
    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError>;

    /// Returns true if `key` is a directory. A directory behind a link that is not followed does not count.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot tell.
    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError>;

    /// Lists the entries of a directory that `keep` accepts and whose names come after `after`, at most `limit` of
    /// them. They are sorted by the bytes of their names. Returns `None` if [`Self::is_directory`] is false.
    ///
    /// Entries that no key can name or that a key could not open are omitted and reported in
    /// [`Listing::omitted_names`].
    ///
    /// # Errors
    /// [`StoreError`] if the directory cannot be read.
    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        keep: EntryFilter,
    ) -> Result<Option<Listing>, StoreError>;

    /// Returns true if [`Self::list`] costs no more than a few reads of blocks. Then directories are listed to count
    /// the blocks of large slices; otherwise all blocks count as existing.
    fn lists_cheaply(&self) -> bool {
        false
    }

    /// Returns a number that is equal for all keys of the same directory. Symbolic links can give a directory several
    /// keys. Returns `None` if there is no such directory, or if a directory of this store has only one key.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot tell.
    async fn identity(&self, _key: &Key) -> Result<Option<u64>, StoreError> {
        Ok(None)
    }

    /// Returns the load of the store: its calls that wait now.
    fn current_load(&self) -> StoreLoad {
        StoreLoad::default()
    }

    /// Checks that the store can be read at all, for readiness.
    ///
    /// # Errors
    /// [`StoreError`] with the reason if it cannot be read.
    async fn probe(&self) -> Result<(), StoreError>;
}

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Length in bytes.
    pub len: u64,
    /// Last modification, if the store knows it.
    pub modified: Option<SystemTime>,
    /// Strong, quoted entity tag. Equal for equal copies of the object on other machines if the store can tell.
    pub etag: Arc<str>,
    /// Version, which changes whenever the object is replaced or written, as far as the store can tell.
    pub version: u64,
}

/// Maximum number of bytes of an object that [`Store::get`] returns inline. The caller may revoke it while the call
/// waits, if the memory for the bytes is no longer available. Clones share the limit.
#[derive(Debug, Clone)]
pub struct InlineLimit(Arc<AtomicU64>);

impl InlineLimit {
    /// Creates a limit of this many bytes.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes)))
    }

    /// Returns the number of bytes that may be read now.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the limit to zero, so that nothing is read from now on.
    pub fn revoke(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// An object returned by [`Store::get`].
#[derive(Debug)]
pub struct Object {
    /// Metadata of the object.
    pub meta: ObjectMeta,
    /// Bytes of the object, or a handle to read them from.
    pub data: ObjectData,
}

/// The content of an object.
#[derive(Debug)]
pub enum ObjectData {
    /// All bytes of the object, in memory.
    InMemory(Bytes),
    /// An open object from which the bytes are read.
    Open(Arc<dyn ReadAt>),
}

/// An open object. Every call reads the same version, even if the key is replaced meanwhile.
#[async_trait]
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// Reads the bytes of `range`, which must lie within the object.
    ///
    /// # Errors
    /// [`StoreError::Truncated`] if the object has become shorter, and the errors of [`Store::get`].
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError>;
}

/// One page of a directory listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Entries, sorted by the bytes of their names.
    pub entries: Vec<DirEntry>,
    /// True if more entries follow.
    pub has_more: bool,
    /// Names of omitted entries as text, at most [`MAX_OMITTED_NAMES`]. An entry is omitted if no key can have its
    /// name, if it is a link that is dangling or not followed, or if it is neither a file nor a directory. Names that
    /// no key can have are reported on every page.
    pub omitted_names: Vec<String>,
    /// Number of omitted entries, including those in [`Self::omitted_names`]. If [`Self::has_more`] is true, the next
    /// page may count some of them again.
    pub omitted_count: u64,
}

/// Maximum number of names in [`Listing::omitted_names`].
pub const MAX_OMITTED_NAMES: usize = 16;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// Name of the entry, which is a valid key segment.
    pub name: String,
    /// True if the entry is a directory.
    pub is_directory: bool,
}

/// Filter of the entries that [`Store::list`] returns. It is called while the directory is scanned, so rejected entries
/// cost neither memory nor another scan.
pub type EntryFilter = Arc<dyn Fn(&DirEntry) -> FilterDecision + Send + Sync>;

/// Decision of an [`EntryFilter`] about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterDecision {
    /// List the entry.
    Keep,
    /// Do not list the entry.
    Skip,
    /// List the entry if it is a directory that directly contains an object of this name.
    KeepIfContains(&'static str),
}

impl FilterDecision {
    /// Returns a filter that keeps every entry.
    pub fn keep_all() -> EntryFilter {
        Arc::new(|_| Self::Keep)
    }
}

/// Load of a store: the calls that wait for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreLoad {
    /// Number of calls that have started.
    pub running: usize,
    /// Number of calls that have not started.
    pub queued: usize,
    /// True if no call has ended for so long that further calls fail at once, except for an occasional probe.
    pub is_stalled: bool,
    /// Time for which no call has ended, while calls run whose callers may still wait.
    pub silent_for: Duration,
    /// Age of the longest-running call whose caller may still wait.
    pub longest_running: Duration,
}

impl StoreLoad {
    /// Time without an answer after which the store counts as unresponsive.
    const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(1);

    /// Returns true if the store has answered no request for so long that nothing should be held for it.
    pub fn is_unresponsive(&self) -> bool {
        self.silent_for >= Self::UNRESPONSIVE_AFTER
    }
}

/// Why a store did not answer. Errors are transient unless [`Self::hides_object`] returns true.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The operating system or a server returned an error.
    #[error("{action} {key:?}: {cause}")]
    Io {
        /// The attempted action, such as "read" or "list".
        action: &'static str,
        /// Key of the object or directory.
        key: Key,
        /// Cause of the failure.
        cause: Arc<std::io::Error>,
    },
    /// The object became shorter while it was read.
    #[error("{0:?} became shorter while it was read")]
    Truncated(Key),
    /// The object was written during every attempt to read it.
    #[error("{0:?} is being written")]
    Torn(Key),
    /// The root of the store is missing. The text says which one and why.
    #[error("{0}")]
    RootMissing(String),
    /// A symbolic link on the path is not followed.
    #[error("a symbolic link on the way to {0:?} is not followed; the setting is `symlinks`")]
    LinkNotFollowed(Key),
    /// The target of a symbolic link, at the key or on the path to it, does not exist, so the object cannot be seen.
    #[error("{0:?} is a dangling symbolic link, or lies behind one")]
    DanglingLink(Key),
    /// The store did not answer within its deadline.
    #[error("{0} {1:?}: no answer in time")]
    Timeout(&'static str, Key),
    /// The store has answered no call for so long that this one was not tried.
    #[error("{0} {1:?}: not tried, the storage has not responded for a while")]
    Stalled(&'static str, Key),
    /// Other calls have waited for the same operation for so long that this one was not tried.
    #[error("{0} {1:?}: not tried, earlier calls for the same operation got no answer")]
    KeyStalled(&'static str, Key),
    /// So many calls wait for the store that this one was not tried.
    #[error("{0} {1:?}: not tried, too many calls are waiting for the storage")]
    Overloaded(&'static str, Key),
    /// The request was given up: the storage kept it waiting while it held memory that requests of other containers
    /// needed.
    #[error("{0:?}: aborted, the storage kept the request waiting and other requests needed the memory that it held")]
    Preempted(Key),
}

impl StoreError {
    /// Returns the kind of failure, used as a metric label.
    pub fn kind(&self) -> &'static str {
        use rustix::io::Errno;
        match self {
            Self::Io { cause, .. } => match Errno::from_io_error(cause) {
                Some(Errno::ACCESS | Errno::PERM) => "permission",
                Some(Errno::STALE) => "stale",
                Some(Errno::MFILE | Errno::NFILE) => "descriptors",
                // A refusal by the symlink policy has no error number.
                None if cause.kind() == std::io::ErrorKind::PermissionDenied => "permission",
                Some(_) | None => "io",
            },
            Self::Truncated(_) | Self::Torn(_) => "torn",
            Self::RootMissing(_) => "gone",
            Self::LinkNotFollowed(_) | Self::DanglingLink(_) => "link",
            Self::Timeout(..) => "timeout",
            Self::Stalled(..) | Self::KeyStalled(..) | Self::Preempted(_) => "stalled",
            Self::Overloaded(..) => "crowded",
        }
    }

    /// Returns true if the object is hidden from this process until someone changes that. Retrying is useless. The
    /// object may exist.
    pub fn hides_object(&self) -> bool {
        matches!(self, Self::LinkNotFollowed(_) | Self::DanglingLink(_)) || self.kind() == "permission"
    }

    /// All values of [`Self::kind`].
    pub const KINDS: &[&str] =
        &["io", "permission", "stale", "descriptors", "torn", "gone", "link", "timeout", "stalled", "crowded"];
}
