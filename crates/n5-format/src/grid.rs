//! Index arithmetic: regions in elements, the block grid, and the blocks that a region touches.
//!
//! The axis order is always N5's: the first axis varies fastest, as in `dimensions`.
#![deny(clippy::arithmetic_side_effects)]

use smallvec::SmallVec;

/// One number per axis, N5 axis order: a shape in elements, a block size, or a number of blocks.
pub type Coords = SmallVec<[u64; 6]>;

/// First element of a region along each axis. It may lie outside the dataset, even below zero.
pub type SignedCoords = SmallVec<[i64; 6]>;

/// Index of a block in the grid along each axis, N5 axis order.
pub type GridPosition = Coords;

/// A box of samples: every `step`-th element along each axis.
///
/// - `start`, `shape` and `step` have one number per axis.
/// - Every `step` is at least 1.
/// - The sample `k` of an axis, `0 <= k < shape`, is the element `start + k * step`. Its index fits an `i64`.
/// - Samples outside the dataset are allowed and read as zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    start: SignedCoords,
    shape: Coords,
    step: Coords,
}

/// Error for numbers that do not form a region.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// `start`, `shape` and `step` differ in length.
    #[error("start, shape and step have {0}, {1} and {2} numbers")]
    Rank(usize, usize, usize),
    /// A step is zero.
    #[error("the step along axis {0} is 0")]
    Step(usize),
    /// The last sample's index exceeds 2^63 - 1.
    #[error("the region ends beyond 2^63 along axis {0}")]
    Overflow(usize),
}

impl Region {
    /// Creates a region with `shape` samples along each axis: the elements `start + k * step`.
    ///
    /// # Errors
    /// Returns a [`RegionError`] if the lists differ in length, a step is 0 or the end overflows.
    pub fn new(start: SignedCoords, shape: Coords, step: Coords) -> Result<Self, RegionError> {
        if start.len() != shape.len() || start.len() != step.len() {
            return Err(RegionError::Rank(start.len(), shape.len(), step.len()));
        }
        for axis in 0..start.len() {
            if step[axis] == 0 {
                return Err(RegionError::Step(axis));
            }
            let last = u128::from(shape[axis].saturating_sub(1)).checked_mul(u128::from(step[axis]));
            let end = last.and_then(|last| i128::try_from(last).ok()?.checked_add(i128::from(start[axis])));
            if end.is_none_or(|end| end > i128::from(i64::MAX)) {
                return Err(RegionError::Overflow(axis));
            }
        }
        Ok(Self { start, shape, step })
    }

    /// Creates a region that covers a whole dataset of `dimensions`, each below 2^63.
    pub fn whole(dimensions: &[u64]) -> Self {
        Self {
            start: dimensions.iter().map(|_| 0).collect(),
            shape: dimensions.into(),
            step: dimensions.iter().map(|_| 1).collect(),
        }
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.start.len()
    }

    /// Returns the index of the first sample along each axis.
    pub fn start(&self) -> &SignedCoords {
        &self.start
    }

    /// Returns the number of samples along each axis.
    pub fn shape(&self) -> &Coords {
        &self.shape
    }

    /// Returns the distance between neighbouring samples along each axis, in elements.
    pub fn step(&self) -> &Coords {
        &self.step
    }

    /// Returns the number of samples, or `None` if it exceeds a `u64`.
    pub fn elements(&self) -> Option<u64> {
        product(&self.shape)
    }

    /// Returns the part of this region that holds the samples `from .. from + count` along `axis`. The range is clipped
    /// to the region's shape.
    #[must_use]
    pub fn narrow(&self, axis: usize, from: u64, count: u64) -> Self {
        let mut part = self.clone();
        let from = from.min(self.shape[axis]);
        part.shape[axis] = count.min(self.shape[axis].saturating_sub(from));
        let moved = i128::from(from).saturating_mul(i128::from(self.step[axis]));
        let start = i128::from(self.start[axis]).saturating_add(moved);
        part.start[axis] = i64::try_from(start).unwrap_or(i64::MAX);
        part
    }

    /// Returns the region with its axes in another order: axis `k` of the result is axis `axes[k]` of this region.
    /// Returns `None` if an axis does not exist.
    pub fn reordered(&self, axes: &[usize]) -> Option<Self> {
        Some(Self {
            start: axes.iter().map(|axis| self.start.get(*axis).copied()).collect::<Option<_>>()?,
            shape: axes.iter().map(|axis| self.shape.get(*axis).copied()).collect::<Option<_>>()?,
            step: axes.iter().map(|axis| self.step.get(*axis).copied()).collect::<Option<_>>()?,
        })
    }

    /// Returns the half-open range of the samples along `axis` whose elements lie in `low .. high`.
    pub fn samples_within(&self, axis: usize, low: u64, high: u64) -> (u64, u64) {
        let start = i128::from(self.start[axis]);
        let step = i128::from(self.step[axis]);
        let first_at_or_after = |bound: u64| {
            let distance = i128::from(bound).saturating_sub(start).max(0);
            let sample = distance.saturating_add(step.saturating_sub(1)).checked_div(step).unwrap_or(0);
            u64::try_from(sample).unwrap_or(u64::MAX).min(self.shape[axis])
        };
        let from = first_at_or_after(low);
        (from, first_at_or_after(high).max(from))
    }

    /// Returns the index along `axis` of the element that a sample stands for, or `None` if the index is negative.
    pub fn index(&self, axis: usize, sample: u64) -> Option<u64> {
        let moved = i128::from(sample).saturating_mul(i128::from(self.step[axis]));
        u64::try_from(i128::from(self.start[axis]).saturating_add(moved)).ok()
    }
}

/// The grid of blocks into which a dataset is divided.
///
/// - `dimensions` and `block_size` have the same length, the rank.
/// - Every block size is at least 1; every dimension is at most 2^63 - 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockGrid {
    dimensions: Coords,
    block_size: Coords,
}

impl BlockGrid {
    /// Creates a grid. Returns `None` if the lists differ in length, a block size is 0 or a dimension exceeds 2^63 - 1.
    pub fn new(dimensions: Coords, block_size: Coords) -> Option<Self> {
        let is_valid = dimensions.len() == block_size.len()
            && block_size.iter().all(|size| *size > 0)
            && dimensions.iter().all(|dimension| i64::try_from(*dimension).is_ok());
        is_valid.then_some(Self { dimensions, block_size })
    }

    /// Returns the grid with its axes in another order: axis `k` of the result is axis `axes[k]` of this grid. Returns
    /// `None` if an axis does not exist.
    pub fn reordered(&self, axes: &[usize]) -> Option<Self> {
        Some(Self {
            dimensions: axes.iter().map(|axis| self.dimensions.get(*axis).copied()).collect::<Option<_>>()?,
            block_size: axes.iter().map(|axis| self.block_size.get(*axis).copied()).collect::<Option<_>>()?,
        })
    }

    /// Returns the size of the dataset in elements.
    pub fn dimensions(&self) -> &Coords {
        &self.dimensions
    }

    /// Returns the size of a full block in elements.
    pub fn block_size(&self) -> &Coords {
        &self.block_size
    }

    /// Returns the number of blocks along each axis.
    pub fn shape(&self) -> Coords {
        self.dimensions.iter().zip(&self.block_size).map(|(dimension, size)| dimension.div_ceil(*size)).collect()
    }

    /// Returns true if `position` has the right number of axes and lies in the grid.
    pub fn contains(&self, position: &[u64]) -> bool {
        position.len() == self.dimensions.len()
            && position.iter().zip(self.shape()).all(|(index, count)| *index < count)
    }

    /// Returns the first element of the block at `position`, which the grid must contain.
    pub fn origin(&self, position: &[u64]) -> Coords {
        position.iter().zip(&self.block_size).map(|(index, size)| index.saturating_mul(*size)).collect()
    }

    /// Returns the size in elements of the block at `position`, clipped at the dataset's end.
    pub fn clipped_size(&self, position: &[u64]) -> Coords {
        self.origin(position)
            .iter()
            .zip(self.dimensions.iter().zip(&self.block_size))
            .map(|(origin, (dimension, size))| dimension.saturating_sub(*origin).min(*size))
            .collect()
    }

    /// Iterates over every position once, starting in the middle of the grid. The first positions are spread over the
    /// whole grid.
    ///
    /// In a grid of more than 2^64 blocks, only the first 2^64 are visited.
    pub fn spread_positions(&self) -> impl Iterator<Item = GridPosition> + use<> {
        let shape = self.shape();
        let total = shape.iter().fold(1u128, |n, count| n.saturating_mul(u128::from(*count))).min(1 << 64);
        // Consecutive positions are about 0.618 of the total apart (the golden section), modulo the total, so that they
        // do not cluster. A step that is coprime to the total visits every block once.
        let golden = total.saturating_mul(618).checked_div(1000).unwrap_or(0).max(1);
        let step = (golden..=total.max(golden)).find(|step| coprime(*step, total)).unwrap_or(1);
        (0..total).map(move |n| {
            // `n` is below 2^64 and `step` is at most 2^64, so the product fits a `u128`.
            let moved = n.saturating_mul(step).checked_rem(total).unwrap_or(0);
            let mut linear = moved.saturating_add(total / 2).checked_rem(total).unwrap_or(0);
            shape
                .iter()
                .map(|count| {
                    let count = u128::from(*count).max(1);
                    let coordinate = linear.checked_rem(count).unwrap_or(0);
                    linear = linear.checked_div(count).unwrap_or(0);
                    u64::try_from(coordinate).unwrap_or(0)
                })
                .collect()
        })
    }

    /// Iterates over the positions of the blocks that hold at least one sample of `region`, first axis fastest.
    ///
    /// `region` must have the grid's rank.
    pub fn covering(&self, region: &Region) -> CoveringBlocks {
        let axes: SmallVec<[AxisCover; 6]> = (0..region.rank())
            .map(|axis| {
                let block = self.block_size[axis];
                let (from, to) = region.samples_within(axis, 0, self.dimensions[axis]);
                let block_of = |sample| region.index(axis, sample).unwrap_or(0).checked_div(block).unwrap_or(0);
                if from == to {
                    CONSECUTIVE
                } else if region.step[axis] <= block {
                    let first = block_of(from);
                    let last = block_of(to.saturating_sub(1));
                    AxisCover { first, count: last.saturating_sub(first).saturating_add(1), ..CONSECUTIVE }
                } else {
                    // Neighbouring samples lie in different blocks, possibly with untouched blocks between them.
                    let count = to.saturating_sub(from);
                    AxisCover { first: from, count, start: region.start[axis], step: region.step[axis], block }
                }
            })
            .collect();
        let is_done = axes.iter().any(|axis| axis.count == 0);
        CoveringBlocks { cursor: axes.iter().map(|_| 0).collect(), axes, is_done }
    }
}

/// The blocks that a region touches along one axis: those that contain the samples `first .. first + count`. Sample `k`
/// is the element `start + k * step`, and each block has `block` elements along the axis.
#[derive(Debug, Clone)]
struct AxisCover {
    first: u64,
    count: u64,
    start: i64,
    step: u64,
    block: u64,
}

/// Base of an axis whose touched blocks have no gaps: `first` and `count` then give block indices directly.
const CONSECUTIVE: AxisCover = AxisCover { first: 0, count: 0, start: 0, step: 1, block: 1 };

impl AxisCover {
    /// Returns the index of the `n`th touched block, counted from 0.
    fn nth(&self, n: u64) -> u64 {
        let sample = self.first.saturating_add(n);
        // Along most axes the touched blocks have no gaps, and then no multiplication or division is needed.
        if (self.start, self.step, self.block) == (0, 1, 1) {
            return sample;
        }
        let index = i128::from(sample).saturating_mul(i128::from(self.step)).saturating_add(i128::from(self.start));
        u64::try_from(index).unwrap_or(0).checked_div(self.block).unwrap_or(0)
    }

    fn touches(&self, index: u64) -> bool {
        // Block indices ascend with `n`, so a binary search finds the first one that is not below `index`.
        let mut low = 0;
        let mut high = self.count;
        while low < high {
            let middle = low.saturating_add(high.saturating_sub(low) / 2);
            if self.nth(middle) < index {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        low < self.count && self.nth(low) == index
    }
}

/// Iterator over the positions of the blocks that a region touches, created by [`BlockGrid::covering`].
#[derive(Debug, Clone)]
pub struct CoveringBlocks {
    axes: SmallVec<[AxisCover; 6]>,
    cursor: Coords,
    is_done: bool,
}

impl CoveringBlocks {
    /// Returns the number of blocks that the region touches along `axis`.
    pub fn count_along(&self, axis: usize) -> u64 {
        self.axes.get(axis).map_or(0, |axis| axis.count)
    }

    /// Returns true if the region touches a block with this index along `axis`.
    pub fn touches(&self, axis: usize, index: u64) -> bool {
        self.axes.get(axis).is_some_and(|axis| axis.touches(index))
    }

    /// Returns the total number of positions, including those that the iterator has yielded already.
    pub fn total(&self) -> u128 {
        self.axes.iter().fold(1u128, |n, axis| n.saturating_mul(u128::from(axis.count)))
    }
}

impl Iterator for CoveringBlocks {
    type Item = GridPosition;

    fn next(&mut self) -> Option<GridPosition> {
        if self.is_done {
            return None;
        }
        let position = self.axes.iter().zip(&self.cursor).map(|(axis, n)| axis.nth(*n)).collect();
        self.is_done = !advance(self.cursor.iter_mut().zip(self.axes.iter().map(|axis| axis.count)));
        Some(position)
    }
}

/// Advances a cursor by one position, first axis fastest. For each axis, `cursor` yields the current index and the
/// number of indices. Returns false if the position was the last one. The cursor is then back at the first position.
pub(crate) fn advance<'a>(cursor: impl Iterator<Item = (&'a mut u64, u64)>) -> bool {
    for (index, count) in cursor {
        *index = index.saturating_add(1);
        if *index < count {
            return true;
        }
        *index = 0;
    }
    false
}

fn coprime(mut a: u128, mut b: u128) -> bool {
    while let Some(remainder) = a.checked_rem(b) {
        (a, b) = (b, remainder);
    }
    a == 1
}

/// Returns the product of the numbers, or `None` if it exceeds 2^64 - 1. The empty product is 1.
pub(crate) fn product(numbers: &[u64]) -> Option<u64> {
    // A zero makes the product zero even if a partial product overflows.
    if numbers.contains(&0) {
        return Some(0);
    }
    numbers.iter().try_fold(1u64, |product, number| product.checked_mul(*number))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use smallvec::smallvec;

    use super::*;

    #[test]
    fn touched_indices_along_an_axis_match_the_positions() {
        let grid = BlockGrid::new(smallvec![100, 90], smallvec![7, 4]).unwrap();
        for step in [1, 3, 9, 40] {
            let region = Region::new(smallvec![-5, 10], smallvec![60, 5], smallvec![step, 1]).unwrap();
            let covering = grid.covering(&region);
            let positions: BTreeSet<GridPosition> = covering.clone().collect();
            for axis in 0..2 {
                let touched: BTreeSet<u64> = positions.iter().map(|position| position[axis]).collect();
                let reported: BTreeSet<u64> = (0..40).filter(|index| covering.touches(axis, *index)).collect();
                assert_eq!((reported.len() as u64, reported), (covering.count_along(axis), touched), "{step}");
            }
        }
    }

    #[test]
    fn a_spread_order_visits_every_block_once_and_every_part_early() {
        for shape in [vec![1u64], vec![16, 16, 16], vec![7, 5], vec![2, 2], vec![1000], vec![3, 1, 9, 2], vec![]] {
            let grid = BlockGrid::new(shape.iter().copied().collect(), shape.iter().map(|_| 1).collect()).unwrap();
            let positions: Vec<GridPosition> = grid.spread_positions().collect();
            assert!(positions.iter().all(|position| grid.contains(position)));
            let total: u64 = shape.iter().product();
            assert_eq!(positions.iter().collect::<BTreeSet<_>>().len() as u64, total, "{shape:?}");
            for (axis, count) in shape.iter().enumerate() {
                let early: BTreeSet<u64> = positions.iter().take(64).map(|position| position[axis]).collect();
                assert!(early.len() as u64 >= (*count).min(10), "{shape:?} {axis} {early:?}");
            }
        }
        assert_eq!(BlockGrid::new(smallvec![0, 5], smallvec![1, 1]).unwrap().spread_positions().count(), 0);
        let big = i64::MAX.unsigned_abs();
        let grid = BlockGrid::new(smallvec![big, big], smallvec![1, 1]).unwrap();
        assert!(grid.spread_positions().take(10).all(|position| grid.contains(&position)));
    }
}
