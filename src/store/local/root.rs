//! The root directory of a local store, and checks that it is present. While the root is missing, the objects below it
//! are unreachable and must not be reported as missing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags, openat, openat2, statx,
};
use rustix::io::Errno;

/// A root directory, without symbolic links in its own path. Every call looks it up again, so a remounted or replaced
/// root is found.
#[derive(Debug, Clone)]
pub(super) struct StoreRoot {
    path: Arc<Path>,
    /// True if the root was a mount point at startup. Then an empty directory remains after it is unmounted.
    is_mount: bool,
}

/// The root is missing. Objects below it must not be reported as missing.
#[derive(Debug, thiserror::Error)]
#[error("the container's directory is missing: {0}")]
pub(super) struct RootMissing(String);

impl StoreRoot {
    pub(super) fn new(path: &Path) -> Self {
        let is_mount = statx_at(CWD, path, AtFlags::empty()).is_ok_and(|stat| is_mount_root(&stat));
        Self { path: path.into(), is_mount }
    }

    /// Returns true if the root was a mount point at startup.
    pub(super) fn is_mount(&self) -> bool {
        self.is_mount
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the root directory.
    ///
    /// # Errors
    /// [`RootMissing`], and any other error of the system.
    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, &*self.path, flags, Mode::empty()).map_err(|errno| self.open_error(errno))
    }

    /// Like [`Self::open`], but only if the kernel has the path in memory.
    pub(super) fn open_nonblocking(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(CWD, &*self.path, flags, Mode::empty(), ResolveFlags::CACHED)
    }

    /// Returns the error of `openat2` if it fails here although `openat` succeeds, as on an old kernel or in a sandbox.
    ///
    /// # Errors
    /// [`RootMissing`], and any other error of the system.
    pub(super) fn openat2_refusal(&self) -> io::Result<Option<Errno>> {
        let root = self.open()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat2(&root, ".", flags, Mode::empty(), ResolveFlags::BENEATH);
        Ok(opened.err().filter(|_| openat(&root, ".", flags, Mode::empty()).is_ok()))
    }

    /// Returns true if a root opened by [`Self::open_nonblocking`] is still a mount point, or was none at startup.
    pub(super) fn is_still_mounted(&self, root: &OwnedFd) -> bool {
        !self.is_mount || statx_at(root, Path::new(""), AtFlags::NO_AUTOMOUNT).is_ok_and(|stat| is_mount_root(&stat))
    }

    /// Returns true if the root is present, as far as the kernel knows without reading a disk. Costs one system call.
    pub(super) fn is_present(&self) -> bool {
        statx_at(CWD, &self.path, AtFlags::NO_AUTOMOUNT).is_ok_and(|stat| self.is_served_root(&stat))
    }

    /// Returns `None`, for an object that was not found, if the root is present.
    ///
    /// # Errors
    /// [`RootMissing`] if the root is missing.
    pub(super) fn none_if_present<T>(&self) -> io::Result<Option<T>> {
        // Without `NO_AUTOMOUNT`, as this may trigger an automount.
        match statx_at(CWD, &self.path, AtFlags::empty()) {
            Ok(stat) if self.is_served_root(&stat) => Ok(None),
            Ok(_) => Err(self.missing_error("nothing is mounted there any more")),
            Err(errno) => Err(self.open_error(errno)),
        }
    }

    fn is_served_root(&self, stat: &Statx) -> bool {
        let is_directory = rustix::fs::FileType::from_raw_mode(stat.stx_mode.into()).is_dir();
        is_directory && (!self.is_mount || is_mount_root(stat))
    }

    fn open_error(&self, errno: Errno) -> io::Error {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => self.missing_error(&io::Error::from(errno).to_string()),
            other => other.into(),
        }
    }

    fn missing_error(&self, reason: &str) -> io::Error {
        io::Error::other(RootMissing(format!("{}: {reason}", self.path.display())))
    }
}

fn statx_at(directory: impl AsFd, path: &Path, extra_flags: AtFlags) -> Result<Statx, Errno> {
    let flags = if path.as_os_str().is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    statx(directory, path, flags | AtFlags::STATX_DONT_SYNC | extra_flags, StatxFlags::TYPE)
}

fn is_mount_root(stat: &Statx) -> bool {
    stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}
