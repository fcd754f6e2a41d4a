//! Opens a file for reading through a descriptor that names it (`O_PATH`), after its type is known. Opening a FIFO or a
//! device has side effects, and by then the name may lead to another file.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, fstatfs, openat};
use rustix::io::Errno;
use rustix::path::DecInt;

/// Opens the regular file that the descriptor `path_fd` refers to. Returns `None` without `/proc`; then it can only be
/// opened by name.
pub(super) fn reopen(path_fd: impl AsFd) -> Option<Result<OwnedFd, Errno>> {
    let descriptors = proc_self_fd()?;
    // NONBLOCK: fails instead of waiting if another process has a lease on the file.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Some(openat(descriptors, DecInt::from_fd(path_fd), flags, Mode::empty()).map_err(|errno| match errno {
        // The file existed, so none of these errors means that it is missing.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Errno::AGAIN,
        other => other,
    }))
}

/// Opens the directory that [`reopen`] needs, so that it is available even when descriptors run out.
pub(super) fn open_proc_in_advance() {
    proc_self_fd();
}

/// Returns `/proc/self/fd`, which is opened once.
fn proc_self_fd() -> Option<&'static OwnedFd> {
    static DESCRIPTORS: OnceLock<Option<OwnedFd>> = OnceLock::new();
    DESCRIPTORS
        .get_or_init(|| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = openat(CWD, "/proc/self/fd", flags, Mode::empty()).ok()?;
            is_procfs(&opened).then_some(opened)
        })
        .as_ref()
}

/// Returns true if the descriptor refers to a file on procfs.
pub(super) fn is_procfs(opened: impl AsFd) -> bool {
    fstatfs(opened).is_ok_and(|stats| stats.f_type == PROC_SUPER_MAGIC)
}
