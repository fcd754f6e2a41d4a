//! `xz`: one or more `.xz` streams with any check, or a `.lzma` file of the older LZMA Utils.

use std::sync::Arc;

use serde_json::{Map, Value};
use xz2::stream::{Action, CONCATENATED, Error, Status, Stream, TELL_ANY_CHECK};

use super::stream::{self, Decoder, Step, Target, damaged};
use super::{Codec, CodecError, Scratch, Watch};

const NAME: &str = "xz";
const MAGIC: &[u8] = b"\xfd7zXZ\0";

/// The dictionary of preset 9, the largest that any writer's presets ask for.
const LARGEST_PRESET_BYTES: usize = 64 << 20;
/// Decoder state, filters and index besides the dictionary.
const STATE_BYTES: usize = 1 << 20;

#[derive(Debug)]
struct Xz;

pub(super) fn open(_: &Map<String, Value>) -> Arc<dyn Codec> {
    Arc::new(Xz)
}

impl Codec for Xz {
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        scratch: &mut Scratch,
        watch: Watch<'_>,
    ) -> Result<(), CodecError> {
        let limit_bytes = memory_limit(len);
        stream::filled(output, len);
        scratch.xz = single(payload, Target::new(NAME, output, watch), scratch.xz.take());
        if scratch.xz.is_some() {
            return Ok(());
        }
        let begins = |rest: &[u8]| rest.starts_with(MAGIC);
        stream::decode_all(payload, Target::new(NAME, output, watch), begins, |input, target| {
            let stream = if begins(input) {
                Stream::new_stream_decoder(limit_bytes, 0)
            } else {
                Stream::new_lzma_decoder(limit_bytes)
            };
            let stream = stream.map_err(|error| damaged(NAME, error))?;
            stream::run(&mut Limited { stream, limit_bytes }, input, target)
        })
    }

    /// 64 MiB of zeros come to 6 781:1; a match of 273 bytes cannot take less than 0.3 bits.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::at_most(payload_len, 10_000)
    }

    /// Resident bytes: liblzma reserves the dictionary that the stream names, 64 MiB for preset 9 even
    /// where the block is small, but touches only as much of it as it decodes.
    fn scratch_bytes(&self, _: &[u8], len: usize) -> usize {
        len.saturating_add(STATE_BYTES)
    }
}

/// A stream of no bytes, and the length of its header.
const EMPTY: &[u8] = b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46\0\0\0\0\x1c\xdf\x44\x21\x1f\xb6\xf3\x7d\x01\0\0\0\0\x04YZ";
const HEADER_BYTES: usize = 12;

/// Decodes a payload that is one sound stream that fills `target` and nothing else, the common case, with what an
/// earlier one has allocated; returns that for the next. `None` for everything else, also once nobody waits.
///
/// A decoder for one stream cannot be used again, one for many can, but does not say when a stream has ended. So it
/// is given an empty one after each: it says that it has read a header exactly where one was expected.
fn single(payload: &[u8], mut target: Target<'_>, used: Option<Stream>) -> Option<Stream> {
    let limit_bytes = memory_limit(target.len());
    let again = used.and_then(|mut used| used.set_memlimit(limit_bytes).ok().map(|()| used));
    let new = || Stream::new_stream_decoder(limit_bytes, CONCATENATED | TELL_ANY_CHECK).ok();
    let mut stream = again.or_else(new)?;
    let (header, rest) = payload.split_at_checked(HEADER_BYTES)?;
    take_all(&mut stream, header, &mut target, Status::GetCheck)?;
    take_all(&mut stream, rest, &mut target, Status::Ok)?;
    if target.filled() != target.len() {
        return None;
    }
    let (header, rest) = EMPTY.split_at_checked(HEADER_BYTES)?;
    let mut nothing = Target::new(NAME, &mut [], Watch::ALWAYS);
    take_all(&mut stream, header, &mut nothing, Status::GetCheck)?;
    take_all(&mut stream, rest, &mut nothing, Status::Ok)?;
    Some(stream)
}

/// Gives all of `input` to the decoder, which must say `status` at its end, and before it nothing but `Ok`.
fn take_all(stream: &mut Stream, mut input: &[u8], target: &mut Target<'_>, status: Status) -> Option<()> {
    loop {
        target.look().ok()?;
        let (before_in, before_out) = (stream.total_in(), stream.total_out());
        let piece = input.get(..stream::INPUT_BYTES).unwrap_or(input);
        let said = stream.process(piece, target.next_room(), Action::Run).ok()?;
        let consumed = stream::advance(before_in, stream.total_in());
        let produced = stream::advance(before_out, stream.total_out());
        input = input.get(consumed..)?;
        target.advance(consumed, produced).ok()?;
        if input.is_empty() {
            return (said == status).then_some(());
        }
        if said != Status::Ok || (consumed == 0 && produced == 0) {
            return None;
        }
    }
}

/// A dictionary beyond every preset's is of no use unless the block is larger still.
fn memory_limit(len: usize) -> u64 {
    (len.max(LARGEST_PRESET_BYTES) as u64).saturating_add(4 * STATE_BYTES as u64)
}

struct Limited {
    stream: Stream,
    limit_bytes: u64,
}

impl Decoder for Limited {
    fn step(&mut self, input: &[u8], room: &mut [u8]) -> Result<Step, CodecError> {
        let before = (self.stream.total_in(), self.stream.total_out());
        let status = match self.stream.process(input, room, Action::Run) {
            Ok(status) => status,
            Err(Error::MemLimit) => return Err(self.over_limit()),
            Err(error) => return Err(damaged(NAME, error)),
        };
        let consumed = stream::advance(before.0, self.stream.total_in());
        let produced = stream::advance(before.1, self.stream.total_out());
        Ok(Step { consumed, produced, ended: status == Status::StreamEnd })
    }
}

impl Limited {
    /// Finds what the stream needs as the least limit that liblzma would accept.
    fn over_limit(&mut self) -> CodecError {
        let (mut refused, mut accepted) = (self.limit_bytes, u64::from(u32::MAX) * 2);
        while accepted - refused > 1 {
            let middle = refused + (accepted - refused) / 2;
            if self.stream.set_memlimit(middle).is_ok() {
                accepted = middle;
            } else {
                refused = middle;
            }
        }
        CodecError::Memory { codec: NAME, needed_bytes: accepted, limit_bytes: self.limit_bytes }
    }
}
