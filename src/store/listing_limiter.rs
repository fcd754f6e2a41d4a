//! Limits the number of concurrent directory listings, fairly between clients. The listing of a large directory takes
//! much of a core. Many of them at once, of any number of stores, would keep all other threads waiting for a core.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use super::disk_pool::DiskPool;
use crate::fair_queue::{ClientId, ClientQuota, CostBasis, FairSemaphore};

/// Concurrent listings per core. More than one, because some wait for the disk meanwhile.
const LISTINGS_PER_CORE: usize = 2;

/// A listing that reports no progress for this long waits for the disk or for a thread. It releases its permit.
const PROGRESS_TIMEOUT: Duration = Duration::from_millis(100);

/// Permits for the listings of all stores of the process.
static LISTING_PERMITS: LazyLock<FairSemaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    listing_permits(LISTINGS_PER_CORE * cores)
});

/// Returns a semaphore for this many listings. One client leaves a quarter free while it is alone, and half while
/// others are active.
fn listing_permits(listings: usize) -> FairSemaphore {
    let quota = ClientQuota { alone: (listings / 4 * 3).max(1), among_others: (listings / 2).max(1) };
    FairSemaphore::new(listings, quota, CostBasis::Time)
}

/// Held by the caller of a listing to observe its progress.
#[derive(Debug, Default)]
pub(super) struct ListingMonitor(Arc<AtomicUsize>);

/// Reports the progress of a listing to its caller.
pub(super) struct ListingReporter(Weak<AtomicUsize>);

impl ListingMonitor {
    pub(super) fn reporter(&self) -> ListingReporter {
        ListingReporter(Arc::downgrade(&self.0))
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl ListingReporter {
    /// Reports that some more entries have been examined. Returns true while the caller waits.
    pub(super) fn report_progress(&self) -> bool {
        let progress = self.0.upgrade();
        if let Some(progress) = &progress {
            progress.fetch_add(1, Ordering::Relaxed);
        }
        progress.is_some()
    }
}

/// Runs `listing`, which uses a thread of `disk_pool`, once its client gets a permit, and returns its result. Returns
/// `None` if it gets none within the deadline of `disk_pool`.
pub(super) async fn run_limited<T>(
    disk_pool: &DiskPool,
    monitor: &ListingMonitor,
    listing: impl Future<Output = T>,
) -> Option<T> {
    let is_storage_stalled = || {
        let load = disk_pool.load();
        load.is_stalled || load.is_unresponsive()
    };
    run_with_permits(&LISTING_PERMITS, disk_pool.deadline(), is_storage_stalled, monitor, listing).await
}

/// Like [`run_limited`], with permits of `shares`. If the storage `is_stalled`, the listing uses no core and releases
/// its permit.
async fn run_with_permits<T>(
    shares: &FairSemaphore,
    deadline: Duration,
    is_stalled: impl Fn() -> bool,
    monitor: &ListingMonitor,
    listing: impl Future<Output = T>,
) -> Option<T> {
    let permit = tokio::time::timeout(deadline, shares.acquire((ClientId::current(), 0), 1)).await.ok()?;
    let mut listing = std::pin::pin!(listing);
    while !is_stalled() {
        let count_before = monitor.count();
        if let Ok(result) = tokio::time::timeout(PROGRESS_TIMEOUT, &mut listing).await {
            return Some(result);
        }
        if monitor.count() == count_before {
            break;
        }
    }
    drop(permit);
    Some(listing.await)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn hanging_listings_of_one_client_do_not_stop_others() {
        let shares = listing_permits(8);
        let tasks: Vec<_> = (0..40)
            .map(|_| {
                let shares = shares.clone();
                let listing = async move {
                    run_with_permits(&shares, DEADLINE, || false, &ListingMonitor::default(), pending::<()>()).await
                };
                tokio::spawn(ClientId::new(1).scope(listing))
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(shares.free(), 2);
        let monitor = ListingMonitor::default();
        assert_eq!(
            ClientId::new(2).scope(run_with_permits(&shares, DEADLINE, || false, &monitor, async { 7 })).now_or_never(),
            Some(Some(7))
        );
        // After `PROGRESS_TIMEOUT` they count as waiting for the disk and hold no permit.
        while shares.free() < 8 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(tasks.iter().all(|task| !task.is_finished()));
        for task in tasks {
            task.abort();
        }
    }

    #[tokio::test]
    async fn listings_of_stalled_storage_keep_no_permit() {
        let shares = listing_permits(8);
        for client in 0..40 {
            let monitor = ListingMonitor::default();
            let listing =
                ClientId::new(client).scope(run_with_permits(&shares, DEADLINE, || true, &monitor, pending::<()>()));
            let mut listing = std::pin::pin!(listing);
            assert_eq!((&mut listing).now_or_never(), None);
            assert_eq!(shares.free(), 8);
        }
    }

    #[tokio::test]
    async fn a_listing_with_progress_keeps_its_permit() {
        let (shares, monitor) = (listing_permits(8), ListingMonitor::default());
        let reporter = monitor.reporter();
        let listing = async {
            for _ in 0..40 {
                assert!(reporter.report_progress());
                tokio::time::sleep(PROGRESS_TIMEOUT / 10).await;
                assert_eq!(shares.free(), 7);
            }
        };
        assert!(run_with_permits(&shares, DEADLINE, || false, &monitor, listing).await.is_some());
        assert_eq!(shares.free(), 8);
        drop(monitor);
        assert!(!reporter.report_progress());
    }

    #[tokio::test]
    async fn the_wait_for_a_permit_ends_at_the_deadline() {
        let shares = listing_permits(1);
        let _held = shares.acquire((ClientId::new(1), 0), 1).await;
        let monitor = ListingMonitor::default();
        let listing =
            ClientId::new(2)
                .scope(run_with_permits(&shares, Duration::from_millis(20), || false, &monitor, async { 7 }));
        assert_eq!(listing.await, None);
    }
}
