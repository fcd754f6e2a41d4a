//! What stays when an [`super::App`] takes the place of another: counts and the end are the process's.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::admitted::Admitted;
use super::clients::Accounts;
use super::exposition::Exposition;
use super::refused::Refused;

/// Shared by all apps that follow one another.
pub(super) struct Shared {
    /// Nothing more is to be sent here.
    pub(super) draining: AtomicBool,
    /// Requests whose answers have not been sent to the end.
    pub(super) running: AtomicUsize,
    /// Those of them that keep others from being answered.
    pub(super) admitted: Admitted,
    /// Requests that are refused and not answered yet.
    pub(super) refused: Refused,
    /// Who has asked lately, and what each has taken: another configuration begins no new account.
    pub(super) accounts: Arc<Accounts>,
    /// Makes the text of `/metrics`.
    pub(super) render_metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// What clients have not taken of it.
    pub(super) exposition: Exposition,
    id_base: u64,
    id_count: AtomicU64,
}

impl Shared {
    pub(super) fn new(render_metrics: impl Fn() -> String + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            draining: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            admitted: Admitted::default(),
            refused: Refused::default(),
            accounts: Arc::default(),
            render_metrics: Box::new(render_metrics),
            exposition: Exposition::default(),
            id_base: RandomState::new().hash_one(std::process::id()),
            id_count: AtomicU64::new(0),
        })
    }

    /// A number that no other request of this process has.
    pub(super) fn new_request_id(&self) -> u64 {
        self.id_base ^ self.id_count.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
