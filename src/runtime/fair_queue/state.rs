//! The units of a semaphore, and the choice of the request that is granted next.
//!
//! The order of the flows is start-time fair queueing, and the limit of a client is a dynamic threshold
//! ([`ClientQuota`]). The search for the next request visits the flows in the order of their start tags. It grants the
//! first request that can be granted now. The requests that it passes over may restrict which requests behind them can
//! be granted.
//!
//! An example with [`CostBasis::Units`]: all units are in use. Client A queues three requests for 2 units each, and
//! then client B two requests for 4 units each. Both flows begin with the virtual time 0 as their start tag. When
//! enough units become free, the flow with the lowest start tag gets them, and its start tag grows by their number:
//!
//! | grant | start tag of A | start tag of B | virtual time |
//! |---|---|---|---|
//! | none yet | 0 | 0 | 0 |
//! | 2 units to A | 2 | 0 | 0 |
//! | 4 units to B | 2 | 4 | 0 |
//! | 2 units to A | 4 | 4 | 2 |
//!
//! If client C now requests units for the first time, its flow begins with the virtual time 2 as its start tag. It is
//! served next, although A and B have waited longer.

use std::collections::VecDeque;
use std::time::Duration;

use super::flow::{ClientId, ClientQuota, Flow, FlowId, GrantKind, PendingAcquire};

/// A permit that overtakes a larger request has at most 1/64 of all units.
const OVERTAKING_PERMIT_DIVISOR: usize = 64;

/// All overtaking permits together have at most 1/8 of the units that no cache fills.
const OVERTAKING_DIVISOR: usize = 8;

/// Overtaking permits may always have 1/4 of their common limit, even if the request that they overtake leaves fewer
/// units.
const MIN_OVERTAKING_DIVISOR: usize = 4;

/// Streams count as starved while they together hold less than 1/2 of all units. Starved streams take turns with other
/// requests. Otherwise the other requests would take all released units for as long as any of them are waiting.
const STARVED_STREAMS_DIVISOR: usize = 2;

/// A starved stream leaves 1/16 of all units free, instead of its reserve.
const STARVED_STREAMS_RESERVE_DIVISOR: usize = 16;

/// Returns the maximum number of units that a permit may have to overtake a larger request. `in_flight` is the number
/// of units, of `total`, that no cache fills. The first client that overtakes gets at most half of the limit for all
/// clients.
pub fn max_overtaking_units(total: usize, in_flight: usize) -> usize {
    (total / OVERTAKING_PERMIT_DIVISOR).min(in_flight / OVERTAKING_DIVISOR / 2)
}

/// The measure of the service that a flow receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostBasis {
    /// The number of granted units.
    Units,
    /// The time for which units are held, times the number of units.
    Time,
}

/// Units of a [`FairSemaphore`](super::FairSemaphore), and the flows that hold or request them.
#[derive(Debug)]
pub(super) struct FairSemaphoreState {
    pub(super) total: usize,
    pub(super) free: usize,
    /// Number of granted units in excess of `total`, after the semaphore became smaller.
    pub(super) overcommitted: usize,
    /// Number of units that are in use but still free to be granted, such as those of evictable cache entries.
    pub(super) occupied: usize,
    /// Number of units, of `total`, that no cache fills.
    pub(super) in_flight_capacity: usize,
    /// Number of units of all permits that overtook a larger request.
    pub(super) overtaking_units: usize,
    pub(super) cost: CostBasis,
    /// Quota of each client except the server. A client that holds nothing may exceed it with one permit.
    pub(super) client_quota: ClientQuota,
    /// Highest start tag of any served flow, before the tag grew by the grant. New flows begin with this start tag.
    pub(super) virtual_time: u64,
    /// Flows in which a request waits and, if held units are tracked, flows that hold units. While any request is
    /// waiting, this includes idle flows whose start tag is above `virtual_time`.
    pub(super) flows: Vec<Flow>,
}

/// Restrictions that the requests passed over in a search impose on the requests behind them.
#[derive(Debug)]
struct SearchLimits {
    /// False if a stream waits for units. Other streams then wait behind it.
    may_grant_streams: bool,
    /// `Some` if the search has passed over a request that waits for units. Requests behind it are then granted only
    /// within these limits.
    overtaking: Option<OvertakingLimits>,
}

/// Limits of the requests that may overtake a larger one.
#[derive(Debug, Clone, Copy)]
struct OvertakingLimits {
    max_units: usize,
    /// Maximum number of overtaking units of a client, including those of the request to be granted.
    max_client_units: usize,
}

impl SearchLimits {
    /// Returns true if `request` of `flow` may be granted before the requests that were passed over. Streams must not
    /// overtake other requests.
    fn allow(&self, flow: &Flow, request: &PendingAcquire) -> bool {
        let is_stream = request.stream.is_some();
        (self.may_grant_streams || !is_stream)
            && self.overtaking.is_none_or(|limits| {
                !is_stream
                    && request.units <= limits.max_units
                    && flow.effective_overtaking_units().saturating_add(request.units) <= limits.max_client_units
            })
    }

    /// Returns true if no further request may be granted.
    fn is_exhausted(&self) -> bool {
        self.overtaking.is_some_and(|limits| limits.max_units == 0)
    }
}

impl FairSemaphoreState {
    /// Returns the number of granted units.
    pub(super) fn taken(&self) -> usize {
        self.total + self.overcommitted - self.free
    }

    /// Returns true if there are enough free units for `request`. After [`resize`](super::FairSemaphore::resize), a
    /// request may need more units than exist. It is granted when no units are granted to other requests.
    fn has_units_for(&self, request: &PendingAcquire) -> bool {
        let needed = request.needed_free_units();
        needed <= self.free || needed > self.total && self.taken() == 0
    }

    /// Returns true if [`Flow::held_units`] is kept up to date, which makes flows exist while they hold units.
    pub(super) fn tracks_held_units(&self) -> bool {
        self.cost == CostBasis::Time || self.client_quota.among_others < self.total
    }

    /// Returns the flow with this id, and creates it if necessary.
    pub(super) fn flow_mut(&mut self, flow: FlowId) -> &mut Flow {
        let index = self.flows.iter().position(|candidate| candidate.id == flow).unwrap_or_else(|| {
            self.flows.push(Flow {
                id: flow,
                start_tag: self.virtual_time,
                held_units: 0,
                overtaking_units: 0,
                queue: VecDeque::new(),
            });
            self.flows.len() - 1
        });
        &mut self.flows[index]
    }

    /// Returns true if the client of `flow` would exceed its quota with `units` more units while `reserve` units stay
    /// free.
    ///
    /// The quota applies to the units that are not reserved. For a stream, only the units of the client's streams
    /// count. For other requests, all units that the client holds count.
    pub(super) fn exceeds_client_quota(&self, flow: FlowId, units: usize, reserve: usize, is_stream: bool) -> bool {
        let client = flow.client;
        if self.client_quota.among_others >= self.total || client == ClientId::SERVER {
            return false;
        }
        let mut held_units = 0usize;
        let mut has_others = false;
        for other in &self.flows {
            if other.id == flow || other.id.client == client && !is_stream {
                held_units = held_units.saturating_add(other.held_units);
            } else if ![client, ClientId::SERVER].contains(&other.id.client) {
                has_others |= other.held_units > 0 || !other.queue.is_empty();
            }
        }
        let shared_units = self.total.saturating_sub(reserve);
        let free = self.free.saturating_sub(self.occupied).saturating_sub(units.saturating_add(reserve));
        let quota = self.client_quota.scaled_to(shared_units, self.total);
        let max_units = if has_others { quota.dynamic_threshold(shared_units, free) } else { quota.alone };
        held_units > 0 && held_units.saturating_add(units) > max_units
    }

    /// Returns true if a new request of `flow` can be granted at once: there are enough units, and no waiting request
    /// comes first.
    pub(super) fn can_grant_now(&self, flow: FlowId, units: usize, reserve: usize) -> bool {
        units.saturating_add(reserve) <= self.free
            && !self.exceeds_client_quota(flow, units, reserve, false)
            && !self.has_request_before(flow)
    }

    /// Returns true if a waiting request comes before a new request of `flow`. Requests that exceed the quota of their
    /// client delay only their own flow.
    fn has_request_before(&self, flow: FlowId) -> bool {
        // Computed only once for all streams, which have the same kind, because there may be thousands of requests.
        let mut starved_kind = None;
        self.flows.iter().any(|waiting_flow| {
            let kind = waiting_flow.id.kind;
            let mut is_starved = || match starved_kind {
                Some((known_kind, is_starved)) if known_kind == kind => is_starved,
                _ => starved_kind.insert((kind, self.are_streams_starved(kind))).1,
            };
            let mut requests = waiting_flow.queue.iter();
            let first =
                requests.find(|request| request.stream.is_none() || request.is_first_of_stream() && is_starved());
            first.is_some_and(|request| {
                let is_stream = request.stream.is_some();
                waiting_flow.id == flow
                    || !self.exceeds_client_quota(waiting_flow.id, request.units, request.reserve, is_stream)
            })
        })
    }

    /// Removes and returns the request that is next, if there are enough units for it, and grants it the units.
    pub(super) fn grant_next(&mut self) -> Option<(FlowId, PendingAcquire)> {
        self.remove_idle_flows();
        let first = self.waiting_flows().min()?;
        let mut limits = SearchLimits { may_grant_streams: true, overtaking: None };
        // Sorted only if no request of the first flow is granted.
        let later = std::iter::once_with(|| {
            let mut later: Vec<_> = self.waiting_flows().filter(|waiting| *waiting > first).collect();
            later.sort_unstable();
            later
        });
        for (start_tag, flow_index) in std::iter::once(first).chain(later.flatten()) {
            let flow = self.flows.get(flow_index)?;
            let is_first_flow = (start_tag, flow_index) == first;
            if let Some(request_index) = self.find_grantable(flow, is_first_flow, &mut limits) {
                return self.take_request(flow.id, request_index, limits.overtaking.is_some());
            }
            if limits.is_exhausted() {
                return None;
            }
        }
        None
    }

    /// Returns the index of the first request of `flow` that can be granted now. Tightens `limits` for each request
    /// that is passed over.
    fn find_grantable(&self, flow: &Flow, is_first_flow: bool, limits: &mut SearchLimits) -> Option<usize> {
        let mut are_streams_starved = None;
        for (index, request) in flow.queue.iter().enumerate() {
            if !limits.allow(flow, request) {
                return None;
            }
            let PendingAcquire { units, reserve, stream, .. } = request;
            let exceeds_quota = self.exceeds_client_quota(flow.id, *units, *reserve, stream.is_some());
            let is_starved_stream = is_first_flow
                && request.is_first_of_stream()
                && *are_streams_starved.get_or_insert_with(|| self.are_streams_starved(flow.id.kind));
            let has_units =
                self.has_units_for(request) || is_starved_stream && self.has_units_for_starved_stream(*units);
            if has_units && !exceeds_quota {
                return Some(index);
            }
            match stream {
                // The stream waits until its client has received earlier parts. Requests behind this one may be granted
                // before it.
                Some(stream) if stream.strong_count() > 1 => {}
                _ if exceeds_quota => return None,
                // Other streams wait behind this one. Otherwise this stream might never find enough units.
                Some(_) if !is_starved_stream => {
                    self.note_blocking(flow.id, request);
                    limits.may_grant_streams = false;
                }
                _ => {
                    self.note_blocking(flow.id, request);
                    limits.overtaking = Some(self.overtaking_limits(request, limits.overtaking));
                    return None;
                }
            }
        }
        None
    }

    /// Removes the request at `index` of the queue of `flow` and grants it its units.
    fn take_request(&mut self, flow: FlowId, index: usize, overtakes: bool) -> Option<(FlowId, PendingAcquire)> {
        let entry = self.flow_mut(flow);
        let mut request = entry.queue.remove(index)?;
        if overtakes && request.kind == GrantKind::InTurn {
            request.kind = GrantKind::Overtaking;
            entry.overtaking_units += request.units;
            self.overtaking_units += request.units;
        }
        let taken = if request.kind == GrantKind::Charged { 0 } else { request.units };
        self.grant(flow, request.units, taken);
        Some((flow, request))
    }

    /// Returns true if all streams together hold few units. `kind` is the kind of the streams' flows.
    fn are_streams_starved(&self, kind: u64) -> bool {
        let stream_flows = self.flows.iter().filter(|flow| flow.id.kind == kind);
        self.tracks_held_units()
            && stream_flows.map(|flow| flow.held_units).sum::<usize>() < self.total / STARVED_STREAMS_DIVISOR
    }

    /// Returns true if there are enough free units for a starved stream that requests `units`.
    fn has_units_for_starved_stream(&self, units: usize) -> bool {
        units.saturating_add(self.total / STARVED_STREAMS_RESERVE_DIVISOR) <= self.free
    }

    /// Records in a request of `flow` that other clients wait behind it, if any do.
    fn note_blocking(&self, flow: FlowId, request: &PendingAcquire) {
        if self.flows.iter().any(|other| other.id.client != flow.client && !other.queue.is_empty()) {
            request.blocked_others.set(true);
        }
    }

    /// Returns the limits for overtaking `request`, combined with the limits `so_far` of the requests passed over
    /// before.
    fn overtaking_limits(&self, request: &PendingAcquire, so_far: Option<OvertakingLimits>) -> OvertakingLimits {
        let limit = self.overtaking_limit(request.needed_free_units());
        let remaining_units = limit.saturating_sub(self.overtaking_units);
        let max_units = max_overtaking_units(self.total, self.in_flight_capacity).min(remaining_units).min(self.free);
        // One client may take at most half of the remaining units, so that some are left for the next client.
        let max_client_units = remaining_units / 2;
        so_far.map_or(OvertakingLimits { max_units, max_client_units }, |so_far| OvertakingLimits {
            max_units: so_far.max_units.min(max_units),
            max_client_units: so_far.max_client_units.min(max_client_units),
        })
    }

    /// Returns the maximum number of units that all permits together may have to overtake a waiting request for
    /// `needed` units. This is the number of units that stay free when the waiting request is granted, but at least a
    /// small fixed share. Otherwise a request for nearly all units would stop all other clients.
    fn overtaking_limit(&self, needed: usize) -> usize {
        let limit = self.in_flight_capacity / OVERTAKING_DIVISOR;
        limit.min(self.in_flight_capacity.saturating_sub(needed)).max(limit / MIN_OVERTAKING_DIVISOR)
    }

    /// Returns the start tag and the index of each flow in which requests wait.
    fn waiting_flows(&self) -> impl Iterator<Item = (u64, usize)> {
        let waiting = self.flows.iter().enumerate().filter(|(_, flow)| !flow.queue.is_empty());
        waiting.map(|(index, flow)| (flow.start_tag, index))
    }

    fn find_flow(&mut self, flow: FlowId) -> Option<&mut Flow> {
        self.flows.iter_mut().find(|candidate| candidate.id == flow)
    }

    /// Counts `units` as held by `to` instead of `from`, if held units are tracked.
    pub(super) fn move_held_units(&mut self, from: FlowId, to: FlowId, units: usize) {
        if from != to && self.tracks_held_units() {
            let flow = self.flow_mut(from);
            flow.held_units = flow.held_units.saturating_sub(units);
            self.flow_mut(to).held_units += units;
        }
    }

    /// Subtracts `units` from the overtaking units of `flow` and of all flows together.
    pub(super) fn uncount_overtaking(&mut self, flow: FlowId, units: usize) {
        debug_assert!(units <= self.overtaking_units, "more units than overtook");
        self.overtaking_units = self.overtaking_units.saturating_sub(units);
        if let Some(entry) = self.find_flow(flow) {
            entry.overtaking_units = entry.overtaking_units.saturating_sub(units);
        }
    }

    /// Removes the cancelled requests of `flow`. If other clients have waited behind such a request, its flow is
    /// charged as if the request had been granted. Otherwise a client that repeatedly requests and cancels large
    /// permits would always be first, and could block other clients without paying for it. Nothing is charged if
    /// `is_served`, because another request has obtained the permit for the same work.
    pub(super) fn remove_cancelled(&mut self, flow: FlowId, is_served: bool) {
        let is_charged = self.cost == CostBasis::Units && !is_served;
        // All cancelled requests together cost at most as much as a request for all units.
        let max_start_tag = self.virtual_time.saturating_add(self.total as u64);
        let Some(entry) = self.find_flow(flow) else { return };
        entry.queue.retain(|request| {
            let is_cancelled = request.sender.is_closed();
            if is_cancelled && is_charged && request.blocked_others.get() {
                let charged_tag = entry.start_tag.saturating_add(request.units as u64);
                entry.start_tag = entry.start_tag.max(charged_tag.min(max_start_tag));
            }
            !is_cancelled
        });
    }

    /// Grants `units` to `flow`. `taken` of them come from the free units.
    pub(super) fn grant(&mut self, flow: FlowId, units: usize, taken: usize) {
        self.overcommitted += taken.saturating_sub(self.free);
        self.free = self.free.saturating_sub(taken);
        let is_tracked = self.tracks_held_units();
        let is_charged = self.cost == CostBasis::Units;
        if is_tracked || self.find_flow(flow).is_some() {
            let entry = self.flow_mut(flow);
            let start_tag = entry.start_tag;
            if is_charged {
                entry.start_tag = start_tag.saturating_add(units as u64);
            }
            if is_tracked {
                entry.held_units += units;
            }
            self.virtual_time = self.virtual_time.max(start_tag);
        }
    }

    /// Releases `units`, which were held for `time`. The time is `None` if the permit never reached the waiting future.
    /// The flow then gets the cost of the units back.
    pub(super) fn release(&mut self, flow: FlowId, units: usize, kind: GrantKind, time: Option<Duration>) {
        let returned = if kind == GrantKind::Charged { 0 } else { units };
        let repaid = returned.min(self.overcommitted);
        self.overcommitted -= repaid;
        self.free += returned - repaid;
        if kind == GrantKind::Overtaking {
            self.uncount_overtaking(flow, units);
        }
        let is_tracked = self.tracks_held_units();
        let cost = self.cost;
        let Some(entry) = self.find_flow(flow) else { return };
        if is_tracked {
            entry.held_units = entry.held_units.saturating_sub(units);
        }
        entry.start_tag = match (cost, time) {
            (CostBasis::Units, None) => entry.start_tag.saturating_sub(units as u64),
            (CostBasis::Units, Some(_)) | (CostBasis::Time, None) => entry.start_tag,
            (CostBasis::Time, Some(time)) => {
                let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                entry.start_tag.saturating_add(nanoseconds.saturating_mul(units as u64))
            }
        };
    }

    /// Removes idle flows. While any request is waiting, a flow is kept if its start tag is above that of a new flow.
    /// Otherwise a client that makes one request after another would always begin with a new flow, and would be served
    /// before a client that makes many requests at once.
    fn remove_idle_flows(&mut self) {
        let has_waiters = self.flows.iter().any(|flow| !flow.queue.is_empty());
        let virtual_time = self.virtual_time;
        self.flows.retain(|flow| {
            flow.held_units > 0 || !flow.queue.is_empty() || has_waiters && flow.start_tag > virtual_time
        });
    }
}
