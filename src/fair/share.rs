//! A share of what is lent out: given back when dropped, split and merged.

use std::time::{Duration, Instant};

use super::{Client, Party, Shares};

/// How a share got its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Taken in turn.
    Taken,
    /// Taken before a larger share that waits.
    Passed,
    /// Counted as the client's, but lent out already.
    Counted,
}

/// Some units; given back when dropped.
#[derive(Debug)]
pub struct Share {
    pub(super) shares: Shares,
    pub(super) party: Party,
    pub(super) units: usize,
    pub(super) kind: Kind,
    pub(super) since: Instant,
}

impl Share {
    /// How many they are.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Takes `units` out of it, or all there are.
    #[must_use]
    pub fn split(&mut self, units: usize) -> Self {
        let units = units.min(self.units);
        self.units -= units;
        let (party, kind) = (self.party, self.kind);
        Self { shares: self.shares.clone(), party, units, kind, since: self.since }
    }

    /// From now on it is the server's own, which gives it back when it is needed: no client is kept from having more because of it.
    pub fn disown(&mut self) {
        let own = (Client::default(), self.party.1);
        let mut state = self.shares.state();
        if self.kind == Kind::Passed {
            state.forget_passed(self.party, self.units);
            self.kind = Kind::Taken;
        }
        if state.is_counted() && self.party != own {
            let line = state.line(self.party);
            line.held = line.held.saturating_sub(self.units);
            state.line(own).held += self.units;
        }
        drop(state);
        self.party = own;
        self.shares.hand_out();
    }

    /// Makes one of two of the same [`Shares`].
    pub fn merge(&mut self, mut other: Self) {
        let units = std::mem::take(&mut other.units);
        debug_assert_eq!(self.kind == Kind::Counted, other.kind == Kind::Counted, "units that are lent out twice");
        if self.kind != other.kind || self.party != other.party {
            let mut state = self.shares.state();
            // Of two kinds, or two clients, it is as if none had passed others.
            for (share, units) in [(&*self, self.units), (&other, units)] {
                if share.kind == Kind::Passed {
                    state.forget_passed(share.party, units);
                }
            }
            if self.kind == Kind::Passed {
                self.kind = Kind::Taken;
            }
            if other.party != self.party && state.is_counted() {
                let line = state.line(other.party);
                line.held = line.held.saturating_sub(units);
                state.line(self.party).held += units;
            }
            drop(state);
            // Others may have waited to pass, or for their client to hold less.
            self.shares.hand_out();
        }
        self.units += units;
    }

    pub(super) fn end(&mut self, time: impl FnOnce(Instant) -> Duration) {
        let units = std::mem::take(&mut self.units);
        if units > 0 {
            self.shares.state().take_back(self.party, units, self.kind, Some(time(self.since)));
            self.shares.hand_out();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.end(|since| since.elapsed());
    }
}
