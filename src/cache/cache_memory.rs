//! A memory budget that a cache mostly fills: a request that finds it short evicts entries.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::budget::Budget;
use super::error::{BudgetError, ReadError};
use super::permit::Permit;

/// Delay before a cache's pending evictions are run again. It doubles each time.
const EVICTION_RETRY_DELAY: Duration = Duration::from_millis(5);

/// Number of retries before the cache is forced to evict entries: 75 ms after the first.
const RETRIES_BEFORE_FORCED_EVICTION: u32 = 4;

/// A forced eviction removes one in this many entries.
const FORCED_EVICTION_DIVISOR: usize = 8;

/// A cache that can evict entries on demand.
#[async_trait]
pub(crate) trait Evictable: Send + Sync {
    /// Returns the maximum weight of the entries in bytes.
    fn capacity_bytes(&self) -> u64;

    /// Evicts the entries that exceed the capacity, which the cache otherwise does with a delay.
    async fn evict_surplus(&self);

    /// Evicts one in `divisor` entries.
    async fn evict_part(&self, divisor: usize);
}

/// A budget for the entries of a cache and for what is in flight besides. Clones share both.
#[derive(Clone)]
pub(crate) struct CacheMemory {
    pub(crate) budget: Budget,
    pub(crate) cache: Arc<dyn Evictable>,
}

impl fmt::Debug for CacheMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheMemory").field("budget", &self.budget).finish_non_exhaustive()
    }
}

impl CacheMemory {
    /// Creates the memory of `cache`, which is covered by `budget`.
    pub(crate) fn new(budget: Budget, cache: &(impl Evictable + Clone + 'static)) -> Self {
        Self { budget, cache: Arc::new(cache.clone()) }
    }

    /// Returns the memory of the same cache with another handle to the budget.
    pub(crate) fn map(&self, change: impl FnOnce(&Budget) -> Budget) -> Self {
        Self { budget: change(&self.budget), cache: Arc::clone(&self.cache) }
    }

    /// Takes a permit for `bytes`, waiting for it if necessary. Waiting is rare, since the budget covers the whole cache
    /// besides what is in flight.
    ///
    /// # Errors
    /// [`ReadError::Budget`] when the budget is too small or others keep its memory.
    pub(crate) async fn take(&self, bytes: u64) -> Result<Permit, ReadError> {
        self.evict_while(bytes, self.budget.take(bytes)).await
    }

    /// As [`Self::take`], for a response that has started.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(crate) async fn take_for_started(&self, bytes: u64) -> Result<Permit, ReadError> {
        self.evict_while(bytes, self.budget.take_within(bytes, self.budget.started_wait())).await
    }

    /// Waits for `acquire`, a permit for `bytes`. Runs pending evictions meanwhile, which frees evicted memory sooner.
    ///
    /// If the memory stays short because clients are slow to read evicted entries that are being sent to them, the cache
    /// evicts more entries. This does not help a client that waits for memory that it holds itself.
    async fn evict_while(
        &self,
        bytes: u64,
        acquire: impl Future<Output = Result<Permit, BudgetError>>,
    ) -> Result<Permit, ReadError> {
        let evict = async {
            for retry in 0u32.. {
                self.cache.evict_surplus().await;
                let in_flight_bytes = self.budget.capacity_bytes().saturating_sub(self.cache.capacity_bytes());
                let (is_short, pinned_bytes) = (self.budget.free_bytes() < bytes, self.budget.pinned.bytes());
                if is_short && retry >= RETRIES_BEFORE_FORCED_EVICTION && pinned_bytes > in_flight_bytes / 2 {
                    self.cache.evict_part(FORCED_EVICTION_DIVISOR).await;
                }
                // Longer delays are useless, since requests wait for a bounded time.
                tokio::time::sleep(EVICTION_RETRY_DELAY.saturating_mul(2_u32.saturating_pow(retry.min(8)))).await;
            }
        };
        tokio::select! {
            biased;
            permit = acquire => Ok(permit?),
            () = evict => Err(ReadError::Internal("the eviction loop ended unexpectedly".to_owned())),
        }
    }
}
