//! Planning of slices before a block is read: a slice is sent whole, in bands, or refused. Sizes alone decide. Only if
//! the decision depends on the number of existing blocks, directories are listed.

use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::bands::{Bands, SliceGeometry};
use super::existing_blocks::count_existing_blocks;
use crate::cache::{Dataset, ReadError, ReadOptions};
use crate::container::Container;
use n5_format::{BlockGrid, Codec, ConvertError, Coords, DataType, RangeReads, Region, convert};

/// Largest response that is not worth sending in bands, in bytes.
const ALWAYS_WHOLE_BYTES: u64 = 1 << 20;

/// A band of a rate-limited response takes at most 1/16 of the slice budget. Such bands hold their memory for long, and
/// up to three of them exist at once.
const RATE_LIMITED_BUDGET_DIVISOR: u64 = 16;

/// Approximate total size of the blocks that the first part of a stream touches, in bytes. The first part is small, so
/// that its first byte is sent as early as the first byte of a small slice. When it was a whole layer of blocks, the
/// first byte of 20 GiB took 2.4 s.
const FIRST_PART_BYTES: u64 = 1 << 20;

/// Size up to which a header is not counted as memory, in bytes.
const MAX_UNCOUNTED_HEADER_BYTES: u64 = 64 << 10;

/// Cost of looking up a block, in bytes that could be decoded in the same time. No touched block costs less.
pub(crate) const BLOCK_COST_BYTES: u128 = 4 << 10;

/// A slice that may be read, and how it is read.
#[derive(Debug, Clone)]
pub struct PlannedSlice {
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) region: Region,
    /// Bytes that an element takes in memory: the width as decoded plus, if converted, the width as sent.
    pub(crate) memory_width: u64,
    /// Type that the elements are converted to; `None` if they keep their stored type.
    convert_to: Option<DataType>,
    /// Size of the elements as sent, in bytes.
    bytes: u64,
    /// Memory of the header that a streamed response sends before its elements, in bytes; 0 for a short header.
    pub(crate) counted_header_bytes: u64,
    /// All bands of a slice that is streamed.
    pub(crate) bands: Option<Bands>,
    /// True if the slice was accepted on condition that its blocks are read only where it has samples.
    pub(crate) uses_partial_reads: bool,
    /// Order of the axes in the bands, fastest first; `None` for the N5 axis order, and for a slice without bands.
    pub(crate) axis_order: Option<Arc<[usize]>>,
}

impl PlannedSlice {
    /// Returns a number that identifies the dataset, for the fair sharing of cores.
    pub fn dataset_id(&self) -> u64 {
        self.dataset.id
    }

    /// Returns the size of the elements as sent, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the size of a stored element in bytes.
    pub(crate) fn stored_width(&self) -> usize {
        self.dataset.attributes.data_type().size_bytes().unwrap_or(1)
    }

    /// Returns the bytes of memory that the elements take if the slice is read whole. Converted elements take memory
    /// twice: as stored and as converted.
    pub fn memory_bytes(&self) -> u64 {
        self.region.elements().unwrap_or(u64::MAX).saturating_mul(self.memory_width)
    }

    /// Converts the elements to the requested type.
    ///
    /// # Errors
    /// Returns [`ConvertError`] if the type cannot represent an element.
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
    /// Bytes of memory that encoding a whole response takes in addition to the stored and the converted elements. A
    /// response is sent in bands if it can be and one response may not take that much memory.
    pub encoder_bytes: u64,
    /// Length of the header in bytes if the response can be sent in bands: the header, then the elements. `None` if it
    /// can only be sent as a whole. The caller must then refuse a slice that is planned in bands, because it is larger
    /// than the slice budget.
    pub header_bytes: Option<u64>,
    /// Condition on which a response that can be sent in bands is sent in bands.
    pub streaming: Streaming,
    /// Order of the axes in bands, fastest first: a permutation of all axes. `None` stands for the N5 axis order, which
    /// a slice that is sent as a whole always has.
    pub axis_order: Option<Arc<[usize]>>,
}

/// Condition on which a response is sent in bands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streaming {
    /// The response is sent in bands if sending it whole would leave less than a quarter of the slice budget to other
    /// clients, because its client may be slow.
    IfLarge,
    /// Like [`Self::IfLarge`], but in small bands if possible, because the client is rate-limited. A response with a
    /// long header is sent as with [`Self::IfLarge`].
    IfLargeInSmallBands,
    /// The response is sent in bands even if there is memory for all of it.
    Always,
}

impl<'a> SliceDelivery<'a> {
    /// Creates a delivery of elements of `data_type` that are sent as a whole, unencoded.
    pub fn whole(data_type: &'a DataType) -> Self {
        Self { data_type, encoder_bytes: 0, header_bytes: None, streaming: Streaming::IfLarge, axis_order: None }
    }

    /// Creates a delivery of elements of `data_type` that are sent in bands, without a header.
    pub fn streamed(data_type: &'a DataType) -> Self {
        Self { header_bytes: Some(0), streaming: Streaming::Always, ..Self::whole(data_type) }
    }

    /// Returns the bytes of the header that count as memory. Their memory is taken with the first band.
    pub(crate) fn counted_header_bytes(&self) -> u64 {
        self.header_bytes.filter(|bytes| *bytes > MAX_UNCOUNTED_HEADER_BYTES).unwrap_or(0)
    }
}

/// Limits that decide how a slice is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SliceLimits {
    /// Largest slice in bytes.
    pub(crate) max_slice_bytes: u64,
    /// Maximum number of bytes assembled at once.
    pub(crate) budget_bytes: u64,
    /// Maximum memory of the elements of a response that is sent whole, in bytes. `None` if every response is sent in
    /// bands.
    pub(crate) max_whole_bytes: Option<u64>,
    /// Largest band in bytes. It leaves a part of the budget to other clients.
    pub(crate) max_band_bytes: u64,
    /// Maximum ratio of decoded bytes to the bytes of the response.
    pub(crate) decode_factor: u64,
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

/// Reason why there is no plan for a slice.
#[derive(Debug)]
pub enum PlanError {
    /// The slice is refused.
    Refused(SliceRefusal),
    /// The store cannot tell which blocks exist.
    Read(ReadError),
}

/// Plans slices of one dataset that are sent in the same form.
#[derive(Debug, Clone)]
pub struct SlicePlanner<'a> {
    /// Container of the dataset.
    pub container: &'a Container,
    /// The dataset.
    pub dataset: &'a Arc<Dataset>,
    /// Form in which the elements are sent.
    pub delivery: SliceDelivery<'a>,
}

impl<'a> SlicePlanner<'a> {
    /// Creates a planner of slices that are sent as a whole, unconverted and unencoded.
    pub fn whole(container: &'a Container, dataset: &'a Arc<Dataset>) -> Self {
        Self { container, dataset, delivery: SliceDelivery::whole(dataset.attributes.data_type()) }
    }

    /// Plans a slice from sizes alone: as a whole, or in bands.
    ///
    /// # Errors
    /// Returns [`SliceRefusal`] if the slice is too large or too costly.
    pub fn plan(&self, region: &Region) -> Result<PlannedSlice, SliceRefusal> {
        self.plan_geometry(self.geometry(region))
    }

    /// Plans a slice like [`Self::plan`]. If it is too costly only because of blocks that do not exist, accepts it.
    ///
    /// Blocks that are written after the count are read, too. Memory stays bounded, but the decoded bytes may exceed
    /// `limits.decode_factor` by the size of these blocks.
    ///
    /// # Errors
    /// Returns [`PlanError`] if the slice is refused or the store fails.
    pub async fn plan_sparse(&self, region: &Region, options: ReadOptions) -> Result<PlannedSlice, PlanError> {
        let mut geometry = self.geometry(region);
        let affordable_blocks = match self.plan_geometry(geometry) {
            Ok(slice) => return Ok(slice),
            Err(SliceRefusal::TooCostly { affordable_blocks, .. }) => affordable_blocks,
            Err(refusal) => return Err(PlanError::Refused(refusal)),
        };
        options.pend_if_nonblocking().await;
        let counted = count_existing_blocks(self.container, self.dataset, region, affordable_blocks).await;
        geometry.existing_blocks = Some(counted.map_err(PlanError::Read)?);
        self.plan_geometry(geometry).map_err(PlanError::Refused)
    }

    /// Plans a slice like [`Self::plan`], but accepts it only if every region with the shape and the steps of `part`
    /// would be accepted, wherever in the dataset it lies.
    ///
    /// # Errors
    /// Returns [`SliceRefusal`] if one of these regions would be refused.
    pub fn plan_anywhere(&self, part: &Region) -> Result<PlannedSlice, SliceRefusal> {
        let touched_blocks = max_touched_blocks(part, self.dataset.attributes.grid());
        self.plan_geometry(SliceGeometry { touched_blocks, ..self.geometry(part) })
    }

    /// Returns the type that the elements are converted to; `None` if they keep their stored type.
    fn converted_type(&self) -> Option<&'a DataType> {
        Some(self.delivery.data_type).filter(|data_type| *data_type != self.dataset.attributes.data_type())
    }

    fn geometry<'r>(&'r self, region: &'r Region) -> SliceGeometry<'r> {
        let attributes = &self.dataset.attributes;
        let stored_width = attributes.data_type().size_bytes().unwrap_or(1);
        let converted_width = self.converted_type().map(|to| to.size_bytes().unwrap_or(1));
        let axis_order = self.delivery.axis_order.as_ref();
        SliceGeometry { axis_order, ..SliceGeometry::new(region, attributes.grid(), stored_width, converted_width) }
    }

    fn plan_geometry(&self, geometry: SliceGeometry<'_>) -> Result<PlannedSlice, SliceRefusal> {
        let SliceDelivery { header_bytes, encoder_bytes, streaming, .. } = self.delivery;
        let limits = self.limits();
        let has_short_header = header_bytes.is_some_and(|bytes| bytes <= MAX_UNCOUNTED_HEADER_BYTES);
        if streaming == Streaming::IfLargeInSmallBands && has_short_header {
            let small_bytes = limits.budget_bytes / RATE_LIMITED_BUDGET_DIVISOR;
            let small_limits = SliceLimits {
                budget_bytes: small_bytes,
                max_whole_bytes: small_bytes.checked_sub(encoder_bytes),
                max_band_bytes: small_bytes,
                ..limits
            };
            // If small bands would decode blocks too often, the slice is planned as for any other client.
            if let Ok(slice) = self.plan_within_limits(geometry, small_limits) {
                return Ok(slice);
            }
        }
        self.plan_within_limits(geometry, limits)
    }

    /// Returns the limits that the settings of the server set to these slices.
    fn limits(&self) -> SliceLimits {
        let settings = self.container.resources.settings();
        let max_stream_bytes = self.container.resources.slice_budget.max_stream_bytes();
        let SliceDelivery { header_bytes, encoder_bytes, streaming, .. } = self.delivery;
        SliceLimits {
            max_slice_bytes: settings.max_slice_bytes,
            budget_bytes: settings.slice_budget,
            max_whole_bytes: match (header_bytes, streaming) {
                (None, _) => Some(settings.slice_budget),
                (Some(_), Streaming::Always) => None,
                (Some(_), Streaming::IfLarge | Streaming::IfLargeInSmallBands) => {
                    max_stream_bytes.checked_sub(encoder_bytes)
                }
            },
            max_band_bytes: max_stream_bytes.saturating_sub(self.delivery.counted_header_bytes()),
            decode_factor: settings.decode_factor,
        }
    }

    /// Plans a slice within `limits`. If decoding whole blocks is too costly and they are stored uncompressed, plans to
    /// read parts of them.
    fn plan_within_limits(
        &self,
        mut geometry: SliceGeometry<'_>,
        limits: SliceLimits,
    ) -> Result<PlannedSlice, SliceRefusal> {
        let codec = self.dataset.attributes.compression().codec();
        let mut planned = size_and_bands(geometry, limits);
        if codec.is_some_and(Codec::is_uncompressed) && matches!(planned, Err(SliceRefusal::TooCostly { .. })) {
            geometry.uses_partial_reads = true;
            planned = size_and_bands(geometry, limits);
        }
        let (bytes, bands) = planned?;
        Ok(PlannedSlice {
            dataset: Arc::clone(self.dataset),
            region: geometry.region.clone(),
            memory_width: geometry.memory_width,
            convert_to: self.converted_type().cloned(),
            bytes,
            counted_header_bytes: self.delivery.counted_header_bytes(),
            axis_order: self.delivery.axis_order.clone().filter(|_| bands.is_some()),
            bands,
            uses_partial_reads: geometry.uses_partial_reads,
        })
    }
}

/// Returns the maximum number of bytes of one response that may wait in memory until they are sent. This leaves a
/// quarter of the slice budget to other clients.
pub fn max_buffered_bytes(container: &Container) -> u64 {
    container.resources.slice_budget.max_stream_bytes()
}

/// Returns true if there is memory for `slice` and `extra_bytes` now, or if the slice is so small that it should wait
/// for the memory.
///
/// The client's quota is not considered: a client above its quota waits until its own responses are sent. If the client
/// got bands instead, a slow client could take the memory that the streams of other clients need.
pub fn has_capacity_for(container: &Container, slice: &PlannedSlice, extra_bytes: u64) -> bool {
    let bytes = slice.memory_bytes().saturating_add(extra_bytes);
    bytes <= ALWAYS_WHOLE_BYTES || container.resources.slice_budget.has_capacity_for(bytes)
}

/// Returns the size of a response in bytes, and its bands if it must be streamed. Arithmetic only.
///
/// # Errors
/// Returns [`SliceRefusal`] if the slice is too large or too costly.
pub(crate) fn size_and_bands(
    geometry: SliceGeometry<'_>,
    limits: SliceLimits,
) -> Result<(u64, Option<Bands>), SliceRefusal> {
    let limit_bytes = limits.max_slice_bytes;
    let bytes = geometry.sent_bytes();
    let Some(bytes) = bytes.filter(|bytes| *bytes <= limit_bytes) else {
        return Err(SliceRefusal::TooLarge { bytes, limit_bytes });
    };
    let held_bytes = geometry.region.elements().unwrap_or(u64::MAX).saturating_mul(geometry.memory_width);
    let is_whole = limits.max_whole_bytes.is_some_and(|max_bytes| held_bytes <= max_bytes);
    let mut bands = None;
    if !is_whole {
        bands = Bands::new(geometry, limits.max_band_bytes, FIRST_PART_BYTES);
        if bands.is_none() {
            // Not even one element fits.
            return Err(SliceRefusal::TooLarge { bytes: Some(bytes), limit_bytes });
        }
    }
    let max_decodes = max_decodes(geometry, bands.as_ref(), limits)?;
    Ok((bytes, bands.map(|bands| bands.with_max_decodes(max_decodes))))
}

/// Returns the maximum number of times that a block may be decoded for the response, if the cache keeps none of the
/// blocks.
///
/// # Errors
/// Returns [`SliceRefusal::TooCostly`] if too many bytes would be decoded.
fn max_decodes(geometry: SliceGeometry<'_>, bands: Option<&Bands>, limits: SliceLimits) -> Result<u64, SliceRefusal> {
    let SliceGeometry { touched_blocks, .. } = geometry;
    let bytes = geometry.sent_bytes().unwrap_or(u64::MAX);
    let existing_blocks = geometry.existing_blocks.unwrap_or(touched_blocks).min(touched_blocks);
    let block_bytes = block_cost_bytes(geometry, bands);
    // A whole response needs a block once. A streamed response may need it for several bands.
    let decodes_per_block = bands.map_or(1, Bands::decodes_per_block);
    let missing_cost_bytes = touched_blocks.saturating_sub(existing_blocks).saturating_mul(BLOCK_COST_BYTES);
    let decoded_bytes = missing_cost_bytes
        .saturating_add(existing_blocks.saturating_mul(block_bytes))
        .saturating_mul(u128::from(decodes_per_block));
    let factor = u128::from(limits.decode_factor.max(1));
    let limit_bytes = factor.saturating_mul(u128::from(bytes.max(limits.budget_bytes)));
    // If bands cut layers of blocks that may all exist, no block may be decoded more than `factor` times.
    let is_dense = geometry.existing_blocks.is_none() && !geometry.uses_partial_reads;
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
    Ok(u64::try_from(max_decodes).unwrap_or(u64::MAX).min(decode_limit))
}

/// Returns the cost of one use of a block: the number of bytes that are decoded, or that are read if the block is read
/// in parts.
fn block_cost_bytes(geometry: SliceGeometry<'_>, bands: Option<&Bands>) -> u128 {
    let SliceGeometry { region, grid, stored_width, .. } = geometry;
    let sizes = grid.block_size().iter().zip(grid.dimensions());
    let size: Coords = sizes.map(|(block, dimension)| *block.min(dimension)).collect();
    let mut bytes = size.iter().fold(u128::from(stored_width), |bytes, n| bytes.saturating_mul(u128::from(*n)));
    if geometry.uses_partial_reads {
        // Maximum number of samples that one band takes from a block along each axis.
        let counts = (0..region.rank()).map(|axis| {
            let samples = size[axis].div_ceil(region.step()[axis]).min(region.shape()[axis]).max(1);
            bands.map_or(samples, |bands| bands.samples_per_band(axis, samples))
        });
        let reads = RangeReads::from_counts(&size, stored_width, &counts.collect(), region.step());
        bytes = bytes.min(reads.cost_bytes().into());
    }
    bytes.max(BLOCK_COST_BYTES)
}

/// Returns the maximum number of blocks that a region of this shape touches at any position in the grid.
pub(crate) fn max_touched_blocks(region: &Region, grid: &BlockGrid) -> u128 {
    let blocks = grid.shape();
    (0..region.rank()).fold(1, |product: u128, axis| {
        let step = u128::from(region.step()[axis]);
        let block = u128::from(grid.block_size()[axis]);
        let samples = u128::from(region.shape()[axis]);
        let last = samples.saturating_sub(1).saturating_mul(step);
        let touched_blocks = last.saturating_add(block - 1) / block + 1;
        product.saturating_mul(touched_blocks.min(samples).min(u128::from(blocks[axis])))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::container;
    use super::*;
    use crate::store::Key;

    #[tokio::test]
    async fn the_delivery_decides_whether_a_slice_is_sent_in_bands() {
        // 1 MiB of elements. The budget leaves 3 MiB to one response, and 256 KiB to one of a rate-limited client.
        let attributes =
            r#"{"dimensions":[1024,1024],"blockSize":[64,64],"dataType":"uint8","compression":{"type":"gzip"}}"#;
        let container = container(1 << 40, 4 << 20, attributes);
        let options = ReadOptions::begin();
        let dataset = container.dataset(options, &Key::parse("v").unwrap()).await.unwrap();
        let whole = Region::whole(dataset.attributes.dimensions());
        let empty = whole.narrow(1, 0, 0);
        let is_streamed = |region: &Region, header_bytes, encoder_bytes, streaming| {
            let data_type = dataset.attributes.data_type();
            let delivery = SliceDelivery { encoder_bytes, header_bytes, streaming, ..SliceDelivery::whole(data_type) };
            let planner = SlicePlanner { container: &container, dataset: &dataset, delivery };
            planner.plan(region).unwrap().is_streamed()
        };
        let short_header = Some(MAX_UNCOUNTED_HEADER_BYTES);
        let long_header = Some(MAX_UNCOUNTED_HEADER_BYTES + 1);
        for header_bytes in [Some(0), short_header, long_header] {
            assert!(!is_streamed(&whole, header_bytes, 0, Streaming::IfLarge));
            assert!(!is_streamed(&whole, header_bytes, 2 << 20, Streaming::IfLarge), "all memory is needed");
            assert!(is_streamed(&whole, header_bytes, (2 << 20) + 1, Streaming::IfLarge), "one byte is missing");
            assert!(is_streamed(&whole, header_bytes, u64::MAX, Streaming::IfLarge));
            assert!(is_streamed(&whole, header_bytes, 0, Streaming::Always));
            assert!(!is_streamed(&empty, header_bytes, 3 << 20, Streaming::IfLarge));
            assert!(is_streamed(&empty, header_bytes, (3 << 20) + 1, Streaming::IfLarge));
        }
        assert!(is_streamed(&whole, short_header, 0, Streaming::IfLargeInSmallBands));
        assert!(!is_streamed(&empty, short_header, 256 << 10, Streaming::IfLargeInSmallBands));
        assert!(!is_streamed(&whole, long_header, 0, Streaming::IfLargeInSmallBands), "as with IfLarge");
        for streaming in [Streaming::IfLarge, Streaming::IfLargeInSmallBands, Streaming::Always] {
            assert!(!is_streamed(&whole, None, u64::MAX, streaming), "the format needs the whole array");
        }
    }
}
