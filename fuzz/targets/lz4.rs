//! `lz4`: bare blocks against a decoder written from the specification and against LZ4 in C; frames against LZ4 in C.

use std::ffi::c_int;
use std::ptr;

use lz4_sys::{
    LZ4_decompress_safe, LZ4F_VERSION, LZ4F_createDecompressionContext, LZ4F_decompress, LZ4F_freeDecompressionContext,
    LZ4F_isError, LZ4FDecompressionContext,
};

use super::Numbers;
use super::codec::{MOST_BYTES, Reference, all_streams, compare, decode};

const FRAME: &[u8] = &[0x04, 0x22, 0x4d, 0x18];

pub(crate) fn run(data: &[u8]) {
    let mut numbers = Numbers::new(data);
    let how = numbers.below(4);
    let len = numbers.below(256) + 256 * numbers.below(16);
    let payload = numbers.rest();
    match how {
        0 => block(payload, len),
        1 => sound_block(payload),
        2 => frames(payload),
        _ => java(payload, len),
    }
}

/// Decodes any bytes as one block, with the length from the input and with the length that the model decodes to.
fn block(payload: &[u8], len: usize) {
    if payload.starts_with(FRAME) || payload.starts_with(b"LZ4Block") {
        return;
    }
    let decoded = model(payload);
    for len in [len, decoded.as_ref().map_or(0, Vec::len)] {
        let ours = decode("lz4", payload, len);
        let prefixed = payload.get(..4).is_some_and(|size| size == (len as u32).to_le_bytes());
        if prefixed {
            continue;
        }
        // LZ4 in C accepts an offset of 0, which the format forbids.
        if let Some(theirs) = by_c(payload, len)
            && (decoded.is_some() || ours.is_ok())
        {
            assert_eq!(ours.as_deref(), Ok(&theirs[..]), "what LZ4 in C decodes is decoded alike");
        }
        match &decoded {
            Some(plain) if plain.len() == len => {
                assert!(ours.as_deref().is_ok_and(|ours| ours == plain) || ends_oddly(payload), "{ours:?}");
            }
            // A block may be followed by zeros as padding.
            _ => {
                let padded = (0..payload.len()).rev().take_while(|at| payload[*at] == 0);
                let sound =
                    padded.into_iter().any(|end| model(&payload[..end]).is_some_and(|plain| plain.len() == len));
                assert!(ours.is_err() || sound, "{len} bytes of what is no block");
            }
        }
    }
}

/// Returns true if the block ends with a match or has no last sequence with literals. The format forbids this, but some
/// decoders accept it.
fn ends_oddly(payload: &[u8]) -> bool {
    by_c(payload, model(payload).map_or(0, |plain| plain.len())).is_none()
}

/// Checks that compressed data decodes to the original in each of the forms.
fn sound_block(plain: &[u8]) {
    let block = ::lz4::block::compress(plain);
    if !block.starts_with(FRAME) {
        assert_eq!(decode("lz4", &block, plain.len()).as_deref(), Ok(plain));
        assert_eq!(model(&block).as_deref(), Some(plain));
    }
    let prefixed = ::lz4::block::compress_prepend_size(plain);
    if !prefixed.starts_with(FRAME) {
        assert_eq!(decode("lz4", &prefixed, plain.len()).as_deref(), Ok(plain));
    }
    let framed = java_frame(&block, plain);
    if !plain.is_empty() && plain.len() <= 1 << 20 {
        assert_eq!(decode("lz4", &framed, plain.len()).as_deref(), Ok(plain));
    }
}

/// Decodes frames of lz4-java. A fuzzer would not find their checksums, so the payload is also put as one block into a
/// frame with a valid checksum.
fn java(payload: &[u8], len: usize) {
    drop(decode("lz4", payload, len));
    let Some(plain) = model(payload).filter(|plain| !plain.is_empty() && plain.len() <= 1 << 20) else { return };
    let ours = decode("lz4", &java_frame(payload, &plain), plain.len());
    assert!(ours.as_deref().is_ok_and(|ours| ours == plain) || ends_oddly(payload), "{ours:?}");
}

/// Returns a frame of lz4-java with one compressed block of at most 1 MiB.
fn java_frame(block: &[u8], plain: &[u8]) -> Vec<u8> {
    let checksum = xxhash_rust::xxh32::xxh32(plain, 0x9747_b28c) & 0x0fff_ffff;
    let sizes = [block.len() as u32, plain.len() as u32, checksum].map(u32::to_le_bytes).concat();
    [&b"LZ4Block"[..], &[0x2a], &sizes, block].concat()
}

fn frames(payload: &[u8]) {
    let payload = [FRAME, payload].concat();
    let reference = all_streams(&payload, |rest, _| rest.starts_with(FRAME), frame_by_c);
    // LZ4 in C accepts an offset of 0, which the format forbids.
    if let Reference::Sound(plain) = &reference
        && decode("lz4", &payload, plain.len()).is_err_and(|error| error.to_string().contains("OffsetZero"))
    {
        return;
    }
    compare("lz4", &payload, &reference);
}

/// Decodes a block as in the specification: token, literals, offset and match, repeated until the input ends after
/// literals.
fn model(mut block: &[u8]) -> Option<Vec<u8>> {
    fn next(from: &mut &[u8]) -> Option<u8> {
        let (first, rest) = from.split_first()?;
        *from = rest;
        Some(*first)
    }
    fn length(nibble: u8, from: &mut &[u8]) -> Option<usize> {
        let mut total = usize::from(nibble);
        if nibble == 15 {
            loop {
                let byte = next(from)?;
                total += usize::from(byte);
                if byte < 255 {
                    break;
                }
            }
        }
        Some(total)
    }
    let mut output = Vec::new();
    loop {
        let token = next(&mut block)?;
        let literals = length(token >> 4, &mut block)?;
        output.extend_from_slice(block.get(..literals)?);
        block = &block[literals..];
        if block.is_empty() {
            return Some(output);
        }
        let offset = usize::from(u16::from_le_bytes([next(&mut block)?, next(&mut block)?]));
        let count = length(token & 15, &mut block)? + 4;
        let start = output.len().checked_sub(offset).filter(|_| offset > 0)?;
        for from in start..start + count {
            output.push(output[from]);
        }
        if output.len() > MOST_BYTES {
            return None;
        }
    }
}

#[expect(unsafe_code, reason = "the reference is a C library")]
fn by_c(block: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut output = vec![0u8; len];
    // SAFETY: both buffers have the lengths given.
    let written = unsafe {
        LZ4_decompress_safe(block.as_ptr().cast(), output.as_mut_ptr().cast(), block.len() as c_int, len as c_int)
    };
    (usize::try_from(written) == Ok(len)).then_some(output)
}

#[expect(unsafe_code, reason = "the reference is a C library")]
fn frame_by_c<'a>(input: &'a [u8], output: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut context = LZ4FDecompressionContext(ptr::null_mut());
    // SAFETY: the context is created before it is used and freed afterwards; every buffer has the length given.
    unsafe {
        assert_eq!(LZ4F_isError(LZ4F_createDecompressionContext(&mut context, LZ4F_VERSION)), 0);
        let mut rest = input;
        let mut piece = vec![0u8; 64 << 10];
        let ended = loop {
            let (mut taken, mut given) = (rest.len(), piece.len());
            let source = rest.as_ptr();
            let hint = LZ4F_decompress(context, piece.as_mut_ptr(), &mut given, source, &mut taken, ptr::null());
            if LZ4F_isError(hint) != 0 {
                break None;
            }
            output.extend_from_slice(&piece[..given]);
            rest = &rest[taken..];
            if hint == 0 {
                break Some(rest);
            }
            if output.len() > MOST_BYTES || (taken == 0 && given == 0) {
                break None;
            }
        };
        LZ4F_freeDecompressionContext(context);
        ended
    }
}
