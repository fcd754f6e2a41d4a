//! Storage that does not answer for a while: waited for, so that no sound file is told to be unreadable.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::container::ReadError;
use crate::store::{Store, StoreError};

/// Time until the second attempt; doubled from one to the next.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Asks again while storage does not answer.
#[derive(Debug)]
pub(super) struct Patience {
    store: Arc<dyn Store>,
    /// How long.
    most: Duration,
    given_up: watch::Sender<Option<String>>,
}

impl Patience {
    pub(super) fn new(store: Arc<dyn Store>, most: Duration) -> Self {
        Self { store, most, given_up: watch::Sender::new(None) }
    }

    /// What `attempt` comes to, made again for as long as the storage answers nobody.
    ///
    /// Where that lasts too long, [`Self::given_up`] ends the run, and this never. Where the storage answers others by
    /// then, the error is that of one file, and is what comes of it.
    pub(super) async fn with<T, F>(&self, attempt: impl Fn() -> F) -> Result<T, ReadError>
    where
        F: Future<Output = Result<T, ReadError>>,
    {
        let (begun, mut wait) = (Instant::now(), FIRST_WAIT);
        loop {
            let error = match attempt().await {
                Err(error) if may_pass(&error) => error,
                other => return other,
            };
            if begun.elapsed() >= self.most {
                match self.store.probe().await {
                    Ok(()) => return Err(error),
                    Err(_) => self.give_up(&error).await,
                }
            }
            tokio::time::sleep(wait).await;
            wait = wait.saturating_mul(2).min(LONGEST_WAIT);
        }
    }

    async fn give_up(&self, error: &ReadError) {
        self.given_up.send_replace(Some(error.to_string()));
        std::future::pending::<()>().await;
    }

    /// Ready, with the reason, when the storage has answered nobody for too long.
    pub(super) async fn given_up(&self) -> String {
        let mut told = self.given_up.subscribe();
        let why = told.wait_for(Option::is_some).await.ok().and_then(|why| why.clone());
        // The sender lives as long as `self`: there always is a reason.
        why.unwrap_or_default()
    }
}

/// Whether the same may be read later, with nothing mended but the storage as a whole.
fn may_pass(error: &ReadError) -> bool {
    let ReadError::Store(error) = error else { return false };
    matches!(error, StoreError::Stalled(..) | StoreError::Timeout(..) | StoreError::Gone(_) | StoreError::Crowded(..))
        || error.kind() == "descriptors"
}
