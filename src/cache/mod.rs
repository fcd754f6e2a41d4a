//! Caches of stored objects, decoded blocks and parsed attributes, and the memory budgets that bound them.
//!
//! `validated::Validated` compares entries with their source before they are used, and loads each in a single flight.
//! Memory is taken from a `budget::Budget` before it is allocated, and the permit travels with the bytes.

pub(crate) mod admission_filter;
pub(crate) mod backpressure;
pub(crate) mod block_cache;
pub(crate) mod block_entry;
pub(crate) mod block_load;
pub(crate) mod block_source;
pub(crate) mod block_waiters;
pub(crate) mod budget;
pub(crate) mod buffer_pool;
pub(crate) mod cache_memory;
pub(crate) mod charging;
pub(crate) mod datasets;
pub(crate) mod decode;
pub(crate) mod dependency;
pub(crate) mod error;
pub(crate) mod fetch;
pub(crate) mod footprint;
pub(crate) mod freshness;
pub(crate) mod large_object;
pub(crate) mod load_times;
pub(crate) mod memory_permit;
pub(crate) mod nonblocking_objects;
pub(crate) mod object_cache;
pub(crate) mod object_entry;
pub(crate) mod objects;
pub(crate) mod permit;
pub(crate) mod pinned_buffers;
pub(crate) mod validated;
pub(crate) mod waiter_counts;

pub use datasets::{Dataset, Group, GroupState};
pub use dependency::{CachedAnswer, Dependency};
pub use error::{BudgetError, ReadError};
pub use freshness::{ATTRIBUTES, Freshness, RevalidationPolicy};
pub use large_object::LargeObject;
pub use memory_permit::MemoryPermit;
pub use nonblocking_objects::NonblockingLookup;
pub use object_entry::StoredObject;
pub use pinned_buffers::SendPermit;
