//! Common parts of the stream formats: decoding of consecutive streams into one allocation, and the rule for trailing
//! bytes.

use super::error::{CodecError, damaged, too_long, wrong_length};
use super::limits::{
    CANCEL_CHECK_BYTES, CancelCheck, MIN_BYTES_PER_CHEAP_MEMBER, MIN_BYTES_PER_COSTLY_MEMBER, MemberLimit,
};

/// Result of one call of a decoder that is in the middle of a stream.
pub(super) struct DecodeStep {
    /// Number of input bytes consumed.
    pub(super) consumed: usize,
    /// Number of bytes decoded.
    pub(super) produced: usize,
    /// True if the stream is finished and its checksums are verified.
    pub(super) is_finished: bool,
}

/// Maximum number of input bytes per decoder call, which cannot be interrupted.
pub(super) const INPUT_CHUNK_BYTES: usize = 64 << 10;

/// Maximum number of output bytes per decoder call.
const OUTPUT_CHUNK_BYTES: usize = 1 << 20;

/// Output buffer to which the streams of a payload are decoded, one after another.
pub(super) struct DecodeOutput<'a> {
    codec: &'static str,
    buffer: &'a mut [u8],
    filled: usize,
    /// Input bytes consumed by all streams so far.
    consumed: usize,
    /// See [`DecodeOutput::with_read_ahead`].
    read_ahead_bytes: usize,
    min_member_bytes: usize,
    cancel_check: CancelCheck<'a>,
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

    /// Allows for a decoder that reads up to this many bytes before it yields any.
    pub(super) fn with_read_ahead(self, read_ahead_bytes: usize) -> Self {
        Self { read_ahead_bytes, ..self }
    }

    /// Allows for a decoder that needs little time to begin a stream.
    pub(super) fn with_cheap_members(self) -> Self {
        Self { min_member_bytes: MIN_BYTES_PER_CHEAP_MEMBER, ..self }
    }

    /// Decoded size of the whole payload in bytes.
    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }

    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// Returns the next chunk of free output; empty once the output is full.
    pub(super) fn next_chunk(&mut self) -> &mut [u8] {
        let end = self.filled.saturating_add(OUTPUT_CHUNK_BYTES).min(self.buffer.len());
        self.buffer.get_mut(self.filled..end).unwrap_or_default()
    }

    /// Records that `consumed` input bytes were decoded to `produced` bytes of [`DecodeOutput::next_chunk`].
    ///
    /// No encoder makes the stored form twice as long as its content, so a stream that continues like that is refused
    /// early. (Deflate has blocks of 12 bytes that hold nothing and take a microsecond.)
    pub(super) fn advance(&mut self, consumed: usize, produced: usize) -> Result<(), CodecError> {
        self.filled = self.filled.saturating_add(produced).min(self.buffer.len());
        self.consumed = self.consumed.saturating_add(consumed);
        if self.consumed > self.read_ahead_bytes.saturating_add(self.filled.saturating_mul(2)) {
            let (stored, decoded) = (self.consumed, self.filled);
            return Err(damaged(
                self.codec,
                format_args!("its first {stored} bytes hold only {decoded} bytes of content"),
            ));
        }
        Ok(())
    }

    pub(super) fn check_cancelled(&self) -> Result<(), CodecError> {
        self.cancel_check.check()
    }
}

/// Decodes the first stream in `input` to its end and returns the bytes after it. `decode_step` decodes part of its
/// first argument to the start of its second.
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
    let (len, found) = (target.len(), target.filled);
    if found == len { Ok(()) } else { Err(wrong_length(len, found)) }
}

/// Returns the bytes after zero padding; `None` if there are none.
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

/// Resizes `output` to `len` bytes that the caller overwrites: zeros from the allocator, or the previous content.
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

/// Maximum number of bytes that a payload can decode to at `ratio`:1, with some slack for tiny payloads.
pub(super) fn max_at_ratio(payload_len: usize, ratio: u64) -> u64 {
    (payload_len as u64).saturating_mul(ratio).saturating_add(4096)
}

/// Difference of a library's counter before and after one step.
pub(super) fn counter_delta(before: u64, after: u64) -> usize {
    usize::try_from(after.saturating_sub(before)).unwrap_or(usize::MAX)
}
