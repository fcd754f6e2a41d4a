//! Caches of stored objects, decoded blocks and parsed attributes, and the memory budgets that bound them.
//!
//! `validated::Validated` compares entries with their source before they are used, and loads each in a single flight.
//! Memory is taken from a `budget::Budget` before it is allocated, and the permit travels with the bytes.

pub(crate) mod block_load;
pub(crate) mod blocks;
pub(crate) mod budget;
pub(crate) mod buffers;
pub(crate) mod datasets;
pub(crate) mod error;
pub(crate) mod freshness;
pub(crate) mod objects;
pub(crate) mod validated;

pub use budget::MemoryPermit;
pub use buffers::SendPermit;
pub use datasets::{Dataset, Group, GroupState};
pub use error::{BudgetError, ReadError};
pub use freshness::{Freshness, RevalidationPolicy};
pub use objects::{LargeObject, StoredObject};

/// Name of the file that holds a group's attributes.
pub const ATTRIBUTES: &str = "attributes.json";
