//! Shares of memory that leave this module: for what is made of a slice.

use std::sync::Arc;

use bytes::Bytes;

use super::budget::Budget;
use super::permit::Permit;
use super::{ReadError, Resources};

/// A share of the slice budget for what is made of a slice, such as its encoded form.
#[derive(Debug)]
pub struct Memory {
    permit: Option<Permit>,
    budget: Budget,
}

impl Resources {
    /// Most bytes of a share of the slice budget that passes larger ones, which wait for slow clients, where four times as much
    /// is left free beside it.
    pub fn small_bytes(&self) -> u64 {
        self.slice_budget.small_bytes()
    }

    /// A share of the slice budget where `bytes` of it are free; `None` where others hold them or wait for them.
    pub fn memory_at_once(&self, bytes: u64) -> Option<Memory> {
        let permit = self.slice_budget.take_at_once(bytes)?;
        Some(Memory::of(Some(permit), &self.slice_budget))
    }

    /// A share of the slice budget for an answer that reads no container.
    ///
    /// # Errors
    /// [`ReadError::Budget`] when the budget has fewer `bytes` or others keep them for too long.
    pub async fn memory(&self, bytes: u64) -> Result<Memory, ReadError> {
        Ok(Memory::of(Some(self.slice_budget.take(bytes).await?), &self.slice_budget))
    }
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
