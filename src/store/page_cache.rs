//! Access to objects without waiting: local files that the kernel holds in memory.

use std::fmt;

use super::key::Key;
use super::object::{ObjectMeta, RawObjectMeta};
use super::sendfile::SendfileSource;

/// Access to objects that are in memory. No call waits for a disk or a network, so threads that must not block may use
/// it. A store returns it from [`Store::page_cache`](super::Store::page_cache).
pub trait PageCache: fmt::Debug + Send + Sync {
    /// Returns what is known of `key`.
    fn stat(&self, key: &Key) -> CachedStat;

    /// Returns true if the object at `key`, which [`Self::stat`] saw with this version a moment ago, still has it. Also
    /// returns false if that is not known.
    fn is_unchanged(&self, key: &Key, version: u64) -> bool;

    /// Returns a reader for use within the next few milliseconds. It does the work that all objects have in common only
    /// once. Returns `None` if reading might block; use [`Store::get`](super::Store::get) then.
    fn reader(&self) -> Option<Box<dyn NonblockingReader>> {
        None
    }

    /// Opens an object of at most `max_bytes` that the kernel itself can send from memory. Returns `None` if that is
    /// not possible or there is no object.
    fn open_for_sendfile(&self, _key: &Key, _max_bytes: u64) -> Option<SendfileSource> {
        None
    }
}

/// Result of [`PageCache::stat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachedStat {
    /// The store would have to wait; call [`Store::head`](super::Store::head).
    Unknown,
    /// Nothing has that name, not even a directory.
    Missing,
    /// Something exists that is not an object.
    NotAnObject,
    /// An object.
    Object(RawObjectMeta),
}

/// A reader of objects that never blocks.
pub trait NonblockingReader: fmt::Debug + Send {
    /// Reads an object of at most `max_bytes` into `buffer`, replacing its content. Returns `Some(None)` if there is no
    /// object, and `None` if reading would or might block, or fails.
    fn get(&mut self, key: &Key, max_bytes: u64, buffer: &mut Vec<u8>) -> Option<Option<ObjectMeta>>;
}
