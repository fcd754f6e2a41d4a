//! The trace of a request and its spans.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Maximum number of child spans of a trace. For a request with thousands of blocks, the first ones are enough.
pub(super) const MAX_CHILD_SPANS: usize = 256;

/// Properties of a response that its trace reports.
#[derive(Debug, Clone, Copy)]
pub struct TracedResponse {
    /// Request method, as the metrics name it.
    pub method: &'static str,
    /// Route, as the metrics name it.
    pub route: &'static str,
    /// Status code.
    pub status: u16,
    /// Number of bytes of the body that were sent.
    pub bytes: u64,
}

/// The trace of one request.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "trace_id is the term of the trace context")]
pub struct Trace {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
    pub(super) parent_span_id: Option<[u8; 8]>,
    pub(super) path: String,
    pub(super) started: (Instant, SystemTime),
    pub(super) child_spans: Mutex<Vec<ChildSpan>>,
}

/// A step that was done for a request.
#[derive(Debug)]
pub(super) struct ChildSpan {
    pub(super) span_id: [u8; 8],
    pub(super) name: &'static str,
    pub(super) detail: &'static str,
    pub(super) started: Instant,
    pub(super) elapsed: Duration,
}

impl Trace {
    pub(super) fn record(&self, span: ChildSpan) {
        let mut child_spans = self.child_spans.lock().unwrap_or_else(PoisonError::into_inner);
        if child_spans.len() < MAX_CHILD_SPANS {
            child_spans.push(span);
        }
    }
}
