//! Turns of requests on the thread that serves their connections. A round ends when all tasks have run that were ready when it
//! began; at most 32 requests run in it, and clients take turns.
//!
//! Work of up to a millisecond runs on that thread: it checks signatures and pastes cached blocks. Thousands of such
//! requests of one client are ready at once, and a request of another client would stand behind all of them. Bodies are not
//! covered: they are made as far as the client takes them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use futures_util::poll;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::fair::{Client, Cost, Most, Share, Shares};

/// Requests that are worked on in one round. A request of another client waits for so many milliseconds at most.
const IN_ROUND: usize = 32;

/// Where the requests of one thread take turns.
#[derive(Debug, Clone)]
struct Turns {
    shares: Shares,
    /// Turns of this round that were used.
    used: Arc<Mutex<Vec<Share>>>,
}

thread_local! {
    static TURNS: Turns = Turns {
        shares: Shares::new(IN_ROUND, Most::ANY, Cost::Units),
        used: Arc::default(),
    };
}

/// Runs `work` to its end. Each time that it is ready to go on, it waits for a turn of `client`; it has none while it waits for
/// something else.
pub(super) async fn in_turns<T>(client: Client, work: impl Future<Output = T>) -> T {
    if Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
        // There, a new task is not the last.
        return work.await;
    }
    let turns = TURNS.with(Clone::clone);
    let mut work = pin!(work);
    loop {
        let turn = turns.shares.take((client, 0), 1).await;
        let worked = poll!(work.as_mut());
        turns.use_up(turn);
        if let Poll::Ready(done) = worked {
            return done;
        }
        woken().await;
    }
}

impl Turns {
    /// Keeps a turn until all tasks have run that are ready now. Then the next round begins.
    fn use_up(&self, turn: Share) {
        let is_first = {
            let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.push(turn);
            used.len() == 1
        };
        if is_first {
            let round = Round(Arc::clone(&self.used));
            // A new task is the last of those that are ready.
            tokio::spawn(async move { drop(round) });
        }
    }
}

/// Hands the turns of a round on when dropped, also where its runtime ends before that.
struct Round(Arc<Mutex<Vec<Share>>>);

impl Drop for Round {
    fn drop(&mut self) {
        let used = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        // Outside the lock: it wakes others.
        drop(used);
    }
}

/// Ready when the task is polled again.
async fn woken() {
    let mut is_first = true;
    poll_fn(|_context| if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }).await;
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    /// Begins `count` requests of a client that note its number when they are answered.
    fn begin(client: u64, count: usize, answered: &Arc<Mutex<Vec<u64>>>) -> Vec<JoinHandle<()>> {
        let request = |answered: Arc<Mutex<Vec<u64>>>| {
            tokio::spawn(in_turns(Client::new(client), async move { answered.lock().unwrap().push(client) }))
        };
        (0..count).map(|_| request(Arc::clone(answered))).collect()
    }

    #[tokio::test]
    async fn a_client_with_many_requests_leaves_turns_to_others() {
        let answered = Arc::default();
        let mut begun = begin(1, 1000, &answered);
        begun.extend(begin(2, 3, &answered));
        join_all(begun).await;
        let answered = answered.lock().unwrap();
        let last = answered.iter().rposition(|client| *client == 2).unwrap();
        assert!(answered.len() == 1003 && last < 3 * IN_ROUND, "{last}");
    }

    #[tokio::test]
    async fn work_that_waits_has_no_turn() {
        let (sender, receiver) = oneshot::channel::<()>();
        let receiver = receiver.shared();
        let waiting: Vec<_> =
            (0..2 * IN_ROUND).map(|_| tokio::spawn(in_turns(Client::new(1), receiver.clone()))).collect();
        join_all(begin(2, 1, &Arc::default())).await;
        sender.send(()).unwrap();
        assert!(join_all(waiting).await.into_iter().all(|ended| ended.is_ok_and(|sent| sent.is_ok())));
    }
}
