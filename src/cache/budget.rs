//! Memory budgets: bounded amounts of memory. Requests take permits for parts of a budget by fair queueing.
//!
//! Memory is *taken* as a [`Permit`] before it is allocated. Cached bytes are in addition *charged* to the client that
//! they are sent to, for as long as they are being sent.
//!
//! The permit is then attached to the bytes and is given back when their last clone is dropped. What happens to the
//! buffer of the bytes depends on the function:
//!
//! | function | buffer |
//! |---|---|
//! | [`Permit::own`] | is freed |
//! | [`Permit::own_for_cache`] | is freed; may first be replaced by one that wastes no memory |
//! | [`Budget::own_pinned`] | is freed; counts as pinned while the bytes are being sent |
//! | [`Budget::own_pooled_for_cache`] | returns to the pool; may first be replaced by one that wastes no memory |
//! | [`Budget::own_pooled`], [`MemoryPermit::own_pooled`], [`MemoryPermit::own_pooled_part`] | returns to the pool |
//!
//! Three kinds of permits concern memory. Each is given back when it is dropped, or when the last clone of the bytes
//! that it is attached to is dropped:
//!
//! | type | holds |
//! |---|---|
//! | [`Permit`] | part of a budget, for bytes that are being loaded, cached or sent |
//! | [`MemoryPermit`] | a [`Permit`] of the slice budget, for the data of one response |
//! | [`SendPermit`] | the right to charge cached bytes to a client; a [`Permit`] of the cache covers their memory |
//!
//! All of them consist of units of a [`FairSemaphore`] ([`FairPermit`]).
//!
//! Backpressure: a request gives its memory back if the storage keeps it waiting while requests of other containers
//! need the memory. A container with stalled storage therefore does not slow down the others.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;

use super::buffers::{
    BufferPool, PinnedBuffers, SHORT_FLOW, SendPermit, UNIT_BYTES, compact_for_cache, needs_copy, release_with, units,
};
use super::error::{BudgetError, ReadError};
use crate::runtime::fair_queue::{ClientId, ClientQuota, CostBasis, FairPermit, FairSemaphore, max_overtaking_units};
use crate::store::{Key, StoreError, StorePressure};
use crate::telemetry::metrics::{self, BudgetLabel, QueueLabel, QueueWaitTimer, ShedReason};
use crate::telemetry::trace;

/// Flow number of a client's requests for permits of its streams. These requests wait in a queue of their own, so that
/// they do not delay the client's short responses.
const STREAM_FLOW: u64 = 1;

/// A permit of the slice budget is granted only if this many times its size stays free for smaller permits. Clients
/// that leave any number of responses of one size unread therefore leave memory for smaller responses.
const HEADROOM_FACTOR: u64 = 4;

/// Maximum headroom: the budget divided by this number.
const MAX_HEADROOM_DIVISOR: u64 = 16;

/// A response that has started waits this many times as long for memory as a response that can still be refused.
const STARTED_WAIT_FACTOR: u32 = 6;

/// A response that has started waits for memory at least this long before it is aborted.
const MIN_STARTED_WAIT: Duration = Duration::from_secs(60);

/// Interval at which a stream that waits for memory checks if its earlier parts are still being sent.
const STREAM_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum time for which a request that waits for the storage holds memory that other requests need.
pub(crate) const MAX_WAIT_HOLDING_MEMORY: Duration = Duration::from_secs(1);

/// Interval at which a request that waits for the storage checks if requests of other containers need its memory.
/// [`Budget::abort_if_contended`] says when the request gives up.
pub(crate) const CONTENTION_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A permit for part of a [`Budget`]. It is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    /// Token that all permits of one stream share. Dropped before `granted`, because the semaphore checks the token
    /// when it grants the returned units.
    stream_token: Option<Arc<()>>,
    /// The units that the semaphore granted.
    granted: FairPermit,
    label: BudgetLabel,
}

impl Permit {
    /// Returns the number of bytes that the permit covers.
    pub(crate) fn bytes(&self) -> u64 {
        self.granted.units() as u64 * UNIT_BYTES
    }

    /// Turns this into a permit of a cache. The permit no longer counts against the quota of a client, since the cache
    /// evicts entries when other requests need memory.
    pub(crate) fn into_cache_owned(mut self) -> Self {
        self.granted.transfer_to_server();
        self
    }

    /// Gives back all but `bytes` of the permit.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        drop(self.split_units(self.granted.units().saturating_sub(units(bytes))));
    }

    /// Splits `bytes` off. Returns `None` if the permit belongs to another budget or covers fewer bytes.
    pub(crate) fn try_split(&mut self, label: BudgetLabel, bytes: u64) -> Option<Self> {
        let is_enough = self.bytes() >= bytes && self.label == label;
        is_enough.then(|| self.split(bytes))
    }

    /// Merges two permits of the same budget.
    pub(crate) fn merge(&mut self, mut other: Self) {
        // Taken out of `other` first: dropping `other` records its units as returned.
        self.granted.merge(other.granted.split(usize::MAX));
    }

    /// Splits off `bytes`, or everything if the permit is smaller.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        self.split_units(units(bytes))
    }

    fn split_units(&mut self, count: usize) -> Self {
        Self { granted: self.granted.split(count), label: self.label, stream_token: self.stream_token.clone() }
    }

    /// Attaches the permit to `bytes`. Their last clone frees the buffer and gives the permit back.
    pub(crate) fn own(self, bytes: Bytes) -> Bytes {
        release_with(bytes, move |bytes| {
            drop(bytes);
            drop(self);
        })
    }

    /// Prepares `bytes` for a cache ([`compact_for_cache`]) and attaches the permit to them as [`Self::own`] does.
    pub(crate) fn own_for_cache(self, bytes: Bytes, fills_buffer: bool) -> Bytes {
        self.into_cache_owned().own(compact_for_cache(bytes, fills_buffer))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        metrics::budget_returned(self.label, self.bytes());
    }
}

/// A bounded amount of memory. Parts of it are lent as permits. Clients take turns, and the requests of one client are
/// granted in their order. Cheap to clone; clones share the memory.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    label: BudgetLabel,
    semaphore: FairSemaphore,
    /// Number of requests that wait for a permit. Relaxed atomics suffice, because a number that is briefly wrong only
    /// makes a request hold memory a little longer or shorter.
    waiters: Arc<AtomicUsize>,
    /// Number of the waiting requests that read the container of this handle.
    container_waiters: Arc<AtomicUsize>,
    /// Number of bytes that a cache may fill.
    pub(super) cached_bytes: u64,
    /// Number of bytes for values that are being loaded, or are being sent without being cached.
    in_flight_bytes: u64,
    /// Longest wait for a permit.
    pub(crate) max_wait: Duration,
    /// Unused buffers. They are trimmed before new memory is allocated, so that they and the lent memory together never
    /// exceed the budget.
    pool: Arc<BufferPool>,
    /// Cached buffers that are being sent.
    pinned: Arc<PinnedBuffers>,
}

impl Budget {
    /// Creates a budget of `capacity_bytes` whose requests wait for permits at most `max_wait`.
    pub(crate) fn new(label: BudgetLabel, capacity_bytes: u64, max_wait: Duration) -> Self {
        Self::with_cache(label, 0, capacity_bytes, max_wait)
    }

    /// Creates a budget that consists of `cached_bytes`, which a cache may fill, and of `in_flight_bytes`.
    pub(crate) fn with_cache(label: BudgetLabel, cached_bytes: u64, in_flight_bytes: u64, max_wait: Duration) -> Self {
        let new_semaphore = || FairSemaphore::new(0, ClientQuota::UNLIMITED, CostBasis::Units);
        let budget = Self {
            label,
            semaphore: new_semaphore(),
            waiters: Arc::default(),
            container_waiters: Arc::default(),
            cached_bytes,
            in_flight_bytes,
            max_wait,
            pool: Arc::default(),
            // Charges and permits have separate semaphores: a request that holds the charge for a block may still have
            // to take a permit to load the block.
            pinned: Arc::new(PinnedBuffers::new(new_semaphore())),
        };
        budget.apply_size();
        budget
    }

    /// Returns a handle to the same memory with the size and the longest wait of `other`. The size takes effect with
    /// [`apply_size`](Self::apply_size). Permits that have been taken stay valid.
    pub(crate) fn with_size_of(&self, other: &Self) -> Self {
        let Self { cached_bytes, in_flight_bytes, max_wait, .. } = *other;
        Self { cached_bytes, in_flight_bytes, max_wait, ..self.clone() }
    }

    /// Puts the size of this handle into effect for all handles to the same memory.
    pub(crate) fn apply_size(&self) {
        let total = units(self.capacity_bytes());
        let in_flight = units(self.in_flight_bytes);
        // A slow client may hold its responses for long, so it never gets all units.
        let eighths = |n: usize| total - total / 8 * (8 - n);
        let client_limit = if self.label == BudgetLabel::Slice {
            ClientQuota { alone: eighths(6), among_others: eighths(4) }
        } else {
            ClientQuota { alone: eighths(4), among_others: eighths(3) }
        };
        let pinned_client_limit = ClientQuota { alone: eighths(3), among_others: eighths(3) };
        metrics::budget_capacity(self.label, self.capacity_bytes());
        self.semaphore.resize(total.saturating_sub(in_flight), in_flight, client_limit);
        self.pinned.client_charges.resize(0, total, pinned_client_limit);
        self.trim_pool();
    }

    /// Returns a handle to the same memory that counts the waiting requests of another container.
    pub(crate) fn for_container(&self) -> Self {
        Self { container_waiters: Arc::default(), ..self.clone() }
    }

    /// Returns true if requests of other containers are waiting for a permit. The result may be briefly wrong while
    /// requests start or stop waiting.
    fn others_wait(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > self.container_waiters.load(Ordering::Relaxed)
    }

    /// Returns true if a request is waiting for a permit.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Counts a request as waiting for a permit until the returned values are dropped.
    fn begin_wait(&self) -> (QueueWaitTimer, impl Sized) {
        let timer = QueueWaitTimer::begin(QueueLabel::for_budget(self.label));
        self.container_waiters.fetch_add(1, Ordering::Relaxed);
        self.waiters.fetch_add(1, Ordering::Relaxed);
        let guard = scopeguard::guard(self, |budget| {
            budget.waiters.fetch_sub(1, Ordering::Relaxed);
            budget.container_waiters.fetch_sub(1, Ordering::Relaxed);
        });
        (timer, guard)
    }

    /// Returns the size of the whole budget in bytes.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.cached_bytes.saturating_add(self.in_flight_bytes)
    }

    /// Returns the maximum size in bytes of a permit that may be granted before a larger one for which another client
    /// already waits.
    pub(crate) fn max_overtaking_bytes(&self) -> u64 {
        let total = units(self.capacity_bytes());
        let in_flight = units(self.in_flight_bytes);
        max_overtaking_units(total, in_flight) as u64 * UNIT_BYTES
    }

    /// Takes a permit for `bytes`, waiting for it if necessary.
    ///
    /// # Errors
    /// Returns a [`BudgetError`] if the budget is too small or other requests hold its memory for too long.
    pub(crate) async fn take(&self, bytes: u64) -> Result<Permit, BudgetError> {
        self.take_within(bytes, self.max_wait).await
    }

    /// Takes a permit for `bytes` without waiting. Returns `None` if the memory is not free or other requests wait for
    /// it.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Permit> {
        let flow_id = ClientId::current().flow(SHORT_FLOW);
        let reserve = self.headroom_units(bytes);
        let permit = self.new_permit(self.semaphore.try_acquire_with_reserve(flow_id, units(bytes), reserve)?, None);
        self.trim_pool();
        Some(permit)
    }

    /// Takes a permit as [`Self::take`] does, but waits at most `max_wait`.
    pub(crate) async fn take_within(&self, bytes: u64, max_wait: Duration) -> Result<Permit, BudgetError> {
        let permit = self.acquire(bytes, max_wait).await?;
        self.trim_pool();
        Ok(permit)
    }

    /// Takes a permit as [`Self::take`] does, but leaves unused buffers in the pool. The caller must allocate the
    /// memory with [`Self::dirty_or_zeroed`], which reuses these buffers or trims them.
    pub(crate) async fn take_for_pooled_buffers(&self, bytes: u64) -> Result<Permit, BudgetError> {
        self.acquire(bytes, self.max_wait).await
    }

    /// Frees unused buffers until the rest fits into the free memory. Must be called after a permit has been taken,
    /// unless the memory comes from [`Self::dirty_or_zeroed`].
    pub(crate) fn trim_pool(&self) {
        self.pool.trim(self.free_bytes());
    }

    /// Returns the number of bytes that must stay free for smaller permits when a permit for `bytes` is granted.
    /// Without this headroom, slow clients, which keep permits for long, could take all of the memory. Budgets with a
    /// cache need no headroom, because the cache evicts entries to free memory.
    fn headroom_bytes(&self, bytes: u64) -> u64 {
        if self.label != BudgetLabel::Slice {
            return 0;
        }
        let capacity_bytes = self.capacity_bytes();
        let max_headroom_bytes = (capacity_bytes / MAX_HEADROOM_DIVISOR).min(capacity_bytes.saturating_sub(bytes));
        bytes.saturating_mul(HEADROOM_FACTOR).min(max_headroom_bytes)
    }

    fn headroom_units(&self, bytes: u64) -> usize {
        usize::try_from(self.headroom_bytes(bytes) / UNIT_BYTES).unwrap_or(usize::MAX)
    }

    /// Returns true if `bytes` and their headroom are free now.
    pub(crate) fn has_capacity_for(&self, bytes: u64) -> bool {
        bytes.saturating_add(self.headroom_bytes(bytes)) <= self.free_bytes()
    }

    async fn acquire(&self, bytes: u64, max_wait: Duration) -> Result<Permit, BudgetError> {
        let capacity_bytes = self.capacity_bytes();
        if bytes > capacity_bytes {
            return Err(BudgetError::TooLarge { budget: self.label.name(), asked_bytes: bytes, capacity_bytes });
        }
        let flow_id = ClientId::current().flow(SHORT_FLOW);
        let reserve = self.headroom_units(bytes);
        let mut acquiring = pin!(self.semaphore.acquire_with_reserve(flow_id, units(bytes), reserve));
        let acquired = if let Some(permit) = acquiring.as_mut().now_or_never() {
            Ok(permit)
        } else {
            let (wait_timer, _waiting) = self.begin_wait();
            let acquired = tokio::time::timeout(max_wait, acquiring).await;
            trace::finish_wait(wait_timer);
            acquired
        };
        let granted = acquired.map_err(|_elapsed| self.timed_out(max_wait))?;
        Ok(self.new_permit(granted, None))
    }

    fn new_permit(&self, granted: FairPermit, stream_token: Option<Arc<()>>) -> Permit {
        let permit = Permit { granted, label: self.label, stream_token };
        metrics::budget_taken(self.label, permit.bytes());
        permit
    }

    fn timed_out(&self, waited: Duration) -> BudgetError {
        metrics::request_shed(match self.label {
            BudgetLabel::Slice => ShedReason::SliceBudget,
            BudgetLabel::Decode => ShedReason::DecodeBudget,
            BudgetLabel::Transfer => ShedReason::TransferBudget,
            BudgetLabel::Attributes => ShedReason::AttributesBudget,
        });
        BudgetError::TimedOut { budget: self.label.name(), waited }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        (self.semaphore.free() as u64).saturating_mul(UNIT_BYTES)
    }

    /// Returns the maximum time for which a response that has started waits for memory. The time is long because an
    /// aborted response is useless to the client that has received a part of it.
    pub(crate) fn started_wait(&self) -> Duration {
        self.max_wait.saturating_mul(STARTED_WAIT_FACTOR).max(MIN_STARTED_WAIT)
    }

    /// Returns the maximum size in bytes of a permit from [`Self::take_for_stream`], which leaves a quarter of the
    /// budget to short responses.
    pub(crate) fn max_stream_bytes(&self) -> u64 {
        (self.capacity_bytes() - self.capacity_bytes() / 4).max(1)
    }

    /// Takes a permit for a part of a stream at low priority: short responses go first, and a quarter of the budget
    /// stays free. Waits without a limit while earlier parts of the stream are being sent, because their memory will
    /// become free, and then for at most `max_wait`. The memory must come from [`Self::dirty_or_zeroed`].
    ///
    /// # Errors
    /// Returns the same errors as [`Self::take`].
    pub(crate) async fn take_for_stream(
        &self,
        bytes: u64,
        stream: &Arc<()>,
        max_wait: Duration,
    ) -> Result<Permit, BudgetError> {
        let flow_id = ClientId::current().flow(STREAM_FLOW);
        let reserve = units(self.capacity_bytes()) / 4;
        let mut acquiring = pin!(self.semaphore.acquire_for_stream(flow_id, units(bytes), reserve, stream));
        if let Some(granted) = acquiring.as_mut().now_or_never() {
            return Ok(self.new_permit(granted, Some(Arc::clone(stream))));
        }
        let _waiting = self.begin_wait();
        let mut idle = Duration::ZERO;
        while idle <= max_wait {
            if let Ok(granted) = tokio::time::timeout(STREAM_POLL_INTERVAL, acquiring.as_mut()).await {
                return Ok(self.new_permit(granted, Some(Arc::clone(stream))));
            }
            // The caller holds one reference, and every part of the stream that is being sent holds another.
            idle = if Arc::strong_count(stream) > 1 { Duration::ZERO } else { idle + STREAM_POLL_INTERVAL };
        }
        Err(self.timed_out(max_wait))
    }

    /// Waits for `future`, a request to a store with this pressure, while the caller holds a permit. Gives up if two
    /// checks in a row find that requests of other containers are waiting for permits, and that the store is
    /// unresponsive or has kept the caller waiting for [`MAX_WAIT_HOLDING_MEMORY`].
    ///
    /// # Errors
    /// Returns [`StoreError::Preempted`] if this function gives up.
    pub(crate) async fn abort_if_contended<T>(
        &self,
        store_pressure: impl Fn() -> StorePressure,
        key: &Key,
        mut future: impl Future<Output = T> + Unpin,
    ) -> Result<T, ReadError> {
        // A result that is ready needs no timer.
        if let Some(output) = (&mut future).now_or_never() {
            return Ok(output);
        }
        let started = Instant::now();
        let mut contended_polls = 0;
        loop {
            if let Ok(output) = tokio::time::timeout(CONTENTION_POLL_INTERVAL, &mut future).await {
                return Ok(output);
            }
            let is_storage_slow = || {
                let pressure = store_pressure();
                pressure.is_unresponsive()
                    || (started.elapsed() >= MAX_WAIT_HOLDING_MEMORY
                        && pressure.longest_running >= MAX_WAIT_HOLDING_MEMORY)
            };
            contended_polls = if self.others_wait() && is_storage_slow() { contended_polls + 1 } else { 0 };
            if contended_polls >= 2 {
                metrics::request_shed(ShedReason::Storage);
                return Err(StoreError::Preempted(key.clone()).into());
            }
        }
    }

    /// Returns true if the cached bytes that are being sent take more than half of the memory beside the cache.
    pub(crate) fn is_mostly_pinned(&self) -> bool {
        self.pinned.bytes.load(Ordering::Relaxed) > self.in_flight_bytes / 2
    }

    /// Charges `bytes` to `client` while they are being sent ([`PinnedBuffers::charge_to_client`]).
    pub(crate) fn charge_to_client(&self, client: ClientId, bytes: &Bytes) -> Option<Bytes> {
        self.pinned.charge_to_client(client, bytes)
    }

    /// Charges `bytes` to the current client while they are being sent. If too many bytes are being sent to the client
    /// already, drops `bytes`, waits for a permit, and returns `None`. The caller must then look the bytes up again and
    /// call this function with the same `permit`, which is `None` at first.
    ///
    /// # Errors
    /// Returns a [`BudgetError`] if the client does not read what it requested before.
    pub(crate) async fn charge_or_wait(
        &self,
        permit: &mut Option<SendPermit>,
        bytes: Bytes,
    ) -> Result<Option<Bytes>, BudgetError> {
        if let Some(permit) = permit.take() {
            return Ok(Some(self.pinned.charge_with_permit(permit, bytes)));
        }
        if let Some(charged) = self.charge_to_client(ClientId::current(), &bytes) {
            return Ok(Some(charged));
        }
        // A request that waits for its client must not hold memory that other requests wait for.
        let len = bytes.len();
        drop(bytes);
        *permit = Some(self.acquire_send_permit(len).await?);
        Ok(None)
    }

    /// Waits until [`Self::charge_to_client`] could charge `len` bytes to the current client. Times out if no other
    /// response has been charged to the client for the budget's longest wait.
    ///
    /// # Errors
    /// Returns a [`BudgetError`] if the client does not read what it requested before.
    async fn acquire_send_permit(&self, len: usize) -> Result<SendPermit, BudgetError> {
        let client = ClientId::current();
        let charges = &self.pinned.client_charges;
        // The metrics show this wait. `has_waiters` does not, because this request waits for its client, not for
        // memory.
        let wait_timer = QueueWaitTimer::begin(QueueLabel::for_budget(self.label));
        let mut charge = pin!(charges.charge(client.flow(SHORT_FLOW), units(len as u64)));
        let charge = loop {
            let service_before = charges.service_received(client.flow(SHORT_FLOW));
            let result = tokio::time::timeout(self.max_wait, charge.as_mut()).await;
            // Earlier responses to the client were charged meanwhile: it is slow, but reads them.
            if result.is_ok() || charges.service_received(client.flow(SHORT_FLOW)) <= service_before {
                break result;
            }
        };
        trace::finish_wait(wait_timer);
        Ok(SendPermit { client, charge: charge.map_err(|_elapsed| self.timed_out(self.max_wait))? })
    }

    /// Attaches `permit` to a piece of a large object. The piece counts as pinned until its last clone is dropped,
    /// which frees the buffer.
    pub(crate) fn own_pinned(&self, piece: Bytes, permit: Permit) -> Bytes {
        let pinned = Arc::clone(&self.pinned);
        pinned.bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        release_with(piece, move |piece| {
            pinned.bytes.fetch_sub(piece.len() as u64, Ordering::Relaxed);
            drop(piece);
            drop(permit);
        })
    }

    /// Returns a buffer of `len` bytes, and true if all of them are zero. Otherwise the buffer has the content of its
    /// earlier use. The caller holds a permit for the bytes.
    pub(crate) fn dirty_or_zeroed(&self, len: usize) -> (Vec<u8>, bool) {
        self.pool.take_dirty(len).map_or_else(
            || {
                self.trim_pool();
                (vec![0; len], true)
            },
            |buffer| (buffer, false),
        )
    }

    /// Returns a buffer of `len` zeros, which may come from the pool. The caller holds a permit for it.
    pub(crate) fn zeroed(&self, len: usize) -> Vec<u8> {
        let (mut data, is_zero) = self.dirty_or_zeroed(len);
        if !is_zero {
            data.fill(0);
        }
        data
    }

    /// Returns a buffer with room for `len` bytes. It may come from the pool and have any content. The caller holds a
    /// permit for it.
    pub(crate) fn buffer(&self, len: usize) -> Vec<u8> {
        self.pool.take(len).unwrap_or_else(|| Vec::with_capacity(len))
    }

    /// Returns a buffer from the pool with a capacity of exactly `len` bytes and any content, or an empty vector if
    /// there is none. The caller holds a permit for it.
    pub(crate) fn exact_buffer(&self, len: usize) -> Vec<u8> {
        self.pool.take_exact(len).unwrap_or_default()
    }

    /// Gives idle pooled buffers back to the system. Must be called periodically.
    pub(crate) fn release_unused_buffers(&self) {
        self.pool.release_unused();
    }

    /// Attaches `permit` to `data`. The last clone gives the permit back and returns the buffer to the pool.
    pub(crate) fn own_pooled(&self, data: Vec<u8>, permit: Permit) -> Bytes {
        let budget = self.clone();
        release_with(data, move |data| budget.return_buffers([data], permit))
    }

    /// Attaches `permit` to `data` for a cache. Copies the data if its buffer would waste memory ([`needs_copy`]);
    /// otherwise its buffer returns to the pool as with [`Self::own_pooled`].
    pub(crate) fn own_pooled_for_cache<B>(&self, data: B, permit: Permit) -> Bytes
    where
        B: AsRef<[u8]> + Into<Bytes> + Into<Vec<u8>>,
    {
        if needs_copy(data.as_ref()) {
            permit.own_for_cache(data.into(), true)
        } else {
            self.own_pooled(data.into(), permit.into_cache_owned())
        }
    }

    /// Returns buffers to the pool for reuse and gives back their permit.
    pub(crate) fn return_buffers<const N: usize>(&self, buffers: [Vec<u8>; N], permit: Permit) {
        // The buffers go first, because a request that waits for the permit may want them.
        let max_bytes = self.free_bytes().saturating_add(permit.bytes());
        for buffer in buffers {
            self.pool.put(buffer, max_bytes);
        }
        drop(permit);
    }
}

/// A permit of the slice budget for a response: for the elements of a slice, or for data that is produced from them,
/// such as their encoded form.
#[derive(Debug)]
pub struct MemoryPermit {
    permit: Option<Permit>,
    budget: Budget,
}

impl MemoryPermit {
    /// Wraps `permit`, a permit of `budget`; `None` for data that needs none.
    pub(crate) fn new(permit: Option<Permit>, budget: &Budget) -> Self {
        Self { permit, budget: budget.clone() }
    }

    /// Gives back all but `bytes` of the permit.
    pub fn shrink(&mut self, bytes: u64) {
        if let Some(permit) = &mut self.permit {
            permit.shrink(bytes);
        }
    }

    /// Takes a buffer with room for `bytes` from the pool. Its content is arbitrary, and the permit covers it. Returns
    /// an empty vector if the pool has none.
    pub fn pooled_buffer(&self, bytes: usize) -> Vec<u8> {
        self.budget.pool.take(bytes).unwrap_or_default()
    }

    /// Attaches the permit to `bytes`. The last clone gives the permit back and returns the buffer to the pool.
    pub fn own_pooled(self, bytes: Bytes) -> Bytes {
        if self.permit.is_some() { Self::own_pooled_part(&Arc::new(self), bytes) } else { bytes }
    }

    /// Attaches the permit to one of several parts of the data, as [`Self::own_pooled`] does. The last part gives the
    /// permit back. The buffer of a part returns to the pool, unless the part shares it.
    pub fn own_pooled_part(this: &Arc<Self>, bytes: Bytes) -> Bytes {
        let budget = this.budget.clone();
        let memory = Arc::clone(this);
        release_with(bytes, move |bytes| {
            // The permit is dropped first, because pooled buffers must fit into the free memory.
            drop(memory);
            if bytes.is_unique() {
                budget.pool.put(bytes.into(), budget.free_bytes());
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_read_nothing_leave_memory_to_others() {
        let budget = Budget::new(BudgetLabel::Transfer, 256 << 10, Duration::ZERO);
        let mut charged = Vec::new();
        for _ in 0..256 {
            charged.extend(
                (1..=3).filter_map(|client| {
                    budget.charge_to_client(ClientId::new(client), &Bytes::from(vec![0; 1 << 10]))
                }),
            );
        }
        // Three eighths for each client would exceed the budget.
        let free_bytes = budget.capacity_bytes() - budget.pinned.bytes.load(Ordering::Relaxed);
        assert!((64 << 10..128 << 10).contains(&free_bytes), "{free_bytes}");
        assert!(budget.charge_to_client(ClientId::new(4), &Bytes::from(vec![0; 9 << 10])).is_some());
        // Bytes that are sent to several clients count once.
        let shared = Bytes::from(vec![0; 8 << 10]);
        let before = budget.pinned.bytes.load(Ordering::Relaxed);
        let sent: Vec<_> =
            (5..105).map(|client| budget.charge_to_client(ClientId::new(client), &shared).unwrap()).collect();
        assert_eq!(budget.pinned.bytes.load(Ordering::Relaxed) - before, 8 << 10);
        drop((charged, sent));
        assert!(
            budget.pinned.bytes.load(Ordering::Relaxed) == 0
                && budget.charge_to_client(ClientId::new(1), &Bytes::from(vec![0; 96 << 10])).is_some()
        );
    }

    #[tokio::test]
    async fn the_wait_for_a_send_permit_lasts_as_long_as_the_client_reads_others() {
        let budget = Budget::new(BudgetLabel::Transfer, 64 << 10, Duration::from_secs(2));
        let client = ClientId::new(1);
        let bytes = |n: usize| Bytes::from(vec![0; n << 10]);
        let charged = budget.charge_to_client(client, &bytes(24)).unwrap();
        // Served one after the other. Each holds its charge for so long that the last one waits longer than the
        // budget's `wait`.
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let budget = budget.clone();
                tokio::spawn(client.scope(async move {
                    let sent = budget.pinned.charge_with_permit(
                        budget.acquire_send_permit(24 << 10).await?,
                        Bytes::from(vec![0; 24 << 10]),
                    );
                    tokio::time::sleep(Duration::from_millis(800)).await;
                    drop(sent);
                    Ok::<_, BudgetError>(())
                }))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(800)).await;
        drop(charged);
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        let _held = budget.charge_to_client(client, &bytes(24)).unwrap();
        let started = Instant::now();
        assert!(
            client.scope(budget.acquire_send_permit(24 << 10)).await.is_err()
                && started.elapsed() < Duration::from_secs(20)
        );
    }

    #[tokio::test]
    async fn a_request_that_waits_for_its_client_does_not_hold_the_bytes() {
        let budget = Budget::new(BudgetLabel::Transfer, 64 << 10, Duration::from_millis(500));
        let client = ClientId::new(1);
        let held = budget.charge_to_client(client, &Bytes::from(vec![0; 24 << 10])).unwrap();
        let owner = Arc::new(vec![0u8; 24 << 10]);
        let lookup = || Bytes::from_owner(OwnedBytes(Arc::clone(&owner)));
        let mut permit = None;
        {
            let mut waiting = pin!(client.scope(budget.charge_or_wait(&mut permit, lookup())));
            assert!(tokio::time::timeout(Duration::from_millis(1), &mut waiting).await.is_err());
            assert_eq!(Arc::strong_count(&owner), 1, "the bytes are dropped before the wait");
            drop(held);
            assert!(waiting.await.unwrap().is_none(), "the bytes must be looked up again");
        }
        assert!(permit.is_some());
        let charged = client.scope(budget.charge_or_wait(&mut permit, lookup())).await.unwrap().unwrap();
        assert!(permit.is_none() && charged.len() == 24 << 10);
        let refusal = client.scope(budget.charge_or_wait(&mut permit, Bytes::from(vec![0; 24 << 10]))).await;
        assert!(refusal.is_err() && permit.is_none(), "the client reads nothing");
    }

    /// Bytes with a counted owner.
    struct OwnedBytes(Arc<Vec<u8>>);

    impl AsRef<[u8]> for OwnedBytes {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
}
