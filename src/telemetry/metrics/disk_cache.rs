//! Metrics of the cache on disk. It counts by itself, and its numbers are read when the metrics are requested.

use metrics::{counter, gauge};

use super::{as_f64, names};

/// What the cache on disk has done since the start, and its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCacheStats {
    /// True if the cache is in use.
    pub is_on: bool,
    /// True once the directory has been scanned. Only then are objects written.
    pub is_ready: bool,
    /// Number of objects.
    pub objects: u64,
    /// Space on the disk, in bytes.
    pub used_bytes: u64,
    /// Maximum space on the disk, in bytes.
    pub capacity_bytes: u64,
    /// Memory of the index, in bytes.
    pub index_bytes: u64,
    /// Bytes of objects that wait to be written.
    pub queued_bytes: u64,
    /// Look-ups that found an object that could be used without a request to the store.
    pub hits: u64,
    /// Look-ups that found an object that had to be revalidated.
    pub stale: u64,
    /// Look-ups that found no object.
    pub misses: u64,
    /// Bytes of objects that were read, or opened to be sent.
    pub read_bytes: u64,
    /// Objects written.
    pub stored: u64,
    /// Objects not written, because too many were waiting or the cache was not ready.
    pub dropped_by_queue: u64,
    /// Objects not written, because the file system was too full or they are larger than the cache.
    pub dropped_for_space: u64,
    /// Objects deleted to make space.
    pub evicted: u64,
    /// Files deleted because their checksum was wrong.
    pub damaged: u64,
    /// Reads and writes that failed or took too long.
    pub faults: u64,
}

impl DiskCacheStats {
    /// Updates the metrics of the cache on disk.
    pub fn record(&self) {
        gauge!(names::DISK_CACHE_ON).set(f64::from(u8::from(self.is_on)));
        gauge!(names::DISK_CACHE_OBJECTS).set(as_f64(self.objects));
        gauge!(names::DISK_CACHE_BYTES).set(as_f64(self.used_bytes));
        gauge!(names::DISK_CACHE_CAPACITY).set(as_f64(self.capacity_bytes));
        gauge!(names::DISK_CACHE_INDEX_BYTES).set(as_f64(self.index_bytes));
        gauge!(names::DISK_CACHE_QUEUED_BYTES).set(as_f64(self.queued_bytes));
        for (result, count) in [("hit", self.hits), ("stale", self.stale), ("miss", self.misses)] {
            counter!(names::DISK_CACHE_REQUESTS, "result" => result).absolute(count);
        }
        for (reason, count) in [("queue", self.dropped_by_queue), ("space", self.dropped_for_space)] {
            counter!(names::DISK_CACHE_DROPPED, "reason" => reason).absolute(count);
        }
        counter!(names::DISK_CACHE_READ_BYTES).absolute(self.read_bytes);
        counter!(names::DISK_CACHE_STORED).absolute(self.stored);
        counter!(names::DISK_CACHE_EVICTIONS).absolute(self.evicted);
        counter!(names::DISK_CACHE_DAMAGED).absolute(self.damaged);
        counter!(names::DISK_CACHE_FAULTS).absolute(self.faults);
    }
}
