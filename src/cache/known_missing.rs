//! Names that are known to be missing from stores behind a network. A sparse dataset has far more holes than the other
//! caches have room for.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::Xxh3;

use super::freshness::FreshSince;
use crate::store::Key;

/// Number of parts of the table. Each has a lock of its own.
const SHARDS: usize = 160;

/// Maximum number of names in each of the two maps of a shard: as many as fit into 4,096 slots of a hash table.
const MAX_NAMES_PER_MAP: usize = 3584;

/// Kind of a name that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingKind {
    /// No object has the name.
    Object,
    /// No directory has the name.
    Directory,
}

/// A bounded table of missing names, shared by all containers, with the moments at which the store was last asked. If
/// it is full, it forgets the names that were added first.
///
/// A name is stored as a hash of 128 bits with a random seed. At that length, the probability that two of a million
/// names have the same hash is below 10⁻²⁶. The memory is at most
/// [`KNOWN_MISSING_BYTES`](crate::config::KNOWN_MISSING_BYTES): 320 maps of 4,096 slots, each of 24 bytes and a control
/// byte.
#[derive(Debug)]
pub(crate) struct KnownMissing {
    seed: u64,
    shards: Vec<Mutex<MissingShard>>,
}

#[derive(Debug, Default)]
struct MissingShard {
    /// Names that were added last, until there are [`MAX_NAMES_PER_MAP`].
    recent: HashMap<(u64, u64), u64>,
    /// The names that were in `recent` before.
    previous: HashMap<(u64, u64), u64>,
}

impl Default for KnownMissing {
    fn default() -> Self {
        let seed = RandomState::new().hash_one(0);
        Self { seed, shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl KnownMissing {
    /// Forgets all names and frees their memory.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            *shard.lock().unwrap_or_else(PoisonError::into_inner) = MissingShard::default();
        }
    }

    /// Records that the object or directory at `key` of a container was missing at the moment `checked_at`.
    fn insert(&self, container: u32, kind: MissingKind, key: &Key, checked_at: u64) {
        let name = self.hash(container, kind, key);
        let Some(mut shard) = self.shard(name) else { return };
        let known = shard.checked_at(name).unwrap_or(0);
        if shard.recent.len() >= MAX_NAMES_PER_MAP && !shard.recent.contains_key(&name) {
            shard.previous = std::mem::take(&mut shard.recent);
        }
        shard.previous.remove(&name);
        shard.recent.insert(name, known.max(checked_at));
    }

    /// Returns the last moment at which the store reported the object or directory at `key` of a container as missing.
    fn checked_at(&self, container: u32, kind: MissingKind, key: &Key) -> Option<u64> {
        let name = self.hash(container, kind, key);
        self.shard(name)?.checked_at(name)
    }

    /// Forgets that the object or directory at `key` of a container is missing.
    fn forget(&self, container: u32, kind: MissingKind, key: &Key) {
        let name = self.hash(container, kind, key);
        if let Some(mut shard) = self.shard(name) {
            shard.recent.remove(&name);
            shard.previous.remove(&name);
        }
    }

    fn hash(&self, container: u32, kind: MissingKind, key: &Key) -> (u64, u64) {
        let mut hash = Xxh3::with_seed(self.seed);
        hash.update(&container.to_le_bytes());
        hash.update(&[kind as u8]);
        hash.update(key.as_str().as_bytes());
        let hash = hash.digest128();
        let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or_default();
        (half(hash >> 64), half(hash))
    }

    fn shard(&self, name: (u64, u64)) -> Option<MutexGuard<'_, MissingShard>> {
        let index = usize::try_from(name.0 % SHARDS as u64).unwrap_or_default();
        Some(self.shards.get(index)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The known missing names of one container. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct MissingNames {
    table: Arc<KnownMissing>,
    container: u32,
}

impl MissingNames {
    pub(crate) fn new(table: &Arc<KnownMissing>, container: u32) -> Self {
        Self { table: Arc::clone(table), container }
    }

    /// Records that the object or directory at `key` was missing at the moment `checked_at`.
    pub(crate) fn insert(&self, kind: MissingKind, key: &Key, checked_at: u64) {
        self.table.insert(self.container, kind, key, checked_at);
    }

    /// Returns the last moment at which the store reported the object or directory at `key` as missing.
    pub(crate) fn checked_at(&self, kind: MissingKind, key: &Key) -> Option<u64> {
        self.table.checked_at(self.container, kind, key)
    }

    /// Returns the result of [`Self::checked_at`] if the store was asked at `fresh_since` or later.
    pub(crate) fn checked_since(&self, kind: MissingKind, key: &Key, fresh_since: FreshSince) -> Option<u64> {
        self.checked_at(kind, key).filter(|checked_at| *checked_at >= fresh_since.missing)
    }

    /// Forgets that the object or directory at `key` is missing.
    pub(crate) fn forget(&self, kind: MissingKind, key: &Key) {
        self.table.forget(self.container, kind, key);
    }
}

impl MissingShard {
    fn checked_at(&self, name: (u64, u64)) -> Option<u64> {
        self.recent.get(&name).or_else(|| self.previous.get(&name)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> Key {
        Key::root().join_numbers(&[u64::from(n)])
    }

    #[test]
    fn a_million_missing_names_are_remembered_within_the_announced_memory() {
        let missing = KnownMissing::default();
        for n in 0..1_000_000 {
            missing.insert(1, MissingKind::Object, &key(n), 7);
        }
        assert!((0..1_000_000).step_by(7).all(|n| missing.checked_at(1, MissingKind::Object, &key(n)) == Some(7)));
        for n in 1_000_000..1_300_000 {
            missing.insert(1, MissingKind::Object, &key(n), 7);
        }
        let slots: usize = missing
            .shards
            .iter()
            .map(|shard| shard.lock().unwrap())
            // A table of 3,584 names has 4,096 slots.
            .map(|shard| (shard.recent.capacity() + shard.previous.capacity()) * 8 / 7)
            .sum();
        assert!(slots as u64 * 25 < crate::config::KNOWN_MISSING_BYTES, "{slots}");
    }

    #[test]
    fn containers_kinds_and_keys_are_distinguished() {
        let missing = KnownMissing::default();
        missing.insert(1, MissingKind::Object, &key(1), 5);
        missing.insert(1, MissingKind::Object, &key(1), 3);
        assert_eq!(missing.checked_at(1, MissingKind::Object, &key(1)), Some(5));
        assert_eq!(missing.checked_at(2, MissingKind::Object, &key(1)), None);
        assert_eq!(missing.checked_at(1, MissingKind::Directory, &key(1)), None);
        assert_eq!(missing.checked_at(1, MissingKind::Object, &key(2)), None);
        missing.forget(1, MissingKind::Object, &key(1));
        assert_eq!(missing.checked_at(1, MissingKind::Object, &key(1)), None);
    }
}
