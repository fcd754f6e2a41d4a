//! What is wrong with one block, from the way in which it failed to decode, or did not.

use super::finding::{Finding, Kind};
use crate::container::{Dataset, ReadError, SoundBlock};
use crate::n5::{BlockError, CodecError, GridPosition, Mode};

/// What is unusual about a block that decodes.
pub(super) fn sound(dataset: &Dataset, position: &GridPosition, block: &SoundBlock) -> Option<Finding> {
    let find = |kind, message: String| Some(finding(kind, dataset, position, message));
    let place = dataset.attributes.grid().clipped_size(position);
    if block.size.iter().zip(&place).any(|(size, least)| size < least) {
        let (size, place) = (block.size.as_slice(), place.as_slice());
        return find(Kind::SmallBlock, format!("the block has the size {size:?}, its place in the grid {place:?}"));
    }
    match block.mode {
        Some(Mode::VarLength) => find(Kind::VarlengthBlock, "the block is of mode 1 (varlength)".to_owned()),
        Some(Mode::Default | Mode::Object) | None => None,
    }
}

/// Why a block could not be read or decoded.
pub(super) fn failed(dataset: &Dataset, position: &GridPosition, error: &ReadError) -> Finding {
    let block = match error {
        ReadError::Block { error, .. } => error,
        ReadError::StoredTooLarge { bytes, .. } => {
            let needed_bytes = bytes.saturating_mul(2);
            return over(dataset, position, error.to_string(), needed_bytes);
        }
        ReadError::NotFound(_)
        | ReadError::NotADataset { .. }
        | ReadError::AttributesTooLarge { .. }
        | ReadError::TooLarge(_)
        | ReadError::Parameter { .. }
        | ReadError::Unmakeable(_)
        | ReadError::Convert(_)
        | ReadError::Store(_)
        | ReadError::Budget(_)
        | ReadError::Died(_) => return finding(Kind::UnreadableFile, dataset, position, error.to_string()),
    };
    let kind = match block {
        BlockError::ShortHeader { bytes: 0, .. } => Kind::EmptyBlock,
        BlockError::ShortHeader { .. } | BlockError::Implausible { .. } => Kind::TruncatedBlock,
        BlockError::UnknownMode(_) => Kind::UnknownMode,
        BlockError::Rank { .. } => Kind::WrongRank,
        BlockError::TooLargeForGrid { .. } => Kind::OversizedBlock,
        BlockError::Unsupported(_) => Kind::UndecodableBlock,
        BlockError::OverLimit { needed_bytes, .. } => {
            return over(dataset, position, block.to_string(), *needed_bytes);
        }
        BlockError::Payload(codec) => match codec {
            CodecError::Damaged { .. } => Kind::CorruptBlock,
            CodecError::WrongLength { .. } => Kind::WrongLength,
            CodecError::Trailing { .. } => Kind::TrailingBytes,
            CodecError::Memory { .. } => Kind::UndecodableBlock,
            CodecError::Abandoned => Kind::UnreadableFile,
        },
    };
    finding(kind, dataset, position, block.to_string())
}

/// A listed block that nothing could be read of.
pub(super) fn vanished(dataset: &Dataset, position: &GridPosition, is_there: bool) -> Finding {
    let message = if is_there { "permission to read it is denied" } else { "it was gone when it was to be read" };
    finding(Kind::UnreadableFile, dataset, position, message.to_owned())
}

fn over(dataset: &Dataset, position: &GridPosition, message: String, needed_bytes: u64) -> Finding {
    let mebibytes = needed_bytes.div_ceil(1 << 20);
    let advice = format!("verify again with more memory: --set limits.decode_budget={mebibytes}MiB");
    Finding { advice, ..finding(Kind::UnverifiedBlock, dataset, position, message) }
}

fn finding(kind: Kind, dataset: &Dataset, position: &GridPosition, message: String) -> Finding {
    let key = dataset.block_key(position);
    Finding::new(kind, key.as_str(), message).of(dataset.key.as_str()).at(position)
}
