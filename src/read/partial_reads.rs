//! Partial reads of uncompressed blocks: only the parts that hold samples of a slice are read, and they are not cached.
//!
//! A block that is read whole is cached and also serves the neighbouring planes. Blocks of a usual size are therefore
//! read in parts only if the slice was accepted on that condition.

use std::ops::Range;
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
use crate::store::{InlineLimit, Key, Object, ObjectData, ObjectMeta, StoreError};
use n5_format::{BlockHeader, Codec, Coords, GridPosition, RangeRead, RangeReads, Region};

/// Blocks up to this size are read whole if the slice allows it. On a busy machine, the first plane of a 16 MiB block
/// took 45 ms whole and 0.7 ms in parts. After a whole read, any other plane took 0.3 ms from the cache. In parts, a
/// plane across the rows took 15 ms.
const MAX_WHOLE_BLOCK_BYTES: u64 = 16 << 20;

/// Divisor of a block's size: a larger block is read in parts if the parts are at most a quarter of it.
const PARTIAL_READ_DIVISOR: u64 = 4;

/// Number of blocks that are read in parts concurrently.
const CONCURRENT_BLOCKS: usize = 2;

/// Number of concurrent reads per block.
const CONCURRENT_READS_PER_BLOCK: usize = 4;

/// Returns true if the block at `position` is read in parts: only the bytes with samples of `region`, a part of `slice`.
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
    // A file also has a header, and padding if the block lies at the end of the dataset.
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

/// Reads and pastes those parts of the blocks at `positions` that hold samples of the canvas. Returns what was counted.
pub(crate) async fn paste_parts(
    container: &Container,
    context: &Arc<GatherContext>,
    positions: Vec<GridPosition>,
) -> Result<ReadStats, ReadError> {
    let blocks = stream::iter(positions).map(|position| paste_block_parts(container, context, position));
    let mut blocks = std::pin::pin!(blocks.buffer_unordered(CONCURRENT_BLOCKS));
    let mut stats = ReadStats::default();
    while let Some(block_stats) = blocks.try_next().await? {
        stats.merge(&block_stats);
    }
    Ok(stats)
}

/// Reads and pastes the parts of one block. If the file changes meanwhile, reads them once more.
async fn paste_block_parts(
    container: &Container,
    context: &Arc<GatherContext>,
    position: GridPosition,
) -> Result<ReadStats, ReadError> {
    let times = LoadTimes::default();
    let mut is_retry = false;
    loop {
        let checked_at = cache::now();
        match paste_parts_once(container, context, &position, &times).await {
            Ok(meta) => {
                let mut stats = ReadStats::default();
                stats.count_load(&times);
                stats.count_stored(&position, meta.as_ref().map(|meta| (&*meta.etag, meta.version)), checked_at);
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

/// Reads and pastes the parts of one block. Returns the metadata of its file; `None` if it does not exist.
async fn paste_parts_once(
    container: &Container,
    context: &Arc<GatherContext>,
    position: &GridPosition,
    times: &LoadTimes,
) -> Result<Option<ObjectMeta>, ReadError> {
    let dataset = &context.dataset;
    let attributes = &dataset.attributes;
    let key = dataset.block_key(position);
    let started = Instant::now();
    let inline_limit = InlineLimit::new(0);
    let opening = container.store.get(&key, &inline_limit);
    let budget = &container.resources.slice_budget;
    let object = budget.abort_if_contended(|| container.store_pressure(), &dataset.key, opening).await??;
    let Some(Object { meta, data }) = object else { return Ok(None) };
    let file = StoredBytes { container, key: &key, data: &data, start: 0 };
    let head_bytes = BlockHeader::max_len(attributes.rank()).min(meta.len);
    let head = file.read(0..head_bytes).await?.0;
    times.add_store(started.elapsed());
    let header = BlockHeader::of_raw_block(&head, meta.len, attributes, position)
        .map_err(|error| dataset.block_error(position, error))?;
    let Some(header) = header else { return Ok(Some(meta)) };

    let origin = attributes.grid().origin(position);
    let max_bytes = container.resources.blocks.block_bytes;
    let width = attributes.data_type().size_bytes().unwrap_or(1);
    let region = context.canvas.region();
    let parts = RangeReads::new(region, &origin, &header.size, attributes.dimensions(), width, max_bytes);
    let elements = StoredBytes { start: header.len as u64, ..file };
    context.canvas.clear(position);
    let reads = stream::iter(parts.into_iter().flatten()).map(|part| paste_part(elements, context, &origin, part));
    let mut reads = std::pin::pin!(reads.buffer_unordered(CONCURRENT_READS_PER_BLOCK));
    while let Some(elapsed) = reads.try_next().await? {
        times.add_store(elapsed);
    }
    Ok(Some(meta))
}

/// Reads and pastes one part of a block whose first element is at `origin`. Returns the time that reading took.
async fn paste_part(
    elements: StoredBytes<'_>,
    context: &Arc<GatherContext>,
    origin: &Coords,
    part: RangeRead,
) -> Result<Duration, ReadError> {
    let started = Instant::now();
    let (bytes, permit) = elements.read(part.bytes).await?;
    let elapsed = started.elapsed();
    let context = Arc::clone(context);
    let dataset_id = context.dataset.id;
    let offsets = origin.iter().zip(&part.offset);
    let part_origin = offsets.map(|(origin, offset)| origin.saturating_add(*offset)).collect();
    let paste = move || {
        context.canvas.paste_part(&part_origin, &part.size, &bytes);
        drop((bytes, permit));
        // Dropped before the job reports its end, so that the caller then has the only reference to the canvas.
        drop(context);
    };
    elements.container.resources.cpu.run(Priority::High, dataset_id, paste).await?;
    Ok(elapsed)
}

/// Bytes of an open stored block.
#[derive(Clone, Copy)]
struct StoredBytes<'a> {
    container: &'a Container,
    key: &'a Key,
    data: &'a ObjectData,
    /// Position in the file from which ranges are counted.
    start: u64,
}

impl StoredBytes<'_> {
    /// Returns the bytes of `range`. If they are read from an open file, takes a permit of the decode budget for them.
    async fn read(self, range: Range<u64>) -> Result<(Bytes, Option<Permit>), ReadError> {
        let range = self.start.saturating_add(range.start)..self.start.saturating_add(range.end);
        let reader = match self.data {
            ObjectData::Open(reader) => reader,
            ObjectData::InMemory(bytes) => {
                let range = usize::try_from(range.start).unwrap_or(usize::MAX)
                    ..usize::try_from(range.end).unwrap_or(usize::MAX);
                if range.start > range.end || range.end > bytes.len() {
                    return Err(StoreError::Torn(self.key.clone()).into());
                }
                return Ok((bytes.slice(range), None));
            }
        };
        let blocks = &self.container.resources.blocks;
        let permit = blocks.entries.take(range.end.saturating_sub(range.start)).await?;
        let reading = reader.read_at(range);
        let bytes = blocks.budget().abort_if_contended(|| self.container.store_pressure(), self.key, reading).await??;
        Ok((bytes, Some(permit)))
    }
}
