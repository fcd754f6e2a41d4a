//! Whether a client takes what it has asked for, where the socket cannot say: over HTTP/2 a client may leave the windows
//! of its streams shut, or open them by a byte now and then, and answer pings for ever.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::charge::StreamCharge;

/// Bytes that a stream has to send until it counts as moved; fewer where fewer wait.
const ENOUGH: u64 = 16 << 10;

/// A client that takes as many bytes between two looks may open windows in steps that are as large, and late.
const STEP: u64 = 64 << 10;

/// Times [`Limits::stall`] that a connection is borne of which nothing moves.
const PATIENCE: u32 = 2;

/// As [`PATIENCE`], for a stream of a connection of which others move, and for a client that takes large steps.
const LONG_PATIENCE: u32 = 4;

/// Looks during [`Limits::stall`].
const LOOKS: u32 = 4;

/// Shortest time between two looks.
const LEAST_PAUSE: Duration = Duration::from_millis(20);

/// How long a connection is borne.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Unit of the time limit for a client that takes nothing.
    pub(super) stall: Duration,
    /// Without any stream.
    pub(super) idle: Duration,
}

/// Why a connection is to be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The client takes nothing of what it asked for, or next to nothing.
    Stalled,
    /// The client asks for nothing.
    Idle,
}

/// What the streams of one connection have in common. Cheap to clone; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Seen>,
    /// Streams so far.
    opened: AtomicU64,
    /// Pieces of bodies that were sent whole.
    finished: AtomicU64,
    /// Nothing waited at the last look: the next piece that waits notifies.
    is_parked: AtomicBool,
    begun: Notify,
    /// No more patience than one limit.
    is_hurried: AtomicBool,
}

/// What is known of the connection since the last look.
#[derive(Debug, Default)]
struct Seen {
    streams: Vec<Watched>,
    opened: u64,
    finished: u64,
    /// When a stream was last seen.
    busy_at: Option<Instant>,
    /// Since when nothing moves although something waits.
    quiet_since: Option<Instant>,
}

/// A stream as the looks see it.
#[derive(Debug)]
struct Watched {
    taking: Weak<Taking>,
    /// Bytes sent when it last moved, and how many more it needs to move.
    sent: u64,
    needed: u64,
    since: Option<Instant>,
    takes_large_steps: bool,
}

/// How much of a stream's body waits to be sent, and how much was, in bytes.
#[derive(Debug, Default)]
struct Taking {
    waiting: AtomicU64,
    sent: AtomicU64,
    /// The memory of the stream, until its last piece is sent.
    _charge: Option<StreamCharge>,
}

/// What a look finds.
#[derive(Debug, Clone, Copy)]
enum State {
    /// The answer is still being made.
    Answering,
    Moved,
    Stalled(Duration),
}

impl Progress {
    /// A stream, from its request on until it and its pieces are dropped.
    pub(super) fn open(&self, charge: StreamCharge) -> Stream {
        self.open_with(Some(charge))
    }

    fn open_with(&self, charge: Option<StreamCharge>) -> Stream {
        let taking = Arc::new(Taking { _charge: charge, ..Taking::default() });
        let watched =
            Watched { taking: Arc::downgrade(&taking), sent: 0, needed: 0, since: None, takes_large_steps: false };
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.streams.len() == seen.streams.capacity() {
            // Looks may be rare; what has ended since must not pile up.
            seen.streams.retain(|watched| watched.taking.strong_count() > 0);
        }
        seen.streams.push(watched);
        self.0.opened.fetch_add(1, Ordering::Relaxed);
        Stream { taking, progress: self.clone() }
    }

    /// From now on one limit is patience enough.
    pub(super) fn hurry(&self) {
        self.0.is_hurried.store(true, Ordering::Relaxed);
    }

    /// Ready when the connection is to be ended. May be dropped and called again.
    ///
    /// `Stalled`: over twice [`Limits::stall`] nothing moved although something waited and no answer was being made; or
    /// one of the streams did not over four times that. To move takes 16 KiB, or whatever waits where that is less.
    /// `Idle`: there was no stream during [`Limits::idle`].
    pub(super) async fn fault(&self, limits: Limits) -> Fault {
        loop {
            let pause = self.pause(Instant::now(), limits);
            // Early or late: what counts is the time of the look.
            let _ = tokio::time::timeout(pause, self.0.begun.notified()).await;
            if let Some(fault) = self.look(Instant::now(), limits) {
                return fault;
            }
        }
    }

    /// How long there is nothing to look at.
    fn pause(&self, now: Instant, limits: Limits) -> Duration {
        // Before the question: a piece that begins to wait after it notifies.
        self.0.is_parked.store(true, Ordering::SeqCst);
        let seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.streams.iter().any(Watched::waits) {
            self.0.is_parked.store(false, Ordering::SeqCst);
            return (limits.stall / LOOKS).max(LEAST_PAUSE);
        }
        let until = seen.busy_at.unwrap_or(now) + limits.idle;
        until.saturating_duration_since(now).max(LEAST_PAUSE)
    }

    fn look(&self, now: Instant, limits: Limits) -> Option<Fault> {
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = &mut *seen;
        let opened = self.0.opened.load(Ordering::Relaxed);
        let finished = self.0.finished.load(Ordering::Relaxed);
        // A request that came and went between two looks, and a short answer that was taken.
        let was_busy = std::mem::replace(&mut seen.opened, opened) != opened;
        let mut moves = std::mem::replace(&mut seen.finished, finished) != finished;
        let (mut waits, mut has_large_steps, mut longest) = (false, false, Duration::ZERO);
        seen.streams.retain_mut(|watched| {
            let Some(state) = watched.look(now) else { return false };
            match state {
                State::Answering => moves = true,
                State::Moved => (waits, moves) = (true, true),
                State::Stalled(time) => (waits, longest) = (true, longest.max(time)),
            }
            has_large_steps |= watched.takes_large_steps;
            true
        });
        let busy_at = seen.busy_at.get_or_insert(now);
        if was_busy || !seen.streams.is_empty() {
            *busy_at = now;
        } else if now.duration_since(*busy_at) >= limits.idle {
            *busy_at = now;
            return Some(Fault::Idle);
        }
        seen.quiet_since = match seen.quiet_since {
            _ if !waits => None,
            Some(since) if !moves => Some(since),
            _ => Some(now),
        };
        let patience = match (self.0.is_hurried.load(Ordering::Relaxed), has_large_steps) {
            (true, _) => 1,
            (false, true) => LONG_PATIENCE,
            (false, false) => PATIENCE,
        };
        let is_over = seen.quiet_since.is_some_and(|since| now.duration_since(since) >= limits.stall * patience);
        (is_over || longest >= limits.stall * LONG_PATIENCE).then_some(Fault::Stalled)
    }
}

impl Watched {
    fn waits(&self) -> bool {
        self.taking.upgrade().is_some_and(|taking| taking.waiting.load(Ordering::SeqCst) > 0)
    }

    /// `None` when the stream has ended.
    fn look(&mut self, now: Instant) -> Option<State> {
        let taking = self.taking.upgrade()?;
        let waiting = taking.waiting.load(Ordering::SeqCst);
        if waiting == 0 {
            self.since = None;
            return Some(State::Answering);
        }
        let sent = taking.sent.load(Ordering::Relaxed);
        let step = sent - self.sent;
        let state = match self.since {
            Some(since) if step < self.needed => return Some(State::Stalled(now.duration_since(since))),
            // A new request is no progress.
            None if step < ENOUGH => State::Stalled(Duration::ZERO),
            Some(_) | None => State::Moved,
        };
        self.takes_large_steps |= step >= STEP;
        (self.sent, self.needed, self.since) = (sent, waiting.min(ENOUGH), Some(now));
        Some(state)
    }
}

/// A request and its answer. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    taking: Arc<Taking>,
    progress: Progress,
}

impl Stream {
    fn begin(&self, count: usize) {
        self.taking.waiting.fetch_add(count as u64, Ordering::SeqCst);
        if self.progress.0.is_parked.swap(false, Ordering::SeqCst) {
            self.progress.0.begun.notify_one();
        }
    }

    fn send(&self, count: usize) {
        self.taking.sent.fetch_add(count as u64, Ordering::Relaxed);
        self.taking.waiting.fetch_sub(count as u64, Ordering::SeqCst);
    }

    /// A piece is sent whole, or given up with `left` bytes.
    fn end(&self, left: usize) {
        self.taking.waiting.fetch_sub(left as u64, Ordering::SeqCst);
        if left == 0 {
            self.progress.0.finished.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Bytes of a body that tell their stream, if there is one, when they are sent or given up.
#[derive(Debug)]
pub(super) struct Piece {
    bytes: Bytes,
    stream: Option<Stream>,
}

impl Piece {
    /// A piece of the body of `stream`, for the library to send; without one its bytes are not counted.
    pub(super) fn new(bytes: Bytes, stream: Option<&Stream>) -> Self {
        // What is empty cannot wait.
        let stream = stream.filter(|_| !bytes.is_empty()).cloned();
        if let Some(stream) = &stream {
            stream.begin(bytes.len());
        }
        Self { bytes, stream }
    }

    fn count(&self, sent: usize) {
        if let Some(stream) = &self.stream {
            stream.send(sent);
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.count(count);
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        let bytes = self.bytes.copy_to_bytes(len);
        self.count(len);
        bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            stream.end(self.bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { stall: Duration::from_secs(10), idle: Duration::from_secs(100) };

    /// A connection at which somebody looks every second.
    struct Clock {
        progress: Progress,
        now: Instant,
    }

    impl Clock {
        fn new() -> Self {
            let clock = Self { progress: Progress::default(), now: Instant::now() };
            assert_eq!(clock.progress.look(clock.now, LIMITS), None);
            clock
        }

        /// What is found within so many seconds, and after how many; `each` is done before every look.
        fn pass(&mut self, seconds: u64, mut each: impl FnMut(u64)) -> Option<(u64, Fault)> {
            (1..=seconds).find_map(|second| {
                self.now += Duration::from_secs(1);
                each(second);
                self.progress.look(self.now, LIMITS).map(|fault| (second, fault))
            })
        }

        fn piece(&self, stream: &Stream, len: usize) -> Piece {
            assert!(Arc::ptr_eq(&stream.progress.0, &self.progress.0));
            Piece::new(vec![0; len].into(), Some(stream))
        }
    }

    #[test]
    fn who_takes_nothing_or_next_to_nothing_stalls() {
        for bytes in [0, 1] {
            let mut clock = Clock::new();
            let streams: Vec<_> = (0..10).map(|_| clock.progress.open_with(None)).collect();
            let mut pieces: Vec<_> = streams.iter().map(|stream| clock.piece(stream, 1 << 20)).collect();
            let found = clock.pass(60, |_| pieces.iter_mut().for_each(|piece| piece.advance(bytes)));
            assert_eq!(found, Some((21, Fault::Stalled)), "{bytes} bytes a second");
        }
    }

    #[test]
    fn one_stream_that_stands_still_is_borne_longer_while_others_move() {
        let mut clock = Clock::new();
        let (still, moving) = (clock.progress.open_with(None), clock.progress.open_with(None));
        let (_held, mut taken) = (clock.piece(&still, 1 << 20), clock.piece(&moving, 1 << 20));
        assert_eq!(clock.pass(60, |_| taken.advance(4000)), Some((41, Fault::Stalled)));
        // So it is where the others are short answers.
        let mut clock = Clock::new();
        let still = clock.progress.open_with(None);
        let _held = clock.piece(&still, 1 << 20);
        let short = |clock: &Progress| Piece::new(Bytes::from_static(b"abc"), Some(&clock.open_with(None))).advance(3);
        let progress = clock.progress.clone();
        assert_eq!(clock.pass(60, |_| short(&progress)), Some((41, Fault::Stalled)));
    }

    #[test]
    fn asking_for_more_is_no_progress() {
        let mut clock = Clock::new();
        let (mut streams, progress) = (Vec::new(), clock.progress.clone());
        let found = clock.pass(60, |_| {
            let stream = progress.open_with(None);
            streams.push(Piece::new(Bytes::from_static(b"abc"), Some(&stream)));
        });
        assert_eq!(found, Some((21, Fault::Stalled)));
    }

    #[test]
    fn an_answer_that_is_being_made_stalls_nobody() {
        let mut clock = Clock::new();
        let _asked = clock.progress.open_with(None);
        assert_eq!(clock.pass(1000, |_| ()), None);
        let paused = clock.progress.open_with(None);
        let _held = clock.piece(&paused, 1 << 20);
        assert_eq!(clock.pass(39, |_| ()), None);
    }

    #[test]
    fn who_takes_large_steps_may_take_them_late() {
        let mut clock = Clock::new();
        let stream = clock.progress.open_with(None);
        let mut piece = clock.piece(&stream, 100 << 20);
        let found = clock.pass(300, |second| {
            if second % 35 == 1 {
                piece.advance(1 << 20);
            }
        });
        assert_eq!(found, None);
        assert_eq!(clock.pass(60, |_| ()), Some((21, Fault::Stalled)), "40 seconds after the last step");
    }

    #[test]
    fn a_few_bytes_are_all_that_a_short_answer_has() {
        let mut clock = Clock::new();
        let stream = clock.progress.open_with(None);
        for _ in 0..10 {
            let mut piece = clock.piece(&stream, 100);
            assert_eq!(clock.pass(15, |_| ()), None);
            piece.advance(100);
            drop(piece);
        }
        // Nothing was taken by copying nothing, and what is given up was not taken.
        let mut piece = clock.piece(&stream, 100);
        assert_eq!(clock.pass(60, |_| drop(piece.copy_to_bytes(0))), Some((21, Fault::Stalled)));
        drop(piece);
        assert_eq!(clock.pass(60, |_| ()), None);
    }

    #[test]
    fn whoever_is_about_to_end_is_less_patient() {
        let mut clock = Clock::new();
        let stream = clock.progress.open_with(None);
        let _piece = clock.piece(&stream, 1 << 20);
        clock.progress.hurry();
        assert_eq!(clock.pass(60, |_| ()), Some((11, Fault::Stalled)));
    }

    #[test]
    fn a_connection_without_streams_is_idle() {
        let mut clock = Clock::new();
        let progress = clock.progress.clone();
        // One that is gone by the next look counts.
        let found = clock.pass(300, |second| {
            if second == 50 {
                drop(progress.open_with(None));
            }
        });
        assert_eq!(found, Some((150, Fault::Idle)));
        assert_eq!(clock.pass(300, |_| ()), Some((100, Fault::Idle)), "and again");
    }

    #[test]
    fn streams_that_have_ended_are_forgotten_without_a_look() {
        let progress = Progress::default();
        for _ in 0..10_000 {
            drop(progress.open_with(None));
        }
        assert!(progress.0.seen.lock().unwrap().streams.capacity() < 100);
    }

    #[tokio::test]
    async fn nobody_looks_while_nothing_waits_and_the_first_piece_wakes() {
        let limits = Limits { stall: Duration::from_millis(40), idle: Duration::from_secs(3600) };
        let progress = Progress::default();
        let stream = progress.open_with(None);
        assert!(progress.pause(Instant::now(), limits) > 1000 * limits.stall);
        let (fault, _piece) = tokio::join!(progress.fault(limits), async {
            // The other has begun to wait.
            tokio::task::yield_now().await;
            assert!(progress.0.is_parked.load(Ordering::SeqCst));
            Piece::new(Bytes::from_static(b"abc"), Some(&stream))
        });
        assert_eq!(fault, Fault::Stalled);
        let tiny = Limits { stall: Duration::from_nanos(1), ..limits };
        let _piece = Piece::new(Bytes::from_static(b"abc"), Some(&stream));
        assert!(progress.pause(Instant::now(), tiny) >= LEAST_PAUSE);
    }
}
