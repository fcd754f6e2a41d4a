//! Partial reads of uncompressed blocks: only the parts that hold samples of a slice are read. These parts are not
//! cached.
//!
//! A block that is read whole is cached, and then serves neighbouring planes as well. Blocks of a usual size are
//! therefore read in parts only if the slice was accepted on condition that they are.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::nonblocking_gather::GatherContext;
use super::plan::PlannedSlice;
use super::read_stats::ReadStats;
use crate::cache::{self, LoadTimes, Permit, ReadError, RequestTimes, TORN_READ_RETRY_DELAY};
use crate::container::Container;
use crate::runtime::cpu_pool::Priority;
use crate::store::{Key, Object, ObjectData, ObjectMeta, StoreError};
use n5_format::{BlockHeader, Codec, Coords, GridPosition, RangeRead, RangeReads, Region};

/// Largest block that is read whole unless the plan requires partial reads, in bytes. A whole read is cached, so that
/// the neighbouring planes take little time.
///
/// Times of a plane of a 16 MiB block on a busy machine: 45 ms if the block was read whole, then 0.3 ms for any other
/// plane from the cache. In parts, 0.7 ms for a plane along the rows and 15 ms for a plane across them.
const MAX_WHOLE_BLOCK_BYTES: u64 = 16 << 20;

/// A block above [`MAX_WHOLE_BLOCK_BYTES`] is read in parts if this costs at most 1/4 of a whole read.
const PARTIAL_READ_DIVISOR: u64 = 4;

/// Number of blocks that are read in parts concurrently.
const CONCURRENT_BLOCKS: usize = 2;

/// Number of concurrent reads per block.
const CONCURRENT_READS_PER_BLOCK: usize = 4;

/// Returns true if the block at `position` is read in parts. Only the bytes with samples of `region` are then read,
/// which is `slice` or a part of it.
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
    let stored_width = slice.stored_width();
    let size = grid.clipped_size(position);
    let bytes = size.iter().fold(stored_width as u64, |bytes, n| bytes.saturating_mul(*n));
    // A file also has a header, and padding if the block lies at the end of the dataset.
    let full = grid.block_size().iter().fold(stored_width as u64, |bytes, n| bytes.saturating_mul(*n));
    let max_bytes = full.min(bytes.saturating_mul(2)).saturating_add(BlockHeader::max_len(region.rank()));
    let is_too_large = max_bytes > container.resources.blocks.block_bytes;
    if !is_too_large && !slice.uses_partial_reads && bytes <= MAX_WHOLE_BLOCK_BYTES {
        return false;
    }
    let parts = RangeReads::new(region, &grid.origin(position), &size, grid.dimensions(), stored_width, u64::MAX);
    let cost = parts.map_or(0, |parts| parts.cost_bytes());
    is_too_large || cost <= if slice.uses_partial_reads { bytes } else { bytes / PARTIAL_READ_DIVISOR }
}

/// Reads and pastes those parts of the blocks at `positions` that hold samples of the canvas. Returns the counters.
/// `skips_damaged` is as in [`Gather`](super::gather::Gather).
pub(crate) async fn paste_parts(
    context: &Arc<GatherContext>,
    positions: Vec<GridPosition>,
    skips_damaged: bool,
) -> Result<ReadStats, ReadError> {
    let blocks = stream::iter(positions).map(|position| paste_block_parts(context, position));
    let mut blocks = std::pin::pin!(blocks.buffer_unordered(CONCURRENT_BLOCKS));
    let mut stats = ReadStats::with_holes_of(&context.container);
    while let Some(block) = blocks.next().await {
        match block {
            Ok(block_stats) => stats.merge(&block_stats),
            Err(error) => stats.skip_damaged(error, skips_damaged)?,
        }
    }
    Ok(stats)
}

/// Reads and pastes the parts of one block. If the file changes during the read, reads the parts once more.
async fn paste_block_parts(context: &Arc<GatherContext>, position: GridPosition) -> Result<ReadStats, ReadError> {
    let times = LoadTimes::default();
    let mut is_retry = false;
    loop {
        let checked_at = cache::now();
        match paste_parts_once(context, &position, &times).await {
            Ok(found) => {
                let mut stats = ReadStats::with_holes_of(&context.container);
                stats.count_load(&times);
                let etag_and_version = found.as_ref().map(|(meta, _)| (&*meta.etag, meta.version));
                let age = found.as_ref().map_or(Duration::ZERO, |(_, age)| *age);
                stats.count_stored(&position, etag_and_version, cache::compared_at(checked_at, age));
                return Ok(stats);
            }
            Err(ReadError::Store(StoreError::Truncated(_) | StoreError::Torn(_))) if !is_retry => {}
            Err(ref error) if !is_retry && error.may_be_torn() => {
                tokio::time::sleep(TORN_READ_RETRY_DELAY).await;
            }
            Err(error) => return Err(error),
        }
        is_retry = true;
    }
}

/// Reads and pastes the parts of one block. Returns the metadata and the age of its file; `None` if it does not exist.
async fn paste_parts_once(
    context: &Arc<GatherContext>,
    position: &GridPosition,
    times: &LoadTimes,
) -> Result<Option<(ObjectMeta, Duration)>, ReadError> {
    let GatherContext { container, dataset, .. } = &**context;
    let attributes = &dataset.attributes;
    let key = dataset.block_key(position);
    let started = Instant::now();
    let checked_at = cache::now();
    let max_head_bytes = BlockHeader::max_len(attributes.rank());
    let opening = container.store.open_range(&key, 0..max_head_bytes);
    let budget = &container.resources.slice_budget;
    let object = budget.abort_if_contended(|| container.store_pressure(), &dataset.key, opening).await??;
    let Some(Object { meta, age, data }) = object else {
        context.source.remember_missing(position, RequestTimes::since(checked_at));
        return Ok(None);
    };
    let head_bytes = max_head_bytes.min(meta.len);
    let head = read_range(container, &key, &data, 0..head_bytes).await?.0;
    times.add_store(started.elapsed());
    let header = BlockHeader::of_raw_block(&head, meta.len, attributes, position)
        .map_err(|error| dataset.block_error(position, error))?;
    let Some(header) = header else { return Ok(Some((meta, age))) };

    let origin = attributes.grid().origin(position);
    let max_bytes = container.resources.blocks.block_bytes;
    let width = attributes.data_type().size_bytes().unwrap_or(1);
    let region = context.canvas.region();
    let parts = RangeReads::new(region, &origin, &header.size, attributes.dimensions(), width, max_bytes);
    let elements_start = header.len as u64;
    let file_range =
        |range: &Range<u64>| elements_start.saturating_add(range.start)..elements_start.saturating_add(range.end);
    context.canvas.clear(position);
    let reads = stream::iter(parts.into_iter().flatten()).map(|part| {
        let reading = read_range(container, &key, &data, file_range(&part.bytes));
        let origin = &origin;
        async move {
            let started = Instant::now();
            let (bytes, permit) = reading.await?;
            times.add_store(started.elapsed());
            paste_part(context, origin, part, bytes, permit).await
        }
    });
    let reads = std::pin::pin!(reads.buffer_unordered(CONCURRENT_READS_PER_BLOCK));
    reads.try_collect::<()>().await?;
    Ok(Some((meta, age)))
}

/// Pastes `bytes`, one part of a block whose first element is at `origin`, on the CPU pool. Then drops the permit.
async fn paste_part(
    context: &Arc<GatherContext>,
    origin: &Coords,
    part: RangeRead,
    bytes: Bytes,
    permit: Option<Permit>,
) -> Result<(), ReadError> {
    let offsets = origin.iter().zip(&part.offset);
    let part_origin = offsets.map(|(origin, offset)| origin.saturating_add(*offset)).collect();
    let job_context = Arc::clone(context);
    let paste = move || {
        job_context.canvas.paste_part(&part_origin, &part.size, &bytes);
        drop((bytes, permit));
        // Dropped before the job reports its end, so that the caller then has the only reference to the canvas.
        drop(job_context);
    };
    context.blocks().cpu.run(Priority::High, context.dataset.id, paste).await?;
    Ok(())
}

/// Returns the bytes of `range` of an open stored block. If they are read from a file, takes a permit of the decode
/// budget for them.
async fn read_range(
    container: &Container,
    key: &Key,
    data: &ObjectData,
    range: Range<u64>,
) -> Result<(Bytes, Option<Permit>), ReadError> {
    let reader = match data {
        ObjectData::Open(reader) => reader,
        ObjectData::InMemory(bytes) => {
            let range =
                usize::try_from(range.start).unwrap_or(usize::MAX)..usize::try_from(range.end).unwrap_or(usize::MAX);
            if range.start > range.end || range.end > bytes.len() {
                return Err(StoreError::Torn(key.clone()).into());
            }
            return Ok((bytes.slice(range), None));
        }
    };
    let blocks = &container.resources.blocks;
    let permit = blocks.entries.take(range.end.saturating_sub(range.start)).await?;
    let reading = reader.read_at(range);
    let bytes = blocks.budget().abort_if_contended(|| container.store_pressure(), key, reading).await??;
    Ok((bytes, Some(permit)))
}
