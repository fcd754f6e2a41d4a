//! A decorator that records the calls of a store in metrics and traces: their duration, errors and bytes.
//!
//! Deadlines and stall detection are not here: they belong to threads that block on a disk, which only a local store
//! has. A store behind a network relies on the timeouts of its network client.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;

use super::Store;
use super::disk_pool::StorePressure;
use super::error::StoreError;
use super::key::Key;
use super::listing::{EntryFilter, Listing};
use super::object::{InlineLimit, Object, ObjectData, ObjectMeta, ReadAt, Revalidation};
use super::page_cache::PageCache;
use crate::telemetry::metrics::{self, StoreOperation};
use crate::telemetry::trace;

/// A store whose calls are recorded.
#[derive(Debug)]
pub struct InstrumentedStore(Arc<dyn Store>);

impl InstrumentedStore {
    /// Records the calls of `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self(store)
    }

    /// Counts the bytes of an object, now or when they are read from it.
    fn count_bytes(&self, Object { meta, age, data }: Object) -> Object {
        let data = match data {
            ObjectData::InMemory(bytes) => {
                metrics::store_read_bytes(self.backend(), bytes.len() as u64);
                ObjectData::InMemory(bytes)
            }
            ObjectData::Open(inner) => {
                ObjectData::Open(Arc::new(InstrumentedReader { inner, backend: self.backend() }))
            }
        };
        Object { meta, age, data }
    }
}

/// Runs `call` and records its duration and error.
async fn record<T>(
    operation: StoreOperation,
    backend: &'static str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let started = Instant::now();
    let result = call.await;
    metrics::store_request(operation, backend, started.elapsed());
    trace::record("storage", operation.name(), started.elapsed());
    if let Err(error) = &result {
        metrics::store_error(operation, error.kind());
    }
    result
}

#[async_trait]
impl Store for InstrumentedStore {
    fn backend(&self) -> &'static str {
        self.0.backend()
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        record(StoreOperation::Head, self.backend(), self.0.head(key)).await
    }

    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<ObjectMeta>>, StoreError> {
        record(StoreOperation::Head, self.backend(), self.0.head_many(keys)).await
    }

    /// Returns the page cache of the inner store itself, so that the fast path reads no clock and makes no additional
    /// dynamic call for each comparison. Callers record the objects that they read from the page cache: `container` for
    /// stored objects, `read` for blocks.
    fn page_cache(&self) -> Option<&dyn PageCache> {
        self.0.page_cache()
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        let object = record(StoreOperation::Get, self.backend(), self.0.get(key, inline)).await?;
        Ok(object.map(|object| self.count_bytes(object)))
    }

    async fn open_range(&self, key: &Key, range: Range<u64>) -> Result<Option<Object>, StoreError> {
        let object = record(StoreOperation::GetRange, self.backend(), self.0.open_range(key, range)).await?;
        Ok(object.map(|object| self.count_bytes(object)))
    }

    async fn revalidate(&self, key: &Key, known: Option<(&str, u64)>) -> Result<Revalidation, StoreError> {
        Ok(match record(StoreOperation::Head, self.backend(), self.0.revalidate(key, known)).await? {
            Revalidation::Current(object) => Revalidation::Current(object.map(|object| self.count_bytes(object))),
            result @ (Revalidation::Unchanged | Revalidation::Changed) => result,
        })
    }

    fn sends_conditional_requests(&self) -> bool {
        self.0.sends_conditional_requests()
    }

    fn reports_missing_root(&self) -> bool {
        self.0.reports_missing_root()
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        record(StoreOperation::Head, self.backend(), self.0.is_directory(key)).await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        record(StoreOperation::List, self.backend(), self.0.list(key, after, limit, filter)).await
    }

    fn concurrent_reads(&self) -> usize {
        self.0.concurrent_reads()
    }

    fn max_concurrent_reads(&self) -> usize {
        self.0.max_concurrent_reads()
    }

    fn lists_cheaply(&self) -> bool {
        self.0.lists_cheaply()
    }

    async fn identity(&self, key: &Key) -> Result<Option<u64>, StoreError> {
        self.0.identity(key).await
    }

    fn pressure(&self) -> StorePressure {
        self.0.pressure()
    }

    async fn probe(&self) -> Result<(), StoreError> {
        record(StoreOperation::Head, self.backend(), self.0.probe()).await
    }
}

/// An open object whose reads are recorded.
#[derive(Debug)]
struct InstrumentedReader {
    inner: Arc<dyn ReadAt>,
    backend: &'static str,
}

#[async_trait]
impl ReadAt for InstrumentedReader {
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let bytes = record(StoreOperation::GetRange, self.backend, self.inner.read_at(range)).await?;
        metrics::store_read_bytes(self.backend, bytes.len() as u64);
        Ok(bytes)
    }

    async fn read_sequential(&self, range: Range<u64>, end: u64) -> Result<Bytes, StoreError> {
        let reading = self.inner.read_sequential(range, end);
        let bytes = record(StoreOperation::GetRange, self.backend, reading).await?;
        metrics::store_read_bytes(self.backend, bytes.len() as u64);
        Ok(bytes)
    }
}
