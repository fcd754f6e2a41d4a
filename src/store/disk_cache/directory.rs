//! The directory of the disk cache.
//!
//! Everything is below `n5-objects-1/` in the configured directory, so that other files there are never touched:
//!
//! - `lock`, which a process locks as long as it uses the cache
//! - `tmp/`, files that are being written, and directories that are being deleted
//! - `CONTAINER/X/REST`, the objects: a hash of the container's identity, and the name of the object, in hexadecimal.
//!   A container has only 16 directories, because each takes a block; file systems search large ones by a tree or hash.

use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Timespec, Timestamps, UTIME_NOW, fchmod,
    flock, fstat, fstatvfs, futimens, mkdirat, openat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::index::EntryName;

/// Directory of the cache. Its number is that of the layout.
const DIRECTORY: &str = "n5-objects-1";

/// Directory of files that are being written, and of directories that are being deleted.
const TEMPORARY: &str = "tmp";

/// Name of a file that tells backups to skip a cache (<https://bford.info/cachedir/>).
const CACHE_TAG: &str = "CACHEDIR.TAG";

/// Content of the file [`CACHE_TAG`].
const CACHE_TAG_TEXT: &[u8] =
    b"Signature: 8a477f597d28d172789f06886806bc55\n# Cache of n5-server. It may be deleted.\n";

const PRIVATE_DIRECTORY: Mode = Mode::RWXU;

fn private_file() -> Mode {
    Mode::RUSR | Mode::WUSR
}

/// A file in the directory, as the scan finds it.
#[derive(Debug)]
pub(super) struct FoundFile {
    pub(super) name: EntryName,
    pub(super) blocks: u64,
    /// Modification time, in seconds since the Unix epoch: the time at which the object was last validated.
    pub(super) validated: u32,
    /// Time of the last use, as far as the file system records it.
    pub(super) used: u32,
}

/// The open directory, which no other process uses.
#[derive(Debug)]
pub(super) struct CacheDirectory {
    root: OwnedFd,
    _lock: OwnedFd,
    device: u64,
    next_temporary: AtomicU64,
}

impl CacheDirectory {
    /// Opens the directory at `path`, and creates it if its parent exists.
    ///
    /// # Errors
    /// Returns an error, for the operator to read, if another process uses the directory, if it cannot be opened or
    /// written, or if it is not on the device that `expected_device` names: a disk has then been unmounted.
    pub(super) fn open(path: &Path, expected_device: Option<u64>) -> io::Result<Self> {
        create_directory(CWD, path)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let outer = openat(CWD, path, flags, Mode::empty())?;
        let device = fstat(&outer)?.st_dev;
        if expected_device.is_some_and(|expected| expected != device) {
            return Err(io::Error::other("another file system is mounted there than when the server started"));
        }
        create_directory(&outer, DIRECTORY)?;
        let root = openat(&outer, DIRECTORY, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let stat = fstat(&root)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other(format!("{DIRECTORY} in it belongs to another user")));
        }
        if Mode::from_raw_mode(stat.st_mode).intersects(Mode::RWXG | Mode::RWXO) {
            fchmod(&root, PRIVATE_DIRECTORY)?;
        }
        // A file that is open for writing would keep the file system from being made read-only.
        let flags = OFlags::CREATE | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = openat(&root, "lock", flags, private_file())?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(io::Error::other("another process uses it")),
            result => result?,
        }
        create_directory(&root, TEMPORARY)?;
        let tag_flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        if let Ok(tag) = openat(&root, CACHE_TAG, tag_flags, private_file()) {
            File::from(tag).write_all(CACHE_TAG_TEXT)?;
        }
        Ok(Self { root, _lock: lock, device, next_temporary: AtomicU64::new(0) })
    }

    /// Returns the number of the device.
    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// Returns the free space of the file system and its size, in bytes.
    pub(super) fn free_and_total_bytes(&self) -> io::Result<(u64, u64)> {
        let stat = fstatvfs(&self.root)?;
        Ok((stat.f_bavail.saturating_mul(stat.f_frsize), stat.f_blocks.saturating_mul(stat.f_frsize)))
    }

    /// Opens the file of an object.
    pub(super) fn open_entry(&self, container: u64, name: EntryName) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        Ok(openat(&self.root, entry_path(container, name), flags, Mode::empty())?.into())
    }

    /// Opens the file of an object if the kernel has its directories and inode in memory.
    pub(super) fn open_cached_entry(&self, container: u64, name: EntryName) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let resolve = ResolveFlags::CACHED | ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        openat2(&self.root, entry_path(container, name), flags, Mode::empty(), resolve).ok().map(File::from)
    }

    /// Writes the file of an object, with `validated` as its modification time. Replaces the file that it has.
    /// Returns the metadata of the new file.
    ///
    /// # Errors
    /// Returns the errors of the system. The file is then as before.
    pub(super) fn write_entry(
        &self,
        container: u64,
        name: EntryName,
        parts: [&[u8]; 2],
        validated: u32,
    ) -> io::Result<Metadata> {
        let temporary = format!("{TEMPORARY}/{:016x}.tmp", self.next_temporary.fetch_add(1, Ordering::Relaxed));
        let result = self.write_temporary(&temporary, parts, validated).and_then(|file| {
            self.publish(&temporary, container, name)?;
            // The name changed the file's change time.
            file.metadata()
        });
        if result.is_err() {
            // It may not exist. If it remains, the next start deletes it.
            let _ = unlinkat(&self.root, &*temporary, AtFlags::empty());
        }
        result
    }

    fn write_temporary(&self, temporary: &str, parts: [&[u8]; 2], validated: u32) -> io::Result<File> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = match openat(&self.root, temporary, flags, private_file()) {
            Err(Errno::NOENT) => {
                create_directory(&self.root, TEMPORARY)?;
                openat(&self.root, temporary, flags, private_file())
            }
            result => result,
        }
        .map(File::from)?;
        for part in parts {
            file.write_all(part)?;
        }
        set_validated(&file, validated)?;
        Ok(file)
    }

    fn publish(&self, temporary: &str, container: u64, name: EntryName) -> io::Result<()> {
        let path = entry_path(container, name);
        match renameat(&self.root, temporary, &self.root, &*path) {
            Err(Errno::NOENT) => {
                let (directory, _) = path.rsplit_once('/').unwrap_or_default();
                let (outer, _) = directory.rsplit_once('/').unwrap_or_default();
                create_directory(&self.root, outer)?;
                create_directory(&self.root, directory)?;
                Ok(renameat(&self.root, temporary, &self.root, &*path)?)
            }
            result => Ok(result?),
        }
    }

    /// Deletes the file of an object. Succeeds if there is none.
    pub(super) fn remove_entry(&self, container: u64, name: EntryName) -> io::Result<()> {
        ignore_missing(unlinkat(&self.root, entry_path(container, name), AtFlags::empty()))
    }

    /// Renames the directory of a container, so that none of its objects can be found, also after a restart. Returns
    /// the name under which [`Self::delete_set_aside`] deletes it.
    pub(super) fn set_aside(&self, container: u64) -> io::Result<String> {
        let name = format!("{:016x}.forgotten", self.next_temporary.fetch_add(1, Ordering::Relaxed));
        ignore_missing(renameat(
            &self.root,
            container_directory(container),
            &self.root,
            format!("{TEMPORARY}/{name}"),
        ))?;
        Ok(name)
    }

    /// Deletes the objects of a directory that was set aside, and the directory. Other files in it remain.
    pub(super) fn delete_set_aside(&self, name: &str) -> io::Result<()> {
        let path = format!("{TEMPORARY}/{name}");
        for (_, outer) in self.list(&path)? {
            let directory = format!("{path}/{outer}");
            for (_, file) in self.list(&directory)? {
                if parse_hex(&file, 31).is_some() {
                    ignore_missing(unlinkat(&self.root, format!("{directory}/{file}"), AtFlags::empty()))?;
                }
            }
            // Directories with other files in them are kept.
            let _ = unlinkat(&self.root, directory, AtFlags::REMOVEDIR);
        }
        let _ = unlinkat(&self.root, path, AtFlags::REMOVEDIR);
        Ok(())
    }

    /// Deletes what an earlier process was writing or deleting when it ended.
    pub(super) fn delete_leftovers(&self) -> io::Result<()> {
        for (_, name) in self.list(TEMPORARY)? {
            match name.split_once('.') {
                Some((number, "tmp")) if parse_hex(number, 16).is_some() => {
                    ignore_missing(unlinkat(&self.root, format!("{TEMPORARY}/{name}"), AtFlags::empty()))?;
                }
                Some((number, "forgotten")) if parse_hex(number, 16).is_some() => self.delete_set_aside(&name)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the hashes of the containers that have a directory.
    pub(super) fn containers(&self) -> io::Result<Vec<u64>> {
        let hash = |name: &str| parse_hex(name, 16).and_then(|hash| u64::try_from(hash).ok());
        Ok(self.list("")?.iter().filter_map(|(_, name)| hash(name)).collect())
    }

    /// Calls `found` with every file of a container, and stops if it returns false.
    pub(super) fn scan(&self, container: u64, mut found: impl FnMut(FoundFile) -> bool) -> io::Result<()> {
        for (_, outer) in self.list(&container_directory(container))? {
            let Some(first) = parse_hex(&outer, 1) else { continue };
            let directory = format!("{}/{outer}", container_directory(container));
            let mut files = self.list(&directory)?;
            // Inodes are read from the disk in their order.
            files.sort_unstable();
            let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let directory = match openat(&self.root, directory, flags, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                result => result?,
            };
            for (_, file) in files {
                let Some(rest) = parse_hex(&file, 31) else { continue };
                let stat = match statat(&directory, &*file, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => continue,
                    result => result?,
                };
                if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                    continue;
                }
                let validated = u32::try_from(stat.st_mtime).unwrap_or_default();
                let file = FoundFile {
                    name: EntryName::from_hash(first << 124 | rest),
                    blocks: u64::try_from(stat.st_blocks).unwrap_or_default(),
                    validated,
                    used: u32::try_from(stat.st_atime).unwrap_or_default().max(validated),
                };
                if !found(file) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the entries of a directory, with their inodes. Returns none if there is no such directory.
    fn list(&self, path: &str) -> io::Result<Vec<(u64, String)>> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let path = if path.is_empty() { "." } else { path };
        let directory = match openat(&self.root, path, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Vec::new()),
            result => result?,
        };
        let mut entries = Vec::new();
        for entry in Dir::new(directory)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().to_str()
                && name != "."
                && name != ".."
            {
                entries.push((entry.ino(), name.to_owned()));
            }
        }
        Ok(entries)
    }
}

/// Sets the modification time of a file, which is the time at which its object was last validated.
pub(super) fn set_validated(file: &File, validated: u32) -> io::Result<()> {
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let last_modification = Timespec { tv_sec: validated.into(), tv_nsec: 0 };
    Ok(futimens(file, &Timestamps { last_access, last_modification })?)
}

/// Returns a hash of the metadata that change when a file is written or replaced; never 0.
pub(super) fn file_stamp(metadata: &Metadata) -> u32 {
    let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
    let mut bytes = Vec::with_capacity(48);
    bytes.extend_from_slice(&metadata.ino().to_le_bytes());
    bytes.extend_from_slice(&metadata.len().to_le_bytes());
    for time in times {
        bytes.extend_from_slice(&time.to_le_bytes());
    }
    u32::try_from(xxh3_64(&bytes) >> 32).unwrap_or_default().max(1)
}

fn container_directory(container: u64) -> String {
    format!("{container:016x}")
}

fn entry_path(container: u64, name: EntryName) -> String {
    let hash = name.hash();
    format!("{container:016x}/{:x}/{:031x}", hash >> 124, hash & (u128::MAX >> 4))
}

/// Parses a number of exactly `digits` lowercase hexadecimal digits.
fn parse_hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: &u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte);
    let is_valid = text.len() == digits && text.as_bytes().iter().all(is_digit);
    is_valid.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Creates a private directory, unless it exists.
fn create_directory(parent: impl AsFd, path: impl rustix::path::Arg) -> io::Result<()> {
    match mkdirat(parent, path, PRIVATE_DIRECTORY) {
        Err(Errno::EXIST) => Ok(()),
        result => Ok(result?),
    }
}

fn ignore_missing(result: Result<(), Errno>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}
