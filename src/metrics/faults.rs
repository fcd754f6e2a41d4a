//! Metrics of faults in storage, the system and the log.

use metrics::{counter, gauge};

use super::{ACCEPT_ERRORS, LOG_DROPPED, STORE_CALLS, STORE_ERRORS, STORES_STALLED, StoreOperation, as_f64};

/// Initializes the counters of storage errors of these kinds to 0, like [`describe`](super::describe).
pub fn describe_store_errors(kinds: &[&'static str]) {
    for operation in StoreOperation::ALL {
        for kind in kinds {
            counter!(STORE_ERRORS, "op" => operation.name(), "kind" => *kind).increment(0);
        }
    }
}

/// Counts a failed request to storage. The kinds are a small fixed set.
pub fn store_error(operation: StoreOperation, kind: &'static str) {
    counter!(STORE_ERRORS, "op" => operation.name(), "kind" => kind).increment(1);
}

/// Sets the numbers of running and queued requests to storage, and the number of stores that do not respond.
pub fn store_calls(running: usize, queued: usize, stalled: usize) {
    gauge!(STORE_CALLS, "state" => "running").set(as_f64(running as u64));
    gauge!(STORE_CALLS, "state" => "queued").set(as_f64(queued as u64));
    gauge!(STORES_STALLED).set(as_f64(stalled as u64));
}

/// Sets the number of log lines that were dropped or could not be written since the start.
pub fn log_lines_dropped(count: u64) {
    counter!(LOG_DROPPED).absolute(count);
}

/// Counts a connection that could not be accepted.
pub fn accept_error() {
    counter!(ACCEPT_ERRORS).increment(1);
}
