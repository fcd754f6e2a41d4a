//! The bytes that a connection has received and not processed yet, and the memory of long request heads.

use bytes::{Buf, BytesMut};
use tokio::io::ReadBuf;

use super::super::connection_memory::{ConnectionMemory, HEAD_COPIES, MAX_HEAD_BYTES};

/// Minimum capacity of the receive buffer in bytes. A browser's request head fits, or dozens of request heads of curl.
pub(super) const READ_BYTES: usize = 2 << 10;

/// Largest capacity of the receive buffer that a connection's fixed share of memory covers.
const UNCHARGED_HEAD_BYTES: usize = 8 << 10;

/// Receive buffer of a connection. The memory of a long head is charged to the `ConnectionMemory` that is passed to the
/// methods.
pub(super) struct ReceiveBuffer {
    pub(super) bytes: BytesMut,
    /// Number of bytes at the front that are known not to contain a complete head.
    scanned_bytes: usize,
    /// Number of bytes at the front that hyper reads next.
    pub(super) handoff_bytes: usize,
    /// Memory taken for the long head that is being received.
    head_memory_bytes: usize,
    /// Memory taken for the longest head that hyper has read. hyper keeps a buffer of that length.
    hyper_memory_bytes: usize,
}

impl ReceiveBuffer {
    pub(super) fn new() -> Self {
        Self {
            bytes: BytesMut::with_capacity(READ_BYTES),
            scanned_bytes: 0,
            handoff_bytes: 0,
            head_memory_bytes: 0,
            hyper_memory_bytes: 0,
        }
    }

    /// Makes room to receive more bytes. Returns false if there is no memory for a long head.
    pub(super) fn try_reserve(&mut self, memory: &ConnectionMemory) -> bool {
        let needed_bytes = self.bytes.len() + READ_BYTES;
        if needed_bytes <= self.bytes.capacity() || needed_bytes <= UNCHARGED_HEAD_BYTES {
            self.bytes.reserve(READ_BYTES);
            return true;
        }
        let capacity = needed_bytes.max(2 * self.bytes.len());
        let extra_bytes = (capacity * HEAD_COPIES).saturating_sub(self.head_memory_bytes);
        if !memory.try_take(extra_bytes) {
            return false;
        }
        self.head_memory_bytes += extra_bytes;
        // `reserve` may allocate more than is charged.
        let mut larger_buffer = BytesMut::with_capacity(capacity);
        larger_buffer.extend_from_slice(&self.bytes);
        self.bytes = larger_buffer;
        true
    }

    /// Returns true if the received bytes must be parsed: they may contain a complete head, or are too long for one. A
    /// head that arrives in small pieces is thus not parsed again for each piece.
    pub(super) fn needs_parsing(&mut self) -> bool {
        let unscanned = self.bytes.get(self.scanned_bytes.saturating_sub(2)..).unwrap_or_default();
        let may_end =
            unscanned.windows(2).any(|two| two == b"\n\n") || unscanned.windows(3).any(|three| three == b"\n\r\n");
        let is_incomplete = !may_end && self.scanned_bytes > 0 && !self.is_full();
        self.scanned_bytes = if is_incomplete { self.bytes.len() } else { 0 };
        !is_incomplete
    }

    /// Records that the received bytes were parsed and contain no complete head.
    pub(super) fn mark_incomplete(&mut self) {
        self.scanned_bytes = self.bytes.len();
    }

    /// Returns true if the received bytes have the maximum length of a head.
    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= MAX_HEAD_BYTES
    }

    /// Removes a head of `length` bytes, which the fast path has answered. Frees the buffer of a long head.
    pub(super) fn remove_answered(&mut self, length: usize, memory: &ConnectionMemory) {
        let is_long = self.bytes.capacity() > 4 * READ_BYTES;
        self.bytes.advance(length);
        if self.bytes.is_empty() && is_long {
            self.bytes = BytesMut::new();
            memory.give_back(std::mem::take(&mut self.head_memory_bytes));
        }
    }

    /// Hands a head of `length` bytes to hyper. hyper keeps one buffer, for its longest head, so only that head stays
    /// charged.
    pub(super) fn hand_over_head(&mut self, length: usize, memory: &ConnectionMemory) {
        self.handoff_bytes = length;
        let head_memory_bytes = std::mem::take(&mut self.head_memory_bytes);
        memory.give_back(head_memory_bytes.min(self.hyper_memory_bytes));
        self.hyper_memory_bytes = self.hyper_memory_bytes.max(head_memory_bytes);
    }

    /// Moves bytes for hyper to `out`. Frees an empty buffer, which may be large after a long head.
    pub(super) fn read_handoff(&mut self, out: &mut ReadBuf<'_>) {
        let length = self.handoff_bytes.min(out.remaining());
        out.put_slice(&self.bytes.split_to(length));
        self.handoff_bytes -= length;
        if self.handoff_bytes == 0 && self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
    }
}
