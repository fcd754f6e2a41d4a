//! Reads pages of listings, with bounded memory.

use super::transport::{ListingError, ListingResponse, ListingTransport};
use crate::runtime::fair_queue::{ClientId, ClientQuota, CostBasis, FairPermit, FairSemaphore};

/// Maximum number of bytes of a page of a bucket: 1,000 keys of 1,024 bytes, with their XML.
pub(super) const MAX_PAGE_BYTES: usize = 4 << 20;

/// Maximum number of bytes of the index of an HTTP server, which has no pages. nginx writes 12.5 MB for 100,000 entries.
pub(super) const MAX_INDEX_BYTES: usize = 16 << 20;

/// Number of bytes that suffice to recognise an index.
pub(super) const INDEX_HEAD_BYTES: usize = 64 << 10;

/// Maximum memory for the pages that listings of one store hold at once.
pub const LISTING_BYTES_PER_STORE: usize = 2 * MAX_INDEX_BYTES;

/// Bytes of one unit of the semaphore.
const UNIT_BYTES: usize = 64 << 10;

/// Memory for the pages of one store. Each store has its own, so that a store that does not answer delays no other.
#[derive(Debug)]
pub(super) struct PageMemory(FairSemaphore);

impl PageMemory {
    pub(super) fn new() -> Self {
        let units = LISTING_BYTES_PER_STORE / UNIT_BYTES;
        // One index fits into both quotas.
        let quota = ClientQuota { alone: units / 4 * 3, among_others: units / 2 };
        Self(FairSemaphore::new(units, quota, CostBasis::Time))
    }

    #[cfg(test)]
    pub(super) fn free_bytes(&self) -> usize {
        self.0.free() * UNIT_BYTES
    }
}

/// A page with its memory.
pub(super) struct Page {
    pub(super) response: ListingResponse,
    _memory: FairPermit,
}

/// Requests the pages of one listing.
#[derive(Clone, Copy)]
pub(super) struct PageReader<'a> {
    pub(super) transport: &'a dyn ListingTransport,
    pub(super) memory: &'a PageMemory,
}

impl PageReader<'_> {
    /// Takes memory for at most `max_bytes` and requests a page.
    ///
    /// # Errors
    /// Returns an error if there is no response.
    pub(super) async fn get(&self, target: &str, max_bytes: usize) -> Result<Page, ListingError> {
        let units = max_bytes.div_ceil(UNIT_BYTES);
        let memory = self.memory.0.acquire(ClientId::current().flow(0), units).await;
        let mut response = self.transport.get(target, max_bytes).await?;
        if response.body.len() > max_bytes {
            response.body.truncate(max_bytes);
            response.is_cut = true;
        }
        Ok(Page { response, _memory: memory })
    }
}
