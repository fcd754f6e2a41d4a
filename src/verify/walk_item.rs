//! Items that the walk of a container produces.

use std::sync::Arc;

use super::finding::Finding;
use crate::cache::Dataset;
use crate::store::Key;
use n5_format::{Coords, GridPosition};

/// An item of the walk.
#[derive(Debug)]
pub(super) enum WalkItem {
    /// The walk of the root with this index begins.
    RootStart(usize),
    /// A directory that is not a dataset.
    Group,
    /// A dataset begins. All items up to its [`WalkItem::DatasetEnd`] are below it. `resumed` is true if an earlier run
    /// began it.
    DatasetStart { dataset: Arc<Dataset>, resumed: bool },
    /// The innermost dataset ends.
    DatasetEnd,
    /// A finding.
    Finding(Finding),
    /// Blocks that the innermost dataset lacks: the first and the last position, inclusive.
    MissingRange([Coords; 2]),
    /// The innermost dataset lacks blocks in too many ranges to report each. The value is the length of the grid along
    /// the axis of the directory.
    ScatteredMissing(u64),
    /// A stored block in the grid of a dataset.
    Block(Arc<Dataset>, GridPosition),
    /// A block after its verification. `lengths` holds its stored and decoded lengths in bytes, or `None` if it was not
    /// decoded. A block with neither lengths nor a finding belongs to a dataset that cannot be decoded, about which
    /// there is one finding.
    VerifiedBlock {
        dataset: Arc<Dataset>,
        position: GridPosition,
        lengths: Option<(u64, u64)>,
        finding: Option<Box<Finding>>,
    },
    /// A file that is not a block has been passed.
    FileVisited(Key),
}
