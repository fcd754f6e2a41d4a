//! Reads local files without blocking: only what the kernel already holds in memory.
//!
//! CPU jobs may use this. It saves two thread switches and a buffer for each block: the bytes go into memory that the
//! caller reuses from block to block.

use std::fs::{File, Metadata};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::reopen::reopen;
use super::tree::{LocalTree, SymlinkPolicy};
use crate::store::file_meta::meta_of;
use crate::store::key::Key;
use crate::store::object::ObjectMeta;
use crate::store::page_cache::NonblockingReader;

/// Reads files below a root that is opened once, for the time that a job keeps its core. A missing file is missing in
/// that directory, even if the root's name leads elsewhere by then.
#[derive(Debug)]
pub(super) struct PageCacheReader {
    tree: LocalTree,
    root_fd: OwnedFd,
}

impl NonblockingReader for PageCacheReader {
    fn get(&mut self, key: &Key, max_bytes: u64, buffer: &mut Vec<u8>) -> Option<Option<ObjectMeta>> {
        let (file, metadata) = match self.open(key) {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NOTDIR) => return Some(None),
            Err(_) => return None,
        };
        let meta = meta_of(&metadata, self.tree.tag);
        if meta.len > max_bytes {
            return None;
        }
        let len = usize::try_from(meta.len).ok()?;
        // The bytes of the previous block are overwritten. Only additional bytes must be filled first.
        buffer.resize(len, 0);
        let mut read_bytes = 0;
        while read_bytes < len {
            let rest = buffer.get_mut(read_bytes..)?;
            match preadv2(&file, &mut [IoSliceMut::new(rest)], read_bytes as u64, ReadWriteFlags::NOWAIT) {
                Ok(read) if read > 0 => read_bytes += read,
                _ => return None,
            }
        }
        (meta_of(&file.metadata().ok()?, self.tree.tag) == meta).then_some(Some(meta))
    }
}

impl PageCacheReader {
    /// Creates a reader. Returns `None` if the root is missing or the kernel does not have it in memory.
    pub(super) fn new(tree: &LocalTree) -> Option<Self> {
        Some(Self { root_fd: tree.root.open_nonblocking().ok()?, tree: tree.clone() })
    }

    /// Opens the file at `key`. Returns [`Errno::ISDIR`] if it is not a regular file, which is then not opened. Does
    /// not cross into other file systems mounted below the root, since opening a file there may involve a server.
    pub(super) fn open(&self, key: &Key) -> Result<(File, Metadata), Errno> {
        if key.is_root() {
            return Err(Errno::ISDIR);
        }
        let path_file = File::from(self.open_path(key)?);
        let metadata = path_file.metadata().ok().filter(Metadata::is_file).ok_or(Errno::ISDIR)?;
        // Without /proc, a thread that may block opens the file.
        Ok((reopen(&path_file).ok_or(Errno::AGAIN)??.into(), metadata))
    }

    /// Opens what `key` names as a path (`O_PATH`).
    fn open_path(&self, key: &Key) -> Result<OwnedFd, Errno> {
        let open = |resolve| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let resolve = ResolveFlags::CACHED | ResolveFlags::NO_XDEV | resolve;
            openat2(&self.root_fd, key.as_str(), flags, Mode::empty(), resolve)
        };
        // Without a link on the path, nothing can be hidden. One call is mostly enough to find that a file is missing.
        match open(ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
            Err(Errno::NOENT | Errno::NOTDIR) if !self.tree.root.is_still_mounted(&self.root_fd) => Err(Errno::AGAIN),
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

/// Returns true if nothing exists at `path` and no symbolic link on the way could hide it, as far as the kernel has
/// that in memory. The path is absolute or relative to the directory `directory`.
pub(super) fn is_certainly_missing(directory: impl AsFd, path: &[u8]) -> bool {
    let resolve = ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS;
    let result = openat2(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    matches!(result, Err(Errno::NOENT | Errno::NOTDIR))
}
