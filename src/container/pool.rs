//! Buffers of results that have been sent and of blocks that were evicted, kept for the next ones.
//!
//! A buffer from the system costs a page fault for every 4 KiB that is written, about a microsecond here, and as much
//! again when it is given back: more than all copying of a cached slice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Smaller buffers are left to the allocator, which reuses them itself. Where debugging, all are kept, so that tests
/// meet what older answers left.
const LEAST_BYTES: usize = if cfg!(debug_assertions) { 1 } else { 64 << 10 };

/// What a buffer that was put here is filled with where debugging: an answer that shows it has not been written wholly.
pub(super) const LEFT: u8 = 0xd7;

/// Looks at an unused pool after which it is emptied.
const PATIENCE: u32 = 4;

/// Buffers that nobody uses. Cheap to clone; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Pool {
    shelf: Arc<Mutex<Shelf>>,
    /// Bytes on the shelf, to be looked at without its lock.
    bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Shelf {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    unused: u32,
}

impl Pool {
    /// `len` bytes of what an older answer left, in a buffer that is kept here, where one fits.
    pub(super) fn used(&self, len: usize) -> Option<Vec<u8>> {
        let mut buffer = self.find(len)?;
        buffer.resize(len, 0);
        Some(buffer)
    }

    /// A buffer with room for `len` bytes, and at most twice as many, and any content.
    pub(super) fn find(&self, len: usize) -> Option<Vec<u8>> {
        self.find_within(len, len.saturating_mul(2))
    }

    /// A buffer with room for `len` bytes and no more, and any content: for what is kept.
    pub(super) fn find_exact(&self, len: usize) -> Option<Vec<u8>> {
        self.find_within(len, len)
    }

    fn find_within(&self, least: usize, most: usize) -> Option<Vec<u8>> {
        if least < LEAST_BYTES {
            return None;
        }
        self.change(|shelf| {
            // The one that was used last is the likeliest to be in a core's cache.
            let fits = |buffer: &Vec<u8>| (least..=most).contains(&buffer.capacity());
            let buffer = shelf.buffers.iter().rposition(fits).map(|at| shelf.buffers.remove(at))?;
            shelf.unused = 0;
            shelf.bytes = shelf.bytes.saturating_sub(buffer.capacity());
            Some(buffer)
        })
    }

    /// Keeps `buffer`, unless more than `most_bytes` would be kept then.
    pub(super) fn put(&self, mut buffer: Vec<u8>, most_bytes: u64) {
        let bytes = buffer.capacity();
        if bytes < LEAST_BYTES {
            return;
        }
        if cfg!(debug_assertions) {
            buffer.resize(bytes, 0);
            buffer.fill(LEFT);
        }
        let refused = self.change(|shelf| {
            if shelf.bytes.saturating_add(bytes) as u64 > most_bytes {
                return Some(buffer);
            }
            shelf.bytes += bytes;
            shelf.buffers.push(buffer);
            None
        });
        drop(refused);
    }

    /// Gives buffers back to the system until no more than `most_bytes` are kept.
    pub(super) fn shrink(&self, most_bytes: u64) {
        if self.bytes.load(Ordering::Acquire) as u64 <= most_bytes {
            return;
        }
        let buffers = self.change(|shelf| {
            // Those that were not wanted for longest.
            let mut bytes = shelf.bytes;
            let count = shelf.buffers.iter().take_while(|buffer| {
                let is_beyond = bytes as u64 > most_bytes;
                bytes = bytes.saturating_sub(if is_beyond { buffer.capacity() } else { 0 });
                is_beyond
            });
            let count = count.count();
            shelf.bytes = bytes;
            shelf.buffers.drain(..count).collect::<Vec<_>>()
        });
        drop(buffers);
    }

    /// To be called now and then: gives back what has not been used for some calls.
    pub(super) fn tidy(&self) {
        let buffers = self.change(|shelf| {
            shelf.unused = shelf.unused.saturating_add(1);
            if shelf.unused < PATIENCE {
                return Vec::new();
            }
            shelf.bytes = 0;
            std::mem::take(&mut shelf.buffers)
        });
        drop(buffers);
    }

    /// Changes what is kept. Buffers are dropped without the lock: unmapping takes its time.
    fn change<T>(&self, job: impl FnOnce(&mut Shelf) -> T) -> T {
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let result = job(&mut shelf);
        self.bytes.store(shelf.bytes, Ordering::Release);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_with_what_it_holds() {
        let pool = Pool::default();
        assert!(pool.used(1 << 20).is_none());
        let buffer = vec![7; 1 << 20];
        let at = buffer.as_ptr();
        pool.put(buffer, 1 << 20);
        let again = pool.used((1 << 20) - 9).unwrap();
        assert_eq!(again.as_ptr(), at);
        assert_eq!(again.len(), (1 << 20) - 9);
        assert!(again.iter().all(|byte| *byte == LEFT));
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let pool = Pool::default();
        pool.put(vec![1; 1 << 20], (1 << 20) - 1);
        assert_eq!(pool.bytes.load(Ordering::Acquire), 0);
        pool.put(vec![1; 1 << 20], 3 << 20);
        pool.put(vec![1; 1 << 20], 3 << 20);
        pool.shrink(1 << 20);
        assert_eq!(pool.bytes.load(Ordering::Acquire), 1 << 20);
    }

    #[test]
    fn what_is_not_used_is_given_back() {
        let pool = Pool::default();
        pool.put(vec![1; 1 << 20], 1 << 20);
        for _ in 1..PATIENCE {
            pool.tidy();
        }
        assert_eq!(pool.bytes.load(Ordering::Acquire), 1 << 20);
        pool.tidy();
        assert_eq!(pool.bytes.load(Ordering::Acquire), 0);
    }
}
