//! Memory for a [`Validated`] cache and for the values that are in flight beside it. A request that finds the budget
//! short evicts entries.

use std::future::Future;
use std::hash::Hash;
use std::time::Duration;

use super::budget::Permit;
use super::error::{BudgetError, ReadError};
use super::validated::{CacheEntry, Validated};

/// Maximum number of rounds in which [`Validated::drain`] frees entries.
const MAX_DRAIN_ROUNDS: usize = 100;

/// Delay before pending evictions are run for the second time while a request is waiting for memory. It doubles after
/// each further run.
const EVICTION_RETRY_DELAY: Duration = Duration::from_millis(5);

/// Number of retries before a waiting request forces the cache to evict entries. These retries take 75 ms.
const RETRIES_BEFORE_FORCED_EVICTION: u32 = 4;

/// Part of the entries that a forced eviction removes, as a divisor of their number.
const FORCED_EVICTION_DIVISOR: usize = 8;

impl<K: Clone + Eq + Hash + Send + Sync + 'static, V: CacheEntry> Validated<K, V> {
    /// Takes a permit for `bytes`, waiting for it if necessary. Waiting is rare, since the budget covers the values in
    /// flight in addition to the full cache.
    ///
    /// # Errors
    /// Returns [`ReadError::Budget`] if the budget is too small or other requests hold its memory for too long.
    pub(crate) async fn take(&self, bytes: u64) -> Result<Permit, ReadError> {
        self.evict_while(bytes, self.budget.take(bytes)).await
    }

    /// Takes a permit as [`Self::take`] does, but waits longer, for a response that has started.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::take`].
    pub(crate) async fn take_for_started(&self, bytes: u64) -> Result<Permit, ReadError> {
        self.evict_while(bytes, self.budget.take_within(bytes, self.budget.started_wait())).await
    }

    /// Waits for `acquire`, which takes a permit for `bytes`. Meanwhile runs pending evictions, so that memory of
    /// evicted entries becomes free sooner.
    ///
    /// Evicted entries keep their memory while they are being sent. If slow clients keep memory short in this way, the
    /// cache evicts further entries. That does not help a client that waits for memory that it holds itself.
    async fn evict_while(
        &self,
        bytes: u64,
        acquire: impl Future<Output = Result<Permit, BudgetError>>,
    ) -> Result<Permit, ReadError> {
        let evict = async {
            for retry in 0u32.. {
                // Boxed, because every request for memory would reserve space for the unboxed future.
                Box::pin(self.evict_surplus()).await;
                let is_short = self.budget.free_bytes() < bytes;
                if is_short && self.budget.is_mostly_pinned() && retry >= RETRIES_BEFORE_FORCED_EVICTION {
                    Box::pin(self.force_eviction()).await;
                }
                // At most 1.28 s: the wait of a request is bounded, so a longer delay would come too late.
                tokio::time::sleep(EVICTION_RETRY_DELAY.saturating_mul(2_u32.saturating_pow(retry.min(8)))).await;
            }
        };
        tokio::select! {
            biased;
            permit = acquire => Ok(permit?),
            () = evict => Err(ReadError::Internal("the eviction loop ended unexpectedly".to_owned())),
        }
    }

    /// Evicts the number of entries divided by [`FORCED_EVICTION_DIVISOR`], and one more.
    pub(crate) async fn force_eviction(&self) {
        let count = usize::try_from(self.map.entry_count()).unwrap_or(usize::MAX) / FORCED_EVICTION_DIVISOR;
        let evicted: Vec<K> = self.map.iter().take(count + 1).map(|(key, _)| (*key).clone()).collect();
        for key in &evicted {
            self.map.invalidate(key).await;
        }
        self.evict_surplus().await;
    }

    /// Frees all entries. The map's own function only marks entries, and frees them at the next use of the map. A cache
    /// that has been replaced may never be used again.
    pub(crate) async fn drain(&self) {
        self.map.invalidate_all();
        // A round ends after 0.1 s, even if entries are left.
        for _ in 0..MAX_DRAIN_ROUNDS {
            self.map.run_pending_tasks().await;
            if self.map.entry_count() == 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}
