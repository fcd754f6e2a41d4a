//! The files below a root: looks up names within the bounds of the symlink policy. Blocks on the disk.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use super::errors::{ConcurrentWrite, not_followed_error};
use super::reopen::reopen;
use super::resolve::{ResolveError, resolve_path};
use super::root::StoreRoot;
pub use crate::config::SymlinkPolicy;
use crate::store::file_meta::EntityTagSource;
use crate::store::key::Key;

/// The files below a root. Every call looks up the root again, so a remounted or replaced root is found.
#[derive(Debug, Clone)]
pub(super) struct LocalTree {
    pub(super) root: StoreRoot,
    pub(super) symlinks: SymlinkPolicy,
    /// True if the kernel resolves names within bounds. Otherwise [`resolve_path`] does.
    pub(super) has_openat2: bool,
    pub(super) tag: EntityTagSource,
}

impl LocalTree {
    /// Opens what `key` names as a path (`O_PATH`), within the bounds of the symlink policy. The descriptor only allows
    /// inspection.
    pub(super) fn open_path(&self, root: &OwnedFd, key: &Key, flags: OFlags) -> io::Result<File> {
        self.open_with_flags(root, key, OFlags::PATH | flags).map(File::from)
    }

    pub(super) fn open_with_flags(&self, root: &OwnedFd, key: &Key, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let path = if key.is_root() { "." } else { key.as_str() };
        let resolve = match self.symlinks {
            SymlinkPolicy::Follow => return Ok(openat(root, path, flags, Mode::empty())?),
            SymlinkPolicy::Inside => ResolveFlags::BENEATH,
            SymlinkPolicy::Deny => ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS,
        };
        let opened =
            if self.has_openat2 { openat2(root, path, flags, Mode::empty(), resolve) } else { Err(Errno::NOSYS) };
        match opened {
            Ok(file) => Ok(file),
            Err(Errno::LOOP) if self.symlinks == SymlinkPolicy::Deny => Err(not_followed_error(key)),
            // The kernel or a sandbox lacks openat2. Or BENEATH failed: it refuses all absolute links, even those that
            // lead back inside, and gives up on a race.
            Err(Errno::NOSYS | Errno::PERM | Errno::XDEV | Errno::AGAIN) => {
                resolve_path(root, key, self.symlinks == SymlinkPolicy::Inside, flags).map_err(|error| match error {
                    ResolveError::LinkNotFollowed => not_followed_error(key),
                    ResolveError::Errno(errno) => errno.into(),
                })
            }
            Err(other) => Err(other.into()),
        }
    }

    /// Opens the file at `key` for reading. Returns `None` if it is not a regular file, which is then not opened.
    pub(super) fn open_file(&self, root: &OwnedFd, key: &Key) -> io::Result<Option<(File, Metadata)>> {
        let path_file = self.open_path(root, key, OFlags::empty())?;
        let metadata = path_file.metadata()?;
        if !metadata.is_file() {
            return Ok(None);
        }
        if let Some(opened) = reopen(&path_file) {
            return Ok(Some((opened?.into(), metadata)));
        }
        // The name may lead to another file by now.
        let opened = File::from(self.open_with_flags(root, key, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let reopened_metadata = opened.metadata()?;
        if (reopened_metadata.dev(), reopened_metadata.ino()) == (metadata.dev(), metadata.ino()) {
            Ok(Some((opened, metadata)))
        } else {
            Err(io::Error::other(ConcurrentWrite))
        }
    }
}

#[cfg(test)]
impl LocalTree {
    /// Returns the files below `root`, with the default settings.
    pub(super) fn for_tests(root: &std::path::Path) -> Self {
        let tag = EntityTagSource::default();
        Self { root: StoreRoot::new(root), symlinks: SymlinkPolicy::Inside, has_openat2: true, tag }
    }
}
