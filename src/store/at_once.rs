//! Reading a file of a local store without waiting for anything: only what the kernel holds in memory already.
//!
//! A job on the CPU lane may read so. It saves two hops between threads per block, and a buffer: what is read
//! goes into memory that the caller uses for one block after the other.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::file_meta::meta_of;
use super::glance::path_below;
use super::{Key, Meta, SymlinkPolicy};

/// The file at `key` below `root`, its bytes in place of what `room` held; `Some(None)` where there is none.
///
/// `None` whenever that takes more than memory: a name or a page that the kernel does not have at hand, a kernel
/// or file system that cannot tell, a file of more than `most_bytes` or one that changes meanwhile, a symbolic link
/// that needs a closer look. The usual way then finds out.
#[expect(clippy::option_option, reason = "as `Store::get_at_once` has it")]
pub(super) fn read(
    root: &Path,
    symlinks: SymlinkPolicy,
    key: &Key,
    most_bytes: u64,
    room: &mut Vec<u8>,
) -> Option<Option<Meta>> {
    let file: File = match open(root, symlinks, key) {
        Ok(file) => file.into(),
        Err(Errno::NOENT | Errno::NOTDIR) => return Some(None),
        Err(_) => return None,
    };
    let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let meta = meta_of(&metadata);
    if meta.len > most_bytes {
        return None;
    }
    let len = usize::try_from(meta.len).ok()?;
    // Bytes from the block before are overwritten: only what is longer must be filled first.
    room.resize(len, 0);
    let mut done = 0;
    while done < len {
        let rest = room.get_mut(done..)?;
        match preadv2(&file, &mut [IoSliceMut::new(rest)], done as u64, ReadWriteFlags::NOWAIT) {
            Ok(read) if read > 0 => done += read,
            _ => return None,
        }
    }
    (meta_of(&file.metadata().ok()?) == meta).then_some(Some(meta))
}

/// Opens the file at `key`, by one look-up where no link is on the way: `root` has none in its own path, and a key cannot
/// lead above it.
pub(super) fn open(root: &Path, symlinks: SymlinkPolicy, key: &Key) -> Result<OwnedFd, Errno> {
    // NONBLOCK: opening a FIFO that nobody writes must not wait.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let links = if symlinks == SymlinkPolicy::Follow { ResolveFlags::empty() } else { ResolveFlags::NO_SYMLINKS };
    let path = path_below(root, key);
    match openat2(CWD, path.as_slice(), flags, Mode::empty(), ResolveFlags::CACHED | links) {
        Err(Errno::LOOP) if symlinks == SymlinkPolicy::Inside => {
            let root_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let root = openat2(CWD, root, root_flags, Mode::empty(), ResolveFlags::CACHED)?;
            openat2(root, key.as_str(), flags, Mode::empty(), ResolveFlags::CACHED | ResolveFlags::BENEATH)
        }
        opened => opened,
    }
}
