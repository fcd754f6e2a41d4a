//! Encodings whose pieces are made side by side, on as many cores as there are.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::try_join_all;

use super::problem::{self, Problem};
use crate::container::{Container, Memory, ReadError};
use crate::cpu::Length;
use crate::metrics;
use crate::n5::Array;
use crate::output::{Format, Options, Piece};
use crate::trace;

/// The parts of an answer that consists of several pieces, in the order in which they are sent. They give `memory` back
/// when the last of them has been. `party` is whose jobs these are.
pub(super) async fn side_by_side(
    container: &Container,
    party: u64,
    format: &'static dyn Format,
    array: Array,
    (options, memory): (Options, Memory),
) -> Result<Vec<Bytes>, Problem> {
    let numbers = 0..format.pieces(&array.shape, &array.data_type, &options);
    // The jobs hold their share of memory: they run on when the client has hung up.
    let (array, memory) = (Arc::new((array, options)), Arc::new(memory));
    let jobs = numbers.map(|number| {
        let (array, memory) = (Arc::clone(&array), Arc::clone(&memory));
        container.resources().cpu().run(Length::Long, party, move || {
            let (array, options) = &*array;
            timed(format.name(), || format.encode_piece(number, &|bytes| memory.buffer(bytes), array, options))()
        })
    });
    let pieces = try_join_all(jobs).await.map_err(ReadError::from)?;
    let pieces: Vec<Piece> = pieces.into_iter().collect::<Result<_, _>>().map_err(|error| fault(&error))?;
    let end = format.after_pieces(&pieces);
    let pieces = pieces.into_iter().map(|piece| Memory::own_part(&memory, piece.bytes));
    Ok(pieces.chain([end]).collect())
}

/// The job of encoding one answer in a format, or a piece of one, which tells the metrics how long it took.
pub(super) fn timed<T>(format: &'static str, job: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let started = Instant::now();
        let made = job();
        metrics::encoded(format, started.elapsed());
        trace::record("encode", format, started.elapsed());
        made
    }
}

/// The problem of an encoder that fails at what was accepted.
pub(super) fn fault(error: &dyn Display) -> Problem {
    Problem::own(problem::INTERNAL, "the server has a fault", error.to_string())
}
