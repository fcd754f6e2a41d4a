//! Errors of the parts below as problems: the only place that gives them statuses.

use serde_json::json;

use super::{
    CORRUPT_BLOCK, INTERNAL, INVALID_PARAMETER, NOT_A_DATASET, NOT_FOUND, NOT_REPRESENTABLE, OVERLOADED, Problem,
    STORAGE_UNAVAILABLE, TIMEOUT, TOO_LARGE, UNREADABLE, UNSUPPORTED,
};
use crate::container::{BudgetError, ReadError, Refusal};
use crate::n5::{BlockError, CodecError, ConvertError, Coords};
use crate::store::StoreError;

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotFound(key) => {
                Self::new(NOT_FOUND, format!("there is no group or dataset /{key} in this container"))
            }
            ReadError::NotADataset { key, reason } => {
                Self::new(NOT_A_DATASET, format!("/{key} is not a dataset: {reason}")).with("reason", reason)
            }
            ReadError::AttributesTooLarge { key, bytes, limit_bytes } => Self::new(
                TOO_LARGE,
                format!(
                    "the attributes of /{key} have {bytes} bytes; limits.attributes and limits.transfer_budget allow \
                     {limit_bytes}"
                ),
            )
            .with("limit", limit_bytes),
            ReadError::StoredTooLarge { key, bytes, limit_bytes } => Self::new(
                TOO_LARGE,
                format!(
                    "the stored block /{key} has {bytes} bytes; limits.decode_budget allows blocks of \
                     {limit_bytes} bytes to be decoded; the block itself can be fetched as stored"
                ),
            )
            .with("limit", limit_bytes),
            ReadError::TooLarge(detail) => Self::new(TOO_LARGE, detail),
            ReadError::Parameter { parameter, detail, known } => {
                let problem = Self::new(INVALID_PARAMETER, detail).with("parameter", parameter);
                if known.is_empty() { problem } else { problem.with("known", known) }
            }
            ReadError::Unmakeable(detail) => Self::new(NOT_REPRESENTABLE, detail),
            ReadError::Convert(error) => conversion_problem(error),
            ReadError::Block { key, position, error } => block_problem(&key, &position, error),
            ReadError::Store(error) => {
                let (kind, detail) = match &error {
                    StoreError::NotFollowed(key) => {
                        let detail = format!(
                            "/{key} is behind a symbolic link that the server does not follow; see its setting symlinks"
                        );
                        return Self::own(UNREADABLE, &detail, error.to_string());
                    }
                    StoreError::LeadsNowhere(key) => {
                        let detail =
                            format!("/{key} is a link that leads nowhere, or behind one; fetch what it stands for");
                        return Self::own(UNREADABLE, &detail, error.to_string());
                    }
                    StoreError::Io { key, .. } if error.hides() => {
                        let detail = format!("the server has no permission to read /{key}");
                        return Self::own(UNREADABLE, &detail, error.to_string());
                    }
                    StoreError::Timeout(..) => (TIMEOUT, "the storage did not answer in time"),
                    StoreError::Io { .. } | StoreError::Short(_) | StoreError::Torn(_) => {
                        (STORAGE_UNAVAILABLE, "the storage failed in a way that may pass; try again")
                    }
                    StoreError::Gone(_) => {
                        (STORAGE_UNAVAILABLE, "what is served is not there now, which says nothing of what it holds")
                    }
                    StoreError::Overdue(..) => {
                        (STORAGE_UNAVAILABLE, "the storage does not answer for this; try again later")
                    }
                    StoreError::Crowded(..) | StoreError::GaveWay(_) => {
                        (STORAGE_UNAVAILABLE, "the storage keeps too many others waiting; try again later")
                    }
                    StoreError::Stalled(..) => {
                        (STORAGE_UNAVAILABLE, "the storage has answered nobody for a while; try again later")
                    }
                };
                Self::own(kind, detail, error.to_string())
            }
            ReadError::Budget(BudgetError::TooLarge { budget, asked_bytes, capacity_bytes }) => Self::new(
                TOO_LARGE,
                format!("this takes {asked_bytes} bytes of memory; limits.{budget}_budget has {capacity_bytes}"),
            )
            .with("limit", capacity_bytes),
            ReadError::Budget(waited @ BudgetError::Waited { .. }) => {
                Self::own(OVERLOADED, "no memory was free in time; try again", waited.to_string())
            }
            ReadError::Died(cause) => Self::own(INTERNAL, "the server has a fault", cause),
        }
    }
}

fn conversion_problem(error: ConvertError) -> Problem {
    match error {
        ConvertError::NotRepresentable { value, from, to, .. } => Problem::new(
            NOT_REPRESENTABLE,
            format!(
                "the region holds {value} ({from}), which {to} cannot represent exactly; give a dtype that has it, \
                 float32 or float64 to have it rounded, or none for the elements as they are"
            ),
        )
        .with("value", value)
        .with("from", from.name())
        .with("to", to.name()),
        fault @ (ConvertError::Unsupported(_) | ConvertError::Length { .. } | ConvertError::Memory(_)) => {
            Problem::own(INTERNAL, "the server has a fault", fault.to_string())
        }
    }
}

fn block_problem(key: &crate::store::Key, position: &[u64], error: BlockError) -> Problem {
    match error {
        BlockError::Unsupported(what) => {
            Problem::new(UNSUPPORTED, format!("block /{key}: {what}; it can be fetched as stored"))
        }
        BlockError::OverLimit { needed_bytes, limit_bytes } => Problem::new(
            TOO_LARGE,
            format!(
                "decoding block /{key} takes {needed_bytes} bytes; limits.decode_budget allows {limit_bytes}; \
                 the block itself can be fetched as stored"
            ),
        )
        .with("limit", limit_bytes),
        // Of one who waits for it, it is not given up.
        error @ BlockError::Payload(CodecError::Abandoned) => {
            Problem::own(INTERNAL, "the server has a fault", error.to_string())
        }
        error @ (BlockError::ShortHeader { .. }
        | BlockError::UnknownMode(_)
        | BlockError::Rank { .. }
        | BlockError::TooLargeForGrid { .. }
        | BlockError::Implausible { .. }
        | BlockError::Payload(_)) => {
            Problem::new(CORRUPT_BLOCK, format!("block /{key}: {error}")).with("block", json!(position))
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::TooLarge { bytes, limit_bytes } => {
                let bytes = bytes.map_or_else(|| "more than 2^64".to_owned(), |bytes| bytes.to_string());
                let detail = format!("the answer has {bytes} bytes; limits.slice allows {limit_bytes}");
                Self::new(TOO_LARGE, detail).with("limit", limit_bytes)
            }
            Refusal::TooCostly { decoded_bytes, bytes, limit_bytes, .. } => {
                let detail = format!(
                    "{decoded_bytes} bytes would be decoded for an answer of {bytes}; \
                     limits.decode_factor allows {limit_bytes}"
                );
                let limit = u64::try_from(limit_bytes).unwrap_or(u64::MAX);
                Self::new(TOO_LARGE, detail).with("limit", limit)
            }
        }
    }
}

impl Problem {
    /// The same, of an answer that can be had in pieces of this shape.
    pub(in crate::http) fn in_pieces(mut self, piece: Option<&Coords>) -> Self {
        let Some(piece) = piece else { return self };
        let shape = piece.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let split = format!("; split it into pieces of at most {shape} elements along the axes");
        self.0.detail.push_str(&split);
        self.with("piece", json!(piece.as_slice()))
    }
}
