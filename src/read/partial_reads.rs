//! Partial reads of uncompressed blocks: only the parts that hold samples of a slice are read, and they are not cached.
//!
//! A block that is read whole is cached and also serves the neighbouring planes. Blocks of a usual size are therefore
//! read in parts only if the slice was admitted on that condition.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::nonblocking_gather::GatherContext;
use super::plan::PlannedSlice;
use super::read_stats::ReadStats;
use crate::cache::{self, LoadTimes, Permit, ReadError, TORN_READ_RETRY_DELAY};
use crate::container::Container;
use crate::runtime::cpu_pool::Priority;
use crate::store::{InlineLimit, Key, Object, ObjectData, ObjectMeta, ReadAt, StoreError};
use n5_format::{BlockHeader, Codec, GridPosition, RangeRead, RangeReads, Region};

/// Blocks up to this size are read whole if the slice allows it. On a busy machine, the first plane of a 16 MiB block
/// took 45 ms whole and 0.7 ms in parts. After a whole read, any other plane took 0.3 ms from the cache. In parts, a
/// plane across the rows took 15 ms.
const MAX_WHOLE_BLOCK_BYTES: u64 = 16 << 20;

/// Divisor of a block's size: a larger block is read in parts if the parts are at most a quarter of it.
const PARTIAL_READ_DIVISOR: u64 = 4;

/// Number of blocks that are read in parts concurrently, and number of concurrent reads per block.
const CONCURRENT_BLOCKS: usize = 2;
const CONCURRENT_READS_PER_BLOCK: usize = 4;

/// Returns true if only the bytes with samples of `region`, a part of `slice`, are read of the block at `position`.
pub(crate) fn is_read_in_parts(
    container: &Container,
    slice: &PlannedSlice,
    region: &Region,
    position: &GridPosition,
) -> bool {
    let attributes = &slice.dataset.attributes;
    if !attributes.compression().codec().is_some_and(Codec::is_uncompressed) {
        return false;
    }
    let grid = attributes.grid();
    let size = grid.clipped_size(position);
    let bytes = size.iter().fold(slice.widths.stored, |bytes, n| bytes.saturating_mul(*n));
    // Includes a header, and padding at the end of the dataset.
    let full = grid.block_size().iter().fold(slice.widths.stored, |bytes, n| bytes.saturating_mul(*n));
    let max_bytes = full.min(bytes.saturating_mul(2)).saturating_add(BlockHeader::max_len(region.rank()));
    let is_too_large = max_bytes > container.resources.blocks.block_bytes;
    if !is_too_large && !slice.uses_partial_reads && bytes <= MAX_WHOLE_BLOCK_BYTES {
        return false;
    }
    let parts =
        RangeReads::new(region, &grid.origin(position), &size, grid.dimensions(), slice.stored_width(), u64::MAX);
    let cost = parts.map_or(0, |parts| parts.cost_bytes());
    is_too_large || cost <= if slice.uses_partial_reads { bytes } else { bytes / PARTIAL_READ_DIVISOR }
}

/// Reads and pastes those parts of the blocks at `positions` that hold samples of `region`.
pub(crate) async fn paste_parts(
    container: &Container,
    context: &Arc<GatherContext>,
    region: &Region,
    positions: Vec<GridPosition>,
    stats: &mut ReadStats,
) -> Result<(), ReadError> {
    let blocks = stream::iter(positions).map(|position| async move {
        let result = paste_block_parts(container, context, region, &position).await;
        result.map(|(meta, checked_at, times)| (position, meta, checked_at, times))
    });
    let mut blocks = std::pin::pin!(blocks.buffer_unordered(CONCURRENT_BLOCKS));
    while let Some((position, meta, checked_at, times)) = blocks.try_next().await? {
        stats.count_load(&times);
        stats.count_stored(&position, meta.as_ref().map(|meta| (&*meta.etag, meta.version)), checked_at);
    }
    Ok(())
}

/// Reads and pastes the parts of one block. Returns its metadata and the moment before it was opened.
async fn paste_block_parts(
    container: &Container,
    context: &Arc<GatherContext>,
    region: &Region,
    position: &GridPosition,
) -> Result<(Option<ObjectMeta>, u64, LoadTimes), ReadError> {
    let times = LoadTimes::default();
    let mut is_retry = false;
    loop {
        let checked_at = cache::now();
        match paste_parts_once(container, context, region, position, &times).await {
            Ok(meta) => return Ok((meta, checked_at, times)),
            Err(ReadError::Store(StoreError::Truncated(_) | StoreError::Torn(_))) if !is_retry => {}
            Err(ref error) if !is_retry && error.may_be_torn() => {
                tokio::time::sleep(TORN_READ_RETRY_DELAY).await;
            }
            Err(error) => return Err(error),
        }
        is_retry = true;
    }
}

async fn paste_parts_once(
    container: &Container,
    context: &Arc<GatherContext>,
    region: &Region,
    position: &GridPosition,
    times: &LoadTimes,
) -> Result<Option<ObjectMeta>, ReadError> {
    let (store, dataset, attributes) = (&container.store, &context.dataset, &context.dataset.attributes);
    let key = dataset.block_key(position);
    let (started, inline_limit) = (Instant::now(), InlineLimit::new(0));
    let opening = store.get(&key, &inline_limit);
    let budget = &container.resources.slice_budget;
    let object = budget.abort_if_contended(|| container.store_pressure(), &dataset.key, opening).await??;
    let Some(Object { meta, data }) = object else { return Ok(None) };
    let head_bytes = BlockHeader::max_len(attributes.rank()).min(meta.len);
    let head = match &data {
        ObjectData::InMemory(bytes) => bytes.clone(),
        ObjectData::Open(reader) => read_range(container, &key, reader, 0..head_bytes).await?.0,
    };
    times.add_store(started.elapsed());
    let header = BlockHeader::of_raw_block(&head, meta.len, attributes, position)
        .map_err(|error| dataset.block_error(position, error))?;
    let Some(header) = header else { return Ok(Some(meta)) };
    let origin = attributes.grid().origin(position);
    let dimensions = attributes.dimensions();
    let max_bytes = container.resources.blocks.block_bytes;
    let width = attributes.data_type().size_bytes().unwrap_or(1);
    let parts = RangeReads::new(region, &origin, &header.size, dimensions, width, max_bytes);
    context.canvas.clear(position);
    let reads = stream::iter(parts.into_iter().flatten()).map(|part: RangeRead| {
        let (key, data, header_bytes, origin) = (&key, &data, header.len as u64, &origin);
        async move {
            let started = Instant::now();
            let from = header_bytes.saturating_add(part.bytes.start);
            let to = header_bytes.saturating_add(part.bytes.end);
            let (bytes, permit) = match data {
                ObjectData::Open(reader) => {
                    read_range(container, key, reader, from..to).await.map(|(bytes, permit)| (bytes, Some(permit)))?
                }
                ObjectData::InMemory(bytes) => {
                    let range = usize::try_from(from).unwrap_or(usize::MAX)..usize::try_from(to).unwrap_or(usize::MAX);
                    let is_in_range = range.start <= range.end && range.end <= bytes.len();
                    let torn = || ReadError::Store(StoreError::Torn(key.clone()));
                    (bytes.slice(if is_in_range { range } else { return Err(torn()) }), None)
                }
            };
            let elapsed = started.elapsed();
            let (job_context, offsets) = (Arc::clone(context), origin.iter().zip(&part.offset));
            let part_origin = offsets.map(|(origin, offset)| origin.saturating_add(*offset)).collect();
            let paste = move || {
                job_context.canvas.paste_part(&part_origin, &part.size, &bytes);
                drop((bytes, permit));
                // Before the job reports its end, so that the last holder has the canvas to itself.
                drop(job_context);
            };
            container.resources.cpu.run(Priority::High, dataset.id, paste).await?;
            Ok::<Duration, ReadError>(elapsed)
        }
    });
    let mut reads = std::pin::pin!(reads.buffer_unordered(CONCURRENT_READS_PER_BLOCK));
    while let Some(elapsed) = reads.try_next().await? {
        times.add_store(elapsed);
    }
    Ok(Some(meta))
}

/// Reads `range` of an open object, with a permit of the decode budget.
async fn read_range(
    container: &Container,
    key: &Key,
    reader: &Arc<dyn ReadAt>,
    range: std::ops::Range<u64>,
) -> Result<(Bytes, Permit), ReadError> {
    let blocks = &container.resources.blocks;
    let permit = blocks.entries.take(range.end.saturating_sub(range.start)).await?;
    let reading = reader.read_at(range);
    let bytes = blocks.budget().abort_if_contended(|| container.store_pressure(), key, reading).await??;
    Ok((bytes, permit))
}
