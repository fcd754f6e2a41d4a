//! Clients, their quotas, and their flows with the requests that wait.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Weak;
use std::time::Instant;

use tokio::sync::oneshot;

tokio::task_local! {
    static CLIENT: ClientId;
}

/// Identifies the client for which work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(u64);

impl ClientId {
    /// The server itself, which works for no client. Its units count towards no quota.
    pub const SERVER: Self = Self(0);

    /// Creates the id with this number. Equal numbers are one client.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the client for which the running task works: the server if none was set.
    pub fn current() -> Self {
        CLIENT.try_with(|client| *client).unwrap_or(Self::SERVER)
    }

    /// Runs `work` for this client. Tasks that `work` spawns do not inherit the client.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CLIENT.scope(self, work)
    }

    /// Returns the flow of this client's requests of a kind. The user of a semaphore numbers the kinds.
    pub const fn flow(self, kind: u64) -> FlowId {
        FlowId { client: self, kind }
    }
}

/// Identifies a flow: the requests of one client that are of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowId {
    pub(super) client: ClientId,
    pub(super) kind: u64,
}

/// Share of the units that a flow holds in turn which counts as if the units had overtaken a larger request (1/16).
const HELD_UNITS_DIVISOR: usize = 16;

/// Maximum number of units that one client may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientQuota {
    /// Maximum while no other client holds or requests units. The rest is left to the next client.
    pub alone: usize,
    /// Maximum while other clients hold or request units.
    pub among_others: usize,
}

impl ClientQuota {
    /// No limit.
    pub const UNLIMITED: Self = Self { alone: usize::MAX, among_others: usize::MAX };

    /// Returns this quota of `total` units, reduced in proportion to `units` of them.
    pub(super) fn scaled_to(self, units: usize, total: usize) -> Self {
        let scale = |limit: usize| {
            let scaled = limit as u128 * units as u128 / total.max(1) as u128;
            usize::try_from(scaled).unwrap_or(usize::MAX)
        };
        if units == total { self } else { Self { alone: scale(self.alone), among_others: scale(self.among_others) } }
    }

    /// Returns the maximum number of units of one client among others while `free` of `total` units are free: a multiple
    /// of `free`. The factor is the ratio of the units that a client gets alone to the units that it then leaves. For any
    /// number of clients that take all they can, some units are left for the next client (Choudhury and Hahne, "Dynamic
    /// Queue Length Thresholds for Shared-Memory Packet Switches", 1998).
    pub(super) fn dynamic_threshold(&self, total: usize, free: usize) -> usize {
        let remaining = total.saturating_sub(self.alone).max(1);
        self.among_others.min(free.saturating_mul(self.alone) / remaining)
    }
}

/// A flow that holds units or has requests that wait.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) id: FlowId,
    /// Service received, in units or in nanoseconds for which a unit was held.
    pub(super) start_tag: u64,
    pub(super) held_units: usize,
    /// Held units of the permits that overtook a larger request.
    pub(super) overtaking_units: usize,
    /// Requests that wait, in order of arrival.
    pub(super) queue: VecDeque<PendingAcquire>,
}

impl Flow {
    /// Returns the number of held units that count as overtaking. The more units a flow holds, the fewer it may overtake
    /// with. Otherwise clients that hold much would leave too little for a client that holds nothing.
    pub(super) fn effective_overtaking_units(&self) -> usize {
        self.overtaking_units.saturating_add(self.held_units.saturating_sub(self.overtaking_units) / HELD_UNITS_DIVISOR)
    }
}

/// How a permit got its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GrantKind {
    /// The units were free, and it was the turn of the request.
    InTurn,
    /// The units were free, and the request overtook a larger one that waits.
    Overtaking,
    /// The units only count towards the client's quota. They belong to a cache or to another permit.
    Charged,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct PendingAcquire {
    pub(super) units: usize,
    /// Units that must stay free when the request is granted.
    pub(super) reserve: usize,
    /// `Some` for a part of a stream: a reference that all unsent parts of the stream hold.
    pub(super) stream: Option<Weak<()>>,
    /// Kind of the grant, unless the request overtakes another one.
    pub(super) kind: GrantKind,
    /// True if another client has waited behind this request because there were too few units for it.
    pub(super) blocked_others: Cell<bool>,
    /// Sends the waiting future the kind and the time of the grant.
    pub(super) sender: oneshot::Sender<(GrantKind, Instant)>,
}

impl PendingAcquire {
    /// Creates a request that has no reserve and belongs to no stream.
    pub(super) fn new(units: usize, kind: GrantKind, sender: oneshot::Sender<(GrantKind, Instant)>) -> Self {
        Self { units, reserve: 0, stream: None, kind, blocked_others: Cell::new(false), sender }
    }

    /// Returns true for a part of a stream whose earlier parts have all been sent.
    pub(super) fn is_first_of_stream(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.strong_count() <= 1)
    }

    /// Returns the number of units that must be free before the request is granted.
    pub(super) fn needed_free_units(&self) -> usize {
        if self.kind == GrantKind::Charged { 0 } else { self.units.saturating_add(self.reserve) }
    }
}
