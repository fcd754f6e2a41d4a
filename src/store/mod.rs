//! Where bytes live: keys in, objects out. Knows nothing of N5 or of attributes.

mod at_once;
mod file_meta;
mod glance;
mod key;
mod local;
mod memory;
mod sendable;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;

pub use key::{Key, KeyError};
pub use local::{LocalStore, SymlinkPolicy};
pub use memory::MemoryStore;
pub use sendable::Sendable;

/// Read access to a tree of objects.
///
/// A missing object is `None`, not an error; a directory is not an object. Every call ends within the
/// store's own deadline.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Short name of the kind of store, a metric label.
    fn backend(&self) -> &'static str;

    /// Facts about an object without its bytes.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot say whether the object exists.
    async fn head(&self, key: &Key) -> Result<Option<Meta>, StoreError>;

    /// [`Self::head`] of many objects, in their order; cheaper than one by one where a call costs a hop.
    ///
    /// # Errors
    /// As [`Self::head`], for the first object that fails.
    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<Meta>>, StoreError> {
        let mut metas = Vec::with_capacity(keys.len());
        for key in &keys {
            metas.push(self.head(key).await?);
        }
        Ok(metas)
    }

    /// What the store can say of `key` at once, without waiting for a disk or a network: never blocks, so that it may
    /// be asked where nothing may wait.
    fn glance(&self, _key: &Key) -> Glance {
        Glance::Unknown
    }

    /// Whether the object at `key`, which [`Self::glance`] saw with that version a moment ago, still has it; `false` also
    /// where that would have to wait.
    fn is_unchanged(&self, _key: &Key, _version: u64) -> bool {
        false
    }

    /// An object: its bytes where they are at most `inline_bytes`, else a handle to read them from.
    ///
    /// # Errors
    /// [`StoreError`] when the object cannot be read.
    async fn get(&self, key: &Key, inline_bytes: u64) -> Result<Option<Object>, StoreError>;

    /// An object of at most `most_bytes` that can be read without waiting for anything, its bytes in place of what
    /// `room` held; `Some(None)` where there is none. `None` where reading it would or might wait, or fails: then
    /// [`Self::get`] tells. A store that cannot know always waits.
    fn get_at_once(&self, key: &Key, most_bytes: u64, room: &mut Vec<u8>) -> Option<Option<Meta>> {
        let _ = (key, most_bytes, room);
        None
    }

    /// An object of at most `most_bytes` to be sent by the kernel itself, from memory that it has already; `None` where
    /// that is not possible, or there is no object.
    fn open_at_once(&self, key: &Key, most_bytes: u64) -> Option<Sendable> {
        let _ = (key, most_bytes);
        None
    }

    /// Whether `key` is a directory.
    ///
    /// # Errors
    /// [`StoreError`] when the store cannot say.
    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError>;

    /// The entries of a directory that `keep` wants and that follow the name `after`, at most `limit` of
    /// them, sorted by the bytes of their names; `None` where there is no such directory.
    ///
    /// Names that are no key segment are left out.
    ///
    /// # Errors
    /// [`StoreError`] when the directory cannot be read.
    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        keep: Filter,
    ) -> Result<Option<Listing>, StoreError>;

    /// Whether the store can be read at all, for readiness.
    ///
    /// # Errors
    /// [`StoreError`] says why not.
    async fn probe(&self) -> Result<(), StoreError>;
}

/// Facts about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Length in bytes.
    pub len: u64,
    /// Last modification, where the store knows it.
    pub modified: Option<SystemTime>,
    /// Strong, quoted entity tag, equal for equal copies of the object on other machines where the
    /// store can tell.
    pub etag: Arc<str>,
    /// Changes whenever the object is replaced or written, as far as the store can tell.
    pub version: u64,
}

/// What [`Store::glance`] sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Glance {
    /// It would have to wait: ask [`Store::head`].
    Unknown,
    /// There is nothing of that name, no directory either.
    Missing,
    /// There is something, but no object.
    NoObject,
    /// An object.
    Object(Facts),
}

/// What [`Meta`] is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Length in bytes.
    pub len: u64,
    /// Last modification, in nanoseconds since 1970.
    pub modified: i128,
    /// As [`Meta::version`].
    pub version: u64,
}

/// An object found by [`Store::get`].
#[derive(Debug)]
pub struct Object {
    /// Facts.
    pub meta: Meta,
    /// Bytes, or the way to them.
    pub data: Data,
}

/// The bytes of an object.
#[derive(Debug)]
pub enum Data {
    /// All of them.
    Whole(Bytes),
    /// An open object to read them from.
    Open(Arc<dyn ReadAt>),
}

/// An open object: the same bytes at every call, also when its key is replaced meanwhile.
#[async_trait]
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// The bytes of `range`, which lies within the object.
    ///
    /// # Errors
    /// [`StoreError::Short`] when the object has become shorter, and as [`Store::get`].
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError>;
}

/// A page of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// Entries, sorted by the bytes of their names.
    pub entries: Vec<Entry>,
    /// Whether more entries follow.
    pub more: bool,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its name, a key segment.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// Which entries [`Store::list`] keeps. It is asked while the directory is scanned, so that what it drops
/// costs neither memory nor another scan.
pub type Filter = Arc<dyn Fn(&Entry) -> Keep + Send + Sync>;

/// What a [`Filter`] says of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// It is listed.
    Yes,
    /// It is not.
    No,
    /// It is listed when it is a directory with an object of this name directly below.
    IfItHolds(&'static str),
}

impl Keep {
    /// The filter that keeps everything.
    pub fn all() -> Filter {
        Arc::new(|_| Self::Yes)
    }
}

/// Why a store did not answer. All of these may pass.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The operating system or a server refused.
    #[error("{action} {key:?}: {cause}")]
    Io {
        /// What was tried ("read", "list").
        action: &'static str,
        /// On what.
        key: Key,
        /// The reason given.
        cause: Arc<std::io::Error>,
    },
    /// An object became shorter while it was read.
    #[error("{0:?} became shorter while it was read")]
    Short(Key),
    /// No answer within the store's deadline.
    #[error("{0} {1:?}: no answer in time")]
    Timeout(&'static str, Key),
}
