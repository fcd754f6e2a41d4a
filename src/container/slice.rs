//! Reading a region: admit, gather what is cached and load the rest, paste what is ready.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::admit::Slice;
use super::at_once::{Item, Work};
use super::blocks::{GLANCED, Place};
use super::budget::{Memory, Permit};
use super::canvas::{Canvas, Filled, Slab};
use super::stats::{Fingerprint, ReadStats};
use super::{Access, Container, Dataset, ReadError};
use crate::n5::{ConvertError, GridPosition, Region};
use crate::store::{Glance, Key, Meta};

/// Blocks of one slice that are loaded at once.
pub(super) const LOADS: usize = 8;

/// Cached blocks that one slice looks up and pastes at once.
const LOOKED_UP: u64 = 256;

/// Decoded bytes of the blocks that one slice looks up at once, where that is fewer.
const LOOKED_UP_BYTES: u64 = 32 << 20;

/// Bytes that come into a core's cache with a sample that lies apart from the others.
const LINE_BYTES: u64 = 64;

/// What is sent as it is is assembled in buffers of about this size, each used again as soon as it is sent.
const SLAB_BYTES: u64 = 1 << 20;

/// Later bands of an answer that has begun wait this many times longer for memory.
const BAND_PATIENCE: u32 = 6;

/// Turns a piece of a streamed slice, converted already, into what is sent: as many bytes.
pub type Finish = Arc<dyn Fn(Bytes) -> Bytes + Send + Sync>;

impl Container {
    /// Reads a slice that is not streamed, with `extra_bytes` of memory for what will be made of it beyond the
    /// converted elements, which have theirs.
    ///
    /// The elements are those of the dataset, not converted yet: little-endian, first axis fastest; holes and what lies
    /// outside the dataset are zero. A region that is exactly one stored block shares the cached block's buffer.
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
        let memory = Memory::of(extra, &self.resources.slice_budget);
        if let Some(bytes) = self.whole_block(access, slice, &mut stats).await? {
            return Ok((bytes, memory, stats));
        }
        let slab = Slab::new(slice.region.clone(), bytes, Some(permit), &self.resources.slice_budget)?;
        stats = ReadStats::default();
        let mut slabs = self.gather(access, slice, &slice.region, vec![slab], 0, &mut stats).await?;
        let data = slabs.pop().map(Filled::into_bytes).unwrap_or_default();
        Ok((data, memory, stats))
    }

    /// Reads a slice that is not streamed and is sent as it is: in pieces to be sent in this order, each giving its
    /// memory back as soon as it is sent. Otherwise as [`Self::read_slice`].
    ///
    /// # Errors
    /// As [`Self::read_slice`].
    pub async fn read_pieces(
        &self,
        access: Access,
        slice: &Slice,
    ) -> Result<(Vec<Bytes>, Memory, ReadStats), ReadError> {
        let permit = self.resources.slice_budget.take_for_buffers(slice.held_bytes()).await?;
        let mut stats = ReadStats::default();
        if let Some(bytes) = self.whole_block(access, slice, &mut stats).await? {
            return Ok((vec![bytes], Memory::of(None, &self.resources.slice_budget), stats));
        }
        stats = ReadStats::default();
        let region = &slice.region;
        let axis = slowest(region);
        let slabs = match region.rank() {
            0 => vec![Slab::new(region.clone(), slice.held_bytes(), Some(permit), &self.resources.slice_budget)?],
            _ => self.slabs(slice, region, axis, permit, None)?,
        };
        let slabs = self.gather(access, slice, region, slabs, axis, &mut stats).await?;
        Ok((slabs.into_iter().map(Filled::into_bytes).collect(), Memory::of(None, &self.resources.slice_budget), stats))
    }

    /// Cuts `region` along `axis`, the slowest that has more than one sample, into slabs that share `permit`; the
    /// first has `beside` besides.
    fn slabs(
        &self,
        slice: &Slice,
        region: &Region,
        axis: usize,
        mut permit: Permit,
        mut beside: Option<Permit>,
    ) -> Result<Vec<Slab>, ReadError> {
        let planes = region.shape()[axis];
        let plane_elements = region.elements().unwrap_or(u64::MAX) / planes.max(1);
        let depth = (SLAB_BYTES / plane_elements.saturating_mul(slice.widths.held).max(1)).max(1);
        let mut slabs = Vec::new();
        for from in (0..planes).step_by(usize::try_from(depth).unwrap_or(usize::MAX)) {
            let region = region.part(axis, from, depth);
            let elements = region.shape()[axis].saturating_mul(plane_elements);
            let mut share = permit.split(elements.saturating_mul(slice.widths.held));
            if let (Some(share), Some(beside)) = (&mut share, beside.take()) {
                share.merge(beside);
            }
            let bytes = elements.saturating_mul(slice.widths.stored);
            slabs.push(Slab::new(region, bytes, share, &self.resources.slice_budget)?);
        }
        Ok(slabs)
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
        let Some(band) = slice.bands.as_mut().and_then(Iterator::next) else { return Ok(None) };
        let axis = slowest(&band);
        let bytes = band.elements().unwrap_or(u64::MAX).saturating_mul(slice.widths.held);
        let wait = self.resources.settings.budget_wait * if is_first { 1 } else { BAND_PATIENCE };
        let beside = if is_first { slice.beside_bytes } else { 0 };
        let taken = bytes.saturating_add(beside);
        let mut permit = self.resources.slice_budget.take_for_stream(taken, &slice.pieces, wait).await?;
        if slice.is_converted() || beside > 0 {
            self.resources.slice_budget.make_room();
        }
        // Until the first slab is sent, what comes before it has not been either.
        let beside = permit.split(beside);
        let slabs = self.slabs(slice, &band, axis, permit, beside)?;
        let mut stats = ReadStats::default();
        let slabs = self.gather(access, slice, &band, slabs, axis, &mut stats).await?;
        if finish.is_none() && !slice.is_converted() {
            return Ok(Some((slabs.into_iter().map(Filled::into_bytes).collect(), stats)));
        }
        let slice = slice.clone();
        let finished = move |slab: Filled| -> Result<Bytes, ConvertError> {
            let (data, permit) = slab.into_parts();
            let stored = data.len() as u64;
            let mut bytes = slice.convert(data.into())?;
            if let Some(finish) = &finish {
                bytes = finish(bytes);
            }
            Ok(match permit {
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
    pub async fn fingerprint(&self, access: Access, slice: &Slice) -> Result<Fingerprint, ReadError> {
        let mut sum = Fingerprint::default();
        let mut positions = slice.dataset.attributes.grid().covering(&slice.region);
        loop {
            let batch: Vec<GridPosition> = positions.by_ref().take(1024).collect();
            if batch.is_empty() {
                return Ok(sum);
            }
            let keys: Vec<Key> = batch.iter().map(|position| slice.dataset.block_key(position)).collect();
            let metas = if let Some(metas) = self.glance_at_few(&keys) {
                metas
            } else {
                access.may_wait().await;
                self.store.head_many(keys).await?
            };
            for (position, meta) in batch.iter().zip(metas) {
                if let Some(meta) = meta {
                    sum.add(position, &meta.etag, meta.version);
                }
            }
        }
    }

    /// Facts about a few objects, where none of that waits.
    fn glance_at_few(&self, keys: &[Key]) -> Option<Vec<Option<Meta>>> {
        let glance = |key| match self.store.glance(key) {
            Glance::Object(facts) => Some(Some(facts.into())),
            Glance::Missing | Glance::NoObject => Some(None),
            Glance::Unknown => None,
        };
        (keys.len() <= GLANCED).then(|| keys.iter().map(glance).collect()).flatten()
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
        slabs: Vec<Slab>,
        axis: usize,
        stats: &mut ReadStats,
    ) -> Result<Vec<Filled>, ReadError> {
        let (dataset, blocks) = (&slice.dataset, &self.resources.blocks);
        let block_bytes = (0..region.rank())
            .map(|axis| dataset.attributes.block_size()[axis].min(dataset.attributes.dimensions()[axis]))
            .fold(slice.width as u64, u64::saturating_mul);
        let lie_side_by_side = region.shape().first().is_some_and(|n| *n > 1) && region.step().first() == Some(&1);
        let sample_bytes = if lie_side_by_side { slice.width as u64 } else { LINE_BYTES };
        let looked_up = usize::try_from((LOOKED_UP_BYTES / block_bytes.max(1)).clamp(1, LOOKED_UP)).unwrap_or(1);
        let work = Arc::new(Work {
            blocks: blocks.clone(),
            container: self.id,
            store: Arc::clone(&self.store),
            dataset: Arc::clone(dataset),
            canvas: Canvas::new(dataset.attributes.grid().clone(), slice.width, region.clone(), axis, slabs),
            since: access.data_since,
            block_bytes,
            sample_bytes: region.elements().unwrap_or(u64::MAX).saturating_mul(sample_bytes),
        });
        let passes = self.passes_through(slice, block_bytes);
        let mut positions = dataset.attributes.grid().covering(region);
        loop {
            let batch: Vec<GridPosition> = positions.by_ref().take(looked_up).collect();
            if batch.is_empty() {
                break;
            }
            let started = Instant::now();
            let cached = blocks.cached(&*self.store, dataset, &batch, access.data_since).await?;
            stats.cache += started.elapsed();
            let mut items = Vec::with_capacity(batch.len());
            for (position, loaded) in batch.into_iter().zip(cached) {
                items.push(match loaded {
                    Some(loaded) => {
                        stats.hits += 1;
                        stats.count(&position, &loaded);
                        Item::Hit(position, loaded)
                    }
                    None => Item::Miss { keep: !(passes && is_done_with(slice, region, &position)), position },
                });
            }
            // Hits are pasted and let go before any load is waited for: no request sits on blocks
            // that the cache has evicted while it waits for memory.
            let left = work.paste(items, stats).await?;
            self.load_and_paste(&work, left, stats).await?;
        }
        let work = Arc::into_inner(work).ok_or_else(|| ReadError::Died("a job has outlived its slice".to_owned()))?;
        let canvas = work.canvas;
        if canvas.is_complete() { canvas.finish() } else { self.resources.cpu.run(|| canvas.finish()).await? }
    }

    /// Loads the blocks at `positions`, several at once, and pastes each as soon as it is there.
    async fn load_and_paste(
        &self,
        work: &Arc<Work>,
        positions: Vec<GridPosition>,
        stats: &mut ReadStats,
    ) -> Result<(), ReadError> {
        let mut positions = positions.into_iter();
        let mut loads = FuturesUnordered::new();
        loop {
            while loads.len() < LOADS
                && let Some(position) = positions.next()
            {
                let load = work.blocks.load(work.place(&position), work.since);
                loads.push(load.map(|loaded| (position, loaded)));
            }
            let Some(first) = loads.next().await else { return Ok(()) };
            let mut ready = vec![first];
            while let Some(Some(next)) = loads.next().now_or_never() {
                ready.push(next);
            }
            let mut loaded = Vec::with_capacity(ready.len());
            for (position, result) in ready {
                let (block, times) = result?;
                stats.count_load(times);
                stats.count(&position, &block);
                loaded.push(Item::Hit(position, block));
            }
            work.paste(loaded, stats).await?;
        }
    }

    /// Whether the blocks of `slice` are better not cached: together they exceed the cache, so that each would be
    /// evicted before this slice, asked for again, came back to it, and whatever else is cached with it. A few
    /// blocks are, so that those who want them at the same time share one load.
    fn passes_through(&self, slice: &Slice, block_bytes: u64) -> bool {
        let total = slice.dataset.attributes.grid().covering(&slice.region).total();
        let bytes = total.saturating_mul(u128::from(block_bytes));
        total > LOADS as u128 && bytes > u128::from(self.resources.settings.decoded_cache)
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

/// The slowest axis that has more than one sample.
fn slowest(region: &Region) -> usize {
    region.shape().iter().rposition(|samples| *samples > 1).unwrap_or(0)
}

/// Whether `part` of `slice` has all samples that the slice takes of the block at `position`.
fn is_done_with(slice: &Slice, part: &Region, position: &GridPosition) -> bool {
    let grid = slice.dataset.attributes.grid();
    grid.origin(position).iter().zip(grid.block_size()).enumerate().all(|(axis, (low, size))| {
        let samples = |region: &Region| {
            let (from, to) = region.samples_within(axis, *low, low.saturating_add(*size));
            to.saturating_sub(from)
        };
        samples(part) == samples(&slice.region)
    })
}
