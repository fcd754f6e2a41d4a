//! Automatic windows: the values that a picture shows as black and as white, from a sample of a dataset.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::sample::{DatasetPart, plan_sample_of, sample_statistics};
use crate::cache::{Dataset, ReadError, ReadOptions};
use crate::container::Container;
use n5_format::Statistics;

/// Returns the window of a dataset, or of a part of it, such as a channel: from the 1st to the 99.9th percentile of the
/// elements that `/stats` samples. [`Statistics::auto_window`] has the rule for elements that hardly differ.
///
/// The window is computed again only if a block of the sample has changed. Concurrent requests share one computation.
///
/// # Errors
/// Returns the errors of [`sample_statistics`].
pub async fn auto_window(
    container: &Container,
    options: ReadOptions,
    dataset: &Arc<Dataset>,
    part: Option<DatasetPart>,
) -> Result<(f64, f64), ReadError> {
    let sample = plan_sample_of(container, options, dataset, part).await?;
    let key = format!("{} {part:?} {} {}", dataset.id, sample.fingerprint.versions_hash, sample.blocks_missing);
    let compute = async {
        let percentages = Statistics::WINDOW_PERCENTAGES.to_vec();
        let statistics = sample_statistics(container, options, sample, 1, percentages).await?;
        Ok::<_, ReadError>(statistics.summary.auto_window())
    };
    let window = container.resources.windows.try_get_with(xxh3_128(key.as_bytes()), Box::pin(compute)).await;
    window.map_err(|error| (*error).clone())
}
