//! What waits for a disk, done where it keeps nobody else waiting, and waited for a bounded time.

use std::time::Duration;

use anyhow::Context;

/// Runs `job` in a thread of its own. One that outlasts `limit` is left to itself, and keeps its thread until it ends.
///
/// # Errors
/// Those of `job`, and that it does not end in time.
pub(super) async fn off_thread<T: Send + 'static>(
    limit: Duration,
    job: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    #[expect(clippy::disallowed_methods, reason = "the main thread accepts connections meanwhile")]
    let job = tokio::task::spawn_blocking(job);
    tokio::time::timeout(limit, job)
        .await
        .with_context(|| format!("the storage does not answer within {limit:?}"))??
}
