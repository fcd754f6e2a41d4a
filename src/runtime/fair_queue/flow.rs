//! Clients, their quotas, and their flows of waiting requests.
//!
//! Code that takes units for a client finds the client with [`ClientId::current`], which reads a task-local value. The
//! value depends on the task that runs the code:
//!
//! - The handler of a request: the client that made the request.
//! - A spawned task, or a job on a pool's thread: the server, because neither inherits the client. A task can work for
//!   a client if its future is wrapped in [`ClientId::scope`].
//! - The task of a flight: the client whose request started the flight. A request for units nevertheless waits in the
//!   flows of all clients of the flight (`single_flight.rs`).
//! - A response body: the server, because it is polled after the handler has returned. The body therefore stores the
//!   client when it is created, and reads further pieces in the scope of that client.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::Weak;
use std::time::Instant;

use tokio::sync::oneshot;

tokio::task_local! {
    static CLIENT: ClientId;
}

/// Identifies the client for which the server does some work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(u64);

impl ClientId {
    /// Stands for the server itself, if work is done for no client. Its units count towards no quota.
    pub const SERVER: Self = Self(0);

    /// Creates the id of the client with this number. Equal numbers identify the same client.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the client for which the running task works, or [`Self::SERVER`] outside of [`Self::scope`].
    pub fn current() -> Self {
        CLIENT.try_with(|client| *client).unwrap_or(Self::SERVER)
    }

    /// Runs `work` for this client. Tasks that `work` spawns do not inherit the client.
    pub fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CLIENT.scope(self, work)
    }

    /// Returns the flow of this client's requests with the given kind. The owner of a semaphore decides what the
    /// numbers of the kinds mean.
    pub const fn flow(self, kind: u64) -> FlowId {
        FlowId { client: self, kind }
    }
}

/// Identifies a flow, which consists of the requests of one client that have the same kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowId {
    pub(super) client: ClientId,
    pub(super) kind: u64,
}

/// Of the units that a flow holds without having overtaken a request, 1/16 count as if they had overtaken one.
const HELD_UNITS_DIVISOR: usize = 16;

/// Limit of the units that one client may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientQuota {
    /// Maximum while no other client holds or requests units. The other units are left for the next client.
    pub alone: usize,
    /// Maximum while other clients hold or request units. The dynamic threshold may be lower.
    pub among_others: usize,
}

impl ClientQuota {
    /// A quota without a limit.
    pub const UNLIMITED: Self = Self { alone: usize::MAX, among_others: usize::MAX };

    /// Returns the quota for a part of the units: `units` of `total`.
    pub(super) fn scaled_to(self, units: usize, total: usize) -> Self {
        let scale = |limit: usize| {
            let scaled = limit as u128 * units as u128 / total.max(1) as u128;
            usize::try_from(scaled).unwrap_or(usize::MAX)
        };
        if units == total { self } else { Self { alone: scale(self.alone), among_others: scale(self.among_others) } }
    }

    /// Returns the maximum number of units that one client may hold among other clients while `free` of `total` units
    /// are free. The result is proportional to `free`, so that some units are always left for the next client
    /// (Choudhury and Hahne, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches", 1998).
    ///
    /// For example, let `alone` be 9 of 12 units, so that a client alone leaves 3. The factor of proportionality is
    /// then 9 / 3 = 3. A client may hold 6 units only if at least 2 units stay free. Among 3 clients that take all they
    /// can, each holds about 3.6 units, and 1.2 units stay free.
    pub(super) fn dynamic_threshold(&self, total: usize, free: usize) -> usize {
        let remaining = total.saturating_sub(self.alone).max(1);
        self.among_others.min(free.saturating_mul(self.alone) / remaining)
    }
}

/// A flow that holds units or in which requests wait.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) id: FlowId,
    /// Service that the flow has received: units granted, or unit-nanoseconds for which units were held (see
    /// [`CostBasis`](super::CostBasis)). The waiting flow with the lowest start tag is served next.
    pub(super) start_tag: u64,
    pub(super) held_units: usize,
    /// Those of the held units whose requests overtook a larger request.
    pub(super) overtaking_units: usize,
    /// Waiting requests, in order of arrival.
    pub(super) queue: VecDeque<PendingAcquire>,
}

impl Flow {
    /// Returns the number of held units that count towards the limit for overtaking. A part of the other held units
    /// counts, too. Otherwise clients that already hold many units would leave too few overtaking units to a client
    /// that holds none.
    pub(super) fn effective_overtaking_units(&self) -> usize {
        self.overtaking_units.saturating_add(self.held_units.saturating_sub(self.overtaking_units) / HELD_UNITS_DIVISOR)
    }
}

/// The way in which a permit gets its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GrantKind {
    /// The units were free, and the request was next.
    InTurn,
    /// The units were free, and the request overtook a larger request that waits.
    Overtaking,
    /// The units only count towards the client's quota. They are not taken from the free units, because a cache or
    /// another permit already holds them.
    Charged,
}

/// A waiting request.
#[derive(Debug)]
pub(super) struct PendingAcquire {
    pub(super) units: usize,
    /// Units that must stay free when the request is granted.
    pub(super) reserve: usize,
    /// `Some` for a part of a stream. All unsent parts of the stream hold a strong reference.
    pub(super) stream: Option<Weak<()>>,
    /// Kind of the grant. [`GrantKind::InTurn`] becomes [`GrantKind::Overtaking`] if the request overtakes another one.
    pub(super) kind: GrantKind,
    /// True if another client has waited behind this request because there were too few units for this request.
    pub(super) blocked_others: Cell<bool>,
    /// Sends the kind and the time of the grant to the waiting future.
    pub(super) sender: oneshot::Sender<(GrantKind, Instant)>,
}

impl PendingAcquire {
    /// Creates a request that has no reserve and belongs to no stream.
    pub(super) fn new(units: usize, kind: GrantKind, sender: oneshot::Sender<(GrantKind, Instant)>) -> Self {
        Self { units, reserve: 0, stream: None, kind, blocked_others: Cell::new(false), sender }
    }

    /// Returns true if this is a part of a stream and all earlier parts of the stream have been sent.
    pub(super) fn is_first_of_stream(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| stream.strong_count() <= 1)
    }

    /// Returns the number of units that must be free before the request is granted.
    pub(super) fn needed_free_units(&self) -> usize {
        if self.kind == GrantKind::Charged { 0 } else { self.units.saturating_add(self.reserve) }
    }
}
