//! The gathering of a region's blocks: looks them up in batches, pastes the cached ones, loads the others and pastes
//! each as soon as it is loaded. The table in `src/cache/block_load.rs` compares all ways to load a block.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::nonblocking_gather::{GatherContext, PasteItem};
use super::partial_reads::{is_read_in_parts, paste_parts};
use super::plan::PlannedSlice;
use super::read_stats::ReadStats;
use crate::cache::{BlockEntry, BudgetError, LoadTimes, Permit, ReadError};
use crate::container::Container;
use crate::runtime::cpu_pool::Priority;
use crate::store::CONCURRENT_DISK_READS;
use n5_format::{GridPosition, Region};

/// Upper bound of the memory that the tasks and futures of one load take in addition to the block, in bytes.
const LOAD_OVERHEAD_BYTES: u64 = 12 << 10;

/// Maximum number of blocks that one slice looks up at once.
const MAX_LOOKUP_BATCH: u64 = 256;

/// Upper bound of the memory that a slice takes for each block that it looks up (position, key, pointers), in bytes.
const LOOKUP_OVERHEAD_BYTES: u64 = 256;

/// Maximum decoded size of the blocks that one slice looks up at once, in bytes. Of large blocks, this allows fewer
/// than [`MAX_LOOKUP_BATCH`].
const MAX_LOOKUP_BATCH_BYTES: u64 = 32 << 20;

/// Pause before a load that got no memory is retried.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// The gathering of one region, which is a whole slice or one band.
pub(crate) struct Gather<'a> {
    pub(crate) slice: &'a PlannedSlice,
    /// State shared with the pasting jobs. Its canvas has the region to gather.
    pub(crate) context: Arc<GatherContext>,
    /// Time for which loads that get no memory are retried.
    pub(crate) retry_time: Duration,
    /// True if a block that cannot be decoded is left out, so that its elements are 0. At least one block must be intact.
    pub(crate) skips_damaged: bool,
    pub(crate) stats: ReadStats,
}

impl Gather<'_> {
    /// Fills the canvas with the elements of all blocks. Returns the slabs with their permits, and the counters.
    pub(crate) async fn run(mut self) -> Result<(Vec<(Vec<u8>, Permit)>, ReadStats), ReadError> {
        let batch_size = lookup_batch_size(self.context.block_bytes);
        let mut positions = self.slice.dataset.attributes.grid().covering(self.context.canvas.region());
        let context = Arc::clone(&self.context);
        let mut loads = BlockLoads::new(&context);
        loop {
            let batch: Vec<GridPosition> = positions.by_ref().take(batch_size).collect();
            if batch.is_empty() {
                break;
            }
            self.gather_batch(&batch, &mut loads).await?;
        }
        self.load_and_paste(&mut loads, false).await?;
        drop(loads);
        drop(context);
        if self.stats.fingerprint.is_empty()
            && let Some(damage) = self.stats.damage.take()
        {
            return Err(*damage);
        }
        let context =
            Arc::into_inner(self.context).ok_or_else(|| ReadError::Internal("a job outlived its slice".to_owned()))?;
        let GatherContext { container, canvas, .. } = context;
        let slabs = if canvas.is_complete() {
            canvas.finish()?
        } else {
            let cpu = &container.resources.cpu;
            cpu.run(Priority::High, self.slice.dataset.id, || canvas.finish()).await??
        };
        Ok((slabs, self.stats))
    }

    /// Pastes the blocks at `positions`: first the cached ones, then those that must be loaded. Behind a network, the
    /// last of these are still being loaded by `loads` when the call returns.
    async fn gather_batch(&mut self, positions: &[GridPosition], loads: &mut BlockLoads<'_>) -> Result<(), ReadError> {
        let GatherContext { container, options, source, dataset, .. } = &*self.context;
        let started = Instant::now();
        let missing_before = self.stats.missing;
        self.stats.holes = container.has_unreported_outages().then(Vec::new);
        let cached =
            self.context.blocks().cached_or_damaged(&**source, positions, dataset.id, container.data_since(*options));
        let cached = container.abort_if_contended(&dataset.key, Box::pin(cached)).await?;
        self.stats.cache += started.elapsed();
        let (items, read_in_parts) = self.split_batch(positions, cached)?;

        // Cached holes are confirmed again only if the store does not report outages.
        let confirms_cached = self.context.container.has_unreported_outages();
        let missing_before = if confirms_cached { missing_before } else { self.stats.missing };
        // Hits are pasted and dropped before any load is awaited. A request that waits for memory thus holds no blocks
        // that the cache has evicted.
        let deferred = self.context.paste(items, &mut self.stats).await?;
        loads.add(deferred);
        // Partial reads wait for memory, which unfinished loads of this slice would hold.
        self.load_and_paste(loads, read_in_parts.is_empty()).await?;
        let parts_stats = paste_parts(&self.context, read_in_parts, self.skips_damaged).await?;
        self.stats.merge(&parts_stats);
        if self.stats.missing > missing_before {
            let GatherContext { container, options, dataset, .. } = &*self.context;
            // Without a list of the holes, the batch is confirmed as a whole.
            let holes = self.stats.holes.take();
            let confirmation = container.confirm_missing(*options, dataset, holes.as_deref().unwrap_or(positions));
            container.abort_if_contended(&dataset.key, Box::pin(confirmation)).await?;
        }
        Ok(())
    }

    /// Counts the cached blocks of a batch. Returns the blocks to paste whole, and the positions of the blocks that are
    /// read in parts.
    ///
    /// # Errors
    /// Returns the error of a damaged block, unless damaged blocks are skipped.
    fn split_batch(
        &mut self,
        positions: &[GridPosition],
        cached: Vec<Option<Arc<BlockEntry>>>,
    ) -> Result<(Vec<PasteItem>, Vec<GridPosition>), ReadError> {
        let GatherContext { canvas, dataset, .. } = &*self.context;
        let region = canvas.region();
        let bypasses_cache = self.bypasses_cache();
        let mut items = Vec::with_capacity(positions.len());
        let mut read_in_parts = Vec::new();
        for (position, entry) in positions.iter().zip(cached) {
            let position = position.clone();
            if let Some(entry) = entry {
                if let Err(error) = entry.check_decodable(dataset, &position) {
                    self.stats.skip_damaged(error, self.skips_damaged)?;
                    continue;
                }
                self.stats.hits += 1;
                self.stats.count_block(&position, &entry);
                items.push(PasteItem::Decoded(position, entry));
            } else if is_read_in_parts(&self.context.container, self.slice, region, &position) {
                read_in_parts.push(position);
            } else {
                let should_cache = !(bypasses_cache && takes_all_samples(self.slice, region, &position));
                items.push(PasteItem::Stored { position, should_cache });
            }
        }
        Ok((items, read_in_parts))
    }

    /// Returns true if the blocks of the slice should bypass the cache, because together they exceed the cache. If they
    /// were cached, each block would be evicted before a repeated request for the slice reached it, and so would the
    /// blocks of other slices. A few blocks are always cached, so that concurrent requests share one load.
    fn bypasses_cache(&self) -> bool {
        let total = self.slice.dataset.attributes.grid().covering(&self.slice.region).total();
        let bytes = total.saturating_mul(u128::from(self.context.block_bytes));
        total > CONCURRENT_DISK_READS as u128
            && bytes > u128::from(self.context.container.resources.settings().decoded_cache)
    }

    /// Loads blocks concurrently and pastes each as soon as it is loaded. Returns when all are loaded, or, if
    /// `has_more`, when so few are left that the next batch should be looked up.
    async fn load_and_paste(&mut self, loads: &mut BlockLoads<'_>, has_more: bool) -> Result<(), ReadError> {
        let context = loads.context;
        let started = Instant::now();
        while loads.len() > if has_more { loads.overlap() } else { 0 } {
            let mut items = Vec::new();
            for (position, result) in loads.next().await? {
                if matches!(result, Err(ReadError::Budget(BudgetError::TimedOut { .. })))
                    && started.elapsed() < self.retry_time
                {
                    loads.retry(position);
                    continue;
                }
                let (block, times) = match result {
                    Ok(loaded) => loaded,
                    Err(error) => {
                        self.stats.skip_damaged(error, self.skips_damaged)?;
                        continue;
                    }
                };
                self.stats.count_load(&times);
                self.stats.count_block(&position, &block);
                items.push(PasteItem::Decoded(position, block));
            }
            // The other loads continue, so that the next ones begin as soon as these have ended.
            let mut pasting = pin!(context.paste(items, &mut self.stats));
            while let Some(more) = loads.next_unless(&mut pasting).await? {
                loads.finished.push(more);
            }
        }
        Ok(())
    }
}

/// A loaded block with the times of its load, and its position.
type LoadedBlock = (GridPosition, Result<(Arc<BlockEntry>, Arc<LoadTimes>), ReadError>);

/// The blocks of one region that are being loaded or wait for it.
struct BlockLoads<'a> {
    context: &'a Arc<GatherContext>,
    /// Blocks whose load has not begun, each with true if it is a retry.
    waiting: VecDeque<(GridPosition, bool)>,
    running: FuturesUnordered<BoxFuture<'a, LoadedBlock>>,
    /// Blocks that were loaded while others were pasted.
    finished: Vec<LoadedBlock>,
}

impl<'a> BlockLoads<'a> {
    fn new(context: &'a Arc<GatherContext>) -> Self {
        Self { context, waiting: VecDeque::new(), running: FuturesUnordered::new(), finished: Vec::new() }
    }

    /// Returns the number of blocks that are loaded at once. It changes with the number of requests that the store
    /// accepts.
    fn limit(&self) -> usize {
        self.context.container.store.concurrent_reads()
    }

    /// Returns the number of blocks that are still being loaded when the next batch is looked up. None are if the store
    /// is a disk: only a network has a latency that further requests can fill.
    fn overlap(&self) -> usize {
        // The holes of other stores are confirmed batch by batch.
        let confirms_nothing = self.context.container.store.reports_missing_root();
        let limit = self.limit();
        if limit > CONCURRENT_DISK_READS && confirms_nothing { limit / 2 } else { 0 }
    }

    fn len(&self) -> usize {
        self.waiting.len() + self.running.len() + self.finished.len()
    }

    fn add(&mut self, positions: Vec<GridPosition>) {
        self.waiting.extend(positions.into_iter().map(|position| (position, false)));
    }

    /// Loads the block at `position` again after [`RETRY_DELAY`].
    fn retry(&mut self, position: GridPosition) {
        self.waiting.push_back((position, true));
    }

    /// Begins loads up to the limit.
    fn begin(&mut self) {
        let (context, limit) = (self.context, self.limit());
        while self.running.len() + self.finished.len() < limit
            && let Some((position, is_retry)) = self.waiting.pop_front()
        {
            let load = async move {
                if is_retry {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                let fresh_since = context.container.data_since(context.options);
                let result = context.blocks().load(context.block_location(&position), fresh_since).await;
                (position, result)
            };
            self.running.push(load.boxed());
        }
    }

    /// Returns the blocks that are loaded, at least one unless there are no loads.
    async fn next(&mut self) -> Result<Vec<LoadedBlock>, ReadError> {
        self.begin();
        let mut loaded = std::mem::take(&mut self.finished);
        if loaded.is_empty() {
            let context = self.context;
            let next = self.running.next().map(Ok::<_, ReadError>);
            loaded.extend(context.container.abort_if_contended(&context.dataset.key, next).await?);
        }
        while let Some(Some(next)) = self.running.next().now_or_never() {
            loaded.push(next);
        }
        Ok(loaded)
    }

    /// Returns the next loaded block, or `None` as soon as `job` has ended.
    async fn next_unless<T>(
        &mut self,
        job: &mut (impl Future<Output = Result<T, ReadError>> + Unpin),
    ) -> Result<Option<LoadedBlock>, ReadError> {
        self.begin();
        if self.running.is_empty() {
            job.await?;
            return Ok(None);
        }
        match select(job, self.running.next()).await {
            Either::Left((result, _)) => result.map(|_| None),
            Either::Right((loaded, _)) => Ok(loaded),
        }
    }
}

/// Returns the number of blocks of `block_bytes` that a slice looks up at once, at least one.
fn lookup_batch_size(block_bytes: u64) -> usize {
    usize::try_from((MAX_LOOKUP_BATCH_BYTES / block_bytes.max(1)).clamp(1, MAX_LOOKUP_BATCH)).unwrap_or(1)
}

/// Returns the bytes of memory needed to look up and load `blocks` blocks of `container`, in addition to the blocks
/// themselves.
pub(crate) fn load_overhead_bytes(container: &Container, blocks: u128) -> u64 {
    let at_most = |limit: u64| u64::try_from(blocks).unwrap_or(u64::MAX).min(limit);
    at_most(container.store.max_concurrent_reads() as u64) * LOAD_OVERHEAD_BYTES
        + at_most(MAX_LOOKUP_BATCH) * LOOKUP_OVERHEAD_BYTES
}

/// Returns true if `part`, a part of `slice`, takes all samples that the slice has in the block at `position`.
fn takes_all_samples(slice: &PlannedSlice, part: &Region, position: &GridPosition) -> bool {
    let grid = slice.dataset.attributes.grid();
    grid.origin(position).iter().zip(grid.block_size()).enumerate().all(|(axis, (low, size))| {
        let samples = |region: &Region| {
            let (from, to) = region.samples_within(axis, *low, low.saturating_add(*size));
            to.saturating_sub(from)
        };
        samples(part) == samples(&slice.region)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use bytes::Bytes;
    use tokio::sync::Notify;

    use super::super::plan::SlicePlanner;
    use super::super::slice_reader::{ReadPurpose, SliceReader};
    use super::*;
    use crate::cache::ReadOptions;
    use crate::container::{Resources, Settings};
    use crate::store::{EntryFilter, InlineLimit, Key, Listing, MemoryStore, Object, ObjectMeta, Store, StoreError};

    /// Blocks in the dataset of the tests. A slice looks them up in two batches.
    const BLOCKS: usize = 500;

    /// Number of requests that the store of the tests accepts at once, after its first answers.
    const CONCURRENCY: usize = 100;

    /// Number of requests that it accepts before.
    const FEW: usize = 4;

    /// A store that answers all but the first requests for blocks only while many of them are waiting, or none is left
    /// to begin.
    #[derive(Debug)]
    struct CrowdedStore {
        inner: MemoryStore,
        begun: AtomicUsize,
        waiting: AtomicUsize,
        most_waiting: AtomicUsize,
        changed: Notify,
    }

    impl CrowdedStore {
        async fn wait_for_crowd(&self) {
            if self.begun.fetch_add(1, Ordering::Relaxed) < FEW {
                return;
            }
            let waiting = self.waiting.fetch_add(1, Ordering::Relaxed) + 1;
            self.most_waiting.fetch_max(waiting, Ordering::Relaxed);
            self.changed.notify_waiters();
            loop {
                let changed = self.changed.notified();
                let is_crowded = self.waiting.load(Ordering::Relaxed) > CONCURRENCY / 2;
                if is_crowded || self.begun.load(Ordering::Relaxed) == BLOCKS {
                    break;
                }
                changed.await;
            }
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[async_trait]
    impl Store for CrowdedStore {
        fn backend(&self) -> &'static str {
            "crowded"
        }

        async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
            self.inner.head(key).await
        }

        async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
            if key.name() != Some("attributes.json") {
                self.wait_for_crowd().await;
            }
            self.inner.get(key, inline).await
        }

        fn concurrent_reads(&self) -> usize {
            if self.begun.load(Ordering::Relaxed) == 0 { FEW } else { CONCURRENCY }
        }

        fn max_concurrent_reads(&self) -> usize {
            CONCURRENCY
        }

        fn sends_conditional_requests(&self) -> bool {
            true
        }

        fn reports_missing_root(&self) -> bool {
            true
        }

        async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
            self.inner.is_directory(key).await
        }

        async fn list(
            &self,
            key: &Key,
            after: Option<&str>,
            limit: usize,
            filter: EntryFilter,
        ) -> Result<Option<Listing>, StoreError> {
            self.inner.list(key, after, limit, filter).await
        }

        async fn probe(&self) -> Result<(), StoreError> {
            self.inner.probe().await
        }
    }

    #[tokio::test]
    async fn a_slice_keeps_the_requests_that_a_network_allows_in_flight_across_batches() {
        let attributes = r#"{"dimensions":[500],"blockSize":[1],"dataType":"uint8","compression":{"type":"raw"}}"#;
        let block = |n: usize| {
            let bytes = vec![0, 0, 0, 1, 0, 0, 0, 1, u8::try_from(n % 251).unwrap()];
            (Key::parse(&format!("v/{n}")).unwrap(), Bytes::from(bytes))
        };
        let attributes = (Key::parse("v/attributes.json").unwrap(), Bytes::from_static(attributes.as_bytes()));
        let store = Arc::new(CrowdedStore {
            inner: MemoryStore::new((0..BLOCKS).map(block).chain([attributes]), 0),
            begun: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            most_waiting: AtomicUsize::new(0),
            changed: Notify::new(),
        });
        let settings = Settings { transfer_budget: 64 << 20, decode_budget: 64 << 20, ..Settings::small() };
        let container = Container::new(Arc::<CrowdedStore>::clone(&store), Resources::new(settings));
        let options = ReadOptions::begin();
        let dataset = container.dataset(options, &Key::parse("v").unwrap()).await.unwrap();
        let region = Region::whole(dataset.attributes.dimensions());
        let slice = SlicePlanner::whole(&container, &dataset).plan(&region).unwrap();
        let reader = SliceReader { container: &container, options, slice: &slice };
        let reading = reader.read_whole(0, ReadPurpose::Response);
        let read = tokio::time::timeout(Duration::from_secs(60), reading).await.expect("too few requests at once");
        let elements: Vec<u8> = read.unwrap().pieces.concat();
        assert!((0..BLOCKS).map(|n| u8::try_from(n % 251).unwrap()).eq(elements));
        assert!(store.most_waiting.load(Ordering::Relaxed) <= CONCURRENCY);
    }
}
