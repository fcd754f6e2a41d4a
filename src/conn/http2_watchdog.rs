//! Watchdog that ends connections of HTTP/2 clients that do not take the answers they requested.
//!
//! The socket's time limit does not detect such a client: it can keep the flow control windows of its streams closed,
//! or open them by a byte now and then, and answer pings for ever.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection_memory::StreamMemory;

/// Bytes that a stream must send to count as advanced; fewer if fewer are pending.
const MIN_PROGRESS_BYTES: u64 = 16 << 10;

/// Bytes taken between two checks that show that a client opens its windows in large steps, which may come late.
const LARGE_STEP_BYTES: u64 = 64 << 10;

/// Multiple of [`WatchdogLimits::stall`] after which a connection ends if none of its streams advances.
const STALL_FACTOR: u32 = 2;

/// As [`STALL_FACTOR`], for one stream while others advance, and for a client that takes large steps.
const LONG_STALL_FACTOR: u32 = 4;

/// Number of checks during [`WatchdogLimits::stall`].
const CHECKS_PER_STALL: u32 = 4;

/// Shortest time between two checks.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Time limits of the watchdog.
#[derive(Debug, Clone, Copy)]
pub(super) struct WatchdogLimits {
    /// Unit of the time limit for a client that takes nothing.
    pub(super) stall: Duration,
    /// Longest time without any stream.
    pub(super) idle: Duration,
}

/// Why the watchdog ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchdogTimeout {
    /// The client takes nothing, or next to nothing, of what it requested.
    Stalled,
    /// The client makes no requests.
    Idle,
}

/// Watchdog of an HTTP/2 connection and its streams.
#[derive(Debug, Default)]
pub(super) struct Http2Watchdog {
    state: Mutex<WatchdogState>,
    /// Number of streams opened so far.
    opened_streams: AtomicU64,
    /// Number of body pieces that were sent whole.
    finished_pieces: AtomicU64,
    /// True if no bytes were pending at the last check: the next pending bytes wake the watchdog.
    is_parked: AtomicBool,
    sending_started: Notify,
    /// True if the server shuts down: the limit is then [`WatchdogLimits::stall`] itself, not a multiple of it.
    is_shutting_down: AtomicBool,
}

/// State of the connection at the last check.
#[derive(Debug, Default)]
struct WatchdogState {
    streams: Vec<WatchedStream>,
    last_opened: u64,
    last_finished: u64,
    /// When a stream was last seen.
    last_busy_at: Option<Instant>,
    /// Since when no stream has advanced although bytes are pending.
    stalled_since: Option<Instant>,
}

/// State of a stream at the last check.
#[derive(Debug)]
struct WatchedStream {
    tracker: Weak<StreamTracker>,
    /// Bytes sent when the stream last advanced.
    last_sent_bytes: u64,
    /// Further bytes that it must send to count as advanced.
    needed_bytes: u64,
    last_advanced_at: Option<Instant>,
    takes_large_steps: bool,
}

/// Reports the body bytes of one stream to the watchdog.
#[derive(Debug)]
pub(super) struct StreamTracker {
    pending_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    /// Memory of the stream, held until its last piece is sent.
    _memory: Option<StreamMemory>,
    watchdog: Arc<Http2Watchdog>,
}

/// Result of checking a stream.
#[derive(Debug, Clone, Copy)]
enum StreamProgress {
    /// The answer is still being prepared.
    Preparing,
    Advanced,
    Stalled(Duration),
}

impl Http2Watchdog {
    /// Tracks a stream, from its request until it and its pieces are dropped.
    pub(super) fn track(self: &Arc<Self>, memory: StreamMemory) -> Arc<StreamTracker> {
        self.track_with(Some(memory))
    }

    fn track_with(self: &Arc<Self>, memory: Option<StreamMemory>) -> Arc<StreamTracker> {
        let (pending_bytes, sent_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let tracker =
            Arc::new(StreamTracker { pending_bytes, sent_bytes, _memory: memory, watchdog: Arc::clone(self) });
        let stream = WatchedStream {
            tracker: Arc::downgrade(&tracker),
            last_sent_bytes: 0,
            needed_bytes: 0,
            last_advanced_at: None,
            takes_large_steps: false,
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.streams.len() == state.streams.capacity() {
            // Checks may be rare, and streams that have ended since must not pile up.
            state.streams.retain(|stream| stream.tracker.strong_count() > 0);
        }
        state.streams.push(stream);
        self.opened_streams.fetch_add(1, Ordering::Relaxed);
        tracker
    }

    /// Reduces the limit to [`WatchdogLimits::stall`] from now on, because the server shuts down.
    pub(super) fn begin_shutdown(&self) {
        self.is_shutting_down.store(true, Ordering::Relaxed);
    }

    /// Waits until the connection must end, and returns why. May be dropped and called again.
    ///
    /// - `Stalled`: for twice [`WatchdogLimits::stall`] no stream advanced, although bytes were pending and no answer
    ///   was being prepared, or one stream did not advance for four times [`WatchdogLimits::stall`]. A stream advances
    ///   when 16 KiB are sent, or all pending bytes if these are fewer.
    /// - `Idle`: there was no stream during [`WatchdogLimits::idle`].
    pub(super) async fn wait_for_timeout(&self, limits: WatchdogLimits) -> WatchdogTimeout {
        loop {
            let pause = self.next_check_in(Instant::now(), limits);
            // It does not matter whether this wakes early or late: the check uses its own time.
            let _ = tokio::time::timeout(pause, self.sending_started.notified()).await;
            if let Some(timeout) = self.check(Instant::now(), limits) {
                return timeout;
            }
        }
    }

    /// Returns how long to wait until the next check.
    fn next_check_in(&self, now: Instant, limits: WatchdogLimits) -> Duration {
        // Set before the streams are checked, so that bytes that become pending afterwards wake the watchdog.
        self.is_parked.store(true, Ordering::SeqCst);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.streams.iter().any(WatchedStream::has_pending) {
            self.is_parked.store(false, Ordering::SeqCst);
            return (limits.stall / CHECKS_PER_STALL).max(MIN_CHECK_INTERVAL);
        }
        let idle_deadline = state.last_busy_at.unwrap_or(now) + limits.idle;
        idle_deadline.saturating_duration_since(now).max(MIN_CHECK_INTERVAL)
    }

    fn check(&self, now: Instant, limits: WatchdogLimits) -> Option<WatchdogTimeout> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let opened = self.opened_streams.load(Ordering::Relaxed);
        let finished = self.finished_pieces.load(Ordering::Relaxed);
        // Includes a request that began and ended between two checks, and a short answer that was taken.
        let was_busy = std::mem::replace(&mut state.last_opened, opened) != opened;
        let mut has_progress = std::mem::replace(&mut state.last_finished, finished) != finished;
        let (mut has_pending, mut has_large_steps, mut longest_stall) = (false, false, Duration::ZERO);
        state.streams.retain_mut(|stream| {
            let Some(progress) = stream.check(now) else { return false };
            match progress {
                StreamProgress::Preparing => has_progress = true,
                StreamProgress::Advanced => (has_pending, has_progress) = (true, true),
                StreamProgress::Stalled(time) => (has_pending, longest_stall) = (true, longest_stall.max(time)),
            }
            has_large_steps |= stream.takes_large_steps;
            true
        });
        let busy_at = state.last_busy_at.get_or_insert(now);
        if was_busy || !state.streams.is_empty() {
            *busy_at = now;
        } else if now.duration_since(*busy_at) >= limits.idle {
            *busy_at = now;
            return Some(WatchdogTimeout::Idle);
        }
        state.stalled_since = match state.stalled_since {
            _ if !has_pending => None,
            Some(since) if !has_progress => Some(since),
            _ => Some(now),
        };
        let stall_factor = match (self.is_shutting_down.load(Ordering::Relaxed), has_large_steps) {
            (true, _) => 1,
            (false, true) => LONG_STALL_FACTOR,
            (false, false) => STALL_FACTOR,
        };
        let is_stalled =
            state.stalled_since.is_some_and(|since| now.duration_since(since) >= limits.stall * stall_factor);
        (is_stalled || longest_stall >= limits.stall * LONG_STALL_FACTOR).then_some(WatchdogTimeout::Stalled)
    }
}

impl WatchedStream {
    fn has_pending(&self) -> bool {
        self.tracker.upgrade().is_some_and(|tracker| tracker.pending_bytes.load(Ordering::SeqCst) > 0)
    }

    /// Returns `None` if the stream has ended.
    fn check(&mut self, now: Instant) -> Option<StreamProgress> {
        let tracker = self.tracker.upgrade()?;
        let pending_bytes = tracker.pending_bytes.load(Ordering::SeqCst);
        if pending_bytes == 0 {
            self.last_advanced_at = None;
            return Some(StreamProgress::Preparing);
        }
        let sent_bytes = tracker.sent_bytes.load(Ordering::Relaxed);
        let advanced_bytes = sent_bytes - self.last_sent_bytes;
        let state = match self.last_advanced_at {
            Some(since) if advanced_bytes < self.needed_bytes => {
                return Some(StreamProgress::Stalled(now.duration_since(since)));
            }
            // A new request is no progress.
            None if advanced_bytes < MIN_PROGRESS_BYTES => StreamProgress::Stalled(Duration::ZERO),
            Some(_) | None => StreamProgress::Advanced,
        };
        self.takes_large_steps |= advanced_bytes >= LARGE_STEP_BYTES;
        (self.last_sent_bytes, self.needed_bytes, self.last_advanced_at) =
            (sent_bytes, pending_bytes.min(MIN_PROGRESS_BYTES), Some(now));
        Some(state)
    }
}

impl StreamTracker {
    fn add_pending(&self, count: usize) {
        self.pending_bytes.fetch_add(count as u64, Ordering::SeqCst);
        if self.watchdog.is_parked.swap(false, Ordering::SeqCst) {
            self.watchdog.sending_started.notify_one();
        }
    }

    fn record_sent(&self, count: usize) {
        self.sent_bytes.fetch_add(count as u64, Ordering::Relaxed);
        self.pending_bytes.fetch_sub(count as u64, Ordering::SeqCst);
    }

    /// Records that a piece was sent whole, or dropped with `unsent_bytes` bytes unsent.
    fn finish_piece(&self, unsent_bytes: usize) {
        self.pending_bytes.fetch_sub(unsent_bytes as u64, Ordering::SeqCst);
        if unsent_bytes == 0 {
            self.watchdog.finished_pieces.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Body bytes that report to the tracker of their stream, if there is one, when they are sent or dropped.
#[derive(Debug)]
pub(super) struct TrackedBytes {
    bytes: Bytes,
    tracker: Option<Arc<StreamTracker>>,
}

impl TrackedBytes {
    /// A piece of the body of `stream`, for hyper to send. Without a stream its bytes are not counted.
    pub(super) fn new(bytes: Bytes, stream: Option<&Arc<StreamTracker>>) -> Self {
        // Empty bytes are never pending.
        let tracker = stream.filter(|_| !bytes.is_empty()).cloned();
        if let Some(stream) = &tracker {
            stream.add_pending(bytes.len());
        }
        Self { bytes, tracker }
    }

    fn record_sent(&self, sent: usize) {
        if let Some(stream) = &self.tracker {
            stream.record_sent(sent);
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
    fn drop(&mut self) {
        if let Some(stream) = &self.tracker {
            stream.finish_piece(self.bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: WatchdogLimits = WatchdogLimits { stall: Duration::from_secs(10), idle: Duration::from_secs(100) };

    /// A connection that is checked every second.
    struct Clock {
        watchdog: Arc<Http2Watchdog>,
        now: Instant,
    }

    impl Clock {
        fn new() -> Self {
            let clock = Self { watchdog: Arc::default(), now: Instant::now() };
            assert_eq!(clock.watchdog.check(clock.now, LIMITS), None);
            clock
        }

        /// Checks for `seconds` seconds and calls `before_check` before every check. Returns the first timeout and the
        /// second at which it occurred.
        fn pass(&mut self, seconds: u64, mut before_check: impl FnMut(u64)) -> Option<(u64, WatchdogTimeout)> {
            (1..=seconds).find_map(|second| {
                self.now += Duration::from_secs(1);
                before_check(second);
                self.watchdog.check(self.now, LIMITS).map(|timeout| (second, timeout))
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
            let streams: Vec<_> = (0..10).map(|_| clock.watchdog.track_with(None)).collect();
            let mut pieces: Vec<_> = streams.iter().map(|stream| clock.piece(stream, 1 << 20)).collect();
            let timeout = clock.pass(60, |_| pieces.iter_mut().for_each(|piece| piece.advance(bytes)));
            assert_eq!(timeout, Some((21, WatchdogTimeout::Stalled)), "{bytes} bytes a second");
        }
    }

    #[test]
    fn a_stalled_stream_is_tolerated_longer_while_others_advance() {
        let mut clock = Clock::new();
        let (stalled, moving) = (clock.watchdog.track_with(None), clock.watchdog.track_with(None));
        let (_stalled_piece, mut moving_piece) = (clock.piece(&stalled, 1 << 20), clock.piece(&moving, 1 << 20));
        assert_eq!(clock.pass(60, |_| moving_piece.advance(4000)), Some((41, WatchdogTimeout::Stalled)));
        // The same holds if the other streams are short answers.
        let mut clock = Clock::new();
        let stalled = clock.watchdog.track_with(None);
        let _stalled_piece = clock.piece(&stalled, 1 << 20);
        let send_short = |clock: &Arc<Http2Watchdog>| {
            TrackedBytes::new(Bytes::from_static(b"abc"), Some(&clock.track_with(None))).advance(3);
        };
        let watchdog = Arc::clone(&clock.watchdog);
        assert_eq!(clock.pass(60, |_| send_short(&watchdog)), Some((41, WatchdogTimeout::Stalled)));
    }

    #[test]
    fn new_requests_are_no_progress() {
        let mut clock = Clock::new();
        let (mut streams, watchdog) = (Vec::new(), Arc::clone(&clock.watchdog));
        let timeout = clock.pass(60, |_| {
            let stream = watchdog.track_with(None);
            streams.push(TrackedBytes::new(Bytes::from_static(b"abc"), Some(&stream)));
        });
        assert_eq!(timeout, Some((21, WatchdogTimeout::Stalled)));
    }

    #[test]
    fn an_answer_in_preparation_is_no_stall() {
        let mut clock = Clock::new();
        let _preparing = clock.watchdog.track_with(None);
        assert_eq!(clock.pass(1000, |_| ()), None);
        let paused = clock.watchdog.track_with(None);
        let _piece = clock.piece(&paused, 1 << 20);
        assert_eq!(clock.pass(39, |_| ()), None);
    }

    #[test]
    fn a_client_that_takes_large_steps_may_take_them_late() {
        let mut clock = Clock::new();
        let stream = clock.watchdog.track_with(None);
        let mut piece = clock.piece(&stream, 100 << 20);
        let timeout = clock.pass(300, |second| {
            if second % 35 == 1 {
                piece.advance(1 << 20);
            }
        });
        assert_eq!(timeout, None);
        assert_eq!(clock.pass(60, |_| ()), Some((21, WatchdogTimeout::Stalled)), "40 seconds after the last step");
    }

    #[test]
    fn a_short_answer_advances_by_all_its_bytes() {
        let mut clock = Clock::new();
        let stream = clock.watchdog.track_with(None);
        for _ in 0..10 {
            let mut piece = clock.piece(&stream, 100);
            assert_eq!(clock.pass(15, |_| ()), None);
            piece.advance(100);
            drop(piece);
        }
        // Copying no bytes is no progress, and dropped bytes were not taken.
        let mut piece = clock.piece(&stream, 100);
        assert_eq!(clock.pass(60, |_| drop(piece.copy_to_bytes(0))), Some((21, WatchdogTimeout::Stalled)));
        drop(piece);
        assert_eq!(clock.pass(60, |_| ()), None);
    }

    #[test]
    fn a_shutdown_shortens_the_stall_limit() {
        let mut clock = Clock::new();
        let stream = clock.watchdog.track_with(None);
        let _piece = clock.piece(&stream, 1 << 20);
        clock.watchdog.begin_shutdown();
        assert_eq!(clock.pass(60, |_| ()), Some((11, WatchdogTimeout::Stalled)));
    }

    #[test]
    fn a_connection_without_streams_is_idle() {
        let mut clock = Clock::new();
        let watchdog = Arc::clone(&clock.watchdog);
        // A stream that has ended by the next check counts.
        let timeout = clock.pass(300, |second| {
            if second == 50 {
                drop(watchdog.track_with(None));
            }
        });
        assert_eq!(timeout, Some((150, WatchdogTimeout::Idle)));
        assert_eq!(clock.pass(300, |_| ()), Some((100, WatchdogTimeout::Idle)), "and again");
    }

    #[test]
    fn ended_streams_are_removed_without_a_check() {
        let watchdog = Arc::<Http2Watchdog>::default();
        for _ in 0..10_000 {
            drop(watchdog.track_with(None));
        }
        assert!(watchdog.state.lock().unwrap().streams.capacity() < 100);
    }

    #[tokio::test]
    async fn the_watchdog_parks_while_nothing_is_pending_and_wakes_at_the_first_piece() {
        let limits = WatchdogLimits { stall: Duration::from_millis(40), idle: Duration::from_secs(3600) };
        let watchdog = Arc::<Http2Watchdog>::default();
        let stream = watchdog.track_with(None);
        assert!(watchdog.next_check_in(Instant::now(), limits) > 1000 * limits.stall);
        let (timeout, _piece) = tokio::join!(watchdog.wait_for_timeout(limits), async {
            // Let the other future begin to wait.
            tokio::task::yield_now().await;
            assert!(watchdog.is_parked.load(Ordering::SeqCst));
            TrackedBytes::new(Bytes::from_static(b"abc"), Some(&stream))
        });
        assert_eq!(timeout, WatchdogTimeout::Stalled);
        let tiny = WatchdogLimits { stall: Duration::from_nanos(1), ..limits };
        let _piece = TrackedBytes::new(Bytes::from_static(b"abc"), Some(&stream));
        assert!(watchdog.next_check_in(Instant::now(), tiny) >= MIN_CHECK_INTERVAL);
    }
}
