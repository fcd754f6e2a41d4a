//! State of the process, which remains when a new application replaces the previous one.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::http::admission::client_limits::ClientRegistry;
use crate::http::admission::in_flight::AdmissionController;
use crate::http::admission::rejection_delay::RejectionDelay;
use crate::http::exposition::ExpositionCache;

/// State that all successive apps of the process share.
pub(crate) struct ProcessState {
    /// True if clients should send no more requests to this server.
    pub(crate) is_draining: AtomicBool,
    /// Number of requests whose responses have not been sent completely.
    pub(crate) requests_in_flight: AtomicUsize,
    /// Admission of requests, which limits how many are in flight.
    pub(crate) admission: Arc<AdmissionController>,
    /// Rejected requests that have not been answered yet.
    pub(crate) rejection_delay: RejectionDelay,
    /// Recent clients and what each has used. A new configuration does not reset it.
    pub(crate) client_registry: Arc<ClientRegistry>,
    /// Renders the text of `/metrics`.
    pub(crate) render_metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// Texts of `/metrics` that clients have not received completely.
    pub(crate) exposition: ExpositionCache,
    id_base: u64,
    id_count: AtomicU64,
}

impl ProcessState {
    pub(crate) fn new(render_metrics: impl Fn() -> String + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            is_draining: AtomicBool::new(false),
            requests_in_flight: AtomicUsize::new(0),
            admission: Arc::default(),
            rejection_delay: RejectionDelay::default(),
            client_registry: Arc::default(),
            render_metrics: Box::new(render_metrics),
            exposition: ExpositionCache::default(),
            id_base: RandomState::new().hash_one(std::process::id()),
            id_count: AtomicU64::new(0),
        })
    }

    /// Returns a number that no other request of this process has.
    pub(crate) fn new_request_id(&self) -> u64 {
        self.id_base ^ self.id_count.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
