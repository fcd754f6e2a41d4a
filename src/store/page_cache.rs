//! Access to objects without waiting: to local files that the kernel holds in memory. The process reads such a file, or
//! the kernel sends it without a copy into the process. The files are objects themselves, or belong to the disk cache.

use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::sendfile;
use rustix::io::{ReadWriteFlags, preadv2};

use super::disk_pool::DiskPool;
use super::file_meta::{has_same_content, is_settled, stat_file};
use super::key::Key;
use super::object::{ObjectMeta, RawObjectMeta};
use crate::runtime::fair_queue::ClientId;

/// Access to objects that are in memory, for threads that must not block. A store returns it from
/// [`Store::page_cache`](super::Store::page_cache).
///
/// No call waits for a network, and only [`Self::is_unchanged`] may read a disk: it does not ask the kernel whether the
/// metadata are still in memory, because that would take twice as long. They are, unless the kernel has dropped them
/// since the last [`Self::stat`]. All other calls fail instead of waiting.
pub trait PageCache: fmt::Debug + Send + Sync {
    /// Returns what is known about the object or directory at `key`.
    fn stat(&self, key: &Key) -> CachedStat;

    /// Returns true if the object at `key` still has this version. Returns false if it has changed or that is not
    /// known.
    ///
    /// May be called only if [`Self::stat`] found the object with this version within about the last second.
    fn is_unchanged(&self, key: &Key, version: u64) -> bool;

    /// Returns a reader, which looks up the root of the store once for all objects. The reader should be dropped after
    /// a few milliseconds, because it does not notice that the root is replaced. Returns `None` if reading might block;
    /// use [`Store::get`](super::Store::get) then.
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
    /// An object of a remote store that is on the local disk and may be used without a request to the store. Its other
    /// metadata come with its bytes.
    Held {
        /// Length in bytes.
        len: u64,
        /// As [`ObjectMeta::version`].
        version: u64,
    },
}

/// A reader of objects that never blocks.
pub trait NonblockingReader: fmt::Debug + Send {
    /// Reads an object of at most `max_bytes` into `buffer`, replacing its content.
    fn get(&mut self, key: &Key, max_bytes: u64, buffer: &mut Vec<u8>) -> CachedGet;
}

/// Result of [`NonblockingReader::get`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CachedGet {
    /// Reading might block, or it failed; call [`Store::get`](super::Store::get).
    Unknown,
    /// There is no object.
    Missing,
    /// Metadata of the object, whose bytes are in the buffer, and the time since it was last compared with its source,
    /// as [`Object::age`](super::Object::age).
    Object(ObjectMeta, Duration),
}

/// Minimum distance between the bytes that are read to find out if a file is in the page cache. The kernel mostly
/// evicts pieces larger than this.
const MIN_SAMPLE_STRIDE: u64 = 64 << 10;

/// Maximum number of bytes that are read to find this out, in addition to the last byte.
const MAX_SAMPLES: u64 = 16;

/// Maximum number of bytes that one call sends. Other connections of the thread wait during the call.
const CHUNK_BYTES: u64 = 512 << 10;

/// Check that the content of an open file has not changed.
#[derive(Debug)]
enum ContentCheck {
    /// The file still has this length and modification time.
    SameFile(RawObjectMeta),
    /// The file still has this length. Files of the disk cache are never written after they have their names, but their
    /// modification times change when their objects are revalidated.
    SameLength(u64),
}

/// An open file of a [`super::Store`] or of the disk cache, which begins with an object.
#[derive(Debug)]
pub struct SendfileSource {
    file: File,
    check: ContentCheck,
    meta: ObjectMeta,
    disk_pool: Arc<DiskPool>,
    /// Client that requested the file.
    client: ClientId,
}

impl SendfileSource {
    /// Wraps an open file. Returns `None` if the file is empty, has more than `max_bytes` or was written just now, or
    /// if reading it would block.
    pub(super) fn new(file: File, at_open: RawObjectMeta, max_bytes: u64, disk_pool: &Arc<DiskPool>) -> Option<Self> {
        if !is_settled(&at_open) {
            return None;
        }
        Self::checked(file, ContentCheck::SameFile(at_open), at_open.into(), max_bytes, disk_pool)
    }

    /// Wraps a file of the disk cache, which has `file_bytes` and begins with the object `meta`. Returns `None` if the
    /// object is empty or has more than `max_bytes`, or if reading it would block.
    pub(super) fn of_cache_file(
        file: File,
        file_bytes: u64,
        meta: ObjectMeta,
        max_bytes: u64,
        disk_pool: &Arc<DiskPool>,
    ) -> Option<Self> {
        Self::checked(file, ContentCheck::SameLength(file_bytes), meta, max_bytes, disk_pool)
    }

    fn checked(
        file: File,
        check: ContentCheck,
        meta: ObjectMeta,
        max_bytes: u64,
        disk_pool: &Arc<DiskPool>,
    ) -> Option<Self> {
        let last = meta.len.checked_sub(1).filter(|_| meta.len <= max_bytes)?;
        let stride = usize::try_from(MIN_SAMPLE_STRIDE.max(meta.len / MAX_SAMPLES)).ok()?;
        let is_cached = |at| is_in_page_cache(&file, at);
        if !(0..last).step_by(stride).all(is_cached) || !is_cached(last) {
            return None;
        }
        Some(Self { file, check, meta, disk_pool: Arc::clone(disk_pool), client: ClientId::current() })
    }

    /// Returns the metadata of the object.
    pub fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    /// Returns true if the bytes that [`Self::send`] sends next are still in the page cache. Returns true without a
    /// check if `from` is 0, because the file was checked when it was opened.
    pub fn is_next_chunk_cached(&self, from: u64) -> bool {
        let last = self.next_chunk(from).end - 1;
        from == 0 || (is_in_page_cache(&self.file, from) && (last == from || is_in_page_cache(&self.file, last)))
    }

    /// Makes the kernel read the bytes that [`Self::send`] sends next.
    ///
    /// # Errors
    /// Returns an error if the bytes cannot be read, or not in time.
    pub fn prefetch(self: &Arc<Self>, from: u64) -> impl Future<Output = io::Result<()>> + Send + Sync + 'static {
        let this = Arc::clone(self);
        let read_chunk = move || {
            let mut scratch = vec![0; 64 << 10];
            let mut at = from;
            let end = this.next_chunk(from).end;
            while at < end {
                match this.file.read_at(&mut scratch, at)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    read => at += read as u64,
                }
            }
            Ok(())
        };
        let disk_pool = Arc::clone(&self.disk_pool);
        let client = self.client;
        async move { client.scope(disk_pool.run(None, read_chunk)).await.map_err(io::Error::from)? }
    }

    /// Returns the range that is sent at once from `from` on. The last byte is sent alone.
    fn next_chunk(&self, from: u64) -> Range<u64> {
        let last = self.meta.len.saturating_sub(1);
        let end = if from >= last { from.saturating_add(1) } else { last.min(from.saturating_add(CHUNK_BYTES)) };
        from..end
    }

    /// Returns the maximum number of bytes that [`Self::send`] sends from `from` on.
    pub fn next_chunk_bytes(&self, from: u64) -> u64 {
        let chunk = self.next_chunk(from);
        chunk.end - chunk.start
    }

    /// Sends bytes from `from` on to a nonblocking socket: as many as the socket accepts, at most `max_bytes` and at
    /// most 512 KiB.
    ///
    /// The last byte is sent alone, after a check that the file still has its length and, unless it belongs to the disk
    /// cache, its modification time. A file that
    /// was written during the transfer is therefore never sent to its end, so that the client notices. A change of its
    /// name, mode or owner does not matter. If the file is overwritten in place, without being truncated or replaced
    /// first, while bytes of it wait in the socket, the new bytes are sent.
    ///
    /// # Errors
    /// Returns the errors of the socket; `UnexpectedEof` if the file has become shorter or was written.
    pub fn send(&self, socket: BorrowedFd<'_>, from: u64, max_bytes: usize) -> io::Result<usize> {
        let chunk = self.next_chunk(from);
        if chunk.end >= self.meta.len && !self.has_same_content()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let count = usize::try_from(chunk.end - chunk.start).unwrap_or(usize::MAX).min(max_bytes);
        let mut offset = from;
        match sendfile(socket, &self.file, Some(&mut offset), count)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            sent => Ok(sent),
        }
    }
}

impl SendfileSource {
    fn has_same_content(&self) -> io::Result<bool> {
        Ok(match &self.check {
            ContentCheck::SameFile(at_open) => has_same_content(&stat_file(&self.file)?, at_open),
            ContentCheck::SameLength(len) => self.file.metadata()?.len() == *len,
        })
    }
}

/// Returns true if the byte at offset `at` can be read without blocking.
fn is_in_page_cache(file: &File, at: u64) -> bool {
    let mut byte = [0];
    preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT).is_ok_and(|read| read == 1)
}
