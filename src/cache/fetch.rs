//! Reads of objects that are not cached. They take memory for the objects, but do not hold it while storage is slow.

use bytes::Bytes;

use super::backpressure::{self, MAX_WAIT_HOLDING_MEMORY};
use super::error::ReadError;
use super::footprint;
use super::large_object::LargeObject;
use super::object_cache::{MAX_WHOLE_OBJECT_BYTES, MIN_INLINE_BYTES, ObjectCache};
use super::object_entry::StoredObject;
use super::permit::Permit;
use crate::store::{InlineLimit, Key, Object, ObjectData, ObjectMeta, Revalidation, Store, StoreError};

/// Result of one request to the store for an object.
pub(crate) enum FetchedObject {
    Whole(ObjectMeta, Bytes, Permit),
    Large(LargeObject),
}

impl FetchedObject {
    /// Creates the result for an object that was read under a permit for at least as many bytes.
    fn whole(meta: ObjectMeta, bytes: Bytes, mut permit: Permit) -> Self {
        permit.shrink(bytes.len() as u64);
        Self::Whole(meta, bytes, permit)
    }
}

impl ObjectCache {
    /// Reads an object, or opens it if it is too large to hold. An object that becomes shorter meanwhile is read again.
    /// `first` is the object as a revalidation found it, if it did.
    pub(crate) async fn fetch(
        &self,
        store: &dyn Store,
        key: &Key,
        mut first: Revalidation,
    ) -> Result<Option<StoredObject>, ReadError> {
        let mut is_retry = false;
        loop {
            let fetched = match std::mem::replace(&mut first, Revalidation::Changed) {
                Revalidation::Unchanged | Revalidation::Changed => self.fetch_once(store, key).await?,
                Revalidation::Current(None) => None,
                Revalidation::Current(Some(object)) => Some(self.fetched(object).await?),
            };
            let large = match fetched {
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
            let permit = self.memory.take(large.meta().len).await?;
            match backpressure::yield_if_contended(
                || store.current_load(),
                &self.memory.budget,
                key,
                Box::pin(large.read_all()),
            )
            .await?
            {
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

    /// Accounts for an object that a revalidation found.
    pub(crate) async fn fetched(&self, Object { meta, data }: Object) -> Result<FetchedObject, ReadError> {
        Ok(match data {
            ObjectData::InMemory(bytes) => {
                let permit = self.memory.take(bytes.len() as u64).await?;
                FetchedObject::whole(meta, bytes, permit)
            }
            ObjectData::Open(reader) => FetchedObject::Large(LargeObject::new(meta, reader, self.memory.clone())),
        })
    }

    /// Returns the size up to which objects are read inline now. It is smaller while requests wait for memory, so that
    /// more reads can overtake large ones.
    fn current_inline_bytes(&self) -> u64 {
        if self.memory.budget.has_waiters() {
            self.inline_bytes.min((self.inline_bytes / 4).max(MIN_INLINE_BYTES))
        } else {
            self.inline_bytes
        }
    }

    /// Reads a small object, or opens a larger one.
    pub(crate) async fn fetch_once(&self, store: &dyn Store, key: &Key) -> Result<Option<FetchedObject>, ReadError> {
        // A store that does not respond must hold no memory that others wait for. The size of the object is known when
        // it responds.
        let has_memory = !store.current_load().is_unresponsive();
        let inline = InlineLimit::new(if has_memory { self.current_inline_bytes() } else { 0 });
        let mut permit = if has_memory { Some(self.memory.take(inline.bytes()).await?) } else { None };
        let mut reading = store.get(key, &inline);
        let mut timeout = MAX_WAIT_HOLDING_MEMORY;
        let object = loop {
            if permit.is_none() {
                break reading.await?;
            }
            if let Ok(object) = tokio::time::timeout(timeout, &mut reading).await {
                break object?;
            }
            if self.memory.budget.has_waiters() {
                inline.revoke();
                permit = None;
            }
            timeout = backpressure::CONTENTION_POLL_INTERVAL;
        };
        let Some(Object { meta, data }) = object else { return Ok(None) };
        match (data, permit) {
            (ObjectData::InMemory(bytes), Some(permit)) => Ok(Some(FetchedObject::whole(meta, bytes, permit))),
            (ObjectData::Open(reader), _) if meta.len > self.inline_bytes => {
                Ok(Some(FetchedObject::Large(LargeObject::new(meta, reader, self.memory.clone()))))
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
        let (inline, permit) = (InlineLimit::new(len), self.memory.take(len).await?);
        let reading = store.get(key, &inline);
        let object =
            backpressure::yield_if_contended(|| store.current_load(), &self.memory.budget, key, reading).await??;
        let Some(Object { meta, data }) = object else { return Ok(None) };
        Ok(Some(match data {
            ObjectData::InMemory(bytes) => FetchedObject::whole(meta, bytes, permit),
            ObjectData::Open(reader) => FetchedObject::Large(LargeObject::new(meta, reader, self.memory.clone())),
        }))
    }
}
