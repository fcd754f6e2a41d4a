//! The stored blocks of a dataset as the source of the cache of decoded blocks.
//!
//! A missing block is a hole, which was never written, only if its dataset still exists. If the dataset is missing,
//! too, the container is unavailable, and its blocks must not be read as zeros.

use std::sync::Arc;

use async_trait::async_trait;

use super::handle::Container;
use crate::cache::{
    self, BlockLocation, BlockSource, BlockVersion, BudgetError, BudgetedObject, CacheEntry, Dataset, FreshSince,
    MissingKind, MissingNames, ObjectEntry, OutageDetector, ReadError, ReadOptions, RequestTimes, SourceBlock,
    StoredObject, ValidatedAt,
};
use crate::store::{CachedStat, Key, ObjectMeta, Revalidation, Store, StoreError, StorePressure};
use crate::telemetry::metrics::{self, StoreOperation};
use n5_format::GridPosition;

/// The stored blocks of one dataset.
#[derive(Debug)]
struct StoredBlocks {
    container: Container,
    dataset: Arc<Dataset>,
}

#[async_trait]
impl BlockSource for StoredBlocks {
    fn try_is_unchanged(
        &self,
        position: &GridPosition,
        version: Option<u64>,
        validated_at: &ValidatedAt,
        checked_at: u64,
    ) -> Option<bool> {
        validated_at.try_is_unchanged(&*self.container.store, &self.dataset.block_key(position), version, checked_at)
    }

    fn store(&self) -> Option<&dyn Store> {
        Some(&*self.container.store)
    }

    fn location(&self, position: &GridPosition) -> Option<BlockLocation> {
        Some(self.container.block_location(&self.dataset, position))
    }

    fn compares_on_load(&self) -> bool {
        self.container.store.sends_conditional_requests()
    }

    async fn versions(&self, positions: &[GridPosition]) -> Result<Vec<Option<u64>>, ReadError> {
        let keys = positions.iter().map(|position| self.dataset.block_key(position)).collect();
        let metas = self.container.store.head_many(keys).await?;
        Ok(metas.into_iter().map(|meta| meta.map(|meta| meta.version)).collect())
    }

    fn known_missing(&self, position: &GridPosition, fresh_since: FreshSince) -> Option<u64> {
        let names = self.container.missing_names()?;
        let key = self.dataset.block_key(position);
        // The kernel knows better, and costs nothing.
        let exists = matches!(self.container.store.cached_stat(&key), CachedStat::Object(_));
        names.checked_since(MissingKind::Object, &key, fresh_since).filter(|_| !exists)
    }

    fn remember_missing(&self, position: &GridPosition, times: RequestTimes) -> bool {
        let Some(names) = self.container.missing_names() else { return false };
        names.insert(MissingKind::Object, &self.dataset.block_key(position), times);
        true
    }

    fn pressure(&self) -> StorePressure {
        self.container.store_pressure()
    }

    /// Loads the block from the cache of stored objects if it is fresh there, or else from the store. The stored
    /// block is not added to that cache, since the decoded block will be cached.
    async fn load(
        &self,
        position: &GridPosition,
        known: Option<&BlockVersion>,
        fresh_since: FreshSince,
    ) -> Result<(SourceBlock, u64), ReadError> {
        let store = &*self.container.store;
        let objects = &self.container.resources.objects;
        let key = self.dataset.block_key(position);
        let cache_key = self.container.object_cache_key(&key);
        let mut cached = self.container.object_entries().cached(&cache_key).await;
        if store.sends_conditional_requests() && known.is_some() == cached.is_some() {
            // A request for the stored block shares the load, and a later one finds the block in the cache. That is
            // worth the memory, because loads are slow and cost money.
            drop(cached);
            let source = self.container.object_source(&key, None);
            let loaded = self.container.object_entries().load(&cache_key, fresh_since, &source).await;
            cached = match loaded {
                Ok(entry) if entry.object.is_none() => {
                    self.extend_period().await;
                    let is_same = matches!(known, Some(BlockVersion::Hole));
                    let block = if is_same { SourceBlock::Unchanged } else { SourceBlock::Missing };
                    return Ok((block, entry.validated_at.nanoseconds()));
                }
                Ok(entry) => Some(entry),
                // The block is larger than the budget for stored objects, but may fit into the one for decoding.
                Err(ReadError::Budget(BudgetError::TooLarge { .. })) => None,
                Err(error) => return Err(error),
            };
        }
        if let Some(entry) = cached.filter(|entry| entry.is_fresh(fresh_since))
            && let Some(block) = self.block_of_entry(&entry, known)
        {
            return Ok((block, entry.validated_at.nanoseconds()));
        }
        let mut checked_at = cache::now();
        let revalidation = match known {
            Some(known) => store.revalidate(&key, known.etag_and_version()).await?,
            None => Revalidation::Changed,
        };
        if matches!(revalidation, Revalidation::Unchanged) {
            return Ok((SourceBlock::Unchanged, checked_at));
        }
        let mut found = objects.get_revalidated(store, &key, revalidation).await?;
        let is_too_old = |age| cache::compared_at(checked_at, age) < fresh_since.found;
        if found.take_if(|(_, age)| is_too_old(*age)).is_some() {
            // It came from the disk cache and could not be decoded. An unconditional request replaces it there.
            checked_at = cache::now();
            found = match store.revalidate(&key, None).await? {
                Revalidation::Unchanged => None,
                current @ (Revalidation::Changed | Revalidation::Current(_)) => {
                    objects.get_revalidated(store, &key, current).await?
                }
            };
        }
        Ok(match found {
            None => (SourceBlock::Missing, checked_at),
            Some((BudgetedObject::Large(large), age)) => {
                (SourceBlock::Large(large), cache::compared_at(checked_at, age))
            }
            Some((BudgetedObject::Whole(meta, bytes, permit), age)) => {
                let block = SourceBlock::Stored { meta, bytes, permit: Some(permit) };
                (block, cache::compared_at(checked_at, age))
            }
        })
    }
}

impl StoredBlocks {
    /// Requests the attributes of the dataset if a long read of missing blocks has found no object for a while. The
    /// blocks need not be requested again then.
    async fn extend_period(&self) {
        let Some(outages) = &self.container.outages else { return };
        let Some(attributes) = self.dataset.attributes_key().filter(|_| outages.is_extension_due()) else { return };
        // An error is noticed when the missing blocks are confirmed.
        if matches!(self.container.is_object_found(&attributes, cache::now()).await, Ok(false)) {
            outages.record_outage();
        }
    }

    /// Returns the block from a fresh entry of the cache of stored objects. Returns `None` if the block must be
    /// requested from the store.
    fn block_of_entry(&self, entry: &ObjectEntry, known: Option<&BlockVersion>) -> Option<SourceBlock> {
        let is_known =
            |meta: &ObjectMeta| known.and_then(BlockVersion::etag_and_version) == Some((&*meta.etag, meta.version));
        if entry.meta().is_some_and(is_known) {
            return Some(SourceBlock::Unchanged);
        }
        if let Some((meta, bytes)) = entry.whole_object() {
            return Some(SourceBlock::Stored { meta: meta.clone(), bytes: bytes.clone(), permit: None });
        }
        if let Some(StoredObject::Large(large)) = &entry.object {
            return Some(SourceBlock::Large(Arc::clone(large)));
        }
        // A missing object in that cache proves a hole only if the store itself reports a missing root. Otherwise the
        // request that cached the entry did not check that the dataset exists.
        let is_hole = entry.object.is_none() && self.container.store.reports_missing_root();
        is_hole.then_some(SourceBlock::Missing)
    }
}

impl Container {
    /// Returns the source of the blocks of `dataset`.
    pub(crate) fn block_source(&self, dataset: &Arc<Dataset>) -> Arc<dyn BlockSource> {
        Arc::new(StoredBlocks { container: self.clone(), dataset: Arc::clone(dataset) })
    }

    /// Returns the location of the block of `dataset` at `position`.
    pub(crate) fn block_location(&self, dataset: &Arc<Dataset>, position: &GridPosition) -> BlockLocation {
        let source = self.block_source(dataset);
        BlockLocation { source, dataset: Arc::clone(dataset), position: position.clone() }
    }

    /// Confirms that the blocks which were missing at `positions` are holes: checks that the dataset still exists. If
    /// it does not, removes the cached holes, so that no other request trusts them.
    ///
    /// If the store does not report its outages, the dataset must have been requested after the blocks were missing.
    /// Blocks for which this does not exclude an outage are then requested again.
    ///
    /// # Errors
    /// Returns [`ReadError::Store`] if the dataset is gone, the store cannot tell, or a block is not missing any more.
    pub async fn confirm_missing(
        &self,
        options: ReadOptions,
        dataset: &Arc<Dataset>,
        positions: &[GridPosition],
    ) -> Result<(), ReadError> {
        if self.store.reports_missing_root() {
            return Ok(());
        }
        let attributes = dataset.attributes_key().unwrap_or_else(Key::root);
        if let (Some(outages), Some(names)) = (&self.outages, self.missing_names()) {
            let keys = positions.iter().map(|position| dataset.block_key(position)).collect();
            return self.confirm_without_outage(options, outages, &names, &attributes, keys).await;
        }
        let existence = self.ensure_dataset_exists(options, &attributes).await;
        if existence.is_err() {
            let names = self.missing_names();
            for position in positions {
                let block_key = dataset.block_key(position);
                self.resources.blocks.entries.forget_missing(&(dataset.id, position.clone())).await;
                self.object_entries().forget_missing(&self.object_cache_key(&block_key)).await;
                if let Some(names) = &names {
                    names.forget(MissingKind::Object, &block_key);
                }
            }
        }
        existence
    }

    /// Confirms that the blocks at `keys` are missing and that no outage is the reason. `attributes` is the key of their
    /// dataset's attributes.
    async fn confirm_without_outage(
        &self,
        options: ReadOptions,
        outages: &OutageDetector,
        names: &MissingNames,
        attributes: &Key,
        mut keys: Vec<Key>,
    ) -> Result<(), ReadError> {
        let now = cache::now();
        let answer = |key: &Key| names.answer(MissingKind::Object, key);
        // A name that has been forgotten meanwhile may have been missing until now.
        let ends = keys.iter().map(|key| answer(key).map_or(now, |answer| answer.times.ended_at));
        let since = ends.max().unwrap_or(now);
        let cached = self.object_entries().cached(&self.object_cache_key(attributes)).await;
        let is_seen = cached.is_some_and(|entry| entry.object.is_some() && entry.is_fresh(since.into()));
        if !is_seen {
            options.pend_if_nonblocking().await;
            if !self.is_object_found(attributes, since).await? {
                outages.record_outage();
                return Err(dataset_missing(attributes));
            }
        }
        keys.retain(|key| !answer(key).is_some_and(|answer| names.is_certain(answer)));
        if keys.is_empty() {
            return Ok(());
        }
        // The outage may have ended between the blocks and the attributes.
        options.pend_if_nonblocking().await;
        let metas = self.store.head_many(keys.clone()).await?;
        // Another outage may have begun meanwhile.
        if !self.is_object_found(attributes, cache::now()).await? {
            outages.record_outage();
            return Err(dataset_missing(attributes));
        }
        let times = RequestTimes::at(since);
        let mut existing = None;
        for (key, meta) in keys.into_iter().zip(metas) {
            if meta.is_none() {
                names.insert_confirmed(MissingKind::Object, &key, times);
            } else {
                names.forget(MissingKind::Object, &key);
                existing = Some(key);
            }
        }
        existing.map_or(Ok(()), |key| Err(StoreError::Torn(key).into()))
    }

    /// Returns true if the object at `key` exists, by a request that began at `since` or later. Requests at the same time
    /// share one conditional GET.
    async fn is_object_found(&self, key: &Key, since: u64) -> Result<bool, ReadError> {
        let source = self.object_source(key, None);
        let entry = self.object_entries().load(&self.object_cache_key(key), since.into(), &source).await?;
        if entry.object.is_none() || entry.is_fresh(since.into()) {
            return Ok(entry.object.is_some());
        }
        // It came from the disk cache.
        let began_at = cache::now();
        let meta = self.store.head(key).await?;
        if meta.as_ref().is_some_and(|meta| entry.version() == Some(meta.version)) {
            entry.validated_at.touch(began_at);
        }
        Ok(meta.is_some())
    }

    async fn ensure_dataset_exists(&self, options: ReadOptions, key: &Key) -> Result<(), ReadError> {
        match self.store.cached_stat(key) {
            CachedStat::Object(_) => return Ok(()),
            CachedStat::Missing | CachedStat::NotAnObject | CachedStat::Unknown | CachedStat::Held { .. } => {
                // `head` below may wait for the store.
                options.pend_if_nonblocking().await;
            }
        }
        let checked_at = cache::now();
        if let Some(meta) = self.store.head(key).await? {
            let cached = self.object_entries().cached(&self.object_cache_key(key)).await;
            if let Some(entry) = cached.filter(|entry| entry.version() == Some(meta.version)) {
                entry.validated_at.touch(checked_at);
            }
            return Ok(());
        }
        Err(dataset_missing(key))
    }
}

/// Returns the error for a dataset whose attributes, at `key`, are missing although its blocks are being read.
fn dataset_missing(key: &Key) -> ReadError {
    let dataset = key.parent().unwrap_or_else(Key::root);
    let error = StoreError::RootMissing(format!("dataset {dataset:?} disappeared while it was being read"));
    metrics::store_error(StoreOperation::Head, error.kind());
    error.into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use smallvec::smallvec;

    use super::super::resources::{Resources, Settings};
    use super::*;
    use crate::store::MemoryStore;
    use n5_format::Block;

    /// Blocks whose elements are their grid position.
    #[derive(Debug, Default)]
    struct Computed {
        loads: AtomicUsize,
        comparisons: AtomicUsize,
    }

    #[async_trait]
    impl BlockSource for Computed {
        fn try_is_unchanged(&self, _: &GridPosition, _: Option<u64>, _: &ValidatedAt, _: u64) -> Option<bool> {
            None
        }

        fn compares_on_load(&self) -> bool {
            true
        }

        async fn versions(&self, _: &[GridPosition]) -> Result<Vec<Option<u64>>, ReadError> {
            unreachable!("the blocks are compared by loads")
        }

        async fn load(
            &self,
            position: &GridPosition,
            known: Option<&BlockVersion>,
            _fresh_since: FreshSince,
        ) -> Result<(SourceBlock, u64), ReadError> {
            let checked_at = cache::now();
            if known.and_then(BlockVersion::etag_and_version) == Some(("\"computed\"", 1)) {
                self.comparisons.fetch_add(1, Ordering::Relaxed);
                return Ok((SourceBlock::Unchanged, checked_at));
            }
            self.loads.fetch_add(1, Ordering::Relaxed);
            let data: Vec<u8> = position.iter().map(|n| u8::try_from(*n).unwrap()).collect();
            let block = Block { size: smallvec![2, 1], data: Bytes::from(data) };
            let meta = ObjectMeta { len: 2, modified: None, etag: "\"computed\"".into(), version: 1 };
            Ok((SourceBlock::Decoded(block, meta), checked_at))
        }
    }

    #[tokio::test]
    async fn a_usable_block_is_returned_at_once_and_revalidated_in_the_background() {
        let attributes = r#"{"dimensions":[8,8],"blockSize":[2,1],"dataType":"uint8","compression":{"type":"raw"}}"#;
        let objects =
            [("v/attributes.json", attributes.as_bytes()), ("v/3/4", &[0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 1, 7, 8])];
        let objects = objects.map(|(key, bytes)| (Key::parse(key).unwrap(), Bytes::from_static(bytes)));
        let container = Container::new(Arc::new(MemoryStore::new(objects, 0)), Resources::new(Settings::small()));
        let dataset = container.dataset(ReadOptions::begin(), &Key::parse("v").unwrap()).await.unwrap();
        let blocks = &container.resources().blocks;
        let location = container.block_location(&dataset, &smallvec![3, 4]);
        let (entry, _) = blocks.load(location.clone(), 0.into()).await.unwrap();
        assert_eq!(entry.block().unwrap().data, [7, 8][..]);
        let positions = std::slice::from_ref(&location.position);
        let now = cache::now();
        let usable = FreshSince { usable: 0, ..now.into() };
        let cached = blocks.cached(&*location.source, &dataset, positions, usable).await.unwrap();
        assert!(Arc::ptr_eq(cached[0].as_ref().unwrap(), &entry) && !entry.validated_at.is_fresh(now));
        while !entry.validated_at.is_fresh(now) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn computed_blocks_are_cached_shared_and_compared_like_stored_ones() {
        let attributes = r#"{"dimensions":[8,8],"blockSize":[2,1],"dataType":"uint8","compression":{"type":"raw"}}"#;
        let object = (Key::parse("v/attributes.json").unwrap(), Bytes::from_static(attributes.as_bytes()));
        let resources = Resources::new(Settings::small());
        let container = Container::new(Arc::new(MemoryStore::new([object], 0)), resources);
        let options = ReadOptions::begin();
        let dataset = container.dataset(options, &Key::parse("v").unwrap()).await.unwrap();
        let blocks = &container.resources().blocks;
        let computed = Arc::new(Computed::default());
        let location = BlockLocation { source: Arc::<Computed>::clone(&computed), dataset, position: smallvec![3, 4] };
        let positions = std::slice::from_ref(&location.position);
        let counts = || (computed.loads.load(Ordering::Relaxed), computed.comparisons.load(Ordering::Relaxed));
        let loads = (0..9).map(|_| blocks.load(location.clone(), 0.into()));
        for loaded in futures_util::future::join_all(loads).await {
            assert_eq!(loaded.unwrap().0.block().unwrap().data, [3, 4][..]);
        }
        let cached = blocks.cached(&*computed, &location.dataset, positions, 0.into()).await.unwrap();
        assert!(cached[0].is_some());
        assert_eq!(counts(), (1, 0));
        let now = cache::now();
        let stale = blocks.cached(&*computed, &location.dataset, positions, now.into()).await.unwrap();
        assert!(stale[0].is_none(), "it must be compared by a load");
        let (entry, _) = blocks.load(location.clone(), now.into()).await.unwrap();
        assert!(Arc::ptr_eq(&entry, cached[0].as_ref().unwrap()));
        assert_eq!(counts(), (1, 1));
    }
}
