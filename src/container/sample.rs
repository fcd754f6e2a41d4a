//! Reading a bounded part of a dataset, spread over all of it, to tell what its elements are like.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::ahead::{LOADS, bytes_to_load};
use super::blocks::Loaded;
use super::measured::measured;
use super::memory::Memory;
use super::stats::Fingerprint;
use super::{Access, Container, Dataset, ReadError};
use crate::cpu::Length;
use crate::metrics::StoreOperation;
use crate::n5::{Accumulator, GridPosition, Summary};
use crate::store::Key;

/// Most blocks of a dataset that is read in part.
const BLOCKS: usize = 64;

/// Most blocks of a dataset that is read as a whole.
const ALL_BLOCKS: usize = 512;

/// Most decoded bytes, unless a single block has more.
const BYTES: u64 = 32 << 20;

/// Most elements that are listed, of types that are not counted by value: of a dataset that is read as a whole,
/// and of one that is read in part, whose elements are then thinned out rather than its blocks.
const ELEMENTS: (u64, u64) = (4 << 20, 1 << 20);

/// Most blocks whose existence is looked up.
const LOOKED_UP: usize = 1024;

/// Which blocks a sample consists of; none has been read yet.
#[derive(Debug, Clone)]
pub struct Sample {
    dataset: Arc<Dataset>,
    /// Those that exist.
    positions: Vec<GridPosition>,
    /// Blocks of the dataset.
    pub blocks_total: u128,
    /// Blocks that were looked for and do not exist.
    pub blocks_missing: u64,
    /// Elements of the dataset that these would have.
    elements_missing: u64,
    /// Whether every block of the dataset was looked for.
    pub whole: bool,
    /// Tells apart what will be read.
    pub fingerprint: Fingerprint,
}

/// What a sample says about a dataset.
#[derive(Debug, Clone)]
pub struct Survey {
    /// What its elements are like; those of blocks that do not exist count in `zeros` alone, unless there are no
    /// others.
    pub summary: Summary,
    /// Blocks that were read.
    pub blocks_read: u64,
    /// Blocks that are damaged or too large to be decoded.
    pub blocks_unreadable: u64,
    /// Elements of the sample that are not stored and therefore zero.
    pub elements_missing: u64,
    /// Whether every element of the dataset is known.
    pub exact: bool,
}

impl Container {
    /// Chooses the blocks of a sample: all of a small dataset, else some that are spread evenly. Blocks that
    /// do not exist are passed over. The same dataset has the same sample at every request.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn plan_sample(&self, dataset: &Arc<Dataset>) -> Result<Sample, ReadError> {
        let attributes = &dataset.attributes;
        let grid = attributes.grid();
        let blocks_total = grid.shape().iter().fold(1_u128, |n, count| n.saturating_mul(u128::from(*count)));
        let product = |list: &mut dyn Iterator<Item = u64>| list.fold(1_u64, u64::saturating_mul);
        let sizes = attributes.block_size().iter().zip(attributes.dimensions());
        let block_elements = product(&mut sizes.map(|(block, size)| (*block).min(*size))).max(1);
        let all_elements = product(&mut attributes.dimensions().iter().copied());
        let whole = blocks_total <= ALL_BLOCKS as u128 && all_elements <= self.most_elements(dataset, true);
        let most = BYTES / attributes.data_type().size_bytes().unwrap_or(1).max(1) as u64;
        let wanted =
            if whole { ALL_BLOCKS } else { usize::try_from(most / block_elements).unwrap_or(BLOCKS).clamp(1, BLOCKS) };
        let mut sample = Sample {
            dataset: Arc::clone(dataset),
            positions: Vec::new(),
            blocks_total,
            blocks_missing: 0,
            elements_missing: 0,
            whole,
            fingerprint: Fingerprint::default(),
        };
        let mut candidates = grid.spread().take(LOOKED_UP);
        while sample.positions.len() < wanted {
            let batch: Vec<GridPosition> = candidates.by_ref().take(wanted - sample.positions.len()).collect();
            if batch.is_empty() {
                break;
            }
            let keys: Vec<Key> = batch.iter().map(|position| dataset.block_key(position)).collect();
            let metas = measured(StoreOperation::Head, self.store.backend(), self.store.head_many(keys)).await?;
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

    /// Reads the blocks of a sample and says what their elements are like: a histogram of `bins` bins, and
    /// `percentages`, from 0 to 100.
    ///
    /// Damaged blocks are passed over and counted.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails or memory is short, or of a block when all are damaged.
    pub async fn survey(
        &self,
        access: Access,
        sample: Sample,
        bins: usize,
        percentages: Vec<f64>,
    ) -> Result<Survey, ReadError> {
        let dataset = &sample.dataset;
        let (grid, data_type) = (dataset.attributes.grid(), dataset.attributes.data_type());
        let elements = sample.positions.iter().fold(0_u64, |sum, position| {
            let size = grid.clipped_size(position);
            sum.saturating_add(size.iter().copied().fold(1, u64::saturating_mul))
        });
        let limit =
            if Accumulator::is_counted(data_type) { u64::MAX } else { self.most_elements(dataset, sample.whole) };
        let undecoded = || ReadError::Died(format!("{data_type} is not decoded"));
        let bytes = Accumulator::bytes(data_type, elements.min(limit)).ok_or_else(undecoded)?;
        let left = self.resources.slice_budget.capacity_bytes().saturating_sub(bytes);
        let loading_bytes = bytes_to_load(sample.positions.len() as u128).min(left);
        let memory = self.reserve(bytes.saturating_add(loading_bytes)).await?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let accumulator = Accumulator::new(data_type, elements, limit).ok_or_else(undecoded)?;
        let takes_all = accumulator.takes_all();
        let mut work = Work { accumulator, memory, inside: 0 };
        let (mut read, mut unreadable, mut first_error) = (0, 0, None);
        let blocks = &self.resources.blocks;
        let mut waiting = sample.positions.iter();
        let mut loads = FuturesUnordered::new();
        loop {
            while loads.len() < LOADS
                && let Some(position) = waiting.next()
            {
                let load = async move {
                    let at = std::slice::from_ref(position);
                    let cached = blocks.cached(&*self.store, dataset, at, access.data_since).await?.pop().flatten();
                    match cached {
                        Some(loaded) => Ok(loaded),
                        None => Ok(blocks.load(self.place(dataset, position), access.data_since).await?.0),
                    }
                };
                loads.push(load.map(move |loaded| (position, loaded)));
            }
            let next = loads.next().map(Ok::<_, ReadError>);
            let Some(first) = self.unless_needed(&dataset.key, next).await? else { break };
            let mut ready = vec![first];
            while let Some(Some(next)) = loads.next().now_or_never() {
                ready.push(next);
            }
            let mut sound = Vec::with_capacity(ready.len());
            for (position, result) in ready {
                match result {
                    Ok(loaded) => sound.push((position.clone(), loaded)),
                    Err(error @ (ReadError::Block { .. } | ReadError::StoredTooLarge { .. })) => {
                        unreadable += 1;
                        first_error.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
            read += sound.len() as u64;
            work = self.take_in(dataset, work, sound).await?;
        }
        if let (0, Some(error)) = (read, first_error) {
            return Err(error);
        }
        // Blocks that are smaller than their place in the grid leave zeros, as holes do. Of damaged ones nothing is known.
        let short = if unreadable == 0 { elements.saturating_sub(work.inside) } else { 0 };
        let elements_missing = sample.elements_missing.saturating_add(short);
        let of_zeros = Summary::of_zeros(data_type, elements_missing, bins, &percentages);
        let Work { accumulator, memory, .. } = work;
        let finish = move || {
            let summary = accumulator.finish(bins, &percentages);
            drop(memory);
            summary
        };
        let mut summary = self.resources.cpu.run(Length::Long, dataset.id, finish).await?;
        match of_zeros {
            Some(zeros) if summary.elements == 0 && elements_missing > 0 => summary = zeros,
            _ => summary.zeros = summary.zeros.saturating_add(elements_missing),
        }
        Ok(Survey {
            summary,
            blocks_read: read,
            blocks_unreadable: unreadable,
            elements_missing,
            exact: sample.whole && takes_all && unreadable == 0,
        })
    }

    /// Most elements that are looked at, by what may be decoded and what may be listed.
    fn most_elements(&self, dataset: &Dataset, whole: bool) -> u64 {
        let data_type = dataset.attributes.data_type();
        let width = data_type.size_bytes().unwrap_or(1) as u64;
        let listed = if whole { ELEMENTS.0 } else { ELEMENTS.1 };
        let listed = listed.min(self.resources.settings.slice_budget / 16).max(1);
        let most = BYTES.checked_div(width).unwrap_or(BYTES);
        if Accumulator::is_counted(data_type) { most } else { most.min(listed) }
    }

    /// Adds blocks to the tally, on the CPU lane.
    async fn take_in(
        &self,
        dataset: &Arc<Dataset>,
        mut work: Work,
        blocks: Vec<(GridPosition, Arc<Loaded>)>,
    ) -> Result<Work, ReadError> {
        let (dataset, party) = (Arc::clone(dataset), dataset.id);
        let job = move || {
            let grid = dataset.attributes.grid();
            for (position, loaded) in blocks {
                if let Some(block) = &loaded.block {
                    work.inside += work.accumulator.push_block(&block.data, &block.size, &grid.clipped_size(&position));
                }
            }
            work
        };
        Ok(self.resources.cpu.run(Length::Long, party, job).await?)
    }
}

/// A tally and the memory that it takes, which goes where it goes.
struct Work {
    accumulator: Accumulator,
    memory: Memory,
    /// Elements given to the tally.
    inside: u64,
}
