//! Memory of connections: what each may take besides its fixed share comes from a pool of all.
//!
//! The fixed share ([`crate::config::Config::connections_bytes`]) covers a connection with the HTTP library, without
//! streams and with a head of ordinary length. Streams of HTTP/2 and long heads are charged to the pool before the
//! library sees them; a connection for which there is nothing left is not read further.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::http::request::Parts;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::frames::HeaderFrame;
use super::pool::SharedPool;
use super::refusal::Refusal;

/// An open stream: its state in the library, the task that answers it and a short answer. 2.9 KiB were measured for an
/// answered 404 that the client does not take, 5.3 KiB at the peak.
const STREAM_BYTES: usize = 13 << 9;

/// The library keeps this for each of the most streams that a connection had at once (1.45 KiB measured).
const RETAINED_BYTES: usize = 3 << 9;

/// Most streams of one connection that the library keeps although no requests have come of them: malformed ones, too long
/// ones, and those that were reset immediately. It allows no more than this at a time.
const MOST_REFUSED: usize = super::library::STREAMS as usize;

/// Memory of one field of a header list. On the wire it may be one byte, an index of HPACK (RFC 7541, section 6.1).
const FIELD_BYTES: usize = 96;

/// Most memory of the fields of one header list: the library drops fields beyond `HEADER_BYTES`, of which each counts
/// for 33 bytes at least (RFC 9113, section 6.5.2).
const HEADER_LIST_BYTES: usize = super::connections::HEADER_BYTES / 33 * FIELD_BYTES;

/// A request's head of this length is part of [`STREAM_BYTES`].
const SHORT_HEAD_BYTES: usize = 2 << 10;

/// A head is held as it came, as parsed, and as a problem repeats it.
pub(super) const HEAD_COPIES: usize = 3;

/// Most fields of a request, as of HTTP/1 in the library.
pub(super) const MOST_FIELDS: usize = 100;

/// Most cookies that are not counted among them.
pub(super) const MOST_COOKIES: usize = 200;

/// Frames of header lists on one connection before others get their turn: more than the requests that a client may take back
/// before they are looked at, which the library then hangs up on (20, CVE-2023-44487). One of [`TURN_FRAME_BYTES`] counts as two,
/// for each of its bytes may be a field.
const TURN_FRAMES: usize = 64;
const TURN_FRAME_BYTES: usize = 128;

/// Frames that one read from the socket counts as, so that thousands of connections that send all they can take turns after some
/// ten microseconds each.
const RECEIVE_FRAMES: usize = 16;

/// Idle connections that are asked for memory at once.
const ASKED: usize = 4;

/// Time without a stream after which a connection counts as idle; a client that sends requests one after the other pauses for
/// less.
const LEAST_IDLE: Duration = Duration::from_millis(500);

/// An address that holds less memory for streams than this can use the part of the pool that is kept for such addresses. It is enough
/// for a head of up to 597 bytes on the wire, each of which may be a field: a browser's first one, unless it has long cookies.
pub(super) const ASSURED_BYTES: usize = 64 << 10;
const _: () = assert!(597 * FIELD_BYTES + STREAM_BYTES + RETAINED_BYTES <= ASSURED_BYTES);

/// The bytes that all connections of one address have taken from the pools.
#[derive(Debug, Default)]
pub(super) struct AddressMemory {
    /// Of the pool for streams and long heads.
    bytes: AtomicUsize,
    /// Of the pool of send queues.
    pub(super) queued_bytes: AtomicUsize,
    /// One of its idle connections is to give back what it does not need.
    asked: Notify,
}

/// What one connection has taken from the pool; given back when dropped. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Charge(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    pool: Arc<SharedPool>,
    /// What all connections of the client's address have taken; `None` where an address stands for many clients.
    of_address: Option<Arc<AddressMemory>>,
    taken_bytes: AtomicUsize,
    /// Taken for header lists that the library has been given and has made no requests of yet.
    undelivered_bytes: AtomicUsize,
    in_header_list: AtomicBool,
    /// Taken for the fields of the header list that was begun last.
    list_bytes: AtomicUsize,
    is_drained: AtomicBool,
    /// Taken for streams that have ended here, whose last frames the library may still hold.
    unflushed_bytes: AtomicUsize,
    /// Taken for what the library's table of header fields holds.
    table_bytes: AtomicUsize,
    /// Streams that the library was given and has made no requests of yet, and those of which it never will.
    undelivered_streams: AtomicUsize,
    refused_streams: AtomicUsize,
    open_streams: AtomicUsize,
    most_streams: AtomicUsize,
    /// Whether a frame was received for which there is no memory.
    is_waiting: AtomicBool,
    /// When the last stream ended.
    idle_since: Mutex<Instant>,
    refusing: Notify,
    /// Why the connection is to be ended.
    refusal: OnceLock<Refusal>,
    turn_frames: AtomicUsize,
}

impl Charge {
    /// A connection of an address of which all connections together have `of_address`.
    pub(super) fn new(pool: &Arc<SharedPool>, of_address: Option<Arc<AddressMemory>>) -> Self {
        Self(Arc::new(Inner {
            pool: Arc::clone(pool),
            of_address,
            taken_bytes: AtomicUsize::new(0),
            undelivered_bytes: AtomicUsize::new(0),
            in_header_list: AtomicBool::new(false),
            list_bytes: AtomicUsize::new(0),
            is_drained: AtomicBool::new(false),
            unflushed_bytes: AtomicUsize::new(0),
            table_bytes: AtomicUsize::new(0),
            undelivered_streams: AtomicUsize::new(0),
            refused_streams: AtomicUsize::new(0),
            open_streams: AtomicUsize::new(0),
            most_streams: AtomicUsize::new(0),
            is_waiting: AtomicBool::new(false),
            idle_since: Mutex::new(Instant::now()),
            refusing: Notify::new(),
            refusal: OnceLock::new(),
            turn_frames: AtomicUsize::new(0),
        }))
    }

    /// Takes `bytes`, where the pool and the address's part of it allow it. Returns true if it took them. Threads that ask for
    /// the same address at once may exceed its part a little.
    pub(super) fn try_take(&self, bytes: usize) -> bool {
        let Inner { pool, of_address, taken_bytes, .. } = &*self.0;
        let held = of_address.as_ref().map(|held| held.bytes.load(Ordering::Relaxed));
        if !pool.try_take(held, bytes) {
            return false;
        }
        taken_bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(held) = of_address {
            held.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        true
    }

    /// Gives back bytes that were taken.
    pub(super) fn give_back(&self, bytes: usize) {
        self.0.taken_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.0.returned(bytes);
    }

    /// The connection has its turn among those of its thread.
    pub(super) fn begin_turn(&self) {
        self.0.turn_frames.store(0, Ordering::Relaxed);
    }

    /// Counts a read from the socket in this turn.
    pub(super) fn count_receive(&self) {
        self.0.turn_frames.fetch_add(RECEIVE_FRAMES, Ordering::Relaxed);
    }

    /// Whether as many frames were admitted in this turn as there may be.
    pub(super) fn is_turn_over(&self) -> bool {
        self.0.turn_frames.load(Ordering::Relaxed) >= TURN_FRAMES
    }

    /// Admits no further frame: the connection is to be ended. The first reason counts.
    pub(super) fn refuse_more(&self, reason: Refusal) {
        self.0.refusal.get_or_init(|| reason);
        self.0.refusing.notify_one();
    }

    /// Whether [`Self::refuse_more`] was called.
    pub(super) fn is_refusing(&self) -> bool {
        self.refusal().is_some()
    }

    /// The reason of [`Self::refuse_more`], once it was called.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.0.refusal.get().copied()
    }

    /// Ready after [`Self::refuse_more`]; returns its reason.
    pub(super) async fn refusing(&self) -> Refusal {
        loop {
            self.0.refusing.notified().await;
            if let Some(reason) = self.0.refusal.get() {
                return *reason;
            }
        }
    }

    /// Since when it has had no stream that could end and give back memory; `None` where it has one, holds nothing, or its last
    /// answer is still being sent.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        let holds = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed) > 0;
        let inner = &*self.0;
        let is_blocked = inner.open_streams.load(Ordering::Relaxed) == 0
            && holds(&inner.taken_bytes)
            && !holds(&inner.unflushed_bytes);
        is_blocked.then(|| *inner.idle_since.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes whether the connection waits for memory.
    pub(super) fn set_waiting(&self, is_so: bool) {
        self.0.is_waiting.store(is_so, Ordering::Relaxed);
    }

    /// Asks idle connections to give back what the library retains for the streams that they had: those of the same address
    /// where it has a large part of all.
    pub(super) fn ask_idle(&self) {
        let of_address = self.0.of_address.as_ref();
        let own = of_address.filter(|held| self.0.pool.is_much(held.bytes.load(Ordering::Relaxed)));
        for _ in 0..ASKED {
            match own {
                Some(own) => own.asked.notify_one(),
                None => self.0.pool.ask(),
            }
        }
    }

    /// Ready when others need what the library retains for this connection, and it has been idle for a while.
    pub(super) async fn asked_when_idle(&self) {
        loop {
            let by_own = async {
                match &self.0.of_address {
                    Some(own) => own.asked.notified().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.pool.asked() => {}
                () = by_own => {}
            }
            let since = *self.0.idle_since.lock().unwrap_or_else(PoisonError::into_inner);
            let has_any = self.0.taken_bytes.load(Ordering::Relaxed) > 0;
            if has_any && self.is_idle() && since.elapsed() >= LEAST_IDLE {
                return;
            }
        }
    }

    /// Whether no stream is open, and none waits for memory to be opened.
    pub(super) fn is_idle(&self) -> bool {
        self.0.open_streams.load(Ordering::Relaxed) == 0
            && self.0.undelivered_streams.load(Ordering::Relaxed) == 0
            && !self.0.is_waiting.load(Ordering::Relaxed)
    }

    /// Takes memory for a frame of a header list before the library sees it; breaks where there is none, or no further
    /// frame is admitted.
    pub(super) fn admit(&self, frame: HeaderFrame) -> ControlFlow<()> {
        if frame.is_forbidden {
            self.refuse_more(Refusal::Forbidden);
        }
        if self.is_refusing() {
            return ControlFlow::Break(());
        }
        let listed = if frame.begins_list { 0 } else { self.0.list_bytes.load(Ordering::Relaxed) };
        let fields = frame.payload_bytes.saturating_mul(FIELD_BYTES).min(HEADER_LIST_BYTES.saturating_sub(listed));
        let stream = if frame.opens_stream { STREAM_BYTES + RETAINED_BYTES } else { 0 };
        if !self.try_take(fields + stream) {
            return ControlFlow::Break(());
        }
        self.0.list_bytes.store(listed + fields, Ordering::Relaxed);
        self.0.undelivered_bytes.fetch_add(fields + stream, Ordering::Relaxed);
        self.0.undelivered_streams.fetch_add(usize::from(frame.opens_stream), Ordering::Relaxed);
        self.0.turn_frames.fetch_add(1 + frame.payload_bytes / TURN_FRAME_BYTES, Ordering::Relaxed);
        ControlFlow::Continue(())
    }

    /// Takes memory for what the library's table of header fields holds: of what was taken for the header list that it grew by, or
    /// more. Where there is none, the connection is to be ended.
    pub(super) fn hold_table(&self, bytes: usize) {
        let held = self.0.table_bytes.load(Ordering::Relaxed);
        if bytes <= held {
            self.0.table_bytes.store(bytes, Ordering::Relaxed);
            self.give_back(held - bytes);
            return;
        }
        let undelivered = self.0.undelivered_bytes.load(Ordering::Relaxed);
        let streams = self.0.undelivered_streams.load(Ordering::Relaxed) * (STREAM_BYTES + RETAINED_BYTES);
        let moved = (bytes - held).min(undelivered.saturating_sub(streams));
        if self.try_take(bytes - held - moved) {
            self.0.undelivered_bytes.fetch_sub(moved, Ordering::Relaxed);
            self.0.table_bytes.store(bytes, Ordering::Relaxed);
        } else {
            self.refuse_more(Refusal::Table);
        }
    }

    /// Notes whether the library has a part of a header list.
    pub(super) fn set_in_header_list(&self, is_so: bool) {
        self.0.in_header_list.store(is_so, Ordering::Relaxed);
    }

    /// Notes whether the library has read all that it was given, and wants more.
    pub(super) fn set_drained(&self, is_so: bool) {
        self.0.is_drained.store(is_so, Ordering::Relaxed);
    }

    /// To be called when the library waits: where it has read all that it was given, it has made requests of all whole header
    /// lists, or refused them. Gives back what was taken for more than came of them; the library keeps the refused streams for a
    /// while.
    pub(super) fn settle(&self) {
        let (is_drained, in_list) = (&self.0.is_drained, &self.0.in_header_list);
        if self.0.undelivered_bytes.load(Ordering::Relaxed) > 0
            && is_drained.load(Ordering::Relaxed)
            && !in_list.load(Ordering::Relaxed)
        {
            let refused = self.0.undelivered_streams.swap(0, Ordering::Relaxed);
            let known = self.0.refused_streams.load(Ordering::Relaxed);
            let more = refused.min(MOST_REFUSED.saturating_sub(known));
            self.0.refused_streams.store(known + more, Ordering::Relaxed);
            let undelivered = self.0.undelivered_bytes.swap(0, Ordering::Relaxed);
            self.give_back(undelivered.saturating_sub(more * RETAINED_BYTES));
        }
    }

    /// A stream with this request, or `None` where there is no memory for a head of its length.
    pub(super) fn open_stream(&self, request: &Parts) -> Option<StreamCharge> {
        let inner = &*self.0;
        let path = request.uri.path_and_query().map_or(0, |path| path.as_str().len());
        let head: usize = request
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len())
            .fold(path, usize::saturating_add);
        let live = STREAM_BYTES + head.saturating_sub(SHORT_HEAD_BYTES).saturating_mul(HEAD_COPIES);
        let streams = inner.open_streams.load(Ordering::Relaxed) + 1;
        let is_most = streams > inner.most_streams.load(Ordering::Relaxed);
        let needed = if is_most { live + RETAINED_BYTES } else { live };
        let undelivered = inner.undelivered_bytes.load(Ordering::Relaxed);
        let delivered = undelivered.min(needed);
        if needed > delivered && !self.try_take(needed - delivered) {
            return None;
        }
        inner.undelivered_bytes.fetch_sub(delivered, Ordering::Relaxed);
        inner
            .undelivered_streams
            .store(inner.undelivered_streams.load(Ordering::Relaxed).saturating_sub(1), Ordering::Relaxed);
        inner.open_streams.store(streams, Ordering::Relaxed);
        if is_most {
            inner.most_streams.store(streams, Ordering::Relaxed);
        }
        Some(StreamCharge { connection: self.clone(), bytes: live })
    }

    /// The library holds no frame that could be sent.
    pub(super) fn flushed(&self) {
        if self.0.unflushed_bytes.load(Ordering::Relaxed) > 0 {
            self.give_back(self.0.unflushed_bytes.swap(0, Ordering::Relaxed));
        }
    }
}

impl Inner {
    fn returned(&self, bytes: usize) {
        self.pool.give_back(bytes);
        if let Some(held) = &self.of_address {
            held.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.returned(self.taken_bytes.load(Ordering::Relaxed));
    }
}

/// What an open stream has taken, until it is dropped and its last frame is sent.
#[derive(Debug)]
pub(super) struct StreamCharge {
    connection: Charge,
    bytes: usize,
}

impl Drop for StreamCharge {
    fn drop(&mut self) {
        if self.connection.0.open_streams.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.connection.0.idle_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        }
        self.connection.0.unflushed_bytes.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;
    use crate::metrics::ConnectionPool;

    fn request(path: &str) -> Parts {
        Request::get(path).body(()).unwrap().into_parts().0
    }

    fn taken(charge: &Charge) -> usize {
        charge.0.taken_bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn a_stream_is_paid_for_from_its_frame_to_its_last_byte() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Memory, 1 << 20, 0));
        let charge = Charge::new(&pool, None);
        assert!(
            charge
                .admit(HeaderFrame { payload_bytes: 50, begins_list: true, opens_stream: true, is_forbidden: false })
                .is_continue()
        );
        let stream = charge.open_stream(&request("/a")).unwrap();
        charge.set_drained(true);
        charge.settle();
        assert_eq!(taken(&charge), STREAM_BYTES + RETAINED_BYTES);
        drop(stream);
        charge.set_drained(true);
        charge.settle();
        assert_eq!(taken(&charge), STREAM_BYTES + RETAINED_BYTES, "it may not be sent yet");
        charge.flushed();
        assert_eq!(taken(&charge), RETAINED_BYTES);
        // The next uses what the library has kept.
        let stream = charge.open_stream(&request("/a")).unwrap();
        assert_eq!(taken(&charge), STREAM_BYTES + RETAINED_BYTES);
        drop((stream, charge));
        assert!(pool.try_take(Some(0), 1 << 19), "all is given back");
    }

    #[test]
    fn an_unfinished_header_list_stays_paid_for() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Memory, 1 << 20, 0));
        let charge = Charge::new(&pool, None);
        assert!(
            charge
                .admit(HeaderFrame { payload_bytes: 100, begins_list: true, opens_stream: true, is_forbidden: false })
                .is_continue()
        );
        charge.set_in_header_list(true);
        charge.set_drained(true);
        charge.settle();
        assert_eq!(taken(&charge), 100 * FIELD_BYTES + STREAM_BYTES + RETAINED_BYTES);
        charge.set_in_header_list(false);
        charge.set_drained(true);
        charge.settle();
        assert_eq!(taken(&charge), RETAINED_BYTES, "the library keeps the stream that became no request");
    }

    #[test]
    fn refused_streams_stay_paid_for_as_far_as_the_library_keeps_them() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Memory, 1 << 20, 0));
        let charge = Charge::new(&pool, None);
        for _ in 0..3 * MOST_REFUSED {
            let frame = HeaderFrame { payload_bytes: 1, begins_list: true, opens_stream: true, is_forbidden: false };
            assert!(charge.admit(frame).is_continue());
            charge.set_drained(true);
            charge.settle();
        }
        assert_eq!(taken(&charge), MOST_REFUSED * RETAINED_BYTES);
    }

    #[test]
    fn a_table_is_paid_for_or_the_connection_ends() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Memory, 1 << 16, 0));
        let charge = Charge::new(&pool, None);
        charge.hold_table(1000);
        charge.hold_table(300);
        assert_eq!((taken(&charge), charge.is_refusing()), (300, false));
        // A header list has paid for what it adds.
        assert!(
            charge
                .admit(HeaderFrame { payload_bytes: 100, begins_list: true, opens_stream: true, is_forbidden: false })
                .is_continue()
        );
        let before = taken(&charge);
        charge.hold_table(300 + 100 * FIELD_BYTES);
        assert_eq!((taken(&charge), charge.is_refusing()), (before, false));
        charge.hold_table(1 << 17);
        assert_eq!((taken(&charge), charge.is_refusing()), (before, true));
    }

    #[tokio::test]
    async fn a_connection_that_holds_memory_without_a_stream_is_blocked() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Memory, 1 << 20, 0));
        let charge = Charge::new(&pool, None);
        assert_eq!(charge.blocked_since(), None);
        charge.hold_table(100);
        let begun = charge.blocked_since().unwrap();
        let stream = charge.open_stream(&request("/a")).unwrap();
        assert_eq!(charge.blocked_since(), None);
        drop(stream);
        assert_eq!(charge.blocked_since(), None, "it is not sent yet");
        charge.flushed();
        assert!(charge.blocked_since().unwrap() > begun);
        charge.refuse_more(Refusal::Blocked);
        charge.refuse_more(Refusal::Table);
        assert_eq!(charge.refusing().await, Refusal::Blocked);
    }

    #[tokio::test]
    async fn a_connection_that_waits_for_memory_is_not_idle() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Memory, 1 << 16, 0));
        let charge = Charge::new(&pool, Some(Arc::default()));
        charge.hold_table(100);
        *charge.0.idle_since.lock().unwrap() -= LEAST_IDLE;
        let mut asked = Box::pin(charge.asked_when_idle());
        assert!(futures_util::poll!(&mut asked).is_pending());
        charge.set_waiting(true);
        charge.ask_idle();
        assert!(futures_util::poll!(&mut asked).is_pending());
        charge.set_waiting(false);
        charge.ask_idle();
        assert!(futures_util::poll!(&mut asked).is_ready());
    }

    #[test]
    fn one_address_has_half_of_the_pool_over_however_many_connections() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Memory, 1 << 20, 0));
        let address = Arc::<AddressMemory>::default();
        let charges: Vec<_> = (0..100).map(|_| Charge::new(&pool, Some(Arc::clone(&address)))).collect();
        assert_eq!(charges.iter().filter(|charge| charge.try_take(1 << 14)).count(), 32);
        let other = Charge::new(&pool, Some(Arc::default()));
        assert!(other.try_take(1 << 14) && !other.try_take(1 << 18));
        drop(charges);
        assert_eq!(address.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn all_frames_of_a_header_list_together_take_what_its_fields_can() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Memory, 2 << 20, 0));
        let charge = Charge::new(&pool, None);
        let list = |begins_list| HeaderFrame {
            payload_bytes: 16 << 10,
            begins_list,
            opens_stream: begins_list,
            is_forbidden: false,
        };
        for number in 1..=2 {
            for begins_list in [true, false, false, false, false, false] {
                assert!(charge.admit(list(begins_list)).is_continue());
            }
            assert_eq!(taken(&charge), number * (HEADER_LIST_BYTES + STREAM_BYTES + RETAINED_BYTES));
        }
    }

    #[test]
    fn a_long_head_is_paid_for_or_refused() {
        let pool = Arc::new(SharedPool::new(ConnectionPool::Memory, 1 << 18, 0));
        let charge = Charge::new(&pool, None);
        let long = request(&format!("/{}", "a".repeat(40_000)));
        let stream = charge.open_stream(&long).unwrap();
        assert!(taken(&charge) > HEAD_COPIES * 37_000);
        assert!(charge.open_stream(&long).is_none());
        drop(stream);
        charge.flushed();
        assert!(charge.open_stream(&long).is_some());
    }
}
