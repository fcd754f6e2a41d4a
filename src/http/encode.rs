//! Encoding of whole slices: from elements to the parts of a response.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::try_join_all;

use crate::cache::{MemoryPermit, ReadError};
use crate::container::Container;
use crate::cpu_pool::Priority;
use crate::http::admission::slice_admission::SlicePlan;
use crate::http::problem::Problem;
use crate::metrics;
use crate::output::{EncodeOptions, EncodedPiece, Format};
use crate::trace;
use n5_format::Array;

/// Encodes the elements `pieces` of a slice, and compresses the result if the plan says so. Returns the parts of the
/// response in the order in which they are sent. `memory` is released when the last part has been sent.
///
/// # Errors
/// 422 if the requested type cannot represent an element, 500 if the encoder fails.
pub(crate) async fn encode_slice(
    container: &Container,
    plan: SlicePlan,
    pieces: Vec<Bytes>,
    memory: MemoryPermit,
) -> Result<Vec<Bytes>, Problem> {
    let (is_encoded, is_verbatim) = (plan.is_encoded(), plan.is_verbatim());
    let SlicePlan { request, slice, encoding, .. } = plan;
    let (format, data_type, options) = (request.format, request.data_type, request.options);
    let (shape, dataset_id) = (request.selection.shape(), slice.dataset_id());
    if is_verbatim {
        return Ok(format.header(&shape, &data_type, &options).into_iter().chain(pieces).collect());
    }
    let data = pieces.into_iter().next().unwrap_or_default();
    if encoding.is_none() && !slice.is_converted() && format.piece_count(&shape, &data_type, &options) > 1 {
        let array = Array { shape, data_type, data };
        return encode_in_parallel(container, dataset_id, format, array, (options, memory)).await;
    }
    let len = data.len();
    // The job holds its memory permit, because it continues if the client disconnects.
    let encode = timed(format.name(), move || -> Result<Vec<Bytes>, Problem> {
        let data = slice.convert(data).map_err(ReadError::from)?;
        let array = Array { shape, data_type, data };
        let mut parts = format.encode(&array, &options).map_err(|error| Problem::internal(error.to_string()))?;
        if let Some(encoding) = encoding {
            parts = vec![encoding.compress(&parts).map_err(|error| Problem::internal(error.to_string()))?];
        }
        if is_encoded && let Some(last) = parts.pop() {
            parts.push(memory.own(last));
        }
        Ok(parts)
    });
    // Encoding that takes no memory of its own is too cheap for the CPU pool.
    if !is_encoded {
        return encode();
    }
    let cpu = container.resources().cpu();
    cpu.run(Priority::for_input_bytes(len), dataset_id, encode).await.map_err(ReadError::from)?
}

/// Encodes the pieces of a response in parallel, on all available cores. `dataset_id` identifies the dataset in the CPU
/// pool's queue.
async fn encode_in_parallel(
    container: &Container,
    dataset_id: u64,
    format: &'static dyn Format,
    array: Array,
    (options, memory): (EncodeOptions, MemoryPermit),
) -> Result<Vec<Bytes>, Problem> {
    let piece_numbers = 0..format.piece_count(&array.shape, &array.data_type, &options);
    // The jobs own their memory permit, because they continue when the client has disconnected.
    let (array, memory) = (Arc::new((array, options)), Arc::new(memory));
    let jobs = piece_numbers.map(|number| {
        let (array, memory) = (Arc::clone(&array), Arc::clone(&memory));
        container.resources().cpu().run(Priority::Low, dataset_id, move || {
            let (array, options) = &*array;
            timed(format.name(), || format.encode_piece(number, &|bytes| memory.pooled_buffer(bytes), array, options))()
        })
    });
    let pieces = try_join_all(jobs).await.map_err(ReadError::from)?;
    let pieces: Vec<EncodedPiece> =
        pieces.into_iter().collect::<Result<_, _>>().map_err(|error| Problem::internal(error.to_string()))?;
    let trailer = format.trailer(&pieces);
    let pieces = pieces.into_iter().map(|piece| MemoryPermit::own_part(&memory, piece.bytes));
    Ok(pieces.chain([trailer]).collect())
}

/// Wraps the job of encoding a response, or a piece of one, so that its duration is recorded.
fn timed<T>(format: &'static str, job: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let started = Instant::now();
        let result = job();
        metrics::slice_encoded(format, started.elapsed());
        trace::record("encode", format, started.elapsed());
        result
    }
}
