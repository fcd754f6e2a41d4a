//! A store with the disk cache in front of it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::handle::DiskCacheContainer;
use super::reader::{CacheFile, DiskData, DiskLookup};
use super::shared::MAX_OBJECT_BYTES;
use crate::store::error::StoreError;
use crate::store::key::Key;
use crate::store::object::{InlineLimit, Object, ObjectData, ObjectMeta, ReadAt, Revalidation};
use crate::store::page_cache::{CachedGet, CachedStat, NonblockingReader, PageCache, SendfileSource};
use crate::store::{EntryFilter, Listing, Store, StorePressure};

/// Returns the time for which an object at a key is used without comparing it with the store: the policy of the
/// container for metadata or for data.
pub type MaxAge = Arc<dyn Fn(&Key) -> Duration + Send + Sync>;

/// A store whose objects are also looked up in the disk cache, and stored there.
#[derive(Clone)]
pub struct DiskCachedStore {
    inner: Arc<dyn Store>,
    cache: DiskCacheContainer,
    max_age: MaxAge,
}

impl fmt::Debug for DiskCachedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskCachedStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl DiskCachedStore {
    /// Puts the objects of a container in the disk cache in front of `inner`.
    pub fn new(inner: Arc<dyn Store>, cache: DiskCacheContainer, max_age: MaxAge) -> Self {
        Self { inner, cache, max_age }
    }

    fn max_age(&self, key: &Key) -> Duration {
        (self.max_age)(key)
    }

    /// Returns an object of the disk cache.
    fn cached_object(&self, key: &Key, meta: ObjectMeta, data: DiskData, age: Duration) -> Object {
        let data = match data {
            DiskData::InMemory(bytes) => ObjectData::InMemory(bytes),
            DiskData::Open(file) => {
                let reader = DiskCacheReader { store: self.clone(), key: key.clone(), meta: meta.clone(), file };
                ObjectData::Open(Arc::new(reader))
            }
        };
        Object { meta, age, data }
    }

    /// Stores an object from the inner store, whose response to a request at `validated` it is: now, or when its bytes
    /// are read. Reads them now if `inline` allows it.
    async fn store(
        &self,
        key: &Key,
        object: Object,
        inline: Option<&InlineLimit>,
        validated: u32,
    ) -> Result<Object, StoreError> {
        let Object { meta, age, data } = object;
        let data = match data {
            ObjectData::Open(inner) if inline.is_some_and(|inline| meta.len <= inline.bytes()) => {
                ObjectData::InMemory(inner.read_at(0..meta.len).await?)
            }
            ObjectData::Open(inner) if meta.len <= MAX_OBJECT_BYTES => {
                let cache = self.cache.clone();
                ObjectData::Open(Arc::new(StoringReader {
                    inner,
                    cache,
                    key: key.clone(),
                    meta: meta.clone(),
                    validated,
                }))
            }
            data @ (ObjectData::InMemory(_) | ObjectData::Open(_)) => data,
        };
        if let ObjectData::InMemory(bytes) = &data {
            self.cache.store(key, &meta, bytes, validated);
        }
        Ok(Object { meta, age, data })
    }

    /// Gets an object from the inner store and stores it.
    async fn get_from_store(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        let validated = self.cache.now();
        match self.inner.get(key, inline).await? {
            None => {
                self.cache.remove(key);
                Ok(None)
            }
            Some(object) => self.store(key, object, Some(inline), validated).await.map(Some),
        }
    }

    /// Compares an object with the inner store, and tells the disk cache the result. `inline` is given if `known` was
    /// read from the disk cache.
    async fn revalidate_and_record(
        &self,
        key: &Key,
        known: Option<(&str, u64)>,
        inline: Option<&InlineLimit>,
    ) -> Result<Revalidation, StoreError> {
        let validated = self.cache.now();
        let result = self.inner.revalidate(key, known).await?;
        match (&result, known) {
            (Revalidation::Unchanged, Some((_, version))) => {
                self.cache.touch(key, version, validated, inline.is_some());
            }
            (Revalidation::Unchanged, None) | (Revalidation::Changed | Revalidation::Current(_), _) => {
                self.cache.remove(key);
            }
        }
        match result {
            Revalidation::Current(Some(object)) => {
                Ok(Revalidation::Current(Some(self.store(key, object, inline, validated).await?)))
            }
            other @ (Revalidation::Unchanged | Revalidation::Changed | Revalidation::Current(None)) => Ok(other),
        }
    }
}

#[async_trait]
impl Store for DiskCachedStore {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    /// Asks the inner store: callers compare cached objects with the result, or confirm with it that a dataset exists.
    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        let meta = self.inner.head(key).await?;
        self.cache.remove_unless(key, meta.as_ref().map(|meta| meta.version));
        Ok(meta)
    }

    async fn head_many(&self, keys: Vec<Key>) -> Result<Vec<Option<ObjectMeta>>, StoreError> {
        let metas = self.inner.head_many(keys.clone()).await?;
        for (key, meta) in keys.iter().zip(&metas) {
            self.cache.remove_unless(key, meta.as_ref().map(|meta| meta.version));
        }
        Ok(metas)
    }

    async fn cached_meta(&self, key: &Key) -> Option<ObjectMeta> {
        match self.cache.look_up(key, &InlineLimit::new(0), self.max_age(key)).await {
            DiskLookup::Found(meta, _, _) => Some(meta),
            DiskLookup::Stale(_) | DiskLookup::Missing => None,
        }
    }

    fn page_cache(&self) -> Option<&dyn PageCache> {
        Some(self)
    }

    /// Returns an object of the disk cache if it may still be believed. An object that is too old is compared with the
    /// store by one conditional request.
    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        let max_age = self.max_age(key);
        let stale = match self.cache.look_up(key, inline, max_age).await {
            DiskLookup::Found(meta, data, age) => return Ok(Some(self.cached_object(key, meta, data, age))),
            DiskLookup::Stale(meta) => meta,
            DiskLookup::Missing => return self.get_from_store(key, inline).await,
        };
        match self.revalidate_and_record(key, Some((&stale.etag, stale.version)), Some(inline)).await? {
            Revalidation::Unchanged => {}
            Revalidation::Changed => return self.get_from_store(key, inline).await,
            Revalidation::Current(object) => return Ok(object),
        }
        // It was compared just now, so its age does not matter.
        match self.cache.look_up(key, inline, Duration::MAX).await {
            DiskLookup::Found(meta, data, _) if meta.version == stale.version => {
                Ok(Some(self.cached_object(key, meta, data, Duration::ZERO)))
            }
            DiskLookup::Found(..) | DiskLookup::Stale(_) | DiskLookup::Missing => {
                self.get_from_store(key, inline).await
            }
        }
    }

    /// Returns an object of the disk cache if it may still be used without a request. Otherwise opens the object in the
    /// store, which then is stored only if it is read as a whole.
    async fn open_range(&self, key: &Key, range: Range<u64>) -> Result<Option<Object>, StoreError> {
        let lookup = self.cache.look_up(key, &InlineLimit::new(0), self.max_age(key)).await;
        let stale_version = match lookup {
            DiskLookup::Found(meta, data, age) => return Ok(Some(self.cached_object(key, meta, data, age))),
            DiskLookup::Stale(meta) => Some(meta.version),
            DiskLookup::Missing => None,
        };
        let validated = self.cache.now();
        match self.inner.open_range(key, range).await? {
            None => {
                self.cache.remove(key);
                Ok(None)
            }
            Some(object) => {
                let version = object.meta.version;
                self.cache.remove_unless(key, Some(version));
                if stale_version == Some(version) {
                    self.cache.touch(key, version, validated, true);
                }
                self.store(key, object, None, validated).await.map(Some)
            }
        }
    }

    async fn revalidate(&self, key: &Key, known: Option<(&str, u64)>) -> Result<Revalidation, StoreError> {
        self.revalidate_and_record(key, known, None).await
    }

    fn sends_conditional_requests(&self) -> bool {
        self.inner.sends_conditional_requests()
    }

    fn reports_missing_root(&self) -> bool {
        self.inner.reports_missing_root()
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        self.inner.is_directory(key).await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        self.inner.list(key, after, limit, filter).await
    }

    fn concurrent_reads(&self) -> usize {
        self.inner.concurrent_reads()
    }

    fn max_concurrent_reads(&self) -> usize {
        self.inner.max_concurrent_reads()
    }

    fn lists_cheaply(&self) -> bool {
        self.inner.lists_cheaply()
    }

    async fn identity(&self, key: &Key) -> Result<Option<u64>, StoreError> {
        self.inner.identity(key).await
    }

    fn pressure(&self) -> StorePressure {
        self.inner.pressure()
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.inner.probe().await
    }
}

/// Objects of the disk cache that the kernel has in memory.
impl PageCache for DiskCachedStore {
    fn stat(&self, key: &Key) -> CachedStat {
        match self.cache.held(key, self.max_age(key)) {
            Some((len, version)) => CachedStat::Held { len, version },
            None => CachedStat::Unknown,
        }
    }

    /// Returns false: an object in memory may be older than the one on the disk was when it was last compared with the
    /// store, and must not become younger by a comparison with it.
    fn is_unchanged(&self, _key: &Key, _version: u64) -> bool {
        false
    }

    fn reader(&self) -> Option<Box<dyn NonblockingReader>> {
        Some(Box::new(DiskCacheNonblockingReader(self.clone())))
    }

    fn open_for_sendfile(&self, key: &Key, max_bytes: u64) -> Option<SendfileSource> {
        self.cache.open_for_sendfile(key, max_bytes, self.max_age(key))
    }
}

/// Reads objects of the disk cache without waiting.
#[derive(Debug)]
struct DiskCacheNonblockingReader(DiskCachedStore);

impl NonblockingReader for DiskCacheNonblockingReader {
    fn get(&mut self, key: &Key, max_bytes: u64, buffer: &mut Vec<u8>) -> CachedGet {
        let Self(store) = self;
        match store.cache.try_read(key, max_bytes, store.max_age(key), buffer) {
            Some((meta, age)) => CachedGet::Object(meta, age),
            None => CachedGet::Unknown,
        }
    }
}

/// An object that is read from the disk cache. If that fails, it is read from the store.
#[derive(Debug)]
struct DiskCacheReader {
    store: DiskCachedStore,
    key: Key,
    meta: ObjectMeta,
    file: CacheFile,
}

#[async_trait]
impl ReadAt for DiskCacheReader {
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let Self { store, key, meta, file } = self;
        if range.start > range.end || range.end > meta.len {
            return Err(StoreError::Truncated(key.clone()));
        }
        if let Some(bytes) = store.cache.read_file(key, file, range.start, range.end).await {
            return Ok(bytes);
        }
        let object = store.inner.open_range(key, range.clone()).await?;
        let object = object.filter(|object| object.meta.version == meta.version);
        match object.map(|object| object.data) {
            Some(ObjectData::Open(reader)) => reader.read_at(range).await,
            Some(ObjectData::InMemory(bytes)) => {
                let [start, end] = [range.start, range.end].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
                let is_inside = end <= bytes.len();
                is_inside.then(|| bytes.slice(start..end)).ok_or_else(|| StoreError::Truncated(key.clone()))
            }
            None => Err(StoreError::Torn(key.clone())),
        }
    }
}

/// An open object of the inner store, which is stored when it is read as a whole.
#[derive(Debug)]
struct StoringReader {
    inner: Arc<dyn ReadAt>,
    cache: DiskCacheContainer,
    key: Key,
    meta: ObjectMeta,
    validated: u32,
}

#[async_trait]
impl ReadAt for StoringReader {
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let is_whole = range == (0..self.meta.len);
        let bytes = self.inner.read_at(range).await?;
        if is_whole {
            self.cache.store(&self.key, &self.meta, &bytes, self.validated);
        }
        Ok(bytes)
    }

    async fn read_sequential(&self, range: Range<u64>, end: u64) -> Result<Bytes, StoreError> {
        let is_whole = range == (0..self.meta.len);
        let bytes = self.inner.read_sequential(range, end).await?;
        if is_whole {
            self.cache.store(&self.key, &self.meta, &bytes, self.validated);
        }
        Ok(bytes)
    }
}
