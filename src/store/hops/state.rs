//! What runs and waits for the disk of one store, and what that says of the disk.

use std::sync::Weak;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::job::Job;
use super::queue::{Queue, Taken};
use super::{IDLE, SAME, THREADS, TRIAL, What};
use crate::fair::Client;

/// A listing that has run for longer than this waits for the disk, whatever the client's others did.
const AT_WORK: Duration = Duration::from_secs(1);

pub(super) struct State {
    pub(super) queue: Queue,
    pub(super) threads: usize,
    /// Those that wait for work, but for those that have been called.
    pub(super) idle: usize,
    /// Those that have been called, and are on their way.
    pub(super) called: usize,
    /// Those that have been started, and are on their way.
    pub(super) coming: usize,
    /// The fewest that were idle at once, and since when: they are woken in turn, so that none would end by itself.
    pub(super) fewest_idle: (usize, Instant),
    /// What runs; at most [`THREADS`].
    pub(super) running: Vec<Running>,
    /// Jobs that have begun so far.
    pub(super) begun: u64,
    /// When a job last ended, or began while none ran.
    pub(super) stirred: Instant,
    /// When a stalled store was last asked nevertheless.
    pub(super) tried: Option<Instant>,
    /// When what nobody waits for was last taken out of a full queue.
    pub(super) tidied: Instant,
    pub(super) is_closed: bool,
    /// Threads for listings that take much of a core.
    pub(super) most_busy: usize,
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
    /// Whether it is a listing that takes much of a core, or may.
    pub(super) is_busy: bool,
}

impl State {
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

    /// Threads that are taken now.
    pub(super) fn taken(&self) -> Taken {
        let is_busy = |call: &&Running| call.is_busy && call.since.elapsed() < AT_WORK;
        Taken { busy: self.running.iter().filter(is_busy).count(), most_busy: self.most_busy }
    }

    /// Whether all threads that a call of `client` may have hang.
    pub(super) fn has_no_thread_for_more(&self, client: Client, stall: Duration) -> bool {
        let is_full = self.running.len() >= THREADS && self.is_stalled(stall);
        is_full || (self.queue.is_stalled(client, stall) && !self.queue.may_begin(client, self.taken()))
    }

    /// Takes those out of the queue for which nobody waits any more.
    pub(super) fn take_unwanted(&mut self) -> Vec<Box<dyn Job>> {
        self.tidied = Instant::now();
        self.queue.take_unwanted()
    }

    /// Whether one more call of a stalled store, of `client`, may find out if it still is.
    pub(super) fn may_try(&mut self, client: Client) -> bool {
        let may = self.running.len() < THREADS
            && self.queue.may_begin(client, self.taken())
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
