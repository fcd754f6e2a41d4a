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

/// More bytes of samples are not gathered: no budget knows of them.
const GATHERED_BYTES: u64 = 32 << 10;

/// The samples of one block that lie apart in it, each in a cache line of its own as in a yz plane. Finding them takes
/// so much longer than writing them side by side that it is done before the slab is locked: two jobs took turns.
struct Gathered {
    part: Region,
    /// Number of the part's first sample along each axis of the slab.
    at: Coords,
    data: Vec<u8>,
}

impl Gathered {
    /// Room for the samples of `region` in a block, where it is worth it.
    fn new(region: &Region, origin: &Coords, size: &Coords, dimensions: &Coords, width: usize) -> Option<Self> {
        let step = *region.step().first()?;
        let (mut part, mut at) = (region.clone(), Coords::new());
        for (axis, ((low, size), dimension)) in origin.iter().zip(size).zip(dimensions).enumerate() {
            let (from, to) = region.samples_within(axis, *low, low.saturating_add(*size).min(*dimension));
            part = part.part(axis, from, to.saturating_sub(from));
            at.push(from);
        }
        let elements = part.elements()?;
        let is_apart = elements > 1 && (step > 1 || part.shape().first() == Some(&1));
        let bytes = elements.saturating_mul(width as u64);
        if !is_apart || bytes > GATHERED_BYTES {
            return None;
        }
        Some(Self { part, at, data: vec![0; usize::try_from(bytes).ok()?] })
    }
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
            let samples =
                Gathered::new(&slab.region, &origin, size, grid.dimensions(), self.width).map(|mut gathered| {
                    copy(&mut gathered.data, &gathered.part, data, &origin, size, grid.dimensions(), self.width);
                    gathered
                });
            let mut to = slab.data.lock().unwrap_or_else(PoisonError::into_inner);
            if to.is_empty() {
                *to = slab.budget.zeros(slab.len);
            }
            match samples {
                Some(Gathered { part, at, data }) => {
                    let all = Region::whole(slab.region.shape());
                    paste(&mut to, &all, &data, &at, part.shape(), all.shape(), self.width);
                }
                None => copy(&mut to, &slab.region, data, &origin, size, grid.dimensions(), self.width),
            }
        }
    }

    pub(super) fn into_slabs(self) -> Vec<Slab> {
        self.slabs
    }
}
