//! Finding again what was found a moment ago, without looking for it: by what holds it, and by what it depends on.

use std::ops::Range;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures_util::FutureExt;

use super::Container;
use super::fresh::Access;
use super::objects::{Entry, EntryKey, Objects};
use crate::metrics::Lookup;
use crate::store::{Facts, Glance, Key, Meta, Store};

/// How long something may be found again without the cache's knowledge: a moment, for a cache that evicts by last use.
const UNSEEN_NANOSECONDS: u64 = 100_000_000;

/// Something that was found, to be found again as long as it is the same.
#[derive(Debug, Clone)]
pub struct Found {
    what: What,
    looked_up: u64,
}

#[derive(Debug, Clone)]
enum What {
    /// A stored object that is cached; this does not keep it.
    Entry(Key, Weak<Entry>),
    /// A stored object of this version.
    Facts(Key, u64),
    /// What was made of stored objects and is cached. Whether these are the same is not looked at.
    Made(u128, Weak<Entry>),
    /// That neither an object nor a directory has this name.
    Missing(Key),
}

impl Found {
    pub(super) fn entry(key: &Key, entry: &Arc<Entry>, moment: u64) -> Self {
        Self { what: What::Entry(key.clone(), Arc::downgrade(entry)), looked_up: moment }
    }

    pub(super) fn facts(key: &Key, facts: Facts, moment: u64) -> Self {
        Self { what: What::Facts(key.clone(), facts.version), looked_up: moment }
    }

    pub(super) fn missing(key: &Key, moment: u64) -> Self {
        Self { what: What::Missing(key.clone()), looked_up: moment }
    }

    pub(super) fn made(id: u128, entry: &Arc<Entry>, moment: u64) -> Self {
        Self { what: What::Made(id, Arc::downgrade(entry)), looked_up: moment }
    }
}

/// How to find an answer again.
#[derive(Debug)]
pub struct Trail {
    /// What has to be the same: the answer's bytes are in the last, it depends on the others.
    pub founds: Vec<Found>,
    /// Which of the bytes.
    pub range: Range<usize>,
}

impl Container {
    /// The bytes at the end of a trail, or none of them where they are not wanted, if they are at hand, everything on
    /// the trail is the same, and no staler than `access` accepts; else they are to be looked for anew.
    pub fn again(&self, access: Access, trail: &mut Trail, with_bytes: bool) -> Option<Bytes> {
        let (last, others) = trail.founds.split_last_mut()?;
        let again = |found, with_bytes| self.resources.objects.again(self.id, &*self.store, found, access, with_bytes);
        // The dataset after its block: a block is missing only if its dataset is not.
        let bytes = again(last, with_bytes)?;
        for found in others {
            again(found, false)?;
        }
        match last.what {
            What::Entry(..) | What::Made(..) => self.count(Lookup::Hit),
            What::Missing(_) => self.count(Lookup::Absent),
            What::Facts(..) => {}
        }
        if with_bytes {
            (trail.range.end <= bytes.len()).then(|| bytes.slice(trail.range.clone()))
        } else {
            Some(bytes)
        }
    }

    /// Counts a look-up of a stored object that was answered at once.
    pub fn count(&self, result: Lookup) {
        self.resources.objects.lookups.count(result, 1);
    }

    /// How to find the object at `key` again, if it is cached in this version.
    pub fn cached(&self, access: Access, key: &Key, version: u64) -> Option<Found> {
        let name = EntryKey::Stored(self.id, key.clone());
        let entry = self.resources.objects.cache.get(&name).now_or_never().flatten()?;
        (entry.version() == Some(version)).then(|| Found::entry(key, &entry, access.begun))
    }

    /// Whether the store is one that can say something without waiting.
    pub fn is_at_hand(&self) -> bool {
        self.store.glance(&Key::root()) != Glance::Unknown
    }

    /// Facts about the object at `key` as the store has it, and how to compare them again, where that needs no waiting.
    pub fn compared(&self, access: Access, key: &Key) -> Option<(Meta, Found)> {
        match self.store.glance(key) {
            _ if !self.sees(key) => None,
            Glance::Object(facts) => Some((facts.into(), Found::facts(key, facts, access.begun))),
            Glance::Missing | Glance::NoObject | Glance::Unknown => None,
        }
    }
}

impl Objects {
    /// The bytes of what was found before, if it is no staler than `access` accepts; none of them for facts alone.
    fn again(
        &self,
        container: u32,
        store: &dyn Store,
        found: &mut Found,
        access: Access,
        with_bytes: bool,
    ) -> Option<Bytes> {
        let moment = access.begun;
        // Now and then the cache, too, has to learn that it is asked for, and the whole path has to be looked at.
        if found.looked_up.saturating_add(UNSEEN_NANOSECONDS) < moment {
            self.look_again(container, store, found, moment)?;
        }
        Some(match &found.what {
            What::Entry(key, entry) => {
                let entry = entry.upgrade()?;
                let is_good = entry.checked.is_fresh(access.since(key))
                    || entry.checked.compare(store, key, entry.version(), moment) == Some(true);
                let (_, bytes) = entry.object.as_ref().filter(|_| is_good)?;
                bytes.clone()
            }
            What::Facts(key, version) => {
                let is_fresh = found.looked_up >= access.since(key);
                let is_good = !with_bytes && (is_fresh || store.is_unchanged(key, *version));
                is_good.then(Bytes::new)?
            }
            What::Made(_, entry) => entry.upgrade()?.object.as_ref()?.1.clone(),
            What::Missing(key) => {
                if found.looked_up < access.since(key) {
                    is_missing(store, key).then(|| found.looked_up = moment)?;
                }
                Bytes::new()
            }
        })
    }

    /// Finds the very same by its name; `None` where that is not at hand, or another.
    fn look_again(&self, container: u32, store: &dyn Store, found: &mut Found, moment: u64) -> Option<()> {
        let is_cached = |key, entry: &Weak<Entry>| {
            let cached = self.cache.get(&key).now_or_never().flatten();
            cached.is_some_and(|cached| std::ptr::eq(entry.as_ptr(), Arc::as_ptr(&cached)))
        };
        let is_same = match &found.what {
            What::Entry(key, entry) => is_cached(EntryKey::Stored(container, key.clone()), entry),
            What::Made(id, entry) => is_cached(EntryKey::Made(*id), entry),
            What::Facts(key, version) => match store.glance(key) {
                Glance::Object(facts) => facts.version == *version,
                Glance::Missing | Glance::NoObject | Glance::Unknown => false,
            },
            What::Missing(key) => is_missing(store, key),
        };
        is_same.then(|| found.looked_up = moment)
    }
}

fn is_missing(store: &dyn Store, key: &Key) -> bool {
    store.glance(key) == Glance::Missing
}
