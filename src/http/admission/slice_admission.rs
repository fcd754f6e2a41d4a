//! Admission of slices: the requested slice and the piece that a refusal suggests pass the same check.

use std::sync::Arc;

use crate::container::{Container, Dataset, PlannedSlice, SliceDelivery};
use crate::http::compress::{self, ContentCoding};
use crate::http::problem::{self, Problem};
use crate::n5::{Coords, DataType, Region};
use crate::output::{self, EncodeOptions, Format};

/// Largest share of a stream's memory that its header may take (1/6, which is 1/8 of the slice budget).
const HEADER_SHARE_DIVISOR: u64 = 6;

/// Size up to which a format's header is not counted as memory.
const MAX_UNCOUNTED_HEADER_BYTES: u64 = 64 << 10;

/// A slice request without its region.
pub(crate) struct SliceRequest<'a> {
    pub(crate) dataset: &'a Arc<Dataset>,
    /// Axes of the region that the response's shape has.
    pub(crate) kept_axes: &'a [usize],
    /// Type of the elements as they are sent.
    pub(crate) data_type: &'a DataType,
    pub(crate) format: &'static dyn Format,
    pub(crate) options: &'a EncodeOptions,
    /// Content coding of the response, if it is not streamed.
    pub(crate) content_coding: Option<ContentCoding>,
}

/// Memory that a response takes besides its elements, in bytes.
#[expect(clippy::struct_field_names, reason = "the unit is part of the name")]
pub(crate) struct EncodingMemory {
    /// Memory that encoding takes.
    pub(crate) extra_bytes: u64,
    /// Length of the format's header, if the elements follow it as they are in memory.
    pub(crate) header_bytes: Option<u64>,
    /// The same length, if it counts as memory; otherwise 0.
    counted_header_bytes: u64,
}

/// A slice that may be read, and the encoding of its response.
pub(crate) struct AdmittedSlice {
    pub(crate) slice: PlannedSlice,
    pub(crate) extra_bytes: u64,
    pub(crate) encoding: Option<ContentCoding>,
}

impl SliceRequest<'_> {
    fn shape(&self, region: &Region) -> Coords {
        self.kept_axes.iter().filter_map(|axis| region.shape().get(*axis).copied()).collect()
    }

    /// Returns the memory that a response with the samples of `region` takes.
    ///
    /// # Errors
    /// A message to the client if the format cannot represent these samples.
    pub(crate) fn encoding_memory(&self, region: &Region) -> Result<EncodingMemory, String> {
        let shape = self.shape(region);
        self.format.accepts(&shape, self.data_type, self.options)?;
        let header_bytes = self.format.header(&shape, self.data_type, self.options).map(|header| header.len() as u64);
        let counted_header_bytes = header_bytes.filter(|bytes| *bytes > MAX_UNCOUNTED_HEADER_BYTES).unwrap_or(0);
        let extra_bytes = self.format.extra_bytes(&shape, self.data_type, self.options);
        Ok(EncodingMemory { extra_bytes, header_bytes, counted_header_bytes })
    }

    pub(crate) fn delivery(
        &self,
        memory: &EncodingMemory,
        is_rate_limited: bool,
        must_stream: bool,
    ) -> SliceDelivery<'_> {
        let (is_streamable, counted_header_bytes) = (memory.header_bytes.is_some(), memory.counted_header_bytes);
        SliceDelivery {
            data_type: self.data_type,
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

    /// Admits the response of a planned slice if it can be made within `limit_bytes` bytes.
    pub(crate) fn admit(
        &self,
        slice: PlannedSlice,
        memory: &EncodingMemory,
        limit_bytes: u64,
    ) -> Result<AdmittedSlice, Problem> {
        let encoding = self.content_coding.filter(|_| !slice.is_streamed());
        let mut extra_bytes = memory.extra_bytes;
        if encoding.is_some() {
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
            return Ok(AdmittedSlice { slice, extra_bytes, encoding });
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

    /// Returns the shape of a piece of `region` that is admitted in this format, wherever in the dataset it lies.
    pub(crate) fn largest_admitted_piece(&self, container: &Container, region: &Region) -> Option<Coords> {
        let limit_bytes = container.max_buffered_bytes();
        container.acceptable_part_shape(self.dataset, region, |part| {
            let memory = self.encoding_memory(part).ok();
            memory.is_some_and(|memory| {
                let planned = container.plan_part(self.dataset, part, &self.delivery(&memory, false, false));
                planned.is_ok_and(|slice| !slice.is_streamed() && self.admit(slice, &memory, limit_bytes).is_ok())
            })
        })
    }
}
