//! What is known of a stored block: its elements, that there is none, or why it does not decode.

use std::sync::Arc;

use super::fresh::Checked;
use super::{Dataset, ReadError};
use crate::n5::{Block, BlockError, Coords, GridPosition};
use crate::store::Meta;

/// A decoded block, or the hole where there is none.
#[derive(Debug)]
pub(super) struct Loaded {
    /// `None` for a hole.
    pub(super) block: Option<Block>,
    /// Why the stored block cannot be decoded; then there is none, and no hole either.
    pub(super) fault: Option<Box<BlockError>>,
    /// Entity tag and version of the stored block.
    pub(super) stored: Option<(Arc<str>, u64)>,
    pub(super) checked: Checked,
}

impl Loaded {
    /// A block of the stored object that `meta` describes, compared with the store at the moment `checked`.
    pub(super) fn new(block: Block, meta: Meta, checked: u64) -> Self {
        let stored = Some((meta.etag, meta.version));
        Self { block: Some(block), fault: None, stored, checked: Checked::at(checked) }
    }

    /// The stored object that `meta` describes, which does not decode, as compared with the store at the moment `checked`.
    pub(super) fn faulty(fault: BlockError, meta: Meta, checked: u64) -> Self {
        let stored = Some((meta.etag, meta.version));
        Self { block: None, fault: Some(Box::new(fault)), stored, checked: Checked::at(checked) }
    }

    /// `Ok` where it is a block that decodes, or a hole.
    pub(super) fn sound(&self, dataset: &Dataset, position: &GridPosition) -> Result<(), ReadError> {
        let Some(fault) = &self.fault else { return Ok(()) };
        let (key, position) = (dataset.block_key(position), position.clone());
        Err(ReadError::Block { key, position, error: (**fault).clone() })
    }

    /// Whether nothing is stored.
    pub(super) fn is_hole(&self) -> bool {
        self.block.is_none() && self.fault.is_none()
    }

    /// No block, as found at the moment `checked`.
    pub(super) fn hole(checked: u64) -> Self {
        Self { block: None, fault: None, stored: None, checked: Checked::at(checked) }
    }

    /// When it was last known to equal what the store holds.
    pub(super) fn checked(&self) -> u64 {
        self.checked.moment()
    }

    pub(super) fn version(&self) -> Option<u64> {
        self.stored.as_ref().map(|(_, version)| *version)
    }

    /// Whether the block consists of exactly these elements.
    pub(super) fn is_exactly(&self, size: &Coords) -> Option<&Block> {
        self.block.as_ref().filter(|block| block.size == *size)
    }
}
