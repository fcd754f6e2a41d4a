//! The stored blocks of a dataset, as a source of the cache of decoded blocks. A missing block is a hole, which was
//! never written, if its dataset still exists. If the dataset is gone, the block cannot be read at the moment.

use std::sync::Arc;

use async_trait::async_trait;

use super::handle::Container;
use crate::cache::blocks::{BlockLocation, BlockSource, BlockVersion, SourceBlock};
use crate::cache::datasets::Dataset;
use crate::cache::error::ReadError;
use crate::cache::freshness::{self, Freshness, ValidatedAt};
use crate::cache::objects::{ObjectCacheKey, StoredObject};
use crate::store::{CachedStat, Key, Revalidation, Store, StoreError, StorePressure};
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

    async fn versions(&self, positions: &[GridPosition]) -> Result<Option<Vec<Option<u64>>>, ReadError> {
        let store = &self.container.store;
        if store.sends_conditional_requests() {
            return Ok(None);
        }
        let keys = positions.iter().map(|position| self.dataset.block_key(position)).collect();
        let metas = store.head_many(keys).await?;
        Ok(Some(metas.into_iter().map(|meta| meta.map(|meta| meta.version)).collect()))
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
        fresh_since: u64,
    ) -> Result<(SourceBlock, u64), ReadError> {
        let (store, objects) = (&*self.container.store, &self.container.resources.objects);
        let key = self.dataset.block_key(position);
        let known = known.map(BlockVersion::etag_and_version);
        let cached = objects.entries.cached(&ObjectCacheKey::Stored(self.container.id, key.clone())).await;
        if let Some(entry) = cached.filter(|entry| entry.validated_at.is_fresh(fresh_since)) {
            let checked_at = entry.validated_at.nanoseconds();
            if let Some((meta, bytes)) = entry.whole_object() {
                let is_unchanged = known == Some(Some((&*meta.etag, meta.version)));
                let block = if is_unchanged {
                    SourceBlock::Unchanged
                } else {
                    SourceBlock::Stored(StoredObject::Whole(meta.clone(), bytes.clone()), None)
                };
                return Ok((block, checked_at));
            }
            // Without such a store, a cached hole is not trusted: the request that cached it did not check that the
            // dataset exists.
            if entry.object.is_none() && store.reports_missing_root() {
                return Ok((SourceBlock::Missing, checked_at));
            }
        }
        let checked_at = freshness::now();
        let revalidation = match known {
            Some(known) => store.revalidate(&key, known).await?,
            None => Revalidation::Changed,
        };
        let fetched = match revalidation {
            Revalidation::Unchanged => return Ok((SourceBlock::Unchanged, checked_at)),
            Revalidation::Changed => objects.fetch_once(store, &key).await?,
            Revalidation::Current(None) => None,
            Revalidation::Current(Some(object)) => Some(objects.account_for(object).await?),
        };
        let block = fetched.map_or(SourceBlock::Missing, |(stored, permit)| SourceBlock::Stored(stored, permit));
        Ok((block, checked_at))
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

    /// Confirms that the blocks missing at `positions` are holes, by checking afterwards that the dataset still exists.
    /// If it does not, removes the cached holes so that no other request trusts them.
    ///
    /// # Errors
    /// [`ReadError::Store`] when the dataset is gone or the store cannot tell.
    pub async fn confirm_missing(
        &self,
        freshness: Freshness,
        dataset: &Arc<Dataset>,
        positions: &[GridPosition],
    ) -> Result<(), ReadError> {
        if self.store.reports_missing_root() {
            return Ok(());
        }
        let existence = self.ensure_dataset_exists(freshness, dataset).await;
        if existence.is_err() {
            for position in positions {
                self.resources.blocks.entries.forget_missing(&(dataset.id, position.clone())).await;
                let entry_key = ObjectCacheKey::Stored(self.id, dataset.block_key(position));
                self.resources.objects.entries.forget_missing(&entry_key).await;
            }
        }
        existence
    }

    async fn ensure_dataset_exists(&self, freshness: Freshness, dataset: &Dataset) -> Result<(), ReadError> {
        let key = dataset.attributes_key().unwrap_or_else(Key::root);
        match self.store.cached_stat(&key) {
            CachedStat::Object(_) => return Ok(()),
            CachedStat::Missing | CachedStat::NotAnObject | CachedStat::Unknown => {
                freshness.pend_if_nonblocking().await;
            }
        }
        if self.store.head(&key).await?.is_some() {
            return Ok(());
        }
        let error = StoreError::RootMissing(format!("dataset {:?} disappeared while it was being read", dataset.key));
        metrics::store_error(StoreOperation::Head, error.kind());
        Err(error.into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use bytes::Bytes;
    use smallvec::smallvec;

    use super::super::resources::{Resources, Settings};
    use super::*;
    use crate::cache::freshness::RevalidationPolicy;
    use crate::store::{MemoryStore, ObjectMeta};
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

        async fn versions(&self, _: &[GridPosition]) -> Result<Option<Vec<Option<u64>>>, ReadError> {
            Ok(None)
        }

        async fn load(
            &self,
            position: &GridPosition,
            known: Option<&BlockVersion>,
            _fresh_since: u64,
        ) -> Result<(SourceBlock, u64), ReadError> {
            let checked_at = freshness::now();
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
    async fn computed_blocks_are_cached_shared_and_compared_like_stored_ones() {
        let attributes = r#"{"dimensions":[8,8],"blockSize":[2,1],"dataType":"uint8","compression":{"type":"raw"}}"#;
        let object = (Key::parse("v/attributes.json").unwrap(), Bytes::from_static(attributes.as_bytes()));
        let settings = Settings {
            decoded_cache: 1 << 20,
            stored_cache: 1 << 20,
            use_tiny_lfu: false,
            recheck_metadata: RevalidationPolicy::Never,
            recheck_data: RevalidationPolicy::Never,
            max_slice_bytes: 1 << 20,
            slice_budget: 1 << 20,
            decode_budget: 1 << 20,
            transfer_budget: 1 << 20,
            decode_factor: 16,
            max_attributes_bytes: 1 << 16,
            budget_wait: Duration::from_millis(20),
            cores: 1,
        };
        let container = Container::new(Arc::new(MemoryStore::new([object], 0)), Resources::new(settings));
        let freshness = container.resources().request_freshness();
        let dataset = container.dataset(freshness, &Key::parse("v").unwrap()).await.unwrap();
        let (blocks, computed) = (&container.resources().blocks, Arc::new(Computed::default()));
        let location = BlockLocation { source: Arc::<Computed>::clone(&computed), dataset, position: smallvec![3, 4] };
        let positions = std::slice::from_ref(&location.position);
        let counts = || (computed.loads.load(Ordering::Relaxed), computed.comparisons.load(Ordering::Relaxed));
        let loads = (0..9).map(|_| blocks.load(location.clone(), 0));
        for loaded in futures_util::future::join_all(loads).await {
            assert_eq!(loaded.unwrap().0.block.as_ref().unwrap().data, [3, 4][..]);
        }
        let cached = blocks.cached(&*computed, &location.dataset, positions, 0).await.unwrap();
        assert!(cached[0].is_some());
        assert_eq!(counts(), (1, 0));
        let now = freshness::now();
        let stale = blocks.cached(&*computed, &location.dataset, positions, now).await.unwrap();
        assert!(stale[0].is_none(), "it must be compared by a load");
        let (entry, _) = blocks.load(location.clone(), now).await.unwrap();
        assert!(Arc::ptr_eq(&entry, cached[0].as_ref().unwrap()));
        assert_eq!(counts(), (1, 1));
    }
}
