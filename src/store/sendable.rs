//! A local file that the kernel sends from its own memory, without a copy into ours.

use std::fs::{File, Metadata};
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::sendfile;
use rustix::io::{ReadWriteFlags, preadv2};

use super::at_once::RootReader;
use super::file_meta::{has_content_of, is_settled, meta_of};
use super::hops::{HopError, Hops};
use super::{Key, Meta};
use crate::fair::Client;

/// Least distance of the bytes that are looked at to see whether the kernel has a file in memory. What it lets go of, it
/// lets go of in larger pieces, mostly.
const STRIDE: u64 = 64 << 10;

/// Most bytes that are looked at, but for the last.
const LOOKS: u64 = 16;

/// Most bytes that are sent at once: no longer than that may others wait.
const PIECE_BYTES: u64 = 512 << 10;

/// An open file of a [`super::Store`] and what was known of it when it was opened.
#[derive(Debug)]
pub struct Sendable {
    file: File,
    opened: Metadata,
    meta: Meta,
    hops: Hops,
    /// Who asked for it.
    client: Client,
}

impl Sendable {
    /// The file at `key`, if it has at most `most_bytes`, was not written just now, and opening and reading it would not
    /// wait.
    pub(super) fn open(reader: &RootReader, key: &Key, most_bytes: u64, hops: &Hops) -> Option<Self> {
        let (file, metadata) = reader.open(key).ok()?;
        if !is_settled(&metadata) {
            return None;
        }
        let meta = meta_of(&metadata, reader.tag());
        let last = meta.len.checked_sub(1)?;
        let step = usize::try_from(STRIDE.max(meta.len / LOOKS)).ok()?;
        let at_hand = |at| is_in_memory(&file, at);
        (meta.len <= most_bytes && (0..last).step_by(step).all(at_hand) && at_hand(last)).then_some(Self {
            file,
            opened: metadata,
            meta,
            hops: hops.clone(),
            client: Client::current(),
        })
    }

    /// Facts about it.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Whether the kernel still has in memory what [`Self::send`] sends next. Just opened, it has.
    pub fn is_at_hand(&self, from: u64) -> bool {
        let last = self.piece(from).end - 1;
        from == 0 || (is_in_memory(&self.file, from) && (last == from || is_in_memory(&self.file, last)))
    }

    /// Has the kernel read what [`Self::send`] sends next.
    ///
    /// # Errors
    /// When that cannot be read, or not in time.
    pub fn fetch(self: &Arc<Self>, from: u64) -> impl Future<Output = io::Result<()>> + Send + Sync + 'static {
        let this = Arc::clone(self);
        let reading = move || {
            let mut scratch = vec![0; 64 << 10];
            let (mut at, end) = (from, this.piece(from).end);
            while at < end {
                match this.file.read_at(&mut scratch, at)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    read => at += read as u64,
                }
            }
            Ok(())
        };
        let (hops, client) = (self.hops.clone(), self.client);
        async move {
            client.works(hops.run(None, reading)).await.map_err(|error| match error {
                HopError::Timeout | HopError::Stalled | HopError::Overdue | HopError::Crowded => {
                    io::Error::from(io::ErrorKind::TimedOut)
                }
                HopError::Thread(error) => error,
            })?
        }
    }

    /// What is sent at once from `from` on: the last byte alone.
    fn piece(&self, from: u64) -> Range<u64> {
        let last = self.meta.len.saturating_sub(1);
        let end = if from >= last { from.saturating_add(1) } else { last.min(from.saturating_add(PIECE_BYTES)) };
        from..end
    }

    /// How many bytes [`Self::send`] sends at most from `from` on.
    pub fn piece_bytes(&self, from: u64) -> u64 {
        let piece = self.piece(from);
        piece.end - piece.start
    }

    /// Sends bytes from `from` on to a socket that does not block, as many as it takes, up to `most_bytes` and 512 KiB.
    ///
    /// The last byte goes alone, after a second look at the file: one that was written meanwhile is never sent to its
    /// end, so that its reader learns of it. One that has got another name, mode or owner has the same bytes. What is written over in place, neither shortened first nor replaced, while
    /// it waits in the socket, is sent as it is then.
    ///
    /// # Errors
    /// Those of the socket; `UnexpectedEof` when the file has become shorter or was written.
    pub fn send(&self, socket: BorrowedFd<'_>, from: u64, most_bytes: usize) -> io::Result<usize> {
        let piece = self.piece(from);
        if piece.end >= self.meta.len && !has_content_of(&self.file.metadata()?, &self.opened) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let count = usize::try_from(piece.end - piece.start).unwrap_or(usize::MAX).min(most_bytes);
        let mut at = from;
        match sendfile(socket, &self.file, Some(&mut at), count)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            sent => Ok(sent),
        }
    }
}

/// Whether the byte at `at` can be read without waiting.
fn is_in_memory(file: &File, at: u64) -> bool {
    let mut byte = [0];
    preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT).is_ok_and(|read| read == 1)
}
