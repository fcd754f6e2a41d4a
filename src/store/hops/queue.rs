//! The calls that wait for a thread, in a line for each client, and how many threads each client may have.
//!
//! Clients take turns. What a client has in its line, and how long its calls take, delays the others by a turn at most.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::job::Job;
use crate::fair::Client;

/// A client with a listing that took so much of a core shares a few threads with others like it for its next ones: more of
/// them at once end no earlier, and everybody else waits for a core. Other calls mostly wait for the disk, or copy what it
/// has.
const COSTLY: Duration = Duration::from_millis(5);

/// How long that is remembered.
const MEMORY: Duration = Duration::from_secs(10);

/// Of as many clients at most.
const REMEMBERED: usize = 1024;

/// Calls that wait.
#[derive(Default)]
pub(super) struct Queue {
    lines: HashMap<Client, Line>,
    /// The clients that wait, in the order of their turns.
    turns: VecDeque<Client>,
    /// All that wait.
    len: usize,
    /// Clients, the server apart, that wait or have a thread.
    active: usize,
}

#[derive(Default)]
struct Line {
    listings: VecDeque<Box<dyn Job>>,
    others: VecDeque<Box<dyn Job>>,
    running: usize,
    running_listings: usize,
    /// Whether the last job that began was none of the listings.
    is_turn_of_listing: bool,
    /// When a listing last took [`COSTLY`].
    costly: Option<Instant>,
    /// When a call last ended, or began while none ran.
    stirred: Option<Instant>,
}

impl Line {
    fn waiting(&self) -> usize {
        self.listings.len() + self.others.len()
    }

    fn is_idle(&self) -> bool {
        self.waiting() == 0 && self.running == 0
    }

    fn is_costly(&self) -> bool {
        self.costly.is_some_and(|since| since.elapsed() < MEMORY)
    }

    /// Whether the next one may be a listing. Of a client that had none that took long a few may, whatever others do.
    fn may_list(&self, taken: Taken) -> bool {
        let most = if self.is_costly() { 0 } else { (taken.most_costly / 2).max(1) };
        self.running_listings < most || taken.costly < taken.most_costly && self.is_costly()
    }

    /// Where the next job waits that may begin: listings and others in turn.
    fn next(&mut self, may_list: bool) -> Option<&mut VecDeque<Box<dyn Job>>> {
        let may_list = may_list && !self.listings.is_empty();
        if may_list && (self.is_turn_of_listing || self.others.is_empty()) {
            return Some(&mut self.listings);
        }
        (!self.others.is_empty()).then_some(&mut self.others)
    }
}

/// Threads that are taken in a moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Taken {
    /// By listings of clients of which some took much of a core.
    pub(super) costly: usize,
    /// How many these may have.
    pub(super) most_costly: usize,
    /// How many threads there are and may be.
    pub(super) most_threads: usize,
}

impl Taken {
    /// Threads that clients have together, as long as they are no more than these. The rest stay free for clients that have
    /// nothing running.
    fn shared(self) -> usize {
        self.most_threads / 4 * 3
    }
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a job at the end of its client's line.
    pub(super) fn push(&mut self, client: Client, job: Box<dyn Job>) {
        let line = self.lines.entry(client).or_default();
        if line.is_idle() && client != Client::default() {
            self.active += 1;
        }
        if line.waiting() == 0 {
            self.turns.push_back(client);
        }
        let waiting = if job.is_listing() { &mut line.listings } else { &mut line.others };
        waiting.push_back(job);
        self.len += 1;
    }

    /// Takes the newest job of the client that has the most, if it has more than `client` would have with another one.
    pub(super) fn make_room(&mut self, client: Client) -> Option<Box<dyn Job>> {
        let own = self.lines.get(&client).map_or(0, Line::waiting);
        let line = self.lines.values_mut().max_by_key(|line| line.waiting())?;
        if line.waiting() <= own + 1 {
            return None;
        }
        self.len -= 1;
        // It has another one, and keeps its turn.
        if line.listings.len() > line.others.len() { line.listings.pop_back() } else { line.others.pop_back() }
    }

    /// The next job whose client may have a thread, which it has from now on, and whether the client has had a listing that
    /// took much of a core, and this is one.
    pub(super) fn pop(&mut self, taken: Taken) -> Option<(Client, Box<dyn Job>, bool)> {
        let place = self.turns.iter().position(|client| self.may_begin_next(*client, taken))?;
        let client = self.turns.remove(place)?;
        let line = self.lines.get_mut(&client)?;
        let may_list = client == Client::default() || line.may_list(taken);
        let job = line.next(may_list)?.pop_front()?;
        self.len -= 1;
        if line.running == 0 {
            line.stirred = Some(Instant::now());
        }
        line.running += 1;
        line.running_listings += usize::from(job.is_listing());
        line.is_turn_of_listing = !job.is_listing();
        if line.waiting() > 0 {
            self.turns.push_back(client);
        }
        let is_costly = job.is_listing() && line.is_costly() && client != Client::default();
        Some((client, job, is_costly))
    }

    /// A job of `client` has ended; a listing that was run took that much of a core.
    pub(super) fn end(&mut self, client: Client, is_listing: bool, cost: Duration) {
        if let Some(line) = self.lines.get_mut(&client) {
            line.running = line.running.saturating_sub(1);
            line.running_listings = line.running_listings.saturating_sub(usize::from(is_listing));
            line.stirred = Some(Instant::now());
            if cost >= COSTLY {
                line.costly = line.stirred;
            }
        }
        self.settle(client);
    }

    /// Whether somebody waits who may have a thread.
    pub(super) fn has_next(&self, taken: Taken) -> bool {
        self.turns.iter().any(|client| self.may_begin_next(*client, taken))
    }

    /// Whether one of the jobs of `client` that wait may have a thread.
    fn may_begin_next(&self, client: Client, taken: Taken) -> bool {
        let Some(line) = self.lines.get(&client) else { return false };
        let may_list = || client == Client::default() || line.may_list(taken);
        self.may_begin(client, taken) && (!line.others.is_empty() || !line.listings.is_empty() && may_list())
    }

    /// Whether one more call of `client` may have a thread: it has fewer than its part of them.
    pub(super) fn may_begin(&self, client: Client, taken: Taken) -> bool {
        if client == Client::default() {
            return true;
        }
        let line = self.lines.get(&client);
        let is_new = line.is_none_or(Line::is_idle);
        let most = (taken.shared() / (self.active + usize::from(is_new)).max(1)).max(1);
        line.is_none_or(|line| line.running < most)
    }

    /// Whether none of the calls of `client` has ended for `stall`, while some run.
    pub(super) fn is_stalled(&self, client: Client, stall: Duration) -> bool {
        self.lines
            .get(&client)
            .is_some_and(|line| line.running > 0 && line.stirred.is_some_and(|stirred| stirred.elapsed() > stall))
    }

    /// Takes out the jobs for which nobody waits any more.
    pub(super) fn take_unwanted(&mut self) -> Vec<Box<dyn Job>> {
        self.take(|job| !job.is_wanted())
    }

    /// Takes out all jobs.
    pub(super) fn take_all(&mut self) -> Vec<Box<dyn Job>> {
        self.take(|_| true)
    }

    fn take(&mut self, is_taken: impl Fn(&dyn Job) -> bool) -> Vec<Box<dyn Job>> {
        let mut taken = Vec::new();
        for client in std::mem::take(&mut self.turns) {
            let Some(line) = self.lines.get_mut(&client) else { continue };
            for waiting in [&mut line.listings, &mut line.others] {
                let (left, others): (Vec<_>, Vec<_>) = waiting.drain(..).partition(|job| is_taken(&**job));
                *waiting = others.into();
                self.len -= left.len();
                taken.extend(left);
            }
            if line.waiting() > 0 {
                self.turns.push_back(client);
            }
            self.settle(client);
        }
        taken
    }

    /// After something has left the line of `client`.
    fn settle(&mut self, client: Client) {
        let Some(line) = self.lines.get(&client).filter(|line| line.is_idle()) else { return };
        let is_costly = line.is_costly();
        if client != Client::default() {
            self.active = self.active.saturating_sub(1);
        }
        if is_costly && self.lines.len() > REMEMBERED {
            self.lines.retain(|_, line| !line.is_idle() || line.is_costly());
        }
        if !is_costly || self.lines.len() > REMEMBERED {
            self.lines.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::super::job::{LIST, Task};
    use super::*;
    use crate::store::Key;

    const NONE: Taken = Taken { costly: 0, most_costly: 4, most_threads: 64 };
    const SHARED: usize = 48;

    /// Whose jobs are wanted as long as the receivers are there.
    #[derive(Default)]
    struct Queued {
        queue: Queue,
        waiting: Vec<oneshot::Receiver<Result<(), super::super::HopError>>>,
    }

    impl Queued {
        fn push(&mut self, client: u64, action: &'static str, count: usize) {
            for _ in 0..count {
                let (answer, receiver) = oneshot::channel();
                let what = Some((action, Key::root()));
                self.queue.push(Client::new(client), Box::new(Task::new(what, || (), &Arc::default(), answer)));
                self.waiting.push(receiver);
            }
        }

        /// The clients of the jobs that may begin, and do.
        fn begun(&mut self, mut taken: Taken) -> Vec<u64> {
            let mut begun = Vec::new();
            while let Some((client, _, is_costly)) = self.queue.pop(taken) {
                taken.costly += usize::from(is_costly);
                begun.push((0..9).find(|number| Client::new(*number) == client).unwrap());
            }
            begun
        }

        fn end(&mut self, client: u64, cost: Option<u64>) {
            self.queue.end(Client::new(client), cost.is_some(), Duration::from_millis(cost.unwrap_or(0)));
        }

        fn is_as_new(&self) -> bool {
            self.queue.lines.is_empty() && self.queue.turns.is_empty() && self.queue.len == 0 && self.queue.active == 0
        }
    }

    #[test]
    fn a_client_with_many_calls_delays_others_by_a_turn() {
        let mut queued = Queued::default();
        queued.push(1, "read", 300);
        queued.push(2, "read", 2);
        queued.push(3, "read", 1);
        let mut order = Vec::new();
        while let Some((client, ..)) = queued.queue.pop(NONE) {
            order.push(client);
            queued.queue.end(client, false, Duration::ZERO);
        }
        assert_eq!(order[..6], [1, 2, 3, 1, 2, 1].map(Client::new));
        assert!(order.len() == 303 && queued.is_as_new());
    }

    #[test]
    fn one_client_leaves_threads_to_others_and_several_have_equal_parts() {
        let mut queued = Queued::default();
        queued.push(1, "read", 300);
        assert_eq!(queued.begun(NONE).len(), SHARED);
        queued.push(2, "read", 300);
        assert_eq!(queued.begun(NONE), [2; SHARED / 2]);
        // It has more than its part by now: of what ends the other has none.
        for _ in 0..SHARED / 2 {
            queued.end(1, None);
        }
        assert!(queued.begun(NONE).is_empty());
        queued.end(1, None);
        assert_eq!(queued.begun(NONE), [1]);
        queued.push(3, "read", 300);
        assert_eq!(queued.begun(NONE), [3; SHARED / 3]);
        queued.push(0, "read", 2);
        assert_eq!(queued.begun(NONE), [0, 0], "the server's own have what there is");
        // Sixteen clients, however much they want, leave some to one more.
        let mut queued = Queued::default();
        for client in 0..16 {
            queued.queue.active += 1;
            queued.queue.lines.insert(Client::new(100 + client), Line { running: 3, ..Line::default() });
        }
        queued.push(1, "read", 5);
        assert_eq!(queued.begun(NONE), [1, 1]);
    }

    #[test]
    fn listings_that_take_much_of_a_core_share_a_few_threads_and_other_calls_pass_them() {
        let mut queued = Queued::default();
        queued.push(1, LIST, 20);
        queued.push(2, LIST, 20);
        assert_eq!(queued.begun(NONE), [1, 2, 1, 2], "nothing is known of them");
        for client in [1, 1, 2, 2] {
            queued.end(client, Some(50));
        }
        assert_eq!(queued.begun(NONE), [1, 2, 1, 2]);
        let all = Taken { costly: 4, ..NONE };
        queued.push(3, LIST, 3);
        queued.push(4, "read", 2);
        assert_eq!(queued.begun(all), [3, 4, 3, 4]);
        queued.end(3, Some(1));
        assert_eq!(queued.begun(all), [3]);
        assert!(!queued.queue.has_next(all) && queued.queue.has_next(NONE));
        // Short ones do not outweigh one that took long.
        queued.end(1, Some(50));
        queued.end(1, Some(0));
        assert!(queued.begun(all).is_empty());
        // Other calls of the same client do not wait for them.
        queued.push(1, "read", 2);
        assert_eq!(queued.begun(all), [1, 1]);
        // After some time, they are forgiven.
        let long_ago = Instant::now().checked_sub(MEMORY).unwrap();
        queued.queue.lines.get_mut(&Client::new(2)).unwrap().costly = Some(long_ago);
        queued.end(2, Some(0));
        queued.end(2, Some(0));
        assert_eq!(queued.begun(all), [2, 2]);
    }

    #[test]
    fn listings_and_other_calls_of_a_client_take_turns() {
        let mut queued = Queued::default();
        queued.push(1, "read", 100);
        queued.push(1, LIST, 2);
        let mut listings = Vec::new();
        for n in 0..4 {
            let (_, job, _) = queued.queue.pop(NONE).unwrap();
            listings.extend(job.is_listing().then_some(n));
        }
        assert_eq!(listings, [1, 3]);
    }

    #[test]
    fn who_has_most_in_a_full_queue_makes_room_for_others() {
        let mut queued = Queued::default();
        queued.push(1, "read", 5);
        queued.push(2, "read", 2);
        assert!(queued.queue.make_room(Client::new(1)).is_none(), "it would push out its own");
        drop(queued.queue.make_room(Client::new(2)).unwrap());
        assert!(queued.waiting[4].try_recv().is_err() && queued.waiting[4].is_terminated(), "the newest");
        drop(queued.queue.make_room(Client::new(3)).unwrap());
        assert_eq!(queued.queue.len(), 5);
        drop(queued.queue.make_room(Client::new(3)).unwrap());
        assert!(queued.queue.make_room(Client::new(2)).is_none(), "each has two");
        // Nobody waits for those of the second.
        drop(queued.waiting.drain(5..));
        assert_eq!(queued.queue.take_unwanted().len(), 2);
        assert_eq!((queued.begun(NONE), queued.queue.active), (vec![1, 1], 1));
        queued.end(1, None);
        queued.end(1, None);
        assert!(queued.is_as_new());
    }
}
