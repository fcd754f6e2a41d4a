//! Backpressure on memory that is held during storage waits.
//!
//! A request gives its memory back if the storage keeps it waiting while requests of other containers need the memory.
//! A container with stalled storage therefore does not slow down the others.

use std::future::Future;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use super::budget::Budget;
use super::error::ReadError;
use crate::metrics::{self, ShedReason};
use crate::store::{Key, StoreError, StoreLoad};

/// Longest time that a request holds memory during a storage wait while other requests need the memory.
pub(crate) const MAX_WAIT_HOLDING_MEMORY: Duration = Duration::from_secs(1);

/// Interval at which a request that waits for storage checks if other containers need its memory. The request yields
/// after two positive checks in a row.
pub(crate) const CONTENTION_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Waits for `future`, a request to a store with this load, while the caller holds a permit of `budget`. Gives up if requests of other
/// containers wait for permits of `budget` and the store is unresponsive or has kept the caller waiting for
/// [`MAX_WAIT_HOLDING_MEMORY`].
///
/// # Errors
/// [`StoreError::Preempted`] when it gives up.
pub(crate) async fn yield_if_contended<T>(
    current_load: impl Fn() -> StoreLoad,
    budget: &Budget,
    key: &Key,
    mut future: impl Future<Output = T> + Unpin,
) -> Result<T, ReadError> {
    // A result that is ready needs no timer.
    if let Some(output) = (&mut future).now_or_never() {
        return Ok(output);
    }
    let (started, mut contended_polls) = (Instant::now(), 0);
    loop {
        if let Ok(output) = tokio::time::timeout(CONTENTION_POLL_INTERVAL, &mut future).await {
            return Ok(output);
        }
        let is_storage_slow = || {
            let load = current_load();
            load.is_unresponsive()
                || (started.elapsed() >= MAX_WAIT_HOLDING_MEMORY && load.longest_running >= MAX_WAIT_HOLDING_MEMORY)
        };
        contended_polls = if budget.others_wait() && is_storage_slow() { contended_polls + 1 } else { 0 };
        if contended_polls >= 2 {
            metrics::request_shed(ShedReason::Storage);
            return Err(StoreError::Preempted(key.clone()).into());
        }
    }
}
