//! A permit for units of a semaphore. It is released when dropped, and can be split and merged.

use std::time::{Duration, Instant};

use super::{ClientId, FairSemaphore, FlowId};

/// How a permit got its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GrantKind {
    /// Granted in turn.
    InTurn,
    /// Granted before a larger request that waits.
    Overtaking,
    /// Charged to the client, but already granted otherwise.
    Charged,
}

/// A permit for a number of units, which are released when it is dropped.
#[derive(Debug)]
pub struct FairPermit {
    pub(super) semaphore: FairSemaphore,
    pub(super) flow: FlowId,
    pub(super) units: usize,
    pub(super) kind: GrantKind,
    pub(super) granted_at: Instant,
}

impl FairPermit {
    /// Returns the number of units.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Splits off a permit of `units` units, or of all if there are fewer.
    #[must_use]
    pub fn split(&mut self, units: usize) -> Self {
        let units = units.min(self.units);
        self.units -= units;
        let (flow, kind) = (self.flow, self.kind);
        Self { semaphore: self.semaphore.clone(), flow, units, kind, granted_at: self.granted_at }
    }

    /// Transfers the units to the server, which releases them when they are needed. They no longer keep any client from
    /// getting more.
    pub fn transfer_to_server(&mut self) {
        let server_flow = (ClientId::default(), self.flow.1);
        let mut state = self.semaphore.state();
        if self.kind == GrantKind::Overtaking {
            state.uncount_overtaking(self.flow, self.units);
            self.kind = GrantKind::InTurn;
        }
        if state.tracks_held_units() && self.flow != server_flow {
            let flow = state.flow_mut(self.flow);
            flow.held_units = flow.held_units.saturating_sub(self.units);
            state.flow_mut(server_flow).held_units += self.units;
        }
        drop(state);
        self.flow = server_flow;
        self.semaphore.grant_waiters();
    }

    /// Merges another permit of the same [`FairSemaphore`] into this one.
    pub fn merge(&mut self, mut other: Self) {
        let units = std::mem::take(&mut other.units);
        debug_assert_eq!(
            self.kind == GrantKind::Charged,
            other.kind == GrantKind::Charged,
            "units that are granted twice"
        );
        if self.kind != other.kind || self.flow != other.flow {
            let mut state = self.semaphore.state();
            // If kinds or clients differ, neither permit counts as overtaking any longer.
            for (permit, units) in [(&*self, self.units), (&other, units)] {
                if permit.kind == GrantKind::Overtaking {
                    state.uncount_overtaking(permit.flow, units);
                }
            }
            if self.kind == GrantKind::Overtaking {
                self.kind = GrantKind::InTurn;
            }
            if other.flow != self.flow && state.tracks_held_units() {
                let flow = state.flow_mut(other.flow);
                flow.held_units = flow.held_units.saturating_sub(units);
                state.flow_mut(self.flow).held_units += units;
            }
            drop(state);
            // Others may have waited to overtake, or for their client to hold less.
            self.semaphore.grant_waiters();
        }
        self.units += units;
    }

    pub(super) fn release(&mut self, held_for: impl FnOnce(Instant) -> Duration) {
        let units = std::mem::take(&mut self.units);
        if units > 0 {
            self.semaphore.state().release(self.flow, units, self.kind, Some(held_for(self.granted_at)));
            self.semaphore.grant_waiters();
        }
    }
}

impl Drop for FairPermit {
    fn drop(&mut self) {
        self.release(|granted_at| granted_at.elapsed());
    }
}
