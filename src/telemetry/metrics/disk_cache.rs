//! Figures of the cache on disk. It counts by itself, and its figures are read when the metrics are requested.

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
