//! Reading objects that are not cached: with memory for them, which does not wait for storage that is slow.

use bytes::Bytes;

use super::budget::Budget;
use super::hold::{self, HOLDING};
use super::large::LargeObject;
use super::measured::measured;
use super::objects::{Objects, Stored, WHOLE_BYTES};
use super::permit::Permit;
use super::{ReadError, footprint};
use crate::metrics::{self, StoreOperation};
use crate::store::{Data, Inline, Key, Meta, Object, Store, StoreError};

/// Objects up to this size are read in the same hop that opens them.
const INLINE_BYTES: u64 = 1 << 20;

/// Least of these where the budget is small.
const LEAST_INLINE_BYTES: u64 = 64 << 10;

/// [`INLINE_BYTES`], or less where that is no small share of `budget`: it passes large ones, which wait for slow clients. Nor is
/// it more than the `transfer_bytes` that are left beside a full cache.
pub(super) fn inline_bytes(budget: &Budget, transfer_bytes: u64) -> u64 {
    INLINE_BYTES.min(budget.small_bytes().max(LEAST_INLINE_BYTES)).min(transfer_bytes)
}

/// An object as one request to the store found it.
pub(super) enum Fetched {
    Whole(Meta, Bytes, Permit),
    Large(LargeObject),
}

impl Fetched {
    /// An object of `store` that has been read, with memory for as many bytes or more.
    fn whole(store: &dyn Store, meta: Meta, bytes: Bytes, mut permit: Permit) -> Self {
        let len = bytes.len() as u64;
        metrics::store_read_bytes(store.backend(), len);
        permit.shrink(len);
        Self::Whole(meta, bytes, permit)
    }
}

impl Objects {
    /// Reads an object, or opens it where it is too large to be held. One that becomes shorter meanwhile is
    /// looked at once more.
    pub(super) async fn fetch(&self, store: &dyn Store, key: &Key) -> Result<Option<Stored>, ReadError> {
        let mut second_look = false;
        loop {
            let large = match self.fetch_once(store, key).await? {
                None => return Ok(None),
                Some(Fetched::Whole(meta, bytes, permit)) => {
                    return Ok(Some(Stored::Whole(meta, permit.of_cache().own(footprint::cached(bytes, false)))));
                }
                Some(Fetched::Large(large)) if large.meta().len > WHOLE_BYTES => return Ok(Some(Stored::Large(large))),
                Some(Fetched::Large(large)) => large,
            };
            let permit = self.take(large.meta().len).await?;
            match hold::unless_needed(store, &self.budget, key, Box::pin(large.all())).await? {
                Ok(bytes) => {
                    return Ok(Some(Stored::Whole(
                        large.meta().clone(),
                        permit.of_cache().own(footprint::cached(bytes, false)),
                    )));
                }
                Err(ReadError::Store(StoreError::Short(_) | StoreError::Torn(_))) if !second_look => second_look = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Objects up to this size are read at once: smaller ones while requests wait for memory, so that more of them may pass large
    /// ones.
    fn inline_bytes_now(&self) -> u64 {
        if self.budget.is_waited_for() {
            self.inline_bytes.min((self.inline_bytes / 4).max(LEAST_INLINE_BYTES))
        } else {
            self.inline_bytes
        }
    }

    /// Reads a small object, or opens another one.
    pub(super) async fn fetch_once(&self, store: &dyn Store, key: &Key) -> Result<Option<Fetched>, ReadError> {
        // A store that hangs holds no memory that others wait for; how much it takes is known when it answers.
        let has_memory = !hold::is_silent(store);
        let inline = Inline::new(if has_memory { self.inline_bytes_now() } else { 0 });
        let mut permit = if has_memory { Some(self.take(inline.bytes()).await?) } else { None };
        let mut reading = Box::pin(measured(StoreOperation::Get, store.backend(), store.get(key, &inline)));
        let mut wait = HOLDING;
        let object = loop {
            if permit.is_none() {
                break reading.await?;
            }
            if let Ok(object) = tokio::time::timeout(wait, &mut reading).await {
                break object?;
            }
            if self.budget.is_waited_for() {
                inline.forbid();
                permit = None;
            }
            wait = hold::LOOK;
        };
        let Some(Object { meta, data }) = object else { return Ok(None) };
        match (data, permit) {
            (Data::Whole(bytes), Some(permit)) => Ok(Some(Fetched::whole(store, meta, bytes, permit))),
            (Data::Open(reader), _) if meta.len > self.inline_bytes => {
                Ok(Some(Fetched::Large(LargeObject::new(meta, reader, store.backend(), self.clone()))))
            }
            // Neither bytes nor open files are kept while memory is waited for.
            (data, permit) => {
                drop((data, permit));
                self.fetch_with(store, key, meta.len).await
            }
        }
    }

    /// As [`Self::fetch_once`], with memory for `len` bytes.
    async fn fetch_with(&self, store: &dyn Store, key: &Key, len: u64) -> Result<Option<Fetched>, ReadError> {
        let (inline, permit) = (Inline::new(len), self.take(len).await?);
        let reading = Box::pin(measured(StoreOperation::Get, store.backend(), store.get(key, &inline)));
        let object = hold::unless_needed(store, &self.budget, key, reading).await??;
        let Some(Object { meta, data }) = object else { return Ok(None) };
        Ok(Some(match data {
            Data::Whole(bytes) => Fetched::whole(store, meta, bytes, permit),
            Data::Open(reader) => Fetched::Large(LargeObject::new(meta, reader, store.backend(), self.clone())),
        }))
    }
}
