//! What runs and waits for the disk of one store, and what that says of the disk.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::job::Job;
use super::queue::Queue;
use super::{IDLE, OWN_THREADS, SAME, THREADS, TRIAL, What};
use crate::fair::Client;

/// The queue is not searched for calls that nobody waits for while it has fewer.
const LEAST_TIDY: usize = 1024;

/// How often a full queue is searched for them at most.
const TIDY: Duration = Duration::from_millis(50);

pub(super) struct State {
    pub(super) queue: Queue,
    /// Threads beyond [`OWN_THREADS`] that this store and the others may still have.
    pub(super) common: Arc<AtomicUsize>,
    pub(super) threads: usize,
    /// Those that wait for work, but for those that have been called.
    pub(super) idle: usize,
    /// Those that have been called, and are on their way.
    pub(super) called: usize,
    /// Those that have been started, and are on their way.
    pub(super) coming: usize,
    /// Least number of idle threads since that time. They are woken in turn, so that none is ever idle for [`IDLE`].
    pub(super) fewest_idle: (usize, Instant),
    /// What runs; no more than there are threads.
    pub(super) running: Vec<Running>,
    /// Jobs that have begun so far.
    pub(super) begun: u64,
    /// When a job last ended, or began while none ran.
    pub(super) stirred: Instant,
    /// When a stalled store was last asked nevertheless.
    pub(super) tried: Option<Instant>,
    /// When the queue was last searched for calls that nobody waits for, and how many it has when it is again.
    pub(super) tidied: Instant,
    pub(super) tidy_at: usize,
    pub(super) is_closed: bool,
}

/// A call that a thread is in.
pub(super) struct Running {
    pub(super) id: u64,
    pub(super) what: Option<What>,
    pub(super) since: Instant,
    /// Held by whoever waits for it.
    pub(super) waiter: Weak<AtomicBool>,
    /// Whose call it is.
    pub(super) client: Client,
}

impl State {
    /// How many threads there are and may be.
    pub(super) fn most_threads(&self) -> usize {
        self.threads.max(OWN_THREADS).saturating_add(self.common.load(Ordering::Relaxed)).min(THREADS)
    }

    /// Whether there may be one more thread.
    pub(super) fn may_grow(&self) -> bool {
        self.threads < self.most_threads()
    }

    /// Counts one more thread, if there may be one.
    pub(super) fn grow(&mut self) -> bool {
        let take = || self.common.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
        let may = self.threads < THREADS && (self.threads < OWN_THREADS || take().is_ok());
        self.threads += usize::from(may);
        may
    }

    /// Counts one thread less.
    pub(super) fn shrink(&mut self) {
        if self.threads > OWN_THREADS {
            self.common.fetch_add(1, Ordering::Relaxed);
        }
        self.threads -= 1;
    }

    pub(super) fn is_stalled(&self, stall: Duration) -> bool {
        !self.running.is_empty() && self.stirred.elapsed() > stall
    }

    pub(super) fn is_surplus(&mut self) -> bool {
        let (fewest, since) = self.fewest_idle;
        let is_long = since.elapsed() >= IDLE;
        let next = if fewest == 0 { (self.idle, Instant::now()) } else { (fewest - 1, since) };
        self.fewest_idle = if is_long { next } else { self.fewest_idle };
        is_long && fewest > 0
    }

    /// Whether all threads that a call of `client` may have hang.
    pub(super) fn has_no_thread_for_more(&self, client: Client, stall: Duration) -> bool {
        let is_full = self.running.len() >= self.most_threads() && self.is_stalled(stall);
        is_full || (self.queue.is_stalled(client, stall) && !self.queue.may_begin(client, self.most_threads()))
    }

    /// Takes the calls out of the queue whose callers have gone, each time that it has doubled, or is full: they are never
    /// many more than the others, and each is looked at a few times only.
    pub(super) fn tidy(&mut self, is_full: bool) -> Vec<Box<dyn Job>> {
        // The queue has become shorter since.
        self.tidy_at = self.tidy_at.min(self.queue.len().saturating_mul(4).max(LEAST_TIDY));
        if self.queue.len() < self.tidy_at && !(is_full && self.tidied.elapsed() >= TIDY) {
            return Vec::new();
        }
        let unwanted = self.queue.take_unwanted();
        self.tidied = Instant::now();
        self.tidy_at = self.queue.len().saturating_mul(2).max(LEAST_TIDY);
        unwanted
    }

    /// Whether one more call of a stalled store, of `client`, may find out if it still is.
    pub(super) fn may_try(&mut self, client: Client) -> bool {
        let may = self.running.len() < self.most_threads()
            && self.queue.may_begin(client, self.most_threads())
            && self.tried.is_none_or(|tried| tried.elapsed() > TRIAL);
        if may {
            self.tried = Some(Instant::now());
        }
        may
    }

    pub(super) fn calls_for(&self, what: &What) -> impl Iterator<Item = &Running> {
        self.running.iter().filter(move |call| call.what.as_ref() == Some(what))
    }

    /// Whether enough threads are in calls for the same that nobody waits for any more: who gives up and asks again would take
    /// one after the other. Of those that are older than the deadline, [`Self::is_overdue`] says when it is tried again.
    pub(super) fn is_left_often(&self, what: &What, deadline: Duration) -> bool {
        let is_left = |call: &&Running| call.waiter.strong_count() == 0 && call.since.elapsed() <= deadline;
        self.calls_for(what).filter(is_left).count() >= SAME
    }

    /// Whether calls for the same have waited in vain.
    pub(super) fn is_overdue(&self, what: &What, stall: Duration, deadline: Duration) -> bool {
        let ages = || self.calls_for(what).map(|call| call.since.elapsed());
        let is_in_vain = ages().any(|age| age > deadline) || ages().filter(|age| *age > stall).count() >= SAME;
        // Now and then it is tried again, ever more seldom: the call that hangs may have been lost, and not the file.
        let doubled = u32::try_from(ages().count()).unwrap_or(u32::MAX).min(16);
        is_in_vain && ages().min().is_some_and(|youngest| youngest <= deadline.saturating_mul(1 << doubled))
    }
}
