//! A local file that the kernel sends from its own memory, without a copy into ours.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::sendfile;
use rustix::io::{ReadWriteFlags, preadv2};

use super::file_meta::{is_settled, meta_of};
use super::{Key, Meta, SymlinkPolicy, at_once};

/// Least distance of the bytes that are looked at to see whether the kernel has a file in memory. What it lets go of, it
/// lets go of in larger pieces, mostly.
const STRIDE: u64 = 64 << 10;

/// Most bytes that are looked at, but for the last.
const LOOKS: u64 = 16;

/// An open file of a [`super::Store`] and what was known of it when it was opened.
#[derive(Debug)]
pub struct Sendable {
    file: File,
    meta: Meta,
}

impl Sendable {
    /// The file at `key`, if it has at most `most_bytes`, was not written just now, and opening and reading it would not
    /// wait.
    pub(super) fn open(root: &Path, symlinks: SymlinkPolicy, key: &Key, most_bytes: u64) -> Option<Self> {
        let file: File = at_once::open(root, symlinks, key).ok()?.into();
        let metadata = file.metadata().ok().filter(|metadata| metadata.is_file() && is_settled(metadata))?;
        let meta = meta_of(&metadata);
        let is_in_memory = |at| {
            let mut byte = [0];
            let read = preadv2(&file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
            read.is_ok_and(|read| read == 1)
        };
        let last = meta.len.checked_sub(1)?;
        let step = usize::try_from(STRIDE.max(meta.len / LOOKS)).ok()?;
        let at_hand = meta.len <= most_bytes && (0..last).step_by(step).all(is_in_memory) && is_in_memory(last);
        at_hand.then_some(Self { file, meta })
    }

    /// Facts about it.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Sends bytes from `from` on to a socket that does not block, as many as it takes.
    ///
    /// The last byte goes alone, after a second look at the file: one that was written meanwhile is never sent to its
    /// end, so that its reader learns of it. What is written over in place, neither shortened first nor replaced, while
    /// it waits in the socket, is sent as it is then.
    ///
    /// # Errors
    /// Those of the socket; `UnexpectedEof` when the file has become shorter or was written.
    pub fn send(&self, socket: BorrowedFd<'_>, from: u64) -> io::Result<u64> {
        let last = self.meta.len.saturating_sub(1);
        let count = match last.saturating_sub(from) {
            0 if meta_of(&self.file.metadata()?) != self.meta => return Err(io::ErrorKind::UnexpectedEof.into()),
            0 => 1,
            before_last => usize::try_from(before_last).unwrap_or(usize::MAX),
        };
        let mut at = from;
        match sendfile(socket, &self.file, Some(&mut at), count)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            sent => Ok(sent as u64),
        }
    }
}
