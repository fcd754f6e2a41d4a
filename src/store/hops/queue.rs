//! The calls that wait for a thread, in a line for each client, and how many threads each client may have.
//!
//! Clients take turns. What a client has in its line, and how long its calls take, delays the others by a turn at most.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::job::Job;
use crate::fair::Client;

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
    waiting: VecDeque<Box<dyn Job>>,
    running: usize,
    /// When a call last ended, or began while none ran.
    stirred: Option<Instant>,
}

impl Line {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
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
        if line.waiting.is_empty() {
            self.turns.push_back(client);
        }
        line.waiting.push_back(job);
        self.len += 1;
    }

    /// Takes the newest job of the client that has the most, if it has more than `client` would have with another one.
    pub(super) fn make_room(&mut self, client: Client) -> Option<Box<dyn Job>> {
        let own = self.lines.get(&client).map_or(0, |line| line.waiting.len());
        let line = self.lines.values_mut().max_by_key(|line| line.waiting.len())?;
        if line.waiting.len() <= own + 1 {
            return None;
        }
        self.len -= 1;
        // It has another one, and keeps its turn.
        line.waiting.pop_back()
    }

    /// The next job whose client may have one of `threads`, and has it from now on.
    pub(super) fn pop(&mut self, threads: usize) -> Option<(Client, Box<dyn Job>)> {
        let place = self.turns.iter().position(|client| self.may_begin(*client, threads))?;
        let client = self.turns.remove(place)?;
        let line = self.lines.get_mut(&client)?;
        let job = line.waiting.pop_front()?;
        self.len -= 1;
        if line.running == 0 {
            line.stirred = Some(Instant::now());
        }
        line.running += 1;
        if !line.waiting.is_empty() {
            self.turns.push_back(client);
        }
        Some((client, job))
    }

    /// A job of `client` has ended.
    pub(super) fn end(&mut self, client: Client) {
        if let Some(line) = self.lines.get_mut(&client) {
            line.running = line.running.saturating_sub(1);
            line.stirred = Some(Instant::now());
        }
        self.settle(client);
    }

    /// Returns true if a client that waits may have one of `threads`.
    pub(super) fn has_next(&self, threads: usize) -> bool {
        self.turns.iter().any(|client| self.may_begin(*client, threads))
    }

    /// Whether one more call of `client` may have one of `threads`: clients have equal parts of three quarters of them. The rest
    /// stays free for clients that have nothing running.
    pub(super) fn may_begin(&self, client: Client, threads: usize) -> bool {
        if client == Client::default() {
            return true;
        }
        let line = self.lines.get(&client);
        let is_new = line.is_none_or(Line::is_idle);
        let most = (threads / 4 * 3 / (self.active + usize::from(is_new)).max(1)).max(1);
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
            let (left, others): (Vec<_>, Vec<_>) = line.waiting.drain(..).partition(|job| is_taken(&**job));
            line.waiting = others.into();
            if !line.waiting.is_empty() {
                self.turns.push_back(client);
            }
            self.len -= left.len();
            taken.extend(left);
            self.settle(client);
        }
        taken
    }

    /// After something has left the line of `client`.
    fn settle(&mut self, client: Client) {
        if !self.lines.get(&client).is_some_and(Line::is_idle) {
            return;
        }
        if client != Client::default() {
            self.active = self.active.saturating_sub(1);
        }
        self.lines.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::super::job::Task;
    use super::*;
    use crate::store::Key;

    const SHARED: usize = 48;

    /// Whose jobs are wanted as long as the receivers are there.
    #[derive(Default)]
    struct Queued {
        queue: Queue,
        waiting: Vec<oneshot::Receiver<Result<(), super::super::HopError>>>,
    }

    impl Queued {
        fn push(&mut self, client: u64, count: usize) {
            for _ in 0..count {
                let (answer, receiver) = oneshot::channel();
                let what = Some(("read", Key::root()));
                self.queue.push(Client::new(client), Box::new(Task::new(what, || (), &Arc::default(), answer)));
                self.waiting.push(receiver);
            }
        }

        /// The clients of the jobs that may begin, and do.
        fn begun(&mut self) -> Vec<u64> {
            let mut begun = Vec::new();
            while let Some((client, _)) = self.queue.pop(64) {
                begun.push((0..9).find(|number| Client::new(*number) == client).unwrap());
            }
            begun
        }

        fn end(&mut self, client: u64) {
            self.queue.end(Client::new(client));
        }

        fn is_as_new(&self) -> bool {
            self.queue.lines.is_empty() && self.queue.turns.is_empty() && self.queue.len == 0 && self.queue.active == 0
        }
    }

    #[test]
    fn of_few_threads_one_client_has_three_quarters_and_each_of_two_one() {
        let mut queued = Queued::default();
        queued.push(1, 9);
        let begun = |queued: &mut Queued| std::iter::from_fn(|| queued.queue.pop(4)).count();
        assert_eq!(begun(&mut queued), 3);
        queued.push(2, 9);
        assert_eq!(begun(&mut queued), 1);
        // The second goes on, and the first does not while it has more than its part.
        queued.end(1);
        assert_eq!(begun(&mut queued), 0);
        queued.end(2);
        assert_eq!(begun(&mut queued), 1);
    }

    #[test]
    fn a_client_with_many_calls_delays_others_by_a_turn() {
        let mut queued = Queued::default();
        queued.push(1, 300);
        queued.push(2, 2);
        queued.push(3, 1);
        let mut order = Vec::new();
        while let Some((client, _)) = queued.queue.pop(64) {
            order.push(client);
            queued.queue.end(client);
        }
        assert_eq!(order[..6], [1, 2, 3, 1, 2, 1].map(Client::new));
        assert!(order.len() == 303 && queued.is_as_new());
    }

    #[test]
    fn one_client_leaves_threads_to_others_and_several_have_equal_parts() {
        let mut queued = Queued::default();
        queued.push(1, 300);
        assert_eq!(queued.begun().len(), SHARED);
        queued.push(2, 300);
        assert_eq!(queued.begun(), [2; SHARED / 2]);
        // It has more than its part by now: of what ends the other has none.
        for _ in 0..SHARED / 2 {
            queued.end(1);
        }
        assert!(queued.begun().is_empty());
        queued.end(1);
        assert_eq!(queued.begun(), [1]);
        queued.push(3, 300);
        assert_eq!(queued.begun(), [3; SHARED / 3]);
        queued.push(0, 2);
        assert_eq!(queued.begun(), [0, 0], "the server's own have what there is");
        // Sixteen clients, however much they want, leave some to one more.
        let mut queued = Queued::default();
        for client in 0..16 {
            queued.queue.active += 1;
            queued.queue.lines.insert(Client::new(100 + client), Line { running: 3, ..Line::default() });
        }
        queued.push(1, 5);
        assert_eq!(queued.begun(), [1, 1]);
    }

    #[test]
    fn who_has_most_in_a_full_queue_makes_room_for_others() {
        let mut queued = Queued::default();
        queued.push(1, 5);
        queued.push(2, 2);
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
        assert_eq!((queued.begun(), queued.queue.active), (vec![1, 1], 1));
        queued.end(1);
        queued.end(1);
        assert!(queued.is_as_new());
    }
}
