//! The directory of a local store, and whether it is there: what is missing below a root that is not there is not
//! missing but lost from sight, for as long as that lasts.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags, openat, openat2, statx,
};
use rustix::io::Errno;

/// A root, without symbolic links in its own path. It is looked up anew by every call, so that one that was remounted or
/// replaced is found again.
#[derive(Debug, Clone)]
pub(super) struct Root {
    path: Arc<Path>,
    /// Whether something was mounted there at the start: then an empty directory is left where that is gone.
    is_mount: bool,
}

/// The root is not there: what it held cannot be said to be missing.
#[derive(Debug, thiserror::Error)]
#[error("the container's directory is not there: {0}")]
pub(super) struct Gone(String);

impl Root {
    pub(super) fn new(path: &Path) -> Self {
        let is_mount = look(CWD, path, AtFlags::empty()).is_ok_and(|found| is_mounted(&found));
        Self { path: path.into(), is_mount }
    }

    /// Whether something was mounted there at the start.
    pub(super) fn is_mount(&self) -> bool {
        self.is_mount
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`Gone`], and whatever else the system says.
    pub(super) fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, &*self.path, flags, Mode::empty()).map_err(|errno| self.why(errno))
    }

    /// [`Self::open`], only if the kernel has it in memory.
    pub(super) fn open_at_once(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(CWD, &*self.path, flags, Mode::empty(), ResolveFlags::CACHED)
    }

    /// Why `openat2` cannot be used here: a kernel without it, or a sandbox, says something else than for `openat`.
    ///
    /// # Errors
    /// [`Gone`], and whatever else the system says.
    pub(super) fn refuses_openat2(&self) -> io::Result<Option<Errno>> {
        let root = self.open()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat2(&root, ".", flags, Mode::empty(), ResolveFlags::BENEATH);
        Ok(opened.err().filter(|_| openat(&root, ".", flags, Mode::empty()).is_ok()))
    }

    /// Whether a root opened by [`Self::open_at_once`] is what was served from the start.
    pub(super) fn is_whole(&self, root: &OwnedFd) -> bool {
        !self.is_mount || look(root, Path::new(""), AtFlags::NO_AUTOMOUNT).is_ok_and(|found| is_mounted(&found))
    }

    /// Whether it is there, as far as the kernel knows without reading a disk; one system call.
    pub(super) fn is_there(&self) -> bool {
        look(CWD, &self.path, AtFlags::NO_AUTOMOUNT).is_ok_and(|found| self.serves(&found))
    }

    /// What is said of something that is missing below it.
    ///
    /// # Errors
    /// [`Gone`] when it is not there.
    pub(super) fn has_nothing<T>(&self) -> io::Result<Option<T>> {
        // What is mounted when it is asked for is asked for.
        match look(CWD, &self.path, AtFlags::empty()) {
            Ok(found) if self.serves(&found) => Ok(None),
            Ok(_) => Err(self.gone("nothing is mounted there any more")),
            Err(errno) => Err(self.why(errno)),
        }
    }

    fn serves(&self, found: &Statx) -> bool {
        let is_directory = rustix::fs::FileType::from_raw_mode(found.stx_mode.into()).is_dir();
        is_directory && (!self.is_mount || is_mounted(found))
    }

    fn why(&self, errno: Errno) -> io::Error {
        match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP => self.gone(&io::Error::from(errno).to_string()),
            other => other.into(),
        }
    }

    fn gone(&self, why: &str) -> io::Error {
        io::Error::other(Gone(format!("{}: {why}", self.path.display())))
    }
}

fn look(at: impl AsFd, path: &Path, automount: AtFlags) -> Result<Statx, Errno> {
    let flags = if path.as_os_str().is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    statx(at, path, flags | AtFlags::STATX_DONT_SYNC | automount, StatxFlags::TYPE)
}

fn is_mounted(found: &Statx) -> bool {
    found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
}
