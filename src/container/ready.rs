//! Stored objects that are ready: what can be said of them without waiting for a disk, for memory or for another
//! request, where nothing may wait.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;

use super::Container;
use super::again::Found;
use super::footprint;
use super::fresh::{Access, Checked};
use super::objects::{Entry, EntryKey, Objects, Uncached, WHOLE_BYTES};
use crate::metrics::{self, Lookup, StoreOperation};
use crate::store::{Glance, Key, Meta, Sendable, Store};

/// Objects up to this size are read into the cache if the kernel has them in memory: opening them costs more than reading
/// them.
const KEPT_BYTES: u64 = 64 << 10;

/// Objects up to this size are read where they are asked for, if at all: a tenth of a millisecond. Sending from the kernel's
/// memory costs less than reading into fresh memory; but what is asked for often is sent from the cache at less cost.
const AT_ONCE_BYTES: u64 = 512 << 10;

/// What can be said of an object without waiting.
#[derive(Debug)]
pub enum AtOnce {
    /// Nothing.
    Unknown,
    /// There is none of that name, and no directory; and how to find that again.
    Missing(Found),
    /// Facts about it and its bytes, or none of them where they were not wanted and are not cached; and how to find it
    /// again.
    Object(Meta, Bytes, Option<Found>),
    /// It is open, to be sent from the kernel's memory.
    Open(Sendable),
}

impl Container {
    /// [`Self::object`], or [`Self::meta`] where no bytes are wanted, as far as it can be answered without waiting for
    /// a disk, memory or another request.
    pub fn object_at_once(&self, access: Access, key: &Key, with_bytes: bool) -> AtOnce {
        if !self.sees(key) {
            return AtOnce::Unknown;
        }
        self.resources.objects.at_once(self.id, &*self.store, key, access, with_bytes)
    }
}

impl Objects {
    /// The object at `key`, no staler than `access` accepts, where that can be said without waiting; its bytes
    /// only where they are wanted.
    pub(super) fn at_once(
        &self,
        container: u32,
        store: &dyn Store,
        key: &Key,
        access: Access,
        with_bytes: bool,
    ) -> AtOnce {
        let (since, moment) = (access.since(key), access.begun);
        let cached = self.cache.get(&EntryKey::Stored(container, key.clone())).now_or_never().flatten();
        if let Some(hole) = cached.as_ref().filter(|entry| entry.object.is_none()) {
            return self.hole_at_once(container, hole, store, key, (since, moment));
        }
        let is_cached = cached.is_some();
        let good = cached.filter(|entry| {
            entry.checked.is_fresh(since) || entry.checked.compare(store, key, entry.version(), moment) == Some(true)
        });
        if let Some(entry) = good
            && let Some((meta, bytes)) = entry.object.clone()
        {
            self.lookups.count(Lookup::Hit, 1);
            return AtOnce::Object(meta, bytes, Some(Found::entry(key, &entry, moment)));
        }
        let object = match store.glance(key) {
            Glance::Missing => {
                // Remembered only where that is of use to anybody.
                if !is_cached && since < moment {
                    let entry = Arc::new(Entry { object: None, is_nothing: true, checked: Checked::at(moment) });
                    // Another may have loaded an object that came just now.
                    let entry_key = EntryKey::Stored(container, key.clone());
                    let _ = self.cache.entry(entry_key).or_insert(entry).now_or_never();
                    let _ = self.cache.run_pending_tasks().now_or_never();
                }
                return self.missing(key, moment);
            }
            Glance::Object(facts) if !is_cached && facts.len <= KEPT_BYTES => self
                .load_at_once(EntryKey::Stored(container, key.clone()), store, key, facts.len, moment)
                .or_else(|| (!with_bytes).then(|| (facts.into(), Bytes::new()))),
            Glance::Object(facts) if !with_bytes => {
                return AtOnce::Object(facts.into(), Bytes::new(), Some(Found::facts(key, facts, moment)));
            }
            Glance::Object(facts) if !is_cached && facts.len <= WHOLE_BYTES => {
                if facts.len <= AT_ONCE_BYTES && self.sent.is_worth_keeping(facts.version) {
                    self.load_at_once(EntryKey::Stored(container, key.clone()), store, key, facts.len, moment)
                } else {
                    let Some(file) = store.open_at_once(key, WHOLE_BYTES) else { return AtOnce::Unknown };
                    self.lookups.count(Lookup::Miss, 1);
                    return AtOnce::Open(file);
                }
            }
            Glance::Object(_) | Glance::NoObject | Glance::Unknown => None,
        };
        object.map_or(AtOnce::Unknown, |(meta, bytes)| AtOnce::Object(meta, bytes, None))
    }

    /// What is cached as missing: there is no such object, but there may be a directory.
    fn hole_at_once(
        &self,
        container: u32,
        hole: &Entry,
        store: &dyn Store,
        key: &Key,
        (since, moment): (u64, u64),
    ) -> AtOnce {
        if hole.is_nothing && hole.checked.is_fresh(since) {
            return self.missing(key, hole.checked.moment());
        }
        if store.glance(key) == Glance::Missing {
            hole.checked.touch(moment);
            return self.missing(key, moment);
        }
        if hole.is_nothing {
            let _ = self.cache.invalidate(&EntryKey::Stored(container, key.clone())).now_or_never();
        }
        AtOnce::Unknown
    }

    fn missing(&self, key: &Key, known: u64) -> AtOnce {
        self.lookups.count(Lookup::Absent, 1);
        AtOnce::Missing(Found::missing(key, known))
    }

    /// Reads an object of `len` bytes into the cache, if nothing of that waits.
    fn load_at_once(
        &self,
        entry_key: EntryKey,
        store: &dyn Store,
        key: &Key,
        len: u64,
        moment: u64,
    ) -> Option<(Meta, Bytes)> {
        let read = async {
            let object = Some(self.read_at_once(store, key, len)?);
            Ok(Arc::new(Entry { object, is_nothing: false, checked: Checked::at(moment) }))
        };
        // Not ready: another loads it.
        let loaded = self.cache.try_get_with::<_, Uncached>(entry_key, read).now_or_never()?;
        // Evicts what no longer fits; if somebody else is at it, that is as good.
        let _ = self.cache.run_pending_tasks().now_or_never();
        let entry = loaded.ok().filter(|entry: &Arc<Entry>| entry.checked.is_fresh(moment))?;
        let object = entry.object.clone()?;
        // Where it comes to nothing, the general way counts.
        self.lookups.count(Lookup::Miss, 1);
        Some(object)
    }

    /// Reads an object of `len` bytes, if nothing of that waits: a hop to a thread that may, and fresh pages from the
    /// system, take several times as long as the copy.
    fn read_at_once(&self, store: &dyn Store, key: &Key, len: u64) -> Result<(Meta, Bytes), Uncached> {
        let permit = self.budget.take_at_once(len).ok_or(Uncached::NotAtOnce)?;
        // Of just this size: the cache counts no more. Large pages come from the system as zeros, and stay untouched until
        // they are read into.
        let mut room = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        let started = Instant::now();
        let meta = store
            .at_once()
            .and_then(|mut objects| objects.get(key, len, &mut room))
            .flatten()
            .ok_or(Uncached::NotAtOnce)?;
        metrics::store_request(StoreOperation::Get, store.backend(), started.elapsed());
        metrics::store_read_bytes(store.backend(), room.len() as u64);
        let permit = permit.of_cache();
        let bytes = if footprint::is_copied(&room) {
            permit.own(footprint::cached(room.into(), true))
        } else {
            self.budget.own(room, permit)
        };
        Ok((meta, bytes))
    }
}
