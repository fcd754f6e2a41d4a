//! Decides how a slice is sent: whole, in bands, or not at all. Arithmetic only.

use super::bands::{Bands, ElementWidths};
use super::slice_cost::{CostAssumptions, SliceCost};
use n5_format::{BlockGrid, Region};

/// Approximate size of the blocks that the first part of a stream touches, in bytes. It lets the first byte come as
/// soon as that of a small slice: starting with a whole layer of blocks, a slice of 20 GiB took 2.4 s.
const FIRST_PART_BYTES: u64 = 1 << 20;

/// Limits that decide how a slice is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SliceLimits {
    /// Largest slice in bytes.
    pub(crate) max_slice_bytes: u64,
    /// Maximum number of bytes assembled at once.
    pub(crate) budget_bytes: u64,
    /// Largest response that is sent whole, in bytes.
    pub(crate) max_whole_bytes: u64,
    /// Bytes that a whole response takes besides its elements, if it can be sent in bands instead.
    pub(crate) extra_bytes: u64,
    /// Largest band in bytes. A stream leaves some of the budget to others.
    pub(crate) max_band_bytes: u64,
    /// Maximum ratio of decoded bytes to response bytes.
    pub(crate) decode_factor: u64,
    /// The response is sent in bands even if it fits the budget.
    pub(crate) must_stream: bool,
}

/// Reason why a slice is refused before anything is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SliceRefusal {
    /// The response is too large.
    TooLarge {
        /// Its size in bytes; `None` beyond 2^64.
        bytes: Option<u64>,
        /// Limit in bytes.
        limit_bytes: u64,
    },
    /// Far more bytes would have to be decoded than returned.
    TooCostly {
        /// Bytes to decode.
        decoded_bytes: u128,
        /// Size of the response in bytes.
        bytes: u64,
        /// Maximum number of bytes that may be decoded for it.
        limit_bytes: u128,
        /// Maximum number of existing blocks for which the slice is accepted, if each of them is as large as
        /// `blockSize` allows.
        affordable_blocks: u128,
    },
}

/// Returns the size of a response in bytes, and its bands if it exceeds the budget.
pub(crate) fn plan(
    region: &Region,
    grid: &BlockGrid,
    widths: ElementWidths,
    limits: SliceLimits,
    assumptions: CostAssumptions,
) -> Result<(u64, Option<Bands>), SliceRefusal> {
    let limit_bytes = limits.max_slice_bytes;
    let bytes = region.elements().and_then(|elements| elements.checked_mul(widths.sent));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= limit_bytes) else {
        return Err(SliceRefusal::TooLarge { bytes, limit_bytes });
    };
    let held_bytes = region.elements().unwrap_or(u64::MAX).saturating_mul(widths.in_memory);
    let bands = if limits.must_stream || held_bytes.saturating_add(limits.extra_bytes) > limits.max_whole_bytes {
        // `None` means that not even one element fits.
        let bands = Bands::new(region, grid, widths, limits.max_band_bytes, FIRST_PART_BYTES);
        Some(bands.ok_or(SliceRefusal::TooLarge { bytes: Some(bytes), limit_bytes })?)
    } else {
        None
    };
    let cost = SliceCost::new(region, grid, widths.stored, bands.as_ref(), assumptions);
    let factor = u128::from(limits.decode_factor.max(1));
    let limit_bytes = factor.saturating_mul(u128::from(bytes.max(limits.budget_bytes)));
    let decoded_bytes = cost.total_bytes();
    // Where bands cut layers of blocks that may all exist, no block may be decoded more than `factor` times.
    let is_dense = assumptions.existing_blocks.is_none() && !assumptions.uses_partial_reads;
    let is_decoded_too_often = is_dense && u128::from(cost.decodes_per_block) > factor;
    if decoded_bytes > limit_bytes || is_decoded_too_often {
        let decoded_bytes = decoded_bytes.max(if is_decoded_too_often { limit_bytes.saturating_add(1) } else { 0 });
        let affordable_blocks = cost.affordable_blocks(limit_bytes);
        return Err(SliceRefusal::TooCostly { decoded_bytes, bytes, limit_bytes, affordable_blocks });
    }
    let max_decodes = limit_bytes.saturating_mul(u128::from(cost.decodes_per_block)) / decoded_bytes.max(1);
    let decode_limit = if is_dense { limits.decode_factor } else { u64::MAX };
    let max_decodes = u64::try_from(max_decodes).unwrap_or(u64::MAX).min(decode_limit);
    Ok((bytes, bands.map(|bands| bands.with_max_decodes(max_decodes, grid))))
}
