//! `xz`: one or more `.xz` streams with any check, or a `.lzma` file of the older LZMA Utils.

use xz2::stream::{Action, CONCATENATED, Error, Status, Stream, TELL_ANY_CHECK};

use super::codec::{CancelCheck, Codec, CodecError, Scratch, damaged};
use super::stream::{self, DecodeOutput, DecodeStep};

const NAME: &str = "xz";
const MAGIC: &[u8] = b"\xfd7zXZ\0";

/// Dictionary size of preset 9, the largest preset that writers offer.
const LARGEST_PRESET_BYTES: usize = 64 << 20;
/// Memory for decoder state, filters and index, in addition to the dictionary.
const STATE_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct XzCodec;

impl Codec for XzCodec {
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        scratch: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<(), CodecError> {
        let limit_bytes = memory_limit(len);
        stream::resize_for_overwrite(output, len);
        let target = DecodeOutput::new(NAME, output, cancel_check);
        if let Some(stream) = decode_reusing(payload, target, scratch.take_state()) {
            scratch.put_state(stream);
            return Ok(());
        }
        let is_stream_start = |rest: &[u8]| rest.starts_with(MAGIC);
        stream::decode_streams(
            payload,
            DecodeOutput::new(NAME, output, cancel_check),
            is_stream_start,
            |input, target| {
                let stream = if is_stream_start(input) {
                    Stream::new_stream_decoder(limit_bytes, 0)
                } else {
                    Stream::new_lzma_decoder(limit_bytes)
                };
                let mut stream = stream.map_err(|error| damaged(NAME, error))?;
                let decode = |input: &[u8], output: &mut [u8]| decode_step(&mut stream, limit_bytes, input, output);
                stream::decode_stream(decode, input, target)
            },
        )
    }

    /// Allows a ratio of 10 000: 64 MiB of zeros reach 6 781. A match of 273 bytes takes at least 0.3 bits.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::max_at_ratio(payload_len, 10_000)
    }

    /// Counts only memory that becomes resident. liblzma reserves the dictionary that the stream declares, 64 MiB for
    /// preset 9 even if the block is small, but touches only as much of it as it decodes.
    fn scratch_bytes(&self, _: &[u8], len: usize) -> usize {
        len.saturating_add(STATE_BYTES)
    }
}

/// An `.xz` stream without content.
const EMPTY_STREAM: &[u8] =
    b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46\0\0\0\0\x1c\xdf\x44\x21\x1f\xb6\xf3\x7d\x01\0\0\0\0\x04YZ";
/// Size of the header of an `.xz` stream in bytes.
const HEADER_BYTES: usize = 12;

/// Decodes a payload that is one intact stream and fills `target` exactly, which is the common case. Uses
/// `reused_stream`, the decoder of an earlier payload, if there is one, and returns the decoder for the next call.
/// Returns `None` for every other payload, and on cancellation.
///
/// A decoder for a single stream cannot be reused. A decoder for concatenated streams can, but it does not report the
/// end of a stream. After each payload, the decoder is therefore fed an empty stream: it reports the header of this
/// stream only if the previous stream has ended.
fn decode_reusing(
    payload: &[u8],
    mut target: DecodeOutput<'_>,
    reused_stream: Option<Box<Stream>>,
) -> Option<Box<Stream>> {
    let limit_bytes = memory_limit(target.len());
    let reused = reused_stream.and_then(|mut stream| stream.set_memlimit(limit_bytes).ok().map(|()| stream));
    let new = || Stream::new_stream_decoder(limit_bytes, CONCATENATED | TELL_ANY_CHECK).ok().map(Box::new);
    let mut stream = reused.or_else(new)?;
    let (header, rest) = payload.split_at_checked(HEADER_BYTES)?;
    feed_all(&mut stream, header, &mut target, Status::GetCheck)?;
    feed_all(&mut stream, rest, &mut target, Status::Ok)?;
    if target.filled() != target.len() {
        return None;
    }
    let (header, rest) = EMPTY_STREAM.split_at_checked(HEADER_BYTES)?;
    let mut empty_output = DecodeOutput::new(NAME, &mut [], CancelCheck::NEVER);
    feed_all(&mut stream, header, &mut empty_output, Status::GetCheck)?;
    feed_all(&mut stream, rest, &mut empty_output, Status::Ok)?;
    Some(stream)
}

/// Feeds all of `input` to the decoder, which must return `status` at its end and `Ok` before that.
fn feed_all(stream: &mut Stream, mut input: &[u8], target: &mut DecodeOutput<'_>, status: Status) -> Option<()> {
    loop {
        target.check_cancelled().ok()?;
        let before = (stream.total_in(), stream.total_out());
        let chunk = input.get(..stream::INPUT_CHUNK_BYTES).unwrap_or(input);
        let step_status = stream.process(chunk, target.next_chunk(), Action::Run).ok()?;
        let step = DecodeStep::between(before, (stream.total_in(), stream.total_out()), false);
        input = input.get(step.consumed..)?;
        target.advance(step.consumed, step.produced).ok()?;
        if input.is_empty() {
            return (step_status == status).then_some(());
        }
        if step_status != Status::Ok || (step.consumed == 0 && step.produced == 0) {
            return None;
        }
    }
}

/// Returns the memory limit in bytes for a block of `len` bytes. A dictionary larger than that of the
/// largest preset is useful only for a larger block.
fn memory_limit(len: usize) -> u64 {
    (len.max(LARGEST_PRESET_BYTES) as u64).saturating_add(4 * STATE_BYTES as u64)
}

/// Decodes part of `input` to the start of `output`. `limit_bytes` is the memory limit of `stream`.
fn decode_step(
    stream: &mut Stream,
    limit_bytes: u64,
    input: &[u8],
    output: &mut [u8],
) -> Result<DecodeStep, CodecError> {
    let before = (stream.total_in(), stream.total_out());
    let status = match stream.process(input, output, Action::Run) {
        Ok(status) => status,
        Err(Error::MemLimit) => return Err(memory_limit_error(stream, limit_bytes)),
        Err(error) => return Err(damaged(NAME, error)),
    };
    Ok(DecodeStep::between(before, (stream.total_in(), stream.total_out()), status == Status::StreamEnd))
}

/// Returns an error with the memory that the stream needs. It is found by bisection, as the lowest limit that liblzma
/// accepts.
fn memory_limit_error(stream: &mut Stream, limit_bytes: u64) -> CodecError {
    let mut too_low = limit_bytes;
    let mut needed_bytes = u64::from(u32::MAX) * 2;
    while needed_bytes - too_low > 1 {
        let middle = too_low + (needed_bytes - too_low) / 2;
        if stream.set_memlimit(middle).is_ok() {
            needed_bytes = middle;
        } else {
            too_low = middle;
        }
    }
    CodecError::Memory { codec: NAME, needed_bytes, limit_bytes }
}
