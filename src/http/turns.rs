//! Turns of requests on the thread that serves their connections. A round ends when all tasks have run that were ready when it
//! began; requests work for 32 ms at most in it, and clients take turns.
//!
//! Work of up to a millisecond runs on that thread: it checks signatures and pastes cached blocks. Thousands of such
//! requests of one client are ready at once, and a request of another client would stand behind all of them. Bodies are not
//! covered: they are made as far as the client takes them.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::poll;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::fair::{Client, Cost, Most, Share, Shares};

/// Turns of one round. A request of another client waits for so many milliseconds at most.
const IN_ROUND: usize = 32;

/// Work after which a turn is used up. Requests that need less share a turn, because a request that waits for one costs half as
/// much again.
const TURN: Duration = Duration::from_millis(1);

/// Where the requests of one thread take turns.
#[derive(Debug, Clone)]
struct Turns {
    shares: Shares,
    round: Arc<Mutex<Round>>,
}

/// The work of one round so far.
#[derive(Debug, Default)]
struct Round {
    /// Turns that are used up.
    used: Vec<Share>,
    /// Work since the last of them.
    worked: Duration,
    /// The end of the round is waited for.
    has_begun: bool,
}

thread_local! {
    static TURNS: Turns = Turns {
        shares: Shares::new(IN_ROUND, Most::ANY, Cost::Units),
        round: Arc::default(),
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
        let since = Instant::now();
        let worked = poll!(work.as_mut());
        turns.use_up(turn, since.elapsed());
        if let Poll::Ready(done) = worked {
            return done;
        }
        woken().await;
    }
}

impl Turns {
    /// Gives a turn back, or keeps it until the round ends where it is used up.
    fn use_up(&self, turn: Share, worked: Duration) {
        let (is_first, left) = {
            let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
            round.worked += worked;
            let left = if round.worked < TURN {
                Some(turn)
            } else {
                round.worked = Duration::ZERO;
                round.used.push(turn);
                None
            };
            (!std::mem::replace(&mut round.has_begun, true), left)
        };
        // Outside the lock: it wakes others.
        drop(left);
        if is_first {
            let end = EndOfRound(Arc::clone(&self.round));
            // A new task is the last of those that are ready.
            tokio::spawn(async move { drop(end) });
        }
    }
}

/// Hands the turns of a round on when dropped, also where its runtime ends before that.
struct EndOfRound(Arc<Mutex<Round>>);

impl Drop for EndOfRound {
    fn drop(&mut self) {
        let round = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        // Outside the lock: it wakes others.
        drop(round);
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
            tokio::spawn(in_turns(Client::new(client), async move {
                let since = Instant::now();
                while since.elapsed() < TURN {}
                answered.lock().unwrap().push(client);
            }))
        };
        (0..count).map(|_| request(Arc::clone(answered))).collect()
    }

    #[tokio::test]
    async fn a_client_with_many_requests_leaves_turns_to_others() {
        let answered = Arc::default();
        let mut begun = begin(1, 200, &answered);
        begun.extend(begin(2, 3, &answered));
        join_all(begun).await;
        let answered = answered.lock().unwrap();
        let last = answered.iter().rposition(|client| *client == 2).unwrap();
        assert!(answered.len() == 203 && last < 3 * IN_ROUND, "{last}");
    }

    #[tokio::test]
    async fn requests_that_take_little_share_a_turn() {
        let waited = join_all((0..4 * IN_ROUND).map(|_| {
            let mut request = Box::pin(in_turns(Client::new(1), async {}));
            async move { poll!(request.as_mut()).is_pending() }
        }));
        assert!(waited.await.into_iter().all(|waited| !waited));
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
