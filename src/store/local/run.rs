//! Runs blocking calls on threads that may block on the disk.

use std::io;
use std::sync::Arc;

use super::errors::store_error;
use crate::store::disk_pool::{DiskPool, DiskPoolError};
use crate::store::error::StoreError;
use crate::store::key::Key;

/// Runs `call`, which may block on the disk, up to the deadline of `disk_pool`: [`DiskPool::run`].
///
/// # Errors
/// Those of the call and of the pool, for `action` on the object or directory at `key`.
pub(super) async fn run_blocking<T: Send + 'static>(
    disk_pool: &DiskPool,
    action: &'static str,
    key: &Key,
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, StoreError> {
    match disk_pool.run(Some((action, key.clone())), call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(cause)) => Err(store_error(action, key, cause)),
        Err(DiskPoolError::Thread(cause)) => Err(StoreError::Io { action, key: key.clone(), cause: Arc::new(cause) }),
        Err(DiskPoolError::Timeout) => Err(StoreError::Timeout(action, key.clone())),
        Err(DiskPoolError::Stalled) => Err(StoreError::Stalled(action, key.clone())),
        Err(DiskPoolError::OperationStalled) => Err(StoreError::KeyStalled(action, key.clone())),
        Err(DiskPoolError::QueueFull) => Err(StoreError::Overloaded(action, key.clone())),
    }
}
