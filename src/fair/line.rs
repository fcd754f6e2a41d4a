//! Lines of clients that wait for shares.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Weak;

use tokio::sync::oneshot;

use super::share::Kind;
use super::{Party, Share};

/// Of what a line holds, one part in so many counts as if it had passed others with it.
const HELD_PART: usize = 16;

/// Most units that one client has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Most {
    /// As long as no other client has or wants any. What is left is for the next one.
    pub alone: usize,
    /// When others do.
    pub among_others: usize,
}

impl Most {
    /// No bound.
    pub const ANY: Self = Self { alone: usize::MAX, among_others: usize::MAX };

    /// The bound where clients share `units` of `all`: the same part of those.
    pub(super) fn of(self, units: usize, all: usize) -> Self {
        let part = |most: usize| {
            let part = most as u128 * units as u128 / all.max(1) as u128;
            usize::try_from(part).unwrap_or(usize::MAX)
        };
        if units == all { self } else { Self { alone: part(self.alone), among_others: part(self.among_others) } }
    }

    /// Most units of one client among others, while so many of `all` are `free`: as many times what is free as it has of
    /// what it leaves where it is alone. However many clients take what they can get, some is left for the next (Choudhury and
    /// Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998).
    pub(super) fn among(&self, all: usize, free: usize) -> usize {
        let left = all.saturating_sub(self.alone).max(1);
        self.among_others.min(free.saturating_mul(self.alone) / left)
    }
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) party: Party,
    /// Units, or nanoseconds.
    pub(super) spent: u64,
    pub(super) held: usize,
    /// Of these, units of shares that passed others.
    pub(super) passed: usize,
    pub(super) waiting: VecDeque<Place>,
}

impl Line {
    /// Units that count as if it had passed others with them. The more a client holds, the less it may pass others with: else
    /// clients that hold much would leave too little for one that holds nothing.
    pub(super) fn counts_as_passed(&self) -> usize {
        self.passed.saturating_add(self.held.saturating_sub(self.passed) / HELD_PART)
    }
}

/// Of one that waits.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) units: usize,
    /// As many are left free for others.
    pub(super) beside: usize,
    /// Of a stream: held by those parts of it that are on their way.
    pub(super) stream: Option<Weak<()>>,
    pub(super) kind: Kind,
    /// Set when others had to wait until there is enough for it.
    pub(super) has_stopped_others: Cell<bool>,
    pub(super) sender: oneshot::Sender<Share>,
}

impl Place {
    /// A place for so many units that leaves none to others, and is of no stream.
    pub(super) fn new(units: usize, kind: Kind, sender: oneshot::Sender<Share>) -> Self {
        Self { units, beside: 0, stream: None, kind, has_stopped_others: Cell::new(false), sender }
    }

    /// Returns true for a stream of which no parts are on their way.
    pub(super) fn begins_stream(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.strong_count() <= 1)
    }

    /// Units that must be free for it.
    pub(super) fn needed(&self) -> usize {
        if self.kind == Kind::Counted { 0 } else { self.units.saturating_add(self.beside) }
    }
}
