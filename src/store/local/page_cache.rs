//! Reads of local files that do not block, because the kernel already holds the files in memory.
//!
//! CPU jobs read blocks this way. Compared with the disk pool, a read saves two thread switches and a buffer: the bytes
//! go into memory that the caller reuses from block to block.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, statfs, statx};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use smallvec::SmallVec;

use super::resolve::reopen;
use super::tree::LocalTree;
use crate::config::SymlinkPolicy;
use crate::store::file_meta::{file_type, raw_meta_of, stat_file};
use crate::store::key::Key;
use crate::store::object::RawObjectMeta;
use crate::store::page_cache::{CachedGet, NonblockingReader};

/// A reader of files below a root directory. The root is opened once, for the time that a job keeps its core, and stays
/// the same directory even if another one takes its name.
#[derive(Debug)]
pub(super) struct PageCacheReader {
    tree: LocalTree,
    root_fd: OwnedFd,
}

impl NonblockingReader for PageCacheReader {
    fn get(&mut self, key: &Key, max_bytes: u64, buffer: &mut Vec<u8>) -> CachedGet {
        match self.open(key) {
            Ok((file, meta)) if meta.len <= max_bytes && self.read_whole(&file, &meta, buffer).is_some() => {
                CachedGet::Object(meta.into(), Duration::ZERO)
            }
            Err(Errno::NOENT | Errno::NOTDIR) => CachedGet::Missing,
            Ok(_) | Err(_) => CachedGet::Unknown,
        }
    }
}

impl PageCacheReader {
    /// Creates a reader. Returns `None` if the root is missing or the kernel does not have it in memory.
    pub(super) fn new(tree: &LocalTree) -> Option<Self> {
        Some(Self { root_fd: tree.open_root_nonblocking().ok()?, tree: tree.clone() })
    }

    /// Reads a whole file, whose metadata was `meta` when it was opened, into `buffer`. Returns `None` if that would
    /// block or the file has changed.
    fn read_whole(&self, file: &File, meta: &RawObjectMeta, buffer: &mut Vec<u8>) -> Option<()> {
        let len = usize::try_from(meta.len).ok()?;
        // The bytes of the previous block are overwritten. Only additional bytes must be filled first.
        buffer.resize(len, 0);
        let mut read_bytes = 0;
        while read_bytes < len {
            let rest = buffer.get_mut(read_bytes..)?;
            match preadv2(file, &mut [IoSliceMut::new(rest)], read_bytes as u64, ReadWriteFlags::NOWAIT) {
                Ok(read) if read > 0 => read_bytes += read,
                _ => return None,
            }
        }
        (raw_meta_of(&stat_file(file).ok()?, self.tree.tag) == *meta).then_some(())
    }

    /// Opens the file at `key`. Returns [`Errno::ISDIR`] if it is not a regular file, which is then not opened. Does
    /// not cross into other file systems mounted below the root, since opening a file there may involve a server.
    pub(super) fn open(&self, key: &Key) -> Result<(File, RawObjectMeta), Errno> {
        if key.is_root() {
            return Err(Errno::ISDIR);
        }
        let path_file = self.open_path(key)?;
        let stat = stat_file(&path_file).ok().filter(|stat| file_type(stat).is_file()).ok_or(Errno::ISDIR)?;
        // Without /proc, a thread that may block opens the file.
        Ok((reopen(&path_file).ok_or(Errno::AGAIN)??.into(), raw_meta_of(&stat, self.tree.tag)))
    }

    /// Opens a descriptor that only names the file or directory at `key` (`O_PATH`).
    fn open_path(&self, key: &Key) -> Result<OwnedFd, Errno> {
        let open = |resolve| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let resolve = ResolveFlags::CACHED | ResolveFlags::NO_XDEV | resolve;
            openat2(&self.root_fd, key.as_str(), flags, Mode::empty(), resolve)
        };
        // If no link is on the path, no link hides the file, so one call is mostly enough to find that it is missing.
        match open(ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
            Err(Errno::NOENT | Errno::NOTDIR) if !self.tree.is_still_mounted(&self.root_fd) => Err(Errno::AGAIN),
            Err(Errno::LOOP) if self.tree.symlinks != SymlinkPolicy::Deny => {
                let is_inside = self.tree.symlinks == SymlinkPolicy::Inside;
                match open(if is_inside { ResolveFlags::BENEATH } else { ResolveFlags::empty() }) {
                    // A dangling link may hide something.
                    Err(Errno::NOENT | Errno::NOTDIR) => Err(Errno::AGAIN),
                    result => result,
                }
            }
            result => result,
        }
    }
}

/// Length up to which a path is built without an allocation.
const PATH_BYTES: usize = 256;

/// Returns the path of `key` below `root` for a system call.
pub(super) fn path_below(root: &Path, key: &Key) -> SmallVec<[u8; PATH_BYTES]> {
    let mut path = SmallVec::from_slice(root.as_os_str().as_encoded_bytes());
    path.push(b'/');
    path.extend_from_slice(key.as_str().as_bytes());
    path
}

/// `statfs` magic numbers of local file systems. No other machine can change their files, so the metadata that the
/// kernel caches are always current.
const LOCAL_FILESYSTEM_MAGICS: &[u64] = &[
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // zfs
    0x794c_7630, // overlayfs
];

/// Returns the device of the tree if its files may be read without waiting. That needs `openat2` and a local file
/// system: on others, opening a file may involve a server, and the kernel's copy may be older than the file.
pub(super) fn cached_device(tree: &LocalTree) -> Option<(u32, u32)> {
    let kind = u64::try_from(statfs(&*tree.root).ok()?.f_type).ok()?;
    let stat = statx(CWD, &*tree.root, AtFlags::empty(), StatxFlags::BASIC_STATS).ok()?;
    (tree.has_openat2 && LOCAL_FILESYSTEM_MAGICS.contains(&kind)).then(|| device_of(&stat))
}

pub(super) fn device_of(stat: &Statx) -> (u32, u32) {
    (stat.stx_dev_major, stat.stx_dev_minor)
}

/// Returns true if the kernel knows from memory that nothing exists at `path` and that no symbolic link on the path
/// could hide something. The path is absolute, or relative to `directory`.
pub(super) fn is_certainly_missing(directory: impl AsFd, path: &[u8]) -> bool {
    let resolve = ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS;
    let result = openat2(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    matches!(result, Err(Errno::NOENT | Errno::NOTDIR))
}
