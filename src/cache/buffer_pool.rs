//! Pool of buffers of sent results and evicted blocks, which are reused.
//!
//! A new buffer from the system costs a page fault for every 4 KiB that is written, which takes about one microsecond
//! here. Giving it back costs as much again. Together this takes longer than all copying of a cached slice.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Minimum size of a pooled buffer. The allocator itself reuses smaller ones. Debug builds pool all buffers, so that
/// tests meet the content of earlier responses.
const MIN_POOLED_BYTES: usize = if cfg!(debug_assertions) { 1 } else { 64 << 10 };

/// Byte that debug builds fill pooled buffers with. It shows up in a response that has not been written completely.
pub(crate) const POISON_BYTE: u8 = 0xd7;

/// Number of calls of [`BufferPool::release_unused`], without use in between, after which the pool is emptied.
const MAX_IDLE_TICKS: u32 = 4;

/// A pool of unused buffers. Clones are cheap and share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct BufferPool {
    state: Arc<Mutex<BufferPoolState>>,
    /// Number of pooled bytes, readable without the lock.
    bytes: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct BufferPoolState {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
    idle_ticks: u32,
}

impl BufferPool {
    /// Takes a buffer of `len` bytes with the content of earlier responses, if there is one that fits.
    pub(crate) fn take_dirty(&self, len: usize) -> Option<Vec<u8>> {
        let mut buffer = self.take(len)?;
        buffer.resize(len, 0);
        Some(buffer)
    }

    /// Takes a buffer of arbitrary content with a capacity of `len` to twice as many bytes.
    pub(crate) fn take(&self, len: usize) -> Option<Vec<u8>> {
        self.take_within(len, len.saturating_mul(2))
    }

    /// Takes a buffer of arbitrary content with a capacity of exactly `len` bytes, for data that is cached.
    pub(crate) fn take_exact(&self, len: usize) -> Option<Vec<u8>> {
        self.take_within(len, len)
    }

    fn take_within(&self, min_capacity: usize, max_capacity: usize) -> Option<Vec<u8>> {
        if min_capacity < MIN_POOLED_BYTES {
            return None;
        }
        self.with_state(|state| {
            // The most recently used buffer is the most likely to be in a core's cache.
            let fits = |buffer: &Vec<u8>| (min_capacity..=max_capacity).contains(&buffer.capacity());
            let buffer = state.buffers.iter().rposition(fits).map(|at| state.buffers.remove(at))?;
            state.idle_ticks = 0;
            state.bytes = state.bytes.saturating_sub(buffer.capacity());
            Some(buffer)
        })
    }

    /// Adds `buffer` to the pool, unless the pool would then hold more than `max_bytes`.
    pub(crate) fn put(&self, mut buffer: Vec<u8>, max_bytes: u64) {
        let bytes = buffer.capacity();
        if bytes < MIN_POOLED_BYTES {
            return;
        }
        if cfg!(debug_assertions) {
            buffer.resize(bytes, 0);
            buffer.fill(POISON_BYTE);
        }
        let rejected = self.with_state(|state| {
            if state.bytes.saturating_add(bytes) as u64 > max_bytes {
                return Some(buffer);
            }
            state.bytes += bytes;
            state.buffers.push(buffer);
            None
        });
        drop(rejected);
    }

    /// Gives buffers back to the system until the pool holds at most `max_bytes`.
    pub(crate) fn trim(&self, max_bytes: u64) {
        if self.bytes.load(Ordering::Acquire) as u64 <= max_bytes {
            return;
        }
        let buffers = self.with_state(|state| {
            // The least recently used buffers are dropped.
            let mut bytes = state.bytes;
            let count = state.buffers.iter().take_while(|buffer| {
                let is_over_limit = bytes as u64 > max_bytes;
                bytes = bytes.saturating_sub(if is_over_limit { buffer.capacity() } else { 0 });
                is_over_limit
            });
            let count = count.count();
            state.bytes = bytes;
            state.buffers.drain(..count).collect::<Vec<_>>()
        });
        drop(buffers);
    }

    /// Gives the buffers back to the system if the pool has not been used during the last few calls. Must be called
    /// periodically.
    pub(crate) fn release_unused(&self) {
        let buffers = self.with_state(|state| {
            state.idle_ticks = state.idle_ticks.saturating_add(1);
            if state.idle_ticks < MAX_IDLE_TICKS {
                return Vec::new();
            }
            state.bytes = 0;
            std::mem::take(&mut state.buffers)
        });
        drop(buffers);
    }

    /// Runs `f` under the lock. The caller drops removed buffers after that, since unmapping them takes time.
    fn with_state<T>(&self, f: impl FnOnce(&mut BufferPoolState) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = f(&mut state);
        self.bytes.store(state.bytes, Ordering::Release);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_buffer_keeps_its_contents() {
        let pool = BufferPool::default();
        assert!(pool.take_dirty(1 << 20).is_none());
        let buffer = vec![7; 1 << 20];
        let address = buffer.as_ptr();
        pool.put(buffer, 1 << 20);
        let reused = pool.take_dirty((1 << 20) - 9).unwrap();
        assert_eq!(reused.as_ptr(), address);
        assert_eq!(reused.len(), (1 << 20) - 9);
        assert!(reused.iter().all(|byte| *byte == POISON_BYTE));
    }

    #[test]
    fn the_pool_keeps_no_more_than_its_limit() {
        let pool = BufferPool::default();
        pool.put(vec![1; 1 << 20], (1 << 20) - 1);
        assert_eq!(pool.bytes.load(Ordering::Acquire), 0);
        pool.put(vec![1; 1 << 20], 3 << 20);
        pool.put(vec![1; 1 << 20], 3 << 20);
        pool.trim(1 << 20);
        assert_eq!(pool.bytes.load(Ordering::Acquire), 1 << 20);
    }

    #[test]
    fn unused_buffers_are_released() {
        let pool = BufferPool::default();
        pool.put(vec![1; 1 << 20], 1 << 20);
        for _ in 1..MAX_IDLE_TICKS {
            pool.release_unused();
        }
        assert_eq!(pool.bytes.load(Ordering::Acquire), 1 << 20);
        pool.release_unused();
        assert_eq!(pool.bytes.load(Ordering::Acquire), 0);
    }
}
