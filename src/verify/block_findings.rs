//! Findings about one block, from its decode error or from the decoded block.

use super::finding::{Finding, FindingKind};
use crate::cache::{Dataset, ReadError};
use crate::read::ValidBlock;
use n5_format::{BlockError, BlockMode, CodecError, GridPosition};

/// Returns a finding if a block that decodes is unusual.
pub(super) fn decoded_block_finding(dataset: &Dataset, position: &GridPosition, block: &ValidBlock) -> Option<Finding> {
    let new_finding = |kind, message: String| Some(block_finding(kind, dataset, position, message));
    let cell_size = dataset.attributes.grid().clipped_size(position);
    if block.size.iter().zip(&cell_size).any(|(size, min_size)| size < min_size) {
        let (size, cell_size) = (block.size.as_slice(), cell_size.as_slice());
        return new_finding(
            FindingKind::SmallBlock,
            format!("the block has the size {size:?}, but its grid cell has the size {cell_size:?}"),
        );
    }
    match block.mode {
        Some(BlockMode::VarLength) => {
            new_finding(FindingKind::VarlengthBlock, "the block is of mode 1 (varlength)".to_owned())
        }
        Some(BlockMode::Default | BlockMode::Object) | None => None,
    }
}

/// Returns the finding for a block that could not be read or decoded.
pub(super) fn failed_block_finding(dataset: &Dataset, position: &GridPosition, error: &ReadError) -> Finding {
    let block = match error {
        ReadError::Block { error, .. } => error,
        ReadError::StoredTooLarge { bytes, .. } => {
            let needed_bytes = bytes.saturating_mul(2);
            return over_budget_finding(dataset, position, error.to_string(), needed_bytes);
        }
        ReadError::NotFound(_)
        | ReadError::NotADataset { .. }
        | ReadError::AttributesTooLarge { .. }
        | ReadError::TooLarge(_)
        | ReadError::InvalidParameter { .. }
        | ReadError::NotRepresentable(_)
        | ReadError::Convert(_)
        | ReadError::Store(_)
        | ReadError::Budget(_)
        | ReadError::Internal(_) => {
            return block_finding(FindingKind::UnreadableFile, dataset, position, error.to_string());
        }
    };
    let kind = match block {
        BlockError::ShortHeader { bytes: 0, .. } => FindingKind::EmptyBlock,
        BlockError::ShortHeader { .. } | BlockError::Implausible { .. } => FindingKind::TruncatedBlock,
        BlockError::UnknownMode(_) => FindingKind::UnknownMode,
        BlockError::Rank { .. } => FindingKind::WrongRank,
        BlockError::TooLargeForGrid { .. } => FindingKind::OversizedBlock,
        BlockError::Unsupported(_) => FindingKind::UndecodableBlock,
        BlockError::OverLimit { needed_bytes, .. } => {
            return over_budget_finding(dataset, position, block.to_string(), *needed_bytes);
        }
        BlockError::Payload(codec_error) => match codec_error {
            CodecError::Damaged { .. } => FindingKind::CorruptBlock,
            CodecError::WrongLength { .. } => FindingKind::WrongLength,
            CodecError::Trailing { .. } => FindingKind::TrailingBytes,
            CodecError::Memory { .. } => FindingKind::UndecodableBlock,
            CodecError::Cancelled => FindingKind::UnreadableFile,
        },
    };
    block_finding(kind, dataset, position, block.to_string())
}

/// Returns the finding for a listed block that could not be read. `is_there` is true if the file still exists.
pub(super) fn vanished_block_finding(dataset: &Dataset, position: &GridPosition, is_there: bool) -> Finding {
    let message = if is_there {
        "permission to read the block is denied"
    } else {
        "the block was removed before it could be read"
    };
    block_finding(FindingKind::UnreadableFile, dataset, position, message.to_owned())
}

fn over_budget_finding(dataset: &Dataset, position: &GridPosition, message: String, needed_bytes: u64) -> Finding {
    let mebibytes = needed_bytes.div_ceil(1 << 20);
    let advice = format!("verify again with more memory: --set limits.decode_budget={mebibytes}MiB");
    Finding { advice, ..block_finding(FindingKind::UnverifiedBlock, dataset, position, message) }
}

fn block_finding(kind: FindingKind, dataset: &Dataset, position: &GridPosition, message: String) -> Finding {
    let key = dataset.block_key(position);
    Finding::new(kind, key.as_str(), message).in_dataset(dataset.key.as_str()).at_position(position)
}
