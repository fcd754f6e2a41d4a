//! `bzip2`: one or more streams.

use std::sync::Arc;

use ::bzip2::{Decompress, Status};
use serde_json::{Map, Value};

use super::stream::{self, Decoder, Step, Target, damaged};
use super::{Codec, CodecError, Scratch, Watch};

const NAME: &str = "bzip2";
/// More than a block takes that cannot be compressed. None of it comes out before all of it is in.
const BLOCK_BYTES: usize = 1 << 20;

#[derive(Debug)]
struct Bzip2;

pub(super) fn open(_: &Map<String, Value>) -> Arc<dyn Codec> {
    Arc::new(Bzip2)
}

impl Codec for Bzip2 {
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        _: &mut Scratch,
        watch: Watch<'_>,
    ) -> Result<(), CodecError> {
        let begins = |rest: &[u8]| rest.starts_with(b"BZh");
        stream::filled(output, len);
        let target = Target::new(NAME, output, watch).with_slack(BLOCK_BYTES);
        stream::decode_all(payload, target, begins, |input, target| {
            stream::run(&mut Decompress::new(false), input, target)
        })
    }

    /// A block of about 30 bytes can hold 900 000 run-length coded ones, 5 for every 259 bytes.
    /// (64 MiB of zeros come to 849 479:1.)
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::at_most(payload_len, 2_000_000)
    }

    /// Four bytes for each of a block's 900 000, and the tables.
    fn scratch_bytes(&self, _: &[u8], _: usize) -> usize {
        4 << 20
    }
}

impl Decoder for Decompress {
    fn step(&mut self, input: &[u8], room: &mut [u8]) -> Result<Step, CodecError> {
        let before = (self.total_in(), self.total_out());
        let status = self.decompress(input, room).map_err(|error| damaged(NAME, error))?;
        let consumed = stream::advance(before.0, self.total_in());
        let produced = stream::advance(before.1, self.total_out());
        Ok(Step { consumed, produced, ended: status == Status::StreamEnd })
    }
}
