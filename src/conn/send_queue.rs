//! Limits the kernel's send queue of a connection. The memory of all send queues comes from one pool.
//!
//! If a client reads slowly, the kernel lets the queue of its connection grow to `net.ipv4.tcp_wmem[2]`, usually 4 MiB.
//! Here each queue may always take [`UNPOOLED_BYTES`], and takes the rest from a pool. The connections of an address
//! together hold at most as much of the pool as is still free. A client that opens many connections and does not read
//! thus leaves some of the pool to other clients. A connection gets at most a quarter of what its address may take,
//! which is an eighth of the pool if no other connection holds any. This is enough to send to a distant client at full
//! speed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::so_meminfo::send_queue_bytes;
use super::socket::TokioSocket;
use super::threshold_pool::{AddressMemory, DynamicThresholdPool};

/// Kernel memory of a send queue that is not taken from the pool. A small response fits, so most connections never use
/// the pool.
pub(super) const UNPOOLED_BYTES: usize = 4 << 10;

/// A connection holds at most 1/3 of the bytes that its address may still take.
pub(super) const CONNECTION_DIVISOR: usize = 3;

/// Memory of a packet in addition to its bytes: `sk_buff`, `skb_shared_info` and room for headers.
const PACKET_OVERHEAD_BYTES: usize = 1280;

/// Segments with fewer bytes than this count as small. Segments on common links are longer: with IPv6, they have at
/// least 1,220 bytes.
const SMALL_SEGMENT_BYTES: usize = 1000;

/// Kernel memory of a segment in addition to its bytes. A client that acknowledges every other segment makes the kernel
/// split its queue into segments.
const SEGMENT_OVERHEAD_BYTES: usize = 1024;

/// If the pool is empty, a queue may exceed its grant by 1/2 of the grant, plus [`GROWTH_BYTES`]. The queue of an
/// honest client grows by up to a third, because the kernel splits long packets.
const GROWTH_DIVISOR: usize = 2;

/// Excess in bytes that a queue may always have over its grant.
const GROWTH_BYTES: usize = 2 * UNPOOLED_BYTES;

/// Minimum size of a write in bytes, except at the end of a response. Without a minimum, a nearly full queue would be
/// filled a few bytes at a time.
const MIN_WRITE_BYTES: usize = 1 << 10;

/// Maximum size in bytes of a queue that is not measured while little of the pool is taken. Instead, all bytes written
/// since the last measurement count as queued. Measuring the queue for each response of 2 KB took 5 % of the time of
/// the response.
const UNMEASURED_BYTES: usize = 64 << 10;

/// A socket's send queue and its grant: the bytes that it has taken from the pool. Dropping this returns them.
///
/// Relaxed ordering is enough for the counters, because one thread at a time uses a connection.
#[derive(Debug)]
pub(super) struct SendQueue {
    pub(super) pool: Arc<DynamicThresholdPool>,
    /// Bytes that all connections from the client's address have taken; `None` if many clients share the address.
    address_memory: Option<Arc<AddressMemory>>,
    /// Upper bound of the kernel memory that the queue takes.
    queued_bytes: AtomicUsize,
    granted_bytes: AtomicUsize,
    /// Length of a segment if segments are small; otherwise `None`. With small segments, the queue takes many times the
    /// memory of its bytes.
    small_segment_bytes: Option<usize>,
}

impl SendQueue {
    /// Creates the empty queue of a connection. Its grant is added to the memory that its address holds.
    pub(super) fn new(pool: &Arc<DynamicThresholdPool>, address_memory: Option<Arc<AddressMemory>>) -> Self {
        Self {
            pool: Arc::clone(pool),
            address_memory,
            queued_bytes: AtomicUsize::new(0),
            granted_bytes: AtomicUsize::new(0),
            small_segment_bytes: None,
        }
    }

    /// Sets the length of the connection's segments. If they are small, each segment counts as if the kernel stored it
    /// separately, until the queue is empty.
    pub(super) fn with_segments(mut self, bytes: Option<usize>) -> Self {
        self.small_segment_bytes = bytes.map(|bytes| bytes.max(1)).filter(|bytes| *bytes < SMALL_SEGMENT_BYTES);
        self
    }

    /// Returns the number of bytes, of `wanted`, that may be written now. 0 means that the queue is full until the
    /// client receives some bytes.
    pub(super) fn allow<S: TokioSocket>(&self, socket: &S, wanted: usize) -> usize {
        let cost = self.kernel_cost(wanted);
        let granted = self.granted_bytes.load(Ordering::Relaxed);
        let needed = self.queued_bytes.load(Ordering::Relaxed).saturating_add(cost).saturating_sub(UNPOOLED_BYTES);
        if needed <= granted {
            return wanted;
        }
        if needed <= UNMEASURED_BYTES
            && !self.pool.is_under_pressure()
            && self.grant(granted, needed - granted) >= needed
        {
            return wanted;
        }
        let queued = self.measure(socket);
        let granted = self.granted_bytes.load(Ordering::Relaxed);
        let needed = queued.saturating_add(cost).saturating_sub(UNPOOLED_BYTES);
        let granted = if needed > granted { self.grant(granted, needed - granted) } else { self.shrink_grant(needed) };
        let available_bytes = UNPOOLED_BYTES.saturating_add(granted).saturating_sub(queued);
        if cost <= available_bytes {
            return wanted;
        }
        let allowed = self.max_payload(available_bytes);
        if allowed < self.min_write_bytes() { 0 } else { allowed.min(wanted) }
    }

    /// Takes up to `wanted` bytes in addition to those `granted` and returns the new grant. Threads that take memory
    /// for the same address at the same time may exceed its share slightly.
    pub(super) fn grant(&self, granted: usize, wanted: usize) -> usize {
        let address_bytes = self.address_memory.as_ref().map(|memory| memory.queued_bytes.load(Ordering::Relaxed));
        let added_bytes = self.pool.take_up_to(address_bytes, granted, wanted);
        if let Some(memory) = &self.address_memory {
            memory.queued_bytes.fetch_add(added_bytes, Ordering::Relaxed);
        }
        self.granted_bytes.fetch_add(added_bytes, Ordering::Relaxed) + added_bytes
    }

    /// Asks the kernel for the size of the queue. If the kernel does not report it, the queue counts as empty.
    pub(super) fn measure<S: TokioSocket>(&self, socket: &S) -> usize {
        self.record_queued(send_queue_bytes(socket.as_fd(), S::IS_TCP).unwrap_or(0))
    }

    /// Records the size of the queue that the kernel reports. Returns the size to charge. With small segments, that
    /// size does not shrink until the queue is empty.
    fn record_queued(&self, bytes: usize) -> usize {
        let counted = match self.small_segment_bytes {
            Some(_) if bytes > 0 => bytes.max(self.queued_bytes.load(Ordering::Relaxed)),
            _ => bytes,
        };
        self.queued_bytes.store(counted, Ordering::Relaxed);
        counted
    }

    /// Gives back what is granted beyond `bytes` and returns the new grant.
    fn shrink_grant(&self, bytes: usize) -> usize {
        let granted = self.granted_bytes.load(Ordering::Relaxed);
        let surplus = granted.saturating_sub(bytes);
        if surplus > 0 {
            self.granted_bytes.fetch_sub(surplus, Ordering::Relaxed);
            self.pool.give_back(surplus);
            if let Some(memory) = &self.address_memory {
                memory.queued_bytes.fetch_sub(surplus, Ordering::Relaxed);
            }
        }
        granted - surplus
    }

    /// Adjusts the grant to the size of the queue that the kernel reports. Gives back memory for bytes that the client
    /// has received or that the kernel did not accept. If the queue has grown, takes more from the pool.
    ///
    /// Returns false if the queue has grown far beyond its grant and the pool has no memory for it. A client causes
    /// such growth if it makes the kernel split the queue into small segments.
    #[must_use]
    pub(super) fn settle(&self, queued: usize) -> bool {
        let needed = self.record_queued(queued).saturating_sub(UNPOOLED_BYTES);
        let granted = self.granted_bytes.load(Ordering::Relaxed);
        if needed <= granted {
            self.shrink_grant(needed);
            return true;
        }
        let granted = self.grant(granted, needed - granted);
        needed <= granted + granted / GROWTH_DIVISOR + GROWTH_BYTES
    }

    /// Asks the kernel for the size of the queue and [settles](Self::settle). Returns false if the queue has grown far
    /// beyond its grant.
    #[must_use]
    pub(super) fn release<S: TokioSocket>(&self, socket: &S) -> bool {
        self.settle(send_queue_bytes(socket.as_fd(), S::IS_TCP).unwrap_or(0))
    }

    /// Records that `written` of the `allowed` bytes were written. The kernel accepts fewer bytes if its own limit is
    /// lower.
    pub(super) fn record_write<S: TokioSocket>(&self, socket: &S, allowed: usize, written: usize) {
        self.queued_bytes.fetch_add(self.kernel_cost(written), Ordering::Relaxed);
        if written < allowed && self.has_grant() {
            // The next check of the connection notices a queue that has grown too far.
            let _ = self.release(socket);
        }
    }

    /// Returns an upper bound of the kernel memory that `bytes` take.
    fn kernel_cost(&self, bytes: usize) -> usize {
        if bytes == 0 {
            return 0;
        }
        let overhead_bytes = match self.small_segment_bytes {
            None => bytes / 16,
            Some(segment) => bytes.div_ceil(segment).saturating_mul(SEGMENT_OVERHEAD_BYTES),
        };
        bytes.saturating_add(overhead_bytes).saturating_add(PACKET_OVERHEAD_BYTES)
    }

    /// Returns the minimum size of a write that is not the last one of a response. A write of this size fits into an
    /// empty queue that has no grant.
    pub(super) fn min_write_bytes(&self) -> usize {
        MIN_WRITE_BYTES.min(self.max_payload(UNPOOLED_BYTES))
    }

    /// Returns the number of bytes that fit into `memory_bytes` of kernel memory.
    fn max_payload(&self, memory_bytes: usize) -> usize {
        let memory = memory_bytes.saturating_sub(PACKET_OVERHEAD_BYTES);
        match self.small_segment_bytes {
            None => memory / 17 * 16,
            Some(segment) => memory / (segment + SEGMENT_OVERHEAD_BYTES) * segment,
        }
    }

    pub(super) fn has_grant(&self) -> bool {
        self.granted_bytes.load(Ordering::Relaxed) > 0
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        self.shrink_grant(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::ConnectionPoolLabel;

    #[test]
    fn connections_of_one_address_leave_most_of_the_pool_to_others() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 20, CONNECTION_DIVISOR));
        let address = Arc::<AddressMemory>::default();
        let queues: Vec<_> = (0..200).map(|_| SendQueue::new(&pool, Some(Arc::clone(&address)))).collect();
        let granted: usize = queues.iter().map(|queue| queue.grant(0, 1 << 20)).sum();
        assert!(granted > 3 << 17 && granted <= 1 << 19, "{granted}");
        assert!(SendQueue::new(&pool, Some(Arc::default())).grant(0, 1 << 20) > 3 << 14);
        drop(queues);
        assert_eq!(address.queued_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_payload_that_fits_into_memory_costs_no_more_than_that_memory() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 0, CONNECTION_DIVISOR));
        for segments in [None, Some(1), Some(88), Some(SMALL_SEGMENT_BYTES)] {
            let queue = SendQueue::new(&pool, None).with_segments(segments);
            for memory in (0..5000).chain([1 << 20, usize::MAX]) {
                assert!(queue.kernel_cost(queue.max_payload(memory)) <= memory.max(PACKET_OVERHEAD_BYTES), "{memory}");
            }
            assert_eq!(queue.max_payload(queue.kernel_cost(88 << 14)), 88 << 14);
        }
    }

    #[test]
    fn a_queue_that_grows_takes_more_of_the_pool_or_is_refused() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 20, CONNECTION_DIVISOR));
        let queue = SendQueue::new(&pool, Some(Arc::default()));
        let granted = queue.grant(0, 64 << 10);
        assert!(queue.settle(100 << 10));
        assert_eq!(queue.granted_bytes.load(Ordering::Relaxed), (100 << 10) - UNPOOLED_BYTES);
        assert!(queue.settle(granted));
        assert_eq!(queue.granted_bytes.load(Ordering::Relaxed), granted - UNPOOLED_BYTES);
        assert!(!queue.settle(1 << 20), "a connection has at most an eighth of the pool");
    }

    #[test]
    fn small_segments_count_alone_until_the_queue_is_empty() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 1 << 20, CONNECTION_DIVISOR));
        let queue = SendQueue::new(&pool, Some(Arc::default())).with_segments(Some(76));
        queue.queued_bytes.fetch_add(queue.kernel_cost(4096), Ordering::Relaxed);
        let counted = queue.queued_bytes.load(Ordering::Relaxed);
        assert!(counted > 11 * 4096, "{counted}");
        assert!(queue.settle(4096 + 2304));
        assert_eq!(queue.granted_bytes.load(Ordering::Relaxed), counted - UNPOOLED_BYTES);
        assert!(queue.settle(0));
        assert_eq!((queue.queued_bytes.load(Ordering::Relaxed), queue.has_grant()), (0, false));
    }

    #[test]
    fn a_single_connection_gets_as_much_as_the_kernel_allows() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Sockets, 40 << 20, CONNECTION_DIVISOR));
        for address_memory in [Some(Arc::default()), None] {
            // The kernel queues up to the maximum of `net.ipv4.tcp_wmem`, and one more packet of up to 128 KiB.
            assert!(SendQueue::new(&pool, address_memory).grant(0, usize::MAX) >= (4 << 20) + (128 << 10));
        }
    }
}
