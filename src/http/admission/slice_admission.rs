//! Admission of slices: everything about a response that is decided before a block is read. The requested slice and the
//! piece that a refusal suggests pass the same check.

use std::sync::Arc;

use crate::cache::{Dataset, Freshness};
use crate::container::Container;
use crate::http::compress::{self, ContentCoding};
use crate::http::problem::{self, Problem};
use crate::http::query::slice_query::{Selection, SliceQuery};
use crate::output::{self, EncodeOptions, Format};
use crate::read::{PlannedSlice, SliceDelivery};
use n5_format::{Coords, DataType, Region};

/// Largest share of a stream's memory that its header may take (1/6, which is 1/8 of the slice budget).
const HEADER_SHARE_DIVISOR: u64 = 6;

/// Size up to which a format's header is not counted as memory.
const MAX_UNCOUNTED_HEADER_BYTES: u64 = 64 << 10;

/// A slice as a client requests it: samples of a dataset, and their encoding.
pub(crate) struct SliceRequest {
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) selection: Selection,
    /// Type of the elements as they are sent.
    pub(crate) data_type: DataType,
    pub(crate) format: &'static dyn Format,
    pub(crate) options: EncodeOptions,
    /// Content coding of the response, if it is not streamed.
    content_coding: Option<ContentCoding>,
}

/// A slice that may be read. Everything that can be checked before a block is read has been checked.
pub(crate) struct SlicePlan {
    pub(crate) request: SliceRequest,
    pub(crate) slice: PlannedSlice,
    /// Memory that encoding takes, in bytes.
    pub(crate) extra_bytes: u64,
    /// Length of the format's header, if the elements follow it as they are in memory. The header is made once there is
    /// memory for it.
    pub(crate) header_bytes: Option<u64>,
    pub(crate) encoding: Option<ContentCoding>,
}

/// Memory that a response takes besides its elements, in bytes.
#[expect(clippy::struct_field_names, reason = "the unit is part of the name")]
struct EncodingMemory {
    /// Memory that encoding takes.
    extra_bytes: u64,
    /// Length of the format's header, if the elements follow it as they are in memory.
    header_bytes: Option<u64>,
    /// The same length, if it counts as memory; otherwise 0.
    counted_header_bytes: u64,
}

impl SliceRequest {
    /// Creates the request of `query` for a dataset.
    ///
    /// # Errors
    /// 400 if the query does not fit the dataset, 501 if the dataset cannot be decoded.
    pub(crate) fn new(
        dataset: Arc<Dataset>,
        query: &SliceQuery,
        format: &'static dyn Format,
        content_coding: Option<ContentCoding>,
    ) -> Result<Self, Problem> {
        let selection = query.select(dataset.attributes.dimensions())?;
        check_decodable(&dataset)?;
        let data_type = query.data_type.as_ref().unwrap_or(dataset.attributes.data_type()).clone();
        let options = query.options(&selection);
        Ok(Self { dataset, selection, data_type, format, options, content_coding })
    }

    /// Plans the response: as a whole, or streamed in bands. `may_stream_early` is true if a streamed response may
    /// take the place of a whole one for which there is no memory now.
    ///
    /// # Errors
    /// 400 if the format cannot represent the samples, 413 if the response takes too much memory or work, with the shape
    /// of a piece that does not.
    pub(crate) async fn plan(
        self,
        container: &Container,
        freshness: Freshness,
        is_rate_limited: bool,
        may_stream_early: bool,
    ) -> Result<SlicePlan, Problem> {
        let region = &self.selection.region;
        let memory = self
            .encoding_memory(region)
            .map_err(|reason| Problem::new(problem::INVALID_PARAMETER, reason).with_member("parameter", "format"))?;
        let delivery = self.delivery(&memory, is_rate_limited, false);
        let limit_bytes = container.max_buffered_bytes();
        let planned = container.plan_sparse_slice(freshness, &self.dataset, region.clone(), &delivery).await?;
        let admitted = planned.map_err(Problem::from).and_then(|slice| self.admit(slice, &memory, limit_bytes));
        let (mut slice, mut extra_bytes) =
            admitted.map_err(|problem| problem.with_piece_hint(self.largest_admitted_piece(container).as_deref()))?;
        // If slow clients hold the memory for a whole response, a streamed one need not wait for them.
        if may_stream_early && !slice.is_streamed() && !container.has_capacity_for(&slice, extra_bytes) {
            let delivery = self.delivery(&memory, false, true);
            let streamed = container.plan_converted_slice(&self.dataset, region.clone(), &delivery).ok();
            let admitted = streamed
                .filter(PlannedSlice::is_streamed)
                .and_then(|streamed| self.admit(streamed, &memory, limit_bytes).ok());
            (slice, extra_bytes) = admitted.unwrap_or((slice, extra_bytes));
        }
        let encoding = self.content_coding.filter(|_| !slice.is_streamed());
        Ok(SlicePlan { request: self, slice, extra_bytes, header_bytes: memory.header_bytes, encoding })
    }

    fn shape(&self, region: &Region) -> Coords {
        self.selection.kept_axes.iter().filter_map(|axis| region.shape().get(*axis).copied()).collect()
    }

    /// Returns the memory that a response with the samples of `region` takes.
    ///
    /// # Errors
    /// A message to the client if the format cannot represent these samples.
    fn encoding_memory(&self, region: &Region) -> Result<EncodingMemory, String> {
        let shape = self.shape(region);
        self.format.accepts(&shape, &self.data_type, &self.options)?;
        let header_bytes = self.format.header(&shape, &self.data_type, &self.options).map(|header| header.len() as u64);
        let counted_header_bytes = header_bytes.filter(|bytes| *bytes > MAX_UNCOUNTED_HEADER_BYTES).unwrap_or(0);
        let extra_bytes = self.format.extra_bytes(&shape, &self.data_type, &self.options);
        Ok(EncodingMemory { extra_bytes, header_bytes, counted_header_bytes })
    }

    fn delivery(&self, memory: &EncodingMemory, is_rate_limited: bool, must_stream: bool) -> SliceDelivery<'_> {
        let (is_streamable, counted_header_bytes) = (memory.header_bytes.is_some(), memory.counted_header_bytes);
        SliceDelivery {
            data_type: &self.data_type,
            extra_bytes: if is_streamable { memory.extra_bytes } else { 0 },
            prefix_bytes: counted_header_bytes,
            is_rate_limited: is_rate_limited
                && is_streamable
                && counted_header_bytes == 0
                && self.content_coding.is_none(),
            is_streamable,
            must_stream: must_stream && is_streamable,
        }
    }

    /// Admits a planned slice if its response can be made within `limit_bytes` bytes. Returns it with the bytes of memory
    /// that encoding takes.
    fn admit(
        &self,
        slice: PlannedSlice,
        memory: &EncodingMemory,
        limit_bytes: u64,
    ) -> Result<(PlannedSlice, u64), Problem> {
        let mut extra_bytes = memory.extra_bytes;
        if self.content_coding.is_some() && !slice.is_streamed() {
            extra_bytes =
                extra_bytes.saturating_add(compress::compression_bytes(slice.bytes().saturating_add(extra_bytes)));
        }
        // The bands fit the memory that they are given. Only the header's share of it must be checked.
        let needed_bytes = if memory.header_bytes.is_some() && slice.is_streamed() {
            memory.counted_header_bytes.saturating_mul(HEADER_SHARE_DIVISOR)
        } else {
            slice.memory_bytes().saturating_add(extra_bytes)
        };
        if needed_bytes <= limit_bytes {
            return Ok((slice, extra_bytes));
        }
        let streamed_formats: Vec<&str> = output::FORMATS
            .iter()
            .filter(|format| format.header(&[1, 1], &DataType::UInt8, &EncodeOptions::default()).is_some())
            .map(|format| format.name())
            .collect();
        let detail = format!(
            "as {} this takes up to {needed_bytes} bytes of memory; three quarters of limits.slice_budget are {limit_bytes}; ask for less at once, \
             or for a format that is streamed: {}",
            self.format.name(),
            streamed_formats.join(", ")
        );
        Err(Problem::new(problem::TOO_LARGE, detail).with_member("limit", limit_bytes))
    }

    /// Returns the shape of a piece of the region that is admitted in this format, wherever in the dataset it lies.
    fn largest_admitted_piece(&self, container: &Container) -> Option<Coords> {
        let limit_bytes = container.max_buffered_bytes();
        container.acceptable_part_shape(&self.dataset, &self.selection.region, |part| {
            let memory = self.encoding_memory(part).ok();
            memory.is_some_and(|memory| {
                let planned = container.plan_part(&self.dataset, part, &self.delivery(&memory, false, false));
                planned.is_ok_and(|slice| !slice.is_streamed() && self.admit(slice, &memory, limit_bytes).is_ok())
            })
        })
    }
}

impl SlicePlan {
    /// Returns true if the format or a conversion changes the elements.
    pub(crate) fn is_encoded(&self) -> bool {
        self.extra_bytes > 0 || self.slice.is_converted()
    }

    /// Returns true if the elements are sent as they are in memory, so that they need not be in one buffer.
    pub(crate) fn is_verbatim(&self) -> bool {
        self.header_bytes.is_some() && !self.is_encoded()
    }

    /// Returns the length of the response in bytes, if it is known before a block is read.
    pub(crate) fn response_bytes(&self) -> Option<u64> {
        self.header_bytes.filter(|_| self.encoding.is_none()).map(|header| self.slice.bytes().saturating_add(header))
    }
}

/// Returns true if this server can decode a dataset.
pub(crate) fn is_decodable(dataset: &Dataset) -> bool {
    dataset.attributes.compression().codec().is_some() && dataset.attributes.data_type().size_bytes().is_some()
}

/// Checks that this server can decode a dataset.
///
/// # Errors
/// 501.
pub(crate) fn check_decodable(dataset: &Dataset) -> Result<(), Problem> {
    if is_decodable(dataset) {
        return Ok(());
    }
    let compression = dataset.attributes.compression().name();
    let detail = format!(
        "this server cannot decode compression {compression:?} with data type {:?}; the blocks can be fetched as stored",
        dataset.attributes.data_type().name()
    );
    Err(Problem::new(problem::UNSUPPORTED, detail).with_member("compression", compression))
}
