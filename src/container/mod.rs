//! Containers: an N5 hierarchy in a store. Lookups of its objects, groups and datasets, listings, and what a caller may
//! see.

mod browse;
mod confirm_missing;
mod groups;
mod handle;
mod memory;
mod reconfigured;
mod resources;
mod revalidate;
mod stored_blocks;
mod visibility;

pub(crate) use browse::grid_component;
pub use browse::{DirectoryEntry, DirectoryPage, EntryKind};
pub use handle::Container;
pub use resources::{Resources, Settings};
pub use visibility::Visibility;
