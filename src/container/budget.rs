//! Shares of memory: whoever holds bytes holds their permit.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::pool::Pool;
use crate::metrics::{self, Shed};

/// Permits are counted in units of this many bytes, so that their number fits a `u32`.
const UNIT_BYTES: u64 = 1024;

/// A bounded amount of memory that is lent out in shares, in the order of asking.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    label: metrics::Budget,
    units: Arc<Semaphore>,
    capacity_bytes: u64,
    wait: Duration,
    /// With what is lent never more than the budget: new memory is not taken before this has made room for it.
    pool: Pool,
}

/// A share of a [`Budget`], given back when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    units: OwnedSemaphorePermit,
    label: metrics::Budget,
    /// Shared by all shares of one stream.
    stream: Option<Arc<()>>,
}

/// Why there is no share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// More than the whole budget was asked for.
    #[error("{asked_bytes} bytes exceed the {budget} budget of {capacity_bytes}")]
    TooLarge {
        /// The budget's configuration key.
        budget: &'static str,
        /// Bytes asked for.
        asked_bytes: u64,
        /// Bytes there are.
        capacity_bytes: u64,
    },
    /// Others kept it for too long.
    #[error("no share of the {budget} budget within {waited:?}")]
    Waited {
        /// The budget's configuration key.
        budget: &'static str,
        /// How long.
        waited: Duration,
    },
}

impl Budget {
    /// A budget of `capacity_bytes`; whoever asks waits at most `wait`.
    pub(super) fn new(label: metrics::Budget, capacity_bytes: u64, wait: Duration) -> Self {
        let units = usize::try_from(units(capacity_bytes)).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        metrics::budget_capacity(label, capacity_bytes);
        Self { label, units: Arc::new(Semaphore::new(units)), capacity_bytes, wait, pool: Pool::default() }
    }

    /// All of it, in bytes.
    pub(super) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Takes a share of `bytes`, waiting for it.
    ///
    /// # Errors
    /// [`BudgetError`] when the budget is too small or others keep it.
    pub(super) async fn take(&self, bytes: u64) -> Result<Permit, BudgetError> {
        self.take_within(bytes, self.wait).await
    }

    /// A share of `bytes` where there is one at once.
    pub(super) fn take_at_once(&self, bytes: u64) -> Option<Permit> {
        let units = Arc::clone(&self.units).try_acquire_many_owned(u32::try_from(units(bytes)).ok()?).ok()?;
        let permit = self.lend(units, None);
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

    async fn acquire(&self, bytes: u64, wait: Duration) -> Result<Permit, BudgetError> {
        let too_large = BudgetError::TooLarge {
            budget: self.label.name(),
            asked_bytes: bytes,
            capacity_bytes: self.capacity_bytes,
        };
        let units = u32::try_from(units(bytes)).ok().filter(|_| bytes <= self.capacity_bytes).ok_or(too_large)?;
        let taken = tokio::time::timeout(wait, Arc::clone(&self.units).acquire_many_owned(units)).await;
        // The semaphore is never closed.
        let Ok(Ok(units)) = taken else {
            metrics::request_shed(match self.label {
                metrics::Budget::Slice => Shed::SliceBudget,
                metrics::Budget::Decode => Shed::DecodeBudget,
                metrics::Budget::Transfer => Shed::TransferBudget,
            });
            return Err(BudgetError::Waited { budget: self.label.name(), waited: wait });
        };
        Ok(self.lend(units, None))
    }

    fn lend(&self, units: OwnedSemaphorePermit, stream: Option<Arc<()>>) -> Permit {
        metrics::budget_taken(self.label, bytes_of(&units));
        Permit { units, label: self.label, stream }
    }

    fn free_bytes(&self) -> u64 {
        (self.units.available_permits() as u64).saturating_mul(UNIT_BYTES)
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

/// How often a stream looks whether there is memory for its next band.
const LOOK: Duration = Duration::from_millis(5);

impl Budget {
    /// The most that [`Self::take_for_stream`] gives, in bytes: a quarter is left for short answers.
    pub(super) fn stream_bytes(&self) -> u64 {
        (self.capacity_bytes - self.capacity_bytes / 4).max(1)
    }

    /// Takes a share for a part of a stream, without getting in anybody's way: it does not queue, and leaves a
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
        let wanted = u32::try_from(units(bytes)).unwrap_or(u32::MAX);
        let reserve = usize::try_from(units(self.capacity_bytes) / 4).unwrap_or(0);
        let mut idle = Duration::ZERO;
        loop {
            let free = self.units.available_permits().saturating_sub(reserve);
            if free >= usize::try_from(wanted).unwrap_or(usize::MAX)
                && let Ok(units) = Arc::clone(&self.units).try_acquire_many_owned(wanted)
            {
                return Ok(self.lend(units, Some(Arc::clone(stream))));
            }
            // One is the caller's.
            idle = if Arc::strong_count(stream) > 1 { Duration::ZERO } else { idle + LOOK };
            if idle > wait {
                metrics::request_shed(Shed::SliceBudget);
                return Err(BudgetError::Waited { budget: self.label.name(), waited: wait });
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Permit {
    /// Bytes of this share.
    pub(super) fn bytes(&self) -> u64 {
        bytes_of(&self.units)
    }

    /// Gives back all but `bytes` of this share.
    pub(super) fn shrink(&mut self, bytes: u64) {
        drop(self.split_off_rest(bytes));
    }

    /// Takes `bytes` out of this share, where it is one of that budget and has as many.
    pub(super) fn split_of(&mut self, label: metrics::Budget, bytes: u64) -> Option<Self> {
        let enough = bytes_of(&self.units) >= bytes && self.label == label;
        enough.then(|| self.split(bytes)).flatten()
    }

    /// Makes one share of two of the same budget.
    pub(super) fn merge(&mut self, mut other: Self) {
        // Taken out first: what is dropped counts as given back.
        if let Some(units) = other.units.split(other.units.num_permits()) {
            self.units.merge(units);
        }
    }

    /// Takes `bytes` of this share out of it, or all there are.
    pub(super) fn split(&mut self, bytes: u64) -> Option<Self> {
        let wanted = usize::try_from(units(bytes)).unwrap_or(usize::MAX).min(self.units.num_permits());
        self.split_units(wanted)
    }

    fn split_off_rest(&mut self, bytes: u64) -> Option<Self> {
        let kept = usize::try_from(units(bytes)).unwrap_or(usize::MAX);
        self.split_units(self.units.num_permits().saturating_sub(kept))
    }

    fn split_units(&mut self, count: usize) -> Option<Self> {
        let all = self.units.num_permits();
        self.units.split(count.min(all)).map(|units| Self { units, label: self.label, stream: self.stream.clone() })
    }

    /// `bytes` that give this share back when the last clone of them is dropped.
    pub(super) fn own<B: AsRef<[u8]> + Send + 'static>(self, bytes: B) -> Bytes {
        Bytes::from_owner(Owned { bytes, _permit: self })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        metrics::budget_returned(self.label, bytes_of(&self.units));
    }
}

struct Owned<B> {
    bytes: B,
    _permit: Permit,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for Owned<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

fn bytes_of(units: &OwnedSemaphorePermit) -> u64 {
    units.num_permits() as u64 * UNIT_BYTES
}

fn units(bytes: u64) -> u64 {
    bytes.div_ceil(UNIT_BYTES)
}

/// The memory that a share of `bytes` stands for: what a cache must count, so that what it holds never
/// exceeds its part of a budget.
pub(super) fn rounded(bytes: usize) -> usize {
    usize::try_from(units(bytes as u64) * UNIT_BYTES).unwrap_or(usize::MAX)
}

/// A share of the slice budget for what is made of a slice, such as its encoded form.
#[derive(Debug)]
pub struct Memory {
    permit: Option<Permit>,
    budget: Budget,
}

impl Memory {
    /// The share, of `budget`; `None` for nothing that needs one.
    pub(super) fn of(permit: Option<Permit>, budget: &Budget) -> Self {
        Self { permit, budget: budget.clone() }
    }

    /// Gives back all but `bytes` of the share.
    pub fn shrink(&mut self, bytes: u64) {
        if let Some(permit) = &mut self.permit {
            permit.shrink(bytes);
        }
    }

    /// A buffer that was used before, with any content, for some of the share; empty where none has room for `bytes`.
    pub fn buffer(&self, bytes: usize) -> Vec<u8> {
        self.budget.pool.find(bytes).unwrap_or_default()
    }

    /// `bytes` that give the share back when the last clone of them is dropped, and their buffer for others to use.
    pub fn own(self, bytes: Bytes) -> Bytes {
        if self.permit.is_some() { Self::own_part(&Arc::new(self), bytes) } else { bytes }
    }

    /// As [`Self::own`], for one of several: the last one gives the share back.
    pub fn own_part(this: &Arc<Self>, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Made { bytes, budget: this.budget.clone(), memory: Some(Arc::clone(this)) })
    }
}

/// Bytes whose buffer goes to the pool, where it is theirs alone.
struct Made {
    bytes: Bytes,
    budget: Budget,
    memory: Option<Arc<Memory>>,
}

impl AsRef<[u8]> for Made {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // The share first: what is kept must fit into what is free.
        drop(self.memory.take());
        if self.bytes.is_unique() {
            self.budget.pool.put(std::mem::take(&mut self.bytes).into(), self.budget.free_bytes());
        }
    }
}
