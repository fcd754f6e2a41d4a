//! Requests for slices: the response is planned before any block is read, and its elements are encoded after they have
//! been read.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::try_join_all;

use crate::cache::{Dataset, MemoryPermit, ReadError, ReadOptions};
use crate::container::Container;
use crate::http::compress::{self, ContentCoding};
use crate::http::problem::{self, Problem};
use crate::http::query::numpy_index::Selection;
use crate::http::query::slice_query::SliceQuery;
use crate::output::{self, EncodeOptions, EncodedPiece, Format, PiecewiseFormat};
use crate::read::{self, PlanError, PlannedSlice, SliceDelivery, SlicePlanner, Streaming};
use crate::runtime::cpu_pool::Priority;
use crate::telemetry::{metrics, trace};
use n5_format::{Array, Coords, DataType, Region};

/// Largest share of a stream's memory that its header may take (1/6, which is 1/8 of the slice budget).
const HEADER_SHARE_DIVISOR: u64 = 6;

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

/// A response whose slice may be read. Everything that can be checked before a block is read has been checked.
pub(crate) struct PlannedResponse {
    pub(crate) request: SliceRequest,
    pub(crate) slice: PlannedSlice,
    /// Memory of the encoder and the compressor, in bytes.
    pub(crate) extra_bytes: u64,
    /// Length of the header in bytes if the format is streamed, or else `None`. The header is built only after its
    /// memory has been taken.
    pub(crate) header_bytes: Option<u64>,
}

impl SliceRequest {
    /// Creates the request of `query` for samples of a dataset.
    ///
    /// # Errors
    /// Returns 501 if the dataset cannot be decoded.
    pub(crate) fn new(
        dataset: Arc<Dataset>,
        query: &SliceQuery,
        selection: Selection,
        format: &'static dyn Format,
        content_coding: Option<ContentCoding>,
    ) -> Result<Self, Problem> {
        check_decodable(&dataset)?;
        let data_type = query.data_type.as_ref().unwrap_or(dataset.attributes.data_type()).clone();
        let options = query.options(&selection);
        Ok(Self { dataset, selection, data_type, format, options, content_coding })
    }

    /// Plans the response: as a whole, or streamed in bands as `streaming` says. If `may_stream_early` is true, a
    /// response for which there is no memory now may be streamed although it could be sent as a whole.
    ///
    /// # Errors
    /// Returns 400 if the format cannot represent the samples, and 413 if the response takes too much memory or work.
    /// That problem has the shape of a piece that passes the same checks.
    pub(crate) async fn plan(
        self,
        container: &Container,
        read_options: ReadOptions,
        streaming: Streaming,
        may_stream_early: bool,
    ) -> Result<PlannedResponse, Problem> {
        let region = &self.selection.region;
        // Only a whole response is compressed. The limits of small bands would leave more responses uncompressed.
        let streaming = if self.content_coding.is_some() { Streaming::IfLarge } else { streaming };
        let delivery =
            self.delivery(region, streaming).map_err(|reason| Problem::invalid_parameter("format", reason))?;
        let planner = SlicePlanner { container, dataset: &self.dataset, delivery };
        let delivery = &planner.delivery;
        let planned = match planner.plan_sparse(region, read_options).await {
            Ok(slice) => self.check_memory(&planner, &slice).map(|()| slice),
            Err(PlanError::Refused(refusal)) => Err(refusal.into()),
            Err(PlanError::Read(error)) => return Err(error.into()),
        };
        let mut slice =
            planned.map_err(|problem| problem.with_piece_hint(self.acceptable_piece_shape(container).as_deref()))?;
        // A streamed response need not wait for slow clients that hold the memory for a whole one.
        if may_stream_early
            && !slice.is_streamed()
            && !read::has_capacity_for(container, &slice, self.extra_bytes(delivery, &slice))
        {
            let delivery = SliceDelivery { streaming: Streaming::Always, ..delivery.clone() };
            let stream_planner = SlicePlanner { delivery, ..planner };
            if let Ok(streamed) = stream_planner.plan(region)
                && streamed.is_streamed()
                && self.check_memory(&stream_planner, &streamed).is_ok()
            {
                slice = streamed;
            }
        }
        let extra_bytes = self.extra_bytes(delivery, &slice);
        let header_bytes = delivery.header_bytes;
        Ok(PlannedResponse { request: self, slice, extra_bytes, header_bytes })
    }

    /// Returns how the samples of `region` may be sent. Computes sizes only, because no memory has been taken.
    ///
    /// # Errors
    /// Returns a message to the client if the format cannot represent these samples.
    fn delivery(&self, region: &Region, streaming: Streaming) -> Result<SliceDelivery<'_>, String> {
        let Self { format, data_type, options, selection, .. } = self;
        let shape = selection.kept(region.shape());
        output::check_supported(*format, &shape, data_type, options)?;
        Ok(SliceDelivery {
            data_type,
            encoder_bytes: format.encoder_bytes(&shape, data_type, options),
            header_bytes: format.as_streamed().and_then(|format| format.header_bytes(&shape, data_type, options)),
            streaming,
            axis_order: self.axis_order(&shape, region.rank()),
        })
    }

    /// Returns the order in which the format has the axes of the dataset, fastest first, if it is not the N5 order.
    /// `shape` is the shape of the response. Axes that are not in the response have one sample, and come last.
    fn axis_order(&self, shape: &[u64], rank: usize) -> Option<Arc<[usize]>> {
        let kept_axes = &self.selection.kept_axes;
        let order = self.format.as_streamed()?.axis_order(shape, &self.options)?;
        let dropped_axes = (0..rank).filter(|axis| !kept_axes.contains(axis));
        Some(order.iter().filter_map(|axis| kept_axes.get(*axis).copied()).chain(dropped_axes).collect())
    }

    /// Returns the memory that the encoder and the compressor take in addition to the elements of `slice`, in bytes.
    fn extra_bytes(&self, delivery: &SliceDelivery<'_>, slice: &PlannedSlice) -> u64 {
        let encoder_bytes = delivery.encoder_bytes;
        if self.content_coding.is_none() || slice.is_streamed() {
            return encoder_bytes;
        }
        let encoded_bytes = slice.bytes().saturating_add(encoder_bytes);
        encoder_bytes.saturating_add(compress::compression_bytes(encoded_bytes))
    }

    /// Checks that there can be enough memory for the response.
    ///
    /// # Errors
    /// Returns 413 if there cannot.
    fn check_memory(&self, planner: &SlicePlanner<'_>, slice: &PlannedSlice) -> Result<(), Problem> {
        let delivery = &planner.delivery;
        let limit_bytes = read::max_buffered_bytes(planner.container);
        // Bands always fit into the memory of a stream. Only the header's share of that memory must be checked.
        let needed_bytes = if delivery.header_bytes.is_some() && slice.is_streamed() {
            delivery.counted_header_bytes().saturating_mul(HEADER_SHARE_DIVISOR)
        } else {
            slice.memory_bytes().saturating_add(self.extra_bytes(delivery, slice))
        };
        if needed_bytes <= limit_bytes {
            return Ok(());
        }
        let streamed_formats: Vec<&str> = output::FORMATS
            .iter()
            .filter(|format| format.as_streamed().is_some() && format.name() != self.format.name())
            .map(|format| format.name())
            .collect();
        let detail = format!(
            "as {} this takes up to {needed_bytes} bytes of memory; three quarters of limits.slice_budget are {limit_bytes}; ask for less at once, \
             or for a format that is streamed: {}",
            self.format.name(),
            streamed_formats.join(", ")
        );
        Err(Problem::too_large(detail, limit_bytes))
    }

    /// Returns the shape of a smaller piece that is accepted in this format wherever in the dataset it lies; `None` if
    /// not even a single sample is accepted.
    fn acceptable_piece_shape(&self, container: &Container) -> Option<Coords> {
        let is_acceptable = |part: &Region| {
            let Ok(delivery) = self.delivery(part, Streaming::IfLarge) else { return false };
            let planner = SlicePlanner { container, dataset: &self.dataset, delivery };
            let planned = planner.plan_anywhere(part);
            planned.is_ok_and(|slice| !slice.is_streamed() && self.check_memory(&planner, &slice).is_ok())
        };
        read::shrink_until_accepted(&self.selection.region, self.dataset.attributes.grid(), is_acceptable)
    }
}

impl PlannedResponse {
    /// Returns true if the format or a conversion changes the elements.
    pub(crate) fn is_encoded(&self) -> bool {
        self.extra_bytes > 0 || self.slice.is_converted()
    }

    /// Returns true if the elements are sent as they are in memory, so that they need not be in one buffer.
    pub(crate) fn is_verbatim(&self) -> bool {
        self.header_bytes.is_some() && !self.is_encoded()
    }

    /// Returns the content coding of the response. A streamed response has none.
    pub(crate) fn content_coding(&self) -> Option<ContentCoding> {
        self.request.content_coding.filter(|_| !self.slice.is_streamed())
    }

    /// Returns the length of the response in bytes, if it is known before a block is read.
    pub(crate) fn response_bytes(&self) -> Option<u64> {
        self.header_bytes
            .filter(|_| self.content_coding().is_none())
            .map(|header| self.slice.bytes().saturating_add(header))
    }
}

/// Checks that this server can decode a dataset.
///
/// # Errors
/// Returns 501 if its compression or data type is not supported.
pub(crate) fn check_decodable(dataset: &Dataset) -> Result<(), Problem> {
    if dataset.attributes.is_decodable() {
        return Ok(());
    }
    let compression = dataset.attributes.compression().name();
    let detail = format!(
        "this server cannot decode compression {compression:?} with data type {:?}; the blocks can be fetched as stored",
        dataset.attributes.data_type().name()
    );
    Err(Problem::new(problem::UNSUPPORTED, detail).with_member("compression", compression))
}

/// Encodes a slice, whose elements are `pieces`, and compresses the result if the plan has a content coding. Returns
/// the parts of the response in the order in which they are sent. `memory` is released when the last part has been
/// sent.
///
/// # Errors
/// Returns 422 if the requested type cannot represent an element, and 500 if the encoder fails.
pub(crate) async fn encode_slice(
    container: &Container,
    plan: PlannedResponse,
    pieces: Vec<Bytes>,
    memory: MemoryPermit,
) -> Result<Vec<Bytes>, Problem> {
    let SliceRequest { format, ref data_type, ref options, ref selection, .. } = plan.request;
    let shape = selection.shape();
    if plan.is_verbatim() {
        let header = format.as_streamed().and_then(|format| format.header(&shape, data_type, options));
        return Ok(header.into_iter().chain(pieces).collect());
    }
    let data = pieces.into_iter().next().unwrap_or_default();
    let array = Array { shape, data_type: data_type.clone(), data };
    let content_coding = plan.content_coding();
    if content_coding.is_none()
        && !plan.slice.is_converted()
        && let Some(format) = format.as_piecewise()
        && format.piece_count(&array.shape, data_type, options) > 1
    {
        return encode_in_parallel(container, plan, format, array, memory).await;
    }
    let is_encoded = plan.is_encoded();
    let PlannedResponse { request: SliceRequest { options, .. }, slice, .. } = plan;
    let dataset_id = slice.dataset_id();
    let priority = Priority::for_input_bytes(array.data.len());
    // The job holds its memory permit, because it continues if the client disconnects.
    let encode = timed(format.name(), move || -> Result<Vec<Bytes>, Problem> {
        let data = slice.convert(array.data).map_err(ReadError::from)?;
        let mut parts = format.encode(&Array { data, ..array }, &options).map_err(Problem::internal)?;
        if let Some(coding) = content_coding {
            parts = vec![coding.compress(&parts).map_err(Problem::internal)?];
        }
        if is_encoded && let Some(last) = parts.pop() {
            parts.push(memory.own_pooled(last));
        }
        Ok(parts)
    });
    // Encoding that takes no memory of its own is too cheap for the CPU pool.
    if !is_encoded {
        return encode();
    }
    container.resources().cpu().run(priority, dataset_id, encode).await.map_err(ReadError::from)?
}

/// Encodes the pieces of a response in parallel, on all available cores.
async fn encode_in_parallel(
    container: &Container,
    plan: PlannedResponse,
    format: &'static dyn PiecewiseFormat,
    array: Array,
    memory: MemoryPermit,
) -> Result<Vec<Bytes>, Problem> {
    let dataset_id = plan.slice.dataset_id();
    let options = plan.request.options;
    let piece_numbers = 0..format.piece_count(&array.shape, &array.data_type, &options);
    // The jobs own their memory permit, because they continue when the client has disconnected.
    let inputs = Arc::new((array, options));
    let memory = Arc::new(memory);
    let jobs = piece_numbers.map(|number| {
        let inputs = Arc::clone(&inputs);
        let memory = Arc::clone(&memory);
        container.resources().cpu().run(Priority::Low, dataset_id, move || {
            let (array, options) = &*inputs;
            timed(format.name(), || format.encode_piece(number, &|bytes| memory.pooled_buffer(bytes), array, options))()
        })
    });
    let pieces = try_join_all(jobs).await.map_err(ReadError::from)?;
    let pieces: Vec<EncodedPiece> = pieces.into_iter().collect::<Result<_, _>>().map_err(Problem::internal)?;
    let trailer = format.trailer(&pieces);
    let pieces = pieces.into_iter().map(|piece| MemoryPermit::own_pooled_part(&memory, piece.bytes));
    Ok(pieces.chain([trailer]).collect())
}

/// Wraps a job that encodes a response or a piece of it. The wrapper records the duration of the job.
fn timed<T>(format: &'static str, job: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let started = Instant::now();
        let result = job();
        metrics::slice_encoded(format, started.elapsed());
        trace::record("encode", format, started.elapsed());
        result
    }
}
