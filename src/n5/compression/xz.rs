//! `xz`: one or more `.xz` streams with any check, or a `.lzma` file of the older LZMA Utils.

use std::sync::Arc;

use serde_json::{Map, Value};
use xz2::stream::{Action, Error, Status, Stream};

use super::stream::{self, Decoder, Step, damaged};
use super::{Codec, CodecError};

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
    fn decode_into(&self, payload: &[u8], len: usize, output: &mut Vec<u8>) -> Result<(), CodecError> {
        let limit_bytes = memory_limit(len);
        let begins = |rest: &[u8]| rest.starts_with(MAGIC);
        stream::decode_all(NAME, payload, len, begins, output, |input, output| {
            let stream = if begins(input) {
                Stream::new_stream_decoder(limit_bytes, 0)
            } else {
                Stream::new_lzma_decoder(limit_bytes)
            };
            let stream = stream.map_err(|error| damaged(NAME, error))?;
            stream::run(NAME, &mut Limited { stream, limit_bytes }, input, output, len)
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

/// A dictionary beyond every preset's is of no use unless the block is larger still.
fn memory_limit(len: usize) -> u64 {
    (len.max(LARGEST_PRESET_BYTES) as u64).saturating_add(4 * STATE_BYTES as u64)
}

struct Limited {
    stream: Stream,
    limit_bytes: u64,
}

impl Decoder for Limited {
    fn step(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<Step, CodecError> {
        let before = self.stream.total_in();
        let status = match self.stream.process_vec(input, output, Action::Run) {
            Ok(status) => status,
            Err(Error::MemLimit) => return Err(self.over_limit()),
            Err(error) => return Err(damaged(NAME, error)),
        };
        let consumed = stream::advance(before, self.stream.total_in());
        Ok(Step { consumed, ended: status == Status::StreamEnd })
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
