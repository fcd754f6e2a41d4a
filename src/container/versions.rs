//! Which versions of blocks an answer that leaves in bands is made of: where bands cut a block, all of them must have the same.
//!
//! No version is kept of any block. A band has all samples of the fast axes, so what has samples of one block of a layer has some
//! of each, and a sum over the layer stands for their versions: the next band that cuts it must come to the same. Where a slower
//! axis makes bands come back to blocks, the sums over all layers of the pass before and of this one must be the same, and so
//! on: one sum for each axis.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::stats::seed_of;
use super::{Dataset, ReadError};
use crate::n5::{BlockGrid, GridPosition, Region};
use crate::store::{Key, Meta, StoreError};

/// What is known of the blocks of the bands so far.
#[derive(Debug)]
pub(super) struct Versions {
    dataset: Key,
    grid: BlockGrid,
    /// All that the bands are parts of.
    region: Region,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// The band that is read has all samples of the axes below this one, and one of each axis above.
    axis: usize,
    /// Sums over layers of blocks of the band that is read, by the layer's index along that axis. Those of some may be to come.
    band: BTreeMap<u64, u64>,
    /// For each axis.
    passes: Vec<Pass>,
}

/// Layers of blocks along one axis, from the first to the last that the answer has samples of.
#[derive(Debug, Clone, Copy, Default)]
struct Pass {
    /// The index of the last layer so far, and the sum over its blocks.
    last: Option<(u64, u64)>,
    /// The sum over the layers before that.
    before: u64,
}

impl Pass {
    /// The next band, or the next pass along a faster axis, comes to `sum` for the blocks at `index`; returns false where the one
    /// before came to another.
    fn goes_on(&mut self, index: u64, sum: u64) -> bool {
        match self.last {
            Some((last, known)) if last == index => return known == sum,
            Some((_, known)) => self.before = self.before.wrapping_add(known),
            None => {}
        }
        self.last = Some((index, sum));
        true
    }

    /// The sum over all layers.
    fn end(self) -> u64 {
        self.before.wrapping_add(self.last.map_or(0, |(_, sum)| sum))
    }
}

impl Versions {
    /// Before the first band of `region`.
    pub(super) fn new(dataset: &Dataset, region: &Region) -> Self {
        Self::of(dataset.key.clone(), dataset.attributes.grid().clone(), region.clone())
    }

    fn of(dataset: Key, grid: BlockGrid, region: Region) -> Self {
        let passes = vec![Pass::default(); region.rank()];
        Self { dataset, grid, region, seen: Mutex::new(Seen { axis: 0, band: BTreeMap::new(), passes }) }
    }

    /// `band` is read, which comes after all that have been.
    pub(super) fn begin_band(&self, band: &Region) {
        let axis = (0..band.rank()).find(|axis| band.shape()[*axis] < self.region.shape()[*axis]);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.axis = axis.unwrap_or(band.rank());
        seen.band.clear();
    }

    /// Counts a block of the band, or the hole there; once.
    pub(super) fn count(&self, position: &GridPosition, stored: Option<&Meta>) {
        let version = stored.map_or(0, |meta| xxh3_64_with_seed(&meta.content.to_le_bytes(), seed_of(position)));
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // A band that is the whole region cuts nothing.
        if let Some(index) = position.get(seen.axis) {
            let sum = seen.band.entry(*index).or_default();
            *sum = sum.wrapping_add(version);
        }
    }

    /// All blocks up to the one at `position` have been counted: layers before its own are compared.
    ///
    /// # Errors
    /// [`StoreError::Torn`] where a block of them has changed since the last band.
    pub(super) fn compare_before(&self, position: &GridPosition) -> Result<(), ReadError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = position.get(seen.axis) else { return Ok(()) };
        let rest = seen.band.split_off(index);
        let complete = std::mem::replace(&mut seen.band, rest);
        self.told(seen.go_on(complete))
    }

    /// All blocks of `band` have been counted.
    ///
    /// # Errors
    /// As [`Self::compare_before`].
    pub(super) fn end_band(&self, band: &Region) -> Result<(), ReadError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let complete = std::mem::take(&mut seen.band);
        let mut is_same = seen.go_on(complete);
        for axis in seen.axis..band.rank() {
            if last_of(band, axis) < last_of(&self.region, axis) {
                break;
            }
            let sum = std::mem::take(&mut seen.passes[axis]).end();
            // Of samples outside the dataset, which may be in its last blocks, nothing is read.
            let slower = seen.passes.get_mut(axis + 1).zip(self.layer(band, axis + 1));
            is_same &= slower.is_none_or(|(pass, index)| pass.goes_on(index, sum));
        }
        self.told(is_same)
    }

    /// Index along `axis` of the blocks that hold the first sample of `band`, if that is one of the dataset.
    fn layer(&self, band: &Region, axis: usize) -> Option<u64> {
        let at = u64::try_from(*band.start().get(axis)?).ok().filter(|at| *at < self.grid.dimensions()[axis])?;
        at.checked_div(self.grid.block_size()[axis])
    }

    fn told(&self, is_same: bool) -> Result<(), ReadError> {
        if is_same { Ok(()) } else { Err(StoreError::Torn(self.dataset.clone()).into()) }
    }
}

impl Seen {
    /// Compares the sums over `layers` of the band; returns false where a block has changed since the last one.
    fn go_on(&mut self, layers: BTreeMap<u64, u64>) -> bool {
        let Some(pass) = self.passes.get_mut(self.axis) else { return true };
        layers.into_iter().all(|(index, sum)| pass.goes_on(index, sum))
    }
}

/// The index of the last sample of `region` along `axis`.
fn last_of(region: &Region, axis: usize) -> i128 {
    let steps = i128::from(region.shape()[axis]) - 1;
    i128::from(region.start()[axis]).saturating_add(steps.saturating_mul(region.step()[axis].into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bands::{Bounds, Widths, plan};
    use super::super::cost::Counted;
    use super::*;

    /// So large that a stream of few of them has an opening.
    const WIDTH: usize = 256 << 10;

    fn meta(content: u64) -> Meta {
        Meta { len: 0, modified: None, etag: "".into(), version: 0, content }
    }

    fn axis() -> impl Strategy<Value = ((u64, u64), (i64, u64, u64))> {
        ((1..24u64, 1..8u64), (-3..6i64, 1..16u64, prop_oneof![Just(1), 1..9u64]))
    }

    proptest! {
        /// What changes between two bands that cut its block ends the answer, and nothing else does.
        #[test]
        fn a_block_that_changes_between_bands_that_cut_it_is_found(
            axes in prop::collection::vec(axis(), 1..5),
            planes in 1..40u64,
            paces in prop::collection::vec(any::<bool>(), 1..9),
            batch in 1..5usize,
            changed in any::<prop::sample::Index>(),
            after in any::<prop::sample::Index>(),
            was_hole in any::<bool>(),
        ) {
            let (dataset, asked): (Vec<_>, Vec<_>) = axes.into_iter().unzip();
            let (dimensions, block): (Vec<u64>, Vec<u64>) = dataset.into_iter().unzip();
            let start = asked.iter().map(|axis| axis.0).collect();
            let shape = asked.iter().map(|axis| axis.1).collect();
            let region = Region::new(start, shape, asked.iter().map(|axis| axis.2).collect()).unwrap();
            let grid = BlockGrid::new(dimensions.into(), block.into()).unwrap();
            let budget_bytes = planes * WIDTH as u64;
            let bounds = Bounds {
                slice_bytes: u64::MAX,
                budget_bytes,
                whole_bytes: budget_bytes,
                extra_bytes: 0,
                band_bytes: budget_bytes,
                decode_factor: 1 << 20,
                is_banded: true,
            };
            let planned = plan(&region, &grid, Widths::new(WIDTH, None), bounds, Counted::default());
            let mut bands = planned.unwrap().1.unwrap();
            let mut all = Vec::new();
            while let Some(band) = bands.next() {
                if paces[all.len() % paces.len()] { bands.grow(u64::MAX) } else { bands.shrink() }
                all.push(band);
            }
            let blocks: Vec<GridPosition> = grid.covering(&region).collect();
            if blocks.is_empty() {
                return Ok(());
            }
            let (changed, after) = (changed.get(&blocks), after.index(all.len()));
            let stored = |position: &GridPosition, n: usize| match (position == changed, n < after) {
                (true, true) => (!was_hole).then(|| meta(1)),
                (true, false) => Some(meta(2)),
                (false, _) => (position.iter().sum::<u64>() % 3 > 0).then(|| meta(7)),
            };
            let touch = |band: &Region| grid.covering(band).any(|position| position == *changed);
            let is_cut = all[..after].iter().any(touch) && all[after..].iter().any(touch);
            for is_changed in [false, true] {
                let versions = Versions::of(Key::root(), grid.clone(), region.clone());
                let read = all.iter().enumerate().try_for_each(|(n, band)| {
                    versions.begin_band(band);
                    let positions: Vec<GridPosition> = grid.covering(band).collect();
                    for batch in positions.chunks(batch) {
                        for position in batch.iter().rev() {
                            versions.count(position, stored(position, if is_changed { n } else { 0 }).as_ref());
                        }
                        versions.compare_before(batch.last().unwrap())?;
                    }
                    versions.end_band(band)
                });
                prop_assert_eq!(read.is_err(), is_changed && is_cut, "{:?}", all);
            }
        }
    }
}
