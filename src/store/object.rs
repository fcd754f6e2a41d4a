//! Objects of a store: their metadata and bytes.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

use super::error::StoreError;

/// Metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Length in bytes.
    pub len: u64,
    /// Last modification, if the store knows it.
    pub modified: Option<SystemTime>,
    /// Strong, quoted entity tag. Copies of an object on several machines have the same tag, unless the store derives
    /// tags from metadata of one machine, such as inodes.
    pub etag: Arc<str>,
    /// Version, which changes whenever the object is replaced or written, as far as the store can tell.
    pub version: u64,
}

/// Metadata of a file, from which an [`ObjectMeta`] is made without another system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawObjectMeta {
    /// Length in bytes.
    pub len: u64,
    /// Last modification, in nanoseconds since the Unix epoch.
    pub modified: i128,
    /// Change time and inode, if the entity tag contains them.
    pub changed: Option<(i128, u64)>,
    /// As [`ObjectMeta::version`].
    pub version: u64,
}

/// Limit in bytes up to which [`Store::get`](super::Store::get) returns an object with its bytes. The caller may revoke
/// the limit while the call is waiting, to use the memory for other requests. Clones share the limit. Relaxed atomics
/// suffice, since no other memory depends on the number.
#[derive(Debug, Clone)]
pub struct InlineLimit(Arc<AtomicU64>);

impl InlineLimit {
    /// Creates a limit of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes)))
    }

    /// Returns the current limit.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the limit to zero, so that nothing is read from now on.
    pub fn revoke(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// An object returned by [`Store::get`](super::Store::get).
#[derive(Debug)]
pub struct Object {
    /// Metadata of the object.
    pub meta: ObjectMeta,
    /// Time since the object was last compared with its source: zero, unless the store is a cache.
    pub age: Duration,
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

/// Result of [`Store::revalidate`](super::Store::revalidate).
#[derive(Debug)]
pub enum Revalidation {
    /// The object has not changed, or is still missing.
    Unchanged,
    /// The object has changed and must be requested.
    Changed,
    /// The object as it is now, from the same request; `None` if it is missing.
    Current(Option<Object>),
}

/// An open object. All calls read the same object, even after another one has replaced it at its key.
#[async_trait]
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// Reads the bytes of `range`, which must lie within the object.
    ///
    /// # Errors
    /// Returns [`StoreError::Truncated`] if the object has become shorter, and the errors of
    /// [`Store::get`](super::Store::get).
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// Reads the bytes of `range` like [`Self::read_at`]. The caller reads on to `end` afterwards, so a store behind a
    /// network requests all of it at once.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::read_at`].
    async fn read_sequential(&self, range: Range<u64>, _end: u64) -> Result<Bytes, StoreError> {
        self.read_at(range).await
    }
}
