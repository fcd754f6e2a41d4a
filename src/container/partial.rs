//! Blocks that are stored uncompressed, read only where a slice has samples, and not kept.
//!
//! A block that is read whole is cached and serves the neighbouring planes as well. So blocks of a usual size are read in parts
//! only if the slice was admitted on that condition.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::admit::Slice;
use super::at_once::Work;
use super::blocks::LoadTimes;
use super::canvas::Elements;
use super::measured::measured;
use super::stats::ReadStats;
use super::{Container, Dataset, ReadError, fresh, hold};
use crate::cpu::Length;
use crate::metrics::{self, StoreOperation};
use crate::n5::{Codec, GridPosition, RawLayout, RawPart, RawParts, Region};
use crate::store::{Data, Inline, Key, Meta, Object, ReadAt, StoreError};

/// Blocks up to this size are read whole wherever a slice may. On a busy machine the first plane of one of 16 MiB took 0.7 ms in
/// parts and 45 ms whole, but any other plane then 0.3 ms from the cache, and one across the rows 15 ms in parts.
const WHOLE_BYTES: u64 = 16 << 20;

/// A larger block is read in parts where these are no more than one part in so many of it.
const SMALL_SHARE: u64 = 4;

/// Blocks that are read in parts at once, and reads of each.
const BLOCKS: usize = 2;
const READS: usize = 4;

impl Container {
    /// Returns true if only those bytes of the block at `position` are read that hold samples of `region`, a part of `slice`.
    pub(super) fn is_read_in_parts(&self, slice: &Slice, region: &Region, position: &GridPosition) -> bool {
        let attributes = &slice.dataset.attributes;
        if !attributes.compression().codec().is_some_and(Codec::is_plain) {
            return false;
        }
        let grid = attributes.grid();
        let size = grid.clipped_size(position);
        let bytes = size.iter().fold(slice.width as u64, |bytes, n| bytes.saturating_mul(*n));
        // With a header, and padding at the dataset's end.
        let full = grid.block_size().iter().fold(slice.width as u64, |bytes, n| bytes.saturating_mul(*n));
        let most = full.min(bytes.saturating_mul(2)).saturating_add(RawLayout::head_bytes(region.rank()));
        let is_too_large = most > self.resources.blocks.block_bytes;
        if !is_too_large && !slice.in_parts && bytes <= WHOLE_BYTES {
            return false;
        }
        let parts = RawParts::new(region, &grid.origin(position), &size, grid.dimensions(), slice.width, u64::MAX);
        let cost = parts.map_or(0, |parts| parts.cost_bytes());
        is_too_large || cost <= if slice.in_parts { bytes } else { bytes / SMALL_SHARE }
    }

    /// Reads and pastes the parts of the blocks at `positions` that the slice of `work` has samples of.
    pub(super) async fn paste_parts(
        &self,
        work: &Arc<Work>,
        region: &Region,
        positions: Vec<GridPosition>,
        stats: &mut ReadStats,
    ) -> Result<(), ReadError> {
        let blocks = stream::iter(positions).map(|position| async move {
            let read = self.paste_parts_of(work, region, &position).await;
            read.map(|(meta, moment, times)| (position, meta, moment, times))
        });
        let mut blocks = std::pin::pin!(blocks.buffer_unordered(BLOCKS));
        while let Some((position, meta, moment, times)) = blocks.try_next().await? {
            stats.count_load(times);
            stats.count_stored(&position, meta.as_ref().map(|meta| (&*meta.etag, meta.version)), moment);
        }
        Ok(())
    }

    /// One block; what its file is, and the moment before it was opened.
    async fn paste_parts_of(
        &self,
        work: &Arc<Work>,
        region: &Region,
        position: &GridPosition,
    ) -> Result<(Option<Meta>, u64, LoadTimes), ReadError> {
        let mut times = LoadTimes::default();
        let mut is_second_look = false;
        loop {
            let moment = fresh::now();
            match self.paste_parts_once(work, region, position, &mut times).await {
                Ok(meta) => return Ok((meta, moment, times)),
                Err(ReadError::Store(StoreError::Short(_) | StoreError::Torn(_))) if !is_second_look => {}
                Err(ref error) if !is_second_look && error.may_be_torn() => {
                    tokio::time::sleep(super::blocks::SECOND_LOOK).await;
                }
                Err(error) => return Err(error),
            }
            is_second_look = true;
        }
    }

    async fn paste_parts_once(
        &self,
        work: &Arc<Work>,
        region: &Region,
        position: &GridPosition,
        times: &mut LoadTimes,
    ) -> Result<Option<Meta>, ReadError> {
        let (store, dataset, attributes) = (&self.store, &work.dataset, &work.dataset.attributes);
        let key = dataset.block_key(position);
        let (started, nothing) = (Instant::now(), Inline::new(0));
        let opening = Box::pin(measured(StoreOperation::Get, store.backend(), store.get(&key, &nothing)));
        let Some(Object { meta, data }) = self.waited(dataset, opening).await? else { return Ok(None) };
        let head_bytes = RawLayout::head_bytes(attributes.rank()).min(meta.len);
        let head = match &data {
            Data::Whole(bytes) => bytes.clone(),
            Data::Open(reader) => self.read_range(&key, reader, 0..head_bytes).await?.0,
        };
        times.store += started.elapsed();
        let blame = |error| ReadError::Block { key: key.clone(), position: position.clone(), error };
        let layout = RawLayout::new(&head, meta.len, attributes, position).map_err(blame)?;
        let Some(layout) = layout else { return Ok(Some(meta)) };
        let origin = attributes.grid().origin(position);
        let dimensions = attributes.dimensions();
        let most_bytes = self.resources.blocks.block_bytes;
        let width = attributes.data_type().size_bytes().unwrap_or(1);
        let parts = RawParts::new(region, &origin, &layout.size, dimensions, width, most_bytes);
        work.canvas.clear(position);
        let reads = stream::iter(parts.into_iter().flatten()).map(|part: RawPart| {
            let (key, data, layout, origin) = (&key, &data, &layout, &origin);
            async move {
                let started = Instant::now();
                let from = layout.header_bytes.saturating_add(part.bytes.start);
                let to = layout.header_bytes.saturating_add(part.bytes.end);
                let (bytes, permit) = match data {
                    Data::Open(reader) => {
                        self.read_range(key, reader, from..to).await.map(|(bytes, permit)| (bytes, Some(permit)))?
                    }
                    Data::Whole(bytes) => {
                        let range =
                            usize::try_from(from).unwrap_or(usize::MAX)..usize::try_from(to).unwrap_or(usize::MAX);
                        let is_there = range.start <= range.end && range.end <= bytes.len();
                        let torn = || ReadError::Store(StoreError::Torn(key.clone()));
                        (bytes.slice(if is_there { range } else { return Err(torn()) }), None)
                    }
                };
                let elapsed = started.elapsed();
                let (canvas, at) = (Arc::clone(work), origin.iter().zip(&part.offset));
                let at = at.map(|(origin, offset)| origin.saturating_add(*offset)).collect();
                let paste = move || {
                    canvas.canvas.paste_part(&at, &part.size, &bytes, Elements::AsStored);
                    drop((bytes, permit));
                    // Before anybody hears of the end, so that the last one has the canvas to itself.
                    drop(canvas);
                };
                self.resources.cpu.run(Length::Short, dataset.id, paste).await?;
                Ok::<Duration, ReadError>(elapsed)
            }
        });
        let mut reads = std::pin::pin!(reads.buffer_unordered(READS));
        while let Some(elapsed) = reads.try_next().await? {
            times.store += elapsed;
        }
        Ok(Some(meta))
    }

    /// The bytes of `range` of an open object, with their share of the decode budget.
    async fn read_range(
        &self,
        key: &Key,
        reader: &Arc<dyn ReadAt>,
        range: std::ops::Range<u64>,
    ) -> Result<(Bytes, super::Permit), ReadError> {
        let blocks = &self.resources.blocks;
        let permit = blocks.take(range.end.saturating_sub(range.start)).await?;
        let backend = self.store.backend();
        let reading = Box::pin(measured(StoreOperation::GetRange, backend, reader.read_at(range)));
        let bytes = hold::unless_needed(&*self.store, &blocks.budget, key, reading).await??;
        metrics::store_read_bytes(backend, bytes.len() as u64);
        Ok((bytes, permit))
    }

    async fn waited<T>(
        &self,
        dataset: &Dataset,
        wait: impl Future<Output = Result<T, StoreError>> + Unpin,
    ) -> Result<T, ReadError> {
        Ok(hold::unless_needed(&*self.store, &self.resources.slice_budget, &dataset.key, wait).await??)
    }
}
