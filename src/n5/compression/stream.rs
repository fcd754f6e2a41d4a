//! What the stream formats share: one stream after another into one allocation, and the trailing rule.

use std::fmt;

use super::watch::{CHEAP_MEMBER_BYTES, COSTLY_MEMBER_BYTES, LOOK_BYTES, Members};
use super::{CodecError, Watch};

/// A decoder in the middle of one stream.
pub(super) trait Decoder {
    /// Decodes some of `input` to the start of `room`.
    fn step(&mut self, input: &[u8], room: &mut [u8]) -> Result<Step, CodecError>;
}

/// What one [`Decoder::step`] did.
pub(super) struct Step {
    /// Bytes of the input that were used up.
    pub(super) consumed: usize,
    /// Bytes that were decoded.
    pub(super) produced: usize,
    /// Whether the stream is finished, its checksums verified.
    pub(super) ended: bool,
}

/// Bytes of input that a decoder is given at a time: within them it cannot be stopped.
pub(super) const INPUT_BYTES: usize = 64 << 10;

/// Bytes of room that a decoder is given at a time.
const ROOM_BYTES: usize = 1 << 20;

/// Where the streams of a payload are decoded to, one after another.
pub(super) struct Target<'a> {
    codec: &'static str,
    room: &'a mut [u8],
    filled: usize,
    /// Bytes of all streams so far.
    consumed: usize,
    /// See [`Target::with_slack`].
    slack: usize,
    member_bytes: usize,
    watch: Watch<'a>,
}

impl<'a> Target<'a> {
    /// All of `room` is to be filled.
    pub(super) fn new(codec: &'static str, room: &'a mut [u8], watch: Watch<'a>) -> Self {
        Self { codec, room, filled: 0, consumed: 0, slack: LOOK_BYTES, member_bytes: COSTLY_MEMBER_BYTES, watch }
    }

    /// For a decoder that reads up to so many bytes before it yields any.
    pub(super) fn with_slack(self, slack: usize) -> Self {
        Self { slack, ..self }
    }

    /// For a decoder to which a stream costs little to begin.
    pub(super) fn with_cheap_members(self) -> Self {
        Self { member_bytes: CHEAP_MEMBER_BYTES, ..self }
    }

    /// Bytes of the whole payload, decoded.
    pub(super) fn len(&self) -> usize {
        self.room.len()
    }

    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// What is decoded to next; empty at the end.
    pub(super) fn next_room(&mut self) -> &mut [u8] {
        let end = self.filled.saturating_add(ROOM_BYTES).min(self.room.len());
        self.room.get_mut(self.filled..end).unwrap_or_default()
    }

    /// So much was consumed, and decoded to what [`Target::next_room`] gave.
    ///
    /// No encoder makes what is stored twice as long as what it holds: whatever goes on like that (deflate has blocks of 12
    /// bytes that hold none and take a microsecond) is refused early.
    pub(super) fn advance(&mut self, consumed: usize, produced: usize) -> Result<(), CodecError> {
        self.filled = self.filled.saturating_add(produced).min(self.room.len());
        self.consumed = self.consumed.saturating_add(consumed);
        if self.consumed > self.slack.saturating_add(self.filled.saturating_mul(2)) {
            let (stored, held) = (self.consumed, self.filled);
            return Err(damaged(self.codec, format_args!("its first {stored} bytes hold only {held}")));
        }
        Ok(())
    }

    pub(super) fn look(&self) -> Result<(), CodecError> {
        self.watch.look()
    }
}

/// Decodes the first stream in `input` to its end. Returns what follows the stream.
pub(super) fn run<'i>(
    decoder: &mut impl Decoder,
    mut input: &'i [u8],
    target: &mut Target<'_>,
) -> Result<&'i [u8], CodecError> {
    loop {
        target.look()?;
        let piece = input.get(..INPUT_BYTES).unwrap_or(input);
        // Once the target is full the decoder still has to reach the end of the stream.
        let mut surplus = [0];
        let room = target.next_room();
        let is_full = room.is_empty();
        let step = decoder.step(piece, if is_full { &mut surplus } else { room })?;
        if is_full && step.produced > 0 {
            return Err(more(target.len()));
        }
        input = input.get(step.consumed..).unwrap_or_default();
        target.advance(step.consumed, step.produced)?;
        if step.ended {
            return Ok(input);
        }
        if step.consumed == 0 && step.produced == 0 {
            return Err(damaged(target.codec, "it ends early"));
        }
    }
}

/// Decodes all streams of `payload` with `one`, which decodes the first stream of its input and returns the rest. `begins`
/// tells a further stream from trailing bytes.
pub(super) fn decode_all<'i>(
    payload: &'i [u8],
    mut target: Target<'_>,
    begins: impl Fn(&[u8]) -> bool,
    mut one: impl FnMut(&'i [u8], &mut Target<'_>) -> Result<&'i [u8], CodecError>,
) -> Result<(), CodecError> {
    let codec = target.codec;
    let mut members = Members::of(codec, target.member_bytes);
    members.begin(0)?;
    let mut rest = one(payload, &mut target)?;
    while let Some(next) = after_padding(rest) {
        if !begins(next) {
            return Err(CodecError::Trailing { codec, bytes: rest.len() });
        }
        members.begin(target.filled)?;
        rest = one(next, &mut target)?;
    }
    let (len, found) = (target.len(), target.filled);
    if found == len { Ok(()) } else { Err(wrong_length(len, found)) }
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
