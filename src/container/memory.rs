//! Memory for responses: permits of the slice budget, and charges for bytes that are being sent.

use std::future::Future;

use bytes::Bytes;

use super::handle::Container;
use crate::cache::backpressure::yield_if_contended;
use crate::cache::error::{BudgetError, ReadError};
use crate::cache::memory_permit::MemoryPermit;
use crate::cache::permit::Permit;
use crate::cache::pinned_buffers::SendPermit;
use crate::fair_queue::ClientId;
use crate::metrics::{self, ShedReason};
use crate::store::{Key, StoreError};

/// Bodies shorter than this are not charged to the client that they are sent to: the kernel takes them at once.
const UNCHARGED_BYTES: usize = 4 << 10;

impl Container {
    /// Returns true if requests wait for the store and it has not answered any for a second or more.
    pub fn is_store_unresponsive(&self) -> bool {
        self.store.current_load().is_unresponsive()
    }

    /// Reserves `bytes` of the slice budget for a response that is not a slice.
    ///
    /// # Errors
    /// [`ReadError::Budget`] when the budget is smaller than `bytes` or other requests hold the memory for too long.
    /// [`ReadError::Store`] when the memory is not free and the store does not respond.
    pub async fn reserve_memory(&self, bytes: u64) -> Result<MemoryPermit, ReadError> {
        let budget = &self.resources.slice_budget;
        Ok(MemoryPermit::new(Some(self.slice_permit(bytes, budget.take(bytes)).await?), budget))
    }

    /// Returns a permit for `bytes` of the slice budget, which `acquire` waits for. If the store does not respond,
    /// returns a permit only if the memory is free at once: the request would hold it in vain.
    ///
    /// # Errors
    /// [`BudgetError`] and [`StoreError::Stalled`].
    pub(crate) async fn slice_permit(
        &self,
        bytes: u64,
        acquire: impl Future<Output = Result<Permit, BudgetError>>,
    ) -> Result<Permit, ReadError> {
        if !self.is_store_unresponsive() {
            return Ok(acquire.await?);
        }
        self.resources.slice_budget.try_take(bytes).ok_or_else(|| {
            metrics::request_shed(ShedReason::Storage);
            StoreError::Stalled("read", Key::root()).into()
        })
    }

    /// Waits for `work`, which reads below `key` while it holds memory from [`Self::reserve_memory`]. Gives up if the
    /// store keeps it waiting and requests of other containers need that memory.
    ///
    /// # Errors
    /// [`StoreError::Preempted`] when it gives up, and the errors of `work`.
    pub async fn yield_if_contended<T, E: From<ReadError>>(
        &self,
        key: &Key,
        work: impl Future<Output = Result<T, E>> + Unpin,
    ) -> Result<T, E> {
        yield_if_contended(|| self.store.current_load(), &self.resources.slice_budget, key, work).await?
    }

    /// Charges `bytes` to `client` while they are being sent to it. They belong to a stored object or to a result
    /// derived from one. Returns `None` if the client has too many unsent bytes already. The caller must then drop
    /// `bytes`, wait for a [permit](Self::acquire_send_permit) and look them up again.
    pub fn charge_to_client(&self, client: ClientId, bytes: &Bytes) -> Option<Bytes> {
        if bytes.len() < UNCHARGED_BYTES {
            Some(bytes.clone())
        } else {
            self.resources.objects.memory.budget.charge_to_client(client, bytes)
        }
    }

    /// Waits until `len` more bytes may be sent to the current client.
    ///
    /// # Errors
    /// [`ReadError::Budget`] when the client does not read what it requested before.
    pub async fn acquire_send_permit(&self, len: usize) -> Result<SendPermit, ReadError> {
        Ok(self.resources.objects.memory.budget.acquire_send_permit(len).await?)
    }

    /// As [`Self::charge_to_client`], with a permit that was acquired before.
    pub fn charge_with_permit(&self, permit: SendPermit, bytes: Bytes) -> Bytes {
        self.resources.objects.memory.budget.charge_with_permit(permit, bytes)
    }
}
