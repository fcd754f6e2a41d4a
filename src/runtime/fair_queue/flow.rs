//! Clients and their flows: the parties among which units are divided, and the requests that wait for permits.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Weak;
use std::time::Instant;

use tokio::sync::oneshot;

tokio::task_local! {
    static CLIENT: ClientId;
}

/// Identifies the client for which work is done. Equal numbers are one client. The default is the server itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ClientId(u64);

impl ClientId {
    /// Creates the id with this number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the client for which the running task works, or the default if none was set.
    pub fn current() -> Self {
        CLIENT.try_with(|client| *client).unwrap_or_default()
    }

    /// Runs `work` for this client. Tasks that it spawns do not inherit the client.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CLIENT.scope(self, work)
    }
}

/// Identifies a flow: a client, and a number for the kind of its requests.
pub type FlowId = (ClientId, u64);

/// Of the units that a flow holds, one in this many counts as if it had overtaken others.
const HELD_UNITS_DIVISOR: usize = 16;

/// Maximum number of units that one client holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientQuota {
    /// Maximum while no other client holds or requests units. The rest is for the next client.
    pub alone: usize,
    /// Maximum while other clients do.
    pub among_others: usize,
}

impl ClientQuota {
    /// No limit.
    pub const UNLIMITED: Self = Self { alone: usize::MAX, among_others: usize::MAX };

    /// Returns the quota if clients share only `units` of `total`: the same fraction of those.
    pub(super) fn scaled_to(self, units: usize, total: usize) -> Self {
        let scale = |limit: usize| {
            let scaled = limit as u128 * units as u128 / total.max(1) as u128;
            usize::try_from(scaled).unwrap_or(usize::MAX)
        };
        if units == total { self } else { Self { alone: scale(self.alone), among_others: scale(self.among_others) } }
    }

    /// Returns the maximum number of units of one client among others while `free` of `total` units are free. It is
    /// `free`, multiplied by the ratio of the units that a client alone gets to those that it leaves. However many
    /// clients take all they can, some units are left for the next one (Choudhury and Hahne, "Dynamic Queue Length
    /// Thresholds for Shared-Memory Packet Switches", 1998).
    pub(super) fn dynamic_threshold(&self, total: usize, free: usize) -> usize {
        let remaining = total.saturating_sub(self.alone).max(1);
        self.among_others.min(free.saturating_mul(self.alone) / remaining)
    }
}

#[derive(Debug)]
pub(super) struct Flow {
    pub(super) id: FlowId,
    /// Service received, in units or in nanoseconds.
    pub(super) start_tag: u64,
    pub(super) held_units: usize,
    /// Of the held units, those of permits that overtook others.
    pub(super) overtaking_units: usize,
    pub(super) queue: VecDeque<PendingAcquire>,
}

impl Flow {
    /// Returns the number of units that count as overtaking. The more a client holds, the less it may overtake with.
    /// Otherwise clients that hold much would leave too little for one that holds nothing.
    pub(super) fn effective_overtaking_units(&self) -> usize {
        self.overtaking_units.saturating_add(self.held_units.saturating_sub(self.overtaking_units) / HELD_UNITS_DIVISOR)
    }
}

/// How a permit got its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GrantKind {
    /// Granted in turn.
    InTurn,
    /// Granted before a larger request that waits.
    Overtaking,
    /// Counts against the client's quota only: a cache or another permit owns the units.
    Charged,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct PendingAcquire {
    pub(super) units: usize,
    /// Units that must be left free for others.
    pub(super) reserve: usize,
    /// For a part of a stream: held by the parts that are being sent.
    pub(super) stream: Option<Weak<()>>,
    pub(super) kind: GrantKind,
    /// True if other clients had to wait until there are enough units for this request.
    pub(super) blocked_others: Cell<bool>,
    /// Tells the waiting future that it has been granted, how and when.
    pub(super) sender: oneshot::Sender<(GrantKind, Instant)>,
}

impl PendingAcquire {
    /// Creates a request for this many units that leaves none free and belongs to no stream.
    pub(super) fn new(units: usize, kind: GrantKind, sender: oneshot::Sender<(GrantKind, Instant)>) -> Self {
        Self { units, reserve: 0, stream: None, kind, blocked_others: Cell::new(false), sender }
    }

    /// Returns true for a stream of which no part is being sent.
    pub(super) fn is_first_of_stream(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.strong_count() <= 1)
    }

    /// Returns the number of units that must be free for the request.
    pub(super) fn needed_free_units(&self) -> usize {
        if self.kind == GrantKind::Charged { 0 } else { self.units.saturating_add(self.reserve) }
    }
}
