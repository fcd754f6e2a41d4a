//! Reads of planned slices: takes the memory, gathers the blocks, and returns the elements in the form that the caller
//! needs.
//!
//! | caller | function | result |
//! |---|---|---|
//! | `/slice`, if the elements are converted or encoded | [`SliceReader::read_whole`] | one buffer |
//! | `/slice`, if the elements are sent unchanged | [`SliceReader::read_pieces`] | buffers of about 1 MiB |
//! | responses in bands | [`BandStream::next`](super::BandStream::next) | buffers of about 1 MiB, for each band |
//! | derived results, [`derived`](super::derived) | [`SliceReader::read_whole`] | one buffer |
//!
//! A slice that is exactly one stored block shares the cached block's buffer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::canvas::{Canvas, Slab};
use super::gather::{Gather, load_overhead_bytes};
use super::nonblocking_gather::GatherContext;
use super::partial_reads::is_read_in_parts;
use super::plan::PlannedSlice;
use super::read_stats::ReadStats;
use crate::cache::{BlockEntry, MemoryPermit, Permit, ReadError, ReadOptions};
use crate::container::Container;
use n5_format::{GridPosition, Region};

/// Approximate size in bytes of the buffers in which a slice that is sent in pieces is assembled. A buffer is reused as
/// soon as it has been sent.
const SLAB_BYTES: u64 = 1 << 20;

/// Reads a planned slice as a whole. A [`BandStream`](super::BandStream) reads its bands with the same steps.
///
/// The elements have the type of the dataset: they are not converted yet. They are little-endian, first axis fastest.
/// Holes and elements outside the dataset are zero.
#[derive(Debug, Clone, Copy)]
pub struct SliceReader<'a> {
    /// Container of the dataset.
    pub container: &'a Container,
    /// How fresh the blocks must be, and whether the read may wait.
    pub options: ReadOptions,
    /// The slice.
    pub slice: &'a PlannedSlice,
}

/// Use of the elements, which decides whether a cached block is charged to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadPurpose {
    /// The elements are sent. A cached block is charged to the client while it is being sent.
    Response,
    /// A result is derived from the elements. No client is charged, because the result may be sent to any number of
    /// clients.
    Derivation,
    /// Like [`Self::Derivation`], but a block that cannot be decoded is left out if another one is intact.
    Preview,
}

/// Elements of a slice.
#[derive(Debug)]
pub struct SliceRead {
    /// Elements in the order in which they are sent; empty for a slice without elements.
    pub pieces: Vec<Bytes>,
    /// Permit for the memory of everything that the caller produces from the elements.
    pub memory: MemoryPermit,
    /// Counters of the blocks that were read.
    pub stats: ReadStats,
}

/// Permits for the memory of a read.
pub(super) struct ReadPermits {
    pub(super) elements: Permit,
    /// Permit for what the caller keeps beside the elements.
    pub(super) extra: Permit,
    /// Permit for looking up and loading blocks, which is dropped when all of them are pasted.
    pub(super) loading: Permit,
}

impl SliceReader<'_> {
    /// Reads the slice into one piece. Reserves `extra_bytes` of memory for data that the caller produces from it, in
    /// addition to the converted elements.
    ///
    /// # Errors
    /// Returns the [`ReadError`] of the first block that cannot be read, or an error if there is not enough memory.
    pub async fn read_whole(&self, extra_bytes: u64, purpose: ReadPurpose) -> Result<SliceRead, ReadError> {
        let Self { container, slice, .. } = *self;
        let budget = &container.resources.slice_budget;
        let held_bytes = slice.memory_bytes();
        let mut stats = ReadStats::default();
        if held_bytes == 0 {
            let permit = match extra_bytes {
                0 => None,
                _ => Some(container.slice_permit(extra_bytes, budget.take(extra_bytes)).await?),
            };
            return Ok(SliceRead { pieces: Vec::new(), memory: MemoryPermit::new(permit, budget), stats });
        }
        let stored_bytes = slice.region.elements().unwrap_or(u64::MAX).saturating_mul(slice.stored_width() as u64);
        let extra_bytes = held_bytes.saturating_add(extra_bytes).saturating_sub(stored_bytes);
        let take = |bytes| container.slice_permit(bytes, budget.take(bytes));
        let permits = self.reserve(&slice.region, stored_bytes, extra_bytes, take).await?;
        let ReadPermits { elements, extra, loading: _loading } = permits;
        let memory = MemoryPermit::new((extra_bytes > 0).then_some(extra), budget);
        let single_block = match purpose {
            ReadPurpose::Response => self.single_block_to_send(&mut stats).await?,
            ReadPurpose::Derivation | ReadPurpose::Preview => self.single_block(&mut stats).await?,
        };
        if let Some(elements) = single_block {
            return Ok(SliceRead { pieces: vec![elements], memory, stats });
        }
        let slab = Slab::new(slice.region.clone(), stored_bytes, elements)?;
        self.gather_whole(vec![slab], memory, purpose == ReadPurpose::Preview).await
    }

    /// Reads a slice that is sent unchanged. Each piece gives its memory back as soon as it is sent.
    ///
    /// # Errors
    /// Returns the errors of [`Self::read_whole`].
    pub async fn read_pieces(&self) -> Result<SliceRead, ReadError> {
        let Self { container, slice, .. } = *self;
        let budget = &container.resources.slice_budget;
        let memory = MemoryPermit::new(None, budget);
        let mut stats = ReadStats::default();
        let held_bytes = slice.memory_bytes();
        if held_bytes == 0 {
            return Ok(SliceRead { pieces: Vec::new(), memory, stats });
        }
        // Tried before slice memory is taken, because a request that waits for its client must not hold memory.
        if let Some(elements) = self.single_block_to_send(&mut stats).await? {
            return Ok(SliceRead { pieces: vec![elements], memory, stats });
        }
        let take = |bytes| container.slice_permit(bytes, budget.take_for_pooled_buffers(bytes));
        let permits = self.reserve(&slice.region, held_bytes, 0, take).await?;
        let slabs = match slice.region.rank() {
            0 => vec![Slab::new(slice.region.clone(), held_bytes, permits.elements)?],
            _ => cut_slabs(slice, &slice.region, permits.elements, None)?,
        };
        // `permits.loading` is dropped when all blocks have been pasted.
        self.gather_whole(slabs, memory, false).await
    }

    /// Fills `slabs`, the parts of the slice.
    async fn gather_whole(
        &self,
        slabs: Vec<Slab>,
        memory: MemoryPermit,
        skips_damaged: bool,
    ) -> Result<SliceRead, ReadError> {
        let (slabs, stats) = self.gather(&self.slice.region, slabs, Duration::ZERO, skips_damaged).await?;
        let budget = &self.container.resources.slice_budget;
        let pieces = slabs.into_iter().map(|(data, permit)| budget.own_pooled(data, permit)).collect();
        Ok(SliceRead { pieces, memory, stats })
    }

    /// Takes one permit for `elements_bytes` of elements of `region`, for `extra_bytes` beside them, and for loading
    /// the blocks. `take` takes the permit for the sum. Returns the three parts.
    ///
    /// The part for loading is cut to what the other two parts leave of the maximum for a stream. It is empty for a
    /// slice of nearly the whole budget, but only one such slice exists at a time.
    pub(super) async fn reserve<F: Future<Output = Result<Permit, ReadError>>>(
        &self,
        region: &Region,
        elements_bytes: u64,
        extra_bytes: u64,
        take: impl FnOnce(u64) -> F,
    ) -> Result<ReadPermits, ReadError> {
        let needed_bytes = elements_bytes.saturating_add(extra_bytes);
        let available_bytes = self.container.resources.slice_budget.max_stream_bytes().saturating_sub(needed_bytes);
        let blocks = self.slice.dataset.attributes.grid().covering(region).total();
        let loading_bytes = load_overhead_bytes(self.container, blocks).min(available_bytes);
        let mut elements = take(needed_bytes.saturating_add(loading_bytes)).await?;
        let loading = elements.split(loading_bytes);
        let extra = elements.split(extra_bytes);
        Ok(ReadPermits { elements, extra, loading })
    }

    /// Fills `slabs`, the parts of `region`, with the samples of all blocks. Loads that get no memory are retried for
    /// `retry_time`. `skips_damaged` is as in [`Gather`].
    pub(super) async fn gather(
        &self,
        region: &Region,
        slabs: Vec<Slab>,
        retry_time: Duration,
        skips_damaged: bool,
    ) -> Result<(Vec<(Vec<u8>, Permit)>, ReadStats), ReadError> {
        let Self { container, options, slice } = *self;
        let grid = slice.dataset.attributes.grid().clone();
        let axis = slowest_cut_axis(slice, region);
        let budget = &container.resources.slice_budget;
        let canvas = Canvas::new(grid, slice.stored_width(), region.clone(), axis, slabs, budget)
            .with_axis_order(slice.axis_order.clone());
        let context = Arc::new(GatherContext::new(container, options, slice, canvas));
        Gather { slice, context, retry_time, skips_damaged, stats: ReadStats::default() }.run().await
    }

    /// Returns the elements if the slice is exactly one block, like [`Self::single_block`], and charges them to the
    /// client while they are being sent.
    async fn single_block_to_send(&self, stats: &mut ReadStats) -> Result<Option<Bytes>, ReadError> {
        let budget = self.container.resources.blocks.budget();
        let mut send_permit = None;
        loop {
            let Some(bytes) = self.single_block(stats).await? else { return Ok(None) };
            if let Some(charged) = budget.charge_or_wait(&mut send_permit, bytes).await? {
                return Ok(Some(charged));
            }
            *stats = ReadStats::default();
        }
    }

    /// Returns the elements if the slice is exactly one block that is read whole. Returns `None` for all other slices,
    /// and if the stored block is missing or smaller than its place in the grid.
    async fn single_block(&self, stats: &mut ReadStats) -> Result<Option<Bytes>, ReadError> {
        let Self { container, options, slice } = *self;
        let Some(position) = self.single_block_position() else { return Ok(None) };
        if is_read_in_parts(container, slice, &slice.region, &position) {
            return Ok(None);
        }
        let entry = self.read_block(&position, stats).await?;
        stats.count_block(&position, &entry);
        if entry.block().is_none() {
            let confirmation = container.confirm_missing(options, &slice.dataset, std::slice::from_ref(&position));
            container.abort_if_contended(&slice.dataset.key, Box::pin(confirmation)).await?;
        }
        let block = entry.block().filter(|block| block.size == *slice.region.shape());
        Ok(block.map(|block| block.data.clone()))
    }

    /// Returns the position of the block that has exactly the slice's elements, if there is one.
    fn single_block_position(&self) -> Option<GridPosition> {
        let region = &self.slice.region;
        let grid = self.slice.dataset.attributes.grid();
        let mut covering = grid.covering(region);
        let (1, Some(position)) = (covering.total(), covering.next()) else { return None };
        let mut starts = region.start().iter().zip(grid.origin(&position));
        let starts_at_origin = starts.all(|(start, origin)| u64::try_from(*start).is_ok_and(|start| start == origin));
        let is_contiguous = region.step().iter().zip(region.shape()).all(|(step, samples)| *step == 1 || *samples == 1);
        let is_exact = starts_at_origin && is_contiguous && *region.shape() == grid.clipped_size(&position);
        is_exact.then_some(position)
    }

    /// Returns the block at `position`, from the cache if it is fresh there.
    async fn read_block(&self, position: &GridPosition, stats: &mut ReadStats) -> Result<Arc<BlockEntry>, ReadError> {
        let Self { container, options, slice } = *self;
        let blocks = &container.resources.blocks;
        let started = Instant::now();
        let location = container.block_location(&slice.dataset, position);
        let positions = std::slice::from_ref(position);
        let cached = blocks.cached(&*location.source, &slice.dataset, positions, container.data_since(options));
        let cached = container.abort_if_contended(&slice.dataset.key, Box::pin(cached)).await?.pop().flatten();
        stats.cache += started.elapsed();
        if let Some(entry) = cached {
            stats.hits += 1;
            return Ok(entry);
        }
        let load = blocks.load(location, container.data_since(options));
        let (entry, times) = container.abort_if_contended(&slice.dataset.key, Box::pin(load)).await?;
        stats.count_load(&times);
        Ok(entry)
    }
}

/// Cuts `region` into slabs, along the slowest axis of the response that has more than one sample. Each slab gets its part of `permit`.
/// The first slab also gets `header_permit`.
pub(super) fn cut_slabs(
    slice: &PlannedSlice,
    region: &Region,
    mut permit: Permit,
    mut header_permit: Option<Permit>,
) -> Result<Vec<Slab>, ReadError> {
    let axis = slowest_cut_axis(slice, region);
    let planes = region.shape()[axis];
    let elements = region.elements().unwrap_or(u64::MAX);
    if elements == 0 {
        // A region without elements could have up to 2^63 planes.
        return Ok(Vec::new());
    }
    let plane_elements = elements / planes.max(1);
    let depth = (SLAB_BYTES / plane_elements.saturating_mul(slice.memory_width).max(1)).max(1);
    let mut slabs = Vec::new();
    for from in (0..planes).step_by(usize::try_from(depth).unwrap_or(usize::MAX)) {
        let region = region.narrow(axis, from, depth);
        let elements = region.shape()[axis].saturating_mul(plane_elements);
        let mut slab_permit = permit.split(elements.saturating_mul(slice.memory_width));
        if let Some(header) = header_permit.take() {
            slab_permit.merge(header);
        }
        slabs.push(Slab::new(region, elements.saturating_mul(slice.stored_width() as u64), slab_permit)?);
    }
    Ok(slabs)
}

/// Returns the slowest axis, in the order in which `slice` is sent, along which `region` has more than one sample.
fn slowest_cut_axis(slice: &PlannedSlice, region: &Region) -> usize {
    let is_long = |axis: usize| region.shape().get(axis).is_some_and(|samples| *samples > 1);
    let axis = match &slice.axis_order {
        None => (0..region.rank()).rev().find(|axis| is_long(*axis)),
        Some(axes) => axes.iter().rev().copied().find(|axis| is_long(*axis)),
    };
    axis.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::plan::SlicePlanner;
    use super::super::tests::{container, container_with_blocks};
    use super::*;
    use crate::store::Key;

    #[tokio::test]
    async fn permits_of_one_size_leave_memory_for_smaller_ones() {
        let attributes = r#"{"dimensions":[4,4],"blockSize":[4,4],"dataType":"uint8","compression":{"type":"raw"}}"#;
        let container = container(1 << 20, 64 << 20, attributes);
        let budget = &container.resources.slice_budget;
        for (size, min_free_bytes) in [(2 << 20, 4 << 20), (256 << 10, 1 << 20), (16 << 10, 64 << 10)] {
            let permits: Vec<_> = std::iter::from_fn(|| budget.try_take(size)).collect();
            let free_bytes = budget.free_bytes();
            assert!(
                free_bytes >= min_free_bytes && free_bytes < min_free_bytes + size,
                "{free_bytes} bytes free beside permits of {size} bytes"
            );
            assert!(budget.try_take(size / 8).is_some(), "{free_bytes} bytes free beside permits of {size} bytes");
            drop(permits);
        }
    }

    #[tokio::test]
    async fn an_empty_slice_does_not_wait_for_memory() {
        let attributes = r#"{"dimensions":[4,4],"blockSize":[4,4],"dataType":"uint8","compression":{"type":"raw"}}"#;
        let container = container(1 << 20, 1 << 20, attributes);
        let options = ReadOptions::begin();
        let dataset = container.dataset(options, &Key::parse("v").unwrap()).await.unwrap();
        let slice = |shape: [u64; 2]| {
            let region = Region::new([0i64; 2][..].into(), shape[..].into(), [1u64; 2][..].into()).unwrap();
            SlicePlanner::whole(&container, &dataset).plan(&region).unwrap()
        };
        // Another request waits for all of the memory, so that not even a permit for 0 bytes is granted.
        let budget = &container.resources.slice_budget;
        let _held = budget.take(1 << 19).await.unwrap();
        let queue = tokio::spawn({
            let budget = budget.clone();
            async move { budget.take_within(1 << 20, Duration::from_secs(60)).await.map(drop) }
        });
        tokio::task::yield_now().await;
        let waiting = SliceReader { container: &container, options, slice: &slice([4, 1]) };
        assert!(waiting.read_pieces().await.is_err(), "the request must wait in the queue");
        for shape in [[0, 4], [4, 0], [0, 0]] {
            let reader = SliceReader { slice: &slice(shape), ..waiting };
            assert!(reader.read_pieces().await.unwrap().pieces.is_empty());
            assert!(reader.read_whole(0, ReadPurpose::Response).await.unwrap().pieces.is_empty());
        }
        queue.abort();
    }

    #[tokio::test]
    async fn loads_of_a_slice_count_toward_its_memory() {
        let container = container_with_blocks(Duration::from_secs(60));
        let resources = &container.resources;
        let options = ReadOptions::begin();
        let dataset = container.dataset(options, &Key::parse("v").unwrap()).await.unwrap();
        let held_permit = resources.blocks.budget().take(resources.blocks.budget().capacity_bytes()).await.unwrap();
        let free = || resources.slice_budget.free_bytes();
        let total_bytes = free();
        for (rows, loading_bytes) in [(256, 13_312), (2048, 100_352), (3072, 0)] {
            let region = Region::new([0, 0][..].into(), [256, rows][..].into(), [1, 1][..].into()).unwrap();
            let slice = SlicePlanner::whole(&container, &dataset).plan(&region).unwrap();
            let reader = SliceReader { container: &container, options, slice: &slice };
            let mut reading = Box::pin(reader.read_whole(0, ReadPurpose::Response));
            assert!(tokio::time::timeout(Duration::from_millis(20), &mut reading).await.is_err());
            assert_eq!(total_bytes - free(), 256 * rows + loading_bytes, "{rows}");
        }
        drop(held_permit);
        let region = Region::new([0, 0][..].into(), [256, 2048][..].into(), [1, 1][..].into()).unwrap();
        let slice = SlicePlanner::whole(&container, &dataset).plan(&region).unwrap();
        let reader = SliceReader { container: &container, options, slice: &slice };
        let read = reader.read_whole(0, ReadPurpose::Response).await.unwrap();
        let element_bytes: usize = read.pieces.iter().map(Bytes::len).sum();
        assert_eq!(element_bytes, 256 * 2048);
        assert_eq!(total_bytes - free(), element_bytes as u64, "only the elements are held");
    }
}
