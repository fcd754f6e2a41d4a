//! File access for callers that serve files without the trait [`Store`](crate::store::Store), within the same bounds.

use std::fs::{File, Metadata};
use std::io;

use rustix::fs::OFlags;

use super::LocalStore;
use crate::store::{Key, StoreError};

impl LocalStore {
    /// Returns the system's metadata of a file or directory, or `None` if there is none.
    ///
    /// # Errors
    /// As [`Store::head`](crate::store::Store::head).
    pub async fn metadata(&self, key: &Key) -> Result<Option<Metadata>, StoreError> {
        let wanted = key.clone();
        self.run_on_disk_pool("stat", key, move |store| store.metadata_blocking(&wanted)).await
    }

    /// Opens a file for reading. Returns `None` if there is none.
    ///
    /// # Errors
    /// As [`Store::get`](crate::store::Store::get).
    pub async fn open_for_reading(&self, key: &Key) -> Result<Option<File>, StoreError> {
        let wanted = key.clone();
        let open = move |store: &Self| {
            let root = store.root.open()?;
            match store.open_file(&root, &wanted) {
                Ok(opened) => Ok(opened.map(|(file, _)| file)),
                Err(error) => store.none_if_missing(&root, error, &wanted),
            }
        };
        self.run_on_disk_pool("open", key, open).await
    }

    /// Returns true if `key` is a file. Blocks on the disk.
    ///
    /// # Errors
    /// If that cannot be determined.
    pub fn has_file_blocking(&self, key: &Key) -> io::Result<bool> {
        Ok(self.metadata_blocking(key)?.is_some_and(|metadata| metadata.is_file()))
    }

    fn metadata_blocking(&self, key: &Key) -> io::Result<Option<Metadata>> {
        let root = self.root.open()?;
        match self.open_path(&root, key, OFlags::empty()) {
            Ok(named) => Ok(Some(named.metadata()?)),
            Err(error) => self.none_if_missing(&root, error, key),
        }
    }
}
