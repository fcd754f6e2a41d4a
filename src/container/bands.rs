//! How a slice leaves: whole, in bands, or not at all. Arithmetic only.

use crate::n5::{BlockGrid, Coords, Region};

/// Bands of thin layers are joined up to this many bytes.
const JOINED_BYTES: u64 = 16 << 20;

/// Bounds that decide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Largest slice, in bytes.
    pub(super) slice_bytes: u64,
    /// Most bytes assembled at once.
    pub(super) budget_bytes: u64,
    /// How many times the bytes of an answer may be decoded for it.
    pub(super) decode_factor: u64,
}

/// Why a slice is refused before anything is read, with the shape of a piece that is not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The answer is too large.
    TooLarge {
        /// Its bytes; `None` beyond 2^64.
        bytes: Option<u64>,
        /// The limit.
        limit_bytes: u64,
        /// Shape of a piece that is cheap, in samples.
        piece: Coords,
    },
    /// Far more would have to be decoded than returned.
    TooCostly {
        /// Bytes to decode.
        decoded_bytes: u128,
        /// Bytes of the answer.
        bytes: u64,
        /// Bytes that may be decoded for it.
        limit_bytes: u128,
        /// Shape of a piece that is cheap, in samples.
        piece: Coords,
    },
}

/// The parts of a region in the order of its elements: each is assembled and sent as one.
///
/// A band is one whole layer of blocks (several, where layers are thin) or, where a layer exceeds the
/// budget, as many planes of it as fit.
#[derive(Debug, Clone)]
pub struct Bands {
    region: Region,
    block: u64,
    /// The axis that is cut. Slower axes advance one sample a band.
    axis: usize,
    /// Bytes of one plane: one sample of `axis`, all of the faster axes.
    plane_bytes: u64,
    budget_bytes: u64,
    /// Samples of `axis` and the slower axes that are done.
    cursor: Coords,
    done: bool,
}

/// Bytes that an answer has, and the bands that it is sent in where it exceeds the budget.
pub(super) fn plan(
    region: &Region,
    grid: &BlockGrid,
    width: usize,
    bounds: Bounds,
) -> Result<(u64, Option<Bands>), Refusal> {
    let width = width as u64;
    let limit_bytes = bounds.slice_bytes;
    let bytes = region.elements().and_then(|elements| elements.checked_mul(width));
    let piece = || piece(region, grid, width, bounds);
    let Some(bytes) = bytes.filter(|bytes| *bytes <= limit_bytes) else {
        return Err(Refusal::TooLarge { bytes, limit_bytes, piece: piece() });
    };
    let bands = (bytes > bounds.budget_bytes).then(|| Bands::new(region, grid, width, bounds.budget_bytes));
    let (bands, times) = match bands {
        None => (None, 1),
        // Not even one run along the first axis fits.
        Some(None) => return Err(Refusal::TooLarge { bytes: Some(bytes), limit_bytes, piece: piece() }),
        Some(Some(bands)) => {
            let times = bands.decodes_per_block(grid);
            (Some(bands), times)
        }
    };
    let block = grid.block_size().iter().zip(grid.dimensions()).map(|(b, d)| u128::from(*b.min(d)));
    let block_bytes = block.fold(u128::from(width), u128::saturating_mul);
    let touched = grid.covering(region).total().saturating_mul(block_bytes);
    let decoded_bytes = touched.saturating_mul(u128::from(times));
    let factor = u128::from(bounds.decode_factor);
    let limit_bytes = factor.saturating_mul(u128::from(bytes.max(bounds.budget_bytes)));
    if decoded_bytes > limit_bytes || times > bounds.decode_factor.max(1) {
        return Err(Refusal::TooCostly { decoded_bytes, bytes, limit_bytes, piece: piece() });
    }
    Ok((bytes, bands))
}

impl Bands {
    fn new(region: &Region, grid: &BlockGrid, width: u64, budget_bytes: u64) -> Option<Self> {
        let mut plane_bytes = width;
        let mut cut = None;
        for axis in 0..region.rank() {
            if plane_bytes > budget_bytes {
                break;
            }
            cut = Some((axis, plane_bytes));
            plane_bytes = plane_bytes.saturating_mul(region.shape()[axis]);
        }
        let (axis, plane_bytes) = cut.filter(|(_, bytes)| *bytes <= budget_bytes)?;
        Some(Self {
            block: grid.block_size()[axis],
            cursor: region.shape()[axis..].iter().map(|_| 0).collect(),
            region: region.clone(),
            axis,
            plane_bytes,
            budget_bytes,
            done: false,
        })
    }

    /// The axis that is cut.
    pub fn axis(&self) -> usize {
        self.axis
    }

    /// How often a block is decoded at most, when the cache keeps none.
    fn decodes_per_block(&self, grid: &BlockGrid) -> u64 {
        let samples = |axis: usize| {
            let in_block = grid.block_size()[axis].div_ceil(self.region.step()[axis]);
            in_block.min(self.region.shape()[axis]).max(1)
        };
        let planes = (self.budget_bytes / self.plane_bytes.max(1)).max(1);
        let slower = (self.axis + 1..self.region.rank()).map(samples).fold(1, u64::saturating_mul);
        slower.saturating_mul(samples(self.axis).div_ceil(planes))
    }

    /// Number of samples along the cut axis that the band from sample `from` takes.
    fn depth(&self, from: u64) -> u64 {
        let rest = self.region.shape()[self.axis].saturating_sub(from);
        let fitting = (self.budget_bytes / self.plane_bytes.max(1)).max(1);
        let joined = JOINED_BYTES.min(self.budget_bytes) / self.plane_bytes.max(1);
        let mut depth = self.rest_of_layer(from);
        if depth > fitting {
            // Equal parts: the last one of a layer is not a sliver.
            return depth.div_ceil(depth.div_ceil(fitting)).min(rest);
        }
        while depth < rest {
            let longer = depth.saturating_add(self.rest_of_layer(from.saturating_add(depth)));
            if longer > joined {
                break;
            }
            depth = longer;
        }
        depth.min(rest)
    }

    /// Number of samples from sample `from` to the end of the blocks that hold it.
    fn rest_of_layer(&self, from: u64) -> u64 {
        let (start, step) = (i128::from(self.region.start()[self.axis]), i128::from(self.region.step()[self.axis]));
        let block = i128::from(self.block);
        let at = start.saturating_add(i128::from(from).saturating_mul(step));
        let end = at.div_euclid(block).saturating_add(1).saturating_mul(block);
        u64::try_from(end.saturating_sub(at).saturating_add(step - 1) / step.max(1)).unwrap_or(u64::MAX).max(1)
    }
}

impl Iterator for Bands {
    type Item = Region;

    fn next(&mut self) -> Option<Region> {
        if self.done || self.region.elements() == Some(0) {
            return None;
        }
        let from = self.cursor[0];
        let depth = self.depth(from);
        let mut band = self.region.part(self.axis, from, depth);
        for (n, k) in self.cursor.iter().enumerate().skip(1) {
            band = band.part(self.axis + n, *k, 1);
        }
        self.cursor[0] = from.saturating_add(depth);
        let mut axis = 0;
        while self.cursor[axis] >= self.region.shape()[self.axis + axis] {
            self.cursor[axis] = 0;
            axis += 1;
            if axis == self.cursor.len() {
                self.done = true;
                break;
            }
            self.cursor[axis] += 1;
        }
        Some(band)
    }
}

/// Shape of a part of `region` that fits the budget and touches few blocks in vain: whole blocks along
/// slow axes, cut down from the slowest on.
fn piece(region: &Region, grid: &BlockGrid, width: u64, bounds: Bounds) -> Coords {
    let budget = u128::from(bounds.budget_bytes.min(bounds.slice_bytes));
    let mut piece = region.shape().clone();
    let bytes = |shape: &Coords| shape.iter().fold(u128::from(width), |n, x| n.saturating_mul(u128::from(*x)));
    for axis in (0..region.rank()).rev() {
        let layer = grid.block_size()[axis].div_ceil(region.step()[axis]).max(1);
        let others = bytes(&piece) / u128::from(piece[axis].max(1));
        if bytes(&piece) <= budget {
            break;
        }
        let fitting = u64::try_from(budget / others.max(1)).unwrap_or(u64::MAX);
        piece[axis] = (fitting / layer).max(1).saturating_mul(layer).min(piece[axis]);
    }
    // Blocks larger than the budget: fewer planes than a block has.
    for axis in (0..region.rank()).rev() {
        let others = bytes(&piece) / u128::from(piece[axis].max(1));
        if bytes(&piece) > budget {
            piece[axis] = u64::try_from(budget / others.max(1)).unwrap_or(u64::MAX).clamp(1, piece[axis].max(1));
        }
    }
    piece
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smallvec::smallvec;

    use super::*;

    fn bounds(budget_bytes: u64) -> Bounds {
        Bounds { slice_bytes: 1 << 40, budget_bytes, decode_factor: 16 }
    }

    fn grid(dimensions: &[u64], block: &[u64]) -> BlockGrid {
        BlockGrid::new(dimensions.into(), block.into()).unwrap()
    }

    #[test]
    fn an_answer_within_the_budget_leaves_whole() {
        let grid = grid(&[100, 100], &[10, 10]);
        let (bytes, bands) = plan(&Region::whole(grid.dimensions()), &grid, 2, bounds(20_000)).unwrap();
        assert_eq!(bytes, 20_000);
        assert!(bands.is_none());
    }

    #[test]
    fn a_layer_that_fits_is_a_band() {
        let grid = grid(&[1024, 1024, 200], &[64, 64, 64]);
        let layer = 1024 * 1024 * 64;
        let (_, bands) = plan(&Region::whole(grid.dimensions()), &grid, 1, bounds(layer)).unwrap();
        let depths: Vec<u64> = bands.unwrap().map(|band| band.shape()[2]).collect();
        assert_eq!(depths, [64, 64, 64, 8]);
    }

    #[test]
    fn a_layer_that_does_not_fit_is_cut_into_equal_parts() {
        let grid = grid(&[1024, 1024, 64], &[64, 64, 64]);
        let (_, bands) = plan(&Region::whole(grid.dimensions()), &grid, 1, bounds(20 << 20)).unwrap();
        let depths: Vec<u64> = bands.unwrap().map(|band| band.shape()[2]).collect();
        assert_eq!(depths, [16, 16, 16, 16]);
    }

    #[test]
    fn thin_layers_are_joined() {
        let grid = grid(&[1024, 1024, 100], &[64, 64, 1]);
        let (_, bands) = plan(&Region::whole(grid.dimensions()), &grid, 1, bounds(64 << 20)).unwrap();
        assert_eq!(bands.unwrap().next().unwrap().shape()[2], 16);
    }

    #[test]
    fn what_must_be_decoded_too_often_is_refused_with_a_piece_that_is_not() {
        let grid = grid(&[1 << 14, 1 << 14, 64, 64], &[64, 64, 64, 64]);
        let region = Region::whole(grid.dimensions());
        let Err(Refusal::TooCostly { piece, .. }) = plan(&region, &grid, 1, bounds(128 << 20)) else {
            panic!("accepted");
        };
        let part = Region::new(smallvec![0, 0, 0, 0], piece, smallvec![1, 1, 1, 1]).unwrap();
        assert!(plan(&part, &grid, 1, bounds(128 << 20)).is_ok());
    }

    #[test]
    fn a_terabyte_is_refused_with_a_piece_that_is_not() {
        let grid = grid(&[1 << 14, 1 << 14, 1 << 13], &[64, 64, 64]);
        let tight = Bounds { slice_bytes: 1 << 36, ..bounds(128 << 20) };
        let Err(Refusal::TooLarge { bytes, piece, .. }) = plan(&Region::whole(grid.dimensions()), &grid, 1, tight)
        else {
            panic!("accepted");
        };
        assert_eq!(bytes, Some(1 << 41));
        let part = Region::new(smallvec![0, 0, 0], piece.clone(), smallvec![1, 1, 1]).unwrap();
        assert!(plan(&part, &grid, 1, tight).is_ok(), "{piece:?}");
    }

    #[test]
    fn one_element_is_never_too_costly() {
        let grid = grid(&[4096, 4096, 4096], &[256, 256, 256]);
        let one = Region::new(smallvec![7, 7, 7], smallvec![1, 1, 1], smallvec![1, 1, 1]).unwrap();
        assert!(plan(&one, &grid, 8, bounds(128 << 20)).is_ok());
    }

    proptest! {
        #[test]
        fn bands_are_the_region_in_order_and_fit_the_budget(
            axes in prop::collection::vec((0u64..12, 1u64..6, -3i64..5, 1u64..9, 1u64..4), 1..4),
            budget in 12u64..200,
        ) {
            let grid = BlockGrid::new(
                axes.iter().map(|a| a.0).collect(),
                axes.iter().map(|a| a.1).collect(),
            ).unwrap();
            let region = Region::new(
                axes.iter().map(|a| a.2).collect(),
                axes.iter().map(|a| a.3).collect(),
                axes.iter().map(|a| a.4).collect(),
            ).unwrap();
            let strides: Vec<u64> = region.shape().iter().scan(1, |n, s| { let at = *n; *n *= s; Some(at) }).collect();
            let mut next = 0;
            if let Some(bands) = Bands::new(&region, &grid, 1, budget) {
                for band in bands {
                    prop_assert!(band.elements().unwrap() <= budget);
                    let first: u64 = (0..region.rank())
                        .map(|a| {
                            let k = (band.start()[a] - region.start()[a]).unsigned_abs() / region.step()[a];
                            k * strides[a]
                        })
                        .sum();
                    prop_assert_eq!(first, next);
                    next += band.elements().unwrap();
                }
                prop_assert_eq!(next, region.elements().unwrap());
            }
        }
    }
}
