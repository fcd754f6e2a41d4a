//! Requests that are answered at once: `limits.concurrent_requests`. Others wait, each client's in a line of its own, and
//! clients take turns.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::fair::Client;
use crate::metrics::{Queue, Waiting};
use crate::trace;

/// How many requests are answered. Cheap to clone; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Admitted(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    answered: AtomicUsize,
    /// Those in `lines`, and those about to be.
    waiting: AtomicUsize,
    /// Most that are answered while others wait, as last configured.
    limit: AtomicUsize,
    lines: Mutex<VecDeque<ClientLine>>,
}

/// Requests of one client that wait.
#[derive(Debug)]
struct ClientLine {
    client: Client,
    requests: VecDeque<oneshot::Sender<InFlight>>,
}

impl Admitted {
    /// One more, whatever the limit is.
    pub(super) fn begin(&self) -> InFlight {
        self.0.answered.fetch_add(1, Ordering::SeqCst);
        InFlight(self.clone())
    }

    /// One more, where fewer than `limit` are answered and none waits.
    pub(super) fn try_begin(&self, limit: usize) -> Option<InFlight> {
        let more = |count: usize| (count < limit).then_some(count + 1);
        let counts = &*self.0;
        if counts.waiting.load(Ordering::SeqCst) > 0 {
            return None;
        }
        counts.answered.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(InFlight(self.clone()))
    }

    /// Waits until it is the turn of a request of `client` and fewer than `limit` are answered, for `patience` at most.
    pub(super) async fn wait(&self, client: Client, limit: usize, patience: Duration) -> Option<InFlight> {
        let counts = &*self.0;
        let (sender, receiver) = oneshot::channel();
        {
            let mut lines = counts.lines.lock().unwrap_or_else(PoisonError::into_inner);
            counts.limit.store(limit, Ordering::SeqCst);
            match lines.iter_mut().find(|line| line.client == client) {
                Some(line) => {
                    // Requests that were given up must not pile up.
                    if line.requests.len() == line.requests.capacity() {
                        line.requests.retain(|request| !request.is_closed());
                    }
                    line.requests.push_back(sender);
                }
                None => lines.push_back(ClientLine { client, requests: VecDeque::from([sender]) }),
            }
            // Before the look at `answered` in `hand_out`: one that ends meanwhile sees that somebody waits.
            counts.waiting.fetch_add(1, Ordering::SeqCst);
        }
        let _left = Left(self);
        self.hand_out();
        let (_measured, since) = (Waiting::begin(Queue::Request), Instant::now());
        let admitted = tokio::time::timeout(patience, receiver).await.ok().and_then(Result::ok);
        trace::record("wait", Queue::Request.name(), since.elapsed());
        admitted
    }

    pub(super) fn count(&self) -> usize {
        self.0.answered.load(Ordering::Relaxed)
    }

    /// Admits those whose turn it is.
    fn hand_out(&self) {
        let counts = &*self.0;
        while counts.waiting.load(Ordering::SeqCst) > 0 {
            let next = {
                let mut lines = counts.lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.is_empty() || counts.answered.load(Ordering::SeqCst) >= counts.limit.load(Ordering::SeqCst) {
                    return;
                }
                let Some(mut line) = lines.pop_front() else { return };
                let next = std::iter::from_fn(|| line.requests.pop_front()).find(|request| !request.is_closed());
                if !line.requests.is_empty() {
                    lines.push_back(line);
                }
                let Some(next) = next else { continue };
                counts.answered.fetch_add(1, Ordering::SeqCst);
                next
            };
            // One that gives up in this moment hands its place on when it is dropped.
            drop(next.send(InFlight(self.clone())));
        }
    }
}

/// A request that waits no longer.
struct Left<'a>(&'a Admitted);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A request that is answered, until dropped. Problems and what operations answer are sent without, but for those of
/// [`super::quick`]: a client that takes nothing of them keeps no place.
#[derive(Debug)]
pub(super) struct InFlight(Admitted);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.0.answered.fetch_sub(1, Ordering::SeqCst);
        self.0.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn clients_take_turns_and_nothing_is_left_behind() {
        let admitted = Admitted::default();
        let mut running = vec![admitted.try_begin(2).unwrap(), admitted.try_begin(2).unwrap()];
        assert!(admitted.try_begin(2).is_none());
        let mut waiting: Vec<_> = [1, 1, 1, 2, 3]
            .map(|client| (client, Box::pin(admitted.wait(Client::new(client), 2, PATIENCE))))
            .into_iter()
            .collect();
        for (_, wait) in &mut waiting {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        // The second of the first client gives up.
        drop(waiting.remove(1));
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(running.pop());
            let (at, in_flight) = (0..waiting.len())
                .find_map(|at| Some((at, waiting[at].1.as_mut().now_or_never()??)))
                .expect("a place is free");
            order.push(waiting.remove(at).0);
            running.push(in_flight);
            assert_eq!(admitted.count(), 2);
        }
        assert_eq!(order, [1, 2, 3, 1]);
        drop(running);
        assert_eq!(admitted.count(), 0);
        assert!(admitted.try_begin(1).is_some() && admitted.0.lines.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_wait_has_an_end() {
        let admitted = Admitted::default();
        let _running = admitted.begin();
        assert!(admitted.wait(Client::new(1), 1, Duration::from_millis(5)).await.is_none());
        assert_eq!(admitted.0.waiting.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn requests_that_are_given_up_do_not_pile_up() {
        let admitted = Admitted::default();
        let _running = admitted.begin();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for _ in 0..1000 {
                assert!(admitted.wait(Client::new(1), 1, PATIENCE).now_or_never().is_none());
            }
        });
        assert!(admitted.0.lines.lock().unwrap()[0].requests.len() <= 8);
    }
}
