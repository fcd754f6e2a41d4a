//! Memory footprint of bytes, in units of budgets and in caches.

use bytes::Bytes;

use crate::allocator;
use crate::fair_queue::FairPermit;

/// Size of a permit's unit, in bytes.
pub(crate) const UNIT_BYTES: u64 = 1024;

pub(crate) fn units_of(len: usize) -> usize {
    usize::try_from(units(len as u64)).unwrap_or(usize::MAX)
}

pub(crate) fn bytes_of(share: &FairPermit) -> u64 {
    share.units() as u64 * UNIT_BYTES
}

/// Returns the units of a permit for `bytes`. Buffers that have pages of their own count as whole pages.
pub(crate) fn units(bytes: u64) -> u64 {
    if bytes > UNIT_BYTES && bytes < PAGED_LIMIT_BYTES {
        bytes.next_multiple_of(allocator::PAGE_BYTES as u64) / UNIT_BYTES
    } else {
        bytes.div_ceil(UNIT_BYTES)
    }
}

/// In a cache, buffers smaller than this and larger than a unit have pages of their own.
const PAGED_LIMIT_BYTES: u64 = allocator::LARGE_BYTES as u64;

/// Returns true if [`compact_for_cache`] copies these bytes although they fill their buffer.
pub(crate) fn needs_copy(bytes: &[u8]) -> bool {
    let len = bytes.len() as u64;
    len > UNIT_BYTES && len < PAGED_LIMIT_BYTES && !allocator::is_paged(bytes.len())
}

/// Size of the C library's header of a large buffer and of a stored block's header, rounded up to a page.
const LARGE_BUFFER_OVERHEAD_BYTES: u64 = 4 << 10;

/// Prepares `bytes` for a cache: fewer than [`PAGED_LIMIT_BYTES`] are copied into pages of their own, unless their
/// buffer already has such pages. `fills_buffer` states that the buffer holds nothing else.
pub(crate) fn compact_for_cache(bytes: Bytes, fills_buffer: bool) -> Bytes {
    let len = bytes.len() as u64;
    let is_paged = len >= PAGED_LIMIT_BYTES || fills_buffer && allocator::is_paged(bytes.len());
    if len <= UNIT_BYTES || is_paged {
        return bytes;
    }
    allocator::PagedBytes::copy_of(&bytes).map_or(bytes, Bytes::from_owner)
}

/// Returns the memory that a permit for `bytes` covers. A cache must count this, so that its contents never exceed its
/// part of a budget.
pub(crate) fn footprint_bytes(bytes: usize) -> usize {
    let overhead_bytes = if bytes as u64 >= PAGED_LIMIT_BYTES { LARGE_BUFFER_OVERHEAD_BYTES } else { 0 };
    usize::try_from(units(bytes as u64) * UNIT_BYTES + overhead_bytes).unwrap_or(usize::MAX)
}
