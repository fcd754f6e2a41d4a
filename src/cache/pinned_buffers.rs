//! Cached bytes that are being sent, with the clients that they are charged to. Bytes that a cache has evicted take
//! memory while they are being sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

use super::footprint::units_of;
use super::permit::Permit;
use crate::fair_queue::{ClientId, ClientQuota, FairPermit, FairSemaphore};

/// Permission to send cached bytes to a client.
#[derive(Debug)]
pub struct SendPermit {
    pub(crate) client: ClientId,
    pub(crate) share: FairPermit,
}

/// The cached buffers that are being sent. Clones are cheap and share them.
#[derive(Debug, Clone)]
pub(crate) struct PinnedBuffers {
    state: Arc<Mutex<PinnedState>>,
    /// The units charged to each client.
    pub(crate) client_shares: FairSemaphore,
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
    pub(crate) fn new(client_shares: FairSemaphore) -> Self {
        Self { state: Arc::default(), client_shares }
    }

    /// Changes the number of units and the quota of one client.
    pub(crate) fn resize(&self, units: usize, client_limit: ClientQuota) {
        self.client_shares.resize(0, units, client_limit);
    }

    fn state(&self) -> MutexGuard<'_, PinnedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins `bytes` of a large object, which are sent under `permit` and are in no cache.
    pub(crate) fn pin_piece(&self, bytes: Bytes, permit: Permit) -> Bytes {
        let mut state = self.state();
        state.bytes = state.bytes.saturating_add(bytes.len() as u64);
        drop(state);
        Bytes::from_owner(PinnedPiece { bytes, pinned: self.clone(), _permit: permit })
    }

    /// Returns the total number of pinned bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// Returns `bytes` under the existing charge if they are already being sent to `client`.
    pub(crate) fn reuse_charge(&self, client: ClientId, bytes: &Bytes) -> Option<Bytes> {
        let state = self.state();
        let buffer = state.buffers.get(&address(bytes))?;
        let share = buffer.clients.iter().find(|(other, _)| *other == client)?.1.upgrade()?;
        drop(state);
        // A part of another length may start at the same address: it is the same memory.
        Some(self.charged_bytes(bytes.clone(), share))
    }

    /// Pins `bytes` for a client that `share` is charged to.
    pub(crate) fn pin(&self, client: ClientId, bytes: Bytes, share: FairPermit) -> Bytes {
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
    use super::*;
    use crate::fair_queue::CostBasis;

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
}
