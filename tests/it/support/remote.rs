//! A store that behaves like one behind a network: every request takes a while, and nothing is known without a request.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use n5_server::store::{
    EntryFilter, InlineLimit, Key, Listing, Object, ObjectData, ObjectMeta, ReadAt, Revalidation, Store, StoreError,
};

/// Time that every request takes.
const LATENCY: Duration = Duration::from_millis(5);

/// A store in memory without a page cache. It records its requests.
#[derive(Debug, Default)]
pub struct Remote {
    objects: Mutex<BTreeMap<Key, (ObjectMeta, Bytes)>>,
    requests: Mutex<Vec<String>>,
    /// True if `revalidate` compares and gets in two requests.
    is_unconditional: bool,
    /// True if the store is an HTTP server, which answers 404 to everything during an outage.
    is_http: bool,
    /// Number of further requests that are answered as during an outage.
    failing: Mutex<usize>,
    /// An object that is sent later than others, and the additional time.
    slow: Mutex<Option<(Key, Duration)>>,
}

impl Remote {
    /// Creates an empty store that compares and gets in two requests.
    pub fn unconditional() -> Self {
        Self { is_unconditional: true, ..Self::default() }
    }

    /// Creates an empty HTTP server.
    pub fn http() -> Self {
        Self { is_http: true, ..Self::default() }
    }

    /// Begins an outage that ends after this number of requests. An outage of 0 requests has ended.
    pub fn fail(&self, requests: usize) {
        *self.failing.lock().unwrap() = requests;
    }

    /// Makes requests for an object take longer.
    pub fn delay(&self, key: &str, time: Duration) {
        *self.slow.lock().unwrap() = Some((Key::parse(key).unwrap(), time));
    }

    /// Returns true if the request whose answer is due falls into an outage.
    fn is_failing(&self) -> bool {
        let mut failing = self.failing.lock().unwrap();
        let is_failing = *failing > 0;
        *failing = failing.saturating_sub(1);
        is_failing
    }

    /// Creates or replaces an object.
    pub fn put(&self, key: &str, bytes: impl Into<Bytes>) {
        let (key, bytes) = (Key::parse(key).unwrap(), bytes.into());
        let mut objects = self.objects.lock().unwrap();
        let version = objects.get(&key).map_or(1, |(meta, _)| meta.version + 1);
        let etag = format!("\"{version}\"").into();
        let meta = ObjectMeta { len: bytes.len() as u64, modified: None, etag, version };
        objects.insert(key, (meta, bytes));
    }

    /// Returns the requests since the last call, such as "GET v/0/0".
    pub fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    async fn request(&self, method: &str, key: &Key) -> Option<(ObjectMeta, Bytes)> {
        self.requests.lock().unwrap().push(format!("{method} {}", key.as_str()));
        let slow = self.slow.lock().unwrap().clone().filter(|(slow, _)| slow == key);
        tokio::time::sleep(LATENCY + slow.map_or(Duration::ZERO, |(_, time)| time)).await;
        if self.is_failing() {
            return None;
        }
        self.objects.lock().unwrap().get(key).cloned()
    }
}

/// The body of a response, which is not in memory until it is read.
#[derive(Debug)]
struct Body(Bytes);

#[async_trait]
impl ReadAt for Body {
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        tokio::time::sleep(LATENCY).await;
        Ok(self.0.slice(usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()))
    }
}

#[async_trait]
impl Store for Remote {
    fn backend(&self) -> &'static str {
        "remote"
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        Ok(self.request("HEAD", key).await.map(|(meta, _)| meta))
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        Ok(self.request("GET", key).await.map(|(meta, bytes)| {
            let is_inline = meta.len <= inline.bytes();
            let data = if is_inline { ObjectData::InMemory(bytes) } else { ObjectData::Open(Arc::new(Body(bytes))) };
            Object { meta, age: Duration::ZERO, data }
        }))
    }

    async fn open_range(&self, key: &Key, range: Range<u64>) -> Result<Option<Object>, StoreError> {
        let method = format!("GET {}..{} of", range.start, range.end);
        Ok(self.request(&method, key).await.map(|(meta, bytes)| {
            let data = ObjectData::Open(Arc::new(Body(bytes)));
            Object { meta, age: Duration::ZERO, data }
        }))
    }

    fn sends_conditional_requests(&self) -> bool {
        !self.is_unconditional
    }

    async fn revalidate(&self, key: &Key, known: Option<(&str, u64)>) -> Result<Revalidation, StoreError> {
        if self.is_unconditional {
            let current = self.head(key).await?;
            let is_unchanged = current.map(|meta| meta.version) == known.map(|(_, version)| version);
            return Ok(if is_unchanged { Revalidation::Unchanged } else { Revalidation::Changed });
        }
        let current = self.request("GET if changed", key).await;
        Ok(match current {
            None if known.is_none() => Revalidation::Unchanged,
            Some((meta, _)) if known.is_some_and(|(etag, _)| *etag == *meta.etag) => Revalidation::Unchanged,
            current => Revalidation::Current(current.map(|(meta, bytes)| Object {
                meta,
                age: Duration::ZERO,
                data: ObjectData::Open(Arc::new(Body(bytes))),
            })),
        })
    }

    fn reports_missing_root(&self) -> bool {
        !self.is_http
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        drop(self.request("LIST", key).await);
        if *self.failing.lock().unwrap() > 0 {
            return Ok(false);
        }
        let prefix = format!("{}/", key.as_str());
        Ok(self.objects.lock().unwrap().keys().any(|key| key.as_str().starts_with(&prefix)))
    }

    async fn list(
        &self,
        key: &Key,
        _after: Option<&str>,
        _limit: usize,
        _filter: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        drop(self.request("LIST", key).await);
        Ok(None)
    }

    async fn probe(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
