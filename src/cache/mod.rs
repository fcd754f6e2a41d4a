//! Caches of stored objects, decoded blocks and parsed attributes, and the memory budgets that bound them.
//!
//! `Validated` compares entries with their source before they are used, and loads each entry in a single flight. Memory
//! is taken from a `Budget` before it is allocated, and the permit travels with the bytes.

mod block_load;
mod blocks;
mod budget;
mod buffers;
mod datasets;
mod error;
mod eviction;
mod freshness;
mod known_missing;
mod objects;
mod outages;
mod read_options;
mod validated;

pub(crate) use block_load::{BlockWaiters, LoadTimes, TORN_READ_RETRY_DELAY, record_decode};
pub(crate) use blocks::{
    BlockCache, BlockEntry, BlockLocation, BlockSource, BlockVersion, MAX_NONBLOCKING_CHECKS, SourceBlock,
};
pub use budget::MemoryPermit;
pub(crate) use budget::{Budget, Permit};
#[cfg(test)]
pub(crate) use buffers::POISON_BYTE;
pub use buffers::SendPermit;
pub(crate) use buffers::release_with;
pub(crate) use datasets::{AXES_BYTES, AttributesCache, CACHED_ATTRIBUTES_BYTES, GROUP_BYTES, dataset_id};
pub use datasets::{Dataset, Group, GroupState};
pub use error::{BudgetError, ReadError};
pub(crate) use freshness::{FreshSince, ValidatedAt, compared_at, now};
pub(crate) use known_missing::{KnownMissing, MissingKind, MissingNames};
pub(crate) use objects::{
    BudgetedObject, MAX_WHOLE_OBJECT_BYTES, ObjectCache, ObjectCacheKey, ObjectEntry, ObjectSource,
};
pub use objects::{LargeObject, StoredObject};
pub(crate) use outages::{MonitoredStore, OutageDetector, RequestTimes};
pub use read_options::{ATTRIBUTES, FreshnessPolicy, ReadOptions, RevalidationPolicy};
pub(crate) use validated::{CacheEntry, EntrySource, Validated};
