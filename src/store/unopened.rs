//! A container whose storage could not be reached when the server began: nothing of it can be seen.

use std::path::Path;

use async_trait::async_trait;

use super::{Filter, Inline, Key, Listing, Meta, Object, Store, StoreError};

/// Stands for a tree that is not there yet: all that is asked of it is lost from sight, and nothing is missing.
#[derive(Debug)]
pub struct Unopened(String);

impl Unopened {
    /// In place of the tree at `root`.
    pub fn new(root: &Path) -> Self {
        Self(format!("the container's directory is not there: {} could not be opened yet", root.display()))
    }

    fn gone<T>(&self) -> Result<T, StoreError> {
        Err(StoreError::Gone(self.0.clone()))
    }
}

#[async_trait]
impl Store for Unopened {
    fn backend(&self) -> &'static str {
        "local"
    }

    async fn head(&self, _key: &Key) -> Result<Option<Meta>, StoreError> {
        self.gone()
    }

    async fn get(&self, _key: &Key, _inline: &Inline) -> Result<Option<Object>, StoreError> {
        self.gone()
    }

    async fn is_directory(&self, _key: &Key) -> Result<bool, StoreError> {
        self.gone()
    }

    async fn list(
        &self,
        _key: &Key,
        _after: Option<&str>,
        _limit: usize,
        _keep: Filter,
    ) -> Result<Option<Listing>, StoreError> {
        self.gone()
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.gone()
    }
}
