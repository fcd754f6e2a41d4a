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
        let client_queue = self.clients.entry(client).or_default();
        if client_queue.is_idle() && client != ClientId::default() {
            self.active_clients += 1;
        }
        if client_queue.waiting.is_empty() {
            self.round_robin.push_back(client);
        }
        client_queue.waiting.push_back(job);
        self.len += 1;
    }

    /// Removes the newest job of the client that has the most, if that client has more than `client` would have with
    /// another job.
    pub(super) fn evict_from_longest(&mut self, client: ClientId) -> Option<Box<dyn ErasedDiskJob>> {
        let own_len = self.clients.get(&client).map_or(0, |client_queue| client_queue.waiting.len());
        let client_queue = self.clients.values_mut().max_by_key(|client_queue| client_queue.waiting.len())?;
        if client_queue.waiting.len() <= own_len + 1 {
            return None;
        }
        self.len -= 1;
        // That client still has a job and keeps its turn.
        client_queue.waiting.pop_back()
    }

    /// Removes and returns the next job whose client may use one of `threads`. The job counts as running from now on.
    pub(super) fn pop(&mut self, threads: usize) -> Option<(ClientId, Box<dyn ErasedDiskJob>)> {
        let index = self.round_robin.iter().position(|client| self.may_run(*client, threads))?;
        let client = self.round_robin.remove(index)?;
        let client_queue = self.clients.get_mut(&client)?;
        let job = client_queue.waiting.pop_front()?;
        self.len -= 1;
        if client_queue.running == 0 {
            client_queue.last_progress = Some(Instant::now());
        }
        client_queue.running += 1;
        if !client_queue.waiting.is_empty() {
            self.round_robin.push_back(client);
        }
        Some((client, job))
    }

    /// Records that a job of `client` has ended.
    pub(super) fn finish(&mut self, client: ClientId) {
        if let Some(client_queue) = self.clients.get_mut(&client) {
            client_queue.running = client_queue.running.saturating_sub(1);
            client_queue.last_progress = Some(Instant::now());
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
        let client_queue = self.clients.get(&client);
        let is_new = client_queue.is_none_or(ClientDiskQueue::is_idle);
        let max_running = (threads / 4 * 3 / (self.active_clients + usize::from(is_new)).max(1)).max(1);
        client_queue.is_none_or(|client_queue| client_queue.running < max_running)
    }

    /// Returns true if calls of `client` are running and none of its calls has ended for `stall_after`.
    pub(super) fn is_stalled(&self, client: ClientId, stall_after: Duration) -> bool {
        self.clients.get(&client).is_some_and(|client_queue| {
            client_queue.running > 0
                && client_queue.last_progress.is_some_and(|progress| progress.elapsed() > stall_after)
        })
    }

    /// Removes and returns the jobs whose callers have gone.
    pub(super) fn take_abandoned(&mut self) -> Vec<Box<dyn ErasedDiskJob>> {
        self.take_where(|job| !job.has_waiter())
    }

    /// Removes and returns all jobs.
    pub(super) fn take_all(&mut self) -> Vec<Box<dyn ErasedDiskJob>> {
        self.take_where(|_| true)
    }

    fn take_where(&mut self, predicate: impl Fn(&dyn ErasedDiskJob) -> bool) -> Vec<Box<dyn ErasedDiskJob>> {
        let mut removed = Vec::new();
        for client in std::mem::take(&mut self.round_robin) {
            let Some(client_queue) = self.clients.get_mut(&client) else { continue };
            let (matching, others): (Vec<_>, Vec<_>) =
                client_queue.waiting.drain(..).partition(|job| predicate(&**job));
            client_queue.waiting = others.into();
            if !client_queue.waiting.is_empty() {
                self.round_robin.push_back(client);
            }
            self.len -= matching.len();
            removed.extend(matching);
            self.remove_if_idle(client);
        }
        removed
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

    const ONE_CLIENT_THREADS: usize = 48;

    /// A queue, and the receivers that stand for the jobs' callers.
    #[derive(Default)]
    struct Queued {
        queue: DiskQueue,
        receivers: Vec<oneshot::Receiver<Result<(), super::super::DiskPoolError>>>,
    }

    impl Queued {
        fn push(&mut self, client: u64, count: usize) {
            for _ in 0..count {
                let (reply, receiver) = oneshot::channel();
                let operation = Some(("read", Key::root()));
                self.queue
                    .push(ClientId::new(client), Box::new(DiskJob::new(operation, || (), &Arc::default(), reply)));
                self.receivers.push(receiver);
            }
        }

        /// Starts all jobs that may start and returns their clients.
        fn start_all(&mut self) -> Vec<u64> {
            let mut started = Vec::new();
            while let Some((client, _)) = self.queue.pop(64) {
                started.push((0..9).find(|number| ClientId::new(*number) == client).unwrap());
            }
            started
        }

        fn finish(&mut self, client: u64) {
            self.queue.finish(ClientId::new(client));
        }

        fn is_empty(&self) -> bool {
            self.queue.clients.is_empty()
                && self.queue.round_robin.is_empty()
                && self.queue.len == 0
                && self.queue.active_clients == 0
        }
    }

    #[test]
    fn one_client_gets_three_quarters_of_few_threads_and_two_get_one_each() {
        let mut queued = Queued::default();
        queued.push(1, 9);
        let start_count = |queued: &mut Queued| std::iter::from_fn(|| queued.queue.pop(4)).count();
        assert_eq!(start_count(&mut queued), 3);
        queued.push(2, 9);
        assert_eq!(start_count(&mut queued), 1);
        // The second client continues. The first does not while it has more than its part.
        queued.finish(1);
        assert_eq!(start_count(&mut queued), 0);
        queued.finish(2);
        assert_eq!(start_count(&mut queued), 1);
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
        assert!(order.len() == 303 && queued.is_empty());
    }

    #[test]
    fn one_client_leaves_threads_to_others_and_several_have_equal_shares() {
        let mut queued = Queued::default();
        queued.push(1, 300);
        assert_eq!(queued.start_all().len(), ONE_CLIENT_THREADS);
        queued.push(2, 300);
        assert_eq!(queued.start_all(), [2; ONE_CLIENT_THREADS / 2]);
        // The first client now has more than its part: it gets none of the threads that become free.
        for _ in 0..ONE_CLIENT_THREADS / 2 {
            queued.finish(1);
        }
        assert!(queued.start_all().is_empty());
        queued.finish(1);
        assert_eq!(queued.start_all(), [1]);
        queued.push(3, 300);
        assert_eq!(queued.start_all(), [3; ONE_CLIENT_THREADS / 3]);
        queued.push(0, 2);
        assert_eq!(queued.start_all(), [0, 0], "the server's own calls are not limited");
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
        assert_eq!(queued.start_all(), [1, 1]);
    }

    #[test]
    fn a_full_queue_evicts_from_the_client_with_most_jobs() {
        let mut queued = Queued::default();
        queued.push(1, 5);
        queued.push(2, 2);
        assert!(queued.queue.evict_from_longest(ClientId::new(1)).is_none(), "the client would evict its own job");
        drop(queued.queue.evict_from_longest(ClientId::new(2)).unwrap());
        assert!(queued.receivers[4].try_recv().is_err() && queued.receivers[4].is_terminated(), "the newest");
        drop(queued.queue.evict_from_longest(ClientId::new(3)).unwrap());
        assert_eq!(queued.queue.len(), 5);
        drop(queued.queue.evict_from_longest(ClientId::new(3)).unwrap());
        assert!(queued.queue.evict_from_longest(ClientId::new(2)).is_none(), "each client has two jobs");
        // The callers of the second client's jobs have gone.
        drop(queued.receivers.drain(5..));
        assert_eq!(queued.queue.take_abandoned().len(), 2);
        assert_eq!((queued.start_all(), queued.queue.active_clients), (vec![1, 1], 1));
        queued.finish(1);
        queued.finish(1);
        assert!(queued.is_empty());
    }
}
