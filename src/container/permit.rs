//! Shares of a budget's memory: what holds bytes holds their permit.

use std::sync::Arc;

use bytes::Bytes;

use super::footprint::{bytes_of, units};
use crate::fair::Share;
use crate::metrics;

/// A share of a [`Budget`](super::budget::Budget), given back when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    /// Shared by all shares of one stream. Dropped first: the budget looks at it when it hands out the returned units.
    pub(super) stream: Option<Arc<()>>,
    pub(super) share: Share,
    pub(super) label: metrics::Budget,
}

impl Permit {
    /// Bytes of this share.
    pub(super) fn bytes(&self) -> u64 {
        bytes_of(&self.share)
    }

    /// The same share, held for a cache. The cache evicts entries on demand, so the share does not count for any client.
    pub(super) fn of_cache(mut self) -> Self {
        self.share.disown();
        self
    }

    /// Gives back all but `bytes` of this share.
    pub(super) fn shrink(&mut self, bytes: u64) {
        drop(self.split_off_rest(bytes));
    }

    /// Takes `bytes` out of this share, where it is one of that budget and has as many.
    pub(super) fn split_of(&mut self, label: metrics::Budget, bytes: u64) -> Option<Self> {
        let enough = bytes_of(&self.share) >= bytes && self.label == label;
        enough.then(|| self.split(bytes))
    }

    /// Makes one share of two of the same budget.
    pub(super) fn merge(&mut self, mut other: Self) {
        // Taken out first: what is dropped counts as given back.
        self.share.merge(other.share.split(usize::MAX));
    }

    /// Takes `bytes` of this share out of it, or all there are.
    pub(super) fn split(&mut self, bytes: u64) -> Self {
        let wanted = usize::try_from(units(bytes)).unwrap_or(usize::MAX);
        self.split_units(wanted)
    }

    fn split_off_rest(&mut self, bytes: u64) -> Self {
        let kept = usize::try_from(units(bytes)).unwrap_or(usize::MAX);
        self.split_units(self.share.units().saturating_sub(kept))
    }

    fn split_units(&mut self, count: usize) -> Self {
        Self { share: self.share.split(count), label: self.label, stream: self.stream.clone() }
    }

    /// `bytes` that give this share back when the last clone of them is dropped.
    pub(super) fn own<B: AsRef<[u8]> + Send + 'static>(self, bytes: B) -> Bytes {
        Bytes::from_owner(Owned { bytes, _permit: self })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        metrics::budget_returned(self.label, bytes_of(&self.share));
    }
}

struct Owned<B> {
    bytes: B,
    _permit: Permit,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Owned<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}
