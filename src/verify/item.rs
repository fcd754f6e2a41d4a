//! Items of a walk.

use std::sync::Arc;

use super::finding::Finding;
use super::gaps::MissingRange;
use crate::cache::Dataset;
use crate::store::Key;
use n5_format::GridPosition;

/// An item of the walk.
#[derive(Debug)]
pub(super) enum WalkItem {
    /// The walk below the root of this index begins.
    RootStart(usize),
    /// A directory that is not a dataset.
    Group,
    /// A dataset begins. All items up to its [`WalkItem::DatasetEnd`] are below it. `resumed` is true if an earlier run
    /// began it.
    DatasetStart { dataset: Arc<Dataset>, resumed: bool },
    /// A dataset ends.
    DatasetEnd,
    /// A finding.
    Finding(Finding),
    /// A range of blocks that the innermost dataset lacks.
    MissingRange(MissingRange),
    /// The innermost dataset lacks blocks in too many ranges to report each. The value is the length of the grid along
    /// the axis of the directory.
    ScatteredMissing(u64),
    /// A stored block in the grid of a dataset.
    Block(Arc<Dataset>, GridPosition),
    /// A file that is not a block has been passed.
    FilePassed(Key),
}
