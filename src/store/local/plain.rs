//! Files for those who serve them by other means than the trait [`Store`](crate::store::Store), within the same bounds.

use std::fs::{File, Metadata};
use std::io;

use rustix::fs::OFlags;

use super::LocalStore;
use crate::store::{Key, StoreError};

impl LocalStore {
    /// What the system says of a file or directory; `None` where there is none.
    ///
    /// # Errors
    /// As [`Store::head`](crate::store::Store::head).
    pub async fn metadata(&self, key: &Key) -> Result<Option<Metadata>, StoreError> {
        let wanted = key.clone();
        self.hop("stat", key, move |store| store.metadata_now(&wanted)).await
    }

    /// A file, open for reading; `None` where there is none.
    ///
    /// # Errors
    /// As [`Store::get`](crate::store::Store::get).
    pub async fn file(&self, key: &Key) -> Result<Option<File>, StoreError> {
        let wanted = key.clone();
        let open = move |store: &Self| {
            let root = store.root.open()?;
            match store.open_file(&root, &wanted) {
                Ok(opened) => Ok(opened.map(|(file, _)| file)),
                Err(error) => store.missing(&root, error, &wanted),
            }
        };
        self.hop("open", key, open).await
    }

    /// Whether `key` is a file. Waits for the disk.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn has_file(&self, key: &Key) -> io::Result<bool> {
        Ok(self.metadata_now(key)?.is_some_and(|metadata| metadata.is_file()))
    }

    fn metadata_now(&self, key: &Key) -> io::Result<Option<Metadata>> {
        let root = self.root.open()?;
        match self.open_below(&root, key, OFlags::empty()) {
            Ok(named) => Ok(Some(named.metadata()?)),
            Err(error) => self.missing(&root, error, key),
        }
    }
}
