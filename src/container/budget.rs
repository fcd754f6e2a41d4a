//! Memory that is lent out in shares: how much there is, and whose turn it is.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;

use super::BudgetError;
use super::footprint::{UNIT_BYTES, bytes_of, units};
use super::hold::{Wait, Waits};
use super::permit::Permit;
use super::pinned::Pinned;
use super::pool::Pool;
use crate::fair::{Client, Cost, Most, Share, Shares, small_units};
use crate::metrics::{self, Shed};
use crate::n5::{Block, DatasetAttributes, GridPosition, Room};
use crate::trace;

/// Those who wait in line for shares are of a stream, or not: a client's streams do not hold up its short answers.
pub(super) const SHORT: u64 = 0;
const STREAM: u64 = 1;

/// A share leaves so many times its size of the slice budget free for smaller ones, at most one part in so many: however many
/// answers of one size are not taken, smaller ones find some memory.
const LEFT_TIMES: u64 = 4;
const LEFT_PART: u64 = 16;

/// An answer that has begun waits this many times longer for memory than one that can still be refused, and at least so long.
const BEGUN_FACTOR: u32 = 6;
const BEGUN_LEAST: Duration = Duration::from_secs(60);

/// A bounded amount of memory that is lent out in shares: clients take turns, and those of one are in the order of asking.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    pub(super) label: metrics::Budget,
    shares: Shares,
    waits: Waits,
    sizes: Sizes,
    capacity_bytes: u64,
    small_bytes: u64,
    pub(super) wait: Duration,
    /// With what is lent never more than the budget: new memory is not taken before this has made room for it.
    pub(super) pool: Pool,
    /// Buffers of caches that are being sent.
    pub(super) pinned: Pinned,
}

/// Units of a budget, and how many of them one client may have.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    cached: usize,
    in_flight: usize,
    most: Most,
    /// Of a cache's memory that is being sent.
    most_pinned: Most,
}

impl Sizes {
    fn new(label: metrics::Budget, cached_bytes: u64, in_flight_bytes: u64) -> Self {
        let capacity_bytes = cached_bytes.saturating_add(in_flight_bytes);
        let [units, in_flight] =
            [capacity_bytes, in_flight_bytes].map(|n| usize::try_from(units(n)).unwrap_or(usize::MAX));
        // A client may be slow to take its answers: the others do not wait for all of them.
        let eighths = |n: usize| units - units / 8 * (8 - n);
        let most = if label == metrics::Budget::Slice {
            Most { alone: eighths(6), among_others: eighths(4) }
        } else {
            Most { alone: eighths(4), among_others: eighths(3) }
        };
        let most_pinned = Most { alone: eighths(3), among_others: eighths(3) };
        Self { cached: units.saturating_sub(in_flight), in_flight, most, most_pinned }
    }

    fn all(self) -> usize {
        self.cached.saturating_add(self.in_flight)
    }
}

impl Budget {
    /// A budget of `capacity_bytes`, for whose shares requests wait at most `wait`.
    pub(super) fn new(label: metrics::Budget, capacity_bytes: u64, wait: Duration) -> Self {
        Self::with_cache(label, 0, capacity_bytes, wait)
    }

    /// As [`Self::new`], of `in_flight_bytes` and those that a cache may fill.
    pub(super) fn with_cache(label: metrics::Budget, cached_bytes: u64, in_flight_bytes: u64, wait: Duration) -> Self {
        let capacity_bytes = cached_bytes.saturating_add(in_flight_bytes);
        let sizes = Sizes::new(label, cached_bytes, in_flight_bytes);
        let small_bytes = small_units(sizes.all(), sizes.in_flight) as u64 * UNIT_BYTES;
        metrics::budget_capacity(label, capacity_bytes);
        let shares = Shares::with_cache(sizes.cached, sizes.in_flight, sizes.most, Cost::Units);
        // Apart from what is taken: a request whose turn it is to send a block may have to load it first.
        let pinned = Pinned::new(Shares::new(sizes.all(), sizes.most_pinned, Cost::Units));
        let (waits, pool) = (Waits::default(), Pool::default());
        Self { label, shares, waits, sizes, capacity_bytes, small_bytes, wait, pool, pinned }
    }

    /// This budget with the size of `other`, which [`come_into_force`](Self::come_into_force) applies. Lent memory stays lent.
    pub(super) fn with_size_of(&self, other: &Self) -> Self {
        let Self { shares, waits, pool, pinned, .. } = self.clone();
        Self { shares, waits, pool, pinned, ..other.clone() }
    }

    /// Applies this size to the shared units, for budgets with the old size, too.
    pub(super) fn come_into_force(&self) {
        let Sizes { cached, in_flight, most, most_pinned } = self.sizes;
        metrics::budget_capacity(self.label, self.capacity_bytes);
        self.shares.resize(cached, in_flight, most);
        self.pinned.resize(self.sizes.all(), most_pinned);
        self.make_room();
    }

    /// The same memory, for which others wait at most `wait`.
    pub(super) fn waiting(&self, wait: Duration) -> Self {
        metrics::budget_capacity(self.label, self.capacity_bytes);
        Self { wait, ..self.clone() }
    }

    /// The same memory, for another container.
    pub(super) fn of_one(&self) -> Self {
        Self { waits: self.waits.of_one(), ..self.clone() }
    }

    /// Whether requests of other containers wait for a share.
    pub(super) fn others_wait(&self) -> bool {
        self.waits.are_others()
    }

    /// Returns true if a request waits for a share.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waits.are_any()
    }

    /// One who waits for a share, as long as this is held.
    fn wait_begins(&self) -> (metrics::Waiting, Wait) {
        (metrics::Waiting::begin(metrics::Queue::of(self.label)), self.waits.begin())
    }

    /// All of it, in bytes.
    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Most bytes of a small share: it may pass a larger one of another client that waits.
    pub(super) fn small_bytes(&self) -> u64 {
        self.small_bytes
    }

    /// Takes a share of `bytes`, waiting for it.
    ///
    /// # Errors
    /// [`BudgetError`] when the budget is too small or others keep it.
    pub(super) async fn take(&self, bytes: u64) -> Result<Permit, BudgetError> {
        self.take_within(bytes, self.wait).await
    }

    /// A share of `bytes` where there is one at once and no other request waits for one.
    pub(super) fn take_at_once(&self, bytes: u64) -> Option<Permit> {
        let [units, beside] = [units(bytes), self.beside_bytes(bytes) / UNIT_BYTES].map(usize::try_from);
        let (party, units, beside) = ((Client::current(), SHORT), units.ok()?, beside.ok()?);
        let permit = self.lend(self.shares.try_take_leaving(party, units, beside)?, None);
        self.make_room();
        Some(permit)
    }

    /// [`Self::take`] with another longest wait.
    pub(super) async fn take_within(&self, bytes: u64, wait: Duration) -> Result<Permit, BudgetError> {
        let permit = self.acquire(bytes, wait).await?;
        self.make_room();
        Ok(permit)
    }

    /// [`Self::take`] for memory that [`Self::used_or_zeros`] gives, and nothing else: what is kept for that stays.
    pub(super) async fn take_for_buffers(&self, bytes: u64) -> Result<Permit, BudgetError> {
        self.acquire(bytes, self.wait).await
    }

    /// To be called by whoever has taken a share for other memory than [`Self::used_or_zeros`] gives: what nobody uses must
    /// fit beside it.
    pub(super) fn make_room(&self) {
        self.pool.shrink(self.free_bytes());
    }

    /// Bytes that a share leaves free for smaller ones, since slow clients keep shares for long. Budgets that caches fill leave
    /// none, since small shares find something to evict.
    fn beside_bytes(&self, bytes: u64) -> u64 {
        if self.label == metrics::Budget::Slice {
            let most = (self.capacity_bytes / LEFT_PART).min(self.capacity_bytes.saturating_sub(bytes));
            bytes.saturating_mul(LEFT_TIMES).min(most)
        } else {
            0
        }
    }

    /// Returns true if so many bytes are free now, and what they leave free.
    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        bytes.saturating_add(self.beside_bytes(bytes)) <= self.free_bytes()
    }

    async fn acquire(&self, bytes: u64, wait: Duration) -> Result<Permit, BudgetError> {
        let too_large = BudgetError::TooLarge {
            budget: self.label.name(),
            asked_bytes: bytes,
            capacity_bytes: self.capacity_bytes,
        };
        let units = usize::try_from(units(bytes)).ok().filter(|_| bytes <= self.capacity_bytes).ok_or(too_large)?;
        let party = (Client::current(), SHORT);
        let beside = usize::try_from(self.beside_bytes(bytes) / UNIT_BYTES).unwrap_or(usize::MAX);
        let mut share = pin!(self.shares.take_leaving(party, units, beside));
        let taken = if let Some(taken) = share.as_mut().now_or_never() {
            Ok(taken)
        } else {
            let _waiting = self.wait_begins();
            let since = Instant::now();
            let taken = tokio::time::timeout(wait, share).await;
            trace::record("wait", self.label.name(), since.elapsed());
            taken
        };
        let share = taken.map_err(|_elapsed| self.waited(wait))?;
        Ok(self.lend(share, None))
    }

    fn lend(&self, share: Share, stream: Option<Arc<()>>) -> Permit {
        metrics::budget_taken(self.label, bytes_of(&share));
        Permit { share, label: self.label, stream }
    }

    pub(super) fn waited(&self, waited: Duration) -> BudgetError {
        metrics::request_shed(match self.label {
            metrics::Budget::Slice => Shed::SliceBudget,
            metrics::Budget::Decode => Shed::DecodeBudget,
            metrics::Budget::Transfer => Shed::TransferBudget,
            metrics::Budget::Attributes => Shed::AttributesBudget,
        });
        BudgetError::Waited { budget: self.label.name(), waited }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        (self.shares.free() as u64).saturating_mul(UNIT_BYTES)
    }

    /// Longest wait of an answer that has begun: to cut it costs its client all that it has taken.
    pub(super) fn patience(&self) -> Duration {
        self.wait.saturating_mul(BEGUN_FACTOR).max(BEGUN_LEAST)
    }

    /// `len` bytes: what an older answer left, or else zeros; `true` for zeros. The caller holds a share for them.
    pub(super) fn used_or_zeros(&self, len: usize) -> (Vec<u8>, bool) {
        self.pool.used(len).map_or_else(
            || {
                self.make_room();
                (vec![0; len], true)
            },
            |left| (left, false),
        )
    }

    /// `len` zeros in a buffer that may have been used before. The caller holds a share for them.
    pub(super) fn zeros(&self, len: usize) -> Vec<u8> {
        let (mut data, is_zero) = self.used_or_zeros(len);
        if !is_zero {
            data.fill(0);
        }
        data
    }

    /// A buffer for `len` bytes that may have been used before, with any content. The caller holds a share for it.
    pub(super) fn buffer(&self, len: usize) -> Vec<u8> {
        self.pool.find(len).unwrap_or_else(|| Vec::with_capacity(len))
    }

    /// `data` that gives back its share, and its buffer for others to use, when the last clone of it is dropped.
    pub(super) fn own(&self, data: Vec<u8>, permit: Permit) -> Bytes {
        Bytes::from_owner(Lent { data, permit: Some(permit), budget: self.clone() })
    }

    /// What a stored block is decoded in: the buffer of one of as many bytes that was evicted, where there is one and a buffer is
    /// needed. The caller holds a share for the block.
    pub(super) fn room(&self, stored: &[u8], attributes: &DatasetAttributes, position: &GridPosition) -> Room {
        let is_needed = attributes.compression().codec().is_some_and(|codec| !codec.is_plain());
        let bytes = if is_needed { Block::decoded_bytes(stored, attributes, position).unwrap_or(0) } else { 0 };
        Room { decoded: self.pool.find_exact(bytes).unwrap_or_default(), ..Room::default() }
    }

    /// Keeps buffers for others to use, and gives back their share.
    pub(super) fn keep<const N: usize>(&self, buffers: [Vec<u8>; N], permit: Permit) {
        // The buffers first: who waits for the share may want them.
        let most_bytes = self.free_bytes().saturating_add(permit.bytes());
        for buffer in buffers {
            self.pool.put(buffer, most_bytes);
        }
        drop(permit);
    }

    /// To be called now and then: gives back to the system what nobody uses.
    pub(super) fn tidy(&self) {
        self.pool.tidy();
    }
}

/// A buffer that goes back to the pool.
struct Lent {
    data: Vec<u8>,
    permit: Option<Permit>,
    budget: Budget,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.data);
        if let Some(permit) = self.permit.take() {
            self.budget.keep([data], permit);
        }
    }
}

/// How often a stream that waits looks whether earlier parts of it are still being sent.
const LOOK: Duration = Duration::from_millis(5);

impl Budget {
    /// The most that [`Self::take_for_stream`] gives, in bytes: a quarter is left for short answers.
    pub(super) fn stream_bytes(&self) -> u64 {
        (self.capacity_bytes - self.capacity_bytes / 4).max(1)
    }

    /// Takes a share for a part of a stream, without getting in anybody's way: it lets short answers go first, and leaves a
    /// quarter of the budget free. Waits as long as earlier parts of the stream are being sent, for they are what
    /// it waits for; after that at most `wait`. For memory as [`Self::take_for_buffers`].
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(super) async fn take_for_stream(
        &self,
        bytes: u64,
        stream: &Arc<()>,
        wait: Duration,
    ) -> Result<Permit, BudgetError> {
        let [wanted, all] = [bytes, self.capacity_bytes].map(|n| usize::try_from(units(n)).unwrap_or(usize::MAX));
        let beside = all / 4;
        let mut taking = pin!(self.shares.take_for_stream((Client::current(), STREAM), wanted, beside, stream));
        if let Some(share) = taking.as_mut().now_or_never() {
            return Ok(self.lend(share, Some(Arc::clone(stream))));
        }
        let _waiting = self.wait_begins();
        let mut idle = Duration::ZERO;
        while idle <= wait {
            if let Ok(share) = tokio::time::timeout(LOOK, taking.as_mut()).await {
                return Ok(self.lend(share, Some(Arc::clone(stream))));
            }
            // One is the caller's.
            idle = if Arc::strong_count(stream) > 1 { Duration::ZERO } else { idle + LOOK };
        }
        Err(self.waited(wait))
    }
}
