//! Memory budgets: bounded amounts of memory that are lent out as permits, by fair queueing.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;

use super::buffer_pool::BufferPool;
use super::error::BudgetError;
use super::footprint::{UNIT_BYTES, bytes_of, units};
use super::permit::Permit;
use super::pinned_buffers::PinnedBuffers;
use super::waiter_counts::{WaiterCounts, WaiterGuard};
use crate::fair_queue::{ClientId, ClientQuota, CostBasis, FairPermit, FairSemaphore, max_overtaking_units};
use crate::metrics::{self, ShedReason};
use crate::trace;
use n5_format::{Block, DatasetAttributes, DecodeBuffers, GridPosition};

/// Flow numbers of a client's requests for permits. Its streams wait in a queue of their own, so that they do not delay
/// its short responses.
pub(crate) const SHORT_FLOW: u64 = 0;
const STREAM_FLOW: u64 = 1;

/// Headroom of a permit in the slice budget: this many times its size stays free for smaller permits. However many
/// responses of one size clients leave unread, smaller ones find some memory.
const HEADROOM_FACTOR: u64 = 4;

/// Divisor of the budget that bounds the headroom.
const MAX_HEADROOM_DIVISOR: u64 = 16;

/// Factor by which a response that has started waits longer for memory than one that can still be refused.
const STARTED_WAIT_FACTOR: u32 = 6;

/// Minimum of that wait.
const MIN_STARTED_WAIT: Duration = Duration::from_secs(60);

/// A bounded amount of memory that is lent out as permits. Clients take turns; the permits of one client are granted in
/// the order of its requests.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    pub(crate) label: metrics::BudgetLabel,
    shares: FairSemaphore,
    waiters: WaiterCounts,
    sizes: BudgetUnits,
    capacity_bytes: u64,
    max_overtaking_bytes: u64,
    pub(crate) max_wait: Duration,
    /// Unused buffers. Together with lent memory they never exceed the budget: they are trimmed before new memory is
    /// allocated.
    pub(crate) pool: BufferPool,
    /// Buffers of caches that are being sent.
    pub(crate) pinned: PinnedBuffers,
}

/// Units of a budget, and limits for one client.
#[derive(Debug, Clone, Copy)]
struct BudgetUnits {
    cached: usize,
    in_flight: usize,
    client_limit: ClientQuota,
    /// Limit for cached memory that is being sent.
    pinned_client_limit: ClientQuota,
}

impl BudgetUnits {
    fn new(label: metrics::BudgetLabel, cached_bytes: u64, in_flight_bytes: u64) -> Self {
        let capacity_bytes = cached_bytes.saturating_add(in_flight_bytes);
        let [units, in_flight] =
            [capacity_bytes, in_flight_bytes].map(|n| usize::try_from(units(n)).unwrap_or(usize::MAX));
        // A slow client may hold its responses for long, so it never gets all units.
        let eighths = |n: usize| units - units / 8 * (8 - n);
        let client_limit = if label == metrics::BudgetLabel::Slice {
            ClientQuota { alone: eighths(6), among_others: eighths(4) }
        } else {
            ClientQuota { alone: eighths(4), among_others: eighths(3) }
        };
        let pinned_client_limit = ClientQuota { alone: eighths(3), among_others: eighths(3) };
        Self { cached: units.saturating_sub(in_flight), in_flight, client_limit, pinned_client_limit }
    }

    fn total_units(self) -> usize {
        self.cached.saturating_add(self.in_flight)
    }
}

impl Budget {
    /// Creates a budget of `capacity_bytes` whose requests wait for permits at most `max_wait`.
    pub(crate) fn new(label: metrics::BudgetLabel, capacity_bytes: u64, max_wait: Duration) -> Self {
        Self::with_cache(label, 0, capacity_bytes, max_wait)
    }

    /// As [`Self::new`], for `in_flight_bytes` and the `cached_bytes` that a cache may fill.
    pub(crate) fn with_cache(
        label: metrics::BudgetLabel,
        cached_bytes: u64,
        in_flight_bytes: u64,
        max_wait: Duration,
    ) -> Self {
        let capacity_bytes = cached_bytes.saturating_add(in_flight_bytes);
        let sizes = BudgetUnits::new(label, cached_bytes, in_flight_bytes);
        let max_overtaking_bytes = max_overtaking_units(sizes.total_units(), sizes.in_flight) as u64 * UNIT_BYTES;
        metrics::budget_capacity(label, capacity_bytes);
        let shares = FairSemaphore::with_cache(sizes.cached, sizes.in_flight, sizes.client_limit, CostBasis::Units);
        // Counted separately from permits: a request whose turn it is to send a block may have to load it first.
        let pinned =
            PinnedBuffers::new(FairSemaphore::new(sizes.total_units(), sizes.pinned_client_limit, CostBasis::Units));
        let (waiters, pool) = (WaiterCounts::default(), BufferPool::default());
        Self { label, shares, waiters, sizes, capacity_bytes, max_overtaking_bytes, max_wait, pool, pinned }
    }

    /// Returns this budget with the size of `other`, which [`apply_size`](Self::apply_size) puts into effect. Lent
    /// memory stays lent.
    pub(crate) fn with_size_of(&self, other: &Self) -> Self {
        let Self { shares, waiters, pool, pinned, .. } = self.clone();
        Self { shares, waiters, pool, pinned, ..other.clone() }
    }

    /// Applies this size to the shared units, which also affects budgets with the old size.
    pub(crate) fn apply_size(&self) {
        let BudgetUnits { cached, in_flight, client_limit, pinned_client_limit } = self.sizes;
        metrics::budget_capacity(self.label, self.capacity_bytes);
        self.shares.resize(cached, in_flight, client_limit);
        self.pinned.resize(self.sizes.total_units(), pinned_client_limit);
        self.trim_pool();
    }

    /// Returns a handle to the same memory whose requests wait at most `max_wait`.
    pub(crate) fn with_max_wait(&self, max_wait: Duration) -> Self {
        metrics::budget_capacity(self.label, self.capacity_bytes);
        Self { max_wait, ..self.clone() }
    }

    /// Returns a handle to the same memory for another container.
    pub(crate) fn for_container(&self) -> Self {
        Self { waiters: self.waiters.for_container(), ..self.clone() }
    }

    /// Returns true if requests of other containers wait for a permit.
    pub(crate) fn others_wait(&self) -> bool {
        self.waiters.has_other_containers()
    }

    /// Returns true if a request waits for a permit.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.has_any()
    }

    /// Counts a request as waiting for a permit while the result is held.
    fn begin_wait(&self) -> (metrics::QueueWaitTimer, WaiterGuard) {
        (metrics::QueueWaitTimer::begin(metrics::QueueLabel::for_budget(self.label)), self.waiters.begin())
    }

    /// Returns the size of the whole budget in bytes.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Returns the size of the largest permit that may overtake a larger one of another client that waits, in bytes.
    pub(crate) fn max_overtaking_bytes(&self) -> u64 {
        self.max_overtaking_bytes
    }

    /// Takes a permit for `bytes`, waiting for it if necessary.
    ///
    /// # Errors
    /// [`BudgetError`] when the budget is too small or others keep its memory.
    pub(crate) async fn take(&self, bytes: u64) -> Result<Permit, BudgetError> {
        self.take_within(bytes, self.max_wait).await
    }

    /// Takes a permit for `bytes` if this is possible without waiting and no other request waits.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Permit> {
        let [units, reserve] = [units(bytes), self.headroom_bytes(bytes) / UNIT_BYTES].map(usize::try_from);
        let (flow_id, units, reserve) = ((ClientId::current(), SHORT_FLOW), units.ok()?, reserve.ok()?);
        let permit = self.new_permit(self.shares.try_acquire_with_reserve(flow_id, units, reserve)?, None);
        self.trim_pool();
        Some(permit)
    }

    /// [`Self::take`] with another maximum wait.
    pub(crate) async fn take_within(&self, bytes: u64, max_wait: Duration) -> Result<Permit, BudgetError> {
        let permit = self.acquire(bytes, max_wait).await?;
        self.trim_pool();
        Ok(permit)
    }

    /// [`Self::take`] for memory that comes only from [`Self::dirty_or_zeroed`]: unused buffers are kept for it.
    pub(crate) async fn take_for_pooled_buffers(&self, bytes: u64) -> Result<Permit, BudgetError> {
        self.acquire(bytes, self.max_wait).await
    }

    /// Trims unused buffers to the free memory. Must be called after a permit was taken for memory that does not come
    /// from [`Self::dirty_or_zeroed`].
    pub(crate) fn trim_pool(&self) {
        self.pool.trim(self.free_bytes());
    }

    /// Returns the bytes that a permit leaves free for smaller ones, because slow clients keep permits for long. It is
    /// 0 for budgets that caches fill, because small permits find something to evict.
    fn headroom_bytes(&self, bytes: u64) -> u64 {
        if self.label == metrics::BudgetLabel::Slice {
            let max_headroom_bytes =
                (self.capacity_bytes / MAX_HEADROOM_DIVISOR).min(self.capacity_bytes.saturating_sub(bytes));
            bytes.saturating_mul(HEADROOM_FACTOR).min(max_headroom_bytes)
        } else {
            0
        }
    }

    /// Returns true if `bytes` and their headroom are free now.
    pub(crate) fn has_capacity_for(&self, bytes: u64) -> bool {
        bytes.saturating_add(self.headroom_bytes(bytes)) <= self.free_bytes()
    }

    async fn acquire(&self, bytes: u64, max_wait: Duration) -> Result<Permit, BudgetError> {
        let too_large = BudgetError::TooLarge {
            budget: self.label.name(),
            asked_bytes: bytes,
            capacity_bytes: self.capacity_bytes,
        };
        let units = usize::try_from(units(bytes)).ok().filter(|_| bytes <= self.capacity_bytes).ok_or(too_large)?;
        let flow_id = (ClientId::current(), SHORT_FLOW);
        let reserve = usize::try_from(self.headroom_bytes(bytes) / UNIT_BYTES).unwrap_or(usize::MAX);
        let mut acquiring = pin!(self.shares.acquire_with_reserve(flow_id, units, reserve));
        let acquired = if let Some(permit) = acquiring.as_mut().now_or_never() {
            Ok(permit)
        } else {
            let _waiting = self.begin_wait();
            let started = Instant::now();
            let acquired = tokio::time::timeout(max_wait, acquiring).await;
            trace::record("wait", self.label.name(), started.elapsed());
            acquired
        };
        let share = acquired.map_err(|_elapsed| self.timed_out(max_wait))?;
        Ok(self.new_permit(share, None))
    }

    fn new_permit(&self, share: FairPermit, stream_token: Option<Arc<()>>) -> Permit {
        metrics::budget_taken(self.label, bytes_of(&share));
        Permit { share, label: self.label, stream_token }
    }

    pub(crate) fn timed_out(&self, waited: Duration) -> BudgetError {
        metrics::request_shed(match self.label {
            metrics::BudgetLabel::Slice => ShedReason::SliceBudget,
            metrics::BudgetLabel::Decode => ShedReason::DecodeBudget,
            metrics::BudgetLabel::Transfer => ShedReason::TransferBudget,
            metrics::BudgetLabel::Attributes => ShedReason::AttributesBudget,
        });
        BudgetError::TimedOut { budget: self.label.name(), waited }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        (self.shares.free() as u64).saturating_mul(UNIT_BYTES)
    }

    /// Returns the longest wait of a response that has started. Aborting it would cost its client everything received
    /// so far.
    pub(crate) fn started_wait(&self) -> Duration {
        self.max_wait.saturating_mul(STARTED_WAIT_FACTOR).max(MIN_STARTED_WAIT)
    }

    /// Returns `len` bytes for which the caller holds a permit: the contents of a used buffer and `false`, or zeros and
    /// `true`.
    pub(crate) fn dirty_or_zeroed(&self, len: usize) -> (Vec<u8>, bool) {
        self.pool.take_dirty(len).map_or_else(
            || {
                self.trim_pool();
                (vec![0; len], true)
            },
            |buffer| (buffer, false),
        )
    }

    /// Returns `len` zeros in a buffer that may have been used before. The caller holds a permit for them.
    pub(crate) fn zeroed(&self, len: usize) -> Vec<u8> {
        let (mut data, is_zero) = self.dirty_or_zeroed(len);
        if !is_zero {
            data.fill(0);
        }
        data
    }

    /// Returns a buffer for `len` bytes that may have been used before, with any content. The caller holds a permit for
    /// it.
    pub(crate) fn buffer(&self, len: usize) -> Vec<u8> {
        self.pool.take(len).unwrap_or_else(|| Vec::with_capacity(len))
    }

    /// Wraps `data` such that its permit and its buffer are given back when the last clone is dropped.
    pub(crate) fn own(&self, data: Vec<u8>, permit: Permit) -> Bytes {
        Bytes::from_owner(PooledBuffer { data, permit: Some(permit), budget: self.clone() })
    }

    /// Returns buffers for decoding a stored block. If the codec needs a buffer, it is that of an evicted block of the
    /// same size, if there is one. The caller holds a permit for the block.
    pub(crate) fn decode_buffers(
        &self,
        stored: &[u8],
        attributes: &DatasetAttributes,
        position: &GridPosition,
    ) -> DecodeBuffers {
        let is_needed = attributes.compression().codec().is_some_and(|codec| !codec.is_uncompressed());
        let bytes = if is_needed { Block::decoded_bytes(stored, attributes, position).unwrap_or(0) } else { 0 };
        DecodeBuffers { decoded: self.pool.take_exact(bytes).unwrap_or_default(), ..DecodeBuffers::default() }
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

    /// Gives unused memory back to the system. Must be called periodically.
    pub(crate) fn release_unused(&self) {
        self.pool.release_unused();
    }
}

/// A buffer that returns to the pool when dropped.
struct PooledBuffer {
    data: Vec<u8>,
    permit: Option<Permit>,
    budget: Budget,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        if let Some(permit) = self.permit.take() {
            self.budget.return_buffers([data], permit);
        }
    }
}

/// Interval at which a waiting stream checks whether earlier parts of it are still being sent.
const STREAM_POLL_INTERVAL: Duration = Duration::from_millis(5);

impl Budget {
    /// Returns the maximum that [`Self::take_for_stream`] gives, in bytes. A quarter is left for short responses.
    pub(crate) fn max_stream_bytes(&self) -> u64 {
        (self.capacity_bytes - self.capacity_bytes / 4).max(1)
    }

    /// Takes a permit for a part of a stream at low priority: short responses go first, and a quarter of the budget
    /// stays free. Waits while earlier parts of the stream are being sent, because it waits for their memory; after
    /// that at most `max_wait`. The permit is for memory as in [`Self::take_for_pooled_buffers`].
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(crate) async fn take_for_stream(
        &self,
        bytes: u64,
        stream: &Arc<()>,
        max_wait: Duration,
    ) -> Result<Permit, BudgetError> {
        let [requested_units, capacity_units] =
            [bytes, self.capacity_bytes].map(|n| usize::try_from(units(n)).unwrap_or(usize::MAX));
        let reserve = capacity_units / 4;
        let mut acquiring =
            pin!(self.shares.acquire_for_stream((ClientId::current(), STREAM_FLOW), requested_units, reserve, stream));
        if let Some(share) = acquiring.as_mut().now_or_never() {
            return Ok(self.new_permit(share, Some(Arc::clone(stream))));
        }
        let _waiting = self.begin_wait();
        let mut idle = Duration::ZERO;
        while idle <= max_wait {
            if let Ok(share) = tokio::time::timeout(STREAM_POLL_INTERVAL, acquiring.as_mut()).await {
                return Ok(self.new_permit(share, Some(Arc::clone(stream))));
            }
            // One of the references is the caller's.
            idle = if Arc::strong_count(stream) > 1 { Duration::ZERO } else { idle + STREAM_POLL_INTERVAL };
        }
        Err(self.timed_out(max_wait))
    }
}
