//! The stored blocks of a dataset, as a source of the cache of decoded blocks.

use std::sync::Arc;

use async_trait::async_trait;

use super::handle::Container;
use crate::cache::block_source::{BlockSource, CachedVersion, SourceBlock};
use crate::cache::datasets::Dataset;
use crate::cache::error::ReadError;
use crate::cache::freshness::ValidatedAt;
use crate::store::{Store, StoreLoad};
use n5_format::GridPosition;

/// The stored blocks of one dataset.
#[derive(Debug)]
struct StoredBlocks {
    container: Container,
    dataset: Arc<Dataset>,
}

impl Container {
    /// Returns the source of the blocks of `dataset`.
    pub(crate) fn block_source(&self, dataset: &Arc<Dataset>) -> Arc<dyn BlockSource> {
        Arc::new(StoredBlocks { container: self.clone(), dataset: Arc::clone(dataset) })
    }
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
        validated_at.try_revalidate(&*self.container.store, &self.dataset.block_key(position), version, checked_at)
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

    fn current_load(&self) -> StoreLoad {
        self.container.store.current_load()
    }

    async fn load(
        &self,
        position: &GridPosition,
        known: Option<CachedVersion<'_>>,
        fresh_since: u64,
    ) -> Result<(SourceBlock, u64), ReadError> {
        let Container { id, store, resources, .. } = &self.container;
        let key = self.dataset.block_key(position);
        resources.objects.read_block(*id, &**store, &key, known, fresh_since).await
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
    use crate::cache::block_cache::BlockLocation;
    use crate::cache::freshness::{self, RevalidationPolicy};
    use crate::store::{Key, MemoryStore, ObjectMeta};
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
            known: Option<CachedVersion<'_>>,
            _fresh_since: u64,
        ) -> Result<(SourceBlock, u64), ReadError> {
            let checked_at = freshness::now();
            if known == Some(CachedVersion(Some(("\"computed\"", 1)))) {
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
