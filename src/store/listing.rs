//! Listings of directories, and the limit for concurrent listings of all stores. Listing a large directory keeps a core
//! busy, so unlimited listings would leave no core to other work.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::runtime::fair_queue::{ClientId, ClientQuota, CostBasis, FairSemaphore};

/// One page of a directory listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Entries, sorted by the bytes of their names.
    pub entries: Vec<DirEntry>,
    /// True if more entries follow.
    pub has_more: bool,
    /// Names of omitted entries as text, at most [`MAX_OMITTED_NAMES`]. An entry is omitted if its name is not valid in
    /// a key, if it is a link that is dangling or not followed, or if it is neither a file nor a directory. A local store
    /// reports the names that are not valid in a key on every page, and a remote one those that it passed for this page.
    pub omitted_names: Vec<String>,
    /// Number of omitted entries, including the named ones. If [`Self::has_more`] is true, the next page may count some
    /// of these entries again.
    pub omitted_count: u64,
    /// Number that identifies the directory, as [`Store::identity`](super::Store::identity) returns it.
    pub identity: Option<u64>,
}

/// Maximum number of names in [`Listing::omitted_names`].
pub const MAX_OMITTED_NAMES: usize = 16;

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// Name of the entry, which is a valid key segment.
    pub name: String,
    /// True if the entry is a directory.
    pub is_directory: bool,
}

/// Filter for the entries that [`Store::list`](super::Store::list) returns. The filter is called while the directory is
/// scanned, so rejected entries cost neither memory nor another scan.
pub type EntryFilter = Arc<dyn Fn(&DirEntry) -> FilterDecision + Send + Sync>;

/// Decision of an [`EntryFilter`] about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterDecision {
    /// List the entry.
    Keep,
    /// Do not list the entry.
    Skip,
    /// List the entry if it is a directory that directly contains an object of this name.
    KeepIfContains(&'static str),
}

impl FilterDecision {
    /// Returns a filter that keeps every entry.
    pub fn keep_all() -> EntryFilter {
        Arc::new(|_| Self::Keep)
    }
}

/// Number of concurrent listings for each core. It is more than one because some listings wait for the disk.
const LISTINGS_PER_CORE: usize = 2;

/// A listing releases its permit after this time without progress, because it then waits for the disk or for a thread.
const PROGRESS_TIMEOUT: Duration = Duration::from_millis(100);

/// Permits for the listings of all stores of the process.
pub(super) static LISTING_PERMITS: LazyLock<FairSemaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    listing_permits(LISTINGS_PER_CORE * cores)
});

/// Returns a semaphore with `listings` permits. One client gets at most three quarters of the permits while it is
/// alone, and at most half of the permits while other clients are active.
fn listing_permits(listings: usize) -> FairSemaphore {
    let quota = ClientQuota { alone: (listings / 4 * 3).max(1), among_others: (listings / 2).max(1) };
    FairSemaphore::new(listings, quota, CostBasis::Time)
}

/// Returns a function that a listing calls to report that it has examined more entries. The function returns true while
/// the caller holds `progress`.
pub(super) fn progress_reporter(progress: &Arc<AtomicUsize>) -> impl Fn() -> bool + Send + use<> {
    let progress = Arc::downgrade(progress);
    move || progress.upgrade().map(|count| count.fetch_add(1, Ordering::Relaxed)).is_some()
}

/// Runs `listing` under one of `permits`. Returns `None` if the client gets no permit within `deadline`. A listing that
/// waits for stalled storage (`is_stalled`) uses no core and releases its permit.
pub(super) async fn run_limited<T>(
    permits: &FairSemaphore,
    deadline: Duration,
    is_stalled: impl Fn() -> bool,
    progress: &AtomicUsize,
    listing: impl Future<Output = T>,
) -> Option<T> {
    let permit = tokio::time::timeout(deadline, permits.acquire(ClientId::current().flow(0), 1)).await.ok()?;
    let mut listing = std::pin::pin!(listing);
    while !is_stalled() {
        let count_before = progress.load(Ordering::Relaxed);
        if let Ok(result) = tokio::time::timeout(PROGRESS_TIMEOUT, &mut listing).await {
            return Some(result);
        }
        if progress.load(Ordering::Relaxed) == count_before {
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
        let permits = listing_permits(8);
        let tasks: Vec<_> = (0..40)
            .map(|_| {
                let permits = permits.clone();
                let listing = async move {
                    run_limited(&permits, DEADLINE, || false, &AtomicUsize::new(0), pending::<()>()).await
                };
                tokio::spawn(ClientId::new(1).scope(listing))
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(permits.free(), 2);
        let progress = AtomicUsize::new(0);
        assert_eq!(
            ClientId::new(2).scope(run_limited(&permits, DEADLINE, || false, &progress, async { 7 })).now_or_never(),
            Some(Some(7))
        );
        // After `PROGRESS_TIMEOUT` they count as waiting for the disk and hold no permit.
        while permits.free() < 8 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(tasks.iter().all(|task| !task.is_finished()));
        for task in tasks {
            task.abort();
        }
    }

    #[tokio::test]
    async fn listings_of_stalled_storage_keep_no_permit() {
        let permits = listing_permits(8);
        for client in 0..40 {
            let progress = AtomicUsize::new(0);
            let listing =
                ClientId::new(client).scope(run_limited(&permits, DEADLINE, || true, &progress, pending::<()>()));
            let mut listing = std::pin::pin!(listing);
            assert_eq!((&mut listing).now_or_never(), None);
            assert_eq!(permits.free(), 8);
        }
    }

    #[tokio::test]
    async fn a_listing_with_progress_keeps_its_permit() {
        let (permits, progress) = (listing_permits(8), Arc::default());
        let report_progress = progress_reporter(&progress);
        let listing = async {
            for _ in 0..40 {
                assert!(report_progress());
                tokio::time::sleep(PROGRESS_TIMEOUT / 10).await;
                assert_eq!(permits.free(), 7);
            }
        };
        assert!(run_limited(&permits, DEADLINE, || false, &progress, listing).await.is_some());
        assert_eq!(permits.free(), 8);
        drop(progress);
        assert!(!report_progress());
    }

    #[tokio::test]
    async fn the_wait_for_a_permit_ends_at_the_deadline() {
        let permits = listing_permits(1);
        let _held = permits.acquire(ClientId::new(1).flow(0), 1).await;
        let progress = AtomicUsize::new(0);
        let listing =
            ClientId::new(2).scope(run_limited(&permits, Duration::from_millis(20), || false, &progress, async { 7 }));
        assert_eq!(listing.await, None);
    }
}
