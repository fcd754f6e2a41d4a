//! A cache of remote objects on a local disk, below the caches in memory. All containers share it.
//!
//! [`DiskCachedStore`] is a store that looks into the cache before it asks another store. Everything that may block is
//! done by threads of the cache: `reader` on a disk pool with a short deadline, `writer` on two threads with bounded
//! queues, `maintenance` on one thread. A request never waits for a write, and at most the deadline for a read.
//!
//! Objects larger than 16 MiB, which are read in ranges, are not stored, nor is the absence of objects.
//! Absences are remembered for a minute, for which memory suffices; as files, each would take a block of 4 KiB.

mod cached_store;
mod clock;
mod containers;
mod counters;
mod directory;
mod entry_file;
mod handle;
mod index;
mod maintenance;
mod reader;
mod shared;
#[cfg(test)]
mod tests;
mod write_queue;
mod writer;

pub use cached_store::{DiskCachedStore, MaxAge};
pub use handle::{DiskCache, DiskCacheContainer};
pub use shared::DiskCacheLimits;
