//! Statistics of a bounded sample of a dataset's elements, spread over the whole dataset.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::gather::load_overhead_bytes;
use super::read_stats::{Fingerprint, block_states};
use crate::cache::{BlockEntry, Dataset, MemoryPermit, ReadError, ReadOptions};
use crate::container::Container;
use crate::runtime::cpu_pool::Priority;
use n5_format::{BlockGrid, Coords, GridPosition, Statistics, StatisticsAccumulator};

/// Maximum number of blocks in the sample of a dataset that is not read completely.
const MAX_SAMPLED_BLOCKS: usize = 64;

/// Maximum number of blocks of a dataset that is read completely.
const MAX_EXHAUSTIVE_BLOCKS: usize = 512;

/// Maximum decoded size of a sample in bytes, unless a single block is larger.
const MAX_SAMPLED_BYTES: u64 = 32 << 20;

/// Maximum number of elements that are collected if a dataset is read completely. Elements of types with few values are
/// counted by value instead, without a maximum.
const MAX_EXHAUSTIVE_COLLECTED: u64 = 4 << 20;

/// Maximum number of elements that are collected if a dataset is sampled. From a larger sample, only every nth element
/// is collected, but all blocks of the sample are read.
const MAX_SAMPLED_COLLECTED: u64 = 1 << 20;

/// Maximum number of blocks whose existence is checked.
const MAX_PROBED_BLOCKS: usize = 1024;

/// A part of a dataset: the elements with one index along an axis, such as those of one channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatasetPart {
    /// The axis.
    pub axis: usize,
    /// The index along the axis.
    pub index: u64,
}

/// The blocks of a sample. None of them has been read yet.
#[derive(Debug, Clone)]
pub struct SamplePlan {
    dataset: Arc<Dataset>,
    /// The part of the dataset whose elements count; `None` for the whole dataset.
    part: Option<DatasetPart>,
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
    /// Number of blocks of the dataset's grid.
    pub blocks_total: u128,
    /// Number of blocks that were checked and do not exist.
    pub blocks_missing: u64,
    /// Number of elements of the sample that are not stored and therefore zero.
    pub elements_missing: u64,
    /// True if the statistics cover every element of the dataset.
    pub is_exact: bool,
}

/// Chooses the blocks of a sample: all blocks of a small dataset, or blocks that are evenly spread over a large one.
/// Skips blocks that do not exist. The sample of a dataset is the same for every request.
///
/// # Errors
/// Returns [`ReadError`] if the store fails.
pub async fn plan_sample(
    container: &Container,
    options: ReadOptions,
    dataset: &Arc<Dataset>,
) -> Result<SamplePlan, ReadError> {
    plan_sample_of(container, options, dataset, None).await
}

/// Like [`plan_sample`], but for a part of the dataset if `part` is given.
///
/// # Errors
/// Returns [`ReadError`] if the store fails.
pub async fn plan_sample_of(
    container: &Container,
    options: ReadOptions,
    dataset: &Arc<Dataset>,
    part: Option<DatasetPart>,
) -> Result<SamplePlan, ReadError> {
    let whole_grid = dataset.attributes.grid();
    let grid = part.map_or_else(|| whole_grid.clone(), |part| part.grid(whole_grid));
    let blocks_total = grid.shape().iter().fold(1_u128, |blocks, count| blocks.saturating_mul(u128::from(*count)));
    let max_elements = max_sample_elements(container, dataset, true);
    let covers_dataset =
        blocks_total <= MAX_EXHAUSTIVE_BLOCKS as u128 && element_count(grid.dimensions()) <= max_elements;
    let wanted_blocks = if covers_dataset { MAX_EXHAUSTIVE_BLOCKS } else { max_sampled_blocks(dataset) };
    let mut sample = SamplePlan {
        dataset: Arc::clone(dataset),
        part,
        positions: Vec::new(),
        blocks_total,
        blocks_missing: 0,
        elements_missing: 0,
        covers_dataset,
        fingerprint: Fingerprint::default(),
    };
    let to_dataset = |mut position: GridPosition| {
        if let Some(part) = part
            && let Some(coordinate) = position.get_mut(part.axis)
        {
            *coordinate = part.index / whole_grid.block_size().get(part.axis).copied().unwrap_or(1).max(1);
        }
        position
    };
    let mut candidates = grid.spread_positions().take(MAX_PROBED_BLOCKS).map(to_dataset);
    while sample.positions.len() < wanted_blocks {
        let batch: Vec<GridPosition> = candidates.by_ref().take(wanted_blocks - sample.positions.len()).collect();
        if batch.is_empty() {
            break;
        }
        sample.probe(container, options, batch).await?;
    }
    Ok(sample)
}

/// Returns the number of blocks in the sample of a dataset that is not read completely.
fn max_sampled_blocks(dataset: &Dataset) -> usize {
    let attributes = &dataset.attributes;
    let sizes = attributes.block_size().iter().zip(attributes.dimensions());
    let block_elements = sizes.map(|(block, size)| (*block).min(*size)).fold(1, u64::saturating_mul).max(1);
    let max_elements = MAX_SAMPLED_BYTES / attributes.data_type().size_bytes().unwrap_or(1).max(1) as u64;
    usize::try_from(max_elements / block_elements).unwrap_or(MAX_SAMPLED_BLOCKS).clamp(1, MAX_SAMPLED_BLOCKS)
}

impl DatasetPart {
    /// Returns a grid of those blocks of `whole` that hold elements of this part. Along the axis, it has one element.
    fn grid(self, whole: &BlockGrid) -> BlockGrid {
        let single = |mut sizes: Coords| {
            if let Some(size) = sizes.get_mut(self.axis) {
                *size = (*size).min(1);
            }
            sizes
        };
        let dimensions = single(whole.dimensions().clone());
        BlockGrid::new(dimensions, single(whole.block_size().clone())).unwrap_or_else(|| whole.clone())
    }

    /// Returns the offset in bytes of this part's first element in a block of `size`; `None` if the block has none.
    fn offset(self, dataset: &Dataset, size: &[u64]) -> Option<usize> {
        let attributes = &dataset.attributes;
        let within = self.index.checked_rem(*attributes.block_size().get(self.axis)?)?;
        let plane = element_count(size.get(..self.axis)?);
        let offset = within.checked_mul(plane)?.checked_mul(attributes.data_type().size_bytes()? as u64)?;
        usize::try_from(offset).ok().filter(|_| size.get(self.axis).is_some_and(|count| within < *count))
    }
}

fn element_count(shape: &[u64]) -> u64 {
    shape.iter().copied().fold(1, u64::saturating_mul)
}

impl SamplePlan {
    /// Adds the blocks at `positions` that exist, and counts the missing blocks.
    async fn probe(
        &mut self,
        container: &Container,
        options: ReadOptions,
        positions: Vec<GridPosition>,
    ) -> Result<(), ReadError> {
        for state in block_states(container, options, &self.dataset, positions).await? {
            let position = state.position;
            if let Some((etag, version)) = state.etag_and_version {
                self.fingerprint.add(&position, &etag, version);
                self.positions.push(position);
            } else {
                self.blocks_missing += 1;
                let elements = element_count(&self.clipped_size(&position));
                self.elements_missing = self.elements_missing.saturating_add(elements);
            }
        }
        Ok(())
    }

    /// Returns the size of the box of elements that count in the block at `position`.
    fn clipped_size(&self, position: &GridPosition) -> Coords {
        let mut size = self.dataset.attributes.grid().clipped_size(position);
        if let Some(size) = self.part.and_then(|part| size.get_mut(part.axis)) {
            *size = (*size).min(1);
        }
        size
    }

    /// Returns the number of elements of the blocks that exist.
    fn element_count(&self) -> u64 {
        let elements = self.positions.iter().map(|position| element_count(&self.clipped_size(position)));
        elements.fold(0, u64::saturating_add)
    }
}

/// Reads the blocks of a sample and computes statistics of their elements: a histogram of `bins` bins, and the
/// percentiles `percentages`, from 0 to 100.
///
/// Damaged blocks are skipped and counted.
///
/// # Errors
/// Returns [`ReadError`] if the store fails or there is not enough memory. Returns the error of a block if all blocks
/// are damaged.
pub async fn sample_statistics(
    container: &Container,
    options: ReadOptions,
    sample: SamplePlan,
    bins: usize,
    percentages: Vec<f64>,
) -> Result<SampleStatistics, ReadError> {
    let dataset = &sample.dataset;
    let elements = sample.element_count();
    let accumulation = Accumulation::new(container, &sample, elements).await?;
    let is_exhaustive = accumulation.accumulator.is_exhaustive();
    let mut accumulation = read_blocks(container, options, &sample, accumulation).await?;
    let Accumulation { pushed_elements, blocks_read, blocks_unreadable, .. } = accumulation;
    if blocks_read == 0
        && let Some(error) = accumulation.first_error.take()
    {
        return Err(error);
    }

    // A stored block that is smaller than its place in the grid leaves zeros, as a hole does. The size of a damaged
    // block is unknown.
    let unpushed_elements = if blocks_unreadable == 0 { elements.saturating_sub(pushed_elements) } else { 0 };
    let elements_missing = sample.elements_missing.saturating_add(unpushed_elements);
    let data_type = dataset.attributes.data_type();
    let zero_statistics = Statistics::of_zeros(data_type, elements_missing, bins, &percentages);
    let finish = move || accumulation.finish(bins, &percentages);
    let mut summary = container.resources.cpu.run(Priority::Low, dataset.id, finish).await?;
    match zero_statistics {
        Some(zeros) if summary.elements == 0 && elements_missing > 0 => summary = zeros,
        _ => summary.zeros = summary.zeros.saturating_add(elements_missing),
    }
    Ok(SampleStatistics {
        summary,
        blocks_read,
        blocks_unreadable,
        blocks_total: sample.blocks_total,
        blocks_missing: sample.blocks_missing,
        elements_missing,
        is_exact: sample.covers_dataset && is_exhaustive && blocks_unreadable == 0,
    })
}

/// Loads the blocks of a sample concurrently, and accumulates each as soon as it is loaded.
async fn read_blocks(
    container: &Container,
    options: ReadOptions,
    sample: &SamplePlan,
    mut accumulation: Accumulation,
) -> Result<Accumulation, ReadError> {
    let dataset = &sample.dataset;
    let mut pending = sample.positions.iter();
    let mut loads = FuturesUnordered::new();
    loop {
        while loads.len() < container.store.concurrent_reads()
            && let Some(position) = pending.next()
        {
            loads.push(read_block(container, options, dataset, position).map(move |result| (position, result)));
        }
        let next = loads.next().map(Ok::<_, ReadError>);
        let Some(first) = container.abort_if_contended(&dataset.key, next).await? else { return Ok(accumulation) };
        let mut ready = vec![first];
        while let Some(Some(next)) = loads.next().now_or_never() {
            ready.push(next);
        }
        let mut readable = Vec::with_capacity(ready.len());
        for (position, result) in ready {
            match result {
                Ok(entry) => readable.push((position.clone(), entry)),
                Err(error) if error.concerns_one_block() => {
                    accumulation.blocks_unreadable += 1;
                    accumulation.first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        let blocks = readable.into_iter().map(|(position, entry)| (sample.clipped_size(&position), entry)).collect();
        let job_dataset = Arc::clone(dataset);
        let part = sample.part;
        let accumulate = move || {
            accumulation.push(&job_dataset, part, blocks);
            accumulation
        };
        accumulation = container.resources.cpu.run(Priority::Low, dataset.id, accumulate).await?;
    }
}

/// Statistics of the elements that have been read so far. A job owns them while it runs, because it continues even if
/// no request waits any more.
struct Accumulation {
    accumulator: StatisticsAccumulator,
    /// Memory of the accumulator and of the loads, released after the accumulator is dropped.
    memory: MemoryPermit,
    pushed_elements: u64,
    blocks_read: u64,
    blocks_unreadable: u64,
    /// Error of the first unreadable block.
    first_error: Option<ReadError>,
}

impl Accumulation {
    /// Takes the memory for the `elements` elements of a sample and for loading the blocks.
    async fn new(container: &Container, sample: &SamplePlan, elements: u64) -> Result<Self, ReadError> {
        let data_type = sample.dataset.attributes.data_type();
        let limit = if StatisticsAccumulator::counts_by_value(data_type) {
            u64::MAX
        } else {
            max_sample_elements(container, &sample.dataset, sample.covers_dataset)
        };
        let not_decodable = || ReadError::Internal(format!("data type {data_type} cannot be decoded"));
        let bytes = StatisticsAccumulator::memory_bytes(data_type, elements.min(limit)).ok_or_else(not_decodable)?;
        let available_bytes = container.resources.slice_budget.capacity_bytes().saturating_sub(bytes);
        let loading_bytes = load_overhead_bytes(container, sample.positions.len() as u128).min(available_bytes);
        let memory = container.reserve_memory(bytes.saturating_add(loading_bytes)).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let accumulator = StatisticsAccumulator::new(data_type, elements, limit).ok_or_else(not_decodable)?;
        Ok(Self { accumulator, memory, pushed_elements: 0, blocks_read: 0, blocks_unreadable: 0, first_error: None })
    }

    /// Accumulates the elements of blocks of `dataset` that are in `part`. Each block comes with the size of the box of
    /// these elements.
    fn push(&mut self, dataset: &Dataset, part: Option<DatasetPart>, blocks: Vec<(Coords, Arc<BlockEntry>)>) {
        self.blocks_read += blocks.len() as u64;
        for (clipped_size, entry) in blocks {
            let Some(block) = entry.block() else { continue };
            let Some(offset) = part.map_or(Some(0), |part| part.offset(dataset, &block.size)) else { continue };
            let data = block.data.get(offset..).unwrap_or_default();
            self.pushed_elements += self.accumulator.push_block(data, &block.size, &clipped_size);
        }
    }

    fn finish(self, bins: usize, percentages: &[f64]) -> Statistics {
        let summary = self.accumulator.finish(bins, percentages);
        drop(self.memory);
        summary
    }
}

/// Returns the block at `position`, from the cache if it is fresh there.
async fn read_block(
    container: &Container,
    options: ReadOptions,
    dataset: &Arc<Dataset>,
    position: &GridPosition,
) -> Result<Arc<BlockEntry>, ReadError> {
    let blocks = &container.resources.blocks;
    let location = container.block_location(dataset, position);
    let positions = std::slice::from_ref(position);
    let fresh_since = container.data_since(options);
    let cached = blocks.cached(&*location.source, dataset, positions, fresh_since).await?;
    match cached.into_iter().next().flatten() {
        Some(entry) => Ok(entry),
        None => blocks.load(location, fresh_since).await.map(|(entry, _)| entry),
    }
}

/// Returns the maximum number of elements in a sample, from the limits of decoded and collected elements.
fn max_sample_elements(container: &Container, dataset: &Dataset, is_exhaustive: bool) -> u64 {
    let data_type = dataset.attributes.data_type();
    let width = data_type.size_bytes().unwrap_or(1) as u64;
    let max_collected = if is_exhaustive { MAX_EXHAUSTIVE_COLLECTED } else { MAX_SAMPLED_COLLECTED };
    let max_collected = max_collected.min(container.resources.settings().slice_budget / 16).max(1);
    let max_sampled = MAX_SAMPLED_BYTES.checked_div(width).unwrap_or(MAX_SAMPLED_BYTES);
    if StatisticsAccumulator::counts_by_value(data_type) { max_sampled } else { max_sampled.min(max_collected) }
}
