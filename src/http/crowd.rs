//! How many requests wait for one container: where its storage answers nobody, no more than leave room for those of the
//! others.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;

use super::Mount;
use super::problem::Problem;
use super::target::{Target, View};
use crate::container::{Container, ReadError};
use crate::metrics::{self, Shed};
use crate::store::{Key, StoreError};

/// How often a request that waits looks whether it is one too many.
const LOOK: Duration = Duration::from_millis(250);

/// One part in so many of `limits.concurrent_requests` may wait for one container that answers nobody; of many containers
/// one in twice their number, so that half of them leave half of all.
const PARTS: usize = 4;

/// The requests of each container that are being answered.
pub(super) struct Crowds {
    of: Vec<AtomicUsize>,
    most: usize,
}

/// One of the requests, until it leaves or is dropped.
struct Counted<'a> {
    all: &'a AtomicUsize,
    has_left: bool,
}

impl<'a> Counted<'a> {
    fn new(all: &'a AtomicUsize) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self { all, has_left: false }
    }

    /// Makes the crowd smaller by one where it is larger than `most`; then no other one has to leave for that.
    fn leaves(&mut self, most: usize) -> bool {
        let fewer = |count: usize| (count > most).then(|| count - 1);
        self.has_left = self.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer).is_ok();
        self.has_left
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if !self.has_left {
            self.all.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Crowds {
    pub(super) fn new(mounts: &[Mount], concurrent_requests: usize) -> Self {
        let most = (concurrent_requests / PARTS.max(mounts.len().saturating_mul(2))).max(1);
        Self { of: mounts.iter().map(|_| AtomicUsize::new(0)).collect(), most }
    }

    /// What `work`, for the container at that place among all, comes to. It is given up where its storage answers nobody
    /// and too many wait for that; a container without others keeps nobody out.
    ///
    /// # Errors
    /// 503, and those of the work.
    pub(super) async fn within<T>(
        &self,
        place: usize,
        container: &Container,
        mut work: impl Future<Output = Result<T, Problem>> + Unpin,
    ) -> Result<T, Problem> {
        let Some(count) = self.of.get(place).filter(|_| self.of.len() > 1) else { return work.await };
        let mut counted = Counted::new(count);
        if let Some(done) = (&mut work).now_or_never() {
            return done;
        }
        loop {
            if count.load(Ordering::Relaxed) > self.most && container.is_silent() && counted.leaves(self.most) {
                metrics::request_shed(Shed::Storage);
                return Err(ReadError::from(StoreError::Crowded("wait for", Key::root())).into());
            }
            if let Ok(done) = tokio::time::timeout(LOOK, &mut work).await {
                return done;
            }
        }
    }
}

/// Which of `mounts` a target leads into; `None` where it leads into none.
pub(super) fn place(mounts: &[Mount], target: &Target) -> Option<usize> {
    let skipped = if let View::Other(view) = target.view { view.parameters() } else { 0 };
    let name = target.segments.get(skipped)?;
    mounts.iter().position(|mount| mount.name == *name)
}
