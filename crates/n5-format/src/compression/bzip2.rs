//! `bzip2`: one or more streams.

use ::bzip2::{Decompress, Status};

use super::codec::{CancelCheck, Codec, CodecError, Scratch, damaged};
use super::stream::{self, DecodeOutput, DecodeStep};

const NAME: &str = "bzip2";
/// Upper bound of the stored size of an incompressible bzip2 block. The decoder yields no bytes until it has read a
/// whole block.
const BLOCK_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Bzip2Codec;

impl Codec for Bzip2Codec {
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        _: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<(), CodecError> {
        let is_stream_start = |rest: &[u8]| rest.starts_with(b"BZh");
        stream::resize_for_overwrite(output, len);
        let target = DecodeOutput::new(NAME, output, cancel_check).with_read_ahead(BLOCK_BYTES);
        stream::decode_streams(payload, target, is_stream_start, |input, target| {
            let mut decoder = Decompress::new(false);
            stream::decode_stream(|input, output| decode_step(&mut decoder, input, output), input, target)
        })
    }

    /// Allows a ratio of 2 000 000. A block of about 30 bytes can hold 900 000 run-length coded bytes, and 5 of those
    /// can stand for 259 decoded bytes. (64 MiB of zeros reach 849 479:1.)
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::max_at_ratio(payload_len, 2_000_000)
    }

    /// Returns the size of the decoder's state: four bytes for each of a block's 900 000 bytes, plus the tables.
    fn scratch_bytes(&self, _: &[u8], _: usize) -> usize {
        4 << 20
    }
}

/// Decodes part of `input` to the start of `output`.
fn decode_step(decoder: &mut Decompress, input: &[u8], output: &mut [u8]) -> Result<DecodeStep, CodecError> {
    let before = (decoder.total_in(), decoder.total_out());
    let status = decoder.decompress(input, output).map_err(|error| damaged(NAME, error))?;
    let after = (decoder.total_in(), decoder.total_out());
    Ok(DecodeStep::between(before, after, status == Status::StreamEnd))
}
