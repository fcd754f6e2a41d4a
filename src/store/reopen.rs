//! A file opened for reading by a descriptor that names it (`O_PATH`), after its type is known: opening a FIFO or a device
//! acts on it, and its name may lead to another file by then.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, fstatfs, openat};
use rustix::io::Errno;
use rustix::path::DecInt;

/// Opens the regular file that `named` names. `None` without `/proc`: then only its name opens it again.
pub(super) fn reopen(named: impl AsFd) -> Option<Result<OwnedFd, Errno>> {
    let descriptors = descriptors()?;
    // NONBLOCK: what somebody has a lease on is refused, not waited for.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Some(openat(descriptors, DecInt::from_fd(named), flags, Mode::empty()).map_err(|errno| match errno {
        // The file was there: none of these says that it is missing.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => Errno::AGAIN,
        other => other,
    }))
}

/// Opens what [`reopen`] needs, so that it is there when descriptors are short.
pub(super) fn prepare() {
    descriptors();
}

/// `/proc/self/fd`, opened once.
fn descriptors() -> Option<&'static OwnedFd> {
    static DESCRIPTORS: OnceLock<Option<OwnedFd>> = OnceLock::new();
    DESCRIPTORS
        .get_or_init(|| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = openat(CWD, "/proc/self/fd", flags, Mode::empty()).ok()?;
            is_proc(&opened).then_some(opened)
        })
        .as_ref()
}

/// Whether that is of the file system of processes.
pub(super) fn is_proc(opened: impl AsFd) -> bool {
    fstatfs(opened).is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC)
}
