//! Which stored objects have been asked for before, lately.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// So many of the latest are known again, but for those whose place others have taken.
const PLACES: usize = 4096;

/// Of those known again every so manieth is worth keeping: whoever walks again and again through more than the cache
/// holds does not empty it.
const TURNS: usize = 32;

/// The versions of objects that have been asked for, each in the one place where it can be.
#[derive(Debug)]
pub(super) struct Asked {
    places: Box<[AtomicU64]>,
    known: AtomicUsize,
}

impl Default for Asked {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(), known: AtomicUsize::new(0) }
    }
}

impl Asked {
    /// Notes that the object of this version, a hash, is asked for; returns whether it is worth reading into the cache: what
    /// is asked for once never is, what is asked for often soon.
    pub(super) fn is_worth_keeping(&self, version: u64) -> bool {
        let place = usize::try_from(version % PLACES as u64).unwrap_or_default();
        let is_known = self.places.get(place).is_some_and(|place| place.swap(version, Ordering::Relaxed) == version);
        is_known && self.known.fetch_add(1, Ordering::Relaxed) % TURNS == TURNS - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_once_is_not_kept() {
        let asked = Asked::default();
        assert!((1..10_000).all(|version| !asked.is_worth_keeping(version)));
    }

    #[test]
    fn of_what_is_asked_for_again_every_32nd_is_kept() {
        let asked = Asked::default();
        let kept = (0..=320).filter(|at| asked.is_worth_keeping(1 + at % 2)).count();
        assert_eq!(kept, 9);
    }
}
