//! Blocks that need no waiting, read, decoded and pasted in one go by as many jobs as there are cores.
//!
//! A job takes one block after the other: a cached one is pasted; a missing one is read where the store can do so
//! at once, decoded in memory that serves for all of them, and pasted while it is in the core's cache. Whatever is
//! not as simple as that (a file that is not in the page cache, a block that is damaged or being loaded by somebody
//! else, short memory) is left for the usual way, which alone has errors, second looks and waits.
//!
//! 256^3 uint16 in 64 blocks, nothing cached, transport included, against one hop each for reading, decoding and
//! pasting: raw 44 ms to 33, zstd 73 to 54, gzip 97 to 70.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::try_join_all;

use super::blocks::{Blocks, Failure, LoadTimes, Loaded, Place};
use super::canvas::{Canvas, Elements};
use super::footprint;
use super::fresh;
use super::permit::Permit;
use super::stats::ReadStats;
use super::wanted::Audience;
use super::{Dataset, ReadError};
use crate::cpu::{Length, Turn};
use crate::metrics::{self, StoreOperation};
use crate::n5::{Block, GridPosition, Room, Scratch, Unpacked, Watch};
use crate::store::{Meta, ReadAtOnce, Store};
use crate::trace;

/// How long a job keeps its core before others that wait for one are let in. Where nobody does it goes on: a
/// slice of 64 blocks of bzip2 took 739 ms when every turn ended the job, 661 so, one of gzip 70 and 59.
const TURN: Duration = Duration::from_millis(5);

/// Another job is worth its start for so many bytes of blocks that are decoded or, where they are, looked at.
const JOB_BYTES: u64 = 512 << 10;

/// Cached blocks are pasted right away where all samples take no more than this: less time than to hand them to another
/// thread.
const HERE_BYTES: u64 = 64 << 10;

/// Larger files are not read at once: a job would keep its core for too long.
const FILE_BYTES: u64 = 16 << 20;

/// What a file may have beyond its block's bytes: a header, and what compression adds to noise.
const FILE_SLACK_BYTES: u64 = 64 << 10;

/// A block to be pasted.
pub(super) enum Item {
    /// It is cached.
    Hit(GridPosition, Arc<Loaded>),
    /// It is not.
    Miss {
        /// Where.
        position: GridPosition,
        /// Whether it is to be cached.
        keep: bool,
    },
}

/// What the jobs of one slice share.
pub(super) struct Work {
    pub(super) blocks: Blocks,
    pub(super) container: u32,
    pub(super) store: Arc<dyn Store>,
    pub(super) dataset: Arc<Dataset>,
    pub(super) canvas: Canvas,
    /// No block that was compared with the store before this moment will do.
    pub(super) since: u64,
    /// Bytes of a whole block, decoded.
    pub(super) block_bytes: u64,
    /// Bytes that come into a core's cache when all samples are taken out of decoded blocks.
    pub(super) sample_bytes: u64,
}

/// What a job has of its own: memory that it uses for one block after the other, and what it did.
#[derive(Default)]
struct Bench {
    file: Vec<u8>,
    room: Room,
    /// Where it reads, until its turn is over.
    objects: Option<Box<dyn ReadAtOnce>>,
    /// The share of the decode budget that both are held by.
    permit: Option<Permit>,
    left: Vec<GridPosition>,
    stats: ReadStats,
    /// Gone when nobody waits for the slice any more.
    asked: Weak<()>,
    /// Takes blocks from the queue's end: two jobs then paste into different slabs, instead of waiting for each other.
    from_end: bool,
}

impl Work {
    /// Pastes `items` as far as that needs no waiting; returns the positions of those that do.
    pub(super) async fn paste(
        self: &Arc<Self>,
        items: Vec<Item>,
        stats: &mut ReadStats,
    ) -> Result<Vec<GridPosition>, ReadError> {
        let misses = items.iter().filter(|item| matches!(item, Item::Miss { .. })).count() as u64;
        let hits = (items.len() as u64).saturating_sub(misses);
        let bytes = self.block_bytes.saturating_mul(hits).min(self.sample_bytes);
        let bytes = bytes.saturating_add(self.block_bytes.saturating_mul(misses));
        if misses == 0 && self.sample_bytes <= HERE_BYTES {
            let mut bench = Bench::default();
            for item in &items {
                if let Item::Hit(position, loaded) = item {
                    self.paste_loaded(position, loaded, &mut bench);
                }
            }
            stats.add(&bench.stats);
            // There may be many such batches, of blocks of few bytes.
            tokio::task::consume_budget().await;
            return Ok(Vec::new());
        }
        let jobs = usize::try_from(bytes / JOB_BYTES).unwrap_or(usize::MAX).clamp(1, items.len().max(1));
        let jobs = jobs.min(self.blocks.cpu.cores());
        // Cached blocks do not wait until others are decoded.
        let length = if misses == 0 { Length::Short } else { Length::Long };
        let queue = Arc::new(Mutex::new(items.into_iter()));
        let asked = Arc::new(());
        let (queue, asked) = (&queue, &asked);
        let job = |number: usize| async move {
            let mut bench = Bench { from_end: number % 2 == 1, ..Bench::default() };
            loop {
                let (work, queue, asked) = (Arc::clone(self), Arc::clone(queue), Arc::downgrade(asked));
                let turn = move |turn: &Turn| {
                    bench.asked.clone_from(&asked);
                    let more = work.turn(&queue, turn, &mut bench, length);
                    bench.objects = None;
                    if !more {
                        // What a codec keeps, liblzma much, is not for the thread that serves to free.
                        bench.room.scratch = Scratch::default();
                    }
                    // Before anybody hears of the end, so that the last one has the canvas to itself.
                    drop(work);
                    (bench, more)
                };
                let more;
                (bench, more) = self.blocks.cpu.run_in_turns(length, self.dataset.id, turn).await?;
                self.blocks.cache.run_pending_tasks().await;
                if !more {
                    return Ok::<Bench, ReadError>(bench);
                }
            }
        };
        let mut left = Vec::new();
        for mut bench in try_join_all((0..jobs).map(job)).await? {
            stats.add(&bench.stats);
            left.append(&mut bench.left);
            bench.clear_up(&self.blocks);
        }
        Ok(left)
    }

    /// Takes blocks from `queue` until there is none or the turn is over; whether there may be more.
    fn turn(&self, queue: &Mutex<std::vec::IntoIter<Item>>, turn: &Turn, bench: &mut Bench, length: Length) -> bool {
        let mut started = Instant::now();
        loop {
            // A client that has hung up does not hold up the next one for the rest of a turn.
            if bench.asked.strong_count() == 0 {
                return true;
            }
            let mut items = queue.lock().unwrap_or_else(PoisonError::into_inner);
            let next = if bench.from_end { items.next_back() } else { items.next() };
            drop(items);
            let Some(item) = next else { return false };
            match item {
                Item::Hit(position, loaded) => self.paste_loaded(&position, &loaded, bench),
                Item::Miss { position, keep } => {
                    let done = if keep { self.load(&position, turn, bench) } else { self.pass(&position, turn, bench) };
                    if done.is_none() {
                        bench.left.push(position);
                    }
                }
            }
            if started.elapsed() > TURN {
                if self.blocks.cpu.is_wanted(length) {
                    return true;
                }
                // What the cache has to evict makes room for what comes next.
                self.blocks.cache.run_pending_tasks().now_or_never();
                bench.objects = None;
                started = Instant::now();
            }
        }
    }

    fn paste_loaded(&self, position: &GridPosition, loaded: &Loaded, bench: &mut Bench) {
        let Some(block) = &loaded.block else { return };
        let started = Instant::now();
        self.canvas.paste(position, &block.size, &block.data, Elements::Decoded);
        bench.stats.assemble += started.elapsed();
    }

    /// Loads a block into the cache, once however many want it at the same time, and pastes it.
    fn load(&self, position: &GridPosition, turn: &Turn, bench: &mut Bench) -> Option<()> {
        let place = self.place(position);
        let mut times = LoadTimes::default();
        let load = async { self.decode(&place, turn, bench, &mut times).map(Arc::new).ok_or(Failure::NotAtOnce) };
        // Not ready at once: another loads it.
        let loaded = self.blocks.cache.try_get_with(place.entry_key(), load).now_or_never()?.ok()?;
        if loaded.checked() < self.since || loaded.fault.is_some() {
            return None;
        }
        bench.stats.count_load(times);
        bench.stats.count(position, &loaded);
        self.paste_loaded(position, &loaded, bench);
        Some(())
    }

    fn decode(&self, place: &Place, turn: &Turn, bench: &mut Bench, times: &mut LoadTimes) -> Option<Loaded> {
        let checked = fresh::now();
        let Some(meta) = self.read(&place.position, bench, times)? else { return Some(Loaded::hole(checked)) };
        let attributes = &self.dataset.attributes;
        let needed_bytes = self.needed(&place.position, bench)?;
        // What decoding takes besides the block stays with this job.
        let scratch_bytes = needed_bytes.saturating_sub(self.block_bytes);
        bench.reserve(&self.blocks, self.file_bytes().saturating_add(scratch_bytes))?;
        let mut decoding = self.blocks.budget.take_at_once(needed_bytes)?;
        let started = Instant::now();
        // A raw block keeps the file's buffer; from any other the next file gets it back.
        let is_plain = attributes.compression().codec().is_none_or(crate::n5::Codec::is_plain);
        if is_plain {
            bench.file.shrink_to_fit();
        }
        let stored = Bytes::from(std::mem::take(&mut bench.file));
        let file = (!is_plain).then(|| stored.clone());
        let limit_bytes = self.blocks.block_bytes;
        let mut room = self.blocks.budget.room(&stored, attributes, &place.position);
        std::mem::swap(&mut room.scratch, &mut bench.room.scratch);
        let audience = Audience::of(&self.blocks.loading, place.entry_key()).and(Weak::clone(&bench.asked));
        let goes_on = audience.watched(turn);
        let watch = Watch::new(&goes_on);
        let block = Block::decode_with(stored, attributes, &place.position, limit_bytes, &mut room, watch);
        bench.room.scratch = room.scratch;
        bench.file = file.map(Vec::from).unwrap_or_default();
        let block = block.ok()?;
        decoding.shrink(block.data.len() as u64);
        let decoding = decoding.of_cache();
        times.decode += started.elapsed();
        decoded(attributes.compression().label(), started.elapsed());
        let data = if is_plain || footprint::is_copied(&block.data) {
            decoding.own(footprint::cached(block.data, !is_plain))
        } else {
            self.blocks.budget.own(block.data.into(), decoding)
        };
        let block = Block { size: block.size, data };
        Some(Loaded::new(block, meta, checked))
    }

    /// Decodes a block and pastes it without keeping it.
    fn pass(&self, position: &GridPosition, turn: &Turn, bench: &mut Bench) -> Option<()> {
        let checked = fresh::now();
        let mut times = LoadTimes::default();
        bench.lay_out(&self.blocks, self.file_bytes(), self.block_bytes)?;
        let meta = self.read(position, bench, &mut times)?;
        if meta.is_some() {
            let needed_bytes = self.needed(position, bench)?;
            bench.reserve(&self.blocks, self.file_bytes().saturating_add(needed_bytes))?;
            let started = Instant::now();
            let attributes = &self.dataset.attributes;
            let (file, room, asked) = (&bench.file, &mut bench.room, &bench.asked);
            let goes_on = || {
                turn.give_way();
                asked.strong_count() > 0
            };
            let watch = Watch::new(&goes_on);
            let block = Unpacked::new(file, attributes, position, self.blocks.block_bytes, room, watch).ok()?;
            times.decode += started.elapsed();
            decoded(attributes.compression().label(), started.elapsed());
            let started = Instant::now();
            self.canvas.paste(position, &block.size, block.data, Elements::AsStored);
            bench.stats.assemble += started.elapsed();
        }
        bench.stats.count_load(times);
        bench.stats.count_stored(position, meta.as_ref().map(|meta| (&*meta.etag, meta.version)), checked);
        Some(())
    }

    /// Reads the file of a block; `Some(None)` where there is none.
    #[expect(clippy::option_option, reason = "the outer one ends the attempt, as everywhere here")]
    fn read(&self, position: &GridPosition, bench: &mut Bench, times: &mut LoadTimes) -> Option<Option<Meta>> {
        let most_bytes = self.file_bytes();
        bench.reserve(&self.blocks, most_bytes)?;
        let started = Instant::now();
        if bench.objects.is_none() {
            bench.objects = Some(self.store.at_once()?);
        }
        let found = bench.objects.as_mut()?.get(&self.dataset.block_key(position), most_bytes, &mut bench.file)?;
        times.store += started.elapsed();
        metrics::store_request(StoreOperation::Get, self.store.backend(), started.elapsed());
        trace::record("storage", StoreOperation::Get.name(), started.elapsed());
        if found.is_some() {
            metrics::store_read_bytes(self.store.backend(), bench.file.len() as u64);
        }
        Some(found)
    }

    fn needed(&self, position: &GridPosition, bench: &Bench) -> Option<u64> {
        let needed = Block::decoding_bytes(&bench.file, &self.dataset.attributes, position).ok()?;
        (needed <= self.blocks.block_bytes).then_some(needed)
    }

    fn file_bytes(&self) -> u64 {
        self.block_bytes.saturating_add(self.block_bytes / 16).saturating_add(FILE_SLACK_BYTES).min(FILE_BYTES)
    }

    pub(super) fn place(&self, position: &GridPosition) -> Place {
        Place {
            container: self.container,
            store: Arc::clone(&self.store),
            dataset: Arc::clone(&self.dataset),
            position: position.clone(),
        }
    }
}

/// A block was decoded.
fn decoded(codec: &'static str, elapsed: Duration) {
    metrics::block_decoded(codec, elapsed);
    trace::record("decode", codec, elapsed);
}

impl Bench {
    /// Takes buffers that other jobs have used, for a job that begins.
    fn lay_out(&mut self, blocks: &Blocks, file_bytes: u64, block_bytes: u64) -> Option<()> {
        if self.permit.is_none() {
            self.reserve(blocks, file_bytes.saturating_add(block_bytes))?;
            self.file = blocks.budget.buffer(usize::try_from(file_bytes).ok()?);
            self.room.decoded = blocks.budget.buffer(usize::try_from(block_bytes).ok()?);
        }
        Some(())
    }

    /// Leaves its buffers to other jobs.
    fn clear_up(self, blocks: &Blocks) {
        if let Some(permit) = self.permit {
            blocks.budget.keep([self.room.decoded, self.file], permit);
        }
    }

    /// Sees to it that this holds a share of `bytes`; `None` where that takes waiting.
    fn reserve(&mut self, blocks: &Blocks, bytes: u64) -> Option<()> {
        match &mut self.permit {
            Some(permit) if permit.bytes() >= bytes => {}
            Some(permit) => permit.merge(blocks.budget.take_at_once(bytes.saturating_sub(permit.bytes()))?),
            none => *none = Some(blocks.budget.take_at_once(bytes)?),
        }
        Some(())
    }
}
