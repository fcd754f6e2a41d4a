//! The thread that opens and scans the directory of the disk cache, keeps the limits, and turns the cache on again
//! after faults.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::directory::CacheDirectory;
use super::handle::DiskCacheContainer;
use super::index::DiskEntry;
use super::shared::{CachePhase, DiskAction, DiskCacheShared, MAX_OFF_TIME, MaintenanceState, UnreportedSpace};
use super::write_queue::lock;

/// Interval at which the free space is checked.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time until a file system reports the space of deleted files as free. btrfs commits every 30 seconds.
const COMMIT_TIME: Duration = Duration::from_secs(35);

/// Number of bytes that are deleted before the thread looks at the limits again.
const EVICTION_STEP_BYTES: u64 = 256 << 20;

/// State of the thread between its rounds.
#[derive(Debug, Default)]
struct Rounds {
    retry_at: Option<Instant>,
    device: Option<u64>,
    last_error: Option<String>,
    ready_since: Option<Instant>,
}

impl DiskCacheContainer {
    /// Removes all objects of the container. None is found from now on, not even after a restart. The files are deleted
    /// in the background.
    ///
    /// # Errors
    /// Returns an error if the disk does not answer. The objects are then gone until the next restart.
    pub async fn forget(&self) -> io::Result<()> {
        let shared = &self.cache.0;
        let hash = self.identity.hash;
        let number = shared.write_containers().renumber(hash);
        let bytes = number.map_or(0, |number| shared.index.remove_container(number));
        let set_aside = move |shared: &DiskCacheShared| {
            let directory = shared.read_directory();
            let mut state = lock(&shared.maintenance);
            match &*directory {
                // The directory is not open, so no other thread needs the lock.
                None if state.forgotten.contains(&hash) => {}
                None => state.forgotten.push(hash),
                Some(directory) => {
                    drop(state);
                    let name = directory.set_aside(hash)?;
                    state = lock(&shared.maintenance);
                    state.set_aside.push((name, bytes));
                }
            }
            Ok(())
        };
        let result = shared.run(DiskAction::Delete, set_aside).await;
        shared.wake_maintenance();
        result.ok_or_else(|| io::Error::other("the disk of the cache did not answer; forget the container again"))
    }
}

impl DiskCacheShared {
    /// Runs until the cache is closed.
    pub(super) fn run_maintenance(self: Arc<Self>) {
        let mut rounds = Rounds::default();
        while !self.is_closed.load(Ordering::Relaxed) {
            let state = lock(&self.maintenance);
            let has_tripped = self.has_tripped.load(Ordering::Acquire);
            drop(state);
            if has_tripped {
                self.reset(&mut rounds);
            }
            match self.phase() {
                CachePhase::Off if rounds.retry_at.is_none_or(|retry_at| retry_at <= Instant::now()) => {
                    self.open(&mut rounds);
                }
                CachePhase::Ready => {
                    if let Err(error) = self.keep_limits() {
                        self.record::<()>(DiskAction::Delete, Err(error));
                    }
                }
                CachePhase::Off | CachePhase::Scanning => {}
            }
            let state = lock(&self.maintenance);
            let is_idle = |state: &mut MaintenanceState| !state.is_woken && !self.is_closed.load(Ordering::Relaxed);
            let waited = self.maintenance_wake.wait_timeout_while(state, INTERVAL.min(self.off_time), is_idle);
            waited.unwrap_or_else(PoisonError::into_inner).0.is_woken = false;
        }
    }

    /// Forgets the state of the directory, so that it can be opened again.
    fn reset(&self, rounds: &mut Rounds) {
        // Waits for the jobs that use the directory.
        *self.write_directory() = None;
        self.clear_lanes();
        self.index.clear();
        self.used_bytes.store(0, Ordering::Relaxed);
        self.distrusted_before.store(self.clock.now().saturating_add(1), Ordering::Relaxed);
        self.faults_in_a_row.iter().for_each(|faults| faults.store(0, Ordering::Relaxed));
        let mut state = lock(&self.maintenance);
        // The rest of them is deleted when the directory is opened.
        state.set_aside.clear();
        if rounds.ready_since.take().is_some_and(|since| since.elapsed() > MAX_OFF_TIME) {
            state.times_off = 0;
        }
        let off_time = self.off_time.saturating_mul(1 << state.times_off.min(16)).min(MAX_OFF_TIME);
        state.times_off = state.times_off.saturating_add(1);
        rounds.retry_at = Some(Instant::now() + off_time);
        self.has_tripped.store(false, Ordering::Release);
    }

    /// Opens and scans the directory.
    fn open(&self, rounds: &mut Rounds) {
        let started = Instant::now();
        let path = self.path.display();
        let opened = CacheDirectory::open(&self.path, rounds.device).and_then(|directory| {
            directory.delete_leftovers()?;
            let forgotten = std::mem::take(&mut lock(&self.maintenance).forgotten);
            for container in forgotten {
                let name = directory.set_aside(container)?;
                directory.delete_set_aside(&name)?;
            }
            Ok(directory)
        });
        match opened {
            Ok(directory) => {
                rounds.device = Some(directory.device());
                *self.write_directory() = Some(directory);
                self.set_phase(CachePhase::Scanning);
            }
            Err(error) => {
                let why = error.to_string();
                if rounds.last_error.as_ref() != Some(&why) {
                    tracing::warn!(%path, %why, "the disk cache is off, because its directory cannot be used");
                    rounds.last_error = Some(why);
                }
                rounds.retry_at = Some(Instant::now() + self.off_time);
                return;
            }
        }
        rounds.last_error = None;
        let scanned = self.scan();
        if self.record(DiskAction::Scan, scanned).is_none() {
            // The size of the cache is not known, so it cannot be used.
            self.turn_off(DiskAction::Scan, &io::Error::other("the directory could not be scanned"));
        }
        let is_complete = self
            .phase
            .compare_exchange(CachePhase::Scanning as u8, CachePhase::Ready as u8, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if is_complete {
            rounds.ready_since = Some(Instant::now());
            let objects = self.index.count();
            let bytes = self.used_bytes.load(Ordering::Relaxed);
            let milliseconds = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            tracing::info!(%path, objects, bytes, milliseconds, "the disk cache is ready");
        }
    }

    /// Adds all files of the directory to the index.
    fn scan(&self) -> io::Result<()> {
        let directory = self.read_directory();
        let Some(directory) = &*directory else { return Ok(()) };
        for container in directory.containers()? {
            let Some(number) = self.container_number(container) else { continue };
            directory.scan(container, |file| {
                let entry = DiskEntry::unchecked(file.name, number, file.blocks, file.validated, file.used);
                // The limit may be lower than it was, or the objects smaller.
                if self.index.count() < self.limits().max_objects() {
                    self.add_unscanned(entry);
                } else if directory.remove_entry(container, file.name).is_ok() {
                    self.counters.evicted.fetch_add(1, Ordering::Relaxed);
                }
                self.phase() == CachePhase::Scanning && !self.is_closed.load(Ordering::Relaxed)
            })?;
        }
        Ok(())
    }

    /// Deletes objects if the cache is too large or the file system too full, and directories that were set aside.
    fn keep_limits(&self) -> io::Result<()> {
        let guard = self.read_directory();
        let Some(directory) = &*guard else { return Ok(()) };
        loop {
            let excess = self.used_bytes.load(Ordering::Relaxed).saturating_sub(self.limits().size_bytes);
            let step = excess.min(EVICTION_STEP_BYTES);
            if step == 0 || self.phase() != CachePhase::Ready || self.evict(directory, step)? == 0 {
                break;
            }
        }
        while self.index.count() > self.limits().max_objects() && self.phase() == CachePhase::Ready {
            if self.evict(directory, 1)? == 0 {
                break;
            }
        }
        let set_aside = std::mem::take(&mut lock(&self.maintenance).set_aside);
        for (name, bytes) in set_aside {
            directory.delete_set_aside(&name)?;
            self.subtract_used(bytes);
        }
        while self.phase() == CachePhase::Ready && self.index.count() > 0 {
            if self.make_free_space(directory, 0)? || !self.is_space_reported() {
                break;
            }
        }
        Ok(())
    }

    fn is_space_reported(&self) -> bool {
        lock(&self.unreported_space).bytes == 0
    }

    /// Deletes objects if `bytes` more would leave less than the configured free space. Returns true if they would not,
    /// or no longer do.
    pub(super) fn make_free_space(&self, directory: &CacheDirectory, bytes: u64) -> io::Result<bool> {
        let (free, total) = directory.free_and_total_bytes()?;
        let needed = self.limits().min_free.bytes(total).saturating_add(bytes);
        if free >= needed {
            return Ok(true);
        }
        let mut unreported = lock(&self.unreported_space);
        if unreported.since.is_some_and(|since| since.elapsed() > COMMIT_TIME) {
            *unreported = UnreportedSpace::default();
        }
        let lacking = needed.saturating_sub(free).saturating_sub(unreported.bytes).min(EVICTION_STEP_BYTES);
        if lacking == 0 {
            return Ok(false);
        }
        let evicted = self.evict(directory, lacking)?;
        let (free_now, _) = directory.free_and_total_bytes()?;
        let not_reported = evicted.saturating_sub(free_now.saturating_sub(free));
        // Some bytes are never reported, such as those of directories.
        if not_reported > evicted / 8 {
            unreported.bytes = unreported.bytes.saturating_add(not_reported);
            unreported.since = Some(Instant::now());
        }
        Ok(free_now >= needed)
    }
}
