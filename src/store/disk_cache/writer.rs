//! Writes to the disk cache. Objects wait in queues of bounded size and are dropped if these are full, so a slow disk
//! delays no request.
//!
//! All jobs for an object run in their order on the same thread. Otherwise an old version that was queued earlier could
//! replace a new one.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::directory::{CacheDirectory, file_stamp, set_validated};
use super::entry_file::encode_trailer;
use super::handle::DiskCacheContainer;
use super::index::{DiskEntry, EntryName, allocated_bytes};
use super::shared::{CachePhase, DiskAction, DiskCacheShared, MAX_OBJECT_BYTES};
use super::write_queue::{LaneJob, MAX_QUEUED_BYTES, MAX_QUEUED_JOBS, MAX_QUEUED_REMOVALS, StoreJob, WriteLane, lock};
use crate::store::key::Key;
use crate::store::object::ObjectMeta;

/// Time without writes after the file system was full.
const FULL_PAUSE_SECONDS: u32 = 10;

/// Size of a block of most file systems, up to which the space for a file is rounded.
const FILE_SYSTEM_BLOCK_BYTES: u64 = 4096;

impl DiskCacheContainer {
    /// Returns the time for [`Self::store`] and [`Self::touch`]. It is taken before the request to the store.
    pub(super) fn now(&self) -> u32 {
        self.cache.0.clock.now()
    }

    /// Queues an object that was got from the store, by a request that was sent at `validated`, to be written. Drops it
    /// if too many objects are queued, and then removes the object as it was before.
    pub(super) fn store(&self, key: &Key, meta: &ObjectMeta, bytes: &Bytes, validated: u32) {
        let shared = &self.cache.0;
        let len = bytes.len() as u64;
        if len != meta.len || len > MAX_OBJECT_BYTES || shared.phase() == CachePhase::Off {
            return;
        }
        let name = EntryName::new(self.identity.hash, key);
        let state_of = |entry: &mut DiskEntry| (entry.version() == Some(meta.version), entry.validated > validated);
        match shared.index.update(name, state_of) {
            // An earlier read of the file failed or took too long.
            Some((true, _)) => return self.touch(key, meta.version, validated, false),
            // The request was sent before another one, whose response is stored.
            Some((false, true)) => return,
            Some((false, false)) | None => {}
        }
        let is_ready = shared.phase() == CachePhase::Ready;
        let is_full = shared.clock.now() < shared.writes_paused_until.load(Ordering::Relaxed);
        let Some(container) = shared.container_number(self.identity.hash) else { return };
        if !is_ready || is_full || !shared.reserve_queue(len) {
            let counters = &shared.counters;
            let dropped = if is_full { &counters.dropped_for_space } else { &counters.dropped_by_queue };
            dropped.fetch_add(1, Ordering::Relaxed);
            self.remove(key);
            return;
        }
        let lane = shared.lane(name);
        let mut state = lock(&lane.state);
        if state.jobs.len() >= MAX_QUEUED_JOBS {
            drop(state);
            shared.queued_bytes.fetch_sub(len, Ordering::Relaxed);
            shared.counters.dropped_by_queue.fetch_add(1, Ordering::Relaxed);
            self.remove(key);
            return;
        }
        if state.pending.get(&name).is_some_and(|(_, its_validated)| *its_validated > validated) {
            drop(state);
            shared.queued_bytes.fetch_sub(len, Ordering::Relaxed);
            return;
        }
        state.next_sequence = state.next_sequence.wrapping_add(1);
        let sequence = state.next_sequence;
        state.pending.insert(name, (sequence, validated));
        let identity = Arc::clone(&self.identity);
        let (key, meta, bytes) = (key.clone(), meta.clone(), bytes.clone());
        let job = StoreJob { identity, container, key, name, sequence, meta, bytes, validated };
        state.jobs.push_back(LaneJob::Store(Box::new(job)));
        drop(state);
        lane.changed.notify_all();
    }

    /// Records that an object still had this version at `validated`. The time is written to the disk later; if it is
    /// lost, the object is revalidated earlier than necessary. `is_from_file` is true if the version was read from the
    /// file. Otherwise an entry whose file has not been checked is left as it is, because its version is not known.
    pub(super) fn touch(&self, key: &Key, version: u64, validated: u32, is_from_file: bool) {
        let shared = &self.cache.0;
        let name = EntryName::new(self.identity.hash, key);
        let touch = |entry: &mut DiskEntry| {
            let is_same = entry.version().map_or(is_from_file, |its_version| its_version == version);
            if is_same {
                entry.validated = entry.validated.max(validated);
            }
            is_same
        };
        if shared.index.update(name, touch) != Some(true) {
            return;
        }
        let lane = shared.lane(name);
        let mut state = lock(&lane.state);
        if state.jobs.len() < MAX_QUEUED_JOBS {
            state.jobs.push_back(LaneJob::Touch { container: self.identity.hash, name, version, validated });
            drop(state);
            lane.changed.notify_all();
        }
    }

    /// Removes an object unless it has this version in the store. An object whose version is not known yet stays.
    pub(super) fn remove_unless(&self, key: &Key, version: Option<u64>) {
        let name = EntryName::new(self.identity.hash, key);
        let is_outdated =
            |entry: &mut DiskEntry| version.is_none() || entry.version().is_some_and(|its| Some(its) != version);
        if self.cache.0.index.update(name, is_outdated) == Some(true) {
            self.remove(key);
        }
    }

    /// Removes an object, which has changed or is missing in the store. It is not found from now on. Its file is
    /// deleted later.
    pub(super) fn remove(&self, key: &Key) {
        let shared = &self.cache.0;
        let name = EntryName::new(self.identity.hash, key);
        let lane = shared.lane(name);
        let mut state = lock(&lane.state);
        let was_pending = state.pending.remove(&name).is_some();
        // Before the entry is removed, so that a scan or a look-up that has found the file does not add it again.
        let is_new = state.removing.insert(name);
        drop(state);
        let entry = shared.index.remove(name);
        let may_have_file = entry.is_some() || was_pending || shared.phase() == CachePhase::Scanning;
        let mut state = lock(&lane.state);
        if !may_have_file {
            if is_new {
                state.removing.remove(&name);
            }
            return;
        }
        if state.jobs.len() >= MAX_QUEUED_REMOVALS {
            drop(state);
            shared.turn_off(DiskAction::Delete, &io::Error::other("too many files wait to be deleted"));
            return;
        }
        let bytes = entry.map_or(0, |entry| entry.bytes());
        state.jobs.push_back(LaneJob::Remove { container: self.identity.hash, name, bytes });
        drop(state);
        lane.changed.notify_all();
    }
}

impl DiskCacheShared {
    /// Returns the queue for an object.
    pub(super) fn lane(&self, name: EntryName) -> &WriteLane {
        let [first, second] = &self.lanes;
        if name.lane(2) == 0 { first } else { second }
    }

    /// Takes `bytes` of [`MAX_QUEUED_BYTES`]. Returns false if that many are not free.
    fn reserve_queue(&self, bytes: u64) -> bool {
        let add = |queued: u64| queued.checked_add(bytes).filter(|queued| *queued <= MAX_QUEUED_BYTES);
        self.queued_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Drops all jobs of all queues.
    pub(super) fn clear_lanes(&self) {
        for lane in &self.lanes {
            let mut state = lock(&lane.state);
            let jobs = std::mem::take(&mut state.jobs);
            state.ended_jobs = state.ended_jobs.saturating_add(u64::try_from(jobs.len()).unwrap_or(u64::MAX));
            for job in jobs {
                if let LaneJob::Store(job) = job {
                    self.queued_bytes.fetch_sub(job.meta.len, Ordering::Relaxed);
                }
            }
            state.pending.clear();
            state.removing.clear();
            drop(state);
            lane.changed.notify_all();
        }
    }

    /// Runs the jobs of a queue until the cache is closed.
    pub(super) fn run_lane(self: Arc<Self>, lane: usize) {
        let Some(lane) = self.lanes.get(lane) else { return };
        while let Some(job) = lane.next_job() {
            let (action, result) = match &job {
                LaneJob::Store(job) => (DiskAction::Write, self.store(lane, job)),
                LaneJob::Touch { container, name, version, validated } => {
                    (DiskAction::Write, self.store_validated(*container, *name, *version, *validated))
                }
                LaneJob::Remove { container, name, bytes } => {
                    (DiskAction::Delete, self.remove(*container, *name, *bytes))
                }
            };
            self.record(action, result);
            match job {
                LaneJob::Store(job) => {
                    self.queued_bytes.fetch_sub(job.meta.len, Ordering::Relaxed);
                    let mut state = lock(&lane.state);
                    if state.pending.get(&job.name).is_some_and(|(last, _)| *last == job.sequence) {
                        state.pending.remove(&job.name);
                    }
                }
                LaneJob::Remove { name, .. } => {
                    lock(&lane.state).removing.remove(&name);
                }
                LaneJob::Touch { .. } => {}
            }
        }
    }

    /// Writes an object, after making space for it.
    fn store(&self, lane: &WriteLane, job: &StoreJob) -> io::Result<()> {
        let directory = self.read_directory();
        let is_wanted = || lane.is_pending(job.name, job.sequence) && self.read_containers().is_current(job.container);
        let (Some(directory), true) = (&*directory, is_wanted()) else { return Ok(()) };
        let Some(trailer) = encode_trailer(&job.identity.text, &job.key, &job.meta, xxh3_64(&job.bytes)) else {
            return Ok(());
        };
        let file_bytes = (job.bytes.len() + trailer.len()) as u64;
        let estimate = allocated_bytes(file_bytes.next_multiple_of(FILE_SYSTEM_BLOCK_BYTES) / 512);
        if !self.make_free_space(directory, estimate)? || !self.reserve_space(directory, estimate)? {
            self.counters.dropped_for_space.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let container = job.identity.hash;
        let written = directory.write_entry(container, job.name, [&job.bytes, &trailer], job.validated);
        let metadata = match written {
            Ok(metadata) => metadata,
            Err(error) => {
                self.subtract_used(estimate);
                return self.handle_write_error(directory, estimate, error);
            }
        };
        let entry = DiskEntry::unchecked(job.name, job.container, metadata.blocks(), job.validated, self.clock.now())
            .checked(job.meta.version, job.meta.len, file_stamp(&metadata));
        let (is_stored, replaced) = self.index.insert(entry, is_wanted);
        let freed = replaced.map_or(0, |replaced| replaced.bytes()).saturating_add(estimate);
        self.adjust_used(if is_stored { entry.bytes() } else { 0 }, freed);
        if is_stored {
            self.counters.stored.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        // The object has changed again, or its container was forgotten.
        directory.remove_entry(container, job.name)
    }

    /// Returns the errors of a write that are faults of the disk. A full disk is none.
    fn handle_write_error(&self, directory: &CacheDirectory, bytes: u64, error: io::Error) -> io::Result<()> {
        let is_full =
            matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge);
        if !is_full {
            return Err(error);
        }
        self.counters.dropped_for_space.fetch_add(1, Ordering::Relaxed);
        let until = self.clock.now().saturating_add(FULL_PAUSE_SECONDS);
        if self.writes_paused_until.swap(until, Ordering::Relaxed) < self.clock.now() {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the disk of the cache is full; old objects are deleted");
        }
        self.evict(directory, bytes.saturating_mul(16))?;
        Ok(())
    }

    /// Takes `bytes` of the size of the cache, and deletes other objects if that is necessary. Returns false if the
    /// cache is too small.
    fn reserve_space(&self, directory: &CacheDirectory, bytes: u64) -> io::Result<bool> {
        let size = self.limits().size_bytes;
        let add = |used: u64| used.checked_add(bytes).filter(|used| *used <= size);
        if bytes > size {
            return Ok(false);
        }
        // The other threads may add an object each, too.
        while self.index.count() >= self.limits().max_objects() {
            if self.evict(directory, 1)? == 0 {
                return Ok(false);
            }
        }
        while self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            if self.evict(directory, 1)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Deletes objects until at least `bytes` are free, or nothing is left. Returns the number of bytes.
    pub(super) fn evict(&self, directory: &CacheDirectory, bytes: u64) -> io::Result<u64> {
        let mut evicted = 0_u64;
        while evicted < bytes
            && let Some(victim) = self.index.remove_victim()
        {
            // The lock must not be held while the disk works.
            let container = self.read_containers().hash(victim.container);
            if let Some(container) = container {
                directory.remove_entry(container, victim.name)?;
            }
            self.subtract_used(victim.bytes());
            self.counters.evicted.fetch_add(1, Ordering::Relaxed);
            evicted = evicted.saturating_add(victim.bytes());
        }
        Ok(evicted)
    }

    /// Writes the time at which an object was validated.
    fn store_validated(&self, container: u64, name: EntryName, version: u64, validated: u32) -> io::Result<()> {
        let directory = self.read_directory();
        let Some(directory) = &*directory else { return Ok(()) };
        let is_same = |entry: &DiskEntry| entry.version().is_none_or(|its_version| its_version == version);
        let stamp = self.index.update(name, |entry| is_same(entry).then_some(entry.stamp)).flatten();
        let Some(stamp) = stamp else { return Ok(()) };
        let file = match directory.open_entry(container, name) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            result => result?,
        };
        // A file that was written by another program is checked again at its next use.
        if stamp != 0 && file_stamp(&file.metadata()?) != stamp {
            return Ok(());
        }
        set_validated(&file, validated)?;
        if stamp == 0 {
            return Ok(());
        }
        let new_stamp = file_stamp(&file.metadata()?);
        self.index.update(name, |entry| {
            if entry.stamp == stamp {
                entry.stamp = new_stamp;
            }
        });
        Ok(())
    }

    /// Deletes the file of an object whose entry has been removed.
    fn remove(&self, container: u64, name: EntryName, bytes: u64) -> io::Result<()> {
        let directory = self.read_directory();
        let Some(directory) = &*directory else { return Ok(()) };
        // A scan may have added the entry again.
        let again = self.index.remove(name).map_or(0, |entry| entry.bytes());
        match directory.remove_entry(container, name) {
            Err(error) if Errno::from_io_error(&error) != Some(Errno::NOTDIR) => return Err(error),
            _ => {}
        }
        self.subtract_used(bytes.saturating_add(again));
        Ok(())
    }
}
