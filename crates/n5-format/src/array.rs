//! Decoded arrays, and the strided copy that moves elements from blocks into them.

use bytes::Bytes;

use crate::strided::{StridedLoop, StridedLoops, for_each_offset};
use crate::{Coords, DataType, Region};

/// A decoded array: little-endian elements, first axis fastest.
#[derive(Debug, Clone)]
pub struct Array {
    /// Size in elements, N5 axis order.
    pub shape: Coords,
    /// Type of the elements.
    pub data_type: DataType,
    /// The elements: `product(shape)` times the element size in bytes.
    pub data: Bytes,
}

/// Layout of the samples of a region in a buffer, without gaps. A reference to a region is a layout in N5 axis order.
#[derive(Debug, Clone, Copy)]
pub struct SampleLayout<'a> {
    /// The samples.
    pub region: &'a Region,
    /// Order of the axes in the buffer, fastest first: a permutation of all axes. `None` stands for the N5 axis order.
    pub axes: Option<&'a [usize]>,
}

impl<'a> From<&'a Region> for SampleLayout<'a> {
    fn from(region: &'a Region) -> Self {
        Self { region, axes: None }
    }
}

/// Copies the samples of `region` that lie in a block into `to`, which holds the whole region. Returns true if the
/// region and the block share at least one sample and all shared samples were copied.
///
/// - `to`: the region's samples, first axis fastest or in the order of a [`SampleLayout`], `product(region.shape())`
///   elements.
/// - `from`: the block's elements, first axis fastest, `product(size)` elements.
/// - `origin`: the index of the block's first element in the dataset.
/// - `size`: the size of the block in elements.
/// - `dimensions`: the size of the dataset in elements. Elements of the block beyond it are padding and are never
///   copied.
/// - `width`: the number of bytes of an element.
///
/// `origin`, `size` and `dimensions` are in N5 axis order and have the region's rank. If `to` or `from` is shorter than
/// its shape requires, or if the axes of the layout are no permutation, nothing is copied.
pub fn paste<'a>(
    to: &mut [u8],
    region: impl Into<SampleLayout<'a>>,
    from: &[u8],
    origin: &[u64],
    size: &[u64],
    dimensions: &[u64],
    width: usize,
) -> bool {
    let plan = CopyPlan::new(region.into(), origin, size, dimensions, width);
    plan.is_some_and(|plan| plan.run(to, from, width, false))
}

/// Like [`paste`], but the elements in `from` are big-endian, as stored. Their bytes are swapped during the copy.
pub fn paste_big_endian<'a>(
    to: &mut [u8],
    region: impl Into<SampleLayout<'a>>,
    from: &[u8],
    origin: &[u64],
    size: &[u64],
    dimensions: &[u64],
    width: usize,
) -> bool {
    let plan = CopyPlan::new(region.into(), origin, size, dimensions, width);
    plan.is_some_and(|plan| plan.run(to, from, width, true))
}

/// Like [`paste`], for a block whose elements are all zero.
pub fn paste_zeros<'a>(
    to: &mut [u8],
    region: impl Into<SampleLayout<'a>>,
    origin: &[u64],
    size: &[u64],
    dimensions: &[u64],
    width: usize,
) -> bool {
    let plan = CopyPlan::new(region.into(), origin, size, dimensions, width);
    plan.is_some_and(|plan| plan.fill(to, width))
}

/// Returns the elements of an array of `shape` with its axes in the order `axes`: axis `k` of the result is axis `axes[k]`
/// of `data`. In both, the first axis is the fastest. An element has `width` bytes.
///
/// Returns zeros if `axes` is not a permutation, or if `data` does not have the size that `shape` requires.
pub fn transpose(data: &[u8], shape: &[u64], width: usize, axes: &[usize]) -> Vec<u8> {
    let mut to = vec![0; data.len()];
    let bytes = shape.iter().try_fold(width as u64, |bytes, size| bytes.checked_mul(*size));
    if bytes == Some(data.len() as u64) {
        let region = Region::whole(shape);
        let layout = SampleLayout { region: &region, axes: Some(axes) };
        let origin: Coords = shape.iter().map(|_| 0).collect();
        paste(&mut to, layout, data, &origin, shape, shape, width);
    }
    to
}

/// Plan for copying the shared samples of a block and a region. Offsets are in bytes.
#[derive(Debug)]
struct CopyPlan {
    /// Offset of the first sample in the block.
    from_offset: usize,
    /// Offset of the first sample in the region.
    to_offset: usize,
    /// Offset after the last sample in the block.
    from_end: usize,
    /// Offset after the last sample in the region.
    to_end: usize,
    /// Nested loops, innermost first.
    loops: StridedLoops,
}

impl CopyPlan {
    fn new(layout: SampleLayout<'_>, origin: &[u64], size: &[u64], dimensions: &[u64], width: usize) -> Option<Self> {
        let SampleLayout { region, axes } = layout;
        if axes.is_some_and(|axes| !is_permutation(axes, region.rank())) {
            return None;
        }
        let mut loops = StridedLoops::new();
        let mut from_offset = 0_usize;
        let mut to_offset = 0_usize;
        // Distances from the first sample to the last one, in bytes.
        let mut from_span = 0_usize;
        let mut to_span = 0_usize;
        let mut from_stride = width;
        let mut to_stride = width;
        for number in 0..region.rank() {
            // The loops follow the order of the target, so that neighbours in the target are written one after another.
            let axis = axes.map_or(number, |axes| axes[number]);
            if axes.is_some() {
                from_stride = stride_of(axis, size, width)?;
            }
            let end = origin[axis].checked_add(size[axis])?.min(dimensions[axis]);
            let (first, last) = region.samples_within(axis, origin[axis], end);
            let count = usize::try_from(last.checked_sub(first)?).ok()?;
            if count == 0 {
                return None;
            }
            let skipped = usize::try_from(region.index(axis, first)?.checked_sub(origin[axis])?).ok()?;
            from_offset = from_offset.checked_add(skipped.checked_mul(from_stride)?)?;
            to_offset = to_offset.checked_add(usize::try_from(first).ok()?.checked_mul(to_stride)?)?;
            if count > 1 {
                let step = usize::try_from(region.step()[axis]).ok()?;
                let new = StridedLoop { count, from_stride: from_stride.checked_mul(step)?, to_stride };
                from_span = from_span.checked_add((count - 1).checked_mul(new.from_stride)?)?;
                to_span = to_span.checked_add((count - 1).checked_mul(to_stride)?)?;
                match loops.last_mut() {
                    // If the elements of an axis continue where those of the previous axis end, one loop copies both
                    // axes.
                    Some(inner)
                        if inner.from_stride * inner.count == new.from_stride
                            && inner.to_stride * inner.count == new.to_stride =>
                    {
                        inner.count *= count;
                    }
                    _ => loops.push(new),
                }
            }
            from_stride = from_stride.checked_mul(usize::try_from(size[axis]).ok()?)?;
            to_stride = to_stride.checked_mul(usize::try_from(region.shape()[axis]).ok()?)?;
        }
        let from_end = from_offset.checked_add(from_span)?.checked_add(width)?;
        let to_end = to_offset.checked_add(to_span)?.checked_add(width)?;
        Some(Self { from_offset, to_offset, from_end, to_end, loops })
    }

    fn run(&self, to: &mut [u8], from: &[u8], width: usize, swap_bytes: bool) -> bool {
        if self.from_end > from.len() || self.to_end > to.len() {
            debug_assert!(false, "a paste reaches beyond its buffers: {self:?}");
            return false;
        }
        let single = StridedLoop { count: 1, from_stride: width, to_stride: width };
        let inner = self.loops.first().copied().unwrap_or(single);
        let rows = self.loops.get(1).copied().unwrap_or(single);
        let outer = self.loops.get(2..).unwrap_or_default();
        let is_contiguous = inner.from_stride == width && inner.to_stride == width;
        let copy: fn(&mut [u8], &[u8], StridedLoop, StridedLoop) = match (is_contiguous, swap_bytes, width) {
            (true, true, 2) => swap_runs::<2>,
            (true, true, 4) => swap_runs::<4>,
            (true, true, 8) => swap_runs::<8>,
            // A run whose length is known at compile time is copied by a few instructions instead of a function call.
            (true, ..) => match inner.count * width {
                32 => copy_fixed_runs::<32>,
                64 => copy_fixed_runs::<64>,
                128 => copy_fixed_runs::<128>,
                _ => copy_runs,
            },
            (false, _, 1) => copy_strided::<1, false>,
            (false, false, 2) => copy_strided::<2, false>,
            (false, false, 4) => copy_strided::<4, false>,
            (false, false, _) => copy_strided::<8, false>,
            (false, true, 2) => copy_strided::<2, true>,
            (false, true, 4) => copy_strided::<4, true>,
            (false, true, _) => copy_strided::<8, true>,
        };
        let inner = if is_contiguous { StridedLoop { count: inner.count * width, ..inner } } else { inner };
        for_each_offset(outer, (self.to_offset, self.from_offset), |to_at, from_at| {
            copy(&mut to[to_at..], &from[from_at..], inner, rows);
        });
        true
    }

    fn fill(&self, to: &mut [u8], width: usize) -> bool {
        if self.to_end > to.len() {
            return false;
        }
        let inner = self.loops.first().filter(|inner| inner.to_stride == width);
        let outer = if inner.is_some() { self.loops.get(1..) } else { self.loops.get(..) };
        let bytes = inner.map_or(1, |inner| inner.count) * width;
        let start = (self.to_offset, self.from_offset);
        for_each_offset(outer.unwrap_or_default(), start, |to_at, _| to[to_at..to_at + bytes].fill(0));
        true
    }
}

/// Returns true if `axes` contains each of `0..rank` once.
fn is_permutation(axes: &[usize], rank: usize) -> bool {
    axes.len() == rank && (0..rank).all(|axis| axes.contains(&axis))
}

/// Returns the distance in bytes between neighbours along an axis of an array of shape `size`.
fn stride_of(axis: usize, size: &[u64], width: usize) -> Option<usize> {
    let faster_axes = size.get(..axis)?;
    faster_axes.iter().try_fold(width, |stride, size| stride.checked_mul(usize::try_from(*size).ok()?))
}

fn copy_runs(to: &mut [u8], from: &[u8], bytes: StridedLoop, rows: StridedLoop) {
    for row in 0..rows.count {
        let to = &mut to[row * rows.to_stride..];
        let from = &from[row * rows.from_stride..];
        to[..bytes.count].copy_from_slice(&from[..bytes.count]);
    }
}

fn copy_fixed_runs<const BYTES: usize>(to: &mut [u8], from: &[u8], _: StridedLoop, rows: StridedLoop) {
    for row in 0..rows.count {
        let to = &mut to[row * rows.to_stride..];
        let from = &from[row * rows.from_stride..];
        to[..BYTES].copy_from_slice(&from[..BYTES]);
    }
}

/// Copies contiguous runs and swaps their bytes. Arrays of a constant length let the compiler use vector instructions.
fn swap_runs<const WIDTH: usize>(to: &mut [u8], from: &[u8], bytes: StridedLoop, rows: StridedLoop) {
    for row in 0..rows.count {
        let to = &mut to[row * rows.to_stride..];
        let from = &from[row * rows.from_stride..];
        let to = to[..bytes.count].as_chunks_mut::<WIDTH>().0;
        let from = from[..bytes.count].as_chunks::<WIDTH>().0;
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
            to.reverse();
        }
    }
}

/// Copies element by element. Because the width is constant, the compiler copies an element with one load and one
/// store.
fn copy_strided<const WIDTH: usize, const SWAP_BYTES: bool>(
    to: &mut [u8],
    from: &[u8],
    inner: StridedLoop,
    rows: StridedLoop,
) {
    for row in 0..rows.count {
        let mut to_at = row * rows.to_stride;
        let mut from_at = row * rows.from_stride;
        for _ in 0..inner.count {
            to[to_at..to_at + WIDTH].copy_from_slice(&from[from_at..from_at + WIDTH]);
            if SWAP_BYTES {
                to[to_at..to_at + WIDTH].reverse();
            }
            to_at += inner.to_stride;
            from_at += inner.from_stride;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smallvec::smallvec;

    use super::*;
    use crate::BlockGrid;

    /// Returns the value of an element: its linear index in a dataset of `dimensions`, as `width` bytes.
    fn element(index: &[u64], dimensions: &[u64], width: usize) -> Vec<u8> {
        let linear = index.iter().zip(dimensions).rev().fold(1u64, |n, (i, d)| n * d + i);
        linear.to_le_bytes()[..width].to_vec()
    }

    /// Returns all indices of a box, first axis fastest.
    fn indices(shape: &[u64]) -> Vec<Coords> {
        let mut tuples: Vec<Coords> = vec![smallvec![]];
        for &n in shape.iter().rev() {
            tuples = tuples
                .iter()
                .flat_map(|tail| {
                    (0..n).map(move |i| {
                        let mut index: Coords = smallvec![i];
                        index.extend_from_slice(tail);
                        index
                    })
                })
                .collect();
        }
        tuples
    }

    fn reference(region: &Region, dimensions: &[u64], width: usize) -> Vec<u8> {
        // Comparing the last axis first puts the first axis fastest.
        let mut sorted = indices(region.shape());
        sorted.sort_by(|a, b| a.iter().rev().cmp(b.iter().rev()));
        sorted
            .iter()
            .flat_map(|k| {
                let at: Option<Coords> =
                    (0..k.len()).map(|axis| region.index(axis, k[axis]).filter(|i| *i < dimensions[axis])).collect();
                at.map_or_else(|| vec![0; width], |at| element(&at, dimensions, width))
            })
            .collect()
    }

    fn assembled(region: &Region, grid: &BlockGrid, padded: bool, width: usize) -> Vec<u8> {
        let mut out = vec![0u8; usize::try_from(region.elements().unwrap()).unwrap() * width];
        for position in grid.covering(region) {
            let origin = grid.origin(&position);
            let size = if padded { grid.block_size().clone() } else { grid.clipped_size(&position) };
            let mut sorted = indices(&size);
            sorted.sort_by(|a, b| a.iter().rev().cmp(b.iter().rev()));
            let block: Vec<u8> = sorted
                .iter()
                .flat_map(|i| {
                    let at: Coords = i.iter().zip(&origin).map(|(i, o)| i + o).collect();
                    if at.iter().zip(grid.dimensions()).all(|(a, d)| a < d) {
                        element(&at, grid.dimensions(), width)
                    } else {
                        vec![0xee; width]
                    }
                })
                .collect();
            paste(&mut out, region, &block, &origin, &size, grid.dimensions(), width);
        }
        out
    }

    proptest! {
        #[test]
        fn a_transposed_array_has_the_same_element_at_the_reordered_index(
            shape in prop::collection::vec(1u64..5, 1..6),
            order in Just((0..5usize).collect::<Vec<_>>()).prop_shuffle(),
            width in prop::sample::select(vec![1usize, 2, 4, 8]),
        ) {
            let axes: Vec<usize> = order.into_iter().filter(|axis| *axis < shape.len()).collect();
            let sorted = |shape: &[u64]| {
                let mut all = indices(shape);
                all.sort_by(|a, b| a.iter().rev().cmp(b.iter().rev()));
                all
            };
            let data: Vec<u8> = sorted(&shape).iter().flat_map(|index| element(index, &shape, width)).collect();
            let reordered: Vec<u64> = axes.iter().map(|axis| shape[*axis]).collect();
            let expected: Vec<u8> = sorted(&reordered)
                .iter()
                .flat_map(|index| {
                    let mut original = vec![0; shape.len()];
                    axes.iter().zip(index).for_each(|(axis, i)| original[*axis] = *i);
                    element(&original, &shape, width)
                })
                .collect();
            prop_assert_eq!(transpose(&data, &shape, width, &axes), expected);
        }
    }

    proptest! {
        #[test]
        fn blocks_pasted_in_another_order_of_axes_are_the_transposed_region(
            axes in prop::collection::vec(axis(), 1..5),
            order in Just((0..5usize).collect::<Vec<_>>()).prop_shuffle(),
            width in prop::sample::select(vec![1usize, 2, 4, 8]),
            swap in any::<bool>(),
        ) {
            let grid = BlockGrid::new(axes.iter().map(|a| a.0).collect(), axes.iter().map(|a| a.1).collect()).unwrap();
            let region = Region::new(
                axes.iter().map(|a| a.2).collect(),
                axes.iter().map(|a| a.3).collect(),
                axes.iter().map(|a| a.4).collect(),
            ).unwrap();
            let order: Vec<usize> = order.into_iter().filter(|axis| *axis < region.rank()).collect();
            let layout = SampleLayout { region: &region, axes: Some(&order) };
            let bytes = usize::try_from(region.elements().unwrap()).unwrap() * width;
            let (mut stored_order, mut reordered) = (vec![0u8; bytes], vec![9u8; bytes]);
            let mut is_first = true;
            for position in grid.covering(&region) {
                let (origin, size) = (grid.origin(&position), grid.clipped_size(&position));
                let elements = usize::try_from(size.iter().product::<u64>()).unwrap();
                let block: Vec<u8> =
                    (0..elements * width).map(|n| u8::try_from((n + usize::from(is_first)) % 251).unwrap()).collect();
                is_first = false;
                let paste_block = |to: &mut [u8], layout: SampleLayout<'_>| if swap {
                    paste_big_endian(to, layout, &block, &origin, &size, grid.dimensions(), width)
                } else {
                    paste(to, layout, &block, &origin, &size, grid.dimensions(), width)
                };
                paste_block(&mut stored_order, (&region).into());
                prop_assert!(paste_zeros(&mut reordered, layout, &origin, &size, grid.dimensions(), width));
                paste_block(&mut reordered, layout);
            }
            // Elements outside all blocks keep their value.
            let expected = transpose(&stored_order, region.shape(), width, &order);
            let is_within = (0..region.rank()).all(|axis| {
                region.samples_within(axis, 0, grid.dimensions()[axis]) == (0, region.shape()[axis])
            });
            if is_within {
                prop_assert_eq!(reordered, expected);
            } else {
                let untouched = |(found, expected): (&u8, &u8)| found == expected || (*found == 9 && *expected == 0);
                prop_assert!(reordered.iter().zip(&expected).all(untouched));
            }
        }
    }

    #[test]
    fn a_wrong_order_of_axes_copies_nothing() {
        let region = Region::whole(&[2, 2]);
        for axes in [&[0, 0][..], &[0], &[0, 1, 2], &[1, 2]] {
            let layout = SampleLayout { region: &region, axes: Some(axes) };
            let mut to = [0; 4];
            assert!(!paste(&mut to, layout, &[1, 2, 3, 4], &[0, 0], &[2, 2], &[2, 2], 1));
            assert_eq!(to, [0; 4]);
        }
    }

    #[test]
    fn an_array_of_another_size_or_a_wrong_order_is_not_transposed() {
        assert_eq!(transpose(&[1, 2, 3], &[2, 2], 1, &[1, 0]), [0; 3]);
        assert_eq!(transpose(&[1, 2, 3, 4], &[2, 2], 1, &[1, 1]), [0; 4]);
        assert_eq!(transpose(&[], &[0, 2], 1, &[1, 0]), [0; 0]);
    }

    type AxisCase = (u64, u64, i64, u64, u64);

    fn axis() -> impl Strategy<Value = AxisCase> {
        (0u64..9, 1u64..6, -4i64..10, 0u64..9, 1u64..8)
    }

    proptest! {
        #[test]
        fn assembling_blocks_equals_looking_up_each_element(
            axes in prop::collection::vec(axis(), 0..5),
            padded in any::<bool>(),
            width in prop::sample::select(vec![1usize, 2, 4, 8]),
        ) {
            let dimensions: Coords = axes.iter().map(|a| a.0).collect();
            let grid = BlockGrid::new(dimensions, axes.iter().map(|a| a.1).collect()).unwrap();
            let region = Region::new(
                axes.iter().map(|a| a.2).collect(),
                axes.iter().map(|a| a.3).collect(),
                axes.iter().map(|a| a.4).collect(),
            ).unwrap();
            prop_assert_eq!(
                assembled(&region, &grid, padded, width),
                reference(&region, grid.dimensions(), width)
            );
        }

        #[test]
        fn stored_elements_are_byte_swapped_by_paste_big_endian(
            axes in prop::collection::vec(axis(), 0..5),
            width in prop::sample::select(vec![1usize, 2, 4, 8]),
        ) {
            let grid = BlockGrid::new(axes.iter().map(|a| a.0).collect(), axes.iter().map(|a| a.1).collect()).unwrap();
            let region = Region::new(
                axes.iter().map(|a| a.2).collect(),
                axes.iter().map(|a| a.3).collect(),
                axes.iter().map(|a| a.4).collect(),
            ).unwrap();
            let mut decoded = vec![0u8; usize::try_from(region.elements().unwrap()).unwrap() * width];
            let mut stored = decoded.clone();
            for position in grid.covering(&region) {
                let (origin, size) = (grid.origin(&position), grid.clipped_size(&position));
                let elements = usize::try_from(size.iter().product::<u64>()).unwrap();
                let block: Vec<u8> = (0..elements * width).map(|n| u8::try_from(n % 251).unwrap()).collect();
                let turned: Vec<u8> = block.chunks(width).flat_map(|e| e.iter().rev().copied()).collect();
                paste(&mut decoded, &region, &block, &origin, &size, grid.dimensions(), width);
                paste_big_endian(&mut stored, &region, &turned, &origin, &size, grid.dimensions(), width);
            }
            prop_assert_eq!(decoded, stored);
        }

        #[test]
        fn covering_names_exactly_the_blocks_that_hold_a_sample(axes in prop::collection::vec(axis(), 0..4)) {
            let grid = BlockGrid::new(
                axes.iter().map(|a| a.0).collect(),
                axes.iter().map(|a| a.1).collect(),
            ).unwrap();
            let region = Region::new(
                axes.iter().map(|a| a.2).collect(),
                axes.iter().map(|a| a.3).collect(),
                axes.iter().map(|a| a.4).collect(),
            ).unwrap();
            let mut expected: Vec<Coords> = indices(region.shape())
                .iter()
                .filter_map(|k| {
                    (0..k.len())
                        .map(|x| region.index(x, k[x]).filter(|i| *i < grid.dimensions()[x]).map(|i| i / grid.block_size()[x]))
                        .collect()
                })
                .collect();
            expected.sort();
            expected.dedup();
            let covering = grid.covering(&region);
            prop_assert_eq!(covering.total(), expected.len() as u128);
            let mut found: Vec<Coords> = covering.collect();
            found.sort();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn the_parts_of_a_region_add_up_to_the_region(a in axis(), cut in 0u64..10) {
            let region = Region::new(smallvec![a.2], smallvec![a.3], smallvec![a.4]).unwrap();
            let head = region.narrow(0, 0, cut);
            let tail = region.narrow(0, cut, u64::MAX);
            prop_assert_eq!(head.shape()[0] + tail.shape()[0], region.shape()[0]);
            for k in 0..tail.shape()[0] {
                prop_assert_eq!(tail.index(0, k), region.index(0, head.shape()[0] + k));
            }
        }
    }

    #[test]
    fn a_grid_of_2_to_the_63_is_walked_lazily() {
        let big = i64::MAX.unsigned_abs();
        let grid = BlockGrid::new(smallvec![big, big], smallvec![1, 1]).unwrap();
        let region = Region::whole(grid.dimensions());
        let mut covering = grid.covering(&region);
        assert_eq!(covering.total(), u128::from(big) * u128::from(big));
        assert_eq!(covering.next(), Some(smallvec![0, 0]));
        assert_eq!(covering.next(), Some(smallvec![1, 0]));
    }

    #[test]
    fn a_region_that_ends_beyond_the_range_is_refused() {
        let region = Region::new(smallvec![i64::MAX], smallvec![2], smallvec![1]);
        assert_eq!(region, Err(crate::RegionError::Overflow(0)));
        assert!(Region::new(smallvec![i64::MAX], smallvec![1], smallvec![9]).is_ok());
    }
}
