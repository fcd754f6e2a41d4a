//! A result under construction: slabs that several jobs fill side by side.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::budget::{Budget, Permit};
use super::{Dataset, ReadError};
use crate::n5::{Coords, GridPosition, Region, paste, paste_stored};

/// A part of the result, whole along all axes but one.
pub(super) struct Slab {
    region: Region,
    len: usize,
    /// Empty until something is pasted.
    data: Mutex<Vec<u8>>,
    /// Goes where the data goes, also into a job that nobody waits for any more.
    permit: Option<Permit>,
    /// Where the permit is from, and the buffer.
    budget: Budget,
}

impl Slab {
    /// Zeros for the samples of `region`, `bytes` of them, within `permit`, a share of `budget`.
    pub(super) fn new(region: Region, bytes: u64, permit: Option<Permit>, budget: &Budget) -> Result<Self, ReadError> {
        let len = usize::try_from(bytes).map_err(|error| ReadError::Died(error.to_string()))?;
        Ok(Self { region, len, data: Mutex::new(Vec::new()), permit, budget: budget.clone() })
    }

    /// What was pasted, zeros elsewhere, and the share that goes with it.
    pub(super) fn into_parts(self) -> (Vec<u8>, Option<Permit>) {
        let data = self.data.into_inner().unwrap_or_else(PoisonError::into_inner);
        (if data.is_empty() { self.budget.zeros(self.len) } else { data }, self.permit)
    }

    /// What was pasted, zeros elsewhere, with its share of memory.
    pub(super) fn into_bytes(self) -> Bytes {
        let budget = self.budget.clone();
        match self.into_parts() {
            (data, Some(permit)) => budget.own(data, permit),
            (data, None) => data.into(),
        }
    }

    /// Whether a block holds samples of this along the axis that slabs differ in.
    fn overlaps(&self, axis: usize, origin: &Coords, size: &Coords) -> bool {
        origin.get(axis).is_none_or(|low| {
            let (from, to) = self.region.samples_within(axis, *low, low.saturating_add(size[axis]));
            from < to
        })
    }
}

/// The slabs of a region of a dataset, cut along one axis.
pub(super) struct Canvas {
    dataset: Arc<Dataset>,
    width: usize,
    axis: usize,
    slabs: Vec<Slab>,
}

/// How the elements of a block lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements {
    /// Little-endian.
    Decoded,
    /// Big-endian.
    AsStored,
}

impl Canvas {
    pub(super) fn new(dataset: &Arc<Dataset>, width: usize, axis: usize, slabs: Vec<Slab>) -> Self {
        Self { dataset: Arc::clone(dataset), width, axis, slabs }
    }

    /// Pastes the block at `position` into the slabs that it overlaps. Where several jobs do so at once, each
    /// holds one slab at a time.
    pub(super) fn paste(&self, position: &GridPosition, size: &Coords, data: &[u8], elements: Elements) {
        let grid = self.dataset.attributes.grid();
        let origin = grid.origin(position);
        let copy = if elements == Elements::Decoded { paste } else { paste_stored };
        for slab in self.slabs.iter().filter(|slab| slab.overlaps(self.axis, &origin, size)) {
            let mut to = slab.data.lock().unwrap_or_else(PoisonError::into_inner);
            if to.is_empty() {
                *to = slab.budget.zeros(slab.len);
            }
            copy(&mut to, &slab.region, data, &origin, size, grid.dimensions(), self.width);
        }
    }

    pub(super) fn into_slabs(self) -> Vec<Slab> {
        self.slabs
    }
}
