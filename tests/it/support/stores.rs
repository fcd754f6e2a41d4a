//! Stores that count, wait or fail on behalf of a real one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::http::HeaderValue;
use n5_server::container::{Container, Resources, Settings};
use n5_server::http::{App, Mount, router};
use n5_server::store::{Filter, Inline, Key, Listing, Meta, Object, Store, StoreError};
use tokio::sync::Semaphore;

use super::{Client, options};

/// Passes everything on; counts, may hold back and may fail the reading of objects.
#[derive(Debug)]
pub struct Probe {
    inner: Arc<dyn Store>,
    gets: AtomicUsize,
    inline_bytes: Mutex<Vec<u64>>,
    /// Of them, those that wait at the gate.
    waiting: AtomicUsize,
    heads: AtomicUsize,
    lists: AtomicUsize,
    /// Reads of blocks that are let through; others wait.
    gate: Semaphore,
    /// Reads of blocks that fail before any succeeds.
    failures: AtomicUsize,
    probes: AtomicUsize,
    /// Closed where the storage hangs when it is asked whether it can be read.
    door: Semaphore,
}

impl Probe {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            gets: AtomicUsize::new(0),
            inline_bytes: Mutex::default(),
            waiting: AtomicUsize::new(0),
            heads: AtomicUsize::new(0),
            lists: AtomicUsize::new(0),
            gate: Semaphore::new(Semaphore::MAX_PERMITS / 2),
            failures: AtomicUsize::new(0),
            probes: AtomicUsize::new(0),
            door: Semaphore::new(Semaphore::MAX_PERMITS / 2),
        })
    }

    /// Lets no read of a block through until [`Self::open`].
    pub fn close(&self) {
        self.gate.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub fn open(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    pub fn fail(&self, times: usize) {
        self.failures.store(times, Ordering::SeqCst);
    }

    /// Lets nobody know whether the storage can be read until [`Self::wake`].
    pub fn hang(&self) {
        self.door.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub fn wake(&self) {
        self.door.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    /// How often it was asked whether it can be read.
    pub fn probes(&self) -> usize {
        self.probes.load(Ordering::SeqCst)
    }

    /// Blocks read so far.
    pub fn gets(&self) -> usize {
        self.gets.load(Ordering::SeqCst)
    }

    /// Bytes that reads of blocks could read at once when they began, in ascending order.
    pub fn inline_bytes(&self) -> Vec<u64> {
        let mut bytes = self.inline_bytes.lock().unwrap().clone();
        bytes.sort_unstable();
        bytes
    }

    /// Reads of blocks that wait now, and that somebody waits for.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Blocks whose facts were asked for so far.
    pub fn heads(&self) -> usize {
        self.heads.load(Ordering::SeqCst)
    }

    /// Directories scanned so far.
    pub fn lists(&self) -> usize {
        self.lists.load(Ordering::SeqCst)
    }
}

/// A client of a container whose `Cache-Control` tells what exists (`immutable`) from what does not.
pub fn immutable(store: Arc<dyn Store>, settings: Settings) -> Client {
    let resources = Resources::new(settings);
    let container = Container::new(store, Arc::clone(&resources));
    let mount = Mount {
        name: String::new(),
        container: container.clone(),
        cache_found: HeaderValue::from_static("immutable"),
        cache_missing: HeaderValue::from_static("max-age=60"),
    };
    let app = App::new(vec![mount], resources, options(), String::new);
    Client { router: router(Arc::clone(&app)), app, container }
}

fn is_block(key: &Key) -> bool {
    key.name() != Some("attributes.json")
}

/// A read that waits, until it does not or nobody waits for it any more.
struct Waits<'a>(&'a AtomicUsize);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Store for Probe {
    fn lists_cheaply(&self) -> bool {
        self.inner.lists_cheaply()
    }

    fn backend(&self) -> &'static str {
        "probe"
    }

    async fn head(&self, key: &Key) -> Result<Option<Meta>, StoreError> {
        self.heads.fetch_add(usize::from(is_block(key)), Ordering::SeqCst);
        self.inner.head(key).await
    }

    async fn get(&self, key: &Key, inline: &Inline) -> Result<Option<Object>, StoreError> {
        if is_block(key) {
            self.gets.fetch_add(1, Ordering::SeqCst);
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let waits = Waits(&self.waiting);
            drop(self.gate.acquire().await);
            drop(waits);
            self.inline_bytes.lock().unwrap().push(inline.bytes());
            let failing = self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            if failing.is_ok() {
                let cause = Arc::new(std::io::Error::from_raw_os_error(5));
                return Err(StoreError::Io { action: "read", key: key.clone(), cause });
            }
        }
        self.inner.get(key, inline).await
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        self.inner.is_directory(key).await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        keep: Filter,
    ) -> Result<Option<Listing>, StoreError> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.inner.list(key, after, limit, keep).await
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.probes.fetch_add(1, Ordering::SeqCst);
        drop(self.door.acquire().await);
        self.inner.probe().await
    }
}
