//! Requests that are answered at once: `limits.concurrent_requests`; up to a quarter more for clients that have few; up to twice as
//! many in all for clients that have none. Others wait, each client's in a line of its own, and clients take turns.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::fair::Client;
use crate::metrics::{Queue, Waiting};
use crate::trace;

/// One part in so many of `limits.concurrent_requests` is spare: for clients that have few.
const SPARE: usize = 4;

/// Fewer than one part in so many are few.
const FEW: usize = 16;

/// Most requests of clients that have some already, where `limit` are configured.
fn most_of(limit: usize) -> usize {
    limit.saturating_add(limit / SPARE)
}

/// A client that has fewer of the requests that are answered may have a spare place: no more than are left, so that the first
/// clients leave some to the next. Where none are left, clients that have none may have one each, up to twice the limit.
fn few_of(limit: usize, answered: usize) -> usize {
    match most_of(limit).saturating_sub(answered) {
        0 => usize::from(answered < limit.saturating_mul(2)),
        left => (limit / FEW).max(1).min(left),
    }
}

/// How many requests of one client are answered. Cheap to clone; clones share it.
pub(super) type Answered = Arc<AtomicUsize>;

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
    answered: Answered,
    requests: VecDeque<oneshot::Sender<InFlight>>,
}

impl Admitted {
    /// One more of a client, of which so many are `answered`: where fewer than `limit` are and none waits, or as a spare one.
    pub(super) fn try_begin(&self, limit: usize, answered: &Answered) -> Option<InFlight> {
        let counts = &*self.0;
        let is_first = counts.waiting.load(Ordering::SeqCst) == 0;
        let more = |count: usize| {
            let may = is_first && count < limit || answered.load(Ordering::SeqCst) < few_of(limit, count);
            may.then_some(count + 1)
        };
        counts.answered.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(self.begun(answered))
    }

    /// One that is counted already.
    fn begun(&self, answered: &Answered) -> InFlight {
        answered.fetch_add(1, Ordering::SeqCst);
        InFlight { admitted: self.clone(), answered: Arc::clone(answered) }
    }

    /// Waits until it is the turn of a request of `client` and fewer than `limit` are answered, or a spare place is left for it, for
    /// `patience` at most.
    pub(super) async fn wait(
        &self,
        client: Client,
        answered: &Answered,
        limit: usize,
        patience: Duration,
    ) -> Option<InFlight> {
        let counts = &*self.0;
        let (sender, receiver) = oneshot::channel();
        {
            let mut lines = counts.lines.lock().unwrap_or_else(PoisonError::into_inner);
            counts.limit.store(limit, Ordering::SeqCst);
            if let Some(line) = lines.iter_mut().find(|line| line.client == client) {
                // Requests that were given up must not pile up.
                if line.requests.len() == line.requests.capacity() {
                    line.requests.retain(|request| !request.is_closed());
                }
                line.requests.push_back(sender);
                // A client without requests is forgotten; when it comes again, it has a new count.
                line.answered = Arc::clone(answered);
            } else {
                lines.retain(|line| line.requests.iter().any(|request| !request.is_closed()));
                let (answered, requests) = (Arc::clone(answered), VecDeque::from([sender]));
                lines.push_back(ClientLine { client, answered, requests });
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

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.0.answered.load(Ordering::Relaxed)
    }

    /// Admits those whose turn it is.
    fn hand_out(&self) {
        let counts = &*self.0;
        while counts.waiting.load(Ordering::SeqCst) > 0 {
            let (next, in_flight) = {
                let mut lines = counts.lines.lock().unwrap_or_else(PoisonError::into_inner);
                let (limit, all) = (counts.limit.load(Ordering::SeqCst), counts.answered.load(Ordering::SeqCst));
                let few = few_of(limit, all);
                let has_few = |line: &ClientLine| line.answered.load(Ordering::SeqCst) < few;
                let at = if all < limit { Some(0) } else { lines.iter().position(has_few) };
                let Some(mut line) = at.and_then(|at| lines.remove(at)) else { return };
                let next = std::iter::from_fn(|| line.requests.pop_front()).find(|request| !request.is_closed());
                let Some(next) = next else { continue };
                // A request that did not wait may have taken the place meanwhile.
                let is_taken =
                    counts.answered.compare_exchange(all, all + 1, Ordering::SeqCst, Ordering::SeqCst).is_err();
                if is_taken {
                    line.requests.push_front(next);
                    lines.push_front(line);
                    continue;
                }
                let in_flight = self.begun(&line.answered);
                if !line.requests.is_empty() {
                    lines.push_back(line);
                }
                (next, in_flight)
            };
            // One that gives up in this moment hands its place on when it is dropped.
            drop(next.send(in_flight));
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

/// A request that is answered, until dropped. Problems, what operations answer, and answers that are in memory as a whole are sent
/// without unless they are large: a client that takes nothing of them keeps no place.
#[derive(Debug)]
pub(super) struct InFlight {
    admitted: Admitted,
    answered: Answered,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.answered.fetch_sub(1, Ordering::SeqCst);
        self.admitted.0.answered.fetch_sub(1, Ordering::SeqCst);
        self.admitted.hand_out();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_client_that_comes_again_is_counted_anew() {
        let admitted = Admitted::default();
        let [all, before, now, other] = [(); 4].map(|()| Answered::default());
        let _running: Vec<_> = std::iter::from_fn(|| admitted.try_begin(2, &all)).collect();
        let _others: Vec<_> = std::iter::from_fn(|| admitted.try_begin(2, &Answered::default())).collect();
        let client = Client::new(1);
        // It has given up; its place in line stays until a place is free.
        assert!(admitted.wait(client, &before, 2, PATIENCE).now_or_never().is_none());
        let mut waiting = Box::pin(admitted.wait(client, &now, 2, PATIENCE));
        assert!(waiting.as_mut().now_or_never().is_none());
        let line_of = |client| {
            let lines = admitted.0.lines.lock().unwrap();
            lines.iter().find(|line| line.client == client).map(|line| Arc::clone(&line.answered))
        };
        assert!(Arc::ptr_eq(&line_of(client).unwrap(), &now));
        drop(waiting);
        let mut waiting = Box::pin(admitted.wait(Client::new(2), &other, 2, PATIENCE));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(line_of(client).is_none() && line_of(Client::new(2)).is_some(), "lines of clients that left pile up");
    }

    #[tokio::test]
    async fn clients_take_turns_and_nothing_is_left_behind() {
        let admitted = Admitted::default();
        let answered: Vec<Answered> = (0..4).map(|_| Answered::default()).collect();
        // Each has one already, or it would be admitted as one that has none.
        let held: Vec<_> = answered[1..].iter().map(|answered| admitted.try_begin(4, answered).unwrap()).collect();
        let mut running: Vec<_> = std::iter::from_fn(|| admitted.try_begin(4, &answered[0])).collect();
        assert!(admitted.try_begin(4, &answered[1]).is_none());
        let mut waiting: Vec<_> = [1, 1, 1, 2, 3]
            .map(|client| (client, Box::pin(admitted.wait(Client::new(client as u64), &answered[client], 4, PATIENCE))))
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
            assert_eq!(admitted.count(), 4);
        }
        assert_eq!(order, [1, 2, 3, 1]);
        drop((running, held));
        assert_eq!(admitted.count(), 0);
        assert!(answered.iter().all(|answered| answered.load(Ordering::SeqCst) == 0));
        assert!(admitted.try_begin(1, &answered[0]).is_some() && admitted.0.lines.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_spare_place_that_is_free_again_goes_to_a_client_that_has_few() {
        let (admitted, [greedy, modest]) = (Admitted::default(), [(); 2].map(|()| Answered::default()));
        let _held: Vec<_> = (0..64).map(|_| admitted.try_begin(64, &greedy).unwrap()).collect();
        assert!(admitted.try_begin(64, &greedy).is_none(), "it has many");
        let _one = admitted.try_begin(64, &modest).unwrap();
        let mut spare: Vec<_> = (0..15).map(|_| admitted.try_begin(64, &Answered::default()).unwrap()).collect();
        let mut waits = Box::pin(admitted.wait(Client::new(1), &greedy, 64, PATIENCE));
        let mut waits_too = Box::pin(admitted.wait(Client::new(2), &modest, 64, PATIENCE));
        assert!(
            futures_util::poll!(waits.as_mut()).is_pending() && futures_util::poll!(waits_too.as_mut()).is_pending()
        );
        assert!(admitted.try_begin(64, &modest).is_none(), "no more than there are");
        drop((spare.pop(), spare.pop()));
        assert!(futures_util::poll!(waits.as_mut()).is_pending());
        let _two = waits_too.await.unwrap();
        assert_eq!(admitted.count(), 79);
        // Twice the limit, for clients that have none.
        let more: Vec<_> = std::iter::from_fn(|| admitted.try_begin(64, &Answered::default())).collect();
        assert_eq!((admitted.count(), more.len()), (128, 49));
    }

    #[tokio::test]
    async fn a_wait_has_an_end() {
        let admitted = Admitted::default();
        let answered = Answered::default();
        let _running = [(); 2].map(|()| admitted.try_begin(1, &answered));
        assert!(admitted.wait(Client::new(1), &answered, 1, Duration::from_millis(5)).await.is_none());
        assert_eq!(admitted.0.waiting.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn requests_that_are_given_up_do_not_pile_up() {
        let admitted = Admitted::default();
        let answered = Answered::default();
        let _running = admitted.try_begin(1, &answered);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for _ in 0..1000 {
                assert!(admitted.wait(Client::new(1), &answered, 1, PATIENCE).now_or_never().is_none());
            }
        });
        assert!(admitted.0.lines.lock().unwrap()[0].requests.len() <= 8);
    }
}
