//! Metrics of storage requests (duration, kind of error) and of how full the caches are.

use std::future::Future;
use std::time::Instant;

use super::{Resources, groups};
use crate::metrics::{self, StoreOperation};
use crate::store::StoreError;
use crate::trace;

impl Resources {
    /// Updates the gauges of the caches and the CPU pool.
    pub fn update_gauges(&self) {
        metrics::cpu_jobs(self.cpu.running());
        metrics::cache_bytes(metrics::CacheLabel::Decoded, self.blocks.bytes(), self.settings.decoded_cache);
        metrics::cache_bytes(metrics::CacheLabel::Stored, self.objects.bytes(), self.settings.stored_cache);
        metrics::cache_bytes(metrics::CacheLabel::Attributes, self.datasets.bytes(), groups::CACHE_BYTES);
    }
}

/// Runs `request`, an `operation` on a store of the kind `backend`, and records its duration and error.
///
/// # Errors
/// The errors of the request.
pub(super) async fn instrument<T>(
    operation: StoreOperation,
    backend: &'static str,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let started = Instant::now();
    let result = request.await;
    metrics::store_request(operation, backend, started.elapsed());
    trace::record("storage", operation.name(), started.elapsed());
    if let Err(error) = &result {
        metrics::store_error(operation, error.kind());
    }
    result
}
