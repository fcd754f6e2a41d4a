//! Tracks which calls wait for a remote store, so that a store that hangs is recognised.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::super::disk_pool::StorePressure;

/// A store is stalled after this part of the time limit of a call.
const STALL_DIVISOR: u32 = 6;

/// Lower bound for the time after which a store is stalled.
const MIN_STALL: Duration = Duration::from_secs(1);

/// The calls that wait for one store.
#[derive(Debug)]
pub(super) struct WaitingCalls {
    state: Mutex<WaitingState>,
    stall_after: Duration,
}

#[derive(Debug)]
struct WaitingState {
    /// Times at which the calls began, by number.
    started: BTreeMap<u64, Instant>,
    next_number: u64,
    /// Time at which a call last got bytes from the store.
    last_progress: Instant,
}

impl WaitingCalls {
    /// Creates the state of a store whose calls end after `call_timeout`.
    pub(super) fn new(call_timeout: Duration) -> Self {
        let state = WaitingState { started: BTreeMap::new(), next_number: 0, last_progress: Instant::now() };
        Self { state: Mutex::new(state), stall_after: (call_timeout / STALL_DIVISOR).max(MIN_STALL) }
    }

    /// Records that a call begins to wait for the store.
    pub(super) fn begin(&self) -> WaitingCall<'_> {
        let mut state = self.lock();
        let number = state.next_number;
        state.next_number += 1;
        state.started.insert(number, Instant::now());
        WaitingCall { calls: self, number }
    }

    /// Returns the pressure on the store, of whose calls `queued` have not been sent.
    pub(super) fn pressure(&self, queued: usize) -> StorePressure {
        let state = self.lock();
        // Calls begin in the order of their numbers.
        let longest = state.started.first_key_value().map_or(Duration::ZERO, |(_, started)| started.elapsed());
        let no_progress_for = longest.min(state.last_progress.elapsed());
        StorePressure {
            running: state.started.len().saturating_sub(queued),
            queued,
            is_stalled: no_progress_for >= self.stall_after,
            no_progress_for,
            longest_running: longest,
        }
    }

    fn lock(&self) -> MutexGuard<'_, WaitingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that waits for the store until it is dropped.
#[derive(Debug)]
pub(super) struct WaitingCall<'a> {
    calls: &'a WaitingCalls,
    number: u64,
}

impl WaitingCall<'_> {
    /// Records that the store has answered the call.
    pub(super) fn answered(self) {
        self.calls.lock().last_progress = Instant::now();
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.calls.lock().started.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_is_stalled_if_calls_wait_and_none_is_answered() {
        let calls = WaitingCalls::new(Duration::from_secs(60));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(calls.pressure(0), StorePressure::default(), "no call waits");
        let hanging = calls.begin();
        tokio::time::sleep(Duration::from_secs(2)).await;
        let pressure = calls.pressure(0);
        assert!(pressure.is_unresponsive() && !pressure.is_stalled, "{pressure:?}");
        assert_eq!((pressure.running, pressure.longest_running), (1, Duration::from_secs(2)));
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert!(calls.pressure(0).is_stalled);
        // A call that gives up is no sign of life; one that is answered is.
        drop(calls.begin());
        assert!(calls.pressure(0).is_stalled);
        calls.begin().answered();
        let pressure = calls.pressure(0);
        assert!(!pressure.is_stalled && !pressure.is_unresponsive(), "{pressure:?}");
        assert_eq!(pressure.longest_running, Duration::from_secs(10));
        drop(hanging);
        assert_eq!(calls.pressure(0), StorePressure::default());
    }
}
