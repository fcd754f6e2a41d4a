//! Turns of clients for listings of directories. These take much of a core where a directory is large: with many of them at
//! once, of any number of stores, all other threads wait for a core.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use super::hops::Hops;
use crate::fair::{Client, Cost, Most, Shares};

/// Listings at work at once, for each core: some wait for the disk meanwhile.
const PER_CORE: usize = 2;

/// A listing that has looked at no entry for so long waits for the disk, or for a thread. It leaves its turn to others.
const AT_WORK: Duration = Duration::from_millis(100);

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

/// Held by the caller of a listing, to see how far it has come.
#[derive(Debug, Default)]
pub(super) struct ListingCaller(Arc<AtomicUsize>);

/// Tells the caller of a listing how far it has come.
pub(super) struct ListingProgress(Weak<AtomicUsize>);

impl ListingCaller {
    pub(super) fn of_listing(&self) -> ListingProgress {
        ListingProgress(Arc::downgrade(&self.0))
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl ListingProgress {
    /// It has looked at some more entries. Returns true as long as the caller waits.
    pub(super) fn goes_on(&self) -> bool {
        let progress = self.0.upgrade();
        if let Some(progress) = &progress {
            progress.fetch_add(1, Ordering::Relaxed);
        }
        progress.is_some()
    }
}

/// Runs `listing`, which takes a thread of `hops`, when it is its client's turn, and returns its result. Returns `None` if the turn
/// does not come within the deadline of `hops`.
pub(super) async fn in_turn<T>(hops: &Hops, caller: &ListingCaller, listing: impl Future<Output = T>) -> Option<T> {
    let hangs = || {
        let load = hops.load();
        load.is_stalled || load.is_silent()
    };
    by(&LISTINGS, hops.deadline(), hangs, caller, listing).await
}

/// As [`in_turn`], with turns of `shares`. If the storage `hangs`, the listing uses no core and gives its turn back.
async fn by<T>(
    shares: &Shares,
    deadline: Duration,
    hangs: impl Fn() -> bool,
    caller: &ListingCaller,
    listing: impl Future<Output = T>,
) -> Option<T> {
    let turn = tokio::time::timeout(deadline, shares.take((Client::current(), 0), 1)).await.ok()?;
    let mut listing = std::pin::pin!(listing);
    while !hangs() {
        let before = caller.count();
        if let Ok(listed) = tokio::time::timeout(AT_WORK, &mut listing).await {
            return Some(listed);
        }
        if caller.count() == before {
            break;
        }
    }
    drop(turn);
    Some(listing.await)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn clients_take_turns_and_listings_that_hang_stop_no_others() {
        let shares = shares(8);
        let hung: Vec<_> = (0..40)
            .map(|_| {
                let shares = shares.clone();
                let listing =
                    async move { by(&shares, PATIENCE, || false, &ListingCaller::default(), pending::<()>()).await };
                tokio::spawn(Client::new(1).works(listing))
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(shares.free(), 2);
        let caller = ListingCaller::default();
        assert_eq!(
            Client::new(2).works(by(&shares, PATIENCE, || false, &caller, async { 7 })).now_or_never(),
            Some(Some(7))
        );
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
    async fn listings_of_storage_that_hangs_keep_no_turn() {
        let shares = shares(8);
        for client in 0..40 {
            let caller = ListingCaller::default();
            let hung = Client::new(client).works(by(&shares, PATIENCE, || true, &caller, pending::<()>()));
            let mut hung = std::pin::pin!(hung);
            assert_eq!((&mut hung).now_or_never(), None);
            assert_eq!(shares.free(), 8);
        }
    }

    #[tokio::test]
    async fn a_listing_that_goes_on_keeps_its_turn() {
        let (shares, caller) = (shares(8), ListingCaller::default());
        let listing = caller.of_listing();
        let works = async {
            for _ in 0..40 {
                assert!(listing.goes_on());
                tokio::time::sleep(AT_WORK / 10).await;
                assert_eq!(shares.free(), 7);
            }
        };
        assert!(by(&shares, PATIENCE, || false, &caller, works).await.is_some());
        assert_eq!(shares.free(), 8);
        drop(caller);
        assert!(!listing.goes_on());
    }

    #[tokio::test]
    async fn a_turn_that_does_not_come_is_waited_for_no_longer_than_the_deadline() {
        let shares = shares(1);
        let _held = shares.take((Client::new(1), 0), 1).await;
        let caller = ListingCaller::default();
        let late = Client::new(2).works(by(&shares, Duration::from_millis(20), || false, &caller, async { 7 }));
        assert_eq!(late.await, None);
    }
}
