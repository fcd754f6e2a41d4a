//! A wrapper around a store that counts calls and can delay them or make them fail.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use axum::http::HeaderValue;
use n5_server::container::{Container, Resources, Settings};
use n5_server::http::{App, Mount, router};
use n5_server::store::{EntryFilter, InlineLimit, Key, Listing, Object, ObjectMeta, Store, StoreError};
use tokio::sync::Semaphore;

use super::{Client, options};

/// Forwards all calls and counts them. Reads of blocks can be delayed or made to fail.
#[derive(Debug)]
pub struct Probe {
    inner: Arc<dyn Store>,
    gets: AtomicUsize,
    inline_bytes: Mutex<Vec<u64>>,
    /// Reads that wait at the gate.
    waiting: AtomicUsize,
    heads: AtomicUsize,
    lists: AtomicUsize,
    /// Has one permit for each read of a block that may pass. Further reads wait.
    gate: Semaphore,
    /// Number of further reads of blocks that fail.
    failures: AtomicUsize,
    probes: AtomicUsize,
    /// Closed while [`Store::probe`] hangs.
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

    /// Holds back all reads of blocks until [`Self::open`].
    pub fn close(&self) {
        self.gate.forget_permits(Semaphore::MAX_PERMITS);
    }

    /// Lets all reads of blocks pass again.
    pub fn open(&self) {
        self.gate.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    /// Makes the next `times` reads of blocks fail.
    pub fn fail(&self, times: usize) {
        self.failures.store(times, Ordering::SeqCst);
    }

    /// Makes [`Store::probe`] hang until [`Self::wake`].
    pub fn hang(&self) {
        self.door.forget_permits(Semaphore::MAX_PERMITS);
    }

    /// Ends [`Self::hang`].
    pub fn wake(&self) {
        self.door.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    /// Returns the number of calls of [`Store::probe`].
    pub fn probes(&self) -> usize {
        self.probes.load(Ordering::SeqCst)
    }

    /// Returns the number of blocks read so far.
    pub fn gets(&self) -> usize {
        self.gets.load(Ordering::SeqCst)
    }

    /// Returns the inline limit of each read of a block when it passed the gate, in bytes, in ascending order.
    pub fn inline_bytes(&self) -> Vec<u64> {
        let mut bytes = self.inline_bytes.lock().unwrap().clone();
        bytes.sort_unstable();
        bytes
    }

    /// Returns the number of reads of blocks that wait at the gate and were not cancelled.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Returns the number of calls of [`Store::head`] for blocks.
    pub fn heads(&self) -> usize {
        self.heads.load(Ordering::SeqCst)
    }

    /// Returns the number of calls of [`Store::list`].
    pub fn lists(&self) -> usize {
        self.lists.load(Ordering::SeqCst)
    }
}

/// Returns a client of a container whose `Cache-Control` differs for existing (`immutable`) and missing objects.
pub fn immutable(store: Arc<dyn Store>, settings: Settings) -> Client {
    let resources = Resources::new(settings);
    let container = Container::new(store, Arc::clone(&resources));
    let mount = Mount {
        name: String::new(),
        title: String::new(),
        container: container.clone(),
        found_cache_control: HeaderValue::from_static("immutable"),
        missing_cache_control: HeaderValue::from_static("max-age=60"),
    };
    let app = App::new(vec![mount], resources, options(), String::new);
    Client { router: router(Arc::clone(&app)), app, container }
}

fn is_block(key: &Key) -> bool {
    key.name() != Some("attributes.json")
}

/// Guard that counts a waiting read until the read continues or is cancelled.
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

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        self.heads.fetch_add(usize::from(is_block(key)), Ordering::SeqCst);
        self.inner.head(key).await
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
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
        keep: EntryFilter,
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
