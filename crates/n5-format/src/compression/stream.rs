//! Common parts of the stream formats: decoding of consecutive streams into one allocation, the rule for trailing
//! bytes, and limits for payloads that take long to decode but yield few bytes.

use super::codec::{CancelCheck, CodecError, damaged, too_long, wrong_length};

/// Progress of a stream in one call of its decoder.
pub(super) struct DecodeStep {
    /// Number of input bytes consumed.
    pub(super) consumed: usize,
    /// Number of bytes decoded.
    pub(super) produced: usize,
    /// True if the stream is finished and its checksums are verified.
    pub(super) is_finished: bool,
}

/// Maximum number of input bytes of one decoder call. Calls must be short, because they cannot be interrupted.
pub(super) const INPUT_CHUNK_BYTES: usize = 64 << 10;

/// Maximum number of output bytes of one decoder call.
const OUTPUT_CHUNK_BYTES: usize = 1 << 20;

/// Output buffer to which the streams of a payload are decoded, one after another.
pub(super) struct DecodeOutput<'a> {
    codec: &'static str,
    buffer: &'a mut [u8],
    filled: usize,
    /// Input bytes consumed by all streams so far.
    consumed: usize,
    /// Number of input bytes that the decoder may read before it yields any output.
    read_ahead_bytes: usize,
    min_member_bytes: usize,
    cancel_check: CancelCheck<'a>,
}

impl DecodeStep {
    /// Creates the progress of a call from the decoder's total input and output before and after it.
    pub(super) fn between(before: (u64, u64), after: (u64, u64), is_finished: bool) -> Self {
        let difference = |before: u64, after: u64| usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX);
        Self { consumed: difference(before.0, after.0), produced: difference(before.1, after.1), is_finished }
    }
}

impl<'a> DecodeOutput<'a> {
    /// Creates an output that the streams must fill completely.
    pub(super) fn new(codec: &'static str, buffer: &'a mut [u8], cancel_check: CancelCheck<'a>) -> Self {
        Self {
            codec,
            buffer,
            filled: 0,
            consumed: 0,
            read_ahead_bytes: CANCEL_CHECK_BYTES,
            min_member_bytes: MIN_BYTES_PER_COSTLY_MEMBER,
            cancel_check,
        }
    }

    /// Allows for a decoder that reads up to `read_ahead_bytes` bytes before it yields any output.
    pub(super) fn with_read_ahead(self, read_ahead_bytes: usize) -> Self {
        Self { read_ahead_bytes, ..self }
    }

    /// Allows for a decoder that needs little time to begin a stream.
    pub(super) fn with_cheap_members(self) -> Self {
        Self { min_member_bytes: MIN_BYTES_PER_CHEAP_MEMBER, ..self }
    }

    /// Returns the decoded size of the whole payload in bytes.
    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }

    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// Returns the next chunk of free output, which is empty once the output is full.
    pub(super) fn next_chunk(&mut self) -> &mut [u8] {
        let end = self.filled.saturating_add(OUTPUT_CHUNK_BYTES).min(self.buffer.len());
        self.buffer.get_mut(self.filled..end).unwrap_or_default()
    }

    /// Records that `consumed` input bytes were decoded to `produced` bytes of [`DecodeOutput::next_chunk`].
    ///
    /// No encoder writes twice as many bytes as it reads, so a stream that decodes to less than half its length is
    /// refused early. (An empty deflate block of 12 bytes, for example, takes a microsecond to decode.)
    pub(super) fn advance(&mut self, consumed: usize, produced: usize) -> Result<(), CodecError> {
        self.filled = self.filled.saturating_add(produced).min(self.buffer.len());
        self.consumed = self.consumed.saturating_add(consumed);
        if self.consumed > self.read_ahead_bytes.saturating_add(self.filled.saturating_mul(2)) {
            let Self { consumed, filled, .. } = self;
            let reason = format_args!("its first {consumed} bytes hold only {filled} bytes of content");
            return Err(damaged(self.codec, reason));
        }
        Ok(())
    }

    pub(super) fn check_cancelled(&self) -> Result<(), CodecError> {
        self.cancel_check.check()
    }
}

/// Decodes the first stream in `input` to its end and returns the bytes after the stream. `decode_step` gets a chunk of
/// the input and a chunk of free output, and decodes a part of the first to the start of the second.
pub(super) fn decode_stream<'i>(
    mut decode_step: impl FnMut(&[u8], &mut [u8]) -> Result<DecodeStep, CodecError>,
    mut input: &'i [u8],
    target: &mut DecodeOutput<'_>,
) -> Result<&'i [u8], CodecError> {
    loop {
        target.check_cancelled()?;
        let chunk = input.get(..INPUT_CHUNK_BYTES).unwrap_or(input);
        // Even if the output is full, the decoder must still reach the end of the stream.
        let mut surplus = [0];
        let output = target.next_chunk();
        let is_full = output.is_empty();
        let step = decode_step(chunk, if is_full { &mut surplus } else { output })?;
        if is_full && step.produced > 0 {
            return Err(too_long(target.len()));
        }
        input = input.get(step.consumed..).unwrap_or_default();
        target.advance(step.consumed, step.produced)?;
        if step.is_finished {
            return Ok(input);
        }
        if step.consumed == 0 && step.produced == 0 {
            return Err(damaged(target.codec, "it ends early"));
        }
    }
}

/// Decodes all streams of `payload`. `decode_one` decodes the first stream of its input and returns the rest.
/// `is_stream_start` distinguishes a further stream from trailing bytes.
pub(super) fn decode_streams<'i>(
    payload: &'i [u8],
    mut target: DecodeOutput<'_>,
    is_stream_start: impl Fn(&[u8]) -> bool,
    mut decode_one: impl FnMut(&'i [u8], &mut DecodeOutput<'_>) -> Result<&'i [u8], CodecError>,
) -> Result<(), CodecError> {
    let codec = target.codec;
    let mut members = MemberLimit::new(codec, target.min_member_bytes);
    members.begin_member(0)?;
    let mut rest = decode_one(payload, &mut target)?;
    while let Some(next) = skip_zero_padding(rest) {
        if !is_stream_start(next) {
            return Err(CodecError::Trailing { codec, bytes: rest.len() });
        }
        members.begin_member(target.filled)?;
        rest = decode_one(next, &mut target)?;
    }
    if target.filled == target.len() { Ok(()) } else { Err(wrong_length(target.len(), target.filled)) }
}

/// Returns the bytes after zero padding, or `None` if there are none.
pub(super) fn skip_zero_padding(rest: &[u8]) -> Option<&[u8]> {
    rest.iter().position(|byte| *byte != 0).and_then(|at| rest.get(at..))
}

/// Returns an error unless `rest` consists of zero padding only.
pub(super) fn expect_zero_padding(codec: &'static str, rest: &[u8]) -> Result<(), CodecError> {
    match skip_zero_padding(rest) {
        None => Ok(()),
        Some(_) => Err(CodecError::Trailing { codec, bytes: rest.len() }),
    }
}

/// Clears `output` and reserves capacity for `len` bytes.
pub(super) fn clear_and_reserve(output: &mut Vec<u8>, len: usize) {
    output.clear();
    output.reserve_exact(len);
}

/// Resizes `output` to `len` bytes for a caller that overwrites all of them. Until then, they are zeros or previous
/// content.
pub(super) fn resize_for_overwrite(output: &mut Vec<u8>, len: usize) {
    if output.capacity() < len {
        *output = vec![0; len];
    }
    output.resize(len, 0);
}

/// Returns an error unless `output` has the length that the block's header promises.
pub(super) fn check_length(len: usize, output: &[u8]) -> Result<(), CodecError> {
    if output.len() == len { Ok(()) } else { Err(wrong_length(len, output.len())) }
}

/// Returns the maximum number of bytes that a payload can decode to at `ratio`:1, with some slack for tiny payloads.
pub(super) fn max_at_ratio(payload_len: usize, ratio: u64) -> u64 {
    (payload_len as u64).saturating_mul(ratio).saturating_add(4096)
}

/// Bytes read or written between two cancellation checks.
const CANCEL_CHECK_BYTES: usize = 256 << 10;

/// Number of members with little or no output that every payload may have. bgzip and lz4-java end each stream with an
/// empty member, and files that were appended to have a few.
const FREE_MEMBERS: usize = 64;

/// Average number of bytes that each further member must yield if its decoder allocates memory from the system. The
/// allocation takes 20 us. In this time, the slowest decoder yields 1 KiB.
const MIN_BYTES_PER_COSTLY_MEMBER: usize = 1 << 10;
/// Average number of bytes that each further member must yield if its decoder allocates no memory from the system.
pub(super) const MIN_BYTES_PER_CHEAP_MEMBER: usize = 64;

/// Polls `cancel_check` once per [`CANCEL_CHECK_BYTES`], for decoders that work in small pieces. `pending` counts the
/// bytes since the last poll, and `bytes` is the number of bytes that the next piece reads and writes in total.
pub(super) fn check_periodically(
    cancel_check: CancelCheck<'_>,
    pending: &mut usize,
    bytes: usize,
) -> Result<(), CodecError> {
    *pending = pending.saturating_add(bytes);
    if *pending < CANCEL_CHECK_BYTES {
        return Ok(());
    }
    *pending = 0;
    cancel_check.check()
}

/// Limits the number of members (streams, frames, blocks) of one payload by the bytes that they yield.
pub(super) struct MemberLimit {
    codec: &'static str,
    min_bytes_each: usize,
    started: usize,
}

impl MemberLimit {
    /// Creates a limit for which each member must yield `min_bytes_each` bytes on average.
    pub(super) fn new(codec: &'static str, min_bytes_each: usize) -> Self {
        Self { codec, min_bytes_each: min_bytes_each.max(1), started: 0 }
    }

    /// Counts the next member. `yielded` is the number of bytes that the members before it have decoded to.
    pub(super) fn begin_member(&mut self, yielded: usize) -> Result<(), CodecError> {
        if self.started >= FREE_MEMBERS.saturating_add(yielded / self.min_bytes_each) {
            let started = self.started;
            return Err(damaged(self.codec, format_args!("its first {started} members hold only {yielded} bytes")));
        }
        self.started += 1;
        Ok(())
    }
}
