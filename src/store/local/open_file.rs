//! Reads of open files. A read stops early when its caller has gone, because the caller's permit for the memory is then
//! given back.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::store::disk_pool::DiskPool;
use crate::store::error::{LocalError, StoreError};
use crate::store::file_meta::{has_same_content, stat_file};
use crate::store::key::Key;
use crate::store::object::{RawObjectMeta, ReadAt};

/// Number of bytes that are read between two checks that the caller still wants them.
const STEP_BYTES: usize = 128 << 10;

/// An open file. It stays the same file even if another file takes its name.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) disk_pool: Arc<DiskPool>,
    pub(super) key: Key,
    /// The file, and its metadata at the time of opening.
    pub(super) file: Arc<(File, RawObjectMeta)>,
}

#[async_trait]
impl ReadAt for OpenFile {
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let file = Arc::clone(&self.file);
        // The permit for the memory goes with the caller, so the bytes must not outlive the caller for long.
        let wait_token = Arc::new(());
        let is_wanted = Arc::downgrade(&wait_token);
        let job = move || {
            let (file, at_open) = &*file;
            let bytes = read_range(file, range, || is_wanted.strong_count() > 0)?;
            // One response never combines parts of two versions.
            if has_same_content(&stat_file(file)?, at_open) { Ok(Bytes::from(bytes)) } else { Err(LocalError::Torn) }
        };
        let result = self.disk_pool.run_action("read", &self.key, job).await;
        drop(wait_token);
        match result {
            Err(StoreError::Io { cause, .. }) if cause.kind() == ErrorKind::UnexpectedEof => {
                Err(StoreError::Truncated(self.key.clone()))
            }
            other => other,
        }
    }
}

/// Reads a file of `len` bytes, and one byte more if it has grown. Returns `None` if the bytes are no longer wanted.
///
/// # Errors
/// Returns the errors of the system.
pub(super) fn read_whole(file: &mut impl Read, len: u64, is_wanted: impl Fn() -> bool) -> io::Result<Option<Vec<u8>>> {
    if !is_wanted() {
        // Not even the buffer is allocated: its permit may have been given back.
        return Ok(None);
    }
    let max_bytes = len.saturating_add(1);
    let mut bytes = Vec::with_capacity(usize::try_from(max_bytes).unwrap_or(usize::MAX));
    loop {
        let step = (STEP_BYTES as u64).min(max_bytes.saturating_sub(bytes.len() as u64));
        let read = file.by_ref().take(step).read_to_end(&mut bytes)? as u64;
        if read < step || bytes.len() as u64 == max_bytes {
            return Ok(Some(bytes));
        }
        if !is_wanted() {
            return Ok(None);
        }
    }
}

/// Reads the bytes of `range`.
///
/// # Errors
/// Returns `Interrupted` if the bytes are no longer wanted, `UnexpectedEof` if the file ends before the range does, and
/// other errors of the system.
fn read_range(file: &impl FileExt, range: Range<u64>, is_wanted: impl Fn() -> bool) -> io::Result<Vec<u8>> {
    let len = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
    // Zeroed memory from the system takes no space until it is written.
    let mut bytes = vec![0; len];
    let mut at = range.start;
    for chunk in bytes.chunks_mut(STEP_BYTES) {
        if !is_wanted() {
            return Err(ErrorKind::Interrupted.into());
        }
        file.read_exact_at(chunk, at)?;
        at = at.saturating_add(chunk.len() as u64);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A file that counts its reads.
    struct CountingFile(AtomicUsize);

    impl FileExt for CountingFile {
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
    fn an_abandoned_read_stops_early() {
        let file = CountingFile(AtomicUsize::new(0));
        let bytes = read_range(&file, 1 << 20..(5 << 20) + 3, || true).unwrap();
        assert_eq!((bytes.len(), bytes[0], bytes[1 << 20], *bytes.last().unwrap()), ((4 << 20) + 3, 1, 2, 5));
        let file = CountingFile(AtomicUsize::new(0));
        let error = read_range(&file, 0..16 << 20, || file.0.load(Ordering::Relaxed) < 2).unwrap_err();
        assert_eq!((error.kind(), file.0.into_inner()), (ErrorKind::Interrupted, 2));
    }

    #[test]
    fn a_whole_file_is_read_unless_the_read_is_abandoned() {
        for len in [0, 1, STEP_BYTES - 1, STEP_BYTES, 3 * STEP_BYTES + 5] {
            let content: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).unwrap()).collect();
            let read = |file: &[u8]| read_whole(&mut &*file, len as u64, || true).unwrap().unwrap();
            assert!(read(&content) == content, "{len}");
            // One extra byte shows that the file has grown.
            assert_eq!(read(&[&content[..], b"more"].concat()).len(), len + 1);
            assert_eq!(read(&content[..len / 2]).len(), len / 2);
        }
        assert_eq!(read_whole(&mut &[0; 10][..], 1 << 50, || false).unwrap(), None);
        let checks = AtomicUsize::new(0);
        let mut remaining = &vec![7; 4 * STEP_BYTES][..];
        let is_wanted_twice = || checks.fetch_add(1, Ordering::Relaxed) < 2;
        assert_eq!(read_whole(&mut remaining, 4 << 20, is_wanted_twice).unwrap(), None);
        assert_eq!(remaining.len(), 2 * STEP_BYTES);
    }
}
