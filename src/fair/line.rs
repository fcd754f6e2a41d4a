//! Lines of clients that wait for shares.

use std::collections::VecDeque;
use std::sync::Weak;

use tokio::sync::oneshot;

use super::{Party, Share};

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
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) party: Party,
    /// Units, or nanoseconds.
    pub(super) spent: u64,
    pub(super) held: usize,
    pub(super) waiting: VecDeque<Place>,
}

/// Of one that waits.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) units: usize,
    /// As many are left free for others.
    pub(super) beside: usize,
    /// Of a stream: held by those parts of it that are on their way.
    pub(super) stream: Option<Weak<()>>,
    /// Units that are counted as the client's, but lent out already.
    pub(super) is_counted_only: bool,
    pub(super) sender: oneshot::Sender<Share>,
}

impl Place {
    /// Units that must be free for it.
    pub(super) fn needed(&self) -> usize {
        if self.is_counted_only { 0 } else { self.units.saturating_add(self.beside) }
    }
}
