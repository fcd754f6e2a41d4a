//! Runs the work of a command on a runtime of its own.

use std::future::Future;

use anyhow::Context;
use tokio::runtime::Builder;

/// Runs `work` on the runtime that `builder` builds.
///
/// # Errors
/// If the runtime cannot be started, or `work` fails.
pub(super) fn block_on<T>(mut builder: Builder, work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = builder.enable_all().build().context("the runtime cannot be started")?;
    let result = runtime.block_on(work);
    // A read that hangs in storage must not keep the process alive.
    runtime.shutdown_background();
    result
}
