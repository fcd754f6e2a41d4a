//! The units that are lent out, and the order in which clients that wait get theirs.

use std::collections::VecDeque;
use std::time::Duration;

use super::line::{Line, Most, Place};
use super::share::Kind;
use super::{Client, Cost, Party};

/// A share of at most one part in so many of all units may pass a larger one that waits until others give back enough.
pub const SMALL_PART: usize = 64;

/// Shares that pass others are together at most one part in so many of the units that no cache fills.
const PASSING_PART: usize = 8;

/// They are at least one part in so many of that where a larger share that waits leaves less.
const LEAST_PASSING_PART: usize = 4;

/// Units of [`Shares`](super::Shares), and the lines of those who wait for them.
#[derive(Debug)]
pub(super) struct State {
    pub(super) all: usize,
    pub(super) free: usize,
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
    /// Returns true if lines are kept as long as they hold units.
    pub(super) fn is_counted(&self) -> bool {
        self.cost == Cost::Time || self.most.among_others < self.all
    }

    pub(super) fn line(&mut self, party: Party) -> &mut Line {
        let at = self.lines.iter().position(|line| line.party == party).unwrap_or_else(|| {
            self.lines.push(Line { party, spent: self.clock, held: 0, waiting: VecDeque::new() });
            self.lines.len() - 1
        });
        &mut self.lines[at]
    }

    /// Returns true if `party`'s client has too many units to get so many more.
    ///
    /// Where `beside` units must stay free, clients share the others: a client that is alone with its streams leaves some of what
    /// streams may have. Of a stream, only what streams hold counts: short answers do not wait for it.
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
        let (all, free) = (self.all.saturating_sub(beside), self.free.saturating_sub(units.saturating_add(beside)));
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
        let (mut is_streams_turn, mut most_units, mut most_held) = (true, usize::MAX, usize::MAX);
        loop {
            let line = self.lines.get(turn.1)?;
            let party = line.party;
            for (at, place) in line.waiting.iter().enumerate() {
                if place.stream.is_some() && !is_streams_turn {
                    break;
                }
                let units = place.units;
                // A client passes with small shares, of which it holds few, and not with streams.
                if most_units < usize::MAX
                    && (place.stream.is_some()
                        || units > most_units
                        || self.held(party.0).saturating_add(units) > most_held)
                {
                    break;
                }
                let is_too_much = self.is_too_much(party, units, place.beside, place.stream.is_some());
                if !is_too_much && place.needed() <= self.free {
                    let mut place = self.line(party).waiting.remove(at)?;
                    if most_units < usize::MAX && place.kind == Kind::Taken {
                        place.kind = Kind::Passed;
                        self.passed += units;
                    }
                    self.give(party, units, if place.kind == Kind::Counted { 0 } else { units });
                    return Some((party, place));
                }
                match &place.stream {
                    // It waits for its own client; places behind it may go first.
                    Some(stream) if stream.strong_count() > 1 => {}
                    _ if is_too_much => break,
                    // Others wait for it, else it would never have enough.
                    Some(_) => is_streams_turn = false,
                    // Small shares need not wait for what others may keep for long.
                    None => {
                        let left = self.passing_beside(place.needed()).saturating_sub(self.passed);
                        most_units = most_units.min(self.all / SMALL_PART).min(left).min(self.free);
                        // As for all that clients share: however many of them take what they can get, some is left.
                        most_held = most_held.min(left / 2);
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

    /// Most units of shares that pass one which needs so many: as many as it can do without. A share of nearly all would let none
    /// pass, and stop all other clients again and again, so that some pass in any case.
    fn passing_beside(&self, needed: usize) -> usize {
        let most = self.in_flight / PASSING_PART;
        most.min(self.in_flight.saturating_sub(needed)).max(most / LEAST_PASSING_PART)
    }

    /// Units that a client holds; none of the server, which is not bounded.
    fn held(&self, client: Client) -> usize {
        if client == Client::default() {
            return 0;
        }
        self.lines.iter().filter(|line| line.party.0 == client).map(|line| line.held).sum()
    }

    /// The lines in which requests wait: what they have spent, and where they are.
    fn turns(&self) -> impl Iterator<Item = (u64, usize)> {
        let lines = self.lines.iter().enumerate().filter(|(_, line)| !line.waiting.is_empty());
        lines.map(|(at, line)| (line.spent, at))
    }

    /// So many units of shares that passed others are given back, or are no longer such.
    pub(super) fn forget_passed(&mut self, units: usize) {
        debug_assert!(units <= self.passed, "more than passed");
        self.passed = self.passed.saturating_sub(units);
    }

    /// `taken` of the units were free.
    pub(super) fn give(&mut self, party: Party, units: usize, taken: usize) {
        self.free -= taken;
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
        self.free += if kind == Kind::Counted { 0 } else { units };
        if kind == Kind::Passed {
            self.forget_passed(units);
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
