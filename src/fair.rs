//! Shares of what is scarce, memory or cores: whoever waits does so in a line of its own party, and the next share goes to the
//! line that has had the least. One that wants much, or keeps it long, delays others by one share, not by all of its own.

mod joint;
mod line;
mod share;
mod state;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::oneshot;

pub use joint::{Joined, Joints, Keeper, hold, keeper, leading};
pub use line::Most;
pub use share::Share;
pub use state::small_units;

use line::Place;
use share::Kind;
use state::State;

tokio::task_local! {
    static CLIENT: Client;
}

/// Whose work something is; equal numbers are one client. The default is the server's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Client(u64);

impl Client {
    /// The client of that number.
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// For whom the running task works, as far as it was said.
    pub fn current() -> Self {
        CLIENT.try_with(|client| *client).unwrap_or_default()
    }

    /// Does `work` for this client. What it spawns does not know of that by itself.
    pub fn works<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CLIENT.scope(self, work)
    }
}

/// Who stands in one line: a client, and what it wants there.
pub type Party = (Client, u64);

/// What counts as having had much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// To get many units.
    Units,
    /// To keep one for long.
    Time,
}

/// A number of units that are lent out in shares. Cheap to clone; clones share them.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Mutex<State>>);

impl Shares {
    /// So many units, of which one client has at most `most`, or one share that is larger.
    pub fn new(units: usize, most: Most, cost: Cost) -> Self {
        Self::with_cache(0, units, most, cost)
    }

    /// As [`Self::new`], of `in_flight` units and those that a cache may fill.
    pub fn with_cache(cached: usize, in_flight: usize, most: Most, cost: Cost) -> Self {
        let units = cached.saturating_add(in_flight);
        Self(Arc::new(Mutex::new(State {
            all: units,
            free: units,
            owed: 0,
            occupied: 0,
            in_flight,
            passed: 0,
            cost,
            most,
            clock: 0,
            lines: Vec::new(),
        })))
    }

    /// Whether somebody waits.
    pub fn is_wanted(&self) -> bool {
        self.state().lines.iter().any(|line| !line.waiting.is_empty())
    }

    /// Whether another client than `client` waits.
    pub fn is_wanted_beside(&self, client: Client) -> bool {
        self.state().lines.iter().any(|line| line.party.0 != client && !line.waiting.is_empty())
    }

    /// Gives `share` back, and has the thread wait until it is the turn of its party again, of which it goes first.
    pub fn lend(&self, share: Share) -> Share {
        let (party, units) = (share.party, share.units);
        let (sender, receiver) = oneshot::channel();
        self.state().line(party).waiting.push_front(Place::new(units, Kind::Taken, sender));
        // After that: what the line has spent is forgotten when it has nothing and waits for nothing.
        drop(share);
        // A sender goes with a share.
        receiver.blocking_recv().unwrap_or_else(|_| self.share(party, 0, Kind::Taken))
    }

    /// Units that are not lent.
    pub fn free(&self) -> usize {
        self.state().free
    }

    /// Units that are lent.
    pub fn taken(&self) -> usize {
        self.state().taken()
    }

    /// Changes the number of units. Where more are lent than there are now, the surplus is not lent again when it is returned.
    pub fn resize(&self, cached: usize, in_flight: usize, most: Most) {
        let mut state = self.state();
        let (units, taken) = (cached.saturating_add(in_flight), state.taken());
        *state = State {
            all: units,
            free: units.saturating_sub(taken),
            owed: taken.saturating_sub(units),
            in_flight,
            most,
            lines: std::mem::take(&mut state.lines),
            ..*state
        };
        drop(state);
        self.hand_out();
    }

    /// A share for `party`, where there is one and no other waits for it.
    pub fn try_take(&self, party: Party, units: usize) -> Option<Share> {
        self.try_take_leaving(party, units, 0)
    }

    /// As [`Self::try_take`], where `beside` units are left free for others.
    pub fn try_take_leaving(&self, party: Party, units: usize, beside: usize) -> Option<Share> {
        let mut state = self.state();
        // Lines of others that wait for what their own clients have are in no one's way.
        let mut owing = None;
        let is_first = state.lines.iter().all(|line| {
            // There may be thousands of places and lines: all streams are of one kind, which is counted once.
            let mut are_owed = || match owing {
                Some((kind, are_owed)) if kind == line.party.1 => are_owed,
                _ => owing.insert((line.party.1, state.are_streams_owed(line.party.1))).1,
            };
            let first = line.waiting.iter().find(|place| place.stream.is_none() || place.begins_stream() && are_owed());
            first.is_none_or(|place| {
                line.party != party && state.is_too_much(line.party, place.units, place.beside, place.stream.is_some())
            })
        });
        if !is_first || units.saturating_add(beside) > state.free || state.is_too_much(party, units, beside, false) {
            return None;
        }
        state.give(party, units, units);
        Some(self.share(party, units, Kind::Taken))
    }

    /// So many units are in use from now on, until [`vacate`](Self::vacate): clients may hold less where that is a part of what is
    /// free. They can be lent nevertheless.
    pub fn occupy(&self, units: usize) {
        let mut state = self.state();
        state.occupied = state.occupied.saturating_add(units);
    }

    /// So many units are no longer in use.
    pub fn vacate(&self, units: usize) {
        if units > 0 {
            let mut state = self.state();
            state.occupied = state.occupied.saturating_sub(units);
            drop(state);
            self.hand_out();
        }
    }

    /// Units that `party` has been given while it has some or waits for some. It grows each time it gets more.
    pub fn given(&self, party: Party) -> u64 {
        self.state().lines.iter().find(|line| line.party == party).map_or(0, |line| line.spent)
    }

    /// Counts units that are lent out already, to the server or to anybody, as the client's own; `None` where it has too much, or
    /// waits already: a large share would never be counted while small ones are.
    pub fn try_count(&self, party: Party, units: usize) -> Option<Share> {
        let mut state = self.state();
        let waits = state.lines.iter().any(|line| line.party == party && !line.waiting.is_empty());
        if waits || state.is_too_much(party, units, 0, false) {
            return None;
        }
        state.give(party, units, 0);
        Some(self.share(party, units, Kind::Counted))
    }

    /// As [`Self::try_count`], when the client has given back enough.
    pub async fn count(&self, party: Party, units: usize) -> Share {
        if let Some(share) = self.try_count(party, units) {
            return share;
        }
        self.wait(party, &AtomicBool::new(false), |sender| Place::new(units, Kind::Counted, sender)).await
    }

    /// Waits for `party`'s turn to have as many units. Dropping the future gives it up.
    pub async fn take(&self, party: Party, units: usize) -> Share {
        self.take_leaving(party, units, 0).await
    }

    /// As [`Self::take`], when `beside` units are left free for others.
    pub async fn take_leaving(&self, party: Party, units: usize, beside: usize) -> Share {
        if let Some(share) = self.try_take_leaving(party, units, beside) {
            return share;
        }
        let place = |sender| Place { beside, ..Place::new(units, Kind::Taken, sender) };
        let is_served = AtomicBool::new(false);
        let Some(mut clients) = joint::clients() else {
            return self.wait(party, &is_served, place).await;
        };
        let first = self.wait(party, &is_served, place);
        let (mut places, mut known) = (FuturesUnordered::from_iter([first]), vec![party.0]);
        loop {
            for client in &*clients.borrow_and_update() {
                if !known.contains(client) {
                    known.push(*client);
                    places.push(self.wait((*client, party.1), &is_served, place));
                }
            }
            tokio::select! {
                biased;
                Some(share) = places.next() => {
                    // The clients' other places are not given up.
                    is_served.store(true, Ordering::Relaxed);
                    return share;
                }
                Ok(()) = clients.changed() => {}
            }
        }
    }

    /// As [`Self::take`], for a part of a stream: `beside` units are left free, and whoever wants no stream goes first. One
    /// of which earlier parts are on their way, which hold `stream`, also lets other streams go first: it waits for its own
    /// client.
    pub async fn take_for_stream(&self, party: Party, units: usize, beside: usize, stream: &Arc<()>) -> Share {
        let stream = Some(Arc::downgrade(stream));
        let place = |sender| Place { beside, stream, ..Place::new(units, Kind::Taken, sender) };
        self.wait(party, &AtomicBool::new(false), place).await
    }

    /// Waits in the line of `party`. The place costs nothing if the future is dropped after `is_served` has become true.
    async fn wait(
        &self,
        party: Party,
        is_served: &AtomicBool,
        place: impl FnOnce(oneshot::Sender<Share>) -> Place,
    ) -> Share {
        let (sender, receiver) = oneshot::channel();
        self.state().line(party).waiting.push_back(place(sender));
        let mut waiting = Waiting { shares: self, party, is_served, receiver };
        self.hand_out();
        // A sender goes with a share, or when its place was given up.
        (&mut waiting.receiver).await.unwrap_or_else(|_| self.share(party, 0, Kind::Counted))
    }

    fn share(&self, party: Party, units: usize, kind: Kind) -> Share {
        Share { shares: self.clone(), party, units, kind, since: Instant::now() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives what is free to those whose turn it is.
    fn hand_out(&self) {
        loop {
            let Some((party, place)) = self.state().next() else { return };
            // Whoever gets a share may give it up in this moment, which takes the lock.
            let (units, kind) = (place.units, place.kind);
            if let Err(mut share) = place.sender.send(self.share(party, units, kind)) {
                self.state().take_back(party, std::mem::take(&mut share.units), kind, None);
            }
        }
    }
}

/// Of one that waits, or has given up.
struct Waiting<'a> {
    shares: &'a Shares,
    party: Party,
    /// True once the work has got its share through another place.
    is_served: &'a AtomicBool,
    receiver: oneshot::Receiver<Share>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.receiver.is_terminated() {
            return;
        }
        let is_served = self.is_served.load(Ordering::Relaxed);
        {
            // Under the lock, or another place of the party that is dropped now removes this one.
            let mut state = self.shares.state();
            self.receiver.close();
            state.leave(self.party, is_served);
            if is_served && let Ok(mut share) = self.receiver.try_recv() {
                // Both shares came at once.
                state.take_back(self.party, std::mem::take(&mut share.units), share.kind, None);
            }
        }
        // Others may have waited for it.
        self.shares.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use super::*;

    fn most(units: usize) -> Most {
        Most { alone: units, among_others: units }
    }

    fn party(client: u64) -> Party {
        (Client::new(client), 0)
    }

    /// One that waits already.
    fn wait(shares: &Shares, client: u64, units: usize) -> BoxFuture<'_, Share> {
        let mut take = shares.take(party(client), units).boxed();
        assert!((&mut take).now_or_never().is_none());
        take
    }

    /// The clients in the order of their turns, when each keeps a unit for what `cost` says, in milliseconds.
    fn order(shares: &Shares, clients: &[u64], cost: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut running = shares.take(party(clients[0]), 1).now_or_never().unwrap();
        let mut waiting: Vec<(u64, _)> =
            clients[1..].iter().map(|client| (*client, wait(shares, *client, 1))).collect();
        let mut order = vec![clients[0]];
        while !waiting.is_empty() {
            running.end(|_| Duration::from_millis(cost(order[order.len() - 1])));
            let next = waiting.iter_mut().enumerate().find_map(|(n, (_, take))| Some((n, take.now_or_never()?)));
            let (n, share) = next.unwrap();
            order.push(waiting.remove(n).0);
            running = share;
        }
        order
    }

    fn is_as_new(shares: &Shares) -> bool {
        let state = shares.state();
        state.free == state.all
            && state.passed == 0
            && state.lines.iter().all(|line| line.held == 0 && line.waiting.is_empty())
    }

    #[test]
    fn places_that_are_given_up_cost_nothing_where_no_other_client_waits() {
        let shares = Shares::new(64, most(64), Cost::Units);
        let held = shares.try_take(party(1), 60).unwrap();
        let mut waiting: Vec<_> = (0..10).map(|_| wait(&shares, 2, 32)).collect();
        waiting.truncate(1);
        assert_eq!(shares.given(party(2)), 0);
        // The last one is behind nothing but the first client's share; another client comes and waits for it.
        let other = wait(&shares, 3, 32);
        drop(waiting);
        assert!(shares.given(party(2)) <= 32);
        drop((held, other));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_client_with_much_to_do_delays_others_by_one_turn() {
        let clients = [1, 1, 1, 1, 1, 2, 2, 3];
        let shares = Shares::new(1, most(1), Cost::Time);
        assert_eq!(order(&shares, &clients, |_| 7), [1, 2, 3, 1, 2, 1, 1, 1]);
        assert!(!shares.is_wanted() && is_as_new(&shares));
        let shares = Shares::new(1, most(1), Cost::Units);
        assert_eq!(order(&shares, &clients, |_| 7), [1, 1, 2, 3, 1, 2, 1, 1]);
        assert!(!shares.is_wanted() && is_as_new(&shares));
    }

    #[test]
    fn a_client_that_asks_for_many_shares_has_its_part_beside_many_that_ask_for_one_after_the_other() {
        for (units, others, cost) in [(2, 4, Cost::Time), (4, 16, Cost::Time), (32, 64, Cost::Units)] {
            let shares = Shares::new(units, Most::ANY, cost);
            let mut held: Vec<(u64, Share)> = (0..units).map(|_| (1, shares.try_take(party(1), 1).unwrap())).collect();
            let one = |client| (client, shares.take(party(client), 1).boxed());
            let mut waiting: Vec<_> = std::iter::repeat_n(1, 50).chain(2..others + 2).map(one).collect();
            let mut counts = [0; 2];
            for _ in 0..100 * (others + 1) {
                let (_, mut share) = held.remove(0);
                share.end(|_| Duration::from_millis(5));
                let mut at = 0;
                while let Some((client, take)) = waiting.get_mut(at) {
                    let client = *client;
                    if let Some(share) = take.now_or_never() {
                        counts[usize::from(client != 1)] += 1;
                        held.push((client, share));
                        drop(waiting.remove(at));
                        waiting.push(one(client));
                        let _queued = (&mut waiting.last_mut().unwrap().1).now_or_never().is_none();
                    } else {
                        at += 1;
                    }
                }
            }
            assert!(counts[0] > 80, "{counts:?} with {others} others");
        }
    }

    #[test]
    fn a_client_with_long_jobs_has_as_much_time_as_others_not_as_many_turns() {
        let cost = |client| if client == 1 { 40 } else { 10 };
        let clients = [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2];
        let shares = Shares::new(1, most(1), Cost::Time);
        assert_eq!(order(&shares, &clients, cost), [1, 2, 2, 2, 2, 1, 2, 2, 2, 2, 1, 2, 1]);
    }

    #[test]
    fn who_comes_late_has_saved_nothing_up() {
        let shares = Shares::new(1, most(1), Cost::Time);
        let mut first = shares.take(party(1), 1).now_or_never().unwrap();
        let _others = [wait(&shares, 1, 1), wait(&shares, 1, 1)];
        first.end(|_| Duration::from_secs(1000));
        assert_eq!(shares.state().clock, 1_000_000_000_000);
        let _late = wait(&shares, 2, 1);
        assert_eq!(shares.state().line(party(2)).spent, 1_000_000_000_000);
    }

    #[test]
    fn who_gives_up_leaves_nothing_and_loses_no_unit() {
        let shares = Shares::new(2, most(2), Cost::Time);
        let running = [1, 1].map(|client| shares.take(party(client), 1).now_or_never().unwrap());
        let (before, after) = (wait(&shares, 3, 2), wait(&shares, 2, 1));
        drop(before);
        assert!(shares.is_wanted());
        assert!(shares.try_take(party(4), 1).is_none(), "others wait");
        assert_eq!(shares.taken(), 2);
        drop(running);
        // It has its share, and goes without having looked.
        drop(after);
        assert!(!shares.is_wanted() && is_as_new(&shares));
    }

    #[test]
    fn who_wants_much_gets_it_and_who_gives_up_holds_up_nobody() {
        let shares = Shares::new(4, most(4), Cost::Units);
        let mut held = shares.take(party(1), 4).now_or_never().unwrap();
        let (mut large, mut small) = (wait(&shares, 2, 3), wait(&shares, 3, 1));
        drop(held.split(2));
        assert!((&mut small).now_or_never().is_none(), "the large one would never have enough");
        drop(held.split(1));
        assert_eq!((&mut large).now_or_never().unwrap().units(), 3);
        assert!((&mut small).now_or_never().is_some());
        let (large, mut small) = (wait(&shares, 2, 4), wait(&shares, 3, 3));
        drop(large);
        assert!((&mut small).now_or_never().is_some());
        drop((held, small));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn one_client_never_holds_all_but_in_one_piece() {
        let shares = Shares::new(8, most(6), Cost::Units);
        let first = shares.take(party(1), 4).now_or_never().unwrap();
        let mut second = wait(&shares, 1, 4);
        let mut third = wait(&shares, 1, 1);
        let other = shares.take(party(2), 4).now_or_never().expect("it is in nobody's way");
        drop(other);
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        assert_eq!((&mut second).now_or_never().unwrap().units(), 4);
        drop((&mut third).now_or_never().unwrap());
        drop(second);
        assert_eq!(shares.take(party(1), 8).now_or_never().unwrap().units(), 8);
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_client_has_less_when_others_come_and_what_it_counts_takes_nothing() {
        let shares = Shares::new(16, Most { alone: 12, among_others: 8 }, Cost::Units);
        let mut held: Vec<Share> = (0..12).map(|_| shares.try_take(party(1), 1).unwrap()).collect();
        assert!(shares.try_take(party(1), 1).is_none() && shares.try_count(party(1), 1).is_none());
        let other = shares.try_take(party(2), 1).expect("the rest is for others");
        let mut more = wait(&shares, 1, 1);
        held.truncate(8);
        assert!((&mut more).now_or_never().is_none(), "others are there");
        held.truncate(7);
        drop((&mut more).now_or_never().unwrap());
        held.clear();
        // What is cached is counted as long as it is sent, and is nobody's memory.
        let mut cached = shares.try_take(party(1), 8).unwrap();
        assert!(shares.try_take(party(1), 1).is_none());
        cached.disown();
        let sent = shares.try_count(party(1), 8).unwrap();
        assert!(shares.try_take(party(1), 1).is_none());
        let mut waits = shares.count(party(1), 1).boxed();
        assert!((&mut waits).now_or_never().is_none());
        assert_eq!(shares.free(), 7);
        drop(sent);
        drop((&mut waits).now_or_never().unwrap());
        drop((cached, other, more, waits));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_large_share_that_waits_to_be_counted_is_not_overtaken_by_small_ones_of_its_client() {
        let shares = Shares::new(16, Most { alone: 8, among_others: 8 }, Cost::Units);
        let mut held: Vec<Share> = (0..6).map(|_| shares.try_count(party(1), 1).unwrap()).collect();
        let mut large = shares.count(party(1), 6).boxed();
        assert!((&mut large).now_or_never().is_none());
        assert!(shares.try_count(party(1), 1).is_none(), "the large one was there first");
        assert!(shares.try_count(party(2), 1).is_some());
        held.truncate(2);
        assert_eq!((&mut large).now_or_never().unwrap().units(), 6);
        drop((held, large));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_share_that_leaves_some_waits_until_that_is_free_too() {
        let shares = Shares::new(1024, most(1023), Cost::Units);
        let held = shares.take_leaving(party(1), 768, 64).now_or_never().unwrap();
        let mut large = shares.take_leaving(party(2), 200, 64).boxed();
        assert!((&mut large).now_or_never().is_none());
        // Small ones pass it, others do not.
        let mut other = wait(&shares, 3, 200);
        let small = shares.take(party(4), 16).now_or_never();
        assert!(small.is_some() && (&mut other).now_or_never().is_none());
        drop((other, small));
        drop((held, (&mut large).now_or_never()));
        drop(large);
        assert!(is_as_new(&shares));
    }

    /// As many as one client after another takes at once, of shares of so many units.
    fn passing(shares: &Shares, units: usize) -> Vec<Share> {
        (100..).map_while(|client| shares.take(party(client), units).now_or_never()).collect()
    }

    #[test]
    fn small_shares_pass_a_large_one_that_waits_and_leave_it_its_turn() {
        let shares = Shares::new(640, most(639), Cost::Units);
        let mut held = shares.take(party(1), 300).now_or_never().unwrap();
        let (mut large, mut other) = (wait(&shares, 2, 350), wait(&shares, 3, 11));
        // An eighth; not all of one client, nor the last of it.
        let mut passed: Vec<Share> = (0..3).map(|_| shares.take(party(4), 10).now_or_never().unwrap()).collect();
        let mut fourth = wait(&shares, 4, 10);
        passed.extend(passing(&shares, 10));
        let count = passed.len();
        assert_eq!((count, shares.state().passed), (7, 70));
        assert!((&mut other).now_or_never().is_none(), "it is not small");
        // Units that are merged into a share that passed none no longer count as passed.
        held.merge(passed.remove(5));
        assert_eq!(shares.state().passed, 60);
        // Units of the server do not count.
        passed[0].disown();
        assert_eq!(shares.state().passed, 50);
        // A client that has gone takes nothing.
        let gone = wait(&shares, 4, 9);
        drop(gone);
        assert_eq!(shares.state().passed, 50);
        drop(held.split(100));
        assert_eq!((&mut large).now_or_never().unwrap().units(), 350);
        drop((passed, fourth.as_mut().now_or_never(), other.as_mut().now_or_never()));
        drop((held, large, fourth, other));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_large_share_that_leaves_some_is_not_passed_by_more_than_that() {
        for (units, most_passed) in [(480, 80), (540, 60), (580, 20), (600, 20), (640, 20)] {
            let shares = Shares::new(640, most(639), Cost::Units);
            let beside = 40.min(640 - units);
            let held = shares.take(party(1), 400).now_or_never().unwrap();
            let mut large = shares.take_leaving(party(2), units, beside).boxed();
            assert!((&mut large).now_or_never().is_none());
            let passed = passing(&shares, 1);
            assert!((most_passed - 2..=most_passed).contains(&passed.len()), "{units}: {}", passed.len());
            drop(held);
            let is_there = passed.len() + units + beside <= 640;
            assert_eq!((&mut large).now_or_never().is_some(), is_there, "{units}");
            drop((passed, large));
        }
    }

    #[test]
    fn a_large_share_that_is_given_up_costs_its_client_the_next_turn() {
        let shares = Shares::new(640, most(639), Cost::Units);
        let held = shares.take(party(1), 300).now_or_never().unwrap();
        let (first, mut other) = (wait(&shares, 2, 400), wait(&shares, 3, 50));
        let second = wait(&shares, 2, 400);
        let spent = |client| shares.state().line(party(client)).spent;
        drop(wait(&shares, 4, 20));
        assert_eq!(spent(4), 0, "it stopped no other");
        drop(first);
        assert_eq!(spent(2), 400);
        assert!((&mut other).now_or_never().is_some(), "the client's next one stops others again");
        drop((second, held, other));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn however_many_shares_are_given_up_the_debt_is_bounded() {
        let shares = Shares::new(640, most(639), Cost::Units);
        let held = shares.take(party(1), 300).now_or_never().unwrap();
        let places: Vec<_> = (0..20).map(|_| wait(&shares, 2, 400)).collect();
        let other = wait(&shares, 3, 500);
        // It has had much.
        shares.state().line(party(3)).spent = 1_000_000;
        let _kept = wait(&shares, 2, 400);
        drop(places);
        assert_eq!(shares.state().line(party(2)).spent, 640);
        drop((other, held));
    }

    #[test]
    fn clients_that_hold_much_leave_others_some_of_what_may_pass() {
        for (small, of_others) in [(64, 64), (64, 1000), (60, 7), (64, 1)] {
            let shares = Shares::new(64_000, Most { alone: 48_000, among_others: 32_000 }, Cost::Units);
            let _held: Vec<Share> =
                (1..=16).map(|client| shares.take(party(client), 2500).now_or_never().unwrap()).collect();
            let _large = wait(&shares, 17, 30_000);
            let mut passed = Vec::new();
            for client in 1..=16 {
                passed.extend(std::iter::from_fn(|| shares.take(party(client), of_others).now_or_never()));
            }
            let mut honest = shares.take(party(18), small).boxed();
            let mut share = (&mut honest).now_or_never();
            if share.is_none() {
                passed.pop();
                share = (&mut honest).now_or_never();
            }
            assert!(share.is_some(), "{small} beside {} of {of_others}", passed.len());
        }
    }

    #[test]
    fn parts_of_streams_pass_no_large_share() {
        let shares = Shares::new(640, most(639), Cost::Units);
        let held = shares.take(party(1), 300).now_or_never().unwrap();
        let _large = wait(&shares, 2, 400);
        assert!(shares.take_for_stream(party(3), 1, 160, &Arc::new(())).now_or_never().is_none());
        assert!(shares.take(party(3), 1).now_or_never().is_some());
        drop(held);
    }

    #[test]
    fn units_that_a_cache_fills_are_no_reserve_for_shares_that_pass() {
        let shares = Shares::with_cache(560, 80, most(639), Cost::Units);
        let cached = shares.take((Client::default(), 0), 560).now_or_never().unwrap();
        let held = shares.take(party(1), 30).now_or_never().unwrap();
        let mut large = wait(&shares, 2, 70);
        assert_eq!(passing(&shares, 1).len(), 9);
        drop(held);
        assert!((&mut large).now_or_never().is_some());
        drop(cached);
    }

    #[test]
    fn a_stream_that_begins_passes_one_of_its_client_that_waits_for_itself() {
        let shares = Shares::new(8, most(8), Cost::Units);
        let [first, second, third] = [(); 3].map(|()| Arc::new(()));
        let stream = |units, pieces| shares.take_for_stream((Client::new(1), 1), units, 2, pieces).boxed();
        let held = stream(5, &first).now_or_never().unwrap();
        let on_its_way = Arc::clone(&first);
        let mut more = stream(5, &first);
        assert!((&mut more).now_or_never().is_none());
        let begun = stream(1, &second).now_or_never().expect("there is room for it");
        let mut last = stream(1, &third);
        assert!((&mut last).now_or_never().is_none(), "the rest is for those who stream nothing");
        drop((begun, held, on_its_way));
        drop((&mut more).now_or_never().unwrap());
        drop((&mut last).now_or_never().unwrap());
        drop((more, last));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn a_stream_has_its_turn_where_others_take_all_that_is_given_back() {
        let shares = Shares::new(640, Most { alone: 480, among_others: 320 }, Cost::Units);
        let mut held: Vec<Share> =
            (100..115).map(|client| shares.take(party(client), 40).now_or_never().unwrap()).collect();
        let pieces = Arc::new(());
        let stream = |client| shares.take_for_stream((Client::new(client), 1), 40, 160, &pieces).boxed();
        let mut first = stream(1);
        assert!((&mut first).now_or_never().is_none());
        // A small one passes, a large one does not, though there is enough for it.
        let mut other = wait(&shares, 2, 30);
        drop(shares.take(party(3), 10).now_or_never().unwrap());
        held.pop();
        let first = (&mut first).now_or_never().expect("there is enough, and what it leaves");
        // Where streams have half, they leave a quarter again.
        held.pop();
        drop((&mut other).now_or_never().unwrap());
        held.truncate(7);
        let streams: Vec<Share> = (11..18).map(|client| stream(client).now_or_never().unwrap()).collect();
        assert_eq!(shares.free(), 40);
        held.truncate(4);
        let mut last = stream(30);
        assert!((&mut last).now_or_never().is_none());
        held.truncate(3);
        assert!((&mut last).now_or_never().is_some());
        drop((first, streams, held, last));
        assert!(is_as_new(&shares));
    }

    #[test]
    fn streams_take_turns_leave_some_to_others_and_let_others_go_first_while_they_are_sent() {
        let shares = Shares::new(8, most(8), Cost::Units);
        let [first, second, third, fourth] = [(); 4].map(|()| Arc::new(()));
        let stream = |client, units, pieces| shares.take_for_stream((Client::new(client), 1), units, 2, pieces).boxed();
        let mut held = stream(1, 6, &first).now_or_never().unwrap();
        let on_its_way = Arc::clone(&first);
        let mut more = stream(1, 6, &first);
        let mut small = stream(2, 1, &second);
        assert!((&mut more).now_or_never().is_none() && (&mut small).now_or_never().is_none());
        // What is left is for others, at once.
        drop(shares.take(party(3), 2).now_or_never().unwrap());
        drop(held.split(1));
        drop((&mut small).now_or_never().expect("the first one waits for its own client"));
        let (mut large, mut later) = (stream(3, 6, &third), stream(4, 1, &fourth));
        assert!((&mut large).now_or_never().is_none() && (&mut later).now_or_never().is_none());
        drop(held.split(1));
        assert!((&mut later).now_or_never().is_none(), "it is not its turn");
        drop((held, on_its_way));
        drop((&mut more).now_or_never().unwrap());
        drop((&mut large).now_or_never().unwrap());
        drop((&mut later).now_or_never().unwrap());
        assert!(is_as_new(&shares));
    }

    #[test]
    fn streams_of_any_number_of_clients_leave_some_for_the_stream_of_the_next() {
        for clients in [1, 2, 5] {
            let shares = Shares::new(128, Most { alone: 96, among_others: 64 }, Cost::Units);
            let stream = |client| shares.take_for_stream(party(client), 1, 32, &Arc::new(())).now_or_never();
            let mut held = Vec::new();
            for _ in 0..128 {
                for client in 1..=clients {
                    held.extend(stream(client));
                }
            }
            assert!(shares.free() > 32 && shares.free() < 32 + 30, "{clients}: {}", shares.free());
            assert!(stream(clients + 1).is_some(), "{clients}");
        }
    }

    #[test]
    fn clients_that_take_all_they_can_get_leave_some_for_the_next() {
        for (alone, among_others) in [(96, 64), (64, 48)] {
            let shares = Shares::new(128, Most { alone, among_others }, Cost::Units);
            let mut held = Vec::new();
            for _ in 0..128 {
                for client in 1..=5 {
                    held.extend(shares.try_take(party(client), 1));
                }
            }
            assert!((6..40).contains(&shares.free()), "{}", shares.free());
            assert!(shares.try_take(party(6), 2).is_some());
        }
    }

    #[test]
    fn a_client_that_waits_for_itself_keeps_no_other_from_taking_at_once() {
        let shares = Shares::new(100, Most { alone: 50, among_others: 40 }, Cost::Units);
        let _held = shares.try_take(party(1), 50).unwrap();
        let _waits = wait(&shares, 1, 10);
        assert!(shares.try_take(party(2), 10).is_some());
    }
}
