//! How much memory bytes take, in shares of budgets and in caches.

use bytes::Bytes;

use crate::allocator;
use crate::fair::Share;

/// Permits are counted in units of this many bytes.
pub(super) const UNIT_BYTES: u64 = 1024;

pub(super) fn units_of(len: usize) -> usize {
    usize::try_from(units(len as u64)).unwrap_or(usize::MAX)
}

pub(super) fn bytes_of(share: &Share) -> u64 {
    share.units() as u64 * UNIT_BYTES
}

/// Units of a share of `bytes`: buffers that have pages of their own count as whole pages.
pub(super) fn units(bytes: u64) -> u64 {
    if bytes > UNIT_BYTES && bytes < PAGED_BYTES {
        bytes.next_multiple_of(allocator::PAGE as u64) / UNIT_BYTES
    } else {
        bytes.div_ceil(UNIT_BYTES)
    }
}

/// In a cache, buffers of fewer bytes than this and more than a unit have pages of their own.
const PAGED_BYTES: u64 = allocator::LARGE_BYTES as u64;

/// Returns true if [`cached`] copies these bytes although they fill their buffer.
pub(super) fn is_copied(bytes: &[u8]) -> bool {
    let len = bytes.len() as u64;
    len > UNIT_BYTES && len < PAGED_BYTES && !allocator::is_paged(bytes.len())
}

/// The C library's header of a large buffer and the header of a stored block, rounded up to a page.
const BESIDE_LARGE_BYTES: u64 = 4 << 10;

/// Prepares `bytes` for a cache: fewer than [`PAGED_BYTES`] are copied into pages of their own, unless their buffer has such pages
/// already. `fill_their_buffer` tells that the buffer holds nothing else.
pub(super) fn cached(bytes: Bytes, fill_their_buffer: bool) -> Bytes {
    let len = bytes.len() as u64;
    let is_paged = len >= PAGED_BYTES || fill_their_buffer && allocator::is_paged(bytes.len());
    if len <= UNIT_BYTES || is_paged {
        return bytes;
    }
    allocator::Paged::copy_of(&bytes).map_or(bytes, Bytes::from_owner)
}

/// The memory that a share of `bytes` stands for: what a cache must count, so that what it holds never
/// exceeds its part of a budget.
pub(super) fn rounded(bytes: usize) -> usize {
    let beside = if bytes as u64 >= PAGED_BYTES { BESIDE_LARGE_BYTES } else { 0 };
    usize::try_from(units(bytes as u64) * UNIT_BYTES + beside).unwrap_or(usize::MAX)
}
