//! A cache of a given number of bytes that evicts the least recently used block.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::random::hash;

/// An LRU cache. It stores keys and sizes, no contents.
pub(crate) struct LruCache {
    capacity_bytes: u64,
    bytes: u64,
    index: HashMap<u64, usize, BuildHasherDefault<KeyHasher>>,
    /// Entry 0 is the head of a ring: its `next` is the newest entry, its `previous` the oldest.
    entries: Vec<Entry>,
    /// Indices of unused entries.
    free: Vec<usize>,
}

#[derive(Clone, Copy)]
struct Entry {
    key: u64,
    bytes: u64,
    previous: usize,
    next: usize,
}

impl LruCache {
    pub(crate) fn new(capacity_bytes: u64) -> Self {
        let head = Entry { key: 0, bytes: 0, previous: 0, next: 0 };
        Self { capacity_bytes, bytes: 0, index: HashMap::default(), entries: vec![head], free: Vec::new() }
    }

    /// Returns true if the block is cached. Otherwise inserts it, and evicts others to make room.
    pub(crate) fn get_or_insert(&mut self, key: u64, bytes: u64) -> bool {
        if let Some(&at) = self.index.get(&key) {
            self.unlink(at);
            self.link_newest(at);
            return true;
        }
        if bytes <= self.capacity_bytes {
            while self.bytes + bytes > self.capacity_bytes {
                self.evict_oldest();
            }
            let entry = Entry { key, bytes, previous: 0, next: 0 };
            let at = self.free.pop().unwrap_or(self.entries.len());
            match self.entries.get_mut(at) {
                Some(unused) => *unused = entry,
                None => self.entries.push(entry),
            }
            self.index.insert(key, at);
            self.bytes += bytes;
            self.link_newest(at);
        }
        false
    }

    fn evict_oldest(&mut self) {
        let at = self.entries[0].previous;
        self.unlink(at);
        self.index.remove(&self.entries[at].key);
        self.bytes -= self.entries[at].bytes;
        self.free.push(at);
    }

    fn unlink(&mut self, at: usize) {
        let Entry { previous, next, .. } = self.entries[at];
        self.entries[previous].next = next;
        self.entries[next].previous = previous;
    }

    fn link_newest(&mut self, at: usize) {
        let next = self.entries[0].next;
        self.entries[at].previous = 0;
        self.entries[at].next = next;
        self.entries[0].next = at;
        self.entries[next].previous = at;
    }
}

/// Hasher of block keys, faster than that of the standard library.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = hash(self.0 ^ key);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn the_cache_behaves_like_a_list_of_blocks_in_the_order_of_their_use() {
        let mut random = Random::new(7);
        let (mut cache, mut model) = (LruCache::new(1000), Vec::<(u64, u64)>::new());
        let mut hits = 0;
        for _ in 0..20_000 {
            let key = random.below(40);
            let bytes = 20 + key * 5;
            let is_hit = model.iter().any(|entry| entry.0 == key);
            model.retain(|entry| entry.0 != key);
            model.push((key, bytes));
            while model.iter().map(|entry| entry.1).sum::<u64>() > 1000 {
                model.remove(0);
            }
            assert_eq!(cache.get_or_insert(key, bytes), is_hit);
            assert_eq!(cache.bytes, model.iter().map(|entry| entry.1).sum::<u64>());
            assert!(cache.entries.len() <= 42, "entries are reused");
            hits += u32::from(is_hit);
        }
        assert!((2_000..18_000).contains(&hits), "{hits}");
    }

    #[test]
    fn a_block_larger_than_the_cache_is_not_cached_and_evicts_nothing() {
        let mut cache = LruCache::new(100);
        assert!(!cache.get_or_insert(1, 60));
        assert!(!cache.get_or_insert(2, 101));
        assert!(!cache.get_or_insert(2, 101));
        assert!(cache.get_or_insert(1, 60));
    }
}
