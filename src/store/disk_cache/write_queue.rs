//! Queues of the writing threads of the disk cache.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::containers::ContainerIdentity;
use super::index::EntryName;
use crate::store::key::Key;
use crate::store::object::ObjectMeta;

/// Maximum number of bytes of objects that wait to be written. This memory is part of the announced bound.
pub(super) const MAX_QUEUED_BYTES: u64 = 32 << 20;

/// Maximum number of jobs in a queue that may be dropped.
pub(super) const MAX_QUEUED_JOBS: usize = 4096;

/// Maximum number of deletions in a queue. A deletion that is dropped could let an outdated object appear again, so the
/// cache is turned off instead. Each takes about 100 bytes.
pub(super) const MAX_QUEUED_REMOVALS: usize = 1 << 18;

/// An object that is to be written.
pub(super) struct StoreJob {
    pub(super) identity: Arc<ContainerIdentity>,
    /// Number of the container when the job was queued.
    pub(super) container: u16,
    pub(super) key: Key,
    pub(super) name: EntryName,
    pub(super) sequence: u64,
    pub(super) meta: ObjectMeta,
    pub(super) bytes: Bytes,
    pub(super) validated: u32,
}

/// A job of a writing thread.
pub(super) enum LaneJob {
    /// Writes an object.
    Store(Box<StoreJob>),
    /// Records that an object was validated.
    Touch { container: u64, name: EntryName, version: u64, validated: u32 },
    /// Deletes the file of an object whose entry, of this size, has been removed.
    Remove { container: u64, name: EntryName, bytes: u64 },
}

/// State of a queue.
#[derive(Default)]
pub(super) struct LaneState {
    pub(super) jobs: VecDeque<LaneJob>,
    /// Objects that are queued or being written, with the number of the last job and its time of validation. Earlier
    /// jobs do nothing.
    pub(super) pending: HashMap<EntryName, (u64, u32)>,
    /// Objects whose files are to be deleted.
    pub(super) removing: HashSet<EntryName>,
    pub(super) next_sequence: u64,
    is_running: bool,
    /// Number of jobs that have ended or were dropped.
    pub(super) ended_jobs: u64,
    is_closed: bool,
}

/// Queue of one writing thread.
#[derive(Default)]
pub(super) struct WriteLane {
    pub(super) state: Mutex<LaneState>,
    pub(super) changed: Condvar,
}

impl WriteLane {
    /// Returns true if the file of the object is to be deleted.
    pub(super) fn is_removing(&self, name: EntryName) -> bool {
        lock(&self.state).removing.contains(&name)
    }

    pub(super) fn is_pending(&self, name: EntryName, sequence: u64) -> bool {
        lock(&self.state).pending.get(&name).is_some_and(|(last, _)| *last == sequence)
    }

    /// Waits until the jobs have ended that are queued now, at most for `timeout`. Returns true if they have.
    pub(super) fn wait_for_queued(&self, timeout: Duration) -> bool {
        let state = lock(&self.state);
        let waiting = u64::try_from(state.jobs.len()).unwrap_or(u64::MAX);
        let end = state.ended_jobs.saturating_add(waiting).saturating_add(u64::from(state.is_running));
        let waited = self.changed.wait_timeout_while(state, timeout, |state| state.ended_jobs < end);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub(super) fn next_job(&self) -> Option<LaneJob> {
        let mut state = lock(&self.state);
        state.ended_jobs = state.ended_jobs.saturating_add(u64::from(state.is_running));
        state.is_running = false;
        self.changed.notify_all();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                state.is_running = true;
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }
}

/// Locks a mutex of the cache.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic cannot poison the state: the code under the locks never leaves it inconsistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
