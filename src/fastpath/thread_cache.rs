//! Thread-local cache of recent replies. A repeated request for an object or chunk is found by the text of its path
//! alone.
//!
//! Without this cache, a quarter of the process's time for a small response went into parsing the path, looking up the
//! object and writing the headers. For a chunk, the HTTP library and resolving the chunk took half of the time
//! (docs/PERFORMANCE.md).

use std::cell::RefCell;

use xxhash_rust::xxh3::xxh3_64;

use super::reply::EntityHeaders;
use crate::container::CachedResponse;

/// Maximum number of replies that a thread caches. Each takes about 400 to 700 bytes.
const SLOT_COUNT: usize = 1024;

/// Maximum length of the path of a cached reply, in bytes.
const MAX_PATH_BYTES: usize = 256;

/// A reply that can be sent again.
pub(super) struct ThreadCacheEntry {
    /// Id of the app that replied.
    app: u64,
    path: Box<str>,
    /// Index of the mount of the app that contains the path.
    pub(super) mount_index: usize,
    /// Headers of the object or chunk; `None` for the 404 of a missing key.
    pub(super) headers: Option<EntityHeaders>,
    pub(super) cached_response: CachedResponse,
}

thread_local! {
    static THREAD_SLOTS: RefCell<Vec<Option<ThreadCacheEntry>>> = const { RefCell::new(Vec::new()) };
}

/// Runs `job` on the entry of a path and returns its result. Returns `None` if there is no entry.
pub(super) fn with_entry<T>(app: u64, path: &str, job: impl FnOnce(&mut ThreadCacheEntry) -> Option<T>) -> Option<T> {
    THREAD_SLOTS.with_borrow_mut(|slots| {
        let slot = slots.get_mut(slot_index(path))?;
        let entry = slot.as_mut().filter(|entry| entry.app == app && *entry.path == *path)?;
        let result = job(entry);
        if result.is_none() && entry.headers.is_none() {
            // The key of the entry was missing, which may no longer be true.
            *slot = None;
        }
        result
    })
}

/// Stores a reply in the slot of its path. An entry for a missing key never replaces another path's entry whose key
/// exists. Otherwise clients could fill the cache with invented names.
pub(super) fn insert(
    app: u64,
    path: &str,
    mount_index: usize,
    headers: Option<EntityHeaders>,
    cached_response: CachedResponse,
) {
    if path.len() > MAX_PATH_BYTES {
        return;
    }
    THREAD_SLOTS.with_borrow_mut(|slots| {
        if slots.is_empty() {
            slots.resize_with(SLOT_COUNT, || None);
        }
        let Some(slot) = slots.get_mut(slot_index(path)) else { return };
        let is_occupied = slot.as_ref().is_some_and(|entry| entry.app == app && entry.headers.is_some());
        let is_same = slot.as_ref().is_some_and(|entry| *entry.path == *path);
        if headers.is_some() || !is_occupied || is_same {
            *slot = Some(ThreadCacheEntry { app, path: path.into(), mount_index, headers, cached_response });
        }
    });
}

fn slot_index(path: &str) -> usize {
    usize::try_from(xxh3_64(path.as_bytes()) % SLOT_COUNT as u64).unwrap_or(0)
}
