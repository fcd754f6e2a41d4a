//! The send queue of one connection in the kernel, counted in a pool that bounds all send queues together.
//!
//! The kernel lets every connection's queue grow to `net.ipv4.tcp_wmem[2]`, usually 4 MiB, if its client reads slowly.
//! Here each may have [`FREE_BYTES`] at any time; more comes from a pool of which the connections of an address have at most
//! half of what is free, so that a client that takes nothing on many connections leaves some to others. A connection has
//! at most a quarter of that: one that is alone has an eighth of the pool and is not throttled, however distant its client is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::charge::AddressMemory;
use super::meminfo::send_queue_bytes;
use super::pool::SharedPool;
use super::socket::RuntimeSocket;

/// Kernel memory of a send queue that takes nothing from the pool.
pub(super) const FREE_BYTES: usize = 4 << 10;

/// A connection has at most what its address may still have, divided by this.
pub(super) const DIVISOR: usize = 3;

/// Memory of a packet besides its bytes: `sk_buff`, `skb_shared_info` and room for headers.
const PACKET_BYTES: usize = 1280;

/// Smaller writes wait, except for the last bytes of an answer: a queue that is nearly full would be filled a few bytes at a time.
pub(super) const LEAST_BYTES: usize = 1 << 10;

/// As long as little of the pool is taken, a queue that takes no more than this is not looked at: what was written since the last look
/// counts as queued. To ask the kernel for each answer of 2 KB took 5 % of the time that the answer takes.
const UNSEEN_BYTES: usize = 64 << 10;

/// A socket's send queue and the bytes of the pool that are granted to it. Dropping it returns them.
#[derive(Debug)]
pub(super) struct SendQueue {
    pool: Arc<SharedPool>,
    /// The bytes that all connections of the client's address have taken; `None` where an address stands for many clients.
    of_address: Option<Arc<AddressMemory>>,
    /// At least the kernel memory that the queue takes.
    queued_bytes: AtomicUsize,
    granted_bytes: AtomicUsize,
}

impl SendQueue {
    /// An empty queue of a connection of an address of which all connections together have `of_address`.
    pub(super) fn new(pool: &Arc<SharedPool>, of_address: Option<Arc<AddressMemory>>) -> Self {
        let (queued_bytes, granted_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { pool: Arc::clone(pool), of_address, queued_bytes, granted_bytes }
    }

    /// How many of `wanted` bytes may be written now. 0: the queue is full, until `socket` has sent some of it.
    pub(super) fn allow<S: RuntimeSocket>(&self, socket: &S, wanted: usize) -> usize {
        let cost = cost(wanted);
        let granted = self.granted_bytes.load(Ordering::Relaxed);
        let needed = self.queued_bytes.load(Ordering::Relaxed).saturating_add(cost).saturating_sub(FREE_BYTES);
        if needed <= granted {
            return wanted;
        }
        if needed <= UNSEEN_BYTES && !self.pool.is_much_taken() && self.grant(granted, needed - granted) >= needed {
            return wanted;
        }
        let queued = self.look(socket);
        let granted = self.granted_bytes.load(Ordering::Relaxed);
        let needed = queued.saturating_add(cost).saturating_sub(FREE_BYTES);
        let granted = if needed > granted { self.grant(granted, needed - granted) } else { self.keep(needed) };
        let room = FREE_BYTES.saturating_add(granted).saturating_sub(queued);
        if cost <= room {
            return wanted;
        }
        let allowed = payload(room);
        if allowed < LEAST_BYTES { 0 } else { allowed.min(wanted) }
    }

    /// Takes up to `wanted` bytes more than are `granted`; returns what is granted then. Threads that ask for the same address at
    /// once may exceed its part a little.
    pub(super) fn grant(&self, granted: usize, wanted: usize) -> usize {
        let of_address = self.of_address.as_ref().map(|memory| memory.queued_bytes.load(Ordering::Relaxed));
        let more = self.pool.take_up_to(of_address, granted, wanted);
        if let Some(memory) = &self.of_address {
            memory.queued_bytes.fetch_add(more, Ordering::Relaxed);
        }
        self.granted_bytes.fetch_add(more, Ordering::Relaxed) + more
    }

    fn sent(&self, bytes: usize) {
        if bytes > 0 {
            self.queued_bytes.fetch_add(cost(bytes), Ordering::Relaxed);
        }
    }

    /// Asks the kernel. Where it does not tell, nothing is taken to be queued.
    pub(super) fn look<S: RuntimeSocket>(&self, socket: &S) -> usize {
        let queued = send_queue_bytes(socket.as_fd(), S::HAS_PACKETS).unwrap_or(0);
        self.queued_bytes.store(queued, Ordering::Relaxed);
        queued
    }

    /// Gives back what was granted beyond `bytes`; returns what is granted then.
    fn keep(&self, bytes: usize) -> usize {
        let granted = self.granted_bytes.load(Ordering::Relaxed);
        let surplus = granted.saturating_sub(bytes);
        if surplus > 0 {
            self.granted_bytes.fetch_sub(surplus, Ordering::Relaxed);
            self.pool.give_back(surplus);
            if let Some(memory) = &self.of_address {
                memory.queued_bytes.fetch_sub(surplus, Ordering::Relaxed);
            }
        }
        granted - surplus
    }

    /// Gives back what the queue does not need: the client has taken it, or the kernel has not.
    pub(super) fn settle(&self, queued: usize) {
        self.keep(queued.saturating_sub(FREE_BYTES));
    }

    pub(super) fn release<S: RuntimeSocket>(&self, socket: &S) {
        self.settle(self.look(socket));
    }

    /// Counts what was written of `allowed` bytes. The kernel took less if its own bound is lower.
    pub(super) fn written<S: RuntimeSocket>(&self, socket: &S, allowed: usize, written: usize) {
        self.sent(written);
        if written < allowed && self.is_granted_any() {
            self.release(socket);
        }
    }

    /// Returns true if so much of the pool is taken that others may need what is granted.
    pub(super) fn is_needed(&self) -> bool {
        self.pool.is_much_taken()
    }

    /// An empty queue that takes from the same pool, for no address.
    pub(super) fn empty(&self) -> Self {
        Self::new(&self.pool, None)
    }

    pub(super) fn is_granted_any(&self) -> bool {
        self.granted_bytes.load(Ordering::Relaxed) > 0
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        self.keep(0);
    }
}

/// Kernel memory that so many bytes take.
fn cost(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes.saturating_add(bytes / 16).saturating_add(PACKET_BYTES) }
}

/// How many bytes take at most so much kernel memory.
fn payload(memory_bytes: usize) -> usize {
    memory_bytes.saturating_sub(PACKET_BYTES) / 17 * 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::ConnectionPool;

    #[test]
    fn connections_of_one_address_leave_most_of_the_pool_to_others() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 1 << 20, DIVISOR));
        let address = Arc::<AddressMemory>::default();
        let queues: Vec<_> = (0..200).map(|_| SendQueue::new(&pool, Some(Arc::clone(&address)))).collect();
        let granted: usize = queues.iter().map(|queue| queue.grant(0, 1 << 20)).sum();
        assert!(granted > 3 << 17 && granted <= 1 << 19, "{granted}");
        assert!(SendQueue::new(&pool, Some(Arc::default())).grant(0, 1 << 20) > 3 << 14);
        drop(queues);
        assert_eq!(address.queued_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_fits_into_so_much_memory_takes_no_more() {
        for memory in (0..5000).chain([1 << 20, usize::MAX]) {
            assert!(cost(payload(memory)) <= memory.max(PACKET_BYTES), "{memory}");
        }
        assert_eq!(payload(cost(1 << 20)), 1 << 20);
    }

    #[test]
    fn a_connection_that_is_alone_has_as_much_as_the_kernel_gives_it() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Sockets, 40 << 20, DIVISOR));
        for of_address in [Some(Arc::default()), None] {
            // `net.ipv4.tcp_wmem`, and a packet more.
            assert!(SendQueue::new(&pool, of_address).grant(0, usize::MAX) >= (4 << 20) + (128 << 10));
        }
    }
}
