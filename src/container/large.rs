//! Objects that are too large to be held whole.

use std::ops::Range;
use std::pin::pin;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::ReadError;
use super::hold::HOLDING;
use super::measured::measured;
use super::objects::Objects;
use crate::fair;
use crate::metrics::{self, StoreOperation};
use crate::store::{Meta, ReadAt, StoreError};

/// An open object that is read piece by piece; pieces share the transfer budget. Cheap to clone; the last clone closes it.
#[derive(Debug, Clone)]
pub struct LargeObject(Arc<Open>);

/// A [`LargeObject`] as long as others have it.
#[derive(Debug)]
pub(super) struct WeakLargeObject(Weak<Open>);

#[derive(Debug)]
struct Open {
    meta: Meta,
    reader: Arc<dyn ReadAt>,
    backend: &'static str,
    objects: Objects,
}

impl LargeObject {
    /// Number of bytes that [`Self::piece`] returns at most.
    pub const PIECE_BYTES: u64 = 256 << 10;

    pub(super) fn new(meta: Meta, reader: Arc<dyn ReadAt>, backend: &'static str, objects: Objects) -> Self {
        Self(Arc::new(Open { meta, reader, backend, objects }))
    }

    /// The bytes from `from` on, at most [`Self::PIECE_BYTES`] of them and none at or beyond `to`.
    ///
    /// # Errors
    /// When the object can no longer be read, or has become shorter.
    pub async fn piece(&self, from: u64, to: u64) -> Result<Bytes, ReadError> {
        let to = to.min(from.saturating_add(Self::PIECE_BYTES));
        let objects = &self.0.objects;
        let permit = objects.take_patiently(to.saturating_sub(from)).await?;
        let mut reading = pin!(self.read(from..to));
        if let Ok(bytes) = tokio::time::timeout(HOLDING, &mut reading).await {
            return Ok(objects.budget.pinned.passing(bytes?, permit));
        }
        // A store that hangs holds no memory that others wait for.
        drop(permit);
        let bytes = reading.await?;
        let permit = objects.take_patiently(bytes.len() as u64).await?;
        Ok(objects.budget.pinned.passing(bytes, permit))
    }

    /// Facts about it.
    pub fn meta(&self) -> &Meta {
        &self.0.meta
    }

    /// All of it; the caller holds the memory.
    pub(super) async fn all(&self) -> Result<Bytes, ReadError> {
        Ok(self.read(0..self.0.meta.len).await?)
    }

    /// [Holds](fair::hold) it for those who want it.
    pub(super) fn held(&self) -> WeakLargeObject {
        fair::hold(&self.0);
        WeakLargeObject(Arc::downgrade(&self.0))
    }

    async fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let Open { reader, backend, .. } = &*self.0;
        let bytes = measured(StoreOperation::GetRange, backend, reader.read_at(range)).await?;
        metrics::store_read_bytes(backend, bytes.len() as u64);
        Ok(bytes)
    }
}

impl WeakLargeObject {
    pub(super) fn get(&self) -> Option<LargeObject> {
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
    async fn a_piece_of_an_answer_that_has_begun_waits_longer_for_memory() {
        let settings = CacheSettings { capacity_bytes: 0, weigh_frequency: false };
        let objects = Objects::new(settings, 1 << 20, Duration::from_millis(20));
        let meta = Meta { len: 32 << 20, modified: None, etag: "\"x\"".into(), version: 1 };
        let large = LargeObject::new(meta, Arc::new(Zeros), "memory", objects.clone());
        let held = objects.take(1 << 20).await.unwrap();
        assert!(objects.take(1 << 10).await.is_err());
        let free = async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            drop(held);
        };
        let (piece, ()) = tokio::join!(large.piece(0, 1 << 10), free);
        assert_eq!(piece.unwrap().len(), 1 << 10);
    }
}
