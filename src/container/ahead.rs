//! How far ahead one request looks up and loads blocks. Each costs some kilobytes that no budget counts, so that requests go step by
//! step while others wait for memory to decode in.

use super::budget::Budget;

/// Blocks of one request that are loaded at once.
pub(super) const LOADS: usize = 8;

/// Cached blocks that one slice looks up and pastes at once.
const LOOKED_UP: u64 = 256;

/// The same while requests wait for memory.
const LOOKED_UP_WHILE_OTHERS_WAIT: u64 = 16;

/// Decoded bytes of the blocks that one slice looks up at once, where that is fewer.
const LOOKED_UP_BYTES: u64 = 32 << 20;

impl Budget {
    /// How many blocks a request loads at once, at least one.
    pub(super) fn loads_at_once(&self) -> usize {
        if self.is_waited_for() { 1 } else { LOADS }
    }

    /// How many blocks of `block_bytes` a slice looks up at once, at least one.
    pub(super) fn looked_up_at_once(&self, block_bytes: u64) -> usize {
        let most = if self.is_waited_for() { LOOKED_UP_WHILE_OTHERS_WAIT } else { LOOKED_UP };
        usize::try_from((LOOKED_UP_BYTES / block_bytes.max(1)).clamp(1, most)).unwrap_or(1)
    }
}
