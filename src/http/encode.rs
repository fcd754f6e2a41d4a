//! Encodings whose pieces are encoded in parallel, on all available cores.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::try_join_all;

use crate::container::{Container, MemoryPermit, ReadError};
use crate::cpu_pool::Priority;
use crate::http::problem::Problem;
use crate::metrics;
use crate::n5::Array;
use crate::output::{EncodeOptions, EncodedPiece, Format};
use crate::trace;

/// Encodes the pieces of a response in parallel and returns its parts in the order in which they are sent. `memory` is
/// released when the last part has been sent. `dataset_id` identifies the dataset in the CPU pool's queue.
pub(crate) async fn encode_in_parallel(
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
pub(crate) fn timed<T>(format: &'static str, job: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let started = Instant::now();
        let result = job();
        metrics::slice_encoded(format, started.elapsed());
        trace::record("encode", format, started.elapsed());
        result
    }
}
