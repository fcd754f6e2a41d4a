//! Bindings to c-blosc 1 and to the LZ4 that is linked with it. These are the only foreign calls of this crate.
#![expect(unsafe_code, reason = "no maintained safe crate decodes c-blosc buffers")]

use std::ffi::{CStr, c_int};

use blosc_src::{
    BLOSC_MAX_BLOCKSIZE, BLOSC_MAX_BUFFERSIZE, BLOSC_MAX_OVERHEAD, blosc_compress_ctx, blosc_decompress_ctx,
};
use lz4_sys::LZ4_decompress_safe;

/// Maximum number of bytes that a buffer can decode to.
pub(super) const MAX_DECODED_BYTES: u32 = BLOSC_MAX_BUFFERSIZE;
/// Maximum size of a blosc block within a buffer, in bytes.
pub(super) const MAX_BLOCK_BYTES: u32 = BLOSC_MAX_BLOCKSIZE;

/// Decodes `buffer`, whose header and parts have been checked, and appends `len` bytes to `output`. `output` must be
/// empty and have capacity for them.
///
/// # Errors
/// Returns the value that c-blosc returned if it is not `len`; -1 if the buffer is incomplete or `output` lacks the
/// capacity.
pub(super) fn decompress(buffer: &[u8], output: &mut Vec<u8>, len: usize) -> Result<(), c_int> {
    // c-blosc trusts the length in the header and does not know the length of `buffer`, so the two are compared here.
    let claimed = buffer.get(12..16).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    let is_complete =
        claimed.and_then(|claimed| usize::try_from(claimed).ok()).is_some_and(|bytes| bytes <= buffer.len());
    let spare = output.spare_capacity_mut();
    if !is_complete || spare.len() < len {
        return Err(-1);
    }
    // One thread: c-blosc works on the calling thread alone and shares no state with other calls.
    // SAFETY: `buffer` is readable for as many bytes as its header claims, which is checked above. c-blosc reads no
    // further, because it compares every offset and size of a part with the header's. `spare` is writable for `len`
    // bytes, c-blosc writes no further, and the two do not overlap. All other arguments are plain integers. Nothing is
    // kept after the call.
    let written = unsafe { blosc_decompress_ctx(buffer.as_ptr().cast(), spare.as_mut_ptr().cast(), len, 1) };
    if usize::try_from(written) != Ok(len) {
        return Err(written);
    }
    // SAFETY: c-blosc has filled `spare` from its start and returned the number of these bytes, which is `len`. The
    // capacity was checked above.
    unsafe { output.set_len(output.len() + len) };
    Ok(())
}

/// Decodes an LZ4 block to fill `target`.
///
/// # Errors
/// Returns the value that LZ4 returned if it is not the length of `target`; -1 if a length does not fit into a `c_int`.
pub(super) fn lz4_decompress(block: &[u8], target: &mut [u8]) -> Result<(), c_int> {
    let stored = c_int::try_from(block.len()).or(Err(-1))?;
    let len = c_int::try_from(target.len()).or(Err(-1))?;
    // SAFETY: `block` is readable and `target` writable for the given lengths, and they do not overlap. LZ4 never
    // exceeds these lengths, regardless of the block's content. Nothing is kept after the call.
    let written = unsafe { LZ4_decompress_safe(block.as_ptr().cast(), target.as_mut_ptr().cast(), stored, len) };
    if written == len { Ok(()) } else { Err(written) }
}

/// Maximum number of bytes that a buffer has in addition to its content.
pub(super) const OVERHEAD_BYTES: u64 = BLOSC_MAX_OVERHEAD as u64;

/// Encodes `data` as one buffer and appends it to `output`. If `block_size` is 0, c-blosc chooses the size.
///
/// # Errors
/// Returns the value that c-blosc returned if it is not a valid length, for example for more than 2 GiB of data.
pub(super) fn compress_into(
    data: &[u8],
    name: &CStr,
    level: u8,
    shuffle: u8,
    item_size: usize,
    block_size: usize,
    output: &mut Vec<u8>,
) -> Result<(), c_int> {
    let max_len = data.len().checked_add(BLOSC_MAX_OVERHEAD as usize).ok_or(-1)?;
    output.try_reserve_exact(max_len).or(Err(-1))?;
    let spare = output.spare_capacity_mut();
    // SAFETY: `data` is readable and `spare` writable for the given lengths, they do not overlap, and the name ends
    // with a zero byte. With one thread no state is shared with other calls. Nothing is kept after this call.
    let written = unsafe {
        blosc_compress_ctx(
            c_int::from(level),
            c_int::from(shuffle),
            item_size,
            data.len(),
            data.as_ptr().cast(),
            spare.as_mut_ptr().cast(),
            spare.len(),
            name.as_ptr(),
            block_size,
            1,
        )
    };
    let len = usize::try_from(written).ok().filter(|len| (1..=spare.len()).contains(len)).ok_or(written)?;
    // SAFETY: c-blosc returns the number of bytes it wrote from the start of `spare`, which is checked above against
    // its length.
    unsafe { output.set_len(output.len() + len) };
    Ok(())
}

/// Encodes `data` at level 5, for tests.
#[cfg(test)]
pub(super) fn compress(data: &[u8], name: &CStr, shuffle: u8, item_size: usize, block_size: usize) -> Vec<u8> {
    let mut output = Vec::new();
    compress_into(data, name, 5, shuffle, item_size, block_size, &mut output).unwrap();
    output
}
