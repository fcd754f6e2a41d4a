//! Why something cannot be read, or has no memory.

use std::time::Duration;

use crate::cpu::JobDied;
use crate::n5::{BlockError, ConvertError, GridPosition};
use crate::seldom::Seldom;
use crate::store::{Key, StoreError};

/// Why something cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// There is no group or dataset of that name.
    #[error("there is no group or dataset {0:?}")]
    NotFound(Key),
    /// There is something, but no dataset.
    #[error("{key:?} is not a dataset: {reason}")]
    NotADataset {
        /// Where.
        key: Key,
        /// Why not.
        reason: String,
    },
    /// An `attributes.json` beyond what is parsed.
    #[error("the attributes of {key:?} have {bytes} bytes, at most {limit_bytes} are parsed")]
    AttributesTooLarge {
        /// The group.
        key: Key,
        /// Their length.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// A stored block beyond what is decoded.
    #[error("the stored block {key:?} has {bytes} bytes, at most {limit_bytes} are decoded")]
    StoredTooLarge {
        /// The block.
        key: Key,
        /// Its length.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Something beyond what is made at once; the text is for the client.
    #[error("{0}")]
    TooLarge(String),
    /// A block that cannot be decoded.
    #[error("block {key:?}: {error}")]
    Block {
        /// Its key.
        key: Key,
        /// Its position in the grid.
        position: GridPosition,
        /// Why.
        error: BlockError,
    },
    /// A parameter of the query whose value does not exist, or does not go with the dataset.
    #[error("{detail}")]
    Parameter {
        /// Its name.
        parameter: &'static str,
        /// What was asked, what is allowed; the text is for the client.
        detail: String,
        /// The values that exist, where they are few.
        known: Vec<&'static str>,
    },
    /// The elements are sound, but not what was asked for can be made of them.
    #[error("{0}")]
    Unmakeable(String),
    /// The elements are not those of the type asked for.
    #[error(transparent)]
    Convert(#[from] ConvertError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No memory for it now, or ever.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// A bug: a job or task panicked.
    #[error("{0}")]
    Died(String),
}

/// Why there is no share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// More than the whole budget was asked for.
    #[error("{asked_bytes} bytes exceed the {budget} budget of {capacity_bytes}")]
    TooLarge {
        /// The budget's configuration key.
        budget: &'static str,
        /// Bytes asked for.
        asked_bytes: u64,
        /// Bytes there are.
        capacity_bytes: u64,
    },
    /// Others kept it for too long.
    #[error("no share of the {budget} budget within {waited:?}")]
    Waited {
        /// The budget's configuration key.
        budget: &'static str,
        /// How long.
        waited: Duration,
    },
}

impl ReadError {
    /// `None` where an object is hidden ([`StoreError::hides`]): for whoever takes that for missing, but not for zeros.
    ///
    /// # Errors
    /// All others.
    pub fn or_hidden<T>(found: Result<Option<T>, Self>) -> Result<Option<T>, Self> {
        static DENIED: Seldom = Seldom::new();
        match found {
            Err(Self::Store(error)) if error.hides() => {
                // The store itself tells of links that it does not follow.
                if !matches!(error, StoreError::NotFollowed(_))
                    && let Some(unsaid) = DENIED.may_say()
                {
                    let cause = error.to_string();
                    tracing::warn!(cause, unsaid, "not readable; answered as if it was not there");
                }
                Ok(None)
            }
            found => found,
        }
    }

    /// Whether attributes are there, and cannot be read until somebody changes that.
    pub(super) fn is_of_attributes(&self) -> bool {
        match self {
            Self::AttributesTooLarge { .. } => true,
            Self::Store(error) => error.hides(),
            Self::NotFound(_)
            | Self::NotADataset { .. }
            | Self::StoredTooLarge { .. }
            | Self::TooLarge(_)
            | Self::Parameter { .. }
            | Self::Block { .. }
            | Self::Unmakeable(_)
            | Self::Convert(_)
            | Self::Budget(_)
            | Self::Died(_) => false,
        }
    }

    /// Whether this says nothing of a block: nobody waited for it any more.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(self, Self::Block { error, .. } if error.is_abandoned())
    }

    /// Whether reading again at once may help: somebody could have been writing.
    pub(super) fn may_be_torn(&self) -> bool {
        match self {
            Self::Block { error, .. } => error.may_be_torn(),
            Self::Store(error) => matches!(error, StoreError::Short(_) | StoreError::Torn(_)),
            Self::NotFound(_)
            | Self::NotADataset { .. }
            | Self::AttributesTooLarge { .. }
            | Self::StoredTooLarge { .. }
            | Self::TooLarge(_)
            | Self::Parameter { .. }
            | Self::Unmakeable(_)
            | Self::Convert(_)
            | Self::Budget(_)
            | Self::Died(_) => false,
        }
    }
}

impl From<JobDied> for ReadError {
    fn from(died: JobDied) -> Self {
        Self::Died(died.to_string())
    }
}
