//! What waits for a disk, done where it keeps nobody else waiting, and waited for a bounded time.

use std::time::Duration;

use anyhow::Context;
use tokio::sync::oneshot;

/// Runs `job` in a thread of its own. One that outlasts `limit` is left to itself, and keeps its thread until it ends.
///
/// # Errors
/// Those of `job`; that it does not end in time, and that the system has no thread to give.
pub(super) async fn off_thread<T: Send + 'static>(
    limit: Duration,
    job: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    let (tell, told) = oneshot::channel();
    // Not the runtime's: where there is none to be had, it panics.
    std::thread::Builder::new()
        .name("n5-setting-up".to_owned())
        .spawn(move || drop(tell.send(job())))
        .context("the system has no thread to give")?;
    let done = tokio::time::timeout(limit, told).await;
    done.with_context(|| format!("the storage does not answer within {limit:?}"))?.context("it panicked")?
}
