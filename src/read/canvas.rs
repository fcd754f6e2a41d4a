//! A result under construction: slabs that several jobs fill concurrently.
//!
//! A slab's buffer may hold the contents of an older response. The buffer is not zeroed first, because that takes up to
//! an eighth of a slice's time. Instead, a slab tracks the blocks that have not been pasted yet. When the slab is
//! finished, zeros are written in the places of these blocks.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cache::{Budget, Permit, ReadError};
use n5_format::{BlockGrid, Coords, GridPosition, Region, SampleLayout, paste, paste_big_endian, paste_zeros};

/// Minimum average size of the blocks' parts of a slab, in bytes. If the parts are smaller, the whole slab is zeroed,
/// which costs less than tracking the unwritten blocks. Debug builds always track, so that tests exercise the tracking.
const MIN_TRACKED_CELL_BYTES: u64 = if cfg!(debug_assertions) { 0 } else { 1024 };

/// Maximum size of the samples that a job gathers before it locks a slab, in bytes. The buffer is not charged to
/// any budget.
const MAX_GATHER_BYTES: u64 = 32 << 10;

/// A part of the result, complete along all axes but one.
pub(crate) struct Slab {
    region: Region,
    len: usize,
    content: Mutex<SlabContent>,
    /// Permit for the data. The slab owns the permit, because a job may fill the slab after the request has ended.
    permit: Permit,
}

/// Contents of a slab.
#[derive(Default)]
struct SlabContent {
    /// Empty until something is pasted.
    data: Vec<u8>,
    /// Blocks that have not been pasted. In their places, `data` still has the contents of an older response. In all
    /// other places, it has zeros or elements.
    unwritten: HashSet<GridPosition>,
}

impl Slab {
    /// Creates a slab for the samples of `region`, which take `bytes` of memory covered by `permit`.
    pub(crate) fn new(region: Region, bytes: u64, permit: Permit) -> Result<Self, ReadError> {
        let len = usize::try_from(bytes).map_err(|error| ReadError::Internal(error.to_string()))?;
        Ok(Self { region, len, content: Mutex::default(), permit })
    }
}

/// Writes zeros to all samples of a region in the place of a block. Returns false if `target` is too short for the
/// region.
fn clear_cell(
    target: &mut [u8],
    layout: SampleLayout<'_>,
    grid: &BlockGrid,
    position: &GridPosition,
    width: usize,
) -> bool {
    paste_zeros(target, layout, &grid.origin(position), grid.block_size(), grid.dimensions(), width)
}

/// The slabs of a region of a dataset, cut along one axis at equal distances.
pub(crate) struct Canvas {
    grid: BlockGrid,
    width: usize,
    region: Region,
    axis: usize,
    /// Order of the axes in every slab, fastest first; `None` for the N5 axis order.
    axis_order: Option<Arc<[usize]>>,
    slabs: Vec<Slab>,
    /// Budget of the slabs' permits and buffers.
    budget: Budget,
}

/// Returns the part of `region` in the block of `size` at `origin`, and the index of its first sample along each axis
/// of `region`.
fn samples_in_block(region: &Region, grid: &BlockGrid, origin: &Coords, size: &Coords) -> (Region, Coords) {
    let mut part = region.clone();
    let mut offset = Coords::new();
    for (axis, ((low, size), dimension)) in origin.iter().zip(size).zip(grid.dimensions()).enumerate() {
        let (from, to) = region.samples_within(axis, *low, low.saturating_add(*size).min(*dimension));
        part = part.narrow(axis, from, to.saturating_sub(from));
        offset.push(from);
    }
    (part, offset)
}

/// Returns a zeroed buffer for `samples`, which lie in one block. Returns `None` unless the samples are scattered: each
/// lies in another cache line of the block, as in a yz plane.
///
/// Collecting such samples takes much longer than writing them contiguously. They are gathered before the slab is
/// locked, so that two jobs do not wait for each other.
fn scattered_buffer(samples: &Region, width: usize) -> Option<Vec<u8>> {
    let step = *samples.step().first()?;
    let elements = samples.elements()?;
    let is_strided = elements > 1 && (step > 1 || samples.shape().first() == Some(&1));
    let bytes = elements.saturating_mul(width as u64);
    let len = usize::try_from(bytes).ok().filter(|_| is_strided && bytes <= MAX_GATHER_BYTES)?;
    Some(vec![0; len])
}

/// Byte order of a block's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ElementByteOrder {
    /// Little-endian, as decoded.
    LittleEndian,
    /// Big-endian, as stored.
    BigEndian,
}

impl Canvas {
    /// Creates a canvas for `region` of the grid's dataset. The slabs cover the region in the order of `axis`. All
    /// slabs but the last one have the same number of samples along this axis. `budget` granted the permits of the
    /// slabs.
    pub(crate) fn new(
        grid: BlockGrid,
        width: usize,
        region: Region,
        axis: usize,
        slabs: Vec<Slab>,
        budget: &Budget,
    ) -> Self {
        Self { grid, width, region, axis, axis_order: None, slabs, budget: budget.clone() }
    }

    /// Sets the order of the axes in the slabs, fastest first. The slabs must be cut along the slowest of the axes that
    /// have more than one sample.
    pub(crate) fn with_axis_order(self, axis_order: Option<Arc<[usize]>>) -> Self {
        Self { axis_order, ..self }
    }

    /// Returns the layout of the samples of `region` in a slab.
    fn layout<'a>(&'a self, region: &'a Region) -> SampleLayout<'a> {
        SampleLayout { region, axes: self.axis_order.as_deref() }
    }

    /// Returns the region whose samples the canvas holds.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Pastes the block at `position` into the slabs that it overlaps. Concurrent jobs lock one slab at a time.
    pub(crate) fn paste(&self, position: &GridPosition, size: &Coords, data: &[u8], byte_order: ElementByteOrder) {
        let grid = &self.grid;
        let width = self.width;
        let origin = grid.origin(position);
        let is_whole = size.iter().zip(&grid.clipped_size(position)).all(|(size, all)| size >= all);
        let copy = |to: &mut [u8], layout: SampleLayout<'_>| match byte_order {
            ElementByteOrder::LittleEndian => paste(to, layout, data, &origin, size, grid.dimensions(), width),
            ElementByteOrder::BigEndian => paste_big_endian(to, layout, data, &origin, size, grid.dimensions(), width),
        };
        for slab in self.overlapping(&origin, size) {
            let (samples, offset) = samples_in_block(&slab.region, grid, &origin, size);
            let mut gathered = scattered_buffer(&samples, width);
            if let Some(buffer) = &mut gathered
                && !copy(buffer, (&samples).into())
            {
                gathered = None;
            }
            let mut content = self.lock_content(slab);
            let SlabContent { data: target, unwritten } = &mut *content;
            let must_clear = !is_whole && unwritten.contains(position);
            if must_clear && !clear_cell(target, self.layout(&slab.region), grid, position, width) {
                continue;
            }
            let is_copied = match gathered {
                Some(gathered) => {
                    let whole_slab = Region::whole(slab.region.shape());
                    let layout = self.layout(&whole_slab);
                    paste(target, layout, &gathered, &offset, samples.shape(), whole_slab.shape(), width)
                }
                None => copy(target, self.layout(&slab.region)),
            };
            if is_copied || must_clear {
                unwritten.remove(position);
            }
        }
    }

    /// Locks the contents of a slab. The buffer is allocated for the first block.
    fn lock_content<'a>(&self, slab: &'a Slab) -> MutexGuard<'a, SlabContent> {
        let mut content = slab.content.lock().unwrap_or_else(PoisonError::into_inner);
        if content.data.is_empty() {
            *content = self.allocate_content(slab);
        }
        content
    }

    /// Allocates the buffer of a slab. Fills it with zeros if it was used before and its blocks are not tracked.
    fn allocate_content(&self, slab: &Slab) -> SlabContent {
        let (mut data, is_zero) = self.budget.dirty_or_zeroed(slab.len);
        let mut unwritten = HashSet::new();
        if !is_zero {
            let is_within = (0..slab.region.rank()).all(|axis| {
                let samples = slab.region.samples_within(axis, 0, self.grid.dimensions()[axis]);
                samples == (0, slab.region.shape()[axis])
            });
            let covering = self.grid.covering(&slab.region);
            if is_within && covering.total().saturating_mul(MIN_TRACKED_CELL_BYTES.into()) <= slab.len as u128 {
                unwritten = covering.collect();
            } else {
                data.fill(0);
            }
        }
        SlabContent { data, unwritten }
    }

    /// Writes zeros in the place of the block at `position`, for [`Self::paste_part`].
    pub(crate) fn clear(&self, position: &GridPosition) {
        let grid = &self.grid;
        for slab in self.overlapping(&grid.origin(position), grid.block_size()) {
            let mut content = self.lock_content(slab);
            let SlabContent { data: target, unwritten } = &mut *content;
            // A place that cannot be cleared stays unwritten, so that [`Self::finish`] fails.
            if clear_cell(target, self.layout(&slab.region), grid, position, self.width) {
                unwritten.remove(position);
            }
        }
    }

    /// Pastes a part of a stored block whose place is [cleared](Self::clear): `size` big-endian elements at `origin`,
    /// counted from the dataset's first element.
    pub(crate) fn paste_part(&self, origin: &Coords, size: &Coords, data: &[u8]) {
        for slab in self.overlapping(origin, size) {
            let mut content = slab.content.lock().unwrap_or_else(PoisonError::into_inner);
            let layout = self.layout(&slab.region);
            paste_big_endian(&mut content.data, layout, data, origin, size, self.grid.dimensions(), self.width);
        }
    }

    /// Returns the slabs that may hold samples of a block.
    fn overlapping(&self, origin: &Coords, size: &Coords) -> &[Slab] {
        let (Some(first), Some(low)) = (self.slabs.first(), origin.get(self.axis)) else { return &self.slabs };
        let depth = first.region.shape()[self.axis].max(1);
        let (from, to) = self.region.samples_within(self.axis, *low, low.saturating_add(size[self.axis]));
        let slab_index = |samples: u64| usize::try_from(samples).unwrap_or(usize::MAX);
        self.slabs.get(slab_index(from / depth)..slab_index(to.div_ceil(depth))).unwrap_or_default()
    }

    /// Returns true if every slab has a buffer and all its blocks, so that [`Self::finish`] takes no time.
    pub(crate) fn is_complete(&self) -> bool {
        self.slabs.iter().all(|slab| {
            let content = slab.content.lock().unwrap_or_else(PoisonError::into_inner);
            !content.data.is_empty() && content.unwritten.is_empty()
        })
    }

    /// Returns the elements of the slabs and their permits, with zeros where nothing was pasted.
    pub(crate) fn finish(self) -> Result<Vec<(Vec<u8>, Permit)>, ReadError> {
        let Self { grid, width, axis_order, slabs, budget, .. } = self;
        let finished = slabs.into_iter().map(|Slab { region, len, content, permit }| {
            let SlabContent { mut data, unwritten } = content.into_inner().unwrap_or_else(PoisonError::into_inner);
            if data.is_empty() {
                data = budget.zeroed(len);
            }
            let layout = SampleLayout { region: &region, axes: axis_order.as_deref() };
            for position in unwritten {
                if !clear_cell(&mut data, layout, &grid, &position, width) {
                    let message = format!("the place of block {position:?} in its slab cannot be cleared");
                    return Err(ReadError::Internal(message));
                }
            }
            Ok((data, permit))
        });
        finished.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::cache::POISON_BYTE;
    use crate::telemetry::metrics;

    /// Dimension and block size of the grid; start, samples and step of the region.
    type CanvasAxisCase = (u64, u64, i64, u64, u64);

    fn axis() -> impl Strategy<Value = CanvasAxisCase> {
        (0u64..12, 1u64..6, -3i64..10, 1u64..9, 1u64..5)
    }

    /// Stored form of a block.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum StoredCase {
        Hole,
        Cropped,
        Full,
        /// One element shorter than its place along every axis.
        Shorter,
    }

    fn take_permit(budget: &Budget, bytes: u64) -> Permit {
        budget.try_take(bytes).unwrap()
    }

    /// Returns a budget whose pool has `count` used buffers of `bytes`.
    fn budget_with_used_buffers(bytes: u64, count: usize) -> Budget {
        let budget = Budget::new(metrics::BudgetLabel::Slice, 1 << 30, Duration::ZERO);
        let used: Vec<Bytes> = (0..count)
            .map(|_| budget.own_pooled(vec![POISON_BYTE; usize::try_from(bytes).unwrap()], take_permit(&budget, bytes)))
            .collect();
        drop(used);
        budget
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn no_bytes_of_an_older_answer_remain(
            axes in prop::collection::vec(axis(), 1..4),
            stored in prop::collection::vec(
                prop::sample::select(vec![StoredCase::Hole, StoredCase::Cropped, StoredCase::Full, StoredCase::Full, StoredCase::Shorter]),
                1..40,
            ),
            cut in 0usize..3,
            depth in 1u64..4,
            width in prop::sample::select(vec![1usize, 2, 8]),
            from_end in any::<bool>(),
            order in proptest::option::of(Just((0..3usize).collect::<Vec<_>>()).prop_shuffle()),
        ) {
            let grid = BlockGrid::new(axes.iter().map(|a| a.0).collect(), axes.iter().map(|a| a.1).collect()).unwrap();
            let region = Region::new(
                axes.iter().map(|a| a.2).collect(),
                axes.iter().map(|a| a.3).collect(),
                axes.iter().map(|a| a.4).collect(),
            ).unwrap();
            let cut = cut % region.rank();
            let plane_bytes = region.elements().unwrap() / region.shape()[cut] * width as u64;
            let budget = budget_with_used_buffers(plane_bytes * depth, 16);
            let mut slabs = Vec::new();
            let mut expected = Vec::new();
            for from in (0..region.shape()[cut]).step_by(usize::try_from(depth).unwrap()) {
                let part = region.narrow(cut, from, depth);
                let bytes = part.shape()[cut] * plane_bytes;
                expected.push((part.clone(), vec![0; usize::try_from(bytes).unwrap()]));
                slabs.push(Slab::new(part, bytes, take_permit(&budget, bytes)).unwrap());
            }
            let order: Option<Arc<[usize]>> =
                order.map(|axes| axes.into_iter().filter(|axis| *axis < region.rank()).collect());
            let canvas = Canvas::new(grid.clone(), width, region.clone(), cut, slabs, &budget)
                .with_axis_order(order.clone());
            let mut positions: Vec<GridPosition> = grid.covering(&region).collect();
            if from_end {
                positions.reverse();
            }
            for (position, stored) in positions.iter().zip(stored.iter().cycle()) {
                let size: Coords = match stored {
                    StoredCase::Hole => continue,
                    StoredCase::Full => grid.block_size().clone(),
                    StoredCase::Cropped => grid.clipped_size(position),
                    StoredCase::Shorter => grid.clipped_size(position).iter().map(|n| n - 1).collect(),
                };
                let elements = usize::try_from(size.iter().product::<u64>()).unwrap();
                let block: Vec<u8> = vec![1; elements * width];
                canvas.paste(position, &size, &block, ElementByteOrder::BigEndian);
                for (part, expected) in &mut expected {
                    let layout = SampleLayout { region: part, axes: order.as_deref() };
                    paste(expected, layout, &block, &grid.origin(position), &size, grid.dimensions(), width);
                }
            }
            for ((filled, permit), (_, expected)) in canvas.finish().unwrap().into_iter().zip(expected) {
                prop_assert_eq!(budget.own_pooled(filled, permit), expected);
            }
        }
    }

    #[test]
    fn used_buffers_are_reused_without_being_zeroed() {
        let budget = budget_with_used_buffers(1 << 20, 1);
        let grid = BlockGrid::new([1 << 19, 2].into_iter().collect(), [1 << 19, 1].into_iter().collect()).unwrap();
        let region = Region::whole(grid.dimensions());
        let slab = Slab::new(region.clone(), 1 << 20, take_permit(&budget, 1 << 20)).unwrap();
        let canvas = Canvas::new(grid, 1, region, 1, vec![slab], &budget);
        let position: GridPosition = [0, 1].into_iter().collect();
        canvas.paste(&position, &[1 << 19, 1].into_iter().collect(), &vec![3; 1 << 19], ElementByteOrder::LittleEndian);
        if cfg!(debug_assertions) {
            let content = canvas.slabs[0].content.lock().unwrap();
            assert!(content.data.starts_with(&[POISON_BYTE; 9]));
            assert_eq!(content.unwritten.len(), 1);
        }
        assert!(!canvas.is_complete());
        let (bytes, _permit) = canvas.finish().unwrap().pop().unwrap();
        assert!(bytes[..1 << 19].iter().all(|byte| *byte == 0));
        assert!(bytes[1 << 19..].iter().all(|byte| *byte == 3));
    }
}
