//! Names that are known to be missing from stores behind a network. A sparse dataset has far more holes than the other
//! caches have room for.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use xxhash_rust::xxh3::Xxh3;

use super::freshness::{FreshSince, START_NANOSECONDS};
use super::outages::{OutageDetector, RequestTimes};
use crate::store::Key;
use crate::telemetry::metrics;

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

/// A bounded table of missing names, shared by all containers, with the times of the requests that found them missing.
/// If it is full, it forgets the names that were added first.
///
/// A name is stored as a hash of 96 bits with a random seed. At that length, the probability that two of a million
/// names have the same hash is below 10⁻¹⁷. The memory is at most
/// [`KNOWN_MISSING_BYTES`](crate::config::KNOWN_MISSING_BYTES): 320 maps of 4,096 slots, each of 24 bytes and a control
/// byte.
#[derive(Debug)]
pub(crate) struct KnownMissing {
    seed: u64,
    shards: Vec<Mutex<MissingShard>>,
}

/// Hash of a name.
type NameHash = [u32; 3];

#[derive(Debug, Default)]
struct MissingShard {
    /// Names that were added last, until there are [`MAX_NAMES_PER_MAP`].
    recent: HashMap<NameHash, PackedAnswer>,
    /// The names that were in `recent` before.
    previous: HashMap<NameHash, PackedAnswer>,
}

/// The answer of a store that a name is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MissingAnswer {
    pub(crate) times: RequestTimes,
    /// True if the name was requested once more, between two requests that found the dataset.
    pub(crate) is_confirmed: bool,
}

/// A [`MissingAnswer`] in 96 bits: the beginning of the request in 56 bits, its duration in 38, `is_confirmed`, and true
/// if the beginning counts from the start of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PackedAnswer([u32; 3]);

impl PackedAnswer {
    const BEGINNING_BITS: u32 = 56;
    const DURATION_BITS: u32 = 38;

    /// Packs an answer. Returns `None` after two years of operation, and for a request of more than four minutes.
    fn new(answer: MissingAnswer) -> Option<Self> {
        let RequestTimes { began_at, ended_at } = answer.times;
        let duration = ended_at.saturating_sub(began_at);
        let is_recent = began_at >= START_NANOSECONDS;
        let began_at = if is_recent { began_at - START_NANOSECONDS } else { began_at };
        if began_at >> Self::BEGINNING_BITS != 0 || duration >> Self::DURATION_BITS != 0 {
            return None;
        }
        let bits = u128::from(began_at)
            | u128::from(duration) << Self::BEGINNING_BITS
            | u128::from(answer.is_confirmed) << (Self::BEGINNING_BITS + Self::DURATION_BITS)
            | u128::from(is_recent) << (Self::BEGINNING_BITS + Self::DURATION_BITS + 1);
        Some(Self(split(bits)))
    }

    fn unpack(self) -> MissingAnswer {
        let bits = join(self.0);
        let field = |from: u32, count: u32| u64::try_from(bits >> from & ((1 << count) - 1)).unwrap_or_default();
        let is_recent = field(Self::BEGINNING_BITS + Self::DURATION_BITS + 1, 1) == 1;
        let began_at = field(0, Self::BEGINNING_BITS) + if is_recent { START_NANOSECONDS } else { 0 };
        let ended_at = began_at + field(Self::BEGINNING_BITS, Self::DURATION_BITS);
        let is_confirmed = field(Self::BEGINNING_BITS + Self::DURATION_BITS, 1) == 1;
        MissingAnswer { times: RequestTimes { began_at, ended_at }, is_confirmed }
    }
}

/// Returns the lower 96 bits in parts of 32 bits.
fn split(bits: u128) -> [u32; 3] {
    [0, 32, 64].map(|from| u32::try_from(bits >> from & u128::from(u32::MAX)).unwrap_or_default())
}

/// Returns the number that [`split`] has split.
fn join(parts: [u32; 3]) -> u128 {
    parts.into_iter().rev().fold(0, |bits, part| bits << 32 | u128::from(part))
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

    /// Records that the object or directory at `key` of a container was missing.
    fn insert(&self, container: u32, kind: MissingKind, key: &Key, answer: MissingAnswer) {
        let name = self.hash(container, kind, key);
        let Some(mut shard) = self.shard(name) else { return };
        let is_newer = |known: MissingAnswer| known.times.began_at >= answer.times.began_at;
        if !answer.is_confirmed && shard.answer(name).is_some_and(is_newer) {
            return;
        }
        let Some(packed) = PackedAnswer::new(answer) else { return };
        if shard.recent.len() >= MAX_NAMES_PER_MAP && !shard.recent.contains_key(&name) {
            shard.previous = std::mem::take(&mut shard.recent);
        }
        shard.previous.remove(&name);
        shard.recent.insert(name, packed);
    }

    /// Returns the last answer of the store that the object or directory at `key` of a container is missing.
    fn answer(&self, container: u32, kind: MissingKind, key: &Key) -> Option<MissingAnswer> {
        let name = self.hash(container, kind, key);
        self.shard(name)?.answer(name)
    }

    /// Forgets that the object or directory at `key` of a container is missing.
    fn forget(&self, container: u32, kind: MissingKind, key: &Key) {
        let name = self.hash(container, kind, key);
        if let Some(mut shard) = self.shard(name) {
            shard.recent.remove(&name);
            shard.previous.remove(&name);
        }
    }

    fn hash(&self, container: u32, kind: MissingKind, key: &Key) -> NameHash {
        let mut hash = Xxh3::with_seed(self.seed);
        hash.update(&container.to_le_bytes());
        hash.update(&[kind as u8]);
        hash.update(key.as_str().as_bytes());
        split(hash.digest128())
    }

    fn shard(&self, name: NameHash) -> Option<MutexGuard<'_, MissingShard>> {
        let index = usize::try_from(name[0]).unwrap_or_default() % SHARDS;
        Some(self.shards.get(index)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl MissingShard {
    fn answer(&self, name: NameHash) -> Option<MissingAnswer> {
        self.recent.get(&name).or_else(|| self.previous.get(&name)).map(|packed| packed.unpack())
    }
}

/// The known missing names of one container. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct MissingNames {
    table: Arc<KnownMissing>,
    container: u32,
    /// Knowledge about outages of the store; `None` if the store itself reports them.
    outages: Option<Arc<OutageDetector>>,
}

impl MissingNames {
    pub(crate) fn new(table: &Arc<KnownMissing>, container: u32, outages: Option<&Arc<OutageDetector>>) -> Self {
        Self { table: Arc::clone(table), container, outages: outages.cloned() }
    }

    /// Records that the object or directory at `key` was missing.
    pub(crate) fn insert(&self, kind: MissingKind, key: &Key, times: RequestTimes) {
        let answer = MissingAnswer { times, is_confirmed: false };
        self.table.insert(self.container, kind, key, answer);
    }

    /// Records that the object or directory at `key` was missing once more between two requests that found the dataset.
    pub(crate) fn insert_confirmed(&self, kind: MissingKind, key: &Key, times: RequestTimes) {
        let answer = MissingAnswer { times, is_confirmed: true };
        self.table.insert(self.container, kind, key, answer);
    }

    /// Returns the last answer of the store that the object or directory at `key` is missing. It may have been caused by
    /// an outage, unless [`Self::is_certain`] is true.
    pub(crate) fn answer(&self, kind: MissingKind, key: &Key) -> Option<MissingAnswer> {
        self.table.answer(self.container, kind, key)
    }

    /// Returns true if no outage can have been the reason for an answer.
    pub(crate) fn is_certain(&self, answer: MissingAnswer) -> bool {
        answer.is_confirmed || self.outages.as_ref().is_none_or(|outages| outages.covers(answer.times))
    }

    /// Returns the moment at which the object or directory at `key` was requested and missing, if that was at
    /// `fresh_since` or later and no outage can have been the reason.
    pub(crate) fn checked_since(&self, kind: MissingKind, key: &Key, fresh_since: FreshSince) -> Option<u64> {
        let answer = self.answer(kind, key)?;
        let is_fresh = answer.times.began_at >= fresh_since.missing;
        let is_hit = is_fresh && self.is_certain(answer);
        if is_hit {
            metrics::negative_cache_hit();
        }
        is_hit.then_some(answer.times.began_at)
    }

    /// Forgets that the object or directory at `key` is missing.
    pub(crate) fn forget(&self, kind: MissingKind, key: &Key) {
        self.table.forget(self.container, kind, key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> Key {
        Key::root().join_numbers(&[u64::from(n)])
    }

    fn times(began_at: u64, ended_at: u64) -> RequestTimes {
        RequestTimes { began_at, ended_at }
    }

    #[test]
    fn a_million_missing_names_are_remembered_within_the_announced_memory() {
        let table = Arc::<KnownMissing>::default();
        let missing = MissingNames::new(&table, 1, None);
        for n in 0..1_000_000 {
            missing.insert(MissingKind::Object, &key(n), RequestTimes::at(7));
        }
        let is_known = |n| missing.checked_since(MissingKind::Object, &key(n), 7.into()) == Some(7);
        assert!((0..1_000_000).step_by(7).all(is_known));
        for n in 1_000_000..1_300_000 {
            missing.insert(MissingKind::Object, &key(n), RequestTimes::at(7));
        }
        let slots: usize = table
            .shards
            .iter()
            .map(|shard| shard.lock().unwrap())
            // A table of 3,584 names has 4,096 slots.
            .map(|shard| (shard.recent.capacity() + shard.previous.capacity()) * 8 / 7)
            .sum();
        let slot_bytes = size_of::<(NameHash, PackedAnswer)>() + 1;
        let bytes = u64::try_from(slots * slot_bytes).unwrap();
        assert!(bytes < crate::config::KNOWN_MISSING_BYTES, "{slots} of {slot_bytes}");
    }

    #[test]
    fn containers_kinds_and_keys_are_distinguished_and_the_last_request_counts() {
        let table = Arc::<KnownMissing>::default();
        let [first, second] = [1, 2].map(|container| MissingNames::new(&table, container, None));
        first.insert(MissingKind::Object, &key(1), times(5, 9));
        first.insert(MissingKind::Object, &key(1), times(3, 8));
        let answer = MissingAnswer { times: times(5, 9), is_confirmed: false };
        assert_eq!(first.answer(MissingKind::Object, &key(1)), Some(answer));
        assert_eq!(second.answer(MissingKind::Object, &key(1)), None);
        assert_eq!(first.answer(MissingKind::Directory, &key(1)), None);
        assert_eq!(first.answer(MissingKind::Object, &key(2)), None);
        first.forget(MissingKind::Object, &key(1));
        assert_eq!(first.answer(MissingKind::Object, &key(1)), None);
    }

    #[test]
    fn answers_are_packed_without_loss() {
        for (began_at, duration) in
            [(0, 0), (1, 2), ((1 << 56) - 1, (1 << 38) - 1), (START_NANOSECONDS + 7, 8), (987_654_321_012, 45_678_901)]
        {
            for is_confirmed in [false, true] {
                let answer = MissingAnswer { times: times(began_at, began_at + duration), is_confirmed };
                assert_eq!(PackedAnswer::new(answer).unwrap().unpack(), answer);
            }
        }
        let too_long = MissingAnswer { times: times(1, 1 << 40), is_confirmed: false };
        assert_eq!(PackedAnswer::new(too_long), None);
    }

    const SECOND: u64 = 1_000_000_000;

    /// Returns the names of a container whose store is watched for outages.
    fn watched() -> (MissingNames, Arc<OutageDetector>) {
        let outages = Arc::<OutageDetector>::default();
        (MissingNames::new(&Arc::default(), 1, Some(&outages)), outages)
    }

    fn is_known(missing: &MissingNames) -> bool {
        missing.checked_since(MissingKind::Object, &key(1), 0.into()).is_some()
    }

    #[test]
    fn a_name_counts_as_missing_only_if_objects_were_found_shortly_before_and_after() {
        for (found_before, missing_at, found_after, expected) in [
            ((10, 20), (20, 30), (30, 40), true),
            // It began while the object was being requested.
            ((10, 20), (19, 30), (30, 40), false),
            // The object was requested before the answer arrived.
            ((10, 20), (20, 31), (30, 40), false),
            // An outage of more than two seconds fits in between.
            ((10, 20), (20, 30), (30, 10 + 2 * SECOND), true),
            ((10, 20), (20, 30), (30, 11 + 2 * SECOND), false),
        ] {
            let (missing, outages) = watched();
            outages.record_found(times(found_before.0, found_before.1));
            missing.insert(MissingKind::Object, &key(1), times(missing_at.0, missing_at.1));
            assert!(!is_known(&missing), "nothing was found afterwards");
            outages.record_found(times(found_after.0, found_after.1));
            assert_eq!(is_known(&missing), expected, "{found_before:?} {missing_at:?} {found_after:?}");
        }
        let (missing, outages) = watched();
        outages.record_found(times(10, 20));
        missing.insert(MissingKind::Object, &key(1), times(20, 30));
        outages.record_outage();
        outages.record_found(times(30, 40));
        assert!(!is_known(&missing), "an object that must exist was missing, too");
        let (missing, outages) = watched();
        outages.record_found(times(10, 20));
        missing.insert(MissingKind::Object, &key(1), times(20, 30));
        outages.record_found(times(30, 40));
        outages.record_outage();
        outages.record_found(times(60 * SECOND, 60 * SECOND + 1));
        assert!(is_known(&missing), "a later outage does not matter");
    }

    #[test]
    fn a_name_that_was_missing_in_two_outages_does_not_count_as_missing() {
        let (missing, outages) = watched();
        outages.record_found(times(10, 20));
        for second in [1, 3] {
            missing.insert(MissingKind::Object, &key(1), times(second * SECOND, second * SECOND + 1));
            outages.record_outage();
            outages.record_found(times((second + 1) * SECOND, (second + 1) * SECOND + 1));
        }
        assert!(!is_known(&missing));
    }
}
