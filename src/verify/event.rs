//! Events of a run, such as findings and checkpoints, the counts that they carry, and the trait of their receiver.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};

use super::finding::{FINDING_KINDS, Finding, Severity};
use crate::cache::Dataset;

/// Counts since the run began. If the run was resumed, they include those of the earlier parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Number of findings with the severity error.
    pub errors: u64,
    /// Number of findings with the severity warning.
    pub warnings: u64,
    /// Number of findings with the severity note.
    pub notes: u64,
    /// Number of findings by the name of their kind.
    pub kinds: BTreeMap<String, u64>,
    /// Number of directories that are neither datasets nor part of a grid.
    pub groups: u64,
    /// Number of datasets.
    pub datasets: u64,
    /// Number of stored blocks within the grids.
    pub blocks: u64,
    /// Number of stored blocks within the grids that could not be decoded, for any reason.
    pub unverified: u64,
    /// Number of blocks of the grids that are not stored.
    pub missing: u64,
    /// Length of all stored blocks that could be decoded, in bytes.
    pub stored_bytes: u64,
    /// Length of the decoded elements of these blocks, in bytes.
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

    /// Counts a finding by the names of its kind and severity. Returns `false` if there is no such kind.
    pub fn count_named(&mut self, kind: &str, severity: &str) -> bool {
        let row = FINDING_KINDS.iter().find(|row| row.name == kind && row.severity.name() == severity);
        if let Some(row) = row {
            self.count(row.name, row.severity);
        }
        row.is_some()
    }

    /// Returns the highest severity of all findings, or `None` if there are none.
    pub fn worst_severity(&self) -> Option<Severity> {
        let counts = [(self.errors, Severity::Error), (self.warnings, Severity::Warning), (self.notes, Severity::Note)];
        counts.into_iter().find(|(count, _)| *count > 0).map(|(_, severity)| severity)
    }
}

/// Counts of one dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetTally {
    /// Key of the dataset.
    pub dataset: String,
    /// Entity tag of the dataset's attributes when they were read.
    pub attributes: String,
    /// Number of blocks of the grid, at most 2^64 - 1.
    pub grid_blocks: u64,
    /// Number of stored blocks within the grid.
    pub blocks: u64,
    /// Number of blocks of the grid that are not stored.
    pub missing: u64,
    /// Number of stored blocks that were not decoded.
    pub unverified: u64,
    /// Length of the stored blocks that could be decoded, in bytes.
    pub stored_bytes: u64,
    /// Number of missing ranges that were reported.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ranges: u64,
    /// Number of missing blocks in ranges that were not reported.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub untold: u64,
    /// Number of directories and names within the grid that could not be read. Blocks below them may be stored, but
    /// count as missing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unreadable: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
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

/// Position of a run. Everything before it has been reported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Index of the root that is being walked.
    pub root: usize,
    /// Key of the last file that was visited.
    pub after: String,
    /// Counts of everything up to this position.
    pub totals: Totals,
    /// Datasets that contain this position, the outermost first.
    pub open: Vec<DatasetTally>,
}

/// An event of a run.
#[derive(Debug)]
pub enum VerifyEvent<'a> {
    /// A finding.
    Finding(&'a Finding),
    /// A dataset has been walked completely.
    DatasetDone(&'a DatasetTally),
    /// The walk has passed a file. The totals count everything up to it.
    Progress(&'a Totals),
    /// A position at which a later run can resume. It then reports everything after this position and nothing before
    /// it.
    Checkpoint(&'a Checkpoint),
}

/// Receiver of the events of a run.
pub trait EventSink {
    /// Records an event.
    ///
    /// # Errors
    /// Returns an error if the event cannot be recorded. The run then ends.
    fn record(&mut self, event: VerifyEvent<'_>) -> io::Result<()>;

    /// Returns true if it is time for a checkpoint.
    fn wants_checkpoint(&self) -> bool;
}
