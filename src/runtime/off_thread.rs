//! Runs jobs that may wait for a disk off the runtime's threads, and waits for them for a bounded time.

use std::time::Duration;

use anyhow::Context;
use tokio::sync::oneshot;

/// Runs `job` on a thread of its own. If it does not end within `timeout`, it is abandoned and keeps its thread until
/// it ends.
///
/// # Errors
/// Returns an error if `job` fails or does not end in time, or if the system cannot start a thread.
pub async fn off_thread<T: Send + 'static>(
    timeout: Duration,
    job: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (sender, receiver) = oneshot::channel();
    // Not `spawn_blocking`, which panics if the system cannot start a thread.
    std::thread::Builder::new()
        .name("n5-setting-up".to_owned())
        .spawn(move || drop(sender.send(job())))
        .context("the system cannot start a thread")?;
    let result = tokio::time::timeout(timeout, receiver).await;
    result.with_context(|| format!("the storage does not answer within {timeout:?}"))?.context("the job panicked")?
}
