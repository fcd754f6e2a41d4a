//! What each thread has answered lately: an object or chunk that is asked for again is found by the text of the path alone.
//!
//! Parsing the path, looking in the cache and writing the object's headers anew took a quarter of the time that this
//! process itself spends on a small answer; resolving a chunk and the HTTP library, half of it (docs/PERFORMANCE.md).

use std::cell::RefCell;

use xxhash_rust::xxh3::xxh3_64;

use super::App;
use super::quick::Said;
use crate::container::Trail;

/// Answers that a thread remembers, at some 400 to 700 bytes each.
const SLOTS: usize = 1024;

/// Longer paths are not remembered.
const PATH_BYTES: usize = 256;

/// What was sent.
pub(super) struct Seen {
    /// Which mount it is of.
    pub(super) mount: usize,
    /// Of an object or chunk; `None` where there is neither.
    pub(super) said: Option<Said>,
    pub(super) trail: Trail,
}

struct Slot {
    /// [`App::id`].
    app: u64,
    path: Box<str>,
    seen: Seen,
}

thread_local! {
    static SLOTS_OF_THREAD: RefCell<Vec<Option<Slot>>> = const { RefCell::new(Vec::new()) };
}

/// What `job` makes of what was last sent for a path; `None` where nothing is remembered.
pub(super) fn with<T>(app: &App, path: &str, job: impl FnOnce(&mut Seen) -> Option<T>) -> Option<T> {
    SLOTS_OF_THREAD.with_borrow_mut(|slots| {
        let place = slots.get_mut(slot_of(path))?;
        let slot = place.as_mut().filter(|slot| slot.app == app.id && *slot.path == *path)?;
        let made = job(&mut slot.seen);
        if made.is_none() && slot.seen.said.is_none() {
            // There is something now.
            *place = None;
        }
        made
    })
}

/// Remembers what was sent for a path, in place of what had the slot; but that something is missing never in place of what
/// is there: names can be made up without end.
pub(super) fn keep(app: &App, path: &str, seen: Seen) {
    if path.len() > PATH_BYTES {
        return;
    }
    SLOTS_OF_THREAD.with_borrow_mut(|slots| {
        if slots.is_empty() {
            slots.resize_with(SLOTS, || None);
        }
        let Some(place) = slots.get_mut(slot_of(path)) else { return };
        let is_taken = place.as_ref().is_some_and(|slot| slot.app == app.id && slot.seen.said.is_some());
        let is_same = place.as_ref().is_some_and(|slot| *slot.path == *path);
        if seen.said.is_some() || !is_taken || is_same {
            *place = Some(Slot { app: app.id, path: path.into(), seen });
        }
    });
}

fn slot_of(path: &str) -> usize {
    usize::try_from(xxh3_64(path.as_bytes()) % SLOTS as u64).unwrap_or(0)
}
