//! A container whose storage could not be reached at startup.

use std::path::Path;

use async_trait::async_trait;

use super::Store;
use super::error::StoreError;
use super::key::Key;
use super::listing::{EntryFilter, Listing};
use super::object::{InlineLimit, Object, ObjectMeta};

/// Stands in for a tree that is not available yet. Every call fails; no object is reported as missing.
#[derive(Debug)]
pub struct UnavailableStore(String);

impl UnavailableStore {
    /// Creates a stand-in for the tree at `root`.
    pub fn new(root: &Path) -> Self {
        Self(format!("the container's directory is missing: {} could not be opened yet", root.display()))
    }

    fn root_missing<T>(&self) -> Result<T, StoreError> {
        Err(StoreError::RootMissing(self.0.clone()))
    }
}

#[async_trait]
impl Store for UnavailableStore {
    fn backend(&self) -> &'static str {
        "local"
    }

    async fn head(&self, _key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        self.root_missing()
    }

    async fn get(&self, _key: &Key, _inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        self.root_missing()
    }

    async fn is_directory(&self, _key: &Key) -> Result<bool, StoreError> {
        self.root_missing()
    }

    async fn list(
        &self,
        _key: &Key,
        _after: Option<&str>,
        _limit: usize,
        _filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        self.root_missing()
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.root_missing()
    }
}
