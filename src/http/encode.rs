//! Encodings whose pieces are made side by side, on as many cores as there are.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join_all;

use super::problem::{self, Problem};
use crate::container::{Container, Memory, ReadError};
use crate::n5::Array;
use crate::output::{Format, Options, Piece};

/// The parts of an answer that consists of several pieces, in the order in which they are sent. They give `memory` back
/// when the last of them has been.
pub(super) async fn side_by_side(
    container: &Container,
    format: &'static dyn Format,
    array: Array,
    options: Options,
    memory: Memory,
) -> Result<Vec<Bytes>, Problem> {
    let numbers = 0..format.pieces(&array.shape, &array.data_type, &options);
    // The jobs hold their share of memory: they run on when the client has hung up.
    let (array, memory) = (Arc::new((array, options)), Arc::new(memory));
    let jobs = numbers.map(|number| {
        let (array, memory) = (Arc::clone(&array), Arc::clone(&memory));
        container.resources().cpu().run(move || {
            let (array, options) = &*array;
            format.encode_piece(number, &|bytes| memory.buffer(bytes), array, options)
        })
    });
    let pieces = try_join_all(jobs).await.map_err(ReadError::from)?;
    let pieces: Vec<Piece> = pieces.into_iter().collect::<Result<_, _>>().map_err(|error| fault(&error))?;
    let end = format.after_pieces(&pieces);
    let pieces = pieces.into_iter().map(|piece| Memory::own_part(&memory, piece.bytes));
    Ok(pieces.chain([end]).collect())
}

/// The problem of an encoder that fails at what was accepted.
pub(super) fn fault(error: &dyn Display) -> Problem {
    Problem::own(problem::INTERNAL, "the server has a fault", error.to_string())
}
