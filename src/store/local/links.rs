//! Interprets the system's answer that a key does not exist: nothing is there, unless a symbolic link hides an object.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use super::errors::LinkError;
use super::resolve::{ResolveError, resolve_path};
use super::tree::LocalTree;
use crate::log_throttle::LogThrottle;
use crate::store::key::Key;

impl LocalTree {
    /// Converts a system error for `key` to `None` if it means that nothing exists there. The root must be present, and
    /// no link may hide an object. All other errors, including missing permission, may be transient. They do not prove
    /// that nothing exists.
    ///
    /// # Errors
    /// All other errors, [`LinkError`] and [`RootMissing`](super::root::RootMissing).
    pub(super) fn none_if_missing<T>(&self, root: &OwnedFd, error: io::Error, key: &Key) -> io::Result<Option<T>> {
        static NOT_FOLLOWED_LOG: LogThrottle = LogThrottle::new();
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR) => {
                let is_hidden = self.is_behind_dangling_link(root, key)?;
                let none = self.root.none_if_present()?;
                if is_hidden { Err(io::Error::other(LinkError::Dangling(key.clone()))) } else { Ok(none) }
            }
            // A loop of links.
            Some(Errno::LOOP) => {
                self.root.none_if_present::<T>()?;
                Err(io::Error::other(LinkError::Dangling(key.clone())))
            }
            Some(
                Errno::ISDIR | Errno::NAMETOOLONG | Errno::INVAL
                // A socket, or a device without a driver.
                | Errno::NXIO | Errno::NODEV,
            ) => self.root.none_if_present(),
            _ if matches!(LinkError::from_io_error(&error), Some(LinkError::NotFollowed(_))) => {
                if let Some(unsaid) = NOT_FOLLOWED_LOG.allow() {
                    tracing::warn!(%key, unsaid, "symbolic link not followed; the setting is `symlinks`");
                }
                self.root.none_if_present::<T>()?;
                Err(error)
            }
            _ => Err(error),
        }
    }

    /// Like [`Self::none_if_missing`], but also returns `None` behind a link that is not followed. Only for answers
    /// that do not turn missing blocks into zeros.
    pub(super) fn none_if_missing_or_unfollowed<T>(
        &self,
        root: &OwnedFd,
        error: io::Error,
        key: &Key,
    ) -> io::Result<Option<T>> {
        match self.none_if_missing(root, error, key) {
            Err(error) if matches!(LinkError::from_io_error(&error), Some(LinkError::NotFollowed(_))) => Ok(None),
            other => other,
        }
    }

    /// Returns true if `key`, which was not found, is a dangling link or lies behind one. Costs one system call if
    /// there is no link on the path.
    fn is_behind_dangling_link(&self, root: &OwnedFd, key: &Key) -> io::Result<bool> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let mut prefix = key.clone();
        while let (Some(parent), Some(name)) = (prefix.parent(), prefix.name()) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let opened = if self.has_openat2 {
                openat2(root, prefix.as_str(), flags, Mode::empty(), resolve)
            } else {
                resolve_path(root, &prefix, false, flags).map_err(|error| match error {
                    ResolveError::LinkNotFollowed => Errno::LOOP,
                    ResolveError::Errno(errno) => errno,
                })
            };
            match opened {
                // The existing part of the path contains no link. Or the missing part has appeared by now.
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
                // The path contains a link, or the kernel or a sandbox does not tell.
                Err(Errno::LOOP | Errno::AGAIN | Errno::NOSYS | Errno::PERM) => {}
                Err(other) => return Err(other.into()),
            }
            match self.open_path(root, &parent, OFlags::empty()) {
                Ok(parent) => {
                    return match openat(&parent, name, flags | OFlags::NOFOLLOW, Mode::empty()) {
                        Ok(entry) => Ok(File::from(entry).metadata()?.is_symlink()),
                        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
                        Err(other) => Err(other.into()),
                    };
                }
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::NOENT | Errno::NOTDIR) => {}
                    Some(Errno::LOOP) => return Ok(true),
                    Some(_) | None => return Err(error),
                },
            }
            prefix = parent;
        }
        Ok(false)
    }
}
