//! Reading open files step by step, as long as the caller waits and has memory for the bytes.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::{LocalStore, Written, has_content_of};
use crate::store::{Key, ReadAt, StoreError};

/// Bytes that are read between two looks at whether they are still wanted.
const STEP_BYTES: usize = 128 << 10;

/// A file that stays the same one when its name is given to another.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) store: LocalStore,
    pub(super) key: Key,
    /// And what was known of it when it was opened.
    pub(super) file: Arc<(File, Metadata)>,
}

#[async_trait]
impl ReadAt for OpenFile {
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let file = Arc::clone(&self.file);
        // Whoever waits holds the memory that is counted for the bytes: they must not be there for long without him.
        let waits = Arc::new(());
        let is_wanted = Arc::downgrade(&waits);
        let job = move |_: &LocalStore| {
            let (file, opened) = &*file;
            let bytes = read(file, range, || is_wanted.strong_count() > 0)?;
            // Pieces of two versions never make one answer.
            if has_content_of(&file.metadata()?, opened) {
                Ok(Bytes::from(bytes))
            } else {
                Err(io::Error::other(Written))
            }
        };
        let result = self.store.hop("read", &self.key, job).await;
        drop(waits);
        match result {
            Err(StoreError::Io { cause, .. }) if cause.kind() == ErrorKind::UnexpectedEof => {
                Err(StoreError::Short(self.key.clone()))
            }
            other => other,
        }
    }
}

/// The bytes of a file of `len` bytes, and one more if it has become longer; `None` when they are not wanted any more.
///
/// # Errors
/// Those of the system.
pub(super) fn read_whole(file: &mut impl Read, len: u64, is_wanted: impl Fn() -> bool) -> io::Result<Option<Vec<u8>>> {
    if !is_wanted() {
        // It may be longer than any memory.
        return Ok(None);
    }
    let most = len.saturating_add(1);
    let mut bytes = Vec::with_capacity(usize::try_from(most).unwrap_or(usize::MAX));
    loop {
        let step = (STEP_BYTES as u64).min(most.saturating_sub(bytes.len() as u64));
        let read = file.by_ref().take(step).read_to_end(&mut bytes)? as u64;
        if read < step || bytes.len() as u64 == most {
            return Ok(Some(bytes));
        }
        if !is_wanted() {
            return Ok(None);
        }
    }
}

/// The bytes of `range`.
///
/// # Errors
/// `Interrupted` when they are wanted no more; those of the system, `UnexpectedEof` where the file ends before.
fn read(file: &impl FileExt, range: Range<u64>, is_wanted: impl Fn() -> bool) -> io::Result<Vec<u8>> {
    let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
    // Zeros of the system's, which takes no memory before they are written over.
    let mut bytes = vec![0; len];
    let mut at = range.start;
    for step in bytes.chunks_mut(STEP_BYTES) {
        if !is_wanted() {
            return Err(ErrorKind::Interrupted.into());
        }
        file.read_exact_at(step, at)?;
        at = at.saturating_add(step.len() as u64);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Counts reads.
    struct Counting(AtomicUsize);

    impl FileExt for Counting {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            self.0.fetch_add(1, Ordering::Relaxed);
            buf.fill(u8::try_from(offset >> 20).unwrap());
            Ok(buf.len())
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
            Err(ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn what_is_wanted_no_more_is_not_read_to_its_end() {
        let file = Counting(AtomicUsize::new(0));
        let bytes = read(&file, 1 << 20..(5 << 20) + 3, || true).unwrap();
        assert_eq!((bytes.len(), bytes[0], bytes[1 << 20], *bytes.last().unwrap()), ((4 << 20) + 3, 1, 2, 5));
        let file = Counting(AtomicUsize::new(0));
        let error = read(&file, 0..16 << 20, || file.0.load(Ordering::Relaxed) < 2).unwrap_err();
        assert_eq!((error.kind(), file.0.into_inner()), (ErrorKind::Interrupted, 2));
    }

    #[test]
    fn a_whole_file_is_read_as_long_as_it_is_wanted() {
        for len in [0, 1, STEP_BYTES - 1, STEP_BYTES, 3 * STEP_BYTES + 5] {
            let content: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let read = |of: &[u8]| read_whole(&mut &*of, len as u64, || true).unwrap().unwrap();
            assert!(read(&content) == content, "{len}");
            // One byte tells that the file is longer now.
            assert_eq!(read(&[&content[..], b"more"].concat()).len(), len + 1);
            assert_eq!(read(&content[..len / 2]).len(), len / 2);
        }
        assert_eq!(read_whole(&mut &[0; 10][..], 1 << 50, || false).unwrap(), None);
        let (looks, mut left) = (AtomicUsize::new(0), &vec![7; 4 * STEP_BYTES][..]);
        let twice = || looks.fetch_add(1, Ordering::Relaxed) < 2;
        assert_eq!(read_whole(&mut left, 4 << 20, twice).unwrap(), None);
        assert_eq!(left.len(), 2 * STEP_BYTES);
    }
}
