//! Watchdog of HTTP/2 connections. It ends a connection whose client does not read its responses, and a connection that
//! has been idle for too long.
//!
//! The socket's write timeout does not detect such a client. It can keep the flow control windows of its streams
//! closed, or open them by one byte from time to time, and still answer pings.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::connection_memory::StreamMemory;
use crate::telemetry::metrics::CloseReason;

/// Number of bytes that a stream must send to count as advanced. If fewer bytes are pending, the stream must send
/// those.
const MIN_PROGRESS_BYTES: u64 = 16 << 10;

/// Minimum size of a large step: a client that receives this many bytes between two checks opens its flow control
/// windows in large steps. It may take more time before the next step.
const LARGE_STEP_BYTES: u64 = 64 << 10;

/// Factor of the time limit: a connection ends if none of its streams advances for this many times
/// [`Http2Watchdog::stall_limit`].
const STALL_FACTOR: u32 = 2;

/// Factor of the longer time limit: a connection ends if one stream does not advance for this many times
/// [`Http2Watchdog::stall_limit`], even if other streams do. Replaces [`STALL_FACTOR`] for a client that opens its
/// windows in large steps.
const LONG_STALL_FACTOR: u32 = 4;

/// Number of checks during [`Http2Watchdog::stall_limit`].
const CHECKS_PER_STALL: u32 = 4;

/// Shortest time between two checks.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Watchdog of an HTTP/2 connection and its streams.
#[derive(Debug, Default)]
pub(crate) struct Http2Watchdog {
    /// Base limit of the time that a client may go without accepting any bytes. [`STALL_FACTOR`] and
    /// [`LONG_STALL_FACTOR`] multiply this limit.
    stall_limit: Duration,
    /// Maximum time that a connection may stay open without a stream.
    idle_limit: Duration,
    state: Mutex<WatchdogState>,
    /// Number of streams opened so far.
    opened_streams: AtomicU64,
    /// Number of body pieces that were sent completely.
    finished_pieces: AtomicU64,
    /// True if no bytes were pending at the last check. The next body piece then wakes the watchdog.
    ///
    /// The flag and the counters of pending bytes are sequentially consistent. The watchdog sets the flag and then
    /// reads the counters. A body piece adds to its counter and then reads the flag. At least one of the two thus sees
    /// the other's write.
    is_parked: AtomicBool,
    /// Notified when a body piece finds that the watchdog is parked.
    sending_started: Notify,
    /// True if the server is shutting down. A connection then ends when no stream has advanced for
    /// [`Http2Watchdog::stall_limit`] alone.
    is_shutting_down: AtomicBool,
}

/// State of the connection at the last check.
#[derive(Debug, Default)]
struct WatchdogState {
    streams: Vec<WatchedStream>,
    last_opened: u64,
    last_finished: u64,
    /// Time of the last check that found a stream.
    last_busy_at: Option<Instant>,
    /// Time since which bytes have been pending and no stream has advanced. `None` if no bytes are pending.
    stalled_since: Option<Instant>,
}

/// State of a stream at the last check.
#[derive(Debug)]
struct WatchedStream {
    tracker: Weak<StreamTracker>,
    /// Bytes sent when the stream last advanced.
    last_sent_bytes: u64,
    /// Number of bytes that the stream must send to count as advanced.
    needed_bytes: u64,
    last_advanced_at: Option<Instant>,
    takes_large_steps: bool,
}

/// Counts the body bytes of a stream. The pieces of the body update the counters, and the watchdog reads them.
#[derive(Debug)]
pub(crate) struct StreamTracker {
    pending_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    /// Memory of the stream, held until its last piece is sent.
    _memory: Option<StreamMemory>,
    watchdog: Arc<Http2Watchdog>,
}

impl Http2Watchdog {
    /// Creates the watchdog of a connection without streams.
    pub(crate) fn new(stall_limit: Duration, idle_limit: Duration) -> Arc<Self> {
        Arc::new(Self { stall_limit, idle_limit, ..Self::default() })
    }

    /// Tracks a stream until the tracker and all pieces of the body are dropped. Holds `memory` until then. `memory` is
    /// `None` in tests.
    pub(crate) fn track(self: &Arc<Self>, memory: Option<StreamMemory>) -> Arc<StreamTracker> {
        let tracker = Arc::new(StreamTracker {
            pending_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            _memory: memory,
            watchdog: Arc::clone(self),
        });
        let stream = WatchedStream {
            tracker: Arc::downgrade(&tracker),
            last_sent_bytes: 0,
            needed_bytes: 0,
            last_advanced_at: None,
            takes_large_steps: false,
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.streams.len() == state.streams.capacity() {
            // Checks may be rare. Streams that have ended since the last check must not accumulate.
            state.streams.retain(|stream| stream.tracker.strong_count() > 0);
        }
        state.streams.push(stream);
        self.opened_streams.fetch_add(1, Ordering::Relaxed);
        tracker
    }

    /// Reduces the limit for stalled streams to [`Http2Watchdog::stall_limit`], because the server is shutting down.
    pub(crate) fn begin_shutdown(&self) {
        self.is_shutting_down.store(true, Ordering::Relaxed);
    }

    /// Waits until the connection must end, and returns the reason. May be dropped and called again.
    ///
    /// - `SendTimeout`: no stream advanced for twice [`Http2Watchdog::stall_limit`], although bytes were pending and no
    ///   response was being prepared. Or one stream did not advance for four times that limit. A stream advances when
    ///   it sends 16 KiB, or all of its pending bytes if it has fewer.
    /// - `Idle`: there was no stream during [`Http2Watchdog::idle_limit`].
    pub(crate) async fn wait_for_timeout(&self) -> CloseReason {
        loop {
            let pause = self.next_check_in(Instant::now());
            // The check measures the time itself, so waking early or late does no harm.
            let _ = tokio::time::timeout(pause, self.sending_started.notified()).await;
            if let Some(reason) = self.check(Instant::now()) {
                return reason;
            }
        }
    }

    /// Returns how long to wait until the next check.
    fn next_check_in(&self, now: Instant) -> Duration {
        // Set before the streams are read, so that bytes that become pending afterwards wake the watchdog.
        self.is_parked.store(true, Ordering::SeqCst);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_pending = |stream: &WatchedStream| {
            stream.tracker.upgrade().is_some_and(|tracker| tracker.pending_bytes.load(Ordering::SeqCst) > 0)
        };
        if state.streams.iter().any(is_pending) {
            self.is_parked.store(false, Ordering::SeqCst);
            return (self.stall_limit / CHECKS_PER_STALL).max(MIN_CHECK_INTERVAL);
        }
        let idle_deadline = state.last_busy_at.unwrap_or(now) + self.idle_limit;
        idle_deadline.saturating_duration_since(now).max(MIN_CHECK_INTERVAL)
    }

    /// Compares all streams with their state at the last check. Returns the reason if the connection must end.
    fn check(&self, now: Instant) -> Option<CloseReason> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = self.opened_streams.load(Ordering::Relaxed);
        let finished = self.finished_pieces.load(Ordering::Relaxed);
        // Notices a request that began and ended between two checks.
        let was_busy = std::mem::replace(&mut state.last_opened, opened) != opened;
        // Notices a short response that was sent between two checks.
        let has_finished = std::mem::replace(&mut state.last_finished, finished) != finished;
        let mut summary = StreamSummary { has_progress: has_finished, ..StreamSummary::default() };
        state.streams.retain_mut(|stream| stream.check(now, &mut summary));
        if was_busy || !state.streams.is_empty() {
            state.last_busy_at = Some(now);
        } else if now.duration_since(*state.last_busy_at.get_or_insert(now)) >= self.idle_limit {
            state.last_busy_at = Some(now);
            return Some(CloseReason::Idle);
        }
        state.stalled_since = match state.stalled_since {
            _ if !summary.has_pending => None,
            Some(since) if !summary.has_progress => Some(since),
            _ => Some(now),
        };
        let stall_factor = match (self.is_shutting_down.load(Ordering::Relaxed), summary.has_large_steps) {
            (true, _) => 1,
            (false, true) => LONG_STALL_FACTOR,
            (false, false) => STALL_FACTOR,
        };
        let is_stalled =
            state.stalled_since.is_some_and(|since| now.duration_since(since) >= self.stall_limit * stall_factor);
        (is_stalled || summary.longest_stall >= self.stall_limit * LONG_STALL_FACTOR)
            .then_some(CloseReason::SendTimeout)
    }
}

/// Summary of all streams of a connection at one check.
#[derive(Debug, Default)]
struct StreamSummary {
    /// True if a stream has advanced, or its response is still being prepared.
    has_progress: bool,
    has_pending: bool,
    has_large_steps: bool,
    longest_stall: Duration,
}

impl WatchedStream {
    /// Compares the stream with its state at the last check and adds the result to `summary`. Returns false if the
    /// stream has ended.
    fn check(&mut self, now: Instant, summary: &mut StreamSummary) -> bool {
        let Some(tracker) = self.tracker.upgrade() else { return false };
        let pending_bytes = tracker.pending_bytes.load(Ordering::SeqCst);
        let sent_bytes = tracker.sent_bytes.load(Ordering::Relaxed);
        let advanced_bytes = sent_bytes - self.last_sent_bytes;
        match self.last_advanced_at {
            _ if pending_bytes == 0 => {
                // The response is still being prepared.
                summary.has_progress = true;
                self.last_advanced_at = None;
            }
            Some(since) if advanced_bytes < self.needed_bytes => {
                summary.has_pending = true;
                summary.longest_stall = summary.longest_stall.max(now.duration_since(since));
            }
            since => {
                summary.has_pending = true;
                // A new request does not count as progress.
                summary.has_progress |= since.is_some() || advanced_bytes >= MIN_PROGRESS_BYTES;
                self.takes_large_steps |= advanced_bytes >= LARGE_STEP_BYTES;
                self.last_sent_bytes = sent_bytes;
                self.needed_bytes = pending_bytes.min(MIN_PROGRESS_BYTES);
                self.last_advanced_at = Some(now);
            }
        }
        summary.has_large_steps |= self.takes_large_steps;
        true
    }
}

/// A piece of a body that reports to the tracker of its stream, if there is one, when its bytes are sent or dropped.
#[derive(Debug)]
pub(crate) struct TrackedBytes {
    bytes: Bytes,
    tracker: Option<Arc<StreamTracker>>,
}

impl TrackedBytes {
    /// Creates a piece of the body of `stream`, for hyper to send. If `stream` is `None`, its bytes are not counted.
    pub(crate) fn new(bytes: Bytes, stream: Option<&Arc<StreamTracker>>) -> Self {
        // Empty bytes are never pending.
        let tracker = stream.filter(|_| !bytes.is_empty()).cloned();
        if let Some(StreamTracker { pending_bytes, watchdog, .. }) = tracker.as_deref() {
            pending_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
            if watchdog.is_parked.swap(false, Ordering::SeqCst) {
                watchdog.sending_started.notify_one();
            }
        }
        Self { bytes, tracker }
    }

    fn record_sent(&self, sent: usize) {
        if let Some(stream) = &self.tracker {
            stream.sent_bytes.fetch_add(sent as u64, Ordering::Relaxed);
            stream.pending_bytes.fetch_sub(sent as u64, Ordering::SeqCst);
        }
    }
}

impl Buf for TrackedBytes {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.record_sent(count);
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        let bytes = self.bytes.copy_to_bytes(len);
        self.record_sent(len);
        bytes
    }
}

impl Drop for TrackedBytes {
    /// Subtracts the unsent bytes, if there are any. Otherwise counts the piece as sent completely.
    fn drop(&mut self) {
        if let Some(stream) = &self.tracker {
            stream.pending_bytes.fetch_sub(self.bytes.len() as u64, Ordering::SeqCst);
            if self.bytes.is_empty() {
                stream.watchdog.finished_pieces.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_watchdog() -> Arc<Http2Watchdog> {
        Http2Watchdog::new(Duration::from_secs(10), Duration::from_secs(100))
    }

    /// A connection that is checked every second.
    struct Clock {
        watchdog: Arc<Http2Watchdog>,
        now: Instant,
    }

    impl Clock {
        fn new() -> Self {
            let clock = Self { watchdog: new_watchdog(), now: Instant::now() };
            assert_eq!(clock.watchdog.check(clock.now), None);
            clock
        }

        /// Checks for `seconds` seconds and calls `before_check` before every check. Returns the first timeout and the
        /// second at which it occurred.
        fn pass(&mut self, seconds: u64, mut before_check: impl FnMut(u64)) -> Option<(u64, CloseReason)> {
            (1..=seconds).find_map(|second| {
                self.now += Duration::from_secs(1);
                before_check(second);
                self.watchdog.check(self.now).map(|timeout| (second, timeout))
            })
        }

        fn piece(&self, stream: &Arc<StreamTracker>, len: usize) -> TrackedBytes {
            assert!(Arc::ptr_eq(&stream.watchdog, &self.watchdog));
            TrackedBytes::new(vec![0; len].into(), Some(stream))
        }
    }

    #[test]
    fn a_client_that_takes_almost_nothing_stalls() {
        for bytes in [0, 1] {
            let mut clock = Clock::new();
            let streams: Vec<_> = (0..10).map(|_| clock.watchdog.track(None)).collect();
            let mut pieces: Vec<_> = streams.iter().map(|stream| clock.piece(stream, 1 << 20)).collect();
            let timeout = clock.pass(60, |_| pieces.iter_mut().for_each(|piece| piece.advance(bytes)));
            assert_eq!(timeout, Some((21, CloseReason::SendTimeout)), "{bytes} bytes a second");
        }
    }

    #[test]
    fn a_stalled_stream_is_tolerated_longer_while_others_advance() {
        let mut clock = Clock::new();
        let (stalled, moving) = (clock.watchdog.track(None), clock.watchdog.track(None));
        let (_stalled_piece, mut moving_piece) = (clock.piece(&stalled, 1 << 20), clock.piece(&moving, 1 << 20));
        assert_eq!(clock.pass(60, |_| moving_piece.advance(4000)), Some((41, CloseReason::SendTimeout)));
        // The same holds if the other streams are short responses.
        let mut clock = Clock::new();
        let stalled = clock.watchdog.track(None);
        let _stalled_piece = clock.piece(&stalled, 1 << 20);
        let send_short = |clock: &Arc<Http2Watchdog>| {
            TrackedBytes::new(Bytes::from_static(b"abc"), Some(&clock.track(None))).advance(3);
        };
        let watchdog = Arc::clone(&clock.watchdog);
        assert_eq!(clock.pass(60, |_| send_short(&watchdog)), Some((41, CloseReason::SendTimeout)));
    }

    #[test]
    fn new_requests_are_no_progress() {
        let mut clock = Clock::new();
        let (mut streams, watchdog) = (Vec::new(), Arc::clone(&clock.watchdog));
        let timeout = clock.pass(60, |_| {
            let stream = watchdog.track(None);
            streams.push(TrackedBytes::new(Bytes::from_static(b"abc"), Some(&stream)));
        });
        assert_eq!(timeout, Some((21, CloseReason::SendTimeout)));
    }

    #[test]
    fn an_answer_in_preparation_is_no_stall() {
        let mut clock = Clock::new();
        let _preparing = clock.watchdog.track(None);
        assert_eq!(clock.pass(1000, |_| ()), None);
        let paused = clock.watchdog.track(None);
        let _piece = clock.piece(&paused, 1 << 20);
        assert_eq!(clock.pass(39, |_| ()), None);
    }

    #[test]
    fn a_client_that_takes_large_steps_may_take_them_late() {
        let mut clock = Clock::new();
        let stream = clock.watchdog.track(None);
        let mut piece = clock.piece(&stream, 100 << 20);
        let timeout = clock.pass(300, |second| {
            if second % 35 == 1 {
                piece.advance(1 << 20);
            }
        });
        assert_eq!(timeout, None);
        assert_eq!(clock.pass(60, |_| ()), Some((21, CloseReason::SendTimeout)), "40 seconds after the last step");
    }

    #[test]
    fn a_short_answer_advances_by_all_its_bytes() {
        let mut clock = Clock::new();
        let stream = clock.watchdog.track(None);
        for _ in 0..10 {
            let mut piece = clock.piece(&stream, 100);
            assert_eq!(clock.pass(15, |_| ()), None);
            piece.advance(100);
            drop(piece);
        }
        // Copying zero bytes is not progress, and dropped bytes were not sent.
        let mut piece = clock.piece(&stream, 100);
        assert_eq!(clock.pass(60, |_| drop(piece.copy_to_bytes(0))), Some((21, CloseReason::SendTimeout)));
        drop(piece);
        assert_eq!(clock.pass(60, |_| ()), None);
    }

    #[test]
    fn a_shutdown_shortens_the_stall_limit() {
        let mut clock = Clock::new();
        let stream = clock.watchdog.track(None);
        let _piece = clock.piece(&stream, 1 << 20);
        clock.watchdog.begin_shutdown();
        assert_eq!(clock.pass(60, |_| ()), Some((11, CloseReason::SendTimeout)));
    }

    #[test]
    fn a_connection_without_streams_is_idle() {
        let mut clock = Clock::new();
        let watchdog = Arc::clone(&clock.watchdog);
        // A stream that has ended by the next check counts.
        let timeout = clock.pass(300, |second| {
            if second == 50 {
                drop(watchdog.track(None));
            }
        });
        assert_eq!(timeout, Some((150, CloseReason::Idle)));
        assert_eq!(clock.pass(300, |_| ()), Some((100, CloseReason::Idle)), "and again");
    }

    #[test]
    fn ended_streams_are_removed_without_a_check() {
        let watchdog = new_watchdog();
        for _ in 0..10_000 {
            drop(watchdog.track(None));
        }
        assert!(watchdog.state.lock().unwrap().streams.capacity() < 100);
    }

    #[tokio::test]
    async fn the_watchdog_parks_while_nothing_is_pending_and_wakes_at_the_first_piece() {
        let (stall_limit, idle_limit) = (Duration::from_millis(40), Duration::from_secs(3600));
        let watchdog = Http2Watchdog::new(stall_limit, idle_limit);
        let stream = watchdog.track(None);
        assert!(watchdog.next_check_in(Instant::now()) > 1000 * stall_limit);
        let (timeout, _piece) = tokio::join!(watchdog.wait_for_timeout(), async {
            // Let the other future begin to wait.
            tokio::task::yield_now().await;
            assert!(watchdog.is_parked.load(Ordering::SeqCst));
            TrackedBytes::new(Bytes::from_static(b"abc"), Some(&stream))
        });
        assert_eq!(timeout, CloseReason::SendTimeout);
        let tiny = Http2Watchdog::new(Duration::from_nanos(1), idle_limit);
        let _piece = TrackedBytes::new(Bytes::from_static(b"abc"), Some(&tiny.track(None)));
        assert!(tiny.next_check_in(Instant::now()) >= MIN_CHECK_INTERVAL);
    }
}
