//! The binding to c-blosc 1 and to the LZ4 that is linked with it, the format's only foreign calls.
#![expect(unsafe_code, reason = "no maintained safe crate decodes c-blosc buffers")]

use std::ffi::{CStr, c_int};

use blosc_src::{
    BLOSC_MAX_BLOCKSIZE, BLOSC_MAX_BUFFERSIZE, BLOSC_MAX_OVERHEAD, blosc_compress_ctx, blosc_decompress_ctx,
};
use lz4_sys::LZ4_decompress_safe;

/// Most bytes that a buffer can decode to.
pub(super) const MAX_DECODED_BYTES: u32 = BLOSC_MAX_BUFFERSIZE;
/// Largest blosc block within a buffer, in bytes.
pub(super) const MAX_BLOCK_BYTES: u32 = BLOSC_MAX_BLOCKSIZE;

/// Decodes `buffer`, whose header and parts have been checked, and appends `len` bytes to an empty
/// `output` that has room for them.
///
/// # Errors
/// What c-blosc returns when that is not `len`.
pub(super) fn decompress(buffer: &[u8], output: &mut Vec<u8>, len: usize) -> Result<(), c_int> {
    // c-blosc reads the header's 16 bytes, and then as many as they claim, without knowing how many there are.
    let claimed = buffer.get(12..16).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    let complete = claimed.and_then(|claimed| usize::try_from(claimed).ok()).is_some_and(|n| n <= buffer.len());
    let room = output.spare_capacity_mut();
    if !complete || room.len() < len {
        return Err(-1);
    }
    // One thread: it works on this thread alone and shares no state with other calls.
    // SAFETY: `buffer` is readable for as many bytes as its header claims, checked above, and c-blosc
    // reads no further: it compares every offset and size of a part with the header's. `room` is
    // writable for `len` bytes, it writes no further, and the two do not overlap. Only plain integers
    // are passed besides, and nothing is kept after the call.
    let written = unsafe { blosc_decompress_ctx(buffer.as_ptr().cast(), room.as_mut_ptr().cast(), len, 1) };
    if usize::try_from(written) != Ok(len) {
        return Err(written);
    }
    // SAFETY: c-blosc returns the number of bytes it decoded, part by part from the start of `room`;
    // it is `len`, so that all of them have been written. The capacity was checked above.
    unsafe { output.set_len(output.len() + len) };
    Ok(())
}

/// Decodes a block of LZ4 to all of `target`.
///
/// # Errors
/// What LZ4 returns when that is not the length of `target`.
pub(super) fn lz4(block: &[u8], target: &mut [u8]) -> Result<(), c_int> {
    let (stored, len) = (c_int::try_from(block.len()).or(Err(-1))?, c_int::try_from(target.len()).or(Err(-1))?);
    // SAFETY: `block` is readable and `target` writable for the lengths given, which LZ4 never exceeds whatever the
    // block says, and they do not overlap. Nothing is kept after the call.
    let written = unsafe { LZ4_decompress_safe(block.as_ptr().cast(), target.as_mut_ptr().cast(), stored, len) };
    if written == len { Ok(()) } else { Err(written) }
}

/// Bytes that encoding adds at most.
pub(super) const OVERHEAD_BYTES: u64 = BLOSC_MAX_OVERHEAD as u64;

/// Appends `data` as one buffer to `output`; with `block_size` 0 blosc chooses one.
///
/// # Errors
/// What c-blosc returns when that is no length, for example for more than 2 GiB.
pub(super) fn compress_into(
    data: &[u8],
    name: &CStr,
    level: u8,
    shuffle: u8,
    item_size: usize,
    block_size: usize,
    output: &mut Vec<u8>,
) -> Result<(), c_int> {
    let most = data.len().checked_add(BLOSC_MAX_OVERHEAD as usize).ok_or(-1)?;
    output.try_reserve_exact(most).or(Err(-1))?;
    let room = output.spare_capacity_mut();
    // SAFETY: `data` is readable and `room` writable for the lengths given, they do not overlap, and the name ends
    // with a zero. One thread: no state is shared with other calls, and nothing is kept after this one.
    let written = unsafe {
        blosc_compress_ctx(
            c_int::from(level),
            c_int::from(shuffle),
            item_size,
            data.len(),
            data.as_ptr().cast(),
            room.as_mut_ptr().cast(),
            room.len(),
            name.as_ptr(),
            block_size,
            1,
        )
    };
    let len = usize::try_from(written).ok().filter(|len| (1..=room.len()).contains(len)).ok_or(written)?;
    // SAFETY: c-blosc returns the number of bytes it wrote from the start of `room`, compared with its length above.
    unsafe { output.set_len(output.len() + len) };
    Ok(())
}

/// Encodes for tests.
#[cfg(test)]
pub(super) fn compress(data: &[u8], name: &CStr, shuffle: u8, item_size: usize, block_size: usize) -> Vec<u8> {
    let mut output = Vec::new();
    compress_into(data, name, 5, shuffle, item_size, block_size, &mut output).unwrap();
    output
}
