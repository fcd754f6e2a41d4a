//! The disk cache as the rest of the server sees it.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use super::clock::CacheClock;
use super::containers::ContainerIdentity;
use super::counters::DiskCacheCounters;
use super::index::DiskIndex;
use super::shared::{DiskCacheLimits, DiskCacheShared, WRITE_THREADS};
use super::write_queue::{WriteLane, lock};
use crate::store::disk_pool::DiskPool;
use crate::telemetry::metrics::DiskCacheStats;

/// Time after which a read of the disk is given up and the remote store is asked. Much longer than a healthy disk takes
/// for 16 MiB, and short compared with the deadlines of requests.
const READ_DEADLINE: Duration = Duration::from_millis(300);

/// Time for which the cache is off after faults. It doubles up to ten minutes while the faults persist.
const MIN_OFF_TIME: Duration = Duration::from_secs(10);

/// The cache. Its threads end when it is dropped.
#[derive(Debug)]
pub struct DiskCache(pub(super) Arc<DiskCacheShared>);

impl Drop for DiskCache {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl DiskCache {
    /// Starts a cache in the directory `path`, which is created if its parent exists. Returns at once: a thread of the
    /// cache opens and scans the directory. If that fails, the cache is off, a warning gives the reason, and the thread
    /// tries again after a while.
    ///
    /// # Errors
    /// Returns an error if the system cannot start a thread.
    pub fn start(path: PathBuf, limits: DiskCacheLimits) -> io::Result<Arc<Self>> {
        Self::start_with(path, limits, READ_DEADLINE, MIN_OFF_TIME)
    }

    pub(super) fn start_with(
        path: PathBuf,
        limits: DiskCacheLimits,
        read_deadline: Duration,
        off_time: Duration,
    ) -> io::Result<Arc<Self>> {
        let shared = Arc::new(DiskCacheShared {
            path,
            limits: Mutex::new(limits),
            phase: AtomicU8::new(0),
            directory: RwLock::new(None),
            containers: RwLock::default(),
            index: DiskIndex::default(),
            used_bytes: AtomicU64::new(0),
            lanes: std::array::from_fn(|_| WriteLane::default()),
            queued_bytes: AtomicU64::new(0),
            writes_paused_until: AtomicU32::new(0),
            distrusted_before: AtomicU32::new(0),
            faults_in_a_row: std::array::from_fn(|_| AtomicU32::new(0)),
            has_tripped: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            off_time,
            clock: CacheClock::new(),
            counters: DiskCacheCounters::default(),
            disk_pool: DiskPool::new(read_deadline),
            maintenance: Mutex::default(),
            unreported_space: Mutex::default(),
            maintenance_wake: Condvar::new(),
            #[cfg(test)]
            read_delay: Mutex::default(),
        });
        // The threads of a cache that could not start all of them end.
        let cache = Arc::new(Self(Arc::clone(&shared)));
        for lane in 0..WRITE_THREADS {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("disk-cache-{lane}"));
            thread.spawn(move || shared.run_lane(lane))?;
        }
        std::thread::Builder::new().name("disk-cache".to_owned()).spawn(move || shared.run_maintenance())?;
        Ok(cache)
    }

    /// Returns access to the objects of one container. `identity` is a text without secrets that is equal only for
    /// containers with the same objects and the same right to read them: the address of the root, the endpoint, and
    /// the name of the credentials.
    pub fn container(self: &Arc<Self>, identity: &str) -> DiskCacheContainer {
        let hash = xxh3_64(identity.as_bytes());
        let identity = Arc::new(ContainerIdentity { hash, text: identity.into() });
        DiskCacheContainer { cache: Arc::clone(self), identity }
    }

    /// Changes the limits. If the cache is larger than they allow, it becomes smaller within a second.
    pub fn set_limits(&self, limits: DiskCacheLimits) {
        *lock(&self.0.limits) = limits;
        self.0.wake_maintenance();
    }

    /// Returns what the cache has done, and its size.
    pub fn stats(&self) -> DiskCacheStats {
        self.0.stats()
    }

    /// Waits until the objects are written that are queued now, at most for `timeout` for each writing thread. Returns
    /// true if they are. Blocks the calling thread.
    pub fn flush_blocking(&self, timeout: Duration) -> bool {
        self.0.lanes.iter().all(|lane| lane.wait_for_queued(timeout))
    }
}

/// The objects of one container in the cache.
#[derive(Debug, Clone)]
pub struct DiskCacheContainer {
    pub(super) cache: Arc<DiskCache>,
    pub(super) identity: Arc<ContainerIdentity>,
}
