//! What has been counted, in all and in each dataset that is being walked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::finding::Severity;
use crate::container::Dataset;

/// Everything counted since the run began, also before it was resumed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Findings of that severity.
    pub errors: u64,
    /// Findings of that severity.
    pub warnings: u64,
    /// Findings of that severity.
    pub notes: u64,
    /// Findings by the name of their kind.
    pub kinds: BTreeMap<String, u64>,
    /// Directories that are no datasets, and not part of a grid.
    pub groups: u64,
    /// Datasets.
    pub datasets: u64,
    /// Stored blocks within the grids.
    pub blocks: u64,
    /// Of these, those that were not decoded.
    pub unverified: u64,
    /// Blocks of the grids that are not stored.
    pub missing: u64,
    /// Length of all stored blocks that decode, in bytes.
    pub stored_bytes: u64,
    /// Length of their elements, in bytes.
    pub decoded_bytes: u64,
}

impl Totals {
    pub(super) fn count(&mut self, kind: &str, severity: Severity) {
        let count = match severity {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
            Severity::Note => &mut self.notes,
        };
        *count = count.saturating_add(1);
        let count = self.kinds.entry(kind.to_owned()).or_default();
        *count = count.saturating_add(1);
    }

    /// The worst that was found.
    pub fn worst(&self) -> Option<Severity> {
        let found = [(self.errors, Severity::Error), (self.warnings, Severity::Warning), (self.notes, Severity::Note)];
        found.into_iter().find(|(count, _)| *count > 0).map(|(_, severity)| severity)
    }
}

/// What is counted of one dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetTally {
    /// Its key.
    pub dataset: String,
    /// Entity tag of its attributes when they were read.
    pub attributes: String,
    /// Number of blocks of the grid, beyond 2^64 - 1 that.
    pub grid_blocks: u64,
    /// Stored blocks within the grid.
    pub blocks: u64,
    /// Blocks of the grid that are not stored.
    pub missing: u64,
    /// Stored blocks that were not decoded.
    pub unverified: u64,
    /// Length of the stored blocks that decode, in bytes.
    pub stored_bytes: u64,
    /// Boxes of missing blocks that were told.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ranges: u64,
    /// Missing blocks of further boxes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub untold: u64,
    /// Directories and names within the grid that could not be read: what is below may be stored, and counts as missing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unreadable: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl DatasetTally {
    pub(super) fn of(dataset: &Dataset) -> Self {
        Self {
            dataset: dataset.key.as_str().to_owned(),
            attributes: dataset.etag.to_string(),
            grid_blocks: dataset.attributes.grid().shape().iter().copied().fold(1, u64::saturating_mul),
            blocks: 0,
            missing: 0,
            unverified: 0,
            stored_bytes: 0,
            ranges: 0,
            untold: 0,
            unreadable: 0,
        }
    }
}
