//! Visibility: objects that a caller may not read appear not to exist.

use std::fmt;

use crate::store::Key;

/// The part of a container that a caller may see. Hidden objects appear not to exist: in listings, as ancestors with
/// attributes, and as levels of a pyramid.
pub trait Visibility: fmt::Debug + Send + Sync {
    /// Returns true if the object or directory at `key` is visible.
    fn is_visible(&self, key: &Key) -> bool;

    /// Returns true if everything at `key` and below is visible. A dataset that is partly hidden is treated as missing,
    /// since its blocks are read without a check for each.
    fn is_subtree_visible(&self, key: &Key) -> bool;
}
