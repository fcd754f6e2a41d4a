//! Objects that are too large to be held in memory as a whole.

use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;

use super::backpressure::MAX_WAIT_HOLDING_MEMORY;
use super::cache_memory::CacheMemory;
use super::error::ReadError;
use crate::store::{ObjectMeta, ReadAt, StoreError};

/// An open object that is read in pieces. The pieces share the transfer budget. Clones are cheap; the object is closed
/// when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct LargeObject(Arc<OpenObject>);

#[derive(Debug)]
struct OpenObject {
    meta: ObjectMeta,
    reader: Arc<dyn ReadAt>,
    memory: CacheMemory,
}

impl LargeObject {
    /// Maximum number of bytes that [`Self::read_piece`] returns.
    pub const PIECE_BYTES: u64 = 256 << 10;

    pub(crate) fn new(meta: ObjectMeta, reader: Arc<dyn ReadAt>, memory: CacheMemory) -> Self {
        Self(Arc::new(OpenObject { meta, reader, memory }))
    }

    /// Reads the bytes from `from` up to `to` (exclusive), at most [`Self::PIECE_BYTES`] of them.
    ///
    /// # Errors
    /// [`ReadError`] when the object can no longer be read or was truncated.
    pub async fn read_piece(&self, from: u64, to: u64) -> Result<Bytes, ReadError> {
        let to = to.min(from.saturating_add(Self::PIECE_BYTES));
        let memory = &self.0.memory;
        let permit = memory.take_for_started(to.saturating_sub(from)).await?;
        let mut reading = pin!(self.read(from..to));
        if let Ok(bytes) = tokio::time::timeout(MAX_WAIT_HOLDING_MEMORY, &mut reading).await {
            return Ok(memory.budget.pinned.pin_piece(bytes?, permit));
        }
        // No memory is held for a stalled store while other requests wait for it.
        drop(permit);
        let bytes = reading.await?;
        let permit = memory.take_for_started(bytes.len() as u64).await?;
        Ok(memory.budget.pinned.pin_piece(bytes, permit))
    }

    /// Returns the object's metadata.
    pub fn meta(&self) -> &ObjectMeta {
        &self.0.meta
    }

    /// Reads the whole object. The caller holds a permit for the memory.
    pub(crate) async fn read_all(&self) -> Result<Bytes, ReadError> {
        Ok(self.read(0..self.0.meta.len).await?)
    }

    async fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.0.reader.read_at(range).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_trait::async_trait;

    use super::super::object_cache::ObjectCache;
    use super::super::validated::CacheSettings;
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
        let memory = ObjectCache::new(settings, 1 << 20, Duration::from_millis(20)).memory;
        let meta = ObjectMeta { len: 32 << 20, modified: None, etag: "\"x\"".into(), version: 1 };
        let large = LargeObject::new(meta, Arc::new(Zeros), memory.clone());
        let held_permit = memory.take(1 << 20).await.unwrap();
        assert!(memory.take(1 << 10).await.is_err());
        let release = async {
            tokio::time::sleep(Duration::from_millis(400)).await;
            drop(held_permit);
        };
        let (piece, ()) = tokio::join!(large.read_piece(0, 1 << 10), release);
        assert_eq!(piece.unwrap().len(), 1 << 10);
    }
}
