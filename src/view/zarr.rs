//! Common parts of the two Zarr views: the groups and arrays among the directories, and the metadata of each.
//!
//! Zarr's order is C: the slowest axis first. N5's first axis is the fastest. Every list here (names, shapes, chunk
//! coordinates, scales) is therefore N5's list reversed, and no element moves.

mod chunk;
mod consolidated;
mod ngff;
mod node;

pub(super) use chunk::resolve_chunk;
pub(super) use consolidated::read_subtree;
pub(super) use node::{ZarrArray, ZarrGroup, ZarrLayout, ZarrNode, ZarrNodeType, document, node_type, read_zarr_node};
