//! Errors of reads and of memory budgets.

use std::time::Duration;

use crate::runtime::cpu_pool::JobDied;
use crate::store::{Key, StoreError};
use crate::telemetry::log_throttle::LogThrottle;
use n5_format::{BlockError, ConvertError, GridPosition};

/// Reason why something cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// No group or dataset with this name exists.
    #[error("there is no group or dataset {0:?}")]
    NotFound(Key),
    /// The key names something that is not a dataset.
    #[error("{key:?} is not a dataset: {reason}")]
    NotADataset {
        /// Key that is not a dataset.
        key: Key,
        /// Reason why it is not a dataset.
        reason: String,
    },
    /// An `attributes.json` that is too large to parse.
    #[error("the attributes of {key:?} have {bytes} bytes, at most {limit_bytes} are parsed")]
    AttributesTooLarge {
        /// Key of the group.
        key: Key,
        /// Length of the file.
        bytes: u64,
        /// Largest length that is parsed.
        limit_bytes: u64,
    },
    /// A stored block that is too large to decode.
    #[error("the stored block {key:?} has {bytes} bytes, at most {limit_bytes} are decoded")]
    StoredTooLarge {
        /// Key of the block.
        key: Key,
        /// Length of the stored block.
        bytes: u64,
        /// Largest length that is decoded.
        limit_bytes: u64,
    },
    /// The result is too large to be produced at once. The text is for the client.
    #[error("{0}")]
    TooLarge(String),
    /// A block that cannot be decoded.
    #[error("block {key:?}: {error}")]
    Block {
        /// Key of the block.
        key: Key,
        /// Grid position of the block.
        position: GridPosition,
        /// Reason of the failure.
        error: BlockError,
    },
    /// The value of a query parameter is unknown, or not possible for the dataset.
    #[error("{detail}")]
    InvalidParameter {
        /// Name of the parameter.
        parameter: &'static str,
        /// Requested value and allowed values; the text is for the client.
        detail: String,
        /// Existing values, if there are few.
        known: Vec<&'static str>,
    },
    /// The elements are valid, but cannot be represented in the requested form.
    #[error("{0}")]
    NotRepresentable(String),
    /// An element cannot be converted to the requested type.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No memory is available at present, or the request exceeds the budget.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// A bug: a job or a task panicked.
    #[error("{0}")]
    Internal(String),
}

/// Reason why no permit was granted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// The request exceeds the whole budget.
    #[error("{asked_bytes} bytes exceed the {budget} budget of {capacity_bytes} bytes")]
    TooLarge {
        /// Configuration key of the budget.
        budget: &'static str,
        /// Requested bytes.
        asked_bytes: u64,
        /// Size of the budget in bytes.
        capacity_bytes: u64,
    },
    /// Other requests held the memory for too long.
    #[error("no memory available in the {budget} budget within {waited:?}")]
    TimedOut {
        /// Configuration key of the budget.
        budget: &'static str,
        /// Duration of the wait.
        waited: Duration,
    },
}

impl ReadError {
    /// Converts the error of a hidden object ([`StoreError::hides_object`]) to `None`. For callers that treat a hidden
    /// object as missing. Must not be used where a missing block is read as zeros.
    ///
    /// # Errors
    /// Returns all other errors.
    pub fn hidden_as_none<T>(result: Result<Option<T>, Self>) -> Result<Option<T>, Self> {
        static WARN_THROTTLE: LogThrottle = LogThrottle::new();
        match result {
            Err(Self::Store(error)) if error.hides_object() => {
                // The store itself reports links that it does not follow.
                if !matches!(error, StoreError::LinkNotFollowed(_))
                    && let Some(suppressed) = WARN_THROTTLE.allow()
                {
                    let cause = error.to_string();
                    tracing::warn!(cause, suppressed, "not readable; answered as if it was not there");
                }
                Ok(None)
            }
            other => other,
        }
    }

    /// Returns true if attributes may exist, but cannot be read until someone changes them, their path or their
    /// permissions.
    pub(crate) fn hides_attributes(&self) -> bool {
        matches!(self, Self::AttributesTooLarge { .. }) || matches!(self, Self::Store(error) if error.hides_object())
    }

    /// Returns true if decoding was cancelled because no request waited for it. The block itself may be valid.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Block { error, .. } if error.is_cancelled())
    }

    /// Returns true if a single block cannot be decoded, so that others can still be read.
    pub(crate) fn concerns_one_block(&self) -> bool {
        matches!(self, Self::Block { .. } | Self::StoredTooLarge { .. })
    }

    /// Returns true if an immediate retry may help, because another program may have been writing.
    pub(crate) fn may_be_torn(&self) -> bool {
        matches!(self, Self::Store(StoreError::Truncated(_) | StoreError::Torn(_)))
            || matches!(self, Self::Block { error, .. } if error.may_be_torn())
    }
}

impl From<JobDied> for ReadError {
    fn from(died: JobDied) -> Self {
        Self::Internal(died.to_string())
    }
}
