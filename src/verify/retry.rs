//! Retries while the storage does not answer, so that no sound file is reported as unreadable.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::cache::ReadError;
use crate::store::{Store, StoreError};

/// Delay before the second attempt. It doubles with each further attempt.
const INITIAL_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Retries operations while the storage does not answer.
#[derive(Debug)]
pub(super) struct StorageRetry {
    store: Arc<dyn Store>,
    /// Time from the first attempt after which an operation is no longer retried.
    max_elapsed: Duration,
    given_up: watch::Sender<Option<String>>,
}

impl StorageRetry {
    pub(super) fn new(store: Arc<dyn Store>, max_elapsed: Duration) -> Self {
        Self { store, max_elapsed, given_up: watch::Sender::new(None) }
    }

    /// Runs `attempt`, repeats it while the storage answers no request, and returns the last result.
    ///
    /// If the storage answers nothing for too long, [`Self::wait_until_given_up`] ends the run, and this future never
    /// completes. If the storage answers a probe, the error concerns only one file and is returned.
    pub(super) async fn run<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, ReadError>
    where
        F: Future<Output = Result<T, ReadError>>,
    {
        let started = Instant::now();
        let mut backoff = INITIAL_BACKOFF;
        loop {
            let error = match attempt().await {
                Err(error) if is_transient(&error) => error,
                other => return other,
            };
            if started.elapsed() >= self.max_elapsed {
                if self.store.probe().await.is_ok() {
                    return Err(error);
                }
                self.given_up.send_replace(Some(error.to_string()));
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(backoff).await;
            backoff = backoff.saturating_mul(2).min(MAX_BACKOFF);
        }
    }

    /// Completes with the reason when the storage has answered no request for too long.
    pub(super) async fn wait_until_given_up(&self) -> String {
        let mut receiver = self.given_up.subscribe();
        let reason = receiver.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
        // The wait ends only with a reason, because the sender is a part of `self` and cannot be dropped meanwhile.
        reason.unwrap_or_default()
    }
}

/// Returns true if the operation may succeed once the storage works again.
fn is_transient(error: &ReadError) -> bool {
    let ReadError::Store(error) = error else { return false };
    matches!(
        error,
        StoreError::Stalled(..)
            | StoreError::Timeout(..)
            | StoreError::RootMissing(_)
            | StoreError::Overloaded(..)
            | StoreError::Throttled(..)
            | StoreError::Denied { .. }
    ) || error.kind() == "descriptors"
}
