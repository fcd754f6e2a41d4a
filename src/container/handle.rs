//! The handle to a container: its store, the resources that it shares, and what its caller may see.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::resources::Resources;
use super::visibility::Visibility;
use crate::cache::error::ReadError;
use crate::cache::freshness::Freshness;
use crate::cache::object_entry::StoredObject;
use crate::store::{CachedStat, GuardedStore, Key, ObjectMeta, Store, StoreLoad};

/// An N5 hierarchy in a store. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Container {
    pub(crate) id: u32,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) resources: Arc<Resources>,
    /// Restriction to what the caller may see; `None` if everything is visible.
    pub(crate) visibility: Option<Arc<dyn Visibility>>,
}

impl Container {
    /// Creates a container for the hierarchy in `store`.
    #[expect(clippy::needless_pass_by_value, reason = "the container keeps its own handle to the resources")]
    pub fn new(store: Arc<dyn Store>, resources: Arc<Resources>) -> Self {
        let id = resources.next_container_id.fetch_add(1, Ordering::Relaxed);
        let store = Arc::new(GuardedStore::new(store));
        Self { id, store, resources: resources.for_container(), visibility: None }
    }

    /// Returns the resources that all containers share.
    pub fn resources(&self) -> &Arc<Resources> {
        &self.resources
    }

    /// Returns the object at `key` as stored (attributes or a block), or `None` if there is none.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails, a link hides a block, or memory is short.
    pub async fn object(&self, freshness: Freshness, key: &Key) -> Result<Option<StoredObject>, ReadError> {
        if !self.is_visible(key) {
            return Ok(None);
        }
        self.resources.objects.get(self.id, &self.store, key, freshness).await
    }

    /// Returns metadata of the object at `key`, from the cache if the entry is fresh. Reads no bytes of the object.
    ///
    /// # Errors
    /// [`ReadError`] when the store fails.
    pub async fn meta(&self, freshness: Freshness, key: &Key) -> Result<Option<ObjectMeta>, ReadError> {
        if !self.is_visible(key) {
            return Ok(None);
        }
        let fresh_since = freshness.since(key);
        if let Some(cached) = self.resources.objects.peek(self.id, key, fresh_since).await {
            return Ok(cached);
        }
        match self.store.cached_stat(key) {
            CachedStat::Object(raw_meta) => Ok(Some(raw_meta.into())),
            CachedStat::Missing | CachedStat::NotAnObject => Ok(None),
            CachedStat::Unknown => {
                freshness.ensure_may_block().await;
                Ok(self.store.head(key).await?)
            }
        }
    }

    /// Returns the current load of the store: the calls that are running or queued.
    pub fn store_load(&self) -> StoreLoad {
        self.store.current_load()
    }

    /// Checks that the store can be read.
    ///
    /// # Errors
    /// [`ReadError::Store`] with the reason why it cannot be read.
    pub async fn probe(&self) -> Result<(), ReadError> {
        Ok(self.store.probe().await?)
    }

    /// Returns the same container with restricted visibility. The caches are shared, but are asked for visible objects
    /// only.
    #[must_use]
    pub fn with_visibility(&self, visibility: Arc<dyn Visibility>) -> Self {
        Self { visibility: Some(visibility), ..self.clone() }
    }

    pub(crate) fn is_visible(&self, key: &Key) -> bool {
        self.visibility.as_ref().is_none_or(|visibility| visibility.is_visible(key))
    }

    pub(crate) fn is_subtree_visible(&self, key: &Key) -> bool {
        self.visibility.as_ref().is_none_or(|visibility| visibility.is_subtree_visible(key))
    }
}
