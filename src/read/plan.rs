//! Planning of slices, from their sizes alone and before anything is read: a slice is sent whole, in bands, or refused.
//! If only the number of existing blocks decides, directories are listed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::bands::{Bands, ElementWidths};
use crate::cache::{Budget, Dataset, Freshness, ReadError};
use crate::container::{Container, grid_component};
use crate::store::{DirEntry, EntryFilter, FilterDecision};
use n5_format::{BlockGrid, Codec, ConvertError, Coords, CoveringBlocks, DataType, RangeReads, Region, convert};

/// Longest wait for a client that counts as fast. A fast client does not hold its memory for long, so its next bands
/// may grow even where memory is short.
const FAST_CLIENT_WAIT: Duration = Duration::from_millis(250);

/// Wait after which a client counts as slow. Its bands become smaller where memory is short.
const SLOW_CLIENT_WAIT: Duration = Duration::from_secs(1);

/// Largest response that is not worth sending in bands, in bytes.
const ALWAYS_WHOLE_BYTES: u64 = 1 << 20;

/// Divisor of the slice budget that limits the bands of a rate-limited response: they hold their memory for long, and
/// up to three exist at once.
const RATE_LIMITED_BUDGET_DIVISOR: u64 = 16;

/// Approximate size of the blocks that the first part of a stream touches, in bytes. It lets the first byte come as
/// soon as that of a small slice: starting with a whole layer of blocks, a slice of 20 GiB took 2.4 s.
const FIRST_PART_BYTES: u64 = 1 << 20;

/// Minimum cost of a block that is touched, in bytes decoded: the time of its lookup.
pub(crate) const BLOCK_COST_BYTES: u128 = 4 << 10;

/// Number of entries per page of a directory.
const LISTING_PAGE_ENTRIES: usize = 1024;

/// Maximum number of pages listed for one slice. A page takes 20 to 50 us if the kernel has the directory in memory.
const MAX_LISTING_PAGES: usize = 4096;

/// Maximum number of directories that wait to be listed: 24 bytes each.
const MAX_PENDING_DIRECTORIES: usize = 16_384;

/// Time after which no more directories are listed.
const LISTING_TIME_LIMIT: Duration = Duration::from_secs(1);

/// A slice that was admitted by its size, before anything was read.
#[derive(Debug, Clone)]
pub struct PlannedSlice {
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) region: Region,
    pub(crate) widths: ElementWidths,
    /// Type that the elements are converted to; `None` if they keep their stored type.
    convert_to: Option<DataType>,
    bytes: u64,
    pub(crate) prefix_bytes: u64,
    pub(crate) bands: Option<Bands>,
    /// The slice was admitted on condition that its blocks are read only where it has samples.
    pub(crate) uses_partial_reads: bool,
    /// The first band has been read, so the response can no longer be refused.
    pub(crate) has_started: bool,
    /// Time that the last band waited for memory, which earlier bands may have held.
    pub(crate) memory_waited: Duration,
    /// Token held by every piece of the stream that has not been sent yet.
    pub(crate) stream_token: Arc<()>,
}

impl PlannedSlice {
    /// Returns a number that identifies the dataset, for the fair sharing of cores.
    pub fn dataset_id(&self) -> u64 {
        self.dataset.id
    }

    /// Returns the size of the elements in bytes, as converted.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the size of a stored element in bytes.
    pub(crate) fn stored_width(&self) -> usize {
        self.dataset.attributes.data_type().size_bytes().unwrap_or(1)
    }

    /// Returns the bytes of memory that the elements take if the slice is read whole: as stored plus, if they are
    /// converted, as converted.
    pub fn memory_bytes(&self) -> u64 {
        self.region.elements().unwrap_or(u64::MAX).saturating_mul(self.widths.in_memory)
    }

    /// Converts the elements to the requested type.
    ///
    /// # Errors
    /// [`ConvertError`], as [`convert`].
    pub fn convert(&self, data: Bytes) -> Result<Bytes, ConvertError> {
        match &self.convert_to {
            Some(to) => convert(data, self.dataset.attributes.data_type(), to),
            None => Ok(data),
        }
    }

    /// Returns true if [`Self::convert`] changes the elements.
    pub fn is_converted(&self) -> bool {
        self.convert_to.is_some()
    }

    /// Returns a hash of the region and of the dataset, including the version of its attributes.
    pub(crate) fn region_hash(&self) -> u128 {
        let numbers = self.region.start().iter().map(|start| start.cast_unsigned());
        let numbers = numbers.chain(self.region.shape().iter().chain(self.region.step()).copied());
        let hash_input: Vec<u8> = numbers.chain([self.dataset.id]).flat_map(u64::to_le_bytes).collect();
        xxh3_128(&hash_input)
    }

    /// Adapts the size of the next band to the client: where memory is short, a slow client gets small bands. `waited`
    /// is the time that the last band waited until the client had taken the band before it. The time that the band
    /// waited for memory counts, too.
    pub(crate) fn adapt_band_size(&mut self, waited: Duration, budget: &Budget) {
        let waited = waited.saturating_add(self.memory_waited);
        let (free_bytes, Some(bands)) = (budget.free_bytes(), &mut self.bands) else { return };
        let is_memory_plentiful = free_bytes > budget.capacity_bytes() / 2;
        if waited < if is_memory_plentiful { SLOW_CLIENT_WAIT } else { FAST_CLIENT_WAIT } {
            bands.grow(free_bytes);
        } else if waited > SLOW_CLIENT_WAIT && !is_memory_plentiful {
            bands.shrink();
        }
        // A band that fits into the free memory does not wait for memory that other clients hold.
        if waited > SLOW_CLIENT_WAIT || Arc::strong_count(&self.stream_token) == 1 {
            bands.cap_next_bytes(free_bytes.saturating_sub(budget.capacity_bytes() - budget.max_stream_bytes()));
        }
    }

    /// Returns true if all bands have been read.
    pub fn is_exhausted(&self) -> bool {
        self.bands.as_ref().is_none_or(Bands::is_done)
    }

    /// Returns true if the slice is sent in bands, because it exceeds the slice budget or its delivery demands it.
    pub fn is_streamed(&self) -> bool {
        self.bands.is_some()
    }
}

/// Form in which the elements of a slice are sent.
#[derive(Debug, Clone)]
pub struct SliceDelivery<'a> {
    /// Type that the elements are converted to. If it is the dataset's own type, they are sent unchanged.
    pub data_type: &'a DataType,
    /// Bytes of memory that a whole response takes in addition to the elements as stored and as converted. If they do
    /// not fit, the response is sent in bands. 0 for a response that is not streamable.
    pub extra_bytes: u64,
    /// Bytes that a streamed response sends before its elements. Their memory is taken with the first band.
    pub prefix_bytes: u64,
    /// Condition on which the response is sent in bands.
    pub streaming: Streaming,
}

/// Condition on which a response is sent in bands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streaming {
    /// The format allows only whole responses.
    Never,
    /// Sending the response whole would leave less than a quarter of the slice budget to others. Its client may be
    /// slow.
    IfLarge,
    /// As [`Self::IfLarge`], in small bands where possible, because the client is rate-limited.
    IfLargeInSmallBands,
    /// Always, even if there is memory for all of it.
    Always,
}

impl<'a> SliceDelivery<'a> {
    /// Elements of `data_type` that are sent whole and without anything else.
    pub fn whole(data_type: &'a DataType) -> Self {
        Self { data_type, extra_bytes: 0, prefix_bytes: 0, streaming: Streaming::Never }
    }

    /// Elements of `data_type` that are sent in bands.
    pub fn streamed(data_type: &'a DataType) -> Self {
        Self { streaming: Streaming::Always, ..Self::whole(data_type) }
    }
}

/// Limits that decide how a slice is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SliceLimits {
    /// Largest slice in bytes.
    pub(crate) max_slice_bytes: u64,
    /// Maximum number of bytes assembled at once.
    pub(crate) budget_bytes: u64,
    /// Largest response that is sent whole, in bytes.
    pub(crate) max_whole_bytes: u64,
    /// Bytes that a whole response takes in addition to its elements, if it can be sent in bands instead.
    pub(crate) extra_bytes: u64,
    /// Largest band in bytes. A stream leaves some of the budget to others.
    pub(crate) max_band_bytes: u64,
    /// Maximum ratio of decoded bytes to response bytes.
    pub(crate) decode_factor: u64,
    /// The response is sent in bands even if it fits the budget.
    pub(crate) must_stream: bool,
}

/// Reason why a slice is refused before anything is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SliceRefusal {
    /// The response is too large.
    TooLarge {
        /// Its size in bytes; `None` beyond 2^64.
        bytes: Option<u64>,
        /// Limit in bytes.
        limit_bytes: u64,
    },
    /// Far more bytes would have to be decoded than returned.
    TooCostly {
        /// Bytes to decode.
        decoded_bytes: u128,
        /// Size of the response in bytes.
        bytes: u64,
        /// Maximum number of bytes that may be decoded for it.
        limit_bytes: u128,
        /// Maximum number of existing blocks for which the slice is accepted, if each of them is as large as
        /// `blockSize` allows.
        affordable_blocks: u128,
    },
}

/// Assumptions about the blocks to decode. By default, every block that the region touches is decoded whole.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CostAssumptions {
    /// Number of touched blocks, if it differs from the number for this very region.
    pub(crate) touched_blocks: Option<u128>,
    /// Number of touched blocks that may exist; `None` for all. Each of the others costs a lookup.
    pub(crate) existing_blocks: Option<u128>,
    /// The blocks are stored uncompressed and read only where the region has samples.
    pub(crate) uses_partial_reads: bool,
}

/// Plans a slice of `dataset` from sizes alone: refuses it, or admits it whole or in bands.
///
/// # Errors
/// [`SliceRefusal`].
pub fn plan_slice(container: &Container, dataset: &Arc<Dataset>, region: Region) -> Result<PlannedSlice, SliceRefusal> {
    plan_converted_slice(container, dataset, region, &SliceDelivery::whole(dataset.attributes.data_type()))
}

/// As [`plan_slice`], for a response whose bytes differ from the stored elements.
///
/// # Errors
/// [`SliceRefusal`].
pub fn plan_converted_slice(
    container: &Container,
    dataset: &Arc<Dataset>,
    region: Region,
    delivery: &SliceDelivery<'_>,
) -> Result<PlannedSlice, SliceRefusal> {
    plan_with_assumptions(container, dataset, region, delivery, CostAssumptions::default())
}

/// Returns the maximum number of bytes of one response that wait to be sent. A quarter of the slice budget is left
/// to others.
pub fn max_buffered_bytes(container: &Container) -> u64 {
    container.resources.slice_budget.max_stream_bytes()
}

/// Returns true if there is memory for `slice` and `extra_bytes` now, or if the slice is so small that it should
/// wait for it.
///
/// The client's quota does not count: a client above its quota waits for its own responses to be sent. In bands, it
/// would get more memory the fewer bands it takes, and leave too little for the streams of others.
pub fn has_capacity_for(container: &Container, slice: &PlannedSlice, extra_bytes: u64) -> bool {
    let bytes = slice.memory_bytes().saturating_add(extra_bytes);
    bytes <= ALWAYS_WHOLE_BYTES || container.resources.slice_budget.has_capacity_for(bytes)
}

/// As [`plan_converted_slice`], but if the decoding cost is too high, blocks that do not exist are no longer
/// counted.
///
/// Blocks written after the count are read like all others. Memory stays bounded, but the decoded bytes may exceed
/// `limits.decode_factor` by those blocks.
///
/// # Errors
/// [`ReadError`] if the store cannot tell which blocks exist. The inner error is the refusal, to which the caller may
/// add a hint at a smaller slice.
pub async fn plan_sparse_slice(
    container: &Container,
    freshness: Freshness,
    dataset: &Arc<Dataset>,
    region: Region,
    delivery: &SliceDelivery<'_>,
) -> Result<Result<PlannedSlice, SliceRefusal>, ReadError> {
    let planned = plan_converted_slice(container, dataset, region.clone(), delivery);
    let Err(SliceRefusal::TooCostly { affordable_blocks, .. }) = planned else { return Ok(planned) };
    freshness.pend_if_nonblocking().await;
    let existing_blocks = Some(count_existing_blocks(container, dataset, &region, affordable_blocks).await?);
    let assumptions = CostAssumptions { existing_blocks, ..CostAssumptions::default() };
    Ok(plan_with_assumptions(container, dataset, region, delivery, assumptions))
}

/// As [`plan_converted_slice`], for every region with the shape and the steps of `part`: refused if one of
/// them would be refused.
///
/// # Errors
/// [`SliceRefusal`].
pub fn plan_part(
    container: &Container,
    dataset: &Arc<Dataset>,
    part: &Region,
    delivery: &SliceDelivery<'_>,
) -> Result<PlannedSlice, SliceRefusal> {
    let touched_blocks = Some(max_touched_blocks(part, dataset.attributes.grid()));
    let assumptions = CostAssumptions { touched_blocks, ..CostAssumptions::default() };
    plan_with_assumptions(container, dataset, part.clone(), delivery, assumptions)
}

/// Plans a slice. If decoding whole blocks is too costly and they are stored uncompressed, plans to read parts of
/// them.
fn plan_with_assumptions(
    container: &Container,
    dataset: &Arc<Dataset>,
    region: Region,
    delivery: &SliceDelivery<'_>,
    assumptions: CostAssumptions,
) -> Result<PlannedSlice, SliceRefusal> {
    let settings = container.resources.settings();
    let (prefix_bytes, max_stream_bytes) = (delivery.prefix_bytes, container.resources.slice_budget.max_stream_bytes());
    let limits = SliceLimits {
        max_slice_bytes: settings.max_slice_bytes,
        budget_bytes: settings.slice_budget,
        max_whole_bytes: match delivery.streaming {
            Streaming::Never => settings.slice_budget,
            Streaming::IfLarge | Streaming::IfLargeInSmallBands | Streaming::Always => max_stream_bytes,
        },
        extra_bytes: delivery.extra_bytes,
        max_band_bytes: max_stream_bytes.saturating_sub(prefix_bytes),
        decode_factor: settings.decode_factor,
        must_stream: delivery.streaming == Streaming::Always,
    };
    let width = dataset.attributes.data_type().size_bytes().unwrap_or(1);
    let converted = Some(delivery.data_type).filter(|to| *to != dataset.attributes.data_type());
    let widths = ElementWidths::new(width, converted.map(|to| to.size_bytes().unwrap_or(1)));
    let grid = dataset.attributes.grid();
    let rate_limited_bytes = settings.slice_budget / RATE_LIMITED_BUDGET_DIVISOR;
    let rate_limited_limits = SliceLimits {
        budget_bytes: rate_limited_bytes,
        max_whole_bytes: rate_limited_bytes,
        max_band_bytes: rate_limited_bytes.saturating_sub(prefix_bytes),
        ..limits
    };
    let is_uncompressed = dataset.attributes.compression().codec().is_some_and(Codec::is_uncompressed);
    let plan_within = |limits: SliceLimits| match plan(&region, grid, widths, limits, assumptions) {
        Err(SliceRefusal::TooCostly { .. }) if is_uncompressed => {
            plan(&region, grid, widths, limits, CostAssumptions { uses_partial_reads: true, ..assumptions })
                .map(|plan| (plan, true))
        }
        result => result.map(|plan| (plan, false)),
    };
    // If small bands would decode blocks too often, the slice is planned as for any other client.
    let has_small_bands = delivery.streaming == Streaming::IfLargeInSmallBands;
    let rate_limited_plan = if has_small_bands { plan_within(rate_limited_limits).ok() } else { None };
    let ((bytes, bands), uses_partial_reads) = rate_limited_plan.map_or_else(|| plan_within(limits), Ok)?;
    let (dataset, convert_to, stream_token) = (Arc::clone(dataset), converted.cloned(), Arc::new(()));
    Ok(PlannedSlice {
        dataset,
        region,
        widths,
        convert_to,
        bytes,
        prefix_bytes,
        bands,
        uses_partial_reads,
        has_started: false,
        memory_waited: Duration::ZERO,
        stream_token,
    })
}

/// Counts the blocks of `dataset` that `region` touches and that may exist, by listing directories. In an almost empty
/// dataset this is far cheaper than looking up each block. A block counts if its existence is unknown: if its
/// directory could not be listed, or not within [`MAX_LISTING_PAGES`], [`MAX_PENDING_DIRECTORIES`] and
/// [`LISTING_TIME_LIMIT`], or if the store lists slowly. Counting stops a little above `max_count`.
///
/// # Errors
/// When the store fails.
async fn count_existing_blocks(
    container: &Container,
    dataset: &Dataset,
    region: &Region,
    max_count: u128,
) -> Result<u128, ReadError> {
    let covering = Arc::new(dataset.attributes.grid().covering(region));
    let (total, rank) = (covering.total(), region.rank());
    if rank == 0 || total == 0 || !container.store.lists_cheaply() {
        return Ok(total);
    }
    let started = Instant::now();
    // Number of positions below each entry of a level.
    let block_counts: Vec<u128> = (0..rank)
        .map(|level| (level + 1..rank).fold(1, |n: u128, axis| n.saturating_mul(covering.count_along(axis).into())))
        .collect();
    let blocks_below = |level: usize| block_counts.get(level).copied().unwrap_or(1);
    let (mut missing_blocks, mut existing_blocks, mut pages) = (0u128, 0u128, 0);
    // Directories that have not been listed yet: their level, and the last grid component of their path.
    let mut pending = vec![(0_usize, 0_u64)];
    let mut path = Coords::new();
    while let Some((level, number)) = pending.pop() {
        path.truncate(level.saturating_sub(1));
        if level > 0 {
            path.push(number);
        }
        let key = if path.is_empty() { dataset.key.clone() } else { dataset.key.join_numbers(&path) };
        let is_last = level + 1 == rank;
        let filter = touched_filter(&covering, level);
        let (mut after, mut present) = (None::<String>, 0u64);
        let is_known = loop {
            if pages == MAX_LISTING_PAGES
                || started.elapsed() > LISTING_TIME_LIMIT
                || pending.len() > MAX_PENDING_DIRECTORIES
            {
                return Ok(total.saturating_sub(missing_blocks));
            }
            pages += 1;
            let page = container.store.list(&key, after.as_deref(), LISTING_PAGE_ENTRIES, Arc::clone(&filter));
            let listing = match page.await {
                Ok(Some(listing)) => listing,
                Ok(None) => break true,
                Err(error) if error.hides_object() => break false,
                Err(error) => return Err(error.into()),
            };
            present = present.saturating_add(listing.omitted_count);
            after = listing.entries.last().map(|entry| entry.name.clone());
            for entry in listing.entries {
                // A directory is not a block, and a file is not a directory of blocks.
                if entry.is_directory == is_last {
                    continue;
                }
                present = present.saturating_add(1);
                if is_last {
                    existing_blocks = existing_blocks.saturating_add(1);
                } else if let Some(number) = grid_component(&entry.name) {
                    pending.push((level + 1, number));
                }
            }
            if !listing.has_more || after.is_none() {
                break !listing.has_more;
            }
        };
        if is_known {
            let missing = covering.count_along(level).saturating_sub(present);
            missing_blocks = missing_blocks.saturating_add(u128::from(missing).saturating_mul(blocks_below(level)));
        }
        if existing_blocks > max_count {
            break;
        }
    }
    Ok(total.saturating_sub(missing_blocks))
}

/// Returns a filter that keeps the entries of a directory on this level that lead to touched blocks.
fn touched_filter(covering: &Arc<CoveringBlocks>, level: usize) -> EntryFilter {
    let covering = Arc::clone(covering);
    Arc::new(move |entry: &DirEntry| {
        let is_touched = grid_component(&entry.name).is_some_and(|number| covering.touches(level, number));
        if is_touched { FilterDecision::Keep } else { FilterDecision::Skip }
    })
}

/// Returns the size of a response in bytes, and its bands if it exceeds the budget. Arithmetic only.
pub(crate) fn plan(
    region: &Region,
    grid: &BlockGrid,
    widths: ElementWidths,
    limits: SliceLimits,
    assumptions: CostAssumptions,
) -> Result<(u64, Option<Bands>), SliceRefusal> {
    let limit_bytes = limits.max_slice_bytes;
    let bytes = region.elements().and_then(|elements| elements.checked_mul(widths.sent));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= limit_bytes) else {
        return Err(SliceRefusal::TooLarge { bytes, limit_bytes });
    };
    let held_bytes = region.elements().unwrap_or(u64::MAX).saturating_mul(widths.in_memory);
    let bands = if limits.must_stream || held_bytes.saturating_add(limits.extra_bytes) > limits.max_whole_bytes {
        // `None` means that not even one element fits.
        let bands = Bands::new(region, grid, widths, limits.max_band_bytes, FIRST_PART_BYTES);
        Some(bands.ok_or(SliceRefusal::TooLarge { bytes: Some(bytes), limit_bytes })?)
    } else {
        None
    };
    // The cost if the cache keeps none of the blocks. A block is needed once, or by several bands.
    let touched_blocks = assumptions.touched_blocks.unwrap_or_else(|| grid.covering(region).total());
    let existing_blocks = assumptions.existing_blocks.unwrap_or(touched_blocks).min(touched_blocks);
    let block_bytes = block_cost_bytes(region, grid, widths.stored, bands.as_ref(), assumptions.uses_partial_reads);
    let decodes_per_block = bands.as_ref().map_or(1, |bands| bands.decodes_per_block(grid));
    let missing_cost_bytes = touched_blocks.saturating_sub(existing_blocks).saturating_mul(BLOCK_COST_BYTES);
    let decoded_bytes = missing_cost_bytes
        .saturating_add(existing_blocks.saturating_mul(block_bytes))
        .saturating_mul(u128::from(decodes_per_block));
    let factor = u128::from(limits.decode_factor.max(1));
    let limit_bytes = factor.saturating_mul(u128::from(bytes.max(limits.budget_bytes)));
    // Where bands cut layers of blocks that may all exist, no block may be decoded more than `factor` times.
    let is_dense = assumptions.existing_blocks.is_none() && !assumptions.uses_partial_reads;
    let is_decoded_too_often = is_dense && u128::from(decodes_per_block) > factor;
    if decoded_bytes > limit_bytes || is_decoded_too_often {
        let decoded_bytes = decoded_bytes.max(if is_decoded_too_often { limit_bytes.saturating_add(1) } else { 0 });
        let affordable_bytes = (limit_bytes / u128::from(decodes_per_block.max(1)))
            .saturating_sub(touched_blocks.saturating_mul(BLOCK_COST_BYTES));
        let affordable_blocks = affordable_bytes / block_bytes.saturating_sub(BLOCK_COST_BYTES).max(1);
        return Err(SliceRefusal::TooCostly { decoded_bytes, bytes, limit_bytes, affordable_blocks });
    }
    let max_decodes = limit_bytes.saturating_mul(u128::from(decodes_per_block)) / decoded_bytes.max(1);
    let decode_limit = if is_dense { limits.decode_factor } else { u64::MAX };
    let max_decodes = u64::try_from(max_decodes).unwrap_or(u64::MAX).min(decode_limit);
    Ok((bytes, bands.map(|bands| bands.with_max_decodes(max_decodes, grid))))
}

/// Returns the bytes that are decoded each time a block is needed, or only read for a partial read.
fn block_cost_bytes(
    region: &Region,
    grid: &BlockGrid,
    width: u64,
    bands: Option<&Bands>,
    uses_partial_reads: bool,
) -> u128 {
    let size: Coords = grid.block_size().iter().zip(grid.dimensions()).map(|(b, d)| *b.min(d)).collect();
    let mut bytes = size.iter().fold(u128::from(width), |bytes, n| bytes.saturating_mul(u128::from(*n)));
    if uses_partial_reads {
        // Maximum number of samples that one band takes of a block along each axis.
        let counts = (0..region.rank()).map(|axis| {
            let samples = size[axis].div_ceil(region.step()[axis]).min(region.shape()[axis]).max(1);
            bands.map_or(samples, |bands| bands.samples_per_band(axis, samples))
        });
        bytes = bytes.min(RangeReads::from_counts(&size, width, &counts.collect(), region.step()).cost_bytes().into());
    }
    bytes.max(BLOCK_COST_BYTES)
}

/// Returns the maximum number of blocks that a region of this shape touches at any position in the grid.
pub(crate) fn max_touched_blocks(region: &Region, grid: &BlockGrid) -> u128 {
    let blocks = grid.shape();
    (0..region.rank()).fold(1, |product: u128, axis| {
        let (step, block) = (u128::from(region.step()[axis]), u128::from(grid.block_size()[axis]));
        let samples = u128::from(region.shape()[axis]);
        let last = samples.saturating_sub(1).saturating_mul(step);
        let touched_blocks = last.saturating_add(block - 1) / block + 1;
        product.saturating_mul(touched_blocks.min(samples).min(u128::from(blocks[axis])))
    })
}
