//! Buffers: how much of a budget they take, the pool of unused buffers, and the cached buffers that are being sent.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use scopeguard::ScopeGuard;

use crate::runtime::allocator;
use crate::runtime::fair_queue::{ClientId, FairPermit, FairSemaphore};

/// Flow number of a client's requests for permits and charges, except for those of its streams.
pub(crate) const SHORT_FLOW: u64 = 0;

/// Size of a permit's unit, in bytes.
pub(crate) const UNIT_BYTES: u64 = 1024;

/// In a cache, buffers between [`UNIT_BYTES`] and this size are stored in memory pages of their own.
const PAGED_LIMIT_BYTES: u64 = allocator::LARGE_BYTES as u64;

/// Memory that a large buffer takes in addition to its bytes: the header of the allocation and the header of a stored
/// block, rounded up to a page.
const LARGE_BUFFER_OVERHEAD_BYTES: u64 = 4 << 10;

/// Returns the number of units of a permit for `bytes`. The size of a buffer with pages of its own is rounded up to
/// whole pages.
pub(crate) fn units(bytes: u64) -> usize {
    let units = if bytes > UNIT_BYTES && bytes < PAGED_LIMIT_BYTES {
        bytes.next_multiple_of(allocator::PAGE_BYTES as u64) / UNIT_BYTES
    } else {
        bytes.div_ceil(UNIT_BYTES)
    };
    usize::try_from(units).unwrap_or(usize::MAX)
}

/// Returns the number of bytes that a buffer of `len` bytes takes of a budget. A cache must weigh its entries by this
/// number, so that they never exceed the cache's part of the budget.
pub(crate) fn footprint_bytes(len: usize) -> usize {
    let overhead_bytes = if len as u64 >= PAGED_LIMIT_BYTES { LARGE_BUFFER_OVERHEAD_BYTES } else { 0 };
    usize::try_from(units(len as u64) as u64 * UNIT_BYTES + overhead_bytes).unwrap_or(usize::MAX)
}

/// Returns true if [`compact_for_cache`] copies these bytes although they fill their buffer.
pub(crate) fn needs_copy(bytes: &[u8]) -> bool {
    let len = bytes.len() as u64;
    len > UNIT_BYTES && len < PAGED_LIMIT_BYTES && !allocator::is_paged(bytes.len())
}

/// Prepares `bytes` for a cache: copies them into memory pages of their own if they are longer than [`UNIT_BYTES`] and
/// shorter than [`PAGED_LIMIT_BYTES`]. Nothing is copied if the bytes fill their buffer (`fills_buffer`) and the buffer
/// has pages of its own already.
pub(crate) fn compact_for_cache(bytes: Bytes, fills_buffer: bool) -> Bytes {
    let len = bytes.len() as u64;
    let is_paged = len >= PAGED_LIMIT_BYTES || fills_buffer && allocator::is_paged(bytes.len());
    if len <= UNIT_BYTES || is_paged {
        return bytes;
    }
    allocator::PagedBytes::copy_of(&bytes).map_or(bytes, Bytes::from_owner)
}

/// Bytes that are passed to the function `F` when they are dropped.
struct ReleasedBytes<B, F: FnOnce(B)>(ScopeGuard<B, F>);

impl<B: AsRef<[u8]>, F: FnOnce(B)> AsRef<[u8]> for ReleasedBytes<B, F> {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// Returns `bytes` such that `release` is called with them when their last clone is dropped.
pub(crate) fn release_with<B>(bytes: B, release: impl FnOnce(B) + Send + 'static) -> Bytes
where
    B: AsRef<[u8]> + Send + 'static,
{
    Bytes::from_owner(ReleasedBytes(scopeguard::guard(bytes, release)))
}

/// Minimum size of a pooled buffer. The allocator itself reuses smaller buffers well. Debug builds pool all buffers, so
/// that tests run on buffers that contain data of earlier responses.
const MIN_POOLED_BYTES: usize = if cfg!(debug_assertions) { 1 } else { 64 << 10 };

/// Byte that debug builds fill pooled buffers with. It shows up in a response that has not been written completely.
pub(crate) const POISON_BYTE: u8 = 0xd7;

/// Number of calls of [`BufferPool::release_unused`] after which the pool is emptied, if no buffer is taken in between.
const MAX_IDLE_TICKS: u32 = 4;

/// A pool of unused buffers, which held results that have been sent or blocks that have been evicted.
///
/// A new buffer from the system costs a page fault for each 4 KiB, which takes about one microsecond here, and giving
/// the buffer back takes as long. Without the pool, this would take longer than copying a cached slice.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    /// The most recently used buffers are at the end.
    buffers: Mutex<Vec<Vec<u8>>>,
    /// Number of pooled bytes. It changes under the lock. [`Self::trim`] reads it without the lock (`Acquire`, which
    /// pairs with the `Release` of each change) and takes the lock only if there is something to trim.
    bytes: AtomicUsize,
    /// Number of calls of [`Self::release_unused`] since the last use. Changes under the lock.
    idle_ticks: AtomicU32,
}

impl BufferPool {
    /// Takes a buffer of `len` bytes with arbitrary content. Returns `None` if no buffer fits.
    pub(crate) fn take_dirty(&self, len: usize) -> Option<Vec<u8>> {
        let mut buffer = self.take(len)?;
        buffer.resize(len, 0);
        Some(buffer)
    }

    /// Takes a buffer with arbitrary content and a capacity of `len` to twice `len` bytes.
    pub(crate) fn take(&self, len: usize) -> Option<Vec<u8>> {
        self.take_within(len, len.saturating_mul(2))
    }

    /// Takes a buffer with arbitrary content and a capacity of exactly `len` bytes, for data that will be cached.
    pub(crate) fn take_exact(&self, len: usize) -> Option<Vec<u8>> {
        self.take_within(len, len)
    }

    fn take_within(&self, min_capacity: usize, max_capacity: usize) -> Option<Vec<u8>> {
        if min_capacity < MIN_POOLED_BYTES {
            return None;
        }
        let mut buffers = self.lock();
        // The most recently used buffer is the most likely to be in a core's cache.
        let fits = |buffer: &Vec<u8>| (min_capacity..=max_capacity).contains(&buffer.capacity());
        let buffer = buffers.iter().rposition(fits).map(|at| buffers.remove(at))?;
        self.bytes.fetch_sub(buffer.capacity(), Ordering::Release);
        self.idle_ticks.store(0, Ordering::Relaxed);
        Some(buffer)
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
        let mut buffers = self.lock();
        let pooled_bytes = self.bytes.load(Ordering::Relaxed).saturating_add(bytes);
        if pooled_bytes as u64 <= max_bytes {
            self.bytes.store(pooled_bytes, Ordering::Release);
            buffers.push(buffer);
        } else {
            // Unmapping takes time, so it is done without the lock.
            drop(buffers);
            drop(buffer);
        }
    }

    /// Gives the least recently used buffers back to the system until the pool holds at most `max_bytes`.
    pub(crate) fn trim(&self, max_bytes: u64) {
        if self.bytes.load(Ordering::Acquire) as u64 <= max_bytes {
            return;
        }
        let mut buffers = self.lock();
        let mut bytes = self.bytes.load(Ordering::Relaxed);
        let mut count = 0;
        for buffer in &*buffers {
            if bytes as u64 <= max_bytes {
                break;
            }
            bytes = bytes.saturating_sub(buffer.capacity());
            count += 1;
        }
        self.bytes.store(bytes, Ordering::Release);
        let surplus: Vec<_> = buffers.drain(..count).collect();
        drop(buffers);
        drop(surplus);
    }

    /// Gives the buffers back to the system if the pool has not been used during the last few calls. Must be called
    /// periodically.
    pub(crate) fn release_unused(&self) {
        let mut buffers = self.lock();
        let idle_ticks = self.idle_ticks.load(Ordering::Relaxed).saturating_add(1);
        self.idle_ticks.store(idle_ticks, Ordering::Relaxed);
        if idle_ticks >= MAX_IDLE_TICKS {
            self.bytes.store(0, Ordering::Release);
            let unused = std::mem::take(&mut *buffers);
            drop(buffers);
            drop(unused);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Permission to send cached bytes to a client. It becomes the charge for these bytes, which ends when the last clone
/// that is being sent is dropped.
#[derive(Debug)]
pub struct SendPermit {
    pub(crate) client: ClientId,
    pub(crate) charge: FairPermit,
}

/// The cached buffers that are being sent, with the clients that they are charged to. A buffer that a cache has evicted
/// takes memory until it has been sent, so the number of these buffers is limited for each client.
#[derive(Debug)]
pub(crate) struct PinnedBuffers {
    /// Buffers by the address of their first byte.
    buffers: Mutex<HashMap<usize, PinnedBuffer>>,
    /// Total length of the buffers, each counted once, and of the pieces of large objects. Relaxed atomics suffice: the
    /// number only decides if a cache evicts entries early.
    pub(crate) bytes: AtomicU64,
    /// Semaphore whose permits are the charges of the clients.
    pub(crate) client_charges: FairSemaphore,
}

#[derive(Debug, Default)]
struct PinnedBuffer {
    bytes: u64,
    clients: Vec<(ClientId, Weak<FairPermit>)>,
}

impl PinnedBuffers {
    /// Creates an empty set. Charges are permits of `client_charges`.
    pub(crate) fn new(client_charges: FairSemaphore) -> Self {
        Self { buffers: Mutex::default(), bytes: AtomicU64::new(0), client_charges }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, PinnedBuffer>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges `bytes` to `client` while they are being sent, so that a client that does not read cannot occupy all of
    /// the memory. The memory itself is covered by the permit that is attached to `bytes`. Returns `None` if the client
    /// has not read enough of what it requested before. The caller must then wait for a [`SendPermit`] without holding
    /// `bytes`.
    pub(crate) fn charge_to_client(self: &Arc<Self>, client: ClientId, bytes: &Bytes) -> Option<Bytes> {
        if let Some(charged) = self.reuse_charge(client, bytes) {
            return Some(charged);
        }
        let charge = self.client_charges.try_charge(client.flow(SHORT_FLOW), units(bytes.len() as u64))?;
        Some(self.charge_with_permit(SendPermit { client, charge }, bytes.clone()))
    }

    /// Returns `bytes` under the existing charge if they are already being sent to `client`.
    fn reuse_charge(self: &Arc<Self>, client: ClientId, bytes: &Bytes) -> Option<Bytes> {
        let buffers = self.lock();
        let buffer = buffers.get(&address(bytes))?;
        let charge = buffer.clients.iter().find(|(other, _)| *other == client)?.1.upgrade()?;
        drop(buffers);
        // A part of the buffer with another length may start at the same address. It is the same memory.
        Some(self.charged_bytes(bytes.clone(), charge))
    }

    /// Charges `bytes` as [`Self::charge_to_client`] does, with a permit that was acquired before.
    pub(crate) fn charge_with_permit(self: &Arc<Self>, permit: SendPermit, bytes: Bytes) -> Bytes {
        let charge = Arc::new(permit.charge);
        let mut buffers = self.lock();
        let buffer = buffers.entry(address(&bytes)).or_default();
        if buffer.clients.is_empty() {
            buffer.bytes = bytes.len() as u64;
            self.bytes.fetch_add(buffer.bytes, Ordering::Relaxed);
            self.client_charges.occupy(units(buffer.bytes));
        }
        buffer.clients.push((permit.client, Arc::downgrade(&charge)));
        drop(buffers);
        self.charged_bytes(bytes, charge)
    }

    fn charged_bytes(self: &Arc<Self>, bytes: Bytes, charge: Arc<FairPermit>) -> Bytes {
        let pinned = Arc::clone(self);
        release_with(bytes, move |bytes| pinned.end_charge(&bytes, charge))
    }

    /// Ends one use of a charge, and the charge with its last use.
    fn end_charge(&self, bytes: &Bytes, charge: Arc<FairPermit>) {
        let mut buffers = self.lock();
        // The reference is given up under the lock, so that `reuse_charge` cannot upgrade a charge that is about to
        // end. The charge itself ends below, outside the lock.
        let last = Arc::into_inner(charge);
        let mut unpinned_bytes = 0;
        if last.is_some()
            && let Some(buffer) = buffers.get_mut(&address(bytes))
        {
            buffer.clients.retain(|(_, charge)| charge.strong_count() > 0);
            if buffer.clients.is_empty() {
                unpinned_bytes = buffer.bytes;
                self.bytes.fetch_sub(unpinned_bytes, Ordering::Relaxed);
                buffers.remove(&address(bytes));
            }
        }
        drop(buffers);
        // Both calls wake waiters.
        self.client_charges.vacate(units(unpinned_bytes));
        drop(last);
    }
}

fn address(bytes: &Bytes) -> usize {
    bytes.as_ptr().addr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::fair_queue::{ClientQuota, CostBasis};

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

    #[test]
    fn a_buffer_counts_once_per_client_while_it_is_sent() {
        let charges = FairSemaphore::new(100, ClientQuota { alone: 50, among_others: 50 }, CostBasis::Units);
        let pinned = Arc::new(PinnedBuffers::new(charges.clone()));
        let bytes = Bytes::from(vec![3; 1000]);
        let pinned_bytes = || pinned.bytes.load(Ordering::Relaxed);
        let [client_a, client_b] = [1, 2].map(ClientId::new);
        let charge = |client| Some(SendPermit { client, charge: charges.try_charge(client.flow(0), 30)? });
        assert!(pinned.reuse_charge(client_a, &bytes).is_none());
        let first = pinned.charge_with_permit(charge(client_a).unwrap(), bytes.clone());
        assert_eq!(first.as_ptr(), bytes.as_ptr());
        let second = pinned.reuse_charge(client_a, &bytes).unwrap();
        assert!(pinned.reuse_charge(client_b, &bytes).is_none());
        let other = pinned.charge_with_permit(charge(client_b).unwrap(), bytes.clone());
        assert_eq!(pinned_bytes(), 1000);
        assert!(charge(client_a).is_none() && charge(client_b).is_none());
        drop(first);
        assert!(charge(client_a).is_none() && pinned.reuse_charge(client_a, &bytes).is_some());
        drop(second);
        assert!(charge(client_a).is_some() && pinned.reuse_charge(client_a, &bytes).is_none());
        assert_eq!(pinned_bytes(), 1000);
        drop(other);
        assert!(pinned_bytes() == 0 && pinned.lock().is_empty());
    }
}
