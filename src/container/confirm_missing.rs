//! Confirmation that missing blocks are holes, which were never written, and not blocks that cannot be read at the
//! moment.

use std::sync::Arc;

use super::handle::Container;
use crate::cache::datasets::Dataset;
use crate::cache::error::ReadError;
use crate::cache::freshness::Freshness;
use crate::metrics::{self, StoreOperation};
use crate::store::{CachedStat, Key, StoreError};
use n5_format::GridPosition;

impl Container {
    /// Checks that `dataset` still exists. Missing blocks are holes only if it does.
    ///
    /// # Errors
    /// [`ReadError::Store`] when the dataset is gone or the store cannot tell.
    async fn ensure_dataset_exists(&self, freshness: Freshness, dataset: &Dataset) -> Result<(), ReadError> {
        let key = dataset.attributes_key().unwrap_or_else(Key::root);
        match self.store.cached_stat(&key) {
            CachedStat::Object(_) => return Ok(()),
            CachedStat::Missing | CachedStat::NotAnObject | CachedStat::Unknown => freshness.ensure_may_block().await,
        }
        if self.store.head(&key).await?.is_some() {
            return Ok(());
        }
        let error = StoreError::RootMissing(format!("dataset {:?} disappeared while it was being read", dataset.key));
        metrics::store_error(StoreOperation::Head, error.kind());
        Err(error.into())
    }

    /// Confirms that the blocks missing at `positions` are holes, by checking afterwards that the dataset still exists.
    /// If it does not, removes the cached holes so that no other request trusts them.
    ///
    /// # Errors
    /// As `ensure_dataset_exists`.
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
            self.resources.blocks.forget_missing_blocks(dataset, positions).await;
            for position in positions {
                self.resources.objects.forget_missing(self.id, &dataset.block_key(position)).await;
            }
        }
        existence
    }

    /// Calls [`Self::confirm_missing`] if `is_missing`.
    pub(crate) async fn confirm_missing_if(
        &self,
        is_missing: bool,
        freshness: Freshness,
        dataset: &Arc<Dataset>,
        positions: &[GridPosition],
    ) -> Result<(), ReadError> {
        if is_missing { self.confirm_missing(freshness, dataset, positions).await } else { Ok(()) }
    }
}
