//! Cache of objects as stored and of the results that `derived` makes from them. It is weighed in bytes, loads in
//! single flights and remembers missing objects.

use std::sync::Arc;
use std::time::Duration;

use super::admission_filter::AdmissionFilter;
use super::budget::Budget;
use super::cache_memory::CacheMemory;
use super::footprint;
use super::object_entry::{ObjectCacheKey, ObjectEntry};
use super::validated::{CacheSettings, Validated};
use crate::metrics::{BudgetLabel, CacheLabel};

/// Maximum size of an object that is read whole and may be cached. Larger ones are read in pieces.
pub(crate) const MAX_WHOLE_OBJECT_BYTES: u64 = 16 << 20;

/// Largest object that is read by the same call that opens it, in bytes.
const INLINE_BYTES: u64 = 1 << 20;

/// Minimum of this limit for a small budget.
pub(crate) const MIN_INLINE_BYTES: u64 = 64 << 10;

/// Generous estimate of the bookkeeping of one entry, in bytes.
const ENTRY_BYTES: usize = 768;

/// Cache of stored objects, shared by all containers.
#[derive(Debug, Clone)]
pub(crate) struct ObjectCache {
    pub(crate) entries: Validated<ObjectCacheKey, ObjectEntry>,
    /// Memory of the entries and of the objects in flight.
    pub(crate) memory: CacheMemory,
    /// Admission filter for larger objects that are sent from the page cache: decides which of them are cached.
    pub(crate) admission: Arc<AdmissionFilter>,
    /// Maximum size of an object that is read in the same disk pool job that opens it.
    pub(crate) inline_bytes: u64,
}

/// Returns [`INLINE_BYTES`], or less if that is too large for a permit of `budget` to overtake larger ones, which wait
/// for slow clients. It is also at most `transfer_bytes`, which remain beside a full cache.
fn inline_bytes(budget: &Budget, transfer_bytes: u64) -> u64 {
    INLINE_BYTES.min(budget.max_overtaking_bytes().max(MIN_INLINE_BYTES)).min(transfer_bytes)
}

impl ObjectCache {
    pub(crate) fn new(settings: CacheSettings, transfer_bytes: u64, max_wait: Duration) -> Self {
        let entries = Validated::new(CacheLabel::Stored, settings, |key: &ObjectCacheKey, entry: &Arc<ObjectEntry>| {
            let bytes = entry.whole_object().map_or(0, |(_, bytes)| footprint::footprint_bytes(bytes.len()));
            let name = if let ObjectCacheKey::Stored(_, key) = key { key.as_str().len() } else { 0 };
            u32::try_from(bytes + name + ENTRY_BYTES).unwrap_or(u32::MAX)
        });
        let budget = Budget::with_cache(BudgetLabel::Transfer, settings.max_weight_bytes(), transfer_bytes, max_wait);
        let inline_bytes = inline_bytes(&budget, transfer_bytes);
        let memory = CacheMemory::new(budget, &entries);
        Self { entries, memory, admission: Arc::default(), inline_bytes }
    }

    /// Returns the same cache and budget with another longest wait for memory.
    pub(crate) fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self { memory: self.memory.map(|budget| budget.with_max_wait(max_wait)), ..self.clone() }
    }

    /// Returns the same cache and budget for another container.
    pub(crate) fn for_container(&self) -> Self {
        Self { memory: self.memory.map(Budget::for_container), ..self.clone() }
    }

    /// Returns the number of cached bytes, for the metrics page.
    pub(crate) fn bytes(&self) -> u64 {
        self.entries.weight_bytes()
    }
}
