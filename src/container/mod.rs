//! A container: the only place that knows both what bytes mean and where they live.

mod admit;
mod again;
mod ahead;
mod asked;
mod at_once;
mod bands;
mod blocks;
mod browse;
mod budget;
mod canvas;
mod check;
mod cost;
mod datasets;
mod error;
mod existing;
mod fetch;
mod footprint;
mod fresh;
mod hold;
mod holes;
mod large;
mod loaded;
mod made;
mod measured;
mod memory;
mod objects;
mod partial;
mod permit;
mod pinned;
mod pool;
mod ready;
mod renewed;
mod sample;
mod shared;
mod sight;
mod slice;
mod stats;
mod wanted;
mod whole;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use moka::future::Cache;
use moka::notification::RemovalCause;
use moka::ops::compute::Op;
use moka::policy::EvictionPolicy;

pub use admit::{Sending, Slice};
pub use again::{Found, Trail};
pub use bands::{Bands, Refusal};
pub(crate) use browse::grid_component;
pub use browse::{EntryKind, Listed, ListedEntry};
pub use check::SoundBlock;
pub use datasets::{Dataset, Group, GroupState};
pub use error::{BudgetError, ReadError};
pub use fresh::{Access, Recheck};
pub use large::LargeObject;
pub use made::{Made, Make, Recipe};
pub use memory::Memory;
pub use objects::Stored;
pub use pinned::Turn;
pub use ready::AtOnce;
pub use sample::{Sample, Survey};
pub use sight::Sight;
pub use slice::Finish;
pub use stats::{Fingerprint, ReadStats};

use blocks::Blocks;
use budget::Budget;
use datasets::Datasets;
use measured::measured;
use objects::Objects;
use permit::Permit;

use crate::cpu::Cpu;
use crate::fair::Client;
use crate::metrics::{self, StoreOperation};
use crate::store::{Glance, Key, Load, Meta, Store};

/// Name of the file that holds a group's attributes.
pub const ATTRIBUTES: &str = "attributes.json";

/// Shorter bodies do not count as memory of those that they are sent to: the kernel takes them at once.
const UNCOUNTED_BYTES: usize = 4 << 10;

/// Bounds and cache sizes, in bytes unless the type says otherwise.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Decoded blocks kept.
    pub decoded_cache: u64,
    /// Files kept as stored.
    pub stored_cache: u64,
    /// Whether the caches weigh how often an entry is used (TinyLFU), not only when (LRU).
    pub weigh_frequency: bool,
    /// When cached attributes are compared with the store.
    pub recheck_metadata: Recheck,
    /// When cached blocks are compared with the store.
    pub recheck_data: Recheck,
    /// Largest slice.
    pub slice: u64,
    /// Results being assembled and sent.
    pub slice_budget: u64,
    /// Blocks being decoded, beyond the cache; also the most that one block may take.
    pub decode_budget: u64,
    /// Stored objects being read and sent, beyond the cache.
    pub transfer_budget: u64,
    /// How many times the bytes of an answer may be decoded for it.
    pub decode_factor: u64,
    /// Largest `attributes.json` that is parsed.
    pub attributes: u64,
    /// Longest wait for a share of a budget.
    pub budget_wait: Duration,
    /// Blocks decoded at once.
    pub cores: usize,
}

/// Caches, budgets and the CPU lane, shared by all containers of a process.
#[derive(Debug)]
pub struct Resources {
    settings: Settings,
    objects: Objects,
    datasets: Datasets,
    blocks: Blocks,
    cpu: Cpu,
    slice_budget: Budget,
    containers: Arc<AtomicU32>,
}

impl Resources {
    /// Empty caches and whole budgets.
    pub fn new(settings: Settings) -> Arc<Self> {
        let cpu = Cpu::new(settings.cores);
        Self::on(cpu, settings)
    }

    fn on(cpu: Cpu, settings: Settings) -> Arc<Self> {
        let of = |capacity_bytes| CacheSettings { capacity_bytes, weigh_frequency: settings.weigh_frequency };
        let wait = settings.budget_wait;
        let objects = Objects::new(of(settings.stored_cache), settings.transfer_budget, wait);
        let decoded = of(settings.decoded_cache);
        let blocks = Blocks::new(decoded, objects.clone(), cpu.clone(), settings.decode_budget, wait);
        Arc::new(Self {
            slice_budget: Budget::new(metrics::Budget::Slice, settings.slice_budget, wait),
            datasets: Datasets::new(wait),
            containers: Arc::default(),
            objects,
            blocks,
            cpu,
            settings,
        })
    }

    /// The bounds in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The CPU lane.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// The same for one container: its requests that wait are told apart from others'.
    fn of_one(&self) -> Arc<Self> {
        let objects = self.objects.of_one();
        Arc::new(Self {
            slice_budget: self.slice_budget.of_one(),
            datasets: self.datasets.of_one(),
            containers: Arc::clone(&self.containers),
            blocks: self.blocks.of_one(&objects),
            objects,
            cpu: self.cpu.clone(),
            settings: self.settings.clone(),
        })
    }

    /// To be called a few times a second: gives back to the system what is kept for results that do not come.
    pub fn tidy(&self) {
        self.slice_budget.tidy();
        self.objects.budget.tidy();
        self.blocks.budget.tidy();
    }

    /// What a request that starts now accepts from the caches.
    pub fn begin(&self) -> Access {
        Access::begin(self.settings.recheck_metadata, self.settings.recheck_data)
    }
}

/// An N5 hierarchy in a store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Container {
    id: u32,
    store: Arc<dyn Store>,
    resources: Arc<Resources>,
    /// Who looks, where not everybody sees everything.
    sight: Option<Arc<dyn Sight>>,
}

impl Container {
    /// The hierarchy in `store`.
    #[expect(clippy::needless_pass_by_value, reason = "it has its own handle to all that they hold")]
    pub fn new(store: Arc<dyn Store>, resources: Arc<Resources>) -> Self {
        let id = resources.containers.fetch_add(1, Ordering::Relaxed);
        Self { id, store, resources: resources.of_one(), sight: None }
    }

    /// What all containers share.
    pub fn resources(&self) -> &Arc<Resources> {
        &self.resources
    }

    /// The object at `key` as stored: attributes or a block; `None` where there is none.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails, a link hides a block, or memory is short.
    pub async fn object(&self, access: Access, key: &Key) -> Result<Option<Stored>, ReadError> {
        if !self.sees(key) {
            return Ok(None);
        }
        self.resources.objects.get(self.id, &self.store, key, access).await
    }

    /// `bytes` of a stored object, or made of some, to be sent to `client`: as long as they are, they count as its own. `None`
    /// where it has too much that it does not take: then let go of them, wait for its [`turn`](Self::turn_to_send), and find
    /// them anew.
    pub fn sent(&self, client: Client, bytes: &Bytes) -> Option<Bytes> {
        if bytes.len() < UNCOUNTED_BYTES {
            Some(bytes.clone())
        } else {
            self.resources.objects.budget.sent(client, bytes)
        }
    }

    /// Waits until so many bytes may be sent to the current client.
    ///
    /// # Errors
    /// [`ReadError::Budget`] when it does not take what it asked for before.
    pub async fn turn_to_send(&self, len: usize) -> Result<Turn, ReadError> {
        Ok(self.resources.objects.budget.turn(len).await?)
    }

    /// As [`Self::sent`], of bytes whose turn it is.
    pub fn sent_in_turn(&self, turn: Turn, bytes: Bytes) -> Bytes {
        self.resources.objects.budget.sent_in_turn(turn, bytes)
    }

    /// Facts about the object at `key`, from the cache where it is fresh; reads no bytes.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn meta(&self, access: Access, key: &Key) -> Result<Option<Meta>, ReadError> {
        if !self.sees(key) {
            return Ok(None);
        }
        let since = access.since(key);
        if let Some(known) = self.resources.objects.peek(self.id, key, since).await {
            return Ok(known);
        }
        match self.store.glance(key) {
            Glance::Object(facts) => Ok(Some(facts.into())),
            Glance::Missing | Glance::NoObject => Ok(None),
            Glance::Unknown => {
                access.may_wait().await;
                Ok(measured(StoreOperation::Head, self.store.backend(), self.store.head(key)).await?)
            }
        }
    }

    /// Calls of the store that wait now.
    pub fn load(&self) -> Load {
        self.store.load()
    }

    /// Whether the store can be read.
    ///
    /// # Errors
    /// [`ReadError::Store`] says why not.
    pub async fn probe(&self) -> Result<(), ReadError> {
        Ok(measured(StoreOperation::Head, self.store.backend(), self.store.probe()).await?)
    }
}

#[derive(Debug, Clone, Copy)]
struct CacheSettings {
    capacity_bytes: u64,
    weigh_frequency: bool,
}

impl CacheSettings {
    /// The most that the cache holds: one part in 64 is added for the bookkeeping that weighers count, so that
    /// data of exactly the configured size fits.
    fn held_bytes(self) -> u64 {
        self.capacity_bytes.saturating_add(self.capacity_bytes / 64)
    }
}

/// A cache weighed in bytes.
fn cache_of<K, V>(label: metrics::Cache, settings: CacheSettings, weigher: fn(&K, &V) -> u32) -> Cache<K, V>
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let policy = if settings.weigh_frequency { EvictionPolicy::tiny_lfu() } else { EvictionPolicy::lru() };
    Cache::builder()
        // One without capacity never gives back what passes through it, however often it is told to: a share of a budget
        // that nobody has any more. Nothing fits into one of a byte either.
        .max_capacity(settings.held_bytes().max(1))
        .eviction_policy(policy)
        .weigher(weigher)
        .eviction_listener(move |_, _, cause| {
            if cause == RemovalCause::Size {
                metrics::cache_eviction(label);
            }
        })
        .build()
}

/// After what time a cache is told again to let go of what it has evicted; then after twice as long each time.
const NUDGE: Duration = Duration::from_millis(5);

/// Nudges after which a cache gives up entries, 75 ms after the first.
const PATIENT_NUDGES: u32 = 4;

/// A cache gives up one entry in so many at a time.
const GIVEN_UP: usize = 8;

/// Waits for a share of `bytes` of a budget of which a cache holds the most: what that evicts it frees later, sooner when nudged.
/// Where so much is not free because clients do not take what is sent to them of evicted entries, the cache makes room for it.
/// A client that waits for what it has itself is not helped by that.
async fn nudging<K, V>(
    cache: &Cache<K, V>,
    budget: &Budget,
    bytes: u64,
    share: impl Future<Output = Result<Permit, BudgetError>>,
) -> Result<Permit, ReadError>
where
    K: Clone + std::hash::Hash + Eq + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    let nudge = async {
        for doubled in 0u32.. {
            cache.run_pending_tasks().await;
            let beside_cache = budget.capacity_bytes().saturating_sub(cache.policy().max_capacity().unwrap_or(0));
            let is_short = budget.free_bytes() < bytes;
            if is_short && doubled >= PATIENT_NUDGES && budget.pinned.bytes() > beside_cache / 2 {
                let count = usize::try_from(cache.entry_count()).unwrap_or(usize::MAX) / GIVEN_UP;
                let given_up: Vec<K> = cache.iter().take(count + 1).map(|(key, _)| (*key).clone()).collect();
                for key in &given_up {
                    cache.invalidate(key).await;
                }
                cache.run_pending_tasks().await;
            }
            // Longer pauses would not help anybody who waits for a bounded time.
            tokio::time::sleep(NUDGE.saturating_mul(2_u32.saturating_pow(doubled.min(8)))).await;
        }
    };
    tokio::select! {
        biased;
        permit = share => Ok(permit?),
        () = nudge => Err(ReadError::Died("unreachable".to_owned())),
    }
}

/// Drops `stale` from a cache, unless somebody has replaced it already.
async fn forget<K, V>(cache: &Cache<K, Arc<V>>, key: K, stale: &Arc<V>)
where
    K: std::hash::Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    cache
        .entry(key)
        .and_compute_with(|current| {
            let same = current.is_some_and(|current| Arc::ptr_eq(current.value(), stale));
            std::future::ready(if same { Op::Remove } else { Op::Nop })
        })
        .await;
}
