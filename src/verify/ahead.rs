//! Directories walked before it is their turn: what comes of them waits until then, so that the order is that of the names,
//! however long each directory takes to answer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc::{self, Receiver};
use tokio_util::task::AbortOnDropHandle;

use super::walk::{Gone, Item, Walk, Within};
use crate::store::Entry;

/// Directories beside the one whose turn it is that are walked at the same time, on each level of the way to it.
const BESIDE: usize = 8;

/// Items of each that wait for its turn; then it does.
const WAITING: usize = 256;

/// Whether it is a walk's turn. Only then are others walked beside what is in it: they are as many as the levels on the way
/// to one directory allow, whatever the shape of the tree.
#[derive(Debug, Clone)]
pub(super) struct Turn(Arc<AtomicBool>);

impl Turn {
    pub(super) fn is_now(is: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is)))
    }
}

/// A directory that is walked before its turn.
struct Begun {
    /// Number of its entry on its page.
    number: usize,
    items: Receiver<Item>,
    turn: Turn,
    walk: AbortOnDropHandle<Result<bool, Gone>>,
}

/// Those of one page, in its order.
#[derive(Default)]
pub(super) struct Ahead {
    begun: VecDeque<Begun>,
    /// Entries up to this one are begun or need not be.
    next: usize,
}

impl Ahead {
    /// Begins with directories among the entries of `page` that follow the one of that number, as many as may be.
    pub(super) fn begin(&mut self, walk: &Walk, within: &Arc<Within>, page: &[Entry], number: usize) {
        self.next = self.next.max(number.saturating_add(1));
        while self.begun.len() < BESIDE
            && walk.turn.0.load(Ordering::Relaxed)
            && let Some(entry) = page.get(self.next)
        {
            let number = self.next;
            self.next = number.saturating_add(1);
            if !entry.is_directory {
                continue;
            }
            let (sender, items) = mpsc::channel(WAITING);
            let turn = Turn::is_now(false);
            let walk = walk.beside(sender, turn.clone());
            let (within, entry) = (Arc::clone(within), entry.clone());
            let walk = tokio::spawn(async move { walk.entry(&within, &entry, None).await });
            self.begun.push_back(Begun { number, items, turn, walk: AbortOnDropHandle::new(walk) });
        }
    }

    /// Passes on what comes of the directory of that number, where it was begun: what [`Walk::entry`] returns.
    pub(super) async fn finish(&mut self, walk: &Walk, number: usize) -> Option<Result<bool, Gone>> {
        if self.begun.front()?.number != number {
            return None;
        }
        let mut begun = self.begun.pop_front()?;
        begun.turn.0.store(true, Ordering::Relaxed);
        while let Some(item) = begun.items.recv().await {
            if let Err(gone) = walk.send(item).await {
                return Some(Err(gone));
            }
        }
        Some(begun.walk.await.unwrap_or_else(|end| match end.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_aborted) => Err(Gone),
        }))
    }
}
