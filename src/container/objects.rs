//! The cache of files as stored, and of what `made` makes of them: weighed in bytes, one read however many wait,
//! holes remembered.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moka::future::Cache;

use super::asked::Asked;
use super::budget::Budget;
use super::fetch::{Fetched, inline_bytes};
use super::footprint;
use super::fresh::{self, Access, Checked};
use super::large::{LargeObject, WeakLargeObject};
use super::measured::measured;
use super::permit::Permit;
use super::shared::share;
use super::{CacheSettings, ReadError, cache_of, forget, nudging};
use crate::fair::{self, Joints};
use crate::metrics::{self, Lookup, StoreOperation};
use crate::store::{Key, Meta, Store};

pub(super) const CACHE: metrics::Cache = metrics::Cache::Stored;

/// Objects up to this size are read whole and may be cached; larger ones are read piece by piece.
pub(super) const WHOLE_BYTES: u64 = 16 << 20;

/// Bookkeeping of one entry, in bytes, estimated generously.
const ENTRY_BYTES: usize = 768;

/// How often a request looks again when what it finds keeps changing.
pub(super) const ATTEMPTS: usize = 3;

/// An object as stored.
#[derive(Debug, Clone)]
pub enum Stored {
    /// Small enough to be held.
    Whole(Meta, Bytes),
    /// To be read piece by piece.
    Large(LargeObject),
}

impl Stored {
    /// Facts about the object.
    pub fn meta(&self) -> &Meta {
        match self {
            Self::Whole(meta, _) => meta,
            Self::Large(large) => large.meta(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) object: Option<(Meta, Bytes)>,
    /// Neither an object nor a directory has its name.
    pub(super) is_nothing: bool,
    pub(super) checked: Checked,
}

/// What an entry is found by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum EntryKey {
    /// A stored object: container and key.
    Stored(u32, Key),
    /// What was made of stored blocks, by a hash of which and how.
    Made(u128),
}

/// What a load ends with when it leaves nothing to cache. The cache lets go of it some time later, perhaps when it is next used:
/// no file must stay open because of it.
#[derive(Debug)]
pub(super) enum Uncached {
    Failed(ReadError),
    /// [Held](fair::hold) for those who want it; and the moment before it was opened.
    Large(WeakLargeObject, u64),
    /// It would have to wait, and must not.
    NotAtOnce,
}

/// A stored object on its way to be decoded.
pub(super) enum Source {
    /// From the cache, which counts its memory; compared with the store at the moment `checked`.
    Cached { meta: Meta, bytes: Bytes, checked: u64 },
    /// Just read. The permit stands for the bytes and goes when they do: it is not tied to them, since a decoded
    /// block may share their buffer and outlive it by far.
    Read { meta: Meta, bytes: Bytes, permit: Permit },
    /// To be read by the caller.
    Open(LargeObject),
    /// There is none, as was known at that moment.
    Missing(u64),
}

/// What a load found.
enum Loaded {
    Entry(Arc<Entry>),
    /// And the moment before it was opened.
    Large(LargeObject, u64),
    /// Another load has begun before this one was looked at.
    Gone,
}

/// The cache, shared by all containers.
#[derive(Debug, Clone)]
pub(super) struct Objects {
    pub(super) cache: Cache<EntryKey, Arc<Entry>>,
    pub(super) budget: Budget,
    pub(super) lookups: metrics::Lookups,
    /// Larger objects that were sent from the kernel's memory; it decides which are cached.
    pub(super) sent: Arc<Asked>,
    /// Objects up to this size are read in the same hop that opens them.
    pub(super) inline_bytes: u64,
    /// Who waits for what.
    pub(super) loading: Joints<EntryKey>,
}

impl Objects {
    pub(super) fn new(settings: CacheSettings, transfer_bytes: u64, wait: Duration) -> Self {
        let cache = cache_of(CACHE, settings, |key: &EntryKey, entry: &Arc<Entry>| {
            let bytes = entry.object.as_ref().map_or(0, |(_, bytes)| footprint::rounded(bytes.len()));
            let name = if let EntryKey::Stored(_, key) = key { key.as_str().len() } else { 0 };
            u32::try_from(bytes + name + ENTRY_BYTES).unwrap_or(u32::MAX)
        });
        let budget = Budget::with_cache(metrics::Budget::Transfer, settings.held_bytes(), transfer_bytes, wait);
        let inline_bytes = inline_bytes(&budget, transfer_bytes);
        Self {
            cache,
            budget,
            lookups: metrics::Lookups::new(CACHE),
            sent: Arc::default(),
            inline_bytes,
            loading: Joints::default(),
        }
    }

    /// The same cache and budget, for whose memory is waited at most `wait`.
    pub(super) fn waiting(&self, wait: Duration) -> Self {
        Self { budget: self.budget.waiting(wait), ..self.clone() }
    }

    /// The same cache and budget, for another container.
    pub(super) fn of_one(&self) -> Self {
        Self { budget: self.budget.of_one(), ..self.clone() }
    }

    /// The object at `key`, no staler than `access` accepts; `None` where there is none.
    pub(super) async fn get(
        &self,
        container: u32,
        store: &Arc<dyn Store>,
        key: &Key,
        access: Access,
    ) -> Result<Option<Stored>, ReadError> {
        let since = access.since(key);
        let entry_key = EntryKey::Stored(container, key.clone());
        // A read that others began may be older than this request: then it is compared once more.
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.cache.get(&entry_key).await else {
                access.may_wait().await;
                self.lookups.count(Lookup::Miss, 1);
                match self.load(entry_key.clone(), key, store).await? {
                    Loaded::Large(large, opened) if opened >= since => return Ok(Some(Stored::Large(large))),
                    Loaded::Entry(entry) if entry.checked.is_fresh(since) => return Ok(entry.stored()),
                    Loaded::Large(..) | Loaded::Entry(_) | Loaded::Gone => continue,
                }
            };
            if entry.checked.is_fresh(since) || self.recheck(&entry, &**store, key, access).await? {
                self.lookups.count(if entry.object.is_some() { Lookup::Hit } else { Lookup::Absent }, access.counted());
                return Ok(entry.stored());
            }
            access.may_wait().await;
            self.lookups.count(Lookup::Stale, 1);
            forget(&self.cache, entry_key.clone(), &entry).await;
        }
        self.fetch(&**store, key).await
    }

    /// Facts about a cached object that is no staler than `since`; `Some(None)` for a known hole.
    pub(super) async fn peek(&self, container: u32, key: &Key, since: u64) -> Option<Option<Meta>> {
        let entry = self
            .cache
            .get(&EntryKey::Stored(container, key.clone()))
            .await
            .filter(|entry| entry.checked.is_fresh(since))?;
        Some(entry.object.as_ref().map(|(meta, _)| meta.clone()))
    }

    /// The object at `key` for decoding: from the cache when fresh, else opened or read; the decoded block will be cached.
    pub(super) async fn read(
        &self,
        container: u32,
        store: &dyn Store,
        key: &Key,
        since: u64,
    ) -> Result<Source, ReadError> {
        let cached = self.cache.get(&EntryKey::Stored(container, key.clone())).await;
        // That there is none is not taken from here: whoever asked for it did not know which dataset must be there.
        if let Some(entry) = cached.filter(|entry| entry.checked.is_fresh(since))
            && let Some((meta, bytes)) = entry.object.clone()
        {
            return Ok(Source::Cached { meta, bytes, checked: entry.checked.moment() });
        }
        let moment = fresh::now();
        Ok(match self.fetch_once(store, key).await? {
            Some(Fetched::Whole(meta, bytes, permit)) => Source::Read { meta, bytes, permit },
            Some(Fetched::Large(large)) => Source::Open(large),
            None => Source::Missing(moment),
        })
    }

    /// Drops what is cached as missing at `key`.
    pub(super) async fn forget_hole(&self, container: u32, key: &Key) {
        let key = EntryKey::Stored(container, key.clone());
        if self.cache.get(&key).await.is_some_and(|entry| entry.object.is_none()) {
            self.cache.invalidate(&key).await;
        }
    }

    /// Whether `entry` still equals what the store holds.
    async fn recheck(&self, entry: &Entry, store: &dyn Store, key: &Key, access: Access) -> Result<bool, ReadError> {
        if entry.is_nothing {
            // A directory is no object either, and would pass.
            return Ok(false);
        }
        let moment = fresh::now();
        if let Some(unchanged) = entry.checked.compare(store, key, entry.version(), moment) {
            return Ok(unchanged);
        }
        access.may_wait().await;
        let unchanged = entry.version()
            == measured(StoreOperation::Head, store.backend(), store.head(key)).await?.map(|meta| meta.version);
        if unchanged {
            entry.checked.touch(moment);
        }
        Ok(unchanged)
    }

    /// A share of the transfer budget, which holds the whole cache besides what is in flight.
    pub(super) async fn take(&self, bytes: u64) -> Result<Permit, ReadError> {
        nudging(&self.cache, &self.budget, bytes, self.budget.take(bytes)).await
    }

    /// As [`Self::take`], for an answer that has begun.
    pub(super) async fn take_patiently(&self, bytes: u64) -> Result<Permit, ReadError> {
        let share = self.budget.take_within(bytes, self.budget.patience());
        nudging(&self.cache, &self.budget, bytes, share).await
    }

    /// Cached bytes, for the metrics page.
    pub(super) fn bytes(&self) -> u64 {
        self.cache.weighted_size()
    }

    /// Reads through the cache, once however many want it.
    async fn load(&self, entry_key: EntryKey, key: &Key, store: &Arc<dyn Store>) -> Result<Loaded, ReadError> {
        let (this, key, store) = (self.clone(), key.clone(), Arc::clone(store));
        let load = share(&self.loading, entry_key.clone(), async move {
            let checked = fresh::now();
            let fetch = || async {
                match this.fetch(&*store, &key).await {
                    Ok(Some(Stored::Large(large))) => Err(Uncached::Large(large.held(), checked)),
                    Ok(Some(Stored::Whole(meta, bytes))) => Ok(Arc::new(Entry {
                        object: Some((meta, bytes)),
                        is_nothing: false,
                        checked: Checked::at(checked),
                    })),
                    Ok(None) => Ok(Arc::new(Entry { object: None, is_nothing: false, checked: Checked::at(checked) })),
                    Err(error) => Err(Uncached::Failed(error)),
                }
            };
            let loaded = loop {
                match this.cache.try_get_with(entry_key.clone(), fair::leading(fetch())).await {
                    // Of one who must not wait, who was first.
                    Err(uncached) if matches!(*uncached, Uncached::NotAtOnce) => {}
                    loaded => break loaded,
                }
            };
            // At once, while what is held is there.
            let loaded = match loaded {
                Ok(entry) => Ok(Loaded::Entry(entry)),
                Err(uncached) => match &*uncached {
                    Uncached::Large(large, opened) => {
                        Ok(large.get().map_or(Loaded::Gone, |large| Loaded::Large(large, *opened)))
                    }
                    Uncached::Failed(error) => Err(error.clone()),
                    Uncached::NotAtOnce => Err(ReadError::Died("a load ended without an end".to_owned())),
                },
            };
            // Evicts at once what no longer fits, instead of when the cache's own queue is full.
            this.cache.run_pending_tasks().await;
            loaded
        });
        load.await?
    }
}

impl Entry {
    fn stored(&self) -> Option<Stored> {
        self.object.clone().map(|(meta, bytes)| Stored::Whole(meta, bytes))
    }

    pub(super) fn version(&self) -> Option<u64> {
        self.object.as_ref().map(|(meta, _)| meta.version)
    }
}
