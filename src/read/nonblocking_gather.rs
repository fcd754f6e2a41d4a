//! Nonblocking gather: reads, decodes and pastes blocks that need no waiting in one pass, with up to one job per core.
//!
//! A job takes one block after another. A cached block is pasted. A block that is not cached is read if the store can
//! do so without blocking, decoded into a buffer that serves all blocks of the job, and pasted while it is in the
//! core's cache.
//!
//! A block is deferred if its file is not in the page cache, if the block is damaged, if another request is loading it,
//! or if there is not enough memory. The caller loads deferred blocks afterwards. Only the caller handles errors,
//! retries and waits.
//!
//! One pass is faster than handing each block from thread to thread for reading, decoding and pasting. Times of a slice
//! of 256^3 uint16 in 64 blocks that are not cached, including the transport, in one pass and from thread to thread:
//! raw 33 and 44 ms, zstd 54 and 73 ms, gzip 70 and 97 ms.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::vec;

use bytes::Bytes;
use futures_util::future::try_join_all;

use super::canvas::{Canvas, ElementByteOrder};
use super::plan::PlannedSlice;
use super::read_stats::ReadStats;
use crate::cache::{
    self, BlockCache, BlockEntry, BlockLocation, BlockSource, BlockWaiters, CacheEntry, Dataset, LoadTimes, Permit,
    ReadError, ReadOptions, record_decode,
};
use crate::container::Container;
use crate::runtime::cpu_pool::{CoreLease, Priority};
use crate::runtime::fair_queue::FlightHandle;
use crate::store::{CachedGet, NonblockingReader, ObjectMeta};
use crate::telemetry::metrics::{self, StoreOperation};
use crate::telemetry::trace;
use n5_format::{CancelCheck, GridPosition, Scratch};

/// Time after which a job gives up its core to waiting jobs. If no job waits, the job continues. When jobs ended after
/// every quantum, a slice of 64 bzip2 blocks took 739 ms instead of 661, and a slice of 64 gzip blocks 70 instead of
/// 59.
const JOB_QUANTUM: Duration = Duration::from_millis(5);

/// Number of decoded or cached bytes for which another job is worth starting.
const BYTES_PER_JOB: u64 = 512 << 10;

/// Maximum size of all samples of a slice whose cached blocks are pasted on the calling thread, in bytes. Pasting so
/// few bytes takes less time than handing the blocks to another thread.
const INLINE_PASTE_BYTES: u64 = 64 << 10;

/// Largest file that is read without blocking, in bytes. A larger file would keep the job on its core for too long.
const MAX_NONBLOCKING_FILE_BYTES: u64 = 16 << 20;

/// Size of a CPU cache line in bytes. Reading a single sample loads a whole line into the CPU's cache.
const CACHE_LINE_BYTES: u64 = 64;

/// Bytes that a file may have in addition to its decoded block: a header, and what a codec adds to incompressible data.
const FILE_SLACK_BYTES: u64 = 64 << 10;

/// A block to paste.
pub(crate) enum PasteItem {
    /// An entry of the cache: a block, or a hole.
    Decoded(GridPosition, Arc<BlockEntry>),
    /// A block that must be loaded, if it exists.
    Stored {
        /// Grid position of the block.
        position: GridPosition,
        /// True if the block enters the cache when it is loaded.
        should_cache: bool,
    },
}

/// State that all jobs of one slice or band share.
pub(crate) struct GatherContext {
    pub(crate) container: Container,
    pub(crate) options: ReadOptions,
    pub(crate) source: Arc<dyn BlockSource>,
    pub(crate) dataset: Arc<Dataset>,
    /// Canvas with the region to gather.
    pub(crate) canvas: Canvas,
    /// Decoded size of a whole block in bytes.
    pub(crate) block_bytes: u64,
    /// Bytes that enter a core's cache when all samples are copied out of decoded blocks.
    pub(crate) sample_bytes: u64,
}

/// State of one job: the queue that it works on, buffers that it reuses for every block, and its results.
struct PasteJob {
    /// Blocks that no job has taken yet.
    queue: Arc<Mutex<vec::IntoIter<PasteItem>>>,
    /// True if the job takes blocks from the end of the queue. Every second job does, so that two jobs paste into
    /// different slabs instead of waiting for each other.
    from_end: bool,
    priority: Priority,
    /// Expires when no request waits for the slice any more.
    requester: Weak<()>,
    /// Bytes of the last file that was read.
    file: Vec<u8>,
    /// Metadata of the last file; `None` if the file does not exist.
    file_meta: Option<ObjectMeta>,
    /// Decompressed elements of the last block that was pasted without being cached.
    decoded: Vec<u8>,
    /// Working memory of the decoders.
    scratch: Scratch,
    /// Permit of the decode budget for `file`, `decoded` and `scratch`.
    permit: Option<Permit>,
    /// Reader of the page cache; dropped when the quantum is over.
    reader: Option<Box<dyn NonblockingReader>>,
    /// Times of loading the current block.
    times: LoadTimes,
    /// Blocks that could not be loaded without waiting.
    deferred: Vec<GridPosition>,
    stats: ReadStats,
}

impl GatherContext {
    /// Creates the state for gathering the region of `canvas`, which is `slice` or a band of it.
    pub(crate) fn new(container: &Container, options: ReadOptions, slice: &PlannedSlice, canvas: Canvas) -> Self {
        let dataset = Arc::clone(&slice.dataset);
        let grid = dataset.attributes.grid();
        let region = canvas.region();
        let stored_width = slice.stored_width() as u64;
        let block_bytes = (0..region.rank())
            .map(|axis| grid.block_size()[axis].min(grid.dimensions()[axis]))
            .fold(stored_width, u64::saturating_mul);
        let is_contiguous =
            region.shape().first().is_some_and(|samples| *samples > 1) && region.step().first() == Some(&1);
        let sample_width = if is_contiguous { stored_width } else { CACHE_LINE_BYTES };
        Self {
            container: container.clone(),
            options,
            source: container.block_source(&dataset),
            block_bytes,
            sample_bytes: region.elements().unwrap_or(u64::MAX).saturating_mul(sample_width),
            dataset,
            canvas,
        }
    }

    /// Returns the cache of the blocks.
    pub(crate) fn blocks(&self) -> &BlockCache {
        &self.container.resources.blocks
    }

    /// Pastes the `items` that need no waiting. Returns the positions of the deferred ones.
    pub(crate) async fn paste(
        self: &Arc<Self>,
        items: Vec<PasteItem>,
        stats: &mut ReadStats,
    ) -> Result<Vec<GridPosition>, ReadError> {
        let misses = items.iter().filter(|item| matches!(item, PasteItem::Stored { .. })).count();
        if misses == 0 && self.sample_bytes <= INLINE_PASTE_BYTES {
            for item in &items {
                if let PasteItem::Decoded(position, entry) = item {
                    self.paste_entry(position, entry, stats);
                }
            }
            // There may be many such batches of small blocks, so they count against the task's budget.
            tokio::task::consume_budget().await;
            return Ok(Vec::new());
        }
        let job_count = self.job_count(items.len(), misses);
        // Cached blocks do not wait behind decoding jobs.
        let priority = if misses == 0 { Priority::High } else { Priority::Low };
        let queue = Arc::new(Mutex::new(items.into_iter()));
        let requester = Arc::new(());
        let jobs = (0..job_count).map(|number| {
            let job = PasteJob::new(Arc::clone(&queue), number % 2 == 1, priority, Arc::downgrade(&requester));
            self.run_job(job)
        });
        let mut deferred = Vec::new();
        for mut job in try_join_all(jobs).await? {
            stats.merge(&job.stats);
            deferred.append(&mut job.deferred);
            job.return_buffers(self.blocks());
        }
        Ok(deferred)
    }

    /// Returns the number of jobs for `items` blocks, if `misses` of them are not cached.
    fn job_count(&self, items: usize, misses: usize) -> usize {
        let hits = items.saturating_sub(misses) as u64;
        let hit_bytes = self.block_bytes.saturating_mul(hits).min(self.sample_bytes);
        let bytes = hit_bytes.saturating_add(self.block_bytes.saturating_mul(misses as u64));
        let jobs = usize::try_from(bytes / BYTES_PER_JOB).unwrap_or(usize::MAX).clamp(1, items.max(1));
        jobs.min(self.blocks().cpu.cores())
    }

    /// Runs a job in quanta until the queue is empty.
    async fn run_job(self: &Arc<Self>, mut job: PasteJob) -> Result<PasteJob, ReadError> {
        loop {
            let context = Arc::clone(self);
            let priority = job.priority;
            let quantum = move |lease: &CoreLease| {
                let has_more = context.run_quantum(&mut job, lease);
                job.reader = None;
                if !has_more {
                    // The memory that a codec keeps, much of it in liblzma, is freed here and not on the thread that
                    // serves requests.
                    job.scratch = Scratch::default();
                }
                // Dropped before the job reports its end, so that the caller then has the only reference to the canvas.
                drop(context);
                (job, has_more)
            };
            let has_more;
            (job, has_more) = self.blocks().cpu.run_cooperative(priority, self.dataset.id, quantum).await?;
            self.blocks().entries.evict_surplus().await;
            if !has_more {
                return Ok(job);
            }
        }
    }

    /// Processes blocks from the queue until it is empty or the quantum is over. Returns true if there may be more.
    fn run_quantum(&self, job: &mut PasteJob, lease: &CoreLease) -> bool {
        let mut started = Instant::now();
        loop {
            // A job whose client has disconnected ends here, so that it does not delay the next client.
            if job.requester.strong_count() == 0 {
                return true;
            }
            match job.next_item() {
                None => return false,
                Some(PasteItem::Decoded(position, entry)) => self.paste_entry(&position, &entry, &mut job.stats),
                Some(PasteItem::Stored { position, should_cache }) => {
                    job.times = LoadTimes::default();
                    let result = if should_cache {
                        self.paste_through_cache(&position, job, lease)
                    } else {
                        self.paste_uncached(&position, job, lease)
                    };
                    if result.is_none() {
                        job.deferred.push(position);
                    }
                }
            }
            if started.elapsed() > JOB_QUANTUM {
                if self.blocks().cpu.has_waiters(job.priority) {
                    return true;
                }
                // Evictions free memory for the next blocks.
                self.blocks().entries.try_evict();
                job.reader = None;
                started = Instant::now();
            }
        }
    }

    fn paste_entry(&self, position: &GridPosition, entry: &BlockEntry, stats: &mut ReadStats) {
        let Some(block) = entry.block() else { return };
        let started = Instant::now();
        self.canvas.paste(position, &block.size, &block.data, ElementByteOrder::LittleEndian);
        stats.assemble += started.elapsed();
    }

    /// Loads a block into the cache in a single flight, and pastes it. Returns `None` if that would block or fails.
    fn paste_through_cache(&self, position: &GridPosition, job: &mut PasteJob, lease: &CoreLease) -> Option<()> {
        let location = self.block_location(position);
        let load = |flight: &FlightHandle| self.decode_for_cache(&location, job, lease, flight);
        let entry = self.blocks().entries.try_get_or_load((self.dataset.id, position.clone()), load)?;
        if !entry.is_fresh(self.container.data_since(self.options)) {
            return None;
        }
        entry.check_decodable(&self.dataset, position).ok()?;
        job.stats.count_load(&job.times);
        job.stats.count_block(position, &entry);
        self.paste_entry(position, &entry, &mut job.stats);
        Some(())
    }

    /// Reads and decodes a block for the cache. Returns `None` if that would block or fails.
    fn decode_for_cache(
        &self,
        location: &BlockLocation,
        job: &mut PasteJob,
        lease: &CoreLease,
        flight: &FlightHandle,
    ) -> Option<BlockEntry> {
        let now = cache::now();
        let (needed_bytes, age) = self.try_get(&location.position, job)?;
        let checked_at = cache::compared_at(now, age);
        let Some(meta) = job.file_meta.take() else { return Some(BlockEntry::missing(checked_at)) };
        // Memory that decoding needs in addition to the block stays with this job.
        let scratch_bytes = needed_bytes.saturating_sub(self.block_bytes);
        job.try_reserve(self.blocks(), self.max_file_bytes().saturating_add(scratch_bytes))?;
        let decode_permit = self.blocks().budget().try_take(needed_bytes)?;
        let started = Instant::now();
        // A raw block takes over the file's buffer. After any other codec, the next file reuses the buffer.
        let compression = self.dataset.attributes.compression();
        let is_uncompressed = compression.codec().is_none_or(n5_format::Codec::is_uncompressed);
        if is_uncompressed {
            job.file.shrink_to_fit();
        }
        let stored = Bytes::from(std::mem::take(&mut job.file));
        let file = (!is_uncompressed).then(|| stored.clone());
        let waiters = BlockWaiters::new(Weak::clone(&job.requester), Some(flight));
        let should_continue = waiters.should_continue(lease);
        let cancel_check = CancelCheck::new(&should_continue);
        let scratch = &mut job.scratch;
        let block = self.blocks().decode_owned(location, stored, false, decode_permit, scratch, cancel_check);
        job.file = file.map(Vec::from).unwrap_or_default();
        let block = block.ok()?;
        let elapsed = started.elapsed();
        job.times.add_decode(elapsed);
        record_decode(compression.label(), elapsed);
        Some(BlockEntry::new(Ok(block), meta, checked_at))
    }

    /// Decodes a block and pastes it without caching it. Returns `None` if that would block or fails.
    fn paste_uncached(&self, position: &GridPosition, job: &mut PasteJob, lease: &CoreLease) -> Option<()> {
        let now = cache::now();
        job.take_buffers(self.blocks(), self.max_file_bytes(), self.block_bytes)?;
        let (needed_bytes, age) = self.try_get(position, job)?;
        let checked_at = cache::compared_at(now, age);
        if job.file_meta.is_some() {
            job.try_reserve(self.blocks(), self.max_file_bytes().saturating_add(needed_bytes))?;
            let started = Instant::now();
            let waiters = BlockWaiters::new(Weak::clone(&job.requester), None);
            let should_continue = waiters.should_continue(lease);
            let cancel_check = CancelCheck::new(&should_continue);
            let decoder = self.blocks().decoder(&self.dataset, position, &*job.file).ok()?;
            let (size, elements) = decoder.decompress(&mut job.decoded, &mut job.scratch, cancel_check).ok()?;
            let elapsed = started.elapsed();
            job.times.add_decode(elapsed);
            record_decode(self.dataset.attributes.compression().label(), elapsed);
            let started = Instant::now();
            self.canvas.paste(position, &size, elements, ElementByteOrder::BigEndian);
            job.stats.assemble += started.elapsed();
        }
        job.stats.count_load(&job.times);
        let etag_and_version = job.file_meta.as_ref().map(|meta| (&*meta.etag, meta.version));
        job.stats.count_stored(position, etag_and_version, checked_at);
        Some(())
    }

    /// Gets the file of a block. Returns the bytes of memory that decoding takes, 0 if the file does not exist, and the
    /// time since the block was compared with its source. Returns `None` if that would block or fails.
    fn try_get(&self, position: &GridPosition, job: &mut PasteJob) -> Option<(u64, Duration)> {
        let max_bytes = self.max_file_bytes();
        job.try_reserve(self.blocks(), max_bytes)?;
        let started = Instant::now();
        let store = self.source.store()?;
        if job.reader.is_none() {
            job.reader = Some(store.page_cache()?.reader()?);
        }
        let key = self.dataset.block_key(position);
        let mut file_age = Duration::ZERO;
        job.file_meta = match job.reader.as_mut()?.get(&key, max_bytes, &mut job.file) {
            CachedGet::Unknown => return None,
            CachedGet::Missing => None,
            CachedGet::Object(meta, age) => {
                file_age = age;
                Some(meta)
            }
        };
        job.times.add_store(started.elapsed());
        metrics::store_request(StoreOperation::Get, store.backend(), started.elapsed());
        trace::record("storage", StoreOperation::Get.name(), started.elapsed());
        if job.file_meta.is_none() {
            return Some((0, file_age));
        }
        metrics::store_read_bytes(store.backend(), job.file.len() as u64);
        let decoder = self.blocks().decoder(&self.dataset, position, &*job.file).ok()?;
        Some((decoder.memory_bytes(), file_age))
    }

    fn max_file_bytes(&self) -> u64 {
        self.block_bytes
            .saturating_add(self.block_bytes / 16)
            .saturating_add(FILE_SLACK_BYTES)
            .min(MAX_NONBLOCKING_FILE_BYTES)
    }

    pub(crate) fn block_location(&self, position: &GridPosition) -> BlockLocation {
        BlockLocation {
            source: Arc::clone(&self.source),
            dataset: Arc::clone(&self.dataset),
            position: position.clone(),
        }
    }
}

impl PasteJob {
    fn new(
        queue: Arc<Mutex<vec::IntoIter<PasteItem>>>,
        from_end: bool,
        priority: Priority,
        requester: Weak<()>,
    ) -> Self {
        Self {
            queue,
            from_end,
            priority,
            requester,
            file: Vec::new(),
            file_meta: None,
            decoded: Vec::new(),
            scratch: Scratch::default(),
            permit: None,
            reader: None,
            times: LoadTimes::default(),
            deferred: Vec::new(),
            stats: ReadStats::default(),
        }
    }

    /// Takes the next block from the queue.
    fn next_item(&self) -> Option<PasteItem> {
        let mut items = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if self.from_end { items.next_back() } else { items.next() }
    }

    /// Takes pooled buffers if the job has none yet.
    fn take_buffers(&mut self, blocks: &BlockCache, file_bytes: u64, block_bytes: u64) -> Option<()> {
        if self.permit.is_none() {
            self.try_reserve(blocks, file_bytes.saturating_add(block_bytes))?;
            self.file = blocks.budget().buffer(usize::try_from(file_bytes).ok()?);
            self.decoded = blocks.budget().buffer(usize::try_from(block_bytes).ok()?);
        }
        Some(())
    }

    /// Returns the buffers to the pool.
    fn return_buffers(self, blocks: &BlockCache) {
        if let Some(permit) = self.permit {
            blocks.budget().return_buffers([self.decoded, self.file], permit);
        }
    }

    /// Extends the permit until it covers `bytes`. Returns `None` if that would block.
    fn try_reserve(&mut self, blocks: &BlockCache, bytes: u64) -> Option<()> {
        match &mut self.permit {
            Some(permit) if permit.bytes() >= bytes => {}
            Some(permit) => permit.merge(blocks.budget().try_take(bytes.saturating_sub(permit.bytes()))?),
            empty => *empty = Some(blocks.budget().try_take(bytes)?),
        }
        Some(())
    }
}
