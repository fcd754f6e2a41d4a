//! Charges for cached bytes that are being sent to a client.

use std::pin::pin;
use std::time::Instant;

use bytes::Bytes;

use super::budget::{Budget, SHORT_FLOW};
use super::error::BudgetError;
use super::footprint::units_of;
use super::pinned_buffers::SendPermit;
use crate::fair_queue::ClientId;
use crate::metrics;
use crate::trace;

impl Budget {
    /// Charges `bytes` to `client` while they are being sent. A cache holds a permit for their memory, or held one
    /// until it evicted them. The charge keeps a client that does not read from occupying all of the memory. Returns
    /// `None` if the client does not read what it requested before. The caller must then wait for a
    /// [permit](Self::acquire_send_permit) without holding `bytes`.
    pub(crate) fn charge_to_client(&self, client: ClientId, bytes: &Bytes) -> Option<Bytes> {
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
    pub(crate) async fn acquire_send_permit(&self, len: usize) -> Result<SendPermit, BudgetError> {
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
    pub(crate) fn charge_with_permit(&self, permit: SendPermit, bytes: Bytes) -> Bytes {
        self.pinned.pin(permit.client, bytes, permit.share)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
