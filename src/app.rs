//! Stand-in until the server is assembled here.

use crate::config::Config;

/// Serves `config` until a signal ends it. To be replaced: tells what would be served.
///
/// # Errors
/// None yet.
#[expect(clippy::unused_async, reason = "to be replaced by the server, which waits")]
pub async fn serve(config: Config) -> anyhow::Result<()> {
    tracing::warn!("nothing is served yet:\n{}", config.summary());
    Ok(())
}
