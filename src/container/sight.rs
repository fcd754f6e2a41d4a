//! Who looks: what a caller may not read is not there.

use std::fmt;

use super::Container;
use crate::store::Key;

/// What can be seen of a container. What cannot is as if it did not exist, in listings, as an ancestor with attributes, or
/// as a level of a pyramid.
pub trait Sight: fmt::Debug + Send + Sync {
    /// Whether what is at `key` can be seen.
    fn sees(&self, key: &Key) -> bool;

    /// Whether everything at `key` and below can be seen. A dataset of which a part cannot is none: its blocks are read
    /// without asking for each.
    fn sees_below(&self, key: &Key) -> bool;
}

impl Container {
    /// The same container as somebody sees it. The caches are the same: they are asked only for what can be seen.
    #[must_use]
    pub fn seen_by(&self, sight: std::sync::Arc<dyn Sight>) -> Self {
        Self { sight: Some(sight), ..self.clone() }
    }

    pub(super) fn sees(&self, key: &Key) -> bool {
        self.sight.as_ref().is_none_or(|sight| sight.sees(key))
    }

    pub(super) fn sees_below(&self, key: &Key) -> bool {
        self.sight.as_ref().is_none_or(|sight| sight.sees_below(key))
    }
}
