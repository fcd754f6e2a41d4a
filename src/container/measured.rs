//! What the metrics are told: how long each request to storage took and what kind of fault it met; how full things are.

use std::future::Future;
use std::time::Instant;

use super::{Resources, datasets};
use crate::metrics::{self, StoreOperation};
use crate::store::StoreError;
use crate::trace;

impl Resources {
    /// Tells the metrics how full the caches and the CPU lane are.
    pub fn measure(&self) {
        metrics::cpu_jobs(self.cpu.running());
        metrics::cache_bytes(metrics::Cache::Decoded, self.blocks.bytes(), self.settings.decoded_cache);
        metrics::cache_bytes(metrics::Cache::Stored, self.objects.bytes(), self.settings.stored_cache);
        metrics::cache_bytes(metrics::Cache::Attributes, self.datasets.bytes(), datasets::CACHE_BYTES);
    }
}

/// What `request` ends with, one of that kind to a store of the kind `backend`.
///
/// # Errors
/// Those of the request.
pub(super) async fn measured<T>(
    operation: StoreOperation,
    backend: &'static str,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let started = Instant::now();
    let answer = request.await;
    metrics::store_request(operation, backend, started.elapsed());
    trace::record("storage", operation.name(), started.elapsed());
    if let Err(error) = &answer {
        metrics::store_error(operation, error.kind());
    }
    answer
}
