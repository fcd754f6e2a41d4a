//! Partial reads of uncompressed blocks: the byte ranges of a block's file that hold the samples of a region.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::ops::Range;

use smallvec::SmallVec;

use crate::grid::advance;
use crate::{Coords, Region};

/// Maximum length of a read in bytes.
const MAX_READ_BYTES: u64 = 1 << 20;

/// Minimum cost of a read in bytes. Samples with smaller gaps between them are read together, including the gaps,
/// because a separate read takes 10 to 90 us. Memory delivers more bytes than such a gap has in this time.
const MIN_READ_COST_BYTES: u64 = 64 << 10;

/// Samples of a region along one axis of a block.
#[derive(Debug, Clone, Copy)]
struct AxisSamples {
    /// Index of the first sample in the block, in elements.
    first: u64,
    /// Number of samples; at least 1.
    count: u64,
    /// Distance between neighbouring samples, in elements.
    step: u64,
    /// Distance between neighbouring elements of the block along this axis, in bytes.
    stride: u64,
}

impl AxisSamples {
    /// Returns the number of elements from the first sample to the last one, inclusive.
    fn extent(&self) -> u64 {
        self.count.saturating_sub(1).saturating_mul(self.step).saturating_add(1)
    }
}

/// Iterator over the reads that cover the samples of a region in a block whose elements are contiguous, first axis
/// fastest.
///
/// Each read is a contiguous box of the block: the whole block along the fastest axes, a range of the next axis, and a
/// single sample of each slower axis.
#[derive(Debug, Clone)]
pub struct RangeReads {
    axes: SmallVec<[AxisSamples; 6]>,
    /// Size of the block in elements.
    size: Coords,
    width: u64,
    /// Number of axes that one read spans, beginning with the fastest.
    axes_per_read: usize,
    /// Maximum number of elements of one read along the slowest axis that it spans.
    rows_per_read: u64,
    /// Number of the next read along the slowest axis that reads span. `cursor` has the current sample of each slower
    /// axis.
    next_chunk: u64,
    cursor: SmallVec<[u64; 6]>,
    is_done: bool,
}

/// A single contiguous read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRead {
    /// First element within the block, per axis.
    pub offset: Coords,
    /// Number of elements along each axis.
    pub size: Coords,
    /// Byte range of the elements, relative to the end of the block's header.
    pub bytes: Range<u64>,
}

impl RangeReads {
    /// Creates the reads for the samples of `region` in a block that begins at `origin` and has `size` elements of
    /// `width` bytes. Elements beyond `dimensions` are padding. No read is longer than `max_bytes` or 1 MiB, except
    /// for a single larger element. Returns `None` if the block has no sample.
    pub fn new(
        region: &Region,
        origin: &[u64],
        size: &Coords,
        dimensions: &[u64],
        width: usize,
        max_bytes: u64,
    ) -> Option<Self> {
        let mut samples = SmallVec::<[_; 6]>::new();
        for (axis, ((origin, size), dimension)) in origin.iter().zip(size).zip(dimensions).enumerate() {
            let (from, to) = region.samples_within(axis, *origin, origin.saturating_add(*size).min(*dimension));
            let count = to.saturating_sub(from);
            if count == 0 {
                return None;
            }
            samples.push((region.index(axis, from)?.checked_sub(*origin)?, count));
        }
        Some(Self::from_samples(size, width as u64, &samples, region.step(), max_bytes.min(MAX_READ_BYTES)))
    }

    /// Creates the reads for samples at a distance of `step` elements, beginning with the first element of a block.
    /// `counts` is the number of samples along each axis.
    pub fn from_counts(size: &Coords, width: u64, counts: &Coords, step: &Coords) -> Self {
        let samples: SmallVec<[_; 6]> = counts.iter().map(|count| (0, (*count).max(1))).collect();
        Self::from_samples(size, width, &samples, step, MAX_READ_BYTES)
    }

    fn from_samples(size: &Coords, width: u64, samples: &[(u64, u64)], step: &Coords, max_bytes: u64) -> Self {
        let mut axes = SmallVec::<[AxisSamples; 6]>::new();
        let mut stride = width.max(1);
        for ((size, (first, count)), step) in size.iter().zip(samples).zip(step) {
            axes.push(AxisSamples { first: *first, count: *count, step: *step, stride });
            stride = stride.saturating_mul((*size).max(1));
        }
        let mut axes_per_read = axes.len();
        // `inner` is the number of bytes that the axes before `axis` span, from the first sample to the last.
        while let Some((axis, inner_axes)) = axes.get(..axes_per_read).and_then(<[_]>::split_last) {
            let inner = inner_axes.last().map_or(width, |inner| inner.stride.saturating_mul(inner.extent()));
            let gap = axis.stride.saturating_mul(axis.step).saturating_sub(inner);
            if axis.count > 1 && gap < MIN_READ_COST_BYTES && axis.stride <= max_bytes {
                break;
            }
            axes_per_read = axes_per_read.saturating_sub(1);
        }
        let last = axes_per_read.checked_sub(1).and_then(|last| axes.get(last));
        let rows_per_read = last.map_or(1, |last| max_bytes.checked_div(last.stride).unwrap_or(1).max(1));
        let cursor = axes.iter().skip(axes_per_read).map(|_| 0).collect();
        Self {
            axes,
            size: size.clone(),
            width: width.max(1),
            axes_per_read,
            rows_per_read,
            next_chunk: 0,
            cursor,
            is_done: false,
        }
    }

    /// Returns the axis along which a range is divided into reads: the slowest one that a read spans.
    fn split_axis(&self) -> Option<&AxisSamples> {
        self.axes_per_read.checked_sub(1).and_then(|last| self.axes.get(last))
    }

    /// Returns the number of reads for each position of the slower axes.
    fn reads_per_position(&self) -> u64 {
        self.split_axis().map_or(1, |last| last.extent().div_ceil(self.rows_per_read.max(1)))
    }

    /// Returns the cost of all reads in bytes: their length, but at least 64 KiB for each.
    pub fn cost_bytes(&self) -> u64 {
        let bytes = self.split_axis().map_or(self.width, |last| last.extent().saturating_mul(last.stride));
        let position_cost_bytes = bytes.max(self.reads_per_position().saturating_mul(MIN_READ_COST_BYTES));
        self.axes
            .iter()
            .skip(self.axes_per_read)
            .fold(position_cost_bytes, |bytes, axis| bytes.saturating_mul(axis.count))
    }
}

impl Iterator for RangeReads {
    type Item = RangeRead;

    fn next(&mut self) -> Option<RangeRead> {
        if self.is_done {
            return None;
        }
        let mut offset = Coords::new();
        let mut size = Coords::new();
        let mut from = 0_u64;
        let mut len = self.width;
        let last = self.axes_per_read.checked_sub(1);
        for (number, (axis, axis_size)) in self.axes.iter().zip(&self.size).enumerate() {
            let (at, count) = if number >= self.axes_per_read {
                let sample = number
                    .checked_sub(self.axes_per_read)
                    .and_then(|slower| self.cursor.get(slower))
                    .copied()
                    .unwrap_or(0);
                (axis.first.saturating_add(sample.saturating_mul(axis.step)), 1)
            } else if Some(number) == last {
                let skipped = self.next_chunk.saturating_mul(self.rows_per_read);
                (axis.first.saturating_add(skipped), axis.extent().saturating_sub(skipped).min(self.rows_per_read))
            } else {
                (0, *axis_size)
            };
            from = from.saturating_add(at.saturating_mul(axis.stride));
            len = len.saturating_mul(count);
            offset.push(at);
            size.push(count);
        }
        self.next_chunk = self.next_chunk.saturating_add(1);
        if self.next_chunk >= self.reads_per_position() {
            self.next_chunk = 0;
            let counts = self.axes.iter().skip(self.axes_per_read).map(|axis| axis.count);
            self.is_done = !advance(self.cursor.iter_mut().zip(counts));
        }
        Some(RangeRead { offset, size, bytes: from..from.saturating_add(len) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{BlockGrid, paste};

    fn range_reads(size: &[u64], start: &[i64], shape: &[u64], step: &[u64], width: usize) -> RangeReads {
        let region = Region::new(start.into(), shape.into(), step.into()).unwrap();
        let origin: Coords = size.iter().map(|_| 0).collect();
        RangeReads::new(&region, &origin, &size.into(), size, width, u64::MAX).unwrap()
    }

    #[test]
    fn neighbouring_planes_are_one_read_and_distant_rows_a_read_each() {
        let planes: Vec<RangeRead> = range_reads(&[256, 256, 256], &[0, 0, 9], &[256, 256, 3], &[1, 1, 1], 2).collect();
        assert_eq!(planes.len(), 1);
        assert_eq!(planes[0].bytes, 9 * 131_072..12 * 131_072);
        // A plane of the first and third axis takes a read of 512 bytes every 128 KiB.
        assert_eq!(range_reads(&[256, 256, 256], &[0, 7, 0], &[256, 1, 256], &[1, 1, 1], 2).count(), 256);
        // A small box in a wide block takes one read per row.
        let rows = range_reads(&[1 << 20, 64, 64], &[5, 3, 3], &[100, 4, 4], &[1, 1, 1], 1);
        assert_eq!(rows.cost_bytes(), 16 * MIN_READ_COST_BYTES);
        assert!(rows.map(|part| part.bytes.end - part.bytes.start).all(|bytes| bytes == 100));
    }

    #[test]
    fn no_read_is_larger_than_the_bound() {
        for (size, shape) in [([1 << 40, 1], [1 << 22, 1]), ([1 << 12, 1 << 30], [1 << 12, 1 << 14])] {
            let mut parts = range_reads(&size, &[0, 0], &shape, &[1, 1], 8);
            let cost = parts.cost_bytes();
            assert!(parts.all(|part| part.bytes.end - part.bytes.start <= MAX_READ_BYTES));
            assert_eq!(cost, shape[0] * shape[1] * 8);
        }
    }

    proptest! {
        #[test]
        fn the_reads_of_a_block_cover_all_its_samples(
            axes in prop::collection::vec((1u64..90, 1u64..40, -3i64..50, 1u64..60, 1u64..30), 1..4),
            width in prop::sample::select(vec![1usize, 2, 8]),
            stretch in 1u64..4000,
            most in prop::sample::select(vec![8, 1000, u64::MAX]),
        ) {
            let mut axes = axes;
            axes[0].0 += stretch;
            axes[0].1 += stretch;
            axes[0].4 += stretch / 2;
            let of = |n: usize| axes.iter().map(|a| [a.0, a.1, a.3, a.4][n]).collect::<Coords>();
            let dimensions = of(0);
            let size = of(1);
            let grid = BlockGrid::new(dimensions.clone(), size.clone()).unwrap();
            let region = Region::new(axes.iter().map(|a| a.2).collect(), of(2), of(3)).unwrap();
            prop_assume!(region.elements().unwrap() * (width as u64) < 1 << 22);
            for position in grid.covering(&region).take(20) {
                let origin = grid.origin(&position);
                let elements: u64 = size.iter().product();
                prop_assume!(elements * (width as u64) < 1 << 24);
                let block: Vec<u8> = (0..elements * width as u64).map(|n| ((n * 31) >> 3).to_le_bytes()[0]).collect();
                let mut expected = vec![0; usize::try_from(region.elements().unwrap()).unwrap() * width];
                let mut found = expected.clone();
                paste(&mut expected, &region, &block, &origin, &size, &dimensions, width);
                let parts = RangeReads::new(&region, &origin, &size, &dimensions, width, most).unwrap();
                let (cost, mut read) = (parts.cost_bytes(), 0);
                for part in parts {
                    let bytes = &block[usize::try_from(part.bytes.start).unwrap()..usize::try_from(part.bytes.end).unwrap()];
                    read += bytes.len() as u64;
                    let at: Coords = origin.iter().zip(&part.offset).map(|(a, b)| a + b).collect();
                    paste(&mut found, &region, bytes, &at, &part.size, &dimensions, width);
                }
                prop_assert!(most < MIN_READ_COST_BYTES || read <= cost);
                prop_assert!(found == expected);
            }
        }
    }
}
