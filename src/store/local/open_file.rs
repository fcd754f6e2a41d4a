//! An open file that is read piece by piece, as long as anybody waits for it.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::{LocalStore, Written, has_content_of};
use crate::store::{Key, ReadAt, StoreError};

/// Bytes that are read before it is looked whether anybody still waits for them.
const STEP_BYTES: usize = 1 << 20;

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
}
