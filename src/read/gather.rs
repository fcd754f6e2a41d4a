//! Reading a region: takes memory, gathers cached blocks, loads the missing ones and pastes them as they become ready.
//! A region that is exactly one stored block shares the cached block's buffer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, FuturesUnordered, StreamExt, TryStreamExt};

use super::canvas::{Canvas, Slab};
use super::nonblocking_gather::{GatherContext, PasteItem};
use super::partial_reads::{is_read_in_parts, paste_parts};
use super::plan::PlannedSlice;
use super::read_stats::ReadStats;
use crate::cache::{BudgetError, Freshness, MemoryPermit, Permit, ReadError};
use crate::container::Container;
use crate::runtime::cpu_pool::Priority;
use crate::runtime::fair_queue::ClientId;
use n5_format::{ConvertError, GridPosition, Region};

/// Size of a CPU cache line: bytes fetched for a sample that is not adjacent to others.
const CACHE_LINE_BYTES: u64 = 64;

/// Approximate size of the buffers in which slices that are sent in pieces are assembled. A buffer is reused as soon as
/// it is sent.
const SLAB_BYTES: u64 = 1 << 20;

/// Maximum number of blocks that one request loads at once.
pub(crate) const MAX_CONCURRENT_LOADS: usize = 8;

/// Upper bound of the memory that the tasks and futures of one load take in addition to the block, in bytes.
const LOAD_OVERHEAD_BYTES: u64 = 12 << 10;

/// Maximum number of cached blocks that one slice looks up and pastes at once.
const MAX_LOOKUP_BATCH: u64 = 256;

/// Upper bound of the memory that a slice takes for each of these blocks (positions, keys, pointers), in bytes.
const LOOKUP_OVERHEAD_BYTES: u64 = 256;

/// Maximum decoded size of the blocks that one slice looks up at once, in bytes, if this allows fewer blocks.
const MAX_LOOKUP_BATCH_BYTES: u64 = 32 << 20;

/// Pause before a block is loaded again for which there was no memory.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// Transforms a converted piece of a streamed slice into the bytes that are sent. The length stays the same.
pub type PieceTransform = Arc<dyn Fn(Bytes) -> Bytes + Send + Sync>;

/// Reads a slice that is not streamed. Reserves `extra_bytes` of memory for data that the caller produces from it,
/// in addition to the converted elements.
///
/// The returned elements are those of the dataset, not converted yet: little-endian, first axis fastest. Holes and
/// elements outside the dataset are zero. A region that is exactly one stored block shares the cached block's
/// buffer.
///
/// # Errors
/// [`ReadError`] of the first block that cannot be read, or when memory is short.
pub async fn read_slice(
    container: &Container,
    freshness: Freshness,
    slice: &PlannedSlice,
    extra_bytes: u64,
) -> Result<(Bytes, MemoryPermit, ReadStats), ReadError> {
    read_slice_for(container, freshness, slice, extra_bytes, true).await
}

/// As [`read_slice`]. If `is_sent` is true, a cached block is charged to the client. It is false for a
/// derivation, whose result may be sent to any number of clients.
pub(crate) async fn read_slice_for(
    container: &Container,
    freshness: Freshness,
    slice: &PlannedSlice,
    extra_bytes: u64,
    is_sent: bool,
) -> Result<(Bytes, MemoryPermit, ReadStats), ReadError> {
    let (budget, held_bytes, mut stats) =
        (&container.resources.slice_budget, slice.memory_bytes(), ReadStats::default());
    if held_bytes == 0 {
        let extra_permit = match extra_bytes {
            0 => None,
            _ => Some(container.slice_permit(extra_bytes, budget.take(extra_bytes)).await?),
        };
        return Ok((Bytes::new(), MemoryPermit::new(extra_permit, budget), stats));
    }
    let bytes = slice.region.elements().unwrap_or(u64::MAX).saturating_mul(slice.widths.stored);
    let needed_bytes = held_bytes.saturating_add(extra_bytes);
    let loading_bytes = loading_bytes(container, slice, &slice.region, needed_bytes);
    let reserved_bytes = needed_bytes.saturating_add(loading_bytes);
    let mut permit = container.slice_permit(reserved_bytes, budget.take(reserved_bytes)).await?;
    let _loading_permit = permit.split(loading_bytes);
    let extra_bytes = held_bytes.saturating_sub(bytes).saturating_add(extra_bytes);
    let extra_permit = (extra_bytes > 0).then(|| permit.split(extra_bytes));
    let memory = MemoryPermit::new(extra_permit, budget);
    let single_block = if is_sent {
        single_block_to_send(container, freshness, slice, &mut stats).await?
    } else {
        single_block(container, freshness, slice, &mut stats).await?
    };
    if let Some(bytes) = single_block {
        return Ok((bytes, memory, stats));
    }
    let slab = Slab::new(slice.region.clone(), bytes, permit)?;
    stats = ReadStats::default();
    let mut slabs = gather(container, freshness, slice, &slice.region, vec![slab], 0, &mut stats).await?;
    let data = slabs.pop().map(|(data, permit)| budget.own(data, permit)).unwrap_or_default();
    Ok((data, memory, stats))
}

/// Reads a slice that is not streamed and is sent unchanged. Returns pieces in the order in which they must be
/// sent. Each piece gives its memory back as soon as it is sent. All else is as for [`read_slice`].
///
/// # Errors
/// As [`read_slice`].
pub async fn read_pieces(
    container: &Container,
    freshness: Freshness,
    slice: &PlannedSlice,
) -> Result<(Vec<Bytes>, MemoryPermit, ReadStats), ReadError> {
    let (budget, region, mut stats) = (&container.resources.slice_budget, &slice.region, ReadStats::default());
    let memory = MemoryPermit::new(None, budget);
    if slice.memory_bytes() == 0 {
        return Ok((Vec::new(), memory, stats));
    }
    // First, since this may wait for the client. It needs no slice memory and must not hold any meanwhile.
    if let Some(bytes) = single_block_to_send(container, freshness, slice, &mut stats).await? {
        return Ok((vec![bytes], memory, stats));
    }
    let loading_bytes = loading_bytes(container, slice, region, slice.memory_bytes());
    let reserved_bytes = slice.memory_bytes().saturating_add(loading_bytes);
    let mut permit = container.slice_permit(reserved_bytes, budget.take_for_pooled_buffers(reserved_bytes)).await?;
    let _loading_permit = permit.split(loading_bytes);
    stats = ReadStats::default();
    let axis = slowest_cut_axis(region);
    let slabs = match region.rank() {
        0 => vec![Slab::new(region.clone(), slice.memory_bytes(), permit)?],
        _ => cut_slabs(slice, region, axis, permit, None)?,
    };
    let slabs = gather(container, freshness, slice, region, slabs, axis, &mut stats).await?;
    Ok((slabs.into_iter().map(|(data, permit)| budget.own(data, permit)).collect(), memory, stats))
}

/// Reads the next band of a streamed slice. Returns `None` after the last band. Pieces are returned in the order in
/// which they must be sent. Each piece gives its memory back as soon as it is sent.
///
/// `waited` is how long the previous band waited until the client had read the band before it; `None` for the first
/// band.
///
/// The elements are converted if the slice requires it. If given, `finish` then transforms each piece in place, on
/// the CPU pool.
///
/// # Errors
/// As [`read_slice`], and [`ReadError::Convert`] when an element cannot be converted.
pub async fn next_band(
    container: &Container,
    freshness: Freshness,
    slice: &mut PlannedSlice,
    waited: Option<Duration>,
    finish: Option<PieceTransform>,
) -> Result<Option<(Vec<Bytes>, ReadStats)>, ReadError> {
    let is_first = waited.is_none();
    slice.has_started = !is_first;
    if let Some(waited) = waited {
        slice.adapt_band_size(waited, &container.resources.slice_budget);
    }
    let Some(band) = slice.bands.as_mut().and_then(Iterator::next) else { return Ok(None) };
    let axis = slowest_cut_axis(&band);
    let bytes = band.elements().unwrap_or(u64::MAX).saturating_mul(slice.widths.in_memory);
    let budget = &container.resources.slice_budget;
    let max_wait = if is_first { budget.max_wait } else { budget.started_wait() };
    let prefix_bytes = if is_first { slice.prefix_bytes } else { 0 };
    let loading_bytes = loading_bytes(container, slice, &band, bytes.saturating_add(prefix_bytes));
    let reserved_bytes = bytes.saturating_add(prefix_bytes).saturating_add(loading_bytes);
    let started = Instant::now();
    let mut permit = budget.take_for_stream(reserved_bytes, &slice.stream_token, max_wait).await?;
    let loading_permit = permit.split(loading_bytes);
    slice.memory_waited = started.elapsed();
    if slice.is_converted() || prefix_bytes > 0 {
        budget.trim_pool();
    }
    // The prefix is sent before the first slab. Its memory is given back with that slab's.
    let prefix_permit = permit.split(prefix_bytes);
    let slabs = cut_slabs(slice, &band, axis, permit, Some(prefix_permit))?;
    let mut stats = ReadStats::default();
    let slabs = gather(container, freshness, slice, &band, slabs, axis, &mut stats).await?;
    drop(loading_permit);
    if finish.is_none() && !slice.is_converted() {
        let pieces = slabs.into_iter().map(|(data, permit)| budget.own(data, permit)).collect();
        return Ok(Some((pieces, stats)));
    }
    let (flow, slice) = (slice.dataset.id, slice.clone());
    let finish_slab = Arc::new(move |data: Vec<u8>, mut permit: Permit| -> Result<Bytes, ConvertError> {
        let stored_bytes = data.len() as u64;
        let mut bytes = slice.convert(data.into())?;
        if let Some(finish) = &finish {
            bytes = finish(bytes);
        }
        // The unconverted elements have been dropped.
        if slice.is_converted() {
            drop(permit.split(stored_bytes));
        }
        Ok(permit.own(bytes))
    });
    // One job per slab, so that other jobs can run in between.
    let cpu = &container.resources.cpu;
    let jobs = slabs.into_iter().map(|(data, permit)| {
        let finish_slab = Arc::clone(&finish_slab);
        async move { Ok::<_, ReadError>(cpu.run(Priority::High, flow, move || finish_slab(data, permit)).await??) }
    });
    let pieces: Vec<Bytes> = stream::iter(jobs).buffered(cpu.cores()).try_collect().await?;
    Ok(Some((pieces, stats)))
}

/// Fills `slabs`, the parts of `region` along `axis`, from the blocks that hold its samples.
async fn gather(
    container: &Container,
    freshness: Freshness,
    slice: &PlannedSlice,
    region: &Region,
    slabs: Vec<Slab>,
    axis: usize,
    stats: &mut ReadStats,
) -> Result<Vec<(Vec<u8>, Permit)>, ReadError> {
    let (dataset, grid) = (&slice.dataset, slice.dataset.attributes.grid());
    let block_bytes = (0..region.rank())
        .map(|axis| grid.block_size()[axis].min(grid.dimensions()[axis]))
        .fold(slice.widths.stored, u64::saturating_mul);
    let is_contiguous = region.shape().first().is_some_and(|n| *n > 1) && region.step().first() == Some(&1);
    let sample_bytes = if is_contiguous { slice.widths.stored } else { CACHE_LINE_BYTES };
    let (width, budget) = (slice.stored_width(), &container.resources.slice_budget);
    let context = Arc::new(GatherContext {
        blocks: container.resources.blocks.clone(),
        source: container.block_source(dataset),
        dataset: Arc::clone(dataset),
        canvas: Canvas::new(grid.clone(), width, region.clone(), axis, slabs, budget),
        fresh_since: freshness.data_since,
        block_bytes,
        sample_bytes: region.elements().unwrap_or(u64::MAX).saturating_mul(sample_bytes),
    });
    let mut positions = grid.covering(region);
    loop {
        let batch: Vec<GridPosition> = positions.by_ref().take(lookup_batch_size(block_bytes)).collect();
        if batch.is_empty() {
            break;
        }
        gather_batch(container, freshness, slice, region, &context, &batch, stats).await?;
    }
    let context = Arc::into_inner(context).ok_or_else(|| ReadError::Internal("a job outlived its slice".to_owned()))?;
    let canvas = context.canvas;
    if canvas.is_complete() {
        canvas.finish()
    } else {
        container.resources.cpu.run(Priority::High, dataset.id, || canvas.finish()).await?
    }
}

/// Looks up the blocks at `positions`, pastes the cached ones, and then loads and pastes the others.
async fn gather_batch(
    container: &Container,
    freshness: Freshness,
    slice: &PlannedSlice,
    region: &Region,
    context: &Arc<GatherContext>,
    positions: &[GridPosition],
    stats: &mut ReadStats,
) -> Result<(), ReadError> {
    let (dataset, blocks) = (&slice.dataset, &context.blocks);
    let started = Instant::now();
    let cached = blocks.cached(&*context.source, dataset, positions, freshness.data_since);
    let cached = container.abort_if_contended(&dataset.key, Box::pin(cached)).await?;
    stats.cache += started.elapsed();

    let bypasses_cache = bypasses_cache(container, slice, context.block_bytes);
    let (mut items, mut partial) = (Vec::with_capacity(positions.len()), Vec::new());
    for (position, entry) in positions.iter().zip(cached) {
        let position = position.clone();
        if let Some(entry) = entry {
            stats.hits += 1;
            stats.count_block(&position, &entry);
            items.push(PasteItem::Hit(position, entry));
        } else if is_read_in_parts(container, slice, region, &position) {
            partial.push(position);
        } else {
            let should_cache = !(bypasses_cache && takes_all_samples(slice, region, &position));
            items.push(PasteItem::Miss { position, should_cache });
        }
    }

    // Hits are pasted and dropped before any load is awaited. A request that waits for memory thus holds no blocks that
    // the cache has evicted.
    let missing_before = stats.missing;
    let remaining = context.paste(items, stats).await?;
    let timeout = if slice.has_started { blocks.budget().started_wait() } else { Duration::ZERO };
    load_and_paste(container, context, remaining, timeout, stats).await?;
    paste_parts(container, context, region, partial, stats).await?;
    if stats.missing > missing_before {
        let confirmation = container.confirm_missing(freshness, dataset, positions);
        container.abort_if_contended(&dataset.key, Box::pin(confirmation)).await?;
    }
    Ok(())
}

/// Returns true if the blocks of `slice` should bypass the cache. This is the case if together they exceed it: each
/// block would be evicted before a repeated request for the slice reached it, and so would all other cached blocks.
/// A few blocks are always cached, so that concurrent requests share one load.
fn bypasses_cache(container: &Container, slice: &PlannedSlice, block_bytes: u64) -> bool {
    let total = slice.dataset.attributes.grid().covering(&slice.region).total();
    let bytes = total.saturating_mul(u128::from(block_bytes));
    total > MAX_CONCURRENT_LOADS as u128 && bytes > u128::from(container.resources.settings.decoded_cache)
}

/// Returns the bytes of the slice budget needed to load the blocks of `region`, in addition to `bytes` for the
/// elements. They are at most what `bytes` leaves of the maximum for a stream. A slice of nearly the whole budget, of
/// which only one exists at a time, gets none.
fn loading_bytes(container: &Container, slice: &PlannedSlice, region: &Region, bytes: u64) -> u64 {
    let available_bytes = container.resources.slice_budget.max_stream_bytes().saturating_sub(bytes);
    load_overhead_bytes(slice.dataset.attributes.grid().covering(region).total()).min(available_bytes)
}

/// Loads the blocks at `positions` concurrently and pastes each as soon as it is loaded. Loads that get no memory
/// are retried for up to `timeout`.
async fn load_and_paste(
    container: &Container,
    context: &Arc<GatherContext>,
    positions: Vec<GridPosition>,
    timeout: Duration,
    stats: &mut ReadStats,
) -> Result<(), ReadError> {
    let mut positions: VecDeque<_> = positions.into_iter().map(|position| (position, false)).collect();
    let started = Instant::now();
    let mut loads = FuturesUnordered::new();
    loop {
        while loads.len() < MAX_CONCURRENT_LOADS
            && let Some((position, is_retry)) = positions.pop_front()
        {
            loads.push(async move {
                if is_retry {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                let result = context.blocks.load(context.block_location(&position), context.fresh_since).await;
                (position, result)
            });
        }
        let next = loads.next().map(Ok::<_, ReadError>);
        let Some(first) = container.abort_if_contended(&context.dataset.key, next).await? else { return Ok(()) };
        let mut ready = vec![first];
        while let Some(Some(next)) = loads.next().now_or_never() {
            ready.push(next);
        }
        let mut items = Vec::with_capacity(ready.len());
        for (position, result) in ready {
            if matches!(result, Err(ReadError::Budget(BudgetError::TimedOut { .. }))) && started.elapsed() < timeout {
                positions.push_back((position, true));
                continue;
            }
            let (block, times) = result?;
            stats.count_load(&times);
            stats.count_block(&position, &block);
            items.push(PasteItem::Hit(position, block));
        }
        context.paste(items, stats).await?;
    }
}

/// As [`single_block`], and charges the elements to the client while they are being sent.
async fn single_block_to_send(
    container: &Container,
    freshness: Freshness,
    slice: &PlannedSlice,
    stats: &mut ReadStats,
) -> Result<Option<Bytes>, ReadError> {
    let Some(bytes) = single_block(container, freshness, slice, stats).await? else { return Ok(None) };
    let budget = &container.resources.blocks.budget();
    if let Some(charged) = budget.charge_to_client(ClientId::current(), &bytes) {
        return Ok(Some(charged));
    }
    // A request that waits for its client must not hold memory that other requests wait for.
    let len = bytes.len();
    drop(bytes);
    let permit = budget.acquire_send_permit(len).await?;
    *stats = ReadStats::default();
    let bytes = single_block(container, freshness, slice, stats).await?;
    Ok(bytes.map(|bytes| budget.charge_with_permit(permit, bytes)))
}

/// Returns the elements if `slice` is exactly one block; `None` if it is not.
async fn single_block(
    container: &Container,
    freshness: Freshness,
    slice: &PlannedSlice,
    stats: &mut ReadStats,
) -> Result<Option<Bytes>, ReadError> {
    let grid = slice.dataset.attributes.grid();
    let mut covering = grid.covering(&slice.region);
    let (1, Some(position)) = (covering.total(), covering.next()) else { return Ok(None) };
    let starts_at_origin = slice
        .region
        .start()
        .iter()
        .zip(grid.origin(&position))
        .all(|(s, o)| u64::try_from(*s).is_ok_and(|start| start == o));
    let is_contiguous = slice.region.step().iter().zip(slice.region.shape()).all(|(step, n)| *step == 1 || *n == 1);
    if !starts_at_origin || !is_contiguous || *slice.region.shape() != grid.clipped_size(&position) {
        return Ok(None);
    }
    if is_read_in_parts(container, slice, &slice.region, &position) {
        return Ok(None);
    }
    let started = Instant::now();
    let blocks = &container.resources.blocks;
    let positions = std::slice::from_ref(&position);
    let location = container.block_location(&slice.dataset, &position);
    let cached = blocks.cached(&*location.source, &slice.dataset, positions, freshness.data_since);
    let cached = container.abort_if_contended(&slice.dataset.key, Box::pin(cached)).await?.pop().flatten();
    stats.cache += started.elapsed();
    let entry = if let Some(entry) = cached {
        stats.hits += 1;
        entry
    } else {
        let load = blocks.load(location, freshness.data_since);
        let (entry, times) = container.abort_if_contended(&slice.dataset.key, Box::pin(load)).await?;
        stats.count_load(&times);
        entry
    };
    stats.count_block(&position, &entry);
    if entry.block.is_none() {
        let confirmation = container.confirm_missing(freshness, &slice.dataset, positions);
        container.abort_if_contended(&slice.dataset.key, Box::pin(confirmation)).await?;
    }
    Ok(entry.block_of_size(slice.region.shape()).map(|block| block.data.clone()))
}

/// Returns the number of blocks of `block_bytes` that a slice looks up at once, at least one.
fn lookup_batch_size(block_bytes: u64) -> usize {
    usize::try_from((MAX_LOOKUP_BATCH_BYTES / block_bytes.max(1)).clamp(1, MAX_LOOKUP_BATCH)).unwrap_or(1)
}

/// Returns the bytes of memory needed to look up and load `blocks` blocks, in addition to the blocks themselves.
pub(crate) fn load_overhead_bytes(blocks: u128) -> u64 {
    let at_most = |limit: u64| u64::try_from(blocks).unwrap_or(u64::MAX).min(limit);
    at_most(MAX_CONCURRENT_LOADS as u64) * LOAD_OVERHEAD_BYTES + at_most(MAX_LOOKUP_BATCH) * LOOKUP_OVERHEAD_BYTES
}

/// Cuts `region` along `axis`, its slowest axis with more than one sample, into slabs that share `permit`. The first
/// slab also gets `prefix_permit`.
fn cut_slabs(
    slice: &PlannedSlice,
    region: &Region,
    axis: usize,
    mut permit: Permit,
    mut prefix_permit: Option<Permit>,
) -> Result<Vec<Slab>, ReadError> {
    let (planes, elements) = (region.shape()[axis], region.elements().unwrap_or(u64::MAX));
    if elements == 0 {
        // A region without elements could have up to 2^63 planes.
        return Ok(Vec::new());
    }
    let plane_elements = elements / planes.max(1);
    let depth = (SLAB_BYTES / plane_elements.saturating_mul(slice.widths.in_memory).max(1)).max(1);
    let mut slabs = Vec::new();
    for from in (0..planes).step_by(usize::try_from(depth).unwrap_or(usize::MAX)) {
        let region = region.narrow(axis, from, depth);
        let elements = region.shape()[axis].saturating_mul(plane_elements);
        let mut slab_permit = permit.split(elements.saturating_mul(slice.widths.in_memory));
        if let Some(prefix) = prefix_permit.take() {
            slab_permit.merge(prefix);
        }
        slabs.push(Slab::new(region, elements.saturating_mul(slice.widths.stored), slab_permit)?);
    }
    Ok(slabs)
}

/// Returns the slowest axis that has more than one sample.
fn slowest_cut_axis(region: &Region) -> usize {
    region.shape().iter().rposition(|samples| *samples > 1).unwrap_or(0)
}

/// Returns true if `part`, a part of `slice`, takes all samples that the slice has in the block at `position`.
fn takes_all_samples(slice: &PlannedSlice, part: &Region, position: &GridPosition) -> bool {
    let grid = slice.dataset.attributes.grid();
    grid.origin(position).iter().zip(grid.block_size()).enumerate().all(|(axis, (low, size))| {
        let samples = |region: &Region| {
            let (from, to) = region.samples_within(axis, *low, low.saturating_add(*size));
            to.saturating_sub(from)
        };
        samples(part) == samples(&slice.region)
    })
}

#[cfg(test)]
mod tests {
    use super::super::plan::{SliceDelivery, plan_converted_slice, plan_slice};
    use super::*;
    use crate::container::{Resources, Settings};
    use crate::store::{Key, MemoryStore};

    fn settings(max_slice_bytes: u64, slice_budget: u64) -> Settings {
        Settings { max_slice_bytes, slice_budget, ..Settings::small() }
    }

    /// Creates a container of one dataset without blocks.
    fn container(max_slice_bytes: u64, slice_budget: u64, attributes: &'static str) -> Container {
        let object = (Key::parse("v/attributes.json").unwrap(), Bytes::from_static(attributes.as_bytes()));
        Container::new(Arc::new(MemoryStore::new([object], 0)), Resources::new(settings(max_slice_bytes, slice_budget)))
    }

    #[tokio::test]
    async fn the_size_of_bands_follows_the_speed_of_the_client() {
        let attributes = r#"{"dimensions":[1024,1024,4096],"blockSize":[64,64,64],"dataType":"uint8","compression":{"type":"gzip"}}"#;
        let container = container(1 << 40, 64 << 20, attributes);
        let freshness = container.resources.request_freshness();
        let dataset = container.dataset(freshness, &Key::parse("v").unwrap()).await.unwrap();
        let mut slice = plan_slice(&container, &dataset, Region::whole(dataset.attributes.dimensions())).unwrap();
        let mut next = async |waited, memory_waited| {
            slice.memory_waited = memory_waited;
            let (pieces, _) = next_band(&container, freshness, &mut slice, waited, None).await.unwrap().unwrap();
            pieces.iter().map(|piece| piece.len() as u64).sum::<u64>() >> 20
        };
        let (fast_client, slow_client) = (Some(Duration::ZERO), Some(Duration::from_secs(2)));
        next(None, Duration::ZERO).await;
        let mut largest = 0;
        for _ in 0..24 {
            largest = largest.max(next(fast_client, Duration::ZERO).await);
        }
        assert!(largest > 16, "{largest} MiB");
        // Slow clients get large bands, too, while there is plenty of memory.
        assert!(next(slow_client, Duration::ZERO).await > 16);
        let _held = container.resources.slice_budget.take(20 << 20).await.unwrap();
        let _more = container.resources.slice_budget.take(13 << 20).await.unwrap();
        // Limited by the memory that is left of the part for streams.
        let first = next(fast_client, Duration::ZERO).await;
        assert!(first > 8 && first <= 15, "{first} MiB");
        assert!(next(slow_client, Duration::ZERO).await <= 8);
        assert!(next(fast_client, slow_client.unwrap()).await <= 5);
    }

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
        let freshness = container.resources.request_freshness();
        let dataset = container.dataset(freshness, &Key::parse("v").unwrap()).await.unwrap();
        let slice = |shape: [u64; 2]| {
            let region = Region::new([0i64; 2][..].into(), shape[..].into(), [1u64; 2][..].into()).unwrap();
            plan_slice(&container, &dataset, region).unwrap()
        };
        // Another request waits for all of the memory, so that not even a permit for 0 bytes is granted.
        let budget = &container.resources.slice_budget;
        let _held = budget.take(1 << 19).await.unwrap();
        let queue = tokio::spawn({
            let budget = budget.clone();
            async move { budget.take_within(1 << 20, Duration::from_secs(60)).await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert!(
            read_pieces(&container, freshness, &slice([4, 1])).await.is_err(),
            "the request must wait in the queue"
        );
        for shape in [[0, 4], [4, 0], [0, 0]] {
            let slice = slice(shape);
            assert!(read_pieces(&container, freshness, &slice).await.unwrap().0.is_empty());
            assert!(read_slice(&container, freshness, &slice, 0).await.unwrap().0.is_empty());
        }
        queue.abort();
    }

    /// Creates a container with 16 blocks of 64 KiB of zeros, none of them cached. All of them may be decoded at once.
    fn container_with_blocks(budget_wait: Duration) -> Container {
        let settings = Settings {
            decoded_cache: 0,
            stored_cache: 0,
            decode_budget: 16 << 20,
            budget_wait,
            ..settings(1 << 30, 1 << 20)
        };
        let attributes =
            r#"{"dimensions":[256,4096],"blockSize":[256,256],"dataType":"uint8","compression":{"type":"gzip"}}"#;
        let mut objects = vec![(Key::parse("v/attributes.json").unwrap(), Bytes::from_static(attributes.as_bytes()))];
        let mut block = vec![0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 1, 0];
        let mut gzip = flate2::write::GzEncoder::new(&mut block, flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, &vec![0; 1 << 16]).unwrap();
        gzip.finish().unwrap();
        let block = Bytes::from(block);
        objects.extend((0..16).map(|n| (Key::parse(&format!("v/0/{n}")).unwrap(), block.clone())));
        Container::new(Arc::new(MemoryStore::new(objects, 0)), Resources::new(settings))
    }

    #[tokio::test]
    async fn loads_of_a_slice_count_toward_its_memory() {
        let container = container_with_blocks(Duration::from_secs(60));
        let (resources, freshness) = (&container.resources, container.resources.request_freshness());
        let dataset = container.dataset(freshness, &Key::parse("v").unwrap()).await.unwrap();
        let held_permit = resources.blocks.budget().take(resources.blocks.budget().capacity_bytes()).await.unwrap();
        let free = || resources.slice_budget.free_bytes();
        let total_bytes = free();
        for (rows, loading_bytes) in [(256, 13_312), (2048, 100_352), (3072, 0)] {
            let region = Region::new([0, 0][..].into(), [256, rows][..].into(), [1, 1][..].into()).unwrap();
            let slice = plan_slice(&container, &dataset, region).unwrap();
            let mut reading = Box::pin(read_slice(&container, freshness, &slice, 0));
            assert!(tokio::time::timeout(Duration::from_millis(20), &mut reading).await.is_err());
            assert_eq!(total_bytes - free(), 256 * rows + loading_bytes, "{rows}");
        }
        drop(held_permit);
        let region = Region::new([0, 0][..].into(), [256, 2048][..].into(), [1, 1][..].into()).unwrap();
        let slice = plan_slice(&container, &dataset, region).unwrap();
        let (data, _memory, _) = read_slice(&container, freshness, &slice, 0).await.unwrap();
        assert_eq!(total_bytes - free(), data.len() as u64, "only the elements are held");
    }

    #[tokio::test]
    async fn a_started_answer_waits_longer_for_memory() {
        let budget_wait = Duration::from_millis(500);
        let container = container_with_blocks(budget_wait);
        let (resources, freshness) = (&container.resources, container.resources.request_freshness());
        let dataset = container.dataset(freshness, &Key::parse("v").unwrap()).await.unwrap();
        let delivery = SliceDelivery::streamed(dataset.attributes.data_type());
        let region = Region::whole(dataset.attributes.dimensions());
        let plan = || plan_converted_slice(&container, &dataset, region.clone(), &delivery).unwrap();
        for budget in [&resources.slice_budget, resources.blocks.budget()] {
            let take_all = async || budget.take_within(budget.capacity_bytes(), Duration::from_secs(60)).await.unwrap();
            let held_permit = take_all().await;
            assert!(next_band(&container, freshness, &mut plan(), None, None).await.is_err());
            drop(held_permit);
            let mut slice = plan();
            drop(next_band(&container, freshness, &mut slice, None, None).await.unwrap());
            // Longer than the wait of a response that has not started.
            let held_permit = take_all().await;
            let release_task = tokio::spawn(async move {
                tokio::time::sleep(3 * budget_wait).await;
                drop(held_permit);
            });
            let waited = Some(Duration::ZERO);
            assert!(next_band(&container, freshness, &mut slice, waited, None).await.unwrap().is_some());
            release_task.await.unwrap();
        }
    }
}
