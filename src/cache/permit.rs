//! Permits of a memory budget. The owner of bytes also owns their permit.

use std::sync::Arc;

use bytes::Bytes;

use super::footprint::{bytes_of, units};
use crate::fair_queue::FairPermit;
use crate::metrics;

/// A permit for part of a [`Budget`](super::budget::Budget), given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    /// Shared by all permits of one stream. Dropped first: the budget checks it when it grants the returned units.
    pub(crate) stream_token: Option<Arc<()>>,
    pub(crate) share: FairPermit,
    pub(crate) label: metrics::BudgetLabel,
}

impl Permit {
    /// Returns the number of bytes that the permit covers.
    pub(crate) fn bytes(&self) -> u64 {
        bytes_of(&self.share)
    }

    /// Turns this into a permit of a cache. The cache evicts entries on demand, so the permit is not charged to a
    /// client.
    pub(crate) fn into_cache_owned(mut self) -> Self {
        self.share.transfer_to_server();
        self
    }

    /// Gives back all but `bytes` of the permit.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        drop(self.split_excess(bytes));
    }

    /// Splits `bytes` off. Returns `None` if the permit is of another budget or smaller than that.
    pub(crate) fn try_split(&mut self, label: metrics::BudgetLabel, bytes: u64) -> Option<Self> {
        let is_enough = bytes_of(&self.share) >= bytes && self.label == label;
        is_enough.then(|| self.split(bytes))
    }

    /// Merges two permits of the same budget.
    pub(crate) fn merge(&mut self, mut other: Self) {
        // Taken out of `other` first: dropping `other` records its units as returned.
        self.share.merge(other.share.split(usize::MAX));
    }

    /// Splits off `bytes`, or everything if the permit is smaller.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        let unit_count = usize::try_from(units(bytes)).unwrap_or(usize::MAX);
        self.split_units(unit_count)
    }

    fn split_excess(&mut self, bytes: u64) -> Self {
        let units_to_keep = usize::try_from(units(bytes)).unwrap_or(usize::MAX);
        self.split_units(self.share.units().saturating_sub(units_to_keep))
    }

    fn split_units(&mut self, count: usize) -> Self {
        Self { share: self.share.split(count), label: self.label, stream_token: self.stream_token.clone() }
    }

    /// Attaches the permit to `bytes`, so that it is given back when their last clone is dropped.
    pub(crate) fn own<B: AsRef<[u8]> + Send + 'static>(self, bytes: B) -> Bytes {
        Bytes::from_owner(BytesWithPermit { bytes, _permit: self })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        metrics::budget_returned(self.label, bytes_of(&self.share));
    }
}

struct BytesWithPermit<B> {
    bytes: B,
    _permit: Permit,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for BytesWithPermit<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}
