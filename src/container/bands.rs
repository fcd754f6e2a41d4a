//! How a slice leaves: whole, in bands, or not at all. Arithmetic only.

use std::cmp::Ordering;

use super::cost::{Cost, Counted};
use crate::n5::{BlockGrid, Coords, Region};

/// Bands of thin layers are joined up to this many bytes.
const JOINED_BYTES: u64 = 16 << 20;

/// A stream begins with parts that touch blocks of about this many bytes, so that its first byte comes as soon as that
/// of a small slice: a whole layer of blocks of 20 GiB took 2.4 s.
const OPENING_BYTES: u64 = 1 << 20;

/// Bands begin with this many bytes, and double as long as the client takes them soon: one that takes its time does not hold
/// much memory.
const FIRST_BYTES: u64 = 1 << 20;

/// They do not grow beyond one part in so many of the memory that nobody has: three at once of each of 16 slow clients take
/// less than all.
const FREE_PARTS: u64 = 32;

/// Except for a client that has been given so much: what is sent first fills the kernels' buffers, and says nothing of how
/// fast it is; and two bands may not have been taken yet.
const PROOF_BYTES: u64 = 24 << 20;

/// Bounds that decide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Largest slice, in bytes.
    pub(super) slice_bytes: u64,
    /// Most bytes assembled at once.
    pub(super) budget_bytes: u64,
    /// Most bytes of an answer that is not sent in bands.
    pub(super) whole_bytes: u64,
    /// Bytes that a whole answer takes besides its elements, where it can leave in bands instead.
    pub(super) extra_bytes: u64,
    /// Most bytes of a band, so that a stream leaves some of the budget to others.
    pub(super) band_bytes: u64,
    /// How many times the bytes of an answer may be decoded for it.
    pub(super) decode_factor: u64,
    /// An answer leaves in bands also where it fits the budget.
    pub(super) is_banded: bool,
}

/// Bytes of an element at the stages of an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Widths {
    /// As decoded.
    pub(super) stored: u64,
    /// As sent.
    pub(super) sent: u64,
    /// While the answer is made: as decoded and, where it is converted, as sent.
    pub(super) held: u64,
}

impl Widths {
    /// Of elements of `stored` bytes that are sent with as many, or are converted to `converted` bytes.
    pub(super) fn new(stored: usize, converted: Option<usize>) -> Self {
        let stored = stored as u64;
        let converted = converted.map(|width| width as u64);
        Self { stored, sent: converted.unwrap_or(stored), held: stored.saturating_add(converted.unwrap_or(0)) }
    }
}

/// Why a slice is refused before anything is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The answer is too large.
    TooLarge {
        /// Its bytes; `None` beyond 2^64.
        bytes: Option<u64>,
        /// The limit.
        limit_bytes: u64,
    },
    /// Far more would have to be decoded than returned.
    TooCostly {
        /// Bytes to decode.
        decoded_bytes: u128,
        /// Bytes of the answer.
        bytes: u64,
        /// Bytes that may be decoded for it.
        limit_bytes: u128,
        /// How many blocks may exist for the slice to be accepted, if each of them is as large as `blockSize` allows.
        affordable_blocks: u128,
    },
}

/// The parts of a region in the order of its elements: each is assembled and sent as one.
///
/// A band is one whole layer of blocks (several, where layers are thin) or, where a layer exceeds what a band may take, as
/// many planes of it as fit.
#[derive(Debug, Clone)]
pub struct Bands {
    region: Region,
    block: u64,
    /// The axis that is cut. Slower axes advance one sample a band.
    axis: usize,
    /// Bytes of one plane: one sample of `axis`, all of the faster axes.
    plane_bytes: u64,
    budget_bytes: u64,
    /// Most bytes of the next band; never less than a plane, nor than `least_depth` of them.
    next_bytes: u64,
    /// Bytes of the bands so far.
    done_bytes: u64,
    /// Planes without which blocks would be decoded too often.
    least_depth: u64,
    /// Parts of the first plane that come first, the last of them first.
    opening: Vec<Region>,
    /// Samples of `axis` and the slower axes that are done.
    cursor: Coords,
    done: bool,
}

/// Bytes that an answer has, and the bands that it is sent in where it exceeds the budget.
pub(super) fn plan(
    region: &Region,
    grid: &BlockGrid,
    widths: Widths,
    bounds: Bounds,
    counted: Counted,
) -> Result<(u64, Option<Bands>), Refusal> {
    let limit_bytes = bounds.slice_bytes;
    let bytes = region.elements().and_then(|elements| elements.checked_mul(widths.sent));
    let Some(bytes) = bytes.filter(|bytes| *bytes <= limit_bytes) else {
        return Err(Refusal::TooLarge { bytes, limit_bytes });
    };
    let held_bytes = region.elements().unwrap_or(u64::MAX).saturating_mul(widths.held);
    let bands = if bounds.is_banded || held_bytes.saturating_add(bounds.extra_bytes) > bounds.whole_bytes {
        // `None`: not even one element fits.
        let bands = Bands::new(region, grid, widths, bounds.band_bytes, OPENING_BYTES);
        Some(bands.ok_or(Refusal::TooLarge { bytes: Some(bytes), limit_bytes })?)
    } else {
        None
    };
    let cost = Cost::new(region, grid, widths.stored, bands.as_ref(), counted);
    let factor = u128::from(bounds.decode_factor.max(1));
    let limit_bytes = factor.saturating_mul(u128::from(bytes.max(bounds.budget_bytes)));
    let decoded_bytes = cost.total_bytes();
    // Where bands cut layers of blocks that may all exist, each block may be decoded so many times and no more.
    let is_dense = counted.existing.is_none() && !counted.in_parts;
    let is_too_often = is_dense && u128::from(cost.times) > factor;
    if decoded_bytes > limit_bytes || is_too_often {
        let decoded_bytes = decoded_bytes.max(if is_too_often { limit_bytes.saturating_add(1) } else { 0 });
        let affordable_blocks = cost.affordable_blocks(limit_bytes);
        return Err(Refusal::TooCostly { decoded_bytes, bytes, limit_bytes, affordable_blocks });
    }
    let times = limit_bytes.saturating_mul(u128::from(cost.times)) / decoded_bytes.max(1);
    let most = if is_dense { bounds.decode_factor } else { u64::MAX };
    let times = u64::try_from(times).unwrap_or(u64::MAX).min(most);
    Ok((bytes, bands.map(|bands| bands.decoding_at_most(times, grid))))
}

impl Bands {
    fn new(region: &Region, grid: &BlockGrid, widths: Widths, budget_bytes: u64, opening_bytes: u64) -> Option<Self> {
        let mut plane_bytes = widths.held;
        let mut cut = None;
        for axis in 0..region.rank() {
            if plane_bytes > budget_bytes {
                break;
            }
            cut = Some((axis, plane_bytes));
            plane_bytes = plane_bytes.saturating_mul(region.shape()[axis]);
        }
        let (axis, plane_bytes) = cut.filter(|(_, bytes)| *bytes <= budget_bytes)?;
        let mut bands = Self {
            block: grid.block_size()[axis],
            cursor: region.shape()[axis..].iter().map(|_| 0).collect(),
            region: region.clone(),
            axis,
            plane_bytes,
            budget_bytes,
            next_bytes: FIRST_BYTES.min(budget_bytes),
            done_bytes: 0,
            least_depth: 1,
            opening: opening(region, grid, widths.stored, axis, opening_bytes),
            done: false,
        };
        if !bands.opening.is_empty() {
            bands.advance(1);
        }
        Some(bands)
    }

    /// How often a block is decoded at most, when the cache keeps none and bands are as large as they may be.
    pub(super) fn decodes_per_block(&self, grid: &BlockGrid) -> u64 {
        let planes = (self.budget_bytes / self.plane_bytes.max(1)).max(1);
        self.decodes_by_slower_axes(grid).saturating_mul(self.samples(self.axis, grid).div_ceil(planes))
    }

    /// Samples along `axis` of those `all` in a block that one band takes, at most.
    pub(super) fn samples_at_once(&self, axis: usize, all: u64) -> u64 {
        match axis.cmp(&self.axis) {
            Ordering::Less => all,
            Ordering::Equal => all.min((self.budget_bytes / self.plane_bytes.max(1)).max(1)),
            Ordering::Greater => 1,
        }
    }

    fn decodes_by_slower_axes(&self, grid: &BlockGrid) -> u64 {
        (self.axis + 1..self.region.rank()).map(|axis| self.samples(axis, grid)).fold(1, u64::saturating_mul)
    }

    /// Samples that are taken of a block along `axis`, at most.
    fn samples(&self, axis: usize, grid: &BlockGrid) -> u64 {
        let in_block = grid.block_size()[axis].div_ceil(self.region.step()[axis]);
        in_block.min(self.region.shape()[axis]).max(1)
    }

    /// These bands, of which small ones decode no block more often than `times`.
    fn decoding_at_most(self, times: u64, grid: &BlockGrid) -> Self {
        let parts = times / self.decodes_by_slower_axes(grid);
        let parts = parts.saturating_sub(self.opening.len() as u64).max(1);
        Self { least_depth: self.samples(self.axis, grid).div_ceil(parts), ..self }
    }

    /// Returns true if the whole region has been taken.
    pub(super) fn are_done(&self) -> bool {
        self.opening.is_empty() && (self.done || self.region.elements() == Some(0))
    }

    /// The client takes bands as they come: the next may be larger. `free_bytes` of the budget are free.
    pub(super) fn grow(&mut self, free_bytes: u64) {
        if !self.opening.is_empty() {
            return;
        }
        let is_proven = self.done_bytes >= PROOF_BYTES;
        let most_bytes = if is_proven { self.budget_bytes } else { (free_bytes / FREE_PARTS).max(FIRST_BYTES) };
        self.next_bytes = self.next_bytes.saturating_mul(2).min(most_bytes).min(self.budget_bytes);
    }

    /// The next band shall be of as many bytes at most, if it can.
    pub(super) fn fit(&mut self, bytes: u64) {
        self.next_bytes = self.next_bytes.min(bytes.max(FIRST_BYTES)).min(self.budget_bytes);
    }

    /// Bands wait for the client: the next shall be smaller.
    pub(super) fn shrink(&mut self) {
        self.next_bytes = (self.next_bytes / 2).max(FIRST_BYTES).min(self.budget_bytes);
    }

    /// Counts `depth` further samples of the cut axis as done.
    fn advance(&mut self, depth: u64) {
        self.cursor[0] = self.cursor[0].saturating_add(depth);
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
    }

    /// Number of samples along the cut axis that the band from sample `from` takes.
    fn depth(&self, from: u64) -> u64 {
        let rest = self.region.shape()[self.axis].saturating_sub(from);
        let planes = |bytes: u64| bytes / self.plane_bytes.max(1);
        let fitting = planes(self.next_bytes).max(self.least_depth).min(planes(self.budget_bytes)).max(1);
        let joined = planes(self.next_bytes.min(JOINED_BYTES));
        let mut depth = self.rest_of_layer(from).min(rest);
        if depth > fitting {
            // Equal parts: the last one of a layer is not a sliver.
            return depth.div_ceil(depth.div_ceil(fitting)).min(rest);
        }
        // Whole further layers, as many as fit.
        let layer = self.block.div_ceil(self.region.step()[self.axis]).max(1);
        depth = depth.saturating_add(joined.saturating_sub(depth) / layer * layer);
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
        if let Some(part) = self.opening.pop() {
            return Some(part);
        }
        if self.done || self.region.elements() == Some(0) {
            return None;
        }
        let from = self.cursor[0];
        let depth = self.depth(from);
        self.done_bytes = self.done_bytes.saturating_add(depth.saturating_mul(self.plane_bytes));
        let mut band = self.region.part(self.axis, from, depth);
        for (n, k) in self.cursor.iter().enumerate().skip(1) {
            band = band.part(self.axis + n, *k, 1);
        }
        self.advance(depth);
        Some(band)
    }
}

/// The first plane, one sample of `cut` and the slower axes, in parts of which the first touches few blocks and each of
/// the others as many as the axes that it grows along have; the last part first. Empty where a plane is a small part.
///
/// The blocks of the first layer are touched by several parts, at most one more than there are axes.
fn opening(region: &Region, grid: &BlockGrid, width: u64, cut: usize, opening_bytes: u64) -> Vec<Region> {
    let size = |axis: usize| grid.block_size()[axis].min(grid.dimensions()[axis]).max(1);
    let block_bytes = (0..region.rank()).map(size).fold(width, u64::saturating_mul).max(1);
    let in_block = |axis: usize| size(axis).div_ceil(region.step()[axis]).max(1);
    let layers = |axis: usize| region.shape()[axis].div_ceil(in_block(axis));
    let mut plane = region.clone();
    for axis in cut..region.rank() {
        plane = plane.part(axis, 0, 1);
    }
    // The axes below this one are taken whole from the start, and so many layers of blocks along it.
    let (mut begun, mut touched) = (0, block_bytes);
    // Of one layer, more samples touch nothing more.
    while begun < cut && (layers(begun) == 1 || touched.saturating_mul(layers(begun)) <= opening_bytes) {
        touched = touched.saturating_mul(layers(begun));
        begun += 1;
    }
    if begun == cut || region.elements() == Some(0) {
        return Vec::new();
    }
    let first = in_block(begun).saturating_mul((opening_bytes / touched).max(1)).min(region.shape()[begun]);
    let mut parts = Vec::new();
    // Samples of the axis that are done before its part begins; one of the axes above it.
    let mut done = first;
    for axis in begun..cut {
        let rest = region.shape()[axis].saturating_sub(done);
        let mut part = plane.part(axis, done, rest);
        for above in axis + 1..cut {
            part = part.part(above, 0, 1);
        }
        if rest > 0 {
            parts.push(part);
        }
        done = 1;
    }
    let mut part = plane.part(begun, 0, first);
    for above in begun + 1..cut {
        part = part.part(above, 0, 1);
    }
    parts.insert(0, part);
    parts.reverse();
    parts
}

/// Shape of a part of `region`, in samples, that is `accepted`: whole blocks along slow axes, halved from the slowest axis on
/// until it is. `None` where no part is.
pub(super) fn piece(region: &Region, grid: &BlockGrid, accepted: impl Fn(&Region) -> bool) -> Option<Coords> {
    let mut piece = region.shape().clone();
    let is_accepted = |shape: &Coords| {
        let part = Region::new(region.start().clone(), shape.clone(), region.step().clone());
        part.is_ok_and(|part| accepted(&part))
    };
    // First down to whole blocks along every axis, the slowest first; then below.
    for whole_blocks in [true, false] {
        for axis in (0..region.rank()).rev() {
            let least = if whole_blocks { grid.block_size()[axis].div_ceil(region.step()[axis]).max(1) } else { 1 };
            while piece[axis] > least {
                if is_accepted(&piece) {
                    return Some(piece);
                }
                let half = (piece[axis] / 2).div_ceil(least).saturating_mul(least);
                piece[axis] = half.clamp(least, piece[axis] - 1);
            }
        }
    }
    is_accepted(&piece).then_some(piece)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smallvec::smallvec;

    use super::super::cost::{BLOCK_COST_BYTES, most_touched};
    use super::*;

    fn plan(
        region: &Region,
        grid: &BlockGrid,
        widths: Widths,
        bounds: Bounds,
    ) -> Result<(u64, Option<Bands>), Refusal> {
        super::plan(region, grid, widths, bounds, Counted::default())
    }

    /// Shape of a piece that is accepted wherever it lies.
    fn piece(region: &Region, grid: &BlockGrid, widths: Widths, bounds: Bounds) -> Coords {
        let accepted = |part: &Region| {
            let counted = Counted { touched: Some(most_touched(part, grid)), ..Counted::default() };
            super::plan(part, grid, widths, bounds, counted).is_ok()
        };
        super::piece(region, grid, accepted).unwrap()
    }

    fn bounds(budget_bytes: u64) -> Bounds {
        Bounds {
            slice_bytes: 1 << 40,
            budget_bytes,
            whole_bytes: budget_bytes,
            extra_bytes: 0,
            band_bytes: budget_bytes,
            decode_factor: 16,
            is_banded: false,
        }
    }

    /// As large as they become for a client that takes them at once.
    fn grown(bands: Bands) -> Bands {
        Bands { next_bytes: bands.budget_bytes, ..bands }
    }

    fn grid(dimensions: &[u64], block: &[u64]) -> BlockGrid {
        BlockGrid::new(dimensions.into(), block.into()).unwrap()
    }

    #[test]
    fn an_answer_within_the_budget_leaves_whole() {
        let grid = grid(&[100, 100], &[50, 50]);
        let (bytes, bands) =
            plan(&Region::whole(grid.dimensions()), &grid, Widths::new(2, None), bounds(20_000)).unwrap();
        assert_eq!(bytes, 20_000);
        assert!(bands.is_none());
    }

    #[test]
    fn a_layer_that_fits_is_a_band() {
        let grid = grid(&[1024, 1024, 200], &[64, 64, 64]);
        let layer = 1024 * 1024 * 64;
        let (_, bands) = plan(&Region::whole(grid.dimensions()), &grid, Widths::new(1, None), bounds(layer)).unwrap();
        let depths: Vec<u64> = grown(bands.unwrap()).map(|band| band.shape()[2]).collect();
        // Some blocks, the rest of their row, and the rest of the first plane come first.
        assert_eq!(depths, [1, 1, 1, 63, 64, 64, 8]);
    }

    #[test]
    fn a_stream_begins_with_a_part_that_touches_few_blocks() {
        for shape in [[1 << 12, 1 << 12, 1 << 11], [1 << 14, 64, 1 << 14], [64, 1 << 14, 1 << 14]] {
            let grid = grid(&shape, &[64, 64, 64]);
            let region = Region::whole(grid.dimensions());
            let (_, bands) = plan(&region, &grid, Widths::new(1, None), bounds(96 << 20)).unwrap();
            let bands: Vec<Region> = bands.unwrap().take(6).collect();
            assert!(grid.covering(&bands[0]).total() <= 4, "{:?}", bands[0]);
            assert!(bands[0].elements().unwrap() >= 256);
        }
    }

    #[test]
    fn a_layer_that_does_not_fit_is_cut_into_equal_parts() {
        let grid = grid(&[1024, 1024, 64], &[64, 64, 64]);
        let (_, bands) =
            plan(&Region::whole(grid.dimensions()), &grid, Widths::new(1, None), bounds(20 << 20)).unwrap();
        let depths: Vec<u64> = grown(bands.unwrap()).map(|band| band.shape()[2]).collect();
        assert_eq!(depths, [1, 1, 1, 16, 16, 16, 15]);
    }

    #[test]
    fn bands_grow_as_long_as_the_client_waits_for_them() {
        let grid = grid(&[1024, 1024, 512], &[64, 64, 64]);
        let whole = Region::whole(grid.dimensions());
        let (_, bands) = plan(&whole, &grid, Widths::new(1, None), bounds(32 << 20)).unwrap();
        let mut bands = bands.unwrap();
        let (mut depths, mut decodes) = (Vec::new(), [0; 8]);
        while let Some(band) = bands.next() {
            depths.push(band.shape()[2]);
            let (from, depth) = (band.start()[2].unsigned_abs(), band.shape()[2]);
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
            plan(&Region::whole(grid.dimensions()), &grid, Widths::new(1, None), bounds(64 << 20)).unwrap();
        assert_eq!(grown(bands.unwrap()).next().unwrap().shape()[2], 16);
    }

    #[test]
    fn what_must_be_decoded_too_often_is_refused_with_a_piece_that_is_not() {
        let grid = grid(&[1 << 14, 1 << 14, 64, 64], &[64, 64, 64, 64]);
        let region = Region::whole(grid.dimensions());
        let refusal = plan(&region, &grid, Widths::new(1, None), bounds(128 << 20));
        assert!(matches!(refusal, Err(Refusal::TooCostly { .. })));
        let piece = piece(&region, &grid, Widths::new(1, None), bounds(128 << 20));
        let part = Region::new(smallvec![0, 0, 0, 0], piece, smallvec![1, 1, 1, 1]).unwrap();
        assert!(plan(&part, &grid, Widths::new(1, None), bounds(128 << 20)).is_ok());
    }

    #[test]
    fn a_terabyte_is_refused_with_a_piece_that_is_not() {
        let grid = grid(&[1 << 14, 1 << 14, 1 << 13], &[64, 64, 64]);
        let tight = Bounds { slice_bytes: 1 << 36, ..bounds(128 << 20) };
        let whole = Region::whole(grid.dimensions());
        let Err(Refusal::TooLarge { bytes, .. }) = plan(&whole, &grid, Widths::new(1, None), tight) else {
            panic!("accepted");
        };
        let piece = piece(&whole, &grid, Widths::new(1, None), tight);
        assert_eq!(bytes, Some(1 << 41));
        let part = Region::new(smallvec![0, 0, 0], piece.clone(), smallvec![1, 1, 1]).unwrap();
        assert!(plan(&part, &grid, Widths::new(1, None), tight).is_ok(), "{piece:?}");
    }

    #[test]
    fn converted_elements_count_as_decoded_and_as_sent_while_the_answer_is_made() {
        let grid = grid(&[100, 100, 100], &[50, 50, 50]);
        let whole = Region::whole(grid.dimensions());
        let (bytes, bands) = plan(&whole, &grid, Widths::new(1, Some(4)), bounds(5_000_000)).unwrap();
        assert_eq!((bytes, bands.is_some()), (4_000_000, false));
        let (_, bands) = plan(&whole, &grid, Widths::new(1, Some(4)), bounds(4_999_999)).unwrap();
        let depths: Vec<u64> = grown(bands.unwrap()).map(|band| band.shape()[2]).collect();
        assert_eq!(depths, [50, 50]);
        let (bytes, bands) = plan(&whole, &grid, Widths::new(8, Some(1)), bounds(8_999_999)).unwrap();
        assert_eq!((bytes, bands.is_some()), (1_000_000, true));
        let copied = Bounds { extra_bytes: 1_000_000, ..bounds(1_999_999) };
        assert!(plan(&whole, &grid, Widths::new(1, None), copied).unwrap().1.is_some());
    }

    #[test]
    fn a_plane_across_too_many_blocks_is_refused_with_a_piece_that_is_not() {
        let grid = grid(&[8192, 8192, 8192], &[64, 64, 64]);
        for (shape, step) in [([1, 8192, 8192], [1, 1, 1]), ([128, 128, 128], [64, 64, 64])] {
            let (shape, step) = (Coords::from_slice(&shape), Coords::from_slice(&step));
            let region = Region::new(smallvec![0, 0, 0], shape, step.clone()).unwrap();
            let refusal = plan(&region, &grid, Widths::new(1, None), bounds(16 << 20));
            assert!(matches!(refusal, Err(Refusal::TooCostly { .. })));
            let piece = piece(&region, &grid, Widths::new(1, None), bounds(16 << 20));
            let part = Region::new(smallvec![0, 0, 0], piece.clone(), step).unwrap();
            assert!(plan(&part, &grid, Widths::new(1, None), bounds(16 << 20)).is_ok(), "{piece:?}");
        }
    }

    #[test]
    fn blocks_that_do_not_exist_are_not_counted_as_decoded() {
        let grid = grid(&[4096, 4096, 1280], &[128, 128, 128]);
        let whole = Region::whole(grid.dimensions());
        let plan = |existing| {
            let counted = Counted { existing, ..Counted::default() };
            super::plan(
                &whole,
                &grid,
                Widths::new(1, None),
                Bounds { band_bytes: 96 << 20, ..bounds(128 << 20) },
                counted,
            )
        };
        let Err(Refusal::TooCostly { affordable_blocks, .. }) = plan(None) else { panic!("accepted") };
        assert!(affordable_blocks > 5000 && affordable_blocks < 10_240, "{affordable_blocks}");
        for existing in [0, 5, affordable_blocks] {
            assert!(plan(Some(existing)).is_ok());
        }
        assert!(plan(Some(affordable_blocks + 1)).is_err());
        // Bands of a client that reads slowly are small.
        assert!(plan(Some(5)).unwrap().1.unwrap().nth(3).unwrap().elements().unwrap() <= 16 << 20);
    }

    #[test]
    fn uncompressed_blocks_count_as_far_as_they_are_read() {
        let parts = |region: &Region, grid: &BlockGrid| {
            let counted = Counted { in_parts: true, ..Counted::default() };
            super::plan(region, grid, Widths::new(1, None), bounds(16 << 20), counted)
        };
        let grid_of_one = grid(&[4096, 4096, 1280], &[4096, 4096, 1280]);
        assert!(parts(&Region::whole(grid_of_one.dimensions()), &grid_of_one).is_ok());
        let plane = Region::new(smallvec![0, 0, 9], smallvec![8192, 8192, 1], smallvec![1, 1, 1]).unwrap();
        let grid = grid(&[8192, 8192, 8192], &[64, 64, 512]);
        assert!(plan(&plane, &grid, Widths::new(1, None), bounds(16 << 20)).is_err());
        assert!(parts(&plane, &grid).is_ok());
    }

    #[test]
    fn a_plane_of_a_usual_volume_is_not_too_costly() {
        let grid = grid(&[2048, 2048, 2048], &[64, 64, 64]);
        let plane = Region::new(smallvec![9, 0, 0], smallvec![1, 2048, 2048], smallvec![1, 1, 1]).unwrap();
        assert!(plan(&plane, &grid, Widths::new(2, None), bounds(128 << 20)).is_ok());
    }

    #[test]
    fn one_element_is_never_too_costly() {
        let grid = grid(&[4096, 4096, 4096], &[256, 256, 256]);
        let one = Region::new(smallvec![7, 7, 7], smallvec![1, 1, 1], smallvec![1, 1, 1]).unwrap();
        assert!(plan(&one, &grid, Widths::new(8, None), bounds(128 << 20)).is_ok());
    }

    proptest! {
        #[test]
        fn the_piece_of_a_refusal_is_accepted(
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
            // One block may be decoded, whatever the budget.
            let budget = budget + 9 * 9 * 9 * 8 + u64::try_from(BLOCK_COST_BYTES).unwrap();
            let tight = Bounds { slice_bytes: budget, decode_factor: factor, ..bounds(budget) };
            if plan(&region, &grid, Widths::new(8, None), tight).is_err() {
                let piece = piece(&region, &grid, Widths::new(8, None), tight);
                // Wherever it lies: a client asks for one after the other.
                for at in 0..4 {
                    let start = axes.iter().zip(&piece).map(|(a, n)| i64::try_from(at * n * a.2).unwrap()).collect();
                    let part = Region::new(start, piece.clone(), region.step().clone()).unwrap();
                    prop_assert!(plan(&part, &grid, Widths::new(8, None), tight).is_ok(), "{:?}", piece);
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
            if let Some(bands) = Bands::new(&region, &grid, Widths::new(1, None), budget, opening) {
                let mut bands = bands.decoding_at_most(times, &grid);
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
