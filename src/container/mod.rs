//! Containers: N5 hierarchies in a store. A container looks up objects, groups and datasets, lists directories, and
//! hides what a caller may not see.

mod block_indices;
mod browse;
mod groups;
mod handle;
mod nonblocking;
mod resources;
mod stored_blocks;

pub(crate) use block_indices::BYTES_PER_INDEX;
pub(crate) use browse::grid_component;
pub use browse::{DirectoryEntry, DirectoryPage, EntryKind};
pub use handle::{Container, Visibility};
pub use nonblocking::{CachedResponse, Dependency, NonblockingLookup};
pub use resources::{Resources, Settings};
