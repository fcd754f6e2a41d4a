//! Prefetching of directories: several are walked concurrently, and their items are buffered until their turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc::error::SendError;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::walk_item::WalkItem;
use crate::store::DirEntry;

/// Maximum number of directories that are walked concurrently with the current one, on each level of the path to it.
const MAX_PREFETCHED: usize = 8;

/// Maximum number of buffered items of a prefetched directory. Its walk pauses when the buffer is full.
const MAX_BUFFERED_ITEMS: usize = 256;

/// A directory that is walked before its turn.
struct PrefetchedDirectory {
    /// Index of the directory's entry on the page.
    entry_index: usize,
    items: Receiver<WalkItem>,
    head_of_line: Arc<AtomicBool>,
    walk: AbortOnDropHandle<Result<bool, SendError<()>>>,
}

/// The prefetched directories of one page, in page order.
#[derive(Default)]
pub(super) struct WalkPrefetcher {
    prefetched: VecDeque<PrefetchedDirectory>,
    /// Index of the next entry to consider. The entries before it are prefetched already, or need not be.
    next_index: usize,
}

impl WalkPrefetcher {
    /// Starts to walk directories that follow the entry `index` on `page`, if `head_of_line` is true. `start` starts
    /// one walk, which sends its items to the given channel.
    pub(super) fn prefetch(
        &mut self,
        head_of_line: &AtomicBool,
        page: &[DirEntry],
        index: usize,
        start: impl Fn(&DirEntry, Sender<WalkItem>, Arc<AtomicBool>) -> JoinHandle<Result<bool, SendError<()>>>,
    ) {
        self.next_index = self.next_index.max(index.saturating_add(1));
        while self.prefetched.len() < MAX_PREFETCHED
            && head_of_line.load(Ordering::Relaxed)
            && let Some(entry) = page.get(self.next_index)
        {
            let entry_index = self.next_index;
            self.next_index = entry_index.saturating_add(1);
            if !entry.is_directory {
                continue;
            }
            let (sender, items) = mpsc::channel(MAX_BUFFERED_ITEMS);
            let head_of_line = Arc::new(AtomicBool::new(false));
            let walk = AbortOnDropHandle::new(start(entry, sender, Arc::clone(&head_of_line)));
            self.prefetched.push_back(PrefetchedDirectory { entry_index, items, head_of_line, walk });
        }
    }

    /// Sends the items of the directory with the entry index `index` to `items`. Returns the result of its walk, or
    /// `None` if the directory was not prefetched.
    pub(super) async fn drain(
        &mut self,
        items: &Sender<WalkItem>,
        index: usize,
    ) -> Option<Result<bool, SendError<()>>> {
        if self.prefetched.front()?.entry_index != index {
            return None;
        }
        let mut directory = self.prefetched.pop_front()?;
        directory.head_of_line.store(true, Ordering::Relaxed);
        while let Some(item) = directory.items.recv().await {
            match items.reserve().await {
                Ok(place) => place.send(item),
                Err(closed) => return Some(Err(closed)),
            }
        }
        Some(join_walk(directory.walk).await)
    }
}

/// Waits for a walk that runs in a task, and propagates its panic. If this future is dropped, the walk is aborted.
pub(super) async fn join_walk(task: AbortOnDropHandle<Result<bool, SendError<()>>>) -> Result<bool, SendError<()>> {
    task.await.unwrap_or_else(|end| match end.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_aborted) => Err(SendError(())),
    })
}
