//! State that the threads of the disk cache share.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use super::clock::CacheClock;
use super::containers::ContainerTable;
use super::counters::DiskCacheCounters;
use super::directory::CacheDirectory;
use super::index::{DiskIndex, MAX_ENTRY_BYTES};
use super::write_queue::{WriteLane, lock};
use crate::config::{Config, MinFree};
use crate::store::disk_pool::DiskPool;
use crate::store::error::LocalError;
use crate::telemetry::metrics::DiskCacheStats;

/// Maximum size of an object in the cache. The caches in memory read larger objects in ranges, too.
pub(super) const MAX_OBJECT_BYTES: u64 = 16 << 20;

/// Number of failed reads and writes in a row after which the cache is turned off for a while.
const MAX_FAULTS: u32 = 3;

/// Maximum time for which the cache is off after faults.
pub(super) const MAX_OFF_TIME: Duration = Duration::from_secs(600);

/// Number of threads that write. With two, one can write while the other waits for the disk or deletes.
pub(super) const WRITE_THREADS: usize = 2;

/// Limits of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskCacheLimits {
    /// Maximum size of the cache on the disk, in bytes.
    pub size_bytes: u64,
    /// Free space that is left on the file system.
    pub min_free: MinFree,
    /// Memory for the index, in bytes. Each object takes up to 64.
    pub index_bytes: u64,
}

impl DiskCacheLimits {
    /// Returns the limits of a configuration.
    pub fn new(config: &Config) -> Self {
        let disk = &config.cache.disk;
        Self { size_bytes: disk.size, min_free: disk.min_free, index_bytes: config.disk_cache_index_bytes() }
    }

    /// Returns the maximum number of objects.
    pub(super) fn max_objects(&self) -> u64 {
        self.index_bytes / MAX_ENTRY_BYTES
    }
}

/// A kind of work of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DiskAction {
    Read,
    Write,
    Delete,
    Scan,
}

/// State of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CachePhase {
    /// Nothing is read or written: the directory has not been opened, or there were faults.
    Off,
    /// The directory is being scanned. Objects are read, but nothing is written, because the size is not known yet.
    Scanning,
    /// The index is complete.
    Ready,
}

impl CachePhase {
    const ALL: [Self; 3] = [Self::Off, Self::Scanning, Self::Ready];
}

/// State of the thread that maintains the cache.
#[derive(Debug, Default)]
pub(super) struct MaintenanceState {
    pub(super) is_woken: bool,
    /// Directories that were set aside and are to be deleted, with the space that they take.
    pub(super) set_aside: Vec<(String, u64)>,
    /// Containers that were forgotten while the cache was off.
    pub(super) forgotten: Vec<u64>,
    /// Number of times that the cache was turned off in a row.
    pub(super) times_off: u32,
}

/// Space of deleted objects that the file system has not reported as free yet. Without this number, the whole cache
/// would be deleted before the file system reports the first object.
#[derive(Debug, Default)]
pub(super) struct UnreportedSpace {
    pub(super) bytes: u64,
    pub(super) since: Option<Instant>,
}

/// State that the threads of the cache share.
pub(super) struct DiskCacheShared {
    pub(super) path: PathBuf,
    pub(super) limits: Mutex<DiskCacheLimits>,
    pub(super) phase: AtomicU8,
    /// The directory, unless the cache is off. Jobs hold a read lock, so that it is not reset while they run.
    pub(super) directory: RwLock<Option<CacheDirectory>>,
    pub(super) containers: RwLock<ContainerTable>,
    pub(super) index: DiskIndex,
    /// Space on the disk: of the entries, of files that are being written, and of files that are to be deleted.
    pub(super) used_bytes: AtomicU64,
    pub(super) lanes: [WriteLane; WRITE_THREADS],
    /// Bytes of objects that are queued or being written.
    pub(super) queued_bytes: AtomicU64,
    /// Time until which nothing is written, because the file system was full.
    pub(super) writes_paused_until: AtomicU32,
    /// Objects that were validated before are revalidated: while the cache was off, it was not told of changes.
    pub(super) distrusted_before: AtomicU32,
    /// Faults in a row, of reads and of writes. A disk that only writes or only reads is faulty, too.
    pub(super) faults_in_a_row: [AtomicU32; 2],
    /// True if the cache was turned off and the maintenance thread has not reset it yet.
    pub(super) has_tripped: AtomicBool,
    pub(super) is_closed: AtomicBool,
    pub(super) off_time: Duration,
    pub(super) clock: CacheClock,
    pub(super) counters: DiskCacheCounters,
    pub(super) disk_pool: Arc<DiskPool>,
    pub(super) maintenance: Mutex<MaintenanceState>,
    pub(super) unreported_space: Mutex<UnreportedSpace>,
    pub(super) maintenance_wake: Condvar,
    /// Delay of every read in tests.
    #[cfg(test)]
    pub(super) read_delay: Mutex<Duration>,
}

impl fmt::Debug for DiskCacheShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskCacheShared").field("path", &self.path).finish_non_exhaustive()
    }
}

impl DiskCacheShared {
    pub(super) fn phase(&self) -> CachePhase {
        let number = usize::from(self.phase.load(Ordering::Acquire));
        CachePhase::ALL.get(number).copied().unwrap_or(CachePhase::Off)
    }

    pub(super) fn set_phase(&self, phase: CachePhase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    pub(super) fn limits(&self) -> DiskCacheLimits {
        *lock(&self.limits)
    }

    pub(super) fn read_directory(&self) -> RwLockReadGuard<'_, Option<CacheDirectory>> {
        self.directory.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write_directory(&self) -> RwLockWriteGuard<'_, Option<CacheDirectory>> {
        self.directory.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read_containers(&self) -> RwLockReadGuard<'_, ContainerTable> {
        self.containers.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write_containers(&self) -> RwLockWriteGuard<'_, ContainerTable> {
        self.containers.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of a container, which gets one if it has none. Returns `None` if too many have been
    /// forgotten.
    pub(super) fn container_number(&self, hash: u64) -> Option<u16> {
        let number = self.read_containers().number(hash);
        number.or_else(|| self.write_containers().add(hash))
    }

    pub(super) fn add_used(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Adds and subtracts in one step, so that the sum is never counted in between.
    pub(super) fn adjust_used(&self, added: u64, subtracted: u64) {
        self.add_used(added.saturating_sub(subtracted));
        self.subtract_used(subtracted.saturating_sub(added));
    }

    pub(super) fn subtract_used(&self, bytes: u64) {
        let subtract = |used: u64| Some(used.saturating_sub(bytes));
        // The closure always returns a value.
        let _ = self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
    }

    /// Returns the age of an object that was validated at this time, if it may still be believed.
    pub(super) fn believed_age(&self, validated: u32, max_age: Duration) -> Option<Duration> {
        let age = self.clock.age(validated);
        let is_trusted = validated >= self.distrusted_before.load(Ordering::Relaxed);
        (is_trusted && age <= max_age).then_some(age)
    }

    /// Records the result of a job that used the disk. After some faults in a row, turns the cache off for a while.
    pub(super) fn record<T>(&self, action: DiskAction, result: io::Result<T>) -> Option<T> {
        let [reads, writes] = &self.faults_in_a_row;
        let faults_in_a_row = if action == DiskAction::Read { reads } else { writes };
        match result {
            Ok(value) => {
                if faults_in_a_row.load(Ordering::Relaxed) != 0 {
                    faults_in_a_row.store(0, Ordering::Relaxed);
                }
                Some(value)
            }
            Err(error) => {
                self.counters.faults.fetch_add(1, Ordering::Relaxed);
                let faults = faults_in_a_row.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                if faults >= MAX_FAULTS && self.phase() != CachePhase::Off {
                    self.turn_off(action, &error);
                }
                None
            }
        }
    }

    /// Runs a job on the disk pool.
    pub(super) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        action: DiskAction,
        job: impl FnOnce(&Self) -> io::Result<T> + Send + 'static,
    ) -> Option<T> {
        let shared = Arc::clone(self);
        match self.disk_pool.run(None, move || job(&shared)).await {
            Ok(result) => self.record(action, result),
            // Too many calls at once are no fault of the disk.
            Err(LocalError::QueueFull) => None,
            Err(error) => self.record(action, Err(error.into())),
        }
    }

    pub(super) fn wake_maintenance(&self) {
        lock(&self.maintenance).is_woken = true;
        self.maintenance_wake.notify_all();
    }

    /// Turns the cache off, so that requests go to the store. The thread turns it on again after a while.
    pub(super) fn turn_off(&self, action: DiskAction, error: &io::Error) {
        // The lock keeps the maintenance thread from seeing one of the changes without the other.
        let state = lock(&self.maintenance);
        if self.has_tripped.swap(true, Ordering::AcqRel) {
            return;
        }
        self.set_phase(CachePhase::Off);
        drop(state);
        tracing::warn!(
            path = %self.path.display(), ?action, %error,
            "the disk cache is off for a while, because its disk fails or does not answer; requests go to the store"
        );
        self.wake_maintenance();
    }

    /// Ends the threads of the cache.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.lanes.iter().for_each(WriteLane::close);
        self.wake_maintenance();
    }

    pub(super) fn stats(&self) -> DiskCacheStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        DiskCacheStats {
            is_on: self.phase() != CachePhase::Off,
            is_ready: self.phase() == CachePhase::Ready,
            objects: self.index.count(),
            used_bytes: read(&self.used_bytes),
            capacity_bytes: self.limits().size_bytes,
            index_bytes: self.index.memory_bytes(),
            queued_bytes: read(&self.queued_bytes),
            hits: read(&counters.hits),
            stale: read(&counters.stale),
            misses: read(&counters.misses),
            read_bytes: read(&counters.read_bytes),
            stored: read(&counters.stored),
            dropped_by_queue: read(&counters.dropped_by_queue),
            dropped_for_space: read(&counters.dropped_for_space),
            evicted: read(&counters.evicted),
            damaged: read(&counters.damaged),
            faults: read(&counters.faults),
        }
    }
}
