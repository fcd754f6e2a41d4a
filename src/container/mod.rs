//! Containers: an N5 hierarchy in a store. Lookups of its objects, groups and datasets, listings, and what a caller may
//! see.

mod browse;
mod groups;
mod handle;
mod nonblocking;
mod resources;
mod stored_blocks;

pub(crate) use browse::grid_component;
pub use browse::{DirectoryEntry, DirectoryPage, EntryKind};
pub use handle::{Container, Visibility};
pub use nonblocking::{CachedAnswer, Dependency, NonblockingLookup};
pub use resources::{Resources, Settings};
