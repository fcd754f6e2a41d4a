//! Permits of the slice budget for other modules, which produce data from slices.

use std::sync::Arc;

use bytes::Bytes;

use super::budget::Budget;
use super::permit::Permit;

/// A permit of the slice budget for data produced from a slice, such as its encoded form.
#[derive(Debug)]
pub struct MemoryPermit {
    permit: Option<Permit>,
    budget: Budget,
}

impl MemoryPermit {
    /// Wraps `permit`, a permit of `budget`; `None` for data that needs none.
    pub(crate) fn new(permit: Option<Permit>, budget: &Budget) -> Self {
        Self { permit, budget: budget.clone() }
    }

    /// Gives back all but `bytes` of the permit.
    pub fn shrink(&mut self, bytes: u64) {
        if let Some(permit) = &mut self.permit {
            permit.shrink(bytes);
        }
    }

    /// Takes a buffer with room for `bytes` and arbitrary content from the pool, for part of the permitted memory.
    /// Returns an empty vector if the pool has none.
    pub fn pooled_buffer(&self, bytes: usize) -> Vec<u8> {
        self.budget.pool.take(bytes).unwrap_or_default()
    }

    /// Attaches the permit to `bytes`. When the last clone is dropped, the permit is given back and the buffer returns
    /// to the pool.
    pub fn own(self, bytes: Bytes) -> Bytes {
        if self.permit.is_some() { Self::own_part(&Arc::new(self), bytes) } else { bytes }
    }

    /// As [`Self::own`], for one of several parts. The last part gives the permit back.
    pub fn own_part(this: &Arc<Self>, bytes: Bytes) -> Bytes {
        Bytes::from_owner(PooledBytes { bytes, budget: this.budget.clone(), memory: Some(Arc::clone(this)) })
    }
}

/// Bytes whose buffer returns to the pool unless it is shared.
struct PooledBytes {
    bytes: Bytes,
    budget: Budget,
    memory: Option<Arc<MemoryPermit>>,
}

impl AsRef<[u8]> for PooledBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PooledBytes {
    fn drop(&mut self) {
        // The permit first: pooled buffers must fit into the free memory.
        drop(self.memory.take());
        if self.bytes.is_unique() {
            self.budget.pool.put(std::mem::take(&mut self.bytes).into(), self.budget.free_bytes());
        }
    }
}
