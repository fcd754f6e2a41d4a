//! Queue of calls that wait for a thread, with a line for each client, and the limit of threads for each client.
//!
//! Clients are served round-robin. The queued calls of a client, and their duration, delay other clients by one turn at
//! most.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::job::ErasedDiskJob;
use crate::fair_queue::ClientId;

/// Queued calls of all clients.
#[derive(Default)]
pub(super) struct DiskQueue {
    clients: HashMap<ClientId, ClientDiskQueue>,
    /// Clients with queued calls, in the order of their turns.
    round_robin: VecDeque<ClientId>,
    /// Number of queued calls.
    len: usize,
    /// Number of clients, except the server, with queued or running calls.
    active_clients: usize,
}

#[derive(Default)]
struct ClientDiskQueue {
    waiting: VecDeque<Box<dyn ErasedDiskJob>>,
    running: usize,
    /// Time when a call last ended, or started while none was running.
    last_progress: Option<Instant>,
}

impl ClientDiskQueue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running == 0
    }
}

impl DiskQueue {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a job to the end of its client's line.
    pub(super) fn push(&mut self, client: ClientId, job: Box<dyn ErasedDiskJob>) {
        let line = self.clients.entry(client).or_default();
        if line.is_idle() && client != ClientId::default() {
            self.active_clients += 1;
        }
        if line.waiting.is_empty() {
            self.round_robin.push_back(client);
        }
        line.waiting.push_back(job);
        self.len += 1;
    }

    /// Removes the newest job of the client that has the most, if that client has more than `client` would have with
    /// another job.
    pub(super) fn evict_from_longest(&mut self, client: ClientId) -> Option<Box<dyn ErasedDiskJob>> {
        let own = self.clients.get(&client).map_or(0, |line| line.waiting.len());
        let line = self.clients.values_mut().max_by_key(|line| line.waiting.len())?;
        if line.waiting.len() <= own + 1 {
            return None;
        }
        self.len -= 1;
        // That client still has a job and keeps its turn.
        line.waiting.pop_back()
    }

    /// Removes and returns the next job whose client may use one of `threads`. The job counts as running from now on.
    pub(super) fn pop(&mut self, threads: usize) -> Option<(ClientId, Box<dyn ErasedDiskJob>)> {
        let place = self.round_robin.iter().position(|client| self.may_run(*client, threads))?;
        let client = self.round_robin.remove(place)?;
        let line = self.clients.get_mut(&client)?;
        let job = line.waiting.pop_front()?;
        self.len -= 1;
        if line.running == 0 {
            line.last_progress = Some(Instant::now());
        }
        line.running += 1;
        if !line.waiting.is_empty() {
            self.round_robin.push_back(client);
        }
        Some((client, job))
    }

    /// Records that a job of `client` has ended.
    pub(super) fn finish(&mut self, client: ClientId) {
        if let Some(line) = self.clients.get_mut(&client) {
            line.running = line.running.saturating_sub(1);
            line.last_progress = Some(Instant::now());
        }
        self.remove_if_idle(client);
    }

    /// Returns true if a client with queued calls may use one of `threads`.
    pub(super) fn has_runnable(&self, threads: usize) -> bool {
        self.round_robin.iter().any(|client| self.may_run(*client, threads))
    }

    /// Returns true if another call of `client` may use one of `threads`. Clients have equal parts of three quarters of
    /// the threads. The rest stays free for clients without running calls.
    pub(super) fn may_run(&self, client: ClientId, threads: usize) -> bool {
        if client == ClientId::default() {
            return true;
        }
        let line = self.clients.get(&client);
        let is_new = line.is_none_or(ClientDiskQueue::is_idle);
        let most = (threads / 4 * 3 / (self.active_clients + usize::from(is_new)).max(1)).max(1);
        line.is_none_or(|line| line.running < most)
    }

    /// Returns true if calls of `client` are running and none of its calls has ended for `stall`.
    pub(super) fn is_stalled(&self, client: ClientId, stall: Duration) -> bool {
        self.clients
            .get(&client)
            .is_some_and(|line| line.running > 0 && line.last_progress.is_some_and(|stirred| stirred.elapsed() > stall))
    }

    /// Removes and returns the jobs whose callers have gone.
    pub(super) fn take_abandoned(&mut self) -> Vec<Box<dyn ErasedDiskJob>> {
        self.take_where(|job| !job.has_waiter())
    }

    /// Removes and returns all jobs.
    pub(super) fn take_all(&mut self) -> Vec<Box<dyn ErasedDiskJob>> {
        self.take_where(|_| true)
    }

    fn take_where(&mut self, is_taken: impl Fn(&dyn ErasedDiskJob) -> bool) -> Vec<Box<dyn ErasedDiskJob>> {
        let mut taken = Vec::new();
        for client in std::mem::take(&mut self.round_robin) {
            let Some(line) = self.clients.get_mut(&client) else { continue };
            let (left, others): (Vec<_>, Vec<_>) = line.waiting.drain(..).partition(|job| is_taken(&**job));
            line.waiting = others.into();
            if !line.waiting.is_empty() {
                self.round_robin.push_back(client);
            }
            self.len -= left.len();
            taken.extend(left);
            self.remove_if_idle(client);
        }
        taken
    }

    /// Forgets `client` if it has neither queued nor running calls.
    fn remove_if_idle(&mut self, client: ClientId) {
        if !self.clients.get(&client).is_some_and(ClientDiskQueue::is_idle) {
            return;
        }
        if client != ClientId::default() {
            self.active_clients = self.active_clients.saturating_sub(1);
        }
        self.clients.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::oneshot;

    use super::super::job::DiskJob;
    use super::*;
    use crate::store::Key;

    const SHARED: usize = 48;

    /// A queue, and the receivers that stand for the jobs' callers.
    #[derive(Default)]
    struct Queued {
        queue: DiskQueue,
        waiting: Vec<oneshot::Receiver<Result<(), super::super::DiskPoolError>>>,
    }

    impl Queued {
        fn push(&mut self, client: u64, count: usize) {
            for _ in 0..count {
                let (answer, receiver) = oneshot::channel();
                let what = Some(("read", Key::root()));
                self.queue.push(ClientId::new(client), Box::new(DiskJob::new(what, || (), &Arc::default(), answer)));
                self.waiting.push(receiver);
            }
        }

        /// Starts all jobs that may start and returns their clients.
        fn begun(&mut self) -> Vec<u64> {
            let mut begun = Vec::new();
            while let Some((client, _)) = self.queue.pop(64) {
                begun.push((0..9).find(|number| ClientId::new(*number) == client).unwrap());
            }
            begun
        }

        fn end(&mut self, client: u64) {
            self.queue.finish(ClientId::new(client));
        }

        fn is_as_new(&self) -> bool {
            self.queue.clients.is_empty()
                && self.queue.round_robin.is_empty()
                && self.queue.len == 0
                && self.queue.active_clients == 0
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
        // The second client continues. The first does not while it has more than its part.
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
            queued.queue.finish(client);
        }
        assert_eq!(order[..6], [1, 2, 3, 1, 2, 1].map(ClientId::new));
        assert!(order.len() == 303 && queued.is_as_new());
    }

    #[test]
    fn one_client_leaves_threads_to_others_and_several_have_equal_parts() {
        let mut queued = Queued::default();
        queued.push(1, 300);
        assert_eq!(queued.begun().len(), SHARED);
        queued.push(2, 300);
        assert_eq!(queued.begun(), [2; SHARED / 2]);
        // The first client now has more than its part: it gets none of the threads that become free.
        for _ in 0..SHARED / 2 {
            queued.end(1);
        }
        assert!(queued.begun().is_empty());
        queued.end(1);
        assert_eq!(queued.begun(), [1]);
        queued.push(3, 300);
        assert_eq!(queued.begun(), [3; SHARED / 3]);
        queued.push(0, 2);
        assert_eq!(queued.begun(), [0, 0], "the server's own calls are not limited");
        // Sixteen clients, however many calls they have, leave threads to one more.
        let mut queued = Queued::default();
        for client in 0..16 {
            queued.queue.active_clients += 1;
            queued
                .queue
                .clients
                .insert(ClientId::new(100 + client), ClientDiskQueue { running: 3, ..ClientDiskQueue::default() });
        }
        queued.push(1, 5);
        assert_eq!(queued.begun(), [1, 1]);
    }

    #[test]
    fn who_has_most_in_a_full_queue_makes_room_for_others() {
        let mut queued = Queued::default();
        queued.push(1, 5);
        queued.push(2, 2);
        assert!(queued.queue.evict_from_longest(ClientId::new(1)).is_none(), "the client would evict its own job");
        drop(queued.queue.evict_from_longest(ClientId::new(2)).unwrap());
        assert!(queued.waiting[4].try_recv().is_err() && queued.waiting[4].is_terminated(), "the newest");
        drop(queued.queue.evict_from_longest(ClientId::new(3)).unwrap());
        assert_eq!(queued.queue.len(), 5);
        drop(queued.queue.evict_from_longest(ClientId::new(3)).unwrap());
        assert!(queued.queue.evict_from_longest(ClientId::new(2)).is_none(), "each client has two jobs");
        // The callers of the second client's jobs have gone.
        drop(queued.waiting.drain(5..));
        assert_eq!(queued.queue.take_abandoned().len(), 2);
        assert_eq!((queued.begun(), queued.queue.active_clients), (vec![1, 1], 1));
        queued.end(1);
        queued.end(1);
        assert!(queued.is_as_new());
    }
}
