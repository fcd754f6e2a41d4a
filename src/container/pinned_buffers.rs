//! Cached bytes that are being sent, with the clients that they are charged to. Bytes that a cache has evicted take
//! memory while they are being sent.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use bytes::Bytes;

use super::BudgetError;
use super::budget::{Budget, SHORT_FLOW};
use super::footprint::units_of;
use super::permit::Permit;
use crate::fair_queue::{ClientId, ClientQuota, FairPermit, FairSemaphore};
use crate::{metrics, trace};

/// Permission to send cached bytes to a client.
#[derive(Debug)]
pub struct SendPermit {
    pub(super) client: ClientId,
    pub(super) share: FairPermit,
}

/// The cached buffers that are being sent. Clones are cheap and share them.
#[derive(Debug, Clone)]
pub(super) struct PinnedBuffers {
    state: Arc<Mutex<PinnedState>>,
    /// The units charged to each client.
    client_shares: FairSemaphore,
}

#[derive(Debug, Default)]
struct PinnedState {
    /// Buffers by the address of their first byte.
    buffers: HashMap<usize, PinnedBuffer>,
    /// Total length of the buffers, each counted once, and of the pieces of large objects.
    bytes: u64,
}

#[derive(Debug, Default)]
struct PinnedBuffer {
    bytes: u64,
    clients: Vec<(ClientId, Weak<FairPermit>)>,
}

/// Bytes charged once to a client, even if they are sent to it several times concurrently.
struct ChargedBytes {
    bytes: Bytes,
    share: Option<Arc<FairPermit>>,
    pinned: PinnedBuffers,
}

/// A piece of a large object that is being sent.
struct PinnedPiece {
    bytes: Bytes,
    pinned: PinnedBuffers,
    _permit: Permit,
}

impl AsRef<[u8]> for PinnedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PinnedPiece {
    fn drop(&mut self) {
        let mut state = self.pinned.state();
        state.bytes = state.bytes.saturating_sub(self.bytes.len() as u64);
    }
}

impl PinnedBuffers {
    /// Creates an empty set, which charges clients in `counts`.
    pub(super) fn new(client_shares: FairSemaphore) -> Self {
        Self { state: Arc::default(), client_shares }
    }

    /// Changes the number of units and the quota of one client.
    pub(super) fn resize(&self, units: usize, client_limit: ClientQuota) {
        self.client_shares.resize(0, units, client_limit);
    }

    fn state(&self) -> MutexGuard<'_, PinnedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins `bytes` of a large object, which are sent under `permit` and are in no cache.
    pub(super) fn pin_piece(&self, bytes: Bytes, permit: Permit) -> Bytes {
        let mut state = self.state();
        state.bytes = state.bytes.saturating_add(bytes.len() as u64);
        drop(state);
        Bytes::from_owner(PinnedPiece { bytes, pinned: self.clone(), _permit: permit })
    }

    /// Returns the total number of pinned bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// Returns `bytes` under the existing charge if they are already being sent to `client`.
    pub(super) fn reuse_charge(&self, client: ClientId, bytes: &Bytes) -> Option<Bytes> {
        let state = self.state();
        let buffer = state.buffers.get(&address(bytes))?;
        let share = buffer.clients.iter().find(|(other, _)| *other == client)?.1.upgrade()?;
        drop(state);
        // A part of another length may start at the same address: it is the same memory.
        Some(self.charged_bytes(bytes.clone(), share))
    }

    /// Pins `bytes` for a client that `share` is charged to.
    pub(super) fn pin(&self, client: ClientId, bytes: Bytes, share: FairPermit) -> Bytes {
        let share = Arc::new(share);
        let mut state = self.state();
        let PinnedState { buffers, bytes: total_bytes } = &mut *state;
        let buffer = buffers.entry(address(&bytes)).or_default();
        if buffer.clients.is_empty() {
            buffer.bytes = bytes.len() as u64;
            *total_bytes = total_bytes.saturating_add(buffer.bytes);
            self.client_shares.occupy(units_of(bytes.len()));
        }
        buffer.clients.push((client, Arc::downgrade(&share)));
        drop(state);
        self.charged_bytes(bytes, share)
    }

    fn charged_bytes(&self, bytes: Bytes, share: Arc<FairPermit>) -> Bytes {
        Bytes::from_owner(ChargedBytes { bytes, share: Some(share), pinned: self.clone() })
    }
}

impl Budget {
    /// Charges `bytes` to `client` while they are being sent. A cache holds a permit for their memory, or held one
    /// until it evicted them. The charge keeps a client that does not read from occupying all of the memory. Returns
    /// `None` if the client does not read what it requested before. The caller must then wait for a
    /// [permit](Self::acquire_send_permit) without holding `bytes`.
    pub(super) fn charge_to_client(&self, client: ClientId, bytes: &Bytes) -> Option<Bytes> {
        if let Some(charged) = self.pinned.reuse_charge(client, bytes) {
            return Some(charged);
        }
        let share = self.pinned.client_shares.try_charge((client, SHORT_FLOW), units_of(bytes.len()))?;
        Some(self.pinned.pin(client, bytes.clone(), share))
    }

    /// Waits until `len` bytes may be charged to the current client. Times out only if no other response could be
    /// charged to the client during the longest wait.
    ///
    /// # Errors
    /// [`BudgetError`] when the client does not read what it requested before.
    pub(super) async fn acquire_send_permit(&self, len: usize) -> Result<SendPermit, BudgetError> {
        let client = ClientId::current();
        // Not counted among the waiters for memory, since it needs none.
        let _waiting = metrics::QueueWaitTimer::begin(metrics::QueueLabel::for_budget(self.label));
        let started = Instant::now();
        let mut share = pin!(self.pinned.client_shares.charge((client, SHORT_FLOW), units_of(len)));
        let share = loop {
            let service_before = self.pinned.client_shares.service_received((client, SHORT_FLOW));
            let result = tokio::time::timeout(self.max_wait, share.as_mut()).await;
            // Earlier responses to the client were charged meanwhile: it is slow, but reads them.
            if result.is_ok() || self.pinned.client_shares.service_received((client, SHORT_FLOW)) <= service_before {
                break result;
            }
        };
        trace::record("wait", self.label.name(), started.elapsed());
        Ok(SendPermit { client, share: share.map_err(|_elapsed| self.timed_out(self.max_wait))? })
    }

    /// As [`Self::charge_to_client`], with a permit that was acquired before.
    pub(super) fn charge_with_permit(&self, permit: SendPermit, bytes: Bytes) -> Bytes {
        self.pinned.pin(permit.client, bytes, permit.share)
    }
}

fn address(bytes: &Bytes) -> usize {
    bytes.as_ptr().addr()
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for ChargedBytes {
    fn drop(&mut self) {
        let Some(share) = self.share.take() else { return };
        let mut state = self.pinned.state();
        // Dropped under the lock, so that `reuse_charge` does not find a charge that is about to end.
        let last = Arc::into_inner(share);
        let mut unpinned = 0;
        if last.is_some() {
            let PinnedState { buffers, bytes: total_bytes } = &mut *state;
            if let Some(buffer) = buffers.get_mut(&address(&self.bytes)) {
                buffer.clients.retain(|(_, share)| share.strong_count() > 0);
                if buffer.clients.is_empty() {
                    *total_bytes = total_bytes.saturating_sub(buffer.bytes);
                    unpinned = buffer.bytes;
                    buffers.remove(&address(&self.bytes));
                }
            }
        }
        drop(state);
        // Both wake waiters.
        self.pinned.client_shares.vacate(units_of(usize::try_from(unpinned).unwrap_or(usize::MAX)));
        drop(last);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::fair_queue::{ClientQuota, CostBasis};

    use super::*;

    #[test]
    fn a_buffer_counts_once_per_client_while_it_is_sent() {
        let shares = FairSemaphore::new(100, ClientQuota { alone: 50, among_others: 50 }, CostBasis::Units);
        let (pinned, bytes) = (PinnedBuffers::new(shares.clone()), Bytes::from(vec![3; 1000]));
        let [client_a, client_b] = [1, 2].map(ClientId::new);
        let charge = |client| shares.try_charge((client, 0), 30);
        assert!(pinned.reuse_charge(client_a, &bytes).is_none());
        let first = pinned.pin(client_a, bytes.clone(), charge(client_a).unwrap());
        assert_eq!(first.as_ptr(), bytes.as_ptr());
        let second = pinned.reuse_charge(client_a, &bytes).unwrap();
        assert!(pinned.reuse_charge(client_b, &bytes).is_none());
        let other = pinned.pin(client_b, bytes.clone(), charge(client_b).unwrap());
        assert_eq!(pinned.bytes(), 1000);
        assert!(charge(client_a).is_none() && charge(client_b).is_none());
        drop(first);
        assert!(charge(client_a).is_none() && pinned.reuse_charge(client_a, &bytes).is_some());
        drop(second);
        assert!(charge(client_a).is_some() && pinned.reuse_charge(client_a, &bytes).is_none());
        assert_eq!(pinned.bytes(), 1000);
        drop(other);
        assert!(pinned.bytes() == 0 && pinned.state().buffers.is_empty());
    }

    #[test]
    fn clients_that_read_nothing_leave_memory_to_others() {
        let budget = Budget::new(metrics::BudgetLabel::Transfer, 256 << 10, Duration::ZERO);
        let mut charged = Vec::new();
        for _ in 0..256 {
            charged.extend(
                (1..=3).filter_map(|client| {
                    budget.charge_to_client(ClientId::new(client), &Bytes::from(vec![0; 1 << 10]))
                }),
            );
        }
        // Three eighths for each client would exceed the budget.
        let free_bytes = budget.capacity_bytes() - budget.pinned.bytes();
        assert!((64 << 10..128 << 10).contains(&free_bytes), "{free_bytes}");
        assert!(budget.charge_to_client(ClientId::new(4), &Bytes::from(vec![0; 9 << 10])).is_some());
        // Bytes that are sent to several clients count once.
        let (shared, before) = (Bytes::from(vec![0; 8 << 10]), budget.pinned.bytes());
        let sent: Vec<_> =
            (5..105).map(|client| budget.charge_to_client(ClientId::new(client), &shared).unwrap()).collect();
        assert_eq!(budget.pinned.bytes() - before, 8 << 10);
        drop((charged, sent));
        assert!(
            budget.pinned.bytes() == 0
                && budget.charge_to_client(ClientId::new(1), &Bytes::from(vec![0; 96 << 10])).is_some()
        );
    }

    #[tokio::test]
    async fn the_wait_for_a_send_permit_lasts_as_long_as_the_client_reads_others() {
        let budget = Budget::new(metrics::BudgetLabel::Transfer, 64 << 10, Duration::from_secs(2));
        let client = ClientId::new(1);
        let bytes = |n: usize| Bytes::from(vec![0; n << 10]);
        let charged = budget.charge_to_client(client, &bytes(24)).unwrap();
        // Served one after the other. Each holds its charge for so long that the last one waits longer than the
        // budget's `wait`.
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let budget = budget.clone();
                tokio::spawn(client.scope(async move {
                    let sent = budget.charge_with_permit(
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
}
