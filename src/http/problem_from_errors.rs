//! Converts the errors of queries and of the lower layers to problems. No other module assigns statuses to them.

use serde_json::json;

use crate::cache::{BudgetError, ReadError};
use crate::http::problem::{
    CORRUPT_BLOCK, INVALID_PARAMETER, NOT_A_DATASET, NOT_ACCEPTABLE, NOT_FOUND, NOT_REPRESENTABLE, OUT_OF_BOUNDS,
    OVERLOADED, Problem, STORAGE_UNAVAILABLE, TIMEOUT, TOO_LARGE, UNREADABLE, UNSUPPORTED,
};
use crate::http::query::strict::QueryError;
use crate::output::NegotiationError;
use crate::read::SliceRefusal;
use crate::store::StoreError;
use n5_format::{BlockError, CodecError, ConvertError};

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotFound(key) => {
                Self::new(NOT_FOUND, format!("there is no group or dataset /{key} in this container"))
            }
            ReadError::NotADataset { key, reason } => {
                Self::new(NOT_A_DATASET, format!("/{key} is not a dataset: {reason}")).with_member("reason", reason)
            }
            ReadError::AttributesTooLarge { key, bytes, limit_bytes } => Self::new(
                TOO_LARGE,
                format!(
                    "the attributes of /{key} have {bytes} bytes; limits.attributes and limits.transfer_budget allow \
                     {limit_bytes}"
                ),
            )
            .with_member("limit", limit_bytes),
            ReadError::StoredTooLarge { key, bytes, limit_bytes } => Self::new(
                TOO_LARGE,
                format!(
                    "the stored block /{key} has {bytes} bytes; limits.decode_budget allows blocks of \
                     {limit_bytes} bytes to be decoded; the block itself can be fetched as stored"
                ),
            )
            .with_member("limit", limit_bytes),
            ReadError::TooLarge(detail) => Self::new(TOO_LARGE, detail),
            ReadError::InvalidParameter { parameter, detail, known } => {
                let problem = Self::new(INVALID_PARAMETER, detail).with_member("parameter", parameter);
                if known.is_empty() { problem } else { problem.with_member("known", known) }
            }
            ReadError::NotRepresentable(detail) => Self::new(NOT_REPRESENTABLE, detail),
            ReadError::Convert(error) => conversion_problem(error),
            ReadError::Block { key, position, error } => block_problem(&key, &position, error),
            ReadError::Store(error) => {
                let (kind, detail) = match &error {
                    StoreError::LinkNotFollowed(key) => {
                        let detail = format!(
                            "the path to /{key} contains a symbolic link that the server does not follow; see the setting symlinks"
                        );
                        return Self::with_cause(UNREADABLE, &detail, error.to_string());
                    }
                    StoreError::DanglingLink(key) => {
                        let detail =
                            format!("/{key} is a link that leads nowhere, or is below one; fetch the link's target");
                        return Self::with_cause(UNREADABLE, &detail, error.to_string());
                    }
                    StoreError::Io { key, .. } if error.hides_object() => {
                        let detail = format!("the server has no permission to read /{key}");
                        return Self::with_cause(UNREADABLE, &detail, error.to_string());
                    }
                    StoreError::Timeout(..) => (TIMEOUT, "the storage did not respond in time"),
                    StoreError::Io { .. } | StoreError::Truncated(_) | StoreError::Torn(_) => {
                        (STORAGE_UNAVAILABLE, "the storage failed, perhaps temporarily; try again")
                    }
                    StoreError::RootMissing(_) => {
                        (STORAGE_UNAVAILABLE, "the container's root directory is missing, so its content is unknown")
                    }
                    StoreError::KeyStalled(..) => {
                        (STORAGE_UNAVAILABLE, "the storage does not respond for this object; try again later")
                    }
                    StoreError::Overloaded(..) | StoreError::Preempted(_) => {
                        (STORAGE_UNAVAILABLE, "too many requests wait for the storage; try again later")
                    }
                    StoreError::Stalled(..) => {
                        (STORAGE_UNAVAILABLE, "the storage has not responded for a while; try again later")
                    }
                };
                Self::with_cause(kind, detail, error.to_string())
            }
            ReadError::Budget(BudgetError::TooLarge { budget, asked_bytes, capacity_bytes }) => Self::new(
                TOO_LARGE,
                format!("this needs {asked_bytes} bytes of memory; limits.{budget}_budget allows {capacity_bytes}"),
            )
            .with_member("limit", capacity_bytes),
            ReadError::Budget(error @ BudgetError::TimedOut { .. }) => {
                Self::with_cause(OVERLOADED, "no memory became free in time; try again", error.to_string())
            }
            ReadError::Internal(cause) => Self::internal(cause),
        }
    }
}

fn conversion_problem(error: ConvertError) -> Problem {
    match error {
        ConvertError::NotRepresentable { value, from, to, .. } => Problem::new(
            NOT_REPRESENTABLE,
            format!(
                "the region holds {value} ({from}), which {to} cannot represent exactly; use a dtype that can, \
                 float32 or float64 to round it, or no dtype to get the elements unchanged"
            ),
        )
        .with_member("value", value)
        .with_member("from", from.name())
        .with_member("to", to.name()),
        error @ (ConvertError::Unsupported(_) | ConvertError::Length { .. } | ConvertError::Memory(_)) => {
            Problem::internal(error.to_string())
        }
    }
}

fn block_problem(key: &crate::store::Key, position: &[u64], error: BlockError) -> Problem {
    match error {
        BlockError::Unsupported(feature) => {
            Problem::new(UNSUPPORTED, format!("block /{key}: {feature}; it can be fetched as stored"))
        }
        BlockError::OverLimit { needed_bytes, limit_bytes } => Problem::new(
            TOO_LARGE,
            format!(
                "decoding block /{key} takes {needed_bytes} bytes; limits.decode_budget allows {limit_bytes}; \
                 the block itself can be fetched as stored"
            ),
        )
        .with_member("limit", limit_bytes),
        // Decoding is never cancelled while a request waits for it.
        error @ BlockError::Payload(CodecError::Cancelled) => Problem::internal(error.to_string()),
        error @ (BlockError::ShortHeader { .. }
        | BlockError::UnknownMode(_)
        | BlockError::Rank { .. }
        | BlockError::TooLargeForGrid { .. }
        | BlockError::Implausible { .. }
        | BlockError::Payload(_)) => {
            Problem::new(CORRUPT_BLOCK, format!("block /{key}: {error}")).with_member("block", json!(position))
        }
    }
}

impl From<SliceRefusal> for Problem {
    fn from(refusal: SliceRefusal) -> Self {
        match refusal {
            SliceRefusal::TooLarge { bytes, limit_bytes } => {
                let bytes = bytes.map_or_else(|| "more than 2^64".to_owned(), |bytes| bytes.to_string());
                let detail = format!("the response has {bytes} bytes; limits.slice allows {limit_bytes}");
                Self::new(TOO_LARGE, detail).with_member("limit", limit_bytes)
            }
            SliceRefusal::TooCostly { decoded_bytes, bytes, limit_bytes, .. } => {
                let detail = format!(
                    "{decoded_bytes} bytes would be decoded for an answer of {bytes}; \
                     limits.decode_factor allows {limit_bytes}"
                );
                let limit = u64::try_from(limit_bytes).unwrap_or(u64::MAX);
                Self::new(TOO_LARGE, detail).with_member("limit", limit)
            }
        }
    }
}

impl From<NegotiationError> for Problem {
    fn from(error: NegotiationError) -> Self {
        let (kind, known) = match &error {
            NegotiationError::UnknownFormat { known, .. } => (INVALID_PARAMETER, known.clone()),
            NegotiationError::NotAcceptable { known } => (NOT_ACCEPTABLE, known.clone()),
        };
        Self::new(kind, error.to_string()).with_member("known", known)
    }
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Invalid { parameter, detail, known } => {
                let problem = Self::new(INVALID_PARAMETER, detail).with_member("parameter", parameter);
                if known.is_empty() { problem } else { problem.with_member("known", known) }
            }
            QueryError::OutOfBounds { detail, dimensions } => {
                Self::new(OUT_OF_BOUNDS, detail).with_member("dimensions", json!(dimensions.as_slice()))
            }
        }
    }
}
