//! What a connection's lane, the library behind it and the whole server tell each other.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What the lane and the rest of its connection tell each other. Cheap to clone; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Signals(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    /// The library has a request that it has not answered to the end.
    busy: AtomicBool,
    /// No further request is to be answered.
    closing: AtomicBool,
    /// Why the lane ends the connection.
    end_reason: OnceLock<EndReason>,
}

/// Why the lane ends a connection that its client keeps open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndReason {
    /// The time for a request's head is over.
    Idle,
    /// Another connection of its address needs its place.
    Evicted,
    /// There is no memory for the head that it sends.
    Memory,
}

impl Signals {
    /// The library has begun an answer.
    pub(super) fn begin(&self) {
        self.0.busy.store(true, Ordering::Release);
    }

    /// The library has an answer whole, or will never have it.
    pub(super) fn end(&self) {
        self.0.busy.store(false, Ordering::Release);
    }

    /// Asks the lane to end the connection after the answer that it sends.
    pub(super) fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
    }

    /// The lane ends the connection; the first reason counts.
    pub(super) fn end_because(&self, reason: EndReason) {
        self.0.end_reason.get_or_init(|| reason);
    }

    pub(super) fn end_reason(&self) -> Option<EndReason> {
        self.0.end_reason.get().copied()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.0.closing.load(Ordering::Relaxed)
    }

    pub(super) fn is_busy(&self) -> bool {
        self.0.busy.load(Ordering::Acquire)
    }
}

/// Whether the library has written since it last flushed, counted over all connections: it lets go of an answer when
/// it has all of it, long before a slow client has.
pub(super) struct Unsent {
    count: Arc<AtomicUsize>,
    is_counted: bool,
}

impl Unsent {
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        Self { count: Arc::clone(count), is_counted: false }
    }

    pub(super) fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_counted, true) {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.is_counted
    }

    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.end();
    }
}
