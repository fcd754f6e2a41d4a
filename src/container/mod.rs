//! Containers: N5 hierarchies in a store. A container looks up objects, groups and datasets, lists directories, and
//! hides what a caller may not see.

mod block_indices;
mod browse;
mod grid_component;
mod groups;
mod handle;
mod nonblocking;
mod resources;
mod stored_blocks;
mod subdirectories;

pub(crate) use block_indices::BYTES_PER_INDEX;
pub use browse::{DirectoryEntry, DirectoryPage, EntryKind};
pub(crate) use grid_component::grid_component;
pub use handle::{Container, Visibility};
pub use nonblocking::{CachedResponse, Dependency, NonblockingLookup};
pub use resources::{Resources, Settings};
pub use subdirectories::{Subdirectories, ZarrFormat};
