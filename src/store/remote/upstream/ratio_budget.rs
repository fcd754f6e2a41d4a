//! A token bucket that allows a share of additional requests.

use std::sync::atomic::{AtomicU32, Ordering};

/// Tokens are counted in thousandths.
const TOKEN: u32 = 1_000;

/// A budget of additional requests, as a share of regular ones. Relaxed atomics suffice, since no other memory depends
/// on the number.
#[derive(Debug)]
pub(super) struct RatioBudget {
    thousandths: AtomicU32,
    per_request: u32,
    capacity: u32,
}

impl RatioBudget {
    /// Creates a budget that allows `permille` additional requests per thousand regular ones, `initial` more, and at
    /// most `capacity` at once.
    pub(super) fn new(permille: u32, initial: u32, capacity: u32) -> Self {
        let capacity = capacity.saturating_mul(TOKEN);
        let thousandths = initial.saturating_mul(TOKEN).min(capacity);
        Self { thousandths: AtomicU32::new(thousandths), per_request: permille, capacity }
    }

    /// Counts a regular request.
    pub(super) fn deposit(&self) {
        self.add(self.per_request);
    }

    /// Returns true if one more request may be sent, and takes it from the budget.
    pub(super) fn try_take(&self) -> bool {
        self.thousandths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| now.checked_sub(TOKEN)).is_ok()
    }

    /// Returns what [`Self::try_take`] took, because the request was not sent.
    pub(super) fn put_back(&self) {
        self.add(TOKEN);
    }

    fn add(&self, thousandths: u32) {
        let add = |now: u32| Some(now.saturating_add(thousandths).min(self.capacity));
        let _ = self.thousandths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_holds_in_the_long_run_and_the_burst_is_bounded() {
        let budget = RatioBudget::new(50, 0, 10);
        assert!(!budget.try_take());
        let taken = (0..10_000).filter(|_| {
            budget.deposit();
            budget.try_take()
        });
        assert_eq!(taken.count(), 500);
        (0..10_000).for_each(|_| budget.deposit());
        assert_eq!((0..100).filter(|_| budget.try_take()).count(), 10);
        budget.put_back();
        assert!(budget.try_take());
    }
}
