//! Bytes of caches that are being sent, by whom they are sent to. What a cache evicts is memory as long as anybody sends it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;

use super::budget::Permit;
use crate::fair::{Client, Share};

/// The right to send bytes of a cache to a client.
#[derive(Debug)]
pub struct Turn {
    pub(super) client: Client,
    pub(super) share: Share,
}

/// Cheap to clone; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Pinned(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By the first byte's address: who is sent them, with what counts as each one's.
    buffers: HashMap<usize, Buffer>,
    /// Their lengths, each buffer counted once, and those of pieces of large objects.
    bytes: u64,
}

#[derive(Debug, Default)]
struct Buffer {
    bytes: u64,
    clients: Vec<(Client, Weak<Share>)>,
}

/// Bytes that count as a client's, however many times they are sent to it at once.
struct Sent {
    bytes: Bytes,
    share: Option<Arc<Share>>,
    pinned: Pinned,
}

/// A piece of a large object that is being sent.
struct Passing {
    bytes: Bytes,
    pinned: Pinned,
    _permit: Permit,
}

impl AsRef<[u8]> for Passing {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let mut state = self.pinned.state();
        state.bytes = state.bytes.saturating_sub(self.bytes.len() as u64);
    }
}

impl Pinned {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `bytes` of a large object, which are sent under `permit` and are in no cache.
    pub(super) fn passing(&self, bytes: Bytes, permit: Permit) -> Bytes {
        let mut state = self.state();
        state.bytes = state.bytes.saturating_add(bytes.len() as u64);
        drop(state);
        Bytes::from_owner(Passing { bytes, pinned: self.clone(), _permit: permit })
    }

    /// All of them.
    pub(super) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// `bytes` for a client that they are being sent to already.
    pub(super) fn again(&self, client: Client, bytes: &Bytes) -> Option<Bytes> {
        let state = self.state();
        let buffer = state.buffers.get(&address(bytes))?;
        let share = buffer.clients.iter().find(|(known, _)| *known == client)?.1.upgrade()?;
        drop(state);
        // A part of another length may begin there as well: it is the same memory.
        Some(self.sent(bytes.clone(), share))
    }

    /// `bytes` for a client, as whose `share` they count.
    pub(super) fn add(&self, client: Client, bytes: Bytes, share: Share) -> Bytes {
        let share = Arc::new(share);
        let mut state = self.state();
        let State { buffers, bytes: all } = &mut *state;
        let buffer = buffers.entry(address(&bytes)).or_default();
        if buffer.clients.is_empty() {
            buffer.bytes = bytes.len() as u64;
            *all = all.saturating_add(buffer.bytes);
        }
        buffer.clients.push((client, Arc::downgrade(&share)));
        drop(state);
        self.sent(bytes, share)
    }

    fn sent(&self, bytes: Bytes, share: Arc<Share>) -> Bytes {
        Bytes::from_owner(Sent { bytes, share: Some(share), pinned: self.clone() })
    }
}

fn address(bytes: &Bytes) -> usize {
    bytes.as_ptr().addr()
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let Some(share) = self.share.take() else { return };
        let mut state = self.pinned.state();
        // Under the lock: nobody finds it again who would not be counted.
        let last = Arc::into_inner(share);
        if last.is_some() {
            let State { buffers, bytes: all } = &mut *state;
            if let Some(buffer) = buffers.get_mut(&address(&self.bytes)) {
                buffer.clients.retain(|(_, share)| share.strong_count() > 0);
                if buffer.clients.is_empty() {
                    *all = all.saturating_sub(buffer.bytes);
                    buffers.remove(&address(&self.bytes));
                }
            }
        }
        drop(state);
        // It wakes others.
        drop(last);
    }
}

#[cfg(test)]
mod tests {
    use crate::fair::{Cost, Most, Shares};

    use super::*;

    #[test]
    fn a_buffer_counts_once_for_each_client_as_long_as_it_is_sent_to_it() {
        let shares = Shares::new(100, Most { alone: 50, among_others: 50 }, Cost::Units);
        let (pinned, bytes) = (Pinned::default(), Bytes::from(vec![3; 1000]));
        let [one, two] = [1, 2].map(Client::new);
        let count = |client| shares.try_count((client, 0), 30);
        assert!(pinned.again(one, &bytes).is_none());
        let first = pinned.add(one, bytes.clone(), count(one).unwrap());
        assert_eq!(first.as_ptr(), bytes.as_ptr());
        let second = pinned.again(one, &bytes).unwrap();
        assert!(pinned.again(two, &bytes).is_none());
        let other = pinned.add(two, bytes.clone(), count(two).unwrap());
        assert_eq!(pinned.bytes(), 1000);
        assert!(count(one).is_none() && count(two).is_none());
        drop(first);
        assert!(count(one).is_none() && pinned.again(one, &bytes).is_some());
        drop(second);
        assert!(count(one).is_some() && pinned.again(one, &bytes).is_none());
        assert_eq!(pinned.bytes(), 1000);
        drop(other);
        assert!(pinned.bytes() == 0 && pinned.state().buffers.is_empty());
    }
}
