//! Reading a file of a local store without waiting for anything: only what the kernel holds in memory already.
//!
//! A job on the CPU lane may read so. It saves two hops between threads per block, and a buffer: what is read
//! goes into memory that the caller uses for one block after the other.

use std::fs::{File, Metadata};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::file_meta::{EntityTag, meta_of};
use super::reopen::reopen;
use super::root::Root;
use super::{Key, Meta, ReadAtOnce, SymlinkPolicy};

/// Reads below a root that was opened once, for as long as a job keeps its core. What is missing is missing there, whatever
/// becomes of the root's name meanwhile.
#[derive(Debug)]
pub(super) struct RootReader {
    root: Root,
    opened: OwnedFd,
    symlinks: SymlinkPolicy,
    tag: EntityTag,
}

impl ReadAtOnce for RootReader {
    fn get(&mut self, key: &Key, most_bytes: u64, room: &mut Vec<u8>) -> Option<Option<Meta>> {
        let (file, metadata) = match self.open(key) {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NOTDIR) => return Some(None),
            Err(_) => return None,
        };
        let meta = meta_of(&metadata, self.tag);
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
        (meta_of(&file.metadata().ok()?, self.tag) == meta).then_some(Some(meta))
    }
}

impl RootReader {
    /// `None` where the root is not there, or not in memory.
    pub(super) fn begin(root: &Root, symlinks: SymlinkPolicy, tag: EntityTag) -> Option<Self> {
        Some(Self { opened: root.open_at_once().ok()?, root: root.clone(), symlinks, tag })
    }

    /// What entity tags are made of.
    pub(super) fn tag(&self) -> EntityTag {
        self.tag
    }

    /// Opens the file at `key`; [`Errno::ISDIR`] where something else is there, which is not opened. Below the root, no
    /// other file system's: opening a file there may ask a server.
    pub(super) fn open(&self, key: &Key) -> Result<(File, Metadata), Errno> {
        if key.is_root() {
            return Err(Errno::ISDIR);
        }
        let named = File::from(self.find(key)?);
        let metadata = named.metadata().ok().filter(Metadata::is_file).ok_or(Errno::ISDIR)?;
        // Without /proc, whoever may wait opens it.
        Ok((reopen(&named).ok_or(Errno::AGAIN)??.into(), metadata))
    }

    /// What `key` names, as a path.
    fn find(&self, key: &Key) -> Result<OwnedFd, Errno> {
        let open = |resolve| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let resolve = ResolveFlags::CACHED | ResolveFlags::NO_XDEV | resolve;
            openat2(&self.opened, key.as_str(), flags, Mode::empty(), resolve)
        };
        // Without a link on the way, none hides what there is: mostly one call says that there is nothing.
        match open(ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS) {
            Err(Errno::NOENT | Errno::NOTDIR) if !self.root.is_whole(&self.opened) => Err(Errno::AGAIN),
            Err(Errno::LOOP) if self.symlinks != SymlinkPolicy::Deny => {
                let is_inside = self.symlinks == SymlinkPolicy::Inside;
                match open(if is_inside { ResolveFlags::BENEATH } else { ResolveFlags::empty() }) {
                    // Behind a link that leads nowhere there may be something.
                    Err(Errno::NOENT | Errno::NOTDIR) => Err(Errno::AGAIN),
                    found => found,
                }
            }
            found => found,
        }
    }
}

/// Whether there is nothing at `path`, below the directory `at` or absolute, and no symbolic link on the way that could
/// hide it, as far as the kernel has that in memory.
pub(super) fn has_nothing(at: impl AsFd, path: &[u8]) -> bool {
    let resolve = ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS;
    let found = openat2(at, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve);
    matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
}
