//! `raw`: uncompressed elements.

use bytes::Bytes;

use super::codec::{CancelCheck, Codec, CodecError, Scratch, wrong_length};
use super::stream;

#[derive(Debug)]
pub(super) struct RawCodec;

impl Codec for RawCodec {
    /// Shares the payload's buffer instead of copying it.
    fn decode(&self, payload: Bytes, len: usize, _: &mut Scratch, _: CancelCheck<'_>) -> Result<Bytes, CodecError> {
        if payload.len() == len { Ok(payload) } else { Err(wrong_length(len, payload.len())) }
    }

    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        _: &mut Scratch,
        _: CancelCheck<'_>,
    ) -> Result<(), CodecError> {
        output.clear();
        output.extend_from_slice(payload);
        stream::check_length(len, output)
    }

    fn is_uncompressed(&self) -> bool {
        true
    }

    fn uncompressed_slice<'a>(&self, payload: &'a [u8], _: usize) -> Option<&'a [u8]> {
        Some(payload)
    }

    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        payload_len as u64
    }

    fn scratch_bytes(&self, _: &[u8], _: usize) -> usize {
        0
    }
}
