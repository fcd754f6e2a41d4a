//! The granted units, and the order in which waiting requests get theirs.

use std::collections::VecDeque;
use std::time::Duration;

use super::flow::{ClientQuota, Flow, PendingAcquire};
use super::permit::GrantKind;
use super::{ClientId, CostBasis, FlowId};

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
/// `all` units. The first client that overtakes gets at most half of the limit.
pub fn max_overtaking_units(all: usize, in_flight: usize) -> usize {
    (all / OVERTAKING_PERMIT_DIVISOR).min(in_flight / OVERTAKING_DIVISOR / 2)
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

    /// Returns true if there are enough free units for `place`. After [`resize`](super::FairSemaphore::resize), a
    /// request may need more units than there are. It gets them when nothing else is granted.
    fn has_units_for(&self, place: &PendingAcquire) -> bool {
        let needed = place.needed_free_units();
        needed <= self.free || needed > self.total && self.taken() == 0
    }

    /// Returns true if flows are kept while they hold units.
    pub(super) fn tracks_held_units(&self) -> bool {
        self.cost == CostBasis::Time || self.client_quota.among_others < self.total
    }

    pub(super) fn flow_mut(&mut self, party: FlowId) -> &mut Flow {
        let at = self.flows.iter().position(|line| line.id == party).unwrap_or_else(|| {
            self.flows.push(Flow {
                id: party,
                start_tag: self.virtual_time,
                held: 0,
                overtaking_units: 0,
                queue: VecDeque::new(),
            });
            self.flows.len() - 1
        });
        &mut self.flows[at]
    }

    /// Returns true if the client of `party` holds too many units to get this many more.
    ///
    /// If `beside` units must stay free, clients share the others: a client that is alone with its streams leaves some
    /// of the units that streams may have. For a stream, only the client's streams count. For other requests,
    /// everything counts that the client holds.
    pub(super) fn exceeds_client_quota(&self, party: FlowId, units: usize, beside: usize, is_stream: bool) -> bool {
        let client = party.0;
        if self.client_quota.among_others >= self.total || client == ClientId::default() {
            return false;
        }
        let (mut held, mut are_others) = (0usize, false);
        for line in &self.flows {
            if line.id == party || line.id.0 == client && !is_stream {
                held = held.saturating_add(line.held);
            } else if ![client, ClientId::default()].contains(&line.id.0) {
                are_others |= line.held > 0 || !line.queue.is_empty();
            }
        }
        let free = self.free.saturating_sub(self.occupied);
        let (all, free) = (self.total.saturating_sub(beside), free.saturating_sub(units.saturating_add(beside)));
        let most = self.client_quota.scaled_to(all, self.total);
        let most = if are_others { most.dynamic_threshold(all, free) } else { most.alone };
        held > 0 && held.saturating_add(units) > most
    }

    /// Removes and returns the request whose turn it is, if there are enough units for it. The units are granted to it.
    pub(super) fn grant_next(&mut self) -> Option<(FlowId, PendingAcquire)> {
        self.remove_idle_flows();
        let first = self.waiting_flows().min()?;
        // Sorted only if the turn of the first flow yields no grant.
        let (mut turn, mut later) = (first, None);
        let (mut is_streams_turn, mut most_units, mut most_of_client) = (true, usize::MAX, usize::MAX);
        // Computed for the first flow only.
        let mut are_owed = None;
        loop {
            let line = self.flows.get(turn.1)?;
            let party = line.id;
            for (at, place) in line.queue.iter().enumerate() {
                if place.stream.is_some() && !is_streams_turn {
                    break;
                }
                let units = place.units;
                // A client overtakes with few small requests, and not with streams.
                if most_units < usize::MAX
                    && (place.stream.is_some()
                        || units > most_units
                        || line.effective_overtaking_units().saturating_add(units) > most_of_client)
                {
                    break;
                }
                let is_too_much = self.exceeds_client_quota(party, units, place.reserve, place.stream.is_some());
                let is_owed = turn == first
                    && place.is_first_of_stream()
                    && *are_owed.get_or_insert_with(|| self.are_streams_starved(party.1));
                if !is_too_much && (self.has_units_for(place) || is_owed && self.has_units_for_starved_stream(units)) {
                    let mut place = self.flow_mut(party).queue.remove(at)?;
                    if most_units < usize::MAX && place.kind == GrantKind::InTurn {
                        place.kind = GrantKind::Overtaking;
                        self.overtaking_units += units;
                        self.flow_mut(party).overtaking_units += units;
                    }
                    self.grant(party, units, if place.kind == GrantKind::Charged { 0 } else { units });
                    return Some((party, place));
                }
                match &place.stream {
                    // The stream waits for its own client; requests behind it may go first.
                    Some(stream) if stream.strong_count() > 1 => {}
                    _ if is_too_much => break,
                    // Others wait for this request. Otherwise it would never get enough units.
                    Some(_) if !is_owed => {
                        self.note_blocking(party, place);
                        is_streams_turn = false;
                    }
                    // Small requests need not wait for units that others may hold for long.
                    _ => {
                        self.note_blocking(party, place);
                        let left =
                            self.overtaking_limit(place.needed_free_units()).saturating_sub(self.overtaking_units);
                        most_units = most_units
                            .min(max_overtaking_units(self.total, self.in_flight_capacity))
                            .min(left)
                            .min(self.free);
                        // One client overtakes with at most half of the rest, so that some is left for the next.
                        most_of_client = most_of_client.min(left / 2);
                        if most_units == 0 {
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
        let held = || self.flows.iter().filter(|line| line.id.1 == kind).map(|line| line.held).sum::<usize>();
        self.tracks_held_units() && held() < self.total / STARVED_STREAMS_DIVISOR
    }

    /// Returns true if there are enough free units for a starved stream that requests `units`.
    fn has_units_for_starved_stream(&self, units: usize) -> bool {
        units.saturating_add(self.total / STARVED_STREAMS_RESERVE_DIVISOR) <= self.free
    }

    /// Remembers that other clients wait behind a request of `party`, if any do.
    fn note_blocking(&self, party: FlowId, place: &PendingAcquire) {
        if self.flows.iter().any(|line| line.id.0 != party.0 && !line.queue.is_empty()) {
            place.blocked_others.set(true);
        }
    }

    /// Returns the maximum number of units of permits that may overtake a request for `needed` units. It is the number
    /// that the request leaves, and at least a small part. Otherwise a request for nearly all units would stop all
    /// other clients.
    fn overtaking_limit(&self, needed: usize) -> usize {
        let most = self.in_flight_capacity / OVERTAKING_DIVISOR;
        most.min(self.in_flight_capacity.saturating_sub(needed)).max(most / MIN_OVERTAKING_DIVISOR)
    }

    /// Returns the `start_tag` and the index of each flow in which requests wait.
    fn waiting_flows(&self) -> impl Iterator<Item = (u64, usize)> {
        let lines = self.flows.iter().enumerate().filter(|(_, line)| !line.queue.is_empty());
        lines.map(|(at, line)| (line.start_tag, at))
    }

    /// Records that `units` with which `party` overtook others are released, or no longer count as overtaking.
    pub(super) fn uncount_overtaking(&mut self, party: FlowId, units: usize) {
        debug_assert!(units <= self.overtaking_units, "more units than overtook");
        self.overtaking_units = self.overtaking_units.saturating_sub(units);
        if let Some(line) = self.flows.iter_mut().find(|line| line.id == party) {
            line.overtaking_units = line.overtaking_units.saturating_sub(units);
        }
    }

    /// Removes the cancelled requests of `party`. If others had to wait for such a request, its flow is charged as if
    /// the request had been granted. Otherwise a client that repeatedly requests large permits and cancels would always
    /// be first, and stop others at no cost. Nothing is charged if `is_served`: the work has got a permit through
    /// another request.
    pub(super) fn remove_cancelled(&mut self, party: FlowId, is_served: bool) {
        let is_charged = self.cost == CostBasis::Units && !is_served;
        // However many requests are cancelled together, others go first only until all units have been granted once.
        let most = self.virtual_time.saturating_add(self.total as u64);
        let Some(line) = self.flows.iter_mut().find(|line| line.id == party) else { return };
        line.queue.retain(|place| {
            let is_left = place.sender.is_closed();
            if is_left && is_charged && place.blocked_others.get() {
                let spent = line.start_tag.saturating_add(place.units as u64);
                line.start_tag = line.start_tag.max(spent.min(most));
            }
            !is_left
        });
    }

    /// Grants `units` to `party`, of which `taken` come from the free units.
    pub(super) fn grant(&mut self, party: FlowId, units: usize, taken: usize) {
        self.overcommitted += taken.saturating_sub(self.free);
        self.free = self.free.saturating_sub(taken);
        let (is_counted, cost) = (self.tracks_held_units(), self.cost);
        let is_known = self.flows.iter().any(|line| line.id == party);
        if is_known || is_counted {
            let line = self.flow_mut(party);
            let spent = line.start_tag;
            if cost == CostBasis::Units {
                line.start_tag = spent.saturating_add(units as u64);
            }
            if is_counted {
                line.held += units;
            }
            self.virtual_time = self.virtual_time.max(spent);
        }
    }

    /// Releases `units`, which were held for `time`. The time is `None` if they never reached their receiver.
    pub(super) fn release(&mut self, party: FlowId, units: usize, kind: GrantKind, time: Option<Duration>) {
        let returned = if kind == GrantKind::Charged { 0 } else { units };
        let paid = returned.min(self.overcommitted);
        self.overcommitted -= paid;
        self.free += returned - paid;
        if kind == GrantKind::Overtaking {
            self.uncount_overtaking(party, units);
        }
        let (is_counted, cost) = (self.tracks_held_units(), self.cost);
        let Some(line) = self.flows.iter_mut().find(|line| line.id == party) else { return };
        if is_counted {
            line.held = line.held.saturating_sub(units);
        }
        line.start_tag = match (cost, time) {
            (CostBasis::Units, None) => line.start_tag.saturating_sub(units as u64),
            (CostBasis::Units, Some(_)) | (CostBasis::Time, None) => line.start_tag,
            (CostBasis::Time, Some(time)) => {
                let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                line.start_tag.saturating_add(nanoseconds.saturating_mul(units as u64))
            }
        };
    }

    /// Removes idle flows. While any request waits, a flow is kept if its `start_tag` is above that of a new flow.
    /// Otherwise a client that repeatedly requests one permit would always begin anew, and go before a client that
    /// requests many at once.
    fn remove_idle_flows(&mut self) {
        let is_wanted = self.flows.iter().any(|line| !line.queue.is_empty());
        let clock = self.virtual_time;
        self.flows.retain(|line| line.held > 0 || !line.queue.is_empty() || is_wanted && line.start_tag > clock);
    }
}
