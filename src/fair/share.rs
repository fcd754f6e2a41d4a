//! A share of what is lent out: given back when dropped, split and merged.

use std::time::{Duration, Instant};

use super::{Client, Party, Shares};

/// Some units; given back when dropped.
#[derive(Debug)]
pub struct Share {
    pub(super) shares: Shares,
    pub(super) party: Party,
    pub(super) units: usize,
    pub(super) is_counted_only: bool,
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
        let (party, is_counted_only) = (self.party, self.is_counted_only);
        Self { shares: self.shares.clone(), party, units, is_counted_only, since: self.since }
    }

    /// From now on it is the server's own: no client is kept from having more because of it.
    pub fn disown(&mut self) {
        let own = (Client::default(), self.party.1);
        let mut state = self.shares.state();
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
        if other.party != self.party {
            let mut state = self.shares.state();
            if state.is_counted() {
                let line = state.line(other.party);
                line.held = line.held.saturating_sub(units);
                state.line(self.party).held += units;
            }
        }
        self.units += units;
    }

    pub(super) fn end(&mut self, time: impl FnOnce(Instant) -> Duration) {
        let units = std::mem::take(&mut self.units);
        if units > 0 {
            self.shares.state().take_back(self.party, units, self.is_counted_only, Some(time(self.since)));
            self.shares.hand_out();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.end(|since| since.elapsed());
    }
}
