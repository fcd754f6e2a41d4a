//! Prefetch of directories: they are walked before their turn. Their items are buffered until then, so the order of all
//! items is that of the names, however long each directory takes to answer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc::{self, Receiver};
use tokio_util::task::AbortOnDropHandle;

use super::walk::{ContainerWalker, ReceiverClosed, WalkItem, WalkedDirectory, join_walk};
use crate::store::DirEntry;

/// Maximum number of directories that are walked concurrently with the current one, on each level of the path to it.
const MAX_PREFETCHED: usize = 8;

/// Maximum number of buffered items of a prefetched directory. Its walk pauses when the buffer is full.
const MAX_BUFFERED_ITEMS: usize = 256;

/// A flag that is true while it is a walk's turn. Only then does the walk prefetch directories below it. This limits
/// the number of concurrent walks by the depth of the current directory, whatever the shape of the tree.
#[derive(Debug, Clone)]
pub(super) struct HeadOfLine(Arc<AtomicBool>);

impl HeadOfLine {
    pub(super) fn new(is_head: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_head)))
    }
}

/// A directory that is walked before its turn.
struct PrefetchedDirectory {
    /// Index of its entry on the page.
    entry_index: usize,
    items: Receiver<WalkItem>,
    head_of_line: HeadOfLine,
    walk: AbortOnDropHandle<Result<bool, ReceiverClosed>>,
}

/// The prefetched directories of one page, in page order.
#[derive(Default)]
pub(super) struct WalkPrefetcher {
    prefetched: VecDeque<PrefetchedDirectory>,
    /// Index of the next entry to consider. The entries before it are prefetched or do not need it.
    next_index: usize,
}

impl WalkPrefetcher {
    /// Starts to walk directories among the entries of `page` after the index `index`, as many as are allowed.
    pub(super) fn prefetch(
        &mut self,
        walk: &ContainerWalker,
        directory: &Arc<WalkedDirectory>,
        page: &[DirEntry],
        index: usize,
    ) {
        self.next_index = self.next_index.max(index.saturating_add(1));
        while self.prefetched.len() < MAX_PREFETCHED
            && walk.head_of_line.0.load(Ordering::Relaxed)
            && let Some(entry) = page.get(self.next_index)
        {
            let entry_index = self.next_index;
            self.next_index = entry_index.saturating_add(1);
            if !entry.is_directory {
                continue;
            }
            let (sender, items) = mpsc::channel(MAX_BUFFERED_ITEMS);
            let head_of_line = HeadOfLine::new(false);
            let walk = walk.fork(sender, head_of_line.clone());
            let (directory, entry) = (Arc::clone(directory), entry.clone());
            let walk = tokio::spawn(async move { walk.walk_entry(&directory, &entry, None).await });
            self.prefetched.push_back(PrefetchedDirectory {
                entry_index,
                items,
                head_of_line,
                walk: AbortOnDropHandle::new(walk),
            });
        }
    }

    /// Sends on the items of the directory at the index `index`. Returns the result of
    /// [`ContainerWalker::walk_entry`], or `None` if the directory was not prefetched.
    pub(super) async fn drain(&mut self, walk: &ContainerWalker, index: usize) -> Option<Result<bool, ReceiverClosed>> {
        if self.prefetched.front()?.entry_index != index {
            return None;
        }
        let mut directory = self.prefetched.pop_front()?;
        directory.head_of_line.0.store(true, Ordering::Relaxed);
        while let Some(item) = directory.items.recv().await {
            if let Err(closed) = walk.send(item).await {
                return Some(Err(closed));
            }
        }
        Some(join_walk(directory.walk).await)
    }
}
