//! Bands: the parts of a slice that is too large to be assembled as a whole. Arithmetic only.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use n5_format::{BlockGrid, Coords, Region};

/// Maximum size in bytes of a band that consists of several layers.
const MERGED_LAYERS_BYTES: u64 = 16 << 20;

/// Size of the first bands in bytes. The size doubles while the client takes bands quickly, so that a slow client does
/// not hold much memory.
const INITIAL_BAND_BYTES: u64 = 1 << 20;

/// A band grows at most to 1/32 of the free memory, so that 16 slow clients with three bands each leave memory free.
const FREE_MEMORY_DIVISOR: u64 = 32;

/// Total size of the first bands, whose growth the free memory limits, in bytes. While no more has been read, all bytes
/// may still be in the kernel's buffers or in the two bands ahead, and say nothing about the client's speed.
const PROVEN_FAST_BYTES: u64 = 24 << 20;

/// A slice before it is planned: its samples, the size of each sample, the blocks that hold the samples, and what is
/// assumed about these blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SliceGeometry<'a> {
    pub(crate) region: &'a Region,
    pub(crate) grid: &'a BlockGrid,
    /// Width of an element as decoded, in bytes.
    pub(crate) stored_width: u64,
    /// Width of an element as sent, in bytes.
    pub(crate) sent_width: u64,
    /// Bytes that an element takes in memory: the width as decoded plus, if converted, the width as sent.
    pub(crate) memory_width: u64,
    /// Number of blocks that the region touches. For a part that may lie anywhere in the dataset, the maximum over all
    /// positions.
    pub(crate) touched_blocks: u128,
    /// Number of touched blocks that may exist; `None` for all. A block that does not exist costs a lookup.
    pub(crate) existing_blocks: Option<u128>,
    /// True if the blocks are stored uncompressed and read only where the region has samples.
    pub(crate) uses_partial_reads: bool,
    /// Order in which the axes are sent if the slice is sent in bands, fastest first; `None` for the N5 axis order.
    pub(crate) axis_order: Option<&'a Arc<[usize]>>,
}

impl<'a> SliceGeometry<'a> {
    /// Creates the geometry of a slice whose elements are stored in `stored` bytes and, if they are converted, sent in
    /// `converted` bytes. Every block that the region touches may exist and is decoded whole.
    pub(crate) fn new(region: &'a Region, grid: &'a BlockGrid, stored: usize, converted: Option<usize>) -> Self {
        let stored_width = stored as u64;
        let converted_width = converted.map(|width| width as u64);
        Self {
            region,
            grid,
            stored_width,
            sent_width: converted_width.unwrap_or(stored_width),
            memory_width: stored_width.saturating_add(converted_width.unwrap_or(0)),
            touched_blocks: grid.covering(region).total(),
            existing_blocks: None,
            uses_partial_reads: false,
            axis_order: None,
        }
    }

    /// Returns the size of all samples as sent, in bytes; `None` if it exceeds 64 bits.
    pub(crate) fn sent_bytes(&self) -> Option<u64> {
        self.region.elements().and_then(|elements| elements.checked_mul(self.sent_width))
    }
}

/// Iterator over the bands of a region, in the order in which its elements are sent. Each band is assembled and sent as
/// a whole.
///
/// If the axes are sent in another order than N5's, all fields are in that order. Only the bands are in N5 axis order.
///
/// A band is one whole layer of blocks, or several thin layers. A layer that is larger than the maximum size of a band
/// is cut into bands of whole planes.
#[derive(Debug, Clone)]
pub struct Bands {
    region: Region,
    /// Maximum number of samples that the region has in one block, along each axis.
    samples_per_block: Coords,
    block_depth: u64,
    /// Axis that is cut. Slower axes advance by one sample per band.
    cut_axis: usize,
    /// Size in bytes of one plane: one sample of the cut axis, all samples of the faster axes.
    plane_bytes: u64,
    budget_bytes: u64,
    /// Size that the next band should not exceed, in bytes. A band has at least one plane and `min_depth` planes.
    next_bytes: u64,
    /// Size in bytes of all bands that have been taken, without the parts of the first plane.
    done_bytes: u64,
    /// Minimum number of planes per band. With fewer planes, blocks would be decoded too often.
    min_depth: u64,
    /// Parts of the first plane, which come before the bands, in reverse order.
    first_plane_parts: Vec<Region>,
    /// Number of samples that have been taken along the cut axis and along each slower axis.
    cursor: Coords,
    is_done: bool,
    /// Order in which the axes are sent, fastest first; `None` for the N5 axis order.
    axis_order: Option<Arc<[usize]>>,
}

impl Bands {
    /// Creates the bands of a slice. Each band takes at most `budget_bytes` of memory. If the first plane touches many
    /// blocks, the first band touches about `first_part_bytes` of them. Returns `None` if not even one element fits.
    pub(crate) fn new(geometry: SliceGeometry<'_>, budget_bytes: u64, first_part_bytes: u64) -> Option<Self> {
        let SliceGeometry { region, grid, memory_width, axis_order, .. } = geometry;
        let (region, grid) = match axis_order {
            None => (Cow::Borrowed(region), Cow::Borrowed(grid)),
            Some(axes) => (Cow::Owned(region.reordered(axes)?), Cow::Owned(grid.reordered(axes)?)),
        };
        let geometry = SliceGeometry { region: &region, grid: &grid, ..geometry };
        let mut plane_bytes = memory_width;
        let mut cut = None;
        for axis in 0..region.rank() {
            if plane_bytes > budget_bytes {
                break;
            }
            cut = Some((axis, plane_bytes));
            plane_bytes = plane_bytes.saturating_mul(region.shape()[axis]);
        }
        let (axis, plane_bytes) = cut.filter(|(_, bytes)| *bytes <= budget_bytes)?;
        let samples_per_block = |axis: usize| {
            let in_block = grid.block_size()[axis].div_ceil(region.step()[axis]);
            in_block.min(region.shape()[axis]).max(1)
        };
        let mut bands = Self {
            samples_per_block: (0..region.rank()).map(samples_per_block).collect(),
            block_depth: grid.block_size()[axis],
            cursor: region.shape()[axis..].iter().map(|_| 0).collect(),
            region: region.clone().into_owned(),
            cut_axis: axis,
            plane_bytes,
            budget_bytes,
            next_bytes: INITIAL_BAND_BYTES.min(budget_bytes),
            done_bytes: 0,
            min_depth: 1,
            first_plane_parts: split_first_plane(geometry, axis, first_part_bytes),
            is_done: false,
            axis_order: axis_order.cloned(),
        };
        if !bands.first_plane_parts.is_empty() {
            bands.advance(1);
        }
        Some(bands)
    }

    /// Returns the maximum number of times that a block is decoded, if the cache keeps no block and bands have their
    /// full size.
    pub(crate) fn decodes_per_block(&self) -> u64 {
        let planes = (self.budget_bytes / self.plane_bytes.max(1)).max(1);
        self.decodes_by_slower_axes().saturating_mul(self.samples_per_block[self.cut_axis].div_ceil(planes))
    }

    /// Returns the maximum number of samples along `axis`, in N5 axis order, that one band takes from a block with
    /// `samples` samples.
    pub(crate) fn samples_per_band(&self, axis: usize, samples: u64) -> u64 {
        let sent_axis = self.axis_order.as_ref().and_then(|axes| axes.iter().position(|other| *other == axis));
        match sent_axis.unwrap_or(axis).cmp(&self.cut_axis) {
            Ordering::Less => samples,
            Ordering::Equal => samples.min((self.budget_bytes / self.plane_bytes.max(1)).max(1)),
            Ordering::Greater => 1,
        }
    }

    fn decodes_by_slower_axes(&self) -> u64 {
        self.samples_per_block[self.cut_axis + 1..].iter().copied().fold(1, u64::saturating_mul)
    }

    /// Sets the minimum depth of bands such that no block is decoded more than `max_decodes` times.
    pub(crate) fn with_max_decodes(self, max_decodes: u64) -> Self {
        let parts = max_decodes / self.decodes_by_slower_axes();
        let parts = parts.saturating_sub(self.first_plane_parts.len() as u64).max(1);
        Self { min_depth: self.samples_per_block[self.cut_axis].div_ceil(parts), ..self }
    }

    /// Returns true if the whole region has been taken.
    pub(crate) fn is_done(&self) -> bool {
        self.first_plane_parts.is_empty() && (self.is_done || self.region.elements() == Some(0))
    }

    /// Allows a larger next band, because the client takes bands quickly. `free_bytes` is the free part of the budget.
    pub(crate) fn grow(&mut self, free_bytes: u64) {
        if !self.first_plane_parts.is_empty() {
            return;
        }
        let is_proven = self.done_bytes >= PROVEN_FAST_BYTES;
        let max_bytes =
            if is_proven { self.budget_bytes } else { (free_bytes / FREE_MEMORY_DIVISOR).max(INITIAL_BAND_BYTES) };
        self.next_bytes = self.next_bytes.saturating_mul(2).min(max_bytes).min(self.budget_bytes);
    }

    /// Limits the next band to `bytes`, but to no less than the size of the first bands.
    pub(crate) fn cap_next_bytes(&mut self, bytes: u64) {
        self.next_bytes = self.next_bytes.min(bytes.max(INITIAL_BAND_BYTES)).min(self.budget_bytes);
    }

    /// Makes the next band smaller, because bands wait for the client.
    pub(crate) fn shrink(&mut self) {
        self.next_bytes = (self.next_bytes / 2).max(INITIAL_BAND_BYTES).min(self.budget_bytes);
    }

    /// Moves the cursor `depth` samples along the cut axis.
    fn advance(&mut self, depth: u64) {
        self.cursor[0] = self.cursor[0].saturating_add(depth);
        let mut axis = 0;
        while self.cursor[axis] >= self.region.shape()[self.cut_axis + axis] {
            self.cursor[axis] = 0;
            axis += 1;
            if axis == self.cursor.len() {
                self.is_done = true;
                break;
            }
            self.cursor[axis] += 1;
        }
    }

    /// Returns a band with its axes in N5 axis order.
    fn in_stored_order(&self, band: Region) -> Option<Region> {
        let Some(axes) = &self.axis_order else { return Some(band) };
        let inverse: Option<Vec<usize>> =
            (0..axes.len()).map(|axis| axes.iter().position(|sent| *sent == axis)).collect();
        band.reordered(&inverse?)
    }

    /// Returns the number of samples along the cut axis in the band that begins at sample `from`.
    fn next_depth(&self, from: u64) -> u64 {
        let remaining = self.region.shape()[self.cut_axis].saturating_sub(from);
        let planes = |bytes: u64| bytes / self.plane_bytes.max(1);
        let fitting_planes = planes(self.next_bytes).max(self.min_depth).min(planes(self.budget_bytes)).max(1);
        let merged_planes = planes(self.next_bytes.min(MERGED_LAYERS_BYTES));
        let mut depth = self.remaining_in_layer(from).min(remaining);
        if depth > fitting_planes {
            // Bands of equal depth avoid a small band at the end of a layer.
            return depth.div_ceil(depth.div_ceil(fitting_planes)).min(remaining);
        }
        // Adds as many further whole layers as fit.
        let layer = self.block_depth.div_ceil(self.region.step()[self.cut_axis]).max(1);
        depth = depth.saturating_add(merged_planes.saturating_sub(depth) / layer * layer);
        depth.min(remaining)
    }

    /// Returns the number of samples from sample `from` to the end of the layer of blocks that holds it.
    fn remaining_in_layer(&self, from: u64) -> u64 {
        let start = i128::from(self.region.start()[self.cut_axis]);
        let step = i128::from(self.region.step()[self.cut_axis]);
        let block = i128::from(self.block_depth);
        let at = start.saturating_add(i128::from(from).saturating_mul(step));
        let end = at.div_euclid(block).saturating_add(1).saturating_mul(block);
        u64::try_from(end.saturating_sub(at).saturating_add(step - 1) / step.max(1)).unwrap_or(u64::MAX).max(1)
    }
}

impl Iterator for Bands {
    type Item = Region;

    fn next(&mut self) -> Option<Region> {
        if let Some(part) = self.first_plane_parts.pop() {
            return self.in_stored_order(part);
        }
        if self.is_done || self.region.elements() == Some(0) {
            return None;
        }
        let from = self.cursor[0];
        let depth = self.next_depth(from);
        self.done_bytes = self.done_bytes.saturating_add(depth.saturating_mul(self.plane_bytes));
        let mut band = self.region.narrow(self.cut_axis, from, depth);
        for (axis, index) in (self.cut_axis..).zip(&self.cursor).skip(1) {
            band = band.narrow(axis, *index, 1);
        }
        self.advance(depth);
        self.in_stored_order(band)
    }
}

/// Splits the first plane into parts, so that a stream begins with a part that touches few blocks. The plane has one
/// sample of `cut_axis` and of each slower axis. Returns the parts in reverse order, or none if the whole plane touches
/// only one block, or blocks of at most `first_part_bytes`.
///
/// Each part after the first completes one more axis. For example, the first plane of 1024 × 1024 elements of one byte
/// in blocks of 64 × 64 × 64, with `first_part_bytes` of 1 MiB, has three parts: x from 0 to 255 of the first row (4
/// blocks of 256 KiB), the rest of that row, and the other 1023 rows.
///
/// Several parts may touch the same block of the first layer. Their number is at most the number of axes plus one.
fn split_first_plane(geometry: SliceGeometry<'_>, cut_axis: usize, first_part_bytes: u64) -> Vec<Region> {
    let SliceGeometry { region, grid, stored_width, .. } = geometry;
    let size = |axis: usize| grid.block_size()[axis].min(grid.dimensions()[axis]).max(1);
    let block_bytes = (0..region.rank()).map(size).fold(stored_width, u64::saturating_mul).max(1);
    let samples_per_block = |axis: usize| size(axis).div_ceil(region.step()[axis]).max(1);
    let layers = |axis: usize| region.shape()[axis].div_ceil(samples_per_block(axis));
    // The first part takes the axes below `split_axis` whole. `touched_bytes` is the size of the blocks that it touches
    // if there is one layer of blocks along all further axes.
    let mut split_axis = 0;
    let mut touched_bytes = block_bytes;
    // Along an axis with one layer of blocks, all samples are in the same blocks.
    while split_axis < cut_axis
        && (layers(split_axis) == 1 || touched_bytes.saturating_mul(layers(split_axis)) <= first_part_bytes)
    {
        touched_bytes = touched_bytes.saturating_mul(layers(split_axis));
        split_axis += 1;
    }
    if split_axis == cut_axis || region.elements() == Some(0) {
        return Vec::new();
    }
    // Samples `from .. from + count` of `axis`, and one sample of every slower axis.
    let part = |axis: usize, from: u64, count: u64| {
        let one_sample = (axis + 1..region.rank()).fold(region.clone(), |part, slower| part.narrow(slower, 0, 1));
        one_sample.narrow(axis, from, count)
    };
    let blocks = (first_part_bytes / touched_bytes).max(1);
    let first_samples = samples_per_block(split_axis).saturating_mul(blocks).min(region.shape()[split_axis]);
    let mut parts = vec![part(split_axis, 0, first_samples)];
    // Number of samples that earlier parts take: `first_samples` along `split_axis`, one along each slower axis.
    let mut covered_samples = first_samples;
    for axis in split_axis..cut_axis {
        let remaining = region.shape()[axis].saturating_sub(covered_samples);
        if remaining > 0 {
            parts.push(part(axis, covered_samples, remaining));
        }
        covered_samples = 1;
    }
    parts.reverse();
    parts
}

/// Returns the shape, in samples, of a part of `region` for which `accepts` returns true; `None` if there is no such
/// part. Halves the region repeatedly, slowest axis first.
pub fn shrink_until_accepted(region: &Region, grid: &BlockGrid, accepts: impl Fn(&Region) -> bool) -> Option<Coords> {
    let mut piece_shape = region.shape().clone();
    let is_accepted = |shape: &Coords| {
        let part = Region::new(region.start().clone(), shape.clone(), region.step().clone());
        part.is_ok_and(|part| accepts(&part))
    };
    // First, the part shrinks to one block along every axis, in whole blocks. Then it shrinks below one block.
    for whole_blocks in [true, false] {
        for axis in (0..region.rank()).rev() {
            let granularity =
                if whole_blocks { grid.block_size()[axis].div_ceil(region.step()[axis]).max(1) } else { 1 };
            while piece_shape[axis] > granularity {
                if is_accepted(&piece_shape) {
                    return Some(piece_shape);
                }
                let half = (piece_shape[axis] / 2).div_ceil(granularity).saturating_mul(granularity);
                piece_shape[axis] = half.clamp(granularity, piece_shape[axis] - 1);
            }
        }
    }
    is_accepted(&piece_shape).then_some(piece_shape)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smallvec::smallvec;

    use super::super::plan::{self, BLOCK_COST_BYTES, SliceLimits, SliceRefusal, max_touched_blocks};
    use super::*;

    fn plan(geometry: SliceGeometry<'_>, limits: SliceLimits) -> Result<(u64, Option<Bands>), SliceRefusal> {
        plan::size_and_bands(geometry, limits)
    }

    /// Returns the geometry of a slice whose elements are sent as stored, in `width` bytes.
    fn unconverted<'a>(region: &'a Region, grid: &'a BlockGrid, width: usize) -> SliceGeometry<'a> {
        SliceGeometry::new(region, grid, width, None)
    }

    /// Returns the shape of a part that is accepted wherever it lies.
    fn accepted_part(geometry: SliceGeometry<'_>, limits: SliceLimits) -> Coords {
        let grid = geometry.grid;
        let accepts = |part: &Region| {
            plan(SliceGeometry { region: part, touched_blocks: max_touched_blocks(part, grid), ..geometry }, limits)
                .is_ok()
        };
        shrink_until_accepted(geometry.region, grid, accepts).unwrap()
    }

    fn limits_for_budget(budget_bytes: u64) -> SliceLimits {
        SliceLimits {
            max_slice_bytes: 1 << 40,
            budget_bytes,
            max_whole_bytes: Some(budget_bytes),
            max_band_bytes: budget_bytes,
            decode_factor: 16,
        }
    }

    /// Returns the bands with the size that they reach for a client that takes them immediately.
    fn fully_grown(bands: Bands) -> Bands {
        Bands { next_bytes: bands.budget_bytes, ..bands }
    }

    fn grid(dimensions: &[u64], block: &[u64]) -> BlockGrid {
        BlockGrid::new(dimensions.into(), block.into()).unwrap()
    }

    #[test]
    fn an_answer_within_the_budget_is_not_split() {
        let grid = grid(&[100, 100], &[50, 50]);
        let (bytes, bands) =
            plan(unconverted(&Region::whole(grid.dimensions()), &grid, 2), limits_for_budget(20_000)).unwrap();
        assert_eq!(bytes, 20_000);
        assert!(bands.is_none());
    }

    #[test]
    fn a_layer_that_fits_is_a_band() {
        let grid = grid(&[1024, 1024, 200], &[64, 64, 64]);
        let layer = 1024 * 1024 * 64;
        let (_, bands) =
            plan(unconverted(&Region::whole(grid.dimensions()), &grid, 1), limits_for_budget(layer)).unwrap();
        let depths: Vec<u64> = fully_grown(bands.unwrap()).map(|band| band.shape()[2]).collect();
        // The stream begins with some blocks, the rest of their row, and the rest of the first plane.
        assert_eq!(depths, [1, 1, 1, 63, 64, 64, 8]);
    }

    #[test]
    fn a_stream_begins_with_a_part_that_touches_few_blocks() {
        for shape in [[1 << 12, 1 << 12, 1 << 11], [1 << 14, 64, 1 << 14], [64, 1 << 14, 1 << 14]] {
            let grid = grid(&shape, &[64, 64, 64]);
            let region = Region::whole(grid.dimensions());
            let (_, bands) = plan(unconverted(&region, &grid, 1), limits_for_budget(96 << 20)).unwrap();
            let bands: Vec<Region> = bands.unwrap().take(6).collect();
            assert!(grid.covering(&bands[0]).total() <= 4, "{:?}", bands[0]);
            assert!(bands[0].elements().unwrap() >= 256);
        }
    }

    #[test]
    fn bands_follow_the_order_in_which_the_axes_are_sent() {
        let grid = grid(&[3, 130, 90, 40], &[2, 64, 64, 16]);
        let region =
            Region::new([1, 5, 0, 0][..].into(), [2, 120, 45, 40][..].into(), [1, 1, 2, 1][..].into()).unwrap();
        for order in [[1, 2, 0, 3], [3, 2, 1, 0], [2, 1, 3, 0], [0, 1, 2, 3]] {
            let order: Arc<[usize]> = order.into();
            let geometry = SliceGeometry { axis_order: Some(&order), ..unconverted(&region, &grid, 2) };
            for budget_bytes in [64, 5_000, 60_000] {
                let limits = SliceLimits { decode_factor: 1 << 20, ..limits_for_budget(budget_bytes) };
                let (bytes, bands) = plan(geometry, limits).unwrap();
                // Every band begins where the one before it ends.
                let sent_shape = region.reordered(&order).unwrap().shape().clone();
                let mut sent_elements = 0;
                for band in bands.unwrap() {
                    assert!(band.elements().unwrap() * 2 <= budget_bytes, "{band:?}");
                    let mut first = 0;
                    for (axis, size) in order.iter().zip(&sent_shape).rev() {
                        let distance = u64::try_from(band.start()[*axis] - region.start()[*axis]).unwrap();
                        first = first * size + distance / region.step()[*axis];
                    }
                    assert_eq!(first, sent_elements, "{order:?} {budget_bytes} {band:?}");
                    sent_elements += band.elements().unwrap();
                }
                assert_eq!(sent_elements * 2, bytes);
            }
        }
    }

    #[test]
    fn the_cost_of_bands_depends_on_the_order_in_which_the_axes_are_sent() {
        // Four channels of 1 MiB per plane. In the order of ImageJ, a band has all channels of 4 planes.
        let grid = grid(&[1024, 1024, 64, 4], &[64, 64, 64, 1]);
        let region = Region::whole(grid.dimensions());
        let order: Arc<[usize]> = [0, 1, 3, 2].into();
        let decodes = |axis_order| {
            let geometry = SliceGeometry { axis_order, ..unconverted(&region, &grid, 1) };
            Bands::new(geometry, 16 << 20, 1 << 20).unwrap().decodes_per_block()
        };
        assert_eq!((decodes(None), decodes(Some(&order))), (4, 16));
    }

    #[test]
    fn a_layer_that_does_not_fit_is_cut_into_equal_parts() {
        let grid = grid(&[1024, 1024, 64], &[64, 64, 64]);
        let (_, bands) =
            plan(unconverted(&Region::whole(grid.dimensions()), &grid, 1), limits_for_budget(20 << 20)).unwrap();
        let depths: Vec<u64> = fully_grown(bands.unwrap()).map(|band| band.shape()[2]).collect();
        assert_eq!(depths, [1, 1, 1, 16, 16, 16, 15]);
    }

    #[test]
    fn bands_grow_as_long_as_the_client_waits_for_them() {
        let grid = grid(&[1024, 1024, 512], &[64, 64, 64]);
        let region = Region::whole(grid.dimensions());
        let (_, bands) = plan(unconverted(&region, &grid, 1), limits_for_budget(32 << 20)).unwrap();
        let mut bands = bands.unwrap();
        let mut depths = Vec::new();
        let mut decodes = [0; 8];
        while let Some(band) = bands.next() {
            depths.push(band.shape()[2]);
            let from = band.start()[2].unsigned_abs();
            let depth = band.shape()[2];
            (from / 64..(from + depth).div_ceil(64)).for_each(|layer| decodes[usize::try_from(layer).unwrap()] += 1);
            if bands.done_bytes < 192 << 20 { bands.grow(0) } else { bands.shrink() }
        }
        assert!(depths[..9].iter().all(|depth| *depth <= 5), "{depths:?}");
        assert!(depths.iter().any(|depth| *depth > 16), "{depths:?}");
        assert!(depths.iter().rev().take(40).all(|depth| *depth <= 5), "{depths:?}");
        assert!(decodes.iter().all(|times| *times <= 16), "{decodes:?}");
    }

    #[test]
    fn thin_layers_are_joined() {
        let grid = grid(&[1024, 1024, 100], &[64, 64, 1]);
        let (_, bands) =
            plan(unconverted(&Region::whole(grid.dimensions()), &grid, 1), limits_for_budget(64 << 20)).unwrap();
        assert_eq!(fully_grown(bands.unwrap()).next().unwrap().shape()[2], 16);
    }

    #[test]
    fn a_slice_that_decodes_blocks_too_often_is_refused_with_an_acceptable_part() {
        let grid = grid(&[1 << 14, 1 << 14, 64, 64], &[64, 64, 64, 64]);
        let region = Region::whole(grid.dimensions());
        let refusal = plan(unconverted(&region, &grid, 1), limits_for_budget(128 << 20));
        assert!(matches!(refusal, Err(SliceRefusal::TooCostly { .. })));
        let piece = accepted_part(unconverted(&region, &grid, 1), limits_for_budget(128 << 20));
        let part = Region::new(smallvec![0, 0, 0, 0], piece, smallvec![1, 1, 1, 1]).unwrap();
        assert!(plan(unconverted(&part, &grid, 1), limits_for_budget(128 << 20)).is_ok());
    }

    #[test]
    fn a_terabyte_is_refused_with_an_acceptable_part() {
        let grid = grid(&[1 << 14, 1 << 14, 1 << 13], &[64, 64, 64]);
        let limits = SliceLimits { max_slice_bytes: 1 << 36, ..limits_for_budget(128 << 20) };
        let region = Region::whole(grid.dimensions());
        let Err(SliceRefusal::TooLarge { bytes, .. }) = plan(unconverted(&region, &grid, 1), limits) else {
            panic!("accepted");
        };
        let piece = accepted_part(unconverted(&region, &grid, 1), limits);
        assert_eq!(bytes, Some(1 << 41));
        let part = Region::new(smallvec![0, 0, 0], piece.clone(), smallvec![1, 1, 1]).unwrap();
        assert!(plan(unconverted(&part, &grid, 1), limits).is_ok(), "{piece:?}");
    }

    #[test]
    fn converted_elements_count_with_their_stored_and_their_sent_width() {
        let grid = grid(&[100, 100, 100], &[50, 50, 50]);
        let region = Region::whole(grid.dimensions());
        let (bytes, bands) =
            plan(SliceGeometry::new(&region, &grid, 1, Some(4)), limits_for_budget(5_000_000)).unwrap();
        assert_eq!((bytes, bands.is_some()), (4_000_000, false));
        let (_, bands) = plan(SliceGeometry::new(&region, &grid, 1, Some(4)), limits_for_budget(4_999_999)).unwrap();
        let depths: Vec<u64> = fully_grown(bands.unwrap()).map(|band| band.shape()[2]).collect();
        assert_eq!(depths, [50, 50]);
        let (bytes, bands) =
            plan(SliceGeometry::new(&region, &grid, 8, Some(1)), limits_for_budget(8_999_999)).unwrap();
        assert_eq!((bytes, bands.is_some()), (1_000_000, true));
        let limits = SliceLimits { max_whole_bytes: Some(999_999), ..limits_for_budget(1_999_999) };
        assert!(plan(unconverted(&region, &grid, 1), limits).unwrap().1.is_some());
    }

    #[test]
    fn a_plane_across_too_many_blocks_is_refused_with_an_acceptable_part() {
        let grid = grid(&[8192, 8192, 8192], &[64, 64, 64]);
        for (shape, step) in [([1, 8192, 8192], [1, 1, 1]), ([128, 128, 128], [64, 64, 64])] {
            let step = Coords::from_slice(&step);
            let region = Region::new(smallvec![0, 0, 0], Coords::from_slice(&shape), step.clone()).unwrap();
            let refusal = plan(unconverted(&region, &grid, 1), limits_for_budget(16 << 20));
            assert!(matches!(refusal, Err(SliceRefusal::TooCostly { .. })));
            let piece = accepted_part(unconverted(&region, &grid, 1), limits_for_budget(16 << 20));
            let part = Region::new(smallvec![0, 0, 0], piece.clone(), step).unwrap();
            assert!(plan(unconverted(&part, &grid, 1), limits_for_budget(16 << 20)).is_ok(), "{piece:?}");
        }
    }

    #[test]
    fn missing_blocks_are_not_counted_as_decoded() {
        let grid = grid(&[4096, 4096, 1280], &[128, 128, 128]);
        let region = Region::whole(grid.dimensions());
        let plan = |existing_blocks| {
            let geometry = SliceGeometry { existing_blocks, ..unconverted(&region, &grid, 1) };
            let limits = SliceLimits { max_band_bytes: 96 << 20, ..limits_for_budget(128 << 20) };
            plan::size_and_bands(geometry, limits)
        };
        let Err(SliceRefusal::TooCostly { affordable_blocks, .. }) = plan(None) else { panic!("accepted") };
        assert!(affordable_blocks > 5000 && affordable_blocks < 10_240, "{affordable_blocks}");
        for existing in [0, 5, affordable_blocks] {
            assert!(plan(Some(existing)).is_ok());
        }
        assert!(plan(Some(affordable_blocks + 1)).is_err());
        // Bands of a slow client are small.
        assert!(plan(Some(5)).unwrap().1.unwrap().nth(3).unwrap().elements().unwrap() <= 16 << 20);
    }

    #[test]
    fn uncompressed_blocks_count_only_the_bytes_that_are_read() {
        let plan_partial_reads = |region: &Region, grid: &BlockGrid| {
            let geometry = SliceGeometry { uses_partial_reads: true, ..unconverted(region, grid, 1) };
            plan::size_and_bands(geometry, limits_for_budget(16 << 20))
        };
        let single_block_grid = grid(&[4096, 4096, 1280], &[4096, 4096, 1280]);
        assert!(plan_partial_reads(&Region::whole(single_block_grid.dimensions()), &single_block_grid).is_ok());
        let plane = Region::new(smallvec![0, 0, 9], smallvec![8192, 8192, 1], smallvec![1, 1, 1]).unwrap();
        let grid = grid(&[8192, 8192, 8192], &[64, 64, 512]);
        assert!(plan(unconverted(&plane, &grid, 1), limits_for_budget(16 << 20)).is_err());
        assert!(plan_partial_reads(&plane, &grid).is_ok());
    }

    #[test]
    fn a_plane_of_a_usual_volume_is_not_too_costly() {
        let grid = grid(&[2048, 2048, 2048], &[64, 64, 64]);
        let plane = Region::new(smallvec![9, 0, 0], smallvec![1, 2048, 2048], smallvec![1, 1, 1]).unwrap();
        assert!(plan(unconverted(&plane, &grid, 2), limits_for_budget(128 << 20)).is_ok());
    }

    #[test]
    fn one_element_is_never_too_costly() {
        let grid = grid(&[4096, 4096, 4096], &[256, 256, 256]);
        let element = Region::new(smallvec![7, 7, 7], smallvec![1, 1, 1], smallvec![1, 1, 1]).unwrap();
        assert!(plan(unconverted(&element, &grid, 8), limits_for_budget(128 << 20)).is_ok());
    }

    proptest! {
        #[test]
        fn the_part_that_a_refusal_proposes_is_accepted(
            axes in prop::collection::vec((1u64..40, 1u64..9, 1u64..5), 1..4),
            budget in 8u64..400,
            factor in 1u64..5,
        ) {
            let grid = BlockGrid::new(
                axes.iter().map(|a| a.0).collect(),
                axes.iter().map(|a| a.1).collect(),
            ).unwrap();
            let region = Region::new(
                axes.iter().map(|_| 0).collect(),
                axes.iter().map(|a| a.0.div_ceil(a.2)).collect(),
                axes.iter().map(|a| a.2).collect(),
            ).unwrap();
            // The budget always suffices to decode one block.
            let budget = budget + 9 * 9 * 9 * 8 + u64::try_from(BLOCK_COST_BYTES).unwrap();
            let tight = SliceLimits { max_slice_bytes: budget, decode_factor: factor, ..limits_for_budget(budget) };
            if plan(unconverted(&region, &grid, 8), tight).is_err() {
                let piece = accepted_part(unconverted(&region, &grid, 8), tight);
                // The part is accepted at every position, because a client requests one part after another.
                for at in 0..4 {
                    let start = axes.iter().zip(&piece).map(|(a, n)| i64::try_from(at * n * a.2).unwrap()).collect();
                    let part = Region::new(start, piece.clone(), region.step().clone()).unwrap();
                    prop_assert!(plan(unconverted(&part, &grid, 8), tight).is_ok(), "{:?}", piece);
                }
            }
        }

        #[test]
        fn bands_are_the_region_in_order_and_fit_the_budget(
            axes in prop::collection::vec((0u64..12, 1u64..6, -3i64..5, 1u64..9, 1u64..4), 1..4),
            budget in 12u64..200,
            opening in 1u64..200,
            times in 1u64..9,
            paces in prop::collection::vec(any::<bool>(), 32),
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
            let geometry = unconverted(&region, &grid, 1);
            if let Some(bands) = Bands::new(geometry, budget, opening) {
                let mut bands = bands.with_max_decodes(times);
                bands.next_bytes = 1;
                let mut paces = paces.iter().cycle();
                while let Some(band) = bands.next() {
                    if paces.next() == Some(&true) { bands.grow(0) } else { bands.next_bytes /= 2 }
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
