//! The cost of a slice in bytes decoded or read, computed before any block is read. Arithmetic only.

use super::bands::Bands;
use n5_format::{BlockGrid, Coords, RangeReads, Region};

/// Minimum cost of a block that is touched, in bytes decoded: the time of its lookup.
pub(crate) const BLOCK_COST_BYTES: u128 = 4 << 10;

/// Assumptions about the blocks to decode. By default, every block that the region touches is decoded whole.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CostAssumptions {
    /// Number of touched blocks, if it differs from the number for this very region.
    pub(crate) touched_blocks: Option<u128>,
    /// Number of touched blocks that may exist; `None` for all. Each of the others costs a lookup.
    pub(crate) existing_blocks: Option<u128>,
    /// The blocks are stored uncompressed and read only where the region has samples.
    pub(crate) uses_partial_reads: bool,
}

/// The cost of a slice's blocks if the cache keeps none of them.
pub(crate) struct SliceCost {
    /// Number of touched blocks.
    touched_blocks: u128,
    /// Number of touched blocks that may exist.
    existing_blocks: u128,
    /// Bytes that are decoded each time a block is needed, or only read for a partial read.
    block_bytes: u128,
    /// Number of times a block is needed: once, or by several bands.
    pub(crate) decodes_per_block: u64,
}

impl SliceCost {
    pub(crate) fn new(
        region: &Region,
        grid: &BlockGrid,
        width: u64,
        bands: Option<&Bands>,
        assumptions: CostAssumptions,
    ) -> Self {
        let touched_blocks = assumptions.touched_blocks.unwrap_or_else(|| grid.covering(region).total());
        let size: Coords = grid.block_size().iter().zip(grid.dimensions()).map(|(b, d)| *b.min(d)).collect();
        let block_bytes = size.iter().fold(u128::from(width), |bytes, n| bytes.saturating_mul(u128::from(*n)));
        let part_bytes = |size: &Coords| {
            // Maximum for one band.
            let counts = (0..region.rank()).map(|axis| {
                let samples = samples_in_block(region, grid, axis);
                bands.map_or(samples, |bands| bands.samples_per_band(axis, samples))
            });
            RangeReads::from_counts(size, width, &counts.collect(), region.step()).cost_bytes()
        };
        let block_bytes =
            if assumptions.uses_partial_reads { block_bytes.min(part_bytes(&size).into()) } else { block_bytes };
        Self {
            touched_blocks,
            existing_blocks: assumptions.existing_blocks.unwrap_or(touched_blocks).min(touched_blocks),
            block_bytes: block_bytes.max(BLOCK_COST_BYTES),
            decodes_per_block: bands.map_or(1, |bands| bands.decodes_per_block(grid)),
        }
    }

    pub(crate) fn total_bytes(&self) -> u128 {
        let missing_cost_bytes =
            self.touched_blocks.saturating_sub(self.existing_blocks).saturating_mul(BLOCK_COST_BYTES);
        let blocks = self.existing_blocks.saturating_mul(self.block_bytes);
        missing_cost_bytes.saturating_add(blocks).saturating_mul(u128::from(self.decodes_per_block))
    }

    pub(crate) fn affordable_blocks(&self, limit_bytes: u128) -> u128 {
        let bytes_per_decode = (limit_bytes / u128::from(self.decodes_per_block.max(1)))
            .saturating_sub(self.touched_blocks.saturating_mul(BLOCK_COST_BYTES));
        bytes_per_decode / self.block_bytes.saturating_sub(BLOCK_COST_BYTES).max(1)
    }
}

/// Returns the maximum number of samples that a region takes of a block along `axis`.
fn samples_in_block(region: &Region, grid: &BlockGrid, axis: usize) -> u64 {
    let size = grid.block_size()[axis].min(grid.dimensions()[axis]);
    size.div_ceil(region.step()[axis]).min(region.shape()[axis]).max(1)
}

/// Returns the maximum number of blocks that a region of this shape touches at any position in the grid.
pub(crate) fn max_touched_blocks(region: &Region, grid: &BlockGrid) -> u128 {
    let blocks = grid.shape();
    (0..region.rank()).fold(1, |product: u128, axis| {
        let (step, block) = (u128::from(region.step()[axis]), u128::from(grid.block_size()[axis]));
        let samples = u128::from(region.shape()[axis]);
        let last = samples.saturating_sub(1).saturating_mul(step);
        let touched_blocks = last.saturating_add(block - 1) / block + 1;
        product.saturating_mul(touched_blocks.min(samples).min(u128::from(blocks[axis])))
    })
}
