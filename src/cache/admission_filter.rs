//! Admission filter of the cache: admits only objects that are requested repeatedly.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of slots. A version is remembered until another one takes its slot.
const SLOTS: usize = 4096;

/// Number of repeated requests per admission. A client that repeatedly reads more data than the cache holds does not
/// flush the cache.
const ADMIT_EVERY: usize = 32;

/// Direct-mapped table of the versions of recently requested objects.
#[derive(Debug)]
pub(crate) struct AdmissionFilter {
    slots: Box<[AtomicU64]>,
    repeat_count: AtomicUsize,
}

impl Default for AdmissionFilter {
    fn default() -> Self {
        Self { slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(), repeat_count: AtomicUsize::new(0) }
    }
}

impl AdmissionFilter {
    /// Records a request for an object of this version, a hash. Returns true if the object should be read into the
    /// cache: never at the first request, soon if it is requested often.
    pub(crate) fn admit(&self, version: u64) -> bool {
        let slot_index = usize::try_from(version % SLOTS as u64).unwrap_or_default();
        let is_known = self.slots.get(slot_index).is_some_and(|slot| slot.swap(version, Ordering::Relaxed) == version);
        is_known && self.repeat_count.fetch_add(1, Ordering::Relaxed) % ADMIT_EVERY == ADMIT_EVERY - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_requested_once_is_not_admitted() {
        let filter = AdmissionFilter::default();
        assert!((1..10_000).all(|version| !filter.admit(version)));
    }

    #[test]
    fn every_32nd_repeated_request_is_admitted() {
        let filter = AdmissionFilter::default();
        let admitted_count = (0..=320).filter(|request| filter.admit(1 + request % 2)).count();
        assert_eq!(admitted_count, 9);
    }
}
