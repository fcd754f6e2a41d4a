//! The handle to a container: its store, the shared resources, and what the caller may see. It reads stored objects and
//! reserves memory for responses.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::resources::Resources;
use crate::cache::{
    self, BudgetError, CacheEntry, FreshSince, FreshnessPolicy, MemoryPermit, MissingKind, MissingNames,
    MonitoredStore, ObjectCacheKey, ObjectEntry, ObjectSource, OutageDetector, Permit, ReadError, ReadOptions,
    RequestTimes, SendPermit, StoredObject, Validated,
};
use crate::config::{Config, ContainerConfig};
use crate::runtime::fair_queue::ClientId;
use crate::store::{
    CachedStat, DiskCacheContainer, DiskCachedStore, InstrumentedStore, Key, ObjectMeta, Store, StoreError,
    StorePressure,
};
use crate::telemetry::metrics::{self, ShedReason};

/// Bodies shorter than this are not charged to the client: the kernel accepts them at once, so they do not occupy
/// memory of the cache. The fast path has a higher bound; see `MIN_CHARGED_BYTES` in `src/fastpath/reply.rs`.
const UNCHARGED_BYTES: usize = 4 << 10;

/// The part of a container that a caller may see. A hidden object is treated as missing everywhere: it is not listed,
/// its attributes do not apply to groups below it, and it is not a level of a pyramid.
///
/// An implementation may record its decisions. The server does so to learn whether a response depends on the caller.
pub trait Visibility: fmt::Debug + Send + Sync {
    /// Returns true if the object or directory at `key` is visible.
    fn check_visible(&self, key: &Key) -> bool;

    /// Returns true if everything at `key` and below is visible. A dataset that is partly hidden is treated as missing,
    /// since its blocks are read without a check for each.
    fn check_subtree_visible(&self, key: &Key) -> bool;
}

/// The part of the disk cache that belongs to a container, and the store that it caches.
#[derive(Debug)]
struct DiskTier {
    store: Arc<dyn Store>,
    cache: DiskCacheContainer,
}

/// An N5 hierarchy in a store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Container {
    pub(crate) id: u32,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) resources: Arc<Resources>,
    /// Knowledge about outages of the store; `None` if the store itself reports them.
    pub(super) outages: Option<Arc<OutageDetector>>,
    /// The policy of this container; `None` for that of the settings.
    freshness: Option<FreshnessPolicy>,
    /// The disk cache, which `store` then includes; `None` if the container has none.
    disk_tier: Option<Arc<DiskTier>>,
    /// Restriction to what the caller may see; `None` if everything is visible.
    pub(crate) visibility: Option<Arc<dyn Visibility>>,
}

impl Container {
    /// Creates a container for the hierarchy in `store`.
    #[expect(clippy::needless_pass_by_value, reason = "the container keeps its own handle to the resources")]
    pub fn new(store: Arc<dyn Store>, resources: Arc<Resources>) -> Self {
        let id = resources.next_container_id.fetch_add(1, Ordering::Relaxed);
        // A local directory is looked up each time, which costs nothing.
        let outages =
            (!store.reports_missing_root() && store.page_cache().is_none()).then(Arc::<OutageDetector>::default);
        let store: Arc<dyn Store> = match &outages {
            Some(outages) => Arc::new(MonitoredStore::new(store, Arc::clone(outages))),
            None => store,
        };
        let store = Arc::new(InstrumentedStore::new(store));
        Self {
            id,
            store,
            resources: resources.for_container(),
            outages,
            freshness: None,
            disk_tier: None,
            visibility: None,
        }
    }

    /// Returns the same container with a cache on disk. Its objects stay there as long as the policy allows that
    /// [`Self::configured`] sets.
    #[must_use]
    pub fn with_disk_cache(&self, cache: DiskCacheContainer) -> Self {
        let tier = DiskTier { store: Arc::clone(&self.store), cache };
        Self { disk_tier: Some(Arc::new(tier)), ..self.clone() }.with_policy(self.freshness())
    }

    fn with_policy(&self, policy: FreshnessPolicy) -> Self {
        let mut container = Self { freshness: Some(policy), ..self.clone() };
        if let Some(DiskTier { store, cache }) = self.disk_tier.as_deref() {
            let max_age = Arc::new(move |key: &Key| policy.max_age(key));
            container.store = Arc::new(DiskCachedStore::new(Arc::clone(store), cache.clone(), max_age));
        }
        container
    }

    /// Returns the same container with other resources. The container's entries stay in those caches that `resources`
    /// has taken over.
    #[must_use]
    pub fn with_resources(&self, resources: &Arc<Resources>) -> Self {
        Self { resources: resources.for_container(), ..self.clone() }
    }

    /// Returns the same container with the settings of `container`, which say how fresh cached entries must be. Without
    /// this call, the settings of the resources apply.
    #[must_use]
    pub fn configured(&self, config: &Config, container: &ContainerConfig) -> Self {
        self.with_policy(FreshnessPolicy::new(config, container))
    }

    /// Returns options for the reads of a request that begins now.
    pub fn new_read_options() -> ReadOptions {
        ReadOptions::begin()
    }

    fn freshness(&self) -> FreshnessPolicy {
        self.freshness.unwrap_or_else(|| self.resources.settings().freshness())
    }

    /// Returns the moments at or after which the stored object at `key` must have been compared with the store.
    pub(crate) fn fresh_since(&self, options: ReadOptions, key: &Key) -> FreshSince {
        self.freshness().since(key, options.request_start)
    }

    /// Returns the moments at or after which blocks must have been compared with the store.
    pub(crate) fn data_since(&self, options: ReadOptions) -> FreshSince {
        self.freshness().data_since(options.request_start)
    }

    /// Returns the known missing names of the container; `None` if the object and block caches remember missing objects
    /// themselves.
    pub(crate) fn missing_names(&self) -> Option<MissingNames> {
        let names = |_policy| MissingNames::new(&self.resources.known_missing, self.id, self.outages.as_ref());
        self.freshness().missing.map(names)
    }

    /// Returns true if missing objects may be due to an outage that the store does not report. Missing blocks must then
    /// be confirmed by [`Self::confirm_missing`].
    pub(crate) fn has_unreported_outages(&self) -> bool {
        self.outages.is_some()
    }

    /// Returns the same container with restricted visibility. The caches are shared; hidden objects are not looked up
    /// in them.
    #[must_use]
    pub fn with_visibility(&self, visibility: Arc<dyn Visibility>) -> Self {
        Self { visibility: Some(visibility), ..self.clone() }
    }

    pub(crate) fn check_visible(&self, key: &Key) -> bool {
        self.visibility.as_ref().is_none_or(|visibility| visibility.check_visible(key))
    }

    pub(crate) fn check_subtree_visible(&self, key: &Key) -> bool {
        self.visibility.as_ref().is_none_or(|visibility| visibility.check_subtree_visible(key))
    }

    /// Returns the key of the stored object at `key` in the object cache.
    pub(crate) fn object_cache_key(&self, key: &Key) -> ObjectCacheKey {
        ObjectCacheKey::Stored(self.id, key.clone())
    }

    /// Returns the source of the stored object at `key`, for a request that needs this range of it.
    pub(super) fn object_source<'a>(&'a self, key: &'a Key, range: Option<Range<u64>>) -> ObjectSource<'a> {
        let (objects, store, missing) = (&self.resources.objects, &self.store, self.missing_names());
        ObjectSource { objects, store, key, missing, range }
    }

    /// Returns the entries of the cache of stored objects.
    pub(crate) fn object_entries(&self) -> &Validated<ObjectCacheKey, ObjectEntry> {
        &self.resources.objects.entries
    }

    /// Returns the resources that all containers share.
    pub fn resources(&self) -> &Arc<Resources> {
        &self.resources
    }

    /// Returns the object at `key` as stored (attributes or a block), as fresh as `options` requires. Returns `None`
    /// if there is no object.
    ///
    /// # Errors
    /// Returns an error if the store fails, a link hides a block, or there is not enough memory.
    pub async fn object(&self, options: ReadOptions, key: &Key) -> Result<Option<StoredObject>, ReadError> {
        self.object_for_range(options, key, None).await
    }

    /// Returns the object at `key` like [`Self::object`], for a request that needs only this range of it. Of a remote
    /// object that is not cached, only the range is read, unless the object is small.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::object`].
    pub async fn object_for_range(
        &self,
        options: ReadOptions,
        key: &Key,
        range: Option<Range<u64>>,
    ) -> Result<Option<StoredObject>, ReadError> {
        if !self.check_visible(key) {
            return Ok(None);
        }
        let source = self.object_source(key, range);
        let fresh_since = self.fresh_since(options, key);
        let entry = self.object_entries().get(&self.object_cache_key(key), options, fresh_since, &source).await?;
        Ok(entry.object.clone())
    }

    /// Returns the metadata of the object at `key`, from the cache if the entry is fresh. Does not read the object.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn meta(&self, options: ReadOptions, key: &Key) -> Result<Option<ObjectMeta>, ReadError> {
        if !self.check_visible(key) {
            return Ok(None);
        }
        let cached = self.object_entries().cached(&self.object_cache_key(key)).await;
        let fresh_since = self.fresh_since(options, key);
        if let Some(entry) = cached.filter(|entry| entry.is_fresh(fresh_since)) {
            return Ok(entry.meta().cloned());
        }
        match self.store.cached_stat(key) {
            CachedStat::Object(raw_meta) => Ok(Some(raw_meta.into())),
            CachedStat::Missing | CachedStat::NotAnObject => Ok(None),
            CachedStat::Unknown | CachedStat::Held { .. } => {
                let missing = self.missing_names();
                let checked_at = |names: &MissingNames| names.checked_since(MissingKind::Object, key, fresh_since);
                if missing.as_ref().and_then(checked_at).is_some() {
                    return Ok(None);
                }
                // `head` below may wait for the store.
                options.pend_if_nonblocking().await;
                if let Some(meta) = self.store.cached_meta(key).await {
                    return Ok(Some(meta));
                }
                let checked_at = cache::now();
                let meta = self.store.head(key).await?;
                if let (None, Some(missing)) = (&meta, missing) {
                    missing.insert(MissingKind::Object, key, RequestTimes::since(checked_at));
                }
                Ok(meta)
            }
        }
    }

    /// Returns the current pressure on the store.
    pub fn store_pressure(&self) -> StorePressure {
        self.store.pressure()
    }

    /// Returns true if requests wait for the store and it has answered none for at least a second.
    pub fn is_store_unresponsive(&self) -> bool {
        self.store_pressure().is_unresponsive()
    }

    /// Checks that the store can be read.
    ///
    /// # Errors
    /// Returns [`ReadError::Store`] with the reason if the store cannot be read.
    pub async fn probe(&self) -> Result<(), ReadError> {
        Ok(self.store.probe().await?)
    }

    /// Reserves `bytes` of the slice budget for a response that is not a slice.
    ///
    /// # Errors
    /// Returns [`ReadError::Budget`] if the budget is smaller than `bytes` or other requests hold the memory for too
    /// long. Returns [`ReadError::Store`] if the memory is not free and the store does not respond.
    pub async fn reserve_memory(&self, bytes: u64) -> Result<MemoryPermit, ReadError> {
        let budget = &self.resources.slice_budget;
        Ok(MemoryPermit::new(Some(self.slice_permit(bytes, budget.take(bytes)).await?), budget))
    }

    /// Returns a permit for `bytes` of the slice budget, for which `acquire` waits. If the store does not respond, the
    /// request would wait for memory in vain, so a permit is returned only if the memory is free.
    ///
    /// # Errors
    /// Returns a [`BudgetError`] if `acquire` fails, or [`StoreError::Stalled`] if the store does not respond and the
    /// memory is not free.
    pub(crate) async fn slice_permit(
        &self,
        bytes: u64,
        acquire: impl Future<Output = Result<Permit, BudgetError>>,
    ) -> Result<Permit, ReadError> {
        if !self.is_store_unresponsive() {
            return Ok(acquire.await?);
        }
        self.resources.slice_budget.try_take(bytes).ok_or_else(|| {
            metrics::request_shed(ShedReason::Storage);
            StoreError::Stalled("read", Key::root()).into()
        })
    }

    /// Waits for `work`, which reads objects below `key` while the caller holds memory from [`Self::reserve_memory`].
    /// Gives up if the store keeps `work` waiting and requests of other containers need that memory.
    ///
    /// # Errors
    /// Returns [`StoreError::Preempted`] if this function gives up. Also returns the errors of `work`.
    pub async fn abort_if_contended<T, E: From<ReadError>>(
        &self,
        key: &Key,
        work: impl Future<Output = Result<T, E>> + Unpin,
    ) -> Result<T, E> {
        self.resources.slice_budget.abort_if_contended(|| self.store_pressure(), key, work).await?
    }

    /// Charges `bytes`, which come from the cache of stored objects, to `client` while they are being sent. Returns
    /// `None` if too many bytes are being sent to the client already.
    pub fn charge_to_client(&self, client: ClientId, bytes: &Bytes) -> Option<Bytes> {
        if bytes.len() < UNCHARGED_BYTES {
            Some(bytes.clone())
        } else {
            self.resources.objects.budget().charge_to_client(client, bytes)
        }
    }

    /// Charges `bytes` to the current client as [`Self::charge_to_client`] does. If the client must read other
    /// responses first, drops `bytes`, waits for a permit, and returns `None`. The caller must then look the bytes up
    /// again and call this function with the same `permit`, which is `None` at first.
    ///
    /// # Errors
    /// Returns [`ReadError::Budget`] if the client does not read what it requested before.
    pub async fn charge_or_wait(
        &self,
        permit: &mut Option<SendPermit>,
        bytes: Bytes,
    ) -> Result<Option<Bytes>, ReadError> {
        if permit.is_none() && bytes.len() < UNCHARGED_BYTES {
            return Ok(Some(bytes));
        }
        Ok(self.resources.objects.budget().charge_or_wait(permit, bytes).await?)
    }
}
