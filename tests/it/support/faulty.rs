//! A wrapper around a store that injects faults by script.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use n5_server::store::{
    EntryFilter, InlineLimit, Key, Listing, Object, ObjectData, ObjectMeta, ReadAt, Store, StoreError, StorePressure,
};
use tokio::sync::Semaphore;

/// The outcome of a request for an object.
#[derive(Clone)]
pub enum Fault {
    /// The request fails with this error number.
    Errno(i32),
    /// The request fails with this error.
    Fails(StoreError),
    /// The request is answered when [`Faulty::release`] is called.
    Hangs,
    /// The request fails with this error number when [`Faulty::release`] is called.
    FailsLater(i32),
    /// The object is opened. If it is too large to be read inline, its bytes are read when [`Faulty::release`] is
    /// called.
    ReadingHangs,
    /// This function is called before the request is answered.
    After(Arc<dyn Fn() + Send + Sync>),
}

/// The keys with the fault, and the fault.
type Script = (Box<dyn Fn(&Key) -> bool + Send>, Fault);

/// Forwards requests without a scripted fault. It has no non-blocking calls, so every request passes through here.
pub struct Faulty {
    inner: Arc<dyn Store>,
    script: Mutex<Option<Script>>,
    gate: Arc<Semaphore>,
    injected: AtomicUsize,
    hanging: Arc<AtomicUsize>,
    /// Start of the first request that hangs.
    hangs: Mutex<Option<Instant>>,
}

/// An object that is not read before the gate opens.
#[derive(Debug)]
struct Hanging {
    inner: Arc<dyn ReadAt>,
    gate: Arc<Semaphore>,
    started: Arc<AtomicUsize>,
}

#[async_trait]
impl ReadAt for Hanging {
    async fn read_at(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.started.fetch_add(1, Ordering::SeqCst);
        self.gate.acquire().await.unwrap().forget();
        self.inner.read_at(range).await
    }
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Faulty")
    }
}

impl Faulty {
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            script: Mutex::default(),
            gate: Arc::new(Semaphore::new(0)),
            injected: AtomicUsize::new(0),
            hanging: Arc::default(),
            hangs: Mutex::default(),
        })
    }

    /// Injects `fault` into requests for keys that `hits` accepts, until [`Self::end`].
    pub fn begin(&self, hits: impl Fn(&Key) -> bool + Send + 'static, fault: Fault) {
        self.injected.store(0, Ordering::SeqCst);
        self.hanging.store(0, Ordering::SeqCst);
        *self.script.lock().unwrap() = Some((Box::new(hits), fault));
    }

    /// Ends the fault.
    pub fn end(&self) {
        *self.script.lock().unwrap() = None;
        *self.hangs.lock().unwrap() = None;
    }

    /// Ends the fault, and lets hanging requests continue.
    pub fn release(&self) {
        self.end();
        self.gate.add_permits(10_000);
    }

    /// Returns the number of injected faults since [`Self::begin`].
    pub fn injected(&self) -> usize {
        self.injected.load(Ordering::SeqCst)
    }

    /// Returns the number of requests that hang since [`Self::begin`]. Each has acquired the memory that it holds while
    /// it hangs.
    pub fn hanging(&self) -> usize {
        self.hanging.load(Ordering::SeqCst)
    }

    async fn inject(&self, key: &Key) -> Result<(), StoreError> {
        let fault = match &*self.script.lock().unwrap() {
            Some((hits, fault)) if hits(key) => fault.clone(),
            Some(_) | None => return Ok(()),
        };
        self.injected.fetch_add(1, Ordering::SeqCst);
        let failed = |number| {
            let cause = Arc::new(io::Error::from_raw_os_error(number));
            Err(StoreError::Io { action: "read", key: key.clone(), cause })
        };
        match fault {
            Fault::Errno(number) => return failed(number),
            Fault::FailsLater(number) => {
                self.hanging.fetch_add(1, Ordering::SeqCst);
                self.gate.acquire().await.unwrap().forget();
                return failed(number);
            }
            Fault::Fails(error) => return Err(error),
            Fault::Hangs => {
                self.hangs.lock().unwrap().get_or_insert_with(Instant::now);
                self.hanging.fetch_add(1, Ordering::SeqCst);
                self.gate.acquire().await.unwrap().forget();
            }
            Fault::ReadingHangs => drop(self.hangs.lock().unwrap().get_or_insert_with(Instant::now)),
            Fault::After(happens) => happens(),
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Faulty {
    fn lists_cheaply(&self) -> bool {
        self.inner.lists_cheaply()
    }

    fn backend(&self) -> &'static str {
        "faulty"
    }

    async fn head(&self, key: &Key) -> Result<Option<ObjectMeta>, StoreError> {
        self.inject(key).await?;
        self.inner.head(key).await
    }

    async fn get(&self, key: &Key, inline: &InlineLimit) -> Result<Option<Object>, StoreError> {
        self.inject(key).await?;
        let mut found = self.inner.get(key, inline).await?;
        let hangs = matches!(&*self.script.lock().unwrap(), Some((hits, Fault::ReadingHangs)) if hits(key));
        if let Some(Object { data: ObjectData::Open(reader), .. }) = found.as_mut().filter(|_| hangs) {
            let (gate, started) = (Arc::clone(&self.gate), Arc::clone(&self.hanging));
            *reader = Arc::new(Hanging { inner: Arc::clone(reader), gate, started });
        }
        Ok(found)
    }

    async fn is_directory(&self, key: &Key) -> Result<bool, StoreError> {
        self.inject(key).await?;
        self.inner.is_directory(key).await
    }

    async fn list(
        &self,
        key: &Key,
        after: Option<&str>,
        limit: usize,
        keep: EntryFilter,
    ) -> Result<Option<Listing>, StoreError> {
        self.inject(key).await?;
        self.inner.list(key, after, limit, keep).await
    }

    fn pressure(&self) -> StorePressure {
        let age = self.hangs.lock().unwrap().map_or(Duration::ZERO, |since| since.elapsed());
        StorePressure { no_progress_for: age, longest_running: age, ..self.inner.pressure() }
    }

    async fn probe(&self) -> Result<(), StoreError> {
        self.inject(&Key::root()).await?;
        self.inner.probe().await
    }
}
