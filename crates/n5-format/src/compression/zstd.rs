//! `zstd`: one or more frames with or without their content size, possibly with skippable frames between them.

use std::io::Cursor;
use std::sync::{Mutex, PoisonError};

use ::zstd::zstd_safe::{self, DCtx, zstd_sys::ZSTD_ErrorCode};

use super::codec::{CancelCheck, Codec, CodecError, Scratch, damaged, too_long};
use super::stream::{self, MIN_BYTES_PER_CHEAP_MEMBER, MemberLimit};

const NAME: &str = "zstd";

#[derive(Debug)]
pub(super) struct ZstdCodec;

impl Codec for ZstdCodec {
    /// Decodes each frame in one call directly into the result, which serves as the window. No memory is taken for the
    /// window that a frame declares.
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        _: &mut Scratch,
        cancel_check: CancelCheck<'_>,
    ) -> Result<(), CodecError> {
        let mut frames = frames_without_padding(payload, len)?;
        stream::clear_and_reserve(output, len);
        with_context(|context| {
            let mut members = MemberLimit::new(NAME, MIN_BYTES_PER_CHEAP_MEMBER);
            while !frames.is_empty() {
                cancel_check.check()?;
                members.begin_member(output.len())?;
                let size = zstd_safe::find_frame_compressed_size(frames).map_err(zstd_error)?;
                let (frame, rest) = frames.split_at_checked(size).ok_or_else(|| damaged(NAME, "it ends early"))?;
                let mut target = Cursor::new(&mut *output);
                target.set_position(target.get_ref().len() as u64);
                context
                    .decompress(&mut target, frame)
                    .map_err(|code| if is_output_too_small(code) { too_long(len) } else { zstd_error(code) })?;
                frames = rest;
            }
            stream::check_length(len, output)
        })
    }

    /// Allows a ratio of 32 768, because a run-length block of 128 KiB takes 4 bytes.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::max_at_ratio(payload_len, 32_768)
    }

    /// Returns the size of a decompression context.
    fn scratch_bytes(&self, _: &[u8], _: usize) -> usize {
        192 << 10
    }
}

/// Decodes the frames of `part` to fill `output`.
pub(super) fn decode_part(codec: &'static str, part: &[u8], output: &mut [u8]) -> Result<(), CodecError> {
    let len = output.len();
    match with_context(|context| context.decompress(output, part)) {
        Ok(found) if found == len => Ok(()),
        Ok(found) => Err(damaged(codec, format_args!("a part decodes to {found} bytes, not {len}"))),
        Err(code) => Err(damaged(codec, zstd_safe::get_error_name(code))),
    }
}

/// Idle decompression contexts, at most as many as were ever in use at the same time. Creating one causes 40 page
/// faults, which take a twentieth of the time for decoding a block of 512 KiB.
static IDLE_CONTEXTS: Mutex<Vec<DCtx<'static>>> = Mutex::new(Vec::new());

/// Calls `decode` with an idle or new decompression context. A context can be reused, because every call decodes from
/// the start of a frame, which resets the state.
fn with_context<T>(decode: impl FnOnce(&mut DCtx<'static>) -> T) -> T {
    let idle = || IDLE_CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut context = idle().pop().unwrap_or_else(DCtx::create);
    let result = decode(&mut context);
    idle().push(context);
    result
}

/// Returns the frames at the start of `payload`, found without decoding. Only zeros may follow them.
fn frames_without_padding(payload: &[u8], len: usize) -> Result<&[u8], CodecError> {
    let mut content_bytes = 0u64;
    let mut rest = payload;
    loop {
        if rest.len() < payload.len() && !is_frame_start(rest) {
            stream::expect_zero_padding(NAME, rest)?;
            let end = payload.len().saturating_sub(rest.len());
            return Ok(payload.get(..end).unwrap_or_default());
        }
        if !is_frame_start(rest) {
            return Err(damaged(NAME, "it does not begin with a frame"));
        }
        let size = zstd_safe::find_frame_compressed_size(rest).map_err(zstd_error)?;
        if let Ok(Some(bytes)) = zstd_safe::get_frame_content_size(rest) {
            content_bytes = content_bytes.saturating_add(bytes);
            if content_bytes > len as u64 {
                return Err(too_long(len));
            }
        }
        rest = rest.get(size.max(1)..).unwrap_or_default();
    }
}

/// Returns true if `bytes` begin with a current frame or a skippable one. Frames of the releases before 0.8 were never
/// written to N5, and their decoders must not be reachable from outside.
fn is_frame_start(bytes: &[u8]) -> bool {
    matches!(bytes, [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

fn is_output_too_small(code: usize) -> bool {
    // zstd returns the negated error number.
    code.wrapping_neg() == ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize
}

fn zstd_error(code: usize) -> CodecError {
    damaged(NAME, zstd_safe::get_error_name(code))
}
