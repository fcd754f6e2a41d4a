//! The granted units, and the order in which waiting requests get theirs.

use std::collections::VecDeque;
use std::time::Duration;

use super::flow::{ClientId, ClientQuota, Flow, FlowId, GrantKind, PendingAcquire};

/// A permit of at most one in this many of all units may overtake a larger request, which waits until others release
/// enough.
const OVERTAKING_PERMIT_DIVISOR: usize = 64;

/// Limit of all permits that overtake others: one in this many of the units that no cache fills.
const OVERTAKING_DIVISOR: usize = 8;

/// If a larger request leaves less than that limit, permits may still overtake it with one in this many of the limit.
const MIN_OVERTAKING_DIVISOR: usize = 4;

/// While streams hold less than one in `STARVED_STREAMS_DIVISOR` of all units, they take turns with other requests and
/// leave only one in `STARVED_STREAMS_RESERVE_DIVISOR` free. Otherwise answers that are not streamed would take all
/// released units while there are such answers.
const STARVED_STREAMS_DIVISOR: usize = 2;
const STARVED_STREAMS_RESERVE_DIVISOR: usize = 16;

/// Returns the maximum number of units of a permit that may overtake larger requests, if no cache fills `in_flight` of
/// `total` units. The first client that overtakes gets at most half of the limit.
pub fn max_overtaking_units(total: usize, in_flight: usize) -> usize {
    (total / OVERTAKING_PERMIT_DIVISOR).min(in_flight / OVERTAKING_DIVISOR / 2)
}

/// Measure of the service that a flow has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostBasis {
    /// Number of units granted.
    Units,
    /// Time for which units are held.
    Time,
}

/// Units of a [`FairSemaphore`](super::FairSemaphore), and the flows that wait for them.
#[derive(Debug)]
pub(super) struct FairSemaphoreState {
    pub(super) total: usize,
    pub(super) free: usize,
    /// Units that are granted beyond `total`.
    pub(super) overcommitted: usize,
    /// Of `total`, units that are in use although they are granted to no client.
    pub(super) occupied: usize,
    /// Units that no cache fills.
    pub(super) in_flight_capacity: usize,
    /// Units of permits that overtook others.
    pub(super) overtaking_units: usize,
    pub(super) cost: CostBasis,
    /// Maximum number of units of one client, unless it gets them in one permit. The server's own are not limited.
    pub(super) client_quota: ClientQuota,
    /// The `start_tag` that the last served flow had before it was served. New flows begin with it.
    pub(super) virtual_time: u64,
    /// Flows in which a request waits; flows that hold units, if held units are tracked; and, while others wait, flows
    /// whose `start_tag` is above `virtual_time`.
    pub(super) flows: Vec<Flow>,
}

impl FairSemaphoreState {
    /// Returns the number of granted units.
    pub(super) fn taken(&self) -> usize {
        self.total + self.overcommitted - self.free
    }

    /// Returns true if there are enough free units for `request`. After [`resize`](super::FairSemaphore::resize), a
    /// request may need more units than there are. It gets them when nothing else is granted.
    fn has_units_for(&self, request: &PendingAcquire) -> bool {
        let needed = request.needed_free_units();
        needed <= self.free || needed > self.total && self.taken() == 0
    }

    /// Returns true if flows are kept while they hold units.
    pub(super) fn tracks_held_units(&self) -> bool {
        self.cost == CostBasis::Time || self.client_quota.among_others < self.total
    }

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

    /// Returns true if the client of `flow` holds too many units to get this many more.
    ///
    /// If `reserve` units must stay free, clients share the others: a client that is alone with its streams leaves some
    /// of the units that streams may have. For a stream, only the client's streams count. For other requests,
    /// everything counts that the client holds.
    pub(super) fn exceeds_client_quota(&self, flow: FlowId, units: usize, reserve: usize, is_stream: bool) -> bool {
        let client = flow.0;
        if self.client_quota.among_others >= self.total || client == ClientId::default() {
            return false;
        }
        let (mut held_units, mut has_others) = (0usize, false);
        for other in &self.flows {
            if other.id == flow || other.id.0 == client && !is_stream {
                held_units = held_units.saturating_add(other.held_units);
            } else if ![client, ClientId::default()].contains(&other.id.0) {
                has_others |= other.held_units > 0 || !other.queue.is_empty();
            }
        }
        let free = self.free.saturating_sub(self.occupied);
        let (shared_units, free) =
            (self.total.saturating_sub(reserve), free.saturating_sub(units.saturating_add(reserve)));
        let quota = self.client_quota.scaled_to(shared_units, self.total);
        let max_units = if has_others { quota.dynamic_threshold(shared_units, free) } else { quota.alone };
        held_units > 0 && held_units.saturating_add(units) > max_units
    }

    /// Removes and returns the request whose turn it is, if there are enough units for it. The units are granted to it.
    pub(super) fn grant_next(&mut self) -> Option<(FlowId, PendingAcquire)> {
        self.remove_idle_flows();
        let first = self.waiting_flows().min()?;
        // Sorted only if the turn of the first flow yields no grant.
        let (mut turn, mut later) = (first, None);
        let (mut may_grant_streams, mut max_units, mut max_client_units) = (true, usize::MAX, usize::MAX);
        // Computed for the first flow only.
        let mut are_streams_starved = None;
        loop {
            let current = self.flows.get(turn.1)?;
            let flow = current.id;
            for (index, request) in current.queue.iter().enumerate() {
                if request.stream.is_some() && !may_grant_streams {
                    break;
                }
                let units = request.units;
                // A client overtakes with few small requests, and not with streams.
                if max_units < usize::MAX
                    && (request.stream.is_some()
                        || units > max_units
                        || current.effective_overtaking_units().saturating_add(units) > max_client_units)
                {
                    break;
                }
                let exceeds_quota = self.exceeds_client_quota(flow, units, request.reserve, request.stream.is_some());
                let is_starved_stream = turn == first
                    && request.is_first_of_stream()
                    && *are_streams_starved.get_or_insert_with(|| self.are_streams_starved(flow.1));
                if !exceeds_quota
                    && (self.has_units_for(request) || is_starved_stream && self.has_units_for_starved_stream(units))
                {
                    let mut request = self.flow_mut(flow).queue.remove(index)?;
                    if max_units < usize::MAX && request.kind == GrantKind::InTurn {
                        request.kind = GrantKind::Overtaking;
                        self.overtaking_units += units;
                        self.flow_mut(flow).overtaking_units += units;
                    }
                    self.grant(flow, units, if request.kind == GrantKind::Charged { 0 } else { units });
                    return Some((flow, request));
                }
                match &request.stream {
                    // The stream waits for its own client; requests behind it may go first.
                    Some(stream) if stream.strong_count() > 1 => {}
                    _ if exceeds_quota => break,
                    // Others wait for this request. Otherwise it would never get enough units.
                    Some(_) if !is_starved_stream => {
                        self.note_blocking(flow, request);
                        may_grant_streams = false;
                    }
                    // Small requests need not wait for units that others may hold for long.
                    _ => {
                        self.note_blocking(flow, request);
                        let remaining_units =
                            self.overtaking_limit(request.needed_free_units()).saturating_sub(self.overtaking_units);
                        max_units = max_units
                            .min(max_overtaking_units(self.total, self.in_flight_capacity))
                            .min(remaining_units)
                            .min(self.free);
                        // One client overtakes with at most half of the rest, so that some is left for the next.
                        max_client_units = max_client_units.min(remaining_units / 2);
                        if max_units == 0 {
                            return None;
                        }
                        break;
                    }
                }
            }
            let later = later.get_or_insert_with(|| {
                let mut later: Vec<_> = self.waiting_flows().filter(|turn| *turn > first).collect();
                later.sort_unstable();
                later.into_iter()
            });
            turn = later.next()?;
        }
    }

    /// Returns true if all streams together, which are the flows of this kind, hold few units.
    pub(super) fn are_streams_starved(&self, kind: u64) -> bool {
        let held_units =
            || self.flows.iter().filter(|flow| flow.id.1 == kind).map(|flow| flow.held_units).sum::<usize>();
        self.tracks_held_units() && held_units() < self.total / STARVED_STREAMS_DIVISOR
    }

    /// Returns true if there are enough free units for a starved stream that requests `units`.
    fn has_units_for_starved_stream(&self, units: usize) -> bool {
        units.saturating_add(self.total / STARVED_STREAMS_RESERVE_DIVISOR) <= self.free
    }

    /// Remembers that other clients wait behind a request of `flow`, if any do.
    fn note_blocking(&self, flow: FlowId, request: &PendingAcquire) {
        if self.flows.iter().any(|other| other.id.0 != flow.0 && !other.queue.is_empty()) {
            request.blocked_others.set(true);
        }
    }

    /// Returns the maximum number of units in permits that may overtake a waiting request for `needed` units: the units
    /// that remain free once that request is granted. A small fixed share may always overtake, because a request for
    /// nearly all units would otherwise stop all other clients.
    fn overtaking_limit(&self, needed: usize) -> usize {
        let limit = self.in_flight_capacity / OVERTAKING_DIVISOR;
        limit.min(self.in_flight_capacity.saturating_sub(needed)).max(limit / MIN_OVERTAKING_DIVISOR)
    }

    /// Returns the `start_tag` and the index of each flow in which requests wait.
    fn waiting_flows(&self) -> impl Iterator<Item = (u64, usize)> {
        let waiting = self.flows.iter().enumerate().filter(|(_, flow)| !flow.queue.is_empty());
        waiting.map(|(index, flow)| (flow.start_tag, index))
    }

    fn find_flow(&mut self, flow: FlowId) -> Option<&mut Flow> {
        self.flows.iter_mut().find(|candidate| candidate.id == flow)
    }

    /// Counts `units` that the flow `from` holds for `to`, if held units are tracked.
    pub(super) fn move_held_units(&mut self, from: FlowId, to: FlowId, units: usize) {
        if from != to && self.tracks_held_units() {
            let flow = self.flow_mut(from);
            flow.held_units = flow.held_units.saturating_sub(units);
            self.flow_mut(to).held_units += units;
        }
    }

    /// Records that `units` with which `flow` overtook others are released, or no longer count as overtaking.
    pub(super) fn uncount_overtaking(&mut self, flow: FlowId, units: usize) {
        debug_assert!(units <= self.overtaking_units, "more units than overtook");
        self.overtaking_units = self.overtaking_units.saturating_sub(units);
        if let Some(entry) = self.find_flow(flow) {
            entry.overtaking_units = entry.overtaking_units.saturating_sub(units);
        }
    }

    /// Removes the cancelled requests of `flow`. If others had to wait for such a request, its flow is charged as if
    /// the request had been granted. Otherwise a client that repeatedly requests large permits and cancels would always
    /// be first, and stop others at no cost. Nothing is charged if `is_served`: the work has got a permit through
    /// another request.
    pub(super) fn remove_cancelled(&mut self, flow: FlowId, is_served: bool) {
        let is_charged = self.cost == CostBasis::Units && !is_served;
        // However many requests are cancelled together, others go first only until all units have been granted once.
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

    /// Grants `units` to `flow`, of which `taken` come from the free units.
    pub(super) fn grant(&mut self, flow: FlowId, units: usize, taken: usize) {
        self.overcommitted += taken.saturating_sub(self.free);
        self.free = self.free.saturating_sub(taken);
        let (is_counted, cost) = (self.tracks_held_units(), self.cost);
        if is_counted || self.find_flow(flow).is_some() {
            let entry = self.flow_mut(flow);
            let start_tag = entry.start_tag;
            if cost == CostBasis::Units {
                entry.start_tag = start_tag.saturating_add(units as u64);
            }
            if is_counted {
                entry.held_units += units;
            }
            self.virtual_time = self.virtual_time.max(start_tag);
        }
    }

    /// Releases `units`, which were held for `time`. The time is `None` if they never reached their receiver.
    pub(super) fn release(&mut self, flow: FlowId, units: usize, kind: GrantKind, time: Option<Duration>) {
        let returned = if kind == GrantKind::Charged { 0 } else { units };
        let repaid = returned.min(self.overcommitted);
        self.overcommitted -= repaid;
        self.free += returned - repaid;
        if kind == GrantKind::Overtaking {
            self.uncount_overtaking(flow, units);
        }
        let (is_counted, cost) = (self.tracks_held_units(), self.cost);
        let Some(entry) = self.find_flow(flow) else { return };
        if is_counted {
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

    /// Removes idle flows. While any request waits, a flow is kept if its `start_tag` is above that of a new flow.
    /// Otherwise a client that repeatedly requests one permit would always begin anew, and go before a client that
    /// requests many at once.
    fn remove_idle_flows(&mut self) {
        let has_waiters = self.flows.iter().any(|flow| !flow.queue.is_empty());
        let virtual_time = self.virtual_time;
        self.flows.retain(|flow| {
            flow.held_units > 0 || !flow.queue.is_empty() || has_waiters && flow.start_tag > virtual_time
        });
    }
}
