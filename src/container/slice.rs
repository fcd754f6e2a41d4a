//! Reading a region: admit, gather what is cached and load the rest, paste what is ready.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::admit::Slice;
use super::blocks::{Loaded, Place};
use super::budget::{Memory, Permit};
use super::stats::{Fingerprint, ReadStats};
use super::{Access, Container, Dataset, ReadError};
use crate::n5::{ConvertError, Coords, GridPosition, Region, paste};
use crate::store::Key;

/// Blocks of one slice that are loaded at once.
pub(super) const LOADS: usize = 8;

/// Cached blocks that one slice looks up and pastes at once.
const LOOKED_UP: u64 = 256;

/// Decoded bytes of the blocks that one slice looks up at once, where that is fewer.
const LOOKED_UP_BYTES: u64 = 32 << 20;

/// A band is assembled in buffers of about this size, each freed as soon as it is sent.
const SLAB_BYTES: u64 = 4 << 20;

/// Later bands of an answer that has begun wait this many times longer for memory.
const BAND_PATIENCE: u32 = 6;

/// Turns a piece of a streamed slice, converted already, into what is sent: as many bytes.
pub type Finish = Arc<dyn Fn(Bytes) -> Bytes + Send + Sync>;

/// A part of the result, whole along all axes but one.
struct Slab {
    region: Region,
    data: Vec<u8>,
    /// Goes where the data goes, also into a job that nobody waits for any more.
    permit: Option<Permit>,
}

impl Slab {
    fn into_bytes(self) -> Bytes {
        match self.permit {
            Some(permit) => permit.own(self.data),
            None => self.data.into(),
        }
    }
}

impl Container {
    /// Reads a slice that is not streamed, with `extra_bytes` of memory for what will be made of it beyond the
    /// converted elements, which have theirs.
    ///
    /// The elements are those of the dataset, not converted yet: little-endian, first axis fastest; holes and what lies outside the dataset are
    /// zero. A region that is exactly one stored block shares the cached block's buffer.
    ///
    /// # Errors
    /// [`ReadError`] of the first block that cannot be read, or when memory is short.
    pub async fn read_slice(
        &self,
        access: Access,
        slice: &Slice,
        extra_bytes: u64,
    ) -> Result<(Bytes, Memory, ReadStats), ReadError> {
        let held_bytes = slice.held_bytes();
        let bytes = slice.region.elements().unwrap_or(u64::MAX).saturating_mul(slice.widths.stored);
        let mut permit = self.resources.slice_budget.take(held_bytes.saturating_add(extra_bytes)).await?;
        let extra_bytes = held_bytes.saturating_sub(bytes).saturating_add(extra_bytes);
        let mut stats = ReadStats::default();
        let extra = if extra_bytes > 0 { permit.split(extra_bytes) } else { None };
        if let Some(bytes) = self.whole_block(access, slice, &mut stats).await? {
            return Ok((bytes, Memory::of(extra), stats));
        }
        let slab = Slab { data: zeroed(bytes)?, region: slice.region.clone(), permit: Some(permit) };
        stats = ReadStats::default();
        let mut slabs = self.gather(access, slice, &slice.region, vec![slab], 0, &mut stats).await?;
        let data = slabs.pop().map(Slab::into_bytes).unwrap_or_default();
        Ok((data, Memory::of(extra), stats))
    }

    /// Reads the next band of a streamed slice: pieces to be sent in this order, each giving its memory
    /// back as soon as it is sent. `None` after the last.
    ///
    /// The elements are converted where the slice says so. `finish`, where given, then turns each piece into
    /// what is sent, in place, on the CPU lane.
    ///
    /// # Errors
    /// As [`Self::read_slice`], and [`ReadError::Convert`] when an element cannot be converted.
    pub async fn next_band(
        &self,
        access: Access,
        slice: &mut Slice,
        is_first: bool,
        finish: Option<Finish>,
    ) -> Result<Option<(Vec<Bytes>, ReadStats)>, ReadError> {
        let Some((axis, band)) = slice.bands.as_mut().and_then(|bands| Some((bands.axis(), bands.next()?))) else {
            return Ok(None);
        };
        let bytes = band.elements().unwrap_or(u64::MAX).saturating_mul(slice.widths.held);
        let wait = self.resources.settings.budget_wait * if is_first { 1 } else { BAND_PATIENCE };
        let mut beside = if is_first { slice.beside_bytes } else { 0 };
        let taken = bytes.saturating_add(beside);
        let mut permit = self.resources.slice_budget.take_for_stream(taken, &slice.pieces, wait).await?;
        let plane_bytes = (bytes / band.shape()[axis].max(1)).max(1);
        let depth = (SLAB_BYTES / plane_bytes).max(1);
        let mut slabs = Vec::new();
        for from in (0..band.shape()[axis]).step_by(usize::try_from(depth).unwrap_or(usize::MAX)) {
            let region = band.part(axis, from, depth);
            let bytes = region.shape()[axis] * plane_bytes;
            let stored = bytes / slice.widths.held.max(1) * slice.widths.stored;
            // Until the first slab is sent, what comes before it has not been either.
            let permit = permit.split(bytes.saturating_add(std::mem::take(&mut beside)));
            slabs.push(Slab { data: zeroed(stored)?, permit, region });
        }
        drop(permit);
        let mut stats = ReadStats::default();
        let slabs = self.gather(access, slice, &band, slabs, axis, &mut stats).await?;
        if finish.is_none() && !slice.is_converted() {
            return Ok(Some((slabs.into_iter().map(Slab::into_bytes).collect(), stats)));
        }
        let slice = slice.clone();
        let finished = move |slab: Slab| -> Result<Bytes, ConvertError> {
            let stored = slab.data.len() as u64;
            let mut bytes = slice.convert(slab.data.into())?;
            if let Some(finish) = &finish {
                bytes = finish(bytes);
            }
            Ok(match slab.permit {
                Some(mut permit) => {
                    // The elements as stored are gone.
                    if slice.is_converted() {
                        drop(permit.split(stored));
                    }
                    permit.own(bytes)
                }
                None => bytes,
            })
        };
        let pieces: Result<Vec<Bytes>, ConvertError> =
            self.resources.cpu.run(move || slabs.into_iter().map(finished).collect()).await?;
        let pieces = pieces?;
        Ok(Some((pieces, stats)))
    }

    /// The [`ReadStats::fingerprint`] of every block that `slice` touches, without reading any.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn fingerprint(&self, slice: &Slice) -> Result<Fingerprint, ReadError> {
        let mut sum = Fingerprint::default();
        let mut positions = slice.dataset.attributes.grid().covering(&slice.region);
        loop {
            let batch: Vec<GridPosition> = positions.by_ref().take(1024).collect();
            if batch.is_empty() {
                return Ok(sum);
            }
            let keys: Vec<Key> = batch.iter().map(|position| slice.dataset.block_key(position)).collect();
            for (position, meta) in batch.iter().zip(self.store.head_many(keys).await?) {
                if let Some(meta) = meta {
                    sum.add(position, &meta.etag, meta.version);
                }
            }
        }
    }

    /// The elements of the one block that `slice` consists of exactly, if it is so.
    async fn whole_block(
        &self,
        access: Access,
        slice: &Slice,
        stats: &mut ReadStats,
    ) -> Result<Option<Bytes>, ReadError> {
        let grid = slice.dataset.attributes.grid();
        let mut covering = grid.covering(&slice.region);
        let (1, Some(position)) = (covering.total(), covering.next()) else { return Ok(None) };
        let starts_at_origin = slice
            .region
            .start()
            .iter()
            .zip(grid.origin(&position))
            .all(|(s, o)| u64::try_from(*s).is_ok_and(|start| start == o));
        let contiguous = slice.region.step().iter().zip(slice.region.shape()).all(|(step, n)| *step == 1 || *n == 1);
        if !starts_at_origin || !contiguous || *slice.region.shape() != grid.clipped_size(&position) {
            return Ok(None);
        }
        let started = Instant::now();
        let blocks = &self.resources.blocks;
        let cached = blocks
            .cached(&*self.store, &slice.dataset, std::slice::from_ref(&position), access.data_since)
            .await?
            .pop()
            .flatten();
        stats.cache += started.elapsed();
        let loaded = if let Some(loaded) = cached {
            stats.hits += 1;
            loaded
        } else {
            let (loaded, times) = blocks.load(self.place(&slice.dataset, &position), access.data_since).await?;
            stats.count_load(times);
            loaded
        };
        stats.count(&position, &loaded);
        Ok(loaded.is_exactly(slice.region.shape()).map(|block| block.data.clone()))
    }

    /// Fills `slabs`, the parts of `region` along `axis`, from the blocks that hold its samples.
    async fn gather(
        &self,
        access: Access,
        slice: &Slice,
        region: &Region,
        mut slabs: Vec<Slab>,
        axis: usize,
        stats: &mut ReadStats,
    ) -> Result<Vec<Slab>, ReadError> {
        let (dataset, blocks) = (&slice.dataset, &self.resources.blocks);
        let block_bytes = (0..region.rank())
            .map(|axis| dataset.attributes.block_size()[axis].min(dataset.attributes.dimensions()[axis]))
            .fold(slice.width as u64, u64::saturating_mul);
        let looked_up = usize::try_from((LOOKED_UP_BYTES / block_bytes.max(1)).clamp(1, LOOKED_UP)).unwrap_or(1);
        let mut positions = dataset.attributes.grid().covering(region);
        let mut missed: Vec<GridPosition> = Vec::new();
        let mut loads = FuturesUnordered::new();
        let mut more = true;
        loop {
            while loads.len() < LOADS {
                if let Some(position) = missed.pop() {
                    let load = blocks.load(self.place(dataset, &position), access.data_since);
                    loads.push(load.map(|loaded| (position, loaded)));
                    continue;
                }
                if !more {
                    break;
                }
                let batch: Vec<GridPosition> = positions.by_ref().take(looked_up).collect();
                more = batch.len() == looked_up;
                let started = Instant::now();
                let cached = blocks.cached(&*self.store, dataset, &batch, access.data_since).await?;
                stats.cache += started.elapsed();
                let mut hits = Vec::new();
                for (position, loaded) in batch.into_iter().zip(cached) {
                    let Some(loaded) = loaded else {
                        missed.push(position);
                        continue;
                    };
                    stats.hits += 1;
                    stats.count(&position, &loaded);
                    hits.push((position, loaded));
                }
                // Taken from the end: the order of the grid is the order of reading.
                missed.reverse();
                // Hits are pasted and let go before any load is waited for: no request sits on blocks
                // that the cache has evicted while it waits for memory.
                slabs = self.paste_all(slice, slabs, axis, hits, stats).await?;
            }
            let Some(first) = loads.next().await else { return Ok(slabs) };
            let mut ready = vec![first];
            while let Some(Some(next)) = loads.next().now_or_never() {
                ready.push(next);
            }
            let mut loaded = Vec::with_capacity(ready.len());
            for (position, result) in ready {
                let (block, times) = result?;
                stats.count_load(times);
                stats.count(&position, &block);
                loaded.push((position, block));
            }
            slabs = self.paste_all(slice, slabs, axis, loaded, stats).await?;
        }
    }

    /// Pastes blocks into the slabs they overlap, on the CPU lane.
    async fn paste_all(
        &self,
        slice: &Slice,
        mut slabs: Vec<Slab>,
        axis: usize,
        mut blocks: Vec<(GridPosition, Arc<Loaded>)>,
        stats: &mut ReadStats,
    ) -> Result<Vec<Slab>, ReadError> {
        blocks.retain(|(_, loaded)| loaded.block.is_some());
        if blocks.is_empty() {
            return Ok(slabs);
        }
        let started = Instant::now();
        let (dataset, width) = (Arc::clone(&slice.dataset), slice.width);
        let slabs = self
            .resources
            .cpu
            .run(move || {
                let grid = dataset.attributes.grid();
                for (position, loaded) in blocks {
                    let Some(block) = &loaded.block else { continue };
                    let origin = grid.origin(&position);
                    for slab in slabs.iter_mut().filter(|slab| overlaps(slab, axis, &origin, &block.size)) {
                        let dimensions = grid.dimensions();
                        paste(&mut slab.data, &slab.region, &block.data, &origin, &block.size, dimensions, width);
                    }
                }
                slabs
            })
            .await?;
        stats.assemble += started.elapsed();
        Ok(slabs)
    }

    pub(super) fn place(&self, dataset: &Arc<Dataset>, position: &GridPosition) -> Place {
        Place {
            container: self.id,
            store: Arc::clone(&self.store),
            dataset: Arc::clone(dataset),
            position: position.clone(),
        }
    }
}

/// Whether a block holds samples of a slab along the axis that slabs differ in.
fn overlaps(slab: &Slab, axis: usize, origin: &Coords, size: &Coords) -> bool {
    origin.get(axis).is_none_or(|low| {
        let (from, to) = slab.region.samples_within(axis, *low, low.saturating_add(size[axis]));
        from < to
    })
}

/// Zeros, which the allocator gets from the system for free.
fn zeroed(bytes: u64) -> Result<Vec<u8>, ReadError> {
    usize::try_from(bytes).map(|bytes| vec![0; bytes]).map_err(|error| ReadError::Died(error.to_string()))
}
