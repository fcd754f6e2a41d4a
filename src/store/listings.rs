//! Turns of clients for listings of directories. These take much of a core where a directory is large: with many of them at
//! once, of any number of stores, all other threads wait for a core.

use std::future::Future;
use std::sync::LazyLock;
use std::time::Duration;

use super::hops::Hops;
use crate::fair::{Client, Cost, Most, Shares};

/// Listings at work at once, for each core: some wait for the disk meanwhile.
const PER_CORE: usize = 2;

/// A listing that takes longer mostly waits for the disk. Others do not wait for it any more.
const AT_WORK: Duration = Duration::from_secs(1);

/// Listings of all stores of the process.
static LISTINGS: LazyLock<Shares> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    shares(PER_CORE * cores)
});

/// One client leaves a quarter to others that come, and half while they are there.
fn shares(listings: usize) -> Shares {
    let most = Most { alone: (listings / 4 * 3).max(1), among_others: (listings / 2).max(1) };
    Shares::new(listings, most, Cost::Time)
}

/// What `listing`, for which `hops` has a thread, comes to when it is its client's turn; `None` if that takes longer than the
/// deadline of `hops`.
pub(super) async fn in_turn<T>(hops: &Hops, listing: impl Future<Output = T>) -> Option<T> {
    // It takes no core.
    if hops.load().is_stalled {
        return Some(listing.await);
    }
    by(&LISTINGS, hops.deadline(), AT_WORK, listing).await
}

async fn by<T>(shares: &Shares, deadline: Duration, at_work: Duration, listing: impl Future<Output = T>) -> Option<T> {
    let turn = tokio::time::timeout(deadline, shares.take((Client::current(), 0), 1)).await.ok()?;
    let mut listing = std::pin::pin!(listing);
    if let Ok(listed) = tokio::time::timeout(at_work, &mut listing).await {
        return Some(listed);
    }
    drop(turn);
    Some(listing.await)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn clients_take_turns_and_listings_that_hang_stop_no_others() {
        let (shares, deadline, at_work) = (shares(8), Duration::from_secs(60), Duration::from_millis(50));
        let hung: Vec<_> = (0..40)
            .map(|_| {
                let shares = shares.clone();
                tokio::spawn(Client::new(1).works(async move { by(&shares, deadline, at_work, pending::<()>()).await }))
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(shares.free(), 2);
        let other = || Client::new(2).works(by(&shares, deadline, at_work, async { 7 }));
        assert_eq!(other().now_or_never(), Some(Some(7)));
        // After a while they wait for the disk, and hold no turn any more.
        while shares.free() < 8 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(hung.iter().all(|one| !one.is_finished()));
        for one in hung {
            one.abort();
        }
    }

    #[tokio::test]
    async fn a_turn_that_does_not_come_is_waited_for_no_longer_than_the_deadline() {
        let shares = shares(1);
        let held = Client::new(1).works(by(&shares, Duration::MAX, Duration::MAX, pending::<()>()));
        let mut held = std::pin::pin!(held);
        assert!((&mut held).now_or_never().is_none());
        let late = Client::new(2).works(by(&shares, Duration::from_millis(20), Duration::MAX, async { 7 }));
        assert_eq!(late.await, None);
    }

    #[tokio::test]
    async fn listings_of_a_store_that_does_not_answer_take_no_turns() {
        let (hung, (end, is_to_end)) = (Hops::new(Duration::from_secs(6)), std::sync::mpsc::channel::<()>());
        let hop = hung.clone();
        let call = tokio::spawn(async move { hop.run(None, move || is_to_end.recv()).await });
        while !hung.load().is_stalled {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let waiting: Vec<_> = (0..400)
            .map(|n| {
                let hung = hung.clone();
                tokio::spawn(Client::new(n % 4).works(async move { in_turn(&hung, pending::<()>()).await }))
            })
            .collect();
        tokio::task::yield_now().await;
        let other = Hops::new(Duration::from_secs(60));
        let listed = Client::new(9).works(in_turn(&other, async { 7 }));
        assert_eq!(tokio::time::timeout(AT_WORK / 2, listed).await, Ok(Some(7)));
        drop(end);
        let _ = call.await.unwrap();
        for one in waiting {
            one.abort();
        }
    }
}
