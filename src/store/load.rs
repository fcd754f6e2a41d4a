//! The load of a store.

use std::time::Duration;

/// Load of a store: the calls that wait for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreLoad {
    /// Number of calls that have started.
    pub running: usize,
    /// Number of calls that have not started.
    pub queued: usize,
    /// True if no call has ended for so long that further calls fail at once, except for an occasional probe.
    pub is_stalled: bool,
    /// Time for which no call has ended, while calls run whose callers may still wait.
    pub no_progress_for: Duration,
    /// Age of the longest-running call whose caller may still wait.
    pub longest_running: Duration,
}

impl StoreLoad {
    /// Time without an answer after which the store counts as unresponsive.
    const UNRESPONSIVE_AFTER: Duration = Duration::from_secs(1);

    /// Returns true if the store has answered no request for so long that nothing should be held for it.
    pub fn is_unresponsive(&self) -> bool {
        self.no_progress_for >= Self::UNRESPONSIVE_AFTER
    }
}
