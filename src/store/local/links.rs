//! What is said of a key that the system does not find: that there is nothing, unless a symbolic link hides what there is.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use super::LocalStore;
use super::walk::{Stop, walk};
use crate::seldom::Seldom;
use crate::store::{Key, StoreError};

/// A symbolic link that hides what is at a key.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Hidden {
    /// The policy does not follow it.
    #[error("a symbolic link on the way to {0:?} is not followed")]
    NotFollowed(Key),
    /// Its target is not there: not fetched yet, or on a volume that is not mounted.
    #[error("{0:?} is a link that leads nowhere, or behind one")]
    LeadsNowhere(Key),
}

impl Hidden {
    /// The reason why something is hidden, if `error` says that it is.
    pub(super) fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<&Hidden> for StoreError {
    fn from(hidden: &Hidden) -> Self {
        match hidden {
            Hidden::NotFollowed(key) => Self::NotFollowed(key.clone()),
            Hidden::LeadsNowhere(key) => Self::LeadsNowhere(key.clone()),
        }
    }
}

/// What is said of a key behind a link that the policy does not follow.
pub(super) fn refused(key: &Key) -> io::Error {
    io::Error::other(Hidden::NotFollowed(key.clone()))
}

impl LocalStore {
    /// What the operating system says of a key that leads nowhere: that is an answer only if the root is there, and no
    /// link hides what there is. Whatever else it says, permission included, may pass: it does not tell that there is
    /// nothing.
    ///
    /// # Errors
    /// Those, [`Hidden`] and [`super::Gone`].
    pub(super) fn missing<T>(&self, root: &OwnedFd, error: io::Error, key: &Key) -> io::Result<Option<T>> {
        static REFUSED: Seldom = Seldom::new();
        match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR) => {
                let is_hidden = self.leads_nowhere(root, key)?;
                let nothing = self.root.has_nothing()?;
                if is_hidden { Err(io::Error::other(Hidden::LeadsNowhere(key.clone()))) } else { Ok(nothing) }
            }
            // Links that lead to each other.
            Some(Errno::LOOP) => {
                self.root.has_nothing::<T>()?;
                Err(io::Error::other(Hidden::LeadsNowhere(key.clone())))
            }
            Some(
                Errno::ISDIR | Errno::NAMETOOLONG | Errno::INVAL
                // A socket, or a device without a driver.
                | Errno::NXIO | Errno::NODEV,
            ) => self.root.has_nothing(),
            _ if matches!(Hidden::of(&error), Some(Hidden::NotFollowed(_))) => {
                if let Some(unsaid) = REFUSED.may_say() {
                    tracing::warn!(%key, unsaid, "symbolic link not followed; the setting is `symlinks`");
                }
                self.root.has_nothing::<T>()?;
                Err(error)
            }
            _ => Err(error),
        }
    }

    /// [`Self::missing`] of something that may as well be behind a link that is not followed: no zeros come of it.
    pub(super) fn absent<T>(&self, root: &OwnedFd, error: io::Error, key: &Key) -> io::Result<Option<T>> {
        match self.missing(root, error, key) {
            Err(error) if matches!(Hidden::of(&error), Some(Hidden::NotFollowed(_))) => Ok(None),
            known => known,
        }
    }

    /// Whether `key`, which could not be found, is a link whose target is not there, or lies behind one. One system call
    /// where no link is on the way.
    fn leads_nowhere(&self, root: &OwnedFd, key: &Key) -> io::Result<bool> {
        let path = OFlags::PATH | OFlags::CLOEXEC;
        let mut at = key.clone();
        while let (Some(parent), Some(name)) = (at.parent(), at.name()) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            let direct = if self.has_openat2 {
                openat2(root, at.as_str(), path, Mode::empty(), resolve)
            } else {
                walk(root, &at, false, path).map_err(|stop| match stop {
                    Stop::NotFollowed => Errno::LOOP,
                    Stop::Errno(errno) => errno,
                })
            };
            match direct {
                // The way that is there has no link. Or what was missing has come by now.
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
                // There is a link on it; or the kernel or a sandbox does not say.
                Err(Errno::LOOP | Errno::AGAIN | Errno::NOSYS | Errno::PERM) => {}
                Err(other) => return Err(other.into()),
            }
            match self.open_below(root, &parent, OFlags::empty()) {
                Ok(parent) => {
                    return match openat(&parent, name, path | OFlags::NOFOLLOW, Mode::empty()) {
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
            at = parent;
        }
        Ok(false)
    }
}
