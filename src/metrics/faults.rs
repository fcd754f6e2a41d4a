//! What is counted of faults: of storage, of the system, of the log.

use metrics::{counter, gauge};

use super::{ACCEPT_ERRORS, LOG_DROPPED, STORE_CALLS, STORE_ERRORS, STORES_STALLED, StoreOperation, as_f64};

/// Shows the counters of these kinds of failures from the start, as [`describe`](super::describe) does.
pub fn describe_store_errors(kinds: &[&'static str]) {
    for operation in StoreOperation::ALL {
        for kind in kinds {
            counter!(STORE_ERRORS, "op" => operation.name(), "kind" => *kind).increment(0);
        }
    }
}

/// A request to storage failed; the kinds are a small fixed set.
pub fn store_error(operation: StoreOperation, kind: &'static str) {
    counter!(STORE_ERRORS, "op" => operation.name(), "kind" => kind).increment(1);
}

/// Requests to storage that wait, and how many stores answer nobody.
pub fn store_calls(running: usize, queued: usize, stalled: usize) {
    gauge!(STORE_CALLS, "state" => "running").set(as_f64(running as u64));
    gauge!(STORE_CALLS, "state" => "queued").set(as_f64(queued as u64));
    gauge!(STORES_STALLED).set(as_f64(stalled as u64));
}

/// So many lines of the log have been dropped, or could not be written, since the start.
pub fn log_lines_dropped(count: u64) {
    counter!(LOG_DROPPED).absolute(count);
}

/// A connection could not be accepted.
pub fn accept_error() {
    counter!(ACCEPT_ERRORS).increment(1);
}
