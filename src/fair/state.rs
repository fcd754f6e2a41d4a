//! The units that are lent out, and the order in which clients that wait get theirs.

use std::collections::VecDeque;
use std::time::Duration;

use super::line::{Line, Most, Place};
use super::share::Kind;
use super::{Client, Cost, Party};

/// A share of at most one part in so many of all units may pass a larger one that waits until others give back enough.
const SMALL_PART: usize = 64;

/// Shares that pass others are together at most one part in so many of the units that no cache fills.
const PASSING_PART: usize = 8;

/// They are at least one part in so many of that where a larger share that waits leaves less.
const LEAST_PASSING_PART: usize = 4;

/// While streams have less than one part in so many of all units, they take turns with others and leave no more than one part in
/// so many: else answers that are not streamed would take all that is given back, for as long as there are some.
const OWED_PART: usize = 2;
const OWED_LEFT_PART: usize = 16;

/// Most units of a share that may pass larger ones, where `in_flight` of `all` are filled by no cache. The first client that passes has
/// at most half of what may pass.
pub fn small_units(all: usize, in_flight: usize) -> usize {
    (all / SMALL_PART).min(in_flight / PASSING_PART / 2)
}

/// Units of [`Shares`](super::Shares), and the lines of those who wait for them.
#[derive(Debug)]
pub(super) struct State {
    pub(super) all: usize,
    pub(super) free: usize,
    /// Units that are lent beyond all.
    pub(super) owed: usize,
    /// Of these, units that are in use although they are lent to no client.
    pub(super) occupied: usize,
    /// Units that no cache fills.
    pub(super) in_flight: usize,
    /// Units of shares that passed others.
    pub(super) passed: usize,
    pub(super) cost: Cost,
    /// Most units of one client, unless it gets them in one share. The server's own are not bounded.
    pub(super) most: Most,
    /// The `spent` of the line that was served last, before it was served. New lines begin with it.
    pub(super) clock: u64,
    /// Those in which a request waits; those that hold units, where that counts; and, while others wait, those that have spent more
    /// than `clock`.
    pub(super) lines: Vec<Line>,
}

impl State {
    /// Units that are lent.
    pub(super) fn taken(&self) -> usize {
        self.all + self.owed - self.free
    }

    /// Returns true if there are enough free units for `place`. After [`resize`](super::Shares::resize) a place may need more units than
    /// there are; it gets them when nothing else is lent.
    fn is_enough_for(&self, place: &Place) -> bool {
        let needed = place.needed();
        needed <= self.free || needed > self.all && self.taken() == 0
    }

    /// Returns true if lines are kept as long as they hold units.
    pub(super) fn is_counted(&self) -> bool {
        self.cost == Cost::Time || self.most.among_others < self.all
    }

    pub(super) fn line(&mut self, party: Party) -> &mut Line {
        let at = self.lines.iter().position(|line| line.party == party).unwrap_or_else(|| {
            self.lines.push(Line { party, spent: self.clock, held: 0, passed: 0, waiting: VecDeque::new() });
            self.lines.len() - 1
        });
        &mut self.lines[at]
    }

    /// Returns true if `party`'s client has too many units to get so many more.
    ///
    /// Where `beside` units must stay free, clients share the others: a client that is alone with its streams leaves some of what
    /// streams may have. For a share of a stream, only the client's streams count; for others, all that the client holds.
    pub(super) fn is_too_much(&self, party: Party, units: usize, beside: usize, is_stream: bool) -> bool {
        let client = party.0;
        if self.most.among_others >= self.all || client == Client::default() {
            return false;
        }
        let (mut held, mut are_others) = (0usize, false);
        for line in &self.lines {
            if line.party == party || line.party.0 == client && !is_stream {
                held = held.saturating_add(line.held);
            } else if ![client, Client::default()].contains(&line.party.0) {
                are_others |= line.held > 0 || !line.waiting.is_empty();
            }
        }
        let free = self.free.saturating_sub(self.occupied);
        let (all, free) = (self.all.saturating_sub(beside), free.saturating_sub(units.saturating_add(beside)));
        let most = self.most.of(all, self.all);
        let most = if are_others { most.among(all, free) } else { most.alone };
        held > 0 && held.saturating_add(units) > most
    }

    /// The place whose turn it is, where there is enough for it; it is given its units.
    pub(super) fn next(&mut self) -> Option<(Party, Place)> {
        self.tidy();
        let first = self.turns().min()?;
        // Sorted only where the first one's turn comes to nothing.
        let (mut turn, mut later) = (first, None);
        let (mut is_streams_turn, mut most_units, mut most_of_client) = (true, usize::MAX, usize::MAX);
        // Of the first line.
        let mut are_owed = None;
        loop {
            let line = self.lines.get(turn.1)?;
            let party = line.party;
            for (at, place) in line.waiting.iter().enumerate() {
                if place.stream.is_some() && !is_streams_turn {
                    break;
                }
                let units = place.units;
                // A client passes with few small shares, and not with streams.
                if most_units < usize::MAX
                    && (place.stream.is_some()
                        || units > most_units
                        || line.counts_as_passed().saturating_add(units) > most_of_client)
                {
                    break;
                }
                let is_too_much = self.is_too_much(party, units, place.beside, place.stream.is_some());
                let is_owed = turn == first
                    && place.begins_stream()
                    && *are_owed.get_or_insert_with(|| self.are_streams_owed(party.1));
                if !is_too_much && (self.is_enough_for(place) || is_owed && self.has_owed(units)) {
                    let mut place = self.line(party).waiting.remove(at)?;
                    if most_units < usize::MAX && place.kind == Kind::Taken {
                        place.kind = Kind::Passed;
                        self.passed += units;
                        self.line(party).passed += units;
                    }
                    self.give(party, units, if place.kind == Kind::Counted { 0 } else { units });
                    return Some((party, place));
                }
                match &place.stream {
                    // It waits for its own client; places behind it may go first.
                    Some(stream) if stream.strong_count() > 1 => {}
                    _ if is_too_much => break,
                    // Others wait for it, else it would never have enough.
                    Some(_) if !is_owed => {
                        self.stops_others(party, place);
                        is_streams_turn = false;
                    }
                    // Small shares need not wait for what others may keep for long.
                    _ => {
                        self.stops_others(party, place);
                        let left = self.passing_beside(place.needed()).saturating_sub(self.passed);
                        most_units = most_units.min(small_units(self.all, self.in_flight)).min(left).min(self.free);
                        // One client passes with at most half of what is left, so that some is left for the next.
                        most_of_client = most_of_client.min(left / 2);
                        if most_units == 0 {
                            return None;
                        }
                        break;
                    }
                }
            }
            let later = later.get_or_insert_with(|| {
                let mut later: Vec<_> = self.turns().filter(|turn| *turn > first).collect();
                later.sort_unstable();
                later.into_iter()
            });
            turn = later.next()?;
        }
    }

    /// Returns true if all streams, which are the lines of this kind, have little.
    pub(super) fn are_streams_owed(&self, kind: u64) -> bool {
        let held = || self.lines.iter().filter(|line| line.party.1 == kind).map(|line| line.held).sum::<usize>();
        self.is_counted() && held() < self.all / OWED_PART
    }

    /// Returns true if there are enough free units for a stream of so many that is owed some.
    fn has_owed(&self, units: usize) -> bool {
        units.saturating_add(self.all / OWED_LEFT_PART) <= self.free
    }

    /// Remembers that other clients wait behind a place of `party`, if any do.
    fn stops_others(&self, party: Party, place: &Place) {
        if self.lines.iter().any(|line| line.party.0 != party.0 && !line.waiting.is_empty()) {
            place.has_stopped_others.set(true);
        }
    }

    /// Most units of shares that may pass one which needs `needed`: what that one leaves, and at least a small part, so that a share
    /// of nearly all units does not stop all other clients.
    fn passing_beside(&self, needed: usize) -> usize {
        let most = self.in_flight / PASSING_PART;
        most.min(self.in_flight.saturating_sub(needed)).max(most / LEAST_PASSING_PART)
    }

    /// The lines in which requests wait: what they have spent, and where they are.
    fn turns(&self) -> impl Iterator<Item = (u64, usize)> {
        let lines = self.lines.iter().enumerate().filter(|(_, line)| !line.waiting.is_empty());
        lines.map(|(at, line)| (line.spent, at))
    }

    /// So many units of shares with which `party` passed others are given back, or are no longer such.
    pub(super) fn forget_passed(&mut self, party: Party, units: usize) {
        debug_assert!(units <= self.passed, "more than passed");
        self.passed = self.passed.saturating_sub(units);
        if let Some(line) = self.lines.iter_mut().find(|line| line.party == party) {
            line.passed = line.passed.saturating_sub(units);
        }
    }

    /// Removes the places of `party` that were given up. One that others had to wait for costs what it would have held: a client that
    /// asks for large shares again and again, and gives them up, would always be first and stop the others at no cost.
    /// It costs nothing if `is_served`: its work has a share by another place.
    pub(super) fn leave(&mut self, party: Party, is_served: bool) {
        let is_charged = self.cost == Cost::Units && !is_served;
        // However many are given up together, others go first only until all units have been lent once.
        let most = self.clock.saturating_add(self.all as u64);
        let Some(line) = self.lines.iter_mut().find(|line| line.party == party) else { return };
        line.waiting.retain(|place| {
            let is_left = place.sender.is_closed();
            if is_left && is_charged && place.has_stopped_others.get() {
                let spent = line.spent.saturating_add(place.units as u64);
                line.spent = line.spent.max(spent.min(most));
            }
            !is_left
        });
    }

    /// `taken` of the units were free.
    pub(super) fn give(&mut self, party: Party, units: usize, taken: usize) {
        self.owed += taken.saturating_sub(self.free);
        self.free = self.free.saturating_sub(taken);
        let (is_counted, cost) = (self.is_counted(), self.cost);
        let is_known = self.lines.iter().any(|line| line.party == party);
        if is_known || is_counted {
            let line = self.line(party);
            let spent = line.spent;
            if cost == Cost::Units {
                line.spent = spent.saturating_add(units as u64);
            }
            if is_counted {
                line.held += units;
            }
            self.clock = self.clock.max(spent);
        }
    }

    /// Takes `units` back, which were kept for `time`; `None` if they never reached their receiver.
    pub(super) fn take_back(&mut self, party: Party, units: usize, kind: Kind, time: Option<Duration>) {
        let returned = if kind == Kind::Counted { 0 } else { units };
        let paid = returned.min(self.owed);
        self.owed -= paid;
        self.free += returned - paid;
        if kind == Kind::Passed {
            self.forget_passed(party, units);
        }
        let (is_counted, cost) = (self.is_counted(), self.cost);
        let Some(line) = self.lines.iter_mut().find(|line| line.party == party) else { return };
        if is_counted {
            line.held = line.held.saturating_sub(units);
        }
        line.spent = match (cost, time) {
            (Cost::Units, None) => line.spent.saturating_sub(units as u64),
            (Cost::Units, Some(_)) | (Cost::Time, None) => line.spent,
            (Cost::Time, Some(time)) => {
                let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                line.spent.saturating_add(nanoseconds.saturating_mul(units as u64))
            }
        };
    }

    /// Forgets lines. While any client waits, one that has spent more than those that come begin with is not forgotten: a client
    /// that asks again and again for one share would always begin anew, and go before one that asks for many at once.
    fn tidy(&mut self) {
        let is_wanted = self.lines.iter().any(|line| !line.waiting.is_empty());
        let clock = self.clock;
        self.lines.retain(|line| line.held > 0 || !line.waiting.is_empty() || is_wanted && line.spent > clock);
    }
}
