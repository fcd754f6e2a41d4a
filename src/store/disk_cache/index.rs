//! The index of the disk cache: which objects are on the disk, in 61 bytes of memory each at most.
//!
//! The entries of a shard lie in a vector, so that a victim can be sampled at random. A hash table of their positions
//! finds them by name. A map of entries would need twice the memory and could not be sampled.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::store::key::Key;

/// Number of shards. Each has a lock of its own.
const SHARDS: usize = 64;

/// Maximum memory of an entry, including its share of unused capacity.
pub(super) const MAX_ENTRY_BYTES: u64 = 64;

/// Number of entries from which a victim is chosen. Of 8, the least recently used one belongs to the oldest third of
/// all entries with a probability of 96 %.
const SAMPLES: u64 = 8;

/// Bytes that a file takes besides its blocks: its directory entry, in directories that are not full.
const DIRECTORY_ENTRY_BYTES: u64 = 64;

/// Unit in which the system counts allocated blocks.
const BLOCK_BYTES: u64 = 512;

/// Name of an object in the cache: a hash of its container and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EntryName([u32; 4]);

impl EntryName {
    /// Returns the name of the object at `key`. `container` is the hash of the container's identity.
    pub(super) fn new(container: u64, key: &Key) -> Self {
        Self::from_hash(xxh3_128_with_seed(key.as_str().as_bytes(), container))
    }

    pub(super) fn from_hash(hash: u128) -> Self {
        let part = |shift: u32| u32::try_from((hash >> shift) & u128::from(u32::MAX)).unwrap_or_default();
        Self([part(0), part(32), part(64), part(96)])
    }

    pub(super) fn hash(self) -> u128 {
        self.0.iter().rev().fold(0, |hash, part| hash << 32 | u128::from(*part))
    }

    fn shard(self) -> usize {
        self.0[0] as usize % SHARDS
    }

    /// Returns a number below `count`, which does not depend on the shard.
    pub(super) fn lane(self, count: usize) -> usize {
        self.0[1] as usize % count.max(1)
    }

    /// Returns a hash for the table. It does not depend on the shard.
    fn table_hash(self) -> u64 {
        u64::from(self.0[3]) << 32 | u64::from(self.0[2])
    }
}

/// An object on the disk. Times are in seconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiskEntry {
    pub(super) name: EntryName,
    version: [u32; 2],
    /// Length of the object. Known if `stamp` is not 0.
    pub(super) len: u32,
    /// Time of the last use.
    pub(super) used: u32,
    /// Time at which the object was last known to equal the stored one.
    pub(super) validated: u32,
    /// Hash of the file's metadata when this process wrote the file or found its checksum to be right. 0 if the file
    /// has not been checked; version and length are then unknown.
    pub(super) stamp: u32,
    /// Allocated blocks of 512 bytes.
    pub(super) blocks: u16,
    /// Number of the container.
    pub(super) container: u16,
}

impl DiskEntry {
    /// Creates an entry for a file with this number of allocated blocks that has not been checked.
    pub(super) fn unchecked(name: EntryName, container: u16, blocks: u64, validated: u32, used: u32) -> Self {
        let blocks = u16::try_from(blocks).unwrap_or(u16::MAX);
        Self { name, version: [0; 2], len: 0, used, validated, stamp: 0, blocks, container }
    }

    /// Returns the entry as that of a checked file.
    pub(super) fn checked(self, version: u64, len: u64, stamp: u32) -> Self {
        let low = u32::try_from(version & u64::from(u32::MAX)).unwrap_or_default();
        let high = u32::try_from(version >> 32).unwrap_or_default();
        Self { version: [low, high], len: u32::try_from(len).unwrap_or(u32::MAX), stamp, ..self }
    }

    /// Returns the version of the object if the file was checked.
    pub(super) fn version(&self) -> Option<u64> {
        (self.stamp != 0).then(|| u64::from(self.version[1]) << 32 | u64::from(self.version[0]))
    }

    /// Returns the space that the file takes on the disk.
    pub(super) fn bytes(&self) -> u64 {
        allocated_bytes(self.blocks.into())
    }
}

/// Returns the space that a file with this number of allocated blocks of 512 bytes takes on the disk.
pub(super) fn allocated_bytes(blocks: u64) -> u64 {
    blocks.saturating_mul(BLOCK_BYTES).saturating_add(DIRECTORY_ENTRY_BYTES)
}

#[derive(Debug, Default)]
struct IndexShard {
    entries: Vec<DiskEntry>,
    positions: HashTable<u32>,
    /// State of the generator of random positions.
    random: u64,
}

impl IndexShard {
    fn position(&self, name: EntryName) -> Option<usize> {
        let is_it = |position: &u32| self.entries.get(*position as usize).is_some_and(|entry| entry.name == name);
        self.positions.find(name.table_hash(), is_it).map(|position| *position as usize)
    }

    fn get_mut(&mut self, name: EntryName) -> Option<&mut DiskEntry> {
        let position = self.position(name)?;
        self.entries.get_mut(position)
    }

    fn add(&mut self, entry: DiskEntry) {
        let len = self.entries.len();
        let Ok(position) = u32::try_from(len) else { return };
        if len == self.entries.capacity() {
            // Doubling the capacity would leave up to half of it unused.
            self.entries.reserve_exact((len / 8).max(16));
        }
        self.entries.push(entry);
        let entries = &self.entries;
        let hash_of = |position: &u32| entries.get(*position as usize).map_or(0, |entry| entry.name.table_hash());
        self.positions.insert_unique(entry.name.table_hash(), position, hash_of);
    }

    fn remove_at(&mut self, position: usize) -> Option<DiskEntry> {
        let last = self.entries.len().checked_sub(1)?;
        let name = self.entries.get(position)?.name;
        let moved = self.entries.get(last)?.name;
        let is_at = |wanted: usize| move |found: &u32| *found as usize == wanted;
        if let Ok(found) = self.positions.find_entry(name.table_hash(), is_at(position)) {
            found.remove();
        }
        if position != last
            && let Some(found) = self.positions.find_mut(moved.table_hash(), is_at(last))
        {
            *found = u32::try_from(position).unwrap_or_default();
        }
        Some(self.entries.swap_remove(position))
    }

    /// Returns a random number (xorshift64).
    fn next_random(&mut self) -> u64 {
        let mut x = self.random.max(1);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random = x;
        x
    }
}

/// The objects on the disk.
#[derive(Debug)]
pub(super) struct DiskIndex {
    shards: Box<[Mutex<IndexShard>]>,
    next_victim_shard: AtomicUsize,
    count: AtomicU64,
}

impl Default for DiskIndex {
    fn default() -> Self {
        let shard =
            |number: u64| IndexShard { random: number.wrapping_mul(0x9e37_79b9_7f4a_7c15), ..Default::default() };
        let shards = (1..=SHARDS as u64).map(|number| Mutex::new(shard(number))).collect();
        Self { shards, next_victim_shard: AtomicUsize::new(0), count: AtomicU64::new(0) }
    }
}

impl DiskIndex {
    fn lock(shard: &Mutex<IndexShard>) -> MutexGuard<'_, IndexShard> {
        // A panic cannot poison a shard: the code under the lock never leaves it inconsistent.
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, name: EntryName, call: impl FnOnce(&mut IndexShard) -> T) -> Option<T> {
        self.shards.get(name.shard()).map(|shard| call(&mut Self::lock(shard)))
    }

    /// Returns the entry of this name, and records its use at `now`.
    pub(super) fn get(&self, name: EntryName, now: u32) -> Option<DiskEntry> {
        self.update(name, |entry| {
            entry.used = now;
            *entry
        })
    }

    /// Changes the entry of this name, if there is one, and returns the result of the change.
    pub(super) fn update<T>(&self, name: EntryName, change: impl FnOnce(&mut DiskEntry) -> T) -> Option<T> {
        self.with(name, |shard| shard.get_mut(name).map(change)).flatten()
    }

    /// Adds an entry, or replaces that of the same name, if `is_allowed` returns true. Returns true if it did, and the
    /// replaced entry. `is_allowed` is called while no other change of this name is possible.
    pub(super) fn insert(&self, entry: DiskEntry, is_allowed: impl FnOnce() -> bool) -> (bool, Option<DiskEntry>) {
        self.with(entry.name, |shard| {
            if !is_allowed() {
                return (false, None);
            }
            let replaced = shard.get_mut(entry.name).map(|found| std::mem::replace(found, entry));
            if replaced.is_none() {
                self.count.fetch_add(1, Ordering::Relaxed);
                shard.add(entry);
            }
            (true, replaced)
        })
        .unwrap_or_default()
    }

    /// Adds an entry unless there is one of the same name or `is_allowed` returns false. Returns true if it did.
    pub(super) fn insert_if_absent(&self, entry: DiskEntry, is_allowed: impl FnOnce() -> bool) -> bool {
        let insert = |shard: &mut IndexShard| {
            let is_inserted = shard.position(entry.name).is_none() && is_allowed();
            if is_inserted {
                self.count.fetch_add(1, Ordering::Relaxed);
                shard.add(entry);
            }
            is_inserted
        };
        self.with(entry.name, insert).unwrap_or_default()
    }

    fn remove_at(&self, shard: &mut IndexShard, position: usize) -> Option<DiskEntry> {
        let removed = shard.remove_at(position);
        self.count.fetch_sub(u64::from(removed.is_some()), Ordering::Relaxed);
        removed
    }

    /// Returns the number of entries.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Removes and returns the entry of this name.
    pub(super) fn remove(&self, name: EntryName) -> Option<DiskEntry> {
        let remove = |shard: &mut IndexShard| {
            let position = shard.position(name)?;
            self.remove_at(shard, position)
        };
        self.with(name, remove).flatten()
    }

    /// Removes and returns the least recently used entry of a few that are chosen at random. Returns `None` if the
    /// index is empty.
    pub(super) fn remove_victim(&self) -> Option<DiskEntry> {
        let first = self.next_victim_shard.fetch_add(1, Ordering::Relaxed);
        (0..SHARDS).find_map(|offset| {
            let mut shard = Self::lock(self.shards.get(first.wrapping_add(offset) % SHARDS)?);
            let count = shard.entries.len() as u64;
            if count == 0 {
                return None;
            }
            let sample = |shard: &mut IndexShard| {
                let position = usize::try_from(shard.next_random() % count).unwrap_or_default();
                shard.entries.get(position).map(|entry| (entry.used, position))
            };
            let (_, position) = (0..SAMPLES).filter_map(|_| sample(&mut shard)).min()?;
            self.remove_at(&mut shard, position)
        })
    }

    /// Removes all entries of a container and returns the space that their files take.
    pub(super) fn remove_container(&self, container: u16) -> u64 {
        let mut bytes = 0_u64;
        for shard in &self.shards {
            let mut shard = Self::lock(shard);
            let mut position = 0;
            while let Some(entry) = shard.entries.get(position) {
                if entry.container == container {
                    bytes = bytes.saturating_add(entry.bytes());
                    self.remove_at(&mut shard, position);
                } else {
                    position += 1;
                }
            }
        }
        bytes
    }

    /// Removes all entries and frees their memory.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let mut shard = Self::lock(shard);
            let random = shard.random;
            self.count.fetch_sub(shard.entries.len() as u64, Ordering::Relaxed);
            *shard = IndexShard { random, ..Default::default() };
        }
    }

    /// Returns the memory that the entries take, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        let shard_bytes = |shard: &Mutex<IndexShard>| {
            let shard = Self::lock(shard);
            (shard.entries.capacity() * size_of::<DiskEntry>() + shard.positions.allocation_size()) as u64
        };
        self.shards.iter().map(shard_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn entry(number: u64, container: u16, blocks: u64, used: u32) -> DiskEntry {
        let name = EntryName::new(7, &Key::root().join_numbers(&[number]));
        DiskEntry::unchecked(name, container, blocks, 1, used).checked(number << 33 | number, number, 5)
    }

    #[derive(Debug, Clone)]
    enum IndexStep {
        Insert(u64, u16, u64),
        InsertIfAbsent(u64, u16, u64),
        Remove(u64),
        Victim,
        Get(u64),
        Forget(u16),
    }

    fn steps() -> impl Strategy<Value = Vec<IndexStep>> {
        let step = prop_oneof![
            8 => (0..200_u64, 0..3_u16, 1..99_u64).prop_map(|(n, c, b)| IndexStep::Insert(n, c, b)),
            4 => (0..200_u64, 0..3_u16, 1..99_u64).prop_map(|(n, c, b)| IndexStep::InsertIfAbsent(n, c, b)),
            4 => (0..200_u64).prop_map(IndexStep::Remove),
            2 => Just(IndexStep::Victim),
            4 => (0..200_u64).prop_map(IndexStep::Get),
            1 => (0..3_u16).prop_map(IndexStep::Forget),
        ];
        proptest::collection::vec(step, 0..600)
    }

    proptest! {
        #[test]
        fn the_index_equals_a_map(steps in steps()) {
            let index = DiskIndex::default();
            let mut model = BTreeMap::new();
            for step in steps {
                match step {
                    IndexStep::Insert(number, container, blocks) => {
                        let entry = entry(number, container, blocks, 0);
                        prop_assert_eq!(index.insert(entry, || true), (true, model.insert(entry.name, entry)));
                        prop_assert_eq!(index.insert(entry, || false), (false, None));
                    }
                    IndexStep::InsertIfAbsent(number, container, blocks) => {
                        let entry = entry(number, container, blocks, 0);
                        prop_assert_eq!(index.insert_if_absent(entry, || true), !model.contains_key(&entry.name));
                        model.entry(entry.name).or_insert(entry);
                    }
                    IndexStep::Remove(number) => {
                        let name = entry(number, 0, 0, 0).name;
                        prop_assert_eq!(index.remove(name), model.remove(&name));
                    }
                    IndexStep::Victim => match index.remove_victim() {
                        Some(victim) => prop_assert_eq!(model.remove(&victim.name), Some(victim)),
                        None => prop_assert!(model.is_empty()),
                    },
                    IndexStep::Get(number) => {
                        let name = entry(number, 0, 0, 0).name;
                        prop_assert_eq!(index.get(name, 0), model.get(&name).copied());
                    }
                    IndexStep::Forget(container) => {
                        let is_its = |entry: &&DiskEntry| entry.container == container;
                        let bytes: u64 = model.values().filter(is_its).map(DiskEntry::bytes).sum();
                        prop_assert_eq!(index.remove_container(container), bytes);
                        model.retain(|_, entry| entry.container != container);
                    }
                }
                prop_assert_eq!(index.count(), model.len() as u64);
            }
        }
    }

    #[test]
    fn an_entry_takes_at_most_64_bytes_at_every_size() {
        assert_eq!(size_of::<DiskEntry>(), 44);
        let index = DiskIndex::default();
        let mut worst = 0;
        for number in 0..300_000 {
            index.insert(entry(number, 0, 8, 0), || true);
            // Below a few thousand entries, the minimum capacities count.
            if number > 30_000 && number % 1000 == 0 {
                worst = worst.max(index.memory_bytes().div_ceil(index.count()));
            }
        }
        assert!((45..=MAX_ENTRY_BYTES).contains(&worst), "{worst}");
        index.clear();
        assert_eq!((index.count(), index.memory_bytes()), (0, 0));
    }

    #[test]
    fn a_name_is_its_hash() {
        for hash in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_0011_2233_4455_6677] {
            assert_eq!(EntryName::from_hash(hash).hash(), hash);
        }
    }

    #[test]
    fn victims_are_mostly_entries_that_were_not_used_for_long() {
        let index = DiskIndex::default();
        for number in 0..10_000 {
            index.insert(entry(number, 0, 8, u32::try_from(number).unwrap()), || true);
        }
        let victims: Vec<u32> = (0..1000).filter_map(|_| index.remove_victim()).map(|entry| entry.used).collect();
        let old = victims.iter().filter(|used| **used < 4000).count();
        assert!(old > 930, "{old}");
        assert!(victims.iter().all(|used| *used < 9_900));
    }
}
