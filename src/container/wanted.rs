//! Whether anybody still waits for a block that is being decoded.

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::blocks::EntryKey;
use crate::cpu::Turn;
use crate::fair::Joints;

/// How long a block that is to be cached is decoded for nobody: who hangs up and asks again within that, as viewers do, finds
/// it begun, and a slow codec comes to its end.
const GRACE: Duration = Duration::from_secs(1);

/// Those who may wait for a block.
#[derive(Debug, Clone)]
pub(super) struct Audience {
    /// Of the request for which it is decoded; gone with it.
    asked: Weak<()>,
    /// Who else may want it, by which key.
    loading: Option<(Joints<EntryKey>, EntryKey)>,
}

impl Audience {
    /// Whoever holds `asked`, and nobody else.
    pub(super) fn only(asked: &Arc<()>) -> Self {
        Self { asked: Arc::downgrade(asked), loading: None }
    }

    /// Whoever waits for a load of `key`.
    pub(super) fn of(loading: &Joints<EntryKey>, key: EntryKey) -> Self {
        Self { asked: Weak::new(), loading: Some((loading.clone(), key)) }
    }

    /// And whoever holds `asked`.
    pub(super) fn and(self, asked: Weak<()>) -> Self {
        Self { asked, ..self }
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.asked.strong_count() > 0 || self.loading.as_ref().is_some_and(|(loading, key)| loading.is_wanted(key))
    }

    /// Says whether to go on decoding, each time after `turn` has let others go first where they have to.
    pub(super) fn watched<'a>(&'a self, turn: &'a Turn) -> impl Fn() -> bool + 'a {
        let seen = Cell::new(Instant::now());
        move || {
            turn.give_way();
            if self.is_waiting() {
                seen.set(Instant::now());
                return true;
            }
            self.loading.is_some() && seen.get().elapsed() < GRACE
        }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn decoding_goes_on_for_whoever_asked_or_waits_and_a_little_longer_where_it_is_kept() {
        let (asked, joints) = (Arc::new(()), Joints::default());
        let key: EntryKey = (1, smallvec![2, 3]);
        let turn = Turn::unshared();
        let alone = Audience::only(&asked);
        let shared = Audience::of(&joints, key.clone()).and(Arc::downgrade(&asked));
        assert!(alone.is_waiting() && shared.is_waiting());
        let (alone_goes_on, shared_goes_on) = (alone.watched(&turn), shared.watched(&turn));
        drop(asked);
        assert!(!alone.is_waiting() && !shared.is_waiting());
        assert!(!alone_goes_on() && shared_goes_on());
        let joined = joints.join(key);
        assert!(shared.is_waiting());
        drop(joined);
        assert!(!shared.is_waiting());
    }
}
