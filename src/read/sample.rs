//! Statistics of a bounded sample of a dataset's elements, spread over the whole dataset.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::gather::{MAX_CONCURRENT_LOADS, load_overhead_bytes};
use super::read_stats::Fingerprint;
use crate::cache::{BlockEntry, Dataset, Freshness, MemoryPermit, ReadError};
use crate::container::Container;
use crate::runtime::cpu_pool::Priority;
use crate::store::Key;
use n5_format::{GridPosition, Statistics, StatisticsAccumulator};

/// Maximum number of blocks of a sample that does not cover the dataset.
const MAX_SAMPLED_BLOCKS: usize = 64;

/// Maximum number of blocks of a dataset that is read completely.
const MAX_EXHAUSTIVE_BLOCKS: usize = 512;

/// Maximum number of decoded bytes, unless a single block has more.
const MAX_SAMPLED_BYTES: u64 = 32 << 20;

/// Maximum numbers of elements that are listed, for types that are not counted by value: for a dataset that is read
/// completely, and for one that is sampled. If a sample has more elements, every n-th one is listed; all its blocks are
/// read.
const MAX_LISTED_ELEMENTS: (u64, u64) = (4 << 20, 1 << 20);

/// Maximum number of blocks whose existence is checked.
const MAX_PROBED_BLOCKS: usize = 1024;

/// The blocks of a sample. None of them has been read yet.
#[derive(Debug, Clone)]
pub struct SamplePlan {
    dataset: Arc<Dataset>,
    /// Positions of the blocks that exist.
    positions: Vec<GridPosition>,
    /// Number of blocks of the dataset's grid.
    pub blocks_total: u128,
    /// Number of blocks that were checked and do not exist.
    pub blocks_missing: u64,
    /// Number of the dataset's elements in the missing blocks.
    elements_missing: u64,
    /// True if every block of the dataset was checked.
    pub covers_dataset: bool,
    /// Fingerprint of the blocks of the sample.
    pub fingerprint: Fingerprint,
}

/// Statistics of a sample.
#[derive(Debug, Clone)]
pub struct SampleStatistics {
    /// Statistics of the elements. Elements of missing blocks count only in `zeros`, unless there are no other
    /// elements.
    pub summary: Statistics,
    /// Number of blocks that were read.
    pub blocks_read: u64,
    /// Number of blocks that are damaged or too large to be decoded.
    pub blocks_unreadable: u64,
    /// Number of elements of the sample that are not stored and therefore zero.
    pub elements_missing: u64,
    /// True if the statistics cover every element of the dataset.
    pub is_exact: bool,
}

/// Chooses the blocks of a sample: all blocks of a small dataset, otherwise a number of evenly spread ones. Skips
/// blocks that do not exist. The sample of a dataset is the same for every request.
///
/// # Errors
/// [`ReadError`] when the store fails.
pub async fn plan_sample(container: &Container, dataset: &Arc<Dataset>) -> Result<SamplePlan, ReadError> {
    let attributes = &dataset.attributes;
    let grid = attributes.grid();
    let blocks_total = grid.shape().iter().fold(1_u128, |n, count| n.saturating_mul(u128::from(*count)));
    let product = |list: &mut dyn Iterator<Item = u64>| list.fold(1_u64, u64::saturating_mul);
    let sizes = attributes.block_size().iter().zip(attributes.dimensions());
    let block_elements = product(&mut sizes.map(|(block, size)| (*block).min(*size))).max(1);
    let all_elements = product(&mut attributes.dimensions().iter().copied());
    let is_exhaustive =
        blocks_total <= MAX_EXHAUSTIVE_BLOCKS as u128 && all_elements <= max_sample_elements(container, dataset, true);
    let max_elements = MAX_SAMPLED_BYTES / attributes.data_type().size_bytes().unwrap_or(1).max(1) as u64;
    let wanted_blocks = if is_exhaustive {
        MAX_EXHAUSTIVE_BLOCKS
    } else {
        usize::try_from(max_elements / block_elements).unwrap_or(MAX_SAMPLED_BLOCKS).clamp(1, MAX_SAMPLED_BLOCKS)
    };
    let mut sample = SamplePlan {
        dataset: Arc::clone(dataset),
        positions: Vec::new(),
        blocks_total,
        blocks_missing: 0,
        elements_missing: 0,
        covers_dataset: is_exhaustive,
        fingerprint: Fingerprint::default(),
    };
    let mut candidates = grid.spread_positions().take(MAX_PROBED_BLOCKS);
    while sample.positions.len() < wanted_blocks {
        let batch: Vec<GridPosition> = candidates.by_ref().take(wanted_blocks - sample.positions.len()).collect();
        if batch.is_empty() {
            break;
        }
        let keys: Vec<Key> = batch.iter().map(|position| dataset.block_key(position)).collect();
        let metas = container.store.head_many(keys).await?;
        for (position, meta) in batch.into_iter().zip(metas) {
            if let Some(meta) = meta {
                sample.fingerprint.add(&position, &meta.etag, meta.version);
                sample.positions.push(position);
            } else {
                sample.blocks_missing += 1;
                let elements = product(&mut grid.clipped_size(&position).iter().copied());
                sample.elements_missing = sample.elements_missing.saturating_add(elements);
            }
        }
    }
    Ok(sample)
}

/// Reads the blocks of a sample and computes statistics of their elements: a histogram of `bins` bins, and the
/// percentiles `percentages`, from 0 to 100.
///
/// Damaged blocks are skipped and counted.
///
/// # Errors
/// [`ReadError`] when the store fails or memory is short, or the error of a block when all blocks are damaged.
pub async fn sample_statistics(
    container: &Container,
    freshness: Freshness,
    sample: SamplePlan,
    bins: usize,
    percentages: Vec<f64>,
) -> Result<SampleStatistics, ReadError> {
    let dataset = &sample.dataset;
    let (grid, data_type) = (dataset.attributes.grid(), dataset.attributes.data_type());
    let elements = sample.positions.iter().fold(0_u64, |sum, position| {
        let size = grid.clipped_size(position);
        sum.saturating_add(size.iter().copied().fold(1, u64::saturating_mul))
    });
    // The permit is declared first, so that it is released after the memory that it covers.
    let (mut memory, mut accumulator) = reserve_accumulator(container, &sample, elements).await?;
    let is_exhaustive = accumulator.is_exhaustive();
    let mut pushed_elements = 0_u64;
    let (mut blocks_read, mut blocks_unreadable, mut first_error) = (0, 0, None);

    let mut pending = sample.positions.iter();
    let mut loads = FuturesUnordered::new();
    loop {
        while loads.len() < MAX_CONCURRENT_LOADS
            && let Some(position) = pending.next()
        {
            loads.push(load_block(container, freshness, dataset, position).map(move |result| (position, result)));
        }
        let next = loads.next().map(Ok::<_, ReadError>);
        let Some(first) = container.abort_if_contended(&dataset.key, next).await? else { break };
        let mut ready = vec![first];
        while let Some(Some(next)) = loads.next().now_or_never() {
            ready.push(next);
        }
        let mut readable = Vec::with_capacity(ready.len());
        for (position, result) in ready {
            match result {
                Ok(entry) => readable.push((position.clone(), entry)),
                Err(error @ (ReadError::Block { .. } | ReadError::StoredTooLarge { .. })) => {
                    blocks_unreadable += 1;
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        blocks_read += readable.len() as u64;
        let job_dataset = Arc::clone(dataset);
        // The accumulator goes with the permit for its memory, even into a job that no request waits for any more.
        let accumulate = move || {
            let grid = job_dataset.attributes.grid();
            for (position, entry) in readable {
                if let Some(block) = &entry.block {
                    pushed_elements += accumulator.push_block(&block.data, &block.size, &grid.clipped_size(&position));
                }
            }
            (accumulator, memory, pushed_elements)
        };
        (accumulator, memory, pushed_elements) =
            container.resources.cpu.run(Priority::Low, dataset.id, accumulate).await?;
    }
    if let (0, Some(error)) = (blocks_read, first_error) {
        return Err(error);
    }

    // Blocks that are smaller than their cell of the grid leave zeros, as holes do. The size of damaged blocks is
    // unknown.
    let unpushed_elements = if blocks_unreadable == 0 { elements.saturating_sub(pushed_elements) } else { 0 };
    let elements_missing = sample.elements_missing.saturating_add(unpushed_elements);
    let zero_statistics = Statistics::of_zeros(data_type, elements_missing, bins, &percentages);
    let finish = move || {
        let summary = accumulator.finish(bins, &percentages);
        drop(memory);
        summary
    };
    let mut summary = container.resources.cpu.run(Priority::Low, dataset.id, finish).await?;
    match zero_statistics {
        Some(zeros) if summary.elements == 0 && elements_missing > 0 => summary = zeros,
        _ => summary.zeros = summary.zeros.saturating_add(elements_missing),
    }
    Ok(SampleStatistics {
        summary,
        blocks_read,
        blocks_unreadable,
        elements_missing,
        is_exact: sample.covers_dataset && is_exhaustive && blocks_unreadable == 0,
    })
}

/// Creates the accumulator for the `elements` elements of a sample, with a permit for its memory and for loading the
/// blocks.
async fn reserve_accumulator(
    container: &Container,
    sample: &SamplePlan,
    elements: u64,
) -> Result<(MemoryPermit, StatisticsAccumulator), ReadError> {
    let data_type = sample.dataset.attributes.data_type();
    let limit = if StatisticsAccumulator::counts_by_value(data_type) {
        u64::MAX
    } else {
        max_sample_elements(container, &sample.dataset, sample.covers_dataset)
    };
    let not_decodable = || ReadError::Internal(format!("data type {data_type} cannot be decoded"));
    let bytes = StatisticsAccumulator::memory_bytes(data_type, elements.min(limit)).ok_or_else(not_decodable)?;
    let available_bytes = container.resources.slice_budget.capacity_bytes().saturating_sub(bytes);
    let loading_bytes = load_overhead_bytes(sample.positions.len() as u128).min(available_bytes);
    let memory = container.reserve_memory(bytes.saturating_add(loading_bytes)).await?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let accumulator = StatisticsAccumulator::new(data_type, elements, limit).ok_or_else(not_decodable)?;
    Ok((memory, accumulator))
}

/// Returns the block at `position`, from the cache if it is fresh there.
async fn load_block(
    container: &Container,
    freshness: Freshness,
    dataset: &Arc<Dataset>,
    position: &GridPosition,
) -> Result<Arc<BlockEntry>, ReadError> {
    let (blocks, location) = (&container.resources.blocks, container.block_location(dataset, position));
    let positions = std::slice::from_ref(position);
    let cached = blocks.cached(&*location.source, dataset, positions, freshness.data_since).await?;
    match cached.into_iter().next().flatten() {
        Some(entry) => Ok(entry),
        None => blocks.load(location, freshness.data_since).await.map(|(entry, _)| entry),
    }
}

/// Returns the maximum number of elements in a sample, from the limits of decoded and listed elements.
fn max_sample_elements(container: &Container, dataset: &Dataset, is_exhaustive: bool) -> u64 {
    let data_type = dataset.attributes.data_type();
    let width = data_type.size_bytes().unwrap_or(1) as u64;
    let max_listed = if is_exhaustive { MAX_LISTED_ELEMENTS.0 } else { MAX_LISTED_ELEMENTS.1 };
    let max_listed = max_listed.min(container.resources.settings.slice_budget / 16).max(1);
    let max_sampled = MAX_SAMPLED_BYTES.checked_div(width).unwrap_or(MAX_SAMPLED_BYTES);
    if StatisticsAccumulator::counts_by_value(data_type) { max_sampled } else { max_sampled.min(max_listed) }
}
