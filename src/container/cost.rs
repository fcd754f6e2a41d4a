//! The cost of a slice in bytes decoded or read, computed before any block is read. Arithmetic only.

use super::bands::Bands;
use crate::n5::{BlockGrid, Coords, RawParts, Region};

/// Least cost of a block that is touched, in bytes decoded: the time of its look-up.
pub(super) const BLOCK_COST_BYTES: u128 = 4 << 10;

/// The blocks whose decoding a plan counts. By default: every block that the region touches, each decoded whole.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counted {
    /// How many blocks are touched, where that is not the number for this very region.
    pub(super) touched: Option<u128>,
    /// How many of them may exist; `None` for all. The others cost a look-up each.
    pub(super) existing: Option<u128>,
    /// The blocks are stored uncompressed and read only where the region has samples.
    pub(super) in_parts: bool,
}

/// The cost of a slice's blocks when the cache keeps none of them.
pub(super) struct Cost {
    /// Blocks touched.
    touched: u128,
    /// Those of them that may exist.
    existing: u128,
    /// Bytes that are decoded each time that a block is needed, or read where that is all.
    block_bytes: u128,
    /// How often a block is needed: once, or by several bands.
    pub(super) times: u64,
}

impl Cost {
    pub(super) fn new(region: &Region, grid: &BlockGrid, width: u64, bands: Option<&Bands>, counted: Counted) -> Self {
        let touched = counted.touched.unwrap_or_else(|| grid.covering(region).total());
        let size: Coords = grid.block_size().iter().zip(grid.dimensions()).map(|(b, d)| *b.min(d)).collect();
        let block_bytes = size.iter().fold(u128::from(width), |bytes, n| bytes.saturating_mul(u128::from(*n)));
        let part_bytes = |size: &Coords| {
            // Of one band, at most.
            let counts = (0..region.rank()).map(|axis| {
                let all = samples_in_block(region, grid, axis);
                bands.map_or(all, |bands| bands.samples_at_once(axis, all))
            });
            RawParts::of_counts(size, width, &counts.collect(), region.step()).cost_bytes()
        };
        let block_bytes = if counted.in_parts { block_bytes.min(part_bytes(&size).into()) } else { block_bytes };
        Self {
            touched,
            existing: counted.existing.unwrap_or(touched).min(touched),
            block_bytes: block_bytes.max(BLOCK_COST_BYTES),
            times: bands.map_or(1, |bands| bands.decodes_per_block(grid)),
        }
    }

    pub(super) fn total_bytes(&self) -> u128 {
        let holes = self.touched.saturating_sub(self.existing).saturating_mul(BLOCK_COST_BYTES);
        let blocks = self.existing.saturating_mul(self.block_bytes);
        holes.saturating_add(blocks).saturating_mul(u128::from(self.times))
    }

    pub(super) fn affordable_blocks(&self, limit_bytes: u128) -> u128 {
        let once =
            (limit_bytes / u128::from(self.times.max(1))).saturating_sub(self.touched.saturating_mul(BLOCK_COST_BYTES));
        once / self.block_bytes.saturating_sub(BLOCK_COST_BYTES).max(1)
    }
}

/// Samples that a region takes of a block along `axis`, at most.
fn samples_in_block(region: &Region, grid: &BlockGrid, axis: usize) -> u64 {
    let size = grid.block_size()[axis].min(grid.dimensions()[axis]);
    size.div_ceil(region.step()[axis]).min(region.shape()[axis]).max(1)
}

/// How many blocks a region of this shape touches at most, wherever it lies in the grid.
pub(super) fn most_touched(region: &Region, grid: &BlockGrid) -> u128 {
    let blocks = grid.shape();
    (0..region.rank()).fold(1, |product: u128, axis| {
        let (step, block) = (u128::from(region.step()[axis]), u128::from(grid.block_size()[axis]));
        let samples = u128::from(region.shape()[axis]);
        let last = samples.saturating_sub(1).saturating_mul(step);
        let touched = last.saturating_add(block - 1) / block + 1;
        product.saturating_mul(touched.min(samples).min(u128::from(blocks[axis])))
    })
}
