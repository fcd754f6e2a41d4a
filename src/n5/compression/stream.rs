//! What the stream formats share: one stream after another into one allocation, and the trailing rule.

use std::fmt;

use super::CodecError;

/// A decoder in the middle of one stream.
pub(super) trait Decoder {
    /// Decodes some of `input` into the spare capacity of `output`.
    fn step(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<Step, CodecError>;
}

/// What one [`Decoder::step`] did.
pub(super) struct Step {
    /// Bytes of the input that were used up.
    pub(super) consumed: usize,
    /// Whether the stream is finished, its checksums verified.
    pub(super) ended: bool,
}

/// Decodes the first stream in `input` to its end and appends it to `output`, which must not exceed
/// `len` bytes. Returns what follows the stream.
pub(super) fn run<'a>(
    codec: &'static str,
    decoder: &mut impl Decoder,
    mut input: &'a [u8],
    output: &mut Vec<u8>,
    len: usize,
) -> Result<&'a [u8], CodecError> {
    // Once `output` is full the decoder still has to reach the end of the stream.
    let mut surplus = Vec::with_capacity(1);
    loop {
        let room = if output.len() < len { &mut *output } else { &mut surplus };
        let before = room.len();
        let step = decoder.step(input, room)?;
        let idle = step.consumed == 0 && room.len() == before;
        input = input.get(step.consumed..).unwrap_or_default();
        if output.len() > len || !surplus.is_empty() {
            return Err(more(len));
        }
        if step.ended {
            return Ok(input);
        }
        if idle {
            return Err(damaged(codec, "it ends early"));
        }
    }
}

/// Decodes all streams of `payload` with `one`, which appends the first stream of its input to the
/// output and returns the rest. `begins` tells a further stream from trailing bytes.
pub(super) fn decode_all<'a>(
    codec: &'static str,
    payload: &'a [u8],
    len: usize,
    begins: impl Fn(&[u8]) -> bool,
    output: &mut Vec<u8>,
    mut one: impl FnMut(&'a [u8], &mut Vec<u8>) -> Result<&'a [u8], CodecError>,
) -> Result<(), CodecError> {
    emptied(output, len);
    let mut rest = one(payload, output)?;
    while let Some(next) = after_padding(rest) {
        if !begins(next) {
            return Err(CodecError::Trailing { codec, bytes: rest.len() });
        }
        rest = one(next, output)?;
    }
    exactly(len, output)
}

/// What follows zero padding; `None` when nothing does.
pub(super) fn after_padding(rest: &[u8]) -> Option<&[u8]> {
    rest.iter().position(|byte| *byte != 0).and_then(|at| rest.get(at..))
}

/// `Ok` when `rest` is nothing but zero padding.
pub(super) fn only_padding(codec: &'static str, rest: &[u8]) -> Result<(), CodecError> {
    match after_padding(rest) {
        None => Ok(()),
        Some(_) => Err(CodecError::Trailing { codec, bytes: rest.len() }),
    }
}

/// Makes `output` empty, with room for `len` bytes.
pub(super) fn emptied(output: &mut Vec<u8>, len: usize) {
    output.clear();
    output.reserve_exact(len);
}

/// Makes `output` hold `len` bytes, which are all to be overwritten: zeros from the allocator, or what it held.
pub(super) fn filled(output: &mut Vec<u8>, len: usize) {
    if output.capacity() < len {
        *output = vec![0; len];
    }
    output.resize(len, 0);
}

/// `Ok` when `output` has the length that the block's header promises.
pub(super) fn exactly(len: usize, output: &[u8]) -> Result<(), CodecError> {
    if output.len() == len { Ok(()) } else { Err(wrong_length(len, output.len())) }
}

/// The stream decodes to `found` bytes instead of `len`.
pub(super) fn wrong_length(len: usize, found: usize) -> CodecError {
    CodecError::WrongLength { expected: len, found: format!("{found} bytes") }
}

/// The stream decodes to more than `len` bytes; how many is not found out.
pub(super) fn more(len: usize) -> CodecError {
    CodecError::WrongLength { expected: len, found: "more".to_owned() }
}

/// The stream breaks its format.
pub(super) fn damaged(codec: &'static str, reason: impl fmt::Display) -> CodecError {
    CodecError::Damaged { codec, reason: reason.to_string() }
}

/// The most bytes that a payload can decode to at `ratio`:1, with some slack for tiny ones.
pub(super) fn at_most(payload_len: usize, ratio: u64) -> u64 {
    (payload_len as u64).saturating_mul(ratio).saturating_add(4096)
}

/// How far a counter of the library moved during one step.
pub(super) fn advance(before: u64, after: u64) -> usize {
    usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX)
}
