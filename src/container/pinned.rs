//! Bytes of caches that are being sent, by whom they are sent to. What a cache evicts is memory as long as anybody sends it.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use bytes::Bytes;

use super::BudgetError;
use super::budget::{Budget, SHORT};
use super::footprint::units_of;
use super::permit::Permit;
use crate::fair::{Client, Most, Share, Shares};
use crate::{metrics, trace};

/// The right to send bytes of a cache to a client.
#[derive(Debug)]
pub struct Turn {
    pub(super) client: Client,
    pub(super) share: Share,
}

/// Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Pinned {
    state: Arc<Mutex<State>>,
    /// What counts as each client's.
    counts: Shares,
}

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
    /// Nothing that is sent; what will be counts in `counts`.
    pub(super) fn new(counts: Shares) -> Self {
        Self { state: Arc::default(), counts }
    }

    /// Changes the number of units, and the most that one client may have.
    pub(super) fn resize(&self, units: usize, most: Most) {
        self.counts.resize(0, units, most);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
            self.counts.occupy(units_of(bytes.len()));
        }
        buffer.clients.push((client, Arc::downgrade(&share)));
        drop(state);
        self.sent(bytes, share)
    }

    fn sent(&self, bytes: Bytes, share: Arc<Share>) -> Bytes {
        Bytes::from_owner(Sent { bytes, share: Some(share), pinned: self.clone() })
    }
}

impl Budget {
    /// `bytes` to be sent to `client`, which may be slow to take them: of memory that a cache has a share of, or had until it
    /// needed the room. As long as they are sent they count as the client's, so that it cannot keep all of the memory by not
    /// reading. `None` where it does not take what it asked for before: then wait for its [`turn`](Self::turn), without holding
    /// these.
    pub(super) fn sent(&self, client: Client, bytes: &Bytes) -> Option<Bytes> {
        if let Some(sent) = self.pinned.again(client, bytes) {
            return Some(sent);
        }
        let share = self.pinned.counts.try_count((client, SHORT), units_of(bytes.len()))?;
        Some(self.pinned.add(client, bytes.clone(), share))
    }

    /// Waits until so many bytes may count as the current client's: as long as it takes others of its answers, one at least in
    /// the longest wait.
    ///
    /// # Errors
    /// [`BudgetError`] when it does not take what it asked for before.
    pub(super) async fn turn(&self, len: usize) -> Result<Turn, BudgetError> {
        let client = Client::current();
        // Not counted among those that wait for memory: it needs none.
        let _waiting = metrics::Waiting::begin(metrics::Queue::of(self.label));
        let since = Instant::now();
        let mut share = pin!(self.pinned.counts.count((client, SHORT), units_of(len)));
        let share = loop {
            let before = self.pinned.counts.given((client, SHORT));
            let waited = tokio::time::timeout(self.wait, share.as_mut()).await;
            // Those of its answers that came first have had their turn meanwhile: it is slow, but takes them.
            if waited.is_ok() || self.pinned.counts.given((client, SHORT)) <= before {
                break waited;
            }
        };
        trace::record("wait", self.label.name(), since.elapsed());
        Ok(Turn { client, share: share.map_err(|_elapsed| self.waited(self.wait))? })
    }

    /// As [`Self::sent`], of bytes whose turn it is.
    pub(super) fn sent_in_turn(&self, turn: Turn, bytes: Bytes) -> Bytes {
        self.pinned.add(turn.client, bytes, turn.share)
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
        let mut unpinned = 0;
        if last.is_some() {
            let State { buffers, bytes: all } = &mut *state;
            if let Some(buffer) = buffers.get_mut(&address(&self.bytes)) {
                buffer.clients.retain(|(_, share)| share.strong_count() > 0);
                if buffer.clients.is_empty() {
                    *all = all.saturating_sub(buffer.bytes);
                    unpinned = buffer.bytes;
                    buffers.remove(&address(&self.bytes));
                }
            }
        }
        drop(state);
        // Both wake others.
        self.pinned.counts.vacate(units_of(usize::try_from(unpinned).unwrap_or(usize::MAX)));
        drop(last);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::fair::{Cost, Most};

    use super::*;

    #[test]
    fn a_buffer_counts_once_for_each_client_as_long_as_it_is_sent_to_it() {
        let shares = Shares::new(100, Most { alone: 50, among_others: 50 }, Cost::Units);
        let (pinned, bytes) = (Pinned::new(shares.clone()), Bytes::from(vec![3; 1000]));
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

    #[test]
    fn clients_that_take_nothing_leave_some_of_the_memory_to_others() {
        let budget = Budget::new(metrics::Budget::Transfer, 256 << 10, Duration::ZERO);
        let mut held = Vec::new();
        for _ in 0..256 {
            held.extend((1..=3).filter_map(|client| budget.sent(Client::new(client), &Bytes::from(vec![0; 1 << 10]))));
        }
        // Three eighths each would be more than there is.
        let left = budget.capacity_bytes() - budget.pinned.bytes();
        assert!((64 << 10..128 << 10).contains(&left), "{left}");
        assert!(budget.sent(Client::new(4), &Bytes::from(vec![0; 9 << 10])).is_some());
        // What is sent to several is there once.
        let (shared, before) = (Bytes::from(vec![0; 8 << 10]), budget.pinned.bytes());
        let sent: Vec<_> = (5..105).map(|client| budget.sent(Client::new(client), &shared).unwrap()).collect();
        assert_eq!(budget.pinned.bytes() - before, 8 << 10);
        drop((held, sent));
        assert!(budget.pinned.bytes() == 0 && budget.sent(Client::new(1), &Bytes::from(vec![0; 96 << 10])).is_some());
    }

    #[tokio::test]
    async fn a_turn_is_waited_for_as_long_as_the_client_takes_others() {
        let budget = Budget::new(metrics::Budget::Transfer, 64 << 10, Duration::from_secs(2));
        let client = Client::new(1);
        let bytes = |n: usize| Bytes::from(vec![0; n << 10]);
        let held = budget.sent(client, &bytes(24)).unwrap();
        // One after the other, each sent for so long that the last waits twice as long as any may for the next.
        let asked: Vec<_> = (0..4)
            .map(|_| {
                let budget = budget.clone();
                tokio::spawn(client.works(async move {
                    let sent = budget.sent_in_turn(budget.turn(24 << 10).await?, Bytes::from(vec![0; 24 << 10]));
                    tokio::time::sleep(Duration::from_millis(800)).await;
                    drop(sent);
                    Ok::<_, BudgetError>(())
                }))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(800)).await;
        drop(held);
        for asked in asked {
            asked.await.unwrap().unwrap();
        }
        let _held = budget.sent(client, &bytes(24)).unwrap();
        let begun = Instant::now();
        assert!(client.works(budget.turn(24 << 10)).await.is_err() && begun.elapsed() < Duration::from_secs(20));
    }
}
