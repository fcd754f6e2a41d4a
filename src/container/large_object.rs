//! Objects that are too large to be held in memory as a whole.

use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::ReadError;
use super::backpressure::MAX_WAIT_HOLDING_MEMORY;
use super::instrument::instrument;
use super::object_cache::ObjectCache;
use crate::fair_queue;
use crate::metrics::{self, StoreOperation};
use crate::store::{ObjectMeta, ReadAt, StoreError};

/// An open object that is read in pieces. The pieces share the transfer budget. Clones are cheap; the object is closed
/// when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct LargeObject(Arc<OpenObject>);

/// A weak reference to a [`LargeObject`].
#[derive(Debug)]
pub(super) struct WeakLargeObject(Weak<OpenObject>);

#[derive(Debug)]
struct OpenObject {
    meta: ObjectMeta,
    reader: Arc<dyn ReadAt>,
    backend: &'static str,
    objects: ObjectCache,
}

impl LargeObject {
    /// Maximum number of bytes that [`Self::read_piece`] returns.
    pub const PIECE_BYTES: u64 = 256 << 10;

    pub(super) fn new(meta: ObjectMeta, reader: Arc<dyn ReadAt>, backend: &'static str, objects: ObjectCache) -> Self {
        Self(Arc::new(OpenObject { meta, reader, backend, objects }))
    }

    /// Reads the bytes from `from` up to `to` (exclusive), at most [`Self::PIECE_BYTES`] of them.
    ///
    /// # Errors
    /// [`ReadError`] when the object can no longer be read or was truncated.
    pub async fn read_piece(&self, from: u64, to: u64) -> Result<Bytes, ReadError> {
        let to = to.min(from.saturating_add(Self::PIECE_BYTES));
        let objects = &self.0.objects;
        let permit = objects.take_for_started(to.saturating_sub(from)).await?;
        let mut reading = pin!(self.read(from..to));
        if let Ok(bytes) = tokio::time::timeout(MAX_WAIT_HOLDING_MEMORY, &mut reading).await {
            return Ok(objects.budget.pinned.pin_piece(bytes?, permit));
        }
        // No memory is held for a stalled store while other requests wait for it.
        drop(permit);
        let bytes = reading.await?;
        let permit = objects.take_for_started(bytes.len() as u64).await?;
        Ok(objects.budget.pinned.pin_piece(bytes, permit))
    }

    /// Returns the object's metadata.
    pub fn meta(&self) -> &ObjectMeta {
        &self.0.meta
    }

    /// Reads the whole object. The caller holds a permit for the memory.
    pub(super) async fn read_all(&self) -> Result<Bytes, ReadError> {
        Ok(self.read(0..self.0.meta.len).await?)
    }

    /// [Retains](fair_queue::retain_for_waiters) the object for the waiters of the current flight.
    pub(super) fn retain_for_waiters(&self) -> WeakLargeObject {
        fair_queue::retain_for_waiters(&self.0);
        WeakLargeObject(Arc::downgrade(&self.0))
    }

    async fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let OpenObject { reader, backend, .. } = &*self.0;
        let bytes = instrument(StoreOperation::GetRange, backend, reader.read_at(range)).await?;
        metrics::store_read_bytes(backend, bytes.len() as u64);
        Ok(bytes)
    }
}

impl WeakLargeObject {
    pub(super) fn upgrade(&self) -> Option<LargeObject> {
        self.0.upgrade().map(LargeObject)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_trait::async_trait;

    use super::super::CacheSettings;
    use super::*;

    #[derive(Debug)]
    struct Zeros;

    #[async_trait]
    impl ReadAt for Zeros {
        async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
            Ok(vec![0; usize::try_from(range.end - range.start).unwrap()].into())
        }
    }

    #[tokio::test]
    async fn a_piece_of_a_started_answer_waits_longer_for_memory() {
        let settings = CacheSettings { capacity_bytes: 0, use_tiny_lfu: false };
        let objects = ObjectCache::new(settings, 1 << 20, Duration::from_millis(20));
        let meta = ObjectMeta { len: 32 << 20, modified: None, etag: "\"x\"".into(), version: 1 };
        let large = LargeObject::new(meta, Arc::new(Zeros), "memory", objects.clone());
        let held_permit = objects.take(1 << 20).await.unwrap();
        assert!(objects.take(1 << 10).await.is_err());
        let release = async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            drop(held_permit);
        };
        let (piece, ()) = tokio::join!(large.read_piece(0, 1 << 10), release);
        assert_eq!(piece.unwrap().len(), 1 << 10);
    }
}
