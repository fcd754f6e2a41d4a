//! Limits of request heads, and the memory account of each connection.
//!
//! Each connection has a fixed share of memory ([`crate::config::Config::max_connections_bytes`]). It covers the state
//! of hyper and a head of ordinary length, but no HTTP/2 streams. The memory for streams and long heads comes from a
//! pool that all connections share, and is taken before hyper sees their bytes. If the pool has no memory for a
//! connection, the connection is not read until there is some.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::http::request::Parts;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::threshold_pool::{AddressMemory, DynamicThresholdPool};

/// Maximum length of a request head, in bytes. A head with the longest possible path (64 KiB) fits. A connection that
/// sends only a head costs no more than this.
pub(super) const MAX_HEAD_BYTES: usize = 96 << 10;

/// Number of copies of a head in memory: as received, as parsed, and in the text of a problem response.
pub(super) const HEAD_COPIES: usize = 3;

/// Maximum number of fields of a request. hyper has the same limit for HTTP/1.
pub(super) const MAX_FIELDS: usize = 100;

/// Maximum number of cookie fields that do not count towards [`MAX_FIELDS`].
pub(super) const MAX_UNCOUNTED_COOKIES: usize = 200;

/// Maximum number of concurrent HTTP/2 streams of one connection. Viewers request 100 blocks at once.
pub(super) const MAX_STREAMS: u32 = 128;

/// Memory of an open stream (6.5 KiB): its state in hyper, the task that answers its request, and a short response. A
/// 404 that the client did not read was measured to take 2.9 KiB, with a peak of 5.3 KiB.
const STREAM_BYTES: usize = 13 << 9;

/// Memory that hyper keeps for a stream after its end, until the connection ends (1.5 KiB; measured: 1.45 KiB). Later
/// streams reuse it, so it is charged for the largest number of streams that were open at once.
const RETAINED_BYTES: usize = 3 << 9;

/// Maximum number of refused streams that hyper keeps for one connection. A stream is refused if its header list is
/// malformed or too long, or if the client resets it at once. hyper itself keeps no more refused streams than this.
const MAX_REFUSED_STREAMS: usize = MAX_STREAMS as usize;

/// Memory of one field of a header list. On the wire, a field may be a single byte: an HPACK index (RFC 7541, section
/// 6.1).
const FIELD_BYTES: usize = 96;

/// Maximum memory of the fields of one header list. hyper drops the fields beyond `MAX_HEAD_BYTES`, and counts at least
/// 33 bytes for each field (RFC 9113, section 6.5.2).
const MAX_HEADER_LIST_BYTES: usize = MAX_HEAD_BYTES / 33 * FIELD_BYTES;

/// Length of a request head that [`STREAM_BYTES`] covers.
const STREAM_HEAD_BYTES: usize = 2 << 10;

/// Maximum number of header list frames on one connection before it yields to other tasks. The number is above hyper's
/// limit of 20 requests that a client resets at once, so that hyper still closes the connection of such a client
/// (CVE-2023-44487).
const MAX_FRAMES_PER_POLL: usize = 64;

/// Number of payload bytes that count as one more frame, because each byte may be a field.
const FRAME_UNIT_BYTES: usize = 128;

/// Number of frames that a read from the socket counts as. With this number, each of thousands of connections that send
/// at full speed yields after about ten microseconds.
const FRAMES_PER_READ: usize = 16;

/// Number of idle connections that are asked at the same time to give back memory.
const RECLAIM_BATCH: usize = 4;

/// Time without a stream after which a connection counts as idle. A client that sends requests one after the other
/// makes shorter pauses.
const MIN_STREAMLESS_IDLE: Duration = Duration::from_millis(500);

/// An address that holds less memory than this may use the pool's reserve. The memory is enough for a head of 597 bytes
/// on the wire, where each byte may be a field. A browser's first head is shorter, unless it has long cookies.
pub(super) const GUARANTEED_BYTES: usize = 64 << 10;
const _: () = assert!(597 * FIELD_BYTES + STREAM_BYTES + RETAINED_BYTES <= GUARANTEED_BYTES);

/// Reason to end an HTTP/2 connection that its client keeps open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoawayReason {
    /// A header list has more fields than hyper could count in reasonable time.
    TooManyFields,
    /// The client sent a frame that only servers may send.
    ForbiddenFrame,
    /// There is no memory for the HPACK table.
    NoTableMemory,
    /// The connection has waited too long for memory, while it held some and had no open stream.
    BlockedTooLong,
}

impl GoawayReason {
    /// Returns true if the reason is a shortage of memory, for which the client may not be responsible. The client is
    /// then told which requests it can repeat, and still receives its last response.
    pub(super) const fn is_memory_shortage(self) -> bool {
        matches!(self, Self::NoTableMemory | Self::BlockedTooLong)
    }

    /// Returns the text for the log.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::TooManyFields => "the client sends too many header fields in one request",
            Self::ForbiddenFrame => "the client sends a frame that only servers may send",
            Self::NoTableMemory => "there is no memory for the client's HPACK table",
            Self::BlockedTooLong => {
                "no memory became free for the next request, and the connection holds memory that others need"
            }
        }
    }
}

/// A frame that carries a part of a request's header list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeaderFrame {
    /// Length of the payload on the wire.
    pub(super) payload_bytes: usize,
    /// True for the first frame of a header list, false for `CONTINUATION`.
    pub(super) begins_list: bool,
    /// True if the frame opens a stream.
    pub(super) opens_stream: bool,
    /// True if clients must not send this frame. hyper would store its header list before it reports the error.
    pub(super) is_forbidden: bool,
}

/// Account of the memory that a connection has taken from the pool. Dropping the account gives the memory back.
///
/// Relaxed ordering is enough for all counters and flags here. They guard no other data, and only one thread at a time
/// uses a connection. A load and a store that follows are therefore not interrupted by another store.
#[derive(Debug)]
pub(super) struct ConnectionMemory {
    pool: Arc<DynamicThresholdPool>,
    /// Memory of all connections from the client's address; `None` if many clients share the address.
    address_memory: Option<Arc<AddressMemory>>,
    taken_bytes: AtomicUsize,
    /// Bytes taken for header lists that were passed to hyper and have not become requests yet.
    pending_request_bytes: AtomicUsize,
    /// True if the last header list passed to hyper is incomplete.
    in_header_list: AtomicBool,
    /// Bytes taken for the fields of the latest header list.
    header_list_bytes: AtomicUsize,
    /// True if hyper has read all bytes passed to it.
    is_input_drained: AtomicBool,
    /// Bytes taken for streams whose responses are complete, while hyper may still hold their last frames.
    unflushed_bytes: AtomicUsize,
    /// Bytes taken for the buffers that hyper's HPACK table retains.
    table_bytes: AtomicUsize,
    /// Number of streams that were passed to hyper and have not become requests yet.
    pending_request_streams: AtomicUsize,
    /// Number of refused streams that hyper keeps.
    refused_streams: AtomicUsize,
    open_streams: AtomicUsize,
    peak_streams: AtomicUsize,
    /// True while there is no memory for a frame that was received.
    pub(super) is_waiting: AtomicBool,
    /// Time at which the last stream ended.
    idle_since: Mutex<Instant>,
    refusal_notify: Notify,
    /// Why the connection must end.
    refusal: OnceLock<GoawayReason>,
    frames_this_poll: AtomicUsize,
}

impl ConnectionMemory {
    /// Creates the account of a connection. The memory that the connection takes also counts for the client's address.
    pub(super) fn new(pool: &Arc<DynamicThresholdPool>, address_memory: Option<Arc<AddressMemory>>) -> Arc<Self> {
        Arc::new(Self {
            pool: Arc::clone(pool),
            address_memory,
            taken_bytes: AtomicUsize::new(0),
            pending_request_bytes: AtomicUsize::new(0),
            in_header_list: AtomicBool::new(false),
            header_list_bytes: AtomicUsize::new(0),
            is_input_drained: AtomicBool::new(false),
            unflushed_bytes: AtomicUsize::new(0),
            table_bytes: AtomicUsize::new(0),
            pending_request_streams: AtomicUsize::new(0),
            refused_streams: AtomicUsize::new(0),
            open_streams: AtomicUsize::new(0),
            peak_streams: AtomicUsize::new(0),
            is_waiting: AtomicBool::new(false),
            idle_since: Mutex::new(Instant::now()),
            refusal_notify: Notify::new(),
            refusal: OnceLock::new(),
            frames_this_poll: AtomicUsize::new(0),
        })
    }

    /// Takes `bytes` if the limits of the pool and the address allow it. Returns true if it took them. Threads that
    /// take memory for the same address at the same time may exceed its limit slightly.
    pub(super) fn try_take(&self, bytes: usize) -> bool {
        let Self { pool, address_memory, taken_bytes, .. } = self;
        let address_bytes = address_memory.as_ref().map(|held| held.memory_bytes.load(Ordering::Relaxed));
        if !pool.try_take(address_bytes, bytes) {
            return false;
        }
        taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(address) = address_memory {
            address.memory_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        true
    }

    /// Gives back bytes that were taken.
    pub(super) fn give_back(&self, bytes: usize) {
        self.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.pool.give_back(bytes);
        if let Some(address) = &self.address_memory {
            address.memory_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Begins a poll of the connection: resets the number of frames that count towards it.
    pub(super) fn begin_poll(&self) {
        self.frames_this_poll.store(0, Ordering::Relaxed);
    }

    /// Counts a read from the socket towards this poll.
    pub(super) fn count_read(&self) {
        self.frames_this_poll.fetch_add(FRAMES_PER_READ, Ordering::Relaxed);
    }

    /// Returns true if this poll has admitted the maximum number of frames.
    pub(super) fn is_poll_budget_spent(&self) -> bool {
        self.frames_this_poll.load(Ordering::Relaxed) >= MAX_FRAMES_PER_POLL
    }

    /// Stops admitting frames, and ends the connection for this reason. Only the first reason counts.
    pub(super) fn refuse(&self, reason: GoawayReason) {
        self.refusal.get_or_init(|| reason);
        self.refusal_notify.notify_one();
    }

    /// Returns true if [`Self::refuse`] was called.
    pub(super) fn is_refusing(&self) -> bool {
        self.refusal().is_some()
    }

    /// Returns the reason given to [`Self::refuse`], if it was called.
    pub(super) fn refusal(&self) -> Option<GoawayReason> {
        self.refusal.get().copied()
    }

    /// Waits for a call of [`Self::refuse`] and returns its reason.
    pub(super) async fn wait_for_refusal(&self) -> GoawayReason {
        loop {
            self.refusal_notify.notified().await;
            if let Some(reason) = self.refusal.get() {
                return *reason;
            }
        }
    }

    /// Returns the time at which the last stream of the connection ended, if the connection holds memory that no stream
    /// can give back. Returns `None` if it has a stream, holds no memory, or is still sending its last response.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        let holds = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed) > 0;
        let is_blocked =
            self.open_streams.load(Ordering::Relaxed) == 0 && holds(&self.taken_bytes) && !holds(&self.unflushed_bytes);
        is_blocked.then(|| *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks idle connections to give back the memory that hyper keeps for their past streams. If the client's address
    /// holds a large share of the pool, only connections from that address are asked.
    pub(super) fn request_reclaim(&self) {
        let address_memory = self.address_memory.as_ref();
        let address = address_memory.filter(|held| self.pool.is_large_share(held.memory_bytes.load(Ordering::Relaxed)));
        let reclaim_requested = address.map_or(&self.pool.reclaim_requested, |address| &address.reclaim_requested);
        for _ in 0..RECLAIM_BATCH {
            reclaim_requested.notify_one();
        }
    }

    /// Waits until other connections need the memory that hyper keeps for this connection. Ready only if this
    /// connection has been idle for [`MIN_STREAMLESS_IDLE`].
    pub(super) async fn wait_for_reclaim(&self) {
        loop {
            let by_address = async {
                match &self.address_memory {
                    Some(address) => address.reclaim_requested.notified().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.pool.reclaim_requested.notified() => {}
                () = by_address => {}
            }
            let idle_since = *self.idle_since.lock().unwrap_or_else(PoisonError::into_inner);
            let holds_memory = self.taken_bytes.load(Ordering::Relaxed) > 0;
            if holds_memory && self.is_idle() && idle_since.elapsed() >= MIN_STREAMLESS_IDLE {
                return;
            }
        }
    }

    /// Returns true if no stream is open, about to be opened, or waiting for memory.
    pub(super) fn is_idle(&self) -> bool {
        self.open_streams.load(Ordering::Relaxed) == 0
            && self.pending_request_streams.load(Ordering::Relaxed) == 0
            && !self.is_waiting.load(Ordering::Relaxed)
    }

    /// Takes memory for a frame of a header list before hyper sees the frame. Returns `Break` if there is no memory, or
    /// after [`Self::refuse`].
    pub(super) fn admit(&self, frame: HeaderFrame) -> ControlFlow<()> {
        if frame.is_forbidden {
            self.refuse(GoawayReason::ForbiddenFrame);
        }
        if self.is_refusing() {
            return ControlFlow::Break(());
        }
        let list_bytes = if frame.begins_list { 0 } else { self.header_list_bytes.load(Ordering::Relaxed) };
        let field_bytes =
            frame.payload_bytes.saturating_mul(FIELD_BYTES).min(MAX_HEADER_LIST_BYTES.saturating_sub(list_bytes));
        let stream_bytes = if frame.opens_stream { STREAM_BYTES + RETAINED_BYTES } else { 0 };
        if !self.try_take(field_bytes + stream_bytes) {
            return ControlFlow::Break(());
        }
        self.header_list_bytes.store(list_bytes + field_bytes, Ordering::Relaxed);
        self.pending_request_bytes.fetch_add(field_bytes + stream_bytes, Ordering::Relaxed);
        self.pending_request_streams.fetch_add(usize::from(frame.opens_stream), Ordering::Relaxed);
        self.frames_this_poll.fetch_add(1 + frame.payload_bytes / FRAME_UNIT_BYTES, Ordering::Relaxed);
        ControlFlow::Continue(())
    }

    /// Sets the number of bytes that hyper's HPACK table retains, and takes or gives back memory accordingly.
    /// Additional bytes come from the memory that was taken for the current header list, and then from the pool. If the
    /// pool has none, the connection ends.
    pub(super) fn set_table_bytes(&self, bytes: usize) {
        let current_bytes = self.table_bytes.load(Ordering::Relaxed);
        if bytes <= current_bytes {
            self.table_bytes.store(bytes, Ordering::Relaxed);
            self.give_back(current_bytes - bytes);
            return;
        }
        let pending_bytes = self.pending_request_bytes.load(Ordering::Relaxed);
        let stream_bytes = self.pending_request_streams.load(Ordering::Relaxed) * (STREAM_BYTES + RETAINED_BYTES);
        let transferred_bytes = (bytes - current_bytes).min(pending_bytes.saturating_sub(stream_bytes));
        if self.try_take(bytes - current_bytes - transferred_bytes) {
            self.pending_request_bytes.fetch_sub(transferred_bytes, Ordering::Relaxed);
            self.table_bytes.store(bytes, Ordering::Relaxed);
        } else {
            self.refuse(GoawayReason::NoTableMemory);
        }
    }

    /// Records whether the last header list passed to hyper is incomplete.
    pub(super) fn set_in_header_list(&self, in_header_list: bool) {
        self.in_header_list.store(in_header_list, Ordering::Relaxed);
    }

    /// Records whether hyper has read all bytes passed to it and wants more.
    pub(super) fn set_input_drained(&self, is_drained: bool) {
        self.is_input_drained.store(is_drained, Ordering::Relaxed);
    }

    /// Gives back the memory of header lists that did not become requests. [`RETAINED_BYTES`] stay taken for each
    /// refused stream, because hyper keeps the stream until the connection ends.
    ///
    /// Must be called after a poll of hyper. Once hyper has read all bytes passed to it, each complete header list has
    /// become a request or was refused.
    pub(super) fn release_pending(&self) {
        if self.pending_request_bytes.load(Ordering::Relaxed) > 0
            && self.is_input_drained.load(Ordering::Relaxed)
            && !self.in_header_list.load(Ordering::Relaxed)
        {
            let refused_streams = self.pending_request_streams.swap(0, Ordering::Relaxed);
            let already_refused = self.refused_streams.load(Ordering::Relaxed);
            let newly_refused = refused_streams.min(MAX_REFUSED_STREAMS.saturating_sub(already_refused));
            self.refused_streams.store(already_refused + newly_refused, Ordering::Relaxed);
            let pending_bytes = self.pending_request_bytes.swap(0, Ordering::Relaxed);
            self.give_back(pending_bytes.saturating_sub(newly_refused * RETAINED_BYTES));
        }
    }

    /// Takes the memory of the stream of a request. Returns `None` if there is no memory for a head of this length.
    pub(super) fn open_stream(self: &Arc<Self>, request: &Parts) -> Option<StreamMemory> {
        let path = request.uri.path_and_query().map_or(0, |path| path.as_str().len());
        let head_bytes: usize = request
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .fold(path, usize::saturating_add);
        let stream_bytes = STREAM_BYTES + head_bytes.saturating_sub(STREAM_HEAD_BYTES).saturating_mul(HEAD_COPIES);
        let streams = self.open_streams.load(Ordering::Relaxed) + 1;
        let is_new_peak = streams > self.peak_streams.load(Ordering::Relaxed);
        let needed_bytes = if is_new_peak { stream_bytes + RETAINED_BYTES } else { stream_bytes };
        let pending_bytes = self.pending_request_bytes.load(Ordering::Relaxed);
        let covered_bytes = pending_bytes.min(needed_bytes);
        if needed_bytes > covered_bytes && !self.try_take(needed_bytes - covered_bytes) {
            return None;
        }
        self.pending_request_bytes.fetch_sub(covered_bytes, Ordering::Relaxed);
        self.pending_request_streams
            .store(self.pending_request_streams.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        self.open_streams.store(streams, Ordering::Relaxed);
        if is_new_peak {
            self.peak_streams.store(streams, Ordering::Relaxed);
        }
        Some(StreamMemory { connection: Arc::clone(self), bytes: stream_bytes })
    }

    /// Gives back the memory of streams that have ended. Must be called only when hyper has flushed all its frames.
    pub(super) fn release_flushed(&self) {
        if self.unflushed_bytes.load(Ordering::Relaxed) > 0 {
            self.give_back(self.unflushed_bytes.swap(0, Ordering::Relaxed));
        }
    }
}

impl Drop for ConnectionMemory {
    fn drop(&mut self) {
        self.give_back(self.taken_bytes.load(Ordering::Relaxed));
    }
}

/// Memory of an open stream. Dropping it ends the stream; the memory stays taken until the last frame is sent.
#[derive(Debug)]
pub(super) struct StreamMemory {
    connection: Arc<ConnectionMemory>,
    bytes: usize,
}

impl Drop for StreamMemory {
    fn drop(&mut self) {
        if self.connection.open_streams.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.connection.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        self.connection.unflushed_bytes.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;
    use crate::telemetry::metrics::ConnectionPoolLabel;

    fn request(path: &str) -> Parts {
        Request::get(path).body(()).unwrap().into_parts().0
    }

    fn taken_bytes(memory: &ConnectionMemory) -> usize {
        memory.taken_bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn a_stream_is_charged_from_its_first_frame_to_its_last_byte() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Memory, 1 << 20, 0));
        let memory = ConnectionMemory::new(&pool, None);
        assert!(
            memory
                .admit(HeaderFrame { payload_bytes: 50, begins_list: true, opens_stream: true, is_forbidden: false })
                .is_continue()
        );
        let stream = memory.open_stream(&request("/a")).unwrap();
        memory.set_input_drained(true);
        memory.release_pending();
        assert_eq!(taken_bytes(&memory), STREAM_BYTES + RETAINED_BYTES);
        drop(stream);
        memory.set_input_drained(true);
        memory.release_pending();
        assert_eq!(taken_bytes(&memory), STREAM_BYTES + RETAINED_BYTES, "its last frame may not be sent yet");
        memory.release_flushed();
        assert_eq!(taken_bytes(&memory), RETAINED_BYTES);
        // The next stream uses what hyper has kept.
        let stream = memory.open_stream(&request("/a")).unwrap();
        assert_eq!(taken_bytes(&memory), STREAM_BYTES + RETAINED_BYTES);
        drop((stream, memory));
        assert!(pool.try_take(Some(0), 1 << 19), "all memory is given back");
    }

    #[test]
    fn an_unfinished_header_list_stays_charged() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Memory, 1 << 20, 0));
        let memory = ConnectionMemory::new(&pool, None);
        assert!(
            memory
                .admit(HeaderFrame { payload_bytes: 100, begins_list: true, opens_stream: true, is_forbidden: false })
                .is_continue()
        );
        memory.set_in_header_list(true);
        memory.set_input_drained(true);
        memory.release_pending();
        assert_eq!(taken_bytes(&memory), 100 * FIELD_BYTES + STREAM_BYTES + RETAINED_BYTES);
        memory.set_in_header_list(false);
        memory.set_input_drained(true);
        memory.release_pending();
        assert_eq!(taken_bytes(&memory), RETAINED_BYTES, "hyper keeps the stream that became no request");
    }

    #[test]
    fn refused_streams_stay_charged_while_hyper_keeps_them() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Memory, 1 << 20, 0));
        let memory = ConnectionMemory::new(&pool, None);
        for _ in 0..3 * MAX_REFUSED_STREAMS {
            let frame = HeaderFrame { payload_bytes: 1, begins_list: true, opens_stream: true, is_forbidden: false };
            assert!(memory.admit(frame).is_continue());
            memory.set_input_drained(true);
            memory.release_pending();
        }
        assert_eq!(taken_bytes(&memory), MAX_REFUSED_STREAMS * RETAINED_BYTES);
    }

    #[test]
    fn an_hpack_table_is_charged_or_the_connection_ends() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Memory, 1 << 16, 0));
        let memory = ConnectionMemory::new(&pool, None);
        memory.set_table_bytes(1000);
        memory.set_table_bytes(300);
        assert_eq!((taken_bytes(&memory), memory.is_refusing()), (300, false));
        // The memory taken for a header list covers what the list adds to the table.
        assert!(
            memory
                .admit(HeaderFrame { payload_bytes: 100, begins_list: true, opens_stream: true, is_forbidden: false })
                .is_continue()
        );
        let before = taken_bytes(&memory);
        memory.set_table_bytes(300 + 100 * FIELD_BYTES);
        assert_eq!((taken_bytes(&memory), memory.is_refusing()), (before, false));
        memory.set_table_bytes(1 << 17);
        assert_eq!((taken_bytes(&memory), memory.is_refusing()), (before, true));
    }

    #[tokio::test]
    async fn a_connection_that_holds_memory_without_a_stream_is_blocked() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Memory, 1 << 20, 0));
        let memory = ConnectionMemory::new(&pool, None);
        assert_eq!(memory.blocked_since(), None);
        memory.set_table_bytes(100);
        let first_blocked = memory.blocked_since().unwrap();
        let stream = memory.open_stream(&request("/a")).unwrap();
        assert_eq!(memory.blocked_since(), None);
        drop(stream);
        assert_eq!(memory.blocked_since(), None, "its last frame is not sent yet");
        memory.release_flushed();
        assert!(memory.blocked_since().unwrap() > first_blocked);
        memory.refuse(GoawayReason::BlockedTooLong);
        memory.refuse(GoawayReason::NoTableMemory);
        assert_eq!(memory.wait_for_refusal().await, GoawayReason::BlockedTooLong);
    }

    #[tokio::test]
    async fn a_connection_that_waits_for_memory_is_not_idle() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Memory, 1 << 16, 0));
        let memory = ConnectionMemory::new(&pool, Some(Arc::default()));
        memory.set_table_bytes(100);
        *memory.idle_since.lock().unwrap() -= MIN_STREAMLESS_IDLE;
        let mut reclaim = Box::pin(memory.wait_for_reclaim());
        assert!(futures_util::poll!(&mut reclaim).is_pending());
        memory.is_waiting.store(true, Ordering::Relaxed);
        memory.request_reclaim();
        assert!(futures_util::poll!(&mut reclaim).is_pending());
        memory.is_waiting.store(false, Ordering::Relaxed);
        memory.request_reclaim();
        assert!(futures_util::poll!(&mut reclaim).is_ready());
    }

    #[test]
    fn one_address_gets_half_of_the_pool_for_any_number_of_connections() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Memory, 1 << 20, 0));
        let address = Arc::<AddressMemory>::default();
        let memories: Vec<_> = (0..100).map(|_| ConnectionMemory::new(&pool, Some(Arc::clone(&address)))).collect();
        assert_eq!(memories.iter().filter(|memory| memory.try_take(1 << 14)).count(), 32);
        let other = ConnectionMemory::new(&pool, Some(Arc::default()));
        assert!(other.try_take(1 << 14) && !other.try_take(1 << 18));
        drop(memories);
        assert_eq!(address.memory_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn frames_of_a_header_list_are_charged_for_at_most_its_maximum_fields() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Memory, 2 << 20, 0));
        let memory = ConnectionMemory::new(&pool, None);
        let header_frame = |begins_list| HeaderFrame {
            payload_bytes: 16 << 10,
            begins_list,
            opens_stream: begins_list,
            is_forbidden: false,
        };
        for number in 1..=2 {
            for begins_list in [true, false, false, false, false, false] {
                assert!(memory.admit(header_frame(begins_list)).is_continue());
            }
            assert_eq!(taken_bytes(&memory), number * (MAX_HEADER_LIST_BYTES + STREAM_BYTES + RETAINED_BYTES));
        }
    }

    #[test]
    fn a_long_head_is_charged_or_refused() {
        let pool = Arc::new(DynamicThresholdPool::new(ConnectionPoolLabel::Memory, 1 << 18, 0));
        let memory = ConnectionMemory::new(&pool, None);
        let long = request(&format!("/{}", "a".repeat(40_000)));
        let stream = memory.open_stream(&long).unwrap();
        assert!(taken_bytes(&memory) > HEAD_COPIES * 37_000);
        assert!(memory.open_stream(&long).is_none());
        drop(stream);
        memory.release_flushed();
        assert!(memory.open_stream(&long).is_some());
    }
}
