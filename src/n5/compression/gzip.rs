//! `gzip` and `zlib`: RFC 1952 members or RFC 1950 streams, told apart by their first bytes.
//!
//! The member `useZlib` is not looked at: z5 and rust-n5 neither write nor read it, and what is stored
//! is certain.

use std::sync::Arc;

use bytes::BufMut;
use flate2::{Decompress, FlushDecompress, Status};
use libdeflater::Decompressor;
use memchr::memmem;
use serde_json::{Map, Value};

use super::stream::{self, Decoder, Step, Target, damaged};
use super::{Codec, CodecError, Scratch, Watch};

const NAME: &str = "gzip";
/// Longer payloads are not left to a library that cannot be stopped: of blocks that hold nothing it takes 50 ns for a byte.
pub(super) const AT_ONCE_BYTES: usize = 8 << 20;

#[derive(Debug)]
struct Gzip;

pub(super) fn open(_: &Map<String, Value>) -> Arc<dyn Codec> {
    Arc::new(Gzip)
}

impl Codec for Gzip {
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        _: &mut Scratch,
        watch: Watch<'_>,
    ) -> Result<(), CodecError> {
        watch.look()?;
        let wrapper = Wrapper::of(payload)
            .ok_or_else(|| damaged(NAME, "it begins neither as a gzip member nor as a zlib stream"))?;
        if payload.len() <= AT_ONCE_BYTES && single(payload, wrapper, len, output) {
            return Ok(());
        }
        let begins = |rest: &[u8]| Wrapper::of(rest) == Some(wrapper);
        stream::filled(output, len);
        let target = Target::new(NAME, output, watch).with_cheap_members();
        stream::decode_all(payload, target, begins, |input, target| {
            let mut decoder = match wrapper {
                Wrapper::Gzip => Decompress::new_gzip(15),
                Wrapper::Zlib => Decompress::new(true),
            };
            stream::run(&mut decoder, input, target)
        })
    }

    /// Deflate spends at least 2 bits on a match of at most 258 bytes.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::at_most(payload_len, 1032)
    }

    /// The larger of the two libraries' states.
    fn scratch_bytes(&self, _: &[u8], _: usize) -> usize {
        128 << 10
    }
}

/// Decodes the zlib stream that `part` begins with to all of `room`, as zlib's `uncompress` does.
pub(super) fn zlib_part(codec: &'static str, part: &[u8], room: &mut [u8], watch: Watch<'_>) -> Result<(), CodecError> {
    let len = room.len();
    if part.len() <= AT_ONCE_BYTES && Decompressor::new().zlib_decompress(part, room) == Ok(len) {
        return Ok(());
    }
    let mut target = Target::new(codec, room, watch);
    stream::run(&mut Decompress::new(true), part, &mut target)?;
    let found = target.filled();
    if found == len { Ok(()) } else { Err(damaged(codec, format_args!("a part decodes to {found} bytes, not {len}"))) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrapper {
    Gzip,
    Zlib,
}

impl Wrapper {
    fn of(stream: &[u8]) -> Option<Self> {
        match stream {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            // Method 8 in the low half of the first byte; both together are a multiple of 31.
            [first, second, ..] if first & 0x0f == 8 && u16::from_be_bytes([*first, *second]).is_multiple_of(31) => {
                Some(Self::Zlib)
            }
            _ => None,
        }
    }
}

/// Decodes a payload that is one sound stream of `len` bytes and nothing else, the common case, with
/// the fastest library; false for everything else.
///
/// libdeflater does not say where the stream ended, and stops there without a word. But a stream ends
/// with the checksum of what it decodes to, so it ended at the payload's end if that checksum stands
/// there and nowhere before.
fn single(payload: &[u8], wrapper: Wrapper, len: usize, output: &mut Vec<u8>) -> bool {
    stream::filled(output, len);
    let mut decompressor = Decompressor::new();
    let decoded = match wrapper {
        Wrapper::Gzip => decompressor.gzip_decompress(payload, output),
        Wrapper::Zlib => decompressor.zlib_decompress(payload, output),
    };
    if decoded != Ok(len) {
        return false;
    }
    let mut trailer = Vec::with_capacity(8);
    match wrapper {
        Wrapper::Gzip => {
            trailer.put_u32_le(libdeflater::crc32(output));
            trailer.extend(len.to_le_bytes().into_iter().take(4));
        }
        Wrapper::Zlib => trailer.put_u32(libdeflater::adler32(output)),
    }
    let end = memmem::find(payload, &trailer).and_then(|at| at.checked_add(trailer.len()));
    end == Some(payload.len())
}

impl Decoder for Decompress {
    fn step(&mut self, input: &[u8], room: &mut [u8]) -> Result<Step, CodecError> {
        let before = (self.total_in(), self.total_out());
        let status = self.decompress(input, room, FlushDecompress::None).map_err(|error| damaged(NAME, error))?;
        let consumed = stream::advance(before.0, self.total_in());
        let produced = stream::advance(before.1, self.total_out());
        Ok(Step { consumed, produced, ended: status == Status::StreamEnd })
    }
}
