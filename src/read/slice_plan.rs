//! Planning of slices, from their sizes alone and before anything is read.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::bands::{self, Bands, ElementWidths};
use super::slice_cost::{CostAssumptions, max_touched_blocks};
use super::slice_decision::{SliceLimits, SliceRefusal, plan};
use crate::cache::budget::Budget;
use crate::cache::datasets::Dataset;
use crate::cache::error::ReadError;
use crate::cache::freshness::Freshness;
use crate::container::Container;
use n5_format::{Codec, ConvertError, Coords, DataType, Region, convert};

/// A slice that was admitted by its size, before anything was read.
#[derive(Debug, Clone)]
pub struct PlannedSlice {
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) region: Region,
    pub(crate) width: usize,
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
    /// is the time that the last band waited until the client had taken the band before it. The time that it waited for
    /// memory counts, too.
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

/// Longest wait for a client that counts as fast. A fast client does not hold its memory for long, so its next bands
/// may grow even where memory is short.
const FAST_CLIENT_WAIT: Duration = Duration::from_millis(250);

/// Wait after which a client counts as slow. Its bands become smaller where memory is short.
const SLOW_CLIENT_WAIT: Duration = Duration::from_secs(1);

/// Form in which the elements of a slice are sent.
#[derive(Debug, Clone)]
pub struct SliceDelivery<'a> {
    /// Type that the elements are converted to. If it is the dataset's own type, they are sent unchanged.
    pub data_type: &'a DataType,
    /// Bytes of memory that a whole response takes besides the elements as stored and as converted. If they do not fit,
    /// the response is sent in bands. 0 for a response that is not streamable.
    pub extra_bytes: u64,
    /// Bytes that a streamed response sends before its elements. Their memory is taken with the first band.
    pub prefix_bytes: u64,
    /// The client is rate-limited: the response is sent in small bands where possible.
    pub is_rate_limited: bool,
    /// The response can be sent in bands. It is if sending it whole would leave less than a quarter of the slice budget
    /// to others, because its client may be slow.
    pub is_streamable: bool,
    /// The response is sent in bands even if there is memory for all of it.
    pub must_stream: bool,
}

/// Largest response that is not worth sending in bands, in bytes.
const ALWAYS_WHOLE_BYTES: u64 = 1 << 20;

/// Divisor of the slice budget that limits the bands of a rate-limited response: they hold their memory for long, and
/// up to three exist at once.
const RATE_LIMITED_BUDGET_DIVISOR: u64 = 16;

impl Container {
    /// Plans a slice of `dataset` from sizes alone: refuses it, or admits it whole or in bands.
    ///
    /// # Errors
    /// [`SliceRefusal`].
    pub fn plan_slice(&self, dataset: &Arc<Dataset>, region: Region) -> Result<PlannedSlice, SliceRefusal> {
        let data_type = dataset.attributes.data_type();
        self.plan_converted_slice(
            dataset,
            region,
            &SliceDelivery {
                data_type,
                extra_bytes: 0,
                prefix_bytes: 0,
                is_rate_limited: false,
                is_streamable: false,
                must_stream: false,
            },
        )
    }

    /// As [`Self::plan_slice`], for a response whose bytes differ from the stored elements.
    ///
    /// # Errors
    /// [`SliceRefusal`].
    pub fn plan_converted_slice(
        &self,
        dataset: &Arc<Dataset>,
        region: Region,
        delivery: &SliceDelivery<'_>,
    ) -> Result<PlannedSlice, SliceRefusal> {
        self.plan_with_assumptions(dataset, region, delivery, CostAssumptions::default())
    }

    /// Returns the maximum number of bytes of one response that wait to be sent. A quarter of the slice budget is left
    /// to others.
    pub fn max_buffered_bytes(&self) -> u64 {
        self.resources.slice_budget.max_stream_bytes()
    }

    /// Returns true if there is memory for `slice` and `extra_bytes` now, or if the slice is so small that it should
    /// wait for it.
    ///
    /// The client's quota does not count: a client above its quota waits for its own responses to be sent. In bands, it
    /// would get more memory the fewer bands it takes, and leave too little for the streams of others.
    pub fn has_capacity_for(&self, slice: &PlannedSlice, extra_bytes: u64) -> bool {
        let bytes = slice.memory_bytes().saturating_add(extra_bytes);
        bytes <= ALWAYS_WHOLE_BYTES || self.resources.slice_budget.has_capacity_for(bytes)
    }

    /// As [`Self::plan_converted_slice`], but if the decoding cost is too high, blocks that do not exist are no longer
    /// counted.
    ///
    /// Blocks written after the count are read like all others. Memory stays bounded, but the decoded bytes may exceed
    /// `limits.decode_factor` by those blocks.
    ///
    /// # Errors
    /// [`ReadError`] if the store cannot tell which blocks exist; inside, [`SliceRefusal`].
    pub async fn plan_sparse_slice(
        &self,
        freshness: Freshness,
        dataset: &Arc<Dataset>,
        region: Region,
        delivery: &SliceDelivery<'_>,
    ) -> Result<Result<PlannedSlice, SliceRefusal>, ReadError> {
        let refusal = match self.plan_converted_slice(dataset, region.clone(), delivery) {
            Err(refusal @ SliceRefusal::TooCostly { .. }) => refusal,
            result => return Ok(result),
        };
        let SliceRefusal::TooCostly { affordable_blocks, .. } = refusal else { return Ok(Err(refusal)) };
        freshness.ensure_may_block().await;
        let existing_blocks = Some(self.count_existing_blocks(dataset, &region, affordable_blocks).await?);
        Ok(self.plan_with_assumptions(
            dataset,
            region,
            delivery,
            CostAssumptions { existing_blocks, ..CostAssumptions::default() },
        ))
    }

    /// Returns the shape, in samples, of a part of `region` that is `accepts` as planned by [`Self::plan_part`];
    /// `None` if no part is.
    pub fn acceptable_part_shape(
        &self,
        dataset: &Arc<Dataset>,
        region: &Region,
        accepts: impl Fn(&Region) -> bool,
    ) -> Option<Coords> {
        bands::shrink_until_accepted(region, dataset.attributes.grid(), accepts)
    }

    /// As [`Self::plan_converted_slice`], for every region with the shape and the steps of `part`: refused if one of
    /// them would be refused.
    ///
    /// # Errors
    /// [`SliceRefusal`].
    pub fn plan_part(
        &self,
        dataset: &Arc<Dataset>,
        part: &Region,
        delivery: &SliceDelivery<'_>,
    ) -> Result<PlannedSlice, SliceRefusal> {
        let touched_blocks = Some(max_touched_blocks(part, dataset.attributes.grid()));
        self.plan_with_assumptions(
            dataset,
            part.clone(),
            delivery,
            CostAssumptions { touched_blocks, ..CostAssumptions::default() },
        )
    }

    /// Plans a slice. If decoding whole blocks is too costly and they are stored uncompressed, plans to read parts of
    /// them.
    fn plan_with_assumptions(
        &self,
        dataset: &Arc<Dataset>,
        region: Region,
        delivery: &SliceDelivery<'_>,
        assumptions: CostAssumptions,
    ) -> Result<PlannedSlice, SliceRefusal> {
        let settings = self.resources.settings();
        let (prefix_bytes, max_stream_bytes) = (delivery.prefix_bytes, self.resources.slice_budget.max_stream_bytes());
        let limits = SliceLimits {
            max_slice_bytes: settings.max_slice_bytes,
            budget_bytes: settings.slice_budget,
            max_whole_bytes: if delivery.is_streamable { max_stream_bytes } else { settings.slice_budget },
            extra_bytes: delivery.extra_bytes,
            max_band_bytes: max_stream_bytes.saturating_sub(prefix_bytes),
            decode_factor: settings.decode_factor,
            must_stream: delivery.must_stream,
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
        let rate_limited_plan = if delivery.is_rate_limited { plan_within(rate_limited_limits).ok() } else { None };
        let ((bytes, bands), uses_partial_reads) = rate_limited_plan.map_or_else(|| plan_within(limits), Ok)?;
        let (dataset, convert_to, stream_token) = (Arc::clone(dataset), converted.cloned(), Arc::new(()));
        Ok(PlannedSlice {
            dataset,
            region,
            width,
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
}
