//! Reads from the disk cache: on threads that may block, and without waiting where the kernel has a file in memory.
//!
//! When a file is checked:
//!
//! - Its trailer is checked whenever it is opened: checksum, length of the file, identity of the container and key.
//! - Bytes that are read into memory as a whole are compared with their checksum each time (64 KiB take 3 us).
//! - A file that the kernel sends, or that is read in pieces, was written or wholly read and checked by this process,
//!   and its inode, length and times have not changed since.
//!
//! A damaged file is deleted and counted, and the object is requested from the store.

use std::fs::File;
use std::io::{self, ErrorKind, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::containers::ContainerIdentity;
use super::directory::{CacheDirectory, file_stamp};
use super::entry_file::{EntryFault, EntryTrailer, MAX_TRAILER_BYTES, TAIL_BYTES, parse_trailer, trailer_bytes};
use super::handle::DiskCacheContainer;
use super::index::{DiskEntry, EntryName};
use super::shared::{CachePhase, DiskAction, DiskCacheShared, MAX_OBJECT_BYTES};
use crate::store::key::Key;
use crate::store::object::{InlineLimit, ObjectMeta};
use crate::store::page_cache::SendfileSource;
use crate::telemetry::log_throttle::LogThrottle;

/// Number of bytes that are read between two checks that the caller still wants them.
const STEP_BYTES: usize = 128 << 10;

/// Bytes at the end of a file that are read first. They are the whole trailer, unless the key is very long.
const FIRST_READ_BYTES: u64 = 512;

/// Result of a look-up.
#[derive(Debug)]
pub(super) enum DiskLookup {
    /// The object is not in the cache, or cannot be read.
    Missing,
    /// The object must be compared with the store before it is used.
    Stale(ObjectMeta),
    /// The object, and the time since it was last compared with the store.
    Found(ObjectMeta, DiskData, Duration),
}

/// The bytes of an object in the cache.
#[derive(Debug)]
pub(super) enum DiskData {
    InMemory(Bytes),
    Open(CacheFile),
}

/// A checked file.
#[derive(Debug, Clone)]
pub(super) struct CacheFile {
    file: Arc<File>,
    checksum: u64,
    len: u64,
}

/// A checked file that was opened without blocking.
struct OpenedEntry {
    file: File,
    file_bytes: u64,
    trailer: EntryTrailer,
    age: Duration,
}

/// The object that a reader looks up.
struct EntryRequest {
    identity: Arc<ContainerIdentity>,
    key: Key,
    name: EntryName,
    /// Maximum size of an object whose bytes are read.
    inline: InlineLimit,
    max_age: Duration,
    is_wanted: Weak<()>,
}

impl DiskCacheContainer {
    /// Looks up an object that was compared with the store at most `max_age` ago, and reads its bytes if they do not
    /// exceed `inline`.
    pub(super) async fn look_up(&self, key: &Key, inline: &InlineLimit, max_age: Duration) -> DiskLookup {
        let shared = &self.cache.0;
        let name = EntryName::new(self.identity.hash, key);
        let is_possible = match shared.phase() {
            CachePhase::Off => return DiskLookup::Missing,
            // Files that have not been scanned yet are found by their name.
            CachePhase::Scanning => !shared.lane(name).is_removing(name),
            CachePhase::Ready => shared.index.update(name, |_| ()).is_some(),
        };
        if !is_possible {
            shared.counters.misses.fetch_add(1, Ordering::Relaxed);
            return DiskLookup::Missing;
        }
        let wait_token = Arc::new(());
        let request = EntryRequest {
            identity: Arc::clone(&self.identity),
            key: key.clone(),
            name,
            inline: inline.clone(),
            max_age,
            is_wanted: Arc::downgrade(&wait_token),
        };
        let lookup = shared.run(DiskAction::Read, move |shared| shared.look_up(&request)).await;
        drop(wait_token);
        let lookup = lookup.unwrap_or(DiskLookup::Missing);
        let counters = &shared.counters;
        let counter = match &lookup {
            DiskLookup::Missing => &counters.misses,
            DiskLookup::Stale(_) => &counters.stale,
            DiskLookup::Found(meta, _, _) => {
                counters.read_bytes.fetch_add(meta.len, Ordering::Relaxed);
                &counters.hits
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
        lookup
    }

    /// Reads a part of an object that was found. Returns `None` if that fails.
    pub(super) async fn read_file(&self, key: &Key, file: &CacheFile, from: u64, to: u64) -> Option<Bytes> {
        let name = EntryName::new(self.identity.hash, key);
        let identity = Arc::clone(&self.identity);
        let wait_token = Arc::new(());
        let is_wanted = Arc::downgrade(&wait_token);
        let (key, file) = (key.clone(), file.clone());
        let read = move |shared: &DiskCacheShared| {
            let len = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
            let bytes = read_bytes(&file.file, from, len, &is_wanted)?;
            let is_whole = from == 0 && to == file.len;
            if is_whole && xxh3_64(&bytes) != file.checksum {
                shared.discard_damaged(&identity, &key, name)?;
                return Ok(None);
            }
            Ok(Some(Bytes::from(bytes)))
        };
        let bytes = self.cache.0.run(DiskAction::Read, read).await.flatten();
        drop(wait_token);
        bytes
    }

    /// Returns length and version of an object that can be read without a check, without waiting and without a request
    /// to the store.
    pub(super) fn held(&self, key: &Key, max_age: Duration) -> Option<(u64, u64)> {
        let (entry, _) = self.believed_entry(key, max_age)?;
        Some((entry.len.into(), entry.version()?))
    }

    /// Returns the entry of a checked file that may still be believed, and its age.
    fn believed_entry(&self, key: &Key, max_age: Duration) -> Option<(DiskEntry, Duration)> {
        let shared = &self.cache.0;
        if shared.phase() == CachePhase::Off {
            return None;
        }
        let entry = shared.index.get(EntryName::new(self.identity.hash, key), shared.clock.now())?;
        let age = shared.believed_age(entry.validated, max_age)?;
        (entry.stamp != 0).then_some((entry, age))
    }

    /// Opens the file of an object, if that and reading its trailer does not block and the file was checked.
    fn try_open(&self, key: &Key, max_age: Duration) -> Option<OpenedEntry> {
        let shared = &self.cache.0;
        let (entry, age) = self.believed_entry(key, max_age)?;
        let directory = shared.directory.try_read().ok()?;
        let file = directory.as_ref()?.open_cached_entry(self.identity.hash, entry.name)?;
        let metadata = file.metadata().ok().filter(|metadata| file_stamp(metadata) == entry.stamp)?;
        let trailer_len = usize::try_from(metadata.len().checked_sub(entry.len.into())?).ok()?;
        if trailer_len > MAX_TRAILER_BYTES {
            return None;
        }
        let mut trailer = vec![0; trailer_len];
        read_nonblocking(&file, entry.len.into(), &mut trailer)?;
        let trailer = parse_trailer(&trailer, &self.identity.text, key).ok()?;
        let is_same = Some(trailer.meta.version) == entry.version();
        is_same.then_some(OpenedEntry { file, file_bytes: metadata.len(), trailer, age })
    }

    /// Opens an object of at most `max_bytes` that the kernel can send from memory.
    pub(super) fn open_for_sendfile(&self, key: &Key, max_bytes: u64, max_age: Duration) -> Option<SendfileSource> {
        let OpenedEntry { file, file_bytes, trailer, age: _ } = self.try_open(key, max_age)?;
        let shared = &self.cache.0;
        let len = trailer.meta.len;
        let source = SendfileSource::of_cache_file(file, file_bytes, trailer.meta, max_bytes, &shared.disk_pool)?;
        shared.count_nonblocking_hit(len);
        Some(source)
    }

    /// Reads an object of at most `max_bytes` into `buffer`, if that does not block. Returns its metadata and age.
    pub(super) fn try_read(
        &self,
        key: &Key,
        max_bytes: u64,
        max_age: Duration,
        buffer: &mut Vec<u8>,
    ) -> Option<(ObjectMeta, Duration)> {
        let OpenedEntry { file, trailer, age, .. } = self.try_open(key, max_age)?;
        let len = usize::try_from(trailer.meta.len).ok().filter(|_| trailer.meta.len <= max_bytes)?;
        buffer.resize(len, 0);
        read_nonblocking(&file, 0, buffer)?;
        // A thread that may block finds out what is wrong.
        (xxh3_64(buffer) == trailer.checksum).then(|| self.cache.0.count_nonblocking_hit(trailer.meta.len))?;
        Some((trailer.meta, age))
    }
}

impl DiskCacheShared {
    fn count_nonblocking_hit(&self, bytes: u64) {
        self.counters.hits.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Looks up an object. Blocks on the disk.
    fn look_up(&self, request: &EntryRequest) -> io::Result<DiskLookup> {
        #[cfg(test)]
        std::thread::sleep(*super::write_queue::lock(&self.read_delay));
        let directory = self.read_directory();
        let (Some(directory), Some(number)) = (&*directory, self.container_number(request.identity.hash)) else {
            return Ok(DiskLookup::Missing);
        };
        match self.look_up_in(directory, number, request) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => self.discard_damaged_in(directory, request),
            // A bad sector would fail again at every look-up.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) => {
                self.discard_damaged_in(directory, request)?;
                Err(error)
            }
            result => result,
        }
    }

    fn look_up_in(&self, directory: &CacheDirectory, number: u16, request: &EntryRequest) -> io::Result<DiskLookup> {
        let name = request.name;
        let known = self.index.get(name, self.clock.now());
        let file = match directory.open_entry(request.identity.hash, name) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // The file was deleted by hand, or by an eviction just now.
                if let Some(entry) = known.and_then(|_| self.index.remove(name)) {
                    self.subtract_used(entry.bytes());
                }
                return Ok(DiskLookup::Missing);
            }
            result => result?,
        };
        let metadata = file.metadata()?;
        let trailer = match read_trailer(&file, metadata.len(), request)? {
            Ok(trailer) => trailer,
            Err(EntryFault::OtherObject) => return Ok(DiskLookup::Missing),
            Err(EntryFault::Damaged) => return self.discard_damaged_in(directory, request),
        };
        let EntryTrailer { meta, checksum } = trailer;
        let validated = match known {
            // The file is being replaced.
            Some(entry) if entry.version().is_some_and(|version| version != meta.version) => {
                return Ok(DiskLookup::Missing);
            }
            Some(entry) => entry.validated,
            None => u32::try_from(metadata.mtime()).unwrap_or_default(),
        };
        let unchecked = DiskEntry::unchecked(name, number, metadata.blocks(), validated, self.clock.now());
        let Some(age) = self.believed_age(validated, request.max_age) else {
            if known.is_none() {
                self.add_unscanned(unchecked);
            }
            return Ok(DiskLookup::Stale(meta));
        };
        let stamp = file_stamp(&metadata);
        let data = if meta.len <= request.inline.bytes() {
            let len = usize::try_from(meta.len).unwrap_or(usize::MAX);
            let bytes = read_bytes(&file, 0, len, &request.is_wanted)?;
            if xxh3_64(&bytes) != checksum {
                return self.discard_damaged_in(directory, request);
            }
            DiskData::InMemory(bytes.into())
        } else {
            if known.is_none_or(|entry| entry.stamp != stamp)
                && checksum_of(&file, meta.len, &request.is_wanted)? != checksum
            {
                return self.discard_damaged_in(directory, request);
            }
            DiskData::Open(CacheFile { file: Arc::new(file), checksum, len: meta.len })
        };
        let checked = unchecked.checked(meta.version, meta.len, stamp);
        match known {
            Some(_) => self.record_checked(checked),
            None => self.add_unscanned(checked),
        }
        Ok(DiskLookup::Found(meta, data, age))
    }

    /// Records that a file was found to be right.
    fn record_checked(&self, checked: DiskEntry) {
        self.index.update(checked.name, |entry| {
            // Another version may have replaced it meanwhile.
            if entry.version().is_none_or(|version| Some(version) == checked.version()) {
                let (validated, blocks) = (entry.validated.max(checked.validated), entry.blocks);
                *entry = checked;
                entry.validated = validated;
                // The number that was counted when the object was added is subtracted when it is removed.
                entry.blocks = blocks;
            }
        });
    }

    /// Adds an entry for a file that the scan has found, or has not reached yet.
    pub(super) fn add_unscanned(&self, entry: DiskEntry) {
        let is_allowed =
            || !self.lane(entry.name).is_removing(entry.name) && self.read_containers().is_current(entry.container);
        if self.index.count() < self.limits().max_objects() && self.index.insert_if_absent(entry, is_allowed) {
            self.add_used(entry.bytes());
        }
    }

    fn discard_damaged_in(&self, directory: &CacheDirectory, request: &EntryRequest) -> io::Result<DiskLookup> {
        static THROTTLE: LogThrottle = LogThrottle::new();
        self.counters.damaged.fetch_add(1, Ordering::Relaxed);
        if let Some(suppressed) = THROTTLE.allow() {
            tracing::warn!(
                path = %self.path.display(), key = ?request.key, suppressed,
                "a file of the disk cache was damaged and has been deleted; check the disk if this happens again"
            );
        }
        let entry = self.index.remove(request.name);
        directory.remove_entry(request.identity.hash, request.name)?;
        self.subtract_used(entry.map_or(0, |entry| entry.bytes()));
        Ok(DiskLookup::Missing)
    }

    fn discard_damaged(&self, identity: &Arc<ContainerIdentity>, key: &Key, name: EntryName) -> io::Result<()> {
        let request = EntryRequest {
            identity: Arc::clone(identity),
            key: key.clone(),
            name,
            inline: InlineLimit::new(0),
            max_age: Duration::ZERO,
            is_wanted: Weak::new(),
        };
        if let Some(directory) = &*self.read_directory() {
            self.discard_damaged_in(directory, &request)?;
        }
        Ok(())
    }
}

/// Reads the trailer of a file of `file_bytes`.
fn read_trailer(file: &File, file_bytes: u64, request: &EntryRequest) -> io::Result<Result<EntryTrailer, EntryFault>> {
    if !(TAIL_BYTES as u64..=MAX_OBJECT_BYTES + MAX_TRAILER_BYTES as u64).contains(&file_bytes) {
        return Ok(Err(EntryFault::Damaged));
    }
    let mut end = read_end(file, file_bytes, FIRST_READ_BYTES)?;
    let trailer_len = match trailer_bytes(&end, file_bytes) {
        Ok(len) => len,
        Err(fault) => return Ok(Err(fault)),
    };
    if trailer_len > end.len() {
        end = read_end(file, file_bytes, trailer_len as u64)?;
    }
    let trailer = end.get(end.len().saturating_sub(trailer_len)..).unwrap_or_default();
    Ok(parse_trailer(trailer, &request.identity.text, &request.key))
}

/// Reads at most the last `max_bytes` of a file of `file_bytes`.
fn read_end(file: &File, file_bytes: u64, max_bytes: u64) -> io::Result<Vec<u8>> {
    let count = file_bytes.min(max_bytes);
    let mut end = vec![0; usize::try_from(count).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut end, file_bytes.saturating_sub(count))?;
    Ok(end)
}

/// Reads bytes of a file.
///
/// # Errors
/// Returns `Interrupted` if the bytes are no longer wanted, and the errors of the system.
fn read_bytes(file: &File, from: u64, len: usize, is_wanted: &Weak<()>) -> io::Result<Vec<u8>> {
    check_wanted(is_wanted)?;
    let mut bytes = vec![0; len];
    let mut at = from;
    for chunk in bytes.chunks_mut(STEP_BYTES) {
        check_wanted(is_wanted)?;
        file.read_exact_at(chunk, at)?;
        at = at.saturating_add(chunk.len() as u64);
    }
    Ok(bytes)
}

/// Returns the checksum of the first `len` bytes of a file.
fn checksum_of(file: &File, len: u64, is_wanted: &Weak<()>) -> io::Result<u64> {
    let mut hash = Xxh3::new();
    let mut chunk = vec![0; STEP_BYTES];
    let mut at = 0;
    while at < len {
        check_wanted(is_wanted)?;
        let step = usize::try_from(len.saturating_sub(at)).unwrap_or(STEP_BYTES).min(STEP_BYTES);
        let chunk = chunk.get_mut(..step).unwrap_or_default();
        file.read_exact_at(chunk, at)?;
        hash.update(chunk);
        at = at.saturating_add(step as u64);
    }
    Ok(hash.digest())
}

fn check_wanted(is_wanted: &Weak<()>) -> io::Result<()> {
    if is_wanted.strong_count() == 0 { Err(ErrorKind::Interrupted.into()) } else { Ok(()) }
}

/// Fills `buffer` from offset `at` on. Returns `None` if that would block or the file is shorter.
fn read_nonblocking(file: &File, at: u64, buffer: &mut [u8]) -> Option<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        let rest = buffer.get_mut(filled..)?;
        match preadv2(file, &mut [IoSliceMut::new(rest)], at.checked_add(filled as u64)?, ReadWriteFlags::NOWAIT) {
            Ok(read) if read > 0 => filled += read,
            _ => return None,
        }
    }
    Some(())
}
