//! Stored objects that are ready: what can be said of them without waiting for a disk, for memory or for another
//! request, where nothing may wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;

use super::fresh::{Access, Checked};
use super::objects::{Entry, EntryKey, Objects, Uncached};
use crate::metrics::{self, Lookup, StoreOperation};
use crate::store::{Glance, Key, Meta, Store};

/// Objects up to this size are read where they are asked for, if the kernel has them in memory: a tenth of a millisecond.
const AT_ONCE_BYTES: u64 = 512 << 10;

/// Objects up to this size are always cached: opening them costs more than reading them.
const KEPT_BYTES: u64 = 64 << 10;

/// Of larger ones that the kernel has in memory every so manieth is cached. The others are read again next time, into
/// a buffer that is still in the core's cache: that costs little more than sending from a cache that is not, takes no
/// fresh memory, and whoever walks through more than the cache holds does not empty it. What is asked for often is
/// cached soon.
const TURNS: usize = 8;

/// What can be said of an object without waiting.
#[derive(Debug)]
pub enum AtOnce {
    /// Nothing.
    Unknown,
    /// There is none of that name, and no directory.
    Missing,
    /// Facts about it and, where they were wanted, its bytes.
    Object(Meta, Bytes),
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
        let is_cached = cached.is_some();
        if let Some(entry) = cached.filter(|entry| {
            entry.checked.is_fresh(since) || entry.checked.compare(store, key, entry.version(), moment) == Some(true)
        }) {
            let Some((meta, bytes)) = entry.object.clone() else {
                // Or a directory, which is not cached as one.
                return if store.glance(key) == Glance::Missing { self.missing() } else { AtOnce::Unknown };
            };
            self.lookups.count(Lookup::Hit, 1);
            return AtOnce::Object(meta, bytes);
        }
        match store.glance(key) {
            Glance::Missing => self.missing(),
            Glance::Object(facts) if !with_bytes => AtOnce::Object(facts.into(), Bytes::new()),
            Glance::Object(facts) if !is_cached && facts.len <= AT_ONCE_BYTES => {
                self.lookups.count(Lookup::Miss, 1);
                let object = if facts.len <= KEPT_BYTES || self.misses.fetch_add(1, Ordering::Relaxed) % TURNS == 0 {
                    self.load_at_once(EntryKey::Stored(container, key.clone()), store, key, facts.len, moment)
                } else {
                    self.read_at_once(store, key, facts.len).ok()
                };
                object.map_or(AtOnce::Unknown, |(meta, bytes)| AtOnce::Object(meta, bytes))
            }
            Glance::Object(_) | Glance::NoObject | Glance::Unknown => AtOnce::Unknown,
        }
    }

    fn missing(&self) -> AtOnce {
        self.lookups.count(Lookup::Absent, 1);
        AtOnce::Missing
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
            Ok(Arc::new(Entry { object, checked: Checked::at(moment) }))
        };
        // Not ready: another loads it.
        let loaded = self.cache.try_get_with::<_, Uncached>(entry_key, read).now_or_never()?;
        // Evicts what no longer fits; if somebody else is at it, that is as good.
        let _ = self.cache.run_pending_tasks().now_or_never();
        let entry = loaded.ok().filter(|entry: &Arc<Entry>| entry.checked.is_fresh(moment))?;
        entry.object.clone()
    }

    /// Reads an object of `len` bytes, if nothing of that waits: a hop to a thread that may, and fresh pages from the
    /// system, take several times as long as the copy.
    fn read_at_once(&self, store: &dyn Store, key: &Key, len: u64) -> Result<(Meta, Bytes), Uncached> {
        let permit = self.budget.take_at_once(len).ok_or(Uncached::NotAtOnce)?;
        let mut room = self.budget.buffer(usize::try_from(len).unwrap_or(usize::MAX));
        let started = Instant::now();
        let meta = store.get_at_once(key, len, &mut room).flatten().ok_or(Uncached::NotAtOnce)?;
        metrics::store_request(StoreOperation::Get, store.backend(), started.elapsed());
        metrics::store_read_bytes(store.backend(), room.len() as u64);
        Ok((meta, self.budget.own(room, permit)))
    }
}
