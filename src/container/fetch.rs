//! Reads of objects that are not cached. They take memory for the objects, but do not hold it while storage is slow.

use bytes::Bytes;

use super::backpressure::{self, MAX_WAIT_HOLDING_MEMORY};
use super::budget::Budget;
use super::instrument::instrument;
use super::large_object::LargeObject;
use super::object_cache::{MAX_WHOLE_OBJECT_BYTES, ObjectCache, StoredObject};
use super::permit::Permit;
use super::{ReadError, footprint};
use crate::metrics::{self, StoreOperation};
use crate::store::{InlineLimit, Key, Object, ObjectData, ObjectMeta, Store, StoreError};

/// Largest object that is read by the same call that opens it, in bytes.
const INLINE_BYTES: u64 = 1 << 20;

/// Minimum of this limit for a small budget.
const MIN_INLINE_BYTES: u64 = 64 << 10;

/// Returns [`INLINE_BYTES`], or less if that is too large for a permit of `budget` to overtake larger ones, which wait
/// for slow clients. It is also at most `transfer_bytes`, which remain beside a full cache.
pub(super) fn inline_bytes(budget: &Budget, transfer_bytes: u64) -> u64 {
    INLINE_BYTES.min(budget.max_overtaking_bytes().max(MIN_INLINE_BYTES)).min(transfer_bytes)
}

/// Result of one request to the store for an object.
pub(super) enum FetchedObject {
    Whole(ObjectMeta, Bytes, Permit),
    Large(LargeObject),
}

impl FetchedObject {
    /// Creates the result for an object of `store` that was read under a permit for at least as many bytes.
    fn whole(store: &dyn Store, meta: ObjectMeta, bytes: Bytes, mut permit: Permit) -> Self {
        let len = bytes.len() as u64;
        metrics::store_read_bytes(store.backend(), len);
        permit.shrink(len);
        Self::Whole(meta, bytes, permit)
    }
}

impl ObjectCache {
    /// Reads an object, or opens it if it is too large to hold. An object that becomes shorter meanwhile is read again.
    pub(super) async fn fetch(&self, store: &dyn Store, key: &Key) -> Result<Option<StoredObject>, ReadError> {
        let mut is_retry = false;
        loop {
            let large = match self.fetch_once(store, key).await? {
                None => return Ok(None),
                Some(FetchedObject::Whole(meta, bytes, permit)) => {
                    return Ok(Some(StoredObject::Whole(
                        meta,
                        permit.into_cache_owned().own(footprint::compact_for_cache(bytes, false)),
                    )));
                }
                Some(FetchedObject::Large(large)) if large.meta().len > MAX_WHOLE_OBJECT_BYTES => {
                    return Ok(Some(StoredObject::Large(large)));
                }
                Some(FetchedObject::Large(large)) => large,
            };
            let permit = self.take(large.meta().len).await?;
            match backpressure::yield_if_contended(store, &self.budget, key, Box::pin(large.read_all())).await? {
                Ok(bytes) => {
                    return Ok(Some(StoredObject::Whole(
                        large.meta().clone(),
                        permit.into_cache_owned().own(footprint::compact_for_cache(bytes, false)),
                    )));
                }
                Err(ReadError::Store(StoreError::Truncated(_) | StoreError::Torn(_))) if !is_retry => {
                    is_retry = true;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the size up to which objects are read inline now. It is smaller while requests wait for memory, so that
    /// more reads can overtake large ones.
    fn current_inline_bytes(&self) -> u64 {
        if self.budget.has_waiters() {
            self.inline_bytes.min((self.inline_bytes / 4).max(MIN_INLINE_BYTES))
        } else {
            self.inline_bytes
        }
    }

    /// Reads a small object, or opens a larger one.
    pub(super) async fn fetch_once(&self, store: &dyn Store, key: &Key) -> Result<Option<FetchedObject>, ReadError> {
        // A store that does not respond must hold no memory that others wait for. The size of the object is known when
        // it responds.
        let has_memory = !backpressure::is_store_unresponsive(store);
        let inline = InlineLimit::new(if has_memory { self.current_inline_bytes() } else { 0 });
        let mut permit = if has_memory { Some(self.take(inline.bytes()).await?) } else { None };
        let mut reading = Box::pin(instrument(StoreOperation::Get, store.backend(), store.get(key, &inline)));
        let mut timeout = MAX_WAIT_HOLDING_MEMORY;
        let object = loop {
            if permit.is_none() {
                break reading.await?;
            }
            if let Ok(object) = tokio::time::timeout(timeout, &mut reading).await {
                break object?;
            }
            if self.budget.has_waiters() {
                inline.revoke();
                permit = None;
            }
            timeout = backpressure::CONTENTION_POLL_INTERVAL;
        };
        let Some(Object { meta, data }) = object else { return Ok(None) };
        match (data, permit) {
            (ObjectData::InMemory(bytes), Some(permit)) => Ok(Some(FetchedObject::whole(store, meta, bytes, permit))),
            (ObjectData::Open(reader), _) if meta.len > self.inline_bytes => {
                Ok(Some(FetchedObject::Large(LargeObject::new(meta, reader, store.backend(), self.clone()))))
            }
            // Neither bytes nor open files are kept while waiting for memory.
            (data, permit) => {
                drop((data, permit));
                self.fetch_reserving(store, key, meta.len).await
            }
        }
    }

    /// As [`Self::fetch_once`], with a permit for `len` bytes.
    async fn fetch_reserving(
        &self,
        store: &dyn Store,
        key: &Key,
        len: u64,
    ) -> Result<Option<FetchedObject>, ReadError> {
        let (inline, permit) = (InlineLimit::new(len), self.take(len).await?);
        let reading = Box::pin(instrument(StoreOperation::Get, store.backend(), store.get(key, &inline)));
        let object = backpressure::yield_if_contended(store, &self.budget, key, reading).await??;
        let Some(Object { meta, data }) = object else { return Ok(None) };
        Ok(Some(match data {
            ObjectData::InMemory(bytes) => FetchedObject::whole(store, meta, bytes, permit),
            ObjectData::Open(reader) => {
                FetchedObject::Large(LargeObject::new(meta, reader, store.backend(), self.clone()))
            }
        }))
    }
}
