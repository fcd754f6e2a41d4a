//! Fair polling of requests on the thread that serves their connections. Work is divided into rounds. A round ends when
//! all tasks that were ready at its start have run. Requests work for at most 32 ms in a round, in time slices that
//! clients get in turn.
//!
//! Work of up to a millisecond runs on that thread, such as checking signatures and pasting cached blocks. Thousands of
//! such requests of one client may be ready at once. Without rounds, a request of another client would wait for all of
//! them. Bodies need no rounds, because each is produced only as fast as its client receives it.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::{pending, poll};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::runtime::fair_queue::{ClientId, ClientQuota, CostBasis, FairPermit, FairSemaphore};

/// Number of time slices per round. A slice is a millisecond, so a request of another client waits for at most 32 ms.
const SLICES_PER_ROUND: usize = 32;

/// Length of a time slice. Requests that need less time share a slice, because waiting for a slice of its own would
/// make a short request half as expensive again.
const TIME_SLICE: Duration = Duration::from_millis(1);

/// Work of the current round.
#[derive(Debug, Default)]
struct PollRound {
    /// Time slices that are used up, and are given back at the end of the round.
    spent_slices: Vec<FairPermit>,
    /// Work of requests since the last time slice was used up.
    slice_elapsed: Duration,
    /// True if the task that ends the round has been spawned.
    is_end_scheduled: bool,
}

thread_local! {
    /// The time slices of a round, which the clients of this thread get in turn.
    static TIME_SLICES: FairSemaphore = FairSemaphore::new(SLICES_PER_ROUND, ClientQuota::UNLIMITED, CostBasis::Units);
    /// The current round of this thread.
    static ROUND: Arc<Mutex<PollRound>> = Arc::default();
}

/// Runs `work` to completion. Whenever the work is ready to continue, it waits for a time slice for `client`. While the
/// work waits for anything else, it holds no time slice.
pub(crate) async fn poll_fairly<T>(client: ClientId, work: impl Future<Output = T>) -> T {
    if Handle::current().runtime_flavor() != RuntimeFlavor::CurrentThread {
        // On other runtimes, a new task does not run after those that are ready.
        return work.await;
    }
    let time_slices = TIME_SLICES.with(Clone::clone);
    let round = ROUND.with(Arc::clone);
    let mut work = pin!(work);
    loop {
        let time_slice = time_slices.acquire(client.flow(0), 1).await;
        let started = Instant::now();
        let polled = poll!(work.as_mut());
        charge_slice(&round, time_slice, started.elapsed());
        if let Poll::Ready(output) = polled {
            return output;
        }
        // Continues when the task is polled again.
        pending!();
    }
}

/// Gives back a time slice in which a request worked for `elapsed`, or keeps the time slice until the end of the round
/// if it is used up.
fn charge_slice(round: &Arc<Mutex<PollRound>>, time_slice: FairPermit, elapsed: Duration) {
    let (is_first, returned) = {
        let mut round = round.lock().unwrap_or_else(PoisonError::into_inner);
        round.slice_elapsed += elapsed;
        let returned = if round.slice_elapsed < TIME_SLICE {
            Some(time_slice)
        } else {
            round.slice_elapsed = Duration::ZERO;
            round.spent_slices.push(time_slice);
            None
        };
        (!std::mem::replace(&mut round.is_end_scheduled, true), returned)
    };
    // Dropped outside the lock, because the drop wakes other requests.
    drop(returned);
    if is_first {
        // Ends the round, even if the runtime ends before the task has run.
        let end_guard = scopeguard::guard(Arc::clone(round), |round| {
            let ended = std::mem::take(&mut *round.lock().unwrap_or_else(PoisonError::into_inner));
            // Dropped outside the lock, because the drop wakes other requests.
            drop(ended);
        });
        // A new task runs after all that are ready now.
        tokio::spawn(async move { drop(end_guard) });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;

    /// Starts `count` requests of a client. Each pushes the client's number to `finished` at its end.
    fn spawn_requests(client: u64, count: usize, finished: &Arc<Mutex<Vec<u64>>>) -> Vec<JoinHandle<()>> {
        let request = |finished: Arc<Mutex<Vec<u64>>>| {
            tokio::spawn(poll_fairly(ClientId::new(client), async move {
                let started = Instant::now();
                while started.elapsed() < TIME_SLICE {}
                finished.lock().unwrap().push(client);
            }))
        };
        (0..count).map(|_| request(Arc::clone(finished))).collect()
    }

    #[tokio::test]
    async fn a_client_with_many_requests_leaves_time_slices_to_others() {
        let finished = Arc::default();
        let mut requests = spawn_requests(1, 200, &finished);
        requests.extend(spawn_requests(2, 3, &finished));
        join_all(requests).await;
        let finished = finished.lock().unwrap();
        let last = finished.iter().rposition(|client| *client == 2).unwrap();
        assert!(finished.len() == 203 && last < 3 * SLICES_PER_ROUND, "{last}");
    }

    #[tokio::test]
    async fn short_requests_share_a_time_slice() {
        let first_polls = join_all((0..4 * SLICES_PER_ROUND).map(|_| {
            let mut request = Box::pin(poll_fairly(ClientId::new(1), async {}));
            async move { poll!(request.as_mut()).is_pending() }
        }));
        assert!(first_polls.await.into_iter().all(|is_pending| !is_pending));
    }

    #[tokio::test]
    async fn waiting_work_holds_no_time_slice() {
        let (sender, receiver) = oneshot::channel::<()>();
        let receiver = receiver.shared();
        let waiting: Vec<_> =
            (0..2 * SLICES_PER_ROUND).map(|_| tokio::spawn(poll_fairly(ClientId::new(1), receiver.clone()))).collect();
        join_all(spawn_requests(2, 1, &Arc::default())).await;
        sender.send(()).unwrap();
        assert!(join_all(waiting).await.into_iter().all(|ended| ended.is_ok_and(|sent| sent.is_ok())));
    }
}
