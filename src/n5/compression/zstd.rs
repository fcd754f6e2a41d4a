//! `zstd`: one or more frames, with or without their content size, among skippable ones.

use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

use ::zstd::zstd_safe::{self, DCtx, zstd_sys::ZSTD_ErrorCode};
use serde_json::{Map, Value};

use super::stream::{self, damaged};
use super::watch::{CHEAP_MEMBER_BYTES, Members};
use super::{Codec, CodecError, Scratch, Watch};

const NAME: &str = "zstd";

#[derive(Debug)]
struct Zstd;

pub(super) fn open(_: &Map<String, Value>) -> Arc<dyn Codec> {
    Arc::new(Zstd)
}

impl Codec for Zstd {
    /// Each frame at once into the result, which serves as the window: whatever window a frame asks
    /// for, no memory is taken for it.
    fn decode_into(
        &self,
        payload: &[u8],
        len: usize,
        output: &mut Vec<u8>,
        _: &mut Scratch,
        watch: Watch<'_>,
    ) -> Result<(), CodecError> {
        let mut frames = frames(payload, len)?;
        stream::emptied(output, len);
        with_context(|context| {
            let mut members = Members::of(NAME, CHEAP_MEMBER_BYTES);
            while !frames.is_empty() {
                watch.look()?;
                members.begin(output.len())?;
                let size = zstd_safe::find_frame_compressed_size(frames).map_err(failure)?;
                let (frame, rest) = frames.split_at_checked(size).ok_or_else(|| damaged(NAME, "it ends early"))?;
                let mut target = Cursor::new(&mut *output);
                target.set_position(target.get_ref().len() as u64);
                context
                    .decompress(&mut target, frame)
                    .map_err(|code| if is_too_small(code) { stream::more(len) } else { failure(code) })?;
                frames = rest;
            }
            stream::exactly(len, output)
        })
    }

    /// A run of 128 KiB takes 4 bytes.
    fn max_decoded_bytes(&self, payload_len: usize) -> u64 {
        stream::at_most(payload_len, 32_768)
    }

    /// A decompression context.
    fn scratch_bytes(&self, _: &[u8], _: usize) -> usize {
        192 << 10
    }
}

/// Decodes the frames of `part` to all of `room`.
pub(super) fn part(codec: &'static str, part: &[u8], room: &mut [u8]) -> Result<(), CodecError> {
    let len = room.len();
    match with_context(|context| context.decompress(room, part)) {
        Ok(found) if found == len => Ok(()),
        Ok(found) => Err(damaged(codec, format_args!("a part decodes to {found} bytes, not {len}"))),
        Err(code) => Err(damaged(codec, zstd_safe::get_error_name(code))),
    }
}

/// Contexts that nobody uses: as many as decoded at once. A new one costs 40 page faults, a twentieth of the time
/// that a block of 512 KiB takes.
static IDLE: Mutex<Vec<DCtx<'static>>> = Mutex::new(Vec::new());

/// Runs `job` with a context. Nothing of one job reaches the next: each begins with a frame.
fn with_context<T>(job: impl FnOnce(&mut DCtx<'static>) -> T) -> T {
    let idle = || IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut context = idle().pop().unwrap_or_else(DCtx::create);
    let result = job(&mut context);
    idle().push(context);
    result
}

/// The frames that `payload` begins with, found without decoding; only zeros may follow them.
fn frames(payload: &[u8], len: usize) -> Result<&[u8], CodecError> {
    let mut promised = 0u64;
    let mut rest = payload;
    loop {
        if rest.len() < payload.len() && !begins_frame(rest) {
            stream::only_padding(NAME, rest)?;
            let end = payload.len().saturating_sub(rest.len());
            return Ok(payload.get(..end).unwrap_or_default());
        }
        if !begins_frame(rest) {
            return Err(damaged(NAME, "it begins with no frame"));
        }
        let size = zstd_safe::find_frame_compressed_size(rest).map_err(failure)?;
        if let Ok(Some(bytes)) = zstd_safe::get_frame_content_size(rest) {
            promised = promised.saturating_add(bytes);
            if promised > len as u64 {
                return Err(stream::more(len));
            }
        }
        rest = rest.get(size.max(1)..).unwrap_or_default();
    }
}

/// Today's frames and skippable ones. Those of the releases before 0.8 were never written to N5, and
/// their decoders are not to be reached from outside.
fn begins_frame(bytes: &[u8]) -> bool {
    matches!(bytes, [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

fn is_too_small(code: usize) -> bool {
    // The library returns the negated error number.
    code.wrapping_neg() == ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize
}

fn failure(code: usize) -> CodecError {
    damaged(NAME, zstd_safe::get_error_name(code))
}
