//! Holes: blocks that were never written, as against blocks that cannot be seen now.

use std::sync::Arc;

use super::measured::measured;
use super::{Access, Container, Dataset, ReadError};
use crate::metrics::StoreOperation;
use crate::n5::GridPosition;
use crate::store::{Glance, Key, StoreError};

impl Container {
    /// That `dataset` is still there, for whoever found blocks missing: they are holes only if it is.
    ///
    /// # Errors
    /// [`ReadError::Store`] when it is not, or the store cannot say.
    async fn still_has(&self, access: Access, dataset: &Dataset) -> Result<(), ReadError> {
        let key = dataset.attributes_key().unwrap_or_else(Key::root);
        match self.store.glance(&key) {
            Glance::Object(_) => return Ok(()),
            Glance::Missing | Glance::NoObject | Glance::Unknown => access.may_wait().await,
        }
        let gone = || StoreError::Gone(format!("dataset {:?} went away while it was read", dataset.key));
        let facts = async { self.store.head(&key).await?.ok_or_else(gone) };
        measured(StoreOperation::Head, self.store.backend(), facts).await?;
        Ok(())
    }

    /// Makes sure, after the fact, that what was missing at `positions` is a hole: that the dataset is there. If it is
    /// not, nobody else is to take it for one.
    ///
    /// # Errors
    /// As `still_has`.
    pub async fn believe(
        &self,
        access: Access,
        dataset: &Arc<Dataset>,
        positions: &[GridPosition],
    ) -> Result<(), ReadError> {
        let is_there = self.still_has(access, dataset).await;
        if is_there.is_err() {
            self.resources.blocks.forget_holes(dataset, positions).await;
            for position in positions {
                self.resources.objects.forget_hole(self.id, &dataset.block_key(position)).await;
            }
        }
        is_there
    }

    /// [`Self::believe`], where anything was missing.
    pub(super) async fn believe_if(
        &self,
        is_missing: bool,
        access: Access,
        dataset: &Arc<Dataset>,
        positions: &[GridPosition],
    ) -> Result<(), ReadError> {
        if is_missing { self.believe(access, dataset, positions).await } else { Ok(()) }
    }
}
